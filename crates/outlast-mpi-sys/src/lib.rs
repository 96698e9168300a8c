//! The part of Open MPI 5 with ULFM that Outlast calls. No other crate calls MPI.
//!
//! A small C shim is compiled with `mpicc` on the machine of the user (`compile`), and loaded when
//! a process joins over MPI (`plugin`); each function here wraps a function of the shim and returns
//! a [`Result`] with MPI's error class and text. [`load`] comes before all other calls. No function
//! waits: there is no blocking receive, and collective calls are polled, so that the caller can
//! bound them. The exceptions are `Comm::shrink` and `Window`, which say so.

mod compile;
mod plugin;

pub use compile::{compile, wrappers};
pub use plugin::{FILE_NAME, Plugin, VARIABLE, in_cache, in_checkout, inspect, load};

use plugin::loaded;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;

/// An error of MPI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The call that failed.
    pub call: &'static str,
    /// Its error class; see the associated constants.
    pub class: i32,
    /// What MPI says about it.
    pub text: String,
}

impl Error {
    /// A process that the call needed has failed.
    pub const PROC_FAILED: i32 = 75;
    /// A receive from any source met a failure that was not acknowledged.
    pub const PROC_FAILED_PENDING: i32 = 76;
    /// The communicator was revoked.
    pub const REVOKED: i32 = 77;
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed with class {}: {}", self.call, self.class, self.text)
    }
}

impl std::error::Error for Error {}

/// The result of a call of MPI.
pub type Result<T> = std::result::Result<T, Error>;

/// A communicator.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Comm(*mut c_void);

/// A request, or null.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request(*mut c_void);

/// A window: memory of all ranks of a communicator that each rank reaches one-sidedly.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Window(*mut c_void);

// SAFETY: a handle names an object of the MPI library. The library was initialized with
// MPI_THREAD_MULTIPLE (the caller of `init` checks it), and does its own locking.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}
// SAFETY: as above.
unsafe impl Send for Window {}
// SAFETY: as above. The calls that complete a request take it by `&mut`, so no two threads complete
// it at once.
unsafe impl Send for Request {}

/// A complete request, as [`Tester::test_some`] found it.
#[derive(Clone, Debug)]
pub struct Completed {
    /// Its index among the requests.
    pub index: usize,
    /// The bytes that it received, or why it failed.
    pub result: Result<usize>,
}

/// Declares the functions of the shim: the table that [`load`] fills, and each of them as a
/// function that calls the plug-in.
macro_rules! shim {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $output:ty)?;)*) => {
        /// The functions of the plug-in.
        pub(crate) struct Shim {
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) $(-> $output)?,)*
        }

        impl Shim {
            /// The functions of an open plug-in.
            ///
            /// # Safety
            /// The plug-in has the interface of this crate, and is never closed.
            pub(crate) unsafe fn of(library: *mut c_void) -> std::result::Result<Shim, String> {
                Ok(Shim {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        let name = CStr::from_bytes_with_nul(name.as_bytes()).expect("a name");
                        let address = plugin::symbol(library, name)?;
                        // SAFETY: the function of this name has this type in the shim.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($type),*) $(-> $output)?,
                            >(address)
                        }
                    },)*
                })
            }
        }

        $(
            /// The function of this name in the shim.
            ///
            /// # Safety
            /// As `shim.c` says.
            unsafe fn $name($($argument: $type),*) $(-> $output)? {
                // SAFETY: the caller keeps what the shim asks for.
                unsafe { (loaded().$name)($($argument),*) }
            }
        )*
    };
}

shim! {
    fn outlast_mpi_init(provided: *mut c_int, is_ours: *mut c_int) -> c_int;
    fn outlast_mpi_thread_multiple() -> c_int;
    fn outlast_mpi_request_null() -> *mut c_void;
    fn outlast_mpi_has_ulfm(has_ulfm: *mut c_int) -> c_int;
    fn outlast_mpi_world() -> Comm;
    fn outlast_mpi_dup(parent: Comm, comm: *mut Comm, request: *mut Request) -> c_int;
    fn outlast_mpi_shrink(comm: Comm, shrunken: *mut Comm) -> c_int;
    fn outlast_mpi_gather(
        mine: *const u64,
        all: *mut u64,
        words: c_int,
        comm: Comm,
        request: *mut Request,
    ) -> c_int;
    fn outlast_mpi_world_is_fatal(is_fatal: *mut c_int) -> c_int;
    fn outlast_mpi_set_errhandlers() -> c_int;
    fn outlast_mpi_errors_return(comm: Comm) -> c_int;
    fn outlast_mpi_rank_and_size(comm: Comm, rank: *mut c_int, size: *mut c_int) -> c_int;
    fn outlast_mpi_isend(
        bytes: *const c_void,
        len: c_int,
        to: c_int,
        tag: c_int,
        comm: Comm,
        request: *mut Request,
    ) -> c_int;
    fn outlast_mpi_irecv(
        bytes: *mut c_void,
        len: c_int,
        from: c_int,
        tag: c_int,
        comm: Comm,
        request: *mut Request,
    ) -> c_int;
    fn outlast_mpi_test_some(
        count: c_int,
        requests: *mut Request,
        done: *mut c_int,
        indices: *mut c_int,
        codes: *mut c_int,
        lens: *mut c_int,
        statuses: *mut c_void,
    ) -> c_int;
    fn outlast_mpi_status_size() -> usize;
    fn outlast_mpi_test(request: *mut Request, is_done: *mut c_int) -> c_int;
    fn outlast_mpi_cancel(request: *mut Request) -> c_int;
    fn outlast_mpi_get_failed(
        comm: Comm,
        ranks: *mut c_int,
        room: c_int,
        count: *mut c_int,
    ) -> c_int;
    fn outlast_mpi_count_failed(comm: Comm, count: *mut c_int) -> c_int;
    fn outlast_mpi_win_create(base: *mut c_void, len: usize, comm: Comm, win: *mut Window)
    -> c_int;
    fn outlast_mpi_win_lock(target: c_int, win: Window) -> c_int;
    fn outlast_mpi_rput(
        bytes: *const c_void,
        len: c_int,
        target: c_int,
        at: u64,
        win: Window,
        request: *mut Request,
    ) -> c_int;
    fn outlast_mpi_rget(
        bytes: *mut c_void,
        len: c_int,
        target: c_int,
        at: u64,
        win: Window,
        request: *mut Request,
    ) -> c_int;
    fn outlast_mpi_swap(words: *mut u64, target: c_int, at: u64, win: Window) -> c_int;
    fn outlast_mpi_error_class(code: c_int) -> c_int;
    fn outlast_mpi_error_text(code: c_int, text: *mut c_char) -> c_int;
    fn outlast_mpi_error_text_max() -> c_int;
    fn outlast_mpi_die_on_exit(has_left: *const c_int, rank: c_int, report: *const c_char)
    -> c_int;
}

/// Turns MPI's code into a result.
fn check(call: &'static str, code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the function has no preconditions.
    let room = unsafe { outlast_mpi_error_text_max() };
    let mut text = vec![0u8; room.max(0) as usize + 1];
    // SAFETY: the buffer has room for MPI_MAX_ERROR_STRING bytes; both calls are allowed at any
    // time.
    let (len, class) = unsafe {
        (
            outlast_mpi_error_text(code, text.as_mut_ptr().cast::<c_char>()),
            outlast_mpi_error_class(code),
        )
    };
    text.truncate(len.max(0) as usize);
    Err(Error { call, class, text: String::from_utf8_lossy(&text).into_owned() })
}

/// How MPI was initialized.
#[derive(Clone, Copy, Debug)]
pub struct Initialized {
    /// Whether any thread may call MPI at any time.
    pub thread_multiple: bool,
    /// Whether this call has initialized MPI, and not the program before it.
    pub is_ours: bool,
}

/// Initializes MPI unless the program has done so.
pub fn init() -> Result<Initialized> {
    let (mut provided, mut is_ours) = (0, 0);
    // SAFETY: the pointers are valid; MPI is asked first whether it was initialized.
    check("MPI_Init_thread", unsafe { outlast_mpi_init(&mut provided, &mut is_ours) })?;
    // SAFETY: the function has no preconditions.
    let thread_multiple = provided >= unsafe { outlast_mpi_thread_multiple() };
    Ok(Initialized { thread_multiple, is_ours: is_ours != 0 })
}

/// Whether the job was started with `--with-ft ulfm`.
pub fn has_ulfm() -> Result<bool> {
    let mut has_ulfm = 0;
    // SAFETY: the pointer is valid.
    check("MPI_Comm_get_attr", unsafe { outlast_mpi_has_ulfm(&mut has_ulfm) })?;
    Ok(has_ulfm != 0)
}

/// Whether an error on MPI_COMM_WORLD ends the process, as it does unless the program says
/// otherwise. Errors that belong to no communicator of Outlast are raised there, and errors of a
/// failed process too.
pub fn world_is_fatal() -> Result<bool> {
    let mut is_fatal = 0;
    // SAFETY: the pointer is valid.
    check("MPI_Comm_get_errhandler", unsafe { outlast_mpi_world_is_fatal(&mut is_fatal) })?;
    Ok(is_fatal != 0)
}

/// Makes errors on MPI_COMM_WORLD and MPI_COMM_SELF return.
pub fn set_errhandlers() -> Result<()> {
    // SAFETY: the function has no preconditions but that MPI is initialized, which it checks.
    check("MPI_Comm_set_errhandler", unsafe { outlast_mpi_set_errhandlers() })
}

/// A gather of words from all ranks. It takes until the last rank has begun.
pub struct Gather<const N: usize> {
    // On the heap and leaked unless completed: MPI reads and writes them at unknown times.
    mine: &'static mut [u64; N],
    all: &'static mut [u64],
    request: Request,
}

impl<const N: usize> Gather<N> {
    /// Begins to send `mine` to all ranks of `comm`, which has `members` ranks.
    pub fn begin(comm: Comm, members: usize, mine: [u64; N]) -> Result<Gather<N>> {
        let mine = Box::leak(Box::new(mine));
        let all = Box::leak(vec![0; N * members].into_boxed_slice());
        let mut request = Request::null();
        // SAFETY: the buffers have that many words, and are never freed before the request is
        // complete.
        check("MPI_Iallgather", unsafe {
            outlast_mpi_gather(mine.as_ptr(), all.as_mut_ptr(), N as c_int, comm, &mut request)
        })?;
        Ok(Gather { mine, all, request })
    }

    /// The words of all ranks, in their order, once they have arrived.
    pub fn poll(&mut self) -> Result<Option<Vec<[u64; N]>>> {
        if !self.request.test()? {
            return Ok(None);
        }
        debug_assert!(self.all.chunks_exact(N).any(|words| words == &self.mine[..]));
        Ok(Some(self.all.chunks_exact(N).map(|words| words.try_into().expect("N words")).collect()))
    }
}

/// A duplicate of a communicator in the making. All ranks take part, so it takes until the last
/// rank has begun.
pub struct Duplicate {
    // On the heap and leaked unless completed: MPI writes it at an unknown time.
    comm: &'static mut Comm,
    request: Request,
}

impl Duplicate {
    /// Begins to duplicate.
    pub fn begin(parent: Comm) -> Result<Duplicate> {
        let comm = Box::leak(Box::new(Comm(std::ptr::null_mut())));
        let mut request = Request::null();
        // SAFETY: `comm` is never freed before the request is complete.
        check("MPI_Comm_idup", unsafe { outlast_mpi_dup(parent, comm, &mut request) })?;
        Ok(Duplicate { comm, request })
    }

    /// The duplicate, with errors that return, once it is complete.
    pub fn poll(&mut self) -> Result<Option<Comm>> {
        if !self.request.test()? {
            return Ok(None);
        }
        let comm = *self.comm;
        // SAFETY: the communicator is complete.
        check("MPI_Comm_set_errhandler", unsafe { outlast_mpi_errors_return(comm) })?;
        Ok(Some(comm))
    }
}

impl Comm {
    /// All processes that mpirun has started.
    pub fn world() -> Comm {
        // SAFETY: the function has no preconditions.
        unsafe { outlast_mpi_world() }
    }

    /// A communicator of the program, as Open MPI's `MPI_Comm`, which is a pointer.
    ///
    /// # Safety
    /// `comm` is a communicator, and is not freed while it is used here.
    pub unsafe fn from_raw(comm: *mut c_void) -> Comm {
        Comm(comm)
    }

    /// The communicator as Open MPI's `MPI_Comm`.
    pub fn as_raw(self) -> *mut c_void {
        self.0
    }

    /// A communicator of its living ranks, with errors that return. All of them must call this, and
    /// it waits for them: the caller must bound the wait.
    pub fn shrink(self) -> Result<Comm> {
        let mut shrunken = Comm(std::ptr::null_mut());
        // SAFETY: the pointer is valid.
        check("MPIX_Comm_shrink", unsafe { outlast_mpi_shrink(self, &mut shrunken) })?;
        // SAFETY: the communicator is complete.
        check("MPI_Comm_set_errhandler", unsafe { outlast_mpi_errors_return(shrunken) })?;
        Ok(shrunken)
    }

    /// This process's rank and how many there are.
    pub fn rank_and_size(self) -> Result<(usize, usize)> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the pointers are valid.
        check("MPI_Comm_rank", unsafe { outlast_mpi_rank_and_size(self, &mut rank, &mut size) })?;
        Ok((rank as usize, size as usize))
    }

    /// The ranks that are known to have failed. `ranks` needs room for all ranks. A local call.
    pub fn get_failed(self, ranks: &mut [c_int]) -> Result<&[c_int]> {
        let mut count = 0;
        let room = c_int::try_from(ranks.len()).unwrap_or(c_int::MAX);
        // SAFETY: `ranks` has room for that many.
        check("MPIX_Comm_get_failed", unsafe {
            outlast_mpi_get_failed(self, ranks.as_mut_ptr(), room, &mut count)
        })?;
        Ok(&ranks[..count as usize])
    }

    /// How many ranks are known to have failed. A local call, which takes constant time while there
    /// is no new failure. It acknowledges the failures for receives from any source.
    pub fn count_failed(self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the pointer is valid.
        check("MPIX_Comm_ack_failed", unsafe { outlast_mpi_count_failed(self, &mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Starts to send.
    ///
    /// # Safety
    /// `bytes` stays where it is, unchanged, until the request is complete.
    pub unsafe fn isend(self, bytes: &[u8], to: usize, tag: i32) -> Result<Request> {
        let mut request = Request::null();
        let len = c_int::try_from(bytes.len()).expect("frames are short");
        // SAFETY: the caller keeps the bytes.
        check("MPI_Isend", unsafe {
            outlast_mpi_isend(bytes.as_ptr().cast(), len, to as c_int, tag, self, &mut request)
        })?;
        Ok(request)
    }

    /// Starts to receive.
    ///
    /// # Safety
    /// `bytes` stays where it is and is not touched until the request is complete.
    pub unsafe fn irecv(self, bytes: &mut [u8], from: usize, tag: i32) -> Result<Request> {
        let mut request = Request::null();
        let len = c_int::try_from(bytes.len()).expect("frames are short");
        // SAFETY: the caller keeps the bytes.
        check("MPI_Irecv", unsafe {
            outlast_mpi_irecv(
                bytes.as_mut_ptr().cast(),
                len,
                from as c_int,
                tag,
                self,
                &mut request,
            )
        })?;
        Ok(request)
    }
}

impl Window {
    /// Makes a window over `len` bytes of this process at `base`. All ranks of `comm` call this,
    /// and wait for each other: the caller must bound the wait.
    ///
    /// # Safety
    /// The memory stays mapped for ever, readable and writable, and tolerates changes by other
    /// ranks at any time.
    pub unsafe fn create(comm: Comm, base: *mut u8, len: usize) -> Result<Window> {
        let mut window = Window(std::ptr::null_mut());
        // SAFETY: the caller keeps the memory.
        check("MPI_Win_create", unsafe {
            outlast_mpi_win_create(base.cast(), len, comm, &mut window)
        })?;
        Ok(window)
    }

    /// Begins the access to a rank. It waits for the rank: the caller must bound the wait.
    pub fn lock(self, target: usize) -> Result<()> {
        // SAFETY: the window is complete.
        check("MPI_Win_lock", unsafe { outlast_mpi_win_lock(target as c_int, self) })
    }

    /// Starts to write at an offset of a rank's window. It may not return if the rank has died.
    ///
    /// # Safety
    /// `bytes` stays where it is, unchanged, until the request is complete.
    pub unsafe fn rput(self, bytes: &[u8], target: usize, at: u64) -> Result<Request> {
        let mut request = Request::null();
        let len = c_int::try_from(bytes.len()).expect("pieces are short");
        // SAFETY: the caller keeps the bytes.
        check("MPI_Rput", unsafe {
            outlast_mpi_rput(bytes.as_ptr().cast(), len, target as c_int, at, self, &mut request)
        })?;
        Ok(request)
    }

    /// Starts to read at an offset of a rank's window. It may not return if the rank has died.
    ///
    /// # Safety
    /// `bytes` stays where it is and is not touched until the request is complete.
    pub unsafe fn rget(self, bytes: &mut [u8], target: usize, at: u64) -> Result<Request> {
        let mut request = Request::null();
        let len = c_int::try_from(bytes.len()).expect("pieces are short");
        // SAFETY: the caller keeps the bytes.
        check("MPI_Rget", unsafe {
            outlast_mpi_rget(
                bytes.as_mut_ptr().cast(),
                len,
                target as c_int,
                at,
                self,
                &mut request,
            )
        })?;
        Ok(request)
    }

    /// Replaces the word at an offset of a rank's window by `new` if it is `expected`, and returns
    /// the word that was there. It waits for the rank, and does not return if the rank has died.
    pub fn compare_and_swap(self, target: usize, at: u64, expected: u64, new: u64) -> Result<u64> {
        // On the heap and leaked on an error: MPI does not say whether it still uses them then.
        let words = Box::leak(Box::new([expected, new, 0]));
        // SAFETY: the words are freed only after MPI said that it is done with them.
        check("MPI_Compare_and_swap", unsafe {
            outlast_mpi_swap(words.as_mut_ptr(), target as c_int, at, self)
        })?;
        let found = words[2];
        // SAFETY: leaked above, and not used elsewhere.
        drop(unsafe { Box::from_raw(words) });
        Ok(found)
    }
}

impl Request {
    /// The null request.
    pub fn null() -> Request {
        // SAFETY: the function has no preconditions.
        Request(unsafe { outlast_mpi_request_null() })
    }

    /// Whether the request is complete. A complete request becomes null.
    pub fn test(&mut self) -> Result<bool> {
        let mut is_done = 0;
        // SAFETY: the request is null or live.
        check("MPI_Test", unsafe { outlast_mpi_test(self, &mut is_done) })?;
        Ok(is_done != 0)
    }

    /// Cancels a receive. MPI may still use its buffer.
    pub fn cancel(&mut self) -> Result<()> {
        if *self == Request::null() {
            return Ok(());
        }
        // SAFETY: the request is live.
        check("MPI_Cancel", unsafe { outlast_mpi_cancel(self) })
    }
}

/// Room for the results of testing many requests at once, kept between calls.
#[derive(Debug, Default)]
pub struct Tester {
    indices: Vec<c_int>,
    codes: Vec<c_int>,
    lens: Vec<c_int>,
    // In words, so that it is aligned for MPI_Status.
    statuses: Vec<u64>,
}

impl Tester {
    /// Appends all complete requests to `completed`. They are null afterwards.
    pub fn test_some(
        &mut self,
        requests: &mut [Request],
        completed: &mut Vec<Completed>,
    ) -> Result<()> {
        let count = requests.len();
        if self.indices.len() < count {
            self.indices.resize(count, 0);
            self.codes.resize(count, 0);
            self.lens.resize(count, 0);
            // SAFETY: the function has no preconditions.
            let status_len = unsafe { outlast_mpi_status_size() };
            self.statuses.resize((count * status_len).div_ceil(8), 0);
        }
        let mut done = 0;
        // SAFETY: all arrays have room for `count`, and the requests are null or live.
        check("MPI_Testsome", unsafe {
            outlast_mpi_test_some(
                count as c_int,
                requests.as_mut_ptr(),
                &mut done,
                self.indices.as_mut_ptr(),
                self.codes.as_mut_ptr(),
                self.lens.as_mut_ptr(),
                self.statuses.as_mut_ptr().cast(),
            )
        })?;
        for i in 0..done as usize {
            let result = check("MPI_Testsome", self.codes[i]).map(|()| self.lens[i] as usize);
            completed.push(Completed { index: self.indices[i] as usize, result });
        }
        Ok(())
    }
}

/// Makes an exit of this process with a status other than 0, or while `has_left` is 0, a death by
/// SIGKILL: the launcher does not tell the other ranks of an exit with another status. Call it
/// once. `report` names a file to which `RANK joined` is written now, and `RANK exited STATUS` at
/// the exit. It is ignored if it cannot be opened.
pub fn die_on_exit(
    has_left: &'static std::sync::atomic::AtomicI32,
    rank: usize,
    report: Option<&CStr>,
) -> Result<()> {
    let report = report.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: the word lives for ever and is only read; the name is null or ends with a zero byte.
    check("on_exit", unsafe { outlast_mpi_die_on_exit(has_left.as_ptr(), rank as c_int, report) })
}

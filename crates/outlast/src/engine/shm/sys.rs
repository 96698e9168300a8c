//! What the shm engine asks of the operating system and of raw memory, each thing once and small.

use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::thread::futex;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::io;
use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// A mapping of the job's memory. Everything in it may be changed by other processes at any time, so it is reached
/// only through atomics and through copies that assume nothing about what they find.
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain shared memory, and every access to it is atomic or a foreign copy, from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file, shared, and not inherited by forked children.
    pub(super) fn new(file: impl AsFd, len: usize) -> io::Result<Mapping> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses an unused address range, so that no existing memory is affected.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0)?
        };
        let mapping = Mapping { base: NonNull::new(base.cast()).expect("mmap returned null"), len };
        // SAFETY: the range is the mapping just made. A forked child without it cannot hurt the job.
        unsafe { rustix::mm::madvise(base, len, Advice::LinuxDontFork)? };
        Ok(mapping)
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len),
            "{offset}+{len} outside {}",
            self.len
        );
        // SAFETY: the range lies inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// The 8-byte word at this offset, which must be a multiple of 8.
    #[inline]
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        // SAFETY: in range and aligned (the mapping is page-aligned); any bit pattern is valid; all processes
        // access words of the mapping atomically or by copies that tolerate changes.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    /// The 4-byte word at this offset, which must be a multiple of 4.
    #[inline]
    pub(super) fn half(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        // SAFETY: as for `word`.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// Copies bytes into the mapping.
    #[inline]
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: the range was checked, and `bytes` is private memory of the same length.
        unsafe { copy_in(to, bytes) }
    }

    /// Copies bytes out of the mapping.
    #[inline]
    pub(super) fn read(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.at(offset, bytes.len());
        // SAFETY: the range was checked, and `bytes` is private memory of the same length.
        unsafe { copy_out(from, bytes) }
    }

    /// Gives the address range back. Not done on drop: a forked child does not have the range, and something else
    /// may be mapped there by now; only the owner knows whether it is in such a child.
    pub(super) fn unmap(&mut self) {
        // SAFETY: the range was mapped by `new` in this process, and the owner calls this once, when nothing of it
        // is borrowed any more (`&mut self`).
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Copies up to this length are done in line.
const INLINE_LEN_MAX: usize = 64;

/// How a copy between shared and private memory is cut: the bytes before the first word of the shared side, the words,
/// and the bytes after the last one. No word may be torn, so the middle goes word by word, or, where it is long and both
/// sides are aligned alike, by the C library, which is a foreign routine to the compiler and moves whole words then.
struct Cut {
    before: usize,
    words: usize,
    by_library: bool,
}

impl Cut {
    fn new(shared: usize, private: usize, len: usize) -> Cut {
        let before = shared.next_multiple_of(8).wrapping_sub(shared).min(len);
        let words = (len - before) / 8;
        let by_library = words * 8 > INLINE_LEN_MAX && (private + before).is_multiple_of(8);
        Cut { before, words, by_library }
    }
}

/// # Safety
/// `to` points to `bytes.len()` bytes of mapped shared memory.
#[inline]
unsafe fn copy_in(to: *mut u8, bytes: &[u8]) {
    let cut = Cut::new(to as usize, bytes.as_ptr() as usize, bytes.len());
    let (before, rest) = bytes.split_at(cut.before);
    let (middle, after) = rest.split_at(cut.words * 8);
    // SAFETY: all places lie inside the range; the words are aligned, since `before` ends at a multiple of 8.
    unsafe {
        let words = to.add(cut.before);
        bytes_in(to, before);
        if cut.by_library {
            foreign_copy(words, middle.as_ptr(), middle.len());
        } else {
            for (index, word) in middle.chunks_exact(8).enumerate() {
                let word = u64::from_ne_bytes(word.try_into().expect("8 bytes"));
                AtomicU64::from_ptr(words.add(index * 8).cast()).store(word, Ordering::Relaxed);
            }
        }
        bytes_in(words.add(middle.len()), after);
    }
}

/// # Safety
/// As for [`copy_in`].
#[inline]
unsafe fn bytes_in(to: *mut u8, bytes: &[u8]) {
    for (index, &byte) in bytes.iter().enumerate() {
        // SAFETY: inside the range.
        unsafe { AtomicU8::from_ptr(to.add(index)).store(byte, Ordering::Relaxed) };
    }
}

/// # Safety
/// `from` points to `bytes.len()` bytes of mapped shared memory.
#[inline]
unsafe fn copy_out(from: *const u8, bytes: &mut [u8]) {
    let cut = Cut::new(from as usize, bytes.as_ptr() as usize, bytes.len());
    let (before, rest) = bytes.split_at_mut(cut.before);
    let (middle, after) = rest.split_at_mut(cut.words * 8);
    let from = from.cast_mut();
    // SAFETY: all places lie inside the range; the words are aligned, since `before` ends at a multiple of 8.
    unsafe {
        let words = from.add(cut.before);
        bytes_out(from, before);
        if cut.by_library {
            foreign_copy(middle.as_mut_ptr(), words, middle.len());
        } else {
            for (index, word) in middle.chunks_exact_mut(8).enumerate() {
                let found = AtomicU64::from_ptr(words.add(index * 8).cast()).load(Ordering::Relaxed);
                word.copy_from_slice(&found.to_ne_bytes());
            }
        }
        bytes_out(words.add(middle.len()), after);
    }
}

/// # Safety
/// As for [`copy_out`].
#[inline]
unsafe fn bytes_out(from: *mut u8, bytes: &mut [u8]) {
    for (index, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: inside the range.
        *byte = unsafe { AtomicU8::from_ptr(from.add(index)).load(Ordering::Relaxed) };
    }
}

/// The C library's memcpy through a pointer that the optimizer cannot see through, so that it assumes nothing about
/// memory that other processes change.
///
/// # Safety
/// As for memcpy, except that other processes may change the source meanwhile.
#[inline]
unsafe fn foreign_copy(to: *mut u8, from: *const u8, len: usize) {
    type Copy = unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, usize) -> *mut libc::c_void;
    let copy: Copy = std::hint::black_box(libc::memcpy as Copy);
    // SAFETY: promised by the caller.
    unsafe { copy(to.cast(), from.cast(), len) };
}

/// A page of this process that a forked child finds zeroed: how a child knows that it is one.
pub(super) struct ForkGuard {
    page: NonNull<u8>,
}

// SAFETY: the page is only reached as an atomic word.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    const LEN: usize = 4096;

    pub(super) fn new() -> io::Result<ForkGuard> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an unused address range.
        let page = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), Self::LEN, protection, MapFlags::PRIVATE)?
        };
        // SAFETY: the range is the page just mapped.
        unsafe { rustix::mm::madvise(page, Self::LEN, Advice::LinuxWipeOnFork)? };
        Ok(ForkGuard { page: NonNull::new(page.cast()).expect("mmap returned null") })
    }

    /// A word that is zero at first and in every forked child.
    #[inline]
    pub(super) fn word(&self) -> &AtomicU64 {
        // SAFETY: the page lives as long as the guard, is aligned, and is only reached through this word.
        unsafe { AtomicU64::from_ptr(self.page.as_ptr().cast()) }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: the page was mapped by `new`, is inherited by forked children, and nothing borrows it any more.
        let _ = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), Self::LEN) };
    }
}

/// Set in a robust word by the kernel when its owner died.
pub(super) const OWNER_DIED: u32 = 0x4000_0000;
/// Set in a robust word so that the kernel wakes a waiter when the owner dies.
const WAITERS: u32 = 0x8000_0000;

/// The kernel's `struct robust_list_head`, for a list of one entry.
#[repr(C)]
pub(super) struct RobustHead {
    list: *mut libc::c_void,
    futex_offset: libc::c_long,
    pending: *mut libc::c_void,
}

/// Makes the calling thread the owner of the robust word at `word_offset`, whose list entry is the 8 bytes before
/// it: when the thread ends in whatever way, the kernel sets [`OWNER_DIED`] in the word and wakes a waiter.
///
/// The head is leaked: the kernel reads it at the thread's very end.
pub(super) fn own_robust_word(mapping: &Mapping, word_offset: usize) -> io::Result<()> {
    let entry_offset = word_offset - 8;
    let entry: *mut libc::c_void = mapping.at(entry_offset, 16).cast();
    let head =
        Box::leak(Box::new(RobustHead { list: entry, futex_offset: 8, pending: std::ptr::null_mut() }));
    // The list is circular: its only entry points back to the head.
    mapping.word(entry_offset).store((&raw const *head).addr() as u64, Ordering::Relaxed);
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    mapping.half(word_offset).store(thread | WAITERS, Ordering::SeqCst);
    // SAFETY: the head lives for ever, and its entry as long as the mapping; if that is gone at the thread's end,
    // the kernel stops walking the list. The list of the C library that this replaces is empty: this thread is
    // the engine's own and locks no robust mutexes.
    let status = unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<RobustHead>()) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Ends the ownership, so that the thread's end is no news.
pub(super) fn disown_robust_word(mapping: &Mapping, word_offset: usize) {
    let head = Box::leak(Box::new(RobustHead {
        list: std::ptr::null_mut(),
        futex_offset: 8,
        pending: std::ptr::null_mut(),
    }));
    head.list = (&raw mut *head).cast();
    // SAFETY: an empty list, which points to its own head and lives for ever.
    unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<RobustHead>()) };
    mapping.half(word_offset).store(0, Ordering::SeqCst);
}

const MEMBARRIER_GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const MEMBARRIER_REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

/// Registers this process for [`interrupt_all`]; whether the kernel can do it.
pub(super) fn register_for_interrupts() -> bool {
    membarrier(MEMBARRIER_REGISTER_GLOBAL_EXPEDITED)
}

/// Interrupts every core that runs a registered process, and returns when each has been in the kernel. A thread
/// with a deadly signal pending does not come back from there.
pub(super) fn interrupt_all() -> bool {
    membarrier(MEMBARRIER_GLOBAL_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier takes no pointers and changes no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Sleeps until the word is not `seen`, someone wakes it, or the monotonic clock reaches `until`.
pub(super) fn wait_on(word: &AtomicU32, seen: u32, until_ns: u64) {
    let until = timespec(until_ns);
    let any_waker = NonZeroU32::MAX;
    // An error is an early return: a changed word, a signal, the time. All callers look again.
    let _ = futex::wait_bitset(word, futex::Flags::empty(), seen, until.as_ref(), any_waker);
}

/// Sleeps until one of the words is not what was seen, someone wakes one, or the monotonic clock reaches `until`.
pub(super) fn wait_on_any(words: &[(&AtomicU32, u32)], until_ns: u64) {
    let waiters: Vec<futex::Wait> = words
        .iter()
        .map(|(word, seen)| {
            let mut wait = futex::Wait::new();
            wait.val = u64::from(*seen);
            wait.uaddr = futex::WaitPtr::new(word.as_ptr().cast());
            // Not private: the words are shared between processes.
            wait.flags = futex::WaitFlags::SIZE_U32;
            wait
        })
        .collect();
    let until = timespec(until_ns);
    let result = futex::waitv(&waiters, futex::WaitvFlags::empty(), until.as_ref(), ClockId::Monotonic);
    // Any other error is an early return: a changed word, a signal, the time. All callers look again.
    if result == Err(rustix::io::Errno::NOSYS) {
        // Before Linux 5.16: sleep on the first word, briefly, since nobody wakes for the others.
        let (word, seen) = words[0];
        wait_on(word, seen, until_ns.min(monotonic_ns() + 2_000_000));
    }
}

/// The most words that [`wait_on_any`] takes.
pub(super) const WAIT_WORDS_MAX: usize = 128;

fn timespec(ns: u64) -> Option<Timespec> {
    (ns != u64::MAX)
        .then_some(Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 })
}

/// Wakes everyone who sleeps on the word.
pub(super) fn wake_all(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

/// The monotonic clock, which all processes of the machine share, in nanoseconds.
#[inline]
pub(super) fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Prepares a command: the process that it starts inherits `file`, and, if asked, is killed when the thread that
/// started it ends.
pub(super) fn inherit(
    command: &mut std::process::Command,
    file: std::sync::Arc<std::os::fd::OwnedFd>,
    die_with_parent: bool,
) {
    use std::os::fd::AsRawFd;
    use std::os::unix::process::CommandExt;
    let parent = std::process::id();
    let prepare = move || {
        let file = file.as_raw_fd();
        // SAFETY: fcntl, prctl, getppid and _exit are safe between fork and exec.
        unsafe {
            if libc::fcntl(file, libc::F_SETFD, 0) == -1 {
                return Err(io::Error::last_os_error());
            }
            if die_with_parent {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == -1 {
                    return Err(io::Error::last_os_error());
                }
                // The parent may have died before the call above.
                if libc::getppid() as u32 != parent {
                    libc::_exit(1);
                }
            }
        }
        Ok(())
    };
    // SAFETY: the closure only makes system calls that are safe between fork and exec, and allocates nothing.
    unsafe { command.pre_exec(prepare) };
}

/// Ends this process at once, as if killed: no destructor and no exit handler of the program runs.
pub(super) fn end_now() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // SIGKILL of oneself does not return; should it ever be refused, exit without handlers.
    // SAFETY: _exit takes no pointers and does not return.
    unsafe { libc::_exit(137) }
}

/// Stops this process, and returns when someone lets it go on. The signal is for the calling thread: one for the
/// process might be taken by another thread, and this one would go on for a moment.
#[cfg(feature = "faults")]
pub(super) fn stop_now() {
    // SAFETY: raise takes no pointers.
    unsafe { libc::raise(libc::SIGSTOP) };
}

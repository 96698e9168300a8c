//! The border to C: running a call, its message, and the pointers that C passes.
//!
//! A panic does not unwind into C: it becomes [`Status::Failed`]. Pointers are checked for null
//! before they are used; the header says what else they must be.

use crate::status::Status;
use outlast::store::{StoreError, StoreResult, Version};
use outlast::{Job, MemberId, Time};
use std::cell::{RefCell, UnsafeCell};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

thread_local! {
    /// The message of the last call of this thread that failed.
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// An error: its code and its message.
pub(crate) struct Failure {
    pub(crate) status: c_int,
    pub(crate) message: String,
}

/// The result of a call: an answer or an error.
pub(crate) type CallResult = Result<Status, Failure>;

#[cold]
pub(crate) fn failure(status: Status, message: impl Into<String>) -> Failure {
    Failure { status: status as c_int, message: message.into() }
}

/// Out of line, as [`report`] is: a call that succeeds does not save registers for its errors.
#[cold]
#[inline(never)]
pub(crate) fn invalid(message: impl Into<String>) -> Failure {
    failure(Status::Invalid, message)
}

/// The result of a call without an answer.
pub(crate) fn done<T, E: Into<Failure>>(result: Result<T, E>) -> CallResult {
    result.map(|_| Status::Ok).map_err(Into::into)
}

/// Runs the body of a call: stores the message of an error, and catches a panic.
pub(crate) fn call(body: impl FnOnce() -> CallResult) -> c_int {
    // A result that leaves `catch_unwind` goes through memory, so it is a number by then.
    let code = || match body() {
        Ok(status) => status as c_int,
        Err(failure) => report(failure),
    };
    catch_unwind(AssertUnwindSafe(code)).unwrap_or_else(|_| report_panic())
}

/// Stores the message of an error, and returns its code.
#[cold]
#[inline(never)]
fn report(Failure { status, message }: Failure) -> c_int {
    // A message with a quoted key may contain null characters.
    let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
    MESSAGE.with(|last| *last.borrow_mut() = message);
    status
}

#[cold]
#[inline(never)]
fn report_panic() -> c_int {
    let message = "the library panicked; its message is on standard error";
    report(failure(Status::Failed, message))
}

/// The message of the last call of this thread that failed.
pub(crate) fn last_message() -> String {
    MESSAGE.with(|last| last.borrow().to_string_lossy().into_owned())
}

/// `outlast_error` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_error() -> *const c_char {
    MESSAGE.with(|last| last.borrow().as_ptr())
}

/// `outlast_library_version` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_library_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// A handle of a job or a store. The memory of the handle stays when the job is left or the store
/// is closed, so that a later call with the handle returns [`Status::Closed`].
pub struct Shell<T>(UnsafeCell<Option<T>>);

/// The addresses of all shells: checkers of memory find them reachable.
static SHELLS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Borrows the content of a shell that C passes.
pub(crate) fn opened<'a, T>(shell: *const Shell<T>) -> Result<&'a T, Failure> {
    let shell = borrow_handle(shell)?;
    // SAFETY: only `close_shell` changes the content, and the header says that no other call uses
    // the handle meanwhile.
    let content = unsafe { &*shell.0.get() };
    content.as_ref().ok_or_else(|| {
        failure(Status::Closed, "the store was closed, or the process has left the job")
    })
}

/// Takes the content out of a shell that C passes.
pub(crate) fn close_shell<T>(shell: *const Shell<T>) -> Result<T, Failure> {
    opened(shell)?;
    // SAFETY: the shell was just borrowed, and the header says that no other call uses the handle
    // meanwhile.
    let content = unsafe { &mut *(*shell).0.get() };
    content.take().ok_or_else(|| failure(Status::Closed, "the handle was closed already"))
}

/// Gives C a new shell, which is made only if there is a place for it.
pub(crate) fn give_shell<T>(
    place: *mut *mut Shell<T>,
    make: impl FnOnce() -> Result<T, Failure>,
) -> CallResult {
    let given = give_handle(place, || Ok(Shell(UnsafeCell::new(Some(make()?)))))?;
    // SAFETY: `give_handle` has checked and written the place.
    let shell = unsafe { place.read() };
    SHELLS.lock().unwrap_or_else(PoisonError::into_inner).push(shell as usize);
    Ok(given)
}

/// Borrows a handle that C passes.
pub(crate) fn borrow_handle<'a, T>(handle: *const T) -> Result<&'a T, Failure> {
    // SAFETY: the header says that handles come from this library and have not been freed; `as_ref`
    // checks for null.
    unsafe { handle.as_ref() }.ok_or_else(|| invalid("a handle is NULL"))
}

/// Borrows a handle that C passes and that a single thread uses at a time.
pub(crate) fn borrow_handle_mut<'a, T>(handle: *mut T) -> Result<&'a mut T, Failure> {
    // SAFETY: the header says that handles come from this library and have not been freed, and that
    // no other thread uses this handle during the call; `as_mut` checks for null.
    unsafe { handle.as_mut() }.ok_or_else(|| invalid("a handle is NULL"))
}

/// Takes a handle back from C, to free it.
pub(crate) fn take_handle<T>(handle: *mut T) -> Result<Box<T>, Failure> {
    borrow_handle(handle)?;
    // SAFETY: `give_handle` made it from a box, and the header says that it is freed once.
    Ok(unsafe { Box::from_raw(handle) })
}

/// Gives C a new handle, which is made only if there is a place for it.
pub(crate) fn give_handle<T>(
    place: *mut *mut T,
    make: impl FnOnce() -> Result<T, Failure>,
) -> CallResult {
    if place.is_null() {
        return Err(invalid("the place for the new handle is NULL"));
    }
    write_result(place, Box::into_raw(Box::new(make()?)));
    Ok(Status::Ok)
}

/// Borrows `len` items that C passes.
pub(crate) fn items<'a, T>(data: *const T, len: usize) -> Result<&'a [T], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() || len > isize::MAX as usize / size_of::<T>() || !data.is_aligned() {
        return Err(invalid(
            "a pointer to data is NULL or not aligned, or the length is impossible",
        ));
    }
    // SAFETY: the header says that the pointer has `len` items, which no thread changes during the
    // call.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// Borrows `len` items that C passes, to write them.
pub(crate) fn items_mut<'a, T>(data: *mut T, len: usize) -> Result<&'a mut [T], Failure> {
    items(data, len)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: `items` has checked the pointer; the header says that it has room for `len` items,
    // which no other thread uses during the call.
    Ok(unsafe { std::slice::from_raw_parts_mut(data, len) })
}

/// Borrows bytes that C passes.
pub(crate) fn bytes<'a>(data: *const c_void, len: usize) -> Result<&'a [u8], Failure> {
    items(data.cast(), len)
}

/// Borrows a text that C passes and that ends with a null character.
pub(crate) fn text<'a>(data: *const c_char) -> Result<&'a str, Failure> {
    if data.is_null() {
        return Err(invalid("a text is NULL"));
    }
    // SAFETY: the header says that the pointer is to a text that ends with a null character, which
    // no thread changes during the call.
    let text = unsafe { CStr::from_ptr(data) };
    text.to_str().map_err(|_| invalid("a text is not UTF-8, or has a null character inside"))
}

/// Writes a result to a place that C passes, unless the place is null.
pub(crate) fn write_result<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the header says that the pointer has room for a `T`.
        unsafe { place.write(value) };
    }
}

/// Writes the first `capacity` items of a list, and the number of all items.
pub(crate) fn write_list<T: Copy>(
    list: &[T],
    place: *mut T,
    capacity: usize,
    count: *mut usize,
) -> CallResult {
    let kept = list.len().min(capacity);
    items_mut(place, kept)?.copy_from_slice(&list[..kept]);
    write_result(count, list.len());
    Ok(Status::Ok)
}

/// Copies a value to the buffer, and its length to `len` even if the buffer is too small.
pub(crate) fn copy_out(
    value: &[u8],
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> CallResult {
    write_result(len, value.len());
    if value.len() > capacity {
        let message =
            format!("the value has {} bytes, and the buffer only {capacity}", value.len());
        return Err(failure(Status::TooSmall, message));
    }
    items_mut(buffer.cast(), value.len())?.copy_from_slice(value);
    Ok(Status::Ok)
}

/// Reads a value straight into the buffer of C; `read` is a `get_into` of the library.
#[inline(always)]
pub(crate) fn read_into(
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
    version: *mut CVersion,
    read: impl FnOnce(&mut [u8]) -> StoreResult<Option<(usize, Version)>>,
) -> CallResult {
    match read(items_mut(buffer.cast(), capacity)?) {
        Ok(Some((copied, found))) => {
            write_result(len, copied);
            write_result(version, to_c(found));
            Ok(Status::Ok)
        }
        Ok(None) => Ok(Status::Absent),
        Err(error) => {
            if let StoreError::BufferTooSmall { needed, .. } = error {
                write_result(len, needed as usize);
            }
            Err(error.into())
        }
    }
}

/// A structure of the header that begins with its size, so that later versions can add fields.
///
/// # Safety
/// The type is `repr(C)`, its first field is `struct_size: usize`, and zero is a valid value of
/// each of its fields.
pub(crate) unsafe trait SizedStruct: Copy {
    /// The name of the structure in the header.
    const NAME: &'static str;
}

/// More bytes than any structure will have: a larger size is a field that was not set.
const STRUCT_SIZE_MAX: usize = 4096;

/// The size in the first field of a structure that C passes.
fn size_of_struct<T: SizedStruct>(place: *const T) -> Result<usize, Failure> {
    let name = T::NAME;
    if place.is_null() {
        return Err(invalid(format!("a pointer to {name} is NULL")));
    }
    // SAFETY: the header says that the pointer is to such a structure, which begins with its size.
    let size = unsafe { place.cast::<usize>().read_unaligned() };
    if !(size_of::<usize>()..=STRUCT_SIZE_MAX).contains(&size) {
        return Err(invalid(format!(
            "struct_size of {name} is {size}; set it to sizeof({name}), and all fields that are \
             not used to 0"
        )));
    }
    Ok(size)
}

/// Reads options that C passes; `None` for null. Fields that an older program does not have are 0;
/// fields that this library does not have must be 0.
pub(crate) fn options_at<T: SizedStruct>(place: *const T) -> Result<Option<T>, Failure> {
    if place.is_null() {
        return Ok(None);
    }
    let size = size_of_struct(place)?;
    let known = size.min(size_of::<T>());
    // SAFETY: the structure has `size` bytes, as its first field says.
    let given = unsafe { std::slice::from_raw_parts(place.cast::<u8>(), size) };
    if given[known..].iter().any(|byte| *byte != 0) {
        return Err(invalid(format!(
            "{} has options that this version of the library does not know; install the version \
             of the header, or leave them 0",
            T::NAME
        )));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: `known` bytes fit into the value, and zero is valid for all other bytes.
    let value = unsafe {
        std::ptr::copy_nonoverlapping(given.as_ptr(), value.as_mut_ptr().cast(), known);
        value.assume_init()
    };
    Ok(Some(value))
}

/// Writes a structure of results to C: as much of it as the program knows.
pub(crate) fn write_struct<T: SizedStruct>(place: *mut T, value: &T) -> CallResult {
    let size = size_of_struct(place)?;
    let (head, known) = (size_of::<usize>(), size.min(size_of::<T>()));
    // SAFETY: the structure has `size` bytes, as its first field says, which stays. Fields that
    // this library does not have become 0.
    unsafe {
        let (from, to) = (std::ptr::from_ref(value).cast::<u8>(), place.cast::<u8>());
        std::ptr::copy_nonoverlapping(from.add(head), to.add(head), known - head);
        std::ptr::write_bytes(to.add(known), 0, size - known);
    }
    Ok(Status::Ok)
}

/// `outlast_version` of the header.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CVersion {
    counter: u64,
    writer: u32,
}

pub(crate) fn to_c(version: Version) -> CVersion {
    CVersion { counter: version.counter, writer: version.writer.0 }
}

/// Reads a version that C passes; `None` for null.
pub(crate) fn version_at(place: *const CVersion) -> Option<Version> {
    // SAFETY: the header says that the pointer is null or points to a version.
    let version = unsafe { place.as_ref() }?;
    Some(Version { counter: version.counter, writer: MemberId(version.writer) })
}

pub(crate) fn deadline(job: &Job, milliseconds: u64) -> Time {
    job.now().after(Duration::from_millis(milliseconds))
}

/// The answer whether a key exists.
pub(crate) fn found(is_there: bool) -> CallResult {
    Ok(if is_there { Status::Ok } else { Status::Absent })
}

/// The context of a function of the program that threads of the library call.
pub(crate) struct Context(pub(crate) *mut c_void);

// SAFETY: the header says that several threads may call the function at a time, with the context.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn get(&self) -> *mut c_void {
        self.0
    }
}

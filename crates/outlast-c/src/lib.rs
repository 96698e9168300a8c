//! Outlast for C: the calls of `include/outlast.h`, which says what they guarantee.
//!
//! Each call checks its pointers for null, makes slices of them, calls the Rust library, and turns
//! the result into a code and a message. A panic does not unwind into C: it becomes
//! [`Status::Failed`].
//!
//! C programs call these functions, and C++ and Fortran through them. A death of another member
//! during a call has the effect that the documentation of the Rust call describes.

#![allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "only C calls these functions; the header says what pointers must be"
)]

pub mod regions;

use outlast::store::{
    Expect, KeyHandle, LockGuard, Mode, Options, Recovery, Store, StoreError, Transaction, Version,
    WaitOutcome,
};
use outlast::{Epoch, Job, MemberId, Time};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// The codes of the header, in the order of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs, reason = "the header says what the codes mean")]
pub enum Status {
    Ok = 0,
    Absent = 1,
    Died = 2,
    Invalid = -1,
    NotJoined = -2,
    DataLost = -3,
    Timeout = -4,
    Conflict = -5,
    Aborted = -6,
    Over = -7,
    Locked = -8,
    OutOfMemory = -9,
    TooSmall = -10,
    WrongType = -11,
    Closed = -12,
    Corrupt = -13,
    Failed = -14,
    Nested = -15,
    Revoked = -16,
    RecoveryFailed = -17,
    AlreadyOpen = -18,
}

/// `outlast_version` of the header.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CVersion {
    counter: u64,
    writer: u32,
}

/// `outlast_options` of the header; zero is the default of each option.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct COptions {
    replicas: u32,
    allow_fewer: u32,
    expected_keys: u64,
    checksums: u32,
    global_mode: u32,
    salvage: u32,
    name: *const c_char,
}

/// A C function that is called for each key.
pub type Visit =
    Option<unsafe extern "C" fn(context: *mut c_void, key: *const c_void, len: usize) -> c_int>;
/// A C function with the work of a transaction.
pub type Body = Option<unsafe extern "C" fn(context: *mut c_void, tx: *mut Transaction) -> c_int>;

thread_local! {
    /// The message of the last call of this thread that failed.
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// An error: its code and its message.
struct Failure {
    status: c_int,
    message: String,
}

/// The result of a call: an answer or an error.
type CallResult = Result<Status, Failure>;

fn failure(status: Status, message: impl Into<String>) -> Failure {
    Failure { status: status as c_int, message: message.into() }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let status = match &error {
            StoreError::DataLost { .. } => Status::DataLost,
            StoreError::Timeout { .. } => Status::Timeout,
            StoreError::Conflict { .. } => Status::Conflict,
            StoreError::Aborted | StoreError::Contended { .. } => Status::Aborted,
            StoreError::TransactionOver { .. } => Status::Over,
            StoreError::Nested => Status::Nested,
            StoreError::Revoked => Status::Revoked,
            StoreError::RecoveryFailed { .. } => Status::RecoveryFailed,
            StoreError::Locked { .. } => Status::Locked,
            StoreError::OutOfMemory { .. } => Status::OutOfMemory,
            StoreError::BadKey { .. } | StoreError::Invalid { .. } => Status::Invalid,
            StoreError::BufferTooSmall { .. } => Status::TooSmall,
            StoreError::WrongType { .. } => Status::WrongType,
            StoreError::Corrupt { .. } => Status::Corrupt,
            StoreError::Closed => Status::Closed,
            StoreError::AlreadyOpen { .. } => Status::AlreadyOpen,
            _ => Status::Failed,
        };
        failure(status, error.to_string())
    }
}

/// Runs the body of a call: stores the message of an error, and catches a panic.
fn call(body: impl FnOnce() -> CallResult) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        Err(failure(Status::Failed, "the library panicked; its message is on standard error"))
    });
    match outcome {
        Ok(status) => status as c_int,
        Err(Failure { status, message }) => {
            // A message with a quoted key may contain null characters.
            let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
            MESSAGE.with(|last| *last.borrow_mut() = message);
            status
        }
    }
}

/// Borrows a handle that C passes.
fn borrow_handle<'a, T>(handle: *const T) -> Result<&'a T, Failure> {
    // SAFETY: the header says that handles come from this library and have not been freed; `as_ref`
    // checks for null.
    unsafe { handle.as_ref() }.ok_or_else(|| failure(Status::Invalid, "a handle is NULL"))
}

/// Borrows a handle that C passes and that a single thread uses at a time.
fn borrow_handle_mut<'a, T>(handle: *mut T) -> Result<&'a mut T, Failure> {
    // SAFETY: the header says that handles come from this library and have not been freed, and that
    // no other thread uses this handle during the call; `as_mut` checks for null.
    unsafe { handle.as_mut() }.ok_or_else(|| failure(Status::Invalid, "a handle is NULL"))
}

/// Takes a handle back from C, to free it.
fn take_handle<T>(handle: *mut T) -> Result<Box<T>, Failure> {
    borrow_handle(handle)?;
    // SAFETY: `give_handle` made it from a box, and the header says that it is freed once.
    Ok(unsafe { Box::from_raw(handle) })
}

/// Borrows bytes that C passes.
fn bytes<'a>(data: *const c_void, len: usize) -> Result<&'a [u8], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() || len > isize::MAX as usize {
        return Err(failure(
            Status::Invalid,
            "a pointer to bytes is NULL, or the length is impossible",
        ));
    }
    // SAFETY: the header says that the pointer has `len` bytes, which no thread changes during the
    // call.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) })
}

/// Writes a result to a place that C passes, unless the place is null.
fn write_result<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the header says that the pointer has room for a `T`.
        unsafe { place.write(value) };
    }
}

/// Gives C a new handle, which is made only if there is a place for it.
fn give_handle<T>(place: *mut *mut T, make: impl FnOnce() -> Result<T, Failure>) -> CallResult {
    if place.is_null() {
        return Err(failure(Status::Invalid, "the place for the new handle is NULL"));
    }
    write_result(place, Box::into_raw(Box::new(make()?)));
    Ok(Status::Ok)
}

/// Borrows a text that C passes and that ends with a null character.
fn text<'a>(data: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: the header says that the pointer is to a text that ends with a null character, which
    // no thread changes during the call. The caller has checked for null.
    let text = unsafe { CStr::from_ptr(data) };
    text.to_str().map_err(|_| failure(Status::Invalid, "a name is not UTF-8"))
}

/// Copies a value to the buffer, and its length to `len` even if the buffer is too small.
fn copy_out(value: &[u8], buffer: *mut c_void, capacity: usize, len: *mut usize) -> CallResult {
    write_result(len, value.len());
    if value.len() > capacity {
        let message =
            format!("the value has {} bytes, and the buffer only {capacity}", value.len());
        return Err(failure(Status::TooSmall, message));
    }
    if !value.is_empty() {
        if buffer.is_null() {
            return Err(failure(Status::Invalid, "the buffer is NULL"));
        }
        // SAFETY: the header says that the buffer has room for `capacity` bytes, which is enough;
        // it belongs to C and does not overlap the value.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), buffer.cast(), value.len()) };
    }
    Ok(Status::Ok)
}

fn to_c(version: Version) -> CVersion {
    CVersion { counter: version.counter, writer: version.writer.0 }
}

/// Reads a version that C passes; `None` for null.
fn version_at(place: *const CVersion) -> Option<Version> {
    // SAFETY: the header says that the pointer is null or points to a version.
    let version = unsafe { place.as_ref() }?;
    Some(Version { counter: version.counter, writer: MemberId(version.writer) })
}

fn deadline(job: &Job, milliseconds: u64) -> Time {
    job.now().after(Duration::from_millis(milliseconds))
}

/// A store, and its job, whose clock has the time limits.
pub struct CStore {
    store: Store,
    job: Job,
}

/// `outlast_error` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_error() -> *const c_char {
    MESSAGE.with(|last| last.borrow().as_ptr())
}

/// `outlast_join` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_join(job: *mut *mut Job) -> c_int {
    call(|| {
        give_handle(job, || {
            outlast::join().map_err(|error| failure(Status::NotJoined, error.to_string()))
        })
    })
}

/// `outlast_join_mpi` of outlast.h.
#[cfg(feature = "mpi")]
#[unsafe(no_mangle)]
pub extern "C" fn outlast_join_mpi(
    comm: *mut c_void,
    set_errhandlers: c_int,
    job: *mut *mut Job,
) -> c_int {
    call(|| {
        let mut options = outlast::JoinOptions::new().set_errhandlers(set_errhandlers != 0);
        if !comm.is_null() {
            // SAFETY: the header says that `comm` is a communicator of Open MPI. It is only
            // duplicated, before this call returns.
            options =
                options.communicator(unsafe { outlast::engine::mpi::Communicator::from_raw(comm) });
        }
        give_handle(job, || {
            options.join().map_err(|error| failure(Status::NotJoined, error.to_string()))
        })
    })
}

/// `outlast_mpi_shrunken` of outlast.h.
#[cfg(feature = "mpi")]
#[unsafe(no_mangle)]
pub extern "C" fn outlast_mpi_shrunken(job: *const Job, comm: *mut *mut c_void) -> c_int {
    call(|| {
        if comm.is_null() {
            return Err(failure(Status::Invalid, "the place for the communicator is NULL"));
        }
        let shrunken = borrow_handle(job)?.shrunken_communicator();
        let shrunken = shrunken.map_err(|error| failure(Status::Failed, error.to_string()))?;
        write_result(comm, shrunken.as_raw());
        Ok(Status::Ok)
    })
}

/// `outlast_leave` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_leave(job: *mut Job) -> c_int {
    call(|| {
        let left = take_handle(job)?.leave();
        left.map_err(|error| failure(Status::Failed, error.to_string()))?;
        Ok(Status::Ok)
    })
}

/// `outlast_me` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_me(job: *const Job) -> u32 {
    borrow_handle(job).map_or(u32::MAX, |job| job.me().0)
}

/// `outlast_members` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_members(job: *const Job) -> u32 {
    borrow_handle(job).map_or(0, |job| job.members() as u32)
}

/// `outlast_living` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_living(job: *const Job) -> u32 {
    borrow_handle(job).map_or(0, |job| job.view().living().count() as u32)
}

/// `outlast_open` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_open(
    job: *const Job,
    options: *const COptions,
    store: *mut *mut CStore,
) -> c_int {
    call(|| {
        let job = borrow_handle(job)?;
        let mut wanted = Options::new();
        // SAFETY: the header says that the pointer is null or points to options.
        if let Some(options) = unsafe { options.as_ref() } {
            if options.replicas != 0 {
                wanted = wanted.replicas(options.replicas as usize);
            }
            if options.allow_fewer != 0 {
                wanted = wanted.allow_fewer();
            }
            if options.expected_keys != 0 {
                wanted = wanted.expected_keys(options.expected_keys as usize);
            }
            wanted = wanted.checksums(options.checksums != 0).salvage(options.salvage != 0);
            if options.global_mode != 0 {
                wanted = wanted.mode(Mode::Global);
            }
            if !options.name.is_null() {
                wanted = wanted.name(text(options.name)?);
            }
        }
        give_handle(store, || Ok(CStore { store: Store::open(job, wanted)?, job: job.clone() }))
    })
}

/// `outlast_close` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_close(store: *mut CStore) -> c_int {
    call(|| {
        take_handle(store)?.store.close()?;
        Ok(Status::Ok)
    })
}

/// `outlast_put` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_put(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    len: usize,
    version: *mut CVersion,
) -> c_int {
    call(|| {
        let put = borrow_handle(store)?.store.put(bytes(key, key_len)?, bytes(value, len)?)?;
        write_result(version, to_c(put));
        Ok(Status::Ok)
    })
}

/// `outlast_put_if` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_put_if(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    len: usize,
    expected: *const CVersion,
    version: *mut CVersion,
) -> c_int {
    call(|| {
        let expect = version_at(expected).map_or(Expect::Absent, Expect::Version);
        let put =
            borrow_handle(store)?.store.put_if(bytes(key, key_len)?, bytes(value, len)?, expect)?;
        write_result(version, to_c(put));
        Ok(Status::Ok)
    })
}

/// `outlast_get` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_get(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
    version: *mut CVersion,
) -> c_int {
    call(|| match borrow_handle(store)?.store.get(bytes(key, key_len)?)? {
        Some(value) => {
            write_result(version, to_c(value.version()));
            copy_out(value.bytes(), buffer, capacity, len)
        }
        None => Ok(Status::Absent),
    })
}

/// The answer whether a key exists.
fn found(is_there: bool) -> CallResult {
    Ok(if is_there { Status::Ok } else { Status::Absent })
}

/// `outlast_exists` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_exists(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
) -> c_int {
    call(|| found(borrow_handle(store)?.store.exists(bytes(key, key_len)?)?))
}

/// `outlast_delete` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_delete(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
) -> c_int {
    call(|| found(borrow_handle(store)?.store.delete(bytes(key, key_len)?)?))
}

/// `outlast_add` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_add(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
    delta: i64,
    after: *mut i64,
) -> c_int {
    call(|| {
        write_result(after, borrow_handle(store)?.store.add(bytes(key, key_len)?, delta)?);
        Ok(Status::Ok)
    })
}

/// `outlast_wait` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_wait(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
    newer_than: *const CVersion,
    milliseconds: u64,
    member: i64,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
    version: *mut CVersion,
) -> c_int {
    call(|| {
        let (CStore { store, job }, key) = (borrow_handle(store)?, bytes(key, key_len)?);
        let (newer_than, until) = (version_at(newer_than), deadline(job, milliseconds));
        let waited = match u32::try_from(member) {
            Ok(member) if (member as usize) < job.members() => {
                store.wait_or_death(key, newer_than, until, MemberId(member))?
            }
            _ if member == -1 => store
                .wait(key, newer_than, until)?
                .map_or(WaitOutcome::TimedOut, WaitOutcome::Value),
            _ => {
                return Err(failure(
                    Status::Invalid,
                    format!("there is no member {member}; -1 waits for no member"),
                ));
            }
        };
        match waited {
            WaitOutcome::Value(value) => {
                write_result(version, to_c(value.version()));
                copy_out(value.bytes(), buffer, capacity, len)
            }
            WaitOutcome::Died(_) => Ok(Status::Died),
            WaitOutcome::TimedOut => Ok(Status::Absent),
        }
    })
}

/// Calls `visit` for each key until it returns another value than 0.
fn visit_all(keys: Vec<Vec<u8>>, visit: Visit, context: *mut c_void) -> CallResult {
    let visit = visit.ok_or_else(|| failure(Status::Invalid, "the function visit is NULL"))?;
    for key in keys {
        // SAFETY: the caller passed the function, and the context that belongs to it.
        if unsafe { visit(context, key.as_ptr().cast(), key.len()) } != 0 {
            break;
        }
    }
    Ok(Status::Ok)
}

/// `outlast_scan` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_scan(
    store: *const CStore,
    prefix: *const c_void,
    prefix_len: usize,
    visit: Visit,
    context: *mut c_void,
) -> c_int {
    call(|| {
        visit_all(borrow_handle(store)?.store.scan(bytes(prefix, prefix_len)?)?, visit, context)
    })
}

/// `outlast_keys_of` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_keys_of(
    store: *const CStore,
    member: u32,
    visit: Visit,
    context: *mut c_void,
) -> c_int {
    call(|| visit_all(borrow_handle(store)?.store.keys_of(MemberId(member))?, visit, context))
}

/// `outlast_adopt` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_adopt(store: *const CStore, key: *const c_void, key_len: usize) -> c_int {
    call(|| found(borrow_handle(store)?.store.adopt(bytes(key, key_len)?)?))
}

/// `outlast_put_nb` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_put_nb(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    len: usize,
) -> c_int {
    call(|| {
        borrow_handle(store)?.store.put_nb(bytes(key, key_len)?, bytes(value, len)?)?;
        Ok(Status::Ok)
    })
}

/// `outlast_flush` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_flush(store: *const CStore) -> c_int {
    call(|| {
        borrow_handle(store)?.store.flush()?;
        Ok(Status::Ok)
    })
}

/// `outlast_epoch` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_epoch(store: *const CStore) -> u64 {
    borrow_handle(store).map_or(0, |store| store.store.epoch().0)
}

/// `outlast_next_death` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_next_death(
    store: *const CStore,
    seen: *mut u64,
    member: *mut u32,
    heir: *mut u32,
) -> c_int {
    call(|| {
        let (CStore { store, .. }, seen) = (borrow_handle(store)?, borrow_handle_mut(seen)?);
        let mut epoch = Epoch(*seen);
        let Some(death) = store.next_death(&mut epoch) else { return Ok(Status::Absent) };
        *seen = epoch.0;
        write_result(member, death.member.0);
        write_result(heir, death.heir().0);
        Ok(Status::Ok)
    })
}

/// `outlast_heir_of` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_heir_of(store: *const CStore, member: u32) -> u32 {
    borrow_handle(store).map_or(u32::MAX, |store| store.store.heir_of(MemberId(member)).0)
}

/// `outlast_accept_loss` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_accept_loss(store: *const CStore, partitions: *mut usize) -> c_int {
    call(|| {
        write_result(partitions, borrow_handle(store)?.store.accept_loss()?.len());
        Ok(Status::Ok)
    })
}

/// `outlast_handle_open` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_handle_open(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
    handle: *mut *mut KeyHandle,
) -> c_int {
    call(|| give_handle(handle, || Ok(borrow_handle(store)?.store.handle(bytes(key, key_len)?)?)))
}

/// `outlast_handle_put` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_handle_put(
    handle: *const KeyHandle,
    value: *const c_void,
    len: usize,
    version: *mut CVersion,
) -> c_int {
    call(|| {
        let put = borrow_handle(handle)?.put(bytes(value, len)?)?;
        write_result(version, to_c(put));
        Ok(Status::Ok)
    })
}

/// `outlast_handle_get` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_handle_get(
    handle: *const KeyHandle,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
    version: *mut CVersion,
) -> c_int {
    call(|| match borrow_handle(handle)?.get()? {
        Some(value) => {
            write_result(version, to_c(value.version()));
            copy_out(value.bytes(), buffer, capacity, len)
        }
        None => Ok(Status::Absent),
    })
}

/// `outlast_handle_free` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_handle_free(handle: *mut KeyHandle) {
    drop(take_handle(handle));
}

/// `outlast_lock` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_lock(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
    milliseconds: u64,
    guard: *mut *mut LockGuard,
    abandoned: *mut i64,
) -> c_int {
    call(|| {
        let CStore { store, job } = borrow_handle(store)?;
        give_handle(guard, || {
            let locked = store.lock(bytes(key, key_len)?, deadline(job, milliseconds))?;
            write_result(abandoned, locked.abandoned_by().map_or(-1, |member| i64::from(member.0)));
            Ok(locked)
        })
    })
}

/// `outlast_unlock` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_unlock(guard: *mut LockGuard) -> c_int {
    call(|| {
        take_handle(guard)?.unlock()?;
        Ok(Status::Ok)
    })
}

/// `outlast_tx_begin` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_begin(store: *const CStore, tx: *mut *mut Transaction) -> c_int {
    call(|| give_handle(tx, || Ok(borrow_handle(store)?.store.begin())))
}

/// `outlast_tx_get` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_get(
    tx: *mut Transaction,
    key: *const c_void,
    key_len: usize,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> c_int {
    call(|| match borrow_handle_mut(tx)?.get(bytes(key, key_len)?)? {
        Some(value) => copy_out(&value, buffer, capacity, len),
        None => Ok(Status::Absent),
    })
}

/// `outlast_tx_put` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_put(
    tx: *mut Transaction,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    len: usize,
) -> c_int {
    call(|| {
        borrow_handle_mut(tx)?.put(bytes(key, key_len)?, bytes(value, len)?)?;
        Ok(Status::Ok)
    })
}

/// `outlast_tx_delete` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_delete(
    tx: *mut Transaction,
    key: *const c_void,
    key_len: usize,
) -> c_int {
    call(|| found(borrow_handle_mut(tx)?.delete(bytes(key, key_len)?)?))
}

/// `outlast_tx_add` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_add(
    tx: *mut Transaction,
    key: *const c_void,
    key_len: usize,
    delta: i64,
    after: *mut i64,
) -> c_int {
    call(|| {
        write_result(after, borrow_handle_mut(tx)?.add(bytes(key, key_len)?, delta)?);
        Ok(Status::Ok)
    })
}

/// `outlast_tx_adopt` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_adopt(
    tx: *mut Transaction,
    key: *const c_void,
    key_len: usize,
) -> c_int {
    call(|| found(borrow_handle_mut(tx)?.adopt(bytes(key, key_len)?)?))
}

/// `outlast_tx_commit` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_commit(tx: *mut Transaction) -> c_int {
    call(|| {
        borrow_handle_mut(tx)?.commit()?;
        Ok(Status::Ok)
    })
}

/// `outlast_tx_abort` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_abort(tx: *mut Transaction) -> c_int {
    call(|| {
        borrow_handle_mut(tx)?.abort();
        Ok(Status::Ok)
    })
}

/// `outlast_tx_retry` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_retry(tx: *mut Transaction) -> c_int {
    call(|| {
        borrow_handle_mut(tx)?.retry()?;
        Ok(Status::Ok)
    })
}

/// `outlast_tx_free` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_free(tx: *mut Transaction) {
    drop(take_handle(tx));
}

/// `outlast_transaction` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_transaction(
    store: *const CStore,
    body: Body,
    context: *mut c_void,
) -> c_int {
    call(|| {
        let body =
            body.ok_or_else(|| failure(Status::Invalid, "the body of the transaction is NULL"))?;
        borrow_handle(store)?.store.transaction(|tx| {
            // SAFETY: the caller passed the function, and the context that belongs to it. `tx`
            // lives during the call.
            match unsafe { body(context, tx) } {
                0 => Ok(Status::Ok),
                status => {
                    // The message of the call that failed inside the callback stays. A code of the
                    // callback's own has no message.
                    let message = MESSAGE.with(|last| last.borrow().to_string_lossy().into_owned());
                    Err(Failure { status, message })
                }
            }
        })
    })
}

/// `outlast_revoke` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_revoke(store: *const CStore) -> c_int {
    call(|| {
        borrow_handle(store)?.store.revoke()?;
        Ok(Status::Ok)
    })
}

/// `outlast_is_revoked` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_is_revoked(store: *const CStore) -> c_int {
    borrow_handle(store).map_or(0, |store| c_int::from(store.store.is_revoked()))
}

/// `outlast_recover_begin` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_recover_begin(
    store: *const CStore,
    recovery: *mut *mut Recovery,
) -> c_int {
    call(|| {
        let store = borrow_handle(store)?;
        give_handle(recovery, || Ok(store.store.recover_begin()?))
    })
}

/// `outlast_recovery_tx` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_recovery_tx(recovery: *mut Recovery) -> *mut Transaction {
    borrow_handle_mut(recovery).map_or(std::ptr::null_mut(), |recovery| recovery.tx())
}

/// `outlast_recovery_death` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_recovery_death(
    recovery: *const Recovery,
    number: usize,
    member: *mut u32,
    heir: *mut u32,
) -> c_int {
    call(|| {
        let Some(death) = borrow_handle(recovery)?.deaths().get(number) else {
            return Ok(Status::Absent);
        };
        write_result(member, death.member.0);
        write_result(heir, death.heir().0);
        Ok(Status::Ok)
    })
}

/// `outlast_recover_end` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_recover_end(recovery: *mut Recovery) -> c_int {
    call(|| {
        take_handle(recovery)?.end()?;
        Ok(Status::Ok)
    })
}

/// `outlast_recover_fail` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_recover_fail(recovery: *mut Recovery) -> c_int {
    call(|| {
        take_handle(recovery)?.fail("a member called outlast_recover_fail")?;
        Ok(Status::Ok)
    })
}

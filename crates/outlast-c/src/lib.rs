//! Outlast for C. `include/outlast.h` has the calls and what they promise; here they are translated.
//!
//! Each call checks its pointers for null, makes slices of them, and turns the result into a code and a message. A panic
//! does not go into C: it becomes [`Status::Failed`].

#![allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "only C calls these; the header says what pointers must be"
)]

use outlast::store::{
    Expect, KeyHandle, LockGuard, Mode, Options, Recovery, Store, StoreError, Transaction, Version,
    WaitOutcome,
};
use outlast::{Epoch, Job, MemberId, Time};
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// The codes of the header, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs, reason = "the header says what they mean")]
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
}

/// A version as C has it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CVersion {
    counter: u64,
    writer: u32,
}

/// Options as C has them; zero is the default.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct COptions {
    replicas: u32,
    allow_fewer: u32,
    expected_keys: u64,
    checksums: u32,
    global_mode: u32,
    salvage: u32,
}

/// A call that comes back for each key.
pub type Visit =
    Option<unsafe extern "C" fn(context: *mut c_void, key: *const c_void, len: usize) -> c_int>;
/// What a transaction does.
pub type Body = Option<unsafe extern "C" fn(context: *mut c_void, tx: *mut Transaction) -> c_int>;

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Why a call did not succeed.
struct Failure {
    status: c_int,
    message: String,
}

type Outcome = Result<Status, Failure>;

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
            _ => Status::Failed,
        };
        failure(status, error.to_string())
    }
}

/// Runs a call: keeps its message, and keeps its panic.
fn call(body: impl FnOnce() -> Outcome) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        Err(failure(Status::Failed, "the library panicked; its message is on standard error"))
    });
    match outcome {
        Ok(status) => status as c_int,
        Err(Failure { status, message }) => {
            // A message has no null in it unless a key was quoted in one.
            let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
            MESSAGE.with(|last| *last.borrow_mut() = message);
            status
        }
    }
}

/// A handle that C has got from us.
fn given<'a, T>(handle: *const T) -> Result<&'a T, Failure> {
    // SAFETY: the header says that handles come from this library and have not been freed; null is looked for.
    unsafe { handle.as_ref() }.ok_or_else(|| failure(Status::Invalid, "a handle is NULL"))
}

/// The same for one that is used by one thread at a time.
fn given_mut<'a, T>(handle: *mut T) -> Result<&'a mut T, Failure> {
    // SAFETY: as above; and the header says that no other thread uses it meanwhile.
    unsafe { handle.as_mut() }.ok_or_else(|| failure(Status::Invalid, "a handle is NULL"))
}

/// A handle that is given back to be freed.
fn taken<T>(handle: *mut T) -> Result<Box<T>, Failure> {
    given(handle)?;
    // SAFETY: it was made by `give`, and the header says that it is freed once.
    Ok(unsafe { Box::from_raw(handle) })
}

/// Bytes that C lends for the call.
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
    // SAFETY: the header says that there are so many bytes, which nobody changes during the call.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) })
}

/// A place that C lends for a result; a call that need not have it may be given null.
fn store_at<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the header says that it points to room for such a value.
        unsafe { place.write(value) };
    }
}

/// Gives a new handle to C.
fn give<T>(place: *mut *mut T, value: T) -> Outcome {
    if place.is_null() {
        return Err(failure(Status::Invalid, "the place for the new handle is NULL"));
    }
    store_at(place, Box::into_raw(Box::new(value)));
    Ok(Status::Ok)
}

/// Copies a value out, and its length whether there is room or not.
fn copy_out(value: &[u8], buffer: *mut c_void, capacity: usize, len: *mut usize) -> Outcome {
    store_at(len, value.len());
    if value.len() > capacity {
        let message =
            format!("the value has {} bytes, and the buffer only {capacity}", value.len());
        return Err(failure(Status::TooSmall, message));
    }
    if !value.is_empty() {
        if buffer.is_null() {
            return Err(failure(Status::Invalid, "the buffer is NULL"));
        }
        // SAFETY: the header says that the buffer has room for `capacity` bytes, which is enough, and it is not ours.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), buffer.cast(), value.len()) };
    }
    Ok(Status::Ok)
}

fn to_c(version: Version) -> CVersion {
    CVersion { counter: version.counter, writer: version.writer.0 }
}

/// A version that C lends, if it does.
fn version_at(place: *const CVersion) -> Option<Version> {
    // SAFETY: null is looked for, and the header says that it points to a version.
    let version = unsafe { place.as_ref() }?;
    Some(Version { counter: version.counter, writer: MemberId(version.writer) })
}

fn deadline(job: &Job, milliseconds: u64) -> Time {
    job.now().after(Duration::from_millis(milliseconds))
}

/// A store, and the job that its times are those of.
pub struct CStore {
    store: Store,
    job: Job,
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_error() -> *const c_char {
    MESSAGE.with(|last| last.borrow().as_ptr())
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_join(job: *mut *mut Job) -> c_int {
    call(|| {
        give(job, outlast::join().map_err(|error| failure(Status::NotJoined, error.to_string()))?)
    })
}

/// See outlast.h.
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
            // SAFETY: the header says that it is one of Open MPI; it is only duplicated, before this returns.
            options =
                options.communicator(unsafe { outlast::engine::mpi::Communicator::from_raw(comm) });
        }
        give(job, options.join().map_err(|error| failure(Status::NotJoined, error.to_string()))?)
    })
}

/// See outlast.h.
#[cfg(feature = "mpi")]
#[unsafe(no_mangle)]
pub extern "C" fn outlast_mpi_shrunken(job: *const Job, comm: *mut *mut c_void) -> c_int {
    call(|| {
        if comm.is_null() {
            return Err(failure(Status::Invalid, "the place for the communicator is NULL"));
        }
        let shrunken = given(job)?.shrunken_communicator();
        let shrunken = shrunken.map_err(|error| failure(Status::Failed, error.to_string()))?;
        store_at(comm, shrunken.as_raw());
        Ok(Status::Ok)
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_leave(job: *mut Job) -> c_int {
    call(|| {
        let left = taken(job)?.leave();
        left.map_err(|error| failure(Status::Failed, error.to_string()))?;
        Ok(Status::Ok)
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_me(job: *const Job) -> u32 {
    given(job).map_or(u32::MAX, |job| job.me().0)
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_members(job: *const Job) -> u32 {
    given(job).map_or(0, |job| job.members() as u32)
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_living(job: *const Job) -> u32 {
    given(job).map_or(0, |job| job.view().living().count() as u32)
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_open(
    job: *const Job,
    options: *const COptions,
    store: *mut *mut CStore,
) -> c_int {
    call(|| {
        let job = given(job)?;
        let mut wanted = Options::new();
        // SAFETY: null is looked for, and the header says that it points to options.
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
        }
        give(store, CStore { store: Store::open(job, wanted)?, job: job.clone() })
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_close(store: *mut CStore) -> c_int {
    call(|| {
        taken(store)?.store.close()?;
        Ok(Status::Ok)
    })
}

/// See outlast.h.
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
        let put = given(store)?.store.put(bytes(key, key_len)?, bytes(value, len)?)?;
        store_at(version, to_c(put));
        Ok(Status::Ok)
    })
}

/// See outlast.h.
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
        let put = given(store)?.store.put_if(bytes(key, key_len)?, bytes(value, len)?, expect)?;
        store_at(version, to_c(put));
        Ok(Status::Ok)
    })
}

/// See outlast.h.
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
    call(|| match given(store)?.store.get(bytes(key, key_len)?)? {
        Some(value) => {
            store_at(version, to_c(value.version()));
            copy_out(value.bytes(), buffer, capacity, len)
        }
        None => Ok(Status::Absent),
    })
}

fn found(is_there: bool) -> Outcome {
    Ok(if is_there { Status::Ok } else { Status::Absent })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_exists(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
) -> c_int {
    call(|| found(given(store)?.store.exists(bytes(key, key_len)?)?))
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_delete(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
) -> c_int {
    call(|| found(given(store)?.store.delete(bytes(key, key_len)?)?))
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_add(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
    delta: i64,
    after: *mut i64,
) -> c_int {
    call(|| {
        store_at(after, given(store)?.store.add(bytes(key, key_len)?, delta)?);
        Ok(Status::Ok)
    })
}

/// See outlast.h.
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
        let (CStore { store, job }, key) = (given(store)?, bytes(key, key_len)?);
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
                    format!("there is no member {member}; -1 is nobody"),
                ));
            }
        };
        match waited {
            WaitOutcome::Value(value) => {
                store_at(version, to_c(value.version()));
                copy_out(value.bytes(), buffer, capacity, len)
            }
            WaitOutcome::Died(_) => Ok(Status::Died),
            WaitOutcome::TimedOut => Ok(Status::Absent),
        }
    })
}

fn visit_all(keys: Vec<Vec<u8>>, visit: Visit, context: *mut c_void) -> Outcome {
    let visit =
        visit.ok_or_else(|| failure(Status::Invalid, "the call to visit keys with is NULL"))?;
    for key in keys {
        // SAFETY: the caller gave the function, and a context that belongs to it.
        if unsafe { visit(context, key.as_ptr().cast(), key.len()) } != 0 {
            break;
        }
    }
    Ok(Status::Ok)
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_scan(
    store: *const CStore,
    prefix: *const c_void,
    prefix_len: usize,
    visit: Visit,
    context: *mut c_void,
) -> c_int {
    call(|| visit_all(given(store)?.store.scan(bytes(prefix, prefix_len)?)?, visit, context))
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_keys_of(
    store: *const CStore,
    member: u32,
    visit: Visit,
    context: *mut c_void,
) -> c_int {
    call(|| visit_all(given(store)?.store.keys_of(MemberId(member))?, visit, context))
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_adopt(store: *const CStore, key: *const c_void, key_len: usize) -> c_int {
    call(|| found(given(store)?.store.adopt(bytes(key, key_len)?)?))
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_put_nb(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    len: usize,
) -> c_int {
    call(|| {
        given(store)?.store.put_nb(bytes(key, key_len)?, bytes(value, len)?)?;
        Ok(Status::Ok)
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_flush(store: *const CStore) -> c_int {
    call(|| {
        given(store)?.store.flush()?;
        Ok(Status::Ok)
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_epoch(store: *const CStore) -> u64 {
    given(store).map_or(0, |store| store.store.epoch().0)
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_next_death(
    store: *const CStore,
    seen: *mut u64,
    member: *mut u32,
    heir: *mut u32,
) -> c_int {
    call(|| {
        let (CStore { store, .. }, seen) = (given(store)?, given_mut(seen)?);
        let Some(death) = store.deaths_since(&mut Epoch(*seen)).into_iter().next() else {
            return Ok(Status::Absent);
        };
        *seen += 1;
        store_at(member, death.member.0);
        store_at(heir, death.heir().0);
        Ok(Status::Ok)
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_accept_loss(store: *const CStore, partitions: *mut usize) -> c_int {
    call(|| {
        store_at(partitions, given(store)?.store.accept_loss()?.len());
        Ok(Status::Ok)
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_handle_open(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
    handle: *mut *mut KeyHandle,
) -> c_int {
    call(|| give(handle, given(store)?.store.handle(bytes(key, key_len)?)?))
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_handle_put(
    handle: *const KeyHandle,
    value: *const c_void,
    len: usize,
    version: *mut CVersion,
) -> c_int {
    call(|| {
        let put = given(handle)?.put(bytes(value, len)?)?;
        store_at(version, to_c(put));
        Ok(Status::Ok)
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_handle_get(
    handle: *const KeyHandle,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
    version: *mut CVersion,
) -> c_int {
    call(|| match given(handle)?.get()? {
        Some(value) => {
            store_at(version, to_c(value.version()));
            copy_out(value.bytes(), buffer, capacity, len)
        }
        None => Ok(Status::Absent),
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_handle_free(handle: *mut KeyHandle) {
    drop(taken(handle));
}

/// See outlast.h.
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
        let CStore { store, job } = given(store)?;
        if guard.is_null() {
            return Err(failure(Status::Invalid, "the place for the new handle is NULL"));
        }
        let locked = store.lock(bytes(key, key_len)?, deadline(job, milliseconds))?;
        store_at(abandoned, locked.abandoned_by().map_or(-1, |member| i64::from(member.0)));
        give(guard, locked)
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_unlock(guard: *mut LockGuard) -> c_int {
    call(|| {
        taken(guard)?.unlock()?;
        Ok(Status::Ok)
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_begin(store: *const CStore, tx: *mut *mut Transaction) -> c_int {
    call(|| give(tx, given(store)?.store.begin()))
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_get(
    tx: *mut Transaction,
    key: *const c_void,
    key_len: usize,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> c_int {
    call(|| match given_mut(tx)?.get(bytes(key, key_len)?)? {
        Some(value) => copy_out(&value, buffer, capacity, len),
        None => Ok(Status::Absent),
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_put(
    tx: *mut Transaction,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    len: usize,
) -> c_int {
    call(|| {
        given_mut(tx)?.put(bytes(key, key_len)?, bytes(value, len)?)?;
        Ok(Status::Ok)
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_delete(
    tx: *mut Transaction,
    key: *const c_void,
    key_len: usize,
) -> c_int {
    call(|| found(given_mut(tx)?.delete(bytes(key, key_len)?)?))
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_add(
    tx: *mut Transaction,
    key: *const c_void,
    key_len: usize,
    delta: i64,
    after: *mut i64,
) -> c_int {
    call(|| {
        store_at(after, given_mut(tx)?.add(bytes(key, key_len)?, delta)?);
        Ok(Status::Ok)
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_adopt(
    tx: *mut Transaction,
    key: *const c_void,
    key_len: usize,
) -> c_int {
    call(|| found(given_mut(tx)?.adopt(bytes(key, key_len)?)?))
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_commit(tx: *mut Transaction) -> c_int {
    call(|| {
        given_mut(tx)?.commit()?;
        Ok(Status::Ok)
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_abort(tx: *mut Transaction) -> c_int {
    call(|| {
        given_mut(tx)?.abort();
        Ok(Status::Ok)
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_retry(tx: *mut Transaction) -> c_int {
    call(|| {
        given_mut(tx)?.retry()?;
        Ok(Status::Ok)
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_free(tx: *mut Transaction) {
    drop(taken(tx));
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_transaction(
    store: *const CStore,
    body: Body,
    context: *mut c_void,
) -> c_int {
    call(|| {
        let body =
            body.ok_or_else(|| failure(Status::Invalid, "the body of the transaction is NULL"))?;
        given(store)?.store.transaction(|tx| {
            // SAFETY: the caller gave the function, and a context that belongs to it; the handle lives during the call.
            match unsafe { body(context, tx) } {
                0 => Ok(Status::Ok),
                status => {
                    // What the call inside said stays; the callback's own codes have nothing to say.
                    let message = MESSAGE.with(|last| last.borrow().to_string_lossy().into_owned());
                    Err(Failure { status, message })
                }
            }
        })
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_revoke(store: *const CStore) -> c_int {
    call(|| {
        given(store)?.store.revoke()?;
        Ok(Status::Ok)
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_is_revoked(store: *const CStore) -> c_int {
    given(store).map_or(0, |store| c_int::from(store.store.is_revoked()))
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_recover_begin(
    store: *const CStore,
    recovery: *mut *mut Recovery,
) -> c_int {
    call(|| {
        let store = given(store)?;
        if recovery.is_null() {
            return Err(failure(Status::Invalid, "the place for the new handle is NULL"));
        }
        give(recovery, store.store.recover_begin()?)
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_recovery_tx(recovery: *mut Recovery) -> *mut Transaction {
    given_mut(recovery).map_or(std::ptr::null_mut(), |recovery| recovery.tx())
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_recovery_death(
    recovery: *const Recovery,
    number: usize,
    member: *mut u32,
    heir: *mut u32,
) -> c_int {
    call(|| {
        let Some(death) = given(recovery)?.deaths().get(number) else { return Ok(Status::Absent) };
        store_at(member, death.member.0);
        store_at(heir, death.heir().0);
        Ok(Status::Ok)
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_recover_end(recovery: *mut Recovery) -> c_int {
    call(|| {
        taken(recovery)?.end()?;
        Ok(Status::Ok)
    })
}

/// See outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_recover_fail(recovery: *mut Recovery) -> c_int {
    call(|| {
        taken(recovery)?.fail("a member gave it up")?;
        Ok(Status::Ok)
    })
}

//! The store: opening, reading and writing keys, waiting for them, deaths and heirs.

use crate::call::{
    CVersion, CallResult, Failure, Shell, SizedStruct, borrow_handle, borrow_handle_mut, bytes,
    call, close_shell, copy_out, deadline, done, failure, found, give_handle, give_shell, invalid,
    items, items_mut, opened, options_at, read_into, take_handle, text, to_c, version_at,
    write_list, write_result,
};
use crate::job::CJob;
use crate::status::Status;
use outlast::store::{Expect, Mode, Options, PendingGet, Store, StoreError, Value, WaitOutcome};
use outlast::{Epoch, Job, MemberId};
use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

/// A store, and its job, whose clock has the time limits.
pub struct OpenStore {
    pub(crate) store: Store,
    pub(crate) job: Job,
}

/// `outlast_store` of the header.
pub type CStore = Shell<OpenStore>;

/// `outlast_options` of the header; zero is the default of each option.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct COptions {
    struct_size: usize,
    replicas: u32,
    allow_fewer: u32,
    expected_keys: u64,
    checksums: u32,
    global_mode: u32,
    salvage: u32,
    sole_writers: u32,
    name: *const c_char,
    partitions: u32,
    repair_share: u32,
    slab_len_max: u64,
}

// SAFETY: `repr(C)`, the size first, and zero is valid for numbers and pointers.
unsafe impl SizedStruct for COptions {
    const NAME: &'static str = "outlast_options";
}

/// `struct iovec` of the system: a part of a value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CPart {
    base: *const c_void,
    len: usize,
}

/// `outlast_pair` of the header.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CPair {
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    len: usize,
}

/// `outlast_read` of the header.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CRead {
    key: *const c_void,
    key_len: usize,
    buffer: *mut c_void,
    capacity: usize,
    len: usize,
    status: c_int,
}

/// The longest sleep of a wait for a count: a committer may be stopped before it rings.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Borrows the parts of a value that C passes.
pub(crate) fn parts<'a>(parts: *const CPart, count: c_int) -> Result<Vec<&'a [u8]>, Failure> {
    let count = usize::try_from(count).map_err(|_| invalid("the number of parts is negative"))?;
    items(parts, count)?.iter().map(|part| bytes(part.base, part.len)).collect()
}

/// `outlast_open` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_open(
    job: *const CJob,
    options: *const COptions,
    store: *mut *mut CStore,
) -> c_int {
    call(|| {
        let job = opened(job)?;
        let mut wanted = Options::new();
        if let Some(options) = options_at(options)? {
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
            wanted = wanted.sole_writers(options.sole_writers != 0);
            if options.global_mode != 0 {
                wanted = wanted.mode(Mode::Global);
            }
            if !options.name.is_null() {
                wanted = wanted.name(text(options.name)?);
            }
            if options.partitions != 0 {
                wanted = wanted.partitions(options.partitions as usize);
            }
            if options.repair_share != 0 {
                wanted = wanted.repair_share(options.repair_share);
            }
            if options.slab_len_max != 0 {
                wanted = wanted.slab_len_max(options.slab_len_max);
            }
        }
        give_shell(store, || Ok(OpenStore { store: Store::open(job, wanted)?, job: job.clone() }))
    })
}

/// `outlast_close` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_close(store: *mut CStore) -> c_int {
    call(|| done(close_shell(store)?.store.close()))
}

/// `outlast_hand_over` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_hand_over(store: *const CStore, milliseconds: u64) -> c_int {
    call(|| {
        let OpenStore { store, job } = opened(store)?;
        done(store.leave(deadline(job, milliseconds)))
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
        let put = opened(store)?.store.put(bytes(key, key_len)?, bytes(value, len)?)?;
        write_result(version, to_c(put));
        Ok(Status::Ok)
    })
}

/// `outlast_putv` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_putv(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
    values: *const CPart,
    count: c_int,
    version: *mut CVersion,
) -> c_int {
    call(|| {
        let put = opened(store)?.store.put_parts(bytes(key, key_len)?, &parts(values, count)?)?;
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
        let put = opened(store)?.store.put_if(bytes(key, key_len)?, bytes(value, len)?, expect)?;
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
    call(|| {
        let (store, key) = (opened(store)?, bytes(key, key_len)?);
        read_into(buffer, capacity, len, version, |room| store.store.get_into(key, room))
    })
}

/// `outlast_exists` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_exists(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
) -> c_int {
    call(|| found(opened(store)?.store.exists(bytes(key, key_len)?)?))
}

/// `outlast_owner_of` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_owner_of(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
    member: *mut u32,
) -> c_int {
    call(|| {
        let value = opened(store)?.store.get(bytes(key, key_len)?)?;
        if let Some(value) = &value {
            write_result(member, value.owner().0);
        }
        found(value.is_some())
    })
}

/// `outlast_replicas_of` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_replicas_of(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
    members: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    call(|| {
        let (store, key) = (&opened(store)?.store, bytes(key, key_len)?);
        // Checks the key.
        store.partition_of(key)?;
        let replicas = store.replicas_of(key);
        let replicas: Vec<u32> = replicas.iter().map(|member| member.0).collect();
        write_list(&replicas, members, capacity, count)
    })
}

/// `outlast_delete` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_delete(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
) -> c_int {
    call(|| found(opened(store)?.store.delete(bytes(key, key_len)?)?))
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
        write_result(after, opened(store)?.store.add(bytes(key, key_len)?, delta)?);
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
        let (OpenStore { store, job }, key) = (opened(store)?, bytes(key, key_len)?);
        let (newer_than, until) = (version_at(newer_than), deadline(job, milliseconds));
        let waited = match u32::try_from(member) {
            Ok(member) if (member as usize) < job.members() => {
                store.wait_or_death(key, newer_than, until, MemberId(member))?
            }
            _ if member == -1 => store
                .wait(key, newer_than, until)?
                .map_or(WaitOutcome::TimedOut, WaitOutcome::Value),
            _ => {
                return Err(invalid(format!(
                    "there is no member {member}; -1 waits for no member"
                )));
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

/// `outlast_wait_count` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_wait_count(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
    count: i64,
    milliseconds: u64,
    seen: *const u64,
    reached: *mut i64,
) -> c_int {
    call(|| {
        let (OpenStore { store, job }, key) = (opened(store)?, bytes(key, key_len)?);
        // SAFETY: the header says that the pointer is null or points to a number.
        let seen = unsafe { seen.as_ref() }.copied();
        let until = deadline(job, milliseconds);
        loop {
            let bell = job.bell();
            let epoch = store.epoch();
            // A wait that is over at once: it announces this member as a waiter, and reads the key
            // after that, so that the change after this read rings the bell.
            let value = store.wait(key, None, outlast::Time(0))?;
            let number = value.map_or(Ok(0), |value| number_of(value.bytes()))?;
            write_result(reached, number);
            if number >= count {
                return Ok(Status::Ok);
            }
            if seen.is_some_and(|seen| seen != epoch.0) {
                return Ok(Status::Died);
            }
            if job.now() >= until {
                return Ok(Status::Absent);
            }
            job.park(bell, until.min(job.now().after(LOOK_AGAIN)));
        }
    })
}

/// The number in a value that `outlast_add` made.
fn number_of(value: &[u8]) -> Result<i64, Failure> {
    let bytes = value.try_into().map_err(|_| StoreError::WrongType {
        what: format!("the value has {} bytes, and a number has 8", value.len()),
    })?;
    Ok(i64::from_le_bytes(bytes))
}

/// `outlast_adopt` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_adopt(store: *const CStore, key: *const c_void, key_len: usize) -> c_int {
    call(|| found(opened(store)?.store.adopt(bytes(key, key_len)?)?))
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
        opened(store)?.store.put_nb(bytes(key, key_len)?, bytes(value, len)?)?;
        Ok(Status::Ok)
    })
}

/// A get that was begun, and its value until it is copied out.
pub struct CPendingGet {
    /// `None` once it has given its result.
    pending: Option<PendingGet>,
    value: Option<Value>,
}

/// `outlast_get_nb` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_get_nb(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
    pending: *mut *mut CPendingGet,
) -> c_int {
    call(|| {
        let (store, key) = (opened(store)?, bytes(key, key_len)?);
        give_handle(pending, || {
            Ok(CPendingGet { pending: Some(store.store.get_nb(key)), value: None })
        })
    })
}

/// `outlast_pending_is_ready` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_pending_is_ready(pending: *const CPendingGet) -> c_int {
    let is_ready = |get: &CPendingGet| get.pending.as_ref().is_none_or(PendingGet::is_ready);
    borrow_handle(pending).map_or(0, |get| c_int::from(is_ready(get)))
}

/// `outlast_pending_get` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_pending_get(
    pending: *mut CPendingGet,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
    version: *mut CVersion,
) -> c_int {
    call(|| {
        let get = borrow_handle_mut(pending)?;
        if get.value.is_none() {
            let pending = get.pending.take().ok_or_else(|| {
                failure(Status::Over, "the get has given its result already; begin another")
            })?;
            get.value = pending.wait()?;
        }
        let Some(value) = &get.value else { return Ok(Status::Absent) };
        write_result(version, to_c(value.version()));
        copy_out(value.bytes(), buffer, capacity, len)?;
        get.value = None;
        Ok(Status::Ok)
    })
}

/// `outlast_pending_free` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_pending_free(pending: *mut CPendingGet) {
    drop(take_handle(pending));
}

/// `outlast_flush` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_flush(store: *const CStore) -> c_int {
    call(|| {
        opened(store)?.store.flush()?;
        Ok(Status::Ok)
    })
}

/// `outlast_put_all` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_put_all(
    store: *const CStore,
    pairs: *const CPair,
    count: usize,
    done: *mut usize,
) -> c_int {
    call(|| {
        let store = &opened(store)?.store;
        write_result(done, 0);
        for (index, pair) in items(pairs, count)?.iter().enumerate() {
            store.put(bytes(pair.key, pair.key_len)?, bytes(pair.value, pair.len)?)?;
            write_result(done, index + 1);
        }
        Ok(Status::Ok)
    })
}

fn read_one(store: &Store, read: &mut CRead) -> CallResult {
    let (key, none) = (bytes(read.key, read.key_len)?, std::ptr::null_mut());
    let into = |room: &mut [u8]| store.get_into(key, room);
    read_into(read.buffer, read.capacity, &raw mut read.len, none, into)
}

/// `outlast_get_all` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_get_all(store: *const CStore, reads: *mut CRead, count: usize) -> c_int {
    call(|| {
        let store = opened(store)?;
        let mut worst = Ok(Status::Ok);
        for read in items_mut(reads, count)? {
            let result = read_one(&store.store, read);
            read.status = match &result {
                Ok(status) => *status as c_int,
                Err(failure) => failure.status,
            };
            if result.is_err() && worst.is_ok() {
                worst = result;
            }
        }
        worst
    })
}

/// `outlast_epoch` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_epoch(store: *const CStore) -> u64 {
    opened(store).map_or(0, |store| store.store.epoch().0)
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
        let (OpenStore { store, .. }, seen) = (opened(store)?, borrow_handle_mut(seen)?);
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
    opened(store).map_or(u32::MAX, |store| store.store.heir_of(MemberId(member)).0)
}

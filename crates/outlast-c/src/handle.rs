//! Key handles, and pins.

use crate::call::{
    CVersion, borrow_handle, bytes, call, done, found, give_handle, items_mut, opened, read_into,
    take_handle, to_c, version_at, write_result,
};
use crate::status::Status;
use crate::store::{CPart, CStore, parts};
use outlast::store::{Expect, KeyHandle, Pin};
use std::ffi::{c_int, c_void};

/// `outlast_handle_open` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_handle_open(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
    handle: *mut *mut KeyHandle,
) -> c_int {
    call(|| give_handle(handle, || Ok(opened(store)?.store.handle(bytes(key, key_len)?)?)))
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

/// `outlast_handle_putv` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_handle_putv(
    handle: *const KeyHandle,
    values: *const CPart,
    count: c_int,
    version: *mut CVersion,
) -> c_int {
    call(|| {
        let put = borrow_handle(handle)?.put_parts(&parts(values, count)?)?;
        write_result(version, to_c(put));
        Ok(Status::Ok)
    })
}

/// `outlast_handle_put_if` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_handle_put_if(
    handle: *const KeyHandle,
    value: *const c_void,
    len: usize,
    expected: *const CVersion,
    version: *mut CVersion,
) -> c_int {
    call(|| {
        let expect = version_at(expected).map_or(Expect::Absent, Expect::Version);
        let put = borrow_handle(handle)?.put_if(bytes(value, len)?, expect)?;
        write_result(version, to_c(put));
        Ok(Status::Ok)
    })
}

/// `outlast_handle_add` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_handle_add(
    handle: *const KeyHandle,
    delta: i64,
    after: *mut i64,
) -> c_int {
    call(|| {
        write_result(after, borrow_handle(handle)?.add(delta)?);
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
    call(|| {
        let handle = borrow_handle(handle)?;
        read_into(buffer, capacity, len, version, |room| handle.get_into(room))
    })
}

/// `outlast_handle_version` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_handle_version(
    handle: *const KeyHandle,
    version: *mut CVersion,
) -> c_int {
    call(|| {
        let current = borrow_handle(handle)?.version()?;
        if let Some(current) = current {
            write_result(version, to_c(current));
        }
        found(current.is_some())
    })
}

/// `outlast_handle_delete` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_handle_delete(handle: *const KeyHandle) -> c_int {
    call(|| found(borrow_handle(handle)?.delete()?))
}

/// `outlast_handle_free` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_handle_free(handle: *mut KeyHandle) {
    drop(take_handle(handle));
}

/// `outlast_pin_open` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_pin_open(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
    pin: *mut *mut Pin,
    len: *mut u64,
    version: *mut CVersion,
) -> c_int {
    call(|| {
        if pin.is_null() {
            return give_handle(pin, || unreachable!("there is no place for the handle"));
        }
        let Some(pinned) = opened(store)?.store.pin(bytes(key, key_len)?)? else {
            return Ok(Status::Absent);
        };
        write_result(len, pinned.len());
        write_result(version, to_c(pinned.version()));
        give_handle(pin, || Ok(pinned))
    })
}

/// `outlast_pin_read` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_pin_read(
    pin: *const Pin,
    from: u64,
    buffer: *mut c_void,
    len: usize,
) -> c_int {
    call(|| done(borrow_handle(pin)?.read(from, items_mut(buffer.cast(), len)?)))
}

/// `outlast_pin_free` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_pin_free(pin: *mut Pin) {
    drop(take_handle(pin));
}

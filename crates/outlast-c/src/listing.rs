//! Listing keys, with or without their values; lost keys and partitions.

use crate::call::{
    CVersion, CallResult, Context, bytes, call, done, invalid, items, opened, to_c, write_list,
    write_result,
};
use crate::status::Status;
use crate::store::CStore;
use outlast::MemberId;
use std::ffi::{c_int, c_void};

/// A C function that is called for each key.
pub type Visit =
    Option<unsafe extern "C" fn(context: *mut c_void, key: *const c_void, len: usize) -> c_int>;

/// A C function that is called for each key, with its value and version.
pub type VisitValue = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        key: *const c_void,
        key_len: usize,
        value: *const c_void,
        len: usize,
        version: *const CVersion,
    ) -> c_int,
>;

/// Calls `visit` for each key until it returns another value than 0.
fn visit_all(keys: Vec<Vec<u8>>, visit: Visit, context: *mut c_void) -> CallResult {
    let visit = visit.ok_or_else(|| invalid("the function visit is NULL"))?;
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
    call(|| visit_all(opened(store)?.store.scan(bytes(prefix, prefix_len)?)?, visit, context))
}

/// `outlast_scan_values` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_scan_values(
    store: *const CStore,
    prefix: *const c_void,
    prefix_len: usize,
    visit: VisitValue,
    context: *mut c_void,
) -> c_int {
    call(|| {
        let visit = visit.ok_or_else(|| invalid("the function visit is NULL"))?;
        let store = &opened(store)?.store;
        for key in store.scan(bytes(prefix, prefix_len)?)? {
            // A key that was deleted since it was listed is left out.
            let Some(value) = store.get(&key)? else { continue };
            let (bytes, version) = (value.bytes(), to_c(value.version()));
            let (key, key_len) = (key.as_ptr().cast(), key.len());
            // SAFETY: the caller passed the function, and the context that belongs to it.
            let status = unsafe {
                visit(context, key, key_len, bytes.as_ptr().cast(), bytes.len(), &raw const version)
            };
            if status != 0 {
                break;
            }
        }
        Ok(Status::Ok)
    })
}

/// `outlast_count` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_count(store: *const CStore, keys: *mut usize) -> c_int {
    call(|| {
        write_result(keys, opened(store)?.store.len()?);
        Ok(Status::Ok)
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
    call(|| visit_all(opened(store)?.store.keys_of(MemberId(member))?, visit, context))
}

/// `outlast_lost_keys` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_lost_keys(
    store: *const CStore,
    visit: Visit,
    context: *mut c_void,
) -> c_int {
    call(|| visit_all(opened(store)?.store.lost_keys()?, visit, context))
}

/// `outlast_lost_partitions` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_lost_partitions(
    store: *const CStore,
    partitions: *mut usize,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    call(|| write_list(&opened(store)?.store.lost_partitions()?, partitions, capacity, count))
}

/// `outlast_partition_of` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_partition_of(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
    partition: *mut usize,
) -> c_int {
    call(|| {
        write_result(partition, opened(store)?.store.partition_of(bytes(key, key_len)?)?);
        Ok(Status::Ok)
    })
}

/// `outlast_accept_loss` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_accept_loss(store: *const CStore, partitions: *mut usize) -> c_int {
    call(|| {
        write_result(partitions, opened(store)?.store.accept_loss()?.len());
        Ok(Status::Ok)
    })
}

/// `outlast_accept_loss_of` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_accept_loss_of(
    store: *const CStore,
    partitions: *const usize,
    count: usize,
) -> c_int {
    call(|| done(opened(store)?.store.accept_loss_of(items(partitions, count)?)))
}

/// A C function that is called when data is lost.
pub type Listener =
    Option<unsafe extern "C" fn(context: *mut c_void, partitions: *const usize, count: usize)>;

/// `outlast_on_loss` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_on_loss(
    store: *const CStore,
    listener: Listener,
    context: *mut c_void,
) -> c_int {
    call(|| {
        let listener = listener.ok_or_else(|| invalid("the function listener is NULL"))?;
        let context = Context(context);
        opened(store)?.store.on_loss(move |partitions| {
            // SAFETY: the caller passed the function, and the context that belongs to it.
            unsafe { listener(context.get(), partitions.as_ptr(), partitions.len()) }
        });
        Ok(Status::Ok)
    })
}

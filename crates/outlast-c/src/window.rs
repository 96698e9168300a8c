//! Windows: memory that the members of a communicator show to each other, and locks on it.

use crate::call::{
    CallResult, Failure, borrow_handle, bytes, call, done, give_handle, invalid, items, items_mut,
    take_handle, write_result,
};
use crate::comm::write_ranks;
use crate::status::Status;
use outlast::rma::{Communicator, LockKind, Update, Window, WindowError, WindowResult};
use std::ffi::{c_int, c_void};
use std::time::Duration;

pub(crate) fn update(op: c_int) -> Result<Update, Failure> {
    Ok(match op {
        0 => Update::And,
        1 => Update::Or,
        2 => Update::Min,
        3 => Update::Max,
        4 => Update::Sum,
        5 => Update::Xor,
        6 => Update::Replace,
        7 => Update::Keep,
        _ => return Err(invalid(format!("{op} is no operation on words"))),
    })
}

pub(crate) fn lock_kind(kind: c_int) -> Result<LockKind, Failure> {
    Ok(match kind {
        1 => LockKind::Shared,
        2 => LockKind::Exclusive,
        _ => return Err(invalid(format!("{kind} is no kind of lock"))),
    })
}

/// The answer of a call that takes locks: a lock of a dead holder is held, too.
fn locked(result: WindowResult<()>) -> CallResult {
    match result {
        Err(WindowError::Abandoned { .. }) => Ok(Status::Abandoned),
        other => done(other),
    }
}

/// `outlast_window_allocate` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_allocate(
    comm: *const Communicator,
    len: u64,
    window: *mut *mut Window,
) -> c_int {
    call(|| {
        let comm = borrow_handle(comm)?;
        give_handle(window, || Ok(Window::allocate(comm, len)?))
    })
}

/// `outlast_window_open` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_open(
    comm: *const Communicator,
    len: u64,
    window: *mut *mut Window,
) -> c_int {
    call(|| {
        let comm = borrow_handle(comm)?;
        give_handle(window, || Ok(Window::open(comm, len)?))
    })
}

/// Ends a window, and frees its handle if there is nothing left of the window.
fn end(window: *mut Window, end: impl FnOnce(&Window) -> WindowResult<()>) -> CallResult {
    let ended = done(end(borrow_handle(window)?));
    let is_over = |failure: &Failure| failure.status == Status::Closed as c_int;
    if ended.as_ref().err().is_none_or(is_over) {
        drop(take_handle(window)?);
    }
    ended
}

/// `outlast_window_free` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_free(window: *mut Window) -> c_int {
    call(|| end(window, Window::free))
}

/// `outlast_window_close` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_close(window: *mut Window) -> c_int {
    call(|| end(window, Window::close))
}

/// `outlast_window_discard` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_discard(window: *mut Window) {
    drop(take_handle(window));
}

/// `outlast_window_len` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_len(window: *const Window, target: u32, len: *mut u64) -> c_int {
    call(|| {
        write_result(len, borrow_handle(window)?.len(target as usize)?);
        Ok(Status::Ok)
    })
}

/// `outlast_window_put` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_put(
    window: *const Window,
    target: u32,
    offset: u64,
    data: *const c_void,
    len: usize,
) -> c_int {
    call(|| done(borrow_handle(window)?.put(target as usize, offset, bytes(data, len)?)))
}

/// `outlast_window_put_blocking` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_put_blocking(
    window: *const Window,
    target: u32,
    offset: u64,
    data: *const c_void,
    len: usize,
) -> c_int {
    call(|| done(borrow_handle(window)?.put_blocking(target as usize, offset, bytes(data, len)?)))
}

/// `outlast_window_get` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_get(
    window: *const Window,
    target: u32,
    offset: u64,
    buffer: *mut c_void,
    len: usize,
) -> c_int {
    call(|| {
        let buffer = items_mut(buffer.cast(), len)?;
        done(borrow_handle(window)?.get(target as usize, offset, buffer))
    })
}

/// `outlast_window_accumulate_u64` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_accumulate_u64(
    window: *const Window,
    target: u32,
    offset: u64,
    op: c_int,
    values: *const u64,
    count: usize,
) -> c_int {
    call(|| {
        let (window, values) = (borrow_handle(window)?, items(values, count)?);
        done(window.accumulate(target as usize, offset, update(op)?, values))
    })
}

/// `outlast_window_accumulate_i64` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_accumulate_i64(
    window: *const Window,
    target: u32,
    offset: u64,
    op: c_int,
    values: *const i64,
    count: usize,
) -> c_int {
    call(|| {
        let (window, values) = (borrow_handle(window)?, items(values, count)?);
        done(window.accumulate(target as usize, offset, update(op)?, values))
    })
}

/// `outlast_window_fetch_and_op_u64` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_fetch_and_op_u64(
    window: *const Window,
    target: u32,
    offset: u64,
    op: c_int,
    value: u64,
    before: *mut u64,
) -> c_int {
    call(|| {
        let window = borrow_handle(window)?;
        let old = window.fetch_and_op(target as usize, offset, update(op)?, value)?;
        write_result(before, old);
        Ok(Status::Ok)
    })
}

/// `outlast_window_fetch_and_op_i64` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_fetch_and_op_i64(
    window: *const Window,
    target: u32,
    offset: u64,
    op: c_int,
    value: i64,
    before: *mut i64,
) -> c_int {
    call(|| {
        let window = borrow_handle(window)?;
        let old = window.fetch_and_op(target as usize, offset, update(op)?, value)?;
        write_result(before, old);
        Ok(Status::Ok)
    })
}

/// `outlast_window_compare_and_swap` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_compare_and_swap(
    window: *const Window,
    target: u32,
    offset: u64,
    expected: u64,
    new: u64,
    before: *mut u64,
) -> c_int {
    call(|| {
        let window = borrow_handle(window)?;
        let old = window.compare_and_swap(target as usize, offset, expected, new)?;
        write_result(before, old);
        Ok(Status::Ok)
    })
}

/// `outlast_window_flush` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_flush(window: *const Window, target: u32) -> c_int {
    call(|| done(borrow_handle(window)?.flush(target as usize)))
}

/// `outlast_window_flush_all` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_flush_all(window: *const Window) -> c_int {
    call(|| done(borrow_handle(window)?.flush_all()))
}

/// `outlast_window_lock` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_lock(window: *const Window, target: u32, kind: c_int) -> c_int {
    call(|| locked(borrow_handle(window)?.lock(target as usize, lock_kind(kind)?)))
}

/// `outlast_window_lock_within` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_lock_within(
    window: *const Window,
    target: u32,
    kind: c_int,
    milliseconds: u64,
) -> c_int {
    call(|| {
        let limit = Duration::from_millis(milliseconds);
        locked(borrow_handle(window)?.lock_within(target as usize, lock_kind(kind)?, limit))
    })
}

/// `outlast_window_lock_all` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_lock_all(window: *const Window) -> c_int {
    call(|| locked(borrow_handle(window)?.lock_all()))
}

/// `outlast_window_unlock` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_unlock(window: *const Window, target: u32) -> c_int {
    call(|| done(borrow_handle(window)?.unlock(target as usize)))
}

/// `outlast_window_unlock_all` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_unlock_all(window: *const Window) -> c_int {
    call(|| done(borrow_handle(window)?.unlock_all()))
}

/// `outlast_window_force_unlock` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_force_unlock(
    window: *const Window,
    target: u32,
    ranks: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    call(|| {
        // Checked before the call, which has its effect once.
        items_mut(ranks, capacity)?;
        let lost = borrow_handle(window)?.force_unlock(target as usize)?;
        write_ranks(&lost, ranks, capacity, count)
    })
}

/// `outlast_window_holders` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_holders(
    window: *const Window,
    target: u32,
    ranks: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    call(|| write_ranks(&borrow_handle(window)?.holders(target as usize)?, ranks, capacity, count))
}

/// `outlast_window_check_lock` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_check_lock(window: *const Window, target: u32) -> c_int {
    call(|| done(borrow_handle(window)?.check_lock(target as usize)))
}

/// `outlast_window_revoke` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_revoke(window: *const Window) -> c_int {
    call(|| done(borrow_handle(window)?.revoke()))
}

/// `outlast_window_is_revoked` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_is_revoked(window: *const Window) -> c_int {
    borrow_handle(window).map_or(0, |window| c_int::from(window.is_revoked()))
}

/// `outlast_window_get_failed` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_get_failed(
    window: *const Window,
    ranks: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    call(|| write_ranks(&borrow_handle(window)?.get_failed(), ranks, capacity, count))
}

/// `outlast_window_shrink` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_shrink(
    window: *const Window,
    ranks: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    call(|| {
        // Checked before the call, which has its effect once.
        items_mut(ranks, capacity)?;
        write_ranks(&borrow_handle(window)?.shrink()?, ranks, capacity, count)
    })
}

/// `outlast_window_grow` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_grow(window: *const Window, len: u64, now: *mut u64) -> c_int {
    call(|| {
        write_result(now, borrow_handle(window)?.grow(len)?);
        Ok(Status::Ok)
    })
}

/// `outlast_window_attach` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_attach(
    window: *const Window,
    len: u64,
    offset: *mut u64,
) -> c_int {
    call(|| {
        if offset.is_null() {
            return Err(invalid("the place for the offset is NULL"));
        }
        write_result(offset, borrow_handle(window)?.attach(len)?);
        Ok(Status::Ok)
    })
}

/// `outlast_window_detach` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_detach(window: *const Window, offset: u64) -> c_int {
    call(|| done(borrow_handle(window)?.detach(offset)))
}

/// `outlast_window_bytes_aside` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_bytes_aside(window: *const Window, aside: *mut u64) -> c_int {
    call(|| {
        write_result(aside, borrow_handle(window)?.bytes_aside()?);
        Ok(Status::Ok)
    })
}

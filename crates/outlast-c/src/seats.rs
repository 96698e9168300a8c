//! Seats for C: ranks with memory that outlive the processes which hold them.
//!
//! `outlast_seats_run` calls a function of the program once for each seat that this member holds,
//! each in a thread of its own. The handle of a seat is a reference to the seat of the library, and
//! is valid until the function returns.

use crate::call::{
    Context, Failure, SizedStruct, borrow_handle, bytes, call, copy_out, done, invalid, items,
    items_mut, last_message, opened, options_at, write_result,
};
use crate::status::Status;
use crate::store::CStore;
use crate::window::{lock_kind, update};
use outlast::protect::{self, Interval, Level, Point, Protect, ProtectResult, Seat};
use std::ffi::{c_int, c_void};
use std::time::Duration;

/// A C function that is called for each seat.
pub type SeatBody = Option<unsafe extern "C" fn(context: *mut c_void, seat: *const Seat) -> c_int>;

/// A C function that looks at something outside of the seats.
pub type Look = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        buffer: *mut c_void,
        capacity: usize,
        len: *mut usize,
    ) -> c_int,
>;

/// `outlast_seat_options` of the header; zero is the default of each option but `bytes`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CSeatOptions {
    struct_size: usize,
    bytes: u64,
    interval_ms: u64,
    mtbf_ms: u64,
    patience_ms: u64,
    gather_ms: u64,
    set: u32,
    lose: u32,
    apart_depth: u32,
    strict: u32,
    piece: u32,
    room: u32,
    give_up: u32,
    logs: u64,
}

// SAFETY: `repr(C)`, the size first, and zero is valid for numbers.
unsafe impl SizedStruct for CSeatOptions {
    const NAME: &'static str = "outlast_seat_options";
}

fn protect_options(given: &CSeatOptions) -> Protect {
    let mut options = Protect::new(given.bytes);
    if given.set != 0 {
        options = options.set(given.set as usize);
    }
    if given.lose != 0 {
        options = options.lose(given.lose as usize);
    }
    if given.apart_depth != 0 {
        options = options.apart(Level::Depth(given.apart_depth as usize));
    }
    if given.strict != 0 {
        options = options.strict();
    }
    if given.piece != 0 {
        options = options.piece(given.piece as usize);
    }
    if given.room != 0 {
        options = options.room(given.room as usize);
    }
    if given.give_up != 0 {
        options = options.give_up(u64::from(given.give_up));
    }
    if given.interval_ms != 0 {
        options = options.every(Interval::Time(Duration::from_millis(given.interval_ms)));
    }
    if given.mtbf_ms != 0 {
        options = options.every(Interval::Daly { mtbf: Duration::from_millis(given.mtbf_ms) });
    }
    if given.patience_ms != 0 {
        options = options.patience(Duration::from_millis(given.patience_ms));
    }
    if given.gather_ms != 0 {
        options = options.gather(Duration::from_millis(given.gather_ms));
    }
    if given.logs != 0 {
        options = options.logged(given.logs);
    }
    options
}

/// `outlast_seats_run` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seats_run(
    store: *const CStore,
    options: *const CSeatOptions,
    body: SeatBody,
    context: *mut c_void,
) -> c_int {
    call(|| {
        let store = opened(store)?;
        let given = options_at(options)?;
        let given = given.ok_or_else(|| invalid("the options are NULL; bytes has no default"))?;
        let body = body.ok_or_else(|| invalid("the function body is NULL"))?;
        let context = Context(context);
        done(protect::run(&store.store, protect_options(&given), move |seat| {
            // SAFETY: the caller passed the function, and the context that belongs to it. The seat
            // lives during the call.
            match unsafe { body(context.get(), std::ptr::from_ref(seat)) } {
                0 => Ok(()),
                // The message of the call that failed inside the function. A code of the program's
                // own has none.
                code => Err(format!("its function returned {code}: {}", last_message())),
            }
        }))
    })
}

/// `outlast_seat_number` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_number(seat: *const Seat) -> u32 {
    borrow_handle(seat).map_or(u32::MAX, |seat| seat.number() as u32)
}

/// `outlast_seat_count` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_count(seat: *const Seat) -> u32 {
    borrow_handle(seat).map_or(0, |seat| seat.seats() as u32)
}

/// `outlast_seat_bytes` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_bytes(seat: *const Seat) -> u64 {
    borrow_handle(seat).map_or(0, Seat::bytes)
}

/// `outlast_seat_is_replaying` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_is_replaying(seat: *const Seat) -> c_int {
    borrow_handle(seat).map_or(0, |seat| c_int::from(seat.is_replaying()))
}

/// `outlast_seat_is_whole` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_is_whole(seat: *const Seat, is_whole: *mut c_int) -> c_int {
    call(|| {
        write_result(is_whole, c_int::from(borrow_handle(seat)?.is_whole()?));
        Ok(Status::Ok)
    })
}

/// `outlast_seat_note` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_note(
    seat: *const Seat,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> c_int {
    call(|| match borrow_handle(seat)?.note() {
        None => Ok(Status::Absent),
        Some(note) => copy_out(note, buffer, capacity, len),
    })
}

/// `outlast_seat_remember` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_remember(
    seat: *const Seat,
    look: Look,
    context: *mut c_void,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> c_int {
    call(|| {
        let look = look.ok_or_else(|| invalid("the function look is NULL"))?;
        let bytes = borrow_handle(seat)?.try_remember(|| {
            let mut seen = 0;
            items_mut::<u8>(buffer.cast(), capacity)?;
            // SAFETY: the caller passed the function, the context that belongs to it, and a buffer
            // of this capacity.
            match unsafe { look(context, buffer, capacity, &mut seen) } {
                0 if seen <= capacity => Ok(bytes(buffer, seen)?.to_vec()),
                0 => {
                    let message = format!("{seen} bytes were seen, more than {capacity}");
                    Err(invalid(message))
                }
                status => Err(Failure { status, message: last_message() }),
            }
        })?;
        copy_out(&bytes, buffer, capacity, len)
    })
}

/// `outlast_seat_put` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_put(
    seat: *const Seat,
    target: u32,
    offset: u64,
    data: *const c_void,
    len: usize,
) -> c_int {
    call(|| done(borrow_handle(seat)?.put(target as usize, offset, bytes(data, len)?)))
}

/// `outlast_seat_get` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_get(
    seat: *const Seat,
    target: u32,
    offset: u64,
    buffer: *mut c_void,
    len: usize,
) -> c_int {
    call(|| {
        let buffer = items_mut(buffer.cast(), len)?;
        done(borrow_handle(seat)?.get(target as usize, offset, buffer))
    })
}

/// `outlast_seat_accumulate_u64` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_accumulate_u64(
    seat: *const Seat,
    target: u32,
    offset: u64,
    op: c_int,
    values: *const u64,
    count: usize,
) -> c_int {
    call(|| {
        let (seat, values) = (borrow_handle(seat)?, items(values, count)?);
        done(seat.accumulate(target as usize, offset, update(op)?, values))
    })
}

/// `outlast_seat_accumulate_i64` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_accumulate_i64(
    seat: *const Seat,
    target: u32,
    offset: u64,
    op: c_int,
    values: *const i64,
    count: usize,
) -> c_int {
    call(|| {
        let (seat, values) = (borrow_handle(seat)?, items(values, count)?);
        done(seat.accumulate(target as usize, offset, update(op)?, values))
    })
}

/// `outlast_seat_fetch_and_op_u64` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_fetch_and_op_u64(
    seat: *const Seat,
    target: u32,
    offset: u64,
    op: c_int,
    value: u64,
    before: *mut u64,
) -> c_int {
    call(|| {
        let seat = borrow_handle(seat)?;
        write_result(before, seat.fetch_and_op(target as usize, offset, update(op)?, value)?);
        Ok(Status::Ok)
    })
}

/// `outlast_seat_fetch_and_op_i64` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_fetch_and_op_i64(
    seat: *const Seat,
    target: u32,
    offset: u64,
    op: c_int,
    value: i64,
    before: *mut i64,
) -> c_int {
    call(|| {
        let seat = borrow_handle(seat)?;
        write_result(before, seat.fetch_and_op(target as usize, offset, update(op)?, value)?);
        Ok(Status::Ok)
    })
}

/// `outlast_seat_compare_and_swap` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_compare_and_swap(
    seat: *const Seat,
    target: u32,
    offset: u64,
    expected: u64,
    desired: u64,
    before: *mut u64,
) -> c_int {
    call(|| {
        let seat = borrow_handle(seat)?;
        write_result(before, seat.compare_and_swap(target as usize, offset, expected, desired)?);
        Ok(Status::Ok)
    })
}

/// `outlast_seat_flush` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_flush(seat: *const Seat, target: u32) -> c_int {
    call(|| done(borrow_handle(seat)?.flush(target as usize)))
}

/// `outlast_seat_flush_all` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_flush_all(seat: *const Seat) -> c_int {
    call(|| done(borrow_handle(seat)?.flush_all()))
}

/// `outlast_seat_lock` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_lock(seat: *const Seat, target: u32, kind: c_int) -> c_int {
    call(|| done(borrow_handle(seat)?.lock(target as usize, lock_kind(kind)?)))
}

/// `outlast_seat_unlock` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_unlock(seat: *const Seat, target: u32) -> c_int {
    call(|| done(borrow_handle(seat)?.unlock(target as usize)))
}

/// `outlast_seat_barrier` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_barrier(seat: *const Seat) -> c_int {
    call(|| done(borrow_handle(seat)?.barrier()))
}

/// Makes a call of a point, and tells whether all seats are saved.
fn point(
    seat: *const Seat,
    (note, note_len): (*const c_void, usize),
    is_saved: *mut c_int,
    make: fn(&Seat, &[u8]) -> ProtectResult<Point>,
) -> c_int {
    call(|| {
        let made = make(borrow_handle(seat)?, bytes(note, note_len)?)?;
        write_result(is_saved, c_int::from(made == Point::Saved));
        Ok(Status::Ok)
    })
}

/// `outlast_seat_barrier_point` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_barrier_point(
    seat: *const Seat,
    note: *const c_void,
    note_len: usize,
    is_saved: *mut c_int,
) -> c_int {
    point(seat, (note, note_len), is_saved, Seat::barrier_point)
}

/// `outlast_seat_point` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_seat_point(
    seat: *const Seat,
    note: *const c_void,
    note_len: usize,
    is_saved: *mut c_int,
) -> c_int {
    point(seat, (note, note_len), is_saved, Seat::point)
}

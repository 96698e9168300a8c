//! Communicators: groups of members that exchange messages, call collective operations and recover
//! together.

use crate::call::{
    CallResult, Failure, borrow_handle, borrow_handle_mut, bytes, call, copy_out, done, found,
    give_handle, invalid, items, items_mut, opened, take_handle, write_list, write_result,
};
use crate::job::CJob;
use crate::status::Status;
use outlast::MemberId;
use outlast::rma::{Communicator, Op, Source, Tag};
use std::ffi::{c_int, c_void};

/// `OUTLAST_ANY` of the header.
const ANY: i64 = -1;

pub(crate) fn source(from: i64) -> Result<Source, Failure> {
    match usize::try_from(from) {
        Ok(rank) => Ok(Source::Rank(rank)),
        Err(_) if from == ANY => Ok(Source::Any),
        Err(_) => Err(invalid(format!("{from} is no rank; -1 is any rank"))),
    }
}

pub(crate) fn tag_of(tag: i64) -> Result<Tag, Failure> {
    match u32::try_from(tag) {
        Ok(tag) => Ok(Tag::Is(tag)),
        Err(_) if tag == ANY => Ok(Tag::Any),
        Err(_) => Err(invalid(format!("{tag} is no tag; -1 is any tag"))),
    }
}

fn reduction(op: c_int) -> Result<Op, Failure> {
    Ok(match op {
        0 => Op::And,
        1 => Op::Or,
        2 => Op::Min,
        3 => Op::Max,
        4 => Op::Sum,
        _ => return Err(invalid(format!("{op} is no operation of a reduction"))),
    })
}

/// The ranks in a list of the library, as C has them.
pub(crate) fn write_ranks(
    list: &[usize],
    ranks: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> CallResult {
    let list: Vec<u32> = list.iter().map(|&rank| rank as u32).collect();
    write_list(&list, ranks, capacity, count)
}

/// `outlast_comm_world` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_world(job: *const CJob, comm: *mut *mut Communicator) -> c_int {
    call(|| {
        let job = opened(job)?;
        give_handle(comm, || Ok(Communicator::world(job)?))
    })
}

/// `outlast_comm_duplicate` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_duplicate(
    comm: *const Communicator,
    made: *mut *mut Communicator,
) -> c_int {
    call(|| {
        let comm = borrow_handle(comm)?;
        give_handle(made, || Ok(comm.duplicate()?))
    })
}

/// `outlast_comm_split` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_split(
    comm: *const Communicator,
    color: i64,
    key: i64,
    made: *mut *mut Communicator,
) -> c_int {
    call(|| {
        let comm = borrow_handle(comm)?;
        let color = match u32::try_from(color) {
            Ok(color) => Some(color),
            Err(_) if color == ANY => None,
            Err(_) => return Err(invalid(format!("{color} is no colour; -1 is none"))),
        };
        if made.is_null() {
            return Err(invalid("the place for the new handle is NULL"));
        }
        write_result(made, std::ptr::null_mut());
        match comm.split(color, key)? {
            Some(part) => give_handle(made, || Ok(part)),
            None => Ok(Status::Absent),
        }
    })
}

/// `outlast_comm_shrink` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_shrink(
    comm: *const Communicator,
    made: *mut *mut Communicator,
) -> c_int {
    call(|| {
        let comm = borrow_handle(comm)?;
        give_handle(made, || Ok(comm.shrink()?))
    })
}

/// `outlast_comm_free` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_free(comm: *mut Communicator) -> c_int {
    call(|| {
        let comm = take_handle(comm)?;
        match comm.free() {
            // The communicator of all members cannot be freed: only this handle of it ends.
            Err(outlast::rma::Error::Invalid { .. }) => Ok(Status::Ok),
            other => done(other),
        }
    })
}

/// `outlast_comm_rank` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_rank(comm: *const Communicator) -> u32 {
    borrow_handle(comm).map_or(u32::MAX, |comm| comm.rank() as u32)
}

/// `outlast_comm_size` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_size(comm: *const Communicator) -> u32 {
    borrow_handle(comm).map_or(0, |comm| comm.size() as u32)
}

/// `outlast_comm_member` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_member(
    comm: *const Communicator,
    rank: u32,
    member: *mut u32,
) -> c_int {
    call(|| {
        write_result(member, borrow_handle(comm)?.member(rank as usize)?.0);
        Ok(Status::Ok)
    })
}

/// `outlast_comm_rank_of` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_rank_of(
    comm: *const Communicator,
    member: u32,
    rank: *mut u32,
) -> c_int {
    call(|| {
        let found_rank = borrow_handle(comm)?.rank_of(MemberId(member));
        if let Some(found_rank) = found_rank {
            write_result(rank, found_rank as u32);
        }
        found(found_rank.is_some())
    })
}

/// `outlast_comm_send` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_send(
    comm: *const Communicator,
    to: u32,
    tag: u32,
    message: *const c_void,
    len: usize,
) -> c_int {
    call(|| done(borrow_handle(comm)?.send(to as usize, tag, bytes(message, len)?)))
}

/// `outlast_comm_receive` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_receive(
    comm: *const Communicator,
    from: i64,
    tag: i64,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
    sender: *mut u32,
    sent_tag: *mut u32,
) -> c_int {
    call(|| {
        let room = items_mut(buffer.cast(), capacity)?;
        match borrow_handle(comm)?.receive_into(source(from)?, tag_of(tag)?, room) {
            Ok((rank, tag, received)) => {
                write_result(len, received);
                write_result(sender, rank as u32);
                write_result(sent_tag, tag);
                Ok(Status::Ok)
            }
            Err(error) => {
                if let outlast::rma::Error::Truncated { len: needed, .. } = error {
                    write_result(len, needed);
                }
                Err(error.into())
            }
        }
    })
}

/// `outlast_comm_probe` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_probe(
    comm: *const Communicator,
    from: i64,
    tag: i64,
    len: *mut usize,
    sender: *mut u32,
    sent_tag: *mut u32,
) -> c_int {
    call(|| {
        let next = borrow_handle(comm)?.probe(source(from)?, tag_of(tag)?)?;
        if let Some((rank, tag, waiting)) = next {
            write_result(len, waiting);
            write_result(sender, rank as u32);
            write_result(sent_tag, tag);
        }
        found(next.is_some())
    })
}

/// `outlast_comm_barrier` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_barrier(comm: *const Communicator) -> c_int {
    call(|| done(borrow_handle(comm)?.barrier()))
}

/// `outlast_comm_broadcast` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_broadcast(
    comm: *const Communicator,
    root: u32,
    message: *mut c_void,
    len: usize,
) -> c_int {
    call(|| {
        let message = items_mut(message.cast(), len)?;
        done(borrow_handle(comm)?.broadcast(root as usize, message))
    })
}

/// `outlast_comm_allreduce_u64` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_allreduce_u64(
    comm: *const Communicator,
    op: c_int,
    values: *mut u64,
    count: usize,
) -> c_int {
    call(|| done(borrow_handle(comm)?.allreduce_u64(reduction(op)?, items_mut(values, count)?)))
}

/// `outlast_comm_allreduce_i64` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_allreduce_i64(
    comm: *const Communicator,
    op: c_int,
    values: *mut i64,
    count: usize,
) -> c_int {
    call(|| done(borrow_handle(comm)?.allreduce_i64(reduction(op)?, items_mut(values, count)?)))
}

/// `outlast_comm_allreduce_f64` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_allreduce_f64(
    comm: *const Communicator,
    op: c_int,
    values: *mut f64,
    count: usize,
) -> c_int {
    call(|| done(borrow_handle(comm)?.allreduce_f64(reduction(op)?, items_mut(values, count)?)))
}

/// `outlast_comm_allgather` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_allgather(
    comm: *const Communicator,
    part: *const c_void,
    len: usize,
    buffer: *mut c_void,
    capacity: usize,
    lens: *mut usize,
) -> c_int {
    call(|| {
        let comm = borrow_handle(comm)?;
        let lens = items_mut(lens, if lens.is_null() { 0 } else { comm.size() })?;
        // Checked before the call, which is collective.
        items_mut::<u8>(buffer.cast(), capacity)?;
        let gathered = comm.allgather(bytes(part, len)?)?;
        lens.iter_mut().zip(&gathered).for_each(|(place, part)| *place = part.len());
        copy_out(&gathered.concat(), buffer, capacity, std::ptr::null_mut())
    })
}

/// `outlast_comm_revoke` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_revoke(comm: *const Communicator) -> c_int {
    call(|| done(borrow_handle(comm)?.revoke()))
}

/// `outlast_comm_is_revoked` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_is_revoked(comm: *const Communicator) -> c_int {
    borrow_handle(comm).map_or(0, |comm| c_int::from(comm.is_revoked()))
}

/// `outlast_comm_agree` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_agree(comm: *const Communicator, flags: *mut u64) -> c_int {
    call(|| {
        let (comm, flags) = (borrow_handle(comm)?, borrow_handle_mut(flags)?);
        let agreed = comm.agree_despite_failures(*flags)?;
        *flags = agreed.flags;
        if agreed.unacknowledged.is_empty() {
            return Ok(Status::Ok);
        }
        Err(outlast::rma::Error::ProcFailed { ranks: agreed.unacknowledged }.into())
    })
}

/// `outlast_comm_failure_ack` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_failure_ack(comm: *const Communicator) -> c_int {
    call(|| done(borrow_handle(comm)?.failure_ack()))
}

/// `outlast_comm_get_acked` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_get_acked(
    comm: *const Communicator,
    ranks: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    call(|| write_ranks(&borrow_handle(comm)?.failure_get_acked()?, ranks, capacity, count))
}

/// `outlast_comm_get_failed` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_get_failed(
    comm: *const Communicator,
    ranks: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    call(|| write_ranks(&borrow_handle(comm)?.get_failed()?, ranks, capacity, count))
}

/// `outlast_comm_interrupt` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_interrupt(comm: *const Communicator, rank: u32) -> c_int {
    call(|| done(borrow_handle(comm)?.interrupt(rank as usize)))
}

/// `outlast_comm_notify_failures` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_notify_failures(
    comm: *const Communicator,
    ranks: *const u32,
    count: usize,
) -> c_int {
    call(|| {
        let ranks: Vec<usize> = items(ranks, count)?.iter().map(|&rank| rank as usize).collect();
        done(borrow_handle(comm)?.notify_failures(&ranks))
    })
}

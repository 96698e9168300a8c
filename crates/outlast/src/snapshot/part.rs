//! One member's part of a snapshot, from the frost to the file on the disk; an activity of its own.
//!
//! Every wait for the next order ends: by the order, by the death of the one who gives them, or by a time limit. Whatever
//! ends it, the store is thawed and the list is dropped, so that nobody is held up and no memory is kept.

use super::Shared;
use super::file::{Header, Writer};
use super::folder::Unfinished;
use super::note::Note;
use crate::engine::{Epoch, MemberId, Time};
use crate::store::CutPart;
use crate::sync::lock;
use std::time::Duration;

/// How often to look whether operations have ended: nobody rings for that.
const LOOK: Duration = Duration::from_micros(200);
/// Does this member's part.
pub(super) fn take_part(shared: &Shared, from: MemberId, id: u64, epoch: Epoch, limit: Duration) {
    let answer = match play(shared, from, id, epoch, limit) {
        Ok(answer) => answer,
        Err(Stop::Stale) => Note::Stale { id },
        Err(Stop::Failed(reason)) => Note::Failed { id, reason },
        Err(Stop::Dropped) => return,
    };
    shared.answer(from, answer);
}

/// Why the part is not done.
enum Stop {
    /// The view is another one.
    Stale,
    /// The one who takes the snapshot no longer wants it, or is dead, or late.
    Dropped,
    Failed(String),
}

impl<E: std::error::Error> From<E> for Stop {
    fn from(error: E) -> Stop {
        Stop::Failed(error.to_string())
    }
}

/// Thaws the store however this ends.
struct Thaw<'a>(&'a Shared);

impl Drop for Thaw<'_> {
    fn drop(&mut self) {
        self.0.store.unfreeze();
    }
}

fn play(
    shared: &Shared,
    from: MemberId,
    id: u64,
    epoch: Epoch,
    limit: Duration,
) -> Result<Note, Stop> {
    let (store, job) = (&shared.store, shared.job());
    let began = job.now();
    let until = began.after(limit);
    if job.epoch() != epoch {
        return Err(Stop::Stale);
    }
    store.freeze(until);
    let frost = Thaw(shared);
    let mut under_way = None;
    while !store.is_quiet(&mut under_way)? {
        if job.now() >= until {
            return Err(Stop::Failed(format!("a call has been under way for {limit:?}")));
        }
        if is_over(shared, from, id) {
            return Err(Stop::Dropped);
        }
        let bell = job.bell();
        job.park(bell, until.min(job.now().after(LOOK)));
    }
    shared.answer(from, Note::Quiet { id });
    wait_for(shared, from, id, until, |note| matches!(note, Note::List { .. }))?;
    let part = store.list_cut(epoch)?.ok_or(Stop::Stale)?;
    let (partitions, sum) = (part.partitions, part.partition_sum);
    shared.answer(from, Note::Listed { id, partitions, sum });
    // The others may take as long as they are allowed to; the frost's own limit ends it for the writers.
    wait_for(shared, from, id, until.after(limit), |note| matches!(note, Note::Thaw { .. }))?;
    let in_time = store.unfreeze();
    drop(frost);
    // Nobody was held up for longer than the frost's limit, whoever was stopped meanwhile.
    let frozen_ns = until.min(job.now()).since(began).as_nanos() as u64;
    shared.answer(from, Note::Thawed { id, in_time, frozen_ns });
    let patience = job.now().after(limit + job.time_limit());
    let write = wait_for(shared, from, id, patience, |note| matches!(note, Note::Write { .. }))?;
    let Note::Write { number, taken_at, .. } = write else { return Err(Stop::Dropped) };
    let header = Header {
        generation: number,
        member: job.me().0,
        members: job.members() as u32,
        replicas: store.replicas() as u32,
        taken_at,
    };
    write_part(shared, from, id, &header, &part)
}

/// Writes the file, no faster than allowed.
fn write_part(
    shared: &Shared,
    from: MemberId,
    id: u64,
    header: &Header,
    part: &CutPart<'_>,
) -> Result<Note, Stop> {
    let job = shared.job();
    let path = Unfinished::at(&shared.folder, header.generation).part(header.member);
    let said = |error: std::io::Error| Stop::Failed(format!("{}: {error}", path.display()));
    let mut writer = Writer::create(&path, header).map_err(|error| match error.kind() {
        // The one who takes the snapshot has made the folder.
        std::io::ErrorKind::NotFound => Stop::Failed(format!(
            "{}: {error}; name one folder at all members, on a file system that all hosts share",
            path.display()
        )),
        _ => said(error),
    })?;
    let (began, mut value, mut next_sign) = (job.now(), Vec::new(), job.now());
    // The one who takes the snapshot waits for as long as this goes on.
    let show_life = |next: &mut Time| {
        if job.now() >= *next {
            *next = job.now().after(job.time_limit() / 4);
            shared.answer(from, Note::Writing { id });
        }
    };
    for index in 0..part.len() {
        let (key, owner, version) = part.read(index, &mut value)?;
        writer.add(key, &value, owner, version).map_err(said)?;
        show_life(&mut next_sign);
        if let Some(rate) = shared.options.bytes_per_second {
            let due = began.after(Duration::from_secs_f64(writer.bytes() as f64 / rate as f64));
            while job.now() < due {
                job.park(job.bell(), due.min(next_sign));
                show_life(&mut next_sign);
                if is_over(shared, from, id) {
                    return Err(Stop::Dropped);
                }
            }
        }
        if index % 256 == 0 && is_over(shared, from, id) {
            return Err(Stop::Dropped);
        }
    }
    let totals = writer.finish().map_err(said)?;
    Ok(Note::Written {
        id,
        records: totals.records,
        bytes: totals.bytes,
        checksum: u64::from(totals.checksum),
    })
}

/// Whether the one who takes the snapshot no longer wants this part.
fn is_over(shared: &Shared, from: MemberId, id: u64) -> bool {
    shared.job().has_ended() || !shared.job().view().is_living(from) || shared.is_dropped(from, id)
}

/// Waits for the next order.
fn wait_for(
    shared: &Shared,
    from: MemberId,
    id: u64,
    until: Time,
    is_it: impl Fn(&Note) -> bool,
) -> Result<Note, Stop> {
    let job = shared.job();
    loop {
        let bell = job.bell();
        shared.receive();
        {
            let mut orders = lock(&shared.orders);
            // What is left of earlier ones goes.
            orders.retain(|(_, note)| note.id() == id || matches!(note, Note::Freeze { .. }));
            if let Some(index) = orders.iter().position(|(_, note)| note.id() == id && is_it(note))
            {
                return Ok(orders.remove(index).1);
            }
        }
        if is_over(shared, from, id) || job.now() >= until {
            return Err(Stop::Dropped);
        }
        job.park(bell, until);
    }
}

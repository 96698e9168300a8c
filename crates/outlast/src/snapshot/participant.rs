//! A participant of a snapshot: one member's work, from the write freeze to its part on the disk.
//!
//! It runs as an activity of its own, which the background starts on the order to freeze
//! ([`Message::Freeze`]). Every wait for the next order ends: by the order, by its cancellation, by
//! the death of the coordinator, or by a time limit. However the work ends, the store is unfrozen
//! and the list of records is dropped, so that no writer waits and no memory is kept.

use super::Shared;
use super::file::{Header, Writer};
use super::folder::Unfinished;
use super::message::Message;
use crate::engine::{Epoch, MemberId, Time};
use crate::store::CutPart;
use crate::sync::lock;
use std::time::Duration;

/// The time between two checks whether writes in flight have ended. No bell rings for that.
const DRAIN_INTERVAL: Duration = Duration::from_micros(200);

/// This member's work for an attempt.
struct Participant<'a> {
    shared: &'a Shared,
    coordinator: MemberId,
    /// The attempt.
    id: u64,
}

/// Why a part was not written.
enum ParticipantError {
    /// The view is not the one of the attempt.
    Stale,
    /// The coordinator has cancelled the attempt, is dead, or gave no order in time.
    Cancelled,
    /// An order could not be carried out, for this reason.
    Failed(String),
}

impl<E: std::error::Error> From<E> for ParticipantError {
    fn from(error: E) -> ParticipantError {
        ParticipantError::Failed(error.to_string())
    }
}

/// Unfreezes the store when it is dropped.
struct Unfreeze<'a>(&'a Shared);

impl Drop for Unfreeze<'_> {
    fn drop(&mut self) {
        self.0.store.unfreeze();
    }
}

/// Does this member's work for the attempt `id`, and answers the coordinator.
pub(super) fn participate(
    shared: &Shared,
    coordinator: MemberId,
    id: u64,
    epoch: Epoch,
    limit: Duration,
) {
    let participant = Participant { shared, coordinator, id };
    let answer = match participant.run(epoch, limit) {
        Ok(answer) => answer,
        Err(ParticipantError::Stale) => Message::Stale { id },
        Err(ParticipantError::Failed(reason)) => Message::Failed { id, reason },
        Err(ParticipantError::Cancelled) => return,
    };
    participant.answer(answer);
}

impl Participant<'_> {
    /// Carries out the orders one after the other. Returns the last answer.
    fn run(&self, epoch: Epoch, limit: Duration) -> Result<Message, ParticipantError> {
        let (store, job, id) = (&self.shared.store, self.shared.job(), self.id);
        let began = job.now();
        let until = began.after(limit);
        if job.epoch() != epoch {
            return Err(ParticipantError::Stale);
        }

        // cut.freeze, cut.drain
        store.freeze(until);
        let unfreeze = Unfreeze(self.shared);
        let mut in_flight = None;
        while !store.is_quiet(&mut in_flight)? {
            if job.now() >= until {
                return Err(ParticipantError::Failed(format!(
                    "a call has been in flight for {limit:?}"
                )));
            }
            if self.is_cancelled() {
                return Err(ParticipantError::Cancelled);
            }
            let bell = job.bell();
            job.park(bell, until.min(job.now().after(DRAIN_INTERVAL)));
        }
        self.answer(Message::Drained { id });

        // cut.list
        self.wait_for(until, |order| matches!(order, Message::List { .. }))?;
        let part = store.list_cut(epoch)?.ok_or(ParticipantError::Stale)?;
        let (partitions, sum) = (part.partitions, part.partition_sum);
        self.answer(Message::Listed { id, partitions, sum });

        // cut.unfreeze. The other members may list for the whole limit after this member has
        // listed. Writers do not wait that long: the freeze has a limit of its own.
        self.wait_for(until.after(limit), |order| matches!(order, Message::Unfreeze { .. }))?;
        let in_time = store.unfreeze();
        drop(unfreeze);
        // No writer waited for longer than the limit of the freeze, even if this member was
        // stopped.
        let frozen_ns = until.min(job.now()).since(began).as_nanos() as u64;
        self.answer(Message::Unfrozen { id, in_time, frozen_ns });

        let until = job.now().after(limit + job.time_limit());
        let write = self.wait_for(until, |order| matches!(order, Message::Write { .. }))?;
        let Message::Write { number, token, taken_at, .. } = write else {
            return Err(ParticipantError::Cancelled);
        };
        let header = Header {
            generation: number,
            member: job.me().0,
            members: job.members() as u32,
            replicas: store.replicas() as u32,
            taken_at,
        };
        let unfinished = Unfinished::at(&self.shared.folder, number, token);
        self.write_part(&unfinished, &header, &part)
    }

    /// Writes this member's part, no faster than the options allow. Returns the last answer.
    fn write_part(
        &self,
        unfinished: &Unfinished,
        header: &Header,
        part: &CutPart<'_>,
    ) -> Result<Message, ParticipantError> {
        let (shared, job, id) = (self.shared, self.shared.job(), self.id);
        let path = unfinished.part(header.member);
        let failed = |error: std::io::Error| {
            ParticipantError::Failed(format!("{}: {error}", path.display()))
        };
        let mut writer = Writer::create(&path, header).map_err(|error| match error.kind() {
            // The coordinator has made the folder: this member looks at another file system.
            std::io::ErrorKind::NotFound => ParticipantError::Failed(format!(
                "{}: {error}; name one folder at all members, on a file system that all hosts \
                 share",
                path.display()
            )),
            _ => failed(error),
        })?;
        let (began, mut value, mut next_sign) = (job.now(), Vec::new(), job.now());
        // The coordinator waits for as long as signs of life come.
        let show_life = |next: &mut Time| {
            if job.now() >= *next {
                *next = job.now().after(job.time_limit() / 4);
                self.answer(Message::Writing { id });
            }
        };
        for index in 0..part.len() {
            let (key, owner, version) = part.read(index, &mut value)?;
            writer.add(key, &value, owner, version).map_err(failed)?;
            show_life(&mut next_sign);
            if let Some(rate) = shared.options.bytes_per_second {
                let due = began.after(Duration::from_secs_f64(writer.bytes() as f64 / rate as f64));
                while job.now() < due {
                    job.park(job.bell(), due.min(next_sign));
                    show_life(&mut next_sign);
                    if self.is_cancelled() {
                        return Err(ParticipantError::Cancelled);
                    }
                }
            }
            if index % 256 == 0 && self.is_cancelled() {
                return Err(ParticipantError::Cancelled);
            }
        }
        let totals = writer.finish().map_err(failed)?;
        Ok(Message::Written {
            id,
            records: totals.records,
            bytes: totals.bytes,
            checksum: u64::from(totals.checksum),
        })
    }

    /// Whether the attempt is over: cancelled, the coordinator is dead, or this member's job ended.
    fn is_cancelled(&self) -> bool {
        self.shared.job().has_ended()
            || !self.shared.job().view().is_living(self.coordinator)
            || self.shared.is_cancelled(self.coordinator, self.id)
    }

    /// Waits for the next order, at most until this time.
    fn wait_for(
        &self,
        until: Time,
        is_expected: impl Fn(&Message) -> bool,
    ) -> Result<Message, ParticipantError> {
        let (shared, job, id) = (self.shared, self.shared.job(), self.id);
        loop {
            let bell = job.bell();
            shared.receive();
            {
                let mut orders = lock(&shared.orders);
                // Orders of earlier attempts are no longer of use. The background needs `Freeze`.
                orders.retain(|(_, order)| {
                    order.id() == id || matches!(order, Message::Freeze { .. })
                });
                let expected =
                    orders.iter().position(|(_, order)| order.id() == id && is_expected(order));
                if let Some(index) = expected {
                    return Ok(orders.remove(index).1);
                }
            }
            if self.is_cancelled() || job.now() >= until {
                return Err(ParticipantError::Cancelled);
            }
            job.park(bell, until);
        }
    }

    fn answer(&self, answer: Message) {
        self.shared.answer(self.coordinator, answer);
    }
}

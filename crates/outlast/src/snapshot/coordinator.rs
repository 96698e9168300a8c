//! The coordinator of a snapshot: the member on which [`Snapshots::take`](super::Snapshots::take)
//! was called. It gives the orders, publishes the generation, and begins anew after a death.
//!
//! An attempt belongs to a view. A death before the order to write ends the attempt; a death after
//! it ends the attempt only if the dead member had not written its part. The coordinator then tells
//! all participants that the attempt is cancelled, and begins another attempt with a new number.

use super::message::Message;
use super::{Part, Shared, SnapshotError, Taken, Totals, Unfinished, folder, part_name};
use crate::engine::{Epoch, MemberId, MemberSet, Time};
use crate::store::{StoreError, whole_cut};
use crate::sync::lock;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How many attempts are made if members die in the middle of each.
const ATTEMPTS: usize = 8;
/// The pause before an attempt, for each attempt that was made.
const PAUSE: Duration = Duration::from_millis(10);

/// The pause of a coordinator before an attempt. Two coordinators that met pause for different
/// times, so that they do not meet again: the pauses of any two members differ in some attempt.
fn pause(member: MemberId, attempt: usize, is_busy: bool) -> Duration {
    let scattered = (u64::from(member.0) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let times = if is_busy { 1 + (scattered >> (8 * attempt) & 15) } else { 1 };
    PAUSE * attempt as u32 * times as u32
}

/// An attempt to take a snapshot.
struct Attempt {
    id: u64,
    epoch: Epoch,
    members: MemberSet,
}

/// Why an attempt gave no snapshot.
enum AttemptError {
    /// A member died, or the view changed in another way.
    ViewChanged,
    /// A member works for another attempt, or does not know yet that an earlier one is cancelled.
    Busy,
    /// Another attempt would fail, too.
    Failed(SnapshotError),
}

impl<E: Into<SnapshotError>> From<E> for AttemptError {
    fn from(error: E) -> AttemptError {
        AttemptError::Failed(error.into())
    }
}

impl Shared {
    /// Takes a snapshot, in as many attempts as are allowed.
    pub(super) fn take(&self) -> Result<Taken, SnapshotError> {
        let job = self.job();
        let mut is_busy = false;
        for attempt in 0..ATTEMPTS {
            job.sleep(pause(job.me(), attempt, is_busy));
            self.store.await_salvages()?;
            let members: MemberSet = job.view().living().collect();
            let id = u64::from(job.me().0) << 48 | self.next.fetch_add(1, Ordering::Relaxed);
            let attempt = Attempt { id, epoch: job.epoch(), members };
            if job.view().epoch != attempt.epoch {
                continue;
            }
            match self.attempt(&attempt) {
                Ok(taken) => return Ok(taken),
                Err(error) => {
                    // Participants that wait for an order stop waiting.
                    self.tell(&attempt, &Message::Cancel { id });
                    match error {
                        AttemptError::ViewChanged => is_busy = false,
                        AttemptError::Busy => is_busy = true,
                        AttemptError::Failed(error) => return Err(error),
                    }
                }
            }
        }
        Err(if is_busy {
            SnapshotError::Busy
        } else {
            SnapshotError::Interrupted { attempts: ATTEMPTS }
        })
    }

    fn attempt(&self, attempt: &Attempt) -> Result<Taken, AttemptError> {
        folder::make_private(&self.folder)?;
        let frozen_for = self.cut(attempt)?;
        // From here on every participant works for this attempt, and for no other before its part
        // is written or cancelled. This member, as a participant, refuses other attempts until this
        // one is published. So no other attempt writes files, and an unfinished generation in the
        // folder was left by members that died.
        *lock(&self.is_writing) = true;
        let taken = self.write(attempt, frozen_for);
        *lock(&self.is_writing) = false;
        taken
    }

    /// Makes a consistent cut with all members (`cut.freeze` to `cut.unfreeze`; see
    /// `store/api/cut.rs`).
    ///
    /// Returns for how long writers were held up. The participants measure it, because this member
    /// may be stopped between their answers and reading them.
    fn cut(&self, attempt: &Attempt) -> Result<Duration, AttemptError> {
        let (id, limit) = (attempt.id, self.options.freeze_limit);
        let freeze =
            Message::Freeze { id, epoch: attempt.epoch.0, limit_ns: limit.as_nanos() as u64 };
        self.ask(attempt, &freeze, limit, |answer| matches!(answer, Message::Drained { .. }))?;
        let listed = self.ask(attempt, &Message::List { id }, limit, |answer| {
            matches!(answer, Message::Listed { .. })
        })?;
        let count = |total: (u64, u64), answer: &Message| match answer {
            Message::Listed { partitions, sum, .. } => {
                (total.0 + partitions, total.1.wrapping_add(*sum))
            }
            _ => total,
        };
        if listed.values().fold((0, 0), count) != whole_cut(&self.store) {
            // While a member leaves, not all members know of it: two of them may list the records
            // of a partition, or none.
            return Err(AttemptError::ViewChanged);
        }
        let unfrozen = self.ask(attempt, &Message::Unfreeze { id }, limit, |answer| {
            matches!(answer, Message::Unfrozen { .. })
        })?;
        let mut frozen_ns_max = 0;
        for (&member, answer) in &unfrozen {
            match answer {
                Message::Unfrozen { in_time: true, frozen_ns, .. } => {
                    frozen_ns_max = frozen_ns_max.max(*frozen_ns)
                }
                _ => return Err(AttemptError::Failed(SnapshotError::Timeout { member, limit })),
            }
        }
        Ok(Duration::from_nanos(frozen_ns_max))
    }

    /// Begins a generation, has all members write their parts, and publishes it.
    fn write(&self, attempt: &Attempt, frozen_for: Duration) -> Result<Taken, AttemptError> {
        let unfinished = Unfinished::begin(&self.folder)?;
        let number = unfinished.number();
        match self.gather_parts(attempt, &unfinished) {
            Ok(parts) => {
                let records = parts.iter().map(|part| part.totals.records).sum();
                let bytes = parts.iter().map(|part| part.totals.bytes).sum();
                let path = unfinished.publish(&parts, self.options.keep)?;
                Ok(Taken { path, generation: number, records, bytes, frozen_for })
            }
            Err(error) => {
                unfinished.discard();
                Err(error)
            }
        }
    }

    /// Orders every member to write its part, and waits until all parts are written.
    ///
    /// Writing has no time limit: each sign of life prolongs the wait. A member that has written
    /// its part may die.
    fn gather_parts(
        &self,
        attempt: &Attempt,
        unfinished: &Unfinished,
    ) -> Result<Vec<Part>, AttemptError> {
        let taken_at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let taken_at = taken_at.map_or(0, |since| since.as_secs());
        let (number, token) = (unfinished.number(), unfinished.token());
        let write = Message::Write { id: attempt.id, number, token, taken_at };
        let limit = self.options.freeze_limit + self.job().time_limit();
        self.tell(attempt, &write);
        let mut until = self.job().now().after(limit);
        let is_written = |answer: &Message| matches!(answer, Message::Written { .. });
        let written = self.gather(attempt, is_written, &mut until, limit, |_| true)?;
        let part = |(member, answer): (MemberId, Message)| match answer {
            Message::Written { records, bytes, checksum, .. } => {
                let checksum = checksum as u32;
                Some(Part {
                    name: part_name(member.0),
                    totals: Totals { records, bytes, checksum },
                })
            }
            _ => None,
        };
        Ok(written.into_iter().filter_map(part).collect())
    }

    /// Sends an order and waits until each member has answered. A death ends the attempt.
    fn ask(
        &self,
        attempt: &Attempt,
        order: &Message,
        limit: Duration,
        is_expected: impl Fn(&Message) -> bool,
    ) -> Result<BTreeMap<MemberId, Message>, AttemptError> {
        let job = self.job();
        self.tell(attempt, order);
        let mut until = job.now().after(limit);
        self.gather(attempt, is_expected, &mut until, limit, |epoch| epoch == attempt.epoch)
    }

    /// Sends an order to all members of an attempt.
    fn tell(&self, attempt: &Attempt, order: &Message) {
        for member in attempt.members.iter() {
            if member == self.job().me() {
                self.accept(member, order.clone());
            } else {
                // The coordinator learns of a death while it waits for the answers.
                self.send(member, order);
            }
        }
    }

    /// Waits for an expected answer of each member. Any answer moves the end of the wait on to
    /// `limit` from now. `is_right` says whether the attempt may go on in an epoch.
    fn gather(
        &self,
        attempt: &Attempt,
        is_expected: impl Fn(&Message) -> bool,
        until: &mut Time,
        limit: Duration,
        is_right: impl Fn(Epoch) -> bool,
    ) -> Result<BTreeMap<MemberId, Message>, AttemptError> {
        let job = self.job();
        let mut answers = BTreeMap::new();
        loop {
            let bell = job.bell();
            self.receive();
            // The engine must not be called under the lock.
            let received = std::mem::take(&mut *lock(&self.answers));
            for (member, answer) in received {
                if answer.id() != attempt.id {
                    continue;
                }
                *until = (*until).max(job.now().after(limit));
                match answer {
                    Message::Failed { reason, .. } => {
                        return Err(AttemptError::Failed(SnapshotError::Member { member, reason }));
                    }
                    Message::Busy { .. } => return Err(AttemptError::Busy),
                    Message::Stale { .. } => return Err(AttemptError::ViewChanged),
                    answer if is_expected(&answer) => drop(answers.insert(member, answer)),
                    _ => {}
                }
            }
            let view = job.view();
            let mut missing = attempt.members.iter().filter(|member| !answers.contains_key(member));
            let Some(member) = missing.next() else { return Ok(answers) };
            if !is_right(view.epoch)
                || !view.is_living(member)
                || missing.any(|other| !view.is_living(other))
            {
                return Err(AttemptError::ViewChanged);
            }
            if job.has_ended() {
                return Err(AttemptError::Failed(StoreError::Closed.into()));
            }
            if job.now() >= *until {
                return Err(AttemptError::Failed(SnapshotError::Timeout { member, limit }));
            }
            job.park(bell, *until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::MEMBERS_MAX;
    use std::collections::BTreeSet;

    #[test]
    fn the_pauses_of_any_two_coordinators_differ_in_some_attempt() {
        let pauses = |member: usize| -> Vec<Duration> {
            (1..ATTEMPTS).map(|attempt| pause(MemberId(member as u32), attempt, true)).collect()
        };
        let all: BTreeSet<Vec<Duration>> = (0..MEMBERS_MAX).map(pauses).collect();
        assert_eq!(all.len(), MEMBERS_MAX);
    }
}

//! A period: the time between two rollbacks, in which each seat has one holder.
//!
//! The seats of a member share the period: whether it is over, where the seats are, and what a
//! rollback has to settle. A period is over at a member as soon as its view has the death of a
//! holder. All calls on seats then say `RolledBack`.

use super::course::{Course, SeatRecord};
use super::late::{Late, Release, Then};
use super::run::Run;
use super::{ProtectError, ProtectResult};
use crate::engine::{Done, Epoch, Error, MemberId, Operation, Pending};
use crate::image::Staged;
use crate::store::mutant;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// How long a wait for a word sleeps at most: a ring may be lost with its sender.
const POLL: Duration = Duration::from_millis(5);

pub(super) struct Period {
    pub(super) run: Arc<Run>,
    pub(super) rollback: u64,
    /// The generation from which the period begins; 0 for the beginning.
    pub(super) generation: u64,
    pub(super) holders: Vec<MemberId>,
    /// The last epoch of this member in which all holders lived. Relaxed: the number alone counts.
    epoch: AtomicU64,
    /// Whether calls say `RolledBack`. Relaxed: it goes with no other memory.
    is_over: AtomicBool,
    /// Where the memory of each seat begins in the segment of its holder.
    places: Vec<OnceLock<u64>>,
    /// Saves of this member's seats that wait for their verdict.
    pub(super) staged: Mutex<Vec<(usize, Staged)>>,
    /// Operations that were given up and may still happen.
    pub(super) late: Late,
}

impl Period {
    pub(super) fn new(run: &Arc<Run>, course: &Course) -> Period {
        Period {
            run: run.clone(),
            rollback: course.rollback,
            generation: course.generation,
            holders: course.seats.iter().map(|held| held.member).collect(),
            // No view has this epoch: the first call looks for dead holders.
            epoch: AtomicU64::new(u64::MAX),
            is_over: AtomicBool::new(false),
            places: course.seats.iter().map(|_| OnceLock::new()).collect(),
            staged: Mutex::default(),
            late: Late::default(),
        }
    }

    /// An error if the seats cannot go on: a holder died, or a seat has failed.
    #[inline]
    pub(super) fn check(&self) -> ProtectResult<()> {
        let is_as_before = self.run.job.epoch().0 == self.epoch.load(Ordering::Relaxed);
        match is_as_before && !self.is_over.load(Ordering::Relaxed) && !self.run.comm.is_revoked() {
            true => Ok(()),
            false => self.look(),
        }
    }

    /// `check` when something has changed.
    #[cold]
    fn look(&self) -> ProtectResult<()> {
        if self.run.job.has_ended() {
            return Err(ProtectError::Closed);
        }
        if self.run.comm.is_revoked()
            && let Some(fault) = self.run.course.read()?.0.fault
        {
            return Err(fault.into());
        }
        let view = self.run.job.view();
        let is_living = self.holders.iter().all(|holder| view.is_living(*holder));
        if !is_living || self.run.comm.is_revoked() || self.is_over.load(Ordering::Relaxed) {
            self.end();
            return Err(ProtectError::RolledBack);
        }
        self.epoch.store(view.epoch.0, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the period at this member.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// The holder of a seat.
    pub(super) fn holder(&self, seat: usize) -> ProtectResult<MemberId> {
        let seats = self.holders.len();
        self.holders.get(seat).copied().ok_or(ProtectError::NoSuchSeat { seat, seats })
    }

    /// The holder of a seat, and where its memory begins there.
    #[inline]
    pub(super) fn place(&self, seat: usize) -> ProtectResult<(MemberId, u64)> {
        let holder = self.holder(seat)?;
        match self.places[seat].get() {
            Some(offset) => Ok((holder, *offset)),
            None => self.find_place(seat),
        }
    }

    /// Reads where a seat is. All holders have written their records before the period began.
    fn find_place(&self, seat: usize) -> ProtectResult<(MemberId, u64)> {
        let holder = self.holder(seat)?;
        let value = self.run.store.get(&self.run.seat_key(seat))?;
        let record = value.and_then(|value| SeatRecord::decode(value.bytes()));
        if mutant("seat-adopt-without-incarnation")
            && let Some(record) = record
        {
            return Ok((record.member, record.offset));
        }
        match record {
            Some(record) if record.rollback == self.rollback && record.member == holder => {
                Ok((holder, *self.places[seat].get_or_init(|| record.offset)))
            }
            _ => {
                let reason = format!("the record of seat {seat} is not of this period");
                Err(ProtectError::Invalid { reason })
            }
        }
    }

    /// The error of a call on seats for an error of the engine: a dead target is a dead holder.
    pub(super) fn error(&self, error: Error) -> ProtectError {
        match (&error, self.check()) {
            (Error::Dead { .. }, Err(over)) => over,
            _ => error.into(),
        }
    }

    /// Starts an operation on a member's memory. The view is not named: all members take part in a
    /// rollback, so that no operation of a living member is under way across it, and members serve
    /// the dead no more before they load.
    pub(super) fn start(&self, member: MemberId, operation: Operation<'_>) -> Pending {
        self.run.job.start(Epoch::ANY, member, operation)
    }

    /// Waits for an operation. If it is not answered in time it goes to `late`.
    pub(super) fn complete(&self, pending: Pending) -> ProtectResult<Done> {
        self.complete_then(pending, Then::Nothing)
    }

    /// Waits for an operation. If it is not answered in time it goes to `late`, with what follows
    /// from it.
    pub(super) fn complete_then(&self, mut pending: Pending, then: Then) -> ProtectResult<Done> {
        let job = &self.run.job;
        let limit = job.time_limit();
        let mut until = None;
        loop {
            let bell = job.bell();
            if let Some(result) = job.poll(&mut pending) {
                return result.map_err(|error| self.error(error));
            }
            let until = *until.get_or_insert_with(|| job.now().after(limit));
            if job.now() >= until || job.has_ended() {
                let member = pending.target;
                self.late.push(pending, then);
                return Err(ProtectError::Timeout { member, limit });
            }
            job.park(bell, until);
        }
    }

    /// Waits until `found` finds something, a seat cannot go on, or this member's patience with
    /// another one is over.
    pub(super) fn wait_for<T>(
        &self,
        awaited: usize,
        limit: Duration,
        mut found: impl FnMut() -> ProtectResult<Option<T>>,
    ) -> ProtectResult<T> {
        let job = &self.run.job;
        let mut until = None;
        loop {
            let bell = job.bell();
            if let Some(found) = found()? {
                return Ok(found);
            }
            self.check()?;
            let now = job.now();
            let until = *until.get_or_insert_with(|| now.after(limit));
            if now >= until {
                return Err(ProtectError::Timeout { member: self.holder(awaited)?, limit });
            }
            job.park(bell, until.min(now.after(POLL)));
        }
    }

    /// Gives a lock back. If the holder of the seat does not answer in time, `late` does the rest.
    pub(super) fn give_back(&self, member: MemberId, release: Release) -> ProtectResult<()> {
        let mut next = Some(release);
        while let Some(release) = next {
            let pending = self.start(member, release.operation());
            let found = self.complete_then(pending, Then::Released(release))?.word();
            next = release.after(&self.run.job, found);
        }
        Ok(())
    }

    /// Waits until no operation of this member may still happen.
    pub(super) fn finish_late(&self) -> ProtectResult<()> {
        self.late.finish(&self.run.job, self.run.options.patience)
    }
}

//! A period: the time between two rollbacks.
//!
//! The seats of a member share the period: whether it is over, where the seats are, and what a
//! rollback has to settle. Without logs each seat has a single holder in it, and the period is over
//! at a member as soon as its view has the death of a holder. In logged mode a seat may get a
//! further holder, and the members agree whether the period is over. All calls on seats then say
//! `RolledBack`.

use super::course::{Course, SeatRecord};
use super::late::{Late, Release, Then};
use super::run::Run;
use super::{ProtectError, ProtectResult};
use crate::engine::deadline;
use crate::engine::{Done, Epoch, Error, MemberId, Operation, Pending};
use crate::image::Staged;
use crate::store::mutant;
use crate::sync::lock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a wait for a word sleeps at most: a ring may be lost with its sender.
const POLL: Duration = Duration::from_millis(5);

pub(super) struct Period {
    pub(super) run: Arc<Run>,
    pub(super) rollback: u64,
    /// The generation from which the period begins; 0 for the beginning.
    pub(super) generation: u64,
    /// The holder of each seat. Relaxed: an operation on the memory of a dead holder is refused.
    holders: Vec<AtomicU32>,
    /// The last epoch of this member in which all holders lived. Relaxed: the number alone counts.
    epoch: AtomicU64,
    /// Whether calls say `RolledBack`. Relaxed: it goes with no other memory.
    is_over: AtomicBool,
    /// The holder of each seat in the upper 16 bits, and below it where the memory begins in its
    /// segment, plus 1; 0 if that is not known. Relaxed: the word has both.
    places: Vec<AtomicU64>,
    /// What the closures of this member's seats and its main activity share, by seat.
    shared: Vec<Mutex<Shared>>,
    /// Saves of this member's seats that wait for their verdict.
    pub(super) staged: Mutex<Vec<(usize, Staged)>>,
    /// Operations that were given up and may still happen.
    pub(super) late: Late,
}

/// The state of a seat in logged mode, which its closure changes and the member looks at before a
/// recovery. The lock is held for a moment, so that a look orders what the closure did before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shared {
    /// The generation that counts, as far as the seat knows.
    pub(super) generation: u64,
    /// Whether the logs of the seat have all of its interval.
    pub(super) is_logging: bool,
    /// Whether the seat is in a save.
    pub(super) is_saving: bool,
    /// Whether the seat asks for a save: its logs were full, or a seat was recovered.
    pub(super) asks_for_save: bool,
    /// Whether a next holder has come to the end of the past.
    pub(super) is_live: bool,
}

/// The bits of a place that say where the memory begins.
const OFFSET_BITS: u32 = 48;

fn packed(member: MemberId, offset: u64) -> u64 {
    u64::from(member.0) << OFFSET_BITS | (offset + 1)
}

impl Period {
    pub(super) fn new(run: &Arc<Run>, course: &Course) -> Period {
        Period {
            run: run.clone(),
            rollback: course.rollback,
            generation: course.generation,
            holders: course.seats.iter().map(|held| AtomicU32::new(held.member.0)).collect(),
            // No view has this epoch: the first call looks for dead holders.
            epoch: AtomicU64::new(u64::MAX),
            is_over: AtomicBool::new(false),
            places: course.seats.iter().map(|_| AtomicU64::new(0)).collect(),
            shared: course
                .seats
                .iter()
                .map(|_| {
                    let (generation, is_logging) = (course.generation, run.options.logs != 0);
                    Mutex::new(Shared { generation, is_logging, ..Shared::default() })
                })
                .collect(),
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
        // In logged mode the members agree what follows from a death.
        let is_living = self.is_logged() || !self.has_lost();
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

    /// Whether the seats log their accesses.
    #[inline]
    pub(super) fn is_logged(&self) -> bool {
        self.run.options.logs != 0
    }

    /// The holders of all seats, by seat.
    pub(super) fn holders(&self) -> impl Iterator<Item = MemberId> {
        self.holders.iter().map(|holder| MemberId(holder.load(Ordering::Relaxed)))
    }

    /// Whether the holder of a seat is dead, as far as this member knows.
    pub(super) fn has_lost(&self) -> bool {
        let view = self.run.job.view();
        self.holders().any(|holder| !view.is_living(holder))
    }

    /// How many seats there are.
    pub(super) fn seats(&self) -> usize {
        self.holders.len()
    }

    /// The state of a seat of this member.
    pub(super) fn shared(&self, seat: usize) -> Shared {
        *lock(&self.shared[seat])
    }

    /// Changes the state of a seat of this member.
    pub(super) fn share(&self, seat: usize, change: impl FnOnce(&mut Shared)) {
        change(&mut lock(&self.shared[seat]));
    }

    /// The seat has this holder from now on.
    pub(super) fn enter(&self, seat: usize, holder: MemberId) {
        self.holders[seat].store(holder.0, Ordering::Relaxed);
        self.places[seat].store(0, Ordering::Relaxed);
    }

    /// Waits until all seats have living holders, or the period is over.
    pub(super) fn await_all_holders(&self, seat: usize) -> ProtectResult<()> {
        let patience = self.run.options.patience;
        self.wait_for(seat, patience, || Ok((!self.has_lost()).then_some(())))
    }

    /// Waits until a seat whose holder has died has its next holder, or the period is over.
    pub(super) fn await_holder(&self, seat: usize, dead: MemberId) -> ProtectResult<()> {
        self.wait_for(seat, self.run.options.patience, || {
            Ok((self.holder(seat)? != dead).then_some(()))
        })?;
        // A place that was found while the seat got its holder.
        let place = self.places[seat].load(Ordering::Relaxed);
        if place >> OFFSET_BITS == u64::from(dead.0) {
            let (set, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = self.places[seat].compare_exchange(place, 0, set, failed);
        }
        Ok(())
    }

    /// The holder of a seat.
    pub(super) fn holder(&self, seat: usize) -> ProtectResult<MemberId> {
        let seats = self.holders.len();
        let holder = self.holders.get(seat).ok_or(ProtectError::NoSuchSeat { seat, seats })?;
        Ok(MemberId(holder.load(Ordering::Relaxed)))
    }

    /// Whether it is known where the memory of a seat is.
    #[inline]
    pub(super) fn is_placed(&self, seat: usize) -> bool {
        self.places.get(seat).is_some_and(|place| place.load(Ordering::Relaxed) != 0)
    }

    /// The holder of a seat, and where its memory begins there.
    #[inline]
    pub(super) fn place(&self, seat: usize) -> ProtectResult<(MemberId, u64)> {
        match self.places.get(seat).map_or(0, |place| place.load(Ordering::Relaxed)) {
            0 => self.find_place(seat),
            place => {
                let offset = (place & ((1 << OFFSET_BITS) - 1)) - 1;
                Ok((MemberId((place >> OFFSET_BITS) as u32), offset))
            }
        }
    }

    /// Reads where a seat is. All holders have written their records before the period began, and
    /// the next holder of a seat before any member enters it.
    #[cold]
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
                self.places[seat].store(packed(holder, record.offset), Ordering::Relaxed);
                Ok((holder, record.offset))
            }
            // The next holder has come to the end of the past, and no member has entered it.
            Some(record) if self.is_logged() && record.rollback == self.rollback => {
                self.await_holder(seat, holder)?;
                self.find_place(seat)
            }
            _ => {
                let reason = format!("the record of seat {seat} is not of this period");
                Err(ProtectError::Invalid { reason })
            }
        }
    }

    /// The error of a call on seats for an error of the engine: a dead target is a dead holder. In
    /// logged mode no log covers these calls, so the period ends when all members know of the
    /// death.
    pub(super) fn error(&self, error: Error) -> ProtectError {
        match (&error, self.check()) {
            (Error::Dead { .. }, Err(over)) => over,
            (Error::Dead { .. }, Ok(())) if self.is_logged() => {
                let patience = self.run.options.patience;
                self.wait_for::<()>(0, patience, || Ok(None)).err().unwrap_or(error.into())
            }
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

    /// Waits for an operation, until the deadline of the call. If it is not answered in time it goes
    /// to `late`, with what follows from it.
    pub(super) fn complete_then(&self, mut pending: Pending, then: Then) -> ProtectResult<Done> {
        let job = &self.run.job;
        let (member, limit) = (pending.target, job.time_limit());
        let mut until = None;
        loop {
            let bell = job.bell();
            if let Some(result) = job.poll(&mut pending) {
                return result.map_err(|error| self.error(error));
            }
            let now = job.now();
            let until = *until.get_or_insert_with(|| deadline::until_answer(now, limit, member));
            if now >= until || job.has_ended() {
                self.late.push(pending, then);
                return Err(deadline::timeout(member, limit).into());
            }
            job.park(bell, until);
        }
    }

    /// Waits until `found` finds something, a seat cannot go on, this member's patience with another
    /// one is over, or the call is at its deadline.
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
            let until = *until.get_or_insert_with(|| deadline::until(now, limit));
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

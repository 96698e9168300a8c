//! Rollbacks: all seats go back to the generation that counts, or to the beginning. The beginning
//! of a run is the first rollback.
//!
//! | step | what it does | a death or stop in it |
//! |---|---|---|
//! | `stop` | calls say `RolledBack`, closures end, all operations of the member complete | a stopped member is waited for |
//! | `agree` | all members agree on the dead | the agreement goes on without the dead |
//! | `assign` | the course gives the seats of the dead to others; the first put decides | as `agree`: `restart` says that there is a further death. A stopped replica of the course is waited for |
//! | `load` | each holder serves the dead no more, settles its saves, loads the generation that counts, and writes where the seat is | as `assign` |
//! | `restart` | all members agree that all could, and that none died since `agree` | otherwise again from `assign` on |
//!
//! All living members pass `agree` before one loads, with no operation under way. So nothing of the
//! period before reaches memory that was loaded.

use super::course::{Course, Fault, SeatRecord};
use super::layout::{HIDDEN, journal_at, record_at};
use super::log;
use super::period::Period;
use super::run::{End, FINE, Run};
use super::steps::{Step, within};
use super::{Protect, ProtectError, ProtectResult};
use crate::engine::{Epoch, MemberId};
use crate::image::{ImageError, Part};
use crate::store::mutant;
use crate::sync::lock;
use std::sync::Arc;
use std::time::Duration;

/// A seat whose memory is as at the point.
pub(super) struct Loaded {
    pub(super) seat: usize,
    /// Where its memory begins in the own segment.
    pub(super) offset: u64,
    pub(super) note: Option<Vec<u8>>,
}

/// How many bytes are put at once.
const CHUNK: u64 = 4 << 20;

/// How often a member looks whether the dead are served no more.
const POLL: Duration = Duration::from_millis(1);

impl Run {
    /// Goes back after the agreement on these dead; returns the new period, and the seats of this
    /// member in it.
    pub(super) fn roll_back(
        self: &Arc<Run>,
        before: Option<Arc<Period>>,
        mut dead: Vec<MemberId>,
    ) -> Result<(Arc<Period>, Vec<Loaded>), End<ProtectError>> {
        let mut rollback = before.as_ref().map_or(0, |period| period.rollback);
        loop {
            let step = within(Step::Assign);
            self.end_service(&dead).map_err(End::Alone)?;
            let assigned = self.patiently(|| {
                self.course.assign(rollback, |course| self.next_course(course, &dead))
            });
            let course = assigned.map_err(End::Alone)?;
            if let Some(fault) = course.fault.clone()
                && course.rollback == rollback
            {
                // Of the period before: no member can assign any more.
                return Err(End::Together(fault.into()));
            }
            rollback = course.rollback;
            drop(step);
            // A fault of this rollback: another member has come further, and waits in `restart`.
            let is_faulty = course.fault.is_some();
            let mut loaded = Vec::new();
            let mut told = Ok(());
            let mut flags = 0;
            if !is_faulty {
                let _step = within(Step::Load);
                match self.load(&course, before.as_deref()) {
                    Ok(all) => (loaded, flags) = (all, FINE),
                    Err((seat, error)) => {
                        told = self.course.fail(Some(rollback), &fault_of(seat, &error));
                    }
                }
            }
            let _step = within(Step::Restart);
            let until = self.job.now().after(self.options.patience);
            let met = self.meet(flags, Some(until), None).map_err(End::Alone)?;
            told.map_err(End::Alone)?;
            if met.dead != dead {
                // Also after a fault, which `assign` finds.
                dead = met.dead;
                continue;
            }
            if met.flags & FINE != 0 {
                return Ok((Arc::new(Period::new(self, &course)), loaded));
            }
            let (course, _) = self.course.read().map_err(End::Alone)?;
            let reason = "a member could not load its seat".to_string();
            let error = ProtectError::Invalid { reason };
            return Err(End::Together(course.fault.map_or(error, ProtectError::from)));
        }
    }

    /// Waits until this member serves none of the dead any more.
    pub(super) fn end_service(&self, dead: &[MemberId]) -> ProtectResult<()> {
        let until = self.job.now().after(self.options.patience);
        loop {
            let view = self.job.view();
            let all = dead.iter().all(|member| !view.is_living(*member));
            if all {
                self.job.drain_requests_of_dead();
                if !self.job.is_serving_dead() {
                    return Ok(());
                }
            }
            if self.job.has_ended() {
                return Err(ProtectError::Closed);
            }
            let now = self.job.now();
            if now >= until {
                let limit = self.options.patience;
                return Err(ProtectError::Timeout { member: self.job.me(), limit });
            }
            self.job.park(self.job.bell(), until.min(now.after(POLL)));
        }
    }

    /// `load`: the seats of this member; or the first one that could not be loaded, and why.
    fn load(
        &self,
        course: &Course,
        before: Option<&Period>,
    ) -> Result<Vec<Loaded>, (usize, ProtectError)> {
        let staged =
            before.map_or_else(Vec::new, |period| std::mem::take(&mut *lock(&period.staged)));
        for (seat, staged) in staged {
            let settled = match staged.generation() == course.generation {
                true => self.images.keep_staged(staged),
                false => self.images.discard_staged(staged),
            };
            settled.map_err(|error| (seat, error.into()))?;
        }
        let seats = course.seats_of(self.job.me());
        let load = |seat: usize| {
            self.patiently(|| {
                let loaded = self.load_seat(course, seat)?;
                self.put_seat_record(course.rollback, seat, loaded.offset)?;
                Ok(loaded)
            })
            .map_err(|error| (seat, error))
        };
        seats.into_iter().map(load).collect()
    }

    /// Repeats a call that has timed out, as long as this member's patience with a stopped member
    /// lasts and the run goes on.
    pub(super) fn patiently<T>(
        &self,
        mut call: impl FnMut() -> ProtectResult<T>,
    ) -> ProtectResult<T> {
        let until = self.job.now().after(self.options.patience);
        loop {
            match call() {
                Err(ProtectError::Timeout { .. })
                    if self.job.now() < until && !self.comm.is_revoked() => {}
                result => return result,
            }
        }
    }

    /// Loads the generation of the course into the memory of a seat, with empty hidden words and
    /// empty logs.
    pub(super) fn load_seat(&self, course: &Course, seat: usize) -> ProtectResult<Loaded> {
        let name = self.image_name(seat);
        let mut generation = course.generation;
        let (offset, is_new) = self.take_slot(seat)?;
        if mutant("seat-rollback-one-late") && is_new {
            let all = self.images.generations(&name)?;
            generation = all.iter().copied().max().unwrap_or(0);
        } else {
            // Saves that have no verdict, and what the one that counts has replaced: a death after
            // the verdict keeps the holder itself from `free`.
            let all = self.images.generations(&name)?;
            for other in all.into_iter().filter(|other| *other != generation) {
                self.images.delete_generation(&name, other)?;
            }
        }
        let note = match () {
            () if mutant("seat-survivor-keeps") && !is_new => {
                let image = self.images.load_generation(&name, generation, 0..0);
                image.ok().map(|image| image.note().to_vec())
            }
            () if generation == 0 => {
                let zeros = vec![0; CHUNK.min(self.options.bytes) as usize];
                for from in (0..self.options.bytes).step_by(CHUNK as usize) {
                    let len = (self.options.bytes - from).min(CHUNK) as usize;
                    self.put_own(offset + HIDDEN + from, &zeros[..len])?;
                }
                None
            }
            () => {
                let me = self.job.me();
                let mut take = |Part { at, bytes, .. }: Part<'_>| {
                    Ok(self.job.put(Epoch::ANY, me, offset + HIDDEN + at, bytes)?)
                };
                let len = self.options.bytes;
                Some(self.images.load_generation_in_parts(&name, generation, len, &mut take)?)
            }
        };
        let note = match mutant("seat-wrong-note") && generation != 0 {
            true => {
                let name = self.image_name((seat + 1) % self.seats);
                self.images
                    .load_generation(&name, generation, 0..0)
                    .ok()
                    .map(|image| image.note().to_vec())
            }
            false => note,
        };
        if !mutant("seat-lock-kept") || is_new {
            self.put_own(offset, &[0; HIDDEN as usize])?;
        }
        if self.options.logs != 0 {
            let head = [course.generation, 0, 0, 0].map(u64::to_le_bytes).concat();
            let Protect { bytes, logs, .. } = self.options;
            for at in [journal_at(bytes), record_at(bytes, logs)] {
                self.put_own(offset + at + log::GENERATION, &head)?;
            }
        }
        Ok(Loaded { seat, offset, note })
    }

    /// Says where the memory of a seat of this member is.
    pub(super) fn put_seat_record(
        &self,
        rollback: u64,
        seat: usize,
        offset: u64,
    ) -> ProtectResult<()> {
        let record = SeatRecord { rollback, member: self.job.me(), offset };
        if !mutant("seat-adopt-without-incarnation") || rollback == 1 {
            self.store.put(&self.seat_key(seat), &record.encode())?;
        }
        Ok(())
    }

    /// The memory of a seat of this member, and whether the seat is new here.
    fn take_slot(&self, seat: usize) -> ProtectResult<(u64, bool)> {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.iter().find(|slot| slot.seat == Some(seat)) {
            return Ok((slot.offset, false));
        }
        match slots.iter_mut().find(|slot| slot.seat.is_none()) {
            Some(slot) => {
                slot.seat = Some(seat);
                Ok((slot.offset, true))
            }
            None => {
                let reason = format!("{} has no memory for seat {seat}", self.job.me());
                Err(ProtectError::Invalid { reason })
            }
        }
    }

    fn put_own(&self, offset: u64, bytes: &[u8]) -> ProtectResult<()> {
        Ok(self.job.put(Epoch::ANY, self.job.me(), offset, bytes)?)
    }
}

/// Why a seat that cannot be loaded ends the run.
fn fault_of(seat: usize, error: &ProtectError) -> Fault {
    match error {
        ProtectError::Image(ImageError::DataLost { .. }) => Fault::Lost { seat },
        error => Fault::Failed { seat, reason: format!("it cannot be loaded: {error}") },
    }
}

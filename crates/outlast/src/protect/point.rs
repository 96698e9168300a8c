//! Points: where the program can be taken up again.
//!
//! | step | what it does | a death or stop in it |
//! |---|---|---|
//! | `freeze` | the seat's operations are complete, and all seats are here; seat 0 says whether they save | nothing has happened |
//! | `encode` | pieces of what changed, and the descriptor, next to the generation that counts | the generation before counts |
//! | `vote` | all seats say whether they could, and no seat leaves before the verdict | as `encode` |
//! | `verdict` | the holder of seat 0 puts the course, if it is as it was | before: as `encode`; after: **the new generation counts** |
//! | `free` | what the generation before named is given up | records that no call reads |
//!
//! A death in any step ends the period at all seats, and the course says which generation counts. A
//! seat that does not know the verdict leaves its save to the rollback, which settles it.
//!
//! `barrier_point` is aligned: all seats make the call together. `point` is not: seat 0 calls for a
//! save, each seat waits at its next point, and when all are there seat 0 holds them one by one. A
//! seat that has waited long enough goes on, and the attempt is given up: another seat may wait for
//! it elsewhere.

use super::barrier::{BACK, FINE, POINT, ROOM, VOTE, YES};
use super::layout::{CALL, HIDDEN, STATE, flags_of, stamped};
use super::seat::Seat;
use super::steps::{Step, within};
use super::{ProtectError, ProtectResult};
use crate::engine::{Epoch, Operation};
use crate::store::mutant;
use crate::sync::lock;
use std::time::Duration;

/// What a point did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Point {
    /// All seats are saved: a rollback goes back to here, or to a later point.
    Saved,
    /// No save was due.
    NotDue,
    /// A save was tried and given up: a seat found no room or did not come, or a member did not
    /// answer. The generation before counts, and a later point tries again.
    PutOff,
}

/// Where a seat is in an attempt to save at points that are not aligned.
const HERE: u64 = 1;
const GONE: u64 = 2;
const HELD: u64 = 3;
/// All seats are held: no memory changes any more.
const GO: u64 = 4;
const STAGED: u64 = 5;
const NOT_STAGED: u64 = 6;
/// What seat 0 tells at the end of it.
const SAVED: u64 = 7;
const PUT_OFF: u64 = 8;
const ROLLED_BACK: u64 = 9;

impl Seat {
    /// A barrier of all seats at which they are saved together, if a save is due. After a rollback
    /// to it the closure is called with `note`, and all seats have the bytes of now.
    ///
    /// # Errors
    ///
    /// [`ProtectError::LockHeld`] if this seat holds a lock.
    pub fn barrier_point(&self, note: &[u8]) -> ProtectResult<Point> {
        let _call = self.patient_call();
        let step = within(Step::Freeze);
        self.freeze()?;
        self.in_step(|| {
            self.release()?;
            let due = |all: u64| {
                let is_due = all & ROOM == 0 || self.is_due();
                self.set_saving(is_due);
                if is_due { YES } else { 0 }
            };
            let released = self.tree(POINT | FINE, due)?;
            drop(step);
            if released & YES == 0 {
                return Ok(Point::NotDue);
            }
            self.set_saving(true);
            self.save_aligned(note)
        })
    }

    /// Saves with all seats, each of which is at its aligned point.
    fn save_aligned(&self, note: &[u8]) -> ProtectResult<Point> {
        let began = self.period.run.job.now();
        let generation = (self.period.rollback << 32) | (self.round.get() << 1);
        // A save in the past was put off, or the past would begin after it.
        let is_fine = self.has_past() || self.stage(generation, note)?;
        let voted = {
            let _step = within(Step::Vote);
            let told = VOTE | if is_fine { FINE } else { 0 };
            if mutant("seat-verdict-early") && self.number == 0 {
                let _ = self.verdict(true, generation);
            }
            self.tree(told, |all| self.verdict(all & FINE != 0, generation))?
        };
        let point = self.settle(generation, voted & (YES | BACK))?;
        if point == Point::Saved {
            let now = self.period.run.job.now();
            self.save_time.set(now.since(began));
            self.last_save.set(now);
        }
        Ok(point)
    }

    /// A point of this seat alone: here it can be taken up again. Seats need not make this call
    /// together. If seat 0 has called for a save, the call waits until all seats are at a point,
    /// or for [`Protect::gather`](super::Protect::gather), after which the save is put off. In
    /// logged mode it saves nothing.
    ///
    /// # Errors
    ///
    /// [`ProtectError::LockHeld`] if this seat holds a lock.
    pub fn point(&self, note: &[u8]) -> ProtectResult<Point> {
        let _call = self.patient_call();
        let _step = within(Step::Freeze);
        self.freeze()?;
        if self.logs.is_some() {
            return Ok(Point::NotDue);
        }
        self.in_step(|| match self.number {
            0 if self.is_due() => self.gather(note),
            0 => Ok(Point::NotDue),
            _ => self.come(note),
        })
    }

    /// `freeze`: no operation of this seat is under way, and it holds no lock.
    fn freeze(&self) -> ProtectResult<()> {
        self.check()?;
        if let Some((seat, _)) = self.held.borrow().first() {
            return Err(ProtectError::LockHeld { seat: *seat });
        }
        self.quiet()
    }

    /// Whether a save is due; seat 0 decides it.
    fn is_due(&self) -> bool {
        let since = self.period.run.job.now().since(self.last_save.get());
        self.period.run.options.every.is_due(since, self.save_time.get())
    }

    /// `encode`: writes a generation of this seat. Returns whether it could.
    fn stage(&self, generation: u64, note: &[u8]) -> ProtectResult<bool> {
        let _step = within(Step::Encode);
        let run = &self.period.run;
        let mut fault = None;
        let me = run.job.me();
        let mut read = |at: u64, buffer: &mut [u8]| {
            let read = run.job.get(Epoch::ANY, me, self.base + HIDDEN + at, buffer);
            fault = fault.take().or(read.err());
        };
        let name = run.image_name(self.number);
        let staged = run.images.stage(&name, generation, note, self.bytes(), &mut read);
        // Before the checks: a rollback settles what was staged, and the extents would be lost.
        let staged = staged.map(|staged| {
            lock(&self.period.staged).push((self.number, staged));
        });
        self.period.check()?;
        if let Some(error) = fault {
            return Err(error.into());
        }
        if let Err(error) = &staged {
            tracing::warn!(%error, seat = self.number, "a point is put off");
        }
        Ok(staged.is_ok())
    }

    /// `verdict`: what seat 0 tells all seats.
    fn verdict(&self, all: bool, generation: u64) -> u64 {
        let _step = within(Step::Verdict);
        if !all {
            return 0;
        }
        match self.period.run.course.decide(self.period.rollback, generation) {
            Ok(true) => YES,
            // A rollback came first, or will say whether it counts.
            Ok(false) | Err(_) => BACK,
        }
    }

    /// `free`: the verdict is known.
    fn settle(&self, generation: u64, verdict: u64) -> ProtectResult<Point> {
        let _step = within(Step::Free);
        if verdict & BACK != 0 {
            self.period.end();
            return Err(ProtectError::RolledBack);
        }
        let staged = {
            let mut all = lock(&self.period.staged);
            let index = all.iter().position(|(seat, _)| *seat == self.number);
            index.map(|index| all.swap_remove(index).1)
        };
        let images = &self.period.run.images;
        if verdict & YES == 0 {
            staged.map_or(Ok(()), |staged| images.discard_staged(staged))?;
            return Ok(Point::PutOff);
        }
        if let Some(staged) = staged {
            images.keep_staged(staged)?;
        }
        self.begin_logs(generation)?;
        let before = self.generation.replace(generation);
        if before != 0 {
            images.forget_generation(&self.period.run.image_name(self.number), before);
        }
        self.is_repeating.set(false);
        Ok(Point::Saved)
    }

    /// A point of seat 0 that is due: calls for all seats, and saves if all come.
    fn gather(&self, note: &[u8]) -> ProtectResult<Point> {
        let attempt = self.attempt.get() + 1;
        self.attempt.set(attempt);
        let rollback = self.period.rollback;
        let others: Vec<usize> = (1..self.seats()).collect();
        self.tell(&others, CALL, stamped(rollback, attempt, 0))?;
        let job = &self.period.run.job;
        let until = job.now().after(self.period.run.options.gather);
        let mut held = 0;
        for &seat in &others {
            // Held one by one: a seat that is here may still leave.
            let limit = until.since(job.now());
            let mut unanswered = None;
            let is_held = self.period.wait_for(seat, limit, || {
                let here = stamped(rollback, attempt, HERE);
                let found = self.swap_state(seat, here, stamped(rollback, attempt, HELD));
                let found = found.inspect_err(|error| unanswered = Some(error.clone()))?;
                Ok(match flags_of(found, rollback, attempt) {
                    Some(HERE) => Some(true),
                    Some(_) => Some(false),
                    None => None,
                })
            });
            if let Some(error) = unanswered {
                // The swap may still happen, and the seat would be held without end.
                return Err(error);
            }
            match is_held {
                Ok(true) => held += 1,
                Ok(false) | Err(ProtectError::Timeout { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        // A seat that has not come yet finds an older attempt when it comes, and does not wait.
        self.tell(&others[held..], CALL, 0)?;
        if held < others.len() {
            self.tell(&others[..held], STATE, stamped(rollback, attempt, PUT_OFF))?;
            // The next attempt waits for the interval, too.
            self.last_save.set(job.now());
            return Ok(Point::PutOff);
        }
        self.tell(&others, STATE, stamped(rollback, attempt, GO))?;
        let began = job.now();
        let generation = generation_of(rollback, attempt);
        let mut all = self.stage(generation, note)?;
        for &seat in &others {
            let patience = self.period.run.options.patience;
            all &= self.period.wait_for(seat, patience, || {
                let state = self.state_of(seat)?;
                Ok(match flags_of(state, rollback, attempt) {
                    Some(GO) => None,
                    flags => Some(flags == Some(STAGED)),
                })
            })?;
        }
        let verdict = self.verdict(all, generation);
        let told = match verdict {
            YES => SAVED,
            BACK => ROLLED_BACK,
            _ => PUT_OFF,
        };
        self.tell(&others, STATE, stamped(rollback, attempt, told))?;
        let point = self.settle(generation, verdict)?;
        let now = job.now();
        self.save_time.set(now.since(began));
        self.last_save.set(now);
        Ok(point)
    }

    /// A point of another seat: comes if it is called.
    fn come(&self, note: &[u8]) -> ProtectResult<Point> {
        let rollback = self.period.rollback;
        let called = self.own_word(CALL)?;
        let attempt = (called >> 8) & 0xffff_ffff;
        if attempt <= self.attempt.get() || called != stamped(rollback, attempt, 0) {
            return Ok(Point::NotDue);
        }
        self.attempt.set(attempt);
        let at = |state: u64| stamped(rollback, attempt, state);
        let me = self.period.run.job.me();
        let own = self.base + STATE;
        // Seat 0 changes the word only from `HERE` on.
        let before = self.own_word(STATE)?;
        self.swap(me, own, before, at(HERE))?;
        self.ring_root();
        let mut state = match self.await_state(attempt, HERE, self.period.run.options.gather) {
            Ok(state) => state,
            Err(ProtectError::Timeout { .. }) => {
                let found = self.swap(me, own, at(HERE), at(GONE))?;
                if found == at(HERE) {
                    return Ok(Point::PutOff);
                }
                found & 0xff
            }
            Err(error) => return Err(error),
        };
        let patience = self.period.run.options.patience;
        let generation = generation_of(rollback, attempt);
        let mut early = None;
        if state == HELD {
            if mutant("seat-stage-early") {
                early = Some(self.stage(generation, note)?);
            }
            // The others may still put into the memory of this seat.
            state = self.await_state(attempt, HELD, patience)?;
        }
        if state == GO {
            let is_staged = early.map_or_else(|| self.stage(generation, note), Ok)?;
            let staged = if is_staged { STAGED } else { NOT_STAGED };
            self.swap(me, own, at(GO), at(staged))?;
            self.ring_root();
            if mutant("seat-thaw-early") {
                return self.settle(generation, YES);
            }
            state = self.await_state(attempt, staged, patience)?;
        }
        match state {
            SAVED => self.settle(generation, YES),
            ROLLED_BACK => self.settle(generation, BACK),
            _ => self.settle(generation, 0),
        }
    }

    /// Waits until seat 0 has changed the own state.
    fn await_state(&self, attempt: u64, from: u64, limit: Duration) -> ProtectResult<u64> {
        self.period.wait_for(0, limit, || {
            let state = flags_of(self.own_word(STATE)?, self.period.rollback, attempt);
            Ok(state.filter(|state| *state != from))
        })
    }

    fn ring_root(&self) {
        let _ = self.period.holder(0).map(|root| self.period.run.job.ring(root));
    }

    fn swap_state(&self, seat: usize, expected: u64, new: u64) -> ProtectResult<u64> {
        let (member, base) = self.period.place(seat)?;
        self.swap(member, base + STATE, expected, new)
    }

    fn state_of(&self, seat: usize) -> ProtectResult<u64> {
        let (member, base) = self.period.place(seat)?;
        self.word(member, Operation::Load { offset: base + STATE })
    }
}

/// The generation of an attempt at points that are not aligned: no aligned point has its number.
fn generation_of(rollback: u64, attempt: u64) -> u64 {
    (rollback << 32) | (attempt << 1) | 1
}

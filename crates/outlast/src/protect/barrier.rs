//! Barriers of seats: rounds up and down a tree of words, each with a single writer.
//!
//! A seat waits for its children, tells its parent, and waits for the release of its parent. Seat 0
//! decides what the release says. A seat that dies ends the period at all others, which wait for
//! nothing any more.

use super::layout::{DOWN, TOLD_DOWN, TOLD_UP, UP, children, flags_of, parent, stamped};
use super::seat::Seat;
use super::{ProtectError, ProtectResult};
use crate::engine::{Epoch, Operation};
use crate::store::mutant;

/// The seat has nothing against it.
pub(super) const FINE: u64 = 1;
/// The kinds of rounds. Each is a bit, so that the and of different ones has none.
pub(super) const BARRIER: u64 = 1 << 1;
pub(super) const POINT: u64 = 1 << 2;
pub(super) const VOTE: u64 = 1 << 3;
const KINDS: u64 = BARRIER | POINT | VOTE;

/// What a release says, beside its kind.
pub(super) const YES: u64 = 1 << 4;
pub(super) const BACK: u64 = 1 << 5;

/// The seat asks for no save: its logs have room, and it was not recovered since the last save.
pub(super) const ROOM: u64 = 1 << 6;

/// Whether a round with this result is a part of a save.
pub(super) fn is_of_save(released: u64) -> bool {
    released & (VOTE | YES | BACK) != 0
}

impl Seat {
    /// Waits until all seats have called it. All operations of all seats from before are complete
    /// then.
    ///
    /// # Errors
    ///
    /// [`ProtectError::Invalid`] at all seats if some of them called
    /// [`Seat::barrier_point`] instead.
    pub fn barrier(&self) -> ProtectResult<()> {
        let _call = self.patient_call();
        self.quiet()?;
        self.in_step(|| {
            self.release()?;
            self.tree(BARRIER | FINE, |_| 0)
        })
        .map(drop)
    }

    /// A round of the tree. `told` goes up, combined by and; seat 0 decides by it what goes down.
    pub(super) fn tree(&self, told: u64, decide: impl FnOnce(u64) -> u64) -> ProtectResult<u64> {
        let round = self.round.get() + 1;
        self.round.set(round);
        let result = match self.replay_round(told, round)? {
            Some(released) => released,
            None => {
                let released = match self.released_before(round)? {
                    Some(released) => released,
                    None => self.arrive(told | self.room(), round, decide)?,
                };
                self.tell_children(round, released)?;
                self.note_round(round, released);
                released
            }
        };
        match result & KINDS {
            0 => {
                let reason = "the seats are in different calls: a barrier here, a point there; \
                              all have to make the same calls in the same order";
                Err(ProtectError::Invalid { reason: reason.to_string() })
            }
            _ => Ok(result),
        }
    }

    /// Waits for the children, tells the parent, and waits for the release of this round.
    fn arrive(&self, told: u64, round: u64, decide: impl FnOnce(u64) -> u64) -> ProtectResult<u64> {
        let rollback = self.period.rollback;
        let mut all = told;
        for (index, child) in children(self.number, self.seats()).enumerate() {
            all &= self.await_word(UP + index as u64 * 8, round, child)?;
        }
        match parent(self.number) {
            None if all & KINDS == 0 => Ok(0),
            None => Ok((all & KINDS) | decide(all)),
            Some((above, index)) => {
                let word = stamped(rollback, round, all);
                self.tell_in_tree(&[above], UP + index as u64 * 8, TOLD_UP, word)?;
                self.after_tell()?;
                if mutant("seat-thaw-early") && told & VOTE != 0 {
                    return Ok(told | YES);
                }
                self.await_word(DOWN, round, above)
            }
        }
    }

    fn tell_children(&self, round: u64, released: u64) -> ProtectResult<()> {
        let below: Vec<usize> = children(self.number, self.seats()).collect();
        let word = stamped(self.period.rollback, round, released);
        self.tell_in_tree(&below, DOWN, TOLD_DOWN, word)
    }

    /// Tells other seats of a round; in logged mode so that a next holder can look it up.
    fn tell_in_tree(&self, seats: &[usize], word: u64, own: u64, value: u64) -> ProtectResult<()> {
        match &self.logs {
            None => self.tell(seats, word, value),
            Some(_) => self.tell_logged(seats, word, own, value),
        }
    }

    /// Waits until a hidden word of this seat is of this round; returns its flags.
    fn await_word(&self, word: u64, round: u64, awaited: usize) -> ProtectResult<u64> {
        let limit = self.period.run.options.patience;
        self.period.wait_for(awaited, limit, || {
            let found = self.own_word(word)?;
            Ok(flags_of(found, self.period.rollback, round))
        })
    }

    /// A hidden word of this seat.
    pub(super) fn own_word(&self, word: u64) -> ProtectResult<u64> {
        let job = &self.period.run.job;
        Ok(job.load(Epoch::ANY, job.me(), self.base + word)?)
    }

    /// Puts a hidden word of other seats, and rings their holders.
    pub(super) fn tell(&self, seats: &[usize], word: u64, value: u64) -> ProtectResult<()> {
        // A load of a word: all earlier puts of this seat are seen before the puts below.
        self.own_word(word)?;
        let bytes = value.to_le_bytes();
        let mut puts = Vec::new();
        for &seat in seats {
            let (member, base) = self.period.place(seat)?;
            let put = Operation::Put { offset: base + word, data: &bytes };
            puts.push(self.period.start(member, put));
        }
        let mut result = Ok(());
        for put in puts {
            let member = put.target;
            // All of them, so that each one is complete or known to be late: a rollback waits for
            // it, and no word of this period is put over a word of the next.
            result = result.and(self.period.complete(put).map(drop));
            let _ = self.period.run.job.ring(member);
        }
        result
    }
}

//! A seat, as its closure sees it.

use super::late::Then;
use super::layout::HIDDEN;
use super::logged::Logs;
use super::period::Period;
use super::replay::Past;
use super::{ProtectError, ProtectResult};
use crate::engine::deadline::Deadline;
use crate::engine::{Pending, Time};
use crate::rma::LockKind;
use crate::store::mutant;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

/// A seat: a rank with memory that outlives the process which holds it.
///
/// The closure of [`run`](super::run()) is called with it. All seats reach its memory by
/// [`Seat::put`], [`Seat::get`] and operations on words, as a [`Window`](crate::rma::Window) of
/// MPI. A seat is used by a single thread.
pub struct Seat {
    pub(super) period: Arc<Period>,
    pub(super) number: usize,
    /// Where the memory begins in the segment of this member, hidden words first.
    pub(super) base: u64,
    note: Option<Vec<u8>>,
    /// Operations that were started and are not known to be complete.
    pub(super) pending: RefCell<Vec<Pending>>,
    /// The locks that this seat holds.
    pub(super) held: RefCell<Vec<(usize, LockKind)>>,
    /// The locks that this seat gives back, and whose holders have not answered in time.
    pub(super) unlocked_late: RefCell<Vec<usize>>,
    /// How many rounds of the tree this seat has taken part in.
    pub(super) round: Cell<u64>,
    /// A barrier or a point of this seat ended by an error while others may still be in it.
    pub(super) is_out_of_step: Cell<bool>,
    /// The last attempt to save at points that are not aligned.
    pub(super) attempt: Cell<u64>,
    /// The generation that counts, as far as this seat knows.
    pub(super) generation: Cell<u64>,
    /// Whether no generation was saved since the last rollback.
    pub(super) is_repeating: Cell<bool>,
    /// When the last save ended, and how long it took.
    pub(super) last_save: Cell<Time>,
    pub(super) save_time: Cell<Duration>,
    /// What the seat logs, in logged mode.
    pub(super) logs: Option<Logs>,
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Seat({} of {})", self.number, self.seats())
    }
}

impl Seat {
    pub(super) fn new(
        period: &Arc<Period>,
        number: usize,
        base: u64,
        note: Option<Vec<u8>>,
        past: Option<Past>,
    ) -> Seat {
        let generation = past.as_ref().map_or(period.generation, |past| past.generation);
        // A save of this period says at which round it was; a next holder begins after that.
        let is_of_period = generation >> 32 == period.rollback && past.is_some();
        let round = if is_of_period { ((generation & 0xffff_ffff) >> 1) + 1 } else { 0 };
        Seat {
            period: period.clone(),
            number,
            base,
            note,
            pending: RefCell::default(),
            held: RefCell::default(),
            unlocked_late: RefCell::default(),
            round: Cell::new(round),
            is_out_of_step: Cell::new(false),
            attempt: Cell::new(0),
            generation: Cell::new(generation),
            // The first rollback is the beginning.
            is_repeating: Cell::new(period.rollback > 1),
            last_save: Cell::new(period.run.job.now()),
            save_time: Cell::new(Duration::ZERO),
            logs: period.is_logged().then(|| Logs::new(past)),
        }
    }

    /// The number of this seat, from 0.
    pub fn number(&self) -> usize {
        self.number
    }

    /// How many seats there are: as many as the job has regular members.
    pub fn seats(&self) -> usize {
        self.period.seats()
    }

    /// How many bytes a seat has.
    pub fn bytes(&self) -> u64 {
        self.period.run.options.bytes
    }

    /// The note of the point from which the closure was called; `None` at the very beginning, when
    /// all bytes of all seats are 0.
    pub fn note(&self) -> Option<&[u8]> {
        self.note.as_deref()
    }

    /// The note as a number: for notes that are `u64::to_le_bytes`.
    ///
    /// # Errors
    ///
    /// [`ProtectError::Invalid`] if the note has another length than 8 bytes.
    pub fn note_u64(&self) -> ProtectResult<Option<u64>> {
        let Some(note) = self.note() else { return Ok(None) };
        match note.try_into() {
            Ok(bytes) => Ok(Some(u64::from_le_bytes(bytes))),
            Err(_) => {
                let reason = format!("a note of {} bytes is not a number of 8 bytes", note.len());
                Err(ProtectError::Invalid { reason })
            }
        }
    }

    /// Bytes from outside of the seats, such as the time or a key of the store, which `look` gets.
    /// For looking and not for taking: after a rollback `look` is called again.
    pub fn remember(&self, look: impl FnOnce() -> Vec<u8>) -> ProtectResult<Vec<u8>> {
        self.check()?;
        self.remember_logged(look)
    }

    /// Whether the closure may be repeating what it did before a rollback: no point has been saved
    /// since. In logged mode also whether it repeats what a dead holder did. For programs that
    /// print.
    pub fn is_replaying(&self) -> bool {
        self.is_repeating.get() || self.has_past()
    }

    /// Whether all pieces of all images are at living members: as many may die at once then as
    /// [`Protect::lose`](super::Protect::lose) says. It reads the records of all images.
    pub fn is_whole(&self) -> ProtectResult<bool> {
        self.check()?;
        let mut looked = Ok(0);
        let is_whole = self.remember_logged(|| {
            looked = self.period.run.images.pieces_missing();
            vec![u8::from(looked == Ok(0))]
        })?;
        looked?;
        Ok(is_whole == [1])
    }

    /// Begins a call that waits for operations: all its waits share a deadline. In logged mode an
    /// operation waits for the next holder of a seat, so it has the patience.
    pub(super) fn call(&self) -> Deadline {
        match self.logs {
            None => Deadline::call(|| self.period.run.job.now()),
            Some(_) => self.patient_call(),
        }
    }

    /// Begins a call that waits for other seats: all its waits share the patience.
    pub(super) fn patient_call(&self) -> Deadline {
        let run = &self.period.run;
        Deadline::call_until(run.job.now().after(run.options.patience))
    }

    /// Begins a call that makes a single operation, and waits for nothing else if it is known where
    /// the seat is.
    #[inline]
    pub(super) fn call_to(&self, seat: usize) -> Option<Deadline> {
        (!self.period.is_placed(seat)).then(|| self.call())
    }

    /// An error if this seat cannot go on.
    #[inline]
    pub(super) fn check(&self) -> ProtectResult<()> {
        self.period.check()?;
        if self.is_out_of_step.get() { Err(ProtectError::OutOfStep) } else { Ok(()) }
    }

    /// Runs the part of a barrier or a point that all seats take part in. After an error the others
    /// may still be in it, and count on this seat to change nothing. Seats that made different
    /// calls are told so together, and stay in step.
    pub(super) fn in_step<T>(&self, part: impl FnOnce() -> ProtectResult<T>) -> ProtectResult<T> {
        let result = part();
        if !matches!(result, Ok(_) | Err(ProtectError::Invalid { .. })) {
            self.is_out_of_step.set(!mutant("seat-step-kept"));
        }
        result
    }

    /// The holder of a seat, and where a range of its memory is there.
    #[inline]
    pub(super) fn locate(
        &self,
        seat: usize,
        offset: u64,
        len: usize,
    ) -> ProtectResult<(crate::MemberId, u64)> {
        self.check()?;
        let (member, base) = match seat == self.number && self.logs.is_some() {
            // A next holder has no seat record before its past is over.
            true => (self.period.run.job.me(), self.base),
            false => self.period.place(seat)?,
        };
        self.check_range(seat, offset, len)?;
        Ok((member, base + HIDDEN + offset))
    }

    /// An error if a range is outside the memory of a seat.
    #[inline]
    pub(super) fn check_range(&self, seat: usize, offset: u64, len: usize) -> ProtectResult<()> {
        let (len, bytes) = (len as u64, self.bytes());
        match offset.checked_add(len).is_some_and(|end| end <= bytes) {
            true => Ok(()),
            false => Err(ProtectError::OutOfRange { seat, offset, len, bytes }),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // A rollback waits for them.
        for pending in self.pending.take() {
            self.period.late.push(pending, Then::Nothing);
        }
    }
}

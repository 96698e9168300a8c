//! Puts, gets, operations on words, and locks of seats.
//!
//! A put or a get is a single operation of the engine, and nothing is added to it but a look at the
//! epoch. An operation that is not complete at once is kept, and `flush` completes it.
//!
//! A lock is a hidden word of the seat: 0 if it is free, the exclusive holder, or the number of
//! sharers. No lock is held at a point, so a rollback sets the words to 0: no seat is told of an
//! abandoned lock, since what it guarded is rolled back, too.

use super::late::{Release, Then};
use super::layout::{EXCLUSIVE, LOCK, WAITED_FOR};
use super::seat::Seat;
use super::{ProtectError, ProtectResult};
use crate::engine::{Epoch, MemberId, Operation, Pending};
use crate::rma::{LockKind, Update, Word};

/// How many operations are under way at most; a further one waits for all of them.
const PENDING_MAX: usize = 256;

impl Seat {
    /// Writes `data` at `offset` of the memory of `seat`. It may be complete only after
    /// [`Seat::flush`], a lock, a barrier or a point; `data` can be used again at once.
    #[inline]
    pub fn put(&self, seat: usize, offset: u64, data: &[u8]) -> ProtectResult<()> {
        if let Some(logs) = &self.logs
            && seat != self.number
        {
            return self.put_logged(logs, seat, offset, data);
        }
        let _call = self.call_to(seat);
        let (member, offset) = self.locate(seat, offset, data.len())?;
        self.keep(self.period.start(member, Operation::Put { offset, data }))
    }

    /// Fills `buffer` from `offset` of the memory of `seat`. Puts of this seat are seen.
    #[inline]
    pub fn get(&self, seat: usize, offset: u64, buffer: &mut [u8]) -> ProtectResult<()> {
        if let Some(logs) = &self.logs
            && seat != self.number
        {
            return self.get_logged(logs, seat, offset, buffer);
        }
        let _call = self.call_to(seat);
        let (member, offset) = self.locate(seat, offset, buffer.len())?;
        let job = &self.period.run.job;
        job.get(Epoch::ANY, member, offset, buffer).map_err(|error| self.period.error(error))
    }

    /// Combines `values` with the words from `offset` on, each word atomically. It may be complete
    /// only after [`Seat::flush`].
    pub fn accumulate<W: Word>(
        &self,
        seat: usize,
        offset: u64,
        update: Update,
        values: &[W],
    ) -> ProtectResult<()> {
        let _call = self.call();
        let (member, place) = self.locate_words(seat, offset, values.len())?;
        for (index, value) in values.iter().enumerate() {
            let offset = place + index as u64 * 8;
            match update {
                Update::Keep => {}
                Update::Sum => {
                    let add = Operation::FetchAdd { offset, delta: value.to_bits() };
                    self.keep(self.period.start(member, add))?;
                }
                _ => drop(self.change(member, offset, update, *value)?),
            }
        }
        Ok(())
    }

    /// Combines `value` with the word at `offset`, atomically. Returns the old word.
    pub fn fetch_and_op<W: Word>(
        &self,
        seat: usize,
        offset: u64,
        update: Update,
        value: W,
    ) -> ProtectResult<W> {
        let _call = self.call();
        let (member, offset) = self.locate_words(seat, offset, 1)?;
        let operation = match update {
            Update::Sum => Operation::FetchAdd { offset, delta: value.to_bits() },
            Update::Keep => Operation::Load { offset },
            _ => return self.change(member, offset, update, value),
        };
        Ok(W::from_bits(self.word(member, operation)?))
    }

    /// Replaces the word at `offset` by `new` if it is `expected`. Returns the old word.
    pub fn compare_and_swap<W: Word>(
        &self,
        seat: usize,
        offset: u64,
        expected: W,
        new: W,
    ) -> ProtectResult<W> {
        let _call = self.call();
        let (member, offset) = self.locate_words(seat, offset, 1)?;
        Ok(W::from_bits(self.swap(member, offset, expected.to_bits(), new.to_bits())?))
    }

    /// Completes all operations of this seat on the memory of `seat`. In logged mode puts to other
    /// seats wait for the next barrier: no seat may look before it.
    pub fn flush(&self, seat: usize) -> ProtectResult<()> {
        let _call = self.call();
        self.check()?;
        self.flush_logged()?;
        let member = self.period.holder(seat)?;
        let all = self.pending.take();
        let (now, later): (Vec<Pending>, Vec<Pending>) =
            all.into_iter().partition(|pending| pending.target == member);
        self.pending.replace(later);
        self.complete_all(now)
    }

    /// Completes all operations of this seat.
    pub fn flush_all(&self) -> ProtectResult<()> {
        let _call = self.call();
        self.check()?;
        self.flush_logged()?;
        self.complete_all(self.pending.take())
    }

    /// No operation of this seat is under way any more, also none that was given up by a time
    /// limit: what the other seats are told next comes after all of them.
    pub(super) fn quiet(&self) -> ProtectResult<()> {
        self.flush_all()?;
        self.period.finish_late()
    }

    /// Locks the memory of `seat` against other seats that lock it. Completes all operations of
    /// this seat before. Waits while other seats hold it, up to the
    /// [patience](super::Protect::patience). After a `Timeout` the seat does not hold the lock: if
    /// it is taken after all, it is given back before a later lock, barrier or point of this seat.
    pub fn lock(&self, seat: usize, kind: LockKind) -> ProtectResult<()> {
        let _call = self.patient_call();
        self.mark_interval()?;
        self.quiet()?;
        let (member, base) = self.period.place(seat)?;
        if self.held.borrow().iter().any(|(held, _)| *held == seat) {
            return Err(ProtectError::AlreadyLocked { seat });
        }
        self.unlocked_late.borrow_mut().retain(|late| *late != seat);
        let offset = base + LOCK;
        let release = Release::new(offset, kind, self.number);
        let limit = self.period.run.options.patience;
        let mut guess = 0;
        self.period.wait_for(seat, limit, || {
            loop {
                let (waited_for, holders) = (guess & WAITED_FOR, guess & !WAITED_FOR);
                let (new, is_taken) = match kind {
                    LockKind::Exclusive if holders == 0 => {
                        (waited_for | EXCLUSIVE | self.number as u64, true)
                    }
                    LockKind::Shared if holders & EXCLUSIVE == 0 => (guess + 1, true),
                    _ if waited_for != 0 => {
                        guess = 0;
                        return Ok(None);
                    }
                    _ => (guess | WAITED_FOR, false),
                };
                let swap = Operation::CompareAndSwap { offset, expected: guess, new };
                let then = if is_taken { Then::Took(guess, release) } else { Then::Nothing };
                let pending = self.period.start(member, swap);
                let found = self.period.complete_then(pending, then)?.word();
                match found == guess {
                    true if is_taken => return Ok(Some(())),
                    true => guess = new,
                    false => guess = found,
                }
            }
        })?;
        self.held.borrow_mut().push((seat, kind));
        Ok(())
    }

    /// Completes all operations of this seat and releases the lock of `seat`. After an error it can
    /// be called again. If the holder of `seat` has not answered, the lock is released at the
    /// latest when a later lock, barrier or point of this seat returns.
    pub fn unlock(&self, seat: usize) -> ProtectResult<()> {
        let _call = self.patient_call();
        let held = self.held.borrow().iter().position(|(held, _)| *held == seat);
        let Some(held) = held else {
            self.check()?;
            if !self.unlocked_late.borrow().contains(&seat) {
                return Err(ProtectError::NotLocked { seat });
            }
            self.quiet()?;
            self.unlocked_late.borrow_mut().retain(|late| *late != seat);
            return Ok(());
        };
        self.quiet()?;
        let (member, base) = self.period.place(seat)?;
        // From here on it is released by this call, or by what waits for late operations.
        let (_, kind) = self.held.borrow_mut().remove(held);
        let release = Release::new(base + LOCK, kind, self.number);
        let released = self.period.give_back(member, release);
        if matches!(released, Err(ProtectError::Timeout { .. })) {
            self.unlocked_late.borrow_mut().push(seat);
        }
        released
    }

    fn locate_words(
        &self,
        seat: usize,
        offset: u64,
        count: usize,
    ) -> ProtectResult<(MemberId, u64)> {
        if !offset.is_multiple_of(8) {
            return Err(ProtectError::Unaligned { offset });
        }
        let len = count.saturating_mul(8);
        let place = self.locate(seat, offset, len)?;
        if self.logs.is_none() {
            return Ok(place);
        }
        // The seat may get its next holder meanwhile.
        self.mark_interval()?;
        self.locate(seat, offset, len)
    }

    /// Keeps an operation until it is complete.
    #[inline]
    fn keep(&self, mut pending: Pending) -> ProtectResult<()> {
        match self.period.run.job.poll(&mut pending) {
            Some(result) => result.map(drop).map_err(|error| self.period.error(error)),
            None => {
                self.pending.borrow_mut().push(pending);
                let count = self.pending.borrow().len();
                if count < PENDING_MAX { Ok(()) } else { self.flush_all() }
            }
        }
    }

    fn complete_all(&self, pending: Vec<Pending>) -> ProtectResult<()> {
        let mut result = Ok(());
        for operation in pending {
            // All of them, so that each one is complete or known to be late.
            result = result.and(self.period.complete(operation).map(drop));
        }
        result
    }

    pub(super) fn word(&self, member: MemberId, operation: Operation<'_>) -> ProtectResult<u64> {
        Ok(self.period.complete(self.period.start(member, operation))?.word())
    }

    pub(super) fn swap(
        &self,
        member: MemberId,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> ProtectResult<u64> {
        self.word(member, Operation::CompareAndSwap { offset, expected, new })
    }

    /// Changes a word by compare-and-swap until the guess was right.
    fn change<W: Word>(
        &self,
        member: MemberId,
        offset: u64,
        update: Update,
        value: W,
    ) -> ProtectResult<W> {
        let mut guess = self.word(member, Operation::Load { offset })?;
        loop {
            let new = update.apply(guess, value.to_bits(), W::IS_SIGNED);
            let found = self.swap(member, offset, guess, new)?;
            if found == guess {
                return Ok(W::from_bits(found));
            }
            guess = found;
            self.period.check()?;
        }
    }
}

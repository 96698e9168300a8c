//! One operation's access to the members' memories, under one view.

use crate::engine::mapped::{Direct, Memory, Reach};
use crate::engine::{Done, Engine, Epoch, Error, MemberId, Operation, Pending};
use crate::store::error::StoreError;
use crate::store::operation::error::{Halt, Step};
use crate::store::operation::participants::{CROWDED, LAST, announce};
use crate::store::operation::state::OperationState;
use crate::store::segment::layout::{ACTOR_OUTCOME, ACTORS};
use crate::store::steps;
use std::cell::Cell;
use std::sync::atomic::{Ordering, fence};

/// An operation that is under way: while it exists, nothing that it may have seen is reused.
pub(in crate::store) struct Op<'a> {
    pub(in crate::store) store: &'a OperationState,
    pub(in crate::store) actor: usize,
    pub(in crate::store) epoch: Epoch,
    /// The operation's number: the actor's counter, which is odd.
    pub(in crate::store) number: u64,
    /// This member's own memory.
    mine: Reach<'a>,
    /// Where in it the actor's counter is.
    word: u64,
    /// Whether a home had no tombstone left; they come back when deleted keys have been removed.
    pub(in crate::store) lacks_tombstone: Cell<bool>,
}

impl<'a> Op<'a> {
    /// Begins an operation with the actor that this thread used last, if that can be had at once.
    #[inline(always)]
    pub(in crate::store) fn begin_again<D: Direct<'a>>(
        store: &'a OperationState,
        direct: D,
    ) -> Option<Op<'a>> {
        let (id, index) = LAST.with(Cell::get);
        // Its actor is known to the others since then.
        let actor = store.actors.actors.get(index).filter(|_| id == store.actors.id)?;
        let me = store.job.me();
        steps::enter(steps::Step::WriteEnter);
        direct.known_epoch()?;
        let mine = direct.reach(me)?;
        let even = actor.counter.load(Ordering::Relaxed);
        // As in `claim`.
        let word = store.counter_word(me, index);
        if mine.swap(word, even, even + 1) != Some(true) {
            return None;
        }
        let mut op = Op {
            store,
            actor: index,
            epoch: Epoch::ANY,
            number: even + 1,
            mine: mine.into(),
            word,
            lacks_tombstone: Cell::new(false),
        };
        op.epoch = direct.known_epoch()?;
        Some(op)
    }

    /// Begins an operation under the current view.
    #[inline]
    pub(in crate::store) fn begin(store: &'a OperationState) -> Step<Op<'a>> {
        let (id, last) = LAST.with(Cell::get);
        let first = if id == store.actors.id { last } else { 0 };
        match Op::claim(store, first)? {
            Some(op) => Ok(op),
            None => Op::begin_crowded(store, first),
        }
    }

    /// Tries this actor, then all of them: the first ones are used most, so that few have blocks at hand.
    #[inline]
    fn claim(store: &'a OperationState, first: usize) -> Step<Option<Op<'a>>> {
        let (job, me) = (&store.job, store.job.me());
        steps::enter(steps::Step::WriteEnter);
        let mine = job.reach(Epoch::ANY, me)?;
        for index in std::iter::once(first).chain(0..ACTORS) {
            if store.actors.announced.load(Ordering::Acquire) <= index {
                announce(store, index)?;
            }
            let actor = &store.actors.actors[index];
            let word = store.counter_word(me, index);
            let mut even = actor.counter.load(Ordering::Relaxed);
            // Whoever frees something after this sees that the actor is inside; what it freed before, this cannot see.
            // A second try if another thread has used the actor since it was last seen.
            for _ in 0..2 {
                let Some(is_claimed) = mine.swap(word, even, even + 1) else {
                    // The ordinary call says why, or has learned that the segment is longer by now.
                    job.load(Epoch::ANY, me, word)?;
                    return Err(Halt::Again);
                };
                if is_claimed {
                    LAST.with(|last| last.set((store.actors.id, index)));
                    let (epoch, lacks_tombstone) = (job.epoch(), Cell::new(false));
                    return Ok(Some(Op {
                        store,
                        actor: index,
                        epoch,
                        number: even + 1,
                        mine,
                        word,
                        lacks_tombstone,
                    }));
                }
                even = job.load(Epoch::ANY, me, word)?;
                if even % 2 == 1 {
                    break;
                }
            }
        }
        Ok(None)
    }

    /// Begins an operation with this very actor, if it was ever used and is not in use.
    pub(in crate::store) fn begin_as(store: &'a OperationState, index: usize) -> Option<Op<'a>> {
        if store.actors.announced.load(Ordering::Acquire) <= index {
            return None;
        }
        let (job, me, word) =
            (&store.job, store.job.me(), store.counter_word(store.job.me(), index));
        let mine = job.reach(Epoch::ANY, me).ok()?;
        let even = job.load(Epoch::ANY, me, word).ok()?;
        // As in `claim`.
        if even % 2 == 1 || mine.swap(word, even, even + 1) != Some(true) {
            return None;
        }
        let lacks_tombstone = Cell::new(false);
        Some(Op {
            store,
            actor: index,
            epoch: job.epoch(),
            number: even + 1,
            mine,
            word,
            lacks_tombstone,
        })
    }

    /// All actors are in use: waits for one.
    #[cold]
    #[inline(never)]
    fn begin_crowded(store: &'a OperationState, first: usize) -> Step<Op<'a>> {
        let job = &store.job;
        let until = job.now().after(job.time_limit());
        loop {
            let bell = job.bell();
            if let Some(op) = Op::claim(store, first)? {
                return Ok(op);
            }
            let now = job.now();
            if now >= until {
                let (member, limit) = (job.me(), job.time_limit());
                return Err(Halt::Fail(StoreError::Timeout { member, limit }));
            }
            job.park(bell, until.min(now.after(CROWDED)));
        }
    }

    /// Adopts the current view.
    pub(in crate::store) fn renew(&mut self) {
        self.epoch = self.store.job.epoch();
    }

    #[inline(always)]
    pub(in crate::store) fn load(&self, home: MemberId, offset: u64) -> Step<u64> {
        self.store.job.load(self.epoch, home, offset).map_err(|error| self.noted(home, error))
    }

    /// Loads words of several homes, those of one home in this order: in one round trip, where that is what it takes.
    #[inline(always)]
    pub(in crate::store) fn load_each<const N: usize>(
        &self,
        places: impl IntoIterator<Item = (MemberId, u64)>,
    ) -> Step<[u64; N]> {
        let mut words = [0; N];
        let job = &self.store.job;
        if job.is_mapped() {
            for (word, (home, offset)) in words.iter_mut().zip(places) {
                *word = self.load(home, offset)?;
            }
            return Ok(words);
        }
        let mut started = [const { None }; N];
        for (pending, (home, offset)) in started.iter_mut().zip(places) {
            *pending = Some(job.start(self.epoch, home, Operation::Load { offset }));
        }
        for (word, pending) in words.iter_mut().zip(started) {
            let Some(pending) = pending else { break };
            *word = self.await_answer(pending, true)?.word();
        }
        Ok(words)
    }

    /// Swaps a word; whether it was as expected.
    #[inline(always)]
    pub(in crate::store) fn swap(
        &self,
        home: MemberId,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Step<bool> {
        let found = self.store.job.compare_and_swap(self.epoch, home, offset, expected, new);
        found.map(|found| found == expected).map_err(|error| self.noted(home, error))
    }

    #[inline(always)]
    pub(in crate::store) fn put(&self, home: MemberId, offset: u64, bytes: &[u8]) -> Step<()> {
        self.store.job.put(self.epoch, home, offset, bytes).map_err(|error| self.noted(home, error))
    }

    #[inline(always)]
    pub(in crate::store) fn get(&self, home: MemberId, offset: u64, bytes: &mut [u8]) -> Step<()> {
        self.store.job.get(self.epoch, home, offset, bytes).map_err(|error| self.noted(home, error))
    }

    /// Swaps a word of a block that is this operation's, under any view; whether it was as expected.
    #[inline]
    pub(in crate::store) fn swap_own(
        &self,
        home: MemberId,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Step<bool> {
        let found = self.store.job.compare_and_swap(Epoch::ANY, home, offset, expected, new);
        found.map(|found| found == expected).map_err(|error| self.noted(home, error))
    }

    /// Waits for what was started; if the time of the call is over already, it has been answered or is late.
    pub(in crate::store) fn await_answer(
        &self,
        mut pending: Pending,
        is_patient: bool,
    ) -> Step<Done> {
        let (job, member) = (&self.store.job, pending.target);
        let answer = if is_patient {
            job.wait(pending)
        } else {
            let limit = job.time_limit();
            job.poll(&mut pending).unwrap_or(Err(Error::Timeout { member, limit }))
        };
        answer.map_err(|error| self.noted(member, error))
    }

    /// Notes what a call failed with: a request that was not answered in time may still land.
    #[cold]
    #[inline(never)]
    pub(in crate::store) fn noted(&self, home: MemberId, error: Error) -> Halt {
        if let Error::Timeout { .. } = &error {
            self.store.note_late(home);
        }
        error.into()
    }

    /// Whether the view is still the one of this operation.
    pub(in crate::store) fn is_current(&self) -> bool {
        self.store.job.epoch() == self.epoch
    }

    /// Where this actor's outcome word is.
    pub(in crate::store) fn outcome_word(&self) -> u64 {
        self.store.root(self.store.job.me()) + self.store.layout.actor(self.actor) + ACTOR_OUTCOME
    }
}

impl Drop for Op<'_> {
    #[inline]
    fn drop(&mut self) {
        let actor = &self.store.actors.actors[self.actor];
        steps::enter(steps::Step::LeaveOperation);
        // What the operation read and wrote comes before the word that says that it has ended.
        fence(Ordering::Release);
        let even = self.number + 1;
        // Refused only when this member has ended, and then nobody waits for its actors.
        self.mine.put_words(self.word, [even]);
        actor.counter.store(even, Ordering::Relaxed);
    }
}

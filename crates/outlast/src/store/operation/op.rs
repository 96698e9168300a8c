//! One operation's access to the members' memories, under one view.

use crate::engine::mapped::{Direct, Memory, Reach};
use crate::engine::{Done, Epoch, Error, MemberId, Operation, Pending};
use crate::store::error::StoreError;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::operation::participants::{CROWDED, LAST, announce};
use crate::store::operation::state::OperationState;
use crate::store::segment::layout::{PARTICIPANT_OUTCOME, PARTICIPANTS};
use crate::store::steps;
use std::cell::Cell;
use std::sync::atomic::{Ordering, fence};

/// An operation that is under way: while it exists, nothing that it may have seen is reused.
pub(in crate::store) struct Op<'a> {
    pub(in crate::store) store: &'a OperationState,
    pub(in crate::store) participant: usize,
    pub(in crate::store) epoch: Epoch,
    /// The operation's number: the participant's counter, which is odd.
    pub(in crate::store) number: u64,
    /// This member's own memory.
    mine: Reach<'a>,
    /// Where in it the participant's counter is.
    word: u64,
    /// Whether a replica had no tombstone left; they come back when deleted keys have been removed.
    pub(in crate::store) lacks_tombstone: Cell<bool>,
}

impl<'a> Op<'a> {
    /// Begins an operation with the participant that this thread used last, if that can be had at
    /// once.
    #[inline(always)]
    pub(in crate::store) fn begin_again<D: Direct<'a>>(
        store: &'a OperationState,
        direct: D,
    ) -> Option<Op<'a>> {
        let (id, index) = LAST.with(Cell::get);
        // Its participant is known to the others since then.
        let participant =
            store.participants.participants.get(index).filter(|_| id == store.participants.id)?;
        let me = store.job.me();
        steps::enter(steps::Step::WriteEnter);
        direct.known_epoch()?;
        let mine = direct.reach(me)?;
        let even = participant.counter.load(Ordering::Relaxed);
        // As in `claim`.
        let word = store.counter_word(me, index);
        if mine.swap(word, even, even + 1) != Some(true) {
            return None;
        }
        let mut op = Op {
            store,
            participant: index,
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
    pub(in crate::store) fn begin(store: &'a OperationState) -> OpResult<Op<'a>> {
        let (id, last) = LAST.with(Cell::get);
        let first = if id == store.participants.id { last } else { 0 };
        match Op::claim(store, first)? {
            Some(op) => Ok(op),
            None => Op::begin_crowded(store, first),
        }
    }

    /// Tries this participant, then all of them: the first ones are used most, so that few have
    /// blocks at hand.
    #[inline]
    fn claim(store: &'a OperationState, first: usize) -> OpResult<Option<Op<'a>>> {
        let (job, me) = (&store.job, store.job.me());
        steps::enter(steps::Step::WriteEnter);
        let mine = job.reach(Epoch::ANY, me)?;
        for index in std::iter::once(first).chain(0..PARTICIPANTS) {
            if store.participants.announced.load(Ordering::Acquire) <= index {
                announce(store, index)?;
            }
            let participant = &store.participants.participants[index];
            let word = store.counter_word(me, index);
            let mut even = participant.counter.load(Ordering::Relaxed);
            // Whoever frees something after this sees that the participant is inside; what it freed
            // before, this cannot see. A second try if another thread has used the participant
            // since it was last seen.
            for _ in 0..2 {
                let Some(is_claimed) = mine.swap(word, even, even + 1) else {
                    // The ordinary call says why, or has learned that the segment is longer by now.
                    job.load(Epoch::ANY, me, word)?;
                    return Err(OpError::Again);
                };
                if is_claimed {
                    LAST.with(|last| last.set((store.participants.id, index)));
                    let (epoch, lacks_tombstone) = (job.epoch(), Cell::new(false));
                    return Ok(Some(Op {
                        store,
                        participant: index,
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

    /// Begins an operation with this very participant, if it was ever used and is not in use.
    pub(in crate::store) fn begin_as(store: &'a OperationState, index: usize) -> Option<Op<'a>> {
        if store.participants.announced.load(Ordering::Acquire) <= index {
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
            participant: index,
            epoch: job.epoch(),
            number: even + 1,
            mine,
            word,
            lacks_tombstone,
        })
    }

    /// All participants are in use: waits for one.
    #[cold]
    #[inline(never)]
    fn begin_crowded(store: &'a OperationState, first: usize) -> OpResult<Op<'a>> {
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
                return Err(OpError::Fail(StoreError::Timeout { member, limit }));
            }
            job.park(bell, until.min(now.after(CROWDED)));
        }
    }

    /// Adopts the current view.
    pub(in crate::store) fn renew(&mut self) {
        self.epoch = self.store.job.epoch();
    }

    #[inline(always)]
    pub(in crate::store) fn load(&self, replica: MemberId, offset: u64) -> OpResult<u64> {
        self.store.job.load(self.epoch, replica, offset).map_err(|error| self.noted(replica, error))
    }

    /// Loads words of several replicas, those of one replica in this order: in one round trip,
    /// where that is what it takes.
    #[inline(always)]
    pub(in crate::store) fn load_each<const N: usize>(
        &self,
        places: impl IntoIterator<Item = (MemberId, u64)>,
    ) -> OpResult<[u64; N]> {
        let mut words = [0; N];
        let job = &self.store.job;
        if job.is_mapped() {
            for (word, (replica, offset)) in words.iter_mut().zip(places) {
                *word = self.load(replica, offset)?;
            }
            return Ok(words);
        }
        let mut started = [const { None }; N];
        for (pending, (replica, offset)) in started.iter_mut().zip(places) {
            *pending = Some(job.start(self.epoch, replica, Operation::Load { offset }));
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
        replica: MemberId,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> OpResult<bool> {
        let found = self.store.job.compare_and_swap(self.epoch, replica, offset, expected, new);
        found.map(|found| found == expected).map_err(|error| self.noted(replica, error))
    }

    #[inline(always)]
    pub(in crate::store) fn put(
        &self,
        replica: MemberId,
        offset: u64,
        bytes: &[u8],
    ) -> OpResult<()> {
        self.store
            .job
            .put(self.epoch, replica, offset, bytes)
            .map_err(|error| self.noted(replica, error))
    }

    #[inline(always)]
    pub(in crate::store) fn get(
        &self,
        replica: MemberId,
        offset: u64,
        bytes: &mut [u8],
    ) -> OpResult<()> {
        self.store
            .job
            .get(self.epoch, replica, offset, bytes)
            .map_err(|error| self.noted(replica, error))
    }

    /// Swaps a word of a block that is this operation's, under any view; whether it was as
    /// expected.
    #[inline]
    pub(in crate::store) fn swap_own(
        &self,
        replica: MemberId,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> OpResult<bool> {
        let found = self.store.job.compare_and_swap(Epoch::ANY, replica, offset, expected, new);
        found.map(|found| found == expected).map_err(|error| self.noted(replica, error))
    }

    /// Waits for what was started; if the time of the call is over already, it has been answered or
    /// is late.
    pub(in crate::store) fn await_answer(
        &self,
        mut pending: Pending,
        is_patient: bool,
    ) -> OpResult<Done> {
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
    pub(in crate::store) fn noted(&self, replica: MemberId, error: Error) -> OpError {
        if let Error::Timeout { .. } = &error {
            self.store.record_straggler(replica);
        }
        error.into()
    }

    /// Whether the view is still the one of this operation.
    pub(in crate::store) fn is_current(&self) -> bool {
        self.store.job.epoch() == self.epoch
    }

    /// Where this participant's outcome word is.
    pub(in crate::store) fn outcome_word(&self) -> u64 {
        self.store.root(self.store.job.me())
            + self.store.layout.participant(self.participant)
            + PARTICIPANT_OUTCOME
    }
}

impl Drop for Op<'_> {
    #[inline]
    fn drop(&mut self) {
        let participant = &self.store.participants.participants[self.participant];
        steps::enter(steps::Step::LeaveOperation);
        // What the operation read and wrote comes before the word that says that it has ended.
        fence(Ordering::Release);
        let even = self.number + 1;
        // Refused only when this member has ended, and then nobody waits for its participants.
        self.mine.put_words(self.word, [even]);
        participant.counter.store(even, Ordering::Relaxed);
    }
}

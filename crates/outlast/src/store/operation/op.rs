//! An operation: access to the segments of all members, under a single view.
//!
//! [`Op`] has the word and byte operations of the engine, under the epoch with which the operation
//! began. The engine refuses them when the view has changed, and they return `OpError::Again`. The
//! exceptions, which work under any view, say so.
//!
//! *Beginning and ending.* An operation claims a participant by making its operation counter odd.
//! That swap is sequentially consistent, so it is in a single order with all loads and swaps of
//! words. A member that retires a block after the swap reads an odd counter. A block that was
//! retired before the swap is out of this operation's reach. The counter becomes even by a plain
//! write, behind a release fence. A member that waits for a grace period loads the counter
//! sequentially consistent, so everything that the operation read and wrote comes before the even
//! value.
//!
//! *The reorderings that are excluded.* Each row is a pair of accesses of an activity that no
//! processor may execute in the other order, since another activity makes the mirrored pair.
//!
//! | first | then | the mirrored pair | in the other order |
//! |---|---|---|---|
//! | swap of the counter to odd | load of a head word | swap of the head word, load of the counter (grace period) | a block is reused while this operation reads it |
//! | swap of the counter to odd | load of a bucket, get of a node | put of a `next` word (`grow.unzip`, `remove.unlink`), load of the counter (grace period) | a chain changes under a lookup that is not waited for |
//! | swap of the counter to odd | load of `Configuration::epoch` | store of an invalid epoch, load of the counter (`leave.acknowledge`) | an operation with the old list is not waited for |
//! | swap of the counter to odd | load of the gate, the freeze or `is_closed` | store of the gate, the freeze or `is_closed`, load of the counter | an operation passes a closed door |
//! | swap of a head word | load of the epoch (a check after a write or a read) | raising the epoch, load of the head word | a version is acknowledged that no member of the new view sees |
//! | swap of a head word (`write.publish`) | load of a replica state (`write.catch_up`) | swap of the state to filling, load of the head word (repair) | a complete replica lacks a version |
//! | reads and writes of the operation | the counter becomes even | load of the counter, reuse of a block | a block changes while this operation reads it |
//!
//! The first six rows need a store before a load, which release and acquire do not order. On
//! x86-64 the swap alone orders them, and a sequentially consistent load costs no more than a plain
//! load. On aarch64 the load must be `ldar`, and not the weaker `ldapr` of an acquire load, which
//! may be executed before the store of the swap is visible. The last row needs release and acquire
//! only. A head word may also be read together with its node, by a `get`, whose bytes are relaxed.
//! That is enough, because the load of the epoch stands between the swap of the counter and every
//! `get` of an operation: it comes after the swap, and what follows it in the program comes after
//! it.

use crate::engine::deadline::check_late;
use crate::engine::mapped::{Mapped, Memory, Reach};
use crate::engine::{Done, Epoch, Error, MemberId, Operation, Pending, thread};
use crate::store::error::StoreError;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::operation::open_swaps::{Proof, Straggler, SwapBlocks, TakenBlock};
use crate::store::operation::participants::{CROWDED, announce};
use crate::store::operation::state::OperationState;
use crate::store::segment::layout::{BLOCK_HOLDER, PARTICIPANT_OUTCOME, PARTICIPANTS};
use crate::store::steps;
use std::cell::Cell;
use std::sync::atomic::{Ordering, fence};

/// The longest piece of a value that the background moves over a network with a single request. It
/// arrives within the shortest wait of the background (20 ms) at 13 MB/s, and a round trip for each
/// piece costs little.
const PIECE_LEN: usize = 256 << 10;

/// An operation in flight. While it exists, no block that it may have seen is reused.
pub(in crate::store) struct Op<'a> {
    pub(in crate::store) store: &'a OperationState,
    pub(in crate::store) participant: usize,
    pub(in crate::store) epoch: Epoch,
    /// The number of the operation: the value of the participant's counter, which is odd.
    pub(in crate::store) number: u64,
    /// The memory of this member.
    mine: Reach<'a>,
    /// The offset of the participant's counter in that memory.
    word: u64,
    /// Whether a replica had no block left for a tombstone. Blocks for tombstones come back when
    /// the records of deleted keys have been removed.
    pub(in crate::store) lacks_tombstone: Cell<bool>,
}

impl<'a> Op<'a> {
    /// Begins an operation under the current view. Waits while all participants are in use. Refuses
    /// to begin it once this member has closed the store.
    #[inline]
    pub(in crate::store) fn begin(store: &'a OperationState) -> OpResult<Op<'a>> {
        let (id, last) = thread::with(|state| state.last_participant.get());
        let first = if id == store.participants.id { last } else { 0 };
        match Op::claim(store, first)? {
            Some(op) => Ok(op),
            None => Op::begin_crowded(store, first),
        }
    }

    /// Tries the participant `first`, and then all participants in order. The first participants
    /// are used most, so that few magazines hold blocks.
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
            // A member that retires a block after this swap reads the odd counter. Blocks that were
            // retired before the swap are out of this operation's reach. The second try is for a
            // participant that another thread has used since this thread last saw its counter.
            for _ in 0..2 {
                let Some(is_claimed) = mine.swap(word, even, even + 1) else {
                    // The call of the engine says why the swap was refused, or has learned that the
                    // segment has grown.
                    job.load(Epoch::ANY, me, word)?;
                    return Err(OpError::Again);
                };
                if is_claimed {
                    let last = (store.participants.id, index);
                    thread::with(|state| state.last_participant.set(last));
                    let (epoch, lacks_tombstone) = (job.epoch(), Cell::new(false));
                    let number = even + 1;
                    let participant = index;
                    // Also for operations that pass the gate in any state, as those that end a
                    // transaction: the memory of a closed store may belong to something else.
                    if store.is_closed.load(Ordering::SeqCst) {
                        drop(Op { store, participant, epoch, number, mine, word, lacks_tombstone });
                        return Err(OpError::Fail(StoreError::Closed));
                    }
                    let op = Op { store, participant, epoch, number, mine, word, lacks_tombstone };
                    return Ok(Some(op));
                }
                even = job.load(Epoch::ANY, me, word)?;
                if even % 2 == 1 {
                    break;
                }
            }
        }
        Ok(None)
    }

    /// Waits for a participant while all of them are in use.
    #[cold]
    #[inline(never)]
    fn begin_crowded(store: &'a OperationState, first: usize) -> OpResult<Op<'a>> {
        let job = &store.job;
        let until = job.deadline();
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

    /// Begins an operation with the participant that this thread used last, if that participant is
    /// free. Returns `None` if it is not, or if the memory is not mapped or the view is not up to
    /// date; the caller then uses [`Op::begin`].
    #[inline(always)]
    pub(in crate::store) fn begin_again<D: Mapped<'a>>(
        store: &'a OperationState,
        direct: D,
    ) -> Option<Op<'a>> {
        let (id, index) = thread::with(|state| state.last_participant.get());
        // A participant that this thread has used was announced to the other members then.
        let participant =
            store.participants.participants.get(index).filter(|_| id == store.participants.id)?;
        let me = store.job.me();
        steps::enter(steps::Step::WriteEnter);
        if !direct.is_member() {
            return None;
        }
        let mine = direct.reach(me)?;
        let even = participant.counter.load(Ordering::Relaxed);
        // The swap claims the participant as in `claim`.
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

    /// Begins an operation with exactly this participant, if it was ever used and is not in use.
    pub(in crate::store) fn begin_as(store: &'a OperationState, index: usize) -> Option<Op<'a>> {
        if store.participants.announced.load(Ordering::Acquire) <= index {
            return None;
        }
        let (job, me, word) =
            (&store.job, store.job.me(), store.counter_word(store.job.me(), index));
        let mine = job.reach(Epoch::ANY, me).ok()?;
        let even = job.load(Epoch::ANY, me, word).ok()?;
        // The swap claims the participant as in `claim`.
        if even % 2 == 1 || mine.swap(word, even, even + 1) != Some(true) {
            return None;
        }
        let lacks_tombstone = Cell::new(false);
        let op = Op {
            store,
            participant: index,
            epoch: job.epoch(),
            number: even + 1,
            mine,
            word,
            lacks_tombstone,
        };
        // As in `claim`.
        (!store.is_closed.load(Ordering::SeqCst)).then_some(op)
    }

    /// Adopts the current view for the rest of this operation.
    pub(in crate::store) fn renew(&mut self) {
        self.epoch = self.store.job.epoch();
    }

    #[inline(always)]
    pub(in crate::store) fn load(&self, replica: MemberId, offset: u64) -> OpResult<u64> {
        self.store
            .job
            .load(self.epoch, replica, offset)
            .map_err(|error| self.op_error(replica, error))
    }

    /// Loads words of several replicas. Loads at a single replica execute in the given order. Over
    /// a network all loads together take a single round trip.
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
            *word = self.await_answer(pending)?.word();
        }
        Ok(words)
    }

    /// Swaps a word, and returns whether it was as expected.
    #[inline(always)]
    pub(in crate::store) fn swap(
        &self,
        replica: MemberId,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> OpResult<bool> {
        let found = self.store.job.compare_and_swap(self.epoch, replica, offset, expected, new);
        found.map(|found| found == expected).map_err(|error| self.op_error(replica, error))
    }

    /// Starts the swap of a word over a network and does not wait for the answer. The request may
    /// execute when this operation has ended.
    pub(in crate::store) fn start_swap(
        &self,
        replica: MemberId,
        offset: u64,
        expected: u64,
        new: u64,
    ) {
        let swap = Operation::CompareAndSwap { offset, expected, new };
        let swap = self.store.job.start(self.epoch, replica, swap);
        // Earlier requests have mostly been answered by now.
        self.store.clear_stragglers();
        self.store.announce_straggler(Straggler::landing(swap));
    }

    /// Swaps a word that names blocks, as [`Op::swap`] does. If the answer does not come in time,
    /// the stragglers keep the request, and its answer decides which block is free
    /// (`open_swaps.rs`). After `Fail` the added block is not the caller's any more.
    #[inline(always)]
    pub(in crate::store) fn swap_blocks(
        &self,
        replica: MemberId,
        offset: u64,
        expected: u64,
        new: u64,
        blocks: impl FnOnce() -> SwapBlocks,
    ) -> OpResult<bool> {
        match self.store.job.is_mapped() {
            true => self.swap(replica, offset, expected, new),
            false => self.swap_blocks_far(replica, offset, expected, new, blocks()),
        }
    }

    /// [`Op::swap_blocks`] over a network.
    #[inline(never)]
    fn swap_blocks_far(
        &self,
        replica: MemberId,
        offset: u64,
        expected: u64,
        new: u64,
        blocks: SwapBlocks,
    ) -> OpResult<bool> {
        if let Err(error) = check_late(replica) {
            self.store.free_unsent(blocks.added);
            return Err(error.into());
        }
        let swap = Operation::CompareAndSwap { offset, expected, new };
        let started = self.store.job.start(self.epoch, replica, swap);
        let found = self.await_swap(started, Proof::Found(expected), blocks, &mut None)?.word();
        Ok(found == expected)
    }

    /// Waits for the answer to a swap, or to a compound operation with a swap. After a timeout the
    /// request and the put that fills the block, if any, become a straggler.
    pub(in crate::store) fn await_swap(
        &self,
        mut request: Pending,
        proof: Proof,
        blocks: SwapBlocks,
        fill: &mut Option<Pending>,
    ) -> OpResult<Done> {
        let result = self.store.job.wait_answer(&mut request);
        if let Err(Error::Timeout { .. }) = result {
            self.store.keep_swap(request, proof, blocks, fill.take());
        }
        Ok(result?)
    }

    #[inline(always)]
    pub(in crate::store) fn put(
        &self,
        replica: MemberId,
        offset: u64,
        bytes: &[u8],
    ) -> OpResult<()> {
        if bytes.len() > PIECE_LEN && self.moves_pieces() {
            return self.put_pieces(replica, offset, bytes);
        }
        self.store
            .job
            .put(self.epoch, replica, offset, bytes)
            .map_err(|error| self.op_error(replica, error))
    }

    #[inline(always)]
    pub(in crate::store) fn get(
        &self,
        replica: MemberId,
        offset: u64,
        bytes: &mut [u8],
    ) -> OpResult<()> {
        if bytes.len() > PIECE_LEN && self.moves_pieces() {
            return self.get_pieces(replica, offset, bytes);
        }
        self.store
            .job
            .get(self.epoch, replica, offset, bytes)
            .map_err(|error| self.op_error(replica, error))
    }

    /// Whether this operation moves long values in pieces: that of the background over a network.
    /// The background waits for a single answer for a fraction of the time limit, so a value that
    /// takes longer on its way would time out at each attempt. A call of the program has the whole
    /// time limit for all its requests together, and gains nothing from pieces.
    #[cold]
    fn moves_pieces(&self) -> bool {
        self.store.is_background() && !self.store.job.is_mapped()
    }

    /// Between two pieces: serves messages, since other members may be waiting for blocks of this
    /// member, and begins and ends an operation. The replicas that watch repair would take this
    /// member for stopped if none of its operation counters changed for as long as the value moves.
    #[cold]
    fn show_pulse(&self) {
        self.store.serve_messages();
        drop(Op::claim(self.store, 0));
    }

    /// Puts bytes in pieces, each with a wait of its own. The bytes belong to a block that no head
    /// word names, so nobody sees a part of them.
    #[cold]
    #[inline(never)]
    fn put_pieces(&self, replica: MemberId, offset: u64, bytes: &[u8]) -> OpResult<()> {
        for (index, piece) in bytes.chunks(PIECE_LEN).enumerate() {
            self.show_pulse();
            self.put(replica, offset + (index * PIECE_LEN) as u64, piece)?;
        }
        Ok(())
    }

    /// Gets bytes in pieces, each with a wait of its own. The bytes belong to a version, which does
    /// not change, and whose block is not reused while this operation is in flight.
    #[cold]
    #[inline(never)]
    fn get_pieces(&self, replica: MemberId, offset: u64, bytes: &mut [u8]) -> OpResult<()> {
        for (index, piece) in bytes.chunks_mut(PIECE_LEN).enumerate() {
            self.show_pulse();
            self.get(replica, offset + (index * PIECE_LEN) as u64, piece)?;
        }
        Ok(())
    }

    /// Swaps the holder word of a block that belongs to this operation, under any view. Returns
    /// whether the word was as expected. After a timeout this member becomes the holder later.
    #[inline]
    pub(in crate::store) fn swap_holder(
        &self,
        replica: MemberId,
        block: TakenBlock,
        expected: u64,
        new: u64,
    ) -> OpResult<bool> {
        let word = block.offset + BLOCK_HOLDER;
        let found = self.store.job.compare_and_swap(Epoch::ANY, replica, word, expected, new);
        found
            .map(|found| found == expected)
            .map_err(|error| self.holder_error(replica, block, error))
    }

    /// Turns an error of the engine into an `OpError`, as [`Op::op_error`] does. After a timeout
    /// this member becomes the holder of the block later.
    #[cold]
    #[inline(never)]
    pub(in crate::store) fn holder_error(
        &self,
        replica: MemberId,
        block: TakenBlock,
        error: Error,
    ) -> OpError {
        if let Error::Timeout { .. } = &error {
            self.store.hold_later(replica, block);
        }
        error.into()
    }

    /// Waits for the answer to a request.
    pub(in crate::store) fn await_answer(&self, pending: Pending) -> OpResult<Done> {
        let member = pending.target;
        self.store.job.wait(pending).map_err(|error| self.op_error(member, error))
    }

    /// Turns an error of the engine into an `OpError`. After a timeout it records a straggler,
    /// since the request may still execute, unless it was not sent: the limit is zero then.
    #[cold]
    #[inline(never)]
    pub(in crate::store) fn op_error(&self, replica: MemberId, error: Error) -> OpError {
        if let Error::Timeout { limit, .. } = &error
            && !limit.is_zero()
        {
            self.store.record_straggler(replica);
        }
        error.into()
    }

    /// Whether the current view is still the view of this operation.
    pub(in crate::store) fn is_current(&self) -> bool {
        self.store.job.epoch() == self.epoch
    }

    /// The offset of this participant's outcome word.
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
        // Everything that the operation read and wrote comes before the word that says that it has
        // ended.
        fence(Ordering::Release);
        let even = self.number + 1;
        // The write is refused only when this member has ended, and then no member waits for its
        // participants.
        self.mine.put_words(self.word, [even]);
        participant.counter.store(even, Ordering::Relaxed);
    }
}

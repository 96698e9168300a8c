//! The allocator: taking, retiring and reusing blocks.
//!
//! An operation takes blocks from the magazine of its participant, then from the free list of the
//! replica, and then asks the replica to make a slab. If the replica does not answer soon, or has
//! no room, the call leaves its operation and waits outside (`recall.rs`). An operation that has
//! swapped a block out of a head word *retires* it. A retired block is reused after a grace period.
//! The blocks for which a magazine has no room wait in batches, a grace period for each batch, for
//! all participants of the member together. After it they go into a magazine, or back onto the free
//! list of their replica.
//!
//! docs/protocol/memory.md says what the holder word names in each state of a block, and what
//! happens if the member that has the block dies.
//!
//! A block goes onto a free list only when it is new, or right after a grace period. So an
//! operation that has read the top of a free list never finds that block there again with another
//! successor, and the compare-and-swap of the top needs no version tag (ABA). For this reason a
//! block that was taken and not used must never go back to the free list directly. It stays in a
//! magazine, or among the spare blocks of the allocator.

use crate::engine::{Epoch, Error, MemberId, Time};
use crate::store::error::StoreError;
use crate::store::memory::magazine::ROOM_MAX;
use crate::store::memory::recall::{Recalls, SEND_PAUSE};
use crate::store::memory::slab::Slabs;
use crate::store::memory::state::{MemoryOp, MemoryState};
use crate::store::mutant::mutant;
use crate::store::operation::error::{OpError, OpResult, check_place};
use crate::store::operation::grace_period::GracePeriod;
use crate::store::operation::message::Message;
use crate::store::operation::open_swaps::{SwapBlocks, TakenBlock};
use crate::store::segment::layout::{BLOCK_HOLDER, HOLDER_MASK, TOMBSTONES, class_size, holder};
use crate::store::segment::place::{KEPT_LEN_MAX, Place};
use crate::store::steps;
use crate::sync::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// How many bytes of a replica and class a magazine keeps at most. Of large blocks it keeps a
/// single block, so that two blocks can alternate.
const RING_BYTES: u64 = 32 << 10;

/// How many blocks of a replica and class a magazine keeps at least where replicas are remote,
/// since a block that is given back and taken again takes requests.
const RING_BLOCKS_FAR: usize = 4;

/// The size above which a magazine keeps fewer than [`RING_BLOCKS_FAR`] blocks of a remote replica.
const FAR_LEN_MAX: u64 = 128 << 10;

/// How many blocks for which no magazine has room are retired together before a grace period
/// begins.
const BATCH_BLOCKS: u64 = 96;

/// How many bytes of retired blocks are enough to begin a grace period.
const BATCH_BYTES: u64 = 48 << 10;

/// How many bytes are enough where replicas are remote: more, since a grace period takes requests
/// to all members.
const BATCH_BYTES_FAR: u64 = 512 << 10;

/// How many bytes for each member of the job a batch has at least.
const BATCH_BYTES_PER_MEMBER: u64 = 512;

/// How many batches may wait until a magazine is empty, where replicas are remote.
const BATCHES_FAR: usize = 3;

/// How many batches are checked in vain before the check stops.
const LOOKED_AT: usize = 8;

/// How long the background waits before it checks again whether the grace periods of large blocks
/// are over.
pub(in crate::store::memory) const LARGE_PAUSE: Duration = Duration::from_millis(50);

/// How many blocks are given back by a message, which must be short enough for
/// [`crate::engine::TRY_SEND_LEN_MAX`].
const GIVE_MAX: usize = 200;

/// How long a call waits for the answer of a replica inside of its operation, before it leaves the
/// operation.
const STAY: Duration = Duration::from_millis(5);

/// How many blocks are taken from a free list at a time.
const TAKE: usize = 4;

/// The blocks that the participants of this member share.
///
/// *Orderings.* The blocks are behind locks. `spare_count` and `batch_count` are relaxed, since
/// they only say whether it is worth taking the lock: an outdated count delays a reuse, or takes
/// the lock in vain. `looking` changes under the lock of the batches alone. `has_large` is a flag
/// to the background, and the bell rings after it was set. Release and acquire order it behind the
/// batch that it announces.
#[derive(Default)]
pub(in crate::store) struct Allocator {
    /// Blocks that were taken and not used, and for which no magazine had room, by kind.
    spare: Mutex<BTreeMap<u64, Vec<u64>>>,
    spare_count: AtomicUsize,
    /// Retired blocks for which no magazine had room, and which are in no batch yet.
    retired: Mutex<Vec<Place>>,
    pub(in crate::store::memory) batches: Mutex<Vec<Batch>>,
    batch_count: AtomicUsize,
    /// How many activities check batches that they have taken out.
    pub(in crate::store::memory) looking: AtomicUsize,
    pub(in crate::store::memory) recalls: Recalls,
    /// Whether the background has to give back blocks that are too large to be kept in a magazine.
    has_large: AtomicBool,
    /// The slabs that this member has made as a replica.
    pub(in crate::store) slabs: Mutex<Slabs>,
    /// The answers of replicas to requests for blocks of a class. Requests of calls that wait
    /// outside of their operations are counted apart: a replica answers them after a recall, and an
    /// answer to an earlier request must not be taken for it.
    answers: Mutex<BTreeMap<(MemberId, usize, bool), Answers>>,
}

/// How often a replica has answered, and the reason of its last answer if that was a refusal.
type Answers = (u64, Option<String>);

/// Retired blocks that wait for a grace period.
pub(in crate::store::memory) struct Batch {
    pub(in crate::store::memory) blocks: Vec<Place>,
    pub(in crate::store::memory) grace: GracePeriod,
}

impl<'a> MemoryOp<'a> {
    /// Takes a block at a replica: from the magazine, from the replica's free list, or from a slab
    /// that the replica makes when asked.
    #[inline]
    pub(in crate::store) fn take_block(&self, replica: MemberId, class: usize) -> OpResult<u64> {
        match self.magazine().take(replica, class) {
            Some(offset) => Ok(offset),
            None => self.take_elsewhere(replica, class),
        }
    }

    /// Takes a block at a replica when the magazine has none.
    #[cold]
    #[inline(never)]
    pub(in crate::store) fn take_elsewhere(
        &self,
        replica: MemberId,
        class: usize,
    ) -> OpResult<u64> {
        let kind = Place::new(replica, class, 0).kind();
        self.reuse();
        let taken = self.magazine().take(replica, class);
        if let Some(offset) = taken.or_else(|| self.take_spare(kind)) {
            return Ok(offset);
        }
        if let Some(offset) = self.pop_several(replica, class)? {
            return Ok(offset);
        }
        self.flush_retired();
        // Before it asks the replica for more, the operation reuses all blocks that this member
        // has.
        self.reuse_or_give_back(true, usize::MAX);
        let taken = self.magazine().take(replica, class);
        if let Some(offset) = taken.or_else(|| self.take_spare(kind)) {
            return Ok(offset);
        }
        let (job, allocator) = (&self.store.job, &self.store.allocator);
        // The background has other work, which must not wait for a stopped replica.
        let (limit, until) = self.store.wait_for_replica();
        // A replica that is not stopped answers at once, and the operation goes on.
        let stay = if self.may_leave.get() { until.min(job.now().after(STAY)) } else { until };
        let (mut asked, mut is_sent) = (None, true);
        loop {
            let bell = job.bell();
            if replica == job.me()
                && let Err(error) = self.store.refill_slab(class)
            {
                if self.may_leave.get() {
                    return Err(OpError::Needs(replica, class));
                }
                let reason = error.to_string();
                self.store.recall(replica, class, false, &reason);
                return Err(self.no_room(replica, class, reason));
            }
            // If the replica has not answered by now, reading its free list would take as long
            // again.
            if asked.is_some() && !job.is_mapped() && job.now() >= stay {
                if self.may_leave.get() {
                    return Err(OpError::Needs(replica, class));
                }
                return Err(OpError::Fail(StoreError::Timeout { member: replica, limit }));
            }
            // The answers are read before the free list: granted blocks are on the free list then,
            // unless other members have taken them.
            let (count, refusal) = allocator.answers(replica, class, false);
            if let Some(offset) = self.pop_several(replica, class)? {
                return Ok(offset);
            }
            if replica == job.me() {
                continue;
            }
            match (asked, refusal) {
                (Some(before), _) if before == count => {}
                // The replica has no room, and recalls blocks. Their grace period waits for this
                // operation.
                (Some(_), Some(_)) if self.may_leave.get() => {
                    return Err(OpError::Needs(replica, class));
                }
                (Some(_), Some(reason)) => {
                    return Err(self.no_room(replica, class, reason));
                }
                // The replica was not asked yet, or other members have taken the granted blocks.
                _ => (asked, is_sent) = (Some(count), false),
            }
            if !is_sent {
                // A replica whose queue of messages is full has not answered yet. It is not waited
                // for in `send`: an operation that may be left is left in time.
                let need = Message::Need { class: class as u64, waits: false };
                is_sent = self.store.try_send(replica, &need)?;
            }
            if job.now() >= stay {
                if self.may_leave.get() {
                    return Err(OpError::Needs(replica, class));
                }
                return Err(OpError::Fail(StoreError::Timeout { member: replica, limit }));
            }
            // Every wait serves messages: the replica may be waiting for blocks of this member, in
            // its background.
            self.store.serve_messages();
            // The answer of the replica rings the bell. Its death does too, and then the next call
            // of the engine returns an error. Room in its queue of messages does not.
            job.park(bell, if is_sent { stay } else { stay.min(job.now().after(SEND_PAUSE)) });
        }
    }

    /// The error for a replica without room. The blocks that this participant has retired are put
    /// into a batch, so that the next operation at least can use them.
    fn no_room(&self, member: MemberId, class: usize, reason: String) -> OpError {
        self.flush_retired();
        if class == TOMBSTONES {
            self.lacks_tombstone.set(true);
        }
        OpError::Fail(StoreError::OutOfMemory { member, reason })
    }

    /// Takes a spare block of this kind, or returns `None`.
    fn take_spare(&self, kind: u64) -> Option<u64> {
        let allocator = &self.store.allocator;
        if allocator.spare_count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let offset = lock(&allocator.spare).get_mut(&kind)?.pop()?;
        allocator.spare_count.fetch_sub(1, Ordering::Relaxed);
        Some(offset)
    }

    /// Keeps a block that was taken and that no other operation has seen.
    pub(in crate::store) fn keep(&self, replica: MemberId, class: usize, offset: u64) {
        let place = Place::new(replica, class, offset);
        if !self.magazine().keep(place) {
            let allocator = &self.store.allocator;
            lock(&allocator.spare).entry(place.kind()).or_default().push(offset);
            allocator.spare_count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Moves a few blocks from the replica's free list into the magazine, and returns a block for
    /// the caller.
    fn pop_several(&self, replica: MemberId, class: usize) -> OpResult<Option<u64>> {
        let mut first = None;
        for _ in 0..TAKE.min(kept(class, false).max(1)) {
            match self.pop(replica, class) {
                Ok(None) => break,
                Ok(Some(offset)) if first.is_none() => first = Some(offset),
                Ok(Some(offset)) => self.keep(replica, class, offset),
                Err(error) => {
                    // The blocks that were taken stay with this member. The operation does not go
                    // on, since it would wait for a late replica once more.
                    if let Some(offset) = first {
                        self.keep(replica, class, offset);
                    }
                    return Err(error);
                }
            }
        }
        Ok(first)
    }

    /// Takes a block from the free list of a replica, and makes this member its holder.
    pub(in crate::store) fn pop(&self, replica: MemberId, class: usize) -> OpResult<Option<u64>> {
        let top_word = self.store.root(replica) + self.store.layout.stack(class);
        loop {
            let top = self.load(replica, top_word)?;
            if top == 0 {
                return Ok(None);
            }
            check_place(replica, top)?;
            let next = self.load(replica, top)?;
            let block = TakenBlock { offset: top, class: Some(class) };
            let blocks = || SwapBlocks { taken: Some(block), ..SwapBlocks::default() };
            if self.swap_blocks(replica, top_word, top, next, blocks)? {
                // This is written under any view, since the block belongs to this member now.
                self.store
                    .job
                    .put(
                        Epoch::ANY,
                        replica,
                        top + BLOCK_HOLDER,
                        &holder(self.store.me()).to_ne_bytes(),
                    )
                    .map_err(|error| self.holder_error(replica, block, error))?;
                return Ok(Some(top));
            }
        }
    }

    /// Returns an unused block to the allocator, unless a request with it timed out: then the block
    /// belongs to the straggler. After a refusal, because another operation was faster or the view
    /// has changed, nothing was written.
    pub(in crate::store) fn keep_unless_timed_out<T>(
        &self,
        replica: MemberId,
        class: usize,
        offset: u64,
        result: &OpResult<T>,
    ) {
        if let Ok(_) | Err(OpError::Again) = result {
            self.keep(replica, class, offset);
        }
    }

    /// Retires a block that this operation has swapped out of a head word. Its holder is this
    /// member already.
    #[inline(always)]
    pub(in crate::store) fn retire(&self, replica: MemberId, class: usize, offset: u64) {
        if mutant("reuse-early") {
            return self.keep(replica, class, offset);
        }
        let place = Place::new(replica, class, offset);
        if !self.magazine().retire(place) {
            self.retire_together(vec![place]);
        }
    }

    /// At the end of an operation, makes the retired blocks of the participant free if no other
    /// operation is in flight. Otherwise the blocks wait in a batch. This operation itself does not
    /// see them any more.
    #[cold]
    #[inline(never)]
    pub(in crate::store) fn turn(&self) {
        if !self.store.job.is_mapped() {
            // Over a network a grace period takes a request to every member, so it covers many
            // blocks.
            return self.retire_together(self.magazine().take_retired());
        }
        steps::enter(steps::Step::Retire);
        let mut grace = GracePeriod::begin_without(self.store, self.participant);
        if grace.is_over(self.store) && grace.has_no_pins() {
            self.give_back(self.magazine().free_retired());
        } else {
            self.add_batch(self.magazine().take_retired(), grace);
        }
    }

    /// Puts the retired blocks of this participant into a batch, so that they can be reused
    /// although the participant may retire no further blocks for long.
    pub(in crate::store) fn flush_retired(&self) {
        let mut blocks = self.magazine().take_retired();
        blocks.append(&mut *lock(&self.store.allocator.retired));
        if !blocks.is_empty() {
            self.add_batch(blocks, GracePeriod::begin(self.store));
        }
    }

    /// Retires blocks for which the magazine has no room.
    #[cold]
    #[inline(never)]
    fn retire_together(&self, mut blocks: Vec<Place>) {
        let allocator = &self.store.allocator;
        steps::enter(steps::Step::Retire);
        // With as many blocks as there are members, a grace period takes only a few requests for
        // each block, however many members there are.
        let members = self.store.job.members() as u64;
        let is_far = !self.store.job.is_mapped();
        let batch_bytes = if is_far { BATCH_BYTES_FAR } else { BATCH_BYTES };
        let (least, least_bytes) =
            (members.max(BATCH_BLOCKS), (members * BATCH_BYTES_PER_MEMBER).max(batch_bytes));
        let is_enough = {
            let mut retired = lock(&allocator.retired);
            retired.append(&mut blocks);
            let bytes: u64 = retired.iter().map(|place| class_size(place.class())).sum();
            if retired.len() as u64 >= least
                || bytes >= least_bytes
                || (is_far && fills_magazine(&retired))
            {
                blocks = std::mem::take(&mut *retired);
            }
            !blocks.is_empty()
        };
        if is_enough {
            self.add_batch(blocks, GracePeriod::begin(self.store));
        }
    }

    /// Adds a batch, and reuses other batches if there are enough of them.
    fn add_batch(&self, blocks: Vec<Place>, grace: GracePeriod) {
        let allocator = &self.store.allocator;
        let is_large = blocks.iter().any(Place::is_large);
        let count = {
            let mut batches = lock(&allocator.batches);
            batches.push(Batch { blocks, grace });
            batches.len()
        };
        allocator.batch_count.store(count, Ordering::Relaxed);
        if count > if self.store.job.is_mapped() { 1 } else { BATCHES_FAR } {
            self.reuse();
        }
        if is_large {
            allocator.has_large.store(true, Ordering::Release);
            let _ = self.store.job.ring(self.store.me());
        }
    }

    /// Reuses the blocks of batches with grace periods that are over. Where replicas are remote it
    /// takes a batch at a time, so that the magazine has room: a block that is given back is taken
    /// again by requests. After an operation was in flight for long, many batches become free at
    /// once. All but a few of them are then taken together, since other members need the room.
    fn reuse(&self) {
        let count = self.store.allocator.batch_count.load(Ordering::Relaxed);
        let few = count.saturating_sub(BATCHES_FAR).max(1);
        self.reuse_or_give_back(true, if self.store.job.is_mapped() { usize::MAX } else { few });
    }

    /// Reuses up to `wanted` batches with grace periods that are over. Their blocks go into the
    /// magazine of this participant if `keeps` is set, and the blocks for which it has no room, or
    /// all blocks, go back to the free lists of their replicas.
    pub(in crate::store) fn reuse_or_give_back(&self, keeps: bool, mut wanted: usize) {
        let (store, allocator) = (self.store, &self.store.allocator);
        if allocator.batch_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        // Recalled blocks go back in any case: other members need them more.
        let recalled = store.recalled_kinds();
        // The batches are taken out, so that no lock is held while the counters are read. Two
        // activities that do this work on different batches.
        let mut batches = {
            let mut batches = lock(&allocator.batches);
            allocator.looking.fetch_add(1, Ordering::Relaxed);
            std::mem::take(&mut *batches)
        };
        let mut excess = Vec::new();
        let mut pinned = Vec::new();
        // An operation that keeps a batch waiting began before that batch, and so keeps all later
        // batches waiting, too. If a member is stopped there are many batches, and only the first
        // few are checked.
        let mut left = LOOKED_AT;
        batches.retain_mut(|batch| {
            let is_over = left > 0 && wanted > 0 && batch.grace.is_over(store);
            left -= usize::from(left > 0 && !is_over);
            wanted -= usize::from(is_over);
            if is_over {
                let is_pinned =
                    |place: &Place| batch.grace.is_pinned(place.replica(), place.offset());
                pinned.extend(batch.blocks.extract_if(.., |place| is_pinned(place)));
                excess.extend(batch.blocks.iter().filter(|&&place| {
                    !keeps || recalled.contains(&place.kind()) || !self.magazine().keep(place)
                }));
            }
            !is_over
        });
        if !pinned.is_empty() {
            // Only the pinned blocks wait for a further grace period.
            batches.push(Batch { blocks: pinned, grace: GracePeriod::begin(store) });
        }
        {
            let mut kept = lock(&allocator.batches);
            // The batches stay in their order, the oldest batch first.
            batches.append(&mut kept);
            *kept = batches;
            allocator.batch_count.store(kept.len(), Ordering::Relaxed);
        }
        self.give_back(excess);
        let _batches = lock(&allocator.batches);
        allocator.looking.fetch_sub(1, Ordering::Relaxed);
    }

    /// Gives blocks back to their replicas, right after their grace period.
    fn give_back(&self, excess: Vec<Place>) {
        if excess.is_empty() {
            return;
        }
        let store = self.store;
        let mut by_replica: BTreeMap<MemberId, Vec<Place>> = BTreeMap::new();
        for place in excess {
            by_replica.entry(place.replica()).or_default().push(place);
        }
        for (replica, places) in by_replica {
            if replica == store.me() {
                store.take_back(replica, &places);
            } else {
                // A message is sent, so that no operation waits for a stopped replica.
                for places in places.chunks(GIVE_MAX) {
                    let give = Message::Give { places: places.to_vec() };
                    if matches!(store.try_send(replica, &give), Ok(false)) {
                        // The replica has no room for the message. The blocks wait for another
                        // grace period, and are given back after it.
                        let blocks = places.to_vec();
                        let batch = Batch { blocks, grace: GracePeriod::begin(store) };
                        let mut batches = lock(&store.allocator.batches);
                        batches.push(batch);
                        store.allocator.batch_count.store(batches.len(), Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// Makes this member the holder of a block that it has taken out of use.
    pub(in crate::store) fn hold(
        &self,
        replica: MemberId,
        offset: u64,
    ) -> Result<(), crate::engine::Error> {
        let job = &self.store.job;
        let word = job.load(Epoch::ANY, replica, offset + BLOCK_HOLDER)?;
        let word = word & !HOLDER_MASK | holder(self.store.me());
        job.put(Epoch::ANY, replica, offset + BLOCK_HOLDER, &word.to_ne_bytes())
    }
}

impl MemoryState {
    /// The part of the background: gives back blocks that are too large to be kept, also if this
    /// member retires no further blocks. Returns when the background wants to run again.
    pub(in crate::store) fn give_back_some(&self) -> Time {
        let allocator = &self.allocator;
        if !allocator.has_large.swap(false, Ordering::AcqRel) {
            return Time::NEVER;
        }
        if let Ok(op) = MemoryOp::begin(self) {
            op.reuse();
        }
        if !lock(&allocator.batches).iter().any(|batch| batch.blocks.iter().any(Place::is_large)) {
            return Time::NEVER;
        }
        allocator.has_large.store(true, Ordering::Release);
        self.job.now().after(LARGE_PAUSE)
    }

    /// Puts blocks of this replica that `from` holds back onto its free lists, right after their
    /// grace period. Ignores blocks that `from` does not hold, and offsets that are not blocks.
    pub(in crate::store) fn take_back(&self, from: MemberId, places: &[Place]) {
        let (job, me) = (&self.job, self.job.me());
        for place in places {
            let offset = place.offset();
            let is_block = || {
                let slabs = lock(&self.allocator.slabs);
                place.replica() == me && slabs.has(place.class(), offset)
            };
            if !is_block() {
                continue;
            }
            let give = || -> Result<(), Error> {
                let word = offset + BLOCK_HOLDER;
                let found = job.load(Epoch::ANY, me, word)?;
                // Checked again after the load: a block that has become the buckets of an index has
                // no holder word.
                if found & HOLDER_MASK != holder(from)
                    || !is_block()
                    || job.compare_and_swap(Epoch::ANY, me, word, found, 0)? != found
                {
                    return Ok(());
                }
                let top_word = self.root(me) + self.layout.stack(place.class());
                loop {
                    let top = job.load(Epoch::ANY, me, top_word)?;
                    job.put(Epoch::ANY, me, offset, &top.to_ne_bytes())?;
                    if job.compare_and_swap(Epoch::ANY, me, top_word, top, offset)? == top {
                        return Ok(());
                    }
                }
            };
            // The memory of this member fails only when this member has ended.
            let _ = give();
        }
    }

    /// Retires the blocks that the answers to open swaps have set free: they wait in a batch for a
    /// grace period. Returns whether there were any.
    pub(in crate::store) fn retire_freed(&self) -> bool {
        let blocks = self.take_freed();
        let has_blocks = !blocks.is_empty();
        if has_blocks {
            self.allocator.push_batch(Batch { blocks, grace: GracePeriod::begin(self) });
        }
        has_blocks
    }

    /// All blocks in the magazines and lists of this member.
    #[cfg(all(test, feature = "sim"))]
    pub(in crate::store) fn known_blocks(&self) -> Vec<(MemberId, u64)> {
        let allocator = &self.allocator;
        let mut places = lock(&allocator.retired).clone();
        places.extend(self.freed_blocks());
        lock(&allocator.batches).iter().for_each(|batch| places.extend(&batch.blocks));
        for (&kind, offsets) in &*lock(&allocator.spare) {
            places.extend(offsets.iter().map(|&offset| Place::of_kind(kind, offset)));
        }
        self.magazines().for_each(|magazine| places.extend(magazine.places()));
        places.iter().map(|place| (place.replica(), place.offset())).collect()
    }

    /// Whether blocks wait for a grace period.
    pub(in crate::store) fn has_batches(&self) -> bool {
        self.allocator.batch_count.load(Ordering::Relaxed) > 0
    }
}

impl Allocator {
    /// Records the answer of a replica: that it has made blocks of a class, or why it has not.
    pub(in crate::store) fn answered(
        &self,
        replica: MemberId,
        class: usize,
        waits: bool,
        refusal: Option<String>,
    ) {
        let mut answers = lock(&self.answers);
        let (count, last) = answers.entry((replica, class, waits)).or_default();
        *count += 1;
        *last = refusal;
    }

    /// Takes the blocks of a kind out of the lists that no grace period covers yet.
    pub(in crate::store::memory) fn take_kind(&self, kind: u64) -> Vec<Place> {
        let offsets = lock(&self.spare).remove(&kind).unwrap_or_default();
        self.spare_count.fetch_sub(offsets.len(), Ordering::Relaxed);
        let mut blocks: Vec<Place> =
            lock(&self.retired).extract_if(.., |place| place.kind() == kind).collect();
        blocks.extend(offsets.into_iter().map(|offset| Place::of_kind(kind, offset)));
        blocks
    }

    /// Adds a batch, and reuses no other batch.
    pub(in crate::store::memory) fn push_batch(&self, batch: Batch) {
        let mut batches = lock(&self.batches);
        batches.push(batch);
        self.batch_count.store(batches.len(), Ordering::Relaxed);
    }

    pub(in crate::store::memory) fn answers(
        &self,
        replica: MemberId,
        class: usize,
        waits: bool,
    ) -> Answers {
        lock(&self.answers).get(&(replica, class, waits)).cloned().unwrap_or_default()
    }
}

/// How many free blocks of a class a magazine keeps. It keeps no blocks for tombstones, since all
/// members share them.
pub(in crate::store) fn kept(class: usize, is_far: bool) -> usize {
    if class == TOMBSTONES {
        return 0;
    }
    let size = class_size(class);
    let least = if is_far && size <= FAR_LEN_MAX { RING_BLOCKS_FAR } else { 1 };
    if size > KEPT_LEN_MAX { 0 } else { ((RING_BYTES / size) as usize).clamp(least, 128) }
}

/// Whether a magazine would soon have no room for all blocks of some replica and class. The excess
/// would have to be given back, and be taken again by requests.
fn fills_magazine(blocks: &[Place]) -> bool {
    let mut counts = BTreeMap::new();
    blocks.iter().any(|place| {
        let count = counts.entry(place.kind()).or_insert(0);
        *count += 1;
        2 * *count > kept(place.class(), true).min(ROOM_MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::record::state::RecordOp;
    use crate::store::segment::layout::class_of;

    #[test]
    fn a_place_returns_the_fields_it_was_made_of() {
        let place = Place::new(MemberId(4095), 103, ((1u64 << 40) - 1) << 4);
        assert_eq!(
            (place.replica(), place.class(), place.offset()),
            (MemberId(4095), 103, ((1u64 << 40) - 1) << 4)
        );
    }

    #[test]
    fn a_magazine_keeps_a_single_large_block_and_no_very_large_block() {
        assert_eq!((kept(0, false), kept(52, false), kept(80, true)), (128, 1, 0));
    }
    /// A replica has no more room. The blocks that a member has freed there are in several batches,
    /// and the block that it needs is in the last batch.
    #[cfg(feature = "sim")]
    #[test]
    fn a_block_in_any_batch_counts_as_room() {
        use crate::engine::sim::{self, Link, Options as SimOptions};
        use crate::store::testing::nap;
        use crate::store::{Options, Store};
        use std::cell::Cell;
        use std::rc::Rc;
        let is_over = Rc::new(Cell::new(false));
        let mut options = SimOptions::new(2, 3).link(Link::Network);
        options.steps_max = 10_000_000;
        options.segment_limit = 4 << 20;
        sim::run(&options, move |job: crate::Job| {
            let store = Store::open(&job, Options::new().replicas(1).partitions(1)).expect("open");
            if job.me() == MemberId(1) {
                let (inner, replica) = (&store.state, MemberId(0));
                let [small, large] = [2000, 50_000].map(|len| class_of(len).expect("a class"));
                let op = RecordOp::begin(inner).expect("begun");
                let others =
                    [(); 2].map(|()| vec![op.take_block(replica, small).expect("a block")]);
                let blocks: Vec<u64> =
                    std::iter::from_fn(|| op.take_block(replica, large).ok()).collect();
                assert!(blocks.len() > 10, "{} blocks", blocks.len());
                for (class, blocks) in [(small, &others[0]), (small, &others[1]), (large, &blocks)]
                {
                    blocks.iter().for_each(|&offset| op.retire(replica, class, offset));
                    op.flush_retired();
                }
                drop(op);
                let mut batches = std::mem::take(&mut *lock(&inner.allocator.batches));
                assert_eq!(batches.len(), 3);
                for batch in &mut batches {
                    let until = job.now().after(Duration::from_secs(10));
                    while !batch.grace.is_over(inner) {
                        assert!(job.now() < until, "somebody is inside an operation for ever");
                        job.sleep(Duration::from_millis(1));
                    }
                }
                inner.allocator.batch_count.store(batches.len(), Ordering::Relaxed);
                *lock(&inner.allocator.batches) = batches;
                let taken = inner.run(|op| op.take_block(replica, large));
                assert!(taken.is_ok(), "there is room: {taken:?}");
                is_over.set(true);
            }
            nap(&job, "the one who takes", || is_over.get());
            store.close().expect("closed");
            let _ = job.leave();
        })
        .expect_ok();
    }

    /// A thread has taken the batches out to check them. Another thread of the member, which finds
    /// none, gets a block of them all the same, though the replica has no room.
    #[cfg(feature = "sim")]
    #[test]
    fn batches_that_another_thread_checks_count_as_room() {
        use crate::engine::sim::{self, Link, Options as SimOptions};
        use crate::store::testing::nap;
        use crate::store::{Options, Store};
        use std::cell::Cell;
        use std::rc::Rc;
        for link in [Link::Memory, Link::Network] {
            let is_over = Rc::new(Cell::new(false));
            let mut options = SimOptions::new(2, 3).link(link);
            options.steps_max = 10_000_000;
            options.segment_limit = 4 << 20;
            sim::run(&options, move |job: crate::Job| {
                let options = Options::new().replicas(1).partitions(1);
                let store = Store::open(&job, options).expect("open");
                if job.me() == MemberId(1) {
                    let (inner, replica) = (&store.state, MemberId(0));
                    let large = class_of(50_000).expect("a class");
                    let op = RecordOp::begin(inner).expect("begun");
                    let blocks: Vec<u64> =
                        std::iter::from_fn(|| op.take_block(replica, large).ok()).collect();
                    blocks.iter().for_each(|&offset| op.retire(replica, large, offset));
                    op.flush_retired();
                    drop(op);
                    let batches = {
                        let mut batches = lock(&inner.allocator.batches);
                        inner.allocator.looking.fetch_add(1, Ordering::Relaxed);
                        std::mem::take(&mut *batches)
                    };
                    inner.allocator.batch_count.store(0, Ordering::Relaxed);
                    let (mine, checked) = (store.clone(), job.clone());
                    let check = move || {
                        checked.sleep(Duration::from_millis(5));
                        let allocator = &mine.state.allocator;
                        allocator.batch_count.store(batches.len(), Ordering::Relaxed);
                        let mut kept = lock(&allocator.batches);
                        kept.extend(batches);
                        allocator.looking.fetch_sub(1, Ordering::Relaxed);
                    };
                    let activity = job.spawn("checks", Box::new(check)).expect("an activity");
                    let taken = inner.run(|op| op.take_block(replica, large));
                    assert!(taken.is_ok(), "there is room: {taken:?}");
                    nap(&job, "the other thread", || activity.is_finished());
                    is_over.set(true);
                }
                nap(&job, "the member that takes", || is_over.get());
                store.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }

    /// An operation is in flight for long, while another member writes until there is no room. When
    /// the operation has ended, the writer needs few blocks, and the other members have room again.
    #[cfg(feature = "sim")]
    #[test]
    fn blocks_of_a_long_grace_period_go_back_to_their_replica() {
        use crate::engine::sim::{self, Link, Options as SimOptions};
        use crate::store::testing::nap;
        use crate::store::{Options, Store};
        use std::cell::Cell;
        use std::rc::Rc;
        let step = Rc::new(Cell::new(0));
        let mut options = SimOptions::new(3, 3).link(Link::Network);
        options.steps_max = 10_000_000;
        options.segment_limit = 4 << 20;
        sim::run(&options, move |job: crate::Job| {
            let store = Store::open(&job, Options::new().replicas(1).partitions(8)).expect("open");
            let is_there = |key: &String| store.replicas_of(key.as_bytes()) == [MemberId(0)];
            let keys: Vec<String> =
                (0..1000).map(|number| format!("key {number}")).filter(is_there).collect();
            let wait = |until: u32| nap(&job, "the others", || step.get() >= until);
            match job.me().0 {
                1 => {
                    wait(1);
                    let slot = store.handle(keys[0].as_bytes()).expect("a slot");
                    while slot.put(&[1; 20_000]).is_ok() {}
                    step.set(2);
                    wait(3);
                    // At first no grace period is known to be over.
                    (0..300).for_each(|_| nap(&job, "room", || slot.put(&[1; 20_000]).is_ok()));
                    step.set(4);
                }
                2 => {
                    let op = RecordOp::begin(&store.state).expect("begun");
                    step.set(1);
                    wait(2);
                    drop(op);
                    step.set(3);
                    wait(4);
                    for key in &keys[1..50] {
                        store.put(key.as_bytes(), &[1; 20_000]).expect("room");
                    }
                    step.set(5);
                }
                _ => {}
            }
            wait(5);
            store.close().expect("closed");
            let _ = job.leave();
        })
        .expect_ok();
    }
    /// A member gives a block back to a stopped replica whose queue of messages is full. It does
    /// not wait, and keeps the block until it can be given back.
    #[cfg(feature = "sim")]
    #[test]
    fn a_block_for_which_there_is_no_message_is_kept() {
        use crate::engine::Fault;
        use crate::engine::sim::{self, Link, Options as SimOptions};
        use crate::store::testing::nap;
        use crate::store::{Options, Store};
        let mut options = SimOptions::new(2, 7).link(Link::Network);
        (options.message_credit, options.time_limit) = (4 << 10, Duration::from_secs(1));
        let is_over = std::rc::Rc::new(std::cell::Cell::new(false));
        sim::run(&options, move |job: crate::Job| {
            let store = Store::open(&job, Options::new().replicas(1).partitions(4)).expect("open");
            let (state, replica, class) = (&store.state, MemberId(1), 3);
            if job.me() == MemberId(0) {
                let op = RecordOp::begin(state).expect("begun");
                let offset = op.take_block(replica, class).expect("a block");
                job.inject(Fault::Stop(replica)).expect("a fault");
                // Long messages, and then short ones: there is not even room for a block's number.
                for len in [64, 0] {
                    let filler = Message::Marked { buckets: vec![u64::MAX; len] };
                    while state.try_send(replica, &filler).expect("a living member") {}
                }
                let began = job.now();
                op.give_back(vec![Place::new(replica, class, offset)]);
                let took = job.now().since(began);
                assert!(took < Duration::from_millis(1), "it took {took:?}");
                drop(op);
                let is_kept = || state.known_blocks().contains(&(replica, offset));
                assert!(is_kept(), "the block is lost");
                job.inject(Fault::Resume(replica)).expect("a fault");
                nap(&job, "the block is given back", || {
                    let op = RecordOp::begin(state).expect("begun");
                    op.reuse_or_give_back(false, usize::MAX);
                    !is_kept()
                });
                is_over.set(true);
            }
            nap(&job, "the end", || is_over.get());
            store.close().expect("closed");
            let _ = job.leave();
        })
        .expect_ok();
    }
}

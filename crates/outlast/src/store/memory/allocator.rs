//! Blocks of memory at the replicas: taking, retiring and reusing them.
//!
//! A replica's segment is carved into blocks of size classes by the replica itself, which puts them
//! onto one stack per class. Members take blocks from there into *magazines*, one for each
//! participant, and work from those. A block that was swapped out of a head word is *retired* by
//! whoever swapped it out, and is used again once every participant that was inside an operation at
//! that time has left it, or is dead. What a magazine has no room for goes back onto its replica's
//! stack.
//!
//! A block goes onto a stack only when it is new, or right after such a wait. So a member that is
//! inside an operation and has read the top of a stack never finds the same block there again with
//! another successor: the swap of the top needs no counter. A block that was taken and not used
//! must therefore never go back by itself.
//!
//! | the block is | its holder word names | its taker dies here |
//! |---|---|---|
//! | on its replica's stack | nobody | |
//! | taken off the stack, not numbered yet | nobody | it is lost: a few blocks for each death at this very step |
//! | in a magazine, being filled, or retired | who has it | its replica takes it back: see `reclaim.rs` |
//! | named by a head word, or a node of the index | who filled it | it stays what it is |
//! | swapped out, not numbered yet | who filled it | its replica takes it back, if both are dead |

use crate::engine::{Epoch, Error, MemberId, Time};
use crate::store::error::StoreError;
use crate::store::memory::magazine::ROOM_MAX;
use crate::store::memory::slab::Slabs;
use crate::store::memory::state::{MemoryOp, MemoryState};
use crate::store::mutant::mutant;
use crate::store::operation::error::{OpError, OpResult, check_place};
use crate::store::operation::grace_period::GracePeriod;
use crate::store::operation::message::{Message, PORT};
use crate::store::segment::layout::{BLOCK_HOLDER, HOLDER_MASK, TOMBSTONES, class_size, holder};
use crate::store::segment::place::{KEPT_LEN_MAX, Place};
use crate::store::steps;
use crate::sync::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// How many bytes of one replica and class a magazine keeps at most; of large blocks one, so that
/// they can alternate. Where replicas are far away a few, unless they are very large: each one that
/// is given back and had again takes requests.
const RING_BYTES: u64 = 32 << 10;

const RING_BLOCKS_FAR: usize = 4;

const FAR_LEN_MAX: u64 = 128 << 10;

/// How many blocks, or bytes, that no magazine has room for are retired together before the
/// participants are looked at. More where members are far away: each look is a request to
/// everybody.
const BATCH_BLOCKS: u64 = 96;

const BATCH_BYTES: u64 = 48 << 10;

const BATCH_BYTES_FAR: u64 = 512 << 10;

const BATCH_BYTES_PER_MEMBER: u64 = 512;

/// How many batches wait for the magazines to be empty, where members are far away.
const BATCHES_FAR: usize = 3;

/// How many batches are looked at whose wait is not over.
const LOOKED_AT: usize = 8;

/// How long the background waits for a replica that is to refill_slab blocks, or to salvage a
/// partition; what the replica does later is there at the next try.
pub(in crate::store) const BACKGROUND_WAIT: Duration = Duration::from_millis(20);

/// How long the background waits before it looks again whether they may go.
const PATIENCE: Duration = Duration::from_millis(50);

/// How many blocks are taken from a stack at once.
const TAKE: usize = 4;

/// How many blocks of a class a magazine keeps. No tombstones: all members delete with the same
/// ones.
pub(in crate::store) fn kept(class: usize, is_far: bool) -> usize {
    if class == TOMBSTONES {
        return 0;
    }
    let size = class_size(class);
    let least = if is_far && size <= FAR_LEN_MAX { RING_BLOCKS_FAR } else { 1 };
    if size > KEPT_LEN_MAX { 0 } else { ((RING_BYTES / size) as usize).clamp(least, 128) }
}

/// Whether there are so many blocks of one replica and class that a magazine soon has no room for
/// them all: the others would have to be given back, and had again.
fn fills_magazine(blocks: &[Place]) -> bool {
    let mut counts = BTreeMap::new();
    blocks.iter().any(|place| {
        let count = counts.entry(place.kind()).or_insert(0);
        *count += 1;
        2 * *count > kept(place.class(), true).min(ROOM_MAX)
    })
}

/// Blocks that wait until those who may have seen them are gone.
struct Batch {
    blocks: Vec<Place>,
    grace: GracePeriod,
}

/// What the participants of this member share.
#[derive(Default)]
pub(in crate::store) struct Allocator {
    /// Blocks that were taken and not used, and that no magazine had room for; by kind.
    spare: Mutex<BTreeMap<u64, Vec<u64>>>,
    spare_count: AtomicUsize,
    /// Blocks that were retired, and that no magazine had room for.
    retired: Mutex<Vec<Place>>,
    batches: Mutex<Vec<Batch>>,
    batch_count: AtomicUsize,
    /// Whether the background is to look after blocks that are too large to be kept.
    has_large: AtomicBool,
    /// What this member, as a replica, has carved.
    pub(in crate::store) slabs: Mutex<Slabs>,
    /// What replicas have answered to requests for blocks of a class.
    answers: Mutex<BTreeMap<(MemberId, usize), Answers>>,
}

/// How often a replica has answered, and why it refused, if it did the last time.
type Answers = (u64, Option<String>);

impl Allocator {
    /// Notes what a replica has answered: that it has carved blocks of a class, or why not.
    pub(in crate::store) fn answered(
        &self,
        replica: MemberId,
        class: usize,
        refusal: Option<String>,
    ) {
        let mut answers = lock(&self.answers);
        let (count, last) = answers.entry((replica, class)).or_default();
        *count += 1;
        *last = refusal;
    }

    fn answers(&self, replica: MemberId, class: usize) -> Answers {
        lock(&self.answers).get(&(replica, class)).cloned().unwrap_or_default()
    }
}

impl<'a> MemoryOp<'a> {
    /// Takes a block at a replica: from the magazine, from the replica's stack, or from what the
    /// replica carves when asked.
    #[inline]
    pub(in crate::store) fn take_block(&self, replica: MemberId, class: usize) -> OpResult<u64> {
        match self.magazine().take(replica, class) {
            Some(offset) => Ok(offset),
            None => self.take_elsewhere(replica, class),
        }
    }

    /// The same for when it has none.
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
        // Before the replica is asked for more: all that is this member's.
        self.reuse_or_give_back(true, usize::MAX);
        let taken = self.magazine().take(replica, class);
        if let Some(offset) = taken.or_else(|| self.take_spare(kind)) {
            return Ok(offset);
        }
        let (job, allocator) = (&self.store.job, &self.store.allocator);
        // The background has other work, which must not wait for a replica that is stopped.
        let limit = if self.store.is_background() { BACKGROUND_WAIT } else { job.time_limit() };
        let until = job.now().after(limit);
        let mut asked = None;
        loop {
            let bell = job.bell();
            if replica == job.me() {
                self.store
                    .refill_slab(class)
                    .map_err(|error| self.no_room(replica, class, error.to_string()))?;
            }
            // A replica that has not answered until then is not asked for its stack either, which
            // would take as long again.
            if asked.is_some() && !job.is_mapped() && job.now() >= until {
                return Err(OpError::Fail(StoreError::Timeout { member: replica, limit }));
            }
            // Before the stack is looked at: what was granted is there then, unless others have
            // taken it.
            let (count, refusal) = allocator.answers(replica, class);
            if let Some(offset) = self.pop_several(replica, class)? {
                return Ok(offset);
            }
            if replica == job.me() {
                continue;
            }
            match (asked, refusal) {
                (Some(before), _) if before == count => {}
                (Some(_), Some(reason)) => {
                    return Err(self.no_room(replica, class, reason));
                }
                // Not asked yet; or others have taken what was granted.
                _ => {
                    asked = Some(count);
                    job.send(replica, PORT, &Message::Need { class: class as u64 }.encode())?;
                }
            }
            if job.now() >= until {
                return Err(OpError::Fail(StoreError::Timeout { member: replica, limit }));
            }
            // Whoever waits serves: the replica may itself be waiting for blocks here, with its
            // background.
            self.store.serve_messages();
            // The replica's answer rings; its death too, and then the next call of the engine says
            // so.
            job.park(bell, until);
        }
    }

    /// There is no room. What this participant has retired is of use to the next operation at
    /// least.
    fn no_room(&self, member: MemberId, class: usize, reason: String) -> OpError {
        self.flush_retired();
        if class == TOMBSTONES {
            self.lacks_tombstone.set(true);
        }
        OpError::Fail(StoreError::OutOfMemory { member, reason })
    }

    fn take_spare(&self, kind: u64) -> Option<u64> {
        let allocator = &self.store.allocator;
        if allocator.spare_count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let offset = lock(&allocator.spare).get_mut(&kind)?.pop()?;
        allocator.spare_count.fetch_sub(1, Ordering::Relaxed);
        Some(offset)
    }

    /// Keeps a block that was taken and that nobody else has seen.
    pub(in crate::store) fn keep(&self, replica: MemberId, class: usize, offset: u64) {
        let place = Place::new(replica, class, offset);
        if !self.magazine().keep(place) {
            let allocator = &self.store.allocator;
            lock(&allocator.spare).entry(place.kind()).or_default().push(offset);
            allocator.spare_count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Moves a few blocks from the replica's stack into the magazine; one of them is for the
    /// caller.
    fn pop_several(&self, replica: MemberId, class: usize) -> OpResult<Option<u64>> {
        let mut first = None;
        for _ in 0..TAKE.min(kept(class, false).max(1)) {
            match self.pop(replica, class) {
                Ok(None) => break,
                Ok(Some(offset)) if first.is_none() => first = Some(offset),
                Ok(Some(offset)) => self.keep(replica, class, offset),
                Err(error) => {
                    // What was taken is not lost. But whoever went on would wait for a late replica
                    // once more.
                    if let Some(offset) = first {
                        self.keep(replica, class, offset);
                    }
                    return Err(error);
                }
            }
        }
        Ok(first)
    }

    pub(in crate::store) fn pop(&self, replica: MemberId, class: usize) -> OpResult<Option<u64>> {
        let top_word = self.store.root(replica) + self.store.layout.stack(class);
        loop {
            let top = self.load(replica, top_word)?;
            if top == 0 {
                return Ok(None);
            }
            check_place(replica, top)?;
            let next = self.load(replica, top)?;
            if self.swap(replica, top_word, top, next)? {
                // Under any view: the block is this member's now.
                self.store
                    .job
                    .put(
                        Epoch::ANY,
                        replica,
                        top + BLOCK_HOLDER,
                        &holder(self.store.me()).to_ne_bytes(),
                    )
                    .map_err(|error| self.noted(replica, error))?;
                return Ok(Some(top));
            }
        }
    }

    /// Keeps a block that was not used, since somebody was faster or the view has changed: after a
    /// refusal nothing was written. After a timeout something may still be, whenever the replica
    /// goes on: the block must not be used for anything else.
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

    /// At the end of an operation: frees what the participant has retired, if nobody else is inside
    /// an operation; otherwise it waits. This operation itself sees nothing of it any more.
    #[cold]
    #[inline(never)]
    pub(in crate::store) fn turn(&self) {
        if !self.store.job.is_mapped() {
            // Each look is a request to every member: for many blocks together.
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

    /// Lets what this participant has retired be used again by others, though it may retire nothing
    /// more for long.
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
        // With as many blocks as there are members, the requests for each are as few, however many
        // members there are.
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

    /// Takes back the blocks of batches for which the wait is over. Where replicas are far away one
    /// batch after the other, so that there is room for them: what is given back is had again by
    /// requests. But when somebody was inside an operation for long there are many, and all but a
    /// few are for others, too.
    fn reuse(&self) {
        let count = self.store.allocator.batch_count.load(Ordering::Relaxed);
        let few = count.saturating_sub(BATCHES_FAR).max(1);
        self.reuse_or_give_back(true, if self.store.job.is_mapped() { usize::MAX } else { few });
    }

    /// The same for so many batches; if this participant is not to keep any, all go to the stacks
    /// of their replicas.
    pub(in crate::store) fn reuse_or_give_back(&self, keeps: bool, mut wanted: usize) {
        let (store, allocator) = (self.store, &self.store.allocator);
        if allocator.batch_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        // Taken out, so that no lock is held while the counters are read; two who do this work on
        // different batches.
        let mut batches = std::mem::take(&mut *lock(&allocator.batches));
        let mut excess = Vec::new();
        let mut pinned = Vec::new();
        // Whoever keeps one from being over was inside an operation before it, and so keeps those
        // that came later, too: if somebody is stopped there are many, and all but the first few
        // need not be asked.
        let mut left = LOOKED_AT;
        batches.retain_mut(|batch| {
            let is_over = left > 0 && wanted > 0 && batch.grace.is_over(store);
            left -= usize::from(left > 0 && !is_over);
            wanted -= usize::from(is_over);
            if is_over {
                let is_pinned =
                    |place: &Place| batch.grace.is_pinned(place.replica(), place.offset());
                pinned.extend(batch.blocks.extract_if(.., |place| is_pinned(place)));
                excess.extend(
                    batch.blocks.iter().filter(|&&place| !keeps || !self.magazine().keep(place)),
                );
            }
            !is_over
        });
        if !pinned.is_empty() {
            // Those alone wait on.
            batches.push(Batch { blocks: pinned, grace: GracePeriod::begin(store) });
        }
        {
            let mut kept = lock(&allocator.batches);
            // In their order, oldest first.
            batches.append(&mut kept);
            *kept = batches;
            allocator.batch_count.store(kept.len(), Ordering::Relaxed);
        }
        self.give_back(excess);
    }

    /// Gives blocks back to their replicas, right after the wait for all who might have seen them.
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
                // By a message, so that nobody waits for a replica that is stopped. If it cannot be
                // sent the replica is dead, or the blocks stay with their holder.
                let _ = store.job.send(replica, PORT, &Message::Give { places }.encode());
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
    /// The background's part: blocks that are too large to be kept go back to their replicas also
    /// if this member retires nothing more; when it wants to run again.
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
        self.job.now().after(PATIENCE)
    }

    /// Puts blocks of this replica that `from` holds back onto its stacks, after the wait for all
    /// who might have seen them. What it does not hold is not believed, and what is no block
    /// neither.
    pub(in crate::store) fn take_back(&self, from: MemberId, places: &[Place]) {
        let (job, me) = (&self.job, self.job.me());
        for place in places {
            if place.replica() != me
                || !lock(&self.allocator.slabs).has(place.class(), place.offset())
            {
                continue;
            }
            let offset = place.offset();
            let give = || -> Result<(), Error> {
                let word = offset + BLOCK_HOLDER;
                let found = job.load(Epoch::ANY, me, word)?;
                if found & HOLDER_MASK != holder(from)
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
            // The own memory fails only when this member has ended.
            let _ = give();
        }
    }

    /// The blocks that this member has at hand, anywhere.
    #[cfg(all(test, feature = "sim"))]
    pub(in crate::store) fn known_blocks(&self) -> Vec<(MemberId, u64)> {
        let allocator = &self.allocator;
        let mut places = lock(&allocator.retired).clone();
        lock(&allocator.batches).iter().for_each(|batch| places.extend(&batch.blocks));
        for (&kind, offsets) in &*lock(&allocator.spare) {
            places.extend(offsets.iter().map(|&offset| Place::of_kind(kind, offset)));
        }
        self.magazines().for_each(|magazine| places.extend(magazine.places()));
        places.iter().map(|place| (place.replica(), place.offset())).collect()
    }

    /// Whether blocks wait until nobody can still see them.
    pub(in crate::store) fn has_batches(&self) -> bool {
        self.allocator.batch_count.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::record::state::RecordOp;
    use crate::store::segment::layout::class_of;

    #[test]
    fn a_place_keeps_what_it_is_given() {
        let place = Place::new(MemberId(4095), 103, ((1u64 << 40) - 1) << 4);
        assert_eq!(
            (place.replica(), place.class(), place.offset()),
            (MemberId(4095), 103, ((1u64 << 40) - 1) << 4)
        );
    }

    #[test]
    fn of_large_blocks_one_is_kept_and_of_very_large_ones_none() {
        assert_eq!((kept(0, false), kept(52, false), kept(80, true)), (128, 1, 0));
    }
    /// A replica has no more room. What a member has freed there is in several batches, and what it
    /// wants is in the last.
    #[cfg(feature = "sim")]
    #[test]
    fn there_is_room_while_there_are_blocks_in_any_batch() {
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
                *lock(&inner.allocator.batches) = batches;
                let op = RecordOp::begin(inner).expect("begun");
                assert!(op.take_block(replica, large).is_ok(), "there is room");
                drop(op);
                is_over.set(true);
            }
            nap(&job, "the one who takes", || is_over.get());
            store.close().expect("closed");
            let _ = job.leave();
        })
        .expect_ok();
    }

    /// Somebody is inside an operation for long, while another member writes until there is no
    /// room. When that is over, the one who writes on needs few blocks, and the others have room
    /// again.
    #[cfg(feature = "sim")]
    #[test]
    fn what_had_to_wait_for_long_is_not_kept_for_ever() {
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
                    // At first none of the waits is known to be over.
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
}

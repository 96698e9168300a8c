//! Reclaiming the blocks of dead members, and a survey of what a segment's memory is used for.
//!
//! The holder words of a replica's blocks say which blocks a dead member had: taken and not used,
//! filled and not published, swapped out and not given back. The background of the replica takes
//! them back, in pieces, by the steps *collect*, *mark*, *wait* and *free*. Versions that the dead
//! member published, and index nodes that it made, stay. A death during a round starts another
//! round when this round is over. The table of the steps is in docs/protocol/memory.md, "Reclaiming
//! the blocks of dead members".

use crate::engine::{Epoch, MemberId, MemberSet, Time};
use crate::store::operation::error::OpResult;
use crate::store::operation::grace_period::GracePeriod;
use crate::store::record::index::CHAIN_MAX;
use crate::store::record::state::RecordOp;
use crate::store::recovery::state::RecoveryState;
use crate::store::segment::head::Head;
use crate::store::segment::layout::{
    BLOCK_HOLDER, HOLDER_MASK, NODE_HEAD, NODE_NEXT, PARTITION_BUCKETS, class_size,
};
use crate::store::segment::place::{Place, is_place};
use crate::sync::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The number of blocks or buckets that a piece of work visits at most.
const PIECE: usize = 4096;

/// The pause before the next attempt, if a piece of work could not be done.
const RECLAIM_PAUSE: Duration = Duration::from_millis(100);

/// The progress of reclaiming at this replica.
#[derive(Default)]
pub(in crate::store) struct Reclaim {
    /// The dead members of the rounds that have begun.
    done: MemberSet,
    round: Option<Round>,
}

/// A round of reclaiming, for the members that were dead at its beginning.
struct Round {
    dead: MemberSet,
    /// The slabs that *collect* still has to visit: offset, size class and number of blocks.
    slabs: Vec<(u64, usize, u64)>,
    /// The blocks that dead members held, with their size class.
    candidates: BTreeMap<u64, usize>,
    /// The number of buckets that *mark* has visited, over all partitions.
    position: usize,
    /// The grace period of *wait*.
    grace: Option<GracePeriod>,
}

impl RecoveryState {
    /// Does a piece of reclaiming. Returns when to go on. Only the background calls this function.
    pub(in crate::store) fn reclaim_some(&self) -> Time {
        let view = self.current_view();
        // The round is taken out of the lock: the engine is never called under a lock, and two
        // activities never share a round.
        let round = {
            let mut reclaim = lock(&self.reclaim);
            match reclaim.round.take() {
                Some(round) => Some(round),
                None if view.dead.iter().all(|member| reclaim.done.contains(member)) => None,
                None => {
                    let all = lock(&self.allocator.slabs)
                        .all
                        .iter()
                        .map(|(&base, &(class, count))| (base, class, count))
                        .collect();
                    let dead = view.dead.clone();
                    reclaim.done.union_with(&dead);
                    Some(Round {
                        dead,
                        slabs: all,
                        candidates: BTreeMap::new(),
                        position: 0,
                        grace: None,
                    })
                }
            }
        };
        let Some(mut round) = round else { return Time::NEVER };
        // Requests of dead members that this member executes must end first: a request could be in
        // the middle of filling or publishing a block of a dead member.
        self.job.drain_requests_of_dead();
        let result = match RecordOp::begin(self) {
            Ok(op) => self.reclaim_piece(&op, &mut round),
            Err(error) => Err(error),
        };
        match result {
            Ok(Some(next)) => {
                lock(&self.reclaim).round = Some(round);
                next
            }
            Ok(None) => self.job.now(),
            Err(_) if self.job.has_ended() => Time::NEVER,
            // All participants are in use, or the own segment has just grown. The round is kept,
            // because no other round will visit the blocks of these dead members.
            Err(_) => {
                lock(&self.reclaim).round = Some(round);
                self.job.now().after(RECLAIM_PAUSE)
            }
        }
    }
}

/// What the memory that a member lends to the store is used for, in bytes, at about this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Values that exist, with their headers and rounding.
    pub values: u64,
    /// Records of the index: keys, and the locations of their values.
    pub records: u64,
    /// Free, for any member.
    pub free: u64,
    /// Kept by living members: for their next writes, or until no operation reads it any more.
    pub held_by_living: u64,
    /// Held by dead members, and about to be reclaimed.
    pub held_by_dead: u64,
}

impl MemoryUse {
    /// The sum of all uses.
    pub fn total(&self) -> u64 {
        self.values + self.records + self.free + self.held_by_living + self.held_by_dead
    }
}

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Record,
    Value,
    Free,
    /// Kept by a living member.
    Held(MemberId),
    /// Held by a dead member.
    HeldByDead,
}

impl RecoveryState {
    /// Counts the bytes of this member's segment by their use.
    pub(in crate::store) fn survey(&self, op: &RecordOp<'_>) -> OpResult<MemoryUse> {
        let mut found = MemoryUse::default();
        self.for_each_block(op, |_, class, what| {
            let field = match what {
                What::Record => &mut found.records,
                What::Value => &mut found.values,
                What::Free => &mut found.free,
                What::Held(_) => &mut found.held_by_living,
                What::HeldByDead => &mut found.held_by_dead,
            };
            *field += class_size(class);
        })?;
        Ok(found)
    }

    /// Visits all blocks of this member's segment.
    fn for_each_block(
        &self,
        op: &RecordOp<'_>,
        mut each: impl FnMut(u64, usize, What),
    ) -> OpResult<()> {
        let (store, job, me) = (self, &self.job, self.me());
        let load = |offset: u64| job.load(Epoch::ANY, me, offset);
        let (mut nodes, mut values) = (BTreeSet::new(), BTreeSet::new());
        for partition in 0..store.placement.partitions {
            let buckets = load(op.partition_word(me, partition, PARTITION_BUCKETS))?;
            let count = if buckets == 0 || !is_place(buckets) { 0 } else { store.bucket_count };
            for bucket in 0..count {
                let mut at = load(buckets + bucket as u64 * 8)?;
                while at != 0 && is_place(at) && nodes.insert(at) {
                    values.extend(Head(load(at + NODE_HEAD)?).offset());
                    at = load(at + NODE_NEXT)?;
                }
            }
        }
        let view = store.current_view();
        let slabs: Vec<_> =
            lock(&store.allocator.slabs).all.iter().map(|(&base, &slab)| (base, slab)).collect();
        for (base, (class, count)) in slabs {
            let size = class_size(class);
            for offset in (0..count).map(|index| base + index * size) {
                if lock(&store.allocator.slabs).is_index(offset) {
                    continue;
                }
                let holder = load(offset + BLOCK_HOLDER)? & HOLDER_MASK;
                let what = match holder {
                    _ if nodes.contains(&offset) => What::Record,
                    _ if values.contains(&offset) => What::Value,
                    0 => What::Free,
                    holder if view.is_living(MemberId(holder as u32 - 1)) => {
                        What::Held(MemberId(holder as u32 - 1))
                    }
                    _ => What::HeldByDead,
                };
                each(offset, class, what);
            }
        }
        Ok(())
    }

    /// Does a piece of a round. Returns when to go on, or `None` if the round is over.
    fn reclaim_piece(&self, op: &RecordOp<'_>, round: &mut Round) -> OpResult<Option<Time>> {
        let (store, job, me) = (self, &self.job, self.me());
        let load = |offset: u64| job.load(Epoch::ANY, me, offset);
        // *collect*.
        let mut left = PIECE;
        while let Some((base, class, count)) = round.slabs.pop() {
            let now = (count as usize).min(left);
            for index in 0..now as u64 {
                let offset = base + index * class_size(class);
                let holder = load(offset + BLOCK_HOLDER)? & HOLDER_MASK;
                if holder != 0 && round.dead.contains(MemberId(holder as u32 - 1)) {
                    round.candidates.insert(offset, class);
                }
            }
            if now < count as usize {
                round.slabs.push((
                    base + now as u64 * class_size(class),
                    class,
                    count - now as u64,
                ));
            }
            left -= now;
            if left == 0 {
                return Ok(Some(job.now()));
            }
        }
        if round.candidates.is_empty() {
            return Ok(None);
        }
        // *mark*.
        let positions = store.placement.partitions * store.bucket_count;
        let end = (round.position + PIECE).min(positions);
        for position in round.position..end {
            let (partition, bucket) =
                (position / store.bucket_count, position % store.bucket_count);
            let buckets = load(op.partition_word(me, partition, PARTITION_BUCKETS))?;
            if buckets == 0 || !is_place(buckets) {
                continue;
            }
            let mut at = load(buckets + bucket as u64 * 8)?;
            for _ in 0..CHAIN_MAX {
                if at == 0 || !is_place(at) {
                    break;
                }
                round.candidates.remove(&at);
                if let Some(offset) = Head(load(at + NODE_HEAD)?).offset() {
                    round.candidates.remove(&offset);
                }
                at = load(at + NODE_NEXT)?;
            }
        }
        round.position = end;
        if end < positions {
            return Ok(Some(job.now()));
        }
        // *wait*.
        let grace = round.grace.get_or_insert_with(|| GracePeriod::begin(store));
        if let Err(due) = grace.is_over_or_due(store) {
            return Ok(Some(due));
        }
        if self.has_given_up_index() {
            // *mark* may have found the next index of a partition. The blocks of the index that was
            // given up are retired first.
            return Ok(Some(job.now().after(RECLAIM_PAUSE)));
        }
        // *free*. A candidate that is the buckets of an index is no block, and is left alone: the word
        // that was taken for its holder is a bucket.
        let Some(grace) = round.grace.take() else { return Ok(None) };
        let (pinned, free): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut round.candidates)
                .into_iter()
                .partition(|(offset, _)| grace.is_pinned(me, *offset));
        round.candidates = pinned;
        for (offset, class) in free {
            for member in round.dead.iter() {
                store.take_back(member, &[Place::new(me, class, offset)]);
            }
        }
        if !round.candidates.is_empty() {
            // Pinned blocks are freed later.
            return Ok(Some(job.now().after(RECLAIM_PAUSE)));
        }
        Ok(None)
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::engine::Fault;
    use crate::engine::sim::{self, Action, Link, Options as SimOptions, Random, When};
    use crate::job::Job;
    use crate::store::Options;
    use crate::store::Store;
    use crate::store::segment::layout::{PARTITION_FLOOR, class_of};
    use crate::store::testing::{nap, reconciled};
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    /// The replica and the offset of a block.
    type At = (MemberId, u64);

    /// The blocks that this member knows, and the blocks in its segment that living members hold,
    /// each with its holder and size class.
    fn blocks(store: &Store) -> (BTreeSet<At>, Vec<(At, MemberId, usize)>) {
        let (me, mut found) = (store.me(), Vec::new());
        let op = RecordOp::begin(&store.state).expect("begun");
        let each = |offset, class, what| {
            if let What::Held(holder) = what {
                found.push(((me, offset), holder, class));
            }
        };
        store.state.for_each_block(&op, each).expect("gone through");
        drop(op);
        (store.state.known_blocks().into_iter().collect(), found)
    }

    /// The blocks in the segment of this member that either no member holds, or a free list has,
    /// and not both; each with its size class. Other activities may move blocks meanwhile.
    fn misplaced(store: &Store) -> Vec<(At, usize)> {
        let (state, me) = (&store.state, store.me());
        let (mut free, mut listed, mut classes) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let op = RecordOp::begin(state).expect("begun");
        let each = |offset, class, what| {
            classes.insert(class);
            if what == What::Free {
                free.insert(((me, offset), class));
            }
        };
        state.for_each_block(&op, each).expect("gone through");
        let load = |offset: u64| state.job.load(Epoch::ANY, me, offset).expect("a word");
        for class in classes {
            let mut at = load(state.root(me) + state.layout.stack(class));
            while at != 0 && listed.insert(((me, at), class)) {
                at = load(at);
            }
        }
        free.symmetric_difference(&listed).copied().collect()
    }

    /// Runs members over a network that write, delete and transact, while one after the other is
    /// stopped for up to two and a half time limits. When all go on and all is quiet, each block is
    /// named by a record, known to its holder, or on the free list of its replica. Then all keys
    /// are deleted, and no record is left. Returns how many calls have timed out.
    fn run_with_late_answers(seed: u64) -> u64 {
        const LIMIT: Duration = Duration::from_millis(20);
        const KEYS: u64 = 12;
        let known: Rc<RefCell<BTreeSet<At>>> = Rc::default();
        let held: Rc<RefCell<Vec<(At, MemberId, usize)>>> = Rc::default();
        let lost: Rc<RefCell<Vec<(At, usize)>>> = Rc::default();
        let (known_here, held_here, lost_here) = (known.clone(), held.clone(), lost.clone());
        let late = Rc::new(Cell::new(0));
        let late_here = late.clone();
        let (written, quiet, looked) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let mut plan = SimOptions::new(4, seed).link(Link::Network);
        (plan.time_limit, plan.steps_max) = (LIMIT, 50_000_000);
        let report = sim::run(&plan, move |job: Job| {
            let options = Options::new().replicas(2).partitions(4).expected_keys(16);
            let store = Store::open(&job, options).expect("open");
            let mut random = Random::new(seed << 8 | u64::from(job.me().0));
            let driver = MemberId(3);
            let has_transactions = seed % 2 == 1;
            if job.me() == driver {
                while written.get() < 3 {
                    let stopped = MemberId(random.below(3) as u32);
                    job.sleep(Duration::from_micros(random.below(3000)));
                    job.inject(Fault::Stop(stopped)).expect("a fault");
                    job.sleep(LIMIT * (1 + random.below(5) as u32) / 2);
                    job.inject(Fault::Resume(stopped)).expect("a fault");
                }
            } else {
                let slot = format!("slot/{}", job.me().0);
                let slot = store.handle(slot.as_bytes()).expect("a key");
                for _ in 0..60 {
                    let key = format!("key/{}", random.below(KEYS));
                    let value = vec![7; random.below(3000) as usize];
                    let done = match random.below(8) {
                        0 | 1 => store.delete(key.as_bytes()).map(|_| ()),
                        2 | 3 => slot.put(&value[..value.len() / 8]).map(|_| ()),
                        4 if has_transactions => store.transaction(|tx| {
                            tx.put(key.as_bytes(), &value)?;
                            tx.put(b"key/0", &value)
                        }),
                        _ => store.put(key.as_bytes(), &value).map(|_| ()),
                    };
                    late_here.set(late_here.get() + u64::from(done.is_err()));
                }
                written.set(written.get() + 1);
            }
            nap(&job, "the writers", || written.get() == 3);
            let is_quiet = || store.state.straggling_replica().is_none();
            nap(&job, "the answers", is_quiet);
            quiet.set(quiet.get() + 1);
            nap(&job, "the answers to others", || quiet.get() == 4);
            if job.me() == driver {
                let mut keys: Vec<String> =
                    (0..KEYS).map(|number| format!("key/{number}")).collect();
                keys.extend((0..3).map(|member| format!("slot/{member}")));
                keys.iter().for_each(|key| {
                    nap(&job, "room for a tombstone", || store.delete(key.as_bytes()).is_ok())
                });
            }
            let look = || (blocks(&store), misplaced(&store));
            let rest = Duration::from_secs(10);
            let ((known, found), misplaced) = reconciled(&job, "its blocks", rest, look);
            known_here.borrow_mut().extend(known);
            held_here.borrow_mut().extend(found);
            lost_here.borrow_mut().extend(misplaced);
            if !has_transactions {
                let op = RecordOp::begin(&store.state).expect("begun");
                let found = store.state.survey(&op).expect("counted");
                drop(op);
                assert_eq!(
                    (found.records, found.values),
                    (0, 0),
                    "at {} with seed {seed}",
                    job.me()
                );
            }
            looked.set(looked.get() + 1);
            nap(&job, "the others", || looked.get() == 4);
            store.close().expect("closed");
            let _ = job.leave();
        });
        report.expect_ok();
        let known = known.borrow();
        let forgotten: Vec<_> =
            held.borrow().iter().filter(|(at, ..)| !known.contains(at)).copied().collect();
        assert!(forgotten.is_empty(), "seed {seed}: {forgotten:?}");
        assert!(lost.borrow().is_empty(), "seed {seed}, misplaced: {:?}", lost.borrow());
        late.get()
    }

    #[test]
    fn no_block_is_forgotten_when_answers_are_late() {
        let late: u64 = (0..30).map(run_with_late_answers).sum();
        assert!(late > 100, "{late} calls were late");
    }

    /// A replica is filling, and other members write there, when the last complete replica dies.
    /// The loss is accepted, and the index of the filling replica is given up. When all is quiet,
    /// each block that no record names is known to its holder.
    #[test]
    fn no_block_of_an_index_that_was_given_up_is_forgotten() {
        for seed in 0..30 {
            let known: Rc<RefCell<BTreeSet<At>>> = Rc::default();
            let held: Rc<RefCell<Vec<(At, MemberId, usize)>>> = Rc::default();
            let (known_here, held_here) = (known.clone(), held.clone());
            let (stage, looked) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let mut plan = SimOptions::new(4, seed);
            plan.time_limit = Duration::from_millis(100);
            let report = sim::run(&plan, move |job: Job| {
                let options = Options::new().replicas(2).partitions(8).expected_keys(32);
                let store = Store::open(&job, options).expect("open");
                let [dead, primary, writer] = [0, 1, 2].map(MemberId);
                if job.me() == dead || job.me() == primary {
                    return nap(&job, "its death", || false);
                }
                if job.me() == writer {
                    let put = |number: usize| {
                        let key = format!("key/{number}").into_bytes();
                        // The stopped member may have to make a slab.
                        let _ = store.put(&key, &vec![7; 100 + number]);
                    };
                    (0..40).for_each(put);
                    job.fence(dead, Time::NEVER).expect("killed");
                    job.sleep(Duration::from_micros(10 * seed));
                    job.inject(Fault::Stop(primary)).expect("stopped");
                    (0..60).for_each(put);
                    job.fence(primary, Time::NEVER).expect("killed");
                    store.accept_loss().expect("accepted");
                    (20..50).for_each(put);
                    stage.set(1);
                }
                nap(&job, "the writer", || stage.get() == 1);
                let look = || blocks(&store);
                let (known, found) = reconciled(&job, "its blocks", Duration::from_secs(10), look);
                known_here.borrow_mut().extend(known);
                held_here.borrow_mut().extend(found);
                looked.set(looked.get() + 1);
                nap(&job, "the others", || looked.get() == 2);
                store.close().expect("closed");
                let _ = job.leave();
            });
            report.expect_ok();
            let known = known.borrow();
            let forgotten: Vec<_> =
                held.borrow().iter().filter(|(at, ..)| !known.contains(at)).copied().collect();
            assert!(forgotten.is_empty(), "seed {seed}: {forgotten:?}");
        }
    }

    /// The memory of a replica is full, and the index of a partition is in a block. A bucket is at
    /// the place of the holder word of a block, and begins with a node whose offset ends like the
    /// holder word of a block of the dead member. (The offset of a node is a multiple of 16, so
    /// there are at least 16 members.) The index stays as it is.
    #[test]
    fn the_buckets_of_an_index_are_no_block_of_a_dead_member() {
        let over = Rc::new(Cell::new(false));
        let mut plan = SimOptions::new(17, 0).link(Link::Memory);
        (plan.segment_limit, plan.steps_max) = (1 << 20, 50_000_000);
        let report = sim::run(&plan, move |job: Job| {
            let options = Options::new().replicas(1).partitions(32).expected_keys(64);
            let store = Store::open(&job, options).expect("open");
            let (state, me, dead) = (&store.state, MemberId(0), MemberId(15));
            if job.me() == me {
                let class = class_of(state.bucket_count as u64 * 8).expect("short");
                state.refill_slab(class).expect("room");
                // Zeros, which are a record without a key and without a version.
                let zeros = job.reserve(128 << 10).expect("room");
                while job.reserve(64).is_ok() {}
                let node = (zeros | 0xffff) + 1 + u64::from(dead.0 + 1);
                // This member is no replica of the partition, before and after the death.
                let is_right = |&partition: &usize| {
                    !state.placement.preference(partition)[..2].contains(&me)
                };
                let partition = (0..32).find(is_right).expect("some partition");
                let op = RecordOp::begin(state).expect("begun");
                op.make_index(partition).expect("a free block");
                let word = op.partition_word(me, partition, PARTITION_BUCKETS);
                drop(op);
                let load = |offset: u64| job.load(Epoch::ANY, me, offset).expect("a word");
                let buckets = load(word);
                let put = |bucket: u64, node: u64| {
                    let word = buckets + bucket * 8;
                    job.put(Epoch::ANY, me, word, &node.to_ne_bytes()).expect("a bucket");
                };
                put(0, node + 0x100);
                put(BLOCK_HOLDER / 8, node);
                job.fence(dead, Time::NEVER).expect("killed");
                let is_reclaimed = || {
                    let reclaim = lock(&state.reclaim);
                    reclaim.done.contains(dead) && reclaim.round.is_none()
                };
                nap(&job, "reclaiming", is_reclaimed);
                job.sleep(Duration::from_secs(1));
                assert_eq!(load(buckets + BLOCK_HOLDER), node, "a bucket");
                assert_eq!(load(buckets), node + 0x100, "the first bucket");
                let op = RecordOp::begin(state).expect("begun");
                let found = state.survey(&op).expect("counted");
                assert_eq!(found.held_by_dead, 0, "{found:?}");
                drop(op);
                over.set(true);
            }
            nap(&job, "the end", || over.get() && job.me() != dead);
            let _ = store.close();
            let _ = job.leave();
        });
        report.expect_ok();
    }

    /// A member is stopped at each step of a salvage, and the view changes. When all is quiet, each
    /// block that no record names is known to its holder.
    #[test]
    fn no_block_is_forgotten_when_a_view_changes_during_a_salvage() {
        for step in 1..300 {
            let known: Rc<RefCell<BTreeSet<At>>> = Rc::default();
            let held: Rc<RefCell<Vec<(At, MemberId, usize)>>> = Rc::default();
            let (known_here, held_here) = (known.clone(), held.clone());
            let (stage, looked) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let mut plan = SimOptions::new(4, step).link(Link::Memory);
            (plan.keeps_dead_segments, plan.steps_max) = (true, 10_000_000);
            let report = sim::run(&plan, move |job: Job| {
                let options = Options::new().replicas(1).partitions(1).expected_keys(16);
                let store = Store::open(&job, options.salvage(true)).expect("open");
                let [victim, salvager, other, watcher] = store.state.placement.preference(0)[..]
                else {
                    panic!("four members")
                };
                if job.me() == other {
                    store.put(b"key", &[7; 3000]).expect("put");
                    stage.set(1);
                    nap(&job, "the salvager", || stage.get() == 2);
                    job.fence(victim, Time::NEVER).expect("killed");
                    job.sleep(Duration::from_millis(5));
                    job.inject(Fault::Kill(other)).expect("a fault");
                }
                if job.me() == salvager {
                    nap(&job, "the value", || stage.get() == 1);
                    job.inject(Fault::StopAtStep(step)).expect("a fault");
                    stage.set(2);
                }
                if job.me() == watcher {
                    nap(&job, "the deaths", || job.view().dead.len() == 2);
                    let resumer = job.clone();
                    let resume = move || {
                        while resumer.view().is_living(salvager) && !resumer.has_ended() {
                            let _ = resumer.inject(Fault::Resume(salvager));
                            resumer.sleep(Duration::from_millis(1));
                        }
                    };
                    job.spawn("resumer", Box::new(resume)).expect("an activity");
                    assert_eq!(store.get(b"key").expect("read").expect("there").bytes, [7; 3000]);
                    stage.set(3);
                }
                let is_killed = [victim, other].contains(&job.me());
                nap(&job, "the salvage", || stage.get() == 3 && !is_killed);
                let rest = Duration::from_secs(10);
                let (known, found) = reconciled(&job, "its blocks", rest, || blocks(&store));
                known_here.borrow_mut().extend(known);
                held_here.borrow_mut().extend(found);
                looked.set(looked.get() + 1);
                nap(&job, "the other", || looked.get() == 2);
                store.close().expect("closed");
                let _ = job.leave();
            });
            report.expect_ok();
            let known = known.borrow();
            let forgotten: Vec<_> =
                held.borrow().iter().filter(|(at, ..)| !known.contains(at)).copied().collect();
            assert!(forgotten.is_empty(), "step {step}: {forgotten:?}");
        }
    }

    /// A replica dies in the middle of the operations of the other members. When all is quiet, each
    /// block that no record names is known to its holder, or is on the free list of its replica.
    /// (The member that dies writes nothing itself: a block that it had just swapped out, without
    /// becoming its holder, would be forgotten.)
    #[test]
    fn no_block_is_forgotten_when_a_view_changes() {
        let mut deaths = 0;
        for seed in 0..100 {
            let options = SimOptions::new(5, seed).link(Link::Memory);
            let when = When::AtStep(MemberId(0), 500 + 150 * (seed % 40));
            let options = options.fault(when, Action::Kill(MemberId(4)));
            let known: Rc<RefCell<BTreeSet<At>>> = Rc::default();
            let held: Rc<RefCell<Vec<(At, MemberId, usize)>>> = Rc::default();
            let (known_here, held_here) = (known.clone(), held.clone());
            let looked_here = Cell::new(0);
            let report = sim::run(&options, move |job: Job| {
                let options = Options::new().replicas(3).partitions(8).expected_keys(32);
                let Ok(store) = Store::open(&job, options) else { return };
                let mut random = Random::new(seed << 8 | u64::from(job.me().0));
                let slot = store.handle(format!("slot/{}", job.me().0).as_bytes()).expect("a key");
                for _ in 0..if job.me().0 == 4 { 0 } else { 80 } {
                    let key = format!("key/{}", random.below(12));
                    let value = vec![7; random.below(300) as usize];
                    let done = match random.below(8) {
                        0 => store.delete(key.as_bytes()).map(|_| ()),
                        1 | 2 => slot.put(&value).map(|_| ()),
                        3 => store.transaction(|tx| {
                            tx.put(key.as_bytes(), &value)?;
                            tx.put(b"key/0", &value)
                        }),
                        _ => store.put(key.as_bytes(), &value).map(|_| ()),
                    };
                    done.expect("done");
                }
                let look = || blocks(&store);
                let (known, found) = reconciled(&job, "its blocks", Duration::from_secs(10), look);
                known_here.borrow_mut().extend(known);
                held_here.borrow_mut().extend(found);
                looked_here.set(looked_here.get() + 1);
                // No member ends before all members have looked: its blocks would be reclaimed.
                nap(&job, "the others", || looked_here.get() >= job.view().living().count());
                store.close().expect("closed");
                let _ = job.leave();
            });
            deaths += report.expect_ok().kills;
            let known = known.borrow();
            let forgotten: Vec<_> =
                held.borrow().iter().filter(|(at, ..)| !known.contains(at)).copied().collect();
            assert!(forgotten.is_empty(), "seed {seed}: {forgotten:?}");
        }
        assert!(deaths > 80, "{deaths} deaths");
    }

    /// Over a network the record of a deleted key is removed. One of its replicas is stopped after
    /// *raise_floor* there, some time before or after *mark_primary* and *mark_others*. If `dies`
    /// is set, another replica dies meanwhile. When the stopped replica goes on, the record is
    /// removed everywhere, and no block is forgotten. Returns whether the stopped replica had its
    /// record still when it went on, and whether a request of the removal was open there.
    fn remove_with_a_stopped_replica(seed: u64, dies: bool) -> (bool, bool) {
        const LIMIT: Duration = Duration::from_millis(200);
        let known: Rc<RefCell<BTreeSet<At>>> = Rc::default();
        let held: Rc<RefCell<Vec<(At, MemberId, usize)>>> = Rc::default();
        let (known_here, held_here) = (known.clone(), held.clone());
        let (had_record, is_open) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (had_record_here, is_open_here) = (had_record.clone(), is_open.clone());
        let (stage, looked) = (Cell::new(0), Cell::new(0));
        let mut plan = SimOptions::new(6, seed).link(Link::Network);
        (plan.time_limit, plan.steps_max) = (LIMIT, 50_000_000);
        let report = sim::run(&plan, move |job: Job| {
            let options = Options::new().replicas(3).partitions(16).expected_keys(64);
            let store = Store::open(&job, options).expect("open");
            let (state, remover) = (&store.state, MemberId(0));
            let mut keys = (0..1000).map(|number| format!("key/{number}").into_bytes());
            let key = keys.find(|key| !store.replicas_of(key).contains(&remover));
            let key = key.expect("some key");
            let replicas = store.replicas_of(&key);
            let turn = seed as usize % 3;
            let (stopped, dead) =
                (replicas[turn], replicas[(turn + 1 + seed as usize / 3 % 2) % 3]);
            let records = || {
                let op = RecordOp::begin(state).expect("begun");
                state.survey(&op).expect("counted").records
            };
            if job.me() == remover {
                store.put(&key, b"value").expect("put");
                job.sleep(Duration::from_secs(1));
                stage.set(1);
                job.sleep(Duration::from_millis(2));
                assert!(store.delete(&key).expect("deleted"));
                nap(&job, "the stop", || stage.get() == 2);
                job.sleep(LIMIT / 2);
                if dies {
                    job.fence(dead, Time::NEVER).expect("killed");
                }
                job.sleep(LIMIT * 3);
                is_open_here.set(state.straggling_replica() == Some(stopped));
                job.inject(Fault::Resume(stopped)).expect("a fault");
                nap(&job, "the stopped replica", || stage.get() == 3);
            } else if job.me() == stopped {
                nap(&job, "the delete", || stage.get() == 1);
                let partition = store.partition_of(&key).expect("a key");
                let word = {
                    let op = RecordOp::begin(state).expect("begun");
                    op.partition_word(stopped, partition, PARTITION_FLOOR)
                };
                let floor = || job.load(Epoch::ANY, stopped, word).expect("a floor");
                let before = floor();
                while floor() == before {
                    job.sleep(Duration::from_nanos(200));
                }
                job.sleep(Duration::from_nanos(seed * 7919 % 60_000));
                stage.set(2);
                job.inject(Fault::StopAtStep(1)).expect("a fault");
                had_record_here.set(records() > 0);
                stage.set(3);
            } else if dies && job.me() == dead {
                return nap(&job, "its death", || false);
            }
            nap(&job, "the stopped replica", || stage.get() == 3);
            let until = job.now().after(Duration::from_secs(30));
            while records() > 0 {
                assert!(job.now() < until, "{} has a record with seed {seed}", job.me());
                job.sleep(Duration::from_millis(10));
            }
            let rest = Duration::from_secs(10);
            let (known, found) = reconciled(&job, "its blocks", rest, || blocks(&store));
            known_here.borrow_mut().extend(known);
            held_here.borrow_mut().extend(found);
            looked.set(looked.get() + 1);
            nap(&job, "the others", || looked.get() == if dies { 5 } else { 6 });
            let _ = store.close();
            let _ = job.leave();
        });
        report.expect_ok();
        let known = known.borrow();
        let forgotten: Vec<_> =
            held.borrow().iter().filter(|(at, ..)| !known.contains(at)).copied().collect();
        assert!(forgotten.is_empty(), "seed {seed}: {forgotten:?}");
        (had_record.get(), is_open.get())
    }

    #[test]
    fn a_removal_ends_when_a_stopped_replica_goes_on() {
        let runs = (0..48).map(|seed| remove_with_a_stopped_replica(seed, seed % 2 == 1));
        let (had_record, open) = runs.fold((0, 0), |(all, open), (had_record, is_open)| {
            (all + u32::from(had_record), open + u32::from(had_record && is_open))
        });
        assert!(had_record > 20 && open > 10, "{had_record} times, {open} times with a late swap");
    }
}

//! Removing the records of deleted keys. The protocol page below has the steps, what a survivor
//! finds after each, and why each is needed.
//!
//! The background of the member that deleted a key executes the steps. For the tombstones of a dead
//! member the primary does, once repair has found and queued them.
//! [`RecordState::record_tombstone`] queues a tombstone. `remove_piece` waits for a grace period
//! (*wait*) and then executes *raise_floor*, *mark_primary* and *mark_others* for a few tombstones
//! at a time. It reports the marked buckets to their replicas, and each replica unlinks the marked
//! nodes from its own index (*unlink*).

#![cfg_attr(outlast_pages, doc = include_str!("../../../../../docs/protocol/deleting.md"))]

use crate::engine::{Epoch, Error, MemberId, Time};
use crate::store::error::StoreError;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::operation::grace_period::GracePeriod;
use crate::store::operation::message::Message;
use crate::store::operation::open_swaps::{SwapBlocks, TakenBlock};
use crate::store::record::block_io::{COUNTER_MAX, block_class};
use crate::store::record::index::CHAIN_MAX;
use crate::store::record::key::KeyRef;
use crate::store::record::state::{RecordOp, RecordState};
use crate::store::record::version_floor::INCARNATION_SHIFT;
use crate::store::segment::head::{Head, Phase};
use crate::store::segment::layout::{
    Block, NODE_HEAD, NODE_KEY, NODE_NEXT, NODE_WORD, PARTICIPANTS, PARTITION_BUCKETS, REMOVALS,
    class_of,
};
use crate::store::segment::place::is_place;
use crate::sync::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

/// The pause before a grace period is polled for the first time.
const COLLECT: Duration = Duration::from_millis(5);

/// The number of records that are removed in a piece of background work.
const PIECE: usize = 32;

/// The pause before a removal is tried again at a replica that is filling or did not answer.
const REMOVE_PAUSE: Duration = Duration::from_millis(100);

/// How many marked buckets a message names, which must be short enough for
/// [`crate::engine::TRY_SEND_LEN_MAX`].
const MARKED_MAX: usize = 200;

/// The greatest pause between two checks of retired blocks.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The greatest number of tombstones that are queued. A tombstone beyond that stays until the
/// primary visits it after the next death.
const REMEMBERED_MAX: usize = 1 << 20;

/// The bit that is set in the counter of a tombstone whose write has failed: it may have happened.
const OPEN: u64 = COUNTER_MAX;

/// Deleted keys and the version counters of their tombstones, 0 for a record that may have been
/// left empty. [`OPEN`] is set in some of the counters. A set, because repair may find a tombstone
/// again and again.
type Tombstones = BTreeSet<(Vec<u8>, u64)>;

/// The tombstones that this member has to remove.
#[derive(Default)]
pub(in crate::store) struct Removals {
    /// New tombstones, for which no grace period has begun.
    fresh: Mutex<Tombstones>,
    /// Tombstones that wait for a grace period (*wait*).
    waiting: Mutex<Vec<(Tombstones, GracePeriod)>>,
    /// Tombstones that can be removed now.
    due: Mutex<Tombstones>,
    /// The buckets of this member with nodes to unlink, as partition and bucket.
    marked: Mutex<Vec<u64>>,
    /// The buckets of other members with nodes to unlink, of which they have not been told: there
    /// was no room for the message.
    untold: Mutex<BTreeMap<MemberId, Vec<u64>>>,
    /// The indexes of this member that were given up, by partition and offset of the buckets.
    given_up: Mutex<BTreeMap<(usize, u64), GivenUp>>,
    /// Whether an activity is removing records: only a single activity at a time changes the index.
    is_busy: Mutex<bool>,
    /// When to check whether the blocks that were retired here can be reused, and the pause after
    /// that.
    retired: Mutex<Option<(Time, Duration)>>,
}

/// What is still to be done with an index that was given up.
///
/// Its buckets go to a single other index: they are kept when the index leaves the list, and it
/// leaves the list in a single place, once it was replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GivenUp {
    /// Its nodes and blocks are to be retired. It is the index of its partition until there is
    /// another.
    Full,
    /// Its nodes and blocks are retired. It is the index of its partition still: there was no room
    /// for another.
    Emptied,
    /// The partition has another index. The nodes and blocks are to be retired, and then the
    /// buckets are kept.
    Replaced,
}

impl RecordState {
    /// Queues a stable tombstone, or with counter 0 a record that may have been left empty, for
    /// removal.
    pub(in crate::store) fn record_tombstone(&self, key: &[u8], counter: u64) {
        let is_first = {
            let mut fresh = lock(&self.removal.fresh);
            if fresh.len() >= REMEMBERED_MAX {
                return;
            }
            fresh.insert((key.to_vec(), counter));
            fresh.len() == 1
        };
        if is_first {
            let _ = self.job.ring(self.me());
        }
    }

    /// Queues a tombstone whose write has failed with an open outcome. After a grace period the
    /// write has happened or never will.
    pub(in crate::store) fn record_open_tombstone(&self, key: &[u8], counter: u64) {
        self.record_tombstone(key, counter | OPEN);
    }

    /// Queues buckets of this member that have nodes marked as *removed*.
    pub(in crate::store) fn record_marked_buckets(&self, buckets: &[u64]) {
        let is_known = |&place: &u64| {
            (place >> 32) < self.placement.partitions as u64
                && (place & 0xffff_ffff) < self.bucket_count as u64
        };
        lock(&self.removal.marked).extend(buckets.iter().copied().filter(is_known));
        let _ = self.job.ring(self.me());
    }

    /// Executes a piece of removal, for the background alone. Returns when it wants to run again.
    pub(in crate::store) fn remove_some(&self) -> Time {
        if std::mem::replace(&mut *lock(&self.removal.is_busy), true) {
            return Time::NEVER;
        }
        let next = self.remove_piece();
        *lock(&self.removal.is_busy) = false;
        next
    }

    /// Whether the blocks of an index that was given up are still to be retired.
    pub(in crate::store) fn has_given_up_index(&self) -> bool {
        lock(&self.removal.given_up).values().any(|&index| index != GivenUp::Emptied)
    }

    /// Retires the nodes and blocks of the indexes that were given up.
    fn retire_given_up(&self) {
        let given_up = lock(&self.removal.given_up).clone();
        if given_up.values().all(|&index| index == GivenUp::Emptied) {
            return;
        }
        let Ok(op) = RecordOp::begin(self) else { return };
        for (&(partition, buckets), &index) in &given_up {
            if index != GivenUp::Emptied {
                // An access to the own memory fails only when the membership has ended.
                let _ = op.retire_index(partition, buckets);
            }
        }
        op.flush_retired();
        self.record_retired();
    }

    /// Records that the nodes and blocks of an index that was given up are retired. Returns whether
    /// its buckets are to be kept. Otherwise the partition has these buckets still.
    fn end_given_up(&self, partition: usize, buckets: u64) -> bool {
        let mut given_up = lock(&self.removal.given_up);
        match given_up.get_mut(&(partition, buckets)) {
            Some(GivenUp::Replaced) => given_up.remove(&(partition, buckets)).is_some(),
            Some(index) => {
                *index = GivenUp::Emptied;
                false
            }
            None => false,
        }
    }

    /// A piece of removal: unlinks marked nodes, polls the grace periods, removes some tombstones,
    /// and lets retired blocks be reused. Returns when it wants to run again.
    fn remove_piece(&self) -> Time {
        let removal = &self.removal;
        let now = self.job.now();
        self.retire_given_up();
        if self.retire_freed() {
            self.record_retired();
        }
        for (replica, bucket) in self.take_marked() {
            self.record_marked(replica, vec![bucket]);
        }
        let marked = std::mem::take(&mut *lock(&removal.marked));
        if !marked.is_empty()
            && let Ok(op) = RecordOp::begin(self)
        {
            for place in marked {
                // An access to the own memory fails only when the membership has ended.
                let _ = op.take_out((place >> 32) as usize, (place & 0xffff_ffff) as usize);
            }
            op.flush_retired();
            self.record_retired();
        }
        let mut waiting = std::mem::take(&mut *lock(&removal.waiting));
        let mut over = Tombstones::new();
        let mut next = Time::NEVER;
        waiting.retain_mut(|(tombstones, grace)| match grace.is_over_or_due(self) {
            Ok(()) => {
                over.append(tombstones);
                false
            }
            Err(due) => {
                next = next.min(due);
                true
            }
        });
        // Tombstones that arrived meanwhile wait for the next grace period, so that there are few
        // of them.
        if waiting.is_empty() {
            let fresh = std::mem::take(&mut *lock(&removal.fresh));
            if !fresh.is_empty() {
                waiting.push((fresh, GracePeriod::begin(self)));
                next = now.after(COLLECT);
            }
        }
        lock(&removal.waiting).append(&mut waiting);
        let (tombstones, is_more) = {
            let mut due = lock(&removal.due);
            due.append(&mut over);
            let piece: Vec<_> = std::iter::from_fn(|| due.pop_first()).take(PIECE).collect();
            (piece, !due.is_empty())
        };
        let mut marked: BTreeMap<MemberId, Vec<u64>> = BTreeMap::new();
        let mut is_late = false;
        if !tombstones.is_empty() {
            // A single operation for all tombstones, so that their blocks are retired together.
            let op = RecordOp::begin(self);
            for (key, counter) in tombstones {
                match self.remove(op.as_ref().ok(), &key, counter, &mut marked) {
                    Ok(true) => {}
                    // Later: a replica is not complete, or does not answer.
                    Ok(false) => {
                        is_late = true;
                        lock(&removal.fresh).insert((key, counter));
                    }
                    Err(_) => {}
                }
            }
            if let Ok(op) = &op
                && !is_more
            {
                op.flush_retired();
                self.record_retired();
            }
        }
        for (replica, buckets) in marked {
            self.record_marked(replica, buckets);
        }
        next = next.min(self.tell_marked()).min(self.reuse_removed());
        if self.has_given_up_index() {
            // All participants were in use.
            next = next.min(now.after(REMOVE_PAUSE));
        }
        match (is_more, is_late) {
            (true, _) => now,
            (false, true) => next.min(now.after(REMOVE_PAUSE)),
            (false, false) => next,
        }
    }

    /// Records that buckets of a replica have nodes to unlink.
    fn record_marked(&self, replica: MemberId, buckets: Vec<u64>) {
        match replica == self.me() {
            true => self.record_marked_buckets(&buckets),
            false => lock(&self.removal.untold).entry(replica).or_default().extend(buckets),
        }
    }

    /// Tells other members which of their buckets have nodes to unlink. Waits for no member: the
    /// buckets of a member that has no room for the message are kept, and so are the buckets that
    /// do not fit into a message. Returns when to try again.
    fn tell_marked(&self) -> Time {
        // The buckets are taken out: the engine is never called under a lock.
        let mut untold = std::mem::take(&mut *lock(&self.removal.untold));
        untold.retain(|&replica, buckets| {
            while !buckets.is_empty() {
                let count = buckets.len().min(MARKED_MAX);
                let marked = Message::Marked { buckets: buckets[..count].to_vec() };
                match self.try_send(replica, &marked) {
                    Ok(true) => drop(buckets.drain(..count)),
                    Ok(false) => return true,
                    // The member is dead, or this member has left.
                    Err(_) => return false,
                }
            }
            false
        });
        if untold.is_empty() {
            return Time::NEVER;
        }
        let mut kept = lock(&self.removal.untold);
        for (replica, mut buckets) in untold {
            let kept = kept.entry(replica).or_default();
            kept.append(&mut buckets);
            // There are never more than the replica has buckets.
            kept.sort_unstable();
            kept.dedup();
        }
        drop(kept);
        self.job.now().after(REMOVE_PAUSE)
    }

    /// Records that blocks of removed records wait for a grace period.
    fn record_retired(&self) {
        *lock(&self.removal.retired) = Some((self.job.now().after(COLLECT), COLLECT));
    }

    /// Lets the blocks of removed records be reused, also if this member writes nothing. Returns
    /// when to check again.
    fn reuse_removed(&self) -> Time {
        let Some((due, pause)) = *lock(&self.removal.retired) else { return Time::NEVER };
        let now = self.job.now();
        if now < due {
            return due;
        }
        // The participant that deleted the key may retire nothing for a long time.
        (0..PARTICIPANTS)
            .filter_map(|participant| RecordOp::begin_as(self, participant))
            .for_each(|op| op.flush_retired());
        if let Ok(op) = RecordOp::begin(self) {
            op.reuse_or_give_back(false, usize::MAX);
        }
        // A member may be stopped in an operation, so the pause grows.
        let next = now.after(pause);
        *lock(&self.removal.retired) =
            self.has_batches().then_some((next, (pause * 2).min(PAUSE_MAX)));
        if self.has_batches() { next } else { Time::NEVER }
    }

    /// *raise_floor*, *mark_primary* and *mark_others* for a key. `false` if that has to be tried
    /// again later.
    fn remove(
        &self,
        op: Option<&RecordOp<'_>>,
        key: &[u8],
        counter: u64,
        marked: &mut BTreeMap<MemberId, Vec<u64>>,
    ) -> Result<bool, StoreError> {
        let key = self.any_key_ref(key);
        let bucket = (key.partition as u64) << 32 | key.hash & (self.bucket_count as u64 - 1);
        // Without an operation it is tried again later.
        let result = op.map_or(Err(OpError::Again), |op| op.remove(&key, counter, bucket, marked));
        match result {
            Ok(is_reconciled) => Ok(is_reconciled),
            Err(
                OpError::Again
                | OpError::Needs(..)
                | OpError::Blocked(_)
                | OpError::Frozen
                | OpError::Fail(StoreError::Timeout { .. } | StoreError::OutOfMemory { .. }),
            ) => Ok(false),
            Err(OpError::Lost(_)) if self.salvage_is_on => Ok(false),
            Err(OpError::Lost(partition)) => Err(StoreError::DataLost { partition }),
            Err(OpError::Fail(error)) => Err(error),
        }
    }
}

impl<'a> RecordOp<'a> {
    /// *raise_floor*, *mark_primary* and *mark_others*, inside an operation. Adds the bucket to
    /// `marked` for each replica with a node to unlink.
    fn remove(
        &self,
        key: &KeyRef<'_>,
        counter: u64,
        bucket: u64,
        marked: &mut BTreeMap<MemberId, Vec<u64>>,
    ) -> OpResult<bool> {
        let (counter, is_open) = (counter & !OPEN, counter & OPEN != 0);
        let config = self.config(key.partition)?;
        for &replica in config.replicas.iter() {
            if self.state(replica, key.partition)?.phase() != Phase::Complete {
                return Ok(false);
            }
        }
        let primary = config.primary_member();
        let at_primary = match self.find(config, config.primary, key)? {
            Some((word, _)) => Some((word, self.reconciled(config, key, word)?)),
            // An earlier attempt has done *mark_primary* and not *mark_others*.
            None => None,
        };
        let is_wanted = |member: MemberId, head: Head| -> OpResult<Option<Option<Block>>> {
            let block = head.offset().map(|offset| self.read_block(member, offset)).transpose()?;
            let found = block.map_or((true, 0), |block| (block.is_deleted, block.counter));
            Ok((found == (true, counter)).then_some(block))
        };
        let at_primary = match at_primary {
            Some((word, head)) => match is_wanted(primary, head)? {
                Some(block) => Some((word, head, block)),
                // The key was written again.
                None => return Ok(true),
            },
            None => None,
        };
        if is_open {
            // The record is reconciled, so the tombstone is stable now, and *wait* begins.
            if at_primary.is_some() {
                self.store.record_tombstone(key.key, counter);
            }
            return Ok(true);
        }
        // The key was damaged, and its loss accepted: its versions belong to a later incarnation
        // than the partition. The floor must not rise to that incarnation, since it tells which
        // other keys were lost. So the tombstone stays.
        let floor = self.floor(primary, key.partition)?;
        if counter >> INCARNATION_SHIFT > floor >> INCARNATION_SHIFT {
            return Ok(true);
        }
        // *raise_floor*.
        for &replica in config.replicas.iter() {
            self.raise_floor(replica, key.partition, counter)?;
        }
        // *mark_primary*. The epoch is checked again: a replica that fills under a newer view may
        // have received its floor before it was raised.
        if !self.is_current() {
            return Ok(false);
        }
        // After a timeout the answer to the swap tells the background of the bucket, and retires
        // the block.
        let swap = |member: MemberId, word: u64, head: Head| {
            let taken = head.offset().map(TakenBlock::version);
            let blocks = || SwapBlocks { added: None, taken, marked: Some(bucket) };
            self.swap_blocks(member, word, head.0, Head::REMOVED.0, blocks)
        };
        if let Some((word, head, block)) = at_primary {
            if !swap(primary, word, head)? {
                return Ok(false);
            }
            marked.entry(primary).or_default().push(bucket);
            self.retire_removed(primary, head, block)?;
        }
        // *mark_others*.
        for (replica, member) in
            config.enumerate().filter(|(replica, _)| *replica != config.primary)
        {
            let Some((word, head)) = self.find(config, replica, key)? else { continue };
            if head.config_number() != config.config_number {
                continue;
            }
            if let Some(block) = is_wanted(member, head)?
                && swap(member, word, head)?
            {
                marked.entry(member).or_default().push(bucket);
                self.retire_removed(member, head, block)?;
            }
        }
        Ok(true)
    }

    /// Retires the block of a record that is being removed, if it had one.
    fn retire_removed(&self, replica: MemberId, head: Head, block: Option<Block>) -> OpResult<()> {
        match (head.offset(), block) {
            (Some(offset), Some(block)) => {
                self.retire_block(replica, offset, &block, block_class(&block, replica)?)
            }
            _ => Ok(()),
        }
    }

    /// Makes an empty index for a partition at this member. If it has an index, that index is given
    /// up: the background retires its nodes and the blocks that they name. Otherwise the blocks of
    /// living members there would never be reused, since no index names them any more.
    pub(in crate::store) fn renew_index(&self, partition: usize) -> OpResult<()> {
        let me = self.store.me();
        let former = self.load(me, self.partition_word(me, partition, PARTITION_BUCKETS))?;
        if former == 0 || !is_place(former) {
            return self.make_index(partition);
        }
        let given_up = &self.store.removal.given_up;
        // Before the index is replaced: reclaiming frees no block of dead members, which no index
        // names any more, until the former index is retired. An attempt that found no room for
        // another index has given it up already.
        let is_first = {
            let mut given_up = lock(given_up);
            let is_first = !given_up.contains_key(&(partition, former));
            given_up.entry((partition, former)).or_insert(GivenUp::Full);
            is_first
        };
        let made = self.make_index(partition);
        if made.is_ok() {
            lock(given_up).insert((partition, former), GivenUp::Replaced);
        }
        // A further attempt in vain wakes no activity: its caller would try again at once.
        if is_first || made.is_ok() {
            let _ = self.store.job.ring(me);
        }
        made
    }

    /// Retires the nodes of an index that was given up, and the blocks that they name. An operation
    /// of an older configuration may still be in flight there. It finds *removed* or no record, and
    /// starts over. A node that it inserts at this very moment is lost.
    fn retire_index(&self, partition: usize, buckets: u64) -> Result<(), Error> {
        let (job, me) = (&self.store.job, self.store.me());
        let load = |offset: u64| job.load(Epoch::ANY, me, offset);
        let replace = |offset: u64, new: u64| -> Result<u64, Error> {
            loop {
                let found = load(offset)?;
                if job.compare_and_swap(Epoch::ANY, me, offset, found, new)? == found {
                    return Ok(found);
                }
            }
        };
        let mut nodes = Vec::new();
        for bucket in 0..self.store.bucket_count as u64 {
            let mut at = replace(buckets + bucket * 8, 0)?;
            for _ in 0..CHAIN_MAX {
                if at == 0 || !is_place(at) {
                    break;
                }
                nodes.push(at);
                let head = Head(replace(at + NODE_HEAD, Head::REMOVED.0)?);
                if head != Head::REMOVED {
                    self.retire_head(me, head);
                }
                at = load(at + NODE_NEXT)?;
            }
        }
        self.retire_nodes(nodes)?;
        // If no new index could be made, the partition still has these buckets.
        if self.store.end_given_up(partition, buckets) {
            self.store.keep_buckets(buckets);
        }
        Ok(())
    }

    /// Raises the removal count, and retires nodes of this member that no index leads to any more.
    fn retire_nodes(&self, nodes: Vec<u64>) -> Result<(), Error> {
        if nodes.is_empty() {
            return Ok(());
        }
        let (job, me) = (&self.store.job, self.store.me());
        job.fetch_add(Epoch::ANY, me, self.store.root(me) + REMOVALS, 1)?;
        for node in nodes {
            let word = job.load(Epoch::ANY, me, node + NODE_WORD)?;
            let class = class_of(NODE_KEY + (word >> 16 & 0xffff)).expect("keys are short");
            self.hold(me, node)?;
            self.retire(me, class, node);
        }
        Ok(())
    }

    /// *unlink*: unlinks the nodes that are marked as *removed* from a bucket of this member,
    /// raises its removal count, and retires the nodes.
    fn take_out(&self, partition: usize, bucket: usize) -> Result<(), Error> {
        let (job, me) = (&self.store.job, self.store.me());
        let load = |offset: u64| job.load(Epoch::ANY, me, offset);
        let buckets = load(self.partition_word(me, partition, PARTITION_BUCKETS))?;
        if buckets == 0 || !is_place(buckets) {
            return Ok(());
        }
        let first_word = buckets + bucket as u64 * 8;
        let mut removed = Vec::new();
        'walk: loop {
            let (mut before, mut at) = (None, load(first_word)?);
            for _ in 0..CHAIN_MAX {
                if at == 0 || !is_place(at) {
                    break;
                }
                let next = load(at + NODE_NEXT)?;
                if load(at + NODE_HEAD)? != Head::REMOVED.0 {
                    (before, at) = (Some(at), next);
                    continue;
                }
                match before {
                    Some(before) => {
                        job.put(Epoch::ANY, me, before + NODE_NEXT, &next.to_ne_bytes())?
                    }
                    // Another member has inserted a node at the front. The next walk finds the
                    // marked node behind that node.
                    None if job.compare_and_swap(Epoch::ANY, me, first_word, at, next)? != at => {
                        continue 'walk;
                    }
                    None => {}
                }
                removed.push(at);
                at = next;
            }
            break;
        }
        self.retire_nodes(removed)
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::engine::Fault;
    use crate::engine::sim::{self, Link, Options as SimOptions};
    use crate::job::Job;
    use crate::store::placement::replica::ReplicaIndex;
    use crate::store::segment::layout::{CLASSES, TOMBSTONES};
    use crate::store::segment::place::Place;
    use crate::store::testing::nap;
    use crate::store::{Options, Store};
    use std::cell::Cell;
    use std::rc::Rc;

    /// A full replica gives an index up, in several attempts to make another. The background
    /// retires its nodes before the last attempt, or after it. The buckets go to a single other
    /// index.
    #[test]
    fn the_buckets_of_an_index_that_is_given_up_again_and_again_are_kept_once() {
        for is_emptied_before in [false, true] {
            let mut options = SimOptions::new(1, 0).link(Link::Memory);
            (options.segment_limit, options.steps_max) = (512 << 10, 10_000_000);
            sim::run(&options, move |job: Job| {
                let options = Options::new().replicas(1).partitions(8).expected_keys(64);
                let store = Store::open(&job, options).expect("open");
                let (state, me) = (&store.state, job.me());
                let class = class_of(state.bucket_count as u64 * 8).expect("short");
                let begin = || RecordOp::begin(state).expect("begun");
                // The replica is full, and has two blocks for indexes, which are given back later.
                state.refill_slab(class).expect("room");
                while job.reserve(64).is_ok() {}
                let mut blocks = Vec::new();
                let op = begin();
                for other in class..CLASSES {
                    let taken = std::iter::from_fn(|| op.pop(me, other).expect("taken"));
                    blocks.extend(taken.filter(|_| other == class));
                }
                drop(op);
                let give_back = |offset| state.take_back(me, &[Place::new(me, class, offset)]);
                let buckets = |partition| {
                    let word = begin().partition_word(me, partition, PARTITION_BUCKETS);
                    job.load(Epoch::ANY, me, word).expect("a word")
                };
                let (removal, former) = (&state.removal, buckets(0));
                let hold = || {
                    let is_held = || !std::mem::replace(&mut *lock(&removal.is_busy), true);
                    nap(&job, "the background", is_held);
                };
                let go_on = || {
                    *lock(&removal.is_busy) = false;
                    let _ = job.ring(me);
                    job.sleep(Duration::from_millis(200));
                };
                let refused = || begin().renew_index(0).expect_err("no room");
                hold();
                (0..3).for_each(|_| drop(refused()));
                if is_emptied_before {
                    go_on();
                    assert!(!state.has_given_up_index(), "its blocks are retired");
                    hold();
                    (0..3).for_each(|_| drop(refused()));
                }
                give_back(blocks[0]);
                begin().renew_index(0).expect("room");
                go_on();
                give_back(blocks[1]);
                (1..3).for_each(|other| begin().make_index(other).expect("room"));
                assert_eq!([0, 1, 2].map(buckets), [blocks[0], former, blocks[1]]);
                store.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }

    /// The tombstone of a delete with an open outcome is at the primary alone, and the other replica
    /// has no block for it. When it has one, the record is removed.
    #[test]
    fn a_removal_without_room_for_the_tombstone_is_done_later() {
        let (stage, removed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let mut options = SimOptions::new(2, 0).link(Link::Memory);
        (options.segment_limit, options.steps_max) = (512 << 10, 20_000_000);
        sim::run(&options, move |job: Job| {
            let options = Options::new().replicas(2).partitions(8).expected_keys(64);
            let store = Store::open(&job, options.slab_len_max(16 << 10)).expect("open");
            let (state, me) = (&store.state, job.me());
            let [primary, full] = [0, 1].map(MemberId);
            let mut keys = (0..1000).map(|number| format!("key/{number}").into_bytes());
            let key = keys.find(|key| store.replicas_of(key) == [primary, full]);
            let name = key.expect("some key");
            let key = state.any_key_ref(&name);
            if me == primary {
                store.put(&name, b"value").expect("put");
                stage.set(1);
                nap(&job, "the full replica", || stage.get() == 2);
                let op = RecordOp::begin(state).expect("begun");
                let config = op.config(key.partition).expect("entered");
                let word = op.find_or_insert(config, config.primary, &key).expect("there");
                let head = op.reconciled(config, &key, word).expect("reconciled");
                let offset = head.offset().expect("a version");
                let before = op.read_block(primary, offset).expect("read");
                // What a delete leaves behind that did not come to the other replica.
                let counter = before.counter + 1;
                let tombstone = Block { counter, len: 0, is_deleted: true, ..before };
                let filled = op.fill_block(primary, &tombstone, &[]).expect("filled");
                let new = Head::new(config.config_number, filled);
                assert!(op.swap(primary, word, head.0, new.0).expect("swapped"));
                op.retire_head(primary, head);
                drop(op);
                state.record_open_tombstone(&name, counter);
                job.sleep(Duration::from_secs(1));
                stage.set(3);
            } else {
                nap(&job, "the value", || stage.get() == 1);
                let _ = state.refill_slab(TOMBSTONES);
                while job.reserve(64).is_ok() {}
                let op = RecordOp::begin(state).expect("begun");
                let mut blocks = Vec::new();
                for class in 0..=TOMBSTONES {
                    let taken = std::iter::from_fn(|| op.pop(me, class).expect("taken"));
                    blocks.extend(taken.map(|offset| Place::new(me, class, offset)));
                }
                drop(op);
                stage.set(2);
                nap(&job, "the delete", || stage.get() == 3);
                state.take_back(me, &blocks);
            }
            let records = || {
                let op = RecordOp::begin(state).expect("begun");
                op.find(op.config(key.partition).expect("entered"), ReplicaIndex::new(0), &key)
            };
            nap(&job, "the removal", || matches!(records(), Ok(None)));
            removed.set(removed.get() + 1);
            nap(&job, "the other member", || removed.get() == 2);
            store.close().expect("closed");
            let _ = job.leave();
        })
        .expect_ok();
    }

    /// The replica of a deleted key is stopped, and its queue of messages is full. When it goes on
    /// it learns which node it has to unlink.
    #[test]
    fn a_replica_without_room_for_a_message_unlinks_nodes_later() {
        for seed in 0..4 {
            let (is_over, open) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
            let mut options = SimOptions::new(3, seed).link(Link::Memory);
            options.message_credit = 4 << 10;
            options.time_limit = Duration::from_secs(1);
            options.steps_max = 10_000_000;
            sim::run(&options, move |job: Job| {
                let options = Options::new().replicas(1).partitions(8).expected_keys(64);
                let store = Store::open(&job, options).expect("open");
                open.set(open.get() + 1);
                nap(&job, "all members", || open.get() == 3);
                let (state, replica) = (&store.state, MemberId(1));
                if job.me() == MemberId(0) {
                    let keys = (0..1000).map(|number| format!("key/{number}").into_bytes());
                    let key = keys.into_iter().find(|key| store.replicas_of(key) == [replica]);
                    let key = key.expect("some key");
                    store.put(&key, b"value").expect("put");
                    let count_word = state.root(replica) + REMOVALS;
                    let removals = || job.load(Epoch::ANY, replica, count_word).expect("a count");
                    job.sleep(Duration::from_secs(1));
                    let before = removals();
                    assert!(store.delete(&key).expect("deleted"));
                    job.inject(Fault::Stop(replica)).expect("a fault");
                    for len in [64, 0] {
                        let filler = Message::Marked { buckets: vec![u64::MAX; len] };
                        while state.try_send(replica, &filler).expect("a living member") {}
                    }
                    job.sleep(Duration::from_secs(5));
                    job.inject(Fault::Resume(replica)).expect("a fault");
                    nap(&job, "the removal", || removals() > before);
                    is_over.set(true);
                }
                nap(&job, "the end", || is_over.get());
                store.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }
}

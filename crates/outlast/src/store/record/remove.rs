//! Removing the records of deleted keys: docs/protocol.md, "Deleting".
//!
//! A delete leaves a tombstone, so that nobody takes an older version for the newest. Whoever
//! deleted the key removes it later, in its background; the tombstones of the dead are found by the
//! primaries when they go through their records after a death. A record that a put made and left
//! empty, since it failed or died, is removed in the same way, as if it were a tombstone with the
//! counter 0.
//!
//! | | step | dies or stops here |
//! |---|---|---|
//! | D1 | wait until all who were inside an operation when the tombstone was stable have left it | the tombstone stays |
//! | D2 | all replicas are complete; raise the floor of the partition at each of them to the tombstone's counter | the next version of any key of the partition is greater than it need be |
//! | D3 | swap the primary's head from the tombstone, reconciled, to "being removed" | the key's next record is a new one, and its versions begin above the floor; another replica that still has the tombstone has nothing that is not deleted |
//! | D4 | the same at the other replicas | as D3 |
//! | D5 | each replica takes such nodes out of its index, raises its count of removals, and retires them | they stay in the way of whoever looks for keys of that bucket, and are passed over |
//!
//! Without D1 a late participant that holds an older version could install it at a replica where
//! there is nothing left to tell that it is old. Without the floor a version could come twice: a
//! key that is put again begins above it. The count of removals is raised before a node can be used
//! again: a handle that finds the count as it was knows inside its operation that the record is
//! where it was, and stays there until the operation is over.
//!
//! Only its replica changes the successors of nodes in an index, one activity at a time; others
//! only swap a bucket's first.

use crate::engine::{Epoch, Error, MemberId, Time};
use crate::store::error::StoreError;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::operation::grace_period::GracePeriod;
use crate::store::operation::message::{Message, PORT};
use crate::store::record::block_io::block_class;
use crate::store::record::index::CHAIN_MAX;
use crate::store::record::key::KeyRef;
use crate::store::record::state::{RecordOp, RecordState};
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

/// When to look at the participants for the first time.
const COLLECT: Duration = Duration::from_millis(5);

/// How many are removed in one piece of work.
const PIECE: usize = 32;

/// How long to wait until replicas that are filling are looked at again.
const PATIENCE: Duration = Duration::from_millis(100);

/// What the time between looks at retired blocks becomes.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// More than these are not remembered; what is forgotten stays until the next death.
const REMEMBERED_MAX: usize = 1 << 20;

/// Keys that were deleted, and the counters of their tombstones; 0 for a record that may have been
/// left empty. Repair may come upon the same ones again and again.
type Tombstones = BTreeSet<(Vec<u8>, u64)>;

/// The tombstones that this member is to remove.
#[derive(Default)]
pub(in crate::store) struct Removals {
    fresh: Mutex<Tombstones>,
    /// Those that wait for participants.
    waiting: Mutex<Vec<(Tombstones, GracePeriod)>>,
    /// Those that can be removed.
    due: Mutex<Tombstones>,
    /// The buckets of this member in which nodes are to be taken out, by partition and bucket.
    marked: Mutex<Vec<u64>>,
    is_busy: Mutex<bool>,
    /// When to look whether what was retired here can be used again, and how long to wait then.
    retired: Mutex<Option<(Time, Duration)>>,
}

impl RecordState {
    /// Notes a tombstone that is stable, or a record that may have been left empty (0), for
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

    /// Notes buckets of this member whose nodes were marked as being removed.
    pub(in crate::store) fn record_marked_buckets(&self, buckets: &[u64]) {
        let is_known = |&place: &u64| {
            (place >> 32) < self.placement.partitions as u64
                && (place & 0xffff_ffff) < self.bucket_count as u64
        };
        lock(&self.removal.marked).extend(buckets.iter().copied().filter(is_known));
        let _ = self.job.ring(self.me());
    }

    /// Does a piece of removal; when it wants to go on. For the background alone.
    pub(in crate::store) fn remove_some(&self) -> Time {
        if std::mem::replace(&mut *lock(&self.removal.is_busy), true) {
            return Time::NEVER;
        }
        let next = self.remove_piece();
        *lock(&self.removal.is_busy) = false;
        next
    }

    fn remove_piece(&self) -> Time {
        let removal = &self.removal;
        let now = self.job.now();
        let marked = std::mem::take(&mut *lock(&removal.marked));
        if !marked.is_empty()
            && let Ok(op) = RecordOp::begin(self)
        {
            for place in marked {
                // The own memory fails only when this member has ended.
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
        // Whatever has come meanwhile waits for the next look, so that there are few of them.
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
            // One operation for all, so that what they retire comes together.
            let op = RecordOp::begin(self);
            for (key, counter) in tombstones {
                match self.remove(op.as_ref().ok(), &key, counter, &mut marked) {
                    Ok(true) => {}
                    // Not now, but later: some replica is not complete, or does not answer.
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
            if replica == self.me() {
                self.record_marked_buckets(&buckets);
            } else {
                let _ = self.job.send(replica, PORT, &Message::Marked { buckets }.encode());
            }
        }
        next = next.min(self.reuse_removed());
        match (is_more, is_late) {
            (true, _) => now,
            (false, true) => next.min(now.after(PATIENCE)),
            (false, false) => next,
        }
    }

    /// Notes that the blocks of removed records wait until nobody can still see them.
    fn record_retired(&self) {
        *lock(&self.removal.retired) = Some((self.job.now().after(COLLECT), COLLECT));
    }

    /// Lets such blocks be used again, though this member may write nothing; when to look again.
    fn reuse_removed(&self) -> Time {
        let Some((due, pause)) = *lock(&self.removal.retired) else { return Time::NEVER };
        let now = self.job.now();
        if now < due {
            return due;
        }
        // Whoever has deleted may retire nothing for long.
        (0..PARTICIPANTS)
            .filter_map(|participant| RecordOp::begin_as(self, participant))
            .for_each(|op| op.flush_retired());
        if let Ok(op) = RecordOp::begin(self) {
            op.reuse_or_give_back(false, usize::MAX);
        }
        // Somebody may be stopped: ever more seldom.
        let next = now.after(pause);
        *lock(&self.removal.retired) =
            self.has_batches().then_some((next, (pause * 2).min(PAUSE_MAX)));
        if self.has_batches() { next } else { Time::NEVER }
    }

    /// D2 to D4 for one key; whether it is reconciled, one way or the other.
    fn remove(
        &self,
        op: Option<&RecordOp<'_>>,
        key: &[u8],
        counter: u64,
        marked: &mut BTreeMap<MemberId, Vec<u64>>,
    ) -> Result<bool, StoreError> {
        let key = self.any_key_ref(key);
        let bucket = (key.partition as u64) << 32 | key.hash & (self.bucket_count as u64 - 1);
        // Without an operation: later.
        let result = op.map_or(Err(OpError::Again), |op| op.remove(&key, counter, bucket, marked));
        match result {
            Ok(is_reconciled) => Ok(is_reconciled),
            Err(
                OpError::Again
                | OpError::Blocked(_)
                | OpError::Frozen
                | OpError::Fail(StoreError::Timeout { .. }),
            ) => Ok(false),
            Err(OpError::Lost(_)) if self.salvage_is_on => Ok(false),
            Err(OpError::Lost(partition)) => Err(StoreError::DataLost { partition }),
            Err(OpError::Fail(error)) => Err(error),
        }
    }
}

impl<'a> RecordOp<'a> {
    fn remove(
        &self,
        key: &KeyRef<'_>,
        counter: u64,
        bucket: u64,
        marked: &mut BTreeMap<MemberId, Vec<u64>>,
    ) -> OpResult<bool> {
        let config = self.config(key.partition)?;
        for &replica in config.replicas.iter() {
            if self.state(replica, key.partition)?.phase() != Phase::Complete {
                return Ok(false);
            }
        }
        let Some((word, _)) = self.find(config, config.primary, key)? else { return Ok(true) };
        let head = self.reconciled(config, key, word)?;
        let primary = config.replicas[config.primary];
        let is_wanted = |member: MemberId, head: Head| -> OpResult<Option<Option<Block>>> {
            let block = head.offset().map(|offset| self.read_block(member, offset)).transpose()?;
            let found = block.map_or((true, 0), |block| (block.is_deleted, block.counter));
            Ok((found == (true, counter)).then_some(block))
        };
        let Some(block) = is_wanted(primary, head)? else {
            // Somebody has written the key again.
            return Ok(true);
        };
        // D2.
        for &replica in config.replicas.iter() {
            self.raise_floor(replica, key.partition, counter)?;
        }
        // D3. The state is looked at again: a replica that fills now may have got its floor before
        // it was raised.
        if !self.is_current() || !self.swap(primary, word, head.0, Head::REMOVED.0)? {
            return Ok(false);
        }
        marked.entry(primary).or_default().push(bucket);
        self.retire_removed(primary, head, block)?;
        // D4.
        for (replica, &member) in
            config.replicas.iter().enumerate().filter(|(replica, _)| *replica != config.primary)
        {
            let Some((word, head)) = self.find(config, replica, key)? else { continue };
            if head.config_number() != config.config_number {
                continue;
            }
            if let Some(block) = is_wanted(member, head)?
                && self.swap(member, word, head.0, Head::REMOVED.0)?
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

    /// D5: takes the nodes that are being removed out of a bucket of this member.
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
                    // Somebody has put a new node before it: the next walk finds it behind that
                    // one.
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
        if removed.is_empty() {
            return Ok(());
        }
        job.fetch_add(Epoch::ANY, me, self.store.root(me) + REMOVALS, 1)?;
        for node in removed {
            let word = load(node + NODE_WORD)?;
            let class = class_of(NODE_KEY + (word >> 16 & 0xffff)).expect("keys are short");
            self.hold(me, node)?;
            self.retire(me, class, node);
        }
        Ok(())
    }
}

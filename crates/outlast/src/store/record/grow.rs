//! The growth of this member's indexes. docs/decisions/0017-an-index-that-grows.md has the steps,
//! what other members find after each, and why no lookup misses a record.
//!
//! A member that inserts a record into a crowded bucket reports it to the replica
//! ([`RecordState::report_crowded`]). The background of the replica then splits the buckets of the
//! partition, a piece at a time (*copy*, *split*, *mark*), waits for a grace period (*wait*), and
//! takes the shared chains apart (*unzip*), with a grace period after each round. The activity that
//! does so is the only one that changes the structure of this member's indexes: it also unlinks the
//! nodes of removed records (`remove.rs`).

use crate::engine::{Epoch, Error, MemberId, Time};
use crate::store::memory::slab::zero;
use crate::store::mutant::mutant;
use crate::store::operation::grace_period::GracePeriod;
use crate::store::operation::message::Message;
use crate::store::record::index::CHAIN_MAX;
use crate::store::record::state::RecordState;
use crate::store::segment::bucket::{
    BUCKET_COUNT_MAX, Bucket, BucketWord, TIERS_MAX, find_bucket, for_each_bucket, place_of,
};
use crate::store::segment::layout::{NODE_NEXT, NODE_WORD, PARTITION_BUCKETS};
use crate::store::segment::place::is_place;
use crate::store::steps::{self, Step};
use crate::sync::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

/// The number of buckets that are split in a piece of background work.
const PIECE: usize = 1024;

/// The number of buckets in which nodes are counted before an index grows.
const SAMPLES: u64 = 32;

/// The pause before an index that stays as it is is measured again: a replica without room would
/// count nodes for each insertion of other members.
const MEASURE_PAUSE: Duration = Duration::from_millis(5);

/// How many times the memory of a new tier must be free before an index grows: an index does not
/// take the last room from values.
const ROOM: u64 = 4;

/// The growth of this member's indexes.
#[derive(Default)]
pub(in crate::store) struct Growth {
    /// The partitions that were reported as crowded.
    crowded: Mutex<BTreeSet<usize>>,
    work: Mutex<Work>,
}

/// What the background is doing.
#[derive(Default)]
struct Work {
    doubling: Option<Doubling>,
    zipped: Vec<Zipped>,
    /// The grace period since a chain was changed last.
    grace: Option<GracePeriod>,
    /// The partitions whose index was measured and stayed as it is, and when each may be measured
    /// again.
    resting: BTreeMap<usize, Time>,
}

/// An index whose buckets are being split.
struct Doubling {
    partition: usize,
    buckets: u64,
    /// The depth of the buckets that are not split yet.
    depth: usize,
    /// The offset of the new tier.
    tier: u64,
    /// The number of the next bucket to split.
    next: u64,
}

/// Two buckets that may share nodes.
struct Zipped {
    partition: usize,
    buckets: u64,
    /// The offsets of the two bucket words.
    words: [u64; 2],
    /// The numbers of the two buckets, which have this depth.
    numbers: [u64; 2],
    depth: usize,
}

/// A node of a chain: its offset and the lower half of its hash.
type ChainNode = (u64, u64);

impl RecordState {
    /// Reports to a replica that a bucket of the partition has many nodes. A report that is lost is
    /// made again by the next insertion there.
    #[cold]
    pub(in crate::store::record) fn report_crowded(&self, replica: MemberId, partition: usize) {
        if replica == self.me() {
            self.record_crowded(partition);
        } else {
            let _ = self.try_send(replica, &Message::Crowded { partition: partition as u64 });
        }
    }

    /// Records that a partition of this member may be crowded.
    pub(in crate::store) fn record_crowded(&self, partition: usize) {
        if partition < self.placement.partitions && lock(&self.growth.crowded).insert(partition) {
            let _ = self.job.ring(self.me());
        }
    }

    /// The offsets of the words of this member's buckets that may share nodes with another bucket.
    pub(in crate::store::record) fn zipped_words(&self) -> BTreeSet<u64> {
        lock(&self.growth.work).zipped.iter().flat_map(|zipped| zipped.words).collect()
    }

    /// Forgets the growth of an index that was given up.
    pub(in crate::store::record) fn forget_growth(&self, buckets: u64) {
        let mut work = lock(&self.growth.work);
        work.zipped.retain(|zipped| zipped.buckets != buckets);
        work.doubling.take_if(|doubling| doubling.buckets == buckets);
    }

    /// Executes a piece of growth, for the activity that changes the index. Returns when it wants
    /// to run again.
    pub(in crate::store::record) fn grow_piece(&self) -> Time {
        // The engine is never called under a lock.
        let mut work = std::mem::take(&mut *lock(&self.growth.work));
        // An access to the own memory fails only when the membership has ended.
        let next = self.grow(&mut work).unwrap_or(Time::NEVER);
        *lock(&self.growth.work) = work;
        next
    }

    fn grow(&self, work: &mut Work) -> Result<Time, Error> {
        let growth = &self.growth;
        if let Some(grace) = &mut work.grace {
            let step = steps::within(Step::GrowWait);
            if let Err(due) = grace.is_over_or_due(self)
                && !mutant("grow-early")
            {
                return Ok(due);
            }
            drop(step);
            work.grace = None;
            for zipped in std::mem::take(&mut work.zipped) {
                if !self.unzip(&zipped)? {
                    work.zipped.push(zipped);
                }
            }
        }
        let (mut left, mut later) = (PIECE, BTreeSet::new());
        let (now, mut due) = (self.job.now(), Time::NEVER);
        work.resting.retain(|_, until| now < *until);
        while left > 0 {
            if work.doubling.is_none() {
                let Some(partition) = lock(&growth.crowded).pop_first() else { break };
                if work.zipped.iter().any(|zipped| zipped.partition == partition) {
                    later.insert(partition);
                    continue;
                }
                if let Some(&until) = work.resting.get(&partition) {
                    later.insert(partition);
                    due = due.min(until);
                    continue;
                }
                work.doubling = self.begin_doubling(partition)?;
                if work.doubling.is_none() {
                    work.resting.insert(partition, now.after(MEASURE_PAUSE));
                }
            }
            self.split_some(work, &mut left)?;
        }
        let is_more = {
            let mut crowded = lock(&growth.crowded);
            let is_more = work.doubling.is_some() || !crowded.is_empty();
            crowded.append(&mut later);
            is_more
        };
        if !work.zipped.is_empty() {
            work.grace = Some(GracePeriod::begin(self));
            return Ok(self.job.now());
        }
        Ok(if is_more { self.job.now() } else { due })
    }

    /// *measure* and *add_tier*. `None` if the index stays as it is.
    fn begin_doubling(&self, partition: usize) -> Result<Option<Doubling>, Error> {
        let (job, me) = (&self.job, self.me());
        let load = |offset: u64| job.load(Epoch::ANY, me, offset);
        let word = self.root(me) + self.layout.partition(partition) + PARTITION_BUCKETS;
        let buckets = load(word)?;
        if buckets == 0 || !is_place(buckets) {
            return Ok(None);
        }
        let mut depth = 0;
        while depth < TIERS_MAX && load(self.directory_word(buckets, depth + 1))? != 0 {
            depth += 1;
        }
        let count = (self.bucket_count as u64) << depth;
        let step = steps::within(Step::GrowMeasure);
        let may_grow = depth < TIERS_MAX && count < BUCKET_COUNT_MAX;
        if !may_grow || !self.is_crowded(buckets, count)? {
            return Ok(None);
        }
        drop(step);
        let _step = steps::within(Step::GrowAddTier);
        let tier = match self.take_buckets(count * 8) {
            Some(kept) => kept,
            None if job.reservable()? < count * 8 * ROOM => return Ok(None),
            None => match self.reserve(count * 8) {
                Ok(offset) => offset,
                Err(_) => return Ok(None),
            },
        };
        zero(job, tier, count * 8)?;
        let directory_word = self.directory_word(buckets, depth + 1);
        job.put(Epoch::ANY, me, directory_word, &tier.to_ne_bytes())?;
        Ok(Some(Doubling { partition, buckets, depth, tier, next: 0 }))
    }

    /// Whether there are more than 1.5 nodes for each bucket, in some of the `count` buckets.
    fn is_crowded(&self, buckets: u64, count: u64) -> Result<bool, Error> {
        let (samples, mut nodes) = (count.min(SAMPLES), 0);
        for number in (0..samples).map(|sample| sample * (count / samples)) {
            let word = self.own_bucket_word(buckets, number)?;
            let word = BucketWord(self.job.load(Epoch::ANY, self.me(), word)?);
            nodes += self.chain(word.first())?.len() as u64;
        }
        Ok(nodes * 2 > samples * 3)
    }

    /// *copy*, *split* and *mark* for the next buckets.
    fn split_some(&self, work: &mut Work, left: &mut usize) -> Result<(), Error> {
        let Some(doubling) = &mut work.doubling else { return Ok(()) };
        let (job, me) = (&self.job, self.me());
        let count = (self.bucket_count as u64) << doubling.depth;
        let deeper = |first| BucketWord::new(doubling.depth + 1, first).0;
        while doubling.next < count && *left > 0 {
            let number = doubling.next;
            let words =
                [self.own_bucket_word(doubling.buckets, number)?, doubling.tier + number * 8];
            let first = loop {
                let found = job.load(Epoch::ANY, me, words[0])?;
                let first = BucketWord(found).first();
                // *copy*: with depth 0, so that no lookup begins there.
                let step = steps::within(Step::GrowCopy);
                let copied = match first {
                    0 => 0,
                    _ if mutant("grow-mark-early") => deeper(first),
                    _ if mutant("grow-stale") => job.load(Epoch::ANY, me, first + NODE_NEXT)?,
                    _ => first,
                };
                job.put(Epoch::ANY, me, words[1], &copied.to_ne_bytes())?;
                drop(step);
                // *split*.
                let _step = steps::within(Step::GrowSplit);
                if job.compare_and_swap(Epoch::ANY, me, words[0], found, deeper(first))? == found {
                    break first;
                }
            };
            // *mark*. If a member has inserted a node meanwhile, it has written the depth.
            let step = steps::within(Step::GrowMark);
            job.compare_and_swap(Epoch::ANY, me, words[1], first, deeper(first))?;
            drop(step);
            if first != 0 {
                work.zipped.push(Zipped {
                    partition: doubling.partition,
                    buckets: doubling.buckets,
                    words,
                    numbers: [number, number + count],
                    depth: doubling.depth + 1,
                });
            }
            doubling.next += 1;
            *left -= 1;
        }
        if doubling.next == count {
            // It may have to grow once more.
            lock(&self.growth.crowded).insert(doubling.partition);
            work.doubling = None;
        }
        Ok(())
    }

    /// *unzip*: a round for two buckets. Returns whether they share no node any more.
    fn unzip(&self, zipped: &Zipped) -> Result<bool, Error> {
        let _step = steps::within(Step::GrowUnzip);
        let (job, me) = (&self.job, self.me());
        let mut chains = [Vec::new(), Vec::new()];
        let mut words = [BucketWord(0); 2];
        for side in 0..2 {
            words[side] = BucketWord(job.load(Epoch::ANY, me, zipped.words[side])?);
            chains[side] = self.chain(words[side].first())?;
        }
        let others: BTreeSet<u64> = chains[1].iter().map(|(at, _)| *at).collect();
        let Some(shared) = chains[0].iter().map(|(at, _)| *at).find(|at| others.contains(at))
        else {
            return Ok(true);
        };
        let mask = ((self.bucket_count as u64) << zipped.depth) - 1;
        for side in 0..2 {
            let chain = &chains[side];
            let Some(position) = chain.iter().position(|(at, _)| *at == shared) else { continue };
            // The first node of this side at or behind the first shared node.
            let is_own = |(_, hash): &&ChainNode| hash & mask == zipped.numbers[side];
            let own = chain[position..].iter().find(is_own).map_or(0, |(at, _)| *at);
            if own == shared {
                continue;
            }
            match position.checked_sub(1).and_then(|before| chain.get(before)) {
                // Only this side passes the node before, since the last grace period.
                Some((before, _)) => {
                    job.put(Epoch::ANY, me, before + NODE_NEXT, &own.to_ne_bytes())?;
                }
                // If a member has inserted a node meanwhile, the next round finds that node.
                None => {
                    let new = BucketWord::new(zipped.depth, own).0;
                    job.compare_and_swap(Epoch::ANY, me, zipped.words[side], words[side].0, new)?;
                }
            }
        }
        Ok(false)
    }

    /// The nodes of a chain of this member.
    fn chain(&self, first: u64) -> Result<Vec<ChainNode>, Error> {
        let load = |offset: u64| self.job.load(Epoch::ANY, self.me(), offset);
        let (mut nodes, mut at) = (Vec::new(), first);
        while at != 0 && is_place(at) && nodes.len() < CHAIN_MAX {
            nodes.push((at, load(at + NODE_WORD)? >> 32));
            at = load(at + NODE_NEXT)?;
        }
        Ok(nodes)
    }

    /// The offset of a bucket word of this member. In damaged memory, of any bucket word.
    fn own_bucket_word(&self, buckets: u64, number: u64) -> Result<u64, Error> {
        let (tier, position) = place_of(self.bucket_count as u64, number);
        self.own_position(buckets, tier, position)
    }

    /// The offset of the bucket word at a position of a tier of this member.
    fn own_position(&self, buckets: u64, tier: usize, position: u64) -> Result<u64, Error> {
        if tier > 0 {
            let word = self.directory_word(buckets, tier);
            let offset = self.job.load(Epoch::ANY, self.me(), word)?;
            if offset != 0 && is_place(offset) {
                return Ok(offset + position * 8);
            }
        }
        Ok(buckets + (position & (self.bucket_count as u64 - 1)) * 8)
    }

    /// The bucket word at a position of a tier of this member.
    fn load_own_bucket(&self, buckets: u64, tier: usize, position: u64) -> Result<u64, Error> {
        let offset = self.own_position(buckets, tier, position)?;
        self.job.load(Epoch::ANY, self.me(), offset)
    }

    /// The bucket of this member that has the nodes of a hash, with the offset of its word.
    pub(in crate::store) fn own_bucket(
        &self,
        buckets: u64,
        hash: u64,
    ) -> Result<(u64, Bucket), Error> {
        let base = self.bucket_count as u64;
        let load = |tier, position| self.load_own_bucket(buckets, tier, position);
        let bucket = find_bucket(base, hash, 0, load)?;
        Ok((self.own_bucket_word(buckets, bucket.number)?, bucket))
    }

    /// Visits a bucket of this member and all buckets that were split off it, with the offsets of
    /// their words.
    pub(in crate::store) fn for_each_own_bucket(
        &self,
        buckets: u64,
        first: usize,
        mut each: impl FnMut(u64, &Bucket) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let base = self.bucket_count as u64;
        let load = |tier, position| self.load_own_bucket(buckets, tier, position);
        for_each_bucket(base, first as u64, load, |bucket| {
            each(self.own_bucket_word(buckets, bucket.number)?, bucket)
        })
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests;

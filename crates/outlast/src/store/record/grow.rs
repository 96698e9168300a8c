//! The growth of this member's indexes. The protocol page below has the steps, what other members
//! find after each, and why no lookup misses a record.
//!
//! A member that inserts a record into a crowded bucket reports it to the replica
//! ([`RecordState::report_crowded`]). The background of the replica then adds a tier, splits the
//! buckets of the partition, a piece at a time (*copy*, *split*, *mark*), waits for a grace period
//! (*wait*), and takes the shared chains apart (*unzip*), with a grace period after each round. The
//! activity that does so is the only one that changes the structure of this member's indexes: it
//! also unlinks the nodes of removed records (`remove.rs`).

#![cfg_attr(outlast_pages, doc = include_str!("../../../../../docs/protocol/growing.md"))]

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

/// How many bytes of a new tier are zeroed in place of the split of a bucket.
const ZEROED_PER_SPLIT: u64 = 512;

/// The number of buckets in which nodes are counted before an index grows. With fewer buckets,
/// chance would often double an index with a node for each bucket.
const SAMPLES: u64 = 128;

/// The pause before an index that stays as it is is measured again: a replica without room would
/// count nodes for each insertion of other members.
const MEASURE_PAUSE: Duration = Duration::from_millis(5);

/// The pause before a member reports the same partition of a replica again. A replica that has
/// doubled an index measures it once more by itself.
const REPORT_PAUSE: Duration = Duration::from_millis(5);

/// The pause after the first look at a grace period of *wait*, which doubles with each look.
const WAIT_PAUSE: Duration = Duration::from_millis(2);

/// [`WAIT_PAUSE`] where all members map the memory.
const WAIT_PAUSE_MAPPED: Duration = Duration::from_micros(50);

/// How many times the memory of a new tier must be free before an index grows: an index does not
/// take the last room from values.
const ROOM: u64 = 4;

/// The growth of this member's indexes.
#[derive(Default)]
pub(in crate::store) struct Growth {
    /// The partitions that were reported as crowded.
    crowded: Mutex<BTreeSet<usize>>,
    /// When this member has last reported a partition to a replica.
    reported: Mutex<BTreeMap<(MemberId, usize), Time>>,
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
    /// How many bytes of the new tier are zeroed. When all are, the directory names the tier.
    zeroed: u64,
    /// The number of the next bucket to split.
    next: u64,
}

impl Doubling {
    /// The length of the new tier, of an index that began with `base` buckets.
    fn tier_len(&self, base: usize) -> u64 {
        ((base as u64) << self.depth) * 8
    }
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
            return self.record_crowded(partition);
        }
        let now = self.job.now();
        let is_told = |last: &Time| now < last.after(REPORT_PAUSE);
        if lock(&self.growth.reported).get(&(replica, partition)).is_some_and(is_told) {
            return;
        }
        if let Ok(true) = self.tell_crowded(replica, partition) {
            lock(&self.growth.reported).insert((replica, partition), now);
        }
    }

    /// Tells another member that a partition is crowded. `false` if there was no room for that.
    fn tell_crowded(&self, replica: MemberId, partition: usize) -> Result<bool, Error> {
        self.try_send(replica, &Message::Crowded { partition: partition as u64 })
    }

    /// Records that a partition of this member may be crowded.
    pub(in crate::store) fn record_crowded(&self, partition: usize) {
        if partition < self.placement.partitions && lock(&self.growth.crowded).insert(partition) {
            let _ = self.job.ring(self.me());
        }
    }

    /// The offsets of the words of this member's buckets that may share nodes with another bucket,
    /// in ascending order.
    pub(in crate::store::record) fn zipped_words(&self) -> Vec<u64> {
        let work = lock(&self.growth.work);
        let mut words: Vec<u64> = work.zipped.iter().flat_map(|zipped| zipped.words).collect();
        words.sort_unstable();
        words
    }

    /// Forgets the growth of an index that was given up.
    pub(in crate::store::record) fn forget_growth(&self, buckets: u64) {
        let doubling = {
            let mut work = lock(&self.growth.work);
            work.zipped.retain(|zipped| zipped.buckets != buckets);
            work.doubling.take_if(|doubling| doubling.buckets == buckets)
        };
        // A tier that the directory does not name is kept here, the others with the index.
        if let Some(doubling) = doubling {
            let len = doubling.tier_len(self.bucket_count);
            if doubling.zeroed < len {
                self.keep_buckets(doubling.tier, len);
            }
        }
    }

    /// Executes a piece of growth, for the activity that changes the index. Returns when it wants
    /// to run again, and whether buckets that shared nodes share none any more.
    pub(in crate::store::record) fn grow_piece(&self) -> (Time, bool) {
        // The engine is never called under a lock.
        let mut work = std::mem::take(&mut *lock(&self.growth.work));
        let before = work.zipped.len();
        // An access to the own memory fails only when the membership has ended.
        let next = self.end_wait(&mut work).and_then(|due| match due {
            Some(due) => Ok((due, false)),
            None => {
                let has_unzipped = work.zipped.len() < before;
                self.split_piece(&mut work).map(|next| (next, has_unzipped))
            }
        });
        *lock(&self.growth.work) = work;
        next.unwrap_or((Time::NEVER, false))
    }

    /// *wait* and *unzip*. If the grace period is not over, returns when to look again.
    fn end_wait(&self, work: &mut Work) -> Result<Option<Time>, Error> {
        let Some(grace) = &mut work.grace else { return Ok(None) };
        let step = steps::within(Step::GrowWait);
        // In mapped memory a look costs a few loads, and most operations take microseconds.
        let pause = if self.job.is_mapped() { WAIT_PAUSE_MAPPED } else { WAIT_PAUSE };
        if let Err(due) = grace.is_over_or_due_after(self, pause)
            && !mutant("grow-early")
        {
            return Ok(Some(due));
        }
        drop(step);
        work.grace = None;
        for zipped in std::mem::take(&mut work.zipped) {
            if !self.unzip(&zipped)? {
                work.zipped.push(zipped);
            }
        }
        Ok(None)
    }

    /// The steps *measure* to *mark*, for some buckets. Returns when to go on.
    fn split_piece(&self, work: &mut Work) -> Result<Time, Error> {
        let growth = &self.growth;
        let (mut left, mut later) = (PIECE, BTreeSet::new());
        let (now, mut due) = (self.job.now(), Time::NEVER);
        work.resting.retain(|_, until| now < *until);
        while left > 0 {
            if work.doubling.is_none() {
                let Some(partition) = lock(&growth.crowded).pop_first() else { break };
                // A bucket is split only when it shares nodes with no other bucket.
                if work.zipped.iter().any(|zipped| zipped.partition == partition)
                    && !mutant("grow-again-early")
                {
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
            self.add_tier(work, &mut left)?;
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

    /// *measure*, and the memory for *add_tier*. `None` if the index stays as it is.
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
        let tier = match self.take_buckets(count * 8) {
            Some(kept) => kept,
            None if job.reservable()? < count * 8 * ROOM => return Ok(None),
            None => match self.reserve(count * 8) {
                Ok(offset) => offset,
                Err(_) => return Ok(None),
            },
        };
        Ok(Some(Doubling { partition, buckets, depth, tier, zeroed: 0, next: 0 }))
    }

    /// *add_tier*: zeroes the new tier, a piece at a time, and then names it in the directory.
    fn add_tier(&self, work: &mut Work, left: &mut usize) -> Result<(), Error> {
        let Some(doubling) = &mut work.doubling else { return Ok(()) };
        let len = doubling.tier_len(self.bucket_count);
        if doubling.zeroed == len {
            return Ok(());
        }
        let _step = steps::within(Step::GrowAddTier);
        let piece = (len - doubling.zeroed).min(*left as u64 * ZEROED_PER_SPLIT);
        zero(&self.job, doubling.tier + doubling.zeroed, piece)?;
        *left -= piece.div_ceil(ZEROED_PER_SPLIT) as usize;
        if doubling.zeroed + piece == len {
            let word = self.directory_word(doubling.buckets, doubling.depth + 1);
            self.job.put(Epoch::ANY, self.me(), word, &doubling.tier.to_ne_bytes())?;
        }
        doubling.zeroed += piece;
        Ok(())
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
        if doubling.zeroed < doubling.tier_len(self.bucket_count) {
            return Ok(());
        }
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
        loop {
            let is_done = self.unzip_next(zipped)?;
            if is_done || !mutant("grow-unzip-ahead") {
                return Ok(is_done);
            }
        }
    }

    fn unzip_next(&self, zipped: &Zipped) -> Result<bool, Error> {
        let (job, me) = (&self.job, self.me());
        let mut chains = [Vec::new(), Vec::new()];
        let mut words = [BucketWord(0); 2];
        for side in 0..2 {
            words[side] = BucketWord(job.load(Epoch::ANY, me, zipped.words[side])?);
            chains[side] = self.chain(words[side].first())?;
        }
        // A node has a single successor, so the nodes that both chains have are at their ends.
        let [one, other] = [0, 1].map(|side| chains[side].iter().rev().map(|(at, _)| *at));
        let shared_count = one.zip(other).take_while(|(one, other)| one == other).count();
        if shared_count == 0 {
            return Ok(true);
        }
        let mask = ((self.bucket_count as u64) << zipped.depth) - 1;
        for side in 0..2 {
            let chain = &chains[side];
            let position = chain.len() - shared_count;
            let is_own = |(_, hash): &&ChainNode| hash & mask == zipped.numbers[side];
            // The first node of this side at or behind the first shared node.
            let own = chain[position..].iter().find(is_own).map_or(0, |(at, _)| *at);
            if own == chain[position].0 {
                continue;
            }
            match position.checked_sub(1) {
                // Only this side passes the node before, since the last grace period.
                Some(before) => {
                    job.put(Epoch::ANY, me, chain[before].0 + NODE_NEXT, &own.to_ne_bytes())?;
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
        let any = buckets + (position & (self.bucket_count as u64 - 1)) * 8;
        Ok(self.own_tier(buckets, tier)?.map_or(any, |tier| tier + position * 8))
    }

    /// The offset of a tier of this member; `None` if there is none.
    fn own_tier(&self, buckets: u64, tier: usize) -> Result<Option<u64>, Error> {
        if tier == 0 {
            return Ok(Some(buckets));
        }
        let offset = self.job.load(Epoch::ANY, self.me(), self.directory_word(buckets, tier))?;
        Ok(Some(offset).filter(|&offset| offset != 0 && is_place(offset)))
    }

    /// The bucket word at a position of a tier of this member. In damaged memory a bucket word may
    /// name a tier that is not there: its buckets are empty.
    fn load_own_bucket(&self, buckets: u64, tier: usize, position: u64) -> Result<u64, Error> {
        match self.own_tier(buckets, tier)? {
            Some(tier) => self.job.load(Epoch::ANY, self.me(), tier + position * 8),
            None => Ok(0),
        }
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

//! Slabs: how a replica makes blocks, and the buckets of an index, out of its segment.
//!
//! Only the replica itself makes slabs, in its own segment. Another member asks for them by a
//! message (`Message::Need`).

use crate::engine::{Epoch, Error};
use crate::job::Job;
use crate::store::memory::state::{MemoryOp, MemoryState};
use crate::store::operation::error::OpResult;
use crate::store::operation::grace_period::GracePeriod;
use crate::store::segment::layout::{CLASSES, PARTITION_BUCKETS, TOMBSTONES, class_of, class_size};
use crate::sync::lock;
use std::collections::{BTreeMap, BTreeSet};

/// How many blocks for tombstones a replica sets aside at a time.
const TOMBSTONES_TOGETHER: u64 = 64;

/// For how many other blocks a replica sets aside a block for a tombstone.
const BLOCKS_PER_TOMBSTONE: u64 = 16;

/// The slabs of this member's segment.
#[derive(Default)]
pub(in crate::store) struct Slabs {
    /// By the offset of each slab: the class of its blocks, and their number.
    pub(in crate::store) all: BTreeMap<u64, (usize, u64)>,
    /// The blocks that have become the buckets of an index. They never are free blocks again, and
    /// their words are not those of a block: a bucket has the place of the holder word.
    index_blocks: BTreeSet<u64>,
    /// The other ranges of the store: the offset and the length of its root and of its indexes.
    others: Vec<(u64, u64)>,
    /// For each class, how many slabs were made.
    times: BTreeMap<usize, u32>,
    /// The buckets of indexes that were given up, each with the grace period after which another
    /// index may have them.
    buckets: Vec<(u64, GracePeriod)>,
}

impl Slabs {
    /// Whether a block of this class lies at this offset.
    pub(in crate::store) fn has(&self, class: usize, offset: u64) -> bool {
        !self.is_index(offset) && self.all.range(..=offset).next_back().is_some_and(|(&base, &(of, count))| {
            let size = class_size(class);
            of == class && (offset - base).is_multiple_of(size) && (offset - base) / size < count
        })
    }

    /// Whether the block at this offset has become the buckets of an index.
    pub(in crate::store) fn is_index(&self, offset: u64) -> bool {
        self.index_blocks.contains(&offset)
    }
}

impl MemoryState {
    /// Makes sure that the free list of a class has a block. A replica that was stopped finds many
    /// requests for blocks at once, and a single slab answers all of them.
    pub(in crate::store::memory) fn provide(&self, class: usize) -> Result<(), Error> {
        if self.has_free(class)? { Ok(()) } else { self.refill_slab(class) }
    }

    /// Makes a slab of a class in this member's segment, and puts its blocks onto the free list.
    /// Sets aside some blocks for tombstones, too.
    pub(in crate::store) fn refill_slab(&self, class: usize) -> Result<(), Error> {
        if class != TOMBSTONES {
            let count = |is_tombstone: bool| {
                let slabs = lock(&self.allocator.slabs);
                let of =
                    slabs.all.values().filter(|(class, _)| (*class == TOMBSTONES) == is_tombstone);
                of.map(|(_, count)| count).sum::<u64>()
            };
            if count(true) * BLOCKS_PER_TOMBSTONE < count(false) {
                self.refill_slab_of_class(TOMBSTONES)?;
            }
        }
        self.refill_slab_of_class(class)
    }

    /// Makes a slab of exactly this class.
    fn refill_slab_of_class(&self, class: usize) -> Result<(), Error> {
        let size = class_size(class);
        let times = {
            let mut slabs = lock(&self.allocator.slabs);
            let times = slabs.times.entry(class).or_default();
            *times += 1;
            *times
        };
        // Each slab has twice as many blocks as the slab before, up to a bound, so that other
        // members ask seldom. If there is no room for so many, the slab has a single block.
        let count = if class == TOMBSTONES { TOMBSTONES_TOGETHER } else { 8u64 << times.min(10) };
        let count = count.min((self.slab_len_max / size).max(1));
        let (count, base) = match self.job.reserve(count * size) {
            Ok(base) => (count, base),
            Err(_) => (1, self.job.reserve(size)?),
        };
        let me = self.job.me();
        let top_word = self.root(me) + self.layout.stack(class);
        let push = || -> Result<(), Error> {
            for index in 0..count {
                let next = if index + 1 < count { base + (index + 1) * size } else { 0 };
                let header = [next.to_ne_bytes(), [0; 8], [0; 8]].concat();
                self.job.put(Epoch::ANY, me, base + index * size, &header)?;
            }
            lock(&self.allocator.slabs).all.insert(base, (class, count));
            let last = base + (count - 1) * size;
            loop {
                let top = self.job.load(Epoch::ANY, me, top_word)?;
                self.job.put(Epoch::ANY, me, last, &top.to_ne_bytes())?;
                if self.job.compare_and_swap(Epoch::ANY, me, top_word, top, base)? == top {
                    return Ok(());
                }
            }
        };
        push()
    }

    /// Reserves a range of this member's segment until the memory of the store is released.
    pub(in crate::store) fn reserve(&self, len: u64) -> Result<u64, Error> {
        let offset = self.job.reserve(len)?;
        lock(&self.allocator.slabs).others.push((offset, len));
        Ok(offset)
    }

    /// Gives all memory of the store in this member's segment back: root, indexes and slabs. No
    /// activity of any member may reach it any more.
    pub(in crate::store) fn release_memory(&self) {
        let slabs = std::mem::take(&mut *lock(&self.allocator.slabs));
        for (offset, len) in slabs.others {
            self.job.release(offset, len);
        }
        for (base, (class, count)) in slabs.all {
            self.job.release(base, count * class_size(class));
        }
    }

    /// Makes an empty index for a partition at this member.
    fn make_index(&self, root: u64, partition: usize) -> Result<(), Error> {
        let buckets = self.reserve(self.bucket_count as u64 * 8)?;
        self.put_index(root, partition, buckets)
    }

    /// Keeps the buckets of an index that was given up for another index.
    pub(in crate::store) fn keep_buckets(&self, buckets: u64) {
        let grace = GracePeriod::begin(self);
        lock(&self.allocator.slabs).buckets.push((buckets, grace));
    }

    /// Takes the buckets of an index that was given up, if the grace period of any is over.
    fn take_buckets(&self) -> Option<u64> {
        // They are taken out of the lock: the engine is never called under a lock.
        let mut kept = std::mem::take(&mut lock(&self.allocator.slabs).buckets);
        let free = kept.iter_mut().position(|(_, grace)| grace.is_over(self));
        let taken = free.map(|index| kept.swap_remove(index).0);
        lock(&self.allocator.slabs).buckets.append(&mut kept);
        taken
    }

    /// Makes an empty index with its buckets at this offset.
    pub(in crate::store) fn put_index(
        &self,
        root: u64,
        partition: usize,
        buckets: u64,
    ) -> Result<(), Error> {
        let (job, me) = (&self.job, self.job.me());
        zero(job, buckets, self.bucket_count as u64 * 8)?;
        let word = root + self.layout.partition(partition) + PARTITION_BUCKETS;
        job.put(Epoch::ANY, me, word, &buckets.to_ne_bytes())
    }
}

/// Writes zeros into this member's segment, in pieces.
pub(in crate::store) fn zero(job: &Job, offset: u64, len: u64) -> Result<(), Error> {
    let zeros = [0; 4096];
    let mut at = 0;
    while at < len {
        let piece = zeros.len().min((len - at) as usize);
        job.put(Epoch::ANY, job.me(), offset + at, &zeros[..piece])?;
        at += piece as u64;
    }
    Ok(())
}

impl<'a> MemoryOp<'a> {
    /// Makes an empty index for a partition at this member. If all memory is divided into blocks
    /// already, the index takes a free block.
    pub(in crate::store) fn make_index(&self, partition: usize) -> OpResult<()> {
        let (store, me) = (self.store, self.store.me());
        if let Some(buckets) = store.take_buckets() {
            return Ok(store.put_index(store.root(me), partition, buckets)?);
        }
        let Err(error) = store.make_index(store.root(me), partition) else { return Ok(()) };
        let first = class_of(store.bucket_count as u64 * 8).unwrap_or(CLASSES);
        for class in first..CLASSES {
            if let Some(offset) = self.pop(me, class)? {
                lock(&store.allocator.slabs).index_blocks.insert(offset);
                return Ok(store.put_index(store.root(me), partition, offset)?);
            }
        }
        Err(error.into())
    }
}

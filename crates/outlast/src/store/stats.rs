//! What the store can tell about itself.

use super::access::{Halt, Op, Step};
use super::index::KeyRef;
use super::open::Inner;
use super::placement::hash_key;
use super::{RepairStatus, Store, StoreError, StoreResult};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// One of so many calls is timed, so that timing costs next to nothing.
pub(super) const SAMPLE: u32 = 64;
/// Four buckets for each doubling of the time, up to beyond an hour.
const BUCKETS: usize = 42 * 4;

/// Times of calls, in buckets of a quarter of a doubling.
pub(super) struct Histogram {
    counts: [AtomicU32; BUCKETS],
    max_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: std::array::from_fn(|_| AtomicU32::new(0)), max_ns: AtomicU64::new(0) }
    }
}

/// The bucket of a time: the doubling and the quarter in it.
fn bucket(ns: u64) -> usize {
    let doubling = ns.max(4).ilog2() as usize;
    (doubling * 4 + (ns.max(4) >> (doubling - 2)) as usize % 4).min(BUCKETS - 1)
}

/// The least time that is beyond a bucket.
fn bucket_end(bucket: usize) -> u64 {
    (5 + bucket as u64 % 4) << (bucket / 4).saturating_sub(2)
}

impl Histogram {
    pub(super) fn add(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
    }

    fn latency(&self) -> Option<Latency> {
        let counts: Vec<u64> =
            self.counts.iter().map(|count| u64::from(count.load(Ordering::Relaxed))).collect();
        let samples: u64 = counts.iter().sum();
        let max = Duration::from_nanos(self.max_ns.load(Ordering::Relaxed));
        let at = |share: u64| {
            let mut left = samples * share / 100;
            let found = counts.iter().position(|&count| {
                let is_here = left < count;
                left = left.saturating_sub(count);
                is_here
            });
            Duration::from_nanos(bucket_end(found.unwrap_or(BUCKETS - 1))).min(max)
        };
        (samples > 0).then(|| Latency { samples, p50: at(50), p99: at(99), max })
    }
}

/// How long calls took, of those that were timed: one of 64. Within a quarter of a doubling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// How many calls were timed.
    pub samples: u64,
    /// Half of them took at most this long.
    pub p50: Duration,
    /// 99 of 100 took at most this long.
    pub p99: Duration,
    /// None took longer.
    pub max: Duration,
}

/// What one member has done since it opened the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Copies of partitions that this member has brought up.
    pub copies_repaired: u64,
    /// Records that were looked at, and copied where they were missing, for that.
    pub records_repaired: u64,
    /// Repairs that it took over from a member that was stopped.
    pub repairs_taken_over: u64,
    /// How long [`Store::put`] and puts through handles took; `None` before the first sample.
    pub put: Option<Latency>,
    /// How long [`Store::get`] took, and reads into buffers through handles.
    pub get: Option<Latency>,
}

/// What the whole store holds, at some moment during the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobStats {
    /// How many keys exist, without those of lost partitions.
    pub keys: usize,
    /// The length of all values, each counted once.
    pub value_bytes: u64,
    /// The length of all keys.
    pub key_bytes: u64,
    /// Copies that are missing, and partitions that are lost.
    pub repair: RepairStatus,
}

/// What a member counts.
#[derive(Default)]
pub(super) struct Counts {
    calls: AtomicU32,
    pub(super) put: Histogram,
    pub(super) get: Histogram,
}

impl Inner {
    /// Makes a call, and times some.
    #[inline]
    pub(super) fn sample<T>(&self, histogram: &Histogram, call: impl FnOnce() -> T) -> T {
        // Not an atomic addition: that some calls are not counted does no harm, and it is much cheaper.
        let calls = self.counts.calls.load(Ordering::Relaxed).wrapping_add(1);
        self.counts.calls.store(calls, Ordering::Relaxed);
        if !calls.is_multiple_of(SAMPLE) {
            return call();
        }
        let began = self.job.now();
        let result = call();
        histogram.add(self.job.now().since(began));
        result
    }
}

impl Store {
    /// What this member has done since it opened the store.
    pub fn stats(&self) -> Stats {
        let (repaired, counts) = (&self.inner.repaired, &self.inner.counts);
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Stats {
            copies_repaired: load(&repaired.copies),
            records_repaired: load(&repaired.records),
            repairs_taken_over: load(&repaired.takeovers),
            put: counts.put.latency(),
            get: counts.get.latency(),
        }
    }

    /// What the whole store holds. It goes through all keys: not for every second.
    pub fn job_stats(&self) -> StoreResult<JobStats> {
        let repair = self.repair_status()?;
        let mut stats = JobStats { keys: 0, value_bytes: 0, key_bytes: 0, repair };
        for partition in 0..self.inner.placement.partitions {
            match self.inner.run(|op| op.count_partition(partition)) {
                Ok((keys, value_bytes, key_bytes)) => {
                    stats.keys += keys;
                    stats.value_bytes += value_bytes;
                    stats.key_bytes += key_bytes;
                }
                Err(StoreError::DataLost { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(stats)
    }
}

impl Op<'_> {
    /// The keys of a partition, and the bytes in their values and in themselves.
    fn count_partition(&mut self, partition: usize) -> Step<(usize, u64, u64)> {
        let config = self.config(partition)?;
        let primary = config.homes[config.primary];
        let (mut keys, mut value_bytes, mut key_bytes) = (0, 0, 0);
        for bucket in 0..self.store.bucket_count {
            for node in self.nodes(config, config.primary, partition, bucket)? {
                let key = KeyRef { key: &node.key, hash: hash_key(&node.key), partition };
                let Some((word, _)) = self.find(config, config.primary, &key)? else { continue };
                let Some(offset) = self.settled(config, &key, word)?.offset() else { continue };
                let block = self.read_block(primary, offset)?;
                let (_, block) = self.visible(config, &key, offset, &block)?;
                if !block.is_deleted && !node.key.starts_with(super::leave::RESERVED) {
                    keys += 1;
                    value_bytes += block.len;
                    key_bytes += node.key.len() as u64;
                }
            }
        }
        if self.is_current() { Ok((keys, value_bytes, key_bytes)) } else { Err(Halt::Again) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_lies_in_its_bucket() {
        for ns in (0..3000).chain([1 << 20, (1 << 30) + 77, 3_600_000_000_000]) {
            let bucket = bucket(ns);
            assert!(ns < bucket_end(bucket), "{ns}");
            assert!(ns < 4 || bucket_end(bucket) <= ns * 5 / 4 + 1, "{ns}");
        }
    }

    #[test]
    fn percentiles_are_those_of_the_samples() {
        let histogram = Histogram::default();
        assert_eq!(histogram.latency(), None);
        (1..=1000).for_each(|us| histogram.add(Duration::from_micros(us)));
        let latency = histogram.latency().expect("samples");
        let us = |time: Duration| time.as_micros();
        assert_eq!((latency.samples, us(latency.max)), (1000, 1000));
        assert!((500..=625).contains(&us(latency.p50)), "{latency:?}");
        assert!((990..=1000).contains(&us(latency.p99)), "{latency:?}");
    }
}

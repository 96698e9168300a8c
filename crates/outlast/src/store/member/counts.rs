//! Latencies of calls: a member times a sample of its puts and gets.

use crate::store::member::state::StoreState;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The sampling interval: every 64th call is timed, so that timing costs next to nothing.
pub(in crate::store) const SAMPLE: u32 = 64;

/// The number of buckets: four for each doubling of the time, up to more than an hour.
const BUCKETS: usize = 42 * 4;

/// The times of calls, in buckets of a quarter of a doubling.
pub(in crate::store) struct Histogram {
    counts: [AtomicU32; BUCKETS],
    max_ns: AtomicU64,
}

/// The latency of calls, from a sample of every 64th call. The percentiles are exact to a quarter
/// of a doubling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// The number of calls that were timed.
    pub samples: u64,
    /// Half of these calls took at most this time.
    pub p50: Duration,
    /// 99 of 100 of these calls took at most this time.
    pub p99: Duration,
    /// The longest time of these calls.
    pub max: Duration,
}

/// The latencies that a member measures.
#[derive(Default)]
pub(in crate::store) struct Counts {
    calls: AtomicU32,
    pub(in crate::store) put: Histogram,
    pub(in crate::store) get: Histogram,
}

impl StoreState {
    /// Makes a call, and times every 64th call.
    #[inline]
    pub(in crate::store) fn sample<T>(&self, histogram: &Histogram, call: impl FnOnce() -> T) -> T {
        // A load and a store are much cheaper than an atomic addition, and a call that is not
        // counted does no harm.
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

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: std::array::from_fn(|_| AtomicU32::new(0)), max_ns: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Counts a call that took this time.
    pub(in crate::store) fn add(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// Returns the percentiles of the sample; `None` before the first sample.
    pub(in crate::store) fn latency(&self) -> Option<Latency> {
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

/// The bucket of a time, from its doubling and the quarter of that.
fn bucket(ns: u64) -> usize {
    let doubling = ns.max(4).ilog2() as usize;
    (doubling * 4 + (ns.max(4) >> (doubling - 2)) as usize % 4).min(BUCKETS - 1)
}

/// The smallest time above a bucket.
fn bucket_end(bucket: usize) -> u64 {
    (5 + bucket as u64 % 4) << (bucket / 4).saturating_sub(2)
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
    fn percentiles_match_the_samples() {
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

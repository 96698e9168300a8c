//! Latencies of calls: a member times a sample of its puts and gets. An observer gets the counts
//! ([`CallTimes`]), and computes latencies of the last seconds from two of them.

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
    /// The number of consistent cuts that this member took part in.
    pub(in crate::store) cuts: AtomicU64,
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
        let mut times = CallTimes::default();
        self.add_to(&mut times);
        let max = Duration::from_nanos(self.max_ns.load(Ordering::Relaxed));
        let at = |percent| times.percentile(percent).map(|time| time.min(max));
        Some(Latency { samples: times.samples(), p50: at(50)?, p99: at(99)?, max })
    }

    /// Adds the counts of this histogram.
    pub(in crate::store::member) fn add_to(&self, times: &mut CallTimes) {
        for (sum, count) in times.counts.iter_mut().zip(&self.counts) {
            *sum = sum.wrapping_add(count.load(Ordering::Relaxed));
        }
    }
}

/// How many calls took how long: a sample of every 64th call, counted in buckets of a quarter of a
/// doubling. Counts only grow, so the calls between two observations are their difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallTimes {
    counts: [u32; BUCKETS],
}

impl Default for CallTimes {
    fn default() -> CallTimes {
        CallTimes { counts: [0; BUCKETS] }
    }
}

impl CallTimes {
    /// The number of words of [`CallTimes::words`].
    pub(in crate::store::member) const WORDS: usize = BUCKETS / 2;

    /// The number of calls that were timed.
    pub fn samples(&self) -> u64 {
        self.counts.iter().map(|&count| u64::from(count)).sum()
    }

    /// The calls that were timed after `earlier`, which an earlier observation gave.
    pub fn since(&self, earlier: &CallTimes) -> CallTimes {
        let later = |bucket: usize| {
            let (now, before) = (self.counts[bucket], earlier.counts[bucket]);
            // A count that has fallen is that of another store.
            if now >= before { now - before } else { now }
        };
        CallTimes { counts: std::array::from_fn(later) }
    }

    /// Adds the calls of another member.
    pub fn add(&mut self, other: &CallTimes) {
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum = sum.saturating_add(count);
        }
    }

    /// The time that this percentage of the calls took at most, exact to a quarter of a doubling;
    /// `None` without any sample.
    pub fn percentile(&self, percent: u64) -> Option<Duration> {
        let samples = self.samples();
        if samples == 0 {
            return None;
        }
        let mut left = samples * percent.min(100) / 100;
        let found = self.counts.iter().position(|&count| {
            let is_here = left < u64::from(count);
            left = left.saturating_sub(u64::from(count));
            is_here
        });
        let last = || self.counts.iter().rposition(|&count| count > 0).unwrap_or(BUCKETS - 1);
        Some(Duration::from_nanos(bucket_end(found.unwrap_or_else(last))))
    }

    /// The counts, two in a word.
    pub(in crate::store::member) fn words(&self) -> impl Iterator<Item = u64> + '_ {
        let (pairs, _) = self.counts.as_chunks::<2>();
        pairs.iter().map(|&[low, high]| u64::from(high) << 32 | u64::from(low))
    }

    /// The counts of these words.
    pub(in crate::store::member) fn of_words(words: &[u64]) -> CallTimes {
        let count = |bucket: usize| {
            let word = words.get(bucket / 2).copied().unwrap_or(0);
            (word >> (bucket % 2 * 32)) as u32
        };
        CallTimes { counts: std::array::from_fn(count) }
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

    #[test]
    fn observers_get_the_calls_between_two_observations() {
        let histogram = Histogram::default();
        let observe = || {
            let mut times = CallTimes::default();
            histogram.add_to(&mut times);
            let words: Vec<u64> = times.words().collect();
            assert_eq!(words.len(), CallTimes::WORDS);
            assert_eq!(CallTimes::of_words(&words), times);
            times
        };
        assert_eq!(observe().percentile(50), None);
        (0..100).for_each(|_| histogram.add(Duration::from_micros(1)));
        let before = observe();
        (0..10).for_each(|_| histogram.add(Duration::from_micros(100)));
        let since = observe().since(&before);
        let p50 = since.percentile(50).expect("ten calls");
        assert_eq!(since.samples(), 10);
        assert!((100..=125).contains(&p50.as_micros()), "{p50:?}");
        assert!(observe().percentile(50).expect("calls") < Duration::from_micros(2));
        assert_eq!(since.percentile(100), since.percentile(50));
        // The store was closed, and another store has been opened.
        assert_eq!(since.since(&before).samples(), 10);
    }
}

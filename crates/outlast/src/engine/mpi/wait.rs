//! Waiting. MPI has no wait that another thread can end, so an activity that waits keeps testing
//! for arrived data, and moves data meanwhile.
//!
//! At any time a single activity of a member moves data, the *mover*. The other waiting activities
//! sleep until the mover rings for them or takes a pause. The mover tests without sleeping for
//! [`SPIN_MAX`] after data has moved, and yields the processor in between. After that it sleeps
//! between tests, for an eighth of the time since data has moved, at most [`SLEEP_MAX`]. The
//! background activity is the mover only while no foreground activity waits, and never spins.

use super::lease::Lease;
use super::{Mpi, onesided};
use crate::engine::shm::Shm;
use crate::engine::{Bell, Engine, Error, Result, Time};
use crate::sync::try_lock;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long the mover tests without sleeping. Long enough that the second of two consecutive round
/// trips finds its target still testing, also where members share processors. (With 50 us instead,
/// a put between three hosts on two cores took 229 us instead of 36.)
const SPIN_MAX: Duration = Duration::from_micros(200);

/// An activity that yields and runs again only after this time shares its processor with others.
/// Sleeping is better there: the scheduler prefers a thread that wakes to threads that are always
/// ready to run. So the activity sleeps between tests for [`CROWDED_FOR`] instead of yielding.
const YIELD_MAX: Duration = Duration::from_micros(200);
const CROWDED_FOR: Duration = Duration::from_millis(20);

/// An activity that runs again within this time has the processor to itself, and need not yield at
/// each test: after n such yields in a row, at most [`QUICK_YIELDS_MAX`], it yields at every 2^n-th
/// test.
const YIELD_QUICK: Duration = Duration::from_nanos(1500);
const QUICK_YIELDS_MAX: u32 = 3;

/// The shortest sleep between two tests.
pub(super) const SLEEP_MIN: Duration = Duration::from_micros(20);
/// The shortest sleep of the background activity between two tests.
const BACKGROUND_SLEEP_MIN: Duration = Duration::from_micros(50);
/// The longest sleep between two tests.
pub(super) const SLEEP_MAX: Duration = Duration::from_millis(1);

/// A wait for another member is cut into slices of this length.
const SLICE: Duration = Duration::from_millis(10);
/// The most time between two waits that counts towards the time limit: a caller that was itself
/// stopped must not find its time over and blame the other member.
const SLICE_MAX: Duration = Duration::from_millis(100);

/// The rest of the time that an activity may wait for another member.
pub(super) struct TimeLeft {
    left: Duration,
    counted_until: Time,
}

impl TimeLeft {
    /// A wait that begins now and lasts until `until`.
    pub(super) fn new(until: Time, now: Time) -> TimeLeft {
        TimeLeft { left: until.since(now), counted_until: now }
    }

    /// Waits until the bell has rung or a slice of the time is over; `false` once no time is left.
    pub(super) fn park(&mut self, mpi: &Mpi, seen: Bell) -> bool {
        let now = mpi.now();
        if self.count(now).is_zero() {
            return false;
        }
        mpi.park(seen, now.after(self.left.min(SLICE)));
        true
    }

    /// Counts the time since the last wait began, and returns the rest. The time after a wait
    /// counts as well: while other activities of this member are busy, each arrival rings the bell,
    /// a wait ends at once, and the caller spends its time on moving data.
    fn count(&mut self, now: Time) -> Duration {
        let elapsed = now.since(self.counted_until).min(SLICE_MAX);
        (self.left, self.counted_until) = (self.left.saturating_sub(elapsed), now);
        self.left
    }
}

impl Mpi {
    /// Waits for a lease. Ends this process if it has been without a lease for the time limit,
    /// counted from the loss of the lease and not from the beginning of this call: the job may have
    /// gone on without it.
    pub(super) fn wait_for_lease(&self, lease: &Lease) -> Result<()> {
        let limit = self.node.time_limit();
        loop {
            let bell = self.bell();
            if lease.is_valid() {
                return Ok(());
            }
            if self.has_ended() {
                return Err(Error::Ended);
            }
            if lease.missing_for() < limit {
                self.park(bell, self.now().after(SLICE));
            } else {
                Shm::end_with(&format!(
                    "outlast: {} has not reached a majority of the job for {limit:?}; ending this \
                     process, since the others may go on without it\n",
                    self.me()
                ));
            }
        }
    }

    /// Moves data, unless another activity is doing so already; whether any data moved.
    pub(super) fn progress(&self) -> bool {
        let Some(core) = &self.core else { return false };
        let Some(mut core) = try_lock(core) else { return false };
        let mut has_moved = core.progress(&self.node);
        drop(core);
        has_moved |= self.onesided.as_ref().is_some_and(|onesided| onesided.progress(&self.node));
        if has_moved {
            self.moved_at.store(self.now().0, Ordering::Relaxed);
        }
        has_moved
    }

    /// Parks an activity of a member with remote members, until the bell has rung or `until`. A
    /// single activity moves data, and the other activities sleep: where ranks outnumber cores,
    /// each further activity that tests takes the processor from an activity that would reply.
    pub(super) fn park_moving(&self, seen: Bell, until: Time, is_background: bool) {
        let mut role: Option<MutexGuard<'_, ()>> = None;
        let mut tests = 0u32;
        while !self.has_ended() && !self.node.has_rung(seen, is_background) {
            let now = self.now();
            if now >= until {
                break;
            }
            // While a foreground activity waits, the background activity does not move data.
            let is_relieved = is_background && self.waiting.load(Ordering::SeqCst) > 0;
            if role.is_none() && !is_relieved {
                role = try_lock(&self.mover);
            }
            if role.is_none() {
                self.node.sleep(seen, until.min(now.after(SLEEP_MAX)), is_background);
                continue;
            }
            if self.progress() {
                continue;
            }
            let idle = now.since(Time(self.moved_at.load(Ordering::Relaxed)));
            let is_crowded = now.0 < self.crowded_until.load(Ordering::Relaxed);
            if !is_background && idle < SPIN_MAX && !is_crowded {
                tests += 1;
                if tests.is_multiple_of(1 << self.quick_yields.load(Ordering::Relaxed)) {
                    self.yield_processor();
                }
            } else {
                // In proportion to the pause so far, so that a frame after a long pause is delayed
                // by a fraction of the pause.
                let longest = if self.onesided.is_some() { onesided::SLEEP_MAX } else { SLEEP_MAX };
                let shortest = if is_background { BACKGROUND_SLEEP_MIN } else { SLEEP_MIN };
                let sleep = (idle / 8).clamp(shortest, longest);
                // Another activity may have started a request, and must be able to become the mover
                // during this sleep. An activity that could not become the mover sleeps already,
                // and is woken.
                role = None;
                if is_background && self.waiting.load(Ordering::SeqCst) > 0 {
                    self.node.ring_for_calls();
                }
                self.node.sleep(seen, until.min(now.after(sleep)), is_background);
            }
        }
        // An activity that sleeps because this activity was the mover is to take over.
        if role.take().is_some()
            && self.waiting.load(Ordering::Relaxed) > usize::from(!is_background)
        {
            self.node.ring_for_calls();
        }
    }

    /// Yields the processor, and records for how long other threads used it.
    fn yield_processor(&self) {
        let before = self.now();
        std::thread::yield_now();
        let after = self.now();
        let taken = after.since(before);
        if taken > YIELD_MAX {
            self.crowded_until.store(after.after(CROWDED_FOR).0, Ordering::Relaxed);
        }
        // Relaxed, and not an atomic increment: if several activities yield at once, the count of
        // any of them will do.
        let quick = self.quick_yields.load(Ordering::Relaxed);
        let quick = if taken < YIELD_QUICK { (quick + 1).min(QUICK_YIELDS_MAX) } else { 0 };
        self.quick_yields.store(quick, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call on a stopped member, while the bell rings all the time for other activities: the time
    /// limit ends the call, although no wait takes any time.
    #[test]
    fn time_counts_also_while_the_bell_keeps_ringing() {
        let limit = Duration::from_secs(30);
        let mut time_left = TimeLeft::new(Time(0).after(limit), Time(0));
        let mut now = Time(0);
        while !time_left.count(now).is_zero() {
            assert!(now.since(Time(0)) < limit, "{:?}", time_left.left);
            now = now.after(Duration::from_millis(1));
        }
        assert_eq!(now.since(Time(0)), limit);
    }

    /// A caller that was itself stopped still has nearly all of its time.
    #[test]
    fn time_in_which_the_caller_was_stopped_hardly_counts() {
        let limit = Duration::from_secs(30);
        let mut time_left = TimeLeft::new(Time(0).after(limit), Time(0));
        let left = time_left.count(Time(0).after(Duration::from_secs(3600)));
        assert_eq!(left, limit - SLICE_MAX);
    }
}

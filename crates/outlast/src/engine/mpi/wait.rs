//! Waiting in the mpi engine: an activity that waits moves the data meanwhile, spins, yields and sleeps.

use super::{Mpi, onesided};
use crate::engine::shm::Shm;
use crate::engine::{Bell, Engine, Error, Result, Time};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{MutexGuard, TryLockError};
use std::time::Duration;

/// How long a waiting activity tests without sleeping: what takes two round trips, one after the other, finds the second target
/// still testing, also where members share processors. (With 50 us, three hosts on two cores: 229 us for a put instead of 36.)
const SPIN_MAX: Duration = Duration::from_micros(200);

/// A waiting activity that gives way and comes to run again only after so long shares its processor with others. One that
/// sleeps has the better chance there: whoever wakes comes before those who are always ready to run. So for a while it
/// sleeps between tests instead.
const YIELD_MAX: Duration = Duration::from_micros(200);
const CROWDED_FOR: Duration = Duration::from_millis(20);

/// One that comes back at once has the processor for itself, and need not give way at each test: after so many of these in a
/// row only at one of 2 to that power.
const YIELD_QUICK: Duration = Duration::from_nanos(1500);
const QUICK_YIELDS_MAX: u32 = 3;

/// The shortest and the longest sleep between two tests.
pub(super) const SLEEP_MIN: Duration = Duration::from_micros(20);
const BACKGROUND_SLEEP_MIN: Duration = Duration::from_micros(50);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// The longest part of a wait for another member, and what it counts at most towards the time limit: a caller that
/// was itself stopped must not find its time over and blame the other.
const PATIENCE_SLICE: Duration = Duration::from_millis(10);
const PATIENCE_SLICE_MAX: Duration = Duration::from_millis(100);

/// What is left of the time limit of one call.
pub(super) struct Patience {
    pub(super) left: Duration,
}

impl Patience {
    /// Waits until the bell has rung or a slice of the time is over; `false` once all of it is.
    pub(super) fn park(&mut self, mpi: &Mpi, seen: Bell) -> bool {
        if self.left.is_zero() {
            return false;
        }
        let before = mpi.now();
        mpi.park(seen, before.after(self.left.min(PATIENCE_SLICE)));
        self.left = self.left.saturating_sub(mpi.now().since(before).min(PATIENCE_SLICE_MAX));
        true
    }
}

impl Mpi {
    /// Waits for a lease, and ends this process if none comes within the time limit: the others may have gone on without it.
    pub(super) fn wait_for_lease(&self, lease: &AtomicU64) -> Result<()> {
        let limit = self.node.time_limit();
        let mut patience = Patience { left: limit };
        loop {
            let bell = self.bell();
            if self.now().0 < lease.load(Ordering::SeqCst) {
                return Ok(());
            }
            if self.has_ended() {
                return Err(Error::Ended);
            }
            if !patience.park(self, bell) {
                Shm::end_with(&format!(
                    "outlast: {} has not reached a majority of the job for {limit:?}; ending this process, since the others \
                     may go on without it\n",
                    self.me()
                ));
            }
        }
    }

    /// Moves data if no other activity is doing so already; whether anything happened.
    pub(super) fn progress(&self) -> bool {
        let Some(core) = &self.core else { return false };
        let mut core = match core.try_lock() {
            Ok(core) => core,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let mut has_moved = core.progress(&self.node);
        drop(core);
        has_moved |= self.onesided.as_ref().is_some_and(|onesided| onesided.progress(&self.node));
        if has_moved {
            self.moved_at.store(self.now().0, Ordering::Relaxed);
        }
        has_moved
    }

    /// Lets others have the processor, and notes whether any of them wanted it.
    pub(super) fn yield_processor(&self) {
        let before = self.now();
        std::thread::yield_now();
        let after = self.now();
        let taken = after.since(before);
        if taken > YIELD_MAX {
            self.crowded_until.store(after.after(CROWDED_FOR).0, Ordering::Relaxed);
        }
        // Several activities may come here: any of the counts will do.
        let quick = self.quick_yields.load(Ordering::Relaxed);
        let quick = if taken < YIELD_QUICK { (quick + 1).min(QUICK_YIELDS_MAX) } else { 0 };
        self.quick_yields.store(quick, Ordering::Relaxed);
    }

    /// The loop of both kinds of parking, where there are other nodes. One activity of a member moves its data, and the
    /// others sleep meanwhile: where ranks outnumber cores, each one more that tests takes the time of one that would answer.
    pub(super) fn park_moving(&self, seen: Bell, until: Time, is_background: bool) {
        let mut role: Option<MutexGuard<'_, ()>> = None;
        let mut tests = 0u32;
        while !self.has_ended() && !self.node.has_rung(seen, is_background) {
            let now = self.now();
            if now >= until {
                break;
            }
            // While an activity of the program waits, the background rests.
            let is_relieved = is_background && self.waiting.load(Ordering::SeqCst) > 0;
            if role.is_none() && !is_relieved {
                role = match self.mover.try_lock() {
                    Ok(guard) => Some(guard),
                    Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                    Err(TryLockError::WouldBlock) => None,
                };
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
                // In proportion, so that what comes after a pause waits for a fraction of the pause.
                let longest = if self.onesided.is_some() { onesided::SLEEP_MAX } else { SLEEP_MAX };
                let shortest = if is_background { BACKGROUND_SLEEP_MIN } else { SLEEP_MIN };
                let sleep = (idle / 8).clamp(shortest, longest);
                // One that has just asked for something must not wait for the end of this sleep; nor one that wanted to move
                // the data meanwhile, and has gone to sleep.
                role = None;
                if is_background && self.waiting.load(Ordering::SeqCst) > 0 {
                    self.node.ring_for_calls();
                }
                self.node.sleep(seen, until.min(now.after(sleep)), is_background);
            }
        }
        // Whoever sleeps in its place is to move the data now.
        if role.take().is_some()
            && self.waiting.load(Ordering::Relaxed) > usize::from(!is_background)
        {
            self.node.ring_for_calls();
        }
    }
}

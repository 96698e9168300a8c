//! What all threads of a member share without touching MPI: the view, the bell, the segment and the fault plan.

use super::segment::Segment;
use super::wire::Deaths;
use crate::engine::{Epoch, MemberId, Time, View};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Locks, also when a thread that held the lock has panicked: a member is never wedged by another activity's defect.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What a ring adds to the bell. Below it, the bell counts what only activities in the middle of a call wait for, such
/// as the completion of an operation: those see it as a ring, while the background and its services sleep on. When the
/// lower half overflows, that is a ring too many.
const RING: u64 = 1 << 32;

/// The shared part of a member.
pub(super) struct Shared {
    pub(super) me: MemberId,
    pub(super) members: usize,
    pub(super) time_limit: Duration,
    pub(super) segment: Mutex<Segment>,
    /// Who is dead, and who of them left. Changed only by [`super::core::Core`], under its lock.
    pub(super) deaths: Mutex<Deaths>,
    epoch: AtomicU64,
    ended: AtomicBool,
    /// Rings in the upper half, completions in the lower: see [`RING`].
    bell: AtomicU64,
    /// How many threads sleep on `wake`: without one, ringing costs no lock.
    sleepers: AtomicUsize,
    /// How many foreground activities wait: while there is one, it moves the data and the background rests.
    pub(super) waiting: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    pub(super) faults: Plan,
}

impl Shared {
    pub(super) fn new(me: MemberId, members: usize, time_limit: Duration, segment_limit: u64) -> Shared {
        Shared {
            me,
            members,
            time_limit,
            segment: Mutex::new(Segment::new(me, segment_limit)),
            deaths: Mutex::default(),
            epoch: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            bell: AtomicU64::new(0),
            sleepers: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            faults: Plan::default(),
        }
    }

    pub(super) fn epoch(&self) -> Epoch {
        // Acquire: who sees the epoch of a death also sees the death in the view.
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    pub(super) fn is_dead(&self, member: MemberId) -> bool {
        lock(&self.deaths).0.contains(member)
    }

    pub(super) fn view(&self) -> View {
        let (dead, left) = lock(&self.deaths).clone();
        View::new(self.members, 0, dead, left)
    }

    /// Adds to the view and raises the epoch. Returns the members that are newly dead, and whether anything changed.
    pub(super) fn merge(&self, other: &Deaths) -> (Vec<MemberId>, bool) {
        let mut deaths = lock(&self.deaths);
        let new: Vec<MemberId> = other.0.iter().filter(|&member| deaths.0.insert(member)).collect();
        let has_changed = deaths.1.union_with(&other.1) || !new.is_empty();
        // Release: see `epoch`. Stored under the lock, so that it never goes back.
        self.epoch.store(deaths.0.len() as u64, Ordering::Release);
        (new, has_changed)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.ring();
    }

    pub(super) fn bell(&self) -> u64 {
        self.bell.load(Ordering::Acquire)
    }

    /// The part of the bell that rings alone change.
    pub(super) fn rings_of(bell: u64) -> u64 {
        bell / RING
    }

    pub(super) fn ring(&self) {
        self.change_bell(RING);
    }

    /// Wakes the activities that are in the middle of a call: an operation of one of them may be complete.
    pub(super) fn ring_for_calls(&self) {
        self.change_bell(1);
    }

    fn change_bell(&self, by: u64) {
        self.bell.fetch_add(by, Ordering::AcqRel);
        // A sleeper that is missed here, between its count and its sleep, sleeps for a millisecond at most.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _guard = lock(&self.sleep);
            self.wake.notify_all();
        }
    }

    /// Sleeps until someone wakes all, or for `duration`.
    pub(super) fn sleep(&self, duration: Duration) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let guard = lock(&self.sleep);
        drop(self.wake.wait_timeout(guard, duration));
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn now(&self) -> Time {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is valid, and CLOCK_MONOTONIC always exists.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
        Time(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
    }

    /// One engine step: the place where an injected fault strikes.
    #[inline]
    pub(super) fn step(&self) {
        #[cfg(feature = "faults")]
        self.faults.step();
    }
}

/// When this member is to die or to stop by itself.
#[derive(Default)]
pub(super) struct Plan {
    #[cfg(feature = "faults")]
    die_in: AtomicU64,
    #[cfg(feature = "faults")]
    stop_in: AtomicU64,
}

#[cfg(feature = "faults")]
impl Plan {
    /// Dies at the n-th step from now.
    pub(super) fn die_at(&self, steps: u64) {
        self.die_in.store(steps.max(1), Ordering::SeqCst);
    }

    /// Stops at the n-th step from now.
    pub(super) fn stop_at(&self, steps: u64) {
        self.stop_in.store(steps.max(1), Ordering::SeqCst);
    }

    fn step(&self) {
        for (countdown, signal) in [(&self.die_in, libc::SIGKILL), (&self.stop_in, libc::SIGSTOP)] {
            // Zero is "no fault planned", so the count from 1 to 0 is the n-th step, and it strikes once.
            if countdown.load(Ordering::Relaxed) > 0
                && countdown.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)) == Ok(1)
            {
                // To this thread and not to the process: another thread might take a signal to the process, and
                // this one go on for a moment, past the very step at which it was to stop.
                // SAFETY: the signals cannot be caught, so that no handler runs.
                unsafe { libc::raise(signal) };
            }
        }
    }
}

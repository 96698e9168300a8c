//! Faults that strike a real process at a chosen engine step, for tests: planned by
//! [`Fault`](crate::engine::Fault), or by [`crate::failpoint`] for a step of a protocol.

use super::sys;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

/// What the process does at the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Die = 1,
    Stop = 2,
}

/// A fault that is planned for the n-th step from now. Threads of a process share it; the decrement
/// that takes `left` from 1 to 0 picks the thread that is struck. `act` is stored before `left`, so
/// that this thread finds it.
#[derive(Default)]
pub(super) struct Planned {
    /// The number of steps that are left; the fault strikes when it goes from 1 to 0.
    left: AtomicI64,
    act: AtomicU32,
}

impl Planned {
    pub(super) fn set(&self, steps: u64, act: Act) {
        self.act.store(act as u32, Ordering::SeqCst);
        self.left.store(i64::try_from(steps.max(1)).unwrap_or(i64::MAX), Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn step(&self) {
        if let Some(step) = crate::failpoint::count() {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
            sys::end_with(&format!("{}{step} at {now_ns} ns\n", crate::failpoint::LAST_WORDS));
        }
        if self.left.load(Ordering::Relaxed) > 0 && self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.strike();
        }
    }

    #[cold]
    fn strike(&self) {
        if self.act.load(Ordering::SeqCst) == Act::Die as u32 {
            sys::end_now();
        }
        sys::stop_now();
    }
}

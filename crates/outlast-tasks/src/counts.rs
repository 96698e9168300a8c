//! What a worker counts, for reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The counters of a worker. They are atomics because the background adds to some of them.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) forks: AtomicU64,
    pub(crate) shared: AtomicU64,
    pub(crate) moved: AtomicU64,
    pub(crate) saved: AtomicU64,
    pub(crate) reopened: AtomicU64,
    pub(crate) again: AtomicU64,
    pub(crate) found: AtomicU64,
    pub(crate) diverged: AtomicU64,
    pub(crate) poisoned: AtomicU64,
    pub(crate) withdrawn: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) exposed_ns: AtomicU64,
    pub(crate) saving_ns: AtomicU64,
    pub(crate) beat_ns: AtomicU64,
}

/// What a worker has done since it opened the runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Forks, about: they are counted at looks.
    pub forks: u64,
    /// Tasks that this worker has shared.
    pub shared: u64,
    /// Tasks of other workers that this worker has claimed.
    pub moved: u64,
    /// Left halves, states and bags that this worker has saved.
    pub saved: u64,
    /// Tasks of dead holders that this member has opened again.
    pub reopened: u64,
    /// Tasks that this worker ran although an earlier worker had begun them.
    pub again: u64,
    /// Outputs of earlier lives that this worker used in place of running a task again.
    pub found: u64,
    /// Forks of earlier lives with other arguments.
    pub diverged: u64,
    /// Tasks that this worker has declared poisoned.
    pub poisoned: u64,
    /// Tasks whose output was not wanted any more.
    pub withdrawn: u64,
    /// Outputs that did not count, because the task was not wanted any more.
    pub lost: u64,
    /// Outputs that were forgotten for want of a free slot.
    pub forgotten: u64,
    /// The longest work that only a stack knew.
    pub exposed: Duration,
    /// The time that went into saving.
    pub saving: Duration,
    /// The current beat.
    pub beat: Duration,
}

/// What a worker has done so far, for another thread of its process.
#[derive(Clone)]
pub struct Observer(pub(crate) Arc<Counts>);

impl Observer {
    /// The counts so far; see [`crate::Tasks::stats`].
    pub fn stats(&self) -> Stats {
        self.0.stats(0, 0)
    }
}

impl Counts {
    pub(crate) fn stats(&self, forgotten: u64, reopened: u64) -> Stats {
        // Relaxed: the numbers need not belong to one moment.
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let time = |count: &AtomicU64| Duration::from_nanos(get(count));
        Stats {
            forks: get(&self.forks),
            shared: get(&self.shared),
            moved: get(&self.moved),
            saved: get(&self.saved),
            reopened: get(&self.reopened) + reopened,
            again: get(&self.again),
            found: get(&self.found),
            diverged: get(&self.diverged),
            poisoned: get(&self.poisoned),
            withdrawn: get(&self.withdrawn),
            lost: get(&self.lost),
            forgotten,
            exposed: time(&self.exposed_ns),
            saving: time(&self.saving_ns),
            beat: time(&self.beat_ns),
        }
    }
}

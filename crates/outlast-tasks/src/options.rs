//! The options of a runtime.

use crate::bag::Bag;
use crate::events::{Event, Listener};
use crate::task::{Registry, Sum, Task};
use outlast::Time;
use std::sync::Arc;
use std::time::Duration;

/// When a worker saves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Beat {
    /// As often as this share of the time allows.
    Price(f64),
    /// At a fixed interval.
    Fixed(Duration),
    /// On average at every n-th fork, at random; for tests.
    Forks(u32),
}

/// The options of [`crate::Tasks`]. All of them are equal at all members.
#[derive(Clone)]
pub struct Options {
    pub(crate) registry: Registry,
    pub(crate) beat: Beat,
    /// `None`: the default, which depends on whether workers save.
    pub(crate) attempts: Option<usize>,
    pub(crate) nested: u32,
    pub(crate) slots: u32,
    pub(crate) is_resilient: bool,
    pub(crate) is_strict: bool,
    pub(crate) fence_after: Option<Duration>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) has_heirs: bool,
    pub(crate) listener: Option<Listener>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            registry: Registry::default(),
            beat: Beat::Price(0.01),
            attempts: None,
            nested: 8,
            slots: 256,
            is_resilient: true,
            is_strict: false,
            fence_after: None,
            deadline: None,
            has_heirs: true,
            listener: None,
        }
    }
}

impl Options {
    /// The defaults, without any task.
    pub fn new() -> Options {
        Options::default()
    }

    /// Adds a task to the list, and what [`crate::Cx::all`] of it needs.
    pub fn task<T: Task + Clone>(mut self) -> Options {
        self.registry.add_task::<T>();
        self.registry.add_all::<T>();
        self
    }

    /// Adds a task to the list, and what [`crate::Cx::all`] and [`crate::Cx::sum`] of it need.
    pub fn sums<T: Task<Output: Sum> + Clone>(mut self) -> Options {
        self.registry.add_sum::<T>();
        self.task::<T>()
    }

    /// Adds a bag to the list.
    pub fn bag<B: Bag>(mut self) -> Options {
        self.registry.add_bag::<B>();
        self
    }

    /// Sets the share of the time that may go into saving, 0.0001 to 1; 0.01 by default. A smaller
    /// price saves less often, and a death costs more.
    pub fn price(mut self, price: f64) -> Options {
        self.beat = Beat::Price(price.clamp(0.0001, 1.0));
        self
    }

    /// Saves at a fixed interval, whatever it costs.
    pub fn beat(mut self, interval: Duration) -> Options {
        self.beat = Beat::Fixed(interval);
        self
    }

    /// Saves at random forks, on average at every n-th, so that tests do not depend on a clock.
    #[doc(hidden)]
    pub fn beat_forks(mut self, forks: u32) -> Options {
        self.beat = Beat::Forks(forks.max(1));
        self
    }

    /// Sets how many workers in a row may die with a task before it is poisoned, unless it put
    /// progress meanwhile; 3 by default. Without [`Options::resilient`] no task puts progress, so
    /// that any deaths look as if the task had caused them: there is no limit then by default.
    pub fn attempts(mut self, attempts: usize) -> Options {
        self.attempts = Some(attempts.max(1));
        self
    }

    /// How many lives in a row without progress poison a task.
    pub(crate) fn lives_to_poison(&self) -> usize {
        self.attempts.unwrap_or(if self.is_resilient { 3 } else { usize::MAX })
    }

    /// Sets how many tasks a worker may have on its stack before it takes no more tasks but its own
    /// children, 1 to 65535; 8 by default.
    pub fn nested(mut self, nested: u32) -> Options {
        self.nested = nested.clamp(1, 65535);
        self
    }

    /// Sets how many slots a worker has for what it shares and saves, 1 to 65535; 256 by default.
    pub fn slots(mut self, slots: u32) -> Options {
        self.slots = slots.clamp(1, 65535);
        self
    }

    /// Sets whether workers save at all. Without, a task is shared only when another worker asks
    /// for work, and what runs on a stack alone is lost with it: the baseline of benchmarks. A task
    /// is poisoned only if [`Options::attempts`] is set.
    pub fn resilient(mut self, is_resilient: bool) -> Options {
        self.is_resilient = is_resilient;
        self
    }

    /// Sets whether it is an error when a life of a task forks something else than the life before.
    /// By default it is only counted, and the earlier output is not used.
    pub fn strict(mut self, is_strict: bool) -> Options {
        self.is_strict = is_strict;
        self
    }

    /// Fences a member that holds a task which others wait for, and that has shown no sign of life
    /// for this long. Never by default: a stopped member is waited for.
    pub fn fence_after(mut self, silence: Duration) -> Options {
        self.fence_after = Some(silence);
        self
    }

    /// Sets whether the background opens the tasks of the dead again; for tests of the waiters.
    #[doc(hidden)]
    pub fn heirs(mut self, has_heirs: bool) -> Options {
        self.has_heirs = has_heirs;
        self
    }

    /// Sets a function that hears what this member does, for reports. The worker waits while the
    /// function runs.
    pub fn events(mut self, listener: impl Fn(Time, Event) + Send + Sync + 'static) -> Options {
        self.listener = Some(Arc::new(listener));
        self
    }

    /// Sets how long a run may take. By default it may take as long as it needs.
    pub fn deadline(mut self, deadline: Duration) -> Options {
        self.deadline = Some(deadline);
        self
    }
}

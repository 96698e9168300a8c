//! What a worker does, as events for reports.
//!
//! Events come from cold paths alone: a fork that is not shared makes none.

use outlast::{MemberId, Time};
use std::sync::Arc;
use std::time::Duration;

/// What happened at a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The worker runs a task, or goes on with it after a wait.
    Runs {
        /// Whether an earlier worker had begun the task and died.
        is_again: bool,
    },
    /// The worker waits for a task, or looks for work.
    Waits,
    /// The worker has claimed a task that another worker has shared.
    Moved {
        /// The worker that has shared the task.
        from: MemberId,
        /// Whether an earlier worker had begun the task and died.
        is_again: bool,
    },
    /// This member has opened a task again.
    Reopened {
        /// The dead member that held the task.
        dead: MemberId,
    },
    /// The work that only the stack knows, at most once a millisecond. A death costs this work.
    Exposed {
        /// How long the work took.
        unsaved: Duration,
    },
}

/// A function that hears of events, with the time of the engine's clock. The worker and the
/// background of a member call it.
pub(crate) type Listener = Arc<dyn Fn(Time, Event) + Send + Sync>;

/// The least time between two [`Event::Exposed`], in nanoseconds.
pub(crate) const EXPOSED_NS: u64 = 1_000_000;

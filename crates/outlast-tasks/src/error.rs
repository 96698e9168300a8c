//! Errors: of a task, and of a run.

use outlast::MemberId;
use outlast::store::StoreError;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How a task failed. The task that joins it gets this error from `try_join` and `try_get`;
/// otherwise the failure goes on in that task, and at last out of [`crate::Tasks::run`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TaskError {
    /// The task panicked. It is not tried again.
    #[error("task {task} panicked: {message}")]
    Panicked {
        /// The name of the task.
        task: String,
        /// The message of the panic.
        message: String,
    },
    /// Every worker that ran the task died before the task had put any progress.
    #[error(
        "task {task} is poisoned: members {members:?} died while they ran it, and none of them \
         got any further; find out what kills them, or raise Options::attempts"
    )]
    Poisoned {
        /// The name of the task.
        task: String,
        /// The members that died, in order.
        members: Vec<u32>,
    },
    /// The task cannot be given to another member: it is in no list of tasks.
    #[error("task {task} is not registered: add Options::task, sums or bag for it at every member")]
    Unregistered {
        /// The name of the task.
        task: String,
    },
    /// The arguments or the output of the task cannot be encoded, or not be decoded again.
    #[error("the bytes of task {task} are not those of its type: {reason}")]
    Encoding {
        /// The name of the task.
        task: String,
        /// What serde said.
        reason: String,
    },
    /// With `Options::strict`: a life of a task forked something else than an earlier life.
    #[error(
        "task {task} diverged: its next life forked other arguments than the life before; a task \
         has to fork the same in each life, so look for clocks, random numbers and HashMap order"
    )]
    Diverged {
        /// The name of the task whose arguments differ.
        task: String,
    },
}

/// Why a call of [`crate::Tasks`] failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The root task failed.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The store failed in a way that ends the run, such as [`StoreError::DataLost`].
    #[error("the run ended: {0}")]
    Store(#[from] StoreError),
    /// Another member has ended the run, for this reason.
    #[error("another member has ended the run: {reason}")]
    RunFailed {
        /// What that member said.
        reason: String,
    },
    /// The members differ in what must be equal. Nothing was run.
    #[error("the members differ: {what}; start the same build with the same options everywhere")]
    Differs {
        /// What differs, here and there.
        what: String,
    },
    /// The run was not over at its deadline.
    #[error("the run was not over after {waited:?}{}", holder_text(*.holder))]
    Deadline {
        /// How long the run took until then.
        waited: Duration,
        /// A living member that holds a task and has shown no sign of life for a second, if any.
        holder: Option<MemberId>,
    },
    /// A call that is not possible now. Nothing was changed.
    #[error("{reason}")]
    Invalid {
        /// What is wrong, and what to do.
        reason: String,
    },
}

fn holder_text(holder: Option<MemberId>) -> String {
    holder.map_or(String::new(), |member| {
        format!("; {member} has shown no sign of life for a second and may be stopped")
    })
}

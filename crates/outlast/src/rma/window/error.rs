//! The errors of windows. They share the texts on ranks and the translation of engine errors with
//! the errors of communicators.

use crate::rma::Error;
use crate::rma::error::ranks_are;
use crate::{MemberId, engine};
use std::time::Duration;

/// The reasons why a call on a [`Window`](super::Window) fails. Unless an error says otherwise,
/// nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// Members that the call needs are dead. Its effects on their memory are lost with that memory.
    #[error(
        "{} dead; go on without them (shrink the window), or use the memory of others",
        ranks_are(.ranks)
    )]
    ProcFailed {
        /// The ranks of the dead, in ascending order.
        ranks: Vec<usize>,
    },
    /// A member has revoked the window. Only calls that end or release, `shrink` and local calls
    /// still work.
    #[error("the window has been revoked; shrink it with all survivors to go on, or free it")]
    Revoked,
    /// A member ended this wait by [`interrupt`](crate::rma::Communicator::interrupt). An awaited
    /// lock is not held; awaited operations are still active.
    #[error("rank {by} has interrupted this wait; call again to go on waiting")]
    Interrupted {
        /// The rank that called `interrupt`.
        by: usize,
    },
    /// A living member did not answer in time. Whether the operation happened is unknown.
    #[error(
        "rank {rank} ({member}) lives but did not answer within {limit:?}; it may be stopped or \
         starved, and whether the operation happened is unknown"
    )]
    Timeout {
        /// The rank that did not answer.
        rank: usize,
        /// The member that has this rank.
        member: MemberId,
        /// How long the call waited.
        limit: Duration,
    },
    /// A living member held the lock, or was about to hold it, for the whole time limit. The caller
    /// does not hold it.
    #[error(
        "rank {holder} still holds the lock at rank {target} after {limit:?}; wait longer, or \
         take it away with force_unlock({target})"
    )]
    LockTimeout {
        /// The rank at which the lock is.
        target: usize,
        /// The rank that holds the lock; the first of them, if several share it.
        holder: usize,
        /// How long the call waited.
        limit: Duration,
    },
    /// **The caller holds the lock now**, but members died while they held it: the guarded data may
    /// be half changed. Repair the data, then go on and unlock as usual.
    #[error(
        "the lock at rank {target} is yours, but {} dead and held it before; the guarded data may \
         be half changed",
        ranks_are(.by)
    )]
    Abandoned {
        /// The rank at which the lock is; for `lock_all` the first of several.
        target: usize,
        /// The ranks of the dead holders, in ascending order.
        by: Vec<usize>,
    },
    /// The lock that this member held was taken away by `force_unlock`. Effects from before the
    /// call stand; the call itself did nothing.
    #[error(
        "the lock at rank {target} was taken away from this member by force; lock again before \
         going on"
    )]
    LockLost {
        /// The rank at which the lock is.
        target: usize,
    },
    /// The call needs a lock that this member does not hold.
    #[error(
        "this member holds no lock at rank {target}; lock it first, or use a window made by \
         Window::open"
    )]
    NotLocked {
        /// The rank of the target.
        target: usize,
    },
    /// This member holds the lock already, or another thread of this member is about to take it.
    #[error("this member already holds, or is about to hold, the lock at rank {target}")]
    AlreadyLocked {
        /// The rank at which the lock is.
        target: usize,
    },
    /// The window cannot be freed while a member holds a lock on it. All members that called `free`
    /// get this error, and the window goes on as before.
    #[error(
        "the window is not freed: rank {holder} still holds the lock at rank {target}; unlock first"
    )]
    StillLocked {
        /// The rank at which the lock is.
        target: usize,
        /// The rank that holds the lock.
        holder: usize,
    },
    /// The bytes are not part of the target's memory in the window.
    #[error(
        "bytes {offset}..+{len} are outside the {window_len} bytes of rank {target}; its owner \
         can grow them"
    )]
    OutOfRange {
        /// The rank of the target.
        target: usize,
        /// Where the range begins.
        offset: u64,
        /// How long the range is.
        len: u64,
        /// The length of the target's memory, without attached ranges.
        window_len: u64,
    },
    /// The offset is in the part of the addresses where ranges are attached, but the bytes are not
    /// inside an attached range: it was detached, or never attached.
    #[error("bytes {offset:#x}..+{len} are not inside a range that rank {target} has attached")]
    NotAttached {
        /// The rank of the target.
        target: usize,
        /// Where the range begins.
        offset: u64,
        /// How long the range is.
        len: u64,
    },
    /// An operation on words at an offset that is not a multiple of 8.
    #[error("offset {offset} is not a multiple of 8, as operations on words need")]
    Unaligned {
        /// The offset that was given.
        offset: u64,
    },
    /// The window does not have this rank.
    #[error("rank {rank} is out of range in a window of {size}")]
    RankOutOfRange {
        /// The rank that was given.
        rank: usize,
        /// How many ranks there are.
        size: usize,
    },
    /// The window was freed, or another thread of this member is about to free it.
    #[error("this window has been freed")]
    Freed,
    /// The result of a request was taken already.
    #[error("this request has completed already and its result was taken")]
    AlreadyTaken,
    /// An argument cannot be used.
    #[error("{what}")]
    Invalid {
        /// The reason.
        what: String,
    },
    /// The communicator refused.
    #[error(transparent)]
    Communicator(Error),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] engine::Error),
}

/// The result of a call of a [`Window`](super::Window).
pub type WindowResult<T> = std::result::Result<T, WindowError>;

impl WindowError {
    /// Whether the error reports a death.
    pub fn is_failure(&self) -> bool {
        matches!(self, WindowError::ProcFailed { .. } | WindowError::Abandoned { .. })
    }

    /// Whether the call took its lock: without an error, or from a dead holder.
    pub(super) fn is_locked(result: &WindowResult<()>) -> bool {
        matches!(result, Ok(()) | Err(WindowError::Abandoned { .. }))
    }
}

impl From<Error> for WindowError {
    fn from(error: Error) -> WindowError {
        match error {
            Error::ProcFailed { ranks } => WindowError::ProcFailed { ranks },
            Error::Revoked => WindowError::Revoked,
            Error::Interrupted { by } => WindowError::Interrupted { by },
            Error::Timeout { rank, member, limit } => WindowError::Timeout { rank, member, limit },
            Error::RankOutOfRange { rank, size } => WindowError::RankOutOfRange { rank, size },
            Error::Engine(error) => WindowError::Engine(error),
            other => WindowError::Communicator(other),
        }
    }
}

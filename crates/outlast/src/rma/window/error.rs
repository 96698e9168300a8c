use crate::rma::Error;
use crate::rma::error::ranks_are;
use crate::{MemberId, engine};
use std::time::Duration;

/// What a call of a [`Window`](super::Window) can fail with. Unless an error says otherwise, nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// Members that the call needs are dead. What it did to their memory is lost with it.
    #[error("{} dead; go on without them (shrink the window), or use the memory of others", ranks_are(.ranks))]
    ProcFailed {
        /// The ranks of the dead, in ascending order.
        ranks: Vec<usize>,
    },
    /// Some member has revoked the window. Only calls that end something, `shrink` and local calls still work.
    #[error("the window has been revoked; shrink it with all survivors to go on, or free it")]
    Revoked,
    /// A member asked, by [`interrupt`](crate::rma::Communicator::interrupt), that this wait end. A lock that was
    /// waited for is not held; operations that were waited for are still active.
    #[error("rank {by} has interrupted this wait; call again to go on waiting")]
    Interrupted {
        /// Who asked.
        by: usize,
    },
    /// A living member did not answer in time. Whether the operation happened is unknown.
    #[error(
        "rank {rank} ({member}) lives but did not answer within {limit:?}; it may be stopped or starved, and whether the operation happened is unknown"
    )]
    Timeout {
        /// Who did not answer.
        rank: usize,
        /// The member that has this rank.
        member: MemberId,
        /// How long the call waited.
        limit: Duration,
    },
    /// The lock was held, or about to be, by a living member for all the time that was given. It is not held now.
    #[error(
        "rank {holder} still holds the lock at rank {target} after {limit:?}; wait longer, or take it away with force_unlock({target})"
    )]
    LockTimeout {
        /// Whose memory the lock guards.
        target: usize,
        /// Who holds it; one of them, if several share it.
        holder: usize,
        /// How long the call waited.
        limit: Duration,
    },
    /// **The lock is held now**, but members died while they held it: what it guards may be half changed. Put it in
    /// order, then go on and unlock as usual.
    #[error(
        "the lock at rank {target} is yours, but {} dead and held it before; what it guards may be half changed",
        ranks_are(.by)
    )]
    Abandoned {
        /// Whose memory the lock guards; for `lock_all` the first of several.
        target: usize,
        /// The ranks of those who died, in ascending order.
        by: Vec<usize>,
    },
    /// The lock that this member held was taken away by `force_unlock`. What it did before the call stands; the call
    /// itself did nothing.
    #[error(
        "the lock at rank {target} was taken away from this member by force; lock again before going on"
    )]
    LockLost {
        /// Whose memory the lock guards.
        target: usize,
    },
    /// The call needs a lock that this member does not hold.
    #[error(
        "this member holds no lock at rank {target}; lock it first, or use a window made by Window::open"
    )]
    NotLocked {
        /// Whose memory was meant.
        target: usize,
    },
    /// This member holds the lock already, or another thread of it is about to.
    #[error("this member already holds, or is about to hold, the lock at rank {target}")]
    AlreadyLocked {
        /// Whose memory the lock guards.
        target: usize,
    },
    /// The window cannot be freed while somebody holds a lock on it. All members that called `free` get this, and
    /// the window goes on as before.
    #[error(
        "the window is not freed: rank {holder} still holds the lock at rank {target}; unlock first"
    )]
    StillLocked {
        /// Whose memory the lock guards.
        target: usize,
        /// Who holds it.
        holder: usize,
    },
    /// The bytes are not part of the target's memory in the window.
    #[error(
        "bytes {offset}..+{len} are outside the {window_len} bytes of rank {target}; its owner can grow them"
    )]
    OutOfRange {
        /// Whose memory was meant.
        target: usize,
        /// Where the range begins.
        offset: u64,
        /// How long the range is.
        len: u64,
        /// How much the target has, without what it attached.
        window_len: u64,
    },
    /// The bytes are in the part of the addresses where ranges are attached, but not inside an attached range: it was
    /// detached, or never attached.
    #[error("bytes {offset:#x}..+{len} are not inside a range that rank {target} has attached")]
    NotAttached {
        /// Whose memory was meant.
        target: usize,
        /// Where the range begins.
        offset: u64,
        /// How long the range is.
        len: u64,
    },
    /// An operation on words at an offset that is not a multiple of 8.
    #[error("offset {offset} is not a multiple of 8, as operations on words need")]
    Unaligned {
        /// What was given.
        offset: u64,
    },
    /// There is no such rank in the window.
    #[error("rank {rank} is out of range in a window of {size}")]
    RankOutOfRange {
        /// What was given.
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
    /// What was given cannot be used.
    #[error("{what}")]
    Invalid {
        /// What is wrong with it.
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
    /// Whether the error says that somebody died.
    pub fn is_failure(&self) -> bool {
        matches!(self, WindowError::ProcFailed { .. } | WindowError::Abandoned { .. })
    }

    /// Whether the call took the lock that it was for: without an error, or from a holder that died.
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

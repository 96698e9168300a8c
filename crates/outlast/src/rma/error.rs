//! The errors of communicators.

use crate::MemberId;
use crate::engine;
use std::time::Duration;

/// The reasons why a call on a communicator fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Members that the operation needs are dead, so it cannot be completed.
    #[error("{} dead; shrink the communicator, or go on without them", ranks_are(.ranks))]
    ProcFailed {
        /// The ranks of the dead, in ascending order.
        ranks: Vec<usize>,
    },
    /// A failure holds the request up, but the request is still active: acknowledge the failure
    /// with [`failure_ack`](crate::rma::Communicator::failure_ack), or handle the request that
    /// failed, and wait again.
    #[error(
        "{} dead, which holds this request up; it is still active: acknowledge the failure and \
         wait again",
        ranks_are(.ranks)
    )]
    ProcFailedPending {
        /// The ranks of the dead, in ascending order.
        ranks: Vec<usize>,
    },
    /// A member has revoked the communicator. Only `agree`, `shrink` and local calls still work on
    /// it.
    #[error("the communicator has been revoked; shrink it, or use another communicator")]
    Revoked,
    /// A member ended this wait by [`interrupt`](crate::rma::Communicator::interrupt). No message
    /// was lost.
    #[error("rank {by} has interrupted this wait; call again to go on waiting")]
    Interrupted {
        /// The rank that called `interrupt`.
        by: usize,
    },
    /// A living member did not do its part in time.
    #[error(
        "rank {rank} ({member}) lives but has not done its part within {limit:?}; it may be \
         stopped, starved or busy elsewhere"
    )]
    Timeout {
        /// The awaited rank; the first of them, if there were several.
        rank: usize,
        /// The member that has this rank.
        member: MemberId,
        /// How long the call waited.
        limit: Duration,
    },
    /// The communicator does not have this rank. Nothing was changed.
    #[error("rank {rank} is out of range in a communicator of {size}")]
    RankOutOfRange {
        /// The rank that was given.
        rank: usize,
        /// How many ranks there are.
        size: usize,
    },
    /// The tag is larger than [`TAG_MAX`](crate::rma::TAG_MAX). Nothing was changed.
    #[error("tag {tag} is out of range; at most {}", crate::rma::TAG_MAX)]
    TagOutOfRange {
        /// The tag that was given.
        tag: u32,
    },
    /// The communicator was freed here. Nothing was changed.
    #[error("this communicator has been freed")]
    Freed,
    /// The message is longer than the buffer. It is not lost: the next matching receive finds it.
    #[error(
        "a message of {len} bytes does not fit into a buffer of {buffer_len}; receive it with a \
         larger buffer"
    )]
    Truncated {
        /// How long the message is.
        len: usize,
        /// How long the buffer is.
        buffer_len: usize,
    },
    /// The members called different collective operations, or with different roots, lengths or
    /// operators.
    #[error("the members called different collective operations: {what}")]
    Mismatched {
        /// What differs.
        what: String,
    },
    /// Another thread of this member is inside a collective operation on this communicator.
    #[error(
        "another thread of this member is in a collective operation on this communicator; \
         duplicate it for that thread"
    )]
    Busy,
    /// A request was waited for after it had completed.
    #[error("this request has completed already and its result was taken")]
    AlreadyTaken,
    /// The list of members for a new communicator cannot be used. Nothing was changed.
    #[error("{what}")]
    Invalid {
        /// The reason.
        what: String,
    },
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] engine::Error),
}

/// The result of a call on a communicator.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether the error reports a death.
    pub fn is_failure(&self) -> bool {
        matches!(self, Error::ProcFailed { .. } | Error::ProcFailedPending { .. })
    }

    /// Translates an error of the engine on an operation with `rank`: the engine knows members, not
    /// ranks.
    pub(crate) fn from_engine(error: engine::Error, rank: usize) -> Error {
        match error {
            engine::Error::Dead { .. } => Error::ProcFailed { ranks: vec![rank] },
            engine::Error::Timeout { member, limit } => Error::Timeout { rank, member, limit },
            other => Error::Engine(other),
        }
    }
}

/// The subject of an error text: "rank 3 is", "ranks 1, 3 are".
pub(super) fn ranks_are(ranks: &[usize]) -> String {
    let list = ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    if ranks.len() == 1 { format!("rank {list} is") } else { format!("ranks {list} are") }
}

//! Why a call of an engine fails, and whether it has changed anything by then.

use super::{Epoch, MESSAGE_LEN_MAX, MemberId};
use std::time::Duration;

/// What a call of an engine can fail with. Each error says whether anything was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The target is dead. The effect of the operation, if it had any, is lost with the target's
    /// memory.
    #[error("{member} is dead; choose another member (the view names the living ones)")]
    Dead {
        /// The dead target.
        member: MemberId,
    },
    /// The operation belongs to an older view than the caller or the target has. It changed
    /// nothing.
    #[error("the view has changed, it is now at {now}; redo the operation under the new view")]
    Stale {
        /// The caller's epoch after it learned of the change.
        now: Epoch,
    },
    /// A living member did not answer in time. Whether the operation happened is unknown.
    #[error(
        "{member} lives but did not answer within {limit:?}; it may be stopped or starved, and \
         whether the operation happened is unknown"
    )]
    Timeout {
        /// The member that did not answer.
        member: MemberId,
        /// How long the call waited.
        limit: Duration,
    },
    /// The range is not inside the target's segment. Nothing was changed.
    #[error(
        "bytes {offset}..+{len} are outside {member}'s segment of {segment_len} bytes; its owner \
         can grow it"
    )]
    OutOfRange {
        /// Whose segment.
        member: MemberId,
        /// Where the range begins.
        offset: u64,
        /// How long the range is.
        len: u64,
        /// How long the segment is.
        segment_len: u64,
    },
    /// A word operation at an offset that is not a multiple of 8. Nothing was changed.
    #[error("offset {offset} is not a multiple of 8, as operations on words need")]
    Unaligned {
        /// The offset.
        offset: u64,
    },
    /// The job has no member with this id. Nothing was changed.
    #[error("there is no {member} in a job of {members} members")]
    UnknownMember {
        /// The id that the caller gave.
        member: MemberId,
        /// How many members there are.
        members: usize,
    },
    /// The segment cannot grow that far. Nothing was changed.
    #[error("cannot grow the segment to {wanted} bytes: {reason}")]
    OutOfMemory {
        /// The length that was asked for.
        wanted: u64,
        /// What is in the way, and what to do.
        reason: String,
    },
    /// The message is longer than the engine takes. It was not sent.
    #[error("a message of {len} bytes is too long; at most {MESSAGE_LEN_MAX} bytes")]
    MessageTooLong {
        /// Its length.
        len: usize,
    },
    /// This process was forked from a member and is no member itself.
    #[error(
        "this process was forked from a member of the job and is no member itself; call outlast \
         only in the parent, or fork before join()"
    )]
    Forked,
    /// This member has left the job, or was declared dead.
    #[error("this member is no longer part of the job: it has left, or it was declared dead")]
    Ended,
    /// The operating system refused a call.
    #[error("{what} failed: {error}")]
    System {
        /// The call.
        what: &'static str,
        /// The error of the system.
        error: String,
    },
    /// The engine or this build cannot do it.
    #[error("not supported: {what}")]
    Unsupported {
        /// The call, and what to do instead.
        what: &'static str,
    },
}

/// The result of a call of an engine.
pub type Result<T> = std::result::Result<T, Error>;

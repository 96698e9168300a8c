use crate::engine::MemberId;
use crate::store::value::Version;
use std::time::Duration;

/// What a call of the store can fail with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No complete copy of the key's partition lives. A write that returns this has no effect that
    /// anyone can still see, unless others saw it before the last copy was lost. A transaction over
    /// several keys that returns it from its commit has done all of it or nothing, and what it
    /// wrote to the lost keys is gone: look at another key of it before doing it again. If the
    /// partition that is named is that of none of its keys, the store's own record of it was lost:
    /// look at each of them.
    #[error(
        "all copies of partition {partition} are lost: more members died than the store has copies; accept_loss() gives the partition up and starts it empty"
    )]
    DataLost {
        /// Which partition.
        partition: usize,
    },
    /// A living member did not answer in time. Whether the call had an effect is unknown.
    #[error(
        "{member} lives but did not answer within {limit:?}; it may be stopped or starved, and whether the call had an effect is unknown"
    )]
    Timeout {
        /// Who did not answer.
        member: MemberId,
        /// How long the call waited.
        limit: Duration,
    },
    /// In global mode: a member has died, or the store was revoked, and all members have to come to
    /// [`recover`](super::Store::recover). Whether a write that was under way had an effect is
    /// unknown.
    #[error(
        "a member has died or the store was revoked: all members have to call recover(); whether a write that was under way had an effect is unknown"
    )]
    Revoked,
    /// A recovery was not carried out, at no member. Nothing was changed.
    #[error(
        "the recovery was not carried out: {reason}; nothing was changed, and recover() may be called again"
    )]
    RecoveryFailed {
        /// What was in the way.
        reason: String,
    },
    /// The condition of a conditional call does not hold. Nothing was changed.
    #[error("the key is not as expected: {}", found.map_or("it does not exist".to_string(), |v| format!("it has version {v}")))]
    Conflict {
        /// The version that is there; `None` if the key does not exist.
        found: Option<Version>,
    },
    /// A transaction was not carried out: others changed what it had read, or were held up by it
    /// for too long. Nothing was changed.
    #[error(
        "the transaction was not carried out, since others changed what it had read or were held up by it; begin it again"
    )]
    Aborted,
    /// A transaction was tried for as long as the time limit allows, and others were faster each
    /// time. Nothing was changed.
    #[error(
        "the transaction was tried {attempts} times and met others each time; make it shorter, or try it later"
    )]
    Contended {
        /// How often it was tried.
        attempts: u32,
    },
    /// The transaction has been committed, aborted, or has failed. Nothing was changed.
    #[error("the transaction is over, it was {how}; begin a new one")]
    TransactionOver {
        /// How it ended.
        how: &'static str,
    },
    /// A transaction was begun inside the closure of another one. Nothing was changed.
    #[error("a transaction cannot be part of another; use the outer one's handle for all of it")]
    Nested,
    /// A lock is held by another holder until after the deadline. Nothing was changed.
    #[error(
        "the lock is held by {holder}, and was not released within {waited:?}; wait longer, or find out what the holder does"
    )]
    Locked {
        /// Which member holds it; it may be another thread of the caller's.
        holder: MemberId,
        /// How long the call waited.
        waited: Duration,
    },
    /// There is no room for the value at one of its replicas. Nothing was changed.
    #[error("no room at {member}: {reason}")]
    OutOfMemory {
        /// Where.
        member: MemberId,
        /// What is in the way, and what to do.
        reason: String,
    },
    /// The key is empty or too long. Nothing was changed.
    #[error("a key of {len} bytes cannot be; 1 to {} bytes", super::KEY_LEN_MAX)]
    BadKey {
        /// Its length.
        len: usize,
    },
    /// The buffer is too small for the value; nothing was copied.
    #[error("the value has {needed} bytes, and the buffer only {given}")]
    BufferTooSmall {
        /// The length of the value.
        needed: u64,
        /// The length of the buffer.
        given: u64,
    },
    /// The value is not what the call works on. Nothing was changed.
    #[error("{what}")]
    WrongType {
        /// What was found, and what is expected.
        what: String,
    },
    /// What a member's memory holds cannot be: something has written there that is not the store.
    /// Nothing was changed.
    #[error(
        "the store's memory at {member} is damaged: {what}; something has written there that is not the store, and what it holds cannot be trusted; put the key again, or end that member, so that its copies are made anew from those of others"
    )]
    Corrupt {
        /// Whose memory.
        member: MemberId,
        /// What was found.
        what: &'static str,
    },
    /// An option makes no sense, or differs between members.
    #[error("{reason}")]
    Invalid {
        /// Which, and what it may be.
        reason: String,
    },
    /// The store was closed, or this member is no longer part of the job.
    #[error("the store is closed, or this member is no longer part of the job")]
    Closed,
    /// The engine failed in a way that the store cannot handle.
    #[error(transparent)]
    Engine(crate::engine::Error),
}

/// The result of a call of the store.
pub type StoreResult<T> = Result<T, StoreError>;

//! The errors of the store's calls.
//!
//! Each error says what happened, whether anything was changed, and what the program can do.

use crate::engine::MemberId;
use crate::store::value::Version;
use std::time::Duration;

/// The error of a call of the store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No complete replica of the key's partition lives, or the key was found damaged in a dead
    /// segment. Calls on the key return this error until the program accepts the loss, with
    /// [`Store::accept_loss`](super::Store::accept_loss).
    ///
    /// A write that returns this error has no effect that a later call can see. A call of another
    /// member may have seen it before the last complete replica died.
    ///
    /// A transaction over several keys whose commit returns this error has happened as a whole or
    /// not at all, and what it wrote to the lost keys is gone. Read another of its keys before it
    /// is run again. If `partition` belongs to none of its keys, the store's own record of the
    /// transaction was lost: read each of its keys.
    #[error(
        "all complete replicas of partition {partition} are lost: too many members died before \
         repair was complete; accept_loss() gives the partition up and starts it empty"
    )]
    DataLost {
        /// The lost partition.
        partition: usize,
    },
    /// A living member did not answer in time. Whether the call had an effect is unknown.
    #[error(
        "{member} lives but did not answer within {limit:?}; it may be stopped or starved, and \
         whether the call had an effect is unknown: find that out before you call again"
    )]
    Timeout {
        /// The member that did not answer.
        member: MemberId,
        /// The time for which the call waited.
        limit: Duration,
    },
    /// In global mode: a member has died, or the store was revoked, and all members have to call
    /// [`recover`](super::Store::recover). Whether a write that was in flight had an effect is
    /// unknown.
    #[error(
        "a member has died or the store was revoked: all members have to call recover(); whether \
         a write that was in flight had an effect is unknown"
    )]
    Revoked,
    /// A recovery was not carried out at any member. Nothing was changed.
    #[error(
        "the recovery was not carried out at any member: {reason}; nothing was changed, and \
         recover() may be called again"
    )]
    RecoveryFailed {
        /// Why the recovery was not carried out.
        reason: String,
    },
    /// The condition of a conditional call does not hold. Nothing was changed.
    #[error(
        "the key is not as expected: {}; nothing was changed; read the key and decide again",
        found.map_or("it does not exist".to_string(), |v| format!("it has version {v}"))
    )]
    Conflict {
        /// The version of the key; `None` if the key does not exist.
        found: Option<Version>,
    },
    /// A transaction was not carried out: other calls changed what it had read, or it blocked them
    /// for too long. Nothing was changed.
    #[error(
        "the transaction was not carried out: other calls changed what it had read, or it blocked \
         them for too long; nothing was changed; begin it again"
    )]
    Aborted,
    /// A transaction was tried again until the job's time limit, and other calls were faster each
    /// time. Nothing was changed.
    #[error(
        "the transaction was tried {attempts} times and conflicted with other calls each time; \
         nothing was changed; make it shorter, or try it later"
    )]
    Contended {
        /// The number of attempts.
        attempts: u32,
    },
    /// The transaction has been committed, was aborted, or has failed. The call changed nothing.
    #[error(
        "the transaction is over: it was {how}; this call changed nothing; begin a new transaction"
    )]
    TransactionOver {
        /// How the transaction ended.
        how: &'static str,
    },
    /// A transaction was begun inside the closure of another transaction. Nothing was changed.
    #[error(
        "a transaction cannot begin inside another transaction; nothing was changed; use the \
         handle of the outer transaction for all keys"
    )]
    Nested,
    /// Another holder kept the lock until after the deadline. Nothing was changed.
    #[error(
        "the lock is held by {holder}, and was not released within {waited:?}; nothing was \
         changed; wait longer, or find out what the holder does"
    )]
    Locked {
        /// The member that holds the lock; the holder may be another thread of the own member.
        holder: MemberId,
        /// The time for which the call waited.
        waited: Duration,
    },
    /// A replica of the key has no room for the value. Nothing was changed.
    #[error("no room at {member}, nothing was changed: {reason}")]
    OutOfMemory {
        /// The member of that replica.
        member: MemberId,
        /// Why there is no room, and what to do.
        reason: String,
    },
    /// The key is empty or too long. Nothing was changed.
    #[error("key length {len} is outside 1..={}", super::KEY_LEN_MAX)]
    BadKey {
        /// The length of the key.
        len: usize,
    },
    /// The buffer is too small for the value. Nothing was copied.
    #[error(
        "the value has {needed} bytes, and the buffer only {given}; nothing was copied; call again \
         with a larger buffer"
    )]
    BufferTooSmall {
        /// The length of the value.
        needed: u64,
        /// The length of the buffer.
        given: u64,
    },
    /// The value does not have the type that the call needs. Nothing was changed.
    #[error("{what}")]
    WrongType {
        /// What was found, and what the call expects.
        what: String,
    },
    /// The memory of a member holds data that the store never writes: other code has written there.
    /// Nothing was changed.
    #[error(
        "the store's memory at {member} is damaged: {what}; code outside the store has written \
         there, and the content cannot be trusted; this call changed nothing; put the key again, \
         or end that member, so that its replicas are made anew from the replicas of other members"
    )]
    Corrupt {
        /// The member with the damaged memory.
        member: MemberId,
        /// What was found there.
        what: &'static str,
    },
    /// An option or argument is invalid, or an option differs between members. Nothing was changed.
    #[error("{reason}")]
    Invalid {
        /// Which option or argument it is, and what it may be.
        reason: String,
    },
    /// This member has already opened the store of this name, and has not closed it. Nothing was
    /// changed.
    #[error(
        "this member has the store {name:?} open already; nothing was changed; use a clone of that \
         store, close it first, or open a store of another name (Options::name)"
    )]
    AlreadyOpen {
        /// The name of the store.
        name: String,
    },
    /// The store was closed, or this member is no longer part of the job.
    #[error("the store is closed, or this member is no longer part of the job")]
    Closed,
    /// The engine failed in a way that the store cannot handle. Whether the call had an effect is
    /// unknown.
    #[error(transparent)]
    Engine(crate::engine::Error),
}

/// The result of a call of the store.
pub type StoreResult<T> = Result<T, StoreError>;

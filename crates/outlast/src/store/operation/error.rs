//! Why an operation cannot go on.
//!
//! An attempt returns [`OpError`], and `retry.rs` decides whether the call starts over, waits or
//! fails.

use crate::engine::{Error, MemberId, Time};
use crate::store::error::StoreError;
use crate::store::segment::intent::IntentId;
use crate::store::segment::place::is_place;

/// Why an attempt at an operation cannot go on.
#[derive(Debug)]
pub(in crate::store) enum OpError {
    /// The view has changed, or another operation was faster: start over.
    Again,
    /// Writes are frozen: start over when the freeze has ended.
    Frozen,
    /// A transaction blocks the key: clear it, and start over.
    Blocked(Box<Blocker>),
    /// The replica has no free block of this class at hand: ask for blocks and wait for the answer,
    /// outside of the operation, and start over. Nothing is published.
    Needs(MemberId, usize),
    /// The partition with this number has no complete living replica.
    Lost(usize),
    /// The call fails with this error.
    Fail(StoreError),
}

impl From<Error> for OpError {
    fn from(error: Error) -> OpError {
        match error {
            // Both errors say that the view is newer than the operation.
            Error::Stale { .. } | Error::Dead { .. } => OpError::Again,
            Error::Timeout { member, limit } => {
                OpError::Fail(StoreError::Timeout { member, limit })
            }
            Error::Ended => OpError::Fail(StoreError::Closed),
            other => OpError::Fail(StoreError::Engine(other)),
        }
    }
}

impl From<StoreError> for OpError {
    fn from(error: StoreError) -> OpError {
        OpError::Fail(error)
    }
}

/// The result of an attempt.
pub(in crate::store) type OpResult<T> = Result<T, OpError>;

/// The transaction that blocks an operation, and the blocked key.
#[derive(Debug)]
pub(in crate::store) struct Blocker {
    pub(in crate::store) id: IntentId,
    pub(in crate::store) key: Vec<u8>,
}

/// The transaction for which a call waits, and the end of its wait.
pub(in crate::store) type Blocked = Option<(IntentId, Time)>;

/// Returns an error if no block can lie at this offset, which was read from the memory of `member`.
#[inline]
pub(in crate::store) fn check_place(member: MemberId, offset: u64) -> OpResult<()> {
    if is_place(offset) {
        return Ok(());
    }
    Err(OpError::Fail(StoreError::Corrupt { member, what: "block offset out of range" }))
}

/// An error of the engine as an error of the store.
pub(in crate::store) fn engine_error(error: Error) -> StoreError {
    match error {
        Error::Timeout { member, limit } => StoreError::Timeout { member, limit },
        Error::Ended => StoreError::Closed,
        other => StoreError::Engine(other),
    }
}

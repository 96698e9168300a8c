//! Why an operation cannot go on.

use crate::engine::{Error, MemberId, Time};
use crate::store::error::StoreError;
use crate::store::record::key::KeyRef;
use crate::store::segment::intent::IntentId;
use crate::store::segment::place::is_place;

/// Why an operation cannot go on as it is.
#[derive(Debug)]
pub(in crate::store) enum OpError {
    /// The view has changed, or someone else was faster: begin again.
    Again,
    /// The store is frozen: begin again when it is not.
    Frozen,
    /// A transaction is in the way: get it out of the way, and begin again.
    Blocked(Box<Blocker>),
    /// No complete copy of this partition lives.
    Lost(usize),
    /// It cannot be done.
    Fail(StoreError),
}

impl From<Error> for OpError {
    fn from(error: Error) -> OpError {
        match error {
            // Both say that the view is newer than the operation.
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

pub(in crate::store) type OpResult<T> = Result<T, OpError>;

/// What keeps an operation from going on.
#[derive(Debug)]
pub(in crate::store) struct Blocker {
    pub(in crate::store) id: IntentId,
    pub(in crate::store) key: Vec<u8>,
}

/// The transaction that a call waits for, and until when.
pub(in crate::store) type Blocked = Option<(IntentId, Time)>;

pub(in crate::store) fn blocked(id: IntentId, key: &KeyRef<'_>) -> OpError {
    OpError::Blocked(Box::new(Blocker { id, key: key.key.to_vec() }))
}

/// The same as an error.
#[inline]
pub(in crate::store) fn check_place(member: MemberId, offset: u64) -> OpResult<()> {
    if is_place(offset) {
        return Ok(());
    }
    Err(OpError::Fail(StoreError::Corrupt { member, what: "block offset out of range" }))
}

pub(in crate::store) fn engine_error(error: Error) -> StoreError {
    match error {
        Error::Timeout { member, limit } => StoreError::Timeout { member, limit },
        Error::Ended => StoreError::Closed,
        other => StoreError::Engine(other),
    }
}

//! Why an operation cannot go on.

use crate::engine::{Error, MemberId, Time};
use crate::store::error::StoreError;
use crate::store::record::key::KeyRef;
use crate::store::segment::intent::IntentId;
use crate::store::segment::place::is_place;

/// Why an operation cannot go on as it is.
#[derive(Debug)]
pub(in crate::store) enum Halt {
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

impl From<Error> for Halt {
    fn from(error: Error) -> Halt {
        match error {
            // Both say that the view is newer than the operation.
            Error::Stale { .. } | Error::Dead { .. } => Halt::Again,
            Error::Timeout { member, limit } => Halt::Fail(StoreError::Timeout { member, limit }),
            Error::Ended => Halt::Fail(StoreError::Closed),
            other => Halt::Fail(StoreError::Engine(other)),
        }
    }
}

impl From<StoreError> for Halt {
    fn from(error: StoreError) -> Halt {
        Halt::Fail(error)
    }
}

pub(in crate::store) type Step<T> = Result<T, Halt>;

/// What keeps an operation from going on.
#[derive(Debug)]
pub(in crate::store) struct Blocker {
    pub(in crate::store) id: IntentId,
    pub(in crate::store) key: Vec<u8>,
}

/// The transaction that a call waits for, and until when.
pub(in crate::store) type Blocked = Option<(IntentId, Time)>;

pub(in crate::store) fn blocked(id: IntentId, key: &KeyRef<'_>) -> Halt {
    Halt::Blocked(Box::new(Blocker { id, key: key.key.to_vec() }))
}

/// The same as an error.
#[inline]
pub(in crate::store) fn check_place(member: MemberId, offset: u64) -> Step<()> {
    if is_place(offset) {
        return Ok(());
    }
    Err(Halt::Fail(StoreError::Corrupt { member, what: "a block is nowhere" }))
}

pub(in crate::store) fn engine_error(error: Error) -> StoreError {
    match error {
        Error::Timeout { member, limit } => StoreError::Timeout { member, limit },
        Error::Ended => StoreError::Closed,
        other => StoreError::Engine(other),
    }
}

//! The errors of seats.

use crate::engine::{self, MemberId};
use crate::image::ImageError;
use crate::rma;
use crate::store::StoreError;
use std::time::Duration;

/// The error of a call on a seat, and of [`run`](super::run()).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtectError {
    /// A holder of a seat died, and all seats go back to a generation. Return this error from the
    /// closure: [`run`](super::run()) calls the closure again, with the note of that generation.
    #[error("all seats are rolled back; return this error, and the closure is called again")]
    RolledBack,
    /// The closure of a seat returned an error or panicked, or its holders died too often. All
    /// members get this error.
    #[error("seat {seat} has failed: {reason}")]
    SeatFailed {
        /// The seat.
        seat: usize,
        /// What its closure said, or why no further member takes it.
        reason: String,
    },
    /// More members died at once than may be lost, and the memory of a seat is gone. All members
    /// get this error; older bytes are never returned in its place.
    #[error("the memory of seat {seat} is lost: more members died at once than the images allow")]
    SeatLost {
        /// The seat.
        seat: usize,
    },
    /// A living member did not answer in time, or did not come to a barrier, a point or the end.
    /// Whether the operation happened is unknown.
    #[error("{member} lives but did not come or answer within {limit:?}")]
    Timeout {
        /// The member.
        member: MemberId,
        /// How long the call waited.
        limit: Duration,
    },
    /// There is no seat of this number. Nothing was changed.
    #[error("there is no seat {seat} in a job of {seats} seats")]
    NoSuchSeat {
        /// The seat that was given.
        seat: usize,
        /// How many seats there are.
        seats: usize,
    },
    /// The bytes are outside the memory of the seat. Nothing was changed.
    #[error("bytes {offset}..+{len} are outside the {bytes} bytes of seat {seat}")]
    OutOfRange {
        /// The seat.
        seat: usize,
        /// Where the range begins.
        offset: u64,
        /// How long the range is.
        len: u64,
        /// How many bytes a seat has.
        bytes: u64,
    },
    /// An operation on words at an offset that is not a multiple of 8. Nothing was changed.
    #[error("offset {offset} is not a multiple of 8, as operations on words need")]
    Unaligned {
        /// The offset.
        offset: u64,
    },
    /// This seat already holds the lock. Nothing was changed.
    #[error("this seat already holds the lock of seat {seat}")]
    AlreadyLocked {
        /// The seat whose lock it is.
        seat: usize,
    },
    /// This seat does not hold the lock. Nothing was changed.
    #[error("this seat does not hold the lock of seat {seat}")]
    NotLocked {
        /// The seat whose lock it is.
        seat: usize,
    },
    /// A point while this seat holds a lock. Nothing was changed: a seat that takes the program up
    /// again at the point would not hold the lock.
    #[error("a point while this seat holds the lock of seat {seat}; unlock it first")]
    LockHeld {
        /// The seat whose lock it is.
        seat: usize,
    },
    /// A barrier or a point of this seat ended by a [`ProtectError::Timeout`]. The others may still
    /// be in it, and save memory that this seat would change. Nothing was changed: the seat makes
    /// no further calls, and its closure has failed, whatever it returns.
    #[error("a barrier or a point of this seat ended by a timeout: the seat is out of step")]
    OutOfStep,
    /// An option or an argument is invalid, or differs between members, or the seats made different
    /// calls where all have to make an equal one.
    #[error("{reason}")]
    Invalid {
        /// What is wrong, and what it may be.
        reason: String,
    },
    /// The store was closed, or this member is no longer part of the job.
    #[error("the store is closed, or this member is no longer part of the job")]
    Closed,
    /// Images failed.
    #[error(transparent)]
    Image(ImageError),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
    /// A communicator failed.
    #[error(transparent)]
    Communicator(rma::Error),
    /// The engine failed.
    #[error(transparent)]
    Engine(engine::Error),
}

/// The result of a call on a seat.
pub type ProtectResult<T> = Result<T, ProtectError>;

impl From<StoreError> for ProtectError {
    fn from(error: StoreError) -> ProtectError {
        match error {
            StoreError::Timeout { member, limit } => ProtectError::Timeout { member, limit },
            StoreError::Closed => ProtectError::Closed,
            other => ProtectError::Store(other),
        }
    }
}

impl From<engine::Error> for ProtectError {
    fn from(error: engine::Error) -> ProtectError {
        match error {
            engine::Error::Timeout { member, limit } => ProtectError::Timeout { member, limit },
            engine::Error::Ended => ProtectError::Closed,
            other => ProtectError::Engine(other),
        }
    }
}

impl From<rma::Error> for ProtectError {
    fn from(error: rma::Error) -> ProtectError {
        match error {
            rma::Error::Timeout { member, limit, .. } => ProtectError::Timeout { member, limit },
            rma::Error::Engine(error) => error.into(),
            other => ProtectError::Communicator(other),
        }
    }
}

impl From<ImageError> for ProtectError {
    fn from(error: ImageError) -> ProtectError {
        match error {
            ImageError::Timeout { member, limit } => ProtectError::Timeout { member, limit },
            ImageError::Closed => ProtectError::Closed,
            ImageError::Invalid { reason } => ProtectError::Invalid { reason },
            other => ProtectError::Image(other),
        }
    }
}

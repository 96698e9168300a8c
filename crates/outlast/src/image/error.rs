//! The errors of images and region checkpoints.

use crate::engine::{self, MemberId};
use crate::rma;
use crate::store::StoreError;
use std::time::Duration;

/// The error of a call on images.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// More pieces of the image are gone than may be lost. An older image is never returned in its
    /// place.
    #[error(
        "more pieces of the image `{name}` are lost than may be; its bytes are gone; save it anew"
    )]
    DataLost {
        /// The name of the image.
        name: String,
    },
    /// There is no image of this name.
    #[error("there is no image `{name}`")]
    Absent {
        /// The name.
        name: String,
    },
    /// Another member has saved this image meanwhile. The image of this call was not saved.
    #[error("another member has saved the image `{name}` meanwhile; this call saved nothing")]
    Replaced {
        /// The name of the image.
        name: String,
    },
    /// A member has no room for the pieces. The image that was saved before stands.
    #[error(
        "{member} has no room for {needed} more bytes of pieces; the image that was saved before \
         stands; open with a greater number of bytes, or with more room"
    )]
    NoRoom {
        /// The member.
        member: MemberId,
        /// How many bytes were needed there.
        needed: u64,
    },
    /// The image is longer than what was said at open. The image that was saved before stands.
    #[error("{len} bytes are more than the {limit} that images were opened for; nothing was saved")]
    TooLong {
        /// The length that was given.
        len: u64,
        /// The length that was said at open.
        limit: u64,
    },
    /// A living member did not answer in time. Whether the image was saved is unknown: load it to
    /// find out.
    #[error(
        "{member} lives but did not answer within {limit:?}; whether the image was saved is \
         unknown: load it to find out"
    )]
    Timeout {
        /// The member that did not answer.
        member: MemberId,
        /// The time for which the call waited.
        limit: Duration,
    },
    /// A member that takes part has died, at all callers. What was saved before stands.
    #[error("a member died; what was saved before stands: restore it, and go on from there")]
    MemberDied,
    /// A region has another length than the region that was saved. No byte was written.
    #[error("the region `{name}` was saved with {saved} bytes, and {given} were given")]
    OtherLength {
        /// The name of the region.
        name: String,
        /// The length that was saved.
        saved: u64,
        /// The length that was given.
        given: u64,
    },
    /// An option or an argument is invalid, or differs between members. Nothing was changed.
    #[error("{reason}")]
    Invalid {
        /// What is wrong, and what it may be.
        reason: String,
    },
    /// The images were closed, or this member is no longer part of the job.
    #[error("the images are closed, or this member is no longer part of the job")]
    Closed,
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

/// The result of a call on images.
pub type ImageResult<T> = Result<T, ImageError>;

impl From<StoreError> for ImageError {
    fn from(error: StoreError) -> ImageError {
        match error {
            StoreError::Timeout { member, limit } => ImageError::Timeout { member, limit },
            StoreError::Closed => ImageError::Closed,
            other => ImageError::Store(other),
        }
    }
}

impl From<engine::Error> for ImageError {
    fn from(error: engine::Error) -> ImageError {
        match error {
            engine::Error::Timeout { member, limit } => ImageError::Timeout { member, limit },
            engine::Error::Ended => ImageError::Closed,
            other => ImageError::Engine(other),
        }
    }
}

impl From<rma::Error> for ImageError {
    fn from(error: rma::Error) -> ImageError {
        match error {
            rma::Error::Timeout { member, limit, .. } => ImageError::Timeout { member, limit },
            rma::Error::Engine(error) => error.into(),
            other => ImageError::Communicator(other),
        }
    }
}

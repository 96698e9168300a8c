//! The codes of `include/outlast.h`, and which error of the library has which code.

use crate::call::{Failure, failure};
use outlast::engine;
use outlast::image::ImageError;
use outlast::protect::ProtectError;
use outlast::rma::{self, WindowError};
use outlast::snapshot::SnapshotError;
use outlast::store::StoreError;

/// Defines the codes, their names in the header, and the list of all of them.
macro_rules! codes {
    ($($name:ident = $code:literal, $header:literal;)*) => {
        /// The codes of the header, in the order of the header.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        #[allow(missing_docs, reason = "the header says what the codes mean")]
        pub enum Status {
            $($name = $code,)*
        }

        impl Status {
            /// All codes, with their names in the header.
            pub const ALL: &'static [(&'static str, Status)] = &[$(($header, Status::$name),)*];
        }
    };
}

codes! {
    Ok = 0, "OUTLAST_OK";
    Absent = 1, "OUTLAST_ABSENT";
    Died = 2, "OUTLAST_DIED";
    Abandoned = 3, "OUTLAST_ABANDONED";
    Invalid = -1, "OUTLAST_INVALID";
    NotJoined = -2, "OUTLAST_NOT_JOINED";
    DataLost = -3, "OUTLAST_DATA_LOST";
    Timeout = -4, "OUTLAST_TIMEOUT";
    Conflict = -5, "OUTLAST_CONFLICT";
    Aborted = -6, "OUTLAST_ABORTED";
    Over = -7, "OUTLAST_OVER";
    Locked = -8, "OUTLAST_LOCKED";
    OutOfMemory = -9, "OUTLAST_OUT_OF_MEMORY";
    TooSmall = -10, "OUTLAST_TOO_SMALL";
    WrongType = -11, "OUTLAST_WRONG_TYPE";
    Closed = -12, "OUTLAST_CLOSED";
    Corrupt = -13, "OUTLAST_CORRUPT";
    Failed = -14, "OUTLAST_FAILED";
    Nested = -15, "OUTLAST_NESTED";
    Revoked = -16, "OUTLAST_REVOKED";
    RecoveryFailed = -17, "OUTLAST_RECOVERY_FAILED";
    AlreadyOpen = -18, "OUTLAST_ALREADY_OPEN";
    Forked = -19, "OUTLAST_FORKED";
    ProcFailed = -20, "OUTLAST_PROC_FAILED";
    ProcFailedPending = -21, "OUTLAST_PROC_FAILED_PENDING";
    Interrupted = -22, "OUTLAST_INTERRUPTED";
    LockLost = -23, "OUTLAST_LOCK_LOST";
    NotLocked = -24, "OUTLAST_NOT_LOCKED";
    StillLocked = -25, "OUTLAST_STILL_LOCKED";
    Busy = -26, "OUTLAST_BUSY";
    RolledBack = -27, "OUTLAST_ROLLED_BACK";
    SeatFailed = -28, "OUTLAST_SEAT_FAILED";
}

fn of_engine(error: &engine::Error) -> Status {
    match error {
        engine::Error::Dead { .. } => Status::ProcFailed,
        engine::Error::Timeout { .. } => Status::Timeout,
        engine::Error::OutOfMemory { .. } => Status::OutOfMemory,
        engine::Error::OutOfRange { .. }
        | engine::Error::Unaligned { .. }
        | engine::Error::UnknownMember { .. }
        | engine::Error::MessageTooLong { .. } => Status::Invalid,
        engine::Error::Forked => Status::Forked,
        engine::Error::Ended => Status::Closed,
        _ => Status::Failed,
    }
}

fn of_communicator(error: &rma::Error) -> Status {
    match error {
        rma::Error::ProcFailed { .. } => Status::ProcFailed,
        rma::Error::ProcFailedPending { .. } => Status::ProcFailedPending,
        rma::Error::Revoked => Status::Revoked,
        rma::Error::Interrupted { .. } => Status::Interrupted,
        rma::Error::Timeout { .. } => Status::Timeout,
        rma::Error::RankOutOfRange { .. }
        | rma::Error::TagOutOfRange { .. }
        | rma::Error::Mismatched { .. }
        | rma::Error::Invalid { .. } => Status::Invalid,
        rma::Error::Freed => Status::Closed,
        rma::Error::Truncated { .. } => Status::TooSmall,
        rma::Error::Busy => Status::Busy,
        rma::Error::AlreadyTaken => Status::Over,
        rma::Error::Engine(error) => of_engine(error),
        _ => Status::Failed,
    }
}

impl From<engine::Error> for Failure {
    fn from(error: engine::Error) -> Failure {
        failure(of_engine(&error), error.to_string())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let status = match &error {
            StoreError::DataLost { .. } => Status::DataLost,
            StoreError::Timeout { .. } => Status::Timeout,
            StoreError::Conflict { .. } => Status::Conflict,
            StoreError::Aborted | StoreError::Contended { .. } => Status::Aborted,
            StoreError::TransactionOver { .. } => Status::Over,
            StoreError::Nested => Status::Nested,
            StoreError::Revoked => Status::Revoked,
            StoreError::RecoveryFailed { .. } => Status::RecoveryFailed,
            StoreError::Locked { .. } => Status::Locked,
            StoreError::OutOfMemory { .. } => Status::OutOfMemory,
            StoreError::BadKey { .. } | StoreError::Invalid { .. } => Status::Invalid,
            StoreError::BufferTooSmall { .. } => Status::TooSmall,
            StoreError::WrongType { .. } => Status::WrongType,
            StoreError::Corrupt { .. } => Status::Corrupt,
            StoreError::Closed => Status::Closed,
            StoreError::AlreadyOpen { .. } => Status::AlreadyOpen,
            StoreError::Engine(error) => of_engine(error),
            _ => Status::Failed,
        };
        failure(status, error.to_string())
    }
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Failure {
        match error {
            ImageError::Store(error) => error.into(),
            ImageError::Communicator(error) => error.into(),
            ImageError::Engine(error) => error.into(),
            error => {
                let status = match &error {
                    ImageError::DataLost { .. } => Status::DataLost,
                    ImageError::Timeout { .. } => Status::Timeout,
                    ImageError::NoRoom { .. } => Status::OutOfMemory,
                    ImageError::Replaced { .. } => Status::Conflict,
                    ImageError::Closed => Status::Closed,
                    ImageError::Absent { .. }
                    | ImageError::TooLong { .. }
                    | ImageError::OtherLength { .. }
                    | ImageError::Invalid { .. } => Status::Invalid,
                    _ => Status::Failed,
                };
                failure(status, error.to_string())
            }
        }
    }
}

impl From<ProtectError> for Failure {
    fn from(error: ProtectError) -> Failure {
        match error {
            ProtectError::Image(error) => error.into(),
            ProtectError::Store(error) => error.into(),
            ProtectError::Communicator(error) => error.into(),
            ProtectError::Engine(error) => error.into(),
            error => {
                let status = match &error {
                    ProtectError::RolledBack => Status::RolledBack,
                    ProtectError::SeatFailed { .. } => Status::SeatFailed,
                    ProtectError::SeatLost { .. } => Status::DataLost,
                    ProtectError::Timeout { .. } => Status::Timeout,
                    ProtectError::NotLocked { .. } => Status::NotLocked,
                    ProtectError::Closed => Status::Closed,
                    ProtectError::NoSuchSeat { .. }
                    | ProtectError::OutOfRange { .. }
                    | ProtectError::Unaligned { .. }
                    | ProtectError::AlreadyLocked { .. }
                    | ProtectError::LockHeld { .. }
                    | ProtectError::Invalid { .. } => Status::Invalid,
                    _ => Status::Failed,
                };
                failure(status, error.to_string())
            }
        }
    }
}

impl From<SnapshotError> for Failure {
    fn from(error: SnapshotError) -> Failure {
        match error {
            SnapshotError::Store(error) => error.into(),
            error => {
                let status = match &error {
                    SnapshotError::Timeout { .. } => Status::Timeout,
                    SnapshotError::AlreadyOpen => Status::AlreadyOpen,
                    SnapshotError::Busy => Status::Busy,
                    SnapshotError::Interrupted { .. } => Status::ProcFailed,
                    _ => Status::Failed,
                };
                failure(status, error.to_string())
            }
        }
    }
}

impl From<rma::Error> for Failure {
    fn from(error: rma::Error) -> Failure {
        failure(of_communicator(&error), error.to_string())
    }
}

impl From<WindowError> for Failure {
    fn from(error: WindowError) -> Failure {
        let status = match &error {
            WindowError::ProcFailed { .. } => Status::ProcFailed,
            WindowError::Revoked => Status::Revoked,
            WindowError::Interrupted { .. } => Status::Interrupted,
            WindowError::Timeout { .. } => Status::Timeout,
            WindowError::LockTimeout { .. } => Status::Locked,
            WindowError::Abandoned { .. } => Status::Abandoned,
            WindowError::LockLost { .. } => Status::LockLost,
            WindowError::NotLocked { .. } => Status::NotLocked,
            WindowError::StillLocked { .. } => Status::StillLocked,
            WindowError::AlreadyLocked { .. }
            | WindowError::OutOfRange { .. }
            | WindowError::NotAttached { .. }
            | WindowError::Unaligned { .. }
            | WindowError::RankOutOfRange { .. }
            | WindowError::Invalid { .. } => Status::Invalid,
            WindowError::Freed => Status::Closed,
            WindowError::AlreadyTaken => Status::Over,
            WindowError::Communicator(error) => of_communicator(error),
            WindowError::Engine(error) => of_engine(error),
            _ => Status::Failed,
        };
        failure(status, error.to_string())
    }
}

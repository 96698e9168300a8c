//! Errors: the exceptions of the package, and the codes that they share with `outlast.h`.

use outlast::image::ImageError;
use outlast::protect::ProtectError;
use outlast::rma::{self, WindowError};
use outlast::snapshot::SnapshotError;
use outlast::store::StoreError;
use outlast::{Error, JoinError};
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(
    outlast,
    OutlastError,
    PyException,
    "A call failed. The message says why and what to do; `code` is the code of outlast.h."
);
create_exception!(
    outlast,
    DataLost,
    OutlastError,
    "All replicas of the key's partition are lost. Store.accept_loss makes it usable again."
);
create_exception!(
    outlast,
    Timeout,
    OutlastError,
    "A living member did not answer in time. The call may have had its effect or not."
);
create_exception!(
    outlast,
    Conflict,
    OutlastError,
    "The condition of the call does not hold. Nothing was changed."
);
create_exception!(
    outlast,
    Aborted,
    OutlastError,
    "The transaction conflicts with another transaction. Nothing was changed. Repeat it."
);
create_exception!(
    outlast,
    Locked,
    OutlastError,
    "Another holder kept the lock until the time limit."
);
create_exception!(
    outlast,
    Revoked,
    OutlastError,
    "A store in global mode: a member has died, and all living members have to call Store.recover. \
     A communicator or window: a member has revoked it, and all living members have to call shrink."
);
create_exception!(
    outlast,
    AlreadyOpen,
    OutlastError,
    "This member has the store of this name open already. Nothing was changed."
);
create_exception!(
    outlast,
    MemberDied,
    OutlastError,
    "Store.wait: the named member is dead and has not put the key. Regions.checkpoint: a member \
     died, and what was saved before stands; call Regions.restore."
);
create_exception!(
    outlast,
    NotJoined,
    OutlastError,
    "This process could not become a member of a job."
);
create_exception!(
    outlast,
    Closed,
    OutlastError,
    "The store is closed, or this member has left the job."
);
create_exception!(
    outlast,
    OutOfMemory,
    OutlastError,
    "A member has no room for the value. Nothing was changed."
);
create_exception!(
    outlast,
    TooSmall,
    OutlastError,
    "The buffer is too small for the value. Nothing was copied."
);
create_exception!(
    outlast,
    Corrupt,
    OutlastError,
    "Code outside of the store has written into its memory. The value cannot be trusted."
);

create_exception!(
    outlast,
    ProcFailed,
    OutlastError,
    "Members that the call needs are dead. Comm.failed and Window.failed have their ranks."
);
create_exception!(
    outlast,
    Interrupted,
    OutlastError,
    "A member ended this wait with Comm.interrupt. Nothing was lost; call again to go on waiting."
);
create_exception!(
    outlast,
    LockLost,
    OutlastError,
    "The lock of the window was taken away by Window.force_unlock. The call did nothing."
);
create_exception!(
    outlast,
    RolledBack,
    OutlastError,
    "A holder of a seat died, and all seats go back to a point. Let this exception leave the \
     function of the seat, which is then called again."
);
create_exception!(
    outlast,
    SeatFailed,
    OutlastError,
    "The function of a seat raised an exception, or the holders of the seat died too often."
);

/// The codes of `outlast.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    Died = 2,
    Invalid = -1,
    NotJoined = -2,
    DataLost = -3,
    Timeout = -4,
    Conflict = -5,
    Aborted = -6,
    Over = -7,
    Locked = -8,
    OutOfMemory = -9,
    TooSmall = -10,
    WrongType = -11,
    Closed = -12,
    Corrupt = -13,
    Failed = -14,
    Nested = -15,
    Revoked = -16,
    RecoveryFailed = -17,
    AlreadyOpen = -18,
    Forked = -19,
    ProcFailed = -20,
    ProcFailedPending = -21,
    Interrupted = -22,
    LockLost = -23,
    NotLocked = -24,
    StillLocked = -25,
    Busy = -26,
    RolledBack = -27,
    SeatFailed = -28,
}

/// An error of the library: its code and its message.
#[derive(Debug)]
pub(crate) struct Failure {
    code: Code,
    message: String,
}

pub(crate) fn failure(code: Code, message: impl Into<String>) -> Failure {
    Failure { code, message: message.into() }
}

/// The error of a call on a store that this member has closed.
pub(crate) fn closed() -> Failure {
    StoreError::Closed.into()
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let code = match &error {
            StoreError::DataLost { .. } => Code::DataLost,
            StoreError::Timeout { .. } => Code::Timeout,
            StoreError::Conflict { .. } => Code::Conflict,
            StoreError::Aborted | StoreError::Contended { .. } => Code::Aborted,
            StoreError::TransactionOver { .. } => Code::Over,
            StoreError::Nested => Code::Nested,
            StoreError::Revoked => Code::Revoked,
            StoreError::RecoveryFailed { .. } => Code::RecoveryFailed,
            StoreError::Locked { .. } => Code::Locked,
            StoreError::OutOfMemory { .. } => Code::OutOfMemory,
            StoreError::BadKey { .. } | StoreError::Invalid { .. } => Code::Invalid,
            StoreError::BufferTooSmall { .. } => Code::TooSmall,
            StoreError::WrongType { .. } => Code::WrongType,
            StoreError::Corrupt { .. } => Code::Corrupt,
            StoreError::Closed => Code::Closed,
            StoreError::AlreadyOpen { .. } => Code::AlreadyOpen,
            StoreError::Engine(error) => engine_code(error),
            _ => Code::Failed,
        };
        failure(code, error.to_string())
    }
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Failure {
        let code = match &error {
            ImageError::DataLost { .. } => Code::DataLost,
            ImageError::Timeout { .. } => Code::Timeout,
            ImageError::NoRoom { .. } => Code::OutOfMemory,
            ImageError::Replaced { .. } => Code::Conflict,
            ImageError::MemberDied => Code::Died,
            ImageError::Closed => Code::Closed,
            ImageError::Absent { .. }
            | ImageError::TooLong { .. }
            | ImageError::OtherLength { .. }
            | ImageError::Invalid { .. } => Code::Invalid,
            ImageError::Engine(error) => engine_code(error),
            ImageError::Communicator(error) => communicator_code(error),
            ImageError::Store(error) => return error.clone().into(),
            _ => Code::Failed,
        };
        failure(code, error.to_string())
    }
}

impl From<SnapshotError> for Failure {
    fn from(error: SnapshotError) -> Failure {
        match error {
            SnapshotError::Store(error) => error.into(),
            SnapshotError::Timeout { .. } => failure(Code::Timeout, error.to_string()),
            SnapshotError::AlreadyOpen => failure(Code::AlreadyOpen, error.to_string()),
            SnapshotError::Busy => failure(Code::Busy, error.to_string()),
            SnapshotError::Interrupted { .. } => failure(Code::ProcFailed, error.to_string()),
            other => failure(Code::Failed, other.to_string()),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        failure(engine_code(&error), error.to_string())
    }
}

impl From<rma::Error> for Failure {
    fn from(error: rma::Error) -> Failure {
        failure(communicator_code(&error), error.to_string())
    }
}

fn communicator_code(error: &rma::Error) -> Code {
    match error {
        rma::Error::ProcFailed { .. } => Code::ProcFailed,
        rma::Error::ProcFailedPending { .. } => Code::ProcFailedPending,
        rma::Error::Revoked => Code::Revoked,
        rma::Error::Interrupted { .. } => Code::Interrupted,
        rma::Error::Timeout { .. } => Code::Timeout,
        rma::Error::RankOutOfRange { .. }
        | rma::Error::TagOutOfRange { .. }
        | rma::Error::Mismatched { .. }
        | rma::Error::Invalid { .. } => Code::Invalid,
        rma::Error::Freed => Code::Closed,
        rma::Error::Truncated { .. } => Code::TooSmall,
        rma::Error::Busy => Code::Busy,
        rma::Error::AlreadyTaken => Code::Over,
        rma::Error::Engine(error) => engine_code(error),
        _ => Code::Failed,
    }
}

impl From<WindowError> for Failure {
    fn from(error: WindowError) -> Failure {
        let code = match &error {
            WindowError::ProcFailed { .. } => Code::ProcFailed,
            WindowError::Revoked => Code::Revoked,
            WindowError::Interrupted { .. } => Code::Interrupted,
            WindowError::Timeout { .. } => Code::Timeout,
            WindowError::LockTimeout { .. } => Code::Locked,
            WindowError::LockLost { .. } => Code::LockLost,
            WindowError::NotLocked { .. } => Code::NotLocked,
            WindowError::StillLocked { .. } => Code::StillLocked,
            WindowError::AlreadyLocked { .. }
            | WindowError::OutOfRange { .. }
            | WindowError::NotAttached { .. }
            | WindowError::Unaligned { .. }
            | WindowError::RankOutOfRange { .. }
            | WindowError::Invalid { .. } => Code::Invalid,
            WindowError::Freed => Code::Closed,
            WindowError::AlreadyTaken => Code::Over,
            WindowError::Communicator(error) => communicator_code(error),
            WindowError::Engine(error) => engine_code(error),
            _ => Code::Failed,
        };
        failure(code, error.to_string())
    }
}

impl From<ProtectError> for Failure {
    fn from(error: ProtectError) -> Failure {
        let code = match &error {
            ProtectError::RolledBack => Code::RolledBack,
            ProtectError::SeatFailed { .. } => Code::SeatFailed,
            ProtectError::SeatLost { .. } => Code::DataLost,
            ProtectError::Timeout { .. } => Code::Timeout,
            ProtectError::NotLocked { .. } => Code::NotLocked,
            ProtectError::Closed => Code::Closed,
            ProtectError::NoSuchSeat { .. }
            | ProtectError::OutOfRange { .. }
            | ProtectError::Unaligned { .. }
            | ProtectError::AlreadyLocked { .. }
            | ProtectError::LockHeld { .. }
            | ProtectError::Invalid { .. } => Code::Invalid,
            ProtectError::Image(error) => return error.clone().into(),
            ProtectError::Store(error) => return error.clone().into(),
            ProtectError::Communicator(error) => return error.clone().into(),
            ProtectError::Engine(error) => return error.clone().into(),
            _ => Code::Failed,
        };
        failure(code, error.to_string())
    }
}

impl From<JoinError> for Failure {
    fn from(error: JoinError) -> Failure {
        failure(Code::NotJoined, error.to_string())
    }
}

fn engine_code(error: &Error) -> Code {
    match error {
        Error::Dead { .. } => Code::ProcFailed,
        Error::Ended => Code::Closed,
        Error::Forked => Code::Forked,
        Error::Timeout { .. } => Code::Timeout,
        Error::OutOfMemory { .. } => Code::OutOfMemory,
        Error::OutOfRange { .. }
        | Error::Unaligned { .. }
        | Error::UnknownMember { .. }
        | Error::MessageTooLong { .. } => Code::Invalid,
        _ => Code::Failed,
    }
}

impl From<Failure> for PyErr {
    fn from(Failure { code, message }: Failure) -> PyErr {
        let error = match code {
            Code::Died => MemberDied::new_err(message),
            Code::NotJoined => NotJoined::new_err(message),
            Code::DataLost => DataLost::new_err(message),
            Code::Timeout => Timeout::new_err(message),
            Code::Conflict => Conflict::new_err(message),
            Code::Aborted => Aborted::new_err(message),
            Code::Locked => Locked::new_err(message),
            Code::OutOfMemory => OutOfMemory::new_err(message),
            Code::TooSmall => TooSmall::new_err(message),
            Code::Closed => Closed::new_err(message),
            Code::Corrupt => Corrupt::new_err(message),
            Code::Revoked => Revoked::new_err(message),
            Code::AlreadyOpen => AlreadyOpen::new_err(message),
            Code::ProcFailed | Code::ProcFailedPending => ProcFailed::new_err(message),
            Code::Interrupted => Interrupted::new_err(message),
            Code::LockLost => LockLost::new_err(message),
            Code::RolledBack => RolledBack::new_err(message),
            Code::SeatFailed => SeatFailed::new_err(message),
            Code::Invalid
            | Code::Over
            | Code::WrongType
            | Code::Failed
            | Code::Nested
            | Code::RecoveryFailed
            | Code::Forked
            | Code::NotLocked
            | Code::StillLocked
            | Code::Busy => OutlastError::new_err(message),
        };
        Python::attach(|py| match error.value(py).setattr("code", code as i32) {
            Ok(()) => error,
            Err(refused) => refused,
        })
    }
}

/// Adds the exceptions to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    py.get_type::<OutlastError>().setattr("code", py.None())?;
    for (name, kind) in [
        ("OutlastError", py.get_type::<OutlastError>()),
        ("DataLost", py.get_type::<DataLost>()),
        ("Timeout", py.get_type::<Timeout>()),
        ("Conflict", py.get_type::<Conflict>()),
        ("Aborted", py.get_type::<Aborted>()),
        ("Locked", py.get_type::<Locked>()),
        ("Revoked", py.get_type::<Revoked>()),
        ("AlreadyOpen", py.get_type::<AlreadyOpen>()),
        ("MemberDied", py.get_type::<MemberDied>()),
        ("NotJoined", py.get_type::<NotJoined>()),
        ("Closed", py.get_type::<Closed>()),
        ("OutOfMemory", py.get_type::<OutOfMemory>()),
        ("TooSmall", py.get_type::<TooSmall>()),
        ("Corrupt", py.get_type::<Corrupt>()),
        ("ProcFailed", py.get_type::<ProcFailed>()),
        ("Interrupted", py.get_type::<Interrupted>()),
        ("LockLost", py.get_type::<LockLost>()),
        ("RolledBack", py.get_type::<RolledBack>()),
        ("SeatFailed", py.get_type::<SeatFailed>()),
    ] {
        module.add(name, kind)?;
    }
    Ok(())
}

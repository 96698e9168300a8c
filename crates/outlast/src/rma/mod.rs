//! Communicators and windows with the semantics of ULFM, the part for one-sided memory finished.

#![forbid(unsafe_code)]

mod agreement;
mod collective;
mod communicator;
mod error;
mod group;
mod point;
mod progress;
mod window;
mod wire;

pub use collective::Op;
pub use communicator::{Agreement, Communicator};
pub use error::{Error, Result};
pub use point::{
    Received, Request, Source, Tag, test_all, test_any, test_some, wait_all, wait_any, wait_some,
};
pub use window::{ATTACHED, LockKind, Update, Window, WindowError, WindowRequest, WindowResult, Word};

/// The largest tag of a message.
pub const TAG_MAX: u32 = (1 << 31) - 1;

//! Communicators and windows with the semantics of ULFM, the part for one-sided memory finished.

#![forbid(unsafe_code)]

mod communicator;
mod error;
mod group;

pub use communicator::{Communicator, Op, Received, Request, Source, Tag, wait_all, wait_any, wait_some};
pub use error::{Error, Result};

/// The largest tag of a message.
pub const TAG_MAX: u32 = (1 << 31) - 1;

//! Communicators and windows with the semantics of ULFM, the part for one-sided memory finished.
//!
//! A [`Communicator`] is a group of members that exchange messages, call collective operations and recover together.
//! No call waits for ever: it ends by its own completion, by the death of a member that it needs, by
//! [`Communicator::revoke`], or at the time limit of the job with the name of the member that did not answer.
//!
//! ```
//! use outlast::rma::{Communicator, Error, Op};
//! use outlast::Engine;
//!
//! let job = outlast::join()?;
//! let mut comm = Communicator::world(&job)?;
//! let mut done = 0;
//! while done < 10 {
//!     let mut sum = [1];
//!     let outcome = comm.allreduce_u64(Op::Sum, &mut sum);
//!     // Members may differ in how the reduction ended for them. After this they do not.
//!     comm.failure_ack()?;
//!     match comm.agree_despite_failures(u64::from(outcome.is_ok())) {
//!         Ok(all) if all.flags == 1 && all.failed.is_empty() => done += 1,
//!         Ok(_) => {
//!             comm.revoke()?;
//!             comm = comm.shrink()?;
//!         }
//!         Err(error) => return Err(error.into()),
//!     }
//! }
//! job.leave()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Failures
//! - *Notification is local.* An operation fails with [`Error::ProcFailed`] where, and only where, a death keeps it
//!   from being completed. Others learn of the death in time, or by [`Communicator::notify_failures`], `agree`,
//!   `shrink` and any message of somebody who knows.
//! - *Receives from any source* are held up by a death ([`Error::ProcFailedPending`]) until it is acknowledged by
//!   [`Communicator::failure_ack`], and can be continued.
//! - *Collective operations* fail, at all who would have to wait, once a member is known to be dead. Some members may
//!   have completed them.
//! - *Revoking* ends all operations of all members on a communicator; `agree` and `shrink` still work on it.
//! - *Agreeing* and *shrinking* give all members the same, whoever dies when.
//! - To *end together*, let the members agree before they leave the job: who leaves is a dead member for those who
//!   are still in something else.
//!
//! # How it is built
//! `agreement` has the consensus under `agree`, `shrink`, `duplicate` and `split`, with its proof, and no engine;
//! `one_round` the same in one round, for small groups on engines that can publish;
//! `collective` the other collective operations; `point_to_point` messages and requests; `progress` what a member keeps for all
//! its communicators, and who handles messages when; `wire` how they are written; `group` ranks and sets of them.
//! Identities of communicators are proposed by their members from numbers that they never use twice, and chosen by
//! the agreement that makes the communicator: a message or a revoke that comes late finds its own communicator or none.

#![forbid(unsafe_code)]

mod agreement;
mod collective;
mod communicator;
mod error;
mod group;
mod long_message;
mod one_round;
mod outbox;
mod point_to_point;
mod progress;
mod registry;
#[cfg(test)]
mod testing;
mod window;
mod wire;

pub use collective::Op;
pub use communicator::{Agreement, Communicator};
pub use error::{Error, Result};
pub use point_to_point::{
    Received, Request, Source, Tag, test_all, test_any, test_some, wait_all, wait_any, wait_some,
};
pub use window::{
    ATTACHED, LockKind, Update, Window, WindowError, WindowRequest, WindowResult, Word,
};

/// The largest tag of a message.
pub const TAG_MAX: u32 = (1 << 31) - 1;

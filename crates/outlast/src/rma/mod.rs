//! Communicators and windows with the semantics of ULFM, extended for one-sided memory.
//!
//! A [`Communicator`] is a group of members that exchange messages, call collective operations and
//! recover together. A [`Window`] is memory that the members of a communicator show to each other.
//! No call waits for ever. It ends by its own completion, by the death of a member that it needs,
//! by [`Communicator::revoke`], or at the time limit of the job, with the name of the member that
//! did not answer. All waits of a call share this limit, however many messages or rounds it takes.
//!
//! ```
//! use outlast::rma::{Communicator, Error, Op};
//!
//! let job = outlast::join()?;
//! let mut comm = Communicator::world(&job)?;
//! let mut done = 0;
//! while done < 10 {
//!     let mut sum = [1];
//!     let outcome = comm.allreduce_u64(Op::Sum, &mut sum);
//!     // The reduction may end differently at different members. The agreement makes them equal.
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
//! # What a death does
//! - *Notification is local.* An operation fails with [`Error::ProcFailed`] where, and only where,
//!   a death keeps it from being completed. Other members learn of the death in time, or by
//!   [`Communicator::notify_failures`], `agree`, `shrink` and any message from a member that knows
//!   of it.
//! - *Receives from any source* are held up by a death ([`Error::ProcFailedPending`]) until the
//!   program acknowledges it with [`Communicator::failure_ack`]. They can be continued.
//! - *Collective operations* fail, at every member that would have to wait, once a member is known
//!   to be dead. Some members may have completed them.
//! - *Revoking* ends all operations of all members on a communicator. `agree` and `shrink` still
//!   work on it.
//! - *Agreeing* and *shrinking* give equal results at all members, whichever members die at any
//!   time.
//! - To *end together*, let the members agree before they leave the job: a member that leaves
//!   counts as dead for members that are still inside another call.
//!
//! # Vocabulary
//! - A *rank* is the number of a member in a communicator.
//! - A *call* is a call of a program. It begins with `progress::begin_call`, which gives it a
//!   deadline.
//! - An *activity* is a thread of this member, or the background of the job.
//! - A dead member is *drained* at this member when its death is known and all its messages that
//!   had arrived have been handled.
//! - The *token* is the right to handle messages; its holder is the only activity that does. See
//!   `progress`.
//!
//! # The modules
//! - `communicator`: the calls of a program on a communicator. `group`: its members, and sets of
//!   ranks.
//! - `agreement`: the consensus under `agree`, `shrink`, `duplicate` and `split`, with its proof
//!   and without an engine. `one_round`: agreement in a single round, for small groups on engines
//!   that can publish.
//! - `collective`: the other collective operations. `point_to_point`: messages and requests.
//! - `progress`: waiting, and the order in which messages are handled. `registry`: the
//!   communicators of a member by identity. `outbox`: messages to send, and to send again.
//!   `long_message`: messages in parts. `wire`: the encoding of messages.
//! - `window`: one-sided memory, and locks on it.
//!
//! The programs of users and the store call this layer through [`Communicator`] and [`Window`]. It
//! calls the engine through the job, on a port of its own.
//!
//! # Invariants
//! - The identity of a communicator is never used again. Its members propose identities from
//!   numbers that they use only once, and the agreement that makes the communicator chooses among
//!   the proposals. A late message or revoke therefore finds its own communicator or none.
//! - No lock of the process is held across a call of the engine.
//! - The messages of a sender are handled in the order in which it sent them, and before the sender
//!   is drained.

#![forbid(unsafe_code)]

mod agreement;
mod collective;
mod communicator;
mod credit;
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

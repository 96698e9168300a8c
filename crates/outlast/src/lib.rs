//! Outlast: a key-value store in the memories of the processes of a parallel program that outlasts any of them.
//!
//! The crate is layered. The [`engine`] is the lowest layer: members, one segment of memory for each of them that
//! the others reach one-sidedly, small messages, and a view of who is dead. It comes as `shm` (processes of one
//! machine), `sim` (coroutines under a seeded simulator, feature `sim`) and `mpi` (Open MPI 5 with ULFM). What is
//! built above it never knows which one it runs on.
//!
//! # Joining
//! A program becomes a member of its job with [`join`]. Started by `outlast run -n 4 PROGRAM` it is one of four;
//! started alone it is a job of one:
//!
//! ```
//! use outlast::Engine;
//! let job = outlast::join()?;
//! assert_eq!(job.members(), 1);
//! job.leave()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]

mod codec;
pub mod engine;
mod job;
pub mod launch;
mod ranges;
pub mod rma;
pub mod snapshot;
pub mod store;

pub use engine::{Engine, Epoch, Error, MemberId, MemberSet, Time, View};
pub use job::{Attending, Job, JoinError, JoinOptions, Service, join};

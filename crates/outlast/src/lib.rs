//! A key-value store in the memories of the processes of a parallel program, which outlasts any of
//! them.
//!
//! The program links this crate, and every process lends memory. Each value has several replicas in
//! different processes. When processes die without warning, the survivors go on at once, with every
//! acknowledged value, and make the lost replicas anew.
//!
//! It is for resilient parallel programs and task runtimes, with or without MPI, that need a place
//! for checkpoints, task descriptors and futures which is as fast as memory and never hangs.
//!
//! # A store that outlasts a process
//! A process becomes a *member* of its job with [`join`], and opens the [`store`] together
//! with the other members. Here one of four members dies, and the others still read its value:
//!
//! ```
//! use outlast::store::{Options, Store, StoreError};
//! use outlast::{MemberId, launch};
//! use std::time::Duration;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // Started by hand, the program starts four copies of itself as members.
//!     if let Some(outcome) = launch::this_program(4)? {
//!         assert!(outcome.survivors_ok(), "{outcome}");
//!         assert_eq!((outcome.survivors().count(), outcome.deaths().count()), (3, 1));
//!         return Ok(());
//!     }
//!
//!     let job = outlast::join()?;
//!     let store = Store::open(&job, Options::new().replicas(3))?;
//!     if job.me() == MemberId(2) {
//!         // `Ok` means that three members hold the value.
//!         store.put(b"result", b"forty-two")?;
//!         std::process::abort();
//!     }
//!     while job.view().dead.is_empty() {
//!         job.sleep(Duration::from_millis(1));
//!     }
//!     let value = store.get(b"result")?.expect("it outlasts its writer");
//!     assert_eq!(value.bytes(), b"forty-two");
//!
//!     // Several keys at once: all of it or nothing, whichever member dies in the middle.
//!     store.transaction(|tx| {
//!         let readers = tx.get(b"readers")?.map_or(0, |value| value[0]);
//!         tx.put(b"readers", &[readers + 1])?;
//!         tx.put(b"last reader", &[job.me().0 as u8])?;
//!         Ok::<(), StoreError>(())
//!     })?;
//!     store.close()?;
//!     Ok(())
//! }
//! ```
//!
//! A program that `outlast run -n 4 PROGRAM` starts needs no [`launch::this_program`]. A program
//! that is started alone, without either, is a job of a single member.
//!
//! # What it promises
//! - **Durable.** A put that returned `Ok` survives as long as, since all replicas were complete,
//!   fewer members have died than there are replicas. Lost replicas are repaired in the background.
//!   Beyond that the store reports [`store::StoreError::DataLost`] for the lost partitions, and for
//!   no others.
//! - **Atomic and linearizable.** A single order explains the results of all calls. Transactions
//!   happen as a whole or not at all, in that order.
//! - **Bounded.** A call whose target dies goes on or returns an error. A call that needs a living
//!   member which does not answer ends at its time limit with a timeout: 30 s, unless
//!   [`JoinOptions::time_limit`] says otherwise.
//! - **Proof, not suspicion.** A member counts as dead only on the kernel's word or, between hosts,
//!   on that of a majority that has fenced it off. Being stopped is not death.
//! - **Clean.** The job's memory has no name. No memory, file or process stays behind, however the
//!   processes end.
//!
//! `docs/known-issues.md` in the repository lists the cases in which a promise is known to be
//! broken.
//!
//! # Features
//! None is on by default.
//!
//! | feature | what it adds |
//! |---|---|
//! | `mpi` | jobs over Open MPI 5 with ULFM, on a host or several (`engine::mpi`) |
//! | `serde` | typed values as JSON: `Store::put_as` and `Store::get_as` |
//! | `postcard` | typed values in a binary form: `Store::put_binary` and `Store::get_binary` |
//! | `async` | a wait for a key as a future, for any executor: `Store::wait_async` |
//! | `sim` | the simulator `outlast::sim`: thousands of members in a thread, seeded, with replay |
//! | `faults` | fault injection for tests: [`failpoint`], and stopping and killing members |
//!
//! # Platforms
//! Linux 5.3 or newer (`pidfd_open`), on any architecture that Rust and the kernel's robust futexes
//! support. There is no other platform: the proof of a death is the kernel's. Before Linux 5.16
//! (`futex_waitv`) members that wait look for deaths every 2 ms. `outlast doctor` says what is
//! there.
//!
//! # Layers
//! | module | what it is |
//! |---|---|
//! | [`store`] | the store: replicated records, transactions, locks, recovery |
//! | [`protect`] | seats: ranks with memory that outlive the processes which hold them |
//! | [`image`] | erasure-coded objects in the memories of members, replaced atomically |
//! | [`snapshot`] | a consistent cut of the store, in files |
//! | [`rma`] | communicators and windows with ULFM semantics |
//! | [`Job`] | the membership of a process in its job |
//! | [`engine`] | members, one-sided memory, messages, deaths: `shm`, `mpi`, `sim` |
//! | [`launch`] | starting the members from a program or a test |
//! | [`observe`] | the running jobs of this user, read from outside |
//!
//! `store` and `rma` are written once, above the engine, and do not know which engine is below.
//!
//! # Where to go next
//! - [`store::Store`] for all calls, and [`store::Options`] for the number of replicas, global
//!   recovery, checksums and salvage.
//! - [`store::Store::transaction`], [`store::Store::lock`], [`store::Store::deaths_since`] for the
//!   protocols that programs build on.
//! - [`engine`] for the contract of one-sided operations and views.
//! - `ARCHITECTURE.md` in the repository is the map of the code; `docs/protocol` has every step of
//!   the store's protocols and what survivors find after a death in it.

#![deny(unsafe_code)]

mod codec;
pub mod engine;
pub mod failpoint;
pub mod image;
mod job;
pub mod launch;
pub mod observe;
pub mod protect;
pub mod rma;
#[cfg(feature = "sim")]
pub mod sim;
pub mod snapshot;
pub mod store;
mod sync;

pub use engine::{Epoch, Error, JoinError, JoinOptions, MemberId, MemberSet, Time, View};
pub use job::{Attending, Job, Service, join};

/// The programs of the guide, which run as examples in the documentation.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../docs/guide/src/first-programs.md")]
    mod first_programs {}
    #[doc = include_str!("../../../docs/guide/src/deaths.md")]
    mod deaths {}
    #[doc = include_str!("../../../docs/guide/src/transactions.md")]
    mod transactions {}
    #[doc = include_str!("../../../docs/guide/src/snapshots.md")]
    mod snapshots {}
}

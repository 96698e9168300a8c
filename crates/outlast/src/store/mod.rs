//! The store: replicated and linearizable records in the memory of the job's members.
//!
//! Keys and values are bytes. The hash of a key selects its *partition*, and each partition has
//! *replicas* in the segments of R members. A write makes a new immutable block at every replica
//! and publishes it by compare-and-swap, in the order that the *primary* replica decides. Any
//! member can finish a write that another member has begun.
//!
//! ```
//! use outlast::store::{Options, Store};
//! let job = outlast::join()?;
//! let store = Store::open(&job, Options::new())?;
//! store.put(b"result/9", b"forty-two")?;
//! let value = store.get(b"result/9")?.expect("just put");
//! assert_eq!(value.bytes(), b"forty-two");
//! store.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Calls
//! | purpose | calls |
//! |---|---|
//! | read and write a key | [`Store::get`], [`Store::put`], [`Store::put_if`], [`Store::add`] |
//! | use a key often | [`Store::handle`] |
//! | change several keys together | [`Store::transaction`], [`Store::begin`] |
//! | wait for other members | [`Store::wait`], [`Store::wait_or_death`], [`Store::lock`] |
//! | keep a version readable | [`Store::pin`] |
//! | list keys | [`Store::keys`], [`Store::scan`], [`Store::keys_of`] |
//! | react to a death | [`Store::deaths_since`], [`Store::adopt`], [`Store::recover`] |
//! | react to a loss | [`Store::on_loss`], [`Store::lost_keys`], [`Store::accept_loss`] |
//! | observe the store | [`Store::repair_status`], [`Store::stats`], [`Store::memory_use`] |
//! | end | [`Store::close`], [`Store::leave`] |
//!
//! # Promises
//! - A write that returned `Ok` is held by every complete replica, and every later read returns it
//!   or a later version.
//! - A single order explains the results of all calls of all members. A transaction has a single
//!   place in that order.
//! - The versions of a key grow with every change and never repeat.
//! - A lost value is reported as [`StoreError::DataLost`]. It is never replaced by an older value
//!   in silence.
//!
//! # Time limits
//! A call returns within the job's time limit plus a *slack*, whatever stops or dies meanwhile. All
//! its waits share a single deadline, which is counted from the first wait. The slack is an eighth
//! of the time limit, at most a second: when the deadline is over, the call gives back what it has
//! taken, and may wait for members that have answered so far.
//!
//! | call | its limit |
//! |---|---|
//! | most calls | the time limit |
//! | [`Store::lock`], [`Store::wait`], [`Store::wait_or_death`], [`Store::wait_repaired`] | their deadline, but at least the time limit: so long it may take to read the key |
//! | [`Store::leave`] | its deadline |
//! | [`Store::transaction`], [`Store::recover`] | the time limit for all attempts together, and the time that the closure takes |
//! | lists, batches, statistics: [`Store::keys`], [`Store::put_all`], [`Store::job_stats`] | the time limit for each step; the first step that is late ends the call |
//!
//! # After a death
//! In localized mode, the default, all calls go on with the replicas that live, and the background
//! of each member makes the lost replicas anew. In global mode ([`Mode::Global`]) all calls return
//! [`StoreError::Revoked`] until all members have called [`Store::recover`]. A partition whose last
//! complete replica has died is lost: calls on it return [`StoreError::DataLost`] until the program
//! accepts the loss.
//!
//! # Where the code is
//! Each folder uses the folders above it in this table, and knows nothing of the folders below it.
//! An operation calls upwards only through `operation/above.rs`.
//!
//! | folder | what it holds |
//! |---|---|
//! | `segment` | the meaning of the words and bytes in a segment |
//! | `placement` | the members that hold a partition, and heirs |
//! | `operation` | an operation under a view, configurations, grace periods, stragglers, the gate |
//! | `memory` | blocks: allocator, magazines, slabs, pins |
//! | `record` | a replicated record: index, writing, reconciling, reading, removal, fast paths |
//! | `tx` | transactions |
//! | `recovery` | repair, loss, salvage, leaving, reclaiming, coordinated recovery |
//! | `member` | the store at a member: state, opening, messages, background |
//! | `api` | the public calls |
//!
//! In the repository, `docs/protocol/README.md` is the way into the protocols: every step, and what
//! the survivors find if a member dies in it. `docs/glossary.md` defines the words, and
//! `docs/segment-layout.md` gives the bytes.

#![forbid(unsafe_code)]

mod api;
mod error;
mod key_rules;
mod member;
mod memory;
mod mutant;
mod operation;
mod options;
mod placement;
mod record;
mod recovery;
mod segment;
pub mod steps;
#[cfg(all(test, feature = "sim"))]
mod testing;
mod tx;
mod value;

pub use api::batch::PendingGet;
pub(crate) use api::cut::{CutPart, whole_cut};
pub use api::deaths::Death;
#[cfg(feature = "async")]
pub use api::future::WaitFuture;
pub use api::handle::KeyHandle;
pub use api::list::Entries;
pub use api::lock::LockGuard;
pub use api::pin::Pin;
pub use api::recover::Recovery;
pub use api::stats::{JobStats, Stats};
pub use api::store::Store;
pub use api::wait::WaitOutcome;
pub use error::{StoreError, StoreResult};
pub(crate) use key_rules::{OF_MEMORY, is_for_snapshots};
pub use member::counts::{CallTimes, Latency};
pub use member::status::Figures;
pub(crate) use mutant::mutant;
pub(crate) use operation::leavers::HandOver;
pub(crate) use operation::message::Address;
pub use options::{Mode, NAME_LEN_MAX, Options};
pub use placement::REPLICAS_MAX;
pub use recovery::reclaim::MemoryUse;
pub use recovery::repair::RepairStatus;
pub use tx::transaction::Transaction;
pub use value::{Expect, KEY_LEN_MAX, Value, Version};

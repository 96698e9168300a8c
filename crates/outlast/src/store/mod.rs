//! The store: replicated, linearizable, repaired while everyone goes on.
//!
//! Keys hash into partitions, each partition has copies in the segments of R members, its replicas.
//! A write publishes a new immutable block at every replica by compare-and-swap, in an order that
//! the first replica decides; any member finishes what another one has begun. docs/protocol.md has
//! every step and what survivors find after each; docs/segment.md has the layout.
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

#![forbid(unsafe_code)]

mod api;
mod error;
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
pub use api::handle::KeyHandle;
pub use api::lock::LockGuard;
pub use api::pin::Pin;
pub use api::recover::Recovery;
pub use api::stats::{JobStats, Stats};
pub use api::store::Store;
pub use api::wait::WaitOutcome;
pub use error::{StoreError, StoreResult};
pub use member::counts::Latency;
pub use options::{Mode, Options};
pub use placement::REPLICAS_MAX;
pub use recovery::reclaim::MemoryUse;
pub use recovery::repair::RepairStatus;
pub use tx::transaction::Transaction;
pub use value::{Expect, KEY_LEN_MAX, Value, Version};

//! The store: replicated, linearizable, repaired while everyone goes on.
//!
//! Keys hash into partitions, each partition has copies in the segments of R members, its homes. A write publishes
//! a new immutable block at every home by compare-and-swap, in an order that the first home decides; any member
//! finishes what another one has begun. docs/protocol.md has every step and what survivors find after each;
//! docs/segment.md has the layout.
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

mod access;
mod batch;
mod checksum;
mod cut;
mod error;
mod global;
mod grace;
mod head;
mod hot;
mod index;
mod late;
mod layout;
mod leave;
mod list;
mod lock;
mod loss;
mod magazine;
mod mutant;
mod open;
mod pin;
mod placement;
mod recall;
mod reclaim;
mod remove;
mod repair;
mod salvage;
mod series;
mod slot;
mod space;
mod stats;
pub mod steps;
#[cfg(all(test, feature = "sim"))]
mod testing;
mod tx;
#[cfg(feature = "serde")]
mod typed;
mod wait;
mod write;

pub use batch::PendingGet;
pub(crate) use cut::{CutPart, whole_cut};
pub use error::{StoreError, StoreResult};
pub use global::{Mode, Recovery};
pub use list::Death;
pub use lock::LockGuard;
pub use open::Options;
pub use pin::Pin;
pub use placement::REPLICAS_MAX;
pub use reclaim::MemoryUse;
pub use repair::RepairStatus;
pub use slot::KeyHandle;
pub use stats::{JobStats, Latency, Stats};
pub use tx::Transaction;
pub use wait::WaitOutcome;

use crate::engine::{Epoch, MemberId, Port};
use open::Inner;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use write::{Change, Current};

/// The longest key, in bytes.
pub const KEY_LEN_MAX: usize = 1024;

/// The version of a value: it grows with every change of the key and never repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// One more than the counter of the version before.
    pub counter: u64,
    /// The member that wrote it.
    pub writer: MemberId,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.counter, self.writer.0)
    }
}

/// A value as it was read: a copy, with its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    bytes: Vec<u8>,
    version: Version,
    owner: MemberId,
}

impl Value {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, owned.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The member that owns the key: who created it, or adopted it since.
    pub fn owner(&self) -> MemberId {
        self.owner
    }
}

/// What a conditional put expects of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// It does not exist.
    Absent,
    /// It has this version.
    Version(Version),
}

impl Expect {
    fn check(self, current: Option<&Current>) -> StoreResult<()> {
        let found = current.map(|current| current.version);
        let is_right = match self {
            Expect::Absent => found.is_none(),
            Expect::Version(version) => found == Some(version),
        };
        if is_right { Ok(()) } else { Err(StoreError::Conflict { found }) }
    }
}

/// A store in the memories of the job's members.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({:?})", self.inner.job)
    }
}

/// Whether there can be such a key.
fn check_len(key: &[u8]) -> StoreResult<()> {
    if key.is_empty() || key.len() > KEY_LEN_MAX {
        return Err(StoreError::BadKey { len: key.len() });
    }
    Ok(())
}

/// Whether a program may change such a key: it is not one of the store's own, which are not listed and in no snapshot.
#[inline]
fn check_key(key: &[u8]) -> StoreResult<()> {
    if key.starts_with(leave::RESERVED) {
        let reason =
            "keys that begin with \"\\0outlast/\" are the store's own; choose another one".into();
        return Err(StoreError::Invalid { reason });
    }
    check_len(key)
}

impl Store {
    /// This member.
    pub fn me(&self) -> MemberId {
        self.inner.job.me()
    }

    /// The epoch of this member's view: two loads. [`Store::deaths_since`] tells of every death that comes after it.
    #[inline]
    pub fn epoch(&self) -> Epoch {
        let epoch = self.inner.job.epoch();
        if self.inner.deaths_noted.load(Ordering::Acquire) == epoch.0 {
            epoch
        } else {
            self.inner.note_deaths()
        }
    }

    /// Sets a key. `Ok`: every copy holds it.
    pub fn put(&self, key: &[u8], value: &[u8]) -> StoreResult<Version> {
        check_key(key)?;
        self.inner.sample(&self.inner.counts.put, || self.inner.put_by_key(key, value))
    }

    /// Sets a key if it is as expected; otherwise [`StoreError::Conflict`] with what is there.
    pub fn put_if(&self, key: &[u8], value: &[u8], expect: Expect) -> StoreResult<Version> {
        check_key(key)?;
        let written = self
            .inner
            .write(key, false, |current, _| expect.check(current).map(|()| Change::Put(value)))?;
        Ok(written.expect("a put changes the key"))
    }

    /// Deletes a key; whether it existed.
    pub fn delete(&self, key: &[u8]) -> StoreResult<bool> {
        check_key(key)?;
        let written = self.inner.write(key, false, |current, _| {
            Ok(if current.is_some() { Change::Delete } else { Change::Nothing })
        })?;
        Ok(written.is_some())
    }

    /// Adds to a key that holds a number of 8 bytes (or does not exist, which counts as 0), wrapping; the new number.
    pub fn add(&self, key: &[u8], delta: i64) -> StoreResult<i64> {
        check_key(key)?;
        let mut sum = 0;
        self.inner.write(key, true, |current, buffer: &mut Vec<u8>| {
            let before = match current {
                None => 0,
                Some(_) => i64::from_le_bytes(buffer.as_slice().try_into().map_err(|_| {
                    StoreError::WrongType {
                        what: format!("the value has {} bytes, and a number has 8", buffer.len()),
                    }
                })?),
            };
            sum = before.wrapping_add(delta);
            Ok(Change::Owned(sum.to_le_bytes().to_vec()))
        })?;
        Ok(sum)
    }

    /// The value of a key; `None` if it does not exist.
    pub fn get(&self, key: &[u8]) -> StoreResult<Option<Value>> {
        let get = || self.inner.read(key, |op, found| found.to_value(op, key));
        self.inner.sample(&self.inner.counts.get, get)
    }

    /// Copies the value of a key into `buffer`; its length and version, or `None` if it does not exist.
    pub fn get_into(&self, key: &[u8], buffer: &mut [u8]) -> StoreResult<Option<(usize, Version)>> {
        let key = self.inner.key_ref(key)?;
        match self.inner.job.is_mapped() {
            true => self.inner.read_into(&key, None, buffer),
            false => self
                .inner
                .recall
                .call(&key, |memory| self.inner.read_into(&key, Some(memory), buffer)),
        }
    }

    /// Whether a key exists.
    pub fn exists(&self, key: &[u8]) -> StoreResult<bool> {
        Ok(self.inner.read(key, |_, _| Ok(()))?.is_some())
    }

    /// Closes the store at this member, after all living members have done so or the time limit is over.
    pub fn close(&self) -> StoreResult<()> {
        self.inner.close()
    }
}

const PORT: Port = Port::Store;

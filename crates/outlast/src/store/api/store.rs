//! The store, and its calls on a single key.

use crate::engine::{Epoch, MemberId};
use crate::job::Job;
#[cfg(doc)]
use crate::store::error::StoreError;
use crate::store::error::StoreResult;
use crate::store::key_rules::check_key;
use crate::store::member::state::StoreState;
use crate::store::operation::message::Address;
use crate::store::options::Options;
use crate::store::record::write::Change;
use crate::store::value::{Expect, Value, Version};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A store in the memory of the job's members.
///
/// A clone is a further reference to this member's store. All calls may be made from any thread.
/// A key is anything that has bytes: `"name"`, `b"name"`, a `String`, a `Vec<u8>`, an array. The
/// [module page](crate::store) has an overview of the calls, the promises, and what happens
/// after a death.
#[derive(Clone)]
pub struct Store {
    pub(in crate::store) state: Arc<StoreState>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({:?})", self.state.job)
    }
}

impl Store {
    /// Opens a store, which is empty. All living members of the job, spares included, call
    /// this with equal options. The call waits until all of them have opened the store, or returns
    /// [`StoreError::Timeout`] at the job's time limit; the next call then takes the opening up.
    ///
    /// A job may have several stores at a time, each under its own name ([`Options::name`]).
    /// Members that open several stores from a single thread each open them in equal order; from
    /// several threads the order does not matter. A store that this member has open already is
    /// refused at once with [`StoreError::AlreadyOpen`]. After [`Store::close`] a store can be
    /// opened again, under its name, and is empty: a member that is late to close it or to open it
    /// is waited for, and a member that has died meanwhile is not.
    ///
    /// ```
    /// use outlast::store::{Options, Store};
    /// let job = outlast::join()?;
    /// for step in 0..3_u8 {
    ///     let store = Store::open(&job, Options::new())?;
    ///     assert_eq!(store.get(b"key")?, None);
    ///     store.put(b"key", &[step])?;
    ///     store.close()?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(job: &Job, options: Options) -> StoreResult<Store> {
        Ok(Store { state: StoreState::open(job, &options)? })
    }

    /// The name of the store; empty unless [`Options::name`] has set it.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// The address of the messages of this opening of the store.
    pub(crate) fn address(&self) -> Address {
        self.state.address
    }

    /// Whether this member has closed the store.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.is_closed.load(Ordering::Acquire)
    }

    /// The job whose members keep this store.
    pub fn job(&self) -> &Job {
        &self.state.job
    }

    /// The number of this member.
    pub fn me(&self) -> MemberId {
        self.state.job.me()
    }

    /// The epoch of this member's view, at the price of two loads. [`Store::deaths_since`] returns
    /// every death after it.
    #[inline]
    pub fn epoch(&self) -> Epoch {
        let epoch = self.state.job.epoch();
        if self.state.deaths_recorded.load(Ordering::Acquire) == epoch.0 {
            epoch
        } else {
            self.state.record_deaths()
        }
    }

    /// Sets a key. `Ok` means that every complete replica holds the value, and returns its version.
    #[inline]
    pub fn put(&self, key: impl AsRef<[u8]>, value: &[u8]) -> StoreResult<Version> {
        self.put_bytes(key.as_ref(), value)
    }

    /// Sets a key to the bytes of all parts together, as [`Store::put`] does. On one machine, when
    /// this member wrote the key last, each part is copied straight to the replicas. Otherwise, and
    /// if the store has checksums, the parts are joined first.
    #[inline]
    pub fn put_parts(&self, key: impl AsRef<[u8]>, parts: &[&[u8]]) -> StoreResult<Version> {
        self.put_parts_bytes(key.as_ref(), parts)
    }

    /// Sets a key if the condition holds. Otherwise returns [`StoreError::Conflict`] with the
    /// current version.
    #[inline]
    pub fn put_if(
        &self,
        key: impl AsRef<[u8]>,
        value: &[u8],
        expect: Expect,
    ) -> StoreResult<Version> {
        self.put_if_bytes(key.as_ref(), value, expect)
    }

    /// Deletes a key. Returns whether the key existed.
    #[inline]
    pub fn delete(&self, key: impl AsRef<[u8]>) -> StoreResult<bool> {
        self.delete_bytes(key.as_ref())
    }

    /// Adds to the number of 8 bytes, little-endian, that a key holds, and returns the sum. A key
    /// that does not exist counts as 0. An overflow wraps around. [`StoreError::WrongType`] means
    /// that the value does not have 8 bytes.
    #[inline]
    pub fn add(&self, key: impl AsRef<[u8]>, delta: i64) -> StoreResult<i64> {
        self.add_bytes(key.as_ref(), delta)
    }

    /// Returns the value of a key; `None` if the key does not exist.
    #[inline]
    pub fn get(&self, key: impl AsRef<[u8]>) -> StoreResult<Option<Value>> {
        self.get_bytes(key.as_ref())
    }

    /// Copies the value of a key into `buffer`. Returns its length and version, or `None` if the
    /// key does not exist. [`StoreError::BufferTooSmall`] names the length that is needed.
    #[inline]
    pub fn get_into(
        &self,
        key: impl AsRef<[u8]>,
        buffer: &mut [u8],
    ) -> StoreResult<Option<(usize, Version)>> {
        self.get_bytes_into(key.as_ref(), buffer)
    }

    /// Returns whether a key exists.
    #[inline]
    pub fn exists(&self, key: impl AsRef<[u8]>) -> StoreResult<bool> {
        self.exists_bytes(key.as_ref())
    }

    /// Closes the store at this member. The call waits until all living members close it, or
    /// returns [`StoreError::Timeout`] at the job's time limit; the store is closed in both cases,
    /// and its content is gone when all members have closed it. Its memory goes back to the segment
    /// when all living members have closed it, and this member has dropped all clones of the store
    /// and all handles, pins and transactions.
    pub fn close(&self) -> StoreResult<()> {
        self.state.close()
    }
}

/// The calls above for a key of bytes. They are compiled once, in this crate, whatever types the
/// keys of a program have.
impl Store {
    fn put_bytes(&self, key: &[u8], value: &[u8]) -> StoreResult<Version> {
        check_key(key)?;
        self.state.sample(&self.state.counts.put, || self.state.put_by_key(key, value))
    }

    fn put_parts_bytes(&self, key: &[u8], parts: &[&[u8]]) -> StoreResult<Version> {
        check_key(key)?;
        self.state.sample(&self.state.counts.put, || self.state.put_parts_by_key(key, parts))
    }

    fn put_if_bytes(&self, key: &[u8], value: &[u8], expect: Expect) -> StoreResult<Version> {
        check_key(key)?;
        self.state.put_if_by_key(key, value, expect)
    }

    fn delete_bytes(&self, key: &[u8]) -> StoreResult<bool> {
        check_key(key)?;
        let written = self.state.write(key, false, |current, _| {
            Ok(if current.is_some() { Change::Delete } else { Change::Nothing })
        })?;
        Ok(written.is_some())
    }

    /// Makes sure that no put of this key that was not answered in time happens any more, if the
    /// key does not exist: a tombstone takes the place of what such a put expects. Returns `false`,
    /// and changes nothing, if the key exists.
    pub(crate) fn bar_late_puts(&self, key: &[u8]) -> StoreResult<bool> {
        check_key(key)?;
        let written = self.state.write(key, false, |current, _| {
            Ok(if current.is_none() { Change::Delete } else { Change::Nothing })
        })?;
        Ok(written.is_some())
    }

    fn add_bytes(&self, key: &[u8], delta: i64) -> StoreResult<i64> {
        check_key(key)?;
        self.state.add_by_key(key, delta)
    }

    fn get_bytes(&self, key: &[u8]) -> StoreResult<Option<Value>> {
        let get = || self.state.read(key, |op, found| found.to_value(op, key));
        self.state.sample(&self.state.counts.get, get)
    }

    fn get_bytes_into(
        &self,
        key: &[u8],
        buffer: &mut [u8],
    ) -> StoreResult<Option<(usize, Version)>> {
        let key = self.state.key_ref(key)?;
        match self.state.job.is_mapped() {
            true => self.state.read_into(&key, None, buffer),
            false => self
                .state
                .location_cache
                .call(&key, |memory| self.state.read_into(&key, Some(memory), buffer)),
        }
    }

    fn exists_bytes(&self, key: &[u8]) -> StoreResult<bool> {
        Ok(self.state.read(key, |_, _| Ok(()))?.is_some())
    }
}

//! Handles: a key with its cached location.

use crate::store::api::store::Store;
use crate::store::error::StoreResult;
use crate::store::key_rules::check_key;
use crate::store::member::counts::{Histogram, SAMPLE};
use crate::store::placement::hash_key;
use crate::store::record::key::KeyRef;
use crate::store::record::location::CachedLocation;
use crate::store::record::write::{Change, CurrentVersion};
use crate::store::value::{Expect, Value, Version};
use std::cell::{Cell, RefCell};
use std::fmt;

/// A handle for a key, made by [`Store::handle`]. It caches the hash, the replicas and the location
/// of the record, so that writing the key again costs a write of the value and a compare-and-swap
/// for each replica.
///
/// A handle is cheap to make and belongs to a single thread at a time. Threads that share a key
/// make a handle each. A handle stays correct whatever other calls do to the key and whichever
/// member dies: every call validates the cached location before it uses it.
///
/// ```
/// use outlast::store::{Options, Store};
/// let job = outlast::join()?;
/// let store = Store::open(&job, Options::new())?;
/// let checkpoint = store.handle(b"checkpoint/3")?;
/// for step in 0..100u64 {
///     checkpoint.put(&step.to_le_bytes())?;
/// }
/// let mut last = [0; 8];
/// checkpoint.get_into(&mut last)?.expect("just put");
/// assert_eq!(u64::from_le_bytes(last), 99);
/// # store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
// The order of the fields and the alignment put everything that a get needs into a single cache
// line.
#[repr(C, align(64))]
pub struct KeyHandle {
    store: Store,
    partition: u32,
    /// The number of calls so far; see [`KeyHandle::sample`].
    calls: Cell<u32>,
    state: RefCell<CachedLocation>,
    key: Box<[u8]>,
    hash: u64,
}

impl fmt::Debug for KeyHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyHandle({:?})", String::from_utf8_lossy(&self.key))
    }
}

impl Store {
    /// Makes a handle for a key, which need not exist yet.
    #[inline]
    pub fn handle(&self, key: impl AsRef<[u8]>) -> StoreResult<KeyHandle> {
        self.handle_of(key.as_ref())
    }

    fn handle_of(&self, key: &[u8]) -> StoreResult<KeyHandle> {
        check_key(key)?;
        let KeyRef { hash, partition, .. } = self.state.key_ref(key)?;
        let state = RefCell::new(CachedLocation::NOTHING);
        let calls = Cell::new(0);
        Ok(KeyHandle {
            store: self.clone(),
            partition: partition as u32,
            calls,
            state,
            key: key.into(),
            hash,
        })
    }
}

impl KeyHandle {
    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    #[inline]
    fn key_ref(&self) -> StoreResult<KeyRef<'_>> {
        debug_assert_eq!(self.hash, hash_key(&self.key));
        // The operation itself checks whether the store is closed, with the gate.
        Ok(KeyRef { key: &self.key, hash: self.hash, partition: self.partition as usize })
    }

    /// Makes a call, and times every 64th call. The count belongs to the handle, since that costs
    /// less than a count that threads share.
    #[inline(always)]
    fn sample<T>(&self, histogram: &Histogram, call: impl FnOnce() -> T) -> T {
        let (calls, job) = (self.calls.get().wrapping_add(1), &self.store.state.job);
        self.calls.set(calls);
        let began = calls.is_multiple_of(SAMPLE).then(|| job.now());
        let result = call();
        if let Some(began) = began {
            histogram.add(job.now().since(began));
        }
        result
    }

    #[inline]
    fn write<'v>(
        &self,
        needs_value: bool,
        change: impl FnMut(Option<&CurrentVersion>, &mut Vec<u8>) -> StoreResult<Change<'v>>,
    ) -> StoreResult<Option<Version>> {
        let cached = &mut *self.state.borrow_mut();
        self.store.state.write_cached(&self.key_ref()?, cached, needs_value, change)
    }

    /// Sets the key; see [`Store::put`].
    pub fn put(&self, value: &[u8]) -> StoreResult<Version> {
        let key = self.key_ref()?;
        let put = || self.store.state.put_cached(&key, &mut self.state.borrow_mut(), value);
        self.sample(&self.store.state.counts.put, put)
    }

    /// Sets the key to the bytes of all parts together. On one machine, when this handle wrote the
    /// key last, each part is copied straight to the replicas. Otherwise, and if the store has
    /// checksums, the parts are joined first.
    ///
    /// ```
    /// use outlast::store::{Options, Store};
    /// let job = outlast::join()?;
    /// let store = Store::open(&job, Options::new())?;
    /// let block = store.handle(b"block/3")?;
    /// let (header, cells) = ([1, 0, 0, 0], vec![7; 1000]);
    /// block.put_parts(&[&header, &cells])?;
    /// assert_eq!(block.get()?.expect("just put").bytes().len(), 1004);
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn put_parts(&self, parts: &[&[u8]]) -> StoreResult<Version> {
        let key = self.key_ref()?;
        let put = || self.store.state.put_parts_cached(&key, &mut self.state.borrow_mut(), parts);
        self.sample(&self.store.state.counts.put, put)
    }

    /// Sets the key if the condition holds; see [`Store::put_if`]. On one machine, when this handle
    /// wrote the key last, it costs as much as [`KeyHandle::put`].
    pub fn put_if(&self, value: &[u8], expect: Expect) -> StoreResult<Version> {
        let cached = &mut *self.state.borrow_mut();
        self.store.state.put_if_cached(&self.key_ref()?, cached, value, expect)
    }

    /// Adds to the number that the key holds, and returns the sum; see [`Store::add`]. On one
    /// machine, when this handle wrote the key last, it costs as much as [`KeyHandle::put`].
    pub fn add(&self, delta: i64) -> StoreResult<i64> {
        let cached = &mut *self.state.borrow_mut();
        self.store.state.add_cached(&self.key_ref()?, cached, delta)
    }

    /// Deletes the key; see [`Store::delete`].
    pub fn delete(&self) -> StoreResult<bool> {
        let written = self.write(false, |current, _| {
            Ok(if current.is_some() { Change::Delete } else { Change::Nothing })
        })?;
        Ok(written.is_some())
    }

    /// Returns the value; see [`Store::get`].
    pub fn get(&self) -> StoreResult<Option<Value>> {
        let cached = &mut *self.state.borrow_mut();
        self.store
            .state
            .read_cached(&self.key_ref()?, cached, |op, found| found.to_value(op, &self.key))
    }

    /// Copies the value into `buffer`; see [`Store::get_into`].
    pub fn get_into(&self, buffer: &mut [u8]) -> StoreResult<Option<(usize, Version)>> {
        let (cached, key) = (&mut *self.state.borrow_mut(), self.key_ref()?);
        let get = || self.store.state.read_into(&key, Some(cached), buffer);
        self.sample(&self.store.state.counts.get, get)
    }

    /// The current version of the key; `None` if the key does not exist. The value is not copied.
    pub fn version(&self) -> StoreResult<Option<Version>> {
        let (cached, key) = (&mut *self.state.borrow_mut(), self.key_ref()?);
        self.store.state.read_version(&key, cached)
    }
}

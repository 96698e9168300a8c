//! Calls that do not wait, and calls on many keys.
//!
//! A put takes effect at every replica before it is acknowledged. On shared memory that is a few
//! copies of memory, and there is nothing to overlap it with. So `put_nb` and `get_nb` do their
//! work in the call, which keeps their contract in the simplest way: the bytes are used before the
//! call returns, nothing is in flight afterwards, a member sees its own earlier puts, and a handle
//! that is dropped changes nothing. Callers gain that errors come together, at `flush`. The
//! contract leaves room for an engine on which overlapping pays.

use crate::store::api::store::Store;
use crate::store::error::{StoreError, StoreResult};
use crate::store::value::{Value, Version};
use crate::sync::lock;

/// A get that was begun with [`Store::get_nb`]. It can be dropped at any time.
#[derive(Debug)]
#[must_use = "the value is in the handle"]
pub struct PendingGet(StoreResult<Option<Value>>);

impl PendingGet {
    /// Returns the value; `None` if the key does not exist.
    pub fn wait(self) -> StoreResult<Option<Value>> {
        self.0
    }

    /// Whether [`PendingGet::wait`] would return at once.
    pub fn is_ready(&self) -> bool {
        true
    }
}

impl Store {
    /// Sets a key, at the latest by the time that [`Store::flush`] returns. The bytes are used or
    /// copied before the call returns. Later calls of this member see the value. Bad input is an
    /// error at once; every other error comes from `flush`. The call may wait for earlier calls,
    /// since the number of calls in flight is bounded.
    #[inline]
    pub fn put_nb(&self, key: impl AsRef<[u8]>, value: &[u8]) -> StoreResult<()> {
        self.put_bytes_nb(key.as_ref(), value)
    }

    fn put_bytes_nb(&self, key: &[u8], value: &[u8]) -> StoreResult<()> {
        match self.put(key, value) {
            Ok(_) => Ok(()),
            Err(
                error @ (StoreError::BadKey { .. }
                | StoreError::Invalid { .. }
                | StoreError::Closed),
            ) => Err(error),
            Err(error) => {
                self.state.defer(error);
                Ok(())
            }
        }
    }

    /// Begins to read a key. The value is as of some moment between this call and the end of
    /// [`PendingGet::wait`].
    pub fn get_nb(&self, key: impl AsRef<[u8]>) -> PendingGet {
        PendingGet(self.get(key))
    }

    /// Waits until every replica has acknowledged all earlier [`Store::put_nb`] of this member.
    /// Returns the first error of the calling thread's calls since its last flush, if a call
    /// failed.
    pub fn flush(&self) -> StoreResult<()> {
        let thread = self.state.job.activity();
        let deferred = lock(&self.state.deferred.0).remove(&thread);
        deferred.map_or_else(|| self.state.check_gate(self.state.job.epoch()), Err)
    }

    /// Sets many keys, in order. Each put is a call of its own: at the first error the earlier puts
    /// have happened, and the later puts are not tried.
    pub fn put_all<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> StoreResult<Vec<Version>> {
        pairs.into_iter().map(|(key, value)| self.put(key, value.as_ref())).collect()
    }

    /// Returns the values of many keys, each as of some moment during the call.
    pub fn get_all<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> StoreResult<Vec<Option<Value>>> {
        keys.into_iter().map(|key| self.get(key)).collect()
    }
}

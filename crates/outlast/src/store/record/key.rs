//! A key, with what is computed from it once.

use crate::store::error::{StoreError, StoreResult};
use crate::store::placement::hash_key;
use crate::store::record::state::RecordState;
use crate::store::value::check_len;
use std::sync::atomic::Ordering;

/// A key, with what is computed from it once.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct KeyRef<'a> {
    pub(in crate::store) key: &'a [u8],
    pub(in crate::store) hash: u64,
    pub(in crate::store) partition: usize,
}

impl RecordState {
    pub(in crate::store) fn key_ref<'k>(&self, key: &'k [u8]) -> StoreResult<KeyRef<'k>> {
        check_len(key)?;
        if self.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let hash = hash_key(key);
        Ok(KeyRef { key, hash, partition: self.placement.partition(hash) })
    }

    /// A key that was looked at before.
    pub(in crate::store) fn any_key_ref<'k>(&self, key: &'k [u8]) -> KeyRef<'k> {
        let hash = hash_key(key);
        KeyRef { key, hash, partition: self.placement.partition(hash) }
    }
}

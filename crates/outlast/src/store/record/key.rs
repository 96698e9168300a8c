//! A key, with the hash and the partition that are computed from it once.
//!
//! `OperationState::is_closed` is loaded here with acquire ordering, which suffices: a call that
//! misses the store of the flag still passes the gate inside its operation, and closing the store
//! closes the gate for ever.

use crate::store::error::{StoreError, StoreResult};
use crate::store::key_rules::check_len;
use crate::store::placement::{Placement, hash_key};
use crate::store::record::state::RecordState;
use std::sync::atomic::Ordering;

/// A key, with the hash and the partition that are computed from it once.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct KeyRef<'a> {
    pub(in crate::store) key: &'a [u8],
    pub(in crate::store) hash: u64,
    pub(in crate::store) partition: usize,
}

impl<'a> KeyRef<'a> {
    /// Computes the hash and the partition of a key.
    pub(in crate::store) fn new(placement: &Placement, key: &'a [u8]) -> KeyRef<'a> {
        let hash = hash_key(key);
        KeyRef { key, hash, partition: placement.partition(hash) }
    }
}

impl RecordState {
    /// The reference of a key that a program passed, unless its length is invalid or the store is
    /// closed.
    pub(in crate::store) fn key_ref<'k>(&self, key: &'k [u8]) -> StoreResult<KeyRef<'k>> {
        check_len(key)?;
        if self.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        Ok(self.any_key_ref(key))
    }

    /// The reference of a key that the store found in an index or made itself.
    pub(in crate::store) fn any_key_ref<'k>(&self, key: &'k [u8]) -> KeyRef<'k> {
        KeyRef::new(&self.placement, key)
    }
}

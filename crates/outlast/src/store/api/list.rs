//! Listing keys, and who owns them.

use crate::engine::MemberId;
use crate::store::api::store::Store;
use crate::store::error::{StoreError, StoreResult};
use crate::store::member::state::StoreState;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::placement::hash_key;
use crate::store::record::state::RecordOp;
use crate::store::record::write::Change;
use crate::store::value::{RESERVED, check_key};
use std::sync::atomic::Ordering;

impl Store {
    /// All keys that exist, in no particular order. A key that exists throughout the call is in the
    /// list; one that is created or deleted meanwhile may be.
    pub fn keys(&self) -> StoreResult<Vec<Vec<u8>>> {
        self.state.list(|_, _| true)
    }

    /// The keys that begin so; see [`Store::keys`].
    pub fn scan(&self, prefix: &[u8]) -> StoreResult<Vec<Vec<u8>>> {
        self.state.list(|key, _| key.starts_with(prefix))
    }

    /// How many keys exist; see [`Store::keys`].
    pub fn len(&self) -> StoreResult<usize> {
        Ok(self.keys()?.len())
    }

    /// Whether no key exists; see [`Store::keys`].
    pub fn is_empty(&self) -> StoreResult<bool> {
        Ok(self.len()? == 0)
    }

    /// The keys that a member owns: those that it created, or adopted; see [`Store::keys`].
    pub fn keys_of(&self, member: MemberId) -> StoreResult<Vec<Vec<u8>>> {
        self.state.list(|_, owner| owner == member)
    }

    /// The members that hold the copies of a key, or are to hold them, as this member sees the job
    /// now.
    pub fn replicas_of(&self, key: &[u8]) -> Vec<MemberId> {
        let placement = &self.state.placement;
        let partition = placement.partition(hash_key(key));
        self.state.replicas(partition, &self.state.job.view()).members
    }

    /// Makes this member the owner of a key; whether the key exists. The value stays, its version
    /// changes.
    pub fn adopt(&self, key: &[u8]) -> StoreResult<bool> {
        check_key(key)?;
        let written = self.state.write(key, true, |current, value| {
            Ok(if current.is_some() {
                Change::Adopt(std::mem::take(value))
            } else {
                Change::Nothing
            })
        })?;
        Ok(written.is_some())
    }
}

impl StoreState {
    fn list(&self, wanted: impl Fn(&[u8], MemberId) -> bool) -> StoreResult<Vec<Vec<u8>>> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let mut keys = Vec::new();
        for partition in 0..self.placement.partitions {
            let is_wanted = |key: &[u8], owner| !key.starts_with(RESERVED) && wanted(key, owner);
            keys.extend(self.run(|op| {
                if !self.is_in_procedure() {
                    self.check_gate(op.epoch)?;
                }
                self.list_partition(op, partition, &is_wanted)
            })?);
        }
        Ok(keys)
    }

    /// The wanted keys of one partition, all under one configuration.
    fn list_partition(
        &self,
        op: &RecordOp<'_>,
        partition: usize,
        wanted: &impl Fn(&[u8], MemberId) -> bool,
    ) -> OpResult<Vec<Vec<u8>>> {
        let config = op.config(partition)?;
        let mut keys = Vec::new();
        op.for_each_record(
            config,
            partition,
            |_| true,
            |key, offset, block| {
                let (_, block) = op.visible(config, key, offset, block)?;
                if !block.is_deleted && wanted(key.key, block.owner) {
                    keys.push(key.key.to_vec());
                }
                Ok(())
            },
        )?;
        if op.is_current() { Ok(keys) } else { Err(OpError::Again) }
    }
}

//! Listing keys, and their owners.

use crate::engine::MemberId;
use crate::store::api::store::Store;
use crate::store::error::{StoreError, StoreResult};
use crate::store::key_rules::{RESERVED, check_key};
use crate::store::operation::error::{OpError, OpResult};
use crate::store::placement::hash_key;
use crate::store::record::state::RecordOp;
use crate::store::record::write::Change;
use std::sync::atomic::Ordering;

impl Store {
    /// Lists all keys that exist, in no particular order. A key that exists throughout the call is
    /// in the list. A key that is created or deleted during the call may be in it.
    pub fn keys(&self) -> StoreResult<Vec<Vec<u8>>> {
        self.list(|_, _| true)
    }

    /// Lists the keys that begin with `prefix`; see [`Store::keys`].
    pub fn scan(&self, prefix: &[u8]) -> StoreResult<Vec<Vec<u8>>> {
        self.list(|key, _| key.starts_with(prefix))
    }

    /// Returns the number of keys that exist; see [`Store::keys`].
    pub fn len(&self) -> StoreResult<usize> {
        Ok(self.keys()?.len())
    }

    /// Returns whether no key exists; see [`Store::keys`].
    pub fn is_empty(&self) -> StoreResult<bool> {
        Ok(self.len()? == 0)
    }

    /// Lists the keys that a member owns, because it created or adopted them; see [`Store::keys`].
    /// [`StoreError::Invalid`] if the job has no such member.
    pub fn keys_of(&self, member: MemberId) -> StoreResult<Vec<Vec<u8>>> {
        let members = self.state.job.members();
        if member.index() >= members {
            let reason = format!("there is no {member}: the job has {members} members, from 0");
            return Err(StoreError::Invalid { reason });
        }
        self.list(|_, owner| owner == member)
    }

    /// Returns the replicas of a key under this member's current view: the members that hold the
    /// key, or are to hold it.
    pub fn replicas_of(&self, key: &[u8]) -> Vec<MemberId> {
        let placement = &self.state.placement;
        let partition = placement.partition(hash_key(key));
        self.state.replicas(partition, &self.state.job.view()).members
    }

    /// Makes this member the owner of a key. Returns whether the key exists. The value stays, and
    /// its version changes.
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

impl Store {
    /// Lists the wanted keys of all partitions, without the store's own keys. The procedure of a
    /// coordinated recovery may list keys although the gate is closed: no member changes anything
    /// then.
    fn list(&self, wanted: impl Fn(&[u8], MemberId) -> bool) -> StoreResult<Vec<Vec<u8>>> {
        if self.state.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let mut keys = Vec::new();
        for partition in 0..self.state.placement.partitions {
            let is_wanted = |key: &[u8], owner| !key.starts_with(RESERVED) && wanted(key, owner);
            keys.extend(self.state.run(|op| {
                if !self.state.is_in_procedure() {
                    self.state.check_gate(op.epoch)?;
                }
                self.list_partition(op, partition, &is_wanted)
            })?);
        }
        Ok(keys)
    }

    /// Lists the wanted keys of a partition, all under a single configuration.
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

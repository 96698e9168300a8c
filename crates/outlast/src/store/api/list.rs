//! Listing keys, and their owners.

use crate::engine::MemberId;
use crate::store::api::store::Store;
use crate::store::error::{StoreError, StoreResult};
use crate::store::key_rules::{RESERVED, check_key};
use crate::store::operation::error::{OpError, OpResult};
use crate::store::placement::hash_key;
use crate::store::record::state::RecordOp;
use crate::store::record::write::Change;
use crate::store::value::Value;
use std::fmt;
use std::sync::atomic::Ordering;

/// The keys and values of a store; made by [`Store::entries`].
pub struct Entries {
    store: Store,
    prefix: Box<[u8]>,
    /// The partition that is listed next.
    partition: usize,
    /// The keys that are listed and not returned yet.
    keys: std::vec::IntoIter<Vec<u8>>,
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entries({:?}, partition {})", self.store, self.partition)
    }
}

impl Iterator for Entries {
    type Item = StoreResult<(Vec<u8>, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        let partitions = self.store.state.placement.partitions;
        let error = loop {
            if let Some(key) = self.keys.next() {
                match self.store.get(&key) {
                    Ok(Some(value)) => return Some(Ok((key, value))),
                    // Deleted since it was listed.
                    Ok(None) => continue,
                    Err(error) => break error,
                }
            }
            if self.partition == partitions {
                return None;
            }
            let wanted = |key: &[u8], _| key.starts_with(&self.prefix);
            let keys = self.store.list_partition(self.partition, &wanted);
            self.partition += 1;
            match keys {
                Ok(keys) => self.keys = keys.into_iter(),
                Err(error) => break error,
            }
        };
        if !matches!(error, StoreError::DataLost { .. }) {
            (self.keys, self.partition) = (Vec::new().into_iter(), partitions);
        }
        Some(Err(error))
    }
}

impl std::iter::FusedIterator for Entries {}

impl Store {
    /// Lists all keys that exist, in no particular order. A key that exists throughout the call is
    /// in the list. A key that is created or deleted during the call may be in it.
    pub fn keys(&self) -> StoreResult<Vec<Vec<u8>>> {
        self.list(|_, _| true)
    }

    /// Lists the keys that begin with `prefix`; see [`Store::keys`].
    pub fn scan(&self, prefix: impl AsRef<[u8]>) -> StoreResult<Vec<Vec<u8>>> {
        let prefix = prefix.as_ref();
        self.list(|key, _| key.starts_with(prefix))
    }

    /// Lists the keys of a partition that begin with `prefix`, for callers that go on when another
    /// partition cannot be listed; see [`Store::keys`].
    pub(crate) fn scan_partition(
        &self,
        partition: usize,
        prefix: &[u8],
    ) -> StoreResult<Vec<Vec<u8>>> {
        self.list_partition(partition, &|key: &[u8], _| key.starts_with(prefix))
    }

    /// The number of partitions.
    pub(crate) fn partitions(&self) -> usize {
        self.state.placement.partitions
    }

    /// Iterates over the keys that begin with `prefix`, and their values, each as of some moment
    /// during the iteration. A key that exists throughout the iteration is among them; a key that
    /// is created or deleted meanwhile may be. The iterator lists a partition at a time, so that
    /// its memory does not grow with the store.
    ///
    /// A lost partition or value is an item of its own, [`StoreError::DataLost`], and the iteration
    /// goes on behind it. It ends behind any other error.
    ///
    /// ```
    /// # use outlast::store::{Options, Store};
    /// # let job = outlast::join()?;
    /// # let store = Store::open(&job, Options::new())?;
    /// store.put("task/1", b"open")?;
    /// store.put("task/2", b"done")?;
    /// let mut open = 0;
    /// for entry in store.entries("task/") {
    ///     let (_key, value) = entry?;
    ///     open += usize::from(value.bytes() == b"open");
    /// }
    /// assert_eq!(open, 1);
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn entries(&self, prefix: impl AsRef<[u8]>) -> Entries {
        let prefix = prefix.as_ref().into();
        Entries { store: self.clone(), prefix, partition: 0, keys: Vec::new().into_iter() }
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
    pub fn replicas_of(&self, key: impl AsRef<[u8]>) -> Vec<MemberId> {
        let placement = &self.state.placement;
        let partition = placement.partition(hash_key(key.as_ref()));
        self.state.replicas(partition, &self.state.job.view()).members
    }

    /// Makes this member the owner of a key. Returns whether the key exists. The value stays, and
    /// its version changes.
    #[inline]
    pub fn adopt(&self, key: impl AsRef<[u8]>) -> StoreResult<bool> {
        self.adopt_bytes(key.as_ref())
    }

    fn adopt_bytes(&self, key: &[u8]) -> StoreResult<bool> {
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
        let mut keys = Vec::new();
        for partition in 0..self.state.placement.partitions {
            keys.extend(self.list_partition(partition, &wanted)?);
        }
        Ok(keys)
    }

    /// Lists the wanted keys of a partition, without the store's own keys.
    fn list_partition(
        &self,
        partition: usize,
        wanted: &impl Fn(&[u8], MemberId) -> bool,
    ) -> StoreResult<Vec<Vec<u8>>> {
        if self.state.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let is_wanted = |key: &[u8], owner| !key.starts_with(RESERVED) && wanted(key, owner);
        self.state.run(|op| {
            if !self.state.is_in_procedure() {
                self.state.check_gate(op.epoch)?;
            }
            self.try_list_partition(op, partition, &is_wanted)
        })
    }

    /// Lists the wanted keys of a partition, all under a single configuration.
    fn try_list_partition(
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

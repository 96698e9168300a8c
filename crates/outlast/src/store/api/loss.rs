//! Lost partitions and keys as programs see them, and accepting their loss. `docs/protocol/loss.md`
//! has the steps.

use crate::store::api::store::Store;
use crate::store::error::{StoreError, StoreResult};
use crate::store::key_rules::{RESERVED, check_len};
use crate::store::placement::hash_key;
use crate::sync::lock;
use std::sync::Arc;

impl Store {
    /// Lists the lost partitions: no complete replica of them lives, and their loss is not accepted
    /// yet.
    pub fn lost_partitions(&self) -> StoreResult<Vec<usize>> {
        self.state.lost_partitions()
    }

    /// Lists the lost keys that survivors can still name: the keys that repair had copied to a
    /// living replica when the last complete replica died. More keys may be lost. For a key that
    /// the program knows, compare [`Store::partition_of`] with [`Store::lost_partitions`]. With
    /// [`Options::salvage`](crate::store::Options::salvage) the list also contains all keys with a
    /// damaged value.
    ///
    /// ```
    /// # use outlast::store::{Options, Store};
    /// # let job = outlast::join()?;
    /// # let store = Store::open(&job, Options::new())?;
    /// for key in store.lost_keys()? {
    ///     eprintln!("{} is lost", String::from_utf8_lossy(&key));
    /// }
    /// store.accept_loss()?;
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lost_keys(&self) -> StoreResult<Vec<Vec<u8>>> {
        let mut keys = Vec::new();
        for partition in self.lost_partitions()? {
            keys.extend(self.state.run(|op| self.state.keys_left(op, partition))?);
        }
        for partition in self.state.salvage.damaged() {
            keys.extend(self.state.keys_damaged(partition)?);
        }
        keys.retain(|key| !key.starts_with(RESERVED));
        keys.sort();
        keys.dedup();
        Ok(keys)
    }

    /// Returns the partition of a key, as [`StoreError::DataLost`] and [`Store::lost_partitions`]
    /// name it.
    pub fn partition_of(&self, key: impl AsRef<[u8]>) -> StoreResult<usize> {
        let key = key.as_ref();
        check_len(key)?;
        Ok(self.state.placement.partition(hash_key(key)))
    }

    /// Registers a listener. It is called after each death that leaves lost partitions, with all
    /// lost partitions and all partitions with lost keys (see [`Store::lost_keys`]). The listener
    /// runs in the background of this member, with no lock held. It may call the store, and repair
    /// waits until it returns.
    pub fn on_loss(&self, listener: impl Fn(&[usize]) + Send + Sync + 'static) {
        lock(&self.state.loss.listeners).push(Arc::new(listener));
        let _ = self.state.job.ring(self.me());
    }

    /// Accepts the loss of all lost partitions: they are empty afterwards, and calls on them work
    /// again. Returns the partitions that were lost. If only some keys of a salvaged partition were
    /// lost, only these keys are given up. Several members may call this at a time. Lost values
    /// stay lost, and versions go on growing.
    pub fn accept_loss(&self) -> StoreResult<Vec<usize>> {
        let mut lost = self.lost_partitions()?;
        for partition in self.state.salvage.damaged() {
            if !lost.contains(&partition) && !self.state.keys_damaged(partition)?.is_empty() {
                lost.push(partition);
            }
        }
        self.accept_loss_of(&lost)?;
        Ok(lost)
    }

    /// Accepts the loss of these partitions, as [`Store::accept_loss`] does. Partitions that are
    /// not lost stay unchanged.
    pub fn accept_loss_of(&self, partitions: &[usize]) -> StoreResult<()> {
        let count = self.state.placement.partitions;
        if let Some(partition) = partitions.iter().find(|&&partition| partition >= count) {
            let reason =
                format!("partition {partition} is outside 0..{count}; no loss was accepted");
            return Err(StoreError::Invalid { reason });
        }
        for &partition in partitions {
            self.state.accept_loss(partition)?;
            if self.state.salvage.damaged().contains(&partition) {
                self.state.accept_marked(partition)?;
            }
        }
        Ok(())
    }
}

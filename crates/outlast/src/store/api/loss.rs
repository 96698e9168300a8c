//! Loss as programs see it, and its acceptance.
use crate::store::api::store::Store;
use crate::store::error::{StoreError, StoreResult};
use crate::store::placement::hash_key;
use crate::store::value::{RESERVED, check_len};
use crate::sync::lock;
use std::sync::Arc;

impl Store {
    /// The partitions that are lost: no complete copy lives, and nobody has accepted that yet.
    pub fn lost_partitions(&self) -> StoreResult<Vec<usize>> {
        self.state.lost_partitions()
    }

    /// Keys that are lost, as far as survivors can still name them: those that were being copied to
    /// a replica that lives when the last complete copy died. There may be more; whoever knows a
    /// key asks [`Store::partition_of`]. With [`crate::store::Options::salvage`] also those whose
    /// values were damaged, all of them.
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

    /// The partition of a key, as [`StoreError::DataLost`] and [`Store::lost_partitions`] name it.
    pub fn partition_of(&self, key: &[u8]) -> StoreResult<usize> {
        check_len(key)?;
        Ok(self.state.placement.partition(hash_key(key)))
    }

    /// Calls `listener` with all lost partitions after each death that leaves some, and with those
    /// of which some keys are lost (see [`Store::lost_keys`]). It runs in this member's background,
    /// with no lock held: it may call the store, and repair waits until it returns.
    pub fn on_loss(&self, listener: impl Fn(&[usize]) + Send + Sync + 'static) {
        lock(&self.state.loss.listeners).push(Arc::new(listener));
        let _ = self.state.job.ring(self.me());
    }

    /// Gives up all lost partitions: they are empty afterwards, and calls on them work again. Which
    /// ones were lost. Where only some keys of a partition were lost, when it was salvaged, only
    /// those are given up. Several members may do this at once. What was lost stays lost; versions
    /// go on growing.
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

    /// Gives up these partitions, as [`Store::accept_loss`] does; those that are not lost stay as
    /// they are.
    pub fn accept_loss_of(&self, partitions: &[usize]) -> StoreResult<()> {
        let count = self.state.placement.partitions;
        if let Some(partition) = partitions.iter().find(|&&partition| partition >= count) {
            let reason = format!("there is no partition {partition}; the store has {count}");
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

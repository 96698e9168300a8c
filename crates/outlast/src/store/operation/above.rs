//! What an operation asks of the layers above it.
//!
//! An operation can meet an obstacle that only a higher layer can remove: a transaction that holds
//! a key, a partition that is being salvaged, a message that waits to be served. The state of the
//! whole store (`member/state.rs`) implements [`Above`]. This trait is the only way from an
//! operation upwards.

use crate::store::error::StoreResult;
use crate::store::operation::error::{Blocked, Blocker};
use crate::store::operation::state::OperationState;
use std::sync::Arc;

/// The calls of an operation to the layers above it.
pub(in crate::store) trait Above: Send + Sync {
    /// Serves the messages that have arrived. Every wait of an operation serves them, since two
    /// members that wait for each other's answer would otherwise both time out.
    fn serve_messages(&self);

    /// Waits until a partition without a complete replica is salvaged. Returns an error if the
    /// partition is lost.
    fn await_salvage(&self, partition: usize) -> StoreResult<()>;

    /// Clears a transaction that blocks an operation, or waits a little for its end. `attempts` is
    /// the number of failed attempts of the caller's own transaction.
    fn clear(&self, blocker: &Blocker, attempts: u32, blocked: &mut Blocked) -> StoreResult<()>;

    /// Closes the gate if a death or a revocation requires it.
    fn watch_gate(&self);

    /// Records that keys of a partition are lost.
    fn record_damage(&self, partition: usize);
}

impl OperationState {
    /// The layers above; `None` once the store is dropped.
    fn above(&self) -> Option<Arc<dyn Above>> {
        self.above.get()?.upgrade()
    }

    /// See [`Above::serve_messages`].
    pub(in crate::store) fn serve_messages(&self) {
        if let Some(above) = self.above() {
            above.serve_messages();
        }
    }

    /// See [`Above::await_salvage`].
    #[cold]
    pub(in crate::store) fn await_salvage(&self, partition: usize) -> StoreResult<()> {
        self.above().map_or(Ok(()), |above| above.await_salvage(partition))
    }

    /// See [`Above::clear`].
    #[cold]
    pub(in crate::store) fn clear(
        &self,
        blocker: &Blocker,
        attempts: u32,
        blocked: &mut Blocked,
    ) -> StoreResult<()> {
        self.above().map_or(Ok(()), |above| above.clear(blocker, attempts, blocked))
    }

    /// See [`Above::watch_gate`].
    pub(in crate::store) fn watch_gate(&self) {
        if let Some(above) = self.above() {
            above.watch_gate();
        }
    }

    /// See [`Above::record_damage`].
    #[cold]
    pub(in crate::store) fn record_damage(&self, partition: usize) {
        if let Some(above) = self.above() {
            above.record_damage(partition);
        }
    }
}

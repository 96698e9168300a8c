//! Leavers the job.

use crate::engine::Time;
use crate::store::api::store::Store;
use crate::store::error::StoreResult;
use crate::sync::lock;

/// The lock of the one who leaves.
const TURN: &[u8] = b"\0outlast/leave";

impl Store {
    /// Leaves the job: hands this member's copies on to others, so that nothing is lost even with
    /// one copy, and ends the membership. [`StoreError::Timeout`] if that takes until `deadline`:
    /// this member is then still there, and its copies go on being handed on; call it again, or go
    /// without. Locks that it holds count as abandoned.
    ///
    /// Members leave one after the other, each moving its data: to end the whole job, use
    /// [`Store::close`].
    pub fn leave(&self, deadline: Time) -> StoreResult<()> {
        // Held until this member is gone; the next one takes it over.
        if !lock(&self.state.leavers.own).is_leaving {
            self.lock_any(TURN, deadline)?.keep();
        }
        self.state.leave(deadline)
    }
}

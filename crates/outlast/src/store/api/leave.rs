//! Leaving the job: the lock that orders leavers, and the call. `docs/protocol/leaving.md` has the
//! steps.

use crate::engine::Time;
use crate::store::api::store::Store;
use crate::store::error::StoreResult;
use crate::sync::lock;

/// The lock of the leaver: members leave in sequence.
const TURN: &[u8] = b"\0outlast/leave";

impl Store {
    /// Leaves the job: hands the replicas of this member over to other members, so that nothing is
    /// lost even with a single replica, and ends the membership. Locks that this member holds count
    /// as abandoned.
    ///
    /// Returns [`StoreError::Timeout`](crate::store::StoreError::Timeout) if the replicas are not
    /// handed over at `deadline`. This member is then still part of the job, and its replicas go on
    /// being handed over: call `leave` again, or end the process without it.
    /// [`StoreError::Locked`](crate::store::StoreError::Locked) means that another member was
    /// leaving until `deadline`.
    ///
    /// Members leave in sequence, and each of them moves its data. To end the whole job, use
    /// [`Store::close`].
    pub fn leave(&self, deadline: Time) -> StoreResult<()> {
        // The lock is held until this member is gone. The next leaver takes it over.
        if !lock(&self.state.leavers.own).is_leaving {
            self.lock_any(TURN, deadline)?.keep();
        }
        self.state.leave(deadline)
    }
}

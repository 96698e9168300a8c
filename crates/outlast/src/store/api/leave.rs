//! Leaving the job: the lock that orders leavers, and the call. `docs/protocol/leaving.md` has the
//! steps.

use crate::engine::Time;
use crate::engine::deadline::Deadline;
use crate::store::api::store::Store;
use crate::store::error::{StoreError, StoreResult};
use crate::store::operation::error::engine_error;
use crate::sync::lock;
use std::sync::atomic::Ordering;

/// The lock of the leaver: members leave in sequence.
const TURN: &[u8] = b"\0outlast/leave";

impl Store {
    /// Leaves the job: hands the replicas of this member over to other members, so that nothing is
    /// lost even with a single replica, and ends the membership. Locks that this member holds count
    /// as abandoned.
    ///
    /// Returns [`StoreError::Timeout`] if the replicas are not handed over at `deadline`. This
    /// member is then still part of the job. If it has told the others that it leaves, its replicas
    /// go on being handed over: call `leave` again, or end the process without it.
    /// [`StoreError::Locked`] means that another member was leaving until `deadline`.
    ///
    /// Members leave in sequence, and each of them moves its data. To end the whole job, use
    /// [`Store::close`]. A member leaves with all its stores: if it has further stores open, the
    /// call hands over their replicas, too.
    pub fn leave(&self, deadline: Time) -> StoreResult<()> {
        if self.state.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let _call = Deadline::call_until(deadline);
        // All members have their stores in equal order, so two leavers do not wait for each other.
        let stores: Vec<Store> = self.state.stores.usable().map(|state| Store { state }).collect();
        for store in &stores {
            // The lock is held until this member is gone. The next leaver takes it over.
            if !lock(&store.state.leavers.own).is_leaving {
                store.lock_any(TURN, deadline)?.keep();
            }
            store.state.hand_replicas_over(deadline)?;
        }
        // *end*.
        stores.iter().for_each(|store| store.state.end());
        self.state.job.leave().map_err(engine_error)
    }
}

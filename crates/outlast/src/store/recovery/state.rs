//! What a member keeps for recovery.

use crate::engine::MemberSet;
use crate::rma::Communicator;
use crate::store::recovery::loss::Loss;
use crate::store::recovery::reclaim::Reclaim;
use crate::store::recovery::repair::{Repair, Repaired};
use crate::store::recovery::salvage::Salvage;
use crate::store::tx::state::TxState;
use crate::sync::lock;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// The state of the recovery layer. It contains the state of the transaction layer below.
pub(in crate::store) struct RecoveryState {
    pub(in crate::store) tx: Arc<TxState>,
    pub(in crate::store) repair: Mutex<Repair>,
    pub(in crate::store) repaired: Repaired,
    /// The percentage of a processor that repair may take, 1 to 100.
    pub(in crate::store) repair_percent: u32,
    pub(in crate::store) reclaim: Mutex<Reclaim>,
    pub(in crate::store) loss: Loss,
    pub(in crate::store) salvage: Salvage,
    pub(in crate::store) coordinated: Coordinated,
    /// The members that have called `close`.
    pub(in crate::store) closing: Mutex<MemberSet>,
}

impl std::ops::Deref for RecoveryState {
    type Target = TxState;

    #[inline(always)]
    fn deref(&self) -> &TxState {
        &self.tx
    }
}

impl RecoveryState {
    /// Whether all living members have called `close`. From then on no member repairs replicas.
    pub(in crate::store) fn is_ending(&self) -> bool {
        let closing = lock(&self.closing).clone();
        self.job.view().living().all(|member| closing.contains(member))
    }
}

/// What a member keeps for a coordinated recovery.
///
/// Orderings: all accesses to the flags are SeqCst. `is_recovering` is taken by a swap, so a single
/// thread at a time recovers. `is_in_procedure` only lets calls that list keys pass the gate. No
/// other data depends on the flags: the communicator has a lock, and the store's data is read
/// through the engine.
pub(in crate::store) struct Coordinated {
    /// Whether a thread of this member is in a recovery.
    pub(in crate::store) is_recovering: AtomicBool,
    /// Whether that thread has reached its procedure and has not ended the attempt.
    pub(in crate::store) is_in_procedure: AtomicBool,
    /// The communicator of the members of the store, in global mode.
    pub(in crate::store) communicator: Mutex<Option<Communicator>>,
}

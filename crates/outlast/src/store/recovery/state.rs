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

/// The state of the recovery layer, with those of the layers below.
pub(in crate::store) struct RecoveryState {
    pub(in crate::store) tx: Arc<TxState>,
    pub(in crate::store) repair: Mutex<Repair>,
    pub(in crate::store) repaired: Repaired,
    /// How much of the background's time repair may take, 1 to 100.
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
    /// Whether all who live have said that they are done: then nobody brings up copies any more.
    pub(in crate::store) fn is_ending(&self) -> bool {
        let closing = lock(&self.closing).clone();
        self.job.view().living().all(|member| closing.contains(member))
    }
}

/// What a member keeps for a coordinated recovery.
pub(in crate::store) struct Coordinated {
    /// Whether a thread of this member is in a recovery.
    pub(in crate::store) is_recovering: AtomicBool,
    /// Whether it has come to its procedure.
    pub(in crate::store) is_in_procedure: AtomicBool,
    pub(in crate::store) communicator: Mutex<Option<Communicator>>,
}

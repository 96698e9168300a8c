//! The gate that all calls pass: closed from a death to the recovery, if the members recover
//! together.

use crate::engine::{Epoch, MemberSet, View};
use crate::store::error::{StoreError, StoreResult};
use crate::store::operation::state::OperationState;
use crate::store::options::Mode;
use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a member knows of the store's mode.
pub(in crate::store) struct Gate {
    pub(in crate::store) mode: Mode,
    /// Calls go through under epochs below this: all of them in localized mode, none while the gate
    /// is closed.
    pub(in crate::store) below: AtomicU64,
    /// How many recoveries this member has seen.
    pub(in crate::store) recoveries: AtomicU64,
    pub(in crate::store) deaths: Mutex<GateDeaths>,
    /// Participants that only read, for as long as they like; see `cut`.
    pub(in crate::store) readers: Mutex<Vec<usize>>,
}

#[derive(Default)]
pub(in crate::store) struct GateDeaths {
    pub(in crate::store) is_closed: bool,
    /// The deaths that the store has recovered from.
    pub(in crate::store) recovered: MemberSet,
}

impl Gate {
    pub(in crate::store) fn new(mode: Mode, view: &View) -> Gate {
        let below = if mode == Mode::Global { view.epoch.0 + 1 } else { u64::MAX };
        Gate {
            mode,
            below: AtomicU64::new(below),
            recoveries: AtomicU64::new(0),
            // Who is dead before the store is open has held nothing of it.
            deaths: Mutex::new(GateDeaths { is_closed: false, recovered: view.dead.clone() }),
            readers: Mutex::default(),
        }
    }

    pub(in crate::store) fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether calls go through under this epoch. To be asked inside the operation: whoever closes
    /// the gate then looks which operations are under way.
    #[inline(always)]
    pub(in crate::store) fn lets_through(&self, epoch: Epoch) -> bool {
        epoch.0 < self.below.load(Ordering::SeqCst)
    }

    /// Whether the gate is closed, or the store is.
    pub(in crate::store) fn is_closed(&self) -> bool {
        self.below.load(Ordering::SeqCst) == 0
    }

    /// Lets no call through any more, for ever. The store is closed already: whoever looks at the
    /// gate next finds that, and whoever has looked before has opened it by now.
    pub(in crate::store) fn close_for_ever(&self) {
        let _deaths = lock(&self.deaths);
        self.below.store(0, Ordering::SeqCst);
    }

    /// How many recoveries this member has seen: what was begun before one is over.
    pub(in crate::store) fn recoveries(&self) -> u64 {
        self.recoveries.load(Ordering::SeqCst)
    }
}

impl OperationState {
    /// Whether a call may go on under this epoch; inside its operation.
    #[inline(always)]
    pub(in crate::store) fn check_gate(&self, epoch: Epoch) -> StoreResult<()> {
        if self.gate.lets_through(epoch) { Ok(()) } else { self.recheck_gate(epoch) }
    }

    /// The view is newer than the gate, or the gate is closed.
    #[cold]
    #[inline(never)]
    fn recheck_gate(&self, epoch: Epoch) -> StoreResult<()> {
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(StoreError::Closed);
        }
        self.watch_gate();
        if self.gate.lets_through(epoch) { Ok(()) } else { Err(StoreError::Revoked) }
    }
}

//! The gate that all calls pass. In global mode it is closed from a death until the members have
//! recovered together.
//!
//! docs/protocol/coordinated-recovery.md has the protocol. This file has the check that every
//! operation makes; `recovery/coordinated.rs` closes and opens the gate.

use crate::engine::{Epoch, MemberSet, View};
use crate::store::error::{StoreError, StoreResult};
use crate::store::operation::state::OperationState;
use crate::store::options::Mode;
use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The gate of a member.
///
/// *Orderings.* `below` and `recoveries` are sequentially consistent, in a single order with the
/// operation counters. An operation makes its counter odd and then loads `below`. The member that
/// closes the gate stores `below` and then reads the counters. So either the operation finds the
/// gate closed, or `recover.close_gate` waits for the operation.
pub(in crate::store) struct Gate {
    pub(in crate::store) mode: Mode,
    /// Calls pass under epochs below this value: under all epochs in localized mode, under none
    /// while the gate is closed.
    pub(in crate::store) below: AtomicU64,
    /// How many recoveries this member has seen.
    pub(in crate::store) recoveries: AtomicU64,
    pub(in crate::store) deaths: Mutex<GateDeaths>,
    /// Participants that only read, for as long as they like: the lists of consistent cuts. Closing
    /// the gate does not wait for them.
    pub(in crate::store) readers: Mutex<Vec<usize>>,
    /// The participants among them that have listed all records and only copy values of their own
    /// member. They use no list of replicas, so leavers do not wait for them.
    pub(in crate::store) copiers: Mutex<Vec<usize>>,
}

/// The deaths that the gate has seen.
#[derive(Default)]
pub(in crate::store) struct GateDeaths {
    pub(in crate::store) is_closed: bool,
    /// The deaths from which the store has recovered.
    pub(in crate::store) recovered: MemberSet,
}

impl OperationState {
    /// Returns an error if a call must not go on under this epoch. Called while its operation is in
    /// flight.
    #[inline(always)]
    pub(in crate::store) fn check_gate(&self, epoch: Epoch) -> StoreResult<()> {
        if self.gate.lets_through(epoch) { Ok(()) } else { self.recheck_gate(epoch) }
    }

    /// [`OperationState::check_gate`] when the view is newer than the gate, or the gate is closed.
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

impl Gate {
    /// Whether calls pass under this epoch. An operation must ask while it is in flight, since the
    /// member that closes the gate then reads which operations are in flight.
    #[inline(always)]
    pub(in crate::store) fn lets_through(&self, epoch: Epoch) -> bool {
        epoch.0 < self.below.load(Ordering::SeqCst)
    }

    pub(in crate::store) fn new(mode: Mode, view: &View) -> Gate {
        let below = if mode == Mode::Global { view.epoch.0 + 1 } else { u64::MAX };
        Gate {
            mode,
            below: AtomicU64::new(below),
            recoveries: AtomicU64::new(0),
            // Members that died before the store was opened held no replica.
            deaths: Mutex::new(GateDeaths { is_closed: false, recovered: view.dead.clone() }),
            readers: Mutex::default(),
            copiers: Mutex::default(),
        }
    }

    pub(in crate::store) fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether the gate is closed, or the store is.
    pub(in crate::store) fn is_closed(&self) -> bool {
        self.below.load(Ordering::SeqCst) == 0
    }

    /// Closes the gate for ever. The caller has closed the store already. An activity that updates
    /// the gate later finds the store closed and leaves the gate alone. An activity that found the
    /// store open held the lock, and has written `below` before this function does.
    pub(in crate::store) fn close_for_ever(&self) {
        let _deaths = lock(&self.deaths);
        self.below.store(0, Ordering::SeqCst);
    }

    /// How many recoveries this member has seen. A recovery ends everything that was begun before
    /// it.
    pub(in crate::store) fn recoveries(&self) -> u64 {
        self.recoveries.load(Ordering::SeqCst)
    }
}

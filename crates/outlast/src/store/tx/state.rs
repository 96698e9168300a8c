//! What a member keeps for transactions.

use crate::engine::{Epoch, MemberId, MemberSet, Time};
use crate::store::error::{StoreError, StoreResult};
use crate::store::record::location::CachedLocation;
use crate::store::record::state::RecordState;
use crate::store::segment::intent::{IntentId, RecoveryDecision};
use crate::sync::lock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The state of the transaction layer, with those of the layers below.
pub(in crate::store) struct TxState {
    pub(in crate::store) record: RecordState,
    pub(in crate::store) transactions: Transactions,
}

impl std::ops::Deref for TxState {
    type Target = RecordState;

    #[inline(always)]
    fn deref(&self) -> &RecordState {
        &self.record
    }
}

/// How many transactions of a member may be committing at once.
pub(in crate::store) const SLOTS: u32 = 64;

/// How long to wait while all intent records are in use.
const CROWDED: Duration = Duration::from_micros(200);

/// An intent record of this member, and what is remembered of it.
pub(in crate::store) struct IntentSlot {
    pub(in crate::store) number: u32,
    pub(in crate::store) cached: Box<CachedLocation>,
}

/// A transaction that could not be brought to its end.
pub(in crate::store) struct Unfinished {
    pub(in crate::store) slot: IntentSlot,
    pub(in crate::store) id: IntentId,
    pub(in crate::store) keys: Vec<Vec<u8>>,
    /// Whether it is joined to a recovery.
    pub(in crate::store) is_joined: bool,
    pub(in crate::store) due: Time,
    /// Whether its decision may be under way: a freeze waits until it is known (see `cut`).
    pub(in crate::store) is_committing: bool,
}

/// What a member keeps for transactions.
#[derive(Default)]
pub(in crate::store) struct Transactions {
    pub(in crate::store) free: Mutex<Vec<IntentSlot>>,
    made: AtomicU32,
    pub(in crate::store) nonce: AtomicU64,
    pub(in crate::store) unfinished: Mutex<Vec<Unfinished>>,
    /// The dead whose intents this member is to end, as their heir.
    pub(in crate::store) orphaned_intents: Mutex<OrphanedIntents>,
    /// How many transactions are between the beginning and the end of their decision; see `cut`.
    pub(in crate::store) committing: AtomicU64,
    /// How many intents that are joined to a recovery have not been brought to their end.
    pub(in crate::store) joined: AtomicU64,
    /// The activities that run a closure.
    inside: Mutex<Vec<u64>>,
}

impl Transactions {
    /// Whether transactions of this member are being decided.
    pub(in crate::store) fn is_committing(&self) -> bool {
        self.committing.load(Ordering::SeqCst) > 0
    }

    /// An error if this activity runs a closure.
    pub(in crate::store) fn check_not_inside(&self, activity: u64) -> StoreResult<()> {
        if lock(&self.inside).contains(&activity) { Err(StoreError::Nested) } else { Ok(()) }
    }
}

/// While it exists, this activity runs a closure.
pub(in crate::store) struct Inside<'a> {
    store: &'a TxState,
    activity: u64,
}

impl<'a> Inside<'a> {
    pub(in crate::store) fn enter(store: &'a TxState) -> StoreResult<Inside<'a>> {
        let activity = store.job.activity();
        let mut inside = lock(&store.transactions.inside);
        if inside.contains(&activity) {
            return Err(StoreError::Nested);
        }
        inside.push(activity);
        Ok(Inside { store, activity })
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        lock(&self.store.transactions.inside).retain(|&activity| activity != self.activity);
    }
}

/// A transaction that is being decided: it goes on even if the store is frozen meanwhile.
pub(in crate::store) struct Committing(Arc<TxState>);

impl Committing {
    /// Waits until the store is not frozen. Whoever freezes it from then on waits for the end of
    /// this; and whoever closes the gate of global mode, which only a recovery passes.
    pub(in crate::store) fn begin(
        store: &Arc<TxState>,
        is_recovery: bool,
    ) -> StoreResult<Committing> {
        loop {
            store.transactions.committing.fetch_add(1, Ordering::SeqCst);
            let committing = Committing(store.clone());
            if !is_recovery {
                store.check_gate(Epoch(0))?;
            }
            if !store.freeze.is_set() {
                return Ok(committing);
            }
            drop(committing);
            store.wait_for_unfreeze()?;
        }
    }

    /// It goes on when this call has ended: whoever brings it to its end counts it off.
    pub(in crate::store) fn goes_on(self) {
        self.0.transactions.committing.fetch_add(1, Ordering::SeqCst);
    }
}

/// G7: the recovery_decision that a recovery is committed, not while the store is frozen.
pub(in crate::store) fn decide_recovery_unfrozen(
    store: &Arc<TxState>,
    attempt: u64,
    recovered: Option<&MemberSet>,
) -> StoreResult<RecoveryDecision> {
    let _deciding = Committing::begin(store, true)?;
    store.decide(attempt, recovered, "")
}

impl Drop for Committing {
    fn drop(&mut self) {
        self.0.transactions.committing.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Default)]
pub(in crate::store) struct OrphanedIntents {
    pub(in crate::store) epoch: Option<Epoch>,
    pub(in crate::store) done: MemberSet,
    pub(in crate::store) left: Vec<(MemberId, u32)>,
    /// Whether one is being ended.
    pub(in crate::store) is_busy: bool,
    pub(in crate::store) not_before: Option<Time>,
}

impl TxState {
    /// An intent record that no transaction uses.
    pub(in crate::store) fn take_slot(&self) -> StoreResult<IntentSlot> {
        let (job, transactions) = (&self.job, &self.transactions);
        let limit = job.time_limit();
        let until = job.now().after(limit);
        loop {
            if let Some(slot) = lock(&transactions.free).pop() {
                return Ok(slot);
            }
            let number = transactions.made.fetch_add(1, Ordering::Relaxed);
            if number < SLOTS {
                return Ok(IntentSlot { number, cached: Box::new(CachedLocation::NOTHING) });
            }
            transactions.made.fetch_sub(1, Ordering::Relaxed);
            let now = job.now();
            if now >= until {
                return Err(StoreError::Timeout { member: job.me(), limit });
            }
            job.park(job.bell(), until.min(now.after(CROWDED)));
        }
    }
}

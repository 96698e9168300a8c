//! What a member keeps for transactions: intent records, unfinished transactions and orphaned
//! intents.

use crate::engine::{Epoch, MemberId, MemberSet, Time};
use crate::store::error::{StoreError, StoreResult};
use crate::store::record::location::CachedLocation;
use crate::store::record::state::RecordState;
use crate::store::segment::intent::{IntentId, RecoveryDecision};
use crate::sync::lock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The state of the transaction layer. It contains the state of the record layer below.
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

/// The number of intent records of a member, and so of its transactions that can commit at once.
pub(in crate::store::tx) const SLOTS: u32 = 64;

/// The pause between two looks for an intent record while all of them are in use.
const CROWDED: Duration = Duration::from_micros(200);

/// An intent record of this member, with its cached location.
pub(in crate::store) struct IntentSlot {
    pub(in crate::store) number: u32,
    pub(in crate::store) cached: Box<CachedLocation>,
}

/// A transaction of this member that its call could not end. The background ends it.
pub(in crate::store) struct Unfinished {
    /// The intent record, which stays in use until the transaction is ended.
    pub(in crate::store) slot: IntentSlot,
    pub(in crate::store) id: IntentId,
    pub(in crate::store) keys: Vec<Vec<u8>>,
    /// Whether its intent is joined to a coordinated recovery.
    pub(in crate::store::tx) is_joined: bool,
    /// When the background tries next.
    pub(in crate::store) due: Time,
    /// Whether *commit* may still take effect. A write freeze and a closing gate wait until that is
    /// known.
    pub(in crate::store) is_committing: bool,
}

/// What a member keeps for transactions.
///
/// Orderings: `committing` is SeqCst. A committer raises it and then loads the write freeze and the
/// gate. A member that sets the freeze or closes the gate stores that first and then loads
/// `committing`. In a single total order at least one of the two sees the other. `joined` is SeqCst
/// as well: a member that loads 0 finds no joined intent of its own in the store, because the count
/// falls only after the intent was emptied or found lost. `made` and `nonce` are Relaxed: they only
/// hand out distinct numbers. So is `committed`, a count for observers. Intent records pass from
/// thread to thread under the lock of `free`.
#[derive(Default)]
pub(in crate::store) struct Transactions {
    /// Intent records that no transaction uses.
    pub(in crate::store) free: Mutex<Vec<IntentSlot>>,
    /// The number of intent records that this member has made.
    made: AtomicU32,
    /// The last number that was given out, as a nonce or for a random pause.
    pub(in crate::store) nonce: AtomicU64,
    /// Transactions that the background has to end.
    pub(in crate::store) unfinished: Mutex<Vec<Unfinished>>,
    /// The intents of dead members that this member ends, as their heir.
    pub(in crate::store::tx) orphaned_intents: Mutex<OrphanedIntents>,
    /// The number of transactions between the beginning and the end of their decision.
    pub(in crate::store) committing: AtomicU64,
    /// The number of transactions that calls of this member have committed.
    pub(in crate::store) committed: AtomicU64,
    /// The number of intents of this member that are joined to a coordinated recovery and not
    /// ended.
    pub(in crate::store::tx) joined: AtomicU64,
    /// The activities that run the closure of a transaction.
    inside: Mutex<Vec<u64>>,
}

impl Transactions {
    /// Whether a transaction of this member is being decided.
    pub(in crate::store) fn is_committing(&self) -> bool {
        self.committing.load(Ordering::SeqCst) > 0
    }

    /// Returns an error if this activity runs the closure of a transaction.
    pub(in crate::store) fn check_not_inside(&self, activity: u64) -> StoreResult<()> {
        if lock(&self.inside).contains(&activity) { Err(StoreError::Nested) } else { Ok(()) }
    }
}

/// While this guard exists, its activity runs the closure of a transaction.
pub(in crate::store) struct Inside<'a> {
    store: &'a TxState,
    activity: u64,
}

impl<'a> Inside<'a> {
    /// Begins to run a closure. Returns an error if this activity runs a closure already.
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

/// A transaction that is being decided. It goes on even if the store is frozen meanwhile.
pub(in crate::store::tx) struct Committing(Arc<TxState>);

impl Committing {
    /// Waits until the store is not frozen, and counts a transaction as being decided. A write
    /// freeze or a closing gate that comes later waits for the end of the decision. Only the
    /// transaction of a coordinated recovery passes a closed gate.
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

    /// Keeps the transaction counted after this call, because its outcome is unknown. The
    /// background subtracts it when the outcome is known.
    pub(in crate::store::tx) fn goes_on(self) {
        self.0.transactions.committing.fetch_add(1, Ordering::SeqCst);
    }
}

/// `recover.decide`: decides an attempt at a coordinated recovery, not while the store is frozen.
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

/// The intents of dead members that this member ends, as their heir.
#[derive(Default)]
pub(in crate::store) struct OrphanedIntents {
    /// The epoch of the last view in which this member looked for dead members.
    pub(in crate::store) epoch: Option<Epoch>,
    /// The dead members that were entered into `left`.
    pub(in crate::store) done: MemberSet,
    /// The intents to visit: the dead member and the number of its intent record.
    pub(in crate::store) left: Vec<(MemberId, u32)>,
    /// Whether an activity is ending an intent that it has taken from `left`.
    pub(in crate::store) is_busy: bool,
    /// Aborted transactions, with keys that could not be rolled back for want of memory. Nothing
    /// waits for them: their keys have the old values, and block no writer.
    pub(in crate::store) full: Vec<(IntentId, Vec<Vec<u8>>)>,
    /// When to go on after an intent could not be ended.
    pub(in crate::store) not_before: Option<Time>,
}

impl TxState {
    /// Takes an intent record that no transaction uses: a released record or a new record. If all
    /// are in use, the call waits within the time limit.
    pub(in crate::store::tx) fn take_slot(&self) -> StoreResult<IntentSlot> {
        let (job, transactions) = (&self.job, &self.transactions);
        let (limit, until) = (job.time_limit(), job.deadline());
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

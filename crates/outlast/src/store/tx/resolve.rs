//! The steps by which any member ends a transaction: *abort*, *apply* and *roll_back*.
//!
//! The module also writes and reads the recovery decision, which decides the intents that are
//! joined to a coordinated recovery.

use crate::engine::{MemberId, MemberSet};
use crate::store::error::{StoreError, StoreResult};
use crate::store::mutant::mutant;
use crate::store::operation::configuration::Configuration;
use crate::store::operation::error::{Blocked, Blocker, OpError, OpResult};
use crate::store::record::key::KeyRef;
use crate::store::record::state::RecordOp;
use crate::store::record::visibility::{IntentStanding, Reader};
use crate::store::record::write::{Change, VersionAttributes};
use crate::store::segment::intent::{
    Intent, IntentId, IntentState, RecoveryDecision, encode_restored, intent_key,
};
use crate::store::segment::layout::{Block, Kind, value_start};
use crate::store::steps::{self, within};
use crate::store::tx::state::TxState;
use std::time::Duration;

/// How long an operation waits for an undecided transaction before it aborts that transaction. The
/// time doubles with each failed attempt of the transaction.
const ABORT_AFTER: Duration = Duration::from_micros(200);

/// How often [`ABORT_AFTER`] doubles at most: to 0.1 s.
const DOUBLINGS: u32 = 9;

/// The pause between two looks at a transaction that an operation waits for.
const LOOK: Duration = Duration::from_micros(20);

impl TxState {
    /// Removes a transaction that blocks a call, or waits a little for its end. `attempts` is the
    /// number of failed attempts of the caller's own transaction, and 0 for other calls.
    #[cold]
    pub(in crate::store) fn clear(
        &self,
        blocker: &Blocker,
        attempts: u32,
        blocked: &mut Blocked,
    ) -> StoreResult<()> {
        let (job, id) = (&self.job, blocker.id);
        let standing = self.standing(&id)?;
        if standing.state.is_none_or(IntentState::is_decided) {
            // This function does not wait for the end of a write freeze. A reader needs only the
            // decision, and the caller may itself be about to decide a transaction that the freeze
            // waits for (see `api::cut`). Only a provisional version that has lost its intent stays
            // as it is until the end of the freeze.
            let result = self.resolve_in(
                &blocker.key,
                id,
                standing.state == Some(IntentState::Committed),
                false,
            );
            if self.freeze.is_set() {
                job.park(job.bell(), job.now().after(LOOK));
            }
            return result.map(drop);
        }
        let now = job.now();
        // A transaction with failed attempts gets more time, except from a caller with more failed
        // attempts.
        let doublings =
            if attempts > standing.attempts { 0 } else { standing.attempts.min(DOUBLINGS) };
        let until = match *blocked {
            Some((other, until)) if other == id => until,
            _ => now.after(ABORT_AFTER * (1 << doublings)),
        };
        *blocked = Some((id, until));
        if now >= until || !job.view().is_living(id.member) {
            return self.abort_intent(id);
        }
        job.park(job.bell(), until.min(now.after(LOOK)));
        Ok(())
    }

    /// *abort*: decides that a transaction does not happen, unless it is decided already. For a
    /// joined intent this is an aborted recovery decision. If a replica has no room for the aborted
    /// intent, *abort* buries the intent: room for tombstones is set aside.
    fn abort_intent(&self, id: IntentId) -> StoreResult<()> {
        match self.try_abort(id, false) {
            Err(StoreError::OutOfMemory { .. }) => self.try_abort(id, true),
            other => other,
        }
    }

    fn try_abort(&self, id: IntentId, buries: bool) -> StoreResult<()> {
        let _step = within(steps::Step::TxAbort);
        let key = intent_key(id.member, id.slot);
        let mut joined = None;
        self.write(&key, true, |current, bytes| {
            let intent = current
                .and_then(|_| Intent::decode(bytes))
                .filter(|intent| intent.nonce == id.nonce);
            joined = intent
                .as_ref()
                .filter(|intent| intent.state == IntentState::Joined)
                .map(|one| one.recovery);
            Ok(match intent {
                // A joined intent is decided by the recovery decision alone.
                Some(_) if joined.is_some() => Change::Nothing,
                Some(intent) if !intent.state.is_decided() && buries => Change::Bury(id.nonce),
                Some(intent) if !intent.state.is_decided() || mutant("tx-abort-late") => {
                    Change::Owned(Intent { state: IntentState::Aborted, ..intent }.encode())
                }
                _ => Change::Nothing,
            })
        })?;
        if let Some(recovery) = joined {
            self.decide(recovery, None, "a part of it was given up")?;
        }
        Ok(())
    }

    /// Decides an attempt at a coordinated recovery: committed, with the members that the store has
    /// then recovered from, or aborted, with a reason. If the record is about this attempt already,
    /// it stays as it is. Returns the decision that the record holds.
    pub(in crate::store) fn decide(
        &self,
        recovery: u64,
        recovered: Option<&MemberSet>,
        reason: &str,
    ) -> StoreResult<RecoveryDecision> {
        let mut recovery_decision = None;
        self.write(&RecoveryDecision::key(), true, |current, bytes| {
            let found = current.and_then(|_| RecoveryDecision::decode(bytes));
            let is_there = found.as_ref().is_some_and(|found| found.recovery == recovery);
            let made = match found {
                Some(found) if is_there => found,
                found => RecoveryDecision {
                    recovery,
                    is_committed: recovered.is_some(),
                    recovered: recovered
                        .cloned()
                        .or(found.map(|found| found.recovered))
                        .unwrap_or_default(),
                    reason: if recovered.is_some() { String::new() } else { reason.into() },
                },
            };
            let bytes = made.encode();
            recovery_decision = Some(made);
            Ok(if is_there { Change::Nothing } else { Change::Owned(bytes) })
        })?;
        Ok(recovery_decision.expect("the recovery decision was looked at"))
    }

    /// The decision about the last attempt at a coordinated recovery, if there was an attempt.
    pub(in crate::store) fn recovery_decision(&self) -> StoreResult<Option<RecoveryDecision>> {
        let key = RecoveryDecision::key();
        let found = self.run(|op| self.look_in(op, Reader::Any, &self.any_key_ref(&key), true))?;
        Ok(found.value.and_then(|value| RecoveryDecision::decode(value.bytes())))
    }

    /// The state of a transaction, from its intent, and from the recovery decision if the intent is
    /// joined.
    pub(in crate::store) fn standing(&self, id: &IntentId) -> StoreResult<IntentStanding> {
        self.run(|op| {
            let standing = op.standing(id)?;
            if op.is_current() { Ok(standing) } else { Err(OpError::Again) }
        })
    }

    /// Whether the record of an intent is lost, and not merely the recovery decision that it
    /// depends on.
    pub(in crate::store::tx) fn is_intent_lost(&self, member: MemberId, slot: u32) -> bool {
        let id = IntentId { member, slot, nonce: 0 };
        matches!(self.run(|op| op.read_intent(&id)), Err(StoreError::DataLost { .. }))
    }

    /// Whether a transaction has happened. If it is undecided, it is aborted first.
    pub(in crate::store) fn decision(&self, id: IntentId) -> StoreResult<bool> {
        let mut standing = self.standing(&id)?;
        if standing.state.is_some_and(|state| !state.is_decided()) {
            self.abort_intent(id)?;
            standing = self.standing(&id)?;
        }
        Ok(standing.state == Some(IntentState::Committed))
    }

    /// Ends a transaction at all its keys, by *apply* or *roll_back*. If it is undecided, it is
    /// aborted first.
    pub(in crate::store::tx) fn conclude(&self, id: IntentId, keys: &[Vec<u8>]) -> StoreResult<()> {
        let is_committed = self.decision(id)?;
        keys.iter().try_for_each(|key| self.resolve(key, id, is_committed).map(drop))
    }

    /// *apply* or *roll_back* for a single key. Returns whether this call did it. In a lost
    /// partition there is nothing to do.
    pub(in crate::store::tx) fn resolve(
        &self,
        key: &[u8],
        id: IntentId,
        is_committed: bool,
    ) -> StoreResult<bool> {
        self.resolve_in(key, id, is_committed, true)
    }

    /// *apply* or *roll_back* for a single key. While the store is frozen, the call waits if
    /// `waits` is set. Otherwise it leaves the key as it is, for a later operation.
    fn resolve_in(
        &self,
        key: &[u8],
        id: IntentId,
        is_committed: bool,
        waits: bool,
    ) -> StoreResult<bool> {
        let _step =
            within(if is_committed { steps::Step::TxApply } else { steps::Step::TxRollBack });
        let key = self.any_key_ref(key);
        let resolved = self.run(|op| match self.resolve_with(op, &key, id, is_committed) {
            Err(OpError::Frozen) if !waits => Ok(false),
            other => other,
        });
        match resolved {
            Err(StoreError::DataLost { .. }) => Ok(false),
            other => other,
        }
    }

    /// *apply* or *roll_back* for a single key, inside an operation: puts the new or the old value
    /// in the place of the transaction's provisional version. Returns whether the provisional
    /// version was there. Every member makes an identical version, so the step can be repeated.
    fn resolve_with(
        &self,
        op: &mut RecordOp<'_>,
        key: &KeyRef<'_>,
        id: IntentId,
        is_committed: bool,
    ) -> OpResult<bool> {
        if self.freeze.is_set() {
            return Err(OpError::Frozen);
        }
        let config = op.config(key.partition)?;
        let primary = config.primary_member();
        let mut cached = op.known_location(config, key)?;
        let before = op.find_predecessor(config, key, cached.as_mut())?;
        let Some((offset, block)) =
            before.found().filter(|(_, block)| block.kind == Kind::Provisional)
        else {
            return if op.is_still_current(config, key.partition)? {
                Ok(false)
            } else {
                Err(OpError::Again)
            };
        };
        let found = op.read_provisional(primary, offset, &block)?;
        if found.id != id {
            return if op.is_still_current(config, key.partition)? {
                Ok(false)
            } else {
                Err(OpError::Again)
            };
        }
        op.check_whole(key, primary, offset, &block)?;
        let start = offset + value_start(block.len);
        let (old_at, new_at) = found.places();
        let (author, is_above_floor) = (Some(id.member), false);
        let attributes = |kind, is_deleted, owner| VersionAttributes {
            kind,
            is_deleted,
            owner,
            author,
            is_above_floor,
        };
        let (bytes, attributes) = match found.new_len.filter(|_| is_committed) {
            Some(Some(len)) => (
                self.read_bytes(op, primary, start + new_at, len)?,
                attributes(Kind::Plain, false, found.new_owner),
            ),
            Some(None) => (Vec::new(), attributes(Kind::Plain, true, found.old_owner)),
            None if !found.old.exists => {
                (Vec::new(), attributes(Kind::Plain, true, found.old_owner))
            }
            None => {
                let value = self.read_bytes(op, primary, start + old_at, found.old_len)?;
                let bytes = encode_restored(found.old.version, &value);
                (bytes, attributes(Kind::Restored, false, found.old_owner))
            }
        };
        op.replace(config, key, before, &bytes, attributes)?;
        cached.iter().for_each(|cached| self.key_locations.note(key, cached));
        Ok(true)
    }

    /// Reads a range of a replica's segment.
    pub(in crate::store::tx) fn read_bytes(
        &self,
        op: &RecordOp<'_>,
        replica: MemberId,
        offset: u64,
        len: u64,
    ) -> OpResult<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        op.get(replica, offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Whether a key is locked: the primary's head word names a provisional version.
    pub(in crate::store) fn is_locked(&self, key: &[u8]) -> StoreResult<bool> {
        let key = self.key_ref(key)?;
        self.run_call(&key, |op| {
            let config = op.config(key.partition)?;
            let found = op.find(config, config.primary, &key)?.and_then(|(_, head)| head.offset());
            let block =
                found.map(|offset| op.read_block(config.primary_member(), offset)).transpose()?;
            Ok(block.is_some_and(|block| block.kind == Kind::Provisional))
        })
    }

    /// The version of a key that a reader sees while the store is frozen (see `api::cut`). No
    /// transaction is decided then. A validating intent is of a dead member, or of an attempt that
    /// has failed and not been aborted yet: it is aborted. A provisional version that has lost its
    /// intent counts as rolled back.
    pub(in crate::store) fn visible_in_freeze(
        &self,
        op: &RecordOp<'_>,
        config: &Configuration,
        key: &KeyRef<'_>,
        offset: u64,
        block: &Block,
    ) -> OpResult<(u64, Block)> {
        match op.visible_to(Reader::Cut, config, key, offset, block) {
            Err(OpError::Blocked(blocker)) => {
                self.abort_intent(blocker.id)?;
                op.visible_to(Reader::Cut, config, key, offset, block)
            }
            other => other,
        }
    }
}

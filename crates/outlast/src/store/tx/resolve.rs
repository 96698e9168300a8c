//! Bringing a transaction to its end, by any member: abort, apply, roll back.

use crate::engine::{MemberId, MemberSet};
use crate::store::error::{StoreError, StoreResult};
use crate::store::mutant::mutant;
use crate::store::operation::configuration::Configuration;
use crate::store::operation::error::{Blocked, Blocker, OpError, OpResult};
use crate::store::record::key::KeyRef;
use crate::store::record::state::RecordOp;
use crate::store::record::visibility::IntentStanding;
use crate::store::record::write::{Change, VersionAttributes};
use crate::store::segment::intent::{
    Intent, IntentId, IntentState, RecoveryDecision, encode_restored, intent_key,
};
use crate::store::segment::layout::{Block, Kind, value_start};
use crate::store::steps::{self, within};
use crate::store::tx::state::TxState;
use std::time::Duration;

/// How long a transaction may be in the way of others before they abort it, the first time that it
/// is tried.
const PATIENCE: Duration = Duration::from_micros(200);

/// How often that doubles: to a tenth of a second.
const DOUBLINGS: u32 = 9;

/// How often one who waits looks.
const LOOK: Duration = Duration::from_micros(20);

impl TxState {
    /// Gets a transaction out of the way of a call, or waits a little for that. `rank` is how often
    /// the caller's own transaction has failed, 0 for calls.
    #[cold]
    pub(in crate::store) fn clear(
        &self,
        blocker: &Blocker,
        rank: u32,
        blocked: &mut Blocked,
    ) -> StoreResult<()> {
        let (job, id) = (&self.job, blocker.id);
        let standing = self.standing(&id)?;
        if standing.state.is_none_or(IntentState::is_decided) {
            // Nobody waits here for the end of a freeze: who reads needs no more than the decision,
            // and may itself be on its way to one that the freeze waits for (see `cut`). Only what
            // has lost its intent stays as it is until then.
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
        // Whoever has failed more often is given more time, by those who have not.
        let doublings = if rank > standing.rank { 0 } else { standing.rank.min(DOUBLINGS) };
        let until = match *blocked {
            Some((other, until)) if other == id => until,
            _ => now.after(PATIENCE * (1 << doublings)),
        };
        *blocked = Some((id, until));
        if now >= until || !job.view().is_living(id.member) {
            return self.abort_intent(id);
        }
        job.park(job.bell(), until.min(now.after(LOOK)));
        Ok(())
    }

    /// Decides that a transaction does not happen, unless it is decided.
    pub(in crate::store) fn abort_intent(&self, id: IntentId) -> StoreResult<()> {
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
                // It shares the fate of its recovery.
                Some(_) if joined.is_some() => Change::Nothing,
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

    /// The recovery_decision about an attempt at a recovery: committed, with the members that the
    /// store has then recovered from, or aborted; unless there is one already, which it is then.
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

    /// The last recovery_decision.
    pub(in crate::store) fn recovery_decision(&self) -> StoreResult<Option<RecoveryDecision>> {
        let key = RecoveryDecision::key();
        let found = self.run(|op| self.look_in(op, &self.any_key_ref(&key), true))?;
        Ok(found.value.and_then(|value| RecoveryDecision::decode(value.bytes())))
    }

    /// How a transaction stands.
    pub(in crate::store) fn standing(&self, id: &IntentId) -> StoreResult<IntentStanding> {
        self.run(|op| {
            let standing = op.standing(id)?;
            if op.is_current() { Ok(standing) } else { Err(OpError::Again) }
        })
    }

    /// Whether the record of an intent is lost, and not merely the recovery_decision that it
    /// depends on.
    pub(in crate::store) fn is_intent_lost(&self, member: MemberId, slot: u32) -> bool {
        let id = IntentId { member, slot, nonce: 0 };
        matches!(self.run(|op| op.read_intent(&id)), Err(StoreError::DataLost { .. }))
    }

    /// Whether a transaction has happened; if that is not decided, it does not.
    pub(in crate::store) fn decision(&self, id: IntentId) -> StoreResult<bool> {
        let mut standing = self.standing(&id)?;
        if standing.state.is_some_and(|state| !state.is_decided()) {
            self.abort_intent(id)?;
            standing = self.standing(&id)?;
        }
        Ok(standing.state == Some(IntentState::Committed))
    }

    /// Brings a transaction to its end, whatever it is, at all its keys.
    pub(in crate::store) fn conclude(&self, id: IntentId, keys: &[Vec<u8>]) -> StoreResult<()> {
        let is_committed = self.decision(id)?;
        keys.iter().try_for_each(|key| self.resolve(key, id, is_committed).map(drop))
    }

    /// X5 for one key; whether it was left to do. If its partition is lost there is nothing.
    pub(in crate::store) fn resolve(
        &self,
        key: &[u8],
        id: IntentId,
        is_committed: bool,
    ) -> StoreResult<bool> {
        self.resolve_in(key, id, is_committed, true)
    }

    /// The same; if the store is frozen it is left to others, unless the caller waits for that.
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

    /// X5 for one key: puts the value after, or the one before, in the place of a transaction's
    /// provisional version, if that is there; whether it was. Whoever does it makes the same
    /// version.
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
        let before = op.find_reconciled(config, key, None, false)?;
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
        let shape = |kind, is_deleted, owner| VersionAttributes {
            kind,
            is_deleted,
            owner,
            author,
            is_above_floor,
        };
        let (bytes, shape) = match found.new_len.filter(|_| is_committed) {
            Some(Some(len)) => (
                self.read_bytes(op, primary, start + new_at, len)?,
                shape(Kind::Plain, false, found.new_owner),
            ),
            Some(None) => (Vec::new(), shape(Kind::Plain, true, found.old_owner)),
            None if !found.old.exists => (Vec::new(), shape(Kind::Plain, true, found.old_owner)),
            None => {
                let value = self.read_bytes(op, primary, start + old_at, found.old_len)?;
                let bytes = encode_restored(found.old.version, &value);
                (bytes, shape(Kind::Restored, false, found.old_owner))
            }
        };
        op.replace(config, key, before, &bytes, shape).map(|_| true)
    }

    pub(in crate::store) fn read_bytes(
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

    /// Whether a transaction has locked a key.
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

    /// The same while the store is frozen (see `cut`): then no living transaction is in doubt. One
    /// of the dead is aborted, and what has lost its intent is as it was before.
    pub(in crate::store) fn visible_in_freeze(
        &self,
        op: &RecordOp<'_>,
        config: &Configuration,
        key: &KeyRef<'_>,
        offset: u64,
        block: &Block,
    ) -> OpResult<(u64, Block)> {
        match op.visible_as(config, key, offset, block, true) {
            Err(OpError::Blocked(blocker)) => {
                self.abort_intent(blocker.id)?;
                op.visible_as(config, key, offset, block, true)
            }
            other => other,
        }
    }
}

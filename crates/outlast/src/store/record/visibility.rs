//! What readers and writers see of a record that a transaction has changed or locked.

use crate::engine::MemberId;
use crate::store::error::StoreError;
use crate::store::mutant::mutant;
use crate::store::operation::configuration::Configuration;
use crate::store::operation::error::{OpError, OpResult, blocked};
use crate::store::record::key::KeyRef;
use crate::store::record::state::RecordOp;
use crate::store::segment::intent::{
    INTENT_HEAD, Intent, IntentId, IntentState, PROVISIONAL_HEAD, Provisional,
    RECOVERY_DECISION_HEAD, RESTORED_HEAD, RecoveryDecision, decode_restored, intent_key,
};
use crate::store::segment::layout::{Block, Kind, value_start};
use crate::store::value::Version;

/// How a transaction stands, as its intent says.
pub(in crate::store) struct IntentStanding {
    /// `None`: there is no such intent any more. `Joined`: to a recovery for which there is no
    /// recovery_decision.
    pub(in crate::store) state: Option<IntentState>,
    pub(in crate::store) rank: u32,
    /// The recovery that it is joined to, or 0.
    pub(in crate::store) recovery: u64,
}

impl<'a> RecordOp<'a> {
    /// What a reader is to see of a version at the primary, as a place and a header; the place is
    /// such that the value is where that of a plain version with this header would be.
    #[cold]
    #[inline(never)]
    pub(in crate::store) fn visible(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        offset: u64,
        block: &Block,
    ) -> OpResult<(u64, Block)> {
        self.visible_as(config, key, offset, block, false)
    }

    pub(in crate::store) fn visible_as(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        offset: u64,
        block: &Block,
        is_frozen: bool,
    ) -> OpResult<(u64, Block)> {
        if block.kind == Kind::Plain {
            return Ok((offset, *block));
        }
        let seen = self.seen_in(config, key, offset, block, is_frozen)?;
        self.resealed(key, config.replicas[config.primary], offset, block, seen)
    }

    fn seen_in(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        offset: u64,
        block: &Block,
        is_frozen: bool,
    ) -> OpResult<(u64, Block)> {
        let primary = config.replicas[config.primary];
        match block.kind {
            Kind::Plain => return Ok((offset, *block)),
            Kind::Restored => return self.restored(primary, offset, block),
            Kind::Lost => return Err(self.lost(key)),
            Kind::Provisional => {}
        }
        let found = self.read_provisional(primary, offset, block)?;
        let standing = self.standing(&found.id)?;
        // The intent is in another partition: what was read of it counts only if the view is the
        // same.
        if !self.is_current() {
            return Err(OpError::Again);
        }
        let start = offset + value_start(block.len);
        let (old_at, new_at) = found.places();
        let old = Block {
            counter: found.old.version.counter,
            writer: found.old.version.writer,
            len: found.old_len,
            is_deleted: !found.old.exists,
            kind: Kind::Plain,
            owner: found.old_owner,
            ..*block
        };
        match standing.state {
            Some(IntentState::Committed) => {
                // Its committer may be stopped before it rings, and then nobody may know more than
                // those who wait.
                self.ring_waiters(primary, key.partition)?;
                let Some(new_len) = found.new_len else {
                    return Ok((start + old_at - value_start(old.len), old));
                };
                let new = Block {
                    counter: block.counter + 1,
                    writer: found.id.member,
                    len: new_len.unwrap_or(0),
                    is_deleted: new_len.is_none(),
                    owner: found.new_owner,
                    ..old
                };
                Ok((start + new_at - value_start(new.len), new))
            }
            Some(IntentState::Pending | IntentState::Aborted | IntentState::Joined) => {
                Ok((start + old_at - value_start(old.len), old))
            }
            Some(IntentState::Validating) if mutant("tx-read-past") => {
                Ok((start + old_at - value_start(old.len), old))
            }
            None if is_frozen => Ok((start + old_at - value_start(old.len), old)),
            Some(IntentState::Validating) | None => Err(blocked(found.id, key)),
        }
    }

    /// What a writer finds, if no transaction is in its way.
    #[cold]
    #[inline(never)]
    pub(in crate::store) fn free_of_transactions(
        &self,
        key: &KeyRef<'_>,
        primary: MemberId,
        offset: u64,
        block: &Block,
    ) -> OpResult<(u64, Block)> {
        match block.kind {
            Kind::Provisional => {
                Err(blocked(self.read_provisional(primary, offset, block)?.id, key))
            }
            Kind::Lost => Err(self.lost(key)),
            _ => {
                let seen = self.restored(primary, offset, block)?;
                self.resealed(key, primary, offset, block, seen)
            }
        }
    }

    /// A key that is lost. Whoever is told so can give it up, also if it has not heard of it
    /// otherwise yet.
    #[cold]
    pub(in crate::store) fn lost(&self, key: &KeyRef<'_>) -> OpError {
        self.store.record_damage(key.partition);
        OpError::Fail(StoreError::DataLost { partition: key.partition })
    }

    /// The version that a restored one stands for, as a place and a header.
    pub(in crate::store) fn restored(
        &self,
        replica: MemberId,
        offset: u64,
        block: &Block,
    ) -> OpResult<(u64, Block)> {
        let mut bytes = [0; RESTORED_HEAD];
        let start = offset + value_start(block.len);
        self.get(replica, start, &mut bytes)?;
        let Version { counter, writer } = decode_restored(&bytes);
        let len = block.len.saturating_sub(RESTORED_HEAD as u64);
        let block = Block { counter, writer, len, kind: Kind::Plain, ..*block };
        Ok((start + RESTORED_HEAD as u64 - value_start(len), block))
    }

    pub(in crate::store) fn read_provisional(
        &self,
        replica: MemberId,
        offset: u64,
        block: &Block,
    ) -> OpResult<Provisional> {
        let mut bytes = [0; PROVISIONAL_HEAD];
        self.get(replica, offset + value_start(block.len), &mut bytes)?;
        Provisional::decode(&bytes, block.len)
            .filter(|found| found.id.member.index() < self.store.job.members())
            .ok_or(OpError::Fail(StoreError::Corrupt {
                member: replica,
                what: "invalid provisional version",
            }))
    }

    /// How a transaction stands.
    pub(in crate::store) fn standing(&self, id: &IntentId) -> OpResult<IntentStanding> {
        let standing = self.read_intent(id)?;
        if standing.state != Some(IntentState::Joined) {
            return Ok(standing);
        }
        let state = match self.decision_of(standing.recovery)? {
            Some(true) => IntentState::Committed,
            Some(false) => IntentState::Aborted,
            // The recovery_decision is overwritten by the next recovery, when all intents of this
            // one have been ended: as long as this one is there, there was none.
            None if self.read_intent(id)?.state == Some(IntentState::Joined) => IntentState::Joined,
            None => return Err(OpError::Again),
        };
        Ok(IntentStanding { state: Some(state), ..standing })
    }

    /// What the intent itself says.
    pub(in crate::store) fn read_intent(&self, id: &IntentId) -> OpResult<IntentStanding> {
        let gone = IntentStanding { state: None, rank: 0, recovery: 0 };
        const JOINED: usize = INTENT_HEAD + 8;
        let mut bytes = [0; JOINED];
        let len = self.read_own(&intent_key(id.member, id.slot), &mut bytes, INTENT_HEAD)?;
        let Some(intent) =
            Intent::decode_head(&bytes[..len]).filter(|intent| intent.nonce == id.nonce)
        else {
            return Ok(gone);
        };
        let mut standing =
            IntentStanding { state: Some(intent.state), rank: intent.rank, recovery: 0 };
        if intent.state == IntentState::Joined {
            let len = self.read_own(&intent_key(id.member, id.slot), &mut bytes, JOINED)?;
            match Intent::decode_head(&bytes[..len]) {
                Some(again) if again.nonce == id.nonce && len == JOINED => {
                    standing.recovery =
                        u64::from_le_bytes(bytes[INTENT_HEAD..].try_into().expect("8 bytes"));
                }
                _ => return Err(OpError::Again),
            }
        }
        Ok(standing)
    }

    /// Whether a recovery is committed or aborted; `None` if the recovery_decision is about another
    /// one.
    fn decision_of(&self, recovery: u64) -> OpResult<Option<bool>> {
        let mut bytes = [0; RECOVERY_DECISION_HEAD];
        let len = self.read_own(&RecoveryDecision::key(), &mut bytes, RECOVERY_DECISION_HEAD)?;
        let recovery_decision =
            RecoveryDecision::decode_head(&bytes[..len]).filter(|&(about, _)| about == recovery);
        Ok(recovery_decision.map(|(_, is_committed)| is_committed))
    }

    /// The first bytes of one of the store's own records; how many, 0 if it has fewer than `len` or
    /// is not there.
    fn read_own(&self, key: &[u8], bytes: &mut [u8], len: usize) -> OpResult<usize> {
        let key = self.store.any_key_ref(key);
        let config = self.config(key.partition)?;
        let Some(offset) = self.find_head(config, &key, None)?.and_then(|head| head.offset())
        else {
            return Ok(0);
        };
        let primary = config.replicas[config.primary];
        let block = self.read_block(primary, offset)?;
        if block.kind == Kind::Lost {
            return Err(self.lost(&key));
        }
        if block.is_deleted || block.len < len as u64 {
            return Ok(0);
        }
        self.get(primary, offset + value_start(block.len), &mut bytes[..len])?;
        Ok(len)
    }
}

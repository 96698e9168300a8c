//! The visible version of a record that a transaction has changed or locked, for readers and
//! writers.
//!
//! The value of a provisional version holds the old and the new value and names an *intent*. The
//! state of the intent decides which of them is visible (docs/protocol/transactions.md, "Readers").
//! `tx` writes, decides and clears intents. This module only reads them.

use crate::engine::{Epoch, MemberId};
use crate::store::error::StoreError;
use crate::store::mutant::mutant;
use crate::store::operation::configuration::Configuration;
use crate::store::operation::error::Blocker;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::record::key::KeyRef;
use crate::store::record::state::RecordOp;
use crate::store::segment::intent::{
    INTENT_HEAD, Intent, IntentId, IntentState, PROVISIONAL_HEAD, Provisional,
    RECOVERY_DECISION_HEAD, RESTORED_HEAD, RecoveryDecision, decode_restored, intent_key,
};
use crate::store::segment::layout::{Block, Kind, value_start};
use crate::store::value::Version;

/// The length of a *buried* intent: the tombstone of an intent that was aborted for want of memory
/// has the nonce of the transaction as its value. A block for a tombstone has room for it.
pub(in crate::store) const BURIED_LEN: usize = 8;

/// The state of a transaction, as its intent says.
pub(in crate::store) struct IntentStanding {
    /// `None`: the intent does not exist any more. `Joined`: the intent belongs to a coordinated
    /// recovery without a recovery decision.
    pub(in crate::store) state: Option<IntentState>,
    /// The number of failed attempts of the transaction.
    pub(in crate::store) attempts: u32,
    /// The epoch from before the intent was written first.
    pub(in crate::store) epoch: Epoch,
    /// The coordinated recovery that the intent is joined to, or 0.
    pub(in crate::store) recovery: u64,
}

/// Which reader asks for the visible version of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum Reader {
    Any,
    /// The transaction with this intent itself.
    Committer(IntentId),
    /// The list of a consistent cut, while the store is frozen: a provisional version without an
    /// intent shows its old value.
    Cut,
}

impl<'a> RecordOp<'a> {
    /// The version that a reader sees in a block at the primary, as an offset and a header. The
    /// offset is chosen so that the value lies where a plain version with this header would have
    /// it.
    #[cold]
    #[inline(never)]
    pub(in crate::store) fn visible(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        offset: u64,
        block: &Block,
    ) -> OpResult<(u64, Block)> {
        self.visible_to(Reader::Any, config, key, offset, block)
    }

    /// The version that this reader sees, as [`RecordOp::visible`] returns it.
    pub(in crate::store) fn visible_to(
        &self,
        reader: Reader,
        config: &Configuration,
        key: &KeyRef<'_>,
        offset: u64,
        block: &Block,
    ) -> OpResult<(u64, Block)> {
        if block.kind == Kind::Plain {
            return Ok((offset, *block));
        }
        let seen = self.seen_by(reader, config, key, offset, block)?;
        self.resealed(key, config.primary_member(), offset, block, seen)
    }

    /// The visible version, without a checksum of its own.
    fn seen_by(
        &self,
        reader: Reader,
        config: &Configuration,
        key: &KeyRef<'_>,
        offset: u64,
        block: &Block,
    ) -> OpResult<(u64, Block)> {
        let primary = config.primary_member();
        match block.kind {
            Kind::Plain => return Ok((offset, *block)),
            Kind::Restored => return self.restored(primary, offset, block),
            Kind::Lost => return Err(self.lost(key)),
            Kind::Provisional => {}
        }
        let found = self.read_provisional(primary, offset, block)?;
        let standing = self.standing(&found.id)?;
        // The intent is in another partition. Its state counts only if the view is unchanged.
        if !self.is_current() {
            return Err(OpError::Again);
        }
        let start = offset + value_start(block.len);
        let (old_at, new_at) = found.places();
        let old = old_version(&found, block);
        match standing.state {
            Some(IntentState::Committed) => {
                // The committer may be stopped before it rings. No reader may then know more than
                // the waiters, so this reader rings.
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
            // A key of the transaction may have been lost in a newer view, and its loss accepted. A
            // caller that knows the new life of that key must not find the old value here and then
            // the new value.
            Some(IntentState::Pending)
                if standing.epoch < self.epoch
                    && reader != Reader::Cut
                    && reader != Reader::Committer(found.id)
                    && !mutant("tx-read-older") =>
            {
                Err(blocked(found.id, key))
            }
            Some(IntentState::Pending | IntentState::Aborted | IntentState::Joined) => {
                Ok((start + old_at - value_start(old.len), old))
            }
            Some(IntentState::Validating) if mutant("tx-read-past") => {
                Ok((start + old_at - value_start(old.len), old))
            }
            None if reader == Reader::Cut => Ok((start + old_at - value_start(old.len), old)),
            Some(IntentState::Validating) | None => Err(blocked(found.id, key)),
        }
    }

    /// The version that a writer finds, if no transaction blocks it. A provisional version of an
    /// aborted transaction blocks no writer: *roll_back* needs room for the old value, and a writer
    /// that replaces or deletes the value does not.
    #[cold]
    #[inline(never)]
    pub(in crate::store::record) fn free_of_transactions(
        &self,
        key: &KeyRef<'_>,
        primary: MemberId,
        offset: u64,
        block: &Block,
    ) -> OpResult<(u64, Block)> {
        match block.kind {
            Kind::Provisional => {
                let found = self.read_provisional(primary, offset, block)?;
                let standing = self.standing(&found.id)?;
                // The intent is in another partition. Its state counts only if the view is
                // unchanged.
                if !self.is_current() {
                    return Err(OpError::Again);
                }
                if standing.state != Some(IntentState::Aborted) {
                    return Err(blocked(found.id, key));
                }
                let old = old_version(&found, block);
                let start = offset + value_start(block.len) + found.places().0;
                let seen = (start - value_start(old.len), old);
                self.resealed(key, primary, offset, block, seen)
            }
            Kind::Lost => Err(self.lost(key)),
            _ => {
                let seen = self.restored(primary, offset, block)?;
                self.resealed(key, primary, offset, block, seen)
            }
        }
    }

    /// The error for a lost key. The damage is recorded first, so that a caller that gets the error
    /// can accept the loss, also if this member has not heard of it yet.
    #[cold]
    pub(in crate::store) fn lost(&self, key: &KeyRef<'_>) -> OpError {
        self.store.record_damage(key.partition);
        OpError::Fail(StoreError::DataLost { partition: key.partition })
    }

    /// The version that a restored version brings back, as an offset and a header.
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

    /// Reads and checks the head of a provisional version.
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

    /// The state of a transaction. The recovery decision decides a joined intent.
    pub(in crate::store) fn standing(&self, id: &IntentId) -> OpResult<IntentStanding> {
        let standing = self.read_intent(id)?;
        if standing.state != Some(IntentState::Joined) {
            return Ok(standing);
        }
        let state = match self.decision_of(standing.recovery)? {
            Some(true) => IntentState::Committed,
            Some(false) => IntentState::Aborted,
            // The next recovery overwrites the recovery decision only when all intents of this
            // recovery have been ended. So as long as this intent is there, no decision was made.
            None if self.read_intent(id)?.state == Some(IntentState::Joined) => IntentState::Joined,
            None => return Err(OpError::Again),
        };
        Ok(IntentStanding { state: Some(state), ..standing })
    }

    /// The state in the intent itself. A joined intent is read again, with the number of its
    /// recovery.
    pub(in crate::store) fn read_intent(&self, id: &IntentId) -> OpResult<IntentStanding> {
        let gone = IntentStanding { state: None, attempts: 0, epoch: Epoch(0), recovery: 0 };
        const JOINED: usize = INTENT_HEAD + 8;
        let mut bytes = [0; JOINED];
        let len = self.read_own(&intent_key(id.member, id.slot), &mut bytes, INTENT_HEAD)?;
        if len == BURIED_LEN && bytes[..len] == id.nonce.to_le_bytes() {
            return Ok(IntentStanding { state: Some(IntentState::Aborted), ..gone });
        }
        let Some(intent) =
            Intent::decode_head(&bytes[..len]).filter(|intent| intent.nonce == id.nonce)
        else {
            return Ok(gone);
        };
        let (state, attempts, epoch) = (Some(intent.state), intent.attempts, intent.epoch);
        let mut standing = IntentStanding { state, attempts, epoch, recovery: 0 };
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

    /// Whether a recovery is committed or aborted. `None` if the recovery decision belongs to
    /// another recovery.
    fn decision_of(&self, recovery: u64) -> OpResult<Option<bool>> {
        let mut bytes = [0; RECOVERY_DECISION_HEAD];
        let len = self.read_own(&RecoveryDecision::key(), &mut bytes, RECOVERY_DECISION_HEAD)?;
        let recovery_decision =
            RecoveryDecision::decode_head(&bytes[..len]).filter(|&(about, _)| about == recovery);
        Ok(recovery_decision.map(|(_, is_committed)| is_committed))
    }

    /// Reads the first `len` bytes of a record of the store's own. Returns `len`, or 0 if the
    /// record has fewer bytes or does not exist. Of a buried intent it reads the nonce, and returns
    /// [`BURIED_LEN`].
    fn read_own(&self, key: &[u8], bytes: &mut [u8], len: usize) -> OpResult<usize> {
        let key = self.store.any_key_ref(key);
        let config = self.config(key.partition)?;
        let Some(offset) = self.find_head(config, &key, None)?.and_then(|head| head.offset())
        else {
            return Ok(0);
        };
        let primary = config.primary_member();
        let block = self.read_block(primary, offset)?;
        if block.kind == Kind::Lost {
            return Err(self.lost(&key));
        }
        let len = if block.is_deleted { BURIED_LEN } else { len };
        if block.len < len as u64 {
            return Ok(0);
        }
        self.get(primary, offset + value_start(block.len), &mut bytes[..len])?;
        Ok(len)
    }
}

/// The header of the version before a provisional version.
fn old_version(found: &Provisional, block: &Block) -> Block {
    Block {
        counter: found.old.version.counter,
        writer: found.old.version.writer,
        len: found.old_len,
        is_deleted: !found.old.exists,
        kind: Kind::Plain,
        owner: found.old_owner,
        ..*block
    }
}

/// The error of an operation whose key has a provisional version of this transaction.
pub(in crate::store) fn blocked(id: IntentId, key: &KeyRef<'_>) -> OpError {
    OpError::Blocked(Box::new(Blocker { id, key: key.key.to_vec() }))
}

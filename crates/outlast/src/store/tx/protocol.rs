//! Steps X1 to X6, by the committer and by those who find its transaction in their way.

use super::record::{
    INTENT_HEAD, Intent, IntentId, Mark, New, PROVISIONAL_HEAD, Provisional, RESTORED_HEAD, State,
    VERDICT_HEAD, Verdict, decode_restored, encode_restored, intent_key,
};
use crate::engine::{MemberId, MemberSet, Time};
use crate::store::access::{Halt, Op, Step};
use crate::store::index::KeyRef;
use crate::store::layout::{Block, Kind, value_start};
use crate::store::loss::INCARNATION_SHIFT;
use crate::store::mutant::mutant;
use crate::store::open::Inner;
use crate::store::placement::hash_key;
use crate::store::steps::{self, within};
use crate::store::write::{Change, Config, Remembered, Shape};
use crate::store::{StoreError, StoreResult, Value, Version};
use std::time::Duration;

/// How long a transaction may be in the way of others before they abort it, the first time that it is tried.
const PATIENCE: Duration = Duration::from_micros(200);
/// How often that doubles: to a tenth of a second.
const DOUBLINGS: u32 = 9;
/// How often one who waits looks.
const LOOK: Duration = Duration::from_micros(20);

/// Which attempt at a transaction asks.
#[derive(Clone, Copy)]
pub(super) struct Attempt {
    /// How often it has failed.
    pub(super) rank: u32,
    /// The attempt at a recovery that it is joined to.
    pub(super) recovery: Option<u64>,
}

/// What keeps an operation from going on.
#[derive(Debug)]
pub(in crate::store) struct Blocker {
    id: IntentId,
    key: Vec<u8>,
}

/// The transaction that a call waits for, and until when.
pub(in crate::store) type Blocked = Option<(IntentId, Time)>;

/// What was read of a key.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) mark: Mark,
    pub(super) value: Option<Value>,
}

/// How a transaction stands, as its intent says.
pub(super) struct Standing {
    /// `None`: there is no such intent any more. `Joined`: to a recovery for which there is no verdict.
    pub(super) state: Option<State>,
    rank: u32,
    /// The recovery that it is joined to, or 0.
    recovery: u64,
}

impl Op<'_> {
    fn key_ref<'k>(&self, key: &'k [u8]) -> KeyRef<'k> {
        let hash = hash_key(key);
        KeyRef { key, hash, partition: self.store.placement.partition(hash) }
    }

    fn read_provisional(&self, home: MemberId, offset: u64, block: &Block) -> Step<Provisional> {
        let mut bytes = [0; PROVISIONAL_HEAD];
        self.get(home, offset + value_start(block.len), &mut bytes)?;
        Provisional::decode(&bytes, block.len)
            .filter(|found| found.id.member.index() < self.store.job.members())
            .ok_or(Halt::Fail(StoreError::Corrupt {
                member: home,
                what: "a provisional version cannot be",
            }))
    }

    /// The version that a restored one stands for, as a place and a header.
    fn restored(&self, home: MemberId, offset: u64, block: &Block) -> Step<(u64, Block)> {
        let mut bytes = [0; RESTORED_HEAD];
        let start = offset + value_start(block.len);
        self.get(home, start, &mut bytes)?;
        let Version { counter, writer } = decode_restored(&bytes);
        let len = block.len.saturating_sub(RESTORED_HEAD as u64);
        let block = Block { counter, writer, len, kind: Kind::Plain, ..*block };
        Ok((start + RESTORED_HEAD as u64 - value_start(len), block))
    }

    /// How a transaction stands.
    fn standing(&self, id: &IntentId) -> Step<Standing> {
        let standing = self.said_by_intent(id)?;
        if standing.state != Some(State::Joined) {
            return Ok(standing);
        }
        let state = match self.verdict_of(standing.recovery)? {
            Some(true) => State::Committed,
            Some(false) => State::Aborted,
            // The verdict is overwritten by the next recovery, when all intents of this one have been ended: as long as this
            // one is there, there was none.
            None if self.said_by_intent(id)?.state == Some(State::Joined) => State::Joined,
            None => return Err(Halt::Again),
        };
        Ok(Standing { state: Some(state), ..standing })
    }

    /// What the intent itself says.
    fn said_by_intent(&self, id: &IntentId) -> Step<Standing> {
        let gone = Standing { state: None, rank: 0, recovery: 0 };
        const JOINED: usize = INTENT_HEAD + 8;
        let mut bytes = [0; JOINED];
        let len = self.read_own(&intent_key(id.member, id.slot), &mut bytes, INTENT_HEAD)?;
        let Some(intent) =
            Intent::decode_head(&bytes[..len]).filter(|intent| intent.nonce == id.nonce)
        else {
            return Ok(gone);
        };
        let mut standing = Standing { state: Some(intent.state), rank: intent.rank, recovery: 0 };
        if intent.state == State::Joined {
            let len = self.read_own(&intent_key(id.member, id.slot), &mut bytes, JOINED)?;
            match Intent::decode_head(&bytes[..len]) {
                Some(again) if again.nonce == id.nonce && len == JOINED => {
                    standing.recovery =
                        u64::from_le_bytes(bytes[INTENT_HEAD..].try_into().expect("8 bytes"));
                }
                _ => return Err(Halt::Again),
            }
        }
        Ok(standing)
    }

    /// Whether a recovery is committed or aborted; `None` if the verdict is about another one.
    fn verdict_of(&self, recovery: u64) -> Step<Option<bool>> {
        let mut bytes = [0; VERDICT_HEAD];
        let len = self.read_own(&Verdict::key(), &mut bytes, VERDICT_HEAD)?;
        let verdict = Verdict::decode_head(&bytes[..len]).filter(|&(about, _)| about == recovery);
        Ok(verdict.map(|(_, is_committed)| is_committed))
    }

    /// The first bytes of one of the store's own records; how many, 0 if it has fewer than `len` or is not there.
    fn read_own(&self, key: &[u8], bytes: &mut [u8], len: usize) -> Step<usize> {
        let key = self.key_ref(key);
        let config = self.config(key.partition)?;
        let Some(offset) = self.find_head(config, &key, None)?.and_then(|head| head.offset())
        else {
            return Ok(0);
        };
        let primary = config.homes[config.primary];
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

    /// What a reader is to see of a version at the primary, as a place and a header; the place is such that the value is
    /// where that of a plain version with this header would be.
    #[cold]
    #[inline(never)]
    pub(in crate::store) fn visible(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        offset: u64,
        block: &Block,
    ) -> Step<(u64, Block)> {
        self.visible_as(config, key, offset, block, false)
    }

    /// The same while the store is frozen (see `cut`): then no living transaction is in doubt. One of the dead is aborted, and
    /// what has lost its intent is as it was before.
    pub(in crate::store) fn visible_in_frost(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        offset: u64,
        block: &Block,
    ) -> Step<(u64, Block)> {
        match self.visible_as(config, key, offset, block, true) {
            Err(Halt::Blocked(blocker)) => {
                self.store.abort_intent(blocker.id)?;
                self.visible_as(config, key, offset, block, true)
            }
            other => other,
        }
    }

    fn visible_as(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        offset: u64,
        block: &Block,
        is_frozen: bool,
    ) -> Step<(u64, Block)> {
        if block.kind == Kind::Plain {
            return Ok((offset, *block));
        }
        let seen = self.seen_in(config, key, offset, block, is_frozen)?;
        self.resealed(key, config.homes[config.primary], offset, block, seen)
    }

    fn seen_in(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        offset: u64,
        block: &Block,
        is_frozen: bool,
    ) -> Step<(u64, Block)> {
        let primary = config.homes[config.primary];
        match block.kind {
            Kind::Plain => return Ok((offset, *block)),
            Kind::Restored => return self.restored(primary, offset, block),
            Kind::Lost => return Err(self.lost(key)),
            Kind::Provisional => {}
        }
        let found = self.read_provisional(primary, offset, block)?;
        let standing = self.standing(&found.id)?;
        // The intent is in another partition: what was read of it counts only if the view is the same.
        if !self.is_current() {
            return Err(Halt::Again);
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
            Some(State::Committed) => {
                // Its committer may be stopped before it rings, and then nobody may know more than those who wait.
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
            Some(State::Pending | State::Aborted | State::Joined) => {
                Ok((start + old_at - value_start(old.len), old))
            }
            Some(State::Doubt) if mutant("tx-read-past") => {
                Ok((start + old_at - value_start(old.len), old))
            }
            None if is_frozen => Ok((start + old_at - value_start(old.len), old)),
            Some(State::Doubt) | None => Err(blocked(found.id, key)),
        }
    }

    /// A key that is lost. Whoever is told so can give it up, also if it has not heard of it otherwise yet.
    #[cold]
    fn lost(&self, key: &KeyRef<'_>) -> Halt {
        self.store.note_damage(key.partition);
        Halt::Fail(StoreError::DataLost { partition: key.partition })
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
    ) -> Step<(u64, Block)> {
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

    fn read_bytes(&self, home: MemberId, offset: u64, len: u64) -> Step<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        self.get(home, offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads a key for a transaction.
    pub(super) fn look(&mut self, key: &KeyRef<'_>, wants_value: bool) -> Step<Seen> {
        let config = self.config(key.partition)?;
        let primary = config.homes[config.primary];
        let (mut found, mut floor) = (self.find_visible(config, key)?, 0);
        if found.is_none_or(|(_, block)| block.is_deleted) {
            // The floor is looked at before the key: whatever is made and deleted after that is above it.
            floor = self.floor(primary, key.partition)?;
            found = self.find_visible(config, key)?;
        }
        let seen = match found.filter(|(_, block)| !block.is_deleted) {
            Some((offset, block)) => {
                let mut bytes = Vec::new();
                if wants_value {
                    bytes.resize(block.len as usize, 0);
                    self.get_value(key.key, primary, offset, &block, &mut bytes)?;
                }
                let mark = Mark { exists: true, version: block.version() };
                Seen {
                    mark,
                    value: Some(Value { bytes, version: block.version(), owner: block.owner }),
                }
            }
            None => {
                let tombstone = found.map_or(0, |(_, block)| block.counter);
                Seen { mark: absent(config, tombstone.max(floor)), value: None }
            }
        };
        if self.is_current() || self.is_still(config, key.partition)? {
            Ok(seen)
        } else {
            Err(Halt::Again)
        }
    }

    /// What a reader is to see of a key, which may be that it is deleted.
    fn find_visible(&self, config: &Config, key: &KeyRef<'_>) -> Step<Option<(u64, Block)>> {
        let Some(offset) = self.find_head(config, key, None)?.and_then(|head| head.offset()) else {
            return Ok(None);
        };
        let block = self.read_block(config.homes[config.primary], offset)?;
        self.visible(config, key, offset, &block).map(Some)
    }

    /// X2 for one key: puts a provisional version in the place of what the transaction has read, or of anything if it has
    /// not read the key. The version that the key has once the transaction is committed; `None` if it has changed.
    fn lock_key(
        &mut self,
        key: &KeyRef<'_>,
        recovery: Option<u64>,
        id: IntentId,
        seen: Option<Mark>,
        new: impl Fn(Option<MemberId>) -> New<'static>,
        new_bytes: &[u8],
    ) -> Step<Option<Version>> {
        if recovery.is_none() {
            self.store.check_gate(self.epoch)?;
        }
        if self.store.frost.is_set() {
            return Err(Halt::Frozen);
        }
        let config = self.config(key.partition)?;
        let primary = config.homes[config.primary];
        let before = self.find_settled(config, key, None, false)?;
        let (old, old_owner, value) = match before.found() {
            None => {
                (absent(config, self.floor(primary, key.partition)?), self.store.me(), Vec::new())
            }
            Some((_, block)) if block.is_deleted => {
                let floor = self.floor(primary, key.partition)?;
                (absent(config, block.counter.max(floor)), block.owner, Vec::new())
            }
            Some((offset, block)) if block.kind == Kind::Provisional => {
                let found = self.read_provisional(primary, offset, &block)?;
                if found.id != id {
                    if let Some(recovery) = recovery {
                        self.check_overlap(key, recovery, &found.id)?;
                    }
                    return Err(blocked(found.id, key));
                }
                self.check_whole(key, primary, offset, &block)?;
                let at = offset + value_start(block.len) + found.places().0;
                (found.old, found.old_owner, self.read_bytes(primary, at, found.old_len)?)
            }
            Some((_, block)) if block.kind == Kind::Lost => {
                return Err(self.lost(key));
            }
            Some((offset, block)) => {
                self.check_whole(key, primary, offset, &block)?;
                let (offset, block) = match block.kind {
                    Kind::Restored => self.restored(primary, offset, &block)?,
                    _ => (offset, block),
                };
                let value = self.read_bytes(primary, offset + value_start(block.len), block.len)?;
                (Mark { exists: true, version: block.version() }, block.owner, value)
            }
        };
        if seen.is_some_and(|seen| seen != old) && !mutant("tx-lost-update") {
            return Ok(None);
        }
        let new = match new(old.exists.then_some(old_owner)) {
            New::Value { owner, .. } => New::Value { bytes: new_bytes, owner },
            other => other,
        };
        let bytes = Provisional::encode(id, old, old_owner, &value, new);
        let shape = Shape {
            kind: Kind::Provisional,
            is_deleted: false,
            owner: old_owner,
            author: None,
            is_above_floor: new == New::Deleted,
        };
        let written = self.replace(config, key, before, &bytes, shape)?;
        Ok(written.map(|version| Version { counter: version.counter + 1, ..version }))
    }

    /// An error if a key that a recovery's procedure changes is changed by another member's procedure.
    fn check_overlap(&self, key: &KeyRef<'_>, recovery: u64, other: &IntentId) -> Step<()> {
        let standing = self.standing(other)?;
        if standing.state != Some(State::Joined) || standing.recovery != recovery {
            return Ok(());
        }
        let reason = format!(
            "the procedures of {} and {} both change the key {:?}; let only one of them do it, such as the heir",
            self.store.me(),
            other.member,
            String::from_utf8_lossy(key.key)
        );
        Err(Halt::Fail(StoreError::RecoveryFailed { reason }))
    }

    /// X5 for one key: puts the value after, or the one before, in the place of a transaction's provisional version, if that
    /// is there; whether it was. Whoever does it makes the same version.
    fn resolve(&mut self, key: &KeyRef<'_>, id: IntentId, is_committed: bool) -> Step<bool> {
        if self.store.frost.is_set() {
            return Err(Halt::Frozen);
        }
        let config = self.config(key.partition)?;
        let primary = config.homes[config.primary];
        let before = self.find_settled(config, key, None, false)?;
        let Some((offset, block)) =
            before.found().filter(|(_, block)| block.kind == Kind::Provisional)
        else {
            return if self.is_still(config, key.partition)? {
                Ok(false)
            } else {
                Err(Halt::Again)
            };
        };
        let found = self.read_provisional(primary, offset, &block)?;
        if found.id != id {
            return if self.is_still(config, key.partition)? {
                Ok(false)
            } else {
                Err(Halt::Again)
            };
        }
        self.check_whole(key, primary, offset, &block)?;
        let start = offset + value_start(block.len);
        let (old_at, new_at) = found.places();
        let (author, is_above_floor) = (Some(id.member), false);
        let shape =
            |kind, is_deleted, owner| Shape { kind, is_deleted, owner, author, is_above_floor };
        let (bytes, shape) = match found.new_len.filter(|_| is_committed) {
            Some(Some(len)) => (
                self.read_bytes(primary, start + new_at, len)?,
                shape(Kind::Plain, false, found.new_owner),
            ),
            Some(None) => (Vec::new(), shape(Kind::Plain, true, found.old_owner)),
            None if !found.old.exists => (Vec::new(), shape(Kind::Plain, true, found.old_owner)),
            None => {
                let value = self.read_bytes(primary, start + old_at, found.old_len)?;
                let bytes = encode_restored(found.old.version, &value);
                (bytes, shape(Kind::Restored, false, found.old_owner))
            }
        };
        self.replace(config, key, before, &bytes, shape).map(|_| true)
    }
}

/// The mark of a key that does not exist: the greater of its tombstone's counter and the floor of its partition, so that a key
/// that was made and deleted meanwhile has another one. That holds for one primary: the next one may have a lower floor, if the last
/// one died while it was raised everywhere. So the configuration is a part of it.
fn absent(config: &Config, counter: u64) -> Mark {
    Mark { exists: false, version: Version { counter, writer: MemberId(config.stamp as u32) } }
}

fn blocked(id: IntentId, key: &KeyRef<'_>) -> Halt {
    Halt::Blocked(Box::new(Blocker { id, key: key.key.to_vec() }))
}

impl Inner {
    /// How a transaction stands.
    pub(super) fn standing(&self, id: &IntentId) -> StoreResult<Standing> {
        self.run(|op| {
            let standing = op.standing(id)?;
            if op.is_current() { Ok(standing) } else { Err(Halt::Again) }
        })
    }

    /// Whether the record of an intent is lost, and not merely the verdict that it depends on.
    pub(super) fn is_intent_lost(&self, member: MemberId, slot: u32) -> bool {
        let id = IntentId { member, slot, nonce: 0 };
        matches!(self.run(|op| op.said_by_intent(&id)), Err(StoreError::DataLost { .. }))
    }

    /// Gets a transaction out of the way of a call, or waits a little for that. `rank` is how often the caller's own
    /// transaction has failed, 0 for calls.
    #[cold]
    pub(in crate::store) fn clear(
        &self,
        blocker: &Blocker,
        rank: u32,
        blocked: &mut Blocked,
    ) -> StoreResult<()> {
        let (job, id) = (&self.job, blocker.id);
        let standing = self.standing(&id)?;
        if standing.state.is_none_or(State::is_decided) {
            // Nobody waits here for the end of a frost: who reads needs no more than the decision, and may itself be on its
            // way to one that the frost waits for (see `cut`). Only what has lost its intent stays as it is until then.
            let result =
                self.resolve_in(&blocker.key, id, standing.state == Some(State::Committed), false);
            if self.frost.is_set() {
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
    pub(super) fn abort_intent(&self, id: IntentId) -> StoreResult<()> {
        let _step = within(steps::Step::TxAbort);
        let key = intent_key(id.member, id.slot);
        let mut joined = None;
        self.write(&key, true, |current, bytes| {
            let intent = current
                .and_then(|_| Intent::decode(bytes))
                .filter(|intent| intent.nonce == id.nonce);
            joined = intent
                .as_ref()
                .filter(|intent| intent.state == State::Joined)
                .map(|one| one.recovery);
            Ok(match intent {
                // It shares the fate of its recovery.
                Some(_) if joined.is_some() => Change::Nothing,
                Some(intent) if !intent.state.is_decided() || mutant("tx-abort-late") => {
                    Change::Owned(Intent { state: State::Aborted, ..intent }.encode())
                }
                _ => Change::Nothing,
            })
        })?;
        if let Some(recovery) = joined {
            self.decide(recovery, None, "a part of it was given up")?;
        }
        Ok(())
    }

    /// The verdict about an attempt at a recovery: committed, with the members that the store has then recovered from, or
    /// aborted; unless there is one already, which it is then.
    pub(in crate::store) fn decide(
        &self,
        recovery: u64,
        recovered: Option<&MemberSet>,
        reason: &str,
    ) -> StoreResult<Verdict> {
        let mut verdict = None;
        self.write(&Verdict::key(), true, |current, bytes| {
            let found = current.and_then(|_| Verdict::decode(bytes));
            let is_there = found.as_ref().is_some_and(|found| found.recovery == recovery);
            let made = match found {
                Some(found) if is_there => found,
                found => Verdict {
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
            verdict = Some(made);
            Ok(if is_there { Change::Nothing } else { Change::Owned(bytes) })
        })?;
        Ok(verdict.expect("the verdict was looked at"))
    }

    /// The last verdict.
    pub(in crate::store) fn verdict(&self) -> StoreResult<Option<Verdict>> {
        let key = Verdict::key();
        let found = self.run(|op| op.look(&self.any_key_ref(&key), true))?;
        Ok(found.value.and_then(|value| Verdict::decode(value.bytes())))
    }

    /// X5 for one key; whether it was left to do. If its partition is lost there is nothing.
    pub(super) fn resolve(
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
        let resolved = self.run(|op| match op.resolve(&key, id, is_committed) {
            Err(Halt::Frozen) if !waits => Ok(false),
            other => other,
        });
        match resolved {
            Err(StoreError::DataLost { .. }) => Ok(false),
            other => other,
        }
    }

    /// A key that was looked at before.
    fn any_key_ref<'k>(&self, key: &'k [u8]) -> KeyRef<'k> {
        let hash = hash_key(key);
        KeyRef { key, hash, partition: self.placement.partition(hash) }
    }

    /// Whether a transaction has happened; if that is not decided, it does not.
    pub(super) fn decision(&self, id: IntentId) -> StoreResult<bool> {
        let mut standing = self.standing(&id)?;
        if standing.state.is_some_and(|state| !state.is_decided()) {
            self.abort_intent(id)?;
            standing = self.standing(&id)?;
        }
        Ok(standing.state == Some(State::Committed))
    }

    /// Brings a transaction to its end, whatever it is, at all its keys.
    pub(super) fn conclude(&self, id: IntentId, keys: &[Vec<u8>]) -> StoreResult<()> {
        let is_committed = self.decision(id)?;
        keys.iter().try_for_each(|key| self.resolve(key, id, is_committed).map(drop))
    }

    /// Whether a transaction has locked a key.
    pub(in crate::store) fn is_locked(&self, key: &[u8]) -> StoreResult<bool> {
        let key = self.key_ref(key)?;
        self.run_call(&key, |op| {
            let config = op.config(key.partition)?;
            let found = op.find(config, config.primary, &key)?.and_then(|(_, head)| head.offset());
            let block = found
                .map(|offset| op.read_block(config.homes[config.primary], offset))
                .transpose()?;
            Ok(block.is_some_and(|block| block.kind == Kind::Provisional))
        })
    }

    /// X2 for one key; see [`Op::lock_key`].
    pub(super) fn lock_key(
        &self,
        by: Attempt,
        key: &[u8],
        id: IntentId,
        seen: Option<Mark>,
        new: impl Fn(Option<MemberId>) -> New<'static>,
        new_bytes: &[u8],
    ) -> StoreResult<Option<Version>> {
        let _step = within(steps::Step::TxLock);
        let key = self.key_ref(key)?;
        self.run_as(by.rank, |op| op.lock_key(&key, by.recovery, id, seen, &new, new_bytes))
    }

    /// Reads a key for a transaction.
    pub(super) fn look(&self, by: Attempt, key: &[u8], wants_value: bool) -> StoreResult<Seen> {
        let key = self.key_ref(key)?;
        self.run_as(by.rank, |op| {
            if by.recovery.is_none() {
                self.check_gate(op.epoch)?;
            }
            op.look(&key, wants_value)
        })
    }

    /// Whether neither a key nor its partition has been lost, or given up, since this version was made; otherwise it is
    /// `DataLost`. If it is lost, and not given up, whoever asks is told so.
    pub(super) fn check_incarnation(&self, key: &[u8], version: Version) -> StoreResult<()> {
        let key = self.any_key_ref(key);
        let counter = self.run(|op| {
            let config = op.config(key.partition)?;
            let primary = config.homes[config.primary];
            // Not settled first, for which a full home may have no room: whatever version the primary names was made in the
            // incarnation that the key is in.
            let found = op.find(config, config.primary, &key)?.and_then(|(_, head)| head.offset());
            let counter = match found {
                Some(offset) => op.read_block(primary, offset)?.counter,
                // The floor tells only where there is nothing: what was lost of other keys has raised it, too.
                None => op.floor(primary, key.partition)?,
            };
            if op.is_current() { Ok(counter) } else { Err(Halt::Again) }
        })?;
        if counter >> INCARNATION_SHIFT > version.counter >> INCARNATION_SHIFT {
            return Err(StoreError::DataLost { partition: key.partition });
        }
        Ok(())
    }

    /// X1 and X4: writes the own intent, over what this member has written there last, if that is still there.
    pub(super) fn write_intent(
        &self,
        id: IntentId,
        memory: &mut Remembered,
        expected: Option<Version>,
        intent: &Intent,
    ) -> StoreResult<Version> {
        let key = intent_key(id.member, id.slot);
        let key = self.key_ref(&key)?;
        let bytes = intent.encode();
        let written = self.write_again(&key, memory, false, |current, _| {
            let found = current.map(|current| current.version);
            if expected.is_some() && expected != found {
                return Err(StoreError::Conflict { found });
            }
            Ok(Change::Put(&bytes))
        })?;
        Ok(written.expect("a put changes the key"))
    }

    /// X6 for the intent of a dead member: brings it to its end, and removes it.
    pub(super) fn end_intent_of_the_dead(&self, member: MemberId, slot: u32) -> StoreResult<()> {
        let _step = within(steps::Step::TxRelease);
        let key = intent_key(member, slot);
        let found = self.run(|op| op.look(&self.any_key_ref(&key), true))?;
        let Some(value) = found.value else { return Ok(()) };
        if let Some(intent) = Intent::decode(value.bytes()) {
            self.conclude(IntentId { member, slot, nonce: intent.nonce }, &intent.keys)?;
        }
        // Others may do the same; the dead write no other there.
        self.write(&key, false, |current, _| {
            Ok(if current.is_some() { Change::Delete } else { Change::Nothing })
        })?;
        Ok(())
    }
}

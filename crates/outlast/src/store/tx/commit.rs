//! The steps of the committer: *intent*, *lock*, *validate*, *commit*.
//!
//! *apply* and *release* follow in [`super::resolve`] and [`super::cleanup`].

use crate::engine::{Epoch, MemberId, MemberSet, View};
use crate::store::error::{StoreError, StoreResult};
use crate::store::mutant::mutant;
use crate::store::operation::configuration::Configuration;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::placement::hash_key;
use crate::store::record::fast_change::{FastApply, FastLock};
use crate::store::record::key::KeyRef;
use crate::store::record::key_locations::ShortLocation;
use crate::store::record::location::CachedLocation;
use crate::store::record::state::RecordOp;
use crate::store::record::version_floor::INCARNATION_SHIFT;
use crate::store::record::visibility::{Reader, blocked};
use crate::store::record::write::{Change, CurrentVersion, VersionAttributes};
use crate::store::segment::intent::{
    EncodedIntent, Intent, IntentId, IntentState, New, ObservedVersion, Provisional,
    RecoveryDecision, intent_key,
};
use crate::store::segment::layout::{Block, Kind, value_start};
use crate::store::steps::{self, within};
use crate::store::tx::cleanup::{LATER, apply};
use crate::store::tx::state::{Committing, TxState};
use crate::store::tx::transaction::{
    Active, BROKEN, COMMITTED, FAILED, LockedKeys, Transaction, Write,
};
use crate::store::value::{Value, Version};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The attempt at a transaction for which a key is read or locked.
#[derive(Clone, Copy)]
pub(in crate::store) struct Attempt {
    /// The number of failed attempts before it.
    pub(in crate::store) attempts: u32,
    /// The attempt at a coordinated recovery that the transaction is joined to.
    pub(in crate::store) recovery: Option<u64>,
    /// The transaction as a reader.
    pub(in crate::store) reader: Reader,
}

/// A coordinated recovery that is decided and committed.
#[derive(Clone, Copy)]
pub(in crate::store::tx) struct Decided<'v> {
    attempt: u64,
    /// Its view: under it all replicas were complete before the procedures ran.
    view: &'v View,
}

/// What a transaction has read of a key. The value is `None` if the key does not exist.
#[derive(Clone, Debug)]
pub(in crate::store) struct Observation {
    observed: ObservedVersion,
    pub(in crate::store) value: Option<Value>,
}

/// A key that the transaction has locked and changes.
pub(in crate::store) struct Lock {
    /// The hash of the key.
    hash: u64,
    partition: usize,
    /// The version that the key has once the transaction is committed.
    version: Version,
    /// The owner of the new value.
    new_owner: MemberId,
    /// Where the provisional version is, if *lock* has left that. Only on mapped memory.
    location: Option<ShortLocation>,
    /// Whether *apply* of the committer has put the new value in the place of the provisional
    /// version. If not, another member has applied the key, or has rolled it back because the
    /// intent was lost and its loss accepted; or the key itself was lost.
    is_applied: bool,
}

impl Lock {
    /// A key that is not locked yet.
    const NOTHING: Lock = Lock {
        hash: 0,
        partition: 0,
        version: Version { counter: 0, writer: MemberId(0) },
        new_owner: MemberId(0),
        location: None,
        is_applied: false,
    };
}

/// The locks of a transaction.
pub(in crate::store) struct Locks {
    /// The epoch from before the first lock.
    since: Epoch,
    /// A lock for each key that the transaction changes, in their order.
    locks: Vec<Lock>,
}

impl Transaction {
    /// Commits the transaction. A transaction without changes only validates its reads. A
    /// transaction that changes a single key and read no other key is a conditional put. All other
    /// transactions take the steps of the committer.
    pub(in crate::store::tx) fn try_commit(&mut self) -> StoreResult<()> {
        if self.writes.is_empty() {
            return if self.is_consistent()? { Ok(()) } else { Err(StoreError::Aborted) };
        }
        let is_single =
            self.writes.len() == 1 && self.reads.keys().all(|key| self.writes.contains_key(key));
        if is_single && self.active.is_none() {
            return self.commit_one();
        }
        self.announce_writes()?;
        let mut locked = self.lock_writes()?;
        let inner = &self.state;
        let active = self.active.as_mut().expect("just announced");
        let committing = Committing::begin(inner, false)?;
        // *validate*. A locked key needs no second read. If the transaction does not change it, the
        // intent becomes `validating` all the same: the partition of the key can be lost, and its
        // loss accepted. If readers passed the intent until *commit*, no member could tell whether
        // that loss or the transaction came first.
        if self.reads.keys().any(|key| !self.writes.contains_key(key)) {
            active.intent.set_state(IntentState::Validating);
            let _step = within(steps::Step::TxValidate);
            let (cached, bytes) = (&mut active.slot.cached, active.intent.bytes());
            active.version = inner
                .write_intent(active.id, cached, Some(active.version), bytes)
                .map_err(as_aborted)?;
            let is_locked: Vec<&[u8]> =
                self.active.iter().flat_map(|one| one.intent.keys()).collect();
            let is_read = |key: &[u8]| is_locked.binary_search(&key).is_err();
            if !self.look_again(is_read)? && !mutant("tx-skip-look") {
                return Err(StoreError::Aborted);
            }
        }
        self.check_locks(&locked)?;
        self.decide(committing, &mut locked)?;
        let keys = std::mem::take(&mut self.writes).into_iter().zip(locked.locks);
        let is_set = |((key, write), lock): ((Vec<u8>, Write), Lock)| match write {
            Write::Put { .. } => Some((key, lock.version)),
            Write::Delete => None,
        };
        self.versions = keys.filter_map(is_set).collect();
        Ok(())
    }

    /// *intent*, for the keys that the transaction changes.
    fn announce_writes(&mut self) -> StoreResult<()> {
        let Transaction { state, active, writes, attempts, recovery, .. } = self;
        announce(state, active, *attempts, *recovery, writes.keys().map(Vec::as_slice))
    }

    /// *intent*, for these keys.
    fn announce(&mut self, keys: &BTreeSet<Vec<u8>>) -> StoreResult<()> {
        let Transaction { state, active, attempts, recovery, .. } = self;
        announce(state, active, *attempts, *recovery, keys.iter().map(Vec::as_slice))
    }
    /// *lock*, for all keys that the transaction changes.
    fn lock_writes(&self) -> StoreResult<Locks> {
        let inner = &self.state;
        let since = inner.job.epoch();
        let id = self.active.as_ref().expect("announced").id;
        let mut locks: Vec<Lock> = Vec::new();
        locks.resize_with(self.writes.len(), || Lock::NOTHING);
        let mut keys = Vec::with_capacity(self.writes.len());
        for (index, (key, write)) in self.writes.iter().enumerate() {
            keys.push((inner.key_ref(key)?, write, index));
        }
        // All transactions lock in the order of the hashes.
        keys.sort_unstable_by_key(|(key, _, index)| (key.hash, *index));
        let (by, mut scratch) = (self.attempt(), Vec::new());
        for (key, write, index) in &keys {
            let seen = self.reads.get(key.key).map(|seen| seen.observed);
            if !inner.lock_write(by, key, id, seen, write, &mut scratch, &mut locks[*index])? {
                return Err(StoreError::Aborted);
            }
        }
        Ok(Locks { since, locks })
    }

    /// *intent* and *lock* before the closure runs, for keys of which it is not known yet what the
    /// transaction makes of them.
    pub(in crate::store::tx) fn lock_all(&mut self, keys: BTreeSet<Vec<u8>>) -> StoreResult<()> {
        if keys.is_empty() {
            return Ok(());
        }
        self.announce(&keys)?;
        let since = self.state.job.epoch();
        let active = self.active.as_ref().expect("just announced");
        let mut keys: Vec<&[u8]> = active.intent.keys().collect();
        // As in `lock_writes`.
        keys.sort_by_key(|key| hash_key(key));
        let mut held = Vec::new();
        for key in keys {
            let lock = |_: Option<MemberId>| New::Unchanged;
            let key = self.state.key_ref(key)?;
            let locked = self.state.lock_key(self.attempt(), &key, active.id, None, lock)?;
            held.extend(locked.map(|lock| (key.key.to_vec(), lock.version)));
        }
        self.held = Some(LockedKeys { since, keys: held });
        Ok(())
    }

    /// Reads the selected keys again. Returns whether all of them are as the transaction read them
    /// first.
    fn look_again(&self, is_asked: impl Fn(&[u8]) -> bool) -> StoreResult<bool> {
        let _step = within(steps::Step::TxValidate);
        for (key, seen) in self.reads.iter().filter(|(key, _)| is_asked(key)) {
            if self.look(key, false)?.observed != seen.observed {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads all keys again. Returns whether no observed version has changed: then there was a
    /// moment at which all reads were true. A transaction with a single read and without locks
    /// needs no second read.
    pub(in crate::store) fn is_consistent(&mut self) -> StoreResult<bool> {
        if self.reads.len() < 2 && self.active.is_none() {
            return Ok(true);
        }
        let result = self.look_again(|_| true);
        self.record_timeout(result)
    }

    /// Returns an error if a key that the transaction has locked was lost since: a key that it
    /// changes, or a key that was locked before the closure ran and that the closure only read. No
    /// change has taken effect yet.
    fn check_locks(&self, locked: &Locks) -> StoreResult<()> {
        let (inner, epoch) = (&self.state, self.state.job.epoch());
        let held = self.held.iter().filter(|held| held.since != epoch);
        let read = held
            .flat_map(|held| &held.keys)
            .filter(|(key, _)| self.reads.contains_key(key) && !self.writes.contains_key(key))
            .map(|(key, version)| (key, *version));
        let changed = Some(locked).into_iter().filter(|locked| locked.since != epoch);
        let changed = changed
            .flat_map(|locked| self.writes.keys().zip(&locked.locks))
            .map(|(key, lock)| (key, lock.version));
        read.chain(changed).try_for_each(|(key, version)| inner.check_incarnation(key, version))
    }

    /// *commit*, *apply* and *release*.
    fn decide(&mut self, committing: Committing, locked: &mut Locks) -> StoreResult<()> {
        let Active { mut slot, id, version, mut intent, .. } =
            self.active.take().expect("announced");
        let inner = &self.state;
        if mutant("tx-apply-early") {
            let _ = intent.keys().try_for_each(|key| inner.resolve(key, id, true).map(drop));
        }
        let step = within(steps::Step::TxCommit);
        intent.set_state(IntentState::Committed);
        let decided = inner.write_intent(id, &mut slot.cached, Some(version), intent.bytes());
        drop(step);
        match decided {
            Ok(version) => {
                drop(committing);
                // The intent may list further keys: those that were locked before the closure ran.
                let mut writes = self.writes.iter().zip(&mut locked.locks).peekable();
                let ended = apply(intent.keys(), |key| {
                    match writes.next_if(|((changed, _), _)| *changed == key) {
                        Some(((_, write), lock)) => inner.apply_write(key, id, write, lock),
                        None => inner.resolve(key, id, true).map(drop),
                    }
                });
                let locks = self.writes.keys().zip(&locked.locks);
                let locks =
                    locks.map(|(key, lock)| (key.as_slice(), lock.version, lock.is_applied));
                let outcome = inner.check_outcome(id, version, None, locked.since, locks, &ended);
                inner.end(slot, id, intent.keys_len(), || intent.keys_to_vec(), ended, false);
                outcome
            }
            // The outcome is unknown: the write of the intent may still take effect. The background
            // finds it out.
            Err(error @ StoreError::Timeout { .. }) => {
                committing.goes_on();
                inner.finish_later(slot, id, intent.keys_to_vec(), false, true, LATER);
                Err(error)
            }
            Err(error) => {
                drop(committing);
                inner.finish(slot, id, intent.keys_to_vec(), None, false);
                Err(as_aborted(error))
            }
        }
    }

    /// Commits a transaction that changes a single key and read no other key, by a conditional put.
    fn commit_one(&mut self) -> StoreResult<()> {
        let (key, write) = self.writes.iter().next().expect("one write");
        let seen = self.reads.get(key).map(|seen| seen.observed);
        let change = |current: Option<&CurrentVersion>, _: &mut Vec<u8>| {
            let found = current.map(|current| current.version);
            let is_right = match seen {
                None => true,
                Some(ObservedVersion { exists: false, .. }) => found.is_none(),
                Some(ObservedVersion { version, .. }) => found == Some(version),
            };
            if !is_right {
                return Err(StoreError::Conflict { found });
            }
            Ok(match write {
                Write::Put { value, is_mine: false } => Change::Put(value),
                Write::Put { value, is_mine: true } => Change::Adopt(value.clone()),
                Write::Delete if current.is_none() => Change::Nothing,
                Write::Delete => Change::Delete,
            })
        };
        let written = match (write, seen) {
            (Write::Put { value, is_mine: false }, None) => {
                self.state.put_or_change_by_key(key, value, None, change)
            }
            (
                Write::Put { value, is_mine: false },
                Some(ObservedVersion { exists: true, version }),
            ) => self.state.put_or_change_by_key(key, value, Some(version), change),
            _ => self.state.write(key, false, change),
        };
        let written = written.map_err(as_aborted)?;
        if let (Write::Put { .. }, Some(version)) = (write, written) {
            self.versions.push((key.clone(), version));
        }
        Ok(())
    }

    /// Gives up the locks and the intent of a transaction that was not decided. If a member has not
    /// answered in time, the background does it, so that the call ends.
    pub(in crate::store) fn release(&mut self) {
        if let Some(Active { slot, id, intent, .. }) = self.active.take() {
            let _call = self.state.begin_call();
            let (inner, keys) = (&self.state, intent.keys_to_vec());
            let is_joined = self.recovery.is_some();
            match self.is_late {
                true => inner.finish_later(slot, id, keys, is_joined, false, LATER),
                false => inner.finish(slot, id, keys, Some(false), is_joined),
            }
        }
    }

    /// `recover.prepare`, for the transaction of a coordinated recovery: does *intent* and *lock*,
    /// then reads the keys again that the procedure only read.
    pub(in crate::store) fn prepare(&mut self) -> StoreResult<()> {
        self.check_open()?;
        if !self.writes.is_empty() {
            self.announce_writes()?;
            let Locks { since, locks } = self.lock_writes()?;
            let versions = || locks.iter().map(|lock| lock.version);
            let is_set = |write: &Write| matches!(write, Write::Put { .. });
            let set = self.writes.iter().zip(versions()).filter(|((_, write), _)| is_set(write));
            self.versions = set.map(|((key, _), version)| (key.clone(), version)).collect();
            let keys = self.writes.keys().cloned().zip(versions()).collect();
            self.prepared = Some(LockedKeys { since, keys });
        }
        let is_read = |key: &[u8]| !self.writes.contains_key(key);
        if self.look_again(is_read)? { Ok(()) } else { Err(StoreError::Aborted) }
    }

    /// Ends the transaction of a coordinated recovery as the recovery decision says: `committed` is
    /// the view of the recovery, or `None` if it is aborted. Returns `DataLost` if it is committed
    /// and some of its changes were lost before they were applied.
    pub(in crate::store) fn end_prepared(&mut self, committed: Option<&View>) -> StoreResult<()> {
        let is_committed = committed.is_some();
        self.over = Some(if is_committed { COMMITTED } else { FAILED });
        let Some(Active { slot, id, version, intent, .. }) = self.active.take() else {
            return Ok(());
        };
        let (inner, keys) = (&self.state, intent.keys_to_vec());
        let (Some(locked), Some(view)) = (self.prepared.take(), committed) else {
            inner.finish(slot, id, keys, Some(is_committed), true);
            return Ok(());
        };
        let mut by_this_call = BTreeSet::new();
        let ended = apply(&keys, |key| {
            inner.resolve(key, id, true).map(|is_applied| {
                is_applied.then(|| by_this_call.insert(key));
            })
        });
        let recovery = self.recovery.map(|attempt| Decided { attempt, view });
        let locks = locked
            .keys
            .iter()
            .map(|(key, version)| (key.as_slice(), *version, by_this_call.contains(key)));
        let outcome = inner.check_outcome(id, version, recovery, locked.since, locks, &ended);
        inner.end(slot, id, intent.keys_len(), || keys, ended, true);
        outcome
    }

    /// Leaves the end of a coordinated recovery's transaction to the background, because the
    /// recovery decision is not known.
    pub(in crate::store) fn abandon(&mut self) {
        self.over = Some(BROKEN);
        if let Some(Active { slot, id, intent, .. }) = self.active.take() {
            let inner = &self.state;
            inner.finish_later(slot, id, intent.keys_to_vec(), true, false, Duration::ZERO);
        }
    }
}

/// *intent*: writes the intent of a transaction, with these keys, which come in their order, in
/// addition to the keys that it lists already.
fn announce<'k>(
    inner: &TxState,
    active: &mut Option<Active>,
    attempts: u32,
    recovery: Option<u64>,
    keys: impl Iterator<Item = &'k [u8]> + Clone,
) -> StoreResult<()> {
    let _step = within(steps::Step::TxIntent);
    let is_joined = recovery.is_some();
    let (mut slot, id, epoch, former) = match active.take() {
        Some(known) => {
            let listed: BTreeSet<&[u8]> = known.intent.keys().collect();
            if keys.clone().all(|key| listed.contains(key)) {
                *active = Some(known);
                return Ok(());
            }
            (known.slot, known.id, known.epoch, Some((known.intent, known.version)))
        }
        None => {
            let slot = inner.take_slot()?;
            let nonce = inner.transactions.nonce.fetch_add(1, Ordering::Relaxed) + 1;
            let id = IntentId { member: inner.me(), slot: slot.number, nonce };
            inner.transactions.joined.fetch_add(u64::from(is_joined), Ordering::SeqCst);
            (slot, id, inner.job.epoch(), None)
        }
    };
    let head = Intent {
        nonce: id.nonce,
        state: if is_joined { IntentState::Joined } else { IntentState::Pending },
        attempts,
        epoch,
        recovery: recovery.unwrap_or(0),
        keys: Vec::new(),
    };
    let (intent, expected) = match &former {
        None => (EncodedIntent::new(&head, keys), None),
        Some((former, version)) => {
            let mut all: BTreeSet<&[u8]> = former.keys().collect();
            keys.for_each(|key| _ = all.insert(key));
            (EncodedIntent::new(&head, all.iter().copied()), Some(*version))
        }
    };
    match inner.write_intent(id, &mut slot.cached, expected, intent.bytes()) {
        Ok(version) => {
            *active = Some(Active { slot, id, epoch, version, intent });
            Ok(())
        }
        Err(error) => {
            // Only the keys that the intent listed before can have a provisional version.
            let former = former.map_or(Vec::new(), |(former, _)| former.keys_to_vec());
            match error {
                StoreError::Timeout { .. } => {
                    inner.finish_later(slot, id, former, is_joined, false, LATER)
                }
                _ => inner.finish(slot, id, former, None, is_joined),
            }
            Err(as_aborted(error))
        }
    }
}

/// Turns a conflict into `Aborted`: another member has changed the intent, or the key of a
/// transaction with a single key.
fn as_aborted(error: StoreError) -> StoreError {
    match error {
        StoreError::Conflict { .. } => StoreError::Aborted,
        other => other,
    }
}

impl TxState {
    /// Reads a key for an attempt at a transaction. The transaction of a coordinated recovery
    /// passes the closed gate.
    pub(in crate::store) fn look(
        &self,
        by: Attempt,
        key: &[u8],
        wants_value: bool,
    ) -> StoreResult<Observation> {
        let key = self.key_ref(key)?;
        if by.recovery.is_none()
            && let Some((block, bytes)) = self.read_whole_mapped(&key, wants_value)
        {
            let (version, owner) = (block.version(), block.owner);
            return Ok(Observation {
                observed: ObservedVersion { exists: true, version },
                value: Some(Value { bytes, version, owner }),
            });
        }
        self.run_as(by.attempts, |op| {
            if by.recovery.is_none() {
                self.check_gate(op.epoch)?;
            }
            self.look_in(op, by.reader, &key, wants_value)
        })
    }

    /// *lock* for a key that the transaction changes: on the mapped fast path if this member has
    /// cached where the key is, it exists, and it is as the transaction has read it. Returns
    /// `false` if the key has changed since it was read.
    #[allow(clippy::too_many_arguments, reason = "a step of the commit, called once")]
    fn lock_write(
        &self,
        by: Attempt,
        key: &KeyRef<'_>,
        id: IntentId,
        seen: Option<ObservedVersion>,
        write: &Write,
        scratch: &mut Vec<u8>,
        lock: &mut Lock,
    ) -> StoreResult<bool> {
        let _step = within(steps::Step::TxLock);
        let me = self.me();
        if let Write::Put { value, is_mine } = write
            && self.job.is_mapped()
            && by.recovery.is_none()
        {
            let mut owner = is_mine.then_some(me);
            let fast = FastLock { id, seen, value, new_owner: &mut owner, scratch };
            if let Some(version) = self.lock_mapped(key, fast, &mut lock.location)? {
                (lock.hash, lock.partition) = (key.hash, key.partition);
                lock.version = Version { counter: version.counter + 1, ..version };
                lock.new_owner = owner.unwrap_or(me);
                return Ok(true);
            }
        }
        let locked = self.lock_key(by, key, id, seen, |owner| match write {
            Write::Delete => New::Deleted,
            Write::Put { value, is_mine } => {
                New::Value { bytes: value, owner: owner.filter(|_| !is_mine).unwrap_or(me) }
            }
        })?;
        let is_locked = locked.is_some();
        locked.into_iter().for_each(|locked| *lock = locked);
        Ok(is_locked)
    }

    /// *lock* for a single key on the slow path; see [`TxState::lock_key_in`].
    #[inline(never)]
    fn lock_key<'v>(
        &self,
        by: Attempt,
        key: &KeyRef<'_>,
        id: IntentId,
        seen: Option<ObservedVersion>,
        new: impl Fn(Option<MemberId>) -> New<'v>,
    ) -> StoreResult<Option<Lock>> {
        let _step = within(steps::Step::TxLock);
        self.run_on_key(by.attempts, key, |op| {
            self.lock_key_in(op, key, by.recovery, id, seen, &new)
        })
    }

    /// *lock* for a single key: puts a provisional version in the place of the version that the
    /// transaction read, or of any version if it did not read the key. Returns `None` if the key
    /// has changed since it was read. `new` decides on the new value by the owner of the key, which
    /// is `None` if the key does not exist.
    fn lock_key_in<'v>(
        &self,
        op: &mut RecordOp<'_>,
        key: &KeyRef<'_>,
        recovery: Option<u64>,
        id: IntentId,
        seen: Option<ObservedVersion>,
        new: impl Fn(Option<MemberId>) -> New<'v>,
    ) -> OpResult<Option<Lock>> {
        if recovery.is_none() {
            self.check_gate(op.epoch)?;
        }
        if self.freeze.is_set() {
            return Err(OpError::Frozen);
        }
        let config = op.config(key.partition)?;
        let primary = config.primary_member();
        let mut cached = op.known_location(config, key)?;
        let before = op.find_predecessor(config, key, cached.as_mut())?;
        let (old, old_owner, value) = match before.found() {
            None => (absent(config, op.floor(primary, key.partition)?), self.me(), Vec::new()),
            Some((_, block)) if block.is_deleted => {
                let floor = op.floor(primary, key.partition)?;
                (absent(config, block.counter.max(floor)), block.owner, Vec::new())
            }
            Some((offset, block)) if block.kind == Kind::Provisional => {
                let found = op.read_provisional(primary, offset, &block)?;
                if found.id != id {
                    if let Some(recovery) = recovery {
                        self.check_overlap(op, key, recovery, &found.id)?;
                    }
                    return Err(blocked(found.id, key));
                }
                op.check_whole(key, primary, offset, &block)?;
                let at = offset + value_start(block.len) + found.places().0;
                (found.old, found.old_owner, self.read_bytes(op, primary, at, found.old_len)?)
            }
            Some((_, block)) if block.kind == Kind::Lost => {
                return Err(op.lost(key));
            }
            Some((offset, block)) => {
                op.check_whole(key, primary, offset, &block)?;
                let (offset, block) = match block.kind {
                    Kind::Restored => op.restored(primary, offset, &block)?,
                    _ => (offset, block),
                };
                let value =
                    self.read_bytes(op, primary, offset + value_start(block.len), block.len)?;
                (ObservedVersion { exists: true, version: block.version() }, block.owner, value)
            }
        };
        if seen.is_some_and(|seen| seen != old) && !mutant("tx-lost-update") {
            return Ok(None);
        }
        let new = new(old.exists.then_some(old_owner));
        let bytes = Provisional::encode(id, old, old_owner, &value, new);
        let attributes = VersionAttributes {
            kind: Kind::Provisional,
            is_deleted: false,
            owner: old_owner,
            author: None,
            is_above_floor: new == New::Deleted,
        };
        let written = op.replace(config, key, before, &bytes, attributes)?;
        cached.iter().for_each(|cached| self.key_locations.note(key, cached));
        Ok(written.map(|version| Lock {
            hash: key.hash,
            partition: key.partition,
            version: Version { counter: version.counter + 1, ..version },
            new_owner: if let New::Value { owner, .. } = new { owner } else { old_owner },
            location: cached.as_ref().and_then(ShortLocation::new),
            is_applied: false,
        }))
    }

    /// *apply* for a key that the transaction has locked: on the mapped fast path, if the key still
    /// has the provisional version that *lock* has written. The new value is private to the
    /// transaction, so it is not read again.
    fn apply_write(
        &self,
        key: &[u8],
        id: IntentId,
        write: &Write,
        lock: &mut Lock,
    ) -> StoreResult<()> {
        if let (Write::Put { value, .. }, Some(location)) = (write, &mut lock.location) {
            let _step = within(steps::Step::TxApply);
            let apply = FastApply { value, owner: lock.new_owner };
            let key = KeyRef { key, hash: lock.hash, partition: lock.partition };
            lock.is_applied = self.apply_mapped(&key, location, apply)?;
        }
        if !lock.is_applied {
            lock.is_applied = self.resolve(key, id, true)?;
        }
        Ok(())
    }

    /// Reads a key inside an operation: its observed version, and its value if that is wanted.
    pub(in crate::store::tx) fn look_in(
        &self,
        op: &mut RecordOp<'_>,
        reader: Reader,
        key: &KeyRef<'_>,
        wants_value: bool,
    ) -> OpResult<Observation> {
        let config = op.config(key.partition)?;
        let primary = config.primary_member();
        let (mut found, mut floor) = (self.find_visible(op, reader, config, key)?, 0);
        if found.is_none_or(|(_, block)| block.is_deleted) {
            // The version floor is loaded before the key: a version of a key that is made and
            // deleted after that is above the floor.
            floor = op.floor(primary, key.partition)?;
            found = self.find_visible(op, reader, config, key)?;
        }
        let seen = match found.filter(|(_, block)| !block.is_deleted) {
            Some((offset, block)) => {
                let mut bytes = Vec::new();
                if wants_value {
                    bytes.resize(block.len as usize, 0);
                    op.get_value(key.key, primary, offset, &block, &mut bytes)?;
                }
                let observed = ObservedVersion { exists: true, version: block.version() };
                Observation {
                    observed,
                    value: Some(Value { bytes, version: block.version(), owner: block.owner }),
                }
            }
            None => {
                let tombstone = found.map_or(0, |(_, block)| block.counter);
                Observation { observed: absent(config, tombstone.max(floor)), value: None }
            }
        };
        if op.is_current() || op.is_still_current(config, key.partition)? {
            Ok(seen)
        } else {
            Err(OpError::Again)
        }
    }

    /// The version of a key that a reader sees. It may be a tombstone.
    fn find_visible(
        &self,
        op: &RecordOp<'_>,
        reader: Reader,
        config: &Configuration,
        key: &KeyRef<'_>,
    ) -> OpResult<Option<(u64, Block)>> {
        let Some(offset) = op.find_head(config, key, None)?.and_then(|head| head.offset()) else {
            return Ok(None);
        };
        let block = op.read_block(config.primary_member(), offset)?;
        op.visible_to(reader, config, key, offset, &block).map(Some)
    }
}

/// The observed version of an absent key: the greater of its tombstone's counter and the version
/// floor of its partition. If the key is made and deleted meanwhile, this number grows. That holds
/// for a single primary. The next primary may have a lower floor, if the former primary died while
/// it was raising the floor everywhere. So the configuration number is a part of the observed
/// version.
pub(in crate::store) fn absent(config: &Configuration, counter: u64) -> ObservedVersion {
    ObservedVersion {
        exists: false,
        version: Version { counter, writer: MemberId(config.config_number as u32) },
    }
}

impl TxState {
    /// Returns an error if a key that this member's procedure changes has a provisional version of
    /// another member's procedure in this attempt at a coordinated recovery.
    fn check_overlap(
        &self,
        op: &RecordOp<'_>,
        key: &KeyRef<'_>,
        recovery: u64,
        other: &IntentId,
    ) -> OpResult<()> {
        let standing = op.standing(other)?;
        if standing.state != Some(IntentState::Joined) || standing.recovery != recovery {
            return Ok(());
        }
        let reason = format!(
            "the procedures of {} and {} both change the key {:?}; let only one of them do it, \
             such as the heir",
            self.me(),
            other.member,
            String::from_utf8_lossy(key.key)
        );
        Err(OpError::Fail(StoreError::RecoveryFailed { reason }))
    }

    /// Writes this member's own intent, in *intent*, *validate*, *commit* and *release*. If
    /// `expected` is given, the record must still have that version, which this member wrote last.
    pub(in crate::store::tx) fn write_intent(
        &self,
        id: IntentId,
        cached: &mut CachedLocation,
        expected: Option<Version>,
        bytes: &[u8],
    ) -> StoreResult<Version> {
        let key = intent_key(id.member, id.slot);
        let key = self.key_ref(&key)?;
        if let Some(version) = self.write_own_mapped(&key, cached, bytes, expected)? {
            return Ok(version);
        }
        let written = self.write_cached(&key, cached, false, |current, _| {
            let found = current.map(|current| current.version);
            if expected.is_some() && expected != found {
                return Err(StoreError::Conflict { found });
            }
            Ok(Change::Put(bytes))
        })?;
        Ok(written.expect("a put changes the key"))
    }

    /// After *apply*: returns an error if a change of a committed transaction was lost, or may have
    /// been lost, or if a replica has not answered: other members read an acknowledged change while
    /// any replica is stopped. The partition of a key can have been lost, and its loss accepted,
    /// while the key was locked. Then the new value is gone with the provisional version. The
    /// partition of the intent can have been lost, too. Then an operation that met a key before
    /// *apply* has rolled it back. In a coordinated recovery (`recovery`) this holds for the
    /// recovery decision as well. There a replica that has not answered fails no call
    /// ([`TxState::unless_unanswered`]): the decision is known, and holds for all members.
    ///
    /// A key at which this call has replaced the provisional version itself was not lost before the
    /// decision, so no answer about it is needed. No key needs a check if the view is unchanged and
    /// each primary has answered since the decision: a primary with a newer view refuses to answer.
    ///
    /// `locked` has the keys that the transaction changes, each with its version and whether this
    /// call has applied it. They were locked since the epoch `since`. `ended` is the result of
    /// *apply*.
    pub(in crate::store::tx) fn check_outcome<'k>(
        &self,
        id: IntentId,
        intent_version: Version,
        recovery: Option<Decided<'_>>,
        since: Epoch,
        locked: impl Iterator<Item = (&'k [u8], Version, bool)>,
        ended: &StoreResult<()>,
    ) -> StoreResult<()> {
        let is_changed = self.job.epoch() != since;
        if ended.is_ok() && !is_changed || mutant("tx-skip-outcome") {
            return Ok(());
        }
        // A replica that has not answered in time is not asked again.
        let late = ended.as_ref().err();
        let mut is_there = true;
        for (key, version, is_own) in locked {
            match (self.check_version(key, version, late), is_own) {
                (Err(error @ StoreError::DataLost { .. }), _) => return Err(error),
                (_, true) => {}
                (found, false) => is_there &= self.unless_unanswered(recovery, key, found)?,
            }
        }
        if let (Err(error @ StoreError::Timeout { .. }), None) = (ended, recovery) {
            // A key may be published and not installed at the replica that is late. No member could
            // read it before that replica goes on, so the change is not acknowledged.
            return Err(error.clone());
        }
        if is_there {
            return Ok(());
        }
        let intent = intent_key(id.member, id.slot);
        let found = self.check_version(&intent, intent_version, late);
        self.unless_unanswered(recovery, &intent, found)?;
        if let Some(Decided { attempt, .. }) = recovery {
            let is_decision =
                |found: RecoveryDecision| found.recovery == attempt && found.is_committed;
            let found = self.recovery_decision().map(|found| found.is_some_and(is_decision));
            let key = RecoveryDecision::key();
            if !self.unless_unanswered(recovery, &key, found)? {
                let partition = self.any_key_ref(&key).partition;
                return Err(StoreError::DataLost { partition });
            }
        }
        Ok(())
    }

    /// What was found of a key, after a coordinated recovery is decided. If a member has not
    /// answered, the key is not lost as long as a member lives that was its replica when the
    /// procedures ran, and so holds what the recovery wrote: it counts as found. If none lives, it
    /// may be lost.
    fn unless_unanswered(
        &self,
        recovery: Option<Decided<'_>>,
        key: &[u8],
        found: StoreResult<bool>,
    ) -> StoreResult<bool> {
        let (Some(Decided { view, .. }), Err(StoreError::Timeout { .. })) = (recovery, &found)
        else {
            return found;
        };
        let partition = self.any_key_ref(key).partition;
        let replicas = self.replicas_beside(partition, view, &MemberSet::new()).members;
        let now = self.job.view();
        match replicas.iter().any(|&member| now.is_living(member)) {
            true => Ok(true),
            false => Err(StoreError::DataLost { partition }),
        }
    }

    /// Returns `DataLost` if the key or its partition was lost after this version was made and the
    /// loss was accepted: its incarnation is then greater. If the loss is not accepted yet, the
    /// access to the key returns `DataLost` itself.
    pub(in crate::store) fn check_incarnation(
        &self,
        key: &[u8],
        version: Version,
    ) -> StoreResult<()> {
        self.check_version(key, version, None).map(drop)
    }

    /// Checks as [`TxState::check_incarnation`] does, and returns whether the key has exactly this
    /// version as a plain version with a value. A key that was rolled back has a restored version
    /// or a tombstone with an equal version number. If the primary of the key is the member that
    /// the timeout `late` names, returns that timeout.
    fn check_version(
        &self,
        key: &[u8],
        version: Version,
        late: Option<&StoreError>,
    ) -> StoreResult<bool> {
        let key = self.any_key_ref(key);
        let found = self.run(|op| {
            let config = op.config(key.partition)?;
            let primary = config.primary_member();
            if let Some(error @ StoreError::Timeout { member, .. }) = late
                && *member == primary
            {
                return Err(OpError::Fail(error.clone()));
            }
            // The record is not reconciled first, because a full replica may have no room for that.
            // Whichever version the primary names was made in the current incarnation of the key.
            let found = op.find(config, config.primary, &key)?.and_then(|(_, head)| head.offset());
            let found = match found {
                Some(offset) => {
                    let block = op.read_block(primary, offset)?;
                    let is_there = block.kind == Kind::Plain
                        && !block.is_deleted
                        && block.version() == version;
                    (block.counter, is_there)
                }
                // The floor has the incarnation of the partition. A key with a later incarnation,
                // because it was damaged, always has a version.
                None => (op.floor(primary, key.partition)?, false),
            };
            if op.is_current() { Ok(found) } else { Err(OpError::Again) }
        })?;
        let (counter, is_there) = found;
        if counter >> INCARNATION_SHIFT > version.counter >> INCARNATION_SHIFT {
            return Err(StoreError::DataLost { partition: key.partition });
        }
        Ok(is_there)
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::engine::sim::{self, Link, Options as SimOptions};
    use crate::engine::{Fault, Time};
    use crate::job::Job;
    use crate::store::testing::nap;
    use crate::store::{Options, Store};
    use std::cell::Cell;
    use std::rc::Rc;

    /// Over a network, the only replica of a locked key dies, and the loss is accepted. The
    /// committer has not heard of it, and commits. *apply* does not come to that key, because it
    /// times out at another replica, which is stopped. The commit does not succeed.
    #[test]
    fn a_lost_change_is_not_acknowledged_though_apply_timed_out() {
        let ignorant = Rc::new(Cell::new(0));
        for seed in 0..200 {
            let (stage, ignorant) = (Rc::new(Cell::new(0)), ignorant.clone());
            let mut plan = SimOptions::new(5, seed).link(Link::Network);
            plan.time_limit = Duration::from_secs(1);
            plan.detection = Duration::from_millis(1)..=Duration::from_secs(20);
            let report = sim::run(&plan, move |job: Job| {
                let options = Options::new().replicas(1).partitions(64).expected_keys(64);
                let store = Store::open(&job, options).expect("open");
                let intent_of = |member: MemberId| store.replicas_of(&intent_key(member, 0))[0];
                let members = || (0..5).map(MemberId);
                let committer = members().find(|&one| intent_of(one) != one).expect("some member");
                let others: Vec<MemberId> = members()
                    .filter(|one| ![committer, intent_of(committer)].contains(one))
                    .collect();
                let [stopped, victim, witness] = others[..] else { panic!("{others:?}") };
                let names = || (0..1000).map(|number| format!("key/{number}").into_bytes());
                let preference = |key: &Vec<u8>| {
                    let partition = store.partition_of(key).expect("a key");
                    store.state.placement.preference(partition)
                };
                let lost = names().find(|key| preference(key)[..2] == [victim, witness]);
                let lost = lost.expect("some key");
                // *apply* takes the keys in their order.
                let first = names().find(|key| preference(key)[0] == stopped && *key < lost);
                let first = first.expect("some key");
                if job.me() == committer {
                    let mut tx = store.begin();
                    let keys: BTreeSet<Vec<u8>> = [&first, &lost].into_iter().cloned().collect();
                    keys.iter().for_each(|key| tx.put(key, b"new").expect("put"));
                    tx.announce(&keys).expect("announced");
                    let mut locked = tx.lock_writes().expect("locked");
                    stage.set(1);
                    nap(&job, "the acceptance", || stage.get() == 2);
                    let committing = Committing::begin(&tx.state, false).expect("begun");
                    let committed = tx.decide(committing, &mut locked);
                    let is_known = !job.view().is_living(victim);
                    assert!(committed.is_err(), "seed {seed}, known: {is_known}");
                    ignorant.set(ignorant.get() + u32::from(!is_known));
                    stage.set(3);
                } else if job.me() == witness {
                    nap(&job, "the locks", || stage.get() == 1);
                    job.inject(Fault::Stop(stopped)).expect("a fault");
                    job.fence(victim, Time::NEVER).expect("killed");
                    let partition = store.partition_of(&lost).expect("a key");
                    store.accept_loss_of(&[partition]).expect("accepted");
                    stage.set(2);
                } else if job.me() == victim {
                    nap(&job, "its death", || false);
                }
                nap(&job, "the committer", || stage.get() == 3);
                if job.me() == witness {
                    job.inject(Fault::Resume(stopped)).expect("a fault");
                }
                let _ = store.close();
                let _ = job.leave();
            });
            report.expect_ok();
        }
        assert!(ignorant.get() > 5, "{}", ignorant.get());
    }

    /// On mapped memory *apply* takes the fast path at the location that *lock* has left. A key
    /// that another call has applied and written meanwhile stays as it is.
    #[test]
    fn a_late_apply_leaves_a_later_value_alone() {
        let report = sim::run(&SimOptions::new(3, 1).link(Link::Memory), |job: Job| {
            let options = Options::new().replicas(3).partitions(16).expected_keys(64);
            let store = Store::open(&job, options).expect("open");
            if job.me() == MemberId(0) {
                let keys = [b"one", b"two"];
                for _ in 0..2 {
                    keys.iter().for_each(|key| _ = store.put(key, b"before").expect("put"));
                }
                let mut tx = store.begin();
                keys.iter().for_each(|key| tx.put(key, b"new").expect("put"));
                tx.announce_writes().expect("announced");
                let mut locked = tx.lock_writes().expect("locked");
                let Active { mut slot, id, version, mut intent, .. } =
                    tx.active.take().expect("announced");
                intent.set_state(IntentState::Committed);
                tx.state
                    .write_intent(id, &mut slot.cached, Some(version), intent.bytes())
                    .expect("committed");
                assert_eq!(tx.state.resolve(b"one", id, true), Ok(true));
                let later = store.put(b"one", b"later").expect("put");
                let [one, two] = &mut locked.locks[..] else { panic!("two keys") };
                let names_lock = |lock: &Lock| lock.location.is_some_and(|at| at.names_lock());
                assert!(names_lock(one) && names_lock(two), "*lock* has left the locations");
                let mut writes = tx.writes.values();
                for (key, lock) in [(b"one", &mut *one), (b"two", &mut *two)] {
                    let write = writes.next().expect("two keys");
                    tx.state.apply_write(key, id, write, lock).expect("applied");
                }
                // On the fast path *apply* leaves the location of the new version.
                assert_eq!((one.is_applied, two.is_applied), (false, true));
                assert!(names_lock(one) && !names_lock(two));
                let get = |key| store.get(key).expect("get").expect("there");
                assert_eq!((get(b"one").bytes(), get(b"one").version()), (&b"later"[..], later));
                assert_eq!(
                    (get(b"two").bytes(), get(b"two").version()),
                    (&b"new"[..], two.version)
                );
                tx.state.end(slot, id, intent.keys_len(), || intent.keys_to_vec(), Ok(()), false);
            }
            store.close().expect("closed");
            let _ = job.leave();
        });
        report.expect_ok();
    }

    /// *lock* makes the record of a new key, and times out while it waits for a block of a stopped
    /// replica. When the replica goes on the record is removed.
    #[test]
    fn a_lock_that_waits_for_blocks_in_vain_leaves_no_record() {
        for seed in 0..4 {
            let (is_over, open) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
            let mut plan = SimOptions::new(3, seed).link(Link::Memory);
            (plan.time_limit, plan.steps_max) = (Duration::from_secs(1), 10_000_000);
            let report = sim::run(&plan, move |job: Job| {
                let options = Options::new().replicas(1).partitions(16).expected_keys(64);
                let store = Store::open(&job, options).expect("open");
                open.set(open.get() + 1);
                nap(&job, "all members", || open.get() == 3);
                if job.me() == MemberId(0) {
                    let intent_at = store.replicas_of(&intent_key(job.me(), 0))[0];
                    let replica = if intent_at == MemberId(1) { MemberId(2) } else { MemberId(1) };
                    let keys = (0..1000).map(|number| format!("key/{number}").into_bytes());
                    let mut keys: Vec<Vec<u8>> =
                        keys.filter(|key| store.replicas_of(key) == [replica]).take(9).collect();
                    let new = keys.split_off(7);
                    // Afterwards this member has blocks for records, and none for large values.
                    keys.iter().for_each(|key| _ = store.put(key, b"value").expect("put"));
                    job.inject(Fault::Stop(replica)).expect("a fault");
                    let put = |tx: &mut Transaction| {
                        new.iter().try_for_each(|key| tx.put(key, &[7; 10_000]))
                    };
                    let result: Result<(), StoreError> = store.transaction(put);
                    assert!(matches!(result, Err(StoreError::Timeout { .. })), "{result:?}");
                    let has_record = || {
                        new.iter().any(|key| {
                            let key = store.state.any_key_ref(key);
                            let find = |op: &mut RecordOp<'_>| {
                                let config = op.config(key.partition)?;
                                op.find(config, config.primary, &key)
                            };
                            store.state.run(find).expect("found").is_some()
                        })
                    };
                    assert!(has_record(), "the record was made before the wait");
                    job.inject(Fault::Resume(replica)).expect("a fault");
                    nap(&job, "the removal", || !has_record());
                    is_over.set(true);
                }
                nap(&job, "the end", || is_over.get());
                let _ = store.close();
                let _ = job.leave();
            });
            report.expect_ok();
        }
    }
}

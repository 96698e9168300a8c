//! Writing a record on the slow path: `put`, `put_if`, `delete` and `add`, and the writes of
//! transactions.
//!
//! [`RecordOp::try_write`] is an attempt at a write. It finds the predecessor (*find*, *check*),
//! asks the caller for the change, and replaces the predecessor ([`RecordOp::replace`]).
//! `publish.rs` has the steps from *fill* to *mark_stable*. [`RecordOp::confirm`] finds out whether
//! a version happened.

#![cfg_attr(outlast_pages, doc = include_str!("../../../../../docs/protocol/writing.md"))]

use crate::engine::MemberId;
use crate::store::error::{StoreError, StoreResult};
use crate::store::mutant::mutant;
use crate::store::operation::configuration::Configuration;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::operation::retry::{ROOM_WAIT, RetryBudget};
use crate::store::placement::REPLICA_LIST_MAX;
use crate::store::placement::replica::{ReplicaIndex, ReplicaSet};
use crate::store::record::block_io::block_class;
use crate::store::record::key::KeyRef;
use crate::store::record::location::CachedLocation;
use crate::store::record::state::RecordOp;
use crate::store::segment::head::Head;
use crate::store::segment::intent::is_intent;
use crate::store::segment::layout::{Block, Kind, OPERATION_MASK, REMOVALS, holder};
use crate::store::steps;
use crate::store::value::Expect;
use crate::store::value::Version;

/// The current version of a key, when a change is decided.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct CurrentVersion {
    pub(in crate::store) version: Version,
}

impl CurrentVersion {
    /// Returns `Conflict` with the current version if the condition of a conditional put does not
    /// hold.
    pub(in crate::store) fn check(
        current: Option<&CurrentVersion>,
        expect: Expect,
    ) -> StoreResult<()> {
        let found = current.map(|current| current.version);
        let is_right = match expect {
            Expect::Absent => found.is_none(),
            Expect::Version(version) => found == Some(version),
        };
        if is_right { Ok(()) } else { Err(StoreError::Conflict { found }) }
    }
}

/// What a change does to a key.
pub(in crate::store) enum Change<'a> {
    /// A new value; the owner of the key stays. A new key belongs to this member.
    Put(&'a [u8]),
    /// A new value that was made for this change; the owner of the key stays.
    Owned(Vec<u8>),
    /// A new value, and a new owner of the key.
    PutFor(&'a [u8], MemberId),
    /// The current value, with this member as the owner of the key.
    Adopt(Vec<u8>),
    Delete,
    /// Deletes the key and leaves a mark of 8 bytes in the tombstone, which stays until the key is
    /// put again.
    Bury(u64),
    Nothing,
}

/// The attributes of a new version, besides its value.
pub(in crate::store) struct VersionAttributes {
    pub(in crate::store) kind: Kind,
    pub(in crate::store) is_deleted: bool,
    pub(in crate::store) owner: MemberId,
    /// The committer, for a version that several members may make in an identical form.
    pub(in crate::store) author: Option<MemberId>,
    /// Whether the counter must be above the version floor. So it is for a version that deletes the
    /// key, or will delete it on commit: a transaction that loaded the floor before, and found the
    /// key absent, then detects that the key existed; see `tx`.
    pub(in crate::store) is_above_floor: bool,
}

impl VersionAttributes {
    /// The attributes of a plain version or a tombstone.
    pub(in crate::store) fn plain(is_deleted: bool, owner: MemberId) -> VersionAttributes {
        VersionAttributes {
            kind: Kind::Plain,
            is_deleted,
            owner,
            author: None,
            is_above_floor: is_deleted,
        }
    }
}

/// The block of a new version at a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::store) enum DraftBlock {
    /// No block was taken there.
    #[default]
    None,
    /// A block at this offset was taken, and may be filled. No other member has seen it, so it can
    /// be kept for another version.
    Filled(u64),
    /// A head word names the block.
    Named,
    /// A request without an answer may still make a head word name the block: its answer decides
    /// what becomes of the block.
    Open,
}

impl DraftBlock {
    /// A block that was taken at this offset, or none if it is 0.
    pub(in crate::store) fn filled(offset: u64) -> DraftBlock {
        if offset == 0 { DraftBlock::None } else { DraftBlock::Filled(offset) }
    }

    /// The offset of a block that no other member has seen.
    #[inline]
    pub(in crate::store) fn offset(self) -> Option<u64> {
        if let DraftBlock::Filled(offset) = self { Some(offset) } else { None }
    }
}

/// A version that is being written.
pub(in crate::store) struct NewVersion<'v> {
    pub(in crate::store) block: Block,
    pub(in crate::store) value: &'v [u8],
    pub(in crate::store) class: usize,
    /// The block at each replica.
    pub(in crate::store) blocks: [DraftBlock; REPLICA_LIST_MAX],
    /// The offset of the record's head word at each replica, 0 if it is not known.
    pub(in crate::store) words: [u64; REPLICA_LIST_MAX],
    /// The replicas that are skipped: each is filling and has no room.
    pub(in crate::store) skipped: ReplicaSet,
    /// Whether the primary's head word names the version, or has named it.
    pub(in crate::store::record) is_published: bool,
}

impl<'v> NewVersion<'v> {
    pub(in crate::store) fn new(block: Block, value: &'v [u8], class: usize) -> NewVersion<'v> {
        NewVersion {
            block,
            value,
            class,
            blocks: [DraftBlock::None; REPLICA_LIST_MAX],
            words: [0; REPLICA_LIST_MAX],
            skipped: ReplicaSet::EMPTY,
            is_published: false,
        }
    }
}

/// How a write knows its predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum PredecessorSource {
    /// The operation has read it: a reconciled head word, or a validated cached location.
    Read,
    /// A handle has cached it. *publish* validates it, see `fast_remote.rs`.
    Cached,
}

/// The predecessor: the version that a new version replaces.
pub(in crate::store) struct Predecessor<'m> {
    /// The offset of the primary's head word, 0 if there is no record, and its reconciled content.
    pub(in crate::store) word: u64,
    pub(in crate::store) head: Head,
    /// The version that the head word names; `None` if it names none.
    pub(in crate::store) block: Option<Block>,
    /// The cached location, if the call has one. The write updates it.
    pub(in crate::store) cached: Option<&'m mut CachedLocation>,
    pub(in crate::store) source: PredecessorSource,
}

impl<'m> Predecessor<'m> {
    /// The predecessor that a handle has cached, not validated.
    pub(in crate::store::record) fn from_cache(
        config: &Configuration,
        cached: &'m mut CachedLocation,
    ) -> Predecessor<'m> {
        let at = &cached.at[config.primary];
        Predecessor {
            word: at.word,
            head: at.head,
            block: Some(cached.version.block()),
            source: PredecessorSource::Cached,
            cached: Some(cached),
        }
    }

    /// Whether the location of the record at a replica is cached.
    pub(in crate::store::record) fn has_cached(&self, replica: ReplicaIndex) -> bool {
        self.block.is_some()
            && self.cached.as_ref().is_some_and(|cached| cached.at[replica].word != 0)
    }

    /// The version that was found, as the offset of its block and its header.
    pub(in crate::store) fn found(&self) -> Option<(u64, Block)> {
        self.head.offset().zip(self.block)
    }

    /// A predecessor of which only the head word is known. The write does not retire the block that
    /// it names.
    pub(in crate::store) fn unknown(head: Head) -> Predecessor<'static> {
        Predecessor { word: 0, head, block: None, cached: None, source: PredecessorSource::Read }
    }
}

impl<'a> RecordOp<'a> {
    /// An attempt at a write, inside an operation. `None` if the change left the key as it is.
    #[inline]
    pub(in crate::store::record) fn try_write<'v>(
        &mut self,
        key: &KeyRef<'_>,
        cached: Option<&mut CachedLocation>,
        change: &mut impl FnMut(Option<&CurrentVersion>, &mut Vec<u8>) -> StoreResult<Change<'v>>,
        needs_value: bool,
    ) -> OpResult<Option<Version>> {
        let store = self.store;
        // Writes of intents are not stopped here: a transaction that is being decided goes on in
        // spite of a freeze, and `tx` stops the others.
        if store.freeze.is_set() && !is_intent(key.key) {
            return Err(OpError::Frozen);
        }
        let config = self.config(key.partition)?;
        let primary = config.primary_member();
        steps::enter(steps::Step::WriteFind);
        let predecessor = self.find_predecessor(config, key, cached)?;
        let mut buffer = Vec::new();
        let (mut current, mut owner) = (None, store.me());
        if let Some((offset, block)) = predecessor.found().filter(|(_, block)| !block.is_deleted) {
            let (offset, block) = match block.kind {
                Kind::Plain => (offset, block),
                _ => self.free_of_transactions(key, primary, offset, &block)?,
            };
            // An aborted transaction may have locked a key that did not exist.
            if !block.is_deleted {
                current = Some(CurrentVersion { version: block.version() });
                owner = block.owner;
                if needs_value {
                    buffer.resize(block.len as usize, 0);
                    self.get_value(key.key, primary, offset, &block, &mut buffer)?;
                }
            }
        }
        let owned;
        let (value, is_deleted) = match change(current.as_ref(), &mut buffer)? {
            Change::Put(value) => (value, false),
            Change::PutFor(value, other) => {
                owner = other;
                (value, false)
            }
            Change::Owned(value) => {
                owned = value;
                (owned.as_slice(), false)
            }
            Change::Adopt(value) => {
                owner = store.me();
                owned = value;
                (owned.as_slice(), false)
            }
            Change::Delete => (&[][..], true),
            Change::Bury(mark) => {
                owned = mark.to_le_bytes().to_vec();
                (owned.as_slice(), true)
            }
            Change::Nothing => {
                return if self.is_still_current(config, key.partition)? {
                    Ok(None)
                } else {
                    Err(OpError::Again)
                };
            }
        };
        self.replace(config, key, predecessor, value, VersionAttributes::plain(is_deleted, owner))
    }

    /// *find* and *check*: the predecessor, from a valid cached location or by a lookup.
    #[inline]
    pub(in crate::store) fn find_predecessor<'m>(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        cached: Option<&'m mut CachedLocation>,
    ) -> OpResult<Predecessor<'m>> {
        match cached {
            None => self.find_reconciled(config, key, None, false),
            Some(cached) => match self.find_cached(config, cached)? {
                Ok(predecessor) => Ok(predecessor),
                Err(cached) => self.find_reconciled(config, key, Some(cached), false),
            },
        }
    }

    /// *find* and *check* with a cached location. Returns the location itself if it is not valid
    /// any more.
    #[inline]
    fn find_cached<'m>(
        &self,
        config: &Configuration,
        cached: &'m mut CachedLocation,
    ) -> OpResult<Result<Predecessor<'m>, &'m mut CachedLocation>> {
        if cached.config_number != config.config_number || !config.are_all_ready() {
            return Ok(Err(cached));
        }
        let primary = config.primary_member();
        let (word, known) = (cached.at[config.primary].word, cached.at[config.primary].head);
        let Some(offset) = known.offset().filter(|_| word != 0) else { return Ok(Err(cached)) };
        let counts: [u64; REPLICA_LIST_MAX] = self.load_each(self.removals(config))?;
        let known_counts = cached.at.iter().map(|at| at.removals).take(config.replicas.len());
        if !counts.into_iter().zip(known_counts).all(|(count, known)| count == known) {
            return Ok(Err(cached));
        }
        let head = Head(self.load(primary, word)?);
        // A block may have been reused for a later version. Its head word then looks as before, and
        // only the version counter tells.
        let block = cached.version.block();
        if head.stable() != known.stable() || self.load(primary, offset)? != block.counter {
            return Ok(Err(cached));
        }
        Ok(Ok(Predecessor {
            word,
            head,
            block: Some(block),
            cached: Some(cached),
            source: PredecessorSource::Read,
        }))
    }

    /// *find* and *check*: the reconciled head word of a key's record at the primary, and the
    /// version that it names. If there is no record, one is made if `must_exist`. Otherwise the
    /// offset of the head word is 0: a call that changes nothing makes no record.
    pub(in crate::store) fn find_reconciled<'m>(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        cached: Option<&'m mut CachedLocation>,
        must_exist: bool,
    ) -> OpResult<Predecessor<'m>> {
        let (mut cached, primary) = (cached, config.primary_member());
        let guess = self.guess_bucket(config, config.primary, key)?;
        let bucket = (primary, guess.at);
        let loaded = match &mut cached {
            None => self.load(bucket.0, bucket.1)?,
            Some(cached) => {
                cached.reset(config.config_number);
                // The removal counts are loaded before the lookup, so that a later removal is
                // detected.
                let places = self.removals(config).chain([bucket]);
                let words: [u64; REPLICA_LIST_MAX + 1] = self.load_each(places)?;
                for (at, removals) in cached.at.iter_mut().zip(&words[..config.replicas.len()]) {
                    at.removals = *removals;
                }
                words[config.replicas.len()]
            }
        };
        let word = match self.find_loaded(config, config.primary, key, (guess, loaded))? {
            Some((word, _)) => word,
            None if must_exist => self.find_or_insert(config, config.primary, key)?,
            None => {
                return Ok(Predecessor {
                    head: config.empty_head(),
                    cached,
                    ..Predecessor::unknown(Head(0))
                });
            }
        };
        let head = self.reconciled(config, key, word)?;
        let block = head.offset().map(|offset| self.read_block(primary, offset)).transpose()?;
        if let Some(cached) = &mut cached {
            cached.at[config.primary].word = word;
        }
        Ok(Predecessor { word, head, block, cached, source: PredecessorSource::Read })
    }

    /// The offsets of the replicas' removal counts.
    fn removals<'c>(
        &'c self,
        config: &'c Configuration,
    ) -> impl Iterator<Item = (MemberId, u64)> + 'c {
        config.replicas.iter().zip(&config.roots).map(|(&member, root)| (member, root + REMOVALS))
    }

    /// *fill* to *confirm*: replaces the predecessor by a new version.
    #[inline]
    pub(in crate::store) fn replace(
        &mut self,
        config: &Configuration,
        key: &KeyRef<'_>,
        mut predecessor: Predecessor<'_>,
        value: &[u8],
        attributes: VersionAttributes,
    ) -> OpResult<Option<Version>> {
        let (store, primary) = (self.store, config.primary_member());
        let open_writes = store.open_writes(key.partition);
        if predecessor.word == 0
            && let Err(error) = self.make_record(config, key, &mut predecessor)
        {
            // A call that waits for blocks comes back (`RecordState::run_call`).
            if !matches!(error, OpError::Needs(..)) {
                store.record_tombstone(key.key, 0);
            }
            return Err(error);
        }
        // The floor is loaded after the record was found: a removal before that had raised the
        // floor.
        let counter = match predecessor.block {
            None => self.floor(primary, key.partition)?,
            // At other replicas the record of this tombstone may have been removed.
            Some(block) if block.is_deleted && mutant("forget-tombstone") => 0,
            Some(block) if block.is_deleted || attributes.is_above_floor => {
                block.counter.max(self.floor(primary, key.partition)?)
            }
            Some(block) => block.counter,
        };
        let block = Block {
            counter: counter + 1,
            writer: attributes.author.unwrap_or(store.me()),
            participant: if attributes.author.is_some() { 0 } else { self.participant },
            operation: if attributes.author.is_some() { 0 } else { self.number & OPERATION_MASK },
            len: value.len() as u64,
            is_deleted: attributes.is_deleted,
            kind: attributes.kind,
            holder: holder(store.me()),
            owner: attributes.owner,
            checksum: 0,
        };
        let block = store.with_checksum(key, block, value);
        let class = block_class(&block, primary)?;
        let mut new_version = NewVersion::new(block, value, class);
        let result = self.publish(config, key, &mut predecessor, &mut new_version);
        match &result {
            Ok(true) => {
                if let Some(cached) = predecessor.cached {
                    cached.set_version(&block, class);
                    cached.hint = cached.at[config.primary].head.offset().unwrap_or(0);
                    cached.hint_len = block.len;
                    self.mark_near(config, key, cached, &block, open_writes);
                }
                if attributes.is_deleted && value.is_empty() {
                    store.record_tombstone(key.key, block.counter);
                }
            }
            _ => {
                if let Some(cached) = predecessor.cached {
                    cached.forget();
                }
                self.keep_unused(config, &new_version);
                let is_over = !matches!(result, Ok(_) | Err(OpError::Needs(..)));
                if is_over && predecessor.block.is_none() {
                    // The record may stay empty, and is then removed like a tombstone.
                    store.record_tombstone(key.key, 0);
                }
            }
        }
        let is_published = matches!(result, Ok(true));
        let outcome = match result {
            Ok(false) => Err(OpError::Again),
            // Another thread has ended the membership: the last swap may have gone to memory that
            // is no longer shared.
            Ok(true) if store.job.has_ended() => Err(OpError::Fail(StoreError::Closed)),
            Ok(true) => Ok(Some(block.version())),
            // A member that makes a version that others may make, too, checks again whether it
            // still has to be made.
            Err(OpError::Again) if attributes.author.is_some() => Err(OpError::Again),
            Err(OpError::Again) => self.confirm(key, &block),
            // A replica was completed meanwhile and has no room, but other members can see the
            // version.
            Err(OpError::Fail(StoreError::OutOfMemory { .. })) if new_version.is_published => {
                match attributes.author {
                    None => self.confirm(key, &block),
                    Some(_) => Err(OpError::Again),
                }
            }
            Err(fail) => Err(fail),
        };
        if attributes.is_deleted && value.is_empty() && !is_published {
            match &outcome {
                Ok(_) => store.record_tombstone(key.key, block.counter),
                Err(OpError::Fail(_)) => store.record_open_tombstone(key.key, block.counter),
                Err(_) => {}
            }
        }
        if matches!(outcome, Err(OpError::Fail(_))) {
            store.record_open_write(key.partition);
        }
        outcome
    }

    /// *check* for a key without a record, once the caller's condition holds: makes the record at
    /// the primary and reconciles it. `Again` if the record has a version by then.
    fn make_record(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        predecessor: &mut Predecessor<'_>,
    ) -> OpResult<()> {
        predecessor.word = self.find_or_insert(config, config.primary, key)?;
        predecessor.head = self.reconciled(config, key, predecessor.word)?;
        if let Some(cached) = &mut predecessor.cached {
            cached.at[config.primary].word = predecessor.word;
        }
        if predecessor.head.offset().is_none() { Ok(()) } else { Err(OpError::Again) }
    }

    /// Keeps the blocks of a new version that no other member has seen, for the next operation.
    pub(in crate::store::record) fn keep_unused(
        &self,
        config: &Configuration,
        new_version: &NewVersion<'_>,
    ) {
        for (replica, member) in config.enumerate() {
            if let Some(offset) = new_version.blocks[replica].offset() {
                self.keep(member, new_version.class, offset);
            }
        }
    }

    /// *confirm*: finds out whether the version happened, after any `Again` of
    /// [`RecordOp::publish`], or if a complete replica had no room for a published version. The
    /// operation adopts the current view and keeps its number. `Again` if the version did not
    /// happen. After any other error the outcome is open.
    #[cold]
    pub(in crate::store) fn confirm(
        &mut self,
        key: &KeyRef<'_>,
        block: &Block,
    ) -> OpResult<Option<Version>> {
        // Its number must stay, by which helpers report the outcome.
        self.stay();
        let mut budget = RetryBudget::default();
        loop {
            self.renew();
            match self.has_happened(key, block) {
                Ok(true) => return Ok(Some(block.version())),
                Ok(false) => return Err(OpError::Again),
                Err(OpError::Again) => budget.check(self.store)?,
                // The salvaged record tells whether the version happened.
                Err(OpError::Lost(partition)) => self.store.await_salvage(partition)?,
                // A replica has no room for the reconciled version, and it is open whether the
                // version stays.
                Err(OpError::Fail(StoreError::OutOfMemory { member, .. })) => {
                    if !budget.wait_for_room(self.store) {
                        let limit = ROOM_WAIT.min(self.store.job.time_limit());
                        return Err(OpError::Fail(StoreError::Timeout { member, limit }));
                    }
                }
                Err(fail) => return Err(fail),
            }
        }
    }

    /// Whether the version happened: it is the current version, or a helper has reported it in the
    /// outcome word.
    fn has_happened(&mut self, key: &KeyRef<'_>, block: &Block) -> OpResult<bool> {
        steps::enter(steps::Step::WriteConfirm);
        let config = self.config(key.partition)?;
        let predecessor = self.find_reconciled(config, key, None, true)?;
        if predecessor.block.is_some_and(|found| found.identity() == block.identity()) {
            return Ok(true);
        }
        Ok(self.load(self.store.me(), self.outcome_word())? == block.operation)
    }
}

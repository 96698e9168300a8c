//! Writing a record on the slow path.

use crate::engine::{Engine, MemberId};
use crate::store::error::{StoreError, StoreResult};
use crate::store::mutant::mutant;
use crate::store::operation::configuration::Config;
use crate::store::operation::error::{Halt, Step};
use crate::store::operation::retry::{Patience, ROOM_PATIENCE};
use crate::store::placement::HOMES_MAX;
use crate::store::record::block_io::block_class;
use crate::store::record::key::KeyRef;
use crate::store::record::location::Remembered;
use crate::store::record::state::RecordOp;
use crate::store::segment::head::Head;
use crate::store::segment::intent::is_intent;
use crate::store::segment::layout::{Block, Kind, OPERATION_MASK, REMOVALS, holder};
use crate::store::steps;
use crate::store::value::Version;

/// What is there when a change is decided.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Current {
    pub(in crate::store) version: Version,
}

/// What a change makes of a key.
pub(in crate::store) enum Change<'a> {
    Put(&'a [u8]),
    Owned(Vec<u8>),
    /// A value that another member is to own.
    PutFor(&'a [u8], MemberId),
    /// The same value, owned by the member that writes it.
    Adopt(Vec<u8>),
    Delete,
    Nothing,
}

/// What a new version is, beside its value.
pub(in crate::store) struct Shape {
    pub(in crate::store) kind: Kind,
    pub(in crate::store) is_deleted: bool,
    pub(in crate::store) owner: MemberId,
    /// Whose version it is, if several members may make the same one, so that it does not matter who does.
    pub(in crate::store) author: Option<MemberId>,
    /// Whether it deletes the key, or is to: then it is above the floor, so that whoever looked at that before, and found no such
    /// key, notices that there was one; see `tx`.
    pub(in crate::store) is_above_floor: bool,
}

impl Shape {
    pub(in crate::store) fn plain(is_deleted: bool, owner: MemberId) -> Shape {
        Shape { kind: Kind::Plain, is_deleted, owner, author: None, is_above_floor: is_deleted }
    }
}

/// A version that is being written.
pub(in crate::store) struct Draft<'v> {
    pub(in crate::store) block: Block,
    pub(in crate::store) value: &'v [u8],
    pub(in crate::store) class: usize,
    /// The block that was taken or filled at each home, 0 if none, or if it is used, or if a request that was not answered may
    /// still come to it or name it.
    pub(in crate::store) offsets: [u64; HOMES_MAX],
    /// The record at each home that is known to have one, 0 otherwise.
    pub(in crate::store) words: [u64; HOMES_MAX],
    /// A bit for each home that is filling and has no room.
    pub(in crate::store) omitted: u64,
    /// Whether the primary's head names it, or has named it.
    pub(in crate::store) is_published: bool,
}

impl<'v> Draft<'v> {
    pub(in crate::store) fn new(block: Block, value: &'v [u8], class: usize) -> Draft<'v> {
        Draft {
            block,
            value,
            class,
            offsets: [0; HOMES_MAX],
            words: [0; HOMES_MAX],
            omitted: 0,
            is_published: false,
        }
    }
}

/// What a draft is to take the place of.
pub(in crate::store) struct Before<'m> {
    /// The head word at the primary, and the settled head that it holds.
    pub(in crate::store) word: u64,
    pub(in crate::store) head: Head,
    /// The version that the head names; `None` if there is none.
    pub(in crate::store) block: Option<Block>,
    /// Where the homes have it.
    pub(in crate::store) memory: Option<&'m mut Remembered>,
    /// Whether nobody has looked yet whether it is so: the publication does, see `series.rs`.
    pub(in crate::store) is_assumed: bool,
}

impl<'m> Before<'m> {
    /// What a handle remembers, without a look.
    pub(in crate::store) fn assumed(config: &Config, memory: &'m mut Remembered) -> Before<'m> {
        let at = &memory.at[config.primary];
        Before {
            word: at.word,
            head: at.head,
            block: Some(memory.block),
            is_assumed: true,
            memory: Some(memory),
        }
    }

    /// Whether a handle knows where a home has the record.
    pub(in crate::store) fn remembers(&self, home: usize) -> bool {
        self.block.is_some() && self.memory.as_ref().is_some_and(|memory| memory.at[home].word != 0)
    }

    /// What is there, as a place and a header.
    pub(in crate::store) fn found(&self) -> Option<(u64, Block)> {
        self.head.offset().zip(self.block)
    }

    /// The head alone; what it names is taken care of.
    pub(in crate::store) fn unknown(head: Head) -> Before<'static> {
        Before { word: 0, head, block: None, memory: None, is_assumed: false }
    }
}

impl<'a> RecordOp<'a> {
    #[inline]
    pub(in crate::store) fn try_write<'v>(
        &mut self,
        key: &KeyRef<'_>,
        memory: Option<&mut Remembered>,
        change: &mut impl FnMut(Option<&Current>, &mut Vec<u8>) -> StoreResult<Change<'v>>,
        needs_value: bool,
    ) -> Step<Option<Version>> {
        let store = self.store;
        // What decides about transactions waits elsewhere.
        if store.frost.is_set() && !is_intent(key.key) {
            return Err(Halt::Frozen);
        }
        let config = self.config(key.partition)?;
        let primary = config.homes[config.primary];
        steps::enter(steps::Step::WriteFind);
        let before = self.find_before(config, key, memory)?;
        let mut buffer = Vec::new();
        let (mut current, mut owner) = (None, store.me());
        if let Some((offset, block)) = before.found().filter(|(_, block)| !block.is_deleted) {
            let (offset, block) = match block.kind {
                Kind::Plain => (offset, block),
                _ => self.free_of_transactions(key, primary, offset, &block)?,
            };
            current = Some(Current { version: block.version() });
            owner = block.owner;
            if needs_value {
                buffer.resize(block.len as usize, 0);
                self.get_value(key.key, primary, offset, &block, &mut buffer)?;
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
            Change::Nothing => {
                return if self.is_still(config, key.partition)? {
                    Ok(None)
                } else {
                    Err(Halt::Again)
                };
            }
        };
        self.replace(config, key, before, value, Shape::plain(is_deleted, owner))
    }

    #[inline]
    fn find_before<'m>(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        memory: Option<&'m mut Remembered>,
    ) -> Step<Before<'m>> {
        match memory {
            None => self.find_settled(config, key, None, false),
            Some(memory) => match self.find_remembered(config, memory)? {
                Ok(before) => Ok(before),
                Err(memory) => self.find_settled(config, key, Some(memory), false),
            },
        }
    }

    /// W2 and W3 by what a handle remembers, if that is still so.
    #[inline]
    fn find_remembered<'m>(
        &self,
        config: &Config,
        memory: &'m mut Remembered,
    ) -> Step<Result<Before<'m>, &'m mut Remembered>> {
        if memory.stamp != config.stamp || !config.are_all_ready() {
            return Ok(Err(memory));
        }
        let primary = config.homes[config.primary];
        let (word, known) = (memory.at[config.primary].word, memory.at[config.primary].head);
        let Some(offset) = known.offset().filter(|_| word != 0) else { return Ok(Err(memory)) };
        let counts: [u64; HOMES_MAX] = self.load_each(self.removals(config))?;
        let known_counts = memory.at.iter().map(|at| at.removals).take(config.homes.len());
        if !counts.into_iter().zip(known_counts).all(|(count, known)| count == known) {
            return Ok(Err(memory));
        }
        let head = Head(self.load(primary, word)?);
        // A block is used again, and its head looks the same: only the version tells.
        if head.stable() != known.stable() || self.load(primary, offset)? != memory.block.counter {
            return Ok(Err(memory));
        }
        let block = Some(memory.block);
        Ok(Ok(Before { word, head, block, memory: Some(memory), is_assumed: false }))
    }

    /// W2 and W3: the settled head of a key's record at the primary, and what it names. If there is no record, one is made
    /// if `must_exist`; otherwise the head word is 0: a call that changes nothing leaves nothing behind.
    pub(in crate::store) fn find_settled<'m>(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        memory: Option<&'m mut Remembered>,
        must_exist: bool,
    ) -> Step<Before<'m>> {
        let (mut memory, primary) = (memory, config.homes[config.primary]);
        let bucket = (primary, self.bucket(config, config.primary, key)?);
        let first = match &mut memory {
            None => self.load(bucket.0, bucket.1)?,
            Some(memory) => {
                **memory = Remembered { stamp: config.stamp, ..Remembered::NOTHING };
                // The counts before anything is looked up, so that a removal after that is noticed.
                let places = self.removals(config).chain([bucket]);
                let words: [u64; HOMES_MAX + 1] = self.load_each(places)?;
                for (at, removals) in memory.at.iter_mut().zip(&words[..config.homes.len()]) {
                    at.removals = *removals;
                }
                words[config.homes.len()]
            }
        };
        let word = match self.find_from(primary, first, key)? {
            Some((word, _)) => word,
            None if must_exist => self.find_or_insert(config, config.primary, key)?,
            None => {
                return Ok(Before {
                    head: config.empty_head(),
                    memory,
                    ..Before::unknown(Head(0))
                });
            }
        };
        let head = self.settled(config, key, word)?;
        let block = head.offset().map(|offset| self.read_block(primary, offset)).transpose()?;
        if let Some(memory) = &mut memory {
            memory.at[config.primary].word = word;
        }
        Ok(Before { word, head, block, memory, is_assumed: false })
    }

    /// Where the homes count the records that they have taken out of their indexes.
    fn removals<'c>(&'c self, config: &'c Config) -> impl Iterator<Item = (MemberId, u64)> + 'c {
        config.homes.iter().zip(&config.roots).map(|(&member, root)| (member, root + REMOVALS))
    }

    /// W4 to W9: puts a version in the place of what was found.
    #[inline]
    pub(in crate::store) fn replace(
        &mut self,
        config: &Config,
        key: &KeyRef<'_>,
        mut before: Before<'_>,
        value: &[u8],
        shape: Shape,
    ) -> Step<Option<Version>> {
        let (store, primary) = (self.store, config.homes[config.primary]);
        if before.word == 0
            && let Err(halt) = self.make_record(config, key, &mut before)
        {
            store.note_tombstone(key.key, 0);
            return Err(halt);
        }
        // The floor after the record was found: what was removed before had raised it.
        let counter = match before.block {
            None => self.floor(primary, key.partition)?,
            // The tombstone may be one that was removed elsewhere.
            Some(block) if block.is_deleted && mutant("forget-tombstone") => 0,
            Some(block) if block.is_deleted || shape.is_above_floor => {
                block.counter.max(self.floor(primary, key.partition)?)
            }
            Some(block) => block.counter,
        };
        let block = Block {
            counter: counter + 1,
            writer: shape.author.unwrap_or(store.me()),
            actor: if shape.author.is_some() { 0 } else { self.actor },
            operation: if shape.author.is_some() { 0 } else { self.number & OPERATION_MASK },
            len: value.len() as u64,
            is_deleted: shape.is_deleted,
            kind: shape.kind,
            holder: holder(store.me()),
            owner: shape.owner,
            checksum: 0,
        };
        let block = store.with_checksum(key, block, value);
        let class = block_class(&block, primary)?;
        let mut draft = Draft::new(block, value, class);
        let result = self.publish(config, key, &mut before, &mut draft);
        match &result {
            Ok(true) => {
                if let Some(memory) = before.memory {
                    (memory.block, memory.class) = (block, class);
                    memory.hint = memory.at[config.primary].head.offset().unwrap_or(0);
                    memory.hint_len = block.len;
                }
                if shape.is_deleted {
                    store.note_tombstone(key.key, block.counter);
                }
            }
            _ => {
                if let Some(memory) = before.memory {
                    memory.forget();
                }
                self.keep_unused(config, &draft);
                if result.is_err() && before.block.is_none() {
                    // The record may stay empty.
                    store.note_tombstone(key.key, 0);
                }
            }
        }
        match result {
            Ok(false) => Err(Halt::Again),
            // Another thread has ended the membership: the last swap may have gone nowhere.
            Ok(true) if store.job.has_ended() => Err(Halt::Fail(StoreError::Closed)),
            Ok(true) => Ok(Some(block.version())),
            // Whoever makes a version that others make too looks again whether it is still to be made.
            Err(Halt::Again) if shape.author.is_some() => Err(Halt::Again),
            Err(Halt::Again) => self.redo(key, &block),
            // A home was completed meanwhile and has no room, but others can see the version.
            Err(Halt::Fail(StoreError::OutOfMemory { .. })) if draft.is_published => {
                match shape.author {
                    None => self.redo(key, &block),
                    Some(_) => Err(Halt::Again),
                }
            }
            Err(fail) => Err(fail),
        }
    }

    /// W2 and W3 for a key that had no record: makes one. `Again` if there is something by now.
    fn make_record(&self, config: &Config, key: &KeyRef<'_>, before: &mut Before<'_>) -> Step<()> {
        before.word = self.find_or_insert(config, config.primary, key)?;
        before.head = self.settled(config, key, before.word)?;
        if let Some(memory) = &mut before.memory {
            memory.at[config.primary].word = before.word;
        }
        if before.head.offset().is_none() { Ok(()) } else { Err(Halt::Again) }
    }

    /// Whether the view has changed, where that matters to a version that all homes of the configuration hold: those who
    /// live keep it whatever happens, but what the dead have may have been salvaged before it was there.
    #[inline]
    pub(in crate::store) fn is_late(&self) -> bool {
        self.store.salvage_is_on && !self.is_current() && !mutant("salvage-late")
    }

    /// Keeps the blocks of a draft that nobody has seen for the next time.
    pub(in crate::store) fn keep_unused(&self, config: &Config, draft: &Draft<'_>) {
        for (&member, &offset) in
            config.homes.iter().zip(&draft.offsets).filter(|(_, offset)| **offset != 0)
        {
            self.keep(member, draft.class, offset);
        }
    }

    /// The view has changed in the middle: finds out whether the version happened.
    #[cold]
    pub(in crate::store) fn redo(
        &mut self,
        key: &KeyRef<'_>,
        block: &Block,
    ) -> Step<Option<Version>> {
        let mut patience = Patience::default();
        loop {
            self.renew();
            match self.has_happened(key, block) {
                Ok(true) => return Ok(Some(block.version())),
                Ok(false) => return Err(Halt::Again),
                Err(Halt::Again) => patience.check(self.store)?,
                // What is salvaged tells.
                Err(Halt::Lost(partition)) => self.store.await_salvage(partition)?,
                // Nobody can tell whether the version stays.
                Err(Halt::Fail(StoreError::OutOfMemory { member, .. })) => {
                    if !patience.wait_for_room(self.store) {
                        let limit = ROOM_PATIENCE.min(self.store.job.time_limit());
                        return Err(Halt::Fail(StoreError::Timeout { member, limit }));
                    }
                }
                Err(fail) => return Err(fail),
            }
        }
    }

    fn has_happened(&mut self, key: &KeyRef<'_>, block: &Block) -> Step<bool> {
        steps::enter(steps::Step::WriteConfirm);
        let config = self.config(key.partition)?;
        let before = self.find_settled(config, key, None, true)?;
        if before.block.is_some_and(|found| found.identity() == block.identity()) {
            return Ok(true);
        }
        Ok(self.load(self.store.me(), self.outcome_word())? == block.operation)
    }
}

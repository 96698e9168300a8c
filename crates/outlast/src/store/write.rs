//! Writing, settling and reading: docs/protocol.md, steps W1 to W9 and T1 to T5.

use super::access::{Halt, Op, Step};
use super::head::{Head, Phase, State};
use super::index::{KeyRef, check_place};
use super::layout::{
    ACTOR_OUTCOME, BLOCK_HEADER_LEN, BLOCK_HOLDER, Block, Kind, OPERATION_MASK, PARTITION_BUCKETS,
    PARTITION_STATE, PARTITION_WAITERS, REMOVALS, TOMBSTONES, class_of, holder, value_start,
};
use super::mutant::mutant;
use super::open::Inner;
use super::placement::{HOMES_MAX, Homes, hash_key};
use super::steps;
use super::{StoreError, StoreResult, Value, Version, check_len};
use crate::engine::mapped::Directly;
use crate::engine::{COMPOUND_LEN_MAX, Done, Epoch, MemberId, Operation, Time};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A configuration of a partition, as this member has entered it.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Config {
    /// The newest epoch for which this configuration is known to be the right one.
    epoch: AtomicU64,
    /// The configuration's number, which stamps the heads written under it.
    pub(super) stamp: u64,
    /// Which of the homes decides the order of writes.
    pub(super) primary: usize,
    /// A bit for each home that has an index: it is filling or complete, and stays so.
    ready: AtomicU64,
    pub(super) homes: HomeList,
    /// Where the root of each home is.
    pub(super) roots: [u64; HOMES_MAX],
    /// Where the buckets of each home are, 0 while unknown.
    pub(super) buckets: [AtomicU64; HOMES_MAX],
    /// The configuration that came after this one.
    next: OnceLock<Box<Config>>,
}

/// The homes of a partition, the most preferred one first; in place, so that it costs no further line of the cache.
#[derive(Debug)]
pub(super) struct HomeList {
    len: u32,
    pub(super) members: [MemberId; HOMES_MAX],
}

impl HomeList {
    fn new(homes: &[MemberId]) -> HomeList {
        let mut members = [MemberId(0); HOMES_MAX];
        members[..homes.len()].copy_from_slice(homes);
        HomeList { len: homes.len() as u32, members }
    }
}

impl std::ops::Deref for HomeList {
    type Target = [MemberId];

    #[inline(always)]
    fn deref(&self) -> &[MemberId] {
        &self.members[..self.len as usize]
    }
}

impl Config {
    pub(super) fn is_ready(&self, home: usize) -> bool {
        self.ready.load(Ordering::Acquire) & 1 << home != 0
    }

    /// Makes sure that no operation that begins from now on takes this for the right configuration, unless it is.
    fn forget_unless(&self, homes: &Homes) {
        if !self.is_same(homes) {
            self.epoch.store(u64::MAX, Ordering::SeqCst);
        }
    }

    /// The same for this one and all that came after it.
    pub(super) fn forget_all_unless(&self, homes: &Homes) {
        let mut config = Some(self);
        while let Some(known) = config {
            known.forget_unless(homes);
            config = known.next.get().map(Box::as_ref);
        }
    }

    /// Whether a home has an index that is not among `done`, a bit for each. Other threads share what is known: a home
    /// that one of them has just found is news to everyone whose list of homes is older.
    fn has_others_than(&self, done: u64) -> bool {
        self.ready.load(Ordering::Acquire) & !done != 0 && !mutant("miss-news")
    }

    fn ready_homes(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.homes.len()).filter(|&home| self.is_ready(home))
    }

    #[inline(always)]
    pub(super) fn are_all_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire) == (1 << self.homes.len()) - 1
    }

    /// The head of a new record. Before the first death there is nothing that could be brought up from elsewhere.
    pub(super) fn empty_head(&self) -> Head {
        let head = Head::new(self.stamp, 0);
        if self.stamp == 1 { head.stable() } else { head }
    }

    fn is_same(&self, homes: &Homes) -> bool {
        self.stamp == homes.configuration && *self.homes == *homes.members
    }
}

/// What a handle remembers of its key: the version that it saw last, and where the homes have it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Remembered {
    pub(super) stamp: u64,
    /// Where the primary's block was when it was last read or written, 0 if it was not: worth fetching, and no more than that.
    pub(super) hint: u64,
    /// Per home; the first ones, which are used most, lie in the same line as the above.
    pub(super) at: [RememberedAt; HOMES_MAX],
    /// The version that these heads name, and the class of its blocks.
    pub(super) block: Block,
    pub(super) class: usize,
    /// How long the value was that is there.
    pub(super) hint_len: u64,
    /// How many recoveries there had been when the handle wrote it; none has had the greatest number.
    pub(super) recoveries: u64,
}

/// What a handle remembers of one home.
#[derive(Clone, Copy, Debug)]
pub(super) struct RememberedAt {
    /// The head word of the record, 0 while unknown, and what it held.
    pub(super) word: u64,
    pub(super) head: Head,
    /// How often the home had taken records out of its index: if it has not done so since, the record is where it was.
    pub(super) removals: u64,
}

/// What is there when a change is decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Current {
    pub(super) version: Version,
}

/// What a change makes of a key.
pub(super) enum Change<'a> {
    Put(&'a [u8]),
    Owned(Vec<u8>),
    /// A value that another member is to own.
    PutFor(&'a [u8], MemberId),
    /// The same value, owned by the member that writes it.
    Adopt(Vec<u8>),
    Delete,
    Nothing,
}

impl Remembered {
    /// Nothing yet. No configuration has the number 0.
    pub(super) const NOTHING: Remembered = Remembered {
        stamp: 0,
        hint: 0,
        at: [RememberedAt { word: 0, head: Head(0), removals: 0 }; HOMES_MAX],
        block: Block {
            counter: 0,
            writer: MemberId(0),
            actor: 0,
            operation: 0,
            len: 0,
            is_deleted: true,
            kind: Kind::Plain,
            holder: 0,
            owner: MemberId(0),
            checksum: 0,
        },
        class: 0,
        hint_len: 0,
        recoveries: u64::MAX,
    };

    /// Looks everything up the next time.
    pub(super) fn forget(&mut self) {
        self.stamp = 0;
    }
}

/// A version that a reader has found.
pub(super) struct Found {
    pub(super) home: MemberId,
    pub(super) offset: u64,
    pub(super) block: Block,
    /// The value, if it came along.
    value: Option<Vec<u8>>,
}

impl Found {
    pub(super) fn to_value(&self, op: &Op<'_>, key: &[u8]) -> Step<Value> {
        let mut bytes = vec![0; self.block.len as usize];
        self.copy(op, key, &mut bytes)?;
        Ok(Value { bytes, version: self.block.version(), owner: self.block.owner })
    }

    /// Copies the value, and checks it.
    #[inline]
    pub(super) fn copy(&self, op: &Op<'_>, key: &[u8], target: &mut [u8]) -> Step<()> {
        match &self.value {
            None => op.get_value(key, self.home, self.offset, &self.block, target),
            Some(value) => {
                target.copy_from_slice(value);
                op.store.check_value(key, self.home, &self.block, target).map_err(Halt::Fail)
            }
        }
    }
}

/// A version that is being written.
pub(super) struct Draft<'v> {
    pub(super) block: Block,
    pub(super) value: &'v [u8],
    pub(super) class: usize,
    /// The block that was taken or filled at each home, 0 if none, or if it is used, or if a request that was not answered may
    /// still come to it or name it.
    pub(super) offsets: [u64; HOMES_MAX],
    /// The record at each home that is known to have one, 0 otherwise.
    words: [u64; HOMES_MAX],
    /// A bit for each home that is filling and has no room.
    omitted: u64,
    /// Whether the primary's head names it, or has named it.
    pub(super) is_published: bool,
}

impl<'v> Draft<'v> {
    pub(super) fn new(block: Block, value: &'v [u8], class: usize) -> Draft<'v> {
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
pub(super) struct Before<'m> {
    /// The head word at the primary, and the settled head that it holds.
    pub(super) word: u64,
    pub(super) head: Head,
    /// The version that the head names; `None` if there is none.
    pub(super) block: Option<Block>,
    /// Where the homes have it.
    pub(super) memory: Option<&'m mut Remembered>,
    /// Whether nobody has looked yet whether it is so: the publication does, see `series.rs`.
    is_assumed: bool,
}

impl<'m> Before<'m> {
    /// What a handle remembers, without a look.
    pub(super) fn assumed(config: &Config, memory: &'m mut Remembered) -> Before<'m> {
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
    fn remembers(&self, home: usize) -> bool {
        self.block.is_some() && self.memory.as_ref().is_some_and(|memory| memory.at[home].word != 0)
    }

    /// What is there, as a place and a header.
    pub(super) fn found(&self) -> Option<(u64, Block)> {
        self.head.offset().zip(self.block)
    }

    /// The head alone; what it names is taken care of.
    pub(super) fn unknown(head: Head) -> Before<'static> {
        Before { word: 0, head, block: None, memory: None, is_assumed: false }
    }
}

/// What a new version is, beside its value.
pub(super) struct Shape {
    pub(super) kind: Kind,
    pub(super) is_deleted: bool,
    pub(super) owner: MemberId,
    /// Whose version it is, if several members may make the same one, so that it does not matter who does.
    pub(super) author: Option<MemberId>,
    /// Whether it deletes the key, or is to: then it is above the floor, so that whoever looked at that before, and found no such
    /// key, notices that there was one; see `tx`.
    pub(super) is_above_floor: bool,
}

impl Shape {
    pub(super) fn plain(is_deleted: bool, owner: MemberId) -> Shape {
        Shape { kind: Kind::Plain, is_deleted, owner, author: None, is_above_floor: is_deleted }
    }
}

/// No counter of a version comes near to this.
pub(super) const COUNTER_MAX: u64 = 1 << 63;

/// How often to begin anew before the clock is looked at.
const ATTEMPTS: u32 = 256;

/// How long to wait where a home has no room, for a delete or for what is published already, and how often to look.
const ROOM_PATIENCE: Duration = Duration::from_secs(1);
const ROOM_PAUSE: Duration = Duration::from_millis(2);

/// How long a call begins anew: each time somebody else was faster, or the view has changed, so that this has an end
/// unless memory is damaged. No call goes on for ever, whatever is in memory.
#[derive(Default)]
struct Patience {
    attempts: u32,
    until: Option<Time>,
    /// Until when to wait for room.
    room_until: Option<Time>,
}

impl Patience {
    #[inline]
    fn check(&mut self, store: &Inner) -> StoreResult<()> {
        self.attempts += 1;
        if self.attempts.is_multiple_of(ATTEMPTS) { self.look(store) } else { Ok(()) }
    }

    /// Sleeps a little, so that there is room meanwhile; not for long in all.
    #[cold]
    fn wait_for_room(&mut self, store: &Inner) -> bool {
        let job = &store.job;
        let now = job.now();
        let until = *self.room_until.get_or_insert(now.after(ROOM_PATIENCE.min(job.time_limit())));
        if now >= until {
            return false;
        }
        let next = until.min(now.after(ROOM_PAUSE));
        while job.now() < next {
            let bell = job.bell();
            store.serve_messages();
            job.park(bell, next);
        }
        true
    }

    #[cold]
    fn look(&mut self, store: &Inner) -> StoreResult<()> {
        // Whoever waits serves: this may be the background, and what it waits for may be in a message, such as that somebody
        // leaves, whom the others know already.
        store.serve_messages();
        let (now, limit) = (store.job.now(), store.job.time_limit());
        if now >= *self.until.get_or_insert(now.after(limit)) {
            return Err(StoreError::Timeout { member: store.me(), limit });
        }
        Ok(())
    }
}

/// The length of a value from which on it is compared with the length of the segment.
const LARGE_LEN: u64 = 1 << 20;

/// Short values are put together with their header.
const SHORT_LEN_MAX: usize = 224;

/// What a block is filled with: the header, in one piece with a short value, and the value otherwise.
pub(super) struct Content<'v> {
    begin: [u8; BLOCK_HEADER_LEN as usize + SHORT_LEN_MAX],
    begin_len: usize,
    rest: &'v [u8],
}

impl<'v> Content<'v> {
    #[inline]
    pub(super) fn new(block: &Block, value: &'v [u8]) -> Content<'v> {
        const HEADER: usize = BLOCK_HEADER_LEN as usize;
        let mut begin = [0; HEADER + SHORT_LEN_MAX];
        begin[..HEADER].copy_from_slice(&block.encode());
        if value.len() > SHORT_LEN_MAX {
            return Content { begin, begin_len: HEADER, rest: value };
        }
        begin[HEADER..HEADER + value.len()].copy_from_slice(value);
        // Whole words: a part of one would have to be exchanged.
        Content { begin, begin_len: (HEADER + value.len()).next_multiple_of(8), rest: &[] }
    }

    /// Where in a block its parts go; the second may be empty.
    pub(super) fn places(&self, offset: u64) -> [(u64, &[u8]); 2] {
        let begin = &self.begin[..self.begin_len];
        [(offset, begin), (offset + value_start(self.rest.len() as u64), self.rest)]
    }
}

/// The part of a notice word that says who waits; the rest counts how often someone has entered itself.
pub(super) const WAITER_BITS: u64 = (1 << 40) - 1;

/// The bit of a member in a notice word; members may share one.
fn waiter_bit(member: MemberId) -> u64 {
    1 << (member.0 % 40)
}

impl<'a> Op<'a> {
    /// The configuration of a partition under this operation's view; enters it if nobody of this member has.
    #[inline]
    pub(super) fn config(&self, partition: usize) -> Step<&'a Config> {
        match self.known_config(partition) {
            Some(config) => Ok(config),
            None => self.enter_config(partition),
        }
    }

    /// The configuration of a partition under this operation's view, if it was entered.
    #[inline(always)]
    pub(super) fn known_config(&self, partition: usize) -> Option<&'a Config> {
        let mut known = self.store.partitions[partition].first.get();
        while let Some(config) = known {
            if config.epoch.load(Ordering::Acquire) == self.epoch.0 {
                return Some(config);
            }
            known = config.next.get().map(Box::as_ref);
        }
        None
    }

    #[cold]
    fn enter_config(&self, partition: usize) -> Step<&'a Config> {
        let store = self.store;
        let view = store.view(self.epoch).ok_or(Halt::Again)?;
        let leaving = store.leaving.version();
        let homes = store.homes(partition, &view);
        let mut entered = None;
        loop {
            // If somebody has begun to leave, operations that begin later must not find an old list, not even until this
            // one looks again: so nobody begins to leave while it is made known.
            let is_known = store.leaving.unless_changed(leaving, || {
                let first = &store.partitions[partition].first;
                let mut known = match first.get() {
                    None => entered.take().map(|entered| first.get_or_init(|| entered)),
                    known => known,
                };
                while let Some(config) = known {
                    if config.is_same(&homes) {
                        // Also if it was forgotten, by someone who did not know of the last death.
                        let epoch = config.epoch.load(Ordering::Acquire);
                        if epoch < self.epoch.0 || epoch == u64::MAX {
                            config.epoch.store(self.epoch.0, Ordering::SeqCst);
                        }
                        return Ok(known);
                    }
                    if config.stamp > homes.configuration {
                        return Err(Halt::Again);
                    }
                    known = match config.next.get() {
                        None => entered
                            .take()
                            .map(|entered| &**config.next.get_or_init(|| Box::new(entered))),
                        next => next.map(Box::as_ref),
                    };
                }
                Ok(None)
            });
            if let Some(config) = is_known.ok_or(Halt::Again)?? {
                return Ok(config);
            }
            entered = Some(self.enter(partition, &homes)?);
        }
    }

    #[inline(always)]
    pub(super) fn partition_word(&self, home: MemberId, partition: usize, field: u64) -> u64 {
        self.store.root(home) + self.store.layout.partition(partition) + field
    }

    pub(super) fn state(&self, home: MemberId, partition: usize) -> Step<State> {
        Ok(State(self.load(home, self.partition_word(home, partition, PARTITION_STATE))?))
    }

    pub(super) fn swap_state(
        &self,
        home: MemberId,
        partition: usize,
        from: State,
        to: State,
    ) -> Step<bool> {
        self.swap(home, self.partition_word(home, partition, PARTITION_STATE), from.0, to.0)
    }

    /// Enters a configuration: stamps the states of the homes that are not complete, so that a late repairer of an
    /// older configuration cannot complete them, and finds the primary.
    fn enter(&self, partition: usize, homes: &Homes) -> Step<Config> {
        let (mut primary, mut ready, stamp) = (None, 0, homes.configuration);
        for (index, &home) in homes.members.iter().enumerate() {
            let state = loop {
                let state = self.state(home, partition)?;
                if state.phase() == Phase::Complete || state.configuration() == stamp {
                    break state;
                }
                if state.configuration() > stamp {
                    return Err(Halt::Again);
                }
                self.swap_state(home, partition, state, State::new(state.phase(), stamp))?;
            };
            match state.phase() {
                Phase::Absent | Phase::Lost => {}
                Phase::Filling => {
                    ready |= 1 << index;
                    primary = if mutant("trust-absent") { Some(index) } else { primary };
                }
                Phase::Complete => {
                    ready |= 1 << index;
                    if state.configuration() < stamp && primary.is_none() {
                        primary = Some(index);
                    }
                }
            }
        }
        let primary = primary.ok_or(Halt::Lost(partition))?;
        Ok(self.new_config(stamp, &homes.members, primary, ready))
    }

    fn new_config(&self, stamp: u64, homes: &[MemberId], primary: usize, ready: u64) -> Config {
        Config {
            epoch: AtomicU64::new(self.epoch.0),
            stamp,
            primary,
            ready: AtomicU64::new(ready),
            homes: HomeList::new(homes),
            roots: std::array::from_fn(|home| {
                homes.get(home).map_or(0, |&home| self.store.root(home))
            }),
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            next: OnceLock::new(),
        }
    }

    /// A configuration in which this member is alone, for what nobody else sees yet.
    pub(super) fn config_alone(&self, stamp: u64) -> Config {
        self.new_config(stamp, &[self.store.me()], 0, 1)
    }

    pub(super) fn buckets(&self, config: &Config, home: usize, partition: usize) -> Step<u64> {
        let known = config.buckets[home].load(Ordering::Acquire);
        if known != 0 {
            return Ok(known);
        }
        let member = config.homes[home];
        let buckets =
            self.load(member, self.partition_word(member, partition, PARTITION_BUCKETS))?;
        check_place(member, buckets)?;
        config.buckets[home].store(buckets, Ordering::Release);
        Ok(buckets)
    }

    /// Looks whether homes that had no index have one now.
    pub(super) fn find_new_homes(&self, config: &Config, partition: usize) -> Step<()> {
        for home in (0..config.homes.len()).filter(|&home| !config.is_ready(home)) {
            steps::enter(steps::Step::WriteCatchUp);
            if !self.state(config.homes[home], partition)?.is_absent() {
                config.ready.fetch_or(1 << home, Ordering::AcqRel);
            }
        }
        Ok(())
    }

    pub(super) fn read_block(&self, home: MemberId, offset: u64) -> Step<Block> {
        let mut bytes = [0; BLOCK_HEADER_LEN as usize];
        self.get(home, offset, &mut bytes)?;
        let block = Block::decode(&bytes);
        self.check_block(home, offset, &block).map(|()| block)
    }

    /// What others have written is looked at before anything is made of it.
    fn check_block(&self, home: MemberId, offset: u64, block: &Block) -> Step<()> {
        let is_possible = block.writer.index() < self.store.job.members()
            && block.counter < COUNTER_MAX
            && class_of(value_start(block.len) + block.len).is_some();
        // Nobody asks for memory for a value that is longer than the segment.
        let is_possible = is_possible
            && (block.len < LARGE_LEN
                || offset + value_start(block.len) + block.len
                    <= self.store.job.segment_len(home)?);
        match is_possible {
            true => Ok(()),
            false => {
                Err(Halt::Fail(StoreError::Corrupt { member: home, what: "a value cannot be" }))
            }
        }
    }

    /// The counter of the version that a head names; 0 if it names none.
    fn counter(&self, home: MemberId, head: Head) -> Step<u64> {
        head.offset().map_or(Ok(0), |offset| self.load(home, offset))
    }

    /// Fills a block at a home with a version.
    pub(super) fn fill_block(&self, home: MemberId, block: &Block, value: &[u8]) -> Step<u64> {
        steps::enter(steps::Step::WriteFill);
        let class = block_class(block, home)?;
        let block = Block { holder: holder(self.store.me()), ..*block };
        let offset = self.take_block(home, class)?;
        self.fill(home, class, offset, &Content::new(&block, value))
    }

    /// Fills this block.
    #[inline]
    fn fill(&self, home: MemberId, class: usize, offset: u64, content: &Content<'_>) -> Step<u64> {
        let mut places = content.places(offset).into_iter().filter(|(_, bytes)| !bytes.is_empty());
        let filled = places.try_for_each(|(offset, bytes)| self.put(home, offset, bytes));
        if filled.is_err() {
            self.keep_unless_late(home, class, offset, &filled);
        }
        filled.map(|()| offset)
    }

    /// Keeps a block that was not used, since somebody was faster or the view has changed: after a refusal nothing was written.
    /// After a timeout something may still be, whenever the home goes on: the block must not be used for anything else.
    pub(super) fn keep_unless_late<T>(
        &self,
        home: MemberId,
        class: usize,
        offset: u64,
        result: &Step<T>,
    ) {
        if let Ok(_) | Err(Halt::Again) = result {
            self.keep(home, class, offset);
        }
    }

    /// Retires the block that a head named, after it was swapped out: under any view, since nobody else does. Whatever fails,
    /// it was swapped out all the same.
    pub(super) fn retire_head(&self, home: MemberId, head: Head) {
        let Some(offset) = head.offset() else { return };
        let mut bytes = [0; BLOCK_HEADER_LEN as usize];
        let read = self.store.job.get(Epoch::ANY, home, offset, &mut bytes);
        if read.map_err(|error| self.noted(home, error)).is_ok() {
            let block = Block::decode(&bytes);
            let _ = block_class(&block, home)
                .and_then(|class| self.retire_block(home, offset, &block, class));
        }
    }

    /// Retires a block that was swapped out, which holds this version: this member is its holder from now on.
    #[inline(always)]
    pub(super) fn retire_block(
        &self,
        home: MemberId,
        offset: u64,
        block: &Block,
        class: usize,
    ) -> Step<()> {
        let me = holder(self.store.me());
        if block.holder != me {
            let (old, new) = (block.length_word(), Block { holder: me, ..*block }.length_word());
            // Under any view: nobody else may take it, whatever has happened since. By a swap, since a request that comes
            // late may find it taken back from its dead holder, whose word never comes again, and used for another version.
            if !self.swap_own(home, offset + BLOCK_HOLDER, old, new)? {
                return Ok(());
            }
        }
        self.retire(home, class, offset);
        Ok(())
    }

    /// W6 for one home: makes it hold a version, or something later. The block is used, and the head word returned, or
    /// it is kept for later.
    fn install(
        &self,
        config: &Config,
        home: usize,
        key: &KeyRef<'_>,
        draft: &Draft<'_>,
        offset: u64,
    ) -> Step<Option<u64>> {
        let (member, block) = (config.homes[home], &draft.block);
        let word = match draft.words[home] {
            0 => self.find_or_insert(config, home, key)?,
            word => word,
        };
        loop {
            let found = Head(self.load(member, word)?);
            if found.stamp() > config.stamp {
                return Err(Halt::Again);
            }
            if found.stamp() == config.stamp && self.counter(member, found)? >= block.counter {
                self.keep(member, block_class(block, member)?, offset);
                return Ok(None);
            }
            if self.swap(member, word, found.0, Head::new(config.stamp, offset).0)? {
                self.retire_head(member, found);
                return Ok(Some(word));
            }
        }
    }

    /// The primary's head, settled under this configuration: whatever is unfinished is finished first.
    pub(super) fn settled(&self, config: &Config, key: &KeyRef<'_>, word: u64) -> Step<Head> {
        let primary = config.homes[config.primary];
        let mut patience = Patience::default();
        loop {
            patience.check(self.store)?;
            let head = Head(self.load(primary, word)?);
            if head.stamp() > config.stamp {
                return Err(Halt::Again);
            }
            if head.stamp() == config.stamp && (head.is_stable() || mutant("no-help")) {
                return Ok(head);
            }
            self.settle(config, key)?;
        }
    }

    /// T1 to T5, once; the caller looks whether it was enough.
    fn settle(&self, config: &Config, key: &KeyRef<'_>) -> Step<()> {
        self.find_new_homes(config, key.partition)?;
        // T1: seal the complete homes; look at the others.
        steps::enter(steps::Step::ReconcileSeal);
        let mut found: Vec<(usize, u64, Head, bool)> = Vec::with_capacity(config.homes.len());
        let mut omitted = 0;
        for home in config.ready_homes() {
            let member = config.homes[home];
            let is_complete = self.state(member, key.partition)?.phase() == Phase::Complete;
            let word = match self.find_or_insert(config, home, key) {
                Ok(word) => word,
                Err(halt) if self.may_omit(config, home, key.partition, &halt)? => {
                    omitted |= 1u64 << home;
                    continue;
                }
                Err(halt) => return Err(halt),
            };
            let head = loop {
                let head = Head(self.load(member, word)?);
                if head.stamp() > config.stamp {
                    return Err(Halt::Again);
                }
                if !is_complete || head.stamp() == config.stamp {
                    break head;
                }
                let sealed = head.restamped(config.stamp);
                if self.swap(member, word, head.0, sealed.0)? {
                    break sealed;
                }
            };
            if home == config.primary && head.is_stable() && head.stamp() == config.stamp {
                return Ok(());
            }
            found.push((home, word, head, is_complete));
        }
        // T2: the greatest version among the complete homes.
        steps::enter(steps::Step::ReconcileChoose);
        let mut greatest: Option<(u64, usize, Head)> = None;
        for &(home, _, head, is_complete) in &found {
            if is_complete {
                let counter = self.counter(config.homes[home], head)?;
                if greatest.is_none_or(|(other, _, _)| counter > other) {
                    greatest = Some((counter, home, head));
                }
            }
        }
        let (counter, source, source_head) = greatest.ok_or(Halt::Again)?;
        let version = match source_head.offset() {
            None => None,
            Some(offset) => {
                let member = config.homes[source];
                let block = self.read_block(member, offset)?;
                let mut value = vec![0; block.len as usize];
                self.get(member, offset + value_start(block.len), &mut value)?;
                Some((block, value))
            }
        };
        // T3: install it where it is not. Only what was seen above is replaced: if it has changed, look again.
        let mut primary_head = source_head;
        for &(home, word, head, _) in &found {
            let member = config.homes[home];
            if head.stamp() == config.stamp && self.counter(member, head)? == counter {
                if home == config.primary {
                    primary_head = head;
                }
                continue;
            }
            if head.stamp() == config.stamp && self.counter(member, head)? > counter {
                // Something newer was written here while this looked.
                return Ok(());
            }
            let new = match &version {
                None => Head::new(config.stamp, 0),
                Some((block, value)) => match self.fill_block(member, block, value) {
                    Ok(offset) => Head::new(config.stamp, offset),
                    Err(halt) if self.may_omit(config, home, key.partition, &halt)? => {
                        omitted |= 1 << home;
                        continue;
                    }
                    Err(halt) => return Err(halt),
                },
            };
            steps::enter(steps::Step::ReconcileInstall);
            let swapped = self.swap(member, word, head.0, new.0);
            if !matches!(swapped, Ok(true)) {
                if let (Some(offset), Some((block, _))) = (new.offset(), &version) {
                    self.keep_unless_late(member, block_class(block, member)?, offset, &swapped);
                }
                return swapped.map(|_| ());
            }
            self.retire_head(member, head);
            if home == config.primary {
                primary_head = new;
            }
        }
        // A home that got its index meanwhile lacks it.
        self.find_new_homes(config, key.partition)?;
        if config.has_others_than(found.iter().fold(omitted, |done, &(home, ..)| done | 1 << home))
        {
            return Ok(());
        }
        for home in (0..config.homes.len()).filter(|&home| omitted & 1 << home != 0) {
            self.omit(config, home, key.partition)?;
        }
        // T4: its writer must be able to know, before anyone builds on it.
        steps::enter(steps::Step::ReconcileNotifyWriter);
        if let Some((block, _)) = &version {
            self.tell_writer(block)?;
        }
        steps::enter(steps::Step::ReconcileMarkStable);
        let (primary, word) = found
            .iter()
            .find(|(home, ..)| *home == config.primary)
            .map(|&(home, word, ..)| (config.homes[home], word))
            .ok_or(Halt::Again)?;
        // Its writer may be stopped, or may not get as far as to ring: whoever sees the mark need not care.
        self.ring_waiters(primary, key.partition)?;
        // T5. If the swap fails someone else has settled it, or gone on.
        self.swap(primary, word, primary_head.0, primary_head.stable().0)?;
        Ok(())
    }

    /// Makes a filling home hold what the primary has of a key, or something later.
    pub(super) fn copy_record(&self, config: &Config, key: &KeyRef<'_>, target: usize) -> Step<()> {
        let primary = config.homes[config.primary];
        let word = self.find_or_insert(config, config.primary, key)?;
        loop {
            let head = self.settled(config, key, word)?;
            let member = config.homes[target];
            let target_word = self.find_or_insert(config, target, key)?;
            let found = Head(self.load(member, target_word)?);
            if found.stamp() > config.stamp {
                return Err(Halt::Again);
            }
            let wanted = self.counter(primary, head)?;
            let is_older = found.stamp() < config.stamp || self.counter(member, found)? < wanted;
            if is_older || mutant("repair-over-newer") {
                let (new, class) = match head.offset() {
                    None => (Head::new(config.stamp, 0), None),
                    Some(offset) => {
                        let block = self.read_block(primary, offset)?;
                        let mut value = vec![0; block.len as usize];
                        self.get(primary, offset + value_start(block.len), &mut value)?;
                        let filled = self.fill_block(member, &block, &value)?;
                        (Head::new(config.stamp, filled), Some(block_class(&block, member)?))
                    }
                };
                let swapped = self.swap(member, target_word, found.0, new.0);
                match (&swapped, new.offset().zip(class)) {
                    (Ok(true), _) => self.retire_head(member, found),
                    (_, Some((offset, class))) => {
                        self.keep_unless_late(member, class, offset, &swapped)
                    }
                    (_, None) => {}
                }
                swapped?;
            }
            // Once more if the source has changed meanwhile.
            if self.load(primary, word)? == head.0 || mutant("repair-over-newer") {
                return Ok(());
            }
        }
    }

    /// Tells the writer of a version that it happened, if it lives. The word only grows: a late helper of an earlier
    /// operation takes nothing back.
    pub(super) fn tell_writer(&self, block: &Block) -> Step<()> {
        let view = self.store.view(self.epoch).ok_or(Halt::Again)?;
        // A version that several may make has no writer who wants to know.
        if !view.is_living(block.writer) || block.operation == 0 {
            return Ok(());
        }
        let word =
            self.store.root(block.writer) + self.store.layout.actor(block.actor) + ACTOR_OUTCOME;
        loop {
            let outcome = self.load(block.writer, word)?;
            if outcome >= block.operation
                || self.swap(block.writer, word, outcome, block.operation)?
            {
                return Ok(());
            }
        }
    }

    /// W4 to W7: fills a block at each home and publishes the draft; whether it was published.
    #[inline]
    fn publish(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        before: &mut Before<'_>,
        draft: &mut Draft<'_>,
    ) -> Step<bool> {
        if before.is_assumed {
            return self.publish_in_series(config, key, before, draft);
        }
        steps::enter(steps::Step::WriteFill);
        let content = Content::new(&draft.block, draft.value);
        for home in config.ready_homes() {
            let member = config.homes[home];
            let offset = match self.take_block(member, draft.class) {
                Ok(offset) => offset,
                Err(halt) if self.may_omit(config, home, key.partition, &halt)? => {
                    draft.omitted |= 1 << home;
                    continue;
                }
                Err(halt) => return Err(halt),
            };
            let is_late = mutant("publish-early") && home == config.primary;
            let content = if is_late { &Content::new(&draft.block, &[]) } else { &content };
            draft.offsets[home] = self.fill(member, draft.class, offset, content)?;
        }
        // W2 for the other homes. Before anything is published: there may be no room for a record; and after the blocks, so
        // that a put that has no room for its value leaves no records behind.
        for home in config.ready_homes() {
            if home == config.primary || draft.omitted & 1 << home != 0 || before.remembers(home) {
                continue;
            }
            match self.find_or_insert(config, home, key) {
                Ok(word) => draft.words[home] = word,
                Err(halt) if self.may_omit(config, home, key.partition, &halt)? => {
                    draft.omitted |= 1 << home
                }
                Err(halt) => return Err(halt),
            }
        }
        for home in config.ready_homes().filter(|&home| draft.omitted & 1 << home != 0) {
            // Before the publication, too: whoever is about to complete it, without room for this, has to begin anew.
            self.omit(config, home, key.partition)?;
        }
        let primary = config.homes[config.primary];
        // Without the mark, also if nobody else is to hold it: whoever sees the mark rings nobody.
        let head = Head::new(config.stamp, draft.offsets[config.primary]);
        steps::enter(steps::Step::WritePublish);
        match self.swap(primary, before.word, before.head.0, head.0) {
            Ok(true) => {}
            Err(Halt::Fail(error)) => {
                // The swap may still be made.
                draft.offsets[config.primary] = 0;
                return Err(Halt::Fail(error));
            }
            not => return not,
        }
        if mutant("publish-early") && !draft.value.is_empty() {
            let offset = draft.offsets[config.primary] + value_start(draft.block.len);
            self.put(primary, offset, draft.value)?;
        }
        self.note_published(config, before, draft, head);
        self.conclude(config, key, before, draft, (head, None), Ok(1 << config.primary))
    }

    /// The primary's head names the draft.
    pub(super) fn note_published(
        &self,
        config: &Config,
        before: &mut Before<'_>,
        draft: &mut Draft<'_>,
        head: Head,
    ) {
        (draft.offsets[config.primary], draft.is_published) = (0, true);
        if let Some(memory) = &mut before.memory {
            memory.at[config.primary].head = head;
        }
    }

    /// W6 to W8 for a draft that is published under this head, and retires what it took the place of. `is_done` has a bit for
    /// each home that holds it already; with the head, who waits for a change, if that was looked at after the publication.
    pub(super) fn conclude(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        before: &mut Before<'_>,
        draft: &mut Draft<'_>,
        (head, waiters): (Head, Option<u64>),
        is_done: Step<u64>,
    ) -> Step<bool> {
        let primary = config.homes[config.primary];
        let mut finished =
            is_done.and_then(|is_done| self.finish(config, key, before, draft, is_done));
        // Before the mark: whoever builds on that tells nobody that the version happened.
        if finished.is_ok() && self.is_late() {
            finished = Err(Halt::Again);
        }
        // It was swapped out, whatever has become of the rest.
        let retired = match (before.head.offset(), &before.block) {
            (Some(offset), Some(block)) => block_class(block, primary)
                .and_then(|class| self.retire_block(primary, offset, block, class)),
            _ => Ok(()),
        };
        if finished.is_ok() {
            // The version has happened: every complete home of the configuration holds it, or something later, so no
            // failure from here on can undo it. A primary that was just late is not waited for a second time.
            let is_tidy = !matches!(retired, Err(Halt::Fail(_)))
                && self.tidy_up(config, key, before, head, waiters).is_ok();
            if !is_tidy && let Some(memory) = &mut before.memory {
                // Who waits may not have been rung: whoever reads the version, were it this handle, does that first.
                memory.forget();
            }
        }
        finished.map(|()| true)
    }

    /// W6 and W7: makes every home hold the version; `is_done` has a bit for each one that does.
    pub(super) fn finish(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        before: &mut Before<'_>,
        draft: &mut Draft<'_>,
        mut is_done: u64,
    ) -> Step<()> {
        is_done |= u64::from(mutant("ack-early")) << (config.homes.len() - 1);
        loop {
            for home in config.ready_homes() {
                if is_done & 1 << home != 0 {
                    continue;
                }
                is_done |= 1 << home;
                if mutant("skip-epoch") && !self.is_current() {
                    continue;
                }
                let is_omitted = draft.omitted & 1 << home != 0;
                if is_omitted
                    && !self.state(config.homes[home], key.partition)?.is_filling(config.stamp)
                {
                    // It was completed meanwhile.
                    draft.omitted &= !(1 << home);
                }
                let mut installed = match draft.omitted & 1 << home {
                    0 => self.install_draft(config, home, key, before, draft),
                    _ => self.omit(config, home, key.partition),
                };
                if let Err(halt) = &installed
                    && self.may_omit(config, home, key.partition, halt)?
                {
                    draft.omitted |= 1 << home;
                    installed = self.omit(config, home, key.partition);
                }
                installed?;
                if draft.omitted & 1 << home != 0 {
                    self.forget_omitted(config, home, before, draft);
                }
            }
            // W7: homes that got their index since, whoever found it out.
            if !config.are_all_ready() {
                self.find_new_homes(config, key.partition)?;
            }
            if !config.has_others_than(is_done) {
                return Ok(());
            }
        }
    }

    /// W6 for one home.
    fn install_draft(
        &self,
        config: &Config,
        home: usize,
        key: &KeyRef<'_>,
        before: &mut Before<'_>,
        draft: &mut Draft<'_>,
    ) -> Step<()> {
        let member = config.homes[home];
        let offset = match std::mem::take(&mut draft.offsets[home]) {
            0 => {
                // Repair may have brought it, to a home without room for a second one.
                if let Some((_, head)) = self.find(config, home, key)?
                    && head.stamp() == config.stamp
                    && self.counter(member, head)? >= draft.block.counter
                {
                    before.memory.iter_mut().for_each(|memory| memory.at[home].word = 0);
                    return Ok(());
                }
                self.fill_block(member, &draft.block, draft.value)?
            }
            offset => offset,
        };
        steps::enter(steps::Step::WriteInstall);
        let installed = match self.install_again(config, home, before, offset) {
            Ok(true) => return Ok(()),
            Ok(false) => self.install(config, home, key, draft, offset),
            Err(halt) => Err(halt),
        };
        let word = match installed {
            Ok(word) => word,
            Err(halt) => {
                if let Halt::Again | Halt::Fail(StoreError::OutOfMemory { .. }) = &halt {
                    // The view has changed, or there was no room for a record, and nobody has seen the block.
                    draft.offsets[home] = offset;
                }
                return Err(halt);
            }
        };
        if let Some(memory) = &mut before.memory {
            memory.at[home].word = word.unwrap_or(0);
            memory.at[home].head = Head::new(config.stamp, offset);
        }
        Ok(())
    }

    /// A home was left out: a handle knows nothing of it, and a block that was filled there is for later.
    #[cold]
    fn forget_omitted(
        &self,
        config: &Config,
        home: usize,
        before: &mut Before<'_>,
        draft: &mut Draft<'_>,
    ) {
        if let Some(memory) = &mut before.memory {
            memory.at[home].word = 0;
        }
        match std::mem::take(&mut draft.offsets[home]) {
            0 => {}
            offset => self.keep(config.homes[home], draft.class, offset),
        }
    }

    /// Whether a home may do without a version: it has no room, and is filling.
    #[cold]
    fn may_omit(&self, config: &Config, home: usize, partition: usize, halt: &Halt) -> Step<bool> {
        let member = config.homes[home];
        match halt {
            Halt::Fail(StoreError::OutOfMemory { member: full, .. }) if *full == member => {
                Ok(self.state(member, partition)?.is_filling(config.stamp))
            }
            _ => Ok(false),
        }
    }

    /// Leaves a filling home out, after the version was published at the primary: whoever is filling it has to begin anew,
    /// and comes to see the version.
    #[cold]
    fn omit(&self, config: &Config, home: usize, partition: usize) -> Step<()> {
        let member = config.homes[home];
        loop {
            let state = self.state(member, partition)?;
            if !state.is_filling(config.stamp) {
                // Complete, with or without the version; or the configuration is another.
                return Err(Halt::Again);
            }
            if self.swap_state(member, partition, state, state.with_omission())? {
                return Ok(());
            }
        }
    }

    /// W6 for a home of which a handle remembers what it holds: whether it was still so, and holds the new block now.
    #[inline]
    fn install_again(
        &self,
        config: &Config,
        home: usize,
        before: &mut Before<'_>,
        offset: u64,
    ) -> Step<bool> {
        let (Some(memory), Some(block)) = (&mut before.memory, &before.block) else {
            return Ok(false);
        };
        let (member, word, old) = (config.homes[home], memory.at[home].word, memory.at[home].head);
        let new = Head::new(config.stamp, offset);
        if word == 0 || !self.swap(member, word, old.0, new.0)? {
            return Ok(false);
        }
        memory.at[home].head = new;
        if let Some(offset) = old.offset() {
            let _ = self.retire_block(member, offset, block, memory.class);
        }
        Ok(true)
    }

    /// W8.
    #[inline]
    fn tidy_up(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        before: &mut Before<'_>,
        head: Head,
        waiters: Option<u64>,
    ) -> Step<()> {
        let primary = config.homes[config.primary];
        steps::enter(steps::Step::WriteMarkStable);
        // Before the mark: whoever sees the mark rings nobody.
        match waiters {
            Some(waiters) if waiters & WAITER_BITS == 0 => {}
            _ => self.ring_waiters(primary, key.partition)?,
        }
        // A handle knows without the mark, and writes the same key again; whoever else comes looks for itself.
        if before.memory.is_none() {
            self.swap(primary, before.word, head.0, head.stable().0)?;
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn ring_waiters(&self, primary: MemberId, partition: usize) -> Step<()> {
        let word = self.partition_word(primary, partition, PARTITION_WAITERS);
        match self.load(primary, word)? {
            waiters if waiters & WAITER_BITS == 0 => Ok(()),
            waiters => self.ring_each(primary, word, waiters),
        }
    }

    #[cold]
    fn ring_each(&self, primary: MemberId, word: u64, waiters: u64) -> Step<()> {
        let members = self.store.job.members() as u32;
        for member in (0..members).map(MemberId).filter(|&member| waiters & waiter_bit(member) != 0)
        {
            match self.store.job.ring(member) {
                Ok(()) | Err(crate::engine::Error::Dead { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // After the bells, so that nobody is forgotten if this member stops here. Whoever has entered itself since, for
        // the first time or again, has changed the word.
        self.swap(primary, word, waiters, waiters & !WAITER_BITS)?;
        Ok(())
    }

    /// Whether the configuration is still the right one.
    pub(super) fn is_still(&mut self, config: &Config, partition: usize) -> Step<bool> {
        while !self.is_current() {
            self.renew();
            match self.config(partition) {
                Ok(now) if now.stamp == config.stamp => {}
                Ok(_) => return Ok(false),
                Err(Halt::Again) => {}
                Err(fail) => return Err(fail),
            }
        }
        Ok(true)
    }

    /// W2 and W3: the settled head of a key's record at the primary, and what it names. If there is no record, one is made
    /// if `must_exist`; otherwise the head word is 0: a call that changes nothing leaves nothing behind.
    pub(super) fn find_settled<'m>(
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

    /// W2 and W3 for a key that had no record: makes one. `Again` if there is something by now.
    fn make_record(&self, config: &Config, key: &KeyRef<'_>, before: &mut Before<'_>) -> Step<()> {
        before.word = self.find_or_insert(config, config.primary, key)?;
        before.head = self.settled(config, key, before.word)?;
        if let Some(memory) = &mut before.memory {
            memory.at[config.primary].word = before.word;
        }
        if before.head.offset().is_none() { Ok(()) } else { Err(Halt::Again) }
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

    #[inline]
    fn try_write<'v>(
        &mut self,
        key: &KeyRef<'_>,
        memory: Option<&mut Remembered>,
        change: &mut impl FnMut(Option<&Current>, &mut Vec<u8>) -> StoreResult<Change<'v>>,
        needs_value: bool,
    ) -> Step<Option<Version>> {
        let store = self.store;
        // What decides about transactions waits elsewhere.
        if store.frost.is_set() && !super::tx::is_intent(key.key) {
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

    /// W4 to W9: puts a version in the place of what was found.
    #[inline]
    pub(super) fn replace(
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

    /// Whether the view has changed, where that matters to a version that all homes of the configuration hold: those who
    /// live keep it whatever happens, but what the dead have may have been salvaged before it was there.
    #[inline]
    pub(super) fn is_late(&self) -> bool {
        self.store.salvage.is_on && !self.is_current() && !mutant("salvage-late")
    }

    /// Keeps the blocks of a draft that nobody has seen for the next time.
    pub(super) fn keep_unused(&self, config: &Config, draft: &Draft<'_>) {
        for (&member, &offset) in
            config.homes.iter().zip(&draft.offsets).filter(|(_, offset)| **offset != 0)
        {
            self.keep(member, draft.class, offset);
        }
    }

    /// The view has changed in the middle: finds out whether the version happened.
    #[cold]
    pub(super) fn redo(&mut self, key: &KeyRef<'_>, block: &Block) -> Step<Option<Version>> {
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

    #[inline]
    fn try_read<T>(
        &mut self,
        key: &KeyRef<'_>,
        memory: Option<&mut Remembered>,
        take: &mut impl FnMut(&Op<'_>, &Found) -> Step<T>,
    ) -> Step<Option<T>> {
        let config = self.config(key.partition)?;
        let mut result = None;
        steps::enter(steps::Step::Read);
        if let Some(mut found) = self.find_version(config, key, memory)? {
            if found.block.kind != Kind::Plain {
                (found.offset, found.block) =
                    self.visible(config, key, found.offset, &found.block)?;
                found.value = None;
            }
            if !found.block.is_deleted {
                result = Some(take(self, &found)?);
            }
        }
        if self.store.job.has_ended() {
            // What was read may be what another thread wrote after the end, and nobody else sees.
            return Err(Halt::Fail(StoreError::Closed));
        }
        if self.is_current() || self.is_still(config, key.partition)? {
            Ok(result)
        } else {
            Err(Halt::Again)
        }
    }

    /// The settled version of a key at the primary, if there is one.
    #[inline]
    fn find_version(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        mut memory: Option<&mut Remembered>,
    ) -> Step<Option<Found>> {
        if let Some(memory) = memory.as_deref().filter(|_| !self.store.job.is_mapped())
            && let Some(found) = self.find_again(config, memory)?
        {
            return Ok(Some(found));
        }
        let Some(head) = self.find_head(config, key, memory.as_deref_mut())? else {
            return Ok(None);
        };
        let Some(offset) = head.offset() else { return Ok(None) };
        let home = config.homes[config.primary];
        let block = self.read_block(home, offset)?;
        if let Some(memory) = memory {
            (memory.hint, memory.hint_len) = (offset, block.len);
        }
        Ok(Some(Found { home, offset, block, value: None }))
    }

    /// The same in one round trip, if the key is as it was when a handle read or wrote it last. In the order of the ordinary way, which
    /// is that of the requests: the count of removals, the head, and what it names.
    fn find_again(&self, config: &Config, memory: &Remembered) -> Step<Option<Found>> {
        let (home, at) = (config.homes[config.primary], &memory.at[config.primary]);
        let (offset, len) = (memory.hint, value_start(memory.hint_len) + memory.hint_len);
        let is_known = memory.stamp == config.stamp && at.word != 0 && offset != 0;
        // What turns out to be another version was sent in vain.
        if !is_known || len > COMPOUND_LEN_MAX as u64 {
            return Ok(None);
        }
        let start = |operation| self.store.job.start(self.epoch, home, operation);
        let removals = start(Operation::Load { offset: config.roots[config.primary] + REMOVALS });
        let head = start(Operation::Load { offset: at.word });
        let whole = start(Operation::Get { offset, len: len as usize });
        let removals = self.await_answer(removals, true)?.word();
        let head = Head(self.await_answer(head, true)?.word());
        let Done::Get(mut bytes) = self.await_answer(whole, true)? else { return Ok(None) };
        let Some(block) = bytes.first_chunk().map(Block::decode) else { return Ok(None) };
        // What this handle has written itself has happened, whoever may have marked it or not.
        let is_own = head == at.head && block.identity() == memory.block.identity();
        let is_there = removals == at.removals
            && head.stamp() == config.stamp
            && head.offset() == Some(offset)
            && (head.is_stable() || is_own);
        if !is_there || block.len != memory.hint_len {
            return Ok(None);
        }
        self.check_block(home, offset, &block)?;
        let value = Some(bytes.split_off(value_start(block.len) as usize));
        Ok(Some(Found { home, offset, block, value }))
    }

    /// The head word of a key at the primary and what it holds: where a handle remembers it to be, or looked up anew.
    #[inline]
    fn find_by_memory(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        memory: &mut Remembered,
    ) -> Step<Option<(u64, Head)>> {
        let home = config.primary;
        let primary = config.homes[home];
        let word = memory.at[home].word;
        let is_known = memory.stamp == config.stamp && word != 0;
        let place = if is_known { word } else { self.bucket(config, home, key)? };
        let [removals, loaded] =
            self.load_each([config.roots[home] + REMOVALS, place].map(|offset| (primary, offset)))?;
        if is_known && memory.at[home].removals == removals && Head(loaded) != Head::REMOVED {
            return Ok(Some((word, Head(loaded))));
        }
        let found = if is_known {
            self.find(config, home, key)?
        } else {
            self.find_from(primary, loaded, key)?
        };
        *memory = Remembered { stamp: config.stamp, ..Remembered::NOTHING };
        memory.at[home].removals = removals;
        memory.at[home].word = found.map_or(0, |(word, _)| word);
        Ok(found)
    }

    /// The settled head of a key at the primary, for a reader; `None` if there is no record.
    #[inline]
    pub(super) fn find_head(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        memory: Option<&mut Remembered>,
    ) -> Step<Option<Head>> {
        let found = match memory {
            Some(memory) => self.find_by_memory(config, key, memory)?,
            None => self.find(config, config.primary, key)?,
        };
        let Some((word, head)) = found else { return Ok(None) };
        if head.stamp() == config.stamp && head.is_stable() {
            return Ok(Some(head));
        }
        self.settled(config, key, word).map(Some)
    }
}

/// The size class of a version's block.
#[inline]
pub(super) fn block_class(block: &Block, home: MemberId) -> Step<usize> {
    if block.is_deleted {
        return Ok(TOMBSTONES);
    }
    class_of(value_start(block.len) + block.len).ok_or_else(|| {
        Halt::Fail(StoreError::OutOfMemory {
            member: home,
            reason: format!("a value of {} bytes is larger than any block", block.len),
        })
    })
}

impl Inner {
    pub(super) fn key_ref<'k>(&self, key: &'k [u8]) -> StoreResult<KeyRef<'k>> {
        check_len(key)?;
        if self.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let hash = hash_key(key);
        Ok(KeyRef { key, hash, partition: self.placement.partition(hash) })
    }

    /// Runs an operation until it is done, beginning anew whenever the view has changed under it.
    pub(super) fn run<T>(&self, attempt: impl FnMut(&mut Op<'_>) -> Step<T>) -> StoreResult<T> {
        self.run_as(0, attempt)
    }

    /// The same; `None` if the partition that it needs is lost, or is being salvaged.
    pub(super) fn run_or_lost<T>(
        &self,
        mut attempt: impl FnMut(&mut Op<'_>) -> Step<T>,
    ) -> StoreResult<Option<T>> {
        self.run(|op| match attempt(op) {
            Err(Halt::Lost(_)) => Ok(None),
            other => other.map(Some),
        })
    }

    /// The same for a transaction that has failed so many times; see `tx`.
    pub(super) fn run_as<T>(
        &self,
        rank: u32,
        mut attempt: impl FnMut(&mut Op<'_>) -> Step<T>,
    ) -> StoreResult<T> {
        let mut patience = Patience::default();
        let mut blocked = None;
        loop {
            let (result, lacks_tombstone) = match Op::begin(self) {
                Ok(mut op) => (attempt(&mut op), op.lacks_tombstone.get()),
                Err(halt) => (Err(halt), false),
            };
            match result {
                Ok(value) => return Ok(value),
                // Outside the operation, which others wait for before they remove what was deleted.
                Err(Halt::Fail(StoreError::OutOfMemory { .. }))
                    if lacks_tombstone && patience.wait_for_room(self) => {}
                Err(Halt::Fail(error)) => return Err(error),
                Err(Halt::Lost(partition)) => self.await_salvage(partition)?,
                Err(Halt::Frozen) => self.wait_for_thaw()?,
                Err(Halt::Again) => patience.check(self)?,
                Err(Halt::Blocked(blocker)) => {
                    self.clear(&blocker, rank, &mut blocked)?;
                    patience.check(self)?;
                }
            }
        }
    }

    /// The same for a call on a key, which passes the gate of global mode; what is the store's own does not have to.
    #[inline]
    pub(super) fn run_call<T>(
        &self,
        key: &KeyRef<'_>,
        mut attempt: impl FnMut(&mut Op<'_>) -> Step<T>,
    ) -> StoreResult<T> {
        let is_own = key.key.starts_with(super::leave::RESERVED);
        self.run(|op| {
            if !is_own {
                self.check_gate(op.epoch)?;
            }
            attempt(op)
        })
    }

    pub(super) fn write<'v>(
        &self,
        key: &[u8],
        needs_value: bool,
        mut change: impl FnMut(Option<&Current>, &mut Vec<u8>) -> StoreResult<Change<'v>>,
    ) -> StoreResult<Option<Version>> {
        let key = self.key_ref(key)?;
        self.run_call(&key, |op| op.try_write(&key, None, &mut change, needs_value))
    }

    /// A put by key.
    pub(super) fn put_by_key(&self, key: &[u8], value: &[u8]) -> StoreResult<Version> {
        if self.job.is_mapped() {
            let written = self.write(key, false, |_, _| Ok(Change::Put(value)))?;
            return Ok(written.expect("a put changes the key"));
        }
        let key = self.key_ref(key)?;
        self.recall.call(&key, |memory| self.put_again(&key, memory, value))
    }

    /// A put with what a handle remembers.
    #[inline]
    pub(super) fn put_again(
        &self,
        key: &KeyRef<'_>,
        memory: &mut Remembered,
        value: &[u8],
    ) -> StoreResult<Version> {
        let done = match self.job.directly() {
            Some(Directly::Shm(shm)) => self.put_directly(shm, key, memory, value),
            #[cfg(feature = "sim")]
            Some(Directly::Sim(sim)) => self.put_directly(sim, key, memory, value),
            None => Ok(None),
        };
        match done {
            Ok(Some(version)) => return Ok(version),
            Ok(None) | Err(Halt::Again | Halt::Blocked(_) | Halt::Frozen | Halt::Lost(_)) => {}
            Err(Halt::Fail(error)) => return Err(error),
        }
        let written = self.run_call(key, |op| match op.put_assumed(key, memory, value)? {
            Some(version) => Ok(Some(version)),
            None => op.try_write(key, Some(memory), &mut |_, _| Ok(Change::Put(value)), false),
        })?;
        Ok(written.expect("a put changes the key"))
    }

    /// The same with what a handle remembers.
    pub(super) fn write_again<'v>(
        &self,
        key: &KeyRef<'_>,
        memory: &mut Remembered,
        needs_value: bool,
        mut change: impl FnMut(Option<&Current>, &mut Vec<u8>) -> StoreResult<Change<'v>>,
    ) -> StoreResult<Option<Version>> {
        self.run_call(key, |op| op.try_write(key, Some(memory), &mut change, needs_value))
    }

    #[inline]
    pub(super) fn read<T>(
        &self,
        key: &[u8],
        mut take: impl FnMut(&Op<'_>, &Found) -> Step<T>,
    ) -> StoreResult<Option<T>> {
        let key = self.key_ref(key)?;
        if self.job.is_mapped() {
            return self.run_call(&key, |op| op.try_read(&key, None, &mut take));
        }
        self.recall.call(&key, |memory| self.read_again(&key, memory, take))
    }

    /// Copies a value into a buffer.
    #[inline]
    pub(super) fn read_into(
        &self,
        key: &KeyRef<'_>,
        mut memory: Option<&mut Remembered>,
        buffer: &mut [u8],
    ) -> StoreResult<Option<(usize, Version)>> {
        let done = match self.job.directly() {
            Some(Directly::Shm(shm)) => self.get_directly(shm, key, memory.as_deref_mut(), buffer),
            #[cfg(feature = "sim")]
            Some(Directly::Sim(sim)) => self.get_directly(sim, key, memory.as_deref_mut(), buffer),
            None => None,
        };
        if let Some(done) = done {
            return done;
        }
        self.run_call(key, |op| {
            op.try_read(key, memory.as_deref_mut(), &mut |op, found| {
                let (needed, given) = (found.block.len, buffer.len() as u64);
                let Some(target) = buffer.get_mut(..needed as usize) else {
                    return Err(Halt::Fail(StoreError::BufferTooSmall { needed, given }));
                };
                found.copy(op, key.key, target)?;
                Ok((needed as usize, found.block.version()))
            })
        })
    }

    /// The same with what a handle remembers.
    #[inline]
    pub(super) fn read_again<T>(
        &self,
        key: &KeyRef<'_>,
        memory: &mut Remembered,
        mut take: impl FnMut(&Op<'_>, &Found) -> Step<T>,
    ) -> StoreResult<Option<T>> {
        self.run_call(key, |op| op.try_read(key, Some(memory), &mut take))
    }

    /// Enters this member among those who are rung when something in the key's partition changes.
    pub(super) fn announce_waiter(&self, key: &[u8]) -> StoreResult<()> {
        let key = self.key_ref(key)?;
        let bit = waiter_bit(self.me());
        self.run(|op| {
            let config = op.config(key.partition)?;
            let primary = config.homes[config.primary];
            let word = op.partition_word(primary, key.partition, PARTITION_WAITERS);
            loop {
                let waiters = op.load(primary, word)?;
                let entered = (waiters & !WAITER_BITS).wrapping_add(WAITER_BITS + 1)
                    | waiters & WAITER_BITS
                    | bit;
                if op.swap(primary, word, waiters, entered)? {
                    return Ok(());
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads of a member write under one configuration while a home begins to fill: the one that did not find it out
    /// itself has to install its version there all the same.
    #[test]
    fn a_home_that_another_thread_has_found_is_news() {
        let config = Config {
            epoch: AtomicU64::new(1),
            stamp: 3,
            primary: 0,
            ready: AtomicU64::new(0b011),
            homes: HomeList::new(&[MemberId(4), MemberId(1), MemberId(7)]),
            roots: [0; HOMES_MAX],
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            next: OnceLock::new(),
        };
        let done = config.ready_homes().fold(0, |done, home| done | 1 << home);
        assert!(!config.has_others_than(done));
        config.ready.fetch_or(0b100, Ordering::AcqRel);
        assert!(config.has_others_than(done) && config.are_all_ready());
    }

    /// A read by what is remembered believes a block only if the head names it and is stable, or if it holds what this handle
    /// wrote; and only if the record is where it was.
    #[cfg(feature = "sim")]
    #[test]
    fn a_read_by_what_is_remembered_believes_no_version_that_may_be_unfinished() {
        use crate::sim::{self, Link, Options as SimOptions};
        use crate::store::{Expect, Options, Store};
        let options = SimOptions::new(3, 5).link(Link::Network);
        let report = sim::run(&options, |job: crate::Job| {
            let store = Store::open(&job, Options::new().replicas(2).partitions(1)).expect("open");
            let key = store.inner.key_ref(b"key").expect("a key");
            if store.replicas_of(b"key").contains(&job.me()) {
                store.close().expect("close");
                return drop(job.leave());
            }
            store.put_if(b"key", b"value", Expect::Absent).expect("put");
            let mut memory = Remembered::NOTHING;
            store.inner.read_again(&key, &mut memory, |_, _| Ok(())).expect("read").expect("there");
            let op = Op::begin(&store.inner).expect("begun");
            let config = op.config(key.partition).expect("homes");
            let (home, primary) = (config.primary, config.homes[config.primary]);
            let is_found =
                |memory: &Remembered| op.find_again(config, memory).expect("read").is_some();
            assert!(is_found(&memory));
            let moved = |change: &dyn Fn(&mut Remembered)| {
                let mut moved = memory;
                change(&mut moved);
                moved
            };
            assert!(
                !is_found(&moved(&|memory| memory.at[home].removals += 1)),
                "records were taken out"
            );
            assert!(
                !is_found(&moved(&|memory| memory.hint_len = 8)),
                "the value has another length"
            );
            // Somebody's who has not finished it, or whose handle knows that it has.
            let word = memory.at[home].word;
            let stable = Head(op.load(primary, word).expect("a head"));
            let head = Head::new(stable.stamp(), memory.hint);
            assert!(
                stable == head.stable()
                    && op.swap(primary, word, stable.0, head.0).expect("swapped")
            );
            assert!(!is_found(&memory), "it may be unfinished");
            let block = op.read_block(primary, memory.hint).expect("a block");
            let own = |counter: u64| {
                moved(&|memory| {
                    memory.at[home].head = head;
                    memory.block = Block { counter, ..block };
                })
            };
            assert!(is_found(&own(block.counter)), "it has happened");
            assert!(!is_found(&own(block.counter - 1)), "the block was used again");
            assert!(op.swap(primary, word, head.0, stable.0).expect("swapped"));
            drop(op);
            store.close().expect("close");
            let _ = job.leave();
        });
        report.expect_ok();
    }

    /// A member learns late that it may retire a block, which is another version's by then: that one stays as it is.
    #[cfg(feature = "sim")]
    #[test]
    fn a_late_retirement_changes_no_other_version() {
        use crate::engine::Epoch;
        use crate::sim::{self, Options as SimOptions};
        use crate::store::{Options, Store};
        let report = sim::run(&SimOptions::new(1, 7), |job: crate::Job| {
            let store = Store::open(&job, Options::new().partitions(1)).expect("open");
            let op = Op::begin(&store.inner).expect("begun");
            let block = |holder: u64, len: u64| Block {
                counter: 1,
                writer: MemberId(0),
                actor: 0,
                operation: 1,
                len,
                is_deleted: false,
                kind: Kind::Plain,
                holder,
                owner: MemberId(0),
                checksum: 0,
            };
            let (home, offset) = (job.me(), op.take_block(job.me(), 0).expect("a block"));
            // It was someone's who is dead, and is now a third one's, with another length.
            op.put(home, offset, &block(5, 9).encode()).expect("put");
            op.retire_block(home, offset, &block(4, 8), 0).expect("no error");
            let word = job.load(Epoch::ANY, home, offset + BLOCK_HOLDER).expect("a word");
            assert_eq!(word, block(5, 9).length_word());
            // What is as it was read is this member's afterwards.
            op.retire_block(home, offset, &block(5, 9), 0).expect("no error");
            let word = job.load(Epoch::ANY, home, offset + BLOCK_HOLDER).expect("a word");
            assert_eq!(word, block(holder(job.me()), 9).length_word());
            drop(op);
            store.close().expect("close");
            let _ = job.leave();
        });
        report.expect_ok();
    }
}

//! Salvage: reading a partition without a complete living replica from the memory of dead members,
//! where the engine keeps dead segments ([`crate::store::Options::salvage`]).
//!
//! The first replica F of the configuration c in which no living replica is complete salvages the
//! partition. It copies the records of L, the replica that was complete and died last. If the index
//! of L cannot be read (a chain that leads nowhere, a key that does not match its hash), no member
//! can tell which keys are missing: the state of F becomes `lost(c)`, and the partition is lost as
//! without salvage.
//!
//! Everything that is read from a dead segment may be damaged. Each offset is checked before it is
//! used, a chain ends at the first offset that was visited before, and a length is trusted only if
//! the last byte of the value can be read.
#![cfg_attr(outlast_pages, doc = include_str!("../../../../../docs/protocol/salvage.md"))]

use crate::engine::{Epoch, Error, MemberId, MemberSet, Time, View};
use crate::store::error::{StoreError, StoreResult};
use crate::store::mutant::mutant;
use crate::store::operation::configuration::Configuration;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::operation::grace_period::GracePeriod;
use crate::store::operation::message::Message;
use crate::store::placement::{Assignment, hash_key};
use crate::store::record::block_io::{COUNTER_MAX, block_class};
use crate::store::record::checksum::checksum;
use crate::store::record::key::KeyRef;
use crate::store::record::state::RecordOp;
use crate::store::record::version_floor::INCARNATION_SHIFT;
use crate::store::record::write::VersionAttributes;
use crate::store::recovery::state::RecoveryState;
use crate::store::segment::head::{CONFIG_NUMBER_MAX, Head, Phase, State};
use crate::store::segment::layout::{
    BLOCK_HEADER_LEN, Block, Kind, NODE_HEAD, NODE_KEY, PARTITION_BUCKETS, PARTITION_FLOOR,
    PARTITION_STATE, ROOT_MAGIC, class_of, value_start,
};
use crate::store::segment::place::is_place;
use crate::store::value::KEY_LEN_MAX;
use crate::sync::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

/// The number of buckets that a piece of work salvages at most.
const PIECE: usize = 64;

/// The number of records after which a piece of work ends.
const PIECE_RECORDS: usize = 16;

/// The pause between two looks of a call that waits for a salvage.
const LOOK: Duration = Duration::from_millis(1);

/// The pause between two looks whether the dead segments are still needed.
const RELEASE_PAUSE: Duration = Duration::from_millis(20);

/// How often a record is read if it changes meanwhile.
const ATTEMPTS: usize = 8;

/// What a member keeps for salvage.
#[derive(Default)]
pub(in crate::store) struct Salvage {
    /// The partitions that this member is salvaging, each with its source L. This member has made a
    /// new index for each.
    begun: Mutex<BTreeMap<usize, MemberId>>,
    /// The partitions with damaged keys.
    damaged: Mutex<BTreeSet<usize>>,
    /// The partitions whose damage this member has reported to all members, each with the epoch of
    /// the report.
    told: Mutex<BTreeMap<usize, Epoch>>,
    /// Dead members without a root magic: they had not opened the store.
    rootless: Mutex<MemberSet>,
    release: Mutex<Release>,
}

/// The progress of *release*.
#[derive(Default)]
struct Release {
    /// The epoch whose dead segments this store does not need any more.
    done: Option<Epoch>,
    /// The grace period that *release* waits for, and its epoch.
    grace: Option<(Epoch, GracePeriod)>,
    /// When to look again.
    due: Option<Time>,
}

/// How a piece of salvage ended.
pub(in crate::store) enum Salvaged {
    /// The buckets before this number are salvaged.
    Until(usize),
    /// The partition lives again.
    All,
    /// Another member is the first replica.
    ByAnother,
    /// Nothing can be salvaged: the partition is lost.
    Nothing,
}

/// How a piece of copying ended.
enum Copied {
    /// The buckets before this number are copied.
    Until(usize),
    /// Everything is copied.
    All,
    /// The content of L cannot be read, for this reason.
    Damaged(&'static str),
}

/// The fate of a partition: it lives, is being salvaged, or is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Fate {
    Living,
    /// The partition is being salvaged.
    Pending,
    Lost,
}

impl Salvage {
    /// The partitions with damaged keys, as far as this member was told.
    pub(in crate::store) fn damaged(&self) -> Vec<usize> {
        lock(&self.damaged).iter().copied().collect()
    }

    /// Records a partition with damaged keys. Returns whether it is news.
    pub(in crate::store::recovery) fn add_damaged(&self, partition: usize) -> bool {
        lock(&self.damaged).insert(partition)
    }

    /// Forgets the damage of a partition.
    fn forget_damaged(&self, partition: usize) {
        lock(&self.damaged).remove(&partition);
    }
}

impl RecoveryState {
    /// The fate of a partition under the current view.
    pub(in crate::store) fn fate(&self, partition: usize) -> StoreResult<Fate> {
        if self.run_or_lost(|op| op.config(partition).map(|_| ()))?.is_some() {
            return Ok(Fate::Living);
        }
        if !self.salvage_is_on {
            return Ok(Fate::Lost);
        }
        self.run(|op| {
            let view = op.store.view(op.epoch).ok_or(OpError::Again)?;
            let replicas = op.store.replicas(partition, &view).members;
            let Some(&first) = replicas.first() else { return Ok(Fate::Lost) };
            let phase = op.state(first, partition)?.phase();
            match op.is_current() {
                true => Ok(if phase == Phase::Lost { Fate::Lost } else { Fate::Pending }),
                false => Err(OpError::Again),
            }
        })
    }

    /// Waits until a partition is salvaged. Returns an error if it is lost, or if the wait takes
    /// too long.
    #[cold]
    #[inline(never)]
    pub(in crate::store) fn await_salvage(&self, partition: usize) -> StoreResult<()> {
        if !self.salvage_is_on {
            return Err(StoreError::DataLost { partition });
        }
        let job = &self.job;
        // Two backgrounds may each need a partition that the other has to salvage. The wait is
        // short there, so that each comes back to its own work.
        let (limit, until) = self.wait_for_replica();
        loop {
            let bell = job.bell();
            match self.fate(partition)? {
                Fate::Living => return Ok(()),
                Fate::Lost => return Err(StoreError::DataLost { partition }),
                Fate::Pending => {}
            }
            let replicas = self.replicas(partition, &self.current_view()).members;
            let &first = replicas.first().ok_or(StoreError::DataLost { partition })?;
            let now = job.now();
            if now >= until {
                return Err(StoreError::Timeout { member: first, limit });
            }
            // A call that waits also serves messages and salvages what it waits for. If it runs in
            // the background, it does all repairs meanwhile, with the short waits of the
            // background.
            self.serve_messages();
            let due = if self.runs_background() {
                let work = (!self.is_background()).then(|| self.begin_background_work());
                let due = self.repair_some();
                work.iter().for_each(|work| self.end_background_work(work));
                due
            } else if first == job.me() {
                self.salvage_some(partition)
            } else {
                Time::NEVER
            };
            job.park(bell, until.min(due).min(now.after(LOOK)));
        }
    }

    /// *release*, by the living member with the lowest number, up to the moment at which this store
    /// needs the dead segments no more. Returns when to run again.
    pub(in crate::store) fn release_dead_segments(&self) -> Time {
        if !self.salvage_is_on {
            return Time::NEVER;
        }
        let (view, now) = (self.current_view(), self.job.now());
        let grace = {
            let mut release = lock(&self.salvage.release);
            if view.dead.is_empty() || release.done == Some(view.epoch) {
                return Time::NEVER;
            }
            if view.living().next() != Some(self.me()) {
                return Time::NEVER;
            }
            if let Some(due) = release.due.filter(|&due| now < due) {
                return due;
            }
            release.due = Some(now.after(RELEASE_PAUSE));
            release.grace.take().filter(|(epoch, _)| *epoch == view.epoch)
        };
        let mut grace = match grace {
            Some((_, grace)) => grace,
            None => {
                let is_living = |partition| self.fate(partition) == Ok(Fate::Living);
                if !(0..self.placement.partitions).all(is_living) || self.job.epoch() != view.epoch
                {
                    return now.after(RELEASE_PAUSE);
                }
                // An operation in flight may still access a dead segment.
                GracePeriod::begin(self)
            }
        };
        if !grace.is_over(self) {
            lock(&self.salvage.release).grace = Some((view.epoch, grace));
            return now.after(RELEASE_PAUSE);
        }
        lock(&self.salvage.release).done = Some(view.epoch);
        Time::NEVER
    }

    /// Whether this store does not need the dead segments of this epoch.
    pub(in crate::store) fn has_released(&self, epoch: Epoch) -> bool {
        !self.salvage_is_on || lock(&self.salvage.release).done == Some(epoch)
    }

    /// The keys of a partition that have a lost version.
    pub(in crate::store::recovery) fn keys_marked(
        &self,
        partition: usize,
    ) -> StoreResult<Vec<Vec<u8>>> {
        self.run(|op| self.keys_marked_in(op, partition))
    }

    /// Accepts the loss of the damaged keys of a partition: they do not exist from then on.
    pub(in crate::store) fn accept_marked(&self, partition: usize) -> StoreResult<()> {
        // The damage is forgotten first, so that damage that is recorded meanwhile is kept.
        self.salvage.forget_damaged(partition);
        let write_tombstone =
            |key: Vec<u8>| self.run(|op| self.write_tombstone(op, &self.any_key_ref(&key)));
        let written = self
            .keys_marked(partition)
            .and_then(|keys| keys.into_iter().try_for_each(write_tombstone));
        if written.is_err() {
            self.salvage.add_damaged(partition);
        }
        written
    }
}

/// A partition in a dead segment.
struct DeadSegment<'a> {
    store: &'a RecoveryState,
    member: MemberId,
    partition: usize,
}

/// A record in the index of a dead segment.
struct Found {
    key: Vec<u8>,
    hash: u64,
    /// The offset of its head word.
    word: u64,
}

/// The content of a record in a dead segment.
enum Kept {
    /// The record has no version, or was removed.
    Nothing,
    /// A valid version with its value.
    Version(Block, Vec<u8>),
    /// The record has a version that cannot be read.
    Damaged,
}

impl DeadSegment<'_> {
    /// Reads the dead segment. Returns `false` if the range is not in the segment.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> OpResult<bool> {
        match self.store.job.read_dead_segment(self.member, offset, buffer) {
            Ok(()) => Ok(true),
            Err(Error::OutOfRange { .. } | Error::Unaligned { .. } | Error::Dead { .. }) => {
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A word of the dead segment; `None` if it cannot be read.
    fn word(&self, offset: u64) -> OpResult<Option<u64>> {
        let mut bytes = [0; 8];
        let is_read = self.read(offset, &mut bytes)?;
        Ok(is_read.then(|| u64::from_ne_bytes(bytes)))
    }

    /// A word of the partition's table entry; `None` if it cannot be read.
    fn partition_word(&self, field: u64) -> OpResult<Option<u64>> {
        let root = self.store.root(self.member);
        match root.checked_add(self.store.layout.partition(self.partition) + field) {
            // The member died before it opened the store: its root is unknown.
            None => Ok(None),
            Some(place) => self.word(place),
        }
    }

    /// The records of a bucket; `None` if the index is damaged.
    fn records(&self, bucket: usize) -> OpResult<Option<Vec<Found>>> {
        let store = self.store;
        let Some(buckets) =
            self.partition_word(PARTITION_BUCKETS)?.filter(|&at| at != 0 && is_place(at))
        else {
            return Ok(None);
        };
        let Some(mut at) = self.word(buckets + bucket as u64 * 8)? else { return Ok(None) };
        let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
        while at != 0 {
            let mut words = [0; NODE_KEY as usize];
            if !is_place(at) || !seen.insert(at) || !self.read(at, &mut words)? {
                return Ok(None);
            }
            let word = |index: usize| {
                u64::from_ne_bytes(words[index * 8..index * 8 + 8].try_into().expect("8 bytes"))
            };
            let len = (word(2) >> 16 & 0xffff) as usize;
            let mut key = vec![0; len.min(KEY_LEN_MAX)];
            if !(1..=KEY_LEN_MAX).contains(&len) || !self.read(at + NODE_KEY, &mut key)? {
                return Ok(None);
            }
            let hash = hash_key(&key);
            let is_right = hash & 0xffff_ffff == word(2) >> 32
                && hash as usize & (store.bucket_count - 1) == bucket
                && store.placement.partition(hash) == self.partition;
            if !is_right {
                return Ok(None);
            }
            found.push(Found { key, hash, word: at + NODE_HEAD });
            at = word(0);
        }
        Ok(Some(found))
    }

    /// The version that a record has.
    fn version(&self, found: &Found, latest: u64) -> OpResult<Kept> {
        for _ in 0..ATTEMPTS {
            let Some(head) = self.word(found.word)?.map(Head) else { return Ok(Kept::Damaged) };
            if head == Head::REMOVED {
                return Ok(Kept::Nothing);
            }
            if head.config_number() > latest {
                return Ok(Kept::Damaged);
            }
            let Some(offset) = head.offset() else { return Ok(Kept::Nothing) };
            if let Some((block, value)) = self.block(found, offset)? {
                return Ok(Kept::Version(block, value));
            }
            // An operation of a living member that was in flight may have replaced the version
            // meanwhile.
            if self.word(found.word)? == Some(head.0) {
                return Ok(Kept::Damaged);
            }
        }
        Ok(Kept::Damaged)
    }

    /// The version in a block; `None` if the block holds no valid version of this key.
    fn block(&self, found: &Found, offset: u64) -> OpResult<Option<(Block, Vec<u8>)>> {
        let mut bytes = [0; BLOCK_HEADER_LEN as usize];
        if !self.read(offset, &mut bytes)? {
            return Ok(None);
        }
        let block = Block::decode(&bytes);
        let is_possible = block.writer.index() < self.store.job.members()
            && block.counter < COUNTER_MAX
            && class_of(value_start(block.len) + block.len).is_some();
        let start = offset + value_start(block.len);
        // The last byte is read before a buffer of this length is made.
        if !is_possible || block.len > 0 && !self.read(start + block.len - 1, &mut [0])? {
            return Ok(None);
        }
        let mut value = vec![0; block.len as usize];
        if !self.read(start, &mut value)? {
            return Ok(None);
        }
        let is_right =
            checksum(found.hash, &block, &value) == block.checksum || mutant("salvage-torn");
        Ok(is_right.then_some((block, value)))
    }

    /// The version floor of the partition; `None` if the word cannot be read or has an impossible
    /// value.
    fn floor(&self, latest: u64) -> OpResult<Option<u64>> {
        let floor = self.partition_word(PARTITION_FLOOR)?;
        Ok(floor.filter(|floor| floor >> INCARNATION_SHIFT <= latest))
    }
}

/// Where a partition can be salvaged from.
enum Source<'a> {
    /// This dead segment, of L.
    DeadSegment(DeadSegment<'a>),
    /// No member: all replicas died before they had opened the store, so the partition is empty.
    Never,
    /// The last content of the partition cannot be determined.
    Unknown,
}

/// The number of bytes that are read at once in search of a root magic.
const SEARCH: usize = 1 << 16;

impl RecoveryState {
    /// Whether the root of a dead member is known or can be found. A member without a root magic
    /// had not opened the store, so no member can have put a value there.
    fn has_root(&self, _op: &RecordOp<'_>, member: MemberId) -> OpResult<bool> {
        let store = self;
        if store.knows_root(member) {
            return Ok(true);
        }
        if lock(&store.salvage.rootless).contains(member) {
            return Ok(false);
        }
        let (remains, wanted) = (DeadSegment { store, member, partition: 0 }, store.root_magic());
        let mut bytes = vec![0; SEARCH];
        let mut at = 0;
        loop {
            if !remains.read(at, &mut bytes)? {
                match bytes.len() {
                    64 => break,
                    // The end of the segment is read in lines of 64 bytes.
                    _ => bytes.truncate(64),
                }
                continue;
            }
            let mark = |line: &[u8]| line[ROOT_MAGIC as usize..].starts_with(&wanted.to_ne_bytes());
            if let Some(line) = bytes.chunks_exact(64).position(mark) {
                store.learn_root(member, at + line as u64 * 64);
                return Ok(true);
            }
            at += bytes.len() as u64;
        }
        lock(&store.salvage.rootless).insert(member);
        Ok(false)
    }

    /// The greatest configuration number that any member can have computed under this
    /// view: any number of living members may be leaving without this member having heard of
    /// it.
    fn latest_number(&self, op: &RecordOp<'_>) -> OpResult<u64> {
        let view = self.view(op.epoch).ok_or(OpError::Again)?;
        let dead = view.dead.iter().count() as u64;
        Ok((1 + 2 * dead + view.living().count() as u64).min(CONFIG_NUMBER_MAX))
    }

    /// *find_source*: the replica that was complete and died last.
    fn source<'a>(
        &'a self,
        op: &RecordOp<'_>,
        partition: usize,
        latest: u64,
    ) -> OpResult<Source<'a>> {
        let store = self;
        let view = store.view(op.epoch).ok_or(OpError::Again)?;
        let Some(mut order) = store.job.death_order() else { return Ok(Source::Unknown) };
        if order.len() < op.epoch.0 as usize {
            return Err(OpError::Again);
        }
        order.truncate(op.epoch.0 as usize);
        let spares = view.members - view.regulars;
        let first = View::new(view.regulars, spares, MemberSet::new(), MemberSet::new());
        let initial = store
            .placement
            .replicas(store.preference(partition), &first, &MemberSet::new())
            .members;
        let mut places: Vec<usize> = (0..order.len()).rev().collect();
        if mutant("salvage-oldest") {
            places.reverse();
        }
        for place in places {
            let member = order[place];
            // A member that was complete was a replica, since a replica stays a replica while it
            // lives. Which members were replicas is not computed: it depends on the members that
            // were leaving at that time.
            if !self.has_root(op, member)? {
                continue;
            }
            let remains = DeadSegment { store, member, partition };
            let Some(state) = remains.partition_word(PARTITION_STATE)?.map(State) else {
                return Ok(Source::Unknown);
            };
            match state.phase() {
                Phase::Complete if state.configuration() <= latest => {
                    return Ok(Source::DeadSegment(remains));
                }
                // A replica from the beginning was complete ever since, so its state word is
                // damaged.
                _ if initial.contains(&member) => return Ok(Source::Unknown),
                Phase::Absent | Phase::Filling => {}
                Phase::Complete | Phase::Lost => return Ok(Source::Unknown),
            }
        }
        Ok(Source::Never)
    }

    /// Does a piece of the steps *find_source* to *complete*, from this bucket on. The caller makes
    /// sure that a single activity of this member salvages at a time.
    pub(in crate::store) fn salvage(
        &self,
        op: &RecordOp<'_>,
        partition: usize,
        replicas: &Assignment,
        position: usize,
    ) -> OpResult<Salvaged> {
        let (store, me, config_number) = (self, self.me(), replicas.configuration);
        if replicas.members.first() != Some(&me) {
            return Ok(Salvaged::ByAnother);
        }
        let (absent, lost) =
            (State::new(Phase::Absent, config_number), State::new(Phase::Lost, config_number));
        let state = op.state(me, partition)?;
        if state == lost {
            return Ok(Salvaged::Nothing);
        }
        if state.is_filling(config_number) {
            // *reset*.
            if !op.swap_state(me, partition, state, absent)? {
                return Err(OpError::Again);
            }
        } else if state != absent {
            return Err(OpError::Again);
        }
        let give_up = |why: &str| {
            tracing::error!(partition, why, "nothing can be salvaged");
            match op.swap_state(me, partition, absent, lost)? {
                true => Ok(Salvaged::Nothing),
                false => Err(OpError::Again),
            }
        };
        let latest = self.latest_number(op)?;
        let remains = match self.source(op, partition, latest)? {
            Source::DeadSegment(remains) => Some(remains),
            Source::Never => None,
            Source::Unknown => return give_up("no source"),
        };
        // This member is never its own source, so `me` stands for an empty partition.
        let from = remains.as_ref().map_or(me, |remains| remains.member);
        let begun = lock(&store.salvage.begun).get(&partition).copied();
        let mut position = position;
        if begun != Some(from) {
            op.renew_index(partition)?;
            lock(&store.salvage.begun).insert(partition, from);
            position = 0;
        }
        if let Some(remains) = remains {
            match self.copy_dead_segment(op, &remains, config_number, latest, position)? {
                Copied::Until(position) => return Ok(Salvaged::Until(position)),
                Copied::All => {}
                Copied::Damaged(why) => return give_up(why),
            }
        }
        if !op.is_current() {
            return Err(OpError::Again);
        }
        // *complete*.
        let complete = State::new(Phase::Complete, config_number - 1);
        if !op.swap_state(me, partition, absent, complete)? {
            return Err(OpError::Again);
        }
        lock(&store.salvage.begun).remove(&partition);
        Ok(Salvaged::All)
    }

    /// Does a piece of *copy*, from this bucket on, and at the end *raise_floor*.
    fn copy_dead_segment(
        &self,
        op: &RecordOp<'_>,
        remains: &DeadSegment<'_>,
        config_number: u64,
        latest: u64,
        position: usize,
    ) -> OpResult<Copied> {
        let store = self;
        // *copy*.
        let config = op.config_alone(config_number);
        let (mut end, mut records) = ((position + PIECE).min(store.bucket_count), 0);
        for bucket in position..end {
            let Some(found) = remains.records(bucket)? else {
                return Ok(Copied::Damaged("the index is damaged"));
            };
            records += found.len();
            for found in found {
                self.salvage_record(op, &config, remains, latest, &found)?;
            }
            if records >= PIECE_RECORDS {
                end = bucket + 1;
                break;
            }
        }
        if end < store.bucket_count {
            return Ok(Copied::Until(end));
        }
        // *raise_floor*.
        let Some(floor) = remains.floor(latest)? else {
            return Ok(Copied::Damaged("the version floor is invalid"));
        };
        op.raise_floor(store.me(), remains.partition, floor)?;
        Ok(Copied::All)
    }

    /// *copy* for a single record.
    fn salvage_record(
        &self,
        op: &RecordOp<'_>,
        config: &Configuration,
        remains: &DeadSegment<'_>,
        latest: u64,
        found: &Found,
    ) -> OpResult<()> {
        let (store, me) = (self, self.me());
        let (partition, config_number) = (remains.partition, config.config_number);
        let key = self.any_key_ref(&found.key);
        // A tombstone with a later incarnation than the partition belongs to a key whose damage was
        // accepted. It stays a version, and does not raise the floor to its own incarnation.
        let incarnation = remains.floor(latest)?.unwrap_or_default() >> INCARNATION_SHIFT;
        let (block, value) = match remains.version(found, latest)? {
            Kept::Nothing => return Ok(()),
            Kept::Version(block, _)
                if block.is_deleted && block.counter >> INCARNATION_SHIFT <= incarnation =>
            {
                op.raise_floor(me, partition, block.counter)?;
                // An interrupted salvage may have copied an earlier version.
                if let Some((word, head)) = op.find(config, config.primary, &key)? {
                    self.put_own_head(op, word, head, Head::new(config_number, 0))?;
                }
                return op.notify_writer(&block);
            }
            Kept::Version(block, value) => {
                if block.kind == Kind::Lost {
                    self.report_damage(op, partition);
                }
                (block, value)
            }
            Kept::Damaged => {
                let name = String::from_utf8_lossy(&found.key);
                tracing::error!(partition, key = %name, "a value was damaged and is lost");
                self.report_damage(op, partition);
                // The counter is greater than that of any version of this incarnation.
                let view = store.view(op.epoch).ok_or(OpError::Again)?;
                let incarnation = store.number_without_leavers(partition, &view);
                let block = Block {
                    counter: incarnation << INCARNATION_SHIFT,
                    writer: me,
                    participant: 0,
                    operation: 0,
                    len: 0,
                    is_deleted: false,
                    kind: Kind::Lost,
                    holder: 0,
                    owner: me,
                    checksum: 0,
                };
                (store.with_checksum(&key, block, &[]), Vec::new())
            }
        };
        let word = op.find_or_insert(config, config.primary, &key)?;
        let head = Head(op.load(me, word)?);
        // An interrupted salvage may have copied this version, or an earlier version.
        let own = head.offset().map(|offset| op.read_block(me, offset)).transpose()?;
        if own.is_none_or(|own| own.identity() != block.identity()) {
            let class = block_class(&block, me)?;
            let offset = op.fill_block(me, &block, &value)?;
            let put = self.put_own_head(op, word, head, Head::new(config_number, offset));
            if put.is_err() {
                // The view has changed during the copy.
                op.keep_unless_timed_out(me, class, offset, &put);
            }
            put?;
        }
        if block.kind == Kind::Lost { Ok(()) } else { op.notify_writer(&block) }
    }

    /// Replaces a head word in the own index. No other member reads it while this replica is
    /// absent.
    fn put_own_head(&self, op: &RecordOp<'_>, word: u64, old: Head, new: Head) -> OpResult<()> {
        let me = self.me();
        match op.swap(me, word, old.0, new.0)? {
            true => {
                op.retire_head(me, old);
                Ok(())
            }
            false => Err(OpError::Again),
        }
    }

    /// Tells all members that keys of a partition are lost, before any call can meet these keys. It
    /// does so once under each view: the member that did so before may have died when it had told
    /// only some members.
    pub(in crate::store::recovery) fn report_damage(&self, op: &RecordOp<'_>, partition: usize) {
        let job = &self.job;
        if lock(&self.salvage.told).insert(partition, op.epoch) == Some(op.epoch) {
            return;
        }
        self.record_damage(partition);
        let note = Message::Damaged { partition: partition as u64 };
        let view = self.current_view();
        for member in view.living().filter(|&member| member != job.me()) {
            // If this member dies before the message arrives, the next member that repairs or
            // salvages the partition sends it again.
            let _ = self.send(member, &note);
        }
    }

    /// The keys with a lost version, in a partition that lives.
    fn keys_marked_in(&self, op: &RecordOp<'_>, partition: usize) -> OpResult<Vec<Vec<u8>>> {
        let config = op.config(partition)?;
        let primary = config.primary_member();
        let mut keys = Vec::new();
        for bucket in 0..self.bucket_count {
            for node in op.nodes(config, config.primary, partition, bucket)? {
                let Some(offset) = node.head.offset() else { continue };
                if op.read_block(primary, offset)?.kind == Kind::Lost {
                    keys.push(node.key);
                }
            }
        }
        if op.is_current() { Ok(keys) } else { Err(OpError::Again) }
    }

    /// Puts a tombstone in the place of a lost version. A key with another version stays as it is.
    fn write_tombstone(&self, op: &mut RecordOp<'_>, key: &KeyRef<'_>) -> OpResult<()> {
        let config = op.config(key.partition)?;
        let before = op.find_reconciled(config, key, None, false)?;
        let is_lost =
            before.block.is_some_and(|block| block.kind == Kind::Lost && !block.is_deleted);
        if !is_lost {
            return if op.is_still_current(config, key.partition)? {
                Ok(())
            } else {
                Err(OpError::Again)
            };
        }
        let owner = self.me();
        op.replace(config, key, before, &[], VersionAttributes::plain(true, owner)).map(|_| ())
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::engine::Fault;
    use crate::engine::sim::{self, Options as SimOptions};
    use crate::job::{Job, Service};
    use crate::store::testing::nap;
    use crate::store::{Options, Store};
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::Arc;

    /// Code of the program that runs in the background: reads a key, once.
    struct Reader {
        store: Store,
        key: Vec<u8>,
        taken: Mutex<Option<Duration>>,
    }

    impl Reader {
        fn read(&self, job: &Job) {
            let began = job.now();
            let found = self.store.get(&self.key).expect("salvaged").expect("there");
            assert_eq!(found.bytes(), b"value");
            *lock(&self.taken) = Some(job.now().since(began));
        }
    }

    impl Service for Reader {
        fn run(&self, job: &Job) -> Time {
            if !self.is_over() {
                self.read(job);
            }
            Time::NEVER
        }

        fn is_over(&self) -> bool {
            lock(&self.taken).is_some()
        }
    }

    /// A member fills a new replica, which is stopped and has no block for a value. Then it has to
    /// salvage another partition. A call that waits for that salvage, in a thread of the program or
    /// in the background, does not wait for the stopped replica.
    #[test]
    fn a_call_that_waits_for_a_salvage_waits_for_no_stopped_replica() {
        const LIMIT: Duration = Duration::from_secs(1);
        for seed in 0..40 {
            let over = Rc::new(Cell::new(false));
            let mut plan = SimOptions::new(5, seed);
            (plan.keeps_dead_segments, plan.time_limit) = (true, LIMIT);
            let report = sim::run(&plan, move |job: Job| {
                let options = Options::new().replicas(2).partitions(256).expected_keys(1024);
                let store = Store::open(&job, options.salvage(true)).expect("open");
                let [dead, source, salvager, new] = [0, 1, 2, 3].map(MemberId);
                if job.me() == salvager {
                    let order = |key: &Vec<u8>| {
                        let partition = store.partition_of(key).expect("a key");
                        (partition, &store.state.preference(partition)[..3])
                    };
                    let keys: Vec<Vec<u8>> =
                        (0..5000).map(|number| format!("key/{number}").into_bytes()).collect();
                    let at = |wanted: [MemberId; 3]| {
                        keys.iter().filter(move |key| order(key).1 == wanted)
                    };
                    // The background comes to the first partition before it comes to the second.
                    let filled = at([dead, salvager, new]).min_by_key(|key| order(key).0);
                    let salvaged = at([dead, source, salvager]).max_by_key(|key| order(key).0);
                    let (filled, salvaged) = (filled.expect("a key"), salvaged.expect("a key"));
                    let partition = order(filled).0;
                    assert!(partition < order(salvaged).0);
                    store.put(filled, &[7; 10_000]).expect("put");
                    store.put(salvaged, b"value").expect("put");
                    // No member fills a new replica of the second partition. The repairer of the
                    // first partition begins when its new replica is stopped.
                    job.inject(Fault::Stop(source)).expect("a fault");
                    nap(&job, "the background", || store.state.begin_indexes());
                    job.inject(Fault::Kill(dead)).expect("a fault");
                    let is_filling = || {
                        let state = store.state.run(|op| op.state(new, partition));
                        state.expect("known").phase() == Phase::Filling
                    };
                    nap(&job, "the new replica", is_filling);
                    job.inject(Fault::Stop(new)).expect("a fault");
                    store.state.end_indexes();
                    job.sleep(Duration::from_millis(50));
                    assert!(is_filling(), "it has no block");
                    job.inject(Fault::Kill(source)).expect("a fault");
                    nap(&job, "the death", || !job.view().is_living(source));
                    let (store, key) = (store.clone(), salvaged.clone());
                    let reader = Arc::new(Reader { store, key, taken: Mutex::new(None) });
                    match seed % 2 {
                        0 => reader.read(&job),
                        _ => job.serve(reader.clone()).expect("a service"),
                    }
                    nap(&job, "the reader", || reader.is_over());
                    let taken = lock(&reader.taken).expect("read");
                    assert!(taken < LIMIT / 4, "{taken:?}");
                    job.inject(Fault::Resume(new)).expect("a fault");
                    over.set(true);
                }
                let is_killed = [dead, source].contains(&job.me());
                nap(&job, "the end", || over.get() && !is_killed);
                let _ = store.close();
                let _ = job.leave();
            });
            report.expect_ok();
        }
    }

    /// Three members are leaving, of which the salvager has not heard. The head words in the dead
    /// segment have a later configuration number than the salvager computes. Nothing is damaged.
    #[test]
    fn records_of_a_later_configuration_are_salvaged() {
        for seed in 0..60 {
            let stage = Rc::new(Cell::new(0));
            let mut plan = SimOptions::new(6, seed);
            plan.keeps_dead_segments = true;
            // With failure domains every leaver counts in the configuration number.
            plan.domains = (0..6).map(|member| format!("host{member}")).collect();
            let report = sim::run(&plan, move |job: Job| {
                let options = Options::new().replicas(1).partitions(64).expected_keys(64);
                let store = Store::open(&job, options.salvage(true)).expect("open");
                let [victim, salvager, driver] = [0, 1, 2].map(MemberId);
                let is_right = |key: &Vec<u8>| {
                    let partition = store.partition_of(key).expect("a key");
                    store.state.placement.preference(partition)[..2] == [victim, salvager]
                };
                let names = (0..5000).map(|number| format!("key/{number}").into_bytes());
                let key = names.into_iter().find(is_right).expect("some key");
                let hear = || {
                    (3..6).map(MemberId).for_each(|member| store.state.record_leaver(member));
                };
                if job.me() == driver {
                    store.put(&key, b"before").expect("put");
                    hear();
                    store.put(&key, b"after").expect("put");
                    job.fence(victim, Time::NEVER).expect("killed");
                    stage.set(1);
                }
                if job.me() == salvager {
                    nap(&job, "the death", || !job.view().is_living(victim));
                    job.sleep(Duration::from_millis(1));
                    hear();
                }
                if job.me() != victim {
                    nap(&job, "the death", || stage.get() == 1);
                    job.sleep(Duration::from_millis(50));
                    hear();
                    let found = store.get(&key).expect("not damaged").expect("there");
                    assert_eq!(found.bytes(), b"after");
                } else {
                    nap(&job, "its death", || false);
                }
                store.close().expect("closed");
                let _ = job.leave();
            });
            report.expect_ok();
        }
    }
}

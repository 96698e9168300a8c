//! Writing, settling and reading: docs/protocol.md, steps W1 to W9 and T1 to T5.

use super::access::{Halt, Op, Step};
use super::head::{Head, Phase, State};
use super::index::KeyRef;
use super::layout::{
    ACTOR_OUTCOME, BLOCK_HEADER_LEN, Block, PARTITION_BUCKETS, PARTITION_FLOOR, PARTITION_STATE,
    PARTITION_WAITERS, class_of, value_start,
};
use super::mutant::mutant;
use super::open::{Inner, lock};
use super::placement::hash_key;
use super::{StoreError, StoreResult, Version, check_key};
use crate::engine::{Engine, Epoch, MemberId, steps};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A configuration of a partition, as this member has entered it.
#[derive(Debug)]
pub(super) struct Config {
    /// The newest epoch for which this configuration is known to be the right one.
    epoch: AtomicU64,
    /// The configuration's number, which stamps the heads written under it.
    pub(super) stamp: u64,
    pub(super) homes: Vec<MemberId>,
    /// Which of the homes decides the order of writes.
    pub(super) primary: usize,
    /// A bit for each home that has an index: it is filling or complete, and stays so.
    ready: AtomicU64,
    /// Where the buckets of each home are, 0 while unknown.
    buckets: Vec<AtomicU64>,
}

impl Config {
    pub(super) fn is_ready(&self, home: usize) -> bool {
        self.ready.load(Ordering::Acquire) & 1 << home != 0
    }

    fn ready_homes(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.homes.len()).filter(|&home| self.is_ready(home))
    }

    /// The head of a new record. Before the first death there is nothing that could be brought up from elsewhere.
    pub(super) fn empty_head(&self) -> Head {
        let head = Head::new(self.stamp, 0);
        if self.stamp == 1 { head.stable() } else { head }
    }
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
    /// The same value, owned by the member that writes it.
    Adopt(Vec<u8>),
    Delete,
    Nothing,
}

/// A version that was published at the primary and is to be held by all homes.
struct Published<'a> {
    block: Block,
    value: &'a [u8],
    /// The block that was filled at each home.
    offsets: Vec<Option<u64>>,
}

impl Op<'_> {
    /// The configuration of a partition under this operation's view; enters it if nobody of this member has.
    pub(super) fn config(&self, partition: usize) -> Step<Arc<Config>> {
        let store = self.store;
        let known = lock(&store.partitions[partition]).config.clone();
        if let Some(config) = &known
            && config.epoch.load(Ordering::Acquire) == self.epoch.0
        {
            return Ok(config.clone());
        }
        let view = store.view(self.epoch).ok_or(Halt::Again)?;
        let homes = store.placement.homes(&store.preference(partition), &view);
        if let Some(config) = known
            && config.stamp == homes.configuration
            && config.homes == homes.members
        {
            config.epoch.fetch_max(self.epoch.0, Ordering::AcqRel);
            return Ok(config);
        }
        let config = Arc::new(self.enter(partition, homes.members, homes.configuration)?);
        lock(&store.partitions[partition]).config = Some(config.clone());
        Ok(config)
    }

    fn partition_word(&self, home: MemberId, partition: usize, field: u64) -> u64 {
        self.store.root(home) + self.store.layout.partition(partition) + field
    }

    pub(super) fn state(&self, home: MemberId, partition: usize) -> Step<State> {
        Ok(State(self.load(home, self.partition_word(home, partition, PARTITION_STATE))?))
    }

    pub(super) fn swap_state(&self, home: MemberId, partition: usize, from: State, to: State) -> Step<bool> {
        self.swap(home, self.partition_word(home, partition, PARTITION_STATE), from.0, to.0)
    }

    /// Enters a configuration: stamps the states of the homes that are not complete, so that a late repairer of an
    /// older configuration cannot complete them, and finds the primary.
    fn enter(&self, partition: usize, homes: Vec<MemberId>, stamp: u64) -> Step<Config> {
        let (mut primary, mut ready) = (None, 0);
        for (index, &home) in homes.iter().enumerate() {
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
                Phase::Absent => {}
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
        let primary = primary.ok_or(Halt::Fail(StoreError::DataLost { partition }))?;
        Ok(Config {
            epoch: AtomicU64::new(self.epoch.0),
            stamp,
            primary,
            ready: AtomicU64::new(ready),
            buckets: homes.iter().map(|_| AtomicU64::new(0)).collect(),
            homes,
        })
    }

    pub(super) fn buckets(&self, config: &Config, home: usize, partition: usize) -> Step<u64> {
        let known = config.buckets[home].load(Ordering::Acquire);
        if known != 0 {
            return Ok(known);
        }
        let member = config.homes[home];
        let buckets = self.load(member, self.partition_word(member, partition, PARTITION_BUCKETS))?;
        config.buckets[home].store(buckets, Ordering::Release);
        Ok(buckets)
    }

    /// Looks whether homes that had no index have one now; whether any did.
    pub(super) fn find_new_homes(&self, config: &Config, partition: usize) -> Step<bool> {
        let mut found = false;
        for home in (0..config.homes.len()).filter(|&home| !config.is_ready(home)) {
            if self.state(config.homes[home], partition)?.phase() != Phase::Absent {
                config.ready.fetch_or(1 << home, Ordering::AcqRel);
                found = true;
            }
        }
        Ok(found)
    }

    pub(super) fn read_block(&self, home: MemberId, offset: u64) -> Step<Block> {
        let mut bytes = [0; BLOCK_HEADER_LEN as usize];
        self.get(home, offset, &mut bytes)?;
        Ok(Block::decode(&bytes))
    }

    /// The counter of the version that a head names; 0 if it names none.
    fn counter(&self, home: MemberId, head: Head) -> Step<u64> {
        head.offset().map_or(Ok(0), |offset| self.load(home, offset))
    }

    /// Fills a block at a home with a version.
    fn fill_block(&self, home: MemberId, block: &Block, value: &[u8]) -> Step<u64> {
        steps::enter(steps::Step::Fill);
        let class = block_class(block, home)?;
        let offset = self.take_block(home, class)?;
        let filled = self.put(home, offset, &block.encode()).and_then(|()| match value.is_empty() {
            true => Ok(()),
            false => self.put(home, offset + value_start(block.len), value),
        });
        // After a refusal nothing was written. After a timeout something may still be, whenever the home goes on: the
        // block must not be used for anything else.
        if matches!(filled, Err(Halt::Again)) {
            self.store.space.keep(home, class, offset);
        }
        filled.map(|()| offset)
    }

    /// Retires the block that a head named, after it was swapped out.
    fn retire_head(&self, home: MemberId, head: Head) -> Step<()> {
        let Some(offset) = head.offset() else { return Ok(()) };
        let block = self.read_block(home, offset)?;
        self.retire(home, block_class(&block, home)?, offset)
    }

    /// W6 for one home: makes it hold a version, or something later. The block is used, or kept for later.
    fn install(
        &self,
        config: &Config,
        home: usize,
        key: &KeyRef<'_>,
        block: &Block,
        offset: u64,
    ) -> Step<()> {
        let member = config.homes[home];
        let word = self.find_or_insert(config, home, key)?;
        loop {
            let found = Head(self.load(member, word)?);
            if found.stamp() > config.stamp {
                return Err(Halt::Again);
            }
            if found.stamp() == config.stamp && self.counter(member, found)? >= block.counter {
                self.store.space.keep(member, block_class(block, member)?, offset);
                return Ok(());
            }
            if self.swap(member, word, found.0, Head::new(config.stamp, offset).0)? {
                return self.retire_head(member, found);
            }
        }
    }

    /// The primary's head, settled under this configuration: whatever is unfinished is finished first.
    pub(super) fn settled(&self, config: &Config, key: &KeyRef<'_>, word: u64) -> Step<Head> {
        let primary = config.homes[config.primary];
        loop {
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
        steps::enter(steps::Step::Seal);
        let mut found: Vec<(usize, u64, Head, bool)> = Vec::with_capacity(config.homes.len());
        for home in config.ready_homes() {
            let member = config.homes[home];
            let is_complete = self.state(member, key.partition)?.phase() == Phase::Complete;
            let word = self.find_or_insert(config, home, key)?;
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
        steps::enter(steps::Step::Greatest);
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
                Some((block, value)) => Head::new(config.stamp, self.fill_block(member, block, value)?),
            };
            steps::enter(steps::Step::Settle);
            if !self.swap(member, word, head.0, new.0)? {
                if let (Some(offset), Some((block, _))) = (new.offset(), &version) {
                    self.store.space.keep(member, block_class(block, member)?, offset);
                }
                return Ok(());
            }
            self.retire_head(member, head)?;
            if home == config.primary {
                primary_head = new;
            }
        }
        // A home that got its index meanwhile lacks it.
        if self.find_new_homes(config, key.partition)? {
            return Ok(());
        }
        // T4: its writer must be able to know, before anyone builds on it.
        steps::enter(steps::Step::Tell);
        if let Some((block, _)) = &version {
            self.tell_writer(block)?;
        }
        steps::enter(steps::Step::Settled);
        // T5. If the swap fails someone else has settled it, or gone on.
        let (primary, word) = found
            .iter()
            .find(|(home, ..)| *home == config.primary)
            .map(|&(home, word, ..)| (config.homes[home], word))
            .ok_or(Halt::Again)?;
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
                let new = match head.offset() {
                    None => Head::new(config.stamp, 0),
                    Some(offset) => {
                        let block = self.read_block(primary, offset)?;
                        let mut value = vec![0; block.len as usize];
                        self.get(primary, offset + value_start(block.len), &mut value)?;
                        Head::new(config.stamp, self.fill_block(member, &block, &value)?)
                    }
                };
                if self.swap(member, target_word, found.0, new.0)? {
                    self.retire_head(member, found)?;
                } else if let Some(offset) = new.offset() {
                    let block = self.read_block(member, offset)?;
                    self.store.space.keep(member, block_class(&block, member)?, offset);
                }
            }
            // Once more if the source has changed meanwhile.
            if self.load(primary, word)? == head.0 || mutant("repair-over-newer") {
                return Ok(());
            }
        }
    }

    /// Tells the writer of a version that it happened, if it lives and is still at that operation.
    fn tell_writer(&self, block: &Block) -> Step<()> {
        let writer = MemberId(u32::from(block.writer));
        let view = self.store.view(self.epoch).ok_or(Halt::Again)?;
        if !view.is_living(writer) {
            return Ok(());
        }
        let word =
            self.store.root(writer) + self.store.layout.actor(usize::from(block.actor)) + ACTOR_OUTCOME;
        loop {
            let outcome = self.load(writer, word)?;
            if (outcome >> 1) as u32 != block.operation || outcome & 1 == 1 {
                return Ok(());
            }
            if self.swap(writer, word, outcome, outcome | 1)? {
                return Ok(());
            }
        }
    }

    /// W5 to W8: publishes a version in place of `before`, the settled head of the primary.
    fn publish(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        word: u64,
        before: Head,
        published: &mut Published<'_>,
    ) -> Step<bool> {
        let primary = config.homes[config.primary];
        let offset = published.offsets[config.primary].expect("filled");
        let mut head = Head::new(config.stamp, offset);
        if config.homes.len() == 1 {
            // Nobody else is to hold it.
            head = head.stable();
        }
        steps::enter(steps::Step::Publish);
        if !self.swap(primary, word, before.0, head.0)? {
            return Ok(false);
        }
        published.offsets[config.primary] = None;
        if mutant("publish-early") && !published.value.is_empty() {
            self.put(primary, offset + value_start(published.block.len), published.value)?;
        }
        self.finish(config, key, published)?;
        let _ = self.tidy_up(config, key, word, before, head);
        Ok(true)
    }

    /// W6 and W7: makes every home hold the version.
    fn finish(&self, config: &Config, key: &KeyRef<'_>, published: &mut Published<'_>) -> Step<()> {
        let block = published.block;
        let mut is_done = vec![false; config.homes.len()];
        is_done[config.primary] = true;
        is_done[config.homes.len() - 1] |= mutant("ack-early");
        loop {
            for home in config.ready_homes() {
                if is_done[home] {
                    continue;
                }
                let offset = match published.offsets[home].take() {
                    Some(offset) => offset,
                    None => self.fill_block(config.homes[home], &block, published.value)?,
                };
                steps::enter(steps::Step::Install);
                match self.install(config, home, key, &block, offset) {
                    Err(Halt::Again) if mutant("skip-epoch") => {}
                    result => result?,
                }
                is_done[home] = true;
            }
            // W7: homes that got their index since.
            steps::enter(steps::Step::NewHomes);
            if !self.find_new_homes(config, key.partition)? {
                break;
            }
        }
        Ok(())
    }

    /// W8 and what else is good to do. The version has happened: every complete home of the configuration holds it, or
    /// something later, so no failure from here on can undo it.
    fn tidy_up(&self, config: &Config, key: &KeyRef<'_>, word: u64, before: Head, head: Head) -> Step<()> {
        let primary = config.homes[config.primary];
        steps::enter(steps::Step::Stable);
        if !head.is_stable() {
            self.swap(primary, word, head.0, head.stable().0)?;
        }
        self.ring_waiters(primary, key.partition)?;
        self.retire_head(primary, before)
    }

    fn ring_waiters(&self, primary: MemberId, partition: usize) -> Step<()> {
        let word = self.partition_word(primary, partition, PARTITION_WAITERS);
        let waiters = self.load(primary, word)?;
        if waiters == 0 {
            return Ok(());
        }
        // Whoever still waits enters itself again; if the swap fails someone else rings, or has just come.
        self.swap(primary, word, waiters, 0)?;
        let members = self.store.job.members() as u32;
        for member in (0..members).map(MemberId).filter(|member| waiters & 1 << (member.0 % 64) != 0) {
            match self.store.job.ring(member) {
                Ok(()) | Err(crate::engine::Error::Dead { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Whether the configuration is still the right one.
    fn is_still(&mut self, config: &Config, partition: usize) -> Step<bool> {
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

    fn try_write<'v>(
        &mut self,
        key: &KeyRef<'_>,
        change: &mut impl FnMut(Option<&Current>, &mut Vec<u8>) -> StoreResult<Change<'v>>,
        needs_value: bool,
    ) -> Step<Option<Version>> {
        let store = self.store;
        let config = self.config(key.partition)?;
        let primary = config.homes[config.primary];
        steps::enter(steps::Step::Find);
        let word = self.find_or_insert(&config, config.primary, key)?;
        let before = self.settled(&config, key, word)?;
        let mut buffer = Vec::new();
        let (mut counter, mut current, mut owner) = (0, None, store.me());
        match before.offset() {
            None => {
                counter = self.load(primary, self.partition_word(primary, key.partition, PARTITION_FLOOR))?
            }
            Some(offset) => {
                let block = self.read_block(primary, offset)?;
                let is_forgotten = block.is_deleted && mutant("forget-tombstone");
                counter = counter.max(if is_forgotten { 0 } else { block.counter });
                if !block.is_deleted {
                    current = Some(Current { version: block.version() });
                    owner = MemberId(u32::from(block.owner));
                    if needs_value {
                        buffer.resize(block.len as usize, 0);
                        self.get(primary, offset + value_start(block.len), &mut buffer)?;
                    }
                }
            }
        }
        let owned;
        let (value, is_deleted) = match change(current.as_ref(), &mut buffer)? {
            Change::Put(value) => (value, false),
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
                return if self.is_still(&config, key.partition)? { Ok(None) } else { Err(Halt::Again) };
            }
        };
        let block = Block {
            counter: counter + 1,
            writer: store.me().0 as u16,
            actor: self.actor as u16,
            operation: self.number as u32,
            len: value.len() as u64,
            is_deleted,
            owner: owner.0 as u16,
        };
        let mut published = Published { block, value, offsets: vec![None; config.homes.len()] };
        let result = self.fill_and_publish(&config, key, word, before, &mut published);
        // Blocks that nobody has seen are kept for the next time, unless a call did not end: it may still have an effect.
        for (home, offset) in published.offsets.iter().enumerate() {
            if let (Some(offset), Ok(_) | Err(Halt::Again)) = (offset, &result) {
                store.space.keep(config.homes[home], block_class(&block, primary)?, *offset);
            }
        }
        match result {
            Ok(false) => Err(Halt::Again),
            Ok(true) => Ok(Some(block.version())),
            Err(Halt::Again) => self.redo(key, &block),
            Err(fail) => Err(fail),
        }
    }

    fn fill_and_publish(
        &mut self,
        config: &Config,
        key: &KeyRef<'_>,
        word: u64,
        before: Head,
        published: &mut Published<'_>,
    ) -> Step<bool> {
        for home in config.ready_homes() {
            let is_late = mutant("publish-early") && home == config.primary;
            let value = if is_late { &[] } else { published.value };
            published.offsets[home] = Some(self.fill_block(config.homes[home], &published.block, value)?);
        }
        // Helpers say in this word that the operation happened.
        self.put(self.store.me(), self.outcome_word(), &(self.number << 1).to_ne_bytes())?;
        self.publish(config, key, word, before, published)
    }

    /// The view has changed in the middle: finds out whether the version happened.
    fn redo(&mut self, key: &KeyRef<'_>, block: &Block) -> Step<Option<Version>> {
        loop {
            self.renew();
            match self.has_happened(key, block) {
                Ok(true) => return Ok(Some(block.version())),
                Ok(false) => return Err(Halt::Again),
                Err(Halt::Again) => {}
                Err(fail) => return Err(fail),
            }
        }
    }

    fn has_happened(&mut self, key: &KeyRef<'_>, block: &Block) -> Step<bool> {
        steps::enter(steps::Step::Redo);
        let config = self.config(key.partition)?;
        let word = self.find_or_insert(&config, config.primary, key)?;
        let head = self.settled(&config, key, word)?;
        if let Some(offset) = head.offset() {
            let found = self.read_block(config.homes[config.primary], offset)?;
            let identity = |block: &Block| (block.counter, block.writer, block.actor, block.operation);
            if identity(&found) == identity(block) {
                return Ok(true);
            }
        }
        let outcome = self.load(self.store.me(), self.outcome_word())?;
        Ok(outcome == self.number << 1 | 1)
    }

    fn try_read<T>(
        &mut self,
        key: &KeyRef<'_>,
        take: &mut impl FnMut(&Op<'_>, MemberId, u64, &Block) -> Step<T>,
    ) -> Step<Option<T>> {
        let config = self.config(key.partition)?;
        let primary = config.homes[config.primary];
        let mut result = None;
        steps::enter(steps::Step::Read);
        if let Some(word) = self.find(&config, config.primary, key)?
            && let Some(offset) = self.settled(&config, key, word)?.offset()
        {
            let block = self.read_block(primary, offset)?;
            if !block.is_deleted {
                result = Some(take(self, primary, offset, &block)?);
            }
        }
        if self.is_still(&config, key.partition)? { Ok(result) } else { Err(Halt::Again) }
    }
}

/// The size class of a version's block.
fn block_class(block: &Block, home: MemberId) -> Step<usize> {
    class_of(value_start(block.len) + block.len).ok_or_else(|| {
        Halt::Fail(StoreError::OutOfMemory {
            member: home,
            reason: format!("a value of {} bytes is larger than any block", block.len),
        })
    })
}

impl Inner {
    fn key_ref<'k>(&self, key: &'k [u8]) -> StoreResult<KeyRef<'k>> {
        check_key(key)?;
        if self.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let hash = hash_key(key);
        Ok(KeyRef { key, hash, partition: self.placement.partition(hash) })
    }

    /// Runs an operation until it is done, beginning anew whenever the view has changed under it.
    pub(super) fn run<T>(&self, mut attempt: impl FnMut(&mut Op<'_>) -> Step<T>) -> StoreResult<T> {
        loop {
            let result = match Op::begin(self) {
                Ok(mut op) => attempt(&mut op),
                Err(halt) => Err(halt),
            };
            match result {
                Ok(value) => return Ok(value),
                Err(Halt::Fail(error)) => return Err(error),
                Err(Halt::Again) => {}
            }
        }
    }

    pub(super) fn write<'v>(
        &self,
        key: &[u8],
        needs_value: bool,
        mut change: impl FnMut(Option<&Current>, &mut Vec<u8>) -> StoreResult<Change<'v>>,
    ) -> StoreResult<Option<Version>> {
        let key = self.key_ref(key)?;
        self.run(|op| op.try_write(&key, &mut change, needs_value))
    }

    pub(super) fn read<T>(
        &self,
        key: &[u8],
        mut take: impl FnMut(&Op<'_>, MemberId, u64, &Block) -> Step<T>,
    ) -> StoreResult<Option<T>> {
        let key = self.key_ref(key)?;
        self.run(|op| op.try_read(&key, &mut take))
    }

    /// Enters this member among those who are rung when something in the key's partition changes.
    pub(super) fn announce_waiter(&self, key: &[u8]) -> StoreResult<()> {
        let key = self.key_ref(key)?;
        let bit = 1 << (self.me().0 % 64);
        self.run(|op| {
            let config = op.config(key.partition)?;
            let primary = config.homes[config.primary];
            let word = op.partition_word(primary, key.partition, PARTITION_WAITERS);
            loop {
                let waiters = op.load(primary, word)?;
                if waiters & bit != 0 || op.swap(primary, word, waiters, waiters | bit)? {
                    return Ok(());
                }
            }
        })
    }

    /// A load of the own memory that belongs to no operation.
    #[allow(dead_code)]
    pub(super) fn own_word(&self, offset: u64) -> StoreResult<u64> {
        self.job.load(Epoch::ANY, self.me(), offset).map_err(super::open::engine_error)
    }
}

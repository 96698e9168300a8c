//! Reading a record: the protocol page below, on the slow path and over a network. `fast_mapped.rs`
//! has the read where all members map the memory.

#![cfg_attr(outlast_pages, doc = include_str!("../../../../../docs/protocol/reading.md"))]

use crate::engine::mapped::MappedEngine;
use crate::engine::{COMPOUND_LEN_MAX, Done, MemberId, Operation};
use crate::store::error::{StoreError, StoreResult};
use crate::store::mutant::mutant;
use crate::store::operation::configuration::Configuration;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::placement::replica::ReplicaIndex;
use crate::store::record::fast_mapped::{ReadTarget, WholeVersion};
use crate::store::record::key::KeyRef;
use crate::store::record::location::{CachedLocation, CachedReplica, NearMark};
use crate::store::record::state::{RecordOp, RecordState};
use crate::store::segment::head::{Head, Phase};
use crate::store::segment::layout::{Block, Kind, REMOVALS, value_start};
use crate::store::steps;
use crate::store::value::{Value, Version};

/// A version that a reader found.
pub(in crate::store) struct Found {
    pub(in crate::store) replica: MemberId,
    pub(in crate::store) offset: u64,
    pub(in crate::store) block: Block,
    /// The value, if it was read together with the header.
    value: Option<Vec<u8>>,
    /// Whether a near read has found it.
    is_near: bool,
}

impl Found {
    /// Reads the value, and checks it.
    pub(in crate::store) fn to_value(&self, op: &RecordOp<'_>, key: &[u8]) -> OpResult<Value> {
        let mut bytes = vec![0; self.block.len as usize];
        self.copy(op, key, &mut bytes)?;
        Ok(Value { bytes, version: self.block.version(), owner: self.block.owner })
    }

    /// Copies the value into `target`, and checks it.
    #[inline]
    pub(in crate::store) fn copy(
        &self,
        op: &RecordOp<'_>,
        key: &[u8],
        target: &mut [u8],
    ) -> OpResult<()> {
        match &self.value {
            None => op.get_value(key, self.replica, self.offset, &self.block, target),
            Some(value) => {
                target.copy_from_slice(value);
                op.store.check_value(key, self.replica, &self.block, target).map_err(OpError::Fail)
            }
        }
    }
}

impl RecordState {
    /// Reads a key: calls `take` inside the operation with the version that it found. `None` if the
    /// key does not exist. Over a network it uses the location cache. `take` may run several times.
    #[inline]
    pub(in crate::store) fn read<T>(
        &self,
        key: &[u8],
        mut take: impl FnMut(&RecordOp<'_>, &Found) -> OpResult<T>,
    ) -> StoreResult<Option<T>> {
        let key = self.key_ref(key)?;
        if self.job.is_mapped() {
            return self.run_call(&key, |op| op.try_read(&key, None, &mut take));
        }
        self.location_cache.call(&key, |cached| self.read_cached(&key, cached, take))
    }

    /// Reads a key at the primary, also if this member's own replica could answer. A waiter needs
    /// that: a writer that rings no waiter has published at the primary, and perhaps nowhere else.
    pub(in crate::store) fn read_at_primary<T>(
        &self,
        key: &[u8],
        take: impl FnMut(&RecordOp<'_>, &Found) -> OpResult<T>,
    ) -> StoreResult<Option<T>> {
        if self.job.is_mapped() {
            return self.read(key, take);
        }
        let key = self.key_ref(key)?;
        self.location_cache.call(&key, |cached| {
            cached.near = NearMark::NOTHING;
            self.read_cached(&key, cached, take)
        })
    }

    /// Copies a value into a buffer, on the mapped fast path if possible.
    #[inline]
    pub(in crate::store) fn read_into(
        &self,
        key: &KeyRef<'_>,
        mut cached: Option<&mut CachedLocation>,
        buffer: &mut [u8],
    ) -> StoreResult<Option<(usize, Version)>> {
        let done = self.read_mapped(key, cached.as_deref_mut(), Some(&mut *buffer));
        if let Some(done) = done {
            return done;
        }
        self.run_call(key, |op| {
            op.try_read(key, cached.as_deref_mut(), &mut |op, found| {
                let (needed, given) = (found.block.len, buffer.len() as u64);
                let Some(target) = buffer.get_mut(..needed as usize) else {
                    return Err(OpError::Fail(StoreError::BufferTooSmall { needed, given }));
                };
                found.copy(op, key.key, target)?;
                Ok((needed as usize, found.block.version()))
            })
        })
    }

    /// The version of a key, with a cached location, on the mapped fast path if possible.
    pub(in crate::store) fn read_version(
        &self,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
    ) -> StoreResult<Option<Version>> {
        match self.read_mapped(key, Some(cached), None::<&mut [u8]>) {
            Some(found) => found.map(|found| found.map(|(_, version)| version)),
            None => self.read_cached(key, cached, |_, found| Ok(found.block.version())),
        }
    }

    /// Reads a key on the mapped fast path; see [`RecordState::get_mapped`].
    #[inline(always)]
    fn read_mapped(
        &self,
        key: &KeyRef<'_>,
        cached: Option<&mut CachedLocation>,
        target: impl ReadTarget,
    ) -> Option<StoreResult<Option<(usize, Version)>>> {
        match self.job.mapped()? {
            MappedEngine::Shm(shm) => self.get_mapped(shm, key, cached, target),
            #[cfg(feature = "sim")]
            MappedEngine::Sim(sim) => self.get_mapped(sim, key, cached, target),
        }
    }

    /// Reads a version, and its value if that is wanted, on the mapped fast path. `None` if the
    /// slow path must be taken, also if the key does not exist.
    pub(in crate::store) fn read_whole_mapped(
        &self,
        key: &KeyRef<'_>,
        wants_value: bool,
    ) -> Option<(Block, Vec<u8>)> {
        let mut whole = WholeVersion { wants_value, block: None, value: Vec::new() };
        match self.read_mapped(key, None, &mut whole) {
            Some(Ok(Some(_))) => whole.block.map(|block| (block, whole.value)),
            _ => None,
        }
    }

    /// Reads a key as [`RecordState::read`] does, with a cached location.
    #[inline]
    pub(in crate::store) fn read_cached<T>(
        &self,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
        mut take: impl FnMut(&RecordOp<'_>, &Found) -> OpResult<T>,
    ) -> StoreResult<Option<T>> {
        self.run_call(key, |op| op.try_read(key, Some(cached), &mut take))
    }
}

impl<'a> RecordOp<'a> {
    /// An attempt at a read, inside an operation.
    #[inline]
    fn try_read<T>(
        &mut self,
        key: &KeyRef<'_>,
        mut cached: Option<&mut CachedLocation>,
        take: &mut impl FnMut(&RecordOp<'_>, &Found) -> OpResult<T>,
    ) -> OpResult<Option<T>> {
        let config = self.config(key.partition)?;
        let mut result = None;
        steps::enter(steps::Step::Read);
        if let Some(mut found) = self.find_version(config, key, cached.as_deref_mut())? {
            if found.block.kind != Kind::Plain {
                (found.offset, found.block) =
                    self.visible(config, key, found.offset, &found.block)?;
                (found.value, found.is_near) = (None, false);
            }
            if !found.block.is_deleted {
                result = match (take(self, &found), cached) {
                    // The own replica is damaged. The next attempt reads at the primary.
                    (Err(OpError::Fail(StoreError::Corrupt { .. })), Some(cached))
                        if found.is_near =>
                    {
                        cached.near = NearMark::NOTHING;
                        return Err(OpError::Again);
                    }
                    (taken, _) => Some(taken?),
                };
            }
        }
        if self.store.job.has_ended() {
            // The value may have been written by another thread after the end of the membership, to
            // memory that no other member shares.
            return Err(OpError::Fail(StoreError::Closed));
        }
        if self.is_current() || self.is_still_current(config, key.partition)? {
            Ok(result)
        } else {
            Err(OpError::Again)
        }
    }

    /// The newest stable version of a key, if it has one: at this member's own replica, or the
    /// reconciled version at the primary.
    #[inline]
    fn find_version(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        mut cached: Option<&mut CachedLocation>,
    ) -> OpResult<Option<Found>> {
        // Before the read: a write that fails later makes the near mark invalid.
        let open_writes = self.store.open_writes(key.partition);
        if let Some(cached) = cached.as_deref_mut().filter(|_| !self.store.job.is_mapped()) {
            match self.find_near(config, key, cached) {
                Ok(Some(found)) => return Ok(Some(found)),
                // The own replica may be damaged, and the primary not.
                Ok(None) | Err(OpError::Fail(StoreError::Corrupt { .. })) => {}
                Err(error) => return Err(error),
            }
            if let Some(found) = self.find_cached_remote(config, cached)? {
                self.mark_near(config, key, cached, &found.block, open_writes);
                return Ok(Some(found));
            }
        }
        let Some(head) = self.find_head(config, key, cached.as_deref_mut())? else {
            return Ok(None);
        };
        let Some(offset) = head.offset() else { return Ok(None) };
        let replica = config.primary_member();
        let block = self.read_block(replica, offset)?;
        if let Some(cached) = cached {
            (cached.hint, cached.hint_len) = (offset, block.len);
            self.mark_near(config, key, cached, &block, open_writes);
        }
        Ok(Some(Found { replica, offset, block, value: None, is_near: false }))
    }

    /// A near read: the version in this member's own memory, if the near mark says that it is
    /// stable. The order of the loads is that of [`RecordOp::find_cached_remote`].
    fn find_near(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        cached: &CachedLocation,
    ) -> OpResult<Option<Found>> {
        if mutant("near-unmarked") {
            let found = self.near_version(config, key)?;
            return Ok(found.map(|(_, found)| found).filter(|it| it.block.kind == Kind::Plain));
        }
        let (near, me) = (&cached.near, self.store.me());
        let is_known = near.at.word != 0
            && (near.epoch == self.epoch || mutant("near-older"))
            && near.open_writes == self.store.open_writes(key.partition)
            && cached.config_number == config.config_number;
        let Some(replica) = self.near_replica(config).filter(|_| is_known) else { return Ok(None) };
        let removals = self.load(me, config.roots[replica] + REMOVALS)?;
        let head = Head(self.load(me, near.at.word)?);
        let Some(offset) = head.offset() else { return Ok(None) };
        if removals != near.at.removals || head != near.at.head {
            return Ok(None);
        }
        let block = self.read_block(me, offset)?;
        // The block may have been reused for a later version.
        let is_same = identity_words(&block) == near.identity;
        Ok(is_same.then_some(Found { replica: me, offset, block, value: None, is_near: true }))
    }

    /// Sets the near mark if this member's own replica holds the version `stable`, which is stable
    /// under the view of this operation. `open_writes` is the number of open writes from before
    /// that was known. Fails no call: without the mark the next read asks the primary.
    pub(in crate::store::record) fn mark_near(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
        stable: &Block,
        open_writes: u64,
    ) {
        cached.near = NearMark::NOTHING;
        if stable.kind == Kind::Plain
            && !self.store.job.is_mapped()
            && let Ok(Some((near, found))) = self.near_version(config, key)
            && identity_words(&found.block) == identity_words(stable)
        {
            cached.near = NearMark { open_writes, ..near };
        }
    }

    /// The version in this member's own memory, stable or not, with the near mark that it would
    /// have. `None` if this member is no complete replica of the configuration, or its record is
    /// not of this configuration.
    fn near_version(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
    ) -> OpResult<Option<(NearMark, Found)>> {
        let me = self.store.me();
        let Some(replica) = self.near_replica(config) else { return Ok(None) };
        let state = self.state(me, key.partition)?;
        if state.phase() != Phase::Complete || state.configuration() > config.config_number {
            return Ok(None);
        }
        let removals = self.load(me, config.roots[replica] + REMOVALS)?;
        let Some((word, head)) = self.find(config, replica, key)? else { return Ok(None) };
        let offset = head.offset().filter(|_| head.config_number() == config.config_number);
        let Some(offset) = offset else { return Ok(None) };
        let block = self.read_block(me, offset)?;
        let at = CachedReplica { word, head, removals };
        let near =
            NearMark { epoch: self.epoch, at, open_writes: 0, identity: identity_words(&block) };
        Ok(Some((near, Found { replica: me, offset, block, value: None, is_near: true })))
    }

    /// The position of this member among the replicas. `None` if it maps the memory of the primary
    /// and needs no near read: the primary may be stopped there in the middle of a request of a
    /// dead member, of which this member's own replica knows nothing yet.
    fn near_replica(&self, config: &Configuration) -> Option<ReplicaIndex> {
        let (primary, me) = (config.primary_member(), self.store.me());
        if primary == me || self.store.job.is_member_mapped(primary) && !mutant("near-own-node") {
            return None;
        }
        config.enumerate().find(|&(_, member)| member == me).map(|(replica, _)| replica)
    }

    /// The version of a key at the primary in a single round trip, if the key is as it was when the
    /// handle last read or wrote it. The order of the three requests is the order of the steps on
    /// the slow path: the removal count, the head word, and the block that it names.
    fn find_cached_remote(
        &self,
        config: &Configuration,
        cached: &CachedLocation,
    ) -> OpResult<Option<Found>> {
        let (replica, at) = (config.primary_member(), &cached.at[config.primary]);
        let (offset, len) = (cached.hint, value_start(cached.hint_len) + cached.hint_len);
        let is_known = cached.config_number == config.config_number && at.word != 0 && offset != 0;
        // A block that turns out to be of another version was sent in vain, so large values are not
        // requested.
        if !is_known || len > COMPOUND_LEN_MAX as u64 {
            return Ok(None);
        }
        let start = |operation| self.store.job.start(self.epoch, replica, operation);
        let removals = start(Operation::Load { offset: config.roots[config.primary] + REMOVALS });
        let head = start(Operation::Load { offset: at.word });
        let whole = start(Operation::Get { offset, len: len as usize });
        let removals = self.await_answer(removals)?.word();
        let head = Head(self.await_answer(head)?.word());
        let Done::Get(mut bytes) = self.await_answer(whole)? else { return Ok(None) };
        let Some(block) = bytes.first_chunk().map(Block::decode) else { return Ok(None) };
        // A version that this handle wrote itself has happened, with or without the stable bit.
        let is_own = head.stable() == at.head.stable()
            && block.identity() == cached.version.block().identity();
        let is_there = removals == at.removals
            && head.config_number() == config.config_number
            && head.offset() == Some(offset)
            && (head.is_stable() || is_own);
        if !is_there || block.len != cached.hint_len {
            return Ok(None);
        }
        self.check_block(replica, offset, &block)?;
        let value = Some(bytes.split_off(value_start(block.len) as usize));
        Ok(Some(Found { replica, offset, block, value, is_near: false }))
    }

    /// The reconciled content of a key's head word at the primary, for a reader; `None` if there is
    /// no record.
    #[inline]
    pub(in crate::store) fn find_head(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        cached: Option<&mut CachedLocation>,
    ) -> OpResult<Option<Head>> {
        let found = match cached {
            Some(cached) => self.find_cached_head(config, key, cached)?,
            None => self.find(config, config.primary, key)?,
        };
        let Some((word, head)) = found else { return Ok(None) };
        if head.config_number() == config.config_number && head.is_stable() {
            return Ok(Some(head));
        }
        self.reconciled(config, key, word).map(Some)
    }

    /// The offset and content of a key's head word at the primary: at the cached place, or looked
    /// up again.
    #[inline]
    fn find_cached_head(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
    ) -> OpResult<Option<(u64, Head)>> {
        let replica = config.primary;
        let primary = config.member(replica);
        let word = cached.at[replica].word;
        let is_known = cached.config_number == config.config_number && word != 0;
        let guess = match is_known {
            true => None,
            false => Some(self.guess_bucket(config, replica, key)?),
        };
        let place = guess.map_or(word, |guess| guess.at);
        let [removals, loaded] = self
            .load_each([config.roots[replica] + REMOVALS, place].map(|offset| (primary, offset)))?;
        if is_known && cached.at[replica].removals == removals && Head(loaded) != Head::REMOVED {
            return Ok(Some((word, Head(loaded))));
        }
        let found = match guess {
            None => self.find(config, replica, key)?,
            Some(guess) => self.find_loaded(config, replica, key, (guess, loaded))?,
        };
        cached.reset(config.config_number);
        cached.at[replica].removals = removals;
        cached.at[replica].word = found.map_or(0, |(word, _)| word);
        Ok(found)
    }
}

/// The words of a block's header that say which write made the version.
fn identity_words(block: &Block) -> [u64; 2] {
    let [counter, writer, ..] = block.words();
    [counter, writer]
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::store::segment::layout::BLOCK_HOLDER;

    use crate::store::segment::layout::holder;

    /// A read with a cached location returns a block only if the head word names it and is stable,
    /// or if the block holds the version that this handle wrote, and only if the record is where it
    /// was.
    #[cfg(feature = "sim")]
    #[test]
    fn a_read_with_a_cached_location_returns_no_unfinished_version() {
        use crate::engine::sim::{self, Link, Options as SimOptions};
        use crate::store::{Expect, Options, Store};
        let options = SimOptions::new(3, 5).link(Link::Network);
        let report = sim::run(&options, |job: crate::Job| {
            let store = Store::open(&job, Options::new().replicas(2).partitions(1)).expect("open");
            let key = store.state.key_ref(b"key").expect("a key");
            if store.replicas_of(b"key").contains(&job.me()) {
                store.close().expect("close");
                return drop(job.leave());
            }
            store.put_if(b"key", b"value", Expect::Absent).expect("put");
            let mut cached = CachedLocation::NOTHING;
            store
                .state
                .read_cached(&key, &mut cached, |_, _| Ok(()))
                .expect("read")
                .expect("there");
            let op = RecordOp::begin(&store.state).expect("begun");
            let config = op.config(key.partition).expect("replicas");
            let (replica, primary) = (config.primary, config.primary_member());
            let is_found = |cached: &CachedLocation| {
                op.find_cached_remote(config, cached).expect("read").is_some()
            };
            assert!(is_found(&cached));
            let moved = |change: &dyn Fn(&mut CachedLocation)| {
                let mut moved = cached;
                change(&mut moved);
                moved
            };
            assert!(
                !is_found(&moved(&|cached| cached.at[replica].removals += 1)),
                "records were taken out"
            );
            assert!(
                !is_found(&moved(&|cached| cached.hint_len = 8)),
                "the value has another length"
            );
            // Without the stable bit: the version may be unfinished, or its writer used a handle.
            let word = cached.at[replica].word;
            let stable = Head(op.load(primary, word).expect("a head"));
            let head = Head::new(stable.config_number(), cached.hint);
            assert!(
                stable == head.stable()
                    && op.swap(primary, word, stable.0, head.0).expect("swapped")
            );
            assert!(!is_found(&cached), "it may be unfinished");
            let block = op.read_block(primary, cached.hint).expect("a block");
            let own = |counter: u64| {
                moved(&|cached| {
                    cached.at[replica].head = head;
                    cached.set_version(&Block { counter, ..block }, 0);
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

    /// A late request retires a block that another version uses by then: that version stays as it
    /// is.
    #[cfg(feature = "sim")]
    #[test]
    fn a_late_retirement_changes_no_other_version() {
        use crate::engine::Epoch;
        use crate::engine::sim::{self, Options as SimOptions};
        use crate::store::{Options, Store};
        let report = sim::run(&SimOptions::new(1, 7), |job: crate::Job| {
            let store = Store::open(&job, Options::new().partitions(1)).expect("open");
            let op = RecordOp::begin(&store.state).expect("begun");
            let block = |holder: u64, len: u64| Block {
                counter: 1,
                writer: MemberId(0),
                participant: 0,
                operation: 1,
                len,
                is_deleted: false,
                kind: Kind::Plain,
                holder,
                owner: MemberId(0),
                checksum: 0,
            };
            let (replica, offset) = (job.me(), op.take_block(job.me(), 0).expect("a block"));
            // The block belonged to a dead member, and now belongs to a third member, with another
            // length.
            op.put(replica, offset, &block(5, 9).encode()).expect("put");
            op.retire_block(replica, offset, &block(4, 8), 0).expect("no error");
            let word = job.load(Epoch::ANY, replica, offset + BLOCK_HOLDER).expect("a word");
            assert_eq!(word, block(5, 9).length_word());
            // If the word is as it was read, this member is the holder afterwards.
            op.retire_block(replica, offset, &block(5, 9), 0).expect("no error");
            let word = job.load(Epoch::ANY, replica, offset + BLOCK_HOLDER).expect("a word");
            assert_eq!(word, block(holder(job.me()), 9).length_word());
            drop(op);
            store.close().expect("close");
            let _ = job.leave();
        });
        report.expect_ok();
    }

    /// Publishes a version of a key at its primary alone, as a writer does that is stopped then.
    #[cfg(feature = "sim")]
    fn publish_only(store: &crate::store::Store, key: &[u8], value: &[u8]) {
        let (primary, word, expected, new) = prepare_only(store, key, value);
        let job = &store.state.job;
        let found = job.compare_and_swap(job.epoch(), primary, word, expected, new);
        assert_eq!(found, Ok(expected), "swapped");
    }

    /// Fills the block of a new version of a key at its primary. Returns the swap that publishes
    /// the version: its target, its place, the expected word and the new word.
    #[cfg(feature = "sim")]
    fn prepare_only(
        store: &crate::store::Store,
        key: &[u8],
        value: &[u8],
    ) -> (MemberId, u64, u64, u64) {
        let mut op = RecordOp::begin(&store.state).expect("begun");
        op.renew();
        let key = store.state.key_ref(key).expect("a key");
        let config = op.config(key.partition).expect("replicas");
        let predecessor = op.find_reconciled(config, &key, None, false).expect("found");
        let before = predecessor.block.expect("a version");
        let block = Block {
            counter: before.counter + 1,
            writer: store.me(),
            participant: op.participant,
            operation: op.number & crate::store::segment::layout::OPERATION_MASK,
            len: value.len() as u64,
            holder: holder(store.me()),
            ..before
        };
        let primary = config.primary_member();
        let offset = op.fill_block(primary, &block, value).expect("filled");
        let head = Head::new(config.config_number, offset);
        (primary, predecessor.word, predecessor.head.0, head.0)
    }

    /// Member 3 writes a key of the members 0 to 2, then publishes a version at the primary alone
    /// and executes `end`. Then a replica that has answered reads from its own memory so far
    /// executes `read`.
    #[cfg(feature = "sim")]
    fn run_near(
        seed: u64,
        end: impl Fn(&crate::Job) + 'static,
        read: impl Fn(&crate::Job, &crate::store::Store, &[u8]) + 'static,
    ) {
        use crate::engine::sim::{self, Link, Options as SimOptions};
        use crate::store::testing::nap;
        use crate::store::{Options, Store};
        use std::{cell::Cell, rc::Rc};
        let stage = Rc::new(Cell::new(0));
        let mut options = SimOptions::new(4, seed).link(Link::Network);
        options.steps_max = 10_000_000;
        let report = sim::run(&options, move |job: crate::Job| {
            let store = Store::open(&job, Options::new().replicas(3).partitions(64)).expect("open");
            let writer = MemberId(3);
            let mut keys = (0..1000).map(|number| format!("key {number}"));
            let key = keys.find(|key| !store.replicas_of(key.as_bytes()).contains(&writer));
            let key = key.expect("a key with these replicas").into_bytes();
            let reader = store.replicas_of(&key)[1];
            if job.me() == writer {
                store.put(&key, b"before").expect("put");
                stage.set(1);
                nap(&job, "the near mark", || stage.get() == 2);
                publish_only(&store, &key, b"after");
                stage.set(3);
                end(&job);
            } else if job.me() == reader {
                nap(&job, "the value", || stage.get() == 1);
                for _ in 0..3 {
                    let found = store.get(&key).expect("read").expect("there");
                    assert_eq!(found.bytes(), b"before");
                }
                stage.set(2);
                nap(&job, "the publication", || stage.get() == 3);
                read(&job, &store, &key);
                stage.set(4);
            }
            nap(&job, "the reader", || stage.get() == 4);
            let closed = store.close();
            assert!(closed.is_ok() || !job.view().dead.is_empty(), "{closed:?}");
            let _ = job.leave();
        });
        report.expect_ok();
    }

    /// A version that is published at the primary alone has not happened, so a replica still
    /// answers with the version before. A waiter asks the primary: the writer may have looked for
    /// waiters before the waiter announced itself, and rings none.
    #[cfg(feature = "sim")]
    #[test]
    fn a_waiter_finds_what_a_near_read_does_not_know() {
        for seed in 0..20 {
            run_near(
                seed,
                |_| {},
                |job, store, key| {
                    let version = store.get(key).expect("read").expect("there").version;
                    let until = job.now().after(std::time::Duration::from_secs(1));
                    let found = store.wait(key, Some(version), until).expect("waited");
                    assert_eq!(found.expect("in time").bytes(), b"after");
                    let found = store.get(key).expect("read").expect("there");
                    assert_eq!(found.bytes(), b"after", "a replica reads no older version");
                },
            );
        }
    }

    /// From the moment at which a member knows of a death nothing of the dead member comes up that
    /// a read has not found: a near mark of an older view is not used.
    #[cfg(feature = "sim")]
    #[test]
    fn a_near_read_after_a_death_finds_what_the_dead_member_published() {
        use crate::engine::Fault;
        for seed in 0..20 {
            run_near(
                seed,
                |job| job.inject(Fault::Kill(job.me())).expect("a fault"),
                |job, store, key| {
                    let is_known = || !job.view().dead.is_empty();
                    crate::store::testing::nap(job, "the death", is_known);
                    let found = store.get(key).expect("read").expect("there");
                    let newest = store.state.read_at_primary(key, |op, it| it.to_value(op, key));
                    let newest = newest.expect("read").expect("there");
                    assert_eq!((found.bytes(), newest.bytes()), (newest.bytes(), &b"after"[..]));
                },
            );
        }
    }

    /// A primary is stopped in the middle of the last request of a lock holder that dies. A member
    /// of its node reads the key meanwhile, takes the lock over when the primary has gone on, and
    /// then finds what the dead holder wrote.
    #[cfg(feature = "sim")]
    #[test]
    fn the_next_holder_of_a_lock_finds_the_last_change_of_the_dead_holder() {
        use crate::engine::sim::{self, Link, Options as SimOptions};
        use crate::engine::{Epoch, Fault};
        use crate::store::testing::nap;
        use crate::store::{Options, Store};
        use std::{cell::Cell, rc::Rc, time::Duration};
        for seed in 0..5 {
            let (stage, swap) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(None)));
            let mut options = SimOptions::new(3, seed).link(Link::Network);
            (options.nodes, options.steps_max) = (vec![0, 0, 1], 10_000_000);
            let report = sim::run(&options, move |job: crate::Job| {
                let store =
                    Store::open(&job, Options::new().replicas(2).partitions(64)).expect("open");
                let dies = MemberId(2);
                let mut keys = (0..1000).map(|number| format!("key {number}"));
                let key = keys.find(|key| !store.replicas_of(key.as_bytes()).contains(&dies));
                let key = &key.expect("a key with these replicas");
                let [primary, reader] = store.replicas_of(key)[..] else { panic!("two") };
                let get = || store.get(key).expect("read").expect("there").bytes;
                let deadline = || job.now().after(Duration::from_secs(1));
                if job.me() == dies {
                    let guard = store.lock(b"lock", deadline()).expect("taken");
                    store.put(key, b"before").expect("put");
                    swap.set(Some(prepare_only(&store, key.as_bytes(), b"after")));
                    stage.set(1);
                    nap(&job, "the reader", || stage.get() == 2);
                    std::mem::forget(guard);
                    job.inject(Fault::Kill(dies)).expect("a fault");
                }
                if job.me() == reader {
                    nap(&job, "the value", || stage.get() == 1);
                    assert_eq!((get(), get()), (b"before".to_vec(), b"before".to_vec()));
                    stage.set(2);
                    nap(&job, "the death", || !job.view().dead.is_empty());
                    assert_eq!((get(), get()), (b"before".to_vec(), b"before".to_vec()));
                    stage.set(3);
                    nap(&job, "the last request", || stage.get() == 4);
                    let guard = store.lock(b"lock", deadline()).expect("taken over");
                    assert!(guard.was_abandoned());
                    assert_eq!(get(), b"after");
                    guard.unlock().expect("unlocked");
                    stage.set(5);
                }
                if job.me() == primary {
                    nap(&job, "the reads", || stage.get() == 3);
                    let (target, word, expected, new) = swap.get().expect("prepared");
                    let found = job.compare_and_swap(Epoch::ANY, target, word, expected, new);
                    assert_eq!(found, Ok(expected), "swapped");
                    stage.set(4);
                }
                nap(&job, "the end", || stage.get() == 5);
            });
            report.expect_ok();
        }
    }

    /// Damage in a member's own replica fails no read that the primary can answer: neither a near
    /// read, nor the end of a read at the primary.
    #[cfg(feature = "sim")]
    #[test]
    fn a_damaged_block_of_the_own_replica_fails_no_read() {
        use crate::engine::sim::{self, Link, Options as SimOptions};
        use crate::store::testing::nap;
        use crate::store::{Options, Store};
        use std::{cell::Cell, rc::Rc};
        for is_value in [false, true] {
            let is_over = Rc::new(Cell::new(false));
            let options = SimOptions::new(2, 1).link(Link::Network);
            let report = sim::run(&options, move |job: crate::Job| {
                let options = Options::new().replicas(2).partitions(1).checksums(true);
                let store = Store::open(&job, options).expect("open");
                if store.replicas_of(b"key")[1] == job.me() {
                    let handle = store.handle(b"key").expect("a handle");
                    store.put(b"key", b"value").expect("put");
                    let read = || {
                        for _ in 0..3 {
                            for found in [store.get(b"key"), handle.get()] {
                                let found = found.expect("read").expect("there");
                                assert_eq!(found.bytes(), b"value");
                            }
                        }
                    };
                    read();
                    let op = RecordOp::begin(&store.state).expect("begun");
                    let key = store.state.key_ref(b"key").expect("a key");
                    let config = op.config(key.partition).expect("replicas");
                    let own = op.near_replica(config).expect("a replica");
                    let (_, head) = op.find(config, own, &key).expect("found").expect("a record");
                    let offset = head.offset().expect("a block");
                    let block = op.read_block(job.me(), offset).expect("a block");
                    let place = if is_value { offset + value_start(block.len) } else { offset };
                    op.put(job.me(), place, &[0xff; 8]).expect("damaged");
                    drop(op);
                    read();
                    is_over.set(true);
                }
                nap(&job, "the reader", || is_over.get());
                store.close().expect("close");
                let _ = job.leave();
            });
            report.expect_ok();
        }
    }
}

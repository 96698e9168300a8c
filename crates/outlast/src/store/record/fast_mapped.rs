//! The mapped fast path: a put, conditional put, addition or get where all members map the memory.
//! A write needs a cached location, of a handle or of the location cache.
//!
//! A write executes the steps of docs/protocol/writing.md for the case that nothing has changed
//! since the handle wrote the key: no death, no other writer, no record unlinked from an index, and
//! free blocks in the magazine. The cached location is validated inside the operation. If a check
//! fails before *publish*, nothing has happened, and the call starts over on the slow path. If a
//! swap fails after *publish*, the slow path finishes the version. A conditional put, an addition,
//! and *lock* and *apply* of a transaction differ from a put only in the header and the value:
//! `fast_change.rs` decides on these before *fill*.
//!
//! The fast path applies only to engines whose memory all members map: there an operation either
//! happens or is refused. The view is checked once, at the beginning of the operation, and not
//! again before each access to a replica. So several accesses may take effect after a change of the
//! view. That is safe:
//!
//! - The operation fills blocks that this member holds under any view. At worst it fills them in
//!   vain.
//! - A swap of a head word (*publish*, *install*) succeeds only where no member has sealed the
//!   record under a newer configuration, since sealing changes the configuration number in the
//!   word. If all swaps succeeded, every replica that is complete in a newer configuration held the
//!   version when it was sealed, and the version has happened. The moment of each swap does not
//!   matter. If a swap failed, the slow path finishes the version under a view that it checks
//!   again.
//! - A swap at a replica that died meanwhile is in vain, in memory that no member reads any more
//!   except to salvage it: with salvage the operation checks the view once more at its end.
//! - No node and no block that the operation may read is reused while it is in flight, also not
//!   under a newer view. So the removal counts that it found stay valid until it ends.
//! - If this member leaves the job meanwhile, its writes go to memory that is no longer shared. So
//!   the operation checks for the end of the membership after its last write.
//! - The value of a read counts only if the view is unchanged afterwards and this process is still
//!   a member. It returns a version without the stable bit only if this handle wrote it: that
//!   version has happened, and its waiters were rung.
//! - A condition that does not hold is not reported from here, since a write checks no view after
//!   its loads: the slow path tests it again. A condition that holds needs no such check, because
//!   the swap of *publish* proves that the version is still the current version.
//!
//! # Orderings
//! The words of segments are accessed by [`Memory`], with the orderings of the engine
//! (`engine/shm/mod.rs`): word operations are sequentially consistent, and a block that was put is
//! complete before the swap that follows it. [`Configuration::buckets`] is loaded with acquire
//! ordering, against the release store of the thread that found the buckets: an operation that
//! reads the offset also sees the index behind it.

//! The removal counts are loaded by [`Memory::peek`], which may be executed before the puts of the
//! operation are visible. No order between the two is needed: the blocks that are filled are
//! private until *publish*. The loads come after the swap that began the operation, as the table in
//! `operation/op.rs` requires, since a peek is in the single order of all word operations.
//!
//! # What is left
//! A put of 64 bytes with three replicas takes 1190 instructions. The floor is a swap to begin the
//! operation, a swap per replica, the copies, and the ring of each replica. docs/performance.md has
//! the parts. The greatest is the loop that takes and fills a block per replica: it keeps more
//! values than the processor has registers (segment, ring, header, value, cached location), so a
//! third of its instructions move values between registers and the stack.

use crate::engine::MemberId;
use crate::engine::mapped::{Mapped, Memory};
use crate::store::error::{StoreError, StoreResult};
use crate::store::memory::magazine::{BlockRing, Magazine};
use crate::store::mutant::mutant;
use crate::store::operation::configuration::Configuration;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::placement::replica::{ReplicaIndex, ReplicaSet};
use crate::store::record::block_io::{LARGE_LEN, block_class};
use crate::store::record::fast_change::{FastChange, FastPredecessor, Header, ValueBytes};
use crate::store::record::index::{NODE_READ_WORDS, node_word};
use crate::store::record::key::KeyRef;
use crate::store::record::location::{
    CachedLocation, CachedReplica, CachedVersion, FastLocation, LocationSource,
};
use crate::store::record::state::{RecordOp, RecordState};
use crate::store::record::waiters::WAITER_BITS;
use crate::store::record::write::{DraftBlock, NewVersion, Predecessor};
use crate::store::segment::head::Head;
use crate::store::segment::intent::is_intent;
use crate::store::segment::layout::{
    BLOCK_HEADER_LEN, Block, Kind, NODE_HEAD, NODE_KEY, NODE_NEXT, NODE_WORD, OPERATION_MASK,
    PARTITION_WAITERS, REMOVALS, class_of, holder, value_start,
};
use crate::store::steps;
use crate::store::value::Version;
use std::sync::atomic::Ordering;

/// The greatest number of replicas for the fast path. With more replicas the slow path is taken.
const FAST_REPLICAS_MAX: usize = 8;

impl RecordState {
    /// Changes a key with a cached location. `None` if the slow path must be taken; then nothing
    /// has happened. The operation has ended when this returns.
    #[inline(always)]
    pub(in crate::store::record) fn put_mapped<'a, D: Mapped<'a>>(
        &'a self,
        direct: D,
        key: &KeyRef<'_>,
        cached: FastLocation<'_>,
        change: impl FastChange,
    ) -> OpResult<Option<Version>> {
        match RecordOp::begin_again(self, direct) {
            Some(mut op) => op.put_on_fast_path(direct, key, cached, change),
            None => Ok(None),
        }
    }

    /// Reads a key, with a cached location or by a lookup in the index, and copies its value to the
    /// target. Returns the length of the value and its version. `None` if the
    /// slow path must be taken.
    #[inline(always)]
    pub(in crate::store::record) fn get_mapped<'a, D: Mapped<'a>>(
        &'a self,
        direct: D,
        key: &KeyRef<'_>,
        cached: Option<&mut CachedLocation>,
        target: impl ReadTarget,
    ) -> Option<StoreResult<Option<(usize, Version)>>> {
        RecordOp::begin_again(self, direct)?.get_on_fast_path(direct, key, cached, target)
    }
}

impl<'a> RecordOp<'a> {
    /// The whole put, in blocks: find, fill, publish, install, retire, ring.
    #[inline(always)]
    fn put_on_fast_path<D: Mapped<'a>, C: FastChange>(
        &mut self,
        direct: D,
        key: &KeyRef<'_>,
        cached: FastLocation<'_>,
        change: C,
    ) -> OpResult<Option<Version>> {
        let store = self.store;
        // ---- Find: *enter*, *find* and *check*. The configuration is known, all its replicas are
        // ready, no freeze and no closed gate stops the call, and the primary's head word is as the
        // cached location says.
        let Some(config) = self.known_config(key.partition) else { return Ok(None) };
        steps::enter(steps::Step::WriteFind);
        let (count, primary) = (config.replicas.len(), config.primary.index());
        let is_fast = *cached.config_number == config.config_number
            && change.replaces(cached.version)
            && config.are_all_ready()
            && !store.freeze.is_set()
            && store.gate.lets_through(self.epoch);
        // The last comparison is never true: it only tells the compiler that `primary` is in
        // bounds.
        if !is_fast || count > FAST_REPLICAS_MAX.min(cached.at.len()) || primary >= count {
            return Ok(None);
        }
        let (members, roots) = (&config.replicas.members[..count], &config.roots[..count]);
        let at = &mut cached.at[..count];
        let Some(first) = direct.reach(members[primary]) else { return Ok(None) };
        if cached.source == LocationSource::Cache {
            prefetch_all(direct, members, at, primary);
            if !is_node_of(first, at[primary].word, key) {
                return Ok(None);
            }
        }
        // With sole writers, another handle can have written the key only before the last recovery.
        // So the first put after a recovery checks the version counter. An intent is no key of the
        // program: another member may abort it at any time.
        let is_of_handle = cached.source == LocationSource::Handle;
        let has_sole_writer = store.sole_writers && is_of_handle && !is_intent(key.key);
        let recoveries = has_sole_writer.then(|| store.gate.recoveries());
        let is_sole = recoveries == Some(cached.version.recoveries);
        let old = cached.version.words();
        let Some(before) = cached_head(first, &at[primary], old, is_sole) else {
            return Ok(None);
        };
        // The cached version is the current version, and the change is decided from it.
        let offset = before.offset().unwrap_or(0);
        let predecessor = FastPredecessor { header: old, memory: first, offset };
        let owner = change.owner(Block::from_words(old).owner);
        let Some(value) = change.decide(store, key, predecessor) else { return Ok(None) };
        // The header of the new version.
        let me = store.me();
        let block = Block {
            counter: old[0] + 1,
            writer: me,
            participant: if C::IS_SHARED { 0 } else { self.participant },
            operation: if C::IS_SHARED { 0 } else { self.number & OPERATION_MASK },
            len: value.len() as u64,
            is_deleted: false,
            kind: C::KIND,
            holder: holder(me),
            owner,
            checksum: 0,
        };
        let mut header = block.words();
        if store.checksums {
            header = checked_header(store, key, header, &value.whole());
        }
        let class = if header[2] == old[2] {
            cached.version.class
        } else {
            match class_of(value_start(value.len() as u64) + value.len() as u64) {
                Some(class) => class,
                None => return Ok(None),
            }
        };
        // ---- Fill: takes a block at each replica and fills it, after the rest of *find*, the
        // removal count. The loads are peeks, which need not wait for the puts before them: the
        // blocks are private until *publish*. Blocks that are filled in vain are kept.
        steps::enter(steps::Step::WriteFill);
        let magazine = self.magazine();
        let mut rings = [None; FAST_REPLICAS_MAX];
        let mut are_rings_known = true;
        let mut offsets = [0; FAST_REPLICAS_MAX];
        let mut filled = 0;
        for replica in 0..count {
            let (member, known) = (members[replica], &at[replica]);
            let Some(reach) = direct.reach(member) else { break };
            if reach.peek(roots[replica] + REMOVALS) != Some(known.removals) || known.word == 0 {
                break;
            }
            // *install* swaps this word at the end, and it should be in the cache by then.
            reach.prefetch(known.word);
            let ring = magazine.ring(member, class);
            let taken = match ring.and_then(BlockRing::take) {
                Some((offset, next)) => {
                    // The block that the next put takes, most likely.
                    reach.prefetch(next);
                    reach.prefetch(next + 64);
                    Some(offset)
                }
                None => {
                    // The rings of the magazine may be rearranged afterwards.
                    are_rings_known = false;
                    self.block_elsewhere(member, class)
                }
            };
            let Some(offset) = taken else { break };
            (rings[replica], offsets[replica]) = (ring, offset);
            if !value.fill_block(reach, offset, header) {
                break;
            }
            filled += 1;
        }
        // ---- Publish: swap the primary's head word.
        let new = |offset: u64| Head::new(config.config_number, offset);
        let head = new(offsets[primary]);
        steps::enter(steps::Step::WritePublish);
        let is_published =
            filled == count && first.swap(at[primary].word, before.0, head.0) == Some(true);
        if !is_published {
            if cfg!(debug_assertions) && recoveries.is_some() && filled == count {
                // A reader may have set the stable bit, repair may have raised the visit count, and
                // a death may have changed the configuration number. Any other change breaks the
                // promise of sole writers.
                let found = first.load(at[primary].word).map(|[head]| Head(head));
                let is_other = |found: Head| {
                    found.config_number() == config.config_number
                        && found.offset() != before.offset()
                };
                assert!(
                    !found.is_some_and(is_other),
                    "two members write a key with a sole writer at once"
                );
            }
            self.keep_all(&config.replicas, class, offsets);
            return Ok(None);
        }
        // ---- Install: swap the head words of the other replicas, and retire each block that was
        // swapped out. *catch_up* has nothing to do, since all replicas have an index. This member
        // holds the old blocks, since it filled them. A block of the size class of the new block
        // goes into the ring that was found above.
        steps::enter(steps::Step::WriteInstall);
        debug_assert_eq!(Block::from_words(old).holder, holder(me));
        if mutant("reuse-early") {
            (rings, are_rings_known) = ([None; FAST_REPLICAS_MAX], false);
        } else if !are_rings_known {
            rings = [None; FAST_REPLICAS_MAX];
        }
        if class != cached.version.class && are_rings_known {
            for (ring, &member) in rings.iter_mut().zip(members) {
                *ring = magazine.ring_to_retire(member, cached.version.class);
            }
            // A replica without a ring takes an empty ring over when its block is retired, and that
            // may be the ring of another of these replicas.
            if rings[..count].iter().any(Option::is_none) {
                rings = [None; FAST_REPLICAS_MAX];
            }
        }
        let mut failed = ReplicaSet::EMPTY;
        for replica in 0..count {
            if replica == primary {
                continue;
            }
            let (known, new) = (&mut at[replica], new(offsets[replica]));
            let reach = direct.reach(members[replica]);
            if reach.and_then(|reach| reach.swap(known.word, known.head.0, new.0)) == Some(true) {
                self.retire_fast(magazine, rings[replica], members[replica], known.head, &old);
                known.head = new;
            } else {
                failed.insert(ReplicaIndex::new(replica));
            }
        }
        self.retire_fast(magazine, rings[primary], members[primary], before, &old);
        at[primary].head = head;
        // After the last write: the writes of a process that is no longer a member went to memory
        // that no other member shares.
        if direct.is_over() {
            return Err(OpError::Fail(StoreError::Closed));
        }
        // A swap failed, because the head word was sealed, removed or changed by a helper.
        if !failed.is_empty() {
            *cached.config_number = 0;
            let whole = value.whole();
            return self.finish_on_slow_path(
                config,
                key,
                before,
                failed,
                offsets,
                (header, C::IS_SHARED),
                class,
                &whole,
            );
        }
        *cached.version = CachedVersion::new(header, class);
        *cached.hint = offsets[primary];
        if let Some(recoveries) = recoveries {
            cached.version.recoveries = recoveries;
        }
        // ---- Ring: the waiters of the partition. If they could not be rung, the next access of
        // this handle must reconcile the record and ring.
        let waiters = roots[primary] + store.layout.partition(key.partition) + PARTITION_WAITERS;
        if first.load(waiters).is_none_or(|[waiters]| waiters & WAITER_BITS != 0)
            && !self.has_rung(members[primary], key.partition)
        {
            *cached.config_number = 0;
            return self.confirm_if_salvaged(key, header, C::IS_SHARED);
        }
        if self.must_recheck_view() {
            *cached.config_number = 0;
            return self.confirm_if_salvaged(key, header, C::IS_SHARED);
        }
        // *mark_stable*: a handle leaves the bit unset. It knows that the version is stable, and
        // any other reader reconciles the record, and rings before it sets the bit.
        if !is_of_handle {
            steps::enter(steps::Step::WriteMarkStable);
            first.swap(at[primary].word, head.0, head.stable().0);
        }
        Ok(Some(Version { counter: header[0], writer: me }))
    }

    /// Retires a block that was swapped out, into its ring if that is given and has room.
    #[inline(always)]
    fn retire_fast(
        &self,
        magazine: &Magazine,
        ring: Option<&BlockRing>,
        replica: MemberId,
        head: Head,
        header: &Header,
    ) {
        let offset = head.offset().unwrap_or(0);
        match ring {
            Some(ring) if magazine.retire_in(ring, offset) => {}
            _ => self.retire_replaced(replica, offset, header),
        }
    }

    /// Confirms the version if the view has changed during the put; see
    /// [`RecordOp::must_recheck_view`].
    #[cold]
    #[inline(never)]
    fn confirm_if_salvaged(
        &mut self,
        key: &KeyRef<'_>,
        header: Header,
        is_shared: bool,
    ) -> OpResult<Option<Version>> {
        let block = Block::from_words(header);
        match self.must_recheck_view() {
            true if is_shared => Err(OpError::Again),
            true => self.confirm(key, &block),
            false => Ok(Some(block.version())),
        }
    }

    /// Rings the waiters of the partition; returns whether it did.
    #[cold]
    #[inline(never)]
    fn has_rung(&self, primary: MemberId, partition: usize) -> bool {
        self.ring_waiters(primary, partition).is_ok()
    }

    /// Retires a block that was swapped out, on the slow path.
    #[cold]
    #[inline(never)]
    fn retire_replaced(&self, replica: MemberId, offset: u64, header: &Header) {
        let block = Block::from_words(*header);
        let _ = block_class(&block, replica)
            .and_then(|class| self.retire_block(replica, offset, &block, class));
    }

    /// Keeps the blocks of a version that was not published, for the next operation. The offsets
    /// are per replica, 0 for none.
    #[cold]
    #[inline(never)]
    fn keep_all(&self, replicas: &[MemberId], class: usize, offsets: [u64; FAST_REPLICAS_MAX]) {
        for (&member, &offset) in replicas.iter().zip(&offsets).filter(|(_, offset)| **offset != 0)
        {
            self.keep(member, class, offset);
        }
    }

    /// Takes a block that the magazine does not have, from the free list or from the replica. The
    /// operation may be left, so it waits for the replica for a moment only, and the slow path has
    /// the whole time limit.
    #[cold]
    #[inline(never)]
    fn block_elsewhere(&self, member: MemberId, class: usize) -> Option<u64> {
        self.take_elsewhere(member, class).ok()
    }

    /// The version is published, and a replica was not as cached: finishes the version on the slow
    /// path. The blocks that were swapped out are retired already.
    #[cold]
    #[inline(never)]
    #[allow(clippy::too_many_arguments, reason = "a single call, out of the fast path")]
    fn finish_on_slow_path(
        &mut self,
        config: &Configuration,
        key: &KeyRef<'_>,
        head: Head,
        failed: ReplicaSet,
        offsets: [u64; FAST_REPLICAS_MAX],
        (header, is_shared): (Header, bool),
        class: usize,
        value: &[u8],
    ) -> OpResult<Option<Version>> {
        let block = Block::from_words(header);
        let mut new_version = NewVersion::new(block, value, class);
        let mut installed = ReplicaSet::first(config.replicas.len());
        for replica in config.indices().filter(|&replica| failed.contains(replica)) {
            new_version.blocks[replica] = DraftBlock::filled(offsets[replica]);
            installed.remove(replica);
        }
        let mut before = Predecessor::unknown(head);
        self.stay();
        // The waits from here on share a deadline, also with the slow path if the call starts over.
        let call = self.store.begin_call();
        let header = (header, is_shared);
        let finished = self.finish(config, key, &mut before, &mut new_version, installed, header);
        match &finished {
            Err(OpError::Again) => call.carry_over(),
            _ => drop(call),
        }
        finished
    }

    /// Installs a version that the fast path has published, and confirms it if necessary.
    fn finish(
        &mut self,
        config: &Configuration,
        key: &KeyRef<'_>,
        before: &mut Predecessor<'_>,
        new_version: &mut NewVersion<'_>,
        installed: ReplicaSet,
        (header, is_shared): (Header, bool),
    ) -> OpResult<Option<Version>> {
        match self.install_everywhere(config, key, before, new_version, installed) {
            // The swaps above are later than the check of the fast path.
            Ok(()) if self.store.job.has_ended() => Err(OpError::Fail(StoreError::Closed)),
            Ok(()) => {
                let _ = self.ring_waiters(config.primary_member(), key.partition);
                self.confirm_if_salvaged(key, header, is_shared)
            }
            Err(OpError::Again | OpError::Fail(StoreError::OutOfMemory { .. })) => {
                self.keep_unused(config, new_version);
                if is_shared {
                    return Err(OpError::Again);
                }
                // If the version did not happen, this returns `Again`, and the call starts over.
                self.confirm(key, &Block::from_words(header))
            }
            Err(fail) => Err(fail),
        }
    }

    /// The whole get. The value counts only if the epoch at its end is the epoch of the operation.
    #[inline(always)]
    fn get_on_fast_path<D: Mapped<'a>>(
        &self,
        direct: D,
        key: &KeyRef<'_>,
        cached: Option<&mut CachedLocation>,
        mut target: impl ReadTarget,
    ) -> Option<StoreResult<Option<(usize, Version)>>> {
        let store = self.store;
        if cached.is_none() {
            store.hints.prefetch(direct, key.hash);
        }
        if !store.gate.lets_through(self.epoch) {
            return None;
        }
        let config = self.known_config(key.partition)?;
        steps::enter(steps::Step::Read);
        let primary = config.primary;
        let reach = direct.reach(config.primary_member())?;
        let mut node = 0;
        let head = match &cached {
            Some(cached) => {
                let known = &cached.at[primary];
                if cached.config_number != config.config_number || known.word == 0 {
                    return None;
                }
                // Together with the head word, and not only after it.
                if cached.hint != 0 {
                    reach.prefetch(cached.hint);
                    reach.prefetch(cached.hint + 64);
                }
                let [head] = reach.load(known.word)?;
                if reach.load(config.roots[primary] + REMOVALS)? != [known.removals] {
                    return None;
                }
                Head(head)
            }
            None => match find_mapped(reach, config, store.bucket_count, key)? {
                Some((at, head)) => {
                    node = at;
                    head
                }
                None => return (direct.known_epoch() == Some(self.epoch)).then_some(Ok(None)),
            },
        };
        if head.config_number() != config.config_number {
            return None;
        }
        let offset = head.offset().unwrap_or(0);
        if offset == 0 && !head.is_stable() {
            return None;
        }
        let mut found = None;
        if offset != 0 {
            let words: [u64; BLOCK_HEADER_LEN as usize / 8] = reach.load(offset)?;
            let block = Block::from_words(words);
            // A version that this handle wrote itself has happened, with or without the stable bit.
            let is_own = || {
                cached.as_ref().is_some_and(|cached| {
                    cached.at[primary].head.stable() == head.stable()
                        && cached.version.words()[..2] == words[..2]
                })
            };
            if block.kind != Kind::Plain || !(head.is_stable() || is_own()) {
                return None;
            }
            if !block.is_deleted {
                let place = match target.place(&block) {
                    Ok(place) => place,
                    Err(error) => return error.map(Err),
                };
                if let Some(target) = place {
                    let is_copied = reach.get(offset + value_start(block.len), target);
                    // The slow path reports damage.
                    if !is_copied || !store.is_right(|| key.hash, &block, target) {
                        return None;
                    }
                }
                found = Some((block.len as usize, block.version()));
            }
        }
        match cached {
            Some(cached) => cached.hint = offset,
            None => store.hints.note(key.hash, config.primary_member(), node, offset),
        }
        (direct.known_epoch() == Some(self.epoch)).then_some(Ok(found))
    }
}

/// Where a read on the mapped fast path copies a value.
pub(in crate::store::record) trait ReadTarget {
    /// The place for the value of this version; `None` if the value is not wanted. An error of
    /// `None`: the slow path must be taken.
    fn place(&mut self, block: &Block) -> Result<Option<&mut [u8]>, Option<StoreError>>;
}

impl ReadTarget for Option<&mut [u8]> {
    #[inline(always)]
    fn place(&mut self, block: &Block) -> Result<Option<&mut [u8]>, Option<StoreError>> {
        let Some(buffer) = self else { return Ok(None) };
        let (needed, given) = (block.len, buffer.len() as u64);
        match buffer.get_mut(..needed as usize) {
            Some(place) => Ok(Some(place)),
            None => Err(Some(StoreError::BufferTooSmall { needed, given })),
        }
    }
}

/// A version with its value, if that is wanted, in memory that the read allocates.
pub(in crate::store::record) struct WholeVersion {
    pub(in crate::store::record) wants_value: bool,
    pub(in crate::store::record) block: Option<Block>,
    pub(in crate::store::record) value: Vec<u8>,
}

impl ReadTarget for &mut WholeVersion {
    #[inline(always)]
    fn place(&mut self, block: &Block) -> Result<Option<&mut [u8]>, Option<StoreError>> {
        // The slow path compares a large length with the segment first.
        if block.len >= LARGE_LEN {
            return Err(None);
        }
        self.block = Some(*block);
        if !self.wants_value {
            return Ok(None);
        }
        self.value = vec![0; block.len as usize];
        Ok(Some(&mut self.value))
    }
}

/// The header with its checksum.
#[inline(never)]
fn checked_header(store: &RecordState, key: &KeyRef<'_>, header: Header, value: &[u8]) -> Header {
    store.with_checksum(key, Block::from_words(header), value).words()
}

/// The content of the primary's head word, if it still names the cached version, with this header.
#[inline(always)]
fn cached_head(
    reach: impl Memory,
    known: &CachedReplica,
    header: Header,
    is_sole: bool,
) -> Option<Head> {
    let offset = known.head.offset()?;
    let [head] = reach.load(known.word)?;
    if Head(head).stable() != known.head.stable() {
        return None;
    }
    // A block may have been reused for a later version. Its head word then looks as before, and
    // only the version counter tells. A sole writer needs no check.
    if !is_sole || cfg!(debug_assertions) {
        let is_same = reach.peek(offset) == Some(header[0]) || mutant("assume-version");
        debug_assert!(is_same || !is_sole, "a key with a sole writer was written by another one");
        if !is_same {
            return None;
        }
    }
    Some(Head(head))
}

/// Prefetches the head words of all replicas and the primary's block.
#[inline(always)]
fn prefetch_all<'a, D: Mapped<'a>>(
    direct: D,
    members: &[MemberId],
    at: &[CachedReplica],
    primary: usize,
) {
    for (&member, known) in members.iter().zip(at) {
        if let Some(reach) = direct.reach(member) {
            reach.prefetch(known.word);
            if member == members[primary] {
                reach.prefetch(known.head.offset().unwrap_or(0));
            }
        }
    }
}

/// Whether the record with this head word is the key's. The location cache knows keys by their
/// hashes, and two keys may have an equal hash.
#[inline(always)]
fn is_node_of(reach: impl Memory, word: u64, key: &KeyRef<'_>) -> bool {
    let Some(words) = reach.load::<NODE_READ_WORDS>(word.wrapping_sub(NODE_HEAD)) else {
        return false;
    };
    (words[NODE_WORD as usize / 8] ^ node_word(key, 0)) >> 16 == 0
        && is_key(&words[NODE_KEY as usize / 8..], key.key)
}

/// The node of a key at the primary and the content of its head word, as [`RecordOp::find`] finds
/// them, if there is a record. `None` if the slow path must be taken, also because the key is long
/// or its bucket has many nodes.
#[inline(always)]
fn find_mapped(
    reach: impl Memory,
    config: &Configuration,
    bucket_count: usize,
    key: &KeyRef<'_>,
) -> Option<Option<(u64, Head)>> {
    let buckets = config.buckets[config.primary].load(Ordering::Acquire);
    if buckets == 0 || key.key.len() > SHORT_KEY_MAX {
        return None;
    }
    let wanted = node_word(key, 0);
    let [mut at] = reach.load(buckets + (key.hash & (bucket_count as u64 - 1)) * 8)?;
    for _ in 0..FAST_CHAIN_MAX {
        if at == 0 {
            return Some(None);
        }
        let words: [u64; NODE_READ_WORDS] = reach.load(at)?;
        let word = |offset: u64| words[offset as usize / 8];
        if (word(NODE_WORD) ^ wanted) >> 16 == 0 && is_key(&words[NODE_KEY as usize / 8..], key.key)
        {
            // A node that is being removed is no longer the key's record.
            let head = Head(word(NODE_HEAD));
            return (head != Head::REMOVED).then_some(Some((at, head)));
        }
        at = word(NODE_NEXT);
    }
    None
}

/// The longest key that is read together with its node.
pub(in crate::store::record) const SHORT_KEY_MAX: usize = NODE_READ_WORDS * 8 - NODE_KEY as usize;

/// The number of nodes of a bucket that the fast path reads.
const FAST_CHAIN_MAX: usize = 16;

/// Whether these words begin with the key.
#[inline(always)]
fn is_key(words: &[u64], key: &[u8]) -> bool {
    let parts = key.chunks_exact(8);
    let rest = parts.remainder();
    let is_begin = parts.zip(words).all(|(part, word)| part == word.to_ne_bytes());
    is_begin
        && (rest.is_empty()
            || words.get(key.len() / 8).is_some_and(|word| word.to_ne_bytes().starts_with(rest)))
}

//! The mapped fast path: a put or get by handle, and a get by key, where all members map the
//! memory.
//!
//! A put executes the steps of docs/protocol/writing.md for the case that nothing has changed since
//! the handle wrote the key: no death, no other writer, no record unlinked from an index, free
//! blocks in the magazine. The cached location is validated inside the operation. If a check fails
//! before *publish*, nothing has happened, and the call starts over on the slow path. If a swap
//! fails after *publish*, the slow path finishes the version.
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
//! - A swap at a replica that died meanwhile is in vain, in memory that no member reads any more.
//! - No node and no block that the operation may read is reused while it is in flight, also not
//!   under a newer view. So the removal counts that it found stay valid until it ends.
//! - If this member leaves the job meanwhile, its writes go to memory that is no longer shared. So
//!   the operation checks for the end of the membership after its last write.
//! - A read counts only if the view is unchanged afterwards and this process is still a member.
//!
//! # Orderings
//! The words of segments are accessed by [`Memory`], with the orderings of the engine
//! (`engine/shm/mod.rs`): word operations are sequentially consistent, and a block that was put is
//! complete before the swap that follows it. [`Configuration::buckets`] is loaded with acquire
//! ordering, against the release store of the thread that found the buckets: an operation that
//! reads the offset also sees the index behind it.

use crate::engine::MemberId;
use crate::engine::mapped::{Direct, Memory};
use crate::store::error::{StoreError, StoreResult};
use crate::store::memory::magazine::BlockRing;
use crate::store::mutant::mutant;
use crate::store::operation::configuration::Configuration;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::placement::replica::{ReplicaIndex, ReplicaSet};
use crate::store::record::block_io::block_class;
use crate::store::record::index::{NODE_READ_WORDS, node_word};
use crate::store::record::key::KeyRef;
use crate::store::record::location::CachedLocation;
use crate::store::record::state::{RecordOp, RecordState};
use crate::store::record::waiters::WAITER_BITS;
use crate::store::record::write::{DraftBlock, NewVersion, Predecessor};
use crate::store::segment::head::Head;
use crate::store::segment::layout::{
    Block, Kind, NODE_HEAD, NODE_KEY, NODE_NEXT, NODE_WORD, OPERATION_MASK, PARTITION_WAITERS,
    REMOVALS, holder, value_start,
};
use crate::store::steps;
use crate::store::value::Version;
use std::sync::atomic::Ordering;

/// The greatest number of replicas for the fast path. With more replicas the slow path is taken.
const FAST_REPLICAS_MAX: usize = 8;

impl RecordState {
    /// Puts a value with a cached location. `None` if the slow path must be taken; then nothing has
    /// happened. The operation has ended when this returns.
    #[inline(always)]
    pub(in crate::store::record) fn put_mapped<'a, D: Direct<'a>>(
        &'a self,
        direct: D,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
        value: &[u8],
    ) -> OpResult<Option<Version>> {
        match RecordOp::begin_again(self, direct) {
            Some(mut op) => op.put_on_fast_path(direct, key, cached, value),
            None => Ok(None),
        }
    }

    /// Copies a value into a buffer, with a cached location or by a lookup in the index. `None` if
    /// the slow path must be taken.
    #[inline(always)]
    pub(in crate::store::record) fn get_mapped<'a, D: Direct<'a>>(
        &'a self,
        direct: D,
        key: &KeyRef<'_>,
        cached: Option<&mut CachedLocation>,
        buffer: &mut [u8],
    ) -> Option<StoreResult<Option<(usize, Version)>>> {
        RecordOp::begin_again(self, direct)?.get_on_fast_path(direct, key, cached, buffer)
    }
}

impl<'a> RecordOp<'a> {
    /// The whole put, in blocks: find, take blocks, fill, publish, install, retire, ring.
    #[inline(always)]
    fn put_on_fast_path<D: Direct<'a>>(
        &mut self,
        direct: D,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
        value: &[u8],
    ) -> OpResult<Option<Version>> {
        let store = self.store;
        // ---- Find: *enter*, *find* and *check*. The configuration is known, all its replicas are
        // ready, no freeze and no closed gate stops the call, and the primary's head word is as the
        // handle left it.
        let Some(config) = self.known_config(key.partition) else { return Ok(None) };
        steps::enter(steps::Step::WriteFind);
        let (count, primary) = (config.replicas.len(), config.primary.index());
        let is_known = cached.config_number == config.config_number && !cached.block.is_deleted;
        let is_fast = is_known
            && config.are_all_ready()
            && !store.freeze.is_set()
            && store.gate.lets_through(self.epoch);
        // The last comparison is never true: it only tells the compiler that `primary` is in
        // bounds.
        if !is_fast || count > FAST_REPLICAS_MAX || primary >= FAST_REPLICAS_MAX {
            return Ok(None);
        }
        let members = &config.replicas.members;
        let Some(first) = direct.reach(members[primary]) else { return Ok(None) };
        // With sole writers, another handle can have written the key only before the last recovery.
        // So the first put after a recovery checks the version counter.
        let recoveries = store.sole_writers.then(|| store.gate.recoveries());
        let is_sole = recoveries == Some(cached.recoveries);
        let Some(before) = cached_head(first, primary, cached, is_sole) else {
            return Ok(None);
        };
        // The header of the new version.
        let me = store.me();
        let block = Block {
            counter: cached.block.counter + 1,
            writer: me,
            participant: self.participant,
            operation: self.number & OPERATION_MASK,
            len: value.len() as u64,
            is_deleted: false,
            kind: Kind::Plain,
            holder: holder(me),
            owner: cached.block.owner,
            checksum: 0,
        };
        let block = store.with_checksum(key, block, value);
        let class = if block.len == cached.block.len {
            cached.class
        } else {
            match block_class(&block, me) {
                Ok(class) => class,
                Err(_) => return Ok(None),
            }
        };
        // ---- Take blocks: a block at each replica, and the rest of *find*, the removal counts.
        // All loads come before the first put: a load after a put would have to wait for the put.
        steps::enter(steps::Step::WriteFill);
        let magazine = self.magazine();
        let mut reached = [first; FAST_REPLICAS_MAX];
        let mut rings = [None; FAST_REPLICAS_MAX];
        let mut are_rings_known = true;
        let mut offsets = [0; FAST_REPLICAS_MAX];
        let mut prepared = 0;
        while prepared < count {
            let (member, known) = (members[prepared], &cached.at[prepared]);
            let Some(reach) = direct.reach(member) else { break };
            // *install* swaps this word at the end, and it should be in the cache by then.
            reach.prefetch(known.word);
            if reach.load(config.roots[prepared] + REMOVALS) != Some([known.removals])
                || known.word == 0
            {
                break;
            }
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
            (reached[prepared], rings[prepared], offsets[prepared]) = (reach, ring, offset);
            prepared += 1;
        }
        // ---- Fill: the blocks. Blocks that are filled in vain are kept.
        let (header, start) = (block.words(), value_start(block.len));
        let mut filled = 0;
        while prepared == count && filled < count {
            let (reach, offset) = (reached[filled], offsets[filled]);
            if !(reach.put_words(offset, header) && reach.fill(offset + start, value)) {
                break;
            }
            filled += 1;
        }
        // ---- Publish: swap the primary's head word.
        let new = |offset: u64| Head::new(config.config_number, offset);
        let head = new(offsets[primary]);
        steps::enter(steps::Step::WritePublish);
        let is_published =
            filled == count && first.swap(cached.at[primary].word, before.0, head.0) == Some(true);
        if !is_published {
            if cfg!(debug_assertions) && store.sole_writers && filled == count {
                // A reader may have set the stable bit, and a death may have changed the
                // configuration number. Any other change breaks the promise of sole writers.
                let found = first.load(cached.at[primary].word).map(|[head]| Head(head));
                let is_other = |found: Head| {
                    found.config_number() == config.config_number
                        && found.stable() != before.stable()
                };
                assert!(
                    !found.is_some_and(is_other),
                    "two members write a key with a sole writer at once"
                );
            }
            self.keep_all(&config.replicas, class, &offsets);
            return Ok(None);
        }
        cached.at[primary].head = before;
        // ---- Install: swap the head words of the other replicas. *catch_up* has nothing to do,
        // since all replicas have an index.
        steps::enter(steps::Step::WriteInstall);
        let mut installed = ReplicaSet::only(config.primary);
        for replica in 0..count {
            let known = &cached.at[replica];
            if replica != primary
                && reached[replica].swap(known.word, known.head.0, new(offsets[replica]).0)
                    == Some(true)
            {
                installed.insert(ReplicaIndex::new(replica));
            }
        }
        // After the last write: the writes of a process that is no longer a member went to memory
        // that no other member shares.
        if direct.is_over() {
            return Err(OpError::Fail(StoreError::Closed));
        }
        // A swap failed, because the head word was sealed, removed or changed by a helper.
        if installed != ReplicaSet::first(count) {
            return self.finish_on_slow_path(
                config, key, cached, before, installed, &offsets, block, value,
            );
        }
        // ---- Retire: the version has happened, and this operation retires the blocks that it
        // swapped out. A block that this member holds, of the size class of the new block, goes
        // into the ring that was found above.
        let is_plain = are_rings_known
            && class == cached.class
            && cached.block.holder == block.holder
            && !mutant("reuse-early");
        for replica in 0..count {
            let known = &mut cached.at[replica];
            if let Some(offset) = known.head.offset() {
                match rings[replica].filter(|_| is_plain) {
                    Some(ring) if magazine.retire_in(ring, offset) => {}
                    _ => {
                        self.retire_replaced(members[replica], offset, &cached.block, cached.class)
                    }
                }
            }
            known.head = new(offsets[replica]);
        }
        (cached.block, cached.class, cached.hint) = (block, class, offsets[primary]);
        if let Some(recoveries) = recoveries {
            cached.recoveries = recoveries;
        }
        // ---- Ring: the waiters of the partition. The handle leaves the stable bit unset: it knows
        // that the version is stable, and any other reader reconciles the record, and rings before
        // it sets the bit.
        let waiters =
            config.roots[primary] + store.layout.partition(key.partition) + PARTITION_WAITERS;
        if first.load(waiters).is_none_or(|[waiters]| waiters & WAITER_BITS != 0) {
            let _ = self.ring_waiters(members[primary], key.partition);
        }
        if self.must_recheck_view() {
            return self.confirm_after_view_change(key, cached, &block);
        }
        Ok(Some(block.version()))
    }

    /// The view has changed during the put: confirms the version. See
    /// [`RecordOp::must_recheck_view`].
    #[cold]
    #[inline(never)]
    fn confirm_after_view_change(
        &mut self,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
        block: &Block,
    ) -> OpResult<Option<Version>> {
        cached.forget();
        self.confirm(key, block)
    }

    /// Retires a block that was swapped out, on the slow path.
    #[cold]
    #[inline(never)]
    fn retire_replaced(&self, replica: MemberId, offset: u64, block: &Block, class: usize) {
        let _ = self.retire_block(replica, offset, block, class);
    }

    /// Keeps the blocks of a version that was not published, for the next operation. The offsets
    /// are per replica, 0 for none.
    #[cold]
    #[inline(never)]
    fn keep_all(&self, replicas: &[MemberId], class: usize, offsets: &[u64; FAST_REPLICAS_MAX]) {
        for (&member, &offset) in replicas.iter().zip(offsets).filter(|(_, offset)| **offset != 0) {
            self.keep(member, class, offset);
        }
    }

    /// Takes a block that the magazine does not have, from the free list or from the replica.
    #[cold]
    #[inline(never)]
    fn block_elsewhere(&self, member: MemberId, class: usize) -> Option<u64> {
        self.take_elsewhere(member, class).ok()
    }

    /// The version is published, and a replica was not as cached: finishes the version on the slow
    /// path.
    #[cold]
    #[inline(never)]
    #[allow(clippy::too_many_arguments, reason = "a single call, out of the fast path")]
    fn finish_on_slow_path(
        &mut self,
        config: &Configuration,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
        head: Head,
        installed: ReplicaSet,
        offsets: &[u64; FAST_REPLICAS_MAX],
        block: Block,
        value: &[u8],
    ) -> OpResult<Option<Version>> {
        let mut new_version = NewVersion::new(block, value, block_class(&block, self.store.me())?);
        for (replica, member) in config.enumerate() {
            if !installed.contains(replica) {
                new_version.blocks[replica] = DraftBlock::filled(offsets[replica]);
                continue;
            }
            if let Some(offset) = cached.at[replica].head.offset() {
                let _ = self.retire_block(member, offset, &cached.block, cached.class);
            }
        }
        cached.forget();
        let mut before = Predecessor::unknown(head);
        match self.install_everywhere(config, key, &mut before, &mut new_version, installed) {
            Ok(()) => {
                let _ = self.ring_waiters(config.primary_member(), key.partition);
                if self.must_recheck_view() {
                    self.confirm(key, &block)
                } else {
                    Ok(Some(block.version()))
                }
            }
            Err(OpError::Again | OpError::Fail(StoreError::OutOfMemory { .. })) => {
                self.keep_unused(config, &new_version);
                // If the version did not happen, this returns `Again`, and the call starts over.
                self.confirm(key, &block)
            }
            Err(fail) => Err(fail),
        }
    }

    /// The whole get. The value counts only if the epoch at its end is the epoch of the operation.
    #[inline(always)]
    fn get_on_fast_path<D: Direct<'a>>(
        &self,
        direct: D,
        key: &KeyRef<'_>,
        cached: Option<&mut CachedLocation>,
        buffer: &mut [u8],
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
        if head.config_number() != config.config_number || !head.is_stable() {
            return None;
        }
        let offset = head.offset().unwrap_or(0);
        let mut found = None;
        if offset != 0 {
            let block = Block::from_words(reach.load(offset)?);
            if block.kind != Kind::Plain {
                return None;
            }
            if !block.is_deleted {
                let given = buffer.len() as u64;
                let Some(target) = buffer.get_mut(..block.len as usize) else {
                    return Some(Err(StoreError::BufferTooSmall { needed: block.len, given }));
                };
                let is_copied = reach.get(offset + value_start(block.len), target);
                // The slow path reports damage.
                if !is_copied || !store.is_right(|| key.hash, &block, target) {
                    return None;
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

/// The content of the primary's head word, if it still names the cached version.
#[inline(always)]
fn cached_head(
    reach: impl Memory,
    primary: usize,
    cached: &CachedLocation,
    is_sole: bool,
) -> Option<Head> {
    let known = &cached.at[primary];
    let offset = known.head.offset()?;
    let [head] = reach.load(known.word)?;
    if Head(head).stable() != known.head.stable() {
        return None;
    }
    // A block may have been reused for a later version. Its head word then looks as before, and
    // only the version counter tells. A sole writer needs no check.
    let is_same = || reach.load(offset) == Some([cached.block.counter]);
    if is_sole {
        debug_assert!(
            is_same(),
            "a key with a sole writer was written by another one: {:?}",
            cached.block
        );
        return Some(Head(head));
    }
    is_same().then_some(Head(head))
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
    if buckets == 0 || key.key.len() > (NODE_READ_WORDS * 8) - NODE_KEY as usize {
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

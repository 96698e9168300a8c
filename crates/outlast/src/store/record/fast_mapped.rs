//! The hot path: a handle writes or reads its key again; and a read by key.
//!
//! The same steps as in `write.rs`, W1 to W9, for the case that nothing has changed since the
//! handle wrote the key: no death, no other writer, no record taken out of an index, blocks at
//! hand. Everything that the handle has_cached is checked inside the operation. Whenever something
//! is not so, and nothing has been published yet, the ordinary way is taken from the start; after
//! the publication what is left to do is finished in the ordinary way.
//!
//! Only on engines whose memory all members map: there an operation either happens or is refused.
//! The view is checked once, when the operation has begun, and not again before each access to a
//! replica, so that several of them may come late. That is safe:
//!
//! - The blocks that are filled are this member's, whatever the view, and are at worst filled in
//!   vain.
//! - A swap of a head word (W5, W6) succeeds only where nobody has sealed the record under a newer
//!   configuration, since that changes the config_number in the word. If all swaps succeeded, then
//!   every replica that is complete in a newer configuration held the version when it was sealed,
//!   and the version has happened; when the swaps were made does not enter into this. If some did
//!   not, the ordinary way finishes, under a view that is checked anew.
//! - A replica that died meanwhile is swapped in vain, in memory that nobody looks at any more.
//! - Nodes and blocks that the operation may come to see are not used again while it is under way,
//!   also not under a newer view: the counts of removals hold for as long as it lasts.
//! - If this member leaves the job meanwhile, its writes go nowhere: so that is looked at after the
//!   last one.
//! - A read counts only if the view is the same afterwards, and this member is still there.

use crate::engine::MemberId;
use crate::engine::mapped::{Direct, Memory};
use crate::store::error::{StoreError, StoreResult};
use crate::store::memory::magazine::BlockRing;
use crate::store::mutant::mutant;
use crate::store::operation::configuration::Configuration;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::record::block_io::block_class;
use crate::store::record::index::{NODE_READ_WORDS, node_word};
use crate::store::record::key::KeyRef;
use crate::store::record::location::CachedLocation;
use crate::store::record::state::{RecordOp, RecordState};
use crate::store::record::waiters::WAITER_BITS;
use crate::store::record::write::{NewVersion, Predecessor};
use crate::store::segment::head::Head;
use crate::store::segment::layout::{
    Block, Kind, NODE_HEAD, NODE_KEY, NODE_NEXT, NODE_WORD, OPERATION_MASK, PARTITION_WAITERS,
    REMOVALS, holder, value_start,
};
use crate::store::steps;
use crate::store::value::Version;
use std::sync::atomic::Ordering;

/// With more replicas than this the ordinary way is taken.
const FAST_REPLICAS_MAX: usize = 8;

impl RecordState {
    /// Puts a value by what a handle has_cached; `None` if the ordinary way must be taken, and
    /// nothing has happened. The operation is over when this returns.
    #[inline(always)]
    pub(in crate::store) fn put_mapped<'a, D: Direct<'a>>(
        &'a self,
        direct: D,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
        value: &[u8],
    ) -> OpResult<Option<Version>> {
        match RecordOp::begin_again(self, direct) {
            Some(mut op) => op.put_again(direct, key, cached, value),
            None => Ok(None),
        }
    }

    /// Copies a value into a buffer, by what a handle has_cached or by a look at the index; `None`
    /// if the ordinary way must be taken.
    #[inline(always)]
    pub(in crate::store) fn get_mapped<'a, D: Direct<'a>>(
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
    #[inline(always)]
    fn put_again<D: Direct<'a>>(
        &mut self,
        direct: D,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
        value: &[u8],
    ) -> OpResult<Option<Version>> {
        let store = self.store;
        let Some(config) = self.known_config(key.partition) else { return Ok(None) };
        steps::enter(steps::Step::WriteFind);
        let (count, primary) = (config.replicas.len(), config.primary);
        let is_known = cached.config_number == config.config_number && !cached.block.is_deleted;
        // The last one is a hint to the compiler.
        let is_hot = is_known
            && config.are_all_ready()
            && !store.freeze.is_set()
            && store.gate.lets_through(self.epoch);
        if !is_hot || count > FAST_REPLICAS_MAX || primary >= FAST_REPLICAS_MAX {
            return Ok(None);
        }
        let members = &config.replicas.members;
        let Some(first) = direct.reach(members[primary]) else { return Ok(None) };
        // What happened in a recovery is looked at once.
        let recoveries = store.sole_writers.then(|| store.gate.recoveries());
        let is_sole = recoveries == Some(cached.recoveries);
        let Some(before) = cached_head(first, primary, cached, is_sole) else {
            return Ok(None);
        };
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
        // The rest of W2, and the blocks of W4. All that is loaded is loaded before anything is
        // put: a load after a put would have to wait for it.
        steps::enter(steps::Step::WriteFill);
        let magazine = self.magazine();
        let mut reached = [first; FAST_REPLICAS_MAX];
        let mut ways = [None; FAST_REPLICAS_MAX];
        let mut are_ways_known = true;
        let mut offsets = [0; FAST_REPLICAS_MAX];
        let mut prepared = 0;
        while prepared < count {
            let (member, known) = (members[prepared], &cached.at[prepared]);
            let Some(reach) = direct.reach(member) else { break };
            // It is swapped at the end, and should be at hand by then.
            reach.prefetch(known.word);
            if reach.load(config.roots[prepared] + REMOVALS) != Some([known.removals])
                || known.word == 0
            {
                break;
            }
            let way = magazine.way(member, class);
            let taken = match way.and_then(BlockRing::take) {
                Some((offset, next)) => {
                    // Most likely what the next put takes.
                    reach.prefetch(next);
                    reach.prefetch(next + 64);
                    Some(offset)
                }
                None => {
                    // The magazine may be another one afterwards.
                    are_ways_known = false;
                    self.block_elsewhere(member, class)
                }
            };
            let Some(offset) = taken else { break };
            (reached[prepared], ways[prepared], offsets[prepared]) = (reach, way, offset);
            prepared += 1;
        }
        // W4: what is filled in vain is kept.
        let (header, start) = (block.words(), value_start(block.len));
        let mut filled = 0;
        while prepared == count && filled < count {
            let (reach, offset) = (reached[filled], offsets[filled]);
            if !(reach.put_words(offset, header) && reach.fill(offset + start, value)) {
                break;
            }
            filled += 1;
        }
        // W5.
        let new = |offset: u64| Head::new(config.config_number, offset);
        let head = new(offsets[primary]);
        steps::enter(steps::Step::WritePublish);
        let is_published =
            filled == count && first.swap(cached.at[primary].word, before.0, head.0) == Some(true);
        if !is_published {
            if cfg!(debug_assertions) && store.sole_writers && filled == count {
                // A reader may have said that it is stable, and a death may have changed the
                // config_number.
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
        // W6; W7 has nothing to look for, since all replicas have an index.
        steps::enter(steps::Step::WriteInstall);
        let mut is_done = 1u64 << primary;
        for replica in 0..count {
            let known = &cached.at[replica];
            if replica != primary
                && reached[replica].swap(known.word, known.head.0, new(offsets[replica]).0)
                    == Some(true)
            {
                is_done |= 1 << replica;
            }
        }
        if direct.is_over() {
            return Err(OpError::Fail(StoreError::Closed));
        }
        if is_done != (1 << count) - 1 {
            return self
                .finish_on_slow_path(config, key, cached, before, is_done, &offsets, block, value);
        }
        // The version has happened. The blocks that it took the place of are this member's.
        let is_plain = are_ways_known
            && class == cached.class
            && cached.block.holder == block.holder
            && !mutant("reuse-early");
        for replica in 0..count {
            let known = &mut cached.at[replica];
            if let Some(offset) = known.head.offset() {
                match ways[replica].filter(|_| is_plain) {
                    Some(way) if magazine.retire_in(way, offset) => {}
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
        let waiters =
            config.roots[primary] + store.layout.partition(key.partition) + PARTITION_WAITERS;
        if first.load(waiters).is_none_or(|[waiters]| waiters & WAITER_BITS != 0) {
            let _ = self.ring_waiters(members[primary], key.partition);
        }
        if self.is_late() {
            return self.confirm_after_view_change(key, cached, &block);
        }
        Ok(Some(block.version()))
    }

    /// The view has changed; see [`RecordOp::is_late`].
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

    /// Retires a block that was swapped out, in the ordinary way.
    #[cold]
    #[inline(never)]
    fn retire_replaced(&self, replica: MemberId, offset: u64, block: &Block, class: usize) {
        let _ = self.retire_block(replica, offset, block, class);
    }

    /// Keeps blocks that nobody has seen, one for each replica, 0 if there is none.
    #[cold]
    #[inline(never)]
    fn keep_all(&self, replicas: &[MemberId], class: usize, offsets: &[u64; FAST_REPLICAS_MAX]) {
        for (&member, &offset) in replicas.iter().zip(offsets).filter(|(_, offset)| **offset != 0) {
            self.keep(member, class, offset);
        }
    }

    #[cold]
    #[inline(never)]
    fn block_elsewhere(&self, member: MemberId, class: usize) -> Option<u64> {
        self.take_elsewhere(member, class).ok()
    }

    /// The version is published, and some replica was not as remembered: finishes it in the
    /// ordinary way.
    #[cold]
    #[inline(never)]
    #[allow(clippy::too_many_arguments, reason = "one call, out of the way of the hot path")]
    fn finish_on_slow_path(
        &mut self,
        config: &Configuration,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
        head: Head,
        is_done: u64,
        offsets: &[u64; FAST_REPLICAS_MAX],
        block: Block,
        value: &[u8],
    ) -> OpResult<Option<Version>> {
        let mut new_version = NewVersion::new(block, value, block_class(&block, self.store.me())?);
        for (replica, &member) in config.replicas.iter().enumerate() {
            if is_done & 1 << replica == 0 {
                new_version.offsets[replica] = offsets[replica];
                continue;
            }
            if let Some(offset) = cached.at[replica].head.offset() {
                let _ = self.retire_block(member, offset, &cached.block, cached.class);
            }
        }
        cached.forget();
        let mut before = Predecessor::unknown(head);
        match self.finish(config, key, &mut before, &mut new_version, is_done) {
            Ok(()) => {
                let _ = self.ring_waiters(config.replicas[config.primary], key.partition);
                if self.is_late() { self.confirm(key, &block) } else { Ok(Some(block.version())) }
            }
            Err(OpError::Again | OpError::Fail(StoreError::OutOfMemory { .. })) => {
                self.keep_unused(config, &new_version);
                // Not happened: `Again`, and the caller begins anew.
                self.confirm(key, &block)
            }
            Err(fail) => Err(fail),
        }
    }

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
        let reach = direct.reach(config.replicas[primary])?;
        let mut node = 0;
        let head = match &cached {
            Some(cached) => {
                let known = &cached.at[primary];
                if cached.config_number != config.config_number || known.word == 0 {
                    return None;
                }
                // Together with the head word, and not after it.
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
                // Damage is told by the ordinary way.
                if !is_copied || !store.is_right(|| key.hash, &block, target) {
                    return None;
                }
                found = Some((block.len as usize, block.version()));
            }
        }
        match cached {
            Some(cached) => cached.hint = offset,
            None => store.hints.note(key.hash, config.replicas[primary], node, offset),
        }
        (direct.known_epoch() == Some(self.epoch)).then_some(Ok(found))
    }
}

/// The head of a key at the primary, if it is still what the handle has_cached.
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
    // A block is used again, and its head looks the same: only the version tells. Who is the only
    // one to write the key needs not ask.
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

/// The node of a key and its head at the primary, as in `index.rs`, if there is a record; `None` if
/// the ordinary way must be taken, also because the key is long or its neighbours many.
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
    for _ in 0..CHAIN_HOT {
        if at == 0 {
            return Some(None);
        }
        let words: [u64; NODE_READ_WORDS] = reach.load(at)?;
        let word = |offset: u64| words[offset as usize / 8];
        if (word(NODE_WORD) ^ wanted) >> 16 == 0 && is_key(&words[NODE_KEY as usize / 8..], key.key)
        {
            // A node that is being removed is not the key's record any more.
            let head = Head(word(NODE_HEAD));
            return (head != Head::REMOVED).then_some(Some((at, head)));
        }
        at = word(NODE_NEXT);
    }
    None
}

/// How many nodes of a bucket are looked at.
const CHAIN_HOT: usize = 16;

/// Whether these words begin with a key.
#[inline(always)]
fn is_key(words: &[u64], key: &[u8]) -> bool {
    let parts = key.chunks_exact(8);
    let rest = parts.remainder();
    let is_begin = parts.zip(words).all(|(part, word)| part == word.to_ne_bytes());
    is_begin
        && (rest.is_empty()
            || words.get(key.len() / 8).is_some_and(|word| word.to_ne_bytes().starts_with(rest)))
}

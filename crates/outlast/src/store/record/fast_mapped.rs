//! The hot path: a handle writes or reads its key again; and a read by key.
//!
//! The same steps as in `write.rs`, W1 to W9, for the case that nothing has changed since the handle wrote the key: no
//! death, no other writer, no record taken out of an index, blocks at hand. Everything that the handle remembers is
//! checked inside the operation. Whenever something is not so, and nothing has been published yet, the ordinary way is
//! taken from the start; after the publication what is left to do is finished in the ordinary way.
//!
//! Only on engines whose memory all members map: there an operation either happens or is refused. The view is checked
//! once, when the operation has begun, and not again before each access to a home, so that several of them may come late.
//! That is safe:
//!
//! - The blocks that are filled are this member's, whatever the view, and are at worst filled in vain.
//! - A swap of a head word (W5, W6) succeeds only where nobody has sealed the record under a newer configuration, since
//!   that changes the stamp in the word. If all swaps succeeded, then every home that is complete in a newer
//!   configuration held the version when it was sealed, and the version has happened; when the swaps were made does not
//!   enter into this. If some did not, the ordinary way finishes, under a view that is checked anew.
//! - A home that died meanwhile is swapped in vain, in memory that nobody looks at any more.
//! - Nodes and blocks that the operation may come to see are not used again while it is under way, also not under a newer
//!   view: the counts of removals hold for as long as it lasts.
//! - If this member leaves the job meanwhile, its writes go nowhere: so that is looked at after the last one.
//! - A read counts only if the view is the same afterwards, and this member is still there.

use crate::engine::MemberId;
use crate::engine::mapped::{Direct, Memory};
use crate::store::error::{StoreError, StoreResult};
use crate::store::memory::magazine::Way;
use crate::store::mutant::mutant;
use crate::store::operation::configuration::Config;
use crate::store::operation::error::{Halt, Step};
use crate::store::record::block_io::block_class;
use crate::store::record::index::{NODE_READ_WORDS, node_word};
use crate::store::record::key::KeyRef;
use crate::store::record::location::Remembered;
use crate::store::record::state::{RecordOp, RecordState};
use crate::store::record::waiters::WAITER_BITS;
use crate::store::record::write::{Before, Draft};
use crate::store::segment::head::Head;
use crate::store::segment::layout::{
    Block, Kind, NODE_HEAD, NODE_KEY, NODE_NEXT, NODE_WORD, OPERATION_MASK, PARTITION_WAITERS,
    REMOVALS, holder, value_start,
};
use crate::store::steps;
use crate::store::value::Version;
use std::sync::atomic::Ordering;

/// With more homes than this the ordinary way is taken.
const HOT_HOMES: usize = 8;

impl RecordState {
    /// Puts a value by what a handle remembers; `None` if the ordinary way must be taken, and nothing has happened. The
    /// operation is over when this returns.
    #[inline(always)]
    pub(in crate::store) fn put_directly<'a, D: Direct<'a>>(
        &'a self,
        direct: D,
        key: &KeyRef<'_>,
        memory: &mut Remembered,
        value: &[u8],
    ) -> Step<Option<Version>> {
        match RecordOp::begin_again(self, direct) {
            Some(mut op) => op.put_again(direct, key, memory, value),
            None => Ok(None),
        }
    }

    /// Copies a value into a buffer, by what a handle remembers or by a look at the index; `None` if the ordinary way must
    /// be taken.
    #[inline(always)]
    pub(in crate::store) fn get_directly<'a, D: Direct<'a>>(
        &'a self,
        direct: D,
        key: &KeyRef<'_>,
        memory: Option<&mut Remembered>,
        buffer: &mut [u8],
    ) -> Option<StoreResult<Option<(usize, Version)>>> {
        RecordOp::begin_again(self, direct)?.get_again(direct, key, memory, buffer)
    }
}

impl<'a> RecordOp<'a> {
    #[inline(always)]
    fn put_again<D: Direct<'a>>(
        &mut self,
        direct: D,
        key: &KeyRef<'_>,
        memory: &mut Remembered,
        value: &[u8],
    ) -> Step<Option<Version>> {
        let store = self.store;
        let Some(config) = self.known_config(key.partition) else { return Ok(None) };
        steps::enter(steps::Step::WriteFind);
        let (count, primary) = (config.homes.len(), config.primary);
        let is_known = memory.stamp == config.stamp && !memory.block.is_deleted;
        // The last one is a hint to the compiler.
        let is_hot = is_known
            && config.are_all_ready()
            && !store.frost.is_set()
            && store.gate.lets_through(self.epoch);
        if !is_hot || count > HOT_HOMES || primary >= HOT_HOMES {
            return Ok(None);
        }
        let members = &config.homes.members;
        let Some(first) = direct.reach(members[primary]) else { return Ok(None) };
        // What happened in a recovery is looked at once.
        let recoveries = store.sole_writers.then(|| store.gate.recoveries());
        let is_sole = recoveries == Some(memory.recoveries);
        let Some(before) = remembered_head(first, primary, memory, is_sole) else {
            return Ok(None);
        };
        let me = store.me();
        let block = Block {
            counter: memory.block.counter + 1,
            writer: me,
            actor: self.actor,
            operation: self.number & OPERATION_MASK,
            len: value.len() as u64,
            is_deleted: false,
            kind: Kind::Plain,
            holder: holder(me),
            owner: memory.block.owner,
            checksum: 0,
        };
        let block = store.with_checksum(key, block, value);
        let class = if block.len == memory.block.len {
            memory.class
        } else {
            match block_class(&block, me) {
                Ok(class) => class,
                Err(_) => return Ok(None),
            }
        };
        // The rest of W2, and the blocks of W4. All that is loaded is loaded before anything is put: a load after a put
        // would have to wait for it.
        steps::enter(steps::Step::WriteFill);
        let magazine = self.magazine();
        let mut reached = [first; HOT_HOMES];
        let mut ways = [None; HOT_HOMES];
        let mut are_ways_known = true;
        let mut offsets = [0; HOT_HOMES];
        let mut prepared = 0;
        while prepared < count {
            let (member, known) = (members[prepared], &memory.at[prepared]);
            let Some(reach) = direct.reach(member) else { break };
            // It is swapped at the end, and should be at hand by then.
            reach.prefetch(known.word);
            if reach.load(config.roots[prepared] + REMOVALS) != Some([known.removals])
                || known.word == 0
            {
                break;
            }
            let way = magazine.way(member, class);
            let taken = match way.and_then(Way::take) {
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
        let new = |offset: u64| Head::new(config.stamp, offset);
        let head = new(offsets[primary]);
        steps::enter(steps::Step::WritePublish);
        let is_published =
            filled == count && first.swap(memory.at[primary].word, before.0, head.0) == Some(true);
        if !is_published {
            if cfg!(debug_assertions) && store.sole_writers && filled == count {
                // A reader may have said that it is stable, and a death may have changed the stamp.
                let found = first.load(memory.at[primary].word).map(|[head]| Head(head));
                let is_other = |found: Head| {
                    found.stamp() == config.stamp && found.stable() != before.stable()
                };
                assert!(
                    !found.is_some_and(is_other),
                    "two members write a key with a sole writer at once"
                );
            }
            self.keep_all(&config.homes, class, &offsets);
            return Ok(None);
        }
        memory.at[primary].head = before;
        // W6; W7 has nothing to look for, since all homes have an index.
        steps::enter(steps::Step::WriteInstall);
        let mut is_done = 1u64 << primary;
        for home in 0..count {
            let known = &memory.at[home];
            if home != primary
                && reached[home].swap(known.word, known.head.0, new(offsets[home]).0) == Some(true)
            {
                is_done |= 1 << home;
            }
        }
        if direct.is_over() {
            return Err(Halt::Fail(StoreError::Closed));
        }
        if is_done != (1 << count) - 1 {
            return self.finish_again(config, key, memory, before, is_done, &offsets, block, value);
        }
        // The version has happened. The blocks that it took the place of are this member's.
        let is_plain = are_ways_known
            && class == memory.class
            && memory.block.holder == block.holder
            && !mutant("reuse-early");
        for home in 0..count {
            let known = &mut memory.at[home];
            if let Some(offset) = known.head.offset() {
                match ways[home].filter(|_| is_plain) {
                    Some(way) if magazine.retire_in(way, offset) => {}
                    _ => self.retire_replaced(members[home], offset, &memory.block, memory.class),
                }
            }
            known.head = new(offsets[home]);
        }
        (memory.block, memory.class, memory.hint) = (block, class, offsets[primary]);
        if let Some(recoveries) = recoveries {
            memory.recoveries = recoveries;
        }
        let waiters =
            config.roots[primary] + store.layout.partition(key.partition) + PARTITION_WAITERS;
        if first.load(waiters).is_none_or(|[waiters]| waiters & WAITER_BITS != 0) {
            let _ = self.ring_waiters(members[primary], key.partition);
        }
        if self.is_late() {
            return self.redo_late(key, memory, &block);
        }
        Ok(Some(block.version()))
    }

    /// The view has changed; see [`RecordOp::is_late`].
    #[cold]
    #[inline(never)]
    fn redo_late(
        &mut self,
        key: &KeyRef<'_>,
        memory: &mut Remembered,
        block: &Block,
    ) -> Step<Option<Version>> {
        memory.forget();
        self.redo(key, block)
    }

    /// Retires a block that was swapped out, in the ordinary way.
    #[cold]
    #[inline(never)]
    fn retire_replaced(&self, home: MemberId, offset: u64, block: &Block, class: usize) {
        let _ = self.retire_block(home, offset, block, class);
    }

    /// Keeps blocks that nobody has seen, one for each home, 0 if there is none.
    #[cold]
    #[inline(never)]
    fn keep_all(&self, homes: &[MemberId], class: usize, offsets: &[u64; HOT_HOMES]) {
        for (&member, &offset) in homes.iter().zip(offsets).filter(|(_, offset)| **offset != 0) {
            self.keep(member, class, offset);
        }
    }

    #[cold]
    #[inline(never)]
    fn block_elsewhere(&self, member: MemberId, class: usize) -> Option<u64> {
        self.take_elsewhere(member, class).ok()
    }

    /// The version is published, and some home was not as remembered: finishes it in the ordinary way.
    #[cold]
    #[inline(never)]
    #[allow(clippy::too_many_arguments, reason = "one call, out of the way of the hot path")]
    fn finish_again(
        &mut self,
        config: &Config,
        key: &KeyRef<'_>,
        memory: &mut Remembered,
        head: Head,
        is_done: u64,
        offsets: &[u64; HOT_HOMES],
        block: Block,
        value: &[u8],
    ) -> Step<Option<Version>> {
        let mut draft = Draft::new(block, value, block_class(&block, self.store.me())?);
        for (home, &member) in config.homes.iter().enumerate() {
            if is_done & 1 << home == 0 {
                draft.offsets[home] = offsets[home];
                continue;
            }
            if let Some(offset) = memory.at[home].head.offset() {
                let _ = self.retire_block(member, offset, &memory.block, memory.class);
            }
        }
        memory.forget();
        let mut before = Before::unknown(head);
        match self.finish(config, key, &mut before, &mut draft, is_done) {
            Ok(()) => {
                let _ = self.ring_waiters(config.homes[config.primary], key.partition);
                if self.is_late() { self.redo(key, &block) } else { Ok(Some(block.version())) }
            }
            Err(Halt::Again | Halt::Fail(StoreError::OutOfMemory { .. })) => {
                self.keep_unused(config, &draft);
                // Not happened: `Again`, and the caller begins anew.
                self.redo(key, &block)
            }
            Err(fail) => Err(fail),
        }
    }

    #[inline(always)]
    fn get_again<D: Direct<'a>>(
        &self,
        direct: D,
        key: &KeyRef<'_>,
        memory: Option<&mut Remembered>,
        buffer: &mut [u8],
    ) -> Option<StoreResult<Option<(usize, Version)>>> {
        let store = self.store;
        if memory.is_none() {
            store.hints.prefetch(direct, key.hash);
        }
        if !store.gate.lets_through(self.epoch) {
            return None;
        }
        let config = self.known_config(key.partition)?;
        steps::enter(steps::Step::Read);
        let primary = config.primary;
        let reach = direct.reach(config.homes[primary])?;
        let mut node = 0;
        let head = match &memory {
            Some(memory) => {
                let known = &memory.at[primary];
                if memory.stamp != config.stamp || known.word == 0 {
                    return None;
                }
                // Together with the head word, and not after it.
                if memory.hint != 0 {
                    reach.prefetch(memory.hint);
                    reach.prefetch(memory.hint + 64);
                }
                let [head] = reach.load(known.word)?;
                if reach.load(config.roots[primary] + REMOVALS)? != [known.removals] {
                    return None;
                }
                Head(head)
            }
            None => match find_directly(reach, config, store.bucket_count, key)? {
                Some((at, head)) => {
                    node = at;
                    head
                }
                None => return (direct.known_epoch() == Some(self.epoch)).then_some(Ok(None)),
            },
        };
        if head.stamp() != config.stamp || !head.is_stable() {
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
        match memory {
            Some(memory) => memory.hint = offset,
            None => store.hints.note(key.hash, config.homes[primary], node, offset),
        }
        (direct.known_epoch() == Some(self.epoch)).then_some(Ok(found))
    }
}

/// The head of a key at the primary, if it is still what the handle remembers.
#[inline(always)]
fn remembered_head(
    reach: impl Memory,
    primary: usize,
    memory: &Remembered,
    is_sole: bool,
) -> Option<Head> {
    let known = &memory.at[primary];
    let offset = known.head.offset()?;
    let [head] = reach.load(known.word)?;
    if Head(head).stable() != known.head.stable() {
        return None;
    }
    // A block is used again, and its head looks the same: only the version tells. Who is the only one to write the key
    // needs not ask.
    let is_same = || reach.load(offset) == Some([memory.block.counter]);
    if is_sole {
        debug_assert!(
            is_same(),
            "a key with a sole writer was written by another one: {:?}",
            memory.block
        );
        return Some(Head(head));
    }
    is_same().then_some(Head(head))
}

/// The node of a key and its head at the primary, as in `index.rs`, if there is a record; `None` if the ordinary way must be
/// taken, also because the key is long or its neighbours many.
#[inline(always)]
fn find_directly(
    reach: impl Memory,
    config: &Config,
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

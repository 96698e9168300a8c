//! The hot path: a handle writes or reads its key again; and a read by key.
//!
//! The same steps as in `write.rs`, W1 to W9, for the case that nothing has changed since the handle wrote the key: no
//! death, no other writer, no record taken out of an index, blocks at hand. Everything that the handle remembers is
//! checked inside the operation. Whenever something is not so, and nothing has been published yet, the ordinary way is
//! taken from the start; after the publication what is left to do is finished in the ordinary way.
//!
//! Only on engines whose memory all members map: there an operation either happens or is refused. The view is checked
//! once for each home, at the beginning, and not again before each of the operations on it, so that several of them may
//! come late. That is safe:
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

use super::access::{Halt, Op, Step};
use super::head::Head;
use super::index::{KeyRef, NODE_READ_WORDS, node_word};
use super::layout::{
    Block, Kind, NODE_HEAD, NODE_KEY, NODE_NEXT, NODE_WORD, OPERATION_MASK, PARTITION_WAITERS, REMOVALS,
    holder, value_start,
};
use super::write::{Before, Config, Draft, Remembered, WAITER_BITS, block_class};
use super::{StoreError, StoreResult, Version};
use crate::engine::{Engine, Epoch, MemberId, steps};
use crate::job::Reach;

/// With more homes than this the ordinary way is taken.
const HOT_HOMES: usize = 8;

impl<'a> Op<'a> {
    /// Puts a value by what a handle remembers; `None` if the ordinary way must be taken, and nothing has happened.
    #[inline(always)]
    pub(super) fn put_again(
        &mut self,
        key: &KeyRef<'_>,
        memory: &mut Remembered,
        value: &[u8],
    ) -> Step<Option<Version>> {
        let (store, job, at) = (self.store, &self.store.job, self.epoch);
        let Some(config) = self.known_config(key.partition) else { return Ok(None) };
        steps::enter(steps::Step::Find);
        let (homes, primary) = (&*config.homes, config.primary);
        let is_known = memory.stamp == config.stamp && !memory.block.is_deleted;
        if !is_known || !config.are_all_ready() || homes.len() > HOT_HOMES || store.frost.is_set() {
            return Ok(None);
        }
        let Ok(first) = job.reach(at, homes[primary]) else { return Ok(None) };
        let Some(before) = remembered_head(first, config, memory) else { return Ok(None) };
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
        // W4, and the rest of W2: what is filled in vain is kept.
        steps::enter(steps::Step::Fill);
        let (header, start) = (block.words(), value_start(block.len));
        let mut offsets = [0; HOT_HOMES];
        let mut is_filled = false;
        for (((&member, known), root), slot) in
            homes.iter().zip(&memory.at).zip(&config.roots).zip(&mut offsets)
        {
            is_filled = false;
            let Ok(reach) = job.reach(at, member) else { break };
            // It is swapped at the end, and should be at hand by then.
            reach.prefetch(known.word);
            if reach.load(root + REMOVALS) != Some([known.removals]) || known.word == 0 {
                break;
            }
            let block = self.block_at_hand(member, class).or_else(|| self.block_elsewhere(member, class));
            let Some((offset, next)) = block else { break };
            *slot = offset;
            // Most likely what the next put takes.
            reach.prefetch(next);
            reach.prefetch(next + 64);
            is_filled = reach.put_words(offset, header) && reach.fill(offset + start, value);
            if !is_filled {
                break;
            }
        }
        // W5.
        let new = |offset: u64| Head::new(config.stamp, offset);
        let head = new(offsets[primary % HOT_HOMES]);
        steps::enter(steps::Step::Publish);
        let is_published = is_filled && first.swap(memory.at[primary].word, before.0, head.0) == Some(true);
        if !is_published {
            for (&member, &offset) in homes.iter().zip(&offsets).filter(|(_, offset)| **offset != 0) {
                self.keep(member, class, offset);
            }
            return Ok(None);
        }
        memory.at[primary].head = before;
        // W6; W7 has nothing to look for, since all homes have an index.
        steps::enter(steps::Step::Install);
        let mut is_done = 1u64 << primary;
        for (home, ((&member, known), &offset)) in homes.iter().zip(&memory.at).zip(&offsets).enumerate() {
            if home != primary
                && let Ok(reach) = job.reach(Epoch::ANY, member)
                && reach.swap(known.word, known.head.0, new(offset).0) == Some(true)
            {
                is_done |= 1 << home;
            }
        }
        if job.has_ended() {
            return Err(Halt::Fail(StoreError::Closed));
        }
        if is_done != (1 << homes.len()) - 1 {
            return self.finish_again(config, key, memory, before, is_done, &offsets, block, value);
        }
        // The version has happened. The blocks that it took the place of are this member's.
        for ((&member, known), &offset) in homes.iter().zip(&mut memory.at).zip(&offsets) {
            if let Some(offset) = known.head.offset() {
                let _ = self.retire_block(member, offset, &memory.block, memory.class);
            }
            known.head = new(offset);
        }
        (memory.block, memory.class, memory.hint) = (block, class, offsets[primary % HOT_HOMES]);
        let waiters = config.roots[primary] + store.layout.partition(key.partition) + PARTITION_WAITERS;
        if first.load(waiters).is_none_or(|[waiters]| waiters & WAITER_BITS != 0) {
            let _ = self.ring_waiters(homes[primary], key.partition);
        }
        Ok(Some(block.version()))
    }

    #[cold]
    #[inline(never)]
    fn block_elsewhere(&self, member: MemberId, class: usize) -> Option<(u64, u64)> {
        self.take_elsewhere(member, class).ok().map(|offset| (offset, offset))
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
                Ok(Some(block.version()))
            }
            Err(Halt::Again | Halt::Fail(StoreError::OutOfMemory { .. })) => {
                self.keep_unused(config, &draft);
                // Not happened: `Again`, and the caller begins anew.
                self.redo(key, &block)
            }
            Err(fail) => Err(fail),
        }
    }

    /// Copies a value into a buffer, by what a handle remembers or by a look at the index; `None` if the ordinary way must
    /// be taken.
    #[inline(always)]
    pub(super) fn get_again(
        &self,
        key: &KeyRef<'_>,
        memory: Option<&mut Remembered>,
        buffer: &mut [u8],
    ) -> Option<StoreResult<Option<(usize, Version)>>> {
        let (store, job) = (self.store, &self.store.job);
        let config = self.known_config(key.partition)?;
        steps::enter(steps::Step::Read);
        let primary = config.primary;
        let reach = job.reach(self.epoch, config.homes[primary]).ok()?;
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
                Some(head) => head,
                None => return (job.epoch() == self.epoch && !job.has_ended()).then_some(Ok(None)),
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
        if let Some(memory) = memory {
            memory.hint = offset;
        }
        (job.epoch() == self.epoch && !job.has_ended()).then_some(Ok(found))
    }
}

/// The head of a key at the primary, if it is still what the handle remembers.
#[inline(always)]
fn remembered_head(primary: Reach<'_>, config: &Config, memory: &Remembered) -> Option<Head> {
    let known = &memory.at[config.primary];
    let offset = known.head.offset()?;
    let [head] = primary.load(known.word)?;
    // A block is used again, and its head looks the same: only the version tells.
    let is_same =
        Head(head).stable() == known.head.stable() && primary.load(offset)? == [memory.block.counter];
    is_same.then_some(Head(head))
}

/// The head of a key's record at the primary, as in `index.rs`, if there is a record; `None` if the ordinary way must be
/// taken, also because the key is long or its neighbours many.
#[inline(always)]
fn find_directly(
    reach: Reach<'_>,
    config: &Config,
    bucket_count: usize,
    key: &KeyRef<'_>,
) -> Option<Option<Head>> {
    let buckets = config.buckets[config.primary].load(std::sync::atomic::Ordering::Acquire);
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
        if (word(NODE_WORD) ^ wanted) >> 16 == 0 && is_key(&words[NODE_KEY as usize / 8..], key.key) {
            // A node that is being removed is not the key's record any more.
            let head = Head(word(NODE_HEAD));
            return (head != Head::REMOVED).then_some(Some(head));
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

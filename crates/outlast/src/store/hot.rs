//! The hot path: a handle writes or reads its key again.
//!
//! The same steps as in `write.rs`, W1 to W9, for the case that nothing has changed since the handle wrote the key: no
//! death, no other writer, no record taken out of an index, blocks at hand. Everything that the handle remembers is
//! checked inside the operation. Whenever something is not so, and nothing has been published yet, the ordinary way is
//! taken from the start; after the publication what is left to do is finished in the ordinary way.
//!
//! Only on engines whose memory all members map: there an operation either happens or is refused.

use super::access::{Halt, Op, Step};
use super::head::Head;
use super::index::KeyRef;
use super::layout::{BLOCK_HEADER_LEN, Block, OPERATION_MASK, REMOVALS, holder, value_start};
use super::placement::HOMES_MAX;
use super::write::{Before, Config, Draft, Remembered, SHORT_LEN_MAX, block_class};
use super::{StoreError, Version};
use crate::engine::{Engine, steps};

/// Where a short value is put together with its header.
pub(super) type Scratch = [u8; BLOCK_HEADER_LEN as usize + SHORT_LEN_MAX];

impl<'a> Op<'a> {
    /// Puts a value by what a handle remembers; `None` if the ordinary way must be taken, and nothing has happened.
    #[inline]
    pub(super) fn put_again(
        &mut self,
        key: &KeyRef<'_>,
        memory: &mut Remembered,
        scratch: &mut Scratch,
        value: &[u8],
    ) -> Step<Option<Version>> {
        let (store, job, at) = (self.store, &self.store.job, self.epoch);
        let Some(config) = self.known_config(key.partition) else { return Ok(None) };
        steps::enter(steps::Step::Find);
        let Some(before) = self.remembered_head(config, memory) else { return Ok(None) };
        let me = store.me();
        let block = Block {
            counter: memory.block.counter + 1,
            writer: me,
            actor: self.actor,
            operation: self.number & OPERATION_MASK,
            len: value.len() as u64,
            is_deleted: false,
            holder: holder(me),
            owner: memory.block.owner,
        };
        let class = if block.len == memory.block.len {
            memory.class
        } else {
            match block_class(&block, me) {
                Ok(class) => class,
                Err(_) => return Ok(None),
            }
        };
        // W4.
        steps::enter(steps::Step::Fill);
        const HEADER: usize = BLOCK_HEADER_LEN as usize;
        scratch[..HEADER].copy_from_slice(&block.encode());
        let (begin, rest) = if value.len() <= SHORT_LEN_MAX {
            scratch[HEADER..HEADER + value.len()].copy_from_slice(value);
            // Whole words: a part of one would have to be exchanged.
            (&scratch[..(HEADER + value.len()).next_multiple_of(8)], &[][..])
        } else {
            (&scratch[..HEADER], value)
        };
        let mut offsets = [0; HOMES_MAX];
        let mut is_filled = true;
        for (&member, slot) in config.homes.iter().zip(&mut offsets) {
            let Some(offset) = self.block_at_hand(member, class) else {
                is_filled = false;
                break;
            };
            *slot = offset;
            is_filled = job.put_directly(at, member, offset, begin)
                && (rest.is_empty() || job.put_directly(at, member, offset + value_start(block.len), rest));
            if !is_filled {
                break;
            }
        }
        // W5.
        let primary = config.primary;
        let mut head = Head::new(config.stamp, offsets[primary]);
        if config.homes.len() == 1 {
            head = head.stable();
        }
        steps::enter(steps::Step::Publish);
        let is_published = is_filled
            && job.swap_directly(at, config.homes[primary], memory.words[primary], before.0, head.0)
                == Some(true);
        if !is_published {
            for (&member, &offset) in config.homes.iter().zip(&offsets).filter(|(_, offset)| **offset != 0) {
                self.keep(member, class, offset);
            }
            return Ok(None);
        }
        // W6; W7 has nothing to look for, since all homes have an index.
        steps::enter(steps::Step::Install);
        let mut is_done = 1u64 << primary;
        for (home, &member) in config.homes.iter().enumerate() {
            let new = Head::new(config.stamp, offsets[home]);
            if home == primary {
                continue;
            }
            if job.swap_directly(at, member, memory.words[home], memory.heads[home].0, new.0) == Some(true) {
                is_done |= 1 << home;
            }
        }
        if is_done != (1 << config.homes.len()) - 1 {
            return self.finish_again(config, key, memory, before, is_done, &offsets, block, value);
        }
        // The version has happened. The blocks that it took the place of are this member's.
        for (home, &member) in config.homes.iter().enumerate() {
            let old = if home == primary { before } else { memory.heads[home] };
            if let Some(offset) = old.offset() {
                let _ = self.retire_block(member, offset, &memory.block, memory.class);
            }
            memory.heads[home] = if home == primary { head } else { Head::new(config.stamp, offsets[home]) };
        }
        (memory.block, memory.class) = (block, class);
        let _ = self.ring_waiters(config.homes[primary], key.partition);
        Ok(Some(block.version()))
    }

    /// The version is published, and some home was not as remembered: finishes it in the ordinary way.
    #[cold]
    #[allow(clippy::too_many_arguments, reason = "one call, out of the way of the hot path")]
    fn finish_again(
        &mut self,
        config: &Config,
        key: &KeyRef<'_>,
        memory: &mut Remembered,
        head: Head,
        is_done: u64,
        offsets: &[u64; HOMES_MAX],
        block: Block,
        value: &[u8],
    ) -> Step<Option<Version>> {
        let mut draft = Draft::new(block, value, block_class(&block, self.store.me())?);
        for (home, &member) in config.homes.iter().enumerate() {
            if is_done & 1 << home == 0 {
                draft.offsets[home] = offsets[home];
                continue;
            }
            let old = if home == config.primary { head } else { memory.heads[home] };
            if let Some(offset) = old.offset() {
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
            Err(Halt::Again) => {
                self.keep_unused(config, &draft);
                // Not happened: `Again`, and the caller begins anew.
                self.redo(key, &block)
            }
            Err(fail) => {
                if let Halt::Fail(StoreError::OutOfMemory { .. }) = &fail {
                    self.keep_unused(config, &draft);
                }
                Err(fail)
            }
        }
    }

    /// The head of a key at the primary, if it and all that the handle remembers are still so.
    #[inline(always)]
    fn remembered_head(&self, config: &Config, memory: &Remembered) -> Option<Head> {
        let (store, job, at) = (self.store, &self.store.job, self.epoch);
        if memory.stamp != config.stamp || !config.are_all_ready() || memory.block.is_deleted {
            return None;
        }
        for (home, &member) in config.homes.iter().enumerate() {
            let removals = job.load_directly(at, member, store.root(member) + REMOVALS)?;
            if removals != memory.removals[home] || memory.words[home] == 0 {
                return None;
            }
        }
        let primary = config.homes[config.primary];
        let (word, known) = (memory.words[config.primary], memory.heads[config.primary]);
        let offset = known.offset()?;
        let head = Head(job.load_directly(at, primary, word)?);
        // A block is used again, and its head looks the same: only the version tells.
        let is_same = head.stable() == known.stable()
            && job.load_directly(at, primary, offset)? == memory.block.counter;
        is_same.then_some(head)
    }
}

//! Arenas: the memory that each member lends for the pieces of others, in extents that are claimed
//! one-sidedly.
//!
//! An arena begins with a word for each extent: 0 if the extent is free, or the number of its
//! claimant plus 1. Only the claimant writes into the extent and gives it back. An extent of a dead
//! claimant that no descriptor names is free for any member: the dead commit no descriptor any
//! more. If a member dies between its claim and its commit, its extents come back in this way, when
//! a claim finds no free extents.

use super::options::{EXTENT_SLOTS, Options};
use super::{ImageResult, Inner};
use crate::engine::{self, Epoch, Error, MemberId, Operation};
use crate::job::Job;
use std::collections::HashSet;

/// The arena of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arena {
    offset: u64,
    extents: u32,
}

impl Arena {
    fn len(options: &Options) -> u64 {
        Self::head_len(options.extents()) + options.extents() * EXTENT_SLOTS * options.slot_len()
    }

    /// The length of the words of all extents, so that slots begin at a multiple of 64.
    fn head_len(extents: u64) -> u64 {
        (extents * 8).next_multiple_of(64)
    }

    /// Reserves this member's arena, with all extents free.
    pub(super) fn lend(job: &Job, options: &Options) -> engine::Result<Arena> {
        let offset = job.reserve(Self::len(options))?;
        let head = vec![0; Self::head_len(options.extents()) as usize];
        job.put(Epoch::ANY, job.me(), offset, &head)?;
        Ok(Arena { offset, extents: options.extents() as u32 })
    }

    pub(super) fn give_back(&self, job: &Job, options: &Options) {
        job.release(self.offset, Self::len(options));
    }

    /// What the other members are told: the place of the arena, and all options.
    pub(super) fn encode(&self, options: &Options) -> Vec<u8> {
        [&[1], &self.offset.to_le_bytes()[..], format!("{options:?}").as_bytes()].concat()
    }

    /// The arena of a member, or the reason why there is none.
    pub(super) fn decode(bytes: &[u8], options: &Options) -> Result<Arena, String> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match bytes.split_first() {
            Some((1, rest)) if rest.len() >= 8 => {
                let (offset, others) = rest.split_at(8);
                let own = format!("{options:?}");
                if text(others) != own {
                    return Err(format!("other options: {} there, {own} here", text(others)));
                }
                let offset = u64::from_le_bytes(offset.try_into().expect("8 bytes"));
                Ok(Arena { offset, extents: options.extents() as u32 })
            }
            Some((_, reason)) => Err(text(reason)),
            None => Err("an empty record".to_string()),
        }
    }

    fn word(&self, extent: u32) -> u64 {
        self.offset + u64::from(extent) * 8
    }

    /// Where a slot of an extent is, in the segment of the arena's member.
    fn slot(&self, extent: u32, slot: u64, options: &Options) -> u64 {
        let slots = u64::from(extent) * EXTENT_SLOTS + slot;
        self.offset + Self::head_len(u64::from(self.extents)) + slots * options.slot_len()
    }
}

impl Inner {
    /// Where a slot is at a holder; `None` if the holder has no such slot.
    pub(super) fn slot_offset(&self, holder: MemberId, extents: &[u32], slot: u32) -> Option<u64> {
        let arena = self.arenas.get(holder.index())?.as_ref()?;
        let extent = *extents.get((u64::from(slot) / EXTENT_SLOTS) as usize)?;
        (extent < arena.extents)
            .then(|| arena.slot(extent, u64::from(slot) % EXTENT_SLOTS, &self.options))
    }

    /// Claims so many extents at a holder. `None`, and nothing is claimed, if it has not so many.
    pub(super) fn claim(&self, holder: MemberId, count: usize) -> ImageResult<Option<Vec<u32>>> {
        let Some(arena) = self.arenas[holder.index()] else { return Ok(None) };
        let own = u64::from(self.job.me().0) + 1;
        let mut claimed = Vec::new();
        let result = self.claim_from(arena, holder, count, own, &mut claimed);
        if result.is_ok() && claimed.len() == count {
            return Ok(Some(claimed));
        }
        let given: Vec<(MemberId, u32)> = claimed.iter().map(|extent| (holder, *extent)).collect();
        self.give_back(&given);
        result.map(|()| None)
    }

    fn claim_from(
        &self,
        arena: Arena,
        holder: MemberId,
        count: usize,
        own: u64,
        claimed: &mut Vec<u32>,
    ) -> ImageResult<()> {
        let mut words = vec![0; arena.extents as usize * 8];
        self.job.get(Epoch::ANY, holder, arena.offset, &mut words)?;
        let claimants: Vec<u64> = words
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
            .collect();
        let swap = |extent: u32, from: u64, claimed: &mut Vec<u32>| -> ImageResult<()> {
            loop {
                // With the epoch of the view, so that the holder serves the dead no more.
                let at = self.job.epoch();
                match self.job.compare_and_swap(at, holder, arena.word(extent), from, own) {
                    Ok(found) if found == from => claimed.push(extent),
                    Ok(_) => {}
                    Err(Error::Stale { .. }) => continue,
                    Err(error) => return Err(error.into()),
                }
                return Ok(());
            }
        };
        for (extent, &claimant) in claimants.iter().enumerate() {
            if claimed.len() < count && claimant == 0 {
                swap(extent as u32, 0, claimed)?;
            }
        }
        let view = self.job.view();
        let is_left = |claimant: u64| {
            u32::try_from(claimant.wrapping_sub(1))
                .is_ok_and(|member| view.dead.contains(MemberId(member)))
        };
        let has_left = claimants.iter().any(|claimant| is_left(*claimant));
        if claimed.len() >= count || !has_left || self.job.is_serving_dead() {
            return Ok(());
        }
        let named: HashSet<(MemberId, u32)> = self
            .descriptors()?
            .iter()
            .flat_map(|(_, _, descriptor)| &descriptor.places)
            .flat_map(|place| place.extents.iter().map(|extent| (place.member, *extent)))
            .collect();
        for (extent, &claimant) in claimants.iter().enumerate() {
            let is_named = named.contains(&(holder, extent as u32));
            if claimed.len() < count && is_left(claimant) && !is_named {
                swap(extent as u32, claimant, claimed)?;
            }
        }
        Ok(())
    }

    /// Gives extents back that this member has claimed; returns those whose holders did not answer.
    pub(super) fn give_back(&self, extents: &[(MemberId, u32)]) -> Vec<(MemberId, u32)> {
        let own = u64::from(self.job.me().0) + 1;
        let mut operations = Vec::new();
        for &(holder, extent) in extents {
            let Some(arena) = self.arenas[holder.index()] else { continue };
            let offset = arena.word(extent);
            let swap = Operation::CompareAndSwap { offset, expected: own, new: 0 };
            operations.push(((holder, extent), self.job.start(Epoch::ANY, holder, swap)));
        }
        let until = self.job.now().after(self.job.time_limit());
        // A swap that was not answered may still happen, and a second swap then changes nothing, or
        // frees an extent that this member has claimed again: such extents are not tried again.
        self.wait_all(operations, until, |_, _| {}).into_iter().map(|(extent, _)| extent).collect()
    }
}

//! ReadHints for reads by key: which memory to fetch ahead.

use crate::engine::MemberId;
use crate::engine::mapped::{Direct, Memory};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where keys that were read by key were found, by their hash: worth fetching all at once, before
/// one place has told of the next, and no more than that. What is there is looked up all the same.
pub(in crate::store) struct ReadHints {
    /// For each the node and the block, as [`hint`] makes them; made when the first key is read.
    places: OnceLock<Box<[[AtomicU64; 2]]>>,
    count: usize,
}

/// The most keys for which there are hints: 4 MiB of them.
const HINTS_MAX: usize = 1 << 18;

/// A place in a member's memory, in one word.
#[inline(always)]
pub(in crate::store) fn hint(member: MemberId, offset: u64) -> u64 {
    u64::from(member.0) << 48 | offset >> 4
}

impl ReadHints {
    pub(in crate::store) fn new(expected_keys: usize) -> ReadHints {
        ReadHints {
            places: OnceLock::new(),
            count: expected_keys.next_power_of_two().clamp(64, HINTS_MAX),
        }
    }

    #[inline(always)]
    pub(in crate::store) fn prefetch<'a, D: Direct<'a>>(&self, direct: D, hash: u64) {
        let Some(places) = self.places.get() else { return };
        let [node, block] = &places[hash as usize & (places.len() - 1)];
        let (node, block) = (node.load(Ordering::Relaxed), block.load(Ordering::Relaxed));
        if let Some(reach) = direct.reach(MemberId((node >> 48) as u32)) {
            let offset = |hint: u64| (hint & ((1 << 48) - 1)) << 4;
            reach.prefetch(offset(node));
            reach.prefetch(offset(block));
            reach.prefetch(offset(block) + 64);
        }
    }

    #[inline(always)]
    pub(in crate::store) fn note(&self, hash: u64, member: MemberId, node: u64, block: u64) {
        let places = match self.places.get() {
            Some(places) => places,
            None => self.make(),
        };
        let found = &places[hash as usize & (places.len() - 1)];
        for (place, offset) in found.iter().zip([node, block]) {
            let hint = hint(member, offset);
            if place.load(Ordering::Relaxed) != hint {
                place.store(hint, Ordering::Relaxed);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn make(&self) -> &[[AtomicU64; 2]] {
        self.places.get_or_init(|| (0..self.count).map(|_| Default::default()).collect())
    }
}

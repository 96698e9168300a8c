//! Hints for reads by key: the memory that a read prefetches.

use crate::engine::MemberId;
use crate::engine::mapped::{Mapped, Memory};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The places at which keys were last found, by their hash. A read without a handle prefetches the
/// node and the block together, before the bucket has named the node and the node the block. A hint
/// is never trusted: the read looks the key up in any case.
///
/// The words are loaded and stored relaxed. A hint that is old, or of another key, costs a useless
/// prefetch and nothing else.
pub(in crate::store) struct ReadHints {
    /// For each hash the node and the block, as [`hint`] encodes them. Made when the first key is
    /// read.
    places: OnceLock<Box<[[AtomicU64; 2]]>>,
    count: usize,
}

/// The greatest number of keys with hints; the hints take 4 MiB then.
const HINTS_MAX: usize = 1 << 18;

/// A place in a member's memory, in a single word.
#[inline(always)]
pub(in crate::store::record) fn hint(member: MemberId, offset: u64) -> u64 {
    u64::from(member.0) << 48 | offset >> 4
}

impl ReadHints {
    /// Makes hints for about so many keys.
    pub(in crate::store) fn new(expected_keys: usize) -> ReadHints {
        ReadHints {
            places: OnceLock::new(),
            count: expected_keys.clamp(64, HINTS_MAX).next_power_of_two(),
        }
    }

    /// Prefetches the node and the block of the key with this hash.
    #[inline(always)]
    pub(in crate::store::record) fn prefetch<'a, D: Mapped<'a>>(&self, direct: D, hash: u64) {
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

    /// Records where a key was found. An unchanged word is not stored, so that its cache line stays
    /// shared between threads.
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

    /// Makes the table, at the first read by key.
    #[cold]
    #[inline(never)]
    fn make(&self) -> &[[AtomicU64; 2]] {
        self.places.get_or_init(|| (0..self.count).map(|_| Default::default()).collect())
    }
}

//! Hints for reads by key: the memory that a read prefetches.

use crate::engine::MemberId;
use crate::engine::mapped::{Mapped, Memory};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// For each hash the node and the block, as [`hint`] encodes them.
type Table = Box<[[AtomicU64; 2]]>;

/// The places at which keys were last found, by their hash. A read without a handle prefetches the
/// node and the block together, before the bucket has named the node and the node the block. A hint
/// is never trusted: the read looks the key up in any case.
///
/// The words are loaded and stored relaxed. A hint that is old, or of another key, costs a useless
/// prefetch and nothing else.
///
/// A table in which many hints have replaced hints of other keys is too small: the next table is
/// used from then on. Former tables stay, since other threads may still use them; each is a small
/// part of the next.
pub(in crate::store) struct ReadHints {
    /// The tables, each made when it is first used: the first when the first key is read.
    tables: [OnceLock<Table>; TABLES],
    /// The number of the table in use.
    used: AtomicUsize,
    /// About how many hints of the table in use have replaced hints of other keys.
    replaced: AtomicU64,
    /// The number of hints in the first table.
    count: usize,
}

/// The greatest number of keys with hints; the hints take 4 MiB then.
const HINTS_MAX: usize = 1 << 18;

/// The least number of hints in a table.
const HINTS_MIN: usize = 64;

/// How many times as many hints as a table has the next table.
const GROWTH: usize = 16;

/// The number of tables between the least and the greatest.
const TABLES: usize = 4;

/// A place in a member's memory, in a single word.
#[inline(always)]
pub(in crate::store::record) fn hint(member: MemberId, offset: u64) -> u64 {
    u64::from(member.0) << 48 | offset >> 4
}

impl ReadHints {
    /// Makes hints for about so many keys.
    pub(in crate::store) fn new(expected_keys: usize) -> ReadHints {
        ReadHints {
            tables: Default::default(),
            used: AtomicUsize::new(0),
            replaced: AtomicU64::new(0),
            count: expected_keys.clamp(HINTS_MIN, HINTS_MAX).next_power_of_two(),
        }
    }

    /// The table in use, if it was made.
    #[inline(always)]
    fn table(&self) -> Option<&Table> {
        self.tables.get(self.used.load(Ordering::Relaxed))?.get()
    }

    /// Prefetches the node and the block of the key with this hash.
    #[inline(always)]
    pub(in crate::store::record) fn prefetch<'a, D: Mapped<'a>>(&self, direct: D, hash: u64) {
        let Some(places) = self.table() else { return };
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
        let places = match self.table() {
            Some(places) => places,
            None => self.make(),
        };
        let [node_place, block_place] = &places[hash as usize & (places.len() - 1)];
        let [node, block] = [node, block].map(|offset| hint(member, offset));
        let before = node_place.load(Ordering::Relaxed);
        if before != node {
            node_place.store(node, Ordering::Relaxed);
            if before != 0 {
                self.count_replaced(places.len());
            }
        }
        if block_place.load(Ordering::Relaxed) != block {
            block_place.store(block, Ordering::Relaxed);
        }
    }

    /// Counts a hint of the table in use, which has `len` hints, that has replaced a hint of
    /// another key. Threads that count at once may lose counts, or pass over a table.
    #[cold]
    #[inline(never)]
    fn count_replaced(&self, len: usize) {
        let replaced = self.replaced.load(Ordering::Relaxed) + 1;
        self.replaced.store(replaced, Ordering::Relaxed);
        if replaced > 2 * len as u64 && len < HINTS_MAX {
            self.replaced.store(0, Ordering::Relaxed);
            let next = |used: usize| (used + 1 < TABLES).then_some(used + 1);
            let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        }
    }

    /// Makes the table in use.
    #[cold]
    #[inline(never)]
    fn make(&self) -> &Table {
        let number = self.used.load(Ordering::Relaxed).min(TABLES - 1);
        let count = self.count * GROWTH.pow(number as u32);
        self.tables[number]
            .get_or_init(|| (0..count.min(HINTS_MAX)).map(|_| Default::default()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hints of many more keys than expected have room after a while, and each key has its own.
    #[test]
    fn the_hints_of_many_keys_get_a_larger_table() {
        let hints = ReadHints::new(1);
        let len = || hints.table().map_or(0, |table| table.len());
        let hash = |key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        for key in 0..40 {
            hints.note(hash(key), MemberId(1), key << 6, key << 7);
        }
        assert_eq!(len(), HINTS_MIN);
        for _ in 0..5 {
            for key in 0..100_000 {
                hints.note(hash(key), MemberId(1), key << 6, key << 7);
            }
        }
        assert_eq!(len(), HINTS_MAX);
        for _ in 0..10 {
            (0..1_000_000).for_each(|key| hints.note(hash(key), MemberId(1), key << 6, 64));
        }
        assert_eq!(len(), HINTS_MAX, "not more");
    }
}

//! Which parts of this member's own segment are in use.
//!
//! Layers that need memory that others can reach reserve a range of their member's segment. Only the owner reserves
//! and releases, so this is plain bookkeeping in its process.

use std::collections::BTreeMap;

/// Ranges begin at multiples of this: a cache line, so that two of them never share one.
pub(crate) const ALIGNMENT: u64 = 64;

/// The free ranges below `end`, by their offset; neighbours are merged.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    free: BTreeMap<u64, u64>,
    end: u64,
}

impl Ranges {
    /// Takes the first free range that is long enough; `None` if there is none.
    pub(crate) fn take(&mut self, len: u64) -> Option<u64> {
        let len = len.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let (&offset, &free_len) = self.free.iter().find(|(_, free_len)| **free_len >= len)?;
        self.free.remove(&offset);
        if free_len > len {
            self.free.insert(offset + len, free_len - len);
        }
        Some(offset)
    }

    /// Gives back a range that was taken with this length.
    pub(crate) fn give(&mut self, offset: u64, len: u64) {
        let mut begin = offset;
        let mut end = offset + len.max(1).next_multiple_of(ALIGNMENT);
        if let Some((&before, &before_len)) = self.free.range(..begin).next_back()
            && before + before_len == begin
        {
            self.free.remove(&before);
            begin = before;
        }
        if let Some(after_len) = self.free.remove(&end) {
            end += after_len;
        }
        self.free.insert(begin, end - begin);
    }

    /// Makes the bytes up to `end` known.
    pub(crate) fn extend_to(&mut self, end: u64) {
        if end > self.end {
            let begin = std::mem::replace(&mut self.end, end);
            self.give(begin, end - begin);
        }
    }

    /// How long the segment must be so that `len` bytes are certainly free at its end.
    pub(crate) fn needed(&self, len: u64) -> Option<u64> {
        self.end.checked_add(len.max(1).checked_next_multiple_of(ALIGNMENT)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_apart_and_merge_again() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.take(1), None);
        ranges.extend_to(4096);
        let taken: Vec<u64> = (0..4).map(|_| ranges.take(1000).unwrap()).collect();
        assert_eq!(taken, [0, 1024, 2048, 3072]);
        assert_eq!(ranges.take(1), None);
        for &offset in [2048, 0, 3072, 1024].iter() {
            ranges.give(offset, 1000);
        }
        assert_eq!(ranges.take(4096), Some(0), "all merged into one");
        ranges.extend_to(8192);
        assert_eq!(ranges.take(4096), Some(4096));
        assert_eq!((ranges.take(u64::MAX), ranges.needed(u64::MAX)), (None, None));
    }
}

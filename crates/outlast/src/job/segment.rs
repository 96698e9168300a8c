//! Which parts of this member's own segment are in use.
//!
//! A layer that needs memory which other members can reach reserves a range of its own member's
//! segment. Only the owner of a segment reserves and releases ranges in it, so this is plain
//! bookkeeping in the owner's process, and gone when the owner dies.

use super::Job;
use crate::engine::{Error, Result};
use crate::sync::lock;
use std::collections::BTreeMap;

/// Ranges begin at multiples of this length, a cache line, so that no two ranges share a line.
const ALIGNMENT: u64 = 64;

/// The free ranges below `end`: the length of each by its offset. Adjacent ranges are merged.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    free: BTreeMap<u64, u64>,
    end: u64,
}

impl Job {
    /// Reserves `len` bytes of this member's own segment for a layer above, at a multiple of 64,
    /// and grows the segment if need be. The content of the bytes is unspecified.
    /// [`Error::OutOfMemory`] changes nothing.
    pub fn reserve(&self, len: u64) -> Result<u64> {
        // Refuses a forked child before it takes the lock, which it may find held for ever.
        self.segment_len(self.me())?;
        let too_long =
            || Error::OutOfMemory { wanted: len, reason: "no segment can be that long".into() };
        loop {
            let wanted = {
                let mut ranges = lock(&self.inner.ranges);
                if let Some(offset) = ranges.take(len) {
                    return Ok(offset);
                }
                ranges.needed(len).ok_or_else(too_long)?
            };
            // In larger steps, so that many small reservations make few calls; by the exact length
            // where a larger step is too much.
            let rounded = wanted.checked_next_multiple_of(1 << 16).ok_or_else(too_long)?;
            self.grow(rounded).or_else(|_| self.grow(wanted))?;
            let len = self.segment_len(self.me())?;
            lock(&self.inner.ranges).extend_to(len);
        }
    }

    /// How many bytes a single call of [`Job::reserve`] can reserve at present.
    pub fn reservable(&self) -> Result<u64> {
        let limit = self.segment_limit()?;
        Ok(lock(&self.inner.ranges).longest(limit))
    }

    /// Gives back a range that [`Job::reserve`] gave, with the length that it was reserved with, or
    /// a part of it that begins and ends at multiples of 64.
    pub fn release(&self, offset: u64, len: u64) {
        lock(&self.inner.ranges).give(offset, len);
    }
}

impl Ranges {
    /// Takes the first free range that is long enough, if there is any.
    fn take(&mut self, len: u64) -> Option<u64> {
        let len = len.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let (&offset, &free_len) = self.free.iter().find(|(_, free_len)| **free_len >= len)?;
        self.free.remove(&offset);
        if free_len > len {
            self.free.insert(offset + len, free_len - len);
        }
        Some(offset)
    }

    /// Gives back a range that was taken with this length.
    fn give(&mut self, offset: u64, len: u64) {
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

    /// Adds the bytes up to `end`, which are new in the segment.
    fn extend_to(&mut self, end: u64) {
        if end > self.end {
            let begin = std::mem::replace(&mut self.end, end);
            self.give(begin, end - begin);
        }
    }

    /// How long a range can be if the segment grows up to `limit`.
    fn longest(&self, limit: u64) -> u64 {
        // A range at the end does not count in full: `needed` asks for a new range behind it.
        let new = limit.saturating_sub(self.end) / ALIGNMENT * ALIGNMENT;
        self.free.values().copied().fold(new, u64::max)
    }

    /// How long the segment must be so that `len` bytes are certainly free at its end.
    fn needed(&self, len: u64) -> Option<u64> {
        self.end.checked_add(len.max(1).checked_next_multiple_of(ALIGNMENT)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_merge_when_given_back() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.take(1), None);
        ranges.extend_to(4096);
        let taken: Vec<u64> = (0..4).map(|_| ranges.take(1000).unwrap()).collect();
        assert_eq!(taken, [0, 1024, 2048, 3072]);
        assert_eq!(ranges.take(1), None);
        for &offset in [2048, 0, 3072, 1024].iter() {
            ranges.give(offset, 1000);
        }
        assert_eq!(ranges.take(4096), Some(0), "all ranges are merged");
        ranges.extend_to(8192);
        assert_eq!(ranges.take(4096), Some(4096));
        assert_eq!((ranges.take(u64::MAX), ranges.needed(u64::MAX)), (None, None));
    }
}

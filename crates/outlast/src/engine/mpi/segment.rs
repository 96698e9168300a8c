//! This member's segment: plain memory, touched only by its owner, for itself and on request of the others.

use crate::engine::{Error, MemberId, Operation, Result};

/// The bytes, and how many there may be.
pub(super) struct Segment {
    owner: MemberId,
    bytes: Vec<u8>,
    limit: u64,
}

impl Segment {
    pub(super) fn new(owner: MemberId, limit: u64) -> Segment {
        Segment { owner, bytes: Vec::new(), limit }
    }

    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Makes the segment at least `len` bytes long.
    pub(super) fn grow(&mut self, len: u64) -> Result<()> {
        let out_of_memory = |reason: String| Error::OutOfMemory { wanted: len, reason };
        if len > self.limit {
            return Err(out_of_memory(format!(
                "this member's limit is {} bytes; raise it with JoinOptions::segment_limit",
                self.limit
            )));
        }
        let wanted = usize::try_from(len).map_err(|_| out_of_memory("no address space".into()))?;
        if wanted > self.bytes.len() {
            let more = wanted - self.bytes.len();
            self.bytes.try_reserve_exact(more).map_err(|error| out_of_memory(error.to_string()))?;
            self.bytes.resize(wanted, 0);
        }
        Ok(())
    }

    /// Checks a range against the segment as it is now.
    pub(super) fn check(&self, offset: u64, len: u64) -> Result<()> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        Operation::Get { offset, len }.check(self.owner, self.len())
    }

    /// Writes a range that was checked.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        self.bytes[offset as usize..][..data.len()].copy_from_slice(data);
    }

    /// A range that was checked.
    pub(super) fn read(&self, offset: u64, len: usize) -> &[u8] {
        &self.bytes[offset as usize..][..len]
    }

    /// Replaces a word that was checked by what `change` makes of it, if anything; returns what was there.
    pub(super) fn update(&mut self, offset: u64, change: impl FnOnce(u64) -> Option<u64>) -> u64 {
        let word: &mut [u8; 8] = (&mut self.bytes[offset as usize..][..8]).try_into().expect("eight bytes");
        let before = u64::from_ne_bytes(*word);
        if let Some(after) = change(before) {
            *word = after.to_ne_bytes();
        }
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_keeps_the_content_and_stops_at_the_limit() {
        let mut segment = Segment::new(MemberId(1), 100);
        segment.grow(10).expect("below the limit");
        segment.write(0, &[7; 10]);
        segment.grow(100).expect("at the limit");
        segment.grow(50).expect("never shrinks");
        assert_eq!((segment.len(), segment.read(9, 2)), (100, &[7, 0][..]));
        assert!(matches!(segment.grow(101), Err(Error::OutOfMemory { wanted: 101, .. })));
        assert!(segment.check(96, 4).is_ok() && segment.check(96, 5).is_err());
        assert!(segment.check(u64::MAX, u64::MAX).is_err());
    }
}

//! The encoding of messages between communicators: little-endian, without padding, each field
//! checked when it is read.
//!
//! Every message begins with its kind and the identity of its communicator, or, for [`PART`], with
//! its kind and the number of the long message.

use super::group::RankSet;

/// A message of the program.
pub(crate) const DATA: u8 = 1;
/// A step of a collective operation.
pub(crate) const COLLECTIVE: u8 = 2;
/// The members called different collective operations.
pub(crate) const ABORT: u8 = 3;
/// The sender has left a collective operation because of members that left the job.
pub(crate) const BROKEN: u8 = 11;
/// A step of an agreement.
pub(crate) const AGREEMENT: u8 = 4;
/// The communicator is revoked.
pub(crate) const REVOKE: u8 = 5;
/// The receiver's wait is to end.
pub(crate) const INTERRUPT: u8 = 6;
/// Carries only what every message carries: its sender's knowledge of deaths.
pub(crate) const NOTIFY: u8 = 7;
/// A free notice: a member, and all ranks below it in the tree, have freed the communicator.
pub(crate) const FREED: u8 = 8;
/// A free notice: all members have freed the communicator.
pub(crate) const GONE: u8 = 9;
/// A part of a message that is longer than the engine takes: its number, which part it is, and the
/// bytes.
pub(crate) const PART: u8 = 10;
/// What the sender has consumed of the receiver's messages.
pub(crate) const CREDIT: u8 = 12;

/// The length of the kind and the identity at the beginning of a message.
pub(crate) const HEADER_LEN: usize = 1 + 8;

/// Writes a message.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    /// A message of this kind for this communicator, with room for `len` further bytes.
    pub(crate) fn new(kind: u8, communicator: u64, len: usize) -> Writer {
        let mut bytes = Vec::with_capacity(HEADER_LEN + len);
        bytes.push(kind);
        bytes.extend_from_slice(&communicator.to_le_bytes());
        Writer(bytes)
    }

    pub(crate) fn u8(&mut self, value: u8) -> &mut Writer {
        self.0.push(value);
        self
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Writer {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Writer {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn set(&mut self, set: &RankSet) -> &mut Writer {
        self.u8(set.words().len() as u8);
        for &word in set.words() {
            self.u64(word);
        }
        self
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Writer {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }
}

/// Reads a message. Every call returns `None` once the message turns out to be too short.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    /// Reads a message from after its kind and the identity of its communicator.
    pub(crate) fn after_header(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes.get(HEADER_LEN..).unwrap_or_default())
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*first))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*first))
    }

    pub(crate) fn set(&mut self) -> Option<RankSet> {
        let len = self.u8()? as usize;
        let words: Option<Vec<u64>> = (0..len).map(|_| self.u64()).collect();
        Some(RankSet::from_words(words?))
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(first)
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let set: RankSet = [0, 70].into_iter().collect();
        let mut writer = Writer::new(DATA, 7, 0);
        writer.u8(3).u32(4).u64(5).set(&set).bytes(b"xyz");
        let bytes = writer.done();
        let mut reader = Reader::new(&bytes);
        assert_eq!((reader.u8(), reader.u64()), (Some(DATA), Some(7)));
        assert_eq!((reader.u8(), reader.u32(), reader.u64()), (Some(3), Some(4), Some(5)));
        assert_eq!(reader.set(), Some(set));
        assert_eq!(reader.bytes(2), Some(&b"xy"[..]));
        assert_eq!(reader.rest(), b"z");
    }

    /// Reading a truncated message neither panics nor reads beyond its end.
    #[test]
    fn truncated_messages_are_detected() {
        let mut writer = Writer::new(AGREEMENT, 1, 0);
        writer.set(&[5, 200].into_iter().collect());
        let bytes = writer.done();
        for len in 0..bytes.len() {
            let mut reader = Reader::new(&bytes[..len]);
            let read = reader.u8().and_then(|_| reader.u64()).and_then(|_| reader.set());
            assert_eq!(read, None, "cut off after {len} bytes");
        }
    }
}

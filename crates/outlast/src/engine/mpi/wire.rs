//! The format of a frame between members: a fixed header, the sender's dead if the receiver may not
//! know them, and a payload.
//!
//! ```text
//! byte 0  kind
//!      1  detail: a port, or how a request ended
//!    4..8 words of each of the two sets behind the header: the dead, and the dead that left
//!   8..16 id of the operation
//!  16..24 epoch: what the operation belongs to, or the sender's
//!  24..48 three words, by kind
//!  48..   dead, left, payload
//! ```
//! Numbers are little-endian. Frames from a member to another arrive in order, so a frame carries
//! the sets only if they have changed since the last frame.

use crate::engine::{COMPOUND_STEP_LEN, CompoundStep, MemberId, MemberSet};

/// The length of the header.
pub(super) const HEADER_LEN: usize = 48;

/// The kind of a frame. The three words of the header depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// Introduces the sender. Payload: its failure domain.
    Hello = 1,
    /// A piece of a put. Words: offset, length of the whole put, where the piece begins.
    Put,
    /// Requests a piece of a range. Words: offset, length of the whole range, where the piece
    /// begins.
    Get,
    /// Requests a word. Words: offset.
    Load,
    /// Words: offset, expected word, new word.
    CompareAndSwap,
    /// Words: offset, 0, delta.
    FetchAdd,
    /// Requests the length of the segment.
    SegmentLen,
    /// A compound operation. Payload: [`encode_steps`].
    Compound,
    /// The reply to a request. The detail is an [`Ending`]. Words: the word or the segment's
    /// length; for a get the length of the whole range, otherwise 0; where the piece begins, or how
    /// many steps of a compound operation were done.
    Reply,
    /// A piece of a message. Words: 0, length of the whole message, where the piece begins. The
    /// detail is the port.
    Message,
    /// The sender of this frame has consumed messages. Words: their bytes. The detail is the port.
    Credit,
    /// Rings the bell.
    Ring,
    /// The sender leaves. Answered by `LeaveAck`.
    Leave,
    /// Acknowledges `Leave`.
    LeaveAck,
    /// Carries nothing but the deaths: a member of the sender's node has died, and is in the node's
    /// death log.
    Deaths,
    /// A member is to be killed: the receiver, or a local member of it. Words: the member.
    Fence,
    /// The sender of this frame has taken puts. Words: their bytes.
    Taken,
    /// Asks for a lease grant. Words: the sender's time, the epoch of its node.
    LeaseRequest,
    /// Grants a lease: the receiver's node has not quarantined the requester. Words: as in the
    /// request.
    LeaseGrant,
    /// The members that the sender's node has quarantined. Payload: a set.
    Quarantine,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        const ALL: [Kind; 20] = [
            Kind::Hello,
            Kind::Put,
            Kind::Get,
            Kind::Load,
            Kind::CompareAndSwap,
            Kind::FetchAdd,
            Kind::SegmentLen,
            Kind::Compound,
            Kind::Reply,
            Kind::Message,
            Kind::Credit,
            Kind::Ring,
            Kind::Leave,
            Kind::LeaveAck,
            Kind::Deaths,
            Kind::Fence,
            Kind::Taken,
            Kind::LeaseRequest,
            Kind::LeaseGrant,
            Kind::Quarantine,
        ];
        ALL.get(usize::from(byte).checked_sub(1)?).copied()
    }
}

/// How a request has ended at its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Ending {
    /// The operation was executed.
    Done = 0,
    /// The request belongs to an older view. Nothing was changed.
    Stale = 1,
    /// The range is not inside the segment. Nothing was changed.
    OutOfRange = 2,
}

impl Ending {
    pub(super) fn from_byte(byte: u8) -> Option<Ending> {
        [Ending::Done, Ending::Stale, Ending::OutOfRange].get(usize::from(byte)).copied()
    }
}

/// The header of a frame, without the lengths of the sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) detail: u8,
    pub(super) id: u64,
    pub(super) epoch: u64,
    pub(super) words: [u64; 3],
}

impl Header {
    pub(super) fn new(kind: Kind, id: u64, epoch: u64, words: [u64; 3]) -> Header {
        Header { kind, detail: 0, id, epoch, words }
    }

    pub(super) fn detail(mut self, detail: u8) -> Header {
        self.detail = detail;
        self
    }
}

/// The dead, and the dead that have left.
pub(super) type Deaths = (MemberSet, MemberSet);

/// The most bytes that the sets of a frame may take.
pub(super) fn deaths_len_max(members: usize) -> usize {
    2 * members.div_ceil(64) * 8
}

/// Encodes a frame.
pub(super) fn encode(
    header: Header,
    deaths: Option<&Deaths>,
    payload: &[u8],
    members: usize,
) -> Vec<u8> {
    let set_words = if deaths.is_some() { members.div_ceil(64) } else { 0 };
    let mut frame = Vec::with_capacity(HEADER_LEN + 16 * set_words + payload.len());
    frame.extend([header.kind as u8, header.detail, 0, 0]);
    frame.extend((set_words as u32).to_le_bytes());
    for word in [header.id, header.epoch, header.words[0], header.words[1], header.words[2]] {
        frame.extend(word.to_le_bytes());
    }
    if let Some((dead, left)) = deaths {
        frame.extend(encode_set(dead, members));
        frame.extend(encode_set(left, members));
    }
    frame.extend(payload);
    frame
}

/// Encodes a set with a bit for each of `members` members.
pub(super) fn encode_set(set: &MemberSet, members: usize) -> Vec<u8> {
    let mut words = vec![0u64; members.div_ceil(64)];
    for member in set.iter() {
        words[member.index() / 64] |= 1 << (member.index() % 64);
    }
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Decodes a set.
pub(super) fn decode_set(bytes: &[u8]) -> MemberSet {
    let mut members = MemberSet::new();
    for (index, bytes) in bytes.chunks_exact(8).enumerate() {
        let word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        for bit in (0..64).filter(|bit| word & (1 << bit) != 0) {
            members.insert(MemberId((index * 64) as u32 + bit));
        }
    }
    members
}

/// Encodes the steps of a compound operation: for each step the number of its kind, an offset and
/// two words. The first word of a put is the length of the bytes that follow.
pub(super) fn encode_steps(steps: &[CompoundStep<'_>]) -> Vec<u8> {
    let data_len: usize = steps.iter().map(|step| step.data().len()).sum();
    let mut bytes = Vec::with_capacity(steps.len() * COMPOUND_STEP_LEN + data_len);
    for step in steps {
        let (words, data) = match *step {
            CompoundStep::Expect { offset, word } => ([0, offset, word, 0], &[][..]),
            CompoundStep::Put { offset, data } => ([1, offset, data.len() as u64, 0], data),
            CompoundStep::Swap { offset, expected, new } => ([2, offset, expected, new], &[][..]),
            CompoundStep::Load { offset } => ([3, offset, 0, 0], &[][..]),
        };
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(data);
    }
    bytes
}

/// Decodes the steps of a compound operation; `None` if they are malformed, which would be a defect
/// of the sender.
pub(super) fn decode_steps(mut bytes: &[u8]) -> Option<Vec<CompoundStep<'_>>> {
    let mut steps = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(COMPOUND_STEP_LEN)?;
        let word = |at: usize| {
            u64::from_le_bytes(head[8 * at..8 * at + 8].try_into().expect("eight bytes"))
        };
        let offset = word(1);
        bytes = rest;
        steps.push(match word(0) {
            0 => CompoundStep::Expect { offset, word: word(2) },
            1 => {
                let (data, rest) = bytes.split_at_checked(usize::try_from(word(2)).ok()?)?;
                bytes = rest;
                CompoundStep::Put { offset, data }
            }
            2 => CompoundStep::Swap { offset, expected: word(2), new: word(3) },
            3 => CompoundStep::Load { offset },
            _ => return None,
        });
    }
    Some(steps)
}

/// Decodes a frame; `None` if it is malformed, which would be a defect of the sender.
pub(super) fn decode(frame: &[u8]) -> Option<(Header, Option<Deaths>, &[u8])> {
    let (head, mut rest) = frame.split_at_checked(HEADER_LEN)?;
    let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
    let header = Header {
        kind: Kind::from_byte(head[0])?,
        detail: head[1],
        id: word(8),
        epoch: word(16),
        words: [word(24), word(32), word(40)],
    };
    let set_words = u32::from_le_bytes(head[4..8].try_into().expect("four bytes")) as usize;
    if set_words == 0 {
        return Some((header, None, rest));
    }
    let mut take_set = || {
        let (set, after) = rest.split_at_checked(set_words * 8)?;
        rest = after;
        Some(decode_set(set))
    };
    let deaths = (take_set()?, take_set()?);
    Some((header, Some(deaths), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_encoding() {
        let header = Header::new(Kind::CompareAndSwap, 7, 3, [1, 2, u64::MAX]).detail(2);
        let deaths: Deaths = (
            [0, 63, 64, 129].map(MemberId).into_iter().collect(),
            [MemberId(64)].into_iter().collect(),
        );
        for deaths in [None, Some(deaths)] {
            let frame = encode(header, deaths.as_ref(), b"payload", 130);
            assert!(frame.len() <= HEADER_LEN + deaths_len_max(130) + 7);
            assert_eq!(decode(&frame), Some((header, deaths, &b"payload"[..])));
        }
    }

    #[test]
    fn compound_steps_survive_encoding() {
        let steps = [
            CompoundStep::Expect { offset: 8, word: u64::MAX },
            CompoundStep::Put { offset: 16, data: b"odd" },
            CompoundStep::Put { offset: 16, data: b"" },
            CompoundStep::Swap { offset: 24, expected: 1, new: 2 },
            CompoundStep::Load { offset: 32 },
        ];
        let bytes = encode_steps(&steps);
        assert_eq!(decode_steps(&bytes), Some(steps.to_vec()));
        let whole =
            (0..=steps.len()).map(|count| encode_steps(&steps[..count]).len()).collect::<Vec<_>>();
        for len in (0..bytes.len()).filter(|len| !whole.contains(len)) {
            assert_eq!(decode_steps(&bytes[..len]), None, "cut to {len} bytes");
        }
        let unknown = [9u64, 0, 0, 0].map(u64::to_le_bytes).concat();
        assert_eq!(decode_steps(&unknown), None);
    }

    #[test]
    fn malformed_frames_are_refused() {
        let frame =
            encode(Header::new(Kind::Ring, 0, 0, [0; 3]), Some(&Default::default()), b"", 70);
        assert!(decode(&frame).is_some());
        for len in 0..frame.len() {
            assert_eq!(decode(&frame[..len]), None, "cut to {len} bytes");
        }
        let mut unknown = frame.clone();
        unknown[0] = 99;
        assert_eq!(decode(&unknown), None);
    }
}

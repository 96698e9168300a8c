//! The layout of the store's data in a member's segment. docs/segment-layout.md shows it byte by
//! byte.
//!
//! Each member has a *root*: its header, its participants, its free lists, an entry for each
//! partition, and its table of pins. A member tells the offset of its root to all other members
//! when the store is opened. Everything else is blocks of size classes. An index node holds a key
//! and its head word. A value block holds a single version of a value.

use crate::engine::MemberId;
use crate::store::value::Version;

/// How many participants a member has: how many operations it may have in flight at once.
pub(in crate::store) const PARTICIPANTS: usize = 64;

/// The length of a participant: a cache line of its own.
const PARTICIPANT_LEN: u64 = 64;

/// The first word of a root: how many participants were ever used and, in the upper half, how many
/// slots of the pin table were. A member that waits for a grace period reads only these
/// participants and slots.
pub(in crate::store) const PARTICIPANTS_USED: u64 = 0;

/// The bit of [`PARTICIPANTS_USED`] at which the number of pin slots begins.
pub(in crate::store) const PINS_SHIFT: u32 = 32;

/// The removal count: how often this member has unlinked records from its index. It is raised
/// before the memory of the records can be reused.
pub(in crate::store) const REMOVALS: u64 = 8;

/// The straggler word: odd while a straggler of this member may exist, that is a request that was
/// not answered in time and may still execute. See `operation/stragglers.rs`.
pub(in crate::store) const STRAGGLERS: u64 = 16;

/// The word that is set to [`Root::magic`] when the root is complete.
pub(in crate::store) const ROOT_MAGIC: u64 = 24;

const HEADER_LEN: u64 = 64;

/// The operation counter of a participant: odd while an operation is in flight.
pub(in crate::store) const PARTICIPANT_COUNTER: u64 = 0;

/// The outcome word of a participant: the number of its last operation that a helper found to have
/// happened.
pub(in crate::store) const PARTICIPANT_OUTCOME: u64 = 8;

/// How many versions a member may have pinned at once.
pub(in crate::store) const PINS: usize = 64;

/// The words of a pin: where the blocks of its version are.
pub(in crate::store) const PIN_WORDS: usize = 16;

/// How many size classes there are: four for each doubling, from 64 bytes to beyond 2 GiB.
pub(in crate::store) const CLASSES: usize = 104;

/// An additional class for tombstones alone, so that keys can be deleted when there is no room for
/// anything else.
pub(in crate::store) const TOMBSTONES: usize = CLASSES;

/// The number of free lists.
const STACKS: usize = CLASSES + 1;

const CLASS_LEN: u64 = 64;

const PARTITION_LEN: u64 = 64;

/// The state word: a `State` of `head.rs`.
pub(in crate::store) const PARTITION_STATE: u64 = 0;

/// The waiter word: a bit for each member that waits for changes, by its number modulo 40, and in
/// the upper bits how often a waiter was added.
pub(in crate::store) const PARTITION_WAITERS: u64 = 8;

/// The version floor: no removed record had a version with a greater counter.
pub(in crate::store) const PARTITION_FLOOR: u64 = 16;

/// The offset of the buckets. Their number is a power of two.
pub(in crate::store) const PARTITION_BUCKETS: u64 = 24;

/// The offsets inside a root.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Root {
    pub(in crate::store) partitions: usize,
}

impl Root {
    pub(in crate::store) fn len(self) -> u64 {
        self.pin(PINS)
    }

    /// The value of the root magic. By it a salvager finds the root of a member that died before it
    /// could tell the offset.
    /// `opening` tells the openings of all stores of the job apart; it is 0 for the first opening
    /// of the store without a name.
    pub(in crate::store) fn magic(self, buckets: usize, opening: u64) -> u64 {
        0x6f75_746c_6173_7421 ^ (self.partitions as u64) << 32 ^ buckets as u64 ^ opening
    }

    pub(in crate::store) fn participant(self, participant: usize) -> u64 {
        HEADER_LEN + participant as u64 * PARTICIPANT_LEN
    }

    /// The offset of a slot of the pin table.
    pub(in crate::store) fn pin(self, slot: usize) -> u64 {
        self.partition(self.partitions) + (slot * PIN_WORDS * 8) as u64
    }

    /// The offset of the word that names the top of a class's free list.
    pub(in crate::store) fn stack(self, class: usize) -> u64 {
        self.participant(PARTICIPANTS) + class as u64 * CLASS_LEN
    }

    pub(in crate::store) fn partition(self, partition: usize) -> u64 {
        self.stack(STACKS) + partition as u64 * PARTITION_LEN
    }
}

/// The size of the blocks of a class in bytes: a multiple of 16, and of 64 from 256 bytes on.
pub(in crate::store) fn class_size(class: usize) -> u64 {
    if class == TOMBSTONES {
        return 64;
    }
    (64 << (class / 4)) + (class as u64 % 4) * (16 << (class / 4))
}

/// The smallest class with blocks of at least `len` bytes; `None` beyond the largest class.
pub(in crate::store) fn class_of(len: u64) -> Option<usize> {
    // First the doubling, then the quarter inside it, rounded up.
    let doubling = (len.max(64) / 64).ilog2();
    let quarter = (len.max(64) - (64 << doubling)).div_ceil(16 << doubling);
    let class = doubling as usize * 4 + quarter as usize;
    (class < CLASSES).then_some(class)
}

/// An index node: the offset of the next node, the head word, `hash << 32 | key length << 16 |
/// holder`, and the key. This is the offset of the first of these words.
pub(in crate::store) const NODE_NEXT: u64 = 0;

pub(in crate::store) const NODE_HEAD: u64 = 8;

pub(in crate::store) const NODE_WORD: u64 = 16;

pub(in crate::store) const NODE_KEY: u64 = 24;

/// The length of a value block's header, four words: the version counter (in a free block, the
/// offset of the next free block); the writer; length, flags and holder; checksum and owner of the
/// key.
pub(in crate::store) const BLOCK_HEADER_LEN: u64 = 32;

/// The word that names the *holder* in its lower 16 bits, as its number plus 1. It lies at this
/// offset in free blocks, value blocks and nodes alike.
pub(in crate::store) const BLOCK_HOLDER: u64 = 16;

/// The bits of the word at [`BLOCK_HOLDER`] that name the holder.
pub(in crate::store) const HOLDER_MASK: u64 = 0xffff;

/// The holder bits for a member. The holder of a block is the member that may reuse the block when
/// no head word names it. 0 means that no member holds the block: it is on the free list of its
/// replica.
pub(in crate::store) fn holder(member: MemberId) -> u64 {
    u64::from(member.0) + 1
}

/// The offset of the value in its block: behind the header, and for large values at a multiple of
/// 64, so that copying is fast.
pub(in crate::store) fn value_start(value_len: u64) -> u64 {
    if value_len >= 512 { 64 } else { BLOCK_HEADER_LEN }
}

/// The kind of a value block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Kind {
    /// A version: the block holds the value of the key.
    Plain = 0,
    /// The key is a part of an undecided transaction: the block holds the old value and the new
    /// value.
    Provisional = 1,
    /// A transaction was aborted: the block holds the version before it, with the number of that
    /// version.
    Restored = 2,
    /// The value is lost, since it was damaged when it was salvaged. Calls on the key return an
    /// error until the loss is accepted.
    Lost = 3,
}

/// The header of a value block, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Block {
    pub(in crate::store) counter: u64,
    /// The member that wrote the version.
    pub(in crate::store) writer: MemberId,
    /// The participant of that member through which the write ran.
    pub(in crate::store) participant: usize,
    /// The lower 46 bits of that participant's operation number.
    pub(in crate::store) operation: u64,
    pub(in crate::store) len: u64,
    pub(in crate::store) is_deleted: bool,
    /// Kinds other than plain belong to transactions and to salvage.
    pub(in crate::store) kind: Kind,
    /// The holder bits; see [`BLOCK_HOLDER`].
    pub(in crate::store) holder: u64,
    /// The member that owns the key.
    pub(in crate::store) owner: MemberId,
    /// A checksum of 48 bits, see `record/checksum.rs`; 0 without checksums.
    pub(in crate::store) checksum: u64,
}

pub(in crate::store) const OPERATION_MASK: u64 = (1 << 46) - 1;

const LEN_MASK: u64 = (1 << 40) - 1;

const DELETED: u64 = 1 << 63;

const KIND_SHIFT: u32 = 61;

impl Block {
    pub(in crate::store) fn version(&self) -> Version {
        Version { counter: self.counter, writer: self.writer }
    }

    /// The identity of the write that made the version.
    pub(in crate::store) fn identity(&self) -> (u64, MemberId, usize, u64) {
        (self.counter, self.writer, self.participant, self.operation)
    }

    #[inline(always)]
    pub(in crate::store) fn words(&self) -> [u64; BLOCK_HEADER_LEN as usize / 8] {
        [
            self.counter,
            self.operation << 18 | (self.participant as u64) << 12 | u64::from(self.writer.0),
            self.length_word(),
            self.checksum << 16 | u64::from(self.owner.0),
        ]
    }

    #[inline]
    pub(in crate::store) fn encode(&self) -> [u8; BLOCK_HEADER_LEN as usize] {
        let mut bytes = [0; BLOCK_HEADER_LEN as usize];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.words()) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// The word at [`BLOCK_HOLDER`].
    pub(in crate::store) fn length_word(&self) -> u64 {
        (if self.is_deleted { DELETED } else { 0 })
            | (self.kind as u64) << KIND_SHIFT
            | (self.len & LEN_MASK) << 16
            | self.holder
    }

    #[inline]
    pub(in crate::store) fn decode(bytes: &[u8; BLOCK_HEADER_LEN as usize]) -> Block {
        let word = |index: usize| {
            u64::from_ne_bytes(bytes[index * 8..index * 8 + 8].try_into().expect("8 bytes"))
        };
        Block::from_words(std::array::from_fn(word))
    }

    #[inline(always)]
    pub(in crate::store) fn from_words(words: [u64; BLOCK_HEADER_LEN as usize / 8]) -> Block {
        Block {
            counter: words[0],
            writer: MemberId(words[1] as u32 & 0xfff),
            participant: (words[1] >> 12) as usize & 63,
            operation: words[1] >> 18,
            len: words[2] >> 16 & LEN_MASK,
            is_deleted: words[2] & DELETED != 0,
            kind: match words[2] >> KIND_SHIFT & 3 {
                0 => Kind::Plain,
                1 => Kind::Provisional,
                2 => Kind::Restored,
                _ => Kind::Lost,
            },
            holder: words[2] & HOLDER_MASK,
            owner: MemberId(words[3] as u32 & 0xffff),
            checksum: words[3] >> 16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_gets_the_smallest_sufficient_class() {
        for len in (0..5000).chain([1 << 20, (1 << 20) + 1, 1 << 30, (1 << 30) + 64]) {
            let class = class_of(len).unwrap();
            assert!(class_size(class) >= len && class_size(class).is_multiple_of(16));
            assert!(
                class == 0 || class_size(class - 1) < len.max(64) || class_size(class - 1) < 64,
                "{len}"
            );
        }
        assert_eq!(class_of(u64::MAX), None);
        assert!(class_size(CLASSES - 1) > 2 << 30);
    }

    #[test]
    fn a_block_header_survives_encoding() {
        let block = Block {
            counter: 1 << 50,
            writer: MemberId(4095),
            participant: 63,
            operation: OPERATION_MASK,
            len: (1 << 40) - 1,
            is_deleted: true,
            kind: Kind::Plain,
            holder: 4096,
            owner: MemberId(17),
            checksum: (1 << 48) - 3,
        };
        for kind in [Kind::Plain, Kind::Provisional, Kind::Restored] {
            let block = Block { kind, ..block };
            assert_eq!(Block::decode(&block.encode()), block);
        }
    }

    /// docs/segment-layout.md has the numbers of the code.
    #[test]
    fn the_documentation_has_the_right_numbers() {
        let page = include_str!("../../../../../docs/segment-layout.md");
        let root = Root { partitions: 1 };
        let rows = [
            ("header", 0, 64),
            (
                "participants, 64 of them",
                root.participant(0),
                root.participant(1) - root.participant(0),
            ),
            (
                "free lists, one for each of 104 classes and one for tombstones",
                root.stack(0),
                root.stack(1) - root.stack(0),
            ),
            ("partitions", root.partition(0), root.partition(1) - root.partition(0)),
            ("pins, 64 of them, after one partition", root.pin(0), root.pin(1) - root.pin(0)),
        ];
        assert_eq!((PARTICIPANTS, CLASSES), (64, 104));
        for (name, offset, len) in rows {
            let row = format!("| {name} | {offset} | {len}");
            assert!(page.contains(&row), "docs/segment-layout.md lacks `{row}`");
        }
        let words = [
            ("header: participants used", PARTICIPANTS_USED),
            ("header: removals", REMOVALS),
            ("header: straggler", STRAGGLERS),
            ("header: magic", ROOT_MAGIC),
            ("participant: counter", PARTICIPANT_COUNTER),
            ("participant: outcome", PARTICIPANT_OUTCOME),
            ("partition: state", PARTITION_STATE),
            ("partition: waiters", PARTITION_WAITERS),
            ("partition: floor", PARTITION_FLOOR),
            ("partition: buckets", PARTITION_BUCKETS),
            ("holder", BLOCK_HOLDER),
            ("next", NODE_NEXT),
            ("head", NODE_HEAD),
            ("word", NODE_WORD),
            ("key", NODE_KEY),
            ("value", value_start(0)),
        ];
        for (name, offset) in words {
            let row = format!("| {name} | {offset} |");
            assert!(page.contains(&row), "docs/segment-layout.md lacks `{row}`");
        }
        assert_eq!((value_start(511), value_start(512)), (32, 64));
        assert_eq!((0..5).map(class_size).collect::<Vec<_>>(), [64, 80, 96, 112, 128]);
    }

    /// The words of a block's header have the documented bits.
    #[test]
    fn a_block_header_is_laid_out_as_documented() {
        let block = Block {
            counter: 7,
            writer: MemberId(5),
            participant: 3,
            operation: 9,
            len: 2,
            is_deleted: true,
            kind: Kind::Restored,
            holder: 6,
            owner: MemberId(4),
            checksum: 11,
        };
        let words: Vec<u64> = block
            .encode()
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")))
            .collect();
        assert_eq!(
            words,
            [7, 9 << 18 | 3 << 12 | 5, 1 << 63 | 2 << 61 | 2 << 16 | 6, 11 << 16 | 4]
        );
    }
}

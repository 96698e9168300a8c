//! What the mapped fast path writes: the change of a call, decided from the predecessor, and the
//! bytes of the new version.
//!
//! A change is decided when the cached location has been validated, inside the operation: the
//! cached version is then the current version of the key, and its block is not reused while the
//! operation is in flight. The swap of *publish* succeeds only if the primary's head word still
//! names that version, so the decision holds at the moment at which the new version takes its
//! place in the order. If the condition of a change does not hold, the call starts over on the slow
//! path, which reports it: a version that was read without a check of the view afterwards must not
//! be reported.

use crate::engine::MemberId;
use crate::engine::mapped::Memory;
use crate::store::mutant::mutant;
use crate::store::record::key::KeyRef;
use crate::store::record::location::CachedVersion;
use crate::store::record::state::RecordState;
use crate::store::segment::intent::{
    IntentId, New, ObservedVersion, PROVISIONAL_HEAD, encode_provisional_head,
};
use crate::store::segment::layout::{BLOCK_HEADER_LEN, Block, Kind, value_start};
use crate::store::value::Expect;
use std::borrow::Cow;

/// The predecessor of a change on the mapped fast path: its header, and where the primary holds it.
pub(in crate::store::record) struct FastPredecessor<M> {
    pub(in crate::store::record) header: Header,
    pub(in crate::store::record) memory: M,
    pub(in crate::store::record) offset: u64,
}

/// The header of a block, as it lies there.
pub(in crate::store::record) type Header = [u64; BLOCK_HEADER_LEN as usize / 8];

/// A change that the mapped fast path makes.
pub(in crate::store::record) trait FastChange {
    type Bytes: ValueBytes;

    /// The kind of the new version.
    const KIND: Kind = Kind::Plain;

    /// Whether every member makes an identical version. Its maker does not confirm it: the slow
    /// path checks whether the version still has to be made.
    const IS_SHARED: bool = false;

    /// Whether the change may replace this version.
    #[inline(always)]
    fn replaces(&self, version: &CachedVersion) -> bool {
        version.is_plain()
    }

    /// The owner of the new version, by the owner of its predecessor.
    #[inline(always)]
    fn owner(&self, before: MemberId) -> MemberId {
        before
    }

    /// The value of the new version; `None` if the slow path must be taken.
    fn decide<M: Memory>(
        self,
        store: &RecordState,
        key: &KeyRef<'_>,
        predecessor: FastPredecessor<M>,
    ) -> Option<Self::Bytes>;
}

/// The bytes of a value, as a caller has them.
pub(in crate::store::record) trait ValueBytes {
    fn len(&self) -> usize;

    /// Fills the block at `offset` with the header and the bytes. Returns whether it did.
    fn fill_block<M: Memory>(&self, memory: M, offset: u64, header: Header) -> bool;

    /// The bytes in one piece.
    fn whole(&self) -> Cow<'_, [u8]>;
}

/// Sets a key.
pub(in crate::store::record) struct FastPut<B>(pub(in crate::store::record) B);

/// Sets a key if its version is as expected.
pub(in crate::store::record) struct FastPutIf<'v> {
    pub(in crate::store::record) value: &'v [u8],
    pub(in crate::store::record) expect: Expect,
}

/// Adds to the number that a key holds, and stores the sum.
pub(in crate::store::record) struct FastAdd<'s> {
    pub(in crate::store::record) delta: i64,
    pub(in crate::store::record) sum: &'s mut i64,
}

/// *lock*: puts a provisional version with a new value in the place of a plain version.
pub(in crate::store) struct FastLock<'s> {
    pub(in crate::store) id: IntentId,
    /// What the transaction has read of the key, if it did.
    pub(in crate::store) seen: Option<ObservedVersion>,
    pub(in crate::store) value: &'s [u8],
    /// The owner of the new value, if the transaction changes it. The owner is written here.
    pub(in crate::store) new_owner: &'s mut Option<MemberId>,
    /// The provisional version is encoded here.
    pub(in crate::store) scratch: &'s mut Vec<u8>,
}

/// *apply*: puts the new value in the place of a provisional version, which the same transaction
/// has written.
pub(in crate::store) struct FastApply<'v> {
    pub(in crate::store) value: &'v [u8],
    pub(in crate::store) owner: MemberId,
}

impl<'s> FastChange for FastLock<'s> {
    type Bytes = &'s [u8];

    const KIND: Kind = Kind::Provisional;

    #[inline(always)]
    fn decide<M: Memory>(
        self,
        store: &RecordState,
        key: &KeyRef<'_>,
        FastPredecessor { header, memory, offset }: FastPredecessor<M>,
    ) -> Option<&'s [u8]> {
        let block = Block::from_words(header);
        let old = ObservedVersion { exists: true, version: block.version() };
        if self.seen.is_some_and(|seen| seen != old) && !mutant("tx-lost-update") {
            return None;
        }
        // The old value is read in whole words. In a block it is filled up to a whole word.
        let (len, whole) = (block.len as usize, block.len.next_multiple_of(8) as usize);
        let bytes = self.scratch;
        bytes.clear();
        bytes.reserve(PROVISIONAL_HEAD + whole + self.value.len());
        let owner = *self.new_owner.get_or_insert(block.owner);
        let new = New::Value { bytes: self.value, owner };
        let head = encode_provisional_head(self.id, old, block.owner, block.len, new);
        bytes.extend_from_slice(head.as_flattened());
        bytes.resize(PROVISIONAL_HEAD + whole, 0);
        let place = &mut bytes[PROVISIONAL_HEAD..];
        // The slow path reports damage.
        if !memory.get(offset + value_start(block.len), place)
            || !store.is_right(|| key.hash, &block, &place[..len])
        {
            return None;
        }
        place[len..].fill(0);
        bytes.extend_from_slice(self.value);
        Some(bytes)
    }
}

impl<'v> FastChange for FastApply<'v> {
    type Bytes = &'v [u8];

    const IS_SHARED: bool = true;

    #[inline(always)]
    fn replaces(&self, version: &CachedVersion) -> bool {
        version.is_provisional()
    }

    #[inline(always)]
    fn owner(&self, _: MemberId) -> MemberId {
        self.owner
    }

    #[inline(always)]
    fn decide<M: Memory>(
        self,
        _: &RecordState,
        _: &KeyRef<'_>,
        _: FastPredecessor<M>,
    ) -> Option<&'v [u8]> {
        Some(self.value)
    }
}

impl<B: ValueBytes> FastChange for FastPut<B> {
    type Bytes = B;

    #[inline(always)]
    fn decide<M: Memory>(
        self,
        _: &RecordState,
        _: &KeyRef<'_>,
        _: FastPredecessor<M>,
    ) -> Option<B> {
        Some(self.0)
    }
}

impl<'v> FastChange for FastPutIf<'v> {
    type Bytes = &'v [u8];

    #[inline(always)]
    fn decide<M: Memory>(
        self,
        _: &RecordState,
        _: &KeyRef<'_>,
        predecessor: FastPredecessor<M>,
    ) -> Option<&'v [u8]> {
        let is_right =
            self.expect == Expect::Version(Block::from_words(predecessor.header).version());
        (is_right || mutant("assume-condition")).then_some(self.value)
    }
}

impl FastChange for FastAdd<'_> {
    type Bytes = [u8; 8];

    #[inline(always)]
    fn decide<M: Memory>(
        self,
        store: &RecordState,
        key: &KeyRef<'_>,
        FastPredecessor { header, memory, offset }: FastPredecessor<M>,
    ) -> Option<[u8; 8]> {
        let block = Block::from_words(header);
        // The slow path reports a value of another length, and damage.
        if block.len != 8 {
            return None;
        }
        let [word] = memory.load(offset + value_start(8))?;
        let bytes = word.to_ne_bytes();
        if !store.is_right(|| key.hash, &block, &bytes) {
            return None;
        }
        *self.sum = i64::from_le_bytes(bytes).wrapping_add(self.delta);
        Some(self.sum.to_le_bytes())
    }
}

impl ValueBytes for &[u8] {
    #[inline(always)]
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    #[inline(always)]
    fn fill_block<M: Memory>(&self, memory: M, offset: u64, header: Header) -> bool {
        memory.put_block(offset, header, value_start(<[u8]>::len(self) as u64), self)
    }

    fn whole(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self)
    }
}

impl ValueBytes for [u8; 8] {
    #[inline(always)]
    fn len(&self) -> usize {
        8
    }

    #[inline(always)]
    fn fill_block<M: Memory>(&self, memory: M, offset: u64, header: Header) -> bool {
        memory.put_block(offset, header, value_start(8), self)
    }

    fn whole(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self)
    }
}

/// A value in several parts.
impl ValueBytes for &[&[u8]] {
    fn len(&self) -> usize {
        self.iter().map(|part| part.len()).sum()
    }

    /// A word that two parts share is assembled first, since writing a part of a word would need an
    /// atomic exchange.
    fn fill_block<M: Memory>(&self, memory: M, offset: u64, header: Header) -> bool {
        if !memory.put_words(offset, header) {
            return false;
        }
        // The bytes of the word at `at` that are known so far: the first `known` of them.
        let start = value_start(ValueBytes::len(self) as u64);
        let (mut at, mut last, mut known) = (offset + start, [0; 8], 0);
        for part in self.iter() {
            let mut rest = *part;
            if known > 0 {
                let (begin, others) = rest.split_at(rest.len().min(8 - known));
                last[known..known + begin.len()].copy_from_slice(begin);
                (known, rest) = (known + begin.len(), others);
                if known < 8 {
                    continue;
                }
                if !memory.put_words(at, [u64::from_ne_bytes(last)]) {
                    return false;
                }
                at += 8;
            }
            let (words, end) = rest.split_at(rest.len() & !7);
            if !words.is_empty() && !memory.put(at, words) {
                return false;
            }
            at += words.len() as u64;
            (last, known) = ([0; 8], end.len());
            last[..known].copy_from_slice(end);
        }
        known == 0 || memory.put_words(at, [u64::from_ne_bytes(last)])
    }

    fn whole(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.concat())
    }
}

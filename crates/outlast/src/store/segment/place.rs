//! The location of a block in a word: its replica, its size class and its offset.

use crate::engine::MemberId;
use crate::store::segment::layout::class_size;

/// How many bits of a kind (see [`Place::kind`]) are the size class; the rest is the replica.
pub(in crate::store) const CLASS_BITS: u32 = 7;

pub(in crate::store) const CLASS_MASK: u64 = (1 << CLASS_BITS) - 1;

/// The size above which a block always goes back to its replica: no magazine keeps a larger block.
pub(in crate::store) const KEPT_LEN_MAX: u64 = 16 << 20;

/// The location of a block: its replica, its size class and its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Place(pub(in crate::store) u64);

impl Place {
    pub(in crate::store) fn new(replica: MemberId, class: usize, offset: u64) -> Place {
        Place(Place::kind_of(replica, class) << 40 | offset >> 4)
    }

    /// The kind of the blocks of a replica and class; see [`Place::kind`].
    #[inline(always)]
    pub(in crate::store) fn kind_of(replica: MemberId, class: usize) -> u64 {
        u64::from(replica.0) << CLASS_BITS | class as u64
    }

    /// The location of a block of this kind; see [`Place::kind`].
    pub(in crate::store) fn of_kind(kind: u64, offset: u64) -> Place {
        Place(kind << 40 | offset >> 4)
    }

    #[inline(always)]
    pub(in crate::store) fn replica(self) -> MemberId {
        MemberId((self.kind() >> CLASS_BITS) as u32)
    }

    #[inline(always)]
    pub(in crate::store) fn class(self) -> usize {
        (self.kind() & CLASS_MASK) as usize
    }

    #[inline(always)]
    pub(in crate::store) fn offset(self) -> u64 {
        (self.0 & ((1 << 40) - 1)) << 4
    }

    /// Whether the block always goes back to its replica.
    pub(in crate::store) fn is_large(&self) -> bool {
        class_size(self.class()) > KEPT_LEN_MAX
    }

    /// The replica and the size class together.
    #[inline(always)]
    pub(in crate::store) fn kind(self) -> u64 {
        self.0 >> 40
    }
}

/// Whether a block can lie at this offset. Offsets come from memory that other members write, so
/// this is checked before anything is added to the offset.
#[inline]
pub(in crate::store) fn is_place(offset: u64) -> bool {
    offset.is_multiple_of(16) && offset < 1 << 44
}

/// A word of the pin table: the location of a version at a replica.
pub(in crate::store) fn pin_word(replica: MemberId, offset: u64) -> u64 {
    (u64::from(replica.0) + 1) << 40 | offset >> 4
}

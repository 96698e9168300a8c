//! The *control block* of a window in the segment of each member. The members exchange its offset
//! when the window is made.
//!
//! | bytes | word | changed by |
//! |---|---|---|
//! | 0 | the directory word: see `directory` | the owner |
//! | 64 | the exclusive lock: 0, or the stamp of its holder | lockers |
//! | 128 | how many accesses to attached ranges the owner has begun | the owner |
//! | 136 | how many of these accesses have ended | the owner |
//! | 192 | a bit per rank: it waits for a lock here | that rank |
//! | then | a bit per rank: it has, or had, a shared lock here | that rank, never cleared; lockers set the bit of a dead rank |
//! | then | a word per rank: 0, or the stamp of its shared lock here | that rank; members that force or clean up |
//!
//! A *stamp* names a holder and a ticket: the member's number plus one in the low bits, and above
//! them a ticket that the member uses only once. So a stamp is never in a word twice, and a
//! compare-and-swap from a stamp changes exactly the intended lock, however late it executes.

use crate::MemberId;

pub(super) const DIRECTORY: u64 = 0;
pub(super) const EXCLUSIVE: u64 = 64;
pub(super) const ENTERED: u64 = 128;
pub(super) const LEFT: u64 = 136;
const BITS: u64 = 192;

/// Enough for [`crate::engine::MEMBERS_MAX`] members and for "no member".
const MEMBER_BITS: u32 = 13;

/// The offsets of the words in a control block of a window of `size` ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct ControlLayout {
    size: usize,
}

impl ControlLayout {
    pub(super) fn new(size: usize) -> ControlLayout {
        ControlLayout { size }
    }

    /// How many words the bits of all ranks take.
    pub(super) fn bit_words(self) -> usize {
        self.size.div_ceil(64)
    }

    /// The offset of a word of waiting bits.
    pub(super) fn waiting(self, word: usize) -> u64 {
        BITS + 8 * word as u64
    }

    /// The offset of a word of sharing bits: ranks that have, or had, a shared lock.
    pub(super) fn sharing(self, word: usize) -> u64 {
        self.waiting(self.bit_words() + word)
    }

    /// The offset of the shared lock of a rank.
    pub(super) fn shared(self, rank: usize) -> u64 {
        self.sharing(self.bit_words()) + 8 * rank as u64
    }

    /// The length of the block.
    pub(super) fn len(self) -> u64 {
        self.shared(self.size)
    }
}

/// The stamp of a lock that `member` takes with this ticket.
pub(super) fn stamp(member: MemberId, ticket: u64) -> u64 {
    ticket << MEMBER_BITS | (u64::from(member.0) + 1)
}

/// The member that took the lock with this stamp; `None` for a free lock.
pub(super) fn holder(stamp: u64) -> Option<MemberId> {
    let number = stamp & ((1 << MEMBER_BITS) - 1);
    (number != 0).then(|| MemberId(number as u32 - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::MEMBERS_MAX;

    #[test]
    fn a_stamp_names_its_holder_and_is_unique() {
        let last = MemberId(MEMBERS_MAX as u32 - 1);
        for member in [MemberId(0), MemberId(77), last] {
            assert_eq!(holder(stamp(member, 1)), Some(member));
            assert_ne!(stamp(member, 1), stamp(member, 2));
        }
        assert_ne!(stamp(last, 1), stamp(MemberId(0), 2));
        assert_eq!(holder(0), None);
    }

    #[test]
    fn the_parts_of_a_control_block_do_not_overlap() {
        for size in [1, 63, 64, 65, 4096] {
            let layout = ControlLayout::new(size);
            assert_eq!(layout.sharing(0) - layout.waiting(0), 8 * size.div_ceil(64) as u64);
            assert_eq!(layout.shared(0), layout.sharing(layout.bit_words()));
            assert_eq!(layout.len(), layout.shared(0) + 8 * size as u64);
        }
    }
}

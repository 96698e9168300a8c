//! The memory of a seat in the segment of its holder: hidden words, the bytes of the program, and
//! in logged mode the journal of this seat and the record of the seat before it.
//!
//! Hidden words are no part of an image. A holder sets them to zero when it loads the seat, before
//! any seat goes on. Words that members wait for carry the number of the rollback, so that a word
//! of an earlier period is never taken for a word of this one.
//!
//! | word | content | written by |
//! |---|---|---|
//! | `LOCK` | 0, the exclusive holder, or the number of sharers | any seat, by compare-and-swap |
//! | `DOWN` | the release of a round of the tree | the parent in the tree |
//! | `UP` + i | the arrival of the i-th child in the tree | that child |
//! | `CALL` | the attempt to save at points that are not aligned | seat 0 |
//! | `STATE` | where this seat is in that attempt | this seat and seat 0, by compare-and-swap |
//! | `TOLD_UP` | what this seat told its parent last; in logged mode | this seat |
//! | `TOLD_DOWN` | what this seat told its children last; in logged mode | this seat |

/// The lock of the seat.
pub(super) const LOCK: u64 = 0;
/// The bit of a lock word that says that the lock is held exclusively; the seat follows.
pub(super) const EXCLUSIVE: u64 = 1 << 63;
/// The bit of a lock word that says that seats may wait for it: a release rings all members.
pub(super) const WAITED_FOR: u64 = 1 << 62;
/// The release from the parent.
pub(super) const DOWN: u64 = 8;
/// The arrivals of the children.
pub(super) const UP: u64 = 16;
/// The attempt that seat 0 asks for.
pub(super) const CALL: u64 = UP + FAN as u64 * 8;
/// Where the seat is in that attempt.
pub(super) const STATE: u64 = CALL + 8;
/// What the seat told its parent last.
pub(super) const TOLD_UP: u64 = STATE + 8;
/// What the seat told its children last.
pub(super) const TOLD_DOWN: u64 = TOLD_UP + 8;
/// The length of all hidden words.
pub(super) const HIDDEN: u64 = 128;
const _: () = assert!(TOLD_DOWN + 8 <= HIDDEN);

/// Where the journal of a seat begins, if seats have so many bytes.
pub(super) fn journal_at(bytes: u64) -> u64 {
    (HIDDEN + bytes).next_multiple_of(64)
}

/// Where the record of the seat before begins, with logs of so many bytes.
pub(super) fn record_at(bytes: u64, logs: u64) -> u64 {
    journal_at(bytes) + logs / 2
}

/// The length of all memory of a seat.
pub(super) fn slot_len(bytes: u64, logs: u64) -> u64 {
    if logs == 0 { HIDDEN + bytes } else { journal_at(bytes) + logs }
}

/// How many children a seat has in the tree.
pub(super) const FAN: usize = 4;

/// The parent of a seat in the tree, and which of its children the seat is. Seat 0 is the root.
pub(super) fn parent(seat: usize) -> Option<(usize, usize)> {
    seat.checked_sub(1).map(|number| (number / FAN, number % FAN))
}

/// The children of a seat in a tree of so many seats.
pub(super) fn children(seat: usize, seats: usize) -> std::ops::Range<usize> {
    (seat * FAN + 1).min(seats)..(seat * FAN + 1 + FAN).min(seats)
}

/// How many bits of a word are flags.
const FLAG_BITS: u32 = 8;

/// A word that says where its writer is: the rollback, the round of it, and flags.
pub(super) fn stamped(rollback: u64, round: u64, flags: u64) -> u64 {
    (rollback << 40) | ((round & 0xffff_ffff) << FLAG_BITS) | flags
}

/// The flags of a word, if it is of this rollback and round.
pub(super) fn flags_of(word: u64, rollback: u64, round: u64) -> Option<u64> {
    let flags = word & ((1 << FLAG_BITS) - 1);
    (word == stamped(rollback, round, flags)).then_some(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_seat_but_the_root_is_a_child_of_its_parent() {
        for seats in 1..100 {
            for seat in 1..seats {
                let (above, index) = parent(seat).expect("not the root");
                assert_eq!(children(above, seats).nth(index), Some(seat), "of {seats}");
            }
            let all: usize = (0..seats).map(|seat| children(seat, seats).len()).sum();
            assert_eq!(all, seats - 1);
        }
        assert_eq!(parent(0), None);
    }

    #[test]
    fn a_word_counts_in_its_own_round_and_rollback_only() {
        let word = stamped(3, 9, 5);
        assert_eq!(flags_of(word, 3, 9), Some(5));
        assert_eq!(
            (flags_of(word, 3, 10), flags_of(word, 2, 9), flags_of(0, 1, 0)),
            Default::default()
        );
    }
}

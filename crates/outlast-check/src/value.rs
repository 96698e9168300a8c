//! Values that are recomputed from the seed and recognised when they are read.
//!
//! Every 8-byte word of a value carries the sequence of the write it belongs to and a check of 16
//! bits, scrambled by seed, key and position. A reader that knows seed and key needs no copy of the
//! value: it can tell whether the value is intact, which write made it, and, if it is a mix, of
//! which writes.
//!
//! A value shorter than a word carries no sequence. It cannot be torn at the granularity of a word
//! either. Where the sequence is known from elsewhere, [`matches()`] compares every byte.
//!
//! ```
//! use outlast_check::history::Actor;
//! use outlast_check::value::{self, Integrity};
//!
//! let first = value::sequence(Actor::new(3, 0), 1);
//! let second = value::sequence(Actor::new(5, 0), 1);
//! let mut bytes = value::fill(42, b"ck/3", first, 100);
//! assert_eq!(value::verify(42, b"ck/3", &bytes), Integrity::Intact { sequence: Some(first) });
//!
//! // The second writer died after four words.
//! bytes[..32].copy_from_slice(&value::fill(42, b"ck/3", second, 100)[..32]);
//! let sequences = vec![second, first];
//! let torn = Integrity::Torn { first_bad_offset: 32, sequences, garbage_words: 0 };
//! assert_eq!(value::verify(42, b"ck/3", &bytes), torn);
//! ```

use crate::history::Actor;

const WORD: usize = 8;
const SEQUENCE_BITS: u32 = 48;
const MEMBER_BITS: u32 = 14;
const THREAD_BITS: u32 = 6;
const COUNT_BITS: u32 = SEQUENCE_BITS - MEMBER_BITS - THREAD_BITS;

/// The most sequences that [`Integrity::Torn`] lists: a longer list would not be clearer.
const SEQUENCES_LISTED: usize = 8;

/// Whether the bytes of a value are intact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Integrity {
    /// A whole value.
    Intact {
        /// The sequence of its write; none if the value is too short to carry it.
        sequence: Option<u64>,
    },
    /// Some words of a value, and other bytes.
    Torn {
        /// The offset of the first word that does not fit the words before it.
        first_bad_offset: usize,
        /// The sequences of the writes that words were found of, in the order of appearance (at
        /// most eight).
        sequences: Vec<u64>,
        /// How many words belong to no write.
        garbage_words: usize,
    },
    /// No word was written for this seed and key.
    Foreign,
}

impl Integrity {
    /// Whether the value is anything but intact.
    pub fn is_bad(&self) -> bool {
        !matches!(self, Integrity::Intact { .. })
    }
}

/// The sequence of the `count`-th write of an actor. It is unique in a run, and serves as the
/// identity of the value in a history.
///
/// # Panics
/// If the member is 2^14 or more, the thread 2^6 or more, or the count 2^28 or more.
pub fn sequence(actor: Actor, count: u64) -> u64 {
    assert!(actor.member < 1 << MEMBER_BITS, "member {} is too large for a sequence", actor.member);
    assert!(actor.thread < 1 << THREAD_BITS, "thread {} is too large for a sequence", actor.thread);
    assert!(count < 1 << COUNT_BITS, "write {count} is too large for a sequence");
    (u64::from(actor.member) << THREAD_BITS | u64::from(actor.thread)) << COUNT_BITS | count
}

/// The value of this length that this write puts under this key.
pub fn fill(seed: u64, key: &[u8], sequence: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill_into(seed, key, sequence, &mut bytes);
    bytes
}

/// Fills a buffer, whose length is the length of the value, with the value that this write puts
/// under this key.
///
/// # Panics
/// If the sequence is 2^48 or more.
pub fn fill_into(seed: u64, key: &[u8], sequence: u64, buffer: &mut [u8]) {
    assert!(sequence < 1 << SEQUENCE_BITS, "the sequence {sequence} has more than 48 bits");
    let origin = Origin::new(seed, key, buffer.len());
    for (index, chunk) in buffer.chunks_mut(WORD).enumerate() {
        let word = origin.word(sequence, index).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Whether the bytes are exactly the value of this write.
pub fn matches(seed: u64, key: &[u8], sequence: u64, bytes: &[u8]) -> bool {
    let origin = Origin::new(seed, key, bytes.len());
    bytes
        .chunks(WORD)
        .enumerate()
        .all(|(index, chunk)| chunk == &origin.word(sequence, index).to_le_bytes()[..chunk.len()])
}

/// Checks the bytes that were found under this key.
pub fn verify(seed: u64, key: &[u8], bytes: &[u8]) -> Integrity {
    if bytes.len() < WORD {
        return Integrity::Intact { sequence: None };
    }
    let origin = Origin::new(seed, key, bytes.len());
    let (words, tail) = bytes.as_chunks::<WORD>();
    let mut sequences: Vec<u64> = Vec::new();
    let mut garbage_words = 0;
    let mut first_bad_offset = None;
    for (index, &word) in words.iter().enumerate() {
        let found = origin.sequence_of(u64::from_le_bytes(word), index);
        let fits = match (found, sequences.first()) {
            (Some(found), Some(&first)) => found == first,
            (Some(_), None) => index == 0,
            (None, _) => false,
        };
        if !fits && first_bad_offset.is_none() {
            first_bad_offset = Some(index * WORD);
        }
        match found {
            None => garbage_words += 1,
            Some(found) if !sequences.contains(&found) && sequences.len() < SEQUENCES_LISTED => {
                sequences.push(found);
            }
            Some(_) => {}
        }
    }
    let Some(&first) = sequences.first() else { return Integrity::Foreign };
    if first_bad_offset.is_none()
        && tail != &origin.word(first, words.len()).to_le_bytes()[..tail.len()]
    {
        // The tail is too short to carry a sequence.
        first_bad_offset = Some(words.len() * WORD);
        garbage_words += 1;
    }
    match first_bad_offset {
        None => Integrity::Intact { sequence: Some(first) },
        Some(first_bad_offset) => Integrity::Torn { first_bad_offset, sequences, garbage_words },
    }
}

/// What all words of a value depend on.
struct Origin {
    base: u64,
    length: usize,
}

impl Origin {
    fn new(seed: u64, key: &[u8], length: usize) -> Self {
        Self { base: hash(seed, key), length }
    }

    fn mask(&self, index: usize) -> u64 {
        scramble(self.base.wrapping_add(index as u64))
    }

    fn check(&self, sequence: u64, index: usize) -> u64 {
        // The check of the first word covers the length, so that a value cut at a word does not
        // pass for whole.
        let place = if index == 0 { !(self.length as u64) } else { index as u64 };
        scramble(self.base ^ sequence ^ scramble(place)) >> SEQUENCE_BITS
    }

    fn word(&self, sequence: u64, index: usize) -> u64 {
        scramble((sequence | self.check(sequence, index) << SEQUENCE_BITS) ^ self.mask(index))
    }

    /// The sequence of the write that this word belongs to, if it belongs to a write.
    fn sequence_of(&self, word: u64, index: usize) -> Option<u64> {
        let plain = unscramble(word) ^ self.mask(index);
        let sequence = plain & ((1 << SEQUENCE_BITS) - 1);
        (plain >> SEQUENCE_BITS == self.check(sequence, index)).then_some(sequence)
    }
}

/// The finaliser of SplitMix64, a bijection.
pub(crate) fn scramble(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

fn unscramble(mut word: u64) -> u64 {
    word = (word ^ word >> 31 ^ word >> 62).wrapping_mul(0x3196_42b2_d24d_8ec3);
    word = (word ^ word >> 27 ^ word >> 54).wrapping_mul(0x96de_1b17_3f11_9089);
    word ^ word >> 30 ^ word >> 60
}

/// A hash that never changes: seeds and ledgers depend on it.
pub(crate) fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let mut state = scramble(seed ^ 0x9e37_79b9_7f4a_7c15);
    for chunk in bytes.chunks(WORD) {
        let mut word = [0; WORD];
        word[..chunk.len()].copy_from_slice(chunk);
        state = scramble(state.rotate_left(5) ^ u64::from_le_bytes(word))
            .wrapping_add(0x9e37_79b9_7f4a_7c15);
    }
    scramble(state ^ bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_never_change() {
        let bytes = fill(1, b"a", 2, 12);
        assert_eq!(bytes, [90, 170, 210, 191, 148, 164, 250, 133, 84, 124, 101, 104]);
    }

    #[test]
    fn a_cut_value_is_torn() {
        for length in 9..200 {
            let bytes = fill(7, b"key", 99, length);
            for cut in 8..length {
                assert!(verify(7, b"key", &bytes[..cut]).is_bad(), "{length} cut to {cut}");
            }
        }
    }

    #[test]
    fn other_keys_and_seeds_are_foreign() {
        let bytes = fill(7, b"key", 99, 64);
        assert_eq!(verify(8, b"key", &bytes), Integrity::Foreign);
        assert_eq!(verify(7, b"kez", &bytes), Integrity::Foreign);
        assert_eq!(verify(7, b"key", &[0; 64]), Integrity::Foreign);
    }

    #[test]
    fn short_values_are_compared_by_their_sequence() {
        for length in 0..8 {
            let bytes = fill(7, b"key", 99, length);
            assert_eq!(verify(7, b"key", &bytes), Integrity::Intact { sequence: None });
            assert!(matches(7, b"key", 99, &bytes));
        }
        assert!(!matches(7, b"key", 98, &fill(7, b"key", 99, 7)));
    }

    proptest! {
        #[test]
        fn scramble_is_a_bijection(word: u64) {
            prop_assert_eq!(unscramble(scramble(word)), word);
        }

        #[test]
        fn every_mix_of_two_values_is_recognised(
            seed: u64,
            length in 16usize..300,
            first in 0u64..1 << 48,
            second in 0u64..1 << 48,
            choice in prop::collection::vec(any::<bool>(), 38),
        ) {
            prop_assume!(first != second);
            let mut bytes = fill(seed, b"k", first, length);
            let other = fill(seed, b"k", second, length);
            let intact = Integrity::Intact { sequence: Some(first) };
            prop_assert_eq!(verify(seed, b"k", &bytes), intact);
            let words = length / 8;
            for index in (0..words).filter(|&index| choice[index]) {
                bytes[index * 8..index * 8 + 8].copy_from_slice(&other[index * 8..index * 8 + 8]);
            }
            let boundary = (1..words).find(|&index| choice[index] != choice[0]);
            match (boundary, verify(seed, b"k", &bytes)) {
                (
                    Some(boundary),
                    Integrity::Torn { first_bad_offset, sequences, garbage_words },
                ) => {
                    prop_assert_eq!(first_bad_offset, boundary * 8);
                    prop_assert_eq!(sequences.len(), 2);
                    prop_assert_eq!(garbage_words, 0);
                }
                (None, Integrity::Torn { first_bad_offset, .. }) => {
                    // All words are the second value's, but the tail is still the first's.
                    prop_assert!(choice[0] && first_bad_offset == words * 8);
                }
                (None, Integrity::Intact { sequence }) => {
                    prop_assert_eq!(sequence, Some(if choice[0] { second } else { first }));
                }
                (boundary, verdict) => prop_assert!(false, "{boundary:?} gave {verdict:?}"),
            }
        }

        #[test]
        fn a_flipped_byte_is_detected(
            length in 8usize..200,
            at: prop::sample::Index,
            flip in 1u8..,
        ) {
            let mut bytes = fill(3, b"k", 5, length);
            let at = at.index(length);
            bytes[at] ^= flip;
            prop_assert_ne!(verify(3, b"k", &bytes), Integrity::Intact { sequence: Some(5) });
            prop_assert!(!matches(3, b"k", 5, &bytes));
        }

        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>) {
            verify(1, b"k", &bytes);
        }
    }
}

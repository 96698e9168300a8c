//! Contents of memory in which a torn word can be recognised.
//!
//! A range is written in *generations*. Each aligned word of a generation holds the 16-bit number
//! of the generation four times, so that a word with bytes of two generations belongs to neither.
//! The content of a byte follows from its offset in the segment and the generation alone: a range
//! may begin and end at any offset.

/// The word that generation `generation` writes; generation 0 is untouched memory.
pub fn word(generation: u16) -> u64 {
    u64::from(generation) * 0x0001_0001_0001_0001
}

/// The generation of a word, or `None` if the word is torn.
pub fn generation_of(found: u64) -> Option<u16> {
    let generation = found as u16;
    (word(generation) == found).then_some(generation)
}

/// The bytes that `generation` writes at `offset..offset + len`.
pub fn range(offset: u64, len: usize, generation: u16) -> Vec<u8> {
    let bytes = word(generation).to_le_bytes();
    (offset..offset + len as u64).map(|at| bytes[(at % 8) as usize]).collect()
}

/// The generations of the aligned words that lie wholly in `bytes`, which were read at `offset`.
/// Panics on a torn word. Words of which only a part was read are left out, because the promise
/// holds for whole words alone.
pub fn generations(offset: u64, bytes: &[u8]) -> Vec<u16> {
    let skipped = (offset.next_multiple_of(8) - offset) as usize;
    let whole = bytes.get(skipped..).unwrap_or_default().chunks_exact(8);
    whole
        .enumerate()
        .map(|(index, chunk)| {
            let found = u64::from_le_bytes(chunk.try_into().expect("chunks of 8"));
            generation_of(found).unwrap_or_else(|| {
                panic!(
                    "a torn word: {found:#018x} at offset {}",
                    offset + (skipped + 8 * index) as u64
                )
            })
        })
        .collect()
}

/// Checks the range of a writer that completed each generation before the next, and may have died
/// in the last: every word is of the last generation or of the generation before it. Returns the
/// last generation.
pub fn check_cut_short(offset: u64, bytes: &[u8]) -> u16 {
    let found = generations(offset, bytes);
    let last = found.iter().copied().max().unwrap_or(0);
    for (index, &generation) in found.iter().enumerate() {
        assert!(
            generation == last || generation + 1 == last,
            "word {index} at offset {offset} is of generation {generation}, other words are of \
             {last}"
        );
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_its_generation_at_any_offset() {
        for offset in 0..9 {
            for len in 0..40 {
                let found = generations(offset, &range(offset, len, 300));
                assert!(found.iter().all(|&generation| generation == 300));
                assert!(found.len() + 2 > len / 8);
            }
        }
    }

    #[test]
    fn a_torn_word_is_recognised() {
        let (old, new) = (word(0x0102).to_le_bytes(), word(0x0103).to_le_bytes());
        for cut in 1..8 {
            let mut torn = old;
            torn[..cut].copy_from_slice(&new[..cut]);
            let is_whole = torn == old || torn == new;
            assert_eq!(
                generation_of(u64::from_le_bytes(torn)).is_some(),
                is_whole,
                "cut after {cut} bytes"
            );
        }
    }

    #[test]
    #[should_panic(expected = "generation 3")]
    fn words_older_than_the_last_complete_put_are_recognised() {
        let mut bytes = range(0, 32, 5);
        bytes[8..16].copy_from_slice(&range(8, 8, 3));
        check_cut_short(0, &bytes);
    }
}

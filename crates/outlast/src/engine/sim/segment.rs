//! The memory of a member, and the subsets of a range that the phases of a put or a get touch.

use super::random::Random;

const CHUNK_WORDS: usize = 1024;

/// A member's segment. Its chunks are made at the first write, so that thousands of members take
/// only the memory that they use.
#[derive(Default)]
pub(super) struct Segment {
    len: u64,
    chunks: Vec<Option<Box<[u64; CHUNK_WORDS]>>>,
}

/// The words of a range that the first phase of an operation touches; the second phase touches the
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subset {
    /// All words: the operation has a single phase.
    All,
    /// The words before this index.
    Before(usize),
    /// The words from this index on.
    From(usize),
    /// Any pattern; it repeats, rotated, every 64 words.
    Mask(u64),
}

impl Subset {
    /// A random subset for a range of `words` words.
    pub(super) fn draw(random: &mut Random, words: usize) -> Subset {
        if words < 2 {
            return Subset::All;
        }
        match random.next() & 7 {
            0 => Subset::All,
            1 => Subset::Before(random.below(words as u64 + 1) as usize),
            2 => Subset::From(random.below(words as u64 + 1) as usize),
            _ => Subset::Mask(random.next()),
        }
    }

    /// Whether the phase touches the word at this index of the range.
    #[inline]
    pub(super) fn contains(self, index: usize, second_phase: bool) -> bool {
        let in_first = match self {
            Subset::All => true,
            Subset::Before(end) => index < end,
            Subset::From(begin) => index >= begin,
            Subset::Mask(mask) => (mask.rotate_left((index >> 6) as u32) >> (index & 63)) & 1 != 0,
        };
        in_first != second_phase
    }

    /// The words that a phase touches, for people.
    pub(super) fn describe(self, words: usize, second_phase: bool) -> String {
        let touched: Vec<usize> =
            (0..words).filter(|&index| self.contains(index, second_phase)).collect();
        let shown: Vec<String> = touched.iter().take(16).map(usize::to_string).collect();
        match (touched.len(), words) {
            (all, words) if all == words => "all words".to_string(),
            (0, _) => "no words".to_string(),
            (count, _) if count > 16 => format!("{count} words: {},..", shown.join(",")),
            _ => format!("words {}", shown.join(",")),
        }
    }
}

/// How many words a range of bytes touches.
pub(super) fn words_in(offset: u64, len: usize) -> usize {
    if len == 0 { 0 } else { ((offset + len as u64 - 1) / 8 - offset / 8 + 1) as usize }
}

impl Segment {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn grow(&mut self, len: u64) {
        if len > self.len {
            self.len = len;
            self.chunks.resize_with((len.div_ceil(8) as usize).div_ceil(CHUNK_WORDS), || None);
        }
    }

    /// The memory is lost.
    pub(super) fn clear(&mut self) {
        *self = Segment::default();
    }

    #[inline]
    pub(super) fn load(&self, word: usize) -> u64 {
        match &self.chunks[word / CHUNK_WORDS] {
            Some(chunk) => chunk[word % CHUNK_WORDS],
            None => 0,
        }
    }

    #[inline]
    pub(super) fn store(&mut self, word: usize, value: u64) {
        let chunk =
            self.chunks[word / CHUNK_WORDS].get_or_insert_with(|| Box::new([0; CHUNK_WORDS]));
        chunk[word % CHUNK_WORDS] = value;
    }

    /// Calls `visit` with each touched word, where in the data its bytes begin, and which of its
    /// bytes the range covers.
    #[inline]
    fn for_each_word(
        offset: u64,
        len: usize,
        subset: Subset,
        second_phase: bool,
        mut visit: impl FnMut(usize, usize, std::ops::Range<usize>),
    ) {
        let (first, skip) = ((offset / 8) as usize, (offset % 8) as usize);
        for index in 0..words_in(offset, len) {
            if !subset.contains(index, second_phase) {
                continue;
            }
            let low = if index == 0 { skip } else { 0 };
            let data_from = (index * 8 + low) - skip;
            let high = (low + len - data_from).min(8);
            visit(first + index, data_from, low..high);
        }
    }

    /// Writes the words of `data` that belong to the phase. The range must be inside the segment.
    pub(super) fn put(&mut self, offset: u64, data: &[u8], subset: Subset, second_phase: bool) {
        Self::for_each_word(offset, data.len(), subset, second_phase, |word, from, bytes| {
            let part = &data[from..from + bytes.len()];
            if let Ok(whole) = <[u8; 8]>::try_from(part) {
                self.store(word, u64::from_le_bytes(whole));
            } else {
                let mut merged = self.load(word).to_le_bytes();
                merged[bytes].copy_from_slice(part);
                self.store(word, u64::from_le_bytes(merged));
            }
        });
    }

    /// Reads the words that belong to the phase. The range must be inside the segment.
    pub(super) fn get(&self, offset: u64, buffer: &mut [u8], subset: Subset, second_phase: bool) {
        let len = buffer.len();
        Self::for_each_word(offset, len, subset, second_phase, |word, from, bytes| {
            let value = self.load(word).to_le_bytes();
            buffer[from..from + bytes.len()].copy_from_slice(&value[bytes]);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both phases of any subset together are a plain copy, also at odd offsets and across chunks.
    #[test]
    fn two_phases_make_a_whole_put_and_get() {
        let mut random = Random::new(3);
        let mut segment = Segment::default();
        segment.grow(40_000);
        let mut model = vec![0u8; 40_000];
        for _ in 0..2000 {
            let len = random.below(300) as usize;
            let offset = random.below(40_000 - len as u64 + 1);
            let data: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
            let subset = Subset::draw(&mut random, words_in(offset, len));
            segment.put(offset, &data, subset, false);
            segment.put(offset, &data, subset, true);
            model[offset as usize..offset as usize + len].copy_from_slice(&data);
            let len = random.below(300) as usize;
            let offset = random.below(40_000 - len as u64 + 1);
            let mut seen = vec![0xAA; len];
            let subset = Subset::draw(&mut random, words_in(offset, len));
            segment.get(offset, &mut seen, subset, false);
            segment.get(offset, &mut seen, subset, true);
            assert_eq!(seen, model[offset as usize..offset as usize + len]);
        }
    }

    #[test]
    fn unwritten_memory_is_zero_and_has_no_chunks() {
        let mut segment = Segment::default();
        segment.grow(1 << 30);
        let mut buffer = [1; 16];
        segment.get((1 << 30) - 16, &mut buffer, Subset::All, false);
        assert_eq!(buffer, [0; 16]);
        assert!(segment.chunks.iter().all(Option::is_none));
    }

    #[test]
    fn a_subset_is_described() {
        assert_eq!(Subset::Mask(0b1101).describe(4, false), "words 0,2,3");
        assert_eq!(Subset::Mask(0b1101).describe(4, true), "words 1");
        assert_eq!(Subset::All.describe(4, false), "all words");
    }
}

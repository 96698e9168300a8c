//! Numbers that follow from a seed alone, so that every member can compute the choices of all
//! others.

/// A source of numbers: SplitMix64, small and good enough to choose offsets, sizes and victims.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The source that belongs to these numbers. Other numbers give an unrelated source.
    pub fn of(parts: &[u64]) -> Random {
        let mut random = Random(0x6f75_746c_6173_7431);
        for &part in parts {
            random.0 = random.number() ^ part;
        }
        random.number();
        random
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which must not be zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }

    /// A value of a slice, which must not be empty.
    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }

    /// Arbitrary bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.number().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    /// `count` different numbers below `limit`, in arbitrary order.
    pub fn distinct(&mut self, count: usize, limit: usize) -> Vec<u32> {
        let mut numbers: Vec<u32> = (0..limit as u32).collect();
        for index in 0..count {
            let other = index + self.below((limit - index) as u64) as usize;
            numbers.swap(index, other);
        }
        numbers.truncate(count);
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_give_equal_sources() {
        assert_eq!(Random::of(&[1, 2]).bytes(33), Random::of(&[1, 2]).bytes(33));
        assert_ne!(Random::of(&[1, 2]).number(), Random::of(&[2, 1]).number());
        assert_ne!(Random::of(&[1]).number(), Random::of(&[1, 0]).number());
    }

    #[test]
    fn distinct_numbers_are_distinct() {
        let mut numbers = Random::of(&[7]).distinct(5, 6);
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 5);
        assert!(numbers.iter().all(|&number| number < 6));
    }
}

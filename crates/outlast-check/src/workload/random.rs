//! A random generator with a fixed stream.

use crate::value;

/// A generator of pseudo-random numbers. Its stream never changes: it is xoshiro256** by Blackman
/// and Vigna (<https://prng.di.unimi.it/>), with a state filled by SplitMix64.
///
/// ```
/// use outlast_check::workload::Random;
///
/// let mut random = Random::new(1);
/// assert!(random.below(6) < 6);
/// assert_eq!(Random::new(9).next(), Random::new(9).next());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random {
    pub(super) state: [u64; 4],
}

impl Random {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        let mut position = seed;
        let state = std::array::from_fn(|_| {
            position = position.wrapping_add(0x9e37_79b9_7f4a_7c15);
            value::scramble(position)
        });
        Self { state }
    }

    /// The generator of this seed for this stream. The streams of a seed are independent.
    pub fn stream(seed: u64, stream: u64) -> Self {
        Self::new(value::hash(seed, &stream.to_le_bytes()))
    }

    /// The next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "a stream without end is no iterator")]
    pub fn next(&mut self) -> u64 {
        let state = &mut self.state;
        let result = state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = state[1] << 17;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= shifted;
        state[3] = state[3].rotate_left(45);
        result
    }

    /// A number below the bound. All numbers are equally likely, to within 2^-64 times the bound.
    ///
    /// # Panics
    /// If the bound is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below zero");
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// True with this probability, in percent.
    pub fn percent(&mut self, chance: u32) -> bool {
        self.below(100) < u64::from(chance)
    }

    /// An index into the weights, with a probability proportional to its weight.
    ///
    /// # Panics
    /// If all weights are zero.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let total: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
        assert!(total > 0, "at least one weight must be more than zero");
        let mut rest = self.below(total);
        for (index, &weight) in weights.iter().enumerate() {
            if rest < u64::from(weight) {
                return index;
            }
            rest -= u64::from(weight);
        }
        unreachable!("the rest is below the sum of the weights")
    }
}

//! Random numbers that replay for ever.

/// A small seeded generator (splitmix64). Its sequence is part of what a seed means, so it may
/// never change.
///
/// ```
/// use outlast::sim::Random;
/// let mut random = Random::new(7);
/// let (first, second) = (random.next(), random.next());
/// assert_ne!(first, second);
/// assert_eq!(Random::new(7).next(), first);
/// ```
#[derive(Clone, Debug)]
pub struct Random(u64);

/// Spreads the bits of a number; also used to derive independent streams from a seed.
pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Random {
        Random(mix(seed ^ 0x6F75_746C_6173_7421))
    }

    /// The next number, uniform over all 64-bit numbers.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "an endless sequence needs no Option")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number below `bound`, which must not be 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// True with a probability of 1 in `one_in`.
    #[inline]
    pub fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    /// A number in `low..=high` whose order of magnitude is uniform, so that short and long times
    /// both occur often.
    pub fn magnitude(&mut self, low: u64, high: u64) -> u64 {
        let (low, high) = (low.max(1), high.max(low.max(1)));
        let octaves = u64::from(high.ilog2() - low.ilog2() + 1);
        let octave = low.ilog2() + self.below(octaves) as u32;
        let base = 1u64 << octave;
        (base + (self.next() & (base - 1))).clamp(low, high)
    }

    /// A heavy-tailed delay in nanoseconds: mostly about 100 ns, each doubling half as likely, at
    /// most 19 ms.
    #[inline]
    pub(super) fn delay(&mut self) -> u64 {
        let bits = self.next();
        let doublings = (bits >> 40).trailing_zeros().min(17);
        (16 + (bits & 127)) << doublings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A seed recorded years ago must replay its run today.
    #[test]
    fn the_sequence_never_changes() {
        let mut random = Random::new(1);
        assert_eq!(
            [random.next(), random.next()],
            [4_640_521_403_676_318_852, 6_534_566_967_114_836_561]
        );
    }

    #[test]
    fn draws_stay_in_their_ranges() {
        let mut random = Random::new(2);
        for _ in 0..10_000 {
            assert!(random.below(7) < 7);
            assert!((10..=1000).contains(&random.magnitude(10, 1000)));
            assert!((16..=143 << 17).contains(&random.delay()));
        }
        assert_eq!(random.magnitude(5, 5), 5);
        assert_eq!(random.magnitude(0, 0), 1);
    }
}

//! Arbitrary bytes in a member's segment: whatever is there, no member crashes, and no call goes on for ever. With checksums
//! nobody reads a value that was never written. The fuzz target in `fuzz/` runs the same.
//!
//! `OUTLAST_SEEDS` sets how many seeds, `OUTLAST_SEED_FIRST` the first one.

#![cfg(feature = "sim")]

mod fuzz;

use outlast::engine::sim::Random;

fn seeds(default: u64) -> std::ops::Range<u64> {
    let read = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let first = read("OUTLAST_SEED_FIRST").unwrap_or(0);
    first..first + read("OUTLAST_SEEDS").unwrap_or(default)
}

#[test]
fn with_checksums_nobody_reads_what_was_never_written() {
    let mut corrupt = 0;
    for seed in seeds(200) {
        let mut random = Random::new(seed ^ 0x6675_7a7a);
        let damage = (0..4).flat_map(|_| fuzz::damage(&mut random)).collect::<Vec<_>>();
        corrupt += fuzz::run(seed, &damage, true);
    }
    assert!(corrupt > 0, "no checksum was ever wrong");
}

#[test]
fn arbitrary_bytes_in_a_segment_crash_nobody_and_hold_nobody_up() {
    for seed in seeds(60) {
        fuzz::run(seed, &fuzz::damage(&mut Random::new(seed ^ 0x6675_7a7a)), false);
    }
}

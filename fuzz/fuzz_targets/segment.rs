//! Arbitrary bytes in a member's segment, as the fuzzer makes them. The first 9 bytes choose the
//! schedule of the simulator and whether values have checksums. The rest chooses where the segment
//! is overwritten, and with which bytes.

#![no_main]

#[path = "../../crates/outlast/tests/fuzz/mod.rs"]
#[allow(dead_code, reason = "the generator of damage is for the seeded tests")]
mod fuzz;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((first, damage)) = data.split_first_chunk::<9>() else { return };
    let seed = u64::from_le_bytes(first[..8].try_into().expect("8 bytes")) >> 16;
    fuzz::run(seed, damage, first[8] % 2 == 1);
});

//! Arbitrary bytes in a member's segment, as the fuzzer makes them: the first 9 say which schedule
//! the simulator takes and whether there are checksums, the rest where the segment is overwritten,
//! and with what.

#![no_main]

#[path = "../../crates/outlast/tests/support/damaged_segment.rs"]
#[allow(dead_code, reason = "seeds make their damage by themselves")]
mod fuzz;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((first, damage)) = data.split_first_chunk::<9>() else { return };
    let seed = u64::from_le_bytes(first[..8].try_into().expect("8 bytes")) >> 16;
    fuzz::run(seed, damage, first[8] % 2 == 1);
});

//! Arbitrary bytes in a member's segment: whatever is there, no member crashes, and no call goes on for ever.
//!
//! `OUTLAST_SEEDS` sets how many seeds, `OUTLAST_SEED_FIRST` the first one.

#![cfg(feature = "sim")]

use outlast::engine::sim::{self, Link, Options as SimOptions, Random};
use outlast::store::{Expect, Options, Store};
use outlast::{Engine, Epoch, Job, MemberId};
use std::time::Duration;

fn seeds(default: u64) -> std::ops::Range<u64> {
    let read = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let first = read("OUTLAST_SEED_FIRST").unwrap_or(0);
    first..first + read("OUTLAST_SEEDS").unwrap_or(default)
}

/// Destroys some words of a member's segment.
fn scribble(job: &Job, target: MemberId, random: &mut Random) {
    // It may have finished and left.
    let Ok(len) = job.segment_len(target) else { return };
    for _ in 0..1 + random.below(200) {
        let offset = random.below(len / 8) * 8;
        let word = match random.below(5) {
            0 => 0,
            1 => u64::MAX,
            2 => random.below(len),
            3 => random.below(1 << 20) << 44,
            _ => random.below(u64::MAX),
        };
        let _ = job.put(Epoch::ANY, target, offset, &word.to_ne_bytes());
    }
}

fn member(job: &Job, seed: u64) {
    let options = Options::new().replicas(2).partitions(4).expected_keys(16).slab_len_max(4 << 10);
    let store = Store::open(job, options).expect("open");
    let mut random = Random::new(seed << 8 | u64::from(job.me().0));
    for call in 0..60 {
        if call == 20 && job.me() == MemberId(0) {
            scribble(job, MemberId(1), &mut random);
        }
        let key = format!("key/{}", random.below(12));
        let key = key.as_bytes();
        // Every outcome will do, also an error: what was destroyed cannot be read. But there must be one.
        match random.below(8) {
            0 => _ = store.get(key),
            1 => _ = store.delete(key),
            2 => _ = store.put_if(key, b"conditional", Expect::Absent),
            3 => _ = store.add(key, 1),
            4 => _ = store.keys(),
            5 => _ = store.memory_use(),
            6 => _ = store.slot(key).and_then(|slot| slot.put(&[7; 40]).and_then(|_| slot.get())),
            _ => _ = store.put(key, &vec![7; random.below(700) as usize]),
        }
    }
    let _ = store.close();
    let _ = job.leave();
}

#[test]
fn arbitrary_bytes_in_a_segment_crash_nobody_and_hold_nobody_up() {
    for seed in seeds(60) {
        let mut options =
            SimOptions::new(3, seed).link(if seed % 2 == 0 { Link::Memory } else { Link::Network });
        options.steps_max = 40_000_000;
        options.time_limit = Duration::from_millis(20);
        let report = sim::run(&options, move |job| member(&job, seed));
        assert!(
            report.is_ok(),
            "seed {seed}: {:?}\n{:#?}\n{:#?}",
            report.outcome,
            report.panics,
            report.hung
        );
    }
}

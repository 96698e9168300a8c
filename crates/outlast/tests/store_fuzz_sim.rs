//! Arbitrary bytes in a member's segment: whatever is there, no member crashes, and no call goes on for ever. With checksums
//! nobody reads a value that was never written.
//!
//! `OUTLAST_SEEDS` sets how many seeds, `OUTLAST_SEED_FIRST` the first one.

#![cfg(feature = "sim")]

use outlast::engine::sim::{self, Link, Options as SimOptions, Random};
use outlast::store::{Expect, Options, Store, StoreError};
use outlast::{Engine, Epoch, Job, MemberId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
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

/// What was ever put, by key: noted before the put.
type Written = Rc<RefCell<BTreeSet<(Vec<u8>, Vec<u8>)>>>;

/// The same with checksums; every value that is read must be among those that were put for its key.
fn checked_member(job: &Job, seed: u64, written: &Written, corrupt: &Cell<u64>) {
    let options =
        Options::new().replicas(2).partitions(4).expected_keys(16).slab_len_max(4 << 10).checksums(true);
    let store = Store::open(job, options).expect("open");
    let mut random = Random::new(seed << 8 | u64::from(job.me().0));
    let check = |key: &[u8], value: &[u8]| {
        let is_known = written.borrow().contains(&(key.to_vec(), value.to_vec()));
        assert!(
            is_known,
            "seed {seed}: {} was never {} bytes {value:02x?}",
            String::from_utf8_lossy(key),
            value.len()
        );
    };
    for call in 0..100u64 {
        if call == 30 && job.me() == MemberId(0) {
            (0..4).for_each(|_| scribble(job, MemberId(1), &mut random));
        }
        let key = format!("key/{}", random.below(12));
        let key = key.as_bytes();
        let number = u64::from(job.me().0) << 32 | call;
        let mut value = number.to_le_bytes().repeat(1 + random.below(60) as usize);
        value.truncate(value.len() - random.below(8) as usize);
        let mut buffer = [0; 600];
        let found = match random.below(7) {
            0 | 1 => store.get(key).map(|value| value.map(|value| value.into_bytes())),
            2 => store.get_into(key, &mut buffer).map(|found| found.map(|(len, _)| buffer[..len].to_vec())),
            3 => store.pin(key).and_then(|pin| pin.map(|pin| pin.to_vec()).transpose()),
            4 => {
                store.slot(key).and_then(|slot| slot.get()).map(|value| value.map(|value| value.into_bytes()))
            }
            5 => store.delete(key).map(|_| None),
            _ => {
                written.borrow_mut().insert((key.to_vec(), value.clone()));
                store.put(key, &value).map(|_| None)
            }
        };
        match found {
            Ok(Some(value)) => check(key, &value),
            Ok(None) => {}
            Err(StoreError::Corrupt { what, .. }) if what.contains("checksum") => {
                corrupt.set(corrupt.get() + 1)
            }
            // What was destroyed cannot be read.
            Err(_) => {}
        }
    }
    let _ = store.close();
    let _ = job.leave();
}

#[test]
fn with_checksums_nobody_reads_what_was_never_written() {
    let corrupt = Rc::new(Cell::new(0));
    for seed in seeds(200) {
        let mut options =
            SimOptions::new(3, seed).link(if seed % 2 == 0 { Link::Memory } else { Link::Network });
        options.steps_max = 40_000_000;
        options.time_limit = Duration::from_millis(20);
        let (written, corrupt) = (Written::default(), corrupt.clone());
        let report = sim::run(&options, move |job| checked_member(&job, seed, &written, &corrupt));
        assert!(
            report.is_ok(),
            "seed {seed}: {:?}\n{:#?}\n{:#?}",
            report.outcome,
            report.panics,
            report.hung
        );
    }
    assert!(corrupt.get() > 0, "no checksum was ever wrong");
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

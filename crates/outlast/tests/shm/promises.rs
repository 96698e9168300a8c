//! The promises of the store, each under its name, with real processes that die by SIGKILL in the
//! middle of an engine step, chosen at random or within each step of a protocol. `sim/promises.rs`
//! runs these scenarios over many seeds.

use crate::members::{SEED, expect_ok_within, is_member, members, parameter};
use crate::promise_bodies::{self, Chance, MEMBERS};
use crate::reexecution::this_test;
use outlast::failpoint;
use outlast::launch::Outcome;
use outlast::store::steps;
use outlast::{Job, MemberId};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);

/// In a member, plays its part. Otherwise starts the members, three times.
fn run(test: &str, deaths: usize, part: fn(Job, Chance)) {
    if is_member(test) {
        let seed = parameter(SEED);
        return part(outlast::join().expect("a member"), Chance { seed, calls: 300 });
    }
    for seed in 0..3 {
        assert_eq!(start(test, seed).deaths().count(), deaths, "seed {seed}");
    }
}

/// Starts the members of a test and waits for their end. The survivors must have ended well.
fn start(test: &str, seed: u64) -> Outcome {
    let running = members(test, MEMBERS).env(SEED, seed.to_string()).start().expect("started");
    expect_ok_within(running, LIMIT, &format!("{test}, seed {seed}"))
}

#[test]
fn promise_1_durable() {
    run(this_test!(), 2, promise_bodies::durable);
}

#[test]
fn promise_2_atomic() {
    run(this_test!(), 2, promise_bodies::atomic);
}

#[test]
fn promise_3_linearizable() {
    run(this_test!(), 2, promise_bodies::linearizable);
}

#[test]
fn promise_4_bounded() {
    run(this_test!(), 2, promise_bodies::bounded);
}

#[test]
fn promise_5_repaired() {
    run(this_test!(), 2, promise_bodies::repaired_in_time);
}

#[test]
fn promise_6_all_or_nothing() {
    run(this_test!(), 2, promise_bodies::all_or_nothing_at_random);
}

/// SIGKILL inside of each step of a commit: the members 1 and 3 die in equal steps, in turn or at
/// once.
#[test]
fn promise_6_all_or_nothing_in_each_step() {
    let test = this_test!();
    let names = ["tx.intent", "tx.lock", "tx.validate", "tx.commit", "tx.apply"];
    if is_member(test) {
        let seed: usize = parameter(SEED);
        let step =
            steps::NAMES.iter().position(|name| *name == names[seed % 5]).expect("a known step");
        let chance = Chance { seed: seed as u64, calls: 300 };
        return promise_bodies::all_or_nothing(outlast::join().expect("a member"), chance, |job| {
            if job.me().0 % 2 == 1 {
                // Every step has at least a few engine steps.
                failpoint::die_in(
                    step as u32,
                    1 + (seed as u64 * 7 + u64::from(job.me().0) * 3) % 5,
                );
            }
        });
    }
    for seed in 0..15 {
        let outcome = start(test, seed);
        for member in [1, 3].map(MemberId) {
            let words = outcome.stderr(member);
            assert!(
                words.contains(&format!("{}{}", failpoint::LAST_WORDS, names[seed as usize % 5])),
                "{words}"
            );
        }
    }
}

#[test]
fn promise_6_all_or_nothing_in_global_mode() {
    run(this_test!(), 2, promise_bodies::all_or_nothing_globally_at_random);
}

/// SIGKILL inside of each step of a recovery: member 3 dies in a transfer, and member 1 in the
/// recovery from that death.
#[test]
fn promise_6_all_or_nothing_in_each_step_of_a_recovery() {
    let test = this_test!();
    let names: Vec<&str> =
        steps::NAMES.iter().copied().filter(|name| name.starts_with("recover.")).collect();
    assert_eq!(names.len(), 5);
    if is_member(test) {
        let seed: usize = parameter(SEED);
        let index = |wanted: &str| {
            steps::NAMES.iter().position(|name| *name == wanted).expect("a known step")
        };
        let chance = Chance { seed: seed as u64, calls: 300 };
        return promise_bodies::all_or_nothing_globally(
            outlast::join().expect("a member"),
            chance,
            |job| match job.me().0 {
                1 => failpoint::die_in(index(names[seed % 5]) as u32, 1 + seed as u64 * 7 % 3),
                3 => failpoint::die_in(index("tx.commit") as u32, 1 + seed as u64 % 5),
                _ => {}
            },
        );
    }
    // A step may have no engine step left after its first: then the death is in a later step.
    let mut hit: std::collections::BTreeSet<&str> = std::collections::BTreeSet::new();
    for seed in 0..15 {
        let words = start(test, seed).stderr(MemberId(1));
        assert!(words.contains(failpoint::LAST_WORDS), "{words}");
        hit.extend(
            names.iter().filter(|name| words.contains(&format!("{}{name}", failpoint::LAST_WORDS))),
        );
    }
    assert!(hit.len() >= 4, "{hit:?}");
}

#[test]
fn promise_7_honest_about_loss_in_global_mode() {
    run(this_test!(), 1, promise_bodies::honest_globally);
}

#[test]
fn promise_7_honest_about_loss() {
    run(this_test!(), 1, promise_bodies::honest);
}

/// Neither a named object nor a process is left behind.
#[test]
fn promise_8_clean() {
    let names = || -> Vec<_> {
        let entries = std::fs::read_dir("/dev/shm").expect("readable");
        let mut names: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
        names.sort();
        names
    };
    let before = names();
    let test = this_test!();
    run(test, 2, promise_bodies::clean);
    if !is_member(test) {
        let new: Vec<_> = names().into_iter().filter(|name| !before.contains(name)).collect();
        let ours: Vec<_> =
            new.iter().filter(|name| name.to_string_lossy().contains("outlast")).collect();
        assert!(ours.is_empty(), "{ours:?}");
    }
}

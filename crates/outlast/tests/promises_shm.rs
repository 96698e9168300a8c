//! The promises, each under its name, with real processes that die by SIGKILL in the middle of an engine step.
//!
//! A test starts this test binary again, once for each member, with the name of the test; the members find themselves
//! in the same function and play their part.

#![cfg(feature = "faults")]

mod promises;

use outlast::failpoint;
use outlast::launch::{Launch, Outcome, Output};
use outlast::store::steps;
use outlast::{Job, MemberId};
use promises::{Chance, MEMBERS};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);
const ROLE: &str = "OUTLAST_TEST_MEMBER_OF";
const SEED: &str = "OUTLAST_TEST_SEED";

/// Plays the part in a member; elsewhere starts the members, three times over.
fn run(test: &str, deaths: usize, part: fn(Job, Chance)) {
    if std::env::var(ROLE).is_ok_and(|name| name == test) {
        let seed = std::env::var(SEED).expect("a seed").parse().expect("a number");
        return part(outlast::join().expect("a member"), Chance { seed, calls: 300 });
    }
    for seed in 0..3 {
        assert_eq!(start(test, seed).deaths().count(), deaths, "seed {seed}");
    }
}

/// Starts the members of a test and waits for their end; the survivors must have ended well.
fn start(test: &str, seed: u64) -> Outcome {
    let mut running = Launch::new(MEMBERS)
        .program(std::env::current_exe().expect("own path"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, test)
        .env(SEED, seed.to_string())
        .segment_limit(64 << 20)
        .output(Output::Capture)
        .start()
        .expect("started");
    let outcome = running.wait(LIMIT);
    if !outcome.survivors_ok() {
        for end in &outcome.members {
            println!(
                "--- {}\n{}{}",
                end.member,
                outcome.stdout(end.member),
                outcome.stderr(end.member)
            );
        }
        panic!("seed {seed}: {outcome}");
    }
    outcome
}

#[test]
fn promise_1_durable() {
    run("promise_1_durable", 2, promises::durable);
}

#[test]
fn promise_2_atomic() {
    run("promise_2_atomic", 2, promises::atomic);
}

#[test]
fn promise_3_linearizable() {
    run("promise_3_linearizable", 2, promises::linearizable);
}

#[test]
fn promise_4_bounded() {
    run("promise_4_bounded", 2, promises::bounded);
}

#[test]
fn promise_5_repaired() {
    run("promise_5_repaired", 2, promises::repaired_in_time);
}

#[test]
fn promise_6_all_or_nothing() {
    run("promise_6_all_or_nothing", 2, promises::all_or_nothing_at_random);
}

/// By SIGKILL inside each step of a commit: the members 1 and 3 die in the same step, one after the other or at once.
#[test]
fn promise_6_all_or_nothing_in_each_step() {
    const TEST: &str = "promise_6_all_or_nothing_in_each_step";
    let names = ["tx.intent", "tx.lock", "tx.validate", "tx.commit", "tx.apply"];
    if std::env::var(ROLE).is_ok_and(|name| name == TEST) {
        let seed: usize = std::env::var(SEED).expect("a seed").parse().expect("a number");
        let step =
            steps::NAMES.iter().position(|name| *name == names[seed % 5]).expect("one of them");
        let chance = Chance { seed: seed as u64, calls: 300 };
        return promises::all_or_nothing(outlast::join().expect("a member"), chance, |job| {
            if job.me().0 % 2 == 1 {
                // Every step has a few engine steps at least.
                failpoint::die_in(
                    step as u32,
                    1 + (seed as u64 * 7 + u64::from(job.me().0) * 3) % 5,
                );
            }
        });
    }
    for seed in 0..15 {
        let outcome = start(TEST, seed);
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
    run("promise_6_all_or_nothing_in_global_mode", 2, promises::all_or_nothing_globally_at_random);
}

/// By SIGKILL inside each step of a recovery: member 3 dies in a transfer, and member 1 in the recovery from that.
#[test]
fn promise_6_all_or_nothing_in_each_step_of_a_recovery() {
    const TEST: &str = "promise_6_all_or_nothing_in_each_step_of_a_recovery";
    let names: Vec<&str> =
        steps::NAMES.iter().copied().filter(|name| name.starts_with("recover.")).collect();
    assert_eq!(names.len(), 5);
    if std::env::var(ROLE).is_ok_and(|name| name == TEST) {
        let seed: usize = std::env::var(SEED).expect("a seed").parse().expect("a number");
        let index = |wanted: &str| {
            steps::NAMES.iter().position(|name| *name == wanted).expect("one of them")
        };
        let chance = Chance { seed: seed as u64, calls: 300 };
        return promises::all_or_nothing_globally(
            outlast::join().expect("a member"),
            chance,
            |job| match job.me().0 {
                1 => failpoint::die_in(index(names[seed % 5]) as u32, 1 + seed as u64 * 7 % 3),
                3 => failpoint::die_in(index("tx.commit") as u32, 1 + seed as u64 % 5),
                _ => {}
            },
        );
    }
    // A step may have no engine step of its own left after the first: then it is one of those that follow.
    let mut hit: std::collections::BTreeSet<&str> = std::collections::BTreeSet::new();
    for seed in 0..15 {
        let words = start(TEST, seed).stderr(MemberId(1));
        assert!(words.contains(failpoint::LAST_WORDS), "{words}");
        hit.extend(
            names.iter().filter(|name| words.contains(&format!("{}{name}", failpoint::LAST_WORDS))),
        );
    }
    assert!(hit.len() >= 4, "{hit:?}");
}

#[test]
fn promise_7_honest_about_loss_in_global_mode() {
    run("promise_7_honest_about_loss_in_global_mode", 1, promises::honest_globally);
}

#[test]
fn promise_7_honest_about_loss() {
    run("promise_7_honest_about_loss", 1, promises::honest);
}

/// Nothing that has a name is left behind, and no process.
#[test]
fn promise_8_clean() {
    let names = || -> Vec<_> {
        let entries = std::fs::read_dir("/dev/shm").expect("readable");
        let mut names: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
        names.sort();
        names
    };
    let before = names();
    run("promise_8_clean", 2, promises::clean);
    if std::env::var(ROLE).is_err() {
        let new: Vec<_> = names().into_iter().filter(|name| !before.contains(name)).collect();
        let ours: Vec<_> =
            new.iter().filter(|name| name.to_string_lossy().contains("outlast")).collect();
        assert!(ours.is_empty(), "{ours:?}");
    }
}

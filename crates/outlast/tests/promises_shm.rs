//! The promises, each under its name, with real processes that die by SIGKILL in the middle of an engine step.
//!
//! A test starts this test binary again, once for each member, with the name of the test; the members find themselves
//! in the same function and play their part.

#![cfg(feature = "faults")]

mod promises;

use outlast::Job;
use outlast::launch::{Launch, Output};
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
        if !outcome.survivors_ok() || outcome.deaths().count() != deaths {
            for end in &outcome.members {
                println!("--- {}\n{}{}", end.member, outcome.stdout(end.member), outcome.stderr(end.member));
            }
            panic!("seed {seed}: {outcome}");
        }
    }
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
        let ours: Vec<_> = new.iter().filter(|name| name.to_string_lossy().contains("outlast")).collect();
        assert!(ours.is_empty(), "{ours:?}");
    }
}

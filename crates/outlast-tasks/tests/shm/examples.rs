//! The programs of `examples/rust/tasks` as processes: each without a death, and with each of its
//! members killed while it runs.

use crate::members::{LIMIT, example};
use outlast::MemberId;
use outlast::launch::{Launch, Output};
use std::time::{Duration, Instant};

const MEMBERS: u32 = 4;

/// Runs an example, and kills a member as soon as all of them have begun.
fn run(name: &str, victim: Option<u32>) {
    let mut running = Launch::new(MEMBERS as usize)
        .program(example(name))
        .segment_limit(64 << 20)
        .output(Output::Capture)
        .start()
        .expect("starts");
    let has_begun = |member: u32| {
        let said = running.output(MemberId(member)).stdout;
        String::from_utf8_lossy(&said).contains("begins")
    };
    let until = Instant::now() + LIMIT;
    while !(0..MEMBERS).all(has_begun) && running.running() > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    if let Some(victim) = victim {
        // A member that has ended already was right, too.
        running.kill(MemberId(victim)).expect("is a member");
    }
    let outcome = running.wait(LIMIT);
    assert!(outcome.survivors_ok(), "{name}, {victim:?} killed: {outcome}");
    for end in outcome.survivors() {
        let said = outcome.stdout(end.member);
        assert!(said.contains("which is right"), "{name}, {victim:?} killed: {said}");
    }
    let dead = outcome.members.len() - outcome.survivors().count();
    assert!(dead <= usize::from(victim.is_some()), "{name}: {outcome}");
}

fn check(name: &str) {
    run(name, None);
    (0..MEMBERS).for_each(|victim| run(name, Some(victim)));
}

#[test]
fn fib() {
    check("fib");
}

#[test]
fn queens() {
    check("queens");
}

#[test]
fn uts() {
    check("uts");
}

#[test]
fn tiles() {
    check("tiles");
}

#[test]
fn sweep() {
    check("sweep");
}

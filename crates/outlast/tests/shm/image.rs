//! Images with real processes that die by SIGKILL in the middle of an engine step, or are stopped.

use crate::image_bodies::{self, Chance, MEMBERS};
use crate::members::{SEED, expect_ok_within, is_member, members, parameter};
use crate::reexecution::this_test;
use outlast::Job;
use std::time::Duration;

/// In a member, plays its part. Otherwise starts the members, twice.
fn run(test: &str, deaths: usize, part: fn(Job, Chance)) {
    if is_member(test) {
        let chance = Chance { seed: parameter(SEED), saves: 60, steps: 200 };
        return part(outlast::join().expect("a member"), chance);
    }
    for seed in 0..2 {
        let running = members(test, MEMBERS).env(SEED, seed.to_string()).start().expect("started");
        let outcome =
            expect_ok_within(running, Duration::from_secs(90), &format!("{test}, seed {seed}"));
        assert_eq!(outcome.deaths().count(), deaths, "seed {seed}");
    }
}

#[test]
fn image_promise_1_kept() {
    run(this_test!(), 2, image_bodies::kept);
}

#[test]
fn image_promise_6_whole_again() {
    run(this_test!(), 3, image_bodies::whole_again);
}

#[test]
fn image_promise_8_honest() {
    run(this_test!(), 2, image_bodies::honest);
}

#[test]
fn regions_are_saved_by_all_callers_or_by_none() {
    run(this_test!(), 2, image_bodies::regions_all_or_nobody);
}

#[test]
fn regions_are_filled_as_they_were() {
    run(this_test!(), 0, image_bodies::regions_are_filled_as_they_were);
}

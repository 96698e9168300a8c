//! What the tests in the simulator have in common.
#![allow(dead_code, reason = "each of the tests uses its part")]

use outlast::Job;
use outlast::sim::{self, Options};
use std::time::Duration;

/// The seeds to run: so many from 0 on, or those that OUTLAST_SEED_FIRST and OUTLAST_SEEDS ask for.
pub(crate) fn seeds(default: u64) -> std::ops::Range<u64> {
    seeds_in(0..default)
}

/// The same, where the first one is not 0 by itself.
pub(crate) fn seeds_in(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let read = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let first = read("OUTLAST_SEED_FIRST").unwrap_or(default.start);
    first..first + read("OUTLAST_SEEDS").unwrap_or(default.end - default.start)
}

/// Runs a simulation in which nothing may panic, hang or take too many steps.
#[track_caller]
pub(crate) fn run_with(mut options: Options, body: impl Fn(Job) + 'static) {
    options.steps_max = 20_000_000;
    sim::run(&options, body).expect_ok();
}

/// Waits for something that is to happen before long.
#[track_caller]
pub(crate) fn nap(job: &Job, what: &str, until: impl Fn() -> bool) {
    let deadline = job.now().after(Duration::from_secs(120));
    while !until() {
        assert!(job.now() < deadline, "{} waited in vain for {what}", job.me());
        job.sleep(Duration::from_millis(1));
    }
}

//! The promises of the store, each under its name, under the simulator: many seeds, both links,
//! deaths at any step. `shm/promises.rs` runs these scenarios with processes.

use crate::promise_bodies::{self, Chance, MEMBERS};
use crate::simulation::{run_with, seeds};
use outlast::Job;
use outlast::sim::{Link, Options};

fn run(part: fn(Job, Chance)) {
    for seed in seeds(16) {
        let options = Options::new(MEMBERS, seed).link(Link::of_seed(seed));
        run_with(options, move |job| part(job, Chance { seed, calls: 40 }));
    }
}

#[test]
fn promise_1_durable() {
    run(promise_bodies::durable);
}

#[test]
fn promise_2_atomic() {
    run(promise_bodies::atomic);
}

#[test]
fn promise_3_linearizable() {
    run(promise_bodies::linearizable);
}

#[test]
fn promise_4_bounded() {
    run(promise_bodies::bounded);
}

#[test]
fn promise_5_repaired() {
    run(promise_bodies::repaired_in_time);
}

#[test]
fn promise_6_all_or_nothing() {
    run(promise_bodies::all_or_nothing_at_random);
}

#[test]
fn promise_6_all_or_nothing_in_global_mode() {
    run(promise_bodies::all_or_nothing_globally_at_random);
}

#[test]
fn promise_7_honest_about_loss_in_global_mode() {
    run(promise_bodies::honest_globally);
}

#[test]
fn promise_7_honest_about_loss() {
    run(promise_bodies::honest);
}

#[test]
fn promise_8_clean() {
    run(promise_bodies::clean);
}

//! The promises, each under its name, under the simulator: many seeds, both links, deaths at any step.
//!
//! `OUTLAST_SEEDS` sets how many seeds, `OUTLAST_SEED_FIRST` the first one.

#![cfg(feature = "sim")]

mod common;
mod promises;

use common::{run_with, seeds};
use outlast::Job;
use outlast::sim::{Link, Options};
use promises::{Chance, MEMBERS};

fn run(part: fn(Job, Chance)) {
    for seed in seeds(16) {
        let options = Options::new(MEMBERS, seed).link(Link::of_seed(seed));
        run_with(options, move |job| part(job, Chance { seed, calls: 40 }));
    }
}

#[test]
fn promise_1_durable() {
    run(promises::durable);
}

#[test]
fn promise_2_atomic() {
    run(promises::atomic);
}

#[test]
fn promise_3_linearizable() {
    run(promises::linearizable);
}

#[test]
fn promise_4_bounded() {
    run(promises::bounded);
}

#[test]
fn promise_5_repaired() {
    run(promises::repaired_in_time);
}

#[test]
fn promise_6_all_or_nothing() {
    run(promises::all_or_nothing_at_random);
}

#[test]
fn promise_6_all_or_nothing_in_global_mode() {
    run(promises::all_or_nothing_globally_at_random);
}

#[test]
fn promise_7_honest_about_loss_in_global_mode() {
    run(promises::honest_globally);
}

#[test]
fn promise_7_honest_about_loss() {
    run(promises::honest);
}

#[test]
fn promise_8_clean() {
    run(promises::clean);
}

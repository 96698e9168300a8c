//! The programs of `examples/rust/ulfm` under the simulator: their code, with members that die at
//! any step, over many seeds and both links. `shm/rma/examples.rs` runs the programs as processes.

// The simulator uses neither the `main` of the programs nor the code by which they kill members.
#![allow(dead_code)]
// Each program is complete by itself and has its own copy of the module that they share.
#![allow(clippy::duplicate_mod)]

#[path = "../../../../../examples/rust/ulfm/bag_of_tasks.rs"]
mod bag_of_tasks;
#[path = "../../../../../examples/rust/ulfm/buddy_checkpoint.rs"]
mod buddy_checkpoint;
#[path = "../../../../../examples/rust/ulfm/grid.rs"]
mod grid;
#[path = "../../../../../examples/rust/ulfm/insulation.rs"]
mod insulation;
#[path = "../../../../../examples/rust/ulfm/iterations_as_transactions.rs"]
mod iterations_as_transactions;
#[path = "../../../../../examples/rust/ulfm/return_shrink_go_on.rs"]
mod return_shrink_go_on;

use crate::reexecution::this_test;
use crate::simulation::{replay, seeds};
use outlast::Job;
use outlast::sim::{self, Link, Options, Random};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

type TakePart = fn(&Job) -> Result<(), Box<dyn std::error::Error>>;

/// Runs an example with up to `kills` deaths at any of the first `steps` steps of the members. All
/// survivors end with the right result. An error is excused only if `excuse` accepts it.
fn check(
    test: &str,
    members: usize,
    kills: u64,
    steps: u64,
    excuse: fn(&str) -> bool,
    take_part: TakePart,
) {
    let seeds = seeds(100);
    let count = seeds.end - seeds.start;
    let (mut finished, mut deaths) = (0, 0);
    for seed in seeds {
        let mut random = Random::new(seed ^ 0x756C_666D);
        let link = Link::of_seed(seed);
        let mut options = Options::new(members, seed).link(link);
        if random.chance(2) {
            options.detection = Duration::from_nanos(100)..=Duration::from_millis(2);
        }
        let options = options.random_faults(random.below(kills + 1) as usize, 0, steps);
        let results: Rc<RefCell<Vec<Option<String>>>> = Rc::default();
        let log = results.clone();
        let report = sim::run(&options, move |job| {
            let result = take_part(&job).err().map(|error| error.to_string());
            log.borrow_mut().push(result);
            let _ = job.leave();
        });
        let replay = format!("seed {seed}\n{}", replay(test, seed));
        assert!(
            report.is_ok(),
            "{:?} {:?} {:?} {replay}",
            report.outcome,
            report.panics,
            report.hung
        );
        let results = results.borrow();
        for error in results.iter().flatten() {
            assert!(excuse(error), "{error} {replay}");
        }
        let is_finished = results.iter().any(Option::is_none);
        finished += u64::from(is_finished);
        deaths += u64::from(is_finished && results.len() < members);
    }
    println!("{finished} of {count} runs came to the result, {deaths} of them with deaths");
    assert!(
        count < 100 || deaths > count / 10,
        "only {deaths} runs with deaths came to the result"
    );
}

fn never(_: &str) -> bool {
    false
}

#[test]
fn return_shrink_go_on_in_sim() {
    let members = return_shrink_go_on::MEMBERS;
    check(this_test!(), members, 4, 400, never, return_shrink_go_on::take_part);
}

#[test]
fn grid_in_sim() {
    check(this_test!(), grid::MEMBERS, 1, 900, never, grid::take_part);
}

#[test]
fn bag_of_tasks_in_sim() {
    check(this_test!(), bag_of_tasks::MEMBERS, 4, 600, never, bag_of_tasks::take_part);
}

#[test]
fn iterations_as_transactions_in_sim() {
    let take_part = iterations_as_transactions::take_part;
    check(this_test!(), iterations_as_transactions::MEMBERS, 3, 600, never, take_part);
}

/// A member that dies before the halves are made prevents them.
#[test]
fn insulation_in_sim() {
    let excuse = |error: &str| error.contains("dead") || error.contains("revoked");
    check(this_test!(), insulation::MEMBERS, 1, 2000, excuse, insulation::take_part);
}

/// A member that dies before the first or after the last checkpoint is missing: the example reports
/// an error, never a wrong result.
#[test]
fn buddy_checkpoint_in_sim() {
    let excuse = |error: &str| error.contains("dead") || error.contains("revoked");
    check(this_test!(), buddy_checkpoint::MEMBERS, 1, 900, excuse, buddy_checkpoint::take_part);
}

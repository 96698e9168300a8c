//! The scenarios of [`crate::window_scenarios`] among the ranks of a real mpirun, with real kills
//! and stops, by messages alone and as nodes.

use crate::members::{is_member, parameter};
use crate::ranks;
use crate::reexecution::this_test;
use crate::window_scenarios::{MEMBERS, SCENARIOS, scenario};

/// The environment variable that names the scenario to the members.
const SCENARIO: &str = "OUTLAST_TEST_SCENARIO";

/// Runs all scenarios. In a member, plays its part in a scenario.
fn run_all(test: &str, path: &str) {
    if is_member(test) {
        let name: String = parameter(SCENARIO);
        return scenario(&name)(&outlast::join().expect("joined"));
    }
    let _turn = ranks::take_turn();
    for (name, _) in SCENARIOS {
        let began = std::time::Instant::now();
        let launch = ranks::launch(test, MEMBERS).env(SCENARIO, name).env("OUTLAST_MPI_PATH", path);
        ranks::expect_ok(ranks::start(launch), &format!("{name} by {path}"));
        println!("{name} by {path}: {:?}", began.elapsed());
    }
}

#[test]
fn windows_by_messages() {
    run_all(this_test!(), "messages");
}

#[test]
fn windows_on_nodes() {
    run_all(this_test!(), ranks::nodes());
}

//! The scenarios of windows among the ranks of a real mpirun, with real kills and stops, by messages alone and as nodes.

#![cfg(all(feature = "mpi", feature = "faults"))]

#[path = "common/mpirun.rs"]
mod mpirun;
mod window_scenarios;

use window_scenarios::{MEMBERS, SCENARIOS};

/// Which scenario this process is a member in.
const ROLE: &str = "OUTLAST_TEST_MEMBER_OF";

/// Runs all scenarios, or plays the part of a member in one.
fn run_all(test: &str, path: &str) {
    if let Ok(name) = std::env::var(ROLE) {
        let (_, body) = SCENARIOS.iter().find(|(other, _)| *other == name).expect("a scenario");
        return body(&outlast::join().expect("joined"));
    }
    for (name, _) in SCENARIOS {
        let began = std::time::Instant::now();
        let launch = mpirun::launch(test, MEMBERS).env(ROLE, name).env("OUTLAST_MPI_PATH", path);
        mpirun::expect_ok(mpirun::start(launch), &format!("{name} by {path}"));
        println!("{name} by {path}: {:?}", began.elapsed());
    }
}

#[test]
fn windows_by_messages() {
    run_all("windows_by_messages", "messages");
}

#[test]
fn windows_on_nodes() {
    run_all("windows_on_nodes", mpirun::nodes());
}

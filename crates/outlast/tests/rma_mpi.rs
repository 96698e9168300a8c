//! The scenarios of windows among the ranks of a real mpirun, with real kills and stops. How members reach each other is up
//! to OUTLAST_MPI_PATH: by messages alone, or as nodes of two.
//!
//! Under `outlast hosts N -- ...` the ranks are on those hosts: OUTLAST_MPIRUN_OPTIONS says how.

#![cfg(all(feature = "mpi", feature = "faults"))]

mod window_scenarios;

use outlast::launch::{Launch, Mpirun, Output};
use std::path::Path;
use std::time::Duration;
use window_scenarios::{MEMBERS, SCENARIOS};

const LIMIT: Duration = Duration::from_secs(60);
/// Which scenario this process is a member in.
const ROLE: &str = "OUTLAST_TEST_MEMBER_OF";

/// Runs all scenarios, or plays the part of a member in one.
fn run_all(test: &str, path: &str) {
    if let Ok(name) = std::env::var(ROLE) {
        let (_, body) = SCENARIOS.iter().find(|(other, _)| *other == name).expect("a scenario");
        return body(&outlast::join().expect("joined"));
    }
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/mpi/bin/mpirun");
    let options = std::env::var("OUTLAST_MPIRUN_OPTIONS").unwrap_or_default();
    let options: Vec<&str> = options.split_whitespace().collect();
    let mpirun = if installed.exists() { Mpirun::new(installed) } else { Mpirun::new("mpirun") };
    for (name, _) in SCENARIOS {
        let launch = Launch::new(MEMBERS)
            .program(std::env::current_exe().expect("own path"))
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, name)
            .env("OUTLAST_MPI_PATH", path)
            .segment_limit(64 << 20)
            .output(Output::Capture)
            .mpirun(mpirun.clone().options(options.clone()));
        let began = std::time::Instant::now();
        let outcome = launch.start().expect("mpirun starts; `cargo xtask mpi` installs it").wait(LIMIT);
        println!("{name} by {path}: {:?}", began.elapsed());
        if !outcome.survivors_ok() {
            for end in &outcome.members {
                println!("--- {}\n{}{}", end.member, outcome.stdout(end.member), outcome.stderr(end.member));
            }
            panic!("{name} by {path}: {outcome}");
        }
    }
}

#[test]
fn windows_by_messages() {
    run_all("windows_by_messages", "messages");
}

#[test]
fn windows_on_nodes() {
    run_all(
        "windows_on_nodes",
        if std::env::var("OUTLAST_MPIRUN_OPTIONS").is_ok() { "nodes" } else { "groups:2" },
    );
}

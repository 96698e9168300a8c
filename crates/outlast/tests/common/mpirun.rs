//! Jobs of a test under mpirun: this test binary again, with the name of the test.
//!
//! Under `outlast hosts N -- ...` the ranks are on those hosts: OUTLAST_MPIRUN_OPTIONS says how.

use outlast::launch::{Launch, Mpirun, Output, Running};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// What to start as so many ranks.
pub(crate) fn launch(test: &str, members: usize) -> Launch {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/mpi/bin/mpirun");
    let mpirun = if installed.exists() { Mpirun::new(installed) } else { Mpirun::new("mpirun") };
    let options = std::env::var("OUTLAST_MPIRUN_OPTIONS").unwrap_or_default();
    Launch::new(members)
        .program(std::env::current_exe().expect("own path"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env("OUTLAST_MPI_PATH", nodes())
        .segment_limit(64 << 20)
        .output(Output::Capture)
        .mpirun(mpirun.options(options.split_whitespace()))
}

/// The OUTLAST_MPI_PATH for a job of several nodes: the hosts, or two members of this one each.
pub(crate) fn nodes() -> &'static str {
    if std::env::var_os("OUTLAST_MPIRUN_OPTIONS").is_some() { "nodes" } else { "groups:2" }
}

pub(crate) fn start(launch: Launch) -> Running {
    launch.start().expect("mpirun starts; `cargo xtask mpi` installs it")
}

/// Waits for the end, and fails unless all that nobody killed have finished well.
#[track_caller]
pub(crate) fn expect_ok(mut running: Running, what: &str) {
    let outcome = running.wait(LIMIT);
    if !outcome.survivors_ok() {
        for end in &outcome.members {
            println!(
                "--- {}\n{}{}",
                end.member,
                outcome.stdout(end.member),
                outcome.stderr(end.member)
            );
        }
        panic!("{what}: {outcome}");
    }
}

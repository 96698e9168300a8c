//! Jobs of a test under mpirun: the test binary started again by the launcher, once per rank.
//!
//! Under `outlast hosts N -- ...` the ranks are on several hosts: OUTLAST_MPIRUN_OPTIONS says how.

use crate::members::{self, LIMIT};
use outlast::launch::{Launch, Mpirun, Running};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

/// Waits until no other test of this binary runs a job. The machine is small, and tests look at
/// times: jobs of several tests at once would disturb each other.
pub(crate) fn take_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The mpirun that `MPIRUN` names, the one that `cargo xtask mpi` installed, or that of the `PATH`.
pub(crate) fn mpirun() -> PathBuf {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/mpi/bin/mpirun");
    match std::env::var_os("MPIRUN") {
        Some(named) => named.into(),
        None if installed.exists() => installed,
        None => "mpirun".into(),
    }
}

/// Prepares the start of this test binary as ranks of the named test.
pub(crate) fn launch(test: &str, count: usize) -> Launch {
    let options = std::env::var("OUTLAST_MPIRUN_OPTIONS").unwrap_or_default();
    members::members(test, count)
        .env("OUTLAST_MPI_PATH", nodes())
        .mpirun(Mpirun::new(mpirun()).options(options.split_whitespace()))
}

/// The OUTLAST_MPI_PATH for a job of several nodes: the hosts, or nodes of two members on this
/// host.
pub(crate) fn nodes() -> &'static str {
    if std::env::var_os("OUTLAST_MPIRUN_OPTIONS").is_some() { "nodes" } else { "groups:2" }
}

pub(crate) fn start(launch: Launch) -> Running {
    launch.start().expect("mpirun starts; `cargo xtask mpi` installs it")
}

/// Waits for the end, and fails unless all members finished well, except for the killed.
#[track_caller]
pub(crate) fn expect_ok(running: Running, what: &str) {
    members::expect_ok_within(running, LIMIT, what);
}

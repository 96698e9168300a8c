//! Running scenarios on mpi: the members are the processes of an `mpirun`.

use crate::Scenario;
use crate::member::watch;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs a scenario once under this mpirun, with `program` (the command of this crate, built with
/// the feature `mpi`) as its members. `path` says how the members reach each other: `nodes`, by
/// shared memory, as members of a node do, or `messages`. Returns how long it took, or the reason
/// of a failure. No process is left running.
///
/// Further options of mpirun come from OUTLAST_MPIRUN_OPTIONS, which `outlast hosts` sets.
///
/// The exit status of mpirun means nothing once a process has died, so the members report their
/// success themselves.
pub fn run(
    mpirun: &Path,
    program: &Path,
    scenario: &'static Scenario,
    seed: u64,
    path: &str,
) -> Result<Duration, String> {
    let began = Instant::now();
    let mut command = Command::new(mpirun);
    let options = std::env::var("OUTLAST_MPIRUN_OPTIONS").unwrap_or_default();
    command
        .args(options.split_whitespace())
        .args(["--with-ft", "ulfm", "--oversubscribe", "-n", &scenario.total().to_string()])
        .arg(program)
        .args(["member", "--scenario", scenario.name, "--seed", &seed.to_string()])
        .env("OUTLAST_MPI_PATH", path)
        .env("OUTLAST_SPARES", scenario.spares.to_string())
        .env_remove("OUTLAST_ENGINE");
    let _folder = outlast::launch::prepare(&mut command).map_err(|error| error.to_string())?;
    watch(command, scenario)?.check(scenario)?;
    Ok(began.elapsed())
}

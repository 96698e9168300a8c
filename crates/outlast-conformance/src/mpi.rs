//! Running scenarios on mpi: the members are the processes of an `mpirun`.

use crate::Scenario;
use crate::member::watch;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs a scenario once under this mpirun, with `program` (the command of this crate, built with the feature `mpi`) as
/// its members. `path` says how they reach each other: `nodes`, by shared memory, since they are of one node; or
/// `messages`. Returns how long it took, or what went wrong. Nothing of it is left running.
///
/// Further options of mpirun are in OUTLAST_MPIRUN_OPTIONS, where `outlast hosts` puts them.
///
/// The exit status of mpirun says nothing once a process has died, so it is the members that tell how they fared.
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

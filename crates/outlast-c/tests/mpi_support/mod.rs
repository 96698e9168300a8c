//! What the tests of the bindings under mpirun share: Open MPI, a run with a limit, and the heat
//! equation with ranks that die.

use outlast::MemberId;
use outlast::launch::{Launch, Mpirun, Outcome, Output};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// A program of Open MPI: from `cargo xtask mpi` if that has installed it, otherwise from PATH.
pub(crate) fn of_mpi(program: &str) -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest.ancestors().find(|folder| folder.join("Cargo.lock").exists());
    let installed = root.expect("the workspace").join("target/mpi/bin").join(program);
    if installed.exists() { installed } else { program.into() }
}

/// The folder in which cargo puts the library under test.
pub(crate) fn library_folder() -> PathBuf {
    let own = std::env::current_exe().expect("own path");
    own.parent().expect("a folder").to_path_buf()
}

/// Runs ranks to their end.
pub(crate) fn run(launch: Launch) -> Outcome {
    let launch = launch.output(Output::Capture).mpirun(Mpirun::new(of_mpi("mpirun")));
    let mut running = launch.start().expect("mpirun starts; `cargo xtask mpi` installs it");
    let outcome = running.wait(LIMIT);
    assert!(!outcome.timed_out, "hung: {outcome}{}", said(&outcome));
    outcome
}

pub(crate) fn said(outcome: &Outcome) -> String {
    let each =
        outcome.members.iter().map(|end| outcome.stdout(end.member) + &outcome.stderr(end.member));
    each.collect()
}

/// Runs a heat equation of `examples/mpi`: whichever ranks die, and when, the survivors print the
/// checksum that a single rank prints. `launch` starts that many ranks of the program.
pub(crate) fn check_heat(launch: impl Fn(usize) -> Launch) {
    let expected = run(launch(1).args(["60"])).stdout(MemberId(0));
    assert_eq!(expected.trim().len(), 16, "{expected}");
    // A rank that dies in the last step leaves others in the last checkpoint.
    let runs: [&[(u32, u32)]; 4] = [&[], &[(2, 37)], &[(1, 59)], &[(0, 5), (3, 45)]];
    for deaths in runs {
        let named = deaths.iter().flat_map(|(rank, step)| [rank.to_string(), step.to_string()]);
        let outcome = run(launch(4).args(["60"]).args(named));
        for rank in (0..4).filter(|rank| deaths.iter().all(|(victim, _)| victim != rank)) {
            let sum = outcome.stdout(MemberId(rank));
            assert_eq!(sum, expected, "rank {rank}, {deaths:?}: {outcome}{}", said(&outcome));
        }
    }
}

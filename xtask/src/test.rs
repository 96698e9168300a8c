//! `cargo xtask test`: everything that has to be green.

use crate::gate::{Gate, cargo, clippy, minutes, target_folder};
use crate::mpi;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The features under which the workspace is checked and tested: all but `mpi`, which needs Open
/// MPI.
pub(crate) const FEATURES: &str = "outlast/sim,outlast/faults,outlast/serde";

/// When `cargo xtask test` counts as hung. It takes below 15 minutes on 2 cores that have nothing
/// else to do; this bound, and those of its steps, leave room for a machine that has.
const TEST_LIMIT: Duration = minutes(60);

pub(crate) fn test() -> anyhow::Result<()> {
    let mut gate = Gate::new(TEST_LIMIT);
    let result = run_all_tests(&mut gate);
    gate.summarize("test", result)
}

fn run_all_tests(gate: &mut Gate) -> anyhow::Result<()> {
    gate.step("format", minutes(2), cargo(&["fmt", "--all", "--check"]))?;
    gate.step(
        "lints",
        minutes(15),
        clippy(&["--workspace", "--all-targets", "--features", FEATURES]),
    )?;
    gate.step("lints of the default features", minutes(10), clippy(&["--package", "outlast-cli"]))?;
    // Built apart, so that a cold build and a hang of the tests can be told from each other.
    let tests = ["test", "--workspace", "--features", FEATURES];
    gate.step("build of the tests", minutes(20), cargo(&[&tests[..], &["--no-run"]].concat()))?;
    gate.step("tests", minutes(20), cargo(&tests))?;
    let mut documentation = cargo(&[
        "doc",
        "--workspace",
        "--no-deps",
        "--document-private-items",
        "--features",
        FEATURES,
    ]);
    documentation.env("RUSTDOCFLAGS", "-D warnings");
    gate.step("documentation", minutes(10), documentation)?;
    mpi_tests(gate)
}

/// Installs Open MPI, and tests the mpi engine: what is special about it, and its part of the
/// conformance suite.
fn mpi_tests(gate: &mut Gate) -> anyhow::Result<()> {
    let open_mpi = mpi::install()?;
    // One selection of features for all of it, so that nothing is built twice.
    let features =
        ["--features", "outlast/faults,outlast-conformance/mpi,outlast-cli/mpi,outlast-c/mpi"];
    let packages = ["outlast", "outlast-conformance", "outlast-cli", "outlast-c"];
    let engine = [&packages.map(|package| ["--package", package]).concat()[..], &features].concat();
    gate.step(
        "lints of the mpi engine",
        minutes(10),
        clippy(&[&engine[..], &["--all-targets"]].concat()),
    )?;
    let tests = |only: &[&'static str]| cargo(&[&["test"], &engine[..], only].concat());
    gate.step(
        "tests of the mpi engine",
        minutes(15),
        tests(&["--lib", "--test", "mpi_engine", "--test", "rma_mpi", "--test", "snapshot_mpi"]),
    )?;
    gate.step("guests of MPI programs", minutes(10), tests(&["--test", "mpi_guest"]))?;
    // The conformance suite, and the commands: `mpi` is the name of a test in both packages.
    gate.step(
        "conformance and commands of the mpi engine",
        minutes(15),
        tests(&["--test", "mpi"]),
    )?;
    on_three_hosts(gate, &engine, &open_mpi)
}

/// The scenarios of windows, snapshots and those of the engine, with two members on each of three
/// hosts. The tests have built it all.
fn on_three_hosts(gate: &mut Gate, engine: &[&str], open_mpi: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::MetadataExt;
    if std::fs::metadata("/proc/self").map_or(0, |process| process.uid()) != 0 {
        println!("=== three hosts: left out, as making hosts of this machine needs root");
        return Ok(());
    }
    let programs = target_folder().join("debug");
    let hosts = || {
        let mut command = Command::new(programs.join("outlast"));
        command.args(["hosts", "3", "--"]);
        command
    };
    let mut processes = hosts();
    processes.arg("cargo").arg("test").args(engine).args([
        "--test",
        "rma_mpi",
        "--test",
        "snapshot_mpi",
    ]);
    gate.step("windows and snapshots on three hosts", minutes(10), processes)?;
    let mut conformance = hosts();
    conformance
        .arg(programs.join("outlast-conformance"))
        .args(["mpi", "--seeds", "1..2", "--path", "nodes"]);
    conformance.arg("--mpirun").arg(open_mpi.join("bin/mpirun"));
    gate.step("conformance on three hosts", minutes(10), conformance)
}

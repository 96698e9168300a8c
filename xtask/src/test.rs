//! `cargo xtask test`: everything that has to be green.
//!
//! The tests are built once, with the mpi engine, so that the library is compiled for a single set
//! of features. A small part comes before that: what only builds without the mpi engine have.
//!
//! This program runs the test binaries itself, in the order of their names, so that each has its
//! own bound and its own line in the summary.

use crate::debian;
use crate::gate::{
    Gate, IndependentStep, begin_build_from_scratch, cargo, clippy, minutes, target_folder,
    workspace,
};
use crate::{install, instructions, packages, tidy, valgrind};
use anyhow::{Context, anyhow, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The features of a development build: all but `mpi`, whose tests need Open MPI.
pub(crate) const FEATURES: &str = "outlast/sim,outlast/faults,outlast/serde,outlast/postcard,\
                                   outlast/async,outlast-tasks/faults";

/// The features of the task runtime's tests under the simulator.
pub(crate) const TASKS_FEATURES: &str = "outlast/sim,outlast/faults,outlast-tasks/faults";

/// All features.
const FEATURES_AND_MPI: &str = "outlast/sim,outlast/faults,outlast/serde,outlast/postcard,\
                                outlast/async,outlast-tasks/faults,outlast-conformance/mpi,\
                                outlast-cli/mpi,outlast-c/mpi,outlast-py/mpi";

/// The time after which `cargo xtask test` counts as hung. It takes below 13 minutes on 2 idle
/// cores. This bound and the bounds of the steps leave room for a busy machine.
const LIMIT: Duration = minutes(60);

/// Settings of UCX, a library that Open MPI loads into every process. It patches functions of the C
/// library and takes a signal at the start of each process, which takes 40 ms and changes what is
/// tested. Tests without MPI do without.
const WITHOUT_UCX: [(&str, &str); 2] =
    [("UCX_MEM_MMAP_HOOK_MODE", "none"), ("UCX_DEBUG_SIGNO", "0")];

/// Packages of Debian, the features of the tests that need them, and what those tests are of.
const PACKAGES: [(&str, &str, &str); 3] = [
    ("gfortran", "outlast-c/fortran", "the Fortran module"),
    ("tmux", "outlast-cli/terminal", "the command in a terminal"),
    ("chromium", "outlast-cli/browser", "a report in a browser"),
];

/// Runs the gate; the full gate checks what a release needs as well.
pub(crate) fn test(is_full: bool) -> anyhow::Result<()> {
    let mut gate = Gate::new(LIMIT);
    let result =
        run(&mut gate).and_then(|()| if is_full { check_release(&mut gate) } else { Ok(()) });
    gate.summarize("test", result)
}

fn run(gate: &mut Gate) -> anyhow::Result<()> {
    begin_build_from_scratch();
    gate.step("format", minutes(2), cargo(&["fmt", "--all", "--check"]))?;
    gate.step_here("house rules", tidy::tidy)?;
    // The network takes the time of the first two, and a single thread of the compiler that of the
    // third, so that lints run meanwhile.
    let packages = PACKAGES.map(|(package, ..)| package);
    let packages = std::thread::spawn(move || packages.map(|name| debian::install(name, name)));
    let mut install = Command::new(std::env::current_exe().context("the path of this program")?);
    install.arg("mpi");
    let install = gate.start("Open MPI", minutes(10), install)?;
    let counted = instructions::start_build(gate)?;
    check_without_mpi(gate)?;
    check_rust_version(gate)?;
    packages::check(gate, false)?;
    gate.finish(install)?;
    let mut features = FEATURES_AND_MPI.to_string();
    let installed = packages.join().map_err(|_| anyhow!("installing packages panicked"))?;
    for ((_, feature, tests), installed) in PACKAGES.into_iter().zip(installed) {
        match installed {
            Ok(()) => features.extend([",", feature]),
            Err(error) => println!("=== tests of {tests}: left out; {error}"),
        }
    }
    let all = ["--workspace", "--features", &features];
    gate.step("lints", minutes(15), clippy(&[&all[..], &["--all-targets"]].concat()))?;
    let mut documentation =
        cargo(&[&["doc", "--no-deps", "--document-private-items"], &all[..]].concat());
    documentation.env("RUSTDOCFLAGS", "-D warnings --cfg outlast_pages");
    gate.step("documentation", minutes(10), documentation)?;
    instructions::check(gate, counted)?;
    run_tests(gate, &all)
}

/// Lints and tests of builds without the mpi engine.
///
/// These steps come first: the builds of `outlast` with and without the mpi engine have a single
/// place in the target folder, and later tests need the former.
fn check_without_mpi(gate: &mut Gate) -> anyhow::Result<()> {
    let library = ["--package", "outlast", "--lib", "--test", "shm", "--test", "engine_choice"];
    gate.step("lints of the library alone", minutes(10), clippy(&library))?;
    gate.step("lints of the command alone", minutes(10), clippy(&["--package", "outlast-cli"]))?;
    // The library alone: the command has the mpi engine in any case.
    let mut tests = cargo(&["test", "--package", "outlast", "--test", "engine_choice"]);
    tests.args(["--config", "profile.test.package.outlast.opt-level=0"]);
    gate.step("tests without mpi", minutes(15), tests)
}

/// Compiles the workspace with the oldest compiler that `rust-version` claims to be enough, unless
/// this is the compiler of the other steps.
fn check_rust_version(gate: &mut Gate) -> anyhow::Result<()> {
    let manifest = std::fs::read_to_string(workspace().join("Cargo.toml"))?;
    let version = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'))
        .context("Cargo.toml has no rust-version")?;
    let output_of = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).current_dir(workspace()).output();
        output.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    if output_of("rustc", &["--version"]).starts_with(&format!("rustc {version}.")) {
        println!("=== Rust {version}, the oldest that is claimed, compiles the other steps");
        return Ok(());
    }
    let toolchain = format!("{version}.0");
    if !output_of("rustup", &["toolchain", "list"]).contains(&toolchain) {
        println!("=== Rust {version}: left out; type: rustup toolchain install {toolchain}");
        return Ok(());
    }
    let mut check = Command::new("rustup");
    check.args(["run", &toolchain, "cargo", "check", "--workspace", "--features", FEATURES]);
    check.current_dir(workspace());
    gate.step(&format!("check with Rust {version}"), minutes(15), check)
}

fn run_tests(gate: &mut Gate, selection: &[&str]) -> anyhow::Result<()> {
    let build = [&["test", "--no-run"], selection].concat();
    gate.step("build of the tests", minutes(20), cargo(&build))?;
    let binaries = test_binaries(&build)?;
    let (with_mpi, without): (Vec<_>, Vec<_>) =
        binaries.iter().partition(|binary| binary.needs_mpi());
    ensure!(!with_mpi.is_empty() && !without.is_empty(), "cargo built no test binaries");
    let examples = cargo(&[&["test", "--doc"], selection].concat());
    let (mut background, mut local) = (Vec::new(), Vec::new());
    local.push(("examples in the documentation".to_string(), minutes(10), examples));
    for binary in without {
        let mut command = binary.command();
        command.envs(WITHOUT_UCX);
        let list = if binary.is_simulated() { &mut background } else { &mut local };
        list.push((format!("tests: {binary}"), minutes(20), command));
    }
    // Tests with mpirun mostly wait, and bear it that other processes take the cores for a moment:
    // the engine's tests and the hosts have a lane, and what uses the engine has another.
    let (engine, users): (Vec<&TestBinary>, Vec<_>) =
        with_mpi.iter().partition(|binary| binary.package == "outlast");
    let steps = |binaries: &[&TestBinary]| -> Vec<IndependentStep> {
        let step =
            |binary: &&TestBinary| (format!("tests: {binary}"), minutes(20), binary.command());
        binaries.iter().map(step).collect()
    };
    let mut engine = steps(&engine);
    engine.extend(steps_on_three_hosts(&with_mpi)?);
    gate.independent_steps(background, [vec![local], vec![engine, steps(&users)]])
}

/// The tests of windows, snapshots and seats, and the scenarios of the engine, with two members on
/// each of three hosts.
fn steps_on_three_hosts(with_mpi: &[&TestBinary]) -> anyhow::Result<Vec<IndependentStep>> {
    use std::os::unix::fs::MetadataExt;
    if std::fs::metadata("/proc/self").map_or(0, |process| process.uid()) != 0 {
        println!("=== three hosts: left out, as making hosts of this machine needs root");
        return Ok(Vec::new());
    }
    let programs = target_folder().join("debug");
    let on_hosts = |program: &Path| {
        let mut command = Command::new(programs.join("outlast"));
        command.args(["hosts", "3", "--"]).arg(program).current_dir(workspace());
        command
    };
    let is_engine = |binary: &&&TestBinary| binary.package == "outlast" && binary.name == "mpi";
    let engine = with_mpi.iter().find(is_engine).context("outlast has no tests named mpi")?;
    let mut tests = on_hosts(&engine.executable);
    tests.args(["window::", "snapshot::", "protect::"]).current_dir(&engine.folder);
    let mut conformance = on_hosts(&programs.join("outlast-conformance"));
    conformance.args(["mpi", "--seeds", "1..2", "--path", "nodes"]);
    conformance.arg("--mpirun").arg(workspace().join("target/mpi/bin/mpirun"));
    Ok(vec![
        ("windows, snapshots and seats on three hosts".to_string(), minutes(15), tests),
        ("conformance on three hosts".to_string(), minutes(10), conformance),
    ])
}

/// Runs what the full gate adds, or a part of it.
pub(crate) fn release(part: Option<&str>) -> anyhow::Result<()> {
    let mut gate = Gate::new(LIMIT);
    let result = PARTS_OF_RELEASE
        .iter()
        .filter(|(name, _)| part.is_none_or(|part| part == *name))
        .try_for_each(|(_, check)| check(&mut gate));
    gate.summarize("release", result)
}

type Check = fn(&mut Gate) -> anyhow::Result<()>;

/// What a release needs and a change does not: the Python package as users install it, an
/// installation that programs are built against, the guide as a book, the library for C under
/// valgrind, what C costs, all reports in a browser, the packages compiled, and the licenses and
/// known defects of the dependencies where `cargo deny` is installed.
pub(crate) const PARTS_OF_RELEASE: [(&str, Check); 8] = [
    ("python", check_python_package),
    ("install", install::check),
    ("guide", check_guide),
    ("valgrind", valgrind::check_c),
    ("instructions", instructions::check_c),
    ("browser", check_browser),
    ("packages", |gate| packages::check(gate, true)),
    ("licenses", check_licenses),
];

fn check_release(gate: &mut Gate) -> anyhow::Result<()> {
    PARTS_OF_RELEASE.iter().try_for_each(|(_, check)| check(gate))
}

fn check_browser(gate: &mut Gate) -> anyhow::Result<()> {
    if let Err(error) = debian::install("chromium", "chromium") {
        println!("=== all reports in a browser: left out; {error}");
        return Ok(());
    }
    let mut browser = cargo(&["test", "--package", "outlast-cli", "--test", "browser"]);
    browser.args(["--features", "all-reports"]);
    gate.step("all reports in a browser", minutes(15), browser)
}

fn check_licenses(gate: &mut Gate) -> anyhow::Result<()> {
    let deny = cargo(&["deny", "--version"]).output().is_ok_and(|output| output.status.success());
    if !deny {
        println!("=== licenses: left out; type: cargo install --locked cargo-deny");
        return Ok(());
    }
    gate.step("licenses and known defects", minutes(5), cargo(&["deny", "check"]))
}

/// Makes a book of the guide, with an mdBook of its own below the target folder.
fn check_guide(gate: &mut Gate) -> anyhow::Result<()> {
    let folder = target_folder().join("mdbook");
    let program = folder.join("bin/mdbook");
    if !program.exists() {
        let install = ["install", "--quiet", "--locked", "mdbook", "--root"];
        let mut install = cargo(&install);
        install.arg(&folder);
        gate.step("installation of mdBook", minutes(20), install)?;
    }
    let mut build = Command::new(program);
    build.arg("build").arg(workspace().join("docs/guide"));
    build.arg("--dest-dir").arg(target_folder().join("guide"));
    gate.step("the guide as a book", minutes(2), build)
}

/// Installs the Python package into a new environment, as users do, and runs tests with it.
fn check_python_package(gate: &mut Gate) -> anyhow::Result<()> {
    let folder = target_folder().join("python-package");
    let mut environment = Command::new("python3");
    environment.args(["-m", "venv", "--clear"]).arg(&folder);
    gate.step("a Python environment", minutes(5), environment)?;
    let python = |arguments: &[&str]| {
        let mut command = Command::new(folder.join("bin/python"));
        command.args(arguments).current_dir(workspace());
        command
    };
    // With numpy the tests have further parts.
    let install = python(&["-m", "pip", "install", "./python[numpy]"]);
    gate.step("pip install ./python", minutes(20), install)?;
    for program in ["buffers.py", "calls.py", "refusals.py", "stubs.py"] {
        let test = python(&[&format!("python/tests/{program}")]);
        gate.step(&format!("installed package: {program}"), minutes(2), test)?;
    }
    Ok(())
}

/// A test binary that cargo has built.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TestBinary {
    package: String,
    /// The name of the library, program or integration test that it tests.
    name: String,
    /// The folder of the package, in which cargo runs its tests.
    folder: PathBuf,
    executable: PathBuf,
}

impl TestBinary {
    /// Reads a message of cargo; `None` if it does not tell of a test binary.
    fn of_message(message: &Value) -> Option<TestBinary> {
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
        let name = message["target"]["name"].as_str()?.to_string();
        Some(TestBinary {
            package: folder.file_name()?.to_string_lossy().into_owned(),
            name,
            folder: folder.to_path_buf(),
            executable: message["executable"].as_str()?.into(),
        })
    }

    /// Whether the tests are of MPI: `mpi`, or a name that begins or ends with it.
    fn needs_mpi(&self) -> bool {
        self.name.split('_').any(|word| word == "mpi") && self.name != "outlast_mpi_sys"
    }

    /// Whether the tests do not depend on the machine's clock, so that they may run in the time
    /// that other tests wait.
    fn is_simulated(&self) -> bool {
        self.name == "sim" && self.package != "outlast-cli"
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

impl std::fmt::Display for TestBinary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.package, self.name)
    }
}

/// The test binaries that a `cargo test --no-run` has built.
fn test_binaries(build: &[&str]) -> anyhow::Result<Vec<TestBinary>> {
    let output = cargo(build)
        .args(["--quiet", "--message-format=json"])
        .output()
        .context("asking cargo for the test binaries")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let mut binaries = Vec::new();
    for line in lines {
        let message = serde_json::from_slice(line).context("a message of cargo is not JSON")?;
        binaries.extend(TestBinary::of_message(&message));
    }
    binaries.sort();
    Ok(binaries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn message(name: &str) -> Value {
        json!({
            "reason": "compiler-artifact",
            "manifest_path": "/w/crates/outlast/Cargo.toml",
            "target": { "kind": ["test"], "name": name },
            "profile": { "test": true },
            "executable": format!("/w/target/debug/deps/{name}-1"),
        })
    }

    #[test]
    fn test_binaries_are_read_from_messages_of_cargo() {
        let binary = TestBinary::of_message(&message("shm")).expect("a test binary");
        assert_eq!(binary.to_string(), "outlast shm");
        assert_eq!(binary.folder, Path::new("/w/crates/outlast"));
        let mut program = message("outlast");
        program["profile"]["test"] = false.into();
        assert_eq!(TestBinary::of_message(&program), None);
        assert_eq!(TestBinary::of_message(&json!({ "reason": "build-finished" })), None);
    }

    #[test]
    fn simulated_tests_are_told_by_their_names() {
        let binary = |name| TestBinary::of_message(&message(name)).expect("a test binary");
        assert!(binary("sim").is_simulated());
        assert!(!binary("shm").is_simulated() && !binary("mpi").is_simulated());
    }

    #[test]
    fn tests_of_mpi_are_told_by_their_names() {
        let needs_mpi =
            |name| TestBinary::of_message(&message(name)).expect("a test binary").needs_mpi();
        assert!(needs_mpi("mpi") && needs_mpi("mpi_guest"));
        assert!(!needs_mpi("shm") && !needs_mpi("outlast") && !needs_mpi("outlast_mpi_sys"));
    }
}

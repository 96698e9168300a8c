//! `cargo xtask`: the one tool for working on Outlast.

mod mpi;
mod redis;
mod store;

use anyhow::{Context, bail};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const HELP: &str = "\
cargo xtask TASK

  test                 everything that has to be green: format, lints, tests, documentation, Open MPI and its tests;
                       below 15 minutes on 2 cores
  soak [--minutes M]   the long form (60 minutes unless said): the store over 100,000 seeds and 300 kills, with a record in
                       target/soak/store.json; then the scenarios of communicators and windows over 100,000 seeds and
                       more, the conformance suite on sim and on shm, and all tests in between, with new seeds in every
                       round, until the time is over or something fails
  soak store [--first-seed X | --after N]   the store's part alone, whatever time it takes; after N shapes of the simulator
  soak --engine mpi [--first-seed X]   300 kills under mpirun, on one host and on hosts made of network namespaces (root),
                       with a record in target/soak/mpi.json
  hosts N -- COMMAND   makes N hosts of this machine, out of network namespaces, and runs the command on the first of
                       them (root); `outlast hosts` is the same
  mutants [--json PATH]   breaks the store's protocol in each of the known ways and shows the seed that catches it;
                       status 1 if one survives
  mpi                  installs Open MPI with ULFM into target/mpi, for the feature `mpi`
  redis                unpacks Redis into target/redis, for `outlast bench put --peers redis`
  help                 this text

A step that fails, or that takes longer than its bound, ends the task with status 1. Nothing is retried.";

/// The features under which the workspace is checked and tested: all but `mpi`, which needs Open MPI.
const FEATURES: &str = "outlast/sim,outlast/faults,outlast/serde";

/// When `cargo xtask test` counts as hung. It takes below 15 minutes on 2 cores that have nothing else to do; this bound, and
/// those of its steps, leave room for a machine that has.
const TEST_LIMIT: Duration = minutes(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["test"] => test(),
        ["soak"] => soak(60),
        ["soak", "--minutes", minutes] => match minutes.parse() {
            Ok(minutes) if (1..=10_000).contains(&minutes) => soak(minutes),
            _ => return usage(&format!("`{minutes}` is not a number of minutes from 1 to 10000")),
        },
        ["soak", "store"] => soak_store(STORE_FIRST_SEED, 0),
        ["soak", "store", "--first-seed", seed] => match seed.parse() {
            Ok(seed) => soak_store(seed, 0),
            Err(_) => return usage(&format!("`{seed}` is not a seed")),
        },
        ["soak", "store", "--after", shapes] => match shapes.parse() {
            Ok(shapes) => soak_store(STORE_FIRST_SEED, shapes),
            Err(_) => return usage(&format!("`{shapes}` is not a number of shapes")),
        },
        ["soak", "--engine", "mpi"] => soak_mpi(MPI_FIRST_SEED),
        ["soak", "--engine", "mpi", "--first-seed", seed] => match seed.parse() {
            Ok(seed) => soak_mpi(seed),
            Err(_) => return usage(&format!("`{seed}` is not a seed")),
        },
        ["hosts", count, "--", ..] if words.len() > 3 => hosts(count, &words[3..]),
        ["hosts", ..] => return usage("write it as: hosts N -- COMMAND"),
        ["mutants"] => mutants(None),
        ["mutants", "--json", path] => mutants(Some(std::path::Path::new(path))),
        ["mpi"] => {
            mpi::install().map(|folder| println!("Open MPI with ULFM is in {}", folder.display()))
        }
        ["redis"] => redis::install().map(|server| println!("Redis is {}", server.display())),
        ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            Ok(())
        }
        [] => return usage("which task?"),
        _ => return usage(&format!("`{}` is unknown", words.join(" "))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(1)
        }
    }
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("xtask: {problem}\n\n{HELP}");
    ExitCode::from(2)
}

fn test() -> anyhow::Result<()> {
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

/// Installs Open MPI, and tests the mpi engine: what is special about it, and its part of the conformance suite.
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
    // The tests of the library, the conformance suite and the commands: `mpi` is the name of a test
    // binary in all three packages.
    gate.step(
        "tests, conformance and commands of the mpi engine",
        minutes(30),
        tests(&["--lib", "--test", "mpi"]),
    )?;
    gate.step("guests of MPI programs", minutes(10), tests(&["--test", "mpi_guest"]))?;
    on_three_hosts(gate, &engine, &open_mpi)
}

/// The scenarios of windows, snapshots and those of the engine, with two members on each of three hosts. The tests have built it all.
fn on_three_hosts(gate: &mut Gate, engine: &[&str], open_mpi: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::MetadataExt;
    if std::fs::metadata("/proc/self").map_or(0, |process| process.uid()) != 0 {
        println!("=== three hosts: left out, as making hosts of this machine needs root");
        return Ok(());
    }
    let programs = store::target_folder()?.join("debug");
    let hosts = || {
        let mut command = Command::new(programs.join("outlast"));
        command.args(["hosts", "3", "--"]);
        command
    };
    let mut processes = hosts();
    processes.arg("cargo").arg("test").args(engine).args([
        "--test",
        "mpi",
        "--",
        "window::",
        "snapshot::",
    ]);
    gate.step("windows and snapshots on three hosts", minutes(10), processes)?;
    let mut conformance = hosts();
    conformance
        .arg(programs.join("outlast-conformance"))
        .args(["mpi", "--seeds", "1..2", "--path", "nodes"]);
    conformance.arg("--mpirun").arg(open_mpi.join("bin/mpirun"));
    gate.step("conformance on three hosts", minutes(10), conformance)
}

/// Runs the conformance suite again and again, with other seeds each time, and the tests with real processes.
fn soak(length_min: u64) -> anyhow::Result<()> {
    let mut gate = Gate::new(minutes(length_min) + minutes(30));
    let until = Instant::now() + minutes(length_min);
    let result = soak_rounds(&mut gate, until);
    gate.summarize("soak", result)
}

/// The seeds of the soak begin where those of `cargo xtask test` have long ended.
const STORE_FIRST_SEED: u64 = 1_000_000;

fn soak_store(first_seed: u64, after: usize) -> anyhow::Result<()> {
    let mut gate = Gate::new(minutes(300));
    let result = store::soak(&mut gate, first_seed, after, None);
    gate.summarize("soak", result)
}

const MPI_FIRST_SEED: u64 = 2_000_000;

fn soak_mpi(first_seed: u64) -> anyhow::Result<()> {
    let mut gate = Gate::new(minutes(300));
    let result = store::soak_mpi(&mut gate, first_seed);
    gate.summarize("soak", result)
}

/// Runs a command on the first of several hosts.
fn hosts(count: &str, command: &[&str]) -> anyhow::Result<()> {
    let outlast = ["run", "--quiet", "--package", "outlast-cli", "--", "hosts", count, "--"];
    let status = cargo(&[&outlast[..], command].concat()).status().context("cannot run cargo")?;
    if !status.success() {
        bail!("the command on the hosts failed ({status})");
    }
    Ok(())
}

fn mutants(json: Option<&std::path::Path>) -> anyhow::Result<()> {
    let mut gate = Gate::new(store::MUTANTS_LIMIT);
    let result = store::mutants(&mut gate, json);
    gate.summarize("mutants", result)
}

fn soak_rounds(gate: &mut Gate, until: Instant) -> anyhow::Result<()> {
    store::soak(gate, STORE_FIRST_SEED, 0, Some(until))?;
    const SIM_SEEDS_PER_ROUND: u64 = 2_000;
    const SHM_SEEDS_PER_ROUND: u64 = 5;
    // For each of the more than fifty scenarios of communicators and windows: more than 100,000 in all.
    const RMA_SEEDS_PER_ROUND: u64 = 2_000;
    let conformance = ["run", "--release", "--quiet", "--package", "outlast-conformance", "--"];
    let tests = ["test", "--release", "--workspace", "--features", FEATURES];
    // Built first, so that no round pays for it.
    gate.step("build", minutes(15), cargo(&[&tests[..], &["--no-run"]].concat()))?;
    for round in 1.. {
        // The seeds of the first round begin where those of `cargo xtask test` have long ended.
        let seeds = |count: u64| format!("{}..{}", round * count, (round + 1) * count);
        let (sim, shm) = (seeds(SIM_SEEDS_PER_ROUND), seeds(SHM_SEEDS_PER_ROUND));
        let rma = seeds(RMA_SEEDS_PER_ROUND);
        let steps = [
            ("sim", &sim, cargo(&[&conformance[..], &["sim", "--seeds", &sim]].concat())),
            ("shm", &shm, cargo(&[&conformance[..], &["shm", "--slow", "--seeds", &shm]].concat())),
            ("tests", &String::new(), cargo(&tests)),
            (
                "communicators and windows",
                &rma,
                rma_scenarios(round * RMA_SEEDS_PER_ROUND, RMA_SEEDS_PER_ROUND),
            ),
        ];
        for (name, seeds, command) in steps {
            if Instant::now() >= until {
                return Ok(());
            }
            gate.step(&format!("round {round}: {name} {seeds}"), minutes(30), command)?;
        }
    }
    Ok(())
}

/// The scenarios of communicators and windows under the simulator, `count` seeds for each; `docs/ulfm-tests.md` has the
/// same as a command. The sweeps over the steps of one operation take hundreds of runs for each seed: the tests make them.
fn rma_scenarios(first: u64, count: u64) -> Command {
    let tests = ["test", "--release", "--package", "outlast", "--features", "sim,faults"];
    let of_rma = ["--test", "sim", "--", "rma::communicator::", "rma::window::", "--nocapture"];
    let without_sweeps = ["--skip", "_at_each_step_", "--skip", "_two_deaths_at_once_"];
    let mut command = cargo(&[&tests[..], &of_rma, &without_sweeps].concat());
    command.env("OUTLAST_SEED_FIRST", first.to_string()).env("OUTLAST_SEEDS", count.to_string());
    command
}

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

fn cargo(arguments: &[&str]) -> Command {
    // The cargo that runs us, so that a chosen toolchain stays chosen.
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let workspace = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is in the workspace");
    command.args(arguments).current_dir(workspace);
    command
}

fn clippy(arguments: &[&str]) -> Command {
    cargo(&[&["clippy"], arguments, &["--", "-D", "warnings"]].concat())
}

/// Runs steps one after the other, each under its bound and all under one, and remembers what they took.
struct Gate {
    began: Instant,
    limit: Duration,
    steps: Vec<Step>,
}

struct Step {
    name: String,
    took: Duration,
    counts: Counts,
}

/// What the `test result:` lines of a step, and the lines of the conformance suite, add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    suites: u64,
    passed: u64,
    failed: u64,
    ignored: u64,
    /// Runs of scenarios.
    runs: u64,
}

impl Counts {
    /// Adds a line such as `test result: ok. 6 passed; 0 failed; 1 ignored; ...`, `lowest-dies: 400 runs, ...` or
    /// `lowest-dies, seed 7: ok, ...`; other lines count nothing.
    fn add_line(&mut self, line: &str) {
        let Some(result) = line.trim().strip_prefix("test result: ") else {
            let runs = line
                .split_once(" runs, ")
                .and_then(|(start, _)| start.rsplit(": ").next()?.parse().ok());
            let is_ok = line.contains(", seed ") && line.contains(": ok, ");
            self.runs += runs.unwrap_or(u64::from(is_ok));
            return;
        };
        let count = |what: &str| {
            let words: Vec<&str> =
                result.split([' ', ';']).filter(|word| !word.is_empty()).collect();
            let at = words.iter().position(|word| *word == what);
            at.and_then(|at| words.get(at.checked_sub(1)?)?.parse::<u64>().ok()).unwrap_or(0)
        };
        self.suites += 1;
        self.passed += count("passed");
        self.failed += count("failed");
        self.ignored += count("ignored");
    }

    fn add(&mut self, other: Counts) {
        self.suites += other.suites;
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.runs += other.runs;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Counts { suites, passed, failed, ignored, runs } = self;
        if *suites > 0 || *runs == 0 {
            write!(f, "{passed} passed, {failed} failed, {ignored} ignored in {suites} suites")?;
        }
        let comma = if *suites > 0 { ", " } else { "" };
        if *runs > 0 { write!(f, "{comma}{runs} runs of scenarios") } else { Ok(()) }
    }
}

impl Gate {
    fn new(limit: Duration) -> Gate {
        Gate { began: Instant::now(), limit, steps: Vec::new() }
    }

    /// Runs a command; its standard output is passed on line by line, and its `test result:` lines are counted.
    fn step(&mut self, name: &str, bound: Duration, mut command: Command) -> anyhow::Result<()> {
        let bound = bound.min(self.limit.saturating_sub(self.began.elapsed()));
        println!("\n=== {name} (at most {} s)", bound.as_secs());
        let began = Instant::now();
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().with_context(|| {
                format!("{name}: cannot start {}", command.get_program().display())
            })?;
        let output = child.stdout.take().context("the output is piped")?;
        let (counted, counts) = mpsc::channel();
        std::thread::spawn(move || {
            counted.send(pass_on(BufReader::new(output), std::io::stdout()))
        });
        let status = loop {
            if let Some(status) =
                child.try_wait().with_context(|| format!("{name}: waiting for it"))?
            {
                break Some(status);
            }
            if began.elapsed() >= bound {
                kill_with_descendants(&mut child);
                break None;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        // Whoever the step left behind may hold its output open; it is not waited for.
        let counts = counts.recv_timeout(Duration::from_secs(5)).unwrap_or_default();
        let took = began.elapsed();
        self.steps.push(Step { name: name.to_string(), took, counts });
        match status {
            Some(status) if status.success() => {
                println!("=== {name}: ok in {:.1} s", took.as_secs_f64());
                Ok(())
            }
            Some(status) => bail!("{name} failed ({status})"),
            None => {
                bail!("{name} took longer than its bound of {} s and was killed", bound.as_secs())
            }
        }
    }

    /// One line for each step and a closing one for all; passes the result on.
    fn summarize(&self, task: &str, result: anyhow::Result<()>) -> anyhow::Result<()> {
        println!("\n=== summary");
        let mut total = Counts::default();
        for (index, step) in self.steps.iter().enumerate() {
            total.add(step.counts);
            let is_ok = result.is_ok() || index + 1 < self.steps.len();
            let counts = if step.counts == Counts::default() {
                String::new()
            } else {
                format!("  {}", step.counts)
            };
            let word = if is_ok { "ok" } else { "FAILED" };
            println!("  {word:<6}  {:>6.1} s  {}{counts}", step.took.as_secs_f64(), step.name);
        }
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        println!(
            "{task}: {verdict}, {} steps, {total}, {:.0} s",
            self.steps.len(),
            self.began.elapsed().as_secs_f64()
        );
        result
    }
}

/// Passes lines on as they come, and counts the results in them.
fn pass_on(mut output: impl BufRead, mut to: impl Write) -> Counts {
    let mut counts = Counts::default();
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
        // A reader that went away must not end the step.
        let _ = to.write_all(&line).and_then(|()| to.flush());
        counts.add_line(&String::from_utf8_lossy(&line));
        line.clear();
    }
    counts
}

/// Kills a process and all that it has started, as far as they can be traced to it. They stay in our process group,
/// so that Ctrl-C reaches them; hence no killing by group.
fn kill_with_descendants(child: &mut Child) {
    let mut pids = vec![child.id()];
    let mut next = 0;
    while let Some(&parent) = pids.get(next) {
        next += 1;
        pids.extend(children(parent));
    }
    let pids = pids.iter().map(u32::to_string);
    let _ = Command::new("kill").arg("-KILL").args(pids).stderr(Stdio::null()).status();
    let _ = child.kill();
    let _ = child.wait();
}

fn children(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    let has_parent = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name of the process, in parentheses, may contain anything.
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        after_name.split(' ').nth(1) == Some(&parent.to_string())
    };
    pids.filter(has_parent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted() {
        let text = "running 2 tests\ntest result: ok. 6 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s\n\
                    test result: FAILED. 1 passed; 2 failed; 0 ignored\nnot a test result: 9 passed\n\
                    lowest-dies: 400 runs, 12345 steps, 1.2s\nlowest-dies, seed 7: ok, 0.2s\n";
        let counts = pass_on(text.as_bytes(), std::io::sink());
        assert_eq!(counts, Counts { suites: 2, passed: 7, failed: 2, ignored: 1, runs: 401 });
    }

    #[test]
    fn a_step_beyond_its_bound_is_killed_with_all_it_started() {
        let mut gate = Gate::new(minutes(1));
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 61.25 & sleep 61.25; true"]);
        let error =
            gate.step("too long", Duration::from_millis(300), command).expect_err("is too long");
        assert!(error.to_string().contains("longer than its bound"), "{error}");
        let is_left = |pid: u32| {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line == b"sleep\x0061.25\x00")
        };
        let entries = std::fs::read_dir("/proc").expect("/proc is there").flatten();
        let pids =
            entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
        assert_eq!(pids.filter(|&pid| is_left(pid)).count(), 0);
    }

    #[test]
    fn a_failing_step_ends_the_task() {
        let mut gate = Gate::new(minutes(1));
        assert!(gate.step("well", minutes(1), Command::new("true")).is_ok());
        let result = gate.step("not well", minutes(1), Command::new("false"));
        assert!(gate.summarize("test", result).is_err());
        assert_eq!(gate.steps.len(), 2);
    }
}

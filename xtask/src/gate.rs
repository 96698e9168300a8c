//! A task as a list of steps: each step runs a command under a bound, and a summary ends the task.
//!
//! A step that fails, or that takes longer than its bound, ends the task. Steps that are
//! independent of each other, such as the tests of several binaries, all run before that. Nothing
//! is retried.

use anyhow::{Context, bail, ensure};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Runs the steps of a task, each under its own bound and all of them under a common bound, and
/// records how long each took.
pub(crate) struct Gate {
    began: Instant,
    limit: Duration,
    steps: Vec<Step>,
}

/// A step that has ended.
struct Step {
    name: String,
    is_ok: bool,
    took: Duration,
    counts: Counts,
}

/// A step that does not depend on other steps: its name, its bound and its command.
pub(crate) type IndependentStep = (String, Duration, Command);

/// Steps that run one after the other, beside those of other lanes.
pub(crate) type Lane = Vec<IndependentStep>;

/// A step that is under way. Dropping it kills its processes, so that a failed task leaves none.
pub(crate) struct Running {
    name: String,
    began: Instant,
    bound: Duration,
    child: Child,
    /// Comes when the step has closed its output.
    ended: mpsc::Receiver<Ended>,
}

/// The end of the output of a step.
struct Ended {
    at: Instant,
    counts: Counts,
    /// What was not passed on yet.
    kept: Vec<u8>,
}

/// The sums over the `test result:` lines of a step and over the lines of the conformance suite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    suites: u64,
    passed: u64,
    failed: u64,
    ignored: u64,
    /// Runs of scenarios.
    runs: u64,
}

impl Gate {
    pub(crate) fn new(limit: Duration) -> Gate {
        Gate { began: Instant::now(), limit, steps: Vec::new() }
    }

    /// Runs a command to its end. Its standard output is passed on line by line, and its
    /// `test result:` lines are counted.
    pub(crate) fn step(
        &mut self,
        name: &str,
        bound: Duration,
        command: Command,
    ) -> anyhow::Result<()> {
        let bound = self.bound(bound);
        println!("\n=== {name} (at most {} s)", bound.as_secs());
        let running = self.spawn(name, bound, command, true)?;
        self.finish(running)
    }

    /// Starts a command whose end a later call of `finish` waits for. Its standard output is kept
    /// until then, so that the lines of steps do not mix.
    pub(crate) fn start(
        &mut self,
        name: &str,
        bound: Duration,
        command: Command,
    ) -> anyhow::Result<Running> {
        let bound = self.bound(bound);
        println!("\n=== {name}: starts in the background (at most {} s)", bound.as_secs());
        self.spawn(name, bound, command, false)
    }

    fn bound(&self, bound: Duration) -> Duration {
        bound.min(self.limit.saturating_sub(self.began.elapsed()))
    }

    fn spawn(
        &self,
        name: &str,
        bound: Duration,
        mut command: Command,
        must_pass_on: bool,
    ) -> anyhow::Result<Running> {
        let began = Instant::now();
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().with_context(|| {
                format!("{name}: cannot start {}", command.get_program().display())
            })?;
        let output = child.stdout.take().context("the output is piped")?;
        let (sender, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            let counts = match must_pass_on {
                true => pass_on(BufReader::new(output), std::io::stdout()),
                false => pass_on(BufReader::new(output), &mut kept),
            };
            sender.send(Ended { at: Instant::now(), counts, kept })
        });
        Ok(Running { name: name.to_string(), began, bound, child, ended })
    }

    /// Waits until a step ends or its bound has passed.
    pub(crate) fn finish(&mut self, mut running: Running) -> anyhow::Result<()> {
        let name = running.name.clone();
        let status = loop {
            let status = running.child.try_wait();
            if let Some(status) = status.with_context(|| format!("{name}: waiting for it"))? {
                break Some(status);
            }
            if running.began.elapsed() >= running.bound {
                kill_with_descendants(&mut running.child);
                break None;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        // A process that the step left behind may hold its output open; the gate does not wait
        // for it.
        let ended = running.ended.recv_timeout(Duration::from_secs(5));
        let ended = ended.unwrap_or_else(|_| Ended {
            at: Instant::now(),
            counts: Counts::default(),
            kept: Vec::new(),
        });
        if !ended.kept.is_empty() {
            println!("\n=== {name}, in the background:");
            pass_on(&ended.kept[..], std::io::stdout());
        }
        let counts = ended.counts;
        let took = ended.at - running.began;
        let is_ok = status.is_some_and(|status| status.success());
        self.steps.push(Step { name: name.clone(), is_ok, took, counts });
        match status {
            Some(status) if status.success() => {
                println!("=== {name}: ok in {:.1} s", took.as_secs_f64());
                Ok(())
            }
            Some(status) => bail!("{name} failed ({status})"),
            None => {
                let bound = running.bound.as_secs();
                bail!("{name} took longer than its bound of {bound} s and was killed")
            }
        }
    }

    /// Runs a step in this process. It has no bound, so it must not wait for anything.
    pub(crate) fn step_here(
        &mut self,
        name: &str,
        step: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        println!("\n=== {name}");
        let began = Instant::now();
        let result = step();
        let took = began.elapsed();
        let counts = Counts::default();
        self.steps.push(Step { name: name.to_string(), is_ok: result.is_ok(), took, counts });
        if result.is_ok() {
            println!("=== {name}: ok in {:.1} s", took.as_secs_f64());
        }
        result
    }

    /// Runs all steps, also after a failure, so that a single run names all that fail. The
    /// background steps run at the lowest priority beside all phases, and their output follows at
    /// the end. The lanes of a phase run beside each other, and the phases in turn.
    pub(crate) fn independent_steps(
        &mut self,
        background: Vec<IndependentStep>,
        phases: impl IntoIterator<Item = Vec<Lane>>,
    ) -> anyhow::Result<()> {
        let mut failures = Vec::new();
        let mut running = Vec::new();
        for (name, bound, command) in background {
            match self.start(&name, bound, niced(&command)) {
                Ok(step) => running.push(step),
                Err(error) => note(&mut failures, Err(error)),
            }
        }
        for phase in phases {
            let (steps, failed) = self.run_lanes(phase);
            self.steps.extend(steps);
            failures.extend(failed);
        }
        for step in running {
            note(&mut failures, self.finish(step));
        }
        ensure!(failures.is_empty(), "{}", failures.join("; "));
        Ok(())
    }

    /// Runs each lane in a thread, and returns the steps that have ended and what failed. The
    /// output of the first lane is passed on as it comes, that of the others at the end of each
    /// step.
    fn run_lanes(&self, lanes: Vec<Lane>) -> (Vec<Step>, Vec<String>) {
        let mut all = (Vec::new(), Vec::new());
        std::thread::scope(|scope| {
            let lanes: Vec<_> = lanes
                .into_iter()
                .enumerate()
                .map(|(number, lane)| {
                    let mut gate = Gate { began: self.began, limit: self.limit, steps: Vec::new() };
                    scope.spawn(move || {
                        let mut failures = Vec::new();
                        for (name, bound, command) in lane {
                            let result = match number {
                                0 => gate.step(&name, bound, command),
                                _ => gate
                                    .start(&name, bound, command)
                                    .and_then(|step| gate.finish(step)),
                            };
                            note(&mut failures, result);
                        }
                        (std::mem::take(&mut gate.steps), failures)
                    })
                })
                .collect();
            for lane in lanes {
                match lane.join() {
                    Ok((steps, failures)) => {
                        all.0.extend(steps);
                        all.1.extend(failures);
                    }
                    Err(_) => all.1.push("a lane of steps panicked".to_string()),
                }
            }
        });
        all
    }

    /// Prints a line for each step and a closing line for the task, and passes the result on.
    pub(crate) fn summarize(&self, task: &str, result: anyhow::Result<()>) -> anyhow::Result<()> {
        println!("\n=== summary");
        let mut total = Counts::default();
        for step in &self.steps {
            total.add(step.counts);
            let counts = if step.counts == Counts::default() {
                String::new()
            } else {
                format!("  {}", step.counts)
            };
            let word = if step.is_ok { "ok" } else { "FAILED" };
            println!("  {word:<6}  {:>6.1} s  {}{counts}", step.took.as_secs_f64(), step.name);
        }
        let word = if result.is_ok() { "ok" } else { "FAILED" };
        println!(
            "{task}: {word}, {} steps, {total}, {:.0} s",
            self.steps.len(),
            self.began.elapsed().as_secs_f64()
        );
        result
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            kill_with_descendants(&mut self.child);
        }
    }
}

impl Counts {
    /// Adds a line such as `test result: ok. 6 passed; 0 failed; 1 ignored; ...`,
    /// `lowest-dies: 400 runs, ...` or `lowest-dies, seed 7: ok, ...`. Other lines add nothing.
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

/// Keeps what failed, and prints it at once.
fn note(failures: &mut Vec<String>, result: anyhow::Result<()>) {
    if let Err(error) = result {
        println!("=== {error:#}");
        failures.push(format!("{error:#}"));
    }
}

/// The command at the lowest priority.
fn niced(command: &Command) -> Command {
    let mut niced = Command::new("nice");
    niced.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => niced.env(name, value),
            None => niced.env_remove(name),
        };
    }
    niced.current_dir(command.get_current_dir().unwrap_or(Path::new(".")));
    niced
}

/// Passes lines on as they come, and counts the results in them.
fn pass_on(mut output: impl BufRead, mut to: impl Write) -> Counts {
    let mut counts = Counts::default();
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
        // A reader of our output that went away must not end the step.
        let _ = to.write_all(&line).and_then(|()| to.flush());
        counts.add_line(&String::from_utf8_lossy(&line));
        line.clear();
    }
    counts
}

/// Kills a process and all its descendants, as far as they can be traced to it. They stay in our
/// process group, so that Ctrl-C reaches them. Hence the group cannot be killed as a whole.
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

pub(crate) const fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

/// The root of the workspace.
pub(crate) fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace")
}

/// The folder into which cargo builds.
pub(crate) fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or(workspace().join("target"), PathBuf::from)
}

/// Whether [`cargo`] compiles without the files by which later builds compile less.
static IS_BUILD_FROM_SCRATCH: AtomicBool = AtomicBool::new(false);

/// Lets [`cargo`] compile without incremental compilation from now on, if the target folder has no
/// files of it for the library: a build from scratch is a sixth faster without.
pub(crate) fn begin_build_from_scratch() {
    let folder = std::fs::read_dir(target_folder().join("debug/incremental"));
    let mut entries = folder.into_iter().flatten().flatten();
    let is_built = entries.any(|entry| entry.file_name().to_string_lossy().starts_with("outlast"));
    IS_BUILD_FROM_SCRATCH.store(!is_built, Ordering::Relaxed);
}

/// The cargo that runs this program, so that a chosen toolchain stays chosen.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(workspace());
    if IS_BUILD_FROM_SCRATCH.load(Ordering::Relaxed) {
        command.env("CARGO_INCREMENTAL", "0");
    }
    command
}

/// Clippy with warnings as errors.
pub(crate) fn clippy(arguments: &[&str]) -> Command {
    cargo(&[&["clippy"], arguments, &["--", "-D", "warnings"]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted() {
        let text = "running 2 tests\n\
                    test result: ok. 6 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out\n\
                    test result: FAILED. 1 passed; 2 failed; 0 ignored\n\
                    not a test result: 9 passed\n\
                    lowest-dies: 400 runs, 12345 steps, 1.2s\n\
                    lowest-dies, seed 7: ok, 0.2s\n";
        let counts = pass_on(text.as_bytes(), std::io::sink());
        assert_eq!(counts, Counts { suites: 2, passed: 7, failed: 2, ignored: 1, runs: 401 });
    }

    /// How many processes run `sleep` for this time.
    fn count_sleepers(seconds: &str) -> usize {
        let line = format!("sleep\0{seconds}\0").into_bytes();
        let entries = std::fs::read_dir("/proc").expect("/proc is there").flatten();
        let pids =
            entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
        let is_sleeper =
            |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|is| is == line);
        pids.filter(is_sleeper).count()
    }

    #[test]
    fn a_step_beyond_its_bound_is_killed_with_all_its_descendants() {
        let mut gate = Gate::new(minutes(1));
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 61.25 & sleep 61.25; true"]);
        let error =
            gate.step("too long", Duration::from_millis(300), command).expect_err("is too long");
        assert!(error.to_string().contains("longer than its bound"), "{error}");
        assert_eq!(count_sleepers("61.25"), 0);
    }

    #[test]
    fn a_dropped_step_leaves_no_process() {
        let mut gate = Gate::new(minutes(1));
        let mut command = Command::new("sleep");
        command.arg("61.75");
        drop(gate.start("background", minutes(1), command).expect("started"));
        assert_eq!(count_sleepers("61.75"), 0);
    }

    #[test]
    fn independent_steps_run_after_a_failure() {
        let mut gate = Gate::new(minutes(1));
        let step = |program: &str| (program.to_string(), minutes(1), Command::new(program));
        let mut background = Command::new("sh");
        background.args(["-c", "echo 'test result: ok. 3 passed; 0 failed'; exit $STATUS"]);
        background.env("STATUS", "0");
        let background = vec![("background".to_string(), minutes(1), background)];
        let first = vec![vec![step("false"), step("true")], vec![step("false"), step("true")]];
        let second = vec![vec![step("true")]];
        assert!(gate.independent_steps(background, [first, second]).is_err());
        let results: Vec<bool> = gate.steps.iter().map(|step| step.is_ok).collect();
        assert_eq!(results, [false, true, false, true, true, true]);
        assert_eq!(gate.steps[5].counts.passed, 3);
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

//! The long tests of the store: many seeds in the simulator, many kills of real processes, and mutants, which must be caught.

use crate::{Gate, cargo, minutes};
use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What is run in the simulator, and with how many seeds: 156,000 in all, and 32,000 of them in global mode.
const SHAPES: [(&str, u64); 28] = [
    ("--ranks 3 --replicas 1 --stops 1", 8_000),
    ("--ranks 3 --replicas 2 --kills 1 --stops 1", 15_000),
    ("--ranks 3 --replicas 2 --kills 1 --stops 1 --programs bank", 10_000),
    ("--ranks 5 --replicas 3 --kills 2 --programs calls", 10_000),
    ("--ranks 4 --replicas 3 --kills 2 --stops 2 --programs puts", 4_000),
    ("--ranks 5 --replicas 3 --kills 2", 8_000),
    ("--ranks 5 --replicas 3 --kills 2 --programs steal", 7_000),
    ("--ranks 5 --replicas 3 --kills 2 --stops 2 --spares 1", 15_000),
    ("--ranks 4 --replicas 4 --kills 3 --stops 1 --threads 1", 10_000),
    ("--ranks 8 --replicas 4 --kills 7", 4_000),
    ("--ranks 8 --replicas 4 --kills 7 --programs calls", 4_000),
    ("--ranks 9 --replicas 2 --kills 5 --stops 1", 8_000),
    ("--ranks 16 --replicas 3 --kills 4 --stops 1", 900),
    ("--ranks 5 --replicas 2 --kills 3 --stops 1 --beyond", 3_000),
    ("--ranks 4 --replicas 1 --kills 2 --stops 1 --beyond --programs steal", 3_000),
    ("--ranks 6 --replicas 3 --kills 5 --beyond --programs bank", 3_000),
    ("--ranks 5 --replicas 1 --kills 4 --stops 1 --salvage", 4_000),
    ("--ranks 5 --replicas 2 --kills 4 --stops 1 --salvage --programs steal", 4_000),
    ("--ranks 6 --replicas 3 --kills 5 --salvage --programs bank", 3_000),
    ("--ranks 64 --replicas 4 --kills 6 --stops 1 --calls 10 --programs calls", 100),
    ("--ranks 3 --replicas 2 --kills 1 --stops 1 --mode global", 10_000),
    ("--ranks 3 --replicas 2 --kills 1 --stops 1 --mode global --programs bank", 4_000),
    ("--ranks 5 --replicas 3 --kills 2 --stops 2 --spares 1 --mode global", 6_000),
    ("--ranks 4 --replicas 4 --kills 3 --stops 1 --threads 1 --mode global", 6_000),
    ("--ranks 5 --replicas 3 --kills 2 --mode global --programs steal", 2_000),
    ("--ranks 5 --replicas 3 --kills 2 --mode global --programs calls", 1_500),
    ("--ranks 4 --replicas 3 --kills 2 --stops 1 --mode global --programs puts", 2_000),
    ("--ranks 8 --replicas 4 --kills 7 --mode global", 500),
];

/// What is run with real processes, in turn, until there were enough kills.
const CHAOS: [(&str, u64); 11] = [
    ("--ranks 8 --replicas 3 --kills 7 --stops 2 --seconds 5", 7),
    ("--ranks 8 --replicas 4 --kills 7 --seconds 5 --failpoints", 7),
    ("--ranks 6 --replicas 3 --kills 5 --stops 2 --seconds 4 --failpoints --programs bank", 5),
    ("--ranks 4 --replicas 2 --kills 3 --stops 2 --seconds 3 --programs steal", 3),
    ("--ranks 5 --replicas 3 --kills 4 --seconds 3 --threads 4 --failpoints", 4),
    ("--ranks 6 --replicas 2 --kills 4 --stops 1 --seconds 3 --beyond", 4),
    ("--ranks 8 --replicas 4 --kills 7 --seconds 5 --failpoints --mode global", 7),
    (
        "--ranks 6 --replicas 3 --kills 5 --stops 2 --seconds 4 --failpoints --programs bank --mode global",
        5,
    ),
    ("--ranks 4 --replicas 2 --kills 3 --stops 2 --seconds 3 --programs steal --mode global", 3),
    (
        "--ranks 5 --replicas 3 --kills 4 --seconds 3 --threads 4 --failpoints --programs calls --mode global",
        4,
    ),
    ("--ranks 6 --replicas 1 --kills 5 --stops 1 --seconds 3 --salvage", 5),
];
/// How many at least, and how many of them in each mode.
const CHAOS_KILLS: u64 = 500;
const CHAOS_KILLS_OF_MODE: u64 = 200;
/// With how many kills each step of the protocol must have been hit, if it was not with fewer.
const CHAOS_KILLS_MAX: u64 = 700;

/// The mutants: what is broken, and by which name.
const MUTANTS: [(&str, &str); 23] = [
    ("ack-early", "acknowledge before the last copy"),
    ("publish-early", "publish before the payload"),
    ("skip-epoch", "skip the epoch check"),
    ("reuse-early", "reuse space early"),
    ("no-help", "do not help"),
    ("repair-over-newer", "repair over newer"),
    ("trust-absent", "trust an absent home"),
    ("forget-tombstone", "forget a tombstone"),
    ("miss-news", "miss a home that begins to fill"),
    ("assume-version", "replace a version that was not looked at"),
    ("tx-lost-update", "change what others have changed"),
    ("tx-skip-look", "do not look at reads again"),
    ("tx-read-past", "read past one in doubt"),
    ("tx-apply-early", "apply before the decision"),
    ("tx-abort-late", "abort what is committed"),
    ("tx-drop-intent", "drop the intent"),
    ("accept-keeps", "give up a partition and keep what is left"),
    ("recover-partly-visible", "show a part of a recovery early"),
    ("recover-skip-vote", "decide alone about a recovery"),
    ("recover-skip-abort", "carry out what was given up"),
    ("salvage-torn", "believe a torn record of the dead"),
    ("salvage-oldest", "salvage the home that died first"),
    ("salvage-late", "acknowledge what was written after the salvage"),
];

/// What a mutant has to survive, in this order; the first failing seed has caught it.
const HUNTS: [(&str, u64); 13] = [
    ("--ranks 3 --replicas 2 --calls 100 --programs puts --link network", 300),
    ("--ranks 4 --replicas 2 --threads 4", 100),
    ("--ranks 3 --replicas 2 --kills 1 --stops 1 --programs calls", 600),
    ("--ranks 4 --replicas 3 --kills 2 --calls 40 --programs calls", 600),
    ("--ranks 4 --replicas 2 --kills 3 --calls 60 --threads 4 --programs calls", 400),
    ("--ranks 6 --replicas 2 --kills 5 --calls 60 --programs calls", 1_000),
    ("--ranks 5 --replicas 3 --kills 2 --stops 2 --threads 3 --programs calls", 600),
    ("--ranks 5 --replicas 3 --kills 4 --beyond --calls 60 --threads 4 --programs calls", 1_000),
    ("--ranks 4 --replicas 3 --kills 2 --mode global", 600),
    ("--ranks 3 --replicas 2 --kills 1 --stops 1 --mode global", 600),
    ("--ranks 4 --replicas 3 --kills 2 --stops 2 --threads 4 --mode global --programs calls", 600),
    ("--ranks 5 --replicas 2 --kills 4 --salvage --calls 60 --programs calls", 1_000),
    ("--ranks 4 --replicas 1 --kills 3 --salvage --calls 60 --threads 4 --programs calls", 500),
];

/// Tests that a mutant has to survive after that: what random programs cannot come upon.
const TEST_HUNTS: [(&str, &str); 1] = [("sim", "store::salvage::")];

/// Where things are built.
pub(crate) fn target_folder() -> anyhow::Result<PathBuf> {
    let workspace =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask is in the workspace")?;
    Ok(std::env::var_os("CARGO_TARGET_DIR").map_or(workspace.join("target"), PathBuf::from))
}

/// Builds the command with failpoints and mutants, in a folder of its own, and says where it is.
fn build(features: &str) -> anyhow::Result<(PathBuf, Command)> {
    let target = target_folder()?.join("faults");
    let folder = target.to_str().context("a plain path")?;
    let command = cargo(&[
        "build",
        "--release",
        "--package",
        "outlast-cli",
        "--features",
        features,
        "--target-dir",
        folder,
    ]);
    Ok((target.join("release/outlast"), command))
}

fn outlast(program: &Path, arguments: &str, more: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments.split(' ')).args(more).env_remove("OUTLAST_MUTANT");
    command
}

fn read_json(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is no JSON", path.display()))
}

/// The seeds and kills that the store has to stand, or as many as there is time for, with a record of them. One that was
/// stopped goes on after so many shapes of the simulator.
pub(crate) fn soak(
    gate: &mut Gate,
    first_seed: u64,
    after: usize,
    until: Option<Instant>,
) -> anyhow::Result<()> {
    let (program, command) = build("faults")?;
    gate.step("store: build with failpoints", minutes(20), command)?;
    let folder = target_folder()?.join("soak");
    std::fs::create_dir_all(&folder)?;
    let json = folder.join("store.json");
    let part = folder.join("soak-part.json");
    let mut record = Record { after, ..Record::default() };
    let begun = if after == 0 { memory(gate) } else { Ok(()) };
    let result = begun.and_then(|()| record.fill(gate, &program, &part, first_seed, until));
    let _ = std::fs::remove_file(&part);
    record.write(&json, result.is_ok())?;
    println!("=== the record is in {}", json.display());
    result
}

/// What is run on the mpi engine, in turn, until there were enough kills, and with how many deaths each: neighbours over shared
/// memory, all members by messages, and hosts of their own, single members and whole hosts.
const MPI_CHAOS: [(&str, &str, u64); 9] = [
    ("nodes", "--ranks 6 --replicas 3 --kills 5 --stops 1 --seconds 4", 5),
    ("messages", "--ranks 6 --replicas 3 --kills 4 --stops 1 --seconds 4", 4),
    ("nodes", "--ranks 6 --hosts 3 --replicas 3 --kills 4 --stops 1 --seconds 4", 4),
    ("nodes", "--ranks 6 --hosts 3 --kill-host --seconds 3", 2),
    ("nodes", "--ranks 6 --hosts 3 --replicas 3 --kills 3 --failpoints --seconds 4", 3),
    ("messages", "--ranks 5 --replicas 3 --kills 4 --failpoints --seconds 4", 4),
    (
        "nodes",
        "--ranks 5 --hosts 2 --replicas 2 --kills 3 --stops 2 --seconds 4 --programs calls",
        3,
    ),
    ("messages", "--ranks 6 --replicas 3 --kills 4 --stops 1 --seconds 4 --mode global", 4),
    ("nodes", "--ranks 6 --hosts 3 --replicas 3 --kills 3 --seconds 4 --mode global", 3),
];

const MPI_KILLS: u64 = 300;

/// Kills of real processes under mpirun, on one host and on several, with a record of them.
pub(crate) fn soak_mpi(gate: &mut Gate, first_seed: u64) -> anyhow::Result<()> {
    crate::mpi::install()?;
    let (program, command) = build("faults,mpi")?;
    gate.step("mpi: build with failpoints", minutes(20), command)?;
    let folder = target_folder()?.join("soak");
    std::fs::create_dir_all(&folder)?;
    let (json, part) = (folder.join("mpi.json"), folder.join("mpi-part.json"));
    let mut record = Record::default();
    let result = record.fill_mpi(gate, &program, &part, first_seed);
    let _ = std::fs::remove_file(&part);
    record.write(&json, result.is_ok())?;
    println!("=== the record is in {}", json.display());
    result
}

/// One value of 1 GiB in two copies, rewritten once: 4 GiB of memory that is lent, and 2 GiB of the members' own. And keys of
/// random sizes that come and go, over more seeds than the gate has: memory levels off and comes back.
fn memory(gate: &mut Gate) -> anyhow::Result<()> {
    let test = |name, filter| {
        let features = ["--features", "outlast/sim,outlast/faults"];
        let what = ["test", "--release", "--package", "outlast", "--test", name];
        cargo(&[&what[..], &features[..], &["--", filter]].concat())
    };
    let mut large = test("shm", "store::a_value_may_be_large");
    large.env("OUTLAST_LARGE_MIB", "1024");
    gate.step("store: one value of 1 GiB", minutes(20), large)?;
    let mut level = test("sim", "comes_back");
    level.env("OUTLAST_SEEDS", "200").env("OUTLAST_SEED_FIRST", "1000");
    gate.step("store: memory levels off", minutes(30), level)
}

/// What a soak of the store did.
#[derive(Default)]
struct Record {
    /// How many shapes of the simulator were left out.
    after: usize,
    sim: Vec<Value>,
    chaos: Vec<Value>,
    deaths_by_step: BTreeMap<String, u64>,
}

impl Record {
    /// Runs `outlast` with these arguments and keeps its report with the line that gives it again, also if it failed.
    fn run(
        &mut self,
        gate: &mut Gate,
        part: &Path,
        (prefix, arguments): (&str, &str),
        limit: Duration,
        mut command: Command,
    ) -> anyhow::Result<()> {
        let _ = std::fs::remove_file(part);
        command.arg("--json").arg(part);
        let result = gate.step(&format!("{prefix}outlast {arguments}"), limit, command);
        if let Ok(mut report) = read_json(part) {
            for (step, count) in report["deaths_by_step"].as_object().into_iter().flatten() {
                *self.deaths_by_step.entry(step.clone()).or_default() +=
                    count.as_u64().unwrap_or(0);
            }
            report["command"] = format!("{prefix}outlast {arguments}").into();
            if arguments.starts_with("sim ") {
                self.sim.push(report)
            } else {
                self.chaos.push(report)
            }
        }
        result
    }

    fn fill_mpi(
        &mut self,
        gate: &mut Gate,
        program: &Path,
        part: &Path,
        first_seed: u64,
    ) -> anyhow::Result<()> {
        let mut kills = 0;
        for (round, (path, shape, deaths)) in MPI_CHAOS.into_iter().cycle().enumerate() {
            if kills >= MPI_KILLS {
                break;
            }
            let arguments =
                format!("chaos --engine mpi {shape} --seed {}", first_seed + round as u64);
            let mut command = outlast(program, &arguments, &[]);
            command.env("OUTLAST_MPI_PATH", path);
            let prefix = format!("OUTLAST_MPI_PATH={path} ");
            self.run(gate, part, (&prefix, &arguments), minutes(5), command)?;
            kills += deaths;
        }
        Ok(())
    }

    fn fill(
        &mut self,
        gate: &mut Gate,
        program: &Path,
        part: &Path,
        first_seed: u64,
        until: Option<Instant>,
    ) -> anyhow::Result<()> {
        let is_time_over = || until.is_some_and(|until| Instant::now() >= until);
        for (shape, count) in SHAPES.into_iter().skip(self.after) {
            if is_time_over() {
                return Ok(());
            }
            let seeds = format!("{first_seed}..{}", first_seed + count);
            let arguments = format!("sim {shape} --seeds {seeds}");
            let command = outlast(program, &arguments, &[]);
            self.run(gate, part, ("", &arguments), minutes(60), command)?;
        }
        let (mut kills, mut kills_global) = (0, 0);
        let mut tries: BTreeMap<String, u64> = BTreeMap::new();
        for (round, (shape, deaths)) in CHAOS.into_iter().cycle().enumerate() {
            // Steps of a recovery come only where members recover together.
            let can_be = |step: &str| {
                !step.starts_with("anywhere")
                    && (!step.starts_with("recover.") || shape.contains("--mode global"))
            };
            let rarest = self.deaths_by_step.iter().filter(|(step, _)| can_be(step));
            // One that is hard to hit does not keep the others waiting.
            let tried = |step: &str| tries.get(step).copied().unwrap_or(0u64);
            let rarest = rarest.min_by_key(|(step, count)| (**count + tried(step), **count));
            let rarest = rarest.map(|(step, _)| step.clone());
            let is_covered =
                rarest.is_some() && self.deaths_by_step.values().all(|count| *count > 0);
            let is_enough = kills >= CHAOS_KILLS
                && kills_global.min(kills - kills_global) >= CHAOS_KILLS_OF_MODE;
            if is_enough && (is_covered || kills >= CHAOS_KILLS_MAX) {
                break;
            }
            if is_time_over() {
                return Ok(());
            }
            let mut arguments =
                format!("chaos --engine shm {shape} --seed {}", first_seed + round as u64);
            if let (Some(step), true) = (rarest, shape.contains("--failpoints")) {
                *tries.entry(step.clone()).or_default() += 1;
                arguments += &format!(" --die-in {step}");
            }
            let command = outlast(program, &arguments, &[]);
            self.run(gate, part, ("", &arguments), minutes(5), command)?;
            kills += deaths;
            kills_global += if shape.contains("--mode global") { deaths } else { 0 };
        }
        let empty: Vec<&str> = self
            .deaths_by_step
            .iter()
            .filter(|(_, count)| **count == 0)
            .map(|(step, _)| step.as_str())
            .collect();
        ensure!(
            empty.is_empty(),
            "nobody died in these steps of the protocol: {}",
            empty.join(", ")
        );
        Ok(())
    }

    fn write(&self, path: &Path, ok: bool) -> anyhow::Result<()> {
        let is_global = |command: &str| command.contains("--mode global");
        let has_transactions = |command: &str| !command.contains("--programs calls");
        let sum_of = |reports: &[Value], field: &str, is_of: &dyn Fn(&str) -> bool| -> u64 {
            let reports =
                reports.iter().filter(|report| report["command"].as_str().is_some_and(is_of));
            reports.filter_map(|report| report[field].as_u64()).sum()
        };
        let sum = |reports: &[Value], field: &str| sum_of(reports, field, &|_| true);
        let record = json!({
            "ok": ok,
            "commit": said_by("git", &["rev-parse", "HEAD"]),
            "machine": { "kernel": said_by("uname", &["-sr"]), "cores": std::thread::available_parallelism().map_or(0, usize::from) },
            "shapes_left_out": self.after,
            "seeds": sum(&self.sim, "seeds"),
            "seeds_global": sum_of(&self.sim, "seeds", &is_global),
            "seeds_with_transactions": sum_of(&self.sim, "seeds", &has_transactions),
            "violations": sum(&self.sim, "violations"),
            "simulated_steps": sum(&self.sim, "steps"),
            "simulated_kills": sum(&self.sim, "kills"),
            "kills": sum(&self.chaos, "kills"),
            "kills_global": sum_of(&self.chaos, "kills", &is_global),
            "stops": sum(&self.chaos, "stops"),
            "acked": sum(&self.chaos, "acked"),
            "deaths_by_step": self.deaths_by_step,
            "sim": self.sim,
            "chaos": self.chaos,
        });
        let text = serde_json::to_string_pretty(&record)? + "\n";
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }
}

/// What a command says in one line; empty if it cannot be run.
fn said_by(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output
        .map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// Breaks the store in each of the known ways and shows what catches it; an error if something is not caught, or if the
/// store as it is does not pass.
pub(crate) fn mutants(gate: &mut Gate, json: Option<&Path>) -> anyhow::Result<()> {
    let (program, command) = build("faults")?;
    gate.step("build with mutants", minutes(20), command)?;
    let mut rows = Vec::new();
    let mut survivors = Vec::new();
    // First as it is: what catches a mutant must pass without it.
    for (name, what) in [("", "nothing is broken")].into_iter().chain(MUTANTS) {
        let began = Instant::now();
        let caught = hunt(&program, name)?;
        let seconds = began.elapsed().as_secs_f64();
        if name.is_empty() {
            if let Some(caught) = caught {
                bail!("the store fails without a mutant: {}: {}", caught.kind, caught.replay);
            }
            println!("  {:<32} passes ({seconds:.0} s)", what);
            continue;
        }
        match &caught {
            Some(caught) => {
                println!(
                    "  {what:<32} caught: {} ({seconds:.0} s)\n      {}",
                    caught.kind, caught.replay
                )
            }
            None => {
                println!("  {what:<32} SURVIVES ({seconds:.0} s)");
                survivors.push(what);
            }
        }
        let (kind, replay) =
            caught.map_or((None, None), |caught| (Some(caught.kind), Some(caught.replay)));
        rows.push(json!({ "mutant": name, "what": what, "caught": kind.is_some(), "kind": kind, "replay": replay, "seconds": seconds }));
    }
    if let Some(path) = json {
        let report = json!({ "ok": survivors.is_empty(), "mutants": rows });
        std::fs::write(path, serde_json::to_string_pretty(&report)? + "\n")
            .with_context(|| format!("writing {}", path.display()))?;
    }
    ensure!(survivors.is_empty(), "not caught: {}", survivors.join(", "));
    Ok(())
}

/// What caught a mutant.
struct Caught {
    kind: String,
    replay: String,
}

/// Runs everything that may catch a mutant; the first thing that does.
fn hunt(program: &Path, mutant: &str) -> anyhow::Result<Option<Caught>> {
    for (shape, count) in HUNTS {
        // Only in global mode is there something to break in a recovery, and the rest is quicker found elsewhere.
        let is_global = shape.contains("--mode global");
        if !mutant.is_empty() && is_global != mutant.starts_with("recover-") {
            continue;
        }
        let arguments = format!("sim {shape} --seeds 0..{count} --first-failure --json -");
        let mut command = outlast(program, &arguments, &[]);
        if !mutant.is_empty() {
            command.env("OUTLAST_MUTANT", mutant);
        }
        let output = command.stdin(Stdio::null()).output().context("running outlast sim")?;
        let prefix =
            if mutant.is_empty() { String::new() } else { format!("OUTLAST_MUTANT={mutant} ") };
        // One that breaks the process is caught as well.
        let Ok(report) = serde_json::from_slice::<Value>(&output.stdout) else {
            ensure!(
                !mutant.is_empty(),
                "outlast sim gave no report: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            let kind = format!("ends the simulator ({})", output.status);
            return Ok(Some(Caught { kind, replay: format!("{prefix}outlast {arguments}") }));
        };
        if let Some(failing) = report["failing"].as_array().and_then(|failing| failing.first()) {
            let text = |field: &str| failing[field].as_str().unwrap_or_default().to_string();
            return Ok(Some(Caught { kind: text("kind"), replay: prefix + &text("replay") }));
        }
    }
    for (test, filter) in TEST_HUNTS {
        let features = ["--features", "outlast/sim,outlast/faults"];
        let arguments =
            [&["test", "--package", "outlast", "--test", test][..], &features[..], &[filter]]
                .concat();
        let mut command = cargo(&arguments);
        if !mutant.is_empty() {
            command.env("OUTLAST_MUTANT", mutant);
        }
        let output = command.stdin(Stdio::null()).output().context("running a test")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        // A test that cannot be built has caught nothing.
        ensure!(said.contains("test result:"), "{}", String::from_utf8_lossy(&output.stderr));
        if !output.status.success() {
            let prefix =
                if mutant.is_empty() { String::new() } else { format!("OUTLAST_MUTANT={mutant} ") };
            let replay = format!("{prefix}cargo {}", arguments.join(" "));
            return Ok(Some(Caught { kind: format!("a test of {test} fails"), replay }));
        }
    }
    Ok(None)
}

/// How long the mutants may take.
pub(crate) const MUTANTS_LIMIT: Duration = minutes(90);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mutants_are_those_of_the_store() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/outlast/src/store/mutant.rs");
        let source = std::fs::read_to_string(path).expect("the store's list");
        let names: Vec<&str> = source
            .lines()
            .filter_map(|line| line.trim().strip_prefix('"')?.strip_suffix("\","))
            .collect();
        assert_eq!(names, MUTANTS.map(|(name, _)| name));
    }

    #[test]
    fn the_soak_is_as_long_as_it_says() {
        let sum = |wanted: &str| {
            SHAPES.iter().filter(|(shape, _)| shape.contains(wanted)).map(|(_, n)| n).sum::<u64>()
        };
        assert_eq!((sum(""), sum("--mode global")), (156_000, 32_000));
        for (shape, kills) in CHAOS {
            assert!(shape.contains(&format!("--kills {kills} ")), "{shape}");
        }
    }
}

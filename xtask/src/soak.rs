//! `cargo xtask soak`: many seeds in the simulator and many kills of real processes, until the time
//! is over or a step fails.
//!
//! The store's part comes first and leaves a record in `target/soak`: what was run, with the
//! command that repeats each run, and how many members died in each step of the protocol.

use crate::gate::{Gate, cargo, minutes, target_folder, workspace};
use crate::soak_seats;
use crate::soak_tasks;
use crate::test::FEATURES;
use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The first seed of the store's part, far above the seeds of `cargo xtask test`.
pub(crate) const STORE_FIRST_SEED: u64 = 1_000_000;
/// The first seed of the soak of the mpi engine.
pub(crate) const MPI_FIRST_SEED: u64 = 2_000_000;

/// The shapes of jobs that the simulator runs, each with its number of seeds: 162,000 in all, on
/// both links. Half as many seeds more run on the network link alone, where most findings were.
const SHAPES: [(&str, u64); 30] = [
    ("--members 3 --replicas 1 --stops 1", 8_000),
    ("--members 3 --replicas 2 --kills 1 --stops 1", 15_000),
    ("--members 3 --replicas 2 --kills 1 --stops 1 --programs bank", 10_000),
    ("--members 5 --replicas 3 --kills 2 --programs calls", 10_000),
    ("--members 4 --replicas 3 --kills 2 --stops 2 --programs puts", 4_000),
    ("--members 4 --replicas 3 --kills 2 --stops 2 --programs conditional", 4_000),
    ("--members 5 --replicas 3 --kills 2", 8_000),
    ("--members 5 --replicas 3 --kills 2 --programs steal", 7_000),
    ("--members 5 --replicas 3 --kills 2 --stops 2 --spares 1", 15_000),
    ("--members 4 --replicas 4 --kills 3 --stops 1 --threads 1", 10_000),
    ("--members 8 --replicas 4 --kills 7", 4_000),
    ("--members 8 --replicas 4 --kills 7 --programs calls", 4_000),
    ("--members 9 --replicas 2 --kills 5 --stops 1", 8_000),
    ("--members 16 --replicas 3 --kills 4 --stops 1", 900),
    ("--members 5 --replicas 2 --kills 3 --stops 1 --beyond", 3_000),
    ("--members 4 --replicas 1 --kills 2 --stops 1 --beyond --programs steal", 3_000),
    ("--members 6 --replicas 3 --kills 5 --beyond --programs bank", 3_000),
    ("--members 5 --replicas 1 --kills 4 --stops 1 --salvage", 4_000),
    ("--members 5 --replicas 2 --kills 4 --stops 1 --salvage --programs steal", 4_000),
    ("--members 6 --replicas 3 --kills 5 --salvage --programs bank", 3_000),
    ("--members 64 --replicas 4 --kills 6 --stops 1 --calls 10 --programs calls", 100),
    ("--members 3 --replicas 2 --kills 1 --stops 1 --mode global", 10_000),
    ("--members 3 --replicas 2 --kills 1 --stops 1 --mode global --programs bank", 4_000),
    ("--members 5 --replicas 3 --kills 2 --stops 2 --spares 1 --mode global", 6_000),
    ("--members 4 --replicas 4 --kills 3 --stops 1 --threads 1 --mode global", 6_000),
    ("--members 5 --replicas 3 --kills 2 --mode global --programs steal", 2_000),
    ("--members 5 --replicas 3 --kills 2 --mode global --programs calls", 1_500),
    ("--members 4 --replicas 3 --kills 2 --stops 1 --mode global --programs puts", 2_000),
    ("--members 4 --replicas 3 --kills 2 --stops 1 --mode global --programs conditional", 2_000),
    ("--members 8 --replicas 4 --kills 7 --mode global", 500),
];

/// The shapes of jobs of real processes, each with its number of kills. They run in turn until
/// there were enough kills.
const CHAOS: [(&str, u64); 11] = [
    ("--members 8 --replicas 3 --kills 7 --stops 2 --seconds 5", 7),
    ("--members 8 --replicas 4 --kills 7 --seconds 5 --failpoints", 7),
    ("--members 6 --replicas 3 --kills 5 --stops 2 --seconds 4 --failpoints --programs bank", 5),
    ("--members 4 --replicas 2 --kills 3 --stops 2 --seconds 3 --programs steal", 3),
    ("--members 5 --replicas 3 --kills 4 --seconds 3 --threads 4 --failpoints", 4),
    ("--members 6 --replicas 2 --kills 4 --stops 1 --seconds 3 --beyond", 4),
    ("--members 8 --replicas 4 --kills 7 --seconds 5 --failpoints --mode global", 7),
    (
        "--members 6 --replicas 3 --kills 5 --stops 2 --seconds 4 --failpoints --programs bank \
         --mode global",
        5,
    ),
    ("--members 4 --replicas 2 --kills 3 --stops 2 --seconds 3 --programs steal --mode global", 3),
    (
        "--members 5 --replicas 3 --kills 4 --seconds 3 --threads 4 --failpoints --programs calls \
         --mode global",
        4,
    ),
    ("--members 6 --replicas 1 --kills 5 --stops 1 --seconds 3 --salvage", 5),
];
/// The least number of kills in all, and in each mode.
const CHAOS_KILLS: u64 = 1_000;
const CHAOS_KILLS_OF_MODE: u64 = 400;
/// The number of kills by which members must have died in each step of the protocol. The soak goes
/// on up to it while a step is missing.
const CHAOS_KILLS_MAX: u64 = 1_200;

/// The shapes of jobs on the mpi engine: `OUTLAST_MPI_PATH`, arguments, and the number of deaths.
/// They run in turn until there were enough kills: local members over shared memory, all members by
/// messages, and several hosts, with deaths of single members and of whole hosts.
const MPI_CHAOS: [(&str, &str, u64); 9] = [
    ("nodes", "--members 6 --replicas 3 --kills 5 --stops 1 --seconds 4", 5),
    ("messages", "--members 6 --replicas 3 --kills 4 --stops 1 --seconds 4", 4),
    ("nodes", "--members 6 --hosts 3 --replicas 3 --kills 4 --stops 1 --seconds 4", 4),
    ("nodes", "--members 6 --hosts 3 --kill-host --seconds 3", 2),
    ("nodes", "--members 6 --hosts 3 --replicas 3 --kills 3 --failpoints --seconds 4", 3),
    ("messages", "--members 5 --replicas 3 --kills 4 --failpoints --seconds 4", 4),
    (
        "nodes",
        "--members 5 --hosts 2 --replicas 2 --kills 3 --stops 2 --seconds 4 --programs calls",
        3,
    ),
    ("messages", "--members 6 --replicas 3 --kills 4 --stops 1 --seconds 4 --mode global", 4),
    ("nodes", "--members 6 --hosts 3 --replicas 3 --kills 3 --seconds 4 --mode global", 3),
];

const MPI_KILLS: u64 = 500;

/// `cargo xtask soak`: the store's part, the parts of the task runtime and of seats, then rounds of
/// everything else with new seeds.
pub(crate) fn soak(length_min: u64) -> anyhow::Result<()> {
    let mut gate = Gate::new(minutes(length_min) + minutes(30));
    let until = Instant::now() + minutes(length_min);
    let result = run_store(&mut gate, STORE_FIRST_SEED, 0, Some(until))
        .and_then(|()| soak_tasks::run(&mut gate, soak_tasks::FIRST_SEED, Some(until)))
        .and_then(|()| soak_seats::run(&mut gate, soak_seats::FIRST_SEED, Some(until)))
        .and_then(|()| run_rounds(&mut gate, until));
    gate.summarize("soak", result)
}

/// `cargo xtask soak store`: the store's part alone. A soak that was stopped goes on by skipping
/// the first shapes of the simulator.
pub(crate) fn soak_store(first_seed: u64, skipped_shapes: usize) -> anyhow::Result<()> {
    let mut gate = Gate::new(minutes(300));
    let result = run_store(&mut gate, first_seed, skipped_shapes, None);
    gate.summarize("soak", result)
}

/// `cargo xtask soak --engine mpi`: kills of real processes under mpirun, on one host and on
/// several.
pub(crate) fn soak_mpi(first_seed: u64) -> anyhow::Result<()> {
    let mut gate = Gate::new(minutes(300));
    let result = run_mpi(&mut gate, first_seed);
    gate.summarize("soak", result)
}

/// Runs the store's seeds and kills, or as many of them as there is time for, and writes the
/// record.
fn run_store(
    gate: &mut Gate,
    first_seed: u64,
    skipped_shapes: usize,
    until: Option<Instant>,
) -> anyhow::Result<()> {
    let (program, command) = build("faults")?;
    gate.step("store: build with failpoints", minutes(20), command)?;
    let memory = if skipped_shapes == 0 { test_memory(gate) } else { Ok(()) };
    let mut record = Record { skipped_shapes, ..Record::default() };
    let folder = make_folder()?;
    let part = folder.join("soak-part.json");
    let result = memory.and_then(|()| record.fill(gate, &program, &part, first_seed, until));
    let _ = std::fs::remove_file(&part);
    record.write(&folder.join("store.json"), result.is_ok())?;
    result
}

fn run_mpi(gate: &mut Gate, first_seed: u64) -> anyhow::Result<()> {
    crate::mpi::install()?;
    let (program, command) = build("faults,mpi")?;
    gate.step("mpi: build with failpoints", minutes(20), command)?;
    let mut record = Record::default();
    let folder = make_folder()?;
    let part = folder.join("mpi-part.json");
    let result = record.fill_mpi(gate, &program, &part, first_seed);
    let _ = std::fs::remove_file(&part);
    record.write(&folder.join("mpi.json"), result.is_ok())?;
    result
}

/// Runs the conformance suite, the tests, and the scenarios of communicators and windows, with
/// other seeds in each round.
fn run_rounds(gate: &mut Gate, until: Instant) -> anyhow::Result<()> {
    const SIM_SEEDS_PER_ROUND: u64 = 2_000;
    const SHM_SEEDS_PER_ROUND: u64 = 5;
    // For each of the more than fifty scenarios of communicators and windows: more than 100,000
    // runs.
    const RMA_SEEDS_PER_ROUND: u64 = 2_000;
    let conformance = ["run", "--release", "--quiet", "--package", "outlast-conformance", "--"];
    let tests = ["test", "--release", "--workspace", "--features", FEATURES];
    // Built first, so that the time of building is in no round.
    gate.step("build", minutes(15), cargo(&[&tests[..], &["--no-run"]].concat()))?;
    for round in 1.. {
        // The seeds of the first round are above the seeds of `cargo xtask test`.
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

/// The scenarios of communicators and windows under the simulator, `count` seeds for each. The
/// sweeps over the steps of an operation take hundreds of runs for each seed: the tests make them.
fn rma_scenarios(first: u64, count: u64) -> Command {
    let tests = ["test", "--release", "--package", "outlast", "--features", "sim,faults"];
    let of_rma = ["--test", "sim", "--", "rma::communicator::", "rma::window::", "--nocapture"];
    let without_sweeps = ["--skip", "_at_each_step_", "--skip", "_two_deaths_at_once_"];
    let mut command = cargo(&[&tests[..], &of_rma, &without_sweeps].concat());
    command.env("OUTLAST_SEED_FIRST", first.to_string()).env("OUTLAST_SEEDS", count.to_string());
    command
}

/// The program `outlast` with failpoints and mutants, in a target folder of its own, and the
/// command that builds it.
pub(crate) fn build(features: &str) -> anyhow::Result<(PathBuf, Command)> {
    let target = target_folder().join("faults");
    let folder = target.to_str().context("the path of the target folder is not UTF-8")?;
    let release = ["build", "--release", "--package", "outlast-cli", "--features", features];
    let command = cargo(&[&release[..], &["--target-dir", folder]].concat());
    Ok((target.join("release/outlast"), command))
}

/// A call of `outlast`, without a mutant that the environment may name.
pub(crate) fn outlast(program: &Path, arguments: &str) -> Command {
    let mut command = Command::new(program);
    command.args(arguments.split(' ')).env_remove("OUTLAST_MUTANT");
    command
}

/// A value of 1 GiB with two replicas, rewritten once: 4 GiB of segments, and 2 GiB of the members'
/// own memory. Then keys of random sizes that come and go, over more seeds than the gate has: the
/// use of memory levels off and comes back.
fn test_memory(gate: &mut Gate) -> anyhow::Result<()> {
    let test = |name, filter| {
        let features = ["--features", "outlast/sim,outlast/faults"];
        let what = ["test", "--release", "--package", "outlast", "--test", name];
        cargo(&[&what[..], &features[..], &["--", filter]].concat())
    };
    let mut large = test("shm", "store::a_value_may_be_large");
    large.env("OUTLAST_LARGE_MIB", "1024");
    gate.step("store: a value of 1 GiB", minutes(20), large)?;
    let mut level = test("sim", "comes_back");
    level.env("OUTLAST_SEEDS", "200").env("OUTLAST_SEED_FIRST", "1000");
    gate.step("store: memory levels off", minutes(30), level)
}

pub(crate) fn make_folder() -> anyhow::Result<PathBuf> {
    let folder = target_folder().join("soak");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// What a soak of the store did.
#[derive(Default)]
struct Record {
    skipped_shapes: usize,
    sim: Vec<Value>,
    chaos: Vec<Value>,
    deaths_by_step: BTreeMap<String, u64>,
}

impl Record {
    /// Runs `outlast` with these arguments, and keeps its report with the command that repeats it,
    /// also if the run failed.
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
                self.sim.push(report);
            } else {
                self.chaos.push(report);
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
            let mut command = outlast(program, &arguments);
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
        for (shape, count) in SHAPES.into_iter().skip(self.skipped_shapes) {
            if is_time_over() {
                return Ok(());
            }
            let end = first_seed + count;
            let both = format!("sim {shape} --seeds {first_seed}..{end}");
            let network = format!("sim {shape} --link network --seeds {end}..{}", end + count / 2);
            // Salvage reads the memory of the dead, which members of a network cannot.
            let of_network = (!shape.contains("--salvage")).then_some(network);
            for arguments in [Some(both), of_network].into_iter().flatten() {
                let command = outlast(program, &arguments);
                self.run(gate, part, ("", &arguments), minutes(60), command)?;
            }
        }
        let (mut kills, mut kills_global) = (0, 0);
        let mut tries: BTreeMap<String, u64> = BTreeMap::new();
        for (round, (shape, deaths)) in CHAOS.into_iter().cycle().enumerate() {
            // The steps of a coordinated recovery occur in global mode only.
            let can_be = |step: &str| {
                !step.starts_with("anywhere")
                    && (!step.starts_with("recover.") || shape.contains("--mode global"))
            };
            let rarest = self.deaths_by_step.iter().filter(|(step, _)| can_be(step));
            // A step that is hard to hit counts its tries, so that other steps get their turn.
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
                arguments += &format!(" --die-in {}", step.split(' ').next().unwrap_or_default());
            }
            let command = outlast(program, &arguments);
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
            "no member died in these steps of the protocol: {}",
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
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let record = json!({
            "ok": ok,
            "commit": output_of("git", &["rev-parse", "HEAD"]),
            "machine": { "kernel": output_of("uname", &["-sr"]), "cores": cores },
            "shapes_left_out": self.skipped_shapes,
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
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        println!("=== the record is in {}", path.display());
        Ok(())
    }
}

pub(crate) fn read_json(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not JSON", path.display()))
}

/// The output of a command; empty if it cannot be run.
pub(crate) fn output_of(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(workspace()).output();
    output
        .map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soak_has_the_stated_number_of_seeds_and_kills() {
        let sum = |wanted: &str| {
            SHAPES.iter().filter(|(shape, _)| shape.contains(wanted)).map(|(_, n)| n).sum::<u64>()
        };
        assert_eq!((sum(""), sum("--mode global")), (162_000, 34_000));
        for (shape, kills) in CHAOS {
            assert!(shape.contains(&format!("--kills {kills} ")), "{shape}");
        }
    }
}

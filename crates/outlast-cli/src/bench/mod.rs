//! `outlast bench`: measurements as commands, in a common harness.
//!
//! Times on a small machine are noisy, so contenders are measured interleaved in a single run and
//! reported as ratios to a floor that is measured in that run. Each measurement becomes a [`Row`].
//! People get a table of the rows, programs the JSON of [`BenchReport`].
//!
//! | module | what is measured |
//! |---|---|
//! | [`store`] | puts and gets against memcpy, [`redis`] and the published way ([`ping`]) |
//! | [`tx`] | transactions against puts |
//! | [`detection`], [`failure`] | how fast deaths are known, puts go on, replicas are back |
//! | [`snapshot`] | snapshots against dd |
//! | [`tasks`] | programs of tasks against rayon, and against themselves without saving |
//! | [`ulfm`] | agree and shrink against dup and Open MPI ([`openmpi`]) |
//! | [`sim`] | the speed of the simulator |

mod detection;
mod failure;
mod openmpi;
mod ping;
mod redis;
mod sim;
mod snapshot;
mod store;
mod tasks;
mod tx;
mod ulfm;

use crate::report::{print_table, say, write_json};
use anyhow::ensure;
use clap::{Args, Subcommand};
use outlast::launch::Outcome;
use serde::Serialize;
use std::path::PathBuf;

pub(crate) use detection::DetectionMember;
pub(crate) use failure::FailureMember;
pub(crate) use snapshot::SnapshotBenchMember;
pub(crate) use store::StoreBenchMember;
pub(crate) use tx::TxBenchMember;
pub(crate) use ulfm::UlfmMember;

/// Measure the library on this machine, against a floor measured in the same run
#[derive(Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    Detection(detection::DetectionBench),
    Failover(failure::FailoverBench),
    Get(store::GetBench),
    Put(store::PutBench),
    Repair(failure::RepairBench),
    Sim(sim::SimBench),
    Snapshot(snapshot::SnapshotBench),
    Tasks(tasks::TasksBench),
    Tx(tx::TxBench),
    Ulfm(ulfm::UlfmBench),
}

impl Bench {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        match self.what {
            Benchmark::Detection(detection) => detection.execute(),
            Benchmark::Failover(failover) => failover.execute(),
            Benchmark::Get(get) => get.execute(),
            Benchmark::Put(put) => put.execute(),
            Benchmark::Repair(repair) => repair.execute(),
            Benchmark::Sim(sim) => sim.execute(),
            Benchmark::Snapshot(snapshot) => snapshot.execute(),
            Benchmark::Tasks(tasks) => tasks.execute(),
            Benchmark::Tx(tx) => tx.execute(),
            Benchmark::Ulfm(ulfm) => ulfm.execute(),
        }
    }
}

/// The options of all benchmarks.
#[derive(Args)]
struct BenchArgs {
    /// Write the results as JSON to this file; - is standard output
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

/// A measurement.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    what: String,
    engine: String,
    #[serde(rename = "ranks")]
    members: usize,
    replicas: Option<usize>,
    size: Option<u64>,
    contender: String,
    pinned: bool,
    samples: usize,
    p50_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    max_ns: u64,
    floor_ns: Option<u64>,
    ratio: Option<f64>,
    /// For the simulator only: its speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    steps_per_s: Option<u64>,
    /// Messages that a member sends for a call, if they were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<f64>,
    /// How many of the samples did not end, if a member was killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    hung: Option<usize>,
}

impl Row {
    /// Fills in the percentiles. With few samples the high percentiles are the largest sample.
    fn with_samples(mut self, mut samples_ns: Vec<u64>) -> Row {
        samples_ns.sort_unstable();
        let percentile = |per_mille: usize| {
            let rank = (samples_ns.len() * per_mille).div_ceil(1000).max(1) - 1;
            samples_ns.get(rank).copied().unwrap_or(0)
        };
        self.samples = samples_ns.len();
        (self.p50_ns, self.p99_ns, self.p999_ns) =
            (percentile(500), percentile(990), percentile(999));
        self.max_ns = samples_ns.last().copied().unwrap_or(0);
        self
    }
}

/// The report of a benchmark, as JSON.
#[derive(Serialize)]
struct BenchReport {
    results: Vec<Row>,
    machine: Machine,
    command: String,
}

/// The machine of the measurement.
#[derive(Serialize)]
struct Machine {
    cores: usize,
    processor: String,
    kernel: String,
    memory_bytes: u64,
}

impl Machine {
    fn this() -> Machine {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor =
            cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Machine {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: processor.map_or("unknown", |(_, name)| name).to_string(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            memory_bytes: outlast::engine::shm::available_memory(),
        }
    }
}

/// An error with the members' messages, if a member failed that was not killed.
fn expect_ok(outcome: &Outcome) -> anyhow::Result<()> {
    let said = || outcome.members.iter().map(|end| outcome.stderr(end.member)).collect::<String>();
    ensure!(outcome.survivors_ok(), "a member of the benchmark failed:\n{outcome}{}", said());
    Ok(())
}

/// A ratio with two significant digits.
fn times(ratio: f64) -> String {
    if ratio < 0.095 { format!("{ratio:.4}x") } else { format!("{ratio:.2}x") }
}

/// Prints the table and writes the JSON.
fn publish(args: &BenchArgs, results: Vec<Row>) -> anyhow::Result<()> {
    let json = args.json.as_deref();
    let header = [
        "what",
        "contender",
        "members",
        "size",
        "samples",
        "p50",
        "p99",
        "max",
        "ratio",
        "steps/s",
        "messages",
        "hung",
    ]
    .map(String::from);
    let rows = results.iter().map(|row| {
        // Calls that hung or failed have no time.
        let time =
            |ns: u64| if row.hung.is_some() && ns == 0 { "".into() } else { nanoseconds(ns) };
        [
            row.what.clone(),
            row.contender.clone(),
            row.members.to_string(),
            row.size.map_or("".into(), crate::quantity::human_bytes),
            row.samples.to_string(),
            time(row.p50_ns),
            time(row.p99_ns),
            time(row.max_ns),
            row.ratio.map_or("".into(), times),
            row.steps_per_s.map_or("".into(), |steps| steps.to_string()),
            row.messages.map_or("".into(), |messages| format!("{messages:.1}")),
            row.hung.map_or("".into(), |hung| hung.to_string()),
        ]
    });
    print_table(json, std::iter::once(header).chain(rows).collect());
    let machine = Machine::this();
    say(
        json,
        format_args!("{} cores, {}, Linux {}", machine.cores, machine.processor, machine.kernel),
    );
    if let Some(path) = json {
        let command = std::env::args().collect::<Vec<_>>().join(" ");
        write_json(path, &BenchReport { results, machine, command })?;
    }
    Ok(())
}

/// A time in a fitting unit.
fn nanoseconds(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let row = Row::default().with_samples((1..=1000).rev().collect());
        assert_eq!((row.p50_ns, row.p99_ns, row.p999_ns, row.max_ns), (500, 990, 999, 1000));
        let row = Row::default().with_samples(vec![7]);
        assert_eq!((row.p50_ns, row.p99_ns, row.samples), (7, 7, 1));
        assert_eq!(Row::default().with_samples(vec![]).p50_ns, 0);
    }
}

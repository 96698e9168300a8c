//! `outlast bench`: measurements as commands, in a common harness.
//!
//! Times on a small machine are noisy, so contenders are measured interleaved in a single run and
//! reported as ratios to a floor that is measured in that run. Each measurement becomes a [`Row`].
//! People get a table of the rows, programs the JSON of [`BenchReport`].
//!
//! | module | what is measured |
//! |---|---|
//! | [`all`] | everything in turn, for a single report |
//! | [`store`] | puts and gets against memcpy, other stores ([`peers`]) and the published way ([`ping`]) |
//! | [`tx`] | transactions against puts |
//! | [`detection`], [`failure`] | how fast deaths are known, puts go on, replicas are back |
//! | [`snapshot`] | snapshots against dd |
//! | [`tasks`] | programs of tasks against rayon, and against themselves without saving |
//! | [`ulfm`] | agree and shrink against dup and Open MPI ([`openmpi`]) |
//! | [`sim`] | the speed of the simulator |

mod all;
mod detection;
mod failure;
mod openmpi;
mod peers;
mod ping;
mod sim;
mod snapshot;
mod store;
mod tasks;
mod tx;
mod ulfm;

use crate::report::figures::{Latency, latencies, time};
use crate::report::file::{ReportFile, report_file};
use crate::report::machine::{Machine, command_line};
use crate::report::page::{Page, Section, Table};
use crate::report::{print_table, say, write_json};
use anyhow::ensure;
use clap::{Args, Subcommand};
use outlast::launch::Outcome;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

pub(crate) use detection::DetectionMember;
pub(crate) use failure::FailureMember;
pub(crate) use peers::PeerServer;
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
    All(all::AllBench),
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
            Benchmark::All(all) => all.execute(),
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
    /// Write a page for a browser to this file
    #[arg(long, value_name = "FILE", value_parser = report_file)]
    report: Option<ReportFile>,
}

/// A measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
    /// The quartiles, for box plots.
    #[serde(default)]
    p25_ns: u64,
    p50_ns: u64,
    #[serde(default)]
    p75_ns: u64,
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
        (self.p25_ns, self.p50_ns, self.p75_ns) =
            (percentile(250), percentile(500), percentile(750));
        (self.p99_ns, self.p999_ns) = (percentile(990), percentile(999));
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
    /// What is compared, and the ratios to contenders.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    remarks: Vec<String>,
    #[serde(skip_serializing_if = "<[(String, String)]>::is_empty")]
    versions: Vec<(String, String)>,
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

/// What a page says besides the measurements.
#[derive(Clone, Default)]
struct Origin {
    remarks: Vec<String>,
    /// The contenders that are programs of others, with their versions.
    versions: Vec<(String, String)>,
}

/// Prints the table and writes the JSON.
fn publish(args: &BenchArgs, results: Vec<Row>) -> anyhow::Result<()> {
    publish_with(args, results, &Origin::default())
}

fn publish_with(args: &BenchArgs, results: Vec<Row>, origin: &Origin) -> anyhow::Result<()> {
    let json = args.json.as_deref();
    let header = [
        "what",
        "contender",
        "members",
        "size",
        "samples",
        "p50",
        "p99",
        "p99.9",
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
            time(row.p999_ns),
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
    if let Some(file) = &args.report {
        file.write(&page(&results, origin))?;
        say(json, format_args!("report: {}", file.path().display()));
    }
    if let Some(path) = json {
        let command = command_line();
        let Origin { remarks, versions } = origin.clone();
        write_json(path, &BenchReport { results, machine, command, remarks, versions })?;
    }
    Ok(())
}

/// The measurements as a page: a figure and a table for each kind and size of call.
fn page(results: &[Row], origin: &Origin) -> Page {
    let mut kinds: Vec<&str> = results.iter().map(|row| row.what.as_str()).collect();
    kinds.dedup();
    let samples: usize = results.iter().map(|row| row.samples).sum();
    let lead = "Contenders are measured in turn, in a single run on this machine. Ratios are to \
                the floor of the same run. Lower is better.";
    let page = Page::new(format!("Benchmark: {}", kinds.join(", ")), lead)
        .fact(results.len(), "measurements")
        .fact(samples, "samples in all")
        .fact(results.iter().map(|row| row.members).max().unwrap_or(0), "processes at most");
    let mut groups: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in results {
        let title = match row.size {
            Some(size) => format!("{}, {}", row.what, crate::quantity::human_bytes(size)),
            None => row.what.clone(),
        };
        match groups.iter_mut().find(|(other, _)| *other == title) {
            Some((_, rows)) => rows.push(row),
            None => groups.push((title, vec![row])),
        }
    }
    let section = |(title, rows): (String, Vec<&Row>)| {
        let is_repeated = |name: &str| rows.iter().filter(|row| row.contender == name).count() > 1;
        let latency = |(colour, row): (usize, &&Row)| Latency {
            name: match is_repeated(&row.contender) {
                true => format!("{}, {} members", row.contender, row.members),
                false => row.contender.clone(),
            },
            p25: row.p25_ns as f64,
            p75: row.p75_ns as f64,
            p50: row.p50_ns as f64,
            p99: row.p99_ns as f64,
            p999: row.p999_ns as f64,
            max: row.max_ns as f64,
            remark: row.ratio.map_or("".into(), |ratio| format!("{} the floor", times(ratio))),
            colour,
        };
        let rows_of_figure: Vec<Latency> = rows.iter().enumerate().map(latency).collect();
        let figure = latencies(&title, &rows_of_figure);
        Section::new(title, "").figure(&figure).table(&table(&rows))
    };
    let page = groups.into_iter().map(section).fold(page, Page::section);
    let page = match origin.remarks.is_empty() {
        true => page,
        false => {
            page.section(Section::new("What is compared", "").text(&origin.remarks.join("\n\n")))
        }
    };
    origin.versions.iter().fold(page, |page, (term, version)| page.origin(term, version))
}

fn table(rows: &[&Row]) -> Table {
    let mut table = Table::new(
        1,
        &[
            "contender",
            "engine",
            "members",
            "replicas",
            "samples",
            "p25",
            "p50",
            "p75",
            "p99",
            "p99.9",
            "max",
            "ratio",
        ],
    );
    for row in rows {
        let of = |ns: u64| if ns == 0 { String::new() } else { time(ns as f64) };
        let mut cells = vec![
            row.contender.clone(),
            row.engine.clone(),
            row.members.to_string(),
            row.replicas.map_or("".into(), |replicas| replicas.to_string()),
            row.samples.to_string(),
            of(row.p25_ns),
            of(row.p50_ns),
            of(row.p75_ns),
            of(row.p99_ns),
            of(row.p999_ns),
            of(row.max_ns),
            row.ratio.map_or("".into(), times),
        ];
        if let Some(steps) = row.steps_per_s {
            cells[11] = format!("{steps} steps/s");
        }
        if let Some(hung) = row.hung {
            cells[11] = format!("{hung} hung");
        }
        table.rows.push(cells);
    }
    table
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
        assert_eq!((row.p25_ns, row.p75_ns), (250, 750));
        let row = Row::default().with_samples(vec![7]);
        assert_eq!((row.p50_ns, row.p99_ns, row.samples), (7, 7, 1));
        assert_eq!(Row::default().with_samples(vec![]).p50_ns, 0);
    }
}

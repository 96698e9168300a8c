//! `outlast bench`: measurements as commands, in a common harness.
//!
//! Times on a small machine are noisy, so contenders are measured interleaved in a single run and
//! reported as ratios to a floor that is measured in that run. Each measurement becomes a [`Row`].
//! People get a table of the rows, programs the JSON of [`BenchReport`].
//!
//! | module | what is measured |
//! |---|---|
//! | [`all`] | everything in turn, for a single report |
//! | [`show`] | a report that was written before, as a page and as pictures |
//! | [`store`] | puts and gets against memcpy, other stores ([`peers`]) and the published way ([`ping`]) |
//! | [`tx`] | transactions against puts |
//! | [`load`] | mixed calls, fixed rates, many callers, many members, and the poster's figure |
//! | [`detection`], [`failure`] | how fast deaths are known, puts go on, replicas are back |
//! | [`cost`] | what a killed process costs writers, here and with other stores |
//! | [`memory`] | the memory of a key with all its copies |
//! | [`image`], [`seat`] | images against memcpy, seats against windows and against themselves |
//! | [`snapshot`] | snapshots against dd |
//! | [`tasks`] | programs of tasks against rayon, and against themselves without saving |
//! | [`ulfm`] | agree and shrink against dup and Open MPI ([`openmpi`]) |
//! | [`sim`] | the speed of the simulator |

mod all;
mod cost;
mod detection;
mod failure;
mod image;
mod interrupt;
mod load;
mod memory;
mod openmpi;
mod pace;
mod peers;
mod ping;
mod samples;
mod seat;
mod show;
mod sim;
mod snapshot;
mod store;
mod tasks;
mod tx;
mod ulfm;

use crate::report::figures::{Bar, Curve, Figure, Latency, bars, curves, latencies, short, time};
use crate::report::file::{ReportFile, report_file};
use crate::report::machine::Machine;
use crate::report::page::{Made, Page, Section, Table};
use crate::report::{print_table, say, write_json};
use anyhow::ensure;
use clap::{Args, Subcommand};
use cost::{Course, FAILURE};
use outlast::launch::Outcome;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

pub(crate) use cost::CourseMember;
pub(crate) use detection::DetectionMember;
pub(crate) use failure::FailureMember;
pub(crate) use image::ImageBenchMember;
pub(crate) use load::LoadBenchMember;
pub(crate) use memory::MemoryBenchMember;
pub(crate) use peers::PeerServer;
pub(crate) use seat::SeatBenchMember;
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
    Failure(cost::FailureBench),
    Get(store::GetBench),
    Growth(load::GrowthBench),
    Image(image::ImageBench),
    Memory(memory::MemoryBench),
    Mixed(load::MixedBench),
    Poster(load::PosterBench),
    Put(store::PutBench),
    Rate(load::RateBench),
    Repair(failure::RepairBench),
    Seat(seat::SeatBench),
    Show(show::ShowBench),
    Sim(sim::SimBench),
    Snapshot(snapshot::SnapshotBench),
    Tasks(tasks::TasksBench),
    Throughput(load::ThroughputBench),
    Tx(tx::TxBench),
    Ulfm(ulfm::UlfmBench),
}

impl Bench {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        if self.what.args().is_some_and(|args| args.pinned) {
            pin()?;
        }
        match self.what {
            Benchmark::All(all) => all.execute(),
            Benchmark::Detection(detection) => detection.execute(),
            Benchmark::Failover(failover) => failover.execute(),
            Benchmark::Failure(failure) => failure.execute(),
            Benchmark::Get(get) => get.execute(),
            Benchmark::Growth(growth) => growth.execute(),
            Benchmark::Image(image) => image.execute(),
            Benchmark::Memory(memory) => memory.execute(),
            Benchmark::Mixed(mixed) => mixed.execute(),
            Benchmark::Poster(poster) => poster.execute(),
            Benchmark::Put(put) => put.execute(),
            Benchmark::Rate(rate) => rate.execute(),
            Benchmark::Repair(repair) => repair.execute(),
            Benchmark::Seat(seat) => seat.execute(),
            Benchmark::Show(show) => show.execute(),
            Benchmark::Sim(sim) => sim.execute(),
            Benchmark::Snapshot(snapshot) => snapshot.execute(),
            Benchmark::Tasks(tasks) => tasks.execute(),
            Benchmark::Throughput(throughput) => throughput.execute(),
            Benchmark::Tx(tx) => tx.execute(),
            Benchmark::Ulfm(ulfm) => ulfm.execute(),
        }
    }
}

impl Benchmark {
    /// The options of benchmarks, where something is measured.
    fn args(&self) -> Option<&BenchArgs> {
        Some(match self {
            Benchmark::Show(_) => return None,
            Benchmark::All(all) => &all.args,
            Benchmark::Detection(detection) => &detection.args,
            Benchmark::Failover(failover) => &failover.args,
            Benchmark::Failure(failure) => &failure.args,
            Benchmark::Get(get) => &get.args,
            Benchmark::Growth(growth) => &growth.args,
            Benchmark::Image(image) => &image.args,
            Benchmark::Memory(memory) => &memory.args,
            Benchmark::Mixed(mixed) => &mixed.load.args,
            Benchmark::Poster(poster) => &poster.args,
            Benchmark::Put(put) => &put.args,
            Benchmark::Rate(rate) => &rate.load.args,
            Benchmark::Repair(repair) => &repair.args,
            Benchmark::Seat(seat) => &seat.args,
            Benchmark::Sim(sim) => &sim.args,
            Benchmark::Snapshot(snapshot) => &snapshot.args,
            Benchmark::Tasks(tasks) => &tasks.args,
            Benchmark::Throughput(throughput) => &throughput.load.args,
            Benchmark::Tx(tx) => &tx.args,
            Benchmark::Ulfm(ulfm) => &ulfm.args,
        })
    }
}

/// Keeps this process, and all that it starts, on the first core that it may use.
fn pin() -> anyhow::Result<()> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let allowed = sched_getaffinity(None)?;
    let first = (0..CpuSet::MAX_CPU).find(|&core| allowed.is_set(core)).unwrap_or(0);
    let mut only = CpuSet::new();
    only.set(first);
    sched_setaffinity(None, &only).map_err(|error| anyhow::anyhow!("pinning to a core: {error}"))
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
    /// Keep all processes of this run on one core; without it they are free
    #[arg(long)]
    pinned: bool,
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
    /// How many callers there were at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    callers: Option<usize>,
    /// How many calls all callers together made in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    calls_per_s: Option<f64>,
    /// Bytes of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
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
#[derive(Serialize, Deserialize)]
struct BenchReport {
    results: Vec<Row>,
    machine: Machine,
    command: String,
    date: String,
    /// The version of Outlast.
    version: String,
    /// What is compared, and the ratios to contenders.
    #[serde(default, skip_serializing_if = "<[String]>::is_empty")]
    remarks: Vec<String>,
    #[serde(default, skip_serializing_if = "<[(String, String)]>::is_empty")]
    versions: Vec<(String, String)>,
    /// Runs in which a process was killed.
    #[serde(default, skip_serializing_if = "<[Course]>::is_empty")]
    courses: Vec<Course>,
}

impl BenchReport {
    fn new(results: Vec<Row>, origin: Origin) -> BenchReport {
        let Origin { remarks, versions, courses } = origin;
        let Made { date, command, machine, version } = Made::now();
        BenchReport { results, machine, command, date, version, remarks, versions, courses }
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

/// What a page says besides the measurements.
#[derive(Clone, Default)]
struct Origin {
    remarks: Vec<String>,
    /// The contenders that are programs of others, with their versions.
    versions: Vec<(String, String)>,
    /// Runs in which a process was killed.
    courses: Vec<Course>,
}

/// What a comparison with peers compares.
const COMPARED: &str = "Compared are unlike things: Outlast, LMDB and the caller's Hazelcast \
                        member are memory in the calling process; Redis, etcd and memcached are \
                        servers that it asks over sockets.";

/// Prints the table and writes the JSON.
fn publish(args: &BenchArgs, results: Vec<Row>) -> anyhow::Result<()> {
    publish_with(args, results, &Origin::default())
}

fn publish_with(args: &BenchArgs, mut results: Vec<Row>, origin: &Origin) -> anyhow::Result<()> {
    let json = args.json.as_deref();
    results.iter_mut().for_each(|row| row.pinned |= args.pinned);
    let report = BenchReport::new(results, origin.clone());
    report.print(json);
    if let Some(file) = &args.report {
        file.write(&page(&report))?;
        say(json, format_args!("report: {}", file.path().display()));
    }
    json.map_or(Ok(()), |path| write_json(path, &report))
}

impl BenchReport {
    fn mode(&self) -> &'static str {
        let is_pinned = self.results.iter().any(|row| row.pinned);
        if is_pinned { "pinned to a core" } else { "not pinned" }
    }

    /// Prints the table and the machine.
    fn print(&self, json: Option<&std::path::Path>) {
        print_table(json, text_table(&self.results));
        let Machine { cores, processor, kernel, .. } = &self.machine;
        say(json, format_args!("{cores} cores, {processor}, Linux {kernel}; {}", self.mode()));
    }
}

/// A table for people; columns without any value are left out.
fn text_table(results: &[Row]) -> Vec<Vec<String>> {
    let header = [
        "what",
        "contender",
        "members",
        "size",
        "callers",
        "samples",
        "p50",
        "p99",
        "p99.9",
        "max",
        "ratio",
        "calls/s",
        "bytes",
        "steps/s",
        "messages",
        "hung",
    ];
    let mut rows = vec![header.map(String::from).to_vec()];
    rows.extend(results.iter().map(|row| {
        // Calls that hung or failed have no time, and neither has an amount of memory.
        let is_timeless = row.hung.is_some() || row.bytes.is_some() || row.messages.is_some();
        let time = |ns: u64| if is_timeless && ns == 0 { "".into() } else { nanoseconds(ns) };
        vec![
            row.what.clone(),
            row.contender.clone(),
            row.members.to_string(),
            row.size.map_or("".into(), crate::quantity::human_bytes),
            row.callers.map_or("".into(), |callers| callers.to_string()),
            row.samples.to_string(),
            time(row.p50_ns),
            time(row.p99_ns),
            time(row.p999_ns),
            time(row.max_ns),
            row.ratio.map_or("".into(), times),
            row.calls_per_s.map_or("".into(), |calls| format!("{calls:.0}")),
            row.bytes.map_or("".into(), |bytes| bytes.to_string()),
            row.steps_per_s.map_or("".into(), |steps| steps.to_string()),
            row.messages.map_or("".into(), |messages| format!("{messages:.1}")),
            row.hung.map_or("".into(), |hung| hung.to_string()),
        ]
    }));
    let is_used = |column: &usize| rows[1..].iter().any(|row| !row[*column].is_empty());
    let used: Vec<usize> = (0..header.len()).filter(is_used).collect();
    rows.iter().map(|row| used.iter().map(|&column| row[column].clone()).collect()).collect()
}

/// The measurements as a page: a figure and a table for each kind and size of call.
fn page(report: &BenchReport) -> Page {
    let BenchReport { results, .. } = report;
    let mut kinds: Vec<&str> =
        results.iter().map(|row| row.what.split(", ").next().unwrap_or_default()).collect();
    kinds.dedup();
    let samples: usize = results.iter().map(|row| row.samples).sum();
    let lead = format!(
        "Contenders are measured in turn, in a single run on this machine; processes are {}. \
         Ratios are to the floor of that run, or to its first contender.",
        report.mode()
    );
    let mut page = Page::new(format!("Benchmark: {}", kinds.join(", ")), lead)
        .made(Made {
            date: report.date.clone(),
            command: report.command.clone(),
            machine: report.machine.clone(),
            version: report.version.clone(),
        })
        .fact(results.len(), "measurements")
        .fact(samples, "samples in all")
        .fact(results.iter().map(|row| row.members).max().unwrap_or(0), "processes at most");
    if let Some(courses) = cost::sections(&report.courses, results) {
        page = page.section(courses);
    }
    for (title, rows) in groups(results) {
        let (figure, text) = figure(&title, &rows);
        let section = Section::new(title, text).figure(&figure.html()).table(&table(&rows));
        page = page.section(section);
    }
    if !report.remarks.is_empty() {
        let section = Section::new("What is compared", "").text(&report.remarks.join("\n\n"));
        page = page.section(section);
    }
    report.versions.iter().fold(page, |page, (term, version)| page.origin(term, version))
}

/// The measurements by kind and size, each with a title. What failures cost is apart.
fn groups(results: &[Row]) -> Vec<(String, Vec<&Row>)> {
    let mut groups: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in results.iter().filter(|row| !row.what.starts_with(FAILURE)) {
        let title = match row.size {
            Some(size) => format!("{}, {}", row.what, crate::quantity::human_bytes(size)),
            None => row.what.clone(),
        };
        match groups.iter_mut().find(|(other, _)| *other == title) {
            Some((_, rows)) => rows.push(row),
            None => groups.push((title, vec![row])),
        }
    }
    groups
}

/// The figure of a group of measurements, and what it shows.
fn figure(title: &str, rows: &[&Row]) -> (Figure, &'static str) {
    let mut counts: Vec<usize> = rows.iter().filter_map(|row| row.callers).collect();
    counts.sort_unstable();
    counts.dedup();
    if counts.len() > 1 {
        let mut lines: Vec<Curve> = Vec::new();
        for row in rows {
            let (callers, calls) = (row.callers.unwrap_or(1), row.calls_per_s.unwrap_or(0.0));
            match lines.iter_mut().find(|line| line.name == row.contender) {
                Some(line) => line.points.push((callers as f64, calls)),
                None => {
                    let points = vec![(callers as f64, calls)];
                    lines.push(Curve { name: row.contender.clone(), points });
                }
            }
        }
        let figure = curves(title, "callers", "calls/s", &lines);
        return (figure, "Calls a second of all callers together. More is better.");
    }
    let bar =
        |row: &&Row, value: f64, text: String| Bar { name: row.contender.clone(), value, text };
    if rows.iter().any(|row| row.bytes.is_some()) {
        let of = |row: &&Row| {
            let bytes = row.bytes.unwrap_or(0);
            bar(row, bytes as f64, format!("{bytes} bytes"))
        };
        let all: Vec<Bar> = rows.iter().map(of).collect();
        return (bars(title, &all), "Bytes for a key and its value. Less is better.");
    }
    if rows.iter().all(|row| row.messages.is_some() && row.samples == 0) {
        let of = |row: &&Row| {
            let count = row.messages.unwrap_or(0.0);
            bar(row, count, format!("{count:.1} requests"))
        };
        let all: Vec<Bar> = rows.iter().map(of).collect();
        return (bars(title, &all), "Requests over the network. Less is better.");
    }
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
        remark: row.ratio.map_or("".into(), times),
        colour,
    };
    let rows: Vec<Latency> = rows.iter().enumerate().map(latency).collect();
    (latencies(title, &rows), "Times of single calls. Less is better.")
}

/// The table of a group; columns without any value are left out.
fn table(rows: &[&Row]) -> Table {
    let header = [
        "contender",
        "engine",
        "processes",
        "copies",
        "callers",
        "samples",
        "p25",
        "p50",
        "p75",
        "p99",
        "p99.9",
        "max",
        "ratio",
        "calls/s",
        "bytes",
        "steps/s",
        "requests",
        "hung",
    ];
    let all: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let of = |ns: u64| if ns == 0 { String::new() } else { time(ns as f64) };
            vec![
                row.contender.clone(),
                row.engine.clone(),
                row.members.to_string(),
                row.replicas.map_or("".into(), |replicas| replicas.to_string()),
                row.callers.map_or("".into(), |callers| callers.to_string()),
                row.samples.to_string(),
                of(row.p25_ns),
                of(row.p50_ns),
                of(row.p75_ns),
                of(row.p99_ns),
                of(row.p999_ns),
                of(row.max_ns),
                row.ratio.map_or("".into(), times),
                row.calls_per_s.map_or("".into(), short),
                row.bytes.map_or("".into(), |bytes| bytes.to_string()),
                row.steps_per_s.map_or("".into(), |steps| short(steps as f64)),
                row.messages.map_or("".into(), |messages| format!("{messages:.1}")),
                row.hung.map_or("".into(), |hung| hung.to_string()),
            ]
        })
        .collect();
    let is_used = |column: &usize| all.iter().any(|row| !row[*column].is_empty());
    let used: Vec<usize> = (0..header.len()).filter(is_used).collect();
    let names: Vec<&str> = used.iter().map(|&column| header[column]).collect();
    let mut table = Table::new(1, &names);
    for (index, cells) in all.iter().enumerate() {
        table.rows.push(used.iter().map(|&column| cells[column].clone()).collect());
        if cells[0].starts_with("Outlast") {
            table.ours.push(index);
        }
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

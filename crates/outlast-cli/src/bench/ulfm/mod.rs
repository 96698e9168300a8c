//! `outlast bench ulfm`: what agree and shrink cost, against dup and against Open MPI.

mod member;
mod sim;

pub(crate) use member::UlfmMember;

use super::openmpi::OpenMpi;
use super::{BenchArgs, Row, detection, publish};
use crate::plot::{Curve, Figure};
use crate::report::say;
use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use member::{
    AGREE, AGREE_ACKNOWLEDGED, AGREE_UNACKNOWLEDGED, DUP, SHRINK, SHRINK_FAILURE, Samples,
    WITHOUT_FAILURE,
};
use outlast::MemberId;
use outlast::launch::{Launch, Output};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SOURCE: &str = include_str!("../../../peers/openmpi_ulfm.c");

const EXAMPLES: &str = "\
What is measured, as each member's own time for a call:
  agree       without a failure; with a dead member that no member has acknowledged; with a dead
              member that all members have acknowledged
  dup         a communicator is duplicated, and the duplicate freed
  shrink      a communicator is shrunk without a failure, and the result freed
  shrink, failure after discovery
              All members but member 0 call shrink and sleep in it. Member 0 kills the last member
              (SIGKILL) and calls shrink too. All contributions have arrived by then, that of the
              dead member too, so the new communicator may contain it. The time runs from just
              before the kill until a survivor has a communicator of living members: it includes
              the notice of the death, and a second call if the first result contains the dead.
  detection   from just before a kill until a survivor knows of it, with 1 MiB mapped

Each round has a job of each contender for each number of members, and within a job the operations
take turns. The samples of all rounds and members are taken together. No process is pinned. The
ratio is to Open MPI's median of the operation, if it was measured; otherwise to the median of
agree or dup without a failure.

With --sim the members are coroutines in a single thread, and times are those of a cost model (1 us
latency, 0.2 us to send or receive, 10 us until a death is known): they show how the work grows,
not how fast this machine is. 1024 members take some seconds, 4096 members some minutes.

Examples:
  All operations as a table:
      outlast bench ulfm
  Against Open MPI 5 (mpicc from MPICC, PATH or target/mpi, which `cargo xtask mpi` makes):
      outlast bench ulfm --members 2,4 --peers openmpi --plot figures
  Up to 4096 members, simulated:
      outlast bench ulfm --sim --plot figures
  Up to 1024 members, simulated:
      outlast bench ulfm --sim --members 2,4,8,16,32,64,128,256,512,1024";

/// Measure agree and shrink, with and without failures, against dup
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct UlfmBench {
    /// How many members the jobs have [default: 2,4,8,16; with --sim the powers of two up to 4096]
    #[arg(short = 'n', long, alias = "ranks", value_name = "N,...", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u16).range(2..=4096))]
    members: Vec<u16>,
    /// How many jobs each contender has for each number of members
    #[arg(long, value_name = "K", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// The most calls of each operation in a round
    #[arg(long, value_name = "K", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    iterations: u32,
    /// The time limit of a job's calls in a round, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=600_000))]
    limit_ms: u64,
    /// Measure this library in this run, too
    #[arg(long, value_name = "PEER", conflicts_with = "sim")]
    peers: Option<Peer>,
    /// Run in the simulator, with its cost model
    #[arg(long, conflicts_with_all = ["rounds", "iterations", "limit_ms"])]
    sim: bool,
    /// Write figures (SVG) for agree and shrink into this folder
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    pub(super) args: BenchArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Peer {
    Openmpi,
}

const OURS: &str = "outlast";
const OPENMPI: &str = "Open MPI";
const DETECTION: &str = "detection";

/// The most members that are processes; more would only measure the scheduler of the machine.
const PROCESSES_MAX: usize = 64;

/// How long a job may take in addition to its calls.
const SLACK: Duration = Duration::from_secs(60);

/// The figures: the name of the file, the title, and the operations.
const FIGURES: [(&str, &str, &[&str]); 2] = [
    ("agree", "Agreement", &[AGREE, AGREE_UNACKNOWLEDGED, AGREE_ACKNOWLEDGED]),
    ("shrink", "Shrink, against dup", &[DUP, SHRINK, SHRINK_FAILURE]),
];

impl UlfmBench {
    pub(super) fn execute(self) -> anyhow::Result<bool> {
        let mut members: Vec<usize> =
            self.members.iter().map(|&members| usize::from(members)).collect();
        if members.is_empty() && self.sim {
            members = (1..=12).map(|power| 1 << power).collect();
        } else if members.is_empty() {
            members = vec![2, 4, 8, 16];
        }
        members.sort_unstable();
        members.dedup();
        if !self.sim && members.last().is_some_and(|&last| last > PROCESSES_MAX) {
            let message = format!(
                "--members: at most {PROCESSES_MAX} members are processes; --sim takes more"
            );
            crate::usage_error("bench", message);
        }
        // Before the measurements, so that a wrong folder fails early.
        if let Some(folder) = &self.plot {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("making {}", folder.display()))?;
        }
        let rows = if self.sim { self.simulate(&members)? } else { self.measure(&members)? };
        if let Some(folder) = &self.plot {
            self.draw(folder, &rows)?;
        }
        let summary = summary(&rows);
        publish(&self.args, rows)?;
        summary.iter().for_each(|line| say(self.json(), line));
        Ok(true)
    }

    fn json(&self) -> Option<&Path> {
        self.args.json.as_deref()
    }

    /// Measures real processes, the contenders in turns.
    fn measure(&self, members: &[usize]) -> anyhow::Result<Vec<Row>> {
        let peer = match self.peers.map(|Peer::Openmpi| OpenMpi::compile("openmpi_ulfm", SOURCE)) {
            None => None,
            Some(Ok(peer)) => Some(peer),
            Some(Err(error)) => crate::usage_error("bench", format!("--peers openmpi: {error:#}")),
        };
        if let Some(peer) = &peer {
            say(self.json(), format_args!("Open MPI {}", peer.version));
        }
        let limit = Duration::from_millis(self.limit_ms);
        let mut ours: BTreeMap<usize, Samples> = BTreeMap::new();
        let mut theirs: BTreeMap<usize, Samples> = BTreeMap::new();
        for round in 0..self.rounds {
            for &members in members {
                let ours = ours.entry(members).or_default();
                let theirs = theirs.entry(members).or_default();
                // The order of the contenders alternates from round to round.
                if let Some(peer) = peer.as_ref().filter(|_| round % 2 == 1) {
                    run_theirs(peer, members, self.iterations, limit, theirs)?;
                }
                run_ours(members, self.iterations, limit, ours)?;
                let detected = detection::measure_once(members, 1 << 20, false, 1)?;
                ours.entry(DETECTION.into()).or_default().extend(detected);
                if let Some(peer) = peer.as_ref().filter(|_| round % 2 == 0) {
                    run_theirs(peer, members, self.iterations, limit, theirs)?;
                }
            }
            say(self.json(), format_args!("{} of {} rounds", round + 1, self.rounds));
        }
        let mut rows = Vec::new();
        let whats = FIGURES.iter().flat_map(|(_, _, whats)| *whats).chain([&DETECTION]);
        for what in whats {
            for &members in members {
                let new = |engine: &str, contender: &str| Row {
                    what: what.to_string(),
                    engine: engine.into(),
                    members,
                    contender: contender.into(),
                    ..Row::default()
                };
                let take = |samples: &mut BTreeMap<usize, Samples>| {
                    samples.get_mut(&members)?.remove(*what)
                };
                let Some(samples) = take(&mut ours) else { continue };
                rows.push(new("shm", OURS).with_samples(samples));
                if let Some(samples) = take(&mut theirs) {
                    rows.push(new("mpi", OPENMPI).with_samples(samples));
                }
            }
        }
        compare(&mut rows);
        Ok(rows)
    }

    fn simulate(&self, members: &[usize]) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        for &members in members {
            let mut simulated = sim::simulate(members)?;
            for what in FIGURES.iter().flat_map(|(_, _, whats)| *whats) {
                let Some(samples) = simulated.samples.remove(*what) else { continue };
                let row = Row {
                    what: what.to_string(),
                    engine: "sim".into(),
                    members,
                    contender: OURS.into(),
                    messages: simulated.messages.get(what).copied(),
                    ..Row::default()
                };
                rows.push(row.with_samples(samples));
            }
            say(self.json(), format_args!("{members} members"));
        }
        // Ordered by operation, then by the number of members.
        let place = |row: &Row| {
            FIGURES.iter().flat_map(|(_, _, whats)| *whats).position(|what| **what == *row.what)
        };
        rows.sort_by_key(place);
        compare(&mut rows);
        Ok(rows)
    }

    fn draw(&self, folder: &Path, rows: &[Row]) -> anyhow::Result<()> {
        let (suffix, where_to) =
            if self.sim { ("-sim", "simulated, cost model") } else { ("", "one machine") };
        let line = |what: &str, contender: &str, value: &dyn Fn(&Row) -> Option<f64>| Curve {
            name: if contender == OURS { what.to_string() } else { format!("{what}, {contender}") },
            points: rows
                .iter()
                .filter(|row| row.what == what && row.contender == contender)
                .filter_map(|row| Some((row.members, value(row)?)))
                .collect(),
        };
        let time = |row: &Row| Some(row.p50_ns as f64);
        let mut figures = Vec::new();
        for (name, title, whats) in FIGURES {
            let contenders = [OURS, OPENMPI].into_iter();
            let lines =
                contenders.flat_map(|contender| whats.iter().map(move |what| (what, contender)));
            let lines = lines.map(|(what, contender)| line(what, contender, &time));
            figures.push((
                format!("{name}{suffix}.svg"),
                Figure {
                    title: format!("{title} ({where_to})"),
                    axis: "time of a call, median".into(),
                    across: "members",
                    lines: lines.filter(|line| !line.points.is_empty()).collect(),
                    show: time_label,
                },
            ));
        }
        if self.sim {
            figures.push((
                "messages-sim.svg".into(),
                Figure {
                    title: "Messages of a call (simulated)".into(),
                    axis: "messages sent by a member".into(),
                    across: "members",
                    lines: WITHOUT_FAILURE
                        .iter()
                        .map(|what| line(what, OURS, &|row| row.messages))
                        .collect(),
                    show: |messages| format!("{messages:.0}"),
                },
            ));
        }
        for (name, figure) in figures {
            let path = folder.join(name);
            std::fs::write(&path, figure.svg())
                .with_context(|| format!("writing {}", path.display()))?;
            say(self.json(), format_args!("wrote {}", path.display()));
        }
        Ok(())
    }
}

/// A time as an axis label: at most three significant digits, without trailing zeros.
fn time_label(ns: f64) -> String {
    let (value, unit) = match ns {
        ..1e3 => (ns, "ns"),
        1e3..1e6 => (ns / 1e3, "us"),
        _ => (ns / 1e6, "ms"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    let text = format!("{value:.digits$}");
    let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} {unit}")
}

/// Runs a job of the peer without a failure and a job with a failure, and adds their samples.
fn run_theirs(
    peer: &OpenMpi,
    members: usize,
    iterations: u32,
    limit: Duration,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    for failure in [None, Some("failure".to_string())] {
        let args = [iterations.to_string(), limit.as_millis().to_string()];
        let args: Vec<String> = args.into_iter().chain(failure).collect();
        let lines = peer.run(members, limit, &args, None)?;
        member::add_lines(samples, &lines).context("what the Open MPI program wrote")?;
    }
    Ok(())
}

/// Runs a job of Outlast and adds its members' samples.
fn run_ours(
    members: usize,
    iterations: u32,
    limit: Duration,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let mut running = Launch::new(members)
        .program(std::env::current_exe()?)
        .args(["ulfm-member", "--iterations", &iterations.to_string()])
        .args(["--limit-ms", &limit.as_millis().to_string()])
        .die_with_launcher(true)
        .output(Output::Capture)
        .start()?;
    let outcome = running.wait(limit * 4 + SLACK);
    // Exactly one member dies: member 0 kills the last member.
    let is_ok = outcome.survivors_ok() && outcome.survivors().count() == members - 1;
    let said =
        || (0..members).map(|member| outcome.stderr(MemberId(member as u32))).collect::<String>();
    ensure!(is_ok, "a member of the benchmark failed:\n{outcome}{}", said());
    (0..members - 1)
        .try_for_each(|member| member::add_lines(samples, &outcome.stdout(MemberId(member as u32))))
}

/// Fills in the ratios: to Open MPI where it was measured, otherwise to the operation without
/// failure.
fn compare(rows: &mut [Row]) {
    let medians: BTreeMap<(String, String, usize), u64> = rows
        .iter()
        .map(|row| ((row.what.clone(), row.contender.clone(), row.members), row.p50_ns))
        .collect();
    for row in rows.iter_mut().filter(|row| row.contender == OURS) {
        let of = |what: &str, contender: &str| {
            medians.get(&(what.into(), contender.into(), row.members)).copied()
        };
        let plain = match row.what.as_str() {
            AGREE_UNACKNOWLEDGED | AGREE_ACKNOWLEDGED => of(AGREE, OURS),
            SHRINK | SHRINK_FAILURE => of(DUP, OURS),
            _ => None,
        };
        row.floor_ns = of(&row.what, OPENMPI).or(plain);
        row.ratio =
            row.floor_ns.filter(|&floor| floor > 0).map(|floor| row.p50_ns as f64 / floor as f64);
    }
}

/// The main ratios, in words.
fn summary(rows: &[Row]) -> Vec<String> {
    let median = |what: &str, contender: &str, members: usize| {
        rows.iter()
            .find(|row| row.what == what && row.contender == contender && row.members == members)
            .map(|row| row.p50_ns as f64)
    };
    let mut lines = Vec::new();
    for (what, floor, contender, words) in [
        (SHRINK, DUP, OURS, "shrink against dup"),
        (SHRINK_FAILURE, SHRINK, OURS, "shrink with a failure against shrink"),
        (AGREE, AGREE, OPENMPI, "agree against Open MPI"),
        (DUP, DUP, OPENMPI, "dup against Open MPI"),
        (SHRINK, SHRINK, OPENMPI, "shrink against Open MPI"),
        (SHRINK, DUP, OPENMPI, "shrink against Open MPI's dup"),
        (SHRINK_FAILURE, SHRINK_FAILURE, OPENMPI, "shrink with a failure against Open MPI"),
        (
            AGREE_UNACKNOWLEDGED,
            AGREE_UNACKNOWLEDGED,
            OPENMPI,
            "agree, unacknowledged failure, against Open MPI",
        ),
        (
            AGREE_ACKNOWLEDGED,
            AGREE_ACKNOWLEDGED,
            OPENMPI,
            "agree, acknowledged failure, against Open MPI",
        ),
    ] {
        let ratios: Vec<String> = rows
            .iter()
            .filter(|row| row.what == what && row.contender == OURS)
            .filter_map(|row| {
                let floor = median(floor, contender, row.members).filter(|&floor| floor > 0.0)?;
                Some(format!("{} with {}", super::times(row.p50_ns as f64 / floor), row.members))
            })
            .collect();
        if !ratios.is_empty() {
            lines.push(format!("{words}: {}", ratios.join(", ")));
        }
    }
    lines
}

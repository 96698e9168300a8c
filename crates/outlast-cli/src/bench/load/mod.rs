//! Loads of one or many callers: `outlast bench mixed`, `rate`, `throughput`, `growth` and
//! `poster`.
//!
//! A [`Case`] says what the callers do. All contenders carry out a case in turn, in two rounds, so
//! that other work on the machine meets all of them. The callers of Outlast are members of a job,
//! which keep the times of their calls in histograms; those of a peer are connections, or threads
//! inside its members.
//!
//! | module | content |
//! |---|---|
//! | [`commands`] | which cases a command has |
//! | [`poster`] | the figure of the published method, with this store in it |
//! | [`growth`] | jobs of 2 to 16 processes, and simulated jobs of up to 4096 members |
//! | [`member`] | the callers of Outlast |

mod commands;
mod growth;
mod member;
mod poster;

use super::peers::{Call, Load, Peer, PeerName, Place};
use super::{BenchArgs, Row, expect_ok};
use crate::report::say;
use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use outlast::MemberId;
use outlast::launch::{Launch, Output};
use std::time::{Duration, Instant};

pub(super) use commands::check_seconds;
pub(crate) use commands::{MixedBench, RateBench, ThroughputBench};
pub(crate) use growth::GrowthBench;
pub(crate) use member::LoadBenchMember;
pub(crate) use poster::PosterBench;

/// How the callers of Outlast name a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Key,
    Handle,
}

/// What the callers do in a measurement.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// The measurement's name in the table.
    pub(super) what: String,
    pub(super) call: Call,
    pub(super) size: usize,
    pub(super) keys: usize,
    pub(super) callers: usize,
    /// How many calls all callers together begin in a second; without it, each caller makes a call
    /// when the last has returned.
    pub(super) rate: Option<u64>,
    /// The contenders of Outlast.
    pub(super) ours: Vec<Ours>,
    /// Whether peers take part.
    pub(super) has_peers: bool,
}

/// A job of Outlast that takes part in a case.
#[derive(Clone, Debug)]
pub(super) struct Ours {
    pub(super) name: String,
    pub(super) members: usize,
    pub(super) replicas: usize,
    /// How many of the members call; each has as many threads.
    pub(super) calling: usize,
    pub(super) threads: usize,
    pub(super) by: By,
}

/// The times of a contender's calls in a case.
struct Measured {
    histogram: Histogram<u64>,
    seconds: f64,
}

/// A histogram of times in nanoseconds, up to an hour, with three significant digits.
fn histogram() -> anyhow::Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).context("a histogram")
}

impl Measured {
    fn new() -> anyhow::Result<Measured> {
        Ok(Measured { histogram: histogram()?, seconds: 0.0 })
    }

    fn add(&mut self, other: &Histogram<u64>, seconds: f64) -> anyhow::Result<()> {
        self.seconds += seconds;
        self.histogram.add(other).context("adding a histogram")
    }

    fn row(&self, case: &Case, row: Row) -> Row {
        let at = |quantile: f64| self.histogram.value_at_quantile(quantile);
        Row {
            what: case.what.clone(),
            size: Some(case.size as u64),
            callers: Some(case.callers),
            samples: self.histogram.len() as usize,
            p25_ns: at(0.25),
            p50_ns: at(0.5),
            p75_ns: at(0.75),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: self.histogram.max(),
            calls_per_s: Some(self.histogram.len() as f64 / self.seconds.max(1e-9)),
            ..row
        }
    }
}

impl Case {
    fn load(&self, length: Duration) -> Load {
        let (call, size, keys, callers) = (self.call, self.size, self.keys, self.callers);
        let period = self.rate.map(|rate| Duration::from_secs(callers as u64) / rate as u32);
        Load { call, size, keys, length, callers, period }
    }
}

/// How many rounds a measurement is divided into.
const ROUNDS: u32 = 2;

/// Measures all cases, each for this long with each contender. The first row of a case with a ratio
/// is its floor, which is the median of the first contender.
fn measure(
    cases: &[Case],
    peers: &mut [Peer],
    seconds: f64,
    args: &BenchArgs,
) -> anyhow::Result<Vec<Row>> {
    let length = Duration::from_secs_f64(seconds) / ROUNDS;
    let mut rows = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let peers: &mut [Peer] = if case.has_peers { &mut *peers } else { &mut [] };
        let load = case.load(length);
        let new = |count: usize| (0..count).map(|_| Measured::new()).collect::<Result<Vec<_>, _>>();
        let (mut ours, mut theirs) = (new(case.ours.len())?, new(peers.len())?);
        for _ in 0..ROUNDS {
            for (peer, measured) in peers.iter_mut().zip(&mut theirs) {
                let mut found = histogram()?;
                for sample in peer.measure(&load)? {
                    found.saturating_record(sample.max(1));
                }
                measured.add(&found, length.as_secs_f64())?;
            }
            for (job, measured) in case.ours.iter().zip(&mut ours) {
                measured.add(&job.measure(&load)?, length.as_secs_f64())?;
            }
        }
        let first = rows.len();
        for (job, measured) in case.ours.iter().zip(&ours) {
            let row = Row {
                engine: "shm".into(),
                members: job.members,
                replicas: Some(job.replicas),
                contender: job.name.clone(),
                ..Row::default()
            };
            rows.push(measured.row(case, row));
        }
        for (peer, measured) in peers.iter().zip(&theirs) {
            let row = Row {
                engine: peer.engine().into(),
                members: peer.processes(),
                replicas: Some(peer.copies),
                contender: peer.contender(case.call).into(),
                ..Row::default()
            };
            rows.push(measured.row(case, row));
        }
        let floor = rows[first..].first().map_or(0, |row| row.p50_ns).max(1);
        for row in &mut rows[first..] {
            row.ratio = Some(row.p50_ns as f64 / floor as f64);
        }
        let (size, all) = (crate::quantity::human_bytes(case.size as u64), cases.len());
        let callers = commands::callers_text(case.callers);
        let callers =
            if case.what.ends_with(&callers) { "".into() } else { format!(", {callers}") };
        let line = format_args!("{} of {all}: {}, {size}{callers}", number + 1, case.what);
        say(args.json.as_deref(), line);
    }
    Ok(rows)
}

impl Ours {
    /// Has a job carry out a load.
    fn measure(&self, load: &Load) -> anyhow::Result<Histogram<u64>> {
        let call = match load.call {
            Call::Put => "put",
            Call::Get => "get",
            Call::Mixed => "mixed",
        };
        let running = Launch::new(self.members)
            .program(std::env::current_exe()?)
            .args(["load-bench-member", "--call", call, "--size", &load.size.to_string()])
            .args(["--keys", &load.keys.to_string(), "--replicas", &self.replicas.to_string()])
            .args(["--calling", &self.calling.to_string(), "--threads", &self.threads.to_string()])
            .args(["--length-ns", &load.length.as_nanos().to_string()])
            .args(["--period-ns", &load.period.map_or(0, |period| period.as_nanos()).to_string()])
            .args((self.by == By::Handle).then_some("--by-handle"))
            .die_with_launcher(true)
            .output(Output::Capture)
            .start()?;
        let mut running = running;
        // Many processes take their time to start and to end on few cores.
        let outcome = running.wait(Duration::from_secs(120) + 4 * load.length);
        expect_ok(&outcome)?;
        let mut all = histogram()?;
        for member in 0..self.calling as u32 {
            let output = running.output(MemberId(member));
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                for pair in line.strip_prefix("times ").into_iter().flat_map(|line| line.split(' '))
                {
                    let (value, count) = pair.split_once(':').context("a value and its count")?;
                    all.record_n(value.parse()?, count.parse()?).context("a time")?;
                }
            }
        }
        ensure!(!all.is_empty(), "no call of the members ended within {:?}", load.length);
        Ok(all)
    }
}

/// Starts the peers, each once. A peer that cannot be started is left out, with a line that says
/// why.
pub(super) fn start_peers(
    names: &[PeerName],
    copies: impl Fn(PeerName) -> usize,
    place: &Place<'_>,
    args: &BenchArgs,
    remarks: &mut Vec<String>,
) -> Vec<Peer> {
    let mut peers: Vec<Peer> = Vec::new();
    for (index, &name) in names.iter().enumerate() {
        if names[..index].contains(&name) {
            continue;
        }
        let begin = Instant::now();
        match Peer::start(name, copies(name), place) {
            Ok(peer) => {
                let (title, version) = (name.title(), &peer.version);
                let took = begin.elapsed().as_secs_f64();
                let line = format_args!("{title} {version} has started in {took:.1} s");
                say(args.json.as_deref(), line);
                peers.push(peer);
            }
            Err(error) => {
                let line = format!("left out: {}: {error:#}", name.title());
                say(args.json.as_deref(), &line);
                remarks.push(line);
            }
        }
    }
    peers
}

/// The versions of peers, for a report.
pub(super) fn versions_of(peers: &[Peer]) -> Vec<(String, String)> {
    peers.iter().map(|peer| (peer.name.title().to_string(), peer.version.clone())).collect()
}

/// The bytes of values that all keys together have at most.
const VALUES_LEN_MAX: usize = 64 << 20;

/// How many keys there are for values of this size.
fn keys_of(keys: usize, size: usize) -> usize {
    keys.min(VALUES_LEN_MAX / size.max(1)).max(1)
}

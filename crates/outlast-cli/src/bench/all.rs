//! `outlast bench all`: every benchmark in turn, and a single report of them. Each part is a
//! command of its own, so that no part leaves anything to the next.

use super::cost::Course;
use super::interrupt::{end_child, on_interrupt};
use super::peers::{self, PeerName};
use super::{BenchArgs, Origin, Row, publish_with};
use crate::report::say;
use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use serde::Deserialize;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Each part runs as its own command, but shorter: `outlast bench PART --help` says what is measured.
With all peers all parts take below 25 minutes on 2 cores. The last table has the measurements of
all parts. The part hosts is puts on three hosts made of this machine; it needs root and Open MPI. A
part that cannot run, or that takes longer than its limit, is left out with its reason, and the
others go on.

Examples:
  Everything, against stores that users would pick instead, with a page for a browser:
      outlast bench all --peers redis,etcd,hazelcast,memcached,lmdb --report bench.html
  Two parts:
      outlast bench all --parts put,get";

/// Run all benchmarks, and report them together
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct AllBench {
    /// The parts to run, separated by commas [default: all]
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    parts: Vec<Part>,
    /// Measure these stores in this run, too, separated by commas
    #[arg(long, value_name = "PEERS", value_delimiter = ',')]
    peers: Vec<PeerName>,
    /// How long each size is measured
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
    #[command(flatten)]
    pub(super) args: BenchArgs,
}

/// The parts, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Poster,
    Failure,
    Put,
    Get,
    Mixed,
    Rate,
    Throughput,
    Tx,
    Detection,
    Failover,
    Repair,
    Growth,
    Memory,
    Image,
    Seat,
    Snapshot,
    Hosts,
    Ulfm,
    Sim,
}

/// What a part writes as JSON.
#[derive(Deserialize)]
struct PartReport {
    results: Vec<Row>,
    #[serde(default)]
    remarks: Vec<String>,
    #[serde(default)]
    versions: Vec<(String, String)>,
    #[serde(default)]
    courses: Vec<Course>,
}

impl AllBench {
    pub(super) fn execute(self) -> anyhow::Result<bool> {
        if !(self.seconds > 0.0 && self.seconds <= 600.0) {
            crate::usage_error("bench", format!("{} seconds; above 0, to 600", self.seconds));
        }
        let all = || Part::value_variants().to_vec();
        let parts = if self.parts.is_empty() { all() } else { self.parts.clone() };
        let json = self.args.json.as_deref();
        let mut rows = Vec::new();
        let mut origin = Origin::default();
        let (begin, mut times) = (Instant::now(), Vec::new());
        for (number, part) in parts.iter().enumerate() {
            let (arguments, name) = (self.arguments(*part), part.name());
            let so_far = clock(begin.elapsed());
            let typed = arguments.join(" ");
            let place = format!("{} of {}, after {so_far}", number + 1, parts.len());
            say(json, format_args!("\n{place}: outlast bench {typed}"));
            let part_begin = Instant::now();
            let report = run(&arguments, self.limit(), json);
            times.push(format!("{name} {}", clock(part_begin.elapsed())));
            let report = match report {
                Ok(report) => report,
                Err(error) => {
                    let line = format!("left out: the part {name}: {error:#}");
                    say(json, &line);
                    origin.remarks.push(line);
                    continue;
                }
            };
            rows.extend(report.results);
            origin.courses.extend(report.courses);
            for remark in report.remarks {
                if !origin.remarks.contains(&remark) {
                    origin.remarks.push(remark);
                }
            }
            for version in report.versions {
                if !origin.versions.contains(&version) {
                    origin.versions.push(version);
                }
            }
        }
        ensure!(!rows.is_empty(), "no part could run:\n{}", origin.remarks.join("\n"));
        let took = format!("All parts took {}: {}.", clock(begin.elapsed()), times.join(", "));
        origin.remarks.push(took.clone());
        say(json, "\nall parts:");
        publish_with(&self.args, rows, &origin)?;
        origin.remarks.iter().filter(|line| line.starts_with("left out")).for_each(|line| {
            say(json, line);
        });
        say(json, took);
        Ok(true)
    }

    /// How long a part may take: about three times as long as the longest takes on 2 cores.
    fn limit(&self) -> Duration {
        Duration::from_secs(240) + Duration::from_secs_f64(90.0 * self.seconds)
    }

    /// The command of a part.
    fn arguments(&self, part: Part) -> Vec<String> {
        let seconds = self.seconds.to_string();
        let words: &[&str] = match part {
            Part::Poster => &["poster", "--seconds", &seconds],
            Part::Failure => &["failure", "--kills", "3"],
            Part::Put => &["put", "--seconds", &seconds],
            // As many keys as peers are given.
            Part::Get if !self.peers.is_empty() => {
                &["get", "--keys", "1024", "--seconds", &seconds]
            }
            Part::Get => &["get", "--seconds", &seconds],
            Part::Mixed => &["mixed", "--seconds", &seconds],
            Part::Rate => &["rate", "--seconds", &seconds],
            Part::Throughput => &["throughput", "--seconds", &seconds],
            Part::Tx => &["tx"],
            Part::Detection => &["detection", "--kills", "15", "--map", "256M"],
            Part::Failover => &["failover", "--kills", "5"],
            Part::Repair => &["repair", "--kills", "2"],
            Part::Growth => &["growth", "--simulated", "16,128,512", "--seconds", &seconds],
            Part::Memory => &["memory"],
            Part::Image => &["image"],
            // Few kills and short programs: `bench seat` by itself takes longer.
            Part::Seat => &[
                "seat",
                "--kills",
                "2",
                "--program",
                "3",
                "--simulated",
                "8,64",
                "--seconds",
                &seconds,
            ],
            Part::Snapshot => &["snapshot", "--rounds", "2"],
            Part::Hosts => &HOSTS,
            Part::Ulfm => &["ulfm", "--members", "2,4,8,16"],
            Part::Sim => &["sim"],
        };
        let mut arguments: Vec<String> = words.iter().map(ToString::to_string).collect();
        if part == Part::Hosts {
            arguments.extend(["--seconds".to_string(), seconds]);
        }
        let peers = self.peers.iter().filter(|&&peer| part.has(peer));
        let peers: Vec<String> = peers.map(|peer| peer.title().to_lowercase()).collect();
        if !peers.is_empty() {
            arguments.extend(["--peers".to_string(), peers.join(",")]);
        }
        if self.args.pinned {
            arguments.push("--pinned".into());
        }
        arguments
    }
}

/// Puts on three hosts that are made of this machine.
const HOSTS: [&str; 8] =
    ["put", "--engine", "mpi", "--hosts", "3", "--members", "3", "--sizes=64,1K"];

impl Part {
    fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_string())
    }

    /// Whether a peer takes part.
    fn has(self, peer: PeerName) -> bool {
        match self {
            Part::Put | Part::Get | Part::Mixed | Part::Rate | Part::Throughput | Part::Memory => {
                true
            }
            Part::Poster => peer == PeerName::Hazelcast,
            Part::Failure | Part::Hosts => {
                matches!(peer, PeerName::Redis | PeerName::Etcd | PeerName::Hazelcast)
            }
            _ => false,
        }
    }
}

/// A time in minutes and seconds.
fn clock(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

/// Runs a part, which ends with this process. People see its table as it comes.
fn run(arguments: &[String], limit: Duration, json: Option<&Path>) -> anyhow::Result<PartReport> {
    let this = std::env::current_exe().context("finding this program's own path")?;
    let mut command = peers::command(&this)?;
    command.arg("bench").args(arguments).args(["--json", "-"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let id = child.id();
    let _ended = on_interrupt(move || end_child(id))?;
    let (mut output, errors) =
        (child.stdout.take().context("it is piped")?, child.stderr.take().context("it is piped")?);
    let (send, report) = channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let _ = send.send(output.read_to_string(&mut text).map(|_| text));
    });
    // The reason of a failure is the last line, which the report names.
    let json = json.map(Path::to_path_buf);
    let said = std::thread::spawn(move || {
        let mut last = String::new();
        for line in BufReader::new(errors).lines().map_while(Result::ok) {
            say(json.as_deref(), &line);
            last = if line.trim().is_empty() { last } else { line };
        }
        last
    });
    let text = match report.recv_timeout(limit) {
        Ok(text) => text?,
        Err(RecvTimeoutError::Timeout) => {
            end_child(id);
            child.wait()?;
            bail!("it took longer than {}", clock(limit));
        }
        Err(RecvTimeoutError::Disconnected) => bail!("its output could not be read"),
    };
    let status = child.wait()?;
    let last = said.join().unwrap_or_default();
    ensure!(status.success(), "it failed ({status}): {}", last.trim_start_matches("outlast: "));
    serde_json::from_str(&text).context("reading the JSON of the part")
}

//! `outlast bench all`: every benchmark in turn, and a single report of them. Each part is a
//! command of its own, so that no part leaves anything to the next.

use super::peers::{self, PeerName};
use super::{BenchArgs, Origin, Row, publish_with};
use crate::report::say;
use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use serde::Deserialize;
use std::io::Read;
use std::process::Stdio;

const EXAMPLES: &str = "\
The parts are put, get, tx, detection, failover, repair, snapshot, ulfm and sim, each as its own
command runs it, but shorter. `outlast bench PART --help` says what is measured. The last table
has the measurements of all parts.

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
    args: BenchArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Put,
    Get,
    Tx,
    Detection,
    Failover,
    Repair,
    Snapshot,
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
}

impl AllBench {
    pub(super) fn execute(self) -> anyhow::Result<bool> {
        if !(self.seconds > 0.0 && self.seconds <= 600.0) {
            crate::usage_error("bench", format!("{} seconds; above 0, to 600", self.seconds));
        }
        let all = || Part::value_variants().to_vec();
        let parts = if self.parts.is_empty() { all() } else { self.parts.clone() };
        let mut rows = Vec::new();
        let mut origin = Origin::default();
        for (number, part) in parts.iter().enumerate() {
            let arguments = self.arguments(*part);
            say(
                self.args.json.as_deref(),
                format_args!(
                    "\n{} of {}: outlast bench {}",
                    number + 1,
                    parts.len(),
                    arguments.join(" ")
                ),
            );
            let report = run(&arguments)?;
            rows.extend(report.results);
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
        say(self.args.json.as_deref(), "\nall parts:");
        publish_with(&self.args, rows, &origin)?;
        Ok(true)
    }

    /// The command of a part.
    fn arguments(&self, part: Part) -> Vec<String> {
        let seconds = self.seconds.to_string();
        let words: &[&str] = match part {
            Part::Put => &["put", "--seconds", &seconds],
            // As many keys as peers are given.
            Part::Get if !self.peers.is_empty() => {
                &["get", "--keys", "1024", "--seconds", &seconds]
            }
            Part::Get => &["get", "--seconds", &seconds],
            Part::Tx => &["tx"],
            Part::Detection => &["detection"],
            Part::Failover => &["failover", "--kills", "5"],
            Part::Repair => &["repair", "--kills", "2"],
            Part::Snapshot => &["snapshot"],
            Part::Ulfm => &["ulfm", "--members", "2,4,8,16"],
            Part::Sim => &["sim"],
        };
        let mut arguments: Vec<String> = words.iter().map(ToString::to_string).collect();
        if matches!(part, Part::Put | Part::Get) && !self.peers.is_empty() {
            let name = |peer: &PeerName| peer.title().to_lowercase();
            let names: Vec<String> = self.peers.iter().map(name).collect();
            arguments.extend(["--peers".to_string(), names.join(",")]);
        }
        arguments
    }
}

/// Runs a part. People see its table as it comes; it ends with this process.
fn run(arguments: &[String]) -> anyhow::Result<PartReport> {
    let this = std::env::current_exe().context("finding this program's own path")?;
    let mut command = peers::command(&this)?;
    command.arg("bench").args(arguments).args(["--json", "-"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?;
    let mut text = String::new();
    child.stdout.take().context("it is piped")?.read_to_string(&mut text)?;
    let status = child.wait()?;
    ensure!(status.success(), "the part failed ({status})");
    serde_json::from_str(&text).context("reading the JSON of the part")
}

//! `outlast demo`: real processes write to a store, two of them are killed, and nothing is lost.
//!
//! Every member puts results under keys of its own, each result under a new key, and records each
//! acknowledgement in memory of this command, which outlives the member. At the end each survivor
//! reads back the acknowledged writes of the member before it, which may be dead, and compares
//! every byte.

mod member;
mod run;

use crate::control::CommandControl;
use crate::hosts;
use crate::members::{Lines, describe, left_behind, shared_memory_names, show_log};
use crate::report::{say, write_json};
use crate::usage_error;
use anyhow::Context;
use clap::Args;
use member::DemoLine;
use outlast::launch::{Launch, Output};
use run::{DemoRun, Heard};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use member::DemoMember;

const EXAMPLES: &str = "\
Examples:
  Six processes write, two of them are killed:
      outlast demo
  The report as JSON; standard output gets nothing else:
      outlast demo --json -

Exit status: 0 every acknowledged write is there and all replicas are back, 1 otherwise, 2 wrong
usage.";

/// How many replicas each value has.
const REPLICAS: usize = 3;
/// How long the members write.
const WORK: Duration = Duration::from_millis(4000);
/// When members are killed, counted from the moment when all members have opened the store.
const KILLS_AT: [Duration; 2] = [Duration::from_millis(1200), Duration::from_millis(2400)];
/// How many writes a member makes before it rests. On few cores the rest keeps the demo honest: a
/// pause in the writes is then due to a death, not to a crowd of busy processes.
const WRITES_PER_TURN: u64 = 4;
/// How long a member rests after each turn.
const REST: Duration = Duration::from_millis(2);
/// How long each value is.
const VALUE_LEN: usize = 256;
/// How long a call may wait for a living member.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// When the whole demo counts as hung.
const HUNG_AFTER: Duration = Duration::from_secs(28);
/// A survivor that writes nothing for longer than this has not gone on.
const PAUSE_MAX_MS: f64 = 2000.0;
/// The length of the record of an acknowledged write: its time.
const NOTE_LEN: usize = 8;

/// Watch two of several writing processes die, and no write get lost, in about five seconds
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Demo {
    /// How many processes to start; two of them are killed
    #[arg(short = 'n', long, alias = "ranks", value_name = "N", default_value_t = 6)]
    members: usize,
    /// Write the report as JSON to this file; - is standard output
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    #[command(flatten)]
    engine_args: hosts::EngineArgs,
}

#[derive(Serialize)]
struct DemoReport {
    ok: bool,
    members: usize,
    copies: usize,
    survivors: usize,
    kills: Vec<KillReport>,
    /// Acknowledged writes of all members, the dead included.
    acked: u64,
    /// Keys that a member other than the writer read back.
    keys_read_back: u64,
    /// Acknowledged writes that are missing or have another value.
    lost: u64,
    /// The longest time between two acknowledged writes of a survivor.
    longest_pause_ms: f64,
    hung: usize,
    wrong: Vec<String>,
    left_behind: Vec<String>,
    seconds: f64,
}

#[derive(Serialize)]
struct KillReport {
    member: u32,
    at_s: f64,
    first_noticed_ms: Option<f64>,
    all_noticed_ms: Option<f64>,
    /// From the kill until no replica was missing.
    copies_back_ms: Option<f64>,
}

impl Demo {
    pub(crate) fn execute(mut self) -> anyhow::Result<bool> {
        if let Some(members) = self.engine_args.join_mpirun()? {
            self.members = members;
        }
        if !(3..=64).contains(&self.members) {
            usage_error(
                "demo",
                format!("{} members; the demo kills two and takes 3 to 64", self.members),
            );
        }
        self.engine_args.check("demo");
        let before = shared_memory_names();
        let control = CommandControl::new(self.members, 0)?;
        let launch = Launch::new(self.members)
            .program(std::env::current_exe().context("finding this program's own path")?)
            .args(["demo-member", &serde_json::to_string(&control.address())?])
            .segment_limit(256 << 20)
            .die_with_launcher(true)
            .output(Output::Capture);
        let (launch, hosts) = self.engine_args.prepare(launch, self.members)?;
        let running = launch.start()?;
        let pids = running.pids();
        let lines = Lines::new(self.members);
        let mut run =
            DemoRun { demo: &self, running, lines, heard: Heard::default(), control, began: None };
        let mut kills = Vec::new();
        let result = run.run(&mut kills);
        let limit = HUNG_AFTER.saturating_sub(run.running.elapsed());
        let outcome = run.running.wait(if result.is_ok() { limit } else { Duration::ZERO });
        let seconds = run.running.elapsed().as_secs_f64();
        show_log(&outcome);
        let DemoRun { running, heard, control, .. } = run;
        drop(running);
        drop(hosts);

        let killed: BTreeSet<u32> = kills.iter().map(|kill: &KillReport| kill.member).collect();
        let mut wrong: Vec<String> =
            heard.read_back.values().flat_map(|(_, wrong)| wrong.clone()).collect();
        let lost = wrong.len() as u64;
        if let Err(error) = &result {
            wrong.push(format!("{error:#}"));
        } else {
            for end in
                outcome.members.iter().filter(|end| !killed.contains(&end.member.0) && !end.is_ok())
            {
                wrong.push(describe(end, &outcome.stderr(end.member)));
            }
        }
        let notes = control.records()?;
        let acked = notes.iter().flatten().map(|notes| (notes.len() / NOTE_LEN) as u64).sum();
        let survivors = (0..self.members as u32).filter(|member| !killed.contains(member));
        let pauses = survivors
            .clone()
            .filter_map(|member| longest_pause_ms(notes.get(member as usize)?.first()?));
        let longest_pause_ms = pauses.fold(0.0, f64::max);
        if longest_pause_ms > PAUSE_MAX_MS {
            wrong.push(format!("a survivor wrote nothing for {longest_pause_ms:.0} ms"));
        }
        let left_behind = left_behind(&before, &pids);
        let keys_read_back = heard.read_back.values().map(|(keys, _)| keys).sum();
        let survived = outcome.survivors().filter(|end| end.is_ok()).count();
        let report = DemoReport {
            ok: wrong.is_empty()
                && left_behind.is_empty()
                && !outcome.timed_out
                && survived == self.members - KILLS_AT.len()
                && acked == keys_read_back
                && kills
                    .iter()
                    .all(|kill| kill.all_noticed_ms.is_some() && kill.copies_back_ms.is_some()),
            members: self.members,
            copies: REPLICAS,
            survivors: survived,
            kills,
            acked,
            keys_read_back,
            lost,
            longest_pause_ms,
            hung: if outcome.timed_out { survivors.count().saturating_sub(survived) } else { 0 },
            wrong,
            left_behind,
            seconds,
        };
        self.print(&report);
        if let Some(path) = self.json.as_deref() {
            write_json(path, &report)?;
        }
        Ok(report.ok)
    }

    fn print(&self, report: &DemoReport) {
        let mark = |is_ok: bool| if is_ok { "ok" } else { "WRONG" };
        let line = |is_ok: bool, text: String| {
            say(self.json.as_deref(), format_args!("  {:<6} {text}", mark(is_ok)))
        };
        let plain = |text: String| say(self.json.as_deref(), text);
        plain(String::new());
        line(
            report.lost == 0 && report.acked == report.keys_read_back,
            format!(
                "all {} acknowledged writes were read back, also of the dead members; {} lost",
                report.acked, report.lost
            ),
        );
        line(
            report.longest_pause_ms <= PAUSE_MAX_MS,
            format!(
                "the longest pause of a surviving writer was {:.1} ms",
                report.longest_pause_ms
            ),
        );
        let back = report.kills.iter().map(|kill| kill.copies_back_ms);
        let slowest = back.clone().flatten().fold(0.0, f64::max);
        line(
            back.clone().all(|back| back.is_some()) && report.kills.len() == KILLS_AT.len(),
            format!(
                "{} replicas of every value again, at most {slowest:.1} ms after a kill",
                report.copies
            ),
        );
        line(
            report.survivors + KILLS_AT.len() == report.members,
            format!(
                "{} of {} members survived and finished; none hung",
                report.survivors, report.members
            ),
        );
        line(
            report.left_behind.is_empty(),
            "nothing is left behind: no process, no shared memory".to_string(),
        );
        for text in report.wrong.iter().chain(&report.left_behind).take(10) {
            plain(format!("         {text}"));
        }
        let verdict =
            if report.ok { "The store outlasted both deaths." } else { "A promise is broken." };
        plain(format!("\n{verdict} ({:.1} s)", report.seconds));
    }
}

/// The longest time between two acknowledged writes of a record.
fn longest_pause_ms(notes: &[u8]) -> Option<f64> {
    let times: Vec<u64> =
        notes.as_chunks::<NOTE_LEN>().0.iter().map(|note| u64::from_le_bytes(*note)).collect();
    times.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64 / 1e6).reduce(f64::max)
}

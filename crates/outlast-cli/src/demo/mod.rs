//! `outlast demo`: real processes write to a store, two of them are killed, and nothing is lost.
//!
//! Every member puts results under keys of its own, each result under a new key, and records each
//! acknowledgement in memory of this command, which outlives the member. At the end each survivor
//! reads back the acknowledged writes of the member before it, which may be dead, and compares
//! every byte.

mod member;
mod rows;
mod run;

use crate::control::CommandControl;
use crate::hosts;
use crate::members::{Lines, describe, left_behind, shared_memory_names, show_log};
use crate::report::file::{ReportFile, report_file};
use crate::report::page::{Page, Section};
use crate::report::timeline::{Death, Lane, Timeline};
use crate::report::{say, write_json};
use crate::usage_error;
use anyhow::Context;
use clap::Args;
use member::DemoLine;
use outlast::launch::{Launch, Output};
use rows::{Rows, Style};
use run::{DemoRun, Heard};
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use member::DemoMember;

const EXAMPLES: &str = "\
Examples:
  Six processes write, two of them are killed:
      outlast demo
  The report as JSON; standard output gets nothing else:
      outlast demo --json -
  In the live view of `outlast top`; q goes back to the plain demo:
      outlast demo --watch
  A page for a browser, with a lane for each member:
      outlast demo --report demo.html

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
    /// Show the run as `outlast top` does
    #[arg(long)]
    watch: bool,
    /// Write the report as JSON to this file; - is standard output
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Write a page for a browser to this file
    #[arg(long, value_name = "FILE", value_parser = report_file)]
    report: Option<ReportFile>,
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
    #[serde(skip)]
    at_ns: u64,
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
        if self.watch && !std::io::stdout().is_terminal() {
            usage_error("demo", "--watch needs a terminal");
        }
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
        let mut run = DemoRun::new(&self, running, lines, control);
        if self.watch {
            run.open_view()?;
        }
        let mut kills = Vec::new();
        let result = run.run(&mut kills);
        run.close_view();
        run.erase_rows();
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
        let timeline = timeline(&report, &heard, &notes);
        self.print_rows(&rows(&timeline));
        self.print(&report);
        if let Some(path) = self.json.as_deref() {
            write_json(path, &report)?;
        }
        if let Some(file) = &self.report {
            let page = page(&report, &timeline);
            file.write(&page.origin("Engine", self.engine_args.engine))?;
            say(self.json.as_deref(), format_args!("report: {}", file.path().display()));
        }
        Ok(report.ok)
    }

    /// Prints a row for each member, where the other lines go.
    fn print_rows(&self, rows: &Rows) {
        let is_for_json = self.json.as_deref() == Some(Path::new("-"));
        let style = match is_for_json {
            true => Style::of(&std::io::stderr()),
            false => Style::of(&std::io::stdout()),
        };
        say(self.json.as_deref(), "");
        rows.lines(style).iter().for_each(|line| say(self.json.as_deref(), line));
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

/// The times of the acknowledged writes in a member's record.
fn acked_ns(notes: &[u8]) -> Vec<u64> {
    notes.as_chunks::<NOTE_LEN>().0.iter().map(|note| u64::from_le_bytes(*note)).collect()
}

/// The longest time between two acknowledged writes, in milliseconds.
fn longest_pause_ms(notes: &[u8]) -> Option<f64> {
    let times = acked_ns(notes);
    times.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64 / 1e6).reduce(f64::max)
}

/// The course of the demo, from what the members reported and recorded.
fn timeline(report: &DemoReport, heard: &Heard, notes: &[Vec<Vec<u8>>]) -> Timeline {
    let lane = |notes: &Vec<Vec<u8>>| Lane {
        acked_ns: notes.first().map_or(Vec::new(), |notes| acked_ns(notes)),
        stops: Vec::new(),
    };
    let lanes: Vec<Lane> = notes.iter().map(lane).collect();
    let deaths = report.kills.iter().map(|kill| {
        let noticed = heard.noticed.iter().filter(|((_, dead), _)| *dead == kill.member);
        let back_ns = |ms: f64| kill.at_ns + (ms * 1e6) as u64;
        Death {
            member: kill.member,
            at_ns: kill.at_ns,
            how: "kill -9".into(),
            noticed_ns: noticed.map(|((member, _), &at_ns)| (*member, at_ns)).collect(),
            complete_ns: kill.copies_back_ms.map(back_ns),
        }
    });
    let times = || lanes.iter().flat_map(|lane| lane.acked_ns.iter().copied());
    let (begin_ns, end_ns) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
    Timeline { begin_ns, end_ns, deaths: deaths.collect(), lanes, cut_ns: None }
}

/// A row for each member, of the whole run.
fn rows(timeline: &Timeline) -> Rows {
    let since = |at_ns: u64| Duration::from_nanos(at_ns.saturating_sub(timeline.begin_ns));
    let writes = |lane: &Lane| lane.acked_ns.iter().map(|&at_ns| (since(at_ns), 1)).collect();
    Rows {
        writes: timeline.lanes.iter().map(writes).collect(),
        kills: timeline.deaths.iter().map(|death| (death.member, since(death.at_ns))).collect(),
        repairs: timeline
            .deaths
            .iter()
            .map(|death| (since(death.at_ns), death.complete_ns.map(since)))
            .collect(),
        length: since(timeline.end_ns),
    }
}

/// The report as a page.
fn page(report: &DemoReport, timeline: &Timeline) -> Page {
    let slowest = |time: fn(&KillReport) -> Option<f64>| {
        let times: Option<Vec<f64>> = report.kills.iter().map(time).collect();
        let slowest = times.and_then(|times| times.into_iter().reduce(f64::max));
        slowest.map_or("never".into(), |ms| format!("{ms:.1} ms"))
    };
    let verdict =
        if report.ok { "The store outlasted both deaths." } else { "A promise is broken." };
    let lead = format!(
        "{} processes write to a store with {} replicas of each value. Two of them are killed with \
         kill -9 while they write; then other members read every acknowledged write back.",
        report.members, report.copies
    );
    let mut page = Page::new("A demo of two deaths", lead)
        .verdict(report.ok, verdict)
        .fact(report.acked, "acknowledged writes, also of the dead members")
        .fact(report.lost, "of them are lost")
        .fact(
            format!("{:.1} ms", report.longest_pause_ms),
            "the longest pause of a surviving writer",
        )
        .fact(slowest(|kill| kill.all_noticed_ms), "from a kill until all survivors know")
        .fact(slowest(|kill| kill.copies_back_ms), "from a kill until all replicas are back")
        .fact(
            format!("{} of {}", report.survivors, report.members),
            "members survived and finished",
        );
    let wrong: Vec<&str> =
        report.wrong.iter().chain(&report.left_behind).map(String::as_str).collect();
    if !wrong.is_empty() {
        page = page.section(Section::new("What is wrong", "").text(&wrong.join("\n")));
    }
    timeline.sections().into_iter().fold(page, Page::section)
}

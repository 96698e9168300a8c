//! `outlast demo`: real processes write to a store, two are killed in the middle, and nothing is lost.
//!
//! Every member puts results under keys of its own, each under a new one, and notes each acknowledgement in memory of this
//! command, which outlives it. At the end each survivor reads back what the member before it had been acknowledged, the
//! dead included, and compares it byte by byte.

use crate::control::{Member, Phase, Place, Shared};
use crate::hosts;
use crate::members::{
    Lines, News, Watch, describe, left_behind, machine_ns, shared_memory_names, show_log, tell,
};
use crate::report::{say, write_json};
use crate::usage_error;
use anyhow::{Context, bail, ensure};
use clap::Args;
use outlast::launch::{Event, Launch, Output, Running};
use outlast::store::{Options, Store};
use outlast::{Engine, JoinOptions, MemberId};
use outlast_check::value;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  Watch six processes write, lose two of them, and lose nothing else:
      outlast demo
  The same for programs; standard output gets nothing but the report:
      outlast demo --json -

Exit status: 0 every acknowledged write is there and all copies are back, 1 not so, 2 wrong usage.";

/// How many copies each value has.
const COPIES: usize = 3;
/// How long the members write.
const WORK: Duration = Duration::from_millis(4000);
/// When members are killed, counted from the moment when all have opened the store.
const KILLS_AT: [Duration; 2] = [Duration::from_millis(1200), Duration::from_millis(2400)];
/// How many writes a member makes before it rests. Resting keeps the demo honest on few cores: a pause is then due to
/// a death, not to a crowd of busy processes.
const WRITES_PER_TURN: u64 = 4;
/// How long a member rests after each turn.
const REST: Duration = Duration::from_millis(2);
/// How long each value is.
const VALUE_LEN: usize = 256;
/// How long a call may wait for a living member.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// When the whole demo counts as hung.
const HUNG_AFTER: Duration = Duration::from_secs(28);
/// A survivor that stands still for longer than this has not gone on.
const PAUSE_MAX_MS: f64 = 2000.0;
/// What is noted of an acknowledged write: when.
const NOTE_LEN: usize = 8;

/// Show processes that write to a store while two of them are killed, and that nothing is lost, in about five seconds.
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
    place: hosts::Place,
}

/// A member of the demo; started by it.
#[derive(Args)]
pub(crate) struct DemoMember {
    place: String,
}

/// What members write to the demo, one JSON object a line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// The store is open.
    Open,
    News(News),
    /// The member writes no more.
    Rests,
    /// How many keys of another member were read back, and what is wrong with them.
    ReadBack {
        keys: u64,
        wrong: Vec<String>,
    },
}

// ---- The member.

/// The key of the n-th write of a member.
fn key(member: u32, number: u64) -> Vec<u8> {
    format!("result/{member}/{number}").into_bytes()
}

fn fill(key: &[u8], number: u64) -> Vec<u8> {
    value::fill(0, key, number, VALUE_LEN)
}

impl DemoMember {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let place: Place =
            serde_json::from_str(&self.place).context("where the demo's memory is")?;
        let job = JoinOptions::new().time_limit(CALL_LIMIT).join()?;
        let member = Member::new(place, job.me().index())?;
        let options = Options::new().replicas(COPIES).partitions(128).expected_keys(1 << 14);
        let store = Store::open(&job, options).context("opening the store")?;
        tell(&Line::Open)?;
        let stop = Arc::new(AtomicBool::new(false));
        let writer = std::thread::spawn({
            let (store, stop, mut notes) = (store.clone(), stop.clone(), member.record(0)?);
            move || -> anyhow::Result<()> {
                let mut number = 0;
                while !stop.load(Ordering::Acquire) {
                    for _ in 0..WRITES_PER_TURN {
                        let key = key(store.me().0, number);
                        store.put(&key, &fill(&key, number)).context("a put")?;
                        // Acknowledged: from here on it must not be lost, whoever dies.
                        notes.write_all(&machine_ns().to_le_bytes())?;
                        number += 1;
                    }
                    std::thread::sleep(REST);
                }
                Ok(())
            }
        });
        let mut watch = Watch::default();
        let mut watch_until = |phase: Phase| -> anyhow::Result<()> {
            while member.phase()? < phase {
                let bell = job.bell();
                for news in watch.look(&job, &store)? {
                    tell(&Line::News(news))?;
                }
                ensure!(phase > Phase::Rest || !writer.is_finished(), "the writer gave up");
                job.park(bell, job.now().after(watch.patience()));
            }
            Ok(())
        };
        watch_until(Phase::Rest)?;
        stop.store(true, Ordering::Release);
        // One thread that panicked is a member that failed. Before the word: what is read back is what is noted then.
        while !writer.is_finished() {
            let bell = job.bell();
            job.park(bell, job.now().after(REST));
        }
        tell(&Line::Rests)?;
        watch_until(Phase::ReadBack)?;
        writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
        let (keys, wrong) = read_back(&job, &store, &member)?;
        let is_ok = wrong.is_empty();
        tell(&Line::ReadBack { keys, wrong })?;
        while member.phase()? < Phase::End {
            let bell = job.bell();
            job.park(bell, job.now().after(REST));
        }
        store.close().context("closing the store")?;
        job.leave()?;
        Ok(is_ok)
    }
}

/// Reads back what those were acknowledged whose next living member this is: how many keys, and what is wrong.
fn read_back(
    job: &outlast::Job,
    store: &Store,
    member: &Member,
) -> anyhow::Result<(u64, Vec<String>)> {
    let view = job.view();
    let members = job.members() as u32;
    let next_living = |writer: u32| {
        let after = (1..=members).map(|step| MemberId((writer + step) % members));
        after.into_iter().find(|&candidate| view.is_living(candidate))
    };
    let (mut keys, mut wrong) = (0, Vec::new());
    for writer in (0..members).filter(|&writer| next_living(writer) == Some(job.me())) {
        let acknowledged = member.read(writer as usize, 0)?.len() / NOTE_LEN;
        for number in 0..acknowledged as u64 {
            let key = key(writer, number);
            let found = store.get(&key)?;
            keys += 1;
            let problem = match found {
                None => "is missing",
                Some(found) if found.bytes() != fill(&key, number) => "has another value",
                Some(_) => continue,
            };
            wrong.push(format!(
                "{} of {} {problem}",
                String::from_utf8_lossy(&key),
                MemberId(writer)
            ));
        }
    }
    Ok((keys, wrong))
}

// ---- The demo.

#[derive(Serialize)]
struct Report {
    ok: bool,
    members: usize,
    copies: usize,
    survivors: usize,
    kills: Vec<Kill>,
    /// Acknowledged writes, those of the dead included.
    acked: u64,
    /// Keys that another member read back.
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
struct Kill {
    member: u32,
    at_s: f64,
    first_noticed_ms: Option<f64>,
    all_noticed_ms: Option<f64>,
    /// Until there were as many copies of everything as before.
    copies_back_ms: Option<f64>,
}

/// What the demo has heard from its members so far.
#[derive(Default)]
struct Heard {
    open: BTreeSet<u32>,
    /// Who noticed whose death, and when.
    noticed: BTreeMap<(u32, u32), u64>,
    /// By how many dead: who saw when that nothing is to be repaired.
    complete: BTreeMap<u64, BTreeMap<u32, u64>>,
    rests: BTreeSet<u32>,
    read_back: BTreeMap<u32, (u64, Vec<String>)>,
}

impl Heard {
    /// The times at which all of `survivors` did something, in milliseconds since `at_ns`, if all have.
    fn since<'a>(
        at_ns: u64,
        survivors: &BTreeSet<u32>,
        time: impl Fn(u32) -> Option<&'a u64>,
    ) -> Option<(f64, f64)> {
        let times: Option<Vec<f64>> = survivors
            .iter()
            .map(|&member| Some(time(member)?.saturating_sub(at_ns) as f64 / 1e6))
            .collect();
        let times = times?;
        Some((times.iter().copied().reduce(f64::min)?, times.iter().copied().reduce(f64::max)?))
    }
}

/// A run of the demo.
struct Show<'a> {
    demo: &'a Demo,
    running: Running,
    lines: Lines,
    heard: Heard,
    shared: Shared,
    /// Since when members write, once they do.
    began: Option<Instant>,
}

impl Demo {
    pub(crate) fn execute(mut self) -> anyhow::Result<bool> {
        if let Some(members) = self.place.join_mpirun()? {
            self.members = members;
        }
        if !(3..=64).contains(&self.members) {
            usage_error(
                "demo",
                format!("{} members; the demo kills two and takes 3 to 64", self.members),
            );
        }
        self.place.check("demo");
        let before = shared_memory_names();
        let shared = Shared::new(self.members, 0)?;
        let launch = Launch::new(self.members)
            .program(std::env::current_exe().context("finding this program's own path")?)
            .args(["demo-member", &serde_json::to_string(&shared.place())?])
            .segment_limit(256 << 20)
            .die_with_launcher(true)
            .output(Output::Capture);
        let (launch, hosts) = self.place.prepare(launch, self.members)?;
        let running = launch.start()?;
        let pids = running.pids();
        let lines = Lines::new(self.members);
        let mut show =
            Show { demo: &self, running, lines, heard: Heard::default(), shared, began: None };
        let mut kills = Vec::new();
        let result = show.run(&mut kills);
        let limit = HUNG_AFTER.saturating_sub(show.running.elapsed());
        let outcome = show.running.wait(if result.is_ok() { limit } else { Duration::ZERO });
        let seconds = show.running.elapsed().as_secs_f64();
        show_log(&outcome);
        let Show { running, heard, shared, .. } = show;
        drop(running);
        drop(hosts);

        let killed: BTreeSet<u32> = kills.iter().map(|kill: &Kill| kill.member).collect();
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
        let notes = shared.records()?;
        let acked = notes.iter().flatten().map(|notes| (notes.len() / NOTE_LEN) as u64).sum();
        let survivors = (0..self.members as u32).filter(|member| !killed.contains(member));
        let pauses = survivors
            .clone()
            .filter_map(|member| longest_pause_ms(notes.get(member as usize)?.first()?));
        let longest_pause_ms = pauses.fold(0.0, f64::max);
        if longest_pause_ms > PAUSE_MAX_MS {
            wrong.push(format!("a survivor stood still for {longest_pause_ms:.0} ms"));
        }
        let left_behind = left_behind(&before, &pids);
        let keys_read_back = heard.read_back.values().map(|(keys, _)| keys).sum();
        let survived = outcome.survivors().filter(|end| end.is_ok()).count();
        let report = Report {
            ok: wrong.is_empty()
                && left_behind.is_empty()
                && !outcome.timed_out
                && survived == self.members - KILLS_AT.len()
                && acked == keys_read_back
                && kills
                    .iter()
                    .all(|kill| kill.all_noticed_ms.is_some() && kill.copies_back_ms.is_some()),
            members: self.members,
            copies: COPIES,
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

    fn print(&self, report: &Report) {
        let mark = |is_ok: bool| if is_ok { "ok" } else { "WRONG" };
        let line = |is_ok: bool, text: String| {
            say(self.json.as_deref(), format_args!("  {:<6} {text}", mark(is_ok)))
        };
        let plain = |text: String| say(self.json.as_deref(), text);
        plain(String::new());
        line(
            report.lost == 0 && report.acked == report.keys_read_back,
            format!(
                "all {} acknowledged writes were read back by another member, those of the dead too; {} lost",
                report.acked, report.lost
            ),
        );
        line(
            report.longest_pause_ms <= PAUSE_MAX_MS,
            format!(
                "the writers noticed little: their longest pause was {:.1} ms",
                report.longest_pause_ms
            ),
        );
        let back = report.kills.iter().map(|kill| kill.copies_back_ms);
        let slowest = back.clone().flatten().fold(0.0, f64::max);
        line(
            back.clone().all(|back| back.is_some()) && report.kills.len() == KILLS_AT.len(),
            format!(
                "{} copies of everything again, at most {slowest:.1} ms after a kill",
                report.copies
            ),
        );
        line(
            report.survivors + KILLS_AT.len() == report.members,
            format!(
                "{} of {} survived and finished; nobody hung",
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
            if report.ok { "The store outlasted both deaths." } else { "Something is wrong." };
        plain(format!("\n{verdict} ({:.1} s)", report.seconds));
    }
}

/// The longest time between two acknowledged writes.
fn longest_pause_ms(notes: &[u8]) -> Option<f64> {
    let times: Vec<u64> =
        notes.as_chunks::<NOTE_LEN>().0.iter().map(|note| u64::from_le_bytes(*note)).collect();
    times.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64 / 1e6).reduce(f64::max)
}

impl Show<'_> {
    /// Drives the members through the demo; fills in what the kills did.
    fn run(&mut self, kills: &mut Vec<Kill>) -> anyhow::Result<()> {
        let members = self.demo.members;
        let pids = self.running.pids();
        let list = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        self.line(format_args!("started {members} processes: pids {list}"));
        self.wait_for("open the store", |heard| heard.open.len() == members)?;
        self.began = Some(Instant::now());
        let began = Instant::now();
        self.line(format_args!(
            "all have opened the store and write; each value has {COPIES} copies"
        ));

        // The lowest member dies too: nobody is special, unless it is this command as well, inside the user's own mpirun.
        let lowest = u32::from(outlast::launch::rank().is_some());
        let victims = [members as u32 / 2 + lowest, lowest];
        let mut survivors: BTreeSet<u32> = (0..members as u32).collect();
        for (victim, at) in victims.into_iter().zip(KILLS_AT) {
            self.let_pass(began + at)?;
            let (at_s, at_ns) = (self.running.elapsed().as_secs_f64(), machine_ns());
            ensure!(
                self.running.kill(MemberId(victim))?,
                "member {victim} had ended before it was killed"
            );
            survivors.remove(&victim);
            self.line(format_args!("kill -9 of member {victim} (pid {})", pids[victim as usize]));
            self.wait_for("notice the death", |heard| {
                survivors.iter().all(|&member| heard.noticed.contains_key(&(member, victim)))
            })?;
            let noticed = |member| self.heard.noticed.get(&(member, victim));
            let noticed = Heard::since(at_ns, &survivors, noticed);
            if let Some((first, all)) = noticed {
                let count = survivors.len();
                self.line(format_args!(
                    "first survivor noticed after {first:.2} ms, all {count} after {all:.2} ms"
                ));
            }
            let dead = kills.len() as u64 + 1;
            self.wait_for("bring the copies back", |heard| {
                let said = heard.complete.get(&dead);
                said.is_some_and(|said| survivors.iter().all(|member| said.contains_key(member)))
            })?;
            let back = |member| self.heard.complete.get(&dead)?.get(&member);
            let back = Heard::since(at_ns, &survivors, back).map(|(_, all)| all);
            if let Some(back) = back {
                let copies = COPIES.min(survivors.len());
                self.line(format_args!("{copies} copies of everything again after {back:.1} ms"));
            }
            kills.push(Kill {
                member: victim,
                at_s,
                first_noticed_ms: noticed.map(|(first, _)| first),
                all_noticed_ms: noticed.map(|(_, all)| all),
                copies_back_ms: back,
            });
        }
        self.let_pass(began + WORK)?;
        self.shared.set_phase(Phase::Rest)?;
        self.wait_for("stop writing", |heard| survivors.is_subset(&heard.rests))?;
        self.began = None;
        let acked = self.shared.recorded_len()? / NOTE_LEN as u64;
        self.line(format_args!(
            "{acked} writes were acknowledged; each is read back by another member"
        ));
        self.shared.set_phase(Phase::ReadBack)?;
        self.wait_for("read back", |heard| {
            survivors.iter().all(|member| heard.read_back.contains_key(member))
        })?;
        self.shared.set_phase(Phase::End)
    }

    fn listen(&mut self) -> anyhow::Result<()> {
        for (member, line) in self.lines.take(&self.running)? {
            match line {
                Line::Open => drop(self.heard.open.insert(member)),
                Line::News(News::Noticed { dead, at_ns }) => {
                    self.heard.noticed.insert((member, dead), at_ns);
                }
                Line::News(News::Complete { dead, at_ns }) => {
                    self.heard.complete.entry(dead).or_default().insert(member, at_ns);
                }
                Line::Rests => drop(self.heard.rests.insert(member)),
                Line::ReadBack { keys, wrong } => {
                    drop(self.heard.read_back.insert(member, (keys, wrong)))
                }
            }
        }
        for event in self.running.poll_events() {
            if let Event::Ended(end) = event
                && !end.is_ok()
                && !end.is_death()
            {
                let stderr = self.running.output(end.member).stderr;
                bail!(describe(&end, &String::from_utf8_lossy(&stderr)));
            }
        }
        self.draw_bar();
        Ok(())
    }

    /// Lets time pass.
    fn let_pass(&mut self, until: Instant) -> anyhow::Result<()> {
        while Instant::now() < until {
            self.listen()?;
            std::thread::sleep(
                until.saturating_duration_since(Instant::now()).min(Duration::from_millis(20)),
            );
        }
        Ok(())
    }

    /// Waits until the members have said something; an error if it does not come, or if nobody is left to say it.
    fn wait_for(&mut self, what: &str, is_there: impl Fn(&Heard) -> bool) -> anyhow::Result<()> {
        loop {
            self.listen()?;
            if is_there(&self.heard) {
                return Ok(());
            }
            ensure!(
                self.running.elapsed() < HUNG_AFTER && self.running.running() > 0,
                "the members did not {what}; is everything on this machine as `outlast doctor` wants it?"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Shows how far the members have come, where somebody looks.
    fn draw_bar(&self) {
        const WIDTH: usize = 40;
        let (Some(began), true) = (self.began, std::io::stderr().is_terminal()) else { return };
        let part = (began.elapsed().as_secs_f64() / WORK.as_secs_f64()).min(1.0);
        let full = (part * WIDTH as f64) as usize;
        let acked = self.shared.recorded_len().unwrap_or(0) / NOTE_LEN as u64;
        eprint!(
            "\r[{}{}] {acked} writes acknowledged\x1b[K",
            "#".repeat(full),
            ".".repeat(WIDTH - full)
        );
    }

    fn line(&self, text: impl std::fmt::Display) {
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
        let elapsed = self.running.elapsed().as_secs_f64();
        say(self.demo.json.as_deref(), format_args!("{elapsed:6.3} s  {text}"));
    }
}

//! `outlast sim`: random programs on a store in the simulator, with deaths and stops at any engine
//! step. Each seed is a run, which is judged like the runs of `outlast chaos`. A seed replays byte
//! for byte.
//!
//! Up to R - 1 members die at random steps. If more members are to die, they follow in waves of up
//! to R - 1, each wave when all living members find no replica missing, so that a run never exceeds
//! what the store promises to survive. With `--beyond` all victims die at random steps: calls must
//! report lost data until the loss is accepted, and all else is judged as ever.

mod judge;
mod member;
mod page;
mod seats;

use crate::chaos::Mode;
use crate::program::{self, ProgramKind};
use crate::report::file::{ReportFile, report_file};
use crate::report::write_json;
use crate::usage_error;
use clap::{Args, ValueEnum};
use judge::judge;
use member::{RunOptions, SharedRecord};
use outlast::MemberId;
use outlast::sim::{self, Link, Options as SimOptions};
use outlast::store::REPLICAS_MAX;
use outlast_check::workload::Random;
use serde::Serialize;
use std::io::IsTerminal;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
A run is a job of N members in a single thread, in virtual time. Each member makes random calls on
a store while members are killed and stopped at any step, messages are delayed, and members learn
of deaths at different times. Everything follows from the seed. The results of the calls are
judged: acknowledged writes are durable and atomic, a single order explains all results, lost
replicas are repaired, and no call hangs.

Examples:
  A thousand seeds, on all cores:
      outlast sim --members 5 --replicas 3 --seeds 0..1000 --kills 2 --stops 1
  A single seed, step by step (a failing seed prints this line with all its options):
      outlast sim --members 5 --replicas 3 --kills 2 --stops 1 --seed 17 --trace
  Nothing but transfers between accounts, whose sum must not change:
      outlast sim --seeds 0..1000 --kills 2 --stops 1 --programs bank
  More deaths than replicas, in waves:
      outlast sim --members 9 --replicas 3 --seeds 0..200 --kills 6
  More deaths than the store can survive: calls must say what is lost until the loss is accepted:
      outlast sim --members 5 --replicas 2 --seeds 0..1000 --kills 3 --beyond
  All members stop at a death and recover together:
      outlast sim --seeds 0..1000 --kills 2 --stops 1 --mode global
  Survivors read the memory of the dead: nothing is lost, even with a single replica:
      outlast sim --members 5 --replicas 1 --seeds 0..1000 --kills 4 --salvage
  Programs on seats, whose answer is that of an oracle, without logs and with them:
      outlast sim --programs seats --seeds 0..1000 --kills 2 --stops 1
      outlast sim --programs seats --logged --seeds 0..1000 --kills 1 --spares 1
  The report as JSON; standard output gets nothing else:
      outlast sim --seeds 0..100 --json -
  A page for a browser:
      outlast sim --seeds 0..1000 --kills 2 --report sim.html

Exit status: 0 no seed fails, 1 a seed fails, 2 wrong usage.";

/// How members reach each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LinkChoice {
    /// As on one machine: members access each other's memory directly
    Memory,
    /// As between machines: members send requests and wait for answers
    Network,
    /// Memory for even seeds, network for odd seeds
    Both,
}

impl std::fmt::Display for LinkChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LinkChoice::Memory => "memory",
            LinkChoice::Network => "network",
            LinkChoice::Both => "both",
        })
    }
}

/// Run random programs on a store in the simulator, a run for each seed, and judge them
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Sim {
    /// How many members the job has
    #[arg(short = 'n', long, alias = "ranks", value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    members: u16,
    /// How many replicas each value has
    #[arg(short = 'r', long, value_name = "R", default_value_t = 3)]
    replicas: usize,
    /// The seeds to run, from A up to but not including B
    #[arg(long, value_name = "A..B", default_value = "0..100", conflicts_with = "seed")]
    #[arg(value_parser = seeds)]
    seeds: Range<u64>,
    /// A single seed
    #[arg(long, value_name = "X")]
    seed: Option<u64>,
    /// Trace every step on standard error
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Write the history of all calls to this file, as JSON (docs/history-format.md)
    #[arg(long, value_name = "PATH", requires = "seed")]
    history: Option<PathBuf>,
    /// How many members die in each run
    #[arg(long, value_name = "K", default_value_t = 0)]
    kills: usize,
    /// How many times a member is stopped for a while in each run
    #[arg(long, value_name = "S", default_value_t = 0)]
    stops: usize,
    /// How the store recovers
    #[arg(long, value_name = "MODE", default_value_t = Mode::Localized)]
    mode: Mode,
    /// How many further members stand by until a member dies
    #[arg(long, value_name = "N", default_value_t = 0)]
    spares: usize,
    /// How many threads of each member make calls
    #[arg(long, value_name = "T", default_value_t = 2)]
    threads: u32,
    /// How many calls each thread makes
    #[arg(long, value_name = "N", default_value_t = 25)]
    calls: u64,
    /// Members die at any time: more may die than the store promises to survive
    #[arg(long)]
    beyond: bool,
    /// Survivors read the memory of the dead (on the memory link): nothing is lost
    #[arg(long, conflicts_with = "beyond")]
    salvage: bool,
    /// With programs on seats: log accesses (experimental)
    #[arg(long)]
    logged: bool,
    /// Stop at the first seed that fails
    #[arg(long)]
    first_failure: bool,
    /// What the members do
    #[arg(long, value_name = "PROGRAMS", default_value_t = ProgramKind::Mixed)]
    programs: ProgramKind,
    /// How members reach each other
    #[arg(long, value_name = "LINK", default_value_t = LinkChoice::Both)]
    link: LinkChoice,
    /// Write the report as JSON to this file; - is standard output
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Write a page for a browser to this file
    #[arg(long, value_name = "FILE", value_parser = report_file)]
    report: Option<ReportFile>,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let form = || {
        format!(
            "`{text}` is not a range of seeds; write it as A..B, such as 0..1000, without the end"
        )
    };
    let (first, end) = text.split_once("..").ok_or_else(form)?;
    let (first, end) = (first.parse().map_err(|_| form())?, end.parse().map_err(|_| form())?);
    if first < end { Ok(first..end) } else { Err(form()) }
}

/// A seed that failed.
#[derive(Clone, Debug, Serialize)]
struct FailingSeed {
    seed: u64,
    /// The kind of the first violation.
    kind: String,
    /// The command that replays the seed.
    replay: String,
    /// The first violations, for people.
    #[serde(skip)]
    details: String,
}

/// The report. Its fields are a contract with users.
#[derive(Debug, Default, Serialize)]
struct SimReport {
    ok: bool,
    seeds: u64,
    violations: u64,
    steps: u64,
    kills: u64,
    stops: u64,
    failing: Vec<FailingSeed>,
    /// With `--beyond`: how many keys were lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_lost: Option<u64>,
    /// For the page: the runs in the order of their ends.
    #[serde(skip)]
    runs: Vec<SeedRun>,
}

/// What the page shows of a run.
#[derive(Clone, Copy, Debug)]
struct SeedRun {
    link: Link,
    steps: u64,
    is_wrong: bool,
}

/// The result of a run.
struct JudgedRun {
    steps: u64,
    kills: u64,
    stops: u64,
    data_lost: u64,
    /// The violations: the kind and a description of each.
    wrong: Vec<(String, String)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Sim {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        self.check();
        let seeds = self.seed.map_or(self.seeds.clone(), |seed| seed..seed + 1);
        let total = seeds.end - seeds.start;
        let next = AtomicU64::new(seeds.start);
        let report = Mutex::new(SimReport::default());
        let cores = std::thread::available_parallelism().map_or(1, usize::from).min(total as usize);
        let began = Instant::now();
        std::thread::scope(|scope| -> anyhow::Result<()> {
            let threads: Vec<_> = (0..cores)
                .map(|_| {
                    scope.spawn(|| {
                        while let Some(seed) =
                            Some(next.fetch_add(1, Ordering::Relaxed)).filter(|s| *s < seeds.end)
                        {
                            let judged = match self.programs.is_of_seats() {
                                true => self.run_seats(seed),
                                false => self.run(seed),
                            };
                            let mut report = lock(&report);
                            self.note(seed, judged, &mut report);
                            if self.first_failure && !report.failing.is_empty() {
                                next.store(seeds.end, Ordering::Relaxed);
                            }
                        }
                    })
                })
                .collect();
            let mut shown = Instant::now();
            while threads.iter().any(|thread| !thread.is_finished()) {
                std::thread::sleep(Duration::from_millis(20));
                let pause = if std::io::stderr().is_terminal() { 0.2 } else { 10.0 };
                if shown.elapsed().as_secs_f64() > pause {
                    shown = Instant::now();
                    progress(&lock(&report), total, began);
                }
            }
            Ok(())
        })?;
        let mut report = report.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        report.failing.sort_by_key(|failing| failing.seed);
        report.ok = report.failing.is_empty() && report.seeds == total;
        progress(&report, total, began);
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
        for failing in report.failing.iter().take(10) {
            eprintln!(
                "\nseed {}: {}\n{}\nreplay: {}",
                failing.seed, failing.kind, failing.details, failing.replay
            );
        }
        eprintln!(
            "{} of {total} seeds fail; {} deaths, {} stops, {} steps",
            report.failing.len(),
            report.kills,
            report.stops,
            report.steps
        );
        if let Some(path) = &self.json {
            write_json(path, &report)?;
        }
        if let Some(file) = &self.report {
            file.write(&page::page(&self, &report, began.elapsed()))?;
            eprintln!("report: {}", file.path().display());
        }
        Ok(report.ok)
    }

    /// Ends with status 2 if the arguments contradict each other.
    fn check(&self) {
        let (members, total) = (usize::from(self.members), usize::from(self.members) + self.spares);
        let usage = |message: String| usage_error("sim", message);
        if self.kills > total - 1 {
            usage(format!(
                "{} kills in a job of {total} leave no survivor; kill at most {}",
                self.kills,
                total - 1
            ));
        }
        if !(1..=REPLICAS_MAX).contains(&self.replicas) || self.replicas > members {
            let most = REPLICAS_MAX.min(members);
            usage(format!("{} replicas in a job of {members}; 1 to {most}", self.replicas));
        }
        if self.salvage && self.link == LinkChoice::Network {
            usage(
                "survivors can read the memory of the dead on the memory link only; --link memory"
                    .into(),
            );
        }
        if self.replicas == 1 && self.kills > 0 && !self.beyond && !self.salvage {
            usage(
                "with one replica every kill loses data; --replicas 2 keeps a second replica, \
                 --salvage reads the memory of the dead, --beyond allows the loss"
                    .into(),
            );
        }
        if self.beyond && self.mode == Mode::Global {
            usage(
                "a global recovery cannot restore lost data; --beyond goes with --mode localized"
                    .into(),
            );
        }
        if self.programs.is_of_seats() {
            if self.beyond || self.salvage || self.mode == Mode::Global || self.history.is_some() {
                usage(
                    "--beyond, --salvage, --mode global and --history are not for programs on seats"
                        .into(),
                );
            }
            if members < 2 || self.kills > self.lose() {
                usage(format!(
                    "{} kills of {members} members: seats bear fewer deaths at once than there are \
                     replicas, 3 at most",
                    self.kills
                ));
            }
        } else if self.logged {
            usage("--logged is for programs on seats: --programs seats, table or transform".into());
        }
        if !(1..=program::THREADS_MAX).contains(&self.threads) {
            usage(format!("{} threads; 1 to {}", self.threads, program::THREADS_MAX));
        }
        if self.spares > 256 {
            usage(format!("{} spares; at most 256", self.spares));
        }
        if !(1..=100_000).contains(&self.calls) {
            usage(format!("{} calls; 1 to 100000", self.calls));
        }
    }

    /// The command that replays a seed.
    fn replay(&self, seed: u64) -> String {
        let Sim {
            members,
            replicas,
            kills,
            stops,
            mode,
            spares,
            threads,
            calls,
            programs,
            link,
            ..
        } = self;
        let beyond = match (self.beyond, self.salvage) {
            (true, _) => " --beyond",
            (_, true) => " --salvage",
            _ => "",
        };
        let logged = if self.logged { " --logged" } else { "" };
        format!(
            "outlast sim --members {members} --replicas {replicas} --kills {kills} --stops {stops} \
             --mode {mode} --spares {spares} --threads {threads} --calls {calls} \
             --programs {programs} --link {link}{beyond}{logged} --seed {seed} --trace"
        )
    }

    fn note(&self, seed: u64, judged: JudgedRun, report: &mut SimReport) {
        report.seeds += 1;
        report.steps += judged.steps;
        if self.report.is_some() {
            let is_wrong = !judged.wrong.is_empty();
            report.runs.push(SeedRun { link: self.link_of(seed), steps: judged.steps, is_wrong });
        }
        report.kills += judged.kills;
        report.stops += judged.stops;
        if self.beyond {
            *report.data_lost.get_or_insert(0) += judged.data_lost;
        }
        report.violations += judged.wrong.len() as u64;
        if let Some((kind, _)) = judged.wrong.first() {
            let texts: Vec<&str> =
                judged.wrong.iter().take(3).map(|(_, text)| text.as_str()).collect();
            report.failing.push(FailingSeed {
                seed,
                kind: kind.clone(),
                replay: self.replay(seed),
                details: texts.join("\n"),
            });
        }
    }

    /// How the members of a seed reach each other.
    fn link_of(&self, seed: u64) -> Link {
        match self.link {
            LinkChoice::Memory => Link::Memory,
            LinkChoice::Both if self.salvage => Link::Memory,
            LinkChoice::Network => Link::Network,
            LinkChoice::Both if seed.is_multiple_of(2) => Link::Memory,
            LinkChoice::Both => Link::Network,
        }
    }

    /// Runs a seed and judges the run.
    fn run(&self, seed: u64) -> JudgedRun {
        let members = usize::from(self.members) + self.spares;
        let mut programs = program::options(members, 4, 1, self.programs);
        programs.lengths = vec![(0, 1), (8, 2), (24, 2), (100, 2), (700, 1)];
        let (beyond, salvage) = (self.beyond, self.salvage);
        let run = RunOptions {
            seed,
            mode: self.mode,
            replicas: self.replicas,
            threads: self.threads,
            calls: self.calls,
            programs,
            beyond,
            salvage,
        };
        let link = self.link_of(seed);
        let at_once =
            if beyond || salvage { self.kills } else { self.kills.min(self.replicas - 1) };
        let steps = self.calls * u64::from(self.threads) * 30;
        let mut options = SimOptions::new(usize::from(self.members), seed).link(link);
        options.spares = self.spares;
        options.keeps_dead_segments = salvage;
        options = options.random_faults(at_once, self.stops, steps);
        options.trace = self.trace;
        // Members that wait for a stopped member poll, and the other members go on until it is
        // resumed. A transaction takes many steps, and more under contention.
        let weight = if self.programs == ProgramKind::Calls && self.mode == Mode::Localized {
            1
        } else {
            10
        };
        let many = (members as u64 / 8).max(1);
        options.steps_max = weight
            * (5_000_000 + 50 * steps * members as u64 + 30_000_000 * many * self.stops as u64);
        let outside = SharedRecord::default();
        lock(&outside).struck = at_once;
        lock(&outside).victims = later_victims(&options, self.kills - at_once, members);
        let report = {
            let outside = Rc::new(outside.clone());
            sim::run(&options, move |job| run.member(&job, &outside))
        };
        // Standard output is for JSON.
        for line in &report.trace {
            eprintln!("{line}");
        }
        let mut outside = lock(&outside);
        let mut wrong = std::mem::take(&mut outside.trouble);
        for panic in &report.panics {
            wrong.push(("panic".into(), format!("member {}: {}", panic.member.0, panic.message)));
        }
        if report.outcome != sim::Outcome::Finished {
            let hung: Vec<String> = report.hung.iter().map(ToString::to_string).collect();
            wrong.push(("hung".into(), format!("{:?}: {}", report.outcome, hung.join("; "))));
        }
        if wrong.is_empty() {
            wrong = judge(&outside, members, self.stops > 0, self.history.as_deref());
        }
        let data_lost = outside.losses.0.iter().map(|loss| loss.keys.len() as u64).sum();
        JudgedRun {
            steps: report.steps,
            kills: report.kills,
            stops: report.stops,
            data_lost,
            wrong,
        }
    }
}

/// Random victims of the later waves, other than the members whose death is planned already.
fn later_victims(options: &SimOptions, count: usize, members: usize) -> Vec<MemberId> {
    let is_planned = |member: &MemberId| {
        options.faults.iter().any(|fault| fault.action == sim::Action::Kill(*member))
    };
    let mut random = Random::stream(options.seed, 0x7661_7665);
    let mut candidates: Vec<MemberId> =
        (0..members as u32).map(MemberId).filter(|member| !is_planned(member)).collect();
    (0..count)
        .map(|_| candidates.swap_remove(random.below(candidates.len() as u64) as usize))
        .collect()
}

fn progress(report: &SimReport, total: u64, began: Instant) {
    let seconds = began.elapsed().as_secs_f64();
    let line = format!(
        "{} of {total} seeds, {} failing, {:.1} million steps, {:.0} s",
        report.seeds,
        report.failing.len(),
        report.steps as f64 / 1e6,
        seconds
    );
    if std::io::stderr().is_terminal() {
        eprint!("\r{line}  ");
    } else {
        eprintln!("{line}");
    }
}

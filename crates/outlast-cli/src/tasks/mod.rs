//! `outlast tasks`: programs of tasks on real or simulated members, of which some are killed or
//! stopped meanwhile; the answer must be right all the same.

mod member;
mod programs;

use crate::hosts::EngineArgs;
use crate::members::{
    DeathNews, Lines, describe, left_behind, machine_ns, shared_memory_names, show_log,
};
use crate::quantity::{self, EngineName};
use crate::report::{say, write_json};
use crate::usage_error;
use anyhow::Context;
use clap::Args;
use member::{Counted, Line, Order};
use outlast::MemberId;
use outlast::launch::{Launch, Output, Running};
use outlast::sim::{self, Random};
use outlast::store::{self, Store};
use outlast_tasks::{Tasks, steps};
use programs::Program;
use serde::Serialize;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

pub(crate) use member::TasksMember;

const EXAMPLES: &str = "\
Examples:
  Eight processes count the ways to put 15 queens, and three of them are killed:
      outlast tasks nqueens --n 15 --members 8 --kills 3 --seed 7
  The same program without saving, for comparison:
      outlast tasks nqueens --n 14 --members 2 --plain
  Simulated members, with deaths and stops at any step:
      outlast tasks random --engine sim --members 6 --kills 2 --stops 2 --seed 42

Exit status: 0 the answer is right at every survivor, 1 otherwise, 2 wrong usage.";

/// How long the first kill comes after the start of the run, and the least time between two kills.
const PAUSE: Duration = Duration::from_millis(150);
/// How long a stopped member is stopped.
const STOP: Duration = Duration::from_millis(300);
/// How much longer than the deadline of the run the command waits for the members.
const GRACE: Duration = Duration::from_secs(40);

/// Where the members of a program run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Sim,
    Real(EngineName),
}

fn engine(name: &str) -> Result<Engine, String> {
    if name == "sim" {
        return Ok(Engine::Sim);
    }
    quantity::engine(name).map(Engine::Real).map_err(|error| format!("{error}; or sim"))
}

/// Run a program of tasks, kill its workers, and see that the answer is right
#[derive(Args)]
#[command(name = "tasks", after_help = EXAMPLES)]
pub(crate) struct TasksCommand {
    /// The program
    #[arg(value_enum)]
    program: Program,
    /// The size of the program
    #[arg(long, value_name = "N")]
    n: Option<u32>,
    /// How many members to start
    #[arg(long, value_name = "N", default_value_t = 4)]
    members: usize,
    /// How many members to kill, one after the other
    #[arg(long, value_name = "K", default_value_t = 0)]
    kills: usize,
    /// How many times a member is stopped for a while
    #[arg(long, value_name = "S", default_value_t = 0)]
    stops: usize,
    /// How many replicas each value of the store has
    #[arg(long, value_name = "R", default_value_t = 3)]
    replicas: usize,
    /// The engine below the job: shm, sim, or mpi in builds with the feature `mpi`
    #[arg(long, value_name = "NAME", value_parser = engine, default_value = "shm")]
    engine: Engine,
    /// With the mpi engine: spread the job over this many hosts made of this machine; needs root
    #[arg(long, value_name = "H")]
    hosts: Option<u16>,
    /// Save nothing: the baseline of comparisons
    #[arg(long)]
    plain: bool,
    /// The share of the time that may go into saving
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    price: f64,
    /// Kill members inside steps of the runtime, in builds with the feature `faults`
    #[arg(long)]
    failpoints: bool,
    /// Chooses the victims, the times of kills and stops, and what `sort` and `random` compute
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// How long the run may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    limit: u64,
    /// Write the report as JSON to this file; - is standard output
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

/// The report of a run.
#[derive(Default, Serialize)]
struct TasksReport {
    ok: bool,
    program: &'static str,
    n: u32,
    members: usize,
    survivors: usize,
    answer: Option<u64>,
    expected: u64,
    seconds: f64,
    kills: Vec<KillReport>,
    stops: usize,
    forks: u64,
    shared: u64,
    moved: u64,
    reopened: u64,
    again: u64,
    found: u64,
    diverged: u64,
    poisoned: u64,
    exposed_ms: f64,
    saving_share: f64,
    beat_us: f64,
    seed: u64,
    wrong: Vec<String>,
    left_behind: Vec<String>,
}

#[derive(Clone, Serialize)]
struct KillReport {
    member: u32,
    at_s: f64,
    first_noticed_ms: Option<f64>,
}

impl TasksCommand {
    pub(crate) fn execute(mut self) -> anyhow::Result<bool> {
        if let Engine::Real(engine) = self.engine {
            let args = EngineArgs { engine, hosts: self.hosts };
            if let Some(members) = args.join_mpirun()? {
                self.members = members;
            }
            args.check("tasks");
        }
        if !(1..=64).contains(&self.members) {
            usage_error("tasks", format!("{} members; it takes 1 to 64", self.members));
        }
        if self.kills >= self.members {
            usage_error("tasks", format!("--kills {}: a member must survive", self.kills));
        }
        if !(0.0001..=1.0).contains(&self.price) {
            usage_error("tasks", format!("--price {}: a share from 0.0001 to 1", self.price));
        }
        if self.failpoints && !outlast::failpoint::AVAILABLE {
            usage_error("tasks", "--failpoints needs a build with the feature `faults`");
        }
        let n = self.n.unwrap_or(self.program.size());
        let expected = match self.program.expected(n, self.seed) {
            Ok(expected) => expected,
            Err(error) => usage_error("tasks", error),
        };
        let report = TasksReport {
            program: self.program.name(),
            n,
            members: self.members,
            expected,
            seed: self.seed,
            ..TasksReport::default()
        };
        let report = match self.engine {
            Engine::Sim => self.simulate(report),
            Engine::Real(engine) => {
                self.run_processes(EngineArgs { engine, hosts: self.hosts }, report)?
            }
        };
        self.print(&report);
        if let Some(path) = self.json.as_deref() {
            write_json(path, &report)?;
        }
        Ok(report.ok)
    }

    fn order(&self, n: u32, deaths: Vec<(u32, usize, u64)>) -> Order {
        Order {
            program: self.program,
            n,
            seed: self.seed,
            replicas: self.replicas,
            price: self.price,
            plain: self.plain,
            limit_s: self.limit,
            deaths,
        }
    }

    /// Runs the program under the simulator.
    fn simulate(&self, mut report: TasksReport) -> TasksReport {
        let order = self.order(report.n, Vec::new());
        let mut options = sim::Options::new(self.members, self.seed);
        options = options.link(sim::Link::of_seed(self.seed));
        options.stack_len = 8 << 20;
        let options = options.random_faults(self.kills, self.stops, 20_000);
        let began = Instant::now();
        let heard = Rc::new(RefCell::new(Vec::new()));
        let result = sim::run(&options, {
            let heard = heard.clone();
            move |job| {
                let small = store::Options::new().replicas(order.replicas).allow_fewer();
                let small = small.partitions(16).expected_keys(1 << 10);
                let Ok(store) = Store::open(&job, small) else { return };
                let Ok(tasks) = Tasks::open(&store, order.options().beat_forks(200)) else {
                    return;
                };
                let answer = order.program.run(&tasks, order.n, order.seed);
                heard.borrow_mut().push((job.me().0, answer, Counted::from(tasks.stats())));
                let _ = tasks.close();
                let _ = store.close();
                let _ = job.leave();
            }
        });
        report.seconds = began.elapsed().as_secs_f64();
        report.stops = result.stops as usize;
        report.survivors = heard.borrow().len();
        for (member, answer, counts) in heard.borrow().iter() {
            report.add(counts, 1.0);
            match answer {
                Ok(answer) => report.hear(*member, *answer),
                Err(error) => report.wrong.push(format!("{}: {error}", MemberId(*member))),
            }
        }
        if !result.is_ok() {
            report.wrong.push(format!("the run ended as {:?}", result.outcome));
            report.wrong.extend(result.hung.iter().map(ToString::to_string));
            report.wrong.extend(result.panics.iter().map(|panic| panic.message.clone()));
        }
        report.ok = report.wrong.is_empty() && report.answer == Some(report.expected);
        report
    }

    /// Runs the program in processes.
    fn run_processes(
        &self,
        args: EngineArgs,
        mut report: TasksReport,
    ) -> anyhow::Result<TasksReport> {
        let before = shared_memory_names();
        let mut random = Random::new(self.seed);
        // Inside the user's own mpirun rank 0 is this command as well.
        let first = u32::from(outlast::launch::rank().is_some());
        let mut victims: Vec<u32> = (first..self.members as u32).collect();
        let draw = |random: &mut Random, from: &mut Vec<u32>| {
            let index = random.below(from.len() as u64) as usize;
            from.swap_remove(index)
        };
        let victims: Vec<u32> =
            (0..self.kills.min(victims.len())).map(|_| draw(&mut random, &mut victims)).collect();
        let deaths = victims.iter().filter(|_| self.failpoints).map(|&victim| {
            (victim, random.below(steps::NAMES.len() as u64) as usize, 1 + random.below(30))
        });
        let order = self.order(report.n, deaths.collect());
        let launch = Launch::new(self.members)
            .program(std::env::current_exe().context("finding this program's own path")?)
            .args(["tasks-member", &serde_json::to_string(&order)?])
            .segment_limit(1 << 30)
            .die_with_launcher(true)
            .output(Output::Capture);
        let (launch, hosts) = args.prepare(launch, self.members)?;
        let running = launch.start()?;
        let pids = running.pids();
        let mut run = Run {
            command: self,
            lines: Lines::new(self.members),
            running,
            random,
            begun: BTreeSet::new(),
            complete: 0,
            noticed: BTreeMap::new(),
            counts: vec![Counted::default(); self.members],
            answers: BTreeMap::new(),
            killed: Vec::new(),
            shown: Instant::now(),
        };
        let result = run.drive(&victims);
        let limit = if result.is_ok() { GRACE } else { Duration::ZERO };
        let outcome = run.running.wait(limit);
        let _ = run.listen();
        show_log(&outcome);
        if let Err(error) = &result {
            report.wrong.push(format!("{error:#}"));
        }
        let killed: BTreeSet<u32> = run.killed.iter().map(|kill| kill.member).collect();
        for end in outcome.members.iter().filter(|end| !end.is_ok()) {
            if !killed.contains(&end.member.0) {
                report.wrong.push(describe(end, &outcome.stderr(end.member)));
            }
        }
        for (&member, (answer, error, seconds)) in &run.answers {
            report.seconds = report.seconds.max(*seconds);
            match (answer, error) {
                (Some(answer), _) => report.hear(member, *answer),
                (None, error) => report.wrong.push(format!(
                    "{}: {}",
                    MemberId(member),
                    error.as_deref().unwrap_or("no answer")
                )),
            }
        }
        let seconds = report.seconds;
        run.counts.iter().for_each(|counts| report.add(counts, seconds * self.members as f64));
        report.kills = run.killed.clone();
        for kill in &mut report.kills {
            kill.first_noticed_ms = run.noticed.get(&kill.member).copied();
        }
        report.survivors = outcome.survivors().filter(|end| end.is_ok()).count();
        drop(run);
        drop(hosts);
        report.left_behind = left_behind(&before, &pids);
        report.stops = self.stops;
        report.ok = report.wrong.is_empty()
            && report.left_behind.is_empty()
            && !outcome.timed_out
            && report.answer == Some(report.expected);
        Ok(report)
    }

    fn print(&self, report: &TasksReport) {
        let json = self.json.as_deref();
        let line = |is_ok: bool, text: String| {
            say(json, format_args!("  {:<6} {text}", if is_ok { "ok" } else { "WRONG" }));
        };
        let answer = report.answer.map_or("no answer".to_string(), |answer| answer.to_string());
        line(
            report.answer == Some(report.expected),
            format!("{answer} {}; it must be {}", self.program.unit(), report.expected),
        );
        let struck = report.kills.len();
        line(
            report.wrong.is_empty(),
            format!("{} of {} finished; {struck} killed", report.survivors, report.members),
        );
        if struck < self.kills && self.engine != Engine::Sim {
            let text = "the run was over before all kills; a larger --n takes longer";
            say(json, format_args!("         {text}"));
        }
        say(
            json,
            format_args!(
                "         {} forks, {} shared, {} moved; {} opened again, {} run again, {} found",
                report.forks,
                report.shared,
                report.moved,
                report.reopened,
                report.again,
                report.found
            ),
        );
        say(
            json,
            format_args!(
                "         saving took {:.2} % of the time, a beat is {:.0} us; exposed at most \
                 {:.1} ms",
                report.saving_share * 100.0,
                report.beat_us,
                report.exposed_ms
            ),
        );
        for text in report.wrong.iter().chain(&report.left_behind).take(10) {
            say(json, format_args!("         {text}"));
        }
        say(json, format_args!("         {:.2} s", report.seconds));
    }
}

impl TasksReport {
    /// Takes the answer of a member.
    fn hear(&mut self, member: u32, answer: u64) {
        if answer != self.expected {
            self.wrong.push(format!("{} says {answer}", MemberId(member)));
        }
        self.answer = Some(answer);
    }

    fn add(&mut self, counts: &Counted, worker_seconds: f64) {
        self.forks += counts.forks;
        self.shared += counts.shared;
        self.moved += counts.moved;
        self.reopened += counts.reopened;
        self.again += counts.again;
        self.found += counts.found;
        self.diverged += counts.diverged;
        self.poisoned += counts.poisoned;
        self.exposed_ms = self.exposed_ms.max(counts.exposed_ms);
        self.beat_us = self.beat_us.max(counts.beat_us);
        if worker_seconds > 0.0 {
            self.saving_share += counts.saving_ms / 1e3 / worker_seconds;
        }
    }
}

/// A run in processes.
struct Run<'a> {
    command: &'a TasksCommand,
    running: Running,
    lines: Lines,
    random: Random,
    begun: BTreeSet<u32>,
    /// The number of dead members with which no replica was missing.
    complete: u64,
    /// By dead member: when the first survivor noticed, in milliseconds after the kill.
    noticed: BTreeMap<u32, f64>,
    counts: Vec<Counted>,
    answers: BTreeMap<u32, (Option<u64>, Option<String>, f64)>,
    killed: Vec<KillReport>,
    shown: Instant,
}

impl Run<'_> {
    /// Kills and stops members until the run is over.
    fn drive(&mut self, victims: &[u32]) -> anyhow::Result<()> {
        let members = self.command.members;
        let deadline = Instant::now() + Duration::from_secs(self.command.limit) + GRACE;
        let mut pending = victims.iter().copied();
        let mut stops = self.command.stops;
        let mut stopped: Option<(MemberId, Instant)> = None;
        let mut next = None;
        let mut victim = pending.next();
        let mut killed_ns: BTreeMap<u32, u64> = BTreeMap::new();
        loop {
            self.listen()?;
            for (member, at) in &killed_ns {
                if let Some(noticed) = self.noticed.get_mut(member)
                    && *noticed > 1e9
                {
                    *noticed = (*noticed - *at as f64) / 1e6;
                }
            }
            let is_over = !self.answers.is_empty() || self.running.running() == 0;
            if let Some((member, until)) = stopped
                && (Instant::now() >= until || is_over)
            {
                self.running.resume(member)?;
                self.say(format_args!("{member} goes on"));
                stopped = None;
            }
            if (is_over && stopped.is_none()) || Instant::now() >= deadline {
                return Ok(());
            }
            let has_begun = self.begun.len() + killed_ns.len() >= members;
            let at = match (has_begun, next) {
                (false, _) => None,
                (true, None) => {
                    next = Some(Instant::now() + PAUSE);
                    None
                }
                (true, at) => at,
            };
            let is_repaired = self.complete >= killed_ns.len() as u64;
            if at.is_some_and(|at| Instant::now() >= at) && is_repaired {
                let pause = PAUSE + Duration::from_millis(self.random.below(200));
                next = Some(Instant::now() + pause);
                if let Some(member) = victim.take() {
                    victim = pending.next();
                    if self.running.kill(MemberId(member))? {
                        killed_ns.insert(member, machine_ns());
                        let at_s = self.running.elapsed().as_secs_f64();
                        self.killed.push(KillReport { member, at_s, first_noticed_ms: None });
                        self.say(format_args!("kill -9 of {}", MemberId(member)));
                    }
                } else if stops > 0 && stopped.is_none() {
                    stops -= 1;
                    let member = MemberId(self.random.below(members as u64) as u32);
                    if !killed_ns.contains_key(&member.0) && self.running.stop(member)? {
                        self.say(format_args!("SIGSTOP of {member}"));
                        stopped = Some((member, Instant::now() + STOP));
                    }
                }
            }
            self.show();
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    /// Takes what the members have told.
    fn listen(&mut self) -> anyhow::Result<()> {
        for (member, line) in self.lines.take::<Line>(&self.running)? {
            match line {
                Line::Begins => {
                    self.begun.insert(member);
                }
                Line::News(DeathNews::Noticed { dead, at_ns }) => {
                    self.noticed.entry(dead).or_insert(at_ns as f64);
                }
                Line::News(DeathNews::Complete { dead, .. }) => {
                    self.complete = self.complete.max(dead);
                }
                Line::Counts(counts) => self.counts[member as usize] = counts,
                Line::Answer { answer, error, seconds, counts } => {
                    self.counts[member as usize] = counts;
                    self.answers.insert(member, (answer, error, seconds));
                }
            }
        }
        Ok(())
    }

    fn say(&self, text: std::fmt::Arguments<'_>) {
        let seconds = self.running.elapsed().as_secs_f64();
        say(self.command.json.as_deref(), format_args!("{seconds:>6.2} s  {text}"));
    }

    /// Shows once a second how each member goes on.
    fn show(&mut self) {
        if self.shown.elapsed() < Duration::from_secs(1) {
            return;
        }
        self.shown = Instant::now();
        for (member, counts) in self.counts.iter().enumerate() {
            if self.killed.iter().any(|kill| kill.member == member as u32) {
                continue;
            }
            self.say(format_args!(
                "{:<10} {:>12} forks {:>7} shared {:>6} moved {:>5} run again",
                MemberId(member as u32).to_string(),
                counts.forks,
                counts.shared,
                counts.moved,
                counts.again
            ));
        }
    }
}

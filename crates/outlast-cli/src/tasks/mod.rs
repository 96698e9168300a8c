//! `outlast tasks`: programs of tasks on real or simulated members, of which some are killed or
//! stopped meanwhile; the answer must be right all the same.

mod member;
mod page;
pub(crate) mod programs;
mod run;
mod timeline;

use crate::hosts::EngineArgs;
use crate::quantity::{self, EngineName};
use crate::report::file::{ReportFile, report_file};
use crate::report::{say, write_json};
use crate::usage_error;
use clap::Args;
use member::{Counted, Order};
use outlast::MemberId;
use outlast::sim;
use outlast::store::{self, Store};
use outlast_tasks::Tasks;
use programs::Program;
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use timeline::{Recorded, Timeline};

pub(crate) use member::TasksMember;
pub(crate) use run::measure;

const EXAMPLES: &str = "\
Examples:
  Eight processes count the ways to put 15 queens, and three of them are killed:
      outlast tasks nqueens --n 15 --members 8 --kills 3 --seed 7
  The same program without saving, for comparison:
      outlast tasks nqueens --n 14 --members 2 --plain
  Simulated members, with deaths and stops at any step:
      outlast tasks random --engine sim --members 6 --kills 2 --stops 2 --seed 42
  Three hosts made of this machine, of which one is lost, and a page that shows the run:
      outlast tasks uts --engine mpi --hosts 3 --members 6 --kill-host --report tasks.html

While it runs, each second has a line with a sign for each member: # runs a task, + runs a task that
a dead member had begun, - waits, s is stopped, . is dead.

Exit status: 0 the answer is right at every survivor, 1 otherwise, 2 wrong usage.";

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
    /// How many members to kill, one after the other; the program runs again until all are
    #[arg(long, value_name = "K", default_value_t = 0)]
    kills: usize,
    /// Kill all members of a host at once, with --hosts
    #[arg(long, requires = "hosts", conflicts_with_all = ["kills", "failpoints"])]
    kill_host: bool,
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
    /// Let members die inside steps of the runtime, in builds with the feature `faults`; only shm
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
    /// Write a page with a lane for each member to this file
    #[arg(long, value_name = "FILE", value_parser = report_file)]
    report: Option<ReportFile>,
}

/// The report of a run.
#[derive(Default, Serialize)]
struct TasksReport {
    ok: bool,
    program: &'static str,
    n: u32,
    engine: String,
    members: usize,
    survivors: usize,
    answer: Option<u64>,
    expected: u64,
    /// How many times the program ran: until all kills and stops were done.
    runs: usize,
    seconds: f64,
    /// How long the work would have taken had no worker waited, and no work been lost.
    ideal_seconds: f64,
    kills: usize,
    stops: usize,
    forks: u64,
    shared: u64,
    moved: u64,
    reopened: u64,
    /// Tasks that a worker ran although an earlier worker had begun them.
    again: u64,
    /// The work that was lost with the dead, and so was done again, at most.
    again_ms: f64,
    found: u64,
    diverged: u64,
    poisoned: u64,
    /// The longest work that only a stack knew.
    exposed_ms: f64,
    /// From a death to the opening of a task that the dead member held.
    reopened_ms: Option<Spread>,
    saving_share: f64,
    beat_us: f64,
    seed: u64,
    deaths: Vec<DeathReport>,
    by_member: Vec<Counted>,
    command: String,
    wrong: Vec<String>,
    left_behind: Vec<String>,
}

/// A death that the command has brought about.
#[derive(Clone, Default, Serialize)]
struct DeathReport {
    member: u32,
    at_s: f64,
    step: Option<String>,
    first_noticed_ms: Option<f64>,
    /// How many tasks that the member held were opened again, and when the last of them was.
    reopened: usize,
    reopened_ms: Option<f64>,
    lost_ms: f64,
}

/// Percentiles of a sample.
#[derive(Clone, Copy, Serialize)]
struct Spread {
    p50: f64,
    p99: f64,
    max: f64,
}

impl Spread {
    /// The percentiles of a sample in ascending order; `None` if it is empty.
    fn new(sorted: &[f64]) -> Option<Spread> {
        let at = |per_cent: usize| {
            let rank = (sorted.len() * per_cent).div_ceil(100).max(1) - 1;
            sorted.get(rank).copied()
        };
        Some(Spread { p50: at(50)?, p99: at(99)?, max: *sorted.last()? })
    }
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
        if self.failpoints && self.engine != Engine::Real(EngineName::Shm) {
            usage_error("tasks", "--failpoints: only members on the shm engine die in a step");
        }
        if self.kill_host && self.hosts.is_none_or(|hosts| hosts < 2) {
            usage_error("tasks", "--kill-host needs a second host");
        }
        if self.hosts.is_some() && self.engine == Engine::Sim {
            usage_error("tasks", "--hosts goes with --engine mpi");
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
            engine: self.place(),
            command: self.command_line(n),
            ..TasksReport::default()
        };
        let (report, timeline) = match self.engine {
            Engine::Sim => self.simulate(report),
            Engine::Real(engine) => {
                self.run_processes(EngineArgs { engine, hosts: self.hosts }, report)?
            }
        };
        self.print(&report);
        if let Some(path) = self.json.as_deref() {
            write_json(path, &report)?;
        }
        if let Some(file) = &self.report {
            file.write_text(&page::html(&report, &timeline))?;
        }
        Ok(report.ok)
    }

    /// The engine and the hosts, for people.
    fn place(&self) -> String {
        match (self.engine, self.hosts) {
            (Engine::Sim, _) => "sim".to_string(),
            (Engine::Real(engine), None) => engine.to_string(),
            (Engine::Real(engine), Some(hosts)) => format!("{engine} --hosts {hosts}"),
        }
    }

    /// The command that makes these choices again.
    fn command_line(&self, n: u32) -> String {
        let flag = |is_set: bool, text: &str| if is_set { text.to_string() } else { String::new() };
        format!(
            "outlast tasks {} --n {n} --engine {} --members {}{}{}{} --replicas {}{} --price {} \
             --seed {} --limit {}{}",
            self.program.name(),
            self.place(),
            self.members,
            flag(self.kills > 0, &format!(" --kills {}", self.kills)),
            flag(self.kill_host, " --kill-host"),
            flag(self.stops > 0, &format!(" --stops {}", self.stops)),
            self.replicas,
            flag(self.plain, " --plain"),
            self.price,
            self.seed,
            self.limit,
            flag(self.failpoints, " --failpoints")
        )
    }

    fn order(&self, n: u32) -> Order {
        Order {
            program: self.program,
            n,
            seed: self.seed,
            replicas: self.replicas,
            price: self.price,
            plain: self.plain,
            limit_s: self.limit,
            control: None,
        }
    }

    /// Runs the program under the simulator.
    fn simulate(&self, mut report: TasksReport) -> (TasksReport, Timeline) {
        let order = self.order(report.n);
        let mut options = sim::Options::new(self.members, self.seed);
        options = options.link(sim::Link::of_seed(self.seed));
        options.stack_len = 8 << 20;
        let options = options.random_faults(self.kills, self.stops, 20_000);
        let heard = Rc::new(RefCell::new(Vec::new()));
        let events = Arc::new(Mutex::new(vec![Vec::new(); self.members]));
        let result = sim::run(&options, {
            let (heard, events) = (heard.clone(), events.clone());
            move |job| {
                let small = store::Options::new().replicas(order.replicas).allow_fewer();
                let small = small.partitions(16).expected_keys(1 << 10);
                let Ok(store) = Store::open(&job, small) else { return };
                let (me, events) = (job.me().index(), events.clone());
                let options = order.options().beat_forks(200).events(move |at, event| {
                    let mut all = events.lock().unwrap_or_else(|poison| poison.into_inner());
                    all[me].push(Recorded { at_ns: at.0, event });
                });
                let Ok(tasks) = Tasks::open(&store, options) else { return };
                let began = job.now().0;
                let answer = order.program.run(&tasks, order.n, order.seed);
                let (counts, ended) = (Counted::from(tasks.stats()), job.now().0);
                heard.borrow_mut().push((job.me().0, answer, counts, (began, ended)));
                let _ = tasks.close();
                let _ = store.close();
                let _ = job.leave();
            }
        });
        let heard = heard.take();
        let events = std::mem::take(&mut *events.lock().unwrap_or_else(|one| one.into_inner()));
        let began = heard.iter().map(|one| one.3.0).min().unwrap_or(0);
        let ended = heard.iter().map(|one| one.3.1).max().unwrap_or(began);
        // A member that gave no answer has died, no earlier than its last event.
        let is_silent = |member: &u32| !heard.iter().any(|one| one.0 == *member);
        let last = |member: u32| events[member as usize].last().map_or(began, |one| one.at_ns);
        let silent = (0..self.members as u32).filter(is_silent);
        let deaths: BTreeMap<u32, u64> = silent.map(|member| (member, last(member))).collect();
        let timeline = Timeline::new(&events, (began, ended), &deaths);
        report.seconds = (ended - began) as f64 / 1e9;
        report.stops = result.stops as usize;
        report.kills = result.kills as usize;
        report.runs = 1;
        report.survivors = heard.len();
        let mut counts = vec![Counted::default(); self.members];
        for (member, answer, counted, _) in heard {
            counts[member as usize] = counted;
            match answer {
                Ok(answer) => report.hear(member, answer),
                Err(error) => report.wrong.push(format!("{}: {error}", MemberId(member))),
            }
        }
        report.take(&counts, &timeline);
        if !result.is_ok() {
            report.wrong.push(format!("the run ended as {:?}", result.outcome));
            report.wrong.extend(result.hung.iter().map(ToString::to_string));
            report.wrong.extend(result.panics.iter().map(|panic| panic.message.clone()));
        }
        report.ok = report.wrong.is_empty() && report.answer == Some(report.expected);
        (report, timeline)
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
        let struck = report.kills;
        line(
            report.wrong.is_empty(),
            format!("{} of {} members finished; {struck} died", report.survivors, report.members),
        );
        if struck < self.kills && self.engine != Engine::Sim {
            let text = "the limit came before all kills; --limit allows more time";
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
        if struck > 0 {
            let opened = report.reopened_ms.map_or(String::new(), |spread| {
                format!("; tasks of the dead were open again after at most {:.1} ms", spread.max)
            });
            let text = format!(
                "{} cost at most {:.1} ms of work, which ran again{opened}",
                if struck == 1 { "a death".to_string() } else { format!("{struck} deaths") },
                report.again_ms
            );
            say(json, format_args!("         {text}"));
        }
        for text in report.wrong.iter().chain(&report.left_behind).take(10) {
            say(json, format_args!("         {text}"));
        }
        let runs = match report.runs {
            0 | 1 => String::new(),
            runs => format!(" for {runs} runs"),
        };
        let of_time = if self.engine == Engine::Sim { " of virtual time" } else { "" };
        say(
            json,
            format_args!(
                "         {:.2} s{of_time}{runs}; workers that never wait and lose nothing \
                 would take {:.2} s",
                report.seconds, report.ideal_seconds
            ),
        );
        if let Some(path) = &self.report {
            say(json, format_args!("         the page is in {}", path.path().display()));
        }
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

    /// Takes what the members have counted, and what the events show.
    fn take(&mut self, counts: &[Counted], timeline: &Timeline) {
        let sum = |count: fn(&Counted) -> u64| counts.iter().map(count).sum::<u64>();
        let max = |count: fn(&Counted) -> f64| counts.iter().map(count).fold(0.0, f64::max);
        self.forks = sum(|one| one.forks);
        self.shared = sum(|one| one.shared);
        self.moved = sum(|one| one.moved);
        self.reopened = sum(|one| one.reopened);
        self.again = sum(|one| one.again);
        self.found = sum(|one| one.found);
        self.diverged = sum(|one| one.diverged);
        self.poisoned = sum(|one| one.poisoned);
        self.exposed_ms = max(|one| one.exposed_ms);
        self.beat_us = max(|one| one.beat_us);
        let lived = timeline.lanes.iter().map(|lane| {
            lane.died_ns.unwrap_or(timeline.ended_ns).saturating_sub(timeline.began_ns)
        });
        let lived_ms = lived.sum::<u64>() as f64 / 1e6;
        let saving_ms: f64 = counts.iter().map(|one| one.saving_ms).sum();
        self.saving_share = if lived_ms > 0.0 { saving_ms / lived_ms } else { 0.0 };
        self.again_ms = timeline.lost_ms();
        self.reopened_ms = Spread::new(&timeline.reopened_ms());
        self.ideal_seconds = timeline.ideal_seconds();
        self.by_member = counts.to_vec();
    }
}

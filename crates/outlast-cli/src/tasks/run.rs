//! A run in processes: the kills and stops, what the members report, and what is shown of it.

use super::member::{Counted, Line, Order};
use super::programs::Program;
use super::timeline::{EVENT_LEN, Recorded, Timeline};
use super::{DeathReport, TasksCommand, TasksReport};
use crate::control::{CommandControl, Phase};
use crate::hosts::EngineArgs;
use crate::members::{
    DeathNews, Lines, describe, left_behind, machine_ns, shared_memory_names, show_log,
};
use crate::report::say;
use anyhow::{Context, ensure};
use outlast::launch::{Event as LaunchEvent, Launch, Outcome, Output, Running};
use outlast::sim::Random;
use outlast::{MemberId, failpoint};
use outlast_tasks::{Event, steps};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long the first kill comes after the start of the run, and the least time between two kills.
const PAUSE: Duration = Duration::from_millis(150);
/// How long a stopped member is stopped.
const STOP: Duration = Duration::from_millis(300);
/// How much longer than the deadline of the run the command waits for the members.
const GRACE: Duration = Duration::from_secs(40);
/// How long a run that is measured may take, in seconds.
const LIMIT_S: u64 = 300;
/// How long after a death the command says how many tasks are open again.
const SETTLED: Duration = Duration::from_millis(250);
/// How long a member that was told to die in a step may take to get there.
const ARMED_FOR: Duration = Duration::from_secs(1);

impl TasksCommand {
    /// Runs the program in processes.
    pub(super) fn run_processes(
        &self,
        args: EngineArgs,
        mut report: TasksReport,
    ) -> anyhow::Result<(TasksReport, Timeline)> {
        let before = shared_memory_names();
        let mut random = Random::new(self.seed);
        let victims = self.victims(&mut random);
        let control = CommandControl::new(self.members, 0)?;
        let order = Order { control: Some(control.address()), ..self.order(report.n) };
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
            control,
            first_step: random.below(steps::NAMES.len() as u64) as usize,
            random,
            begun: BTreeMap::new(),
            complete: 0,
            noticed: BTreeMap::new(),
            counts: vec![Counted::default(); self.members],
            answers: BTreeMap::new(),
            deaths: Vec::new(),
            armed: BTreeSet::new(),
            events: vec![Vec::new(); self.members],
            stopped: None,
            ended: BTreeSet::new(),
            shown: Instant::now(),
        };
        let result = run.drive(victims);
        let limit = if result.is_ok() { GRACE } else { Duration::ZERO };
        let outcome = run.running.wait(limit);
        let _ = run.listen();
        show_log(&outcome);
        if let Err(error) = &result {
            report.wrong.push(format!("{error:#}"));
        }
        let timeline = run.judge(&mut report, &outcome);
        drop(run);
        drop(hosts);
        report.left_behind = left_behind(&before, &pids);
        report.stops = self.stops;
        report.ok = report.wrong.is_empty()
            && report.left_behind.is_empty()
            && !outcome.timed_out
            && report.answer == Some(report.expected);
        Ok((report, timeline))
    }

    /// The members to kill, in groups that die together.
    fn victims(&self, random: &mut Random) -> Vec<Vec<u32>> {
        // Inside the user's own mpirun rank 0 is this command as well.
        let first = u32::from(outlast::launch::rank().is_some());
        let mut members: Vec<u32> = (first..self.members as u32).collect();
        if let Some(hosts) = self.hosts.filter(|_| self.kill_host) {
            // mpirun gives the ranks to the hosts in turn.
            let host = random.below(u64::from(hosts)) as u32;
            return vec![members.into_iter().filter(|m| m % u32::from(hosts) == host).collect()];
        }
        let draw = |_| vec![members.swap_remove(random.below(members.len() as u64) as usize)];
        (0..self.kills.min(self.members - first as usize)).map(draw).collect()
    }
}

/// Runs a program in processes on shm, without any fault; returns how many seconds it took.
pub(crate) fn measure(
    program: Program,
    n: u32,
    members: usize,
    plain: bool,
    replicas: usize,
) -> anyhow::Result<f64> {
    let price = 0.01;
    let order =
        Order { program, n, seed: 1, replicas, price, plain, limit_s: LIMIT_S, control: None };
    let mut running = Launch::new(members)
        .program(std::env::current_exe().context("finding this program's own path")?)
        .args(["tasks-member", &serde_json::to_string(&order)?])
        .segment_limit(1 << 30)
        .die_with_launcher(true)
        .output(Output::Capture)
        .start()?;
    let outcome = running.wait(Duration::from_secs(LIMIT_S) + GRACE);
    let expected = program.expected(n, order.seed)?;
    let mut slowest: f64 = 0.0;
    let mut right = 0;
    for (_, line) in Lines::new(members).take::<Line>(&running)? {
        if let Line::Answer { answers, seconds, .. } = line {
            slowest = slowest.max(seconds);
            right += usize::from(answers == [expected]);
        }
    }
    let said = || outcome.members.iter().map(|end| outcome.stderr(end.member)).collect::<String>();
    ensure!(outcome.survivors_ok() && right == members, "{} failed: {}", program.name(), said());
    Ok(slowest)
}

/// A run in processes.
struct Run<'a> {
    command: &'a TasksCommand,
    running: Running,
    lines: Lines,
    control: CommandControl,
    random: Random,
    /// The step in which the first member dies, with `--failpoints`.
    first_step: usize,
    /// When each member began.
    begun: BTreeMap<u32, u64>,
    /// The number of dead members with which no replica was missing.
    complete: u64,
    /// By dead member: when the first survivor noticed.
    noticed: BTreeMap<u32, u64>,
    counts: Vec<Counted>,
    answers: BTreeMap<u32, Answer>,
    deaths: Vec<Death>,
    /// The members that were told to die in a step.
    armed: BTreeSet<u32>,
    /// The events of each member so far.
    events: Vec<Vec<Recorded>>,
    stopped: Option<(MemberId, Instant)>,
    ended: BTreeSet<u32>,
    shown: Instant,
}

/// How a member's run ended.
struct Answer {
    answers: Vec<u64>,
    error: Option<String>,
    seconds: f64,
    at_ns: u64,
}

/// A death that this command has brought about.
struct Death {
    member: u32,
    at_ns: u64,
    /// The step in which the member died, with `--failpoints`.
    step: Option<String>,
    is_told: bool,
}

impl Run<'_> {
    /// Kills and stops members until the run is over.
    fn drive(&mut self, victims: Vec<Vec<u32>>) -> anyhow::Result<()> {
        let members = self.command.members;
        let last_run = Instant::now() + Duration::from_secs(self.command.limit);
        let deadline = last_run + GRACE;
        let mut pending = victims.into_iter();
        let mut group = pending.next();
        let mut stops = self.command.stops;
        let mut next: Option<Instant> = None;
        let mut armed: Option<(u32, Instant)> = None;
        loop {
            self.listen()?;
            let is_over = !self.answers.is_empty() || self.running.running() == 0;
            if let Some((member, until)) = self.stopped
                && (Instant::now() >= until || is_over)
            {
                self.running.resume(member)?;
                self.say(format_args!("{member} goes on"));
                self.stopped = None;
            }
            if let Some((member, since)) = armed
                && (self.ended.contains(&member) || is_over || since.elapsed() > ARMED_FOR)
            {
                self.finish_armed(member)?;
                armed = None;
            }
            if is_over || Instant::now() >= deadline {
                return Ok(());
            }
            let is_done = group.is_none() && armed.is_none() && stops == 0;
            if (is_done && self.stopped.is_none()) || Instant::now() >= last_run {
                self.control.set_phase(Phase::Rest)?;
            }
            let has_begun = self.begun.len() >= members;
            if next.is_none() && has_begun {
                next = Some(Instant::now() + PAUSE);
            }
            let is_repaired = self.complete >= self.deaths.len() as u64 && armed.is_none();
            if next.is_some_and(|at| Instant::now() >= at) && is_repaired {
                next = Some(Instant::now() + PAUSE + self.pause());
                if let Some(victims) = group.take() {
                    group = pending.next();
                    if self.command.failpoints {
                        armed = Some((victims[0], Instant::now()));
                        self.arm(victims[0])?;
                    } else {
                        victims.into_iter().try_for_each(|member| self.kill(member))?;
                    }
                } else if stops > 0 && self.stopped.is_none() {
                    stops -= 1;
                    self.stop()?;
                }
            }
            self.show();
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    fn pause(&mut self) -> Duration {
        Duration::from_millis(self.random.below(200))
    }

    fn kill(&mut self, member: u32) -> anyhow::Result<()> {
        let at_ns = machine_ns();
        if self.running.kill(MemberId(member))? {
            self.die(member, at_ns, None);
            self.say(format_args!("kill -9 of {}", MemberId(member)));
        }
        Ok(())
    }

    fn die(&mut self, member: u32, at_ns: u64, step: Option<String>) {
        self.deaths.push(Death { member, at_ns, step, is_told: false });
    }

    /// Tells a member to die in the next of the runtime's steps.
    fn arm(&mut self, member: u32) -> anyhow::Result<()> {
        self.armed.insert(member);
        let step = (self.first_step + self.deaths.len()) % steps::NAMES.len();
        let after = 1 + self.random.below(12) as u32;
        self.control.order_death(member, step as u32, after)
    }

    /// Records the death of a member that was told to die in a step, or kills it.
    fn finish_armed(&mut self, member: u32) -> anyhow::Result<()> {
        if !self.ended.contains(&member) {
            return self.kill(member);
        }
        let said = self.running.output(MemberId(member)).stderr;
        self.record_step_of(member, &String::from_utf8_lossy(&said));
        Ok(())
    }

    /// Records the death of a member in a step, if its last words name the step.
    fn record_step_of(&mut self, member: u32, said: &str) {
        let said = said.lines().rev().find_map(|line| line.strip_prefix(failpoint::LAST_WORDS));
        let words = said.and_then(|said| said.strip_suffix(" ns")?.rsplit_once(" at "));
        if let Some((step, at)) = words {
            let at_ns = at.parse().unwrap_or_else(|_| machine_ns());
            self.die(member, at_ns, Some(step.to_string()));
            self.say(format_args!("{} died in step {step}", MemberId(member)));
        }
    }

    /// Records the deaths in steps whose last words came late: the end of a process may be known
    /// before its output is read, and a member may die between the look at its end and the kill.
    fn record_late_words(&mut self, outcome: &Outcome) {
        for end in outcome.members.iter().filter(|end| !end.is_ok()) {
            let member = end.member.0;
            let is_recorded = self.deaths.iter().any(|death| death.member == member);
            if self.armed.contains(&member) && !is_recorded {
                self.record_step_of(member, &outcome.stderr(end.member));
            }
        }
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        let member = MemberId(self.random.below(self.command.members as u64) as u32);
        let is_dead = self.deaths.iter().any(|death| death.member == member.0);
        if !is_dead && self.running.stop(member)? {
            self.say(format_args!("SIGSTOP of {member}"));
            self.stopped = Some((member, Instant::now() + STOP));
        }
        Ok(())
    }

    /// Takes what the members have told.
    fn listen(&mut self) -> anyhow::Result<()> {
        for (member, line) in self.lines.take::<Line>(&self.running)? {
            match line {
                Line::Begins { at_ns } => {
                    self.begun.insert(member, at_ns);
                }
                Line::News(DeathNews::Noticed { dead, at_ns }) => {
                    self.noticed.entry(dead).or_insert(at_ns);
                }
                Line::News(DeathNews::Complete { dead, .. }) => {
                    self.complete = self.complete.max(dead);
                }
                Line::Counts(counts) => self.counts[member as usize] = counts,
                Line::Answer { answers, error, seconds, at_ns, counts } => {
                    self.counts[member as usize] = counts;
                    self.answers.insert(member, Answer { answers, error, seconds, at_ns });
                }
            }
        }
        for event in self.running.poll_events() {
            if let LaunchEvent::Ended(end) = event {
                self.ended.insert(end.member.0);
            }
        }
        for (member, events) in self.events.iter_mut().enumerate() {
            let position = (events.len() * EVENT_LEN) as u64;
            let bytes = self.control.record_from(member, 0, position)?;
            events.extend(Recorded::decode_all(&bytes));
        }
        self.tell_reopened();
        Ok(())
    }

    /// Says how many tasks of a dead member are open again.
    fn tell_reopened(&mut self) {
        let now = machine_ns();
        for index in 0..self.deaths.len() {
            let Death { member, at_ns, is_told, .. } = self.deaths[index];
            if is_told || now.saturating_sub(at_ns) < SETTLED.as_nanos() as u64 {
                continue;
            }
            self.deaths[index].is_told = true;
            let events = self.events.iter().flatten();
            let opened = events
                .filter(|one| one.event == Event::Reopened { dead: MemberId(member) })
                .map(|one| one.at_ns.saturating_sub(at_ns));
            let (count, last) = opened.fold((0, 0), |(count, last), at| (count + 1, at.max(last)));
            let member = MemberId(member);
            match count {
                0 => self.say(format_args!("{member} held no task")),
                _ => self.say(format_args!(
                    "{count} tasks of {member} are open again, the last after {:.1} ms",
                    last as f64 / 1e6
                )),
            }
        }
    }

    fn say(&self, text: std::fmt::Arguments<'_>) {
        let seconds = self.running.elapsed().as_secs_f64();
        say(self.command.json.as_deref(), format_args!("{seconds:>6.2} s  {text}"));
    }

    /// Shows once a second how the members go on: a sign for each, and the sums of their counts.
    fn show(&mut self) {
        if self.shown.elapsed() < Duration::from_secs(1) || self.begun.is_empty() {
            return;
        }
        self.shown = Instant::now();
        let sign = |member: usize| {
            let is_dead = self.deaths.iter().any(|death| death.member == member as u32);
            let is_stopped = self.stopped.is_some_and(|(stopped, _)| stopped.index() == member);
            let mut events = self.events[member].iter().rev();
            let doing = events.find(|one| matches!(one.event, Event::Runs { .. } | Event::Waits));
            match doing.map(|one| one.event) {
                _ if is_dead => '.',
                _ if is_stopped => 's',
                Some(Event::Runs { is_again: true }) => '+',
                Some(Event::Runs { .. }) => '#',
                _ => '-',
            }
        };
        let signs: String = (0..self.command.members).map(sign).collect();
        let sum = |count: fn(&Counted) -> u64| self.counts.iter().map(count).sum::<u64>();
        let beat = self.counts.iter().map(|counts| counts.beat_us).fold(0.0, f64::max);
        self.say(format_args!(
            "{signs}  {} forks  {} shared  {} moved  {} run again  beat {:.2} ms",
            short(sum(|counts| counts.forks)),
            sum(|counts| counts.shared),
            sum(|counts| counts.moved),
            sum(|counts| counts.again),
            beat / 1e3
        ));
    }

    /// Fills the report in.
    fn judge(&mut self, report: &mut TasksReport, outcome: &Outcome) -> Timeline {
        self.record_late_words(outcome);
        for end in outcome.members.iter().filter(|end| !end.is_ok()) {
            if !self.deaths.iter().any(|death| death.member == end.member.0) {
                report.wrong.push(describe(end, &outcome.stderr(end.member)));
            }
        }
        for (&member, Answer { answers, error, seconds, .. }) in &self.answers {
            report.seconds = report.seconds.max(*seconds);
            report.runs = report.runs.max(answers.len());
            answers.iter().for_each(|&answer| report.hear(member, answer));
            if let Some(error) = error {
                report.wrong.push(format!("{}: {error}", MemberId(member)));
            }
        }
        let began = self.begun.values().copied().min().unwrap_or(0);
        let ended = self.answers.values().map(|one| one.at_ns).max().unwrap_or(began);
        let deaths = self.deaths.iter().map(|death| (death.member, death.at_ns)).collect();
        let timeline = Timeline::new(&self.events, (began, ended), &deaths);
        report.take(&self.counts, &timeline);
        report.kills = self.deaths.len();
        report.deaths =
            self.deaths.iter().map(|death| self.death_report(death, &timeline)).collect();
        report.survivors = outcome.survivors().filter(|end| end.is_ok()).count();
        timeline
    }

    fn death_report(&self, death: &Death, timeline: &Timeline) -> DeathReport {
        let since = |at_ns: u64| at_ns.saturating_sub(death.at_ns) as f64 / 1e6;
        let reopened = timeline.reopened.get(&death.member);
        DeathReport {
            member: death.member,
            at_s: death.at_ns.saturating_sub(timeline.began_ns) as f64 / 1e9,
            step: death.step.clone(),
            first_noticed_ms: self.noticed.get(&death.member).map(|&at_ns| since(at_ns)),
            reopened: reopened.map_or(0, Vec::len),
            reopened_ms: reopened.and_then(|all| all.iter().max()).map(|&at_ns| since(at_ns)),
            lost_ms: timeline.lanes[death.member as usize].lost_ns as f64 / 1e6,
        }
    }
}

/// A number for people, short.
fn short(number: u64) -> String {
    match number {
        0..10_000 => number.to_string(),
        10_000..10_000_000 => format!("{} k", number / 1_000),
        _ => format!("{:.1} M", number as f64 / 1e6),
    }
}

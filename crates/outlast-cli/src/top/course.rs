//! The course of a job, as an observer sees it: rates between two looks, and what happened.
//!
//! Members publish counts that only grow, so a rate is the difference of two looks. Figures of
//! members that are dead do not count: their pages are the last that they wrote.

use super::process::{Process, printable};
use outlast::MemberId;
use outlast::observe::{CallTimes, Figures, Look, ObservedMember};
use serde::Serialize;
use std::collections::VecDeque;
use std::time::Duration;

/// The time over which rates are computed.
const RATE_WINDOW: Duration = Duration::from_secs(1);
/// The time over which latencies are computed: they come from a sample, which must not be small.
const LATENCY_WINDOW: Duration = Duration::from_secs(5);
/// How many rates of each member are kept for its history.
const HISTORY: usize = 64;
/// How many events are kept.
const EVENTS: usize = 200;
/// A member with an open store writes a page ten times a second. A page that is older than this
/// says that the background of its member does not run.
const SILENT_AFTER: Duration = Duration::from_millis(1500);

/// A look at a job and at the processes of its members.
#[derive(Clone, Debug)]
pub(super) struct Observation {
    /// When it was made, since the course began.
    pub(super) at: Duration,
    pub(super) look: Look,
    /// The process of each member; `None` if it is not on this host, or gone.
    pub(super) processes: Vec<Option<Process>>,
}

/// What a member does, as an observer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// It is dead.
    Dead,
    /// Its process has ended, and the members have not declared it dead yet.
    Ended,
    /// Its process is stopped.
    Stopped,
    /// Its process lives, but its background has not written a page for a while.
    Silent,
    /// Its process is starting.
    Joining,
    Running,
    /// It has left on purpose.
    Left,
    /// It has no process on this host: it is on another host, or has not started.
    Absent,
}

impl State {
    pub(super) fn name(self) -> &'static str {
        match self {
            State::Dead => "dead",
            State::Ended => "ended",
            State::Stopped => "stopped",
            State::Silent => "silent",
            State::Joining => "joining",
            State::Running => "running",
            State::Left => "left",
            State::Absent => "absent",
        }
    }

    /// Whether the member has a process here that takes part in the job.
    pub(super) fn is_living(self) -> bool {
        matches!(self, State::Stopped | State::Silent | State::Joining | State::Running)
    }
}

/// How long calls took in the last seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Times {
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// How many calls were timed: every 64th.
    pub(super) samples: u64,
}

/// A member at the last look.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MemberRow {
    pub(super) member: u32,
    pub(super) pid: Option<u32>,
    pub(super) state: State,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) domain: String,
    /// Processors in use: 1 is a whole processor.
    pub(super) cpu: Option<f64>,
    pub(super) resident_bytes: u64,
    pub(super) segment_bytes: u64,
    /// How long ago it wrote its page; `None` if it has no page.
    pub(super) page_age_s: Option<f64>,
    pub(super) operations: u64,
    pub(super) operations_per_s: Option<f64>,
    pub(super) transactions: u64,
    pub(super) transactions_per_s: Option<f64>,
    pub(super) put: Option<Times>,
    pub(super) get: Option<Times>,
    pub(super) replicas_missing: u64,
    pub(super) partitions_to_visit: u64,
    pub(super) replicas_repaired: u64,
    /// Whether writes are frozen at the moment, for a snapshot.
    pub(super) is_frozen: bool,
    /// The operations a second of the last looks, the oldest first.
    #[serde(skip)]
    pub(super) history: Vec<u64>,
}

/// The job at the last look.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Moment {
    pub(super) job: u64,
    pub(super) command: String,
    pub(super) age_s: f64,
    pub(super) has_ended: bool,
    pub(super) running: usize,
    pub(super) stopped: usize,
    pub(super) dead: usize,
    pub(super) left: usize,
    pub(super) absent: usize,
    pub(super) replicas: u64,
    pub(super) operations_per_s: f64,
    pub(super) transactions_per_s: f64,
    pub(super) transactions_open: u64,
    pub(super) snapshots: u64,
    pub(super) is_frozen: bool,
    pub(super) segment_bytes: u64,
    pub(super) resident_bytes: u64,
    pub(super) replicas_missing: u64,
    pub(super) partitions_to_visit: u64,
    /// The replicas that were made again since the course began.
    pub(super) replicas_repaired: u64,
    /// While replicas are missing: which part of them was made again, from 0 to 1.
    pub(super) repair_progress: Option<f64>,
    pub(super) put: Option<Times>,
    pub(super) get: Option<Times>,
    pub(super) members: Vec<MemberRow>,
}

/// What happened, and when, since the job began.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Event {
    pub(super) at_s: f64,
    pub(super) what: String,
    /// Whether a member or a replica is lost by it.
    #[serde(skip)]
    pub(super) is_bad: bool,
}

/// A repair that goes on.
#[derive(Clone, Copy, Debug)]
struct Repairing {
    since: Duration,
    /// How many replicas had been made again before.
    repaired: u64,
}

/// The course of a job.
pub(super) struct Course {
    job: u64,
    command: String,
    past: VecDeque<Observation>,
    history: Vec<VecDeque<u64>>,
    pub(super) events: VecDeque<Event>,
    /// How many events there were.
    pub(super) events_seen: usize,
    repairing: Option<Repairing>,
    repaired_before: u64,
    has_ended: bool,
}

impl Course {
    pub(super) fn new(job: u64, command: String) -> Course {
        Course {
            job,
            command,
            past: VecDeque::new(),
            history: Vec::new(),
            events: VecDeque::new(),
            events_seen: 0,
            repairing: None,
            repaired_before: 0,
            has_ended: false,
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Records an event now.
    pub(super) fn note(&mut self, what: String, is_bad: bool) {
        let at_s = self.past.back().map_or(0.0, |last| last.look.age.as_secs_f64());
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(Event { at_s, what, is_bad });
        self.events_seen += 1;
    }

    /// Adds a look, and records what has happened since the last.
    pub(super) fn add(&mut self, observation: Observation) {
        let before = self.past.back().cloned();
        self.past.push_back(observation);
        // The first of these is the beginning of the longer window.
        while self.past.get(1).is_some_and(|second| {
            self.past.back().is_some_and(|last| last.at.saturating_sub(second.at) > LATENCY_WINDOW)
        }) {
            self.past.pop_front();
        }
        let Some(now) = self.past.back().cloned() else { return };
        let members = now.look.members.len();
        self.history.resize(members, VecDeque::new());
        for member in 0..members {
            let rate = self.rate(member, |figures| figures.operations).unwrap_or(0.0);
            let history = &mut self.history[member];
            if history.len() == HISTORY {
                history.pop_front();
            }
            history.push_back(rate as u64);
        }
        match before {
            None => self.begin(&now),
            Some(before) => self.compare(&before, &now),
        }
    }

    fn begin(&mut self, now: &Observation) {
        self.repaired_before = repaired(now);
        for death in &now.look.dead {
            let how = if death.has_left { "had left" } else { "had died" };
            self.note(format!("member {} {how} before", death.member.0), !death.has_left);
        }
    }

    fn compare(&mut self, before: &Observation, now: &Observation) {
        for death in now.look.dead.iter().skip(before.look.dead.len()) {
            let how = if death.has_left { "left" } else { "died" };
            self.note(format!("member {} {how}", death.member.0), !death.has_left);
            let (since, repaired) = (now.at, repaired(before));
            self.repairing.get_or_insert(Repairing { since, repaired });
        }
        for member in 0..now.look.members.len().min(before.look.members.len()) {
            match (state(before, member), state(now, member)) {
                (old, State::Stopped) if old != State::Stopped => {
                    self.note(format!("member {member} is stopped"), true);
                }
                (State::Stopped, State::Running) => {
                    self.note(format!("member {member} goes on"), false);
                }
                (State::Absent | State::Joining, State::Running) => {
                    self.note(format!("member {member} has joined"), false);
                }
                _ => {}
            }
        }
        let cuts =
            |observation: &Observation| living(observation).map(|figures| figures.cuts).max();
        if cuts(now).unwrap_or(0) > cuts(before).unwrap_or(0) {
            self.note("a consistent cut was made for a snapshot".into(), false);
        }
        self.follow_repair(now);
        if !self.has_ended && has_ended(now) {
            self.has_ended = true;
            self.note("the job has ended".into(), false);
        }
    }

    fn follow_repair(&mut self, now: &Observation) {
        let missing: u64 = living(now).map(|figures| figures.replicas_missing).sum();
        let to_visit: u64 = living(now).map(|figures| figures.partitions_to_visit).sum();
        if self.repairing.is_none() && missing > 0 {
            self.repairing = Some(Repairing { since: now.at, repaired: repaired(now) });
        }
        let Some(repairing) = self.repairing else { return };
        // A page from before the death says nothing about the repair after it.
        let epoch = now.look.dead.len() as u64;
        let is_known = living(now).all(|figures| figures.epoch >= epoch);
        if !is_known || missing > 0 || to_visit > 0 {
            return;
        }
        self.repairing = None;
        let made = repaired(now).saturating_sub(repairing.repaired);
        if made > 0 && !has_ended(now) {
            let took = super::screen::time(now.at.saturating_sub(repairing.since));
            let took = if now.at > repairing.since { format!(" within {took}") } else { "".into() };
            self.note(format!("all replicas are back: {made} made again{took}"), false);
        }
    }

    /// The look from which rates are computed: the newest that is old enough, or the oldest.
    fn reference(&self, window: Duration) -> Option<(&Observation, &Observation)> {
        let last = self.past.back()?;
        let is_old = |past: &&Observation| last.at.saturating_sub(past.at) >= window;
        let first = self.past.iter().rev().find(is_old).or(self.past.front())?;
        (first.at < last.at).then_some((first, last))
    }

    /// A count of a living member as a rate.
    fn rate(&self, member: usize, count: impl Fn(&Figures) -> u64) -> Option<f64> {
        let (first, last) = self.reference(RATE_WINDOW)?;
        let page = |observation: &Observation| {
            let page = observation.look.members.get(member)?.page.as_ref();
            page.map(|(age, figures)| (age.as_secs_f64(), count(figures)))
        };
        if !state(last, member).is_living() {
            return None;
        }
        let ((age_before, before), (age, now)) = (page(first)?, page(last)?);
        // The pages have times of their own, which are exact.
        let seconds = last.at.saturating_sub(first.at).as_secs_f64() + age_before - age;
        Some(if seconds > 0.0 { now.saturating_sub(before) as f64 / seconds } else { 0.0 })
    }

    /// The calls of members in the longer window.
    fn calls(&self, member: usize, of: impl Fn(&Figures) -> &CallTimes) -> Option<CallTimes> {
        let (first, last) = self.reference(LATENCY_WINDOW)?;
        let page = |observation: &'_ Observation| {
            let page = observation.look.members.get(member)?.page.clone();
            page.map(|(_, figures)| of(&figures).clone())
        };
        let (now, before) = (page(last)?, page(first).unwrap_or_default());
        state(last, member).is_living().then(|| now.since(&before))
    }

    /// The job at the last look; `None` before the first.
    pub(super) fn moment(&self) -> Option<Moment> {
        let last = self.past.back()?;
        let mut all = (CallTimes::default(), CallTimes::default());
        let mut members = Vec::new();
        for (index, observed) in last.look.members.iter().enumerate() {
            let (put, get) = (self.calls(index, |f| &f.put), self.calls(index, |f| &f.get));
            put.iter().for_each(|times| all.0.add(times));
            get.iter().for_each(|times| all.1.add(times));
            members.push(self.row(last, index, observed, (put, get)));
        }
        let count = |wanted: &[State]| {
            members.iter().filter(|member| wanted.contains(&member.state)).count()
        };
        let sum = |of: fn(&MemberRow) -> f64| members.iter().map(of).sum::<f64>();
        let total = |of: fn(&Figures) -> u64| living(last).map(of).sum::<u64>();
        let replicas_missing = total(|figures| figures.replicas_missing);
        let progress = self.repairing.map(|repairing| {
            let made = repaired(last).saturating_sub(repairing.repaired);
            made as f64 / (made + replicas_missing).max(1) as f64
        });
        Some(Moment {
            job: self.job,
            command: self.command.clone(),
            age_s: last.look.age.as_secs_f64(),
            has_ended: self.has_ended,
            running: count(&[State::Running, State::Silent, State::Joining]),
            stopped: count(&[State::Stopped]),
            dead: count(&[State::Dead, State::Ended]),
            left: count(&[State::Left]),
            absent: count(&[State::Absent]),
            replicas: living(last).map(|figures| figures.replicas).max().unwrap_or(0),
            operations_per_s: sum(|row| row.operations_per_s.unwrap_or(0.0)),
            transactions_per_s: sum(|row| row.transactions_per_s.unwrap_or(0.0)),
            transactions_open: total(|figures| figures.transactions_open),
            snapshots: living(last).map(|figures| figures.cuts).max().unwrap_or(0),
            is_frozen: living(last).any(|figures| figures.frozen > 0),
            segment_bytes: members.iter().map(|row| row.segment_bytes).sum(),
            resident_bytes: members.iter().map(|row| row.resident_bytes).sum(),
            replicas_missing,
            partitions_to_visit: total(|figures| figures.partitions_to_visit),
            replicas_repaired: repaired(last).saturating_sub(self.repaired_before),
            repair_progress: progress.filter(|_| !self.has_ended),
            put: times(&all.0),
            get: times(&all.1),
            members,
        })
    }

    fn row(
        &self,
        last: &Observation,
        index: usize,
        observed: &ObservedMember,
        (put, get): (Option<CallTimes>, Option<CallTimes>),
    ) -> MemberRow {
        let state = state(last, index);
        let figures = observed.page.as_ref().map(|(_, figures)| figures);
        let living = figures.filter(|_| state.is_living());
        let process = last.processes.get(index).copied().flatten();
        let process = process.filter(|_| state.is_living());
        let cpu = self.reference(RATE_WINDOW).and_then(|(first, last)| {
            let before = first.processes.get(index).copied().flatten()?;
            let seconds = last.at.saturating_sub(first.at).as_secs_f64();
            Some(process?.cpu_ns.saturating_sub(before.cpu_ns) as f64 / 1e9 / seconds)
        });
        MemberRow {
            member: observed.member.0,
            pid: observed.pid,
            state,
            domain: printable(&observed.domain),
            cpu,
            resident_bytes: process.map_or(0, |process| process.resident),
            segment_bytes: if state.is_living() { observed.segment_len } else { 0 },
            page_age_s: observed.page.as_ref().map(|(age, _)| age.as_secs_f64()),
            operations: figures.map_or(0, |figures| figures.operations),
            operations_per_s: self.rate(index, |figures| figures.operations),
            transactions: figures.map_or(0, |figures| figures.transactions),
            transactions_per_s: self.rate(index, |figures| figures.transactions),
            put: put.as_ref().and_then(times),
            get: get.as_ref().and_then(times),
            replicas_missing: living.map_or(0, |figures| figures.replicas_missing),
            partitions_to_visit: living.map_or(0, |figures| figures.partitions_to_visit),
            replicas_repaired: figures.map_or(0, |figures| figures.replicas_repaired),
            is_frozen: living.is_some_and(|figures| figures.frozen > 0),
            history: self.history.get(index).map_or(Vec::new(), |h| h.iter().copied().collect()),
        }
    }
}

fn times(calls: &CallTimes) -> Option<Times> {
    let us = |percent| calls.percentile(percent).map(|time| time.as_nanos() as f64 / 1e3);
    Some(Times { p50_us: us(50)?, p99_us: us(99)?, samples: calls.samples() })
}

/// The state of a member at a look.
pub(super) fn state(observation: &Observation, member: usize) -> State {
    let Some(observed) = observation.look.members.get(member) else { return State::Absent };
    if let Some(death) = observation.look.death(MemberId(member as u32)) {
        return if death.has_left { State::Left } else { State::Dead };
    }
    if observed.pid.is_none() {
        return State::Absent;
    }
    let has_store = |(_, figures): &&(Duration, Figures)| figures.stores > 0;
    let page = observed.page.as_ref().filter(has_store);
    let is_silent = page.is_some_and(|(age, _)| *age > SILENT_AFTER);
    match observation.processes.get(member).copied().flatten() {
        Some(process) if process.is_stopped() => State::Stopped,
        Some(process) if process.has_ended() => State::Ended,
        // A process of another pid namespace has another number here, but it writes its page.
        None if page.is_none() || is_silent => State::Ended,
        _ if is_silent => State::Silent,
        _ if observed.has_joined => State::Running,
        _ => State::Joining,
    }
}

/// The pages of the members that live, at a look.
fn living(observation: &Observation) -> impl Iterator<Item = &Figures> {
    let members = observation.look.members.iter().enumerate();
    let living = members.filter(|(member, _)| state(observation, *member).is_living());
    living.filter_map(|(_, member)| member.page.as_ref().map(|(_, figures)| figures))
}

/// The replicas that all members have made again, the dead included.
fn repaired(observation: &Observation) -> u64 {
    let pages = observation.look.members.iter().filter_map(|member| member.page.as_ref());
    pages.map(|(_, figures)| figures.replicas_repaired).sum()
}

/// Whether no process of the job is left on this host.
fn has_ended(observation: &Observation) -> bool {
    let members = &observation.look.members;
    let is_over = |member: usize| {
        let state = state(observation, member);
        !state.is_living() && state != State::Absent
    };
    observation.look.has_ended()
        || (members.iter().any(|member| member.pid.is_some())
            && (0..members.len()).all(|m| members[m].pid.is_none() || is_over(m)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use outlast::observe::ObservedDeath;

    const RUNS: Process = Process { state: 'S', cpu_ns: 0, resident: 3 << 20 };

    /// A look at a job in which each member has made this many operations.
    pub(in crate::top) fn observation(at_ms: u64, operations: &[u64]) -> Observation {
        let member = |(number, &operations): (usize, &u64)| ObservedMember {
            member: MemberId(number as u32),
            pid: Some(1000 + number as u32),
            has_joined: true,
            domain: String::new(),
            segment_len: 1 << 20,
            page: Some((
                Duration::from_millis(20),
                Figures { stores: 1, replicas: 3, operations, ..Figures::default() },
            )),
        };
        Observation {
            at: Duration::from_millis(at_ms),
            look: Look {
                regulars: operations.len(),
                spares: 0,
                segment_limit: 1 << 30,
                age: Duration::from_millis(at_ms + 5000),
                members: operations.iter().enumerate().map(member).collect(),
                dead: Vec::new(),
            },
            processes: vec![Some(Process { cpu_ns: at_ms * 500_000, ..RUNS }); operations.len()],
        }
    }

    pub(in crate::top) fn kill(observation: &mut Observation, member: u32) {
        observation.look.dead.push(ObservedDeath { member: MemberId(member), has_left: false });
        observation.processes[member as usize] = None;
    }

    fn figures(observation: &mut Observation, member: usize) -> &mut Figures {
        &mut observation.look.members[member].page.as_mut().expect("a page").1
    }

    fn said(course: &Course) -> Vec<&str> {
        course.events.iter().map(|event| event.what.as_str()).collect()
    }

    #[test]
    fn rates_are_those_of_the_last_second() {
        let mut course = Course::new(7, "program".into());
        assert!(course.moment().is_none());
        course.add(observation(0, &[0, 500]));
        let moment = course.moment().expect("a look");
        assert_eq!((moment.operations_per_s, moment.members[0].operations_per_s), (0.0, None));
        course.add(observation(1000, &[100, 500]));
        course.add(observation(2000, &[400, 500]));
        let moment = course.moment().expect("looks");
        assert_eq!(moment.members[0].operations_per_s, Some(300.0));
        assert_eq!(moment.members[1].operations_per_s, Some(0.0));
        assert_eq!(moment.members[0].cpu, Some(0.5));
        assert_eq!((moment.operations_per_s, moment.running, moment.dead), (300.0, 2, 0));
        assert_eq!(moment.members[0].history, [0, 100, 300]);
        // A store was closed: its count is gone.
        course.add(observation(3000, &[5, 500]));
        assert_eq!(course.moment().expect("looks").operations_per_s, 0.0);
    }

    #[test]
    fn a_death_and_its_repair_are_told_as_they_happen() {
        let mut course = Course::new(7, "program".into());
        course.add(observation(0, &[1, 1, 1]));
        let mut died = observation(100, &[2, 2, 2]);
        kill(&mut died, 1);
        course.add(died.clone());
        // The pages are from before the death.
        assert_eq!(said(&course), ["member 1 died"]);
        assert_eq!(course.moment().expect("looks").repair_progress, Some(0.0));
        (died.at, died.look.age) = (Duration::from_millis(200), Duration::from_millis(5200));
        for member in [0, 2] {
            let figures = figures(&mut died, member);
            (figures.epoch, figures.replicas_missing, figures.replicas_repaired) = (1, 5, 15);
        }
        course.add(died.clone());
        let moment = course.moment().expect("looks");
        assert_eq!((moment.replicas_missing, moment.repair_progress), (10, Some(0.75)));
        died.at = Duration::from_millis(300);
        for member in [0, 2] {
            figures(&mut died, member).replicas_missing = 0;
            figures(&mut died, member).replicas_repaired = 20;
        }
        course.add(died);
        let told = ["member 1 died", "all replicas are back: 40 made again within 200 ms"];
        assert_eq!(said(&course), told);
        let moment = course.moment().expect("looks");
        assert_eq!((moment.repair_progress, moment.dead, moment.running), (None, 1, 2));
        assert_eq!(moment.members[1].operations_per_s, None);
    }

    #[test]
    fn stopped_silent_and_ended_members_are_told_apart() {
        let mut look = observation(0, &[1, 1, 1, 1, 1]);
        look.processes[0] = Some(Process { state: 'T', ..RUNS });
        look.look.members[1].page.as_mut().expect("a page").0 = Duration::from_secs(9);
        look.processes[2] = None;
        look.look.members[2].page = None;
        look.look.members[3].pid = None;
        let states: Vec<State> = (0..5).map(|member| state(&look, member)).collect();
        let expected = [State::Stopped, State::Silent, State::Ended, State::Absent, State::Running];
        assert_eq!(states, expected);
        assert!(!has_ended(&look));
        for member in [0, 1, 4] {
            kill(&mut look, member);
        }
        assert!(has_ended(&look), "only a member of another host is left");
        let mut course = Course::new(7, "program".into());
        course.add(observation(0, &[1, 1]));
        let mut stopped = observation(100, &[1, 1]);
        stopped.processes[1] = Some(Process { state: 'T', ..RUNS });
        course.add(stopped);
        course.add(observation(200, &[1, 1]));
        assert_eq!(said(&course), ["member 1 is stopped", "member 1 goes on"]);
        assert!(!course.has_ended());
    }

    #[test]
    fn the_end_of_a_job_is_told_once() {
        let mut course = Course::new(7, "program".into());
        course.add(observation(0, &[1]));
        let mut ended = observation(100, &[1]);
        kill(&mut ended, 0);
        course.add(ended.clone());
        course.add(ended);
        assert_eq!(said(&course), ["member 0 died", "the job has ended"]);
        assert!(course.has_ended());
    }
}

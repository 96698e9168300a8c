//! A run of the demo: the kills, what the members report, and what is shown of it.

use super::rows::{Rows, Style};
use super::{Demo, DemoLine, HUNG_AFTER, KILLS_AT, KillReport, NOTE_LEN, REPLICAS, WORK};
use crate::control::{CommandControl, Phase};
use crate::members::{DeathNews, Lines, describe, machine_ns};
use crate::report::say;
use crate::top::{View, Wish, catch_signals};
use anyhow::{bail, ensure};
use outlast::MemberId;
use outlast::launch::{Event, Running};
use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What the members have reported so far.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) open: BTreeSet<u32>,
    /// When each survivor noticed each death, by survivor and dead member.
    pub(super) noticed: BTreeMap<(u32, u32), u64>,
    /// By the number of dead members: when each survivor found no replica missing.
    pub(super) complete: BTreeMap<u64, BTreeMap<u32, u64>>,
    pub(super) rests: BTreeSet<u32>,
    pub(super) read_back: BTreeMap<u32, (u64, Vec<String>)>,
}

impl Heard {
    /// The first and the last of the survivors' times, in milliseconds since `at_ns`; `None` if a
    /// time is missing.
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
pub(super) struct DemoRun<'a> {
    pub(super) demo: &'a Demo,
    pub(super) running: Running,
    pub(super) lines: Lines,
    pub(super) heard: Heard,
    pub(super) control: CommandControl,
    /// When the members began to write; `None` before and after that.
    began: Option<Instant>,
    rows: Rows,
    /// When the rows were drawn last, and how many there are on the terminal.
    drawn: Option<Instant>,
    height: usize,
    /// With `--watch`: the live view, until the user quits it.
    view: Option<View>,
    /// The lines that are printed when the view is closed.
    held: Vec<String>,
    /// With `--watch`: whether a signal asks for the end.
    is_asked_to_end: Arc<AtomicBool>,
}

/// How often the rows are drawn.
const FRAME: Duration = Duration::from_millis(50);

impl<'a> DemoRun<'a> {
    pub(super) fn new(
        demo: &'a Demo,
        running: Running,
        lines: Lines,
        control: CommandControl,
    ) -> DemoRun<'a> {
        let rows = Rows { length: WORK, ..Rows::default() };
        let heard = Heard::default();
        DemoRun {
            demo,
            running,
            lines,
            heard,
            control,
            began: None,
            rows,
            drawn: None,
            height: 0,
            view: None,
            held: Vec::new(),
            is_asked_to_end: Arc::default(),
        }
    }

    /// Shows the run in the live view.
    pub(super) fn open_view(&mut self) -> anyhow::Result<()> {
        self.is_asked_to_end = catch_signals()?;
        let first = self.running.pids().first().copied();
        self.view = first.map(View::of_process).transpose()?;
        Ok(())
    }

    /// Closes the live view, and prints what was said meanwhile.
    pub(super) fn close_view(&mut self) {
        if self.view.take().is_some() {
            self.held.drain(..).for_each(|line| say(self.demo.json.as_deref(), line));
        }
    }

    /// Draws the live view, if it is open.
    fn watch(&mut self) -> anyhow::Result<()> {
        let wish = self.view.as_mut().map_or(Ok(Wish::GoOn), View::tick)?;
        if wish != Wish::GoOn {
            self.close_view();
        }
        let is_interrupted =
            wish == Wish::Interrupt || self.is_asked_to_end.load(Ordering::Relaxed);
        ensure!(!is_interrupted, "interrupted; the members are ended");
        Ok(())
    }

    /// Drives the members through the demo, and adds a report for each kill.
    pub(super) fn run(&mut self, kills: &mut Vec<KillReport>) -> anyhow::Result<()> {
        let members = self.demo.members;
        let pids = self.running.pids();
        let list = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        self.line(format_args!("started {members} processes: pids {list}"));
        self.wait_for("open the store", |heard| heard.open.len() == members)?;
        self.began = Some(Instant::now());
        let began = Instant::now();
        self.line(format_args!(
            "all members write to the store; each value has {REPLICAS} replicas"
        ));

        // The lowest member dies too: no member is special, except that inside the user's own
        // mpirun rank 0 is this command as well.
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
            self.rows.kills.insert(victim, began.elapsed());
            self.rows.repairs.push((began.elapsed(), None));
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
            self.wait_for("bring the replicas back", |heard| {
                let said = heard.complete.get(&dead);
                said.is_some_and(|said| survivors.iter().all(|member| said.contains_key(member)))
            })?;
            if let Some((_, end)) = self.rows.repairs.last_mut() {
                *end = Some(began.elapsed());
            }
            let back = |member| self.heard.complete.get(&dead)?.get(&member);
            let back = Heard::since(at_ns, &survivors, back).map(|(_, all)| all);
            if let Some(back) = back {
                let replicas = REPLICAS.min(survivors.len());
                self.line(format_args!(
                    "{replicas} replicas of every value again after {back:.1} ms"
                ));
            }
            kills.push(KillReport {
                member: victim,
                at_s,
                at_ns,
                first_noticed_ms: noticed.map(|(first, _)| first),
                all_noticed_ms: noticed.map(|(_, all)| all),
                copies_back_ms: back,
            });
        }
        self.let_pass(began + WORK)?;
        self.control.set_phase(Phase::Rest)?;
        self.wait_for("stop writing", |heard| survivors.is_subset(&heard.rests))?;
        self.began = None;
        let acked = self.control.recorded_len()? / NOTE_LEN as u64;
        self.line(format_args!("{acked} writes were acknowledged; other members read them back"));
        self.control.set_phase(Phase::ReadBack)?;
        self.wait_for("read back", |heard| {
            survivors.iter().all(|member| heard.read_back.contains_key(member))
        })?;
        self.control.set_phase(Phase::End)
    }

    fn listen(&mut self) -> anyhow::Result<()> {
        for (member, line) in self.lines.take(&self.running)? {
            match line {
                DemoLine::Open => drop(self.heard.open.insert(member)),
                DemoLine::News(DeathNews::Noticed { dead, at_ns }) => {
                    self.heard.noticed.insert((member, dead), at_ns);
                }
                DemoLine::News(DeathNews::Complete { dead, at_ns }) => {
                    self.heard.complete.entry(dead).or_default().insert(member, at_ns);
                }
                DemoLine::Rests => drop(self.heard.rests.insert(member)),
                DemoLine::ReadBack { keys, wrong } => {
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
        self.watch()?;
        self.draw_rows();
        Ok(())
    }

    /// Listens to the members until this moment.
    fn let_pass(&mut self, until: Instant) -> anyhow::Result<()> {
        while Instant::now() < until {
            self.listen()?;
            std::thread::sleep(
                until.saturating_duration_since(Instant::now()).min(Duration::from_millis(20)),
            );
        }
        Ok(())
    }

    /// Waits until the members' reports satisfy a condition. An error if they take too long, or if
    /// all members have ended.
    fn wait_for(&mut self, what: &str, is_there: impl Fn(&Heard) -> bool) -> anyhow::Result<()> {
        loop {
            self.listen()?;
            if is_there(&self.heard) {
                return Ok(());
            }
            ensure!(
                self.running.elapsed() < HUNG_AFTER && self.running.running() > 0,
                "the members did not {what} in time; does `outlast doctor` find a problem?"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Draws a row for each member while they write, if standard error is a terminal.
    fn draw_rows(&mut self) {
        let (Some(began), true) = (self.began, std::io::stderr().is_terminal()) else { return };
        if self.view.is_some() {
            return;
        }
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < FRAME) {
            return;
        }
        let acked = self.control.recorded_lens().unwrap_or_default();
        let acked: Vec<u64> = acked.iter().map(|len| len / NOTE_LEN as u64).collect();
        self.rows.record(began.elapsed(), &acked);
        let lines = self.rows.lines(Style::of(&std::io::stderr()));
        self.erase_rows();
        // A terminal with fewer lines would scroll, and the next frame could not replace this one.
        let room = rustix::termios::tcgetwinsize(std::io::stderr());
        let room = room.map_or(24, |size| usize::from(size.ws_row)).saturating_sub(2);
        let lines = &lines[..lines.len().min(room)];
        let text: String = lines.iter().map(|line| format!("{line}\x1b[K\n")).collect();
        eprint!("{text}");
        (self.drawn, self.height) = (Some(Instant::now()), lines.len());
    }

    /// Removes the rows from the terminal.
    pub(super) fn erase_rows(&mut self) {
        if self.height > 0 {
            eprint!("\x1b[{}A\x1b[J", self.height);
        }
        (self.drawn, self.height) = (None, 0);
    }

    fn line(&mut self, text: impl std::fmt::Display) {
        self.erase_rows();
        let elapsed = self.running.elapsed().as_secs_f64();
        let line = format!("{elapsed:6.3} s  {text}");
        match &mut self.view {
            Some(view) => {
                view.note(&text.to_string());
                self.held.push(line);
            }
            None => say(self.demo.json.as_deref(), line),
        }
    }
}

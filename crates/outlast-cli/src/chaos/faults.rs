//! Who is killed or stopped, and when.

use super::observations::{Kill, Observations};
use super::{Chaos, Mode, PATIENCE};
use crate::control::CommandControl;
use crate::hosts::Hosts;
use crate::members::machine_ns;
use anyhow::{Context, bail, ensure};
use outlast::MemberId;
use outlast::engine::steps;
use outlast::launch::{MemberEnd, Running};
use outlast_check::workload::Random;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// How long a member that was told where to die may take before the next fault comes, or the command kills it.
const ARMED_FOR: Duration = Duration::from_millis(400);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultKind {
    Kill,
    /// Kill so many members while nobody can do anything in between.
    KillTogether(usize),
    /// Kill all members of the host.
    KillHost,
    /// Cut the link of the host.
    CutHost(u16),
    Stop(Duration),
}

/// The faults that are still to come.
pub(super) struct Faults {
    random: Random,
    planned: VecDeque<(Duration, FaultKind)>,
    /// Who is stopped: since when and until when.
    stopped: BTreeMap<u32, (u64, Instant)>,
    /// Who was told where to die and has not yet, and since when.
    armed: BTreeMap<u32, Instant>,
    /// Whether somebody died since the last one was told.
    has_triggered: bool,
    /// Since when the next fault waits for a repair.
    waiting: Option<Instant>,
    members: u32,
    replicas: usize,
    kills: usize,
    /// The members of the host that is to be killed.
    of_host: Vec<u32>,
    spared: Option<u32>,
    beyond: bool,
    failpoints: bool,
    /// Which step of the protocol the next victim dies in.
    next_step: usize,
    mode: Mode,
}

/// Whether a step comes in this mode: those of a recovery do in one alone.
pub(super) fn is_in_mode(step: usize, mode: Mode) -> bool {
    mode == Mode::Global || !steps::NAMES[step].starts_with('G')
}

impl Faults {
    pub(super) fn new(chaos: &Chaos) -> Faults {
        let seed = chaos.seed.unwrap_or_default();
        let mut random = Random::stream(seed, 0x0063_6861_6f73);
        let mut when = |from: f64, to: f64| {
            let part = random.below(1 << 20) as f64 / f64::from(1 << 20);
            Duration::from_secs_f64(chaos.seconds * (from + (to - from) * part))
        };
        let mut planned: Vec<(Duration, FaultKind)> = Vec::new();
        match chaos.victim_host() {
            Some(host) if chaos.cut_host => {
                planned.push((when(0.3, 0.36), FaultKind::CutHost(host)));
                planned.push((when(0.95, 0.98), FaultKind::KillHost));
            }
            Some(_) => planned.push((when(0.2, 0.6), FaultKind::KillHost)),
            None => planned.extend((0..chaos.kills).map(|_| (when(0.05, 0.85), FaultKind::Kill))),
        }
        let beyond = chaos.beyond || chaos.salvage;
        if beyond {
            // As many as there are copies at one time: a repair is faster than the next random moment.
            let at = planned.first().map_or(Duration::ZERO, |first| first.0);
            let together = chaos.replicas.min(planned.len());
            if chaos.failpoints {
                planned.iter_mut().take(together).for_each(|kill| kill.0 = at);
            } else {
                planned.splice(..together, [(at, FaultKind::KillTogether(together))]);
            }
        }
        for _ in 0..chaos.stops {
            let length = when(0.01, 0.2).clamp(Duration::from_millis(20), Duration::from_secs(2));
            planned.push((when(0.05, 0.85), FaultKind::Stop(length)));
        }
        planned.sort_by_key(|&(at, _)| at);
        Faults {
            random,
            planned: planned.into(),
            stopped: BTreeMap::new(),
            armed: BTreeMap::new(),
            has_triggered: false,
            waiting: None,
            members: u32::from(chaos.members),
            replicas: chaos.replicas,
            kills: chaos.kills,
            of_host: chaos
                .victim_host()
                .map_or(Vec::new(), |host| chaos.members_of(host).collect()),
            spared: chaos.spared,
            beyond,
            failpoints: chaos.failpoints,
            next_step: chaos.die_in.unwrap_or((seed as usize).wrapping_mul(3) % steps::NAMES.len()),
            mode: chaos.mode,
        }
    }

    /// Whether all has been done.
    pub(super) fn is_over(&self) -> bool {
        self.planned.is_empty() && self.stopped.is_empty() && self.armed.is_empty()
    }

    /// Does what is due; whether anything was.
    pub(super) fn act(
        &mut self,
        elapsed: Duration,
        observed: &mut Observations,
        running: &Running,
        hosts: Option<&Hosts>,
        control: &CommandControl,
    ) -> anyhow::Result<bool> {
        let due: Vec<u32> = self
            .stopped
            .iter()
            .filter(|(_, (_, until))| *until <= Instant::now())
            .map(|(&member, _)| member)
            .collect();
        for member in due {
            self.resume(member, observed, running)?;
        }
        self.record_armed_deaths(observed, running)?;
        self.record_ends_of_cut_off(observed, running);
        let Some(&(at, what)) = self.planned.front() else { return Ok(false) };
        if at > elapsed {
            return Ok(false);
        }
        // One that did not get to its step in spite of a death makes room for the next one.
        let overdue =
            self.armed.iter().find(|(_, since)| since.elapsed() > ARMED_FOR && self.has_triggered);
        if let (Some((&member, _)), FaultKind::Kill) = (overdue, what) {
            self.kill_now(member, observed, running)?;
            return Ok(true);
        }
        match what {
            FaultKind::Stop(length) => {
                if !self.stop(length, observed, running)? {
                    return Ok(false);
                }
            }
            FaultKind::KillTogether(count) => {
                self.kill_together(count, observed, running, control)?
            }
            FaultKind::CutHost(host) => {
                hosts.context("there are no hosts")?.cut(host)?;
                observed.cut_ns = Some(machine_ns());
                eprintln!(
                    "{:7.3} s  cut off the host of members {:?}",
                    running.elapsed().as_secs_f64(),
                    self.of_host
                );
            }
            FaultKind::KillHost => {
                for member in std::mem::take(&mut self.of_host) {
                    self.kill_now(member, observed, running)?;
                }
            }
            FaultKind::Kill if self.may_kill(observed) => {
                self.waiting = None;
                self.kill(observed, running, control)?;
            }
            FaultKind::Kill => {
                let since = *self.waiting.get_or_insert_with(Instant::now);
                // A member that has not reached its step makes room for the next one.
                let overdue = self.armed.iter().find(|(_, since)| since.elapsed() > ARMED_FOR);
                if let Some((&member, _)) = overdue {
                    self.kill_now(member, observed, running)?;
                    return Ok(true);
                }
                if since.elapsed() > PATIENCE {
                    bail!("the copies were not complete again within {} s", PATIENCE.as_secs());
                }
                return Ok(false);
            }
        }
        self.planned.pop_front();
        Ok(true)
    }

    /// Whether one more death is within what the store promises: fewer than R since the copies were last complete,
    /// where as many copies as there were members count as complete.
    fn may_kill(&self, observed: &Observations) -> bool {
        if self.beyond {
            return true;
        }
        let dead = observed.kills.len() as u64;
        let complete_with = (0..=dead)
            .rev()
            .find(|&count| count == 0 || observed.complete_at(count, self.members).is_some());
        let complete_with = complete_with.unwrap_or(0);
        let copies = self.replicas.min(self.members as usize - complete_with as usize);
        let deaths = (dead - complete_with) as usize + self.armed.len();
        deaths + 1 < copies
    }

    fn record_kill(
        &self,
        member: u32,
        at_ns: u64,
        step: Option<String>,
        observed: &mut Observations,
    ) {
        let mut awake = observed.living(self.members);
        awake.remove(&member);
        awake.retain(|member| !self.stopped.contains_key(member));
        observed.kills.push(Kill {
            member,
            at_ns,
            dead_before: observed.kills.len() as u64,
            awake,
            step,
        });
    }

    fn kill(
        &mut self,
        observed: &mut Observations,
        running: &Running,
        control: &CommandControl,
    ) -> anyhow::Result<()> {
        let living = observed.living(self.members);
        let is_spared = |member: &u32| self.spared == Some(*member);
        ensure!(living.len() > 1, "nobody is left to kill");
        let candidates: Vec<u32> =
            living.into_iter().filter(|m| !self.armed.contains_key(m) && !is_spared(m)).collect();
        ensure!(!candidates.is_empty(), "nobody is left to kill");
        let victim = candidates[self.random.below(candidates.len() as u64) as usize];
        // One that waits in a step of repair needs a death to get there.
        if !self.failpoints || !self.armed.is_empty() {
            return self.kill_now(victim, observed, running);
        }
        // The last victim cannot wait for another death to bring it to its step: it dies in whatever step comes.
        let is_last = self.armed.len() + observed.kills.len() + 1 == self.kills;
        while !is_in_mode(self.next_step, self.mode) {
            self.next_step = (self.next_step + 1) % steps::NAMES.len();
        }
        let step = if is_last { steps::ANY } else { self.next_step as u32 };
        self.next_step = (self.next_step + 1) % steps::NAMES.len();
        // Mostly the first thing that is done there, so that every step is hit.
        let range = if is_last || self.random.percent(25) { 40 } else { 1 };
        let after = 1 + self.random.below(range) as u32;
        control.order_death(victim, step, after)?;
        self.armed.insert(victim, Instant::now());
        self.has_triggered = false;
        Ok(())
    }

    /// Kills so many members at one moment of the job: all are stopped meanwhile, so that no copy is repaired between two
    /// deaths however long this takes.
    fn kill_together(
        &mut self,
        count: usize,
        observed: &mut Observations,
        running: &Running,
        control: &CommandControl,
    ) -> anyhow::Result<()> {
        let mut held = observed.living(self.members);
        held.retain(|member| !self.stopped.contains_key(member));
        held.iter().try_for_each(|&member| running.stop(MemberId(member)).map(drop))?;
        let killed = (0..count).try_for_each(|_| self.kill(observed, running, control));
        held.iter().try_for_each(|&member| running.resume(MemberId(member)).map(drop))?;
        killed
    }

    fn kill_now(
        &mut self,
        victim: u32,
        observed: &mut Observations,
        running: &Running,
    ) -> anyhow::Result<()> {
        self.armed.remove(&victim);
        self.has_triggered = true;
        let at_ns = machine_ns();
        let was_running = running.kill(MemberId(victim))?;
        // An armed one may have died by itself just now; it is counted once, here.
        let may_have_ended = self.failpoints || observed.cut_ns.is_some();
        ensure!(was_running || may_have_ended, "member {victim} had ended before it was killed");
        self.record_kill(victim, at_ns, None, observed);
        if let Some((since, _)) = self.stopped.remove(&victim) {
            observed.stops.push((victim, since, at_ns));
        }
        eprintln!("{:7.3} s  kill -9 of member {victim}", running.elapsed().as_secs_f64());
        Ok(())
    }

    /// Notes the deaths of those who were told where to die; in the end, kills those who did not get there. Until they are
    /// noted they count as told, so that nobody is killed in their place.
    fn record_armed_deaths(
        &mut self,
        observed: &mut Observations,
        running: &Running,
    ) -> anyhow::Result<()> {
        let dead: Vec<u32> = self
            .armed
            .keys()
            .filter(|member| observed.ended.contains_key(member))
            .copied()
            .collect();
        for member in dead {
            self.armed.remove(&member);
            // FaultKind it said may come a moment after the news of its end.
            let until = Instant::now() + Duration::from_secs(1);
            let said =
                || String::from_utf8_lossy(&running.output(MemberId(member)).stderr).into_owned();
            while last_words(&said()).is_none() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            let said = said();
            let (step, at_ns) = last_words(&said).ok_or_else(|| {
                anyhow::anyhow!("member {member} ended in another way than it was told: {said}")
            })?;
            eprintln!(
                "{:7.3} s  member {member} died in step {step}",
                running.elapsed().as_secs_f64()
            );
            self.record_kill(member, at_ns, Some(step), observed);
        }
        let overdue = self
            .armed
            .iter()
            .find(|(_, since)| since.elapsed() > ARMED_FOR)
            .map(|(&member, _)| member);
        if let (true, Some(member)) = (self.planned.is_empty(), overdue) {
            self.kill_now(member, observed, running)?;
        }
        Ok(())
    }

    /// Members that are cut off end themselves when they have not reached a majority for the time limit.
    fn record_ends_of_cut_off(&mut self, observed: &mut Observations, running: &Running) {
        let has_ended = |member: &u32| observed.ended.get(member).is_some_and(MemberEnd::is_death);
        let ended: Vec<u32> = self
            .of_host
            .iter()
            .copied()
            .filter(|member| observed.cut_ns.is_some() && has_ended(member))
            .collect();
        for member in ended {
            self.of_host.retain(|&other| other != member);
            self.record_kill(member, machine_ns(), None, observed);
            eprintln!(
                "{:7.3} s  member {member} has ended itself",
                running.elapsed().as_secs_f64()
            );
        }
    }

    /// Stops somebody for so long; whether anybody could be stopped.
    fn stop(
        &mut self,
        length: Duration,
        observed: &Observations,
        running: &Running,
    ) -> anyhow::Result<bool> {
        let living = observed.living(self.members);
        let candidates: Vec<u32> =
            living.into_iter().filter(|m| !self.stopped.contains_key(m)).collect();
        // Everyone is stopped already: this one comes when somebody goes on.
        if candidates.is_empty() {
            return Ok(false);
        }
        let victim = candidates[self.random.below(candidates.len() as u64) as usize];
        running.stop(MemberId(victim))?;
        self.stopped.insert(victim, (machine_ns(), Instant::now() + length));
        eprintln!(
            "{:7.3} s  stopped member {victim} for {} ms",
            running.elapsed().as_secs_f64(),
            length.as_millis()
        );
        Ok(true)
    }

    fn resume(
        &mut self,
        member: u32,
        observed: &mut Observations,
        running: &Running,
    ) -> anyhow::Result<()> {
        if let Some((since, _)) = self.stopped.remove(&member) {
            running.resume(MemberId(member))?;
            observed.stops.push((member, since, machine_ns()));
        }
        Ok(())
    }
}

/// The step that a member died in, and when, by its last words.
fn last_words(said: &str) -> Option<(String, u64)> {
    let line = said.lines().rev().find_map(|line| line.strip_prefix(steps::LAST_WORDS))?;
    let (step, at) = line.strip_suffix(" ns")?.rsplit_once(" at ")?;
    Some((step.to_string(), at.parse().ok()?))
}

//! The faults of a chaos run: which members are killed or stopped, and when.
//!
//! With `--failpoints` a victim is *armed*: it is told a step of the protocol in which it dies by
//! itself. A victim that does not reach its step in time is killed.

use super::observations::{Kill, Observations};
use super::{Chaos, Mode, PATIENCE};
use crate::control::CommandControl;
use crate::hosts::Hosts;
use crate::members::machine_ns;
use anyhow::{Context, bail, ensure};
use outlast::MemberId;
use outlast::failpoint;
use outlast::launch::{MemberEnd, Running};
use outlast::store::steps;
use outlast_check::workload::Random;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// How long an armed member may take to reach its step before it is killed.
const ARMED_FOR: Duration = Duration::from_millis(400);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultKind {
    Kill,
    /// Kill this many members while all members are stopped.
    KillTogether(usize),
    /// Kill all members of the victim host.
    KillHost,
    /// Cut the link of this host.
    CutHost(u16),
    Stop(Duration),
}

/// The faults that have not been carried out.
pub(super) struct Faults {
    random: Random,
    planned: VecDeque<(Duration, FaultKind)>,
    /// The stopped members: since when and until when.
    stopped: BTreeMap<u32, (u64, Instant)>,
    /// The armed members that have not died, and since when they are armed.
    armed: BTreeMap<u32, Instant>,
    /// Whether a member has died since the last member was armed.
    has_triggered: bool,
    /// Since when the next kill has been waiting for a repair.
    waiting: Option<Instant>,
    members: u32,
    replicas: usize,
    kills: usize,
    /// The living members of the victim host.
    of_host: Vec<u32>,
    spared: Option<u32>,
    beyond: bool,
    failpoints: bool,
    /// The step of the protocol in which the next victim dies.
    next_step: usize,
    mode: Mode,
}

/// Whether a step occurs in this mode: the steps of a recovery occur in global mode only.
pub(super) fn is_in_mode(step: usize, mode: Mode) -> bool {
    mode == Mode::Global || !steps::NAMES[step].starts_with("recover.")
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
            // As many kills as replicas at one moment: a repair is faster than the next random
            // moment.
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
            replicas: chaos.survivable() + 1,
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

    /// Whether all faults have been carried out.
    pub(super) fn is_over(&self) -> bool {
        self.planned.is_empty() && self.stopped.is_empty() && self.armed.is_empty()
    }

    /// Carries out what is due. Returns whether anything was.
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
        // An armed member that did not reach its step although a member died makes room for the
        // next victim.
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
                // An armed member that has not reached its step makes room for the next victim.
                let overdue = self.armed.iter().find(|(_, since)| since.elapsed() > ARMED_FOR);
                if let Some((&member, _)) = overdue {
                    self.kill_now(member, observed, running)?;
                    return Ok(true);
                }
                if since.elapsed() > PATIENCE {
                    bail!("the replicas were not complete again within {} s", PATIENCE.as_secs());
                }
                return Ok(false);
            }
        }
        self.planned.pop_front();
        Ok(true)
    }

    /// Whether the store, or seats, promise to survive a further death: fewer than R since all
    /// replicas were last complete. With fewer than R living members, a replica on each of them is
    /// complete.
    fn may_kill(&self, observed: &Observations) -> bool {
        if self.beyond {
            return true;
        }
        let dead = observed.kills.len() as u64;
        let complete_with = (0..=dead)
            .rev()
            .find(|&count| count == 0 || observed.complete_at(count, self.members).is_some());
        let complete_with = complete_with.unwrap_or(0);
        let replicas = self.replicas.min(self.members as usize - complete_with as usize);
        let deaths = (dead - complete_with) as usize + self.armed.len();
        deaths + 1 < replicas
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
        ensure!(living.len() > 1, "no member is left to kill");
        let candidates: Vec<u32> =
            living.into_iter().filter(|m| !self.armed.contains_key(m) && !is_spared(m)).collect();
        ensure!(!candidates.is_empty(), "no member is left to kill");
        let victim = candidates[self.random.below(candidates.len() as u64) as usize];
        // A member that is armed for a step of repair needs another death to get there.
        if !self.failpoints || !self.armed.is_empty() {
            return self.kill_now(victim, observed, running);
        }
        // No further death brings the last victim to a chosen step: it dies in the next step of any
        // kind.
        let is_last = self.armed.len() + observed.kills.len() + 1 == self.kills;
        while !is_in_mode(self.next_step, self.mode) {
            self.next_step = (self.next_step + 1) % steps::NAMES.len();
        }
        let step = if is_last { failpoint::ANY } else { self.next_step as u32 };
        self.next_step = (self.next_step + 1) % steps::NAMES.len();
        // Mostly at the first operation of the step, so that every step is hit.
        let range = if is_last || self.random.percent(25) { 40 } else { 1 };
        let after = 1 + self.random.below(range) as u32;
        control.order_death(victim, step, after)?;
        self.armed.insert(victim, Instant::now());
        self.has_triggered = false;
        Ok(())
    }

    /// Kills this many members at one moment of the job: all members are stopped meanwhile, so that
    /// no replica is repaired between two deaths, however long this takes.
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
        // An armed member may have died by itself just now; its death is recorded here, once.
        let may_have_ended = self.failpoints || observed.cut_ns.is_some();
        ensure!(was_running || may_have_ended, "member {victim} had ended before it was killed");
        self.record_kill(victim, at_ns, None, observed);
        if let Some((since, _)) = self.stopped.remove(&victim) {
            observed.stops.push((victim, since, at_ns));
        }
        eprintln!("{:7.3} s  kill -9 of member {victim}", running.elapsed().as_secs_f64());
        Ok(())
    }

    /// Records the deaths of armed members. After the last fault, kills armed members that did not
    /// reach their step. Until its death is recorded an armed member counts as dying, so that no
    /// other member is killed in its place.
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
            // The member's last words may arrive a moment after the news of its end.
            let until = Instant::now() + Duration::from_secs(1);
            let said =
                || String::from_utf8_lossy(&running.output(MemberId(member)).stderr).into_owned();
            while last_words(&said()).is_none() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            let said = said();
            let (step, at_ns) = last_words(&said).ok_or_else(|| {
                anyhow::anyhow!("armed member {member} ended without its last words: {said}")
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

    /// Records that cut-off members have ended: a member ends itself if it reaches no majority for
    /// the time limit.
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

    /// Stops a random member for this long. Returns false if no member can be stopped.
    fn stop(
        &mut self,
        length: Duration,
        observed: &Observations,
        running: &Running,
    ) -> anyhow::Result<bool> {
        let living = observed.living(self.members);
        let candidates: Vec<u32> =
            living.into_iter().filter(|m| !self.stopped.contains_key(m)).collect();
        // All members are stopped already: the fault waits until a member is resumed.
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

/// The step in which a member died and the time of its death, from its last words.
fn last_words(said: &str) -> Option<(String, u64)> {
    let line = said.lines().rev().find_map(|line| line.strip_prefix(failpoint::LAST_WORDS))?;
    let (step, at) = line.strip_suffix(" ns")?.rsplit_once(" at ")?;
    Some((step.to_string(), at.parse().ok()?))
}

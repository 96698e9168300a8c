//! What the command learns during a chaos run: the members' reports, their ends, and its own
//! faults.

use super::member::{ChaosLine, FoundLine};
use crate::loss_acceptor::LossNews;
use crate::members::{DeathNews, Lines};
use outlast::launch::{Event, MemberEnd, Running};
use std::collections::{BTreeMap, BTreeSet};

/// A member that was killed.
#[derive(Clone, Debug)]
pub(super) struct Kill {
    pub(super) member: u32,
    pub(super) at_ns: u64,
    /// How many members were dead before.
    pub(super) dead_before: u64,
    /// The members that lived and were not stopped at that time.
    pub(super) awake: BTreeSet<u32>,
    pub(super) step: Option<String>,
}

/// What the command has learned about the run so far.
#[derive(Default)]
pub(super) struct Observations {
    pub(super) open: BTreeSet<u32>,
    pub(super) rests: BTreeSet<u32>,
    pub(super) found: BTreeMap<u32, Vec<FoundLine>>,
    /// When each survivor noticed each death, by survivor and dead member.
    pub(super) noticed: BTreeMap<(u32, u32), u64>,
    /// By the number of dead members: when each survivor found no replica missing.
    pub(super) complete: BTreeMap<u64, BTreeMap<u32, u64>>,
    /// By the number of dead members: the members with the replicas of each key.
    pub(super) replicas: BTreeMap<u64, Vec<Vec<u32>>>,
    /// The members that have ended, and how.
    pub(super) ended: BTreeMap<u32, MemberEnd>,
    pub(super) kills: Vec<Kill>,
    /// When a host was cut off.
    pub(super) cut_ns: Option<u64>,
    /// The stops: member, stop time, resume time.
    pub(super) stops: Vec<(u32, u64, u64)>,
    /// The reports of the loss acceptor.
    pub(super) losses: Vec<LossNews>,
    /// With programs of seats: the seats that ended at each member, by program.
    pub(super) ends: BTreeMap<u64, BTreeMap<u32, Vec<usize>>>,
    /// Failures besides the calls.
    pub(super) failures: Vec<String>,
}

impl Observations {
    pub(super) fn listen(
        &mut self,
        lines: &mut Lines,
        running: &mut Running,
    ) -> anyhow::Result<()> {
        for (member, line) in lines.take(running)? {
            match line {
                ChaosLine::Open => drop(self.open.insert(member)),
                ChaosLine::Rests => drop(self.rests.insert(member)),
                ChaosLine::Found(found) => drop(self.found.insert(member, found)),
                ChaosLine::Replicas { dead, replicas } => {
                    drop(self.replicas.insert(dead, replicas))
                }
                ChaosLine::Loss(news) => self.losses.push(news),
                ChaosLine::Ended { lap, seats } => {
                    self.ends.entry(lap).or_default().insert(member, seats);
                }
                ChaosLine::News(DeathNews::Noticed { dead, at_ns }) => {
                    self.noticed.insert((member, dead), at_ns);
                }
                ChaosLine::News(DeathNews::Complete { dead, at_ns }) => {
                    self.complete.entry(dead).or_default().insert(member, at_ns);
                }
            }
        }
        for event in running.poll_events() {
            if let Event::Ended(end) = event {
                self.ended.insert(end.member.0, end);
            }
        }
        Ok(())
    }

    /// When the other members lost a member: when its host was cut off, or else when it was killed.
    pub(super) fn gone_at(&self, kill: &Kill) -> u64 {
        self.cut_ns.unwrap_or(kill.at_ns)
    }

    pub(super) fn killed(&self) -> BTreeSet<u32> {
        self.kills.iter().map(|kill| kill.member).collect()
    }

    /// The members that were not killed and have not ended.
    pub(super) fn living(&self, members: u32) -> BTreeSet<u32> {
        let killed = self.killed();
        (0..members)
            .filter(|member| !killed.contains(member) && !self.ended.contains_key(member))
            .collect()
    }

    /// When no replica was missing with this many members dead, or more. `None` if a member that
    /// lived then has not reported it.
    pub(super) fn complete_at(&self, dead: u64, members: u32) -> Option<u64> {
        self.complete.range(dead..).find_map(|(&dead, said)| {
            let gone: BTreeSet<u32> =
                self.kills.iter().take(dead as usize).map(|kill| kill.member).collect();
            let mut last = 0;
            for member in (0..members).filter(|member| !gone.contains(member)) {
                last = last.max(*said.get(&member)?);
            }
            Some(last)
        })
    }
}

//! What the command learns about a chaos run while it lasts.

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
    /// How many were dead before.
    pub(super) dead_before: u64,
    /// Who lived, and was not stopped, at that time.
    pub(super) awake: BTreeSet<u32>,
    pub(super) step: Option<String>,
}

/// What the command knows about the run.
#[derive(Default)]
pub(super) struct Observations {
    pub(super) open: BTreeSet<u32>,
    pub(super) rests: BTreeSet<u32>,
    pub(super) found: BTreeMap<u32, Vec<FoundLine>>,
    /// Who noticed whose death, and when.
    pub(super) noticed: BTreeMap<(u32, u32), u64>,
    /// By how many dead: who said when that nothing is to be repaired.
    pub(super) complete: BTreeMap<u64, BTreeMap<u32, u64>>,
    /// By how many dead: where the copies of each key are.
    pub(super) homes: BTreeMap<u64, Vec<Vec<u32>>>,
    /// Who has ended, and how.
    pub(super) ended: BTreeMap<u32, MemberEnd>,
    pub(super) kills: Vec<Kill>,
    /// When a host was cut off.
    pub(super) cut_ns: Option<u64>,
    /// When members were stopped and resumed.
    pub(super) stops: Vec<(u32, u64, u64)>,
    /// What is lost, as the lowest member that lives has said.
    pub(super) losses: Vec<LossNews>,
    /// What went wrong besides the calls.
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
                ChaosLine::Homes { dead, homes } => drop(self.homes.insert(dead, homes)),
                ChaosLine::Loss(news) => self.losses.push(news),
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

    /// When the others lost a member: when it was killed, or cut off before.
    pub(super) fn gone_at(&self, kill: &Kill) -> u64 {
        self.cut_ns.unwrap_or(kill.at_ns)
    }

    pub(super) fn killed(&self) -> BTreeSet<u32> {
        self.kills.iter().map(|kill| kill.member).collect()
    }

    /// Who has not ended, as far as is observed.
    pub(super) fn living(&self, members: u32) -> BTreeSet<u32> {
        let killed = self.killed();
        (0..members)
            .filter(|member| !killed.contains(member) && !self.ended.contains_key(member))
            .collect()
    }

    /// When all copies were complete with so many dead, or more; `None` if not all who lived then have said so.
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

//! Bringing up the copies that a death has taken: docs/protocol.md, steps R1 to R5.
//!
//! Each member's background goes through the partitions that it is a home of when the epoch has changed. A new home
//! makes its index; the primary settles every record and copies it to the homes that are filling, then says that
//! they are complete. The work is done in small pieces, so that the background also serves.

use super::StoreResult;
use super::access::{Halt, Op, Step};
use super::head::{Phase, State};
use super::index::KeyRef;
use super::open::{Inner, lock};
use super::placement::hash_key;
use crate::engine::{Engine, Epoch, Time, steps};
use std::collections::VecDeque;
use std::time::Duration;

/// How many buckets are looked at in one piece of work.
const PIECE: usize = 8;
/// How long to wait for a home that has not made its index yet, or for a stopped repairer.
const PATIENCE: Duration = Duration::from_millis(5);

/// What this member has still to look at.
#[derive(Default)]
pub(super) struct Repair {
    /// The epoch whose changes are in the list; `None` before the first look.
    epoch: Option<Epoch>,
    left: VecDeque<Work>,
    /// Partitions whose new home has not made its index yet.
    waiting: Vec<Work>,
    is_busy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Work {
    partition: usize,
    /// How far it has come: the homes and buckets that were gone through, in one number.
    position: usize,
    stamp: u64,
}

enum Progress {
    /// Nothing is left to do in this partition.
    Done,
    /// There is more to do, from here on.
    More(Work),
    /// Someone else must do something first.
    Waiting(Work),
}

impl Inner {
    /// Does a piece of repair; when it wants to go on.
    pub(super) fn repair_some(&self) -> Time {
        let epoch = self.job.epoch();
        let work = {
            let mut repair = lock(&self.repair);
            if repair.is_busy {
                return Time::NEVER;
            }
            if repair.epoch != Some(epoch) {
                let is_first = repair.epoch.is_none() && epoch == Epoch(0);
                repair.epoch = Some(epoch);
                repair.waiting.clear();
                repair.left.clear();
                // At open all copies are complete.
                if !is_first {
                    let all = 0..self.placement.partitions;
                    repair.left = all.map(|partition| Work { partition, position: 0, stamp: 0 }).collect();
                }
            }
            if repair.left.is_empty() {
                let waiting = std::mem::take(&mut repair.waiting);
                repair.left.extend(waiting);
            }
            let Some(work) = repair.left.pop_front() else { return Time::NEVER };
            repair.is_busy = true;
            work
        };
        if self.is_ending() {
            lock(&self.repair).is_busy = false;
            return Time::NEVER;
        }
        let result = match Op::begin(self) {
            Ok(op) => op.repair_piece(work),
            Err(halt) => Err(halt),
        };
        let mut repair = lock(&self.repair);
        repair.is_busy = false;
        match result {
            Ok(Progress::Done) => {}
            Ok(Progress::More(work)) => repair.left.push_front(work),
            Ok(Progress::Waiting(work)) => repair.waiting.push(work),
            // The view has changed: the list is made anew. Or it has not, and someone was faster.
            Err(Halt::Again) => repair.left.push_back(Work { position: 0, ..work }),
            // Lost, or closed: there is nothing to bring up. A home that does not answer is tried again.
            Err(Halt::Fail(super::StoreError::DataLost { .. } | super::StoreError::Closed)) => {}
            Err(Halt::Fail(_)) => repair.waiting.push(Work { position: 0, ..work }),
        }
        match (repair.left.is_empty(), repair.waiting.is_empty()) {
            (false, _) => self.job.now(),
            (true, false) => self.job.now().after(PATIENCE),
            (true, true) => Time::NEVER,
        }
    }

    /// How many copies are not complete, of the partitions whose primary this member is.
    pub(super) fn copies_missing(&self) -> StoreResult<usize> {
        let mut missing = 0;
        for partition in 0..self.placement.partitions {
            let counted = self.run(|op| {
                let config = op.config(partition)?;
                let mut missing = 0;
                if config.homes[config.primary] == self.me() {
                    for &home in &config.homes {
                        missing += usize::from(op.state(home, partition)?.phase() != Phase::Complete);
                    }
                }
                Ok(missing)
            });
            match counted {
                Ok(count) => missing += count,
                Err(super::StoreError::DataLost { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(missing)
    }
}

impl Op<'_> {
    fn repair_piece(&self, mut work: Work) -> Step<Progress> {
        let store = self.store;
        // Most partitions are not this member's business; that is known without asking anyone.
        let view = store.view(self.epoch).ok_or(Halt::Again)?;
        let homes = store.placement.homes(&store.preference(work.partition), &view);
        if !homes.members.contains(&store.me()) {
            return Ok(Progress::Done);
        }
        let config = self.config(work.partition)?;
        if work.stamp != config.stamp {
            work = Work { position: 0, stamp: config.stamp, ..work };
        }
        let primary = config.homes[config.primary];
        // R1: this member is new here.
        let state = self.state(store.me(), work.partition)?;
        if state.phase() == Phase::Absent {
            steps::enter(steps::Step::MakeIndex);
            store.make_index(store.root(store.me()), work.partition)?;
            let filling = State::new(Phase::Filling, config.stamp);
            if !self.swap_state(store.me(), work.partition, state, filling)? {
                return Err(Halt::Again);
            }
            let _ = store.job.ring(primary);
        }
        if primary != store.me() {
            return Ok(Progress::Done);
        }
        // R2: whoever is filling now is seen by all who publish from now on.
        self.find_new_homes(&config, work.partition)?;
        let ready: Vec<usize> = (0..config.homes.len()).filter(|&home| config.is_ready(home)).collect();
        let mut filling = Vec::new();
        for &home in &ready {
            if self.state(config.homes[home], work.partition)?.phase() == Phase::Filling {
                filling.push(home);
            }
        }
        // R3: all buckets of all homes: a record that only another home has must be settled too.
        let positions = ready.len() * store.bucket_count;
        let end = (work.position + PIECE).min(positions);
        for position in work.position..end {
            let (home, bucket) = (ready[position / store.bucket_count], position % store.bucket_count);
            for node in self.nodes(&config, home, work.partition, bucket)? {
                let hash = hash_key(&node.key);
                let key = KeyRef { key: &node.key, hash, partition: work.partition };
                for &target in &filling {
                    steps::enter(steps::Step::Copy);
                    self.copy_record(&config, &key, target)?;
                }
                if filling.is_empty() {
                    let word = self.find_or_insert(&config, config.primary, &key)?;
                    self.settled(&config, &key, word)?;
                }
            }
        }
        if end < positions {
            return Ok(Progress::More(Work { position: end, ..work }));
        }
        if !self.is_current() {
            return Err(Halt::Again);
        }
        // R5.
        steps::enter(steps::Step::Complete);
        for &home in &filling {
            let member = config.homes[home];
            let from = State::new(Phase::Filling, config.stamp);
            self.swap_state(member, work.partition, from, State::new(Phase::Complete, config.stamp))?;
        }
        if ready.len() < config.homes.len() {
            return Ok(Progress::Waiting(Work { position: 0, ..work }));
        }
        Ok(Progress::Done)
    }
}

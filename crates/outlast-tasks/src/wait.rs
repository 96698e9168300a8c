//! Waiting for a task, and finding work meanwhile.
//!
//! A worker that waits runs other work on top of its stack. `docs/tasks.md` has the proof that this
//! does not deadlock: it rests on the bottom rule in [`Worker::claim_read`], and on the walk down
//! from what a worker waits for ([`Worker::help_below`]).

use crate::claim::{Claim, Hold};
use crate::events::Event;
use crate::frame::Frame;
use crate::record::{Outcome, Record, State, TaskId};
use crate::steps::mutant;
use crate::task::WEIGHT;
use crate::worker::Worker;
use outlast::engine::Bell;
use outlast::{MemberId, Time};
use std::time::Duration;

/// The longest time for which a worker that waits does not look at the record.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How many levels of open tasks the walk down visits. The tree of tasks is deeper only if as many
/// members have died in a row.
const WALK_DEPTH_MAX: u32 = 64;

/// A holder's last sign of life.
struct Sign {
    holder: u32,
    word: Option<u64>,
    since: Time,
}

impl Worker {
    /// Waits until a task is done; returns how it ended. `None` if it was withdrawn, or was never
    /// put. `prepare` is called before the worker takes other work or parks.
    pub(crate) fn wait_for(
        &self,
        id: TaskId,
        frame: &Frame<'_>,
        mut prepare: impl FnMut(),
    ) -> Option<Outcome> {
        let does = self.does();
        let outcome = self.wait_until_done(id, frame, &mut prepare);
        self.tell_does(does);
        outcome
    }

    fn wait_until_done(
        &self,
        id: TaskId,
        frame: &Frame<'_>,
        prepare: &mut dyn FnMut(),
    ) -> Option<Outcome> {
        let mut is_prepared = false;
        let mut sign = None;
        loop {
            let bell = self.job.bell();
            let (record, version) = self.read(id)?;
            let holder = match record.state {
                State::Done(outcome) => {
                    self.forget_time();
                    return Some(outcome);
                }
                State::Withdrawn | State::RunFailed(_) => return None,
                State::Open => {
                    if record.past.is_empty() {
                        if let Claim::Taken(hold) = self.claim_read(id, record, version, false) {
                            self.execute(hold, Some(frame));
                        }
                        continue;
                    }
                    if !is_prepared {
                        prepare();
                        is_prepared = true;
                    }
                    match self.claim_read(id, record.clone(), version, false) {
                        Claim::Taken(hold) => {
                            self.execute(hold, Some(frame));
                            continue;
                        }
                        Claim::Gone => continue,
                        Claim::NotNow => {}
                    }
                    if self.help_below(id, &record, frame, WALK_DEPTH_MAX) {
                        continue;
                    }
                    None
                }
                State::Held(holder) if self.is_dead(holder) => {
                    if !mutant("waiter-does-not-reopen") {
                        self.reopen(id, &record, version);
                        continue;
                    }
                    None
                }
                State::Held(holder) => Some(holder),
            };
            if !is_prepared {
                prepare();
                is_prepared = true;
            }
            self.tell_does(Event::Waits);
            if let Some(holder) = holder {
                self.watch(holder, &mut sign);
            }
            self.check_over();
            if self.depth.get() < self.options.nested * WEIGHT
                && let Some(hold) = self.find_work(false, holder.map(MemberId))
            {
                self.execute(hold, Some(frame));
                continue;
            }
            let may_take = self.depth.get() < self.options.nested * WEIGHT;
            if let Some(hold) = self.rest(bell, false, may_take) {
                self.execute(hold, Some(frame));
            }
        }
    }

    /// Asks others for work, and parks until the bell rings, for a bounded time. The boards are
    /// read after that: a member that shared before it could see the question rings nobody.
    pub(crate) fn rest(&self, bell: Bell, is_idle: bool, may_take: bool) -> Option<Box<Hold>> {
        if may_take {
            let living: Vec<MemberId> = self.view().living().collect();
            let asked = self.boards.ask(&living);
            let found = asked.into_iter().find_map(|member| self.rob(member, is_idle));
            if found.is_some() {
                return found;
            }
        }
        self.job.park(bell, self.job.now().after(LOOK_AGAIN));
        None
    }

    /// Helps with an open task that may not start on this stack: runs a descendant of it that may,
    /// or opens again what dead workers hold below it. Returns whether anything was done.
    fn help_below(&self, id: TaskId, record: &Record, frame: &Frame<'_>, levels: u32) -> bool {
        if levels == 0 || mutant("no-walk-down") {
            return false;
        }
        let Some(memory) = self.memory_of(id, &record.past) else { return false };
        for child in memory.unfinished {
            let Some((record, version)) = self.read(child) else { continue };
            match record.state {
                State::Held(holder) if self.is_dead(holder) => {
                    self.reopen(child, &record, version);
                    return true;
                }
                State::Open => match self.claim_read(child, record.clone(), version, false) {
                    Claim::Taken(hold) => {
                        self.execute(hold, Some(frame));
                        return true;
                    }
                    Claim::Gone => return true,
                    Claim::NotNow if record.past.is_empty() => {}
                    Claim::NotNow => {
                        if self.help_below(child, &record, frame, levels - 1) {
                            return true;
                        }
                    }
                },
                _ => {}
            }
        }
        false
    }

    /// Watches the holder of a task that this worker waits for, and fences a silent holder if the
    /// program asked for it.
    fn watch(&self, holder: u32, sign: &mut Option<Sign>) {
        let Some(silence) = self.options.fence_after else { return };
        let member = MemberId(holder);
        let (word, now) = (self.boards.sign_of_life(member), self.job.now());
        match sign {
            Some(last) if last.holder == holder && (word.is_none() || last.word == word) => {
                if now.since(last.since) >= silence {
                    tracing::warn!(%member, "fenced: it holds a task and shows no sign of life");
                    let _ = self.job.fence(member, now.after(self.job.time_limit()));
                    last.since = now;
                }
            }
            _ => *sign = Some(Sign { holder, word, since: now }),
        }
    }

    /// Looks for an open task on the boards: the own board, that of `first`, then some at random.
    pub(crate) fn find_work(&self, is_idle: bool, first: Option<MemberId>) -> Option<Box<Hold>> {
        let me = MemberId(self.me);
        let mut others: Vec<MemberId> =
            self.view().living().filter(|&member| member != me).collect();
        let tries = 2 * (usize::BITS - others.len().leading_zeros()) as usize;
        let mut victims = vec![me];
        victims.extend(first.filter(|&member| member != me));
        for _ in 0..tries.min(others.len()) {
            let index = self.random(others.len() as u64) as usize;
            victims.push(others.swap_remove(index));
        }
        victims.into_iter().find_map(|victim| self.rob(victim, is_idle))
    }

    /// Claims a task that a member's board names.
    fn rob(&self, victim: MemberId, is_idle: bool) -> Option<Box<Hold>> {
        for (index, hint) in self.boards.read_hints(victim) {
            let (worker, slot) = (hint.worker(), hint.slot());
            let found = self.read_slot(worker, slot).filter(|(record, _)| {
                hint.is_generation(record.generation) && record.run == self.run.get()
            });
            let claim = match found {
                Some((mut record, version)) => {
                    if mutant("hints-believed") {
                        record.state = State::Open;
                    }
                    if matches!(record.state, State::Held(_)) {
                        // If the holder dies, the task gets a new hint.
                        self.boards.remove(victim, index, hint);
                        continue;
                    }
                    let id = TaskId { worker, slot, generation: record.generation };
                    self.claim_read(id, record, version, is_idle)
                }
                None => Claim::Gone,
            };
            match claim {
                Claim::Taken(hold) => {
                    self.boards.remove(victim, index, hint);
                    return Some(hold);
                }
                Claim::Gone => self.boards.remove(victim, index, hint),
                Claim::NotNow => {}
            }
        }
        None
    }
}

//! Waiting for a task, and finding work meanwhile.
//!
//! A worker that waits runs other work on top of its stack. `docs/tasks.md` has the proof that this
//! does not deadlock: it rests on the bottom rule in [`Worker::claim_read`], and on the walk down
//! from what a worker waits for ([`Worker::help_below`]).

use crate::claim::{Claim, Hold};
use crate::error::Error;
use crate::events::Event;
use crate::frame::Frame;
use crate::record::{Outcome, Record, State, TaskId};
use crate::steps::mutant;
use crate::task::WEIGHT;
use crate::worker::Worker;
use outlast::engine::Bell;
use outlast::{Epoch, MemberId, Time};
use std::collections::HashMap;
use std::time::Duration;

/// The longest time for which a worker that waits does not look at the record.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What a worker that is about to sleep has seen before it looked for work.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    bell: Bell,
    times_woken: u64,
    epoch: Epoch,
}

/// What a worker knows of a holder that it waits for.
pub(crate) struct Watched {
    /// The holder's last sign of life.
    life: Option<u64>,
    looked: Time,
    /// For how long the worker has watched since that sign. The time between two looks counts up to
    /// a bound: a worker that was stopped, or that ran a task, has not watched meanwhile.
    silence: Duration,
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
        loop {
            let seen = self.seen();
            let (record, version) = self.read(id)?;
            let holder = match record.state {
                State::Done(outcome) => {
                    self.forget_time();
                    return Some(outcome);
                }
                State::Withdrawn | State::RunFailed(_) => return None,
                State::Open => {
                    // If the worker dies in a child of its own that has no past, its task has
                    // failed once. That matters if a single failure does; otherwise the put is
                    // saved.
                    let is_first = record.past.is_empty();
                    if !is_prepared && (!is_first || self.options.lives_to_poison() == 1) {
                        prepare();
                        is_prepared = true;
                    }
                    if is_first {
                        let claim = self.claim_read(id, record, version, false, false);
                        if let Claim::Taken(hold) = claim {
                            self.execute(hold, Some(frame));
                        }
                        continue;
                    }
                    match self.claim_read(id, record.clone(), version, false, false) {
                        Claim::Taken(hold) => {
                            self.execute(hold, Some(frame));
                            continue;
                        }
                        Claim::Gone => continue,
                        Claim::NotNow => {}
                    }
                    if self.help_below(id, record, frame) {
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
                self.watch(id, holder);
            }
            self.check_over();
            let may_take = self.depth.get() < self.options.nested * WEIGHT;
            if may_take && let Some(hold) = self.find_work(false, holder.map(MemberId)) {
                self.execute(hold, Some(frame));
                continue;
            }
            if let Some(hold) = self.rest(seen, false, may_take) {
                self.execute(hold, Some(frame));
            }
        }
    }

    /// What this worker sees before it looks for work, so that it does not sleep if it is woken, or
    /// a member dies, while it looks.
    pub(crate) fn seen(&self) -> Seen {
        let (bell, epoch) = (self.job.bell(), self.job.epoch());
        Seen { bell, times_woken: self.boards.times_woken(), epoch }
    }

    /// Asks others for work, and sleeps until another member wakes this one, for a bounded time.
    /// The boards are read before it sleeps: a member that shared before it could see the question
    /// wakes nobody.
    pub(crate) fn rest(&self, seen: Seen, is_idle: bool, may_take: bool) -> Option<Box<Hold>> {
        if may_take {
            let living: Vec<MemberId> = self.view().living().collect();
            let asked = self.boards.ask(&living);
            let found = asked.into_iter().find_map(|member| self.rob(member, is_idle));
            if found.is_some() {
                return found;
            }
        }
        let until = self.job.now().after(LOOK_AGAIN);
        let mut bell = seen.bell;
        loop {
            self.job.park(bell, until);
            // Between hosts the answers to what this worker has just asked ring its bell as well.
            bell = self.job.bell();
            let is_woken = self.job.is_mapped() || self.boards.times_woken() != seen.times_woken;
            let is_over = self.job.now() >= until || self.job.has_ended();
            if is_woken || is_over || self.job.epoch() != seen.epoch {
                return None;
            }
        }
    }

    /// Helps with an open task that may not start on this stack: runs a descendant of it that may,
    /// or opens again what dead workers hold below it. Returns whether anything was done.
    ///
    /// The walk has no bound: a dead worker may leave a chain of any length, since a worker claims
    /// its own children however deep its stack is. What it reads of a dead worker's slots it reads
    /// once, and an old state there does no harm: it acts on records that it reads anew.
    fn help_below(&self, id: TaskId, record: Record, frame: &Frame<'_>) -> bool {
        if mutant("no-walk-down") {
            return false;
        }
        let mut dead = HashMap::new();
        let mut open = vec![(id, record.past)];
        while let Some((parent, past)) = open.pop() {
            for child in self.unfinished_children(parent, &past, &mut dead) {
                let Some((record, version)) = self.read(child) else { continue };
                match record.state {
                    State::Held(holder) if self.is_dead(holder) => {
                        self.reopen(child, &record, version);
                        return true;
                    }
                    State::Held(holder) => self.watch(child, holder),
                    State::Open
                        if !self.unfinished_children(child, &record.past, &mut dead).is_empty() =>
                    {
                        open.push((child, record.past));
                    }
                    State::Open => match self.claim_read(child, record, version, false, false) {
                        Claim::Taken(hold) => {
                            self.execute(hold, Some(frame));
                            return true;
                        }
                        Claim::Gone => return true,
                        Claim::NotNow => {}
                    },
                    _ => {}
                }
            }
        }
        false
    }

    /// Watches the holder of a task that this worker waits for: leaves the run if the holder has,
    /// and fences a silent holder if the program asked for it.
    pub(crate) fn watch(&self, id: TaskId, holder: u32) {
        self.holder.set(Some(holder));
        let member = MemberId(holder);
        let began = self.job.now();
        let looked = self.signs.borrow().get(&holder).map(|watched| watched.looked);
        let is_due = looked.is_some_and(|looked| began.since(looked) >= LOOK_AGAIN);
        let sign = match self.options.fence_after {
            None if looked.is_some() && !is_due => return,
            // Most waits are over before a look is due.
            None if looked.is_none() => None,
            _ => self.boards.sign_of(member),
        };
        if sign.is_some_and(|sign| sign.run != self.run.get()) {
            self.leave_with(id, holder);
        }
        let life = sign.map(|sign| sign.life);
        let now = self.job.now();
        let silence = {
            let mut signs = self.signs.borrow_mut();
            let fresh = || Watched { life, looked: now, silence: Duration::ZERO };
            let watched = signs.entry(holder).or_insert_with(fresh);
            if life.is_some() && life != watched.life {
                *watched = fresh();
            }
            watched.silence += now.since(watched.looked).min(2 * LOOK_AGAIN);
            watched.looked = now;
            watched.silence
        };
        if self.options.fence_after.is_none_or(|silence_max| silence < silence_max) {
            return;
        }
        // A member that has left the run shows no sign of life, and need not die for it.
        if self.is_root_final() {
            self.unwind(None);
        }
        tracing::warn!(%member, "fenced: it holds a task and shows no sign of life");
        let _ = self.job.fence(member, now.after(self.job.time_limit()));
        self.signs.borrow_mut().remove(&holder);
    }

    /// Leaves the run if a task is held by a member that has left it: that member found no room to
    /// say so at the root, and its task is never done. A member that left after the end of the run
    /// has put its result before, and does not come back.
    fn leave_with(&self, id: TaskId, holder: u32) {
        let is_held = self.read(id).is_some_and(|(now, _)| now.state == State::Held(holder));
        if !is_held || mutant("left-holder-waited-for") {
            return;
        }
        if self.is_root_final() {
            self.unwind(None);
        }
        let reason = format!("{} has left it with a task, and could not say why", MemberId(holder));
        self.fail_at_once(Error::RunFailed { reason });
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
        if self.is_without_room() {
            // A claim that finds no room wakes this worker again: it would not sleep.
            return None;
        }
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
                    self.claim_read(id, record, version, is_idle, true)
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

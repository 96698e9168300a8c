//! Claiming a task, running it, and putting its result.

use crate::cx::Cx;
use crate::error::TaskError;
use crate::events::Event;
use crate::frame::Frame;
use crate::record::{Blob, Keys, Outcome, Record, State, TaskId};
use crate::resume::Memory;
use crate::slots::Content;
use crate::steps::{Step, mutant, within};
use crate::worker::{Change, ChildFailed, RunOver, Worker};
use outlast::MemberId;
use outlast::store::Version;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// How often a worker that waits for repair looks whether the run is over.
const REPAIR: Duration = Duration::from_millis(50);

/// A task that this worker holds.
pub(crate) struct Hold {
    id: TaskId,
    record: Record,
    version: Version,
    memory: Option<Memory>,
}

/// What a try to claim a task found.
pub(crate) enum Claim {
    Taken(Box<Hold>),
    /// The task needs no worker any more, or its slot holds another task.
    Gone,
    /// Another worker has it, or it may not be started on this stack.
    NotNow,
}

impl Worker {
    /// The step `claim`: makes this worker the holder of an open task whose record was read.
    /// `is_idle` says that nothing is on the worker's stack, `is_thief` that nothing hangs on the
    /// claim: a thief does without it if the store has no room for it.
    pub(crate) fn claim_read(
        &self,
        id: TaskId,
        mut record: Record,
        mut version: Version,
        is_idle: bool,
        is_thief: bool,
    ) -> Claim {
        match record.state {
            State::Open => {}
            State::Held(_) => return Claim::NotNow,
            _ => return Claim::Gone,
        }
        let mut memory = None;
        if !record.past.is_empty() && !is_idle {
            // The bottom rule: on top of a stack a task may start only if all its children of
            // earlier lives are done. They were all shared by past holders, which are dead, so
            // there will be no more of them.
            let Some(found) = self.memory_of(id, &record.past) else { return Claim::NotNow };
            if !found.unfinished.is_empty() && !mutant("no-bottom-rule") {
                return Claim::NotNow;
            }
            memory = Some(found);
        }
        if record.past.iter().any(|&worker| !self.is_dead(worker)) {
            return Claim::NotNow;
        }
        let step = within(Step::Claim);
        record.state = State::Held(self.me);
        let claimed = if mutant("claim-unconditional") {
            let entry = crate::record::Entry::Task(record.clone());
            Some(self.insist(|| self.handle(id).put(&crate::record::encode(&entry))))
        } else if is_thief {
            match self.change(id, &record, version) {
                Change::Made(version) => {
                    self.note_room(true);
                    Some(version)
                }
                Change::Conflict => None,
                Change::NoRoom => {
                    self.note_room(false);
                    return Claim::NotNow;
                }
            }
        } else {
            self.insist_on_condition(id, &record, version)
        };
        version = if let Some(version) = claimed {
            version
        } else {
            // A try without an answer may have happened: nobody else writes held(me).
            match self.read(id) {
                Some((now, at)) if now.state == State::Held(self.me) => {
                    if mutant("claim-forgotten") {
                        return Claim::NotNow;
                    }
                    record = now;
                    at
                }
                Some(_) => return Claim::NotNow,
                None => return Claim::Gone,
            }
        };
        drop(step);
        if let Some(from) = id.owner().filter(|owner| owner.0 != self.me) {
            self.count(|counts| &counts.moved);
            let is_again = !record.past.is_empty();
            self.shared.tell(&self.job, Event::Moved { from, is_again });
        }
        if !record.past.is_empty() && memory.is_none() {
            memory = self.memory_of(id, &record.past);
        }
        if let Some(memory) = &memory {
            self.count(|counts| &counts.again);
            let failed = memory.failed_lives(&record.past);
            if failed >= self.options.lives_to_poison() && !mutant("never-poisoned") {
                self.poison(id, record, version, &memory.unfinished);
                return Claim::Gone;
            }
        }
        if let Some(memory) = &memory {
            self.wait_for_repair(memory.failed_lives(&record.past));
        }
        Claim::Taken(Box::new(Hold { id, record, version, memory }))
    }

    /// Ends a task that this worker holds, and that kills its workers. No further life joins the
    /// children of its earlier lives: they are withdrawn, and all long values of the task deleted.
    fn poison(&self, id: TaskId, record: Record, version: Version, unfinished: &[TaskId]) {
        self.count(|counts| &counts.poisoned);
        let mut blobs = Vec::new();
        if !mutant("poisoned-children-kept") {
            for &child in unfinished {
                self.withdraw(child);
            }
            // Read again: a child may have put a long output before it was withdrawn.
            blobs = self.memory_of(id, &record.past).map_or(blobs, |memory| memory.blobs);
        }
        let task = self.options.registry.name(record.task).to_string();
        let members = record.past.clone();
        let mut hold = Hold { id, record, version, memory: None };
        self.complete(&mut hold, Outcome::Failed(TaskError::Poisoned { task, members }));
        self.delete(blobs);
    }

    /// Before a life of a task whose last lives ended without progress: waits until no replica is
    /// missing, if one more death could lose a value. A task that kills its workers is poisoned
    /// then, and does not end the run with `DataLost`.
    fn wait_for_repair(&self, failed_lives: usize) {
        let replicas = self.store.replicas_of(Keys::SESSION).len();
        if failed_lives == 0 || failed_lives + 1 < replicas {
            return;
        }
        let until = self.job.now().after(self.job.time_limit());
        while self.job.now() < until {
            let soon = until.min(self.job.now().after(REPAIR));
            match self.store.wait_repaired(soon) {
                Ok(status) if !status.is_repaired() => self.check_over(),
                _ => return,
            }
        }
    }

    /// Runs a task that this worker holds, on top of the frame `below`, and puts its result.
    pub(crate) fn execute(&self, mut hold: Box<Hold>, below: Option<&Frame<'_>>) {
        let id = hold.id;
        let Some(listed) = self.options.registry.listed(hold.record.task) else {
            let task = format!("number {}", hold.record.task);
            return self.complete(&mut hold, Outcome::Failed(TaskError::Unregistered { task }));
        };
        let Some(arguments) = self.fetch(id, hold.record.arguments.clone(), "in") else {
            // The arguments are deleted when nobody wants the task any more. An unfinished task
            // would keep the next life of its parent waiting.
            if !mutant("unjoined-not-withdrawn") {
                hold.record.state = State::Withdrawn;
                while self.insist_on_condition(id, &hold.record, hold.version).is_none() {
                    // As in `complete_counts`: only a record that this worker holds is left to it.
                    match self.read(id) {
                        Some((now, version)) if now.state == State::Held(self.me) => {
                            hold.version = version;
                        }
                        _ => break,
                    }
                }
            }
            return;
        };
        let unsaved = self.unsaved.get();
        self.forget_time();
        let does = self.does();
        self.tell_does(Event::Runs { is_again: !hold.record.past.is_empty() });
        self.depth.set(self.depth.get() + listed.weight);
        let memory = hold.memory.as_ref().map(|memory| &memory.root);
        let border = Frame::border(below, id);
        let run = || {
            let mut cx = Cx::new(self, &border, memory);
            (listed.run)(&arguments, &mut cx)
        };
        let result = catch_unwind(AssertUnwindSafe(run));
        self.depth.set(self.depth.get() - listed.weight);
        let outcome = match result {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(error)) => {
                let task = listed.name.clone();
                Err(TaskError::Encoding { task, reason: error.to_string() })
            }
            Err(payload) => Err(self.failure(&listed.name, payload)),
        };
        self.withdraw_unjoined(id);
        self.charged(|| match outcome {
            Ok(output) => self.complete_with(&mut hold, output),
            Err(error) => self.complete(&mut hold, Outcome::Failed(error)),
        });
        // All that the task has forked is covered by its result.
        let mut blobs = self.slots.borrow_mut().free(|used| used.parent == id).blobs;
        blobs.extend(hold.memory.take().map_or(Vec::new(), |memory| memory.blobs));
        self.delete(blobs);
        self.unsaved.set(unsaved);
        self.forget_time();
        self.tell_does(does);
    }

    /// How a task failed, from what its panic carried. A panic that is no failure of the task goes
    /// on: the end of the run, and under the simulator the death of the member.
    pub(crate) fn failure(&self, task: &str, payload: Box<dyn Any + Send>) -> TaskError {
        if payload.is::<RunOver>() || self.job.has_ended() {
            resume_unwind(payload);
        }
        match payload.downcast::<ChildFailed>() {
            Ok(failed) => failed.0,
            Err(payload) => {
                let message = payload
                    .downcast_ref::<&str>()
                    .map(ToString::to_string)
                    .or_else(|| payload.downcast_ref::<String>().cloned())
                    .unwrap_or_else(|| "a payload that is no text".to_string());
                TaskError::Panicked { task: task.to_string(), message }
            }
        }
    }

    /// Puts the output of a task, under a key of its own if it is long.
    fn complete_with(&self, hold: &mut Hold, output: Vec<u8>) {
        let mut blobs = Vec::new();
        let mut output = Some(output);
        let blob = self.insist(|| {
            let bytes = output.take().unwrap_or_default();
            let kept = bytes.clone();
            self.blob(hold.id, bytes, "out", &mut blobs).ok_or_else(|| {
                output = Some(kept);
                outlast::store::StoreError::OutOfMemory {
                    member: MemberId(self.me),
                    reason: "no room for the output of a task".to_string(),
                }
            })
        });
        if !self.complete_counts(hold, Outcome::Output(blob)) {
            self.delete(blobs);
        }
    }

    fn complete(&self, hold: &mut Hold, outcome: Outcome) {
        self.complete_counts(hold, outcome);
    }

    /// The step `complete`: puts the result of a task; returns whether it counts.
    fn complete_counts(&self, hold: &mut Hold, outcome: Outcome) -> bool {
        let step = within(Step::Complete);
        hold.record.state = State::Done(outcome);
        if mutant("complete-unconditional") {
            let entry = crate::record::Entry::Task(hold.record.clone());
            self.insist(|| self.handle(hold.id).put(&crate::record::encode(&entry)));
        } else {
            while self.insist_on_condition(hold.id, &hold.record, hold.version).is_none() {
                match self.read(hold.id) {
                    // A program that adopts the keys of the dead makes new versions.
                    Some((now, version)) if now.state == State::Held(self.me) => {
                        hold.version = version;
                    }
                    // A try without an answer has happened: only this worker completes it.
                    Some((now, _)) if matches!(now.state, State::Done(_)) => break,
                    _ => {
                        self.count(|counts| &counts.lost);
                        return false;
                    }
                }
            }
        }
        drop(step);
        let _step = within(Step::Notify);
        self.notify(hold);
        true
    }

    /// The step `notify`: wakes the worker that waits for a task.
    fn notify(&self, hold: &Hold) {
        let Some(owner) = hold.id.owner() else {
            let living: Vec<MemberId> = self.view().living().collect();
            return self.boards.tell_over(&living, self.run.get());
        };
        let waiter = if self.is_dead(owner.0) {
            match self.read(hold.record.parent) {
                Some((Record { state: State::Held(worker), .. }, _)) => MemberId(worker),
                _ => return,
            }
        } else {
            owner
        };
        if waiter.0 != self.me {
            self.boards.wake(&[waiter]);
        }
    }

    /// Withdraws the tasks that a task has shared and not joined: nobody wants their outputs.
    fn withdraw_unjoined(&self, parent: TaskId) {
        let unjoined = self.slots.borrow().unjoined(|used| used.parent == parent);
        for id in unjoined {
            self.withdraw(id);
        }
    }

    /// Withdraws a task. Its holder, if it has one, finds out when it puts its result, or asks.
    /// `false` if the store has no room for that.
    pub(crate) fn withdraw(&self, id: TaskId) -> bool {
        self.boards.unadvertise(id);
        while let Some((mut record, version)) = self.read(id) {
            if record.state.is_final() {
                break;
            }
            record.state = State::Withdrawn;
            match self.change(id, &record, version) {
                Change::Made(_) => {
                    self.count(|counts| &counts.withdrawn);
                    break;
                }
                Change::Conflict => {}
                Change::NoRoom => return false,
            }
        }
        true
    }

    /// Marks the own slot of a part of a bag as merged: its output is used, and kept until a
    /// progress does not list the part any more.
    pub(crate) fn mark_merged(&self, id: TaskId) {
        let mut slots = self.slots.borrow_mut();
        let used = (id.worker == self.me).then(|| slots.get_mut(id.slot)).flatten();
        if let Some(used) = used.filter(|used| used.id == id) {
            used.content = Content::Part { is_merged: true };
        }
    }

    /// Notes that the progress in an own slot lists no parts of a bag.
    pub(crate) fn forget_parts(&self, slot: u32) {
        if let Some(used) = self.slots.borrow_mut().get_mut(slot) {
            used.has_bag = false;
        }
    }

    /// Marks an own slot as joined: its output is used, and kept until it is covered.
    pub(crate) fn mark_joined(&self, id: TaskId, outcome: &Outcome) {
        if id.owner() != Some(MemberId(self.me)) {
            return;
        }
        let mut slots = self.slots.borrow_mut();
        let Some(used) = slots.get_mut(id.slot).filter(|used| used.id == id) else { return };
        if used.content == (Content::Task { is_joined: false }) {
            used.content = Content::Task { is_joined: true };
        }
        if let Outcome::Output(Blob::External { writer, .. }) = outcome {
            used.blobs.push(self.keys.blob(id, *writer, "out"));
        }
    }
}

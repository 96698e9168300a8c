//! Resuming: what the earlier lives of a task have left, by path.
//!
//! A task whose holder died is run again by another worker. Before it forks, it looks for what its
//! earlier lives have shared or saved at this place: replay with memory. Everything that a life of
//! a task shares or saves lies in the slots of the worker that ran it, so the slots of the past
//! holders have all of it.

use crate::events::Event;
use crate::record::{Blob, Entry, Keys, PathStep, Record, Saved, State, TaskId, decode};
use crate::steps::{Step, within};
use crate::worker::Worker;
use outlast::MemberId;
use outlast::store::Version;
use std::collections::{BTreeMap, HashSet};

/// The output of a left half that an earlier life has saved.
pub(crate) struct SavedLeft {
    /// The hash of the right half's arguments.
    pub(crate) right: u64,
    pub(crate) output: Blob,
    /// The slot that holds it.
    pub(crate) id: TaskId,
}

/// The state that an earlier life has saved for a strand.
pub(crate) struct SavedState {
    pub(crate) id: TaskId,
    pub(crate) saved: Saved,
}

/// What the earlier lives of a task left at a place, and below it.
#[derive(Default)]
pub(crate) struct Node {
    children: BTreeMap<PathStep, Node>,
    /// At the left half of a fork: its output.
    pub(crate) left: Option<SavedLeft>,
    /// At the right half of a fork: the task that it was shared as, and the hash of its arguments.
    pub(crate) record: Option<(TaskId, u64)>,
    /// At a strand: its state.
    pub(crate) state: Option<SavedState>,
}

impl Node {
    pub(crate) fn child(&self, step: PathStep) -> Option<&Node> {
        self.children.get(&step)
    }

    /// Whether an earlier life ran this place on its own stack and left something below it.
    pub(crate) fn has_records_below(&self) -> bool {
        !self.children.is_empty() || self.state.is_some()
    }

    fn at(&mut self, path: &[PathStep]) -> &mut Node {
        path.iter().fold(self, |node, step| node.children.entry(*step).or_default())
    }
}

/// What the earlier lives of a task left.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) root: Node,
    /// The children that are neither done nor withdrawn.
    pub(crate) unfinished: Vec<TaskId>,
    /// The past holders that put progress.
    progressed: HashSet<u32>,
    /// Long arguments, outputs and states, to be deleted when the task is done.
    pub(crate) blobs: Vec<Vec<u8>>,
}

impl Memory {
    fn add(&mut self, worker: u32, slot: u32, entry: Entry, keys: &Keys) {
        match entry {
            Entry::Task(record) => {
                let id = TaskId { worker, slot, generation: record.generation };
                let hash = record.arguments.hash();
                for (blob, what) in
                    [(Some(&record.arguments), "in"), (output_of(&record.state), "out")]
                {
                    if let Some(Blob::External { writer, .. }) = blob {
                        self.blobs.push(keys.blob(id, *writer, what));
                    }
                }
                if !record.state.is_final() {
                    self.unfinished.push(id);
                }
                if record.state != State::Withdrawn {
                    self.root.at(&record.path).record = Some((id, hash));
                }
            }
            Entry::Progress(progress) => {
                self.progressed.insert(worker);
                let id = TaskId { worker, slot, generation: progress.generation };
                let node = self.root.at(&progress.path);
                match progress.saved {
                    Saved::Left { right, output } => {
                        if let Blob::External { writer, .. } = output {
                            self.blobs.push(keys.blob(id, writer, "saved"));
                        }
                        node.left = Some(SavedLeft { right, output, id });
                    }
                    saved @ (Saved::State { .. } | Saved::Bag { .. }) => {
                        if let Saved::State { state: blob, .. } | Saved::Bag { rest: blob, .. } =
                            &saved
                            && let Blob::External { writer, .. } = blob
                        {
                            self.blobs.push(keys.blob(id, *writer, "saved"));
                        }
                        node.state = Some(SavedState { id, saved });
                    }
                    Saved::Waits => {}
                }
            }
        }
    }

    /// How many lives in a row ended without progress, up to the last one.
    pub(crate) fn failed_lives(&self, past: &[u32]) -> usize {
        past.iter().rev().take_while(|worker| !self.progressed.contains(worker)).count()
    }
}

fn output_of(state: &State) -> Option<&Blob> {
    match state {
        State::Done(crate::record::Outcome::Output(blob)) => Some(blob),
        _ => None,
    }
}

impl Worker {
    /// Reads what the past holders of a task have left of it. `None` if this member does not know
    /// yet that all of them are dead: they might still write.
    pub(crate) fn memory_of(&self, id: TaskId, past: &[u32]) -> Option<Memory> {
        let _step = within(Step::Resume);
        let view = self.job.view();
        if past.iter().any(|&worker| view.is_living(MemberId(worker))) {
            return None;
        }
        let mut memory = Memory::default();
        for &worker in past {
            let Some(info) = self.worker_info(worker) else { continue };
            for slot in 0..info.slots {
                let key = self.keys.slot(worker, slot);
                let value = self.insist(|| self.store.get(&key));
                let entry = value.and_then(|value| decode::<Entry>(value.bytes()));
                let is_child = match &entry {
                    Some(Entry::Task(record)) => record.parent == id,
                    Some(Entry::Progress(progress)) => progress.parent == id,
                    None => false,
                };
                if let Some(entry) = entry.filter(|_| is_child) {
                    memory.add(worker, slot, entry, &self.keys);
                }
            }
        }
        Some(memory)
    }

    /// Opens a task again whose holder is dead. Whether it was this call does not matter: the
    /// condition lets one win.
    pub(crate) fn reopen(&self, id: TaskId, record: &Record, version: Version) {
        let _step = within(Step::Reopen);
        if let Some(opened) = reopened(record) {
            if self.insist_on_condition(id, &opened, version).is_some() {
                self.count(|counts| &counts.reopened);
                if let State::Held(holder) = record.state {
                    let dead = MemberId(holder);
                    self.shared.tell(&self.job, Event::Reopened { dead });
                }
            }
            if !id.is_root() {
                self.boards.advertise(id);
            }
        }
    }
}

/// The record after `reopen`: open, with one more past holder.
pub(crate) fn reopened(record: &Record) -> Option<Record> {
    let State::Held(holder) = record.state else { return None };
    let mut opened = record.clone();
    opened.state = State::Open;
    if !crate::steps::mutant("past-forgotten") {
        opened.past.push(holder);
    }
    Some(opened)
}

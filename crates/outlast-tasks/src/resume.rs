//! Resuming: what the earlier lives of a task have left, by path.
//!
//! A task whose holder died is run again by another worker. Before it forks, it looks for what its
//! earlier lives have shared or saved at this place: replay with memory. Everything that a life of
//! a task shares or saves lies in the slots of the worker that ran it, so the slots of the past
//! holders have all of it.

use crate::events::Event;
use crate::record::{
    Blob, Entry, Keys, PathStep, Record, Saved, State, TaskId, decode, hash_of_fork,
};
use crate::steps::{Step, mutant, within};
use crate::worker::Worker;
use outlast::MemberId;
use outlast::store::Version;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The output of a left half that an earlier life has saved.
pub(crate) struct SavedLeft {
    /// The hash of the fork; see [`Saved::Left`].
    pub(crate) fork: u64,
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
    /// At the right half of a fork: the task that it was shared as, and its [`hash_of_fork`].
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
                let hash = hash_of_fork(record.task, record.arguments.hash());
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
                    let node = self.root.at(&record.path);
                    if is_later(node.record.map(|(before, _)| before), id) {
                        node.record = Some((id, hash));
                    }
                }
            }
            Entry::Progress(progress) => {
                self.progressed.insert(worker);
                let id = TaskId { worker, slot, generation: progress.generation };
                let node = self.root.at(&progress.path);
                match progress.saved {
                    Saved::Left { fork, output } => {
                        if let Blob::External { writer, .. } = output {
                            self.blobs.push(keys.blob(id, writer, "saved"));
                        }
                        if is_later(node.left.as_ref().map(|left| left.id), id) {
                            node.left = Some(SavedLeft { fork, output, id });
                        }
                    }
                    saved @ (Saved::State { .. } | Saved::Bag { .. }) => {
                        if let Saved::State { state: blob, .. } | Saved::Bag { rest: blob, .. } =
                            &saved
                            && let Blob::External { writer, .. } = blob
                        {
                            self.blobs.push(keys.blob(id, *writer, "saved"));
                        }
                        if is_later(node.state.as_ref().map(|state| state.id), id) {
                            node.state = Some(SavedState { id, saved });
                        }
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

/// Whether what is in a slot is later than what was found before for its place. Lives are read in
/// order. In a single life the generation tells: a put without an answer can come up in a slot of
/// its own, beside what its worker has put later.
fn is_later(before: Option<TaskId>, id: TaskId) -> bool {
    let is_older = |before: TaskId| before.worker == id.worker && before.generation > id.generation;
    !before.is_some_and(is_older)
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
            self.read_slots(worker, |slot, entry| {
                let parent = match &entry {
                    Entry::Task(record) => record.parent,
                    Entry::Progress(progress) => progress.parent,
                };
                if parent == id {
                    memory.add(worker, slot, entry, &self.keys);
                }
            });
        }
        Some(memory)
    }

    /// Reads the slots that a worker has used.
    fn read_slots(&self, worker: u32, mut visit: impl FnMut(u32, Entry)) {
        let slots = self.worker_info(worker).map_or(0, |info| info.slots);
        for slot in 0..slots {
            let key = self.keys.slot(worker, slot);
            let value = self.insist(|| self.store.get(&key));
            if let Some(entry) = value.and_then(|value| decode::<Entry>(value.bytes())) {
                visit(slot, entry);
            }
        }
    }

    /// The unfinished children that the past holders of a task have left; none if this member does
    /// not know yet that all of them are dead. `dead` keeps what was read of each past holder: its
    /// unfinished tasks, each with its parent.
    pub(crate) fn unfinished_children(
        &self,
        id: TaskId,
        past: &[u32],
        dead: &mut HashMap<u32, Vec<(TaskId, TaskId)>>,
    ) -> Vec<TaskId> {
        if past.iter().any(|&worker| !self.is_dead(worker)) {
            return Vec::new();
        }
        let mut children = Vec::new();
        for &worker in past {
            let tasks = dead.entry(worker).or_insert_with(|| {
                let mut tasks = Vec::new();
                self.read_slots(worker, |slot, entry| {
                    if let Entry::Task(record) = entry
                        && !record.state.is_final()
                    {
                        let id = TaskId { worker, slot, generation: record.generation };
                        tasks.push((id, record.parent));
                    }
                });
                tasks
            });
            children.extend(tasks.iter().filter(|(_, parent)| *parent == id).map(|(id, _)| *id));
        }
        children
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
    if !mutant("past-forgotten") {
        opened.past.push(holder);
    }
    Some(opened)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Progress;

    fn state(generation: u64, next: u32) -> Entry {
        let (run, parent, path) = (1, TaskId::root(1), Vec::new());
        let saved = Saved::State { next, state: Blob::Inline(Vec::new()) };
        Entry::Progress(Progress { generation, run, parent, path, saved })
    }

    fn next_fork(memory: &Memory) -> u32 {
        match &memory.root.state.as_ref().expect("is there").saved {
            Saved::State { next, .. } => *next,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn of_two_states_of_a_life_the_later_counts_whatever_their_slots_are() {
        let keys = Keys::new(1);
        let mut memory = Memory::default();
        // The put of the earlier state had no answer, and its slot is the higher one.
        memory.add(3, 0, state(8, 500), &keys);
        memory.add(3, 4, state(7, 100), &keys);
        assert_eq!(next_fork(&memory), 500);
        // Generations of two workers say nothing about each other: the later life counts.
        memory.add(2, 9, state(1, 501), &keys);
        assert_eq!(next_fork(&memory), 501);
    }
}

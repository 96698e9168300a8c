//! The slots of a worker: which of them are in use, and for what.
//!
//! A slot is in use until its fork is *covered* by a put that has returned: the task that forked it
//! is done, a left half around it is saved, or its strand has saved later. Freeing writes nothing.
//! If no slot is free, the slot of a task that is done and joined is used again, the deepest first:
//! it stands for the least work, and to forget it costs only repetition. A part of a bag cannot be
//! forked again, so its slot is never taken from it.

use crate::record::{Keys, Path, PathStep, TaskId};
use crate::steps::mutant;
use outlast::store::{KeyHandle, Store, StoreResult};
use std::rc::Rc;

/// What a slot in use holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// A task, and whether its output was joined.
    Task { is_joined: bool },
    /// A part of a bag.
    Part,
    /// Progress.
    Progress,
}

/// A slot in use.
pub(crate) struct Use {
    pub(crate) id: TaskId,
    pub(crate) parent: TaskId,
    pub(crate) path: Path,
    pub(crate) content: Content,
    /// Keys that are deleted when the slot is free.
    pub(crate) blobs: Vec<Vec<u8>>,
}

struct Slot {
    handle: Rc<KeyHandle>,
    used: Option<Use>,
    /// Keys of a task that was forgotten. They are deleted after the put that replaces its record:
    /// until then the next life of its parent finds the record, and needs them.
    old: Vec<Vec<u8>>,
}

/// A slot that was taken.
pub(crate) struct Taken {
    pub(crate) id: TaskId,
    pub(crate) handle: Rc<KeyHandle>,
}

/// The slots of a worker.
pub(crate) struct Slots {
    worker: u32,
    max: u32,
    slots: Vec<Slot>,
    generation: u64,
    /// How many outputs were forgotten for want of a free slot.
    pub(crate) forgotten: u64,
}

impl Slots {
    pub(crate) fn new(worker: u32, max: u32) -> Slots {
        Slots { worker, max, slots: Vec::new(), generation: 0, forgotten: 0 }
    }

    /// How many slots were used so far.
    pub(crate) fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Takes a slot; `None` if all are in use.
    pub(crate) fn take(&mut self, store: &Store, keys: &Keys) -> StoreResult<Option<Taken>> {
        let free = self.slots.iter().position(|slot| slot.used.is_none());
        let index = match free {
            Some(index) => index,
            None if self.len() < self.max => {
                let handle = Rc::new(store.handle(&keys.slot(self.worker, self.len()))?);
                self.slots.push(Slot { handle, used: None, old: Vec::new() });
                self.slots.len() - 1
            }
            None => match self.least() {
                Some(index) => {
                    self.forgotten += 1;
                    index
                }
                None => return Ok(None),
            },
        };
        let slot = &mut self.slots[index];
        slot.old.extend(slot.used.take().map_or(Vec::new(), |used| used.blobs));
        let handle = slot.handle.clone();
        let generation = self.next_generation();
        let id = TaskId { worker: self.worker, slot: index as u32, generation };
        Ok(Some(Taken { id, handle }))
    }

    /// A generation that no slot of this worker has had.
    pub(crate) fn next_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    /// The slot of the deepest task that is done and joined.
    fn least(&self) -> Option<usize> {
        let joined = |slot: &Slot| {
            let used = slot.used.as_ref()?;
            let is_joined = match used.content {
                Content::Task { is_joined } => is_joined || mutant("slot-reused-early"),
                Content::Part | Content::Progress => false,
            };
            is_joined.then_some(used.path.len())
        };
        let candidates = self.slots.iter().enumerate();
        let depths = candidates.filter_map(|(index, slot)| Some((joined(slot)?, index)));
        depths.max().map(|(_, index)| index)
    }

    pub(crate) fn set(&mut self, used: Use) {
        let index = used.id.slot as usize;
        self.slots[index].used = Some(used);
    }

    /// A put has replaced what was in a slot; returns the keys to delete.
    pub(crate) fn replaced(&mut self, slot: u32) -> Vec<Vec<u8>> {
        self.slots.get_mut(slot as usize).map_or(Vec::new(), |slot| std::mem::take(&mut slot.old))
    }

    pub(crate) fn get(&self, slot: u32) -> Option<(&Use, &Rc<KeyHandle>)> {
        let slot = self.slots.get(slot as usize)?;
        Some((slot.used.as_ref()?, &slot.handle))
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut Use> {
        self.slots.get_mut(slot as usize)?.used.as_mut()
    }

    /// The tasks that a task has shared and not joined.
    pub(crate) fn unjoined(&self, parent: TaskId) -> Vec<TaskId> {
        let used = self.slots.iter().filter_map(|slot| slot.used.as_ref());
        used.filter(|used| used.parent == parent)
            .filter(|used| {
                matches!(used.content, Content::Task { is_joined: false } | Content::Part)
            })
            .map(|used| used.id)
            .collect()
    }

    /// Frees the slots that are covered; returns the keys to delete.
    pub(crate) fn free(&mut self, is_covered: impl Fn(&Use) -> bool) -> Vec<Vec<u8>> {
        let mut blobs = Vec::new();
        for slot in &mut self.slots {
            if slot.used.as_ref().is_some_and(&is_covered) {
                blobs.extend(slot.used.take().map_or(Vec::new(), |used| used.blobs));
            }
        }
        blobs
    }

    /// Frees the slots of the forks inside a half of a fork.
    pub(crate) fn free_inside(&mut self, parent: TaskId, half: &[PathStep]) -> Vec<Vec<u8>> {
        self.free(|used| {
            used.parent == parent && used.path.len() > half.len() && used.path.starts_with(half)
        })
    }
}

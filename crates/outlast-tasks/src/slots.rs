//! The slots of a worker: which of them are in use, and for what.
//!
//! A slot is in use until its fork is *covered* by a put that has returned: the task that forked it
//! is done, a left half around it is saved, or its strand has saved later. Freeing writes nothing.
//! If no slot is free, the slot of a task that is done and joined, of a saved left half, of a bag
//! that is worked off, or of a note that a task waits is used again, the deepest first: it stands
//! for the least work, and to forget it costs only repetition. A part of a bag cannot be forked
//! again, so its slot is never taken from it, nor that of the progress which lists parts, nor what
//! has covered them: the bag's records would name parts that are gone. A task keeps one progress at
//! least, which tells that its life got somewhere.

use crate::record::{Keys, Path, PathStep, TaskId};
use crate::steps::mutant;
use outlast::store::{KeyHandle, Store, StoreResult};
use std::collections::HashMap;
use std::rc::Rc;

/// What a slot in use holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// A task, and whether its output was joined.
    Task { is_joined: bool },
    /// A part of a bag, and whether its output was merged.
    Part { is_merged: bool },
    /// The output of a left half.
    Left,
    /// The state of a strand.
    State,
    /// What is left of a bag.
    Bag,
    /// A note that the task waits.
    Waits,
}

impl Content {
    fn is_progress(self) -> bool {
        !matches!(self, Content::Task { .. } | Content::Part { .. })
    }
}

/// A slot in use.
pub(crate) struct Use {
    pub(crate) id: TaskId,
    pub(crate) parent: TaskId,
    pub(crate) path: Path,
    pub(crate) content: Content,
    /// Whether parts of a bag are among what this slot stands for, or among what it has covered.
    pub(crate) has_bag: bool,
    /// Whether the own board had room for a hint about the task.
    pub(crate) has_hint: bool,
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

/// What was freed.
pub(crate) struct Freed {
    /// The keys to delete.
    pub(crate) blobs: Vec<Vec<u8>>,
    /// Whether parts of a bag were among it.
    pub(crate) has_bag: bool,
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

    /// Whether a slot can be taken.
    pub(crate) fn has_room(&self) -> bool {
        let is_free = self.slots.iter().any(|slot| slot.used.is_none());
        is_free || self.len() < self.max || self.least().is_some()
    }

    /// The slot that stands for the least work, of those that may be forgotten.
    fn least(&self) -> Option<usize> {
        let used = || self.slots.iter().filter_map(|slot| slot.used.as_ref());
        let mut progress: HashMap<TaskId, u32> = HashMap::new();
        for used in used().filter(|used| used.content.is_progress()) {
            *progress.entry(used.parent).or_default() += 1;
        }
        let depth = |slot: &Slot| {
            let used = slot.used.as_ref()?;
            let may_forget = match used.content {
                Content::Task { is_joined } => is_joined || mutant("slot-reused-early"),
                Content::Left | Content::Bag | Content::Waits => {
                    !used.has_bag && progress.get(&used.parent).is_some_and(|&count| count > 1)
                }
                Content::Part { .. } | Content::State => false,
            };
            may_forget.then_some(used.path.len())
        };
        let candidates = self.slots.iter().enumerate();
        let depths = candidates.filter_map(|(index, slot)| Some((depth(slot)?, index)));
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

    /// The tasks that were shared and not joined, and parts that were not merged.
    pub(crate) fn unjoined(&self, is_meant: impl Fn(&Use) -> bool) -> Vec<TaskId> {
        let is_unjoined = |content: Content| {
            let unmerged = Content::Part { is_merged: false };
            content == Content::Task { is_joined: false } || content == unmerged
        };
        let used = self.slots.iter().filter_map(|slot| slot.used.as_ref());
        used.filter(|used| is_unjoined(used.content) && is_meant(used))
            .map(|used| used.id)
            .collect()
    }

    /// Frees the slots that are covered.
    pub(crate) fn free(&mut self, is_covered: impl Fn(&Use) -> bool) -> Freed {
        let mut freed = Freed { blobs: Vec::new(), has_bag: false };
        for slot in &mut self.slots {
            if let Some(used) = slot.used.take_if(|used| is_covered(used)) {
                freed.has_bag |= used.has_bag;
                freed.blobs.extend(used.blobs);
            }
        }
        freed
    }
}

/// Whether a slot belongs to a fork inside a half of a fork.
pub(crate) fn is_inside(used: &Use, parent: TaskId, half: &[PathStep]) -> bool {
    used.parent == parent && used.path.len() > half.len() && used.path.starts_with(half)
}

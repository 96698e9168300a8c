//! Bags: pools of work that can be split, with a reduction.
//!
//! A bag is saved as a whole: what is left of it, and the list of the parts that were given away.
//! There is no replay. The list comes first, with the part's bytes; then the record of the part;
//! the next progress lists the part alone. So a life that finds a listed part without a record
//! knows that its worker died in between, and gives the part away anew. The slot of a part is used
//! again only after a progress that does not list it.

use crate::cx::{Cx, fail_with};
use crate::record::{BagPart, Path, PathStep, Saved, Side, TaskId};
use crate::slots::{Content, Use};
use crate::steps::mutant;
use crate::worker::Saving;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A pool of work that can be split.
pub trait Bag: Serialize + DeserializeOwned + 'static {
    /// The name of the bag, unique in the program.
    const NAME: &'static str;

    /// What the bag computes.
    type Output: Serialize + DeserializeOwned + 'static;

    /// Does a small piece of the work; returns whether there is more. It may be called when nothing
    /// is left: a bag that was saved at its end goes on there after a death.
    fn step(&mut self) -> bool;

    /// Takes about half of the work out, if there is enough.
    fn split(&mut self) -> Option<Self>;

    /// Adds the output of a part. Parts come in any order, so only an exact reduction gives equal
    /// results in each run.
    fn merge(&mut self, output: Self::Output);

    /// The output of the bag, when no work is left.
    fn finish(self) -> Self::Output;
}

/// The state of a bag that is worked off.
struct WorkedOff {
    parent: TaskId,
    path: Path,
    parts: Vec<BagPart>,
    /// Parts that are merged, and that the last progress may still list.
    merged: Vec<TaskId>,
    /// The number of the next part.
    next: u32,
    slot: Option<u32>,
    saved_at: i64,
    task: u32,
}

impl Cx<'_> {
    /// Works a bag off. Others may take parts of it meanwhile.
    pub fn work_off<B: Bag>(&mut self, mut bag: B) -> B::Output {
        let worker = self.worker;
        let number = self.next;
        self.next += 1;
        let (parent, mut path) = self.frame.strand();
        let step = PathStep::new(number, Side::Left);
        path.push(step);
        let task =
            worker.options.registry.bag_number::<B>().unwrap_or_else(|error| fail_with(error));
        let mut state = WorkedOff {
            parent,
            path,
            parts: Vec::new(),
            merged: Vec::new(),
            next: 0,
            slot: None,
            saved_at: worker.unsaved.get(),
            task,
        };
        let found = self.memory.and_then(|node| node.child(step)?.state.as_ref());
        if let Some(found) = found
            && let Saved::Bag { rest, parts } = &found.saved
            && let Some(bytes) = worker.fetch(found.id, rest.clone(), "saved")
            && let Ok(rest) = postcard::from_bytes(&bytes)
        {
            worker.count(|counts| &counts.found);
            bag = rest;
            for part in parts.clone() {
                match part.bag {
                    // Its worker died before the put of the record, and will not put it any more.
                    Some(bytes) if worker.read(part.id).is_none() => {
                        self.give(&mut state, &mut bag, bytes);
                    }
                    _ => state.parts.push(BagPart { id: part.id, bag: None }),
                }
            }
        }
        while bag.step() {
            self.tick();
            if worker.is_asked.take()
                && worker.slots.borrow().has_room()
                && !worker.is_without_room()
                && let Some(part) = bag.split()
            {
                let bytes = worker.encoded(B::NAME, postcard::to_stdvec(&part));
                self.give(&mut state, &mut bag, bytes);
                worker.boards.wake_hungry(&worker.boards.look().hungry);
            } else if worker.unsaved.get().saturating_sub(state.saved_at) >= worker.half_beat.get()
            {
                self.save_bag(&mut state, &bag);
            }
        }
        while let Some(part) = state.parts.first() {
            let id = part.id;
            let prepare = || {
                if worker.options.is_resilient {
                    self.save_bag(&mut state, &bag);
                }
            };
            let outcome = worker.join_elsewhere(id, self.frame, prepare);
            let Some(outcome) = outcome else {
                panic!("a part of bag {} is gone", B::NAME);
            };
            let output = worker.output(B::NAME, id, outcome);
            bag.merge(output.unwrap_or_else(|error| fail_with(error)));
            state.parts.remove(0);
            worker.mark_merged(id);
            if mutant("part-covered-early") {
                worker.slots.borrow_mut().free(|used| used.id == id);
            } else {
                state.merged.push(id);
            }
        }
        if !state.merged.is_empty() {
            // From then on no progress lists a part, and all the bag's slots can be used again.
            self.save_bag(&mut state, &bag);
        }
        if let Some(slot) = state.slot.filter(|_| state.merged.is_empty()) {
            worker.forget_parts(slot);
        }
        bag.finish()
    }

    /// Gives a part away, or works it off here if there is no room for it.
    fn give<B: Bag>(&self, state: &mut WorkedOff, bag: &mut B, bytes: Vec<u8>) {
        let worker = self.worker;
        if let Some((id, handle)) = worker.take_slot() {
            let mut path = state.path.clone();
            path.push(PathStep::new(state.next, Side::Right));
            state.next += 1;
            let (parent, content) = (state.parent, Content::Part { is_merged: false });
            let (path_of_use, blobs) = (path.clone(), Vec::new());
            // A hint comes with the record.
            let (has_bag, has_hint) = (true, true);
            let used = Use { id, parent, path: path_of_use, content, has_bag, has_hint, blobs };
            worker.slots.borrow_mut().set(used);
            state.parts.push(BagPart { id, bag: Some(bytes.clone()) });
            let is_given = self.save_bag(state, bag)
                && worker.share_at(id, &handle, state.task, bytes.clone(), parent, path, content);
            if is_given {
                if let Some(part) = state.parts.last_mut() {
                    part.bag = None;
                }
                return;
            }
            state.parts.pop();
            worker.mark_merged(id);
            state.merged.push(id);
        }
        let mut part: B = match postcard::from_bytes(&bytes) {
            Ok(part) => part,
            Err(error) => panic!("a part of bag {} cannot be decoded: {error}", B::NAME),
        };
        while part.step() {
            worker.fork_begins(self.frame);
        }
        bag.merge(part.finish());
    }

    /// Puts the progress of a bag; returns whether it is there.
    fn save_bag<B: Bag>(&self, state: &mut WorkedOff, bag: &B) -> bool {
        let worker = self.worker;
        let rest = worker.encoded(B::NAME, postcard::to_stdvec(bag));
        let saving = Saving::Bag { rest, parts: state.parts.clone() };
        let slot =
            worker.charged(|| worker.save(state.parent, state.path.clone(), state.slot, saving));
        let Some(slot) = slot else { return false };
        state.slot = Some(slot);
        worker.unsaved.set(state.saved_at);
        let merged = std::mem::take(&mut state.merged);
        let freed = worker.slots.borrow_mut().free(|used| merged.contains(&used.id));
        worker.delete(freed.blobs);
        true
    }
}

//! The hot path over a network: a handle writes its key again, in one message and one answer for the primary, and then for
//! each other home at the same time.
//!
//! The same steps as in `write.rs`, for the case that nothing has changed since the handle wrote the key. What the handle
//! remembers is not looked at first, but by the home itself, in a *series* of operations that goes on only while each of
//! them finds what it expects (`Engine::start_series`). In this order, as in the ordinary way:
//!
//! | at the primary | why |
//! |---|---|
//! | the count of removals is as it was | the record is where it was, and stays there while this operation is under way |
//! | the head is as it was | it names the block that is looked at next, and while it did so no other version was there |
//! | the counter in the block is as it was | the block was not used again before this operation began, and is not while it lasts |
//! | put the block (W4) | |
//! | swap the head (W5) | |
//! | load who waits for a change | after the swap: who enters itself later looks at the key later, and finds the version |
//!
//! The look at the head must come before that at the counter: a block that was freed before this operation began still has
//! its old counter until somebody fills it again, and a head could name it by the time of the swap.
//!
//! | at each other home, once the primary has it | why |
//! |---|---|
//! | put the block (W4) | only the head of this very home is to name it: it may be filled after W5 |
//! | the count of removals is as it was | |
//! | swap the head from what the handle left there (W6) | the primary's chain had no other version in between |
//!
//! A large value does not fit into a series: it is put before it, and not waited for, since operations on one target take
//! effect in order.
//!
//! A series that stops before W5 has published nothing: the handle forgets what it remembered, and the ordinary way is taken.
//! One that stops before W6 leaves that home to the ordinary way. Who dies leaves what it would leave there: a block that
//! nobody names, or a version that whoever meets it finishes. A series is refused as a whole if the home's view is newer; if
//! the view changes in its middle, its swap succeeds only where nobody has sealed the record under the newer
//! configuration, as in `hot.rs`.

use super::StoreError;
use super::access::{Halt, Op, Step};
use super::head::Head;
use super::index::KeyRef;
use super::layout::{PARTITION_WAITERS, REMOVALS};
use super::mutant::mutant;
use super::write::{Before, Config, Content, Draft, Remembered, Shape};
use super::{Version, placement::HOMES_MAX};
use crate::engine::{
    Done, Engine, MemberId, Operation, Part, Pending, SERIES_LEN_MAX, SERIES_PART_LEN, steps,
};

/// The most parts of a series beside its puts.
const PARTS_MAX: usize = 8;

impl Op<'_> {
    /// Puts a value by what a handle remembers, if it knows where everybody has it.
    pub(super) fn put_assumed(
        &mut self,
        key: &KeyRef<'_>,
        memory: &mut Remembered,
        value: &[u8],
    ) -> Step<Option<Version>> {
        // The ordinary way says what is to be waited for.
        if self.store.job.is_direct() || self.store.frost.is_set() {
            return Ok(None);
        }
        let config = self.config(key.partition)?;
        let is_known = memory.stamp == config.stamp
            && config.are_all_ready()
            && !memory.block.is_deleted
            && memory.at[..config.homes.len()].iter().all(|at| at.word != 0 && at.head.offset().is_some());
        if !is_known {
            return Ok(None);
        }
        let shape = Shape::plain(false, memory.block.owner);
        self.replace(config, key, Before::assumed(config, memory), value, shape)
    }

    /// W2 to W8; whether it was published. See the module's tables.
    pub(super) fn publish_in_series(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        before: &mut Before<'_>,
        draft: &mut Draft<'_>,
    ) -> Step<bool> {
        steps::enter(steps::Step::Fill);
        for (home, &member) in config.homes.iter().enumerate() {
            match self.take_block(member, draft.class) {
                Ok(offset) => draft.offsets[home] = offset,
                // Whether it may be left out is decided in the ordinary way.
                Err(Halt::Fail(StoreError::OutOfMemory { .. })) => return Ok(false),
                Err(halt) => return Err(halt),
            }
        }
        let content = Content::new(&draft.block, draft.value);
        let mut fills = Fills::start(self, config, draft, &content);
        let published = self.publish_assumed(config, key, before, draft, &content, &mut fills);
        if let Ok(None) | Err(Halt::Again) = &published {
            // The blocks are kept for something else, so nothing may be on its way to them.
            for (home, &member) in config.homes.iter().enumerate() {
                match fills.wait(self, member, home) {
                    Ok(()) | Err(Halt::Again) => {}
                    Err(_) => draft.offsets[home] = 0,
                }
            }
        }
        let Some((head, waiters)) = published? else { return Ok(false) };
        self.note_published(config, before, draft, head);
        let is_done = self.install_assumed(config, before, draft, &content, &mut fills);
        self.conclude(config, key, before, draft, (head, Some(waiters)), is_done)
    }

    /// W3 to W5 at the primary; the new head and who waits for a change, if it was as remembered.
    fn publish_assumed(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        before: &mut Before<'_>,
        draft: &Draft<'_>,
        content: &Content<'_>,
        fills: &mut Fills,
    ) -> Step<Option<(Head, u64)>> {
        let (Some(memory), Some(block)) = (&before.memory, &before.block) else { return Ok(None) };
        let (primary, offset) = (config.homes[config.primary], draft.offsets[config.primary]);
        let (at, new) = (&memory.at[config.primary], Head::new(config.stamp, offset));
        steps::enter(steps::Step::Publish);
        loop {
            let Some(old) = before.head.offset() else { return Ok(None) };
            let mut parts = Vec::with_capacity(PARTS_MAX);
            parts.push(Part::Expect { offset: config.roots[config.primary] + REMOVALS, word: at.removals });
            parts.push(Part::Expect { offset: before.word, word: before.head.0 });
            if !mutant("assume-version") {
                parts.push(Part::Expect { offset: old, word: block.counter });
            }
            parts.extend(fills.parts(content, offset));
            parts.push(Part::Swap { offset: before.word, expected: before.head.0, new: new.0 });
            parts.push(Part::Load { offset: self.partition_word(primary, key.partition, PARTITION_WAITERS) });
            let series = self.store.job.start_series(self.epoch, primary, &parts);
            fills.wait(self, primary, config.primary)?;
            let (done, word) = self.await_series(series)?;
            if done == parts.len() {
                return Ok(Some((new, word)));
            }
            // Somebody has looked, and has marked it as stable: the handle knows that it is.
            let is_marked = done == 1 && Head(word) == before.head.stable() && Head(word) != before.head;
            if !is_marked {
                return Ok(None);
            }
            before.head = Head(word);
        }
    }

    /// W6 at the other homes: a bit for each one that holds the version now. The others are looked up by the handle the next
    /// time, and the blocks that they were to have are filled.
    fn install_assumed(
        &self,
        config: &Config,
        before: &mut Before<'_>,
        draft: &mut Draft<'_>,
        content: &Content<'_>,
        fills: &mut Fills,
    ) -> Step<u64> {
        let (Some(memory), Some(block)) = (&mut before.memory, &before.block) else {
            return Err(Halt::Again);
        };
        steps::enter(steps::Step::Install);
        let mut started: [Option<(Pending, usize)>; HOMES_MAX] = std::array::from_fn(|_| None);
        for (home, &member) in config.homes.iter().enumerate().filter(|(home, _)| *home != config.primary) {
            let (at, offset) = (&memory.at[home], draft.offsets[home]);
            let new = Head::new(config.stamp, offset);
            let mut parts = Vec::with_capacity(PARTS_MAX);
            parts.extend(fills.parts(content, offset));
            parts.push(Part::Expect { offset: config.roots[home] + REMOVALS, word: at.removals });
            parts.push(Part::Swap { offset: at.word, expected: at.head.0, new: new.0 });
            started[home] = Some((self.store.job.start_series(self.epoch, member, &parts), parts.len()));
        }
        let mut is_done = Ok(1 << config.primary);
        for (home, started) in started.into_iter().enumerate() {
            let Some((series, len)) = started else { continue };
            let (member, at) = (config.homes[home], &mut memory.at[home]);
            let filled = fills.wait(self, member, home);
            match filled.and_then(|()| self.await_series(series)) {
                Ok((done, _)) if done == len => {
                    let offset = std::mem::take(&mut draft.offsets[home]);
                    if let Some(old) = at.head.offset() {
                        // It was swapped out, whatever becomes of the rest.
                        let _ = self.retire_block(member, old, block, memory.class);
                    }
                    at.head = Head::new(config.stamp, offset);
                    is_done = is_done.map(|is_done| is_done | 1 << home);
                }
                Ok(_) => at.word = 0,
                // The view has changed, and nobody has seen the block.
                Err(Halt::Again) if is_done.is_ok() => is_done = Err(Halt::Again),
                Err(Halt::Again) => {}
                Err(fail) => {
                    // What was not answered may still land.
                    draft.offsets[home] = 0;
                    is_done = Err(fail);
                }
            }
        }
        is_done
    }

    /// How many parts of a series were done, and the last word that was found.
    fn await_series(&self, series: Pending) -> Step<(usize, u64)> {
        let target = series.target;
        match self.store.job.wait(series).map_err(|error| self.noted(target, error))? {
            Done::Series { done, word } => Ok((done, word)),
            other => unreachable!("a series completed as {other:?}"),
        }
    }
}

/// What is on its way to the blocks of a draft: values that the series do not take along.
struct Fills {
    is_short: bool,
    pending: [Option<Pending>; HOMES_MAX],
}

impl Fills {
    fn start(op: &Op<'_>, config: &Config, draft: &Draft<'_>, content: &Content<'_>) -> Fills {
        let len: usize = content.places(0).iter().map(|(_, bytes)| bytes.len()).sum();
        let is_short = len + PARTS_MAX * SERIES_PART_LEN <= SERIES_LEN_MAX;
        let pending = std::array::from_fn(|home| {
            let member = *config.homes.get(home).filter(|_| !is_short)?;
            let [_, (offset, data)] = content.places(draft.offsets[home]);
            Some(op.store.job.start(op.epoch, member, Operation::Put { offset, data }))
        });
        Fills { is_short, pending }
    }

    /// The parts of a series that fill a block.
    fn parts<'c>(&self, content: &'c Content<'_>, offset: u64) -> impl Iterator<Item = Part<'c>> {
        let count = if self.is_short { 2 } else { 1 };
        let places = content.places(offset).into_iter().take(count).filter(|(_, data)| !data.is_empty());
        places.map(|(offset, data)| Part::Put { offset, data })
    }

    /// Waits until the block of a home is filled.
    fn wait(&mut self, op: &Op<'_>, member: MemberId, home: usize) -> Step<()> {
        match self.pending[home].take() {
            None => Ok(()),
            Some(pending) => op.store.job.wait(pending).map(drop).map_err(|error| op.noted(member, error)),
        }
    }
}

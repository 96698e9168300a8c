//! Blocks of memory at the homes: taking, retiring and reusing them.
//!
//! A home's segment is carved into blocks of size classes by the home itself, which puts them onto one stack per class.
//! Members take blocks from there into *magazines* of their own, one per home and class, and work from those. A block
//! that was swapped out of a head word is *retired* by whoever swapped it out: it goes into that member's magazine once
//! every actor that was inside an operation at that time has left it, or is dead.
//!
//! A block goes onto a stack only when it is new, or after such a wait. So a member that is inside an operation and
//! has read the top of a stack never finds the same block there again with another successor: the swap of the top
//! needs no counter.

use super::access::{Halt, Op, Step};
use super::layout::{ACTOR_COUNTER, ACTORS_USED, class_size};
use super::mutant::mutant;
use super::open::{Inner, Note};
use super::{PORT, StoreError};
use crate::engine::{Engine, Epoch, Error, MemberId, steps};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// How many blocks, or bytes, are retired together before the actors are looked at.
const BATCH_BLOCKS: usize = 32;
const BATCH_BYTES: u64 = 1 << 20;
/// How many blocks are taken from a stack at once.
const TAKE: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Retired {
    home: MemberId,
    class: usize,
    offset: u64,
}

/// Blocks that wait until these actors have left the operation that they were in.
struct Batch {
    blocks: Vec<Retired>,
    inside: Vec<(MemberId, usize, u64)>,
}

/// This member's magazines and retired blocks.
#[derive(Default)]
pub(super) struct Space {
    magazines: Mutex<BTreeMap<(MemberId, usize), Vec<u64>>>,
    retired: Mutex<(Vec<Retired>, u64)>,
    batches: Mutex<Vec<Batch>>,
    /// Per class: how many times this member, as a home, has carved.
    carved: Mutex<BTreeMap<usize, u32>>,
    /// What homes have refused, until the one who asked has seen it.
    refusals: Mutex<BTreeMap<(MemberId, usize), String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Space {
    /// Keeps a block that nobody else has ever seen, for the next one who wants such a block.
    pub(super) fn keep(&self, home: MemberId, class: usize, offset: u64) {
        lock(&self.magazines).entry((home, class)).or_default().push(offset);
    }

    /// Notes what a home has answered.
    pub(super) fn refused(&self, home: MemberId, class: usize, reason: String) {
        lock(&self.refusals).insert((home, class), reason);
    }
}

impl Op<'_> {
    /// Takes a block at a home: from the magazine, from the home's stack, or from what the home carves when asked.
    pub(super) fn take_block(&self, home: MemberId, class: usize) -> Step<u64> {
        let space = &self.store.space;
        if let Some(offset) = lock(&space.magazines).get_mut(&(home, class)).and_then(Vec::pop) {
            return Ok(offset);
        }
        if let Some(offset) = self.pop_several(home, class)? {
            return Ok(offset);
        }
        let job = &self.store.job;
        lock(&space.refusals).remove(&(home, class));
        let limit = job.time_limit();
        let until = job.now().after(limit);
        let mut is_asked = false;
        loop {
            let bell = job.bell();
            if home == job.me() {
                self.store
                    .carve(class)
                    .map_err(|reason| Halt::Fail(StoreError::OutOfMemory { member: home, reason }))?;
            }
            if let Some(offset) = self.pop_several(home, class)? {
                return Ok(offset);
            }
            if let Some(reason) = lock(&space.refusals).remove(&(home, class)) {
                return Err(Halt::Fail(StoreError::OutOfMemory { member: home, reason }));
            }
            if home == job.me() {
                continue;
            }
            if !is_asked {
                job.send(home, PORT, &Note::Need { class: class as u64 }.encode())?;
                is_asked = true;
            }
            if job.now() >= until {
                return Err(Halt::Fail(StoreError::Timeout { member: home, limit }));
            }
            // Whoever waits serves: the home may itself be waiting for blocks here, with its background.
            self.store.serve_messages();
            // The home's answer rings; its death too, and then the next call of the engine says so.
            job.park(bell, until);
        }
    }

    /// Moves a few blocks from the home's stack into the magazine; one of them is for the caller.
    fn pop_several(&self, home: MemberId, class: usize) -> Step<Option<u64>> {
        let mut first = None;
        let count = if class_size(class) > 1 << 16 { 1 } else { TAKE };
        for _ in 0..count {
            match self.pop(home, class)? {
                None => break,
                Some(offset) if first.is_none() => first = Some(offset),
                Some(offset) => self.store.space.keep(home, class, offset),
            }
        }
        Ok(first)
    }

    fn pop(&self, home: MemberId, class: usize) -> Step<Option<u64>> {
        let top_word = self.store.root(home) + self.store.layout.stack(class);
        loop {
            let top = self.load(home, top_word)?;
            if top == 0 {
                return Ok(None);
            }
            let next = self.load(home, top)?;
            if self.swap(home, top_word, top, next)? {
                return Ok(Some(top));
            }
        }
    }

    /// Retires a block that this operation has swapped out of a head word.
    pub(super) fn retire(&self, home: MemberId, class: usize, offset: u64) -> Step<()> {
        let space = &self.store.space;
        if mutant("reuse-early") {
            space.keep(home, class, offset);
            return Ok(());
        }
        let batch = {
            let mut retired = lock(&space.retired);
            retired.0.push(Retired { home, class, offset });
            retired.1 += class_size(class);
            if retired.0.len() < BATCH_BLOCKS && retired.1 < BATCH_BYTES {
                return Ok(());
            }
            retired.1 = 0;
            std::mem::take(&mut retired.0)
        };
        steps::enter(steps::Step::Retire);
        let inside = self.store.actors_inside()?;
        lock(&space.batches).push(Batch { blocks: batch, inside });
        self.store.reuse()
    }
}

impl Inner {
    /// Who is inside an operation now.
    fn actors_inside(&self) -> Step<Vec<(MemberId, usize, u64)>> {
        let mut inside = Vec::new();
        for member in self.job.view().living() {
            match self.actors_of(member, &mut inside) {
                // A member that has died meanwhile is inside nothing.
                Ok(()) | Err(Error::Dead { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(inside)
    }

    fn actors_of(&self, member: MemberId, inside: &mut Vec<(MemberId, usize, u64)>) -> Result<(), Error> {
        let root = self.root(member);
        let used = self.job.load(Epoch::ANY, member, root + ACTORS_USED)?;
        for actor in 0..(used as usize).min(super::layout::ACTORS) {
            let counter = self.counter(member, actor)?;
            if counter % 2 == 1 {
                inside.push((member, actor, counter));
            }
        }
        Ok(())
    }

    fn counter(&self, member: MemberId, actor: usize) -> Result<u64, Error> {
        self.job.load(Epoch::ANY, member, self.root(member) + self.layout.actor(actor) + ACTOR_COUNTER)
    }

    /// Moves the blocks of all batches for which the wait is over into the magazines.
    fn reuse(&self) -> Step<()> {
        // Taken out, so that no lock is held while the counters are read; two who do this work on different batches.
        let batches = std::mem::take(&mut *lock(&self.space.batches));
        for mut batch in batches {
            let mut left = Vec::new();
            for (member, actor, counter) in batch.inside {
                match self.counter(member, actor) {
                    Ok(now) if now == counter => left.push((member, actor, counter)),
                    Ok(_) | Err(Error::Dead { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            batch.inside = left;
            if batch.inside.is_empty() {
                for block in batch.blocks {
                    self.space.keep(block.home, block.class, block.offset);
                }
            } else {
                lock(&self.space.batches).push(batch);
            }
        }
        Ok(())
    }

    /// Carves new blocks of a class out of this member's segment and puts them onto the stack; why not, if not.
    pub(super) fn carve(&self, class: usize) -> Result<(), String> {
        let size = class_size(class);
        let times = {
            let mut carved = lock(&self.space.carved);
            let times = carved.entry(class).or_default();
            *times += 1;
            *times
        };
        // Each time twice as many, up to a bound, so that a home is asked seldom.
        let count = (8u64 << times.min(10)).min((self.slab_len_max / size).max(1));
        let (count, base) = match self.job.reserve(count * size) {
            Ok(base) => (count, base),
            Err(_) => (1, self.job.reserve(size).map_err(|error| error.to_string())?),
        };
        let me = self.job.me();
        let top_word = self.root(me) + self.layout.stack(class);
        let push = || -> Result<(), Error> {
            for index in 0..count - 1 {
                let next = base + (index + 1) * size;
                self.job.put(Epoch::ANY, me, base + index * size, &next.to_ne_bytes())?;
            }
            let last = base + (count - 1) * size;
            loop {
                let top = self.job.load(Epoch::ANY, me, top_word)?;
                self.job.put(Epoch::ANY, me, last, &top.to_ne_bytes())?;
                if self.job.compare_and_swap(Epoch::ANY, me, top_word, top, base)? == top {
                    return Ok(());
                }
            }
        };
        push().map_err(|error| error.to_string())
    }
}

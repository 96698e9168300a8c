//! Blocks of memory at the homes: taking, retiring and reusing them.
//!
//! A home's segment is carved into blocks of size classes by the home itself, which puts them onto one stack per class.
//! Members take blocks from there into *magazines*, one for each actor, and work from those. A block that was swapped
//! out of a head word is *retired* by whoever swapped it out, and is used again once every actor that was inside an
//! operation at that time has left it, or is dead. What a magazine has no room for goes back onto its home's stack.
//!
//! A block goes onto a stack only when it is new, or right after such a wait. So a member that is inside an operation
//! and has read the top of a stack never finds the same block there again with another successor: the swap of the
//! top needs no counter. A block that was taken and not used must therefore never go back by itself.
//!
//! | the block is | its holder word names | its taker dies here |
//! |---|---|---|
//! | on its home's stack | nobody | |
//! | taken off the stack, not stamped yet | nobody | it is lost: a few blocks for each death at this very step |
//! | in a magazine, being filled, or retired | who has it | its home takes it back: see `reclaim.rs` |
//! | named by a head word, or a node of the index | who filled it | it stays what it is |
//! | swapped out, not stamped yet | who filled it | its home takes it back, if both are dead |

use super::access::{Halt, Op, Step};
use super::grace::Grace;
use super::index::check_place;
use super::layout::{BLOCK_HOLDER, CLASSES, HOLDER_MASK, TOMBSTONES, class_of, class_size, holder};
use super::magazine::ROOM_MAX;
use super::mutant::mutant;
use super::open::{Inner, Note};
use super::steps;
use super::{PORT, StoreError};
use crate::engine::{Epoch, Error, MemberId, Time};
use crate::sync::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// How many bytes of one home and class a magazine keeps at most; of large blocks one, so that they can alternate. Where homes are
/// far away a few, unless they are very large: each one that is given back and had again takes requests.
const WAY_BYTES: u64 = 32 << 10;
const WAY_BLOCKS_FAR: usize = 4;
const FAR_LEN_MAX: u64 = 128 << 10;
/// How many blocks, or bytes, that no magazine has room for are retired together before the actors are looked at. More where
/// members are far away: each look is a request to everybody.
const BATCH_BLOCKS: u64 = 96;
const BATCH_BYTES: u64 = 48 << 10;
const BATCH_BYTES_FAR: u64 = 512 << 10;
const BATCH_BYTES_PER_MEMBER: u64 = 512;
/// How many batches wait for the magazines to be empty, where members are far away.
const BATCHES_FAR: usize = 3;
/// How many batches are looked at whose wait is not over.
const LOOKED_AT: usize = 8;
/// Blocks larger than this always go back to their home.
const KEPT_LEN_MAX: u64 = 16 << 20;
/// How long the background waits for a home that is to carve blocks, or to salvage a partition; what the home does later is
/// there at the next try.
pub(super) const HURRY: Duration = Duration::from_millis(20);
/// How long the background waits before it looks again whether they may go.
const PATIENCE: Duration = Duration::from_millis(50);
/// How many tombstones a home sets aside at once, and for how many other blocks there is to be one.
const TOMBSTONES_TOGETHER: u64 = 64;
const BLOCKS_PER_TOMBSTONE: u64 = 16;
/// How many blocks are taken from a stack at once.
const TAKE: usize = 4;

/// How many bits of a kind are the class; the rest is the home.
pub(super) const CLASS_BITS: u32 = 7;
pub(super) const CLASS_MASK: u64 = (1 << CLASS_BITS) - 1;

/// A block: its home, its class and its offset, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(pub(super) u64);

impl Place {
    pub(super) fn new(home: MemberId, class: usize, offset: u64) -> Place {
        Place((u64::from(home.0) << CLASS_BITS | class as u64) << 40 | offset >> 4)
    }

    /// A block of a kind; see [`Place::kind`].
    pub(super) fn of_kind(kind: u64, offset: u64) -> Place {
        Place(kind << 40 | offset >> 4)
    }

    #[inline(always)]
    pub(super) fn home(self) -> MemberId {
        MemberId((self.kind() >> CLASS_BITS) as u32)
    }

    #[inline(always)]
    pub(super) fn class(self) -> usize {
        (self.kind() & CLASS_MASK) as usize
    }

    #[inline(always)]
    pub(super) fn offset(self) -> u64 {
        (self.0 & ((1 << 40) - 1)) << 4
    }

    /// Whether it always goes back to its home.
    fn is_large(&self) -> bool {
        class_size(self.class()) > KEPT_LEN_MAX
    }

    /// The home and the class.
    #[inline(always)]
    pub(super) fn kind(self) -> u64 {
        self.0 >> 40
    }
}

/// How many blocks of a class a magazine keeps. No tombstones: all members delete with the same ones.
pub(super) fn kept(class: usize, is_far: bool) -> usize {
    if class == TOMBSTONES {
        return 0;
    }
    let size = class_size(class);
    let least = if is_far && size <= FAR_LEN_MAX { WAY_BLOCKS_FAR } else { 1 };
    if size > KEPT_LEN_MAX { 0 } else { ((WAY_BYTES / size) as usize).clamp(least, 128) }
}

/// Whether there are so many blocks of one home and class that a magazine soon has no room for them all: the others would have
/// to be given back, and had again.
fn fills_magazine(blocks: &[Place]) -> bool {
    let mut counts = BTreeMap::new();
    blocks.iter().any(|place| {
        let count = counts.entry(place.kind()).or_insert(0);
        *count += 1;
        2 * *count > kept(place.class(), true).min(ROOM_MAX)
    })
}

/// Blocks that wait until those who may have seen them are gone.
struct Batch {
    blocks: Vec<Place>,
    grace: Grace,
}

/// What the actors of this member share.
#[derive(Default)]
pub(super) struct Space {
    /// Blocks that were taken and not used, and that no magazine had room for; by kind.
    spare: Mutex<BTreeMap<u64, Vec<u64>>>,
    spare_count: AtomicUsize,
    /// Blocks that were retired, and that no magazine had room for.
    retired: Mutex<Vec<Place>>,
    batches: Mutex<Vec<Batch>>,
    batch_count: AtomicUsize,
    /// Whether the background is to look after blocks that are too large to be kept.
    has_large: AtomicBool,
    /// What this member, as a home, has carved.
    pub(super) slabs: Mutex<Slabs>,
    /// What homes have answered to requests for blocks of a class.
    answers: Mutex<BTreeMap<(MemberId, usize), Answers>>,
}

/// How often a home has answered, and why it refused, if it did the last time.
type Answers = (u64, Option<String>);

/// The slabs of a home.
#[derive(Default)]
pub(super) struct Slabs {
    /// By where each begins: of which class its blocks are, and how many there are.
    pub(super) all: BTreeMap<u64, (usize, u64)>,
    /// Per class: how many times it was carved.
    times: BTreeMap<usize, u32>,
}

impl Slabs {
    /// Whether there is such a block.
    fn has(&self, class: usize, offset: u64) -> bool {
        self.all.range(..=offset).next_back().is_some_and(|(&base, &(of, count))| {
            let size = class_size(class);
            of == class && (offset - base).is_multiple_of(size) && (offset - base) / size < count
        })
    }
}

impl Space {
    /// Notes what a home has answered: that it has carved blocks of a class, or why not.
    pub(super) fn answered(&self, home: MemberId, class: usize, refusal: Option<String>) {
        let mut answers = lock(&self.answers);
        let (count, last) = answers.entry((home, class)).or_default();
        *count += 1;
        *last = refusal;
    }

    fn answers(&self, home: MemberId, class: usize) -> Answers {
        lock(&self.answers).get(&(home, class)).cloned().unwrap_or_default()
    }
}

impl Op<'_> {
    /// Takes a block at a home: from the magazine, from the home's stack, or from what the home carves when asked.
    #[inline]
    pub(super) fn take_block(&self, home: MemberId, class: usize) -> Step<u64> {
        match self.magazine().take(home, class) {
            Some(offset) => Ok(offset),
            None => self.take_elsewhere(home, class),
        }
    }

    /// The same for when it has none.
    #[cold]
    #[inline(never)]
    pub(super) fn take_elsewhere(&self, home: MemberId, class: usize) -> Step<u64> {
        let kind = Place::new(home, class, 0).kind();
        self.reuse();
        let taken = self.magazine().take(home, class);
        if let Some(offset) = taken.or_else(|| self.take_spare(kind)) {
            return Ok(offset);
        }
        if let Some(offset) = self.pop_several(home, class)? {
            return Ok(offset);
        }
        self.flush_retired();
        // Before the home is asked for more: all that is this member's.
        self.reuse_or_give_back(true, usize::MAX);
        let taken = self.magazine().take(home, class);
        if let Some(offset) = taken.or_else(|| self.take_spare(kind)) {
            return Ok(offset);
        }
        let (job, space) = (&self.store.job, &self.store.space);
        // The background has other work, which must not wait for a home that is stopped.
        let limit = if self.store.is_background() { HURRY } else { job.time_limit() };
        let until = job.now().after(limit);
        let mut asked = None;
        loop {
            let bell = job.bell();
            if home == job.me() {
                self.store
                    .carve(class)
                    .map_err(|error| self.no_room(home, class, error.to_string()))?;
            }
            // A home that has not answered until then is not asked for its stack either, which would take as long again.
            if asked.is_some() && !job.is_mapped() && job.now() >= until {
                return Err(Halt::Fail(StoreError::Timeout { member: home, limit }));
            }
            // Before the stack is looked at: what was granted is there then, unless others have taken it.
            let (count, refusal) = space.answers(home, class);
            if let Some(offset) = self.pop_several(home, class)? {
                return Ok(offset);
            }
            if home == job.me() {
                continue;
            }
            match (asked, refusal) {
                (Some(before), _) if before == count => {}
                (Some(_), Some(reason)) => {
                    return Err(self.no_room(home, class, reason));
                }
                // Not asked yet; or others have taken what was granted.
                _ => {
                    asked = Some(count);
                    job.send(home, PORT, &Note::Need { class: class as u64 }.encode())?;
                }
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

    /// There is no room. What this actor has retired is of use to the next operation at least.
    fn no_room(&self, member: MemberId, class: usize, reason: String) -> Halt {
        self.flush_retired();
        if class == TOMBSTONES {
            self.lacks_tombstone.set(true);
        }
        Halt::Fail(StoreError::OutOfMemory { member, reason })
    }

    fn take_spare(&self, kind: u64) -> Option<u64> {
        let space = &self.store.space;
        if space.spare_count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let offset = lock(&space.spare).get_mut(&kind)?.pop()?;
        space.spare_count.fetch_sub(1, Ordering::Relaxed);
        Some(offset)
    }

    /// Keeps a block that was taken and that nobody else has seen.
    pub(super) fn keep(&self, home: MemberId, class: usize, offset: u64) {
        let place = Place::new(home, class, offset);
        if !self.magazine().keep(place) {
            let space = &self.store.space;
            lock(&space.spare).entry(place.kind()).or_default().push(offset);
            space.spare_count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Moves a few blocks from the home's stack into the magazine; one of them is for the caller.
    fn pop_several(&self, home: MemberId, class: usize) -> Step<Option<u64>> {
        let mut first = None;
        for _ in 0..TAKE.min(kept(class, false).max(1)) {
            match self.pop(home, class) {
                Ok(None) => break,
                Ok(Some(offset)) if first.is_none() => first = Some(offset),
                Ok(Some(offset)) => self.keep(home, class, offset),
                Err(halt) => {
                    // What was taken is not lost. But whoever went on would wait for a late home once more.
                    if let Some(offset) = first {
                        self.keep(home, class, offset);
                    }
                    return Err(halt);
                }
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
            check_place(home, top)?;
            let next = self.load(home, top)?;
            if self.swap(home, top_word, top, next)? {
                // Under any view: the block is this member's now.
                self.store
                    .job
                    .put(
                        Epoch::ANY,
                        home,
                        top + BLOCK_HOLDER,
                        &holder(self.store.me()).to_ne_bytes(),
                    )
                    .map_err(|error| self.noted(home, error))?;
                return Ok(Some(top));
            }
        }
    }

    /// Makes an empty index for a partition at this member. Where all memory is in blocks already, it takes one of those.
    pub(super) fn make_index(&self, partition: usize) -> Step<()> {
        let (store, me) = (self.store, self.store.me());
        let Err(error) = store.make_index(store.root(me), partition) else { return Ok(()) };
        let first = class_of(store.bucket_count as u64 * 8).unwrap_or(CLASSES);
        for class in first..CLASSES {
            if let Some(offset) = self.pop(me, class)? {
                return Ok(store.put_index(store.root(me), partition, offset)?);
            }
        }
        Err(error.into())
    }

    /// Retires a block that this operation has swapped out of a head word. Its holder is this member already.
    #[inline(always)]
    pub(super) fn retire(&self, home: MemberId, class: usize, offset: u64) {
        if mutant("reuse-early") {
            return self.keep(home, class, offset);
        }
        let place = Place::new(home, class, offset);
        if !self.magazine().retire(place) {
            self.retire_together(vec![place]);
        }
    }

    /// At the end of an operation: frees what the actor has retired, if nobody else is inside an operation; otherwise it
    /// waits. This operation itself sees nothing of it any more.
    #[cold]
    #[inline(never)]
    pub(super) fn turn(&self) {
        if !self.store.job.is_mapped() {
            // Each look is a request to every member: for many blocks together.
            return self.retire_together(self.magazine().take_retired());
        }
        steps::enter(steps::Step::Retire);
        let mut grace = Grace::begin_without(self.store, self.actor);
        if grace.is_over(self.store) && grace.has_no_pins() {
            self.give_back(self.magazine().free_retired());
        } else {
            self.add_batch(self.magazine().take_retired(), grace);
        }
    }

    /// Lets what this actor has retired be used again by others, though it may retire nothing more for long.
    pub(super) fn flush_retired(&self) {
        let mut blocks = self.magazine().take_retired();
        blocks.append(&mut *lock(&self.store.space.retired));
        if !blocks.is_empty() {
            self.add_batch(blocks, Grace::begin(self.store));
        }
    }

    /// Retires blocks for which the magazine has no room.
    #[cold]
    #[inline(never)]
    fn retire_together(&self, mut blocks: Vec<Place>) {
        let space = &self.store.space;
        steps::enter(steps::Step::Retire);
        // With as many blocks as there are members, the requests for each are as few, however many members there are.
        let members = self.store.job.members() as u64;
        let is_far = !self.store.job.is_mapped();
        let batch_bytes = if is_far { BATCH_BYTES_FAR } else { BATCH_BYTES };
        let (least, least_bytes) =
            (members.max(BATCH_BLOCKS), (members * BATCH_BYTES_PER_MEMBER).max(batch_bytes));
        let is_enough = {
            let mut retired = lock(&space.retired);
            retired.append(&mut blocks);
            let bytes: u64 = retired.iter().map(|place| class_size(place.class())).sum();
            if retired.len() as u64 >= least
                || bytes >= least_bytes
                || (is_far && fills_magazine(&retired))
            {
                blocks = std::mem::take(&mut *retired);
            }
            !blocks.is_empty()
        };
        if is_enough {
            self.add_batch(blocks, Grace::begin(self.store));
        }
    }

    fn add_batch(&self, blocks: Vec<Place>, grace: Grace) {
        let space = &self.store.space;
        let is_large = blocks.iter().any(Place::is_large);
        let count = {
            let mut batches = lock(&space.batches);
            batches.push(Batch { blocks, grace });
            batches.len()
        };
        space.batch_count.store(count, Ordering::Relaxed);
        if count > if self.store.job.is_mapped() { 1 } else { BATCHES_FAR } {
            self.reuse();
        }
        if is_large {
            space.has_large.store(true, Ordering::Release);
            let _ = self.store.job.ring(self.store.me());
        }
    }

    /// Takes back the blocks of batches for which the wait is over. Where homes are far away one batch after the other, so that
    /// there is room for them: what is given back is had again by requests. But when somebody was inside an operation for long
    /// there are many, and all but a few are for others, too.
    fn reuse(&self) {
        let count = self.store.space.batch_count.load(Ordering::Relaxed);
        let few = count.saturating_sub(BATCHES_FAR).max(1);
        self.reuse_or_give_back(true, if self.store.job.is_mapped() { usize::MAX } else { few });
    }

    /// The same for so many batches; if this actor is not to keep any, all go to the stacks of their homes.
    pub(super) fn reuse_or_give_back(&self, keeps: bool, mut wanted: usize) {
        let (store, space) = (self.store, &self.store.space);
        if space.batch_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        // Taken out, so that no lock is held while the counters are read; two who do this work on different batches.
        let mut batches = std::mem::take(&mut *lock(&space.batches));
        let mut excess = Vec::new();
        let mut pinned = Vec::new();
        // Whoever keeps one from being over was inside an operation before it, and so keeps those that came later, too: if
        // somebody is stopped there are many, and all but the first few need not be asked.
        let mut left = LOOKED_AT;
        batches.retain_mut(|batch| {
            let is_over = left > 0 && wanted > 0 && batch.grace.is_over(store);
            left -= usize::from(left > 0 && !is_over);
            wanted -= usize::from(is_over);
            if is_over {
                let is_pinned = |place: &Place| batch.grace.is_pinned(place.home(), place.offset());
                pinned.extend(batch.blocks.extract_if(.., |place| is_pinned(place)));
                excess.extend(
                    batch.blocks.iter().filter(|&&place| !keeps || !self.magazine().keep(place)),
                );
            }
            !is_over
        });
        if !pinned.is_empty() {
            // Those alone wait on.
            batches.push(Batch { blocks: pinned, grace: Grace::begin(store) });
        }
        {
            let mut kept = lock(&space.batches);
            // In their order, oldest first.
            batches.append(&mut kept);
            *kept = batches;
            space.batch_count.store(kept.len(), Ordering::Relaxed);
        }
        self.give_back(excess);
    }

    /// Gives blocks back to their homes, right after the wait for all who might have seen them.
    fn give_back(&self, excess: Vec<Place>) {
        if excess.is_empty() {
            return;
        }
        let store = self.store;
        let mut by_home: BTreeMap<MemberId, Vec<Place>> = BTreeMap::new();
        for place in excess {
            by_home.entry(place.home()).or_default().push(place);
        }
        for (home, places) in by_home {
            if home == store.me() {
                store.take_back(home, &places);
            } else {
                // By a message, so that nobody waits for a home that is stopped. If it cannot be sent the home is dead, or
                // the blocks stay with their holder.
                let _ = store.job.send(home, PORT, &Note::Give { places }.encode());
            }
        }
    }
}

impl Inner {
    /// The background's part: blocks that are too large to be kept go back to their homes also if this member retires
    /// nothing more; when it wants to run again.
    pub(super) fn give_back_some(&self) -> Time {
        let space = &self.space;
        if !space.has_large.swap(false, Ordering::AcqRel) {
            return Time::NEVER;
        }
        if let Ok(op) = Op::begin(self) {
            op.reuse();
        }
        if !lock(&space.batches).iter().any(|batch| batch.blocks.iter().any(Place::is_large)) {
            return Time::NEVER;
        }
        space.has_large.store(true, Ordering::Release);
        self.job.now().after(PATIENCE)
    }

    /// Puts blocks of this home that `from` holds back onto its stacks, after the wait for all who might have seen them.
    /// What it does not hold is not believed, and what is no block neither.
    pub(super) fn take_back(&self, from: MemberId, places: &[Place]) {
        let (job, me) = (&self.job, self.job.me());
        for place in places {
            if place.home() != me || !lock(&self.space.slabs).has(place.class(), place.offset()) {
                continue;
            }
            let offset = place.offset();
            let give = || -> Result<(), Error> {
                let word = offset + BLOCK_HOLDER;
                let found = job.load(Epoch::ANY, me, word)?;
                if found & HOLDER_MASK != holder(from)
                    || job.compare_and_swap(Epoch::ANY, me, word, found, 0)? != found
                {
                    return Ok(());
                }
                let top_word = self.root(me) + self.layout.stack(place.class());
                loop {
                    let top = job.load(Epoch::ANY, me, top_word)?;
                    job.put(Epoch::ANY, me, offset, &top.to_ne_bytes())?;
                    if job.compare_and_swap(Epoch::ANY, me, top_word, top, offset)? == top {
                        return Ok(());
                    }
                }
            };
            // The own memory fails only when this member has ended.
            let _ = give();
        }
    }

    /// The blocks that this member has at hand, anywhere.
    #[cfg(all(test, feature = "sim"))]
    pub(super) fn known_blocks(&self) -> Vec<(MemberId, u64)> {
        let space = &self.space;
        let mut places = lock(&space.retired).clone();
        lock(&space.batches).iter().for_each(|batch| places.extend(&batch.blocks));
        for (&kind, offsets) in &*lock(&space.spare) {
            places.extend(offsets.iter().map(|&offset| Place::of_kind(kind, offset)));
        }
        self.actors.magazines().for_each(|magazine| places.extend(magazine.places()));
        places.iter().map(|place| (place.home(), place.offset())).collect()
    }

    /// Whether blocks wait until nobody can still see them.
    pub(super) fn has_batches(&self) -> bool {
        self.space.batch_count.load(Ordering::Relaxed) > 0
    }

    /// Carves new blocks of a class out of this member's segment and puts them onto the stack; why not, if not. Some
    /// tombstones are set aside with them.
    pub(super) fn carve(&self, class: usize) -> Result<(), Error> {
        if class != TOMBSTONES {
            let count = |is_tombstone: bool| {
                let slabs = lock(&self.space.slabs);
                let of =
                    slabs.all.values().filter(|(class, _)| (*class == TOMBSTONES) == is_tombstone);
                of.map(|(_, count)| count).sum::<u64>()
            };
            if count(true) * BLOCKS_PER_TOMBSTONE < count(false) {
                self.carve_blocks(TOMBSTONES)?;
            }
        }
        self.carve_blocks(class)
    }

    fn carve_blocks(&self, class: usize) -> Result<(), Error> {
        let size = class_size(class);
        let times = {
            let mut slabs = lock(&self.space.slabs);
            let times = slabs.times.entry(class).or_default();
            *times += 1;
            *times
        };
        // Each time twice as many, up to a bound, so that a home is asked seldom.
        let count = if class == TOMBSTONES { TOMBSTONES_TOGETHER } else { 8u64 << times.min(10) };
        let count = count.min((self.slab_len_max / size).max(1));
        let (count, base) = match self.job.reserve(count * size) {
            Ok(base) => (count, base),
            Err(_) => (1, self.job.reserve(size)?),
        };
        let me = self.job.me();
        let top_word = self.root(me) + self.layout.stack(class);
        let push = || -> Result<(), Error> {
            for index in 0..count {
                let next = if index + 1 < count { base + (index + 1) * size } else { 0 };
                let header = [next.to_ne_bytes(), [0; 8], [0; 8]].concat();
                self.job.put(Epoch::ANY, me, base + index * size, &header)?;
            }
            lock(&self.space.slabs).all.insert(base, (class, count));
            let last = base + (count - 1) * size;
            loop {
                let top = self.job.load(Epoch::ANY, me, top_word)?;
                self.job.put(Epoch::ANY, me, last, &top.to_ne_bytes())?;
                if self.job.compare_and_swap(Epoch::ANY, me, top_word, top, base)? == top {
                    return Ok(());
                }
            }
        };
        push()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_keeps_what_it_is_given() {
        let place = Place::new(MemberId(4095), 103, ((1u64 << 40) - 1) << 4);
        assert_eq!(
            (place.home(), place.class(), place.offset()),
            (MemberId(4095), 103, ((1u64 << 40) - 1) << 4)
        );
    }

    #[test]
    fn of_large_blocks_one_is_kept_and_of_very_large_ones_none() {
        assert_eq!((kept(0, false), kept(52, false), kept(80, true)), (128, 1, 0));
    }
    /// A home has no more room. What a member has freed there is in several batches, and what it wants is in the last.
    #[cfg(feature = "sim")]
    #[test]
    fn there_is_room_while_there_are_blocks_in_any_batch() {
        use crate::sim::{self, Link, Options as SimOptions};
        use crate::store::testing::nap;
        use crate::store::{Options, Store};
        use std::cell::Cell;
        use std::rc::Rc;
        let is_over = Rc::new(Cell::new(false));
        let mut options = SimOptions::new(2, 3).link(Link::Network);
        options.steps_max = 10_000_000;
        options.segment_limit = 4 << 20;
        sim::run(&options, move |job: crate::Job| {
            let store = Store::open(&job, Options::new().replicas(1).partitions(1)).expect("open");
            if job.me() == MemberId(1) {
                let (inner, home) = (&store.inner, MemberId(0));
                let [small, large] = [2000, 50_000].map(|len| class_of(len).expect("a class"));
                let op = Op::begin(inner).expect("begun");
                let others = [(); 2].map(|()| vec![op.take_block(home, small).expect("a block")]);
                let blocks: Vec<u64> =
                    std::iter::from_fn(|| op.take_block(home, large).ok()).collect();
                assert!(blocks.len() > 10, "{} blocks", blocks.len());
                for (class, blocks) in [(small, &others[0]), (small, &others[1]), (large, &blocks)]
                {
                    blocks.iter().for_each(|&offset| op.retire(home, class, offset));
                    op.flush_retired();
                }
                drop(op);
                let mut batches = std::mem::take(&mut *lock(&inner.space.batches));
                assert_eq!(batches.len(), 3);
                for batch in &mut batches {
                    let until = job.now().after(Duration::from_secs(10));
                    while !batch.grace.is_over(inner) {
                        assert!(job.now() < until, "somebody is inside an operation for ever");
                        job.sleep(Duration::from_millis(1));
                    }
                }
                *lock(&inner.space.batches) = batches;
                let op = Op::begin(inner).expect("begun");
                assert!(op.take_block(home, large).is_ok(), "there is room");
                drop(op);
                is_over.set(true);
            }
            nap(&job, "the one who takes", || is_over.get());
            store.close().expect("closed");
            let _ = job.leave();
        })
        .expect_ok();
    }

    /// Somebody is inside an operation for long, while another member writes until there is no room. When that is over, the one who
    /// writes on needs few blocks, and the others have room again.
    #[cfg(feature = "sim")]
    #[test]
    fn what_had_to_wait_for_long_is_not_kept_for_ever() {
        use crate::sim::{self, Link, Options as SimOptions};
        use crate::store::testing::nap;
        use crate::store::{Options, Store};
        use std::cell::Cell;
        use std::rc::Rc;
        let step = Rc::new(Cell::new(0));
        let mut options = SimOptions::new(3, 3).link(Link::Network);
        options.steps_max = 10_000_000;
        options.segment_limit = 4 << 20;
        sim::run(&options, move |job: crate::Job| {
            let store = Store::open(&job, Options::new().replicas(1).partitions(8)).expect("open");
            let is_there = |key: &String| store.replicas_of(key.as_bytes()) == [MemberId(0)];
            let keys: Vec<String> =
                (0..1000).map(|number| format!("key {number}")).filter(is_there).collect();
            let wait = |until: u32| nap(&job, "the others", || step.get() >= until);
            match job.me().0 {
                1 => {
                    wait(1);
                    let slot = store.handle(keys[0].as_bytes()).expect("a slot");
                    while slot.put(&[1; 20_000]).is_ok() {}
                    step.set(2);
                    wait(3);
                    // At first none of the waits is known to be over.
                    (0..300).for_each(|_| nap(&job, "room", || slot.put(&[1; 20_000]).is_ok()));
                    step.set(4);
                }
                2 => {
                    let op = Op::begin(&store.inner).expect("begun");
                    step.set(1);
                    wait(2);
                    drop(op);
                    step.set(3);
                    wait(4);
                    for key in &keys[1..50] {
                        store.put(key.as_bytes(), &[1; 20_000]).expect("room");
                    }
                    step.set(5);
                }
                _ => {}
            }
            wait(5);
            store.close().expect("closed");
            let _ = job.leave();
        })
        .expect_ok();
    }
}

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
use super::mutant::mutant;
use super::open::{Inner, Note, lock};
use super::{PORT, StoreError};
use crate::engine::{Engine, Epoch, Error, MemberId, Time, steps};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How many blocks, or bytes, are retired together before the actors are looked at.
const BATCH_BLOCKS: usize = 96;
const BATCH_BYTES: u64 = 48 << 10;
/// How many batches are looked at whose wait is not over.
const LOOKED_AT: usize = 8;
/// How many blocks of one home and class a magazine has room for.
const WAY_BLOCKS: usize = BATCH_BLOCKS;
/// How many bytes of one home and class it keeps at most; of large blocks one, so that they can alternate.
const WAY_BYTES: u64 = 16 << 10;
/// Blocks larger than this always go back to their home.
const KEPT_LEN_MAX: u64 = 16 << 20;
/// How long the background waits for a home that is to carve blocks; what the home grants later is there at the next try.
const HURRY: Duration = Duration::from_millis(20);
/// How long the background waits before it looks again whether they may go.
const PATIENCE: Duration = Duration::from_millis(50);
/// In how many ways of a magazine a kind may be.
const PROBES: usize = 8;
/// How many tombstones a home sets aside at once, and for how many other blocks there is to be one.
const TOMBSTONES_TOGETHER: u64 = 64;
const BLOCKS_PER_TOMBSTONE: u64 = 16;
/// How many blocks are taken from a stack at once.
const TAKE: usize = 4;

/// A block: its home, its class and its offset, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(pub(super) u64);

impl Place {
    pub(super) fn new(home: MemberId, class: usize, offset: u64) -> Place {
        Place(u64::from(home.0) << 47 | (class as u64) << 40 | offset >> 4)
    }

    fn home(self) -> MemberId {
        MemberId((self.0 >> 47) as u32)
    }

    fn class(self) -> usize {
        (self.0 >> 40) as usize & 127
    }

    fn offset(self) -> u64 {
        (self.0 & ((1 << 40) - 1)) << 4
    }

    /// Whether it always goes back to its home.
    fn is_large(&self) -> bool {
        class_size(self.class()) > KEPT_LEN_MAX
    }

    /// The home and the class.
    fn kind(self) -> u64 {
        self.0 >> 40
    }
}

/// The blocks that one actor has at hand, and those that it has retired. Only the operation that has claimed the actor
/// touches them, and claiming orders one operation after the other: plain loads and stores will do.
pub(super) struct Magazine {
    ways: Vec<Way>,
    retired: Vec<AtomicU64>,
    retired_count: AtomicUsize,
    retired_bytes: AtomicU64,
}

/// Blocks of one home and class.
struct Way {
    /// The kind of the blocks, plus 1; 0 while there were none.
    kind: AtomicU64,
    count: AtomicUsize,
    /// How many of them it keeps.
    room: AtomicUsize,
    blocks: [AtomicU64; WAY_BLOCKS],
}

/// How many blocks of a class a magazine keeps. No tombstones: all members delete with the same ones.
fn kept(class: usize) -> usize {
    if class == TOMBSTONES {
        return 0;
    }
    let size = class_size(class);
    if size > KEPT_LEN_MAX { 0 } else { ((WAY_BYTES / size) as usize).clamp(1, WAY_BLOCKS) }
}

impl Magazine {
    pub(super) fn new(members: usize) -> Magazine {
        let way = || Way {
            kind: AtomicU64::new(0),
            count: AtomicUsize::new(0),
            room: AtomicUsize::new(0),
            blocks: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        Magazine {
            // For a few classes at each home; more of them share.
            ways: (0..(8 * members).next_power_of_two().clamp(16, 512)).map(|_| way()).collect(),
            retired: (0..BATCH_BLOCKS).map(|_| AtomicU64::new(0)).collect(),
            retired_count: AtomicUsize::new(0),
            retired_bytes: AtomicU64::new(0),
        }
    }

    /// The ways that may have blocks of a kind.
    #[inline(always)]
    fn ways(&self, kind: u64) -> impl Iterator<Item = &Way> {
        let first = (kind.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        (first..first + PROBES).map(|index| &self.ways[index & (self.ways.len() - 1)])
    }

    #[inline(always)]
    fn pop(&self, kind: u64) -> Option<(u64, u64)> {
        let way = self.ways(kind).find(|way| way.kind.load(Ordering::Relaxed) == kind + 1)?;
        let count = way.count.load(Ordering::Relaxed).checked_sub(1)?;
        way.count.store(count, Ordering::Relaxed);
        let block = |index: usize| way.blocks[index].load(Ordering::Relaxed);
        Some((block(count), block(count.saturating_sub(1))))
    }

    /// Puts a block into the magazine, if there is room.
    #[inline]
    fn push(&self, place: Place) -> bool {
        let kind = place.kind() + 1;
        let same = self.ways(place.kind()).find(|way| way.kind.load(Ordering::Relaxed) == kind);
        let Some(way) = same.or_else(|| self.new_way(place)) else { return false };
        let count = way.count.load(Ordering::Relaxed);
        let Some(block) = way.blocks.get(count).filter(|_| count < way.room.load(Ordering::Relaxed)) else {
            return false;
        };
        block.store(place.offset(), Ordering::Relaxed);
        way.count.store(count + 1, Ordering::Relaxed);
        true
    }

    /// A way for a kind that has none, if one is empty.
    #[cold]
    #[inline(never)]
    fn new_way(&self, place: Place) -> Option<&Way> {
        let way = self.ways(place.kind()).find(|way| way.count.load(Ordering::Relaxed) == 0)?;
        way.kind.store(place.kind() + 1, Ordering::Relaxed);
        way.room.store(kept(place.class()), Ordering::Relaxed);
        Some(way)
    }

    /// Notes a retired block; whether there are enough of them to look at the actors.
    #[inline(always)]
    fn retire(&self, place: Place) -> bool {
        let count = self.retired_count.load(Ordering::Relaxed);
        self.retired[count].store(place.0, Ordering::Relaxed);
        self.retired_count.store(count + 1, Ordering::Relaxed);
        let bytes = self.retired_bytes.load(Ordering::Relaxed) + class_size(place.class());
        self.retired_bytes.store(bytes, Ordering::Relaxed);
        count + 1 == BATCH_BLOCKS || bytes >= BATCH_BYTES
    }

    fn take_retired(&self) -> Vec<Place> {
        let count = self.retired_count.load(Ordering::Relaxed);
        self.retired_count.store(0, Ordering::Relaxed);
        self.retired_bytes.store(0, Ordering::Relaxed);
        self.retired[..count].iter().map(|word| Place(word.load(Ordering::Relaxed))).collect()
    }
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
        match self.block_at_hand(home, class) {
            Some((offset, _)) => Ok(offset),
            None => self.take_elsewhere(home, class),
        }
    }

    /// Takes a block from the magazine, if it has one; and the one that would come next, or the same.
    #[inline(always)]
    pub(super) fn block_at_hand(&self, home: MemberId, class: usize) -> Option<(u64, u64)> {
        self.magazine().pop(Place::new(home, class, 0).kind())
    }

    /// The same for when it has none.
    #[cold]
    #[inline(never)]
    pub(super) fn take_elsewhere(&self, home: MemberId, class: usize) -> Step<u64> {
        let kind = Place::new(home, class, 0).kind();
        self.reuse();
        let taken = self.magazine().pop(kind).map(|(offset, _)| offset);
        if let Some(offset) = taken.or_else(|| self.take_spare(kind)) {
            return Ok(offset);
        }
        if let Some(offset) = self.pop_several(home, class)? {
            return Ok(offset);
        }
        let (job, space) = (&self.store.job, &self.store.space);
        let limit = if self.is_hurried { HURRY } else { job.time_limit() };
        let until = job.now().after(limit);
        let mut asked = None;
        loop {
            let bell = job.bell();
            if home == job.me() {
                self.store.carve(class).map_err(|error| self.no_room(home, class, error.to_string()))?;
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
        if !self.magazine().push(place) {
            let space = &self.store.space;
            lock(&space.spare).entry(place.kind()).or_default().push(offset);
            space.spare_count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Moves a few blocks from the home's stack into the magazine; one of them is for the caller.
    fn pop_several(&self, home: MemberId, class: usize) -> Step<Option<u64>> {
        let mut first = None;
        for _ in 0..TAKE.min(kept(class).max(1)) {
            let popped = match self.pop(home, class) {
                // What was taken is not lost; the next call says the same.
                Err(_) if first.is_some() => break,
                popped => popped?,
            };
            match popped {
                None => break,
                Some(offset) if first.is_none() => first = Some(offset),
                Some(offset) => self.keep(home, class, offset),
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
                    .put(Epoch::ANY, home, top + BLOCK_HOLDER, &holder(self.store.me()).to_ne_bytes())
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
        if self.magazine().retire(Place::new(home, class, offset)) {
            self.retire_batch();
        }
    }

    /// Lets what this actor has retired be used again soon, though it may retire nothing for long.
    pub(super) fn flush_retired(&self) {
        if self.magazine().retired_count.load(Ordering::Relaxed) > 0 {
            self.retire_batch();
        }
    }

    #[cold]
    fn retire_batch(&self) {
        let space = &self.store.space;
        let blocks = self.magazine().take_retired();
        steps::enter(steps::Step::Retire);
        let is_large = blocks.iter().any(Place::is_large);
        let grace = Grace::begin(self.store);
        let count = {
            let mut batches = lock(&space.batches);
            batches.push(Batch { blocks, grace });
            batches.len()
        };
        space.batch_count.store(count, Ordering::Relaxed);
        if count > 1 {
            self.reuse();
        }
        if is_large {
            space.has_large.store(true, Ordering::Release);
            let _ = self.store.job.ring(self.store.me());
        }
    }

    /// Takes back the blocks of all batches for which the wait is over.
    fn reuse(&self) {
        self.reuse_or_give_back(true);
    }

    /// The same; if this actor is not to keep any, all go to the stacks of their homes.
    pub(super) fn reuse_or_give_back(&self, keeps: bool) {
        let (store, space) = (self.store, &self.store.space);
        if space.batch_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        // Taken out, so that no lock is held while the counters are read; two who do this work on different batches.
        let mut batches = std::mem::take(&mut *lock(&space.batches));
        let mut excess: BTreeMap<MemberId, Vec<Place>> = BTreeMap::new();
        let mut pinned = Vec::new();
        // Whoever keeps one from being over was inside an operation before it, and so keeps those that came later, too: if
        // somebody is stopped there are many, and all but the first few need not be asked.
        let mut left = LOOKED_AT;
        batches.retain_mut(|batch| {
            let is_over = left > 0 && batch.grace.is_over(store);
            left -= usize::from(left > 0 && !is_over);
            if is_over {
                let is_pinned = |place: &Place| batch.grace.is_pinned(place.home(), place.offset());
                pinned.extend(batch.blocks.extract_if(.., |place| is_pinned(place)));
                for &place in batch.blocks.iter().filter(|&&place| !keeps || !self.magazine().push(place)) {
                    excess.entry(place.home()).or_default().push(place);
                }
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
        for (home, places) in excess {
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
                let of = slabs.all.values().filter(|(class, _)| (*class == TOMBSTONES) == is_tombstone);
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
    fn a_magazine_gives_back_the_last_and_keeps_to_its_bound() {
        let magazine = Magazine::new(4);
        let place = |index: u64| Place::new(MemberId(3), 2, 64 + index * 96);
        let kind = place(0).kind();
        assert_eq!(magazine.pop(kind), None);
        let pushed = (0..1000).take_while(|&index| magazine.push(place(index))).count();
        assert_eq!(pushed, WAY_BLOCKS);
        let last = WAY_BLOCKS as u64 - 1;
        assert_eq!(magazine.pop(kind), Some((place(last).offset(), place(last - 1).offset())));
        assert_eq!(magazine.pop(kind + 1), None, "of another class");
        // Of large blocks one, of very large ones none.
        assert_eq!((kept(52), kept(80)), (1, 0));
    }
}

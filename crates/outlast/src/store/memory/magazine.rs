//! The blocks that one participant has at hand, and those that it has retired.
//!
//! Only the operation that has claimed the participant touches them, and claiming orders one
//! operation after the other: plain loads and stores will do.
//!
//! Blocks of one replica and class are in one *way*, a ring in which they go round without being
//! moved: who writes the same key again takes one at the front and retires another one at the back.
//!
//! ```text
//!   taken           free            put
//!     |  to be used  |  retired      |
//! ```
//!
//! | step | true afterwards |
//! |---|---|
//! | a block is retired | it lies before `put`; someone may still see it |
//! | at the end of an operation, when enough are retired: the counters of all other participants are looked at | |
//! | nobody is inside an operation: `free` is set to `put` | nobody sees what was retired |
//! | somebody is: what was retired leaves the ring and waits, for all participants of the member, in `space.rs` | |
//! | a block is taken, from before `free` | it is the taker's alone |
//!
//! The ring is private memory: if its member dies, its blocks are found by what is written in them
//! (see `space.rs`).

use crate::engine::MemberId;
use crate::store::memory::allocator::kept;
use crate::store::segment::place::{CLASS_BITS, CLASS_MASK, Place};
use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// How many blocks a way has room for; of those to be used it keeps fewer.
const RING: usize = 128;

/// How many blocks are retired in one way before the participants are looked at, at most.
const TURN_MAX: usize = 32;

/// How many that are to be used a way keeps at most.
pub(in crate::store) const ROOM_MAX: usize = RING - 2 * TURN_MAX;

/// In how many ways of a magazine a kind may be.
const PROBES: usize = 8;

pub(in crate::store) struct Magazine {
    /// Whether replicas are far away.
    is_far: bool,
    ways: Vec<BlockRing>,
    /// Whether the participants should be looked at.
    is_due: AtomicBool,
    /// The ways with retired blocks.
    fresh: Mutex<Vec<usize>>,
}

/// Blocks of one replica and class. The positions only grow, modulo 2^64.
#[repr(align(64))]
pub(in crate::store) struct BlockRing {
    /// The kind of the blocks, plus 1; 0 while there were none.
    kind: AtomicU64,
    taken: AtomicUsize,
    free: AtomicUsize,
    put: AtomicUsize,
    /// One less than how many are retired before the participants are looked at: a power of two.
    turn_mask: AtomicUsize,
    /// How many that are to be used it keeps.
    room: AtomicUsize,
    index: usize,
    blocks: [AtomicU64; RING],
}

#[inline(always)]
fn load(position: &AtomicUsize) -> usize {
    position.load(Ordering::Relaxed)
}

impl BlockRing {
    fn new(index: usize) -> BlockRing {
        BlockRing {
            kind: AtomicU64::new(0),
            taken: AtomicUsize::new(0),
            free: AtomicUsize::new(0),
            put: AtomicUsize::new(0),
            turn_mask: AtomicUsize::new(0),
            room: AtomicUsize::new(0),
            index,
            blocks: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    #[inline(always)]
    fn at(&self, position: usize) -> &AtomicU64 {
        &self.blocks[position % RING]
    }

    fn is_empty(&self) -> bool {
        load(&self.taken) == load(&self.put)
    }

    /// Takes a block, if there is one; and the one that would come next, or some other offset.
    #[inline(always)]
    pub(in crate::store) fn take(&self) -> Option<(u64, u64)> {
        let taken = load(&self.taken);
        if taken == load(&self.free) {
            return None;
        }
        let next = taken.wrapping_add(1);
        self.taken.store(next, Ordering::Relaxed);
        Some((self.at(taken).load(Ordering::Relaxed), self.at(next).load(Ordering::Relaxed)))
    }

    /// Puts a block that nobody sees to those that are to be used, if there is room.
    fn keep(&self, offset: u64) -> bool {
        let taken = load(&self.taken);
        let is_room = load(&self.free).wrapping_sub(taken) < load(&self.room)
            && load(&self.put).wrapping_sub(taken) < RING;
        if is_room {
            let front = taken.wrapping_sub(1);
            self.at(front).store(offset, Ordering::Relaxed);
            self.taken.store(front, Ordering::Relaxed);
        }
        is_room
    }

    /// Nobody sees what was retired: it is to be used. Returns those for which there is no room.
    /// Only of these: what was taken from a stack and not used must not go back there.
    fn free_retired(&self) -> impl Iterator<Item = Place> {
        let [taken, free, put] = [&self.taken, &self.free, &self.put].map(load);
        let excess =
            put.wrapping_sub(taken).saturating_sub(load(&self.room)).min(put.wrapping_sub(free));
        let end = put.wrapping_sub(excess);
        self.free.store(end, Ordering::Relaxed);
        self.put.store(end, Ordering::Relaxed);
        self.places(end, excess)
    }

    /// Takes what was retired out of the ring.
    fn take_retired(&self) -> impl Iterator<Item = Place> {
        let (free, put) = (load(&self.free), load(&self.put));
        self.put.store(free, Ordering::Relaxed);
        self.places(free, put.wrapping_sub(free))
    }

    fn places(&self, from: usize, count: usize) -> impl Iterator<Item = Place> {
        (0..count)
            .map(move |index| self.place(self.at(from.wrapping_add(index)).load(Ordering::Relaxed)))
    }

    fn place(&self, offset: u64) -> Place {
        Place::of_kind(self.kind.load(Ordering::Relaxed) - 1, offset)
    }
}

impl Magazine {
    pub(in crate::store) fn new(members: usize, is_far: bool) -> Magazine {
        // For a few classes at each replica; more of them share.
        let ways = (8 * members).next_power_of_two().clamp(16, 512);
        Magazine {
            is_far,
            ways: (0..ways).map(BlockRing::new).collect(),
            is_due: AtomicBool::new(false),
            fresh: Mutex::default(),
        }
    }

    #[inline(always)]
    fn probe(&self, kind: u64, probe: usize) -> &BlockRing {
        // Eight for each replica, as long as there are so many; neighbouring classes side by side.
        let first = (kind >> CLASS_BITS << 3) ^ (kind & CLASS_MASK);
        &self.ways[(first as usize).wrapping_add(probe) & (self.ways.len() - 1)]
    }

    /// The way of a replica and class, if it has one.
    #[inline(always)]
    pub(in crate::store) fn way(&self, replica: MemberId, class: usize) -> Option<&BlockRing> {
        let kind = Place::new(replica, class, 0).kind();
        let first = self.probe(kind, 0);
        if first.kind.load(Ordering::Relaxed) == kind + 1 {
            Some(first)
        } else {
            self.other_way(kind)
        }
    }

    #[cold]
    #[inline(never)]
    fn other_way(&self, kind: u64) -> Option<&BlockRing> {
        let mut others = (1..PROBES).map(|probe| self.probe(kind, probe));
        others.find(|way| way.kind.load(Ordering::Relaxed) == kind + 1)
    }

    /// The way of a replica and class; an empty one, if it has none.
    fn way_or_new(&self, place: Place) -> Option<&BlockRing> {
        if let Some(way) = self.way(place.replica(), place.class()) {
            return Some(way);
        }
        let way =
            (0..PROBES).map(|probe| self.probe(place.kind(), probe)).find(|way| way.is_empty())?;
        let room = kept(place.class(), self.is_far).min(ROOM_MAX);
        way.kind.store(place.kind() + 1, Ordering::Relaxed);
        way.room.store(room, Ordering::Relaxed);
        let turn = 1 << room.max(1).ilog2();
        way.turn_mask.store(turn.min(TURN_MAX) - 1, Ordering::Relaxed);
        Some(way)
    }

    /// Takes a block of a replica and class, if there is one.
    #[inline]
    pub(in crate::store) fn take(&self, replica: MemberId, class: usize) -> Option<u64> {
        self.way(replica, class)?.take().map(|(offset, _)| offset)
    }

    /// Keeps a block that nobody sees, if there is room.
    pub(in crate::store) fn keep(&self, place: Place) -> bool {
        self.way_or_new(place).is_some_and(|way| way.keep(place.offset()))
    }

    /// Retires a block, if there is room. Afterwards [`Magazine::is_due`] may be true.
    pub(in crate::store) fn retire(&self, place: Place) -> bool {
        // A way that keeps nothing has no use for them.
        let way = self.way_or_new(place).filter(|way| load(&way.room) > 0);
        way.is_some_and(|way| self.retire_in(way, place.offset()))
    }

    /// The same for a block of this way.
    #[inline(always)]
    pub(in crate::store) fn retire_in(&self, way: &BlockRing, offset: u64) -> bool {
        let put = load(&way.put);
        if put.wrapping_sub(load(&way.taken)) >= RING {
            return false;
        }
        way.at(put).store(offset, Ordering::Relaxed);
        let put = put.wrapping_add(1);
        way.put.store(put, Ordering::Relaxed);
        let since = put.wrapping_sub(load(&way.free));
        if since == 1 {
            self.record_fresh(way.index);
        }
        if since & load(&way.turn_mask) == 0 {
            self.is_due.store(true, Ordering::Relaxed);
        }
        true
    }

    #[cold]
    #[inline(never)]
    fn record_fresh(&self, way: usize) {
        lock(&self.fresh).push(way);
    }

    /// Whether something is to be gained by a look at the participants.
    #[inline(always)]
    pub(in crate::store) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed)
    }

    /// All blocks that are in it.
    #[cfg(all(test, feature = "sim"))]
    pub(in crate::store) fn places(&self) -> Vec<Place> {
        let of = |way: &BlockRing| {
            let [taken, put] = [&way.taken, &way.put].map(load);
            way.places(taken, put.wrapping_sub(taken)).collect::<Vec<_>>()
        };
        self.ways.iter().flat_map(of).collect()
    }

    /// Nobody sees what was retired. Those for which there is no room are returned.
    pub(in crate::store) fn free_retired(&self) -> Vec<Place> {
        self.is_due.store(false, Ordering::Relaxed);
        lock(&self.fresh).drain(..).flat_map(|index| self.ways[index].free_retired()).collect()
    }

    /// What was retired.
    pub(in crate::store) fn take_retired(&self) -> Vec<Place> {
        self.is_due.store(false, Ordering::Relaxed);
        lock(&self.fresh).drain(..).flat_map(|index| self.ways[index].take_retired()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: MemberId = MemberId(3);

    fn place(class: usize, index: u64) -> Place {
        Place::new(HOME, class, 64 + index * 4096)
    }

    #[test]
    fn what_was_kept_last_is_taken_first_and_there_is_a_bound() {
        let magazine = Magazine::new(4, false);
        assert_eq!(magazine.take(HOME, 2), None);
        let room = kept(2, false).min(ROOM_MAX);
        let count = (0..1000).take_while(|&index| magazine.keep(place(2, index))).count();
        assert_eq!(count, room);
        assert_eq!(magazine.take(HOME, 2), Some(place(2, room as u64 - 1).offset()));
        assert_eq!(magazine.take(HOME, 3), None, "of another class");
    }

    #[test]
    fn what_was_retired_is_had_again_when_nobody_sees_it() {
        let magazine = Magazine::new(4, false);
        for index in 0..TURN_MAX as u64 {
            assert!(!magazine.is_due(), "after {index}");
            assert!(magazine.retire(place(2, index)));
        }
        assert!(magazine.is_due());
        assert_eq!(magazine.take(HOME, 2), None);
        assert!(magazine.free_retired().is_empty() && !magazine.is_due());
        assert!(magazine.retire(place(2, 100)));
        for index in 0..TURN_MAX as u64 {
            assert_eq!(magazine.take(HOME, 2), Some(place(2, index).offset()));
        }
        assert_eq!(magazine.take(HOME, 2), None, "somebody may see it");
        assert_eq!(magazine.take_retired(), [place(2, 100)]);
        assert!(magazine.free_retired().is_empty());
        assert_eq!(magazine.take(HOME, 2), None);
    }

    /// Blocks beyond the room are given back, but only such as were retired, and none is lost or
    /// doubled.
    #[test]
    fn what_there_is_no_room_for_comes_out() {
        let class = (0..100).find(|&class| kept(class, false) == 4).expect("some class keeps four");
        let magazine = Magazine::new(4, false);
        assert!(magazine.keep(place(class, 50)) && magazine.keep(place(class, 51)));
        for index in 0..10 {
            assert!(magazine.retire(place(class, index)));
        }
        let excess = magazine.free_retired();
        assert_eq!(excess, (2..10).map(|index| place(class, index)).collect::<Vec<_>>());
        let take = || magazine.take(HOME, class);
        let expected = [51, 50, 0, 1].map(|index| Some(place(class, index).offset()));
        assert_eq!([take(), take(), take(), take()], expected);
        assert_eq!(take(), None);
    }

    #[test]
    fn a_ring_is_full_at_its_bound_and_goes_round_for_ever() {
        let magazine = Magazine::new(4, false);
        let count = (0..1000).take_while(|&index| magazine.retire(place(2, index))).count();
        assert_eq!(count, RING);
        // Nobody has looked: it is never written over.
        assert_eq!(magazine.take(HOME, 2), None);
        assert_eq!(magazine.take_retired().len(), RING);
        assert!((0..4).all(|index| magazine.keep(place(2, index))));
        for _ in 0..10 * RING {
            let taken = magazine.take(HOME, 2).expect("one was freed");
            assert!(magazine.retire(Place::new(HOME, 2, taken)));
            assert!(magazine.free_retired().is_empty());
        }
    }
}

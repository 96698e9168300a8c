//! Magazines: the free and retired blocks of a participant (Bonwick and Adams, 2001).
//!
//! The blocks of a replica and class are in a ring, in which they go round without being moved. A
//! writer that writes a key again and again takes a block at the front and retires another block at
//! the back:
//!
//! ```text
//!   taken           free            put
//!     |  to be used  |  retired      |
//! ```
//!
//! 1. An operation retires a block: the block lies before `put`, and an operation in flight may
//!    still see it.
//! 2. At the end of an operation, when enough blocks are retired, the operation reads the operation
//!    counters of all other participants.
//! 3. If no other operation is in flight, `free` is set to `put`: no operation sees the retired
//!    blocks any more. Otherwise the retired blocks leave the ring and wait, for all participants
//!    of the member, in a batch of the allocator (`allocator.rs`).
//! 4. An operation takes a block from before `free`: the block belongs to it alone.
//!
//! The ring is private memory. If its member dies, the replicas find its blocks by their holder
//! words (`recovery/reclaim.rs`).

use crate::engine::MemberId;
use crate::store::memory::allocator::kept;
use crate::store::segment::place::{CLASS_BITS, CLASS_MASK, Place};
use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// How many blocks a ring has room for. It keeps fewer free blocks than that.
const RING: usize = 128;

/// The largest number of blocks that are retired in a ring before the operation counters are read.
const TURN_MAX: usize = 32;

/// The largest number of free blocks that a ring keeps.
pub(in crate::store::memory) const ROOM_MAX: usize = RING - 2 * TURN_MAX;

/// How many rings of a magazine a kind (replica and class) may choose from.
const PROBES: usize = 8;

/// The blocks of a participant.
///
/// *Orderings.* Only the operation that has claimed the participant touches its magazine. A claim
/// is a sequentially consistent swap of the operation counter, and an operation ends with a release
/// fence before its counter becomes even. So every operation of a participant comes after the
/// operation before it, and relaxed loads and stores suffice for the magazine and its rings.
pub(in crate::store) struct Magazine {
    /// Whether the memory of replicas is remote.
    is_far: bool,
    rings: Vec<BlockRing>,
    /// Whether enough blocks are retired to read the operation counters.
    is_due: AtomicBool,
    /// The rings with retired blocks.
    fresh: Mutex<Vec<usize>>,
}

/// A ring with the blocks of a replica and class. The positions only grow, modulo 2^64.
#[repr(align(64))]
pub(in crate::store) struct BlockRing {
    /// The kind of the blocks, plus 1; 0 while the ring was never used.
    kind: AtomicU64,
    /// The position of the first free block.
    taken: AtomicUsize,
    /// The position behind the last free block: the first retired block.
    free: AtomicUsize,
    /// The position behind the last retired block.
    put: AtomicUsize,
    /// The number of retired blocks after which the operation counters are read, minus 1. The
    /// number is a power of two.
    turn_mask: AtomicUsize,
    /// How many free blocks the ring keeps.
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

    /// Takes a free block, or returns `None`. Also returns the offset of the block that comes next,
    /// for prefetching. That offset is arbitrary if no block comes next.
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

    /// Adds a block that no operation can see to the free blocks, if there is room.
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

    /// Makes the retired blocks free, since no operation can see them any more. Returns the retired
    /// blocks for which there is no room. Only retired blocks may be returned to the free list of
    /// their replica: a block that was taken from there and not used must not go back (ABA).
    fn free_retired(&self) -> impl Iterator<Item = Place> {
        let [taken, free, put] = [&self.taken, &self.free, &self.put].map(load);
        let excess =
            put.wrapping_sub(taken).saturating_sub(load(&self.room)).min(put.wrapping_sub(free));
        let end = put.wrapping_sub(excess);
        self.free.store(end, Ordering::Relaxed);
        self.put.store(end, Ordering::Relaxed);
        self.places(end, excess)
    }

    /// Takes the retired blocks out of the ring.
    fn take_retired(&self) -> impl Iterator<Item = Place> {
        let (free, put) = (load(&self.free), load(&self.put));
        self.put.store(free, Ordering::Relaxed);
        self.places(free, put.wrapping_sub(free))
    }

    /// Takes all blocks out of the ring, free and retired.
    fn take_all(&self) -> impl Iterator<Item = Place> {
        let (taken, put) = (load(&self.taken), load(&self.put));
        self.taken.store(put, Ordering::Relaxed);
        self.free.store(put, Ordering::Relaxed);
        self.places(taken, put.wrapping_sub(taken))
    }

    /// The locations of `count` blocks from this position on.
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
        // The rings suffice for a few classes at each replica. More classes share them.
        let rings = (8 * members).next_power_of_two().clamp(16, 512);
        Magazine {
            is_far,
            rings: (0..rings).map(BlockRing::new).collect(),
            is_due: AtomicBool::new(false),
            fresh: Mutex::default(),
        }
    }

    /// A ring that this kind may use; `probe` 0 is tried first.
    #[inline(always)]
    fn probe(&self, kind: u64, probe: usize) -> &BlockRing {
        // Each replica has eight rings, as long as there are so many. Adjacent classes have
        // adjacent rings.
        let first = (kind >> CLASS_BITS << 3) ^ (kind & CLASS_MASK);
        &self.rings[(first as usize).wrapping_add(probe) & (self.rings.len() - 1)]
    }

    /// The ring of a replica and class, or `None`.
    #[inline(always)]
    pub(in crate::store) fn ring(&self, replica: MemberId, class: usize) -> Option<&BlockRing> {
        let kind = Place::kind_of(replica, class);
        let first = self.probe(kind, 0);
        if first.kind.load(Ordering::Relaxed) == kind + 1 {
            Some(first)
        } else {
            self.other_ring(kind)
        }
    }

    /// The ring into which blocks of a replica and class are retired, or `None`. A ring that keeps
    /// no blocks has no use for retired blocks.
    #[inline(always)]
    pub(in crate::store) fn ring_to_retire(
        &self,
        replica: MemberId,
        class: usize,
    ) -> Option<&BlockRing> {
        self.ring(replica, class).filter(|ring| load(&ring.room) > 0)
    }

    /// The ring of a kind, if it is not the first ring that the kind may use.
    #[cold]
    #[inline(never)]
    fn other_ring(&self, kind: u64) -> Option<&BlockRing> {
        let mut others = (1..PROBES).map(|probe| self.probe(kind, probe));
        others.find(|ring| ring.kind.load(Ordering::Relaxed) == kind + 1)
    }

    /// The ring of a replica and class, or an empty ring that it takes over.
    fn ring_or_new(&self, place: Place) -> Option<&BlockRing> {
        if let Some(ring) = self.ring(place.replica(), place.class()) {
            return Some(ring);
        }
        let ring = (0..PROBES)
            .map(|probe| self.probe(place.kind(), probe))
            .find(|ring| ring.is_empty())?;
        let room = kept(place.class(), self.is_far).min(ROOM_MAX);
        ring.kind.store(place.kind() + 1, Ordering::Relaxed);
        ring.room.store(room, Ordering::Relaxed);
        let turn = 1 << room.max(1).ilog2();
        ring.turn_mask.store(turn.min(TURN_MAX) - 1, Ordering::Relaxed);
        Some(ring)
    }

    /// Takes a free block of a replica and class, or returns `None`.
    #[inline]
    pub(in crate::store) fn take(&self, replica: MemberId, class: usize) -> Option<u64> {
        self.ring(replica, class)?.take().map(|(offset, _)| offset)
    }

    /// Keeps a block that no operation can see, if there is room.
    pub(in crate::store) fn keep(&self, place: Place) -> bool {
        self.ring_or_new(place).is_some_and(|ring| ring.keep(place.offset()))
    }

    /// Retires a block, if there is room. Afterwards [`Magazine::is_due`] may be true.
    pub(in crate::store) fn retire(&self, place: Place) -> bool {
        // A ring that keeps no blocks has no use for retired blocks.
        let ring = self.ring_or_new(place).filter(|ring| load(&ring.room) > 0);
        ring.is_some_and(|ring| self.retire_in(ring, place.offset()))
    }

    /// Retires a block into its ring, if there is room.
    #[inline(always)]
    pub(in crate::store) fn retire_in(&self, ring: &BlockRing, offset: u64) -> bool {
        let put = load(&ring.put);
        if put.wrapping_sub(load(&ring.taken)) >= RING {
            return false;
        }
        ring.at(put).store(offset, Ordering::Relaxed);
        let put = put.wrapping_add(1);
        ring.put.store(put, Ordering::Relaxed);
        let since = put.wrapping_sub(load(&ring.free));
        if since == 1 {
            self.record_fresh(ring.index);
        }
        if since & load(&ring.turn_mask) == 0 {
            self.is_due.store(true, Ordering::Relaxed);
        }
        true
    }

    /// Records that a ring has retired blocks.
    #[cold]
    #[inline(never)]
    fn record_fresh(&self, ring: usize) {
        lock(&self.fresh).push(ring);
    }

    /// Whether enough blocks are retired to read the operation counters.
    #[inline(always)]
    pub(in crate::store::memory) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed)
    }

    /// All blocks of the magazine.
    #[cfg(all(test, feature = "sim"))]
    pub(in crate::store) fn places(&self) -> Vec<Place> {
        let of = |ring: &BlockRing| {
            let [taken, put] = [&ring.taken, &ring.put].map(load);
            ring.places(taken, put.wrapping_sub(taken)).collect::<Vec<_>>()
        };
        self.rings.iter().flat_map(of).collect()
    }

    /// Takes all blocks of a kind out of the magazine, free and retired.
    pub(in crate::store::memory) fn take_all(&self, kind: u64) -> Vec<Place> {
        let place = Place::of_kind(kind, 0);
        let ring = self.ring(place.replica(), place.class());
        ring.map_or(Vec::new(), |ring| ring.take_all().collect())
    }

    /// Makes the retired blocks free, since no operation can see them any more. Returns the retired
    /// blocks for which there is no room.
    pub(in crate::store::memory) fn free_retired(&self) -> Vec<Place> {
        self.is_due.store(false, Ordering::Relaxed);
        lock(&self.fresh).drain(..).flat_map(|index| self.rings[index].free_retired()).collect()
    }

    /// Takes the retired blocks out of the magazine.
    pub(in crate::store::memory) fn take_retired(&self) -> Vec<Place> {
        self.is_due.store(false, Ordering::Relaxed);
        lock(&self.fresh).drain(..).flat_map(|index| self.rings[index].take_retired()).collect()
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
    fn the_last_kept_block_is_taken_first_and_room_is_bounded() {
        let magazine = Magazine::new(4, false);
        assert_eq!(magazine.take(HOME, 2), None);
        let room = kept(2, false).min(ROOM_MAX);
        let count = (0..1000).take_while(|&index| magazine.keep(place(2, index))).count();
        assert_eq!(count, room);
        assert_eq!(magazine.take(HOME, 2), Some(place(2, room as u64 - 1).offset()));
        assert_eq!(magazine.take(HOME, 3), None, "of another class");
    }

    #[test]
    fn retired_blocks_are_taken_again_after_they_are_freed() {
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

    /// Retired blocks for which there is no room are returned, free blocks are not, and no block is
    /// lost or doubled.
    #[test]
    fn retired_blocks_without_room_are_returned() {
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

    /// All blocks of a kind leave the magazine, free and retired, and the ring works as before.
    #[test]
    fn all_blocks_of_a_kind_are_taken_out() {
        let magazine = Magazine::new(4, false);
        assert!(magazine.keep(place(2, 1)) && magazine.retire(place(2, 2)));
        assert!(magazine.keep(place(3, 3)));
        assert_eq!(magazine.take_all(place(2, 0).kind()), [place(2, 1), place(2, 2)]);
        assert!(magazine.take_all(place(2, 0).kind()).is_empty());
        assert_eq!((magazine.take(HOME, 2), magazine.take_retired()), (None, vec![]));
        assert!(magazine.retire(place(2, 4)));
        assert_eq!(magazine.take_retired(), [place(2, 4)]);
        assert_eq!(magazine.take(HOME, 3), Some(place(3, 3).offset()));
    }

    #[test]
    fn a_full_ring_refuses_blocks_and_blocks_go_round() {
        let magazine = Magazine::new(4, false);
        let count = (0..1000).take_while(|&index| magazine.retire(place(2, index))).count();
        assert_eq!(count, RING);
        // The counters were not read, so no retired block is overwritten or taken.
        assert_eq!(magazine.take(HOME, 2), None);
        assert_eq!(magazine.take_retired().len(), RING);
        assert!((0..4).all(|index| magazine.keep(place(2, index))));
        for _ in 0..10 * RING {
            let taken = magazine.take(HOME, 2).expect("one was freed");
            assert!(magazine.retire(Place::new(HOME, 2, taken)));
            assert!(magazine.free_retired().is_empty());
        }
    }

    /// In a job of more than 64 members two replicas of a key may share their rings. A put to a
    /// value of another size class retires a block at each of them. The replica that comes first
    /// has no ring for the class, and the other has an empty ring. Each block stays a block of its
    /// own replica.
    #[cfg(feature = "sim")]
    #[test]
    fn a_replaced_block_is_retired_at_its_own_replica() {
        use crate::engine::sim::{self, Link, Options as SimOptions};
        use crate::store::record::state::RecordOp;
        use crate::store::segment::layout::{class_of, value_start};
        use crate::store::testing::nap;
        use crate::store::{Options, Store};
        use std::cell::Cell;

        let is_over = Cell::new(false);
        let mut options = SimOptions::new(68, 1).link(Link::Memory);
        options.steps_max = 500_000_000;
        sim::run(&options, move |job: crate::Job| {
            let options = Options::new().replicas(3).partitions(1024).expected_keys(64);
            let store = Store::open(&job, options).expect("open");
            // The replicas of a key in the order in which a put retires their blocks, with these.
            let blocks_of = |key: &[u8]| {
                let key = store.state.key_ref(key).expect("a key");
                let op = RecordOp::begin(&store.state).expect("begun");
                let config = op.config(key.partition).expect("replicas");
                let offset = |replica| {
                    let (_, head) = op.find(config, replica, &key).expect("found")?;
                    head.offset()
                };
                let mut found: Vec<(MemberId, Option<u64>)> =
                    config.enumerate().map(|(replica, member)| (member, offset(replica))).collect();
                found.sort_by_key(|&(member, _)| member == config.primary_member());
                found
            };
            if job.me() == MemberId(40) {
                let shared = |found: &[(MemberId, Option<u64>)]| {
                    let pairs = [(0, 1), (0, 2), (1, 2)];
                    pairs.into_iter().find(|&(one, two)| found[one].0.0 % 64 == found[two].0.0 % 64)
                };
                let mut keys = (0..100_000).map(|number| format!("key/{number}").into_bytes());
                let (key, (one, two)) = keys
                    .find_map(|key| shared(&blocks_of(&key)).map(|pair| (key, pair)))
                    .expect("some key");
                // The second put of a size is on the fast path.
                let (short, long) = (100, 1000);
                for len in [long, long, short, long, short, short] {
                    store.put(&key, &vec![1; len]).expect("put");
                }
                let found = blocks_of(&key);
                let ((first, at_first), (second, at_second)) = (found[one], found[two]);
                let op = RecordOp::begin(&store.state).expect("begun");
                let magazine = op.magazine();
                let len = short as u64;
                let class = class_of(value_start(len) + len).expect("a class");
                let kinds = [first, second].map(|member| Place::kind_of(member, class));
                kinds.iter().for_each(|&kind| drop(magazine.take_all(kind)));
                // Blocks of other kinds take the empty rings over.
                let mut others = Vec::new();
                for part in 1..8 {
                    if [first, second].iter().all(|&at| magazine.ring(at, class).is_none()) {
                        break;
                    }
                    let other =
                        Place::new(MemberId(first.0 ^ part), class ^ (part as usize) << 3, 64);
                    assert!(magazine.keep(other));
                    others.push(other.kind());
                }
                // The second replica gets a ring again, which is empty.
                magazine.take_all(others[0]);
                assert!(magazine.keep(Place::new(second, class, 128)));
                assert_eq!(magazine.take(second, class), Some(128));
                assert!(magazine.ring(first, class).is_none(), "no ring");
                drop(op);
                store.put(&key, &vec![2; long]).expect("put");
                let op = RecordOp::begin(&store.state).expect("begun");
                others.iter().for_each(|&kind| drop(op.magazine().take_all(kind)));
                drop(op);
                let known = store.state.known_blocks();
                for (member, offset) in [(first, at_first), (second, at_second)] {
                    assert!(known.contains(&(member, offset.expect("a block"))), "{member}");
                }
                is_over.set(true);
            }
            nap(&job, "the writer", || is_over.get());
        })
        .expect_ok();
    }
}

//! One operation's access to the members' memories, under one view.

use super::StoreError;
use super::layout::{ACTOR_COUNTER, ACTOR_OUTCOME, ACTORS, ACTORS_USED, PINS_SHIFT};
use super::magazine::Magazine;
use super::open::Inner;

use super::steps;
use crate::engine::mapped::{Direct, Memory, Reach};
use crate::engine::{Done, Epoch, Error, MemberId, Operation, Pending};
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

/// Why an operation cannot go on as it is.
#[derive(Debug)]
pub(super) enum Halt {
    /// The view has changed, or someone else was faster: begin again.
    Again,
    /// The store is frozen: begin again when it is not.
    Frozen,
    /// A transaction is in the way: get it out of the way, and begin again.
    Blocked(Box<super::tx::Blocker>),
    /// No complete copy of this partition lives.
    Lost(usize),
    /// It cannot be done.
    Fail(StoreError),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Halt {
        match error {
            // Both say that the view is newer than the operation.
            Error::Stale { .. } | Error::Dead { .. } => Halt::Again,
            Error::Timeout { member, limit } => Halt::Fail(StoreError::Timeout { member, limit }),
            Error::Ended => Halt::Fail(StoreError::Closed),
            other => Halt::Fail(StoreError::Engine(other)),
        }
    }
}

impl From<StoreError> for Halt {
    fn from(error: StoreError) -> Halt {
        Halt::Fail(error)
    }
}

pub(super) type Step<T> = Result<T, Halt>;

/// The operations that this member may have under way at once.
///
/// An actor is claimed by making its counter, which lies in the segment, odd: the same swap tells the others that it is
/// inside an operation. It is given back by one plain write.
pub(super) struct Actors {
    actors: Vec<Actor>,
    /// How many are known to the others; see [`ACTORS_USED`].
    announced: AtomicUsize,
    /// Tells stores of one process apart.
    id: u64,
}

/// Own lines, so that threads do not disturb each other.
#[derive(Default)]
#[repr(align(128))]
struct Actor {
    /// The even number that the counter had when it was last seen so.
    counter: AtomicU64,
    /// The blocks at hand; changed only by the operation that has claimed the actor.
    magazine: OnceLock<Box<Magazine>>,
}

thread_local! {
    /// The actor that this thread used last, and of which store: the next operation tries it first.
    static LAST: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

/// How long to sleep while all actors are in use: nobody rings when one is given back.
const CROWDED: Duration = Duration::from_micros(200);

impl Actors {
    pub(super) fn new() -> Actors {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Actors {
            actors: (0..ACTORS).map(|_| Actor::default()).collect(),
            announced: AtomicUsize::new(0),
            id: IDS.fetch_add(1, Ordering::Relaxed),
        }
    }
}

#[cfg(all(test, feature = "sim"))]
impl Actors {
    /// The magazines, while nobody uses them.
    pub(super) fn magazines(&self) -> impl Iterator<Item = &Magazine> {
        self.actors.iter().filter_map(|actor| actor.magazine.get()).map(Box::as_ref)
    }
}

/// An operation that is under way: while it exists, nothing that it may have seen is reused.
pub(super) struct Op<'a> {
    pub(super) store: &'a Inner,
    pub(super) actor: usize,
    pub(super) epoch: Epoch,
    /// The operation's number: the actor's counter, which is odd.
    pub(super) number: u64,
    /// This member's own memory.
    mine: Reach<'a>,
    /// Where in it the actor's counter is.
    word: u64,
    /// Whether a home had no tombstone left; they come back when deleted keys have been removed.
    pub(super) lacks_tombstone: Cell<bool>,
}

impl<'a> Op<'a> {
    /// Begins an operation with the actor that this thread used last, if that can be had at once.
    #[inline(always)]
    pub(super) fn begin_again<D: Direct<'a>>(store: &'a Inner, direct: D) -> Option<Op<'a>> {
        let (id, index) = LAST.with(Cell::get);
        // Its actor is known to the others since then.
        let actor = store.actors.actors.get(index).filter(|_| id == store.actors.id)?;
        let me = store.job.me();
        steps::enter(steps::Step::WriteEnter);
        direct.known_epoch()?;
        let mine = direct.reach(me)?;
        let even = actor.counter.load(Ordering::Relaxed);
        // As in `claim`.
        let word = store.counter_word(me, index);
        if mine.swap(word, even, even + 1) != Some(true) {
            return None;
        }
        let mut op = Op {
            store,
            actor: index,
            epoch: Epoch::ANY,
            number: even + 1,
            mine: mine.into(),
            word,
            lacks_tombstone: Cell::new(false),
        };
        op.epoch = direct.known_epoch()?;
        Some(op)
    }

    /// Begins an operation under the current view.
    #[inline]
    pub(super) fn begin(store: &'a Inner) -> Step<Op<'a>> {
        let (id, last) = LAST.with(Cell::get);
        let first = if id == store.actors.id { last } else { 0 };
        match Op::claim(store, first)? {
            Some(op) => Ok(op),
            None => Op::begin_crowded(store, first),
        }
    }

    /// Tries this actor, then all of them: the first ones are used most, so that few have blocks at hand.
    #[inline]
    fn claim(store: &'a Inner, first: usize) -> Step<Option<Op<'a>>> {
        let (job, me) = (&store.job, store.job.me());
        steps::enter(steps::Step::WriteEnter);
        let mine = job.reach(Epoch::ANY, me)?;
        for index in std::iter::once(first).chain(0..ACTORS) {
            if store.actors.announced.load(Ordering::Acquire) <= index {
                announce(store, index)?;
            }
            let actor = &store.actors.actors[index];
            let word = store.counter_word(me, index);
            let mut even = actor.counter.load(Ordering::Relaxed);
            // Whoever frees something after this sees that the actor is inside; what it freed before, this cannot see.
            // A second try if another thread has used the actor since it was last seen.
            for _ in 0..2 {
                let Some(is_claimed) = mine.swap(word, even, even + 1) else {
                    // The ordinary call says why, or has learned that the segment is longer by now.
                    job.load(Epoch::ANY, me, word)?;
                    return Err(Halt::Again);
                };
                if is_claimed {
                    LAST.with(|last| last.set((store.actors.id, index)));
                    let (epoch, lacks_tombstone) = (job.epoch(), Cell::new(false));
                    return Ok(Some(Op {
                        store,
                        actor: index,
                        epoch,
                        number: even + 1,
                        mine,
                        word,
                        lacks_tombstone,
                    }));
                }
                even = job.load(Epoch::ANY, me, word)?;
                if even % 2 == 1 {
                    break;
                }
            }
        }
        Ok(None)
    }

    /// Begins an operation with this very actor, if it was ever used and is not in use.
    pub(super) fn begin_as(store: &'a Inner, index: usize) -> Option<Op<'a>> {
        if store.actors.announced.load(Ordering::Acquire) <= index {
            return None;
        }
        let (job, me, word) =
            (&store.job, store.job.me(), store.counter_word(store.job.me(), index));
        let mine = job.reach(Epoch::ANY, me).ok()?;
        let even = job.load(Epoch::ANY, me, word).ok()?;
        // As in `claim`.
        if even % 2 == 1 || mine.swap(word, even, even + 1) != Some(true) {
            return None;
        }
        let lacks_tombstone = Cell::new(false);
        Some(Op {
            store,
            actor: index,
            epoch: job.epoch(),
            number: even + 1,
            mine,
            word,
            lacks_tombstone,
        })
    }

    /// All actors are in use: waits for one.
    #[cold]
    #[inline(never)]
    fn begin_crowded(store: &'a Inner, first: usize) -> Step<Op<'a>> {
        let job = &store.job;
        let until = job.now().after(job.time_limit());
        loop {
            let bell = job.bell();
            if let Some(op) = Op::claim(store, first)? {
                return Ok(op);
            }
            let now = job.now();
            if now >= until {
                let (member, limit) = (job.me(), job.time_limit());
                return Err(Halt::Fail(StoreError::Timeout { member, limit }));
            }
            job.park(bell, until.min(now.after(CROWDED)));
        }
    }

    /// This actor's blocks.
    #[inline(always)]
    pub(super) fn magazine(&self) -> &'a Magazine {
        let magazine = &self.store.actors.actors[self.actor].magazine;
        match magazine.get() {
            Some(magazine) => magazine,
            None => {
                let job = &self.store.job;
                magazine.get_or_init(|| Box::new(Magazine::new(job.members(), !job.is_mapped())))
            }
        }
    }

    /// Adopts the current view.
    pub(super) fn renew(&mut self) {
        self.epoch = self.store.job.epoch();
    }

    #[inline(always)]
    pub(super) fn load(&self, home: MemberId, offset: u64) -> Step<u64> {
        self.store.job.load(self.epoch, home, offset).map_err(|error| self.noted(home, error))
    }

    /// Loads words of several homes, those of one home in this order: in one round trip, where that is what it takes.
    #[inline(always)]
    pub(super) fn load_each<const N: usize>(
        &self,
        places: impl IntoIterator<Item = (MemberId, u64)>,
    ) -> Step<[u64; N]> {
        let mut words = [0; N];
        let job = &self.store.job;
        if job.is_mapped() {
            for (word, (home, offset)) in words.iter_mut().zip(places) {
                *word = self.load(home, offset)?;
            }
            return Ok(words);
        }
        let mut started = [const { None }; N];
        for (pending, (home, offset)) in started.iter_mut().zip(places) {
            *pending = Some(job.start(self.epoch, home, Operation::Load { offset }));
        }
        for (word, pending) in words.iter_mut().zip(started) {
            let Some(pending) = pending else { break };
            *word = self.await_answer(pending, true)?.word();
        }
        Ok(words)
    }

    /// Swaps a word; whether it was as expected.
    #[inline(always)]
    pub(super) fn swap(&self, home: MemberId, offset: u64, expected: u64, new: u64) -> Step<bool> {
        let found = self.store.job.compare_and_swap(self.epoch, home, offset, expected, new);
        found.map(|found| found == expected).map_err(|error| self.noted(home, error))
    }

    #[inline(always)]
    pub(super) fn put(&self, home: MemberId, offset: u64, bytes: &[u8]) -> Step<()> {
        self.store.job.put(self.epoch, home, offset, bytes).map_err(|error| self.noted(home, error))
    }

    #[inline(always)]
    pub(super) fn get(&self, home: MemberId, offset: u64, bytes: &mut [u8]) -> Step<()> {
        self.store.job.get(self.epoch, home, offset, bytes).map_err(|error| self.noted(home, error))
    }

    /// Swaps a word of a block that is this operation's, under any view; whether it was as expected.
    #[inline]
    pub(super) fn swap_own(
        &self,
        home: MemberId,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Step<bool> {
        let found = self.store.job.compare_and_swap(Epoch::ANY, home, offset, expected, new);
        found.map(|found| found == expected).map_err(|error| self.noted(home, error))
    }

    /// Waits for what was started; if the time of the call is over already, it has been answered or is late.
    pub(super) fn await_answer(&self, mut pending: Pending, is_patient: bool) -> Step<Done> {
        let (job, member) = (&self.store.job, pending.target);
        let answer = if is_patient {
            job.wait(pending)
        } else {
            let limit = job.time_limit();
            job.poll(&mut pending).unwrap_or(Err(Error::Timeout { member, limit }))
        };
        answer.map_err(|error| self.noted(member, error))
    }

    /// Notes what a call failed with: a request that was not answered in time may still land.
    #[cold]
    #[inline(never)]
    pub(super) fn noted(&self, home: MemberId, error: Error) -> Halt {
        if let Error::Timeout { .. } = &error {
            self.store.note_late(home);
        }
        error.into()
    }

    /// Whether the view is still the one of this operation.
    pub(super) fn is_current(&self) -> bool {
        self.store.job.epoch() == self.epoch
    }

    /// Where this actor's outcome word is.
    pub(super) fn outcome_word(&self) -> u64 {
        self.store.root(self.store.job.me()) + self.store.layout.actor(self.actor) + ACTOR_OUTCOME
    }
}

impl Drop for Op<'_> {
    #[inline]
    fn drop(&mut self) {
        let actor = &self.store.actors.actors[self.actor];
        if actor.magazine.get().is_some_and(|magazine| magazine.is_due()) {
            self.turn();
        }
        steps::enter(steps::Step::LeaveOperation);
        // What the operation read and wrote comes before the word that says that it has ended.
        fence(Ordering::Release);
        let even = self.number + 1;
        // Refused only when this member has ended, and then nobody waits for its actors.
        self.mine.put_words(self.word, [even]);
        actor.counter.store(even, Ordering::Relaxed);
    }
}

/// Makes sure that others look at an actor when they ask who is inside an operation.
#[cold]
fn announce(store: &Inner, actor: usize) -> Step<()> {
    let job = &store.job;
    let word = store.root(job.me()) + ACTORS_USED;
    while store.actors.announced.load(Ordering::Acquire) <= actor {
        let used = job.load(Epoch::ANY, job.me(), word)?;
        let pins = used >> PINS_SHIFT << PINS_SHIFT;
        let wanted = (used - pins).max(actor as u64 + 1);
        let new = pins | wanted;
        if used == new || job.compare_and_swap(Epoch::ANY, job.me(), word, used, new)? == used {
            store.actors.announced.fetch_max(wanted as usize, Ordering::AcqRel);
        }
    }
    Ok(())
}

impl Inner {
    /// Where an actor's counter is.
    #[inline]
    pub(super) fn counter_word(&self, member: MemberId, actor: usize) -> u64 {
        self.root(member) + self.layout.actor(actor) + ACTOR_COUNTER
    }
}

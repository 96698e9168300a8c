//! One operation's access to the members' memories, under one view.

use super::StoreError;
use super::layout::{ACTOR_COUNTER, ACTOR_OUTCOME, ACTORS, ACTORS_USED};
use super::mutant::mutant;
use super::open::Inner;
use crate::engine::{Engine, Epoch, Error, MemberId, steps};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Why an operation cannot go on as it is.
#[derive(Debug)]
pub(super) enum Halt {
    /// The view has changed, or someone else was faster: begin again.
    Again,
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

/// Which of this member's actors are in use.
pub(super) struct Actors {
    busy: [AtomicBool; ACTORS],
    /// How many are known to the others; see [`ACTORS_USED`].
    announced: AtomicUsize,
}

impl Actors {
    pub(super) fn new() -> Actors {
        Actors { busy: std::array::from_fn(|_| AtomicBool::new(false)), announced: AtomicUsize::new(0) }
    }

    fn take(&self) -> Option<usize> {
        self.busy.iter().position(|busy| !busy.load(Ordering::Relaxed) && !busy.swap(true, Ordering::Acquire))
    }
}

/// An operation that is under way: while it exists, nothing that it may have seen is reused.
pub(super) struct Op<'a> {
    pub(super) store: &'a Inner,
    pub(super) actor: usize,
    pub(super) epoch: Epoch,
    /// The operation's number: the actor's counter, which is odd.
    pub(super) number: u64,
}

impl<'a> Op<'a> {
    /// Begins an operation under the current view.
    pub(super) fn begin(store: &'a Inner) -> Step<Op<'a>> {
        let job = &store.job;
        let until = job.now().after(job.time_limit());
        let actor = loop {
            let bell = job.bell();
            if let Some(actor) = store.actors.take() {
                break actor;
            }
            if job.now() >= until {
                let (member, limit) = (job.me(), job.time_limit());
                return Err(Halt::Fail(StoreError::Timeout { member, limit }));
            }
            job.park(bell, until);
        };
        steps::enter(steps::Step::Enter);
        // The guard exists before the first call that may fail, so that the actor is given back.
        let mut op = Op { store, actor, epoch: Epoch::ANY, number: 0 };
        op.announce()?;
        let counter = store.root(job.me()) + store.layout.actor(actor) + ACTOR_COUNTER;
        // Whoever frees something after this sees that the actor is inside; what it freed before, this cannot see.
        op.number = job.fetch_add(Epoch::ANY, job.me(), counter, 1)? + 1;
        op.epoch = job.epoch();
        Ok(op)
    }

    /// Makes sure that others look at this actor when they ask who is inside an operation.
    fn announce(&self) -> Step<()> {
        let (store, job) = (self.store, &self.store.job);
        while store.actors.announced.load(Ordering::Acquire) <= self.actor {
            let word = store.root(job.me()) + ACTORS_USED;
            let used = job.load(Epoch::ANY, job.me(), word)?;
            let wanted = used.max(self.actor as u64 + 1);
            if used == wanted || job.compare_and_swap(Epoch::ANY, job.me(), word, used, wanted)? == used {
                store.actors.announced.fetch_max(wanted as usize, Ordering::AcqRel);
            }
        }
        Ok(())
    }

    /// Adopts the current view.
    pub(super) fn renew(&mut self) {
        self.epoch = self.store.job.epoch();
    }

    /// The epoch that this operation's accesses belong to.
    fn at(&self) -> Epoch {
        if mutant("skip-epoch") { Epoch::ANY } else { self.epoch }
    }

    pub(super) fn load(&self, home: MemberId, offset: u64) -> Step<u64> {
        Ok(self.store.job.load(self.at(), home, offset)?)
    }

    /// Swaps a word; whether it was as expected.
    pub(super) fn swap(&self, home: MemberId, offset: u64, expected: u64, new: u64) -> Step<bool> {
        Ok(self.store.job.compare_and_swap(self.at(), home, offset, expected, new)? == expected)
    }

    pub(super) fn put(&self, home: MemberId, offset: u64, bytes: &[u8]) -> Step<()> {
        Ok(self.store.job.put(self.at(), home, offset, bytes)?)
    }

    pub(super) fn get(&self, home: MemberId, offset: u64, bytes: &mut [u8]) -> Step<()> {
        Ok(self.store.job.get(self.at(), home, offset, bytes)?)
    }

    /// Whether the view is still the one of this operation.
    pub(super) fn is_current(&self) -> bool {
        self.store.job.epoch() == self.epoch || mutant("skip-epoch")
    }

    /// Where this actor's outcome word is.
    pub(super) fn outcome_word(&self) -> u64 {
        self.store.root(self.store.job.me()) + self.store.layout.actor(self.actor) + ACTOR_OUTCOME
    }
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        let (store, job) = (self.store, &self.store.job);
        steps::enter(steps::Step::Leave);
        if self.number != 0 {
            let counter = store.root(job.me()) + store.layout.actor(self.actor) + ACTOR_COUNTER;
            // Fails only when this member has ended, and then nobody waits for its actors.
            let _ = job.fetch_add(Epoch::ANY, job.me(), counter, 1);
        }
        store.actors.busy[self.actor].store(false, Ordering::Release);
    }
}

//! Locks of a window: a lock per member, in that member's segment, exclusive or shared.
//!
//! # The words
//! Each target has a word for the exclusive lock and a word per rank for its shared lock (see
//! `layout`). A word is 0, or the *stamp* of a holder: its member number, and a ticket that is
//! never used again. Every change is a compare-and-swap. **A member holds a lock as long as its
//! stamp is in the word**, and in no other case: every access checks the stamp first, and taking a
//! lock away removes the stamp.
//!
//! # Taking a lock exclusively
//! 1. *claim*: swap the own stamp in, from 0, or from the stamp of a dead holder. Before: any
//!    member may hold the lock. After: no other member can complete *claim*, or *check* of a shared
//!    lock; members that share the lock may still hold it.
//! 2. *await_sharers*: load the shared words of all ranks that ever shared the lock. Wait until
//!    each was 0, or is the stamp of a dead member. After: only this member holds the lock (earlier
//!    sharers have released it, and new sharers withdraw at their *check*).
//! 3. *clear_dead*: swap the stamps of the dead out of the shared words. This comes only now, so
//!    that a call that gives up in *await_sharers* leaves them for the next locker to find. A call
//!    that ends in *clear_dead*, by a revoke or at its time limit, puts all stamps back that it may
//!    have swapped out, before its own stamp goes. For this reason too, giving up swaps the own
//!    stamp for *the word that was there before*, 0 or the stamp of the dead member.
//! 4. *restore*: a member that was forced out before it completed *await_sharers*, and had replaced
//!    the stamp of a dead member in *claim*, puts that stamp back: into the exclusive word if it is
//!    0, and otherwise into the dead member's shared word, with that member's sharing bit. No
//!    member has been told of the death so far; the next member that takes the lock exclusively
//!    finds it in its *claim* or *await_sharers*. (A member that holds the lock by then was not
//!    told, and cannot be.)
//!
//! # Sharing a lock
//! 1. *announce*: once per target, set the own sharing bit. This comes before *enter*, so that no
//!    stamp is overlooked.
//! 2. *enter*: swap the own stamp into the own shared word.
//! 3. *check*: load the exclusive word. If it is 0, or the stamp of a dead member, the lock is
//!    held. Otherwise a living member has the lock or is about to take it: swap the own stamp out
//!    again, wait until the word changes, and go to *enter*.
//!
//! An exclusive locker writes in *claim*, a sharer writes in *enter*, and then each loads the word
//! that the other wrote. The engine's word operations are sequentially consistent, so at least one
//! of them sees the other, and the lock is never held both ways.
//!
//! # Releasing a lock
//! Complete all operations on the target, swap the own stamp out, and ring the bells of the waiting
//! ranks. If the stamp is not there, the lock was lost, and the release changes nothing.
//!
//! # Waiting
//! A waiting member sets its waiting bit, notes its bell, loads the lock words, and parks. A member
//! that swaps a stamp out loads the waiting bits afterwards and rings. Again at least one of them
//! sees the other. Correctness does not depend on it: waits also poll again after a few
//! milliseconds, so that a holder that dies or is stopped between the swap and the ring delays the
//! next holder by no more than that. A wait ends when the lock can be taken, when the holder or the
//! target dies (views ring all bells), when the window is revoked, by an interrupt, or at its time
//! limit.
//!
//! # What the others find
//! | a member dies, or is stopped | its stamp | the others |
//! |---|---|---|
//! | before *claim* or *enter* | nowhere | find nothing; its sharing bit makes exclusive lockers load a further word, no harm |
//! | having swapped its stamp in | in the word | *dead*: take over, and are told, also if it never returned from the call; *stopped*: wait for it, or force it out |
//! | taking over from a dead holder | in the word, in place of the dead holder's stamp | *dead*: take over and are told of this member, which had not released the lock in good order; *forced out*: are told of the first dead holder after *restore* |
//! | while it waits | nowhere (shared) or as above | as above; rings to it are lost |
//! | holding the lock | in the word | as above |
//! | having swapped its stamp out | nowhere | the lock is free; waits end after a few milliseconds without the ring |
//!
//! A shared lock taken from a dead exclusive holder leaves the dead stamp where it is: a sharer
//! cannot repair data that others read. So every sharer is told until a member takes the lock
//! exclusively.
//!
//! # Why a late holder does no harm
//! A holder is stopped, its lock is taken away by force, another member takes it, and the first
//! holder wakes. Its next access finds another stamp, or none, and returns `LockLost`. Its release
//! is a compare-and-swap from a stamp that is gone for good, so the new holder's word stays. This
//! holds also for its cleanup after a wait that it had given up, and for a second `force_unlock`
//! that had loaded the words before. A single effect cannot be undone: a put that was in flight
//! when the lock was taken away may land. A *dead* holder cannot even do that. The member that
//! takes over from it knows of its death, the swap brings this knowledge to the target, and a
//! target refuses operations of members that it knows to be dead. A member of the target's node
//! reaches the words by itself, and the target may be stopped in the middle of the last put of the
//! dead holder. So a stamp of the dead counts as a living one while a member of the own node
//! executes a request of the dead.

use super::layout::{self, EXCLUSIVE, stamp};
use super::{EndedBy, SharedWindow, Window, WindowError, WindowResult, WindowState, lock};
use crate::engine::deadline::{self, Deadline};
use crate::engine::{Done, Operation, Pending};
use crate::rma::progress::begin_call;
use crate::{Epoch, MemberId, Time};
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// By a single member.
    Exclusive,
    /// By any number of members that share it.
    Shared,
}

/// A lock that this member holds, or is about to hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldLock {
    pub(super) kind: LockKind,
    pub(super) stamp: u64,
    /// Whether it was taken by `lock_all`.
    pub(super) is_of_all: bool,
    /// Whether it is being taken or released: no other activity may use or release it then.
    pub(super) is_pending: bool,
}

impl HeldLock {
    /// The offset of its word in the control block of the target.
    fn word(&self, shared: &SharedWindow) -> u64 {
        match self.kind {
            LockKind::Exclusive => EXCLUSIVE,
            LockKind::Shared => shared.layout.shared(shared.me),
        }
    }
}

impl Window {
    /// Locks the memory of `target`. The call waits up to the job's time limit.
    ///
    /// [`WindowError::Abandoned`] means that the lock **is held now**, and that members died
    /// holding it. [`WindowError::LockTimeout`] names a living holder.
    ///
    /// ```
    /// # let job = outlast::join()?;
    /// # let comm = outlast::rma::Communicator::world(&job)?;
    /// use outlast::rma::{LockKind, Window, WindowError};
    /// let window = Window::allocate(&comm, 64)?;
    /// match window.lock(0, LockKind::Exclusive) {
    ///     Ok(()) => {}
    ///     Err(WindowError::Abandoned { by, .. }) => println!("clean up after {by:?}"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// window.put(0, 0, b"mine")?;
    /// window.unlock(0)?;
    /// # window.free()?;
    /// # job.leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock(&self, target: usize, kind: LockKind) -> WindowResult<()> {
        self.lock_within(target, kind, self.shared.job.time_limit())
    }

    /// [`Window::lock`] with a time limit for the holder (extension 1 of ULFM). With
    /// [`Duration::ZERO`] it only tries. A limit below the job's time limit is counted from the
    /// moment at which the lock was found held: a target that does not answer before may take the
    /// job's time limit. A longer limit is that of the whole call.
    ///
    /// ```
    /// # let job = outlast::join()?;
    /// # let comm = outlast::rma::Communicator::world(&job)?;
    /// # use outlast::rma::{LockKind, Window, WindowError};
    /// # use std::time::Duration;
    /// let window = Window::open(&comm, 64)?;
    /// match window.lock_within(0, LockKind::Exclusive, Duration::from_millis(50)) {
    ///     Ok(()) => {}
    ///     Err(WindowError::LockTimeout { target, holder, .. }) => {
    ///         let lost = window.force_unlock(target)?;
    ///         println!("rank {holder} was too slow; taken away from {lost:?}");
    ///         window.lock(target, LockKind::Exclusive)?;
    ///     }
    ///     Err(error) => return Err(error.into()),
    /// }
    /// window.unlock(0)?;
    /// # window.close()?;
    /// # job.leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock_within(&self, target: usize, kind: LockKind, limit: Duration) -> WindowResult<()> {
        let shared = &*self.shared;
        let deadline = match limit > shared.job.time_limit() {
            true => Deadline::call_until(shared.job.now().after(limit)),
            false => begin_call(&shared.job),
        };
        let _call = shared.begin_with(deadline)?;
        shared.check_rank(target)?;
        shared.check_usable()?;
        shared.take_lock(target, kind, limit, false)
    }

    /// Shares the locks of all members, in the order of their ranks; of all survivors, if the
    /// window was shrunk. All or none: after an error other than [`WindowError::Abandoned`] the
    /// caller holds none of them.
    pub fn lock_all(&self) -> WindowResult<()> {
        let shared = &*self.shared;
        let _call = shared.begin()?;
        shared.check_usable()?;
        let held: Vec<usize> = lock(&shared.state).held.keys().copied().collect();
        held.into_iter().try_for_each(|target| shared.check_not_locked(target))?;
        let ranks = shared.failed_ranks();
        if !ranks.is_empty() {
            return Err(WindowError::ProcFailed { ranks });
        }
        let mut abandoned: Option<WindowError> = None;
        let limit = shared.job.time_limit();
        for target in shared.included() {
            let result = shared.take_lock(target, LockKind::Shared, limit, true);
            if WindowError::is_locked(&result) {
                abandoned = abandoned.or(result.err());
                continue;
            }
            for taken in shared.included().take_while(|&taken| taken != target) {
                let held = lock(&shared.state).held.get(&taken).copied();
                let _ = held.map(|held| shared.release_lock(taken, held));
            }
            return result;
        }
        // All together, so that no other activity releases a part of them.
        let mut state = lock(&shared.state);
        state
            .held
            .values_mut()
            .filter(|held| held.is_of_all)
            .for_each(|held| held.is_pending = false);
        abandoned.map_or(Ok(()), Err)
    }

    /// Completes all operations on `target` and releases its lock; also if the window is revoked.
    /// The caller does not hold the lock afterwards, whatever the result: if the target did not
    /// answer in time, the release is in flight.
    pub fn unlock(&self, target: usize) -> WindowResult<()> {
        let shared = &*self.shared;
        let _call = shared.begin()?;
        shared.check_rank(target)?;
        let Some(held) = lock(&shared.state).begin_release(target) else {
            // A lock at a dead target is forgotten by the first call that finds the death, so
            // report the death.
            return shared.check_living(target).and(Err(WindowError::NotLocked { target }));
        };
        let flushed = shared.complete(Some(target), EndedBy::Nothing);
        shared.release_lock(target, held).and(flushed)
    }

    /// Completes all operations and releases the locks that [`Window::lock_all`] took. Locks at
    /// dead members are gone with them; [`WindowError::ProcFailed`] reports them after the others
    /// were released.
    pub fn unlock_all(&self) -> WindowResult<()> {
        let shared = &*self.shared;
        let _call = shared.begin()?;
        let released = {
            let mut state = lock(&shared.state);
            let of_all = state.held.iter().filter(|(_, held)| held.is_of_all);
            let targets: Vec<usize> = of_all.map(|(&target, _)| target).collect();
            // Another thread may be taking or releasing them: then none of them is held yet, or
            // none any more.
            state.begin_release_of(&targets)
        };
        if released.is_empty() {
            return Err(WindowError::NotLocked { target: 0 });
        }
        shared.release_all(released)
    }

    /// Takes the lock at `target` away from all its holders, living or dead, exclusive or shared,
    /// and also from members that are about to hold it (extension 1 of ULFM). Returns the ranks
    /// that lost it; none if it was free.
    ///
    /// The next call of each former holder that concerns this target, also a call that takes the
    /// lock, returns [`WindowError::LockLost`], also if it was stopped and wakes much later, and it
    /// cannot damage the lock of the next holder. A put that a former holder had begun when the
    /// lock was taken away may still land. Works on a revoked window, too.
    pub fn force_unlock(&self, target: usize) -> WindowResult<Vec<usize>> {
        let shared = &*self.shared;
        let _call = shared.begin()?;
        shared.check_rank(target)?;
        let mut lost = Vec::new();
        for (word, stamp) in shared.holders(target)? {
            if shared.swap(target, word, stamp, 0, EndedBy::Nothing)? == stamp {
                lost.extend(shared.rank_of_stamp(stamp));
            }
        }
        shared.ring_waiting(target);
        lost.sort_unstable();
        Ok(lost)
    }

    /// The ranks that hold the lock at `target` now, or are about to hold it, the dead included.
    pub fn holders(&self, target: usize) -> WindowResult<Vec<usize>> {
        let shared = &*self.shared;
        let _call = shared.begin()?;
        shared.check_rank(target)?;
        let holders = shared.holders(target)?;
        let mut ranks: Vec<usize> =
            holders.into_iter().filter_map(|(_, stamp)| shared.rank_of_stamp(stamp)).collect();
        ranks.sort_unstable();
        Ok(ranks)
    }

    /// Whether this member still holds the lock at `target` that it took: for programs that guard
    /// other data by it. [`WindowError::LockLost`] if it was taken away, [`WindowError::NotLocked`]
    /// if this member holds none.
    pub fn check_lock(&self, target: usize) -> WindowResult<()> {
        let shared = &*self.shared;
        let _call = shared.begin()?;
        shared.check_rank(target)?;
        shared.check_lock_held(target, false)
    }
}

impl WindowState {
    /// Begins to release a lock, if it is held and no other activity is releasing it.
    fn begin_release(&mut self, target: usize) -> Option<HeldLock> {
        let held = self.held.get_mut(&target).filter(|held| !held.is_pending)?;
        held.is_pending = true;
        Some(*held)
    }

    /// Begins to release the locks at these targets that are held and that no other activity is
    /// releasing.
    pub(super) fn begin_release_of(&mut self, targets: &[usize]) -> Vec<(usize, HeldLock)> {
        targets.iter().filter_map(|&target| Some((target, self.begin_release(target)?))).collect()
    }
}

impl SharedWindow {
    /// Takes a lock and records it.
    fn take_lock(
        &self,
        target: usize,
        kind: LockKind,
        limit: Duration,
        is_of_all: bool,
    ) -> WindowResult<()> {
        self.check_not_locked(target)?;
        let stamp = stamp(self.job.me(), self.next_ticket.fetch_add(1, Ordering::Relaxed));
        {
            let mut state = lock(&self.state);
            if state.held.contains_key(&target) {
                return Err(WindowError::AlreadyLocked { target });
            }
            state.held.insert(target, HeldLock { kind, stamp, is_of_all, is_pending: true });
        }
        let mut attempt = LockAttempt {
            shared: self,
            target,
            stamp,
            limit,
            until: None,
            waits: false,
            obstacle: None,
            before: 0,
        };
        let result = match kind {
            LockKind::Exclusive => attempt.take_exclusive(),
            LockKind::Shared => attempt.take_shared(),
        };
        if result.as_ref().err().is_none_or(answers) {
            attempt.stop_waiting();
        }
        let mut state = lock(&self.state);
        match (&result, state.held.get_mut(&target)) {
            // The locks of `lock_all` become usable together.
            (Ok(_), Some(held)) => held.is_pending = is_of_all,
            _ => drop(state.held.remove(&target)),
        }
        drop(state);
        let mut by = result?;
        by.sort_unstable();
        by.dedup();
        if by.is_empty() { Ok(()) } else { Err(WindowError::Abandoned { target, by }) }
    }

    /// The check at the beginning of every access to `target`: this member still holds the lock
    /// that it took. Without a lock, an error unless `may_be_open` and the window needs no lock.
    pub(super) fn check_lock_held(&self, target: usize, may_be_open: bool) -> WindowResult<()> {
        let without_lock = || {
            let is_fine = may_be_open && self.is_open;
            if is_fine { Ok(()) } else { Err(WindowError::NotLocked { target }) }
        };
        let held = lock(&self.state).held.get(&target).copied();
        let Some(held) = held.filter(|held| !held.is_pending) else { return without_lock() };
        match self.load(target, held.word(self)) {
            Ok(found) if found == held.stamp => Ok(()),
            // A release marks the lock as pending before it removes the stamp. Without the mark,
            // another member removed the stamp.
            Ok(_) if self.forget_usable_lock(target, held.stamp) => {
                Err(WindowError::LockLost { target })
            }
            // Another activity has released it meanwhile.
            Ok(_) => without_lock(),
            Err(error) => {
                if matches!(error, WindowError::ProcFailed { .. }) {
                    self.forget_lock(target, held.stamp);
                }
                Err(error)
            }
        }
    }

    /// The check before this member takes a lock: [`WindowError::AlreadyLocked`] if it holds the
    /// lock, or is taking or releasing it. [`WindowError::LockLost`], once, if the lock was taken
    /// away; the next call can take it.
    fn check_not_locked(&self, target: usize) -> WindowResult<()> {
        let held = lock(&self.state).held.get(&target).copied();
        match held {
            None => Ok(()),
            Some(held) if held.is_pending => Err(WindowError::AlreadyLocked { target }),
            Some(_) => match self.check_lock_held(target, false) {
                Ok(()) => Err(WindowError::AlreadyLocked { target }),
                // Another activity has released it meanwhile.
                Err(WindowError::NotLocked { .. }) => Ok(()),
                Err(error) => Err(error),
            },
        }
    }

    /// Completes all operations and releases these locks. Returns the first error; if targets are
    /// dead, the error has all their ranks.
    pub(super) fn release_all(&self, released: Vec<(usize, HeldLock)>) -> WindowResult<()> {
        let mut result = self.complete(None, EndedBy::Nothing);
        let mut dead = Vec::new();
        for (target, held) in released {
            match self.release_lock(target, held) {
                Err(WindowError::ProcFailed { ranks }) => dead.extend(ranks),
                other => result = result.and(other),
            }
        }
        if dead.is_empty() { result } else { Err(WindowError::ProcFailed { ranks: dead }) }
    }

    /// Swaps the own stamp out and rings the waiting ranks. This member does not hold the lock
    /// afterwards, whatever the result.
    fn release_lock(&self, target: usize, held: HeldLock) -> WindowResult<()> {
        let word = held.word(self);
        let swapped = self.swap(target, word, held.stamp, 0, EndedBy::Nothing);
        if matches!(swapped, Err(WindowError::Timeout { .. })) {
            // A request that was given up may be refused if the target learns of a death before it
            // executes it. This swap is not refused.
            self.swap_without_waiting(target, word, held.stamp, 0);
        }
        // Only now: until here no other activity takes the lock again.
        self.forget_lock(target, held.stamp);
        let found = swapped?;
        self.ring_waiting(target);
        if found == held.stamp { Ok(()) } else { Err(WindowError::LockLost { target }) }
    }

    /// Forgets a lock that no activity is taking or releasing. Returns whether there was one.
    fn forget_usable_lock(&self, target: usize, stamp: u64) -> bool {
        let mut state = lock(&self.state);
        let is_usable =
            state.held.get(&target).is_some_and(|held| held.stamp == stamp && !held.is_pending);
        if is_usable {
            state.held.remove(&target);
        }
        is_usable
    }

    fn forget_lock(&self, target: usize, stamp: u64) {
        let mut state = lock(&self.state);
        if state.held.get(&target).is_some_and(|held| held.stamp == stamp) {
            state.held.remove(&target);
        }
    }

    /// A living member that holds the lock at `target`, if any.
    pub(super) fn locked_by(&self, target: usize) -> WindowResult<Option<usize>> {
        let stamps = self.holders(target)?.into_iter().map(|(_, stamp)| stamp);
        Ok(stamps
            .filter(|&stamp| !self.is_stamp_dead(stamp))
            .find_map(|stamp| self.rank_of_stamp(stamp)))
    }

    /// Whether this member holds a lock at any target that was not taken away from it.
    pub(super) fn holds_lock(&self) -> WindowResult<bool> {
        let targets: Vec<usize> = lock(&self.state).held.keys().copied().collect();
        for target in targets {
            use WindowError::{LockLost, NotLocked, ProcFailed};
            match self.check_lock_held(target, false) {
                Ok(()) => return Ok(true),
                Err(LockLost { .. } | NotLocked { .. } | ProcFailed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// The words at `target` that hold a stamp, with their stamps.
    pub(super) fn holders(&self, target: usize) -> WindowResult<Vec<(u64, u64)>> {
        let mut words = vec![EXCLUSIVE];
        words.extend(self.sharing(target)?.into_iter().map(|rank| self.layout.shared(rank)));
        let stamps = self.load_many(target, &words)?;
        Ok(words.into_iter().zip(stamps).filter(|&(_, stamp)| stamp != 0).collect())
    }

    /// The ranks that ever shared the lock at `target`.
    fn sharing(&self, target: usize) -> WindowResult<Vec<usize>> {
        let words: Vec<u64> =
            (0..self.layout.bit_words()).map(|word| self.layout.sharing(word)).collect();
        Ok(ranks_in(&self.load_many(target, &words)?))
    }

    /// Rings all ranks that wait for a lock at `target`. Errors do no harm: waits poll again by
    /// themselves.
    fn ring_waiting(&self, target: usize) {
        let words: Vec<u64> =
            (0..self.layout.bit_words()).map(|word| self.layout.waiting(word)).collect();
        for rank in ranks_in(&self.load_many(target, &words).unwrap_or_default()) {
            if rank != self.me && rank < self.members.len() {
                let _ = self.job.ring(self.members[rank]);
            }
        }
    }

    /// Sets or clears the bit of a rank in a bit word. Only the member itself changes its bit,
    /// unless it is dead: then others may set it.
    fn set_bit(&self, target: usize, word: u64, rank: usize, value: bool) -> WindowResult<()> {
        let bit = 1 << (rank % 64);
        let mut expected = if value { 0 } else { bit };
        loop {
            let new = if value { expected | bit } else { expected & !bit };
            let found = self.swap(target, word, expected, new, EndedBy::Revoke)?;
            if found == expected {
                return Ok(());
            }
            expected = found;
        }
    }

    /// Loads several words of a control block, all in flight at once.
    fn load_many(&self, target: usize, words: &[u64]) -> WindowResult<Vec<u64>> {
        let (member, control) = (self.members[target], self.controls[target]);
        let load = |&word: &u64| {
            self.job.start(Epoch::ANY, member, Operation::Load { offset: control + word })
        };
        let pending: Vec<Pending> = words.iter().map(load).collect();
        // An abandoned load does no harm, so the engine may wait for it by itself.
        let wait = |pending| self.job.wait(pending).map(Done::word);
        pending
            .into_iter()
            .map(wait)
            .collect::<Result<_, _>>()
            .map_err(|error| self.engine_error(error, target))
    }

    pub(super) fn rank_of_stamp(&self, stamp: u64) -> Option<usize> {
        self.comm.rank_of(layout::holder(stamp)?)
    }

    /// Whether this stamp belongs to a member that is known to be dead.
    fn is_stamp_dead(&self, stamp: u64) -> bool {
        layout::holder(stamp).is_some_and(|member| self.is_dead(member))
    }

    /// What keeps a lock with this stamp from being taken, if anything does.
    fn obstacle(&self, stamp: u64) -> Option<Obstacle> {
        if stamp == 0 {
            None
        } else if !self.is_stamp_dead(stamp) {
            Some(Obstacle::Holder(stamp))
        } else {
            // After the view: a request that is begun later is refused.
            self.job.server_of_dead().map(Obstacle::LastRequest)
        }
    }
}

/// What keeps a lock from being taken.
#[derive(Clone, Copy)]
enum Obstacle {
    /// A living member, with this stamp.
    Holder(u64),
    /// The last request of a dead member, which this member of the node may be executing.
    LastRequest(MemberId),
}

/// A call that takes a lock.
struct LockAttempt<'a> {
    shared: &'a SharedWindow,
    target: usize,
    stamp: u64,
    limit: Duration,
    until: Option<Time>,
    /// Whether this member's waiting bit is set.
    waits: bool,
    /// What kept this call from taking the lock last.
    obstacle: Option<Obstacle>,
    /// The word that the own stamp replaced in the exclusive word: 0, or the stamp of a dead
    /// member.
    before: u64,
}

impl LockAttempt<'_> {
    /// Takes the lock exclusively. Returns the ranks that died holding it.
    fn take_exclusive(&mut self) -> WindowResult<Vec<usize>> {
        let shared = self.shared;
        loop {
            let swapped = self.swap_stamp_in();
            let is_in = swapped.is_ok();
            match swapped.and_then(|()| self.await_shared_holders()) {
                Ok(Some(mut dead)) => {
                    dead.push(self.before);
                    return Ok(dead
                        .iter()
                        .filter_map(|&stamp| shared.rank_of_stamp(stamp))
                        .collect());
                }
                Ok(None) => {
                    // Forced out before it held the lock at all.
                    self.restore_dead_stamp()?;
                    self.renew();
                }
                Err(error) => {
                    if !answers(&error) {
                        // Also if it is unknown whether the stamp got there: this swap executes
                        // after it.
                        shared.swap_without_waiting(
                            self.target,
                            EXCLUSIVE,
                            self.stamp,
                            self.before,
                        );
                        return Err(error);
                    }
                    if is_in {
                        let (stamp, before) = (self.stamp, self.before);
                        match shared.swap(self.target, EXCLUSIVE, stamp, before, EndedBy::Nothing) {
                            Ok(found) if found == stamp => {}
                            // Forced out while it waited.
                            Ok(_) => drop(self.restore_dead_stamp()),
                            Err(_) => {
                                shared.swap_without_waiting(self.target, EXCLUSIVE, stamp, before)
                            }
                        }
                    }
                    shared.ring_waiting(self.target);
                    return Err(error);
                }
            }
        }
    }

    /// The step *claim*.
    fn swap_stamp_in(&mut self) -> WindowResult<()> {
        self.wait_until(|attempt| {
            let shared = attempt.shared;
            attempt.before = 0;
            loop {
                let found = shared.swap(
                    attempt.target,
                    EXCLUSIVE,
                    attempt.before,
                    attempt.stamp,
                    EndedBy::Revoke,
                )?;
                if found == attempt.before {
                    return Ok(Some(()));
                }
                // Replace a dead holder; try again at once if the lock has just become free.
                if let Some(obstacle) = shared.obstacle(found) {
                    attempt.obstacle = Some(obstacle);
                    return Ok(None);
                }
                attempt.before = found;
            }
        })
    }

    /// The steps *await_sharers* and *clear_dead*. Returns the stamps of the dead that shared the
    /// lock; `None` if this member was forced out meanwhile.
    fn await_shared_holders(&mut self) -> WindowResult<Option<Vec<u64>>> {
        let shared = self.shared;
        let mut has_waited = false;
        let mut dead = Vec::new();
        for rank in shared.sharing(self.target)? {
            let word = shared.layout.shared(rank);
            let stamp = self.wait_until(|attempt| {
                let found = shared.load(attempt.target, word)?;
                let Some(obstacle) = shared.obstacle(found) else { return Ok(Some(found)) };
                has_waited = true;
                attempt.obstacle = Some(obstacle);
                Ok(None)
            })?;
            if stamp != 0 {
                dead.push((word, stamp));
            }
        }
        if has_waited && shared.load(self.target, EXCLUSIVE)? != self.stamp {
            return Ok(None);
        }
        for (index, &(word, stamp)) in dead.iter().enumerate() {
            if let Err(error) = shared.swap(self.target, word, stamp, 0, EndedBy::Revoke) {
                // No call is told of these members. The last swap may still be executed: then it
                // comes before these.
                for &(word, stamp) in &dead[..=index] {
                    shared.swap_without_waiting(self.target, word, 0, stamp);
                }
                return Err(error);
            }
        }
        Ok(Some(dead.into_iter().map(|(_, stamp)| stamp).collect()))
    }

    /// The step *restore*: leaves the stamp of the dead member that this member had replaced for
    /// the next locker to find.
    fn restore_dead_stamp(&self) -> WindowResult<()> {
        let (shared, stamp) = (self.shared, self.before);
        let Some(rank) = shared.rank_of_stamp(stamp) else { return Ok(()) };
        if shared.swap(self.target, EXCLUSIVE, 0, stamp, EndedBy::Revoke)? == 0 {
            return Ok(());
        }
        shared.set_bit(self.target, shared.layout.sharing(rank / 64), rank, true)?;
        shared.swap(self.target, shared.layout.shared(rank), 0, stamp, EndedBy::Revoke)?;
        Ok(())
    }

    /// Takes the lock shared. Returns the ranks that died holding it.
    fn take_shared(&mut self) -> WindowResult<Vec<usize>> {
        let shared = self.shared;
        let is_marked = lock(&shared.state).shares.contains(self.target);
        if !is_marked {
            shared.set_bit(self.target, shared.layout.sharing(shared.me / 64), shared.me, true)?;
            lock(&shared.state).shares.insert(self.target);
        }
        let own = shared.layout.shared(shared.me);
        self.wait_until(|attempt| {
            let found = shared.load(attempt.target, EXCLUSIVE)?;
            if let Some(obstacle) = shared.obstacle(found) {
                attempt.obstacle = Some(obstacle);
                return Ok(None);
            }
            // The word is this member's own; any other stamp in it was left by a call that gave up.
            let mut expected = 0;
            loop {
                let found =
                    shared.swap(attempt.target, own, expected, attempt.stamp, EndedBy::Revoke);
                if found == Ok(expected) {
                    break;
                }
                expected = found.inspect_err(|_| {
                    shared.swap_without_waiting(attempt.target, own, attempt.stamp, 0)
                })?;
            }
            let found = shared.load(attempt.target, EXCLUSIVE);
            let obstacle = found.as_ref().ok().map(|&found| shared.obstacle(found));
            match (found, obstacle) {
                (Ok(found), Some(None)) => {
                    Ok(Some(shared.rank_of_stamp(found).into_iter().collect()))
                }
                (found, obstacle) => {
                    shared.swap_without_waiting(attempt.target, own, attempt.stamp, 0);
                    let found = found?;
                    attempt.obstacle = obstacle.flatten();
                    // The exclusive locker may wait for the stamp that has just gone.
                    if let Some(member) = layout::holder(found) {
                        let _ = shared.job.ring(member);
                    }
                    attempt.renew();
                    Ok(None)
                }
            }
        })
    }

    /// Waits until `poll` returns a result. From the second poll on, this member's waiting bit is
    /// set.
    fn wait_until<T>(
        &mut self,
        mut poll: impl FnMut(&mut Self) -> WindowResult<Option<T>>,
    ) -> WindowResult<T> {
        if let Some(found) = poll(self)? {
            return Ok(found);
        }
        let shared = self.shared;
        let limit = self.limit;
        let until = *self.until.get_or_insert_with(|| {
            let (now, time_limit) = (shared.job.now(), shared.job.time_limit());
            match limit > time_limit {
                // The call has been given a deadline of that length.
                true => now.after(limit),
                false => now.after(limit).min(deadline::until(now, time_limit)),
            }
        });
        if !self.waits && !self.limit.is_zero() {
            self.waits = true;
            shared.set_bit(self.target, shared.layout.waiting(shared.me / 64), shared.me, true)?;
        }
        let target = self.target;
        let this = Cell::new(Some(self));
        let obstacle = Cell::new(None);
        shared.wait_for(
            EndedBy::RevokeOrInterrupt,
            || until,
            || {
                let attempt = this.take()?;
                // Before the poll: no lock is taken on a window that is known to be revoked.
                let found = shared.check_usable().and_then(|()| poll(attempt));
                obstacle.set(attempt.obstacle);
                this.set(Some(attempt));
                found.transpose()
            },
            || match obstacle.get() {
                Some(Obstacle::Holder(stamp)) => match shared.rank_of_stamp(stamp) {
                    Some(holder) => WindowError::LockTimeout { target, holder, limit },
                    None => shared.timeout(target, limit),
                },
                // Another communicator may have the rank of that member.
                Some(Obstacle::LastRequest(member)) => {
                    let rank = shared.comm.rank_of(member).unwrap_or(target);
                    WindowError::Timeout { rank, member, limit }
                }
                None => shared.timeout(target, limit),
            },
        )
    }

    /// Clears the waiting bit. Not called where the target may not answer: a bit that stays set
    /// only costs a needless ring.
    fn stop_waiting(&mut self) {
        if std::mem::take(&mut self.waits) {
            let word = self.shared.layout.waiting(self.shared.me / 64);
            let _ = self.shared.set_bit(self.target, word, self.shared.me, false);
        }
    }

    /// Makes a new stamp. A stamp that was swapped out may not come back: `force_unlock` relies on
    /// that.
    fn renew(&mut self) {
        self.stamp = self.new_stamp();
    }

    fn new_stamp(&self) -> u64 {
        let stamp =
            stamp(self.shared.job.me(), self.shared.next_ticket.fetch_add(1, Ordering::Relaxed));
        if let Some(held) = lock(&self.shared.state).held.get_mut(&self.target) {
            held.stamp = stamp;
        }
        stamp
    }
}

/// Whether the target of a call with this error has answered until the end.
fn answers(error: &WindowError) -> bool {
    matches!(error, WindowError::LockTimeout { .. } | WindowError::Interrupted { .. })
}

/// The ranks whose bits are set.
fn ranks_in(words: &[u64]) -> Vec<usize> {
    let bits = |(index, &word): (usize, &u64)| {
        (0..64).filter(move |bit| word & (1 << bit) != 0).map(move |bit| index * 64 + bit)
    };
    words.iter().enumerate().flat_map(bits).collect()
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::engine::Fault;
    use crate::rma::Communicator;
    use crate::sim::{self, Link, Options};
    use crate::{Job, MemberId};
    use std::rc::Rc;

    fn nap(job: &Job, what: &str, until: impl Fn() -> bool) {
        let deadline = job.now().after(Duration::from_secs(60));
        while !until() {
            assert!(job.now() < deadline, "{} waited in vain for {what}", job.me());
            job.sleep(Duration::from_micros(100));
        }
    }

    /// A member of another node dies in the middle of a put under its lock, and the target is
    /// stopped at that moment, perhaps while it executes the put. A member of the target's node,
    /// which reaches the memory of the target by itself, takes the lock over. What it finds there
    /// then, or puts there, stays.
    #[test]
    fn the_last_put_of_a_dead_holder_comes_before_the_next_holder() {
        const LIMIT: Duration = Duration::from_secs(1);
        let (held_up, changed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        for seed in 0..200 {
            let (stage, held_up, changed) =
                (Rc::new(Cell::new(0)), held_up.clone(), changed.clone());
            let mut options = Options::new(3, seed).link(Link::Network);
            options.nodes = vec![0, 0, 1];
            (options.time_limit, options.steps_max) = (LIMIT, 10_000_000);
            sim::run(&options, move |job: Job| {
                let comm = Communicator::world(&job).expect("made");
                let window = Window::allocate(&comm, 64).expect("made");
                let (target, dies) = (MemberId(0), MemberId(2));
                let kind = [LockKind::Exclusive, LockKind::Shared][seed as usize % 2];
                if job.me() == dies {
                    window.lock(0, LockKind::Exclusive).expect("free");
                    window.put_blocking(0, 0, &[1; 64]).expect("put");
                    stage.set(1);
                    nap(&job, "the next holder", || stage.get() == 2);
                    let mine = job.clone();
                    let strike = move || {
                        mine.sleep(Duration::from_nanos(seed * 7919 % 30_000));
                        mine.inject(Fault::Stop(target)).expect("a fault");
                        mine.inject(Fault::Kill(dies)).expect("a fault");
                    };
                    job.spawn("strikes", Box::new(strike)).expect("an activity");
                    let _ = window.put_blocking(0, 0, &[2; 64]);
                    nap(&job, "its death", || false);
                }
                if job.me() == MemberId(1) {
                    nap(&job, "the first put", || stage.get() == 1);
                    stage.set(2);
                    nap(&job, "the death", || !job.view().is_living(dies));
                    let (mine, pause) = (job.clone(), LIMIT / 4);
                    let resume = move || {
                        mine.sleep(pause);
                        mine.inject(Fault::Resume(target)).expect("a fault");
                    };
                    let resumes = job.spawn("resumes", Box::new(resume)).expect("an activity");
                    let began = job.now();
                    match window.lock(0, kind) {
                        Err(WindowError::Abandoned { by, .. }) => assert_eq!(by, [2]),
                        other => panic!("{other:?}"),
                    }
                    let has_waited = job.now().since(began) >= pause;
                    held_up.set(held_up.get() + u32::from(has_waited));
                    let read = || {
                        let mut found = [0; 64];
                        window.get(0, 0, &mut found).expect("read");
                        found
                    };
                    let found = read();
                    if kind == LockKind::Exclusive {
                        window.put_blocking(0, 0, &[3; 64]).expect("put");
                    }
                    nap(&job, "the target", || resumes.is_finished());
                    job.sleep(LIMIT / 4);
                    let expected = if kind == LockKind::Exclusive { [3; 64] } else { found };
                    assert_eq!(read(), expected, "seed {seed}: the dead holder has changed it");
                    changed.set(changed.get() + u32::from(found == [2; 64]));
                    window.unlock(0).expect("held");
                    stage.set(3);
                }
                nap(&job, "the end", || stage.get() == 3);
                window.free().expect("freed");
                let _ = job.leave();
            })
            .expect_ok();
        }
        let counts = [held_up.get(), changed.get()];
        assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
    }

    /// A member is stopped for good in the middle of the last put of a dead holder: the call that
    /// takes the lock ends at its time limit, and the next call gets it when the member goes on.
    #[test]
    fn a_lock_is_not_waited_for_longer_than_its_limit_while_the_target_is_stopped() {
        const LIMIT: Duration = Duration::from_secs(1);
        let late = Rc::new(Cell::new(0));
        for seed in 0..60 {
            let (stage, ready) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let late = late.clone();
            let mut options = Options::new(3, seed).link(Link::Network);
            options.nodes = vec![0, 0, 1];
            (options.time_limit, options.steps_max) = (LIMIT, 10_000_000);
            sim::run(&options, move |job: Job| {
                let comm = Communicator::world(&job).expect("made");
                let window = Window::allocate(&comm, 64).expect("made");
                let (target, dies) = (MemberId(0), MemberId(2));
                ready.set(ready.get() + 1);
                if job.me() == dies {
                    nap(&job, "the windows", || ready.get() == 3);
                    window.lock(0, LockKind::Exclusive).expect("free");
                    stage.set(1);
                    let mine = job.clone();
                    let strike = move || {
                        mine.sleep(Duration::from_nanos(seed * 7919 % 30_000));
                        mine.inject(Fault::Stop(target)).expect("a fault");
                        mine.inject(Fault::Kill(dies)).expect("a fault");
                    };
                    job.spawn("strikes", Box::new(strike)).expect("an activity");
                    let _ = window.put_blocking(0, 0, &[2; 64]);
                    nap(&job, "its death", || false);
                }
                if job.me() == MemberId(1) {
                    nap(&job, "the lock", || stage.get() == 1);
                    nap(&job, "the death", || !job.view().is_living(dies));
                    let began = job.now();
                    let mut taken = window.lock_within(0, LockKind::Exclusive, LIMIT / 2);
                    if let Err(WindowError::Timeout { member, .. }) = taken {
                        assert_eq!(member, target);
                        assert!(job.now().since(began) < LIMIT, "seed {seed}");
                        late.set(late.get() + 1);
                        job.inject(Fault::Resume(target)).expect("a fault");
                        taken = window.lock_within(0, LockKind::Exclusive, LIMIT / 2);
                    }
                    match taken {
                        Err(WindowError::Abandoned { by, .. }) => assert_eq!(by, [2]),
                        other => panic!("{other:?}"),
                    }
                    job.inject(Fault::Resume(target)).expect("a fault");
                    window.unlock(0).expect("held");
                    stage.set(2);
                }
                nap(&job, "the end", || stage.get() == 2);
                window.free().expect("freed");
                let _ = job.leave();
            })
            .expect_ok();
        }
        assert!(late.get() > 0, "the target was never stopped in the middle of a put");
    }

    /// A member of another node dies with a lock at two members of a node, one of which is stopped
    /// in the middle of a put of the dead: a lock at the other one has to wait, too, and its timeout
    /// names the member that is stopped.
    #[test]
    fn a_timeout_behind_a_request_of_the_dead_names_its_server() {
        const LIMIT: Duration = Duration::from_secs(1);
        let late = Rc::new(Cell::new(0));
        for seed in 0..60 {
            let (stage, ready) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let late = late.clone();
            let mut options = Options::new(4, seed).link(Link::Network);
            options.nodes = vec![0, 0, 0, 1];
            (options.time_limit, options.steps_max) = (LIMIT, 10_000_000);
            sim::run(&options, move |job: Job| {
                let comm = Communicator::world(&job).expect("made");
                let window = Window::allocate(&comm, 64).expect("made");
                let (stopped, dies) = (MemberId(2), MemberId(3));
                ready.set(ready.get() + 1);
                if job.me() == dies {
                    nap(&job, "the windows", || ready.get() == 4);
                    window.lock(0, LockKind::Exclusive).expect("free");
                    window.lock(2, LockKind::Exclusive).expect("free");
                    stage.set(1);
                    let mine = job.clone();
                    let strike = move || {
                        mine.sleep(Duration::from_nanos(seed * 7919 % 30_000));
                        mine.inject(Fault::Stop(stopped)).expect("a fault");
                        mine.inject(Fault::Kill(dies)).expect("a fault");
                    };
                    job.spawn("strikes", Box::new(strike)).expect("an activity");
                    let _ = window.put_blocking(2, 0, &[2; 64]);
                    nap(&job, "its death", || false);
                }
                if job.me() == MemberId(1) {
                    nap(&job, "the lock", || stage.get() == 1);
                    nap(&job, "the death", || !job.view().is_living(dies));
                    match window.lock_within(0, LockKind::Exclusive, LIMIT / 2) {
                        Err(WindowError::Abandoned { by, .. }) => assert_eq!(by, [3]),
                        Err(WindowError::Timeout { rank, member, .. }) => {
                            assert_eq!((rank, member), (2, stopped), "seed {seed}");
                            late.set(late.get() + 1);
                        }
                        other => panic!("{other:?}"),
                    }
                    job.inject(Fault::Resume(stopped)).expect("a fault");
                    let _ = window.unlock(0);
                    stage.set(2);
                }
                nap(&job, "the end", || stage.get() == 2);
                while let Err(WindowError::Timeout { .. }) = window.free() {}
                let _ = job.leave();
            })
            .expect_ok();
        }
        assert!(late.get() > 0, "the member was never stopped in the middle of a put");
    }
}

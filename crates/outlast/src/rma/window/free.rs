//! Freeing a window.
//!
//! 1. *arrive*: each member completes its operations and agrees that it has arrived. Afterwards no
//!    living member is inside a call on the window, and no member takes or releases a lock.
//! 2. *check_locks*: each member checks whether a living member holds the lock at its memory, and
//!    whether it holds a lock itself, and all agree whether no lock is held. If so, each member
//!    releases its memory: no operation in flight could touch it. The dead have agreed to nothing,
//!    so the member first ends what it executes for them.
//! 3. *name_holder*: otherwise all members search for the first holder, and agree that they have
//!    found it before any member returns and unlocks.
//!
//! Each agreement carries the number of its step. Thus a member that left an agreement by a time
//! limit and comes back finds out where the others are. The agreements leave out members that die.
//! A member that does not get the outcome of *check_locks* may not use the window any more, since
//! the others may have freed it; it can only call `free` again.

use super::directory::OwnMemory;
use super::layout::ControlLayout;
use super::{
    EndedBy, PHASE_FREED, PHASE_LIVE, PHASE_UNKNOWN, SharedWindow, WindowError, WindowResult, lock,
};
use crate::Job;
use crate::rma::Communicator;
use std::sync::atomic::Ordering;

/// A thread inside `free`.
pub(super) struct FreeCall<'a> {
    pub(super) shared: &'a SharedWindow,
    /// The phase of the window after the thread has returned.
    pub(super) after: std::cell::Cell<u32>,
}

impl Drop for FreeCall<'_> {
    fn drop(&mut self) {
        self.shared.phase.store(self.after.get(), Ordering::SeqCst);
    }
}

/// A step of `free`. The number of a step is the bit that the votes in it carry.
#[derive(Clone, Copy)]
enum FreeStep {
    Arrive = 1,
    CheckLocks = 2,
    NameHolder = 3,
}

const FREE_STEP_BITS: u64 = 0b1110;

/// The outcome of the agreement of a step.
enum FreeVote {
    All,
    NotAll,
    /// The members were in different steps: all start over.
    Mixed,
}

impl FreeCall<'_> {
    pub(super) fn run(&self) -> WindowResult<()> {
        let shared = self.shared;
        let channel = shared.channel();
        // A member that comes back without knowing the outcome of *check_locks* has voted in it
        // already.
        let mut is_awaiting = self.after.get() == PHASE_UNKNOWN;
        let no_calls = || (shared.calls.load(Ordering::SeqCst) == 0).then_some(Ok(()));
        shared.wait_for(
            EndedBy::Nothing,
            || shared.job.deadline(),
            no_calls,
            || shared.timeout(shared.me, shared.job.time_limit()),
        )?;
        loop {
            let mut is_fine = true;
            if !is_awaiting {
                shared.await_engine()?;
                if let FreeVote::Mixed = self.agree(&channel, FreeStep::Arrive, true)? {
                    continue;
                }
                // Check this member's locks at other ranks too: the others may have checked, and
                // voted, while this member was out of `free` after a time limit.
                is_fine = shared.locked_by(shared.me)?.is_none() && !shared.holds_lock()?;
                // From the vote on, others may free the window without this member knowing.
                self.after.set(PHASE_UNKNOWN);
            }
            is_awaiting = false;
            match self.agree(&channel, FreeStep::CheckLocks, is_fine)? {
                FreeVote::Mixed => {
                    self.after.set(PHASE_LIVE);
                    continue;
                }
                FreeVote::All => break,
                FreeVote::NotAll => self.after.set(PHASE_LIVE),
            }
            let found = self.find_holder()?;
            if let FreeVote::All = self.agree(&channel, FreeStep::NameHolder, found.is_some())?
                && let Some((target, holder)) = found
            {
                return Err(WindowError::StillLocked { target, holder });
            }
        }
        self.after.set(PHASE_FREED);
        // The agreement has told this member of the members that it left out.
        shared.job.drain_requests_of_dead();
        let owned = lock(&shared.owned).take();
        if let Some(owned) = owned {
            release(&shared.job, shared.layout, shared.controls[shared.me], owned);
        }
        let _ = channel.free();
        Ok(())
    }

    /// Agrees on a step: whether `is_fine` holds at all members.
    fn agree(
        &self,
        channel: &Communicator,
        step: FreeStep,
        is_fine: bool,
    ) -> WindowResult<FreeVote> {
        let own_bit = 1 << step as u32;
        loop {
            let flags = channel.agree_despite_failures(u64::from(is_fine) | own_bit)?.flags;
            match flags & FREE_STEP_BITS {
                0 => return Ok(FreeVote::Mixed),
                bits if bits == own_bit => {
                    return Ok(if flags & 1 == 1 { FreeVote::All } else { FreeVote::NotAll });
                }
                // The outcome of an earlier step, which this member had left by a time limit.
                _ => continue,
            }
        }
    }

    /// The first target with a lock that a living member holds, and the holder. Locks do not change
    /// meanwhile.
    fn find_holder(&self) -> WindowResult<Option<(usize, usize)>> {
        let shared = self.shared;
        for target in 0..shared.members.len() {
            match shared.locked_by(target) {
                Ok(Some(holder)) => return Ok(Some((target, holder))),
                Ok(None) | Err(WindowError::ProcFailed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// Releases all memory that a member has reserved for a window.
pub(super) fn release(job: &Job, layout: ControlLayout, control: u64, owned: OwnMemory) {
    job.release(control, layout.len());
    if owned.block.1 > 0 {
        job.release(owned.block.0, owned.block.1);
    }
    owned.ranges.iter().for_each(|range| job.release(range.place, range.len));
    owned.detached.iter().for_each(|range| job.release(range.place, range.len));
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use crate::engine::{Epoch, Fault};
    use crate::rma::{Communicator, Window};
    use crate::sim::{self, Link, Options};
    use crate::{Job, MemberId};
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    const LEN: usize = 1024;

    /// A member of another node dies in the middle of a put into the memory of member 0, which
    /// `gives_back` then. Member 0 uses its memory for something else, which stays as it is.
    fn memory_is_reused(gives_back: impl Fn(&Job, &Window, u64) + Copy + 'static) {
        for seed in 0..400 {
            let (stage, place) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let mut options = Options::new(3, seed).link(Link::Network);
            options.nodes = vec![0, 0, 1];
            options.detection = Duration::from_nanos(100)..=Duration::from_nanos(500);
            options.steps_max = 10_000_000;
            sim::run(&options, move |job: Job| {
                let comm = Communicator::world(&job).expect("made");
                let window = Window::open(&comm, LEN as u64).expect("made");
                let (target, dies) = (MemberId(0), MemberId(2));
                if job.me() == target {
                    place.set(window.attach(LEN as u64).expect("attached"));
                }
                // The death may end it.
                let _ = comm.barrier();
                if job.me() == dies {
                    let mine = job.clone();
                    let strike = move || {
                        mine.sleep(Duration::from_nanos(seed * 7919 % 5_000));
                        mine.inject(Fault::Kill(dies)).expect("a fault");
                    };
                    job.spawn("strikes", Box::new(strike)).expect("an activity");
                    loop {
                        let _ = window.put_blocking(0, place.get(), &[2; LEN]);
                        let _ = window.put_blocking(0, 0, &[2; LEN]);
                    }
                }
                gives_back(&job, &window, place.get());
                if job.me() == target {
                    let reserve = |_| job.reserve(LEN as u64).expect("memory");
                    let places: Vec<u64> = (0..8).map(reserve).collect();
                    for &at in &places {
                        job.put(Epoch::ANY, target, at, &[3; LEN]).expect("put");
                    }
                    job.sleep(Duration::from_millis(100));
                    for &at in &places {
                        let mut found = [0; LEN];
                        job.get(Epoch::ANY, target, at, &mut found).expect("read");
                        assert_eq!(found, [3; LEN], "seed {seed}: the dead member has changed it");
                    }
                    stage.set(1);
                }
                while stage.get() == 0 {
                    job.sleep(Duration::from_millis(1));
                }
                let _ = window.close();
                let _ = job.leave();
            })
            .expect_ok();
        }
    }

    #[test]
    fn memory_of_a_freed_window_is_not_changed_by_the_dead() {
        memory_is_reused(|_, window, _| window.close().expect("closed"));
    }

    #[test]
    fn memory_of_a_detached_range_is_not_changed_by_the_dead() {
        memory_is_reused(|job, window, place| {
            while job.view().is_living(MemberId(2)) {
                job.sleep(Duration::from_nanos(100));
            }
            if job.me() == MemberId(0) {
                window.detach(place).expect("detached");
                while window.bytes_aside().expect("looked") > 0 {
                    job.sleep(Duration::from_nanos(100));
                }
            }
        });
    }
}

//! Freeing a window.
//!
//! 1. *arrive*: each member completes its operations and agrees that it has arrived. Afterwards no
//!    living member is inside a call on the window, and no member takes or releases a lock.
//! 2. *check_locks*: each member checks whether a living member holds the lock at its memory, and
//!    whether it holds a lock itself, and all agree whether no lock is held. If so, each member
//!    releases its memory: no operation in flight could touch it.
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

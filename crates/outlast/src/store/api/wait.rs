//! Waiting for a key. `docs/protocol/waiting.md` has the steps, and says why no wake-up is lost.

use crate::engine::{MemberId, Time};
use crate::store::api::store::Store;
use crate::store::error::StoreResult;
use crate::store::value::{Value, Version};
use std::time::Duration;

/// The interval at which a waiter reads a key that a transaction has locked.
const LOCKED: Duration = Duration::from_millis(100);

/// The interval at which a waiter looks again while a local member executes a request of a dead
/// member.
const LAST_REQUEST: Duration = Duration::from_millis(1);

/// How a wait ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// The key exists, with a version that the wait was for.
    Value(Value),
    /// The named member is dead or has left, and no version that the wait was for exists. A value
    /// that this member had begun to put, and that no call has returned so far, never appears
    /// later. (Where a stopped member of this node may still execute the put, the wait goes on.)
    Died(MemberId),
    /// The deadline has passed.
    TimedOut,
}

/// What a wait is for.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::api) struct Wanted {
    pub(in crate::store::api) newer_than: Option<Version>,
    pub(in crate::store::api) deadline: Time,
    /// The member whose death ends the wait.
    pub(in crate::store::api) member: Option<MemberId>,
}

/// What a waiter has found.
pub(in crate::store::api) enum Look {
    /// The wait has ended.
    Over(WaitOutcome),
    /// Nothing yet. The waiter looks again when its bell has rung, and at this time at the latest.
    Again(Time),
}

impl Store {
    /// Waits until a key exists with a version newer than `newer_than`, or with any version if that
    /// is `None`. Returns `None` at the deadline.
    pub fn wait(
        &self,
        key: impl AsRef<[u8]>,
        newer_than: Option<Version>,
        deadline: Time,
    ) -> StoreResult<Option<Value>> {
        let wanted = Wanted { newer_than, deadline, member: None };
        Ok(match self.wait_until(key.as_ref(), &wanted)? {
            WaitOutcome::Value(value) => Some(value),
            WaitOutcome::Died(_) | WaitOutcome::TimedOut => None,
        })
    }

    /// Waits for a key, as [`Store::wait`] does, until `member` dies: for a result that this member
    /// is to put. If the member has put the result and then died, the outcome is
    /// [`WaitOutcome::Value`].
    pub fn wait_or_death(
        &self,
        key: impl AsRef<[u8]>,
        newer_than: Option<Version>,
        deadline: Time,
        member: MemberId,
    ) -> StoreResult<WaitOutcome> {
        let wanted = Wanted { newer_than, deadline, member: Some(member) };
        self.wait_until(key.as_ref(), &wanted)
    }

    fn wait_until(&self, key: &[u8], wanted: &Wanted) -> StoreResult<WaitOutcome> {
        let job = &self.state.job;
        let _call = self.state.begin_wait(wanted.deadline);
        loop {
            let bell = job.bell();
            match self.look_for(key, wanted)? {
                Look::Over(outcome) => return Ok(outcome),
                Look::Again(until) => job.park(bell, until),
            }
        }
    }

    /// Looks once at a key that a waiter waits for, and asks that its next change rings the bell of
    /// this member. The waiter reads its bell before the call.
    pub(in crate::store::api) fn look_for(&self, key: &[u8], wanted: &Wanted) -> StoreResult<Look> {
        let job = &self.state.job;
        // The check comes before the read of the key: the read then finds what the dead member has
        // published.
        let died = wanted.member.filter(|&member| !job.view().is_living(member));
        // The last put of the dead member may be a request that a local member still executes. Such
        // a request is looked for after the view was loaded, since a request that is begun later is
        // refused, and before the read of the key, which then finds what the request did.
        let is_serving_dead = died.is_some() && job.is_serving_dead();
        self.state.announce_waiter(key)?;
        let get = || self.state.read_at_primary(key, |op, found| found.to_value(op, key));
        if let Some(value) = self.state.sample(&self.state.counts.get, get)?
            && wanted.newer_than.is_none_or(|seen| value.version > seen)
        {
            return Ok(Look::Over(WaitOutcome::Value(value)));
        }
        if let Some(member) = died.filter(|_| !is_serving_dead) {
            return Ok(Look::Over(WaitOutcome::Died(member)));
        }
        if job.now() >= wanted.deadline {
            return Ok(Look::Over(WaitOutcome::TimedOut));
        }
        if is_serving_dead {
            // No bell rings when the request has been executed.
            return Ok(Look::Again(wanted.deadline.min(job.now().after(LAST_REQUEST))));
        }
        // The committer may be stopped after the commit and before it rings the bells, while other
        // members have seen the transaction through another key.
        let is_locked = self.state.is_locked(key)?;
        let soon = job.now().after(LOCKED);
        Ok(Look::Again(if is_locked { wanted.deadline.min(soon) } else { wanted.deadline }))
    }
}

//! Waiting for a key. `docs/protocol/waiting.md` has the steps, and says why no wake-up is lost.

use crate::engine::{MemberId, Time};
use crate::store::api::store::Store;
use crate::store::error::StoreResult;
use crate::store::value::{Value, Version};
use std::time::Duration;

/// The interval at which a waiter reads a key that a transaction has locked.
const LOCKED: Duration = Duration::from_millis(100);

/// How a wait ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// The key exists, with a version that the wait was for.
    Value(Value),
    /// The named member is dead or has left, and no version that the wait was for exists. A value
    /// that this member had begun to put, and that no call has returned so far, never appears
    /// later.
    Died(MemberId),
    /// The deadline has passed.
    TimedOut,
}

impl Store {
    /// Waits until a key exists with a version newer than `newer_than`, or with any version if that
    /// is `None`. Returns `None` at the deadline.
    pub fn wait(
        &self,
        key: &[u8],
        newer_than: Option<Version>,
        deadline: Time,
    ) -> StoreResult<Option<Value>> {
        Ok(match self.wait_until(key, newer_than, deadline, None)? {
            WaitOutcome::Value(value) => Some(value),
            WaitOutcome::Died(_) | WaitOutcome::TimedOut => None,
        })
    }

    /// Waits for a key, as [`Store::wait`] does, until `member` dies: for a result that this member
    /// is to put. If the member has put the result and then died, the outcome is
    /// [`WaitOutcome::Value`].
    pub fn wait_or_death(
        &self,
        key: &[u8],
        newer_than: Option<Version>,
        deadline: Time,
        member: MemberId,
    ) -> StoreResult<WaitOutcome> {
        self.wait_until(key, newer_than, deadline, Some(member))
    }

    fn wait_until(
        &self,
        key: &[u8],
        newer_than: Option<Version>,
        deadline: Time,
        member: Option<MemberId>,
    ) -> StoreResult<WaitOutcome> {
        let job = &self.state.job;
        let _call = self.state.begin_wait(deadline);
        loop {
            let bell = job.bell();
            // The check comes before the read of the key: the read then finds what the dead member
            // has published.
            let died = member.filter(|&member| !job.view().is_living(member));
            self.state.announce_waiter(key)?;
            let get = || self.state.read_at_primary(key, |op, found| found.to_value(op, key));
            if let Some(value) = self.state.sample(&self.state.counts.get, get)?
                && newer_than.is_none_or(|seen| value.version > seen)
            {
                return Ok(WaitOutcome::Value(value));
            }
            if let Some(member) = died {
                return Ok(WaitOutcome::Died(member));
            }
            if job.now() >= deadline {
                return Ok(WaitOutcome::TimedOut);
            }
            // The committer may be stopped after the commit and before it rings the bells, while
            // other members have seen the transaction through another key.
            let is_locked = self.state.is_locked(key)?;
            job.park(
                bell,
                if is_locked { deadline.min(job.now().after(LOCKED)) } else { deadline },
            );
        }
    }
}

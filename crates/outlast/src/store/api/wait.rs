//! Waiting for a key: docs/protocol.md, "Waiting and locks".

use crate::engine::{MemberId, Time};
use crate::store::api::store::Store;
use crate::store::error::StoreResult;
use crate::store::value::{Value, Version};
use std::time::Duration;

/// How often to look at a key that a transaction has locked.
const LOCKED: Duration = Duration::from_millis(100);

/// How a wait ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// The key is there.
    Value(Value),
    /// The member that was named is dead or has left, and the key is not there. What that member
    /// had put, and nobody saw so far, will not come up later.
    Died(MemberId),
    /// The deadline is over.
    TimedOut,
}

impl Store {
    /// Waits until a key exists with a version newer than `newer_than` (or at all, if `None`);
    /// `None` at the deadline.
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

    /// As [`Store::wait`], and ended also by the death of `member`: for a result that this member
    /// is to put. If it has put it and then died, that is [`WaitOutcome::Value`].
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
        loop {
            let bell = job.bell();
            // Before the key is read: what the dead have done is then there.
            let died = member.filter(|&member| !job.view().is_living(member));
            self.state.announce_waiter(key)?;
            if let Some(value) = self.get(key)?
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
            // Its committer may be stopped between the decision and the bells, and others know of
            // it by another key of it.
            let is_locked = self.state.is_locked(key)?;
            job.park(
                bell,
                if is_locked { deadline.min(job.now().after(LOCKED)) } else { deadline },
            );
        }
    }
}

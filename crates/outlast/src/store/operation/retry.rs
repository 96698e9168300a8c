//! Repeating attempts at an operation until it is done or its time is over.

use crate::engine::{Time, deadline};
use crate::store::error::{StoreError, StoreResult};
use crate::store::operation::error::{OpError, OpResult};
use crate::store::operation::state::OperationState;
use std::time::Duration;

/// How many attempts are made between two checks of the clock.
const ATTEMPTS: u32 = 256;

/// How long a call waits for a replica that has no room, if it deletes a key or has published its
/// version already.
pub(in crate::store) const ROOM_WAIT: Duration = Duration::from_secs(1);

/// How long it sleeps between two attempts.
const ROOM_PAUSE: Duration = Duration::from_millis(2);

/// How long a call starts over. An attempt fails because another operation was faster or because
/// the view has changed, so a call comes to an end unless memory is damaged. The limit makes sure
/// that no call goes on for ever, whatever is in memory.
#[derive(Default)]
pub(in crate::store) struct RetryBudget {
    attempts: u32,
    until: Option<Time>,
    /// The end of the wait for room.
    room_until: Option<Time>,
}

impl OperationState {
    /// Attempts an operation until it is done, and starts over whenever the view has changed under
    /// it. An attempt also returns whether a replica had no block left for a tombstone. `attempts`
    /// is the number of failed attempts of the caller's transaction.
    pub(in crate::store) fn retry<T>(
        &self,
        attempts: u32,
        mut attempt: impl FnMut() -> (OpResult<T>, bool),
    ) -> StoreResult<T> {
        let _call = self.begin_call();
        let mut budget = RetryBudget::default();
        let mut blocked = None;
        loop {
            let (result, lacks_tombstone) = attempt();
            match result {
                Ok(value) => return Ok(value),
                // The wait is outside the operation, since the records of deleted keys are removed
                // only after the operations in flight have ended.
                Err(OpError::Fail(StoreError::OutOfMemory { .. }))
                    if lacks_tombstone && budget.wait_for_room(self) => {}
                Err(OpError::Fail(error)) => return Err(error),
                Err(OpError::Lost(partition)) => self.await_salvage(partition)?,
                Err(OpError::Frozen) => self.wait_for_unfreeze()?,
                // `record/state.rs` has waited for the blocks.
                Err(OpError::Again | OpError::Needs(..)) => budget.check(self)?,
                Err(OpError::Blocked(blocker)) => {
                    self.clear(&blocker, attempts, &mut blocked)?;
                    budget.check(self)?;
                }
            }
        }
    }
}

impl RetryBudget {
    /// Counts an attempt. Returns an error if the time of the call is over.
    #[inline]
    pub(in crate::store) fn check(&mut self, store: &OperationState) -> StoreResult<()> {
        self.attempts += 1;
        if self.attempts.is_multiple_of(ATTEMPTS) { self.look(store) } else { Ok(()) }
    }

    /// Sleeps a little, until there may be room. Returns false once the call has waited for room
    /// for long enough.
    #[cold]
    pub(in crate::store) fn wait_for_room(&mut self, store: &OperationState) -> bool {
        let job = &store.job;
        let now = job.now();
        let until = *self.room_until.get_or_insert_with(|| {
            now.after(ROOM_WAIT).min(deadline::until(now, job.time_limit()))
        });
        if now >= until {
            return false;
        }
        let next = until.min(now.after(ROOM_PAUSE));
        while job.now() < next {
            let bell = job.bell();
            store.serve_messages();
            job.park(bell, next);
        }
        true
    }

    /// Serves messages, and checks the clock.
    #[cold]
    fn look(&mut self, store: &OperationState) -> StoreResult<()> {
        // Every wait serves messages. This activity may be the background, and it may wait for what
        // a message in its own queue would tell it, for example that a member leaves of which other
        // members know already.
        store.serve_messages();
        let (now, limit) = (store.job.now(), store.job.time_limit());
        if now >= *self.until.get_or_insert_with(|| deadline::until(now, limit)) {
            return Err(StoreError::Timeout { member: store.me(), limit });
        }
        Ok(())
    }
}

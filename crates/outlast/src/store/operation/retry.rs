//! Beginning an operation anew, until it is done or its time is over.

use crate::engine::Time;
use crate::store::error::{StoreError, StoreResult};
use crate::store::operation::error::{OpError, OpResult};
use crate::store::operation::state::OperationState;
use std::time::Duration;

/// How often to begin anew before the clock is looked at.
const ATTEMPTS: u32 = 256;

/// How long to wait where a replica has no room, for a delete or for what is published already, and
/// how often to look.
pub(in crate::store) const ROOM_PATIENCE: Duration = Duration::from_secs(1);

const ROOM_PAUSE: Duration = Duration::from_millis(2);

/// How long a call begins anew: each time somebody else was faster, or the view has changed, so
/// that this has an end unless memory is damaged. No call goes on for ever, whatever is in memory.
#[derive(Default)]
pub(in crate::store) struct Patience {
    attempts: u32,
    until: Option<Time>,
    /// Until when to wait for room.
    room_until: Option<Time>,
}

impl Patience {
    #[inline]
    pub(in crate::store) fn check(&mut self, store: &OperationState) -> StoreResult<()> {
        self.attempts += 1;
        if self.attempts.is_multiple_of(ATTEMPTS) { self.look(store) } else { Ok(()) }
    }

    /// Sleeps a little, so that there is room meanwhile; not for long in all.
    #[cold]
    pub(in crate::store) fn wait_for_room(&mut self, store: &OperationState) -> bool {
        let job = &store.job;
        let now = job.now();
        let until = *self.room_until.get_or_insert(now.after(ROOM_PATIENCE.min(job.time_limit())));
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

    #[cold]
    fn look(&mut self, store: &OperationState) -> StoreResult<()> {
        // Whoever waits serves: this may be the background, and what it waits for may be in a
        // message, such as that somebody leaves, whom the others know already.
        store.serve_messages();
        let (now, limit) = (store.job.now(), store.job.time_limit());
        if now >= *self.until.get_or_insert(now.after(limit)) {
            return Err(StoreError::Timeout { member: store.me(), limit });
        }
        Ok(())
    }
}

impl OperationState {
    /// Attempts an operation until it is done, beginning anew whenever the view has changed under
    /// it. An attempt also tells whether a replica had no tombstone left. `rank` is the number of
    /// failed attempts of the caller's transaction.
    pub(in crate::store) fn retry<T>(
        &self,
        rank: u32,
        mut attempt: impl FnMut() -> (OpResult<T>, bool),
    ) -> StoreResult<T> {
        let mut patience = Patience::default();
        let mut blocked = None;
        loop {
            let (result, lacks_tombstone) = attempt();
            match result {
                Ok(value) => return Ok(value),
                // Outside the operation, which others wait for before they remove what was deleted.
                Err(OpError::Fail(StoreError::OutOfMemory { .. }))
                    if lacks_tombstone && patience.wait_for_room(self) => {}
                Err(OpError::Fail(error)) => return Err(error),
                Err(OpError::Lost(partition)) => self.await_salvage(partition)?,
                Err(OpError::Frozen) => self.wait_for_unfreeze()?,
                Err(OpError::Again) => patience.check(self)?,
                Err(OpError::Blocked(blocker)) => {
                    self.clear(&blocker, rank, &mut blocked)?;
                    patience.check(self)?;
                }
            }
        }
    }
}

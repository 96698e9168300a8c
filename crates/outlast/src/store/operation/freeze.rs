//! The write freeze: no write of this member begins while a consistent cut is made.
//!
//! docs/protocol/consistent-cut.md has the protocol, and `api/cut.rs` sets and ends the freeze. The
//! freeze ends by itself at its time limit, so that the death of the coordinator delays writers
//! only until then.

use crate::engine::Time;
use crate::store::error::{StoreError, StoreResult};
use crate::store::operation::state::OperationState;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The time at which the write freeze ends by itself; 0 while writes are not frozen.
///
/// *Orderings.* Sequentially consistent, in a single order with the operation counters: a writer
/// makes its counter odd and then loads this word, and `cut.drain` reads the counters after the
/// word was set.
#[derive(Default)]
pub(in crate::store) struct WriteFreeze(pub(in crate::store) AtomicU64);

impl WriteFreeze {
    /// Whether writes are frozen.
    #[inline(always)]
    pub(in crate::store) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst) != 0
    }
}

impl OperationState {
    /// Waits until writes may begin, or until the deadline of the call. The wait is also bounded by
    /// the end of the freeze. The background does not wait: the freeze may wait for other work of
    /// the background in turn, such as the end of a commit that was not answered. It gets a
    /// timeout, and comes back later.
    #[cold]
    pub(in crate::store) fn wait_for_unfreeze(&self) -> StoreResult<()> {
        let mut deadline = None;
        loop {
            let bell = self.job.bell();
            let until = self.freeze.0.load(Ordering::SeqCst);
            if until == 0 {
                return Ok(());
            }
            if self.job.has_ended() {
                return Err(StoreError::Closed);
            }
            if self.job.now() >= Time(until) {
                // The coordinator of the cut is late. It notices at `cut.unfreeze` that the freeze
                // has ended before.
                let _ =
                    self.freeze.0.compare_exchange(until, 0, Ordering::SeqCst, Ordering::SeqCst);
                continue;
            }
            if self.is_background() {
                return Err(StoreError::Timeout { member: self.me(), limit: Duration::ZERO });
            }
            let deadline = *deadline.get_or_insert_with(|| self.job.deadline());
            if self.job.now() >= deadline {
                let (member, limit) = (self.me(), self.job.time_limit());
                return Err(StoreError::Timeout { member, limit });
            }
            // Every wait serves messages: this activity may run in the background.
            self.serve_messages();
            self.job.park(bell, deadline.min(Time(until)));
        }
    }
}

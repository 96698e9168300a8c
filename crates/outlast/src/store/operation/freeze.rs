//! The write freeze: no write begins while a consistent cut is made.

use crate::engine::Time;
use crate::store::error::{StoreError, StoreResult};
use crate::store::operation::state::OperationState;
use std::sync::atomic::{AtomicU64, Ordering};

/// Until when no write begins; 0 if they do.
#[derive(Default)]
pub(in crate::store) struct WriteFreeze(pub(in crate::store) AtomicU64);

impl WriteFreeze {
    #[inline(always)]
    pub(in crate::store) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst) != 0
    }
}

impl OperationState {
    /// Waits until writes may begin; bounded by the freeze's own end.
    #[cold]
    pub(in crate::store) fn wait_for_unfreeze(&self) -> StoreResult<()> {
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
                // Whoever froze it is late, and will notice that it no longer is.
                let _ =
                    self.freeze.0.compare_exchange(until, 0, Ordering::SeqCst, Ordering::SeqCst);
                continue;
            }
            // Whoever waits serves: this may be the background.
            self.serve_messages();
            self.job.park(bell, Time(until));
        }
    }
}

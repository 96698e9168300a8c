//! Waiting until the operations that this member has in flight at some moment have ended.
//!
//! A member that is to change nothing any more (before it acknowledges a leaver, before a
//! consistent cut, before a recovery) closes its door first and then waits for the operations that
//! passed the door before. A grace period ([`super::grace_period`]) does it for the operations of
//! all members.

use crate::engine::Epoch;
use crate::store::error::StoreResult;
use crate::store::operation::error::engine_error;
use crate::store::operation::state::OperationState;
use crate::store::segment::layout::PARTICIPANTS;

/// The operations of this member that were in flight when the wait began and have not ended yet.
#[derive(Debug, Default)]
pub(crate) struct Quiescence {
    /// The participants, each with the number of its operation.
    in_flight: Vec<(usize, u64)>,
}

impl Quiescence {
    /// Begins a wait for all operations that are in flight now. A counter is odd while its
    /// participant is pinned.
    pub(in crate::store) fn begin(store: &OperationState) -> StoreResult<Quiescence> {
        let mut in_flight = Vec::new();
        for participant in 0..PARTICIPANTS {
            let counter = store.own_counter(participant)?;
            if counter % 2 == 1 {
                in_flight.push((participant, counter));
            }
        }
        Ok(Quiescence { in_flight })
    }

    /// Whether no operation is left to wait for.
    pub(in crate::store) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Whether all of them have ended, but for those of the participants in `except`, which are not
    /// waited for.
    pub(in crate::store) fn is_over(
        &mut self,
        store: &OperationState,
        except: &[usize],
    ) -> StoreResult<bool> {
        let mut left = Vec::new();
        for &(participant, counter) in
            self.in_flight.iter().filter(|(participant, _)| !except.contains(participant))
        {
            if store.own_counter(participant)? == counter {
                left.push((participant, counter));
            }
        }
        self.in_flight = left;
        Ok(self.is_empty())
    }
}

impl OperationState {
    /// The counter of a participant of this member.
    fn own_counter(&self, participant: usize) -> StoreResult<u64> {
        let word = self.counter_word(self.me(), participant);
        self.job.load(Epoch::ANY, self.me(), word).map_err(engine_error)
    }
}

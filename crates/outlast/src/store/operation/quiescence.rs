//! Waiting until the operations that this member has in flight at some moment have ended.
//!
//! A member that must change nothing any more (before it acknowledges a leaver, before a consistent
//! cut, before a coordinated recovery) first closes a door: it records the leaver, freezes writes,
//! or closes the gate. Then it waits for the operations that passed the door before. A grace period
//! (`grace_period.rs`) does this for the operations of all members.
//!
//! An operation makes its counter odd before it checks the door, and the door is closed before
//! [`Quiescence::begin`] reads the counters. `gate.rs`, `freeze.rs` and `configuration.rs` say why
//! their orderings suffice: either the operation finds the door closed, or this wait finds the
//! operation.

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
    /// Begins a wait for all operations of this member that are in flight now: their counters are
    /// odd.
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

    /// Whether all these operations have ended, except the operations of the participants in
    /// `except`, which are not waited for.
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

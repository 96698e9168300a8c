//! Coordinated recovery (global mode): the first death closes the gate at all members, and all
//! members recover together.
//!
//! Replication, reconciling, repair and transactions work as in localized mode. This module watches
//! the gate of [`crate::store::operation::gate`], and has a member's share of the steps
//! *close_gate*, *repair* and *open_gate*. `api::recover` runs all steps in order. The members of
//! the store have a communicator. Its agreements have an identical result at all members
//! ([`crate::rma`]), so no member goes another way than the others.
//!
//! Orderings: `Gate::below` is stored SeqCst. An operation makes its counter odd and then loads
//! `below`. *close_gate* stores 0 and then loads the counters. In a single total order either the
//! operation finds the gate closed, or *close_gate* finds the operation in flight. The count of
//! recoveries changes under the lock of `Gate::deaths`, so [`RecoveryState::update_gate`] cannot
//! close the gate for a revocation that a recovery has answered.
#![cfg_attr(
    outlast_pages,
    doc = include_str!("../../../../../docs/protocol/coordinated-recovery.md")
)]

use crate::engine::{MemberId, MemberSet, Time, View};
use crate::rma;
use crate::rma::Communicator;
use crate::store::error::{StoreError, StoreResult};
use crate::store::operation::error::engine_error;
use crate::store::operation::quiescence::Quiescence;
use crate::store::options::Mode;
use crate::store::recovery::state::{Coordinated, RecoveryState};
use crate::store::steps::{self, within};
use crate::sync::lock;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The first pause between two looks at a condition that this member waits for. It doubles with
/// each look.
const LOOK_PAUSE: Duration = Duration::from_micros(50);

/// The longest pause between two looks.
const LOOK_PAUSE_MAX: Duration = Duration::from_millis(20);

/// The error of the store for an error of a communicator.
pub(in crate::store) fn rma_error(error: rma::Error) -> StoreError {
    match error {
        rma::Error::Timeout { member, limit, .. } => StoreError::Timeout { member, limit },
        rma::Error::Engine(error) => engine_error(error),
        other => StoreError::RecoveryFailed { reason: other.to_string() },
    }
}

impl Coordinated {
    /// The communicator of the members of the store; `None` in localized mode.
    pub(in crate::store) fn communicator(&self) -> Option<Communicator> {
        lock(&self.communicator).clone()
    }
}

impl RecoveryState {
    /// Closes the gate if the store has not recovered from a death, or if the communicator is
    /// revoked. A member that left on purpose has handed over its replicas, and closes no gate. The
    /// background calls this function whenever the bell rings.
    pub(in crate::store) fn watch_gate(&self) {
        let gate = &self.gate;
        if gate.mode == Mode::Localized || gate.is_closed() {
            return;
        }
        let recoveries = gate.recoveries();
        let epoch = self.job.epoch();
        let is_revoked =
            self.coordinated.communicator().is_some_and(|communicator| communicator.is_revoked());
        if gate.lets_through(epoch) && !is_revoked {
            return;
        }
        let view = self.job.view();
        self.update_gate(&view, is_revoked, recoveries);
        if gate.is_closed() {
            tracing::info!(dead = %view.dead, "the store is revoked: all members have to recover");
            // The bell wakes the calls that wait: they find the gate closed.
            let _ = self.job.ring(self.me());
        }
    }

    /// Opens or closes the gate for a view. `is_revoked` says whether the communicator was revoked
    /// when this member had seen this number of recoveries.
    pub(in crate::store) fn update_gate(&self, view: &View, is_revoked: bool, recoveries: u64) {
        let gate = &self.gate;
        let mut deaths = lock(&gate.deaths);
        // If another thread has recovered meanwhile, its recovery has answered the revocation.
        let is_revoked = is_revoked && recoveries == gate.recoveries();
        let is_known = |dead: MemberId| deaths.recovered.contains(dead) || view.left.contains(dead);
        deaths.is_closed |= is_revoked || !view.dead.iter().all(is_known);
        if self.is_closed.load(Ordering::SeqCst) {
            return;
        }
        let below = if deaths.is_closed { 0 } else { view.epoch.0 + 1 };
        gate.below.store(below, Ordering::SeqCst);
    }

    /// *close_gate*: closes the gate, revokes the communicator, and waits until this member's
    /// operations and decisions have ended and its stragglers have landed.
    pub(in crate::store) fn close_gate(
        &self,
        communicator: &Communicator,
        until: Time,
    ) -> StoreResult<()> {
        let _step = within(steps::Step::RecoverCloseGate);
        {
            let mut gate = lock(&self.gate.deaths);
            gate.is_closed = true;
            self.gate.below.store(0, Ordering::SeqCst);
        }
        communicator.revoke().map_err(rma_error)?;
        let _ = self.job.ring(self.me());
        let mut in_flight = Quiescence::begin(self)?;
        self.poll_until(until, self.me(), || {
            let readers = lock(&self.gate.readers).clone();
            let has_drained = in_flight.is_over(self, &readers)?;
            let is_quiet = has_drained && !self.transactions.is_committing();
            // The stragglers are checked last: an operation announces its straggler before it ends.
            match self.straggling_replica() {
                None => Ok(is_quiet.then_some(())),
                Some(member) => Err(StoreError::Timeout { member, limit: self.job.time_limit() }),
            }
        })
    }

    /// Calls `look` until it has an answer. `whom` is the member that a timeout names.
    fn poll_until<T>(
        &self,
        until: Time,
        mut whom: MemberId,
        mut look: impl FnMut() -> StoreResult<Option<T>>,
    ) -> StoreResult<T> {
        let (job, mut pause) = (&self.job, LOOK_PAUSE);
        let (unnamed, mut last) = (whom, until);
        loop {
            let bell = job.bell();
            match look() {
                Ok(Some(answer)) => return Ok(answer),
                // The member that was named before has answered. What is waited for now is an
                // activity of this member. It may wait for another member until the same deadline,
                // and say afterwards for which.
                Ok(None) => (whom, last) = (unnamed, until.after(LOOK_PAUSE_MAX)),
                // The member is stopped, and may resume in time. This member takes its place in the
                // error for a moment, while another activity polls the requests to it.
                Err(StoreError::Timeout { member, .. }) if member == self.me() => {}
                Err(StoreError::Timeout { member, .. }) => (whom, last) = (member, until),
                Err(error) => return Err(error),
            }
            let now = job.now();
            if job.has_ended() {
                return Err(StoreError::Closed);
            }
            if now >= last {
                return Err(StoreError::Timeout { member: whom, limit: job.time_limit() });
            }
            job.park(bell, last.min(now.after(pause)));
            pause = (pause * 2).min(LOOK_PAUSE_MAX);
        }
    }

    /// This member's share of *repair*: waits until its partitions have all replicas, and until it
    /// has ended the transactions that it has to end. Returns `false` if a member of the group is
    /// dead.
    pub(in crate::store) fn wait_until_repaired(
        &self,
        group: &[MemberId],
        gone: &MemberSet,
        until: Time,
    ) -> StoreResult<bool> {
        self.poll_until(until, self.me(), || {
            let view = self.job.view();
            if group.iter().any(|&member| !view.is_living(member)) {
                return Ok(Some(false));
            }
            // A request of a dead member that a local member still executes may change a value.
            if !gone.is_subset(&view.dead) || self.job.is_serving_dead() {
                return Ok(None);
            }
            // If the recovery decision is lost, the intents that are joined to its attempt cannot
            // be ended before the loss is accepted.
            self.recovery_decision()?;
            if !self.are_orphaned_intents_ended(&view) {
                return Ok(None);
            }
            if let Some(member) = self.incomplete_replica()? {
                return Err(StoreError::Timeout { member, limit: self.job.time_limit() });
            }
            Ok((self.job.epoch() == view.epoch).then_some(true))
        })
    }

    /// *open_gate*: lets calls through again, unless another member has died meanwhile.
    pub(in crate::store) fn open_gate(&self, recovered: MemberSet) {
        let gate = &self.gate;
        let view = self.job.view();
        let is_revoked =
            self.coordinated.communicator().is_some_and(|communicator| communicator.is_revoked());
        let recoveries = {
            let mut deaths = lock(&gate.deaths);
            deaths.recovered = recovered;
            deaths.is_closed = false;
            gate.recoveries.fetch_add(1, Ordering::SeqCst) + 1
        };
        self.update_gate(&view, is_revoked, recoveries);
        tracing::info!(recovered_from = %view.dead, "recovered");
        let _ = self.job.ring(self.me());
    }

    /// Whether calls that list keys pass the closed gate: during the procedures no member changes
    /// anything.
    pub(in crate::store) fn is_in_procedure(&self) -> bool {
        self.coordinated.is_in_procedure.load(Ordering::SeqCst)
    }
}

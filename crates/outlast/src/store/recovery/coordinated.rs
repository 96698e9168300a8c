//! Global mode: the first death stops everybody, and all recover together; docs/protocol.md,
//! "Global mode".
//!
//! Below is the same store: copies, reconciling, repair and transactions work as in localized mode.
//! What this module adds is a gate that all calls pass, closed from the first death on (or from
//! [`Store::revoke`] on), and the recovery that opens it again. The members of the store have a
//! communicator; its agreements tell all of them the same, whoever dies when, so that all take the
//! same way through the table.
//!
//! | | step, at each living member | true before | true afterwards | dies or is stopped here |
//! |---|---|---|---|---|
//! | G1 | close the gate, revoke the communicator, wait until the own operations and decisions that were under way have ended, and what was not answered in time has landed (`late`) | | this member changes nothing any more | nothing has happened; the others wait for it in G2, until it is dead or their time limit is over |
//! | G2 | shrink the communicator | | all who are in the new one are through G1: *nobody* changes anything, and its identity is the name of this attempt | as G1 |
//! | G3 | wait until the own partitions have all their copies and the transactions of the dead are ended; agree that it is so everywhere | the group is that of the new communicator | min(R, living) copies, no provisional version of the dead or of an earlier attempt | a member of the group is dead: all are told so by the agreement, and go back to G2 |
//! | G4 | run the procedure: it reads the state before and keeps its changes to itself | nothing is provisional | | as G3, found at G6 |
//! | G5 | X1 and X2 for its changes, with an intent that says *joined to this attempt* instead of pending | | readers see the values before | an intent that is not decided: its heir, or the next attempt, rolls it back |
//! | G6 | agree that all are prepared | everyone has done G5, or says that it failed | all know whether to go on | as G3, and all roll back what they have prepared |
//! | G7 | decide: the *recovery_decision*, one record of the store, says committed for this attempt unless it says something for it already | all are prepared | **the recovery has happened, at all members**, or never will; whoever finds a provisional version of a joined intent looks there | its heir finishes what it has prepared, by the recovery_decision; the death is the next one |
//! | G8 | X5 for the own changes; open the gate | the recovery_decision is stable | back to normal | as G7 |
//!
//! *One answer.* A survivor branches only on what an agreement returned, which is the same at all
//! (see `rma::agreement`), and on the recovery_decision, which is written once for each attempt:
//! the first who writes it decides, and the next attempt begins only when all members of this one
//! have come back to G2. Somebody whose time limit is over in G6 says *aborted* in the
//! recovery_decision, if nothing is there, and so knows: either all lose, or the others had decided
//! and it has happened here too. One who was stopped for long and wakes up finds the
//! recovery_decision, or finds the agreement broken, and in both cases goes back to G2 with the
//! others.
//!
//! *Who comes back with another step.* After a timeout a member begins again at G2, where the
//! others may be at G3 or G6: then some shrink and some agree, which the agreement tells all of
//! them, and all begin again at G2.
//!
//! *The name of an attempt* is the identity of the communicator, which no other had or will have.
//! An intent that is joined to an attempt for which the recovery_decision has nothing is not
//! decided. The recovery_decision is overwritten by the next attempt, which is why G3 waits for the
//! end of all intents that are joined to an earlier one.
//!
//! *Loss.* Nobody waits in G1 or G3 for an intent that is lost: it cannot be found any more, and
//! its keys are rolled back once the loss is accepted. If the recovery_decision is lost, G3 says
//! `DataLost` until that is accepted, and the intents that are joined to its attempt stay in the
//! way of G3 until they are ended after that: whoever met one later would ask for its
//! recovery_decision, and write one over that of a later recovery.
//!
//! *Why nobody reads past it.* Validating (X3) is needed where others may change what a transaction
//! only read. From G2 to G7 nobody changes anything: whoever began to write has ended (G1), in
//! every living member, and others find the gate closed after they have entered the operation. The
//! dead write nothing after the view has them.

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

/// How long to wait before looking again whether this member is quiet and its copies are complete,
/// and what that becomes.
const PATIENCE: Duration = Duration::from_micros(50);

const PATIENCE_MAX: Duration = Duration::from_millis(20);

pub(in crate::store) fn rma_error(error: rma::Error) -> StoreError {
    match error {
        rma::Error::Timeout { member, limit, .. } => StoreError::Timeout { member, limit },
        rma::Error::Engine(error) => engine_error(error),
        other => StoreError::RecoveryFailed { reason: other.to_string() },
    }
}

impl Coordinated {
    pub(in crate::store) fn communicator(&self) -> Option<Communicator> {
        lock(&self.communicator).clone()
    }
}

impl RecoveryState {
    /// Closes the gate if there is a death that the store has not recovered from, or if the
    /// communicator is revoked; whoever left on purpose has handed its copies on, and stops nobody.
    /// The background calls it whenever the bell rings.
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
            // Those who wait.
            let _ = self.job.ring(self.me());
        }
    }

    /// `is_revoked`: the communicator was, when there had been so many recoveries.
    pub(in crate::store) fn update_gate(&self, view: &View, is_revoked: bool, recoveries: u64) {
        let gate = &self.gate;
        let mut deaths = lock(&gate.deaths);
        // The last recovery was from that, if another thread has recovered meanwhile.
        let is_revoked = is_revoked && recoveries == gate.recoveries();
        let is_known = |dead: MemberId| deaths.recovered.contains(dead) || view.left.contains(dead);
        deaths.is_closed |= is_revoked || !view.dead.iter().all(is_known);
        if self.is_closed.load(Ordering::SeqCst) {
            return;
        }
        let below = if deaths.is_closed { 0 } else { view.epoch.0 + 1 };
        gate.below.store(below, Ordering::SeqCst);
    }

    /// G1.
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
            // After that: whoever leaves its operation has noted before what may still land.
            match self.straggling_replica() {
                None => Ok(is_quiet.then_some(())),
                Some(member) => Err(StoreError::Timeout { member, limit: self.job.time_limit() }),
            }
        })
    }

    /// Looks until there is an answer.
    fn poll_until<T>(
        &self,
        until: Time,
        mut whom: MemberId,
        mut look: impl FnMut() -> StoreResult<Option<T>>,
    ) -> StoreResult<T> {
        let (job, mut pause) = (&self.job, PATIENCE);
        loop {
            let bell = job.bell();
            match look() {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => {}
                // Somebody is stopped, and may go on in time.
                Err(StoreError::Timeout { member, .. }) => whom = member,
                Err(error) => return Err(error),
            }
            let now = job.now();
            if job.has_ended() {
                return Err(StoreError::Closed);
            }
            if now >= until {
                return Err(StoreError::Timeout { member: whom, limit: job.time_limit() });
            }
            job.park(bell, until.min(now.after(pause)));
            pause = (pause * 2).min(PATIENCE_MAX);
        }
    }

    /// G3, this member's part: whether all is reconciled and repaired; not if a member of the group
    /// is dead.
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
            if !gone.is_subset(&view.dead) {
                return Ok(None);
            }
            // If that is lost, what is joined to its attempt cannot be ended before the loss is
            // accepted.
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

    /// G8: calls go through again, unless somebody has died meanwhile.
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

    /// Whether calls that list keys go through although the gate is closed: nobody changes
    /// anything.
    pub(in crate::store) fn is_in_procedure(&self) -> bool {
        self.coordinated.is_in_procedure.load(Ordering::SeqCst)
    }
}

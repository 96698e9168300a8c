//! Global mode: the first death stops everybody, and all recover together; docs/protocol.md, "Global mode".
//!
//! Below is the same store: copies, settling, repair and transactions work as in localized mode. What this module adds is
//! a gate that all calls pass, closed from the first death on (or from [`Store::revoke`] on), and the recovery that opens it
//! again. The members of the store have a communicator; its agreements tell all of them the same, whoever dies when, so
//! that all take the same way through the table.
//!
//! | | step, at each living member | true before | true afterwards | dies or is stopped here |
//! |---|---|---|---|---|
//! | G1 | close the gate, revoke the communicator, wait until the own operations and decisions that were under way have ended, and what was not answered in time has landed (`late`) | | this member changes nothing any more | nothing has happened; the others wait for it in G2, until it is dead or their time limit is over |
//! | G2 | shrink the communicator | | all who are in the new one are through G1: *nobody* changes anything, and its identity is the name of this attempt | as G1 |
//! | G3 | wait until the own partitions have all their copies and the transactions of the dead are ended; agree that it is so everywhere | the group is that of the new communicator | min(R, living) copies, no provisional version of the dead or of an earlier attempt | a member of the group is dead: all are told so by the agreement, and go back to G2 |
//! | G4 | run the procedure: it reads the state before and keeps its changes to itself | nothing is provisional | | as G3, found at G6 |
//! | G5 | X1 and X2 for its changes, with an intent that says *joined to this attempt* instead of pending | | readers see the values before | an intent that is not decided: its heir, or the next attempt, rolls it back |
//! | G6 | agree that all are prepared | everyone has done G5, or says that it failed | all know whether to go on | as G3, and all roll back what they have prepared |
//! | G7 | decide: the *verdict*, one record of the store, says committed for this attempt unless it says something for it already | all are prepared | **the recovery has happened, at all members**, or never will; whoever finds a provisional version of a joined intent looks there | its heir finishes what it has prepared, by the verdict; the death is the next one |
//! | G8 | X5 for the own changes; open the gate | the verdict is stable | back to normal | as G7 |
//!
//! *One answer.* A survivor branches only on what an agreement returned, which is the same at all (see `rma::agreement`), and
//! on the verdict, which is written once for each attempt: the first who writes it decides, and the next attempt begins
//! only when all members of this one have come back to G2. Somebody whose time limit is over in G6 says *aborted* in the
//! verdict, if nothing is there, and so knows: either all lose, or the others had decided and it has happened here too. One
//! who was stopped for long and wakes up finds the verdict, or finds the agreement broken, and in both cases goes back to
//! G2 with the others.
//!
//! *Who comes back with another step.* After a timeout a member begins again at G2, where the others may be at G3 or G6:
//! then some shrink and some agree, which the agreement tells all of them, and all begin again at G2.
//!
//! *The name of an attempt* is the identity of the communicator, which no other had or will have. An intent that is joined
//! to an attempt for which the verdict has nothing is not decided. The verdict is overwritten by the next attempt, which is
//! why G3 waits for the end of all intents that are joined to an earlier one.
//!
//! *Loss.* Nobody waits in G1 or G3 for an intent that is lost: it cannot be found any more, and its keys are rolled back once
//! the loss is accepted. If the verdict is lost, G3 says `DataLost` until that is accepted, and the intents that are joined to its
//! attempt stay in the way of G3 until they are ended after that: whoever met one later would ask for its verdict, and
//! write one over that of a later recovery.
//!
//! *Why nobody reads past it.* Doubt (X3) is needed where others may change what a transaction only read. From G2 to G7
//! nobody changes anything: whoever began to write has ended (G1), in every living member, and others find the gate closed
//! after they have entered the operation. The dead write nothing after the view has them.

use super::layout::{ACTOR_COUNTER, ACTORS};
use super::list::heir;
use super::mutant::mutant;
use super::open::{Inner, engine_error};
use super::steps::{self, within};
use super::tx::{Transaction, decide_in_peace};
use super::{Death, Store, StoreError, StoreResult};
use crate::engine::{Epoch, MemberId, MemberSet, Time, View};
use crate::rma::{self, Communicator};
use crate::sync::lock;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How the members go on after a death.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Nobody stops: calls go on with the copies that are left, and no call is collective. The default.
    #[default]
    Localized,
    /// Everybody stops: all calls of all members say [`StoreError::Revoked`] until all have come to [`Store::recover`].
    Global,
}

/// What a member knows of the store's mode.
pub(super) struct Global {
    mode: Mode,
    /// Calls go through under epochs below this: all of them in localized mode, none while the gate is closed.
    below: AtomicU64,
    /// How many recoveries this member has seen.
    recoveries: AtomicU64,
    gate: Mutex<Gate>,
    /// Whether a thread of this member is in a recovery.
    is_recovering: AtomicBool,
    /// Whether it has come to its procedure.
    is_in_procedure: AtomicBool,
    communicator: Mutex<Option<Communicator>>,
    /// Actors that only read, for as long as they like; see `cut`.
    pub(super) readers: Mutex<Vec<usize>>,
}

#[derive(Default)]
struct Gate {
    is_closed: bool,
    /// The deaths that the store has recovered from.
    recovered: MemberSet,
}

/// How long to wait before looking again whether this member is quiet and its copies are complete, and what that becomes.
const PATIENCE: Duration = Duration::from_micros(50);
const PATIENCE_MAX: Duration = Duration::from_millis(20);

/// What members say in an agreement, by leaving out what is not so.
const ALL_WELL: u64 = 0b11;
/// What was prepared stands.
const PREPARED: u64 = 0b01;
/// Nobody saw anything that makes another attempt necessary.
const CALM: u64 = 0b10;

impl Global {
    pub(super) fn new(mode: Mode, communicator: Option<Communicator>, view: &View) -> Global {
        let below = if mode == Mode::Global { view.epoch.0 + 1 } else { u64::MAX };
        Global {
            mode,
            below: AtomicU64::new(below),
            recoveries: AtomicU64::new(0),
            // Who is dead before the store is open has held nothing of it.
            gate: Mutex::new(Gate { is_closed: false, recovered: view.dead.clone() }),
            is_recovering: AtomicBool::new(false),
            is_in_procedure: AtomicBool::new(false),
            communicator: Mutex::new(communicator),
            readers: Mutex::default(),
        }
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether calls go through under this epoch. To be asked inside the operation: whoever closes the gate then looks
    /// which operations are under way.
    #[inline(always)]
    pub(super) fn lets_through(&self, epoch: Epoch) -> bool {
        epoch.0 < self.below.load(Ordering::SeqCst)
    }

    /// Whether the gate is closed, or the store is.
    pub(super) fn is_closed(&self) -> bool {
        self.below.load(Ordering::SeqCst) == 0
    }

    /// Lets no call through any more, for ever. The store is closed already: whoever looks at the gate next finds that, and
    /// whoever has looked before has opened it by now.
    pub(super) fn close_for_ever(&self) {
        let _gate = lock(&self.gate);
        self.below.store(0, Ordering::SeqCst);
    }

    /// How many recoveries this member has seen: what was begun before one is over.
    pub(super) fn recoveries(&self) -> u64 {
        self.recoveries.load(Ordering::SeqCst)
    }

    fn communicator(&self) -> Option<Communicator> {
        lock(&self.communicator).clone()
    }
}

pub(super) fn rma_error(error: rma::Error) -> StoreError {
    match error {
        rma::Error::Timeout { member, limit, .. } => StoreError::Timeout { member, limit },
        rma::Error::Engine(error) => engine_error(error),
        other => StoreError::RecoveryFailed { reason: other.to_string() },
    }
}

impl Inner {
    /// Whether a call may go on under this epoch; inside its operation.
    #[inline(always)]
    pub(super) fn check_gate(&self, epoch: Epoch) -> StoreResult<()> {
        if self.global.lets_through(epoch) { Ok(()) } else { self.look_at_gate(epoch) }
    }

    /// The view is newer than the gate, or the gate is closed.
    #[cold]
    #[inline(never)]
    fn look_at_gate(&self, epoch: Epoch) -> StoreResult<()> {
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(StoreError::Closed);
        }
        self.watch_gate();
        if self.global.lets_through(epoch) { Ok(()) } else { Err(StoreError::Revoked) }
    }

    /// Closes the gate if there is a death that the store has not recovered from, or if the communicator is revoked; whoever
    /// left on purpose has handed its copies on, and stops nobody. The background calls it whenever the bell rings.
    pub(super) fn watch_gate(&self) {
        let global = &self.global;
        if global.mode == Mode::Localized || global.is_closed() {
            return;
        }
        let recoveries = global.recoveries();
        let epoch = self.job.epoch();
        let is_revoked =
            global.communicator().is_some_and(|communicator| communicator.is_revoked());
        if global.lets_through(epoch) && !is_revoked {
            return;
        }
        let view = self.job.view();
        self.look_at_deaths(&view, is_revoked, recoveries);
        if global.is_closed() {
            tracing::info!(dead = %view.dead, "the store is revoked: all members have to recover");
            // Those who wait.
            let _ = self.job.ring(self.me());
        }
    }

    /// `is_revoked`: the communicator was, when there had been so many recoveries.
    fn look_at_deaths(&self, view: &View, is_revoked: bool, recoveries: u64) {
        let global = &self.global;
        let mut gate = lock(&global.gate);
        // The last recovery was from that, if another thread has recovered meanwhile.
        let is_revoked = is_revoked && recoveries == global.recoveries();
        let is_known = |dead: MemberId| gate.recovered.contains(dead) || view.left.contains(dead);
        gate.is_closed |= is_revoked || !view.dead.iter().all(is_known);
        if self.is_closed.load(Ordering::SeqCst) {
            return;
        }
        let below = if gate.is_closed { 0 } else { view.epoch.0 + 1 };
        global.below.store(below, Ordering::SeqCst);
    }

    /// G1.
    fn close_gate(&self, communicator: &Communicator, until: Time) -> StoreResult<()> {
        let _step = within(steps::Step::RecoverCloseGate);
        {
            let mut gate = lock(&self.global.gate);
            gate.is_closed = true;
            self.global.below.store(0, Ordering::SeqCst);
        }
        communicator.revoke().map_err(rma_error)?;
        let _ = self.job.ring(self.me());
        let mut under_way = Vec::new();
        for actor in 0..ACTORS {
            under_way.push((actor, self.actor_counter(actor)?));
        }
        under_way.retain(|(_, count)| count % 2 == 1);
        self.wait_for_peace(until, self.me(), || {
            let readers = lock(&self.global.readers).clone();
            let mut left = Vec::new();
            for &(actor, count) in under_way.iter().filter(|(actor, _)| !readers.contains(actor)) {
                if self.actor_counter(actor)? == count {
                    left.push((actor, count));
                }
            }
            under_way = left;
            let is_quiet = under_way.is_empty() && !self.transactions.is_deciding();
            // After that: whoever leaves its operation has noted before what may still land.
            match self.late_home() {
                None => Ok(is_quiet.then_some(())),
                Some(member) => Err(StoreError::Timeout { member, limit: self.job.time_limit() }),
            }
        })
    }

    fn actor_counter(&self, actor: usize) -> StoreResult<u64> {
        let word = self.root(self.me()) + self.layout.actor(actor) + ACTOR_COUNTER;
        self.job.load(Epoch::ANY, self.me(), word).map_err(engine_error)
    }

    /// Looks until there is an answer.
    fn wait_for_peace<T>(
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

    /// G3, this member's part: whether all is settled and repaired; not if a member of the group is dead.
    fn wait_settled(&self, group: &[MemberId], gone: &MemberSet, until: Time) -> StoreResult<bool> {
        self.wait_for_peace(until, self.me(), || {
            let view = self.job.view();
            if group.iter().any(|&member| !view.is_living(member)) {
                return Ok(Some(false));
            }
            if !gone.is_subset(&view.dead) {
                return Ok(None);
            }
            // If that is lost, what is joined to its attempt cannot be ended before the loss is accepted.
            self.verdict()?;
            if !self.has_ended_those_of_the_dead(&view) {
                return Ok(None);
            }
            if let Some(member) = self.incomplete_home()? {
                return Err(StoreError::Timeout { member, limit: self.job.time_limit() });
            }
            Ok((self.job.epoch() == view.epoch).then_some(true))
        })
    }

    /// G8: calls go through again, unless somebody has died meanwhile.
    fn open_gate(&self, recovered: MemberSet) {
        let global = &self.global;
        let view = self.job.view();
        let is_revoked =
            global.communicator().is_some_and(|communicator| communicator.is_revoked());
        let recoveries = {
            let mut gate = lock(&global.gate);
            gate.recovered = recovered;
            gate.is_closed = false;
            global.recoveries.fetch_add(1, Ordering::SeqCst) + 1
        };
        self.look_at_deaths(&view, is_revoked, recoveries);
        tracing::info!(recovered_from = %view.dead, "recovered");
        let _ = self.job.ring(self.me());
    }
}

/// While it exists, a thread of this member is in a recovery.
struct Turn(Arc<Inner>);

impl Turn {
    fn take(store: &Arc<Inner>) -> StoreResult<Turn> {
        if store.global.is_recovering.swap(true, Ordering::SeqCst) {
            let reason = "another thread of this member is in a recovery; one calls recover() for all of them";
            return Err(StoreError::Invalid { reason: reason.into() });
        }
        Ok(Turn(store.clone()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.global.is_in_procedure.store(false, Ordering::SeqCst);
        self.0.global.is_recovering.store(false, Ordering::SeqCst);
    }
}

/// A recovery that has come to this member's procedure: made by [`Store::recover_begin`], ended by [`Recovery::end`].
///
/// Dropping it ends this attempt without any effect, at all members; the others wait until this one begins again.
#[must_use = "the other members wait for its end"]
pub struct Recovery {
    tx: Transaction,
    deaths: Vec<Death>,
    communicator: Communicator,
    /// Who is dead, as all members of this attempt see it.
    gone: MemberSet,
    turn: Turn,
}

impl std::fmt::Debug for Recovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recovery({:?}, {:?})", self.deaths, self.tx)
    }
}

/// How an attempt ended.
enum Ended {
    Committed,
    /// By a death, or by somebody who came back late: the procedures run again.
    Again,
    /// A procedure failed, or could not be carried out.
    Failed(String),
}

impl Store {
    /// Whether calls say [`StoreError::Revoked`]: in [`Mode::Global`], after a death or [`Store::revoke`], until
    /// [`Store::recover`]. It needs no communication; the news arrives in the background.
    pub fn is_revoked(&self) -> bool {
        self.inner.watch_gate();
        self.inner.global.mode == Mode::Global && self.inner.global.is_closed()
    }

    /// How the members go on after a death.
    pub fn mode(&self) -> Mode {
        self.inner.global.mode
    }

    /// Stops all members, as a death does: for a program that has found an error of its own. Returns at once.
    pub fn revoke(&self) -> StoreResult<()> {
        self.check_global("revoke()")?.revoke().map_err(rma_error)?;
        self.inner.watch_gate();
        Ok(())
    }

    fn check_global(&self, what: &str) -> StoreResult<Communicator> {
        if self.inner.is_closed.load(Ordering::SeqCst) {
            return Err(StoreError::Closed);
        }
        self.inner.global.communicator().ok_or_else(|| {
            let reason = format!(
                "{what} is for stores that recover together; open the store with Options::mode(Mode::Global), or go on: in localized mode the store recovers by itself"
            );
            StoreError::Invalid { reason }
        })
    }

    /// Recovers from deaths (or from [`Store::revoke`]), together: all living members call it, spares included, once
    /// their calls say [`StoreError::Revoked`]. The store is repaired first. Then each member's procedure runs, with a
    /// transaction and the deaths since the last recovery, the same list everywhere; each sees the state before, and none
    /// the changes of another. All their changes become visible together, or none do. Then calls go through again.
    ///
    /// If a member dies meanwhile it starts over, and the procedures run again, against the state before; so they should
    /// have no effects but those of the transaction. An error or a panic of one procedure, or two that change the same key,
    /// end it at all members, with nothing changed ([`StoreError::RecoveryFailed`] at those where nothing went wrong); it may be
    /// called again. Calls of the store inside the procedure still say `Revoked`, except those that list keys.
    ///
    /// A member that does not come is waited for until it is dead or the job's time limit is over; then
    /// [`StoreError::Timeout`], and it may be called again, with nothing changed. (If a home did not answer at the very
    /// moment of the decision, it may turn out to have happened, at all members; the next recovery then begins after it.)
    /// [`StoreError::DataLost`]: the store's own record of recoveries is lost; call [`Store::accept_loss`], then this again.
    /// The deaths that it names are then all of them.
    ///
    /// ```
    /// use outlast::store::{Mode, Options, Store, StoreError};
    /// let job = outlast::join()?;
    /// let store = Store::open(&job, Options::new().mode(Mode::Global))?;
    /// store.put(b"task/7", b"half done")?;
    /// store.revoke()?; // or somebody dies
    /// match store.put(b"task/7", b"done") {
    ///     Err(StoreError::Revoked) => store.recover(|tx, deaths| {
    ///         for death in deaths.iter().filter(|death| death.heir() == store.me()) {
    ///             for key in store.keys_of(death.member)? {
    ///                 tx.adopt(&key)?;
    ///             }
    ///         }
    ///         Ok::<(), StoreError>(())
    ///     })?,
    ///     other => drop(other?),
    /// }
    /// store.put(b"task/7", b"done")?;
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recover<T, E: From<StoreError>>(
        &self,
        mut procedure: impl FnMut(&mut Transaction, &[Death]) -> Result<T, E>,
    ) -> Result<T, E> {
        loop {
            let mut recovery = self.recover_begin()?;
            let Recovery { tx, deaths, .. } = &mut recovery;
            let result = catch_unwind(AssertUnwindSafe(|| procedure(tx, deaths)));
            let reason = match &result {
                Ok(Ok(_)) => None,
                Ok(Err(_)) => Some("returned an error"),
                Err(_) => Some("panicked"),
            };
            let ended = match reason {
                None => recovery.end(),
                Some(reason) => recovery.fail(reason),
            };
            match (result, ended) {
                // It runs again, as at the others.
                (Ok(_), Err(StoreError::Revoked)) => {}
                (Ok(Ok(value)), Ok(())) => return Ok(value),
                (Ok(Ok(_)), Err(error)) => return Err(error.into()),
                (Ok(Err(error)), _) => return Err(error),
                (Err(panic), _) => resume_unwind(panic),
            }
        }
    }

    /// The first half of [`Store::recover`], for programs that cannot pass a procedure: everything up to its run. What it
    /// would do goes to [`Recovery::tx`], and [`Recovery::end`] carries it out.
    ///
    /// ```
    /// # use outlast::store::{Mode, Options, Store, StoreError};
    /// # let job = outlast::join()?;
    /// # let store = Store::open(&job, Options::new().mode(Mode::Global))?;
    /// # store.revoke()?;
    /// loop {
    ///     let mut recovery = store.recover_begin()?;
    ///     for death in recovery.deaths().to_vec() {
    ///         recovery.tx().put(format!("dead/{}", death.member.0).as_bytes(), b"")?;
    ///     }
    ///     match recovery.end() {
    ///         Err(StoreError::Revoked) => {} // another death: again
    ///         ended => break ended?,
    ///     }
    /// }
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recover_begin(&self) -> StoreResult<Recovery> {
        let (inner, job) = (&self.inner, &self.inner.job);
        self.check_global("recover()")?;
        inner.transactions.check_not_inside(job.activity())?;
        let turn = Turn::take(inner)?;
        // Not before: another thread's recovery may have put another one in its place.
        let mut communicator = self.check_global("recover()")?;
        let until = job.now().after(job.time_limit());
        inner.close_gate(&communicator, until)?;
        loop {
            if job.now() >= until {
                return Err(StoreError::Timeout { member: job.me(), limit: job.time_limit() });
            }
            // G2.
            let step = within(steps::Step::RecoverShrink);
            let shrunk = match communicator.shrink() {
                Err(rma::Error::Mismatched { .. }) => continue,
                other => other.map_err(rma_error)?,
            };
            let former = std::mem::replace(&mut communicator, shrunk);
            *lock(&inner.global.communicator) = Some(communicator.clone());
            // The others may still use it; whoever has freed it already has ended the membership.
            let _ = former.free();
            drop(step);
            // G3.
            let _step = within(steps::Step::RecoverRepair);
            let group = communicator.members();
            let everyone = MemberSet::first(job.members());
            let gone: MemberSet =
                everyone.iter().filter(|member| !group.contains(member)).collect();
            let is_settled = inner.wait_settled(group, &gone, until)?;
            let flags = if is_settled { ALL_WELL } else { 0 };
            match communicator.agree_despite_failures(flags) {
                Ok(all) if all.flags == ALL_WELL && all.failed.is_empty() => {}
                Ok(_) | Err(rma::Error::Mismatched { .. }) => continue,
                Err(error) => return Err(rma_error(error)),
            }
            // G4.
            let recovered = inner.verdict()?.map(|verdict| verdict.recovered).unwrap_or_default();
            let view = View::new(
                job.view().regulars,
                job.members() - job.view().regulars,
                gone.clone(),
                job.view().left,
            );
            let deaths = gone.iter().filter(|member| !recovered.contains(*member)).map(|member| {
                let left = view.left.contains(member);
                Death::new(member, left, heir(member, &view))
            });
            let deaths = deaths.collect();
            inner.global.is_in_procedure.store(true, Ordering::SeqCst);
            let tx = self.begin_in(Some(communicator.id()));
            return Ok(Recovery { tx, deaths, communicator, gone, turn });
        }
    }
}

impl Recovery {
    /// Who died since the last recovery, and who is to take over from each: the same list at all members.
    pub fn deaths(&self) -> &[Death] {
        &self.deaths
    }

    /// The transaction of this member's procedure. It is carried out by [`Recovery::end`].
    pub fn tx(&mut self) -> &mut Transaction {
        &mut self.tx
    }

    /// Ends the recovery, with the changes of all members, and lets calls through again. [`StoreError::Revoked`]: another
    /// member died, or came back late; nothing has changed, and it is to be begun again. For other errors see
    /// [`Store::recover`].
    pub fn end(mut self) -> StoreResult<()> {
        let prepared = self.tx.prepare();
        let (flags, reason) = match &prepared {
            Ok(()) => (ALL_WELL, None),
            // What it read looks different: a tombstone was removed meanwhile.
            Err(StoreError::Aborted) => (PREPARED, None),
            Err(error) => (CALM, Some(format!("at {}: {error}", self.turn.0.me()))),
        };
        if mutant("recover-partly-visible") && prepared.is_ok() {
            self.tx.end_prepared(true);
        }
        match (self.vote(flags, reason)?, prepared) {
            (Ended::Committed, _) => Ok(()),
            (Ended::Again, _) => Err(StoreError::Revoked),
            (Ended::Failed(_), Err(error)) if error != StoreError::Aborted => Err(error),
            (Ended::Failed(reason), _) => Err(StoreError::RecoveryFailed { reason }),
        }
    }

    /// Ends the recovery without any effect, at all members: this one's procedure has failed.
    /// [`StoreError::Revoked`]: a member has died meanwhile, so that all begin again in any case.
    pub fn fail(mut self, reason: &str) -> StoreResult<()> {
        self.tx.abort();
        let reason = format!("the procedure of {} {reason}", self.turn.0.me());
        match self.vote(CALM, Some(reason))? {
            Ended::Again => Err(StoreError::Revoked),
            Ended::Committed | Ended::Failed(_) => Ok(()),
        }
    }

    /// G6 to G8.
    fn vote(&mut self, flags: u64, reason: Option<String>) -> StoreResult<Ended> {
        let inner = self.turn.0.clone();
        let attempt = self.communicator.id();
        if let Some(reason) = &reason {
            // So that the others can say why. If it cannot be written, they say that it failed.
            let _ = inner.decide(attempt, None, reason);
        }
        let step = within(steps::Step::RecoverVote);
        let voted = match mutant("recover-skip-vote") && flags == ALL_WELL {
            true => Ok(rma::Agreement { flags, failed: Vec::new(), unacknowledged: Vec::new() }),
            false => self.communicator.agree_despite_failures(flags),
        };
        let agreed = match voted {
            Ok(all) if !all.failed.is_empty() || all.flags & CALM == 0 => Ok(Ended::Again),
            Ok(all) if all.flags & PREPARED == 0 => Ok(Ended::Failed(String::new())),
            Ok(_) => Ok(Ended::Committed),
            Err(rma::Error::Mismatched { .. }) => Ok(Ended::Again),
            Err(error) => Err(rma_error(error)),
        };
        drop(step);
        let step = within(steps::Step::RecoverDecide);
        let wanted = matches!(agreed, Ok(Ended::Committed)).then_some(&self.gone);
        let why = match agreed {
            Ok(Ended::Failed(_)) => "another member could not prepare its part",
            _ => "a member died or did not come in time",
        };
        let verdict = match wanted {
            Some(_) => decide_in_peace(&inner, attempt, wanted),
            None => inner.decide(attempt, None, why),
        };
        drop(step);
        let ended = match (agreed, verdict) {
            (_, Ok(verdict)) if verdict.is_committed => Ended::Committed,
            // Somebody's time limit was over before.
            (Ok(Ended::Committed), Ok(_)) => Ended::Again,
            (Ok(Ended::Failed(_)), Ok(verdict)) => Ended::Failed(verdict.reason),
            (Ok(Ended::Failed(_)), Err(_)) => Ended::Failed(why.into()),
            (Ok(Ended::Again), _) => Ended::Again,
            // The time limit was over here, and so it is at all.
            (Err(error), Ok(_)) => {
                self.tx.end_prepared(false);
                return Err(error);
            }
            // What was prepared stays so until the verdict can be read: the background looks for it.
            (Ok(Ended::Committed), Err(error)) | (Err(error), Err(_)) => {
                self.tx.abandon();
                return Err(error);
            }
        };
        if let Ended::Committed = ended {
            self.tx.end_prepared(true);
            inner.open_gate(self.gone.clone());
        } else {
            self.tx.end_prepared(mutant("recover-skip-abort"));
        }
        Ok(ended)
    }
}

impl Inner {
    /// Whether calls that list keys go through although the gate is closed: nobody changes anything.
    pub(super) fn is_in_procedure(&self) -> bool {
        self.global.is_in_procedure.load(Ordering::SeqCst)
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::super::tx::{Verdict, intent_key};
    use super::*;
    use crate::engine::Fault;
    use crate::job::Job;
    use crate::sim::{self, Link, Options as SimOptions};
    use crate::store::Options;
    use crate::store::testing::{expect_timeout, nap, third_attempt};
    use std::cell::Cell;
    use std::rc::Rc;

    fn run(seed: u64, members: usize, body: impl Fn(Job) + 'static) {
        let mut options = SimOptions::new(members, seed).link(Link::of_seed(seed));
        options.time_limit = Duration::from_secs(5);
        options.steps_max = 20_000_000;
        sim::run(&options, body).expect_ok();
    }

    fn open(job: &Job, replicas: usize) -> Store {
        let options = Options::new().replicas(replicas).partitions(32).expected_keys(64);
        Store::open(job, options.mode(Mode::Global)).expect("open")
    }

    fn end(job: &Job, store: &Store) {
        store.close().expect("closed");
        let _ = job.leave();
    }

    /// A key of which the one home is this member.
    fn key_at(store: &Store, home: MemberId, number: usize) -> Vec<u8> {
        let keys = (0..1000).map(|number| format!("key/{number}").into_bytes());
        keys.into_iter()
            .filter(|key| store.replicas_of(key) == [home])
            .nth(number)
            .expect("some key")
    }

    /// The intent of a living member, joined to an attempt, is lost when its home dies: the next attempt does not wait for
    /// what cannot end, and the key that it had locked is `DataLost` until the loss is accepted.
    #[test]
    fn a_joined_intent_that_is_lost_does_not_hold_up_the_next_attempt() {
        for seed in 0..10 {
            let is_prepared = Rc::new(Cell::new(false));
            run(seed, 4, move |job| {
                let store = open(&job, 1);
                let verdict = store.replicas_of(&Verdict::key())[0];
                let intent_of = |member: &MemberId| store.replicas_of(&intent_key(*member, 0))[0];
                let members = || (0..4).map(MemberId);
                let is_right = |member: &MemberId| {
                    intent_of(member) != *member && intent_of(member) != verdict
                };
                let committer = members().find(is_right).expect("with so many partitions");
                let doomed = intent_of(&committer);
                let key = key_at(&store, committer, 0);
                store.revoke().expect("revoked");
                let mut recovery = store.recover_begin().expect("begun");
                if job.me() == committer {
                    recovery.tx().put(&key, b"new").expect("put");
                    recovery.tx.prepare().expect("prepared");
                    is_prepared.set(true);
                }
                nap(&job, "the one who prepares", || is_prepared.get());
                if job.me() == doomed {
                    job.inject(Fault::Kill(doomed)).expect("killed");
                }
                nap(&job, "the death", || !job.view().is_living(doomed));
                assert_eq!(recovery.end(), Err(StoreError::Revoked));
                store.recover(|_, _| Ok::<(), StoreError>(())).expect("recovered");
                if job.me() == committer {
                    assert!(matches!(store.get(&key), Err(StoreError::DataLost { .. })));
                    assert!(matches!(store.put(&key, b"v"), Err(StoreError::DataLost { .. })));
                    store.accept_loss().expect("accepted");
                    assert_eq!(store.get(&key), Ok(None), "rolled back");
                    store.put(&key, b"v").expect("put");
                    nap(&job, "the end of it", || {
                        lock(&store.inner.transactions.unfinished).is_empty()
                    });
                }
                end(&job, &store);
            });
        }
    }

    /// A member has prepared its part and dies, together with the only copy of the verdict. The recovery says so; and after
    /// the loss is accepted, what the dead has left is not mistaken for a part of something undecided: a verdict about
    /// it would take the place of that of a later recovery, of which another member still has to apply its part.
    #[test]
    fn a_lost_verdict_leaves_no_intents_that_later_overwrite_another_one() {
        for seed in 0..10 {
            let (stage, failures) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            run(seed, 6, move |job| {
                let store = open(&job, 1);
                let verdict = store.replicas_of(&Verdict::key())[0];
                let intent_of = |member: &MemberId| store.replicas_of(&intent_key(*member, 0))[0];
                let others = || (0..6).map(MemberId).filter(|member| *member != verdict);
                let is_right = |member: &MemberId| {
                    intent_of(member) != *member && intent_of(member) != verdict
                };
                let dead = others().find(is_right).expect("with so many partitions");
                // The next one to die is no home of what matters.
                let staying: Vec<MemberId> = others().filter(|member| *member != dead).collect();
                let holder = intent_of(&dead);
                let late = *staying
                    .iter()
                    .find(|late| {
                        **late != holder
                            && intent_of(late) != **late
                            && staying.contains(&intent_of(late))
                    })
                    .expect("with so many partitions");
                let places: Vec<MemberId> =
                    staying.iter().copied().filter(|member| *member != late).collect();
                let (left, kept) = (key_at(&store, places[0], 0), key_at(&store, places[0], 1));
                let early = key_at(&store, places[1], 0);
                store.revoke().expect("revoked");
                let mut recovery = store.recover_begin().expect("begun");
                if job.me() == dead {
                    recovery.tx().put(&left, b"never").expect("put");
                    recovery.tx.prepare().expect("prepared");
                    stage.set(1);
                }
                nap(&job, "the one who prepares", || stage.get() >= 1);
                if job.me() == dead || job.me() == verdict {
                    job.inject(Fault::Kill(job.me())).expect("killed");
                }
                nap(&job, "the deaths", || {
                    !job.view().is_living(dead) && !job.view().is_living(verdict)
                });
                assert_eq!(recovery.end(), Err(StoreError::Revoked));
                let began = job.now();
                let failed = store.recover(|_, _| Ok::<(), StoreError>(()));
                assert!(matches!(failed, Err(StoreError::DataLost { .. })), "{failed:?}");
                assert!(job.now().since(began) < Duration::from_secs(4), "at once");
                failures.set(failures.get() + 1);
                nap(&job, "the others", || failures.get() == 4);
                store.accept_loss().expect("accepted");
                // The next one: all but one bring it to its end.
                let mut recovery = store.recover_begin().expect("begun");
                if job.me() == late {
                    recovery.tx().put(&kept, b"late").expect("put");
                    recovery.tx.prepare().expect("prepared");
                    let agreed =
                        recovery.communicator.agree_despite_failures(ALL_WELL).expect("agreed");
                    assert_eq!(agreed.flags, ALL_WELL);
                    nap(&job, "the end", || stage.get() >= 2);
                    job.inject(Fault::Kill(late)).expect("killed");
                }
                if job.me() == places[0] {
                    recovery.tx().put(&early, b"early").expect("put");
                }
                recovery.end().expect("recovered");
                if job.me() == places[0] {
                    store.put(&left, b"by another").expect("put");
                    stage.set(2);
                }
                nap(&job, "the last death", || !job.view().is_living(late));
                store.recover(|_, _| Ok::<(), StoreError>(())).expect("recovered");
                let found = [&early, &kept]
                    .map(|key| store.get(key).expect("read").map(|value| value.bytes().to_vec()));
                assert_eq!(found, [Some(b"early".to_vec()), Some(b"late".to_vec())], "all of it");
                end(&job, &store);
            });
        }
    }

    /// A decision was not answered in time, and then its home dies: nobody waits for what can never be known.
    #[test]
    fn a_decision_that_is_lost_does_not_hold_up_a_recovery() {
        for seed in [1, 3, 5, 7] {
            run(seed, 4, |job| {
                let store = open(&job, 1);
                let verdict = store.replicas_of(&Verdict::key())[0];
                let intent_of = |member: &MemberId| store.replicas_of(&intent_key(*member, 0))[0];
                let is_right = |member: &MemberId| {
                    intent_of(member) != *member && intent_of(member) != verdict
                };
                let committer =
                    (0..4).map(MemberId).find(is_right).expect("with so many partitions");
                let doomed = intent_of(&committer);
                let keys = [0, 1].map(|number| key_at(&store, committer, number));
                job.sleep(Duration::from_secs(1));
                if job.me() == committer {
                    let mut tx = third_attempt(&store, |tx| {
                        keys.iter().for_each(|key| tx.put(key, b"new").expect("put"));
                    });
                    job.inject(Fault::Stop(doomed)).expect("a fault");
                    expect_timeout(tx.commit());
                    assert!(store.inner.transactions.is_deciding());
                    let communicator = store.inner.global.communicator().expect("global");
                    let closed = store
                        .inner
                        .close_gate(&communicator, job.now().after(Duration::from_secs(1)));
                    let is_named = matches!(closed, Err(StoreError::Timeout { member, .. }) if member == doomed);
                    assert!(is_named, "{closed:?}");
                    job.inject(Fault::Kill(doomed)).expect("a fault");
                }
                nap(&job, "the death", || !job.view().is_living(doomed));
                store.recover(|_, _| Ok::<(), StoreError>(())).expect("recovered");
                if job.me() == committer {
                    assert!(
                        keys.iter()
                            .all(|key| matches!(store.get(key), Err(StoreError::DataLost { .. })))
                    );
                    store.accept_loss().expect("accepted");
                    assert!(keys.iter().all(|key| store.get(key) == Ok(None)), "rolled back");
                }
                end(&job, &store);
            });
        }
    }

    /// A request that ended with a timeout may land at any time until its home goes on: up to then its member has not
    /// changed its last word.
    #[test]
    fn the_gate_is_closed_only_when_nothing_can_land_any_more() {
        for seed in [1, 3, 5, 7] {
            let is_over = Rc::new(Cell::new(false));
            run(seed, 3, move |job| {
                let store = open(&job, 1);
                let (home, key) = (MemberId(0), key_at(&store, MemberId(0), 0));
                job.sleep(Duration::from_secs(1));
                if job.me() == MemberId(1) {
                    let communicator = store.inner.global.communicator().expect("global");
                    job.inject(Fault::Stop(home)).expect("a fault");
                    expect_timeout(store.put(&key, b"late"));
                    let until = job.now().after(Duration::from_secs(1));
                    let whom = expect_timeout(store.inner.close_gate(&communicator, until));
                    assert_eq!(whom, home);
                    job.inject(Fault::Resume(home)).expect("a fault");
                    let until = job.now().after(Duration::from_secs(1));
                    store.inner.close_gate(&communicator, until).expect("closed");
                    is_over.set(true);
                }
                nap(&job, "the one with a late request", || is_over.get());
                store.recover(|_, _| Ok::<(), StoreError>(())).expect("recovered");
                end(&job, &store);
            });
        }
    }

    /// The verdict of a recovery was not answered in time, and may still become known to all: no cut is made up to then.
    #[test]
    fn a_verdict_that_timed_out_is_waited_for_by_a_frost() {
        for seed in [1, 3, 5, 7] {
            let is_over = Rc::new(Cell::new(false));
            run(seed, 3, move |job| {
                let store = open(&job, 1);
                let home = store.replicas_of(&Verdict::key())[0];
                job.sleep(Duration::from_secs(1));
                if job.me() == MemberId((home.0 + 1) % 3) {
                    job.inject(Fault::Stop(home)).expect("a fault");
                    expect_timeout(decide_in_peace(&store.inner, 77, Some(&MemberSet::default())));
                    store.freeze(job.now().after(Duration::from_secs(60)));
                    let mut under_way = None;
                    for _ in 0..10 {
                        assert!(!store.is_quiet(&mut under_way).expect("looked"));
                        job.sleep(Duration::from_millis(100));
                    }
                    job.inject(Fault::Resume(home)).expect("a fault");
                    nap(&job, "quiet", || store.is_quiet(&mut None).expect("looked"));
                    let found = store.inner.verdict();
                    job.sleep(Duration::from_secs(1));
                    assert_eq!(store.inner.verdict(), found, "it has landed, or never will");
                    assert!(store.thaw());
                    is_over.set(true);
                }
                nap(&job, "the one with a late verdict", || is_over.get());
                end(&job, &store);
            });
        }
    }

    /// A transaction was not answered in time; the background is about to end it when the store is frozen, and waits for the
    /// end of that. The cut does not wait for the background in turn.
    #[test]
    fn a_frost_does_not_wait_for_a_background_that_waits_for_its_end() {
        for seed in [1, 3, 5, 7] {
            let is_over = Rc::new(Cell::new(false));
            run(seed, 4, move |job| {
                let store = open(&job, 1);
                let intent_of = |member: &MemberId| store.replicas_of(&intent_key(*member, 0))[0];
                let committer = MemberId(0);
                let home =
                    (1..4).map(MemberId).find(|home| *home != intent_of(&committer)).expect("one");
                let keys = [key_at(&store, committer, 0), key_at(&store, home, 0)];
                job.sleep(Duration::from_secs(1));
                if job.me() == committer {
                    job.inject(Fault::Stop(home)).expect("a fault");
                    let mut tx = store.begin();
                    keys.iter().for_each(|key| tx.put(key, b"new").expect("put"));
                    expect_timeout(tx.commit());
                    store.freeze(job.now().after(Duration::from_secs(60)));
                    assert!(!store.is_quiet(&mut None).expect("looked"));
                    job.sleep(Duration::from_secs(1));
                    job.inject(Fault::Resume(home)).expect("a fault");
                    let resumed = job.now();
                    // What the background has under way now is what waits for the frost.
                    nap(&job, "quiet", || store.inner.late_home().is_none());
                    assert!(
                        job.now().since(resumed) < Duration::from_secs(10),
                        "long before the frost ends"
                    );
                    assert!(store.thaw());
                    is_over.set(true);
                }
                nap(&job, "the committer", || is_over.get());
                end(&job, &store);
            });
        }
    }

    /// A thread has found the communicator revoked, and is held up until another one has recovered: the gate that is open
    /// then stays so.
    #[test]
    fn a_revocation_that_was_recovered_from_closes_no_gate() {
        run(1, 2, |job| {
            let store = open(&job, 2);
            store.revoke().expect("revoked");
            let global = &store.inner.global;
            let (view, recoveries) = (job.view(), global.recoveries());
            let is_revoked =
                global.communicator().is_some_and(|communicator| communicator.is_revoked());
            assert!(is_revoked);
            store.recover(|_, _| Ok::<(), StoreError>(())).expect("recovered");
            store.inner.look_at_deaths(&view, is_revoked, recoveries);
            assert!(!store.is_revoked());
            end(&job, &store);
        });
    }
}

//! Coordinated recovery in global mode: the calls, and the steps from *shrink* to *open_gate*.
//!
//! `docs/protocol/coordinated-recovery.md` has the steps, with what the survivors find if a member
//! dies or stops in each of them. `recovery/coordinated.rs` has the gate, *close_gate* and the wait
//! of *repair*. A member branches only on the result of an agreement and on the recovery decision,
//! which are identical at all members.

use crate::engine::deadline::Deadline;
use crate::engine::{MemberId, MemberSet, View};
use crate::rma;
use crate::rma::Communicator;
use crate::store::api::deaths::Death;
use crate::store::api::store::Store;
use crate::store::error::{StoreError, StoreResult};
use crate::store::member::state::StoreState;
use crate::store::mutant::mutant;
use crate::store::options::Mode;
use crate::store::placement::heir::heir;
use crate::store::recovery::coordinated::rma_error;
use crate::store::steps::{self, within};
use crate::store::tx::state::decide_recovery_unfrozen;
use crate::store::tx::transaction::Transaction;
use crate::sync::lock;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The flags that a member passes to an agreement. A member leaves out a flag that does not hold
/// for it, and the agreement combines the flags of all members by *and*.
const ALL_WELL: u64 = 0b11;

/// The member has prepared its changes.
const PREPARED: u64 = 0b01;

/// The member saw nothing that makes another attempt necessary.
const CALM: u64 = 0b10;

/// The right of a thread to recover. While it exists, no other thread of this member can begin a
/// recovery.
struct Turn(Arc<StoreState>);

impl Turn {
    fn take(store: &Arc<StoreState>) -> StoreResult<Turn> {
        if store.coordinated.is_recovering.swap(true, Ordering::SeqCst) {
            let reason = "another thread of this member is in a recovery; a single thread calls \
                          recover() for its member";
            return Err(StoreError::Invalid { reason: reason.into() });
        }
        Ok(Turn(store.clone()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.coordinated.is_in_procedure.store(false, Ordering::SeqCst);
        self.0.coordinated.is_recovering.store(false, Ordering::SeqCst);
    }
}

/// A recovery that has come to this member's procedure: made by [`Store::recover_begin`], ended by
/// [`Recovery::end`].
///
/// Dropping it ends this attempt at all members, without any effect. The other members wait until
/// this member begins a recovery again.
#[must_use = "the other members wait for its end"]
pub struct Recovery {
    tx: Transaction,
    deaths: Vec<Death>,
    communicator: Communicator,
    /// The view of this attempt: its dead members are identical at all members.
    view: View,
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
    /// A member died or came back late: the procedures run again.
    Again,
    /// A procedure failed, or its changes could not be prepared; with the reason.
    Failed(String),
}

impl Store {
    /// Whether calls return [`StoreError::Revoked`]: in [`Mode::Global`], from a death or
    /// [`Store::revoke`] to [`Store::recover`]. The call needs no communication, since the
    /// background learns of deaths and revocations.
    pub fn is_revoked(&self) -> bool {
        self.state.watch_gate();
        self.state.gate.mode == Mode::Global && self.state.gate.is_closed()
    }

    /// The mode of the store: how the members go on after a death.
    pub fn mode(&self) -> Mode {
        self.state.gate.mode
    }

    /// Closes the gate at all members, as a death does, for a program that has found an error of
    /// its own. Returns at once. The store has to be in [`Mode::Global`].
    pub fn revoke(&self) -> StoreResult<()> {
        self.revoke_from(self.check_global("revoke()")?)
    }

    /// [`Store::revoke`] with the communicator that was the store's a moment ago. If the recovery
    /// of another thread has replaced and freed it meanwhile, revokes the next communicator.
    fn revoke_from(&self, mut communicator: Communicator) -> StoreResult<()> {
        loop {
            match communicator.revoke() {
                Err(rma::Error::Freed) => {
                    let next = self.check_global("revoke()")?;
                    if next.id() == communicator.id() {
                        // The membership has ended, which frees all communicators.
                        return Err(StoreError::Closed);
                    }
                    communicator = next;
                }
                revoked => break revoked.map_err(rma_error)?,
            }
        }
        self.state.watch_gate();
        Ok(())
    }

    /// Returns the store's communicator, or an error if the store is closed or in localized mode.
    fn check_global(&self, what: &str) -> StoreResult<Communicator> {
        if self.state.is_closed.load(Ordering::SeqCst) {
            return Err(StoreError::Closed);
        }
        self.state.coordinated.communicator().ok_or_else(|| {
            let reason = format!(
                "{what} needs global mode; open the store with Options::mode(Mode::Global), or go \
                 on without the call: in localized mode the store recovers by itself"
            );
            StoreError::Invalid { reason }
        })
    }

    /// Recovers from deaths, or from [`Store::revoke`], together with all other members. All living
    /// members call it, spares included, once their calls return [`StoreError::Revoked`].
    ///
    /// The store is repaired first. Then the procedure of each member runs, with a transaction and
    /// the deaths since the last recovery. The list of deaths is identical at all members. Each
    /// procedure sees the state before the recovery, and no changes of another procedure. The
    /// changes of all procedures become visible together, or none do. Then calls go through again.
    ///
    /// If a member dies during the recovery, the recovery starts over, and the procedures run again
    /// on the state before the recovery. So a procedure should have no effects except through its
    /// transaction. An error or a panic of a procedure, or two procedures that change a common key,
    /// end the recovery at all members, and nothing is changed. Members without an error of their
    /// own return [`StoreError::RecoveryFailed`]. The recovery may be called again. Calls of the
    /// store inside the procedure still return `Revoked`, except the calls that list keys.
    ///
    /// The recovery waits for a member that does not take part until that member is dead, or until
    /// the job's time limit. Then it returns [`StoreError::Timeout`], nothing is changed, and it
    /// may be called again. There is a single exception: if a replica did not answer when the
    /// decision was written, the recovery may turn out to have happened, at all members. The next
    /// recovery then begins after it. Once the decision is known, the call returns `Ok` although a
    /// replica does not answer: a read of a key that is not applied yet returns the new value, or
    /// `Timeout`.
    ///
    /// If the store's own record of recoveries is lost, the call returns [`StoreError::DataLost`].
    /// Call [`Store::accept_loss`] and then `recover` again. The procedures then get all deaths
    /// since the store was opened. The call also returns `DataLost` if the recovery has happened
    /// and changes of this member's procedure were lost, with all replicas of their keys, before
    /// they were applied; or may have been lost, since the members that are the replicas now do not
    /// answer. These deaths belong to the next recovery.
    ///
    /// ```
    /// use outlast::store::{Mode, Options, Store, StoreError};
    /// let job = outlast::join()?;
    /// let store = Store::open(&job, Options::new().mode(Mode::Global))?;
    /// store.put(b"task/7", b"half done")?;
    /// store.revoke()?; // or a member dies
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
        let job = &self.state.job;
        let _call = self.state.begin_call();
        loop {
            let mut recovery = self.recover_begin()?;
            let Recovery { tx, deaths, .. } = &mut recovery;
            let procedure = || catch_unwind(AssertUnwindSafe(|| procedure(tx, deaths)));
            let result = Deadline::program(|| job.now(), procedure);
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
                // The procedure runs again, as at all other members.
                (Ok(_), Err(StoreError::Revoked)) => {}
                (Ok(Ok(value)), Ok(())) => return Ok(value),
                (Ok(Ok(_)), Err(error)) => return Err(error.into()),
                (Ok(Err(error)), _) => return Err(error),
                (Err(panic), _) => resume_unwind(panic),
            }
        }
    }

    /// The first half of [`Store::recover`], for programs that cannot pass a procedure: all steps
    /// before the procedure. The program makes its changes through [`Recovery::tx`], and
    /// [`Recovery::end`] carries them out.
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
    ///         Err(StoreError::Revoked) => {} // Another member died: begin again.
    ///         ended => break ended?,
    ///     }
    /// }
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recover_begin(&self) -> StoreResult<Recovery> {
        let (state, job) = (&self.state, &self.state.job);
        self.check_global("recover()")?;
        state.transactions.check_not_inside(job.activity())?;
        let turn = Turn::take(state)?;
        // The communicator is read after `Turn::take`: the recovery of another thread may have
        // replaced it before.
        let mut communicator = self.check_global("recover()")?;
        let _call = state.begin_call();
        let until = job.deadline();
        state.close_gate(&communicator, until)?;
        loop {
            if job.now() >= until {
                return Err(StoreError::Timeout { member: job.me(), limit: job.time_limit() });
            }
            // *shrink*
            let step = within(steps::Step::RecoverShrink);
            let shrunk = match communicator.shrink() {
                Err(rma::Error::Mismatched { .. }) => continue,
                other => other.map_err(rma_error)?,
            };
            let former = std::mem::replace(&mut communicator, shrunk);
            *lock(&state.coordinated.communicator) = Some(communicator.clone());
            // Freeing is local: other members may still use the former communicator. It fails only
            // if the membership has ended, which frees all communicators.
            let _ = former.free();
            drop(step);
            // *repair*
            let _step = within(steps::Step::RecoverRepair);
            let group = communicator.members();
            let everyone = MemberSet::first(job.members());
            let gone: MemberSet =
                everyone.iter().filter(|member| !group.contains(member)).collect();
            let is_reconciled = state.wait_until_repaired(group, &gone, until)?;
            let flags = if is_reconciled { ALL_WELL } else { 0 };
            match communicator.agree_despite_failures(flags) {
                Ok(all) if all.flags == ALL_WELL && all.failed.is_empty() => {}
                Ok(_) | Err(rma::Error::Mismatched { .. }) => continue,
                Err(error) => return Err(rma_error(error)),
            }
            // *procedure*: the deaths since the last recovery, and the transaction.
            let recovered = state
                .recovery_decision()?
                .map(|recovery_decision| recovery_decision.recovered)
                .unwrap_or_default();
            let new: Vec<MemberId> =
                gone.iter().filter(|&member| !recovered.contains(member)).collect();
            let Some(left) = agree_on_left(&communicator, &new, &job.view().left)? else {
                continue;
            };
            let regulars = job.view().regulars;
            let view = View::new(regulars, job.members() - regulars, gone, left);
            let death =
                |&member| Death::new(member, view.left.contains(member), heir(member, &view));
            let deaths = new.iter().map(death).collect();
            state.coordinated.is_in_procedure.store(true, Ordering::SeqCst);
            let tx = self.begin_in(Some(communicator.id()));
            return Ok(Recovery { tx, deaths, communicator, view, turn });
        }
    }
}

/// Which of these dead members have left on purpose. A member may die, with its whole node, when
/// only some members have been told that it was leaving: it has left if any member has been told.
/// So the members agree, on as many at a time as an agreement has flags. `None` if a member of the
/// communicator is dead or shrinks: all members then shrink.
fn agree_on_left(
    communicator: &Communicator,
    dead: &[MemberId],
    told: &MemberSet,
) -> StoreResult<Option<MemberSet>> {
    let mut left = MemberSet::new();
    for some in dead.chunks(u64::BITS as usize) {
        // An agreement combines flags by *and*, so a flag says that a member was not told.
        let bit = |index: usize| 1u64 << index;
        let members = || some.iter().copied().enumerate();
        let untold = members().filter(|(_, member)| !told.contains(*member));
        let flags = untold.fold(0, |flags, (index, _)| flags | bit(index));
        match communicator.agree_despite_failures(flags) {
            Ok(all) if all.failed.is_empty() => {
                let is_told = |(index, _): &(usize, MemberId)| all.flags & bit(*index) == 0;
                members().filter(is_told).for_each(|(_, member)| _ = left.insert(member));
            }
            Ok(_) | Err(rma::Error::Mismatched { .. }) => return Ok(None),
            Err(error) => return Err(rma_error(error)),
        }
    }
    Ok(Some(left))
}

impl Recovery {
    /// The deaths since the last recovery, each with its heir. The list is identical at all
    /// members.
    pub fn deaths(&self) -> &[Death] {
        &self.deaths
    }

    /// The transaction of this member's procedure. [`Recovery::end`] carries it out.
    pub fn tx(&mut self) -> &mut Transaction {
        &mut self.tx
    }

    /// Ends the recovery with the changes of all members, and lets calls through again.
    /// [`StoreError::Revoked`] means that another member died or came back late: nothing has
    /// changed, and the recovery has to begin again. For other errors see [`Store::recover`].
    pub fn end(mut self) -> StoreResult<()> {
        let _call = self.turn.0.begin_call();
        let prepared = self.tx.prepare();
        let (flags, reason) = match &prepared {
            Ok(()) => (ALL_WELL, None),
            // An observed version has changed: a tombstone was removed meanwhile.
            Err(StoreError::Aborted) => (PREPARED, None),
            Err(error) => (CALM, Some(format!("at {}: {error}", self.turn.0.me()))),
        };
        if mutant("recover-partly-visible") && prepared.is_ok() {
            let _ = self.tx.end_prepared(Some(&self.view));
        }
        match (self.vote(flags, reason)?, prepared) {
            (Ended::Committed, _) => Ok(()),
            (Ended::Again, _) => Err(StoreError::Revoked),
            (Ended::Failed(_), Err(error)) if error != StoreError::Aborted => Err(error),
            (Ended::Failed(reason), _) => Err(StoreError::RecoveryFailed { reason }),
        }
    }

    /// Ends the recovery at all members without any effect, because the procedure of this member
    /// has failed. [`StoreError::Revoked`] means that a member has died meanwhile, so that all
    /// members begin again in any case.
    pub fn fail(mut self, reason: &str) -> StoreResult<()> {
        let _call = self.turn.0.begin_call();
        self.tx.abort();
        let reason = format!("the procedure of {} {reason}", self.turn.0.me());
        match self.vote(CALM, Some(reason))? {
            Ended::Again => Err(StoreError::Revoked),
            Ended::Committed | Ended::Failed(_) => Ok(()),
        }
    }

    /// *vote*, then *decide* and *open_gate*.
    fn vote(&mut self, flags: u64, reason: Option<String>) -> StoreResult<Ended> {
        let state = self.turn.0.clone();
        let attempt = self.communicator.id();
        if let Some(reason) = &reason {
            // The decision tells the other members the reason. If it cannot be written, they report
            // the failure without the reason.
            let _ = state.decide(attempt, None, reason);
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
        self.decide(agreed)
    }

    /// *decide* and *open_gate*, with the result of *vote*.
    fn decide(&mut self, agreed: StoreResult<Ended>) -> StoreResult<Ended> {
        let state = self.turn.0.clone();
        let attempt = self.communicator.id();
        let step = within(steps::Step::RecoverDecide);
        let wanted = matches!(agreed, Ok(Ended::Committed)).then_some(&self.view.dead);
        let why = match agreed {
            Ok(Ended::Failed(_)) => "another member could not prepare its changes",
            _ => "a member died or did not take part in time",
        };
        let recovery_decision = match wanted {
            Some(_) => decide_recovery_unfrozen(&state.tx, attempt, wanted),
            None => state.decide(attempt, None, why),
        };
        drop(step);
        let ended = match (agreed, recovery_decision) {
            (_, Ok(recovery_decision)) if recovery_decision.is_committed => Ended::Committed,
            // Another member had reached its time limit before, and has aborted the attempt.
            (Ok(Ended::Committed), Ok(_)) => Ended::Again,
            (Ok(Ended::Failed(_)), Ok(recovery_decision)) => {
                Ended::Failed(recovery_decision.reason)
            }
            (Ok(Ended::Failed(_)), Err(_)) => Ended::Failed(why.into()),
            (Ok(Ended::Again), _) => Ended::Again,
            // This member has reached its time limit, and the attempt is aborted at all members.
            (Err(error), Ok(_)) => {
                self.tx.end_prepared(None)?;
                return Err(error);
            }
            // The prepared changes stay prepared until the recovery decision can be read. The
            // background reads it.
            (Ok(Ended::Committed), Err(error)) | (Err(error), Err(_)) => {
                self.tx.abandon();
                return Err(error);
            }
        };
        if let Ended::Committed = ended {
            let outcome = self.tx.end_prepared(Some(&self.view));
            state.open_gate(self.view.dead.clone());
            outcome?;
        } else {
            self.tx.end_prepared(mutant("recover-skip-abort").then_some(&self.view))?;
        }
        Ok(ended)
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::engine::Fault;
    use crate::engine::MemberId;
    use crate::engine::sim::{self, Link, Options as SimOptions};
    use crate::job::Job;
    use crate::store::Options;
    use crate::store::Store;
    use crate::store::segment::intent::{RecoveryDecision, intent_key};
    use crate::store::testing::{expect_timeout, nap, third_attempt};
    use crate::store::tx::state::decide_recovery_unfrozen;
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

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

    /// A key whose only replica is this member.
    fn key_at(store: &Store, replica: MemberId, number: usize) -> Vec<u8> {
        let keys = (0..1000).map(|number| format!("key/{number}").into_bytes());
        keys.into_iter()
            .filter(|key| store.replicas_of(key) == [replica])
            .nth(number)
            .expect("some key")
    }

    /// The joined intent of a living member is lost when its replica dies. The next attempt does
    /// not wait for it, and the key that it had locked returns `DataLost` until the loss is
    /// accepted.
    #[test]
    fn a_lost_joined_intent_does_not_block_the_next_attempt() {
        for seed in 0..10 {
            let is_prepared = Rc::new(Cell::new(false));
            run(seed, 4, move |job| {
                let store = open(&job, 1);
                let recovery_decision = store.replicas_of(&RecoveryDecision::key())[0];
                let intent_of = |member: &MemberId| store.replicas_of(&intent_key(*member, 0))[0];
                let members = || (0..4).map(MemberId);
                let is_right = |member: &MemberId| {
                    intent_of(member) != *member && intent_of(member) != recovery_decision
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
                nap(&job, "the preparing member", || is_prepared.get());
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
                        lock(&store.state.transactions.unfinished).is_empty()
                    });
                }
                end(&job, &store);
            });
        }
    }

    /// A member has prepared its changes and dies, together with the only replica of the recovery
    /// decision. The recovery returns `DataLost`. After the loss is accepted, the joined intent of
    /// the dead member must be ended before the next recovery. Otherwise an operation that meets it
    /// would write a decision about it over the decision of a later recovery, while another member
    /// still has to apply its changes.
    #[test]
    fn a_lost_recovery_decision_leaves_no_intent_that_overwrites_a_later_decision() {
        for seed in 0..10 {
            let (stage, failures) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let begun = Rc::new(Cell::new(0));
            run(seed, 6, move |job| {
                let store = open(&job, 1);
                let recovery_decision = store.replicas_of(&RecoveryDecision::key())[0];
                let intent_of = |member: &MemberId| store.replicas_of(&intent_key(*member, 0))[0];
                let others = || (0..6).map(MemberId).filter(|member| *member != recovery_decision);
                let is_right = |member: &MemberId| {
                    intent_of(member) != *member && intent_of(member) != recovery_decision
                };
                let dead = others().find(is_right).expect("with so many partitions");
                // The next member to die is no replica of the keys, intents and decision below.
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
                // A member that is not at the end of this call reads the decision.
                begun.set(begun.get() + 1);
                nap(&job, "all members", || begun.get() == 6);
                if job.me() == dead {
                    recovery.tx().put(&left, b"never").expect("put");
                    recovery.tx.prepare().expect("prepared");
                    stage.set(1);
                }
                nap(&job, "the preparing member", || stage.get() >= 1);
                if job.me() == dead || job.me() == recovery_decision {
                    job.inject(Fault::Kill(job.me())).expect("killed");
                }
                nap(&job, "the deaths", || {
                    !job.view().is_living(dead) && !job.view().is_living(recovery_decision)
                });
                assert_eq!(recovery.end(), Err(StoreError::Revoked));
                let began = job.now();
                let failed = store.recover(|_, _| Ok::<(), StoreError>(()));
                assert!(matches!(failed, Err(StoreError::DataLost { .. })), "{failed:?}");
                assert!(job.now().since(began) < Duration::from_secs(4), "at once");
                failures.set(failures.get() + 1);
                nap(&job, "the others", || failures.get() == 4);
                store.accept_loss().expect("accepted");
                // In the next recovery all members but a single late member reach the end.
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

    /// A recovery is decided. Before a member has applied its changes, the only replica of one of
    /// its keys dies, and the loss is accepted. The recovery of that member does not succeed: the
    /// change is gone.
    #[test]
    fn a_change_that_is_lost_before_it_is_applied_is_not_acknowledged() {
        for seed in 0..10 {
            let stage = Rc::new(Cell::new(0));
            run(seed, 4, move |job| {
                let store = open(&job, 1);
                let recovery_decision = store.replicas_of(&RecoveryDecision::key())[0];
                let intent_of = |member: &MemberId| store.replicas_of(&intent_key(*member, 0))[0];
                let members = || (0..4).map(MemberId);
                let is_right = |late: &MemberId| {
                    members().any(|one| ![*late, recovery_decision, intent_of(late)].contains(&one))
                };
                let late = members().find(is_right).expect("with so many partitions");
                let victim = members()
                    .find(|one| ![late, recovery_decision, intent_of(&late)].contains(one))
                    .expect("another member");
                let witness = members()
                    .find(|one| *one != victim && *one != late)
                    .expect("a member that sees it");
                let key = key_at(&store, victim, 0);
                store.revoke().expect("revoked");
                let mut recovery = store.recover_begin().expect("begun");
                if job.me() == late {
                    recovery.tx().put(&key, b"new").expect("put");
                    recovery.tx.prepare().expect("prepared");
                    let agreed =
                        recovery.communicator.agree_despite_failures(ALL_WELL).expect("agreed");
                    assert_eq!(agreed.flags, ALL_WELL);
                    nap(&job, "the acceptance", || stage.get() == 2);
                    let ended = recovery.decide(Ok(Ended::Committed)).map(drop);
                    assert!(matches!(ended, Err(StoreError::DataLost { .. })), "{ended:?}");
                    drop(recovery);
                } else {
                    recovery.end().expect("recovered");
                }
                if job.me() == victim {
                    nap(&job, "its death", || false);
                }
                if job.me() == witness {
                    stage.set(1);
                    job.inject(Fault::Kill(victim)).expect("killed");
                    nap(&job, "the death", || !job.view().is_living(victim));
                    let partition = store.partition_of(&key).expect("a key");
                    store.accept_loss_of(&[partition]).expect("accepted");
                    stage.set(2);
                }
                nap(&job, "the acceptance", || stage.get() == 2);
                store.recover(|_, _| Ok::<(), StoreError>(())).expect("recovered");
                assert_eq!(store.get(&key).expect("read"), None);
                end(&job, &store);
            });
        }
    }

    /// A recovery is decided, and then the primary of a key that a member changes is stopped. The
    /// recovery of that member succeeds, since it has happened: a program that called `recover`
    /// again would make the changes of its procedure twice. If a death makes it possible that the
    /// change is lost, the call says so.
    #[test]
    fn a_decided_recovery_succeeds_although_a_replica_does_not_answer() {
        for (seed, dies) in (0..12).map(|number| (2 * number + 1, number % 2 == 1)) {
            let stage = Rc::new(Cell::new(0));
            run(seed, 4, move |job| {
                let store = open(&job, 1);
                let recovery_decision = store.replicas_of(&RecoveryDecision::key())[0];
                let intent_of = |member: &MemberId| store.replicas_of(&intent_key(*member, 0))[0];
                let late = MemberId(0);
                let other_than = |used: &[MemberId]| {
                    let other = (0..4).map(MemberId).find(|one| !used.contains(one));
                    other.expect("another member")
                };
                let primary = other_than(&[late, recovery_decision, intent_of(&late)]);
                // The member that becomes the primary if the primary dies.
                let next = other_than(&[late, recovery_decision, primary]);
                let order = |key: &Vec<u8>| {
                    let partition = store.partition_of(key).expect("a key");
                    store.state.placement.preference(partition)[..2].to_vec()
                };
                let keys = (0..1000).map(|number| format!("key/{number}").into_bytes());
                let key = keys.into_iter().find(|key| order(key) == [primary, next]);
                let key = key.expect("some key");
                store.revoke().expect("revoked");
                let mut recovery = store.recover_begin().expect("begun");
                if job.me() == late {
                    recovery.tx().put(&key, b"new").expect("put");
                    recovery.tx.prepare().expect("prepared");
                    let agreed =
                        recovery.communicator.agree_despite_failures(ALL_WELL).expect("agreed");
                    assert_eq!(agreed.flags, ALL_WELL);
                    nap(&job, "the others", || stage.get() == 3);
                    // The decision is written, whether or not its replica is stopped now.
                    let stopped = if dies { next } else { primary };
                    job.inject(Fault::Stop(stopped)).expect("a fault");
                    if dies {
                        job.inject(Fault::Kill(primary)).expect("killed");
                        nap(&job, "the death", || !job.view().is_living(primary));
                    }
                    let ended = recovery.decide(Ok(Ended::Committed)).map(drop);
                    drop(recovery);
                    match dies {
                        false => {
                            assert_eq!(ended, Ok(()));
                            assert_eq!(expect_timeout(store.get(&key)), primary);
                        }
                        true => assert!(matches!(ended, Err(StoreError::DataLost { .. }))),
                    }
                    job.inject(Fault::Resume(stopped)).expect("a fault");
                    if dies {
                        let partition = store.partition_of(&key).expect("a key");
                        store.accept_loss_of(&[partition]).expect("accepted");
                    }
                    stage.set(4);
                } else {
                    recovery.end().expect("recovered");
                    stage.set(stage.get() + 1);
                }
                nap(&job, "the late member", || stage.get() == 4);
                if dies {
                    store.recover(|_, _| Ok::<(), StoreError>(())).expect("recovered");
                }
                let found = store.get(&key).expect("read").map(|value| value.into_bytes());
                assert_eq!(found, (!dies).then(|| b"new".to_vec()));
                end(&job, &store);
            });
        }
    }

    /// The members have been told of different leavers when those die. All members agree that they
    /// have left.
    #[test]
    fn all_members_agree_on_the_members_that_have_left() {
        for seed in 0..6 {
            run(seed, 3, |job| {
                let store = open(&job, 2);
                let communicator = store.state.coordinated.communicator().expect("global");
                let dead: Vec<MemberId> = (100..230).map(MemberId).collect();
                let mut told = MemberSet::new();
                told.insert(MemberId(100 + job.me().0));
                told.insert(MemberId(220 + job.me().0));
                let left = agree_on_left(&communicator, &dead, &told).expect("agreed");
                let left: Vec<u32> = left.expect("all live").iter().map(|one| one.0).collect();
                assert_eq!(left, [100, 101, 102, 220, 221, 222]);
                end(&job, &store);
            });
        }
    }

    /// A thread is about to revoke the communicator, and is delayed until another thread has
    /// recovered: the communicator is replaced and freed. All members are stopped nevertheless.
    #[test]
    fn a_revocation_after_a_recovery_stops_all_members() {
        for seed in 0..6 {
            run(seed, 3, |job| {
                let store = open(&job, 2);
                let former = store.check_global("revoke()").expect("global");
                store.revoke().expect("revoked");
                store.recover(|_, _| Ok::<(), StoreError>(())).expect("recovered");
                if job.me() == MemberId(0) {
                    store.revoke_from(former).expect("revoked");
                }
                nap(&job, "the revocation", || store.is_revoked());
                store.recover(|_, _| Ok::<(), StoreError>(())).expect("recovered");
                end(&job, &store);
            });
        }
    }

    /// A commit was not answered in time, and then the only replica of its intent dies. No recovery
    /// waits for an outcome that can never be known.
    #[test]
    fn a_lost_commit_does_not_block_a_recovery() {
        for seed in [1, 3, 5, 7] {
            run(seed, 4, |job| {
                let store = open(&job, 1);
                let recovery_decision = store.replicas_of(&RecoveryDecision::key())[0];
                let intent_of = |member: &MemberId| store.replicas_of(&intent_key(*member, 0))[0];
                let is_right = |member: &MemberId| {
                    intent_of(member) != *member && intent_of(member) != recovery_decision
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
                    assert!(store.state.transactions.is_committing());
                    let communicator = store.state.coordinated.communicator().expect("global");
                    let closed = store
                        .state
                        .close_gate(&communicator, job.now().after(Duration::from_secs(1)));
                    let blamed = match &closed {
                        Err(StoreError::Timeout { member, .. }) => Some(*member),
                        _ => None,
                    };
                    assert_eq!(blamed, Some(doomed), "{closed:?}");
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

    /// A request that timed out may still execute when its replica resumes. *close_gate* waits for
    /// it, since this member may still change a value until then.
    #[test]
    fn the_gate_is_closed_only_when_all_stragglers_have_landed() {
        for seed in [1, 3, 5, 7] {
            let is_over = Rc::new(Cell::new(false));
            run(seed, 3, move |job| {
                let store = open(&job, 1);
                let (replica, key) = (MemberId(0), key_at(&store, MemberId(0), 0));
                job.sleep(Duration::from_secs(1));
                if job.me() == MemberId(1) {
                    let communicator = store.state.coordinated.communicator().expect("global");
                    job.inject(Fault::Stop(replica)).expect("a fault");
                    expect_timeout(store.put(&key, b"late"));
                    let until = job.now().after(Duration::from_secs(1));
                    let whom = expect_timeout(store.state.close_gate(&communicator, until));
                    assert_eq!(whom, replica);
                    job.inject(Fault::Resume(replica)).expect("a fault");
                    let until = job.now().after(Duration::from_secs(1));
                    store.state.close_gate(&communicator, until).expect("closed");
                    is_over.set(true);
                }
                nap(&job, "the member with a straggler", || is_over.get());
                store.recover(|_, _| Ok::<(), StoreError>(())).expect("recovered");
                end(&job, &store);
            });
        }
    }

    /// A replica is late and then answers, while a call of this member still waits for another
    /// replica. The timeout of *close_gate* names the other replica.
    #[test]
    fn a_timeout_names_no_member_that_has_answered_meanwhile() {
        for seed in [1, 3, 5, 7] {
            let is_over = Rc::new(Cell::new(false));
            run(seed, 4, move |job| {
                let store = open(&job, 1);
                let [late, stopped] = [0, 2].map(MemberId);
                let [first, second] = [late, stopped].map(|replica| key_at(&store, replica, 0));
                job.sleep(Duration::from_secs(1));
                if job.me() == MemberId(1) {
                    let communicator = store.state.coordinated.communicator().expect("global");
                    job.inject(Fault::Stop(late)).expect("a fault");
                    assert_eq!(expect_timeout(store.put(&first, b"late")), late);
                    job.inject(Fault::Stop(stopped)).expect("a fault");
                    let (mine, other) = (job.clone(), store.clone());
                    let put = move || assert_eq!(expect_timeout(other.put(&second, b"v")), stopped);
                    let puts = job.spawn("puts", Box::new(put)).expect("an activity");
                    let resume = move || {
                        mine.sleep(Duration::from_secs(1));
                        mine.inject(Fault::Resume(late)).expect("a fault");
                    };
                    job.spawn("resumes", Box::new(resume)).expect("an activity");
                    // The put begins, and its wait ends a little after that of *close_gate*.
                    job.sleep(Duration::from_micros(seed * 100));
                    let until = job.now().after(job.time_limit() - Duration::from_millis(1));
                    let whom = expect_timeout(store.state.close_gate(&communicator, until));
                    assert_eq!(whom, stopped, "seed {seed}");
                    nap(&job, "the end of the put", || puts.is_finished());
                    job.inject(Fault::Resume(stopped)).expect("a fault");
                    let until = job.now().after(Duration::from_secs(1));
                    store.state.close_gate(&communicator, until).expect("closed");
                    is_over.set(true);
                }
                nap(&job, "the member with a straggler", || is_over.get());
                store.recover(|_, _| Ok::<(), StoreError>(())).expect("recovered");
                end(&job, &store);
            });
        }
    }

    /// The write of a recovery decision was not answered in time, and may still take effect. No cut
    /// is made until its outcome is known.
    #[test]
    fn a_freeze_waits_for_a_timed_out_recovery_decision() {
        for seed in [1, 3, 5, 7] {
            let is_over = Rc::new(Cell::new(false));
            run(seed, 3, move |job| {
                let store = open(&job, 1);
                let replica = store.replicas_of(&RecoveryDecision::key())[0];
                job.sleep(Duration::from_secs(1));
                if job.me() == MemberId((replica.0 + 1) % 3) {
                    job.inject(Fault::Stop(replica)).expect("a fault");
                    expect_timeout(decide_recovery_unfrozen(
                        &store.state.tx,
                        77,
                        Some(&MemberSet::default()),
                    ));
                    store.freeze(job.now().after(Duration::from_secs(60)));
                    let mut under_way = None;
                    for _ in 0..10 {
                        assert!(!store.is_quiet(&mut under_way).expect("looked"));
                        job.sleep(Duration::from_millis(100));
                    }
                    job.inject(Fault::Resume(replica)).expect("a fault");
                    nap(&job, "quiet", || store.is_quiet(&mut None).expect("looked"));
                    let found = store.state.recovery_decision();
                    job.sleep(Duration::from_secs(1));
                    assert_eq!(
                        store.state.recovery_decision(),
                        found,
                        "it has landed, or never will"
                    );
                    assert!(store.unfreeze());
                    is_over.set(true);
                }
                nap(&job, "the member that decides", || is_over.get());
                end(&job, &store);
            });
        }
    }

    /// A transaction was not answered in time. The background is about to end it when writes are
    /// frozen, and waits for the end of the freeze. The cut does not wait for the background in
    /// turn.
    #[test]
    fn a_freeze_does_not_wait_for_a_background_that_waits_for_unfreeze() {
        for seed in [1, 3, 5, 7] {
            let is_over = Rc::new(Cell::new(false));
            run(seed, 4, move |job| {
                let store = open(&job, 1);
                let intent_of = |member: &MemberId| store.replicas_of(&intent_key(*member, 0))[0];
                let committer = MemberId(0);
                let replica = (1..4)
                    .map(MemberId)
                    .find(|replica| *replica != intent_of(&committer))
                    .expect("another member");
                let keys = [key_at(&store, committer, 0), key_at(&store, replica, 0)];
                job.sleep(Duration::from_secs(1));
                if job.me() == committer {
                    job.inject(Fault::Stop(replica)).expect("a fault");
                    let mut tx = store.begin();
                    keys.iter().for_each(|key| tx.put(key, b"new").expect("put"));
                    expect_timeout(tx.commit());
                    store.freeze(job.now().after(Duration::from_secs(60)));
                    assert!(!store.is_quiet(&mut None).expect("looked"));
                    job.sleep(Duration::from_secs(1));
                    job.inject(Fault::Resume(replica)).expect("a fault");
                    let resumed = job.now();
                    // The operation that the background has in flight now waits for the unfreeze.
                    nap(&job, "quiet", || store.state.straggling_replica().is_none());
                    assert!(
                        job.now().since(resumed) < Duration::from_secs(10),
                        "long before the freeze ends"
                    );
                    assert!(store.unfreeze());
                    is_over.set(true);
                }
                nap(&job, "the committer", || is_over.get());
                end(&job, &store);
            });
        }
    }

    /// Two transactions of a member were not answered in time: of the first the locks have to be
    /// given up, which waits for the end of a freeze, and of the second the outcome is open, for
    /// which the freeze waits. The background decides the second.
    #[test]
    fn a_background_decides_a_transaction_though_another_waits_for_unfreeze() {
        for seed in [1, 3, 5, 7] {
            let is_over = Rc::new(Cell::new(false));
            run(seed, 4, move |job| {
                let store = open(&job, 1);
                let committer = MemberId(0);
                let intent_at = |slot| store.replicas_of(&intent_key(committer, slot))[0];
                let others = || (1..4).map(MemberId);
                let first = others()
                    .find(|one| ![intent_at(0), intent_at(1)].contains(one))
                    .expect("with so many partitions");
                let second = intent_at(0);
                assert!(second != committer && intent_at(1) != second, "with these partitions");
                let here = |number| key_at(&store, committer, number);
                let there = key_at(&store, first, 0);
                // The background gives up the locks in the order of the keys.
                let after = (2..).map(here).find(|key| *key > there).expect("some key");
                let keys = [here(0), here(1), there, after];
                job.sleep(Duration::from_secs(1));
                if job.me() == committer {
                    let mut undecided = third_attempt(&store, |tx| {
                        keys[..2].iter().for_each(|key| tx.put(key, b"new").expect("put"));
                    });
                    job.inject(Fault::Stop(first)).expect("a fault");
                    let mut given_up = store.begin();
                    keys[2..].iter().for_each(|key| given_up.put(key, b"new").expect("put"));
                    assert_eq!(expect_timeout(given_up.commit()), first);
                    job.inject(Fault::Stop(second)).expect("a fault");
                    assert_eq!(expect_timeout(undecided.commit()), second);
                    assert!(store.state.transactions.is_committing());
                    store.freeze(job.now().after(Duration::from_secs(60)));
                    job.inject(Fault::Resume(first)).expect("a fault");
                    job.sleep(Duration::from_secs(1));
                    job.inject(Fault::Resume(second)).expect("a fault");
                    let resumed = job.now();
                    nap(&job, "quiet", || store.is_quiet(&mut None).expect("looked"));
                    let took = job.now().since(resumed);
                    assert!(
                        took < Duration::from_secs(20),
                        "long before the freeze ends: {took:?}"
                    );
                    assert!(store.unfreeze());
                    is_over.set(true);
                }
                nap(&job, "the committer", || is_over.get());
                end(&job, &store);
            });
        }
    }

    /// A thread has found the communicator revoked, and is delayed until another thread has
    /// recovered. The gate, which is open then, stays open.
    #[test]
    fn a_recovered_revocation_closes_no_gate() {
        run(1, 2, |job| {
            let store = open(&job, 2);
            store.revoke().expect("revoked");
            let (view, recoveries) = (job.view(), store.state.gate.recoveries());
            let is_revoked = store
                .state
                .coordinated
                .communicator()
                .is_some_and(|communicator| communicator.is_revoked());
            assert!(is_revoked);
            store.recover(|_, _| Ok::<(), StoreError>(())).expect("recovered");
            store.state.update_gate(&view, is_revoked, recoveries);
            assert!(!store.is_revoked());
            end(&job, &store);
        });
    }
}

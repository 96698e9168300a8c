//! Running transactions: a closure that is tried again, or a handle.
//! `docs/protocol/transactions.md` has the protocol, and the folder `tx` implements it.

use crate::engine::deadline::Deadline;
use crate::store::api::store::Store;
use crate::store::error::StoreError;
use crate::store::tx::state::Inside;
use crate::store::tx::transaction::{FAILED, Transaction};
use std::collections::BTreeMap;

impl Store {
    /// Runs a closure as a transaction: all reads and changes that it makes through its
    /// [`Transaction`] happen at a single moment, or none of them does.
    ///
    /// If a call of another member or thread is faster, the closure is run again, after a pause
    /// that grows, until the job's time limit ([`StoreError::Contended`]). All calls of the
    /// transaction share this time limit, unless the closure itself takes longer. Since the closure
    /// may run several times, it should have no other effects. An error or a panic of the closure
    /// aborts the transaction and is passed on. What the closure returns, a value or an error,
    /// counts only if all values that it has read existed together at a single moment. Otherwise
    /// the closure is run again.
    ///
    /// ```
    /// use outlast::store::{Options, Store, StoreError};
    /// let job = outlast::join()?;
    /// let store = Store::open(&job, Options::new())?;
    /// store.add(b"account/1", 100)?;
    /// store.transaction(|tx| {
    ///     if tx.add(b"account/1", -30)? < 0 {
    ///         return Err(StoreError::WrongType { what: "not enough".into() });
    ///     }
    ///     tx.add(b"account/2", 30)
    /// })?;
    /// assert_eq!(store.add(b"account/2", 0)?, 30);
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Calls of the store inside the closure are not part of the transaction. A call that writes a
    /// key of the transaction may make the transaction fail.
    pub fn transaction<T, E: From<StoreError>>(
        &self,
        mut body: impl FnMut(&mut Transaction) -> Result<T, E>,
    ) -> Result<T, E> {
        let job = &self.state.job;
        let _inside = Inside::enter(&self.state)?;
        let _call = self.state.begin_call();
        let mut until = None;
        let mut tx = self.begin();
        loop {
            let error = match Deadline::program(|| job.now(), || body(&mut tx)) {
                Ok(value) => match tx.commit() {
                    Ok(()) => return Ok(value),
                    Err(error) => E::from(error),
                },
                Err(error) => {
                    // An error that follows from values which never existed together is no result.
                    let is_true =
                        tx.over.is_some() || tx.is_late || tx.is_consistent().unwrap_or(true);
                    tx.abort();
                    if is_true {
                        return Err(error);
                    }
                    tx.over = Some(FAILED);
                    error
                }
            };
            if tx.over != Some(FAILED) {
                return Err(error);
            }
            if job.now() >= *until.get_or_insert_with(|| job.deadline()) {
                return Err(StoreError::Contended { attempts: tx.attempts + 1 }.into());
            }
            tx.back_off();
            tx.retry()?;
        }
    }

    /// Begins a transaction that is not a closure; see [`Transaction`]. The caller tries it again
    /// itself, with [`Transaction::retry`].
    ///
    /// ```
    /// # use outlast::store::{Options, Store, StoreError};
    /// # let job = outlast::join()?;
    /// # let store = Store::open(&job, Options::new())?;
    /// let mut tx = store.begin();
    /// loop {
    ///     tx.put(b"a", b"1")?;
    ///     tx.put(b"b", b"2")?;
    ///     match tx.commit() {
    ///         Err(StoreError::Aborted) => tx.retry()?,
    ///         other => break other?,
    ///     }
    /// }
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin(&self) -> Transaction {
        self.begin_in(None)
    }

    /// Begins a transaction. `recovery` is the attempt at a coordinated recovery to which it is
    /// joined, if any.
    pub(in crate::store::api) fn begin_in(&self, recovery: Option<u64>) -> Transaction {
        Transaction {
            state: self.state.tx.clone(),
            attempts: 0,
            recovery,
            recoveries: self.state.gate.recoveries(),
            over: None,
            is_late: false,
            reads: BTreeMap::new(),
            writes: BTreeMap::new(),
            active: None,
            held: None,
            prepared: None,
            versions: Vec::new(),
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::engine::Epoch;
    use crate::engine::Fault;
    use crate::engine::MemberId;
    use crate::engine::Time;
    use crate::engine::sim::{self, Link, Options as SimOptions};
    use crate::job::Job;
    use crate::store::Options;
    use crate::store::segment::intent::intent_key;
    use crate::store::testing::{expect_timeout, nap, third_attempt};
    use crate::store::{Expect, StoreResult};
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::time::Duration;

    /// A single key of a partition was damaged with its member. The committer that had locked this
    /// key is told that its value is lost, also after the loss was accepted. A committer that has
    /// locked another key of the partition is not, also if that key was deleted and removed since.
    /// All this holds after another death and salvage, too.
    #[test]
    fn only_a_damaged_key_is_lost_to_a_committer() {
        let mut plan = SimOptions::new(3, 7);
        plan.keeps_dead_segments = true;
        let report = sim::run(&plan, |job: Job| {
            let options = Options::new().replicas(1).partitions(8).expected_keys(16).salvage(true);
            let store = crate::store::Store::open(&job, options).expect("open");
            let (state, victims) = (&store.state, [1, 2].map(MemberId));
            if job.me() != MemberId(0) {
                nap(&job, "its death", || false);
            }
            let preference = |key: &Vec<u8>| {
                let partition = store.partition_of(key).expect("a key");
                state.placement.preference(partition)
            };
            let names = (0..).map(|number| format!("key/{number}").into_bytes());
            let keys: Vec<Vec<u8>> =
                names.filter(|key| preference(key)[..2] == victims).take(60).collect();
            let partition = store.partition_of(&keys[0]).expect("a key");
            let same = |key: &&Vec<u8>| store.partition_of(key) == Ok(partition);
            let [lost, kept, deleted] =
                [0, 1, 2].map(|index| keys.iter().filter(same).nth(index).expect("a key"));
            let versions =
                [(lost, "lost"), (kept, "kept"), (deleted, "deleted")].map(|(key, value)| {
                    let value = format!("the value that is {value}");
                    store.put(key, value.as_bytes()).expect("put")
                });
            let check = || {
                let check = |key: &[u8], version| state.check_incarnation(key, version);
                (check(lost, versions[0]), check(kept, versions[1]), check(deleted, versions[2]))
            };
            assert_eq!(check(), (Ok(()), Ok(()), Ok(())));
            let mut memory = vec![0; job.segment_len(victims[0]).expect("living") as usize];
            job.get(Epoch::ANY, victims[0], 0, &mut memory).expect("read");
            let wanted = b"the value that is lost";
            let place =
                memory.windows(wanted.len()).position(|bytes| bytes == wanted).expect("there");
            job.put(Epoch::ANY, victims[0], place as u64, b"!").expect("damaged");
            job.fence(victims[0], Time::NEVER).expect("killed");
            let is_lost = Err(StoreError::DataLost { partition });
            assert_eq!(store.get(lost).map(drop), is_lost);
            let only_lost = || (is_lost.clone(), Ok(()), Ok(()));
            assert_eq!(check(), only_lost());
            store.accept_loss().expect("accepted");
            assert_eq!(check(), only_lost());
            // Tombstones are removed meanwhile, and raise the version floor.
            job.sleep(Duration::from_secs(1));
            assert_eq!(check(), only_lost());
            assert!(store.delete(deleted).expect("deleted"));
            assert_eq!(check(), only_lost());
            job.sleep(Duration::from_secs(1));
            assert_eq!(check(), only_lost(), "the record is removed");
            job.fence(victims[1], Time::NEVER).expect("killed");
            assert_eq!(store.get(lost), Ok(None));
            assert_eq!(check(), only_lost(), "after another salvage");
            job.sleep(Duration::from_secs(1));
            assert_eq!(check(), only_lost(), "after another salvage");
            store.put(lost, b"again").expect("put");
            assert!(store.delete(lost).expect("deleted"));
            job.sleep(Duration::from_secs(1));
            assert_eq!(check(), only_lost(), "after another life of the key");
            store.close().expect("closed");
            let _ = job.leave();
        });
        report.expect_ok();
    }

    /// A commit that was not answered in time may still take effect. A write freeze waits until its
    /// outcome is known.
    #[test]
    fn a_freeze_waits_for_a_timed_out_commit() {
        for seed in 0..8 {
            let options = SimOptions::new(3, seed).link(Link::Network);
            let is_over = Rc::new(Cell::new(false));
            let report = sim::run(&options, move |job: Job| {
                let options = Options::new().replicas(1).partitions(16).expected_keys(64);
                let store = Store::open(&job, options).expect("open");
                // The intent and the keys are at different members.
                let stopped = store.replicas_of(&intent_key(MemberId(0), 0))[0];
                assert_ne!(stopped, MemberId(0), "with this many partitions");
                let other = MemberId(3 - stopped.0);
                job.sleep(Duration::from_secs(1));
                if job.me() == MemberId(0) {
                    let keys = (0..100u32).map(|number| number.to_le_bytes());
                    let keys: Vec<[u8; 4]> =
                        keys.filter(|key| store.replicas_of(key) == [other]).take(2).collect();
                    let mut tx = third_attempt(&store, |tx| {
                        keys.iter().for_each(|key| tx.put(key, b"new").expect("put"));
                    });
                    job.inject(Fault::Stop(stopped)).expect("a fault");
                    expect_timeout(tx.commit());
                    assert!(store.state.transactions.is_committing());
                    job.inject(Fault::Resume(stopped)).expect("a fault");
                    nap(&job, "the decision", || !store.state.transactions.is_committing());
                    let found =
                        keys.iter().filter(|key| store.exists(&key[..]).expect("read")).count();
                    assert!(found == 0 || found == 2, "{found}");
                    is_over.set(true);
                }
                nap(&job, "the committer", || is_over.get());
                let _ = store.close();
                let _ = job.leave();
            });
            report.expect_ok();
        }
    }

    /// A transaction that was tried before has locked a key that it only reads. The key is lost,
    /// its loss is accepted, and another value is put there. Then the changed key is read without
    /// the transaction's change. The transaction has no serialization point any more, and its
    /// commit must not succeed.
    #[test]
    fn a_commit_fails_if_a_locked_key_of_its_read_set_is_lost() {
        for seed in 0..10 {
            let report =
                sim::run(&SimOptions::new(3, seed).link(Link::of_seed(seed)), |job: Job| {
                    let options = Options::new().replicas(1).partitions(16).expected_keys(16);
                    let store = crate::store::Store::open(&job, options).expect("open");
                    let (committer, holder) =
                        (MemberId(0), store.replicas_of(&intent_key(MemberId(0), 0))[0]);
                    let victim = [1, 2]
                        .map(MemberId)
                        .into_iter()
                        .find(|one| *one != holder)
                        .expect("another member");
                    if job.me() == victim {
                        return nap(&job, "its death", || false);
                    }
                    let end = || {
                        store.close().expect("closed");
                        let _ = job.leave();
                    };
                    if job.me() != committer {
                        return end();
                    }
                    let key_at = |replica| {
                        let names = (0..1000).map(|number| format!("key/{number}").into_bytes());
                        names
                            .into_iter()
                            .find(|key| store.replicas_of(key) == [replica])
                            .expect("some key")
                    };
                    let (read, changed) = (key_at(victim), key_at(committer));
                    for key in [&read, &changed] {
                        store.put(key, b"old").expect("put");
                    }
                    let mut tx = third_attempt(&store, |tx| {
                        assert_eq!(tx.get(&read).expect("read").as_deref(), Some(&b"old"[..]));
                        tx.put(&changed, b"new").expect("put");
                    });
                    job.fence(victim, Time::NEVER).expect("killed");
                    store.accept_loss().expect("accepted");
                    store.put(&read, b"of another life").expect("put");
                    assert_eq!(store.get(&changed).expect("read").expect("there").bytes(), b"old");
                    let committed = tx.commit();
                    assert_eq!(committed, Err(StoreError::Aborted), "the last read has aborted it");
                    end();
                });
            report.expect_ok();
        }
    }

    /// A key that a transaction only reads is lost while the committer is stopped anywhere in its
    /// commit. If the commit returns `DataLost`, it has changed nothing. If another member reads
    /// the other key without the change after the loss, the change never appears.
    #[test]
    fn a_commit_that_reports_a_lost_read_key_has_changed_nothing() {
        let ends: Rc<RefCell<BTreeMap<String, usize>>> = Rc::default();
        for seed in 0..600 {
            let (stage, ends_here) = (Rc::new(Cell::new(0)), ends.clone());
            let report = sim::run(&SimOptions::new(3, seed), move |job: Job| {
                let options = Options::new().replicas(1).partitions(64).expected_keys(64);
                let store = crate::store::Store::open(&job, options).expect("open");
                let (committer, holder) =
                    (MemberId(0), store.replicas_of(&intent_key(MemberId(0), 0))[0]);
                let victim = [1, 2]
                    .map(MemberId)
                    .into_iter()
                    .find(|one| *one != holder)
                    .expect("another member");
                let driver = MemberId(3 - victim.0);
                let key_at = |first: MemberId, second: MemberId| {
                    let names = (0..1000).map(|number| format!("key/{number}").into_bytes());
                    let is_right = |key: &Vec<u8>| {
                        let partition = store.partition_of(key).expect("a key");
                        store.state.placement.preference(partition)[..2] == [first, second]
                    };
                    names.into_iter().find(is_right).expect("some key")
                };
                let (read, changed) = (key_at(victim, driver), key_at(driver, committer));
                if job.me() == committer {
                    for key in [&read, &changed] {
                        store.put(key, b"old").expect("put");
                    }
                    let mut tx = third_attempt(&store, |tx| {
                        assert_eq!(tx.get(&read).expect("read").as_deref(), Some(&b"old"[..]));
                        tx.put(&changed, b"new").expect("put");
                    });
                    stage.set(1);
                    let committed = tx.commit();
                    nap(&job, "the other life", || stage.get() == 2);
                    let is_there =
                        store.get(&changed).expect("read").expect("there").bytes() == b"new";
                    let name = format!("{committed:?}");
                    *ends_here.borrow_mut().entry(name).or_default() += 1;
                    assert_eq!(committed.is_ok(), is_there, "{committed:?}");
                    stage.set(if is_there { 3 } else { 4 });
                } else if job.me() == driver {
                    while stage.get() < 1 {
                        job.sleep(Duration::from_nanos(10));
                    }
                    job.sleep(Duration::from_nanos(100 * seed));
                    job.inject(Fault::Stop(committer)).expect("a fault");
                    job.fence(victim, Time::NEVER).expect("killed");
                    store
                        .accept_loss_of(&[store.partition_of(&read).expect("a key")])
                        .expect("accepted");
                    store.put(&read, b"of another life").expect("put");
                    let is_seen =
                        store.get(&changed).expect("read").expect("there").bytes() == b"new";
                    stage.set(2);
                    job.inject(Fault::Resume(committer)).expect("a fault");
                    nap(&job, "the committer", || stage.get() > 2);
                    assert_eq!(is_seen, stage.get() == 3, "no order fits");
                } else {
                    nap(&job, "its death", || false);
                }
                store.close().expect("closed");
                let _ = job.leave();
            });
            report.expect_ok();
        }
        let ends = ends.borrow();
        assert!(ends.len() == 3 && ends.values().all(|&count| count > 2), "{ends:?}");
    }

    /// A key that a transaction changes is lost while the committer is stopped at each of its
    /// steps, and the loss is accepted. If another member, which knows the new life of that key,
    /// reads the other key without the change, then the change never appears.
    #[test]
    fn a_change_does_not_appear_after_the_loss_of_another_key_of_its_transaction() {
        let ends: Rc<RefCell<BTreeMap<(bool, bool), usize>>> = Rc::default();
        for step in 1..260 {
            let (stage, ends_here) = (Rc::new(Cell::new(0)), ends.clone());
            let report = sim::run(&SimOptions::new(3, step), move |job: Job| {
                let options = Options::new().replicas(1).partitions(64).expected_keys(64);
                let store = crate::store::Store::open(&job, options).expect("open");
                let (committer, holder) =
                    (MemberId(0), store.replicas_of(&intent_key(MemberId(0), 0))[0]);
                let victim = [1, 2].map(MemberId).into_iter().find(|one| *one != holder);
                let victim = victim.expect("another member");
                let driver = MemberId(3 - victim.0);
                let key_at = |first: MemberId, second: MemberId| {
                    let names = (0..1000).map(|number| format!("key/{number}").into_bytes());
                    let is_right = |key: &Vec<u8>| {
                        let partition = store.partition_of(key).expect("a key");
                        store.state.placement.preference(partition)[..2] == [first, second]
                    };
                    names.into_iter().find(is_right).expect("some key")
                };
                let (lost, kept) = (key_at(victim, driver), key_at(driver, committer));
                let is_new = || store.get(&kept).expect("read").expect("there").bytes() == b"new";
                if job.me() == committer {
                    for key in [&lost, &kept] {
                        store.put(key, b"old").expect("put");
                    }
                    stage.set(1);
                    let mut tx = store.begin();
                    tx.put(&lost, b"new").expect("put");
                    tx.put(&kept, b"new").expect("put");
                    job.inject(Fault::StopAtStep(step)).expect("planned");
                    let committed = tx.commit();
                    nap(&job, "the other life", || stage.get() == 2);
                    let end = (committed.is_ok(), is_new());
                    assert!(!end.0 || end.1, "{committed:?}");
                    *ends_here.borrow_mut().entry(end).or_default() += 1;
                    // A transaction that has locked the key in its new life may succeed.
                    stage.set(match end {
                        (true, _) => 5,
                        (_, true) => 3,
                        _ => 4,
                    });
                } else if job.me() == driver {
                    nap(&job, "the beginning", || stage.get() == 1);
                    job.sleep(Duration::from_millis(100));
                    job.fence(victim, Time::NEVER).expect("killed");
                    store
                        .accept_loss_of(&[store.partition_of(&lost).expect("a key")])
                        .expect("accepted");
                    assert_eq!(store.get(&lost), Ok(None));
                    let is_seen = is_new();
                    stage.set(2);
                    // The committer may reach its stop only now.
                    while stage.get() < 3 {
                        job.inject(Fault::Resume(committer)).expect("a fault");
                        job.sleep(Duration::from_millis(1));
                    }
                    let is_right = stage.get() == 5 || is_seen == (stage.get() == 3);
                    assert!(is_right, "no order fits, in step {step}");
                } else {
                    nap(&job, "its death", || false);
                }
                store.close().expect("closed");
                let _ = job.leave();
            });
            report.expect_ok();
        }
        let ends = ends.borrow();
        let count = |end| ends.get(&end).copied().unwrap_or(0);
        assert!(count((true, true)) > 20 && count((false, false)) > 20, "{ends:?}");
    }

    /// Another member applies a key of a committed transaction. Then the intent is lost, the loss
    /// is accepted, and the committer resumes. All keys have their new values, and the commit
    /// succeeds.
    #[test]
    fn a_commit_that_is_complete_succeeds_though_its_intent_was_lost() {
        let (mut helped, is_late) = (0, Rc::new(Cell::new(true)));
        for step in (1..).step_by(2).take_while(|_| is_late.clone().get()) {
            let (stage, is_helped) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            let (was_helped, is_late) = (is_helped.clone(), is_late.clone());
            let report = sim::run(&SimOptions::new(4, step), move |job: Job| {
                let options = Options::new().replicas(1).partitions(64).expected_keys(64);
                let store = crate::store::Store::open(&job, options).expect("open");
                let partition_of =
                    |member| store.partition_of(&intent_key(member, 0)).expect("a key");
                let replicas =
                    |partition| store.state.placement.preference(partition)[..2].to_vec();
                let members = (0..4).map(MemberId);
                let committer =
                    members.clone().find(|one| !replicas(partition_of(*one)).contains(one));
                let committer = committer.expect("a member with a remote intent");
                let (partition, victim) =
                    (partition_of(committer), replicas(partition_of(committer))[0]);
                let driver = members
                    .into_iter()
                    .find(|one| ![committer, victim].contains(one))
                    .expect("a third member");
                let names = (0..1000).map(|number| format!("key/{number}").into_bytes());
                let keys: Vec<Vec<u8>> =
                    names.filter(|key| store.replicas_of(key) == [driver]).take(3).collect();
                if job.me() == committer {
                    nap(&job, "the values before", || stage.get() == 1);
                    job.inject(Fault::StopAtStep(step)).expect("planned");
                    let mut tx = store.begin();
                    keys.iter().for_each(|key| tx.put(key, b"new").expect("put"));
                    let committed = tx.commit();
                    is_late.set(stage.get() > 1);
                    nap(&job, "the acceptance", || stage.get() == 2);
                    let value =
                        |key: &Vec<u8>| store.get(key).expect("read").expect("there").into_bytes();
                    let count = keys.iter().filter(|key| value(key) == b"new").count();
                    assert_eq!(committed.is_ok(), count == 3, "{committed:?}, in step {step}");
                    stage.set(3);
                } else if job.me() == driver {
                    keys.iter().for_each(|key| _ = store.put(key, b"old").expect("put"));
                    stage.set(1);
                    job.sleep(Duration::from_millis(100));
                    // A call that finds the key changed applies it, and changes nothing itself.
                    let is_new =
                        |key| store.get(key).expect("read").expect("there").bytes() == b"new";
                    if is_new(&keys[1]) {
                        let refused = store.put_if(&keys[1], b"mine", Expect::Absent);
                        assert!(matches!(refused, Err(StoreError::Conflict { .. })));
                        is_helped.set(true);
                    }
                    job.fence(victim, Time::NEVER).expect("killed");
                    store.accept_loss_of(&[partition]).expect("accepted");
                    stage.set(2);
                    while stage.get() < 3 {
                        job.inject(Fault::Resume(committer)).expect("a fault");
                        job.sleep(Duration::from_millis(1));
                    }
                } else if job.me() == victim {
                    nap(&job, "its death", || false);
                }
                nap(&job, "the committer", || stage.get() == 3);
                store.close().expect("closed");
                let _ = job.leave();
            });
            report.expect_ok();
            helped += usize::from(was_helped.get());
        }
        assert!(helped > 10, "{helped}");
    }

    /// The committer is stopped at each of its steps. Meanwhile its intent is lost, the loss is
    /// accepted, and another member reads a key of the transaction. If the commit succeeds, the
    /// transaction has happened as a whole.
    #[test]
    fn a_successful_commit_is_complete_though_its_intent_was_lost() {
        let ends: Rc<RefCell<BTreeMap<[bool; 3], usize>>> = Rc::default();
        for step in 1.. {
            // Beyond the last step of a commit, in each schedule.
            if ends.borrow().get(&[false, true, true]).is_some_and(|&count| count > 10) {
                break;
            }
            let (stage, ends_here) = (Rc::new(Cell::new(0)), ends.clone());
            let report = sim::run(&SimOptions::new(4, step), move |job: Job| {
                let options = Options::new().replicas(1).partitions(64).expected_keys(64);
                let store = crate::store::Store::open(&job, options).expect("open");
                let partition_of =
                    |member| store.partition_of(&intent_key(member, 0)).expect("a key");
                let replicas =
                    |partition| store.state.placement.preference(partition)[..2].to_vec();
                let members = (0..4).map(MemberId);
                let committer =
                    members.clone().find(|one| !replicas(partition_of(*one)).contains(one));
                let committer = committer.expect("a member with a remote intent");
                let (partition, victim) =
                    (partition_of(committer), replicas(partition_of(committer))[0]);
                let mut others = members.filter(|one| ![committer, victim].contains(one));
                let (driver, other) = (
                    others.next().expect("a third member"),
                    others.next().expect("a fourth member"),
                );
                let keys_at = |replica: MemberId| -> Vec<Vec<u8>> {
                    let names = (0..1000).map(|number| format!("key/{number}").into_bytes());
                    names.filter(|key| store.replicas_of(key) == [replica]).take(2).collect()
                };
                let keys = [keys_at(driver), keys_at(other)].concat();
                if job.me() == committer {
                    nap(&job, "the values before", || stage.get() == 1);
                    job.inject(Fault::StopAtStep(step)).expect("planned");
                    let done: StoreResult<()> =
                        store.transaction(|tx| keys.iter().try_for_each(|key| tx.put(key, b"new")));
                    let is_late = stage.get() > 1;
                    nap(&job, "the acceptance", || stage.get() == 2);
                    let value =
                        |key: &Vec<u8>| store.get(key).expect("read").expect("there").into_bytes();
                    let count = keys.iter().filter(|key| value(key) == b"new").count();
                    assert!(
                        done.is_err() || count == keys.len(),
                        "{count} of its keys, in step {step}"
                    );
                    let end = [is_late, done.is_ok(), count == keys.len()];
                    *ends_here.borrow_mut().entry(end).or_default() += 1;
                    stage.set(3);
                } else if job.me() == driver {
                    keys.iter().for_each(|key| _ = store.put(key, b"old").expect("put"));
                    stage.set(1);
                    job.sleep(Duration::from_millis(100));
                    job.fence(victim, Time::NEVER).expect("killed");
                    store.accept_loss_of(&[partition]).expect("accepted");
                    let _ = store.get(&keys[step as usize / 2 % 4]).expect("read");
                    stage.set(2);
                    // The committer may reach its stop only now.
                    while stage.get() < 3 {
                        job.inject(Fault::Resume(committer)).expect("a fault");
                        job.sleep(Duration::from_millis(1));
                    }
                } else if job.me() == victim {
                    nap(&job, "its death", || false);
                }
                nap(&job, "the committer", || stage.get() == 3);
                store.close().expect("closed");
                let _ = job.leave();
            });
            report.expect_ok();
        }
        let ends = ends.borrow();
        let late = |is_ok, is_whole| ends.get(&[true, is_ok, is_whole]).copied().unwrap_or(0);
        assert!(late(true, true) > 20 && late(false, false) > 20, "{ends:?}");
    }

    /// A key does not exist. Its primary dies after it has raised the version floor to remove
    /// another key, and before the other replica has raised its floor. Then the key is created and
    /// deleted, and the floor is raised to its former height. A transaction that had read the key
    /// as absent must find that this has changed.
    #[test]
    fn a_key_created_and_deleted_after_a_death_has_a_new_observed_version() {
        for seed in 0..10 {
            let report =
                sim::run(&SimOptions::new(4, seed).link(Link::of_seed(seed)), |job: Job| {
                    let options = Options::new().replicas(2).partitions(16).expected_keys(16);
                    let store = crate::store::Store::open(&job, options).expect("open");
                    let (state, victim) = (&store.state, MemberId(1));
                    if job.me() == victim {
                        return nap(&job, "its death", || false);
                    }
                    if job.me() == MemberId(0) {
                        let names = (0..1000).map(|number| format!("key/{number}").into_bytes());
                        let key = names
                            .into_iter()
                            .find(|key| store.replicas_of(key)[0] == victim)
                            .expect("some key");
                        let partition = store.partition_of(&key).expect("a key");
                        // `remove.raise_floor` for a key that had a hundred versions.
                        let raise = |replica| {
                            state.run(|op| op.raise_floor(replica, partition, 100)).expect("raised")
                        };
                        raise(victim);
                        let mut tx = store.begin();
                        assert_eq!(tx.get(&key), Ok(None));
                        tx.put(b"changed", b"new").expect("put");
                        job.fence(victim, Time::NEVER).expect("killed");
                        store.put(&key, b"made").expect("put");
                        assert!(store.delete(&key).expect("deleted"));
                        store.replicas_of(&key).into_iter().for_each(raise);
                        assert_eq!(tx.commit(), Err(StoreError::Aborted));
                    }
                    store.close().expect("closed");
                    let _ = job.leave();
                });
            report.expect_ok();
        }
    }

    /// A transaction is about to create a key when a second transaction reads the key as absent.
    /// The key is created, and then deleted, by a call or in a transaction. The second transaction
    /// must find that the key existed, also if the version floor of the partition is far above the
    /// versions of the key, because a key with many versions was removed meanwhile.
    #[test]
    fn a_key_created_and_deleted_below_the_floor_has_a_new_observed_version() {
        for seed in 0..10 {
            let report =
                sim::run(&SimOptions::new(2, seed).link(Link::of_seed(seed)), move |job: Job| {
                    let options = Options::new().replicas(2).partitions(1).expected_keys(16);
                    let store = crate::store::Store::open(&job, options).expect("open");
                    if job.me() == MemberId(0) {
                        let state = &store.state;
                        for _ in 0..50 {
                            store.put(b"many", b"value").expect("put");
                        }
                        let mut maker =
                            third_attempt(&store, |tx| tx.put(b"key", b"made").expect("put"));
                        assert!(store.delete(b"many").expect("deleted"));
                        let floor = || state.run(|op| op.floor(MemberId(0), 0)).expect("read");
                        nap(&job, "its removal", || floor() > 50);
                        let mut tx = store.begin();
                        assert_eq!(tx.get(b"key"), Ok(None));
                        tx.put(b"changed", b"new").expect("put");
                        maker.commit().expect("committed");
                        if seed % 4 < 2 {
                            assert!(store.delete(b"key").expect("deleted"));
                        } else {
                            let deleted: StoreResult<bool> = store.transaction(|tx| {
                                tx.put(b"other", b"")?;
                                tx.delete(b"key")
                            });
                            assert_eq!(deleted, Ok(true));
                        }
                        assert_eq!(tx.commit(), Err(StoreError::Aborted));
                    }
                    store.close().expect("closed");
                    let _ = job.leave();
                });
            report.expect_ok();
        }
    }
}

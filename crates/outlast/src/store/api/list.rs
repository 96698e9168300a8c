//! Listing keys, and their owners.

use crate::engine::MemberId;
use crate::store::api::store::Store;
use crate::store::error::{StoreError, StoreResult};
use crate::store::key_rules::{RESERVED, check_key};
use crate::store::operation::error::{OpError, OpResult};
use crate::store::placement::hash_key;
use crate::store::record::state::RecordOp;
use crate::store::record::write::Change;
use crate::store::value::Value;
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The interval at which a call looks again while a local member executes a request of a dead
/// member.
const LAST_REQUEST: Duration = Duration::from_millis(1);

/// The keys and values of a store; made by [`Store::entries`].
pub struct Entries {
    store: Store,
    prefix: Box<[u8]>,
    /// The partition that is listed next.
    partition: usize,
    /// The keys that are listed and not returned yet.
    keys: std::vec::IntoIter<Vec<u8>>,
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entries({:?}, partition {})", self.store, self.partition)
    }
}

impl Iterator for Entries {
    type Item = StoreResult<(Vec<u8>, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        let partitions = self.store.state.placement.partitions;
        let error = loop {
            if let Some(key) = self.keys.next() {
                match self.store.get(&key) {
                    Ok(Some(value)) => return Some(Ok((key, value))),
                    // Deleted since it was listed.
                    Ok(None) => continue,
                    Err(error) => break error,
                }
            }
            if self.partition == partitions {
                return None;
            }
            let wanted = |key: &[u8], _| key.starts_with(&self.prefix);
            let keys = self.store.list_partition(self.partition, &wanted);
            self.partition += 1;
            match keys {
                Ok(keys) => self.keys = keys.into_iter(),
                Err(error) => break error,
            }
        };
        if !matches!(error, StoreError::DataLost { .. }) {
            (self.keys, self.partition) = (Vec::new().into_iter(), partitions);
        }
        Some(Err(error))
    }
}

impl std::iter::FusedIterator for Entries {}

impl Store {
    /// Lists all keys that exist, in no particular order. A key that exists throughout the call is
    /// in the list. A key that is created or deleted during the call may be in it.
    pub fn keys(&self) -> StoreResult<Vec<Vec<u8>>> {
        self.list(|_, _| true)
    }

    /// Lists the keys that begin with `prefix`; see [`Store::keys`].
    pub fn scan(&self, prefix: impl AsRef<[u8]>) -> StoreResult<Vec<Vec<u8>>> {
        let prefix = prefix.as_ref();
        self.list(|key, _| key.starts_with(prefix))
    }

    /// Lists the keys of a partition that begin with `prefix`, for callers that go on when another
    /// partition cannot be listed; see [`Store::keys`].
    pub(crate) fn scan_partition(
        &self,
        partition: usize,
        prefix: &[u8],
    ) -> StoreResult<Vec<Vec<u8>>> {
        self.list_partition(partition, &|key: &[u8], _| key.starts_with(prefix))
    }

    /// The number of partitions.
    pub(crate) fn partitions(&self) -> usize {
        self.state.placement.partitions
    }

    /// Iterates over the keys that begin with `prefix`, and their values, each as of some moment
    /// during the iteration. A key that exists throughout the iteration is among them; a key that
    /// is created or deleted meanwhile may be. The iterator lists a partition at a time, so that
    /// its memory does not grow with the store.
    ///
    /// A lost partition or value is an item of its own, [`StoreError::DataLost`], and the iteration
    /// goes on behind it. It ends behind any other error.
    ///
    /// ```
    /// # use outlast::store::{Options, Store};
    /// # let job = outlast::join()?;
    /// # let store = Store::open(&job, Options::new())?;
    /// store.put("task/1", b"open")?;
    /// store.put("task/2", b"done")?;
    /// let mut open = 0;
    /// for entry in store.entries("task/") {
    ///     let (_key, value) = entry?;
    ///     open += usize::from(value.bytes() == b"open");
    /// }
    /// assert_eq!(open, 1);
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn entries(&self, prefix: impl AsRef<[u8]>) -> Entries {
        let prefix = prefix.as_ref().into();
        Entries { store: self.clone(), prefix, partition: 0, keys: Vec::new().into_iter() }
    }

    /// Returns the number of keys that exist; see [`Store::keys`].
    pub fn len(&self) -> StoreResult<usize> {
        Ok(self.keys()?.len())
    }

    /// Returns whether no key exists; see [`Store::keys`].
    pub fn is_empty(&self) -> StoreResult<bool> {
        Ok(self.len()? == 0)
    }

    /// Lists the keys that a member owns, because it created or adopted them; see [`Store::keys`].
    /// If the member is dead, no key of it appears after the call. (Where a stopped member of this
    /// node may still execute the last put of the dead member, the call waits for it, up to the
    /// time limit.) [`StoreError::Invalid`] if the job has no such member.
    pub fn keys_of(&self, member: MemberId) -> StoreResult<Vec<Vec<u8>>> {
        let members = self.state.job.members();
        if member.index() >= members {
            let reason = format!("there is no {member}: the job has {members} members, from 0");
            return Err(StoreError::Invalid { reason });
        }
        self.await_last_request(member)?;
        self.list(|_, owner| owner == member)
    }

    /// Returns the replicas of a key under this member's current view: the members that hold the
    /// key, or are to hold it.
    pub fn replicas_of(&self, key: impl AsRef<[u8]>) -> Vec<MemberId> {
        let placement = &self.state.placement;
        let partition = placement.partition(hash_key(key.as_ref()));
        self.state.replicas(partition, &self.state.job.view()).members
    }

    /// Makes this member the owner of a key. Returns whether the key exists. The value stays, and
    /// its version changes.
    #[inline]
    pub fn adopt(&self, key: impl AsRef<[u8]>) -> StoreResult<bool> {
        self.adopt_bytes(key.as_ref())
    }

    fn adopt_bytes(&self, key: &[u8]) -> StoreResult<bool> {
        check_key(key)?;
        let written = self.state.write(key, true, |current, value| {
            Ok(if current.is_some() {
                Change::Adopt(std::mem::take(value))
            } else {
                Change::Nothing
            })
        })?;
        Ok(written.is_some())
    }
}

impl Store {
    /// If a member is dead, waits until no local member executes a request of a dead member. The
    /// request may be the last put of the dead member, and the key that it makes is then in no
    /// index yet.
    fn await_last_request(&self, member: MemberId) -> StoreResult<()> {
        let (state, job) = (&self.state, &self.state.job);
        let _call = state.begin_call();
        loop {
            let bell = job.bell();
            // The view comes first: a request that is begun later is refused.
            if job.view().is_living(member) || !job.is_serving_dead() {
                return Ok(());
            }
            if job.has_ended() || state.is_closed.load(Ordering::Acquire) {
                return Err(StoreError::Closed);
            }
            if !state.is_in_procedure() {
                state.check_gate(job.epoch())?;
            }
            let (now, until) = (job.now(), job.deadline());
            if now >= until {
                return Err(StoreError::Timeout { member: job.me(), limit: job.time_limit() });
            }
            // This may be the background, in a listener of `on_loss`. No bell rings when the
            // request has been executed.
            state.serve_messages();
            job.park(bell, until.min(now.after(LAST_REQUEST)));
        }
    }

    /// Lists the wanted keys of all partitions, without the store's own keys. The procedure of a
    /// coordinated recovery may list keys although the gate is closed: no member changes anything
    /// then.
    fn list(&self, wanted: impl Fn(&[u8], MemberId) -> bool) -> StoreResult<Vec<Vec<u8>>> {
        let mut keys = Vec::new();
        for partition in 0..self.state.placement.partitions {
            keys.extend(self.list_partition(partition, &wanted)?);
        }
        Ok(keys)
    }

    /// Lists the wanted keys of a partition, without the store's own keys.
    fn list_partition(
        &self,
        partition: usize,
        wanted: &impl Fn(&[u8], MemberId) -> bool,
    ) -> StoreResult<Vec<Vec<u8>>> {
        if self.state.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let is_wanted = |key: &[u8], owner| !key.starts_with(RESERVED) && wanted(key, owner);
        self.state.run(|op| {
            if !self.state.is_in_procedure() {
                self.state.check_gate(op.epoch)?;
            }
            self.try_list_partition(op, partition, &is_wanted)
        })
    }

    /// Lists the wanted keys of a partition, all under a single configuration.
    fn try_list_partition(
        &self,
        op: &RecordOp<'_>,
        partition: usize,
        wanted: &impl Fn(&[u8], MemberId) -> bool,
    ) -> OpResult<Vec<Vec<u8>>> {
        let config = op.config(partition)?;
        let mut keys = Vec::new();
        op.for_each_record(
            config,
            partition,
            |_| true,
            |key, offset, block| {
                let (_, block) = op.visible(config, key, offset, block)?;
                if !block.is_deleted && wanted(key.key, block.owner) {
                    keys.push(key.key.to_vec());
                }
                Ok(())
            },
        )?;
        if op.is_current() { Ok(keys) } else { Err(OpError::Again) }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use crate::engine::sim::{self, Link, Options as SimOptions};
    use crate::engine::{Fault, MemberId};
    use crate::job::Job;
    use crate::store::testing::{expect_timeout, nap};
    use crate::store::{Options, Store};
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    const LIMIT: Duration = Duration::from_secs(1);

    /// What a run of [`list_after_last_put`] has found.
    #[derive(Clone, Copy, Debug, Default)]
    struct Listed {
        /// Whether the key of the last put exists in the end.
        is_there: bool,
        /// Whether the call has waited for the primary.
        has_waited: bool,
    }

    /// A member of another node dies in the midst of the first put of a key, and the primary is
    /// stopped at that moment, perhaps while it executes the put. A member of the primary's node
    /// lists the keys of the dead member. The primary goes on after `pause`. If that is within the
    /// time limit of the call, no key may appear after the list.
    fn list_after_last_put(seed: u64, pause: Duration) -> Listed {
        let [stage, ready] = [(); 2].map(|()| Rc::new(Cell::new(0)));
        let listed = Rc::new(Cell::new(Listed::default()));
        let result = listed.clone();
        let mut options = SimOptions::new(3, seed).link(Link::Network);
        options.nodes = vec![0, 0, 1];
        (options.steps_max, options.time_limit) = (10_000_000, LIMIT);
        sim::run(&options, move |job: Job| {
            let options = Options::new().replicas(2).partitions(64).expected_keys(64);
            let store = Store::open(&job, options).expect("open");
            let dies = MemberId(2);
            let mut names = (0..1000).map(|number| format!("key/{number}").into_bytes());
            let mut next = || names.find(|name| !store.replicas_of(name).contains(&dies));
            let (first, key) = (next().expect("a key"), next().expect("another key"));
            let [primary, heir] = store.replicas_of(&key)[..] else { panic!("two") };
            ready.set(ready.get() + 1);
            nap(&job, "the others", || ready.get() == 3);
            if job.me() == dies {
                store.put(&first, b"value").expect("put");
                let mine = job.clone();
                let strike = move || {
                    mine.sleep(Duration::from_nanos(seed * 7919 % 30_000));
                    mine.inject(Fault::Stop(primary)).expect("a fault");
                    mine.inject(Fault::Kill(dies)).expect("a fault");
                };
                job.spawn("strikes", Box::new(strike)).expect("an activity");
                let _ = store.put(&key, b"the last one");
                nap(&job, "its death", || false);
            }
            if job.me() == heir {
                nap(&job, "the death", || !job.view().is_living(dies));
                let mine = job.clone();
                let resume = move || {
                    mine.sleep(pause);
                    mine.inject(Fault::Resume(primary)).expect("a fault");
                };
                let resumes = job.spawn("resumes", Box::new(resume)).expect("an activity");
                let began = job.now();
                let keys = store.keys_of(dies);
                let has_waited = job.now().since(began) >= pause.min(LIMIT);
                nap(&job, "the primary", || resumes.is_finished());
                job.sleep(LIMIT / 4);
                let is_there = store.exists(&key).expect("read");
                match keys {
                    Ok(keys) => assert_eq!(keys.contains(&key), is_there, "seed {seed}"),
                    Err(error) => {
                        assert!(pause > LIMIT, "seed {seed}: {error}");
                        assert!(job.now().since(began) < pause + LIMIT / 2);
                        assert_eq!(expect_timeout::<()>(Err(error)), heir, "seed {seed}");
                    }
                }
                listed.set(Listed { is_there, has_waited });
                stage.set(1);
            }
            nap(&job, "the end", || stage.get() == 1);
            let _ = store.close();
            let _ = job.leave();
        })
        .expect_ok();
        result.get()
    }

    /// No key of a dead member comes into being after its keys were listed, to be adopted.
    #[test]
    fn the_keys_of_a_dead_member_have_the_key_of_its_last_put() {
        let runs: Vec<Listed> = (0..200).map(|seed| list_after_last_put(seed, LIMIT / 4)).collect();
        assert!(runs.iter().any(|run| run.is_there && run.has_waited), "no put was late");
        assert!(runs.iter().any(|run| !run.is_there) && runs.iter().any(|run| !run.has_waited));
    }

    /// As above, and the primary is stopped for longer than the call may wait.
    #[test]
    fn a_list_of_the_keys_of_a_dead_member_ends_at_its_time_limit() {
        let runs: Vec<Listed> = (0..60).map(|seed| list_after_last_put(seed, LIMIT * 2)).collect();
        assert!(runs.iter().any(|run| run.has_waited), "no put was late");
    }
}

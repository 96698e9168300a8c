//! Loss: partitions without a complete replica, and the acceptance of their loss.
//!
//! The first replica of a lost partition accepts the loss, no matter which member asks. A member
//! that asks sends a message and waits. If the view changes, it asks again. Two lives of a
//! partition stay apart because *enter* reads the states of all replicas under a single view: of
//! two members with different views, each has to read the state of a member that the other view
//! knows to be dead.
//!
//! A late operation of the old life has at most a single access in flight, at an address that it
//! learned before. The index is new, so nothing of the new life is at that address. The version
//! counters of the old life began at a smaller configuration number.
#![cfg_attr(outlast_pages, doc = include_str!("../../../../../docs/protocol/loss.md"))]

use crate::engine::deadline::Deadline;
use crate::engine::{MemberId, MemberSet, Time, View};
use crate::store::error::{StoreError, StoreResult};
use crate::store::mutant::mutant;
use crate::store::operation::error::{OpError, OpResult, check_place, engine_error};
use crate::store::operation::message::Message;
use crate::store::record::state::RecordOp;
use crate::store::record::version_floor::INCARNATION_SHIFT;
use crate::store::recovery::salvage::Fate;
use crate::store::recovery::state::RecoveryState;
use crate::store::segment::head::{Phase, State};
use crate::store::segment::layout::PARTITION_BUCKETS;
use crate::sync::lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The pause before the next look for lost partitions, if a member did not answer or a partition is
/// being salvaged.
const NOTIFY_PAUSE: Duration = Duration::from_millis(100);

/// A function of the program that is called with the lost partitions.
type Listener = Arc<dyn Fn(&[usize]) + Send + Sync>;

/// What a member keeps about loss.
///
/// Orderings: `told` is stored with Release and loaded with Acquire. The background stores the
/// epoch and then reads the damaged partitions under their lock. A thread that records damage
/// inserts it under that lock and then stores `u64::MAX`. If the background has not seen the
/// damage, the lock orders its store before the store of `u64::MAX`, and the listeners are called
/// again.
pub(in crate::store) struct Loss {
    /// The partitions whose loss this member is asked to accept, as their first replica, each with
    /// the member that asks.
    wanted: Mutex<Vec<(MemberId, usize)>>,
    /// Why a first replica could not accept the loss of a partition, until the call that asked has
    /// read it.
    refusals: Mutex<BTreeMap<usize, StoreError>>,
    pub(in crate::store) listeners: Mutex<Vec<Listener>>,
    /// The epoch under which the listeners were called last; `u64::MAX` to call them again.
    told: AtomicU64,
}

impl Default for Loss {
    fn default() -> Loss {
        // When the store is opened, no partition is lost.
        let told = AtomicU64::new(0);
        Loss {
            wanted: Mutex::default(),
            refusals: Mutex::default(),
            listeners: Mutex::default(),
            told,
        }
    }
}

impl RecoveryState {
    /// Whether a partition is lost.
    fn is_lost(&self, partition: usize) -> StoreResult<bool> {
        // A partition that is being salvaged is not lost, or not yet.
        Ok(self.fate(partition)? == Fate::Lost)
    }

    /// The lost partitions.
    pub(in crate::store) fn lost_partitions(&self) -> StoreResult<Vec<usize>> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let mut lost = Vec::new();
        for partition in 0..self.placement.partitions {
            if self.is_lost(partition)? {
                lost.push(partition);
            }
        }
        Ok(lost)
    }

    /// Asks the first replica of a lost partition to accept the loss, and waits until the partition
    /// lives again.
    pub(in crate::store) fn accept_loss(&self, partition: usize) -> StoreResult<()> {
        let job = &self.job;
        let _call = self.begin_call();
        let (limit, until) = (job.time_limit(), job.deadline());
        lock(&self.loss.refusals).remove(&partition);
        let mut asked = None;
        loop {
            let bell = job.bell();
            if !self.is_lost(partition)? {
                return Ok(());
            }
            if let Some(error) = lock(&self.loss.refusals).remove(&partition) {
                return Err(error);
            }
            let view = job.view();
            let replicas = self.replicas(partition, &view);
            let &first = replicas.members.first().ok_or(StoreError::DataLost { partition })?;
            if job.now() >= until {
                return Err(StoreError::Timeout { member: first, limit });
            }
            if asked != Some(view.epoch) {
                asked = Some(view.epoch);
                if first == job.me() {
                    self.want_acceptance(first, partition);
                } else {
                    let note = Message::Accept { partition: partition as u64 };
                    match self.send(first, &note) {
                        // The death of the first replica changes the view, and the next first
                        // replica is asked.
                        Ok(()) | Err(crate::engine::Error::Dead { .. }) => {}
                        Err(error) => return Err(engine_error(error)),
                    }
                }
            }
            // A call that waits also serves messages and accepts losses: a listener that calls this
            // function runs in the background itself.
            self.serve_messages();
            self.accept_some();
            job.park(bell, until);
        }
    }

    /// Records that keys of a partition are lost. If that is news, the listeners are called.
    pub(in crate::store) fn record_damage(&self, partition: usize) {
        if partition < self.placement.partitions && self.salvage.add_damaged(partition) {
            self.loss.told.store(u64::MAX, Ordering::Release);
            let _ = self.job.ring(self.me());
        }
    }

    /// The damaged keys of a partition that lives. There are none if the whole partition is lost.
    pub(in crate::store) fn keys_damaged(&self, partition: usize) -> StoreResult<Vec<Vec<u8>>> {
        match self.keys_marked(partition) {
            Err(StoreError::DataLost { .. }) => Ok(Vec::new()),
            keys => keys,
        }
    }

    /// Records that this member is asked to accept the loss of a partition.
    pub(in crate::store) fn want_acceptance(&self, from: MemberId, partition: usize) {
        if partition < self.placement.partitions {
            lock(&self.loss.wanted).push((from, partition));
            let _ = self.job.ring(self.me());
        }
    }

    /// Records that a first replica could not accept the loss of a partition.
    pub(in crate::store) fn acceptance_refused(
        &self,
        from: MemberId,
        partition: usize,
        reason: String,
    ) {
        let error = StoreError::OutOfMemory { member: from, reason };
        lock(&self.loss.refusals).insert(partition, error);
    }

    /// Accepts the losses that this member was asked to accept. A single activity of a member makes
    /// indexes at a time.
    pub(in crate::store) fn accept_some(&self) {
        loop {
            if lock(&self.loss.wanted).is_empty() || !self.begin_indexes() {
                return;
            }
            let wanted = lock(&self.loss.wanted).pop();
            let Some((from, partition)) = wanted else { return self.end_indexes() };
            let result = self.run(|op| self.accept_loss_with(op, partition));
            self.end_indexes();
            let answer = match result {
                Ok(Some(others)) => {
                    tracing::warn!(partition, "a lost partition was given up");
                    self.schedule_repair(partition);
                    let note = Message::Fill { partition: partition as u64 };
                    // Repair reminds a replica that does not get this message.
                    others.iter().for_each(|&replica| drop(self.try_send(replica, &note)));
                    Message::Accepted { partition: partition as u64 }
                }
                // Another member is the first replica. The member that asked learns of the newer
                // view and asks that member.
                Ok(None) => continue,
                Err(StoreError::Closed) => return,
                Err(error) => {
                    Message::NotAccepted { partition: partition as u64, reason: error.to_string() }
                }
            };
            if from != self.me() {
                let _ = self.send(from, &answer);
            } else if let Message::NotAccepted { reason, .. } = answer {
                self.acceptance_refused(from, partition, reason);
            }
            let _ = self.job.ring(self.me());
        }
    }

    /// Calls the listeners, once for each epoch and again after new damage. Returns when to run
    /// again.
    pub(in crate::store) fn notify_of_loss(&self) -> Time {
        let epoch = self.job.epoch();
        let listeners = lock(&self.loss.listeners).clone();
        if listeners.is_empty() || self.loss.told.load(Ordering::Acquire) == epoch.0 {
            return Time::NEVER;
        }
        let fates: StoreResult<Vec<Fate>> =
            (0..self.placement.partitions).map(|partition| self.fate(partition)).collect();
        let Ok(fates) = fates else { return self.job.now().after(NOTIFY_PAUSE) };
        if fates.contains(&Fate::Pending) {
            return self.job.now().after(NOTIFY_PAUSE);
        }
        // Stored before the damage is read: damage that is recorded from here on is reported the
        // next time.
        self.loss.told.store(epoch.0, Ordering::Release);
        let mut lost: Vec<usize> =
            (0..fates.len()).filter(|&partition| fates[partition] == Fate::Lost).collect();
        for partition in self.salvage.damaged() {
            match self.keys_damaged(partition) {
                // The loss of these keys was accepted.
                Ok(keys) if keys.is_empty() => {}
                Ok(_) => lost.push(partition),
                Err(_) => {
                    self.loss.told.store(u64::MAX, Ordering::Release);
                    return self.job.now().after(NOTIFY_PAUSE);
                }
            }
        }
        lost.sort_unstable();
        lost.dedup();
        if !lost.is_empty() {
            // The listeners belong to the program. Their calls wait as long as calls of the program
            // do.
            let _deadline = Deadline::listener();
            listeners.iter().for_each(|listener| listener(&lost));
        }
        if self.job.epoch() == epoch { Time::NEVER } else { self.job.now() }
    }

    /// The keys in the indexes of the filling replicas of a partition: keys that existed at some
    /// time.
    pub(in crate::store) fn keys_left(
        &self,
        op: &RecordOp<'_>,
        partition: usize,
    ) -> OpResult<Vec<Vec<u8>>> {
        let store = self;
        let view = store.view(op.epoch).ok_or(OpError::Again)?;
        let mut keys = Vec::new();
        for replica in store.replicas(partition, &view).members {
            if op.state(replica, partition)?.phase() != Phase::Filling {
                continue;
            }
            let buckets =
                op.load(replica, op.partition_word(replica, partition, PARTITION_BUCKETS))?;
            check_place(replica, buckets)?;
            for bucket in 0..store.bucket_count as u64 {
                for node in op.nodes_of(replica, buckets + bucket * 8)? {
                    let Some(offset) = node.head.offset() else { continue };
                    if !op.read_block(replica, offset)?.is_deleted {
                        keys.push(node.key);
                    }
                }
            }
        }
        if op.is_current() { Ok(keys) } else { Err(OpError::Again) }
    }

    /// The number that the configuration would have without the leaving members. It grows whenever
    /// a complete replica has died, no matter which members have heard of a leaver.
    pub(in crate::store::recovery) fn number_without_leavers(
        &self,
        partition: usize,
        view: &View,
    ) -> u64 {
        let replicas =
            self.placement.replicas(self.preference(partition), view, &MemberSet::new());
        replicas.configuration
    }

    /// The steps *enter* to *complete*. Returns the other replicas, which fill now. The list is
    /// empty if the partition was not lost. Returns `None` if another member is the first replica,
    /// or if the partition is being salvaged.
    fn accept_loss_with(
        &self,
        op: &RecordOp<'_>,
        partition: usize,
    ) -> OpResult<Option<Vec<MemberId>>> {
        let (store, me) = (self, self.me());
        // *enter*.
        match op.config(partition) {
            Err(OpError::Lost(_)) => {}
            Ok(_) => return Ok(Some(Vec::new())),
            Err(error) => return Err(error),
        }
        let view = store.view(op.epoch).ok_or(OpError::Again)?;
        let replicas = store.replicas(partition, &view);
        let config_number = replicas.configuration;
        if replicas.members.first() != Some(&me) {
            return Ok(None);
        }
        let (absent, lost) =
            (State::new(Phase::Absent, config_number), State::new(Phase::Lost, config_number));
        let state = op.state(me, partition)?;
        if store.salvage_is_on && state != lost {
            // The partition is being salvaged. The member that asked looks again.
            return Ok(None);
        }
        // *reset*.
        if state.is_filling(config_number) || state == lost {
            if !op.swap_state(me, partition, state, absent)? {
                return Err(OpError::Again);
            }
        } else if state != absent {
            return Err(OpError::Again);
        }
        // *make_index*.
        if !(state.is_filling(config_number) && mutant("accept-keeps")) {
            op.renew_index(partition)?;
        }
        let unaware = store.number_without_leavers(partition, &view);
        op.raise_floor(me, partition, unaware << INCARNATION_SHIFT)?;
        // *complete*. The state must be complete also for members that have not heard of a leaver
        // yet: their configuration number is smaller.
        let complete = State::new(Phase::Complete, unaware - 1);
        if !op.swap_state(me, partition, absent, complete)? {
            return Err(OpError::Again);
        }
        Ok(Some(replicas.members.into_iter().filter(|&replica| replica != me).collect()))
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use crate::engine::sim::{self, Options as SimOptions};
    use crate::engine::{Fault, MemberId, Time};
    use crate::job::Job;
    use crate::store::record::version_floor::INCARNATION_SHIFT;
    use crate::store::testing::nap;
    use crate::store::{Options, Store};
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    /// Two members are leaving at once, and the first replica of a lost partition has heard of both,
    /// and no other member has. It accepts the loss and dies. The next first replica computes an
    /// equal configuration number, since two leavers count as much as a death. The lives of the
    /// partition have different incarnations all the same.
    #[test]
    fn the_lives_of_a_partition_differ_however_many_members_leave() {
        for seed in 0..8 {
            let lives = Rc::new(Cell::new((0, 0)));
            let report = sim::run(&SimOptions::new(8, seed), move |job: Job| {
                let options = Options::new().replicas(3).partitions(8).expected_keys(64);
                let store = Store::open(&job, options).expect("open");
                let (state, me) = (&store.state, job.me());
                let order = state.preference(0);
                let (first, next, leavers) = (order[3], order[4], &order[5..7]);
                let accept = || {
                    nap(&job, "the deaths", || job.view().dead.len() >= 3);
                    let before = state.run(|op| op.config(0).map(|_| ()));
                    assert!(before.is_err(), "it is lost");
                    store.accept_loss_of(&[0]).expect("accepted");
                    let floor = state.run(|op| op.floor(me, 0)).expect("a floor");
                    let number = state.run(|op| Ok(op.config(0)?.config_number));
                    (floor >> INCARNATION_SHIFT, number.expect("it lives"))
                };
                if me == first {
                    leavers.iter().for_each(|&leaver| state.record_leaver(leaver));
                    lives.set(accept());
                    job.inject(Fault::Kill(first)).expect("a fault");
                } else if me == next {
                    nap(&job, "the first life", || lives.get().0 > 0);
                    nap(&job, "the death", || !job.view().is_living(first));
                    let ((incarnation, number), before) = (accept(), lives.get());
                    assert_eq!(number, before.1, "an equal number");
                    assert!(incarnation > before.0, "{incarnation} after {}", before.0);
                    lives.set((0, 0));
                } else if me == order[7] {
                    // No new replica is filled between two of the deaths.
                    let stop = |member: &MemberId| job.inject(Fault::Stop(*member));
                    [first, next].iter().for_each(|member| stop(member).expect("a fault"));
                    let kill = |member: &MemberId| job.inject(Fault::Kill(*member));
                    order[..3].iter().for_each(|member| kill(member).expect("a fault"));
                    nap(&job, "the deaths", || job.view().dead.len() == 3);
                    let resume = |member: &MemberId| job.inject(Fault::Resume(*member));
                    [first, next].iter().for_each(|member| resume(member).expect("a fault"));
                }
                let is_killed = order[..4].contains(&me);
                nap(&job, "the end", || !is_killed && !job.view().is_living(first));
                nap(&job, "the second life", || lives.get().0 == 0);
                let _ = store.close();
                let _ = job.leave();
            });
            report.expect_ok();
        }
    }

    /// A listener of a store runs in the background, and puts a value into another store, in which
    /// writes are frozen for a while. The put waits for the end of the freeze, as all calls of the
    /// program do.
    #[test]
    fn a_listener_that_calls_another_store_is_not_its_background() {
        let over = Arc::new(AtomicBool::new(false));
        let report = sim::run(&SimOptions::new(2, 0), move |job: Job| {
            let options = || Options::new().replicas(1).partitions(8).expected_keys(64);
            let first = Store::open(&job, options().name("first")).expect("open");
            let second = Store::open(&job, options().name("second")).expect("open");
            let [listener, dead] = [0, 1].map(MemberId);
            if job.me() == listener {
                let names = (0..1000).map(|number| format!("key/{number}").into_bytes());
                let key = names.into_iter().find(|key| second.replicas_of(key) == [listener]);
                let (key, result) = (key.expect("some key"), Arc::new(Mutex::new(None)));
                let (store, put, name) = (second.clone(), result.clone(), key.clone());
                first.on_loss(move |_| {
                    let end = store.state.job.now().after(Duration::from_millis(500));
                    store.state.freeze.0.store(end.0, Ordering::SeqCst);
                    *crate::sync::lock(&put) = Some(store.put(&name, b"value"));
                });
                job.fence(dead, Time::NEVER).expect("killed");
                nap(&job, "the listener", || crate::sync::lock(&result).is_some());
                let put = crate::sync::lock(&result).take();
                assert!(matches!(put, Some(Ok(_))), "{put:?}");
                assert_eq!(second.get(&key).expect("read").expect("there").bytes(), b"value");
                over.store(true, Ordering::SeqCst);
            }
            nap(&job, "the end", || over.load(Ordering::SeqCst) && job.me() != dead);
            first.close().expect("closed");
            second.close().expect("closed");
            let _ = job.leave();
        });
        report.expect_ok();
    }
}

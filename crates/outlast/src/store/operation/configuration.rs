//! Configurations: the replicas of a partition under a view, and which of them is the primary.
//!
//! An operation asks for the configuration of a partition ([`Op::config`]). The first operation of
//! this member under a new list of replicas *enters* the configuration: it raises the configuration
//! number in the states of replicas that are not complete, and finds the primary.
//! docs/protocol/placement.md has the rules. Later operations find the configuration in a list of
//! the partition that only grows, without a lock.

use crate::engine::{Epoch, MemberId};
use crate::store::mutant::mutant;
use crate::store::operation::error::{OpError, OpResult, check_place};
use crate::store::operation::op::Op;
use crate::store::operation::state::OperationState;
use crate::store::placement::replica::{ReplicaIndex, ReplicaSet};
use crate::store::placement::{Assignment, REPLICA_LIST_MAX};
use crate::store::segment::head::{Head, Phase, State};
use crate::store::segment::layout::{PARTITION_BUCKETS, PARTITION_STATE};
use crate::store::steps;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A configuration of a partition that this member has entered.
///
/// *Orderings.* `epoch` says for which view the configuration is valid. It is stored and loaded
/// sequentially consistent. When a member begins to leave, this member stores an invalid
/// epoch into outdated configurations and then reads its own operation counters. An operation swaps
/// its counter, loads the epoch of the job, both sequentially consistent, and then loads `epoch`.
/// So either the operation finds the configuration outdated, or the acknowledgement of the leaver
/// waits for the operation. `ready` only gains bits. A bit is set with release after the state of
/// the replica was loaded, and read with acquire, so that an operation that sees it also sees the
/// replica's index. The words of `buckets` go from 0 to a value that never changes; acquire and
/// release order them behind the index to which they lead. `next` is a `OnceLock`.
#[derive(Debug)]
#[repr(C)]
pub(in crate::store) struct Configuration {
    /// The newest epoch for which this configuration is known to be valid.
    epoch: AtomicU64,
    /// The configuration number, which every head word carries that is written under this
    /// configuration.
    pub(in crate::store) config_number: u64,
    /// The index of the primary, which orders the writes, among the replicas.
    pub(in crate::store) primary: ReplicaIndex,
    /// A bit for each replica that has an index: it is filling or complete, and stays so.
    ready: AtomicU64,
    pub(in crate::store) replicas: ReplicaList,
    /// The offset of each replica's root.
    pub(in crate::store) roots: [u64; REPLICA_LIST_MAX],
    /// The offset of each replica's buckets, 0 while it is not known.
    pub(in crate::store) buckets: [AtomicU64; REPLICA_LIST_MAX],
    /// The next configuration of the partition.
    next: OnceLock<Box<Configuration>>,
}

/// The replicas of a partition, the most preferred replica first. The list is stored in place, so
/// that reading it costs no further cache line.
#[derive(Debug)]
pub(in crate::store) struct ReplicaList {
    len: u32,
    pub(in crate::store) members: [MemberId; REPLICA_LIST_MAX],
}

impl ReplicaList {
    fn new(replicas: &[MemberId]) -> ReplicaList {
        let mut members = [MemberId(0); REPLICA_LIST_MAX];
        members[..replicas.len()].copy_from_slice(replicas);
        ReplicaList { len: replicas.len() as u32, members }
    }
}

impl std::ops::Deref for ReplicaList {
    type Target = [MemberId];

    #[inline(always)]
    fn deref(&self) -> &[MemberId] {
        &self.members[..self.len as usize]
    }
}

impl Configuration {
    /// The member that holds a replica.
    #[inline(always)]
    pub(in crate::store) fn member(&self, replica: ReplicaIndex) -> MemberId {
        self.replicas[replica.index()]
    }

    /// The member that holds the primary.
    #[inline(always)]
    pub(in crate::store) fn primary_member(&self) -> MemberId {
        self.member(self.primary)
    }

    /// The replicas with the members that hold them, in their order.
    pub(in crate::store) fn enumerate(
        &self,
    ) -> impl Iterator<Item = (ReplicaIndex, MemberId)> + '_ {
        self.indices().map(|replica| (replica, self.member(replica)))
    }

    /// The positions of all replicas, in their order.
    pub(in crate::store) fn indices(&self) -> impl Iterator<Item = ReplicaIndex> + use<> {
        (0..self.replicas.len()).map(ReplicaIndex::new)
    }

    /// The replicas that have an index.
    #[inline(always)]
    pub(in crate::store) fn ready(&self) -> ReplicaSet {
        ReplicaSet::from_bits(self.ready.load(Ordering::Acquire))
    }

    /// Whether a replica has an index.
    pub(in crate::store) fn is_ready(&self, replica: ReplicaIndex) -> bool {
        self.ready().contains(replica)
    }

    /// Makes this configuration invalid for operations that begin from now on, unless `replicas` is
    /// still its list.
    fn forget_unless(&self, replicas: &Assignment) {
        if !self.is_same(replicas) {
            self.epoch.store(u64::MAX, Ordering::SeqCst);
        }
    }

    /// Makes this configuration and all later configurations of the partition invalid for
    /// operations that begin from now on, unless `replicas` is still their list.
    pub(in crate::store) fn forget_all_unless(&self, replicas: &Assignment) {
        let mut config = Some(self);
        while let Some(known) = config {
            known.forget_unless(replicas);
            config = known.next.get().map(Box::as_ref);
        }
    }

    /// Whether a replica outside of `done` has an index. The threads of this member share `ready`:
    /// a replica that another thread has just found must be added by every writer that began with
    /// fewer replicas.
    pub(in crate::store) fn has_others_than(&self, done: ReplicaSet) -> bool {
        !self.ready().is_subset(done)
    }

    /// The replicas that have an index, in their order.
    pub(in crate::store) fn ready_replicas(&self) -> impl Iterator<Item = ReplicaIndex> + '_ {
        self.indices().filter(|&replica| self.is_ready(replica))
    }

    /// Whether all replicas have an index.
    #[inline(always)]
    pub(in crate::store) fn are_all_ready(&self) -> bool {
        self.ready() == ReplicaSet::first(self.replicas.len())
    }

    /// The head word of a new record. Before the first death it is stable at once, since no replica
    /// can hold a version of the key from an earlier configuration.
    pub(in crate::store) fn empty_head(&self) -> Head {
        let head = Head::new(self.config_number, 0);
        if self.config_number == 1 { head.stable() } else { head }
    }

    /// Whether this configuration has this list of replicas and this number.
    fn is_same(&self, replicas: &Assignment) -> bool {
        self.config_number == replicas.configuration && *self.replicas == *replicas.members
    }
}

impl OperationState {
    /// The configuration of a partition under the view of an epoch, if an operation of this member
    /// has entered it.
    #[inline(always)]
    pub(in crate::store) fn known_configuration(
        &self,
        partition: usize,
        epoch: Epoch,
    ) -> Option<&Configuration> {
        let mut known = self.partitions[partition].first.get();
        while let Some(config) = known {
            if config.epoch.load(Ordering::SeqCst) == epoch.0 {
                return Some(config);
            }
            known = config.next.get().map(Box::as_ref);
        }
        None
    }
}

impl<'a> Op<'a> {
    /// The configuration of a partition under this operation's view. Enters it if no operation of
    /// this member has.
    #[inline]
    pub(in crate::store) fn config(&self, partition: usize) -> OpResult<&'a Configuration> {
        match self.known_config(partition) {
            Some(config) => Ok(config),
            None => self.enter_configuration(partition),
        }
    }

    /// The configuration of a partition under this operation's view, if an operation of this member
    /// has entered it.
    #[inline(always)]
    pub(in crate::store) fn known_config(&self, partition: usize) -> Option<&'a Configuration> {
        self.store.known_configuration(partition, self.epoch)
    }

    /// Enters the configuration of this operation's view, and makes it known to later operations.
    #[cold]
    fn enter_configuration(&self, partition: usize) -> OpResult<&'a Configuration> {
        let store = self.store;
        let view = store.view(self.epoch).ok_or(OpError::Again)?;
        let leaving = store.leavers.version();
        let replicas = store.replicas(partition, &view);
        let mut entered = None;
        loop {
            // If a member has begun to leave, operations that begin later must not find an old
            // list, not even until this operation checks again. So no leaver is recorded while the
            // configuration is made known.
            let is_known = store.leavers.unless_changed(leaving, || {
                let first = &store.partitions[partition].first;
                let mut known = match first.get() {
                    None => entered.take().map(|entered| first.get_or_init(|| entered)),
                    known => known,
                };
                while let Some(config) = known {
                    if config.is_same(&replicas) {
                        // Also if an activity that did not know of the last death has made it
                        // invalid.
                        let epoch = config.epoch.load(Ordering::Acquire);
                        if epoch < self.epoch.0 || epoch == u64::MAX {
                            config.epoch.store(self.epoch.0, Ordering::SeqCst);
                        }
                        return Ok(known);
                    }
                    if config.config_number > replicas.configuration {
                        return Err(OpError::Again);
                    }
                    known = match config.next.get() {
                        None => entered
                            .take()
                            .map(|entered| &**config.next.get_or_init(|| Box::new(entered))),
                        next => next.map(Box::as_ref),
                    };
                }
                Ok(None)
            });
            if let Some(config) = is_known.ok_or(OpError::Again)?? {
                return Ok(config);
            }
            entered = Some(self.enter(partition, &replicas)?);
        }
    }

    /// Enters a configuration. Raises the number in the states of the replicas that are not
    /// complete, so that a late repairer of an older configuration cannot complete them, and finds
    /// the primary.
    fn enter(&self, partition: usize, replicas: &Assignment) -> OpResult<Configuration> {
        let (mut primary, mut ready, config_number) =
            (None, ReplicaSet::EMPTY, replicas.configuration);
        // Opening made all replicas of the first configuration complete, and only a later
        // configuration changes that. A stopped replica does not delay the first access.
        if config_number == 1 {
            let ready = ReplicaSet::first(replicas.members.len());
            let primary = ReplicaIndex::new(0);
            return Ok(self.new_configuration(config_number, &replicas.members, primary, ready));
        }
        for (index, &replica) in replicas.members.iter().enumerate() {
            let index = ReplicaIndex::new(index);
            let state = loop {
                let state = self.state(replica, partition)?;
                if state.phase() == Phase::Complete || state.configuration() == config_number {
                    break state;
                }
                if state.configuration() > config_number {
                    return Err(OpError::Again);
                }
                self.swap_state(
                    replica,
                    partition,
                    state,
                    State::new(state.phase(), config_number),
                )?;
            };
            match state.phase() {
                Phase::Absent | Phase::Lost => {}
                Phase::Filling => {
                    ready.insert(index);
                    primary = if mutant("trust-absent") { Some(index) } else { primary };
                }
                Phase::Complete => {
                    ready.insert(index);
                    if state.configuration() < config_number && primary.is_none() {
                        primary = Some(index);
                    }
                }
            }
        }
        let primary = primary.ok_or(OpError::Lost(partition))?;
        Ok(self.new_configuration(config_number, &replicas.members, primary, ready))
    }

    fn new_configuration(
        &self,
        config_number: u64,
        replicas: &[MemberId],
        primary: ReplicaIndex,
        ready: ReplicaSet,
    ) -> Configuration {
        Configuration {
            epoch: AtomicU64::new(self.epoch.0),
            config_number,
            primary,
            ready: AtomicU64::new(ready.bits()),
            replicas: ReplicaList::new(replicas),
            roots: std::array::from_fn(|replica| {
                replicas.get(replica).map_or(0, |&replica| self.store.root(replica))
            }),
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            next: OnceLock::new(),
        }
    }

    /// A configuration with this member as its only replica, for records that no other member can
    /// see yet.
    pub(in crate::store) fn config_alone(&self, config_number: u64) -> Configuration {
        self.new_configuration(
            config_number,
            &[self.store.me()],
            ReplicaIndex::new(0),
            ReplicaSet::first(1),
        )
    }

    /// The state of a replica.
    pub(in crate::store) fn state(&self, replica: MemberId, partition: usize) -> OpResult<State> {
        Ok(State(self.load(replica, self.partition_word(replica, partition, PARTITION_STATE))?))
    }

    /// Swaps the state of a replica, and returns whether it was as expected.
    pub(in crate::store) fn swap_state(
        &self,
        replica: MemberId,
        partition: usize,
        from: State,
        to: State,
    ) -> OpResult<bool> {
        self.swap(replica, self.partition_word(replica, partition, PARTITION_STATE), from.0, to.0)
    }

    /// The offset of a word of a partition's entry at a replica.
    #[inline(always)]
    pub(in crate::store) fn partition_word(
        &self,
        replica: MemberId,
        partition: usize,
        field: u64,
    ) -> u64 {
        self.store.root(replica) + self.store.layout.partition(partition) + field
    }

    /// The offset of a replica's buckets.
    pub(in crate::store) fn buckets(
        &self,
        config: &Configuration,
        replica: ReplicaIndex,
        partition: usize,
    ) -> OpResult<u64> {
        let known = config.buckets[replica].load(Ordering::Acquire);
        if known != 0 {
            return Ok(known);
        }
        let member = config.member(replica);
        let buckets =
            self.load(member, self.partition_word(member, partition, PARTITION_BUCKETS))?;
        check_place(member, buckets)?;
        config.buckets[replica].store(buckets, Ordering::Release);
        Ok(buckets)
    }

    /// `write.catch_up`: loads the states of the replicas that had no index, and records the
    /// replicas that have an index now.
    pub(in crate::store) fn find_new_replicas(
        &self,
        config: &Configuration,
        partition: usize,
    ) -> OpResult<()> {
        for replica in config.indices().filter(|&replica| !config.is_ready(replica)) {
            steps::enter(steps::Step::WriteCatchUp);
            if !self.state(config.member(replica), partition)?.is_absent() {
                config.ready.fetch_or(ReplicaSet::only(replica).bits(), Ordering::AcqRel);
            }
        }
        Ok(())
    }

    /// Whether the configuration is still valid. If the view has changed, adopts the current view
    /// first. If the configuration of that view cannot be entered, for example since another member
    /// knows of a leaver of which this member has not heard, it is not known to be valid.
    pub(in crate::store) fn is_still_current(
        &mut self,
        config: &Configuration,
        partition: usize,
    ) -> OpResult<bool> {
        while !self.is_current() {
            self.renew();
            match self.config(partition) {
                Ok(now) if now.config_number == config.config_number => {}
                Ok(_) => return Ok(false),
                Err(OpError::Again) if self.is_current() => return Ok(false),
                Err(OpError::Again) => {}
                Err(fail) => return Err(fail),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The view has changed during an operation, and another member knows of a leaver of which this
    /// member has not heard: a replica has a state with a greater number. This member cannot tell
    /// which configuration is valid.
    #[cfg(feature = "sim")]
    #[test]
    fn a_configuration_that_cannot_be_entered_is_not_valid() {
        use crate::engine::sim::{self, Options as SimOptions};
        use crate::engine::{Fault, Time};
        use crate::job::Job;
        use crate::store::record::state::RecordOp;
        use crate::store::testing::nap;
        use crate::store::{Options, Store};
        use std::cell::Cell;
        use std::rc::Rc;
        let over = Rc::new(Cell::new(false));
        let report = sim::run(&SimOptions::new(3, 0), move |job: Job| {
            let options = Options::new().replicas(2).partitions(16).expected_keys(64);
            let store = Store::open(&job, options).expect("open");
            let [me, dead, new] = [0, 1, 2].map(MemberId);
            if job.me() == me {
                let is_right = |partition: &usize| {
                    store.state.placement.preference(*partition)[..2] == [me, dead]
                };
                let partition = (0..16).find(is_right).expect("some partition");
                let mut op = RecordOp::begin(&store.state).expect("begun");
                let config = op.config(partition).expect("entered");
                // The new replica has not entered the next configuration, and has no index.
                job.inject(Fault::Stop(new)).expect("a fault");
                let (before, after) = (op.state(new, partition), State::new(Phase::Absent, 4));
                let state = before.expect("known");
                assert!(state.is_absent(), "{state:?}");
                assert!(op.swap_state(new, partition, state, after).expect("swapped"));
                job.fence(dead, Time::NEVER).expect("killed");
                nap(&job, "the death", || !op.is_current());
                assert_eq!(op.is_still_current(config, partition).ok(), Some(false));
                assert!(op.is_current());
                drop(op);
                job.inject(Fault::Kill(new)).expect("a fault");
                nap(&job, "the death", || !job.view().is_living(new));
                over.set(true);
            }
            nap(&job, "the end", || over.get() && job.me() == me);
            let _ = store.close();
            let _ = job.leave();
        });
        report.expect_ok();
    }

    /// Two threads of a member write under a single configuration while a replica begins to fill.
    /// The thread that did not find the filling replica itself must install its version there, too.
    #[test]
    fn a_writer_learns_of_a_filling_replica_that_another_thread_found() {
        let config = Configuration {
            epoch: AtomicU64::new(1),
            config_number: 3,
            primary: ReplicaIndex::new(0),
            ready: AtomicU64::new(0b011),
            replicas: ReplicaList::new(&[MemberId(4), MemberId(1), MemberId(7)]),
            roots: [0; REPLICA_LIST_MAX],
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            next: OnceLock::new(),
        };
        let done = config.ready_replicas().collect();
        assert!(!config.has_others_than(done));
        config.ready.fetch_or(0b100, Ordering::AcqRel);
        assert!(config.has_others_than(done) && config.are_all_ready());
    }
}

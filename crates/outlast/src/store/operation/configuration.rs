//! The configurations of a partition: its replicas under a view.

use crate::engine::MemberId;
use crate::store::mutant::mutant;
use crate::store::operation::error::{OpError, OpResult, check_place};
use crate::store::operation::op::Op;
use crate::store::placement::replica::{ReplicaIndex, ReplicaSet};
use crate::store::placement::{Assignment, REPLICA_LIST_MAX};
use crate::store::segment::head::{Head, Phase, State};
use crate::store::segment::layout::{PARTITION_BUCKETS, PARTITION_STATE};
use crate::store::steps;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A configuration of a partition, as this member has entered it.
#[derive(Debug)]
#[repr(C)]
pub(in crate::store) struct Configuration {
    /// The newest epoch for which this configuration is known to be the right one.
    epoch: AtomicU64,
    /// The configuration's number, which configuration numbers the heads written under it.
    pub(in crate::store) config_number: u64,
    /// Which of the replicas decides the order of writes.
    pub(in crate::store) primary: ReplicaIndex,
    /// A bit for each replica that has an index: it is filling or complete, and stays so.
    ready: AtomicU64,
    pub(in crate::store) replicas: ReplicaList,
    /// Where the root of each replica is.
    pub(in crate::store) roots: [u64; REPLICA_LIST_MAX],
    /// Where the buckets of each replica are, 0 while unknown.
    pub(in crate::store) buckets: [AtomicU64; REPLICA_LIST_MAX],
    /// The configuration that came after this one.
    next: OnceLock<Box<Configuration>>,
}

/// The replicas of a partition, the most preferred one first; in place, so that it costs no further
/// line of the cache.
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

    pub(in crate::store) fn is_ready(&self, replica: ReplicaIndex) -> bool {
        self.ready().contains(replica)
    }

    /// Makes sure that no operation that begins from now on takes this for the right configuration,
    /// unless it is.
    fn forget_unless(&self, replicas: &Assignment) {
        if !self.is_same(replicas) {
            self.epoch.store(u64::MAX, Ordering::SeqCst);
        }
    }

    /// The same for this one and all that came after it.
    pub(in crate::store) fn forget_all_unless(&self, replicas: &Assignment) {
        let mut config = Some(self);
        while let Some(known) = config {
            known.forget_unless(replicas);
            config = known.next.get().map(Box::as_ref);
        }
    }

    /// Whether a replica has an index that is not among `done`, a bit for each. Other threads share
    /// what is known: a replica that one of them has just found is news to everyone whose list of
    /// replicas is older.
    pub(in crate::store) fn has_others_than(&self, done: ReplicaSet) -> bool {
        !self.ready().is_subset(done) && !mutant("miss-news")
    }

    pub(in crate::store) fn ready_replicas(&self) -> impl Iterator<Item = ReplicaIndex> + '_ {
        self.indices().filter(|&replica| self.is_ready(replica))
    }

    #[inline(always)]
    pub(in crate::store) fn are_all_ready(&self) -> bool {
        self.ready() == ReplicaSet::first(self.replicas.len())
    }

    /// The head of a new record. Before the first death there is nothing that could be brought up
    /// from elsewhere.
    pub(in crate::store) fn empty_head(&self) -> Head {
        let head = Head::new(self.config_number, 0);
        if self.config_number == 1 { head.stable() } else { head }
    }

    fn is_same(&self, replicas: &Assignment) -> bool {
        self.config_number == replicas.configuration && *self.replicas == *replicas.members
    }
}

impl<'a> Op<'a> {
    /// The configuration of a partition under this operation's view; enters it if nobody of this
    /// member has.
    #[inline]
    pub(in crate::store) fn config(&self, partition: usize) -> OpResult<&'a Configuration> {
        match self.known_config(partition) {
            Some(config) => Ok(config),
            None => self.enter_configuration(partition),
        }
    }

    /// The configuration of a partition under this operation's view, if it was entered.
    #[inline(always)]
    pub(in crate::store) fn known_config(&self, partition: usize) -> Option<&'a Configuration> {
        let mut known = self.store.partitions[partition].first.get();
        while let Some(config) = known {
            if config.epoch.load(Ordering::Acquire) == self.epoch.0 {
                return Some(config);
            }
            known = config.next.get().map(Box::as_ref);
        }
        None
    }

    #[cold]
    fn enter_configuration(&self, partition: usize) -> OpResult<&'a Configuration> {
        let store = self.store;
        let view = store.view(self.epoch).ok_or(OpError::Again)?;
        let leaving = store.leavers.version();
        let replicas = store.replicas(partition, &view);
        let mut entered = None;
        loop {
            // If somebody has begun to leave, operations that begin later must not find an old
            // list, not even until this one looks again: so nobody begins to leave while it is made
            // known.
            let is_known = store.leavers.unless_changed(leaving, || {
                let first = &store.partitions[partition].first;
                let mut known = match first.get() {
                    None => entered.take().map(|entered| first.get_or_init(|| entered)),
                    known => known,
                };
                while let Some(config) = known {
                    if config.is_same(&replicas) {
                        // Also if it was forgotten, by someone who did not know of the last death.
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

    /// Enters a configuration: configuration numbers the states of the replicas that are not
    /// complete, so that a late repairer of an older configuration cannot complete them, and finds
    /// the primary.
    fn enter(&self, partition: usize, replicas: &Assignment) -> OpResult<Configuration> {
        let (mut primary, mut ready, config_number) =
            (None, ReplicaSet::EMPTY, replicas.configuration);
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

    /// A configuration in which this member is alone, for what nobody else sees yet.
    pub(in crate::store) fn config_alone(&self, config_number: u64) -> Configuration {
        self.new_configuration(
            config_number,
            &[self.store.me()],
            ReplicaIndex::new(0),
            ReplicaSet::first(1),
        )
    }

    pub(in crate::store) fn state(&self, replica: MemberId, partition: usize) -> OpResult<State> {
        Ok(State(self.load(replica, self.partition_word(replica, partition, PARTITION_STATE))?))
    }

    pub(in crate::store) fn swap_state(
        &self,
        replica: MemberId,
        partition: usize,
        from: State,
        to: State,
    ) -> OpResult<bool> {
        self.swap(replica, self.partition_word(replica, partition, PARTITION_STATE), from.0, to.0)
    }

    #[inline(always)]
    pub(in crate::store) fn partition_word(
        &self,
        replica: MemberId,
        partition: usize,
        field: u64,
    ) -> u64 {
        self.store.root(replica) + self.store.layout.partition(partition) + field
    }

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

    /// Looks whether replicas that had no index have one now.
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

    /// Whether the configuration is still the right one.
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

    /// Two threads of a member write under one configuration while a replica begins to fill: the
    /// one that did not find it out itself has to install its version there all the same.
    #[test]
    fn a_home_that_another_thread_has_found_is_news() {
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

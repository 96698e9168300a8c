//! The configurations of a partition: its replicas under a view.

use crate::engine::MemberId;
use crate::store::mutant::mutant;
use crate::store::operation::error::{Halt, Step, check_place};
use crate::store::operation::op::Op;
use crate::store::placement::{HOMES_MAX, Homes};
use crate::store::segment::head::{Head, Phase, State};
use crate::store::segment::layout::{PARTITION_BUCKETS, PARTITION_STATE};
use crate::store::steps;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A configuration of a partition, as this member has entered it.
#[derive(Debug)]
#[repr(C)]
pub(in crate::store) struct Config {
    /// The newest epoch for which this configuration is known to be the right one.
    epoch: AtomicU64,
    /// The configuration's number, which stamps the heads written under it.
    pub(in crate::store) stamp: u64,
    /// Which of the homes decides the order of writes.
    pub(in crate::store) primary: usize,
    /// A bit for each home that has an index: it is filling or complete, and stays so.
    ready: AtomicU64,
    pub(in crate::store) homes: HomeList,
    /// Where the root of each home is.
    pub(in crate::store) roots: [u64; HOMES_MAX],
    /// Where the buckets of each home are, 0 while unknown.
    pub(in crate::store) buckets: [AtomicU64; HOMES_MAX],
    /// The configuration that came after this one.
    next: OnceLock<Box<Config>>,
}

/// The homes of a partition, the most preferred one first; in place, so that it costs no further line of the cache.
#[derive(Debug)]
pub(in crate::store) struct HomeList {
    len: u32,
    pub(in crate::store) members: [MemberId; HOMES_MAX],
}

impl HomeList {
    fn new(homes: &[MemberId]) -> HomeList {
        let mut members = [MemberId(0); HOMES_MAX];
        members[..homes.len()].copy_from_slice(homes);
        HomeList { len: homes.len() as u32, members }
    }
}

impl std::ops::Deref for HomeList {
    type Target = [MemberId];

    #[inline(always)]
    fn deref(&self) -> &[MemberId] {
        &self.members[..self.len as usize]
    }
}

impl Config {
    pub(in crate::store) fn is_ready(&self, home: usize) -> bool {
        self.ready.load(Ordering::Acquire) & 1 << home != 0
    }

    /// Makes sure that no operation that begins from now on takes this for the right configuration, unless it is.
    fn forget_unless(&self, homes: &Homes) {
        if !self.is_same(homes) {
            self.epoch.store(u64::MAX, Ordering::SeqCst);
        }
    }

    /// The same for this one and all that came after it.
    pub(in crate::store) fn forget_all_unless(&self, homes: &Homes) {
        let mut config = Some(self);
        while let Some(known) = config {
            known.forget_unless(homes);
            config = known.next.get().map(Box::as_ref);
        }
    }

    /// Whether a home has an index that is not among `done`, a bit for each. Other threads share what is known: a home
    /// that one of them has just found is news to everyone whose list of homes is older.
    pub(in crate::store) fn has_others_than(&self, done: u64) -> bool {
        self.ready.load(Ordering::Acquire) & !done != 0 && !mutant("miss-news")
    }

    pub(in crate::store) fn ready_homes(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.homes.len()).filter(|&home| self.is_ready(home))
    }

    #[inline(always)]
    pub(in crate::store) fn are_all_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire) == (1 << self.homes.len()) - 1
    }

    /// The head of a new record. Before the first death there is nothing that could be brought up from elsewhere.
    pub(in crate::store) fn empty_head(&self) -> Head {
        let head = Head::new(self.stamp, 0);
        if self.stamp == 1 { head.stable() } else { head }
    }

    fn is_same(&self, homes: &Homes) -> bool {
        self.stamp == homes.configuration && *self.homes == *homes.members
    }
}

impl<'a> Op<'a> {
    /// The configuration of a partition under this operation's view; enters it if nobody of this member has.
    #[inline]
    pub(in crate::store) fn config(&self, partition: usize) -> Step<&'a Config> {
        match self.known_config(partition) {
            Some(config) => Ok(config),
            None => self.enter_config(partition),
        }
    }

    /// The configuration of a partition under this operation's view, if it was entered.
    #[inline(always)]
    pub(in crate::store) fn known_config(&self, partition: usize) -> Option<&'a Config> {
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
    fn enter_config(&self, partition: usize) -> Step<&'a Config> {
        let store = self.store;
        let view = store.view(self.epoch).ok_or(Halt::Again)?;
        let leaving = store.leaving.version();
        let homes = store.homes(partition, &view);
        let mut entered = None;
        loop {
            // If somebody has begun to leave, operations that begin later must not find an old list, not even until this
            // one looks again: so nobody begins to leave while it is made known.
            let is_known = store.leaving.unless_changed(leaving, || {
                let first = &store.partitions[partition].first;
                let mut known = match first.get() {
                    None => entered.take().map(|entered| first.get_or_init(|| entered)),
                    known => known,
                };
                while let Some(config) = known {
                    if config.is_same(&homes) {
                        // Also if it was forgotten, by someone who did not know of the last death.
                        let epoch = config.epoch.load(Ordering::Acquire);
                        if epoch < self.epoch.0 || epoch == u64::MAX {
                            config.epoch.store(self.epoch.0, Ordering::SeqCst);
                        }
                        return Ok(known);
                    }
                    if config.stamp > homes.configuration {
                        return Err(Halt::Again);
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
            if let Some(config) = is_known.ok_or(Halt::Again)?? {
                return Ok(config);
            }
            entered = Some(self.enter(partition, &homes)?);
        }
    }

    /// Enters a configuration: stamps the states of the homes that are not complete, so that a late repairer of an
    /// older configuration cannot complete them, and finds the primary.
    fn enter(&self, partition: usize, homes: &Homes) -> Step<Config> {
        let (mut primary, mut ready, stamp) = (None, 0, homes.configuration);
        for (index, &home) in homes.members.iter().enumerate() {
            let state = loop {
                let state = self.state(home, partition)?;
                if state.phase() == Phase::Complete || state.configuration() == stamp {
                    break state;
                }
                if state.configuration() > stamp {
                    return Err(Halt::Again);
                }
                self.swap_state(home, partition, state, State::new(state.phase(), stamp))?;
            };
            match state.phase() {
                Phase::Absent | Phase::Lost => {}
                Phase::Filling => {
                    ready |= 1 << index;
                    primary = if mutant("trust-absent") { Some(index) } else { primary };
                }
                Phase::Complete => {
                    ready |= 1 << index;
                    if state.configuration() < stamp && primary.is_none() {
                        primary = Some(index);
                    }
                }
            }
        }
        let primary = primary.ok_or(Halt::Lost(partition))?;
        Ok(self.new_config(stamp, &homes.members, primary, ready))
    }

    fn new_config(&self, stamp: u64, homes: &[MemberId], primary: usize, ready: u64) -> Config {
        Config {
            epoch: AtomicU64::new(self.epoch.0),
            stamp,
            primary,
            ready: AtomicU64::new(ready),
            homes: HomeList::new(homes),
            roots: std::array::from_fn(|home| {
                homes.get(home).map_or(0, |&home| self.store.root(home))
            }),
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            next: OnceLock::new(),
        }
    }

    /// A configuration in which this member is alone, for what nobody else sees yet.
    pub(in crate::store) fn config_alone(&self, stamp: u64) -> Config {
        self.new_config(stamp, &[self.store.me()], 0, 1)
    }

    pub(in crate::store) fn state(&self, home: MemberId, partition: usize) -> Step<State> {
        Ok(State(self.load(home, self.partition_word(home, partition, PARTITION_STATE))?))
    }

    pub(in crate::store) fn swap_state(
        &self,
        home: MemberId,
        partition: usize,
        from: State,
        to: State,
    ) -> Step<bool> {
        self.swap(home, self.partition_word(home, partition, PARTITION_STATE), from.0, to.0)
    }

    #[inline(always)]
    pub(in crate::store) fn partition_word(
        &self,
        home: MemberId,
        partition: usize,
        field: u64,
    ) -> u64 {
        self.store.root(home) + self.store.layout.partition(partition) + field
    }

    pub(in crate::store) fn buckets(
        &self,
        config: &Config,
        home: usize,
        partition: usize,
    ) -> Step<u64> {
        let known = config.buckets[home].load(Ordering::Acquire);
        if known != 0 {
            return Ok(known);
        }
        let member = config.homes[home];
        let buckets =
            self.load(member, self.partition_word(member, partition, PARTITION_BUCKETS))?;
        check_place(member, buckets)?;
        config.buckets[home].store(buckets, Ordering::Release);
        Ok(buckets)
    }

    /// Looks whether homes that had no index have one now.
    pub(in crate::store) fn find_new_homes(&self, config: &Config, partition: usize) -> Step<()> {
        for home in (0..config.homes.len()).filter(|&home| !config.is_ready(home)) {
            steps::enter(steps::Step::WriteCatchUp);
            if !self.state(config.homes[home], partition)?.is_absent() {
                config.ready.fetch_or(1 << home, Ordering::AcqRel);
            }
        }
        Ok(())
    }

    /// Whether the configuration is still the right one.
    pub(in crate::store) fn is_still(&mut self, config: &Config, partition: usize) -> Step<bool> {
        while !self.is_current() {
            self.renew();
            match self.config(partition) {
                Ok(now) if now.stamp == config.stamp => {}
                Ok(_) => return Ok(false),
                Err(Halt::Again) => {}
                Err(fail) => return Err(fail),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads of a member write under one configuration while a home begins to fill: the one that did not find it out
    /// itself has to install its version there all the same.
    #[test]
    fn a_home_that_another_thread_has_found_is_news() {
        let config = Config {
            epoch: AtomicU64::new(1),
            stamp: 3,
            primary: 0,
            ready: AtomicU64::new(0b011),
            homes: HomeList::new(&[MemberId(4), MemberId(1), MemberId(7)]),
            roots: [0; HOMES_MAX],
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            next: OnceLock::new(),
        };
        let done = config.ready_homes().fold(0, |done, home| done | 1 << home);
        assert!(!config.has_others_than(done));
        config.ready.fetch_or(0b100, Ordering::AcqRel);
        assert!(config.has_others_than(done) && config.are_all_ready());
    }
}

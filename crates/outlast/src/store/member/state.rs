//! The store at one member: the state of all layers.

use crate::engine::{Epoch, MemberId};
use crate::store::error::{StoreError, StoreResult};
use crate::store::member::counts::Counts;
use crate::store::operation::above::Above;
use crate::store::operation::error::{Blocked, Blocker};
use crate::store::recovery::state::RecoveryState;
use crate::sync::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The store at one member.
pub(in crate::store) struct StoreState {
    pub(in crate::store) recovery: RecoveryState,
    pub(in crate::store) deferred: Deferred,
    pub(in crate::store) counts: Counts,
    /// The dead in the order in which this member learned of them.
    pub(in crate::store) deaths: Mutex<Vec<MemberId>>,
    /// How many they are.
    pub(in crate::store) deaths_recorded: AtomicU64,
    /// Whether the roots of all members are known.
    pub(in crate::store) is_open: AtomicBool,
    /// What differs between the members' options.
    pub(in crate::store) mismatch: Mutex<Option<String>>,
}

impl std::ops::Deref for StoreState {
    type Target = RecoveryState;

    #[inline(always)]
    fn deref(&self) -> &RecoveryState {
        &self.recovery
    }
}

impl Above for StoreState {
    fn serve_messages(&self) {
        StoreState::serve_messages(self);
    }

    fn await_salvage(&self, partition: usize) -> StoreResult<()> {
        self.recovery.await_salvage(partition)
    }

    fn clear(&self, blocker: &Blocker, rank: u32, blocked: &mut Blocked) -> StoreResult<()> {
        self.recovery.clear(blocker, rank, blocked)
    }

    fn watch_gate(&self) {
        self.recovery.watch_gate();
    }

    fn record_damage(&self, partition: usize) {
        self.recovery.record_damage(partition);
    }
}

/// The first error of a call that did not wait, by the thread that made it, until its `flush` has
/// told it.
#[derive(Default)]
pub(in crate::store) struct Deferred(pub(in crate::store) Mutex<BTreeMap<u64, StoreError>>);

impl StoreState {
    pub(in crate::store) fn defer(&self, error: StoreError) {
        let thread = self.job.activity();
        lock(&self.deferred.0).entry(thread).or_insert(error);
    }

    /// Notes who has died since the last time; how many it are by now. A view does not say in which
    /// order its members died, so whoever is told a number must find those who make it up at the
    /// beginning of the list.
    #[cold]
    pub(in crate::store) fn record_deaths(&self) -> Epoch {
        let view = self.job.view();
        let mut known = lock(&self.deaths);
        for member in view.dead.iter() {
            if !known.contains(&member) {
                known.push(member);
            }
        }
        self.deaths_recorded.store(known.len() as u64, Ordering::Release);
        Epoch(known.len() as u64)
    }
}

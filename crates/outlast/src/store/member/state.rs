//! The state of the store at a member, and the calls from an operation up to its layers.

use crate::engine::{Epoch, MemberId};
use crate::store::error::{StoreError, StoreResult};
use crate::store::member::close::Ending;
use crate::store::member::counts::Counts;
use crate::store::member::stores::Stores;
use crate::store::operation::above::Above;
use crate::store::operation::error::{Blocked, Blocker};
use crate::store::options::Options;
use crate::store::recovery::state::RecoveryState;
use crate::sync::lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The state of the store at a member: that of the recovery layer, with the layers below inside it,
/// and the fields of this layer.
pub(in crate::store) struct StoreState {
    pub(in crate::store) recovery: RecoveryState,
    /// The options with which this member opened the store.
    pub(in crate::store::member) options: Options,
    /// All stores of the job at this member.
    pub(in crate::store) stores: Arc<Stores>,
    pub(in crate::store::member) ending: Ending,
    pub(in crate::store) deferred: Deferred,
    pub(in crate::store) counts: Counts,
    /// The dead members, in the order in which this member learned of them.
    pub(in crate::store) deaths: Mutex<Vec<MemberId>>,
    /// The length of `deaths`.
    pub(in crate::store) deaths_recorded: AtomicU64,
    /// Whether the roots of all members are known.
    pub(in crate::store::member) is_open: AtomicBool,
    /// The members whose options differ from the own options, each with the difference.
    pub(in crate::store::member) mismatches: Mutex<BTreeMap<MemberId, String>>,
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

    fn clear(&self, blocker: &Blocker, attempts: u32, blocked: &mut Blocked) -> StoreResult<()> {
        self.recovery.clear(blocker, attempts, blocked)
    }

    fn watch_gate(&self) {
        self.recovery.watch_gate();
    }

    fn record_damage(&self, partition: usize) {
        self.recovery.record_damage(partition);
    }
}

/// For each thread, the first error of its calls that did not wait. The next `flush` of the thread
/// returns it.
#[derive(Default)]
pub(in crate::store) struct Deferred(pub(in crate::store) Mutex<BTreeMap<u64, StoreError>>);

impl StoreState {
    /// Keeps the error of a call for the next `flush` of the calling thread, unless an earlier
    /// error is kept.
    pub(in crate::store) fn defer(&self, error: StoreError) {
        let thread = self.job.activity();
        lock(&self.deferred.0).entry(thread).or_insert(error);
    }

    /// Appends the new deaths of the view to the list of deaths, and returns the length of the list
    /// as an epoch. A view does not say in which order its members died. So an epoch is given to
    /// the program only when the list has that many entries: its deaths are then the first entries
    /// of the list.
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

//! A cut: what the whole store held at one moment, for snapshots.
//!
//! All members stop writing for a moment, long enough to list what is there, not to copy it. The
//! values are immutable blocks, which are not used again while an operation is under way that may
//! have seen them: each member keeps one under way until it has copied what it listed. Writers go
//! on meanwhile.
//!
//! | step | at each member | then |
//! |---|---|---|
//! | C1 | freeze: no write begins any more, until C4 or a time limit; writes under way go on | |
//! | C2 | wait until each operation that was under way has ended, and each transaction that is being decided | this member changes nothing |
//! | C3 | when *all* are quiet: list the records of the partitions that this member is the primary of, reconciling each | the lists of all members are the store at this moment |
//! | C4 | when *all* have listed: unfreeze, and say whether the time limit had not thawed before | if all say so, nobody wrote between the first C3 and the last: the lists are one cut |
//!
//! A transaction that is not decided by then is not in the cut: readers of the list see the values
//! before, as all readers do. One that is in doubt must be waited for, since its place may be
//! before the cut: it goes on in spite of the freeze, from the step that puts it in doubt (X3; X4
//! if it needs none) to its decision, and none begins that after C1. So those that are found in
//! doubt are of the dead, and are aborted. A decision that was not answered in time may land at any
//! later moment: it is waited for until it is known; and so is every other request of this member
//! that was not answered in time (`late`), since it may be the recovery_decision of a recovery.
//!
//! A writer makes its participant's counter odd before it looks whether the store is frozen, and
//! freezing comes before the counters are looked at: either the writer sees the freeze or the wait
//! of C2 sees the writer. Whoever decides about the steps is elsewhere (`crate::snapshot`), and may
//! die or be stopped at any of them: the freeze ends by its time limit.

use crate::engine::{Epoch, MemberId, Time};
use crate::store::api::store::Store;
use crate::store::error::{StoreError, StoreResult};
use crate::store::member::state::StoreState;
use crate::store::operation::error::{OpError, engine_error};
use crate::store::operation::quiescence::Quiescence;
use crate::store::placement::mix;
use crate::store::record::lock::without_holder;
use crate::store::record::state::RecordOp;
use crate::store::record::write::Change;
use crate::store::recovery::salvage::Fate;
use crate::store::segment::layout::{Block, value_start};
use crate::store::value::{RESERVED, check_key};
use crate::sync::lock;
use std::sync::atomic::Ordering;

/// What this member has to contribute to a cut. While it exists, nothing that it lists is used
/// again.
pub(crate) struct CutPart<'s> {
    store: &'s StoreState,
    op: RecordOp<'s>,
    records: Vec<Listed>,
    /// How many partitions are in it, and the sum of their mixed numbers: over all members, each
    /// partition once.
    pub(crate) partitions: u64,
    pub(crate) partition_sum: u64,
}

struct Listed {
    key: Vec<u8>,
    offset: u64,
    block: Block,
}

/// The values that [`CutPart::partitions`] and [`CutPart::partition_sum`] of all members add up to.
pub(crate) fn whole_cut(store: &Store) -> (u64, u64) {
    let partitions = store.state.placement.partitions as u64;
    (partitions, (0..partitions).map(mix).fold(0, u64::wrapping_add))
}

impl Store {
    pub(crate) fn job(&self) -> &crate::job::Job {
        &self.state.job
    }

    pub(crate) fn replicas(&self) -> usize {
        self.state.placement.replicas
    }

    /// Waits until every partition that is being salvaged lives; an error if one is lost. Without
    /// salvage whoever lists it says so.
    pub(crate) fn await_salvages(&self) -> StoreResult<()> {
        let partitions = if self.state.salvage_is_on { self.state.placement.partitions } else { 0 };
        for partition in 0..partitions {
            if self.state.fate(partition)? != Fate::Living {
                self.state.await_salvage(partition)?;
            }
        }
        Ok(())
    }

    /// C1.
    pub(crate) fn freeze(&self, until: Time) {
        self.state.freeze.0.swap(until.0.max(1), Ordering::SeqCst);
    }

    /// *drain*: whether each operation that was in flight at the first call, when `before` was
    /// empty, has ended.
    pub(crate) fn is_quiet(&self, before: &mut Option<Quiescence>) -> StoreResult<bool> {
        let state = &self.state;
        let has_drained = match before {
            None => before.insert(Quiescence::begin(state)?).is_empty(),
            Some(in_flight) => in_flight.is_over(state, &[])?,
        };
        Ok(has_drained
            && !state.transactions.is_committing()
            && state.straggling_replica().is_none())
    }

    /// C4; whether the store was frozen until now.
    pub(crate) fn unfreeze(&self) -> bool {
        let until = self.state.freeze.0.swap(0, Ordering::SeqCst);
        // Those who wait for it.
        let _ = self.state.job.ring(self.state.me());
        until != 0
    }

    /// C3, under this epoch alone; `None` if the view has changed.
    pub(crate) fn list_cut(&self, epoch: Epoch) -> StoreResult<Option<CutPart<'_>>> {
        let state = &*self.state;
        let op = match RecordOp::begin(state) {
            Ok(op) => op,
            Err(OpError::Again | OpError::Blocked(_) | OpError::Frozen | OpError::Lost(_)) => {
                return Ok(None);
            }
            Err(OpError::Fail(error)) => return Err(error),
        };
        lock(&state.gate.readers).push(op.participant);
        let mut part =
            CutPart { store: state, op, records: Vec::new(), partitions: 0, partition_sum: 0 };
        if part.op.epoch != epoch {
            return Ok(None);
        }
        for partition in 0..state.placement.partitions {
            match part.list(partition) {
                Ok(()) => {}
                Err(OpError::Again | OpError::Blocked(_) | OpError::Frozen) => return Ok(None),
                Err(OpError::Lost(_)) if state.salvage_is_on => return Ok(None),
                Err(OpError::Lost(partition)) => return Err(StoreError::DataLost { partition }),
                Err(OpError::Fail(error)) => return Err(error),
            }
        }
        Ok(part.op.is_current().then_some(part))
    }

    /// Puts a value that comes from a snapshot, to be owned by another member than the one that
    /// puts it.
    pub(crate) fn put_restored(
        &self,
        key: &[u8],
        value: &[u8],
        owner: MemberId,
    ) -> StoreResult<()> {
        check_key(key)?;
        let lock = without_holder(value);
        let value = lock.as_deref().unwrap_or(value);
        self.state.write(key, false, |_, _| Ok(Change::PutFor(value, owner)))?;
        Ok(())
    }
}

impl Drop for CutPart<'_> {
    fn drop(&mut self) {
        // Before the operation ends, so that nobody mistakes the next one of this participant for
        // it.
        lock(&self.op.store.gate.readers).retain(|&participant| participant != self.op.participant);
    }
}

impl CutPart<'_> {
    fn list(&mut self, partition: usize) -> Result<(), OpError> {
        let store = self.op.store;
        let config = self.op.config(partition)?;
        if config.primary_member() != store.me() {
            return Ok(());
        }
        let CutPart { store: state, op, records, .. } = self;
        let is_wanted = |key: &[u8]| !key.starts_with(RESERVED);
        op.for_each_record(config, partition, is_wanted, |key, offset, block| {
            let (offset, block) = state.visible_in_freeze(op, config, key, offset, block)?;
            if !block.is_deleted {
                records.push(Listed { key: key.key.to_vec(), offset, block });
            }
            Ok(())
        })?;
        self.partitions += 1;
        self.partition_sum = self.partition_sum.wrapping_add(mix(partition as u64));
        Ok(())
    }

    /// How many records there are.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// Copies a record out: its key, owner and version; the value into `value`.
    pub(crate) fn read(&self, index: usize, value: &mut Vec<u8>) -> StoreResult<(&[u8], u32, u64)> {
        let Listed { key, offset, block } = &self.records[index];
        let store = self.op.store;
        value.resize(block.len as usize, 0);
        // Under any view: the block stays as it is, whoever dies.
        let from = offset + value_start(block.len);
        store.job.get(Epoch::ANY, store.me(), from, value).map_err(engine_error)?;
        store.check_value(key, store.me(), block, value)?;
        Ok((key, block.owner.0, block.counter))
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::engine::sim::{self, Options as SimOptions};
    use crate::job::Job;
    use crate::store::Options;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::time::Duration;

    /// What a member's part of a cut holds of a key.
    fn listed(part: &CutPart<'_>, wanted: &[u8]) -> Vec<u8> {
        let mut value = Vec::new();
        let index =
            (0..part.len()).find(|&index| part.read(index, &mut value).expect("whole").0 == wanted);
        index.map_or(Vec::new(), |_| value)
    }

    /// A transaction has locked both its keys when the store is frozen. One member lists its
    /// records, then the other, and the committer has all the time in between: it decides before
    /// the first or after the second.
    #[test]
    fn nothing_is_decided_while_the_store_is_frozen() {
        let held_up = Rc::new(Cell::new(0));
        for seed in 0..200 {
            let (turn, first, held_up) =
                (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())), held_up.clone());
            let report = sim::run(&SimOptions::new(2, seed), move |job: Job| {
                let options = Options::new().replicas(1).partitions(8).expected_keys(32);
                let store = Store::open(&job, options).expect("open");
                let key_at = |member: u32| {
                    let keys = (0..100).map(|number| format!("key/{number}").into_bytes());
                    keys.into_iter()
                        .find(|key| store.replicas_of(key) == [MemberId(member)])
                        .expect("some key")
                };
                let keys = [key_at(0), key_at(1)];
                let moment = Duration::from_micros(1);
                if job.me().0 == 0 {
                    store.put_all(keys.iter().map(|key| (key, b"before"))).expect("put");
                    let (committer, changed) = (store.clone(), keys.clone());
                    let commit = move || {
                        let done: StoreResult<()> = committer.transaction(|tx| {
                            changed.iter().try_for_each(|key| tx.put(key, b"after"))
                        });
                        done.expect("committed");
                    };
                    let commit = job.spawn("commits", Box::new(commit)).expect("spawned");
                    while !keys.iter().all(|key| store.state.is_locked(key).expect("read"))
                        && !commit.is_finished()
                    {}
                    store.freeze(job.now().after(Duration::from_secs(1)));
                    let mut under_way = None;
                    while !store.is_quiet(&mut under_way).expect("looked") {
                        job.sleep(moment);
                    }
                    let part = store.list_cut(job.epoch()).expect("listed").expect("the same view");
                    *first.borrow_mut() = listed(&part, &keys[0]);
                    drop(part);
                    job.sleep(Duration::from_millis(10));
                    turn.set(1);
                    while turn.get() == 1 {
                        job.sleep(moment);
                    }
                    assert!(store.unfreeze());
                    job.wait_for(&commit, Time::NEVER);
                    assert_eq!(
                        store.get(&keys[0]).expect("read").expect("there").bytes(),
                        b"after"
                    );
                } else {
                    while turn.get() == 0 {
                        job.sleep(moment);
                    }
                    let part = store.list_cut(job.epoch()).expect("listed").expect("the same view");
                    assert_eq!(listed(&part, &keys[1]), *first.borrow(), "one moment");
                    held_up.set(held_up.get() + u32::from(*first.borrow() == b"before"));
                    drop(part);
                    turn.set(2);
                }
                store.close().expect("closed");
                let _ = job.leave();
            });
            report.expect_ok();
        }
        assert!(held_up.get() > 5, "held up in {} runs", held_up.get());
    }
}

//! The part of a member in a consistent cut: the state of the whole store at a single moment, for
//! snapshots.
//!
//! A cut has four steps: *freeze*, *drain*, *list* and *unfreeze*. The coordinator in
//! `crate::snapshot` tells each member which step comes next, and may die or stop at any of them:
//! the write freeze ends by its time limit. The listed values are immutable blocks. Each member
//! keeps an operation in flight until it has copied its listed values, so that no listed block is
//! reused.
//!
#![cfg_attr(
    outlast_pages,
    doc = include_str!("../../../../../docs/protocol/consistent-cut.md")
)]

use crate::engine::{Epoch, MemberId, Time};
use crate::store::api::store::Store;
use crate::store::error::{StoreError, StoreResult};
use crate::store::key_rules::{check_key, is_for_snapshots};
use crate::store::member::state::StoreState;
use crate::store::operation::error::{OpError, engine_error};
use crate::store::operation::quiescence::Quiescence;
use crate::store::placement::mix;
use crate::store::record::lock::without_holder;
use crate::store::record::state::RecordOp;
use crate::store::record::write::Change;
use crate::store::recovery::salvage::Fate;
use crate::store::segment::layout::{Block, value_start};
use crate::sync::lock;
use std::sync::atomic::Ordering;

/// The part of this member in a consistent cut. While it exists, no listed block is reused.
pub(crate) struct CutPart<'s> {
    store: &'s StoreState,
    op: RecordOp<'s>,
    records: Vec<Listed>,
    /// The number of partitions in this part.
    pub(crate) partitions: u64,
    /// The sum of the hashed numbers of these partitions. With [`CutPart::partitions`] it shows
    /// whether the parts of all members contain each partition once.
    pub(crate) partition_sum: u64,
}

/// A record of the cut: its key, and the block of its version at this member.
struct Listed {
    key: Vec<u8>,
    offset: u64,
    block: Block,
}

/// Returns the sums of [`CutPart::partitions`] and [`CutPart::partition_sum`] over all members.
pub(crate) fn whole_cut(store: &Store) -> (u64, u64) {
    let partitions = store.state.placement.partitions as u64;
    (partitions, (0..partitions).map(mix).fold(0, u64::wrapping_add))
}

impl Store {
    /// The number of replicas of each value.
    pub(crate) fn replicas(&self) -> usize {
        self.state.placement.replicas
    }

    /// Waits until every partition that is being salvaged lives; returns an error if a partition is
    /// lost. Without salvage, *list* reports a lost partition.
    pub(crate) fn await_salvages(&self) -> StoreResult<()> {
        let partitions = if self.state.salvage_is_on { self.state.placement.partitions } else { 0 };
        for partition in 0..partitions {
            if self.state.fate(partition)? != Fate::Living {
                self.state.await_salvage(partition)?;
            }
        }
        Ok(())
    }

    /// *freeze*: no write of this member begins until `until` or [`Store::unfreeze`].
    pub(crate) fn freeze(&self, until: Time) {
        self.state.freeze.0.swap(until.0.max(1), Ordering::SeqCst);
    }

    /// *drain*: whether this member is quiet. Each operation that was in flight at the first call,
    /// when `before` was empty, has to end, and each transaction that is being decided. No
    /// straggler of this member may be left.
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

    /// *unfreeze*: ends the write freeze. Returns whether writes were frozen until now.
    pub(crate) fn unfreeze(&self) -> bool {
        let until = self.state.freeze.0.swap(0, Ordering::SeqCst);
        if until != 0 {
            self.state.counts.cuts.fetch_add(1, Ordering::Relaxed);
        }
        // The bell wakes the writers that wait for the end of the freeze.
        let _ = self.state.job.ring(self.state.me());
        until != 0
    }

    /// *list*, under this epoch alone; `None` if the view has changed.
    pub(crate) fn list_cut(&self, epoch: Epoch) -> StoreResult<Option<CutPart<'_>>> {
        let state = &*self.state;
        let op = match RecordOp::begin(state) {
            Ok(op) => op,
            Err(OpError::Fail(error)) => return Err(error),
            Err(_) => return Ok(None),
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
                Err(OpError::Lost(_)) if state.salvage_is_on => return Ok(None),
                Err(OpError::Lost(partition)) => return Err(StoreError::DataLost { partition }),
                Err(OpError::Fail(error)) => return Err(error),
                Err(_) => return Ok(None),
            }
        }
        if !part.op.is_current() {
            return Ok(None);
        }
        lock(&state.gate.copiers).push(part.op.participant);
        Ok(Some(part))
    }

    /// Puts a value of a snapshot, with `owner` as the owner of the key. A lock gets a holder that
    /// is no member of this job, so that the next caller takes it over.
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
        // This comes before the end of the operation. Otherwise `recover.close_gate` could take the
        // next operation of this participant for this reader, and not wait for it.
        let gate = &self.op.store.gate;
        for readers in [&gate.readers, &gate.copiers] {
            lock(readers).retain(|&participant| participant != self.op.participant);
        }
    }
}

impl CutPart<'_> {
    /// Lists the records of a partition, if this member is its primary.
    fn list(&mut self, partition: usize) -> Result<(), OpError> {
        let store = self.op.store;
        let config = self.op.config(partition)?;
        if config.primary_member() != store.me() {
            return Ok(());
        }
        let CutPart { store: state, op, records, .. } = self;
        let is_wanted = is_for_snapshots;
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

    /// The number of listed records.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// Copies the value of a listed record into `value`. Returns its key, its owner and the counter
    /// of its version.
    pub(crate) fn read(&self, index: usize, value: &mut Vec<u8>) -> StoreResult<(&[u8], u32, u64)> {
        let Listed { key, offset, block } = &self.records[index];
        let store = self.op.store;
        value.resize(block.len as usize, 0);
        // Any view will do: the block stays unchanged, whichever member dies.
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

    /// The value of a key in a part of a cut; empty if the key is not listed.
    fn listed(part: &CutPart<'_>, wanted: &[u8]) -> Vec<u8> {
        let mut value = Vec::new();
        let index =
            (0..part.len()).find(|&index| part.read(index, &mut value).expect("whole").0 == wanted);
        index.map_or(Vec::new(), |_| value)
    }

    /// A transaction has locked both its keys when writes are frozen. The first member lists its
    /// records, then the second member, and the committer has much time in between. It must decide
    /// before the first list or after the second list.
    #[test]
    fn no_transaction_is_decided_while_writes_are_frozen() {
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
                    let part =
                        store.list_cut(job.epoch()).expect("listed").expect("an unchanged view");
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
                    let part =
                        store.list_cut(job.epoch()).expect("listed").expect("an unchanged view");
                    assert_eq!(listed(&part, &keys[1]), *first.borrow(), "a single moment");
                    held_up.set(held_up.get() + u32::from(*first.borrow() == b"before"));
                    drop(part);
                    turn.set(2);
                }
                store.close().expect("closed");
                let _ = job.leave();
            });
            report.expect_ok();
        }
        assert!(held_up.get() > 5, "delayed in {} runs", held_up.get());
    }

    /// A member copies the values of a consistent cut, for as long as it likes. Another member
    /// leaves meanwhile, and is not held up.
    #[test]
    fn a_leaver_does_not_wait_for_the_copies_of_a_cut() {
        for seed in 0..10 {
            let stage = Rc::new(Cell::new(0));
            let report = sim::run(&SimOptions::new(3, seed), move |job: Job| {
                let options = Options::new().replicas(1).partitions(8).expected_keys(32);
                let store = Store::open(&job, options).expect("open");
                let wait = |wanted: u32| {
                    while stage.get() < wanted {
                        job.sleep(Duration::from_millis(1));
                    }
                };
                match job.me().0 {
                    0 => {
                        store.put(b"key", b"value").expect("put");
                        let part = store.list_cut(job.epoch()).expect("listed").expect("a view");
                        stage.set(1);
                        wait(2);
                        drop(part);
                        stage.set(3);
                    }
                    1 => {
                        wait(1);
                        let left = store.leave(job.now().after(Duration::from_secs(10)));
                        stage.set(2);
                        return left.expect("left");
                    }
                    _ => wait(3),
                }
                store.close().expect("closed");
                let _ = job.leave();
            });
            report.expect_ok();
        }
    }
}

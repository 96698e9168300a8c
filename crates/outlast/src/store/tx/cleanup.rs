//! *release*, and the end of the transactions that their committer did not end.
//!
//! A call whose *apply* or *roll_back* fails leaves its transaction to the background of this
//! member. The intents of dead members are ended by the background of their heir.

use crate::engine::{Epoch, MemberId, Time, View};
use crate::store::error::{StoreError, StoreResult};
use crate::store::mutant::mutant;
use crate::store::placement::heir::heir;
use crate::store::record::visibility::Reader;
use crate::store::record::write::Change;
use crate::store::segment::intent::{Intent, IntentId, IntentState, intent_key};
use crate::store::steps::{self, within};
use crate::store::tx::state::{IntentSlot, SLOTS, TxState, Unfinished};
use crate::sync::lock;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The pause before the background tries again to end a transaction.
pub(in crate::store::tx) const LATER: Duration = Duration::from_millis(100);

/// If the keys of an ended intent have more bytes than this, a short intent replaces it.
const SHORT: usize = 1024;

/// *apply* at all keys of a committed transaction. A replica without room holds up no other key. A
/// replica that does not answer ends the step, since the call may wait for no other. Returns
/// whether all keys were visited, or why not.
pub(in crate::store::tx) fn apply<K>(
    keys: impl IntoIterator<Item = K>,
    mut apply: impl FnMut(K) -> StoreResult<()>,
) -> StoreResult<()> {
    let mut ended = Ok(());
    if mutant("tx-drop-intent") {
        return ended;
    }
    for key in keys {
        if let Err(error) = apply(key) {
            let is_full = matches!(error, StoreError::OutOfMemory { .. });
            if ended.is_ok() || !is_full {
                ended = Err(error);
            }
            if !is_full {
                break;
            }
        }
    }
    ended
}

impl TxState {
    /// Ends a transaction of this member, by *apply*, or by *abort* and *roll_back*. If that fails,
    /// the background tries again. `is_committed` is the decision, if it is known. An undecided
    /// transaction is aborted. A transaction that is joined to a coordinated recovery is over only
    /// when its record does not say so any more, because the next attempt may overwrite the
    /// recovery decision.
    pub(in crate::store) fn finish(
        &self,
        slot: IntentSlot,
        id: IntentId,
        keys: Vec<Vec<u8>>,
        is_committed: Option<bool>,
        is_joined: bool,
    ) {
        let ended = match is_committed {
            Some(true) => apply(&keys, |key| self.resolve(key, id, true).map(drop)),
            _ => self.conclude(id, &keys),
        };
        let keys_len = keys.iter().map(Vec::len).sum();
        self.end(slot, id, keys_len, || keys, ended, is_joined);
    }

    /// *release*, if all keys were applied or rolled back. Otherwise the background tries again.
    /// `keys_len` is the length of all keys together.
    pub(in crate::store) fn end(
        &self,
        mut slot: IntentSlot,
        id: IntentId,
        keys_len: usize,
        keys: impl FnOnce() -> Vec<Vec<u8>>,
        ended: StoreResult<()>,
        is_joined: bool,
    ) {
        match ended {
            Ok(()) => {}
            // No member can find the intent and ask for its recovery decision any more. Once the
            // loss is accepted, its keys are rolled back.
            Err(StoreError::DataLost { .. })
                if is_joined && self.is_intent_lost(id.member, id.slot) =>
            {
                self.transactions.joined.fetch_sub(1, Ordering::SeqCst);
                return self.finish_later(slot, id, keys(), false, false, LATER);
            }
            Err(_) => return self.finish_later(slot, id, keys(), is_joined, false, LATER),
        }
        if is_joined || keys_len > SHORT {
            // An operation that still asks for this intent finds another nonce, as after the next
            // transaction.
            let _step = within(steps::Step::TxRelease);
            let empty = Intent {
                nonce: 0,
                state: IntentState::Aborted,
                attempts: 0,
                epoch: Epoch(0),
                recovery: 0,
                keys: Vec::new(),
            };
            let written = self.write_intent(id, &mut slot.cached, None, &empty.encode());
            if is_joined && written.is_err() {
                return self.finish_later(slot, id, keys(), is_joined, false, LATER);
            }
        }
        self.transactions.joined.fetch_sub(u64::from(is_joined), Ordering::SeqCst);
        lock(&self.transactions.free).push(slot);
    }

    /// Leaves the end of a transaction to the background, which tries it after a pause.
    pub(in crate::store::tx) fn finish_later(
        &self,
        slot: IntentSlot,
        id: IntentId,
        keys: Vec<Vec<u8>>,
        is_joined: bool,
        is_committing: bool,
        pause: Duration,
    ) {
        let due = self.job.now().after(pause);
        let unfinished = Unfinished { slot, id, keys, is_joined, due, is_committing };
        lock(&self.transactions.unfinished).push(unfinished);
        let _ = self.job.ring(self.me());
    }

    /// The background's share: ends unfinished transactions of this member, and the orphaned
    /// intents that it is the heir of. Returns when to run again.
    pub(in crate::store) fn end_transactions(&self) -> Time {
        self.end_unfinished().min(self.end_orphaned_intents())
    }

    /// Tries to end a single unfinished transaction that is due. Returns when the next is due.
    fn end_unfinished(&self) -> Time {
        let now = self.job.now();
        let taken = {
            let mut unfinished = lock(&self.transactions.unfinished);
            unfinished
                .iter()
                .position(|one| one.due <= now)
                .map(|index| unfinished.swap_remove(index))
        };
        match taken {
            // *commit* may still take effect until the intent is aborted or found decided, or is
            // lost, so that no member can learn of a decision.
            Some(Unfinished { slot, id, keys, is_joined, is_committing: true, .. }) => {
                let is_decided = match self.decision(id) {
                    Ok(_) => true,
                    Err(StoreError::DataLost { .. }) => self.is_intent_lost(id.member, id.slot),
                    Err(_) => false,
                };
                if is_decided {
                    self.transactions.committing.fetch_sub(1, Ordering::SeqCst);
                }
                self.finish_later(slot, id, keys, is_joined, !is_decided, LATER);
            }
            Some(Unfinished { slot, id, keys, is_joined, .. }) => {
                self.finish(slot, id, keys, None, is_joined)
            }
            None => {}
        }
        lock(&self.transactions.unfinished).iter().map(|one| one.due).min().unwrap_or(Time::NEVER)
    }

    /// Whether this member has ended the orphaned intents that it is the heir of under this view,
    /// and its own intents that were joined to a coordinated recovery.
    pub(in crate::store) fn are_orphaned_intents_ended(&self, view: &View) -> bool {
        let orphaned_intents = lock(&self.transactions.orphaned_intents);
        let is_ended = orphaned_intents.epoch == Some(view.epoch)
            && orphaned_intents.left.is_empty()
            && orphaned_intents.again.is_empty()
            && !orphaned_intents.is_busy;
        is_ended && self.transactions.joined.load(Ordering::SeqCst) == 0
    }

    /// Tries to end a single orphaned intent. Returns when to run again.
    fn end_orphaned_intents(&self) -> Time {
        let (view, now) = (self.current_view(), self.job.now());
        let next = {
            let mut orphaned_intents = lock(&self.transactions.orphaned_intents);
            if orphaned_intents.epoch != Some(view.epoch) {
                orphaned_intents.epoch = Some(view.epoch);
                let without_heir = view.dead.iter().filter(|&dead| {
                    heir(dead, &view) == self.me() && !orphaned_intents.done.contains(dead)
                });
                let without_heir: Vec<MemberId> = without_heir.collect();
                for dead in without_heir {
                    orphaned_intents.done.insert(dead);
                    orphaned_intents.left.extend((0..SLOTS).map(|slot| (dead, slot)));
                }
            }
            if let Some(due) = orphaned_intents.not_before.filter(|&due| now < due) {
                return if orphaned_intents.is_over() { Time::NEVER } else { due };
            }
            let next = orphaned_intents.left.pop();
            orphaned_intents.is_busy = next.is_some();
            next
        };
        let Some((member, slot)) = next else {
            return self.roll_back_later().min(self.visit_again());
        };
        // The view that has the death comes first: a request that is begun later is refused.
        let is_last = std::env::var_os("OLD63").is_some() || !self.job.is_serving_dead();
        let ended = self.end_orphaned_intent(member, slot, is_last);
        let is_lost =
            matches!(ended, Err(StoreError::DataLost { .. })) && self.is_intent_lost(member, slot);
        let now = self.job.now();
        let mut orphaned_intents = lock(&self.transactions.orphaned_intents);
        orphaned_intents.is_busy = false;
        match ended {
            Ok(None) if !is_last => orphaned_intents.again.push((member, slot)),
            Ok(None) | Err(StoreError::Closed) => {}
            Ok(Some(full)) => {
                orphaned_intents.full.push(full);
                orphaned_intents.not_before = Some(now.after(LATER));
            }
            // A lost intent needs no end: once the loss is accepted, each operation that meets a
            // key of it rolls that key back.
            Err(_) if is_lost => {}
            // This includes the loss of the recovery decision that the intent depends on. While the
            // intent is there, an operation may meet it and ask for its decision. The record must
            // not hold the decision of a later recovery by then.
            Err(_) => {
                orphaned_intents.left.insert(0, (member, slot));
                orphaned_intents.not_before = Some(now.after(LATER));
            }
        }
        if orphaned_intents.is_over() { Time::NEVER } else { now }
    }

    /// Has the background visit intents of dead members once more, which it has visited while a
    /// local member executed a request of a dead member: the request may have put an intent since,
    /// or a provisional version. Returns when to run again.
    fn visit_again(&self) -> Time {
        if lock(&self.transactions.orphaned_intents).again.is_empty() {
            return Time::NEVER;
        }
        let now = self.job.now();
        // The engine is never called under a lock.
        if self.job.is_serving_dead() {
            return now.after(LATER);
        }
        let mut orphaned_intents = lock(&self.transactions.orphaned_intents);
        let again = std::mem::take(&mut orphaned_intents.again);
        orphaned_intents.left.extend(again);
        now
    }

    /// *roll_back* again at the keys of an aborted transaction for which there was no room. Returns
    /// when to run again.
    fn roll_back_later(&self) -> Time {
        if lock(&self.transactions.orphaned_intents).full.is_empty() {
            return Time::NEVER;
        }
        // As for the last visit of an intent.
        if self.job.is_serving_dead() {
            return self.job.now().after(LATER);
        }
        let full = lock(&self.transactions.orphaned_intents).full.pop();
        let Some((id, keys)) = full else { return Time::NEVER };
        let ended = self.conclude(id, &keys).and_then(|()| self.delete_intent(id.member, id.slot));
        let now = self.job.now();
        let mut orphaned_intents = lock(&self.transactions.orphaned_intents);
        if !matches!(ended, Ok(()) | Err(StoreError::Closed)) {
            orphaned_intents.full.insert(0, (id, keys));
            orphaned_intents.not_before = Some(now.after(LATER));
        }
        if orphaned_intents.full.is_empty() { Time::NEVER } else { now.after(LATER) }
    }

    /// *release* for an intent of a dead member: ends the transaction, and deletes the record if
    /// this is the last visit. Otherwise a request of the dead member may still lock a key, and the
    /// record says which. If a replica has no room for old values, returns the transaction with its
    /// keys: it is aborted, and nothing has to wait for room.
    fn end_orphaned_intent(
        &self,
        member: MemberId,
        slot: u32,
        is_last: bool,
    ) -> StoreResult<Option<(IntentId, Vec<Vec<u8>>)>> {
        let _step = within(steps::Step::TxRelease);
        let key = intent_key(member, slot);
        let found = self.run(|op| self.look_in(op, Reader::Any, &self.any_key_ref(&key), true))?;
        let Some(value) = found.value else { return Ok(None) };
        if let Some(intent) = Intent::decode(value.bytes()) {
            let id = IntentId { member, slot, nonce: intent.nonce };
            match self.conclude(id, &intent.keys) {
                Err(StoreError::OutOfMemory { .. })
                    if self.run(|op| op.read_intent(&id))?.state == Some(IntentState::Aborted) =>
                {
                    return Ok(Some((id, intent.keys)));
                }
                ended => ended?,
            }
        }
        if is_last {
            self.delete_intent(member, slot)?;
        }
        Ok(None)
    }

    /// Deletes the intent record of a dead member, when no key needs it any more.
    fn delete_intent(&self, member: MemberId, slot: u32) -> StoreResult<()> {
        // Another heir may delete the record, too. A dead member writes no new intent there.
        self.write(&intent_key(member, slot), false, |current, _| {
            Ok(if current.is_some() { Change::Delete } else { Change::Nothing })
        })?;
        Ok(())
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::LATER;
    use crate::engine::sim::{self, Link, Options as SimOptions};
    use crate::engine::{Fault, MemberId};
    use crate::job::Job;
    use crate::store::placement::{Placement, hash_key, mix};
    use crate::store::segment::intent::intent_key;
    use crate::store::testing::nap;
    use crate::store::{Options, Store};
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    /// How many transactions the member that dies is about to commit.
    const COMMITTERS: u32 = 4;

    /// A committer of another node dies, and a replica is stopped at that moment, perhaps while it
    /// executes a request of the committer: the put of an intent, or of a provisional version. The
    /// heir, a member of the replica's node, looks for intents meanwhile. When the replica has gone
    /// on, no intent is left, and no key is locked.
    #[test]
    fn the_heir_ends_an_intent_that_appears_late() {
        let [late, committed] = [(); 2].map(|()| Rc::new(Cell::new(0)));
        let dies = MemberId(2);
        let score = |member: &MemberId| mix(u64::from(dies.0) << 32 | u64::from(member.0));
        let heir = [0, 1].map(MemberId).into_iter().max_by_key(score).expect("two");
        let stopped = MemberId(1 - heir.0);
        // The intents have their only replica at the member that is stopped.
        let is_right = |partitions: &usize| {
            let placement = Placement::new(3, 0, 1, *partitions, vec![String::new(); 3]);
            let replica = |slot| {
                let hash = hash_key(&intent_key(dies, slot));
                placement.preference(placement.partition(hash))[0]
            };
            (0..COMMITTERS).all(|slot| replica(slot) == stopped)
        };
        let partitions = (8..1000).find(is_right).expect("some number");
        for seed in 0..400 {
            let (late, committed) = (late.clone(), committed.clone());
            let [stage, ready] = [(); 2].map(|()| Rc::new(Cell::new(0)));
            let mut options = SimOptions::new(3, seed).link(Link::Network);
            options.nodes = vec![0, 0, 1];
            (options.steps_max, options.time_limit) = (20_000_000, Duration::from_secs(1));
            sim::run(&options, move |job: Job| {
                let options = Options::new().replicas(1).partitions(partitions).expected_keys(64);
                let store = Store::open(&job, options).expect("open");
                let keys_at = |replica: MemberId| {
                    let names = (0..2000).map(|number| format!("key/{number}"));
                    let names = names.filter(|name| store.replicas_of(name) == [replica]);
                    names.take(COMMITTERS as usize).collect::<Vec<String>>()
                };
                let keys: Vec<(String, String)> =
                    keys_at(heir).into_iter().zip(keys_at(stopped)).collect();
                ready.set(ready.get() + 1);
                nap(&job, "the others", || ready.get() == 3);
                if job.me() == dies {
                    for (first, second) in keys {
                        let store = store.clone();
                        let commit = move || {
                            let _ = store.transaction(|tx| {
                                tx.put(first.as_bytes(), b"value")?;
                                tx.put(second.as_bytes(), b"value")
                            });
                        };
                        job.spawn("commits", Box::new(commit)).expect("an activity");
                    }
                    job.sleep(Duration::from_nanos(std::env::var("FROM").map_or(100_000, |it| it.parse().unwrap()) + seed * 7919 % 100_000));
                    job.inject(Fault::Stop(stopped)).expect("a fault");
                    job.inject(Fault::Kill(dies)).expect("a fault");
                } else if job.me() == heir {
                    nap(&job, "the death", || !job.view().is_living(dies));
                    job.sleep(LATER * 3);
                    late.set(late.get() + u32::from(job.is_serving_dead()));
                    job.inject(Fault::Resume(stopped)).expect("a fault");
                    job.sleep(LATER * 5);
                    let state = &store.state;
                    for slot in 0..COMMITTERS {
                        let intent = intent_key(dies, slot);
                        let is_there = state.run(|op| {
                            let key = state.any_key_ref(&intent);
                            let config = op.config(key.partition)?;
                            Ok(op.find(config, config.primary, &key)?.is_some())
                        });
                        assert_eq!(is_there, Ok(false), "seed {seed}: an intent is left");
                    }
                    for (first, second) in &keys {
                        let keys = [first, second];
                        let is_locked = keys.map(|key| state.is_locked(key.as_bytes()));
                        assert_eq!(
                            is_locked,
                            [Ok(false), Ok(false)],
                            "seed {seed}: a lock is left"
                        );
                        let is_written = keys.map(|key| store.exists(key).expect("read"));
                        assert_eq!(is_written[0], is_written[1], "seed {seed}");
                        committed.set(committed.get() + u32::from(is_written[0]));
                    }
                    stage.set(1);
                }
                nap(&job, "the end", || stage.get() == 1 && job.me() != dies);
                let _ = store.close();
                let _ = job.leave();
            })
            .expect_ok();
        }
        let counts = [late.get(), committed.get()];
        assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
    }
}

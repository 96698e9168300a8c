//! Transactions that their committer could not bring to an end: its own and those of the dead.

use crate::engine::{MemberId, Time, View};
use crate::store::error::{StoreError, StoreResult};
use crate::store::mutant::mutant;
use crate::store::placement::heir::heir;
use crate::store::record::write::Change;
use crate::store::segment::intent::{Intent, IntentId, IntentState, intent_key};
use crate::store::steps::{self, within};
use crate::store::tx::state::{IntentSlot, SLOTS, TxState, Unfinished};
use crate::sync::lock;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// When to look again at what could not be brought to its end.
pub(in crate::store) const LATER: Duration = Duration::from_millis(100);

/// A finished intent that is longer than this is replaced by a short one.
const SHORT: usize = 1024;

impl TxState {
    /// Brings an own transaction to its end, X5 or Y1 and Y2, or leaves that to the background.
    /// `is_committed` is how it was decided, if that is known; one that was not decided is aborted.
    /// One that is joined to a recovery is over only when its record says no more that it is: the
    /// recovery_decision may be overwritten by the next attempt.
    pub(in crate::store) fn finish(
        &self,
        slot: IntentSlot,
        id: IntentId,
        keys: Vec<Vec<u8>>,
        is_committed: Option<bool>,
        is_joined: bool,
    ) {
        let ended = match is_committed {
            Some(true) => self.apply(id, &keys).map(drop),
            _ => self.conclude(id, &keys),
        };
        self.end(slot, id, keys, ended, is_joined);
    }

    /// X5 for a transaction that is committed; whether it was left to do at every key. If not,
    /// somebody has done it, or, if the intent was lost and given up, the contrary.
    pub(in crate::store) fn apply(&self, id: IntentId, keys: &[Vec<u8>]) -> StoreResult<bool> {
        if mutant("tx-drop-intent") {
            return Ok(true);
        }
        keys.iter().try_fold(true, |is_whole, key| Ok(self.resolve(key, id, true)? && is_whole))
    }

    /// X6 for a transaction whose keys were brought to their end, if they were.
    pub(in crate::store) fn end(
        &self,
        mut slot: IntentSlot,
        id: IntentId,
        keys: Vec<Vec<u8>>,
        ended: StoreResult<()>,
        is_joined: bool,
    ) {
        match ended {
            Ok(()) => {}
            // Nobody finds it and asks for its recovery_decision any more. Once the loss is
            // accepted, its keys are rolled back.
            Err(StoreError::DataLost { .. })
                if is_joined && self.is_intent_lost(id.member, id.slot) =>
            {
                self.transactions.joined.fetch_sub(1, Ordering::SeqCst);
                return self.finish_later(slot, id, keys, false, false, LATER);
            }
            Err(_) => return self.finish_later(slot, id, keys, is_joined, false, LATER),
        }
        if is_joined || keys.iter().map(Vec::len).sum::<usize>() > SHORT {
            // Whoever still asks for it finds it gone, as after the next transaction.
            let _step = within(steps::Step::TxRelease);
            let empty = Intent {
                nonce: 0,
                state: IntentState::Aborted,
                rank: 0,
                recovery: 0,
                keys: Vec::new(),
            };
            let written = self.write_intent(id, &mut slot.cached, None, &empty);
            if is_joined && written.is_err() {
                return self.finish_later(slot, id, keys, is_joined, false, LATER);
            }
        }
        self.transactions.joined.fetch_sub(u64::from(is_joined), Ordering::SeqCst);
        lock(&self.transactions.free).push(slot);
    }

    /// Leaves that to the background.
    pub(in crate::store) fn finish_later(
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

    /// The background's part: own transactions that could not be brought to their end, and those of
    /// the dead whose heir this member is; when to run again.
    pub(in crate::store) fn end_transactions(&self) -> Time {
        self.end_unfinished().min(self.end_orphaned_intents())
    }

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
            // It may be decided until it is aborted, or found to be decided, or lost with all who
            // could be told of it.
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

    /// Whether the transactions of those who are dead in this view, as far as they are this
    /// member's to end, are ended, and its own that were joined to a recovery.
    pub(in crate::store) fn are_orphaned_intents_ended(&self, view: &View) -> bool {
        let orphaned_intents = lock(&self.transactions.orphaned_intents);
        let is_ended = orphaned_intents.epoch == Some(view.epoch)
            && orphaned_intents.left.is_empty()
            && !orphaned_intents.is_busy;
        is_ended && self.transactions.joined.load(Ordering::SeqCst) == 0
    }

    fn end_orphaned_intents(&self) -> Time {
        let (view, now) = (self.current_view(), self.job.now());
        let next = {
            let mut orphaned_intents = lock(&self.transactions.orphaned_intents);
            if orphaned_intents.epoch != Some(view.epoch) {
                orphaned_intents.epoch = Some(view.epoch);
                let heirless = view.dead.iter().filter(|&dead| {
                    heir(dead, &view) == self.me() && !orphaned_intents.done.contains(dead)
                });
                let heirless: Vec<MemberId> = heirless.collect();
                for dead in heirless {
                    orphaned_intents.done.insert(dead);
                    orphaned_intents.left.extend((0..SLOTS).map(|slot| (dead, slot)));
                }
            }
            if let Some(due) = orphaned_intents.not_before.filter(|&due| now < due) {
                return if orphaned_intents.left.is_empty() { Time::NEVER } else { due };
            }
            let next = orphaned_intents.left.pop();
            orphaned_intents.is_busy = next.is_some();
            next
        };
        let Some((member, slot)) = next else { return Time::NEVER };
        let ended = self.end_orphaned_intent(member, slot);
        let is_lost =
            matches!(ended, Err(StoreError::DataLost { .. })) && self.is_intent_lost(member, slot);
        let now = self.job.now();
        let mut orphaned_intents = lock(&self.transactions.orphaned_intents);
        orphaned_intents.is_busy = false;
        match ended {
            // Lost: what it had locked is rolled back by whoever finds it, once the loss is
            // accepted.
            Ok(()) | Err(StoreError::Closed) => {}
            Err(_) if is_lost => {}
            // Also if the recovery_decision is lost that it depends on: while the intent is there,
            // somebody may come to ask for it, and that must not be when there is a
            // recovery_decision about a later recovery.
            Err(_) => {
                orphaned_intents.left.insert(0, (member, slot));
                orphaned_intents.not_before = Some(now.after(LATER));
            }
        }
        if orphaned_intents.left.is_empty() { Time::NEVER } else { now }
    }

    /// X6 for the intent of a dead member: brings it to its end, and removes it.
    pub(in crate::store) fn end_orphaned_intent(
        &self,
        member: MemberId,
        slot: u32,
    ) -> StoreResult<()> {
        let _step = within(steps::Step::TxRelease);
        let key = intent_key(member, slot);
        let found = self.run(|op| self.look_in(op, &self.any_key_ref(&key), true))?;
        let Some(value) = found.value else { return Ok(()) };
        if let Some(intent) = Intent::decode(value.bytes()) {
            self.conclude(IntentId { member, slot, nonce: intent.nonce }, &intent.keys)?;
        }
        // Others may do the same; the dead write no other there.
        self.write(&key, false, |current, _| {
            Ok(if current.is_some() { Change::Delete } else { Change::Nothing })
        })?;
        Ok(())
    }
}

//! What a member does when the store is revoked, in global mode. Its recovery procedure does real
//! work: the heir of a dead member adopts and rewrites the keys of the dead member, moves money
//! between accounts, or takes a task out of the queue of the dead member. The checkers judge this
//! work as a transaction.
//!
//! Here is checked that each recovery happens at all members or at none, and once for each death.
//! Each member counts the recoveries in a key of its own. Each procedure must find the counts of
//! all living members equal, and after a recovery all members must have counted it. The heir counts
//! each death, and must be the first to do so.

use super::transactions::{Recorded, first_tasks, named, special, words};
use super::{Worker, version_free};
use anyhow::ensure;
use outlast::MemberId;
use outlast::store::{Death, StoreError, Transaction};
use outlast_check::history::{self, Access, CallKind, Key, Outcome};
use outlast_check::workload::Random;

/// The thread number of a member's recoveries in the record.
pub(crate) const RECOVERY_THREAD: u32 = 62;

/// What a worker remembers of its recoveries.
#[derive(Default)]
pub(super) struct Recoveries {
    /// How many recoveries were tried.
    tries: u64,
    /// The accesses of an attempt that has not ended: as announced, and with results if it
    /// succeeds.
    attempt: Option<(Vec<Access>, Vec<Access>)>,
    /// The count of each member of `group` if the attempt succeeds.
    count: u64,
    group: Vec<MemberId>,
}

fn counter(member: MemberId) -> String {
    format!("recoveries/{}", member.0)
}

fn adoption(member: MemberId) -> String {
    format!("adoptions/{}", member.0)
}

fn number(bytes: Option<&[u8]>) -> u64 {
    bytes.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Whether an error means no more than that the recovery must be tried again.
fn is_passing(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(
            StoreError::Timeout { .. }
                | StoreError::Closed
                | StoreError::RecoveryFailed { .. }
                | StoreError::Revoked
                | StoreError::DataLost { .. }
        )
    )
}

impl Worker {
    /// Tries a recovery together with the other members. `threads` of each member have keys of
    /// their own.
    pub(crate) fn recover(&mut self, threads: u32) -> anyhow::Result<()> {
        let store = self.store.clone();
        self.recoveries.tries += 1;
        // As a closure, or by begin and end, alternately.
        let result = if self.recoveries.tries.is_multiple_of(2) {
            store.recover(|tx, deaths| self.procedure(tx, deaths, threads))
        } else {
            match store.recover_begin() {
                Err(error) => Err(error.into()),
                Ok(mut recovery) => {
                    let deaths = recovery.deaths().to_vec();
                    match self.procedure(recovery.tx(), &deaths, threads) {
                        Ok(()) => recovery.end().map_err(anyhow::Error::from),
                        Err(error) => recovery
                            .fail("returned an error")
                            .map_err(anyhow::Error::from)
                            .and(Err(error)),
                    }
                }
            }
        };
        let outcome = match &result {
            Ok(()) => Outcome::Ok,
            Err(error) => match error.downcast_ref() {
                Some(StoreError::RecoveryFailed { .. } | StoreError::Revoked) => Outcome::Failed,
                _ => Outcome::Unknown,
            },
        };
        self.end_attempt(outcome)?;
        match result {
            Ok(()) => self.check_together(),
            Err(error) if is_passing(&error) => {
                let is_lost = matches!(error.downcast_ref(), Some(StoreError::DataLost { .. }));
                self.data_lost += u64::from(is_lost);
                Ok(())
            }
            Err(error) => Err(error.context(format!("recovering at {}", self.job.me()))),
        }
    }

    fn end_attempt(&mut self, outcome: Outcome) -> anyhow::Result<()> {
        match (self.recoveries.attempt.take(), outcome) {
            (None, _) => Ok(()),
            (Some((_, accesses)), Outcome::Ok) => self.returned(outcome, &accesses),
            (Some((announced, _)), _) => self.returned(outcome, &announced),
        }
    }

    /// The recovery procedure: all changes of this member.
    fn procedure(
        &mut self,
        tx: &mut Transaction,
        deaths: &[Death],
        threads: u32,
    ) -> anyhow::Result<()> {
        // An earlier attempt, if any, did not happen.
        self.end_attempt(Outcome::Failed)?;
        let me = self.job.me();
        let group: Vec<MemberId> = self.job.view().living().collect();
        let mut counts = Vec::new();
        for &member in &group {
            counts.push(number(tx.get(counter(member).as_bytes())?.as_deref()));
        }
        ensure!(
            counts.iter().all(|count| *count == counts[0]),
            "a recovery happened at some members only: {group:?} have counted {counts:?}"
        );
        self.recoveries.count = counts[0] + 1;
        self.recoveries.group = group;
        tx.put(counter(me).as_bytes(), &self.recoveries.count.to_le_bytes())?;
        let mut recorded = Recorded::new(self.seed);
        for death in deaths.iter().filter(|death| death.heir() == me) {
            let before = number(tx.get(adoption(death.member).as_bytes())?.as_deref());
            ensure!(before == 0, "the death of {} is recovered from twice", death.member);
            tx.put(adoption(death.member).as_bytes(), &1u64.to_le_bytes())?;
            self.adopt(tx, &mut recorded, death.member, threads)?;
        }
        if let Some(first) = deaths.first().filter(|death| death.heir() == me) {
            self.move_money(tx, &mut recorded)?;
            self.move_task(tx, &mut recorded, first.member)?;
        }
        if !recorded.accesses.is_empty() {
            let announced: Vec<Access> = recorded.accesses.iter().map(version_free).collect();
            self.invoke(CallKind::Transaction, &announced)?;
            self.recoveries.attempt = Some((announced, recorded.accesses));
        }
        Ok(())
    }

    fn next_sequence(&mut self) -> u64 {
        self.program.next().expect("a program has no end").sequence
    }

    /// Adopts the keys that only the dead member has written.
    fn adopt(
        &mut self,
        tx: &mut Transaction,
        recorded: &mut Recorded,
        dead: MemberId,
        threads: u32,
    ) -> anyhow::Result<()> {
        let per_thread = self.program.options().private_keys;
        for (thread, key) in (0..threads).flat_map(|t| (0..per_thread).map(move |key| (t, key))) {
            let key = Key::from(format!("own/{}/{thread}/{key}", dead.0).into_bytes());
            let sequence = self.next_sequence();
            let (bytes, value) = self.new_value(&key, sequence, 24);
            recorded.put(tx, &key, &bytes, value)?;
            tx.adopt(key.bytes())?;
        }
        Ok(())
    }

    fn move_money(&mut self, tx: &mut Transaction, recorded: &mut Recorded) -> anyhow::Result<()> {
        let options = self.program.options();
        let accounts = if options.mix.transfer > 0 { u64::from(options.accounts) } else { 0 };
        if accounts < 2 {
            return Ok(());
        }
        let sequence = self.next_sequence();
        let from = Random::new(sequence).below(accounts);
        for (account, change) in [(from, 1u64.wrapping_neg()), ((from + 1) % accounts, 1)] {
            let key = named("account", account);
            let found = recorded.read(tx, &key)?;
            let before =
                words(found.as_ref()).and_then(|words| words.first().copied()).unwrap_or(0);
            let bytes = special(sequence, &[before.wrapping_add(change)]);
            recorded.put(tx, &key, &bytes, history::Value::new(sequence))?;
        }
        Ok(())
    }

    /// Moves a task from the queue of the dead member to the own queue.
    fn move_task(
        &mut self,
        tx: &mut Transaction,
        recorded: &mut Recorded,
        dead: MemberId,
    ) -> anyhow::Result<()> {
        let options = self.program.options();
        let queues = if options.mix.steal > 0 { options.queues } else { 0 };
        if queues == 0 || dead.0 % queues == self.job.me().0 % queues {
            return Ok(());
        }
        let (victim, thief) = (dead.0 % queues, self.job.me().0 % queues);
        let sequence = self.next_sequence();
        let value = history::Value::new(sequence);
        let keys = [victim, thief].map(|queue| named("queue", u64::from(queue)));
        let mut lists = Vec::new();
        for (key, queue) in keys.iter().zip([victim, thief]) {
            let found = recorded.read(tx, key)?;
            lists.push(words(found.as_ref()).unwrap_or_else(|| first_tasks(queue)));
        }
        let Some(task) = lists[0].pop() else { return Ok(()) };
        lists[1].push(task);
        for (key, list) in keys.iter().zip(&lists) {
            recorded.put(tx, key, &special(sequence, list), value)?;
        }
        let task = named("task", task);
        recorded.read(tx, &task)?;
        recorded.put(tx, &task, &special(sequence, &[u64::from(thief)]), value)?;
        Ok(())
    }

    /// Checks that all members have counted the recovery.
    fn check_together(&mut self) -> anyhow::Result<()> {
        for &member in &self.recoveries.group {
            let Ok(found) = self.store.get(counter(member).as_bytes()) else { continue };
            let count = number(found.as_ref().map(|value| value.bytes()));
            ensure!(
                count >= self.recoveries.count,
                "after recovery {} the count of {member} is {count}",
                self.recoveries.count
            );
        }
        Ok(())
    }

    /// Checks that each death has been recovered from once, as far as the store answers. The
    /// members in `before` were dead when the store was opened.
    pub(crate) fn check_adoptions(&mut self, before: &[MemberId]) -> anyhow::Result<()> {
        let view = self.job.view();
        if self.store.is_revoked() {
            return Ok(());
        }
        for dead in view.dead.iter().filter(|&dead| !view.left.contains(dead)) {
            let Ok(found) = self.store.get(adoption(dead).as_bytes()) else { continue };
            let count = number(found.as_ref().map(|value| value.bytes()));
            let is_right = count == 1 || count == 0 && before.contains(&dead);
            ensure!(is_right || self.store.is_revoked(), "{dead} was recovered from {count} times");
        }
        Ok(())
    }
}

//! What a member of a run in global mode does when the store is revoked. Its procedure does real work: the heir of a dead
//! member adopts the dead's own keys and writes them anew, moves money between accounts, or takes a task out of the dead's
//! queue, which the checkers judge like all other transactions.
//!
//! Whether all of a recovery happened or nothing of it, and once, is checked here. Each member counts the recoveries in a
//! key of its own: each procedure finds that all living members have counted the same, and once a recovery is over all of
//! them have counted it. The heir counts each death, which must be the first time.

use super::transactions::{Recorded, first_tasks, named, special, words};
use super::{Worker, version_free};
use anyhow::ensure;
use outlast::store::{Death, StoreError, Transaction};
use outlast::{Engine, MemberId};
use outlast_check::history::{self, Access, CallKind, Key, Outcome};
use outlast_check::workload::Random;

/// The thread under which a member's recoveries are recorded.
pub(crate) const RECOVERY_THREAD: u32 = 62;

/// What a worker knows about recoveries.
#[derive(Default)]
pub(super) struct Recoveries {
    /// How many times it was tried.
    tries: u64,
    /// What is recorded of an attempt that has no end yet: as it was announced, and as it is if it happens.
    attempt: Option<(Vec<Access>, Vec<Access>)>,
    /// What each of these members has counted if the attempt happens.
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

/// Whether an error says no more than that a recovery has to be tried again.
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
    /// Recovers with the others, once; each member has `threads` with keys of their own.
    pub(crate) fn recover(&mut self, threads: u32) -> anyhow::Result<()> {
        let store = self.store.clone();
        self.recoveries.tries += 1;
        // As a closure, or by begin and end, in turn.
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

    /// All that this member changes.
    fn procedure(
        &mut self,
        tx: &mut Transaction,
        deaths: &[Death],
        threads: u32,
    ) -> anyhow::Result<()> {
        // If there was one before, it did not happen.
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

    /// Takes over what only the dead has written.
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

    /// Takes a task out of the queue of the dead into the own one.
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

    /// What a recovery changed is there, of all members.
    fn check_together(&mut self) -> anyhow::Result<()> {
        for &member in &self.recoveries.group {
            let Ok(found) = self.store.get(counter(member).as_bytes()) else { continue };
            let count = number(found.as_ref().map(|value| value.bytes()));
            ensure!(
                count >= self.recoveries.count,
                "after recovery {} {member} has counted {count}",
                self.recoveries.count
            );
        }
        Ok(())
    }

    /// Each death has been recovered from, once, as far as can be told now; `before` are those who were dead when the store
    /// was opened.
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

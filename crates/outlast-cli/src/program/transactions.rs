//! The transactions of a random program: several steps at once, transfers between accounts, and
//! steals of tasks.
//!
//! An absent account holds 0, so the sum of all accounts is always 0. An absent queue holds its
//! first tasks, and an absent task is in its first queue. A steal changes the victim's queue, the
//! thief's queue, and the task. Every value begins with the sequence of the call that wrote it, so
//! that the checkers can tell values apart.

use super::{SHORT, Worker, identity as value_identity, read_access, version};
use anyhow::ensure;
use outlast::store::{StoreError, StoreResult, Transaction, Value};
use outlast_check::history::{self, Access, CallKind, Key, Outcome};
use outlast_check::workload::{QUEUE_TASKS, TransactionStep};

/// Whether the key is an account, a queue or a task.
pub(super) fn is_special(key: &Key) -> bool {
    [&b"account/"[..], b"queue/", b"task/"].iter().any(|prefix| key.bytes().starts_with(prefix))
}

/// The identity, in the history, of the bytes of an account, a queue or a task.
pub(super) fn identity(bytes: &[u8]) -> history::Value {
    let sequence = bytes.first_chunk().map(|word| u64::from_le_bytes(*word));
    sequence
        .filter(|_| bytes.len().is_multiple_of(8))
        .map_or(history::Value::torn(0), history::Value::new)
}

/// The words after the sequence; `None` if the key is absent.
pub(super) fn words(found: Option<&Value>) -> Option<Vec<u64>> {
    let bytes = found?.bytes();
    Some(
        bytes
            .chunks_exact(8)
            .skip(1)
            .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
            .collect(),
    )
}

pub(super) fn special(sequence: u64, words: &[u64]) -> Vec<u8> {
    std::iter::once(&sequence).chain(words).flat_map(|word| word.to_le_bytes()).collect()
}

pub(super) fn named(kind: &str, number: u64) -> Key {
    Key::from(format!("{kind}/{number}").into_bytes())
}

pub(super) fn first_tasks(queue: u32) -> Vec<u64> {
    (0..QUEUE_TASKS).map(|task| u64::from(queue * QUEUE_TASKS + task)).collect()
}

/// How many times an aborted transaction is retried.
const RETRIES: u32 = 30;

/// The accesses of a transaction, for the record.
pub(super) struct Recorded {
    seed: u64,
    pub(super) accesses: Vec<Access>,
}

impl Recorded {
    pub(super) fn new(seed: u64) -> Recorded {
        Recorded { seed, accesses: Vec::new() }
    }

    pub(super) fn read(&mut self, tx: &mut Transaction, key: &Key) -> StoreResult<Option<Value>> {
        let found = tx.get_before(key.bytes())?;
        let seen = found
            .as_ref()
            .map(|value| (value.version(), value_identity(self.seed, key, value.bytes())));
        self.accesses.push(read_access(key, seen));
        Ok(found)
    }

    pub(super) fn put(
        &mut self,
        tx: &mut Transaction,
        key: &Key,
        bytes: &[u8],
        value: history::Value,
    ) -> StoreResult<()> {
        tx.put(key.bytes(), bytes)?;
        self.accesses.push(Access::write(key, value));
        Ok(())
    }

    fn delete(&mut self, tx: &mut Transaction, key: &Key) -> StoreResult<()> {
        let was_read = self.accesses.iter().any(|access| access.key == *key);
        if !was_read {
            self.read(tx, key)?;
        }
        // Deleting an absent key is a read.
        if tx.delete(key.bytes())? {
            self.accesses.push(Access::delete(key));
        }
        Ok(())
    }
}

impl Worker {
    /// Runs a transaction and records it: as a closure, or by begin and commit, alternately.
    fn run_transaction<T>(
        &mut self,
        sequence: u64,
        announced: Vec<Access>,
        mut body: impl FnMut(&mut Transaction, &mut Recorded) -> StoreResult<T>,
    ) -> anyhow::Result<Option<T>> {
        self.invoke(CallKind::Transaction, &announced)?;
        let store = self.store.clone();
        let mut recorded = Recorded::new(self.seed);
        let mut run = |tx: &mut Transaction, recorded: &mut Recorded| {
            recorded.accesses.clear();
            body(tx, recorded)
        };
        let result = if sequence.is_multiple_of(2) {
            store.transaction(|tx| run(tx, &mut recorded))
        } else {
            let mut tx = store.begin();
            let mut tries = 0;
            loop {
                let result =
                    run(&mut tx, &mut recorded).and_then(|value| tx.commit().map(|()| value));
                match result {
                    Err(StoreError::Aborted) if tries < RETRIES => tries += 1,
                    result => {
                        let made = tx.versions();
                        for access in recorded.accesses.iter_mut().filter(|access| access.changes())
                        {
                            let made = made.iter().find(|(key, _)| key == access.key.bytes());
                            access.version = made.map(|(_, made)| version(*made));
                        }
                        break result;
                    }
                }
                if let Err(error) = tx.retry() {
                    break Err(error);
                }
            }
        };
        match result {
            Ok(value) => {
                for access in &recorded.accesses {
                    self.seen.remove(&access.key);
                }
                self.returned(Outcome::Ok, &recorded.accesses)?;
                Ok(Some(value))
            }
            Err(StoreError::Aborted | StoreError::Contended { .. }) => {
                self.returned(Outcome::Failed, &announced)?;
                Ok(None)
            }
            Err(error) => {
                self.failed(error, &announced)?;
                Ok(None)
            }
        }
    }

    pub(super) fn transaction(
        &mut self,
        steps: &[TransactionStep],
        sequence: u64,
    ) -> anyhow::Result<()> {
        let mut announced = Vec::new();
        let mut values = Vec::new();
        for step in steps {
            let (access, value) = match step {
                TransactionStep::Get(key) => (Access::ask(key), None),
                TransactionStep::Put(key, length) => {
                    let (bytes, value) = self.new_value(key, sequence, *length);
                    (Access::write(key, value), Some((bytes, value)))
                }
                TransactionStep::Delete(key) => (Access::delete(key), None),
            };
            announced.push(access);
            values.push(value);
        }
        debug_assert!(
            values.iter().flatten().all(|(bytes, value)| bytes.len() >= 8 || *value == SHORT)
        );
        self.run_transaction(sequence, announced, |tx, recorded| {
            for (step, value) in steps.iter().zip(&values) {
                match (step, value) {
                    (TransactionStep::Put(key, _), Some((bytes, value))) => {
                        recorded.put(tx, key, bytes, *value)?
                    }
                    (TransactionStep::Delete(key), _) => recorded.delete(tx, key)?,
                    (TransactionStep::Get(key) | TransactionStep::Put(key, _), _) => {
                        drop(recorded.read(tx, key)?)
                    }
                }
            }
            Ok(())
        })
        .map(drop)
    }

    pub(super) fn transfer(
        &mut self,
        from: &Key,
        to: &Key,
        amount: i64,
        sequence: u64,
    ) -> anyhow::Result<()> {
        let value = history::Value::new(sequence);
        let announced =
            [from, to].into_iter().flat_map(|key| [Access::ask(key), Access::write(key, value)]);
        self.run_transaction(sequence, announced.collect(), |tx, recorded| {
            for (key, change) in [(from, -amount), (to, amount)] {
                let found = recorded.read(tx, key)?;
                let before =
                    words(found.as_ref()).and_then(|words| words.first().copied()).unwrap_or(0);
                let after = before.wrapping_add(change as u64);
                recorded.put(tx, key, &special(sequence, &[after]), value)?;
            }
            Ok(())
        })
        .map(drop)
    }

    pub(super) fn steal(&mut self, victim: u32, thief: u32, sequence: u64) -> anyhow::Result<()> {
        let value = history::Value::new(sequence);
        let queues = [victim, thief].map(|queue| named("queue", u64::from(queue)));
        // The task is looked up before the transaction, so that the record has it even if the call
        // never ends.
        let Ok(found) = self.store.get(queues[0].bytes()) else { return Ok(()) };
        let Some(&task) = words(found.as_ref()).unwrap_or_else(|| first_tasks(victim)).last()
        else {
            return Ok(());
        };
        let task_key = named("task", task);
        let keys = queues.iter().chain([&task_key]);
        let announced = keys.flat_map(|key| [Access::ask(key), Access::write(key, value)]);
        let wrong = self.run_transaction(sequence, announced.collect(), |tx, recorded| {
            let mut lists = Vec::new();
            for (key, queue) in queues.iter().zip([victim, thief]) {
                let found = recorded.read(tx, key)?;
                lists.push(words(found.as_ref()).unwrap_or_else(|| first_tasks(queue)));
            }
            if lists[0].pop() != Some(task) {
                return Ok(None);
            }
            let found = recorded.read(tx, &task_key)?;
            let holder = words(found.as_ref())
                .and_then(|words| words.first().copied())
                .unwrap_or(task / u64::from(QUEUE_TASKS));
            lists[1].push(task);
            for (key, list) in queues.iter().zip(&lists) {
                recorded.put(tx, key, &special(sequence, list), value)?;
            }
            recorded.put(tx, &task_key, &special(sequence, &[u64::from(thief)]), value)?;
            Ok((holder != u64::from(victim))
                .then(|| format!("task {task} is in queue {victim} and says {holder}")))
        })?;
        let wrong = wrong.flatten().filter(|_| self.is_whole());
        ensure!(wrong.is_none(), "a committed steal saw a contradiction: {wrong:?}");
        Ok(())
    }

    /// Whether no data can have been lost yet. This is asked after a call: a member that has seen a
    /// write made after a loss knows of the deaths.
    fn is_whole(&self) -> bool {
        self.job.view().dead.len() < self.deaths_survived
    }

    /// Reads all accounts, or all queues and tasks, in a single transaction and checks their rules.
    pub(crate) fn audit(&mut self) -> anyhow::Result<()> {
        let keys = self.program.options().special_keys();
        let announced = keys.iter().map(Access::ask).collect();
        let found = self.run_transaction(self.audits, announced, |tx, recorded| {
            keys.iter().map(|key| recorded.read(tx, key)).collect::<StoreResult<Vec<_>>>()
        })?;
        self.audits += 1;
        let Some(found) = found.filter(|_| self.is_whole()) else { return Ok(()) };
        let mut sum = 0i64;
        let mut holders = std::collections::BTreeMap::new();
        let mut said = std::collections::BTreeMap::new();
        for (key, found) in keys.iter().zip(&found) {
            let text = String::from_utf8_lossy(key.bytes()).into_owned();
            let (kind, number) = text.split_once('/').unwrap_or_default();
            let number: u32 = number.parse().unwrap_or_default();
            let words = words(found.as_ref());
            match kind {
                "account" => sum = sum.wrapping_add(words.map_or(0, |words| words[0] as i64)),
                "queue" => {
                    for task in words.unwrap_or_else(|| first_tasks(number)) {
                        let before = holders.insert(task, u64::from(number));
                        ensure!(before.is_none(), "task {task} is in two queues at one moment");
                    }
                }
                _ => {
                    let first = u64::from(number / QUEUE_TASKS);
                    said.insert(u64::from(number), words.map_or(first, |words| words[0]));
                }
            }
        }
        ensure!(sum == 0, "the sum of all accounts is {sum} at one moment");
        ensure!(
            holders == said,
            "queues and tasks contradict each other at one moment: {holders:?} {said:?}"
        );
        Ok(())
    }
}

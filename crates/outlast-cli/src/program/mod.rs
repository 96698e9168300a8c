//! Random programs on a store, which record their calls for the checkers.
//!
//! An *actor* is a thread of a member. A [`Worker`] makes the calls of an actor's program
//! ([`outlast_check::workload`]) and records each call before and after it. `outlast chaos` runs
//! workers in real processes, `outlast sim` in the simulator. A seed fixes the program: the random
//! draws and their order must not change.
//!
//! | module | content |
//! |---|---|
//! | [`kind`] | what kind of programs a run has |
//! | [`calls`] | calls on a single key |
//! | [`transactions`] | transactions, transfers, steals of tasks, audits |
//! | [`recovery`] | what a member does when the store is revoked |
//! | [`seats`] | programs on seats, whose answer an oracle knows |

use anyhow::Context;
use outlast::Job;
use outlast::store::{KeyHandle, Store, StoreError, Version};
use outlast_check::history::{self, Access, Actor, CallKind, Key, LogWriter, Outcome};
use outlast_check::value::{self, Integrity};
use outlast_check::workload::{self, Action, Program, ProgramCall};
use std::collections::HashMap;
use std::io::Write;
use std::time::Duration;

mod calls;
mod kind;
mod recovery;
mod seats;
mod transactions;

use calls::CallForm;
use recovery::Recoveries;

pub(crate) use kind::ProgramKind;
pub(crate) use recovery::RECOVERY_THREAD;
pub(crate) use seats::SeatProgram;

/// The thread number of a member's final reads in the record.
pub(crate) const FINAL_THREAD: u32 = 63;
/// The most threads of a member that make calls.
pub(crate) const THREADS_MAX: u32 = 8;

/// The identity of all values shorter than a word: they are too short to name their write.
const SHORT: history::Value = history::Value::new(u64::MAX);

/// Where a worker's record goes.
pub(crate) type Target = Box<dyn Write + Send>;

/// The options of the programs of a run.
pub(crate) fn options(
    members: usize,
    shared_keys: u32,
    private_keys: u32,
    programs: ProgramKind,
) -> workload::Options {
    let options = workload::Options {
        mix: programs.mix(),
        shared_keys,
        private_keys,
        members: members as u32,
        ..workload::Options::default()
    };
    match programs {
        // With few keys, the location that a handle caches is often still right.
        ProgramKind::Puts => workload::Options {
            shared_keys: 2,
            private_keys: 1,
            lengths: vec![(8, 4), (64, 8), (1024, 4), (5000, 1), (20_000, 1)],
            ..options
        },
        ProgramKind::Conditional => {
            workload::Options { shared_keys: 2, private_keys: 1, counters: 1, ..options }
        }
        _ => options,
    }
}

/// All keys that the programs use.
pub(crate) fn keys(options: &workload::Options, threads: u32) -> Vec<Key> {
    let shared = (0..options.shared_keys).map(|number| format!("shared/{number}"));
    let counters = (0..options.counters).map(|number| format!("count/{number}"));
    let private = (0..options.members).flat_map(|member| {
        (0..threads).flat_map(move |thread| {
            (0..options.private_keys).map(move |number| format!("own/{member}/{thread}/{number}"))
        })
    });
    let plain = shared.chain(counters).chain(private).map(|key| Key::from(key.into_bytes()));
    plain.chain(options.special_keys()).collect()
}

/// The result of a final read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Read(Option<(history::Version, history::Value)>),
    DataLost,
    /// The call returned neither a value nor `DataLost`.
    Unknown,
}

/// Makes the calls of an actor's program, and records them.
pub(crate) struct Worker {
    store: Store,
    job: Job,
    seed: u64,
    program: Program,
    log: LogWriter<Target>,
    /// The clock that all actors of the run share, in nanoseconds.
    clock: fn(&Job) -> u64,
    /// What this actor saw last of each key.
    seen: HashMap<Key, Option<(Version, history::Value)>>,
    /// The handles of the keys that were used by handle.
    handles: HashMap<Key, KeyHandle>,
    wait_for: Duration,
    /// How many audits were made.
    audits: u64,
    recoveries: Recoveries,
    /// How many calls returned `DataLost`.
    pub(crate) data_lost: u64,
    /// From this number of deaths on data may have been lost, and the loss accepted: the rules of
    /// accounts and queues need not hold.
    pub(crate) deaths_survived: usize,
}

fn version(version: Version) -> history::Version {
    history::Version::new(version.counter, version.writer.0)
}

fn is_counter(key: &Key) -> bool {
    key.bytes().starts_with(b"count/")
}

/// The identity of these bytes in the history.
fn identity(seed: u64, key: &Key, bytes: &[u8]) -> history::Value {
    if is_counter(key) {
        let number = bytes.try_into().map(i64::from_le_bytes);
        return number.map_or(history::Value::torn(0), history::Value::number);
    }
    if transactions::is_special(key) {
        return transactions::identity(bytes);
    }
    match value::verify(seed, key.bytes(), bytes) {
        Integrity::Intact { sequence: Some(sequence) } => history::Value::new(sequence),
        Integrity::Intact { sequence: None } => SHORT,
        Integrity::Torn { .. } | Integrity::Foreign => history::Value::torn(0),
    }
}

/// An access as it is announced before the call, without its result.
fn version_free(access: &Access) -> Access {
    if access.changes() {
        Access { version: None, ..access.clone() }
    } else {
        Access::ask(&access.key)
    }
}

/// The access of a read that found this.
fn read_access(key: &Key, found: Option<(Version, history::Value)>) -> Access {
    match found {
        None => Access::read(key),
        Some((at, value)) => Access::read(key).saw(value).at(version(at)),
    }
}

impl Worker {
    /// The worker of thread `thread` of this member, which records to `target`.
    pub(crate) fn new(
        store: &Store,
        job: &Job,
        options: &workload::Options,
        seed: u64,
        thread: u32,
        clock: fn(&Job) -> u64,
        target: Target,
    ) -> anyhow::Result<Worker> {
        let actor = Actor::new(job.me().0, thread);
        Ok(Worker {
            store: store.clone(),
            job: job.clone(),
            seed,
            program: Program::new(options, seed, actor),
            log: LogWriter::new(target, actor).context("starting the record")?,
            clock,
            seen: HashMap::new(),
            handles: HashMap::new(),
            wait_for: Duration::from_millis(2),
            audits: 0,
            recoveries: Recoveries::default(),
            data_lost: 0,
            deaths_survived: usize::MAX,
        })
    }

    fn invoke(&mut self, kind: CallKind, accesses: &[Access]) -> anyhow::Result<()> {
        let now = (self.clock)(&self.job);
        self.log.invoke(now, kind, accesses).context("writing the record")
    }

    fn returned(&mut self, outcome: Outcome, accesses: &[Access]) -> anyhow::Result<()> {
        let now = (self.clock)(&self.job);
        self.log.returned(now, outcome, accesses).context("writing the record")
    }

    /// Records how a call failed. An error if no call may fail in this way.
    fn failed(&mut self, error: StoreError, accesses: &[Access]) -> anyhow::Result<()> {
        match error {
            StoreError::Timeout { .. } | StoreError::Closed | StoreError::Revoked => {
                self.returned(Outcome::Unknown, accesses)
            }
            StoreError::DataLost { .. } => {
                self.data_lost += 1;
                // Other members may have seen the put before the last replica was lost.
                self.returned(Outcome::Unknown, accesses)
            }
            other => {
                self.returned(Outcome::Unknown, accesses)?;
                Err(other).with_context(|| format!("member {}", self.job.me().0))
            }
        }
    }

    /// Makes the next call of the program.
    pub(crate) fn step(&mut self) -> anyhow::Result<()> {
        let ProgramCall { sequence, action } = self.program.next().expect("a program has no end");
        match action {
            Action::Get(key) => self.get_by(CallForm::of(sequence), &key).map(drop),
            Action::Put(key, length) => self.put(&key, sequence, length),
            Action::PutIf(key, length, expect) => self.put_if(&key, sequence, length, expect),
            Action::Delete(key) => self.delete(CallForm::of(sequence), &key),
            Action::Add(key, delta) => self.add(CallForm::of(sequence), &key, delta),
            Action::Wait(key) => self.wait(&key),
            Action::Transaction(steps) => self.transaction(&steps, sequence),
            Action::Transfer(from, to, amount) => self.transfer(&from, &to, amount, sequence),
            Action::Steal(victim, thief) => self.steal(victim, thief, sequence),
            Action::Audit => self.audit(),
        }
    }

    fn new_value(&self, key: &Key, sequence: u64, length: usize) -> (Vec<u8>, history::Value) {
        let bytes = value::fill(self.seed, key.bytes(), sequence, length);
        (bytes, if length < 8 { SHORT } else { history::Value::new(sequence) })
    }

    fn note(
        &mut self,
        key: &Key,
        found: Option<(&[u8], Version)>,
    ) -> Option<(Version, history::Value)> {
        let found = found.map(|(bytes, at)| (at, identity(self.seed, key, bytes)));
        self.seen.insert(key.clone(), found);
        found
    }
}

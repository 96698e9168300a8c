//! Random programs on the store under the simulator, with deaths and stops at any step. Checkers
//! that know neither the store nor the simulator judge the recorded history. `outlast sim` runs
//! larger programs.

use crate::reexecution::this_test;
use crate::simulation::{replay_with_trace, seeds_in};
use outlast::sim::{self, Link, Options as SimOptions, Random};
use outlast::store::{Expect, KeyHandle, Options, Store, StoreError, Value, Version};
use outlast::{Job, Time};
use outlast_check::history::{self, Access, Actor, CallKind, History, Log, Outcome};
use outlast_check::report::{self, Run};
use outlast_check::value;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What to run with a seed.
#[derive(Clone, Copy, Debug)]
struct Shape {
    members: usize,
    spares: usize,
    replicas: usize,
    kills: usize,
    stops: usize,
    /// How many members leave, while their other threads go on.
    leaves: u32,
    threads: u32,
    keys: u64,
    operations: u64,
    partitions: usize,
    /// How many of a hundred calls delete.
    deletes: u64,
    /// Whether members pause now and then, so that a deleted record is removed before its key is
    /// put again.
    pauses: bool,
    link: Link,
}

impl Shape {
    /// With fewer deaths nothing is lost. Members that leave count as dead. While a member is
    /// stopped for long, others give up, and go without handing over their data.
    fn deaths_survived(&self) -> usize {
        self.replicas + if self.stops == 0 { self.leaves as usize } else { 0 }
    }
}

type Logs = Arc<Mutex<BTreeMap<(u32, u32), Log>>>;

/// Records the calls of an actor.
struct Recorder {
    actor: Actor,
    logs: Logs,
    job: Job,
    /// With fewer deaths nothing is lost.
    deaths_survived: usize,
    sequence: u64,
    /// Handles of the keys that this actor has used through a handle.
    handles: BTreeMap<Vec<u8>, KeyHandle>,
}

fn version(version: Version) -> history::Version {
    history::Version::new(version.counter, version.writer.0)
}

impl Recorder {
    fn invoke(&self, kind: CallKind, accesses: Vec<Access>) {
        let now = self.job.now().0;
        let mut logs = self.logs.lock().unwrap();
        let log = logs
            .entry((self.actor.member, self.actor.thread))
            .or_insert_with(|| Log::new(self.actor));
        log.invoke(now, kind, accesses);
    }

    fn returned(&self, outcome: Outcome, accesses: Vec<Access>) {
        let now = self.job.now().0;
        let mut logs = self.logs.lock().unwrap();
        logs.get_mut(&(self.actor.member, self.actor.thread))
            .unwrap()
            .returned(now, outcome, accesses);
    }

    fn failed(&self, error: StoreError, accesses: Vec<Access>) {
        match error {
            StoreError::Timeout { .. } | StoreError::Closed => {
                self.returned(Outcome::Unknown, accesses)
            }
            // If a member is stopped for long, the others give up and leave: as many members as
            // there are replicas have died.
            StoreError::DataLost { .. } if self.job.view().dead.len() >= self.deaths_survived => {
                self.returned(Outcome::Unknown, accesses);
            }
            StoreError::Conflict { .. } => unreachable!("handled by the caller"),
            other => panic!("{}: {other}", self.actor),
        }
    }

    fn next_value(&mut self, key: &[u8], random: &mut Random) -> (Vec<u8>, history::Value) {
        self.sequence += 1;
        let sequence = value::sequence(self.actor, self.sequence);
        let len = [0, 8, 24, 100, 700][random.below(5) as usize] + 8;
        (value::fill(0, key, sequence, len), history::Value::new(sequence))
    }
}

fn identity(key: &[u8], bytes: &[u8]) -> history::Value {
    match value::verify(0, key, bytes) {
        value::Integrity::Intact { sequence: Some(sequence), .. } => history::Value::new(sequence),
        other => {
            eprintln!("torn: {other:?}");
            history::Value::torn(0)
        }
    }
}

/// Half of the calls go through a kept handle.
fn handle<'r>(
    store: &Store,
    recorder: &'r mut Recorder,
    key: &[u8],
    by_handle: bool,
) -> Option<&'r KeyHandle> {
    if !by_handle {
        return None;
    }
    Some(
        recorder
            .handles
            .entry(key.to_vec())
            .or_insert_with(|| store.handle(key).expect("a key that can be")),
    )
}

type Read = Option<(Vec<u8>, Version)>;

fn owned(found: Option<Value>) -> Read {
    found.map(|value| (value.bytes().to_vec(), value.version()))
}

/// A read into a buffer that is large enough for every value.
fn read_into(
    read: impl FnOnce(&mut [u8]) -> Result<Option<(usize, Version)>, StoreError>,
) -> Result<Read, StoreError> {
    let mut buffer = vec![0; 1024];
    let found = read(&mut buffer)?;
    Ok(found.map(|(len, version)| (buffer[..len].to_vec(), version)))
}

fn one_operation(store: &Store, recorder: &mut Recorder, random: &mut Random, shape: &Shape) {
    let choice = random.below(100);
    let number = random.below(shape.keys);
    if choice < 10 {
        let key = format!("sum/{number}");
        let delta = random.below(9) as i64 - 3;
        let access = Access::add(key.as_str(), delta);
        recorder.invoke(CallKind::Add, vec![access.clone()]);
        match store.add(key.as_bytes(), delta) {
            Ok(sum) => {
                recorder.returned(Outcome::Ok, vec![access.saw(history::Value::number(sum))]);
            }
            Err(error) => recorder.failed(error, vec![access]),
        }
        return;
    }
    let key = format!("key/{number}");
    let bytes = key.as_bytes();
    let (by_handle, into_buffer) = (random.below(2) == 0, random.below(2) == 0);
    match choice {
        10..45 => {
            let (data, value) = recorder.next_value(bytes, random);
            let access = Access::write(key.as_str(), value);
            recorder.invoke(CallKind::Put, vec![access.clone()]);
            let result = match handle(store, recorder, bytes, by_handle) {
                Some(handle) => handle.put(&data),
                None => store.put(bytes, &data),
            };
            match result {
                Ok(at) => recorder.returned(Outcome::Ok, vec![access.at(version(at))]),
                Err(error) => recorder.failed(error, vec![access]),
            }
        }
        45..75 => {
            recorder.invoke(CallKind::Get, vec![Access::ask(key.as_str())]);
            let result = match handle(store, recorder, bytes, by_handle) {
                Some(handle) if !into_buffer => handle.get().map(owned),
                Some(handle) => read_into(|buffer| handle.get_into(buffer)),
                None if !into_buffer => store.get(bytes).map(owned),
                None => read_into(|buffer| store.get_into(bytes, buffer)),
            };
            match result {
                Ok(None) => recorder.returned(Outcome::Ok, vec![Access::read(key.as_str())]),
                Ok(Some((found, at))) => {
                    let access =
                        Access::read(key.as_str()).saw(identity(bytes, &found)).at(version(at));
                    recorder.returned(Outcome::Ok, vec![access]);
                }
                Err(error) => recorder.failed(error, vec![Access::ask(key.as_str())]),
            }
        }
        _ if choice < 75 + shape.deletes => {
            recorder.invoke(CallKind::Delete, vec![Access::delete(key.as_str())]);
            let result = match handle(store, recorder, bytes, by_handle) {
                Some(handle) => handle.delete(),
                None => store.delete(bytes),
            };
            match result {
                // A delete of an absent key is a read.
                Ok(false) => recorder.returned(Outcome::Ok, vec![Access::read(key.as_str())]),
                Ok(true) => recorder.returned(Outcome::Ok, vec![Access::delete(key.as_str())]),
                Err(error) => recorder.failed(error, vec![Access::delete(key.as_str())]),
            }
        }
        _ => {
            let Ok(found) = store.get(bytes) else { return };
            let (data, value) = recorder.next_value(bytes, random);
            let write = Access::write(key.as_str(), value);
            let read = match &found {
                None => Access::read(key.as_str()),
                Some(found) => Access::read(key.as_str())
                    .saw(identity(bytes, found.bytes()))
                    .at(version(found.version())),
            };
            let expect =
                found.as_ref().map_or(Expect::Absent, |found| Expect::Version(found.version()));
            recorder.invoke(CallKind::PutIf, vec![read.clone(), write.clone()]);
            let result = match handle(store, recorder, bytes, by_handle) {
                Some(handle) => handle.put_if(&data, expect),
                None => store.put_if(bytes, &data, expect),
            };
            match result {
                Ok(at) => recorder.returned(Outcome::Ok, vec![read, write.at(version(at))]),
                Err(StoreError::Conflict { .. }) => {
                    recorder.returned(Outcome::Failed, vec![read, write]);
                }
                Err(error) => recorder.failed(error, vec![read, write]),
            }
        }
    }
}

fn member(job: Job, shape: Shape, seed: u64, logs: Logs) {
    let options = Options::new()
        .replicas(shape.replicas)
        .partitions(shape.partitions)
        .expected_keys(32)
        .slab_len_max(4 << 10);
    let store = match Store::open(&job, options) {
        Ok(store) => store,
        Err(StoreError::Timeout { .. } | StoreError::Closed) => return,
        Err(error) => panic!("open: {error}"),
    };
    let work = |thread: u32| {
        let (store, job, logs) = (store.clone(), job.clone(), logs.clone());
        move || {
            let actor = Actor::new(job.me().0, thread);
            let mut random =
                Random::new(seed ^ (u64::from(actor.member) << 32 | u64::from(thread)) << 8);
            let mut recorder = Recorder {
                actor,
                logs,
                job,
                deaths_survived: shape.deaths_survived(),
                sequence: 0,
                handles: BTreeMap::new(),
            };
            for _ in 0..shape.operations {
                one_operation(&store, &mut recorder, &mut random, &shape);
                if shape.pauses && random.below(4) == 0 {
                    recorder.job.sleep(Duration::from_micros(random.below(20_000)));
                }
            }
        }
    };
    let others: Vec<_> = (1..shape.threads)
        .map(|thread| job.spawn("worker", Box::new(work(thread))).expect("an activity"))
        .collect();
    work(0)();
    if job.me().0 < shape.leaves {
        loop {
            match store.leave(job.now().after(Duration::from_secs(60))) {
                Ok(()) | Err(StoreError::Closed) => return,
                Err(StoreError::Timeout { .. }) => {}
                // It was stopped for long, and the others have given up and left.
                Err(StoreError::DataLost { .. }) if shape.stops > 0 => return,
                Err(error) => panic!("leave: {error}"),
            }
        }
    }
    for other in &others {
        assert!(job.wait_for(other, Time::NEVER));
    }
    // Every survivor reads all keys.
    let mut recorder = Recorder {
        actor: Actor::new(job.me().0, 99),
        logs: logs.clone(),
        job: job.clone(),
        deaths_survived: shape.deaths_survived(),
        sequence: 0,
        handles: BTreeMap::new(),
    };
    for number in 0..shape.keys {
        let key = format!("key/{number}");
        recorder.invoke(CallKind::Get, vec![Access::ask(key.as_str())]);
        match store.get(key.as_bytes()) {
            Ok(None) => recorder.returned(Outcome::Ok, vec![Access::read(key.as_str())]),
            Ok(Some(found)) => {
                let seen = identity(key.as_bytes(), found.bytes());
                let access = Access::read(key.as_str()).saw(seen).at(version(found.version()));
                recorder.returned(Outcome::Ok, vec![access]);
            }
            Err(error) => recorder.failed(error, vec![Access::ask(key.as_str())]),
        }
    }
    recorder.sequence += 1;
    // Missing replicas become complete again. A stopped replica repairs nothing until it goes on.
    let until = job.now().after(Duration::from_secs(if shape.stops > 0 { 600 } else { 20 }));
    loop {
        match store.replicas_missing() {
            Ok(0) => break,
            // A stopped replica does not answer.
            Ok(_) | Err(StoreError::Timeout { .. }) => {}
            Err(error) => panic!("replicas_missing: {error}"),
        }
        assert!(job.now() < until, "replicas are missing at {}", job.me());
        job.park(job.bell(), job.now().after(Duration::from_millis(10)));
    }
    match store.close() {
        Ok(()) | Err(StoreError::Timeout { .. } | StoreError::Closed) => {}
        Err(error) => panic!("close: {error}"),
    }
    let _ = job.leave();
}

fn run_seed(seed: u64, shape: Shape, trace: bool) -> Result<u64, String> {
    let logs: Logs = Arc::default();
    let steps = shape.operations * u64::from(shape.threads) * 30;
    let mut options = SimOptions::new(shape.members, seed).link(shape.link).random_faults(
        shape.kills,
        shape.stops,
        steps,
    );
    options.spares = shape.spares;
    options.trace = trace;
    options.steps_max = 5_000_000;
    let shared = Rc::new(logs.clone());
    let report = sim::run(&options, move |job| member(job, shape, seed, (*shared).clone()));
    if trace {
        for line in &report.trace {
            println!("{line}");
        }
    }
    if !report.is_ok() {
        let (panics, hung) = (&report.panics, &report.hung);
        return Err(format!(
            "{:?} after {} steps\n{panics:#?}\n{hung:#?}",
            report.outcome, report.steps
        ));
    }
    let logs = std::mem::take(&mut *logs.lock().unwrap());
    let history = History::from_logs(logs.into_values()).map_err(|error| error.to_string())?;
    let mut run = Run::new(history);
    if shape.stops > 0 {
        // The call of a stopped member ends when the member is resumed. The simulator ends a run
        // that hangs.
        run.observation.undisturbed_bound_ns = u64::MAX;
    }
    let judged = report::judge(&run);
    match judged.ok() {
        true => Ok(report.steps),
        false => {
            let violations: Vec<String> =
                judged.violations.iter().map(ToString::to_string).collect();
            Err(violations.join("\n"))
        }
    }
}

fn run_all(test: &str, default: std::ops::Range<u64>, shape: impl Fn(u64) -> Shape) {
    let mut steps = 0;
    let trace = std::env::var("OUTLAST_TRACE").is_ok();
    let seeds = seeds_in(default);
    for seed in seeds.clone() {
        let shape = shape(seed);
        match run_seed(seed, shape, trace) {
            Ok(more) => steps += more,
            Err(violation) => {
                panic!("seed {seed}, {shape:?}\n{violation}\n{}", replay_with_trace(test, seed))
            }
        }
    }
    println!("{test}: seeds {seeds:?}, {steps} steps");
}

const BASE: Shape = Shape {
    members: 3,
    spares: 0,
    replicas: 2,
    kills: 0,
    stops: 0,
    leaves: 0,
    threads: 1,
    keys: 3,
    operations: 30,
    partitions: 8,
    deletes: 10,
    pauses: false,
    link: Link::Memory,
};

#[test]
fn linearizable_without_faults() {
    run_all(this_test!(), 0..100, |seed| Shape {
        members: 1 + (seed % 5) as usize,
        replicas: 1 + (seed % 5).min(2) as usize,
        threads: 1 + (seed / 7 % 3) as u32,
        link: Link::of_seed(seed),
        ..BASE
    });
}

#[test]
fn durable_and_linearizable_under_deaths() {
    run_all(this_test!(), 0..300, |seed| {
        let replicas = 2 + (seed / 2 % 3) as usize;
        Shape {
            members: replicas + 1 + (seed / 6 % 3) as usize,
            replicas,
            kills: 1 + (seed / 3) as usize % (replicas - 1),
            link: Link::of_seed(seed),
            ..BASE
        }
    });
}

#[test]
fn durable_and_linearizable_under_deaths_and_stops() {
    run_all(this_test!(), 0..300, |seed| {
        let replicas = 2 + (seed / 2 % 3) as usize;
        Shape {
            members: replicas + (seed / 6 % 4) as usize,
            spares: (seed / 5 % 3) as usize,
            replicas,
            kills: 1 + (seed / 3) as usize % (replicas - 1),
            stops: 1 + (seed % 3) as usize,
            threads: 1 + (seed / 4 % 2) as u32,
            link: Link::of_seed(seed),
            ..BASE
        }
    });
}

/// A few keys are deleted and put again all the time, by several threads that keep their handles:
/// records are removed and their blocks are reused at once, while members die and are stopped.
#[test]
fn keys_are_deleted_and_put_again_under_deaths_and_stops() {
    run_all(this_test!(), 0..200, |seed| {
        let replicas = 2 + (seed / 2 % 3) as usize;
        Shape {
            members: replicas + (seed / 6 % 3) as usize,
            spares: (seed / 5 % 2) as usize,
            replicas,
            kills: (seed / 3) as usize % replicas,
            stops: (seed / 7 % 3) as usize,
            leaves: 0,
            threads: 1 + (seed / 4 % 3) as u32,
            keys: 1 + seed / 11 % 2,
            operations: 60,
            partitions: 1 + (seed / 13 % 2) as usize,
            deletes: 20,
            pauses: seed / 17 % 3 > 0,
            link: Link::of_seed(seed),
        }
    });
}

/// Keys are deleted and put again all the time while one or two members leave. More members stay
/// than there are replicas.
#[test]
fn keys_are_deleted_and_put_again_while_members_leave() {
    run_all(this_test!(), 0..200, |seed| {
        let replicas = 1 + (seed / 2 % 3) as usize;
        let leaves = 1 + (seed / 5 % 2) as u32;
        Shape {
            members: replicas + leaves as usize + (seed / 6 % 3) as usize,
            spares: (seed / 7 % 2) as usize,
            replicas,
            kills: (seed / 3) as usize % replicas,
            stops: (seed / 4 % 4 / 2) as usize,
            leaves,
            threads: 1 + (seed / 4 % 3) as u32,
            keys: 1 + seed / 11 % 3,
            operations: 50,
            partitions: 1 + (seed / 13 % 2) as usize,
            deletes: 20,
            pauses: seed / 17 % 3 > 0,
            link: Link::of_seed(seed),
        }
    });
}

//! Histories of the size that a chaos run makes are judged in a fraction of a second.
//!
//! The limits below are far above what is needed, so that a busy machine does not exceed them. A
//! search that tries orders in turn would not end within any of them.

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::kinds;
use outlast_check::history::{
    Access, AccessMode, Actor, CallKind, History, Key, Operation, Outcome, Value, Version,
};
use outlast_check::report::{self, Run};
use outlast_check::violation::ViolationKind;
use outlast_check::workload::Random;
use outlast_check::{register, serializable};

const LIMIT: Duration = Duration::from_secs(8);

struct Shape {
    operations: u64,
    actors: u64,
    keys: u64,
    keys_per_operation: u64,
    versions: bool,
    /// An operation in this many is of unknown outcome.
    unknown_one_in: u64,
    additions: bool,
}

/// A right history: every operation takes effect at some time between its invocation and its
/// return.
fn generate(seed: u64, shape: &Shape) -> History {
    let mut random = Random::new(seed);
    let mut clocks = vec![0u64; shape.actors as usize];
    let mut planned: Vec<(u64, Operation, bool)> = Vec::new();
    for number in 0..shape.operations {
        let member = random.below(shape.actors);
        let clock = &mut clocks[member as usize];
        let invoke_ns = *clock + random.below(50);
        let effect_ns = invoke_ns + random.below(100);
        let return_ns = effect_ns + random.below(100);
        *clock = return_ns;
        let unknown = random.below(shape.unknown_one_in) == 0;
        let accesses = (0..1 + random.below(shape.keys_per_operation))
            .map(|_| {
                let key = Key::from(format!("key/{}", random.below(shape.keys)).into_bytes());
                match random.below(3) {
                    0 => Access::ask(key),
                    1 if shape.additions => Access::add(key, 1 + random.below(3) as i64),
                    _ => Access::write(key, Value::new(number + 1)),
                }
            })
            .fold(Vec::new(), |mut accesses: Vec<Access>, access| {
                if accesses.iter().all(|other| other.key != access.key) {
                    accesses.push(access);
                }
                accesses
            });
        let operation = Operation {
            actor: Actor::new(member as u32, 0),
            sequence: number,
            kind: CallKind::Transaction,
            invoke_ns,
            return_ns: Some(return_ns),
            outcome: if unknown { Outcome::Unknown } else { Outcome::Ok },
            accesses,
        };
        let skipped = unknown && random.percent(50);
        planned.push((effect_ns + if unknown { 300 } else { 0 }, operation, skipped));
    }
    planned.sort_by_key(|&(effect_ns, ref operation, _)| {
        (effect_ns, operation.invoke_ns, operation.sequence)
    });
    let mut records: BTreeMap<Key, (Option<u64>, u64)> = BTreeMap::new();
    let mut operations = Vec::new();
    for (_, mut operation, skipped) in planned {
        let unknown = operation.outcome == Outcome::Unknown;
        for access in operation.accesses.iter_mut().filter(|_| !skipped) {
            let (value, counter) = records.entry(access.key.clone()).or_default();
            match access.mode {
                AccessMode::Ask | AccessMode::Read => {
                    if unknown {
                        continue;
                    }
                    access.mode = AccessMode::Read;
                    access.value = value.map(Value::new);
                }
                AccessMode::Write => {
                    *value = access.value.map(|value| value.identity);
                    *counter += 1;
                }
                AccessMode::Add { delta } => {
                    *value = Some((value.unwrap_or(0) as i64 + delta) as u64);
                    *counter += 1;
                    access.value = value.map(Value::new).filter(|_| !unknown);
                }
            }
            if shape.versions && !unknown {
                access.version = Some(Version::new(*counter, 0));
            }
        }
        operations.push(operation);
    }
    History::new(operations).unwrap()
}

/// Makes a read in the middle see what it would have seen much earlier.
fn with_stale_read(history: &History) -> History {
    let mut operations = history.operations().to_vec();
    let place = operations.len() / 2;
    let is_old_write =
        |access: &&Access| access.mode == AccessMode::Write && access.value.is_some();
    let old = operations[place / 2..place / 2 + 200]
        .iter()
        .filter(|operation| operation.outcome == Outcome::Ok)
        .find_map(|operation| operation.accesses.iter().find(is_old_write))
        .unwrap()
        .clone();
    let reader = operations[place..]
        .iter_mut()
        .filter(|operation| operation.outcome == Outcome::Ok)
        .find_map(|operation| {
            operation
                .accesses
                .iter_mut()
                .find(|access| access.mode == AccessMode::Read && access.key == old.key)
        })
        .unwrap();
    (reader.version, reader.value) = (old.version, old.value);
    History::new(operations).unwrap()
}

#[track_caller]
fn in_time<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    let elapsed = start.elapsed();
    eprintln!("{what}: {elapsed:?}");
    assert!(elapsed < LIMIT, "{what} took {elapsed:?}");
    result
}

#[test]
fn a_key_with_versions() {
    let shape = Shape {
        operations: 20_000,
        actors: 8,
        keys: 1,
        keys_per_operation: 1,
        versions: true,
        unknown_one_in: 300,
        additions: false,
    };
    let history = generate(1, &shape);
    let violations =
        in_time("register, 20,000 operations on a key, versions", || register::check(&history));
    assert!(violations.is_empty(), "{violations:?}");
    let wrong = with_stale_read(&history);
    let violations = in_time("the same with a stale read", || register::check(&wrong));
    assert_eq!(kinds(&violations), [ViolationKind::NotLinearizable]);
    assert!(violations[0].operations.len() <= 4, "{}", violations[0]);
}

#[test]
fn a_key_without_versions() {
    let shape = Shape {
        operations: 5_000,
        actors: 6,
        keys: 1,
        keys_per_operation: 1,
        versions: false,
        unknown_one_in: 100,
        additions: false,
    };
    let history = generate(2, &shape);
    let violations =
        in_time("register, 5,000 operations on a key, no versions", || register::check(&history));
    assert!(violations.is_empty(), "{violations:?}");
    let wrong = with_stale_read(&history);
    let violations = in_time("the same with a stale read", || register::check(&wrong));
    assert_eq!(kinds(&violations), [ViolationKind::NotLinearizable]);
    assert!(violations[0].operations.len() <= 4, "{}", violations[0]);
}

#[test]
fn a_counter_with_additions_of_unknown_outcome() {
    for versions in [false, true] {
        let shape = Shape {
            operations: 3_000,
            actors: 5,
            keys: 1,
            keys_per_operation: 1,
            versions,
            unknown_one_in: 100,
            additions: true,
        };
        let history = generate(3, &shape);
        let violations =
            in_time("register, 3,000 additions and writes", || register::check(&history));
        assert!(violations.is_empty(), "{violations:?}");
    }
}

#[test]
fn transactions_over_many_keys() {
    let shape = Shape {
        operations: 20_000,
        actors: 16,
        keys: 50,
        keys_per_operation: 4,
        versions: true,
        unknown_one_in: 500,
        additions: false,
    };
    let history = generate(4, &shape);
    let violations = in_time("serializable, 20,000 transactions", || serializable::check(&history));
    assert!(violations.is_empty(), "{violations:?}");
    let report =
        in_time("all checkers, 20,000 transactions", || report::judge(&Run::new(history.clone())));
    assert!(report.ok(), "{:?}", report.violations);
    let wrong = with_stale_read(&history);
    let violations = in_time("serializable with a stale read", || serializable::check(&wrong));
    assert!(kinds(&violations).contains(&ViolationKind::Cycle), "{violations:?}");
    assert!(violations.iter().all(|violation| violation.operations.len() <= 4), "{violations:?}");
}

#[test]
fn text_of_many_operations() {
    let shape = Shape {
        operations: 20_000,
        actors: 16,
        keys: 50,
        keys_per_operation: 4,
        versions: true,
        unknown_one_in: 500,
        additions: true,
    };
    let history = generate(5, &shape);
    let text = in_time("text of 20,000 transactions", || history.to_text());
    let again = in_time("parsing it", || History::parse(text.as_bytes()).unwrap());
    assert_eq!(again, history);
}

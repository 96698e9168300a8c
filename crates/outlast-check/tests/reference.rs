//! The checkers against a reference that tries every order, on small random histories: right
//! histories, and right histories with a few details changed.

mod common;

use std::collections::BTreeMap;

use outlast_check::durability::{Final, Observation};
use outlast_check::history::{
    Access, AccessMode, Actor, CallKind, History, Key, Operation, Outcome, Value, Version,
};
use outlast_check::report::{self, Run};
use outlast_check::workload::Random;
use outlast_check::{durability, register, serializable};
use proptest::prelude::*;

// ---------------------------------------------------------------------------------------------
// The reference: every order that real time allows, one operation after the other.

#[derive(Clone, Copy)]
struct Record {
    value: Option<u64>,
    version: Option<Version>,
    newest: Version,
}

const UNWRITTEN: Record =
    Record { value: None, version: Some(Version::INITIAL), newest: Version::INITIAL };

type Records = BTreeMap<Key, Record>;

fn apply(records: &Records, operation: &Operation) -> Option<Records> {
    let mut records = records.clone();
    for access in &operation.accesses {
        let record = records.entry(access.key.clone()).or_insert(UNWRITTEN);
        let value = access.value.map(|value| value.identity);
        match access.mode {
            AccessMode::Ask => continue,
            AccessMode::Read => {
                if record.value != value {
                    return None;
                }
                match (access.version, record.version) {
                    (Some(seen), None) if seen > record.newest => {
                        record.version = Some(seen);
                        record.newest = seen;
                    }
                    (Some(seen), actual) if actual != Some(seen) => return None,
                    _ => {}
                }
                continue;
            }
            AccessMode::Write => record.value = value,
            AccessMode::Add { delta } => {
                let sum = record.value.unwrap_or(0) as i64 + delta;
                if value.is_some_and(|value| value != sum as u64) {
                    return None;
                }
                record.value = Some(sum as u64);
            }
        }
        record.version = access.version;
        if let Some(version) = access.version {
            if version <= record.newest {
                return None;
            }
            record.newest = version;
        }
    }
    Some(records)
}

fn comes_before(first: &Operation, second: &Operation) -> bool {
    first.return_ns.is_some_and(|at| at < second.invoke_ns)
        || first.actor == second.actor && first.sequence < second.sequence
}

fn has_order(operations: &[&Operation], taken: u32, records: &Records) -> bool {
    let open = |index: usize| taken >> index & 1 == 0;
    let binding = |index: usize| operations[index].outcome == Outcome::Ok;
    let count = operations.len();
    if (0..count).all(|index| !open(index) || !binding(index)) {
        return true;
    }
    (0..count).filter(|&index| open(index)).any(|index| {
        let blocked = (0..count).any(|other| {
            other != index
                && open(other)
                && binding(other)
                && comes_before(operations[other], operations[index])
        });
        !blocked
            && apply(records, operations[index])
                .is_some_and(|records| has_order(operations, taken | 1 << index, &records))
    })
}

fn reference_accepts(history: &History) -> bool {
    let operations: Vec<&Operation> = history
        .operations()
        .iter()
        .filter(|operation| operation.outcome != Outcome::Failed)
        .collect();
    has_order(&operations, 0, &Records::new())
}

// ---------------------------------------------------------------------------------------------
// The generator: a store without faults, operations that overlap, and then small lies.

#[derive(Clone, Copy, Debug)]
struct Shape {
    keys: u64,
    operations: u64,
    /// The percentage of calls that return a version.
    told_percent: u32,
    unknown_percent: u32,
    additions: bool,
    deletions: bool,
    transactions: bool,
    /// Whether operations of unknown outcome may be of any kind, not just puts.
    unknown_anything: bool,
}

struct Store {
    random: Random,
    shape: Shape,
    records: BTreeMap<Key, (Option<u64>, Version)>,
    next_value: u64,
}

impl Store {
    fn key(&mut self) -> Key {
        Key::from(format!("k{}", self.random.below(self.shape.keys)).into_bytes())
    }

    /// What an actor is about to do: reads without results, writes with their values.
    fn plan(&mut self, unknown: bool) -> Vec<Access> {
        let key = self.key();
        self.next_value += 1;
        let put = Access::write(key.clone(), Value::new(self.next_value));
        if unknown && !self.shape.unknown_anything {
            return vec![put];
        }
        match self.random.below(if self.shape.transactions { 12 } else { 9 }) {
            0..=2 => vec![Access::ask(key)],
            3 if self.shape.deletions => vec![Access::delete(key)],
            4 | 5 if self.shape.additions => {
                vec![Access::add(key, self.random.below(5) as i64 - 2)]
            }
            6 => vec![Access::ask(key), put],
            3..=8 => vec![put],
            _ => {
                let mut accesses: Vec<Access> = Vec::new();
                for number in 0..self.shape.keys {
                    let key = Key::from(format!("k{number}").into_bytes());
                    if self.random.percent(60) {
                        accesses.push(Access::ask(key.clone()));
                    }
                    if self.random.percent(50) {
                        accesses.push(Access::write(key, Value::new(self.next_value)));
                    }
                }
                accesses
            }
        }
    }

    /// Executes a plan, and returns the accesses with their results.
    fn execute(&mut self, plan: &[Access], member: u32) -> Vec<Access> {
        plan.iter()
            .map(|access| {
                let (value, version) =
                    self.records.entry(access.key.clone()).or_insert((None, Version::INITIAL));
                let told = self.random.percent(self.shape.told_percent);
                let next = Version::new(version.counter + 1 + self.random.below(2), member);
                let mut done = access.clone();
                match access.mode {
                    AccessMode::Ask | AccessMode::Read => {
                        done.mode = AccessMode::Read;
                        done.value = value.map(Value::new);
                    }
                    AccessMode::Write => {
                        *value = access.value.map(|value| value.identity);
                        *version = next;
                    }
                    AccessMode::Add { delta } => {
                        *value = Some((value.unwrap_or(0) as i64 + delta) as u64);
                        *version = next;
                        done.value = value.map(Value::new);
                    }
                }
                done.version = told.then_some(*version);
                done
            })
            .collect()
    }
}

struct Pending {
    place: usize,
    plan: Vec<Access>,
    done: Option<Vec<Access>>,
    unknown: bool,
}

/// A right history and its final state.
fn generate(seed: u64, shape: Shape) -> (History, BTreeMap<Key, Final>) {
    let random = Random::new(seed);
    let mut store = Store { random, shape, records: BTreeMap::new(), next_value: 100 };
    let mut operations: Vec<Operation> = Vec::new();
    let mut running: BTreeMap<u32, Pending> = BTreeMap::new();
    let mut late: Vec<(Vec<Access>, u32)> = Vec::new();
    let mut sequences: BTreeMap<u32, u64> = BTreeMap::new();
    let mut now_ns = 0;
    let actors = 1 + store.random.below(4);
    loop {
        now_ns += store.random.below(3);
        // An operation that timed out takes effect sooner, later, or never.
        if !late.is_empty() && store.random.percent(20) {
            let (plan, member) = late.swap_remove(0);
            if plan.iter().all(Access::changes) {
                store.execute(&plan, member);
            }
        }
        let member = store.random.below(actors) as u32;
        match running.remove(&member) {
            None if operations.len() as u64 == shape.operations => {
                if running.is_empty() {
                    break;
                }
            }
            None => {
                let unknown = store.random.percent(shape.unknown_percent);
                let plan = store.plan(unknown);
                let sequence = sequences.entry(member).or_default();
                let kind = if plan.len() == 1 { CallKind::Put } else { CallKind::Transaction };
                operations.push(Operation {
                    actor: Actor::new(member, 0),
                    sequence: *sequence,
                    kind,
                    invoke_ns: now_ns,
                    return_ns: None,
                    outcome: Outcome::Unknown,
                    accesses: plan.clone(),
                });
                *sequence += 1;
                running.insert(
                    member,
                    Pending { place: operations.len() - 1, plan, done: None, unknown },
                );
            }
            Some(mut pending) if pending.done.is_none() && !pending.unknown => {
                pending.done = Some(store.execute(&pending.plan, member));
                running.insert(member, pending);
            }
            Some(pending) => {
                let operation = &mut operations[pending.place];
                operation.return_ns = Some(now_ns);
                match pending.done {
                    Some(done) => {
                        operation.outcome = Outcome::Ok;
                        operation.accesses = done;
                    }
                    None => late.push((pending.plan, member)),
                }
            }
        }
    }
    let end_state = store.records.iter().map(|(key, (value, version))| {
        let found = Final::Read { version: Some(*version), value: value.map(Value::new) };
        (key.clone(), found)
    });
    (History::new(operations).unwrap(), end_state.collect())
}

/// Changes a few details of a history. The result may be wrong, or right by chance.
fn lie(history: &History, random: &mut Random, lies: u64) -> Option<History> {
    let mut operations = history.operations().to_vec();
    if operations.is_empty() {
        return None;
    }
    for _ in 0..lies {
        let place = random.below(operations.len() as u64) as usize;
        let other = random.below(operations.len() as u64) as usize;
        match random.below(4) {
            // An operation sees, or makes, what another operation saw or made.
            0 | 1 => {
                let from = operations[other].accesses.clone();
                let to = &mut operations[place];
                for access in to.accesses.iter_mut().filter(|access| access.mode != AccessMode::Ask)
                {
                    let Some(from) = from.iter().find(|from| from.key == access.key) else {
                        continue;
                    };
                    if from.mode == AccessMode::Ask || to.outcome == Outcome::Unknown {
                        continue;
                    }
                    match access.mode {
                        AccessMode::Read => {
                            (access.version, access.value) = (from.version, from.value)
                        }
                        _ if from.changes() && random.percent(50) => access.version = from.version,
                        _ => {}
                    }
                }
            }
            // A read finds the key unwritten.
            2 => {
                for access in &mut operations[place].accesses {
                    if access.mode == AccessMode::Read {
                        (access.version, access.value) =
                            (access.version.map(|_| Version::INITIAL), None);
                    }
                }
            }
            // An operation happens at another time.
            _ => {
                let shift = random.below(12);
                let operation = &mut operations[place];
                let earlier = random.percent(50);
                for at in [&mut operation.invoke_ns].into_iter().chain(&mut operation.return_ns) {
                    *at = if earlier { at.saturating_sub(shift) } else { *at + shift };
                }
            }
        }
    }
    // A history with overlapping operations of an actor is refused.
    History::new(operations).ok()
}

fn shapes() -> impl Strategy<Value = Shape> {
    (1u64..4, 1u64..9, 0usize..3, 0u32..50, any::<[bool; 4]>()).prop_map(
        |(
            keys,
            operations,
            told,
            unknown_percent,
            [additions, deletions, transactions, anything],
        )| Shape {
            keys,
            operations,
            told_percent: [0, 50, 100][told],
            unknown_percent,
            additions,
            deletions,
            transactions,
            unknown_anything: anything,
        },
    )
}

/// This many cases, or as many as `PROPTEST_CASES` asks for.
fn cases(count: u32) -> ProptestConfig {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() {
        config
    } else {
        ProptestConfig { cases: count, ..config }
    }
}

proptest! {
    #![proptest_config(cases(20_000))]

    /// A single key: the search agrees with the reference in both directions.
    #[test]
    fn register_is_exact(seed: u64, shape in shapes(), lies in 0u64..4) {
        let shape = Shape { keys: 1, ..shape };
        let (history, _) = generate(seed, shape);
        let Some(history) = lie(&history, &mut Random::new(!seed), lies) else { return Ok(()) };
        let violations = register::check(&history);
        let accepted = reference_accepts(&history);
        prop_assert_eq!(violations.is_empty(), accepted, "{}\n{:?}", history, violations);
        for violation in &violations {
            // The shown operations must be wrong by themselves, if they were found by leaving
            // operations out.
            let shown = History::new(violation.operations.clone()).unwrap();
            prop_assert!(!reference_accepts(&shown), "{}\n{}", history, violation);
        }
    }

    /// Several keys with versions: the cycle search agrees with the reference in both directions.
    #[test]
    fn serializable_is_exact_with_versions(seed: u64, shape in shapes(), lies in 0u64..4) {
        let shape = Shape {
            told_percent: 100,
            unknown_anything: false,
            unknown_percent: if shape.additions { 0 } else { shape.unknown_percent },
            ..shape
        };
        let (history, _) = generate(seed, shape);
        let Some(history) = lie(&history, &mut Random::new(!seed), lies) else { return Ok(()) };
        // A lie may have hidden a version.
        let operations = history.operations().iter();
        let acknowledged = operations.filter(|operation| operation.outcome == Outcome::Ok);
        let mut accesses = acknowledged.flat_map(|operation| &operation.accesses);
        if accesses.any(|access| access.version.is_none()) {
            return Ok(());
        }
        let violations = serializable::check(&history);
        let accepted = reference_accepts(&history);
        prop_assert_eq!(violations.is_empty(), accepted, "{}\n{:?}", history, violations);
    }

    /// Whatever versions are missing, no checker gives a false alarm.
    #[test]
    fn no_false_alarms(seed: u64, shape in shapes(), lies in 0u64..3) {
        let (history, _) = generate(seed, shape);
        let Some(history) = lie(&history, &mut Random::new(!seed), lies) else { return Ok(()) };
        let report = report::judge(&Run::new(history.clone()));
        let is_right = report.ok() || !reference_accepts(&history);
        prop_assert!(is_right, "{}\n{:?}", history, report.violations);
    }

    /// A store without faults passes, its final state included.
    #[test]
    fn a_right_store_passes(seed: u64, shape in shapes(), hide: bool) {
        let (history, mut end_state) = generate(seed, shape);
        if hide {
            for found in end_state.values_mut() {
                if let Final::Read { version, .. } = found {
                    *version = None;
                }
            }
        }
        let observation = Observation { end_state: Some(end_state), ..Observation::until(1_000) };
        let run = Run { history: history.clone(), observation, losses: Vec::new() };
        let report = report::judge(&run);
        prop_assert!(report.ok(), "{}\n{:?}", history, report.violations);
    }

    /// A final state that goes back before the last acknowledged write of a key is a loss.
    #[test]
    fn a_store_that_forgets_is_caught(seed: u64, shape in shapes()) {
        let shape = Shape { told_percent: 100, deletions: false, unknown_percent: 0, ..shape };
        let (history, end_state) = generate(seed, shape);
        for key in end_state.keys() {
            let writes = history.operations().iter().flat_map(|operation| &operation.accesses);
            let writes = writes.filter(|access| access.key == *key && access.changes());
            let mut versions: Vec<Version> = writes.filter_map(|access| access.version).collect();
            versions.sort_unstable();
            let mut forgetful = end_state.clone();
            forgetful.remove(key);
            let end_state = Some(forgetful);
            let observation = Observation { end_state, ..Observation::until(1_000) };
            let durability = durability::check(&history, &observation);
            prop_assert_eq!(durability.lost, versions.len() as u64, "{}\n{}", key, history);
        }
    }

    /// The text form keeps everything.
    #[test]
    fn text_keeps_everything(seed: u64, shape in shapes()) {
        let (history, _) = generate(seed, shape);
        prop_assert_eq!(History::parse(history.to_text().as_bytes()).unwrap(), history);
    }
}

#[test]
fn the_lies_are_a_fair_test() {
    let mut accepted = 0;
    let mut rejected = 0;
    for seed in 0..2000 {
        let shape = Shape {
            keys: 2,
            operations: 8,
            told_percent: 100,
            unknown_percent: 20,
            additions: false,
            deletions: true,
            transactions: true,
            unknown_anything: false,
        };
        let (history, _) = generate(seed, shape);
        assert!(reference_accepts(&history), "{history}");
        if let Some(history) = lie(&history, &mut Random::new(!seed), 1) {
            if reference_accepts(&history) { accepted += 1 } else { rejected += 1 }
        }
    }
    assert!(accepted > 300 && rejected > 300, "{accepted} accepted, {rejected} rejected");
}

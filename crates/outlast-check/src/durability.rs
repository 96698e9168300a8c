//! Is an acknowledged write lost, torn or stale, did a call hang?
//!
//! The counts are those of the `outlast chaos` report:
//!
//! - *lost*: an acknowledged write that is missing at the end, or superseded by an older write;
//! - *torn*: a read that returned a mix or a fragment;
//! - *stale*: a read older than a write acknowledged before the read began;
//! - *hung*: a call that has not returned some time after the last kill or resume that it overlaps.
//!
//! A write of unknown outcome may be found or not. Where versions are known, they tell older from
//! newer writes. Otherwise a write is older than another write if it had returned before the other
//! was invoked.
//!
//! ```
//! use outlast_check::durability::{self, Final, Observation};
//! use outlast_check::history::{
//!     Access, Actor, CallKind, History, Key, Log, Outcome, Value, Version,
//! };
//!
//! let mut log = Log::new(Actor::new(0, 0));
//! for count in 1..=2 {
//!     let put = Access::write("a", Value::new(count));
//!     log.invoke(count * 10, CallKind::Put, vec![put.clone()]);
//!     log.returned(count * 10 + 5, Outcome::Ok, vec![put.at(Version::new(count, 0))]);
//! }
//! let history = History::from_logs([log]).unwrap();
//! let mut observation = Observation::until(1_000);
//! let old = Final::Read { version: Some(Version::new(1, 0)), value: Some(Value::new(1)) };
//! observation.end_state = Some([(Key::from("a"), old)].into());
//! let durability = durability::check(&history, &observation);
//! assert_eq!((durability.acked, durability.lost), (2, 1));
//! ```

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{Access, Actor, CallKind, History, Key, Operation, Outcome, Value, Version};
use crate::per_key::{self, KeyRead, KeyStep, KeySteps, ReadSource};
use crate::violation::{Violation, ViolationKind};

/// What a living member found under a key after the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Final {
    /// A value, or none if the key is absent.
    Read {
        /// The version, if known.
        version: Option<Version>,
        /// The value; none if the key is absent.
        value: Option<Value>,
    },
    /// The store reports the value as lost.
    DataLost,
}

/// What is known about a run besides its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The state after the run, if it was read. Keys that it does not contain were absent.
    pub end_state: Option<BTreeMap<Key, Final>>,
    /// Keys whose final state is unknown: they are missing in the final state, but were not absent.
    pub unread: BTreeSet<Key>,
    /// When members were killed or resumed.
    pub disturbances_ns: Vec<u64>,
    /// Members that died; their last calls need not come back.
    pub dead: BTreeSet<u32>,
    /// When the observation ended. Calls that have not returned are measured against this time.
    pub end_ns: u64,
    /// How long a call may take after the last kill or resume that it overlaps.
    pub bound_ns: u64,
    /// How long a call may take that overlaps no kill or resume, for example because it needs a
    /// stopped member.
    pub undisturbed_bound_ns: u64,
}

impl Observation {
    /// An observation of a run without faults, with the bounds of the chaos report: 10 s after a
    /// kill or resume, and otherwise [`Observation::undisturbed_bound_ns`].
    pub fn until(end_ns: u64) -> Self {
        Self {
            end_state: None,
            unread: BTreeSet::new(),
            disturbances_ns: Vec::new(),
            dead: BTreeSet::new(),
            end_ns,
            bound_ns: 10_000_000_000,
            undisturbed_bound_ns: 40_000_000_000,
        }
    }
}

/// The result of the check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durability {
    /// Operations that wrote and were acknowledged.
    pub acked: u64,
    /// Acknowledged writes that are newer than the final state.
    pub lost: u64,
    /// Keys that the store reports as lost.
    pub data_lost: u64,
    /// Reads of mixes or fragments.
    pub torn: u64,
    /// Reads older than a write acknowledged before they began.
    pub stale: u64,
    /// Calls that did not return in time.
    pub hung: u64,
    /// The violations behind the counts: for each read and call, and for each key with lost writes.
    pub violations: Vec<Violation>,
}

/// The actor of the reads of the final state.
pub(crate) const FINAL_READER: Actor = Actor::new(u32::MAX, u32::MAX);

/// Checks the history against what was observed.
pub fn check(history: &History, observation: &Observation) -> Durability {
    let mut durability = Durability::default();
    let history = with_end_state(history, observation);
    let operations = history.operations();
    durability.acked = operations
        .iter()
        .filter(|operation| operation.outcome == Outcome::Ok)
        .filter(|operation| operation.accesses.iter().any(Access::changes))
        .count() as u64;
    let split = per_key::split(&history);
    for violation in
        split.violations.iter().filter(|violation| violation.kind == ViolationKind::Torn)
    {
        durability.torn += 1;
        durability.violations.push(violation.clone());
    }
    let data_lost = data_lost_keys(observation);
    durability.data_lost = data_lost.len() as u64;
    for key_steps in &split.keys {
        let is_unread =
            data_lost.contains(&key_steps.key) || observation.unread.contains(&key_steps.key);
        check_key(
            key_steps,
            operations,
            observation.end_state.is_some() && !is_unread,
            &mut durability,
        );
    }
    for operation in operations.iter().filter(|operation| operation.actor != FINAL_READER) {
        check_hung(operation, observation, &mut durability);
    }
    durability
}

/// The keys whose loss the store admits.
fn data_lost_keys(observation: &Observation) -> BTreeSet<Key> {
    let entries = observation.end_state.iter().flatten();
    entries.filter(|(_, found)| **found == Final::DataLost).map(|(key, _)| key.clone()).collect()
}

/// The history with reads of the final state, if it is known, after all other operations.
pub(crate) fn with_end_state(history: &History, observation: &Observation) -> History {
    let Some(end_state) = &observation.end_state else { return history.clone() };
    let operations = history.operations();
    let times =
        operations.iter().flat_map(|operation| [Some(operation.invoke_ns), operation.return_ns]);
    let end_ns = times.flatten().max().unwrap_or(0).saturating_add(1);
    let mut keys: BTreeSet<Key> = end_state.keys().cloned().collect();
    keys.extend(
        operations
            .iter()
            .flat_map(|operation| &operation.accesses)
            .map(|access| access.key.clone()),
    );
    keys.retain(|key| !observation.unread.contains(key));
    let mut operations = operations.to_vec();
    let absent = Final::Read { version: None, value: None };
    for (sequence, key) in keys.into_iter().enumerate() {
        let Final::Read { version, value } = *end_state.get(&key).unwrap_or(&absent) else {
            continue;
        };
        operations.push(Operation {
            actor: FINAL_READER,
            sequence: sequence as u64,
            kind: CallKind::Get,
            invoke_ns: end_ns,
            return_ns: Some(end_ns),
            outcome: Outcome::Ok,
            accesses: vec![Access { version, value, ..Access::read(key) }],
        });
    }
    // Reads after the end, by an actor of their own, break no rule of a history.
    History::new(operations).expect("a history with reads after its end is a history")
}

/// Whether a write is certainly older than another write.
fn is_older(first: &KeyStep, second: &KeyStep, operations: &[Operation]) -> bool {
    let version = |step: &KeyStep| step.write.and_then(|write| write.version);
    match (version(first), version(second)) {
        (Some(first), Some(second)) => first < second,
        _ => {
            first.acknowledged
                && operations[first.operation].precedes(&operations[second.operation])
        }
    }
}

/// The acknowledged writes of a key, ordered by return, with properties of each prefix of them.
struct Acknowledged<'a> {
    steps: Vec<&'a KeyStep>,
    /// The newest version in each prefix.
    newest: Vec<Option<(Version, usize)>>,
    /// The latest invocation in each prefix.
    latest: Vec<Option<(u64, usize)>>,
}

fn check_key(
    key_steps: &KeySteps,
    operations: &[Operation],
    final_read: bool,
    durability: &mut Durability,
) {
    let mut acknowledged: Vec<&KeyStep> =
        key_steps.steps.iter().filter(|step| step.acknowledged && step.write.is_some()).collect();
    let return_ns = |step: &KeyStep| operations[step.operation].return_ns.unwrap_or(u64::MAX);
    acknowledged.sort_by_key(|step| return_ns(step));
    let mut prefix = Acknowledged { steps: acknowledged, newest: vec![None], latest: vec![None] };
    for (index, step) in prefix.steps.iter().enumerate() {
        let version = step.write.and_then(|write| write.version).map(|version| (version, index));
        prefix.newest.push(prefix.newest[index].max(version));
        let invoked = Some((operations[step.operation].invoke_ns, index));
        prefix.latest.push(prefix.latest[index].max(invoked));
    }
    let deletions: Vec<&KeyStep> = key_steps
        .steps
        .iter()
        .filter(|step| step.write.is_some_and(|write| write.is_delete()))
        .collect();
    let mut torn_at_end = final_read;
    for step in key_steps.steps.iter().filter(|step| step.acknowledged) {
        let Some(read) = &step.read else { continue };
        let reader = &operations[step.operation];
        let is_final = reader.actor == FINAL_READER;
        torn_at_end &= !is_final;
        let before = prefix.steps.partition_point(|write| return_ns(write) < reader.invoke_ns);
        let newer =
            newer_than_read(key_steps, read, reader, &prefix, before, &deletions, operations);
        let Some(newer) = newer else { continue };
        let key = &key_steps.key;
        let write = &operations[prefix.steps[newer].operation];
        if !is_final {
            durability.stale += 1;
            let explanation =
                format!("a read of {key} missed a write acknowledged before it began");
            let shown = vec![write.clone(), reader.clone()];
            durability.violations.push(Violation::new(
                ViolationKind::Stale,
                Some(key),
                explanation,
                shown,
            ));
            continue;
        }
        let missing = |step: &&&KeyStep| is_missing(key_steps, read, step, &deletions, operations);
        durability.lost += prefix.steps.iter().filter(missing).count().max(1) as u64;
        let explanation = format!("an acknowledged write to {key} is missing at the end");
        let shown = vec![write.clone(), reader.clone()];
        durability.violations.push(Violation::new(
            ViolationKind::Lost,
            Some(key),
            explanation,
            shown,
        ));
    }
    if torn_at_end && let Some(last) = prefix.steps.last() {
        // The final read of this key was torn, so the acknowledged value is gone.
        durability.lost += 1;
        let key = &key_steps.key;
        let explanation =
            format!("the value that was acknowledged last for {key} is torn at the end");
        let shown = vec![operations[last.operation].clone()];
        durability.violations.push(Violation::new(
            ViolationKind::Lost,
            Some(key),
            explanation,
            shown,
        ));
    }
}

/// An acknowledged write, among the first `before`, that the read should have seen, or should have
/// seen overwritten.
fn newer_than_read(
    key_steps: &KeySteps,
    read: &KeyRead,
    reader: &Operation,
    prefix: &Acknowledged<'_>,
    before: usize,
    deletions: &[&KeyStep],
    operations: &[Operation],
) -> Option<usize> {
    if let Some(seen) = key_steps.version_read(read)
        && let Some((version, index)) = prefix.newest[before]
        && seen < version
    {
        return Some(index);
    }
    match read.source {
        // No operation wrote the value that was read, so the newest write was missed.
        ReadSource::Nothing => before.checked_sub(1),
        ReadSource::Initial => before.checked_sub(1),
        ReadSource::Step(source) => {
            let source = &key_steps.steps[source];
            let (_, index) = prefix.latest[before]?;
            is_older(source, prefix.steps[index], operations).then_some(index)
        }
        ReadSource::Ambiguous if read.observed.value.is_none() => {
            let may_explain = |write: &KeyStep| {
                deletions.iter().any(|deletion| {
                    let began = !reader.precedes(&operations[deletion.operation]);
                    began && !is_older(deletion, write, operations)
                })
            };
            let candidates = [
                prefix.newest[before].map(|(_, index)| index),
                prefix.latest[before].map(|(_, index)| index),
            ];
            candidates.into_iter().flatten().find(|&index| !may_explain(prefix.steps[index]))
        }
        ReadSource::SomeVersion | ReadSource::Ambiguous => None,
    }
}

/// Whether this acknowledged write is newer than the value of the final read.
fn is_missing(
    key_steps: &KeySteps,
    read: &KeyRead,
    write: &KeyStep,
    deletions: &[&KeyStep],
    operations: &[Operation],
) -> bool {
    let version = write.write.and_then(|write| write.version);
    match (key_steps.version_read(read), version, read.source) {
        (Some(seen), Some(version), _) => seen < version,
        (_, _, ReadSource::Step(source)) => is_older(&key_steps.steps[source], write, operations),
        (_, _, ReadSource::Initial | ReadSource::Nothing) => true,
        _ => deletions.iter().all(|deletion| is_older(deletion, write, operations)),
    }
}

fn check_hung(operation: &Operation, observation: &Observation, durability: &mut Durability) {
    if operation.return_ns.is_none() && observation.dead.contains(&operation.actor.member) {
        return;
    }
    let end_ns = operation.return_ns.unwrap_or(observation.end_ns);
    let overlapped = observation.disturbances_ns.iter().copied();
    let last = overlapped.filter(|&at| (operation.invoke_ns..=end_ns).contains(&at)).max();
    let (since_ns, bound_ns) = match last {
        Some(at) => (at, observation.bound_ns),
        None => (operation.invoke_ns, observation.undisturbed_bound_ns),
    };
    if end_ns.saturating_sub(since_ns) > bound_ns {
        durability.hung += 1;
        let milliseconds = (end_ns - since_ns) / 1_000_000;
        let after =
            if last.is_some() { "the last kill or resume it overlapped" } else { "it began" };
        let back = if operation.return_ns.is_some() { "returned only" } else { "had not returned" };
        let explanation = format!("a call {back} {milliseconds} ms after {after}");
        let shown = vec![operation.clone()];
        durability.violations.push(Violation::new(ViolationKind::Hung, None, explanation, shown));
    }
}

//! The history of each key by itself, with every read traced to the write that it saw.
//!
//! All checkers start here. A transaction contributes a step to each key that it touches: what it
//! saw of the key before it wrote, and what it left there. If a write was not told its version (its
//! outcome is unknown, or the call does not return it), the version is learned from a read of its
//! value.

use std::collections::{BTreeMap, HashMap};

use crate::history::{AccessMode, Actor, History, Key, Operation, Outcome, Version};
use crate::violation::{Violation, ViolationKind};

/// What a read saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Observed {
    pub(crate) version: Option<Version>,
    /// The identity of the value; none if the key was absent.
    pub(crate) value: Option<u64>,
}

/// Which write a read saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadSource {
    /// The initial state: the key had never been written.
    Initial,
    /// The write of this step.
    Step(usize),
    /// A write of the version that was read; several writes may have made it.
    SomeVersion,
    /// A write that is ambiguous; the version is unknown as well.
    Ambiguous,
    /// No write.
    Nothing,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyRead {
    pub(crate) observed: Observed,
    pub(crate) source: ReadSource,
}

/// What a write leaves under the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    /// This value, or none.
    Set(Option<u64>),
    /// The previous number plus this; the sum, if known.
    Add { delta: i64, sum: Option<i64> },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyWrite {
    pub(crate) change: Change,
    pub(crate) version: Option<Version>,
}

impl KeyWrite {
    /// The value that it left, if known.
    fn value(&self) -> Option<Option<u64>> {
        match self.change {
            Change::Set(value) => Some(value),
            Change::Add { sum, .. } => sum.map(|sum| Some(sum as u64)),
        }
    }

    pub(crate) fn is_delete(&self) -> bool {
        self.change == Change::Set(None)
    }
}

/// What an operation did to a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyStep {
    /// The operation, as an index into the history.
    pub(crate) operation: usize,
    /// Whether its outcome is [`Outcome::Ok`]; otherwise it is unknown.
    pub(crate) acknowledged: bool,
    pub(crate) read: Option<KeyRead>,
    pub(crate) write: Option<KeyWrite>,
}

/// The steps of a key, ordered by invocation.
#[derive(Debug)]
pub(crate) struct KeySteps {
    pub(crate) key: Key,
    pub(crate) steps: Vec<KeyStep>,
}

impl KeySteps {
    /// The version that a read saw, if it was told or can be traced.
    pub(crate) fn version_read(&self, read: &KeyRead) -> Option<Version> {
        read.observed.version.or(match read.source {
            ReadSource::Initial => Some(Version::INITIAL),
            ReadSource::Step(step) => self.steps[step].write.and_then(|write| write.version),
            _ => None,
        })
    }
}

/// The keys of a history, and the violations that are found on the way.
#[derive(Debug)]
pub(crate) struct Split {
    pub(crate) keys: Vec<KeySteps>,
    pub(crate) violations: Vec<Violation>,
}

/// The values of failed operations, with the index of the operation.
type Aborted = HashMap<u64, usize>;

pub(crate) fn split(history: &History) -> Split {
    let operations = history.operations();
    let mut violations = Vec::new();
    let mut keys: BTreeMap<Key, (Vec<KeyStep>, Aborted)> = BTreeMap::new();
    for (index, operation) in operations.iter().enumerate() {
        for access in &operation.accesses {
            if access.mode == AccessMode::Read && access.value.is_some_and(|value| value.torn) {
                let explanation = format!(
                    "a read of {} returned bytes that no operation wrote as a whole value",
                    access.key
                );
                let shown = vec![operation.clone()];
                violations.push(Violation::new(
                    ViolationKind::Torn,
                    Some(&access.key),
                    explanation,
                    shown,
                ));
            }
        }
        if operation.outcome == Outcome::Failed {
            for access in &operation.accesses {
                if let (AccessMode::Write, Some(value)) = (access.mode, access.value) {
                    keys.entry(access.key.clone()).or_default().1.insert(value.identity, index);
                }
            }
            continue;
        }
        for (key, step) in steps_of(index, operation, &mut violations) {
            keys.entry(key).or_default().0.push(step);
        }
    }
    let keys = keys
        .into_iter()
        .map(|(key, (steps, aborted))| {
            trace(KeySteps { key, steps }, &aborted, operations, &mut violations)
        })
        .collect::<Vec<_>>();
    for key_steps in &keys {
        find_backwards(key_steps, operations, &mut violations);
    }
    Split { keys, violations }
}

/// A step for each key that the operation touched.
fn steps_of(
    index: usize,
    operation: &Operation,
    violations: &mut Vec<Violation>,
) -> Vec<(Key, KeyStep)> {
    let acknowledged = operation.outcome == Outcome::Ok;
    let mut steps: Vec<(Key, KeyStep)> = Vec::with_capacity(operation.accesses.len());
    for access in &operation.accesses {
        if access.mode == AccessMode::Ask
            || access.mode == AccessMode::Read && access.value.is_some_and(|value| value.torn)
        {
            continue;
        }
        let place = steps.iter().position(|(key, _)| *key == access.key).unwrap_or_else(|| {
            steps.push((
                access.key.clone(),
                KeyStep { operation: index, acknowledged, read: None, write: None },
            ));
            steps.len() - 1
        });
        let step = &mut steps[place].1;
        let version = access.version;
        let value = access.value.map(|value| value.identity);
        match access.mode {
            AccessMode::Ask => {}
            AccessMode::Read => {
                let observed = Observed { version, value };
                let contradiction = match (&step.write, &step.read) {
                    (Some(write), _) => write.value().is_some_and(|written| written != value),
                    (None, Some(read)) => !agree(read.observed, observed),
                    (None, None) => {
                        step.read = Some(KeyRead { observed, source: ReadSource::Ambiguous });
                        false
                    }
                };
                if contradiction && acknowledged {
                    let explanation =
                        format!("the transaction saw two different states of {}", access.key);
                    let shown = vec![operation.clone()];
                    let kind = ViolationKind::NonRepeatableRead;
                    violations.push(Violation::new(kind, Some(&access.key), explanation, shown));
                }
            }
            AccessMode::Write => {
                step.write = Some(KeyWrite { change: Change::Set(value), version })
            }
            AccessMode::Add { delta } => {
                let sum = value.map(|sum| sum as i64);
                let change = match step.write.map(|write| write.change) {
                    None => Change::Add { delta, sum },
                    Some(Change::Set(before)) => {
                        Change::Set(Some((before.unwrap_or(0) as i64).wrapping_add(delta) as u64))
                    }
                    Some(Change::Add { delta: before, .. }) => {
                        Change::Add { delta: before.wrapping_add(delta), sum }
                    }
                };
                step.write = Some(KeyWrite { change, version });
            }
        }
    }
    steps
}

/// Whether two reads may have seen the same state.
fn agree(first: Observed, second: Observed) -> bool {
    let versions_agree = match (first.version, second.version) {
        (Some(first), Some(second)) => first == second,
        _ => true,
    };
    versions_agree && first.value == second.value
}

/// Finds the source of every read of a key, and the versions of writes that were not told their
/// version.
fn trace(
    mut key_steps: KeySteps,
    aborted: &Aborted,
    operations: &[Operation],
    violations: &mut Vec<Violation>,
) -> KeySteps {
    let KeySteps { key, steps } = &mut key_steps;
    let mut report = |kind, explanation, shown: &[usize]| {
        let shown = shown.iter().map(|&index| operations[index].clone()).collect();
        violations.push(Violation::new(kind, Some(key), explanation, shown));
    };
    let mut by_version: HashMap<Version, usize> = HashMap::new();
    let mut by_value: HashMap<Option<u64>, Vec<usize>> = HashMap::new();
    let mut values_seen: HashMap<Version, (Option<u64>, usize)> = HashMap::new();
    // An addition without a known sum may have left any number.
    let mut silent_addition = false;
    for (index, step) in steps.iter().enumerate() {
        let Some(write) = step.write else { continue };
        match write.value() {
            Some(value) => by_value.entry(value).or_default().push(index),
            None => silent_addition = true,
        }
        let Some(version) = write.version else { continue };
        if let Some(other) = by_version.insert(version, index) {
            let explanation = format!("two writes to {key} have the version {version}");
            let shown = [steps[other].operation, step.operation];
            report(ViolationKind::DuplicateVersion, explanation, &shown);
        }
    }
    let deleted = by_value.contains_key(&None);
    // The acknowledged reads come first: the reads of an operation of unknown outcome are not
    // binding.
    for acknowledged in [true, false] {
        for index in 0..steps.len() {
            if steps[index].acknowledged != acknowledged {
                continue;
            }
            let Some(KeyRead { observed, .. }) = steps[index].read else { continue };
            let reader = steps[index].operation;
            let mut complain = |kind, explanation, shown: &[usize]| {
                if acknowledged {
                    report(kind, explanation, shown);
                }
            };
            if let Some(version) = observed.version {
                let (seen, by) = *values_seen.entry(version).or_insert((observed.value, reader));
                if seen != observed.value && !by_version.contains_key(&version) {
                    let explanation =
                        format!("version {version} of {key} was seen with two values");
                    complain(ViolationKind::TwoValues, explanation, &[by, reader]);
                }
            }
            let candidates = by_value.get(&observed.value).map_or(&[][..], Vec::as_slice);
            let source = match (observed.version, observed.value) {
                (None | Some(Version::INITIAL), None) if !deleted => ReadSource::Initial,
                (Some(Version::INITIAL), None) => ReadSource::Initial,
                (None, None) => ReadSource::Ambiguous,
                (None, Some(_)) if candidates.len() > 1 => ReadSource::Ambiguous,
                (None, Some(_)) if candidates.len() == 1 && !silent_addition => {
                    ReadSource::Step(candidates[0])
                }
                (Some(version), _) if by_version.contains_key(&version) => {
                    let writer = by_version[&version];
                    if steps[writer]
                        .write
                        .and_then(|write| write.value())
                        .is_some_and(|v| v != observed.value)
                    {
                        let explanation =
                            format!("version {version} of {key} was read with another value");
                        complain(
                            ViolationKind::TwoValues,
                            explanation,
                            &[steps[writer].operation, reader],
                        );
                    }
                    ReadSource::Step(writer)
                }
                (Some(version), value)
                    if !candidates.is_empty() && (value.is_none() || !silent_addition) =>
                {
                    let untold = |&&index: &&usize| {
                        steps[index].write.is_some_and(|write| write.version.is_none())
                    };
                    let mut untold = candidates.iter().filter(untold);
                    match (untold.next(), untold.next()) {
                        (Some(&writer), None) => {
                            if acknowledged && let Some(write) = &mut steps[writer].write {
                                write.version = Some(version);
                                by_version.insert(version, writer);
                            }
                            ReadSource::Step(writer)
                        }
                        (Some(_), Some(_)) => ReadSource::SomeVersion,
                        (None, _) => {
                            let explanation = format!(
                                "a value of {key} with another version was read as {version}"
                            );
                            let writer = steps[candidates[0]].operation;
                            complain(ViolationKind::TwoVersions, explanation, &[writer, reader]);
                            ReadSource::Nothing
                        }
                    }
                }
                (version, Some(_)) if silent_addition => {
                    if version.is_some() {
                        ReadSource::SomeVersion
                    } else {
                        ReadSource::Ambiguous
                    }
                }
                (_, value) => {
                    match value.and_then(|value| aborted.get(&value)) {
                        Some(&writer) => {
                            let explanation =
                                format!("a read of {key} returned the value of a failed operation");
                            complain(ViolationKind::ReadOfAborted, explanation, &[writer, reader]);
                        }
                        None => {
                            let explanation =
                                format!("a read of {key} returned a value that no operation wrote");
                            complain(ViolationKind::NeverWritten, explanation, &[reader]);
                        }
                    }
                    ReadSource::Nothing
                }
            };
            let source = if source == ReadSource::Step(index) {
                let explanation =
                    format!("an operation read a value of {key} that it wrote itself only later");
                complain(ViolationKind::NeverWritten, explanation, &[reader]);
                ReadSource::Nothing
            } else {
                source
            };
            steps[index].read = Some(KeyRead { observed, source });
        }
    }
    key_steps
}

/// Finds actors that saw the key go back to an older version.
fn find_backwards(key_steps: &KeySteps, operations: &[Operation], violations: &mut Vec<Violation>) {
    let mut latest: HashMap<Actor, (Version, usize)> = HashMap::new();
    let mut ordered: Vec<&KeyStep> =
        key_steps.steps.iter().filter(|step| step.acknowledged).collect();
    ordered.sort_by_key(|step| operations[step.operation].sequence);
    for step in ordered {
        let read = step.read.as_ref().and_then(|read| key_steps.version_read(read));
        let written = step.write.and_then(|write| write.version);
        let actor = operations[step.operation].actor;
        for version in [read, written].into_iter().flatten() {
            let before = latest.get(&actor).copied();
            if let Some((newer, earlier)) = before
                && version < newer
            {
                let key = &key_steps.key;
                let explanation =
                    format!("for actor {actor}, {key} went back from {newer} to {version}");
                let mut shown = vec![operations[earlier].clone()];
                if earlier != step.operation {
                    shown.push(operations[step.operation].clone());
                }
                violations.push(Violation::new(
                    ViolationKind::Backwards,
                    Some(key),
                    explanation,
                    shown,
                ));
            }
            if before.is_none_or(|(newer, _)| newer < version) {
                latest.insert(actor, (version, step.operation));
            }
        }
    }
}

//! Was a lost key ever answered, and does a key begin anew once its loss is accepted?
//!
//! When more members die than the store has replicas, the store reports some keys as lost until the
//! program accepts the loss. From then on such a key is absent, or has a value put since. So each
//! acceptance begins a new *life* of a key. This module takes a history apart accordingly: the
//! accesses of each life become accesses to a key of its own (`k`, `k@1`, `k@2`), which the other
//! checkers judge like any key. It is absent at its beginning, and no value of an earlier life may
//! appear in it. The state of a key just before its loss is unknown, so no final read of a lost
//! life is judged.
//!
//! An operation that was in flight while the loss was accepted may belong to either life. Its reads
//! are not judged, and its writes may have happened in either life or in none.
//!
//! Judged here: once a call has reported a key as lost, no call returns an answer about it before
//! the acceptance begins.
//!
//! ```
//! use outlast_check::history::{Access, Actor, History, CallKind, Log, Outcome, Value};
//! use outlast_check::loss::Loss;
//! use outlast_check::report::{self, Run};
//!
//! let mut log = Log::new(Actor::new(0, 0));
//! let put = Access::write("a", Value::new(1));
//! log.invoke(1, CallKind::Put, vec![put.clone()]);
//! log.returned(2, Outcome::Ok, vec![put]);
//! log.invoke(50, CallKind::Get, vec![Access::ask("a")]);
//! log.returned(51, Outcome::Ok, vec![Access::read("a")]);
//! let mut run = Run::new(History::from_logs([log]).unwrap());
//! assert!(!report::judge(&run).ok(), "the value is gone");
//! let keys = ["a".into()].into();
//! let (begin_ns, end_ns) = (Some(30), Some(40));
//! run.losses = vec![Loss { keys, told_ns: 20, begin_ns, end_ns, ..Loss::default() }];
//! assert!(report::judge(&run).ok(), "its loss was told and accepted");
//! run.losses[0].begin_ns = Some(60);
//! assert!(!report::judge(&run).ok(), "an answer before the acceptance");
//! ```

use crate::durability::{Final, Observation};
use crate::history::{Access, AccessMode, History, Key, Operation, Outcome};
use crate::violation::{Violation, ViolationKind};
use std::collections::{BTreeMap, BTreeSet};

/// Keys that were lost together, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// The keys that are lost.
    pub keys: BTreeSet<Key>,
    /// Keys of other partitions that a transaction has locked whose record is lost. It is unknown
    /// whether the transaction happened, so these keys are not judged.
    pub locked: BTreeSet<Key>,
    /// When all these keys had been reported as lost.
    pub told_ns: u64,
    /// When the acceptance began, if it did.
    pub begin_ns: Option<u64>,
    /// When the acceptance was known to be complete.
    pub end_ns: Option<u64>,
}

/// The end of a life of a key.
#[derive(Clone, Copy, Debug)]
struct LifeEnd {
    told_ns: u64,
    begin_ns: u64,
    end_ns: u64,
}

/// The name of a key in a life.
fn in_life(key: &Key, life: usize) -> Key {
    if life == 0 {
        return key.clone();
    }
    let mut name = key.bytes().to_vec();
    name.extend(format!("@{life}").into_bytes());
    Key::from(name)
}

/// Takes the lives of each key apart in the history and in the observation. Also returns the
/// answers about lost keys.
pub(crate) fn take_apart(
    history: &History,
    observation: &Observation,
    losses: &[Loss],
) -> (History, Observation, Vec<Violation>) {
    if losses.is_empty() {
        return (history.clone(), observation.clone(), Vec::new());
    }
    let mut ends: BTreeMap<Key, Vec<LifeEnd>> = BTreeMap::new();
    let mut locked = BTreeSet::new();
    for loss in losses {
        locked.extend(loss.locked.iter().cloned());
        for key in &loss.keys {
            ends.entry(key.clone()).or_default().push(LifeEnd {
                told_ns: loss.told_ns,
                begin_ns: loss.begin_ns.unwrap_or(u64::MAX),
                end_ns: loss.end_ns.unwrap_or(u64::MAX),
            });
        }
    }
    ends.values_mut().for_each(|ends| ends.sort_by_key(|end| end.begin_ns));
    let mut violations = Vec::new();
    let mut operations = Vec::new();
    for mut operation in history.operations().iter().cloned() {
        operation.accesses.retain(|access| !locked.contains(&access.key));
        violations.extend(answered(&operation, &ends));
        split(operation, &ends, &mut operations);
    }
    let history = History::new(operations).expect("renaming keys keeps a history valid");
    let mut observation = observation.clone();
    for (key, ends) in &ends {
        observation.unread.extend((0..ends.len()).map(|life| in_life(key, life)));
        let Some(state) = &mut observation.end_state else { continue };
        let found = state.remove(key);
        if ends.last().is_some_and(|end| end.end_ns == u64::MAX) || found == Some(Final::DataLost) {
            observation.unread.insert(in_life(key, ends.len()));
        } else if let Some(found) = found {
            state.insert(in_life(key, ends.len()), found);
        }
    }
    if let Some(state) = &mut observation.end_state {
        state.retain(|key, _| !locked.contains(key));
    }
    (history, observation, violations)
}

/// An answer about a key that had been reported as lost.
fn answered(operation: &Operation, ends: &BTreeMap<Key, Vec<LifeEnd>>) -> Option<Violation> {
    if operation.outcome != Outcome::Ok {
        return None;
    }
    let return_ns = operation.return_ns?;
    let lost = operation.accesses.iter().find(|access| {
        let is_within =
            |end: &LifeEnd| operation.invoke_ns > end.told_ns && return_ns < end.begin_ns;
        access.mode != AccessMode::Ask && ends.get(&access.key).into_iter().flatten().any(is_within)
    })?;
    let explanation = format!("{} was answered after it had been reported as lost", lost.key);
    let shown = vec![operation.clone()];
    Some(Violation::new(ViolationKind::LostAnswered, Some(&lost.key), explanation, shown))
}

/// Renames the accesses of an operation to the lives that they belong to. An operation that may
/// belong to several lives becomes several operations of unknown outcome, each by an actor of its
/// own: it is unknown in which life it happened.
fn split(
    operation: Operation,
    ends: &BTreeMap<Key, Vec<LifeEnd>>,
    operations: &mut Vec<Operation>,
) {
    let (invoke_ns, return_ns) = (operation.invoke_ns, operation.return_ns.unwrap_or(u64::MAX));
    let lives = |access: &Access| {
        let ends = ends.get(&access.key).map_or(&[][..], Vec::as_slice);
        let first = ends.iter().filter(|end| invoke_ns > end.end_ns).count();
        (first, ends.iter().filter(|end| return_ns >= end.begin_ns).count().max(first))
    };
    let last = operation.accesses.iter().map(|access| lives(access).1).max().unwrap_or(0);
    let is_ambiguous = operation.accesses.iter().any(|access| lives(access).0 != lives(access).1);
    // Accesses with a single life are in the first operation alone.
    for later in 0..=if is_ambiguous { last } else { 0 } {
        let mut part = operation.clone();
        part.actor.thread += (later as u32) << 16;
        part.accesses.retain(|access| lives(access).0 + later <= lives(access).1);
        for access in &mut part.accesses {
            access.key = in_life(&access.key, lives(access).0 + later);
        }
        if is_ambiguous && operation.outcome != Outcome::Failed {
            part.outcome = Outcome::Unknown;
            part.accesses.retain(Access::changes);
            // The life that the version belongs to is unknown as well.
            part.accesses.iter_mut().for_each(|access| access.version = None);
        }
        if later == 0 || !part.accesses.is_empty() {
            operations.push(part);
        }
    }
}

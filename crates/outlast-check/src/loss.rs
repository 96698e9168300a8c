//! Was anything that is lost ever answered, and does what was given up start anew?
//!
//! When more members die than the store has copies, it says of some keys that they are lost, until somebody accepts that;
//! from then on they are absent, or what was put since. So each acceptance begins a new *life* of a key. This module takes
//! a history apart accordingly: the accesses of each life become those of a key of its own (`k`, `k@1`, `k@2`), which the
//! other checkers judge like any key: it is absent at its beginning, and nothing of a former life may come up in it. How a
//! life ended before it was lost is not known to anyone, so nothing is read of its end.
//!
//! An operation that was under way while the loss was accepted may belong to either life. Its reads are passed over, and
//! its writes may have happened in either or in none.
//!
//! What is judged here: once somebody was told that a key is lost, nobody else is given an answer before the acceptance begins.
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
//! run.losses = vec![Loss { keys, told_ns: 20, begin_ns: Some(30), end_ns: Some(40), ..Loss::default() }];
//! assert!(report::judge(&run).ok(), "its loss was told and accepted");
//! run.losses[0].begin_ns = Some(60);
//! assert!(!report::judge(&run).ok(), "an answer before the acceptance");
//! ```

use crate::durability::{Final, Observation};
use crate::history::{Access, AccessMode, History, Key, Operation, Outcome};
use crate::violation::{Violation, ViolationKind};
use std::collections::{BTreeMap, BTreeSet};

/// What was lost together, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// The keys that are lost.
    pub keys: BTreeSet<Key>,
    /// Keys that are there, and were locked by a transaction of which the record is lost: whether it had happened nobody
    /// knows. They are judged by nothing.
    pub locked: BTreeSet<Key>,
    /// When somebody had been told of all of them.
    pub told_ns: u64,
    /// When somebody began to accept it, if anybody did.
    pub begin_ns: Option<u64>,
    /// When it was known to be accepted.
    pub end_ns: Option<u64>,
}

/// When the life of a key ended.
#[derive(Clone, Copy, Debug)]
struct LifeEnd {
    told_ns: u64,
    begin_ns: u64,
    end_ns: u64,
}

/// The name of a key in one of its lives.
fn in_life(key: &Key, life: usize) -> Key {
    if life == 0 {
        return key.clone();
    }
    let mut name = key.bytes().to_vec();
    name.extend(format!("@{life}").into_bytes());
    Key::from(name)
}

/// The history and what was observed with the lives of each key taken apart, and what is wrong with the answers.
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
    let history = History::new(operations).expect("the same calls under other names are a history");
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

/// An answer about a key that somebody had been told to be lost.
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
    let explanation =
        format!("{} was answered after somebody had been told that it is lost", lost.key);
    let shown = vec![operation.clone()];
    Some(Violation::new(ViolationKind::LostAnswered, Some(&lost.key), explanation, shown))
}

/// Gives the accesses of an operation the names of the lives that they belong to. One that may belong to several lives
/// becomes several, of unknown outcome, by actors of their own: which of them happened nobody knows.
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
    // The place of an access in its lives: those with one life are in the first operation alone.
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
            // Which life the version is of is not known, either.
            part.accesses.iter_mut().for_each(|access| access.version = None);
        }
        if later == 0 || !part.accesses.is_empty() {
            operations.push(part);
        }
    }
}

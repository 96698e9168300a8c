//! Is every key, taken alone, linearizable?
//!
//! The search is Wing and Gong's with Lowe's memory: it builds an order of the operations step by
//! step, never takes an operation before all operations that had returned when it was invoked, and
//! never enters a configuration (set of taken operations, state of the key) twice. It is exact.
//! These rules keep it quick:
//!
//! - A read that fits the state is taken at once: this rules out no order.
//! - Versions grow in the order of the writes, so writes with versions that are known, or learned
//!   from a read, are taken in that order. If all versions are known, the search has no choice and
//!   is a single pass.
//! - A write is not taken while a read of the value that it overwrites is left.
//! - An operation of unknown outcome is left out if no read saw its write. Equal operations of
//!   unknown outcome are taken in the order of their invocation.
//! - Additions of unknown outcome are taken only right before an operation that does not fit
//!   without them, and only as many as it needs: all others can be postponed.
//!
//! A transaction takes part in every key it touches. Whether all keys *together* fit into a single
//! order is the question of [`crate::serializable`].
//!
//! ```
//! use outlast_check::history::{Access, Actor, History, CallKind, Log, Outcome, Value};
//! use outlast_check::register;
//!
//! let mut writer = Log::new(Actor::new(0, 0));
//! writer.invoke(0, CallKind::Put, vec![Access::write("a", Value::new(1))]); // It never returns.
//! let mut reader = Log::new(Actor::new(1, 0));
//! for (time, seen) in [(10, Access::read("a")), (20, Access::read("a").saw(Value::new(1)))] {
//!     reader.invoke(time, CallKind::Get, vec![Access::ask("a")]);
//!     reader.returned(time + 1, Outcome::Ok, vec![seen]);
//! }
//! // The write took effect between the two reads.
//! let history = History::from_logs([writer.clone(), reader.clone()]).unwrap();
//! assert!(register::check(&history).is_empty());
//!
//! reader.invoke(30, CallKind::Get, vec![Access::ask("a")]);
//! reader.returned(31, Outcome::Ok, vec![Access::read("a")]);
//! // It cannot have been undone.
//! let violations = register::check(&History::from_logs([writer, reader]).unwrap());
//! assert_eq!(violations.len(), 1);
//! assert_eq!(violations[0].operations.len(), 3);
//! ```

mod search;
mod shrink;

use search::{SearchResult, search};
use shrink::shrink;
use std::collections::HashSet;

use crate::history::{Actor, History, Key, Operation, Version};
use crate::per_key::{self, Change, KeySteps, Observed, ReadSource};
use crate::violation::{Violation, ViolationKind};

/// The number of configurations after which the search gives up.
const CONFIGURATIONS_MAX: usize = 1_000_000;

/// Checks every key of the history, and returns at most one violation for each key.
pub fn check(history: &History) -> Vec<Violation> {
    let split = per_key::split(history);
    split.keys.iter().filter_map(|steps| check_steps(steps, history.operations())).collect()
}

pub(crate) fn check_steps(key_steps: &KeySteps, operations: &[Operation]) -> Option<Violation> {
    let items = items(key_steps, operations);
    let mut budget = CONFIGURATIONS_MAX;
    let mut shown = match search(&items, &mut budget) {
        SearchResult::Linearizable => return None,
        SearchResult::Undecided => {
            let key = &key_steps.key;
            let explanation = format!(
                "the search for an order of the operations on {key} took too long and did not pass"
            );
            return Some(Violation::new(
                ViolationKind::Undecided,
                Some(key),
                explanation,
                Vec::new(),
            ));
        }
        SearchResult::Stuck(_) => shrink(&items),
    };
    shown.sort_by_key(|item| item.operation);
    let key = &key_steps.key;
    let explanation =
        format!("no order of these operations on {key} fits both their results and real time");
    let shown = shown.iter().map(|item| with_learned_version(item, key, operations)).collect();
    Some(Violation::new(ViolationKind::NotLinearizable, Some(key), explanation, shown))
}

/// The operation of an item. A write that was not told its version shows the version that its
/// readers saw.
fn with_learned_version(item: &Item, key: &Key, operations: &[Operation]) -> Operation {
    let mut operation = operations[item.operation].clone();
    let last_write =
        operation.accesses.iter_mut().rfind(|access| access.key == *key && access.changes());
    if let Some(access) = last_write {
        access.version = item.version;
    }
    operation
}

/// A step of the key, as the search needs it.
#[derive(Clone)]
struct Item {
    operation: usize,
    actor: Actor,
    sequence: u64,
    invoke_ns: u64,
    /// None if the outcome is unknown.
    return_ns: Option<u64>,
    read: Option<Observed>,
    /// The item whose write the read saw, if it is unambiguous.
    source: ItemSource,
    change: Option<Change>,
    version: Option<Version>,
}

impl Item {
    /// The amount, if this is a *silent addition*: an addition of unknown outcome whose sum and
    /// version are unknown.
    fn silent_addition(&self) -> Option<i64> {
        match self.change {
            Some(Change::Add { delta, sum: None })
                if self.return_ns.is_none() && self.read.is_none() && self.version.is_none() =>
            {
                Some(delta)
            }
            _ => None,
        }
    }

    /// The number that must be the state before it, if the item tells it.
    fn number_needed(&self) -> Option<i64> {
        match (self.read, self.change) {
            (Some(read), _) => read.value.map(|number| number as i64),
            (None, Some(Change::Add { delta, sum: Some(sum) })) => Some(sum.wrapping_sub(delta)),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ItemSource {
    Unknown,
    Initial,
    Item(usize),
}

fn items(key_steps: &KeySteps, operations: &[Operation]) -> Vec<Item> {
    let steps = &key_steps.steps;
    let mut seen: HashSet<Observed> = HashSet::new();
    for read in steps.iter().filter_map(|step| step.read) {
        seen.insert(read.observed);
        seen.insert(Observed { version: None, ..read.observed });
    }
    let unversioned_reads: HashSet<Option<u64>> = steps
        .iter()
        .filter_map(|step| step.read)
        .filter(|read| read.observed.version.is_none())
        .map(|read| read.observed.value)
        .collect();
    // An addition depends on every write before it.
    let added = steps
        .iter()
        .any(|step| matches!(step.write, Some(write) if !matches!(write.change, Change::Set(_))));
    let mut place = vec![None; steps.len()];
    let mut items = Vec::with_capacity(steps.len());
    for (index, step) in steps.iter().enumerate() {
        let write = step.write;
        if !step.acknowledged {
            let matters = match write.map(|write| (write.change, write.version)) {
                None => false,
                Some(_) if added => true,
                Some((Change::Add { .. }, _)) => true,
                Some((Change::Set(value), None)) => {
                    seen.contains(&Observed { version: None, value })
                }
                Some((Change::Set(value), version)) => {
                    seen.contains(&Observed { version, value })
                        || unversioned_reads.contains(&value)
                }
            };
            if !matters {
                continue;
            }
        }
        if step.acknowledged && step.read.is_none() && write.is_none() {
            continue;
        }
        let operation = &operations[step.operation];
        place[index] = Some(items.len());
        items.push(Item {
            operation: step.operation,
            actor: operation.actor,
            sequence: operation.sequence,
            invoke_ns: operation.invoke_ns,
            return_ns: operation.return_ns.filter(|_| step.acknowledged),
            read: step.read.map(|read| read.observed),
            source: ItemSource::Unknown,
            change: write.map(|write| write.change),
            version: write.and_then(|write| write.version),
        });
    }
    for (index, step) in steps.iter().enumerate() {
        if let (Some(item), Some(read)) = (place[index], step.read) {
            items[item].source = match read.source {
                ReadSource::Initial => ItemSource::Initial,
                ReadSource::Step(writer) => {
                    place[writer].map_or(ItemSource::Unknown, ItemSource::Item)
                }
                _ => ItemSource::Unknown,
            };
        }
    }
    items
}

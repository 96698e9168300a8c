//! All checkers at once, as the counts of the `outlast chaos` report.
//!
//! ```
//! use outlast_check::history::{Access, Actor, History, Kind, Log, Outcome, Value, Version};
//! use outlast_check::report::{self, Run};
//!
//! let mut log = Log::new(Actor::new(0, 0));
//! let put = Access::write("a", Value::new(1)).at(Version::new(1, 0));
//! log.invoke(1, Kind::Put, vec![put.clone()]);
//! log.returned(2, Outcome::Ok, vec![put]);
//! let report = report::judge(&Run::new(History::from_logs([log]).unwrap()));
//! assert!(report.ok());
//! assert_eq!(report.acked, 1);
//! ```

use crate::durability::{self, Observation};
use crate::history::History;
use crate::violation::{Violation, ViolationKind};
use crate::{per_key, register, serializable};

/// A run to be judged.
#[derive(Clone, Debug)]
pub struct Run {
    /// What the actors did.
    pub history: History,
    /// What else is known.
    pub observation: Observation,
}

impl Run {
    /// A run without faults, whose final state was not read, observed until its last event.
    pub fn new(history: History) -> Self {
        let operations = history.operations();
        let times = operations.iter().map(|operation| operation.return_ns.unwrap_or(operation.invoke_ns));
        let end_ns = times.max().unwrap_or(0);
        Self { history, observation: Observation::until(end_ns) }
    }
}

/// The counts and what they are based on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Operations that wrote and were acknowledged.
    pub acked: u64,
    /// Acknowledged writes that are missing, or superseded by older ones, at the end.
    pub lost: u64,
    /// Keys whose loss the store admits. They are judged by nothing else.
    pub data_lost: u64,
    /// Reads of mixes or fragments.
    pub torn: u64,
    /// Reads older than a write acknowledged before they began.
    pub stale: u64,
    /// Calls that did not come back in time.
    pub hung: u64,
    /// Keys that are not linearizable, cycles over several keys, and other faults of versions and values.
    /// An undecided key counts too: it is no pass.
    pub nonlinearizable: u64,
    /// All that was found.
    pub violations: Vec<Violation>,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn ok(&self) -> bool {
        self.lost == 0 && self.torn == 0 && self.stale == 0 && self.hung == 0 && self.nonlinearizable == 0
    }
}

/// Judges a run by all checkers.
pub fn judge(run: &Run) -> Report {
    let durability = durability::check(&run.history, &run.observation);
    let mut violations = durability.violations;
    let history = without_lost_keys(run);
    let split = per_key::split(&history);
    let operations = history.operations();
    let registers = split.keys.iter().filter_map(|steps| register::check_steps(steps, operations));
    let mut order: Vec<Violation> = registers.collect();
    order.extend(serializable::check_split(&split, operations));
    // Torn values are counted under their own name.
    order.retain(|violation| violation.kind != ViolationKind::Torn);
    let nonlinearizable = order.len() as u64;
    violations.extend(order);
    Report {
        acked: durability.acked,
        lost: durability.lost,
        data_lost: durability.data_lost,
        torn: durability.torn,
        stale: durability.stale,
        hung: durability.hung,
        nonlinearizable,
        violations,
    }
}

/// The history with its final state, less the keys whose loss the store admits: a program that accepts a
/// loss sees them start anew.
fn without_lost_keys(run: &Run) -> History {
    let history = durability::with_end_state(&run.history, &run.observation);
    let lost = durability::data_lost_keys(&run.observation);
    if lost.is_empty() {
        return history;
    }
    let mut operations = history.into_operations();
    for operation in &mut operations {
        operation.accesses.retain(|access| !lost.contains(&access.key));
    }
    History::new(operations).expect("a history with fewer accesses is a history")
}

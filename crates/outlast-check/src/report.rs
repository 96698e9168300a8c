//! All checkers together, as the counts of the `outlast chaos` report.
//!
//! ```
//! use outlast_check::history::{Access, Actor, History, CallKind, Log, Outcome, Value, Version};
//! use outlast_check::report::{self, Run};
//!
//! let mut log = Log::new(Actor::new(0, 0));
//! let put = Access::write("a", Value::new(1)).at(Version::new(1, 0));
//! log.invoke(1, CallKind::Put, vec![put.clone()]);
//! log.returned(2, Outcome::Ok, vec![put]);
//! let report = report::judge(&Run::new(History::from_logs([log]).unwrap()));
//! assert!(report.ok());
//! assert_eq!(report.acked, 1);
//! ```

use crate::durability::{self, Final, Observation};
use crate::history::{History, Key};
use crate::loss::{self, Loss};
use crate::violation::{Violation, ViolationKind};
use crate::{per_key, register, serializable};
use std::collections::BTreeSet;

/// A run to be judged.
#[derive(Clone, Debug)]
pub struct Run {
    /// What the actors did.
    pub history: History,
    /// What else is known about the run.
    pub observation: Observation,
    /// The losses during the run, as far as the store has reported them.
    pub losses: Vec<Loss>,
}

impl Run {
    /// A run without faults, whose final state was not read, observed until its last event.
    pub fn new(history: History) -> Self {
        let operations = history.operations();
        let times =
            operations.iter().map(|operation| operation.return_ns.unwrap_or(operation.invoke_ns));
        let end_ns = times.max().unwrap_or(0);
        Self { history, observation: Observation::until(end_ns), losses: Vec::new() }
    }
}

/// The counts, and the violations behind them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Operations that wrote and were acknowledged.
    pub acked: u64,
    /// Acknowledged writes that are missing at the end, or superseded by older writes.
    pub lost: u64,
    /// Keys that the store reports as lost, at the end or during the run; see [`crate::loss`].
    pub data_lost: u64,
    /// Reads of mixes or fragments.
    pub torn: u64,
    /// Reads older than a write acknowledged before they began.
    pub stale: u64,
    /// Calls that did not return in time.
    pub hung: u64,
    /// Keys that are not linearizable, cycles over several keys, and other faults of versions and
    /// values. An undecided key counts, because it did not pass, and so does an answer about a lost
    /// key.
    pub nonlinearizable: u64,
    /// All violations.
    pub violations: Vec<Violation>,
}

impl Report {
    /// Whether there is no violation.
    pub fn ok(&self) -> bool {
        self.lost == 0
            && self.torn == 0
            && self.stale == 0
            && self.hung == 0
            && self.nonlinearizable == 0
    }
}

/// Judges a run by all checkers.
pub fn judge(run: &Run) -> Report {
    let (history, observation, answered) =
        loss::take_apart(&run.history, &run.observation, &run.losses);
    let durability = durability::check(&history, &observation);
    let mut violations = durability.violations;
    let history = durability::with_end_state(&history, &observation);
    let split = per_key::split(&history);
    let operations = history.operations();
    let registers = split.keys.iter().filter_map(|steps| register::check_steps(steps, operations));
    let mut order: Vec<Violation> = registers.collect();
    order.extend(answered);
    order.extend(serializable::check_split(&split, operations));
    // Torn values are counted as `torn`.
    order.retain(|violation| violation.kind != ViolationKind::Torn);
    let nonlinearizable = order.len() as u64;
    violations.extend(order);
    Report {
        acked: durability.acked,
        lost: durability.lost,
        data_lost: durability.data_lost + lost_on_the_way(run),
        torn: durability.torn,
        stale: durability.stale,
        hung: durability.hung,
        nonlinearizable,
        violations,
    }
}

/// How many keys were lost during the run and are not lost at the end.
fn lost_on_the_way(run: &Run) -> u64 {
    let state = run.observation.end_state.as_ref();
    let is_lost_now =
        |key: &Key| state.is_some_and(|state| state.get(key) == Some(&Final::DataLost));
    let keys: BTreeSet<&Key> = run.losses.iter().flat_map(|loss| &loss.keys).collect();
    keys.into_iter().filter(|key| !is_lost_now(key)).count() as u64
}

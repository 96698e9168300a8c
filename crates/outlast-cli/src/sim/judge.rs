//! What the record of a simulated run says.

use super::lock;
use super::member::RunRecord;
use outlast_check::history::History;
use outlast_check::report::{self, Run};

/// What is wrong with what the calls were told.
pub(super) fn judge(record: &RunRecord, members: usize, has_stops: bool) -> Vec<(String, String)> {
    let mut operations = Vec::new();
    for text in record.records.values() {
        match History::parse(&lock(text)) {
            Ok(history) => operations.extend(history.into_operations()),
            Err(error) => return vec![("record".into(), error.to_string())],
        }
    }
    let history = match History::new(operations) {
        Ok(history) => history,
        Err(error) => return vec![("record".into(), error.to_string())],
    };
    let mut run = Run::new(history);
    run.losses = record.losses.0.clone();
    // The simulator has ended all members: a call without an end is one of the dead.
    run.observation.dead = (0..members as u32).collect();
    if has_stops {
        // A caller that is stopped itself comes back when it is resumed; the simulator ends a run that hangs.
        run.observation.undisturbed_bound_ns = u64::MAX;
    }
    let judged = report::judge(&run);
    judged
        .violations
        .iter()
        .map(|violation| (violation.kind.to_string(), violation.to_string()))
        .collect()
}

//! Judges the record of a simulated run.

use super::lock;
use super::member::RunRecord;
use outlast_check::history::History;
use outlast_check::report::{self, Run};
use std::path::Path;

/// The violations in the results of the calls: the kind and a description of each. Writes the
/// history to a file, if there is a path for it.
pub(super) fn judge(
    record: &RunRecord,
    members: usize,
    has_stops: bool,
    path: Option<&Path>,
) -> Vec<(String, String)> {
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
    if let Some(path) = path
        && let Err(error) = std::fs::write(path, history.to_json())
    {
        return vec![("record".into(), format!("writing {}: {error}", path.display()))];
    }
    let mut run = Run::new(history);
    run.losses = record.losses.0.clone();
    // The simulator has ended all members, so a call without an end is a dead member's call.
    run.observation.dead = (0..members as u32).collect();
    if has_stops {
        // A stopped caller returns when it is resumed, and the simulator itself ends a run that
        // hangs.
        run.observation.undisturbed_bound_ns = u64::MAX;
    }
    let judged = report::judge(&run);
    judged
        .violations
        .iter()
        .map(|violation| (violation.kind.to_string(), violation.to_string()))
        .collect()
}

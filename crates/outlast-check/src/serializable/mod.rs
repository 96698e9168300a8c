//! Do calls and transactions over all keys fit into a single order that respects real time?
//!
//! Every operation is a transaction (a call is a transaction of a single step). The versions of a
//! key tell the order of its writes, and so the dependencies between operations: the writer of a
//! version comes before the writer of the next version (ww), the writer before its readers (wr),
//! the readers of a version before the writer of the next version (rw). In real time, an operation
//! that had returned comes before an operation that was invoked later. An order exists exactly if
//! these edges form no cycle. Tarjan's algorithm finds the strongly connected components, and a
//! short cycle of each is reported.
//!
//! Real time needs no edge for each of the n² pairs: the returns form a chain of barriers, each
//! operation has an edge to the barrier of its return, and the last barrier before an invocation
//! has an edge to the invoked operation.
//!
//! An operation of unknown outcome takes part if a read saw one of its writes. Its other writes,
//! and acknowledged writes without a known version, are placed only after the writes that real
//! time, or a read of what they overwrote, puts before them. So the answer has no false alarms, but
//! is not complete for these writes. It is not complete either for reads of an absent key that may
//! have seen one of several deletions, and for sums with an addition of unknown outcome
//! ([`crate::register`] is exact there). Record versions where you can.
//!
//! Also found here: torn values, two values for a version, versions that repeat, values that no
//! operation wrote or that a failed operation was about to write, transactions that contradict
//! themselves, and keys that an actor saw go back to an older version.
//!
//! ```
//! use outlast_check::history::{Access, Actor, History, CallKind, Log, Outcome, Value, Version};
//! use outlast_check::serializable;
//!
//! // Write skew: each transaction reads the key that the other writes, before that write.
//! let mut logs = Vec::new();
//! for (member, read, write) in [(0, "x", "y"), (1, "y", "x")] {
//!     let mut log = Log::new(Actor::new(member, 0));
//!     let accesses = vec![
//!         Access::read(read),
//!         Access::write(write, Value::new(1)).at(Version::new(1, member)),
//!     ];
//!     log.invoke(0, CallKind::Transaction, vec![]);
//!     log.returned(9, Outcome::Ok, accesses);
//!     logs.push(log);
//! }
//! let violations = serializable::check(&History::from_logs(logs).unwrap());
//! assert_eq!(
//!     violations[0].to_string(),
//!     "cycle: write skew: these operations each come before the next, in a circle\n  \
//!      (0) 0/0 #0 [0..9] transaction: read x absent, write y v1.0 =1 -> ok\n  \
//!      (1) 1/0 #0 [0..9] transaction: read y absent, write x v1.1 =1 -> ok\n  \
//!      (0) read x the initial state, before (1) which overwrote it with v1.1\n  \
//!      (1) read y the initial state, before (0) which overwrote it with v1.0\n"
//! );
//! ```

mod graph;

use graph::{Cycle, Graph, GraphEdge};
use std::collections::BTreeMap;

use crate::history::{self, History, Operation, Outcome, Version};
use crate::per_key::{self, Change, KeyRead, KeyStep, KeySteps, ReadSource, Split};
use crate::violation::{CycleEdge, EdgeKind, Violation, ViolationKind};

/// Checks the history, and returns each simple fault and a cycle for each strongly connected
/// component.
pub fn check(history: &History) -> Vec<Violation> {
    check_split(&per_key::split(history), history.operations())
}

pub(crate) fn check_split(split: &Split, operations: &[Operation]) -> Vec<Violation> {
    let mut violations = split.violations.clone();
    let included = included(split, operations);
    let mut graph = Graph { edges: vec![Vec::new(); operations.len()] };
    for (number, key_steps) in split.keys.iter().enumerate() {
        add_dependencies(&mut graph, number, key_steps, operations, &included);
        find_wrong_sums(key_steps, operations, &included, &mut violations);
    }
    add_real_time(&mut graph, operations, &included);
    let cycles = graph.cycles(operations);
    violations.extend(cycles.into_iter().map(|cycle| describe(cycle, split, operations)));
    violations
}

/// Which operations certainly took effect: the acknowledged operations, and all operations whose
/// writes they saw, directly or through others.
fn included(split: &Split, operations: &[Operation]) -> Vec<bool> {
    let mut included: Vec<bool> =
        operations.iter().map(|operation| operation.outcome == Outcome::Ok).collect();
    let mut seen_by: Vec<Vec<usize>> = vec![Vec::new(); operations.len()];
    for key_steps in &split.keys {
        for step in &key_steps.steps {
            if let Some(KeyRead { source: ReadSource::Step(writer), .. }) = step.read {
                seen_by[step.operation].push(key_steps.steps[writer].operation);
            }
        }
    }
    let mut open: Vec<usize> = (0..operations.len()).filter(|&index| included[index]).collect();
    while let Some(reader) = open.pop() {
        for &writer in &seen_by[reader] {
            if !std::mem::replace(&mut included[writer], true) {
                open.push(writer);
            }
        }
    }
    included
}

/// Adds the ww, wr and rw edges of a key.
fn add_dependencies(
    graph: &mut Graph,
    key: usize,
    key_steps: &KeySteps,
    operations: &[Operation],
    included: &[bool],
) {
    let steps = &key_steps.steps;
    // The writes in the order of their versions.
    let mut chain: Vec<(Version, usize)> = Vec::new();
    let mut unplaced: Vec<usize> = Vec::new();
    for step in steps.iter().filter(|step| included[step.operation]) {
        match step.write {
            Some(write) if write.version.is_some() => {
                chain.extend(write.version.map(|version| (version, step.operation)));
            }
            Some(_) => unplaced.push(step.operation),
            None => {}
        }
    }
    chain.sort_unstable();
    for pair in chain.windows(2) {
        let [(before, from), (after, to)] = [pair[0], pair[1]];
        let kind = EdgeKind::WriteWrite;
        graph.add(
            from,
            GraphEdge { to, kind, key, from_version: Some(before), to_version: Some(after) },
        );
    }
    // The readers of each version, for the writes without a version.
    let mut readers: Vec<(Version, usize)> = Vec::new();
    for step in steps.iter().filter(|step| included[step.operation]) {
        let Some(read) = step.read else { continue };
        let reader = step.operation;
        let Some((earliest, latest)) =
            versions_possible(key_steps, &read, reader, &chain, operations, included)
        else {
            if let ReadSource::Step(writer) = read.source {
                let kind = EdgeKind::WriteRead;
                let from = steps[writer].operation;
                graph.add(
                    from,
                    GraphEdge { to: reader, kind, key, from_version: None, to_version: None },
                );
            }
            continue;
        };
        let told = (earliest == latest).then_some(earliest);
        if let Ok(writer) = chain.binary_search_by_key(&earliest, |&(version, _)| version) {
            let kind = EdgeKind::WriteRead;
            let from_version = Some(earliest);
            graph.add(
                chain[writer].1,
                GraphEdge { to: reader, kind, key, from_version, to_version: told },
            );
        }
        let next = chain.partition_point(|&(version, _)| version <= latest);
        if let Some(&(version, to)) = chain.get(next) {
            let kind = EdgeKind::ReadWrite;
            graph.add(
                reader,
                GraphEdge { to, kind, key, from_version: told, to_version: Some(version) },
            );
        }
        readers.push((latest, reader));
    }
    add_overwritten_reads(graph, key, key_steps, included);
    readers.sort_unstable();
    for writer in unplaced {
        // Its place is certain only so far: it comes after the writes that had returned before it
        // was invoked, and hence after the readers of the last of them.
        let before =
            chain.iter().rposition(|&(_, other)| operations[other].precedes(&operations[writer]));
        let floor = before.map_or(Version::INITIAL, |place| chain[place].0);
        if let Some(place) = before {
            let kind = EdgeKind::WriteWrite;
            let from_version = Some(floor);
            graph.add(
                chain[place].1,
                GraphEdge { to: writer, kind, key, from_version, to_version: None },
            );
        }
        let from = readers.partition_point(|&(version, _)| version < floor);
        for &(_, reader) in readers[from..].iter().take_while(|&&(version, _)| version == floor) {
            let kind = EdgeKind::ReadWrite;
            graph.add(
                reader,
                GraphEdge { to: writer, kind, key, from_version: Some(floor), to_version: None },
            );
        }
    }
}

/// An operation that reads and writes a key overwrites exactly what it read, whatever version it
/// made. So all other readers of that state come before it.
fn add_overwritten_reads(graph: &mut Graph, key: usize, key_steps: &KeySteps, included: &[bool]) {
    let mut readers: BTreeMap<Option<usize>, Vec<&KeyStep>> = BTreeMap::new();
    for step in key_steps.steps.iter().filter(|step| included[step.operation]) {
        match step.read.map(|read| read.source) {
            Some(ReadSource::Initial) => readers.entry(None).or_default().push(step),
            Some(ReadSource::Step(writer)) => readers.entry(Some(writer)).or_default().push(step),
            _ => {}
        }
    }
    for readers in readers.values() {
        let without_place =
            |step: &&&KeyStep| step.write.is_some_and(|write| write.version.is_none());
        for overwriter in readers.iter().filter(without_place) {
            for reader in readers {
                let from_version = reader.read.and_then(|read| key_steps.version_read(&read));
                let to = overwriter.operation;
                let edge = GraphEdge {
                    to,
                    kind: EdgeKind::ReadWrite,
                    key,
                    from_version,
                    to_version: None,
                };
                graph.add(reader.operation, edge);
            }
        }
    }
}

/// The earliest and the latest version that a read can have seen, or none if neither is certain.
fn versions_possible(
    key_steps: &KeySteps,
    read: &KeyRead,
    reader: usize,
    chain: &[(Version, usize)],
    operations: &[Operation],
    included: &[bool],
) -> Option<(Version, Version)> {
    if read.source == ReadSource::Nothing {
        // The read was reported already, and a cycle would only add confusion.
        return None;
    }
    if let Some(version) = key_steps.version_read(read) {
        return Some((version, version));
    }
    if read.source != ReadSource::Ambiguous || read.observed.value.is_some() {
        return None;
    }
    // The key was absent: before all writes, or after a deletion that had begun by then.
    let mut possible = vec![Version::INITIAL];
    for step in &key_steps.steps {
        let Some(write) = step.write.filter(per_key::KeyWrite::is_delete) else { continue };
        if operations[reader].precedes(&operations[step.operation]) {
            continue;
        }
        match write.version {
            Some(version) if included[step.operation] => possible.push(version),
            _ => return None,
        }
    }
    possible.sort_unstable();
    let latest = *possible.last()?;
    let overwritten = |version: Version| {
        let next = chain.partition_point(|&(other, _)| other <= version);
        chain.get(next).is_some_and(|&(_, writer)| operations[writer].precedes(&operations[reader]))
    };
    possible.retain(|&version| !overwritten(version));
    // If all are overwritten, the read is stale in any case.
    let earliest = possible.first().copied().unwrap_or(latest);
    Some((earliest, possible.last().copied().unwrap_or(latest)))
}

/// Checks that additions add to the number before them: the cycle search does not compute sums.
fn find_wrong_sums(
    key_steps: &KeySteps,
    operations: &[Operation],
    included: &[bool],
    violations: &mut Vec<Violation>,
) {
    let writes = || key_steps.steps.iter().filter_map(|step| step.write.map(|write| (step, write)));
    let all_certain =
        writes().all(|(step, write)| included[step.operation] && write.version.is_some());
    if !all_certain || !writes().any(|(_, write)| matches!(write.change, Change::Add { .. })) {
        // An addition of unknown outcome may explain any sum; the search of `register` decides.
        return;
    }
    let mut chain: Vec<_> = writes().collect();
    chain.sort_by_key(|(_, write)| write.version);
    let mut number = Some(0i64);
    let mut before = None;
    for (step, write) in chain {
        let after = match write.change {
            Change::Set(value) => Some(value.unwrap_or(0) as i64),
            Change::Add { delta, sum } => {
                let expected = number.map(|number| number.wrapping_add(delta));
                if let (Some(expected), Some(sum)) = (expected, sum)
                    && expected != sum
                {
                    let key = &key_steps.key;
                    let explanation =
                        format!("an addition to {key} made {sum} where {expected} was due");
                    let shown: Vec<usize> = before.into_iter().chain([step.operation]).collect();
                    let shown =
                        shown.into_iter().map(|index: usize| operations[index].clone()).collect();
                    violations.push(Violation::new(
                        ViolationKind::WrongSum,
                        Some(key),
                        explanation,
                        shown,
                    ));
                }
                sum.or(expected)
            }
        };
        number = after;
        before = Some(step.operation);
    }
}

/// Adds the edges of real time and of each actor's own order.
fn add_real_time(graph: &mut Graph, operations: &[Operation], included: &[bool]) {
    for session in history::sessions(operations) {
        let mut before = None;
        for index in session.into_iter().filter(|&index| included[index]) {
            if let Some(before) = before {
                graph.add_real_time(before, index);
            }
            if operations[index].outcome == Outcome::Ok {
                before = Some(index);
            }
        }
    }
    // At equal times invocations come before returns, so that the operations are concurrent.
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (index, operation) in operations.iter().enumerate().filter(|&(index, _)| included[index]) {
        events.push((operation.invoke_ns, false, index));
        if let (Outcome::Ok, Some(return_ns)) = (operation.outcome, operation.return_ns) {
            events.push((return_ns, true, index));
        }
    }
    events.sort_unstable();
    let mut barrier: Option<usize> = None;
    let mut barrier_used = true;
    for (_, is_return, index) in events {
        if !is_return {
            if let Some(barrier) = barrier {
                graph.add_real_time(barrier, index);
                barrier_used = true;
            }
            continue;
        }
        // Returns with no invocation between them share a barrier.
        if barrier_used {
            let next = graph.edges.len();
            graph.edges.push(Vec::new());
            if let Some(barrier) = barrier {
                graph.add_real_time(barrier, next);
            }
            barrier = Some(next);
            barrier_used = false;
        }
        if let Some(barrier) = barrier {
            graph.add_real_time(index, barrier);
        }
    }
}

fn describe(cycle: Cycle, split: &Split, operations: &[Operation]) -> Violation {
    let count = |kind| cycle.iter().filter(|(_, edge)| edge.kind == kind).count();
    let name =
        match (count(EdgeKind::RealTime), count(EdgeKind::ReadWrite), count(EdgeKind::WriteRead)) {
            (0, 0, 0) => "dirty write",
            (0, 0, _) => "circular information flow",
            (0, 1, _) => "lost update or read skew",
            (0, _, _) => "write skew",
            (_, 0, _) => "order against real time",
            (_, 1, _) => "stale read",
            (_, _, _) => "stale reads",
        };
    let length = cycle.len();
    let edges = cycle.iter().enumerate().map(|(index, (_, edge))| CycleEdge {
        from: index,
        to: (index + 1) % length,
        kind: edge.kind,
        key: (edge.kind != EdgeKind::RealTime).then(|| split.keys[edge.key].key.clone()),
        from_version: edge.from_version,
        to_version: edge.to_version,
    });
    let edges = edges.collect();
    let shown = cycle.iter().map(|&(node, _)| operations[node].clone()).collect();
    let explanation = format!("{name}: these operations each come before the next, in a circle");
    Violation { cycle: edges, ..Violation::new(ViolationKind::Cycle, None, explanation, shown) }
}

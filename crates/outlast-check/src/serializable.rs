//! Do calls and transactions over all keys fit into one order that respects real time?
//!
//! Every operation is a transaction (a call is a transaction of one). The versions of a key tell the order
//! of its writes, and so who must come before whom: the writer of a version before the writer of the next
//! (ww), the writer before its readers (wr), the readers of a version before the writer of the next (rw).
//! Real time adds that what had returned comes before what was invoked later. An order exists exactly if
//! these edges form no cycle; Tarjan's algorithm finds the knots, and a short cycle of each is reported.
//!
//! Real time needs no edge for each of the n² pairs: the returns are strung onto a chain of barriers, each
//! operation leads to the barrier of its return, and the last barrier before an invocation leads to it.
//!
//! An operation of unknown outcome takes part if someone saw one of its writes. Its other writes, and
//! acknowledged writes whose versions nobody was told, are placed as late as real time, or a read of what
//! they overwrote, proves. The answer stays free of false alarms but is no longer complete for these. The
//! same holds for reads of an absent key that may have seen one of several deletions, and for sums where
//! an addition is of unknown outcome ([`crate::register`] is exact there). Record versions where you can.
//!
//! Also found here: torn values, two values for one version, versions that repeat, values that nobody
//! wrote or that a failed operation was about to write, transactions that contradict themselves, and keys
//! that go back before the eyes of one actor.
//!
//! ```
//! use outlast_check::history::{Access, Actor, History, Kind, Log, Outcome, Value, Version};
//! use outlast_check::serializable;
//!
//! // Write skew: each transaction reads what the other one writes, and sees it unwritten.
//! let mut logs = Vec::new();
//! for (member, read, write) in [(0, "x", "y"), (1, "y", "x")] {
//!     let mut log = Log::new(Actor::new(member, 0));
//!     let accesses = vec![
//!         Access::read(read),
//!         Access::write(write, Value::new(1)).at(Version::new(1, member)),
//!     ];
//!     log.invoke(0, Kind::Transaction, vec![]);
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

use std::collections::{BTreeMap, VecDeque};

use crate::history::{self, History, Operation, Outcome, Version};
use crate::per_key::{self, Change, KeySteps, Read, Source, Split, Step};
use crate::violation::{Edge, EdgeKind, Violation, ViolationKind};

/// From how many operations of a knot a shortest cycle is searched.
const CYCLE_STARTS_MAX: usize = 64;

/// Checks the history, and returns what is wrong: each simple fault, and one cycle for each knot.
pub fn check(history: &History) -> Vec<Violation> {
    check_split(&per_key::split(history), history.operations())
}

pub(crate) fn check_split(split: &Split, operations: &[Operation]) -> Vec<Violation> {
    let mut violations = split.violations.clone();
    let included = included(split, operations);
    let mut graph = Graph { arcs: vec![Vec::new(); operations.len()] };
    for (number, key_steps) in split.keys.iter().enumerate() {
        add_dependencies(&mut graph, number, key_steps, operations, &included);
        find_wrong_sums(key_steps, operations, &included, &mut violations);
    }
    add_real_time(&mut graph, operations, &included);
    let cycles = graph.cycles(operations);
    violations.extend(cycles.into_iter().map(|cycle| describe(cycle, split, operations)));
    violations
}

/// Which operations took effect for certain: the acknowledged ones, and all that one of these saw.
fn included(split: &Split, operations: &[Operation]) -> Vec<bool> {
    let mut included: Vec<bool> =
        operations.iter().map(|operation| operation.outcome == Outcome::Ok).collect();
    let mut seen_by: Vec<Vec<usize>> = vec![Vec::new(); operations.len()];
    for key_steps in &split.keys {
        for step in &key_steps.steps {
            if let Some(Read { source: Source::Step(writer), .. }) = step.read {
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

/// Why one node comes before another.
#[derive(Clone, Copy, Debug)]
struct Arc {
    to: usize,
    kind: EdgeKind,
    key: usize,
    from_version: Option<Version>,
    to_version: Option<Version>,
}

/// The operations, followed by the barriers of real time.
struct Graph {
    arcs: Vec<Vec<Arc>>,
}

impl Graph {
    fn add(&mut self, from: usize, arc: Arc) {
        if from != arc.to {
            self.arcs[from].push(arc);
        }
    }

    fn add_real_time(&mut self, from: usize, to: usize) {
        let arc =
            Arc { to, kind: EdgeKind::RealTime, key: 0, from_version: None, to_version: None };
        self.add(from, arc);
    }
}

/// The ww, wr and rw edges of one key.
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
        graph.add(from, Arc { to, kind, key, from_version: Some(before), to_version: Some(after) });
    }
    // The readers of each version, for the writes without a place.
    let mut readers: Vec<(Version, usize)> = Vec::new();
    for step in steps.iter().filter(|step| included[step.operation]) {
        let Some(read) = step.read else { continue };
        let reader = step.operation;
        let Some((earliest, latest)) =
            versions_possible(key_steps, &read, reader, &chain, operations, included)
        else {
            if let Source::Step(writer) = read.source {
                let kind = EdgeKind::WriteRead;
                let from = steps[writer].operation;
                graph
                    .add(from, Arc { to: reader, kind, key, from_version: None, to_version: None });
            }
            continue;
        };
        let told = (earliest == latest).then_some(earliest);
        if let Ok(writer) = chain.binary_search_by_key(&earliest, |&(version, _)| version) {
            let kind = EdgeKind::WriteRead;
            let from_version = Some(earliest);
            graph.add(
                chain[writer].1,
                Arc { to: reader, kind, key, from_version, to_version: told },
            );
        }
        let next = chain.partition_point(|&(version, _)| version <= latest);
        if let Some(&(version, to)) = chain.get(next) {
            let kind = EdgeKind::ReadWrite;
            graph.add(reader, Arc { to, kind, key, from_version: told, to_version: Some(version) });
        }
        readers.push((latest, reader));
    }
    add_overwritten_reads(graph, key, key_steps, included);
    readers.sort_unstable();
    for writer in unplaced {
        // All that is certain of its place is that it comes after the writes that had returned before it
        // was invoked, and hence after those who read the last of them.
        let before =
            chain.iter().rposition(|&(_, other)| operations[other].precedes(&operations[writer]));
        let floor = before.map_or(Version::INITIAL, |place| chain[place].0);
        if let Some(place) = before {
            let kind = EdgeKind::WriteWrite;
            let from_version = Some(floor);
            graph
                .add(chain[place].1, Arc { to: writer, kind, key, from_version, to_version: None });
        }
        let from = readers.partition_point(|&(version, _)| version < floor);
        for &(_, reader) in readers[from..].iter().take_while(|&&(version, _)| version == floor) {
            let kind = EdgeKind::ReadWrite;
            graph.add(
                reader,
                Arc { to: writer, kind, key, from_version: Some(floor), to_version: None },
            );
        }
    }
}

/// An operation that reads a key and writes it overwrites just what it read, whatever version it made. So
/// all others who read the same come before it.
fn add_overwritten_reads(graph: &mut Graph, key: usize, key_steps: &KeySteps, included: &[bool]) {
    let mut readers: BTreeMap<Option<usize>, Vec<&Step>> = BTreeMap::new();
    for step in key_steps.steps.iter().filter(|step| included[step.operation]) {
        match step.read.map(|read| read.source) {
            Some(Source::Initial) => readers.entry(None).or_default().push(step),
            Some(Source::Step(writer)) => readers.entry(Some(writer)).or_default().push(step),
            _ => {}
        }
    }
    for readers in readers.values() {
        let without_place = |step: &&&Step| step.write.is_some_and(|write| write.version.is_none());
        for overwriter in readers.iter().filter(without_place) {
            for reader in readers {
                let from_version = reader.read.and_then(|read| key_steps.version_read(&read));
                let to = overwriter.operation;
                let arc =
                    Arc { to, kind: EdgeKind::ReadWrite, key, from_version, to_version: None };
                graph.add(reader.operation, arc);
            }
        }
    }
}

/// The earliest and the latest version that a read can have seen, or none if nothing is certain.
fn versions_possible(
    key_steps: &KeySteps,
    read: &Read,
    reader: usize,
    chain: &[(Version, usize)],
    operations: &[Operation],
    included: &[bool],
) -> Option<(Version, Version)> {
    if read.source == Source::Nothing {
        // It was reported already, and would only add confusion.
        return None;
    }
    if let Some(version) = key_steps.version_read(read) {
        return Some((version, version));
    }
    if read.source != Source::Ambiguous || read.observed.value.is_some() {
        return None;
    }
    // The key was absent: before all writes, or after a deletion that had begun by then.
    let mut possible = vec![Version::INITIAL];
    for step in &key_steps.steps {
        let Some(write) = step.write.filter(per_key::Write::is_delete) else { continue };
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
    // If all are overwritten, the read is stale whichever it saw.
    let earliest = possible.first().copied().unwrap_or(latest);
    Some((earliest, possible.last().copied().unwrap_or(latest)))
}

/// Additions must add to the number before them; the cycle search alone does not look at numbers.
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

/// The edges of real time and of each actor's own order.
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
    // At equal times invocations come before returns: such operations are concurrent.
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
            let next = graph.arcs.len();
            graph.arcs.push(Vec::new());
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

/// A cycle: each operation with the edge to the next.
type Cycle = Vec<(usize, Arc)>;

impl Graph {
    /// One short cycle for each strongly connected component.
    fn cycles(&self, operations: &[Operation]) -> Vec<Cycle> {
        let (component, sizes) = self.components();
        // A cycle goes back in time somewhere. Where it goes back furthest is the best place to start from.
        let mut starts: Vec<Vec<(u64, usize)>> = vec![Vec::new(); sizes.len()];
        for (node, operation) in operations.iter().enumerate() {
            if sizes[component[node]] == 1 {
                continue;
            }
            let inside = self.arcs[node]
                .iter()
                .filter(|arc| arc.to < operations.len() && component[arc.to] == component[node]);
            let back =
                inside.map(|arc| operation.invoke_ns.saturating_sub(operations[arc.to].invoke_ns));
            starts[component[node]].extend(back.max().map(|back_ns| (back_ns, node)));
        }
        let mut cycles = Vec::new();
        for mut nodes in starts {
            nodes.sort_unstable_by_key(|&(back_ns, node)| (std::cmp::Reverse(back_ns), node));
            nodes.truncate(CYCLE_STARTS_MAX);
            let found = nodes
                .iter()
                .filter_map(|&(_, node)| self.cycle_through(node, &component, operations.len()));
            let real_time = |cycle: &Cycle| {
                cycle.iter().filter(|(_, arc)| arc.kind == EdgeKind::RealTime).count()
            };
            cycles.extend(found.min_by_key(|cycle| (cycle.len(), real_time(cycle))));
        }
        cycles.sort_by_key(|cycle| cycle[0].0);
        cycles
    }

    /// Tarjan's algorithm without recursion: the component of each node, and the size of each component.
    fn components(&self) -> (Vec<usize>, Vec<usize>) {
        const UNSEEN: usize = usize::MAX;
        let count = self.arcs.len();
        let mut number = vec![UNSEEN; count];
        let mut low = vec![0; count];
        let mut component = vec![UNSEEN; count];
        let mut sizes = Vec::new();
        let mut stack = Vec::new();
        let mut next_number = 0;
        for root in 0..count {
            if number[root] != UNSEEN {
                continue;
            }
            let mut path = vec![(root, 0)];
            while let Some(&mut (node, ref mut next)) = path.last_mut() {
                if *next == 0 {
                    number[node] = next_number;
                    low[node] = next_number;
                    next_number += 1;
                    stack.push(node);
                }
                if let Some(arc) = self.arcs[node].get(*next) {
                    *next += 1;
                    if number[arc.to] == UNSEEN {
                        path.push((arc.to, 0));
                    } else if component[arc.to] == UNSEEN {
                        low[node] = low[node].min(number[arc.to]);
                    }
                    continue;
                }
                path.pop();
                if let Some(&(parent, _)) = path.last() {
                    low[parent] = low[parent].min(low[node]);
                }
                if low[node] == number[node] {
                    let mut size = 0;
                    while let Some(member) = stack.pop() {
                        component[member] = sizes.len();
                        size += 1;
                        if member == node {
                            break;
                        }
                    }
                    sizes.push(size);
                }
            }
        }
        (component, sizes)
    }

    /// A shortest cycle through this operation, where the way over barriers counts as one edge.
    fn cycle_through(&self, start: usize, component: &[usize], operations: usize) -> Option<Cycle> {
        let mut came_by: Vec<Option<(usize, Arc)>> = vec![None; self.arcs.len()];
        let mut distance = vec![usize::MAX; self.arcs.len()];
        let mut open = VecDeque::from([start]);
        distance[start] = 0;
        let mut shortest = usize::MAX;
        let mut last = None;
        while let Some(node) = open.pop_front() {
            if distance[node] >= shortest {
                break;
            }
            // Leaving a barrier is free; it was paid for when the way entered the chain.
            let cost = usize::from(node < operations);
            for arc in self.arcs[node].iter().filter(|arc| component[arc.to] == component[start]) {
                if arc.to == start && distance[node] + cost < shortest {
                    shortest = distance[node] + cost;
                    last = Some((node, *arc));
                }
                if distance[node] + cost < distance[arc.to] {
                    distance[arc.to] = distance[node] + cost;
                    came_by[arc.to] = Some((node, *arc));
                    if cost == 0 { open.push_front(arc.to) } else { open.push_back(arc.to) }
                }
            }
        }
        let mut way = vec![last?];
        while let Some(&(node, _)) = way.last()
            && let Some(step) = came_by[node]
        {
            way.push(step);
        }
        way.reverse();
        // What leads over barriers becomes one edge from operation to operation.
        let mut cycle: Cycle = Vec::new();
        for (node, arc) in way {
            match cycle.last_mut() {
                Some((_, before)) if node >= operations => before.to = arc.to,
                _ => cycle.push((node, arc)),
            }
        }
        Some(cycle)
    }
}

fn describe(cycle: Cycle, split: &Split, operations: &[Operation]) -> Violation {
    let count = |kind| cycle.iter().filter(|(_, arc)| arc.kind == kind).count();
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
    let edges = cycle.iter().enumerate().map(|(index, (_, arc))| Edge {
        from: index,
        to: (index + 1) % length,
        kind: arc.kind,
        key: (arc.kind != EdgeKind::RealTime).then(|| split.keys[arc.key].key.clone()),
        from_version: arc.from_version,
        to_version: arc.to_version,
    });
    let edges = edges.collect();
    let shown = cycle.iter().map(|&(node, _)| operations[node].clone()).collect();
    let explanation = format!("{name}: these operations each come before the next, in a circle");
    Violation { cycle: edges, ..Violation::new(ViolationKind::Cycle, None, explanation, shown) }
}

//! The graph of dependencies between operations, and its cycles.

use crate::history::{Operation, Version};
use crate::violation::EdgeKind;
use std::collections::VecDeque;

/// From how many operations of a component a shortest cycle is searched.
const CYCLE_STARTS_MAX: usize = 64;

/// An edge: why a node comes before another.
#[derive(Clone, Copy, Debug)]
pub(super) struct GraphEdge {
    pub(super) to: usize,
    pub(super) kind: EdgeKind,
    pub(super) key: usize,
    pub(super) from_version: Option<Version>,
    pub(super) to_version: Option<Version>,
}

/// The nodes are the operations, followed by the barriers of real time.
pub(super) struct Graph {
    pub(super) edges: Vec<Vec<GraphEdge>>,
}

impl Graph {
    pub(super) fn add(&mut self, from: usize, edge: GraphEdge) {
        if from != edge.to {
            self.edges[from].push(edge);
        }
    }

    pub(super) fn add_real_time(&mut self, from: usize, to: usize) {
        let edge = GraphEdge {
            to,
            kind: EdgeKind::RealTime,
            key: 0,
            from_version: None,
            to_version: None,
        };
        self.add(from, edge);
    }
}

/// A cycle: each operation with the edge to the next.
pub(super) type Cycle = Vec<(usize, GraphEdge)>;

impl Graph {
    /// A short cycle of each strongly connected component.
    pub(super) fn cycles(&self, operations: &[Operation]) -> Vec<Cycle> {
        let (component, sizes) = self.components();
        // A cycle goes back in time at some edge. The edge that goes back furthest is the best
        // start.
        let mut starts: Vec<Vec<(u64, usize)>> = vec![Vec::new(); sizes.len()];
        for (node, operation) in operations.iter().enumerate() {
            if sizes[component[node]] == 1 {
                continue;
            }
            let inside = self.edges[node]
                .iter()
                .filter(|edge| edge.to < operations.len() && component[edge.to] == component[node]);
            let back = inside
                .map(|edge| operation.invoke_ns.saturating_sub(operations[edge.to].invoke_ns));
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
                cycle.iter().filter(|(_, edge)| edge.kind == EdgeKind::RealTime).count()
            };
            cycles.extend(found.min_by_key(|cycle| (cycle.len(), real_time(cycle))));
        }
        cycles.sort_by_key(|cycle| cycle[0].0);
        cycles
    }

    /// Tarjan's algorithm without recursion: the component of each node, and the size of each
    /// component.
    fn components(&self) -> (Vec<usize>, Vec<usize>) {
        const UNSEEN: usize = usize::MAX;
        let count = self.edges.len();
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
                if let Some(edge) = self.edges[node].get(*next) {
                    *next += 1;
                    if number[edge.to] == UNSEEN {
                        path.push((edge.to, 0));
                    } else if component[edge.to] == UNSEEN {
                        low[node] = low[node].min(number[edge.to]);
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

    /// A shortest cycle through this operation, where a path over barriers counts as a single edge.
    fn cycle_through(&self, start: usize, component: &[usize], operations: usize) -> Option<Cycle> {
        let mut came_by: Vec<Option<(usize, GraphEdge)>> = vec![None; self.edges.len()];
        let mut distance = vec![usize::MAX; self.edges.len()];
        let mut open = VecDeque::from([start]);
        distance[start] = 0;
        let mut shortest = usize::MAX;
        let mut last = None;
        while let Some(node) = open.pop_front() {
            if distance[node] >= shortest {
                break;
            }
            // Leaving a barrier is free: the path has paid when it entered the chain.
            let cost = usize::from(node < operations);
            for edge in
                self.edges[node].iter().filter(|edge| component[edge.to] == component[start])
            {
                if edge.to == start && distance[node] + cost < shortest {
                    shortest = distance[node] + cost;
                    last = Some((node, *edge));
                }
                if distance[node] + cost < distance[edge.to] {
                    distance[edge.to] = distance[node] + cost;
                    came_by[edge.to] = Some((node, *edge));
                    if cost == 0 { open.push_front(edge.to) } else { open.push_back(edge.to) }
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
        // A path over barriers becomes a single edge from operation to operation.
        let mut cycle: Cycle = Vec::new();
        for (node, edge) in way {
            match cycle.last_mut() {
                Some((_, before)) if node >= operations => before.to = edge.to,
                _ => cycle.push((node, edge)),
            }
        }
        Some(cycle)
    }
}

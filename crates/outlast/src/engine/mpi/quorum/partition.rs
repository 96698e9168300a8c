//! Chooses the nodes that stay after partial partitions: the maximum-weight independent set of a
//! graph. The graph has a vertex for each node, weighted by the node's living members, and an edge
//! for each pair, which is two nodes of which either has quarantined the other (rule 5 of
//! `quorum.rs`).
//!
//! The choice depends on nothing but the arguments. Members with equal knowledge of the pairs
//! therefore choose equal sets.

use std::collections::{BTreeMap, BTreeSet};

/// With up to this many nodes in pairs the result is exact. The search takes up to 0.2 ms then.
const EXACT_NODES_MAX: usize = 16;

/// The heaviest set of nodes without a pair inside; if several sets are equally heavy, the set with
/// the lowest nodes. `nodes` maps nodes to their weights. With more than [`EXACT_NODES_MAX`] nodes
/// in pairs the set is found greedily, and may be lighter.
pub(super) fn max_weight_independent_set(
    nodes: BTreeMap<usize, usize>,
    pairs: &BTreeSet<(usize, usize)>,
) -> BTreeMap<usize, usize> {
    let mut opponents: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for &(node, other) in
        pairs.iter().filter(|(node, other)| nodes.contains_key(node) && nodes.contains_key(other))
    {
        opponents.entry(node).or_default().push(other);
        opponents.entry(other).or_default().push(node);
    }
    // The weight of all opponents of a node.
    let opposition = |node: &usize| opponents[node].iter().map(|other| nodes[other]).sum::<usize>();
    if opponents.len() > EXACT_NODES_MAX {
        // Greedy: nodes with the lightest opposition stay first.
        let mut order: Vec<usize> = opponents.keys().copied().collect();
        order.sort_by_cached_key(opposition);
        let mut gone: BTreeSet<usize> = BTreeSet::new();
        for node in order {
            if !gone.contains(&node) {
                gone.extend(&opponents[&node]);
            }
        }
        return nodes.into_iter().filter(|(node, _)| !gone.contains(node)).collect();
    }
    // Branch on the node with the heaviest opposition, and of several on the highest node.
    let Some(worst) = opponents.keys().max_by_key(|&node| opposition(node)) else { return nodes };
    let mut without = nodes.clone();
    without.remove(worst);
    let without = max_weight_independent_set(without, pairs);
    // With a single opponent the node goes if that opponent has no other opponent, or outweighs all
    // of its own opponents together. Otherwise the set with the node may be heavier, or as heavy
    // and lower.
    if let [opponent] = opponents[worst][..]
        && (opponents[&opponent].len() == 1 || opposition(worst) > opposition(&opponent))
    {
        return without;
    }
    let mut with = nodes;
    with.retain(|node, _| !opponents[worst].contains(node));
    let with = max_weight_independent_set(with, pairs);
    let weight = |nodes: &BTreeMap<usize, usize>| nodes.values().sum::<usize>();
    let is_better =
        weight(&with).cmp(&weight(&without)).then_with(|| without.keys().cmp(with.keys()));
    if is_better.is_gt() { with } else { without }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survivors(nodes: &[(usize, usize)], pairs: &[(usize, usize)]) -> Vec<usize> {
        let nodes = nodes.iter().copied().collect();
        let pairs = pairs.iter().copied().collect();
        max_weight_independent_set(nodes, &pairs).into_keys().collect()
    }

    #[test]
    fn of_equally_heavy_sets_the_lowest_is_chosen() {
        // The node in the most pairs stays, with others: five members, as many as without
        // it, and the lowest node is among them.
        let nodes = [(0, 2), (2, 1), (3, 3), (6, 2), (8, 2)];
        assert_eq!(survivors(&nodes, &[(0, 3), (0, 6), (2, 6), (3, 8)]), [0, 2, 8]);
        let nodes = [(0, 1), (1, 2), (3, 2), (5, 1), (6, 2)];
        assert_eq!(survivors(&nodes, &[(0, 3), (1, 6), (3, 5)]), [0, 1, 5]);
    }

    #[test]
    fn many_partitions_are_resolved_greedily() {
        let nodes: Vec<(usize, usize)> = (0..40).map(|node| (node, 1)).collect();
        let pairs: Vec<(usize, usize)> = (2..40).flat_map(|node| [(0, node), (1, node)]).collect();
        assert!(survivors(&nodes, &pairs).into_iter().eq(2..40));
    }
}

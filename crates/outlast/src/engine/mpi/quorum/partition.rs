//! Which nodes stay when links between some of them are cut: a maximum-weight independent set.

use std::collections::{BTreeMap, BTreeSet};

/// Of how many nodes that are at odds with others the best choice of who stays is looked for, which takes up to 0.2 ms for these.
const FEUDS_MAX: usize = 16;

/// Of nodes with their numbers of members those that stay if none of them is to be at odds with another one: as many members as
/// possible, and of several such choices the lowest nodes; or about as many, where very many are at odds. All who know of the same
/// feuds choose the same.
pub(super) fn at_peace(
    nodes: BTreeMap<usize, usize>,
    feuds: &BTreeSet<(usize, usize)>,
) -> BTreeMap<usize, usize> {
    let mut opponents: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for &(one, other) in
        feuds.iter().filter(|(one, other)| nodes.contains_key(one) && nodes.contains_key(other))
    {
        opponents.entry(one).or_default().push(other);
        opponents.entry(other).or_default().push(one);
    }
    let odds = |node: &usize| opponents[node].iter().map(|other| nodes[other]).sum::<usize>();
    if opponents.len() > FEUDS_MAX {
        // Those who are at odds with the fewest first.
        let mut order: Vec<usize> = opponents.keys().copied().collect();
        order.sort_by_cached_key(odds);
        let mut gone: BTreeSet<usize> = BTreeSet::new();
        for node in order {
            if !gone.contains(&node) {
                gone.extend(&opponents[&node]);
            }
        }
        return nodes.into_iter().filter(|(node, _)| !gone.contains(node)).collect();
    }
    // At odds with the most members, and of several the last one.
    let Some(worst) = opponents.keys().max_by_key(|&node| odds(node)) else { return nodes };
    let mut without = nodes.clone();
    without.remove(worst);
    let without = at_peace(without, feuds);
    // With one opponent it has to go if that one has no other, or more members than all of its opponents. Else it may be that
    // these are fewer, or lower.
    if let [other] = opponents[worst][..]
        && (opponents[&other].len() == 1 || odds(worst) > odds(&other))
    {
        return without;
    }
    let mut with = nodes;
    with.retain(|node, _| !opponents[worst].contains(node));
    let with = at_peace(with, feuds);
    let members = |nodes: &BTreeMap<usize, usize>| nodes.values().sum::<usize>();
    let is_better =
        members(&with).cmp(&members(&without)).then_with(|| without.keys().cmp(with.keys()));
    if is_better.is_gt() { with } else { without }
}

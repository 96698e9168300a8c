//! Shrinks a wrong history to a small part that is wrong by itself.

use super::search::{SearchResult, search};
use super::{CONFIGURATIONS_MAX, Item, ItemSource};
use crate::per_key::Change;
use std::collections::HashSet;

/// The number of configurations that shrinking a counterexample may take.
const SHRINK_CONFIGURATIONS_MAX: usize = 300_000;
/// Of a counterexample longer than this, only the place where the search got stuck is shown.
const OPERATIONS_SHOWN_MAX: usize = 24;

/// Finds a small part of the items that is wrong by itself.
///
/// A read can be left out, and so can a write that no remaining read can have seen: the rest of a
/// right history is then right as well. So if the rest is wrong, the whole is wrong.
pub(super) fn shrink(all: &[Item]) -> Vec<Item> {
    let mut items = all.to_vec();
    let mut budget = SHRINK_CONFIGURATIONS_MAX;
    let mut size = items.len().next_power_of_two();
    while size > 0 {
        let mut removed_any = false;
        let mut end = items.len();
        while end > 0 {
            let start = end.saturating_sub(size);
            let mut kept = vec![true; items.len()];
            kept[start..end].fill(false);
            restore_sources(&items, &mut kept);
            end = start;
            if kept.iter().all(|&kept| kept) {
                continue;
            }
            let trial = only(&items, &kept);
            budget = budget.saturating_sub(trial.len() / 4);
            if matches!(search(&trial, &mut budget), SearchResult::Stuck(_)) {
                items = trial;
                removed_any = true;
                end = end.min(items.len());
            }
        }
        if !removed_any || size > 1 || budget == 0 {
            size /= 2;
        }
    }
    if items.len() > OPERATIONS_SHOWN_MAX {
        let mut budget = CONFIGURATIONS_MAX;
        if let SearchResult::Stuck(stuck) = search(&items, &mut budget) {
            return stuck.into_iter().map(|index| items[index].clone()).collect();
        }
    }
    items
}

/// The kept items, which include the sources of the kept reads.
fn only(items: &[Item], kept: &[bool]) -> Vec<Item> {
    let mut place = Vec::with_capacity(items.len());
    let mut count = 0;
    for &kept in kept {
        place.push(count);
        count += usize::from(kept);
    }
    let items = items.iter().zip(kept).filter(|&(_, &kept)| kept).map(|(item, _)| item.clone());
    let moved = items.map(|mut item| {
        if let ItemSource::Item(source) = item.source {
            item.source =
                if kept[source] { ItemSource::Item(place[source]) } else { ItemSource::Unknown };
        }
        item
    });
    moved.collect()
}

/// Restores items that must not be left out: writes that a remaining read, or any addition, may
/// have seen.
fn restore_sources(items: &[Item], trial: &mut [bool]) {
    let added = items.iter().any(|item| matches!(item.change, Some(Change::Add { .. })));
    loop {
        let mut values: HashSet<Option<u64>> = HashSet::new();
        let mut sources: HashSet<usize> = HashSet::new();
        for (index, item) in items.iter().enumerate() {
            if trial[index]
                && let Some(read) = item.read
            {
                match item.source {
                    ItemSource::Item(source) => _ = sources.insert(source),
                    ItemSource::Initial => {}
                    ItemSource::Unknown => _ = values.insert(read.value),
                }
            }
        }
        let mut changed = false;
        for (index, item) in items.iter().enumerate() {
            // Additions keep all writes. Then the readers that prove a write of unknown outcome
            // stay, too.
            let vouches = match item.source {
                ItemSource::Item(source) => items[source].return_ns.is_none(),
                _ => false,
            };
            let needed = match item.change {
                None => added && vouches,
                Some(Change::Set(value)) if !added => {
                    sources.contains(&index) || values.contains(&value)
                }
                Some(_) => true,
            };
            if needed && !trial[index] {
                trial[index] = true;
                changed = true;
            }
        }
        if changed {
            continue;
        }
        // The version of a write of unknown outcome was learned from its readers; without them the
        // write may as well not have happened.
        for (index, item) in items.iter().enumerate() {
            let unseen = !added
                && !sources.contains(&index)
                && item.return_ns.is_none()
                && item.version.is_some();
            trial[index] &= !unseen;
        }
        return;
    }
}

//! The search for an order of the operations on a key.
//!
//! *Known* items have returned with a binding result; *unknown* items are of unknown outcome.

use super::{Item, ItemSource};
use crate::history::{Actor, Version};
use crate::per_key::Change;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The state of a key after some of its operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct KeyState {
    value: Option<u64>,
    /// The version of that value; none if no call returned it.
    version: Option<Version>,
    /// The newest version so far.
    floor: Version,
}

const INITIAL: KeyState =
    KeyState { value: None, version: Some(Version::INITIAL), floor: Version::INITIAL };

impl KeyState {
    /// The state after the item, or none if the item cannot come next.
    fn after(self, item: &Item) -> Option<KeyState> {
        let mut state = self;
        if let Some(read) = item.read {
            if read.value != state.value {
                return None;
            }
            match (read.version, state.version) {
                (None, _) => {}
                (Some(read), Some(current)) if read == current => {}
                (Some(read), None) if read > state.floor => {
                    state.version = Some(read);
                    state.floor = read;
                }
                _ => return None,
            }
        }
        let Some(change) = item.change else { return Some(state) };
        state.value = match change {
            Change::Set(value) => value,
            Change::Add { delta, sum } => {
                let expected = (state.value.unwrap_or(0) as i64).wrapping_add(delta);
                if sum.is_some_and(|sum| sum != expected) {
                    return None;
                }
                Some(expected as u64)
            }
        };
        state.version = item.version;
        if let Some(version) = item.version {
            if version <= state.floor {
                return None;
            }
            state.floor = version;
        }
        Some(state)
    }
}

/// A configuration of the search: what is taken, and the state of the key.
#[derive(Clone)]
struct Configuration {
    /// All known items before this position, in the order of invocation, are taken.
    prefix: usize,
    /// The known items beyond the prefix that are taken, ascending.
    beyond: Vec<u32>,
    /// The unknown items that are taken, a bit for each.
    unknown: Vec<u64>,
    /// How many writes with known versions are taken.
    versioned: usize,
    state: KeyState,
    /// The last write taken. It does not distinguish configurations: it only prunes hopeless
    /// choices.
    writer: ItemSource,
}

impl Configuration {
    fn taken_known(&self, position: usize) -> bool {
        position < self.prefix || self.beyond.binary_search(&(position as u32)).is_ok()
    }

    fn taken_unknown(&self, position: usize) -> bool {
        self.unknown[position / 64] >> (position % 64) & 1 == 1
    }

    fn take_known(&mut self, position: usize) {
        if position != self.prefix {
            let at = self.beyond.partition_point(|&taken| (taken as usize) < position);
            self.beyond.insert(at, position as u32);
            return;
        }
        self.prefix += 1;
        let run = self.beyond.iter().take_while(|&&taken| {
            let next = taken as usize == self.prefix;
            self.prefix += usize::from(next);
            next
        });
        let run = run.count();
        self.beyond.drain(..run);
    }
}

pub(super) enum SearchResult {
    Linearizable,
    Undecided,
    /// The items that could not come next at the furthest point, and the last write taken there.
    Stuck(Vec<usize>),
}

/// An item, as a position in the list of known or of unknown items.
#[derive(Clone, Copy)]
enum ItemChoice {
    Known(usize),
    Unknown(usize),
}

/// What to try from a configuration. Silent additions come after all other choices.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SearchPhase {
    Plain,
    WithAdditions,
}

struct Search<'a> {
    items: &'a [Item],
    known: Vec<usize>,
    unknown: Vec<usize>,
    /// The position of each item in its list.
    place: Vec<usize>,
    /// The items with known versions, ordered by version.
    versioned: Vec<usize>,
    /// For the initial state and for each item: the known items that read it.
    readers: HashMap<ItemSource, Vec<usize>>,
    /// For each unknown item: the previous unknown item that is equal to it.
    equal_before: Vec<Option<usize>>,
}

/// The items that real time allows to come next.
struct Frontier {
    choices: Vec<ItemChoice>,
    /// Silent additions, as positions in the list of unknown items, by amount.
    additions: BTreeMap<i64, Vec<usize>>,
}

/// Searches for an order of the items. Every visited configuration is taken from the budget.
pub(super) fn search(items: &[Item], budget: &mut usize) -> SearchResult {
    let mut known: Vec<usize> =
        (0..items.len()).filter(|&index| items[index].return_ns.is_some()).collect();
    let mut unknown: Vec<usize> =
        (0..items.len()).filter(|&index| items[index].return_ns.is_none()).collect();
    let by_invocation =
        |index: &usize| (items[*index].invoke_ns, items[*index].actor, items[*index].sequence);
    known.sort_by_key(by_invocation);
    unknown.sort_by_key(by_invocation);
    let mut place = vec![usize::MAX; items.len()];
    for list in [&known, &unknown] {
        for (position, &index) in list.iter().enumerate() {
            place[index] = position;
        }
    }
    let mut versioned: Vec<usize> =
        (0..items.len()).filter(|&index| items[index].version.is_some()).collect();
    versioned.sort_by_key(|&index| items[index].version);
    let mut readers: HashMap<ItemSource, Vec<usize>> = HashMap::new();
    for &index in &known {
        if items[index].source != ItemSource::Unknown {
            readers.entry(items[index].source).or_default().push(index);
        }
    }
    let mut last_equal = HashMap::new();
    let equal_before = unknown
        .iter()
        .enumerate()
        .map(|(position, &index)| {
            let Item { read, change, version, .. } = &items[index];
            last_equal.insert((*read, *change, *version), position)
        })
        .collect();
    Search { items, known, unknown, place, versioned, readers, equal_before }.run(budget)
}

impl Search<'_> {
    fn run(&self, budget: &mut usize) -> SearchResult {
        let mut seen = HashSet::new();
        let mut furthest = (0, Vec::new());
        let start = Configuration {
            prefix: 0,
            beyond: Vec::new(),
            unknown: vec![0; self.unknown.len().div_ceil(64)],
            versioned: 0,
            state: INITIAL,
            writer: ItemSource::Initial,
        };
        let mut stack = vec![(start, SearchPhase::Plain)];
        while let Some((mut configuration, phase)) = stack.pop() {
            let Some(left) = budget.checked_sub(1) else { return SearchResult::Undecided };
            *budget = left;
            let mut frontier = self.frontier(&configuration);
            if phase == SearchPhase::WithAdditions {
                self.take_after_additions(&configuration, &frontier, budget, &mut stack);
                continue;
            }
            while let Some(position) = self.read_that_fits(&configuration, &frontier.choices) {
                configuration.take_known(position);
                frontier = self.frontier(&configuration);
            }
            if configuration.prefix == self.known.len() {
                return SearchResult::Linearizable;
            }
            let taken = configuration.prefix + configuration.beyond.len();
            if taken >= furthest.0 {
                let mut stuck: Vec<usize> =
                    frontier.choices.iter().map(|&choice| self.item(choice)).collect();
                if let ItemSource::Item(writer) = configuration.writer {
                    stuck.push(writer);
                }
                furthest = (taken, stuck);
            }
            let next: Vec<Configuration> = frontier
                .choices
                .iter()
                .filter_map(|&choice| self.take(&configuration, choice))
                .collect();
            // Only after a choice can the search reach a configuration again.
            if next.len() > 1 || !frontier.additions.is_empty() {
                let Configuration { prefix, ref beyond, ref unknown, state, .. } = configuration;
                if !seen.insert((prefix, beyond.clone(), unknown.clone(), state)) {
                    continue;
                }
            }
            if !frontier.additions.is_empty() {
                stack.push((configuration, SearchPhase::WithAdditions));
            }
            stack.extend(next.into_iter().map(|next| (next, SearchPhase::Plain)));
        }
        // An empty budget may have cut off choices.
        if *budget == 0 { SearchResult::Undecided } else { SearchResult::Stuck(furthest.1) }
    }

    fn item(&self, choice: ItemChoice) -> usize {
        match choice {
            ItemChoice::Known(position) => self.known[position],
            ItemChoice::Unknown(position) => self.unknown[position],
        }
    }

    /// The items that real time allows to come next. Unknown items come first, so that the stack
    /// tries them last.
    fn frontier(&self, configuration: &Configuration) -> Frontier {
        let mut known = Vec::new();
        let mut first_of_actor: Vec<(Actor, u64)> = Vec::new();
        let mut earliest_return_ns = u64::MAX;
        for position in configuration.prefix..self.known.len() {
            let item = &self.items[self.known[position]];
            if item.invoke_ns > earliest_return_ns {
                break;
            }
            if configuration.taken_known(position) {
                continue;
            }
            earliest_return_ns = earliest_return_ns.min(item.return_ns.unwrap_or(u64::MAX));
            if first_of_actor.iter().any(|(actor, _)| *actor == item.actor) {
                continue;
            }
            first_of_actor.push((item.actor, item.sequence));
            known.push(ItemChoice::Known(position));
        }
        let possible = |position: usize| {
            let item = &self.items[self.unknown[position]];
            !configuration.taken_unknown(position)
                && item.invoke_ns <= earliest_return_ns
                && !first_of_actor
                    .iter()
                    .any(|&(actor, first)| actor == item.actor && first < item.sequence)
        };
        let mut choices = Vec::new();
        let mut additions: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
        for position in 0..self.unknown.len() {
            let item = &self.items[self.unknown[position]];
            if item.invoke_ns > earliest_return_ns {
                break;
            }
            if let Some(delta) = item.silent_addition() {
                if possible(position) {
                    additions.entry(delta).or_default().push(position);
                }
                continue;
            }
            let equal_waits = self.equal_before[position].is_some_and(possible);
            if possible(position) && !equal_waits {
                choices.push(ItemChoice::Unknown(position));
            }
        }
        choices.extend(known);
        Frontier { choices, additions }
    }

    /// The position of a read among the choices that fits the state and does not change it.
    fn read_that_fits(
        &self,
        configuration: &Configuration,
        choices: &[ItemChoice],
    ) -> Option<usize> {
        choices.iter().find_map(|&choice| {
            let ItemChoice::Known(position) = choice else { return None };
            let item = &self.items[self.known[position]];
            let fits = item.change.is_none()
                && configuration.state.after(item) == Some(configuration.state);
            fits.then_some(position)
        })
    }

    fn take(&self, configuration: &Configuration, choice: ItemChoice) -> Option<Configuration> {
        let index = self.item(choice);
        let item = &self.items[index];
        if item.change.is_some() {
            if item.version.is_some() && self.versioned.get(configuration.versioned) != Some(&index)
            {
                return None;
            }
            let readers = self.readers.get(&configuration.writer).map_or(&[][..], Vec::as_slice);
            if readers
                .iter()
                .any(|&reader| reader != index && !configuration.taken_known(self.place[reader]))
            {
                return None;
            }
        }
        let state = configuration.state.after(item)?;
        let mut next = configuration.clone();
        next.state = state;
        if item.change.is_some() {
            next.writer = ItemSource::Item(index);
            next.versioned += usize::from(item.version.is_some());
        }
        match choice {
            ItemChoice::Known(position) => next.take_known(position),
            ItemChoice::Unknown(position) => next.unknown[position / 64] |= 1 << (position % 64),
        }
        Some(next)
    }
}

impl Search<'_> {
    /// Takes each item that does not fit by itself, after silent additions that make it fit: every
    /// selection of additions with the missing sum is tried.
    fn take_after_additions(
        &self,
        configuration: &Configuration,
        frontier: &Frontier,
        budget: &mut usize,
        stack: &mut Vec<(Configuration, SearchPhase)>,
    ) {
        let overwritten = self.readers.get(&configuration.writer).map_or(&[][..], Vec::as_slice);
        if overwritten.iter().any(|&reader| !configuration.taken_known(self.place[reader])) {
            return;
        }
        let groups: Vec<(i128, &[usize])> = frontier
            .additions
            .iter()
            .map(|(&delta, group)| (i128::from(delta), group.as_slice()))
            .collect();
        for &choice in &frontier.choices {
            let Some(needed) = self.items[self.item(choice)].number_needed() else { continue };
            if self.take(configuration, choice).is_some() {
                continue;
            }
            let missing =
                i128::from(needed) - i128::from(configuration.state.value.unwrap_or(0) as i64);
            let mut chosen = vec![0; groups.len()];
            let mut found = Vec::new();
            choose_additions(&groups, missing, 0, &mut chosen, budget, &mut |chosen| {
                found.push(chosen.to_vec())
            });
            // The stack returns the last first, so the smallest selection is tried first: unused
            // additions can fill a later gap.
            found.sort_by_key(|chosen| std::cmp::Reverse(chosen.iter().sum::<usize>()));
            for chosen in &found {
                let mut before = configuration.clone();
                for ((_, group), &count) in groups.iter().zip(chosen) {
                    for &position in &group[..count] {
                        before.unknown[position / 64] |= 1 << (position % 64);
                    }
                }
                before.state =
                    KeyState { value: Some(needed as u64), version: None, ..before.state };
                before.writer = ItemSource::Unknown;
                stack.extend(self.take(&before, choice).map(|after| (after, SearchPhase::Plain)));
            }
        }
    }
}

/// Calls `found` with every selection of additions, but not the empty selection, whose sum is
/// `missing`, as a count for each group.
fn choose_additions(
    groups: &[(i128, &[usize])],
    missing: i128,
    group: usize,
    chosen: &mut Vec<usize>,
    budget: &mut usize,
    found: &mut impl FnMut(&[usize]),
) {
    let Some(&(delta, positions)) = groups.get(group) else {
        if missing == 0 && chosen.iter().any(|&count| count > 0) {
            found(chosen);
        }
        return;
    };
    let reach = |sign: i128| -> i128 {
        let rest = groups[group..].iter().filter(|(delta, _)| delta.signum() == sign);
        rest.map(|(delta, positions)| delta * positions.len() as i128).sum()
    };
    if missing < reach(-1) || missing > reach(1) || *budget == 0 {
        return;
    }
    *budget -= 1;
    for count in 0..=positions.len() {
        chosen[group] = count;
        choose_additions(groups, missing - delta * count as i128, group + 1, chosen, budget, found);
    }
    chosen[group] = 0;
}

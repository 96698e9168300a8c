//! Is every key, taken alone, linearizable?
//!
//! The search is that of Wing and Gong with the memory of Lowe: it builds an order of the operations step by
//! step, never takes an operation before one that had returned when it was invoked, and never enters the
//! same configuration (set of operations taken, state of the key) twice. It is exact. What keeps it quick:
//!
//! - A read that fits is taken at once; nothing is lost by it.
//! - Versions grow in the order of the writes, so the writes whose versions are known, or were learned from
//!   a read, are taken in that order. Where all are known, no choice is left and the search is a single pass.
//! - What a read saw must not be overwritten before the read is taken.
//! - An operation of unknown outcome whose write nobody saw is left out; equal ones are taken in the order
//!   of their invocation.
//! - Additions of unknown outcome are taken only right before an operation that does not fit without them,
//!   and only so many that it fits: anything else can be put off.
//!
//! A transaction takes part in every key it touches. That all keys *together* fit into one order is the
//! question of [`crate::serializable`].
//!
//! ```
//! use outlast_check::history::{Access, Actor, History, Kind, Log, Outcome, Value};
//! use outlast_check::register;
//!
//! let mut writer = Log::new(Actor::new(0, 0));
//! writer.invoke(0, Kind::Put, vec![Access::write("a", Value::new(1))]); // It never returns.
//! let mut reader = Log::new(Actor::new(1, 0));
//! for (time, seen) in [(10, Access::read("a")), (20, Access::read("a").saw(Value::new(1)))] {
//!     reader.invoke(time, Kind::Get, vec![Access::ask("a")]);
//!     reader.returned(time + 1, Outcome::Ok, vec![seen]);
//! }
//! // The write took effect between the two reads.
//! assert!(register::check(&History::from_logs([writer.clone(), reader.clone()]).unwrap()).is_empty());
//!
//! reader.invoke(30, Kind::Get, vec![Access::ask("a")]);
//! reader.returned(31, Outcome::Ok, vec![Access::read("a")]);
//! // It cannot have been undone.
//! let violations = register::check(&History::from_logs([writer, reader]).unwrap());
//! assert_eq!(violations.len(), 1);
//! assert_eq!(violations[0].operations.len(), 3);
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::history::{Actor, History, Key, Operation, Version};
use crate::per_key::{self, Change, KeySteps, Observed, Source};
use crate::violation::{Violation, ViolationKind};

/// Configurations after which the search gives up.
const CONFIGURATIONS_MAX: usize = 1_000_000;
/// Configurations spent on making a counterexample smaller.
const SHRINK_CONFIGURATIONS_MAX: usize = 300_000;
/// A counterexample longer than this shows only the place where the search got stuck.
const OPERATIONS_SHOWN_MAX: usize = 24;

/// Checks every key of the history, and returns at most one violation for each.
pub fn check(history: &History) -> Vec<Violation> {
    let split = per_key::split(history);
    split.keys.iter().filter_map(|steps| check_steps(steps, history.operations())).collect()
}

pub(crate) fn check_steps(key_steps: &KeySteps, operations: &[Operation]) -> Option<Violation> {
    let items = items(key_steps, operations);
    let mut budget = CONFIGURATIONS_MAX;
    let mut shown = match search(&items, &mut budget) {
        Answer::Linearizable => return None,
        Answer::Undecided => {
            let key = &key_steps.key;
            let explanation = format!(
                "the search for an order of the operations on {key} took too long; this is no pass"
            );
            return Some(Violation::new(
                ViolationKind::Undecided,
                Some(key),
                explanation,
                Vec::new(),
            ));
        }
        Answer::Stuck(_) => shrink(&items),
    };
    shown.sort_by_key(|item| item.operation);
    let key = &key_steps.key;
    let explanation =
        format!("no order of these operations on {key} fits both their results and real time");
    let shown = shown.iter().map(|item| with_learned_version(item, key, operations)).collect();
    Some(Violation::new(ViolationKind::NotLinearizable, Some(key), explanation, shown))
}

/// The operation of an item; a write that was not told its version shows the one that its readers saw.
fn with_learned_version(item: &Item, key: &Key, operations: &[Operation]) -> Operation {
    let mut operation = operations[item.operation].clone();
    let last_write =
        operation.accesses.iter_mut().rfind(|access| access.key == *key && access.changes());
    if let Some(access) = last_write {
        access.version = item.version;
    }
    operation
}

/// A step of the key as the search sees it.
#[derive(Clone)]
struct Item {
    operation: usize,
    actor: Actor,
    sequence: u64,
    invoke_ns: u64,
    /// None if the outcome is unknown.
    return_ns: Option<u64>,
    read: Option<Observed>,
    /// The item whose write the read saw, if there is but one that it can be.
    source: ItemSource,
    change: Option<Change>,
    version: Option<Version>,
}

impl Item {
    /// What is added, if this is an addition of unknown outcome of which nothing else is known.
    fn silent_addition(&self) -> Option<i64> {
        match self.change {
            Some(Change::Add { delta, sum: None })
                if self.return_ns.is_none() && self.read.is_none() && self.version.is_none() =>
            {
                Some(delta)
            }
            _ => None,
        }
    }

    /// The number that must be there before it, if it says one.
    fn number_needed(&self) -> Option<i64> {
        match (self.read, self.change) {
            (Some(read), _) => read.value.map(|number| number as i64),
            (None, Some(Change::Add { delta, sum: Some(sum) })) => Some(sum.wrapping_sub(delta)),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ItemSource {
    Unknown,
    Initial,
    Item(usize),
}

fn items(key_steps: &KeySteps, operations: &[Operation]) -> Vec<Item> {
    let steps = &key_steps.steps;
    let mut seen: HashSet<Observed> = HashSet::new();
    for read in steps.iter().filter_map(|step| step.read) {
        seen.insert(read.observed);
        seen.insert(Observed { version: None, ..read.observed });
    }
    let unversioned_reads: HashSet<Option<u64>> = steps
        .iter()
        .filter_map(|step| step.read)
        .filter(|read| read.observed.version.is_none())
        .map(|read| read.observed.value)
        .collect();
    // An addition sees whatever was there.
    let added = steps
        .iter()
        .any(|step| matches!(step.write, Some(write) if !matches!(write.change, Change::Set(_))));
    let mut place = vec![None; steps.len()];
    let mut items = Vec::with_capacity(steps.len());
    for (index, step) in steps.iter().enumerate() {
        let write = step.write;
        if !step.acknowledged {
            let matters = match write.map(|write| (write.change, write.version)) {
                None => false,
                Some(_) if added => true,
                Some((Change::Add { .. }, _)) => true,
                Some((Change::Set(value), None)) => {
                    seen.contains(&Observed { version: None, value })
                }
                Some((Change::Set(value), version)) => {
                    seen.contains(&Observed { version, value })
                        || unversioned_reads.contains(&value)
                }
            };
            if !matters {
                continue;
            }
        }
        if step.acknowledged && step.read.is_none() && write.is_none() {
            continue;
        }
        let operation = &operations[step.operation];
        place[index] = Some(items.len());
        items.push(Item {
            operation: step.operation,
            actor: operation.actor,
            sequence: operation.sequence,
            invoke_ns: operation.invoke_ns,
            return_ns: operation.return_ns.filter(|_| step.acknowledged),
            read: step.read.map(|read| read.observed),
            source: ItemSource::Unknown,
            change: write.map(|write| write.change),
            version: write.and_then(|write| write.version),
        });
    }
    for (index, step) in steps.iter().enumerate() {
        if let (Some(item), Some(read)) = (place[index], step.read) {
            items[item].source = match read.source {
                Source::Initial => ItemSource::Initial,
                Source::Step(writer) => place[writer].map_or(ItemSource::Unknown, ItemSource::Item),
                _ => ItemSource::Unknown,
            };
        }
    }
    items
}

/// The key after some of its operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct State {
    value: Option<u64>,
    /// The version of that value; none if nobody was told it.
    version: Option<Version>,
    /// The newest version so far.
    floor: Version,
}

const INITIAL: State =
    State { value: None, version: Some(Version::INITIAL), floor: Version::INITIAL };

impl State {
    /// The state after the item, or none if the item cannot come next.
    fn after(self, item: &Item) -> Option<State> {
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

/// Where the search stands.
#[derive(Clone)]
struct Configuration {
    /// All known items before this one, in the order of invocation, are taken.
    prefix: usize,
    /// Known items beyond the prefix that are taken, ascending.
    beyond: Vec<u32>,
    /// Items of unknown outcome that are taken, one bit each.
    unknown: Vec<u64>,
    /// How many of the writes with known versions are taken.
    versioned: usize,
    state: State,
    /// The last write taken. It does not tell configurations apart: it only spares hopeless ones.
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

enum Answer {
    Linearizable,
    Undecided,
    /// The items that could not come next at the furthest point, after the last write taken there.
    Stuck(Vec<usize>),
}

/// One item of the two lists of the search.
#[derive(Clone, Copy)]
enum Choice {
    Known(usize),
    Unknown(usize),
}

/// What is to be tried from a configuration. Additions of unknown outcome come after everything else.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Plain,
    WithAdditions,
}

struct Search<'a> {
    items: &'a [Item],
    known: Vec<usize>,
    unknown: Vec<usize>,
    /// The place of an item in its list.
    place: Vec<usize>,
    /// Items with a known version, in the order of versions.
    versioned: Vec<usize>,
    /// For the initial state and for each item: the known items whose read saw just that.
    readers: HashMap<ItemSource, Vec<usize>>,
    /// For each item of unknown outcome the one before it that is its equal.
    equal_before: Vec<Option<usize>>,
}

/// What real time allows to come next.
struct Frontier {
    choices: Vec<Choice>,
    /// Silent additions, as places in the list of unknown items, by what they add.
    additions: BTreeMap<i64, Vec<usize>>,
}

/// Looks for an order of the items. Every configuration visited is taken from the budget.
fn search(items: &[Item], budget: &mut usize) -> Answer {
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
    fn run(&self, budget: &mut usize) -> Answer {
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
        let mut stack = vec![(start, Phase::Plain)];
        while let Some((mut configuration, phase)) = stack.pop() {
            let Some(left) = budget.checked_sub(1) else { return Answer::Undecided };
            *budget = left;
            let mut frontier = self.frontier(&configuration);
            if phase == Phase::WithAdditions {
                self.take_after_additions(&configuration, &frontier, budget, &mut stack);
                continue;
            }
            while let Some(position) = self.read_that_fits(&configuration, &frontier.choices) {
                configuration.take_known(position);
                frontier = self.frontier(&configuration);
            }
            if configuration.prefix == self.known.len() {
                return Answer::Linearizable;
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
            // Only where the search has a choice can it come to the same configuration again.
            if next.len() > 1 || !frontier.additions.is_empty() {
                let Configuration { prefix, ref beyond, ref unknown, state, .. } = configuration;
                if !seen.insert((prefix, beyond.clone(), unknown.clone(), state)) {
                    continue;
                }
            }
            if !frontier.additions.is_empty() {
                stack.push((configuration, Phase::WithAdditions));
            }
            stack.extend(next.into_iter().map(|next| (next, Phase::Plain)));
        }
        // An empty budget may have cut off choices.
        if *budget == 0 { Answer::Undecided } else { Answer::Stuck(furthest.1) }
    }

    fn item(&self, choice: Choice) -> usize {
        match choice {
            Choice::Known(position) => self.known[position],
            Choice::Unknown(position) => self.unknown[position],
        }
    }

    /// What real time allows to come next. The unknown items come first, so that the stack tries them last.
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
            known.push(Choice::Known(position));
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
                choices.push(Choice::Unknown(position));
            }
        }
        choices.extend(known);
        Frontier { choices, additions }
    }

    /// A read among the choices that fits the state and leaves it as it is.
    fn read_that_fits(&self, configuration: &Configuration, choices: &[Choice]) -> Option<usize> {
        choices.iter().find_map(|&choice| {
            let Choice::Known(position) = choice else { return None };
            let item = &self.items[self.known[position]];
            let fits = item.change.is_none()
                && configuration.state.after(item) == Some(configuration.state);
            fits.then_some(position)
        })
    }

    fn take(&self, configuration: &Configuration, choice: Choice) -> Option<Configuration> {
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
            Choice::Known(position) => next.take_known(position),
            Choice::Unknown(position) => next.unknown[position / 64] |= 1 << (position % 64),
        }
        Some(next)
    }
}

impl Search<'_> {
    /// Takes each item that does not fit by itself, after silent additions that make it fit: every choice
    /// of them that adds up to what is missing.
    fn take_after_additions(
        &self,
        configuration: &Configuration,
        frontier: &Frontier,
        budget: &mut usize,
        stack: &mut Vec<(Configuration, Phase)>,
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
            // The fewest are tried first, since the stack gives the last: what was not needed can fill a later gap.
            found.sort_by_key(|chosen| std::cmp::Reverse(chosen.iter().sum::<usize>()));
            for chosen in &found {
                let mut before = configuration.clone();
                for ((_, group), &count) in groups.iter().zip(chosen) {
                    for &position in &group[..count] {
                        before.unknown[position / 64] |= 1 << (position % 64);
                    }
                }
                before.state = State { value: Some(needed as u64), version: None, ..before.state };
                before.writer = ItemSource::Unknown;
                stack.extend(self.take(&before, choice).map(|after| (after, Phase::Plain)));
            }
        }
    }
}

/// Calls `found` with every choice of at least one addition, as a count for each group, whose sum is `missing`.
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

/// Finds a small part of the items that is wrong by itself.
///
/// A read can be left out, and so can a write that no remaining read can have seen: what is left of a right
/// history is then right as well, so what is left wrong shows that the whole is wrong.
fn shrink(all: &[Item]) -> Vec<Item> {
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
            if matches!(search(&trial, &mut budget), Answer::Stuck(_)) {
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
        if let Answer::Stuck(stuck) = search(&items, &mut budget) {
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

/// Puts back what must not be left out: writes that a remaining read, or any addition, can have seen.
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
            // Where additions keep all writes, the readers that vouch for a write of unknown outcome stay too.
            let vouches = matches!(item.source, ItemSource::Item(source) if items[source].return_ns.is_none());
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
        // The version of a write of unknown outcome was learned from its readers; without them it is as
        // good as never made.
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

//! How many combinations of elements are deadly, exactly and by the levels of their elements.
//!
//! Counted are the *minimal* combinations, of which no part is deadly. *Low* elements, up to the
//! level at which sets are apart, touch a set at a single domain; *high* elements, above it, may
//! take several domains of a row along.
//!
//! All low elements of a minimal combination are in a single row, since the others would not be
//! needed there. With the high elements of the combination they take exactly m + 1 domains of that
//! row. Low elements in different domains meet in a set if their ranges of member numbers overlap,
//! and such ranges are nested: the smallest decides, and the others follow from it. Combinations of
//! high elements alone may be deadly for several rows and are counted once.

use crate::machine::{Choice, Machine, PlanError};
use crate::rows::Rows;
use std::collections::{BTreeMap, HashMap, HashSet};

/// A combination of high elements, each as level and number, ascending.
type High = Vec<(usize, u64)>;

/// A high element that was chosen: level, number, and how many domains of a row it takes.
type Chosen = (usize, u64, u64);

/// How many combinations of high elements are looked at before a choice is refused.
const COMBINATIONS_MAX: usize = 300_000;

/// Counts the minimal deadly combinations: for each composition, which is a number of elements of
/// each level, how many there are.
///
/// # Errors
///
/// [`PlanError`] if the choice does not fit the machine.
pub fn count(machine: &Machine, choice: Choice) -> Result<BTreeMap<Vec<usize>, u128>, PlanError> {
    machine.check(choice)?;
    let deadly = Deadly::new(machine, choice);
    deadly.count()
}

struct Deadly<'a> {
    machine: &'a Machine,
    choice: Choice,
    rows: Rows,
    /// How many members a domain has.
    domain_size: u64,
    /// The levels below which sets are apart, and those above, as far as their elements fail.
    low: Vec<usize>,
    high: Vec<usize>,
}

impl<'a> Deadly<'a> {
    fn new(machine: &'a Machine, choice: Choice) -> Deadly<'a> {
        let apart = machine.apart_in_fact(choice);
        let domain_size = apart.map_or(1, |level| machine.levels()[level].size);
        let rows = Rows::new(machine.members() / domain_size, choice.set);
        let fails = |level: &usize| machine.levels()[*level].mtbf_s.is_some();
        let first_high = apart.map_or(0, |level| level + 1);
        let low = (0..first_high).filter(fails).collect();
        let high = (first_high..machine.levels().len()).filter(fails).collect();
        Deadly { machine, choice, rows, domain_size, low, high }
    }

    fn count(&self) -> Result<BTreeMap<Vec<usize>, u128>, PlanError> {
        let groups = self.groups();
        // The high elements that are deadly without any low ones.
        let mut alone: HashSet<High> = HashSet::new();
        let mut looked_at = 0;
        for (row, _) in groups.values() {
            self.for_each_high(*row, &mut |high, covered| {
                looked_at += 1;
                let needs_all = high.iter().all(|&(_, _, taken)| covered - taken <= self.lose());
                if covered > self.lose() && needs_all {
                    alone.insert(names(high));
                }
                looked_at <= COMBINATIONS_MAX
            });
        }
        if looked_at > COMBINATIONS_MAX {
            return Err(PlanError::TooMany { set: self.choice.set, lose: self.choice.lose });
        }
        let mut counts = BTreeMap::new();
        for high in &alone {
            if !has_part_in(high, &alone, false) {
                *counts.entry(self.composition(high)).or_default() += 1;
            }
        }
        for ((len, _), (row, rows)) in &groups {
            self.for_each_high(*row, &mut |high, covered| {
                let names = names(high);
                if covered <= self.lose() && !has_part_in(&names, &alone, true) {
                    let missing = self.lose() + 1 - covered;
                    let domains = choose(*len - covered, missing) * u128::from(*rows);
                    let mut composition = self.composition(&names);
                    self.add_low(&mut composition, 0, missing, domains, &mut counts);
                }
                true
            });
        }
        Ok(counts)
    }

    fn lose(&self) -> u64 {
        self.choice.lose
    }

    fn composition(&self, high: &High) -> Vec<usize> {
        let mut composition = vec![0; self.machine.levels().len()];
        for (level, _) in high {
            composition[*level] += 1;
        }
        composition
    }

    /// The number of the element of a level that holds a domain.
    fn element_of(&self, level: usize, domain: u64) -> u64 {
        domain * self.domain_size / self.machine.levels()[level].size
    }

    /// Rows that touch the same high elements, with a row of the group and how many it has.
    fn groups(&self) -> HashMap<(u64, Vec<u64>), (u64, u64)> {
        let mut groups = HashMap::new();
        for row in 0..self.rows.len() {
            let touched = self.high.iter().flat_map(|&level| {
                self.rows.row(row).map(move |domain| self.element_of(level, domain))
            });
            let key = (self.rows.row_len(row), touched.collect());
            groups.entry(key).or_insert((row, 0)).1 += 1;
        }
        groups
    }

    /// Calls `visit` for each combination of high elements that do not contain each other and
    /// take domains of a row, with the number of domains that they take: up to m, or more than m
    /// if the last one was needed for that. `visit` returns whether to go on.
    fn for_each_high(&self, row: u64, visit: &mut dyn FnMut(&[Chosen], u64) -> bool) {
        let domains: Vec<u64> = self.rows.row(row).collect();
        self.visit_high(&domains, 0, 0, &mut Vec::new(), visit);
    }

    fn visit_high(
        &self,
        domains: &[u64],
        from: usize,
        covered: u64,
        chosen: &mut Vec<Chosen>,
        visit: &mut dyn FnMut(&[Chosen], u64) -> bool,
    ) -> bool {
        if !visit(chosen, covered) {
            return false;
        }
        if covered > self.lose() {
            return true;
        }
        for at in from..domains.len() {
            for &level in &self.high {
                let element = self.element_of(level, domains[at]);
                let is_first = at == 0 || self.element_of(level, domains[at - 1]) != element;
                if !is_first {
                    continue;
                }
                let rest = &domains[at..];
                let taken =
                    rest.iter().take_while(|domain| self.element_of(level, **domain) == element);
                let taken = taken.count();
                chosen.push((level, element, taken as u64));
                let goes_on =
                    self.visit_high(domains, at + taken, covered + taken as u64, chosen, visit);
                chosen.pop();
                if !goes_on {
                    return false;
                }
            }
        }
        true
    }

    /// Adds the combinations with `missing` low elements in so many chosen domains. The levels are
    /// taken from the innermost, so the first one that is used has the smallest elements.
    fn add_low(
        &self,
        composition: &mut Vec<usize>,
        from: usize,
        missing: u64,
        ways: u128,
        counts: &mut BTreeMap<Vec<usize>, u128>,
    ) {
        if missing == 0 {
            *counts.entry(composition.clone()).or_default() += ways;
            return;
        }
        let is_first = self.low[..from.min(self.low.len())].iter().all(|l| composition[*l] == 0);
        let Some(&level) = self.low.get(from) else { return };
        for elements in 0..=missing {
            let places = if is_first && elements > 0 {
                self.domain_size / self.machine.levels()[level].size
            } else {
                1
            };
            composition[level] = elements as usize;
            let ways = ways * choose(missing, elements) * u128::from(places);
            self.add_low(composition, from + 1, missing - elements, ways, counts);
        }
        composition[level] = 0;
    }
}

fn names(high: &[Chosen]) -> High {
    let mut names: High = high.iter().map(|&(level, element, _)| (level, element)).collect();
    names.sort_unstable();
    names
}

/// Whether a part of a combination, or with `or_whole` the combination itself, is in a collection.
fn has_part_in(high: &High, collection: &HashSet<High>, or_whole: bool) -> bool {
    let all = (1u32 << high.len()) - 1;
    let part = |bits: u32| -> High {
        let is_in = |index: &usize| bits >> index & 1 == 1;
        (0..high.len()).filter(is_in).map(|index| high[index]).collect()
    };
    !collection.is_empty()
        && (1..all + u32::from(or_whole)).any(|bits| collection.contains(&part(bits)))
}

/// The number of ways to choose `k` out of `n`.
pub(crate) fn choose(n: u64, k: u64) -> u128 {
    if k > n {
        return 0;
    }
    (0..k).fold(1, |ways, i| ways * u128::from(n - i) / u128::from(i + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Level;

    fn machine(members: u64, sizes: &[u64]) -> Machine {
        let level = |(index, &size): (usize, &u64)| Level {
            name: format!("level {index}"),
            size,
            mtbf_s: Some(1e6),
            back_s: 1.0,
        };
        let levels = sizes.iter().enumerate().map(level).collect();
        Machine::new(members, levels).expect("a machine")
    }

    /// The minimal deadly combinations, by looking at every combination of elements.
    fn by_trial(machine: &Machine, choice: Choice) -> BTreeMap<Vec<usize>, u128> {
        let sets = crate::simulate::sets(machine, choice);
        let elements: Vec<(usize, u64)> = (0..machine.levels().len())
            .flat_map(|level| (0..machine.elements(level)).map(move |element| (level, element)))
            .collect();
        let is_deadly = |bits: u64| {
            let is_down = |member: u64| {
                elements.iter().enumerate().any(|(index, &(level, element))| {
                    bits >> index & 1 == 1 && member / machine.levels()[level].size == element
                })
            };
            let lost = |set: &Vec<u64>| set.iter().filter(|member| is_down(**member)).count();
            sets.iter().any(|set| lost(set) as u64 > choice.lose)
        };
        let mut counts = BTreeMap::new();
        for bits in 1u64..1 << elements.len() {
            if u64::from(bits.count_ones()) > choice.lose + 1 || !is_deadly(bits) {
                continue;
            }
            let is_minimal = (0..elements.len())
                .filter(|index| bits >> index & 1 == 1)
                .all(|index| !is_deadly(bits & !(1 << index)));
            if is_minimal {
                let mut composition = vec![0; machine.levels().len()];
                for (index, (level, _)) in elements.iter().enumerate() {
                    composition[*level] += (bits >> index & 1) as usize;
                }
                *counts.entry(composition).or_default() += 1;
            }
        }
        counts
    }

    #[test]
    fn counts_are_those_of_a_look_at_every_combination() {
        let machines = [
            machine(8, &[1, 2]),
            machine(8, &[2, 4]),
            machine(12, &[1, 4]),
            machine(12, &[2, 4]),
            machine(12, &[1, 2, 6]),
            machine(10, &[1, 5]),
            machine(14, &[1, 7]),
        ];
        for machine in machines {
            for set in 2..=6 {
                for lose in 1..set.min(4) {
                    for apart in 0..machine.levels().len() {
                        let choice = Choice { set, lose, apart };
                        let counted = count(&machine, choice).expect("it fits");
                        assert_eq!(counted, by_trial(&machine, choice), "{machine:?} {choice:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn too_many_combinations_are_refused() {
        let machine = machine(1 << 16, &[1, 2, 4, 8]);
        let choice = Choice { set: 200, lose: 3, apart: 0 };
        assert!(matches!(count(&machine, choice), Err(PlanError::TooMany { .. })));
    }
}

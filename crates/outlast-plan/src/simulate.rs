//! A Monte Carlo of the failures of a machine, over explicit members and sets.

use crate::machine::{Choice, Machine, PlanError};
use crate::rows::Rows;

/// How many of `runs` jobs of `job_s` seconds lost data. A seed always gives the same answer.
///
/// # Errors
///
/// [`PlanError`] if the choice does not fit the machine.
pub fn simulate(
    machine: &Machine,
    choice: Choice,
    job_s: f64,
    runs: u64,
    seed: u64,
) -> Result<u64, PlanError> {
    machine.check(choice)?;
    let sets = sets(machine, choice);
    let mut set_of = vec![0; machine.members() as usize];
    for (index, set) in sets.iter().enumerate() {
        for member in set {
            set_of[*member as usize] = index;
        }
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let mut run = || {
        // The elements that are down: level, number, and when they are back.
        let mut down: Vec<(usize, u64, f64)> = Vec::new();
        let mut now = 0.0;
        loop {
            now -= (1.0 - random.f64()).ln() / machine.failure_rate();
            if now > job_s {
                return false;
            }
            let (level, element) = failing(machine, &mut random);
            down.retain(|&(_, _, back)| back > now);
            down.push((level, element, now + machine.levels()[level].back_s));
            let is_down = |member: u64| {
                down.iter()
                    .any(|&(level, element, _)| member / machine.levels()[level].size == element)
            };
            let size = machine.levels()[level].size;
            let is_lost = (element * size..(element + 1) * size).any(|member| {
                let set = &sets[set_of[member as usize]];
                set.iter().filter(|member| is_down(**member)).count() as u64 > choice.lose
            });
            if is_lost {
                return true;
            }
        }
    };
    if machine.failure_rate() == 0.0 {
        return Ok(0);
    }
    Ok((0..runs).filter(|_| run()).count() as u64)
}

/// The element that fails next.
fn failing(machine: &Machine, random: &mut fastrand::Rng) -> (usize, u64) {
    let mut at = random.f64() * machine.failure_rate();
    let mut last = (0, 0);
    for (index, level) in machine.levels().iter().enumerate() {
        let Some(mtbf_s) = level.mtbf_s else { continue };
        let element = (at * mtbf_s) as u64;
        if element < machine.elements(index) {
            return (index, element);
        }
        at -= machine.elements(index) as f64 / mtbf_s;
        last = (index, machine.elements(index) - 1);
    }
    // Rounding has led past the last element.
    last
}

/// The members of each set.
pub(crate) fn sets(machine: &Machine, choice: Choice) -> Vec<Vec<u64>> {
    let size = machine.apart_in_fact(choice).map_or(1, |level| machine.levels()[level].size);
    let rows = Rows::new(machine.members() / size, choice.set);
    let set = |row, place| rows.row(row).map(|domain| domain * size + place).collect();
    (0..rows.len()).flat_map(|row| (0..size).map(move |place| set(row, place))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Level;

    #[test]
    fn simulated_losses_agree_with_counted_ones() {
        let level = |name: &str, size, mtbf_s| Level {
            name: name.into(),
            size,
            mtbf_s: Some(mtbf_s),
            back_s: 1.0 + size as f64 / 4.0,
        };
        let levels =
            vec![level("process", 1, 2000.0), level("node", 4, 4000.0), level("rack", 16, 40000.0)];
        let machine = Machine::new(64, levels).expect("a machine");
        for (choice, job_s) in [
            (Choice { set: 4, lose: 1, apart: 1 }, 700.0),
            (Choice { set: 8, lose: 2, apart: 1 }, 6000.0),
            (Choice { set: 4, lose: 1, apart: 2 }, 600.0),
        ] {
            let runs = 10_000;
            let counted = crate::loss(&machine, choice, job_s).expect("it fits").whole;
            let losses = simulate(&machine, choice, job_s, runs, 7).expect("it fits");
            let simulated = losses as f64 / runs as f64;
            let deviation = (counted * (1.0 - counted) / runs as f64).sqrt();
            println!(
                "{choice:?}: counted {counted:.4}, simulated {simulated:.4} +- {deviation:.4}"
            );
            // λ·τ is about 0.001 here, and the counting neglects it.
            let bound = 4.0 * deviation + 0.01 * counted;
            assert!((simulated - counted).abs() < bound, "{counted} {simulated}");
            assert!((0.05..0.8).contains(&counted), "{counted}: the job shows little");
        }
    }
}

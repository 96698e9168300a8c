//! Pure arithmetic about images: how likely the data of a job is lost, how much memory images take,
//! how often to save them, and what that costs.
//!
//! A [`Machine`] is a hierarchy of *elements*: processes in nodes, nodes in racks. An element fails
//! at its own rate, takes all members in it along, and what it held is whole again after a while.
//! An image lies in the memories of a *set* of members, of which any `lose` may be gone. A
//! combination of elements that are down together is *deadly* if a set has lost more members than
//! that.
//!
//! | module | content |
//! |---|---|
//! | [`machine`] | the hierarchy, and what it refuses |
//! | [`rows`] | how members are dealt into sets |
//! | [`deadly`] | how many combinations are deadly, by the levels of their elements |
//! | [`at_once`] | the chance of a loss if a number of elements fail at once |
//! | [`interval`] | how often to save, and the time that saving and going back take |
//! | [`mod@simulate`] | a Monte Carlo over explicit members, apart from the counting |
//!
//! ```
//! use outlast_plan::{Choice, Level, Machine, loss};
//!
//! const YEAR: f64 = 365.25 * 86400.0;
//! let node = Level { name: "node".into(), size: 1, mtbf_s: Some(5.0 * YEAR), back_s: 60.0 };
//! let machine = Machine::new(256, vec![node])?;
//! let loss = loss(&machine, Choice { set: 8, lose: 1, apart: 0 }, 30.0 * 86400.0)?;
//! assert!((1.1e-5..1.2e-5).contains(&loss.whole));
//! # Ok::<(), outlast_plan::PlanError>(())
//! ```

pub mod at_once;
pub mod deadly;
pub mod interval;
pub mod machine;
pub mod rows;
pub mod simulate;

pub use at_once::loss_at_once;
pub use interval::{daly_interval, overhead};
pub use machine::{Choice, Level, Machine, PlanError};
pub use rows::Rows;
pub use simulate::simulate;

/// The chance that the data of a job is lost within its time.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// The chance in all.
    pub whole: f64,
    /// The chance by the levels of the elements that are down together, with the number of elements
    /// of each level of the machine, largest chance first.
    pub by_levels: Vec<(Vec<usize>, f64)>,
}

/// The chance that a job that runs for `job_s` seconds loses data.
///
/// Elements of rates λ, each whole again after its time τ, are down together at the rate
/// Πλ · Σᵢ Πⱼ≠ᵢ τⱼ: any of them may be the last to fail, while the others are still down. The sum
/// over all deadly combinations is the rate of losses. It holds while λ·τ is small.
///
/// # Errors
///
/// [`PlanError`] if the choice does not fit the machine.
pub fn loss(machine: &Machine, choice: Choice, job_s: f64) -> Result<Loss, PlanError> {
    let chance = |rate: f64| -f64::exp_m1(-rate * job_s);
    let mut whole_rate = 0.0;
    let mut by_levels = Vec::new();
    for (composition, count) in deadly::count(machine, choice)? {
        let mut down = 1.0;
        let mut ends = 0.0;
        for (level, &elements) in machine.levels().iter().zip(&composition) {
            let Some(mtbf_s) = level.mtbf_s else { continue };
            down *= (level.back_s / mtbf_s).powi(elements as i32);
            ends += elements as f64 / level.back_s;
        }
        let rate = count as f64 * down * ends;
        whole_rate += rate;
        by_levels.push((composition, chance(rate)));
    }
    by_levels.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    Ok(Loss { whole: chance(whole_rate), by_levels })
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: f64 = 365.25 * 86400.0;
    const MONTH: f64 = 30.0 * 86400.0;

    fn level(name: &str, size: u64, years: f64) -> Level {
        Level { name: name.into(), size, mtbf_s: Some(years * YEAR), back_s: 60.0 }
    }

    fn near(value: f64, printed: f64) {
        assert!((value / printed - 1.0).abs() < 0.05, "{value:e} is not {printed:e}");
    }

    #[test]
    fn nodes_in_rows_are_lost_as_printed() {
        let machine = Machine::new(256, vec![level("node", 1, 5.0)]).expect("a machine");
        let lost =
            |lose| loss(&machine, Choice { set: 8, lose, apart: 0 }, MONTH).expect("it fits").whole;
        near(lost(1), 1.1e-5);
        near(lost(2), 1.3e-11);
        // Random groups make every pair of nodes deadly, as a single row of all nodes does.
        let choice = Choice { set: 256, lose: 1, apart: 0 };
        near(loss(&machine, choice, MONTH).expect("it fits").whole, 4.1e-4);
    }

    #[test]
    fn processes_and_nodes_are_lost_as_printed() {
        let levels = vec![level("process", 1, 1.0), level("node", 16, 5.0)];
        let machine = Machine::new(4096, levels).expect("a machine");
        let one = loss(&machine, Choice { set: 8, lose: 1, apart: 1 }, MONTH).expect("it fits");
        near(one.whole, 6.3e-3);
        let by = |wanted: &[usize]| {
            one.by_levels.iter().find(|(levels, _)| levels == wanted).expect("it is deadly").1
        };
        near(by(&[2, 0]), 4.5e-3);
        near(by(&[1, 1]), 1.8e-3);
        near(by(&[0, 2]), 1.1e-5);
        let two = loss(&machine, Choice { set: 8, lose: 2, apart: 1 }, MONTH).expect("it fits");
        near(two.whole, 4.4e-8);
    }

    #[test]
    fn an_element_with_too_much_of_a_set_is_deadly_alone() {
        let levels = vec![level("node", 1, 5.0), level("rack", 8, 50.0)];
        let machine = Machine::new(16, levels).expect("a machine");
        let lost = loss(&machine, Choice { set: 8, lose: 1, apart: 0 }, MONTH).expect("it fits");
        // Each of the two racks has four members of each set.
        assert_eq!(lost.by_levels[0].0, [0, 1]);
        near(lost.by_levels[0].1, 2.0 * MONTH / (50.0 * YEAR));
    }
}

//! The report of simulated runs as a page for a browser.

use super::{Sim, SimReport};
use crate::report::figures::{Range, columns, short};
use crate::report::page::{Page, Section, Table};
use outlast::sim::Link;
use std::collections::BTreeMap;
use std::time::Duration;

/// How many failing seeds have a row.
const SHOWN: usize = 200;

/// The page.
pub(super) fn page(sim: &Sim, report: &SimReport, took: Duration) -> Page {
    let lead = match sim.programs.is_of_seats() {
        true => format!(
            "Each seed is a run of {} members, in virtual time. Members run programs on seats ({}) \
             while {} of them die and {} stop, at any step. The answer is compared with that of an \
             oracle.",
            sim.members, sim.programs, sim.kills, sim.stops
        ),
        false => format!(
            "Each seed is a run of {} members with {} replicas of each value, in virtual time. \
             Members make random calls ({}) while {} of them die and {} stop, at any step. The \
             results of all calls are judged. The store recovers in {} mode.",
            sim.members, sim.replicas, sim.programs, sim.kills, sim.stops, sim.mode
        ),
    };
    let verdict = match (report.ok, report.failing.len()) {
        (true, _) => "No seed fails.".to_string(),
        (_, 0) => "Not all seeds were run.".to_string(),
        (_, count) => format!("{count} seeds fail."),
    };
    let page = Page::new("Simulated runs", lead)
        .verdict(report.ok, verdict)
        .fact(report.seeds, "seeds")
        .fact(report.failing.len(), "of them fail")
        .fact(report.kills, "deaths")
        .fact(report.stops, "stops")
        .fact(short(report.steps as f64), "steps of the simulator")
        .fact(
            format!("{}/s", short(report.steps as f64 / took.as_secs_f64().max(1e-9))),
            "steps, on all cores",
        );
    let ranges = ranges(report);
    let groups = [("memory link", "--s0"), ("network link", "--s1"), ("failing", "--bad")];
    let mut table = Table::new(1, &["steps", groups[0].0, groups[1].0, groups[2].0]);
    for range in ranges.iter().filter(|range| range.counts.iter().any(|count| *count > 0)) {
        let counts = range.counts.iter().map(u64::to_string);
        table.rows.push(std::iter::once(range.name.clone()).chain(counts).collect());
    }
    let runs = Section::new("Seeds by the length of their run", "Steps of the simulator.");
    let page =
        page.section(runs.figure(&columns("Seeds by steps", &groups, &ranges)).table(&table));
    if report.failing.is_empty() {
        return page;
    }
    let mut table = Table::new(3, &["seed", "violation", "replay"]);
    for failing in report.failing.iter().take(SHOWN) {
        table.rows.push(vec![
            failing.seed.to_string(),
            failing.kind.clone(),
            failing.replay.clone(),
        ]);
    }
    let text = match report.failing.len() > SHOWN {
        true => format!("The first {SHOWN} of {}.", report.failing.len()),
        false => String::new(),
    };
    let mut failing = Section::new("Seeds that fail", text).table(&table);
    for seed in report.failing.iter().take(5) {
        failing = failing.headline(&format!("Seed {}", seed.seed)).text(&seed.details);
    }
    page.section(failing)
}

/// How many seeds took how many steps, in ranges that grow by powers of two: on the memory link, on
/// the network link, and with a violation.
fn ranges(report: &SimReport) -> Vec<Range> {
    // Four ranges for each power of two.
    let range = |steps: u64| ((steps.max(1) as f64).log2() * 4.0).floor() as i32;
    let mut counts: BTreeMap<i32, Vec<u64>> = BTreeMap::new();
    for run in &report.runs {
        let group = match (run.is_wrong, run.link) {
            (true, _) => 2,
            (_, Link::Memory) => 0,
            (_, Link::Network) => 1,
        };
        counts.entry(range(run.steps)).or_insert_with(|| vec![0; 3])[group] += 1;
    }
    let (Some((&first, _)), Some((&last, _))) = (counts.first_key_value(), counts.last_key_value())
    else {
        return Vec::new();
    };
    // A few runs that took very long would leave no room for the others.
    let width = ((last - first) / 40 + 1) as usize;
    (first..=last)
        .step_by(width)
        .map(|low| {
            let high = low + width as i32;
            let mut sums = vec![0; 3];
            for (_, found) in counts.range(low..high) {
                sums.iter_mut().zip(found).for_each(|(sum, count)| *sum += count);
            }
            let at = |range: i32| short(2f64.powf(f64::from(range) / 4.0).round());
            let name = format!("{} to {}", at(low), at(high));
            Range { begin: at(low), name, counts: sums }
        })
        .collect()
}

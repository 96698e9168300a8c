//! The report of a chaos run as a page for a browser.

use super::Chaos;
use super::judge::{ChaosReport, Times};
use super::observations::Observations;
use crate::report::page::{Page, Section, Table};
use crate::report::timeline::{Death, Lane, Timeline};
use outlast_check::history::{Access, History, Outcome};

/// The course of the run: acknowledged writes from the record of all calls, faults and notices from
/// what the command observed.
pub(super) fn timeline(chaos: &Chaos, history: &History, observed: &Observations) -> Timeline {
    let members = u32::from(chaos.members);
    let mut lanes: Vec<Lane> = (0..members).map(|_| Lane::default()).collect();
    for operation in history.operations() {
        let is_write =
            operation.outcome == Outcome::Ok && operation.accesses.iter().any(Access::changes);
        if let (true, Some(at_ns), Some(lane)) =
            (is_write, operation.return_ns, lanes.get_mut(operation.actor.member as usize))
        {
            lane.acked_ns.push(at_ns);
        }
    }
    lanes.iter_mut().for_each(|lane| lane.acked_ns.sort_unstable());
    for &(member, from_ns, to_ns) in &observed.stops {
        if let Some(lane) = lanes.get_mut(member as usize) {
            lane.stops.push((from_ns, to_ns));
        }
    }
    let deaths = observed.kills.iter().map(|kill| {
        let noticed = observed.noticed.iter().filter(|((_, dead), _)| *dead == kill.member);
        Death {
            member: kill.member,
            at_ns: kill.at_ns,
            how: match &kill.step {
                Some(step) => format!("death in {step}"),
                None => "kill -9".into(),
            },
            noticed_ns: noticed.map(|((member, _), &at_ns)| (*member, at_ns)).collect(),
            complete_ns: observed.complete_at(kill.dead_before + 1, members),
        }
    });
    let deaths: Vec<Death> = deaths.collect();
    let begin_ns = history.operations().iter().map(|operation| operation.invoke_ns).min();
    let writes = lanes.iter().flat_map(|lane| lane.acked_ns.iter().copied());
    let end_ns = writes.chain(deaths.iter().map(|death| death.at_ns)).max();
    let begin_ns = begin_ns.unwrap_or(0);
    let end_ns = end_ns.unwrap_or(begin_ns);
    Timeline { begin_ns, end_ns, lanes, deaths, cut_ns: observed.cut_ns }
}

/// The page.
pub(super) fn page(chaos: &Chaos, report: &ChaosReport) -> Page {
    let lead = format!(
        "{} processes make random calls ({}) on a store with {} replicas of each value, in {} \
         threads each, while members are killed and stopped at random moments. Every call was \
         recorded where the record outlives its caller, and judged. Seed {}; the store \
         recovers in {} mode.",
        chaos.members, chaos.programs, chaos.replicas, chaos.threads, report.seed, chaos.mode
    );
    let verdict = match report.ok {
        true => "The store kept all its promises.",
        false => "A promise is broken, or the run failed.",
    };
    let median = |times: Option<Times>| {
        times.map_or("no sample".to_string(), |times| format!("{:.2} ms", times.p50))
    };
    let mut page = Page::new("Chaos: members die, calls are judged", lead)
        .verdict(report.ok, verdict)
        .fact(report.acked, "acknowledged writes")
        .fact(report.lost, "of them are lost")
        .fact(report.calls, "calls judged")
        .fact(format!("{} and {}", report.kills, report.stops), "deaths and stops")
        .fact(median(report.detection_ms), "median from a death to its notice")
        .fact(median(report.repair_ms), "median until all replicas are back")
        .repeat(chaos.command())
        .origin("Engine", chaos.engine_args.engine);
    let mut judged = Table::new(1, &["what is judged", "violations"]);
    for (what, count) in [
        ("acknowledged writes that are lost", report.lost),
        ("torn reads", report.torn),
        ("stale reads", report.stale),
        ("calls that hung", report.hung),
        ("contradictions to a single order of all calls", report.nonlinearizable),
        ("failures besides the calls", report.failures.len() as u64),
    ] {
        if count > 0 {
            judged.bad.push(judged.rows.len());
        }
        judged.rows.push(vec![what.into(), count.to_string()]);
    }
    let mut times = Table::new(1, &["from a death to", "p50", "p99", "max"]);
    for (what, found) in [
        ("its notice, for each survivor", report.detection_ms),
        ("the next put on an affected key", report.unavailable_ms),
        ("the moment when no replica is missing", report.repair_ms),
    ] {
        let cells = match found {
            Some(Times { p50, p99, max }) => [p50, p99, max].map(|ms| format!("{ms:.3} ms")),
            None => [const { String::new() }; 3],
        };
        times.rows.push(std::iter::once(what.to_string()).chain(cells).collect());
    }
    if let Some(timeline) = &report.timeline {
        page = timeline.sections().into_iter().fold(page, Page::section);
    }
    let mut verdicts = Section::new("The verdict", "").table(&judged).headline("Times");
    verdicts = verdicts.table(&times);
    if let Some(steps) = &report.deaths_by_step {
        let mut table = Table::new(1, &["died in step", "members"]);
        let died = steps.iter().filter(|(_, count)| **count > 0);
        table.rows.extend(died.map(|(step, count)| vec![step.clone(), count.to_string()]));
        verdicts = verdicts.headline("Deaths by step").table(&table);
    }
    let wrong: Vec<&str> =
        report.failures.iter().chain(&report.violations).map(String::as_str).collect();
    if !wrong.is_empty() {
        verdicts = verdicts.headline("What is wrong").text(&wrong.join("\n\n"));
    }
    page.section(verdicts)
}

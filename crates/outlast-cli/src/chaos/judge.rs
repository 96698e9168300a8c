//! Judges the record of a chaos run, and reports.

use super::Chaos;
use super::member::{FoundLine, Plan};
use super::observations::Observations;
use super::page;
use crate::control::CommandControl;
use crate::loss_acceptor::Losses;
use crate::program;
use crate::report::timeline::Timeline;
use anyhow::Context;
use outlast::store::steps;
use outlast_check::durability::Final;
use outlast_check::history::{Access, CallKind, History, Key, Operation, Outcome, Value, Version};
use outlast_check::report::{self, Run};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Percentiles of times, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Times {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

impl Times {
    pub(super) fn new(mut samples_ns: Vec<u64>) -> Option<Times> {
        samples_ns.sort_unstable();
        let last = samples_ns.len().checked_sub(1)?;
        let at =
            |percent: usize| samples_ns[(samples_ns.len() * percent / 100).min(last)] as f64 / 1e6;
        Some(Times { p50: at(50), p99: at(99), max: samples_ns[last] as f64 / 1e6 })
    }
}

/// The report. Its fields up to `seed` are a contract with users; the rest is additional.
#[derive(Serialize)]
pub(super) struct ChaosReport {
    pub(super) ok: bool,
    pub(super) acked: u64,
    pub(super) lost: u64,
    pub(super) torn: u64,
    pub(super) stale: u64,
    pub(super) hung: u64,
    pub(super) nonlinearizable: u64,
    pub(super) kills: u64,
    pub(super) stops: u64,
    pub(super) detection_ms: Option<Times>,
    pub(super) unavailable_ms: Option<Times>,
    pub(super) repair_ms: Option<Times>,
    pub(super) seed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_lost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<Cut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) deaths_by_step: Option<BTreeMap<String, u64>>,
    /// How many calls were recorded.
    pub(super) calls: u64,
    /// Failures besides the calls, for example a member that ended by itself.
    pub(super) failures: Vec<String>,
    #[serde(skip)]
    pub(super) violations: Vec<String>,
    /// With `--report`: the course of the run.
    #[serde(skip)]
    pub(super) timeline: Option<Timeline>,
}

/// How many writes that began after the cut were acknowledged.
#[derive(Clone, Copy, Debug, Serialize)]
struct Cut {
    cut_off: u64,
    others: u64,
}

impl Cut {
    fn new(history: &History, cut_ns: u64, of_host: &BTreeSet<u32>) -> Cut {
        let is_write = |operation: &&Operation| {
            operation.outcome == Outcome::Ok && operation.accesses.iter().any(Access::changes)
        };
        let writes = history.operations().iter().filter(is_write);
        let after = writes.filter(|write| write.invoke_ns > cut_ns && write.return_ns.is_some());
        let (cut_off, others): (Vec<_>, Vec<_>) =
            after.partition(|write| of_host.contains(&write.actor.member));
        Cut { cut_off: cut_off.len() as u64, others: others.len() as u64 }
    }
}

/// How many violations are shown.
const SHOWN: usize = 5;

pub(super) fn judge(
    chaos: &Chaos,
    plan: &Plan,
    control: &CommandControl,
    observed: &Observations,
    end_ns: u64,
) -> anyhow::Result<ChaosReport> {
    let mut operations: Vec<Operation> = Vec::new();
    for text in control.records()?.into_iter().flatten() {
        // The record of a member that died early may be empty.
        if !text.is_empty() {
            operations
                .extend(History::parse(&text).context("the record of a member")?.into_operations());
        }
    }
    let history = History::new(operations).context("the record of the run")?;
    if let Some(path) = &chaos.history {
        std::fs::write(path, history.to_json())
            .with_context(|| format!("writing {}", path.display()))?;
    }
    let keys = program::keys(&plan.options(usize::from(chaos.members)), plan.threads);
    let affected = Affected { observed, keys: &keys };
    let detection_ns = affected.detection();
    let unavailable_ns = affected.unavailable(&history);
    let members = u32::from(chaos.members);
    let repaired = observed.kills.iter().filter_map(|kill| {
        Some(
            observed
                .complete_at(kill.dead_before + 1, members)?
                .saturating_sub(observed.gone_at(kill)),
        )
    });
    let repair_ns = repaired.collect();
    let calls = history.operations().len() as u64;
    let of_host: BTreeSet<u32> =
        chaos.victim_host().into_iter().flat_map(|host| chaos.members_of(host)).collect();
    let cut = observed.cut_ns.map(|cut_ns| Cut::new(&history, cut_ns, &of_host));
    let timeline = chaos.report.as_ref().map(|_| page::timeline(chaos, &history, observed));
    let mut run = Run::new(history);
    run.observation.end_ns = end_ns;
    run.observation.dead = observed.killed();
    let kills = observed.kills.iter().map(|kill| kill.at_ns);
    let resumes = observed.stops.iter().map(|&(_, _, until)| until);
    run.observation.disturbances_ns = kills.chain(resumes).chain(observed.cut_ns).collect();
    // A cut is noticed after a part of the time limit, and cut-off members wait for all of it.
    run.observation.bound_ns += cut.map_or(0, |_| plan.time_limit_s * 1_000_000_000);
    run.observation.end_state = end_state(observed, &keys);
    let mut losses = Losses::default();
    observed.losses.iter().for_each(|news| losses.record(news.clone(), &keys));
    run.losses = losses.0;
    let judged = report::judge(&run);
    let deaths = observed.ended.values().filter(|end| end.is_death()).count() as u64;
    // A member that ended by itself, or did not end, has calls that never return.
    let hung = judged.hung.max(u64::from(!observed.failures.is_empty()));
    // The store may report lost data only if more members died than it promises to survive.
    let lost = judged.lost + if chaos.beyond { 0 } else { judged.data_lost };
    // No host has two replicas of a key, so a host that is cut off may acknowledge no write.
    let is_right = lost + judged.torn + judged.stale + hung + judged.nonlinearizable == 0
        && cut.is_none_or(|cut| cut.cut_off == 0);
    Ok(ChaosReport {
        ok: is_right && deaths == chaos.kills as u64,
        acked: judged.acked,
        lost,
        torn: judged.torn,
        stale: judged.stale,
        hung,
        nonlinearizable: judged.nonlinearizable,
        kills: deaths,
        stops: observed.stops.len() as u64,
        detection_ms: Times::new(detection_ns),
        unavailable_ms: Times::new(unavailable_ns),
        repair_ms: Times::new(repair_ns),
        seed: plan.seed,
        data_lost: chaos.beyond.then_some(judged.data_lost),
        cut,
        deaths_by_step: chaos.failpoints.then(|| deaths_by_step(observed)),
        calls,
        failures: observed.failures.clone(),
        violations: judged.violations.iter().map(ToString::to_string).collect(),
        timeline,
    })
}

/// The final state of each key, as read by the survivors in turn, so that each survivor's reads are
/// judged.
fn end_state(observed: &Observations, keys: &[Key]) -> Option<BTreeMap<Key, Final>> {
    let found: Vec<&Vec<FoundLine>> = observed.found.values().collect();
    if found.is_empty() {
        return None;
    }
    let mut state = BTreeMap::new();
    for (index, key) in keys.iter().enumerate() {
        let read = match found[index % found.len()].get(index)? {
            FoundLine::Absent => Final::Read { version: None, value: None },
            FoundLine::DataLost => Final::DataLost,
            &FoundLine::Value { counter, writer, identity, torn } => Final::Read {
                version: Some(Version::new(counter, writer)),
                value: Some(Value { identity, torn }),
            },
            // The read has no result to judge; the call itself is in the record.
            FoundLine::Unknown => return None,
        };
        state.insert(key.clone(), read);
    }
    Some(state)
}

fn deaths_by_step(observed: &Observations) -> BTreeMap<String, u64> {
    let mut deaths: BTreeMap<String, u64> =
        steps::NAMES.iter().map(|name| (name.to_string(), 0)).collect();
    for kill in &observed.kills {
        let step = kill.step.clone().unwrap_or_else(|| "anywhere, by SIGKILL".to_string());
        *deaths.entry(step).or_default() += 1;
    }
    deaths
}

pub(super) struct Affected<'a> {
    pub(super) observed: &'a Observations,
    pub(super) keys: &'a [Key],
}

impl Affected<'_> {
    /// From a kill to its notice, for each survivor that was not stopped meanwhile.
    pub(super) fn detection(&self) -> Vec<u64> {
        let mut samples = Vec::new();
        for kill in &self.observed.kills {
            for &member in &kill.awake {
                let Some(&at_ns) = self.observed.noticed.get(&(member, kill.member)) else {
                    continue;
                };
                let was_stopped = self.observed.stops.iter().any(|&(stopped, from, to)| {
                    stopped == member && from < at_ns && to > kill.at_ns
                });
                if !was_stopped {
                    samples.push(at_ns.saturating_sub(self.observed.gone_at(kill)));
                }
            }
        }
        samples
    }

    /// From a kill to the first put on a key with a replica on the dead member, acknowledged after
    /// a survivor had noticed the death. A put that was acknowledged earlier may still have used
    /// the dead member.
    fn unavailable(&self, history: &History) -> Vec<u64> {
        let mut samples = Vec::new();
        for kill in &self.observed.kills {
            let notices =
                self.observed.noticed.iter().filter(|((_, dead), _)| *dead == kill.member);
            let Some(first_ns) = notices.map(|(_, &at_ns)| at_ns).min() else { continue };
            let replicas = self.observed.replicas.range(..=kill.dead_before).next_back();
            let Some((_, replicas)) = replicas else { continue };
            let had_replica = |key: &Key| {
                let index = self.keys.iter().position(|other| other == key);
                index
                    .and_then(|index| replicas.get(index))
                    .is_some_and(|replicas| replicas.contains(&kill.member))
            };
            let is_put = |operation: &&Operation| {
                matches!(operation.kind, CallKind::Put | CallKind::PutIf)
                    && operation.outcome == Outcome::Ok
            };
            let acknowledged = history
                .operations()
                .iter()
                .filter(is_put)
                .filter(|put| put.return_ns.is_some_and(|at_ns| at_ns >= first_ns))
                .filter(|put| {
                    put.accesses.iter().any(|access| access.changes() && had_replica(&access.key))
                });
            if let Some(at_ns) = acknowledged.filter_map(|put| put.return_ns).min() {
                samples.push(at_ns.saturating_sub(self.observed.gone_at(kill)));
            }
        }
        samples
    }
}

/// Prints the report for people, on standard error: standard output is for JSON.
pub(super) fn print(report: &ChaosReport) {
    let mark = |is_ok: bool| if is_ok { "ok" } else { "WRONG" };
    eprintln!();
    let line = |is_ok: bool, text: String| eprintln!("  {:<6} {text}", mark(is_ok));
    line(
        report.lost == 0,
        format!("{} of {} acknowledged writes are lost", report.lost, report.acked),
    );
    line(report.torn == 0, format!("{} reads are torn", report.torn));
    line(report.stale == 0, format!("{} reads are stale", report.stale));
    line(report.hung == 0, format!("{} calls hung", report.hung));
    line(
        report.nonlinearizable == 0,
        format!(
            "{} contradictions to a single order of all {} calls",
            report.nonlinearizable, report.calls
        ),
    );
    if let Some(data_lost) = report.data_lost {
        eprintln!("         {data_lost} keys were lost, and the store reported it");
    }
    if let Some(Cut { cut_off, others }) = report.cut {
        line(
            cut_off == 0,
            format!(
                "acknowledged after the cut: {cut_off} writes of the cut-off host, {others} others"
            ),
        );
    }
    eprintln!("         {} members died, {} stops", report.kills, report.stops);
    let what = if report.cut.is_some() { "cut" } else { "kill" };
    for (to, times) in [
        ("notice", report.detection_ms),
        ("the next affected put", report.unavailable_ms),
        ("all replicas complete", report.repair_ms),
    ] {
        if let Some(Times { p50, p99, max }) = times {
            eprintln!(
                "         {:<30} p50 {p50:>9.3} ms  p99 {p99:>9.3} ms  max {max:>9.3} ms",
                format!("{what} to {to}")
            );
        }
    }
    for (step, deaths) in report.deaths_by_step.iter().flatten() {
        eprintln!("         {deaths:>4} deaths in {step}");
    }
    for failure in &report.failures {
        eprintln!("  WRONG  {failure}");
    }
    for violation in report.violations.iter().take(SHOWN) {
        eprintln!("\n{violation}");
    }
    if report.violations.len() > SHOWN {
        eprintln!("\n... and {} more", report.violations.len() - SHOWN);
    }
    eprintln!(
        "\n{}",
        if report.ok {
            "The store kept all its promises."
        } else {
            "A promise is broken, or the run failed."
        }
    );
}

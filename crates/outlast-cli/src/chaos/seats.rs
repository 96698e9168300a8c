//! Chaos on seats: members run programs on seats, one after the other, while members are killed and
//! stopped. The answer of each program is that of an oracle, whoever dies.
//!
//! A kill waits until all replicas of the store and all pieces of all seats are complete, so that a
//! run does not exceed what seats promise. The last program begins when the last fault is over: its
//! seats end at the survivors, each of them once.

use super::Chaos;
use super::judge::{Affected, Times};
use super::member::{ChaosLine, Plan};
use super::observations::Observations;
use crate::control::{MemberControl, Phase};
use crate::members::{DeathNews, Watch, decide_together, machine_ns, tell};
use crate::program::SeatProgram;
use crate::report::page::{Page, Section, Table};
use anyhow::{Context, ensure};
use outlast::Job;
use outlast::protect::{self, Interval, Protect, ProtectError, ProtectResult, Seat};
use outlast::store::Store;
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How many rounds a program has, and the pause before each of them.
const ROUNDS: u64 = 24;
const PAUSE: Duration = Duration::from_millis(20);
/// The most pieces of an image.
const SET_MAX: usize = 4;
/// The budget of the logs of a seat.
const LOGS: u64 = 256 << 10;
/// How long a seat waits for another one that lives.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many pieces the images of seats have on so many failure domains, and how many may be lost if
/// the store has so many replicas.
pub(super) fn shape(domains: usize, replicas: usize) -> (usize, usize) {
    let set = domains.clamp(2, SET_MAX);
    (set, (replicas.max(2) - 1).min(set - 1).min(3))
}

/// What a member of a run does: programs until the command has had enough, and a last one.
pub(super) fn play(
    plan: &Plan,
    job: &Job,
    store: &Store,
    control: &MemberControl,
) -> anyhow::Result<()> {
    tell(&ChaosLine::Open)?;
    let is_over = Arc::new(AtomicBool::new(false));
    let whole = Arc::new(AtomicU64::new(0));
    let reporter = std::thread::spawn({
        let (job, store, is_over, whole) =
            (job.clone(), store.clone(), is_over.clone(), whole.clone());
        move || report(&job, &store, &is_over, &whole)
    });
    for lap in 0.. {
        let is_last = control.phase()? >= Phase::Rest;
        let is_last = decide_together(store, &format!("outlast-cli/last/{lap}"), is_last)?;
        let ended = run(plan, job, store, lap, &whole)?;
        tell(&ChaosLine::Ended { lap, seats: ended })?;
        if is_last {
            break;
        }
    }
    tell(&ChaosLine::Rests)?;
    let until = job.now().after(super::PATIENCE);
    while control.phase()? < Phase::End {
        ensure!(job.now() < until, "the command did not end the run");
        job.park(job.bell(), job.now().after(Duration::from_millis(10)));
    }
    is_over.store(true, Ordering::Release);
    let _ = job.ring(job.me());
    reporter.join().map_err(|_| anyhow::anyhow!("the reporter panicked"))?
}

/// Runs a program; returns the seats that ended at this member.
fn run(
    plan: &Plan,
    job: &Job,
    store: &Store,
    lap: u64,
    whole: &Arc<AtomicU64>,
) -> anyhow::Result<Vec<usize>> {
    let seats = job.view().regulars;
    // All laps of a seed are of different kinds.
    let seed = plan.seed * 1000 + lap;
    let program = SeatProgram::new(plan.programs, seats, ROUNDS, seed, plan.logged);
    let program = program.context("no program of seats")?;
    let (set, lose) = shape(plan.domains, plan.replicas);
    let options = Protect::new(program.bytes()).set(set).lose(lose).piece(256).room(seats);
    let options = options.give_up(1000).patience(PATIENCE);
    let options = match (plan.logged, seed % 2) {
        // Some rounds between two saves, so that there is something to repeat.
        (true, _) => options.every(Interval::Time(5 * PAUSE)).logged(LOGS),
        (false, 0) => options,
        (false, _) => options.every(Interval::Time(3 * PAUSE)),
    };
    let (inside, whole) = (job.clone(), whole.clone());
    let each = move |seat: &Seat, round: u64| look(seat, round, &inside, &whole);
    let ended = protect::run(store, options, move |seat| program.play(seat, &each))?;
    Ok(ended.into_iter().map(|(seat, _)| seat).collect())
}

/// What a seat does before a round: it waits, and looks whether all pieces are whole. Which calls it
/// makes depends on nothing but its answers, as logged mode asks for.
fn look(seat: &Seat, round: u64, job: &Job, whole: &AtomicU64) -> ProtectResult<()> {
    std::thread::sleep(PAUSE);
    if !(round + seat.number() as u64).is_multiple_of(4) {
        return Ok(());
    }
    let dead = seat.remember(|| job.epoch().0.to_le_bytes().to_vec())?;
    let dead = u64::from_le_bytes(dead.try_into().unwrap_or_default());
    if dead > 0 {
        let is_whole = match seat.is_whole() {
            // A record cannot be read now.
            Err(ProtectError::Timeout { .. }) => false,
            other => other?,
        };
        // Only a number: the reporter reads it.
        if is_whole && job.epoch().0 == dead {
            whole.fetch_max(dead, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Tells the command of deaths, and when all replicas and all pieces are there again.
fn report(job: &Job, store: &Store, is_over: &AtomicBool, whole: &AtomicU64) -> anyhow::Result<()> {
    let (mut watch, mut complete, mut told) = (Watch::default(), 0, 0);
    while !is_over.load(Ordering::Acquire) {
        let bell = job.bell();
        for news in watch.poll(job, store)? {
            match news {
                DeathNews::Noticed { .. } => tell(&ChaosLine::News(news))?,
                DeathNews::Complete { dead, .. } => complete = dead,
            }
        }
        let both = complete.min(whole.load(Ordering::Relaxed));
        if both > told && job.epoch().0 == both {
            told = both;
            let news = DeathNews::Complete { dead: both, at_ns: machine_ns() };
            tell(&ChaosLine::News(news))?;
        }
        job.park(bell, job.now().after(watch.patience()));
    }
    Ok(())
}

/// The report of a run on seats. Its fields up to `seed` are a contract with users.
#[derive(Serialize)]
pub(super) struct SeatsReport {
    pub(super) ok: bool,
    /// How many programs ended.
    programs: u64,
    /// Members that failed, gave a wrong answer or did not end.
    wrong: u64,
    kills: u64,
    stops: u64,
    detection_ms: Option<Times>,
    whole_ms: Option<Times>,
    seed: u64,
    failures: Vec<String>,
}

pub(super) fn judge(chaos: &Chaos, observed: &Observations) -> SeatsReport {
    let members = u32::from(chaos.members);
    let mut failures = observed.failures.clone();
    let programs = observed.ends.keys().next_back().map_or(0, |lap| lap + 1);
    let all: BTreeSet<usize> = (0..members as usize).collect();
    let mut found: Vec<usize> = Vec::new();
    if let Some((_, ends)) = observed.ends.iter().next_back() {
        found = ends.values().flatten().copied().collect();
        found.sort_unstable();
    }
    // No member died in the last program.
    if failures.is_empty() && !found.iter().eq(all.iter()) {
        failures.push(format!("the seats {found:?} ended in the last program, of {members}"));
    }
    let repaired = observed.kills.iter().filter_map(|kill| {
        let whole = observed.complete_at(kill.dead_before + 1, members)?;
        Some(whole.saturating_sub(observed.gone_at(kill)))
    });
    let deaths = observed.ended.values().filter(|end| end.is_death()).count() as u64;
    SeatsReport {
        ok: failures.is_empty() && deaths == chaos.kills as u64,
        programs,
        wrong: failures.len() as u64,
        kills: deaths,
        stops: observed.stops.len() as u64,
        detection_ms: Times::new(Affected { observed, keys: &[] }.detection()),
        whole_ms: Times::new(repaired.collect()),
        seed: chaos.seed.unwrap_or_default(),
        failures,
    }
}

/// Prints the report for people, on standard error: standard output is for JSON.
pub(super) fn print(report: &SeatsReport) {
    let mark = if report.wrong == 0 { "ok" } else { "WRONG" };
    eprintln!("\n  {mark:<6} {} programs ended with the answer of the oracle", report.programs);
    eprintln!("         {} members died, {} stops", report.kills, report.stops);
    for (to, times) in [("notice", report.detection_ms), ("all pieces whole", report.whole_ms)] {
        if let Some(Times { p50, p99, max }) = times {
            eprintln!(
                "         {:<30} p50 {p50:>9.3} ms  p99 {p99:>9.3} ms  max {max:>9.3} ms",
                format!("kill to {to}")
            );
        }
    }
    for failure in &report.failures {
        eprintln!("  WRONG  {failure}");
    }
    eprintln!("\n{}", verdict(report));
}

fn verdict(report: &SeatsReport) -> &'static str {
    match report.ok {
        true => "The seats kept all their promises.",
        false => "A promise is broken, or the run failed.",
    }
}

/// The report as a page for a browser.
pub(super) fn page(chaos: &Chaos, report: &SeatsReport) -> Page {
    let lead = format!(
        "{} processes run programs on seats ({}) while members are killed and stopped at random \
         moments. The answer of each program is compared with that of an oracle. Seed {}.",
        chaos.members, chaos.programs, report.seed
    );
    let mut times = Table::new(1, &["from a death to", "p50", "p99", "max"]);
    for (what, found) in [
        ("its notice, for each survivor", report.detection_ms),
        ("the moment when all pieces and all replicas are there", report.whole_ms),
    ] {
        let cells = match found {
            Some(Times { p50, p99, max }) => [p50, p99, max].map(|ms| format!("{ms:.3} ms")),
            None => [const { String::new() }; 3],
        };
        times.rows.push(std::iter::once(what.to_string()).chain(cells).collect());
    }
    let mut verdicts = Section::new("Times", "").table(&times);
    if !report.failures.is_empty() {
        verdicts = verdicts.headline("What is wrong").text(&report.failures.join("\n\n"));
    }
    Page::new("Chaos: members die, seats go on", lead)
        .verdict(report.ok, verdict(report))
        .fact(report.programs, "programs with the right answer")
        .fact(format!("{} and {}", report.kills, report.stops), "deaths and stops")
        .repeat(chaos.command())
        .origin("Engine", chaos.engine_args.engine)
        .section(verdicts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_bear_fewer_losses_than_the_store_has_replicas() {
        assert_eq!(shape(6, 3), (4, 2));
        assert_eq!(shape(6, 8), (4, 3));
        assert_eq!(shape(3, 3), (3, 2));
        assert_eq!(shape(2, 3), (2, 1));
        assert_eq!(shape(6, 2), (4, 1));
    }
}

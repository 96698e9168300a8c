//! Running scenarios on shm: every member is a process, deaths are SIGKILL and stops are SIGSTOP.

use crate::member::{REPORT, watch};
use crate::scenarios::LAUNCHER;
use crate::{Need, Scenario};
use outlast::launch::{Event, Launch, MemberEnd, Output, Running};
use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// SIGKILL, by the number that it has on every Linux.
const SIGKILL: i32 = 9;

fn launch(program: &Path, scenario: &Scenario, seed: u64) -> Launch {
    Launch::new(scenario.members)
        .spares(scenario.spares)
        .program(program)
        .args(["member", "--scenario", scenario.name, "--seed", &seed.to_string()])
        // The message says what failed; backtraces of many members would hide it.
        .env("RUST_BACKTRACE", "0")
        .segment_limit(scenario.segment_limit)
}

/// Runs a scenario once, with `program` (the command of this crate) as its members. Returns how
/// long it took, or the reason of a failure. No process is left running.
pub fn run(program: &Path, scenario: &'static Scenario, seed: u64) -> Result<Duration, String> {
    let began = Instant::now();
    if scenario.does_need(Need::Launcher) {
        run_without_launcher(program, scenario, seed)?;
        return Ok(began.elapsed());
    }
    let mut running = launch(program, scenario, seed)
        .output(Output::Capture)
        .die_with_launcher(true)
        .start()
        .map_err(|error| format!("cannot start the members: {error}"))?;
    let mut ends: Vec<MemberEnd> = Vec::new();
    while ends.len() < scenario.total() {
        let left = scenario.limit.saturating_sub(began.elapsed());
        match running.next_event(left) {
            Some(Event::Ended(end)) => {
                let is_killed = end.status.signal() == Some(SIGKILL);
                let is_wrong = !end.is_ok() && !is_killed;
                ends.push(end);
                if is_wrong {
                    let what = "a member failed; the others were killed".to_string();
                    return Err(describe(&mut running, &ends, what));
                }
            }
            Some(_) => {}
            None if left.is_zero() => {
                let what = format!("a hang: not over after {:?}", scenario.limit);
                return Err(describe(&mut running, &ends, what));
            }
            None => {}
        }
    }
    let killed = ends.iter().filter(|end| !end.is_ok()).count();
    if killed != scenario.killed {
        let what = format!("{killed} members were killed instead of {}", scenario.killed);
        return Err(describe(&mut running, &ends, what));
    }
    Ok(began.elapsed())
}

/// The reason of a failure, with the end and the output of each member. Kills the members that
/// still run.
fn describe(running: &mut Running, ends: &[MemberEnd], what: String) -> String {
    let mut text = what;
    let outcome = running.wait(Duration::ZERO);
    for member in &outcome.members {
        let how = match ends.iter().find(|end| end.member == member.member) {
            Some(end) => end.to_string(),
            None => format!("{} was still running", member.member),
        };
        let _ = write!(text, "\n  {how}");
        for line in outcome.stderr(member.member).lines().take(40) {
            let _ = write!(text, "\n    {line}");
        }
    }
    text
}

/// Runs a scenario in which the members kill their launcher, which is a process of its own.
fn run_without_launcher(
    program: &Path,
    scenario: &'static Scenario,
    seed: u64,
) -> Result<(), String> {
    let mut launcher = Command::new(program);
    launcher.args(["launcher", "--scenario", scenario.name, "--seed", &seed.to_string()]);
    let watched = watch(launcher, scenario)?;
    if watched.status.signal() != Some(SIGKILL) {
        return Err(format!("the launcher was not killed: {}{}", watched.status, watched.said));
    }
    watched.check(scenario)
}

/// The launcher in a scenario that kills it.
pub fn be_launcher(program: &Path, scenario: &'static Scenario, seed: u64) -> Result<(), String> {
    let mut running = launch(program, scenario, seed)
        .env(LAUNCHER, std::process::id().to_string())
        .env(REPORT, "1")
        .start()
        .map_err(|error| format!("cannot start the members: {error}"))?;
    let outcome = running.wait(scenario.limit);
    Err(format!("the launcher lives on\n{outcome}"))
}

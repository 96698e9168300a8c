//! Running scenarios on shm: every member is a process, deaths are SIGKILL and stops are SIGSTOP.

use crate::scenarios::LAUNCHER;
use crate::{Clock, Need, Run, Scenario};
use outlast::launch::{Event, Launch, MemberEnd, Output, Running};
use outlast::{Engine, JoinOptions, MemberId};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// SIGKILL, by the number that it has on every Linux.
const SIGKILL: i32 = 9;

/// How a member says on its standard output that its process has begun; its process number follows.
const BEGUN: &str = "begun: ";

/// How a member says on its standard output that it came to its end.
const FINISHED: &str = "finished: ";

fn launch(program: &Path, scenario: &Scenario, seed: u64) -> Launch {
    Launch::new(scenario.members)
        .spares(scenario.spares)
        .program(program)
        .args(["member", "--scenario", scenario.name, "--seed", &seed.to_string()])
        // What failed is in the message; backtraces of many members bury it.
        .env("RUST_BACKTRACE", "0")
        .segment_limit(scenario.segment_limit)
}

/// Runs a scenario once, with `program` (the command of this crate) as its members. Returns how long it took, or what
/// went wrong. Nothing of it is left running.
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

/// What went wrong, with how each member ended and what it said. Ends those that are left.
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

/// Runs a scenario whose members kill their launcher. That one is a process of its own; what the members write into
/// the pipe that they inherited tells how they fared, and its end tells that the last of them has ended.
fn run_without_launcher(program: &Path, scenario: &'static Scenario, seed: u64) -> Result<(), String> {
    let system = |error: std::io::Error| format!("cannot start the launcher: {error}");
    let (reader, writer) = std::io::pipe().map_err(system)?;
    let mut launcher = Command::new(program)
        .args(["launcher", "--scenario", scenario.name, "--seed", &seed.to_string()])
        .stdin(Stdio::null())
        .stdout(writer.try_clone().map_err(system)?)
        .stderr(writer)
        .spawn()
        .map_err(system)?;
    let (send, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(reader).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    let until = Instant::now() + scenario.limit;
    let (mut said, mut pids, mut finished, mut is_over) = (String::new(), Vec::new(), 0, false);
    while !is_over {
        match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                pids.extend(line.strip_prefix(BEGUN).map(str::to_string));
                finished += usize::from(line.starts_with(FINISHED));
                let _ = write!(said, "\n    {line}");
            }
            Err(RecvTimeoutError::Disconnected) => is_over = true,
            Err(RecvTimeoutError::Timeout) => break,
        }
    }
    if !is_over {
        let _ = launcher.kill();
        // The members hold the pipe, so they are still there and these are their numbers.
        let _ = Command::new("kill").arg("-9").args(&pids).stderr(Stdio::null()).status();
        let _ = launcher.wait();
        return Err(format!("a hang: not over after {:?}{said}", scenario.limit));
    }
    let status = launcher.wait().map_err(system)?;
    if status.signal() != Some(SIGKILL) {
        return Err(format!("the launcher was not killed: {status}{said}"));
    }
    if pids.len() != scenario.total() || finished != scenario.total() - scenario.killed {
        return Err(format!("{} members began and {finished} finished{said}", pids.len()));
    }
    Ok(())
}

/// The part of the launcher in a scenario that kills it.
pub fn be_launcher(program: &Path, scenario: &'static Scenario, seed: u64) -> Result<(), String> {
    let mut running = launch(program, scenario, seed)
        .env(LAUNCHER, std::process::id().to_string())
        .start()
        .map_err(|error| format!("cannot start the members: {error}"))?;
    let outcome = running.wait(scenario.limit);
    Err(format!("the launcher lives on\n{outcome}"))
}

/// The part of a member: joins the job that this process was started in, on whichever engine, and runs the body. A
/// panic of any of its threads ends the process with status 101.
pub fn be_member(scenario: &'static Scenario, seed: u64) -> Result<(), outlast::JoinError> {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::exit(101);
    }));
    if scenario.does_need(Need::Launcher) {
        println!("{BEGUN}{}", std::process::id());
        // Nobody else ends a member that outlived its launcher.
        std::thread::spawn(|| {
            std::thread::sleep(scenario.limit);
            panic!("not over after {:?}", scenario.limit);
        });
    }
    let job =
        JoinOptions::new().time_limit(scenario.time_limit).segment_limit(scenario.segment_limit).join()?;
    let me: MemberId = job.me();
    let run = Run::new(job, scenario, seed, Clock::Real);
    (scenario.body)(&run);
    assert!(run.has_ended(), "{run:?}: the body ended, and the member did not leave");
    if scenario.does_need(Need::Launcher) {
        println!("{FINISHED}{me}");
    }
    Ok(())
}

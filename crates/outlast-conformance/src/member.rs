//! The part that a process plays as a member, and watching members whose launcher does not tell how they ended.

use crate::{Clock, Run, Scenario};
use outlast::JoinOptions;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// If this variable is set, a member says on its standard output that it has begun and that it finished.
pub(crate) const REPORT: &str = "OUTLAST_CONFORMANCE_REPORT";

/// How a member says that its process has begun; its process number follows.
const BEGUN: &str = "begun: ";

/// How a member says that it came to its end.
const FINISHED: &str = "finished: ";

/// The part of a member: joins the job that this process was started in, on whichever engine, and runs the body. A
/// panic of any of its threads ends the process with status 101.
pub fn be_member(scenario: &'static Scenario, seed: u64) -> Result<(), outlast::JoinError> {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::exit(101);
    }));
    if reports() {
        println!("{BEGUN}{}", std::process::id());
        // Nobody else may be there to end a member that outlived its launcher.
        std::thread::spawn(|| {
            std::thread::sleep(scenario.limit);
            panic!("not over after {:?}", scenario.limit);
        });
    }
    let job = JoinOptions::new()
        .time_limit(scenario.time_limit)
        .segment_limit(scenario.segment_limit)
        .join()?;
    // A process that was started in the wrong way is a job of one, in which much would pass.
    assert_eq!(job.members(), scenario.total(), "members of the job for `{}`", scenario.name);
    let run = Run::new(job, scenario, seed, Clock::Real);
    (scenario.body)(&run);
    assert!(run.has_ended(), "{run:?}: the body ended, and the member did not leave");
    report_end(&run);
    Ok(())
}

fn reports() -> bool {
    std::env::var_os(REPORT).is_some()
}

/// Says that a member came to its end, if somebody wants to know.
pub(crate) fn report_end(run: &Run) {
    if reports() {
        println!("{FINISHED}{}", run.me());
    }
}

/// What a launcher and its members said, and how the launcher ended.
pub(crate) struct Watched {
    pub(crate) said: String,
    pub(crate) status: ExitStatus,
    begun: usize,
    finished: usize,
}

impl Watched {
    /// Checks that all members began, and that all finished but those that are killed.
    pub(crate) fn check(&self, scenario: &Scenario) -> Result<(), String> {
        let Watched { said, begun, finished, .. } = self;
        if *begun != scenario.total() || *finished != scenario.total() - scenario.killed {
            return Err(format!("{begun} members began and {finished} finished{said}"));
        }
        // A member that failed is one less that finished, as a member that was killed is.
        if said.contains("panicked at") {
            return Err(format!("a member failed{said}"));
        }
        Ok(())
    }
}

/// Runs a launcher and waits until it and all its members have ended. They inherit a pipe: what they write into it
/// tells how they fared, and its end tells that the last of them is gone. An error is a hang, and nothing of it is
/// left running.
pub(crate) fn watch(mut launcher: Command, scenario: &'static Scenario) -> Result<Watched, String> {
    let system = |error: std::io::Error| format!("cannot start the launcher: {error}");
    let (reader, writer) = std::io::pipe().map_err(system)?;
    launcher.env(REPORT, "1").env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    launcher.stdout(writer.try_clone().map_err(system)?).stderr(writer);
    let mut child = launcher.spawn().map_err(system)?;
    // The command holds the ends of the pipe that the processes inherited.
    drop(launcher);
    let (send, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(reader).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    // The members end themselves at the limit and say so.
    let until = Instant::now() + scenario.limit + Duration::from_secs(5);
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
        let numbers: Vec<u32> = pids.iter().filter_map(|pid| pid.parse().ok()).collect();
        let places = outlast::launch::backtraces(&numbers);
        let _ = child.kill();
        // Some of them hold the pipe. A number that is free again by now is not given away within seconds.
        let _ = Command::new("kill").arg("-9").args(&pids).stderr(Stdio::null()).status();
        let _ = child.wait();
        return Err(format!("a hang: not over after {:?}{said}\n{places}", scenario.limit));
    }
    let status = child.wait().map_err(system)?;
    Ok(Watched { said, status, begun: pids.len(), finished })
}

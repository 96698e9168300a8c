//! A process as a member, and watching members whose launcher does not report their ends.

use crate::{Clock, Run, Scenario};
use outlast::JoinOptions;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// If this variable is set, a member reports on its standard output that it has begun and that it
/// has finished.
pub(crate) const REPORT: &str = "OUTLAST_CONFORMANCE_REPORT";

/// The report that a process has begun; its process number follows.
const BEGUN: &str = "begun: ";

/// The report that a member has finished; the member follows.
const FINISHED: &str = "finished: ";

/// Makes this process a member: joins the job in which it was started, on any engine, and runs the
/// body. A panic of any thread ends the process with status 101.
pub fn be_member(scenario: &'static Scenario, seed: u64) -> Result<(), outlast::JoinError> {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::exit(101);
    }));
    if reports() {
        println!("{BEGUN}{}", std::process::id());
        // A member that outlives its launcher has to end itself at the limit.
        std::thread::spawn(|| {
            std::thread::sleep(scenario.limit);
            panic!("not over after {:?}", scenario.limit);
        });
    }
    let job = JoinOptions::new()
        .time_limit(scenario.time_limit)
        .segment_limit(scenario.segment_limit)
        .join()?;
    // A process that was started in the wrong way is a job of one member, where many checks would
    // pass.
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

/// Reports that a member has finished, if reports are requested.
pub(crate) fn report_end(run: &Run) {
    if reports() {
        println!("{FINISHED}{}", run.me());
    }
}

/// The output of a launcher and its members, and the status of the launcher.
pub(crate) struct Watched {
    pub(crate) said: String,
    pub(crate) status: ExitStatus,
    begun: usize,
    finished: usize,
}

impl Watched {
    /// Checks that all members began, and that all but the killed members finished.
    pub(crate) fn check(&self, scenario: &Scenario) -> Result<(), String> {
        let Watched { said, begun, finished, .. } = self;
        if *begun != scenario.total() || *finished != scenario.total() - scenario.killed {
            return Err(format!("{begun} members began and {finished} finished{said}"));
        }
        // The numbers do not tell a member that failed from a member that was killed.
        if said.contains("panicked at") {
            return Err(format!("a member failed{said}"));
        }
        Ok(())
    }
}

/// Runs a launcher and waits until it and all its members have ended. They inherit a pipe, to which
/// they write their reports; the pipe is closed when the last of them has ended. An error is a
/// hang. No process is left running.
pub(crate) fn watch(mut launcher: Command, scenario: &'static Scenario) -> Result<Watched, String> {
    let system = |error: std::io::Error| format!("cannot start the launcher: {error}");
    let (reader, writer) = std::io::pipe().map_err(system)?;
    launcher.env(REPORT, "1").env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    launcher.stdout(writer.try_clone().map_err(system)?).stderr(writer);
    let mut child = launcher.spawn().map_err(system)?;
    // The command holds the writing ends of the pipe, too.
    drop(launcher);
    let (send, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(reader).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    // The members end themselves at the limit, with a message.
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
        // Members that still run hold the pipe. The system does not use a free process number again
        // within seconds.
        let _ = Command::new("kill").arg("-9").args(&pids).stderr(Stdio::null()).status();
        let _ = child.wait();
        return Err(format!("a hang: not over after {:?}{said}\n{places}", scenario.limit));
    }
    let status = child.wait().map_err(system)?;
    Ok(Watched { said, status, begun: pids.len(), finished })
}

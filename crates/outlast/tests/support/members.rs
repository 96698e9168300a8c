//! Members of a job as processes: the test binary started again by the launcher, once per member.
//!
//! A test calls [`is_member`] first. In a member it plays its part; in the process of the test
//! runner it starts [`members`] and waits for their end with [`expect_ok`].
#![allow(dead_code, reason = "the tests of each engine use a part")]

use crate::reexecution::{self, ROLE};
use outlast::Job;
use outlast::launch::{Launch, Outcome, Output, Running};
use outlast::rma::Communicator;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// How long a job may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Environment variables by which a test tells its members what to do: [`parameter`] reads them.
pub(crate) const SEED: &str = "OUTLAST_TEST_SEED";
pub(crate) const STEP: &str = "OUTLAST_TEST_STEP";
pub(crate) const FOLDER: &str = "OUTLAST_TEST_FOLDER";

/// Whether this process is a member in the named test.
pub(crate) fn is_member(test: &str) -> bool {
    reexecution::is_reexecuted(test)
}

/// Prepares the start of this test binary as members of the named test.
pub(crate) fn members(test: &str, count: usize) -> Launch {
    Launch::new(count)
        .program(reexecution::binary())
        .args(reexecution::arguments(test))
        .env(ROLE, test)
        .segment_limit(64 << 20)
        .output(Output::Capture)
}

/// The program of an example, as cargo has built it along with this test.
pub(crate) fn example(name: &str) -> PathBuf {
    let own = reexecution::binary();
    let target = own.parent().and_then(Path::parent).expect("target/debug/deps");
    let path = target.join("examples").join(name);
    assert!(
        path.is_file(),
        "cargo builds examples unless single tests are named: run cargo build --examples first"
    );
    path
}

/// The parameter that the test has set for its members by [`Launch::env`].
pub(crate) fn parameter<T: FromStr>(name: &str) -> T {
    let text = std::env::var(name).expect("a parameter of the test");
    text.parse().ok().expect("a parameter as the test writes it")
}

/// The folder that the test has set for its members.
pub(crate) fn folder() -> PathBuf {
    std::env::var_os(FOLDER).expect("a folder").into()
}

/// Waits for the end of a job, and fails unless all members finished well, except for the killed.
#[track_caller]
pub(crate) fn expect_ok(running: Running) -> Outcome {
    expect_ok_within(running, LIMIT, "")
}

/// As [`expect_ok`], with another time limit and with words that tell the failing run.
#[track_caller]
pub(crate) fn expect_ok_within(mut running: Running, limit: Duration, what: &str) -> Outcome {
    let outcome = running.wait(limit);
    if !outcome.survivors_ok() {
        print_output(&outcome);
        panic!("{what}: {outcome}");
    }
    for end in outcome.members.iter().filter(|end| end.is_ok()) {
        reexecution::expect_ran(what, &outcome.stdout(end.member));
    }
    outcome
}

/// Prints everything that the members have written.
pub(crate) fn print_output(outcome: &Outcome) {
    for end in &outcome.members {
        let (stdout, stderr) = (outcome.stdout(end.member), outcome.stderr(end.member));
        println!("--- {}\n{stdout}{stderr}", end.member);
    }
}

/// Waits until the condition holds, and fails with `what` if it does not hold before the time
/// limit.
#[track_caller]
pub(crate) fn wait_until(
    job: &Job,
    limit: Duration,
    what: &str,
    mut condition: impl FnMut() -> bool,
) {
    let until = job.now().after(limit);
    loop {
        let bell = job.bell();
        if condition() {
            return;
        }
        assert!(job.now() < until, "{} waited in vain for: {what}", job.me());
        job.park(bell, job.now().after(Duration::from_millis(2)));
    }
}

/// Leaves the job together with the other members of the communicator. A member that leaves earlier
/// is a failure for the others in every call but an agreement.
pub(crate) fn leave_together(comm: &Communicator) {
    let _ = comm.agree_despite_failures(0);
    comm.job().leave().unwrap();
}

/// Ends this process as `kill -9` does.
pub(crate) fn die() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    unreachable!("SIGKILL cannot be survived")
}

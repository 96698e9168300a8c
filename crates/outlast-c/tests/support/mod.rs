//! What the tests of the bindings share: the library under test, and a job whose last member dies.

use outlast::MemberId;
use outlast::launch::{Launch, Output};
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The folder in which cargo puts the library under test.
pub(crate) fn library_folder() -> PathBuf {
    let own = std::env::current_exe().expect("own path");
    own.parent().expect("a folder").to_path_buf()
}

/// Starts four members, kills the last member when it is ready, and expects the survivors to
/// finish.
pub(crate) fn kill_the_last_of(launch: Launch) {
    let mut running = launch.output(Output::Capture).start().expect("started");
    let last = MemberId(3);
    let until = Instant::now() + LIMIT;
    while !running.output(last).stdout.ends_with(b"ready\n") {
        if Instant::now() >= until || running.output(last).stderr.contains(&b'\n') {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    running.kill(last).expect("killed");
    let outcome = running.wait(LIMIT);
    let said: String = outcome.members.iter().map(|end| outcome.stderr(end.member)).collect();
    assert!(outcome.survivors_ok(), "{outcome}{said}");
    assert_eq!(outcome.stdout(last), "ready\n", "{outcome}{said}");
    for member in 0..3 {
        assert_eq!(outcome.stdout(MemberId(member)), "ok\n", "{said}");
    }
}

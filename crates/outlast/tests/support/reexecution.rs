//! The test binary, started again for a single test.
//!
//! A test that needs further processes starts its own binary again, with its own name as the filter
//! and with [`ROLE`] set to its name. The new process runs the test function from the beginning,
//! sees by [`is_reexecuted`] that it is one of these processes, and plays its part.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::PathBuf;
use std::process::Command;

/// The environment variable that names the test for which a process was started.
pub(crate) const ROLE: &str = "OUTLAST_TEST_MEMBER_OF";

/// The name of the test function that contains this call, with its modules, as `--exact` expects
/// it. It must not be called inside of a closure.
macro_rules! this_test {
    () => {{
        fn here() {}
        $crate::reexecution::test_around(here)
    }};
}
pub(crate) use this_test;

/// The path of the function that contains `here`, without the name of the binary.
pub(crate) fn test_around<F>(_here: F) -> &'static str {
    let path = std::any::type_name::<F>();
    let path = path.split_once("::").map_or(path, |(_binary, path)| path);
    let test = path.strip_suffix("::here").expect("a function inside of the test");
    assert!(!test.contains('{'), "{test} is a closure: call this_test!() outside of it");
    test
}

/// Whether this process was started for the named test.
pub(crate) fn is_reexecuted(test: &str) -> bool {
    std::env::var(ROLE).is_ok_and(|name| name == test)
}

/// The path of this test binary.
pub(crate) fn binary() -> PathBuf {
    std::env::current_exe().expect("own path")
}

/// The arguments by which the test binary runs the named test, and no other.
pub(crate) fn arguments(test: &str) -> [&str; 4] {
    [test, "--exact", "--nocapture", "--test-threads=1"]
}

/// A command that runs the named test in a process of its own.
pub(crate) fn command(test: &str) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments(test)).env(ROLE, test);
    command
}

/// Fails unless this output of a process shows that it ran a test. A filter that matches no test
/// ends without an error, and would let everything pass.
#[track_caller]
pub(crate) fn expect_ran(test: &str, output: &str) {
    assert!(output.contains("running 1 test"), "`{test}` is not the name of a test:\n{output}");
}

//! Waits of the tests in this folder, in the simulator's time: for a condition, and bounded.

use crate::engine::Engine;
use crate::job::Job;
use std::time::Duration;

/// Waits for something that is to happen before long. A member that is to be killed waits so for its death, and fails if nobody
/// kills it.
#[track_caller]
pub(super) fn nap(job: &Job, what: &str, until: impl Fn() -> bool) {
    let deadline = job.now().after(Duration::from_secs(100));
    while !until() {
        assert!(job.now() < deadline, "{} waited in vain for {what}", job.me());
        job.sleep(Duration::from_millis(1));
    }
}

/// Waits until something has stayed the same for so long.
#[track_caller]
pub(super) fn settled<T: PartialEq>(job: &Job, what: &str, quiet: Duration, look: impl Fn() -> T) -> T {
    let deadline = job.now().after(10 * quiet);
    let (mut last, mut since) = (look(), job.now());
    while job.now().since(since) < quiet {
        assert!(job.now() < deadline, "{} waited in vain for {what} to come to rest", job.me());
        job.sleep(quiet / 20);
        let now = look();
        if now != last {
            (last, since) = (now, job.now());
        }
    }
    last
}

//! Helpers of the store's tests: waits for a condition, bounded and in the simulator's time, and
//! calls that are expected to fail.

use super::{Store, StoreError, StoreResult, Transaction};
use crate::engine::MemberId;
use crate::job::Job;
use std::fmt::Debug;
use std::time::Duration;

/// Waits for a condition, and fails if it does not become true before long. A member that a test
/// kills waits for its death with this function, and the test fails if the member is not killed.
#[track_caller]
pub(in crate::store) fn nap(job: &Job, what: &str, until: impl Fn() -> bool) {
    let deadline = job.now().after(Duration::from_secs(100));
    while !until() {
        assert!(job.now() < deadline, "{} waited in vain for {what}", job.me());
        job.sleep(Duration::from_millis(1));
    }
}

/// The member named by the timeout of a call. Panics if the call did not time out.
#[track_caller]
pub(in crate::store) fn expect_timeout<T: Debug>(result: StoreResult<T>) -> MemberId {
    match result {
        Err(StoreError::Timeout { member, .. }) => member,
        other => panic!("to be late: {other:?}"),
    }
}

/// A transaction in its third attempt, after `body`. From its third attempt on a transaction locks
/// all keys before its closure runs, so that its commit only has to decide.
pub(in crate::store) fn third_attempt(
    store: &Store,
    body: impl Fn(&mut Transaction),
) -> Transaction {
    let mut tx = store.begin();
    for attempt in 0..3 {
        body(&mut tx);
        if attempt < 2 {
            tx.retry().expect("begun again");
        }
    }
    tx
}

/// Waits until the value of `look` has not changed for as long as `quiet`, and returns it.
#[track_caller]
pub(in crate::store) fn reconciled<T: PartialEq>(
    job: &Job,
    what: &str,
    quiet: Duration,
    look: impl Fn() -> T,
) -> T {
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

//! What the tests in this folder share: waits for a condition, bounded and in the simulator's time,
//! and calls that are to fail.

use super::{Store, StoreError, StoreResult, Transaction};
use crate::engine::MemberId;
use crate::job::Job;
use std::fmt::Debug;
use std::time::Duration;

/// Waits for something that is to happen before long. A member that is to be killed waits so for
/// its death, and fails if nobody kills it.
#[track_caller]
pub(in crate::store) fn nap(job: &Job, what: &str, until: impl Fn() -> bool) {
    let deadline = job.now().after(Duration::from_secs(100));
    while !until() {
        assert!(job.now() < deadline, "{} waited in vain for {what}", job.me());
        job.sleep(Duration::from_millis(1));
    }
}

/// Who has kept a call waiting that is to have timed out.
#[track_caller]
pub(in crate::store) fn expect_timeout<T: Debug>(result: StoreResult<T>) -> MemberId {
    match result {
        Err(StoreError::Timeout { member, .. }) => member,
        other => panic!("to be late: {other:?}"),
    }
}

/// A transaction that has done this. In its third attempt it locks all keys at once, so that only
/// the decision is left to its commit.
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

/// Waits until something has stayed the same for so long.
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

//! Waits for keys as futures, on shm with real processes and deaths, under a small executor.

use crate::members::{LIMIT, expect_ok_within, is_member, members};
use crate::reexecution::this_test;
use outlast::store::{Options, Store, StoreError, StoreResult, WaitFuture, WaitOutcome};
use outlast::{Job, MemberId, Time};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long a task may sleep. Nothing here polls by itself, so a lost wake-up ends the test.
const PATIENCE: Duration = Duration::from_secs(30);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls all futures whenever their common waker was called, until all have ended.
fn run_all(futures: Vec<WaitFuture>) -> Vec<StoreResult<WaitOutcome>> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut outcomes: Vec<_> = futures.iter().map(|_| None).collect();
    let mut futures: Vec<_> = futures.into_iter().enumerate().collect();
    while !futures.is_empty() {
        futures.retain_mut(|(index, future)| match Pin::new(future).poll(&mut context) {
            Poll::Ready(outcome) => {
                outcomes[*index] = Some(outcome);
                false
            }
            Poll::Pending => true,
        });
        let began = Instant::now();
        if !futures.is_empty() {
            std::thread::park_timeout(PATIENCE);
        }
        assert!(began.elapsed() < PATIENCE, "no task was woken; {} still wait", futures.len());
    }
    outcomes.into_iter().flatten().collect()
}

fn run(future: WaitFuture) -> StoreResult<WaitOutcome> {
    run_all(vec![future]).remove(0)
}

/// In a member, plays its part with a store of up to two replicas. Otherwise starts `count`
/// members.
fn play(test: &str, count: usize, member: impl FnOnce(Job, Store)) {
    if is_member(test) {
        let job = outlast::join().expect("a member");
        let options = Options::new().replicas(count.min(2)).partitions(16).expected_keys(256);
        let store = Store::open(&job, options).expect("opened");
        return member(job, store);
    }
    expect_ok_within(members(test, count).start().expect("started"), LIMIT, test);
}

/// The keys are put one by one, so that most polls find nothing.
#[test]
fn many_futures_of_a_thread_end_when_another_member_puts_their_keys() {
    play(this_test!(), 2, |job, store| {
        const KEYS: u8 = 50;
        if job.me() == MemberId(1) {
            for number in 0..KEYS {
                job.sleep(Duration::from_millis(1));
                store.put([number], &[number]).expect("put");
            }
        } else {
            let futures = (0..KEYS).map(|number| store.wait_async([number], None, Time::NEVER));
            for (number, outcome) in run_all(futures.collect()).into_iter().enumerate() {
                let Ok(WaitOutcome::Value(value)) = outcome else { panic!("{outcome:?}") };
                assert_eq!(value.bytes(), [number as u8]);
            }
        }
        store.close().expect("closed");
        job.leave().expect("left");
    });
}

#[test]
fn a_future_ends_when_the_named_member_dies() {
    play(this_test!(), 3, |job, store| {
        let victim = MemberId(2);
        if job.me() == victim {
            store.wait("ready", None, Time::NEVER).expect("read");
            job.fence(victim, Time::NEVER).expect("killed");
        }
        if job.me() == MemberId(1) {
            job.sleep(Duration::from_millis(20));
            store.put("ready", b"").expect("put");
        }
        let outcome = run(store.wait_async("never", None, Time::NEVER).or_death(victim));
        assert_eq!(outcome, Ok(WaitOutcome::Died(victim)));
        store.close().expect("closed");
        job.leave().expect("left");
    });
}

#[test]
fn a_future_ends_at_its_deadline_and_for_a_newer_version_alone() {
    play(this_test!(), 1, |job, store| {
        let soon = || job.now().after(Duration::from_millis(30));
        assert_eq!(run(store.wait_async("never", None, soon())), Ok(WaitOutcome::TimedOut));
        let version = store.put("key", b"old").expect("put");
        let newer = run(store.wait_async("key", Some(version), soon()));
        assert_eq!(newer, Ok(WaitOutcome::TimedOut));
        // The earlier deadline belongs to the future that is polled second.
        let later = job.now().after(Duration::from_millis(90));
        let futures = [later, soon()].map(|until| store.wait_async("never", None, until));
        assert_eq!(run_all(futures.into()), [Ok(WaitOutcome::TimedOut), Ok(WaitOutcome::TimedOut)]);
        assert_eq!(run(store.wait_async("", None, soon())), Err(StoreError::BadKey { len: 0 }));
        store.close().expect("closed");
        job.leave().expect("left");
    });
}

#[test]
fn closing_the_store_and_leaving_end_a_future() {
    play(this_test!(), 1, |job, store| {
        let other = Store::open(&job, Options::new().name("other")).expect("opened");
        let waits = [store.clone(), other].map(|store| {
            std::thread::spawn(move || run(store.wait_async("never", None, Time::NEVER)))
        });
        job.sleep(Duration::from_millis(20));
        store.close().expect("closed");
        let [closed, left] = waits;
        assert_eq!(closed.join().expect("no panic"), Err(StoreError::Closed));
        assert!(!left.is_finished(), "the other store is open");
        job.leave().expect("left");
        let left = left.join().expect("no panic");
        assert!(left.is_err(), "{left:?}");
    });
}

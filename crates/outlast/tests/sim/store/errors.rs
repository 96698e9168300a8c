//! Bad input and impossible requests: each gets its own error, and changes nothing.

use super::{end_if_possible as end, small_options as options};
use outlast::engine::Fault;
use outlast::sim::{self, Link, Options as SimOptions};
use outlast::store::{Expect, KEY_LEN_MAX, REPLICAS_MAX, Store, StoreError, Version, WaitOutcome};
use outlast::{Job, MemberId, Time};
use std::time::Duration;

fn run(members: usize, change: impl Fn(&mut SimOptions), body: impl Fn(Job) + Clone + 'static) {
    for link in [Link::Memory, Link::Network] {
        let mut options = SimOptions::new(members, 5).link(link);
        change(&mut options);
        let report = sim::run(&options, body.clone());
        assert!(
            report.is_ok(),
            "{link:?}: {:?}\n{:#?}\n{:#?}",
            report.outcome,
            report.panics,
            report.hung
        );
    }
}

/// Whether the store has no keys.
fn is_empty(store: &Store) -> bool {
    store.keys().expect("listed").is_empty()
}

/// Reserved keys are neither listed nor in a snapshot: a value that a program put there would be
/// lost silently.
#[test]
fn a_reserved_key_is_refused_by_every_call_that_writes() {
    run(
        1,
        |_| {},
        |job| {
            let store = Store::open(&job, options(1)).expect("open");
            for key in [&b"\0outlast/"[..], b"\0outlast/leave", b"\0outlast/tx/12345678"] {
                let told = |result: Result<(), StoreError>| {
                    let error = result.unwrap_err();
                    assert!(matches!(error, StoreError::Invalid { .. }), "{error}");
                    assert!(error.to_string().contains("choose another"), "{error}");
                };
                told(store.put(key, b"").map(|_| ()));
                told(store.put_nb(key, b""));
                told(store.put_if(key, b"", Expect::Absent).map(|_| ()));
                told(store.add(key, 1).map(|_| ()));
                told(store.delete(key).map(|_| ()));
                told(store.adopt(key).map(|_| ()));
                told(store.handle(key).map(|_| ()));
                told(store.lock(key, Time(0)).map(|_| ()));
                let mut tx = store.begin();
                told(tx.put(key, b""));
                told(tx.get(key).map(|_| ()));
                told(tx.delete(key).map(|_| ()));
                assert_eq!(store.get(key), Ok(None));
            }
            store.put(b"\0outlast", b"").expect("another key");
            end(&job, &store);
        },
    );
}

#[test]
fn an_empty_or_over_long_key_is_refused_by_every_call() {
    run(
        1,
        |_| {},
        |job| {
            let store = Store::open(&job, options(1)).expect("open");
            let version = Version { counter: 1, writer: MemberId(0) };
            for key in [&[][..], &[7; KEY_LEN_MAX + 1]] {
                let bad = StoreError::BadKey { len: key.len() };
                assert_eq!(store.put(key, b"").unwrap_err(), bad);
                assert_eq!(store.put_nb(key, b"").unwrap_err(), bad);
                assert_eq!(store.put_if(key, b"", Expect::Absent).unwrap_err(), bad);
                assert_eq!(store.put_if(key, b"", Expect::Version(version)).unwrap_err(), bad);
                assert_eq!(store.get(key).unwrap_err(), bad);
                assert_eq!(store.get_into(key, &mut []).unwrap_err(), bad);
                assert_eq!(store.exists(key).unwrap_err(), bad);
                assert_eq!(store.add(key, 1).unwrap_err(), bad);
                assert_eq!(store.delete(key).unwrap_err(), bad);
                assert_eq!(store.adopt(key).unwrap_err(), bad);
                assert_eq!(store.handle(key).unwrap_err(), bad);
                assert_eq!(store.pin(key).unwrap_err(), bad);
                assert_eq!(store.wait(key, None, Time(0)).unwrap_err(), bad);
                assert_eq!(store.lock(key, Time(0)).unwrap_err(), bad);
                assert_eq!(store.partition_of(key).unwrap_err(), bad);
            }
            assert!(is_empty(&store));
            store.put(&[7; KEY_LEN_MAX], b"longest").expect("put");
            assert_eq!(
                store.get(&[7; KEY_LEN_MAX]).expect("read").expect("there").bytes(),
                b"longest"
            );
            end(&job, &store);
        },
    );
}

#[test]
fn a_value_larger_than_the_store_is_refused_and_the_store_goes_on() {
    run(
        2,
        |options| options.segment_limit = 1 << 20,
        |job| {
            let store = Store::open(&job, options(2)).expect("open");
            if job.me() == MemberId(0) {
                store.put(b"key", b"before").expect("put");
                let error = store.put(b"key", &vec![7; 2 << 20]).unwrap_err();
                assert!(matches!(error, StoreError::OutOfMemory { .. }), "{error}");
                let error = store.put(b"other", &vec![7; 2 << 20]).unwrap_err();
                assert!(matches!(error, StoreError::OutOfMemory { .. }), "{error}");
                assert_eq!(store.get(b"key").expect("read").expect("there").bytes(), b"before");
                assert_eq!(store.get(b"other"), Ok(None));
                store.put(b"other", &[7; 1000]).expect("put");
            }
            end(&job, &store);
        },
    );
}

/// An open that fails takes no memory: the next open has all of it, and the message says how many
/// keys fit.
#[test]
fn an_index_that_does_not_fit_is_refused_and_takes_no_memory() {
    run(
        2,
        |options| options.segment_limit = 4 << 20,
        |job| {
            let before = job.segment_len(job.me()).expect("known");
            for keys in [1 << 24, usize::MAX] {
                let error = Store::open(&job, options(1).expected_keys(keys)).unwrap_err();
                let StoreError::OutOfMemory { member, reason } = &error else { panic!("{error}") };
                assert_eq!(*member, job.me());
                let number =
                    reason.split("at most ").nth(1).and_then(|rest| rest.split(' ').next());
                let fits: usize = number.expect("a number").parse().expect("a number");
                assert!((1 << 18..1 << 20).contains(&fits), "{error}");
            }
            assert_eq!(job.segment_len(job.me()).expect("known"), before);
            let store = Store::open(&job, options(1).expected_keys(1 << 18)).expect("open");
            if job.me() == MemberId(0) {
                store.put(b"key", &[7; 100_000]).expect("put");
            }
            end(&job, &store);
        },
    );
}

#[test]
fn zero_or_too_many_replicas_are_refused() {
    run(
        2,
        |_| {},
        |job| {
            for replicas in [0, 3, REPLICAS_MAX + 1] {
                let error = Store::open(&job, options(replicas)).unwrap_err();
                assert!(
                    matches!(&error, StoreError::Invalid { reason } if reason.contains("replicas")),
                    "{error}"
                );
            }
            // Unless the program allows fewer replicas.
            let store = Store::open(&job, options(3).allow_fewer()).expect("open");
            store.put(b"key", b"value").expect("put");
            assert_eq!(store.replicas_of(b"key").len(), 2);
            end(&job, &store);
        },
    );
}

#[test]
fn options_that_differ_are_found_at_open_and_named() {
    for other in [
        options(2),
        options(1).partitions(16),
        options(1).expected_keys(9999),
        options(1).checksums(true),
    ] {
        run(
            2,
            |_| {},
            move |job| {
                let mine = if job.me() == MemberId(0) { options(1) } else { other.clone() };
                let error = Store::open(&job, mine).unwrap_err();
                let name = format!("{}", MemberId(1 - job.me().0));
                assert!(
                    matches!(&error, StoreError::Invalid { reason } if reason.contains(&name)),
                    "{error}"
                );
                // Until the other member has found the difference, too.
                job.sleep(Duration::from_secs(1));
                let _ = job.leave();
            },
        );
    }
}

#[test]
fn every_call_after_close_is_refused() {
    run(
        2,
        |_| {},
        |job| {
            let store = Store::open(&job, options(1)).expect("open");
            let handle = store.handle(b"key").expect("a handle");
            handle.put(b"value").expect("put");
            store.close().expect("closed");
            assert_eq!(store.put(b"key", b"").unwrap_err(), StoreError::Closed);
            assert_eq!(store.get(b"key").unwrap_err(), StoreError::Closed);
            assert_eq!(store.get_into(b"key", &mut []).unwrap_err(), StoreError::Closed);
            assert_eq!(store.delete(b"key").unwrap_err(), StoreError::Closed);
            assert_eq!(store.add(b"key", 1).unwrap_err(), StoreError::Closed);
            assert_eq!(store.exists(b"key").unwrap_err(), StoreError::Closed);
            assert_eq!(store.pin(b"key").unwrap_err(), StoreError::Closed);
            assert_eq!(store.lock(b"key", Time(0)).unwrap_err(), StoreError::Closed);
            assert_eq!(store.wait(b"key", None, Time(0)).unwrap_err(), StoreError::Closed);
            assert_eq!(store.put_nb(b"key", b"").unwrap_err(), StoreError::Closed);
            assert_eq!(handle.put(b"").unwrap_err(), StoreError::Closed);
            assert_eq!(handle.get().unwrap_err(), StoreError::Closed);
            assert_eq!(store.accept_loss().unwrap_err(), StoreError::Closed);
            assert_eq!(store.close().unwrap_err(), StoreError::Closed);
            let _ = job.leave();
        },
    );
}

#[test]
fn a_wait_for_a_put_of_a_dead_member_ends_at_once() {
    run(
        3,
        |_| {},
        |job| {
            let store = Store::open(&job, options(2)).expect("open");
            let dead = MemberId(2);
            if job.me() == MemberId(0) {
                job.inject(Fault::Kill(dead)).expect("a fault");
            }
            let until = job.now().after(Duration::from_secs(10));
            while job.view().is_living(dead) && job.now() < until {
                job.park(job.bell(), until);
            }
            let before = job.now();
            let waited = store.wait_or_death(b"result", None, until, dead).expect("waited");
            assert_eq!(waited, WaitOutcome::Died(dead));
            assert!(job.now().since(before) < Duration::from_secs(1));
            end(&job, &store);
        },
    );
}

#[test]
fn conflicts_wrong_types_and_short_buffers_are_reported() {
    run(
        1,
        |_| {},
        |job| {
            let store = Store::open(&job, options(1)).expect("open");
            let first = store.put(b"key", b"abc").expect("put");
            assert_eq!(
                store.put_if(b"key", b"x", Expect::Absent).unwrap_err(),
                StoreError::Conflict { found: Some(first) }
            );
            assert_eq!(
                store.put_if(b"none", b"x", Expect::Version(first)).unwrap_err(),
                StoreError::Conflict { found: None }
            );
            assert!(matches!(store.add(b"key", 1), Err(StoreError::WrongType { .. })));
            assert!(matches!(store.lock(b"key", Time(0)), Err(StoreError::WrongType { .. })));
            let mut small = [9; 2];
            let error = store.get_into(b"key", &mut small).unwrap_err();
            assert_eq!(error, StoreError::BufferTooSmall { needed: 3, given: 2 });
            assert_eq!(small, [9; 2], "nothing was copied");
            assert_eq!(store.get(b"key").expect("read").expect("there").version(), first);
            assert_eq!(store.get(b"none"), Ok(None));
            let held = store.lock(b"lock", Time::NEVER).expect("locked");
            let error = store.lock(b"lock", job.now().after(Duration::from_millis(1))).unwrap_err();
            assert!(matches!(error, StoreError::Locked { holder: MemberId(0), .. }), "{error}");
            drop(held);
            end(&job, &store);
        },
    );
}

#[test]
fn a_lost_partition_reports_the_loss_until_it_is_accepted() {
    run(
        2,
        |_| {},
        |job| {
            let store = Store::open(&job, options(1)).expect("open");
            let key = (0..)
                .map(|number| format!("key/{number}"))
                .find(|key| store.replicas_of(key.as_bytes())[0] == MemberId(1));
            let key = key.expect("a key at the other member");
            let key = key.as_bytes();
            if job.me() == MemberId(1) {
                store.put(key, b"value").expect("put");
                store.put(b"ready", b"").expect("put");
                job.park(job.bell(), job.now().after(Duration::from_millis(50)));
                job.inject(Fault::Kill(MemberId(1))).expect("a fault");
            }
            let until = job.now().after(Duration::from_secs(60));
            while job.view().is_living(MemberId(1)) && job.now() < until {
                job.park(job.bell(), until);
            }
            let partition = store.partition_of(key).expect("a partition");
            let lost = StoreError::DataLost { partition };
            assert_eq!(store.get(key).unwrap_err(), lost);
            assert_eq!(store.put(key, b"new").unwrap_err(), lost);
            assert_eq!(store.delete(key).unwrap_err(), lost);
            assert_eq!(store.pin(key).unwrap_err(), lost);
            assert!(matches!(store.accept_loss_of(&[9999]), Err(StoreError::Invalid { .. })));
            assert!(store.accept_loss().expect("accepted").contains(&partition));
            assert_eq!(store.get(key), Ok(None));
            store.put(key, b"new").expect("put");
            end(&job, &store);
        },
    );
}

#[test]
fn a_member_that_does_not_answer_is_named() {
    let body = |job: Job| {
        let store = Store::open(&job, options(1)).expect("open");
        let key = (0..)
            .map(|number| format!("key/{number}"))
            .find(|key| store.replicas_of(key.as_bytes())[0] == MemberId(1));
        let key = key.expect("a key at the other member");
        if job.me() == MemberId(0) {
            job.inject(Fault::Stop(MemberId(1))).expect("a fault");
            let error = store.put(key.as_bytes(), b"value").unwrap_err();
            let limit = Duration::from_millis(50);
            assert_eq!(error, StoreError::Timeout { member: MemberId(1), limit });
            job.inject(Fault::Resume(MemberId(1))).expect("a fault");
            store.put(key.as_bytes(), b"value").expect("put");
        } else {
            job.sleep(Duration::from_secs(2));
        }
        end(&job, &store);
    };
    // Over a network only: a member that maps the memory needs no answer.
    let mut options = SimOptions::new(2, 5).link(Link::Network);
    options.time_limit = Duration::from_millis(50);
    sim::run(&options, body).expect_ok();
}

/// The flush of a thread reports the failure of that thread's put, also if another thread has
/// flushed before.
#[test]
fn each_thread_gets_the_errors_of_its_own_puts() {
    run(
        1,
        |options| options.segment_limit = 1 << 20,
        |job| {
            let store = Store::open(&job, options(1)).expect("open");
            store.put_nb(b"large", &vec![1; 2 << 20]).expect("told later");
            let other = store.clone();
            let flush = move || assert_eq!(other.flush(), Ok(()));
            let flush = job.spawn("flushes", Box::new(flush)).expect("spawned");
            job.wait_for(&flush, Time::NEVER);
            assert!(matches!(store.flush(), Err(StoreError::OutOfMemory { .. })));
            assert_eq!(store.flush(), Ok(()));
            end(&job, &store);
        },
    );
}

#[test]
fn the_keys_of_a_member_that_does_not_exist_are_an_error() {
    run(
        2,
        |_| {},
        |job| {
            let store = Store::open(&job, options(2)).expect("open");
            assert_eq!(store.keys_of(MemberId(1)).map(|_| ()), Ok(()));
            for member in [2, u32::MAX] {
                let error = store.keys_of(MemberId(member)).unwrap_err();
                assert!(matches!(error, StoreError::Invalid { .. }), "{error}");
                assert!(error.to_string().contains("the job has 2 members"), "{error}");
            }
            end(&job, &store);
        },
    );
}

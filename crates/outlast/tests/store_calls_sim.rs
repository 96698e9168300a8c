//! The store's larger calls under the simulator: locks, waits that a death ends, loss, leaving. Deaths and stops at any
//! step; the body of each test knows what must hold and panics otherwise.
//!
//! `OUTLAST_SEEDS` sets how many seeds, `OUTLAST_SEED_FIRST` the first one; a failing one prints how to run it alone.

#![cfg(feature = "sim")]

use outlast::engine::Fault;
use outlast::engine::sim::{self, Link, Options as SimOptions};
use outlast::store::{Options, Store, StoreError, Waited};
use outlast::{Engine, Job, MemberId, Time};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Runs a body over seeds; `plan` says with what members and faults.
fn over_seeds(
    test: &str,
    default: std::ops::Range<u64>,
    plan: impl Fn(u64) -> SimOptions,
    body: impl Fn(u64) -> Box<dyn Fn(Job)>,
) {
    let read = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let first = read("OUTLAST_SEED_FIRST").unwrap_or(default.start);
    let count = read("OUTLAST_SEEDS").unwrap_or(default.end - default.start);
    let trace = std::env::var("OUTLAST_TRACE").is_ok();
    let mut steps = 0;
    for seed in first..first + count {
        let mut options = plan(seed);
        (options.trace, options.steps_max) = (trace, 5_000_000);
        let report = sim::run(&options, body(seed));
        report.trace.iter().for_each(|line| println!("{line}"));
        steps += report.steps;
        assert!(
            report.is_ok(),
            "seed {seed}: {:?}\n{:#?}\n{:#?}\nreplay: OUTLAST_TRACE=1 OUTLAST_SEED_FIRST={seed} OUTLAST_SEEDS=1 cargo test -p outlast --features sim,faults --test store_calls_sim {test} -- --exact --nocapture",
            report.outcome,
            report.panics,
            report.hung
        );
    }
    println!("{test}: {count} seeds from {first}, {steps} steps");
}

fn link(seed: u64) -> Link {
    if seed.is_multiple_of(2) { Link::Memory } else { Link::Network }
}

fn options(replicas: usize) -> Options {
    Options::new().replicas(replicas).partitions(8).expected_keys(32).slab_len_max(16 << 10)
}

/// Opens the store; `None` if a member was stopped for so long that this one gave up.
fn open(job: &Job, options: Options) -> Option<Store> {
    match Store::open(job, options) {
        Ok(store) => Some(store),
        Err(StoreError::Timeout { .. } | StoreError::Closed) => None,
        Err(error) => panic!("open: {error}"),
    }
}

fn end(job: &Job, store: &Store) {
    match store.close() {
        Ok(()) | Err(StoreError::Timeout { .. } | StoreError::Closed) => {}
        Err(error) => panic!("close: {error}"),
    }
    let _ = job.leave();
}

fn after(job: &Job, duration: Duration) -> Time {
    job.now().after(duration)
}

const MINUTE: Duration = Duration::from_secs(60);

/// Who is between lock and unlock, as the members themselves note it outside the store.
type Inside = Arc<Mutex<Option<(MemberId, u32)>>>;

fn lock_and_unlock(job: &Job, store: &Store, replicas: usize, thread: u32, inside: &Inside, rounds: usize) {
    for round in 0..rounds {
        let guard = match store.lock(b"queue", after(job, 20 * MINUTE)) {
            Ok(guard) => guard,
            // A home did not answer. The lock may be held by nobody; the background sees to it.
            Err(StoreError::Timeout { .. }) => continue,
            Err(StoreError::Closed) => return,
            // When one is stopped while the store is opened or closed, the others give up and go: R have died.
            Err(StoreError::DataLost { .. }) if job.view().dead.len() >= replicas => return,
            Err(error) => panic!("lock: {error}"),
        };
        let before = inside.lock().unwrap().replace((job.me(), thread));
        if let Some((member, _)) = before {
            assert_eq!(guard.abandoned_by(), Some(member), "two holders");
        }
        if let Some(member) = guard.abandoned_by() {
            assert!(!job.view().is_living(member), "{member} lives");
        }
        job.park(job.bell(), after(job, Duration::from_micros(20)));
        assert_eq!(*inside.lock().unwrap(), Some((job.me(), thread)), "someone came in");
        *inside.lock().unwrap() = None;
        if round % 2 == 0 {
            drop(guard);
            continue;
        }
        match guard.unlock() {
            Ok(()) | Err(StoreError::Timeout { .. } | StoreError::Closed) => {}
            // When one is stopped while the store is opened or closed, the others give up and go: R have died.
            Err(StoreError::DataLost { .. }) if job.view().dead.len() >= replicas => return,
            Err(error) => panic!("unlock: {error}"),
        }
    }
}

/// Members with two threads each; deaths and stops at any step.
#[test]
fn a_lock_has_one_holder_and_the_death_of_a_holder_is_told() {
    let plan = |seed: u64| {
        let options = SimOptions::new(3 + (seed % 3) as usize, seed).link(link(seed));
        options.random_faults(1 + (seed / 5 % 2) as usize, (seed / 3 % 3) as usize, 600)
    };
    over_seeds("a_lock_has_one_holder_and_the_death_of_a_holder_is_told", 0..200, plan, |_| {
        let inside = Inside::default();
        Box::new(move |job| {
            let Some(store) = open(&job, options(3)) else { return };
            let (job2, store2, inside2) = (job.clone(), store.clone(), inside.clone());
            let other = job
                .spawn("second", Box::new(move || lock_and_unlock(&job2, &store2, 3, 1, &inside2, 6)))
                .expect("an activity");
            lock_and_unlock(&job, &store, 3, 0, &inside, 6);
            assert!(job.wait_for(&other, Time::NEVER));
            end(&job, &store);
        })
    });
}

/// The holder dies at each of its steps between asking for the lock and having released it.
#[test]
fn a_lock_whose_holder_dies_at_any_step_is_taken_over() {
    let plan = |seed: u64| SimOptions::new(3, seed).link(link(seed));
    over_seeds("a_lock_whose_holder_dies_at_any_step_is_taken_over", 0..300, plan, |seed| {
        let inside = Inside::default();
        Box::new(move |job| {
            let Some(store) = open(&job, options(2)) else { return };
            if job.me() == MemberId(0) {
                job.inject(Fault::DieAtStep(1 + 2 * seed)).expect("a fault");
            }
            let rounds = if job.me() == MemberId(0) { 12 } else { 2 };
            lock_and_unlock(&job, &store, 2, 0, &inside, rounds);
            end(&job, &store);
        })
    });
}

#[test]
fn a_lock_is_refused_at_the_deadline_and_names_its_holder() {
    let plan = |seed: u64| SimOptions::new(2, seed).link(link(seed));
    over_seeds("a_lock_is_refused_at_the_deadline_and_names_its_holder", 0..20, plan, |_| {
        Box::new(|job| {
            let Some(store) = open(&job, options(2)) else { return };
            if job.me() == MemberId(0) {
                let guard = store.lock(b"queue", after(&job, MINUTE)).expect("free");
                assert!(!guard.was_abandoned());
                // Another thread of the same member is another holder.
                let again = store.lock(b"queue", after(&job, Duration::from_millis(1)));
                assert!(matches!(again, Err(StoreError::Locked { holder: MemberId(0), .. })), "{again:?}");
                store.put(b"locked", b"").expect("put");
                store.wait(b"refused", None, after(&job, MINUTE)).expect("waited").expect("came");
                // A late unlock of a former holder releases nothing.
                assert_eq!(store.delete(b"queue"), Ok(true));
                let other = store.lock(b"queue", after(&job, MINUTE)).expect("free");
                assert!(matches!(guard.unlock(), Err(StoreError::Conflict { found: Some(_) })));
                let third = store.lock(b"queue", after(&job, Duration::from_millis(1)));
                assert!(matches!(third, Err(StoreError::Locked { holder: MemberId(0), .. })), "{third:?}");
                other.unlock().expect("held");
                store.put(b"queue", b"no lock").expect("put");
                let wrong = store.lock(b"queue", after(&job, MINUTE));
                assert!(matches!(wrong, Err(StoreError::WrongType { .. })), "{wrong:?}");
                assert_eq!(store.get(b"queue").expect("read").expect("there").bytes(), b"no lock");
                assert!(matches!(store.lock(b"", Time(0)), Err(StoreError::BadKey { len: 0 })));
            } else {
                store.wait(b"locked", None, after(&job, MINUTE)).expect("waited").expect("came");
                let refused = store.lock(b"queue", after(&job, Duration::from_millis(1)));
                assert!(
                    matches!(refused, Err(StoreError::Locked { holder: MemberId(0), .. })),
                    "{refused:?}"
                );
                store.put(b"refused", b"").expect("put");
            }
            end(&job, &store);
        })
    });
}

/// Member 0 puts a result and dies at some step of it, or does not get that far.
#[test]
fn a_wait_ends_with_the_value_or_with_the_death_of_its_writer() {
    let plan = |seed: u64| SimOptions::new(3, seed).link(link(seed));
    let ends = Arc::new(Mutex::new((0, 0)));
    let counted = ends.clone();
    over_seeds("a_wait_ends_with_the_value_or_with_the_death_of_its_writer", 0..200, plan, move |seed| {
        let ends = counted.clone();
        Box::new(move |job| {
            let Some(store) = open(&job, options(2)) else { return };
            if job.me() == MemberId(0) {
                job.inject(Fault::DieAtStep(1 + 2 * seed)).expect("a fault");
                store.put(b"future", b"result").expect("put");
                // It lives until its step comes; the others need the value or its death.
                loop {
                    store.get(b"future").expect("read");
                }
            }
            let began = job.now();
            let waited = store.wait_or_death(b"future", None, after(&job, MINUTE), MemberId(0));
            assert!(job.now().since(began) < Duration::from_secs(1), "the death rings");
            match waited.expect("waited") {
                Waited::Value(value) => {
                    assert_eq!(value.bytes(), b"result");
                    ends.lock().unwrap().0 += 1;
                }
                Waited::Died(member) => {
                    assert_eq!(member, MemberId(0));
                    // What was not there then does not come up later.
                    for _ in 0..5 {
                        job.park(job.bell(), after(&job, Duration::from_millis(3)));
                        assert_eq!(store.get(b"future"), Ok(None));
                    }
                    ends.lock().unwrap().1 += 1;
                }
                Waited::TimedOut => panic!("nothing ended the wait"),
            }
            // The deadline ends it, too.
            let until = after(&job, Duration::from_millis(2));
            let member = job.me();
            assert_eq!(store.wait_or_death(b"never", None, until, member), Ok(Waited::TimedOut));
            end(&job, &store);
        })
    });
    let ends = ends.lock().unwrap();
    assert!(ends.0 > 20 && ends.1 > 20, "values and deaths: {ends:?}");
}

/// A home stops in the middle of a lock or an unlock, which ends with a timeout; later it goes on, and the lock's record
/// with it. Nobody holds the lock then.
#[test]
fn a_lock_whose_outcome_is_unknown_is_released_in_the_background() {
    let plan = |seed: u64| {
        let mut options = SimOptions::new(2, seed).link(Link::Network);
        options.time_limit = Duration::from_secs(1);
        options
    };
    let timeouts = Arc::new(Mutex::new(0));
    let counted = timeouts.clone();
    over_seeds("a_lock_whose_outcome_is_unknown_is_released_in_the_background", 0..200, plan, move |seed| {
        let timeouts = counted.clone();
        Box::new(move |job| {
            let Some(store) = open(&job, options(2)) else { return };
            if job.me() == MemberId(0) {
                let job2 = job.clone();
                let faults = move || {
                    job2.park(job2.bell(), after(&job2, Duration::from_micros(2 * seed)));
                    job2.inject(Fault::Stop(MemberId(1))).expect("a fault");
                    let until = after(&job2, Duration::from_secs(3));
                    while job2.now() < until {
                        job2.park(job2.bell(), until);
                    }
                    job2.inject(Fault::Resume(MemberId(1))).expect("a fault");
                };
                let other = job.spawn("faults", Box::new(faults)).expect("an activity");
                for _ in 0..20 {
                    let locked = store.lock(b"queue", after(&job, MINUTE));
                    let unlocked = locked.and_then(|guard| guard.unlock());
                    match unlocked {
                        Ok(()) => {}
                        Err(StoreError::Timeout { .. }) => *timeouts.lock().unwrap() += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
                assert!(job.wait_for(&other, Time::NEVER));
            }
            loop {
                match store.lock(b"queue", after(&job, MINUTE)) {
                    Ok(guard) => break drop(guard),
                    // From before the home went on.
                    Err(StoreError::Timeout { .. }) => {}
                    Err(error) => panic!("{} cannot lock: {error}", job.me()),
                }
            }
            end(&job, &store);
        })
    });
    assert!(*timeouts.lock().unwrap() > 100);
}

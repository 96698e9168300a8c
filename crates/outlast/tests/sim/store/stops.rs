//! A replica is stopped at any moment of a call over a network: the call still ends at its time
//! limit. The other modules stop members at engine steps.

use crate::simulation::{nap, seeds};
use outlast::engine::Fault;
use outlast::sim::{self, Link, Options as SimOptions};
use outlast::store::{Expect, KeyHandle, Options, Store, StoreError, WaitOutcome};
use outlast::{Job, MemberId};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_millis(200);
const CALLER: MemberId = MemberId(3);

const CALLS: u64 = 14;

fn call(store: &Store, handle: &KeyHandle, kind: u64, key: &[u8]) {
    match kind {
        0..=2 => drop(store.put(key, b"mine")),
        3..=5 => drop(store.get(key)),
        6 | 7 => drop(handle.put(b"mine")),
        8 => drop(store.delete(key)),
        9 => drop(store.put_if(key, b"mine", Expect::Absent)),
        10 => drop(store.put(key, &[7; 20_000])),
        11 => drop(handle.put(&[7; 20_000])),
        12 => drop(handle.get()),
        _ => drop(handle.delete()),
    }
}

/// How long a call takes if a replica is stopped at this time after its beginning, or not at all.
fn time(seed: u64, kind: u64, stopped: usize, after: Option<Duration>) -> Duration {
    let time = Rc::new(Cell::new(Duration::ZERO));
    let (is_over, is_asked) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let mut options = SimOptions::new(3, seed).link(Link::Network);
    options.spares = 1;
    (options.steps_max, options.time_limit) = (10_000_000, LIMIT);
    let taken = time.clone();
    sim::run(&options, move |job: Job| {
        let store = Store::open(&job, Options::new().replicas(3).partitions(4)).expect("open");
        let key: &[u8] = b"key";
        let other = *store.replicas_of(key).last().expect("a replica");
        if job.me() == CALLER {
            let ask = || {
                is_asked.set(true);
                nap(&job, "the other member", || !is_asked.get());
            };
            let handle = store.handle(key).expect("a handle");
            // The location of the key is cached and current, cached and outdated, or not cached.
            match kind {
                1 | 4 | 10 => (0..40).for_each(|_| _ = store.put(key, b"mine").expect("put")),
                6 | 11 | 12 | 13 => (0..40).for_each(|_| _ = handle.put(b"mine").expect("put")),
                2 | 5 => {
                    (0..40).for_each(|_| _ = store.put(key, b"mine").expect("put"));
                    ask();
                }
                7 => {
                    (0..40).for_each(|_| _ = handle.put(b"mine").expect("put"));
                    ask();
                }
                _ => {
                    (0..40).for_each(|_| _ = store.put(b"another", b"mine").expect("put"));
                    ask();
                }
            }
            let victim = store.replicas_of(key)[stopped];
            let mine = job.clone();
            let stop = move |after| {
                mine.sleep(after);
                mine.inject(Fault::Stop(victim)).expect("a fault");
                mine.sleep(LIMIT * 6);
                mine.inject(Fault::Resume(victim)).expect("a fault");
            };
            let stops = after
                .map(|after| job.spawn("stops", Box::new(move || stop(after))).expect("spawned"));
            let began = job.now();
            call(&store, &handle, kind, key);
            taken.set(job.now().since(began));
            nap(&job, "the end of the stop", || {
                stops.as_ref().is_none_or(|stops| stops.is_finished())
            });
            nap(&job, "a call", || store.get(key).is_ok());
            is_over.set(true);
        }
        let serve = || {
            if job.me() == other && is_asked.get() {
                store.put(key, b"yours").expect("put");
                is_asked.set(false);
            }
            is_over.get()
        };
        nap(&job, "the calling member", serve);
        let _ = store.close();
        let _ = job.leave();
    })
    .expect_ok();
    time.get()
}

/// Whichever replica is stopped at whatever time, a call ends at its time limit.
#[test]
fn a_stopped_replica_delays_a_call_by_a_single_time_limit() {
    for seed in seeds(40) {
        for kind in 0..CALLS {
            let (stopped, whole) = ((seed % 3) as usize, time(seed, kind, 0, None));
            let took = time(seed, kind, stopped, Some(whole * (seed as u32 * 37 % 101) / 100));
            assert!(took < LIMIT * 3 / 2, "call {kind} took {took:?} with seed {seed}");
        }
    }
}

/// The primary is stopped after a put is published and before its writer has rung the waiters, so
/// that the ring is in vain. When the primary goes on and a member reads the value, even the writer
/// itself, the waiters have the value, too.
#[test]
fn a_waiter_is_rung_before_the_writer_reads_its_own_put() {
    let held_up = Rc::new(Cell::new(0));
    for seed in seeds(60) {
        let (stage, held_up) = (Rc::new(Cell::new(0)), held_up.clone());
        let mut options = SimOptions::new(3, seed).link(Link::Network);
        options.spares = 1;
        (options.steps_max, options.time_limit) = (10_000_000, LIMIT);
        sim::run(&options, move |job: Job| {
            let store = Store::open(&job, Options::new().replicas(3).partitions(4)).expect("open");
            let key: &[u8] = b"key";
            let (primary, waiter) = (store.replicas_of(key)[0], store.replicas_of(key)[1]);
            if job.me() == waiter {
                nap(&job, "the first value", || stage.get() == 1);
                let seen = store.get(key).expect("read").expect("there").version();
                stage.set(2);
                let until = job.now().after(Duration::from_secs(60));
                // A waiter that is rung while the primary is stopped gets a timeout, and waits
                // again.
                nap(&job, "the next value", || {
                    match store.wait_or_death(key, Some(seen), until, CALLER) {
                        Ok(found) => matches!(found, WaitOutcome::Value(_)),
                        Err(StoreError::Timeout { .. }) => false,
                        other => panic!("{other:?}"),
                    }
                });
                stage.set(4);
            }
            if job.me() == CALLER {
                (0..40).for_each(|_| _ = store.put(key, b"value").expect("put"));
                stage.set(1);
                nap(&job, "the waiter", || stage.get() == 2);
                // The waiter has registered itself, and sleeps.
                job.sleep(Duration::from_millis(1));
                store.get(key).expect("read");
                let mine = job.clone();
                let stop = move || {
                    mine.sleep(Duration::from_nanos(seed * 7919 % 10_000));
                    mine.inject(Fault::Stop(primary)).expect("a fault");
                    mine.sleep(LIMIT * 4);
                    mine.inject(Fault::Resume(primary)).expect("a fault");
                };
                let activity = job.spawn("stops", Box::new(stop)).expect("an activity");
                let began = job.now();
                let put = store.put(key, b"the next one");
                if put.is_ok() && job.now().since(began) >= LIMIT {
                    held_up.set(held_up.get() + 1);
                }
                nap(&job, "the end of the stop", || activity.is_finished());
                nap(&job, "a read", || store.get(key).is_ok());
                if put.is_ok() {
                    let read = store.get(key).expect("read").expect("there");
                    assert_eq!(read.bytes(), b"the next one");
                    let until = job.now().after(Duration::from_secs(1));
                    while stage.get() < 4 {
                        assert!(job.now() < until, "the waiter sleeps, and the value was read");
                        job.sleep(Duration::from_millis(1));
                    }
                } else {
                    nap(&job, "a put", || store.put(key, b"another").is_ok());
                }
                nap(&job, "the waiter", || stage.get() == 4);
                stage.set(5);
            }
            nap(&job, "the end", || stage.get() == 5);
            let _ = store.close();
            let _ = job.leave();
        })
        .expect_ok();
    }
    assert!(held_up.get() > 0, "no put was held up after it was published");
}

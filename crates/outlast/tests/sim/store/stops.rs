//! A replica is stopped at any moment of a call over a network: the call still ends at its time
//! limit. The other modules stop members at engine steps.

use crate::simulation::{nap, seeds};
use outlast::engine::Fault;
use outlast::sim::{self, Link, Options as SimOptions};
use outlast::store::{Expect, KeyHandle, Options, Store, StoreError, Version, WaitOutcome};
use outlast::{Job, MemberId};
use std::cell::{Cell, RefCell};
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

/// A member of another node dies in the midst of a put, and the primary is stopped at that moment,
/// perhaps while it executes the put. A member of the primary's node reads the memory of the
/// primary by itself. It is told of the death when the value cannot appear any more.
#[test]
fn a_wait_for_a_dead_member_outlasts_its_last_put() {
    let [by_value, by_death, late] = [(); 3].map(|()| Rc::new(Cell::new(0)));
    for seed in seeds(150) {
        let stage = Rc::new(Cell::new(0));
        let (by_value, by_death, late) = (by_value.clone(), by_death.clone(), late.clone());
        let mut options = SimOptions::new(3, seed).link(Link::Network);
        options.nodes = vec![0, 0, 1];
        (options.steps_max, options.time_limit) = (10_000_000, LIMIT);
        sim::run(&options, move |job: Job| {
            let store = Store::open(&job, Options::new().replicas(1).partitions(16)).expect("open");
            let (primary, waiter, dies) = (MemberId(0), MemberId(1), MemberId(2));
            let mut names = (0..1000).map(|number| format!("key/{number}"));
            let key = names.find(|name| store.replicas_of(name.as_bytes()) == [primary]);
            let key = &key.expect("some key");
            if job.me() == dies {
                let handle = store.handle(key).expect("a handle");
                (0..3).for_each(|_| _ = handle.put(b"value").expect("put"));
                stage.set(1);
                nap(&job, "the waiter", || stage.get() == 2);
                let mine = job.clone();
                let strike = move || {
                    mine.sleep(Duration::from_nanos(seed * 7919 % 30_000));
                    mine.inject(Fault::Stop(primary)).expect("a fault");
                    mine.inject(Fault::Kill(dies)).expect("a fault");
                };
                job.spawn("strikes", Box::new(strike)).expect("an activity");
                let _ = handle.put(b"the last one");
                nap(&job, "its death", || false);
            }
            if job.me() == waiter {
                nap(&job, "the first value", || stage.get() == 1);
                let seen = store.get(key).expect("read").expect("there").version();
                stage.set(2);
                let wait = |time| {
                    let until = job.now().after(time);
                    store.wait_or_death(key, Some(seen), until, dies).expect("waited")
                };
                let mut waited = wait(LIMIT / 2);
                job.inject(Fault::Resume(primary)).expect("a fault");
                if waited == WaitOutcome::TimedOut {
                    late.set(late.get() + 1);
                    waited = wait(LIMIT / 2);
                }
                job.sleep(LIMIT / 4);
                let found = store.get(key).expect("read").expect("there");
                match waited {
                    WaitOutcome::Value(value) => {
                        assert_eq!(value.bytes(), b"the last one");
                        by_value.set(by_value.get() + 1);
                    }
                    WaitOutcome::Died(member) => {
                        assert_eq!((member, found.version()), (dies, seen), "it came up later");
                        by_death.set(by_death.get() + 1);
                    }
                    WaitOutcome::TimedOut => panic!("the primary has gone on"),
                }
                stage.set(3);
            }
            nap(&job, "the end", || stage.get() == 3);
            let _ = store.close();
            let _ = job.leave();
        })
        .expect_ok();
    }
    let ends = [by_value.get(), by_death.get(), late.get()];
    assert!(ends.iter().all(|&count| count > 0), "{ends:?}");
}

/// The kinds of writes in [`judge_read_after_timeout`].
const WRITES: u64 = 8;

/// A member holds a replica of a key and reads from its own memory. The primary is stopped while
/// the member writes the key. If that write times out, the member reads the key, and then the
/// primary goes on. Returns the value that the read found, if it did not time out, and the value
/// that the key has in the end; nothing if the write did not time out.
fn judge_read_after_timeout(
    seed: u64,
    write: u64,
    by_handle: bool,
) -> Option<[Option<Vec<u8>>; 2]> {
    let stage = Rc::new(Cell::new(0));
    let found = Rc::new(RefCell::new(None::<[Option<Vec<u8>>; 2]>));
    let mut options = SimOptions::new(3, seed).link(Link::Network);
    (options.steps_max, options.time_limit) = (10_000_000, LIMIT);
    let results = found.clone();
    sim::run(&options, move |job: Job| {
        let store = Store::open(&job, Options::new().replicas(2).partitions(4)).expect("open");
        let key: &[u8] = b"key";
        let [primary, caller] = store.replicas_of(key)[..] else { panic!("two replicas") };
        let get = || store.get(key).map(|found| found.map(|value| value.into_bytes()));
        if job.me() == caller {
            let [writer, reader] = [(); 2].map(|()| store.handle(key).expect("a handle"));
            let before = 7i64.to_le_bytes();
            // With a location of the key in the handle, or in the cache of the member.
            let by_key = || store.put(key, &before).expect("put");
            let by_writer = || writer.put(&before).expect("put");
            let [first, last]: [&dyn Fn() -> Version; 2] = match write < 4 {
                true => [&by_key, &by_writer],
                false => [&by_writer, &by_key],
            };
            first();
            last();
            let version = last();
            let read = || match by_handle {
                true => reader.get().map(|found| found.map(|value| value.into_bytes())),
                false => get(),
            };
            (0..3).for_each(|_| assert_eq!(read(), Ok(Some(before.to_vec()))));
            let mine = job.clone();
            let stop = move || {
                mine.sleep(Duration::from_nanos(seed * 7919 % 40_000));
                mine.inject(Fault::Stop(primary)).expect("a fault");
            };
            let stops = job.spawn("stops", Box::new(stop)).expect("an activity");
            let expect = Expect::Version(version);
            let written = match write {
                0 => writer.put(b"next").map(drop),
                1 => writer.put_if(b"next", expect).map(drop),
                2 => writer.add(5).map(drop),
                3 => writer.delete().map(drop),
                4 => store.put(key, b"next").map(drop),
                5 => store.put_if(key, b"next", expect).map(drop),
                6 => store.add(key, 5).map(drop),
                _ => store.delete(key).map(drop),
            };
            nap(&job, "the stop", || stops.is_finished());
            if matches!(written, Err(StoreError::Timeout { .. })) {
                let found = match read() {
                    Ok(found) => Some(found.unwrap_or_default()),
                    Err(StoreError::Timeout { .. }) => None,
                    other => panic!("{other:?}"),
                };
                *results.borrow_mut() = Some([found, None]);
            } else {
                assert_eq!(written, Ok(()));
            }
            job.inject(Fault::Resume(primary)).expect("a fault");
            stage.set(1);
        } else if job.me() != primary {
            nap(&job, "the primary", || stage.get() == 1);
            job.sleep(LIMIT);
            let last = get().expect("read");
            if let Some(results) = results.borrow_mut().as_mut() {
                results[1] = last;
            }
            stage.set(2);
        }
        nap(&job, "the end", || stage.get() == 2);
        let _ = store.close();
        let _ = job.leave();
    })
    .expect_ok();
    found.take()
}

/// A write times out and comes up later. The writer reads the key meanwhile, to find out whether
/// its write has happened: the read finds no older version, not even in the own replica of the
/// writer.
#[test]
fn a_read_after_a_timeout_finds_the_write_or_waits_for_it() {
    let mut came_up = 0;
    for write in 0..WRITES {
        for seed in seeds(30) {
            for by_handle in [false, true] {
                let judged = judge_read_after_timeout(seed, write, by_handle);
                let Some([read, last]) = judged else { continue };
                let has_come_up = last.as_deref() != Some(&7i64.to_le_bytes());
                came_up += usize::from(has_come_up);
                let is_right = read.is_none_or(|read| read == last.unwrap_or_default());
                assert!(is_right, "write {write}, seed {seed}, by handle: {by_handle}");
            }
        }
    }
    assert!(came_up > 0, "no write came up");
}

/// The kinds of acknowledged changes in [`judge_reads`].
const CHANGES: u64 = 10;

/// A member changes a key over a network, and another replica than the primary is stopped: at this
/// time after the beginning of the call, or right after its end. If the change is acknowledged, all
/// other living members read it, within their time limit. Returns whether that was so.
fn judge_reads(seed: u64, change: u64, after: Option<Duration>) -> bool {
    let (stage, readers) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let wanted: Rc<RefCell<Option<Vec<u8>>>> = Rc::default();
    let is_judged = Rc::new(Cell::new(false));
    let mut options = SimOptions::new(12, seed).link(Link::Network);
    (options.steps_max, options.time_limit) = (10_000_000, LIMIT);
    let judged = is_judged.clone();
    sim::run(&options, move |job: Job| {
        let store = Store::open(&job, Options::new().replicas(3).partitions(4)).expect("open");
        let key: &[u8] = b"key";
        let replicas = store.replicas_of(key);
        // A second key of the transaction, with equal replicas.
        let names = (0..1000).map(|number| format!("other/{number}").into_bytes());
        let other = names.into_iter().find(|name| store.replicas_of(name) == replicas);
        let other = other.expect("some key");
        let writer = (0..12).map(MemberId).find(|one| !replicas.contains(one)).expect("a member");
        let stopped = replicas[1 + seed as usize % 2];
        if job.me() == writer {
            let handle = store.handle(key).expect("a handle");
            let before = 7i64.to_le_bytes();
            let mut version = store.put(key, &before).expect("put");
            store.put(&other, &before).expect("put");
            // With a current cached location, or without.
            for _ in 0..seed % 3 {
                version = handle.put(&before).expect("put");
            }
            let mine = job.clone();
            let stop = move |after| {
                mine.sleep(after);
                mine.inject(Fault::Stop(stopped)).expect("a fault");
            };
            let stops = after
                .map(|after| job.spawn("stops", Box::new(move || stop(after))).expect("spawned"));
            let next = match change {
                4 | 5 => 12i64.to_le_bytes().to_vec(),
                9 => vec![9; 20_000],
                _ => b"next".to_vec(),
            };
            let done = match change {
                0 | 9 => store.put(key, &next).map(drop),
                1 => handle.put(&next).map(drop),
                2 => store.put_if(key, &next, Expect::Version(version)).map(drop),
                3 => handle.put_if(&next, Expect::Version(version)).map(drop),
                4 => store.add(key, 5).map(drop),
                5 => handle.add(5).map(drop),
                6 => store.delete(key).map(drop),
                7 => handle.delete().map(drop),
                _ => store.transaction(|tx| {
                    tx.put(key, &next)?;
                    tx.put(&other, &next)
                }),
            };
            if stops.is_none() {
                job.inject(Fault::Stop(stopped)).expect("a fault");
            }
            if done.is_ok() {
                judged.set(true);
                *wanted.borrow_mut() = (change != 6 && change != 7).then_some(next);
                stage.set(1);
                nap(&job, "the readers", || readers.get() == 10);
            }
            nap(&job, "the stop", || stops.as_ref().is_none_or(|stops| stops.is_finished()));
            job.inject(Fault::Resume(stopped)).expect("a fault");
            stage.set(2);
        } else if job.me() != stopped {
            nap(&job, "the change", || stage.get() >= 1);
            if stage.get() == 1 {
                let began = job.now();
                let found = store.get(key).map(|found| found.map(|value| value.into_bytes()));
                assert_eq!(found, Ok(wanted.borrow().clone()), "change {change}");
                if change == 8 {
                    let found = store.get(&other).map(|found| found.map(|one| one.into_bytes()));
                    assert_eq!(found, Ok(wanted.borrow().clone()), "the other key");
                }
                assert!(job.now().since(began) < LIMIT, "change {change}");
                readers.set(readers.get() + 1);
            }
        }
        nap(&job, "the end", || stage.get() == 2);
        let _ = store.close();
        let _ = job.leave();
    })
    .expect_ok();
    is_judged.get()
}

/// Between hosts every member reads a value as soon as it is acknowledged, although another replica
/// is stopped.
#[test]
fn ten_of_ten_members_read_an_acknowledged_change_while_a_replica_is_stopped() {
    for change in 0..CHANGES {
        for seed in seeds(6) {
            assert!(judge_reads(seed, change, None), "change {change} is acknowledged");
        }
        let early = |seed: u64| Some(Duration::from_nanos(seed * 170_003 % 2_000_000));
        let judged = seeds(12).filter(|&seed| judge_reads(seed, change, early(seed))).count();
        assert!(judged > 0, "change {change} is never acknowledged");
    }
}

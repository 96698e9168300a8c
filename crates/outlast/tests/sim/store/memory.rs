//! The store's memory under the simulator: the memory of deleted and replaced values, and memory
//! held by the dead, comes back.

use super::open;
use crate::simulation::{nap, run_with, seeds};
use outlast::engine::Fault;
use outlast::sim::{self, Link, Options as SimOptions, Random};
use outlast::store::{Expect, MemoryUse, Options, Store, StoreError};
use outlast::{Epoch, Job, MemberId, Time};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

fn run(seed: u64, members: usize, body: impl Fn(Job) + 'static) {
    run_with(SimOptions::new(members, seed).link(Link::of_seed(seed)), body);
}

/// Waits until `is_right` accepts the memory use of this member.
fn wait_for(
    job: &Job,
    store: &Store,
    what: &str,
    is_right: impl Fn(&MemoryUse) -> bool,
) -> MemoryUse {
    let until: Time = job.now().after(Duration::from_secs(60));
    loop {
        let found = store.memory_use().expect("known");
        if is_right(&found) {
            return found;
        }
        assert!(job.now() < until, "{}: {what}, but {found:?}", job.me());
        job.sleep(Duration::from_millis(20));
    }
}

/// Keys of random sizes come and go: after a while the segments do not grow any more, and at the
/// end only free memory and blocks at hand are left.
#[test]
fn memory_levels_off_and_comes_back() {
    for seed in seeds(4) {
        run(seed, 3, move |job| {
            let store = open(&job, 2);
            let mut random = Random::new(seed << 8 | u64::from(job.me().0));
            let mut level = 0;
            for round in 0..300 {
                let keys: Vec<String> =
                    (0..10).map(|key| format!("{}/{round}/{key}", job.me())).collect();
                for key in &keys {
                    let len = [10, 100, 600, 3000][random.below(4) as usize];
                    store.put(key.as_bytes(), &vec![7; len]).expect("put");
                }
                for key in &keys {
                    assert!(store.delete(key.as_bytes()).expect("delete"));
                }
                job.sleep(Duration::from_millis(100));
                if round % 20 == 0 && std::env::var("OUTLAST_TRACE").is_ok() {
                    eprintln!("{} {round}: {:?}", job.me(), store.memory_use().expect("known"));
                }
                if round == 200 {
                    level = store.memory_use().expect("known").total();
                }
            }
            let end = store.memory_use().expect("known").total();
            // Slabs come in steps. Memory lost in each round would be ten times as much by now.
            assert!(
                end <= level + level / 4 + (32 << 10),
                "{}: {level} bytes, then {end}",
                job.me()
            );
            wait_for(&job, &store, "all keys are deleted", |found| {
                found.records + found.values == 0
            });
            // Versions go on after a removal, and the key is found again.
            if job.me() == MemberId(0) {
                let before = store.put(b"again", b"1").expect("put");
                assert!(store.delete(b"again").expect("delete"));
                job.sleep(Duration::from_millis(200));
                let after = store.put(b"again", b"2").expect("put");
                assert!(after.counter > before.counter + 1, "{before} then {after}");
                assert_eq!(store.get(b"again").expect("get").expect("there").bytes(), b"2");
            }
            store.close().expect("close");
            let _ = job.leave();
        });
    }
}

/// A member dies at any step of its puts and deletes: the blocks that it had at hand come back,
/// except for the few that it had taken and not yet marked as its own.
#[test]
fn memory_held_by_the_dead_comes_back() {
    for seed in seeds(40) {
        run(seed, 4, move |job| {
            let store = open(&job, 3);
            let mut random = Random::new(seed << 8 | u64::from(job.me().0));
            if job.me() == MemberId(3) {
                job.inject(Fault::DieAtStep(200 + random.below(3000))).expect("planned");
            }
            let mut round = 0;
            // It may have died before this member has come here.
            while store.epoch() == Epoch(0) {
                round += 1;
                let key = format!("{}/{}", job.me(), round % 7);
                let len = [10, 100, 600][random.below(3) as usize];
                store.put(key.as_bytes(), &vec![7; len]).expect("put");
                if round % 3 == 0 {
                    store.delete(key.as_bytes()).expect("delete");
                }
            }
            let deadline = job.now().after(Duration::from_secs(60));
            assert!(store.wait_repaired(deadline).expect("known").is_repaired());
            wait_for(&job, &store, "the dead hold nothing", |found| found.held_by_dead == 0);
            store.close().expect("close");
            let _ = job.leave();
        });
    }
}

/// A replica refills a slab by a single block at a time, and another member takes the block before
/// the member that asked for it: that member asks again.
#[test]
fn blocks_taken_by_other_members_are_asked_for_again() {
    for seed in seeds(40) {
        run(seed, 5, move |job| {
            let options =
                Options::new().replicas(1).partitions(1).expected_keys(64).slab_len_max(4 << 10);
            let store = Store::open(&job, options).expect("open");
            for number in 0..20 {
                let (key, began) = (format!("{}/{number}", job.me()), job.now());
                store.put(key.as_bytes(), &vec![7; 3000]).expect("put");
                let took = job.now().since(began);
                assert!(took < Duration::from_secs(1), "{}: {key} took {took:?}", job.me());
            }
            store.close().expect("close");
            let _ = job.leave();
        });
    }
}

/// Deletes of absent keys, and conditional puts that fail, make no records.
#[test]
fn calls_that_change_nothing_leave_nothing_behind() {
    for seed in seeds(4) {
        run(seed, 3, move |job| {
            let store = open(&job, 2);
            for number in 0..100 {
                let key = format!("{}/{number}", job.me());
                assert!(!store.delete(key.as_bytes()).expect("delete"));
                assert!(!store.handle(key.as_bytes()).expect("handle").delete().expect("delete"));
                let other = store.put(b"other", b"1").expect("put");
                let failed = store.put_if(key.as_bytes(), b"2", Expect::Version(other));
                assert!(matches!(failed, Err(StoreError::Conflict { found: None })), "{failed:?}");
            }
            wait_for(&job, &store, "there is one key", |found| found.records <= 64);
            store.close().expect("close");
            let _ = job.leave();
        });
    }
}

/// Puts that fail because a replica is full keep nothing at the other replicas: when the keys are
/// deleted there is as much room as before.
#[test]
fn memory_that_ran_out_comes_back() {
    for seed in seeds(6) {
        let mut options = SimOptions::new(3, seed).link(Link::of_seed(seed));
        (options.steps_max, options.segment_limit) = (20_000_000, 256 << 10);
        let report = sim::run(&options, move |job: Job| {
            let store = open(&job, 2);
            if job.me() == MemberId(0) {
                let mut counts = Vec::new();
                // So that there are enough records for all values that fit.
                for number in 0..300 {
                    store.put(format!("small/{number}").as_bytes(), b"").expect("put");
                }
                for number in 0..300 {
                    assert!(store.delete(format!("small/{number}").as_bytes()).expect("delete"));
                }
                job.sleep(Duration::from_millis(2000));
                for round in 0..6 {
                    let keys: Vec<String> =
                        (0..400).map(|number| format!("{round}/{number}")).collect();
                    let put = |key: &String| match store.put(key.as_bytes(), &[7; 3000]) {
                        Ok(_) => true,
                        Err(StoreError::OutOfMemory { .. }) => false,
                        Err(error) => panic!("{error}"),
                    };
                    let kept: Vec<&String> = keys.iter().filter(|key| put(key)).collect();
                    counts.push(kept.len());
                    for key in kept {
                        assert!(store.delete(key.as_bytes()).expect("delete"));
                    }
                    job.sleep(Duration::from_millis(2000));
                }
                let first = counts[0];
                assert!((20..400).contains(&first), "{counts:?}");
                assert!(counts.iter().all(|&count| count >= first - first / 5), "{counts:?}");
            }
            store.close().expect("close");
            let _ = job.leave();
        });
        report.expect_ok();
    }
}

/// The members are full to the last block of the smallest size: another member can delete every key
/// in turn, and there is room again.
#[test]
fn keys_can_be_deleted_without_free_memory() {
    for seed in seeds(6) {
        let mut options = SimOptions::new(3, seed).link(Link::of_seed(seed));
        (options.steps_max, options.segment_limit) = (40_000_000, 1 << 20);
        let report = sim::run(&options, move |job: Job| {
            let store = open(&job, 2);
            let fill = |len: usize| -> Vec<String> {
                let (mut keys, mut failures) = (Vec::new(), 0);
                for number in 0.. {
                    let key = format!("{}/{len}/{number}", job.me());
                    match store.put(key.as_bytes(), &vec![7; len]) {
                        Ok(_) => keys.push(key),
                        Err(StoreError::OutOfMemory { .. }) if failures < 50 => failures += 1,
                        Err(StoreError::OutOfMemory { .. }) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                keys
            };
            if job.me() == MemberId(0) {
                let mut keys = fill(3000);
                let large = keys.len();
                for len in [700, 200, 60, 1] {
                    keys.extend(fill(len));
                }
                assert!(keys.len() >= 80, "{}", keys.len());
                store.put(b"full", &[7; 3000]).expect_err("no room");
                for (number, key) in keys.iter().enumerate() {
                    let deleted = store.delete(key.as_bytes());
                    assert!(matches!(deleted, Ok(true)), "{number} of {}: {deleted:?}", keys.len());
                }
                job.sleep(Duration::from_millis(2000));
                let again = fill(3000).len();
                assert!(again * 10 > large * 7, "{again} after {large}");
            }
            store.close().expect("close");
            let _ = job.leave();
        });
        report.expect_ok();
    }
}

/// A member dies, and the new replicas in its place have no room: every value can still be read and
/// changed. When there is room again the new replicas become complete.
#[test]
fn a_new_replica_without_room_blocks_no_call() {
    let held_up = std::rc::Rc::new(std::cell::Cell::new(0));
    for seed in seeds(12) {
        let mut options = SimOptions::new(4, seed).link(Link::of_seed(seed));
        (options.steps_max, options.segment_limit) = (40_000_000, 1 << 20);
        let held_up = held_up.clone();
        let report = sim::run(&options, move |job: Job| {
            let options =
                Options::new().replicas(2).partitions(32).expected_keys(64).slab_len_max(16 << 10);
            let store = Store::open(&job, options).expect("open");
            let dead = MemberId(3);
            let sentinel = store.handle(b"done").expect("a handle");
            sentinel.put(b"not yet").expect("put");
            if job.me() == MemberId(0) {
                let is_put =
                    |key: &String| store.put(key.as_bytes(), key.repeat(400).as_bytes()).is_ok();
                let mut keys: Vec<String> =
                    (100..999).map(|number| format!("key/{number}")).collect();
                keys.retain(is_put);
                assert!((100..900).contains(&keys.len()), "{}", keys.len());
                for key in keys.split_off(keys.len() * 5 / 6) {
                    assert!(store.delete(key.as_bytes()).expect("delete"));
                }
                job.sleep(Duration::from_millis(500));
                job.inject(Fault::Kill(dead)).expect("a fault");
                let until = job.now().after(Duration::from_secs(60));
                while job.view().is_living(dead) && job.now() < until {
                    job.sleep(Duration::from_millis(1));
                }
                let read = |key: &String, times: usize| {
                    let value = store.get(key.as_bytes());
                    let value =
                        value.unwrap_or_else(|error| panic!("{key}: {error}")).expect("there");
                    assert_eq!(value.bytes(), key.repeat(times).as_bytes());
                };
                keys.iter().for_each(|key| read(key, 400));
                let missing = store.repair_status().expect("known").replicas_missing;
                held_up.set(held_up.get() + usize::from(missing > 0));
                // A change needs room at the complete replicas. Without room nothing is changed.
                let times: Vec<usize> = (keys.iter().enumerate())
                    .map(|(number, key)| {
                        let value = key.repeat(399);
                        let put = match number % 2 {
                            0 => store.put(key.as_bytes(), value.as_bytes()),
                            _ => store
                                .handle(key.as_bytes())
                                .and_then(|handle| handle.put(value.as_bytes())),
                        };
                        let times = match put {
                            Ok(_) => 399,
                            Err(StoreError::OutOfMemory { .. }) => 400,
                            Err(error) => panic!("{error}"),
                        };
                        read(key, times);
                        times
                    })
                    .collect();
                let known: Vec<_> = keys.iter().zip(times).collect();
                let (gone, kept) = known.split_at(known.len() / 4);
                for (key, _) in gone {
                    assert!(store.delete(key.as_bytes()).expect("delete"));
                }
                let repaired =
                    store.wait_repaired(job.now().after(Duration::from_secs(60))).expect("known");
                assert!(repaired.is_repaired(), "{repaired:?}");
                // The new replicas are complete: nothing is missing without the old replicas.
                job.inject(Fault::Kill(MemberId(1))).expect("a fault");
                while job.view().is_living(MemberId(1)) && job.now() < until {
                    job.sleep(Duration::from_millis(1));
                }
                kept.iter().for_each(|&(key, times)| read(key, times));
                gone.iter().for_each(|(key, _)| assert_eq!(store.get(key.as_bytes()), Ok(None)));
                sentinel.put(b"done").expect("put");
            } else {
                let deadline = job.now().after(Duration::from_secs(300));
                while store.get(b"done").expect("read").is_none_or(|value| value.bytes() != b"done")
                {
                    assert!(job.now() < deadline);
                    job.sleep(Duration::from_millis(10));
                }
            }
            let _ = store.close();
            let _ = job.leave();
        });
        report.expect_ok();
    }
    assert!(held_up.get() > 6, "replicas had no room in {} runs", held_up.get());
}

/// While a replica is stopped another member asks it for blocks again and again. When the replica
/// goes on it makes a single slab for all these requests, and its memory does not fill up.
#[test]
fn a_replica_that_was_stopped_answers_many_requests_by_a_single_slab() {
    for seed in seeds(4) {
        let (is_over, open) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let mut options = SimOptions::new(3, seed).link(Link::Memory);
        options.time_limit = Duration::from_millis(50);
        run_with(options, move |job| {
            let options = Options::new().replicas(1).partitions(4).expected_keys(64);
            let store = Store::open(&job, options).expect("open");
            open.set(open.get() + 1);
            let replica = store.replicas_of(b"key")[0];
            let caller = MemberId((replica.0 + 1) % 3);
            if job.me() == caller {
                nap(&job, "all members", || open.get() == 3);
                job.inject(Fault::Stop(replica)).expect("a fault");
                for _ in 0..60 {
                    let put = store.put(b"key", &[7; 3000]);
                    assert!(matches!(put, Err(StoreError::Timeout { .. })), "{put:?}");
                }
                job.inject(Fault::Resume(replica)).expect("a fault");
                nap(&job, "the replica", || store.put(b"key", &[7; 3000]).is_ok());
                is_over.set(true);
            }
            nap(&job, "the calls", || is_over.get());
            if job.me() == replica {
                let found = store.memory_use().expect("known");
                assert!(found.total() < 1 << 20, "{found:?}");
            }
            store.close().expect("close");
            let _ = job.leave();
        });
    }
}

/// More threads than a member has participants wait for blocks of a stopped replica. Calls of this
/// member on another replica go on meanwhile.
#[test]
fn threads_that_wait_for_blocks_of_a_stopped_replica_hold_up_no_other_call() {
    for seed in seeds(4) {
        let (is_over, open) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let mut options = SimOptions::new(3, seed).link(Link::Memory);
        options.time_limit = Duration::from_secs(2);
        run_with(options, move |job| {
            let options = Options::new().replicas(1).partitions(8).expected_keys(64);
            let store = Store::open(&job, options).expect("open");
            let keys_at = |replica: MemberId| {
                let keys = (0..2000).map(|number| format!("key/{number}"));
                keys.filter(|key| store.replicas_of(key.as_bytes()) == [replica]).collect()
            };
            let (stopped, other) = (MemberId(1), MemberId(2));
            open.set(open.get() + 1);
            if job.me() == MemberId(0) {
                nap(&job, "all members", || open.get() == 3);
                let keys: Vec<String> = keys_at(stopped);
                job.inject(Fault::Stop(stopped)).expect("a fault");
                let waits = |key: &String| {
                    let (store, key) = (store.clone(), key.clone());
                    let wait = move || {
                        // The blocks come too late, or when the replica goes on.
                        let _ = store.put(key.as_bytes(), &[7; 3000]);
                    };
                    job.spawn("waits", Box::new(wait)).expect("an activity")
                };
                let waiting: Vec<_> = keys.iter().take(70).map(waits).collect();
                assert_eq!(waiting.len(), 70);
                job.sleep(Duration::from_millis(500));
                let began = job.now();
                for key in keys_at(other).iter().take(5) {
                    store.put(key.as_bytes(), &[8; 3000]).expect("put");
                    let value = store.get(key.as_bytes()).expect("read").expect("there");
                    assert_eq!(value.bytes(), &[8; 3000]);
                }
                let took = job.now().since(began);
                assert!(took < Duration::from_millis(500), "took {took:?}");
                assert!(waiting.iter().all(|activity| !activity.is_finished()));
                job.inject(Fault::Resume(stopped)).expect("a fault");
                nap(&job, "all threads", || waiting.iter().all(|one| one.is_finished()));
                is_over.set(true);
            }
            nap(&job, "the calls", || is_over.get());
            store.close().expect("close");
            let _ = job.leave();
        });
    }
}

/// Members that have ceased to write keep blocks at a replica. When the replica has no more room
/// for another member it gets these blocks back before it refuses.
#[test]
fn blocks_that_idle_members_keep_come_back_before_a_replica_refuses() {
    const IDLE: u32 = 6;
    for seed in seeds(6) {
        let (stage, ready) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let mut options = SimOptions::new(IDLE as usize + 2, seed).link(Link::of_seed(seed));
        options.segment_limit = 4 << 20;
        run_with(options, move |job| {
            let options = Options::new().replicas(1).partitions(16).expected_keys(256);
            let store = Store::open(&job, options).expect("open");
            let (replica, writer) = (MemberId(0), MemberId(IDLE + 1));
            let keys_there = |name: &str| -> Vec<String> {
                let keys = (0..4000).map(|number| format!("{name}/{}/{number}", job.me()));
                keys.filter(|key| store.replicas_of(key.as_bytes()) == [replica]).collect()
            };
            let value = [7; 100_000];
            if (1..=IDLE).contains(&job.me().0) {
                // Large and then small: what the magazine and the batches keep stays there.
                let key = &keys_there("idle")[0];
                for _ in 0..4 {
                    store.put(key.as_bytes(), &value).expect("put");
                }
                store.put(key.as_bytes(), b"small").expect("put");
                ready.set(ready.get() + 1);
            }
            if job.me() == writer {
                nap(&job, "the idle members", || ready.get() == IDLE);
                job.sleep(Duration::from_secs(3));
                let is_put = |key: &&String| match store.put(key.as_bytes(), &value) {
                    Ok(_) => true,
                    Err(StoreError::OutOfMemory { member, .. }) if member == replica => false,
                    Err(error) => panic!("{error}"),
                };
                let count = keys_there("busy").iter().take_while(is_put).count();
                assert!(count > 20, "{count} values fit");
                stage.set(1);
            }
            nap(&job, "the writer", || stage.get() >= 1);
            if job.me() == replica {
                let found = store.memory_use().expect("known");
                assert!(found.held_by_living + found.free < 100_000, "{found:?}");
                stage.set(2);
            }
            nap(&job, "the replica", || stage.get() == 2);
            store.close().expect("close");
            let _ = job.leave();
        });
    }
}

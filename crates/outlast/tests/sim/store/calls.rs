//! The store's larger calls under the simulator: locks, waits that a death ends, loss, leaving.
//! Members die and are stopped at any step. The body of each test knows what must hold, and panics
//! otherwise.

use super::small_options as options;
use crate::reexecution::this_test;
use crate::simulation::{replay_with_trace, seeds_in};
use outlast::engine::Fault;
use outlast::sim::{self, Link, Options as SimOptions};
use outlast::store::{Expect, Options, Store, StoreError, Version, WaitOutcome};
use outlast::{Job, MemberId, Time, View};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Runs a body over seeds. `plan` gives the members and the faults of each seed.
fn over_seeds(
    test: &str,
    default: std::ops::Range<u64>,
    plan: impl Fn(u64) -> SimOptions,
    body: impl Fn(u64) -> Box<dyn Fn(Job)>,
) {
    let seeds = seeds_in(default);
    let trace = std::env::var("OUTLAST_TRACE").is_ok();
    let mut steps = 0;
    for seed in seeds.clone() {
        let mut options = plan(seed);
        (options.trace, options.steps_max) = (trace, 5_000_000);
        let report = sim::run(&options, body(seed));
        report.trace.iter().for_each(|line| println!("{line}"));
        steps += report.steps;
        assert!(
            report.is_ok(),
            "seed {seed}: {:?}\n{:#?}\n{:#?}\n{}",
            report.outcome,
            report.panics,
            report.hung,
            replay_with_trace(test, seed)
        );
    }
    println!("{test}: seeds {seeds:?}, {steps} steps");
}

/// Opens the store; `None` if a member was stopped for so long that this member gave up.
fn open(job: &Job, options: Options) -> Option<Store> {
    match Store::open(job, options) {
        Ok(store) => Some(store),
        Err(StoreError::Timeout { .. } | StoreError::Closed) => None,
        Err(error) => panic!("open: {error}"),
    }
}

fn end(job: &Job, store: &Store) {
    match store.close() {
        Ok(()) | Err(StoreError::Closed) => {}
        Err(StoreError::Timeout { .. }) => {
            // A member is stopped and will read when it goes on: the data of this member must be
            // there until then.
            let until = after(job, 2 * MINUTE);
            while job.now() < until && !job.has_ended() {
                job.park(job.bell(), until);
            }
        }
        Err(error) => panic!("close: {error}"),
    }
    let _ = job.leave();
}

fn after(job: &Job, duration: Duration) -> Time {
    job.now().after(duration)
}

const MINUTE: Duration = Duration::from_secs(60);

/// The member and thread between lock and unlock, as recorded by the members outside of the store.
type Inside = Arc<Mutex<Option<(MemberId, u32)>>>;

fn lock_and_unlock(
    job: &Job,
    store: &Store,
    replicas: usize,
    thread: u32,
    inside: &Inside,
    rounds: usize,
) {
    for round in 0..rounds {
        let guard = match store.lock(b"queue", after(job, 20 * MINUTE)) {
            Ok(guard) => guard,
            // A replica did not answer. The lock may be held without an owner; the background
            // releases it.
            Err(StoreError::Timeout { .. }) => continue,
            Err(StoreError::Closed) => return,
            // If a member is stopped while the store is opened or closed, the others give up and
            // leave: as many members as there are replicas have died.
            Err(StoreError::DataLost { .. }) if job.view().dead.len() >= replicas => return,
            Err(error) => panic!("lock: {error}"),
        };
        let before = inside.lock().unwrap().replace((job.me(), thread));
        if let Some((member, _)) = before {
            // It died inside, or its successor died before it could record itself.
            assert!(guard.was_abandoned() && !job.view().is_living(member), "two holders");
        }
        if let Some(member) = guard.abandoned_by() {
            assert!(!job.view().is_living(member), "{member} lives");
        }
        job.park(job.bell(), after(job, Duration::from_micros(20)));
        assert_eq!(*inside.lock().unwrap(), Some((job.me(), thread)), "another member came in");
        *inside.lock().unwrap() = None;
        if round % 2 == 0 {
            drop(guard);
            continue;
        }
        match guard.unlock() {
            Ok(()) | Err(StoreError::Timeout { .. } | StoreError::Closed) => {}
            // If a member is stopped while the store is opened or closed, the others give up and
            // leave: as many members as there are replicas have died.
            Err(StoreError::DataLost { .. }) if job.view().dead.len() >= replicas => return,
            Err(error) => panic!("unlock: {error}"),
        }
    }
}

/// Members with two threads each; deaths and stops at any step.
#[test]
fn a_lock_has_a_single_holder_and_the_death_of_a_holder_is_reported() {
    let plan = |seed: u64| {
        let options = SimOptions::new(3 + (seed % 3) as usize, seed).link(Link::of_seed(seed));
        options.random_faults(1 + (seed / 5 % 2) as usize, (seed / 3 % 3) as usize, 600)
    };
    over_seeds(this_test!(), 0..200, plan, |_| {
        let inside = Inside::default();
        Box::new(move |job| {
            let Some(store) = open(&job, options(3)) else { return };
            let (job2, store2, inside2) = (job.clone(), store.clone(), inside.clone());
            let other = job
                .spawn(
                    "second",
                    Box::new(move || lock_and_unlock(&job2, &store2, 3, 1, &inside2, 6)),
                )
                .expect("an activity");
            lock_and_unlock(&job, &store, 3, 0, &inside, 6);
            assert!(job.wait_for(&other, Time::NEVER));
            end(&job, &store);
        })
    });
}

/// The holder dies at each of its steps between the request for the lock and the end of its
/// release.
#[test]
fn the_lock_of_a_holder_that_dies_at_any_step_is_taken_over() {
    let plan = |seed: u64| SimOptions::new(3, seed).link(Link::of_seed(seed));
    over_seeds(this_test!(), 0..300, plan, |seed| {
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
    let plan = |seed: u64| SimOptions::new(2, seed).link(Link::of_seed(seed));
    over_seeds(this_test!(), 0..20, plan, |_| {
        Box::new(|job| {
            let Some(store) = open(&job, options(2)) else { return };
            if job.me() == MemberId(0) {
                let guard = store.lock(b"queue", after(&job, MINUTE)).expect("free");
                assert!(!guard.was_abandoned());
                // Another thread of this member is another holder.
                let again = store.lock(b"queue", after(&job, Duration::from_millis(1)));
                assert!(
                    matches!(again, Err(StoreError::Locked { holder: MemberId(0), .. })),
                    "{again:?}"
                );
                store.put(b"locked", b"").expect("put");
                store.wait(b"refused", None, after(&job, MINUTE)).expect("waited").expect("came");
                // A late unlock of a former holder releases nothing.
                assert_eq!(store.delete(b"queue"), Ok(true));
                let other = store.lock(b"queue", after(&job, MINUTE)).expect("free");
                assert!(matches!(guard.unlock(), Err(StoreError::Conflict { found: Some(_) })));
                let third = store.lock(b"queue", after(&job, Duration::from_millis(1)));
                assert!(
                    matches!(third, Err(StoreError::Locked { holder: MemberId(0), .. })),
                    "{third:?}"
                );
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

/// Member 0 puts a result and dies at some step of the put, or before it.
#[test]
fn a_wait_ends_with_the_value_or_with_the_death_of_its_writer() {
    let plan = |seed: u64| SimOptions::new(3, seed).link(Link::of_seed(seed));
    let ends = Arc::new(Mutex::new((0, 0)));
    let counted = ends.clone();
    over_seeds(this_test!(), 0..200, plan, move |seed| {
        let ends = counted.clone();
        Box::new(move |job| {
            let Some(store) = open(&job, options(2)) else { return };
            if job.me() == MemberId(0) {
                job.inject(Fault::DieAtStep(1 + 2 * seed)).expect("a fault");
                store.put(b"future", b"result").expect("put");
                // It lives until it reaches its step. The others need the value or its death.
                loop {
                    store.get(b"future").expect("read");
                }
            }
            let began = job.now();
            let waited = store.wait_or_death(b"future", None, after(&job, MINUTE), MemberId(0));
            assert!(job.now().since(began) < Duration::from_secs(1), "the death rings");
            match waited.expect("waited") {
                WaitOutcome::Value(value) => {
                    assert_eq!(value.bytes(), b"result");
                    ends.lock().unwrap().0 += 1;
                }
                WaitOutcome::Died(member) => {
                    assert_eq!(member, MemberId(0));
                    // A value that was absent then does not appear later.
                    for _ in 0..5 {
                        job.park(job.bell(), after(&job, Duration::from_millis(3)));
                        assert_eq!(store.get(b"future"), Ok(None));
                    }
                    ends.lock().unwrap().1 += 1;
                }
                WaitOutcome::TimedOut => panic!("nothing ended the wait"),
            }
            // The deadline ends the wait, too.
            let until = after(&job, Duration::from_millis(2));
            let member = job.me();
            assert_eq!(
                store.wait_or_death(b"never", None, until, member),
                Ok(WaitOutcome::TimedOut)
            );
            end(&job, &store);
        })
    });
    let ends = ends.lock().unwrap();
    assert!(ends.0 > 20 && ends.1 > 20, "values and deaths: {ends:?}");
}

/// A writer is stopped at some step of its put, when others can already see the value: the wait of
/// a third member ends as soon as a reader has seen the value, not when the writer goes on.
fn a_wait_ends_early(test: &str, replicas: usize, by_handle: bool) {
    let plan = |seed: u64| SimOptions::new(3, seed).link(Link::Memory);
    let early = Arc::new(Mutex::new(0));
    let counted = early.clone();
    over_seeds(test, 0..200, plan, move |seed| {
        let (early, seen) = (counted.clone(), Arc::new(Mutex::new(None)));
        Box::new(move |job| {
            let Some(store) = open(&job, options(replicas)) else { return };
            let sleep = |until: Time| {
                while job.now() < until {
                    job.park(job.bell(), until);
                }
            };
            match job.me().0 {
                0 => {
                    let handle = store.handle(b"future").expect("a handle");
                    if by_handle {
                        handle.put(b"not yet").expect("put");
                    }
                    sleep(after(&job, Duration::from_millis(10)));
                    job.inject(Fault::StopAtStep(1 + seed)).expect("a fault");
                    let put = if by_handle {
                        handle.put(b"result")
                    } else {
                        store.put(b"future", b"result")
                    };
                    put.expect("put");
                    // The writer stops here at the latest.
                    sleep(after(&job, Duration::from_secs(1)));
                }
                1 => {
                    let mut before = None;
                    if by_handle {
                        let value =
                            store.wait(b"future", None, after(&job, MINUTE)).expect("waited");
                        // A member that is slow for a while may find the second value at once.
                        before = value
                            .filter(|value| value.bytes() == b"not yet")
                            .map(|value| value.version());
                    }
                    store
                        .wait(b"future", before, after(&job, MINUTE))
                        .expect("waited")
                        .expect("there");
                    // Copied first, because the others run while this member reads the clock.
                    let seen = *seen.lock().unwrap();
                    if let Some(seen) = seen {
                        let late = job.now().since(seen);
                        assert!(
                            late < Duration::from_millis(100),
                            "{late:?} after another member saw the value"
                        );
                    }
                }
                _ => {
                    let until = after(&job, Duration::from_secs(2));
                    while job.now() < until && seen.lock().unwrap().is_none() {
                        sleep(after(&job, Duration::from_millis(5)));
                        let value = store.get(b"future").expect("read");
                        if value.is_some_and(|value| value.bytes() == b"result") {
                            *seen.lock().unwrap() = Some(job.now());
                            *early.lock().unwrap() += 1;
                        }
                    }
                    sleep(after(&job, Duration::from_secs(2)));
                    job.inject(Fault::Resume(MemberId(0))).expect("a fault");
                }
            }
            end(&job, &store);
        })
    });
    let early = *early.lock().unwrap();
    assert!(early > 20, "seen while the writer was stopped, or later: {early}");
}

#[test]
fn a_wait_ends_when_a_reader_sees_the_value() {
    a_wait_ends_early(this_test!(), 2, false);
}

#[test]
fn a_wait_ends_when_a_reader_sees_the_value_put_by_handle() {
    a_wait_ends_early(this_test!(), 2, true);
}

#[test]
fn a_wait_ends_when_a_reader_sees_the_only_replica() {
    a_wait_ends_early(this_test!(), 1, false);
}

#[test]
fn a_wait_ends_when_a_reader_sees_the_only_replica_put_by_handle() {
    a_wait_ends_early(this_test!(), 1, true);
}

/// A replica stops in the middle of a lock or an unlock, which ends with a timeout. Later the
/// replica goes on, and the request changes the lock's record. Then no member holds the lock.
#[test]
fn a_lock_with_an_unknown_outcome_is_released_in_the_background() {
    let plan = |seed: u64| {
        let mut options = SimOptions::new(2, seed).link(Link::Network);
        options.time_limit = Duration::from_secs(1);
        options
    };
    let timeouts = Arc::new(Mutex::new(0));
    let counted = timeouts.clone();
    over_seeds(this_test!(), 0..200, plan, move |seed| {
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
                    // From the time before the replica went on.
                    Err(StoreError::Timeout { .. }) => {}
                    Err(error) => panic!("{} cannot lock: {error}", job.me()),
                }
            }
            end(&job, &store);
        })
    });
    assert!(*timeouts.lock().unwrap() > 100);
}

/// The greatest acknowledged version of each key, recorded outside of the store.
type Acked = Arc<Mutex<BTreeMap<Vec<u8>, Version>>>;

fn keys() -> impl Iterator<Item = Vec<u8>> {
    (0..24).map(|number| format!("key/{number}").into_bytes())
}

/// Puts a key and checks that the version is greater than all versions acknowledged before.
fn put_newer(store: &Store, acked: &Acked, key: &[u8]) -> Result<(), StoreError> {
    let before = acked.lock().unwrap().get(key).copied();
    let value = format!("{}/{}", store.me(), before.map_or(0, |version| version.counter));
    let version = store.put(key, value.as_bytes())?;
    assert!(before.is_none_or(|before| version > before), "{version} after {before:?}");
    let mut acked = acked.lock().unwrap();
    let newest = acked.entry(key.to_vec()).or_insert(version);
    *newest = version.max(*newest);
    Ok(())
}

/// Reads all keys. Each has its acknowledged version or a newer version, or is lost. Returns the
/// lost keys.
fn read_all(store: &Store, acked: &Acked) -> Vec<Vec<u8>> {
    let mut lost = Vec::new();
    for key in keys() {
        let before = acked.lock().unwrap().get(&key).copied();
        match store.get(&key) {
            Ok(Some(found)) => {
                assert!(Some(found.version()) >= before, "{} is old", found.version())
            }
            Ok(None) => assert_eq!(before, None, "{} is gone", String::from_utf8_lossy(&key)),
            Err(StoreError::DataLost { partition }) => {
                assert_eq!(store.partition_of(&key), Ok(partition));
                lost.push(key);
            }
            Err(StoreError::Timeout { .. } | StoreError::Closed) => {}
            Err(error) => panic!("read: {error}"),
        }
    }
    lost
}

/// Accepts all losses until none is left. Then every lost key is absent or has a value of the new
/// incarnation.
fn accept_and_write(
    store: &Store,
    acked: &Acked,
    before: &BTreeMap<Vec<u8>, Version>,
    lost: &[Vec<u8>],
) {
    match store.accept_loss() {
        Ok(_) | Err(StoreError::Timeout { .. }) => {}
        Err(StoreError::Closed) => return,
        Err(error) => panic!("accept: {error}"),
    }
    for key in lost {
        match store.get(key) {
            Ok(None) => {}
            Ok(Some(found)) => {
                assert!(
                    Some(found.version()) > before.get(key).copied(),
                    "{} is back",
                    found.version()
                );
            }
            // The replica of the new incarnation has died, too, or no replica could be reached.
            Err(StoreError::DataLost { .. } | StoreError::Timeout { .. } | StoreError::Closed) => {}
            Err(error) => panic!("read: {error}"),
        }
        match put_newer(store, acked, key) {
            Ok(()) => {}
            Err(StoreError::DataLost { .. } | StoreError::Timeout { .. } | StoreError::Closed) => {}
            Err(error) => panic!("put: {error}"),
        }
    }
}

/// Member 0 dies, with a single replica. All survivors accept the loss at once, one of them dies at
/// some step of that, others are stopped.
#[test]
fn loss_is_reported_until_accepted_and_versions_keep_growing() {
    let plan = |seed: u64| {
        let options = SimOptions::new(4 + (seed / 2 % 2) as usize, seed).link(Link::of_seed(seed));
        options.random_faults(0, (seed / 4 % 3) as usize, 3000)
    };
    let accepted = Arc::new(Mutex::new((0, 0)));
    let counted = accepted.clone();
    over_seeds(this_test!(), 0..300, plan, move |seed| {
        let (acked, counted) = (Acked::default(), counted.clone());
        // The versions acknowledged in the old incarnation, recorded by the first member that
        // accepts.
        let old_life = Arc::new(Mutex::new(None));
        Box::new(move |job| {
            let Some(store) = open(&job, options(1)) else { return };
            let told = Arc::new(Mutex::new(Vec::new()));
            let sink = told.clone();
            store.on_loss(move |lost| sink.lock().unwrap().extend(lost.to_vec()));
            for key in keys().filter(|key| key[4] as u32 % 4 == job.me().0 % 4) {
                let _ = put_newer(&store, &acked, &key);
            }
            if job.me() == MemberId(0) {
                // After the others have written, though it does not wait for them: what is lost is
                // checked against the acknowledged versions.
                job.park(job.bell(), after(&job, Duration::from_micros(seed % 100 * 10)));
                return job.inject(Fault::Kill(MemberId(0))).expect("a fault");
            }
            let until = after(&job, MINUTE);
            while job.view().dead.is_empty() && job.now() < until {
                job.park(job.bell(), until);
            }
            let was_accepted = old_life.lock().unwrap().is_some();
            let lost = if was_accepted { Vec::new() } else { lost_keys(&store) };
            if job.me() == MemberId(1) && seed % 3 != 0 {
                job.inject(Fault::DieAtStep(1 + seed)).expect("a fault");
            }
            if !lost.is_empty() && !was_accepted && seed % 5 == 0 {
                // No member has begun to accept: a put is refused, too.
                let refused = store.put(&lost[0], b"");
                if old_life.lock().unwrap().is_none() {
                    assert!(
                        matches!(
                            refused,
                            Err(StoreError::DataLost { .. }
                                | StoreError::Timeout { .. }
                                | StoreError::Closed)
                        ),
                        "{refused:?}"
                    );
                }
            }
            let noted = acked.lock().unwrap().clone();
            let before = old_life.lock().unwrap().get_or_insert(noted).clone();
            accept_and_write(&store, &acked, &before, &lost);
            let mut count = counted.lock().unwrap();
            count.0 += lost.len();
            count.1 += usize::from(!told.lock().unwrap().is_empty());
            drop(count);
            end(&job, &store);
        })
    });
    let accepted = accepted.lock().unwrap();
    assert!(accepted.0 > 1000 && accepted.1 > 300, "lost keys and listeners told: {accepted:?}");
}

/// The keys that are lost now.
fn lost_keys(store: &Store) -> Vec<Vec<u8>> {
    keys().filter(|key| matches!(store.get(key), Err(StoreError::DataLost { .. }))).collect()
}

/// A partition is lost while it is being copied: the keys that the new replica has are named, and
/// correctly.
#[test]
fn lost_keys_are_named_if_a_replica_knows_them() {
    let plan = |seed: u64| SimOptions::new(3, seed).link(Link::of_seed(seed));
    let named = Arc::new(Mutex::new((0, 0)));
    let counted = named.clone();
    over_seeds(this_test!(), 0..60, plan, move |seed| {
        let counted = counted.clone();
        Box::new(move |job| {
            let options =
                Options::new().replicas(2).partitions(1).expected_keys(64).slab_len_max(16 << 10);
            let Some(store) = open(&job, options) else { return };
            let replicas = store.replicas_of(b"any");
            let third = (0..3)
                .map(MemberId)
                .find(|member| !replicas.contains(member))
                .expect("a third member");
            if job.me() == third {
                for key in keys() {
                    store.put(&key, b"value").expect("put");
                }
                store.delete(&keys().next().expect("a key")).expect("deleted");
                store
                    .transaction(|tx| (0..3u8).try_for_each(|n| tx.put(&[n], b"new")))
                    .expect("done");
                job.inject(Fault::Kill(replicas[0])).expect("killed");
                // Some of them have been copied here by then.
                let until = after(&job, Duration::from_micros(seed * 8));
                while job.now() < until {
                    job.park(job.bell(), until);
                }
                job.inject(Fault::Kill(replicas[1])).expect("killed");
                let until = after(&job, MINUTE);
                while job.view().dead.len() < 2 {
                    assert!(job.now() < until);
                    job.park(job.bell(), until);
                }
                let lost = store.lost_keys().expect("known");
                let is_lost = store.get(b"any") == Err(StoreError::DataLost { partition: 0 });
                assert!(is_lost || lost.is_empty(), "{lost:?}");
                let put: Vec<Vec<u8>> = keys().skip(1).chain((0..3u8).map(|n| vec![n])).collect();
                let first = keys().next().expect("a key");
                assert!(lost.iter().all(|key| put.contains(key) || *key == first), "{lost:?}");
                assert_eq!(store.accept_loss(), Ok(if is_lost { vec![0] } else { vec![] }));
                assert_eq!(store.lost_keys(), Ok(vec![]));
                let mut counted = counted.lock().unwrap();
                counted.0 += lost.len();
                counted.1 += usize::from(!lost.is_empty() && lost.len() < put.len());
                drop(counted);
                end(&job, &store);
            } else {
                // Until it is killed.
                let until = after(&job, MINUTE);
                while job.now() < until {
                    job.park(job.bell(), until);
                }
            }
        })
    });
    let named = named.lock().unwrap();
    assert!(named.0 > 50 && named.1 > 5, "keys named, and runs in which some were: {named:?}");
}

/// With two replicas, two members die at once, and the partitions of which they had both replicas
/// are accepted as lost. When these have their replicas again, another member dies: the new
/// incarnation is complete at its other replica, and its versions are still the greatest.
#[test]
fn a_new_incarnation_is_repaired_with_its_version_floor() {
    let plan = |seed: u64| SimOptions::new(5, seed).link(Link::of_seed(seed));
    let lost_count = Arc::new(Mutex::new(0));
    let counted = lost_count.clone();
    over_seeds(this_test!(), 0..100, plan, move |seed| {
        let (acked, counted) = (Acked::default(), counted.clone());
        let victims = [[0, 1, 2], [1, 2, 0], [2, 3, 1], [0, 3, 2], [1, 3, 0], [0, 2, 3]];
        let victims = victims[(seed / 2 % 6) as usize].map(MemberId);
        Box::new(move |job| {
            let options = options(2).partitions(32);
            let Some(store) = open(&job, options) else { return };
            if job.me() == MemberId(4) {
                for key in keys() {
                    put_newer(&store, &acked, &key).expect("put");
                }
                job.inject(Fault::Kill(victims[0])).expect("a fault");
                job.inject(Fault::Kill(victims[1])).expect("a fault");
            }
            let wait_for_deaths = |count: usize| {
                let until = after(&job, MINUTE);
                while job.view().dead.len() < count {
                    assert!(job.now() < until);
                    job.park(job.bell(), until);
                }
            };
            wait_for_deaths(2);
            if job.me() == MemberId(4) {
                let lost = read_all(&store, &acked);
                *counted.lock().unwrap() += lost.len();
                let partitions = store.accept_loss().expect("accepted");
                assert!(
                    lost.iter().all(|key| partitions.contains(&store.partition_of(key).unwrap()))
                );
                let (written, empty) = lost.split_at(lost.len() / 2);
                for key in written {
                    assert_eq!(store.get(key), Ok(None));
                    put_newer(&store, &acked, key).expect("put");
                }
                store.put(b"accepted", b"").expect("put");
                let until = after(&job, MINUTE);
                while store.repair_status().expect("known").replicas_missing != 0 {
                    assert!(job.now() < until, "replicas are missing");
                    job.park(job.bell(), after(&job, Duration::from_millis(1)));
                }
                job.inject(Fault::Kill(victims[2])).expect("a fault");
                wait_for_deaths(3);
                for key in empty {
                    assert_eq!(store.get(key), Ok(None));
                    put_newer(&store, &acked, key).expect("put");
                }
                assert_eq!(read_all(&store, &acked), Vec::<Vec<u8>>::new());
            } else {
                wait_for_deaths(3);
            }
            end(&job, &store);
        })
    });
    let lost_count = *lost_count.lock().unwrap();
    assert!(lost_count > 50, "{lost_count} lost keys");
}

/// Two of three replicas die at once, and the new replicas make their indexes at different times.
/// When all replicas are complete again, two other members die: the repaired replicas are complete.
#[test]
fn a_repaired_replica_is_complete_whenever_its_repair_began() {
    let plan = |seed: u64| {
        let options = SimOptions::new(6, seed).link(Link::of_seed(seed));
        options.random_faults(0, (seed / 2 % 4) as usize, 8000)
    };
    over_seeds(this_test!(), 0..100, plan, move |seed| {
        let acked = Acked::default();
        let first = (seed / 2 % 5) as u32;
        let victims = [0, 1, 2, 3].map(|step| MemberId((first + step) % 5));
        Box::new(move |job| {
            let Some(store) = open(&job, options(3).partitions(4).expected_keys(256)) else {
                return;
            };
            if job.me() == MemberId(5) {
                for key in keys() {
                    let _ = put_newer(&store, &acked, &key);
                }
                for two in [&victims[..2], &victims[2..]] {
                    let until = after(&job, 10 * MINUTE);
                    while !store.repair_status().is_ok_and(|status| status.is_repaired()) {
                        assert!(job.now() < until, "replicas are missing");
                        job.park(job.bell(), after(&job, Duration::from_millis(1)));
                    }
                    if job.view().dead.len() > 2 {
                        // A member gave up while another was stopped.
                        break;
                    }
                    two.iter().for_each(|&victim| drop(job.inject(Fault::Kill(victim))));
                    while two.iter().any(|&victim| job.view().is_living(victim)) {
                        job.park(job.bell(), until);
                    }
                    if job.view().dead.len() <= 4 {
                        assert_eq!(read_all(&store, &acked), Vec::<Vec<u8>>::new());
                    }
                }
            } else {
                let until = after(&job, 30 * MINUTE);
                while job.view().is_living(victims[3]) && job.view().dead.len() <= 2 {
                    assert!(job.now() < until);
                    job.park(job.bell(), until);
                }
            }
            end(&job, &store);
        })
    });
}

/// Leaves, and tries again after a timeout.
fn leave(job: &Job, store: &Store) {
    loop {
        match store.leave(after(job, MINUTE)) {
            Ok(()) | Err(StoreError::Closed) => return,
            Err(StoreError::Timeout { .. }) => {}
            Err(error) => panic!("leave: {error}"),
        }
    }
}

/// The work of a member while others leave.
fn work_while_others_leave(
    job: &Job,
    store: &Store,
    acked: &Acked,
    is_over: impl Fn(&View) -> bool,
) {
    let mut round = job.me().0 as usize;
    let until = after(job, 30 * MINUTE);
    while !is_over(&job.view()) {
        assert!(job.now() < until, "{} have left", job.view().left);
        let key = keys().nth(round % 24).expect("a key");
        round += 5;
        if round > 200 {
            // A member is stopped, and all others wait for it.
            job.park(job.bell(), after(job, Duration::from_millis(round as u64)));
        }
        match put_newer(store, acked, &key) {
            Ok(()) | Err(StoreError::Timeout { .. }) => {}
            Err(error) => panic!("put while others leave: {error}"),
        }
        // New keys as well, which only their writer knows.
        for number in 0..3 {
            let key = format!("new/{}/{round}/{number}", job.me());
            match put_newer(store, acked, key.as_bytes()) {
                Ok(()) | Err(StoreError::Timeout { .. }) => {}
                Err(error) => panic!("put while others leave: {error}"),
            }
        }
        if round.is_multiple_of(4) {
            assert_eq!(read_all(store, acked), Vec::<Vec<u8>>::new());
        }
    }
    assert_eq!(read_all(store, acked), Vec::<Vec<u8>>::new());
    let known: Vec<Vec<u8>> = acked.lock().unwrap().keys().cloned().collect();
    for key in known {
        match store.exists(&key) {
            Ok(exists) => assert!(exists, "{} is gone", String::from_utf8_lossy(&key)),
            Err(StoreError::Timeout { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// With a single replica of each value, members leave, one or two at a time, while the others
/// write. Some are stopped for a while.
#[test]
fn nothing_is_lost_when_members_leave_with_a_single_replica() {
    let plan = |seed: u64| {
        let options = SimOptions::new(3 + (seed / 2 % 3) as usize, seed).link(Link::of_seed(seed));
        options.random_faults(0, (seed / 6 % 3) as usize, 4000)
    };
    over_seeds(this_test!(), 0..200, plan, move |seed| {
        let acked = Acked::default();
        let leavers = 1 + (seed / 4 % 2) as u32;
        let replicas = 1 + (seed / 8 % 2) as usize;
        Box::new(move |job| {
            let Some(store) = open(&job, options(replicas)) else { return };
            for key in keys().filter(|key| u32::from(key[4]) % 3 == job.me().0 % 3) {
                let _ = put_newer(&store, &acked, &key);
            }
            if job.me().0 < leavers {
                let before = acked.lock().unwrap().len();
                leave(&job, &store);
                assert!(before > 0 && matches!(store.put(b"late", b""), Err(StoreError::Closed)));
                return;
            }
            // If a member is stopped while the store is opened, the others give up and leave.
            if !job.view().dead.is_subset(&job.view().left) {
                return;
            }
            work_while_others_leave(&job, &store, &acked, |view| {
                view.left.len() == leavers as usize
            });
            end(&job, &store);
        })
    });
}

/// With two replicas, the leaving member dies at some step, or another member does.
#[test]
fn a_death_while_a_member_leaves_is_survived() {
    let plan = |seed: u64| SimOptions::new(4, seed).link(Link::of_seed(seed));
    over_seeds(this_test!(), 0..300, plan, move |seed| {
        let acked = Acked::default();
        Box::new(move |job| {
            let Some(store) = open(&job, options(2)) else { return };
            for key in keys().filter(|key| u32::from(key[4]) % 4 == job.me().0) {
                put_newer(&store, &acked, &key).expect("put");
            }
            let victim = MemberId((seed / 2 % 2) as u32);
            if job.me() == victim {
                job.inject(Fault::DieAtStep(1 + 5 * seed)).expect("a fault");
            }
            if job.me() == MemberId(0) {
                return leave(&job, &store);
            }
            work_while_others_leave(&job, &store, &acked, |view| {
                !view.is_living(MemberId(0)) && !view.is_living(victim)
            });
            assert!(store.wait_repaired(after(&job, MINUTE)).expect("known").is_repaired());
            end(&job, &store);
        })
    });
}

/// All members leave, in turn or at once: each call ends, and what is left is complete.
#[test]
fn all_members_can_leave() {
    let plan = |seed: u64| SimOptions::new(4, seed).link(Link::of_seed(seed));
    over_seeds(this_test!(), 0..40, plan, move |seed| {
        let acked = Acked::default();
        Box::new(move |job| {
            let Some(store) = open(&job, options(1 + (seed / 4 % 3) as usize)) else { return };
            for key in keys().filter(|key| u32::from(key[4]) % 4 == job.me().0) {
                put_newer(&store, &acked, &key).expect("put");
            }
            if seed / 2 % 2 == 0 {
                let count = job.me().index();
                work_while_others_leave(&job, &store, &acked, |view| view.left.len() >= count);
            }
            store.leave(after(&job, MINUTE)).expect("left");
        })
    });
}

/// The primary is stopped and another replica dies. On shared memory the third replica makes the
/// new replica complete, so that the deaths of the primary and of the third replica are survived.
/// Repair takes only its share of the time.
#[test]
fn another_replica_takes_over_the_repair_of_a_stopped_primary() {
    let plan = |seed: u64| SimOptions::new(5, seed).link(Link::Memory);
    over_seeds(this_test!(), 0..20, plan, move |seed| {
        Box::new(move |job| {
            let options = options(3).partitions(64).repair_share(1 + seed as u32 * 5);
            let Some(store) = open(&job, options) else { return };
            let [stopped, third, dead, new] = [0, 1, 2, 3].map(MemberId);
            let wait_for_deaths = |count: usize| {
                while job.view().dead.len() < count {
                    job.park(job.bell(), after(&job, MINUTE));
                }
            };
            if job.me() == MemberId(4) {
                let mut keys: Vec<String> =
                    (0..300).map(|number| format!("key/{number}")).collect();
                keys.retain(|key| store.replicas_of(key.as_bytes()) == [stopped, third, dead]);
                for key in &keys {
                    store.put(key.as_bytes(), key.as_bytes()).expect("put");
                }
                job.inject(Fault::Stop(stopped)).expect("a fault");
                job.inject(Fault::Kill(dead)).expect("a fault");
                wait_for_deaths(1);
                keys.retain(|key| store.replicas_of(key.as_bytes()) == [stopped, third, new]);
                assert!(!keys.is_empty());
                let until = after(&job, Duration::from_secs(10));
                while job.now() < until {
                    job.park(job.bell(), until);
                }
                job.inject(Fault::Kill(stopped)).expect("a fault");
                job.inject(Fault::Kill(third)).expect("a fault");
                wait_for_deaths(3);
                for key in &keys {
                    let found = store.get(key.as_bytes()).expect("not lost").expect("there");
                    assert_eq!(found.bytes(), key.as_bytes());
                }
            } else {
                wait_for_deaths(3);
            }
            end(&job, &store);
        })
    });
}

/// One of 64 calls through a handle is timed.
#[test]
fn calls_through_handles_are_timed() {
    over_seeds(
        this_test!(),
        0..2,
        |seed| SimOptions::new(2, seed).link(Link::of_seed(seed)),
        |_| {
            Box::new(|job: Job| {
                let Some(store) = open(&job, options(2)) else { return };
                let handle = store.handle(b"key").expect("handle");
                assert!(store.stats().put.is_none() && store.stats().get.is_none());
                for _ in 0..128 {
                    handle.put(b"value").expect("put");
                }
                let timed = store.stats();
                assert_eq!((timed.put.map(|put| put.samples), timed.get), (Some(2), None));
                for _ in 0..64 {
                    handle.get_into(&mut [0; 8]).expect("get");
                }
                assert_eq!(store.stats().get.map(|get| get.samples), Some(1));
                store.close().expect("close");
                let _ = job.leave();
            })
        },
    );
}

/// A conditional put through a handle tests its condition, also when the handle knows the version,
/// and when another member has changed the key since.
#[test]
fn a_conditional_put_through_a_handle_tests_its_condition() {
    over_seeds(
        this_test!(),
        0..4,
        |seed| SimOptions::new(2, seed).link(Link::of_seed(seed)),
        |_| {
            Box::new(|job: Job| {
                let Some(store) = open(&job, options(2)) else { return };
                if job.me() == MemberId(0) {
                    let handle = store.handle(b"key").expect("handle");
                    let put_if = |value: &[u8], expect| handle.put_if(value, expect);
                    assert_eq!(handle.version(), Ok(None));
                    let first = put_if(b"1", Expect::Absent).expect("absent");
                    assert_eq!(handle.version(), Ok(Some(first)));
                    let second = put_if(b"2", Expect::Version(first)).expect("as expected");
                    let conflict = Err(StoreError::Conflict { found: Some(second) });
                    for _ in 0..2 {
                        assert_eq!(put_if(b"3", Expect::Version(first)), conflict);
                        assert_eq!(put_if(b"3", Expect::Absent), conflict);
                    }
                    assert_eq!(handle.version(), Ok(Some(second)));
                    assert_eq!(store.get(b"key").expect("get").expect("there").bytes(), b"2");
                    // A second handle stands for another writer.
                    let other = store.handle(b"key").expect("handle");
                    let third = other.put(b"3").expect("put");
                    let conflict = Err(StoreError::Conflict { found: Some(third) });
                    assert_eq!(put_if(b"4", Expect::Version(second)), conflict);
                    assert_eq!(handle.version(), Ok(Some(third)));
                    assert!(other.delete().expect("delete"));
                    let conflict = Err(StoreError::Conflict { found: None });
                    assert_eq!(put_if(b"4", Expect::Version(third)), conflict);
                    assert_eq!((handle.version(), other.version()), (Ok(None), Ok(None)));
                }
                store.close().expect("close");
                let _ = job.leave();
            })
        },
    );
}

/// Members add to a number through handles and by key, and no addition is lost. A value that is not
/// a number is reported.
#[test]
fn additions_through_handles_are_not_lost() {
    over_seeds(
        this_test!(),
        0..8,
        |seed| SimOptions::new(3, seed).link(Link::of_seed(seed)),
        |_| {
            Box::new(|job: Job| {
                let Some(store) = open(&job, options(2)) else { return };
                let sum = store.handle(b"sum").expect("handle");
                for delta in 0..20 {
                    sum.add(delta).expect("add");
                    store.add(b"sum", 1).expect("add");
                }
                store.add(b"done", 1).expect("add");
                while store.add(b"done", 0).expect("add") < 3 {
                    job.park(job.bell(), after(&job, Duration::from_millis(1)));
                }
                assert_eq!(sum.add(0), Ok(3 * (190 + 20)));
                let text = store.handle(format!("text/{}", job.me().0).as_bytes()).expect("handle");
                text.put(b"not a number").expect("put");
                for _ in 0..2 {
                    assert!(matches!(text.add(1), Err(StoreError::WrongType { .. })));
                }
                assert_eq!(text.get().expect("get").expect("there").bytes(), b"not a number");
                store.close().expect("close");
                let _ = job.leave();
            })
        },
    );
}

/// The parts of a value are put together wherever they begin and end.
#[test]
fn the_parts_of_a_value_are_put_together() {
    over_seeds(
        this_test!(),
        0..2,
        |seed| SimOptions::new(2, seed).link(Link::of_seed(seed)),
        |seed| {
            Box::new(move |job: Job| {
                let options = options(2).checksums(seed % 2 == 1);
                let Some(store) = open(&job, options) else { return };
                let bytes: Vec<u8> = (0..100).collect();
                let handle =
                    store.handle(format!("key/{}", job.me().0).as_bytes()).expect("handle");
                for (first, second, third) in [
                    (0, 0, 0),
                    (1, 0, 2),
                    (3, 4, 1),
                    (3, 5, 8),
                    (7, 20, 3),
                    (16, 8, 32),
                    (0, 9, 64),
                ] {
                    let parts = [
                        &bytes[..first],
                        &bytes[first..first + second],
                        &[],
                        &bytes[first + second..first + second + third],
                    ];
                    for _ in 0..2 {
                        let version = handle.put_parts(&parts).expect("put");
                        let found = handle.get().expect("get").expect("there");
                        assert_eq!(found.bytes(), &bytes[..first + second + third]);
                        assert_eq!(found.version(), version);
                    }
                    store.put_parts(handle.key(), &parts).expect("put");
                    let found = store.get(handle.key()).expect("get").expect("there");
                    assert_eq!(found.bytes(), &bytes[..first + second + third]);
                }
                store.close().expect("close");
                let _ = job.leave();
            })
        },
    );
}

/// A conditional put and an addition through a handle make as many accesses as a put through a
/// handle, where all members map the memory. So does a read of the version that the handle wrote.
/// The second put by key reads the primary's node and sets the stable bit in addition.
#[test]
fn conditional_calls_through_a_handle_take_the_fast_path() {
    type Call = fn(&Store, &outlast::store::KeyHandle, Version) -> Version;
    let accesses = |call: Call| {
        let run = move |calls: u64| {
            let report = sim::run(&SimOptions::new(3, 1), move |job: Job| {
                let store = Store::open(&job, options(3)).expect("open");
                if job.me() == MemberId(0) {
                    let handle = store.handle(b"key").expect("handle");
                    let mut version = handle.put(&[0; 8]).expect("put");
                    for _ in 0..calls {
                        version = call(&store, &handle, version);
                    }
                }
                store.close().expect("close");
                let _ = job.leave();
            });
            report.expect_ok().counters[0].operations as f64
        };
        (run(1100) - run(100)) / 1000.0
    };
    let put = accesses(|_, handle, _| handle.put(&[1; 8]).expect("put"));
    let put_if =
        accesses(|_, handle, last| handle.put_if(&[1; 8], Expect::Version(last)).expect("put"));
    let parts = accesses(|_, handle, _| handle.put_parts(&[&[1; 3], &[2; 5]]).expect("put"));
    let add = accesses(|_, handle, last| {
        handle.add(1).expect("add");
        last
    });
    let own_version = accesses(|_, handle, _| {
        let version = handle.put(&[1; 8]).expect("put");
        assert_eq!(handle.version(), Ok(Some(version)));
        version
    });
    let by_key = accesses(|store, _, _| store.put(b"key", &[1; 8]).expect("put"));
    let add_by_key = accesses(|store, _, last| {
        store.add(b"key", 1).expect("add");
        last
    });
    println!(
        "accesses: {put} put, {put_if} put_if, {parts} parts, {add} add, {by_key} put by key, \
         {add_by_key} add by key"
    );
    assert!((put_if - put).abs() < 0.5, "{put_if} for a conditional put, {put} for a put");
    assert!((parts - put).abs() < 3.5, "{parts} for a put of parts, {put} for a put");
    assert!((add - put - 1.0).abs() < 0.5, "{add} for an addition, {put} for a put");
    assert!(own_version < put + 12.0, "{own_version} for a put and its version, {put} for a put");
    // A word of the node is a load.
    assert!((by_key - put - 9.0).abs() < 0.5, "{by_key} for a put by key, {put} for a put");
    assert!((add_by_key - add - 9.0).abs() < 0.5, "{add_by_key} by key, {add} by handle");
}

/// A member owns keys and is killed. Its heir dies at some step of its adoption: the loop of each
/// survivor adopts every key of both.
#[test]
fn the_keys_of_the_dead_are_adopted_though_the_heir_dies_in_the_middle() {
    let plan = |seed: u64| SimOptions::new(5, seed).link(Link::of_seed(seed));
    over_seeds(this_test!(), 0..120, plan, |seed| {
        Box::new(move |job| {
            let Some(store) = open(&job, options(3)) else { return };
            let victim = MemberId((seed % 5) as u32);
            let mut seen = store.epoch();
            if job.me() == victim {
                for number in 0..8 {
                    store.put(format!("key/{number}").as_bytes(), b"value").expect("put");
                }
                job.inject(Fault::Kill(victim)).expect("a fault");
            }
            let until = after(&job, MINUTE);
            let mut is_first_heir = false;
            let has_owner = |store: &Store| {
                let dead = job.view().dead;
                dead.iter().all(|dead| store.keys_of(dead).expect("listed").is_empty())
            };
            while job.epoch().0 < 2 || !has_owner(&store) {
                assert!(job.now() < until, "a key of a dead member has no living owner");
                let mut deaths = store.deaths_since(&mut seen);
                deaths.retain(|death| death.heir() == job.me());
                for death in deaths {
                    is_first_heir |= death.member == victim && job.epoch().0 == 1;
                    if is_first_heir {
                        job.inject(Fault::DieAtStep(1 + seed * 3)).expect("a fault");
                    }
                    for key in store.keys_of(death.member).expect("listed") {
                        store.adopt(&key).expect("adopted");
                    }
                }
                if is_first_heir {
                    // It dies at the latest when it has adopted all keys.
                    job.inject(Fault::Kill(job.me())).expect("a fault");
                }
                job.sleep(Duration::from_micros(500));
            }
            end(&job, &store);
        })
    });
}

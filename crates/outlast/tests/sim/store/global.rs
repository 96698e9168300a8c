//! Global mode under the simulator: what each member is told after a death, what a recovery does at
//! all members together, and what it leaves when members die or are stopped at any step. `outlast
//! sim --mode global` runs random programs in this mode.

use super::{end, small_options};
use crate::simulation::{nap, run_with, seeds};
use outlast::engine::Fault;
use outlast::sim::{self, Link, Options as SimOptions};
use outlast::store::{
    Death, Mode, Options, Store, StoreError, StoreResult, Transaction, WaitOutcome,
};
use outlast::{Job, MemberId};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn options(seed: u64, members: usize) -> SimOptions {
    let link = Link::of_seed(seed);
    let mut options = SimOptions::new(members, seed).link(link);
    options.time_limit = Duration::from_secs(5);
    options
}

fn run(seed: u64, members: usize, body: impl Fn(Job) + 'static) {
    run_with(options(seed, members), body);
}

fn open(job: &Job, replicas: usize) -> Store {
    let options = small_options(replicas).expected_keys(64);
    Store::open(job, options.mode(Mode::Global)).expect("open")
}

fn number(store: &Store, key: &str) -> i64 {
    let value = store.get(key.as_bytes()).expect("read");
    value.map_or(0, |value| i64::from_le_bytes(value.bytes().try_into().expect("8 bytes")))
}

/// Waits until `members` members have come here. The first member to know may be the first to go on
/// to a death, so that this call may find the store revoked.
fn meet(job: &Job, store: &Store, name: &str, members: i64) {
    match store.add(name.as_bytes(), 1) {
        Ok(_) | Err(StoreError::Revoked) => {}
        Err(error) => panic!("{error}"),
    }
    nap(job, name, || match store.get(name.as_bytes()) {
        Ok(value) => value.is_some_and(|value| i64::from(value.bytes()[0]) >= members),
        Err(StoreError::Revoked) => true,
        Err(error) => panic!("{error}"),
    });
}

fn nothing(_: &mut Transaction, _: &[Death]) -> StoreResult<()> {
    Ok(())
}

/// The procedure of each member in most of these tests. It counts the recoveries in a key of its
/// own, after a check that the counts of all living members are equal. The heir counts the death,
/// and must be the first to do so.
fn count(job: &Job, tx: &mut Transaction, deaths: &[Death]) -> StoreResult<()> {
    let number = |bytes: Option<Vec<u8>>| {
        bytes.map_or(0, |bytes| i64::from_le_bytes(bytes.try_into().expect("8 bytes")))
    };
    let gone: Vec<MemberId> = job.view().dead.iter().collect();
    let mut counts = Vec::new();
    for member in (0..job.members() as u32).map(MemberId).filter(|member| !gone.contains(member)) {
        counts.push(number(tx.get(format!("recoveries/{}", member.0).as_bytes())?));
    }
    assert!(counts.iter().all(|count| *count == counts[0]), "not all or nothing: {counts:?}");
    tx.add(format!("recoveries/{}", job.me().0).as_bytes(), 1)?;
    for death in deaths.iter().filter(|death| death.heir() == job.me()) {
        let count = tx.add(format!("adopted/{}", death.member.0).as_bytes(), 1)?;
        assert_eq!(count, 1, "{} is recovered from twice", death.member);
    }
    Ok(())
}

/// Recovers, again and again, until the store has recovered from `deaths` deaths.
fn survive(job: &Job, store: &Store, deaths: usize) {
    let deadline = job.now().after(Duration::from_secs(300));
    loop {
        assert!(job.now() < deadline, "{} did not recover in time", job.me());
        if store.is_revoked() {
            match store.recover(|tx, deaths| count(job, tx, deaths)) {
                Ok(()) | Err(StoreError::Timeout { .. }) => {}
                // A stopped member did not answer another member in time.
                Err(StoreError::RecoveryFailed { reason }) if !reason.contains("procedure of") => {}
                Err(error) => panic!("{}: {error}", job.me()),
            }
        } else if job.view().dead.len() >= deaths && !store.is_revoked() {
            return;
        } else {
            job.sleep(Duration::from_millis(1));
        }
    }
}

/// All members find that each recovery has happened completely, and that each death was recovered
/// from once.
fn check_counts(job: &Job, store: &Store) {
    let view = job.view();
    let counts: Vec<i64> =
        view.living().map(|member| number(store, &format!("recoveries/{}", member.0))).collect();
    assert!(counts[0] > 0 && counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    for dead in view.dead.iter() {
        assert_eq!(number(store, &format!("adopted/{}", dead.0)), 1, "{dead}");
    }
}

#[test]
fn after_a_death_every_call_is_revoked_until_all_have_recovered() {
    for seed in seeds(20) {
        run(seed, 4, |job| {
            let store = open(&job, 3);
            let handle = store.handle(b"by handle").expect("handle");
            handle.put(b"before").expect("put");
            store.put(format!("own/{}", job.me().0).as_bytes(), b"before").expect("put");
            let mut tx = store.begin();
            tx.get(b"ready").expect("read");
            meet(&job, &store, "ready", 4);
            if job.me() == MemberId(3) {
                job.inject(Fault::Kill(job.me())).expect("killed");
            }
            nap(&job, "the death", || !job.view().is_living(MemberId(3)));
            let revoked = |result: StoreResult<()>| assert_eq!(result, Err(StoreError::Revoked));
            let deadline = job.now().after(Duration::from_secs(1));
            revoked(handle.put(b"after").map(drop));
            revoked(handle.get_into(&mut [0; 9]).map(drop));
            revoked(handle.get().map(drop));
            revoked(store.put(b"k", b"v").map(drop));
            revoked(store.get(b"k").map(drop));
            revoked(store.get_into(b"k", &mut []).map(drop));
            revoked(store.exists(b"k").map(drop));
            revoked(store.delete(b"k").map(drop));
            revoked(store.add(b"k", 1).map(drop));
            revoked(store.adopt(b"k").map(drop));
            revoked(store.keys().map(drop));
            revoked(store.pin(b"ready").map(drop));
            revoked(store.wait(b"k", None, deadline).map(drop));
            revoked(store.lock(b"l", deadline).map(drop));
            revoked(store.transaction(|tx| tx.put(b"k", b"v")));
            revoked(store.transaction(|tx| tx.get(b"k")).map(drop));
            tx.put(b"k", b"v").expect("kept to itself");
            revoked(tx.commit());
            assert!(store.is_revoked());
            let mut recovered = Vec::new();
            store
                .recover(|tx, deaths| {
                    recovered = deaths.to_vec();
                    for death in deaths.iter().filter(|death| death.heir() == job.me()) {
                        for key in store.keys_of(death.member)? {
                            assert!(tx.adopt(&key)?);
                        }
                    }
                    Ok::<(), StoreError>(())
                })
                .expect("recovered");
            assert_eq!(
                recovered.iter().map(|death| death.member).collect::<Vec<_>>(),
                [MemberId(3)]
            );
            // Normal again: the store is repaired, and the keys of the dead member belong to its
            // heir.
            assert!(!store.is_revoked());
            assert_eq!(store.repair_status().expect("known").replicas_missing, 0);
            let value = store.get(b"own/3").expect("read").expect("there");
            assert_eq!((value.bytes(), value.owner()), (&b"before"[..], recovered[0].heir()));
            handle.put(b"after").expect("put");
            assert!(
                store.get(b"k").expect("read").is_none(),
                "nothing of the calls that were refused"
            );
            meet(&job, &store, "done", 3);
            end(&job, &store);
        });
    }
}

#[test]
fn waiting_and_computing_members_learn_of_a_death() {
    for seed in seeds(20) {
        run(seed, 4, |job| {
            let store = open(&job, 2);
            meet(&job, &store, "ready", 4);
            let deadline = job.now().after(Duration::from_secs(60));
            let began = job.now();
            match job.me().0 {
                0 => {
                    job.sleep(Duration::from_millis(20));
                    store.revoke().expect("revoked");
                }
                1 => {
                    let waited = store.wait(b"never", None, deadline);
                    assert_eq!(waited, Err(StoreError::Revoked));
                }
                2 => {
                    let waited = store.wait_or_death(b"never", None, deadline, MemberId(0));
                    assert!(matches!(waited, Err(StoreError::Revoked)), "{waited:?}");
                    assert_ne!(waited, Ok(WaitOutcome::TimedOut));
                }
                _ => {
                    // It computes, and learns of the death without a call.
                    nap(&job, "the news", || store.is_revoked());
                    assert_eq!(store.put(b"k", b"v"), Err(StoreError::Revoked));
                }
            }
            assert!(job.now().since(began) < Duration::from_secs(5));
            let deaths =
                store.recover(|_, deaths| Ok::<_, StoreError>(deaths.to_vec())).expect("recovered");
            assert!(deaths.is_empty(), "no member died");
            meet(&job, &store, "done", 4);
            end(&job, &store);
        });
    }
}

/// The central property: a member is dead, and another member dies at some step of the recovery.
/// The recovery has happened at all survivors or at none, and each death is recovered from once.
#[test]
fn a_death_at_any_step_of_a_recovery_leaves_all_of_it_or_nothing() {
    for seed in seeds(400) {
        let attempts = Arc::new(AtomicU64::new(0));
        let run_attempts = attempts.clone();
        run(seed, 5, move |job| {
            let store = open(&job, 3);
            meet(&job, &store, "ready", 5);
            if job.me() == MemberId(4) {
                job.inject(Fault::Kill(job.me())).expect("killed");
            }
            nap(&job, "the first death", || store.is_revoked());
            if job.me() == MemberId(1) {
                job.inject(Fault::DieAtStep(1 + seed * 3 % 900)).expect("planned");
            }
            let is_doomed = job.me() == MemberId(1);
            run_attempts.fetch_add(1, Ordering::Relaxed);
            survive(&job, &store, if is_doomed { usize::MAX } else { 2 });
            check_counts(&job, &store);
            meet(&job, &store, "done", 3);
            end(&job, &store);
        });
        assert!(attempts.load(Ordering::Relaxed) >= 4);
    }
}

/// A member is stopped at some step of the recovery, and goes on after the time limit of the
/// others.
#[test]
fn a_member_stopped_at_any_step_of_a_recovery_does_no_harm() {
    for seed in seeds(200) {
        let mut options = options(seed, 4);
        options.time_limit = Duration::from_millis(500);
        run_with(options, move |job| {
            let store = open(&job, 2);
            meet(&job, &store, "ready", 4);
            if job.me() == MemberId(3) {
                job.inject(Fault::Kill(job.me())).expect("killed");
            }
            nap(&job, "the death", || store.is_revoked());
            if job.me() == MemberId(1) {
                job.inject(Fault::StopAtStep(1 + seed * 5 % 900)).expect("planned");
            }
            if job.me() == MemberId(0) {
                let own = job.clone();
                let body = move || {
                    // This member does not know when the other stops.
                    for _ in 0..20 {
                        own.sleep(Duration::from_millis(if seed % 3 == 0 { 1200 } else { 100 }));
                        let _ = own.inject(Fault::Resume(MemberId(1)));
                    }
                };
                job.spawn("resume", Box::new(body)).expect("spawned");
            }
            survive(&job, &store, 1);
            // A member that recovered with the late members may be asked to recover again.
            for _ in 0.. {
                job.sleep(Duration::from_millis(50));
                if !store.is_revoked() && store.add(b"done", 1).is_ok() {
                    break;
                }
                survive(&job, &store, 1);
            }
            loop {
                match store.get(b"done") {
                    Ok(Some(value)) if value.bytes()[0] >= 3 => break,
                    Ok(_) | Err(StoreError::Timeout { .. }) => job.sleep(Duration::from_millis(1)),
                    Err(StoreError::Revoked) => survive(&job, &store, 1),
                    Err(error) => panic!("{error}"),
                }
            }
            check_counts(&job, &store);
            end(&job, &store);
        });
    }
}

#[test]
fn two_procedures_that_change_a_common_key_are_an_error_at_all_members() {
    for seed in seeds(20) {
        run(seed, 4, |job| {
            let store = open(&job, 2);
            store.put(b"shared", b"before").expect("put");
            meet(&job, &store, "ready", 4);
            store.revoke().expect("revoked");
            let result = store.recover(|tx, _| {
                tx.put(format!("own/{}", job.me().0).as_bytes(), b"mine")?;
                if job.me().0 < 2 {
                    tx.put(b"shared", b"after")?;
                }
                Ok::<(), StoreError>(())
            });
            let Err(StoreError::RecoveryFailed { reason }) = result else { panic!("{result:?}") };
            assert!(reason.contains("both change the key \"shared\""), "{reason}");
            assert!(reason.contains("member 0") && reason.contains("member 1"), "{reason}");
            assert_eq!(
                store.get(b"shared"),
                Err(StoreError::Revoked),
                "still to be recovered from"
            );
            store.recover(nothing).expect("recovered");
            assert_eq!(store.get(b"shared").expect("read").expect("there").bytes(), b"before");
            assert!(store.scan(b"own/").expect("listed").is_empty());
            meet(&job, &store, "looked", 4);
            store
                .put(format!("own/{}", job.me().0).as_bytes(), b"free")
                .expect("nothing is locked");
            meet(&job, &store, "done", 4);
            end(&job, &store);
        });
    }
}

#[test]
fn a_procedure_that_fails_or_panics_ends_the_recovery_at_all_members() {
    for seed in seeds(20) {
        run(seed, 4, move |job| {
            let store = open(&job, 2);
            meet(&job, &store, "ready", 4);
            store.revoke().expect("revoked");
            let is_bad = job.me() == MemberId(seed as u32 % 4);
            let result = std::panic::catch_unwind(AssertUnwindSafe(|| {
                store.recover(|tx, _| {
                    tx.put(format!("own/{}", job.me().0).as_bytes(), b"mine")?;
                    assert!(!is_bad || seed % 2 == 0, "this procedure panics");
                    if is_bad {
                        return Err(StoreError::WrongType { what: "this procedure fails".into() });
                    }
                    Ok(())
                })
            }));
            match result {
                Err(_) => assert!(is_bad && seed % 2 == 1),
                Ok(Err(StoreError::WrongType { .. })) => assert!(is_bad && seed % 2 == 0),
                Ok(Err(StoreError::RecoveryFailed { reason })) => {
                    let how = if seed % 2 == 0 { "returned an error" } else { "panicked" };
                    assert!(!is_bad && reason.contains(how), "{reason}");
                    assert!(reason.contains(&format!("member {}", seed % 4)), "{reason}");
                }
                Ok(other) => panic!("{other:?}"),
            }
            store.recover(nothing).expect("recovered");
            assert!(store.scan(b"own/").expect("listed").is_empty());
            meet(&job, &store, "done", 4);
            end(&job, &store);
        });
    }
}

#[test]
fn begin_and_end_recover_like_the_closure() {
    for seed in seeds(40) {
        run(seed, 4, move |job| {
            let store = open(&job, 3);
            meet(&job, &store, "ready", 4);
            if job.me() == MemberId(2) {
                job.inject(Fault::Kill(job.me())).expect("killed");
            }
            nap(&job, "the death", || store.is_revoked());
            if job.me() == MemberId(1) {
                // A member that gives up its first attempt delays the others only until it begins
                // again.
                drop(store.recover_begin().expect("begun"));
            }
            loop {
                let mut recovery = store.recover_begin().expect("begun");
                let deaths = recovery.deaths().to_vec();
                assert_eq!(deaths.len(), 1);
                count(&job, recovery.tx(), &deaths).expect("done");
                match recovery.end() {
                    Ok(()) => break,
                    Err(StoreError::Revoked) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            check_counts(&job, &store);
            meet(&job, &store, "done", 3);
            end(&job, &store);
        });
    }
}

#[test]
fn invalid_calls_are_refused_and_change_nothing() {
    run(7, 2, |job| {
        let options = Options::new().replicas(2).partitions(8).expected_keys(64);
        let store = Store::open(&job, options).expect("open");
        let Err(StoreError::Invalid { reason }) = store.recover(nothing) else {
            panic!("localized")
        };
        assert!(reason.contains("Mode::Global"), "{reason}");
        assert!(matches!(store.revoke(), Err(StoreError::Invalid { .. })));
        assert!(matches!(store.recover_begin(), Err(StoreError::Invalid { .. })));
        assert!(!store.is_revoked());
        store.put(b"k", b"v").expect("put");
        end(&job, &store);
    });
    run(8, 2, |job| {
        let store = open(&job, 2);
        meet(&job, &store, "ready", 2);
        let nested: StoreResult<()> = store.transaction(|_| store.recover(nothing));
        assert_eq!(nested, Err(StoreError::Nested));
        let mut before = store.begin();
        before.get(b"ready").expect("read");
        meet(&job, &store, "nested", 2);
        store.revoke().expect("revoked");
        let tried: Arc<Mutex<Vec<StoreResult<()>>>> = Arc::default();
        let result = store.recover(|tx, _| {
            let mut tried = tried.lock().expect("alone");
            tried.push(tx.commit());
            tried.push(tx.retry());
            tried.push(store.put(b"k", b"v").map(drop));
            tried.push(store.recover_begin().map(drop));
            tx.put(b"own", b"")?;
            if job.me() == MemberId(0) { tx.put(b"k", b"v") } else { tx.delete(b"own").map(drop) }
        });
        let tried = tried.lock().expect("alone").clone();
        assert!(matches!(tried[0], Err(StoreError::Invalid { .. })), "{tried:?}");
        assert!(matches!(tried[1], Err(StoreError::Invalid { .. })), "{tried:?}");
        assert_eq!(tried[2], Err(StoreError::Revoked));
        assert!(matches!(tried[3], Err(StoreError::Invalid { .. })), "a single recovery at a time");
        assert!(
            matches!(result, Err(StoreError::RecoveryFailed { .. })),
            "both change own: {result:?}"
        );
        store
            .recover(|tx, _| if job.me() == MemberId(0) { tx.put(b"k", b"v") } else { Ok(()) })
            .expect("recovered");
        assert_eq!(before.get(b"k"), Err(StoreError::Revoked), "begun before the recovery");
        before.retry().expect("begun again");
        assert_eq!(before.get(b"k").expect("read").as_deref(), Some(&b"v"[..]));
        before.commit().expect("committed");
        meet(&job, &store, "done", 2);
        store.close().expect("closed");
        assert_eq!(store.recover(nothing), Err(StoreError::Closed));
        assert_eq!(store.revoke(), Err(StoreError::Closed));
        job.leave().expect("left");
    });
    // Members that disagree about the mode are told when they open the store.
    run(9, 2, |job| {
        let mode = if job.me() == MemberId(0) { Mode::Global } else { Mode::Localized };
        let options = Options::new().replicas(2).partitions(8).expected_keys(64).mode(mode);
        let opened = Store::open(&job, options).map(drop);
        let Err(StoreError::Invalid { reason }) = opened else { panic!("{opened:?}") };
        assert!(reason.contains("mode"), "{reason}");
        job.sleep(Duration::from_millis(100));
        job.leave().expect("left");
    });
}

#[test]
fn a_member_that_leaves_does_not_revoke_the_store() {
    for seed in seeds(10) {
        run(seed, 4, |job| {
            let store = open(&job, 2);
            meet(&job, &store, "ready", 4);
            if job.me() == MemberId(2) {
                store.leave(job.now().after(Duration::from_secs(60))).expect("left");
                return;
            }
            nap(&job, "the leaving member", || !job.view().is_living(MemberId(2)));
            store.put(format!("own/{}", job.me().0).as_bytes(), b"").expect("put");
            meet(&job, &store, "gone", 3);
            store.revoke().expect("revoked");
            let deaths =
                store.recover(|_, deaths| Ok::<_, StoreError>(deaths.to_vec())).expect("recovered");
            assert_eq!(deaths.len(), 1);
            assert!(deaths[0].left && deaths[0].member == MemberId(2));
            meet(&job, &store, "done", 3);
            end(&job, &store);
        });
    }
}

#[test]
fn calls_in_flight_end_before_the_procedures_run() {
    for seed in seeds(60) {
        let in_procedure = Arc::new(AtomicU64::new(0));
        let late = Arc::new(AtomicU64::new(0));
        run(seed, 3, move |job| {
            let store = open(&job, 2);
            meet(&job, &store, "ready", 3);
            let (own, own_store) = (job.clone(), store.clone());
            let (now_in_procedure, is_late) = (in_procedure.clone(), late.clone());
            let body = move || {
                for round in 0u64.. {
                    let key = format!("own/{}", own.me().0);
                    match own_store.put(key.as_bytes(), &round.to_le_bytes()) {
                        Ok(_) => {
                            is_late.fetch_add(
                                now_in_procedure.load(Ordering::SeqCst),
                                Ordering::SeqCst,
                            );
                        }
                        Err(StoreError::Revoked) => return,
                        Err(error) => panic!("{error}"),
                    }
                }
            };
            job.spawn("writer", Box::new(body)).expect("spawned");
            job.sleep(Duration::from_millis(1 + seed % 5));
            store.revoke().expect("revoked");
            let read = |tx: &mut Transaction| {
                (0..3)
                    .map(|member| tx.get(format!("own/{member}").as_bytes()))
                    .collect::<StoreResult<Vec<_>>>()
            };
            let found = store
                .recover(|tx, _| {
                    in_procedure.fetch_add(1, Ordering::SeqCst);
                    let found = read(tx)?;
                    job.sleep(Duration::from_millis(5));
                    in_procedure.fetch_sub(1, Ordering::SeqCst);
                    Ok::<_, StoreError>(found)
                })
                .expect("recovered");
            assert_eq!(late.load(Ordering::SeqCst), 0, "a put ended while a procedure ran");
            assert_eq!(
                store.transaction(read).expect("read"),
                found,
                "no member wrote after the procedures"
            );
            meet(&job, &store, "done", 3);
            end(&job, &store);
        });
    }
}

/// An option promises that no other member writes a key between two recoveries. The only writer
/// sees what a recovery did to its key.
#[test]
fn a_sole_writer_sees_the_changes_of_a_recovery() {
    let options = || {
        let options =
            Options::new().replicas(2).partitions(8).expected_keys(64).slab_len_max(16 << 10);
        options.sole_writers(true)
    };
    run(1, 2, move |job| {
        let Err(StoreError::Invalid { reason }) = Store::open(&job, options()) else {
            panic!("localized")
        };
        assert!(reason.contains("Mode::Global"), "{reason}");
        job.leave().expect("left");
    });
    for seed in seeds(40) {
        run(seed, 4, move |job| {
            let store = Store::open(&job, options().mode(Mode::Global)).expect("open");
            let key = format!("own/{}", job.me().0);
            let handle = store.handle(key.as_bytes()).expect("handle");
            let mut last = None;
            let mut put = |round: u64| {
                let version = handle.put(&round.to_le_bytes()).expect("put");
                assert!(last < Some(version), "{last:?} and then {version}");
                last = Some(version);
            };
            for recovery in 0..4 {
                (0..8).for_each(&mut put);
                meet(&job, &store, &format!("ready {recovery}"), 4);
                store.revoke().expect("revoked");
                // Each member changes the key of the next member, more often than there are blocks
                // at hand.
                let other = format!("own/{}", (job.me().0 + 1) % 4);
                for _ in 0..=seed % 3 {
                    store
                        .recover(|tx, _| tx.put(other.as_bytes(), &[recovery as u8; 8]))
                        .expect("recovered");
                }
                let mut value = [0; 8];
                assert_eq!(handle.get_into(&mut value).expect("read").expect("there").0, 8);
                assert_eq!(value, [recovery as u8; 8]);
                meet(&job, &store, &format!("read {recovery}"), 4);
            }
            put(99);
            meet(&job, &store, "done", 4);
            end(&job, &store);
        });
    }
}

/// Breaking that promise is reported in builds with debug assertions.
#[test]
fn a_second_writer_of_a_key_with_a_sole_writer_is_reported() {
    if !cfg!(debug_assertions) {
        return;
    }
    let is_noticed = |seed: u64| {
        let report = sim::run(&SimOptions::new(3, seed).link(Link::Memory), |job| {
            let options =
                Options::new().replicas(2).partitions(8).expected_keys(64).slab_len_max(16 << 10);
            let store =
                Store::open(&job, options.mode(Mode::Global).sole_writers(true)).expect("open");
            let handle = store.handle(b"key").expect("handle");
            for round in 0..50u64 {
                match handle.put(&round.to_le_bytes()) {
                    Ok(_) | Err(StoreError::Revoked) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        report.panics.iter().any(|panic| panic.message.contains("with a sole writer"))
    };
    assert!((0..20).any(is_noticed));
}

/// A committer is stopped at each step of a transaction, and another member aborts its intent when
/// it meets one of the keys. The program writes each key through a single handle, so this breaks no
/// promise of a sole writer.
#[test]
fn an_intent_that_another_member_aborts_has_no_sole_writer() {
    for step in 1..300 {
        let stage = Arc::new(AtomicU64::new(0));
        let options = SimOptions::new(3, step).link(Link::Memory);
        run_with(options, move |job| {
            let options = small_options(2).mode(Mode::Global).sole_writers(true);
            let store = Store::open(&job, options).expect("open");
            let commit = |round: u64| {
                let changed: StoreResult<()> = store.transaction(|tx| {
                    tx.get(b"read")?;
                    tx.put(b"one", &round.to_le_bytes())?;
                    tx.put(b"two", &round.to_le_bytes())
                });
                changed.expect("committed");
            };
            let is_at = |number| stage.load(Ordering::SeqCst) >= number;
            let (committer, reader) = (MemberId(0), MemberId(1));
            if job.me() == committer {
                store.put(b"read", b"value").expect("put");
                (0..4).for_each(commit);
                job.inject(Fault::StopAtStep(step)).expect("planned");
                stage.store(1, Ordering::SeqCst);
                commit(4);
                commit(5);
                stage.store(2, Ordering::SeqCst);
            } else if job.me() == reader {
                nap(&job, "the transactions", || is_at(1));
                job.sleep(Duration::from_millis(1));
                // Aborts a transaction that is being validated.
                assert!(["one", "two"].into_iter().all(|key| number(&store, key) >= 3));
                job.inject(Fault::Resume(committer)).expect("a fault");
            }
            nap(&job, "the end", || is_at(2));
            assert!(["one", "two"].into_iter().all(|key| number(&store, key) == 5));
            end(&job, &store);
        });
    }
}

/// More members die than there are replicas, at any step of a recovery and while transactions are
/// decided. Anything may be lost, including intents and the recovery decision: all survivors
/// recover, at the latest when they have accepted the loss.
#[test]
fn all_survivors_recover_from_any_loss_once_it_is_accepted() {
    for seed in seeds(300) {
        let mut options = options(seed, 6);
        options.time_limit = Duration::from_secs(2);
        let [ready, counted, free] = [0; 3].map(|_| Arc::new(AtomicU64::new(0)));
        run_with(options, move |job| {
            let store = open(&job, 1 + seed as usize / 2 % 2);
            ready.fetch_add(1, Ordering::SeqCst);
            nap(&job, "all", || ready.load(Ordering::SeqCst) == 6);
            let (own, me) = (store.clone(), job.me().0);
            let writer = move || {
                for round in 0..50u64 {
                    let changed: StoreResult<()> = own.transaction(|tx| {
                        tx.put(format!("a/{me}").as_bytes(), &round.to_le_bytes())?;
                        tx.put(format!("b/{me}").as_bytes(), &round.to_le_bytes())
                    });
                    match changed {
                        Ok(()) | Err(StoreError::DataLost { .. }) => {}
                        Err(_) => return,
                    }
                }
            };
            job.spawn("writer", Box::new(writer)).expect("spawned");
            match job.me().0 {
                5 => job.inject(Fault::DieAtStep(1 + seed % 50)).expect("planned"),
                4 => job.inject(Fault::DieAtStep(100 + seed * 7 % 900)).expect("planned"),
                3 => job.inject(Fault::DieAtStep(100 + seed * 11 % 1100)).expect("planned"),
                2 if seed % 3 == 0 => {
                    job.inject(Fault::StopAtStep(100 + seed * 13 % 700)).expect("planned")
                }
                _ => {}
            }
            if job.me() == MemberId(0) {
                let own = job.clone();
                let body = move || {
                    for _ in 0..100 {
                        own.sleep(Duration::from_millis(200));
                        let _ = own.inject(Fault::Resume(MemberId(2)));
                    }
                };
                job.spawn("resume", Box::new(body)).expect("spawned");
            }
            let deadline = job.now().after(Duration::from_secs(60));
            let mut last = None;
            loop {
                assert!(job.now() < deadline, "{} did not recover in time: {last:?}", job.me());
                if store.is_revoked() {
                    let key = format!("recoveries/{}", job.me().0);
                    let recovered = store.recover(|tx, _| {
                        tx.put(format!("copy/{}", job.me().0).as_bytes(), b"")?;
                        tx.add(key.as_bytes(), 1).map(drop)
                    });
                    if let Err(StoreError::DataLost { .. }) = recovered {
                        match store.accept_loss() {
                            Ok(_) | Err(StoreError::Timeout { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    last = Some(recovered);
                } else if job.view().dead.len() >= 3 && !store.is_revoked() {
                    break;
                } else {
                    job.sleep(Duration::from_millis(1));
                }
            }
            // No member goes on while others may need it for a recovery.
            let meet = |come: &AtomicU64| {
                come.fetch_add(1, Ordering::SeqCst);
                nap(&job, "the other survivors", || {
                    if store.is_revoked() {
                        let _ = store.recover(nothing);
                    }
                    come.load(Ordering::SeqCst) == 3
                });
            };
            loop {
                assert!(job.now() < deadline, "{} did not come to an end: {last:?}", job.me());
                match store.accept_loss().and_then(|_| store.add(b"done", 1)) {
                    Ok(_) => break,
                    Err(_) => last = Some(store.recover(nothing)),
                }
            }
            meet(&counted);
            let own = format!("a/{}", job.me().0);
            loop {
                assert!(job.now() < deadline, "{} cannot write: {last:?}", job.me());
                match store.put(own.as_bytes(), b"free") {
                    Ok(_) => break,
                    Err(StoreError::Revoked) => last = Some(store.recover(nothing)),
                    Err(error) => last = Some(Err(error)),
                }
            }
            meet(&free);
            let _ = store.close();
            job.leave().expect("left");
        });
    }
}

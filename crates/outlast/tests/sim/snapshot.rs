//! Snapshots under the simulator: writers go on, members die and are stopped at any step, and each
//! published snapshot is consistent. `shm/snapshot.rs` has real processes, kills and full disks.

use crate::folders::folder_in_memory;
use crate::simulation::{nap, replay, seeds, test_name};
use outlast::engine::Fault;
use outlast::sim::{self, Link, Options as SimOptions, Random};
use outlast::snapshot::{self, Options, SnapshotError, Snapshots};
use outlast::store::{self, KeyHandle, Store, StoreError};
use outlast::{Job, MemberId};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MEMBERS: usize = 4;
const PAIRS: u64 = 3;

fn try_open(job: &Job, replicas: usize) -> Result<Store, StoreError> {
    let options =
        store::Options::new().replicas(replicas).allow_fewer().partitions(16).expected_keys(64);
    Store::open(job, options)
}

fn open(job: &Job, replicas: usize) -> Store {
    try_open(job, replicas).expect("opened")
}

/// The contents of a snapshot, by key.
fn read(path: &Path) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for part in snapshot::parts(path).expect("a manifest") {
        snapshot::read_part(path, &part, |record| {
            let number = u64::from_le_bytes(record.value.as_slice().try_into().expect("8 bytes"));
            let key = String::from_utf8(record.key).expect("a key");
            assert_eq!(found.insert(key, number), None, "a key is there twice");
        })
        .expect("a whole part");
    }
    found
}

/// Each member writes pairs of keys, first the first key and then the second, with equal numbers,
/// some of them through handles. Two members take snapshots meanwhile. In each snapshot the first
/// key of each pair is ahead by at most 1, and no value is missing that was acknowledged before the
/// snapshot began.
#[test]
fn a_snapshot_is_a_consistent_cut_under_deaths_and_stops() {
    let mut taken_in_all = 0;
    let count = seeds(120);
    for seed in count.clone().chain([876]) {
        let mut random = Random::new(seed ^ 0x736e_6170);
        let link = Link::of_seed(seed);
        let options = SimOptions::new(MEMBERS, seed).link(link);
        let (kills, stops) = (random.below(3) as usize, random.below(2) as usize);
        let options = options.random_faults(kills, stops, 1 + random.magnitude(100, 6000));
        let folder = folder_in_memory();
        let path = folder.path().join("snapshots");
        // The number with which the second key of each pair was acknowledged.
        let acknowledged: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
        let taken = Arc::new(Mutex::new(0));
        let (log, taken_here, target) = (acknowledged.clone(), taken.clone(), path.clone());
        let report = sim::run(&options, move |job| {
            // A member may be stopped for so long that the others give up before they begin, and
            // their data is lost.
            let Ok(store) = try_open(&job, 3) else { return };
            let limit = Duration::from_millis(20);
            let snapshots =
                Snapshots::open(&store, &target, Options::new().keep(100).freeze_limit(limit))
                    .expect("opened");
            let me = job.me().0;
            let writing = (store.clone(), log.clone());
            let write = move || {
                let (store, log) = writing;
                let key = |which: &str, pair: u64| format!("{which}/{me}/{pair}").into_bytes();
                let mut handles: Vec<KeyHandle> =
                    (0..PAIRS).filter_map(|pair| store.handle(&key("b", pair)).ok()).collect();
                for number in 1..25u64 {
                    for pair in 0..PAIRS {
                        let value = number.to_le_bytes();
                        let second =
                            |handles: &mut [KeyHandle]| match handles.get_mut(pair as usize) {
                                Some(handle) if pair == 0 => handle.put(&value).map(|_| ()),
                                _ => store.put(&key("b", pair), &value).map(|_| ()),
                            };
                        match store.put(&key("a", pair), &value).and_then(|_| second(&mut handles))
                        {
                            Ok(()) => {
                                _ = log.lock().unwrap().insert(format!("b/{me}/{pair}"), number);
                            }
                            Err(
                                StoreError::Timeout { .. }
                                | StoreError::Closed
                                | StoreError::DataLost { .. },
                            ) => return,
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            };
            let writer = job.spawn("writes", Box::new(write)).expect("spawned");
            if me < 2 {
                for _ in 0..3 {
                    let before = log.lock().unwrap().clone();
                    match snapshots.take() {
                        Ok(taken) => {
                            *taken_here.lock().unwrap() += 1;
                            assert!(taken.frozen_for <= limit, "{taken:?}");
                            let found = read(&taken.path);
                            assert_eq!(found.len() as u64, taken.records);
                            for (key, number) in &before {
                                let there = found.get(key).copied().unwrap_or(0);
                                assert!(
                                    there >= *number,
                                    "{key}: {there}, and {number} was acknowledged"
                                );
                            }
                        }
                        // A member is stopped, or the other member takes a snapshot.
                        Err(
                            SnapshotError::Timeout { .. }
                            | SnapshotError::Busy
                            | SnapshotError::Member { .. },
                        ) => {}
                        Err(SnapshotError::Interrupted { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    job.sleep(Duration::from_micros(500));
                }
            }
            job.wait_for(&writer, outlast::Time::NEVER);
            let _ = store.close();
            let _ = job.leave();
        });
        let replay = format!("seed {seed}: {}", replay(&test_name(), seed));
        assert!(
            report.is_ok(),
            "{:?} {:?} {:?}\n{replay}",
            report.outcome,
            report.panics,
            report.hung
        );
        taken_in_all += *taken.lock().unwrap();
        for generation in snapshot::list(&path).unwrap_or_default() {
            let found = read(&generation.path);
            for member in 0..MEMBERS {
                for pair in 0..PAIRS {
                    let number = |which| {
                        found.get(&format!("{which}/{member}/{pair}")).copied().unwrap_or(0)
                    };
                    let (first, second) = (number("a"), number("b"));
                    assert!(
                        first == second || first == second + 1,
                        "generation {}, {member}/{pair}: {first} and {second}\n{replay}",
                        generation.number
                    );
                }
            }
        }
    }
    assert!(taken_in_all * 2 > count.end - count.start, "only {taken_in_all} snapshots were taken");
}

/// Each member puts new keys, a key after the other, while the indexes grow from a single bucket. A
/// snapshot has each key once, all keys of a member up to some key, and all that were acknowledged
/// before it began.
#[test]
fn a_snapshot_while_indexes_grow_has_each_record_once() {
    const KEYS: u64 = 200;
    for seed in seeds(8) {
        let folder = folder_in_memory();
        let path = folder.path().join("snapshots");
        let acknowledged: Arc<Mutex<BTreeMap<u32, u64>>> = Arc::default();
        let taken = Arc::new(AtomicU64::new(0));
        let taken_here = taken.clone();
        let options = SimOptions::new(3, seed).link(Link::of_seed(seed));
        let report = sim::run(&options, move |job| {
            let options = store::Options::new().replicas(2).partitions(2).expected_keys(1);
            let store = Store::open(&job, options).expect("opened");
            let snapshots =
                Snapshots::open(&store, &path, Options::new().keep(100)).expect("opened");
            let me = job.me().0;
            let (log, writing) = (acknowledged.clone(), store.clone());
            let write = move || {
                for number in 1..=KEYS {
                    let key = format!("{me}/{number}");
                    writing.put(key.as_bytes(), &number.to_le_bytes()).expect("put");
                    log.lock().unwrap().insert(me, number);
                }
            };
            let writer = job.spawn("writes", Box::new(write)).expect("spawned");
            while me == 0 && acknowledged.lock().unwrap().get(&0) != Some(&KEYS) {
                let before = acknowledged.lock().unwrap().clone();
                let found = read(&snapshots.take().expect("taken").path);
                taken_here.fetch_add(1, Ordering::Relaxed);
                for member in 0..3 {
                    let is_there = |number: u64| {
                        let number = found.get(&format!("{member}/{number}")) == Some(&number);
                        usize::from(number)
                    };
                    let count: usize = (1..=KEYS).map(is_there).sum();
                    assert_eq!((1..=count as u64).map(is_there).sum::<usize>(), count, "a gap");
                    let least = before.get(&member).copied().unwrap_or(0);
                    assert!(count as u64 >= least, "{member}: {count}, {least} acknowledged");
                }
            }
            job.wait_for(&writer, outlast::Time::NEVER);
            store.close().expect("closed");
            job.leave().expect("left");
        });
        assert!(report.is_ok(), "seed {seed}: {:?} {:?}", report.panics, report.hung);
        assert!(taken.load(Ordering::Relaxed) > 1, "snapshots while members write");
    }
}

/// A job of another size, with another number of replicas, begins with the snapshot of a job,
/// owners of keys included.
#[test]
fn a_job_of_another_size_begins_with_a_snapshot() {
    for (members, replicas, seed) in [(1, 1, 0), (2, 2, 1), (7, 3, 2)] {
        let folder = folder_in_memory();
        let path = folder.path().join("snapshots");
        let target = path.clone();
        let report = sim::run(&SimOptions::new(4, seed), move |job| {
            let store = open(&job, 2);
            let snapshots = Snapshots::open(&store, &target, Options::new()).expect("opened");
            for number in 0..20u64 {
                let key = format!("{}/{number}", job.me().0);
                store.put(key.as_bytes(), &vec![number as u8; number as usize * 100]).expect("put");
            }
            store.put(b"gone", b"soon").expect("put");
            store.delete(b"gone").expect("deleted");
            store.add(b"arrived", 1).expect("counted");
            if job.me().0 == 3 {
                while store.add(b"arrived", 0).expect("counted") < 4 {
                    job.sleep(Duration::from_millis(1));
                }
                assert_eq!(snapshots.take().expect("taken").records, 81);
            }
            store.close().expect("closed");
            job.leave().expect("left");
        });
        report.expect_ok();
        let source = path.clone();
        let report = sim::run(&SimOptions::new(members, seed), move |job| {
            let store = open(&job, replicas);
            let (me, all) = (job.me().index(), job.members());
            snapshot::restore_share(&store, &source, me, all).expect("restored");
            store.add(b"restored", 1).expect("counted");
            while store.add(b"restored", 0).expect("counted") < all as i64 {
                job.sleep(Duration::from_millis(1));
            }
            for owner in 0..4u32 {
                for number in 0..20u64 {
                    let value = store
                        .get(format!("{owner}/{number}").as_bytes())
                        .expect("read")
                        .expect("there");
                    assert_eq!(value.bytes(), vec![number as u8; number as usize * 100]);
                    assert_eq!(value.owner().0, owner % all as u32);
                }
            }
            assert!(!store.exists(b"gone").expect("read"));
            store.close().expect("closed");
            job.leave().expect("left");
        });
        report.expect_ok();
    }
}

/// A member that has not opened the folder and a stopped member are named, and writers go on.
#[test]
fn a_member_that_does_not_take_part_is_named() {
    let folder = folder_in_memory();
    let target = folder.path().join("snapshots");
    let report = sim::run(&SimOptions::new(3, 5), move |job| {
        let store = open(&job, 2);
        let options = Options::new().freeze_limit(Duration::from_millis(50));
        if job.me().0 != 1 {
            let snapshots = Snapshots::open(&store, &target, options).expect("opened");
            if job.me().0 == 0 {
                let error = snapshots.take().expect_err("not all members take part").to_string();
                assert!(error.contains("member 1") && error.contains("has not opened"), "{error}");
                assert!(snapshot::list(&target).expect("a folder").is_empty());
                let began = job.now();
                store.put(b"after", b"it").expect("not delayed");
                assert!(job.now().since(began) < Duration::from_millis(10));
            }
        }
        job.sleep(Duration::from_millis(300));
        store.close().expect("closed");
        job.leave().expect("left");
    });
    report.expect_ok();
}

/// The member that takes a snapshot is stopped at any step. The others write on when the freeze
/// limit is over. If the snapshot is completed nevertheless, it reports how long writers were
/// frozen, and not how long its member was stopped.
#[test]
fn writers_go_on_while_the_member_taking_a_snapshot_is_stopped() {
    let limit = Duration::from_millis(500);
    // The simulator delays each member by up to 19 ms now and then.
    let slack = limit / 5;
    let (late, held_up) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let count = seeds(150);
    for seed in count.clone() {
        let folder = folder_in_memory();
        let target = folder.path().join("snapshots");
        let (late, held_up) = (late.clone(), held_up.clone());
        let (ready, is_over, longest_ns) =
            (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
        let report = sim::run(&SimOptions::new(3, seed).link(Link::of_seed(seed)), move |job| {
            let store = open(&job, 1);
            let options = Options::new().freeze_limit(limit);
            let snapshots = Snapshots::open(&store, &target, options).expect("opened");
            ready.fetch_add(1, Ordering::SeqCst);
            nap(&job, "the others", || ready.load(Ordering::SeqCst) == 3);
            match job.me().0 {
                0 => {
                    let stopped_at = 1 + seed * 37 % 1000;
                    job.inject(Fault::StopAtStep(stopped_at)).expect("planned");
                    let began = job.now();
                    let taken = snapshots.take();
                    let took = job.now().since(began);
                    is_over.store(true, Ordering::SeqCst);
                    let longest = Duration::from_nanos(longest_ns.load(Ordering::SeqCst));
                    match taken {
                        Ok(taken) => {
                            assert!(taken.frozen_for <= limit, "{taken:?}");
                            assert!(longest <= taken.frozen_for + slack, "{longest:?}, {taken:?}");
                            late.fetch_add(u64::from(took > limit), Ordering::SeqCst);
                        }
                        Err(SnapshotError::Timeout { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                1 => {
                    let is_own = |key: &Vec<u8>| store.replicas_of(key) == [job.me()];
                    let key = (0..100u8).map(|number| vec![number]).find(is_own).expect("some key");
                    while !is_over.load(Ordering::SeqCst) {
                        let began = job.now();
                        store.put(&key, b"value").expect("put");
                        let took = job.now().since(began);
                        assert!(took < limit + slack, "held up for {took:?}");
                        longest_ns.fetch_max(took.as_nanos() as u64, Ordering::SeqCst);
                        job.sleep(Duration::from_millis(1));
                    }
                    let longest = Duration::from_nanos(longest_ns.load(Ordering::SeqCst));
                    held_up.fetch_add(u64::from(longest > limit / 2), Ordering::SeqCst);
                }
                _ => nap(&job, "the end", || {
                    job.sleep(limit * 4);
                    let _ = job.inject(Fault::Resume(MemberId(0)));
                    is_over.load(Ordering::SeqCst)
                }),
            }
            store.close().expect("closed");
            job.leave().expect("left");
        });
        report.expect_ok();
    }
    let (late, held_up) = (late.load(Ordering::SeqCst), held_up.load(Ordering::SeqCst));
    // A run of a few seeds need not have any.
    let enough = (count.end - count.start) / 20;
    assert!(
        late >= enough && held_up >= enough,
        "{late} late snapshots, writers were held up {held_up} times"
    );
}

/// A snapshot contains transactions as a whole. Transfers between accounts go on, each depending on
/// a plain key that other members change. Each snapshot has the expected sum.
#[test]
fn a_snapshot_has_all_of_a_transaction_or_nothing() {
    const ACCOUNTS: u64 = 5;
    let mut taken_in_all = 0;
    let count = seeds(100);
    for seed in count.clone() {
        let mut random = Random::new(seed ^ 0x7478_736e);
        let link = Link::of_seed(seed);
        let options = SimOptions::new(MEMBERS, seed).link(link);
        let options =
            options.random_faults(random.below(3) as usize, 0, 1 + random.magnitude(100, 20_000));
        let folder = folder_in_memory();
        let path = folder.path().join("snapshots");
        let taken = Arc::new(Mutex::new(0));
        let (taken_here, target) = (taken.clone(), path.clone());
        let report = sim::run(&options, move |job| {
            let Ok(store) = try_open(&job, 3) else { return };
            let limit = Duration::from_millis(20);
            let snapshots =
                Snapshots::open(&store, &target, Options::new().keep(100).freeze_limit(limit))
                    .expect("opened");
            let me = job.me().0;
            let mut random = Random::new(seed << 8 | u64::from(me));
            let writing = store.clone();
            let write = move || {
                for number in 0..40u64 {
                    let from = random.below(ACCOUNTS);
                    let to = (from + 1 + random.below(ACCOUNTS - 1)) % ACCOUNTS;
                    let moved: Result<(), StoreError> = writing.transaction(|tx| {
                        if number % 2 == 0 {
                            let _ = tx.get(b"permission")?;
                        }
                        tx.add(format!("account/{from}").as_bytes(), -5)?;
                        tx.add(format!("account/{to}").as_bytes(), 5)?;
                        Ok(())
                    });
                    let changed = moved.and_then(|()| match number % 8 {
                        0 => writing.put(b"permission", &number.to_le_bytes()).map(|_| ()),
                        _ => Ok(()),
                    });
                    match changed {
                        Ok(()) => {}
                        Err(
                            StoreError::Timeout { .. }
                            | StoreError::Closed
                            | StoreError::DataLost { .. },
                        ) => return,
                        Err(error) => panic!("{error}"),
                    }
                }
            };
            let writer = job.spawn("writes", Box::new(write)).expect("spawned");
            if me < 2 {
                for _ in 0..4 {
                    match snapshots.take() {
                        Ok(taken) => {
                            *taken_here.lock().unwrap() += 1;
                            let found = read(&taken.path);
                            let accounts =
                                found.iter().filter(|(key, _)| key.starts_with("account/"));
                            let sum = accounts.fold(0i64, |sum, (_, &number)| sum + number as i64);
                            assert_eq!(sum, 0, "{found:?}");
                        }
                        Err(
                            SnapshotError::Timeout { .. }
                            | SnapshotError::Busy
                            | SnapshotError::Member { .. }
                            | SnapshotError::Interrupted { .. },
                        ) => {}
                        Err(error) => panic!("{error}"),
                    }
                    job.sleep(Duration::from_micros(500));
                }
            }
            job.wait_for(&writer, outlast::Time::NEVER);
            let _ = store.close();
            let _ = job.leave();
        });
        report.expect_ok();
        taken_in_all += *taken.lock().unwrap();
    }
    // Deaths interrupt some snapshots; most are taken.
    assert!(taken_in_all >= 2 * (count.end - count.start), "{taken_in_all} snapshots");
}

/// Two members take a snapshot concurrently: each of them gets its snapshot, or is told that the
/// other is taking one, and neither touches the files of the other. A failed snapshot delays no
/// writer.
#[test]
fn two_concurrent_snapshots_do_not_disturb_each_other() {
    for seed in seeds(24) {
        let folder = folder_in_memory();
        let path = folder.path().join("snapshots");
        let target = path.clone();
        let taken = Arc::new(Mutex::new(Vec::new()));
        let taken_here = taken.clone();
        let ended = AtomicU64::new(0);
        let link = Link::of_seed(seed);
        let report = sim::run(&SimOptions::new(3, seed).link(link), move |job| {
            let store = open(&job, 2);
            let options = Options::new().keep(100).bytes_per_second(100_000);
            let snapshots = Snapshots::open(&store, &target, options).expect("opened");
            let me = job.me().0;
            for number in 0..10u64 {
                store.put(format!("{me}/{number}").as_bytes(), &number.to_le_bytes()).expect("put");
            }
            store.add(b"arrived", 1).expect("counted");
            while store.add(b"arrived", 0).expect("counted") < 3 {
                job.sleep(Duration::from_micros(50));
            }
            if me < 2 {
                job.sleep(Duration::from_micros(seed % 7 * 30 * u64::from(me)));
                for _ in 0..3 {
                    match snapshots.take() {
                        Ok(one) => {
                            assert_eq!(read(&one.path).len() as u64, one.records);
                            taken_here.lock().unwrap().push(one.path);
                        }
                        Err(SnapshotError::Busy) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                ended.fetch_add(1, Ordering::SeqCst);
            } else {
                while ended.load(Ordering::SeqCst) < 2 {
                    let began = job.now();
                    store.put(b"2/0", &[0; 8]).expect("put");
                    let held_up = job.now().since(began);
                    // The freeze limit is two seconds.
                    assert!(held_up < Duration::from_millis(100), "held up for {held_up:?}");
                    job.sleep(Duration::from_millis(1));
                }
            }
            store.close().expect("closed");
            job.leave().expect("left");
        });
        report.expect_ok();
        let taken = taken.lock().unwrap();
        assert!(!taken.is_empty(), "seed {seed}: no member has taken a snapshot");
        let there = snapshot::list(&path).expect("a folder");
        assert_eq!(there.len(), taken.len(), "seed {seed}");
        there.iter().for_each(|generation| drop(read(&generation.path)));
    }
}

/// A member whose background ends the transactions of the dead still takes part in a snapshot in
/// time.
#[test]
fn ending_the_transactions_of_the_dead_does_not_delay_a_snapshot() {
    for seed in seeds(24).chain([165]) {
        let folder = folder_in_memory();
        let target = folder.path().join("snapshots");
        let report = sim::run(&SimOptions::new(3, seed), move |job| {
            let store = open(&job, 3);
            let limit = Duration::from_millis(500);
            let options = Options::new().keep(100).freeze_limit(limit);
            let snapshots = Snapshots::open(&store, &target, options).expect("opened");
            if job.me().0 == 2 {
                // Several transactions that are never decided.
                let mut held = Vec::new();
                for number in 0..10 {
                    let mut tx = store.begin();
                    for attempt in 0..3 {
                        tx.put(format!("{number}/a").as_bytes(), &[0; 8]).expect("put");
                        tx.put(format!("{number}/b").as_bytes(), &[0; 8]).expect("put");
                        if attempt < 2 {
                            tx.retry().expect("begun again");
                        }
                    }
                    held.push(tx);
                }
                job.inject(Fault::Kill(job.me())).expect("a fault");
                nap(&job, "its death", || false);
            }
            while job.view().is_living(MemberId(2)) {
                job.park(job.bell(), job.now().after(Duration::from_millis(1)));
            }
            if job.me().0 == 0 {
                job.sleep(Duration::from_micros(seed % 100 * 20));
                for _ in 0..5 {
                    let taken = snapshots.take().expect("taken");
                    assert!(taken.frozen_for < limit / 5, "{taken:?}");
                }
            }
            store.close().expect("closed");
            job.leave().expect("left");
        });
        report.expect_ok();
    }
}

/// Transactions that depend on transactions being decided go on despite the write freeze, and no
/// member waits for the freeze limit.
#[test]
fn validating_transactions_do_not_delay_a_snapshot() {
    for seed in seeds(8) {
        let folder = folder_in_memory();
        let target = folder.path().join("snapshots");
        let report = sim::run(&SimOptions::new(3, seed), move |job| {
            let store = open(&job, 2);
            let limit = Duration::from_millis(500);
            let options = Options::new().freeze_limit(limit);
            let snapshots = Snapshots::open(&store, &target, options).expect("opened");
            let me = job.me().0;
            if me < 2 {
                // Each member reads what the other writes.
                for number in 0..60u64 {
                    let done: Result<(), StoreError> = store.transaction(|tx| {
                        tx.get(format!("turn/{}", 1 - me).as_bytes())?;
                        tx.put(format!("turn/{me}").as_bytes(), &number.to_le_bytes())?;
                        tx.put(format!("copy/{me}").as_bytes(), &number.to_le_bytes())
                    });
                    done.expect("done");
                }
                store.add(b"ended", 1).expect("counted");
            } else {
                while store.add(b"ended", 0).expect("counted") < 2 {
                    let taken = snapshots.take().expect("taken");
                    assert!(taken.frozen_for < limit / 5, "{taken:?}");
                    job.sleep(Duration::from_micros(100));
                }
            }
            store.close().expect("closed");
            job.leave().expect("left");
        });
        report.expect_ok();
    }
}

/// A lock is held when a snapshot is taken. Its holder does not exist in the job that begins with
/// the snapshot, although a member there may have its number. The next locker takes the lock over
/// and is told.
#[test]
fn a_lock_in_a_snapshot_has_lost_its_holder() {
    let folder = folder_in_memory();
    let path = folder.path().join("snapshots");
    let target = path.clone();
    let report = sim::run(&SimOptions::new(3, 4), move |job| {
        let store = open(&job, 2);
        let snapshots =
            Snapshots::open(&store, &target, Options::new().freeze_limit(Duration::MAX))
                .expect("opened");
        if job.me().0 == 1 {
            let soon = job.now().after(Duration::from_secs(1));
            let guard = store.lock(b"queue", soon).expect("locked");
            store.put(b"half", b"done").expect("put");
            assert_eq!(snapshots.take().expect("taken").records, 2);
            guard.unlock().expect("still its own");
        }
        store.close().expect("closed");
        job.leave().expect("left");
    });
    report.expect_ok();
    for members in [2, 5] {
        let source = path.clone();
        let report = sim::run(&SimOptions::new(members, 4), move |job| {
            let store = open(&job, 1);
            if job.me().0 == 0 {
                assert_eq!(snapshot::restore(&store, &source).expect("restored").records, 2);
                let soon = job.now().after(Duration::from_secs(1));
                let guard = store.lock(b"queue", soon).expect("not held");
                assert!(guard.was_abandoned());
                guard.unlock().expect("its own");
                let guard = store.lock(b"queue", soon).expect("free");
                assert!(!guard.was_abandoned());
            }
            store.close().expect("closed");
            job.leave().expect("left");
        });
        report.expect_ok();
    }
}

/// Members recover together again and again, and each counts the recoveries in a key of its own. A
/// member is stopped now and then. In each snapshot all counts are equal.
#[test]
fn a_snapshot_holds_all_of_a_recovery_or_nothing() {
    let taken = Arc::new(Mutex::new((0, 0)));
    for seed in seeds(30) {
        let link = if seed.is_multiple_of(3) { Link::Memory } else { Link::Network };
        let mut options = SimOptions::new(3, seed).link(link);
        options.time_limit = Duration::from_millis(300);
        options.steps_max = 20_000_000;
        let folder = folder_in_memory();
        let (path, taken_here) = (folder.path().join("snapshots"), taken.clone());
        // How many members have recovered often enough, and whether the last snapshot was taken.
        let (recovered, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let report = sim::run(&options, move |job| {
            let options = store::Options::new().replicas(2).partitions(16).expected_keys(64);
            let store = Store::open(&job, options.mode(store::Mode::Global)).expect("open");
            let limit = Duration::from_millis(500);
            let snapshots =
                Snapshots::open(&store, &path, Options::new().keep(100).freeze_limit(limit))
                    .expect("opened");
            let me = job.me();
            if me == MemberId(0) {
                let (own, own_clock, over, counts) =
                    (job.clone(), job.clone(), is_over.clone(), taken_here.clone());
                let take = move || {
                    for _ in 0..12 {
                        own_clock.sleep(Duration::from_micros(20 << (seed % 8)));
                        let Ok(taken) = snapshots.take() else { continue };
                        let found = read(&taken.path);
                        let number = |member| {
                            found.get(&format!("recoveries/{member}")).copied().unwrap_or(0)
                        };
                        let numbers = [0, 1, 2].map(number);
                        assert!(numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
                        let mut counts = counts.lock().unwrap();
                        counts.0 += 1;
                        counts.1 += u64::from(numbers[0] > 0);
                    }
                    over.store(true, Ordering::SeqCst);
                };
                job.spawn("takes", Box::new(take)).expect("spawned");
                let resume = move || {
                    for _ in 0..200 {
                        own.sleep(Duration::from_millis(100 + seed % 7 * 100));
                        let _ = own.inject(Fault::Resume(MemberId(1)));
                    }
                };
                job.spawn("resumes", Box::new(resume)).expect("spawned");
            }
            let recover = || {
                store.recover(|tx, _| {
                    let numbers: Result<Vec<_>, StoreError> = (0..3)
                        .map(|member| tx.get(format!("recoveries/{member}").as_bytes()))
                        .collect();
                    let numbers = numbers?;
                    assert!(numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
                    tx.add(format!("recoveries/{}", me.0).as_bytes(), 1)
                })
            };
            for round in 0..6u64 {
                if me == MemberId(1) {
                    job.inject(Fault::StopAtStep(1 + (seed * 7 + round * 101) % 600))
                        .expect("planned");
                }
                let until = job.now().after(Duration::from_secs(60));
                loop {
                    assert!(job.now() < until, "{me} did not recover in time");
                    match recover() {
                        Ok(_) => break,
                        Err(StoreError::Timeout { .. } | StoreError::RecoveryFailed { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            recovered.fetch_add(1, Ordering::SeqCst);
            nap(&job, "the others and the snapshots", || {
                // Another recovery may be needed, by a member that was not told how its last
                // recovery ended.
                if store.is_revoked() {
                    let _ = recover();
                }
                recovered.load(Ordering::SeqCst) == 3 && is_over.load(Ordering::SeqCst)
            });
            let _ = store.close();
            let _ = job.leave();
        });
        report.expect_ok();
    }
    let (taken, with_recoveries) = *taken.lock().unwrap();
    assert!(with_recoveries > 30, "{taken} snapshots, {with_recoveries} after a recovery");
}

/// If the hosts of a job share no file system, the path of the folder names a different folder on
/// each host.
#[test]
fn a_folder_that_members_do_not_share_is_named() {
    let folder = folder_in_memory();
    let path = folder.path().to_path_buf();
    sim::run(&SimOptions::new(2, 0), move |job| {
        let store = open(&job, 2);
        let own = path.join(job.me().to_string());
        let snapshots = Snapshots::open(&store, &own, Options::new()).expect("opened");
        let again = Snapshots::open(&store, &own, Options::new());
        assert!(matches!(again.map(drop), Err(SnapshotError::AlreadyOpen)));
        store.add(b"opened", 1).expect("counted");
        nap(&job, "the other member", || store.add(b"opened", 0).expect("counted") >= 2);
        if job.me() == MemberId(0) {
            let error = snapshots
                .take()
                .expect_err("the other member does not have the folder")
                .to_string();
            assert!(error.starts_with("member 1 could not do its part: "), "{error}");
            assert!(error.ends_with("on a file system that all hosts share"), "{error}");
            store.add(b"opened", 1).expect("counted");
        }
        nap(&job, "the end", || store.add(b"opened", 0).expect("counted") >= 3);
        store.close().expect("closed");
        job.leave().expect("left");
    })
    .expect_ok();
}

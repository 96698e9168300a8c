//! Every call returns within its time limit plus the documented slack, whatever stops or dies
//! meanwhile: a table of all calls, against a stopped member, a stopped pair, and a stopped member
//! plus a death, over both links.

use crate::simulation::{nap, seeds};
use outlast::engine::Fault;
use outlast::sim::{self, Link, Options as SimOptions, Random};
use outlast::snapshot::{self, Snapshots};
use outlast::store::{
    Expect, KeyHandle, LockGuard, Mode, Options, Pin, Store, StoreError, Transaction,
};
use outlast::{Job, MemberId, Time};
use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(1);
/// The slack that [`Job::time_limit`] documents.
const SLACK: Duration = Duration::from_millis(125);
/// What a call may take without waiting for any member.
const WORK: Duration = Duration::from_millis(10);

/// What a call finds prepared.
struct Scene<'a> {
    job: &'a Job,
    store: &'a Store,
    handle: KeyHandle,
    key: Vec<u8>,
    /// Keys of all partitions; the first is `key`.
    keys: Vec<Vec<u8>>,
    pin: Pin,
    held: Cell<Option<LockGuard>>,
    taken: Cell<Option<LockGuard>>,
    folder: &'a Path,
}

impl Scene<'_> {
    fn after(&self, duration: Duration) -> Time {
        self.job.now().after(duration)
    }
}

/// How long a call may take, beside the slack.
#[derive(Clone, Copy)]
enum Limit {
    /// The time limit.
    Own,
    /// The time limit for each of its steps. The first step that is late ends the call.
    Each,
    /// This many halves of the time limit, because the caller names a deadline.
    Halves(u32),
}

impl Limit {
    fn under(self, strike: Strike) -> Duration {
        match self {
            Limit::Each if strike == Strike::InTurn => LIMIT * 4,
            Limit::Own | Limit::Each => LIMIT,
            Limit::Halves(halves) => LIMIT / 2 * halves,
        }
    }
}

use Limit::{Each, Halves, Own};

/// A call: its name, its limit, and what it does. Its result does not matter here.
struct Row(&'static str, Limit, fn(&Scene<'_>));

const ROWS: &[Row] = &[
    Row("put", Own, |s| drop(s.store.put(&s.key, b"mine"))),
    Row("put a large value", Own, |s| drop(s.store.put(&s.key, &[7; 20_000]))),
    Row("put a new key", Own, |s| drop(s.store.put(b"new", b"mine"))),
    Row("put_parts", Own, |s| drop(s.store.put_parts(&s.key, &[b"mi", b"ne"]))),
    Row("put_if", Own, |s| drop(s.store.put_if(&s.key, b"mine", Expect::Absent))),
    Row("delete", Own, |s| drop(s.store.delete(&s.key))),
    Row("add", Own, |s| drop(s.store.add(b"number", 1))),
    Row("get", Own, |s| drop(s.store.get(&s.key))),
    Row("get_into", Own, |s| drop(s.store.get_into(&s.key, &mut [0; 64]))),
    Row("exists", Own, |s| drop(s.store.exists(&s.key))),
    Row("handle.put", Own, |s| drop(s.handle.put(b"mine"))),
    Row("handle.put a large value", Own, |s| drop(s.handle.put(&[7; 20_000]))),
    Row("handle.put_parts", Own, |s| drop(s.handle.put_parts(&[b"mi", b"ne"]))),
    Row("handle.put_if", Own, |s| drop(s.handle.put_if(b"mine", Expect::Absent))),
    Row("handle.add", Own, |s| drop(s.handle.add(1))),
    Row("handle.delete", Own, |s| drop(s.handle.delete())),
    Row("handle.get", Own, |s| drop(s.handle.get())),
    Row("handle.get_into", Own, |s| drop(s.handle.get_into(&mut [0; 64]))),
    Row("handle.version", Own, |s| drop(s.handle.version())),
    Row("put_nb and flush", Each, |s| {
        let _ = s.store.put_nb(&s.key, b"mine");
        let _ = s.store.flush();
    }),
    Row("get_nb", Own, |s| drop(s.store.get_nb(&s.key).wait())),
    Row("put_all", Each, |s| drop(s.store.put_all(s.keys.iter().map(|key| (key, b"mine"))))),
    Row("get_all", Each, |s| drop(s.store.get_all(&s.keys))),
    Row("keys", Each, |s| drop(s.store.keys())),
    Row("scan", Each, |s| drop(s.store.scan(b"key/"))),
    Row("len", Each, |s| drop(s.store.len())),
    Row("is_empty", Each, |s| drop(s.store.is_empty())),
    Row("keys_of", Each, |s| drop(s.store.keys_of(s.job.me()))),
    Row("replicas_of", Own, |s| drop(s.store.replicas_of(&s.key))),
    Row("adopt", Own, |s| drop(s.store.adopt(&s.key))),
    Row("pin", Own, |s| drop(s.store.pin(&s.key))),
    Row("pin.read", Own, |s| drop(s.pin.read(0, &mut [0; 4]))),
    Row("pin.to_vec", Own, |s| drop(s.pin.to_vec())),
    Row("lock", Own, |s| {
        // Releasing the lock is a call of its own, when the scene is dropped.
        s.taken.set(s.store.lock(b"free", s.job.now()).ok());
    }),
    Row("lock a held lock", Own, |s| drop(s.store.lock(b"held", s.after(LIMIT / 2)))),
    Row("lock for long", Halves(6), |s| drop(s.store.lock(b"held", s.after(LIMIT * 3)))),
    Row("unlock", Own, |s| drop(s.held.take().expect("held").unlock())),
    Row("drop a lock", Own, |s| drop(s.held.take())),
    Row("wait", Own, |s| drop(s.store.wait(b"absent", None, s.after(LIMIT / 2)))),
    Row("wait for long", Halves(6), |s| drop(s.store.wait(b"absent", None, s.after(LIMIT * 3)))),
    Row("wait_or_death", Own, |s| {
        drop(s.store.wait_or_death(b"absent", None, s.after(LIMIT), MemberId(0)))
    }),
    Row("lost_partitions", Each, |s| drop(s.store.lost_partitions())),
    Row("lost_keys", Each, |s| drop(s.store.lost_keys())),
    Row("accept_loss", Each, |s| drop(s.store.accept_loss())),
    Row("accept_loss_of", Each, |s| drop(s.store.accept_loss_of(&[0, 1, 2, 3]))),
    Row("replicas_missing", Each, |s| drop(s.store.replicas_missing())),
    Row("repair_status", Each, |s| drop(s.store.repair_status())),
    Row("wait_repaired", Own, |s| drop(s.store.wait_repaired(s.after(LIMIT / 2)))),
    Row("job_stats", Each, |s| drop(s.store.job_stats())),
    Row("memory_use", Own, |s| drop(s.store.memory_use())),
    Row("a transaction of puts", Own, |s| {
        let put = |tx: &mut Transaction| s.keys.iter().try_for_each(|key| tx.put(key, b"mine"));
        let _: Result<(), StoreError> = s.store.transaction(put);
    }),
    Row("a transaction of gets", Own, |s| {
        let get = |tx: &mut Transaction| s.keys.iter().try_for_each(|key| tx.get(key).map(drop));
        let _: Result<(), StoreError> = s.store.transaction(get);
    }),
    Row("a transaction of gets and puts", Own, |s| {
        let copy = |tx: &mut Transaction| {
            let bytes = tx.get(&s.keys[1])?.unwrap_or_default();
            s.keys.iter().take(3).try_for_each(|key| tx.put(key, &bytes))
        };
        let _: Result<(), StoreError> = s.store.transaction(copy);
    }),
    Row("commit of a single key", Own, |s| {
        let mut tx = s.store.begin();
        let _ = tx.add(b"number", 1);
        if tx.commit().is_err() {
            tx.abort();
        }
    }),
    Row("the third attempt at a transaction", Own, |s| {
        let mut attempts = 0;
        let _: Result<(), StoreError> = s.store.transaction(|tx| {
            attempts += 1;
            s.keys.iter().take(3).try_for_each(|key| tx.put(key, b"mine"))?;
            if attempts < 4 { Err(StoreError::Aborted) } else { Ok(()) }
        });
    }),
    Row("open another store", Own, |s| {
        drop(Store::open(s.job, Options::new().name("another").replicas(2)))
    }),
    Row("leave at once", Halves(0), |s| drop(s.store.leave(s.job.now()))),
    Row("leave", Halves(1), |s| drop(s.store.leave(s.after(LIMIT / 2)))),
    Row("leave with much time", Halves(6), |s| drop(s.store.leave(s.after(LIMIT * 3)))),
    Row("revoke", Own, |s| drop(s.store.revoke())),
    Row("recover", Own, |s| {
        let _ = s.store.revoke();
        let _: Result<(), StoreError> = s
            .store
            .recover(|tx, _| s.keys.iter().take(2).try_for_each(|key| tx.put(key, b"recovered")));
    }),
    Row("recover_begin", Own, |s| {
        let _ = s.store.revoke();
        drop(s.store.recover_begin())
    }),
    Row("take a snapshot", Halves(6), |s| {
        let options = snapshot::Options::new().freeze_limit(LIMIT / 4);
        if let Ok(snapshots) = Snapshots::open(s.store, s.folder, options) {
            drop(snapshots.take());
        }
    }),
    Row("close", Own, |s| drop(s.store.close())),
];

/// What strikes while the call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strike {
    Stop,
    StopPair,
    StopAndDeath,
    /// The replicas are stopped in turn, each for almost the time limit.
    InTurn,
}

const CALLER: MemberId = MemberId(5);

/// How long a call takes if replicas of its key are struck at this time after its beginning.
fn time(row: &Row, link: Link, strike: Strike, seed: u64) -> Duration {
    let time = Rc::new(Cell::new(None));
    let taken = time.clone();
    let is_over = Rc::new(Cell::new(false));
    let mut random = Random::new(seed ^ 0x6465_6164);
    let most = if link == Link::Network { 200_000 } else { 20_000 };
    let delay = if seed.is_multiple_of(3) { 0 } else { random.below(most) };
    // The primary is struck in most runs, and replicas further down the list in the others.
    let first = if random.chance(3) { 1 } else { 0 };
    let mut options = SimOptions::new(6, seed).link(link);
    (options.steps_max, options.time_limit) = (10_000_000, LIMIT);
    let (name, call, is_global) = (row.0, row.2, row.0.starts_with("rec") || row.0 == "revoke");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_path_buf();
    let report = sim::run(&options, move |job: Job| {
        let mode = if is_global { Mode::Global } else { Mode::Localized };
        let wanted = Options::new().replicas(3).partitions(8).expected_keys(64).mode(mode);
        let store = Store::open(&job, wanted).expect("open");
        // Every member takes part in snapshots.
        let snapshots = (name == "take a snapshot" && job.me() != CALLER).then(|| {
            let options = snapshot::Options::new().freeze_limit(LIMIT / 4);
            Snapshots::open(&store, &path, options).expect("opened")
        });
        if job.me() == CALLER {
            let names = || (0..).map(|number| format!("key/{number}").into_bytes());
            let is_remote = |key: &Vec<u8>| !store.replicas_of(key).contains(&CALLER);
            let key = names().find(is_remote).expect("some key");
            let victims = store.replicas_of(&key);
            let mut keys = vec![key.clone()];
            keys.extend(names().filter(|other| *other != key).take(15));
            keys.iter().for_each(|key| _ = store.put(key, b"value").expect("put"));
            store.add(b"number", 1).expect("added");
            let handle = store.handle(&key).expect("a handle");
            (0..3).for_each(|_| _ = handle.put(b"value").expect("put"));
            let pin = store.pin(&key).expect("pinned").expect("there");
            let held = store.lock(b"held", job.now()).expect("locked");
            let scene = Scene {
                job: &job,
                store: &store,
                handle,
                key,
                keys,
                pin,
                held: Cell::new(Some(held)),
                taken: Cell::new(None),
                folder: &path,
            };
            let mine = job.clone();
            let faults = move || {
                mine.sleep(Duration::from_nanos(delay));
                // The caller may have left the job.
                let fault = |fault| drop(mine.inject(fault));
                fault(Fault::Stop(victims[first]));
                match strike {
                    Strike::Stop => {}
                    Strike::InTurn => {
                        for pair in victims.windows(2).cycle().take(5) {
                            mine.sleep(LIMIT * 9 / 10);
                            fault(Fault::Stop(pair[1]));
                            fault(Fault::Resume(pair[0]));
                        }
                    }
                    Strike::StopPair => fault(Fault::Stop(victims[first + 1])),
                    Strike::StopAndDeath => {
                        mine.sleep(Duration::from_nanos(delay));
                        fault(Fault::Kill(victims[first + 1]));
                    }
                }
            };
            if delay == 0 && strike != Strike::InTurn {
                faults();
            } else {
                job.spawn("faults", Box::new(faults)).expect("spawned");
            }
            let began = job.now();
            call(&scene);
            taken.set(Some(job.now().since(began)));
            is_over.set(true);
            // The locks and pins of the scene are dropped while its members are still stopped.
            let began = job.now();
            drop(scene);
            let took = job.now().since(began);
            assert!(took <= 2 * (LIMIT + SLACK + WORK), "{name}: the end took {took:?}");
        }
        // The other members serve, and take part in recoveries.
        while !is_over.get() {
            if is_global && job.me() != CALLER && store.is_revoked() {
                let _: Result<(), StoreError> = store.recover(|_, _| Ok(()));
            }
            job.sleep(Duration::from_millis(1));
        }
        drop(snapshots);
    });
    assert!(report.panics.is_empty(), "{name}: {:?}", report.panics);
    time.get().expect("the call has ended")
}

/// Checks all rows of the table, or the rows whose names contain `OUTLAST_ROW`.
fn check(link: Link, strike: Strike) {
    let only = std::env::var("OUTLAST_ROW").unwrap_or_default();
    let mut late = Vec::new();
    for row in ROWS.iter().filter(|row| row.0.contains(&only)) {
        for seed in seeds(3) {
            let (took, limit) = (time(row, link, strike, seed), row.1.under(strike));
            if took > limit + SLACK + WORK {
                late.push(format!("{} took {took:?} of {limit:?} with seed {seed}", row.0));
            }
        }
    }
    assert!(late.is_empty(), "{link:?}, {strike:?}:\n{}", late.join("\n"));
}

#[test]
fn every_call_on_mapped_memory_ends_in_time_with_a_stopped_member() {
    check(Link::Memory, Strike::Stop);
}

#[test]
fn every_call_on_mapped_memory_ends_in_time_with_a_stopped_pair() {
    check(Link::Memory, Strike::StopPair);
}

#[test]
fn every_call_on_mapped_memory_ends_in_time_with_a_stopped_member_and_a_death() {
    check(Link::Memory, Strike::StopAndDeath);
}

#[test]
fn every_call_over_a_network_ends_in_time_with_a_stopped_member() {
    check(Link::Network, Strike::Stop);
}

#[test]
fn every_call_over_a_network_ends_in_time_with_a_stopped_pair() {
    check(Link::Network, Strike::StopPair);
}

#[test]
fn every_call_over_a_network_ends_in_time_with_a_stopped_member_and_a_death() {
    check(Link::Network, Strike::StopAndDeath);
}

#[test]
fn every_call_over_a_network_ends_in_time_with_members_that_are_stopped_in_turn() {
    check(Link::Network, Strike::InTurn);
}

/// A member is stopped again and again, each time for almost the time limit, and goes on for so
/// short a time in between that a recovery gets a step further. All steps share a single deadline.
#[test]
fn a_recovery_takes_a_single_time_limit_although_each_step_is_held_up() {
    for seed in seeds(24) {
        let is_over = Rc::new(Cell::new(false));
        let mut options = SimOptions::new(3, seed).link(Link::of_seed(seed));
        (options.steps_max, options.time_limit) = (10_000_000, LIMIT);
        sim::run(&options, move |job: Job| {
            let wanted = Options::new().replicas(2).partitions(4).mode(Mode::Global);
            let store = Store::open(&job, wanted).expect("open");
            let [caller, slow] = [0, 1].map(MemberId);
            if job.me() == caller {
                store.put(b"key", b"value").expect("put");
                store.revoke().expect("revoked");
                let (mine, over) = (job.clone(), std::sync::Arc::new(AtomicBool::new(false)));
                let is_over = over.clone();
                let flap = move || {
                    let mut random = Random::new(seed);
                    while !is_over.load(Ordering::Relaxed) {
                        mine.inject(Fault::Stop(slow)).expect("a fault");
                        mine.sleep(LIMIT * 4 / 5);
                        mine.inject(Fault::Resume(slow)).expect("a fault");
                        mine.sleep(Duration::from_nanos(random.magnitude(2_000, 400_000)));
                    }
                };
                let flapping = job.spawn("stops", Box::new(flap)).expect("spawned");
                let began = job.now();
                let done: Result<(), StoreError> =
                    store.recover(|tx, _| tx.put(b"key", b"recovered"));
                let took = job.now().since(began);
                assert!(took <= LIMIT + SLACK + WORK, "{done:?} after {took:?} with seed {seed}");
                over.store(true, Ordering::Relaxed);
                job.wait_for(&flapping, Time::NEVER);
            }
            let mut is_recovered = false;
            while !is_over.get() {
                if store.is_revoked() {
                    let done: Result<(), StoreError> = store.recover(|_, _| Ok(()));
                    is_recovered = done.is_ok();
                }
                if job.me() == caller && (is_recovered || !store.is_revoked()) {
                    is_over.set(true);
                }
                job.sleep(Duration::from_millis(1));
            }
            let _ = store.close();
            let _ = job.leave();
        })
        .expect_ok();
    }
}

/// A member dies, and the member that has to salvage its partition is stopped. A leaver that holds
/// the partition, too, waits for the salvage until its own deadline and not longer.
#[test]
fn a_leaver_waits_for_a_salvage_until_its_deadline() {
    let met = Rc::new(Cell::new(0));
    for seed in seeds(20) {
        let (is_over, met) = (Rc::new(Cell::new(false)), met.clone());
        let mut options = SimOptions::new(4, seed);
        (options.steps_max, options.time_limit) = (10_000_000, LIMIT);
        options.keeps_dead_segments = true;
        sim::run(&options, move |job: Job| {
            let wanted = Options::new().replicas(1).partitions(16).expected_keys(64).salvage(true);
            let store = Store::open(&job, wanted).expect("open");
            let [salvager, victim, leaver] = [0, 1, 2].map(MemberId);
            if job.me() == leaver {
                job.inject(Fault::Stop(salvager)).expect("a fault");
                job.fence(victim, Time::NEVER).expect("killed");
                let began = job.now();
                let left = store.leave(began.after(LIMIT / 4));
                let took = job.now().since(began);
                met.set(met.get() + u32::from(left.is_err()));
                assert!(took <= LIMIT / 4 + SLACK + WORK, "{left:?} after {took:?}, seed {seed}");
                job.inject(Fault::Resume(salvager)).expect("a fault");
                is_over.set(true);
            }
            nap(&job, "the leaver", || is_over.get());
            let _ = store.close();
            let _ = job.leave();
        })
        .expect_ok();
    }
    assert!(met.get() > 0, "no leaver had to wait");
}

/// A transaction of member B times out at a stopped replica over a network, and the background of B
/// tries to end it there. Another member needs blocks in the segment of B meanwhile, which the
/// background of B makes: it gets them long before the time limit.
#[test]
fn a_stopped_replica_does_not_keep_the_background_from_serving_others() {
    for seed in seeds(10) {
        let stage = Rc::new(Cell::new(0));
        let mut options = SimOptions::new(4, seed).link(Link::Network);
        (options.steps_max, options.time_limit) = (10_000_000, LIMIT);
        sim::run(&options, move |job: Job| {
            let wanted = Options::new().replicas(1).partitions(16).slab_len_max(16 << 10);
            let store = Store::open(&job, wanted).expect("open");
            let [stopped, serving, asking] = [0, 1, 2].map(MemberId);
            let key_of = |member: MemberId| {
                let mut names = (0..1000).map(|number| format!("key/{number}").into_bytes());
                names.find(|key| store.replicas_of(key) == [member]).expect("some key")
            };
            let [there, here] = [stopped, serving].map(key_of);
            if job.me() == serving {
                store.put(&there, b"before").expect("put");
                job.inject(Fault::Stop(stopped)).expect("a fault");
                let mut tx = store.begin();
                tx.put(&there, b"after").expect("put");
                tx.put(&here, b"after").expect("put");
                let committed = tx.commit();
                assert!(matches!(committed, Err(StoreError::Timeout { .. })), "{committed:?}");
                stage.set(1);
            }
            if job.me() == asking {
                nap(&job, "the transaction", || stage.get() == 1);
                // Each value is of another size class, so each put needs a new slab.
                for doublings in 6..16 {
                    let other = (0..).map(|number| format!("other/{doublings}/{number}"));
                    let mut names = other.map(String::into_bytes);
                    let key = names.find(|key| store.replicas_of(key) == [serving]);
                    let (value, began) = (vec![7; 1 << doublings], job.now());
                    store.put(&key.expect("some key"), &value).expect("put");
                    let took = job.now().since(began);
                    assert!(took < LIMIT / 4, "a put took {took:?} with seed {seed}");
                    job.sleep(LIMIT / 16);
                }
                job.inject(Fault::Resume(stopped)).expect("a fault");
                nap(&job, "the end of the transaction", || store.put(&there, b"next").is_ok());
                stage.set(2);
            }
            nap(&job, "the end", || stage.get() == 2);
            let _ = store.close();
            let _ = job.leave();
        })
        .expect_ok();
    }
}

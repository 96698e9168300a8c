//! Schedules that broke earlier versions of the store. Each was found by reading the code with the
//! intent to break it.

use super::{end_if_possible as end, small_options as options};
use crate::simulation::run_with as run;
use outlast::engine::Fault;
use outlast::sim::{Link, Options as SimOptions};
use outlast::store::{Options, Store, StoreError};
use outlast::{Epoch, Job, MemberId};
use std::time::Duration;

fn open(job: &Job, options: Options) -> Store {
    Store::open(job, options).expect("open")
}

const SECOND: Duration = Duration::from_secs(1);

/// A member that knows the first death and asks for further deaths is told of the second death and
/// of no other, although the second member to die has a lower number.
#[test]
fn a_death_is_reported_though_its_member_number_is_lower() {
    for seed in 0..20 {
        run(SimOptions::new(5, seed).link(Link::of_seed(seed)), move |job| {
            let store = open(&job, options(2));
            let (first, second) = (MemberId(3), MemberId(1));
            let wait = |epoch: u64| loop {
                // The bell is noted before the check, so that no death is slept through.
                let bell = job.bell();
                if store.epoch() >= Epoch(epoch) {
                    break;
                }
                job.park(bell, job.now().after(SECOND));
            };
            job.sleep(SECOND);
            if job.me() == first {
                let _ = job.inject(Fault::Kill(first));
                job.sleep(100 * SECOND);
            }
            wait(1);
            let mut seen = store.epoch();
            // The second death also reports the first dead member, if that gets another heir.
            let has_new_heir = store.heir_of(first) == second;
            job.sleep(SECOND);
            if job.me() == second {
                let _ = job.inject(Fault::Kill(second));
                job.sleep(100 * SECOND);
            }
            wait(2);
            let mut told: Vec<MemberId> =
                store.deaths_since(&mut seen).iter().map(|death| death.member).collect();
            told.sort();
            let expected = if has_new_heir { vec![second, first] } else { vec![second] };
            assert_eq!(told, expected);
            assert_eq!(store.deaths_since(&mut seen), []);
            end(&job, &store);
        });
    }
}

/// A listener of losses runs in the background and reads a key whose replica is leaving, as other
/// members know. The read is retried until this member knows it, too, and only its own queue can
/// tell it: the retried read must serve the queue.
#[test]
fn a_call_that_retries_in_the_background_serves_the_queue() {
    for seed in 80..96 {
        let link = Link::of_seed(seed);
        run(SimOptions::new(4, seed).link(link), move |job| {
            let store = open(&job, options(1).partitions(32));
            let [leaver, listener, mut dead, mut other] = [0, 1, 2, 3].map(MemberId);
            let key = key_at(&store, &[leaver]);
            if store.replicas_of(b"\0outlast/leave") == [dead] {
                // A leaving member takes a lock, whose replica must live.
                (dead, other) = (other, dead);
            }
            let (reader, at) = (store.clone(), key.clone());
            if job.me() == listener {
                let clock = job.clone();
                store.on_loss(move |_| {
                    // The queue is not served meanwhile: the message of the leaver is not read.
                    clock.sleep(3 * SECOND);
                    let began = clock.now();
                    assert_eq!(reader.get(at.as_bytes()).map(|found| found.is_some()), Ok(true));
                    let took = clock.now().since(began);
                    assert!(took < 5 * SECOND, "{took:?}");
                });
            }
            if job.me() == other {
                store.put(key.as_bytes(), b"before").expect("put");
                job.sleep(SECOND);
                job.inject(Fault::Kill(dead)).expect("a fault");
                job.sleep(2 * SECOND);
                // In a configuration that knows of the leaver, which seals the record.
                store.put(key.as_bytes(), b"after").expect("put");
            }
            if job.me() == leaver {
                job.sleep(2 * SECOND);
                store.leave(job.now().after(100 * SECOND)).expect("left");
                return;
            }
            job.sleep(20 * SECOND);
            end(&job, &store);
        });
    }
}

/// One of two new replicas begins late, when the primary is stopped: the other new replica fills
/// it.
#[test]
fn a_replica_that_became_complete_takes_over_a_repair() {
    for seed in 0..20 {
        run(SimOptions::new(6, seed).link(Link::Memory), move |job| {
            let store = open(&job, options(3).partitions(64));
            if job.me() == MemberId(5) {
                let keys: Vec<String> = (0..300).map(|number| format!("key/{number}")).collect();
                for key in &keys {
                    store.put(key.as_bytes(), key.as_bytes()).expect("put");
                }
                let [late, primary] = [3, 0].map(MemberId);
                job.inject(Fault::Stop(late)).expect("a fault");
                job.inject(Fault::Kill(MemberId(1))).expect("a fault");
                job.inject(Fault::Kill(MemberId(2))).expect("a fault");
                job.sleep(10 * SECOND);
                job.inject(Fault::Stop(primary)).expect("a fault");
                job.sleep(SECOND);
                job.inject(Fault::Resume(late)).expect("a fault");
                let status = store.wait_repaired(job.now().after(60 * SECOND)).expect("known");
                assert!(status.is_repaired(), "{status:?}");
                job.inject(Fault::Resume(primary)).expect("a fault");
            } else {
                job.sleep(300 * SECOND);
            }
            end(&job, &store);
        });
    }
}

/// Memory that a member has freed can be used by another member, even if the first member does
/// nothing more.
#[test]
fn memory_that_an_idle_member_freed_can_be_used_by_others() {
    for seed in 0..4 {
        let mut plan = SimOptions::new(2, seed).link(Link::Memory);
        plan.segment_limit = 48 << 20;
        run(plan, move |job| {
            let store = open(&job, options(1));
            let key = (0..100)
                .map(|n| format!("k{n}"))
                .find(|key| store.replicas_of(key.as_bytes()) == [MemberId(1)])
                .unwrap();
            let value = vec![7; 20 << 20];
            if job.me() == MemberId(0) {
                store.put(key.as_bytes(), &value).expect("room");
                assert!(store.delete(key.as_bytes()).expect("deleted"));
                store.put(b"freed", b"").expect("put");
                store
                    .wait(b"done", None, job.now().after(100 * SECOND))
                    .expect("wait")
                    .expect("done");
            } else {
                store
                    .wait(b"freed", None, job.now().after(100 * SECOND))
                    .expect("wait")
                    .expect("freed");
                job.sleep(5 * SECOND);
                println!("{:?}", store.memory_use());
                // Two of these values do not fit.
                store.put(key.as_bytes(), &value).expect("memory that was freed");
                store.put(b"done", b"").expect("put");
            }
            end(&job, &store);
        });
    }
}

/// A new replica is stopped: all other missing replicas become complete nevertheless.
#[test]
fn a_stopped_new_replica_delays_its_own_partitions_only() {
    for seed in 70..110 {
        run(SimOptions::new(5, seed).link(Link::Memory), move |job| {
            let store = open(&job, options(2).partitions(64));
            let [dead, third, stopped] = [0, 3, 4].map(MemberId);
            if job.me() == MemberId(1) {
                let keys: Vec<String> = (0..200).map(|number| format!("key/{number}")).collect();
                for key in &keys {
                    store.put(key.as_bytes(), &vec![7; 20000]).expect("put");
                }
                job.inject(Fault::Kill(dead)).expect("a fault");
                while store.epoch() < Epoch(1) {
                    job.park(job.bell(), job.now().after(SECOND));
                }
                job.sleep(Duration::from_micros(7 * seed));
                job.inject(Fault::Stop(stopped)).expect("a fault");
                job.sleep(60 * SECOND);
                let others: Vec<&String> = keys
                    .iter()
                    .filter(|key| !store.replicas_of(key.as_bytes()).contains(&stopped))
                    .collect();
                job.inject(Fault::Kill(third)).expect("a fault");
                while store.epoch() < Epoch(2) {
                    job.park(job.bell(), job.now().after(SECOND));
                }
                for key in others {
                    let replicas = store.replicas_of(key.as_bytes());
                    match store.get(key.as_bytes()) {
                        Ok(found) => assert_eq!(found.expect("there").bytes().len(), 20000),
                        Err(error) => panic!("{key} {replicas:?}: {error}"),
                    }
                }
                job.inject(Fault::Resume(stopped)).expect("a fault");
                store.put(b"done", b"").expect("put");
            } else {
                job.sleep(300 * SECOND);
            }
            end(&job, &store);
        });
    }
}

/// A put that reports that there is no room has changed nothing, even if the replica without room
/// is not the first.
#[test]
fn a_put_without_room_changes_nothing() {
    for seed in 0..6 {
        let mut plan = SimOptions::new(3, seed).link(Link::Memory);
        plan.segment_limit = 256 << 10;
        run(plan, move |job| {
            let store = open(&job, options(2));
            if job.me() == MemberId(0) {
                let key = |number: usize| [format!("{number}/").as_bytes(), &[b'k'; 900]].concat();
                let mut refused = Vec::new();
                for number in 0..800 {
                    match store.put(&key(number), b"value") {
                        Ok(_) => {}
                        Err(StoreError::OutOfMemory { .. }) => refused.push(number),
                        Err(error) => panic!("{error}"),
                    }
                }
                assert!((100..700).contains(&refused.len()), "{}", refused.len());
                for &number in &refused {
                    assert_eq!(store.get(&key(number)), Ok(None), "{number} of {}", refused.len());
                }
            }
            end(&job, &store);
        });
    }
}

/// The first key, by number, that has these replicas.
fn key_at(store: &Store, replicas: &[MemberId]) -> String {
    let keys = (0..1000).map(|number| format!("key/{number}"));
    keys.into_iter().find(|key| store.replicas_of(key.as_bytes()) == replicas).expect("some key")
}

/// A transaction that needs a stopped member ends at the time limit, and not after several time
/// limits.
#[test]
fn a_transaction_at_a_stopped_replica_ends_at_the_time_limit() {
    for seed in 0..12 {
        let link = Link::of_seed(seed);
        run(SimOptions::new(3, seed).link(link), move |job| {
            let store = open(&job, options(1));
            let stopped = MemberId(2);
            job.sleep(SECOND);
            if job.me() == MemberId(0) {
                let (there, here) = (key_at(&store, &[stopped]), key_at(&store, &[MemberId(1)]));
                let (there, here) = (there.as_bytes(), here.as_bytes());
                job.inject(Fault::Stop(stopped)).expect("a fault");
                let began = job.now();
                let result: Result<(), StoreError> = store.transaction(|tx| {
                    if seed % 3 == 1 {
                        tx.get(here)?;
                        tx.get(there)?;
                    }
                    tx.put(here, b"new")?;
                    tx.put(there, &[1; 12000])
                });
                assert!(matches!(result, Err(StoreError::Timeout { .. })), "{result:?}");
                let took = job.now().since(began);
                assert!(took < job.time_limit() + SECOND, "{took:?}");
                job.inject(Fault::Resume(stopped)).expect("a fault");
                // The transaction was aborted, and nothing is left of it.
                job.sleep(100 * SECOND);
                assert_eq!(store.get(here), Ok(None));
                store.put(here, b"after").expect("put");
                store.put(there, b"after").expect("put");
            } else {
                job.sleep(300 * SECOND);
            }
            end(&job, &store);
        });
    }
}

/// The heir of a dead member cannot end a transaction, because a stopped replica has no block for
/// it: the heir still repairs all partitions without that replica.
#[test]
fn an_heir_that_waits_for_a_stopped_replica_repairs_the_rest() {
    let judged = std::rc::Rc::new(std::cell::Cell::new(0));
    for seed in 0..8 {
        let judged = judged.clone();
        run(SimOptions::new(5, seed).link(Link::Memory), move |job| {
            let store = open(&job, options(2).partitions(256));
            let (dead, stopped) =
                (MemberId(1 + seed as u32 % 4), MemberId(1 + (seed as u32 + 1) % 4));
            let keys: Vec<String> = (0..400).map(|number| format!("key/{number}")).collect();
            if job.me() == dead {
                // As many transactions as are possible, each with a key of which the stopped member
                // has a replica.
                let is_there = |key: &&String| {
                    let replicas = store.replicas_of(key.as_bytes());
                    replicas.contains(&stopped) && !replicas.contains(&dead)
                };
                let mut held = Vec::new();
                for key in keys.iter().filter(is_there).take(64) {
                    store.put(key.as_bytes(), &[1; 12000]).expect("put");
                    let mut tx = store.begin();
                    for _ in 0..2 {
                        tx.put(key.as_bytes(), b"never").expect("put");
                        tx.retry().expect("begun again");
                    }
                    held.push(tx);
                }
                assert_eq!(held.len(), 64);
                store.put(b"held", b"").expect("put");
                job.sleep(1000 * SECOND);
            }
            if job.me() == MemberId(0) {
                store
                    .wait(b"held", None, job.now().after(10 * SECOND))
                    .expect("wait")
                    .expect("held");
                let mut mine = Vec::new();
                for key in &keys {
                    let replicas = store.replicas_of(key.as_bytes());
                    if !replicas.contains(&stopped) {
                        store.put(key.as_bytes(), b"value").expect("put");
                        mine.push(key);
                    }
                }
                job.inject(Fault::Stop(stopped)).expect("a fault");
                job.inject(Fault::Kill(dead)).expect("a fault");
                while store.epoch() < Epoch(1) {
                    job.park(job.bell(), job.now().after(SECOND));
                }
                job.sleep(60 * SECOND);
                let heir = store.heir_of(dead);
                if heir != job.me() && heir != stopped {
                    mine.retain(|key| !store.replicas_of(key.as_bytes()).contains(&stopped));
                    job.inject(Fault::Kill(heir)).expect("a fault");
                    while store.epoch() < Epoch(2) {
                        job.park(job.bell(), job.now().after(SECOND));
                    }
                    for key in mine {
                        let found = store.get(key.as_bytes());
                        assert!(matches!(&found, Ok(Some(_))), "{key}: {found:?}");
                    }
                    judged.set(judged.get() + 1);
                }
                job.inject(Fault::Resume(stopped)).expect("a fault");
            } else {
                job.sleep(300 * SECOND);
            }
            end(&job, &store);
        });
    }
    assert!(judged.get() >= 2, "{}", judged.get());
}

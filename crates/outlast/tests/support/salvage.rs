//! What the tests of salvage on shm and under the simulator share: the options of the store, the
//! keys and values of each member, and the scenario of a damaged value.

use outlast::store::{Options, Store, StoreError};
use outlast::{Epoch, Job, MemberId};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How many keys each member has.
pub(crate) const KEYS: u64 = 40;

pub(crate) fn options(replicas: usize) -> Options {
    Options::new().replicas(replicas).partitions(32).expected_keys(1024).salvage(true)
}

/// Waits until the condition holds. The order of the engine calls is part of the schedules of
/// seeds.
pub(crate) fn wait_until(job: &Job, what: &str, mut condition: impl FnMut() -> bool) {
    let until = job.now().after(Duration::from_secs(30));
    while !condition() {
        assert!(job.now() < until, "{} waited in vain for: {what}", job.me());
        job.park(job.bell(), job.now().after(Duration::from_millis(1)));
    }
}

pub(crate) fn value(member: u32, count: u64) -> Vec<u8> {
    let text = format!("{member}/{count}/");
    text.bytes().cycle().take(20 + (count * 37 % 900) as usize).collect()
}

pub(crate) fn key(member: u32, number: u64) -> Vec<u8> {
    format!("own/{member}/{number}").into_bytes()
}

/// The offsets of these bytes in the memory of a living member.
pub(crate) fn find(job: &Job, member: MemberId, bytes: &[u8]) -> Vec<u64> {
    let mut memory = vec![0; job.segment_len(member).expect("living") as usize];
    job.get(Epoch::ANY, member, 0, &mut memory).expect("read");
    (0..memory.len()).filter(|&at| memory[at..].starts_with(bytes)).map(|at| at as u64).collect()
}

/// A byte of a value is overwritten before its member dies: that key is lost, by name, and no other
/// key is.
pub(crate) fn damage_is_named(job: &Job) {
    let store = Store::open(job, options(1)).expect("opened");
    let told: Arc<Mutex<Vec<usize>>> = Arc::default();
    let sink = told.clone();
    store.on_loss(move |lost| sink.lock().unwrap().extend(lost));
    let victim = MemberId(1);
    let names = (0..).map(|number| format!("key/{number}").into_bytes());
    let keys: Vec<Vec<u8>> =
        names.filter(|key| store.replicas_of(key) == [victim]).take(12).collect();
    let value = |number: usize| format!("the value of number {number} is this").into_bytes();
    if job.me() == victim {
        // Until it is killed.
        return wait_until(job, "the end", || false);
    }
    for (number, key) in keys.iter().enumerate() {
        store.put(key, &value(number)).expect("put");
    }
    store.delete(&keys[1]).expect("deleted");
    let places = find(job, victim, &value(5));
    assert_eq!(places.len(), 1, "a single replica");
    job.put(Epoch::ANY, victim, places[0] + 9, b"!").expect("damaged");
    job.fence(victim, job.now().after(Duration::from_secs(10))).expect("killed");
    for (number, key) in keys.iter().enumerate() {
        let found = store.get(key).map(|found| found.map(|found| found.into_bytes()));
        let lost = StoreError::DataLost { partition: store.partition_of(key).expect("a key") };
        match number {
            1 => assert_eq!(found, Ok(None)),
            5 => {
                assert_eq!(found, Err(lost.clone()));
                assert_eq!(store.put(key, b"new").map(drop), Err(lost.clone()));
                assert_eq!(store.delete(key).map(drop), Err(lost.clone()));
                let handle = store.handle(key).expect("a handle");
                assert_eq!(handle.put(b"new").map(drop), Err(lost.clone()));
                assert_eq!(handle.get_into(&mut [0; 100]).map(drop), Err(lost.clone()));
                let both = store.transaction(|tx| {
                    tx.put(key, b"new")?;
                    tx.put(&keys[2], b"new")
                });
                assert_eq!(both, Err(lost));
            }
            _ => assert_eq!(found, Ok(Some(value(number)))),
        }
    }
    assert_eq!(store.lost_keys(), Ok(vec![keys[5].clone()]));
    assert_eq!(store.lost_partitions(), Ok(vec![]));
    let partition = store.partition_of(&keys[5]).expect("a key");
    wait_until(job, "the listener", || told.lock().unwrap().contains(&partition));
    assert_eq!(store.accept_loss(), Ok(vec![partition]));
    assert_eq!((store.lost_keys(), store.get(&keys[5])), (Ok(vec![]), Ok(None)));
    store.put(&keys[5], b"new").expect("put");
    assert_eq!(store.get(&keys[2]).expect("read").expect("there").bytes(), value(2));
    assert_eq!(store.accept_loss(), Ok(vec![]));
    // The memory of the dead member is given back.
    wait_until(job, "the release", || {
        let mut byte = [0; 64];
        let read = job.read_dead_segment(victim, places[0] & !63, &mut byte);
        read.is_err() || byte == [0; 64]
    });
    store.close().expect("closed");
    job.leave().expect("left");
}

//! Placement of replicas under the simulator: failure domains are kept apart, spares take the place
//! of the dead, and an index may have far fewer buckets than keys.

use crate::simulation::run_with;
use outlast::engine::Fault;
use outlast::sim::{Link, Options as SimOptions};
use outlast::store::{Options, Store};
use outlast::{Job, MemberId};
use std::time::Duration;

fn run(change: impl Fn(&mut SimOptions), members: usize, body: impl Fn(Job) + Clone + 'static) {
    for seed in 0..6 {
        let mut options = SimOptions::new(members, seed).link(Link::of_seed(seed));
        change(&mut options);
        run_with(options, body.clone());
    }
}

fn open(job: &Job, replicas: usize) -> Store {
    let options =
        Options::new().replicas(replicas).partitions(16).expected_keys(64).slab_len_max(16 << 10);
    Store::open(job, options).expect("open")
}

fn keys() -> impl Iterator<Item = String> {
    (0..60).map(|number| format!("key/{number}"))
}

/// The first member writes, kills `dead`, and waits for repair. Then all living members read.
fn with_a_death(job: &Job, store: &Store, dead: MemberId) {
    if job.me() == MemberId(0) {
        for key in keys() {
            store.put(key.as_bytes(), key.as_bytes()).expect("put");
        }
        job.inject(Fault::Kill(dead)).expect("a fault");
    }
    let until = job.now().after(Duration::from_secs(60));
    while job.view().is_living(dead) && job.now() < until {
        job.park(job.bell(), until);
    }
    assert!(store.wait_repaired(until).expect("known").is_repaired());
    for key in keys() {
        let value = store.get(key.as_bytes()).expect("read").expect("there");
        assert_eq!(value.bytes(), key.as_bytes());
    }
}

/// Three racks of two members: the replicas of every key are in different racks, before and after a
/// death, and also when a whole rack has died.
#[test]
fn replicas_are_in_different_failure_domains() {
    let domains = || ["a/0", "a/1", "b/2", "b/3", "c/4", "c/5"].map(String::from).to_vec();
    let change = move |options: &mut SimOptions| options.domains = domains();
    run(change, 6, |job| {
        let store = open(&job, 2);
        let are_apart = || {
            keys().all(|key| {
                let replicas = store.replicas_of(key.as_bytes());
                replicas.len() == 2 && replicas[0].0 / 2 != replicas[1].0 / 2
            })
        };
        assert!(are_apart());
        with_a_death(&job, &store, MemberId(2));
        assert!(are_apart());
        if job.me() == MemberId(3) {
            job.inject(Fault::Kill(MemberId(3))).expect("a fault");
        }
        let until = job.now().after(Duration::from_secs(60));
        while job.view().is_living(MemberId(3)) && job.now() < until {
            job.park(job.bell(), until);
        }
        assert!(store.wait_repaired(until).expect("known").is_repaired());
        assert!(are_apart());
        assert!(keys().all(|key| store.get(key.as_bytes()).expect("read").is_some()));
        let _ = store.close();
        let _ = job.leave();
    });
}

/// A spare holds nothing until a death activates it. Then it is the replica of all partitions of
/// the dead member, and no other replica moves.
#[test]
fn a_spare_takes_the_place_of_the_dead() {
    run(
        |options| options.spares = 1,
        3,
        |job| {
            let store = open(&job, 2);
            let (dead, spare) = (MemberId(1), MemberId(3));
            let before: Vec<_> = keys().map(|key| store.replicas_of(key.as_bytes())).collect();
            assert!(before.iter().all(|replicas| !replicas.contains(&spare)));
            with_a_death(&job, &store, dead);
            for (key, before) in keys().zip(before) {
                let mut now = store.replicas_of(key.as_bytes());
                let mut wanted: Vec<_> = before
                    .iter()
                    .map(|&replica| if replica == dead { spare } else { replica })
                    .collect();
                now.sort();
                wanted.sort();
                assert_eq!(now, wanted, "{key}");
            }
            if job.me() == spare {
                assert!(store.memory_use().expect("known").values > 0);
            }
            let _ = store.close();
            let _ = job.leave();
        },
    );
}

/// 250 times as many keys as buckets: all calls work, deletes and repair included.
/// docs/decisions/0007-the-index-does-not-grow.md tells what it costs.
#[test]
fn there_may_be_far_more_keys_than_buckets() {
    run(
        |_| {},
        2,
        |job| {
            let options =
                Options::new().replicas(2).partitions(1).expected_keys(1).slab_len_max(64 << 10);
            let store = Store::open(&job, options).expect("open");
            let key = |number: u32| format!("a key of some length/{number}");
            if job.me() == MemberId(0) {
                for number in 0..1000 {
                    store.put(key(number).as_bytes(), &number.to_le_bytes()).expect("put");
                }
                for number in (0..1000).step_by(3) {
                    assert!(store.delete(key(number).as_bytes()).expect("delete"));
                }
                for number in 0..1000u32 {
                    let value = store.get(key(number).as_bytes()).expect("read");
                    let wanted = (number % 3 != 0).then(|| number.to_le_bytes().to_vec());
                    assert_eq!(value.map(|value| value.into_bytes()), wanted);
                }
                assert_eq!(store.keys().expect("listed").len(), 666);
            }
            store.close().expect("close");
            let _ = job.leave();
        },
    );
}

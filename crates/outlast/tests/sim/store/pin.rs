//! Pins under the simulator: a pinned version does not change, though members write, die and are
//! stopped.

use crate::simulation::{run_with, seeds};
use outlast::engine::Fault;
use outlast::sim::{Action, Link, Options as SimOptions, PlannedFault, Random, When};
use outlast::store::{Options, Pin, Store, StoreError};
use outlast::{Job, MemberId};
use std::time::Duration;

fn over_seeds(default: u64, members: usize, body: impl Fn(u64, Job) + Clone + 'static) {
    for seed in seeds(default) {
        let mut options = SimOptions::new(members, seed).link(Link::of_seed(seed));
        if members > 3 && seed % 3 == 0 {
            let action = Action::StopFor(MemberId(2), Duration::from_millis(500));
            let when = When::AtStep(MemberId(2), 500 + seed * 97 % 5000);
            options.faults.push(PlannedFault { when, action });
        }
        let body = body.clone();
        run_with(options, move |job| body(seed, job));
    }
}

fn open(job: &Job, replicas: usize) -> Store {
    let options =
        Options::new().replicas(replicas).partitions(4).expected_keys(16).slab_len_max(4 << 10);
    Store::open(job, options).expect("open")
}

/// A value that differs from all others and from every mix of them.
fn value(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(20)
}

fn check(pin: &Pin, seed: u64) {
    let bytes = match pin.to_vec() {
        Ok(bytes) => bytes,
        // All its replicas are dead; or a replica is stopped and the others are dead.
        Err(StoreError::DataLost { .. } | StoreError::Timeout { .. } | StoreError::Closed) => {
            return;
        }
        Err(error) => panic!("seed {seed}: {error}"),
    };
    assert_eq!(bytes.len() as u64, pin.len());
    let number = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    assert_eq!(bytes, value(number), "seed {seed}: a mix");
    let mut part = [0; 8];
    pin.read(72, &mut part).unwrap_or_else(|_| part = number.to_le_bytes());
    assert_eq!(u64::from_le_bytes(part), number);
}

/// Members pin versions and keep them while all members write a few keys again and again. A member
/// dies at some step, and another is stopped for a while.
#[test]
fn a_pinned_version_does_not_change() {
    over_seeds(60, 4, |seed, job| {
        let store = open(&job, 2);
        let me = job.me();
        let mut random = Random::new(seed << 8 | u64::from(me.0));
        if me == MemberId(3) {
            job.inject(Fault::DieAtStep(100 + random.below(5000))).expect("a fault");
        }
        let mut pins: Vec<(Pin, Option<Vec<u8>>)> = Vec::new();
        for round in 0..150u64 {
            let key = format!("key/{}", random.below(3));
            let key = key.as_bytes();
            let number = u64::from(me.0) << 32 | round;
            let result = match random.below(8) {
                0 => store.delete(key).map(|_| ()),
                1 | 2 => store.pin(key).map(|pin| {
                    pins.extend(pin.map(|pin| {
                        let bytes = pin.to_vec().ok();
                        (pin, bytes)
                    }));
                }),
                3 => store
                    .handle(key)
                    .and_then(|handle| {
                        handle.put(&value(number)).and_then(|_| handle.put(&value(number)))
                    })
                    .map(|_| ()),
                _ => store.put(key, &value(number)).map(|_| ()),
            };
            match result {
                Ok(()) => {}
                Err(
                    StoreError::DataLost { .. } | StoreError::Timeout { .. } | StoreError::Closed,
                ) => {}
                Err(error) => panic!("seed {seed}: {error}"),
            }
            if pins.len() > 8 {
                let (pin, bytes) = pins.swap_remove(random.below(8) as usize);
                check(&pin, seed);
                if let (Some(before), Ok(now)) = (bytes, pin.to_vec()) {
                    assert_eq!(before, now, "seed {seed}: it has changed");
                }
            }
        }
        for (pin, bytes) in &pins {
            check(pin, seed);
            if let (Some(before), Ok(now)) = (bytes, pin.to_vec()) {
                assert_eq!(*before, now, "seed {seed}: it has changed");
            }
        }
        drop(pins);
        let _ = store.close();
        let _ = job.leave();
    });
}

/// A pin keeps its own version and nothing else: other members go on reusing memory. When the pin
/// is dropped, or its holder dies, the memory of the version comes back.
#[test]
fn a_pin_keeps_its_version_and_nothing_else() {
    over_seeds(8, 3, |seed, job| {
        let store = open(&job, 2);
        let writer = MemberId(0);
        if job.me() == writer {
            store.put(b"key", &vec![1; 3000]).expect("put");
            store.put(b"ready", b"").expect("put");
            while !store.exists(b"pinned").expect("read") {
                job.sleep(Duration::from_millis(1));
            }
            let rewrite = |times: u64| {
                for number in 0..times {
                    store.put(b"key", &vec![number as u8; 3000]).expect("put");
                }
            };
            rewrite(200);
            let before = store.memory_use().expect("known").total();
            rewrite(1500);
            let after = store.memory_use().expect("known").total();
            // How many batches wait for a grace period depends on the slowest messages so far. If
            // versions were kept too long, there would be 3 KiB for each of them: 4500 KiB.
            assert!(after <= before + (256 << 10), "seed {seed}: {before} bytes, then {after}");
            store.put(b"rewritten", b"").expect("put");
        } else if job.me() == MemberId(1) {
            while !store.exists(b"ready").expect("read") {
                job.sleep(Duration::from_millis(1));
            }
            let pins: Vec<Pin> =
                (0..20).map(|_| store.pin(b"key").expect("pinned").expect("there")).collect();
            store.put(b"pinned", b"").expect("put");
            while !store.exists(b"rewritten").expect("read") {
                job.sleep(Duration::from_millis(5));
            }
            assert!(pins.iter().all(|pin| pin.to_vec().expect("read") == vec![1; 3000]));
            assert!(matches!(pins[0].read(2999, &mut [0; 2]), Err(StoreError::Invalid { .. })));
            drop(pins);
            assert_eq!(store.pin(b"nothing").expect("read").map(|pin| pin.len()), None);
            // As many as there are handles, and another pin.
            let pins: Vec<Pin> =
                (0..64).map(|_| store.pin(b"key").expect("pinned").expect("there")).collect();
            assert!(matches!(store.pin(b"key"), Err(StoreError::Invalid { .. })));
            drop(pins);
            store.pin(b"key").expect("pinned").expect("there");
        }
        store.close().expect("close");
        let _ = job.leave();
    });
}

/// The only replica of a version is pinned, its key is rewritten, and the holder of the pin dies:
/// the memory is used again.
#[test]
fn a_pin_ends_with_its_holder() {
    over_seeds(8, 3, |seed, job| {
        let store = open(&job, 1);
        let holder = MemberId(2);
        let keys: Vec<String> = (0..40).map(|number| format!("key/{number}")).collect();
        if job.me() == MemberId(0) {
            for key in &keys {
                store.put(key.as_bytes(), &vec![1; 1000]).expect("put");
            }
            store.put(b"ready", b"").expect("put");
        }
        while !store.exists(b"ready").expect("read") {
            job.sleep(Duration::from_millis(1));
        }
        if job.me() == holder {
            let pins: Vec<_> =
                keys.iter().map(|key| store.pin(key.as_bytes()).expect("pinned")).collect();
            store.put(b"pinned", b"").expect("put");
            job.sleep(Duration::from_millis(200));
            job.inject(Fault::Kill(holder)).expect("a fault");
            job.sleep(Duration::from_millis(1000));
            drop(pins);
        }
        let until = job.now().after(Duration::from_secs(60));
        if job.me() == MemberId(0) {
            while !store.exists(b"pinned").unwrap_or(true) {
                job.sleep(Duration::from_millis(1));
            }
            let _ = keys.iter().try_for_each(|key| store.delete(key.as_bytes()).map(|_| ()));
        }
        while job.view().is_living(holder) && job.now() < until {
            job.sleep(Duration::from_millis(5));
        }
        // What is left was lost with the holder, or is at hand.
        let large = |store: &Store| store.memory_use().expect("known");
        while large(&store).held_by_living + large(&store).held_by_dead > 30_000 {
            assert!(job.now() < until, "seed {seed}: {:?}", large(&store));
            job.sleep(Duration::from_millis(50));
        }
        let _ = store.close();
        let _ = job.leave();
    });
}

/// A version that is pinned while a transaction has locked the key, or has released it, is a
/// complete value that a member wrote.
#[test]
fn a_version_is_pinned_whole_among_transactions() {
    over_seeds(60, 3, |seed, job| {
        let store = open(&job, 2);
        let keys = [b"left".as_slice(), b"right"];
        for number in 0..20 {
            let number = seed * 1000 + number * 10 + u64::from(job.me().0);
            let result: Result<(), StoreError> = store.transaction(|tx| {
                for key in keys {
                    tx.put(key, &value(number))?;
                }
                // Every third transaction is rolled back: the previous value returns, in another
                // form.
                if number % 3 == 0 { Err(StoreError::Closed) } else { Ok(()) }
            });
            assert!(matches!(result, Ok(()) | Err(StoreError::Closed)), "{result:?}");
            for key in keys {
                if let Some(pin) = store.pin(key).expect("pinned") {
                    let bytes = pin.to_vec().expect("read");
                    let first = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
                    assert_eq!(bytes, value(first), "seed {seed}");
                    assert!(first % 3 != 0, "seed {seed}: {first} was given back");
                    let before = pin.version();
                    check(&pin, seed);
                    assert_eq!(pin.version(), before);
                }
            }
        }
        store.close().expect("closed");
        job.leave().expect("left");
    });
}

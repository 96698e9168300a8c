//! Several stores of a job, and a store that is closed and opened again, under deaths and stops.

use super::small_options as options;
use crate::simulation::{nap, replay, seeds, test_name};
use outlast::engine::Fault;
use outlast::sim::{self, Link, Options as SimOptions};
use outlast::store::{NAME_LEN_MAX, Options, Store, StoreError};
use outlast::{Job, MemberId};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Runs a body over seeds, on both links.
fn over_seeds(
    count: u64,
    plan: impl Fn(SimOptions, u64) -> SimOptions,
    body: impl Fn(Job) + Clone + 'static,
) {
    for seed in seeds(count) {
        let options = SimOptions::new(3, seed).link(Link::of_seed(seed));
        let mut options = plan(options, seed);
        options.steps_max = 10_000_000;
        let report = sim::run(&options, body.clone());
        assert!(
            report.is_ok(),
            "seed {seed}: {:?}\n{:#?}\n{:#?}\n{}",
            report.outcome,
            report.panics,
            report.hung,
            replay(&test_name(), seed)
        );
    }
}

fn value_of(store: &Store, key: &str) -> Option<Vec<u8>> {
    let read = store.get(key.as_bytes());
    read.unwrap_or_else(|error| panic!("{} of {:?}: {error}", key, store.name()))
        .map(|value| value.bytes().to_vec())
}

/// Each member writes equal keys with other values into two stores, while a member dies.
#[test]
fn several_stores_of_a_job_keep_their_values_apart_under_a_death() {
    let plan = |options: SimOptions, _| options.random_faults(1, 0, 2000);
    over_seeds(60, plan, |job| {
        let first = Store::open(&job, options(2));
        let second = Store::open(&job, options(2).name("second").partitions(4));
        let (first, second) = (first.expect("open"), second.expect("open"));
        let me = job.me();
        for round in 0..8 {
            for (store, text) in [(&first, "first"), (&second, "second")] {
                let key = format!("key/{me}/{round}");
                store.put(key.as_bytes(), format!("{text} {me}").as_bytes()).expect("put");
            }
            store_add(&first, 1);
            store_add(&second, 100);
        }
        for round in 0..8 {
            let key = format!("key/{me}/{round}");
            assert_eq!(value_of(&first, &key), Some(format!("first {me}").into_bytes()));
            assert_eq!(value_of(&second, &key), Some(format!("second {me}").into_bytes()));
        }
        let sum = second.add(b"sum", 0).expect("read");
        assert!(sum % 100 == 0 && sum >= 800, "{sum} is a sum of the other store");
        // The members close the stores in any order.
        let mut stores = [first, second];
        stores.rotate_left(me.index() % 2);
        let [one, other] = stores;
        let (job2, closed) = (job.clone(), one.clone());
        let closing = job.spawn("close", Box::new(move || drop(closed.close()))).expect("spawned");
        let _ = other.close();
        assert!(job2.wait_for(&closing, outlast::Time::NEVER));
        let _ = job.leave();
    });
}

fn store_add(store: &Store, delta: i64) {
    store.add(b"sum", delta).expect("added");
}

/// The second call of `open` destroyed the open store: acknowledged values were gone.
#[test]
fn a_store_that_is_open_is_not_opened_again_and_stays_as_it_is() {
    over_seeds(
        10,
        |options, _| options,
        |job| {
            let name = ["", "results"][job.members() % 2];
            let store = Store::open(&job, options(2).name(name)).expect("open");
            let me = job.me();
            for number in 0..20 {
                store.put(format!("{me}/{number}").as_bytes(), b"acknowledged").expect("put");
            }
            for options in [options(2).name(name), options(1).name(name).partitions(2)] {
                let began = job.now();
                let refused = Store::open(&job, options).unwrap_err();
                assert_eq!(refused, StoreError::AlreadyOpen { name: name.into() });
                assert!(refused.to_string().contains("open already"), "{refused}");
                assert!(job.now().since(began) < Duration::from_millis(10), "refused at once");
            }
            for number in 0..20 {
                let value = value_of(&store, &format!("{me}/{number}"));
                assert_eq!(value.as_deref(), Some(&b"acknowledged"[..]));
            }
            let long =
                Store::open(&job, options(2).name("n".repeat(NAME_LEN_MAX + 1))).unwrap_err();
            assert!(matches!(long, StoreError::Invalid { .. }), "{long}");
            store.close().expect("closed");
            let _ = job.leave();
        },
    );
}

/// A round of a store: it is empty of the values of earlier rounds, and keeps those of its own.
fn round(job: &Job, store: &Store, number: u64) {
    let value = number.to_le_bytes();
    let me = job.me();
    for member in 0..job.members() {
        let found = value_of(store, &format!("key/{member}"));
        assert!(found.is_none_or(|found| found == value), "a value of an earlier opening");
    }
    store.put(format!("key/{me}").as_bytes(), &value).expect("put");
    assert_eq!(value_of(store, &format!("key/{me}")), Some(value.to_vec()));
}

/// Deaths come at any step, also between close and open, and in the middle of both.
#[test]
fn a_store_is_opened_again_after_close_while_members_die() {
    let plan = |mut options: SimOptions, seed: u64| {
        options.members = 4;
        options.random_faults((seed % 3) as usize, 0, 4000)
    };
    over_seeds(150, plan, |job| {
        for number in 0..5 {
            let store = Store::open(&job, options(3)).expect("open");
            round(&job, &store, number);
            store.close().expect("closed");
        }
        let _ = job.leave();
    });
}

/// In global mode each opening has a communicator of its own.
#[test]
fn stores_in_global_mode_are_opened_together_and_again() {
    over_seeds(
        20,
        |options, _| options,
        |job| {
            for number in 0..3 {
                let global = options(2).mode(outlast::store::Mode::Global);
                let first = Store::open(&job, global.clone()).expect("open");
                let second = Store::open(&job, global.name("second")).expect("open");
                // A recovery of the first store leaves the second alone.
                if number == 1 {
                    first.recover(|_, _| Ok::<(), StoreError>(())).expect("recovered");
                } else {
                    round(&job, &first, number);
                }
                round(&job, &second, number + 100);
                first.close().expect("closed");
                second.close().expect("closed");
            }
            let _ = job.leave();
        },
    );
}

/// A member is stopped before it closes: the others time out, open the store again, and time out
/// again. When the member resumes it closes and opens the store, and all go on.
#[test]
fn a_member_that_is_late_to_close_and_to_open_is_waited_for() {
    for seed in seeds(20) {
        let mut plan = SimOptions::new(3, seed).link(Link::of_seed(seed));
        (plan.steps_max, plan.time_limit) = (10_000_000, Duration::from_secs(2));
        let late = MemberId(2);
        let stage = Rc::new(Cell::new(0));
        let report = sim::run(&plan, move |job: Job| {
            let store = Store::open(&job, options(2)).expect("open");
            round(&job, &store, 0);
            store.wait(b"key/m1", None, job.now()).expect("read");
            if job.me() == MemberId(0) {
                nap(&job, "all values", || store.keys().expect("listed").len() == 3);
                job.inject(Fault::Stop(late)).expect("a fault");
                stage.set(1);
            } else {
                while stage.get() == 0 {
                    job.sleep(Duration::from_micros(1));
                }
            }
            if job.me() == late {
                store.close().expect("closed");
            } else {
                let closed = store.close().unwrap_err();
                assert!(matches!(closed, StoreError::Timeout { member, .. } if member == late));
            }
            drop(store);
            let opened = Store::open(&job, options(2));
            if job.me() == MemberId(0) {
                let timeout = opened.as_ref().unwrap_err();
                assert!(matches!(timeout, StoreError::Timeout { member, .. } if *member == late));
                job.inject(Fault::Resume(late)).expect("a fault");
            }
            // A member whose call has failed takes the opening up.
            let opened = opened.or_else(|_| Store::open(&job, options(2)));
            let store = opened.expect("open");
            round(&job, &store, 1);
            store.close().expect("closed");
            let _ = job.leave();
        });
        report.expect_ok();
    }
}

#[test]
fn a_store_is_opened_after_options_that_differed() {
    over_seeds(
        20,
        |options, _| options,
        |job| {
            let odd = options(1 + usize::from(job.me() == MemberId(1)));
            let refused = Store::open(&job, odd).unwrap_err();
            assert!(matches!(refused, StoreError::Invalid { .. }), "{refused}");
            // A member may begin the next opening before another has given its options up.
            let store = loop {
                match Store::open(&job, options(2)) {
                    Err(StoreError::Invalid { .. }) => job.sleep(Duration::from_millis(1)),
                    opened => break opened.expect("open"),
                }
            };
            let again = Store::open(&job, options(2)).unwrap_err();
            assert_eq!(again, StoreError::AlreadyOpen { name: String::new() });
            round(&job, &store, 7);
            store.close().expect("closed");
            let _ = job.leave();
        },
    );
}

/// Without the memory of the closed openings the segment would be full after a few rounds.
#[test]
fn the_memory_of_a_closed_store_is_used_again() {
    let plan = |mut options: SimOptions, _| {
        options.segment_limit = 2 << 20;
        options
    };
    over_seeds(4, plan, |job| {
        for number in 0..20 {
            let store = Store::open(&job, options(2).name("again")).expect("open");
            for key in 0..4 {
                let key = format!("{}/{key}", job.me());
                store.put(key.as_bytes(), &vec![number; 50_000]).expect("room");
            }
            store.close().expect("closed");
        }
        let _ = job.leave();
    });
}

/// A pin reads a closed store, since its member keeps the memory until the pin is dropped.
#[test]
fn a_pin_keeps_the_memory_of_a_closed_store() {
    over_seeds(
        6,
        |options, _| options,
        |job| {
            let key = format!("{}", job.me());
            let store = Store::open(&job, options(2)).expect("open");
            store.put(key.as_bytes(), &[7; 3000]).expect("put");
            let pin = store.pin(key.as_bytes()).expect("pinned").expect("there");
            store.close().expect("closed");
            drop(store);
            for number in 1..4 {
                let store = Store::open(&job, options(2)).expect("open");
                for member in 0..6 {
                    store.put(format!("{member}").as_bytes(), &[number; 3000]).expect("put");
                }
                store.close().expect("closed");
                assert_eq!(pin.to_vec().expect("read"), [7; 3000]);
            }
            drop(pin);
            let _ = job.leave();
        },
    );
}

/// With a single replica of each value nothing is lost: the leaver hands over what it holds in both
/// stores.
#[test]
fn a_leaver_hands_over_the_replicas_of_all_its_stores() {
    over_seeds(
        30,
        |options, _| options,
        |job| {
            let first = Store::open(&job, options(1)).expect("open");
            let second = Store::open(&job, options(1).name("second")).expect("open");
            let key = |number: u32| format!("key/{number}");
            if job.me() == MemberId(0) {
                for number in 0..30 {
                    first.put(key(number).as_bytes(), b"first").expect("put");
                    second.put(key(number).as_bytes(), b"second").expect("put");
                }
                second.put(b"ready", b"").expect("put");
            }
            let soon = job.now().after(Duration::from_secs(60));
            second.wait(b"ready", None, soon).expect("waited").expect("came");
            if job.me() == MemberId(2) {
                first.leave(job.now().after(Duration::from_secs(60))).expect("left");
                assert_eq!(second.get(b"ready"), Err(StoreError::Closed));
                return;
            }
            nap(&job, "the leaver", || !job.view().is_living(MemberId(2)));
            for number in 0..30 {
                assert_eq!(value_of(&first, &key(number)).as_deref(), Some(&b"first"[..]));
                assert_eq!(value_of(&second, &key(number)).as_deref(), Some(&b"second"[..]));
            }
            first.close().expect("closed");
            second.close().expect("closed");
            let _ = job.leave();
        },
    );
}

/// The dead segments are kept until both stores are salvaged.
#[test]
fn every_store_of_a_job_is_salvaged() {
    let plan = |mut options: SimOptions, seed| {
        (options.keeps_dead_segments, options.link) = (true, Link::Memory);
        options.seed = seed;
        options
    };
    over_seeds(40, plan, |job| {
        let salvaged = |name: &str| -> Options { options(1).salvage(true).name(name) };
        let first = Store::open(&job, salvaged("first")).expect("open");
        let second = Store::open(&job, salvaged("second").partitions(64)).expect("open");
        let key = |number: u32| format!("key/{number}");
        if job.me() == MemberId(0) {
            for number in 0..20 {
                first.put(key(number).as_bytes(), b"first").expect("put");
                second.put(key(number).as_bytes(), b"second").expect("put");
            }
            job.inject(Fault::Kill(MemberId(1))).expect("a fault");
        }
        nap(&job, "the death", || !job.view().is_living(MemberId(1)));
        // The first store is salvaged long before the second is asked.
        for number in 0..20 {
            let value = value_of(&first, &key(number));
            assert!(job.me() != MemberId(0) || value.as_deref() == Some(&b"first"[..]));
        }
        job.sleep(Duration::from_secs(1));
        for number in 0..20 {
            let value = value_of(&second, &key(number));
            assert!(job.me() != MemberId(0) || value.as_deref() == Some(&b"second"[..]));
        }
        first.close().expect("closed");
        second.close().expect("closed");
        let _ = job.leave();
    });
}

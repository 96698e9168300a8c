//! The number of round trips of the store's calls over a network, read from a simulated clock that
//! counts only latency. [`super::messages`] counts requests.

use crate::simulation::nap;
use outlast::sim::{self, Cost, Link, Options as SimOptions};
use outlast::store::{Options, Store};
use outlast::{Job, MemberId};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const LATENCY: Duration = Duration::from_millis(10);

/// A caller that is not a replica, so that every replica is remote.
const SPARE: MemberId = MemberId(3);

/// A caller that is a replica of every key.
const REPLICA: MemberId = MemberId(1);

fn round_trips<T>(job: &Job, call: impl FnOnce() -> T) -> u128 {
    let began = job.now();
    call();
    job.now().since(began).as_nanos() / (2 * LATENCY.as_nanos())
}

/// Runs three replicas and a spare, of which `caller` makes the calls. Whenever the caller asks for
/// it, member 0 makes the call `other`.
fn run(
    caller: MemberId,
    calls: impl Fn(&Job, &Store, &dyn Fn()) + 'static,
    other: impl Fn(&Store) + 'static,
) {
    let (is_over, is_asked) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let mut options = SimOptions::new(3, 0).link(Link::Network);
    options.spares = 1;
    options.cost = Some(Cost {
        latency: LATENCY,
        overhead: Duration::from_nanos(1),
        gap: Duration::ZERO,
        gap_per_byte_ps: 0,
        local: Duration::from_nanos(1),
    });
    sim::run(&options, move |job: Job| {
        let store = Store::open(&job, Options::new().replicas(3).partitions(4)).expect("open");
        if job.me() == caller {
            let ask = || {
                is_asked.set(true);
                nap(&job, "the other member", || !is_asked.get());
            };
            calls(&job, &store, &ask);
            is_over.set(true);
        }
        let serve = || {
            if job.me() == MemberId(0) && is_asked.get() {
                other(&store);
                is_asked.set(false);
            }
            is_over.get()
        };
        nap(&job, "the calling member", serve);
        store.close().expect("closed");
        job.leave().expect("left");
    })
    .expect_ok();
}

/// The location that a handle or the member's location cache has is not looked up again: a put
/// waits for the primary, and then for all other replicas at once, and a get for the primary.
#[test]
fn a_cached_location_is_not_looked_up_again() {
    let calls = |job: &Job, store: &Store, _: &dyn Fn()| {
        let handle = store.handle(b"by handle").expect("a handle");
        let [first, second] =
            [(); 2].map(|()| round_trips(job, || handle.put(b"value").expect("put")));
        assert!(first > second && second == 2, "{first} and {second}");
        assert_eq!(round_trips(job, || handle.get().expect("read").expect("there")), 1);
        let put = || store.put(b"by key", b"value").expect("put");
        let [first, second] = [(); 2].map(|()| round_trips(job, put));
        assert!(first > second && second == 2, "{first} and {second}");
        let get = || store.get(b"by key").expect("read").expect("there");
        assert_eq!(round_trips(job, get), 1);
        let buffer = &mut [0; 5];
        assert_eq!(
            round_trips(job, || store.get_into(b"by key", buffer).expect("read").expect("there")),
            1
        );
        assert_eq!(buffer, b"value");
    };
    run(SPARE, calls, |_| {});
}

/// A change by another member is seen, although this member has cached an older location, and is
/// cached then.
#[test]
fn changes_of_other_members_are_seen() {
    let value = |number: u64| vec![number as u8; [5, 5, 700, 20_000, 0][number as usize % 5]];
    let calls = move |job: &Job, store: &Store, ask: &dyn Fn()| {
        let handle = store.handle(b"key").expect("a handle");
        let is_there = |expected: Option<Vec<u8>>| {
            for found in [store.get(b"key"), handle.get()] {
                assert_eq!(found.expect("read").map(|value| value.bytes().to_vec()), expected);
            }
        };
        for number in 0..10 {
            store.put(b"key", b"before").expect("put");
            handle.put(b"before").expect("put");
            is_there(Some(b"before".to_vec()));
            ask();
            is_there(Some(value(number)));
            if value(number).len() < 1000 {
                assert_eq!(round_trips(job, || store.get(b"key").expect("read")), 1);
            }
            ask();
            is_there(None);
        }
    };
    let calls_of_other = Cell::new(0);
    run(SPARE, calls, move |store| {
        let number = calls_of_other.replace(calls_of_other.get() + 1);
        match number % 2 {
            0 => drop(store.put(b"key", &value(number / 2)).expect("put")),
            _ => assert!(store.delete(b"key").expect("deleted")),
        }
    });
}

/// The key of this number whose primary is member 0.
fn key_at_first(store: &Store, number: usize) -> Vec<u8> {
    let keys = (0..).map(|number| format!("key {number}").into_bytes());
    keys.filter(|key| store.replicas_of(key)[0] == MemberId(0)).nth(number).expect("a key")
}

/// A replica answers from its own memory once it knows that its version is stable: after its own
/// write, and after a read that has asked the primary. A change by another member costs a single
/// read that asks again.
#[test]
fn a_get_at_a_near_replica_takes_no_round_trip() {
    for len in [5, 700, 20_000] {
        let calls = move |job: &Job, store: &Store, ask: &dyn Fn()| {
            let (key, own) = (&key_at_first(store, 0), &key_at_first(store, 1));
            let handle = store.handle(key).expect("a handle");
            let get = |expected: u8| {
                round_trips(job, || {
                    let found = store.get(key).expect("read").expect("there");
                    assert_eq!(found.bytes(), vec![expected; len]);
                })
            };
            let get_by_handle = || round_trips(job, || handle.get().expect("read").expect("there"));
            for number in 0..4 {
                ask();
                assert!(get(number) > 0, "another member has changed the key");
                assert_eq!((get(number), get(number)), (0, 0));
                let buffer = &mut vec![0; len];
                assert_eq!(round_trips(job, || store.get_into(key, buffer).expect("read")), 0);
                assert_eq!(round_trips(job, || store.exists(key).expect("read")), 0);
                assert!(get_by_handle() > 0, "the handle does not know of the change");
                assert_eq!((get_by_handle(), get_by_handle()), (0, 0));
            }
            for number in 0..4 {
                store.put(own, &vec![number; len]).expect("put");
                let found = || store.get(own).expect("read").expect("there");
                assert_eq!(found().bytes(), vec![number; len]);
                assert_eq!(round_trips(job, found), 0);
            }
        };
        let number = Cell::new(0);
        run(REPLICA, calls, move |store| {
            let value = vec![number.replace(number.get() + 1); len];
            store.put(&key_at_first(store, 0), &value).expect("put");
        });
    }
}

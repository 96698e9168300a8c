//! Transactions under the simulator: what they do, what they leave when their committer dies or is
//! stopped at any step, and that no member waits for a stopped committer. `outlast sim` runs random
//! programs with transactions.

use super::{end, open};
use crate::simulation::{nap, run_with, seeds, without_panic_messages};
use outlast::engine::Fault;
use outlast::sim::{self, Link, Options as SimOptions};
use outlast::store::{Expect, Options, Store, StoreError, StoreResult, Transaction};
use outlast::{Job, MemberId};
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn run_on(link: Link, seed: u64, members: usize, body: impl Fn(Job) + 'static) {
    run_with(SimOptions::new(members, seed).link(link), body);
}

fn run(seed: u64, members: usize, body: impl Fn(Job) + 'static) {
    run_on(Link::of_seed(seed), seed, members, body);
}

/// Waits until `members` members have come here.
fn meet(job: &Job, store: &Store, name: &str, members: i64) {
    store.add(name.as_bytes(), 1).expect("added");
    nap(job, name, || number(store, name.as_bytes()) >= members);
}

fn number(store: &Store, key: &[u8]) -> i64 {
    let value = store.get(key).expect("read");
    value.map_or(0, |value| i64::from_le_bytes(value.bytes().try_into().expect("8 bytes")))
}

fn text(store: &Store, key: &[u8]) -> Option<String> {
    store.get(key).expect("read").map(|value| String::from_utf8(value.into_bytes()).expect("text"))
}

fn each(seeds: std::ops::Range<u64>, members: usize, body: fn(&Job, &Store)) {
    for seed in seeds {
        run(seed, members, move |job| {
            let store = open(&job, 2.min(members));
            body(&job, &store);
            end(&job, &store);
        });
    }
}

/// A transaction sees its own changes. Other members see none of them before its end, and all of
/// them after it.
#[test]
fn a_transaction_reads_its_own_writes_and_is_atomic() {
    each(seeds(6), 3, |job, store| {
        if job.me() == MemberId(0) {
            let created = store.put(b"old", b"before").expect("put");
            let result: StoreResult<u32> = store.transaction(|tx| {
                assert_eq!(tx.get(b"old")?.as_deref(), Some(&b"before"[..]));
                assert_eq!(tx.get(b"new")?, None);
                tx.put(b"new", b"first")?;
                tx.put(b"new", b"second")?;
                assert_eq!(tx.get(b"new")?.as_deref(), Some(&b"second"[..]));
                assert!(tx.delete(b"old")? && !tx.delete(b"old")? && !tx.delete(b"never")?);
                assert_eq!(tx.get(b"old")?, None);
                assert_eq!(tx.get_before(b"old")?.expect("there").version(), created);
                assert_eq!((tx.add(b"sum", 5)?, tx.add(b"sum", -2)?), (5, 3));
                // Other members see nothing of it yet.
                assert_eq!(text(store, b"old").as_deref(), Some("before"));
                assert_eq!(text(store, b"new"), None);
                Ok(7)
            });
            assert_eq!(result, Ok(7));
        }
        nap(job, "the transaction", || store.exists(b"new").expect("read"));
        assert_eq!((text(store, b"new").as_deref(), text(store, b"old")), (Some("second"), None));
        assert_eq!(number(store, b"sum"), 3);
    });
}

/// Owners are as with plain calls: the member that makes a key owns it, a put does not change the
/// owner, an adoption does.
#[test]
fn keys_are_adopted_in_transactions() {
    each(seeds(4), 3, |job, store| {
        if job.me() == MemberId(0) {
            store.put(b"a", b"1").expect("put");
            store.put(b"b", b"2").expect("put");
        }
        meet(job, store, "made", 3);
        if job.me() == MemberId(1) {
            let adopted: StoreResult<bool> = store.transaction(|tx| {
                tx.put(b"b", b"3")?;
                tx.put(b"c", b"4")?;
                Ok(tx.adopt(b"a")? && !tx.adopt(b"none")?)
            });
            assert_eq!(adopted, Ok(true));
        }
        meet(job, store, "adopted", 3);
        let owned = |member| -> BTreeSet<Vec<u8>> {
            let keys = store.keys_of(MemberId(member)).expect("listed");
            keys.into_iter().filter(|key| key.len() == 1).collect()
        };
        let keys = |keys: &[&[u8]]| keys.iter().map(|key| key.to_vec()).collect::<BTreeSet<_>>();
        assert_eq!((owned(0), owned(1)), (keys(&[b"b"]), keys(&[b"a", b"c"])));
        assert_eq!(text(store, b"a").as_deref(), Some("1"));
        let values = store.job_stats().expect("known");
        assert_eq!(values.keys, 3 + 2, "three keys, two meetings, and nothing of the store's own");
    });
}

/// The versions that a commit reports are the versions that readers see.
#[test]
fn a_commit_reports_the_versions_that_readers_see() {
    each(seeds(4), 2, |job, store| {
        if job.me() == MemberId(0) {
            let before = store.put(b"a", b"1").expect("put");
            let mut tx = store.begin();
            tx.require(b"a", Expect::Version(before)).expect("as it is");
            tx.require(b"b", Expect::Absent).expect("as it is");
            assert_eq!(
                tx.require(b"a", Expect::Absent),
                Err(StoreError::Conflict { found: Some(before) }),
                "a condition that does not hold"
            );
            for key in [b"a", b"b", b"c"] {
                tx.put(key, b"2").expect("noted");
            }
            tx.commit().expect("committed");
            assert_eq!(tx.versions().len(), 3);
            for (key, version) in tx.versions() {
                let value = store.get(key).expect("read").expect("there");
                assert_eq!((value.version(), value.bytes()), (*version, &b"2"[..]));
            }
            // A plain conditional put on a version that a transaction wrote, and a conditional put
            // of a transaction on a version that a plain call wrote.
            let (key, version) = tx.versions()[0].clone();
            let next = store.put_if(&key, b"3", Expect::Version(version)).expect("as it was told");
            assert!(next > version);
            let mut tx = store.begin();
            assert_eq!(
                tx.require(&key, Expect::Version(version)),
                Err(StoreError::Conflict { found: Some(next) })
            );
        }
    });
}

/// A transaction by handle does not commit if another write has overtaken its read. A transaction
/// by closure runs again and sees the new value.
#[test]
fn an_overtaken_transaction_does_not_commit() {
    each(seeds(6), 2, |job, store| {
        if job.me() != MemberId(0) {
            return;
        }
        for key in [b"a", b"b"] {
            store.put(key, b"1").expect("put");
        }
        // The key is changed under a transaction that writes it, and under a transaction that only
        // reads it. It is also made, and made and deleted.
        for (read, touch) in [
            (&b"a"[..], 0),
            (b"r", 1),
            (b"r", 2),
            (b"absent", 3),
            (b"absent", 4),
            (b"only-absent", 4),
        ] {
            store.put(b"r", b"1").expect("put");
            let _ = store.delete(b"absent").expect("deleted");
            let mut tx = store.begin();
            let _ = tx.get(read).expect("read");
            tx.put(b"a", b"2").expect("noted");
            tx.put(b"b", b"2").expect("noted");
            match touch {
                0 => _ = store.put(b"a", b"other").expect("put"),
                1 => _ = store.put(b"r", b"1").expect("put"),
                2 => _ = store.delete(b"r").expect("deleted"),
                3 => _ = store.put(b"absent", b"other").expect("put"),
                _ => {
                    store.put(read, b"other").expect("put");
                    store.delete(read).expect("deleted");
                }
            }
            assert_eq!(tx.commit(), Err(StoreError::Aborted), "{touch}");
            assert_eq!(tx.commit(), Err(StoreError::TransactionOver { how: "not carried out" }));
            assert_eq!(text(store, b"b").as_deref(), Some("1"), "nothing of it happened");
        }
        let mut runs = 0;
        let sum: StoreResult<i64> = store.transaction(|tx| {
            runs += 1;
            let sum = tx.add(b"sum", 1)?;
            tx.put(b"seen", &sum.to_le_bytes())?;
            if runs < 5 {
                store.add(b"sum", 10)?;
            }
            Ok(sum)
        });
        assert!(runs >= 5, "{runs}");
        assert_eq!(
            (sum.expect("committed"), number(store, b"seen")),
            (number(store, b"sum"), number(store, b"sum"))
        );
    });
}

/// An abort leaves no trace: no value, no version, no key.
#[test]
fn an_abort_leaves_no_trace() {
    each(seeds(6), 3, |job, store| {
        if job.me() != MemberId(0) {
            return;
        }
        let version = store.put(b"a", b"1").expect("put");
        let hold = hold(store, &[b"a", b"none"]);
        // The keys are locked, and the transaction is pending: readers see the values before it.
        let value = store.get(b"a").expect("read").expect("there");
        assert_eq!((value.bytes(), value.version()), (&b"1"[..], version));
        assert!(!store.exists(b"none").expect("read"));
        assert_eq!(store.keys().expect("listed"), [b"a"]);
        drop(hold);
        let value = store.get(b"a").expect("read").expect("there");
        assert_eq!(
            (value.bytes(), value.version(), value.owner()),
            (&b"1"[..], version, MemberId(0))
        );
        let mut buffer = [0; 8];
        assert_eq!(store.get_into(b"a", &mut buffer), Ok(Some((1, version))));
        assert_eq!(store.keys().expect("listed"), [b"a"]);
        let handle = store.handle(b"a").expect("a key");
        assert_eq!(handle.get().expect("read").expect("there").version(), version);
        let next =
            handle.put_if(b"22", Expect::Version(version)).expect("the version has not changed");
        assert!(next > version);
        assert_eq!(text(store, b"a").as_deref(), Some("22"));
        // Again, with a handle that has cached the location.
        drop(self::hold(store, &[b"a"]));
        handle.put(b"333").expect("put");
        assert_eq!(handle.get().expect("read").expect("there").bytes(), b"333");
        store.put(b"none", b"now").expect("put");
        assert_eq!(text(store, b"none").as_deref(), Some("now"));
    });
}

/// A transaction that has locked these keys: from its third attempt on a transaction locks its keys
/// before it does anything else.
fn hold(store: &Store, keys: &[&[u8]]) -> Transaction {
    let mut tx = store.begin();
    for _ in 0..2 {
        for key in keys {
            let _ = tx.get(key).expect("read");
        }
        tx.abort();
        tx.retry().expect("begun again");
    }
    tx
}

#[derive(Debug, PartialEq)]
enum Mine {
    Wanted,
    Store(StoreError),
}

impl From<StoreError> for Mine {
    fn from(error: StoreError) -> Mine {
        Mine::Store(error)
    }
}

/// Misuse: an error of the closure, a panic, a commit after an abort, a transaction inside another,
/// invalid keys.
#[test]
fn misuse_is_refused_and_changes_nothing() {
    each(seeds(4), 2, |job, store| {
        if job.me() != MemberId(0) {
            return;
        }
        let refused: Result<(), Mine> = store.transaction(|tx| {
            tx.put(b"a", b"1")?;
            tx.put(b"b", b"1")?;
            Err(Mine::Wanted)
        });
        assert_eq!(refused, Err(Mine::Wanted));
        let panicking = AssertUnwindSafe(|| {
            let _: StoreResult<()> = store.transaction(|tx| {
                tx.put(b"a", b"1")?;
                tx.put(b"b", b"1")?;
                panic!("in the middle");
            });
        });
        let panicked = without_panic_messages(|| std::panic::catch_unwind(panicking));
        assert!(panicked.is_err());
        let nested: Result<(), Mine> = store.transaction(|tx| {
            tx.put(b"a", b"1")?;
            store.transaction(|inner| inner.put(b"b", b"1").map_err(Mine::from))
        });
        assert_eq!(nested, Err(Mine::Store(StoreError::Nested)));
        let mut tx = store.begin();
        tx.put(b"a", b"1").expect("noted");
        tx.abort();
        tx.abort();
        let over = Err(StoreError::TransactionOver { how: "aborted" });
        assert_eq!((tx.commit(), tx.put(b"a", b"1")), (over.clone(), over));
        assert_eq!(tx.get(b"a"), Err(StoreError::TransactionOver { how: "aborted" }));
        let mut tx = store.begin();
        assert_eq!(tx.put(b"", b"1"), Err(StoreError::BadKey { len: 0 }));
        assert_eq!(tx.get(&[7; 2000]), Err(StoreError::BadKey { len: 2000 }));
        assert_eq!(tx.commit(), Ok(()), "nothing to do is done");
        assert_eq!(tx.commit(), Err(StoreError::TransactionOver { how: "committed" }));
        assert!(store.is_empty().expect("listed"), "{:?}", store.keys());
        // This activity may run a transaction again.
        let done: StoreResult<()> = store.transaction(|tx| tx.put(b"a", b"1"));
        assert_eq!(done, Ok(()));
        let wrong: StoreResult<i64> = store.transaction(|tx| tx.add(b"a", 1));
        assert!(matches!(wrong, Err(StoreError::WrongType { .. })), "{wrong:?}");
    });
}

/// More than the memory of the replicas: the transaction fails, nothing of it happens, and the
/// store goes on.
#[test]
fn a_transaction_larger_than_memory_is_refused() {
    for seed in seeds(4) {
        let mut options = SimOptions::new(2, seed).link(Link::of_seed(seed));
        options.segment_limit = 1 << 20;
        options.steps_max = 20_000_000;
        let report = sim::run(&options, |job| {
            let store = open(&job, 2);
            if job.me() == MemberId(0) {
                store.put(b"key/0", b"before").expect("put");
                let refused: StoreResult<()> = store.transaction(|tx| {
                    (0..20).try_for_each(|n| tx.put(format!("key/{n}").as_bytes(), &[7; 100_000]))
                });
                assert!(matches!(refused, Err(StoreError::OutOfMemory { .. })), "{refused:?}");
                assert_eq!(text(&store, b"key/0").as_deref(), Some("before"));
                assert_eq!(store.keys().expect("listed"), [b"key/0"]);
                // The keys that it had locked are released, and its memory comes back.
                for n in 0..20 {
                    let key = format!("key/{n}");
                    store.put(key.as_bytes(), &[8; 1000]).expect("put");
                }
                let done: StoreResult<()> = store.transaction(|tx| {
                    (0..20).try_for_each(|n| tx.put(format!("key/{n}").as_bytes(), &[9; 1000]))
                });
                assert_eq!(done, Ok(()));
            }
            end(&job, &store);
        });
        report.expect_ok();
    }
}

/// Puts values until all replicas are full to the last block.
fn fill(store: &Store, member: MemberId) {
    for len in [3000, 700, 200, 60, 1] {
        let mut failures = 0;
        for number in 0.. {
            match store.put(format!("{member}/{len}/{number}").as_bytes(), &vec![7; len]) {
                Ok(_) => {}
                Err(StoreError::OutOfMemory { .. }) if failures < 30 => failures += 1,
                Err(StoreError::OutOfMemory { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// A transaction has locked two keys when the replicas become full, and is given up. The keys have
/// their old values, and can be deleted, also by another member.
#[test]
fn a_key_that_was_locked_can_be_deleted_without_free_memory() {
    for seed in seeds(6) {
        let stage = std::rc::Rc::new(std::cell::Cell::new(0));
        let mut options = SimOptions::new(2, seed).link(Link::of_seed(seed));
        (options.steps_max, options.segment_limit) = (40_000_000, 512 << 10);
        let report = sim::run(&options, move |job: Job| {
            let store = open(&job, 2);
            if job.me() == MemberId(0) {
                store.put(b"one", &[1; 3000]).expect("put");
                let mut tx = store.begin();
                // From its third attempt on a transaction locks all keys before its closure runs.
                for attempt in 0..3 {
                    tx.put(b"one", &[2; 3000]).expect("put");
                    tx.put(b"two", &[2; 3000]).expect("put");
                    if attempt < 2 {
                        tx.retry().expect("begun again");
                    }
                }
                fill(&store, job.me());
                store.put(b"three", &[3; 3000]).expect_err("no room");
                drop(tx);
                stage.set(1);
            }
            nap(&job, "the other member", || stage.get() >= 1);
            if job.me() == MemberId(1) {
                let read = store.get(b"one").expect("read").expect("there");
                assert_eq!(read.bytes(), [1; 3000]);
                assert_eq!(store.get(b"two"), Ok(None));
                assert_eq!(store.delete(b"one"), Ok(true), "seed {seed}");
                assert_eq!(store.get(b"one"), Ok(None));
                stage.set(2);
            }
            nap(&job, "the other member", || stage.get() == 2);
            end(&job, &store);
        });
        report.expect_ok();
    }
}

/// Hundreds of keys, and a reader that sees all of them changed or none.
#[test]
fn hundreds_of_keys_change_together() {
    each(seeds(2), 3, |job, store| {
        let keys: Vec<String> = (0..300).map(|number| format!("key/{number}")).collect();
        if job.me() == MemberId(0) {
            for round in [b"1", b"2"] {
                let done: StoreResult<()> = store.transaction(|tx| {
                    keys.iter().try_for_each(|key| tx.put(key.as_bytes(), round))
                });
                assert_eq!(done, Ok(()));
            }
            store.put(b"done", b"").expect("put");
            return;
        }
        let mut seen = BTreeSet::new();
        while !store.exists(b"done").expect("read") {
            let found: StoreResult<BTreeSet<Option<Vec<u8>>>> =
                store.transaction(|tx| keys.iter().map(|key| tx.get(key.as_bytes())).collect());
            let found = found.expect("read");
            assert_eq!(found.len(), 1, "{found:?}");
            seen.extend(found);
        }
        assert!(seen.len() <= 3);
    });
}

/// A transaction that only reads writes nothing: no record, no version, no block.
#[test]
fn a_transaction_that_only_reads_writes_nothing() {
    each(seeds(4), 1, |_, store| {
        for number in 0..10 {
            store.put(format!("key/{number}").as_bytes(), b"1").expect("put");
        }
        let before = store.memory_use().expect("known");
        let read: StoreResult<usize> = store.transaction(|tx| {
            let mut found = 0;
            for number in 0..20 {
                found += usize::from(tx.get(format!("key/{number}").as_bytes())?.is_some());
            }
            Ok(found)
        });
        assert_eq!(read, Ok(10));
        assert_eq!(store.memory_use().expect("known"), before);
    });
}

/// Transactions reuse their memory: after many of them a member uses no more than after a few.
#[test]
fn transactions_leave_no_memory_in_use() {
    for seed in seeds(4) {
        run(seed, 3, |job| {
            let store = open(&job, 2);
            let used = |rounds: u32| {
                for round in 0..rounds {
                    let done: StoreResult<()> = store.transaction(|tx| {
                        for number in 0..5 {
                            tx.put(
                                format!("{}/{number}", job.me()).as_bytes(),
                                &[round as u8; 100],
                            )?;
                        }
                        Ok(())
                    });
                    assert_eq!(done, Ok(()));
                    let tx = hold(&store, &[b"shared/1", b"shared/2"]);
                    drop(tx);
                }
                meet(&job, &store, &format!("round/{rounds}"), 3);
                // Records that were rolled back to absent keys are removed in the background.
                let mut found = store.memory_use().expect("known");
                for _ in 0..100 {
                    job.sleep(Duration::from_millis(20));
                    let next = store.memory_use().expect("known");
                    if (next.values, next.records) == (found.values, found.records) {
                        break;
                    }
                    found = next;
                }
                meet(&job, &store, &format!("looked/{rounds}"), 3);
                (found.values, found.records)
            };
            let few = used(3);
            let many = used(60);
            // The keys of the two further meetings.
            let meetings = 2 * (64 + 80);
            assert!(many.0 <= few.0 + meetings && many.1 <= few.1 + meetings, "{few:?} {many:?}");
            end(&job, &store);
        });
    }
}

const BEFORE: (i64, i64, bool) = (100, 0, false);
const AFTER: (i64, i64, bool) = (70, 30, true);

fn move_thirty(store: &Store) -> StoreResult<()> {
    store.transaction(|tx| {
        tx.add(b"a", -30)?;
        tx.add(b"b", 30)?;
        tx.put(b"done", b"")
    })
}

/// As [`move_thirty`], but depends on a key that it does not change, so that it is validated.
fn move_thirty_if(store: &Store) -> StoreResult<()> {
    store.transaction(|tx| {
        let _ = tx.get(b"permission")?;
        tx.add(b"a", -30)?;
        tx.add(b"b", 30)?;
        tx.put(b"done", b"")
    })
}

fn state(store: &Store) -> (i64, i64, bool) {
    let found: StoreResult<_> = store
        .transaction(|tx| Ok((tx.add(b"a", 0)?, tx.add(b"b", 0)?, tx.get(b"done")?.is_some())));
    found.expect("read")
}

/// As [`state`], by plain calls in a row: once a value is new the others are new, too.
fn plain_state(store: &Store) -> (i64, i64, bool) {
    (number(store, b"a"), number(store, b"b"), store.exists(b"done").expect("read"))
}

/// The committer dies at its n-th step, for each n: all survivors find all of the transaction or
/// nothing, without waiting, and no key stays locked.
fn a_death_at_each_step(link: Link, commit: fn(&Store) -> StoreResult<()>) {
    let mut outcomes = BTreeSet::new();
    for step in 1.. {
        let is_over = Arc::new(Mutex::new(false));
        let seen = Arc::new(Mutex::new(BTreeSet::new()));
        let (over, found) = (is_over.clone(), seen.clone());
        run_on(link, step, 4, move |job| {
            let store = open(&job, 2);
            let me = job.me();
            if me == MemberId(0) {
                store.add(b"a", 100).expect("added");
                store.put(b"permission", b"").expect("put");
            }
            meet(&job, &store, "ready", 4);
            if me == MemberId(3) {
                job.inject(Fault::DieAtStep(step)).expect("planned");
                commit(&store).expect("committed");
                *over.lock().unwrap() = true;
                job.inject(Fault::Kill(me)).expect("killed");
            }
            nap(&job, "the death", || !job.view().is_living(MemberId(3)));
            let began = job.now();
            // Some read by plain calls, some in a transaction, some write.
            let state = match me.0 {
                0 => state(&store),
                1 => plain_state(&store),
                _ => {
                    store.add(b"a", 0).expect("added");
                    plain_state(&store)
                }
            };
            assert!(job.now().since(began) < Duration::from_secs(1), "survivors do not wait");
            assert!(state == BEFORE || state == AFTER, "{state:?} after step {step}");
            found.lock().unwrap().insert(state);
            meet(&job, &store, "seen", 3);
            // The keys that it had locked can be written, in every way.
            store.add(b"b", 0).expect("added");
            let done: StoreResult<()> = store.transaction(|tx| {
                tx.add(b"a", 1)?;
                tx.add(b"b", -1)?;
                Ok(())
            });
            assert_eq!(done, Ok(()));
            meet(&job, &store, "written", 3);
            assert_eq!(number(&store, b"a") + number(&store, b"b"), 100);
            end(&job, &store);
        });
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 1, "all survivors see equal states after step {step}: {seen:?}");
        outcomes.extend(seen.iter().copied());
        if *is_over.lock().unwrap() {
            assert!(step > 100, "{step} steps are too few for a transaction");
            break;
        }
    }
    assert_eq!(outcomes.len(), 2, "some deaths come before the decision, and some after it");
}

#[test]
fn a_death_at_each_step_of_a_commit() {
    a_death_at_each_step(Link::Memory, move_thirty);
}

#[test]
fn a_death_at_each_step_of_a_validated_commit() {
    a_death_at_each_step(Link::Memory, move_thirty_if);
}

#[test]
fn a_death_at_each_step_of_a_commit_over_a_network() {
    a_death_at_each_step(Link::Network, move_thirty);
}

/// The committer is stopped at its n-th step, for each n, and wakes when the others have gone on:
/// they do not wait for it, and its late steps do no harm.
fn a_stop_at_each_step(commit: fn(&Store) -> StoreResult<()>) {
    let mut late = BTreeSet::new();
    for step in 1.. {
        let is_over = Arc::new(Mutex::new(false));
        let seen = Arc::new(Mutex::new(BTreeSet::new()));
        let (over, found) = (is_over.clone(), seen.clone());
        // The committer is a spare, so that no other member needs its memory.
        let mut options = SimOptions::new(3, step).link(Link::Memory);
        options.spares = 1;
        run_with(options, move |job| {
            let store = open(&job, 2);
            let me = job.me();
            if me == MemberId(0) {
                store.add(b"a", 100).expect("added");
                store.put(b"permission", b"").expect("put");
            }
            meet(&job, &store, "ready", 4);
            if me == MemberId(3) {
                job.inject(Fault::StopAtStep(step)).expect("planned");
                commit(&store).expect("committed, if late");
                // If it was not stopped yet, it is stopped here.
                if !store.exists(b"others").expect("read") {
                    *over.lock().unwrap() = true;
                }
            } else {
                // The others come when it stands still.
                job.sleep(Duration::from_millis(200));
                let began = job.now();
                let before = match me.0 {
                    0 => state(&store),
                    _ => plain_state(&store),
                };
                assert!(before == BEFORE || before == AFTER, "{before:?} in step {step}");
                found.lock().unwrap().insert(before);
                meet(&job, &store, "looked", 3);
                // They write keys that it has locked, or is about to lock.
                let done: StoreResult<()> = store.transaction(|tx| {
                    tx.add(b"a", -1)?;
                    tx.add(b"b", 1)?;
                    tx.put(b"permission", b"again")
                });
                assert_eq!(done, Ok(()));
                store.add(b"a", 0).expect("added");
                assert!(job.now().since(began) < Duration::from_secs(2), "no member waits for it");
                if me == MemberId(0) {
                    nap(&job, "the others", || number(&store, b"a") <= 97);
                    store.put(b"others", b"").expect("put");
                    // It may not be stopped at all.
                    job.inject(Fault::Resume(MemberId(3))).expect("resumed");
                }
            }
            nap(&job, "all", || number(&store, b"b") == 33);
            assert_eq!(number(&store, b"a"), 67, "each of the four happened once");
            assert!(store.exists(b"done").expect("read"));
            end(&job, &store);
        });
        // Whether the transaction had happened when the others came.
        late.extend(seen.lock().unwrap().iter().map(|state| state.2));
        if *is_over.lock().unwrap() {
            assert!(step > 100, "{step} steps are too few for a transaction");
            break;
        }
    }
    assert_eq!(late.len(), 2, "some stops come before the decision, and some after it");
}

#[test]
fn a_stop_at_each_step_of_a_commit_and_a_late_committer() {
    a_stop_at_each_step(move_thirty);
}

#[test]
fn a_stop_at_each_step_of_a_validated_commit_and_a_late_committer() {
    a_stop_at_each_step(move_thirty_if);
}

/// Members that find a transaction of a dead member in their way die themselves, at each step of
/// resolving it.
#[test]
fn a_death_at_each_step_of_resolving_a_dead_transaction() {
    for step in (1..400).step_by(3) {
        run_on(Link::of_seed(step), step, 4, move |job| {
            let store = open(&job, 3);
            let me = job.me();
            if me == MemberId(0) {
                store.add(b"a", 100).expect("added");
            }
            meet(&job, &store, "ready", 4);
            match me.0 {
                3 => {
                    // At some step in the middle of a commit.
                    job.inject(Fault::DieAtStep(60 + step % 97 * 3)).expect("planned");
                    loop {
                        move_thirty(&store).expect("committed");
                    }
                }
                2 => {
                    nap(&job, "the death", || !job.view().is_living(MemberId(3)));
                    job.inject(Fault::DieAtStep(step)).expect("planned");
                    loop {
                        store.add(b"a", 0).expect("added");
                        store.add(b"b", 0).expect("added");
                    }
                }
                _ => {
                    nap(&job, "two deaths", || job.view().dead.len() == 2);
                    let (a, b, _) = state(&store);
                    assert_eq!(a + b, 100);
                    assert_eq!(b % 30, 0);
                    assert_eq!((number(&store, b"a"), number(&store, b"b")), (a, b));
                    store.add(b"a", 0).expect("added");
                    end(&job, &store);
                }
            }
        });
    }
}

/// A committer is stopped with its keys locked: plain writers wait for a moment, not for the
/// committer.
#[test]
fn plain_writers_do_not_wait_for_a_stopped_transaction() {
    each(seeds(4), 2, |job, store| {
        if job.me() != MemberId(0) {
            return;
        }
        store.put(b"a", b"1").expect("put");
        let mut tx = hold(store, &[b"a", b"b"]);
        tx.put(b"a", b"mine").expect("noted");
        tx.put(b"b", b"mine").expect("noted");
        let began = job.now();
        store.put(b"a", b"2").expect("put");
        assert!(job.now().since(began) < Duration::from_millis(200));
        assert_eq!(tx.commit(), Err(StoreError::Aborted), "it was aborted by the put");
        assert_eq!((text(store, b"a").as_deref(), text(store, b"b")), (Some("2"), None));
    });
}

/// The policy against starvation: a large transaction competes with many small transactions and
/// plain puts for its keys, and is tried only a few times.
#[test]
fn a_large_transaction_is_not_starved() {
    for seed in seeds(4) {
        run(seed, 4, |job| {
            let store = open(&job, 2);
            let keys: Vec<String> = (0..60).map(|number| format!("key/{number}")).collect();
            if job.me() == MemberId(0) {
                let mut attempts = 0;
                let done: StoreResult<i64> = store.transaction(|tx| {
                    attempts += 1;
                    let mut sum = 0;
                    for key in &keys {
                        sum += tx.add(key.as_bytes(), 1000)?;
                    }
                    Ok(sum)
                });
                done.expect("committed");
                assert!(attempts <= 12, "{attempts} attempts");
                store.put(b"done", b"").expect("put");
            } else {
                let mut own = 0;
                for round in 0u64.. {
                    if store.exists(b"done").expect("read") {
                        break;
                    }
                    let key = |salt: u64| {
                        keys[((round * 7 + salt * 13 + u64::from(job.me().0)) % 60) as usize]
                            .as_bytes()
                    };
                    if round % 4 == 0 {
                        store.add(key(1), 1).expect("added");
                        own += 1;
                    } else {
                        let moved: StoreResult<()> = store.transaction(|tx| {
                            tx.add(key(2), 5)?;
                            tx.add(key(3), -5)?;
                            Ok(())
                        });
                        moved.expect("small transactions get through, too");
                    }
                }
                store.add(b"added", own).expect("added");
            }
            meet(&job, &store, "over", 4);
            let sum: StoreResult<i64> = store.transaction(|tx| {
                keys.iter().try_fold(0, |sum, key| Ok(sum + tx.add(key.as_bytes(), 0)?))
            });
            assert_eq!(sum.expect("read"), 60_000 + number(&store, b"added"));
            end(&job, &store);
        });
    }
}

/// An intent is lost with its only replica: its keys, in partitions that live, report the loss
/// until it is accepted. Then they have their previous values.
#[test]
fn a_lost_intent_is_reported_and_rolled_back() {
    for seed in seeds(8) {
        run(seed, 4, |job| {
            let store = open(&job, 1);
            let me = job.me();
            let at = |member: u32, salt: u32| {
                let names = (0..).map(move |number| format!("{salt}/{number}"));
                names
                    .into_iter()
                    .find(|name| store.replicas_of(name.as_bytes()) == [MemberId(member)])
                    .expect("a key")
            };
            let (a, b, meeting) = (at(0, 0), at(1, 1), at(0, 2));
            if me == MemberId(0) {
                store.put(a.as_bytes(), b"1").expect("put");
                store.put(b.as_bytes(), b"1").expect("put");
            }
            meet(&job, &store, &meeting, 4);
            // The first intent record of member 1.
            let intent = [&b"\0outlast/tx/"[..], &1u32.to_le_bytes(), &0u32.to_le_bytes()].concat();
            let replica = store.replicas_of(&intent)[0];
            if replica == MemberId(0) || replica == MemberId(1) {
                // The keys would be lost with it; another placement would be needed.
                panic!("the intent of member 1 is at {replica}; choose other partitions");
            }
            let mut held = None;
            if me == MemberId(1) {
                held = Some(hold(&store, &[a.as_bytes(), b.as_bytes()]));
            }
            meet(&job, &store, &meeting, 8);
            if me == replica {
                job.inject(Fault::Kill(me)).expect("killed");
            }
            nap(&job, "the death", || !job.view().is_living(replica));
            for key in [&a, &b] {
                let lost = Err(StoreError::DataLost {
                    partition: store.partition_of(&intent).expect("a key"),
                });
                assert_eq!(store.get(key.as_bytes()).map(|_| ()), lost);
                assert_eq!(store.put(key.as_bytes(), b"2").map(|_| ()), lost);
            }
            meet(&job, &store, &meeting, 11);
            if me == MemberId(0) {
                store.accept_loss().expect("accepted");
            }
            meet(&job, &store, &meeting, 14);
            for key in [&a, &b] {
                assert_eq!(text(&store, key.as_bytes()).as_deref(), Some("1"));
            }
            meet(&job, &store, &meeting, 17);
            if let Some(mut tx) = held {
                tx.put(a.as_bytes(), b"mine").expect("noted");
                assert_eq!(tx.commit(), Err(StoreError::Aborted));
                store.put(a.as_bytes(), b"2").expect("put");
            }
            meet(&job, &store, &meeting, 20);
            assert_eq!(text(&store, a.as_bytes()).as_deref(), Some("2"));
            end(&job, &store);
        });
    }
}

/// The committer is stopped at each of its steps. Meanwhile keys that it has locked are lost, and
/// the loss is accepted. Every acknowledged write is there.
#[test]
fn writes_lost_during_a_commit_are_not_acknowledged() {
    let mut outcomes = BTreeSet::new();
    for step in (1..1200).step_by(3) {
        let told = Arc::new(Mutex::new(None));
        let (result, killed) = (told.clone(), Arc::new(Mutex::new(false)));
        run_on(Link::Memory, step, 4, move |job| {
            let options =
                Options::new().replicas(1).partitions(64).expected_keys(256).slab_len_max(16 << 10);
            let store = Store::open(&job, options).expect("open");
            let me = job.me();
            let intent = [&b"\0outlast/tx/"[..], &3u32.to_le_bytes(), &0u32.to_le_bytes()].concat();
            let replica = store.replicas_of(&intent)[0];
            let victim =
                (0..3).map(MemberId).find(|&member| member != replica).expect("a third member");
            let witness =
                (0..3).map(MemberId).find(|&member| member != victim).expect("another member");
            let at = |member: MemberId, salt: &str, count: usize| -> Vec<String> {
                let names = (0..).map(|number| format!("{salt}/{number}"));
                names
                    .filter(|name| store.replicas_of(name.as_bytes()) == [member])
                    .take(count)
                    .collect()
            };
            let keys = [at(victim, "key", 6), at(witness, "key", 1)].concat();
            let meetings = at(witness, "meet", 3);
            meet(&job, &store, &meetings[0], 4);
            if me == MemberId(3) {
                job.inject(Fault::StopAtStep(step)).expect("planned");
                let done: StoreResult<()> = store.transaction(|tx| {
                    keys.iter().try_for_each(|key| tx.put(key.as_bytes(), b"new"))
                });
                // A loss after the end of the transaction does not count.
                let is_late = *killed.lock().unwrap();
                *result.lock().unwrap() = Some(done.clone());
                nap(&job, "the death", || !job.view().is_living(victim));
                nap(&job, "the acceptance", || number(&store, meetings[1].as_bytes()) > 0);
                for key in &keys {
                    match store.get(key.as_bytes()) {
                        Ok(found) => {
                            assert!(
                                found.is_some() || done.is_err() || !is_late,
                                "{key} after step {step}: {done:?}"
                            )
                        }
                        Err(StoreError::DataLost { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            } else {
                job.sleep(Duration::from_millis(100));
                if me == victim {
                    *killed.lock().unwrap() = true;
                    job.inject(Fault::Kill(me)).expect("killed");
                }
                nap(&job, "the death", || !job.view().is_living(victim));
                if me == witness {
                    // The stopped member cannot accept a loss.
                    let lost = keys
                        .iter()
                        .filter(|key| store.replicas_of(key.as_bytes())[0] != MemberId(3));
                    for key in lost {
                        let partition = store.partition_of(key.as_bytes()).expect("a key");
                        store.accept_loss_of(&[partition]).expect("accepted");
                    }
                    job.inject(Fault::Resume(MemberId(3))).expect("resumed");
                    store.add(meetings[1].as_bytes(), 1).expect("added");
                }
            }
            meet(&job, &store, &meetings[2], 3);
            end(&job, &store);
        });
        let told = told.lock().unwrap().take().expect("an outcome");
        outcomes.insert(told.is_ok());
    }
    assert_eq!(
        outcomes.len(),
        2,
        "{outcomes:?}: some are told that it happened, and some that it did not"
    );
}

/// The intents of a dead member are removed, and its keys released, without a request.
#[test]
fn the_heir_ends_the_transactions_of_the_dead() {
    for seed in seeds(6) {
        run(seed, 3, |job| {
            let store = open(&job, 3);
            let me = job.me();
            store.put(format!("a/{me}").as_bytes(), b"1").expect("put");
            meet(&job, &store, "ready", 3);
            let before = store.memory_use().expect("known");
            meet(&job, &store, "looked", 3);
            if me == MemberId(2) {
                let _held = hold(&store, &[b"a/m0", b"a/m1", b"none/1", b"none/2"]);
                let _other = hold(&store, &[b"a/m2", b"none/3"]);
                job.inject(Fault::Kill(me)).expect("killed");
            }
            nap(&job, "the death", || !job.view().is_living(MemberId(2)));
            // Two intent records, and three records of keys that were never made. The record of the
            // meeting is new and stays.
            let until = job.now().after(Duration::from_secs(30));
            loop {
                let found = store.memory_use().expect("known");
                if found.records <= before.records + 64
                    && found.values <= before.values + 64 + 3 * 48
                {
                    break;
                }
                assert!(job.now() < until, "{before:?} {found:?}");
                job.sleep(Duration::from_millis(20));
            }
            end(&job, &store);
        });
    }
}

/// The committer is stopped at each of its steps, while another member waits for one of its keys.
/// Once a third member has seen the transaction by another key, the waiter is told: it does not
/// wait for the committer.
#[test]
fn a_wait_for_a_key_does_not_wait_for_a_stopped_committer() {
    let mut late = BTreeSet::new();
    for step in 1.. {
        let is_over = Arc::new(Mutex::new(false));
        let (over, is_seen) = (is_over.clone(), Arc::new(Mutex::new(false)));
        let seen = is_seen.clone();
        // The committer is a spare, so that no other member needs its memory.
        let mut options = SimOptions::new(3, step).link(Link::Memory);
        options.spares = 1;
        run_with(options, move |job| {
            let store = open(&job, 2);
            meet(&job, &store, "ready", 4);
            match job.me().0 {
                3 => {
                    job.sleep(Duration::from_millis(10));
                    job.inject(Fault::StopAtStep(step)).expect("planned");
                    move_thirty(&store).expect("committed, if late");
                    *over.lock().unwrap() = !store.exists(b"others").expect("read");
                }
                2 => {
                    let value =
                        store.wait(b"done", None, job.now().after(Duration::from_secs(100)));
                    assert!(value.expect("read").is_some());
                    store.put(b"told", b"").expect("put");
                }
                1 => {
                    job.sleep(Duration::from_millis(200));
                    if number(&store, b"b") == 30 {
                        *seen.lock().unwrap() = true;
                        let began = job.now();
                        nap(&job, "the waiter", || store.exists(b"told").expect("read"));
                        assert!(
                            job.now().since(began) < Duration::from_secs(1),
                            "it waits after step {step}"
                        );
                    }
                    store.put(b"others", b"").expect("put");
                    job.inject(Fault::Resume(MemberId(3))).expect("resumed");
                }
                _ => {}
            }
            meet(&job, &store, "over", 4);
            end(&job, &store);
        });
        late.insert(*is_seen.lock().unwrap());
        if *is_over.lock().unwrap() {
            break;
        }
    }
    assert_eq!(late.len(), 2, "some stops come before the decision, and some after it");
}

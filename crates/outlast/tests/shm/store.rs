//! The store with real processes and real deaths on shm. The promises have their own module,
//! [`crate::promises`], and so has salvage, [`crate::salvage`].

use crate::members::{LIMIT, expect_ok_within, is_member, members, print_output, wait_until};
use crate::reexecution::this_test;
use outlast::engine::Port;
use outlast::image::{ImageError, Images, Options as ImageOptions, Regions};
use outlast::rma::{Communicator, Source, Tag, Window, WindowError};
use outlast::store::{Expect, Options, Store, StoreError};
use outlast::{Epoch, Job, MemberId, Time};
use std::time::Duration;

/// How long a member waits for an event that is due soon.
const PATIENCE: Duration = Duration::from_secs(30);

/// The length of the value in the test of large values, which the soak sets.
fn large_len() -> u64 {
    std::env::var("OUTLAST_LARGE_MIB").map_or(64, |text| text.parse().expect("a number")) << 20
}

/// In a member, plays its part. Otherwise starts `count` members, of which `deaths` are to be
/// killed.
fn play(test: &str, count: usize, deaths: usize, member: impl FnOnce(Job)) {
    if is_member(test) {
        return member(outlast::join().expect("a member"));
    }
    let running = members(test, count)
        .segment_limit((256 << 20).max(5 * large_len()))
        .start()
        .expect("started");
    let outcome = expect_ok_within(running, LIMIT, test);
    if outcome.deaths().count() != deaths {
        print_output(&outcome);
        panic!("{outcome}");
    }
}

fn open(job: &Job, replicas: usize) -> Store {
    Store::open(job, Options::new().replicas(replicas).partitions(64).expected_keys(4096))
        .expect("opened")
}

/// Every member writes its own keys, and two are killed in the middle. Other members read every
/// acknowledged key, and all replicas become complete again.
#[test]
fn durable_and_repaired_after_kills() {
    play(this_test!(), 6, 2, |job| {
        let store = open(&job, 3);
        let me = job.me();
        let key = |member: u32, number: u32| format!("own/{member}/{number}");
        for number in 0..2000u32 {
            store
                .put(key(me.0, number).as_bytes(), format!("{number} of {me}").as_bytes())
                .expect("put");
            // The number of acknowledged keys is in the store, too, for the readers.
            store.put(format!("count/{}", me.0).as_bytes(), &number.to_le_bytes()).expect("count");
            if number == 700 && (me.0 == 1 || me.0 == 4) {
                job.fence(me, Time::NEVER).expect("killed");
            }
        }
        wait_until(&job, PATIENCE, "two deaths", || job.epoch() >= Epoch(2));
        for member in 0..6 {
            let count =
                store.get(format!("count/{member}").as_bytes()).expect("read").expect("counted");
            let count = u32::from_le_bytes(count.bytes().try_into().expect("4 bytes"));
            assert!(if member == 1 || member == 4 { count == 700 } else { count <= 1999 });
            for number in 0..=count {
                let value =
                    store.get(key(member, number).as_bytes()).expect("read").expect("acknowledged");
                assert_eq!(value.bytes(), format!("{number} of {}", MemberId(member)).as_bytes());
                assert_eq!(value.owner(), MemberId(member));
            }
        }
        let is_repaired = || store.replicas_missing().expect("known") == 0;
        wait_until(&job, PATIENCE, "all replicas", is_repaired);
        store.close().expect("closed");
        job.leave().expect("left");
    });
}

/// All members add to common keys by several threads while a member is killed: no acknowledged
/// addition is lost, and none counts twice.
#[test]
fn additions_count_once_under_kills() {
    play(this_test!(), 4, 1, |job| {
        let store = open(&job, 2);
        let me = job.me();
        let work = |thread: u64| {
            let (store, job) = (store.clone(), job.clone());
            move || {
                for round in 0..500u64 {
                    store.add(format!("sum/{}", round % 3).as_bytes(), 1).expect("added");
                    store.add(format!("acknowledged/{}", me.0).as_bytes(), 1).expect("added");
                    if me.0 == 2 && thread == 0 && round == 200 {
                        job.fence(me, Time::NEVER).expect("killed");
                    }
                }
            }
        };
        let other = job.spawn("second", Box::new(work(1))).expect("a thread");
        work(0)();
        assert!(job.wait_for(&other, Time::NEVER));
        store.put(format!("done/{}", me.0).as_bytes(), b"").expect("put");
        for member in [0, 1, 3] {
            let key = format!("done/{member}");
            store
                .wait(key.as_bytes(), None, job.now().after(LIMIT))
                .expect("waited")
                .expect("done");
        }
        // On a busy machine the victim may not have begun when the others have finished.
        wait_until(&job, PATIENCE, "the death", || job.view().dead.contains(MemberId(2)));
        let number = |key: String| {
            let value = store.get(key.as_bytes()).expect("read");
            value.map_or(0, |value| i64::from_le_bytes(value.bytes().try_into().expect("8 bytes")))
        };
        let sum: i64 = (0..3).map(|index| number(format!("sum/{index}"))).sum();
        let acknowledged: i64 = (0..4).map(|member| number(format!("acknowledged/{member}"))).sum();
        // Each of the victim's two threads may have been killed between its two additions.
        assert!(
            (acknowledged..=acknowledged + 2).contains(&sum),
            "{sum} added, {acknowledged} acknowledged"
        );
        assert!(acknowledged >= 3000 + 200, "{acknowledged}");
        store.close().expect("closed");
        job.leave().expect("left");
    });
}

/// The heir of a dead member adopts its keys, and no other member does.
#[test]
fn the_heir_adopts_the_keys_of_the_dead() {
    play(this_test!(), 4, 1, |job| {
        let store = open(&job, 2);
        let mut seen = store.epoch();
        for number in 0..20 {
            store.put(format!("task/{}/{number}", job.me().0).as_bytes(), b"to do").expect("put");
        }
        store.put(format!("ready/{}", job.me().0).as_bytes(), b"").expect("put");
        for member in 0..4 {
            let key = format!("ready/{member}");
            store
                .wait(key.as_bytes(), None, job.now().after(LIMIT))
                .expect("waited")
                .expect("ready");
        }
        assert_eq!(store.scan(b"task/").expect("listed").len(), 80);
        assert_eq!(store.keys_of(MemberId(3)).expect("listed").len(), 21);
        // It dies when all have listed its keys: from then on they have another owner.
        if job.me() != MemberId(3) {
            store.put(format!("listed/{}", job.me().0).as_bytes(), b"").expect("put");
        } else {
            for member in 0..3 {
                let key = format!("listed/{member}");
                store
                    .wait(key.as_bytes(), None, job.now().after(LIMIT))
                    .expect("waited")
                    .expect("listed");
            }
            job.fence(job.me(), Time::NEVER).expect("killed");
        }
        wait_until(&job, PATIENCE, "the death", || store.epoch() != seen);
        let deaths = store.deaths_since(&mut seen);
        assert_eq!((deaths.len(), deaths[0].member, deaths[0].left), (1, MemberId(3), false));
        assert_eq!(seen, store.epoch());
        let heir = deaths[0].heir();
        assert!(heir != MemberId(3) && heir == store.heir_of(MemberId(3)));
        if heir == store.me() {
            for key in store.keys_of(MemberId(3)).expect("listed") {
                assert_eq!(store.adopt(&key), Ok(true));
            }
            assert_eq!(store.adopt(b"no such key"), Ok(false));
            store.put(b"adopted", b"").expect("put");
        }
        store.wait(b"adopted", None, job.now().after(LIMIT)).expect("waited").expect("adopted");
        assert_eq!(store.keys_of(MemberId(3)).expect("listed"), Vec::<Vec<u8>>::new());
        assert!(store.keys_of(heir).expect("listed").len() >= 41);
        let task = store.get(b"task/3/7").expect("read").expect("there");
        assert_eq!((task.bytes(), task.owner()), (&b"to do"[..], heir));
        store.close().expect("closed");
        job.leave().expect("left");
    });
}

#[test]
fn a_member_waits_for_a_put_of_another() {
    play(this_test!(), 2, 0, |job| {
        let store = open(&job, 2);
        if job.me() == MemberId(0) {
            let value = store
                .wait(b"future/4", None, job.now().after(LIMIT))
                .expect("waited")
                .expect("came");
            assert_eq!(value.bytes(), b"first");
            store.put(b"answer", b"seen").expect("put");
            let next = store
                .wait(b"future/4", Some(value.version()), job.now().after(LIMIT))
                .expect("waited");
            assert_eq!(next.expect("came").bytes(), b"second");
            let never = store.wait(b"never", None, job.now().after(Duration::from_millis(20)));
            assert_eq!(never, Ok(None));
        } else {
            store.put(b"future/4", b"first").expect("put");
            store.wait(b"answer", None, job.now().after(LIMIT)).expect("waited").expect("came");
            store.put(b"future/4", b"second").expect("put");
        }
        store.close().expect("closed");
        job.leave().expect("left");
    });
}

#[test]
fn bad_input_changes_nothing() {
    let job = outlast::JoinOptions::new()
        .segment_limit(64 << 20)
        .join()
        .expect("a job of a single member");
    for (options, what) in
        [(Options::new().replicas(0), "0 replicas"), (Options::new().replicas(9), "9 replicas")]
    {
        let error = Store::open(&job, options).expect_err(what);
        assert!(matches!(error, StoreError::Invalid { .. }), "{error}");
    }
    let error = Store::open(&job, Options::new().replicas(2))
        .expect_err("2 replicas in a job of a single member");
    assert!(matches!(error, StoreError::Invalid { .. }), "{error}");
    let error = Store::open(&job, Options::new().expected_keys(1 << 40)).expect_err("8 TiB");
    assert!(matches!(error, StoreError::OutOfMemory { .. }), "{error}");
    let store =
        Store::open(&job, Options::new().partitions(4)).expect("opened with fewer replicas");
    assert_eq!(store.put(b"", b"value"), Err(StoreError::BadKey { len: 0 }));
    assert_eq!(store.get(&[1; 1025]), Err(StoreError::BadKey { len: 1025 }));
    let version = store.put(&[1; 1024], b"").expect("the longest key and the shortest value");
    assert_eq!(
        store.put_if(&[1; 1024], b"x", Expect::Absent),
        Err(StoreError::Conflict { found: Some(version) })
    );
    assert!(matches!(store.add(&[1; 1024], 1), Err(StoreError::WrongType { .. })));
    assert_eq!(store.get(&[1; 1024]).expect("read").expect("there").version(), version);
    let mut small = [0; 2];
    store.put(b"three", b"abc").expect("put");
    let error = store.get_into(b"three", &mut small).expect_err("too small");
    assert_eq!(error, StoreError::BufferTooSmall { needed: 3, given: 2 });
    let error = store.put(b"huge", &vec![7; 100 << 20]).expect_err("larger than the store");
    assert!(matches!(error, StoreError::OutOfMemory { .. }), "{error}");
    assert_eq!(store.get(b"huge"), Ok(None));
    store.put_nb(b"huge", &vec![7; 100 << 20]).expect("told later");
    assert!(matches!(store.flush(), Err(StoreError::OutOfMemory { .. })));
    assert_eq!(store.flush(), Ok(()), "an error is told once");
    assert_eq!(store.put_nb(b"", b""), Err(StoreError::BadKey { len: 0 }));
    let mut tx = store.begin();
    // No block is that long. The pages of the value are never touched.
    let error = tx.put(b"huge", &vec![0; 4 << 30]).expect_err("larger than any block");
    assert!(matches!(error, StoreError::OutOfMemory { .. }), "{error}");
    tx.abort();
    #[cfg(feature = "serde")]
    {
        store.put_as(b"typed", "text").expect("put");
        let wrong = store.get_as::<u64>(b"typed");
        assert!(matches!(wrong, Err(StoreError::WrongType { .. })), "{wrong:?}");
        assert_eq!(store.get_as::<u64>(b"no such key"), Ok(None));
    }
    #[cfg(feature = "postcard")]
    {
        let version = store.put_binary("binary", &(7u8, f64::INFINITY)).expect("put");
        assert_eq!(store.get_binary("binary"), Ok(Some(((7u8, f64::INFINITY), version))));
        let left_over = store.get_binary::<u8>("binary");
        assert!(matches!(left_over, Err(StoreError::WrongType { .. })), "{left_over:?}");
        let too_short = store.get_binary::<(u8, f64, u64)>("binary");
        assert!(matches!(too_short, Err(StoreError::WrongType { .. })), "{too_short:?}");
        assert_eq!(store.get_binary::<u64>("no such key"), Ok(None));
        let found = Some(version);
        let refused = store.put_if_binary("binary", &1u8, Expect::Absent);
        assert_eq!(refused, Err(StoreError::Conflict { found }));
    }
    store.put(b"large", &vec![7; 10 << 20]).expect("the store still works");
    assert_eq!(store.get(b"large").expect("read").expect("there").bytes().len(), 10 << 20);
    assert_eq!(store.delete(b"large"), Ok(true));
    assert_eq!(store.delete(b"large"), Ok(false));
    store.close().expect("closed");
    assert_eq!(store.put(b"late", b""), Err(StoreError::Closed));
    job.leave().expect("left");
}

/// Each call after the member has left is an error, in all layers.
#[test]
fn calls_of_a_member_that_has_left_are_refused() {
    let job = outlast::join().expect("a job of a single member");
    let store = open(&job, 1);
    store.put("key", b"value").expect("put");
    let (handle, pin) = (store.handle("key").expect("a handle"), store.pin("key").expect("pinned"));
    let pin = pin.expect("there");
    let mut tx = store.begin();
    tx.put("key", b"never").expect("noted");
    let comm = Communicator::world(&job).expect("a communicator");
    let window = Window::open(&comm, 64).expect("a window");
    let options = ImageOptions::new(1 << 12).set(2);
    let regions = Regions::open(&store, "left", options.clone()).expect("opened");
    let images = Images::open(&store, "left", options).expect("opened");
    job.leave().expect("left");
    let late = job.now().after(LIMIT);
    assert_eq!(store.put("key", b"x"), Err(StoreError::Closed));
    assert_eq!(store.get("key"), Err(StoreError::Closed));
    assert_eq!(store.keys(), Err(StoreError::Closed));
    assert_eq!(store.wait("none", None, late), Err(StoreError::Closed));
    assert_eq!(store.transaction(|tx| tx.put("key", b"x")), Err(StoreError::Closed));
    assert_eq!(tx.commit(), Err(StoreError::Closed));
    assert_eq!(handle.put(b"x"), Err(StoreError::Closed));
    assert_eq!(pin.to_vec(), Err(StoreError::Closed));
    assert_eq!((store.close(), store.close()), (Ok(()), Err(StoreError::Closed)));
    let ended = outlast::rma::Error::Engine(outlast::Error::Ended);
    assert_eq!(comm.send(0, 1, b"x"), Err(ended.clone()));
    assert_eq!(comm.receive(Source::Any, Tag::Any), Err(ended.clone()));
    assert_eq!(comm.receive(0, 1), Err(ended.clone()));
    assert_eq!(comm.probe(Source::Any, Tag::Any), Err(ended.clone()));
    assert_eq!((comm.barrier(), comm.agree(1)), (Err(ended.clone()), Err(ended)));
    let ended = |result| matches!(result, Err(WindowError::Engine(outlast::Error::Ended)));
    assert!(ended(window.put(0, 0, b"x")) && ended(window.get(0, 0, &mut [0])));
    assert!(window.free().is_err());
    assert!(matches!(regions.checkpoint(1, b"", &[]), Err(ImageError::Closed)));
    assert!(matches!(regions.close(), Err(ImageError::Closed)));
    assert!(matches!(images.save("image", b"", b"x"), Err(ImageError::Closed)));
    assert!(matches!(images.close(), Err(ImageError::Closed)));
    assert_eq!(Store::open(&job, Options::new().replicas(1)).map(drop), Err(StoreError::Closed));
    assert_eq!(job.leave(), Err(outlast::Error::Ended));
}

/// A key is anything that has bytes, and each form names the same key.
#[test]
fn keys_of_all_forms_name_the_same_key() {
    let job = outlast::join().expect("a job of a single member");
    let store = Store::open(&job, Options::new().replicas(1).partitions(4)).expect("opened");
    store.put("key", b"1").expect("put");
    store.put(String::from("key"), b"2").expect("put");
    store.put(b"key", b"3").expect("put");
    let owned: Vec<u8> = "key".into();
    store.put(owned, b"4").expect("put");
    store.put(&b"key"[..], b"5").expect("put");
    let version = store.handle([107, 101, 121]).expect("a handle").put(b"6").expect("put");
    assert_eq!(version.counter, 6);
    store.transaction(|tx| tx.put("key", b"7")).expect("committed");
    assert_eq!(store.get("key").expect("read").expect("there").bytes(), b"7");
    // Null characters are bytes like all others.
    store.put("key\0more", b"v\0w").expect("put");
    assert_eq!(store.get("key").expect("read").expect("there").bytes(), b"7");
    assert_eq!(store.get("key\0more").expect("read").expect("there").bytes(), b"v\0w");
    let named = Store::open(&job, Options::new().replicas(1).partitions(4).name("a\0b"));
    let named = named.expect("opened under a name of its own");
    assert!(!named.exists("key").expect("asked"));
    named.close().expect("closed");
    store.close().expect("closed");
    job.leave().expect("left");
}

/// The iterator returns each key with its value, reports each partition that a death took along,
/// and goes on behind it. Behind another error it ends.
#[test]
fn entries_are_iterated_beyond_lost_partitions() {
    play(this_test!(), 3, 1, |job| {
        let store = open(&job, 1);
        let key = |number: u32| format!("key/{number}");
        if job.me() == MemberId(0) {
            for number in 0..300 {
                store.put(key(number), &number.to_le_bytes()).expect("put");
            }
            store.put("other", b"").expect("put");
            assert_eq!(store.entries("").filter(Result::is_ok).count(), 301);
            assert_eq!(store.entries("key/29").count(), 11);
        }
        let last = MemberId(2);
        if job.me() == last {
            // Not a barrier: others may still be inside of it when this member dies.
            let mut ready = 0;
            wait_until(&job, PATIENCE, "the other members", || {
                ready += usize::from(job.receive(Port::User).is_some());
                ready == 2
            });
            job.fence(last, Time::NEVER).expect("killed");
        }
        job.send(last, Port::User, b"ready").expect("all members live");
        wait_until(&job, PATIENCE, "a death", || job.epoch() >= Epoch(1));
        let lost = store.lost_partitions().expect("asked");
        assert!(!lost.is_empty() && lost.len() < 64, "{lost:?}");
        let (found, errors): (Vec<_>, Vec<_>) = store.entries("key/").partition(Result::is_ok);
        let mut partitions: Vec<usize> = errors
            .into_iter()
            .map(|error| match error {
                Err(StoreError::DataLost { partition }) => partition,
                other => panic!("{other:?}"),
            })
            .collect();
        partitions.sort_unstable();
        assert_eq!(partitions, lost);
        for (name, value) in found.iter().flatten() {
            let number = u32::from_le_bytes(value.bytes().try_into().expect("four bytes"));
            assert_eq!(*name, key(number).into_bytes());
        }
        let is_kept = |number: &u32| !lost.contains(&store.partition_of(key(*number)).expect("a"));
        assert_eq!(found.len(), (0..300).filter(is_kept).count());
        store.close().expect("closed");
        let mut after = store.entries("");
        assert!(matches!(after.next(), Some(Err(StoreError::Closed))) && after.next().is_none());
        job.leave().expect("left");
    });
}

/// With a single replica of each value all members but the last leave in turn, while the others go
/// on writing.
#[test]
fn nothing_is_lost_when_members_leave_with_a_single_replica() {
    play(this_test!(), 4, 0, |job| {
        let store = open(&job, 1);
        let me = job.me().0;
        for number in 0..100 {
            store.put(format!("key/{me}/{number}").as_bytes(), &[me as u8; 500]).expect("put");
        }
        store.put(format!("written/{me}").as_bytes(), b"").expect("put");
        for other in 0..4 {
            let key = format!("written/{other}");
            store
                .wait(key.as_bytes(), None, job.now().after(LIMIT))
                .expect("waited")
                .expect("written");
        }
        let mut round = 0;
        while job.view().left.len() < me as usize {
            round += 1;
            store
                .put(format!("late/{me}/{}", round % 100).as_bytes(), &[me as u8; 100])
                .expect("put");
        }
        for other in 0..4 {
            for number in 0..100 {
                let value = store.get(format!("key/{other}/{number}").as_bytes()).expect("read");
                assert_eq!(value.expect("there").bytes(), [other as u8; 500]);
            }
        }
        for number in 1..=round.min(99) {
            assert_eq!(store.exists(format!("late/{me}/{number}").as_bytes()), Ok(true));
        }
        store.leave(job.now().after(LIMIT)).expect("left");
    });
}

/// Programs that simply end, in turn: they do not wait for the others, whose calls go on as long as
/// promise 1 allows.
#[test]
fn members_that_simply_exit_disturb_no_other_member() {
    play(this_test!(), 4, 0, |job| {
        let store = open(&job, 2);
        store.put(format!("written/{}", job.me()).as_bytes(), b"").expect("put");
        for other in 0..4 {
            let key = format!("written/{}", MemberId(other));
            store
                .wait(key.as_bytes(), None, job.now().after(LIMIT))
                .expect("waited")
                .expect("written");
        }
        // Each member ends when its predecessor is gone and the data of that has been copied.
        wait_until(&job, PATIENCE, "the end of the members before", || {
            job.view().dead.len() >= job.me().index()
        });
        let status = store.wait_repaired(job.now().after(LIMIT)).expect("known");
        assert_eq!((status.replicas_missing, status.partitions_lost), (0, 0));
        assert_eq!(store.scan(b"written/").expect("listed").len(), 4);
    });
}

/// The setting of the poster: 40 members, six replicas, five deaths at once.
#[test]
fn forty_members_with_six_replicas_survive_five_deaths() {
    play(this_test!(), 40, 5, |job| {
        let options =
            Options::new().replicas(6).partitions(128).expected_keys(2048).slab_len_max(16 << 10);
        let store = Store::open(&job, options).expect("opened");
        let me = job.me().0;
        for number in 0..10 {
            store.put(format!("key/{me}/{number}").as_bytes(), &[me as u8; 100]).expect("put");
        }
        store.add(b"written", 1).expect("counted");
        wait_until(&job, PATIENCE, "all to write", || {
            job.view().dead.len() == 5
                || store
                    .get(b"written")
                    .expect("read")
                    .is_some_and(|value| value.bytes() == 40i64.to_le_bytes())
        });
        if me % 8 == 3 {
            job.fence(job.me(), Time::NEVER).expect("killed");
        }
        wait_until(&job, PATIENCE, "five deaths", || job.view().dead.len() == 5);
        for other in 0..40u32 {
            let key = format!("key/{other}/{}", me % 10);
            assert_eq!(
                store.get(key.as_bytes()).expect("read").expect("there").bytes(),
                [other as u8; 100]
            );
        }
        if me == 0 {
            let status = store.wait_repaired(job.now().after(LIMIT)).expect("known");
            assert_eq!((status.replicas_missing, status.partitions_lost), (0, 0));
            let stats = store.job_stats().expect("counted");
            assert_eq!((stats.keys, stats.value_bytes), (401, 40 * 10 * 100 + 8));
        }
        store.close().expect("closed");
        job.leave().expect("left");
    });
}

/// Threads write while their member leaves the job: all values acknowledged to them are there. The
/// test takes many jobs, because a thread must lose the processor right before the last
/// compare-and-swap of a put.
#[test]
fn no_put_after_the_end_of_its_member_is_acknowledged() {
    let test = this_test!();
    let is_member = is_member(test);
    let launcher = if is_member { std::os::unix::process::parent_id() } else { std::process::id() };
    // A file holds the acknowledged values, because the member that left cannot write them to the
    // store.
    let told = std::env::temp_dir().join(format!("outlast-test-told-{launcher}"));
    for _ in 0..if is_member { 1 } else { 30 } {
        play(test, 2, 0, |job| {
            let store = open(&job, 1);
            if job.me() == MemberId(1) {
                wait_until(&job, PATIENCE, "its words", || told.exists());
                for line in std::fs::read_to_string(&told).expect("readable").lines() {
                    let (key, acked) = line.split_once(' ').expect("a key and a number");
                    let number =
                        |value: &[u8]| u64::from_le_bytes(value.try_into().expect("8 bytes"));
                    let found = store
                        .get(key.as_bytes())
                        .expect("read")
                        .map_or(0, |found| number(found.bytes()));
                    assert!(found >= acked.parse().expect("a number"), "{found} and not {line}");
                }
                store.close().expect("closed");
                return job.leave().expect("left");
            }
            let keys = (0..).map(|number| format!("key/{number}"));
            let keys =
                keys.filter(|key| store.replicas_of(key.as_bytes()) == [MemberId(1)]).take(12);
            let write = |key: String| {
                let store = store.clone();
                std::thread::spawn(move || {
                    let put =
                        |number: &u64| store.put(key.as_bytes(), &number.to_le_bytes()).is_ok();
                    let acked = (1..).take_while(put).last().unwrap_or(0);
                    format!("{key} {acked}\n")
                })
            };
            let threads: Vec<_> = keys.map(write).collect();
            std::thread::sleep(Duration::from_millis(50));
            job.leave().expect("left");
            let words: String =
                threads.into_iter().map(|thread| thread.join().expect("ended")).collect();
            std::fs::write(told.with_extension("new"), words).expect("written");
            std::fs::rename(told.with_extension("new"), &told).expect("there at once");
        });
        if !is_member {
            std::fs::remove_file(&told).expect("told");
        }
    }
}

/// A member pins a version and reads it while another member rewrites the key as fast as it can.
/// The first replica of the key is killed, and the pin is read from another replica.
#[test]
fn a_pinned_version_does_not_change() {
    play(this_test!(), 3, 1, |job| {
        let store = open(&job, 2);
        let (writer, reader) = (MemberId(0), MemberId(1));
        let value = |number: u64| number.to_le_bytes().repeat(500);
        let key = (0..).map(|number| format!("key/{number}")).find(|key| {
            let replicas = store.replicas_of(key.as_bytes());
            replicas[0] == MemberId(2)
        });
        let key = key.expect("a key of the third member");
        let key = key.as_bytes();
        if job.me() == writer {
            let handle = store.handle(key).expect("a handle");
            for number in 0.. {
                handle.put(&value(number)).expect("put");
                if number % 64 == 0 && store.exists(b"done").expect("read") {
                    break;
                }
            }
        } else if job.me() == reader {
            wait_until(&job, PATIENCE, "a value", || store.exists(key).expect("read"));
            let check = |pin: &outlast::store::Pin| {
                let bytes = pin.to_vec().expect("read");
                let number = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
                assert_eq!(bytes, value(number), "a mix");
                number
            };
            for _ in 0..200 {
                let pins: Vec<_> =
                    (0..10).map(|_| store.pin(key).expect("pinned").expect("there")).collect();
                let numbers: Vec<u64> = pins.iter().map(check).collect();
                assert!(numbers.is_sorted());
                std::thread::yield_now();
                assert_eq!(pins.iter().map(check).collect::<Vec<_>>(), numbers);
            }
            let pin = store.pin(key).expect("pinned").expect("there");
            let number = check(&pin);
            job.fence(MemberId(2), job.now().after(Duration::from_secs(10))).expect("killed");
            store.put(b"done", b"").expect("put");
            assert_eq!(check(&pin), number, "from the other replica");
        } else {
            // Until it is killed.
            wait_until(&job, PATIENCE, "the end", || false);
        }
        wait_until(&job, PATIENCE, "the end", || store.exists(b"done").expect("read"));
        store.close().expect("closed");
        job.leave().expect("left");
    });
}

/// A value of 64 MiB with two replicas is put, read by the other member, rewritten in the memory
/// that it had, and deleted. The soak runs this with 1 GiB.
#[test]
fn a_value_may_be_large() {
    let len = large_len();
    play(this_test!(), 2, 0, |job| {
        let store = open(&job, 2);
        let byte = |round: u64, at: u64| (at * 31 + round * 7 + (at >> 12)) as u8;
        for round in 0..2u64 {
            let key = format!("round/{round}");
            if job.me() == MemberId(0) {
                let value: Vec<u8> = (0..len).map(|at| byte(round, at)).collect();
                store.put(b"large", &value).expect("put");
                store.put(key.as_bytes(), b"").expect("put");
            } else {
                wait_until(&job, PATIENCE, "the value", || {
                    store.exists(key.as_bytes()).expect("read")
                });
                let value = store.get(b"large").expect("read").expect("there");
                assert_eq!(value.bytes().len() as u64, len);
                let is_right =
                    value.bytes().iter().zip(0..).all(|(&found, at)| found == byte(round, at));
                assert!(is_right, "round {round}");
                store.put(format!("seen/{round}").as_bytes(), b"").expect("put");
            }
            let seen = format!("seen/{round}");
            wait_until(&job, PATIENCE, "the reader", || {
                store.exists(seen.as_bytes()).expect("read")
            });
        }
        if job.me() == MemberId(0) {
            assert!(store.delete(b"large").expect("delete"));
        }
        store.close().expect("closed");
        job.leave().expect("left");
    });
}

/// Three members put 600 keys into a store, open another store beside it, and call `open` of the
/// first store once more: no acknowledged value is lost, also when a member is killed then.
#[test]
fn several_stores_of_a_job_lose_nothing_when_a_member_is_killed() {
    play(this_test!(), 3, 1, |job| {
        let store = open(&job, 2);
        let me = job.me().0;
        let keys: Vec<String> = (0..200).map(|number| format!("key/{me}/{number}")).collect();
        for key in &keys {
            store.put(key.as_bytes(), b"first").expect("put");
        }
        let again = Store::open(&job, Options::new()).unwrap_err();
        assert_eq!(again, StoreError::AlreadyOpen { name: String::new() });
        let options = Options::new().replicas(2).partitions(16).expected_keys(1024);
        let second = Store::open(&job, options.name("second")).expect("opened");
        for key in &keys {
            second.put(key.as_bytes(), b"second").expect("put");
        }
        second.add(b"done", 1).expect("added");
        let all = || second.add(b"done", 0).expect("read") == 3;
        wait_until(&job, PATIENCE, "all members", all);
        if me == 1 {
            job.fence(job.me(), Time::NEVER).expect("killed");
        }
        wait_until(&job, PATIENCE, "the death", || job.epoch() == Epoch(1));
        for member in 0..3 {
            for number in 0..200 {
                let key = format!("key/{member}/{number}");
                for (store, text) in [(&store, &b"first"[..]), (&second, b"second")] {
                    let value = store.get(key.as_bytes()).expect("read").expect("acknowledged");
                    assert_eq!(value.bytes(), text);
                }
            }
        }
        second.close().expect("closed");
        store.close().expect("closed");
        job.leave().expect("left");
    });
}

/// A member is killed after it has closed the store, and before it opens it again.
#[test]
fn a_store_is_opened_again_when_a_member_was_killed_after_close() {
    play(this_test!(), 4, 1, |job| {
        for step in 0..6u64 {
            let store = open(&job, 2);
            let key = format!("key/{}", job.me());
            assert_eq!(store.get(key.as_bytes()), Ok(None), "it begins empty");
            store.put(key.as_bytes(), &step.to_le_bytes()).expect("put");
            let value = store.get(key.as_bytes()).expect("read").expect("just put");
            assert_eq!(value.bytes(), step.to_le_bytes());
            store.close().expect("closed");
            if step == 2 && job.me() == MemberId(3) {
                job.fence(job.me(), Time::NEVER).expect("killed");
            }
        }
        job.leave().expect("left");
    });
}

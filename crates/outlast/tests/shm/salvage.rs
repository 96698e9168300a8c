//! Salvage with real processes: survivors read the memory of killed members. `sim/store/salvage.rs`
//! has deaths and stops at each step, and damage.
//!
//! Each member records its acknowledged puts in a file that outlives it.

use crate::members::{FOLDER, LIMIT, expect_ok_within, folder, is_member, members};
use crate::reexecution::this_test;
use crate::salvage_support::{KEYS, damage_is_named, key, options, value, wait_until};
use outlast::launch::Running;
use outlast::store::Store;
use outlast::{Epoch, Job, JoinOptions, MemberId, Time};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// In a member, plays its part. Otherwise starts `count` members, and runs `act` on them.
fn play(
    test: &str,
    count: usize,
    member: impl FnOnce(Job, &Path),
    act: impl FnOnce(&mut Running, &Path),
) {
    if is_member(test) {
        return member(JoinOptions::new().join().expect("a member"), &folder());
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut running = members(test, count).env(FOLDER, folder.path()).start().expect("started");
    act(&mut running, folder.path());
    expect_ok_within(running, LIMIT, test);
}

/// The number in a value, which must be complete.
fn count_in(member: u32, bytes: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(bytes);
    let count = text.split('/').nth(1).and_then(|count| count.parse().ok()).expect("a count");
    assert_eq!(bytes, value(member, count), "torn");
    count
}

/// Every member puts its keys over and over, until `deaths` members have died. Then each survivor
/// reads all keys.
fn put_until_deaths(job: &Job, folder: &Path, replicas: usize, deaths: u64) {
    let store = Store::open(job, options(replicas)).expect("opened");
    let (me, members) = (job.me().0, job.members() as u32);
    let ledger = std::fs::File::create(folder.join(format!("ledger-{me}"))).expect("a ledger");
    std::fs::write(folder.join(format!("open-{me}")), b"").expect("noted");
    let handles: Vec<_> =
        (0..KEYS).map(|number| store.handle(&key(me, number)).expect("a handle")).collect();
    let mut count = 0u64;
    // Goes on for a while after the last death, so that all survivors write to the salvaged
    // partitions.
    let mut last = None;
    while last.is_none_or(|last: Instant| last.elapsed() < Duration::from_millis(50)) {
        count += 1;
        let number = count % KEYS;
        match number % 3 {
            0 => store.put(&key(me, number), &value(me, count)).map(drop).expect("put"),
            1 => handles[number as usize].put(&value(me, count)).map(drop).expect("put"),
            _ => store.transaction(|tx| tx.put(&key(me, number), &value(me, count))).expect("put"),
        }
        store.add(b"sum", 1).expect("added");
        ledger.write_all_at(&count.to_le_bytes(), 0).expect("noted");
        if job.epoch().0 >= deaths && last.is_none() {
            last = Some(Instant::now());
        }
    }
    let until = job.now().after(Duration::from_secs(20));
    assert!(store.wait_repaired(until).expect("known").is_repaired(), "replicas are missing");
    store.add(b"done", 1).expect("added");
    let survivors = i64::from(members) - deaths as i64;
    wait_until(job, "the others", || store.add(b"done", 0).expect("read") >= survivors);
    let mut sum = 0;
    for member in 0..members {
        let bytes = std::fs::read(folder.join(format!("ledger-{member}"))).expect("its ledger");
        let acked = bytes.try_into().map_or(0, u64::from_le_bytes);
        sum += acked;
        for number in 0..KEYS {
            let newest = (0..=acked).rev().find(|count| count % KEYS == number && *count > 0);
            let found = store.get(&key(member, number)).expect("read");
            let found = found.map(|found| count_in(member, found.bytes()));
            assert!(
                found >= newest,
                "{member}/{number}: {found:?}, and {newest:?} was acknowledged"
            );
            assert!(found.is_none_or(|found| found <= acked + 1), "{found:?} after {acked}");
        }
    }
    // One addition more is allowed for each dead member, which may have died after it added and
    // before it recorded that.
    let found = store.add(b"sum", 0).expect("read") as u64;
    assert!((sum..=sum + deaths).contains(&found), "{found} additions, {sum} acknowledged");
    assert_eq!((store.lost_partitions(), store.lost_keys()), (Ok(vec![]), Ok(vec![])));
    store.add(b"read", 1).expect("added");
    wait_until(job, "the others", || store.add(b"read", 0).expect("read") >= survivors);
    store.close().expect("closed");
    job.leave().expect("left");
}

/// Waits until all have opened the store, then kills the members of each wave together.
fn kill(running: &mut Running, folder: &Path, waves: &[&[u32]]) {
    let until = Instant::now() + LIMIT;
    let members = running.pids().len();
    while !(0..members).all(|member| folder.join(format!("open-{member}")).exists()) {
        assert!(Instant::now() < until, "the store was not opened");
        std::thread::sleep(Duration::from_millis(2));
    }
    for wave in waves {
        std::thread::sleep(Duration::from_millis(60));
        for &member in *wave {
            assert!(running.kill(MemberId(member)).expect("signalled"), "it ran");
        }
    }
}

/// A single replica, and `kill -9` in the middle of puts: all acknowledged values are there.
#[test]
fn a_single_replica_survives_kills_in_the_middle_of_puts() {
    let test = this_test!();
    let act = |running: &mut Running, folder: &Path| kill(running, folder, &[&[1], &[3]]);
    play(test, 4, |job, folder| put_until_deaths(&job, folder, 1, 2), act);
}

#[test]
fn a_single_replica_survives_the_deaths_of_all_members_but_the_last() {
    let test = this_test!();
    let act = |running: &mut Running, folder: &Path| kill(running, folder, &[&[0], &[4, 1], &[3]]);
    play(test, 5, |job, folder| put_until_deaths(&job, folder, 1, 4), act);
}

/// Two replicas, and two deaths at once: of some keys both replicas die.
#[test]
fn two_replicas_survive_simultaneous_deaths_of_both() {
    let test = this_test!();
    let act = |running: &mut Running, folder: &Path| kill(running, folder, &[&[1, 2], &[0, 4]]);
    play(test, 5, |job, folder| put_until_deaths(&job, folder, 2, 4), act);
}

#[test]
fn a_damaged_value_is_lost_by_name() {
    play(this_test!(), 2, |job, _| damage_is_named(&job), |_, _| {});
}

/// A member that leaves the job without handing over its data leaves its memory, like a dead
/// member.
#[test]
fn data_that_a_leaver_did_not_hand_over_is_salvaged() {
    let member = |job: Job, _: &Path| {
        let store = Store::open(&job, options(1)).expect("opened");
        if job.me().0 == 1 {
            for number in 0..KEYS {
                store.put(&key(1, number), &value(1, number)).expect("put");
            }
            return job.leave().expect("left");
        }
        wait_until(&job, "the leaver", || job.epoch() == Epoch(1));
        for number in 0..KEYS {
            let found = store.get(&key(1, number)).expect("read").expect("there");
            assert_eq!(found.bytes(), value(1, number));
        }
        store.close().expect("closed");
        job.leave().expect("left");
    };
    play(this_test!(), 2, member, |_, _| {});
}

/// The memory of dead members is given back: it does not accumulate.
#[test]
fn the_memory_of_the_dead_is_given_back() {
    let act = |running: &mut Running, folder: &Path| kill(running, folder, &[]);
    play(
        this_test!(),
        3,
        |job, folder| {
            let store = Store::open(&job, options(1)).expect("opened");
            let me = job.me().0;
            std::fs::write(folder.join(format!("open-{me}")), b"").expect("noted");
            for number in 0..KEYS {
                store.put(&key(me, number), &vec![me as u8; 100_000]).expect("put");
            }
            store.add(b"put", 1).expect("added");
            wait_until(&job, "all", || store.add(b"put", 0).expect("read") >= 3);
            if me != 0 {
                store.add(b"gone", 1).expect("added");
                wait_until(&job, "the other", || store.add(b"gone", 0).expect("read") >= 2);
                job.fence(job.me(), Time::NEVER).expect("killed");
            }
            wait_until(&job, "the deaths", || job.epoch() == Epoch(2));
            for member in 0..3 {
                for number in 0..KEYS {
                    let found = store.get(&key(member, number)).expect("read").expect("there");
                    assert_eq!(found.bytes(), vec![member as u8; 100_000]);
                }
            }
            wait_until(&job, "the release", || {
                (1..3).map(MemberId).all(|dead| {
                    let mut memory = vec![1; 1 << 20];
                    job.read_dead_segment(dead, 0, &mut memory).is_ok()
                        && memory.iter().all(|byte| *byte == 0)
                })
            });
            store.close().expect("closed");
            job.leave().expect("left");
        },
        act,
    );
}

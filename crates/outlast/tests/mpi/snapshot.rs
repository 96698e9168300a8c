//! Snapshots of the ranks of a real mpirun, on several nodes.

use crate::folders::folder_in_memory;
use crate::members::{FOLDER, folder, is_member};
use crate::ranks;
use crate::reexecution::this_test;
use crate::unfinished::unfinished;
use outlast::snapshot::{self, Options, SnapshotError, Snapshots};
use outlast::store::{self, Store};
use outlast::{Job, MemberId};
use std::path::PathBuf;
use std::time::Duration;

const MEMBERS: usize = 6;
const KEYS: u64 = 40;

fn open(job: &Job) -> Store {
    let options = store::Options::new().replicas(2).partitions(32).expected_keys(1024);
    Store::open(job, options).expect("opened")
}

fn key(member: u64, number: u64) -> Vec<u8> {
    format!("{member}/{number}").into_bytes()
}

/// Short, long, and too long for a single message.
fn value(member: u64, number: u64) -> Vec<u8> {
    vec![member as u8; [8, 3000, 100_000][number as usize % 3]]
}

/// Adds `count` for this member, and waits until `members` have been counted.
fn meet(job: &Job, store: &Store, name: &[u8], count: i64, members: i64) {
    store.add(name, count).expect("counted");
    while store.add(name, 0).expect("counted") < members {
        job.sleep(Duration::from_millis(2));
    }
}

/// Members of several nodes write, and take a snapshot while a member is killed. A job of another
/// size has all of the values.
#[test]
fn a_job_begins_with_the_snapshot_of_another_job() {
    let test = this_test!();
    if is_member(test) {
        let folder = folder();
        let job = outlast::join().expect("joined");
        return if folder.join("generation-000001").exists() {
            begin_again(&job, folder)
        } else {
            write(&job, folder)
        };
    }
    let _turn = ranks::take_turn();
    let folder = folder_in_memory();
    let path = folder.path().join("snapshots");
    let running = ranks::start(ranks::launch(test, MEMBERS).env(FOLDER, &path));
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while !path.join("generation-000001").exists() && unfinished(&path, 1).is_none() {
        assert!(std::time::Instant::now() < until, "no snapshot was begun");
        std::thread::sleep(Duration::from_millis(2));
    }
    running.kill(MemberId(3)).expect("killed");
    ranks::expect_ok(running, "the first job");
    ranks::expect_ok(ranks::start(ranks::launch(test, 3).env(FOLDER, &path)), "the second job");
}

fn write(job: &Job, folder: PathBuf) {
    let store = open(job);
    let me = u64::from(job.me().0);
    for number in 0..KEYS {
        store.put(&key(me, number), &value(me, number)).expect("put");
    }
    // Slowly, so that the kill comes in the middle of a snapshot.
    let options = Options::new().freeze_limit(Duration::from_secs(20)).bytes_per_second(2 << 20);
    let snapshots = Snapshots::open(&store, &folder, options).expect("opened");
    meet(job, &store, b"written", 1, MEMBERS as i64);
    let mut taken = 0;
    while me == 0 && (taken == 0 || job.view().living().count() == MEMBERS) {
        match snapshots.take() {
            Ok(_) => taken += 1,
            Err(SnapshotError::Interrupted { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    // The killed member does not count, and the others come here when it is dead.
    meet(job, &store, b"taken", i64::from(me != 3), MEMBERS as i64 - 1);
    store.close().expect("closed");
    job.leave().expect("left");
}

fn begin_again(job: &Job, folder: PathBuf) {
    let store = open(job);
    if job.me() == MemberId(0) {
        // All keys of the first job, and the counters at which its members met.
        let restored = snapshot::restore(&store, &folder).expect("restored");
        assert!(restored.records > MEMBERS as u64 * KEYS, "{restored:?}");
    }
    meet(job, &store, b"restored", 1, 3);
    for member in 0..MEMBERS as u64 {
        for number in 0..KEYS {
            let found = store.get(&key(member, number)).expect("read").expect("it is there");
            assert_eq!(found.bytes(), value(member, number));
        }
    }
    meet(job, &store, b"read", 1, 3);
    store.close().expect("closed");
    job.leave().expect("left");
}

//! Snapshots of real processes, with real kills and full disks. `sim/snapshot.rs` has deaths and
//! stops at any step.

use crate::folders::folder_in_memory;
use crate::members::{FOLDER, LIMIT, expect_ok, folder, is_member, members};
use crate::reexecution::{self, ROLE, this_test};
use crate::unfinished::unfinished;
use outlast::launch::{Launch, Output, Running};
use outlast::snapshot::{self, Options, SnapshotError, Snapshots};
use outlast::store::{self, Store};
use outlast::{Job, MemberId};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The folder of snapshots, if this process is a member in the named test.
fn as_member(test: &str) -> Option<PathBuf> {
    is_member(test).then(folder)
}

fn start(test: &str, count: usize, folder: &Path) -> Running {
    members(test, count).env(FOLDER, folder).segment_limit(256 << 20).start().expect("started")
}

fn open(job: &Job, replicas: usize) -> Store {
    let options = store::Options::new().replicas(replicas).partitions(64).expected_keys(4096);
    Store::open(job, options).expect("opened")
}

fn read(path: &Path) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for part in snapshot::parts(path).expect("a manifest") {
        snapshot::read_part(path, &part, |record| {
            let number = u64::from_le_bytes(record.value[..8].try_into().expect("8 bytes"));
            found.insert(String::from_utf8(record.key).expect("a key"), number);
        })
        .expect("a whole part");
    }
    found
}

fn check_pairs(path: &Path, members: usize) {
    let found = read(path);
    for member in 0..members {
        let number = |which: &str| found.get(&format!("{which}/{member}")).copied().unwrap_or(0);
        let (first, second) = (number("a"), number("b"));
        assert!(first == second || first == second + 1, "{member}: {first} and {second}");
    }
}

/// Writers go on, with and without handles, while snapshots are taken and two members are killed:
/// each snapshot is a consistent cut.
#[test]
fn a_snapshot_is_a_consistent_cut_while_members_write_and_die() {
    const MEMBERS: usize = 5;
    let test = this_test!();
    if let Some(folder) = as_member(test) {
        let job = outlast::join().expect("a member");
        let store = open(&job, 3);
        // Members of a busy machine may wait seconds for a processor.
        let options = Options::new().keep(1000).freeze_limit(LIMIT / 4);
        let snapshots = Snapshots::open(&store, &folder, options).expect("opened");
        let me = job.me().0;
        let writing = store.clone();
        let write = move || {
            let second = writing.handle(format!("b/{me}").as_bytes()).expect("a handle");
            let until = Instant::now() + LIMIT / 2;
            let mut number = 0u64;
            while !writing.exists(b"enough").expect("read") {
                assert!(Instant::now() < until, "still not enough snapshots");
                number += 1;
                let mut value = vec![7; 2000];
                value[..8].copy_from_slice(&number.to_le_bytes());
                writing.put(format!("a/{me}").as_bytes(), &value).expect("put");
                second.put(&value).expect("put");
            }
        };
        let writer = job.spawn("writes", Box::new(write)).expect("spawned");
        // The duration of a snapshot depends on the disk, so that some are taken before, between
        // and after the kills.
        let mut taken = 0;
        while me == 0 && (taken < 6 || job.view().living().count() > MEMBERS - 2) {
            match snapshots.take() {
                Ok(_) => taken += 1,
                Err(SnapshotError::Interrupted { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            job.sleep(Duration::from_millis(5));
        }
        if me == 0 {
            snapshots.take().expect("the last snapshot");
            store.put(b"enough", b"").expect("put");
        }
        job.wait_for(&writer, outlast::Time::NEVER);
        store.close().expect("closed");
        return job.leave().expect("left");
    }
    let folder = folder_in_memory();
    let path = folder.path().join("snapshots");
    let running = start(test, MEMBERS, &path);
    for victim in [3, 1] {
        std::thread::sleep(Duration::from_millis(500));
        running.kill(MemberId(victim)).expect("killed");
    }
    expect_ok(running);
    let generations = snapshot::list(&path).expect("a folder");
    assert!(generations.len() > 6);
    generations.iter().for_each(|generation| check_pairs(&generation.path, MEMBERS));
}

/// All members are killed in the middle of a snapshot: the previous snapshot is complete, and the
/// next job begins with it and takes the next snapshot.
#[test]
fn a_kill_during_a_snapshot_leaves_the_previous_snapshot() {
    let test = this_test!();
    if let Some(folder) = as_member(test) {
        let job = outlast::join().expect("a member");
        let store = open(&job, 2);
        if !folder.exists() {
            // Slowly, so that the kill comes in the middle.
            let options = Options::new().bytes_per_second(4 << 20);
            let snapshots = Snapshots::open(&store, &folder, options).expect("opened");
            let me = u64::from(job.me().0);
            for key in 0..8 {
                let mut value = vec![1; 100_000];
                value[..8].copy_from_slice(&me.to_le_bytes());
                store.put(format!("{me}/{key}").as_bytes(), &value).expect("put");
            }
            store.add(b"ready", 1).expect("counted");
            while store.add(b"ready", 0).expect("counted") < 3 {
                job.sleep(Duration::from_millis(1));
            }
            if me == 0 {
                snapshots.take().expect("taken");
                println!("first");
                let _ = snapshots.take();
            }
            job.sleep(LIMIT);
            return;
        }
        let generation = snapshot::find(&folder).expect("the first snapshot");
        assert!(generation.ends_with("generation-000001"), "{generation:?}");
        let snapshots = Snapshots::open(&store, &folder, Options::new().keep(5)).expect("opened");
        if job.me().0 == 0 {
            // A failure shows what has taken long.
            println!("restores at {:?}", job.now());
            let restored = snapshot::restore(&store, &folder).expect("restored");
            assert_eq!(restored.records, 25);
            println!("takes at {:?}", job.now());
            assert_eq!(snapshots.take().expect("taken").generation, 2);
            println!("closes at {:?}", job.now());
            let names: Vec<_> = std::fs::read_dir(&folder).expect("a folder").flatten().collect();
            assert_eq!(names.len(), 2, "{names:?}");
        }
        store.close().expect("closed");
        return job.leave().expect("left");
    }
    let folder = folder_in_memory();
    let path = folder.path().join("snapshots");
    let mut running = start(test, 3, &path);
    let until = Instant::now() + LIMIT;
    let is_being_written =
        || unfinished(&path, 2).is_some_and(|folder| folder.join("member-0001.part").exists());
    while !is_being_written() {
        assert!(Instant::now() < until, "no second snapshot was begun");
        std::thread::sleep(Duration::from_millis(2));
    }
    for member in 0..3 {
        running.kill(MemberId(member)).expect("killed");
    }
    running.wait(LIMIT);
    assert!(is_being_written(), "it was finished before the kill");
    // Another job, of another size.
    expect_ok(start(test, 2, &path));
}

/// A folder that cannot be written to is an error that names it.
#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let job = outlast::join().expect("a job of a single member");
    let store = Store::open(&job, store::Options::new()).expect("opened");
    store.put(b"key", &[1; 10_000]).expect("put");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let inside = file.path().join("snapshots");
    let error = Snapshots::open(&store, &inside, Options::new())
        .expect("opened")
        .take()
        .expect_err("no folder");
    assert!(error.to_string().contains(inside.to_str().expect("a path")), "{error}");
    assert_eq!(store.get(b"key").expect("read").expect("there").bytes().len(), 10_000);
    store.close().expect("closed");
    job.leave().expect("left");
}

/// A limit on the file size imitates a full disk: the call names the member and the file that could
/// not be written, and the previous snapshot stays the newest. When there is room again the next
/// snapshot is taken and nothing else is left.
#[test]
fn a_full_disk_is_named_and_the_previous_snapshot_stays() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let test = this_test!();
    if let Some(folder) = as_member(test) {
        let job = outlast::join().expect("a member");
        let store = open(&job, 2);
        let snapshots = Snapshots::open(&store, &folder, Options::new()).expect("opened");
        let me = job.me().0;
        for number in 0..100 {
            store.put(format!("{me}/{number}").as_bytes(), &[7; 10_000]).expect("put");
        }
        store.add(b"arrived", 1).expect("counted");
        while store.add(b"arrived", 0).expect("counted") < 3 {
            job.sleep(Duration::from_millis(1));
        }
        if me == 0 {
            let first = snapshots.take().expect("there is room");
            let before = getrlimit(Resource::Fsize);
            setrlimit(Resource::Fsize, Rlimit { current: Some(100_000), ..before }).expect("set");
            let error = snapshots.take().expect_err("no room").to_string();
            assert!(error.contains("member 0") && error.contains("member-0000.part"), "{error}");
            assert!(error.contains("File too large"), "{error}");
            // Other members may still have been writing when the unfinished snapshot was removed:
            // then the next snapshot removes the rest.
            let all = snapshot::list(&folder).expect("a folder");
            assert_eq!((snapshot::find(&folder).expect("a snapshot"), all.len()), (first.path, 1));
            setrlimit(Resource::Fsize, before).expect("set");
            let second = snapshots.take().expect("there is room again");
            assert_eq!(
                (snapshot::find(&folder).expect("a snapshot"), second.records),
                (second.path, 301)
            );
            assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 2);
        }
        store.close().expect("closed");
        return job.leave().expect("left");
    }
    let folder = folder_in_memory();
    // The signal that comes with the error would end the process.
    let running = Launch::new(3)
        .program("sh")
        .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""])
        .args([reexecution::binary().to_str().expect("a path")])
        .args(reexecution::arguments(test))
        .env(ROLE, test)
        .env(FOLDER, folder.path().join("snapshots"))
        .segment_limit(256 << 20)
        .output(Output::Capture)
        .start()
        .expect("started");
    expect_ok(running);
}

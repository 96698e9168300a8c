//! Images, regions and seats under faults that are about their records: snapshots, stopped members
//! without a piece, lost partitions, and closing alone.

use crate::folders::folder_in_memory;
use crate::simulation::{nap, run_with, seeds};
use outlast::engine::Fault;
use outlast::image::{ImageError, Images, Options, Regions};
use outlast::protect::{self, Interval, Protect, ProtectError};
use outlast::sim::{self, Link};
use outlast::snapshot::{self, Snapshots};
use outlast::store::{self, Store, StoreError};
use outlast::{Job, MemberId};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(1);

fn sim(members: usize, seed: u64, link: Link) -> sim::Options {
    let mut options = sim::Options::new(members, seed).link(link);
    // The tables of the code are made on the stack of the first member that needs them.
    (options.stack_len, options.time_limit) = (4 << 20, LIMIT);
    options
}

fn open_store(job: &Job, replicas: usize) -> Store {
    let records = store::Options::new().replicas(replicas).partitions(16).expected_keys(256);
    Store::open(job, records).expect("opened")
}

fn small(set: usize, lose: usize) -> Options {
    Options::new(1500).set(set).lose(lose).piece(64).room(200)
}

/// Waits until so many members have called it.
fn meet(job: &Job, arrived: &Cell<usize>, count: usize) {
    arrived.set(arrived.get() + 1);
    nap(job, "the others", || arrived.get() >= count);
}

fn end(job: &Job, store: &Store) {
    store.close().expect("closed");
    job.leave().expect("left");
}

/// The key of the record of images, regions or seats that ends so.
fn record(store: &Store, ending: &str) -> Option<Vec<u8>> {
    let keys = store.scan(b"\x01image/").expect("listed");
    keys.into_iter().find(|key| key.ends_with(ending.as_bytes()))
}

/// A job begins with the snapshot of a job that had images, regions and seats, and opens its own:
/// they are empty, since the pieces are gone.
#[test]
fn a_snapshot_brings_no_images_regions_or_seats_back() {
    for seed in seeds(2) {
        let folder = folder_in_memory();
        let path = folder.path().join("snapshots");
        for is_second in [false, true] {
            let (target, arrived) = (path.clone(), Rc::new(Cell::new(0)));
            run_with(sim(4, seed, Link::of_seed(seed)), move |job| {
                let store = open_store(&job, 2);
                let snapshots = match is_second {
                    false => Snapshots::open(&store, &target, snapshot::Options::new()).ok(),
                    true => None,
                };
                let me = job.me().index();
                match is_second {
                    false => _ = store.put(format!("key/{me}"), b"value").expect("put"),
                    true => {
                        snapshot::restore_share(&store, &target, me, 4).expect("restored");
                        meet(&job, &arrived, 4);
                        assert!(store.exists(format!("key/{me}")).expect("read"));
                    }
                }
                let images = Images::open(&store, "pictures", small(3, 1)).expect("opened");
                let regions = Regions::open(&store, "cells", small(3, 1)).expect("opened");
                let name = format!("of {me}");
                let found = images.load(&name);
                assert_eq!(found, Err(ImageError::Absent { name: name.clone() }));
                let restored = regions.restore(&mut []).expect("restored");
                assert_eq!(restored.version, None);
                images.save(&name, b"", &[1; 1500]).expect("saved");
                regions.checkpoint(7, b"", &[("cells", &[1; 500])]).expect("saved");
                let options = Protect::new(1000).set(3).lose(1).piece(64);
                let options = options.every(Interval::Always);
                let ended = protect::run(&store, options, move |seat| {
                    assert_eq!(seat.note(), None, "a seat begins anew");
                    seat.barrier_point(b"first")?;
                    if seat.number() == 0
                        && let Some(snapshots) = &snapshots
                    {
                        snapshots.take().expect("taken");
                    }
                    seat.barrier_point(b"second")?;
                    Ok::<(), ProtectError>(())
                });
                ended.expect("ended");
                regions.close().expect("closed");
                images.close().expect("closed");
                end(&job, &store);
            });
        }
    }
}

/// A member that holds no piece is stopped, and a holder dies. The image of another member is whole
/// again while it is still stopped, also if it is the first choice for the lost piece.
#[test]
fn images_are_healed_while_a_member_without_a_piece_is_stopped() {
    for seed in seeds(2) {
        for which in 0..4 {
            let (arrived, is_over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            run_with(sim(6, seed, Link::Network), move |job| {
                let store = open_store(&job, 2);
                let images = Images::open(&store, "test", small(2, 1)).expect("opened");
                meet(&job, &arrived, 6);
                if job.me() == MemberId(0) {
                    let holders = images.holders();
                    let others: Vec<MemberId> =
                        (0..6).map(MemberId).filter(|member| !holders.contains(member)).collect();
                    let faulty = [others[which], holders[1]];
                    let key = save_apart_from(&store, &images, &faulty);
                    let before = store.get(&key).expect("read").expect("there").version();
                    job.inject(Fault::Stop(faulty[0])).expect("a fault");
                    job.inject(Fault::Kill(faulty[1])).expect("a fault");
                    nap(&job, "a healed image", || {
                        store.get(&key).expect("read").expect("there").version() != before
                    });
                    job.inject(Fault::Resume(faulty[0])).expect("a fault");
                    nap(&job, "all pieces", || images.pieces_missing() == Ok(0));
                    is_over.set(true);
                }
                nap(&job, "the end", || is_over.get());
                images.close().expect("closed");
                end(&job, &store);
            });
        }
    }
}

/// Saves an image whose record has no replica at these members; returns the key of the record.
fn save_apart_from(store: &Store, images: &Images, members: &[MemberId]) -> Vec<u8> {
    images.save("first", b"", &[1; 1500]).expect("saved");
    let first = record(store, "/first").expect("a record");
    images.delete("first").expect("deleted");
    let prefix = &first[..first.len() - "first".len()];
    let names = (0..1000).map(|number| format!("image {number}"));
    let key_of = |name: &String| [prefix, name.as_bytes()].concat();
    let is_apart = |name: &String| {
        store.replicas_of(key_of(name)).iter().all(|replica| !members.contains(replica))
    };
    let name = names.into_iter().find(is_apart).expect("some name");
    images.save(&name, b"", &[1; 1500]).expect("saved");
    key_of(&name)
}

/// All replicas of a partition die, among them the holder of an image whose record is elsewhere.
/// The image is whole again although the loss of the partition is not accepted.
#[test]
fn images_are_healed_while_another_partition_is_lost() {
    for seed in seeds(4) {
        let (arrived, is_over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        run_with(sim(6, seed, Link::Network), move |job| {
            let store = open_store(&job, 2);
            let images = Images::open(&store, "test", small(2, 1)).expect("opened");
            meet(&job, &arrived, 6);
            if job.me() == MemberId(0) {
                let holders = images.holders();
                let (lost, dying) = (0..1000)
                    .map(|number| format!("lost {number}"))
                    .map(|name| (store.replicas_of(&name), name))
                    .find(|(replicas, _)| {
                        replicas.contains(&holders[1]) && !replicas.contains(&holders[0])
                    })
                    .map(|(replicas, name)| (name, replicas))
                    .expect("some key");
                store.put(&lost, b"value").expect("put");
                let key = save_apart_from(&store, &images, &dying);
                let before = store.get(&key).expect("read").expect("there").version();
                for member in dying {
                    job.inject(Fault::Kill(member)).expect("a fault");
                }
                nap(&job, "a healed image", || {
                    store.get(&key).expect("read").expect("there").version() != before
                });
                assert!(matches!(store.get(&lost), Err(StoreError::DataLost { .. })));
                store.accept_loss().expect("accepted");
                is_over.set(true);
            }
            nap(&job, "the end", || is_over.get());
            images.close().expect("closed");
            end(&job, &store);
        });
    }
}

/// All replicas of a partition die, and the loss is not accepted. Another member leaves all the
/// same: the images whose records were there are lost, and it waits for the others alone.
#[test]
fn a_member_leaves_while_a_partition_is_lost() {
    for seed in seeds(4) {
        let (stage, arrived) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        run_with(sim(6, seed, Link::Network), move |job| {
            let store = open_store(&job, 2);
            let images = Images::open(&store, "test", small(2, 1)).expect("opened");
            meet(&job, &arrived, 6);
            let (first, leaver) = (MemberId(0), images.holders());
            let reached = |number: u32| nap(&job, "the others", || stage.get() >= number);
            if job.me() == first {
                // The lock of leavers has a replica that lives.
                let turn = store.replicas_of(b"\0outlast/leave");
                let is_other = |replicas: &Vec<MemberId>| {
                    !replicas.contains(&first)
                        && !replicas.contains(&leaver[1])
                        && !turn.iter().all(|replica| replicas.contains(replica))
                };
                let names = (0..1000).map(|number| format!("lost {number}"));
                let lost = names.into_iter().find(|name| is_other(&store.replicas_of(name)));
                let lost = lost.expect("some key");
                let dying = store.replicas_of(&lost);
                store.put(&lost, b"value").expect("put");
                let key = save_apart_from(&store, &images, &dying);
                for member in dying {
                    job.inject(Fault::Kill(member)).expect("a fault");
                }
                nap(&job, "the loss", || store.get(&lost).is_err());
                stage.set(leaver[1].0 + 1);
                nap(&job, "the leaver", || job.view().dead.len() == 3);
                assert!(matches!(store.get(&lost), Err(StoreError::DataLost { .. })));
                let name = key.rsplit(|byte| *byte == b'/').next().expect("a name");
                let name = String::from_utf8(name.to_vec()).expect("a name");
                assert_eq!(images.load(&name).expect("loaded").bytes(), [1; 1500]);
                store.accept_loss().expect("accepted");
                stage.set(100);
            } else {
                nap(&job, "the loss", || stage.get() > 0);
                if stage.get() == job.me().0 + 1 {
                    return store.leave(job.now().after(LIMIT * 30)).expect("left");
                }
            }
            reached(100);
            images.close().expect("closed");
            end(&job, &store);
        });
    }
}

/// A member closes the images alone, and wants to leave with a piece that must not be lost. It does
/// not leave. When the others close the images, it closes them once more, and leaves.
#[test]
fn a_member_that_has_closed_images_alone_does_not_leave_with_their_pieces() {
    for seed in seeds(4) {
        let stage = Rc::new(Cell::new(0));
        run_with(sim(3, seed, Link::of_seed(seed)), move |job| {
            let store = open_store(&job, 2);
            let images = Images::open(&store, "test", small(3, 1)).expect("opened");
            let reached = |number: u32| nap(&job, "the others", || stage.get() >= number);
            match job.me().0 {
                0 => {
                    images.save("image", b"", &[7; 1500]).expect("saved");
                    stage.set(1);
                    reached(2);
                    assert_eq!(images.load("image").expect("loaded").bytes(), [7; 1500]);
                }
                1 => {
                    reached(1);
                    nap(&job, "the first leaver", || job.view().dead.len() == 1);
                    let closed = images.close();
                    assert!(matches!(closed, Err(ImageError::Timeout { .. })), "{closed:?}");
                    let left = store.leave(job.now().after(LIMIT * 3));
                    assert!(matches!(left, Err(StoreError::Timeout { .. })), "{left:?}");
                    stage.set(2);
                }
                // No other member can hold its piece, and one piece may be lost.
                _ => {
                    reached(1);
                    return store.leave(job.now().after(LIMIT * 30)).expect("left");
                }
            }
            images.close().expect("closed");
            assert_eq!(images.close(), Err(ImageError::Closed));
            end(&job, &store);
        });
    }
}

/// Two holders are stopped, of a data piece and of a parity piece. A load does not wait for them
/// one after the other.
#[test]
fn a_load_with_stopped_holders_ends_long_before_its_limit() {
    for seed in seeds(4) {
        let (arrived, is_over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        run_with(sim(8, seed, Link::Network), move |job| {
            let store = open_store(&job, 3);
            let images = Images::open(&store, "test", small(5, 2)).expect("opened");
            meet(&job, &arrived, 8);
            if job.me() == MemberId(0) {
                let holders = images.holders();
                let stopped = [holders[1], holders[3]];
                let key = save_apart_from(&store, &images, &stopped);
                let name = String::from_utf8(key).expect("a key");
                let name = name.rsplit('/').next().expect("a name");
                for member in stopped {
                    job.inject(Fault::Stop(member)).expect("a fault");
                }
                let began = job.now();
                assert_eq!(images.load(name).expect("loaded").bytes(), [1; 1500]);
                let took = job.now().since(began);
                assert!(took < LIMIT / 2, "took {took:?}");
                for member in stopped {
                    job.inject(Fault::Resume(member)).expect("a fault");
                }
                is_over.set(true);
            }
            nap(&job, "the end", || is_over.get());
            images.close().expect("closed");
            end(&job, &store);
        });
    }
}

/// A holder is stopped at any time of a save. The save ends within a time limit and its slack.
#[test]
fn a_save_with_a_stopped_holder_takes_a_single_limit() {
    for seed in seeds(40) {
        let (arrived, is_over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        run_with(sim(6, seed, Link::Network), move |job| {
            let store = open_store(&job, 2);
            let options = Options::new(6000).set(2).lose(1).piece(64).room(200);
            let images = Images::open(&store, "test", options).expect("opened");
            meet(&job, &arrived, 6);
            if job.me() == MemberId(0) {
                let holder = images.holders()[1];
                images.save("first", b"", &[1; 6000]).expect("saved");
                let first = record(&store, "/first").expect("a record");
                images.delete("first").expect("deleted");
                let prefix = &first[..first.len() - "first".len()];
                let names = (0..1000).map(|number| format!("image {number}"));
                let is_apart = |name: &String| {
                    let key = [prefix, name.as_bytes()].concat();
                    !store.replicas_of(key).contains(&holder)
                };
                let name = names.into_iter().find(is_apart).expect("some name");
                let mine = job.clone();
                let stop = move || {
                    mine.sleep(Duration::from_nanos(seed * 1_500));
                    mine.inject(Fault::Stop(holder)).expect("a fault");
                };
                let stops = job.spawn("stops", Box::new(stop)).expect("an activity");
                let began = job.now();
                let _ = images.save(&name, b"", &[2; 6000]);
                let took = job.now().since(began);
                assert!(took < LIMIT * 3 / 2, "seed {seed}: took {took:?}");
                nap(&job, "the stop", || stops.is_finished());
                job.inject(Fault::Resume(holder)).expect("a fault");
                is_over.set(true);
            }
            nap(&job, "the end", || is_over.get());
            images.close().expect("closed");
            end(&job, &store);
        });
    }
}

/// A program adopts the verdict, which changes its version, while all save regions: all succeed.
#[test]
fn a_checkpoint_succeeds_while_the_verdict_is_adopted() {
    for seed in seeds(8) {
        let is_over = Rc::new(Cell::new(0));
        run_with(sim(4, seed, Link::of_seed(seed)), move |job| {
            let store = open_store(&job, 2);
            let regions = Regions::open(&store, "cells", small(3, 1)).expect("opened");
            regions.restore(&mut []).expect("restored");
            regions.checkpoint(1, b"", &[("cells", &[1; 500])]).expect("saved");
            let mut adopts = None;
            if job.me() == MemberId(3) {
                let verdict = record(&store, "/v").expect("a record");
                let (store, mine) = (store.clone(), job.clone());
                let adopt = move || {
                    for _ in 0..300 {
                        store.adopt(&verdict).expect("adopted");
                        mine.sleep(Duration::from_micros(20));
                    }
                };
                adopts = Some(job.spawn("adopts", Box::new(adopt)).expect("an activity"));
            }
            for version in 2..12 {
                let cells = [version as u8; 500];
                let saved = regions.checkpoint(version, b"", &[("cells", &cells)]);
                assert_eq!(saved, Ok(()), "seed {seed}, version {version}");
            }
            if let Some(adopts) = adopts {
                nap(&job, "the adopter", || adopts.is_finished());
            }
            meet(&job, &is_over, 4);
            regions.close().expect("closed");
            end(&job, &store);
        });
    }
}

/// A program adopts the course of seats, which changes its version, while all seats are saved: no
/// seat goes back.
#[test]
fn seats_are_saved_while_their_course_is_adopted() {
    for seed in seeds(8) {
        let (is_over, calls) = (Rc::new(Cell::new(0)), Arc::new(AtomicU32::new(0)));
        run_with(sim(4, seed, Link::of_seed(seed)), move |job| {
            let store = open_store(&job, 2);
            let options = Protect::new(1000).set(3).lose(1).piece(64).every(Interval::Always);
            let (calls, adopting, mine) = (calls.clone(), store.clone(), job.clone());
            let ended = protect::run(&store, options, move |seat| {
                calls.fetch_add(1, Ordering::SeqCst);
                let mut adopts = None;
                if seat.number() == 3 {
                    let course = record(&adopting, "/c").expect("a record");
                    let (store, job) = (adopting.clone(), mine.clone());
                    let adopt = move || {
                        for _ in 0..300 {
                            store.adopt(&course).expect("adopted");
                            job.sleep(Duration::from_micros(20));
                        }
                    };
                    adopts = Some(mine.spawn("adopts", Box::new(adopt)).expect("an activity"));
                }
                for step in 0..10u64 {
                    seat.barrier_point(&step.to_le_bytes())?;
                }
                if let Some(adopts) = adopts {
                    nap(&mine, "the adopter", || adopts.is_finished());
                }
                Ok::<u32, ProtectError>(calls.load(Ordering::SeqCst))
            });
            let calls = ended.expect("ended")[0].1;
            assert!(
                calls <= 4,
                "seed {seed}: the closures of four seats were called {calls} times"
            );
            meet(&job, &is_over, 4);
            end(&job, &store);
        });
    }
}

/// The partition of the verdict is lost, and the loss accepted. No caller is told that nothing was
/// saved yet.
#[test]
fn regions_whose_verdict_is_lost_are_lost_at_all_callers() {
    for seed in seeds(4) {
        let (saved, is_accepted, told) =
            (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        run_with(sim(6, seed, Link::Network), move |job| {
            let store = open_store(&job, 2);
            let regions = Regions::open(&store, "cells", small(3, 1)).expect("opened");
            regions.restore(&mut []).expect("restored");
            regions.checkpoint(7, b"", &[("cells", &[1; 500])]).expect("saved");
            let verdict = record(&store, "/v").expect("a record");
            let dying = store.replicas_of(&verdict);
            meet(&job, &saved, 6);
            if dying.contains(&job.me()) {
                if job.me() == dying[0] {
                    job.inject(Fault::Kill(dying[1])).expect("a fault");
                    job.inject(Fault::Kill(dying[0])).expect("a fault");
                }
                job.sleep(LIMIT * 60);
            }
            nap(&job, "two deaths", || job.view().dead.len() == 2);
            let first = (0..6).map(MemberId).find(|member| !dying.contains(member));
            if Some(job.me()) == first {
                nap(&job, "a loss", || store.get(&verdict).is_err());
                store.accept_loss().expect("accepted");
                is_accepted.set(true);
            }
            nap(&job, "the loss", || is_accepted.get());
            let restored = regions.restore(&mut []);
            assert!(matches!(restored, Err(ImageError::DataLost { .. })), "{restored:?}");
            meet(&job, &told, 4);
            regions.close().expect("closed");
            end(&job, &store);
        });
    }
}

/// A member is stopped at any time of `open` for longer than the time limit, again and again, and
/// the others give up. No attempt keeps memory: at the end there is room for the images.
#[test]
fn calls_of_open_that_have_timed_out_keep_no_memory() {
    let timed_out = Rc::new(Cell::new(0));
    for seed in seeds(12) {
        let link = Link::of_seed(seed);
        let mut options = sim(4, seed, link);
        // Room for the store and a few arenas.
        options.segment_limit = 1 << 20;
        let (arrived, timed_out) = (Rc::new(Cell::new(0)), timed_out.clone());
        run_with(options, move |job| {
            let store = open_store(&job, 2);
            let stopped = MemberId(seed as u32 / 2 % 3);
            let meet = |number: usize| {
                arrived.set(arrived.get() + 1);
                nap(&job, "the others", || arrived.get() >= 4 * number);
            };
            let open = || Images::open(&store, "test", Options::new(50_000).set(4).lose(1));
            for round in 0..8_u64 {
                meet(2 * round as usize + 1);
                if job.me() == MemberId(3) {
                    let (mine, most) = (job.clone(), if link == Link::Memory { 40 } else { 150 });
                    let after = Duration::from_micros((seed * 8 + round) * 7_919 % most);
                    let stop = move || {
                        mine.sleep(after);
                        mine.inject(Fault::Stop(stopped)).expect("a fault");
                        mine.sleep(LIMIT * 3);
                        mine.inject(Fault::Resume(stopped)).expect("a fault");
                    };
                    job.spawn("stops", Box::new(stop)).expect("an activity");
                }
                match open() {
                    Ok(images) => while images.close().is_err() {},
                    Err(ImageError::Timeout { .. }) => timed_out.set(timed_out.get() + 1),
                    Err(ImageError::Invalid { .. }) => {}
                    Err(error) => panic!("seed {seed}, round {round}: {error}"),
                }
                job.sleep(LIMIT * 6);
                meet(2 * round as usize + 2);
            }
            // A member may have come further than the others, which then refuse once.
            let images = (0..4).find_map(|_| open().ok()).expect("room");
            images.save(&format!("of {}", job.me()), b"", &[1; 50_000]).expect("saved");
            meet(17);
            images.close().expect("closed");
            assert_eq!(store.scan(b"\x01image/").expect("listed"), Vec::<Vec<u8>>::new());
            end(&job, &store);
        });
    }
    assert!(timed_out.get() > 0, "no call has timed out");
}

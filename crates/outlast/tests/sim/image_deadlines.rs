//! Every call of images and region checkpoints returns within its time limit plus the documented
//! slack, whatever stops or dies meanwhile: a table of all calls that wait, against a stopped
//! member, a stopped pair, a stopped member plus a death, and members that are stopped in turn,
//! over both links.

use crate::simulation::{nap, seeds};
use outlast::engine::Fault;
use outlast::image::{Images, Options, Owner, Regions};
use outlast::sim::{self, Link, Random};
use outlast::store::{self, Store};
use outlast::{Job, MemberId};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(1);
/// The slack that [`Job::time_limit`] documents.
const SLACK: Duration = Duration::from_millis(125);
/// What a call may take without waiting for any member.
const WORK: Duration = Duration::from_millis(60);

const MEMBERS: usize = 6;
const CALLER: MemberId = MemberId(5);

/// How long the images are.
const LEN: usize = 1500;

/// What a call finds prepared.
struct Scene {
    job: Job,
    store: Store,
    /// Each member has saved an image, and the caller another one, `mine`.
    images: Images,
    /// All members have saved their regions as version 1.
    regions: Regions,
    /// Nothing was saved yet.
    fresh: Regions,
}

/// What the other members do while the call runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    /// They serve the caller.
    Serve,
    /// They make the call, too.
    Call,
}

use Others::{Call, Serve};

/// A call: its name, its limit in halves of the time limit, what it does, and what the others do.
/// Its result does not matter here.
struct Row(&'static str, u32, fn(&Scene), Others);

const ROWS: &[Row] = &[
    Row("open", 2, |s| drop(Images::open(&s.store, "further", small())), Call),
    Row("save", 2, |s| drop(s.images.save("mine", b"", &[8; LEN])), Serve),
    Row("save a new image", 2, |s| drop(s.images.save("new", b"", &[8; LEN])), Serve),
    Row("save without changes", 2, |s| drop(s.images.save("mine", b"note", &[7; LEN])), Serve),
    Row("save the image of another", 2, |s| drop(s.images.save("of 4", b"", &[8; LEN])), Serve),
    Row("save what another thread saves", 2, save_twice, Serve),
    Row(
        "save_from",
        2,
        |s| drop(s.images.save_from("mine", b"", LEN as u64, |_, bytes| bytes.fill(9))),
        Serve,
    ),
    Row("load", 2, |s| drop(s.images.load("mine")), Serve),
    Row("load the image of another", 2, |s| drop(s.images.load("of 4")), Serve),
    Row("read", 2, |s| drop(s.images.read("mine", 700, &mut [0; 300])), Serve),
    Row("delete", 2, |s| drop(s.images.delete("mine")), Serve),
    Row(
        "save, and delete",
        4,
        |s| {
            let _ = s.images.save("mine", b"", &[8; LEN]);
            drop(s.images.delete("mine"));
        },
        Serve,
    ),
    Row("pieces_missing", 2, |s| drop(s.images.pieces_missing()), Serve),
    Row("close", 2, |s| drop(s.images.close()), Call),
    Row("close while images are healed", 2, close_later, Call),
    Row("close alone", 2, |s| drop(s.images.close()), Serve),
    Row(
        "close after a save",
        4,
        |s| {
            let _ = s.images.save("mine", b"", &[8; LEN]);
            drop(s.images.close());
        },
        Call,
    ),
    Row("regions.open", 2, |s| drop(Regions::open(&s.store, "further", small())), Call),
    Row("regions.checkpoint", 2, |s| drop(s.regions.checkpoint(2, b"", &[("a", &[2; 900])])), Call),
    Row(
        "regions.checkpoint for the first time",
        2,
        |s| drop(s.fresh.checkpoint(1, b"", &[("a", &[2; 900])])),
        Call,
    ),
    Row(
        "regions.checkpoint alone",
        2,
        |s| drop(s.regions.checkpoint(2, b"", &[("a", &[2; 900])])),
        Serve,
    ),
    Row("regions.restore", 2, |s| drop(s.regions.restore(&mut [])), Call),
    Row(
        "regions.restore with regions",
        2,
        |s| drop(s.regions.restore(&mut [("a", &mut [0; 900])])),
        Call,
    ),
    Row("regions.restore of nothing", 2, |s| drop(s.fresh.restore(&mut [])), Call),
    Row(
        "regions.checkpoint and restore",
        4,
        |s| {
            let _ = s.regions.checkpoint(2, b"", &[("a", &[2; 900])]);
            drop(s.regions.restore(&mut [("a", &mut [0; 900])]));
        },
        Call,
    ),
    Row("regions.read", 2, |s| drop(s.regions.read(Owner::All, "a", 0, &mut [0; 5400])), Serve),
    Row("regions.owners", 2, |s| drop(s.regions.owners()), Serve),
    Row("regions.close", 2, |s| drop(s.regions.close()), Call),
];

/// Another thread of the caller saves the image when the call begins.
fn save_twice(scene: &Scene) {
    let images = scene.images.clone();
    let save = move || drop(images.save("mine", b"", &[9; LEN]));
    scene.job.spawn("saves", Box::new(save)).expect("spawned");
    scene.job.sleep(Duration::from_micros(20));
    drop(scene.images.save("mine", b"", &[8; LEN]));
}

/// The activity that heals has begun before.
fn close_later(scene: &Scene) {
    scene.job.sleep(WORK / 3);
    drop(scene.images.close());
}

/// What strikes while the call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strike {
    Nothing,
    Stop,
    StopPair,
    /// A member is stopped, and another one dies.
    StopAndKill,
    /// Both members are stopped in turn, each for almost the time limit.
    InTurn,
}

fn small() -> Options {
    Options::new(LEN as u64).set(3).lose(1).piece(64).room(200)
}

/// Prepares what a call finds.
fn prepare(job: &Job) -> Scene {
    let records = store::Options::new().replicas(3).partitions(16).expected_keys(256);
    let store = Store::open(job, records).expect("opened");
    let images = Images::open(&store, "images", small()).expect("opened");
    let regions = Regions::open(&store, "regions", small()).expect("opened");
    let fresh = Regions::open(&store, "fresh", small()).expect("opened");
    regions.restore(&mut []).expect("restored");
    fresh.restore(&mut []).expect("restored");
    regions.checkpoint(1, b"", &[("a", &[1; 900])]).expect("saved");
    images.save(&format!("of {}", job.me().0), b"", &[7; LEN]).expect("saved");
    if job.me() == CALLER {
        images.save("mine", b"", &[7; LEN]).expect("saved");
    }
    Scene { job: job.clone(), store, images, regions, fresh }
}

/// How long a call takes if members are struck at a time after its beginning.
fn time(row: &Row, link: Link, strike: Strike, seed: u64, delay: Duration) -> Duration {
    let time = Rc::new(Cell::new(None));
    let taken = time.clone();
    let arrived = Rc::new(Cell::new(0));
    let (begins, is_over) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let mut options = sim::Options::new(MEMBERS, seed).link(link);
    (options.steps_max, options.time_limit) = (10_000_000, LIMIT);
    options.stack_len = 2 << 20;
    let (name, call, others) = (row.0, row.2, row.3);
    let report = sim::run(&options, move |job: Job| {
        let scene = prepare(&job);
        arrived.set(arrived.get() + 1);
        // The caller ends with its call, and a member that is late would find it dead.
        nap(&job, "the others", || arrived.get() == MEMBERS);
        if job.me() == CALLER {
            let (mine, is_struck) = (job.clone(), Arc::new(AtomicBool::new(false)));
            let struck = is_struck.clone();
            let faults = move || {
                // Any of the other members, so that some hold pieces and some replicas of records.
                let target = MemberId(seed as u32 % CALLER.0);
                let other = MemberId((seed as u32 / CALLER.0 + 1 + target.0) % CALLER.0);
                let other =
                    if other == target { MemberId((target.0 + 1) % CALLER.0) } else { other };
                let fault = |fault| drop(mine.inject(fault));
                mine.sleep(delay);
                if strike != Strike::Nothing {
                    fault(Fault::Stop(target));
                }
                match strike {
                    Strike::StopPair => fault(Fault::Stop(other)),
                    Strike::StopAndKill => fault(Fault::Kill(other)),
                    Strike::Nothing | Strike::Stop | Strike::InTurn => {}
                }
                struck.store(true, Ordering::Relaxed);
                if strike == Strike::InTurn {
                    for [next, last] in [[other, target], [target, other]].repeat(3) {
                        mine.sleep(LIMIT * 9 / 10);
                        fault(Fault::Stop(next));
                        fault(Fault::Resume(last));
                    }
                }
            };
            job.spawn("faults", Box::new(faults)).expect("spawned");
            if delay.is_zero() {
                nap(&job, "the first stop", || is_struck.load(Ordering::Relaxed));
            }
            begins.set(true);
            let began = job.now();
            call(&scene);
            taken.set(Some(job.now().since(began)));
            is_over.set(true);
        } else {
            nap(&job, "the call", || begins.get());
            if others == Call {
                call(&scene);
            }
        }
        // The others serve.
        nap(&scene.job, "the end", || is_over.get());
    });
    assert!(report.panics.is_empty(), "{name}: {:?}", report.panics);
    time.get().unwrap_or_else(|| panic!("{name} has not ended: {:?}", report.outcome))
}

/// Checks all rows of the table, or the rows whose names contain `OUTLAST_ROW`.
fn check(link: Link, strike: Strike) {
    let only = std::env::var("OUTLAST_ROW").unwrap_or_default();
    let mut late = Vec::new();
    for row in ROWS.iter().filter(|row| row.0.contains(&only)) {
        let all = seeds(4);
        let alone = time(row, link, Strike::Nothing, all.start, Duration::ZERO);
        for seed in all {
            // At any time of the call, or before it.
            let mut random = Random::new(seed ^ 0x696d_6167_65);
            let within = random.below(alone.as_nanos().max(1) as u64);
            let delay = if seed % 4 == 0 { 0 } else { within };
            // A list counts its limit anew with each record.
            let is_list = row.0 == "pieces_missing" && strike == Strike::InTurn;
            let limit = if is_list { LIMIT * 4 } else { LIMIT / 2 * row.1 };
            let took = time(row, link, strike, seed, Duration::from_nanos(delay));
            if took > limit + SLACK + WORK {
                late.push(format!("{} took {took:?} of {limit:?} with seed {seed}", row.0));
            }
        }
    }
    assert!(late.is_empty(), "{link:?}, {strike:?}:\n{}", late.join("\n"));
}

#[test]
fn every_call_of_images_on_mapped_memory_ends_in_time_with_a_stopped_member() {
    check(Link::Memory, Strike::Stop);
}

#[test]
fn every_call_of_images_on_mapped_memory_ends_in_time_with_a_stopped_pair() {
    check(Link::Memory, Strike::StopPair);
}

#[test]
fn every_call_of_images_on_mapped_memory_ends_in_time_with_a_stopped_member_and_a_death() {
    check(Link::Memory, Strike::StopAndKill);
}

#[test]
fn every_call_of_images_on_mapped_memory_ends_in_time_with_members_that_are_stopped_in_turn() {
    check(Link::Memory, Strike::InTurn);
}

#[test]
fn every_call_of_images_over_a_network_ends_in_time_with_a_stopped_member() {
    check(Link::Network, Strike::Stop);
}

#[test]
fn every_call_of_images_over_a_network_ends_in_time_with_a_stopped_pair() {
    check(Link::Network, Strike::StopPair);
}

#[test]
fn every_call_of_images_over_a_network_ends_in_time_with_a_stopped_member_and_a_death() {
    check(Link::Network, Strike::StopAndKill);
}

#[test]
fn every_call_of_images_over_a_network_ends_in_time_with_members_that_are_stopped_in_turn() {
    check(Link::Network, Strike::InTurn);
}

//! The promises of images, each as the part that a member plays. `sim/image.rs` and `shm/image.rs`
//! run these parts.

use outlast::engine::Fault;
use outlast::image::{ImageError, ImageResult, Images, Options, Owner, Regions};
use outlast::store::{self, Store};
use outlast::{Epoch, Job, MemberId};
use std::time::Duration;

pub(crate) const MEMBERS: usize = 6;

/// The length of the images.
const LEN: usize = 1500;

/// The parameters of a part.
#[derive(Clone, Copy)]
pub(crate) struct Chance {
    pub(crate) seed: u64,
    /// How many images each member saves.
    pub(crate) saves: u32,
    /// About how many engine steps a save has.
    pub(crate) steps: u64,
}

impl Chance {
    /// A number below `bound` that depends on the seed.
    fn below(self, salt: u64, bound: u64) -> u64 {
        let mixed = (self.seed << 8 ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33) % bound
    }
}

pub(crate) fn options(set: usize, lose: usize) -> Options {
    Options::new(LEN as u64).set(set).lose(lose).piece(64).room(200)
}

pub(crate) fn open(job: &Job, options: Options) -> (Store, Images) {
    let records = store::Options::new().replicas(4).partitions(16).expected_keys(256);
    let store = Store::open(job, records).expect("opened");
    let images = Images::open(&store, "test", options).expect("opened");
    (store, images)
}

pub(crate) fn end(job: &Job, store: &Store, images: &Images) {
    images.close().expect("closed");
    store.close().expect("closed");
    job.leave().expect("left");
}

#[track_caller]
pub(crate) fn nap(job: &Job, what: &str, until: impl Fn() -> bool) {
    let deadline = job.now().after(Duration::from_secs(40));
    while !until() {
        assert!(job.now() < deadline, "{} waited in vain for {what}", job.me());
        job.park(job.bell(), job.now().after(Duration::from_millis(5)));
    }
}

/// The bytes of an image with a number: a part of them changes with each number.
pub(crate) fn bytes_of(number: u32) -> Vec<u8> {
    let byte = |at: usize| match at / 300 % 2 {
        0 => (at as u32 * 7) as u8,
        _ => (number * 31 + at as u32) as u8,
    };
    (0..LEN).map(byte).collect()
}

/// Loads an image and checks that it is whole; returns its number.
#[track_caller]
pub(crate) fn load(images: &Images, name: &str) -> ImageResult<u32> {
    let image = images.load(name)?;
    let number = u32::from_le_bytes(image.note().try_into().expect("4 bytes"));
    assert!(image.bytes() == bytes_of(number), "the image {name} with the number {number} is torn");
    Ok(number)
}

fn save(images: &Images, name: &str, number: u32) -> ImageResult<()> {
    images.save(name, &number.to_le_bytes(), &bytes_of(number))
}

fn is_doomed(job: &Job) -> bool {
    job.me() == MemberId(1) || job.me() == MemberId(3)
}

/// Lets the members 1 and 3 die inside of one of their next calls.
fn doom(job: &Job, chance: Chance) {
    if is_doomed(job) {
        let bound = u64::from(chance.saves) * chance.steps;
        let steps = 1 + chance.below(u64::from(job.me().0), bound);
        job.inject(Fault::DieAtStep(steps)).expect("planned");
    }
}

/// The number that a key counts.
pub(crate) fn count(store: &Store, key: &[u8]) -> i64 {
    let value = store.get(key).expect("read");
    value.map_or(0, |value| i64::from_le_bytes(value.bytes().try_into().expect("8 bytes")))
}

/// A member that is to die makes calls until it is dead.
pub(crate) fn go_on_until_dead(job: &Job, store: &Store) -> ! {
    loop {
        store.put(format!("last/{}", job.me()).as_bytes(), b"a call").expect("put");
    }
}

/// Kept: after the deaths of as many holders as may be lost, at any step of any save, all members
/// load each image as it was saved last, or newer.
pub(crate) fn kept(job: Job, chance: Chance) {
    let (store, images) = open(&job, options(4, 2));
    doom(&job, chance);
    let me = job.me();
    let number_of = |member: MemberId| -> Option<u32> {
        let value = store.get(format!("saved/{member}").as_bytes()).expect("read")?;
        Some(u32::from_le_bytes(value.bytes().try_into().expect("4 bytes")))
    };
    for number in 0.. {
        if number >= chance.saves && !is_doomed(&job) {
            break;
        }
        save(&images, &format!("of {me}"), number).expect("saved");
        store.put(format!("saved/{me}").as_bytes(), &number.to_le_bytes()).expect("put");
        // Reads of an image that its owner replaces meanwhile: never torn, never older.
        let other = MemberId((me.0 + 1) % MEMBERS as u32);
        if let Some(saved) = number_of(other) {
            let found = load(&images, &format!("of {other}")).expect("kept");
            assert!(found >= saved, "the image of {other}: {found} after {saved} was saved");
        }
    }
    nap(&job, "two deaths", || job.epoch() >= Epoch(2));
    for member in (0..MEMBERS as u32).map(MemberId) {
        let Some(saved) = number_of(member) else { continue };
        let found = load(&images, &format!("of {member}")).expect("kept");
        assert!(found >= saved, "the image of {member}: {found} after {saved} was saved");
        let mut part = [0; 100];
        images.read(&format!("of {member}"), 777, &mut part).expect("kept");
        assert_eq!(part[..], bytes_of(found)[777..877]);
    }
    end(&job, &store, &images);
}

/// Whole again: lost pieces come back by themselves, and then as many may be lost anew. No member
/// saves between the deaths.
pub(crate) fn whole_again(job: Job, chance: Chance) {
    let (store, images) = open(&job, options(3, 1));
    let me = job.me();
    save(&images, &format!("of {me}"), 7).expect("saved");
    store.add(b"ready", 1).expect("counted");
    let count = |key: &[u8]| count(&store, key);
    let whole = || images.pieces_missing().expect("known") == 0;
    nap(&job, "all images", || count(b"ready") == MEMBERS as i64);
    for (round, doomed) in [1, 3, 4].into_iter().enumerate() {
        let round = round as u64 + 1;
        if me == MemberId(doomed) {
            let steps = 1 + chance.below(u64::from(me.0), 50);
            job.inject(Fault::DieAtStep(steps)).expect("planned");
            go_on_until_dead(&job, &store);
        }
        nap(&job, "a death", || job.epoch() >= Epoch(round));
        nap(&job, "healing", whole);
        // All have seen it before the next member dies.
        let key = format!("whole/{round}");
        store.add(key.as_bytes(), 1).expect("counted");
        nap(&job, "the others", || count(key.as_bytes()) >= MEMBERS as i64 - round as i64);
        for member in 0..MEMBERS {
            assert_eq!(load(&images, &format!("of {}", MemberId(member as u32))), Ok(7));
        }
    }
    end(&job, &store, &images);
}

/// Honest: where more is lost than may be, every load says so, and a new save is as good as ever.
pub(crate) fn honest(job: Job, _: Chance) {
    let (store, images) = open(&job, options(MEMBERS, 1));
    let me = job.me();
    save(&images, &format!("of {me}"), 1).expect("saved");
    save(&images, &format!("of {me}"), 2).expect("saved");
    store.add(b"ready", 1).expect("counted");
    let count = |key: &[u8]| count(&store, key);
    nap(&job, "all images", || count(b"ready") == MEMBERS as i64);
    if is_doomed(&job) {
        job.inject(Fault::DieAtStep(1 + u64::from(me.0))).expect("planned");
        go_on_until_dead(&job, &store);
    }
    nap(&job, "two deaths", || job.epoch() >= Epoch(2));
    // No other member can take a place of the dead, so each image has lost two of its pieces.
    for member in (0..MEMBERS as u32).map(MemberId) {
        let name = format!("of {member}");
        assert_eq!(images.load(&name), Err(ImageError::DataLost { name }));
    }
    store.add(b"looked", 1).expect("counted");
    nap(&job, "the others", || count(b"looked") == MEMBERS as i64 - 2);
    save(&images, &format!("of {me}"), 3).expect("saved");
    assert_eq!(load(&images, &format!("of {me}")), Ok(3));
    end(&job, &store, &images);
}

/// The cells of the program with region checkpoints, in all.
const CELLS: usize = 97;

/// How many steps that program makes.
const STEPS: u64 = 12;

/// The cells after a number of steps, computed without any of this.
fn cells_after(steps: u64) -> Vec<u32> {
    let next = |cells: Vec<u32>, step: u64| -> Vec<u32> {
        cells.iter().map(|cell| cell.wrapping_mul(5).wrapping_add(step as u32)).collect()
    };
    (0..steps).fold((0..CELLS as u32).collect(), next)
}

fn to_bytes(cells: &[u32]) -> Vec<u8> {
    cells.iter().flat_map(|cell| cell.to_le_bytes()).collect()
}

/// All or nobody: a program that divides its cells anew after each death ends with the cells that
/// it would have without any death.
pub(crate) fn regions_all_or_nobody(job: Job, chance: Chance) {
    let records = store::Options::new().replicas(4).partitions(16).expected_keys(256);
    let store = Store::open(&job, records).expect("opened");
    let regions = Regions::open(&store, "cells", options(4, 2)).expect("opened");
    doom(&job, chance);
    let mut sizes = Vec::new();
    'restored: loop {
        let at = match regions.restore(&mut []) {
            Ok(at) => at,
            Err(ImageError::MemberDied) => continue,
            Err(error) => panic!("{} cannot restore: {error}", job.me()),
        };
        sizes.push(at.size);
        let (first, end) = (CELLS * at.rank / at.size, CELLS * (at.rank + 1) / at.size);
        let mut bytes = vec![0; (end - first) * 4];
        match at.version {
            None => bytes.copy_from_slice(&to_bytes(&cells_after(0)[first..end])),
            Some(_) => {
                regions.read(Owner::All, "cells", first as u64 * 4, &mut bytes).expect("kept");
            }
        }
        let begun = at.version.unwrap_or(0);
        assert_eq!(bytes, to_bytes(&cells_after(begun)[first..end]), "in version {begun}");
        for step in begun..STEPS {
            for cell in bytes.chunks_exact_mut(4) {
                let number = u32::from_le_bytes(cell.try_into().expect("4 bytes"));
                let next = number.wrapping_mul(5).wrapping_add(step as u32);
                cell.copy_from_slice(&next.to_le_bytes());
            }
            let note = [job.me().0 as u8];
            match regions.checkpoint(step + 1, &note, &[("cells", &bytes), ("rest", b"rest")]) {
                Ok(()) => {}
                Err(ImageError::MemberDied) => continue 'restored,
                Err(error) => panic!("{} cannot save: {error}", job.me()),
            }
        }
        break;
    }
    assert!(sizes.is_sorted_by(|before, after| before >= after), "{sizes:?}");
    if is_doomed(&job) {
        go_on_until_dead(&job, &store);
    }
    nap(&job, "two deaths", || job.epoch() >= Epoch(2));
    let mut bytes = vec![0; CELLS * 4];
    regions.read(Owner::All, "cells", 0, &mut bytes).expect("kept");
    assert_eq!(bytes, to_bytes(&cells_after(STEPS)), "after all steps");
    let owners = regions.owners().expect("known");
    let cells: u64 = owners.iter().map(|regions| regions[0].1).sum();
    assert_eq!(cells, CELLS as u64 * 4, "{owners:?}");
    regions.close().expect("closed");
    store.close().expect("closed");
    job.leave().expect("left");
}

/// The regions of a member come back as they were, with its note; what does not fit is refused.
pub(crate) fn regions_are_filled_as_they_were(job: Job, _: Chance) {
    let records = store::Options::new().replicas(4).partitions(16).expected_keys(256);
    let store = Store::open(&job, records).expect("opened");
    let regions = Regions::open(&store, "cells", options(4, 1)).expect("opened");
    let me = job.me().0;
    let at = regions.restore(&mut []).expect("restored");
    assert_eq!((at.version, at.rank, at.size), (None, me as usize, MEMBERS));
    let (a, b) = (vec![me as u8; 300], vec![me as u8 + 100; 77 + me as usize]);
    regions.checkpoint(5, &[me as u8], &[("a", &a), ("b", &b)]).expect("saved");
    // The version differs at a member: no member saves.
    let version = if me == 2 { 7 } else { 6 };
    let differs = regions.checkpoint(version, b"", &[("a", &b)]);
    assert!(matches!(differs, Err(ImageError::Invalid { .. })), "{differs:?}");
    // A member cannot do its part: it is told why, and all others that nothing was saved.
    let long = vec![0; LEN + 1];
    let too_long = regions.checkpoint(6, b"", &[("a", if me == 1 { &long } else { &a })]);
    match me {
        1 => assert!(matches!(too_long, Err(ImageError::TooLong { .. })), "{too_long:?}"),
        _ => assert_eq!(too_long, Err(ImageError::MemberDied)),
    }
    let mut other = vec![0; 299];
    let refused = regions.restore(&mut [("a", if me == 3 { &mut other[..] } else { &mut [][..] })]);
    assert!(matches!(refused, Err(ImageError::OtherLength { .. })), "{refused:?}");
    // A name that was not saved: no byte of the others is written.
    let (mut known, mut unknown) = (vec![9; 300], vec![9; 1]);
    let refused = regions.restore(&mut [("a", &mut known), ("none", &mut unknown)]);
    assert_eq!(refused, Err(ImageError::Absent { name: "none".into() }));
    assert!(known == [9; 300] && unknown == [9], "bytes were written");
    let (mut found_a, mut found_b) = (vec![0; 300], vec![0; b.len()]);
    let at = regions.restore(&mut [("a", &mut found_a), ("b", &mut found_b)]).expect("restored");
    assert_eq!((at.version, &at.note[..]), (Some(5), &[me as u8][..]));
    assert!(found_a == a && found_b == b);
    let mut part = [0; 2];
    regions.read(Owner::Number(2), "b", 78, &mut [0; 2]).expect_err("beyond its end");
    regions.read(Owner::All, "a", 299, &mut part).expect("kept");
    assert_eq!(part, [0, 1], "the last byte of owner 0 and the first of owner 1");
    let absent = regions.read(Owner::All, "c", 0, &mut part);
    assert_eq!(absent, Err(ImageError::Absent { name: "c".into() }));
    regions.close().expect("closed");
    store.close().expect("closed");
    job.leave().expect("left");
}

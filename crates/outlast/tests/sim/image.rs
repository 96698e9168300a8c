//! Images under the simulator: deaths and stops at any step, both links, whole domains at once.

use crate::image_bodies::{self, Chance, MEMBERS};
use crate::simulation::{run_with, seeds};
use outlast::image::{ImageError, Images, Level, Options};
use outlast::sim::{self, Action, Link, When};
use outlast::store::{self, Store};
use outlast::{Epoch, Job, MemberId};
use std::time::Duration;

/// About how many engine steps a member makes for a save, with the steps of its background.
const STEPS: u64 = 600;

fn run(seeds: std::ops::Range<u64>, part: fn(Job, Chance)) {
    for seed in seeds {
        let options = sim(MEMBERS, seed);
        run_with(options, move |job| part(job, Chance { seed, saves: 4, steps: STEPS }));
    }
}

fn sim(members: usize, seed: u64) -> sim::Options {
    let mut options = sim::Options::new(members, seed).link(Link::of_seed(seed));
    // The tables of the code are made on the stack of the first member that needs them.
    options.stack_len = 2 << 20;
    options
}

#[test]
fn image_promise_1_kept() {
    run(seeds(12), image_bodies::kept);
}

#[test]
fn image_promise_6_whole_again() {
    run(seeds(6), image_bodies::whole_again);
}

#[test]
fn image_promise_8_honest() {
    run(seeds(6), image_bodies::honest);
}

#[test]
fn regions_are_saved_by_all_callers_or_by_none() {
    run(seeds(16), image_bodies::regions_all_or_nobody);
}

#[test]
fn regions_are_filled_as_they_were() {
    run(seeds(2), image_bodies::regions_are_filled_as_they_were);
}

/// A whole host dies at once: its members hold no two pieces of an image.
#[test]
fn image_promise_1_kept_when_a_domain_dies() {
    for seed in seeds(6) {
        let mut options = sim(8, seed);
        options.domains =
            (0..8).map(|member| format!("rack{}/node{}", member / 4, member / 2)).collect();
        run_with(options, move |job| {
            let apart = if seed % 3 == 0 { Level::Outermost } else { Level::Innermost };
            let set = if apart == Level::Outermost { 2 } else { 4 };
            let images = image_bodies::options(set, 1).apart(apart).strict();
            let (store, images) = image_bodies::open(&job, images);
            assert!(images.is_apart_as_asked());
            let number = 9u32;
            let bytes = image_bodies::bytes_of(number);
            images.save(&format!("of {}", job.me()), &number.to_le_bytes(), &bytes).expect("saved");
            store.add(b"ready", 1).expect("counted");
            image_bodies::nap(&job, "all images", || image_bodies::count(&store, b"ready") == 8);
            let dead = if apart == Level::Outermost { 4 } else { 2 };
            if job.me() == MemberId(7) {
                for victim in 0..dead {
                    let kill = outlast::engine::Fault::Kill(MemberId(victim));
                    job.inject(kill).expect("killed");
                }
            }
            if job.me().0 < dead {
                image_bodies::go_on_until_dead(&job, &store);
            }
            image_bodies::nap(&job, "deaths", || job.epoch() >= Epoch(u64::from(dead)));
            for member in 0..8 {
                let name = format!("of {}", MemberId(member));
                assert_eq!(image_bodies::load(&images, &name), Ok(number), "{name}");
            }
            image_bodies::end(&job, &store, &images);
        });
    }
}

/// A member that is stopped in the middle of a save and goes on later changes nothing that others
/// have saved since.
#[test]
fn a_stopped_saver_that_wakes_up_late_harms_no_image() {
    for seed in seeds(24) {
        let victim = MemberId(0);
        let step = 400 + seed * 37;
        let stop = Action::StopFor(victim, Duration::from_secs(5));
        let options = sim(4, seed).fault(When::AtStep(victim, step), stop);
        run_with(options, move |job| {
            let (store, images) = image_bodies::open(&job, image_bodies::options(3, 1));
            let me = job.me().0;
            for round in 0..6u32 {
                // Two members save an image of one name; the note says which bytes it has.
                let number = round * 2 + me % 2;
                let bytes = image_bodies::bytes_of(number);
                if me < 2 {
                    match images.save("shared", &number.to_le_bytes(), &bytes) {
                        Ok(()) | Err(ImageError::Replaced { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                match image_bodies::load(&images, "shared") {
                    Ok(_) | Err(ImageError::Absent { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                job.sleep(Duration::from_millis(300));
            }
            image_bodies::end(&job, &store, &images);
        });
    }
}

/// Deaths and stops at random steps of random members, while all save and load.
#[test]
fn images_survive_random_deaths_and_stops() {
    for seed in seeds(10) {
        let mut options = sim(MEMBERS, seed).random_faults(2, 2, STEPS * 4);
        options.time_limit = Duration::from_secs(60);
        run_with(options, move |job| {
            let (store, images) = image_bodies::open(&job, image_bodies::options(4, 2));
            let name = format!("of {}", job.me());
            for number in 0..4u32 {
                let bytes = image_bodies::bytes_of(number);
                images.save(&name, &number.to_le_bytes(), &bytes).expect("saved");
                assert_eq!(image_bodies::load(&images, &name), Ok(number));
            }
            store.add(b"done", 1).expect("counted");
            let living = || (MEMBERS as u64 - job.epoch().0) as i64;
            image_bodies::nap(&job, "all", || image_bodies::count(&store, b"done") >= living());
            for member in (0..MEMBERS as u32).map(MemberId) {
                match image_bodies::load(&images, &format!("of {member}")) {
                    Ok(number) if number == 3 || job.view().dead.contains(member) => {}
                    Err(ImageError::Absent { .. }) if job.view().dead.contains(member) => {}
                    other => panic!("the image of {member}: {other:?}"),
                }
            }
            image_bodies::end(&job, &store, &images);
        });
    }
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let mut options = sim(3, 1);
    options.segment_limit = 4 << 20;
    run_with(options, |job| {
        let records = store::Options::new().replicas(2).partitions(16).expected_keys(64);
        let store = Store::open(&job, records).expect("opened");
        let open = |options: Options| Images::open(&store, "test", options);
        let refused = |options: Options, named: &str| match open(options) {
            Err(ImageError::Invalid { reason }) => assert!(reason.contains(named), "{reason}"),
            other => panic!("{named}: {other:?}"),
        };
        let good = || Options::new(1000).set(3).lose(1).piece(64);
        refused(good().set(1), "2 to 64");
        refused(good().lose(3), "fewer than the set");
        refused(good().piece(100), "multiple of 64");
        refused(Options::new(0).set(3), "0 bytes");
        refused(good().set(4).lose(2), "the store has 2 replicas");
        refused(good().set(4).strict(), "fewer than 4 failure domains");
        refused(good().set(3).lose(1).piece(64 << job.me().0), "other options");
        refused(Options::new(1 << 30).set(3).lose(1), "bytes");
        let images = open(good()).expect("opened");
        assert_eq!(images.load("none"), Err(ImageError::Absent { name: "none".into() }));
        let long = images.save("long", b"", &[0; 1001]);
        assert_eq!(long, Err(ImageError::TooLong { len: 1001, limit: 1000 }));
        let own = format!("empty {}", job.me());
        images.save(&own, b"note", &[]).expect("saved");
        let empty = images.load(&own).expect("loaded");
        assert_eq!((empty.note(), empty.bytes()), (&b"note"[..], &[][..]));
        let beyond = images.read(&own, 1, &mut [0; 2]);
        assert!(matches!(beyond, Err(ImageError::Invalid { .. })), "{beyond:?}");
        if job.me() == MemberId(0) {
            images.save("mine", b"", &[1; 1000]).expect("saved");
            assert_eq!(images.delete("mine"), Ok(true));
            assert_eq!(images.delete("mine"), Ok(false));
            // Deleted images leave their room to others.
            for round in 0..40 {
                images.save("mine", b"", &[round; 1000]).expect("saved");
                images.delete("mine").expect("deleted");
            }
        }
        images.close().expect("closed");
        assert_eq!(images.load(&own), Err(ImageError::Closed));
        store.close().expect("closed");
        job.leave().expect("left");
    });
}

/// A save writes only what has changed: a changed byte costs the pieces of its stripe.
#[test]
fn a_save_with_nothing_changed_writes_no_piece() {
    run_with(sim(4, 2), |job| {
        let (store, images) = image_bodies::open(&job, image_bodies::options(4, 1));
        let mut bytes = image_bodies::bytes_of(1);
        let name = format!("of {}", job.me());
        images.save(&name, b"", &bytes).expect("saved");
        let before = images.pieces_written();
        images.save(&name, b"again", &bytes).expect("saved");
        assert_eq!(images.pieces_written(), before);
        bytes[700] ^= 1;
        images.save(&name, b"", &bytes).expect("saved");
        assert_eq!(images.pieces_written(), before + 4, "a stripe has four pieces");
        assert_eq!(images.load(&name).expect("loaded").bytes(), bytes);
        image_bodies::end(&job, &store, &images);
    });
}

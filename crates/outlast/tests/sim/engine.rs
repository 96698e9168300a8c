//! The simulator as an engine: replay, faults, both links, and what the `Engine` trait promises
//! around deaths. [`crate::engine_memory`] checks that a run leaves no memory behind.

use crate::simulation::without_panic_messages;
use outlast::engine::{Done, Fault, Operation, Port, TRY_SEND_LEN_MAX, message_cost};
use outlast::sim::{self, Action, Cost, Link, Options, Outcome, Report, When};
use outlast::{Epoch, Error, Job, MemberId, Service, Time};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LINKS: [Link; 2] = [Link::Memory, Link::Network];
const ME: MemberId = MemberId(0);
const OTHER: MemberId = MemberId(1);
const THIRD: MemberId = MemberId(2);

/// Long enough, in simulated time, for every member to have begun: a single step takes up to 19 ms.
const SETTLE: Duration = Duration::from_millis(500);

/// Waits in simulated time.
fn sleep(job: &Job, duration: Duration) {
    let until = job.now().after(duration);
    while job.now() < until && !job.has_ended() {
        let bell = job.bell();
        job.park(bell, until);
    }
}

/// Waits for a message.
fn receive(job: &Job, port: Port) -> outlast::engine::Message {
    loop {
        let bell = job.bell();
        if let Some(message) = job.receive(port) {
            return message;
        }
        job.park(bell, Time::NEVER);
    }
}

/// Waits until this member's view has this many dead.
fn wait_for_epoch(job: &Job, epoch: u64) {
    loop {
        let bell = job.bell();
        if job.epoch() >= Epoch(epoch) {
            return;
        }
        job.park(bell, Time::NEVER);
    }
}

/// A value that a body sets and the test reads afterwards.
fn shared<T: Default>() -> (Rc<RefCell<T>>, Rc<RefCell<T>>) {
    let value = Rc::new(RefCell::new(T::default()));
    (value.clone(), value)
}

/// A small program with everything in it, for the tests of replay.
fn busy(job: Job) {
    let (me, members) = (job.me().0, job.members() as u32);
    if job.grow(1024).is_err() {
        return;
    }
    for round in 0..20u32 {
        let target = MemberId((me + round) % members);
        let at = job.epoch();
        let _ = job.put(at, target, 8 * u64::from(round), &[me as u8; 40]);
        let mut buffer = [0; 40];
        let _ = job.get(at, target, 16, &mut buffer);
        let _ = job.fetch_add(Epoch::ANY, target, 512, u64::from(buffer[0]));
        let _ = job.send(target, Port::User, &buffer[..round as usize]);
        let pending = job.start(at, target, Operation::Load { offset: 512 });
        while job.receive(Port::User).is_some() {}
        let _ = job.wait(pending);
    }
    let _ = job.leave();
}

fn run_busy(seed: u64, link: Link, trace: bool) -> Report {
    let options = Options { trace, spares: 1, ..Options::new(5, seed).link(link) };
    sim::run(&options.random_faults(2, 2, 150), busy)
}

// ---- Replay.

#[test]
fn a_seed_replays_step_by_step_and_another_seed_differs() {
    for link in LINKS {
        let mut digests = BTreeSet::new();
        let (mut kills, mut stops) = (0, 0);
        for seed in 0..30 {
            let (first, second) = (run_busy(seed, link, true), run_busy(seed, link, true));
            assert_eq!(first, second, "{link:?}, seed {seed}");
            assert!(!first.trace.is_empty());
            let untraced = run_busy(seed, link, false);
            assert_eq!(untraced.digest, first.digest, "looking changes nothing");
            first.clone().expect_ok();
            digests.insert(first.digest);
            kills += first.kills;
            stops += first.stops;
        }
        assert_eq!(digests.len(), 30);
        assert!(kills > 30 && stops > 30, "{link:?}: {kills} kills, {stops} stops");
    }
}

/// A digest written down once: what a seed means may not change by accident.
#[test]
fn the_meaning_of_a_seed_is_stable() {
    let digests = LINKS.map(|link| run_busy(7, link, false).digest);
    assert_eq!(digests, [2_980_583_004_474_787_684, 13_539_798_783_498_940_115]);
}

#[test]
fn the_trace_names_calls_faults_and_deaths() {
    let report = sim::run(
        &Options { trace: true, ..Options::new(2, 3) }
            .fault(When::AtStep(OTHER, 4), Action::Kill(OTHER)),
        |job| {
            job.grow(128).unwrap();
            sleep(&job, Duration::from_micros(1));
            for _ in 0..10 {
                if job.me() == ME {
                    let _ = job.put(Epoch::ANY, OTHER, 64, &[1; 64]);
                }
            }
            sleep(&job, Duration::from_millis(10));
            job.leave().unwrap();
        },
    );
    let text = report.trace.join("\n");
    for part in [
        "m0 main",
        "put -> m1 +0x40 64 B",
        "(phase 1: words",
        "is killed",
        "is known to be dead",
        "leave",
    ] {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
}

// ---- Memory.

#[test]
fn a_put_may_tear_between_words_but_never_inside_a_word() {
    for link in LINKS {
        let (seen, out) = shared::<BTreeSet<bool>>();
        for seed in 0..200 {
            let seen = seen.clone();
            sim::run(&Options::new(3, seed).link(link), move |job| {
                job.grow(64).unwrap();
                sleep(&job, SETTLE);
                match job.me() {
                    OTHER => job.put(Epoch::ANY, ME, 0, &[0x11; 64]).unwrap(),
                    THIRD => {
                        for _ in 0..4 {
                            let mut buffer = [0; 64];
                            job.get(Epoch::ANY, ME, 0, &mut buffer).unwrap();
                            let words: BTreeSet<&[u8]> = buffer.chunks(8).collect();
                            assert!(words.iter().all(|&word| word == [0; 8] || word == [0x11; 8]));
                            seen.borrow_mut().insert(words.len() == 2);
                        }
                    }
                    _ => {}
                }
                sleep(&job, SETTLE * 4);
                job.leave().unwrap();
            })
            .expect_ok();
        }
        assert_eq!(
            *out.borrow(),
            BTreeSet::from([false, true]),
            "{link:?}: whole and torn reads both occur"
        );
    }
}

#[test]
fn a_writer_that_dies_leaves_any_subset_of_its_words() {
    for link in LINKS {
        let (seen, out) = shared::<BTreeSet<Vec<bool>>>();
        for seed in 0..600 {
            let seen = seen.clone();
            let options = Options::new(2, seed).link(link);
            let report = sim::run(&options, move |job| {
                job.grow(32).unwrap();
                if job.me() == OTHER {
                    sleep(&job, SETTLE);
                    let killer = job.clone();
                    let body = move || {
                        for _ in 0..seed % 8 {
                            killer.now();
                        }
                        killer.inject(Fault::Kill(OTHER)).unwrap();
                    };
                    job.spawn("killer", Box::new(body)).unwrap();
                    job.put(Epoch::ANY, ME, 0, &[7; 32]).unwrap();
                    sleep(&job, SETTLE * 10);
                    unreachable!("dead by now");
                }
                wait_for_epoch(&job, 1);
                let mut buffer = [0; 32];
                job.get(job.epoch(), ME, 0, &mut buffer).unwrap();
                seen.borrow_mut().insert(buffer.chunks(8).map(|word| word == [7; 8]).collect());
                job.leave().unwrap();
            });
            assert_eq!(report.expect_ok().kills, 1);
        }
        assert!(out.borrow().len() >= 12, "{link:?}: only {:?}", out.borrow());
    }
}

#[test]
fn a_put_of_a_stopped_writer_is_completed_after_it_goes_on() {
    let partial = Rc::new(Cell::new(0));
    for seed in 0..100 {
        let partial = partial.clone();
        let options =
            Options::new(2, seed).fault(When::At(Time(5_000_000_000)), Action::Resume(OTHER));
        sim::run(&options, move |job| {
            job.grow(64).unwrap();
            sleep(&job, SETTLE);
            if job.me() == OTHER {
                job.inject(Fault::StopAtStep(2)).unwrap();
                job.put(Epoch::ANY, ME, 0, &[9; 64]).unwrap();
            } else {
                let mut buffer = [0; 64];
                sleep(&job, SETTLE * 2);
                job.get(Epoch::ANY, ME, 0, &mut buffer).unwrap();
                let words = buffer.chunks(8).filter(|word| *word == [9; 8]).count();
                partial.set(partial.get() + usize::from(words > 0 && words < 8));
                sleep(&job, SETTLE * 20);
                job.get(Epoch::ANY, ME, 0, &mut buffer).unwrap();
                assert_eq!(buffer, [9; 64]);
            }
            sleep(&job, SETTLE * 40);
            job.leave().unwrap();
        })
        .expect_ok();
    }
    assert!(partial.get() > 10, "{}", partial.get());
}

#[test]
fn word_operations_are_atomic_and_in_order() {
    for link in LINKS {
        for seed in 0..20 {
            let options = Options::new(8, seed).link(link);
            sim::run(&options, |job| {
                job.grow(64).unwrap();
                sleep(&job, SETTLE);
                for _ in 0..20 {
                    job.fetch_add(Epoch::ANY, ME, 0, 1).unwrap();
                    loop {
                        let old = job.load(Epoch::ANY, ME, 8).unwrap();
                        if job.compare_and_swap(Epoch::ANY, ME, 8, old, old + 1).unwrap() == old {
                            break;
                        }
                    }
                    // A put is followed by a word operation on its target: a reader that sees the
                    // word sees the put.
                    let mine = u64::from(job.me().0);
                    if mine == 7 {
                        let pending = job.start(
                            Epoch::ANY,
                            ME,
                            Operation::Put { offset: 32, data: &[1; 24] },
                        );
                        job.fetch_add(Epoch::ANY, ME, 16, 1).unwrap();
                        drop(pending);
                    } else if job.load(Epoch::ANY, ME, 16).unwrap() > 0 {
                        let mut buffer = [0; 24];
                        job.get(Epoch::ANY, ME, 32, &mut buffer).unwrap();
                        assert_eq!(buffer, [1; 24]);
                    }
                }
                sleep(&job, SETTLE * 20);
                if job.me() == ME {
                    assert_eq!(job.load(Epoch::ANY, ME, 0).unwrap(), 160);
                    assert_eq!(job.load(Epoch::ANY, ME, 8).unwrap(), 160);
                }
                job.leave().unwrap();
            })
            .expect_ok();
        }
    }
}

#[test]
fn bad_arguments_get_clear_errors_and_change_nothing() {
    for link in LINKS {
        let options = Options { segment_limit: 4096, ..Options::new(2, 1).link(link) };
        sim::run(&options, |job| {
            job.grow(64).unwrap();
            sleep(&job, SETTLE);
            if job.me() == ME {
                for target in [ME, OTHER] {
                    let nobody = MemberId(2);
                    assert!(matches!(job.grow(4097), Err(Error::OutOfMemory { wanted: 4097, .. })));
                    assert_eq!(job.segment_len(target), Ok(64));
                    assert!(matches!(
                        job.put(Epoch::ANY, target, 60, &[1; 8]),
                        Err(Error::OutOfRange { segment_len: 64, .. })
                    ));
                    assert_eq!(
                        job.load(Epoch::ANY, target, 7),
                        Err(Error::Unaligned { offset: 7 })
                    );
                    let absurd = Operation::Get { offset: 8, len: usize::MAX };
                    assert!(matches!(
                        job.wait(job.start(Epoch::ANY, target, absurd)),
                        Err(Error::OutOfRange { .. })
                    ));
                    assert!(matches!(
                        job.load(Epoch::ANY, nobody, 0),
                        Err(Error::UnknownMember { .. })
                    ));
                    assert!(matches!(job.ring(nobody), Err(Error::UnknownMember { .. })));
                    assert!(matches!(
                        job.fence(nobody, Time::NEVER),
                        Err(Error::UnknownMember { .. })
                    ));
                    let long = vec![0; outlast::engine::MESSAGE_LEN_MAX + 1];
                    assert!(matches!(
                        job.send(target, Port::User, &long),
                        Err(Error::MessageTooLong { .. })
                    ));
                    let mut buffer = [1; 64];
                    job.get(Epoch::ANY, target, 0, &mut buffer).unwrap();
                    assert_eq!(buffer, [0; 64]);
                }
            }
            sleep(&job, SETTLE * 4);
            job.leave().unwrap();
        })
        .expect_ok();
    }
}

// ---- Death, as the survivors see it.

#[test]
fn every_survivor_learns_of_a_death_and_operations_then_fail() {
    for link in LINKS {
        let (times, out) = shared::<BTreeSet<u64>>();
        let options =
            Options::new(6, 11).link(link).fault(When::At(Time(1_000_000)), Action::Kill(THIRD));
        let report = sim::run(&options, move |job| {
            job.grow(64).unwrap();
            wait_for_epoch(&job, 1);
            let now = job.now().0;
            times.borrow_mut().insert(now);
            assert!(job.view().dead.contains(THIRD) && !job.view().left.contains(THIRD));
            assert_eq!(job.put(job.epoch(), THIRD, 0, &[1]), Err(Error::Dead { member: THIRD }));
            assert_eq!(job.load(Epoch::ANY, THIRD, 0), Err(Error::Dead { member: THIRD }));
            assert_eq!(job.segment_len(THIRD), Err(Error::Dead { member: THIRD }));
            assert_eq!(job.send(THIRD, Port::User, b"x"), Err(Error::Dead { member: THIRD }));
            assert_eq!(job.ring(THIRD), Ok(()));
            assert_eq!(job.fence(THIRD, Time::NEVER), Ok(()));
            assert!(!job.has_ended());
            // The other members may have left already, so only deaths that are not departures are
            // counted.
            let view = job.view();
            assert_eq!(view.dead.len() - view.left.len(), 1);
            sleep(&job, SETTLE);
            job.leave().unwrap();
        });
        assert_eq!(report.expect_ok().kills, 1);
        assert_eq!(out.borrow().len(), 5, "each at its own time");
    }
}

#[test]
fn before_the_notice_memory_answers_and_a_network_waits_for_the_notice() {
    for link in LINKS {
        let options = Options {
            detection: Duration::from_millis(5)..=Duration::from_millis(5),
            ..Options::new(2, 5).link(link)
        };
        sim::run(&options, move |job| {
            job.grow(64).unwrap();
            sleep(&job, SETTLE);
            if job.me() == ME {
                let killed_at = job.now();
                job.inject(Fault::Kill(OTHER)).unwrap();
                let result = job.put(Epoch::ANY, OTHER, 0, &[1; 8]);
                let waited = job.now().since(killed_at);
                match link {
                    Link::Memory => {
                        assert_eq!(result, Ok(()), "into memory that no member will trust");
                        assert_eq!(job.load(Epoch::ANY, OTHER, 0), Ok(u64::from_le_bytes([1; 8])));
                        assert_eq!(job.epoch(), Epoch(0));
                    }
                    Link::Network => {
                        assert_eq!(result, Err(Error::Dead { member: OTHER }));
                        assert!(
                            waited >= Duration::from_millis(5)
                                && waited < Duration::from_millis(30)
                        );
                    }
                }
            } else {
                sleep(&job, Duration::from_secs(1));
            }
            job.leave().unwrap();
        })
        .expect_ok();
    }
}

#[test]
fn late_messages_of_the_dead_arrive_after_the_notice_in_order_and_without_holes() {
    for link in LINKS {
        let (counts, out) = shared::<[usize; 3]>();
        for seed in 0..400 {
            let counts = counts.clone();
            let options = Options {
                detection: Duration::from_nanos(100)..=Duration::from_micros(1),
                ..Options::new(2, seed).link(link)
            };
            sim::run(&options, move |job| {
                if job.me() == OTHER {
                    for number in 0..8u8 {
                        job.send(ME, Port::User, &[number]).unwrap();
                    }
                    job.inject(Fault::Kill(OTHER)).unwrap();
                }
                wait_for_epoch(&job, 1);
                let (mut expected, mut late) = (0, 0);
                while let Some(message) = job.receive(Port::User) {
                    assert_eq!((message.from, &message.bytes[..]), (OTHER, &[expected][..]));
                    expected += 1;
                }
                sleep(&job, Duration::from_millis(50));
                while let Some(message) = job.receive(Port::User) {
                    assert_eq!(message.bytes, [expected]);
                    expected += 1;
                    late += 1;
                }
                let mut counts = counts.borrow_mut();
                counts[0] += late;
                counts[1] += usize::from(expected < 8);
                counts[2] += usize::from(expected == 8);
                job.leave().unwrap();
            })
            .expect_ok();
        }
        assert!(out.borrow().iter().all(|&count| count > 20), "{link:?}: {:?}", out.borrow());
    }
}

#[test]
fn fence_kills_and_returns_once_the_death_is_in_the_view() {
    for link in LINKS {
        let options = Options::new(3, 2).link(link);
        let report = sim::run(&options, |job| {
            if job.me() == ME {
                // Too little time for the proof.
                let soon = job.now().after(Duration::from_nanos(1));
                assert!(matches!(
                    job.fence(OTHER, soon),
                    Err(Error::Timeout { member: OTHER, .. })
                ));
                job.fence(OTHER, Time::NEVER).unwrap();
                assert!(job.view().dead.contains(OTHER));
                job.fence(THIRD, Time::NEVER).unwrap();
                job.leave().unwrap();
                assert!(job.has_ended());
                assert_eq!(job.fence(OTHER, Time::NEVER), Err(Error::Ended));
                assert_eq!(job.grow(8), Err(Error::Ended));
                assert_eq!(job.send(OTHER, Port::User, b""), Err(Error::Ended));
                assert_eq!(job.load(Epoch::ANY, ME, 0), Err(Error::Ended));
            } else {
                sleep(&job, Duration::from_secs(100));
                unreachable!("fenced");
            }
        })
        .expect_ok();
        assert_eq!(report.kills, 2);
    }
}

#[test]
fn members_that_leave_are_distinguished_from_the_dead() {
    for link in LINKS {
        sim::run(&Options::new(3, 9).link(link), |job| match job.me() {
            OTHER => {
                job.send(ME, Port::User, b"farewell").unwrap();
                job.leave().unwrap();
            }
            THIRD => {} // Exits without a word: a death.
            _ => {
                wait_for_epoch(&job, 2);
                assert_eq!(job.view().left.iter().collect::<Vec<_>>(), [OTHER]);
                assert_eq!(receive(&job, Port::User).bytes, b"farewell");
                job.leave().unwrap();
            }
        })
        .expect_ok();
    }
}

#[test]
fn a_spare_takes_the_place_of_the_dead() {
    for link in LINKS {
        let options = Options { spares: 2, ..Options::new(3, 4).link(link) };
        sim::run(&options.fault(When::At(Time(10)), Action::Kill(THIRD)), |job| {
            assert_eq!(job.members(), 5);
            wait_for_epoch(&job, 1);
            assert!(job.view().is_active(MemberId(3)));
            sleep(&job, SETTLE);
            job.leave().unwrap();
        })
        .expect_ok();
    }
}

// ---- Epochs.

#[test]
fn an_operation_of_an_older_epoch_is_refused_at_its_caller() {
    for link in LINKS {
        sim::run(&Options::new(3, 8).link(link), |job| {
            job.grow(64).unwrap();
            sleep(&job, SETTLE);
            if job.me() == ME {
                let before = job.epoch();
                job.fence(THIRD, Time::NEVER).unwrap();
                assert_eq!(job.put(before, OTHER, 0, &[1; 8]), Err(Error::Stale { now: Epoch(1) }));
                assert_eq!(job.load(before, ME, 0), Err(Error::Stale { now: Epoch(1) }));
                assert_eq!(job.load(Epoch::ANY, OTHER, 0), Ok(0));
                assert_eq!(job.load(job.epoch(), OTHER, 0), Ok(0));
            }
            sleep(&job, SETTLE * 4);
            job.leave().unwrap();
        })
        .expect_ok();
    }
}

/// The target fences a member, and so learns of the death first. It refuses the operation of a
/// caller that does not know of the death, and the refusal tells the caller.
#[test]
fn a_network_target_with_a_newer_view_refuses_and_updates_the_caller() {
    let options = Options {
        detection: Duration::from_millis(10)..=Duration::from_secs(10),
        ..Options::new(3, 0).link(Link::Network)
    };
    let (refused, out) = shared::<usize>();
    for seed in 0..50 {
        let refused = refused.clone();
        sim::run(&Options { seed, ..options.clone() }, move |job| {
            job.grow(64).unwrap();
            sleep(&job, SETTLE);
            if job.me() == THIRD {
                sleep(&job, Duration::from_secs(1000));
            }
            if job.me() == OTHER {
                job.fence(THIRD, Time::NEVER).unwrap();
                job.put(Epoch::ANY, OTHER, 0, &[1; 8]).unwrap();
                sleep(&job, Duration::from_secs(20));
            } else {
                // Polls in its own epoch until the target refuses, or until the death is detected
                // here.
                loop {
                    let at = job.epoch();
                    if at != Epoch(0) {
                        break;
                    }
                    match job.fetch_add(at, OTHER, 8, 1) {
                        Ok(_) => assert_eq!(at, Epoch(0)),
                        Err(Error::Stale { now }) => {
                            assert_eq!(now, Epoch(1));
                            assert_eq!(job.epoch(), Epoch(1), "the refusal has taught the caller");
                            *refused.borrow_mut() += 1;
                        }
                        Err(other) => panic!("{other}"),
                    }
                    sleep(&job, Duration::from_millis(1));
                }
            }
            job.leave().unwrap();
        })
        .expect_ok();
    }
    assert!(*out.borrow() > 10, "{}", out.borrow());
}

#[test]
fn a_network_target_with_an_older_view_adopts_the_newer_view() {
    let options = Options {
        detection: Duration::from_millis(10)..=Duration::from_secs(10),
        ..Options::new(3, 0).link(Link::Network)
    };
    let (adopted, out) = shared::<[usize; 2]>();
    for seed in 0..50 {
        let adopted = adopted.clone();
        sim::run(&Options { seed, ..options.clone() }, move |job| {
            job.grow(64).unwrap();
            sleep(&job, SETTLE);
            if job.me() == THIRD {
                sleep(&job, Duration::from_secs(1000));
            }
            if job.me() == OTHER {
                job.fence(THIRD, Time::NEVER).unwrap();
                if seed % 2 == 0 {
                    job.put(job.epoch(), ME, 0, &[1; 8]).unwrap();
                } else {
                    job.send(ME, Port::User, b"x").unwrap();
                }
                sleep(&job, Duration::from_secs(20));
            } else if seed % 2 == 0 {
                while job.load(Epoch::ANY, ME, 0).unwrap() == 0 {
                    sleep(&job, Duration::from_millis(1));
                }
                assert_eq!(job.epoch(), Epoch(1), "adopted before the put took effect");
                adopted.borrow_mut()[0] += 1;
            } else {
                assert_eq!(receive(&job, Port::User).epoch, Epoch(1));
                assert_eq!(job.epoch(), Epoch(1), "adopted before the message was delivered");
                adopted.borrow_mut()[1] += 1;
            }
            job.leave().unwrap();
        })
        .expect_ok();
    }
    assert_eq!(*out.borrow(), [25, 25]);
}

/// On memory, the check of the epoch is not atomic with the operation: some operation that was
/// checked before a death takes effect after the death is known.
#[test]
fn on_memory_the_view_may_change_between_the_check_and_the_effect() {
    let (late, out) = shared::<usize>();
    for seed in 0..300 {
        let late = late.clone();
        sim::run(&Options::new(3, seed), move |job| {
            job.grow(64).unwrap();
            if job.me() == THIRD {
                return;
            }
            if job.me() == OTHER {
                while job.epoch() == Epoch(0) {
                    let _ = job.fetch_add(Epoch(0), ME, 0, 1);
                }
                sleep(&job, Duration::from_millis(100));
            } else {
                wait_for_epoch(&job, 1);
                let first = job.load(Epoch::ANY, ME, 0).unwrap();
                sleep(&job, Duration::from_millis(50));
                *late.borrow_mut() += (job.load(Epoch::ANY, ME, 0).unwrap() - first) as usize;
                sleep(&job, Duration::from_millis(100));
            }
            job.leave().unwrap();
        })
        .expect_ok();
    }
    assert!(*out.borrow() > 0);
}

// ---- Stops.

#[test]
fn a_stopped_target_answers_on_memory_and_times_out_on_a_network() {
    for link in LINKS {
        let options =
            Options { time_limit: Duration::from_secs(3), ..Options::new(2, 6).link(link) };
        let report = sim::run(&options, move |job| {
            job.grow(64).unwrap();
            sleep(&job, SETTLE);
            if job.me() == OTHER {
                sleep(&job, Duration::from_secs(1));
            } else {
                job.inject(Fault::Stop(OTHER)).unwrap();
                let begin = job.now();
                let result = job.put(Epoch::ANY, OTHER, 0, &[3; 16]);
                let pending =
                    job.start(Epoch::ANY, OTHER, Operation::FetchAdd { offset: 24, delta: 5 });
                let added = job.wait(pending);
                match link {
                    Link::Memory => assert_eq!((result, added), (Ok(()), Ok(Done::Word(0)))),
                    Link::Network => {
                        let timeout =
                            Error::Timeout { member: OTHER, limit: Duration::from_secs(3) };
                        assert_eq!((result, added), (Err(timeout.clone()), Err(timeout)));
                        assert!(job.now().since(begin) >= Duration::from_secs(6));
                    }
                }
                job.inject(Fault::Resume(OTHER)).unwrap();
                sleep(&job, Duration::from_millis(100));
                // The outcome of the operation that timed out was unknown. In this schedule it
                // happens later.
                assert_eq!(job.load(Epoch::ANY, OTHER, 8), Ok(u64::from_le_bytes([3; 8])));
                assert_eq!(job.load(Epoch::ANY, OTHER, 24), Ok(5));
            }
            sleep(&job, Duration::from_secs(20));
            job.leave().unwrap();
        })
        .expect_ok();
        assert_eq!(report.stops, 1);
    }
}

#[test]
fn a_stopped_member_does_nothing_until_it_is_resumed() {
    for link in LINKS {
        let options = Options::new(2, 1)
            .link(link)
            .fault(When::AtStep(OTHER, 20), Action::StopFor(OTHER, Duration::from_secs(5)));
        let report = sim::run(&options, |job| {
            job.grow(64).unwrap();
            if job.me() == OTHER {
                let mut previous = job.now();
                let mut longest = Duration::ZERO;
                for _ in 0..100 {
                    let now = job.now();
                    longest = longest.max(now.since(previous));
                    previous = now;
                }
                assert!(longest >= Duration::from_secs(5));
            } else {
                sleep(&job, Duration::from_secs(10));
                assert_eq!(job.epoch(), Epoch(0), "being stopped is not death");
            }
            sleep(&job, Duration::from_secs(20));
            job.leave().unwrap();
        })
        .expect_ok();
        assert_eq!((report.stops, report.still_stopped.len()), (1, 0));
    }
}

#[test]
fn a_stopped_member_can_be_killed_and_a_member_left_stopped_is_reported() {
    for link in LINKS {
        let options = Options::new(3, 1)
            .link(link)
            .fault(When::At(Time(1000)), Action::Stop(OTHER))
            .fault(When::At(Time(1000)), Action::Stop(THIRD))
            .fault(When::At(Time(2000)), Action::Kill(OTHER));
        let report = sim::run(&options, |job| {
            wait_for_epoch(&job, 1);
            assert!(job.view().dead.contains(OTHER) && !job.view().dead.contains(THIRD));
            job.leave().unwrap();
        })
        .expect_ok();
        assert_eq!(report.still_stopped, [THIRD]);
        assert_eq!((report.kills, report.stops), (1, 2));
    }
}

#[test]
fn a_full_inbox_of_a_stopped_member_times_out_its_senders() {
    for link in LINKS {
        let options = Options {
            message_credit: 4 * message_cost(1),
            time_limit: Duration::from_secs(1),
            ..Options::new(2, 6).link(link)
        };
        sim::run(
            &options.fault(When::At(Time(0)), Action::StopFor(OTHER, Duration::from_secs(9))),
            |job| {
                if job.me() == ME {
                    for number in 0..4 {
                        assert_eq!(job.try_send(OTHER, Port::User, &[number]), Ok(true));
                    }
                    assert_eq!(job.try_send(OTHER, Port::User, &[99]), Ok(false));
                    let too_long = [99; TRY_SEND_LEN_MAX + 1];
                    assert!(matches!(
                        job.try_send(OTHER, Port::User, &too_long),
                        Err(Error::MessageTooLong { .. })
                    ));
                    assert!(job.now() < Time(1_000_000), "a try does not wait");
                    assert!(matches!(
                        job.send(OTHER, Port::User, &[99]),
                        Err(Error::Timeout { member: OTHER, .. })
                    ));
                    sleep(&job, Duration::from_secs(9));
                    let begin = job.now();
                    for number in 4..20 {
                        job.send(OTHER, Port::User, &[number]).unwrap();
                    }
                    // Woken by the receiver, not by the time limit.
                    assert!(job.now().since(begin) < Duration::from_millis(900));
                } else {
                    for number in 0..20 {
                        assert_eq!(receive(&job, Port::User).bytes, [number]);
                    }
                }
                sleep(&job, SETTLE * 10);
                job.leave().unwrap();
            },
        )
        .expect_ok();
    }
}

// ---- The death of the caller.

#[test]
fn each_call_by_which_a_member_can_kill_itself_works() {
    for link in LINKS {
        for way in 0..5 {
            let after = Arc::new(AtomicBool::new(false));
            let survived = after.clone();
            let report = sim::run(&Options::new(2, way).link(link), move |job| {
                if job.me() == OTHER {
                    match way {
                        0 => job.inject(Fault::Kill(OTHER)).unwrap(),
                        1 => job.fence(OTHER, Time::NEVER).unwrap(),
                        2 => job.inject(Fault::DieAtStep(1)).unwrap(),
                        3 => job.inject(Fault::DieAtStep(3)).unwrap(),
                        _ => {
                            let inner = job.clone();
                            let _ = job.spawn(
                                "assassin",
                                Box::new(move || {
                                    let _ = inner.inject(Fault::Kill(OTHER));
                                }),
                            );
                        }
                    }
                    loop {
                        sleep(&job, Duration::from_secs(1));
                        if job.now() > Time(10_000_000_000) {
                            survived.store(true, Ordering::Relaxed);
                            return;
                        }
                    }
                }
                wait_for_epoch(&job, 1);
                job.leave().unwrap();
            })
            .expect_ok();
            assert_eq!(report.kills, 1, "way {way}");
            assert!(!after.load(Ordering::Relaxed));
        }
    }
}

#[test]
fn dying_at_a_step_counts_the_steps_of_all_activities() {
    for link in LINKS {
        for n in 1..40 {
            let report = sim::run(&Options::new(2, n).link(link), move |job| {
                job.grow(1024).unwrap();
                if job.me() == OTHER {
                    job.inject(Fault::DieAtStep(n)).unwrap();
                    loop {
                        let _ = job.put(Epoch::ANY, ME, 0, &[1; 100]);
                    }
                }
                wait_for_epoch(&job, 1);
                job.leave().unwrap();
            })
            .expect_ok();
            assert_eq!(report.kills, 1);
        }
    }
    // The plan counts from the beginning of the member.
    let options = Options::new(1, 0).fault(When::AtStep(ME, 17), Action::Kill(ME));
    let report = sim::run(&options, |job| {
        loop {
            job.now();
        }
    });
    assert_eq!(report.counters[0].steps, 17);
}

#[test]
fn destructors_of_the_killed_run_and_their_calls_do_nothing() {
    struct Guard(Job, Arc<AtomicU64>);
    impl Drop for Guard {
        fn drop(&mut self) {
            let job = &self.0;
            if job.has_ended() {
                let mut buffer = [0; 16];
                assert_eq!(job.put(Epoch::ANY, ME, 0, &[1; 16]), Err(Error::Ended));
                assert_eq!(job.get(Epoch::ANY, ME, 0, &mut buffer), Err(Error::Ended));
                assert_eq!(
                    job.wait(job.start(Epoch::ANY, ME, Operation::Load { offset: 0 })),
                    Err(Error::Ended)
                );
                assert_eq!(job.send(ME, Port::User, b"x"), Err(Error::Ended));
                assert_eq!(job.receive(Port::User), None);
                assert_eq!(job.fence(ME, Time::NEVER), Err(Error::Ended));
                assert_eq!(job.leave(), Err(Error::Ended));
                assert_eq!(job.ring(ME), Err(Error::Ended));
                assert!(job.spawn("never", Box::new(|| unreachable!())).is_err());
                assert!(job.inject(Fault::Kill(ME)).is_err());
                job.park(job.bell(), Time::NEVER);
                let _ = (job.epoch(), job.view(), job.now());
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    for link in LINKS {
        let dropped = Arc::new(AtomicU64::new(0));
        for n in 1..60 {
            let dropped = dropped.clone();
            let options =
                Options::new(2, n).link(link).fault(When::AtStep(OTHER, n), Action::Kill(OTHER));
            let report = sim::run(&options, move |job| {
                job.grow(64).unwrap();
                if job.me() == OTHER {
                    let outer = Guard(job.clone(), dropped.clone());
                    let inner = Guard(job.clone(), dropped.clone());
                    let spawned = inner.0.clone();
                    let moved = Guard(job.clone(), dropped.clone());
                    let _ = job.spawn(
                        "further",
                        Box::new(move || {
                            let held = moved;
                            sleep(&held.0, Duration::from_secs(100));
                        }),
                    );
                    // Code that swallows the unwinding and goes on is unwound again.
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        sleep(&spawned, Duration::from_secs(100));
                    }));
                    loop {
                        let _ = outer.0.put(Epoch::ANY, ME, 0, &[1; 16]);
                    }
                }
                wait_for_epoch(&job, 1);
                job.leave().unwrap();
            })
            .expect_ok();
            assert_eq!(report.kills, 1);
        }
        // If the body has begun, both of its guards are dropped. The third guard is dropped with
        // the second activity, or with the closure if that activity never began.
        assert!(dropped.load(Ordering::Relaxed) > 100, "{}", dropped.load(Ordering::Relaxed));
        assert_eq!(Arc::strong_count(&dropped), 1);
    }
}

#[test]
fn a_single_member_survives_simultaneous_deaths_of_all_others() {
    for link in LINKS {
        let mut options = Options::new(40, 3).link(link);
        for member in 0..39 {
            options = options.fault(When::At(Time(5000)), Action::Kill(MemberId(member)));
        }
        let report = sim::run(&options, |job| {
            wait_for_epoch(&job, 39);
            assert_eq!(job.view().living().collect::<Vec<_>>(), [MemberId(39)]);
            job.leave().unwrap();
        })
        .expect_ok();
        assert_eq!(report.kills, 39);
    }
}

#[test]
fn a_panic_is_reported_and_is_a_death() {
    without_panic_messages(|| {
        for link in LINKS {
            let report = sim::run(&Options::new(3, 1).link(link), |job| {
                if job.me() == OTHER {
                    sleep(&job, Duration::from_micros(3));
                    panic!("number {}", 42);
                }
                if job.me() == THIRD {
                    let _ = job.spawn("fragile", Box::new(|| panic!("further")));
                    sleep(&job, Duration::from_secs(100));
                }
                wait_for_epoch(&job, 2);
                job.leave().unwrap();
            });
            assert_eq!((report.outcome, report.kills), (Outcome::Finished, 0));
            let mut panics: Vec<_> = report
                .panics
                .iter()
                .map(|p| (p.member, p.activity.as_str(), p.message.as_str()))
                .collect();
            panics.sort();
            assert_eq!(panics, [(OTHER, "main", "number 42"), (THIRD, "fragile", "further")]);
        }
    });
}

// ---- What never ends.

#[test]
fn a_wait_that_cannot_end_is_reported_as_hung() {
    for link in LINKS {
        let report = sim::run(&Options::new(2, 1).link(link), |job| {
            if job.me() == OTHER {
                receive(&job, Port::User);
            }
            job.leave().unwrap();
        });
        assert_eq!(report.outcome, Outcome::Deadlock);
        let hung: Vec<_> =
            report.hung.iter().map(|h| (h.member, &h.activity[..], &h.call[..])).collect();
        assert_eq!(hung, [(OTHER, "main", "park until it rings")]);
        assert!(report.hung[0].is_waiting && report.hung[0].since > Time(0));
    }
}

#[test]
fn an_endless_run_ends_at_a_limit() {
    let spin = |job: Job| loop {
        job.epoch();
    };
    let report = sim::run(&Options { steps_max: 1000, ..Options::new(2, 1) }, spin);
    assert_eq!((report.outcome, report.steps), (Outcome::StepLimit, 1001));
    assert_eq!(report.hung.len(), 2);
    let report = sim::run(&Options { time_max: Time(1_000_000), ..Options::new(2, 1) }, spin);
    assert_eq!(report.outcome, Outcome::TimeLimit);
    assert!(report.end <= Time(1_000_000));
}

// ---- Activities and services.

#[test]
fn activities_run_beside_the_main_activity_and_ring_when_they_end() {
    for link in LINKS {
        sim::run(&Options::new(2, 5).link(link), |job| {
            job.grow(64).unwrap();
            let me = job.me();
            let activities: Vec<_> = (0..5)
                .map(|number| {
                    let inner = job.clone();
                    job.spawn(
                        &format!("worker {number}"),
                        Box::new(move || {
                            sleep(&inner, Duration::from_micros(10 * number));
                            inner.fetch_add(Epoch::ANY, me, 0, 1).unwrap();
                        }),
                    )
                    .unwrap()
                })
                .collect();
            assert!(!activities[4].is_finished());
            for activity in &activities {
                assert!(job.wait_for(activity, Time::NEVER));
            }
            assert_eq!(job.load(Epoch::ANY, me, 0), Ok(5));
            sleep(&job, SETTLE * 10);
            job.leave().unwrap();
        })
        .expect_ok();
    }
}

#[test]
fn services_run_in_the_background_when_the_bell_rings() {
    struct Echo(AtomicU64);
    impl Service for Echo {
        fn run(&self, job: &Job) -> Time {
            self.0.fetch_add(1, Ordering::Relaxed);
            while let Some(message) = job.receive(Port::Store) {
                let _ = job.send(message.from, Port::User, &message.bytes);
            }
            Time::NEVER
        }
    }
    for link in LINKS {
        sim::run(&Options::new(3, 5).link(link), |job| {
            job.serve(Arc::new(Echo(AtomicU64::new(0)))).unwrap();
            let to = MemberId((job.me().0 + 1) % 3);
            for number in 0..10 {
                job.send(to, Port::Store, &[number]).unwrap();
                assert_eq!(receive(&job, Port::User).bytes, [number]);
            }
            sleep(&job, SETTLE * 10);
            job.leave().unwrap();
        })
        .expect_ok();
    }
}

#[test]
fn polling_alone_makes_progress_and_completions_of_different_targets_are_reordered() {
    let (orders, out) = shared::<BTreeSet<Vec<u32>>>();
    for seed in 0..40 {
        let orders = orders.clone();
        sim::run(&Options::new(4, seed).link(Link::Network), move |job| {
            job.grow(64).unwrap();
            sleep(&job, SETTLE);
            if job.me() == ME {
                let mut pending: Vec<_> = (1..4)
                    .map(|to| {
                        job.start(
                            Epoch::ANY,
                            MemberId(to),
                            Operation::Put { offset: 0, data: &[1; 24] },
                        )
                    })
                    .collect();
                let mut order = Vec::new();
                while order.len() < 3 {
                    for pending in &mut pending {
                        if let Some(result) = job.poll(pending) {
                            assert_eq!(result, Ok(Done::Put));
                            order.push(pending.target.0);
                        }
                    }
                }
                orders.borrow_mut().insert(order);
            }
            sleep(&job, SETTLE * 10);
            job.leave().unwrap();
        })
        .expect_ok();
    }
    assert!(out.borrow().len() >= 4, "{:?}", out.borrow());
}

/// A caller that polls and parks on the bell, and does not call `wait`, is woken by the completion.
#[test]
fn a_completion_wakes_a_parked_caller() {
    sim::run(&Options::new(2, 1).link(Link::Network), |job| {
        job.grow(64).unwrap();
        sleep(&job, SETTLE);
        for _ in 0..50 {
            let mut pending = job.start(
                Epoch::ANY,
                MemberId(1 - job.me().0),
                Operation::FetchAdd { offset: 0, delta: 1 },
            );
            loop {
                let bell = job.bell();
                if job.poll(&mut pending).is_some() {
                    break;
                }
                job.park(bell, Time::NEVER);
            }
        }
        sleep(&job, SETTLE * 10);
        job.leave().unwrap();
    })
    .expect_ok();
}

// ---- Size.

#[test]
fn four_thousand_members_exchange_a_message_each() {
    for link in LINKS {
        let options = Options { stack_len: 64 << 10, ..Options::new(4096, 1).link(link) };
        let report = sim::run(&options, |job| {
            let (me, members) = (job.me().0, job.members() as u32);
            job.send(MemberId((me + 1) % members), Port::User, &me.to_le_bytes()).unwrap();
            let message = receive(&job, Port::User);
            assert_eq!(message.from.0, (me + members - 1) % members);
            assert_eq!(message.bytes, message.from.0.to_le_bytes());
            job.leave().unwrap();
        })
        .expect_ok();
        assert!(report.counters.iter().all(|c| (c.messages_sent, c.messages_received) == (1, 1)));
        assert!(
            report
                .counters
                .iter()
                .all(|c| (c.message_bytes_sent, c.message_bytes_received) == (4, 4))
        );
    }
}

// ---- Cost and counters.

#[test]
fn a_cost_model_gives_times_without_chance() {
    let cost = Cost { gap_per_byte_ps: 1000, ..Cost::default() };
    let run = |seed, link| {
        let (times, out) = shared::<Vec<Duration>>();
        let options = Options { cost: Some(cost), ..Options::new(2, seed).link(link) };
        let report = sim::run(&options, move |job| {
            job.grow(1 << 16).unwrap();
            sleep(&job, Duration::from_millis(1));
            if job.me() == ME {
                for len in [8, 10_000] {
                    let begin = job.now();
                    job.put(Epoch::ANY, OTHER, 0, &vec![1; len]).unwrap();
                    times.borrow_mut().push(job.now().since(begin));
                }
            }
            sleep(&job, Duration::from_millis(1));
            job.leave().unwrap();
        })
        .expect_ok();
        assert_eq!(report.counters[0].operations, 2);
        assert_eq!(report.counters[0].operation_bytes_written, 10_008);
        assert_eq!(report.counters[0].operation_bytes_read, 0);
        assert_eq!(report.counters[1].operations, 0);
        (out.take(), report.end)
    };
    for link in LINKS {
        let (times, end) = run(1, link);
        assert_eq!(run(2, link), (times.clone(), end), "the seed decides nothing");
        let extra = times[1] - times[0];
        assert_eq!(extra.as_nanos() / 100, 99, "a nanosecond a byte: {times:?}");
    }
}

// ---- Use from the wrong place.

#[test]
fn a_job_handle_is_harmless_outside_its_world() {
    let kept: Arc<Mutex<Option<Job>>> = Arc::default();
    let keep = kept.clone();
    sim::run(&Options::new(2, 1), move |job| {
        job.grow(64).unwrap();
        if job.me() == ME {
            let elsewhere = job.clone();
            std::thread::spawn(move || {
                assert_eq!(elsewhere.load(Epoch::ANY, ME, 0), Err(Error::Ended));
                assert!(elsewhere.has_ended());
                elsewhere.park(elsewhere.bell(), Time::NEVER);
            })
            .join()
            .unwrap();
            *keep.lock().unwrap() = Some(job.clone());
            sleep(&job, Duration::from_millis(1));
        } else {
            sleep(&job, Duration::from_micros(500));
            let borrowed = keep.lock().unwrap().clone().unwrap();
            assert!(matches!(borrowed.load(Epoch::ANY, ME, 0), Err(Error::Unsupported { .. })));
        }
        job.leave().unwrap();
    })
    .expect_ok();
    let job = kept.lock().unwrap().take().unwrap();
    assert_eq!((job.me(), job.members()), (ME, 2));
    assert_eq!(job.load(Epoch::ANY, ME, 0), Err(Error::Ended));
    // The handle does not work in another world of this thread either.
    sim::run(&Options::new(1, 1), move |other| {
        assert_eq!(job.load(Epoch::ANY, ME, 0), Err(Error::Ended));
        assert!(job.has_ended() && !other.has_ended());
        other.leave().unwrap();
    })
    .expect_ok();
}

/// On the memory link, the publisher dies at any step: when the survivors know of its death and
/// have nothing more to receive, all have received an equal number of its messages.
#[test]
fn a_published_message_reaches_all_survivors_or_none() {
    let mut counts_seen = BTreeSet::new();
    for seed in 0..300 {
        let options =
            Options::new(4, seed).fault(When::AtStep(ME, 1 + seed % 30), Action::Kill(ME));
        let (received, of_body) = shared::<Vec<usize>>();
        let report = sim::run(&options, move |job: Job| {
            assert!(job.can_publish());
            let others: Vec<MemberId> =
                (0..4).map(MemberId).filter(|&other| other != job.me()).collect();
            if job.me() == ME {
                for number in 0..40u8 {
                    job.try_publish(&others, Port::User, &[number]).unwrap();
                }
                sleep(&job, SETTLE);
            }
            wait_for_epoch(&job, 1);
            let mut count = 0;
            while let Some(message) = job.receive(Port::User) {
                assert_eq!((message.from, &message.bytes[..]), (ME, &[count as u8][..]));
                count += 1;
            }
            of_body.borrow_mut().push(count);
        });
        assert!(report.is_ok(), "seed {seed}: {report:?}");
        let received = received.borrow();
        assert!(received.windows(2).all(|two| two[0] == two[1]), "seed {seed}: {received:?}");
        counts_seen.extend(received.first().copied());
    }
    assert!(counts_seen.len() > 5, "deaths at few places: {counts_seen:?}");
}

//! Seats under the simulator: programs with an oracle, deaths and stops at any step, both links,
//! whole domains at once.

use crate::seat_bodies::{self, SEATS};
use crate::simulation::{run_with, seeds, without_panic_messages};
use outlast::engine::{Error, Fault};
use outlast::protect::{self, Interval, Level, LockKind, Protect, ProtectError, Seat};
use outlast::sim::{self, Action, Link, When};
use outlast::{Epoch, Job, MemberId};
use outlast_check::seats::{Kind, Program};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// About how many engine steps a member makes in a program.
const STEPS: u64 = 6_000;

fn sim(seats: usize, spares: usize, seed: u64) -> sim::Options {
    let mut options = sim::Options::new(seats, seed).link(Link::of_seed(seed));
    options.spares = spares;
    // The tables of the code are made on the stack of the first member that needs them.
    options.stack_len = 2 << 20;
    options
}

/// Random deaths and stops. A stop may be longer than the usual time limit, and no call gives up.
fn faulty(options: sim::Options, kills: usize, stops: usize) -> sim::Options {
    let mut options = options.random_faults(kills, stops, STEPS);
    options.time_limit = Duration::from_secs(120);
    options
}

fn program(seed: u64) -> Program {
    let kind = Kind::ALL[(seed % 4) as usize];
    Program { seats: SEATS, rounds: 4, kind, seed }
}

/// Runs a program under these options; each survivor must end, and each closure equals the oracle.
fn run_equal(options: sim::Options, program: Program, lose: usize) {
    run_with(options, move |job| {
        let store = seat_bodies::open(&job);
        let protect = seat_bodies::options(program.bytes(), lose);
        let ended = seat_bodies::run_program(&store, protect, program).expect("ended");
        assert!(ended.iter().all(|(_, rounds)| *rounds == program.rounds), "{ended:?}");
        seat_bodies::end(&job, &store);
    });
}

/// Without deaths: all kinds of programs, with and without spares.
#[test]
fn a_program_ends_with_the_bytes_of_the_oracle() {
    for seed in seeds(8) {
        run_equal(sim(SEATS, (seed % 3) as usize, seed), program(seed), 1);
    }
}

/// A deterministic program ends with the bytes of the oracle, wherever members die or stop.
#[test]
fn seat_promise_4_the_same() {
    for seed in seeds(40) {
        let (kills, stops) = (1 + seed as usize % 2, seed as usize % 3);
        let options = faulty(sim(SEATS, seed as usize / 4 % 3, seed), kills, stops);
        run_equal(options, program(seed), 2);
    }
}

/// Kept: each seat takes up a point that it has seen saved, after deaths at any step.
#[test]
fn seat_promise_1_kept() {
    for seed in seeds(16) {
        let options = faulty(sim(SEATS, 0, seed), 2, 0);
        run_with(options, move |job| {
            let store = seat_bodies::open(&job);
            let inside = store.clone();
            let protect = seat_bodies::options(256, 2);
            let ended = protect::run(&store, protect, move |seat| seat_bodies::kept(seat, &inside));
            ended.expect("ended");
            seat_bodies::end(&job, &store);
        });
    }
}

/// Kept: a whole host dies at once.
#[test]
fn seat_promise_1_kept_when_a_domain_dies() {
    for seed in seeds(6) {
        let mut options = sim(8, 0, seed);
        options.domains = (0..8).map(|member| format!("node{}", member / 2)).collect();
        let when = When::AtStep(MemberId(2), 2_000 + seed * 500);
        let options =
            options.fault(when, Action::Kill(MemberId(2))).fault(when, Action::Kill(MemberId(3)));
        let program = Program { seats: 8, rounds: 4, kind: Kind::Mixed, seed };
        run_with(options, move |job| {
            let store = seat_bodies::open(&job);
            let protect = options_apart(program.bytes());
            seat_bodies::run_program(&store, protect, program).expect("ended");
            seat_bodies::end(&job, &store);
        });
    }
}

fn options_apart(bytes: u64) -> Protect {
    seat_bodies::options(bytes, 1).apart(Level::Innermost).strict()
}

/// Together: after each rollback all seats begin at a single round, or at the beginning.
#[test]
fn seat_promise_2_together() {
    for seed in seeds(24) {
        let options = faulty(sim(SEATS, seed as usize % 2, seed), 2, 1);
        run_with(options, move |job| {
            let store = seat_bodies::open(&job);
            let protect = seat_bodies::options(8 * 64, 2);
            protect::run(&store, protect, seat_bodies::together).expect("ended");
            seat_bodies::end(&job, &store);
        });
    }
}

/// Once: no number of a counter is given twice or left out, with points that are not aligned.
#[test]
fn seat_promise_5_once() {
    for seed in seeds(24) {
        let options = faulty(sim(SEATS, seed as usize % 2, seed), 2, 1);
        run_with(options, move |job| {
            let store = seat_bodies::open(&job);
            let protect = seat_bodies::unaligned(seat_bodies::claim_bytes(20), 2);
            let ended =
                protect::run(&store, protect, |seat| seat_bodies::claim_unaligned(seat, 20));
            ended.expect("ended");
            seat_bodies::end(&job, &store);
        });
    }
}

/// Whole again: three members die one after the other, with images that bear one loss, and no seat
/// saves in between.
#[test]
fn seat_promise_6_whole_again() {
    for seed in seeds(6) {
        run_with(sim(6, 0, seed), move |job| {
            let store = seat_bodies::open(&job);
            let inside = job.clone();
            let protect = seat_bodies::options(512, 1).set(3);
            let ended = protect::run(&store, protect, move |seat| {
                seat_bodies::whole_again(seat, &inside, 3)
            });
            ended.expect("ended");
            seat_bodies::end(&job, &store);
        });
    }
}

/// Bounded: a stopped member is waited for until the patience is over, and no longer.
#[test]
fn seat_promise_7_bounded() {
    for seed in seeds(6) {
        let mut options = sim(4, 0, seed);
        options.time_limit = Duration::from_secs(2);
        run_with(options, |job| seat_bodies::bounded(&job));
    }
}

/// Honest: where more members die at once than may, all survivors are told which seat is lost.
#[test]
fn seat_promise_8_honest() {
    for seed in seeds(8) {
        run_with(sim(6, 0, seed), move |job| {
            let store = seat_bodies::open(&job);
            let inside = job.clone();
            let protect = Protect::new(512).set(6).lose(1).piece(64).room(2);
            let ended =
                protect::run(&store, protect, move |seat| seat_bodies::honest(seat, &inside));
            assert!(matches!(ended, Err(ProtectError::SeatLost { .. })), "{ended:?}");
            assert!(job.epoch() >= Epoch(2));
            seat_bodies::end(&job, &store);
        });
    }
}

/// More deaths than images bear, at any step: all survivors end in one way, with the right bytes or
/// with an error that says what is lost.
#[test]
fn beyond_what_may_be_lost_all_survivors_end_alike() {
    for seed in seeds(16) {
        let options = faulty(sim(6, 0, seed), 3, 0);
        let program = Program { seats: 6, ..program(seed) };
        let ends: Rc<RefCell<Vec<Option<ProtectError>>>> = Rc::default();
        let seen = ends.clone();
        run_with(options, move |job| {
            let store = seat_bodies::open(&job);
            let protect = seat_bodies::options(program.bytes(), 1).room(5);
            let end = seat_bodies::run_program(&store, protect, program).err();
            assert!(matches!(end, None | Some(ProtectError::SeatLost { .. })), "{end:?}");
            seen.borrow_mut().push(end);
            seat_bodies::end(&job, &store);
        });
        let ends = ends.borrow();
        assert!(ends.windows(2).all(|ends| ends[0] == ends[1]), "seed {seed}: {ends:?}");
    }
}

/// A closure that panics or returns an error fails at all members, and no member dies of it.
#[test]
fn a_closure_that_fails_is_reported_at_all_members() {
    for seed in seeds(6) {
        let panics = seed % 2 == 0;
        let body = move |job: Job| {
            let store = seat_bodies::open(&job);
            let run = || {
                protect::run(&store, seat_bodies::options(256, 1), move |seat| {
                    for round in 0..9u64 {
                        seat.barrier_point(&round.to_le_bytes())?;
                        if seat.number() == 2 && round == 4 {
                            assert!(!panics, "no bread");
                            return Err("no bread".into());
                        }
                    }
                    Ok::<(), Box<dyn std::error::Error>>(())
                })
            };
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            match ended {
                Ok(ended) => {
                    let Err(ProtectError::SeatFailed { seat: 2, reason }) = ended else {
                        panic!("{ended:?}")
                    };
                    assert!(reason.contains("no bread"), "{reason}");
                }
                Err(_) => assert!(panics && job.me() == MemberId(2)),
            }
            assert_eq!(job.epoch(), Epoch(0));
            seat_bodies::end(&job, &store);
        };
        without_panic_messages(|| run_with(sim(4, 1, seed), body));
    }
}

/// A closure that kills each of its processes is given up, before it has killed all members.
#[test]
fn a_seat_whose_holders_die_again_and_again_is_given_up() {
    for seed in seeds(4) {
        run_with(sim(3, 4, seed), move |job| {
            let store = seat_bodies::open(&job);
            let inside = job.clone();
            let protect = seat_bodies::options(256, 2).give_up(3);
            let ended = protect::run(&store, protect, move |seat| {
                if seat.number() == 1 {
                    inside.inject(Fault::Kill(inside.me())).expect("killed");
                }
                seat.barrier()?;
                Ok::<(), ProtectError>(())
            });
            let Err(ProtectError::SeatFailed { seat: 1, reason }) = ended else {
                panic!("{ended:?}")
            };
            assert!(reason.contains("3 members"), "{reason}");
            assert_eq!(job.epoch(), Epoch(3));
            seat_bodies::end(&job, &store);
        });
    }
}

/// Holders die one after the other while all seats write a generation. The memory of these
/// generations comes back, so that a later point finds room.
#[test]
fn deaths_while_seats_are_saved_take_no_room_from_later_points() {
    for seed in seeds(12) {
        let mut options = sim(3, 4, seed);
        (options.steps_max, options.time_limit) = (20_000_000, Duration::from_secs(120));
        run_with(options, move |job| {
            let store = seat_bodies::open(&job);
            let inside = job.clone();
            let protect = Protect::new(16 << 10).set(3).lose(1).piece(64);
            let ended = protect::run(&store, protect, move |seat| {
                let first = seat.barrier_point(b"first")?;
                // The first five members that hold the seat, one after the other.
                if seat.number() == 1 && inside.view().dead.len() < 4 {
                    let victim = inside.clone();
                    let moment = Duration::from_micros(20 + 40 * (seed + 3 * victim.epoch().0));
                    let die = move || {
                        victim.sleep(moment);
                        let _ = victim.inject(Fault::Kill(victim.me()));
                    };
                    let _ = inside.spawn("death", Box::new(die)).expect("started");
                }
                let mut points = vec![first];
                for round in 0..4u8 {
                    seat.put(seat.number(), 0, &[round + 1; 4096])?;
                    seat.flush(seat.number())?;
                    points.push(seat.barrier_point(&[round])?);
                }
                Ok::<_, ProtectError>(points)
            });
            let ended = ended.expect("ended");
            for (seat, points) in ended {
                assert!(points[1..].contains(&protect::Point::Saved), "seat {seat}: {points:?}");
                assert_eq!(points.last(), Some(&protect::Point::Saved), "seat {seat}: {points:?}");
            }
            seat_bodies::end(&job, &store);
        });
    }
}

#[test]
fn a_held_seat_is_saved_with_what_others_put_meanwhile() {
    for seed in seeds(4) {
        run_with(sim(4, 0, seed), move |job| {
            let store = seat_bodies::open(&job);
            let inside = job.clone();
            let protect = seat_bodies::options(256, 1).gather(Duration::from_secs(10));
            let body = move |seat: &Seat| seat_bodies::put_while_held(seat, &inside);
            protect::run(&store, protect, body).expect("ended");
            seat_bodies::end(&job, &store);
        });
    }
}

#[test]
fn a_lock_of_a_dead_holder_is_free_after_the_rollback() {
    for seed in seeds(4) {
        run_with(sim(4, 0, seed), move |job| {
            let store = seat_bodies::open(&job);
            let inside = job.clone();
            let protect = seat_bodies::options(256, 1).patience(Duration::from_secs(5));
            let body = move |seat: &Seat| seat_bodies::lock_of_the_dead(seat, &inside);
            protect::run(&store, protect, body).expect("ended");
            seat_bodies::end(&job, &store);
        });
    }
}

/// A member that is stopped in any step and goes on later changes nothing that was rolled back.
#[test]
fn a_stopped_holder_that_wakes_up_late_harms_no_seat() {
    for seed in seeds(16) {
        let stopped = MemberId(seed as u32 % SEATS as u32);
        let dead = MemberId((seed as u32 + 1) % SEATS as u32);
        let step = 1_200 + seed * 211;
        let options = sim(SEATS, 0, seed)
            .fault(When::AtStep(stopped, step), Action::StopFor(stopped, Duration::from_secs(20)))
            .fault(When::AtStep(stopped, step), Action::Kill(dead));
        run_equal(options, program(seed), 1);
    }
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let mut options = sim(3, 0, 1);
    options.segment_limit = 4 << 20;
    run_with(options, |job| {
        let store = seat_bodies::open(&job);
        let refused = |options: Protect, named: &str| {
            let ended = protect::run(&store, options, |_| Ok::<(), ProtectError>(()));
            match ended {
                Err(ProtectError::Invalid { reason }) => {
                    assert!(reason.contains(named), "{reason}")
                }
                other => panic!("{named}: {other:?}"),
            }
        };
        let good = || Protect::new(256).set(3).lose(1).piece(64);
        refused(Protect::new(0).set(3), "0 bytes");
        refused(good().set(1), "2 to 64");
        refused(good().lose(3), "fewer than the set");
        refused(good().give_up(0), "give up");
        refused(good().give_up(1 + u64::from(job.me().0)), "other options");
        refused(good().room(65), "up to 64");
        refused(good().set(4).strict(), "fewer than 4 failure domains");
        // Images of such seats need more memory than a member has; the message has the bytes.
        refused(Protect::new(1 << 30).set(3), "cannot grow the segment to");
        // There is memory for the images, but not for the seats themselves.
        let seats = Protect::new(450 << 10).set(3).lose(1).piece(1024);
        match protect::run(&store, seats, |_| Ok::<(), ProtectError>(())) {
            Err(ProtectError::Engine(Error::OutOfMemory { wanted, .. })) => {
                assert!(wanted > 4 << 20, "{wanted}");
            }
            other => panic!("{other:?}"),
        }
        let ended = protect::run(&store, good(), seat_bodies::bad_calls).expect("ended");
        assert_eq!(ended, [(job.me().index(), ())]);
        seat_bodies::end(&job, &store);
    });
}

/// Between two saves at least the interval passes; a rollback goes back further then.
#[test]
fn points_save_when_the_interval_is_over() {
    run_with(sim(3, 0, 2), |job| {
        let store = seat_bodies::open(&job);
        let protect = Protect::new(256).set(3).lose(1).piece(64);
        let protect = protect.every(Interval::Time(Duration::from_secs(10)));
        let inside = job.clone();
        let ended = protect::run(&store, protect, move |seat| {
            let mut saved = 0;
            for round in 0..40u64 {
                inside.sleep(Duration::from_secs(1));
                let point = seat.barrier_point(&round.to_le_bytes())?;
                saved += u32::from(point == protect::Point::Saved);
            }
            Ok::<u32, ProtectError>(saved)
        });
        let ended = ended.expect("ended");
        assert!((3..=4).contains(&ended[0].1), "{ended:?}");
        seat_bodies::end(&job, &store);
    });
}

/// A point that ended by a time limit may still save at the others: the seat is out of step.
#[test]
fn a_seat_that_gave_up_a_point_changes_nothing_any_more() {
    for seed in seeds(4) {
        run_with(sim(3, 0, seed), move |job| {
            let store = seat_bodies::open(&job);
            let inside = job.clone();
            let protect = Protect::new(256).set(3).lose(1).piece(64);
            let protect = protect.patience(Duration::from_secs(2));
            let body = move |seat: &Seat| seat_bodies::gone_on_after_a_timeout(seat, &inside);
            let ended = protect::run(&store, protect, body);
            let Err(ProtectError::SeatFailed { reason, .. }) = ended else { panic!("{ended:?}") };
            assert!(reason.contains("out of step"), "{reason}");
            seat_bodies::end(&job, &store);
        });
    }
}

/// A member that leaves `run` by an error of its own tells the others: none of them waits for it
/// without end.
#[test]
fn a_member_that_gives_up_alone_keeps_no_other_waiting() {
    for seed in seeds(4) {
        let mut options = sim(4, 0, seed).link(Link::Network);
        options.time_limit = Duration::from_secs(1);
        run_with(options, move |job| {
            let store = seat_bodies::open(&job);
            let (inside, stopped) = (job.clone(), MemberId(2));
            let began = job.now();
            let patience = Duration::from_secs(if seed % 2 == 0 { 2 } else { 30 });
            let protect = seat_bodies::options(256, 1).patience(patience);
            let ended = protect::run(&store, protect, move |seat| {
                seat.barrier()?;
                if seat.number() == 1 {
                    // All seats have left the barrier.
                    inside.sleep(Duration::from_millis(500));
                    inside.inject(Fault::Stop(stopped)).expect("stopped");
                    seat.put(2, 0, &[7; 64])?;
                    assert!(seat.flush(2).is_err(), "a stopped member has answered");
                }
                Ok::<(), ProtectError>(())
            });
            if job.me() == MemberId(1) {
                assert!(matches!(ended, Err(ProtectError::Timeout { .. })), "{ended:?}");
                job.inject(Fault::Resume(stopped)).expect("goes on");
                // It stays in the job until the others have ended. The time is virtual: the
                // simulator skips it.
                job.sleep(Duration::from_secs(100));
            } else {
                assert!(ended.is_err(), "without {}", MemberId(1));
                let waited = job.now().since(began);
                assert!(waited < Duration::from_secs(45), "{waited:?}");
            }
            job.leave().expect("left");
        });
    }
}

/// A job of three over a network, in which calls give up after a second.
fn three(seed: u64) -> sim::Options {
    let mut options = sim(3, 0, seed).link(Link::Network);
    options.time_limit = Duration::from_secs(1);
    options
}

fn patient() -> Protect {
    seat_bodies::options(256, 1).set(3).patience(Duration::from_secs(20))
}

/// The holder of a seat is stopped while another seat locks it, and takes the lock when it goes on.
/// Nobody knows of that lock: it does not stay, whether the seat tries again or not.
#[test]
fn a_lock_that_is_taken_after_the_call_gave_up_is_given_back() {
    for seed in seeds(8) {
        run_with(three(seed), move |job| {
            let store = seat_bodies::open(&job);
            let (inside, stopped) = (job.clone(), MemberId(2));
            let kind = if seed % 2 == 0 { LockKind::Exclusive } else { LockKind::Shared };
            let ended = protect::run(&store, patient(), move |seat| {
                seat.barrier()?;
                if seat.number() == 1 {
                    // It knows where the seat is, and all have left the barrier.
                    seat.get(2, 0, &mut [0; 8])?;
                    inside.sleep(Duration::from_millis(500));
                    inside.inject(Fault::Stop(stopped)).expect("stopped");
                    let locked = seat.lock(2, kind);
                    assert!(matches!(locked, Err(ProtectError::Timeout { .. })), "{locked:?}");
                    inside.inject(Fault::Resume(stopped)).expect("goes on");
                    inside.sleep(Duration::from_secs(1));
                    if seed % 4 < 2 {
                        seat.lock(2, kind)?;
                        seat.unlock(2)?;
                    }
                    assert_eq!(seat.unlock(2), Err(ProtectError::NotLocked { seat: 2 }));
                }
                seat.barrier()?;
                seat.lock(2, LockKind::Exclusive)?;
                seat.unlock(2)?;
                seat.barrier()?;
                Ok::<(), ProtectError>(())
            });
            ended.expect("ended");
            seat_bodies::end(&job, &store);
        });
    }
}

/// The holder of a seat is stopped while a lock of it is released, for which another seat waits.
#[test]
fn a_lock_that_is_released_after_the_call_gave_up_is_free() {
    for seed in seeds(8) {
        run_with(three(seed), move |job| {
            let store = seat_bodies::open(&job);
            let (inside, stopped) = (job.clone(), MemberId(2));
            let kind = if seed % 2 == 0 { LockKind::Exclusive } else { LockKind::Shared };
            let ended = protect::run(&store, patient(), move |seat| {
                if seat.number() == 1 {
                    seat.lock(2, kind)?;
                }
                seat.barrier()?;
                if seat.number() == 1 {
                    // By then seat 0 waits for the lock.
                    inside.sleep(Duration::from_millis(500));
                    inside.inject(Fault::Stop(stopped)).expect("stopped");
                    let unlocked = seat.unlock(2);
                    assert!(matches!(unlocked, Err(ProtectError::Timeout { .. })), "{unlocked:?}");
                    inside.inject(Fault::Resume(stopped)).expect("goes on");
                    if seed % 4 < 2 {
                        inside.sleep(Duration::from_secs(seed % 3));
                        assert_eq!(seat.unlock(2), Ok(()));
                        assert_eq!(seat.unlock(2), Err(ProtectError::NotLocked { seat: 2 }));
                    }
                }
                let until = inside.now().after(Duration::from_secs(15));
                if seat.number() == 0 {
                    // The member that is stopped does not answer this seat, either.
                    while let Err(error) = seat.lock(2, LockKind::Exclusive) {
                        let is_late = matches!(error, ProtectError::Timeout { .. });
                        assert!(is_late && inside.now() < until, "{error}");
                    }
                    seat.unlock(2)?;
                }
                seat.barrier()?;
                seat.lock(2, LockKind::Exclusive)?;
                seat.unlock(2)?;
                seat.barrier()?;
                Ok::<(), ProtectError>(())
            });
            ended.expect("ended");
            seat_bodies::end(&job, &store);
        });
    }
}

/// A closure that fails is told at once, also to the other seat of its member, which waits for it.
#[test]
fn a_failure_beside_another_seat_is_told_at_once() {
    for seed in seeds(4) {
        run_with(sim(3, 0, seed), move |job| {
            let store = seat_bodies::open(&job);
            let inside = job.clone();
            let protect = Protect::new(256).set(3).lose(1).piece(64);
            let began = job.now();
            let ended = protect::run(&store, protect, move |seat| {
                // Seat 2 goes to member 0, beside seat 0.
                match (seat.number(), seat.is_replaying()) {
                    (2, false) => inside.inject(Fault::Kill(inside.me())).expect("killed"),
                    (2, true) => return Err("no bread".into()),
                    _ => {}
                }
                seat.barrier()?;
                Ok::<(), Box<dyn std::error::Error>>(())
            });
            let Err(ProtectError::SeatFailed { seat: 2, reason }) = ended else {
                panic!("{ended:?}")
            };
            assert!(reason.contains("no bread"), "{reason}");
            let waited = job.now().since(began);
            assert!(waited < Duration::from_secs(60), "{waited:?}");
            seat_bodies::end(&job, &store);
        });
    }
}

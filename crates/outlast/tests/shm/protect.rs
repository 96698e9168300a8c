//! Seats with real processes that die by SIGKILL in the middle of an engine step, or are stopped.

use crate::members::{SEED, STEP, expect_ok_within, is_member, members, parameter};
use crate::reexecution::this_test;
use crate::seat_bodies::{self, SEATS};
use outlast::engine::Fault;
use outlast::protect::{self, Protect, ProtectError, ProtectResult, Seat, steps};
use outlast::{Job, JoinOptions, MemberId, failpoint};
use outlast_check::seats::{Kind, Program};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// A number below `bound` that depends on the seed.
fn below(seed: u64, salt: u64, bound: u64) -> u64 {
    let mixed = (seed << 8 ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33) % bound
}

/// In a member, plays its part; the members 1 and 3 die at a random step. Otherwise starts the
/// members, for each seed.
fn run(test: &str, seeds: u64, spares: usize, part: fn(&Job, u64)) {
    if is_member(test) {
        let job = outlast::join().expect("a member");
        let seed = parameter(SEED);
        if [1, 3].contains(&job.me().0) {
            let step = 1 + below(seed, u64::from(job.me().0), 8_000);
            job.inject(Fault::DieAtStep(step)).expect("planned");
        }
        return part(&job, seed);
    }
    for seed in 0..seeds {
        let members = members(test, SEATS).spares(spares).env(SEED, seed.to_string());
        let what = format!("{test}, seed {seed}");
        expect_ok_within(members.start().expect("started"), LIMIT, &what);
    }
}

#[test]
fn seat_promise_1_kept() {
    run(this_test!(), 3, 0, |job, _| {
        let store = seat_bodies::open(job);
        let inside = store.clone();
        let protect = seat_bodies::options(256, 2);
        let ended = protect::run(&store, protect, move |seat| seat_bodies::kept(seat, &inside));
        ended.expect("ended");
        seat_bodies::end(job, &store);
    });
}

#[test]
fn seat_promise_2_together() {
    run(this_test!(), 3, 1, |job, _| {
        let store = seat_bodies::open(job);
        let protect = seat_bodies::options(256, 2);
        protect::run(&store, protect, seat_bodies::together).expect("ended");
        seat_bodies::end(job, &store);
    });
}

#[test]
fn seat_promise_4_the_same() {
    run(this_test!(), 4, 1, |job, seed| {
        let store = seat_bodies::open(job);
        let kind = Kind::ALL[seed as usize % 4];
        let program = Program { seats: SEATS, rounds: 20, kind, seed };
        let protect = seat_bodies::options(program.bytes(), 2);
        seat_bodies::run_program(&store, protect, program).expect("ended");
        seat_bodies::end(job, &store);
    });
}

#[test]
fn seat_promise_5_once() {
    run(this_test!(), 3, 0, |job, _| {
        let store = seat_bodies::open(job);
        let protect = seat_bodies::unaligned(seat_bodies::claim_bytes(100), 2);
        let ended = protect::run(&store, protect, |seat| seat_bodies::claim_unaligned(seat, 100));
        ended.expect("ended");
        seat_bodies::end(job, &store);
    });
}

#[test]
fn seat_promise_6_whole_again() {
    let test = this_test!();
    if is_member(test) {
        let job = outlast::join().expect("a member");
        let store = seat_bodies::open(&job);
        let inside = job.clone();
        let protect = seat_bodies::options(512, 1).set(3);
        let ended =
            protect::run(&store, protect, move |seat| seat_bodies::whole_again(seat, &inside, 2));
        ended.expect("ended");
        return seat_bodies::end(&job, &store);
    }
    let outcome = expect_ok_within(members(test, 6).start().expect("started"), LIMIT, test);
    assert_eq!(outcome.deaths().count(), 2);
}

#[test]
fn seat_promise_7_bounded() {
    let test = this_test!();
    if is_member(test) {
        let limit = Duration::from_secs(2);
        let job = JoinOptions::new().time_limit(limit).join().expect("a member");
        return seat_bodies::bounded(&job);
    }
    expect_ok_within(members(test, 4).start().expect("started"), LIMIT, test);
}

#[test]
fn seat_promise_8_honest() {
    let test = this_test!();
    if is_member(test) {
        let job = outlast::join().expect("a member");
        let store = seat_bodies::open(&job);
        let inside = job.clone();
        let protect = Protect::new(512).set(6).lose(1).piece(64).room(2);
        let ended = protect::run(&store, protect, move |seat| seat_bodies::honest(seat, &inside));
        assert!(matches!(ended, Err(ProtectError::SeatLost { .. })), "{ended:?}");
        return seat_bodies::end(&job, &store);
    }
    let outcome = expect_ok_within(members(test, 6).start().expect("started"), LIMIT, test);
    assert_eq!(outcome.deaths().count(), 2);
}

/// In a member, runs a closure with seats of 256 bytes. Otherwise starts four members, of which so
/// many die.
fn run_four(test: &str, deaths: usize, body: fn(&Seat, &Job) -> ProtectResult<u64>) {
    if is_member(test) {
        let job = outlast::join().expect("a member");
        let store = seat_bodies::open(&job);
        let inside = job.clone();
        let protect = seat_bodies::options(256, 1).gather(Duration::from_secs(10));
        protect::run(&store, protect, move |seat| body(seat, &inside)).expect("ended");
        return seat_bodies::end(&job, &store);
    }
    let outcome = expect_ok_within(members(test, 4).start().expect("started"), LIMIT, test);
    assert_eq!(outcome.deaths().count(), deaths);
}

#[test]
fn a_held_seat_is_saved_with_what_others_put_meanwhile() {
    run_four(this_test!(), 1, seat_bodies::put_while_held);
}

#[test]
fn a_lock_of_a_dead_holder_is_free_after_the_rollback() {
    run_four(this_test!(), 1, seat_bodies::lock_of_the_dead);
}

#[test]
fn bad_calls_are_refused_and_change_nothing() {
    run_four(this_test!(), 0, |seat, _| seat_bodies::bad_calls(seat).map(|()| 0));
}

/// A member dies in each step by its name, and the program ends with the bytes of the oracle. In a
/// step of a rollback member 3 has died first.
#[test]
fn a_death_in_each_step_of_seats_changes_no_byte() {
    let test = this_test!();
    if is_member(test) {
        let job = outlast::join().expect("a member");
        let store = seat_bodies::open(&job);
        let step: usize = parameter(STEP);
        let program = Program { seats: SEATS, rounds: 6, kind: Kind::Mixed, seed: step as u64 };
        let protect = seat_bodies::options(program.bytes(), 2);
        let inside = job.clone();
        let ended = protect::run(&store, protect, move |seat| {
            let is_first = !seat.is_replaying();
            if is_first {
                // A generation to go back to, and to free.
                seat.barrier_point(&seat_bodies::note(seat, 0))?;
            }
            let is_of_rollback = step >= steps::Step::Stop as usize;
            if is_first && is_of_rollback && inside.me() == MemberId(3) {
                inside.inject(Fault::DieAtStep(500)).expect("planned");
            }
            // The holder of seat 0 alone decides.
            let victim = if step == steps::Step::Verdict as usize { 0 } else { 1 };
            if is_first && inside.me() == MemberId(victim) {
                steps::die_in(step, 1);
            }
            seat_bodies::play(seat, program)
        });
        ended.expect("ended");
        return seat_bodies::end(&job, &store);
    }
    for (step, name) in steps::NAMES.iter().enumerate().take(steps::UNLOGGED) {
        let running = members(test, SEATS).env(STEP, step.to_string()).start().expect("started");
        let outcome = expect_ok_within(running, LIMIT, name);
        let said = format!("{}{name}", failpoint::LAST_WORDS);
        let is_said =
            (0..SEATS as u32).any(|member| outcome.stderr(MemberId(member)).contains(&said));
        assert!(is_said, "no member died in {name}");
    }
}

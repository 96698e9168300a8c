//! Seats in logged mode with real processes: a member dies by SIGKILL in the middle of an engine
//! step, and the survivors notice nothing.

use crate::members::{SEED, STEP, expect_ok_within, is_member, members, parameter};
use crate::reexecution::this_test;
use crate::seat_bodies::{self, SEATS};
use crate::seat_log_bodies::{self, Death, Kind, Saves};
use outlast::protect::steps::{self, Step};
use outlast::{MemberId, failpoint};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

fn kind_of(seed: u64) -> Kind {
    match seed % 4 {
        0 => Kind::Ring,
        1 => Kind::Increments,
        2 => Kind::Rounds(seed),
        _ => Kind::Outside,
    }
}

/// A number below `bound` that depends on the seed.
fn below(seed: u64, salt: u64, bound: u64) -> u64 {
    seat_log_bodies::mix(seed ^ salt << 40) % bound
}

#[test]
fn seat_promise_3_unnoticed() {
    let test = this_test!();
    if is_member(test) {
        let job = outlast::join().expect("a member");
        let store = seat_bodies::open(&job);
        let seed: u64 = parameter(SEED);
        let seat = below(seed, 1, SEATS as u64) as usize;
        let death = Death { seat, from: 0, after: 1 + below(seed, 2, 400) };
        let kind = kind_of(seed);
        let protect = seat_log_bodies::options(kind, SEATS, Saves::Asked);
        let watch = seat_log_bodies::run(&job, &store, protect, kind, &[death]);
        watch.assert_unnoticed();
        return seat_bodies::end(&job, &store);
    }
    let mut deaths = 0;
    for seed in 0..12u64 {
        let members = members(test, SEATS).spares(seed as usize / 4 % 2);
        let running = members.env(SEED, seed.to_string()).start().expect("started");
        deaths += expect_ok_within(running, LIMIT, &format!("seed {seed}")).deaths().count();
    }
    assert!(deaths >= 6, "{deaths} deaths in 12 runs");
}

/// A member dies in each step of logged mode by its name. In a step of a release the survivors
/// notice nothing. In a step of a recovery, for which member 3 has died first, the death falls
/// back, and the bytes at the end are right.
#[test]
fn a_death_in_each_step_of_logged_mode_changes_no_byte() {
    let test = this_test!();
    // The spare takes the seat of the dead.
    let spare = SEATS as u32;
    if is_member(test) {
        let job = outlast::join().expect("a member");
        let store = seat_bodies::open(&job);
        let step: usize = parameter(STEP);
        let is_of_recovery = step >= Step::Meet as usize;
        let next_holder = Step::LoadLogs as usize..=Step::GoLive as usize;
        let victim = match step {
            // The witness of seat 3 looks at its record.
            _ if step == Step::Settle as usize => 4,
            _ if next_holder.contains(&step) => spare,
            _ => 1,
        };
        if job.me() == MemberId(victim) {
            steps::die_in(step, 1);
        }
        let first = Death { seat: 3, from: 0, after: 200 };
        let deaths = if is_of_recovery { vec![first] } else { Vec::new() };
        let protect = seat_log_bodies::options(Kind::Ring, SEATS, Saves::Asked);
        let watch = seat_log_bodies::run(&job, &store, protect, Kind::Ring, &deaths);
        if !is_of_recovery {
            watch.assert_unnoticed();
        }
        return seat_bodies::end(&job, &store);
    }
    for (step, name) in steps::NAMES.iter().enumerate().skip(steps::UNLOGGED) {
        let running = members(test, SEATS).spares(1).env(STEP, step.to_string());
        let outcome = expect_ok_within(running.start().expect("started"), LIMIT, name);
        let said = format!("{}{name}", failpoint::LAST_WORDS);
        let is_said = (0..=spare).any(|member| outcome.stderr(MemberId(member)).contains(&said));
        assert!(is_said, "no member died in {name}");
    }
}

//! Seats among the ranks of a real mpirun, with real kills and stops: on nodes of two members, or
//! on hosts, where a whole one is lost at once.
//!
//! Under `outlast hosts 3 -- ...` the nodes are hosts of their own.

use crate::members::{SEED, expect_ok_within, is_member, parameter};
use crate::ranks;
use crate::reexecution::this_test;
use crate::seat_bodies;
use crate::seat_log_bodies::{self, Death, Saves};
use outlast::engine::Fault;
use outlast::protect::{self, Protect};
use outlast::{Epoch, Job, JoinOptions, MemberId};
use outlast_check::seats::{Kind, Program};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
/// Two members on each of three nodes.
const MEMBERS: usize = 6;
const NODES: usize = 3;

/// How many steps of the engine a member has made at most when it dies.
const STEPS: u64 = 6_000;

/// The node of a member: its host, or its place among the members of this host.
fn node_of(job: &Job, member: MemberId) -> String {
    let host = job.domain(member).expect("a domain");
    let hosts = (0..job.members() as u32).map(|other| job.domain(MemberId(other)));
    let is_single = hosts.into_iter().all(|other| other.as_ref() == Ok(&host));
    if is_single { (member.index() / (MEMBERS / NODES)).to_string() } else { host }
}

/// The victims of a seed: a member, or all members of its node.
fn is_victim(job: &Job, seed: u64, is_node_lost: bool) -> bool {
    let victim = MemberId(seed as u32 % MEMBERS as u32);
    match is_node_lost {
        true => node_of(job, job.me()) == node_of(job, victim),
        false => job.me() == victim,
    }
}

/// In a member, plays its part, which victims do not survive. Otherwise starts the members for each
/// seed.
fn run(test: &str, seeds: u64, is_node_lost: bool, part: fn(&Job, u64)) {
    if is_member(test) {
        let job = outlast::join().expect("joined");
        let seed = parameter(SEED);
        if is_victim(&job, seed, is_node_lost) {
            let step = 1 + (seed + 1) * 2_654_435_761 % STEPS;
            job.inject(Fault::DieAtStep(step)).expect("planned");
        }
        return part(&job, seed);
    }
    let _turn = ranks::take_turn();
    for seed in 0..seeds {
        let launch = ranks::launch(test, MEMBERS).env(SEED, seed.to_string());
        expect_ok_within(ranks::start(launch), LIMIT, &format!("{test}, seed {seed}"));
    }
}

/// Options with which all members of a node may die at once: on hosts the images have a piece at
/// each node, of which one may be lost. Members of this host are not known to share a node, and two
/// pieces may be lost.
fn apart(job: &Job, bytes: u64) -> Protect {
    let lose = if node_of(job, MemberId(0)) == "0" { 2 } else { 1 };
    seat_bodies::options(bytes, lose).set(NODES + lose - 1)
}

fn kept(job: &Job, _: u64) {
    let store = seat_bodies::open(job);
    let inside = store.clone();
    let ended = protect::run(&store, apart(job, 256), move |seat| seat_bodies::kept(seat, &inside));
    ended.expect("ended");
    seat_bodies::end(job, &store);
}

#[test]
fn seat_promise_1_kept() {
    run(this_test!(), 2, false, kept);
}

#[test]
fn seat_promise_1_kept_when_a_node_is_lost() {
    run(this_test!(), 3, true, kept);
}

fn together(job: &Job, _: u64) {
    let store = seat_bodies::open(job);
    protect::run(&store, apart(job, 256), seat_bodies::together).expect("ended");
    seat_bodies::end(job, &store);
}

#[test]
fn seat_promise_2_together() {
    run(this_test!(), 2, false, together);
}

#[test]
fn seat_promise_2_together_when_a_node_is_lost() {
    run(this_test!(), 3, true, together);
}

/// Unnoticed: each node has a single member, and one of them is lost at any step. The closures of
/// the others are called once, and none of their calls returns an error.
#[test]
fn seat_promise_3_unnoticed_when_a_node_is_lost() {
    let test = this_test!();
    if is_member(test) {
        let job = outlast::join().expect("joined");
        let store = seat_bodies::open(&job);
        let seed: u64 = parameter(SEED);
        let kind = match seed % 4 {
            0 => seat_log_bodies::Kind::Ring,
            1 => seat_log_bodies::Kind::Increments,
            2 => seat_log_bodies::Kind::Rounds(seed),
            _ => seat_log_bodies::Kind::Outside,
        };
        let after = 1 + seat_log_bodies::mix(seed) % 400;
        let death = Death { seat: seed as usize % NODES, from: 0, after };
        let protect = seat_log_bodies::options(kind, NODES, Saves::Asked);
        let watch = seat_log_bodies::run(&job, &store, protect, kind, &[death]);
        watch.assert_unnoticed();
        return seat_bodies::end(&job, &store);
    }
    let _turn = ranks::take_turn();
    let is_on_hosts = ranks::nodes() == "nodes";
    let mut deaths = 0;
    for seed in 0..6u64 {
        let launch = ranks::launch(test, NODES).env(SEED, seed.to_string());
        let launch = if is_on_hosts { launch } else { launch.env("OUTLAST_MPI_PATH", "groups:1") };
        let what = format!("{test}, seed {seed}");
        deaths += expect_ok_within(ranks::start(launch), LIMIT, &what).deaths().count();
    }
    assert!(deaths >= 3, "{deaths} deaths in 6 runs");
}

fn the_same(job: &Job, seed: u64, protect: impl FnOnce(u64) -> Protect) {
    let store = seat_bodies::open(job);
    let kind = Kind::ALL[seed as usize % 4];
    let program = Program { seats: MEMBERS, rounds: 12, kind, seed };
    seat_bodies::run_program(&store, protect(program.bytes()), program).expect("ended");
    seat_bodies::end(job, &store);
}

#[test]
fn seat_promise_4_the_same() {
    run(this_test!(), 4, false, |job, seed| {
        the_same(job, seed, |bytes| seat_bodies::options(bytes, 2));
    });
}

#[test]
fn seat_promise_4_the_same_when_a_node_is_lost() {
    run(this_test!(), 4, true, |job, seed| the_same(job, seed, |bytes| apart(job, bytes)));
}

#[test]
fn seat_promise_7_bounded() {
    let test = this_test!();
    if is_member(test) {
        let limit = Duration::from_secs(2);
        let job = JoinOptions::new().time_limit(limit).join().expect("joined");
        return seat_bodies::bounded(&job);
    }
    let _turn = ranks::take_turn();
    expect_ok_within(ranks::start(ranks::launch(test, 4)), LIMIT, test);
}

/// Bounded: all members of a node die while the others wait for them in a barrier. The wait ends by
/// a rollback when the loss of the node is known, which takes a third of the time limit and some
/// seconds at most.
#[test]
fn seat_promise_7_bounded_when_a_node_is_lost() {
    let test = this_test!();
    if is_member(test) {
        let limit = Duration::from_secs(15);
        let job = JoinOptions::new().time_limit(limit).join().expect("joined");
        let (store, inside) = (seat_bodies::open(&job), job.clone());
        let is_dying = is_victim(&job, parameter(SEED), true);
        let ended = protect::run(&store, apart(&job, 256), move |seat| {
            seat.barrier()?;
            if inside.epoch() == Epoch(0) {
                if is_dying {
                    inside.inject(Fault::Kill(inside.me())).expect("killed");
                }
                let began = inside.now();
                // A victim may have passed the first barrier later than this member came here.
                let waited = (0..1000).find_map(|_| seat.barrier().err());
                let took = inside.now().since(began);
                assert_eq!(waited, Some(protect::ProtectError::RolledBack));
                assert!(took < 2 * limit, "{took:?}");
                return Err(protect::ProtectError::RolledBack);
            }
            seat.barrier()?;
            Ok(inside.epoch().0)
        });
        let ended = ended.expect("ended");
        assert!(ended.iter().all(|(_, deaths)| *deaths > 0), "{ended:?}");
        return seat_bodies::end(&job, &store);
    }
    let _turn = ranks::take_turn();
    for seed in 0..2u64 {
        let launch = ranks::launch(test, MEMBERS).env(SEED, seed.to_string());
        let what = format!("{test}, seed {seed}");
        let outcome = expect_ok_within(ranks::start(launch), LIMIT, &what);
        assert_eq!(outcome.deaths().count(), MEMBERS / NODES, "{what}");
    }
}

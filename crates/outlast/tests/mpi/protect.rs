//! Seats among the ranks of a real mpirun, with real kills and stops: on nodes of two members, or
//! on hosts, where a whole one is lost at once.
//!
//! Under `outlast hosts 3 -- ...` the nodes are hosts of their own.

use crate::members::{SEED, expect_ok_within, is_member, parameter};
use crate::ranks;
use crate::reexecution::this_test;
use crate::seat_bodies;
use outlast::engine::Fault;
use outlast::protect::{self, Protect};
use outlast::{Job, JoinOptions, MemberId};
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

#[test]
fn seat_promise_1_kept() {
    run(this_test!(), 2, false, |job, _| {
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
    run(this_test!(), 2, false, |job, _| {
        let store = seat_bodies::open(job);
        let protect = seat_bodies::options(256, 2);
        protect::run(&store, protect, seat_bodies::together).expect("ended");
        seat_bodies::end(job, &store);
    });
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

/// A whole node dies at once: the images have a piece at each node, of which one may be lost.
#[test]
fn seat_promise_4_the_same_when_a_node_is_lost() {
    run(this_test!(), 4, true, |job, seed| {
        let lose = if node_of(job, MemberId(0)) == "0" { 2 } else { 1 };
        the_same(job, seed, |bytes| seat_bodies::options(bytes, lose).set(NODES + lose - 1));
    });
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

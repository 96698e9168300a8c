//! Every scenario on shm: members are processes, deaths are SIGKILL, stops are SIGSTOP. Each run
//! has a time limit, and no run is repeated.

use outlast_conformance::{scenario, scenarios, shm};
use std::path::Path;

fn run(name: &str) {
    let scenario = scenario(name).expect("a scenario of that name");
    let program = Path::new(env!("CARGO_BIN_EXE_outlast-conformance"));
    if let Err(failure) = shm::run(program, scenario, 1) {
        panic!("{failure}\n  again: {} shm --scenario {name} --seeds 1..2", program.display());
    }
}

outlast_conformance::tests! {
    job_of_one => "job-of-one",
    one_sided_pairs => "one-sided-pairs",
    one_sided_order => "one-sided-order",
    one_sided_in_flight => "one-sided-in-flight",
    atomics_add_up => "atomics-add-up",
    words_are_not_torn => "words-are-not-torn",
    words_are_not_torn_unaligned => "words-are-not-torn-unaligned",
    messages_in_order => "messages-in-order",
    messages_large_and_empty => "messages-large-and-empty",
    messages_to_a_busy_receiver => "messages-to-a-busy-receiver",
    messages_to_a_sleeping_receiver => "messages-to-a-sleeping-receiver",
    messages_mutual_flood => "messages-mutual-flood",
    messages_to_a_member_that_never_receives => "messages-to-a-member-that-never-receives",
    bell_and_park => "bell-and-park",
    no_lost_wakeups => "no-lost-wakeups",
    grow_while_others_read => "grow-while-others-read",
    out_of_memory => "out-of-memory",
    bad_input => "bad-input",
    activities => "activities",
    services => "services",
    operations_after_a_death => "operations-after-a-death",
    operations_around_a_death => "operations-around-a-death",
    operations_pending_at_a_death => "operations-pending-at-a-death",
    writer_dies_mid_put => "writer-dies-mid-put",
    adder_dies_mid_add => "adder-dies-mid-add",
    messages_of_the_dead => "messages-of-the-dead",
    sender_dies_mid_message => "sender-dies-mid-message",
    receiver_dies_in_a_flood => "receiver-dies-in-a-flood",
    lowest_dies => "lowest-dies",
    two_deaths_at_once => "two-deaths-at-once",
    all_but_one_die => "all-but-one-die",
    death_while_parked => "death-while-parked",
    ends_without_leaving => "ends-without-leaving",
    view_rules => "view-rules",
    stale_is_refused => "stale-is-refused",
    past_is_refused => "past-is-refused",
    epoch_before_action => "epoch-before-action",
    spares_activated => "spares-activated",
    leaving => "leaving",
    fence_kills_the_living => "fence-kills-the-living",
    fence_oneself => "fence-oneself",
    stopped_is_not_dead => "stopped-is-not-dead",
    stopped_is_not_dead_slow => "stopped-is-not-dead-slow",
    writer_stopped_mid_put => "writer-stopped-mid-put",
    stopped_does_not_answer => "stopped-does-not-answer",
    fenced_while_stopped => "fenced-while-stopped",
    wakes_after_its_expected_death => "wakes-after-its-expected-death",
    launcher_dies => "launcher-dies",
    storm => "storm",
    forty_members => "forty-members",
}

#[test]
fn every_scenario_has_a_test() {
    let all: Vec<&str> = scenarios().iter().map(|scenario| scenario.name).collect();
    assert_eq!(TESTED, all);
}

/// A scenario that fails is reported as failed, with the output of its members.
#[test]
fn a_program_that_is_no_member_fails() {
    let scenario = scenario("one-sided-pairs").expect("a scenario of that name");
    let failure = shm::run(Path::new("/bin/false"), scenario, 1).expect_err("/bin/false fails");
    assert!(failure.contains("a member failed"), "{failure}");
    let failure =
        shm::run(Path::new("/bin/true"), self::scenario("lowest-dies").expect("known"), 1);
    assert!(
        failure.expect_err("no member was killed").contains("0 members were killed instead of 1")
    );
}

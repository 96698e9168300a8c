//! The scenarios of the mpi engine, under a real mpirun: the mpirun that the variable `MPIRUN`
//! names, or that `cargo xtask mpi` installed, or that is in `PATH`.

use outlast_conformance::{mpi, scenario, scenarios};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

fn mpirun() -> PathBuf {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/mpi/bin/mpirun");
    match std::env::var_os("MPIRUN") {
        Some(named) => named.into(),
        None if installed.exists() => installed,
        None => "mpirun".into(),
    }
}

/// A single job at a time: the processes of mpirun take all cores of a small machine.
static SINGLE_JOB: Mutex<()> = Mutex::new(());

/// All scenarios run with messages: with shared memory they would test the shm engine.
fn run(name: &str) {
    run_by("messages", name);
}

fn run_by(path: &str, name: &str) {
    let scenario = scenario(name).expect("a scenario of that name");
    let program = Path::new(env!("CARGO_BIN_EXE_outlast-conformance"));
    let _guard = SINGLE_JOB.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Err(failure) = mpi::run(&mpirun(), program, scenario, 1, path) {
        let (program, mpirun) = (program.display(), mpirun());
        panic!(
            "{failure}\n  again: {program} mpi --scenario {name} --seeds 1..2 --path {path} \
             --mpirun {}",
            mpirun.display()
        );
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
    writer_stopped_mid_put => "writer-stopped-mid-put",
    stopped_does_not_answer => "stopped-does-not-answer",
    fenced_while_stopped => "fenced-while-stopped",
    wakes_after_its_expected_death => "wakes-after-its-expected-death",
    storm => "storm",
}

#[test]
fn every_scenario_that_runs_on_mpi_has_a_test() {
    let part: Vec<&str> = scenarios().iter().filter(|s| s.runs_on_mpi()).map(|s| s.name).collect();
    assert_eq!(TESTED, part);
}

/// Members of a node, under mpirun: joining, deaths, stops and leaving work as on the shm engine.
#[test]
fn members_of_a_node_share_their_memory() {
    for name in
        ["one-sided-pairs", "two-deaths-at-once", "writer-stopped-mid-put", "leaving", "storm"]
    {
        run_by("nodes", name);
    }
}

/// A scenario that fails is reported as failed, even though the status of mpirun means nothing.
#[test]
fn a_program_that_is_no_member_fails() {
    let scenario = scenario("one-sided-pairs").expect("a scenario of that name");
    let _guard = SINGLE_JOB.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let failure = mpi::run(&mpirun(), Path::new("/bin/true"), scenario, 1, "nodes")
        .expect_err("no member finished");
    assert!(failure.contains("0 members began and 0 finished"), "{failure}");
}

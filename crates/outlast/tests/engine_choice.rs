//! The engine that a process gets, in builds without the mpi engine. Each case runs in a process of
//! its own, because the environment decides: the test binary is started again, joins, and prints
//! the outcome.
//!
//! These tests are a small binary of their own, since the gate builds it twice: builds without the
//! mpi engine have them alone.
#![cfg(not(feature = "mpi"))]

#[path = "support/reexecution.rs"]
mod reexecution;

use reexecution::{is_reexecuted, this_test};

/// Whether this process was started by the named test. If so, it joins and prints the outcome.
fn joins_for(test: &str) -> bool {
    let is_joiner = is_reexecuted(test);
    if is_joiner {
        match outlast::join() {
            Ok(job) => println!("joined {job:?}"),
            Err(error) => println!("refused: {error}"),
        }
    }
    is_joiner
}

/// The output of a process that joins in this environment.
fn join_with(test: &str, environment: &[(&str, &str)]) -> String {
    let output = reexecution::command(test)
        .env_remove("OUTLAST_ENGINE")
        .env_remove("OUTLAST_JOB")
        .envs(environment.iter().copied())
        .output()
        .expect("the process starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    reexecution::expect_ran(test, &said);
    said
}

#[test]
fn a_build_without_mpi_names_the_feature() {
    let test = this_test!();
    if joins_for(test) {
        return;
    }
    for environment in
        [[("OUTLAST_ENGINE", "mpi")], [("OMPI_COMM_WORLD_SIZE", "4")], [("PMIX_RANK", "0")]]
    {
        let said = join_with(test, &environment);
        assert!(
            said.contains("refused") && said.contains("cargo feature `mpi`"),
            "{environment:?}: {said}"
        );
    }
}

#[test]
fn under_mpirun_another_engine_can_still_be_chosen() {
    let test = this_test!();
    if joins_for(test) {
        return;
    }
    let said = join_with(test, &[("OMPI_COMM_WORLD_SIZE", "4"), ("OUTLAST_ENGINE", "shm")]);
    assert!(said.contains("joined"), "{said}");
}

#[test]
fn an_unknown_engine_is_named() {
    let test = this_test!();
    if joins_for(test) {
        return;
    }
    let said = join_with(test, &[("OUTLAST_ENGINE", "tcp")]);
    assert!(said.contains("refused") && said.contains("`tcp`"), "{said}");
}

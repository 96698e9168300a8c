//! Which engine a process gets, in builds without the mpi engine. Each case is a process of its own, since the
//! environment decides.

#![cfg(not(feature = "mpi"))]

use std::process::Command;

/// The test that the processes run, and the variable that makes it do something.
const MEMBER: &str = "member";
const ASKED: &str = "OUTLAST_TEST_JOIN";

/// What joining says in an environment.
fn join_with(environment: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().expect("this test's own path"))
        .args(["--ignored", "--exact", MEMBER, "--nocapture"])
        .env_remove("OUTLAST_ENGINE")
        .env_remove("OUTLAST_JOB")
        .env(ASKED, "1")
        .envs(environment.iter().copied())
        .output()
        .expect("the process starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
#[ignore = "runs inside the processes that the other tests start"]
fn member() {
    if std::env::var_os(ASKED).is_some() {
        match outlast::join() {
            Ok(job) => println!("joined {job:?}"),
            Err(error) => println!("refused: {error}"),
        }
    }
}

#[test]
fn a_build_without_mpi_names_the_feature() {
    for environment in [[("OUTLAST_ENGINE", "mpi")], [("OMPI_COMM_WORLD_SIZE", "4")], [("PMIX_RANK", "0")]] {
        let said = join_with(&environment);
        assert!(said.contains("refused") && said.contains("cargo feature `mpi`"), "{environment:?}: {said}");
    }
}

#[test]
fn under_mpirun_another_engine_can_still_be_chosen() {
    let said = join_with(&[("OMPI_COMM_WORLD_SIZE", "4"), ("OUTLAST_ENGINE", "shm")]);
    assert!(said.contains("joined"), "{said}");
}

#[test]
fn an_unknown_engine_is_named() {
    let said = join_with(&[("OUTLAST_ENGINE", "tcp")]);
    assert!(said.contains("refused") && said.contains("`tcp`"), "{said}");
}

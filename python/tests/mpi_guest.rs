//! The store as a guest of a program with mpi4py, under a real mpirun, with a rank that dies.

mod package;

use outlast::MemberId;
use outlast::launch::{Launch, Mpirun, Output};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn a_store_is_a_guest_of_mpi4py_programs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let installed = folder.join("../target/mpi/bin");
    let own = std::env::current_exe().expect("own path");
    let package = package::link_package(own.parent().expect("a folder"));
    let launch = Launch::new(3)
        .program(installed.join("python"))
        .args([folder.join("tests/guest.py")])
        .env("PYTHONPATH", package.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output(Output::Capture)
        .mpirun(Mpirun::new(installed.join("mpirun")));
    let outcome = launch.start().expect("mpirun starts; `cargo xtask mpi` installs it").wait(LIMIT);
    let said = |member| outcome.stdout(MemberId(member)) + &outcome.stderr(MemberId(member));
    let said: String = (0..3).map(said).collect();
    assert!(!outcome.timed_out, "hung: {outcome}{said}");
    for member in 0..2 {
        assert_eq!(outcome.stdout(MemberId(member)), "ok\n", "{outcome}{said}");
    }
}

//! The store as a guest of a program with mpi4py, under a real mpirun, with a rank that dies.

#[path = "../../crates/outlast-c/tests/mpi_support/mod.rs"]
mod mpi_support;
mod package;

use mpi_support::{check_heat, library_folder, of_mpi, run, said};
use outlast::MemberId;
use outlast::launch::Launch;
use std::path::Path;

/// Starts ranks of a Python program, with the mpi4py of `cargo xtask mpi` and this package.
fn launch(ranks: usize, package: &Path, program: &str) -> Launch {
    Launch::new(ranks)
        .program(of_mpi("python"))
        .args([Path::new(env!("CARGO_MANIFEST_DIR")).join(program)])
        .env("PYTHONPATH", package)
        .env("PYTHONDONTWRITEBYTECODE", "1")
}

#[test]
fn a_store_is_a_guest_of_mpi4py_programs() {
    let package = package::link_package(&library_folder());
    let outcome = run(launch(3, package.path(), "tests/guest.py"));
    for member in 0..2 {
        assert_eq!(outcome.stdout(MemberId(member)), "ok\n", "{outcome}{}", said(&outcome));
    }
}

#[test]
fn the_heat_equation_with_mpi4py_is_bit_for_bit_right_when_ranks_die() {
    let package = package::link_package(&library_folder());
    check_heat(|ranks| launch(ranks, package.path(), "../examples/mpi/heat.py"));
}

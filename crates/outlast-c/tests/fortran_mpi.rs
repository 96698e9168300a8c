//! Fortran programs under a real mpirun: the heat equation with ranks that die, and a communicator
//! of the ranks that live.

mod mpi_support;

use mpi_support::{check_heat, library_folder, of_mpi, run, said};
use outlast::MemberId;
use outlast::launch::Launch;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What Open MPI's compiler wrapper passes to the linker. Its wrapper for Fortran is not in the
/// package of PyPI.
fn flags_of_mpi() -> Vec<String> {
    let output = Command::new(of_mpi("mpicc")).arg("--showme:link").output();
    let output = output.expect("mpicc starts; `cargo xtask mpi` installs it");
    String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_string).collect()
}

/// Compiles a program with the modules and those of MPI.
fn compile(folder: &Path, source: &str) -> PathBuf {
    let program = folder.join("program");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources =
        ["fortran/outlast.f90", "tests/fortran/mpi.f90", "fortran/outlast_mpi.f90", source];
    let library = library_folder();
    let output = Command::new("gfortran")
        .args(["-std=f2018", "-Wall", "-Wextra", "-Wno-compare-reals", "-Werror", "-J"])
        .arg(folder)
        .args(["-fcheck=bounds,mem,pointer", "-g", "-o"])
        .arg(&program)
        .args(sources.map(|source| root.join(source)))
        .arg(format!("-L{}", library.display()))
        .arg(format!("-Wl,--disable-new-dtags,-rpath,{}", library.display()))
        .arg("-loutlast_c")
        .args(flags_of_mpi())
        .output()
        .expect("gfortran; type: cargo xtask fortran");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

#[test]
fn the_heat_equation_in_fortran_is_bit_for_bit_right_when_ranks_die() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(folder.path(), "../../examples/mpi/heat.f90");
    check_heat(|ranks| Launch::new(ranks).program(&program));
}

#[test]
fn a_program_in_fortran_gets_a_communicator_of_the_living() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(folder.path(), "tests/fortran/shrunken.f90");
    let outcome = run(Launch::new(3).program(&program));
    for member in 0..3 {
        let output = outcome.stdout(MemberId(member));
        assert_eq!(output, "3 ranks\n", "{outcome}{}", said(&outcome));
    }
}

//! The store as a guest of MPI programs in C, under a real mpirun, with a rank that dies.

mod mpi_support;

use mpi_support::{check_heat, library_folder, of_mpi, run, said};
use outlast::MemberId;
use outlast::launch::Launch;
use std::path::Path;
use std::process::Command;

/// Compiles a program of the tests or of the examples.
fn compile(source: &str, program: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = library_folder();
    let output = Command::new(of_mpi("mpicc"))
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-std=c11", "-D_DEFAULT_SOURCE", "-o"])
        .arg(program)
        .arg(root.join(source))
        .arg(format!("-I{}", root.join("include").display()))
        .arg(format!("-L{}", library.display()))
        .arg(format!("-Wl,--disable-new-dtags,-rpath,{}", library.display()))
        .arg("-loutlast_c")
        .output()
        .expect("mpicc starts; `cargo xtask mpi` installs it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_store_is_a_guest_of_c_programs() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("guest");
    compile("tests/c/guest.c", &program);
    // The store disturbs nothing of the program: communicator, error handlers, tags, exit.
    let outcome = run(Launch::new(4).program(&program).args(["guest"]));
    for member in 0..3 {
        assert_eq!(outcome.stdout(MemberId(member)), "ok\n", "{outcome}{}", said(&outcome));
    }
    // The exit status is mpirun's affair: the first rank that exits without MPI_Finalize may end
    // the other ranks.
    assert_eq!(outcome.stdout(MemberId(3)), "", "{outcome}{}", said(&outcome));
    for (mode, missing) in [
        ("fatal", "MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN)"),
        ("single", "without MPI_THREAD_MULTIPLE; ask for it in MPI_Init_thread"),
    ] {
        let outcome = run(Launch::new(2).program(&program).args([mode]));
        assert!(outcome.stdout(MemberId(1)).contains(missing), "{outcome}{}", said(&outcome));
    }
}

#[test]
fn the_heat_equation_over_mpi_is_bit_for_bit_right_when_ranks_die() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("heat");
    compile("../../examples/mpi/heat.c", &program);
    check_heat(|ranks| Launch::new(ranks).program(&program));
}

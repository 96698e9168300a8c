//! The store as a guest of MPI programs in C, under a real mpirun, with a rank that dies.

use outlast::MemberId;
use outlast::launch::{Launch, Mpirun, Outcome, Output};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// A program of Open MPI: from `cargo xtask mpi` if that has installed it, otherwise from PATH.
fn of_mpi(program: &str) -> PathBuf {
    let installed =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/mpi/bin").join(program);
    if installed.exists() { installed } else { program.into() }
}

/// The folder in which cargo puts the library under test.
fn library_folder() -> PathBuf {
    let own = std::env::current_exe().expect("own path");
    own.parent().expect("a folder").to_path_buf()
}

fn compile(program: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = library_folder();
    let output = Command::new(of_mpi("mpicc"))
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-std=c11", "-D_DEFAULT_SOURCE", "-o"])
        .arg(program)
        .arg(root.join("tests/c/guest.c"))
        .arg(format!("-I{}", root.join("include").display()))
        .arg(format!("-L{}", library.display()))
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-loutlast_c")
        .output()
        .expect("mpicc starts; `cargo xtask mpi` installs it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn run(ranks: usize, program: &Path, arguments: &[&Path]) -> Outcome {
    let launch = Launch::new(ranks).program(program).args(arguments).output(Output::Capture);
    let mut running = launch.mpirun(Mpirun::new(of_mpi("mpirun"))).start().expect("mpirun starts");
    let outcome = running.wait(LIMIT);
    assert!(!outcome.timed_out, "hung: {outcome}{}", said(&outcome));
    outcome
}

fn said(outcome: &Outcome) -> String {
    let each =
        outcome.members.iter().map(|end| outcome.stdout(end.member) + &outcome.stderr(end.member));
    each.collect()
}

#[test]
fn a_store_is_a_guest_of_c_programs() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("guest");
    compile(&program);
    // The store disturbs nothing of the program: communicator, error handlers, tags, exit.
    let outcome = run(4, &program, &[Path::new("guest")]);
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
        let outcome = run(2, &program, &[Path::new(mode)]);
        assert!(outcome.stdout(MemberId(1)).contains(missing), "{outcome}{}", said(&outcome));
    }
}

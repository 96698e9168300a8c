//! C programs, compiled with the C compiler of this machine against the header, as the members of a
//! job.

mod support;

use outlast::MemberId;
use outlast::launch::{Launch, Output};
use std::path::Path;
use std::process::Command;
use support::{LIMIT, kill_the_last_of, library_folder};

fn compile(source: &str, program: &Path) {
    compile_with("cc", &["-std=c11", "-D_DEFAULT_SOURCE"], &format!("tests/c/{source}"), program);
}

/// Compiles a C++ program of the tests or of the examples.
fn compile_cpp(source: &str, program: &Path) {
    compile_with("c++", &["-std=c++17", "-pedantic"], source, program);
}

fn compile_with(compiler: &str, options: &[&str], source: &str, program: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = library_folder();
    let output = Command::new(compiler)
        .args(options)
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(program)
        .arg(root.join(source))
        .arg(format!("-I{}", root.join("include").display()))
        .arg(format!("-L{}", library.display()))
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-loutlast_c")
        .output()
        .expect("a compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn c_programs_outlast_a_member() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("members");
    compile("members.c", &program);
    kill_the_last_of(Launch::new(4).program(&program));
}

#[test]
fn cpp_programs_outlast_a_member() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("members");
    compile_cpp("tests/cpp/members.cpp", &program);
    kill_the_last_of(Launch::new(4).program(&program));
}

#[test]
fn the_pool_in_cpp_counts_each_task_once_when_a_worker_dies() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("pool");
    compile_cpp("../../examples/cpp/pool.cpp", &program);
    for victim in 0..4 {
        let launch = Launch::new(4).program(&program).args(["100", &victim.to_string()]);
        let outcome = launch.output(Output::Capture).start().expect("started").wait(LIMIT);
        assert!(outcome.survivors_ok(), "{outcome}");
        for member in (0..4).filter(|member| *member != victim) {
            let said = outcome.stdout(MemberId(member));
            assert!(said.starts_with("9592 primes below 100000; "), "{said}");
        }
    }
}

#[test]
fn c_programs_recover_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("recover");
    compile("recover.c", &program);
    kill_the_last_of(Launch::new(4).program(&program));
}

/// The heat equation with region checkpoints: whichever member dies, and when, the result is that
/// of a single member, bit for bit; and few lines of the program are for that.
#[test]
fn the_heat_equation_in_c_is_bit_for_bit_right_when_members_die() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("heat");
    compile_with("cc", &["-std=c11", "-D_DEFAULT_SOURCE"], "../../examples/c/heat.c", &program);
    let run = |members: usize, arguments: &[&str]| {
        let launch = Launch::new(members).program(&program).args(arguments);
        let outcome = launch.output(Output::Capture).start().expect("started").wait(LIMIT);
        let said: String = outcome.members.iter().map(|end| outcome.stderr(end.member)).collect();
        assert!(outcome.survivors_ok(), "{outcome}{said}");
        outcome
    };
    let expected = run(1, &["100"]).stdout(MemberId(0));
    assert_eq!(expected.trim().len(), 16, "{expected}");
    for (victim, step) in [(3, "0"), (0, "37"), (2, "60"), (1, "99")] {
        let outcome = run(4, &["100", &victim.to_string(), step]);
        assert_eq!(outcome.deaths().count(), 1, "{outcome}");
        for member in (0..4).filter(|member| *member != victim).map(MemberId) {
            assert_eq!(outcome.stdout(member), expected, "{member}, {victim} died in {step}");
        }
    }
    let source = include_str!("../../../examples/c/heat.c");
    let added = source.lines().filter(|line| line.ends_with("/* + */")).count();
    assert!((10..=30).contains(&added), "{added} lines were added");
}

#[test]
fn the_header_compiles_alone_as_plain_c() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/outlast.h");
    for standard in ["-std=c99", "-std=c11"] {
        let output = Command::new("cc")
            .args([
                "-fsyntax-only",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-pedantic",
                standard,
                "-x",
                "c",
            ])
            .arg(&header)
            .output()
            .expect("a C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_header_of_cpp_compiles_with_and_without_exceptions() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    for option in ["-fexceptions", "-fno-exceptions", "-std=c++20"] {
        let output = Command::new("c++")
            .args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-pedantic", "-std=c++17"])
            .args([option, "-x", "c++", "-include", "outlast.hpp", "/dev/null"])
            .arg(format!("-I{}", folder.display()))
            .output()
            .expect("a C++ compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_codes_of_the_library_are_equal_to_the_codes_of_the_header() {
    use outlast_c::Status;
    let header = include_str!("../include/outlast.h");
    let all = [
        ("OUTLAST_OK", Status::Ok),
        ("OUTLAST_ABSENT", Status::Absent),
        ("OUTLAST_DIED", Status::Died),
        ("OUTLAST_INVALID", Status::Invalid),
        ("OUTLAST_NOT_JOINED", Status::NotJoined),
        ("OUTLAST_DATA_LOST", Status::DataLost),
        ("OUTLAST_TIMEOUT", Status::Timeout),
        ("OUTLAST_CONFLICT", Status::Conflict),
        ("OUTLAST_ABORTED", Status::Aborted),
        ("OUTLAST_OVER", Status::Over),
        ("OUTLAST_LOCKED", Status::Locked),
        ("OUTLAST_OUT_OF_MEMORY", Status::OutOfMemory),
        ("OUTLAST_TOO_SMALL", Status::TooSmall),
        ("OUTLAST_WRONG_TYPE", Status::WrongType),
        ("OUTLAST_CLOSED", Status::Closed),
        ("OUTLAST_CORRUPT", Status::Corrupt),
        ("OUTLAST_FAILED", Status::Failed),
        ("OUTLAST_NESTED", Status::Nested),
        ("OUTLAST_REVOKED", Status::Revoked),
        ("OUTLAST_RECOVERY_FAILED", Status::RecoveryFailed),
        ("OUTLAST_ALREADY_OPEN", Status::AlreadyOpen),
    ];
    for (name, status) in all {
        let line = header.lines().find_map(|line| line.trim().strip_prefix(&format!("{name} = ")));
        let code = line.map(|line| line.trim_end_matches(','));
        assert_eq!(code, Some((status as i32).to_string().as_str()), "{name}");
    }
}

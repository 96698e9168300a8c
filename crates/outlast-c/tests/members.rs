//! C programs, compiled with the C compiler of this machine against the header, and Python programs
//! as the members of a job.

use outlast::MemberId;
use outlast::launch::{Launch, Output};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// The folder in which cargo puts the library under test.
fn library_folder() -> PathBuf {
    let own = std::env::current_exe().expect("own path");
    own.parent().expect("a folder").to_path_buf()
}

fn compile(source: &str, program: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = library_folder();
    let output = Command::new("cc")
        .args(["-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(program)
        .arg(root.join("tests/c").join(source))
        .arg(format!("-I{}", root.join("include").display()))
        .arg(format!("-L{}", library.display()))
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-loutlast_c")
        .output()
        .expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Starts four members, kills the last member when it is ready, and expects the survivors to
/// finish.
fn kill_the_last_of(launch: Launch) {
    let mut running = launch.output(Output::Capture).start().expect("started");
    let last = MemberId(3);
    let until = Instant::now() + LIMIT;
    while !running.output(last).stdout.ends_with(b"ready\n") {
        if Instant::now() >= until || running.output(last).stderr.contains(&b'\n') {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    running.kill(last).expect("killed");
    let outcome = running.wait(LIMIT);
    let said: String = outcome.members.iter().map(|end| outcome.stderr(end.member)).collect();
    assert!(outcome.survivors_ok(), "{outcome}{said}");
    assert_eq!(outcome.stdout(last), "ready\n", "{outcome}{said}");
    for member in 0..3 {
        assert_eq!(outcome.stdout(MemberId(member)), "ok\n", "{said}");
    }
}

#[test]
fn c_programs_outlast_a_member() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("members");
    compile("members.c", &program);
    kill_the_last_of(Launch::new(4).program(&program));
}

#[test]
fn c_programs_recover_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("recover");
    compile("recover.c", &program);
    kill_the_last_of(Launch::new(4).program(&program));
}

fn python(members: usize, program: &str) -> Launch {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python");
    Launch::new(members)
        .program("python3")
        .args([python.join("tests").join(program)])
        .env("PYTHONPATH", &python)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("OUTLAST_LIBRARY", library_folder().join("liboutlast_c.so"))
}

#[test]
fn python_programs_outlast_a_member() {
    kill_the_last_of(python(4, "members.py"));
}

#[test]
fn python_programs_recover_together() {
    kill_the_last_of(python(4, "recover.py"));
}

#[test]
fn python_stores_all_bytes_of_buffers_and_refuses_other_types() {
    let mut running = python(1, "buffers.py").output(Output::Capture).start().expect("started");
    let outcome = running.wait(LIMIT);
    let (only, said) = (MemberId(0), outcome.stderr(MemberId(0)));
    assert!(outcome.survivors_ok(), "{outcome}{said}");
    assert_eq!(outcome.stdout(only), "ok\n", "{said}");
}

#[test]
fn the_python_package_has_the_version_of_the_library() {
    let line = format!("version = \"{}\"", env!("CARGO_PKG_VERSION"));
    let project = include_str!("../../../python/pyproject.toml");
    assert!(project.lines().any(|found| found.starts_with(&line)), "no {line} in pyproject.toml");
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
    ];
    for (name, status) in all {
        let line = header.lines().find_map(|line| line.trim().strip_prefix(&format!("{name} = ")));
        let code = line.map(|line| line.trim_end_matches(','));
        assert_eq!(code, Some((status as i32).to_string().as_str()), "{name}");
    }
}

//! C programs, compiled with the C compiler of this machine against the header, as the members of a
//! job.

mod support;

use outlast::MemberId;
use outlast::launch::{Launch, Output};
use std::path::Path;
use support::{LIMIT, check_bad, check_log, kill_the_last_of, run_alone};

fn compile(source: &str, program: &Path) {
    compile_with("cc", &["-std=c11", "-D_DEFAULT_SOURCE"], &format!("tests/c/{source}"), program);
}

/// Compiles a C++ program of the tests or of the examples.
fn compile_cpp(source: &str, program: &Path) {
    compile_with("c++", &["-std=c++17", "-pedantic"], source, program);
}

fn compile_with(compiler: &str, options: &[&str], source: &str, program: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    support::compile(compiler, options, &source, program);
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
fn cpp_programs_shrink_communicators_and_windows_after_a_death() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("windows");
    compile_cpp("tests/cpp/windows.cpp", &program);
    kill_the_last_of(Launch::new(4).program(&program).args([folder.path().join("snapshots")]));
}

#[test]
fn a_seat_and_an_image_in_cpp_outlast_their_member() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("seats");
    compile_cpp("tests/cpp/seats.cpp", &program);
    kill_the_last_of(Launch::new(4).program(&program));
}

#[test]
fn cpp_programs_recover_together_and_learn_of_losses() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("recover");
    compile_cpp("tests/cpp/recover.cpp", &program);
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

#[test]
fn c_programs_make_the_calls_for_task_runtimes() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("calls");
    compile("calls.c", &program);
    kill_the_last_of(Launch::new(4).program(&program).args([folder.path().join("snapshots")]));
}

#[test]
fn c_programs_shrink_communicators_and_windows_after_a_death() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("windows");
    compile("windows.c", &program);
    kill_the_last_of(Launch::new(4).program(&program));
}

#[test]
fn a_seat_and_an_image_in_c_outlast_their_member() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("seats");
    compile("seats.c", &program);
    kill_the_last_of(Launch::new(4).program(&program));
}

#[test]
fn a_member_in_c_hands_its_replicas_over_and_leaves() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("hand_over");
    compile("hand_over.c", &program);
    let launch = Launch::new(2).program(&program).output(Output::Capture);
    let outcome = launch.start().expect("started").wait(LIMIT);
    let said: String = outcome.members.iter().map(|end| outcome.stderr(end.member)).collect();
    assert!(outcome.survivors_ok(), "{outcome}{said}");
    assert_eq!(outcome.stdout(MemberId(1)), "ok\n", "{said}");
}

#[test]
fn bad_input_in_c_has_a_code_and_a_message() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("bad");
    compile("bad.c", &program);
    check_bad(Launch::new(1).program(&program), folder.path());
}

#[test]
fn bad_input_in_cpp_is_an_error_with_a_message() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("bad");
    compile_cpp("tests/cpp/bad.cpp", &program);
    check_bad(Launch::new(1).program(&program), folder.path());
}

#[test]
fn calls_in_cpp_without_exceptions_store_their_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("codes");
    let options = ["-std=c++17", "-pedantic", "-fno-exceptions"];
    compile_with("c++", &options, "tests/cpp/codes.cpp", &program);
    run_alone(Launch::new(1).program(&program));
}

/// AddressSanitizer watches the memory of the program, and at its end looks for memory that the
/// program or the library lost. The members that are killed report nothing.
#[test]
fn c_programs_are_clean_under_sanitizers() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = [
        "-std=c11",
        "-D_DEFAULT_SOURCE",
        "-g",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ];
    for name in ["bad", "members", "calls", "windows", "seats"] {
        let program = folder.path().join(name);
        compile_with("cc", &options, &format!("tests/c/{name}.c"), &program);
        if name == "bad" {
            let launch = Launch::new(1).program(&program).output(Output::Capture);
            let outcome = launch.start().expect("started").wait(LIMIT);
            assert!(outcome.survivors_ok(), "{outcome}{}", outcome.stderr(MemberId(0)));
        } else {
            let snapshots = folder.path().join("snapshots");
            kill_the_last_of(Launch::new(4).program(&program).args([snapshots]));
        }
    }
}

/// memcheck watches the memory of each member. It does not look for leaks: it would read the whole
/// job's memory word by word, gigabytes of pages that were never used.
#[cfg(feature = "valgrind")]
#[test]
fn c_programs_are_clean_under_valgrind() {
    let valgrind = std::env::var_os("OUTLAST_VALGRIND").unwrap_or("valgrind".into());
    let folder = tempfile::tempdir().expect("a folder");
    let launch = |name: &str, members: usize| {
        let program = folder.path().join(name);
        let options = ["-std=c11", "-D_DEFAULT_SOURCE", "-g"];
        compile_with("cc", &options, &format!("tests/c/{name}.c"), &program);
        Launch::new(members)
            .program(&valgrind)
            .args(["--quiet", "--leak-check=no", "--error-exitcode=9"])
            .args([&program])
    };
    check_bad(launch("bad", 1), folder.path());
    for name in ["members", "calls", "windows", "seats", "recover"] {
        kill_the_last_of(launch(name, 4).args([folder.path().join("snapshots")]));
    }
}

#[test]
fn the_log_of_the_library_is_written_where_outlast_log_asks_for_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("hand_over");
    compile("hand_over.c", &program);
    check_log(&Launch::new(2).program(&program));
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

//! C programs, compiled with the C compiler of this machine against the header, as the members of a
//! job.

mod support;

use outlast::MemberId;
use outlast::launch::{Launch, Output};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use support::{LIMIT, check_bad, kill_the_last_of, library_folder};

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
fn logged_seats_in_cpp_do_not_notice_that_a_holder_dies() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("logged");
    compile_cpp("tests/cpp/logged.cpp", &program);
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
fn logged_seats_in_c_do_not_notice_that_a_holder_dies() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("logged");
    compile("logged.c", &program);
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
    for name in ["bad", "members", "calls", "windows", "seats", "logged"] {
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

#[test]
fn the_log_of_the_library_is_written_where_outlast_log_asks_for_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("bad");
    compile("bad.c", &program);
    let said = |level: &str| {
        let launch = Launch::new(1).program(&program).env("OUTLAST_LOG", level);
        let outcome = launch.output(Output::Capture).start().expect("started").wait(LIMIT);
        assert!(outcome.survivors_ok(), "{outcome}{}", outcome.stderr(MemberId(0)));
        outcome.stderr(MemberId(0))
    };
    assert_eq!(said("off"), "");
    let refused = said("loud");
    assert!(refused.contains("OUTLAST_LOG is \"loud\"; it may be off, error"), "{refused}");
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

/// The examples on seats: whichever member dies, and when, the result is that of a run without a
/// death; with logs, too.
#[test]
fn the_programs_on_seats_in_c_have_their_answer_when_members_die() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, size, is_logged) in
        [("stencil", 40, true), ("table", 400, false), ("transform", 20, true)]
    {
        let program = folder.path().join(name);
        let source = format!("../../examples/c/{name}.c");
        compile_with("cc", &["-std=c11", "-D_DEFAULT_SOURCE"], &source, &program);
        let run = |arguments: &[String]| {
            let launch = Launch::new(4).program(&program).args(arguments);
            let outcome = launch.output(Output::Capture).start().expect("started").wait(LIMIT);
            let said: String =
                outcome.members.iter().map(|end| outcome.stderr(end.member)).collect();
            assert!(outcome.survivors_ok(), "{name}: {outcome}{said}");
            outcome
        };
        let expected = run(&[size.to_string()]).stdout(MemberId(0));
        assert!(expected.trim().parse::<u64>().is_ok_and(|sum| sum > 0), "{name}: {expected}");
        for (victim, part, logs) in
            [(3, 0, ""), (0, 2, ""), (2, 3, ""), (1, 1, "logged"), (0, 2, "logged")]
        {
            if !is_logged && !logs.is_empty() {
                continue;
            }
            let step = size * part / 4 + size / 8;
            let mut arguments = vec![size.to_string(), victim.to_string(), step.to_string()];
            arguments.extend((!logs.is_empty()).then(|| logs.to_string()));
            let outcome = run(&arguments);
            assert_eq!(outcome.deaths().count(), 1, "{name}: {outcome}");
            for member in (0..4).filter(|member| *member != victim).map(MemberId) {
                let found = outcome.stdout(member);
                assert_eq!(found, expected, "{name}: {member}, {arguments:?}");
            }
        }
    }
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
    let codes = header.split_once("enum outlast_status {").expect("the enum").1;
    let codes = codes.split_once("};").expect("its end").0;
    let in_header: Vec<(&str, String)> = codes
        .lines()
        .filter_map(|line| line.trim().split_once(" = "))
        .map(|(name, code)| (name, code.trim_end_matches(',').to_string()))
        .collect();
    let in_library: Vec<(&str, String)> =
        Status::ALL.iter().map(|(name, status)| (*name, (*status as i32).to_string())).collect();
    assert_eq!(in_header, in_library);
}

/// The names of the functions that the header declares: `outlast_*(` outside of comments.
fn declared_functions() -> BTreeSet<String> {
    let mut header = String::new();
    let mut rest = include_str!("../include/outlast.h");
    while let Some((code, comment)) = rest.split_once("/*") {
        header.push_str(code);
        rest = comment.split_once("*/").expect("the end of a comment").1;
    }
    header.push_str(rest);
    let is_name = |found: char| found.is_ascii_alphanumeric() || found == '_';
    let before_brackets = header.split('(').map(|code| code.rsplit(|c| !is_name(c)).next());
    before_brackets
        .flatten()
        .filter(|name| name.starts_with("outlast_"))
        .map(String::from)
        .collect()
}

#[test]
fn header_and_library_have_the_same_functions() {
    let library = library_folder().join("liboutlast_c.so");
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output();
    let output = output.expect("nm of binutils");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let symbols = String::from_utf8_lossy(&output.stdout).into_owned();
    let in_library: BTreeSet<String> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .filter(|name| name.starts_with("outlast_"))
        .map(String::from)
        .collect();
    let declared = declared_functions();
    assert!(declared.len() > 100, "only {} functions were found", declared.len());
    assert_eq!(declared, in_library);
}

#[test]
fn the_version_of_the_header_is_that_of_the_library() {
    let header = include_str!("../include/outlast.h");
    let line = format!("#define OUTLAST_VERSION \"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(header.contains(&line), "no {line}");
    for (name, number) in [
        ("MAJOR", env!("CARGO_PKG_VERSION_MAJOR")),
        ("MINOR", env!("CARGO_PKG_VERSION_MINOR")),
        ("PATCH", env!("CARGO_PKG_VERSION_PATCH")),
    ] {
        let line = format!("#define OUTLAST_VERSION_{name} {number}\n");
        assert!(header.contains(&line), "no {line}");
    }
}

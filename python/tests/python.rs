//! Python programs as the members of a job, with the module that cargo has built.

mod package;
#[path = "../../crates/outlast-c/tests/support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use outlast::MemberId;
use outlast::launch::{Launch, Outcome, Output};
use std::path::Path;
use support::{LIMIT, check_bad, kill_the_last_of, library_folder};
use tempfile::TempDir;

/// A folder with the package.
struct Package(TempDir);

impl Package {
    fn new() -> Package {
        Package(package::link_package(&library_folder()))
    }

    /// A job of Python programs of the tests.
    fn launch(&self, members: usize, program: &str) -> Launch {
        self.launch_file(
            members,
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(program),
        )
    }

    fn launch_file(&self, members: usize, program: &Path) -> Launch {
        Launch::new(members)
            .program("python3")
            .args([program])
            .env("PYTHONPATH", self.0.path())
            .env("PYTHONDONTWRITEBYTECODE", "1")
    }
}

/// Runs a job to its end, and expects that the survivors finish well.
fn run(launch: Launch) -> Outcome {
    let outcome = launch.output(Output::Capture).start().expect("started").wait(LIMIT);
    assert!(outcome.survivors_ok(), "{outcome}{}", said(&outcome));
    outcome
}

fn said(outcome: &Outcome) -> String {
    outcome.members.iter().map(|end| outcome.stderr(end.member)).collect()
}

/// Runs a program as the only member of a job.
fn run_alone(program: &str) {
    let outcome = run(Package::new().launch(1, program));
    assert_eq!(outcome.stdout(MemberId(0)), "ok\n", "{}", said(&outcome));
}

#[test]
fn programs_outlast_a_member() {
    let package = Package::new();
    kill_the_last_of(package.launch(4, "members.py"));
}

#[test]
fn programs_open_stores_again_after_close() {
    let package = Package::new();
    kill_the_last_of(package.launch(4, "stores.py"));
}

#[test]
fn programs_recover_together() {
    let package = Package::new();
    kill_the_last_of(package.launch(4, "recover.py"));
}

#[test]
fn programs_divide_checkpoints_anew_after_a_death() {
    let package = Package::new();
    kill_the_last_of(package.launch(4, "regions.py"));
}

#[test]
fn programs_exchange_messages_and_share_windows() {
    let package = Package::new();
    kill_the_last_of(package.launch(4, "comm.py"));
}

#[test]
fn programs_on_seats_outlast_a_holder() {
    let package = Package::new();
    kill_the_last_of(package.launch(4, "seats.py"));
}

#[test]
fn programs_on_logged_seats_do_not_notice_that_a_holder_dies() {
    let package = Package::new();
    kill_the_last_of(package.launch(4, "logged.py"));
}

#[test]
fn programs_adopt_all_keys_though_the_heir_dies() {
    let outcome = run(Package::new().launch(5, "adopt.py"));
    assert_eq!(outcome.deaths().count(), 2, "{outcome}{}", said(&outcome));
}

#[test]
fn all_bytes_of_buffers_are_stored_and_other_types_are_refused() {
    run_alone("buffers.py");
}

#[test]
fn a_program_makes_every_call() {
    run_alone("calls.py");
}

#[test]
fn bad_input_is_a_defined_error_and_changes_nothing() {
    let package = Package::new();
    check_bad(package.launch(1, "refusals.py"), package.0.path());
}

#[test]
fn a_signal_ends_a_wait() {
    let outcome = run(Package::new().launch(2, "interrupt.py"));
    for member in [MemberId(0), MemberId(1)] {
        assert_eq!(outcome.stdout(member), "ok\n", "{}", said(&outcome));
    }
}

#[test]
fn the_stubs_have_the_names_of_the_module() {
    run_alone("stubs.py");
}

#[test]
fn the_first_program_of_the_guide_runs() {
    let package = Package::new();
    let chapter = include_str!("../../docs/guide/src/first-programs.md");
    let rest = chapter.split_once("```python\n").expect("a program in Python").1;
    let program = package.0.path().join("first.py");
    std::fs::write(&program, rest.split("```").next().expect("its end")).expect("written");
    let outcome = run(package.launch_file(2, &program));
    for member in 0..2 {
        assert_eq!(outcome.stdout(MemberId(member)), format!("{member} b'hello'\n"));
    }
}

#[test]
fn the_programs_of_the_guide_run() {
    let package = Package::new();
    for (chapter, count) in [
        (include_str!("../../docs/guide/src/deaths.md"), 3),
        (include_str!("../../docs/guide/src/windows.md"), 1),
    ] {
        let programs: Vec<&str> = chapter.split("```python\n").skip(1).collect();
        assert_eq!(programs.len(), count, "the programs in Python");
        for (number, rest) in programs.into_iter().enumerate() {
            let program = package.0.path().join(format!("guide-{number}.py"));
            std::fs::write(&program, rest.split("```").next().expect("its end")).expect("written");
            run(package.launch_file(3, &program));
        }
    }
}

/// Whichever worker dies, the sweep has the result of a single worker.
#[test]
fn the_sweep_is_complete_when_a_worker_dies() {
    let package = Package::new();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/python/sweep.py");
    let expected = run(package.launch_file(1, &example).args(["30"])).stdout(MemberId(0));
    assert!(expected.ends_with(" is the sum of 30 points\n"), "{expected}");
    for victim in 0..4 {
        let outcome = run(package.launch_file(4, &example).args(["30", &victim.to_string()]));
        assert_eq!(outcome.deaths().count(), 1, "{outcome}");
        for member in (0..4).filter(|member| *member != victim).map(MemberId) {
            assert_eq!(outcome.stdout(member), expected, "{member}, {victim} died");
        }
    }
}

#[test]
fn the_package_has_the_version_of_the_library() {
    let line = format!("version = \"{}\"", env!("CARGO_PKG_VERSION"));
    let project = include_str!("../pyproject.toml");
    assert!(project.lines().any(|found| found.starts_with(&line)), "no {line} in pyproject.toml");
}

//! `outlast tasks` on shm and under the simulator: the answer is right whatever members die, and
//! the report says what happened.

mod common;

use common::{Finished, outlast, shared_memory_names};
use serde_json::Value;

/// Runs a program of tasks; returns its report.
fn tasks(arguments: &[&str]) -> (Finished, Value) {
    let run = outlast(&[&["tasks", "--json", "-"], arguments].concat());
    let report = serde_json::from_str(&run.stdout)
        .unwrap_or_else(|error| panic!("standard output is JSON alone: {error}: {run:?}"));
    assert_eq!(shared_memory_names(), [""; 0], "{run:?}");
    (run, report)
}

/// Runs a program of tasks, which must give the right answer after this many deaths.
fn check(arguments: &[&str], kills: u64) -> (Finished, Value) {
    let (run, report) = tasks(arguments);
    assert_eq!((run.code(), &report["ok"]), (0, &Value::from(true)), "{run:?}");
    assert_eq!(report["answer"], report["expected"], "{run:?}");
    assert_eq!(report["kills"], kills, "{run:?}");
    (run, report)
}

#[test]
fn queens_outlast_three_kills_of_eight_and_the_report_says_how() {
    let (run, report) =
        check(&["nqueens", "--n", "11", "--members", "8", "--kills", "3", "--seed", "7"], 3);
    assert_eq!((&report["survivors"], &report["answer"]), (&5.into(), &2680.into()));
    assert_eq!(run.lines_with("kill -9 of member").len(), 3, "{run:?}");
    for field in [
        "seconds",
        "ideal_seconds",
        "shared",
        "moved",
        "again",
        "again_ms",
        "exposed_ms",
        "diverged",
        "poisoned",
        "saving_share",
        "beat_us",
        "seed",
    ] {
        assert!(report[field].is_number(), "{field}: {run:?}");
    }
    let spread = &report["reopened_ms"];
    assert!(spread.is_null() || spread["p50"].is_number() && spread["max"].is_number());
    assert_eq!(report["deaths"].as_array().map(Vec::len), Some(3));
}

#[test]
fn every_program_gives_its_answer_with_a_death() {
    for program in [
        &["fib", "--n", "20"][..],
        &["uts", "--n", "6"],
        &["uts-bag", "--n", "6"],
        &["sort", "--n", "40"],
        &["random", "--n", "10"],
    ] {
        check(&[program, &["--members", "4", "--kills", "1"]].concat(), 1);
    }
}

#[test]
fn a_stopped_member_is_waited_for() {
    check(&["nqueens", "--n", "10", "--members", "3", "--stops", "2"], 0);
}

#[test]
fn without_saving_the_answer_is_right_as_well() {
    let (_, report) = check(&["nqueens", "--n", "10", "--members", "3", "--plain"], 0);
    assert_eq!(report["runs"], 1);
}

#[test]
fn members_die_inside_the_steps_of_the_runtime() {
    if !outlast::failpoint::AVAILABLE {
        return;
    }
    let mut died = 0;
    for seed in ["1", "4", "7"] {
        let arguments = ["nqueens", "--n", "11", "--members", "6", "--kills", "3", "--failpoints"];
        let (_, report) = check(&[&arguments[..], &["--seed", seed]].concat(), 3);
        let deaths = report["deaths"].as_array().cloned().unwrap_or_default();
        died += deaths.iter().filter(|death| death["step"].is_string()).count();
    }
    assert!(died > 0, "no member died inside a step");
}

#[test]
fn simulated_members_give_the_answer_with_deaths_and_stops() {
    for seed in 0..6u32 {
        let seed = seed.to_string();
        let sim = ["--engine", "sim", "--members", "5", "--kills", "2", "--stops", "1"];
        let (run, report) = tasks(&[&["random", "--n", "9", "--seed", &seed], &sim[..]].concat());
        assert_eq!((run.code(), &report["ok"]), (0, &Value::from(true)), "{run:?}");
    }
}

#[test]
fn the_page_shows_a_lane_for_each_member_also_for_the_dead() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tasks.html");
    let path = path.to_str().expect("a plain path");
    let program = ["nqueens", "--n", "11", "--members", "4", "--kills", "1", "--seed", "2"];
    let (_, report) = check(&[&program[..], &["--report", path]].concat(), 1);
    let page = std::fs::read_to_string(path).expect("the page");
    for member in 0..4 {
        assert!(page.contains(&format!(">member {member}<")), "{member}");
    }
    assert_eq!(page.matches("class=\"cross\"").count(), 1);
    // The page keeps each option in an element of its own.
    let words = page.replace("<span>", "").replace("</span>", "");
    assert!(words.contains(report["command"].as_str().expect("a command")));
    assert!(!page.contains("http:") && !page.contains("https:"), "needs no network");
}

#[test]
fn wrong_usage_exits_with_status_2_and_says_why() {
    let cases: [(&[&str], &str); 7] = [
        (&["nqueens", "--members", "0"], "1 to 64"),
        (&["nqueens", "--members", "3", "--kills", "3"], "must survive"),
        (&["nqueens", "--n", "40"], "known up to 18"),
        (&["nqueens", "--price", "2"], "0.0001 to 1"),
        (&["nqueens", "--hosts", "2"], "--engine mpi"),
        (&["nqueens", "--kill-host"], "--hosts"),
        (&["nqueens", "--engine", "moon"], "unknown engine"),
    ];
    for (arguments, message) in cases {
        let run = outlast(&[&["tasks"], arguments].concat());
        assert!(run.code() == 2 && run.stderr.contains(message), "{arguments:?}: {run:?}");
    }
}

//! `outlast sim` runs and judges seeds, reports as documented, and replays a seed.

mod common;

use common::outlast;
use outlast_check::history::{AccessMode, History, Operation, Value as HistoryValue};
use outlast_check::report::{Run, judge};
use serde_json::Value;

/// Runs `outlast sim` and parses its standard output, which must be JSON alone.
fn report(arguments: &[&str]) -> (common::Finished, Value) {
    let run = outlast(&[&["sim", "--json", "-"], arguments].concat());
    let report = serde_json::from_str(&run.stdout);
    let report =
        report.unwrap_or_else(|error| panic!("standard output is JSON alone: {error}: {run:?}"));
    (run, report)
}

#[test]
fn seeds_with_deaths_and_stops_break_no_promise() {
    let shape = [
        "--members",
        "5",
        "--replicas",
        "3",
        "--seeds",
        "10..40",
        "--kills",
        "2",
        "--mode",
        "localized",
    ];
    for stops in ["0", "1"] {
        let (run, report) = report(&[&shape[..], &["--stops", stops]].concat());
        assert_eq!((run.code(), &report["ok"]), (0, &Value::from(true)), "{run:?}");
        assert_eq!((&report["seeds"], &report["violations"]), (&30.into(), &0.into()), "{report}");
        assert_eq!(
            (&report["kills"], &report["failing"]),
            (&60.into(), &Value::Array(vec![])),
            "{report}"
        );
        assert!(report["steps"].as_u64().is_some_and(|steps| steps > 100_000), "{report}");
        assert_eq!(report["stops"].as_u64() > Some(0), stops == "1", "{report}");
    }
}

/// More deaths than replicas, in waves: each wave waits until no replica is missing.
#[test]
fn all_members_but_the_last_may_die_in_waves() {
    let (run, report) =
        report(&["--members", "7", "--replicas", "2", "--seeds", "0..20", "--kills", "6"]);
    assert_eq!(
        (run.code(), &report["ok"], &report["kills"]),
        (0, &true.into(), &120.into()),
        "{run:?}"
    );
}

/// More deaths at once than replicas: calls report what is lost until the loss is accepted, and no
/// other key is affected.
#[test]
fn loss_beyond_the_promise_is_reported() {
    for programs in ["calls", "mixed", "bank", "steal"] {
        let shape = [
            "--members",
            "5",
            "--replicas",
            "2",
            "--seeds",
            "0..40",
            "--kills",
            "3",
            "--stops",
            "1",
        ];
        let (run, report) = report(&[&shape[..], &["--beyond", "--programs", programs]].concat());
        assert_eq!((run.code(), &report["ok"]), (0, &true.into()), "{run:?}");
        assert!(report["data_lost"].as_u64() > Some(40), "{report}");
    }
}

/// Survivors read the memory of the dead: nothing is lost, even with a single replica.
#[test]
fn salvage_loses_nothing() {
    for (replicas, programs) in [("1", "calls"), ("2", "mixed"), ("1", "bank"), ("1", "steal")] {
        let shape =
            ["--members", "5", "--seeds", "0..40", "--kills", "4", "--stops", "1", "--salvage"];
        let (run, report) =
            report(&[&shape[..], &["--replicas", replicas, "--programs", programs]].concat());
        assert_eq!((run.code(), &report["ok"]), (0, &true.into()), "{run:?}");
        assert!(report["kills"].as_u64() > Some(150), "{report}");
    }
    let run = outlast(&["sim", "--salvage", "--link", "network"]);
    assert_eq!(run.code(), 2, "{run:?}");
    assert!(run.stderr.contains("--link memory"), "{run:?}");
}

#[test]
fn a_seed_replays() {
    let seed = [
        "--members",
        "3",
        "--replicas",
        "2",
        "--kills",
        "1",
        "--stops",
        "1",
        "--calls",
        "3",
        "--seed",
        "9",
    ];
    let (first, report_of_first) = report(&[&seed[..], &["--trace"]].concat());
    let (second, _) = report(&[&seed[..], &["--trace"]].concat());
    assert_eq!((first.code(), &report_of_first["seeds"]), (0, &1.into()), "{first:?}");
    let trace = |run: &common::Finished| -> Vec<String> {
        run.stderr
            .lines()
            .filter(|line| line.contains("compare_and_swap"))
            .map(str::to_string)
            .collect()
    };
    assert!(!trace(&first).is_empty(), "{first:?}");
    assert_eq!(trace(&first), trace(&second));
}

/// These seeds once lost an acknowledged write: a thread had not noticed that another thread of its
/// member had found a replica that was beginning to fill.
#[test]
fn formerly_failing_seeds_pass() {
    for (shape, seed) in
        [("8 --replicas 4 --kills 7", "1002011"), ("8 --replicas 4 --kills 7", "1007411")]
    {
        let arguments: Vec<&str> =
            shape.split(' ').chain(["--programs", "calls", "--seed", seed]).collect();
        let (run, report) = report(&[&["--members"], &arguments[..]].concat());
        assert_eq!((run.code(), &report["ok"]), (0, &true.into()), "{run:?}");
    }
}

/// A store with a protocol rule switched off is caught, and the report has the command that replays
/// the seed.
#[test]
fn a_broken_store_is_caught_and_the_seed_replays() {
    if !::outlast::failpoint::AVAILABLE {
        return;
    }
    let with_mutant = |arguments: &[&str]| {
        let mut command = std::process::Command::new(common::OUTLAST);
        command
            .arg("sim")
            .args(arguments)
            .args(["--json", "-"])
            .env("OUTLAST_MUTANT", "forget-tombstone");
        let output = command.output().expect("runs");
        let report: Value =
            serde_json::from_slice(&output.stdout).expect("standard output is JSON alone");
        (output.status.code(), report)
    };
    let (code, report) =
        with_mutant(&["--members", "4", "--replicas", "2", "--kills", "1", "--seeds", "0..5"]);
    assert_eq!((code, &report["ok"]), (Some(1), &false.into()), "{report}");
    assert!(report["violations"].as_u64() > Some(0), "{report}");
    let failing = &report["failing"][0];
    assert!(failing["kind"].as_str().is_some_and(|kind| !kind.is_empty()), "{report}");
    let replay = failing["replay"].as_str().expect("a command");
    for option in
        ["--members 4", "--replicas 2", "--kills 1", "--stops 0", "--mode localized", "--trace"]
    {
        assert!(replay.contains(option), "{replay}");
    }
    let arguments: Vec<&str> = replay.split(' ').skip(2).collect();
    let (code, again) = with_mutant(&arguments);
    assert_eq!((code, &again["failing"][0]["kind"]), (Some(1), &failing["kind"]), "{again}");
}

/// Members stop and recover together, and the effects of their procedures are all there or not at
/// all. With a rule of the recovery switched off, a seed fails.
#[test]
fn members_recover_together_in_global_mode() {
    for programs in ["calls", "mixed", "bank", "steal"] {
        let shape = [
            "--members",
            "4",
            "--replicas",
            "3",
            "--kills",
            "2",
            "--stops",
            "1",
            "--mode",
            "global",
        ];
        let run = outlast(
            &[&["sim", "--seeds", "0..12", "--programs", programs, "--json", "-"], &shape[..]]
                .concat(),
        );
        let report: Value =
            serde_json::from_str(&run.stdout).expect("standard output is JSON alone");
        assert_eq!((run.code(), &report["ok"]), (0, &true.into()), "{run:?}");
        assert!(report["kills"].as_u64() > Some(12), "{report}");
    }
    if ::outlast::failpoint::AVAILABLE {
        let mut command = std::process::Command::new(common::OUTLAST);
        command.args([
            "sim",
            "--members",
            "4",
            "--replicas",
            "3",
            "--kills",
            "2",
            "--mode",
            "global",
        ]);
        command.args(["--seeds", "0..600", "--first-failure", "--json", "-"]);
        let output = command.env("OUTLAST_MUTANT", "recover-skip-abort").output().expect("runs");
        let report: Value =
            serde_json::from_slice(&output.stdout).expect("standard output is JSON alone");
        let replay = report["failing"][0]["replay"].as_str().unwrap_or_else(|| panic!("{report}"));
        assert!(replay.contains("--mode global"), "{replay}");
    }
}

/// Programs on seats have the answer of the oracle in each seed, on both links, with spares, and
/// with logs.
#[test]
fn programs_on_seats_outlast_deaths_and_stops() {
    for (shape, kills) in [
        ("--members 4 --programs seats --kills 2 --stops 1 --spares 1", 2),
        ("--members 4 --programs table --kills 1", 1),
        ("--members 3 --programs transform --kills 2 --logged", 2),
        ("--members 4 --programs seats --kills 1 --logged", 1),
    ] {
        let shape: Vec<&str> = shape.split(' ').collect();
        let (run, report) = report(&[&shape[..], &["--seeds", "10..18"]].concat());
        assert_eq!((run.code(), &report["ok"]), (0, &Value::from(true)), "{shape:?}: {run:?}");
        assert_eq!((&report["seeds"], &report["violations"]), (&8.into(), &0.into()), "{report}");
        // A member may have ended before its step.
        let deaths = report["kills"].as_u64().unwrap_or_default();
        assert!((1..=8 * kills).contains(&deaths), "{report}");
    }
}

/// A rollback that leaves the memory of survivors as it is is caught, and the seed replays.
#[test]
fn broken_seats_are_caught_and_the_seed_replays() {
    if !::outlast::failpoint::AVAILABLE {
        return;
    }
    let with_mutant = |arguments: &[&str]| {
        let mut command = std::process::Command::new(common::OUTLAST);
        command.arg("sim").args(arguments).args(["--json", "-"]);
        let output = command.env("OUTLAST_MUTANT", "seat-survivor-keeps").output().expect("runs");
        let report: Value =
            serde_json::from_slice(&output.stdout).expect("standard output is JSON alone");
        (output.status.code(), report)
    };
    let shape = "--members 4 --programs transform --kills 1 --spares 1 --seeds 0..12";
    let (code, report) = with_mutant(&shape.split(' ').collect::<Vec<_>>());
    assert_eq!((code, &report["ok"]), (Some(1), &false.into()), "{report}");
    let replay = report["failing"][0]["replay"].as_str().expect("a command");
    assert!(replay.contains("--programs transform") && replay.contains("--spares 1"), "{replay}");
    let arguments: Vec<&str> = replay.split(' ').skip(2).collect();
    let (code, again) = with_mutant(&arguments);
    assert_eq!(
        (code, &again["failing"][0]["kind"]),
        (Some(1), &report["failing"][0]["kind"]),
        "{again}"
    );
}

#[test]
fn contradicting_options_are_refused() {
    for (wrong, said) in [
        (&["--members", "4", "--kills", "4"][..], "leave no survivor"),
        (&["--members", "4", "--replicas", "5"], "5 replicas in a job of 4"),
        (&["--replicas", "1", "--kills", "1"], "--replicas 2"),
        (&["--mode", "global", "--beyond"], "--mode localized"),
        (&["--seeds", "5"], "A..B"),
        (&["--seeds", "5..5"], "A..B"),
        (&["--seeds", "1..2", "--seed", "1"], "cannot be used with"),
        (&["--trace"], "--seed"),
        (&["--threads", "0"], "threads"),
        (&["--calls", "0"], "calls"),
        (&["--logged"], "--programs seats"),
        (&["--programs", "seats", "--replicas", "2", "--kills", "2"], "seats bear fewer deaths"),
        (&["--programs", "seats", "--beyond"], "not for programs on seats"),
    ] {
        let run = outlast(&[&["sim", "--json", "-"], wrong].concat());
        assert_eq!((run.code(), run.stdout.as_str()), (2, ""), "{wrong:?}: {run:?}");
        assert!(run.stderr.contains(said), "{wrong:?}: {run:?}");
    }
}

/// The exported history is read back and judged, and a history with a result that no order of the
/// calls explains is refused.
#[test]
fn a_history_is_exported_and_judged_again() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a plain path");
    let shape = ["--members", "4", "--replicas", "3", "--kills", "1", "--seed", "5"];
    let (run, _) = report(&[&shape[..], &["--programs", "calls", "--history", path]].concat());
    assert_eq!(run.code(), 0, "{run:?}");
    let json = std::fs::read(path).expect("the history was written");
    let history = History::from_json(&json).expect("a history");
    assert!(history.operations().len() > 50, "{history}");
    let is_ok = |operations: Vec<Operation>| {
        let mut run = Run::new(History::new(operations).expect("a history"));
        run.observation.dead = (0..4).collect();
        judge(&run).ok()
    };
    assert!(is_ok(history.clone().into_operations()));
    // A read that returns a value which no call has written.
    let mut wrong = history.into_operations();
    let read = wrong
        .iter_mut()
        .flat_map(|operation| &mut operation.accesses)
        .find(|access| access.mode == AccessMode::Read && access.value.is_some());
    read.expect("a read").value = Some(HistoryValue::new(u64::MAX - 7));
    assert!(!is_ok(wrong), "a value from nowhere is refused");
}

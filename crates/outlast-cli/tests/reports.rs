//! `outlast doctor`, `outlast demo` and `outlast bench`: their reports parse, and standard output holds nothing else.

mod common;

use common::outlast;
use serde_json::Value;

#[test]
fn doctor_reports_as_json() {
    let run = outlast(&["doctor", "--json", "-"]);
    let report: Value = serde_json::from_str(&run.stdout).expect("standard output is JSON alone");
    assert_eq!(run.code() == 0, report["ok"] == true, "{run:?}");
    assert!(run.stderr.contains("pidfd_open"), "the table goes to standard error: {run:?}");
    let engines: Vec<&str> =
        report["engines"].as_array().expect("a list").iter().filter_map(|e| e["engine"].as_str()).collect();
    assert_eq!(engines, ["sim", "shm", "mpi"]);
    for check in report["checks"].as_array().expect("a list") {
        let status = check["status"].as_str().expect("a status");
        assert!(["ok", "warning", "missing"].contains(&status), "{check}");
        assert!(status != "missing" || check["advice"].as_str().is_some_and(|a| !a.is_empty()), "{check}");
    }
    assert_eq!(report["engines"][0]["status"], "ok", "the simulator runs everywhere");
}

#[test]
fn doctor_writes_a_table_and_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("doctor.json");
    let run = outlast(&["doctor", "--json", path.to_str().expect("a plain path")]);
    assert!(run.stdout.contains("outlast run -n 4 PROGRAM ARGS..."), "{run:?}");
    let text = std::fs::read_to_string(path).expect("the file was written");
    assert!(serde_json::from_str::<Value>(&text).is_ok_and(|report| report["ok"].is_boolean()));
    let run = outlast(&["doctor", "--json", "/no/such/folder/doctor.json"]);
    assert_eq!(run.code(), 1, "{run:?}");
    assert!(run.stderr.contains("/no/such/folder/doctor.json"), "{run:?}");
}

/// A limit that is too low is found, said, and makes the status 1.
#[test]
fn doctor_sees_a_low_limit() {
    let script = format!("ulimit -f 16; exec {} doctor", common::OUTLAST);
    let run = std::process::Command::new("sh").args(["-c", &script]).output().expect("runs");
    let table = String::from_utf8_lossy(&run.stdout);
    assert_eq!(run.status.code(), Some(1), "{table}");
    assert!(table.contains("ulimit -f unlimited"), "{table}");
}

#[test]
fn the_speed_of_the_simulator_is_reported_as_json() {
    let run = outlast(&["bench", "sim", "--steps", "1000", "--runs", "1", "--json", "-"]);
    assert_eq!(run.code(), 0, "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout).expect("standard output is JSON alone");
    let rows = report["results"].as_array().expect("a list");
    assert!(rows.iter().any(|row| row["ranks"] == 4096), "{report}");
    for row in rows {
        assert_eq!(row["engine"], "sim", "{row}");
        assert!(row["steps_per_s"].as_u64().is_some_and(|steps| steps > 0), "{row}");
    }
    let run = outlast(&["bench", "sim", "--steps", "0"]);
    assert_eq!(run.code(), 2, "{run:?}");
}

#[test]
fn the_demo_passes_and_reports_as_json() {
    let run = outlast(&["demo", "--json", "-"]);
    assert_eq!(run.code(), 0, "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout).expect("standard output is JSON alone");
    assert_eq!(report["ok"], true, "{report}");
    assert_eq!(report["survivors"], 4);
    assert_eq!(report["hung"], 0);
    let kills = report["kills"].as_array().expect("a list");
    assert_eq!(kills.len(), 2);
    assert!(
        kills.iter().all(|kill| kill["all_noticed_ms"].as_f64().is_some_and(|ms| ms < 2000.0)),
        "{report}"
    );
    assert_eq!(report["left_behind"], serde_json::json!([]));
    assert!(report["additions"].as_u64().is_some_and(|count| count > 1000), "{report}");
    assert!(run.stderr.contains("The job outlasted both deaths."), "{run:?}");
}

#[test]
fn the_demo_refuses_what_it_cannot_show() {
    let run = outlast(&["demo", "-n", "2"]);
    assert_eq!(run.code(), 2, "{run:?}");
    let run = outlast(&["demo", "--engine", "foo"]);
    assert_eq!(run.code(), 2, "{run:?}");
    assert!(run.stderr.contains("unknown engine `foo`; this command has: shm"), "{run:?}");
}

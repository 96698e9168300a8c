//! `outlast doctor`, `outlast demo` and `outlast bench`: their reports are JSON, and standard
//! output holds nothing else.

mod common;

use common::outlast;
use serde_json::Value;

#[test]
fn doctor_reports_as_json() {
    let run = outlast(&["doctor", "--json", "-"]);
    let report: Value = serde_json::from_str(&run.stdout).expect("standard output is JSON alone");
    assert_eq!(run.code() == 0, report["ok"] == true, "{run:?}");
    assert!(run.stderr.contains("pidfd_open"), "the table goes to standard error: {run:?}");
    let engines: Vec<&str> = report["engines"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|e| e["engine"].as_str())
        .collect();
    assert_eq!(engines, ["sim", "shm", "mpi"]);
    for check in report["checks"].as_array().expect("a list") {
        let status = check["status"].as_str().expect("a status");
        assert!(["ok", "warning", "missing"].contains(&status), "{check}");
        assert!(
            status != "missing" || check["advice"].as_str().is_some_and(|a| !a.is_empty()),
            "{check}"
        );
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

/// A plug-in that is not there is reported with what to type. Only the mpi engine needs it.
#[test]
fn doctor_says_what_to_type_for_a_missing_plugin() {
    let mut command = std::process::Command::new(common::OUTLAST);
    let run = command.arg("doctor").env("OUTLAST_MPI_SHIM", "/no/such/plugin.so").output();
    let run = run.expect("runs");
    let table = String::from_utf8_lossy(&run.stdout);
    assert!(table.contains("OUTLAST_MPI_SHIM names /no/such/plugin.so"), "{table}");
    assert!(table.contains("outlast mpi setup"), "{table}");
    assert!(table.contains("outlast run -n 4 PROGRAM"), "{table}");
}

/// A limit that is too low is reported with advice, and the exit status is 1.
#[test]
fn doctor_reports_a_low_limit() {
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
    assert_eq!((&report["survivors"], &report["copies"]), (&4.into(), &3.into()), "{report}");
    assert_eq!((&report["hung"], &report["lost"]), (&0.into(), &0.into()), "{report}");
    let kills = report["kills"].as_array().expect("a list");
    assert_eq!(kills.len(), 2);
    for time in ["all_noticed_ms", "copies_back_ms"] {
        assert!(
            kills.iter().all(|kill| kill[time].as_f64().is_some_and(|ms| ms < 5000.0)),
            "{report}"
        );
    }
    assert_eq!(report["left_behind"], serde_json::json!([]));
    assert!(report["acked"].as_u64().is_some_and(|count| count > 1000), "{report}");
    assert_eq!(report["acked"], report["keys_read_back"], "{report}");
    assert!(run.stderr.contains("The store outlasted both deaths."), "{run:?}");
}

#[test]
fn the_demo_refuses_too_few_members_and_unknown_engines() {
    let run = outlast(&["demo", "-n", "2"]);
    assert_eq!(run.code(), 2, "{run:?}");
    let run = outlast(&["demo", "--engine", "foo"]);
    assert_eq!(run.code(), 2, "{run:?}");
    assert!(run.stderr.contains("unknown engine `foo`; this command has: shm"), "{run:?}");
}

/// The benchmark removes its files. If they cannot be written, it prints the reason.
#[test]
fn the_benchmark_of_snapshots_reports_and_cleans_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("a plain path");
    let run = outlast(
        &[
            &["bench", "snapshot", "--size", "4M", "--value-size", "10K", "--members", "3"][..],
            &["--rounds", "1", "--folder", path, "--json", "-"],
        ]
        .concat(),
    );
    assert_eq!(run.code(), 0, "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout).expect("standard output is JSON alone");
    let rows = report["results"].as_array().expect("rows");
    assert_eq!(rows.len(), 4);
    for (row, contender) in rows.iter().zip(["snapshot", "dd", "restore", "dd"]) {
        assert_eq!(row["contender"], contender);
        assert!(row["p50_ns"].as_u64() > Some(0));
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
    let file = tempfile::NamedTempFile::new().expect("a file");
    let run =
        outlast(&["bench", "snapshot", "--folder", file.path().to_str().expect("a plain path")]);
    assert_eq!(run.code(), 1, "{run:?}");
    assert!(run.stderr.contains("Not a directory"), "{run:?}");
}

/// The rows of a benchmark, which prints JSON alone: what is measured, and the contender.
fn measured(arguments: &str) -> Vec<(String, String)> {
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let run = outlast(&[&["bench"], &arguments[..], &["--json", "-"]].concat());
    assert_eq!(run.code(), 0, "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout).expect("standard output is JSON alone");
    let text = |row: &Value, name: &str| row[name].as_str().expect("a text").to_string();
    let rows = report["results"].as_array().expect("rows");
    for row in rows {
        let is_timed = row["p50_ns"].as_u64() > Some(0) && row["ratio"].as_f64() > Some(0.0);
        assert!(is_timed || row["messages"].as_f64() > Some(0.0), "{row}");
    }
    rows.iter().map(|row| (text(row, "what"), text(row, "contender"))).collect()
}

#[test]
fn images_are_measured_against_memcpy() {
    let rows = measured("image --size 1M --rounds 2");
    for what in [
        "encode 7+1",
        "encode 6+2",
        "encode 5+3",
        "save, all changed",
        "save, nothing changed",
        "read, no piece lost",
        "read, a piece lost",
    ] {
        let of: Vec<&str> = rows
            .iter()
            .filter(|(found, _)| found.starts_with(what))
            .map(|(_, contender)| contender.as_str())
            .collect();
        assert!(matches!(of[..], [floor, "Outlast"] if floor.starts_with("memcpy")), "{of:?}");
    }
    assert_eq!(rows.len(), 14);
}

#[test]
fn seats_are_measured_against_windows_and_with_logs() {
    let rows = measured(
        "seat --members 3 --seconds 0.2 --sizes 64 --kills 1 --bytes 1M --program 0.2 \
         --simulated 4",
    );
    for (what, contender) in [
        ("put of a seat", "window"),
        ("put of a seat", "memcpy"),
        ("get of a seat", "seat"),
        ("put with its part of the release", "seat"),
        ("put with its part of the release", "logged seat"),
        ("get with its part of the release", "logged seat"),
        ("barrier of seats", "logged seat"),
        ("kill -9 until all seats go on", "rollback of all seats"),
        ("kill -9 until all seats go on", "recovery of a logged seat"),
        ("stencil, a step", "windows"),
        ("stencil, a step", "logged seats"),
        ("seats, requests of a logged put", "4 simulated seats"),
    ] {
        let row = (what.to_string(), contender.to_string());
        assert!(rows.contains(&row), "{row:?}: {rows:?}");
    }
}

/// Checks the figures that `outlast bench ulfm` has written into a folder.
fn check_figures(folder: &std::path::Path, names: &[&str]) {
    for name in names {
        let svg = std::fs::read_to_string(folder.join(name)).expect("the figure was written");
        check_xml(&svg);
        assert!(
            svg.starts_with("<svg ") && svg.contains("<circle") && !svg.contains("NaN"),
            "{svg}"
        );
        assert!(svg.contains("with 2 members</title>"), "values are shown at the pointer: {svg}");
    }
}

/// Checks that every element is closed, in the right order, and that all text is escaped.
fn check_xml(text: &str) {
    let mut open = Vec::new();
    let mut rest = text;
    while let Some(begin) = rest.find('<') {
        let between = &rest[..begin];
        assert!(
            !between.replace("&amp;", "").replace("&lt;", "").replace("&gt;", "").contains('>'),
            "{between}"
        );
        let end = begin + rest[begin..].find('>').expect("a tag ends");
        let tag = &rest[begin + 1..end];
        assert!(!tag.contains('<') && tag.matches('"').count().is_multiple_of(2), "<{tag}>");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name.to_string()), "</{name}>");
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().expect("a name").to_string());
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
}

#[test]
fn agree_and_shrink_are_measured_and_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let plot = folder.path().join("figures");
    let plot_arg = plot.to_str().expect("a plain path");
    let run = outlast(&[
        "bench",
        "ulfm",
        "--members",
        "2,3",
        "--rounds",
        "1",
        "--iterations",
        "3",
        "--plot",
        plot_arg,
        "--json",
        "-",
    ]);
    assert_eq!(run.code(), 0, "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout).expect("standard output is JSON alone");
    let rows = report["results"].as_array().expect("a list");
    for what in [
        "agree",
        "agree, failure unacknowledged",
        "agree, failure acknowledged",
        "dup",
        "shrink",
        "shrink, failure after discovery",
        "detection",
    ] {
        for ranks in [2, 3] {
            let row = rows.iter().find(|row| row["what"] == what && row["ranks"] == ranks);
            let row = row.unwrap_or_else(|| panic!("no {what} with {ranks}: {report}"));
            assert_eq!(
                (&row["engine"], &row["pinned"]),
                (&Value::from("shm"), &Value::from(false)),
                "{row}"
            );
            assert!(
                row["p50_ns"].as_u64() > Some(0)
                    && row["p99_ns"].as_u64() >= row["p50_ns"].as_u64(),
                "{row}"
            );
        }
    }
    let shrink = rows.iter().find(|row| row["what"] == "shrink").expect("measured");
    assert!(shrink["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{shrink}");
    check_figures(&plot, &["agree.svg", "shrink.svg"]);
}

/// In the simulator the number of messages grows with the logarithm of the number of members.
#[test]
fn simulated_messages_grow_logarithmically() {
    let folder = tempfile::tempdir().expect("a folder");
    let plot = folder.path().to_str().expect("a plain path");
    let run =
        outlast(&["bench", "ulfm", "--sim", "--members", "2,8,64", "--plot", plot, "--json", "-"]);
    assert_eq!(run.code(), 0, "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout).expect("standard output is JSON alone");
    let rows = report["results"].as_array().expect("a list");
    for (ranks, messages) in [(2, 2.0), (8, 6.0), (64, 12.0)] {
        for what in ["agree", "dup", "shrink"] {
            let row = rows
                .iter()
                .find(|row| row["what"] == what && row["ranks"] == ranks)
                .expect("simulated");
            assert_eq!(
                (&row["engine"], row["messages"].as_f64()),
                (&Value::from("sim"), Some(messages)),
                "{row}"
            );
        }
    }
    check_figures(folder.path(), &["agree-sim.svg", "shrink-sim.svg", "messages-sim.svg"]);
}

#[test]
fn a_benchmark_against_a_missing_peer_is_refused() {
    let run = std::process::Command::new(common::OUTLAST)
        .args(["bench", "ulfm", "--members", "2", "--rounds", "1", "--peers", "openmpi"])
        .env("MPICC", "/no/such/mpicc")
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(2), "{said}");
    assert!(said.contains("/no/such/mpicc") && said.contains("cargo xtask mpi"), "{said}");
    for wrong in [
        &["--members", "1"][..],
        &["--members", "65"],
        &["--rounds", "0"],
        &["--sim", "--peers", "openmpi"],
    ] {
        let run = outlast(&[&["bench", "ulfm"], wrong].concat());
        assert_eq!(run.code(), 2, "{run:?}");
    }
}

/// The example of the help of `plan`, with this in addition.
fn plan(more: &[&str]) -> common::Finished {
    let example = [
        "plan",
        "--members",
        "4096",
        "--per",
        "node=16,rack=512",
        "--mtbf",
        "process=1y,node=5y",
        "--job",
        "30d",
    ];
    outlast(&[&example[..], more].concat())
}

#[test]
fn a_plan_is_reported_as_json() {
    let run = plan(&["--set", "4,8", "--lose", "1,2", "--at-once", "3", "--json", "-"]);
    assert_eq!(run.code(), 0, "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout).expect("standard output is JSON alone");
    assert!(run.stderr.contains("overhead"), "the table goes to standard error: {run:?}");
    let choices = report["choices"].as_array().expect("a list");
    assert_eq!(choices.len(), 4, "{report}");
    for choice in choices {
        for field in ["set", "lose", "memory", "interval_s", "overhead", "loss"] {
            assert!(choice[field].is_number(), "{field}: {choice}");
        }
        assert_eq!(choice["apart"], "node", "{choice}");
        let parts = choice["loss_by_level"].as_object().expect("an object");
        let sum: f64 = parts.values().filter_map(Value::as_f64).sum();
        let loss = choice["loss"].as_f64().expect("a number");
        assert!((sum / loss - 1.0).abs() < 0.01, "{choice}");
    }
    let of = |set: u64, lose: u64| {
        let wanted = |choice: &&Value| choice["set"] == set && choice["lose"] == lose;
        choices.iter().find(wanted).expect("it was asked for")
    };
    let loss = of(8, 1)["loss_by_level"]["process+process"].as_f64().expect("a number");
    assert!((4.4e-3..4.6e-3).contains(&loss), "{report}");
    assert_eq!(report["cheapest"], 3, "8 pieces, 2 may be lost: {report}");
    assert!(of(8, 2)["at_once"][0]["loss"].as_f64().is_some_and(|loss| loss > 0.0), "{report}");
}

#[test]
fn a_plan_has_a_page_with_figures_and_a_seeded_simulation() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plan.html");
    let page = path.to_str().expect("a plain path");
    let run = plan(&["--set", "4,8", "--lose", "2", "--report", page, "--simulate", "2"]);
    assert_eq!(run.code(), 0, "{run:?}");
    let again = plan(&["--set", "4,8", "--lose", "2", "--simulate", "2"]);
    assert_eq!(run.stdout, again.stdout, "a seed gives the same answer");
    let text = std::fs::read_to_string(path).expect("the page was written");
    assert!(text.starts_with("<!doctype html>") && text.matches("<svg").count() == 2, "{text}");
    assert!(!text.contains("http://") || !text.contains("src="), "the page needs no other file");
    let run = plan(&["--report", "/no/such/folder/plan.html"]);
    assert_eq!(run.code(), 2, "{run:?}");
}

#[test]
fn a_plan_that_no_choice_meets_fails() {
    let run = plan(&["--set", "8", "--lose", "1", "--risk", "1e-12"]);
    assert_eq!(run.code(), 1, "{run:?}");
    assert!(run.stdout.contains("no choice has a risk of at most"), "{run:?}");
}

#[test]
fn a_plan_says_where_domains_do_not_suffice() {
    let run = plan(&["--set", "16", "--lose", "2", "--apart", "rack", "--risk", "0.5"]);
    assert_eq!(run.code(), 0, "{run:?}");
    assert!(run.stdout.contains("the level `rack` has too few elements"), "{run:?}");
}

#[test]
fn a_plan_refuses_wrong_input() {
    for (more, named) in [
        (&["--set", "1"][..], "2 to 256"),
        (&["--set", "4", "--lose", "4"], "fewer than the set"),
        (&["--lose", "0"], "1 to 3"),
        (&["--apart", "room"], "process, node, rack"),
        (&["--mtbf", "room=1y"], "process, node, rack"),
        (&["--mtbf", "node=1y"], "twice"),
        (&["--mtbf", "1y"], "node=5y"),
        (&["--per", "process=4"], "leave it out"),
        (&["--per", "room=24"], "multiple"),
        (&["--per", "room=3072"], "do not fill"),
        (&["--back", "0s"], "no time"),
        (&["--back", "node=2s"], "no time"),
        (&["--risk", "2"], "not a chance"),
        (&["--rate", "0"], "at least 1"),
        (&["--job", "0s"], "no time"),
        (&["--at-once", "0"], "1..=512"),
    ] {
        let run = plan(more);
        // `--job` may not be given twice, and says so.
        assert_eq!(run.code(), 2, "{more:?}: {run:?}");
        assert!(run.stderr.contains(named) || more[0] == "--job", "{more:?}: {run:?}");
    }
}

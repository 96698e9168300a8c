//! `outlast chaos` kills and stops members, judges, reports as documented, and leaves nothing
//! behind.

mod common;

use ::outlast::failpoint;
use ::outlast::store::steps;
use common::{is_over, maps_job_memory, outlast, shared_memory_names, start, wait_until};
use outlast_check::history::History;
use outlast_check::report::{Run, judge};
use serde_json::Value;

/// Runs `outlast chaos` and parses its standard output, which must be JSON alone.
fn report(arguments: &str) -> (common::Finished, Value) {
    let arguments: Vec<&str> =
        ["chaos", "--json", "-"].into_iter().chain(arguments.split(' ')).collect();
    let run = outlast(&arguments);
    let report = serde_json::from_str(&run.stdout);
    let report =
        report.unwrap_or_else(|error| panic!("standard output is JSON alone: {error}: {run:?}"));
    (run, report)
}

#[test]
fn kills_and_stops_break_no_promise() {
    let (run, report) = report(
        "--engine shm --members 4 --replicas 2 --mode localized \
         --kills 2 --stops 1 --seconds 2 --seed 5",
    );
    assert_eq!((run.code(), &report["ok"]), (0, &Value::from(true)), "{run:?}");
    for zero in ["lost", "torn", "stale", "hung", "nonlinearizable"] {
        assert_eq!(report[zero], 0, "{report}");
    }
    assert_eq!(
        (&report["kills"], &report["stops"], &report["seed"]),
        (&2.into(), &1.into(), &5.into())
    );
    assert!(report["acked"].as_u64().is_some_and(|acked| acked > 100), "{report}");
    for times in ["detection_ms", "unavailable_ms", "repair_ms"] {
        let times = &report[times];
        let at = |name: &str| times[name].as_f64().unwrap_or_else(|| panic!("{name}: {report}"));
        assert!(0.0 <= at("p50") && at("p50") <= at("p99") && at("p99") <= at("max"), "{report}");
    }
    assert!(report.get("data_lost").is_none(), "{report}");
    assert!(run.stderr.contains("The store kept all its promises."), "{run:?}");
    assert_eq!(shared_memory_names(), [""; 0]);
}

#[test]
fn kills_and_stops_break_no_promise_in_global_mode() {
    for programs in ["mixed", "bank"] {
        let (run, report) = report(&format!(
            "--members 5 --replicas 3 --mode global --programs {programs} \
             --kills 3 --stops 1 --seconds 2"
        ));
        assert_eq!((run.code(), &report["ok"]), (0, &Value::from(true)), "{run:?}");
        assert_eq!((&report["kills"], &report["stops"]), (&3.into(), &1.into()), "{report}");
        assert!(report["acked"].as_u64().is_some_and(|acked| acked > 100), "{report}");
    }
}

#[test]
fn a_run_without_faults_reports_no_times() {
    let history = tempfile::NamedTempFile::new().expect("a file");
    let path = history.path().to_str().expect("a plain path");
    let (run, report) = report(&format!(
        "--members 1 --replicas 1 --kills 0 --seconds 0.3 --threads 3 --history {path}"
    ));
    assert_eq!((run.code(), &report["ok"]), (0, &Value::from(true)), "{run:?}");
    assert_eq!(
        (&report["detection_ms"], &report["repair_ms"]),
        (&Value::Null, &Value::Null),
        "{report}"
    );
    let json = std::fs::read(path).expect("the history was written");
    let history = History::from_json(&json).expect("a history");
    assert!(history.operations().len() > 100, "{history}");
    assert!(judge(&Run::new(history)).ok());
}

/// More deaths at once than replicas: the store reports what is lost, and nothing is lost in
/// silence.
#[test]
fn loss_beyond_the_promise_is_reported() {
    let (run, report) = report("--members 5 --replicas 2 --kills 3 --seconds 1 --seed 3 --beyond");
    assert_eq!(
        (run.code(), &report["ok"], &report["lost"]),
        (0, &true.into(), &0.into()),
        "{run:?}"
    );
    assert!(report["data_lost"].as_u64().is_some_and(|lost| lost > 0), "{report}");
    assert_eq!(report["kills"], 3, "{report}");
}

/// With a single replica, all members but one die. Survivors read the memory of the dead.
#[test]
fn salvage_loses_nothing_with_a_single_replica() {
    let (run, report) = report("--members 5 --replicas 1 --kills 4 --seconds 2 --seed 3 --salvage");
    assert_eq!(
        (run.code(), &report["ok"], &report["lost"]),
        (0, &true.into(), &0.into()),
        "{run:?}"
    );
    assert_eq!(report["kills"], 4, "{report}");
}

/// In a build with failpoints members die inside the steps of the protocol, and the report names
/// the steps.
#[test]
fn deaths_inside_operations_break_no_promise() {
    if !failpoint::AVAILABLE {
        let run = outlast(&["chaos", "--failpoints"]);
        assert_eq!(run.code(), 2, "{run:?}");
        assert!(run.stderr.contains("--features faults"), "{run:?}");
        return;
    }
    let (run, report) =
        report("--members 5 --replicas 3 --kills 4 --seconds 2 --seed 2 --failpoints");
    assert_eq!(
        (run.code(), &report["ok"], &report["kills"]),
        (0, &true.into(), &4.into()),
        "{run:?}"
    );
    let table = report["deaths_by_step"].as_object().expect("a table");
    let deaths = |step: &str| table[step].as_u64().expect("a count");
    assert_eq!(table.keys().map(|step| deaths(step)).sum::<u64>(), 4, "{report}");
    let in_steps: u64 = steps::NAMES.iter().map(|step| deaths(step)).sum();
    assert!(in_steps > 0, "{report}");
}

/// A store with a protocol rule switched off does not pass.
#[test]
fn a_broken_store_is_caught() {
    if !failpoint::AVAILABLE {
        return;
    }
    let mut command = std::process::Command::new(common::OUTLAST);
    command.args([
        "chaos",
        "--members",
        "3",
        "--replicas",
        "2",
        "--kills",
        "0",
        "--seconds",
        "0.5",
        "--json",
        "-",
    ]);
    let output = command.env("OUTLAST_MUTANT", "forget-tombstone").output().expect("runs");
    let report: Value =
        serde_json::from_slice(&output.stdout).expect("standard output is JSON alone");
    assert_eq!((output.status.code(), &report["ok"]), (Some(1), &false.into()), "{report}");
    assert!(report["nonlinearizable"].as_u64() > Some(0), "{report}");
}

/// OUTLAST_LOG shows how the store handles a death, member by member.
#[test]
fn the_log_reports_deaths() {
    let mut command = std::process::Command::new(common::OUTLAST);
    command.args(["chaos", "--members", "3", "--replicas", "2", "--kills", "1", "--seconds", "1"]);
    let output = command.env("OUTLAST_LOG", "debug").output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let tells = |what: &str| said.lines().any(|line| line.starts_with('[') && line.contains(what));
    assert!(tells("members are gone") && tells("a new replica is to be filled here"), "{said}");
}

/// Programs on seats have the answer of the oracle, whoever dies; with logs, too.
#[test]
fn programs_on_seats_outlast_their_members() {
    for arguments in [
        "--members 5 --programs seats --kills 2 --stops 1 --seconds 2 --seed 3",
        "--members 4 --programs table --kills 2 --seconds 1",
        "--members 4 --programs transform --logged --replicas 2 --kills 2 --seconds 1",
    ] {
        let (run, report) = report(arguments);
        assert_eq!((run.code(), &report["ok"]), (0, &Value::from(true)), "{arguments}: {run:?}");
        assert_eq!((&report["kills"], &report["wrong"]), (&2.into(), &0.into()), "{report}");
        assert!(report["programs"].as_u64() > Some(0), "{report}");
        assert!(report["whole_ms"]["max"].as_f64() > Some(0.0), "{report}");
        assert!(run.stderr.contains("The seats kept all their promises."), "{run:?}");
    }
    assert_eq!(shared_memory_names(), [""; 0]);
}

/// A rollback that leaves the memory of survivors as it is gives wrong answers.
#[test]
fn broken_seats_are_caught() {
    if !failpoint::AVAILABLE {
        return;
    }
    let line = "chaos --members 4 --programs transform --kills 2 --seconds 2 --seed 1 --json -";
    let mut command = std::process::Command::new(common::OUTLAST);
    command.args(line.split(' ')).env("OUTLAST_MUTANT", "seat-survivor-keeps");
    let output = command.output().expect("runs");
    let report: Value =
        serde_json::from_slice(&output.stdout).expect("standard output is JSON alone");
    assert_eq!((output.status.code(), &report["ok"]), (Some(1), &false.into()), "{output:?}");
    assert!(report["wrong"].as_u64() > Some(0), "{report}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("a wrong answer") && said.contains("repeat with: "), "{said}");
}

#[test]
fn contradicting_options_are_refused() {
    for (wrong, said) in [
        (&["--members", "4", "--kills", "4"][..], "leave no survivor"),
        (&["--members", "4", "--replicas", "5"], "5 replicas in a job of 4"),
        (&["--replicas", "0", "--kills", "0"], "0 replicas"),
        (&["--replicas", "1", "--kills", "1"], "--beyond"),
        (&["--mode", "global", "--beyond"], "--mode localized"),
        (&["--failpoints", "--die-in", "recover.shrink"], "--mode global"),
        (&["--mode", "somehow"], "localized"),
        (&["--engine", "sim"], "this command has: shm"),
        (&["--seconds", "0"], "seconds"),
        (&["--threads", "0"], "threads"),
        (&["--members", "0"], "0"),
        (&["--kills", "-1"], "-1"),
        (&["--failpoints", "--die-in", "fly"], "there is no step `fly`; there are write.enter, "),
        (&["--failpoints", "--die-in", "install"], "several steps end with `install`"),
        (&["--die-in", "publish"], "--failpoints"),
        (&["--logged"], "--programs seats"),
        (&["--programs", "seats", "--beyond"], "--beyond is not for programs on seats"),
        (&["--programs", "table", "--mode", "global"], "--mode global is not for programs"),
        (&["--programs", "table", "--replicas", "1", "--kills", "0"], "--replicas 2"),
    ] {
        let run = outlast(&[&["chaos", "--json", "-"], wrong].concat());
        assert_eq!((run.code(), run.stdout.as_str()), (2, ""), "{wrong:?}: {run:?}");
        assert!(run.stderr.contains(said), "{wrong:?}: {run:?}");
    }
}

#[test]
fn ctrl_c_ends_the_command_and_its_members() {
    let started =
        start(&["chaos", "--members", "3", "--replicas", "2", "--kills", "1", "--seconds", "60"]);
    let members = started.children(3);
    wait_until("the members to join", || members.iter().all(|&pid| maps_job_memory(pid)));
    started.signal(rustix::process::Signal::INT);
    let run = started.finish();
    assert_eq!(run.code(), 1, "{run:?}");
    assert!(run.stderr.contains("interrupted"), "{run:?}");
    assert!(members.iter().all(|&pid| is_over(pid)));
}

/// If the command is killed by SIGKILL, its members end and leave nothing behind.
#[test]
fn members_end_with_the_command() {
    let started =
        start(&["chaos", "--members", "3", "--replicas", "2", "--kills", "1", "--seconds", "60"]);
    let members = started.children(3);
    started.signal(rustix::process::Signal::KILL);
    wait_until("the members to end", || members.iter().all(|&pid| is_over(pid)));
    assert_eq!(shared_memory_names(), [""; 0]);
}

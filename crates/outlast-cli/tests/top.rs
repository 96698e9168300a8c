//! `outlast jobs` and `outlast top` as users see them: a real job, a real death, and the end of the
//! job while it is watched.

mod common;

use common::{Finished, OUTLAST, Started, outlast, send, start, wait_until};
use rustix::process::Signal;
use serde_json::Value;

/// Starts a job of members that write to a store.
fn job(members: &str) -> Started {
    start(&["run", "-n", members, "--memory", "16M", OUTLAST, "sample-member", "--store"])
}

/// The job of a process, as `outlast top` prints it once; `None` if there is no job yet.
fn look(process: u32) -> Option<Value> {
    let process = process.to_string();
    let run = outlast(&["top", &process, "--once", "--json", "--interval", "200ms"]);
    if run.code() == 1 {
        assert!(run.stderr.contains("no job") && run.stdout.is_empty(), "{run:?}");
        return None;
    }
    assert_eq!(run.code(), 0, "{run:?}");
    assert_eq!(run.stdout.lines().count(), 1, "{run:?}");
    Some(serde_json::from_str(&run.stdout).expect("JSON"))
}

/// Looks at a job until a condition holds.
fn look_until(what: &str, process: u32, is_so: impl Fn(&Value) -> bool) -> Value {
    let mut found = Value::Null;
    wait_until(what, || {
        found = look(process).unwrap_or_default();
        is_so(&found)
    });
    found
}

fn member(job: &Value, number: usize) -> &Value {
    &job["members"][number]
}

fn pid(job: &Value, number: usize) -> u32 {
    member(job, number)["pid"].as_u64().expect("a process") as u32
}

/// Whether a member runs, and has made operations since the last look.
fn works(job: &Value, number: usize) -> bool {
    let rate = member(job, number)["operations_per_s"].as_f64();
    member(job, number)["state"] == "running" && rate.is_some_and(|rate| rate > 0.0)
}

fn run_ok(arguments: &[&str]) -> Finished {
    let run = outlast(arguments);
    assert_eq!(run.code(), 0, "{run:?}");
    run
}

#[test]
fn a_job_is_seen_with_its_deaths_and_stops_until_it_ends() {
    let run = job("3");
    let all_work = |job: &Value| (0..3).all(|number| works(job, number));
    let seen = look_until("all members to work", run.pid(), all_work);
    assert_eq!(seen["members"].as_array().map(Vec::len), Some(3), "{seen}");
    assert!(seen["running"] == 3 && seen["dead"] == 0 && seen["replicas"] == 2, "{seen}");
    assert!(member(&seen, 0)["segment_bytes"].as_u64() > Some(0), "{seen}");
    assert!(member(&seen, 0)["transactions"].as_u64() > Some(0), "{seen}");
    assert!(seen["command"].as_str().is_some_and(|text| text.contains("sample-member")), "{seen}");
    let id = seen["job"].clone();
    let number = id.to_string();

    let (killed, stopped) = (pid(&seen, 1), pid(&seen, 2));
    send(killed, Signal::KILL);
    let is_dead = |job: &Value| member(job, 1)["state"] == "dead" && works(job, 0);
    let seen = look_until("the death to be seen", run.pid(), is_dead);
    assert!(seen["running"] == 2 && seen["dead"] == 1, "{seen}");
    let is_repaired = |job: &Value| {
        let repaired = |number| member(job, number)["replicas_repaired"].as_u64() > Some(0);
        job["replicas_missing"] == 0 && (repaired(0) || repaired(2))
    };
    look_until("the repair to be seen", run.pid(), is_repaired);
    send(stopped, Signal::STOP);
    let is_stopped = |job: &Value| member(job, 2)["state"] == "stopped";
    let seen = look_until("the stop to be seen", stopped, is_stopped);
    assert!(seen["stopped"] == 1 && seen["job"] == id, "{seen}");
    send(stopped, Signal::CONT);

    let table = run_ok(&["top", &number, "--once", "--interval", "200ms"]).stdout;
    assert!(table.starts_with(&format!("job {number}, up ")), "{table}");
    let row = table.lines().find(|line| line.starts_with("1 ")).unwrap_or_default();
    assert!(row.contains("dead"), "{table}");

    let jobs: Value = serde_json::from_str(&run_ok(&["jobs", "--json"]).stdout).expect("JSON");
    let jobs = jobs.as_array().expect("a list");
    let own = jobs.iter().find(|job| job["job"] == id).expect("this job");
    assert!(own["members"] == 3 && own["living"] == 2 && own["dead"] == 1, "{own}");
    let list = run_ok(&["jobs"]).stdout;
    assert!(list.lines().any(|line| line.starts_with(&number)), "{list}");
    let metrics = run_ok(&["top", &number, "--metrics", "--interval", "200ms"]).stdout;
    let death = format!("outlast_deaths_total{{job=\"{number}\"}} 1");
    assert!(metrics.lines().any(|line| line == death), "{metrics}");

    // The job ends while it is watched, which is no error.
    let watch = start(&["top", &number, "--json", "--interval", "100ms"]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    run.signal(Signal::TERM);
    let watched = watch.finish();
    assert_eq!(watched.code(), 0, "{watched:?}");
    let lines: Vec<Value> =
        watched.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let last = lines.last().expect("a line");
    assert_eq!(last["has_ended"], true, "{last}");
    let events = last["events"].as_array().expect("a list");
    assert!(events.iter().any(|event| event["what"] == "the job has ended"), "{last}");
    assert!(lines[..lines.len() - 1].iter().all(|line| line["has_ended"] == false), "{watched:?}");
    run.finish();
    let gone = outlast(&["top", &number, "--once"]);
    assert_eq!(gone.code(), 1, "{gone:?}");
    assert_eq!(gone.lines_with(&format!("there is no job {number}")).len(), 1, "{gone:?}");
}

#[test]
fn wrong_usage_and_unknown_jobs_are_refused() {
    for (arguments, code) in [
        (&["top", "0", "--once"][..], 1),
        (&["top", "18446744073709551615", "--json"], 1),
        (&["top", "abc"], 2),
        (&["top", "-1"], 2),
        (&["top", "--interval", "1ms"], 2),
        (&["top", "--once", "--metrics"], 2),
        (&["jobs", "7"], 2),
        (&["demo", "--watch"], 2),
    ] {
        let run = outlast(arguments);
        assert_eq!(run.code(), code, "{arguments:?}: {run:?}");
        assert!(run.stdout.is_empty() && !run.stderr.is_empty(), "{arguments:?}: {run:?}");
    }
}

//! `outlast bench` with peers: a peer is measured, or left out with its reason, and its processes
//! end with the benchmark, whatever ends it. The peer of these tests is a small server that speaks
//! the language of memcached, so that they need nothing to be installed.

mod common;

use common::{Started, children, is_over, outlast, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

const SERVER: &str = r#"#!/usr/bin/env python3
import socket, sys, threading
if "--version" in sys.argv:
    print("memcached 0.0.1")
    sys.exit(0)
server = socket.socket(socket.AF_UNIX)
path = sys.argv[sys.argv.index("-s") + 1]
server.bind(path)
server.listen()
values = {}
def serve(stream):
    for line in stream:
        words = line.split()
        if words[0] == b"set":
            values[words[1]] = stream.read(int(words[4]) + 2)
            stream.write(b"STORED\r\n")
            if len(values) == 1:
                open(path + ".busy", "w").close()
        else:
            value = values[words[1]]
            stream.write(b"VALUE %s 0 %d\r\n%sEND\r\n" % (words[1], len(value) - 2, value))
        stream.flush()
while True:
    stream = server.accept()[0].makefile("rwb")
    threading.Thread(target=serve, args=(stream,), daemon=True).start()
"#;

/// Writes the server into a folder.
fn server(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("memcached");
    std::fs::write(&path, SERVER).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).expect("set");
    path
}

/// Starts a benchmark against the server.
fn start(server: &Path, arguments: &[&str]) -> Started {
    let mut command = Command::new(common::OUTLAST);
    command.args(["bench"]).args(arguments).args(["--members", "2", "--replicas", "2"]);
    command.args(["--sizes", "64", "--keys", "16", "--peers", "memcached"]);
    command.env("MEMCACHED", server).stdin(Stdio::null());
    Started::of(command)
}

/// Runs a benchmark with the server as a peer, and returns its JSON.
fn results_of(folder: &Path, arguments: &[&str]) -> Value {
    let mut command = Command::new(common::OUTLAST);
    command.arg("bench").args(arguments).args(["--json", "-"]);
    command.env("MEMCACHED", server(folder)).env("JAVA_HOME", "/no/such/folder");
    let run = Started::of(command).finish();
    assert_eq!(run.code(), 0, "{run:?}");
    serde_json::from_str(&run.stdout).expect("standard output is JSON alone")
}

/// The rows of a contender.
fn rows<'a>(report: &'a Value, contender: &str) -> Vec<&'a Value> {
    let all = report["results"].as_array().expect("a list");
    all.iter().filter(|row| row["contender"] == contender).collect()
}

fn folder_of(pid: u32) -> std::path::PathBuf {
    let base = Path::new("/dev/shm");
    let base = if base.is_dir() { base.to_path_buf() } else { std::env::temp_dir() };
    base.join(format!("bench-peers-{pid}"))
}

#[test]
fn a_peer_is_measured_in_the_same_run() {
    let folder = tempfile::tempdir().expect("a folder");
    for (what, contender) in
        [("put", "memcached set, one copy"), ("get", "memcached get, one copy")]
    {
        let started = start(&server(folder.path()), &[what, "--seconds", "0.3"]);
        let pid = started.pid();
        let run = started.finish();
        assert_eq!(run.code(), 0, "{run:?}");
        assert!(run.stdout.contains(contender), "{run:?}");
        assert!(run.stdout.contains("Compared are unlike things"), "{run:?}");
        assert!(!folder_of(pid).exists(), "its folder is removed");
    }
}

#[test]
fn an_absent_peer_is_left_out_with_its_reason() {
    for (peer, variable, advice) in [
        ("redis", "REDIS_SERVER", "cargo xtask redis"),
        ("etcd", "ETCD", "cargo xtask peers"),
        ("memcached", "MEMCACHED", "cargo xtask peers"),
        ("hazelcast", "JAVA_HOME", "found no Java"),
        ("lmdb", "CC", "found no C compiler"),
    ] {
        let run = Command::new(common::OUTLAST)
            .args(["bench", "put", "--members", "2", "--replicas", "2", "--sizes", "64"])
            .args(["--seconds", "0.1", "--peers", peer])
            .env(variable, "/no/such/program")
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&run.stdout);
        assert_eq!(run.status.code(), Some(0), "{said}");
        assert!(said.contains("left out: ") && said.contains(advice), "{peer}: {said}");
    }
    let run = outlast(&["bench", "put", "--peers", "redis,oracle"]);
    assert_eq!(run.code(), 2, "{run:?}");
    assert!(run.stderr.contains("oracle") && run.stderr.contains("hazelcast"), "{run:?}");
}

/// The server of a benchmark that is under load.
fn server_under_load(started: &Started) -> u32 {
    let mut server = 0;
    wait_until("the server", || {
        let is_server = |pid: &u32| {
            std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|words| words.contains("-s\0") && !words.contains("peer-server"))
        };
        let found = children(started.pid()).into_iter().find(is_server);
        server = found.unwrap_or(0);
        found.is_some() && folder_of(started.pid()).join("memcached-0/socket.busy").exists()
    });
    server
}

#[test]
fn a_peer_that_dies_under_load_fails_the_benchmark() {
    let folder = tempfile::tempdir().expect("a folder");
    let started = start(&server(folder.path()), &["put", "--seconds", "60"]);
    let (pid, server) = (started.pid(), server_under_load(&started));
    common::send(server, Signal::KILL);
    let run = started.finish();
    assert_eq!(run.code(), 1, "{run:?}");
    assert!(run.stderr.contains("memcached failed or ended under load"), "{run:?}");
    assert!(!folder_of(pid).exists());
}

#[test]
fn peers_end_with_the_benchmark() {
    let folder = tempfile::tempdir().expect("a folder");
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let started = start(&server(folder.path()), &["put", "--seconds", "60"]);
        let (pid, server) = (started.pid(), server_under_load(&started));
        started.signal(signal);
        drop(started.finish());
        wait_until("the end of the server", || is_over(server));
        // Nothing can remove the folder at a SIGKILL; the next benchmark does.
        assert_eq!(folder_of(pid).exists(), signal == Signal::KILL, "{signal:?}");
    }
    let started = start(&server(folder.path()), &["put", "--seconds", "0.1"]);
    assert_eq!(started.finish().code(), 0);
    let left = Path::new("/dev/shm").read_dir().into_iter().flatten().flatten();
    let mut left = left.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_dead = |name: &String| {
        let pid = name.strip_prefix("bench-peers-");
        pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists())
    };
    assert_eq!(left.find(is_dead), None);
}

#[test]
fn the_parts_of_all_benchmarks_have_a_single_report() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("bench.html");
    let path = path.to_str().expect("a plain path");
    let mut command = Command::new(common::OUTLAST);
    command.args(["bench", "all", "--parts", "get", "--seconds", "0.05"]);
    command.args(["--peers", "memcached", "--report", path, "--json", "-"]);
    command.env("MEMCACHED", server(folder.path()));
    let run = Started::of(command).finish();
    assert_eq!(run.code(), 0, "{run:?}");
    let report: serde_json::Value =
        serde_json::from_str(&run.stdout).expect("standard output is JSON alone");
    let rows = report["results"].as_array().expect("a list");
    assert!(rows.iter().any(|row| row["contender"] == "memcached get, one copy"), "{report}");
    assert!(rows.iter().any(|row| row["contender"] == "get_into by handle"), "{report}");
    assert_eq!(report["versions"][0][0], "memcached", "{report}");
    let page = std::fs::read_to_string(path).expect("the report was written");
    assert!(page.contains("memcached get, one copy") && page.contains("0.0.1"), "{page}");
    let run = outlast(&["bench", "all", "--parts", "put,everything"]);
    assert_eq!(run.code(), 2, "{run:?}");
    let run = outlast(&["bench", "all", "--seconds", "-1"]);
    assert_eq!(run.code(), 2, "{run:?}");
}

#[test]
fn a_part_that_fails_is_left_out_with_its_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(folder.path());
    // This server ends at the first value, as a server without memory might.
    let end = "sys.stderr.write('out of memory\\n')\n            sys.stderr.flush(); os._exit(9)";
    let text = SERVER.replace("import socket", "import os, socket");
    let text = text.replace("values[words[1]] = stream.read(int(words[4]) + 2)", end);
    std::fs::write(&server, text).expect("written");
    let mut command = Command::new(common::OUTLAST);
    command.args(["bench", "all", "--parts", "get,failover", "--seconds", "0.05"]);
    command.args(["--peers", "memcached", "--json", "-"]).env("MEMCACHED", &server);
    let run = Started::of(command).finish();
    assert_eq!(run.code(), 0, "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout).expect("standard output is JSON alone");
    let remarks = report["remarks"].as_array().expect("a list");
    let left_out = remarks[0].as_str().expect("a text");
    assert!(left_out.starts_with("left out: the part get: it failed"), "{left_out}");
    assert!(left_out.contains("out of memory"), "the server's own words: {left_out}");
    let took = remarks[1].as_str().expect("a text");
    assert!(took.starts_with("All parts took ") && took.contains("failover 0:"), "{took}");
    let rows = report["results"].as_array().expect("a list");
    assert!(!rows.is_empty() && rows.iter().all(|row| row["what"] == "failover"), "{report}");
}

#[test]
fn a_report_is_shown_again_as_a_page_and_as_pictures() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_string();
    let (json, page, pictures) = (place("a.json"), place("a.html"), place("pictures"));
    let run = outlast(&["bench", "failure", "--seconds", "1", "--rate", "100", "--json", &json]);
    assert_eq!(run.code(), 0, "{run:?}");
    let run = outlast(&["bench", "show", &json, "--report", &page, "--pictures", &pictures]);
    assert_eq!(run.code(), 0, "{run:?}");
    assert!(run.stdout.contains("first write of an affected key"), "{run:?}");
    let page = std::fs::read_to_string(page).expect("the page was written");
    assert!(page.contains("outlast bench failure --seconds 1"), "the command that measured");
    let picture = std::fs::read_to_string(Path::new(&pictures).join("failure.svg"));
    let picture = picture.expect("the picture was drawn");
    assert!(picture.starts_with("<svg xmlns") && picture.contains("Outlast"), "{picture}");
    // A file that is no report, and a file that is not there.
    std::fs::write(&json, "{\"results\": 3}").expect("written");
    let run = outlast(&["bench", "show", &json]);
    assert!(run.code() == 1 && run.stderr.contains("not the JSON of a benchmark"), "{run:?}");
    let run = outlast(&["bench", "show", "/no/such/file.json"]);
    assert!(run.code() == 1 && run.stderr.contains("No such file"), "{run:?}");
}

/// A picture of the documentation shows what a record says.
#[test]
fn the_pictures_of_the_documentation_are_drawn_from_a_record() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let drawn = tempfile::tempdir().expect("a folder");
    let to = drawn.path().to_str().expect("a plain path");
    let files = |folder: &Path, end: &str| -> Vec<std::path::PathBuf> {
        let entries = folder.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
        entries.filter(|path| path.to_string_lossy().ends_with(end)).collect()
    };
    for record in files(&workspace.join("bench/records"), ".json") {
        let size = record.metadata().expect("a file").len();
        assert!(size < 200_000, "{} has {size} bytes; a record is small", record.display());
        let record = record.to_str().expect("a plain path");
        let run = outlast(&["bench", "show", record, "--pictures", to]);
        assert_eq!(run.code(), 0, "{run:?}");
        assert!(!run.stdout.contains("left out: "), "a record is complete: {run:?}");
    }
    for picture in files(&workspace.join("docs/pictures"), ".svg") {
        let again = drawn.path().join(picture.file_name().expect("a name"));
        let (picture, again) = (std::fs::read(&picture), std::fs::read(again));
        let is_equal = picture.expect("a file") == again.expect("a record has its measurements");
        assert!(is_equal, "draw it again: outlast bench show RECORD --pictures docs/pictures");
    }
}

#[test]
fn a_server_that_finds_its_port_in_use_is_left_out_with_what_it_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = folder.path().join("redis-server");
    let script = "#!/bin/sh\n[ \"$1\" = --version ] && { echo v=7.0.15; exit 0; }\n\
                  echo 'bind: Address already in use' >&2\nexit 1\n";
    std::fs::write(&server, script).expect("written");
    std::fs::set_permissions(&server, std::fs::Permissions::from_mode(0o700)).expect("set");
    for arguments in
        [&["put", "--sizes", "64", "--seconds", "0.1"][..], &["failure", "--seconds", "0.8"]]
    {
        let mut command = Command::new(common::OUTLAST);
        command.arg("bench").args(arguments).args(["--peers", "redis"]);
        command.env("REDIS_SERVER", &server);
        let run = Started::of(command).finish();
        assert_eq!(run.code(), 0, "{run:?}");
        let line = run.stdout.lines().find(|line| line.starts_with("left out: Redis"));
        let line = line.unwrap_or_else(|| panic!("{run:?}"));
        assert!(line.contains("Address already in use"), "{line}");
    }
}

#[test]
fn loads_of_many_callers_are_measured_with_a_peer() {
    let folder = tempfile::tempdir().expect("a folder");
    let short = ["--seconds", "0.2", "--keys", "16", "--peers", "memcached"];
    let mixed = results_of(folder.path(), &[&["mixed", "--sizes", "64"], &short[..]].concat());
    for contender in ["Outlast, by key", "Outlast, by handle", "memcached, one copy"] {
        let callers: Vec<_> =
            rows(&mixed, contender).iter().map(|row| row["callers"].as_u64()).collect();
        assert_eq!(callers, [Some(1), Some(4)], "{contender}: {mixed}");
    }
    let rate = results_of(folder.path(), &[&["rate", "--rates", "200"], &short[..]].concat());
    for contender in ["Outlast put by key", "memcached set, one copy"] {
        // Calls that were due count, also those that a crowded machine made late.
        let found = rows(&rate, contender);
        assert_eq!(found[0]["samples"], 40, "{contender}: {rate}");
    }
    let throughput =
        results_of(folder.path(), &[&["throughput", "--callers", "1,3"], &short[..]].concat());
    for contender in ["Outlast, members", "Outlast, threads of a member", "memcached set, one copy"]
    {
        let found = rows(&throughput, contender);
        assert_eq!(found.len(), 2, "{contender}: {throughput}");
        assert!(found.iter().all(|row| row["calls_per_s"].as_f64() > Some(0.0)), "{throughput}");
    }
}

#[test]
fn the_figure_of_the_poster_goes_on_without_java() {
    let folder = tempfile::tempdir().expect("a folder");
    let arguments = ["poster", "--members", "5", "--replicas", "3", "--sizes", "64"];
    let poster = results_of(folder.path(), &[&arguments[..], &["--seconds", "0.2"]].concat());
    for contender in ["Outlast put by handle", "Outlast put by key"] {
        let found = rows(&poster, contender);
        let callers: Vec<_> = found.iter().map(|row| row["callers"].as_u64()).collect();
        assert_eq!(callers, [Some(1), Some(5)], "{poster}");
        for row in found {
            assert!(row["p25_ns"].as_u64() > Some(0) && row["replicas"] == 3, "{row}");
            assert!(row["p25_ns"].as_u64() <= row["p75_ns"].as_u64(), "{row}");
        }
    }
    let remarks = poster["remarks"].to_string();
    assert!(remarks.contains("left out: Hazelcast: found no Java"), "{remarks}");
}

#[test]
fn memory_and_growth_are_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let arguments = ["memory", "--keys", "2000", "--peers", "memcached"];
    let memory = results_of(folder.path(), &arguments);
    let bytes = rows(&memory, "Outlast")[0]["bytes"].as_u64();
    // Three copies of 64 bytes with their records.
    assert!((Some(3 * 64)..Some(3000)).contains(&bytes), "{memory}");
    assert_eq!(rows(&memory, "memcached").len(), 1, "{memory}");
    let arguments = ["growth", "--members", "2,5", "--simulated", "4,8", "--seconds", "0.1"];
    let growth = results_of(folder.path(), &arguments);
    assert_eq!(rows(&growth, "5 processes").len(), 1, "{growth}");
    let requests = |name: &str| rows(&growth, name)[0]["messages"].as_f64().unwrap_or(0.0);
    let (few, more) = (requests("4 simulated members"), requests("8 simulated members"));
    assert!(few > 3.0 && more < few * 1.5 + 1.0, "{growth}");
}

#[test]
fn a_failure_costs_no_write_and_is_repaired() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("failure.html");
    let path = path.to_str().expect("a plain path");
    let arguments = ["failure", "--seconds", "2", "--rate", "200", "--report", path];
    let failure = results_of(folder.path(), &arguments);
    let courses = failure["courses"].as_array().expect("a list");
    assert_eq!(courses.len(), 1, "{failure}");
    let course = &courses[0];
    assert!(course["lost"] == 0 && course["acked"].as_u64() > Some(50), "{course}");
    for time in ["first_affected_ns", "others_after_ns", "complete_ns"] {
        assert!(course[time].as_u64() > Some(0), "{time}: {course}");
    }
    assert!(course["from_s"].as_f64() < Some(0.0), "writes begin before the kill: {course}");
    assert_eq!(rows(&failure, "Outlast").len(), 3, "{failure}");
    let page = std::fs::read_to_string(path).expect("the report was written");
    assert!(page.contains("What a failure costs") && page.contains("kill -9"), "{page}");
}

#[test]
fn wrong_usage_of_loads_is_refused_before_anything_starts() {
    for (arguments, named) in [
        (&["failure", "--peers", "memcached"][..], "memcached"),
        (&["poster", "--peers", "hazelcast,oracle"], "oracle"),
        (&["poster", "--members", "4"], "6 replicas need as many members"),
        (&["mixed", "--seconds", "0"], "above 0"),
        (&["mixed", "--sizes", "2M"], "at most 1M"),
        (&["rate", "--rates", "0"], "1..=1000000"),
        (&["throughput", "--callers", "0"], "1..=64"),
        (&["memory", "--keys", "5"], "1000..=1000000"),
        (&["growth", "--simulated", "5000"], "0..=4096"),
        (&["failure", "--report", "/no/such/folder/failure.html"], "cannot write"),
        (&["poster", "--report", "/proc/poster.html"], "cannot write"),
    ] {
        let run = outlast(&[&["bench"], arguments].concat());
        assert_eq!(run.code(), 2, "{arguments:?}: {run:?}");
        assert!(run.stderr.contains(named) && run.stdout.is_empty(), "{arguments:?}: {run:?}");
    }
}

#[test]
fn an_interruption_ends_everything_and_leaves_no_report() {
    let folder = tempfile::tempdir().expect("a folder");
    let pages = tempfile::tempdir().expect("a folder");
    let page = pages.path().join("mixed.html");
    // A shell may have started these tests with SIGINT ignored, which the command would inherit.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", common::OUTLAST]);
    command.args(["bench", "all", "--parts", "mixed", "--seconds", "60", "--peers", "memcached"]);
    command.arg("--report").arg(&page).env("MEMCACHED", server(folder.path()));
    let started = Started::of(command);
    let mut processes = Vec::new();
    // The part is a process of its own, and the server and the members are its children.
    wait_until("the part and its server", || {
        let parts = children(started.pid());
        processes = parts.iter().flat_map(|&part| children(part)).chain(parts.clone()).collect();
        parts.iter().any(|&part| folder_of(part).join("memcached-0/socket.busy").exists())
    });
    started.signal(Signal::INT);
    let run = started.finish();
    assert_ne!(run.code(), 0, "{run:?}");
    for process in processes {
        wait_until("the end of all processes", || is_over(process));
    }
    assert_eq!(pages.path().read_dir().expect("a folder").count(), 0, "no part of a report");
}

//! `outlast bench put --peers`: a peer is measured, or left out with its reason, and its processes
//! end with the benchmark, whatever ends it. The peer of these tests is a small server that speaks
//! the language of memcached, so that they need nothing to be installed.

mod common;

use common::{Started, children, is_over, outlast, wait_until};
use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

const SERVER: &str = r#"#!/usr/bin/env python3
import socket, sys
if "--version" in sys.argv:
    print("memcached 0.0.1")
    sys.exit(0)
server = socket.socket(socket.AF_UNIX)
path = sys.argv[sys.argv.index("-s") + 1]
server.bind(path)
server.listen()
stream = server.accept()[0].makefile("rwb")
values = {}
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

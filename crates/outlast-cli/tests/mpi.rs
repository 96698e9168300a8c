//! The commands on the mpi engine, under a real mpirun, on this host and on hosts made of network
//! namespaces.

mod common;

use common::{LIMIT, OUTLAST, outlast, shared_memory_names, start, wait_until};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

/// Jobs run in turn: the machine is small, and mpirun's processes use all of it.
static JOB_LOCK: Mutex<()> = Mutex::new(());

fn run(arguments: &[&str]) -> common::Finished {
    let _guard = JOB_LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let run = outlast(arguments);
    assert_eq!(shared_memory_names(), [""; 0], "{run:?}");
    run
}

/// Nodes of two ranks each on this host, which needs no root. Members of a node share memory,
/// members of different nodes exchange messages.
#[test]
fn nodes_outlast_their_members() {
    let mut command = Command::new(OUTLAST);
    command.args([
        "chaos",
        "--engine",
        "mpi",
        "--members",
        "6",
        "--kills",
        "2",
        "--seconds",
        "2",
        "--seed",
        "8",
    ]);
    command.args(["--threads", "1", "--json", "-"]).env("OUTLAST_MPI_PATH", "groups:2");
    check_two_kills(&mut command);
}

/// Every member is a node, and the kernel is not asked: only a majority declares a member dead, and
/// the survivors go on with a lease.
#[test]
fn a_majority_takes_the_place_of_the_kernel() {
    let mut command = Command::new(OUTLAST);
    command.args([
        "chaos",
        "--engine",
        "mpi",
        "--members",
        "5",
        "--kills",
        "2",
        "--seconds",
        "2",
        "--seed",
        "9",
    ]);
    command.args(["--threads", "1", "--json", "-"]);
    command.env("OUTLAST_MPI_PATH", "messages").env("OUTLAST_MPI_WITNESS", "votes");
    check_two_kills(&mut command);
}

fn check_two_kills(command: &mut Command) {
    let _guard = JOB_LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let output = command.output().expect("the command starts");
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!((&report["ok"], &report["kills"]), (&true.into(), &2.into()), "{output:?}");
}

fn check_chaos(arguments: &[&str], kills: u64) {
    let run = run(&[&["chaos", "--engine", "mpi", "--json", "-"], arguments].concat());
    let report: Value = serde_json::from_str(&run.stdout)
        .unwrap_or_else(|error| panic!("standard output is JSON alone: {error}: {run:?}"));
    assert_eq!((run.code(), &report["ok"]), (0, &Value::from(true)), "{run:?}");
    assert_eq!(report["kills"], kills, "{run:?}");
    assert!(run.stderr.contains("mpirun --with-ft ulfm"), "the launch line is printed: {run:?}");
}

#[test]
fn kills_and_stops_break_no_promise() {
    check_chaos(
        &["--members", "5", "--kills", "2", "--stops", "1", "--seconds", "2", "--seed", "5"],
        2,
    );
}

/// Runs a program of tasks, and checks its report.
fn check_tasks(arguments: &[&str], kills: u64) {
    let run = run(&[&["tasks", "--engine", "mpi", "--json", "-"], arguments].concat());
    let report: Value = serde_json::from_str(&run.stdout)
        .unwrap_or_else(|error| panic!("standard output is JSON alone: {error}: {run:?}"));
    assert_eq!((run.code(), &report["ok"]), (0, &Value::from(true)), "{run:?}");
    assert_eq!((&report["kills"], &report["answer"]), (&kills.into(), &report["expected"]));
}

#[test]
fn a_program_of_tasks_outlasts_its_workers() {
    let arguments = ["nqueens", "--n", "11", "--members", "6", "--kills", "2", "--stops", "1"];
    check_tasks(&[&arguments[..], &["--limit", "20", "--seed", "3"]].concat(), 2);
}

#[test]
fn a_program_of_tasks_on_three_hosts_outlasts_its_workers_and_a_host() {
    if !is_root() {
        return;
    }
    let common = ["--n", "11", "--members", "6", "--hosts", "3", "--limit", "20"];
    check_tasks(&[&["nqueens", "--kills", "2"], &common[..]].concat(), 2);
    check_tasks(&[&["nqueens", "--kill-host"], &common[..]].concat(), 2);
}

/// In global mode all members stop at a death.
#[test]
fn members_recover_together() {
    check_chaos(
        &[
            "--mode",
            "global",
            "--members",
            "6",
            "--kills",
            "2",
            "--stops",
            "1",
            "--seconds",
            "2",
            "--seed",
            "7",
        ],
        2,
    );
}

#[test]
fn members_on_three_hosts_recover_together() {
    let arguments =
        ["--mode", "global", "--members", "6", "--hosts", "3", "--kills", "2", "--seconds", "2"];
    if is_root() {
        check_chaos(&arguments, 2);
    } else {
        check_without_root(&run(&[&["chaos", "--engine", "mpi"][..], &arguments].concat()));
    }
}

/// Whether hosts can be made of this machine.
fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// Checks the message of a command that cannot make hosts.
fn check_without_root(run: &common::Finished) {
    assert!(run.code() == 1 && run.stderr.contains("needs root"), "{run:?}");
}

#[test]
fn killing_a_host_of_three_loses_no_write() {
    let arguments =
        ["--members", "6", "--hosts", "3", "--kill-host", "--seconds", "2", "--seed", "4"];
    if is_root() {
        check_chaos(&arguments, 2);
    } else {
        check_without_root(&run(&[&["chaos", "--engine", "mpi"][..], &arguments].concat()));
    }
}

/// Programs on seats have the answer of the oracle on one host, and on three of which one is lost.
#[test]
fn programs_on_seats_outlast_members_and_a_host() {
    check_chaos(&["--members", "4", "--programs", "table", "--kills", "2", "--seconds", "1"], 2);
    let arguments = "--members 6 --hosts 3 --kill-host --programs seats --seconds 2 --seed 4";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    if is_root() {
        check_chaos(&arguments, 2);
    } else {
        check_without_root(&run(&[&["chaos", "--engine", "mpi"], &arguments[..]].concat()));
    }
}

/// The members of a cut-off host live on, but none of their writes is acknowledged. The other hosts
/// go on.
#[test]
fn only_the_majority_goes_on_after_a_cut() {
    let arguments = [
        "--members",
        "6",
        "--hosts",
        "3",
        "--cut-host",
        "--seconds",
        "14",
        "--seed",
        "4",
        "--threads",
        "1",
    ];
    let run = run(&[&["chaos", "--engine", "mpi", "--json", "-"][..], &arguments].concat());
    if !is_root() {
        return check_without_root(&run);
    }
    let report: Value =
        serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
    assert_eq!((run.code(), &report["ok"]), (0, &Value::from(true)), "{run:?}");
    let acknowledged = |side: &str| report["cut"][side].as_u64();
    assert_eq!(acknowledged("cut_off"), Some(0), "{run:?}");
    assert!(acknowledged("others") > Some(0), "{run:?}");
}

#[test]
fn wrong_usage_exits_with_status_2_and_says_why() {
    let cases: [(&[&str], &str); 5] = [
        (&["chaos", "--hosts", "2"], "say --engine mpi as well"),
        (&["chaos", "--engine", "mpi", "--kill-host"], "--hosts"),
        (&["chaos", "--engine", "mpi", "--hosts", "1", "--kill-host"], "needs a second host"),
        (&["chaos", "--engine", "mpi", "--hosts", "1", "--cut-host"], "needs a second host"),
        (
            &["chaos", "--engine", "mpi", "--hosts", "3", "--cut-host", "--kill-host"],
            "cannot be used with",
        ),
    ];
    for (arguments, message) in cases {
        let run = run(arguments);
        assert!(run.code() == 2 && run.stderr.contains(message), "{arguments:?}: {run:?}");
    }
}

#[test]
fn the_demo_loses_no_write() {
    let run = run(&["demo", "--engine", "mpi", "--json", "-"]);
    let report: Value = serde_json::from_str(&run.stdout).expect("standard output is JSON alone");
    assert_eq!(
        (run.code(), &report["ok"], &report["lost"]),
        (0, &true.into(), &0.into()),
        "{run:?}"
    );
}

/// Inside an mpirun of the user the ranks are the members, and rank 0 is the command as well.
#[test]
fn the_ranks_of_an_mpirun_become_members() {
    let _guard = JOB_LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/mpi/bin/mpirun");
    let mpirun = if installed.exists() { installed } else { "mpirun".into() };
    let mut command = Command::new("timeout");
    command.arg(LIMIT.as_secs().to_string()).arg(mpirun);
    command.args([
        "--with-ft",
        "ulfm",
        "--oversubscribe",
        "-n",
        "4",
        OUTLAST,
        "chaos",
        "--engine",
        "mpi",
    ]);
    command.args(["--kills", "2", "--seconds", "1.5", "--seed", "6", "--json", "-"]);
    let _folder = outlast::launch::prepare(&mut command).expect("a folder for mpirun");
    let output = command.output().expect("mpirun starts; `cargo xtask mpi` installs it");
    let text = String::from_utf8_lossy(&output.stdout);
    let report: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!((&report["ok"], &report["kills"]), (&true.into(), &2.into()), "{output:?}");
}

/// Whether the engine of this process has joined. It has then opened the pipe to its launcher
/// write-only, for appending, without waiting; its first message there is that it has joined.
fn has_joined(pid: u32) -> bool {
    let files = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    files.into_iter().any(|file| {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).unwrap_or(0);
        flags & 0o2_006_003 == 0o2_006_001
    })
}

/// All processes on one of three hosts are killed, while a single daemon of mpirun has started all
/// ranks. The other members finish.
#[test]
fn a_job_under_a_single_daemon_outlasts_a_host() {
    if !is_root() {
        return;
    }
    let _guard = JOB_LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let script = format!(
        "exec {OUTLAST} run --engine mpi --hosts \"$OUTLAST_HOSTFILE\" -n 6 --memory 1M \
         {OUTLAST} sample-member"
    );
    let job = start(&["hosts", "3", "--", "sh", "-c", &script]);
    let namespace = format!("outlast-{}-host3", job.pid());
    let pids = || {
        let list =
            Command::new("ip").args(["netns", "pids", &namespace]).output().expect("ip starts");
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        list.lines().filter_map(|pid| pid.trim().parse::<u32>().ok()).collect::<Vec<_>>()
    };
    wait_until("two members on the third host", || {
        pids().iter().filter(|&&pid| has_joined(pid)).count() == 2
    });
    for pid in pids().into_iter().filter_map(|pid| rustix::process::Pid::from_raw(pid as i32)) {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    }
    let run = job.finish();
    let count = |text: &str| run.stdout.lines().filter(|line| line.contains(text)).count();
    assert_eq!(count("\"wrong\":[]"), 4, "{run:?}");
    // A member reports all dead members at each death: the first death may be reported twice.
    assert!(count("\"dead\":2") >= 4 && count("\"dead\":5") >= 4, "{run:?}");
}

/// The launcher and mpirun are killed: no process that could remove the files of Open MPI at its
/// end is left but the watcher of the launcher.
#[test]
fn the_files_of_open_mpi_go_after_launcher_and_mpirun_were_killed() {
    use rustix::process::Signal;
    let _guard = JOB_LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let job = start(&["run", "--engine", "mpi", "-n", "2", "sleep", "60"]);
    let (launcher, folder) = (job.pid(), format!("outlast-mpi-{}-0", job.pid()));
    let is_there = || Path::new("/dev/shm").join(&folder).exists();
    let is_named = |pid: &u32, names: &[&str]| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        names.contains(&name.trim())
    };
    let mut ranks = Vec::new();
    let mut mpirun = Vec::new();
    wait_until("two ranks", || {
        mpirun = common::children(launcher);
        mpirun.retain(|pid| is_named(pid, &["mpirun", "prterun"]));
        ranks = mpirun.iter().flat_map(|&pid| common::children(pid)).collect();
        ranks.retain(|pid| is_named(pid, &["sleep"]));
        ranks.len() == 2
    });
    assert!(is_there());
    job.signal(Signal::KILL);
    // While mpirun runs it needs its files.
    wait_until("the end of the launcher", || common::is_over(launcher));
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(is_there());
    for pid in mpirun.into_iter().chain(ranks) {
        common::send(pid, Signal::KILL);
    }
    wait_until("the folder to go", || !is_there());
}

/// Whether namespaces of this process exist.
fn has_namespaces(pid: u32) -> bool {
    let list = Command::new("ip").args(["netns", "list"]).output().expect("ip starts");
    String::from_utf8_lossy(&list.stdout).contains(&format!("outlast-{pid}-"))
}

#[test]
fn hosts_are_taken_down_after_an_interruption() {
    if !is_root() {
        return check_without_root(&run(&["hosts", "2", "--", "true"]));
    }
    let hosts = start(&["hosts", "2", "--", "sleep", "60"]);
    let pid = hosts.pid();
    wait_until("the hosts", || has_namespaces(pid));
    hosts.signal(rustix::process::Signal::INT);
    let run = hosts.finish();
    assert!(run.code() == 1 && run.stderr.contains("the hosts are taken down"), "{run:?}");
    assert!(!has_namespaces(pid));
}

#[test]
fn hosts_are_made_or_the_reason_is_printed() {
    let run = run(&["hosts", "2", "--", "sh", "-c", "hostname; grep host2 /etc/hosts"]);
    if is_root() {
        assert_eq!((run.code(), run.stdout.as_str()), (0, "host1\n10.77.0.2 host2\n"), "{run:?}");
    } else {
        check_without_root(&run);
    }
}

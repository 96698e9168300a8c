//! `outlast run` as users see it: real processes, real signals, exit statuses, and nothing left
//! behind.

mod common;

use common::{
    OUTLAST, children, is_over, maps_job_memory, outlast, send, shared_memory_names, start,
    wait_until,
};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Arguments for `outlast run` with sample members, which join, work for some seconds and check the
/// results.
fn members<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [&["run", "--memory", "1M"], options, &[OUTLAST, "sample-member"]].concat()
}

/// How many sample members have finished without a wrong sum.
fn finished_well(stdout: &str) -> usize {
    stdout.lines().filter(|line| line.contains("\"done\"") && line.contains("\"wrong\":[]")).count()
}

#[test]
fn all_finish_well() {
    let run = outlast(&["run", "-n", "3", "echo", "hello"]);
    assert_eq!(run.code(), 0, "{run:?}");
    assert_eq!(run.stdout, "hello\n".repeat(3));
    assert_eq!(run.stderr, "");
}

#[test]
fn a_bad_exit_is_reported_and_fails() {
    let run = outlast(&["run", "-n", "2", "sh", "-c", "exit 3"]);
    assert_eq!(run.code(), 1, "{run:?}");
    assert_eq!(run.lines_with("exited with status 3").len(), 2, "{run:?}");
    assert_eq!(run.lines_with("0 of 2 finished well, 0 died, 2 ended badly").len(), 1, "{run:?}");
}

#[test]
fn a_kill_is_reported_in_a_line_and_the_survivors_finish_well() {
    let run = outlast(&members(&["-n", "4", "--kill", "2@800ms"]));
    assert_eq!(run.code(), 0, "{run:?}");
    let [line] = run.lines_with("member 2 (pid ")[..] else { panic!("{run:?}") };
    assert!(line.starts_with("outlast: member 2 (pid "), "{line}");
    let after = line
        .split_once(") was killed by SIGKILL after ")
        .and_then(|(_, rest)| rest.split_once(" s; "));
    let after: f64 = after.and_then(|(seconds, _)| seconds.parse().ok()).expect(line);
    assert!((0.8..3.0).contains(&after), "{line}");
    assert!(line.ends_with(" s; 3 of 4 go on"), "{line}");
    assert_eq!(run.lines_with("3 of 4 finished well, 1 died").len(), 1, "{run:?}");
    assert_eq!(finished_well(&run.stdout), 3, "{run:?}");
    assert_eq!(
        run.stdout.matches("\"noticed\":{\"dead\":2").count(),
        3,
        "all survivors notice: {run:?}"
    );
}

#[test]
fn fail_on_death_makes_a_kill_fail_the_run() {
    let run = outlast(&["run", "-n", "2", "--fail-on-death", "--kill", "0@100ms", "sleep", "0.5"]);
    assert_eq!(run.code(), 1, "{run:?}");
    assert_eq!(run.lines_with("member 0 (pid ").len(), 1, "{run:?}");
}

#[test]
fn a_kill_of_an_ended_member_is_reported() {
    let run = outlast(&[
        "run",
        "-n",
        "2",
        "--kill",
        "1@300ms",
        "sh",
        "-c",
        "test $OUTLAST_JOB = ${OUTLAST_JOB%1} && exec sleep 0.6; exit 0",
    ]);
    assert_eq!(run.code(), 0, "{run:?}");
    assert_eq!(
        run.lines_with("member 1 had ended before it was to be killed at 0.300 s").len(),
        1,
        "{run:?}"
    );
}

#[test]
fn random_kills_can_be_repeated() {
    let arguments = ["run", "-n", "5", "--kill-random", "2", "--within", "200ms", "sleep", "0.5"];
    let first = outlast(&arguments);
    assert_eq!(first.code(), 0, "{first:?}");
    assert_eq!(first.lines_with("was killed by SIGKILL").len(), 2, "{first:?}");
    let [plan] = first.lines_with("outlast: seed ")[..] else { panic!("{first:?}") };
    let seed = plan.split(' ').nth(2).expect("the line names the seed");
    assert!(
        plan.contains(&format!("repeat with --kill-random 2 --seed {seed} --within 200ms")),
        "{plan}"
    );
    let again = outlast(&[&arguments[..5], &["--seed", seed], &arguments[5..]].concat());
    assert_eq!(again.lines_with("outlast: seed "), [plan]);
}

#[test]
fn a_stopped_member_is_not_dead() {
    let run = outlast(&members(&["-n", "3", "--stop", "1@500ms:1s"]));
    assert_eq!(run.code(), 0, "{run:?}");
    assert_eq!(finished_well(&run.stdout), 3, "{run:?}");
    // Members that have left do not count as dead: no member may report a death.
    assert_eq!(run.lines_with("stopped member 1 at ").len(), 1, "{run:?}");
    assert_eq!(run.lines_with("resumed member 1 at ").len(), 1, "{run:?}");
    assert_eq!(run.stdout.matches("\"noticed\"").count(), 0, "{run:?}");
}

#[test]
fn lines_are_prefixed_by_their_member() {
    let script = "echo one; printf two; echo err >&2";
    let run = outlast(&["run", "-n", "2", "--spares", "1", "--prefix", "sh", "-c", script]);
    assert_eq!(run.code(), 0, "{run:?}");
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
        lines.sort();
        lines
    };
    assert_eq!(
        sorted(&run.stdout),
        ["[0] one", "[0] two", "[1] one", "[1] two", "[2] one", "[2] two"]
    );
    assert_eq!(sorted(&run.stderr), ["[0] err", "[1] err", "[2] err"]);
}

#[test]
fn the_time_limit_ends_the_job() {
    let began = Instant::now();
    let run = outlast(&["run", "-n", "2", "--time-limit", "300ms", "sleep", "30"]);
    assert_eq!(run.code(), 1, "{run:?}");
    assert_eq!(
        run.lines_with("the time limit of 0.300 s is over; killed member 0, member 1").len(),
        1,
        "{run:?}"
    );
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn wrong_usage_exits_with_status_2_and_says_why() {
    let cases: [(&[&str], &str); 13] = [
        (&["run", "-n", "0", "true"], "at least 1 member"),
        (&["run", "-n", "99999", "true"], "at most 4096"),
        (&["run", "-n", "2000", "true"], "1 to 1024"),
        (&["run", "-n", "2"], "required"),
        (&["run", "true"], "--members"),
        (
            &["run", "-n", "2", "--engine", "foo", "true"],
            "unknown engine `foo`; this command has: shm",
        ),
        (&["run", "-n", "2", "--hosts", "2", "true"], "say --engine mpi as well"),
        (&["run", "-n", "2", "--kill", "2@1s", "true"], "its members are 0 to 1"),
        (&["run", "-n", "2", "--kill", "1@1", "true"], "write it as 500ms"),
        (
            &["run", "-n", "2", "--kill", "1@1s", "--kill", "0@1s", "true"],
            "leave no survivor; kill at most 1",
        ),
        (&["run", "-n", "2", "--kill-random", "2", "true"], "leave no survivor; kill at most 1"),
        (&["run", "-n", "3", "--kill", "1@1s", "--kill", "1@2s", "true"], "killed twice"),
        (&["run", "-n", "2", "/no/such/program"], "cannot start `/no/such/program`"),
    ];
    for (arguments, message) in cases {
        let run = outlast(arguments);
        assert_eq!(run.code(), 2, "{arguments:?}: {run:?}");
        assert!(run.stderr.contains(message), "{arguments:?}: {run:?}");
        assert_eq!(run.stdout, "", "{arguments:?}");
    }
}

#[test]
fn ctrl_c_ends_all_members() {
    let run = start(&members(&["-n", "3"]));
    let pids = run.children(3);
    wait_until("the members to join", || pids.iter().all(|&pid| maps_job_memory(pid)));
    run.signal(Signal::INT);
    let run = run.finish();
    assert_eq!(run.code(), 1, "{run:?}");
    assert_eq!(run.lines_with("was killed by SIGINT").len(), 3, "{run:?}");
    assert_eq!(run.lines_with("0 of 3 finished well, 3 died").len(), 1, "{run:?}");
    assert!(pids.iter().all(|&pid| is_over(pid)));
}

#[test]
fn a_second_ctrl_c_kills_members_that_ignore_it() {
    let run = start(&["run", "-n", "2", "sh", "-c", "trap '' INT; echo ready; exec sleep 60"]);
    let pids = run.children(2);
    let is_sleeping = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| name.trim() == "sleep")
    };
    wait_until("the members to ignore SIGINT", || pids.iter().all(is_sleeping));
    run.signal(Signal::INT);
    std::thread::sleep(Duration::from_millis(300));
    assert!(
        !pids.iter().any(|&pid| is_over(pid)),
        "the first signal is passed on, and they ignore it"
    );
    run.signal(Signal::INT);
    let run = run.finish();
    assert_eq!(run.code(), 1, "{run:?}");
    assert_eq!(run.lines_with("was killed by SIGKILL").len(), 2, "{run:?}");
}

#[test]
fn other_signals_are_passed_on() {
    let script = "trap 'echo got it; exit 0' USR1; echo ready; while :; do sleep 0.02; done";
    let run = start(&["run", "-n", "2", "sh", "-c", script]);
    let pids = run.children(2);
    // Without a trap the signal would end the shell. Its first sleep begins after the trap is set.
    // (The set of caught signals does not show it: just after the fork it is still the launcher's
    // set.)
    wait_until("the shells to set their traps", || {
        pids.iter().all(|&pid| !children(pid).is_empty())
    });
    run.signal(Signal::USR1);
    let run = run.finish();
    assert_eq!(run.code(), 0, "{run:?}");
    assert_eq!(run.stdout.matches("got it").count(), 2, "{run:?}");
}

/// Only the launcher can know of this end, and it informs the members.
#[test]
fn members_do_not_wait_for_a_member_that_ended_before_joining() {
    let script = format!("case $OUTLAST_JOB in *:1) exit 0;; esac; exec {OUTLAST} sample-member");
    let run = outlast(&["run", "-n", "3", "--memory", "1M", "sh", "-c", &script]);
    assert_eq!(run.code(), 0, "{run:?}");
    assert_eq!(finished_well(&run.stdout), 2, "{run:?}");
}

#[test]
fn members_outlive_a_killed_launcher_and_finish_on_their_own() {
    let run = start(&members(&["-n", "3"]));
    let pids = run.children(3);
    wait_until("the members to join", || pids.iter().all(|&pid| maps_job_memory(pid)));
    run.signal(Signal::KILL);
    std::thread::sleep(Duration::from_millis(500));
    assert!(!pids.iter().any(|&pid| is_over(pid)), "they go on");
    wait_until("the members to finish", || pids.iter().all(|&pid| is_over(pid)));
    let run = run.finish();
    assert_eq!(finished_well(&run.stdout), 3, "{run:?}");
    assert_eq!(shared_memory_names(), [] as [String; 0]);
}

#[test]
fn die_with_launcher_ends_the_members_of_a_killed_launcher() {
    let run = start(&members(&["-n", "3", "--die-with-launcher"]));
    let pids = run.children(3);
    wait_until("the members to join", || pids.iter().all(|&pid| maps_job_memory(pid)));
    let killed = Instant::now();
    run.signal(Signal::KILL);
    wait_until("the members to die", || pids.iter().all(|&pid| is_over(pid)));
    assert!(killed.elapsed() < Duration::from_secs(2), "the kernel kills them at once");
    assert_eq!(finished_well(&run.finish().stdout), 0);
}

#[test]
fn nothing_is_left_after_everything_was_killed() {
    let run = start(&members(&["-n", "3"]));
    let pids = run.children(3);
    wait_until("the members to join", || pids.iter().all(|&pid| maps_job_memory(pid)));
    for pid in [&[run.pid()][..], &pids].concat() {
        send(pid, Signal::KILL);
    }
    wait_until("all of them to end", || pids.iter().all(|&pid| is_over(pid)));
    run.finish();
    assert!(!pids.iter().any(|&pid| maps_job_memory(pid)));
    assert_eq!(shared_memory_names(), [] as [String; 0]);
}

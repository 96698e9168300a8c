//! Launching as a library call: outcomes, signals, output, limits, and that nothing is left behind.
//! The members here are ordinary commands, because a launcher does not require its members to join.
//! The last tests launch the programs of `examples/rust`.

use crate::members::example;
use outlast::MemberId;
use outlast::launch::{Event, Launch, LaunchError, Output, Signal};
use std::path::Path;
use std::time::{Duration, Instant};

/// The time limit of every wait in these tests.
const LIMIT: Duration = Duration::from_secs(30);

fn shell(members: usize, script: &str) -> Launch {
    Launch::new(members).program("sh").args(["-c", script]).segment_limit(1 << 20)
}

fn is_gone(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn the_outcome_reports_that_all_finished() {
    let mut job = shell(3, "exit 0").start().expect("starts");
    assert_eq!(job.pids().len(), 3);
    let outcome = job.wait(LIMIT);
    assert!(outcome.survivors_ok() && !outcome.timed_out, "{outcome}");
    assert_eq!(outcome.members.iter().map(|end| end.member.0).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(job.pids().into_iter().all(is_gone));
}

#[test]
fn a_death_is_no_failure_and_a_bad_exit_is() {
    let mut job = shell(3, "exec sleep 0.3").start().expect("starts");
    assert!(job.kill(MemberId(1)).expect("is a member"));
    let outcome = job.wait(LIMIT);
    assert!(outcome.survivors_ok(), "{outcome}");
    assert_eq!(outcome.deaths().map(|end| end.member).collect::<Vec<_>>(), [MemberId(1)]);
    assert!(outcome.to_string().contains("was killed by SIGKILL after "), "{outcome}");
    assert!(!job.kill(MemberId(1)).expect("is a member"), "it has ended");

    let outcome = shell(2, "exit 3").start().expect("starts").wait(LIMIT);
    assert!(!outcome.survivors_ok() && outcome.deaths().next().is_none(), "{outcome}");
    assert!(outcome.to_string().contains("exited with status 3"), "{outcome}");
}

#[test]
fn a_job_without_survivors_is_a_failure() {
    let mut job = shell(2, "exec sleep 30").start().expect("starts");
    job.signal_all(Signal::TERM);
    let outcome = job.wait(LIMIT);
    assert!(!outcome.survivors_ok() && !outcome.timed_out, "{outcome}");
    assert_eq!(outcome.deaths().count(), 2);
}

#[test]
fn the_time_limit_kills_the_remaining_members() {
    let began = Instant::now();
    let mut job = shell(2, "exec sleep 30").start().expect("starts");
    let outcome = job.wait(Duration::from_millis(200));
    assert!(
        outcome.timed_out && !outcome.survivors_ok() && outcome.left_running.is_empty(),
        "{outcome}"
    );
    assert!(began.elapsed() < Duration::from_secs(10));
    assert!(job.pids().into_iter().all(is_gone));
}

#[test]
fn dropping_a_running_job_leaves_no_process() {
    let job = shell(3, "exec sleep 30").start().expect("starts");
    let pids = job.pids();
    drop(job);
    assert!(pids.into_iter().all(is_gone));
}

#[test]
fn a_stopped_member_goes_on_when_resumed() {
    let mut job = shell(2, "exec sleep 0.2").start().expect("starts");
    assert!(job.stop(MemberId(0)).expect("is a member"));
    assert!(job.wait_for(MemberId(1), LIMIT).expect("ends").is_ok());
    assert!(job.wait_for(MemberId(0), Duration::from_millis(300)).is_none(), "it is stopped");
    assert_eq!(job.running(), 1);
    assert!(job.resume(MemberId(0)).expect("is a member"));
    assert!(job.wait(LIMIT).survivors_ok());
}

#[test]
fn events_come_in_the_order_of_the_ends() {
    let mut job = shell(2, "exec sleep 30").start().expect("starts");
    assert!(job.poll_events().is_empty());
    assert!(job.next_event(Duration::from_millis(10)).is_none());
    for victim in [MemberId(1), MemberId(0)] {
        job.kill(victim).expect("is a member");
        let Some(Event::Ended(end)) = job.next_event(LIMIT) else { panic!("{victim} was killed") };
        assert_eq!(end.member, victim);
        assert!(!end.joined && end.is_death());
    }
}

#[test]
fn output_is_captured_by_member_and_stream() {
    let script = "echo out; echo err >&2; printf '%s' \"$EXTRA\"; pwd";
    let mut job = shell(2, script)
        .env("EXTRA", "more ")
        .current_dir("/proc")
        .output(Output::Capture)
        .start()
        .expect("starts");
    let outcome = job.wait(LIMIT);
    for member in [MemberId(0), MemberId(1)] {
        assert_eq!(outcome.stdout(member), "out\nmore /proc\n");
        assert_eq!(outcome.stderr(member), "err\n");
    }
}

/// A process that a member leaves behind may hold the member's output open for ever: the launcher
/// does not wait for it.
#[test]
fn a_pipe_that_stays_open_does_not_delay_the_launcher() {
    let began = Instant::now();
    let mut job = shell(1, "sleep 20 & echo $!").output(Output::Capture).start().expect("starts");
    let outcome = job.wait(LIMIT);
    assert!(outcome.survivors_ok(), "{outcome}");
    assert!(began.elapsed() < Duration::from_secs(10));
    let left: i32 = outcome.stdout(MemberId(0)).trim().parse().expect("the shell printed a pid");
    let pid = rustix::process::Pid::from_raw(left).expect("a pid is positive");
    rustix::process::kill_process(pid, Signal::KILL).expect("it is the sleep from above");
}

#[test]
fn bad_input_is_refused_and_starts_nothing() {
    let refused = |launch: Launch| launch.start().expect_err("must be refused");
    assert!(matches!(refused(shell(0, "exit 0")), LaunchError::Members { members: 0, .. }));
    assert!(matches!(refused(shell(4000, "exit 0").spares(97)), LaunchError::Members { .. }));
    assert!(matches!(refused(shell(usize::MAX, "exit 0").spares(1)), LaunchError::Members { .. }));
    assert!(matches!(refused(Launch::new(1)), LaunchError::NoProgram));
    let error = refused(Launch::new(3).program("/no/such/program").segment_limit(1 << 20));
    assert!(error.to_string().contains("/no/such/program"), "{error}");
    let error = refused(Launch::new(1).program("/etc/passwd").segment_limit(1 << 20));
    assert!(error.to_string().contains("is it executable?"), "{error}");
    let job = shell(1, "exec sleep 30").start().expect("starts");
    assert!(matches!(job.kill(MemberId(1)), Err(LaunchError::UnknownMember { members: 1, .. })));
}

/// Spares are started like regular members, and the job's memory distinguishes them.
#[test]
fn spares_come_on_top_of_the_members() {
    let mut job =
        shell(2, "echo $OUTLAST_JOB").spares(1).output(Output::Capture).start().expect("starts");
    let outcome = job.wait(LIMIT);
    let mut names: Vec<String> = (0..3).map(|member| outcome.stdout(MemberId(member))).collect();
    names.dedup();
    assert_eq!(names.len(), 3, "{names:?}");
}

/// The kernel ties "die with the launcher" to a thread: this must not be the thread that called
/// `start`.
#[test]
fn members_outlive_the_thread_that_started_them() {
    let start = || shell(2, "exec sleep 0.4").die_with_launcher(true).start().expect("starts");
    let mut job = std::thread::spawn(start).join().expect("does not panic");
    let outcome = job.wait(LIMIT);
    assert_eq!(outcome.deaths().count(), 0, "{outcome}");
}

#[test]
fn the_example_survives_a_kill() {
    let mut job = Launch::new(4)
        .program(example("survivors"))
        .segment_limit(1 << 20)
        .output(Output::Capture)
        .start()
        .expect("starts");
    // All have joined as soon as a member prints.
    let until = Instant::now() + LIMIT;
    while job.output(MemberId(3)).stdout.is_empty() {
        assert!(Instant::now() < until, "member 3 does not speak");
        std::thread::sleep(Duration::from_millis(5));
    }
    job.kill(MemberId(0)).expect("is a member");
    let outcome = job.wait(LIMIT);
    assert!(outcome.survivors_ok(), "{outcome}");
    for member in 1..4 {
        let said = outcome.stdout(MemberId(member));
        assert!(said.contains(&format!("member {member} goes on without {{0}}; 3 live")), "{said}");
        assert!(said.contains("beats"), "{said}");
    }
}

/// A measurement whose partner is killed reports the death, and ends.
#[test]
fn the_latency_example_survives_a_kill() {
    let kill = |victim: MemberId| {
        let mut job = Launch::new(2)
            .program(example("latency"))
            // Far more rounds than it can do before the kill.
            .args(["1000"])
            .segment_limit(4 << 20)
            .output(Output::Capture)
            .start()
            .expect("starts");
        // The first figure is printed while the measurement goes on.
        let until = Instant::now() + LIMIT;
        while job.output(MemberId(0)).stdout.is_empty() {
            assert!(Instant::now() < until, "member 0 does not speak");
            std::thread::sleep(Duration::from_millis(1));
        }
        job.kill(victim).expect("is a member");
        job.wait(LIMIT)
    };
    for (victim, survivor) in [(0, 1), (1, 0)] {
        let outcome = kill(MemberId(victim));
        assert!(outcome.survivors_ok() && outcome.deaths().count() == 1, "{outcome}");
        let said = outcome.stdout(MemberId(survivor));
        assert!(
            said.contains(&format!("member {survivor} ends, since member {victim} is dead")),
            "{said}"
        );
    }
}

#[test]
fn the_latency_example_prints_all_figures() {
    let output = std::process::Command::new(example("latency")).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches(" us, max ").count(), 7, "{said}");
}

#[test]
fn the_example_starts_itself() {
    let output = std::process::Command::new(example("survivors")).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches(" beats").count(), 4, "{said}");
    assert_eq!(said.matches(" finished after ").count(), 4, "{said}");
}

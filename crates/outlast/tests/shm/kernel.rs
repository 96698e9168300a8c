//! Kernels that lack a system call, or refuse it by a seccomp profile: the engine does without it,
//! or says in a sentence what it needs. A filter of the kernel makes the call fail.

use crate::members::{expect_ok, is_member, members, wait_until};
use crate::reexecution::this_test;
use outlast::{Epoch, JoinError, MemberId};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a member waits for an event that is due soon.
const PATIENCE: Duration = Duration::from_secs(20);

const FIRST: MemberId = MemberId(0);
const SECOND: MemberId = MemberId(1);
const THIRD: MemberId = MemberId(2);

/// Makes these system calls fail with `error`, in this thread and in all that it starts, for ever.
fn refuse(calls: &[libc::c_long], error: i32) {
    let instruction = |code: u32, jump_true: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: jump_true,
        jf: 0,
        k,
    };
    let (load, equal, ret) =
        (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ, libc::BPF_RET);
    // The number of the call is the first word of the data that the kernel shows to the filter.
    let mut program = vec![instruction(load, 0, 0)];
    for (index, &call) in calls.iter().enumerate() {
        let to_end = (calls.len() - index) as u8;
        program.push(instruction(equal | libc::BPF_K, to_end, call as u32));
    }
    program.push(instruction(ret | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    program.push(instruction(ret | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | error as u32));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the calls change only what this thread may do, and the program outlives them.
    let status = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter)
    };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
}

/// The part of three members under a kernel without these calls: the third dies, by `die`.
fn outlast_a_death(calls: &[libc::c_long], error: i32, die: fn()) {
    refuse(calls, error);
    let job = outlast::join().unwrap();
    job.grow(4096).unwrap();
    // The background, which waits, leaves the processor to others.
    let used = || rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let nanoseconds = |time: rustix::time::Timespec| time.tv_sec * 1_000_000_000 + time.tv_nsec;
    let before = nanoseconds(used());
    std::thread::sleep(Duration::from_millis(500));
    assert!(nanoseconds(used()) - before < 250_000_000, "half of a processor in a wait");
    if job.me() == THIRD {
        wait_until(&job, PATIENCE, "the word of the first member", || {
            job.load(Epoch::ANY, FIRST, 0) == Ok(1)
        });
        die();
        unreachable!("this member is dead");
    }
    if job.me() == FIRST {
        job.fetch_add(Epoch::ANY, FIRST, 0, 1).unwrap();
    }
    wait_until(&job, PATIENCE, "the death", || job.view().dead.contains(THIRD));
    job.leave().unwrap();
}

fn die() {
    crate::members::die()
}

/// Before Linux 5.16.
#[test]
fn without_futex_waitv_a_death_is_found() {
    let test = this_test!();
    if is_member(test) {
        return outlast_a_death(&[libc::SYS_futex_waitv], libc::ENOSYS, die);
    }
    expect_ok(members(test, 3).start().unwrap());
}

/// Some profiles of containers answer so.
#[test]
fn a_refused_futex_waitv_is_done_without() {
    let test = this_test!();
    if is_member(test) {
        return outlast_a_death(&[libc::SYS_futex_waitv], libc::EPERM, die);
    }
    expect_ok(members(test, 3).start().unwrap());
}

#[test]
fn without_membarrier_a_death_is_proven() {
    let test = this_test!();
    if is_member(test) {
        return outlast_a_death(&[libc::SYS_membarrier, libc::SYS_futex_waitv], libc::ENOSYS, die);
    }
    expect_ok(members(test, 3).start().unwrap());
}

/// The process of the dead member goes on, with another program.
#[test]
fn without_membarrier_the_death_by_exec_is_proven() {
    let test = this_test!();
    if is_member(test) {
        return outlast_a_death(&[libc::SYS_membarrier], libc::ENOSYS, || {
            let error = Command::new("sh").args(["-c", "sleep 5; exit 9"]).exec();
            panic!("sh does not start: {error}");
        });
    }
    let began = Instant::now();
    let outcome = members(test, 3).start().unwrap().wait(Duration::from_secs(40));
    let ends: Vec<Option<i32>> = outcome.members.iter().map(|end| end.status.code()).collect();
    assert_eq!(ends, [Some(0), Some(0), Some(9)], "{outcome} after {:?}", began.elapsed());
}

/// Some members have no pidfds, such as members that run under valgrind.
#[test]
fn without_pidfd_open_membarrier_proves_a_death() {
    let test = this_test!();
    if is_member(test) {
        return outlast_a_death(&[libc::SYS_pidfd_open], libc::ENOSYS, die);
    }
    expect_ok(members(test, 3).start().unwrap());
}

#[test]
fn without_pidfd_open_and_membarrier_joining_says_what_is_needed() {
    let test = this_test!();
    if is_member(test) {
        refuse(&[libc::SYS_pidfd_open, libc::SYS_membarrier], libc::ENOSYS);
        let error = outlast::join().expect_err("no proof of a death").to_string();
        assert!(error.contains("Linux 5.3 or newer"), "{error}");
        let launched = outlast::launch::Launch::new(1).program("true").start();
        let error = launched.expect_err("no process can be watched").to_string();
        assert!(error.contains("Linux 5.3 or newer"), "{error}");
        return;
    }
    expect_ok(members(test, 1).start().unwrap());
}

/// A member that has taken its place and gets no thread cannot serve: it leaves, and the others do
/// not wait for it while its process lives.
#[test]
fn a_member_that_gets_no_thread_keeps_no_other_member_waiting() {
    let test = this_test!();
    if !is_member(test) {
        expect_ok(members(test, 2).start().unwrap());
        return;
    }
    let is_second = std::env::var("OUTLAST_JOB").unwrap().ends_with(":1");
    if is_second {
        refuse(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN);
        let error = outlast::join().expect_err("there are no threads");
        assert!(matches!(error, JoinError::System { .. }), "{error}");
        // The process lives on, longer than the other member may wait.
        std::thread::sleep(Duration::from_secs(4));
        return;
    }
    let began = Instant::now();
    let job = outlast::join().unwrap();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert!(job.view().left.contains(SECOND));
    job.leave().unwrap();
}

//! Kernels that lack a system call, or refuse it by a seccomp profile: the engine does without it,
//! or says in a sentence what it needs. A filter of the kernel makes the call fail. The last tests
//! are of what the kernel does to a member: forks, and signals.

use crate::members::{expect_ok, is_member, members, wait_until};
use crate::reexecution::this_test;
use outlast::image::{Images, Options as ImageOptions, Regions};
use outlast::rma::{Communicator, Source, Tag, Window};
use outlast::store::{Options, Store, StoreError};
use outlast::{Epoch, JoinError, MemberId};
use std::fmt::Debug;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// Runs `body` in a forked child, which ends with it, and returns the calls that it names.
fn named_in_child(body: impl FnOnce() -> String) -> i32 {
    // SAFETY: the child runs `body` alone, and ends without unwinding.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        let wrong = body();
        eprint!("{wrong}");
        // SAFETY: `_exit` takes no pointers and does not return.
        unsafe { libc::_exit(i32::from(!wrong.is_empty())) };
    }
    let mut status = 0;
    // SAFETY: `status` is a place to write to.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

/// A line for a call whose result is not that this process was forked.
fn unless_forked<T: Debug, E: Debug>(call: &str, result: Result<T, E>) -> String {
    match result {
        Err(error) if format!("{error:?}").contains("Forked") => String::new(),
        other => format!("{call}: {other:?}\n"),
    }
}

/// A child is no member: each call of each layer says so at once, and the parent goes on.
#[test]
fn a_forked_child_is_refused_by_the_calls_of_all_layers() {
    let test = this_test!();
    if !is_member(test) {
        expect_ok(members(test, 1).start().unwrap());
        return;
    }
    let job = outlast::join().unwrap();
    let store = Store::open(&job, Options::new().replicas(1).partitions(4)).unwrap();
    store.put("kept", b"value").unwrap();
    let (handle, pin) = (store.handle("kept").unwrap(), store.pin("kept").unwrap().unwrap());
    let comm = Communicator::world(&job).unwrap();
    let window = Window::open(&comm, 64).unwrap();
    let options = ImageOptions::new(1 << 12).set(2);
    let regions = Regions::open(&store, "forked", options.clone()).unwrap();
    let images = Images::open(&store, "forked", options).unwrap();
    let mut tx = store.begin();
    tx.put("forked", b"child").unwrap();
    let late = job.now().after(Duration::from_secs(20));
    let mut buffer = [0; 5];
    let began = Instant::now();
    let status = named_in_child(|| {
        [
            unless_forked("put", store.put("forked", b"child")),
            unless_forked("get", store.get("kept")),
            unless_forked("get_into", store.get_into("kept", &mut buffer)),
            unless_forked("add", store.add("forked", 1)),
            unless_forked("delete", store.delete("kept")),
            unless_forked("keys", store.keys()),
            unless_forked("wait", store.wait("forked", None, late)),
            unless_forked("lock", store.lock("forked", late)),
            unless_forked("transaction", store.transaction(|tx| tx.put("forked", b"child"))),
            unless_forked("commit", tx.commit()),
            unless_forked("put by handle", handle.put(b"child")),
            unless_forked("get by handle", handle.get()),
            unless_forked("pin", pin.read(0, &mut buffer)),
            unless_forked("open", Store::open(&job, Options::new().name("forked").replicas(1))),
            unless_forked("send", comm.send(0, 1, b"child")),
            unless_forked("receive", comm.receive(Source::Any, Tag::Any)),
            unless_forked("barrier", comm.barrier()),
            unless_forked("agree", comm.agree(0)),
            unless_forked("put into a window", window.put(0, 0, b"child")),
            unless_forked("get from a window", window.get(0, 0, &mut buffer)),
            unless_forked("checkpoint", regions.checkpoint(1, b"", &[])),
            unless_forked("restore", regions.restore(&mut [])),
            unless_forked("save", images.save("image", b"", b"child")),
            unless_forked("load", images.load("image").map(drop)),
            unless_forked("fence", job.fence(FIRST, late)),
        ]
        .concat()
    });
    assert_eq!(status, 0, "a call gave another result in the child");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(!store.exists("forked").unwrap());
    assert_eq!(store.get("kept").unwrap().unwrap().bytes(), b"value");
    assert_eq!(comm.probe(Source::Any, Tag::Any), Ok(None));
    assert_eq!(regions.restore(&mut []).unwrap().version, None);
    tx.commit().unwrap();
    window.free().unwrap();
    regions.close().unwrap();
    images.close().unwrap();
    store.close().unwrap();
    job.leave().unwrap();
}

/// How often the handler of a signal has run.
static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_signal(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Sends this process a signal in each interval of some microseconds; 0 ends it.
fn signal_every(microseconds: libc::suseconds_t) {
    let time = libc::timeval { tv_sec: 0, tv_usec: microseconds };
    let timer = libc::itimerval { it_interval: time, it_value: time };
    // SAFETY: the handler only adds to a number, and the timer outlives the call. Without flags the
    // kernel does not restart the calls that a signal interrupts.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count_signal as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()), 0);
        assert_eq!(libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()), 0);
    }
}

/// A signal whose handler returns ends no wait, and breaks no call.
#[test]
fn waits_and_calls_go_on_while_signals_come() {
    let test = this_test!();
    if !is_member(test) {
        expect_ok(members(test, 1).start().unwrap());
        return;
    }
    let job = outlast::join().unwrap();
    let store = Store::open(&job, Options::new().replicas(1).partitions(4)).unwrap();
    let comm = Communicator::world(&job).unwrap();
    let held = store.lock("held", job.now().after(PATIENCE)).unwrap();
    let short = Duration::from_millis(100);
    signal_every(1000);
    let began = Instant::now();
    assert_eq!(store.wait("none", None, job.now().after(short)), Ok(None));
    let refused = store.lock("held", job.now().after(short));
    assert!(matches!(refused, Err(StoreError::Locked { .. })), "{refused:?}");
    let request = comm.start_receive(Source::Any, Tag::Any).unwrap().wait_within(short);
    assert!(matches!(request, Err(outlast::rma::Error::Timeout { .. })), "{request:?}");
    assert!(began.elapsed() >= 3 * short, "{:?}", began.elapsed());
    for number in 0..1000u64 {
        store.put("key", &number.to_le_bytes()).unwrap();
        assert_eq!(store.get("key").unwrap().unwrap().bytes(), number.to_le_bytes());
    }
    let done = store.transaction(|tx| tx.put("key", b"last"));
    assert_eq!(done, Ok(()));
    assert!(SIGNALS.load(Ordering::Relaxed) > 10, "{SIGNALS:?}");
    signal_every(0);
    held.unlock().unwrap();
    store.close().unwrap();
    job.leave().unwrap();
}

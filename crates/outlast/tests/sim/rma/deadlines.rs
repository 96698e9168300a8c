//! Every call of communicators and windows returns within its time limit plus the documented slack,
//! whatever stops meanwhile: a table of all calls that wait, against a stopped member, a stopped
//! pair, members that are stopped in turn, and a member that is stopped again and again, over both
//! links.

use crate::simulation::{nap, seeds};
use outlast::engine::{Fault, MESSAGE_LEN_MAX, message_cost};
use outlast::rma::{self, Communicator, LockKind, Op, Source, Update, Window};
use outlast::sim::{self, Link, Options, Random};
use outlast::{Job, MemberId};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(1);
/// The slack that [`Job::time_limit`] documents.
const SLACK: Duration = Duration::from_millis(125);
/// What a call may take without waiting for any member.
const WORK: Duration = Duration::from_millis(20);

const MEMBERS: usize = 6;
const CALLER: usize = 5;
/// The rank that most calls concern, and the rank that is stopped together with it, or in turn.
const TARGET: usize = 4;
const OTHER: usize = 3;

/// What a call finds prepared.
struct Scene {
    job: Job,
    comm: Communicator,
    /// A window that needs no lock. `TARGET` has attached a range to it.
    window: Window,
    attached: u64,
    /// A window whose lock at `TARGET` is held by `OTHER`.
    held: Window,
    /// A window whose lock at `TARGET` is held by the caller.
    own: Window,
    /// A window of whose locks the caller shares all.
    shared: Window,
    /// A message of several parts.
    long: Vec<u8>,
}

/// What the other members do while the call runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    /// They serve the caller.
    Serve,
    /// They make the call, too.
    Call,
    /// They receive what the caller has sent.
    Receive,
}

use Others::{Call, Receive, Serve};

/// A call: its name, its limit in halves of the time limit, what it does, and what the others do.
/// Its result does not matter here.
struct Row(&'static str, u32, fn(&Scene), Others);

const ROWS: &[Row] = &[
    Row("send a long message", 2, |s| drop(s.comm.send(TARGET, 1, &s.long)), Serve),
    Row("start_send a long message", 2, |s| drop(s.comm.start_send(TARGET, 1, &s.long)), Serve),
    Row("send without credit", 2, |s| drop(s.comm.send(TARGET, 1, &s.long)), Receive),
    Row("receive", 2, |s| drop(s.comm.receive(TARGET, 9)), Serve),
    Row("receive_into", 2, |s| drop(s.comm.receive_into(TARGET, 9, &mut [0; 8])), Serve),
    Row("receive from any", 2, |s| drop(s.comm.receive(Source::Any, 9)), Serve),
    Row("wait", 2, |s| drop(s.comm.start_receive(TARGET, 9).map(|mut of| of.wait())), Serve),
    Row(
        "wait_all",
        2,
        |s| {
            let start = |rank| s.comm.start_receive(rank, 9).expect("started");
            drop(rma::wait_all(&mut [TARGET, OTHER].map(start)));
        },
        Serve,
    ),
    Row("interrupt", 2, |s| drop(s.comm.interrupt(TARGET)), Serve),
    Row("notify_failures", 2, |s| drop(s.comm.notify_failures(&[TARGET, OTHER])), Serve),
    Row("barrier", 2, |s| drop(s.comm.barrier()), Call),
    Row("broadcast", 2, |s| drop(s.comm.broadcast(0, &mut [7; 100])), Call),
    Row("broadcast to others", 2, |s| drop(s.comm.broadcast(CALLER, &mut s.long.clone())), Call),
    Row("allreduce_u64", 2, |s| drop(s.comm.allreduce_u64(Op::Sum, &mut [1; 9])), Call),
    Row("allreduce_i64", 2, |s| drop(s.comm.allreduce_i64(Op::Min, &mut [1; 9])), Call),
    Row("allreduce_f64", 2, |s| drop(s.comm.allreduce_f64(Op::Max, &mut [1.0; 9])), Call),
    Row("allgather", 2, |s| drop(s.comm.allgather(&s.long)), Call),
    Row("duplicate", 2, |s| drop(s.comm.duplicate()), Call),
    Row("split", 2, |s| drop(s.comm.split(Some(0), 0)), Call),
    Row("agree", 2, |s| drop(s.comm.agree(1)), Call),
    Row("agree_despite_failures", 2, |s| drop(s.comm.agree_despite_failures(1)), Call),
    Row("shrink", 2, |s| drop(s.comm.shrink()), Call),
    Row(
        "agree, and shrink",
        4,
        |s| {
            let _ = s.comm.agree(1);
            drop(s.comm.shrink());
        },
        Call,
    ),
    Row("revoke", 2, |s| drop(s.comm.revoke()), Serve),
    Row("free", 2, |s| drop(s.comm.free()), Serve),
    Row("window.allocate", 2, |s| drop(Window::allocate(&s.comm, 500)), Call),
    Row("window.open", 2, |s| drop(Window::open(&s.comm, 500)), Call),
    Row("window.len", 2, |s| drop(s.window.len(TARGET)), Serve),
    Row("window.lock", 2, |s| drop(s.window.lock(TARGET, LockKind::Exclusive)), Serve),
    Row("window.lock shared", 2, |s| drop(s.window.lock(TARGET, LockKind::Shared)), Serve),
    Row("window.lock a held lock", 2, |s| drop(s.held.lock(TARGET, LockKind::Exclusive)), Serve),
    Row(
        "window.lock a held lock shared",
        2,
        |s| {
            drop(s.held.lock(TARGET, LockKind::Shared));
        },
        Serve,
    ),
    Row(
        "window.lock_within at once",
        2,
        |s| {
            drop(s.held.lock_within(TARGET, LockKind::Exclusive, Duration::ZERO));
        },
        Serve,
    ),
    Row(
        "window.lock_within",
        2,
        |s| {
            drop(s.held.lock_within(TARGET, LockKind::Exclusive, LIMIT / 2));
        },
        Serve,
    ),
    Row(
        "window.lock_within for long",
        6,
        |s| {
            drop(s.held.lock_within(TARGET, LockKind::Exclusive, 3 * LIMIT));
        },
        Serve,
    ),
    Row("window.lock_all", 2, |s| drop(s.window.lock_all()), Serve),
    Row("window.lock_all with a held lock", 2, |s| drop(s.held.lock_all()), Serve),
    Row("window.unlock", 2, |s| drop(s.own.unlock(TARGET)), Serve),
    Row("window.unlock_all", 2, |s| drop(s.shared.unlock_all()), Serve),
    Row("window.force_unlock", 2, |s| drop(s.held.force_unlock(TARGET)), Serve),
    Row("window.holders", 2, |s| drop(s.held.holders(TARGET)), Serve),
    Row("window.check_lock", 2, |s| drop(s.own.check_lock(TARGET)), Serve),
    Row("window.put", 2, |s| drop(s.own.put(TARGET, 0, b"mine")), Serve),
    Row("window.put_blocking", 2, |s| drop(s.own.put_blocking(TARGET, 0, b"mine")), Serve),
    Row(
        "window.put_blocking to a range",
        2,
        |s| {
            drop(s.window.put_blocking(TARGET, s.attached, b"mine"));
        },
        Serve,
    ),
    Row("window.get", 2, |s| drop(s.own.get(TARGET, 0, &mut [0; 8])), Serve),
    Row(
        "window.get from a range",
        2,
        |s| {
            drop(s.window.get(TARGET, s.attached, &mut [0; 8]));
        },
        Serve,
    ),
    Row(
        "window.accumulate",
        2,
        |s| drop(s.own.accumulate(TARGET, 0, Update::Max, &[1_u64])),
        Serve,
    ),
    Row(
        "window.fetch_and_op",
        2,
        |s| {
            drop(s.own.fetch_and_op(TARGET, 8, Update::Xor, 5_u64));
        },
        Serve,
    ),
    Row(
        "window.compare_and_swap",
        2,
        |s| {
            drop(s.own.compare_and_swap(TARGET, 8, 0_u64, 5));
        },
        Serve,
    ),
    Row(
        "window.start_get and wait",
        4,
        |s| {
            drop(s.own.start_get(TARGET, 0, 8).map(|mut of| of.wait()));
        },
        Serve,
    ),
    Row(
        "window.put and flush",
        4,
        |s| {
            let _ = s.own.put(TARGET, 0, b"mine");
            drop(s.own.flush(TARGET));
        },
        Serve,
    ),
    Row(
        "window.put and unlock",
        4,
        |s| {
            let _ = s.own.put(TARGET, 0, b"mine");
            drop(s.own.unlock(TARGET));
        },
        Serve,
    ),
    Row("window.flush_all", 2, |s| drop(s.shared.flush_all()), Serve),
    Row("window.grow", 2, |s| drop(s.window.grow(100)), Serve),
    Row("window.attach", 2, |s| drop(s.window.attach(100)), Serve),
    Row("window.bytes_aside", 2, |s| drop(s.window.bytes_aside()), Serve),
    Row("window.revoke", 2, |s| drop(s.window.revoke()), Serve),
    Row(
        "window.shrink",
        2,
        |s| {
            let _ = s.window.revoke();
            drop(s.window.shrink());
        },
        Call,
    ),
    Row("window.free", 2, |s| drop(s.window.free()), Call),
    Row("window.free with locks", 2, |s| drop(s.held.free()), Call),
    Row("window.close", 2, |s| drop(s.shared.close()), Call),
    Row(
        "window.close after a put",
        4,
        |s| {
            let _ = s.shared.put(TARGET, 0, b"mine");
            drop(s.shared.close());
        },
        Call,
    ),
];

/// What strikes while the call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strike {
    Stop,
    StopPair,
    /// Both members are stopped in turn, each for almost the time limit.
    InTurn,
    /// A member is stopped again and again, each time for almost the time limit, and goes on for so
    /// short a time in between that the call gets a step further.
    AgainAndAgain,
}

/// Prepares what a call finds.
fn prepare(job: &Job) -> Scene {
    let world = Communicator::world(job).expect("made");
    let comm = world.duplicate().expect("made");
    let open = || Window::open(&comm, 500).expect("made");
    let (window, held, shared) = (open(), open(), open());
    let own = Window::allocate(&comm, 500).expect("made");
    let mut attached = [0; 8];
    if comm.rank() == TARGET {
        attached = window.attach(500).expect("attached").to_le_bytes();
    }
    comm.broadcast(TARGET, &mut attached).expect("told");
    if comm.rank() == OTHER {
        held.lock(TARGET, LockKind::Exclusive).expect("free");
    }
    if comm.rank() == CALLER {
        own.lock(TARGET, LockKind::Exclusive).expect("free");
        shared.lock_all().expect("free");
    }
    comm.barrier().expect("all are ready");
    let (attached, long) = (u64::from_le_bytes(attached), vec![7; 5 * MESSAGE_LEN_MAX]);
    Scene { job: job.clone(), comm, window, attached, held, own, shared, long }
}

/// How long a call takes if members are struck at a time after its beginning.
fn time(row: &Row, link: Link, strike: Strike, seed: u64) -> Duration {
    let time = Rc::new(Cell::new(None));
    let taken = time.clone();
    let arrived = Rc::new(Cell::new(0));
    let (begins, is_over) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let mut random = Random::new(seed ^ 0x726d_6164);
    let most = if link == Link::Network { 100_000 } else { 10_000 };
    let delay = if seed.is_multiple_of(2) { 0 } else { random.below(most) };
    let mut options = Options::new(MEMBERS, seed).link(link);
    (options.steps_max, options.time_limit) = (10_000_000, LIMIT);
    // So each part of a long message waits for the part before it.
    options.message_credit = message_cost(MESSAGE_LEN_MAX);
    let (name, call, others) = (row.0, row.2, row.3);
    let report = sim::run(&options, move |job: Job| {
        let scene = prepare(&job);
        arrived.set(arrived.get() + 1);
        // The caller ends with its call, and a member that is late would find it dead.
        nap(&job, "the others", || arrived.get() == MEMBERS);
        if scene.comm.rank() == CALLER {
            if others == Receive {
                // As much as a rank may send that receives nothing.
                (0..4).for_each(|_| {
                    scene.comm.send(TARGET, 1, &scene.long[..1 << 20]).expect("room")
                });
            }
            let (mine, over) = (job.clone(), Arc::new(AtomicBool::new(false)));
            let is_struck = Arc::new(AtomicBool::new(false));
            let (ended, struck) = (over.clone(), is_struck.clone());
            let faults = move || {
                let [target, other] = [TARGET, OTHER].map(|rank| MemberId(rank as u32));
                let fault = |fault| drop(mine.inject(fault));
                let mut random = Random::new(seed);
                mine.sleep(Duration::from_nanos(delay));
                fault(Fault::Stop(target));
                if strike == Strike::StopPair {
                    fault(Fault::Stop(other));
                }
                struck.store(true, Ordering::Relaxed);
                match strike {
                    Strike::Stop | Strike::StopPair => {}
                    Strike::InTurn => {
                        for [next, last] in [[other, target], [target, other]].repeat(3) {
                            mine.sleep(LIMIT * 9 / 10);
                            fault(Fault::Stop(next));
                            fault(Fault::Resume(last));
                        }
                    }
                    Strike::AgainAndAgain => {
                        while !ended.load(Ordering::Relaxed) {
                            mine.sleep(LIMIT * 4 / 5);
                            fault(Fault::Resume(target));
                            mine.sleep(Duration::from_nanos(random.magnitude(2_000, 400_000)));
                            fault(Fault::Stop(target));
                        }
                    }
                }
            };
            job.spawn("faults", Box::new(faults)).expect("spawned");
            if delay == 0 {
                nap(&job, "the first stop", || is_struck.load(Ordering::Relaxed));
            }
            begins.set(true);
            let began = job.now();
            call(&scene);
            taken.set(Some(job.now().since(began)));
            is_over.set(true);
            over.store(true, Ordering::Relaxed);
        } else {
            nap(&job, "the call", || begins.get());
            match others {
                Serve => {}
                Call => call(&scene),
                Receive => {
                    while scene.comm.rank() == TARGET && !is_over.get() {
                        let _ = scene.comm.receive(CALLER, 1);
                    }
                }
            }
        }
        // The others serve.
        nap(&scene.job, "the end", || is_over.get());
    });
    assert!(report.panics.is_empty(), "{name}: {:?}", report.panics);
    time.get().unwrap_or_else(|| panic!("{name} has not ended: {:?}", report.outcome))
}

/// Checks all rows of the table, or the rows whose names contain `OUTLAST_ROW`.
fn check(link: Link, strike: Strike) {
    let only = std::env::var("OUTLAST_ROW").unwrap_or_default();
    let mut late = Vec::new();
    for row in ROWS.iter().filter(|row| row.0.contains(&only)) {
        for seed in seeds(2) {
            let (took, limit) = (time(row, link, strike, seed), LIMIT / 2 * row.1);
            if took > limit + SLACK + WORK {
                late.push(format!("{} took {took:?} of {limit:?} with seed {seed}", row.0));
            }
        }
    }
    assert!(late.is_empty(), "{link:?}, {strike:?}:\n{}", late.join("\n"));
}

#[test]
fn every_call_on_mapped_memory_ends_in_time_with_a_stopped_member() {
    check(Link::Memory, Strike::Stop);
}

#[test]
fn every_call_on_mapped_memory_ends_in_time_with_a_stopped_pair() {
    check(Link::Memory, Strike::StopPair);
}

#[test]
fn every_call_on_mapped_memory_ends_in_time_with_members_that_are_stopped_in_turn() {
    check(Link::Memory, Strike::InTurn);
}

#[test]
fn every_call_on_mapped_memory_ends_in_time_with_a_member_that_is_stopped_again_and_again() {
    check(Link::Memory, Strike::AgainAndAgain);
}

#[test]
fn every_call_over_a_network_ends_in_time_with_a_stopped_member() {
    check(Link::Network, Strike::Stop);
}

#[test]
fn every_call_over_a_network_ends_in_time_with_a_stopped_pair() {
    check(Link::Network, Strike::StopPair);
}

#[test]
fn every_call_over_a_network_ends_in_time_with_members_that_are_stopped_in_turn() {
    check(Link::Network, Strike::InTurn);
}

#[test]
fn every_call_over_a_network_ends_in_time_with_a_member_that_is_stopped_again_and_again() {
    check(Link::Network, Strike::AgainAndAgain);
}

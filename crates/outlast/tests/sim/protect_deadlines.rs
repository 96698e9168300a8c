//! Every call of seats returns within its limit plus the documented slack, whatever stops or dies
//! meanwhile: a table of all calls that wait, with and without logs, against a stopped member, a
//! stopped pair, and a stopped member plus a death, over both links.

use crate::simulation::{nap, seeds};
use outlast::engine::Fault;
use outlast::protect::{self, Interval, LockKind, Protect, Seat, Update};
use outlast::sim::{self, Link, Random};
use outlast::store::{self, Store};
use outlast::{Job, MemberId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(1);
/// How long a call waits for other seats.
const PATIENCE: Duration = Duration::from_secs(2);
/// The slack that [`Job::time_limit`] documents.
const SLACK: Duration = Duration::from_millis(125);
/// What a call may take without waiting for any member.
const WORK: Duration = Duration::from_millis(60);

const MEMBERS: usize = 6;
const CALLER: usize = 5;
/// The seat that calls on a single seat concern, and another one. Their holders are struck.
const TARGET: usize = 4;
const OTHER: usize = 3;

/// How long a call may take, beside the slack.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Limit {
    /// The time limit; the patience in logged mode, where operations wait for the next holder.
    Own,
    /// The patience.
    Patience,
}

/// What the other seats do while the call runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    /// Their members serve the caller.
    Serve,
    /// They make the call, too.
    Call,
}

use Limit::{Own, Patience};
use Others::{Call, Serve};

/// A call: its name, its limit, what it does, and what the others do. Its result does not matter
/// here.
struct Row(&'static str, Limit, fn(&Seat), Others);

const ROWS: &[Row] = &[
    Row("put", Own, |s| drop(s.put(TARGET, 0, b"mine")), Serve),
    Row("put again and again", Own, put_much, Serve),
    Row(
        "put, and flush",
        Own,
        |s| {
            let _ = s.put(TARGET, 0, b"mine");
            drop(s.flush(TARGET));
        },
        Serve,
    ),
    Row(
        "put to all, and flush_all",
        Own,
        |s| {
            (0..MEMBERS).for_each(|seat| drop(s.put(seat, 0, b"mine")));
            drop(s.flush_all());
        },
        Serve,
    ),
    Row("get", Own, |s| drop(s.get(TARGET, 0, &mut [0; 8])), Serve),
    Row("accumulate", Own, |s| drop(s.accumulate(TARGET, 0, Update::Sum, &[1_u64; 4])), Serve),
    Row(
        "accumulate the greatest",
        Own,
        |s| {
            drop(s.accumulate(TARGET, 0, Update::Max, &[9_u64; 4]));
        },
        Serve,
    ),
    Row("fetch_and_op", Own, |s| drop(s.fetch_and_op(TARGET, 0, Update::Sum, 1_u64)), Serve),
    Row("fetch_and_op xor", Own, |s| drop(s.fetch_and_op(TARGET, 0, Update::Xor, 1_u64)), Serve),
    Row("compare_and_swap", Own, |s| drop(s.compare_and_swap(TARGET, 0, 0_u64, 1)), Serve),
    Row("lock", Patience, |s| drop(s.lock(TARGET, LockKind::Exclusive)), Serve),
    Row("lock shared", Patience, |s| drop(s.lock(TARGET, LockKind::Shared)), Serve),
    // Another seat holds it.
    Row("lock a held lock", Patience, |s| drop(s.lock(OTHER, LockKind::Exclusive)), Serve),
    // The caller holds it.
    Row("unlock", Patience, |s| drop(s.unlock(TARGET)), Serve),
    Row(
        "put to all, and unlock",
        Patience,
        |s| {
            (0..MEMBERS).for_each(|seat| drop(s.put(seat, 0, b"mine")));
            drop(s.unlock(TARGET));
        },
        Serve,
    ),
    Row("barrier", Patience, |s| drop(s.barrier()), Call),
    Row("barrier alone", Patience, |s| drop(s.barrier()), Serve),
    Row(
        "put to all, and barrier",
        Patience,
        |s| {
            (0..MEMBERS).for_each(|seat| drop(s.put(seat, 0, b"mine")));
            drop(s.barrier());
        },
        Call,
    ),
    Row("barrier_point", Patience, |s| drop(s.barrier_point(b"note")), Call),
    Row(
        "put to all, and barrier_point",
        Patience,
        |s| {
            (0..MEMBERS).for_each(|seat| drop(s.put(seat, 0, b"mine")));
            drop(s.barrier_point(b"note"));
        },
        Call,
    ),
    Row("barrier_point alone", Patience, |s| drop(s.barrier_point(b"note")), Serve),
    Row("point", Patience, |s| drop(s.point(b"note")), Call),
    Row("point alone", Patience, |s| drop(s.point(b"note")), Serve),
    Row("is_whole", Own, |s| drop(s.is_whole()), Serve),
];

fn put_much(seat: &Seat) {
    for count in 0..300_u64 {
        drop(seat.put(if count % 2 == 0 { TARGET } else { OTHER }, count % 8 * 8, &[1; 8]));
    }
}

/// What strikes while the call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strike {
    Nothing,
    Stop,
    StopPair,
    /// A member is stopped, and another one dies.
    StopAndKill,
}

fn open(job: &Job) -> Store {
    let records = store::Options::new().replicas(3).partitions(16).expected_keys(256);
    Store::open(job, records).expect("opened")
}

fn options(is_logged: bool) -> Protect {
    let options = Protect::new(512).set(3).lose(1).piece(64).room(2).patience(PATIENCE);
    let options = options.gather(LIMIT / 4).every(Interval::Always);
    if is_logged { options.logged(64 << 10) } else { options }
}

/// What the members of a run share.
#[derive(Default)]
struct Shared {
    arrived: AtomicUsize,
    begins: AtomicBool,
    is_over: AtomicBool,
    /// What the call took, plus 1.
    taken_ns: AtomicU64,
}

impl Shared {
    fn end(&self, took: Duration) {
        self.taken_ns.store(took.as_nanos() as u64 + 1, Ordering::Relaxed);
        self.is_over.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// A run of the table.
#[derive(Clone, Copy)]
struct Case {
    link: Link,
    strike: Strike,
    is_logged: bool,
    seed: u64,
    delay: Duration,
}

impl Case {
    /// Strikes after the delay, in an activity of the caller.
    fn strike(self, job: &Job, shared: &Arc<Shared>) {
        let (mine, is_struck) = (job.clone(), Arc::new(AtomicBool::new(false)));
        let struck = is_struck.clone();
        let faults = move || {
            let members = [TARGET, OTHER].map(|seat| MemberId(seat as u32));
            let [target, other] = match self.seed % 2 {
                0 => members,
                _ => [members[1], members[0]],
            };
            let fault = |fault| drop(mine.inject(fault));
            mine.sleep(self.delay);
            if self.strike != Strike::Nothing {
                fault(Fault::Stop(target));
            }
            match self.strike {
                Strike::StopPair => fault(Fault::Stop(other)),
                Strike::StopAndKill => fault(Fault::Kill(other)),
                Strike::Nothing | Strike::Stop => {}
            }
            struck.store(true, Ordering::Relaxed);
        };
        job.spawn("faults", Box::new(faults)).expect("spawned");
        if self.delay.is_zero() {
            nap(job, "the first stop", || is_struck.load(Ordering::Relaxed));
        }
        shared.begins.store(true, Ordering::Relaxed);
    }

    fn sim(self) -> sim::Options {
        let mut options = sim::Options::new(MEMBERS, self.seed).link(self.link);
        (options.steps_max, options.time_limit) = (10_000_000, LIMIT);
        options.stack_len = 2 << 20;
        options
    }

    /// How long a call of a seat takes.
    fn time(self, row: &'static Row) -> Duration {
        let shared = Arc::new(Shared::default());
        let seen = shared.clone();
        let name = row.0;
        let report = sim::run(&self.sim(), move |job: Job| {
            let store = open(&job);
            let (inside, shared) = (job.clone(), seen.clone());
            let ended = protect::run(&store, options(self.is_logged), move |seat| {
                // Not after a rollback.
                if !shared.begins.load(Ordering::Relaxed) && !seat.is_replaying() {
                    self.play(seat, &inside, &shared, row)?;
                }
                Err::<(), String>("the end".to_string())
            });
            assert!(ended.is_err(), "{ended:?}");
        });
        assert!(report.panics.is_empty(), "{name}: {:?}", report.panics);
        match shared.taken_ns.load(Ordering::Relaxed) {
            0 => panic!("{name} has not ended: {:?}", report.outcome),
            taken => Duration::from_nanos(taken - 1),
        }
    }

    fn play(self, seat: &Seat, job: &Job, shared: &Arc<Shared>, row: &Row) -> Result<(), String> {
        let Row(_, _, call, others) = *row;
        let text = |error: protect::ProtectError| error.to_string();
        if seat.number() == OTHER && row.0 == "lock a held lock" {
            seat.lock(OTHER, LockKind::Exclusive).map_err(text)?;
        }
        if seat.number() == CALLER && row.0.ends_with("unlock") {
            seat.lock(TARGET, LockKind::Exclusive).map_err(text)?;
        }
        shared.arrived.fetch_add(1, Ordering::Relaxed);
        nap(job, "all seats", || shared.arrived.load(Ordering::Relaxed) == MEMBERS);
        if seat.number() == CALLER {
            self.strike(job, shared);
            let began = job.now();
            call(seat);
            shared.end(job.now().since(began));
        } else {
            nap(job, "the call", || shared.begins.load(Ordering::Relaxed));
            if others == Call {
                call(seat);
            }
        }
        // The others serve.
        nap(job, "the end", || shared.is_over());
        Ok(())
    }

    /// How long it takes until a run has begun, or has failed.
    fn time_of_run(self) -> Duration {
        let shared = Arc::new(Shared::default());
        let seen = shared.clone();
        let report = sim::run(&self.sim(), move |job: Job| {
            let store = open(&job);
            let shared = seen.clone();
            shared.arrived.fetch_add(1, Ordering::Relaxed);
            nap(&job, "the others", || shared.arrived.load(Ordering::Relaxed) == MEMBERS);
            let is_caller = job.me().index() == CALLER;
            match is_caller {
                true => self.strike(&job, &shared),
                false => nap(&job, "the call", || shared.begins.load(Ordering::Relaxed)),
            }
            let began = job.now();
            let (inside, noted) = (job.clone(), shared.clone());
            let note = move || {
                if is_caller && !noted.is_over() {
                    noted.end(inside.now().since(began));
                }
            };
            let has_begun = note.clone();
            let _ = protect::run(&store, options(self.is_logged), move |_| {
                has_begun();
                Err::<(), String>("the end".to_string())
            });
            note();
            nap(&job, "the end", || shared.is_over());
        });
        assert!(report.panics.is_empty(), "{:?}", report.panics);
        match shared.taken_ns.load(Ordering::Relaxed) {
            0 => panic!("the run has not begun: {:?}", report.outcome),
            taken => Duration::from_nanos(taken - 1),
        }
    }
}

/// Checks all rows of the table, or the rows whose names contain `OUTLAST_ROW`.
fn check(link: Link, strike: Strike) {
    let only = std::env::var("OUTLAST_ROW").unwrap_or_default();
    let mut late = Vec::new();
    let mut check = |name: &str, limit: Duration, is_logged, time: &dyn Fn(Case) -> Duration| {
        if !name.contains(&only) {
            return;
        }
        let all = seeds(4);
        let (seed, delay) = (all.start, Duration::ZERO);
        let alone = time(Case { link, strike: Strike::Nothing, is_logged, seed, delay });
        for seed in all {
            // At any time of the call, or before it.
            let within = Random::new(seed ^ 0x73_6561_7473).below(alone.as_nanos().max(1) as u64);
            let delay = Duration::from_nanos(if seed % 4 < 2 { 0 } else { within });
            let took = time(Case { link, strike, is_logged, seed, delay });
            if took > limit + SLACK + WORK {
                let mode = if is_logged { " with logs" } else { "" };
                late.push(format!("{name}{mode} took {took:?} of {limit:?} with seed {seed}"));
            }
        }
    };
    for is_logged in [false, true] {
        for row in ROWS {
            let limit = if row.1 == Own && !is_logged { LIMIT } else { PATIENCE };
            check(row.0, limit, is_logged, &|case| case.time(row));
        }
        check("run", LIMIT + PATIENCE, is_logged, &Case::time_of_run);
    }
    assert!(late.is_empty(), "{link:?}, {strike:?}:\n{}", late.join("\n"));
}

#[test]
fn every_call_of_seats_on_mapped_memory_ends_in_time_with_a_stopped_member() {
    check(Link::Memory, Strike::Stop);
}

#[test]
fn every_call_of_seats_on_mapped_memory_ends_in_time_with_a_stopped_pair() {
    check(Link::Memory, Strike::StopPair);
}

#[test]
fn every_call_of_seats_on_mapped_memory_ends_in_time_with_a_stopped_member_and_a_death() {
    check(Link::Memory, Strike::StopAndKill);
}

#[test]
fn every_call_of_seats_over_a_network_ends_in_time_with_a_stopped_member() {
    check(Link::Network, Strike::Stop);
}

#[test]
fn every_call_of_seats_over_a_network_ends_in_time_with_a_stopped_pair() {
    check(Link::Network, Strike::StopPair);
}

#[test]
fn every_call_of_seats_over_a_network_ends_in_time_with_a_stopped_member_and_a_death() {
    check(Link::Network, Strike::StopAndKill);
}

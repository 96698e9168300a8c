//! How sessions and runs begin and end: messages that are lost, members that come late or twice,
//! keys of another job.

use crate::errors::{Count, Endless, end};
use crate::schedules::{is_marked, mark, run, sim, wait_for};
use crate::trees::{mix, seeds, small_store};
use outlast::engine::Fault;
use outlast::sim::{self, Action, Link, When};
use outlast::store::{Store, StoreError, Value};
use outlast::{Job, MemberId, Time};
use outlast_tasks::{Cx, Error, Options, Task, TaskError, Tasks};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

const MILLIS: fn(u64) -> Duration = Duration::from_millis;

/// The tasks of these tests.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Step {
    /// Stops the worker that waits in `Waits`, panics, and lets that worker go on later.
    Panics,
    /// As `Panics`, with the worker of `Works`, which is in the middle of its work.
    PanicsUnheard,
    Waits,
    Works,
    /// Does not look until it ends.
    Silent(u64),
    /// Looks now and then.
    Busy(u64),
    /// Keeps the keys of its session.
    Dumps,
    /// So many children at once.
    Spawns(u64),
}

fn member_in(store: &Store, key: &str) -> MemberId {
    let value = store.get(key.as_bytes()).expect("reads").expect("is there");
    MemberId(u32::from_le_bytes(value.bytes().try_into().expect("4 bytes")))
}

fn put_me(cx: &Cx<'_>, key: &str) {
    cx.store().put(key.as_bytes(), &cx.me().0.to_le_bytes()).expect("room");
}

/// Panics while the member in a key is stopped. The member goes on later.
fn panic_unheard_by(cx: &mut Cx<'_>, key: &str) -> u64 {
    wait_for(cx, "works");
    // By then the workers of the other tasks work or wait.
    cx.work(MILLIS(150));
    let stopped = member_in(cx.store(), key);
    let job = cx.store().job().clone();
    job.inject(Fault::Stop(stopped)).expect("stops");
    let of_activity = job.clone();
    let resume = move || {
        of_activity.sleep(MILLIS(400));
        let _ = of_activity.inject(Fault::Resume(stopped));
    };
    job.spawn("resumes", Box::new(resume)).expect("spawns");
    std::panic::resume_unwind(Box::new("the left half"))
}

impl Task for Step {
    const NAME: &'static str = "step";
    type Output = u64;

    fn run(self, cx: &mut Cx<'_>) -> u64 {
        match self {
            Step::Panics => {
                let left = |cx: &mut Cx<'_>| panic_unheard_by(cx, "waiter");
                cx.join_with(left, Step::Waits).0
            }
            Step::PanicsUnheard => {
                let left = |cx: &mut Cx<'_>| panic_unheard_by(cx, "worker");
                cx.join_with(left, Step::Works).0
            }
            Step::Waits => {
                put_me(cx, "waiter");
                let left = |cx: &mut Cx<'_>| {
                    wait_for(cx, "works");
                    1u64
                };
                let (left, right) = cx.join_with(left, Step::Works);
                left + right
            }
            Step::Works => {
                put_me(cx, "worker");
                mark(cx, "works");
                (0..1_000).for_each(|_| cx.work(MILLIS(10)));
                2
            }
            Step::Silent(millis) => {
                put_me(cx, "holder");
                cx.store().job().sleep(MILLIS(millis));
                3
            }
            Step::Busy(millis) => {
                mark(cx, "busy");
                (0..millis).for_each(|_| cx.work(MILLIS(1)));
                4
            }
            Step::Dumps => {
                let (left, right) = cx.join(Step::Busy(20), Step::Busy(20));
                let store = cx.store();
                let keys = store.scan(b"outlast-tasks/").expect("scans");
                let read = |key: Vec<u8>| {
                    let value = store.get(&key).expect("reads")?.into_bytes();
                    Some((key, value))
                };
                DUMP.set(keys.into_iter().filter_map(read).collect());
                left + right
            }
            Step::Spawns(count) => cx.scope(|s| {
                let futures: Vec<_> = (0..count).map(|_| s.spawn(Step::Busy(5))).collect();
                futures.into_iter().map(|future| future.get(s)).sum()
            }),
        }
    }
}

thread_local! {
    /// The keys of a session, in the middle of its run.
    static DUMP: RefCell<Vec<(Vec<u8>, Vec<u8>)>> = RefCell::default();
}

fn steps() -> Options {
    Options::new().beat_forks(1).task::<Step>().task::<Count>().task::<Endless>()
}

#[test]
fn a_worker_that_was_not_told_the_end_of_a_run_finds_it_at_the_root() {
    let roots = [Step::Panics, Step::PanicsUnheard];
    for (seed, root) in seeds(0..20).flat_map(|seed| roots.clone().map(|root| (seed, root))) {
        let options = sim(5, seed).link(Link::Network);
        sim::run(&options, move |job| {
            let store = Store::open(&job, small_store().replicas(1)).expect("opens");
            let tasks = Tasks::open(&store, steps()).expect("opens");
            let error = tasks.run(root.clone()).expect_err("panics");
            let expected = TaskError::Panicked {
                task: "step".to_string(),
                message: "the left half".to_string(),
            };
            assert_eq!(error, Error::Task(expected), "seed {seed}");
            assert!(job.now() < Time(9_000_000_000), "seed {seed}: the end came late");
            // More calls to the stopped member, which may drop what was sent before.
            let _ = tasks.close();
            end(&job, &store);
        })
        .expect_ok();
    }
}

#[test]
fn the_end_of_a_later_run_does_not_end_an_earlier_one() {
    for seed in seeds(0..8) {
        sim::run(&sim(3, seed), move |job| {
            let store = Store::open(&job, small_store()).expect("opens");
            let tasks = Tasks::open(&store, steps()).expect("opens");
            if job.me() == MemberId(2) {
                // After the others have put the root.
                while !is_marked(&store, "busy") {
                    job.sleep(MILLIS(1));
                }
                assert!(matches!(tasks.run(Count(3)), Err(Error::Differs { .. })));
            } else {
                assert_eq!(tasks.run(Step::Busy(1_000)), Ok(4), "seed {seed}");
            }
            assert_eq!(tasks.run(Count(2)), Ok(4), "seed {seed}");
            tasks.close().expect("closes");
            end(&job, &store);
        })
        .expect_ok();
    }
}

#[test]
fn a_run_that_is_over_just_after_its_deadline_has_an_output_everywhere() {
    for seed in seeds(0..8) {
        // The others see the deadline, and look for a silent member for a second.
        let options = || steps().deadline(MILLIS(5_000));
        run(&sim(3, seed), options, Step::Silent(5_500), |_, output| assert_eq!(output, Ok(3)));
    }
}

#[test]
fn a_silent_holder_of_the_root_is_fenced_if_the_program_asks_for_it() {
    for seed in seeds(0..4) {
        let report = sim::run(&sim(3, seed), move |job| {
            let store = Store::open(&job, small_store()).expect("opens");
            let options = steps().fence_after(MILLIS(2_000));
            let tasks = Tasks::open(&store, options).expect("opens");
            let (of_activity, job_of_activity) = (store.clone(), job.clone());
            let stop = move || {
                for _ in 0..1_000 {
                    job_of_activity.sleep(MILLIS(1));
                    let Ok(Some(_)) = of_activity.get(b"holder") else { continue };
                    if member_in(&of_activity, "holder") == job_of_activity.me() {
                        let _ = job_of_activity.inject(Fault::Stop(job_of_activity.me()));
                    }
                    return;
                }
            };
            job.spawn("stops", Box::new(stop)).expect("spawns");
            assert_eq!(tasks.run(Step::Silent(1_000)), Ok(3), "seed {seed}");
            assert!(job.now() < Time(30_000_000_000), "it waited for the stopped member");
            let _ = tasks.close();
            end(&job, &store);
        });
        report.expect_ok();
    }
}

#[test]
fn a_session_of_another_job_is_replaced() {
    for seed in seeds(0..6) {
        run(&sim(3, seed), steps, Step::Dumps, |_, output| assert_eq!(output, Ok(8)));
        let dump = Arc::new(DUMP.take());
        assert!(dump.len() > 4, "{}", dump.len());
        // The keys come back in a new job, as from a snapshot.
        sim::run(&sim(3, seed + 1), move |job| {
            let store = Store::open(&job, small_store()).expect("opens");
            if job.me() == MemberId(0) {
                for (key, value) in dump.iter() {
                    store.put(key, value).expect("room");
                }
                store.put(b"restored", b"").expect("room");
            }
            while store.get(b"restored").expect("reads").is_none() {
                job.sleep(MILLIS(1));
            }
            let tasks = Tasks::open(&store, steps()).expect("opens");
            assert_eq!(tasks.run(Step::Busy(20)), Ok(4), "seed {seed}");
            tasks.close().expect("closes");
            assert_eq!(store.scan(b"outlast-tasks/"), Ok(Vec::new()), "seed {seed}");
            end(&job, &store);
        })
        .expect_ok();
    }
}

#[test]
fn a_runtime_that_is_open_at_this_member_is_not_opened_again() {
    sim::run(&sim(1, 1), |job| {
        let store = Store::open(&job, small_store().allow_fewer()).expect("opens");
        let tasks = Tasks::open(&store, steps()).expect("opens");
        let again = Tasks::open(&store, steps());
        assert!(matches!(&again, Err(Error::Invalid { reason }) if reason.contains("close")));
        assert_eq!(tasks.run(Count(2)), Ok(4));
        tasks.close().expect("closes");
        let tasks = Tasks::open(&store, steps()).expect("opens");
        drop(tasks);
        let again = Tasks::open(&store, steps());
        assert!(matches!(&again, Err(Error::Invalid { reason }) if reason.contains("close")));
        end(&job, &store);
    })
    .expect_ok();
}

/// A job of two members with a short limit.
fn pair(seed: u64, body: impl Fn(&Job, &Store, bool) + 'static) {
    let mut options = sim(2, seed).link(Link::of_seed(seed));
    options.time_limit = MILLIS(500);
    sim::run(&options, move |job| {
        let store = Store::open(&job, small_store().allow_fewer()).expect("opens");
        body(&job, &store, job.me() == MemberId(0));
        end(&job, &store);
    })
    .expect_ok();
}

fn sleep_until(job: &Job, millis: u64) {
    let until = MILLIS(millis);
    job.sleep(until.saturating_sub(Duration::from_nanos(job.now().0)));
}

#[test]
fn a_session_that_is_being_closed_is_not_opened_again() {
    for seed in seeds(0..12) {
        pair(seed, move |job, store, is_first| {
            let tasks = Tasks::open(store, steps()).expect("opens");
            if is_first {
                // Too late for the other member, which does not wait for longer than its limit.
                sleep_until(job, 4_000);
                assert_eq!(tasks.stats().lost, 0);
                tasks.close().expect("closes");
            } else {
                sleep_until(job, 2_000);
                let closed = tasks.close();
                assert!(matches!(closed, Err(Error::Store(StoreError::Timeout { .. }))));
                let again = Tasks::open(store, steps());
                assert!(again.is_err(), "seed {seed}: {again:?}");
            }
            sleep_until(job, 6_000);
            let tasks = Tasks::open(store, steps()).expect("opens");
            assert_eq!(tasks.run(Count(2)), Ok(4), "seed {seed}");
            tasks.close().expect("closes");
            assert_eq!(store.scan(b"outlast-tasks/"), Ok(Vec::new()), "seed {seed}");
        });
    }
}

#[test]
fn a_session_that_is_being_deleted_is_not_opened_again() {
    let mut failed = 0;
    for seed in seeds(0..60) {
        let mut options = sim(3, seed).link(Link::of_seed(seed));
        options.time_limit = MILLIS(500);
        sim::run(&options, move |job| {
            // A single replica: the others go on while the member that deletes is stopped.
            let store = Store::open(&job, small_store().replicas(1)).expect("opens");
            let tasks = Tasks::open(&store, steps()).expect("opens");
            let is_last = job.me() == MemberId(2);
            if is_last {
                stop_while_deleting(&job, &store);
            }
            if tasks.close().is_err() && is_last {
                FAILED.set(FAILED.get() + 1);
                let again = Tasks::open(&store, steps());
                assert!(again.is_err(), "seed {seed}: {again:?}");
            }
            sleep_until(&job, 10_000);
            let tasks = Tasks::open(&store, steps()).expect("opens");
            assert_eq!(tasks.run(Count(2)), Ok(4), "seed {seed}");
            tasks.close().expect("closes");
            assert_eq!(store.scan(b"outlast-tasks/"), Ok(Vec::new()), "seed {seed}");
            end(&job, &store);
        })
        .expect_ok();
        failed += FAILED.take();
    }
    assert!(failed > 10, "{failed} times close failed");
}

thread_local! {
    /// How often `close` has failed.
    static FAILED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Stops the lowest member when it has deleted this member's own key, for three seconds.
fn stop_while_deleting(job: &Job, store: &Store) {
    let keys = store.scan(b"outlast-tasks/").expect("scans");
    let own = format!("w/{}", job.me().0).into_bytes();
    let own = keys.into_iter().find(|key| key.ends_with(&own)).expect("is there");
    let (job_of_activity, store) = (job.clone(), store.clone());
    let stop = move || {
        for _ in 0..100_000 {
            if !store.exists(&own).unwrap_or(true) {
                let _ = job_of_activity.inject(Fault::Stop(MemberId(0)));
                job_of_activity.sleep(MILLIS(3_000));
                let _ = job_of_activity.inject(Fault::Resume(MemberId(0)));
                return;
            }
            job_of_activity.sleep(Duration::from_micros(5));
        }
    };
    job.spawn("stops", Box::new(stop)).expect("spawns");
}

#[test]
fn close_does_not_wait_a_limit_for_each_key_of_a_member_that_has_stopped() {
    for seed in seeds(0..6) {
        let mut options = sim(3, seed).link(Link::Network);
        options.time_limit = MILLIS(1_000);
        sim::run(&options, move |job| {
            let store = Store::open(&job, small_store()).expect("opens");
            let tasks = Tasks::open(&store, steps().slots(64)).expect("opens");
            assert_eq!(tasks.run(Step::Spawns(100)), Ok(400), "seed {seed}");
            sleep_until(&job, 10_000);
            let stopped = MemberId(2);
            if job.me() == stopped {
                stop_when_all_close(&job, &store);
            }
            // The keys that tell who closes are read before they change.
            sleep_until(&job, 11_000);
            let began = job.now();
            let closed = tasks.close();
            if job.me() != stopped {
                let took = job.now().since(began);
                assert!(took < MILLIS(5_000), "seed {seed}: {took:?}, {closed:?}");
                sleep_until(&job, 200_000);
                let _ = job.inject(Fault::Resume(stopped));
            }
            end(&job, &store);
        })
        .expect_ok();
        assert!(STOPPED.take(), "seed {seed}: the member was not stopped");
    }
}

thread_local! {
    /// Whether the last member was stopped while all close.
    static STOPPED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Stops this member as soon as all members have told that they close.
fn stop_when_all_close(job: &Job, store: &Store) {
    let keys = store.scan(b"outlast-tasks/").expect("scans");
    let told: Vec<Vec<u8>> =
        keys.into_iter().filter(|key| key.windows(3).any(|part| part == b"/w/")).collect();
    assert_eq!(told.len(), job.members());
    let (job_of_activity, store) = (job.clone(), store.clone());
    let read = move |key: &Vec<u8>| store.get(key).ok().flatten().map(Value::into_bytes);
    let before: Vec<_> = told.iter().map(&read).collect();
    let stop = move || {
        for _ in 0..1_000_000 {
            if told.iter().zip(&before).all(|(key, before)| read(key) != *before) {
                STOPPED.set(true);
                let _ = job_of_activity.inject(Fault::Stop(job_of_activity.me()));
                return;
            }
            job_of_activity.sleep(Duration::from_micros(5));
        }
    };
    job.spawn("stops", Box::new(stop)).expect("spawns");
}

#[test]
fn open_takes_a_single_limit_when_a_member_has_stopped() {
    for seed in seeds(0..6) {
        let mut options = sim(2, seed).link(Link::Network);
        options.time_limit = MILLIS(1_000);
        sim::run(&options, move |job| {
            let store = Store::open(&job, small_store().replicas(1)).expect("opens");
            let stopped = store.replicas_of(b"outlast-tasks/session")[0];
            sleep_until(&job, 2_000);
            if job.me() != stopped {
                job.inject(Fault::Stop(stopped)).expect("stops");
                let began = job.now();
                let opened = Tasks::open(&store, steps());
                assert!(matches!(opened, Err(Error::Store(StoreError::Timeout { .. }))));
                let took = job.now().since(began);
                assert!(took < MILLIS(1_500), "seed {seed}: {took:?}");
                job.inject(Fault::Resume(stopped)).expect("goes on");
            }
            sleep_until(&job, 10_000);
            let tasks = Tasks::open(&store, steps()).expect("opens");
            assert_eq!(tasks.run(Count(2)), Ok(4), "seed {seed}");
            tasks.close().expect("closes");
            end(&job, &store);
        })
        .expect_ok();
    }
}

#[test]
fn a_member_does_not_open_alone_what_another_has_given_up() {
    for seed in seeds(0..12) {
        pair(seed, move |job, store, is_first| {
            sleep_until(job, if is_first { 4_000 } else { 2_000 });
            let opened = Tasks::open(store, steps());
            assert!(opened.is_err(), "seed {seed}: {opened:?}");
            sleep_until(job, 6_000);
            let tasks = Tasks::open(store, steps()).expect("opens");
            assert_eq!(tasks.run(Count(2)), Ok(4), "seed {seed}");
            tasks.close().expect("closes");
            assert_eq!(store.scan(b"outlast-tasks/"), Ok(Vec::new()), "seed {seed}");
        });
    }
}

#[test]
fn a_runtime_that_is_closed_leaves_nothing_in_the_background() {
    sim::run(&sim(2, 1), |job| {
        let store = Store::open(&job, small_store().allow_fewer()).expect("opens");
        let heard = Arc::new(());
        for _ in 0..3 {
            let kept = heard.clone();
            let options = steps().events(move |_, _| drop(kept.clone()));
            let tasks = Tasks::open(&store, options).expect("opens");
            assert_eq!(tasks.run(Count(2)), Ok(4));
            tasks.close().expect("closes");
        }
        job.sleep(MILLIS(100));
        assert_eq!(Arc::strong_count(&heard), 1, "a service keeps the options");
        end(&job, &store);
    })
    .expect_ok();
}

/// The members of a large job; members 0, 32, 64 and 96 read keys for others.
const LARGE: usize = 100;

/// Opens and closes the runtime in a large job, and runs a program.
fn in_a_large_job(options: &sim::Options) -> sim::Report {
    let small = || small_store().partitions(LARGE);
    sim::run(options, move |job| {
        let store = Store::open(&job, small()).expect("opens");
        let tasks = Tasks::open(&store, steps()).expect("opens");
        assert_eq!(tasks.run(Count(3)), Ok(8));
        tasks.close().expect("closes");
        if job.me() == MemberId(1) {
            assert_eq!(store.scan(b"outlast-tasks/"), Ok(Vec::new()));
        }
        end(&job, &store);
    })
    .expect_ok()
}

fn large(seed: u64) -> sim::Options {
    let mut options = sim(LARGE, seed).link(Link::of_seed(seed));
    options.steps_max = 100_000_000;
    options
}

#[test]
fn a_large_job_opens_although_the_members_that_read_for_others_die_or_stop() {
    for seed in seeds(0..6) {
        let mut options = large(seed);
        for (salt, victim) in [(1, 0), (2, 32)] {
            let when = When::AtStep(MemberId(victim), 1_000 + mix(seed ^ salt << 40) % 6_000);
            let action = match mix(seed ^ salt << 41) % 2 {
                0 => Action::Kill(MemberId(victim)),
                _ => Action::StopFor(MemberId(victim), MILLIS(3_000)),
            };
            options = options.fault(when, action);
        }
        in_a_large_job(&options);
    }
}

#[test]
fn a_member_of_a_large_job_reads_few_keys_of_others_when_it_opens() {
    let small = || small_store().partitions(LARGE);
    let count = |opens: bool| {
        let mut options = large(0).link(Link::Network);
        options.cost = Some(sim::Cost::default());
        let report = sim::run(&options, move |job| {
            let store = Store::open(&job, small()).expect("opens");
            let tasks = opens.then(|| Tasks::open(&store, steps()).expect("opens"));
            job.sleep(MILLIS(20_000).saturating_sub(Duration::from_nanos(job.now().0)));
            drop(tasks);
            let _ = job.leave();
        });
        let counters = report.expect_ok().counters;
        let mut operations: Vec<u64> = counters.iter().map(|one| one.operations).collect();
        operations.sort_unstable();
        operations[LARGE / 2]
    };
    let (with, without) = (count(true), count(false));
    // A key of another member takes several operations.
    assert!(with < without + 150, "{with} operations with the runtime, {without} without");
}

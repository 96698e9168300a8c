//! Bad input, and states in which a run cannot go on: a defined error for each.

use crate::trees::{Bomb, Pool, Tree, mix, small_store};
use outlast::sim;
use outlast::store::{self, Mode, Store, StoreError};
use outlast::{Job, MemberId, Time};
use outlast_tasks::{Cx, Error, Options, Task, TaskError, Tasks};
use serde::{Deserialize, Serialize};
use std::time::Duration;

fn sim(members: usize, seed: u64) -> sim::Options {
    let mut options = sim::Options::new(members, seed);
    options.steps_max = 5_000_000;
    options.stack_len = 2 << 20;
    options
}

pub(crate) fn end(job: &Job, store: &Store) {
    let _ = store.close();
    let _ = job.leave();
}

fn trees() -> Options {
    Options::new().beat_forks(1).sums::<Tree>().task::<Bomb>().bag::<Pool>()
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Count(pub(crate) u32);

impl Task for Count {
    const NAME: &'static str = "count";
    type Output = u32;

    fn run(self, cx: &mut Cx<'_>) -> u32 {
        if self.0 == 0 {
            return 1;
        }
        let (a, b) = cx.join(Count(self.0 - 1), Count(self.0 - 1));
        a + b
    }
}

/// Counts, and forks a task that is in no list.
#[derive(Clone, Serialize, Deserialize)]
struct Stranger;

impl Task for Stranger {
    const NAME: &'static str = "stranger";
    type Output = u32;

    fn run(self, cx: &mut Cx<'_>) -> u32 {
        cx.work(Duration::from_millis(1));
        let (a, b) = cx.join(Count(5), Count(5));
        a + b
    }
}

#[test]
fn an_unregistered_task_is_an_error_that_names_it() {
    sim::run(&sim(3, 1), |job| {
        let store = Store::open(&job, small_store()).expect("opens");
        let tasks = Tasks::open(&store, Options::new().beat_forks(1).task::<Stranger>());
        let tasks = tasks.expect("opens");
        let error = tasks.run(Stranger).expect_err("not registered");
        let expected = TaskError::Unregistered { task: "count".to_string() };
        assert_eq!(error, Error::Task(expected));
        let error = tasks.run(Count(1)).expect_err("not registered");
        assert!(error.to_string().contains("count"), "{error}");
        tasks.close().expect("closes");
        end(&job, &store);
    })
    .expect_ok();
}

#[test]
fn members_with_different_lists_are_told_what_differs() {
    sim::run(&sim(3, 2), |job| {
        let store = Store::open(&job, small_store()).expect("opens");
        let options = match job.me() {
            MemberId(1) => Options::new().task::<Count>().task::<Stranger>(),
            _ => Options::new().task::<Count>(),
        };
        match Tasks::open(&store, options) {
            Err(Error::Differs { what }) => {
                assert!(what.contains("list of tasks") && what.contains("stranger"), "{what}");
            }
            other => panic!("{other:?}"),
        }
        // With equal lists they open.
        let tasks = Tasks::open(&store, Options::new().task::<Count>()).expect("opens");
        tasks.close().expect("closes");
        end(&job, &store);
    })
    .expect_ok();
}

#[test]
fn two_tasks_of_a_name_and_global_mode_are_refused() {
    #[derive(Clone, Serialize, Deserialize)]
    struct Other;
    impl Task for Other {
        const NAME: &'static str = "count";
        type Output = ();
        fn run(self, _: &mut Cx<'_>) {}
    }
    sim::run(&sim(1, 3), |job| {
        let global = small_store().mode(Mode::Global);
        let store = Store::open(&job, global).expect("opens");
        let two = Tasks::open(&store, Options::new().task::<Count>().task::<Other>());
        assert!(matches!(&two, Err(Error::Invalid { reason }) if reason.contains("count")));
        let refused = Tasks::open(&store, Options::new().task::<Count>());
        assert!(matches!(&refused, Err(Error::Invalid { reason }) if reason.contains("global")));
        end(&job, &store);
    })
    .expect_ok();
}

#[test]
fn different_roots_are_an_error() {
    sim::run(&sim(2, 4), |job| {
        let store = Store::open(&job, small_store()).expect("opens");
        let tasks = Tasks::open(&store, Options::new().task::<Count>()).expect("opens");
        if job.me() == MemberId(1) {
            // After the other member has put the root.
            job.sleep(Duration::from_millis(50));
            assert!(matches!(tasks.run(Count(3)), Err(Error::Differs { .. })));
        } else {
            assert_eq!(tasks.run(Count(2)), Ok(4));
        }
        tasks.close().expect("closes");
        end(&job, &store);
    })
    .expect_ok();
}

#[test]
fn a_store_without_room_shares_nothing_and_the_output_is_right() {
    for seed in 0..6 {
        let mut options = sim(3, seed);
        options.segment_limit = 1 << 20;
        sim::run(&options, move |job| {
            let store = Store::open(&job, small_store()).expect("opens");
            let tasks = Tasks::open(&store, trees()).expect("opens");
            if job.me() == MemberId(0) {
                // Fills the store.
                for index in 0..100_000 {
                    if store.put(format!("fill/{index}").as_bytes(), &[7; 3000]).is_err() {
                        break;
                    }
                }
            }
            let tree = Tree { seed: mix(seed), depth: 5, is_decoy: false };
            match tasks.run(tree.clone()) {
                Ok(output) => assert_eq!(output, tree.expected()),
                // Without room for the root itself there is no run.
                Err(Error::Store(StoreError::OutOfMemory { .. }) | Error::RunFailed { .. }) => {}
                Err(error) => panic!("seed {seed}: {error}"),
            }
            let _ = tasks.close();
            end(&job, &store);
        })
        .expect_ok();
    }
}

#[test]
fn a_lost_partition_ends_the_run_everywhere_and_never_with_a_wrong_output() {
    let mut lost = 0;
    for seed in 0..30 {
        let options = sim(5, seed).random_faults(4, 0, 12_000);
        let report = sim::run(&options, move |job| {
            let store = store::Options::new().replicas(2).partitions(8).expected_keys(128);
            let Ok(store) = Store::open(&job, store) else { return };
            let Ok(tasks) = Tasks::open(&store, trees().attempts(100)) else { return };
            let tree = Tree { seed: mix(seed), depth: 7, is_decoy: false };
            match tasks.run(tree.clone()) {
                Ok(output) => assert_eq!(output, tree.expected()),
                Err(Error::Store(StoreError::DataLost { .. }) | Error::RunFailed { .. }) => {
                    LOST.set(LOST.get() + 1);
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
            let _ = tasks.close();
            end(&job, &store);
        });
        report.expect_ok();
        lost += LOST.take();
    }
    assert!(lost > 0, "no seed lost a partition");
}

thread_local! {
    static LOST: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Works for a second, and says where.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Endless(pub(crate) bool);

impl Task for Endless {
    const NAME: &'static str = "endless";
    type Output = u32;

    fn run(self, cx: &mut Cx<'_>) -> u32 {
        if self.0 {
            // The other half is for another member.
            let left = |cx: &mut Cx<'_>| {
                (0..20).for_each(|_| cx.work(Duration::from_millis(1)));
                1u32
            };
            let (left, right) = cx.join_with(left, Endless(false));
            return left + right;
        }
        cx.store().put(b"holder", &cx.me().0.to_le_bytes()).expect("room");
        (0..100).for_each(|_| cx.work(Duration::from_millis(10)));
        2
    }
}

/// Runs [`Endless`] and stops the member that holds its right half, for ever.
fn stop_the_holder(options: fn() -> Options, check: fn(&Job, Result<u32, Error>, MemberId)) {
    for seed in 0..4 {
        let report = sim::run(&sim(3, seed), move |job| {
            let store = Store::open(&job, small_store().replicas(3)).expect("opens");
            let tasks = Tasks::open(&store, options()).expect("opens");
            let (of_activity, job_of_activity) = (store.clone(), job.clone());
            let stop = move || {
                for _ in 0..2_000 {
                    job_of_activity.sleep(Duration::from_millis(1));
                    let Ok(Some(holder)) = of_activity.get(b"holder") else { continue };
                    let holder = u32::from_le_bytes(holder.bytes().try_into().expect("4 bytes"));
                    let lowest = (0..3).find(|&member| member != holder);
                    if lowest == Some(job_of_activity.me().0) {
                        let stop = outlast::engine::Fault::Stop(MemberId(holder));
                        job_of_activity.inject(stop).expect("stops");
                    }
                    return;
                }
            };
            job.spawn("stops", Box::new(stop)).expect("spawns");
            let output = tasks.run(Endless(true));
            let holder = store.get(b"holder").ok().flatten();
            let holder = holder.map_or(u32::MAX, |value| {
                u32::from_le_bytes(value.bytes().try_into().expect("4 bytes"))
            });
            check(&job, output, MemberId(holder));
            let _ = tasks.close();
            end(&job, &store);
        });
        report.expect_ok();
    }
}

#[test]
fn a_deadline_names_the_stopped_member() {
    stop_the_holder(
        || Options::new().beat_forks(1).task::<Endless>().deadline(Duration::from_secs(5)),
        |job, output, holder| match output {
            Err(Error::Deadline { holder: Some(silent), .. }) => assert_eq!(silent, holder),
            Err(Error::RunFailed { reason }) => {
                assert!(reason.contains("sign of life"), "{reason}")
            }
            other => panic!("{other:?} at {}", job.me()),
        },
    );
}

#[test]
fn a_silent_holder_is_fenced_if_the_program_asks_for_it() {
    stop_the_holder(
        || Options::new().beat_forks(1).task::<Endless>().fence_after(Duration::from_secs(2)),
        |job, output, _| {
            assert_eq!(output, Ok(3));
            assert!(job.now() < Time(30_000_000_000), "it waited for the stopped member");
            assert_eq!(job.view().dead.len(), 1);
        },
    );
}

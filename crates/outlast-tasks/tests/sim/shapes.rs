//! Tasks of unusual shapes: a single task in `all`, long chains, unwanted tasks, loops of forks,
//! tasks that are not pure, and a store without room.

use crate::schedules::{STATS, die, mark, run, sim, wait_for, wait_for_deaths};
use crate::trees::{Pool, Tree, mix, seeds, small_store};
use outlast::engine::Fault;
use outlast::sim::{self, Link};
use outlast::store::{Expect, Store};
use outlast::{MemberId, Time};
use outlast_tasks::{Cx, Error, Options, Stats, Task, TaskError, Tasks};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::time::Duration;

const MILLIS: fn(u64) -> Duration = Duration::from_millis;

thread_local! {
    /// How long the tasks of a scope took.
    static ELAPSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// How many keys of long arguments and outputs there were.
    static LONG_KEYS: Cell<usize> = const { Cell::new(0) };
}

/// The tasks of these tests.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Shape {
    Number(u64),
    /// Works for so many milliseconds without a fork.
    Busy(u64),
    DiesOnce,
    /// More tasks at once than a board has hints; the worker dies when all are spawned, or not.
    Spawns {
        count: u64,
        dies: bool,
    },
    WaitsForSpawns(u64),
    /// Two loops that save their states, each alone in `all`, after a fork.
    Singles,
    Loop(u64),
    /// Waits for a chain whose worker dies with all of it.
    WaitsForChain(u64),
    Chain(u64),
    /// The worker of `Catches` dies after it has saved a left half with an unwanted task inside.
    Unjoined,
    Catches,
    Throws,
    Kills,
    Unwanted(Vec<u8>),
    /// Loops of forks without `save`: of `join`, of a scope.
    Joins(u64),
    Scopes(u64),
    /// A loop of bags, with `save` or without.
    Bags {
        steps: u64,
        saves: bool,
    },
    /// Forks a task of another type in each life; the right half is shared, or the left one saved.
    OtherRight,
    OtherLeft,
    /// Joins a task that kills its worker. No other worker is there to take it.
    WaitsForKiller,
    JoinsKiller,
    Killer,
    /// Waits for a task whose worker died, while the worker of its child is stopped.
    WaitsAbove,
    DiesAbove,
    StopsBelow,
    /// Fills the store after it has shared a task, and makes room again later.
    Fills,
    /// Joins a task that kills its workers, and looks for what it has left.
    Buries,
    KillsAll,
    Slow(Vec<u8>),
    /// A root with long arguments.
    Long(Vec<u8>),
    /// Its first three workers die, without a fault of the task.
    LosesThree,
}

/// A task with the encoding of `Shape::Number`, and another output.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Other {
    Number(u64),
}

impl Task for Other {
    const NAME: &'static str = "other";
    type Output = u64;

    fn run(self, cx: &mut Cx<'_>) -> u64 {
        let Other::Number(number) = self;
        cx.work(MILLIS(1));
        number + 1_000
    }
}

impl Task for Shape {
    const NAME: &'static str = "shape";
    type Output = u64;

    fn run(self, cx: &mut Cx<'_>) -> u64 {
        match self {
            Shape::Number(number) => number,
            Shape::Busy(millis) => {
                (0..millis).for_each(|_| cx.work(MILLIS(1)));
                1
            }
            Shape::DiesOnce => {
                die(cx, "once", 1);
                0
            }
            Shape::Spawns { count, dies } => {
                let began = cx.store().job().now();
                let sum = cx.scope(|s| {
                    let futures: Vec<_> = (0..count).map(|_| s.spawn(Shape::Busy(20))).collect();
                    if dies {
                        s.join(Shape::DiesOnce, Shape::Number(0));
                    }
                    futures.into_iter().map(|future| future.get(s)).sum()
                });
                ELAPSED.set(cx.store().job().now().since(began));
                sum
            }
            Shape::WaitsForSpawns(count) => {
                let left = |cx: &mut Cx<'_>| {
                    wait_for_deaths(cx, 1);
                    cx.store().job().now().0
                };
                let (death, sum) = cx.join_with(left, Shape::Spawns { count, dies: true });
                ELAPSED.set(cx.store().job().now().since(Time(death)));
                sum
            }
            Shape::Singles => {
                let (a, b) = cx.join(Shape::Number(1), Shape::Number(2));
                let first = cx.all(&[Shape::Loop(1)]);
                let second = cx.all(&[Shape::Loop(2)]);
                a + b + first[0] + second[0]
            }
            Shape::Loop(number) => {
                let restored: Option<(u64, u64)> = cx.restore();
                if let Some((of, _)) = restored {
                    assert_eq!(of, number, "the state of another loop");
                }
                let mut step = restored.map_or(0, |(_, step)| step);
                while step < 8 {
                    cx.join(Shape::Number(step), Shape::Number(0));
                    step += 1;
                    cx.save(&(number, step));
                    if number == 2 && step == 5 {
                        die(cx, "singles", 1);
                    }
                }
                number * 100
            }
            Shape::WaitsForChain(len) => {
                let left = |cx: &mut Cx<'_>| {
                    wait_for_deaths(cx, 1);
                    0u64
                };
                let (left, right) = cx.join_with(left, Shape::Chain(len));
                left + right
            }
            Shape::Chain(0) => {
                die(cx, "chain", 1);
                1
            }
            Shape::Chain(len) => {
                let left = |cx: &mut Cx<'_>| {
                    (0..4).for_each(|_| cx.work(MILLIS(1)));
                    1u64
                };
                let (left, right) = cx.join_with(left, Shape::Chain(len - 1));
                left + right
            }
            Shape::Unjoined => {
                let left = |cx: &mut Cx<'_>| {
                    wait_for(cx, "thrown");
                    1u64
                };
                let (left, right) = cx.join_with(left, Shape::Catches);
                left + right
            }
            Shape::Catches => {
                cx.store().put(b"catcher", &cx.me().0.to_le_bytes()).expect("room");
                let (thrown, right) = cx.try_join(Shape::Throws, Shape::Kills);
                assert!(matches!(thrown, Err(TaskError::Panicked { .. })), "{thrown:?}");
                10 + right.expect("does not panic")
            }
            Shape::Throws => {
                let left = |cx: &mut Cx<'_>| -> u64 {
                    // Time to share what is offered.
                    (0..20).for_each(|_| cx.work(MILLIS(1)));
                    mark(cx, "thrown");
                    wait_for(cx, "kills");
                    std::panic::resume_unwind(Box::new("thrown"))
                };
                cx.join_with(left, Shape::Unwanted(vec![7; 3_000])).0
            }
            Shape::Kills => {
                mark(cx, "kills");
                // By then the other worker waits for this task.
                cx.work(MILLIS(300));
                if cx.store().put_if(b"killed", b"", Expect::Absent).is_ok() {
                    let catcher = cx.store().get(b"catcher").expect("reads").expect("is there");
                    let catcher = u32::from_le_bytes(catcher.bytes().try_into().expect("4 bytes"));
                    let _ = cx.store().job().inject(Fault::Kill(MemberId(catcher)));
                }
                100
            }
            Shape::Unwanted(_) => 0,
            Shape::Joins(steps) => (0..steps)
                .map(|step| {
                    let left = |cx: &mut Cx<'_>| {
                        (0..4).for_each(|_| cx.work(MILLIS(1)));
                        step
                    };
                    let (left, right) = cx.join_with(left, Shape::Number(1));
                    left + right
                })
                .sum(),
            Shape::Scopes(steps) => (0..steps)
                .map(|step| {
                    cx.scope(|s| {
                        let a = s.spawn(Shape::Number(step));
                        let b = s.spawn(Shape::Busy(20));
                        // Time for the other worker to take both; it is not done with b after that.
                        s.join(Shape::Busy(4), Shape::Number(0));
                        b.get(s) + a.get(s)
                    })
                })
                .sum(),
            Shape::Bags { steps, saves } => {
                let (mut step, mut nodes): (u64, u64) = cx.restore().unwrap_or_default();
                while step < steps {
                    let tree = Tree { seed: mix(step), depth: 7, is_decoy: false };
                    nodes += cx.work_off(Pool::new(tree)).0;
                    step += 1;
                    if saves {
                        cx.save(&(step, nodes));
                    }
                }
                nodes
            }
            Shape::OtherRight => {
                let left = |cx: &mut Cx<'_>| {
                    (0..50).for_each(|_| cx.work(MILLIS(1)));
                    die(cx, "other", 1);
                    0u64
                };
                if cx.store().exists(b"died/other/0").expect("reads") {
                    return cx.join_with(left, Other::Number(5)).1;
                }
                cx.join_with(left, Shape::Number(5)).1
            }
            Shape::OtherLeft => {
                cx.store().put(b"catcher", &cx.me().0.to_le_bytes()).expect("room");
                if cx.store().exists(b"killed").expect("reads") {
                    return cx.join(Other::Number(5), Shape::Kills).0;
                }
                cx.join(Shape::Joins(5), Shape::Kills).0
            }
            Shape::WaitsForKiller => {
                let left = |cx: &mut Cx<'_>| {
                    wait_for_deaths(cx, 1);
                    1_000u64
                };
                let (left, right) = cx.join_with(left, Shape::JoinsKiller);
                left + right
            }
            Shape::JoinsKiller => {
                cx.scope(|s| {
                    let killer = s.spawn(Shape::Killer);
                    // Time to share it.
                    let sum = s.join(Shape::Joins(1), Shape::Number(0)).0;
                    match killer.try_get(s) {
                        Err(TaskError::Poisoned { .. }) => sum + 100,
                        other => panic!("{other:?}"),
                    }
                })
            }
            Shape::Killer => {
                (0..4).for_each(|_| cx.work(MILLIS(1)));
                die(cx, "killer", 1);
                0
            }
            Shape::WaitsAbove => {
                let left = |cx: &mut Cx<'_>| {
                    wait_for_deaths(cx, 1);
                    1u64
                };
                let (left, right) = cx.join_with(left, Shape::DiesAbove);
                left + right
            }
            Shape::DiesAbove => {
                let left = |cx: &mut Cx<'_>| {
                    wait_for(cx, "below");
                    die(cx, "above", 1);
                    10u64
                };
                let (left, right) = cx.join_with(left, Shape::StopsBelow);
                left + right
            }
            Shape::StopsBelow => {
                mark(cx, "below");
                wait_for_deaths(cx, 1);
                if cx.store().put_if(b"stopped", b"", Expect::Absent).is_ok() {
                    cx.store().job().inject(Fault::Stop(cx.me())).expect("stops");
                }
                cx.work(MILLIS(10));
                100
            }
            Shape::Buries => {
                let poisoned = cx.scope(|s| {
                    let killer = s.spawn(Shape::KillsAll);
                    // Time to share it.
                    s.join(Shape::Joins(1), Shape::Number(0));
                    killer.try_get(s)
                });
                assert!(matches!(poisoned, Err(TaskError::Poisoned { .. })), "{poisoned:?}");
                cx.work(MILLIS(50));
                let keys = cx.store().scan(b"outlast-tasks/").expect("scans");
                LONG_KEYS.set(keys.iter().filter(|key| is_of_long_bytes(key)).count());
                mark(cx, "buried");
                1
            }
            Shape::KillsAll => {
                let left = |cx: &mut Cx<'_>| {
                    wait_for(cx, "slow");
                    die(cx, "kills all", 2);
                };
                cx.join_with(left, Shape::Slow(vec![7; 3_000])).1
            }
            Shape::Slow(_) => {
                mark(cx, "slow");
                wait_for(cx, "buried");
                1
            }
            Shape::Long(_) => 1,
            Shape::LosesThree => {
                die(cx, "loses three", 3);
                1
            }
            Shape::Fills => {
                let left = |cx: &mut Cx<'_>| {
                    fill(cx.store());
                    (0..400).for_each(|_| cx.work(MILLIS(100)));
                    let keys = cx.store().scan(b"fill/").expect("scans");
                    keys.iter().for_each(|key| drop(cx.store().delete(key)));
                    1u64
                };
                let (left, right) = cx.join_with(left, Shape::Joins(3));
                left + right
            }
        }
    }
}

/// Whether a key is that of arguments or of an output beyond the length that a record holds.
fn is_of_long_bytes(key: &[u8]) -> bool {
    key.windows(3).any(|part| part == b"/b/")
}

/// Fills the store with values of this member.
fn fill(store: &Store) {
    let mut count = 0;
    for len in [3_000, 300, 30, 0] {
        let key = |count: u64| format!("fill/{}/{count}", store.me()).into_bytes();
        while count < 100_000 && store.put(&key(count), &vec![7; len]).is_ok() {
            count += 1;
        }
    }
}

fn shapes() -> Options {
    Options::new().beat_forks(1).task::<Shape>().task::<Other>().bag::<Pool>()
}

fn count(of: impl Fn(&Stats) -> u64) -> u64 {
    STATS.with_borrow(|stats| stats.iter().map(of).sum())
}

#[test]
fn options_of_any_size_are_taken() {
    let options = || shapes().nested(u32::MAX).beat(Duration::MAX).deadline(Duration::MAX);
    run(&sim(2, 1), options, Shape::Joins(5), |_, output| assert_eq!(output, Ok(15)));
}

#[test]
fn a_worker_without_work_sleeps_between_hosts() {
    for seed in seeds(0..4) {
        let options = sim(3, seed).link(Link::Network);
        let root = Shape::Busy(2_000);
        let report = run(&options, shapes, root, |_, output| assert_eq!(output, Ok(1)));
        // Two workers have no work for two seconds, and look ten times a second.
        let operations: Vec<u64> = report.counters.iter().map(|one| one.operations).collect();
        let idle = operations.iter().filter(|&&count| count < 5_000).count();
        assert!(idle >= 2, "seed {seed}: {operations:?}");
    }
}

#[test]
fn a_member_that_waits_for_the_others_to_open_sleeps_between_hosts() {
    for seed in seeds(0..4) {
        let mut options = sim(6, seed).link(Link::Network);
        options.steps_max = 20_000_000;
        let report = sim::run(&options, move |job| {
            let store = Store::open(&job, small_store()).expect("opens");
            job.sleep(MILLIS(500) * job.me().0);
            let tasks = Tasks::open(&store, shapes()).expect("opens");
            job.sleep(MILLIS(500) * job.me().0);
            tasks.close().expect("closes");
            let _ = store.close();
            let _ = job.leave();
        });
        let report = report.expect_ok();
        let operations: Vec<u64> = report.counters.iter().map(|one| one.operations).collect();
        assert!(operations.iter().all(|&count| count < 20_000), "seed {seed}: {operations:?}");
    }
}

#[test]
fn a_single_task_of_all_has_a_strand_of_its_own() {
    for seed in seeds(0..12) {
        run(&sim(4, seed), shapes, Shape::Singles, |_, output| assert_eq!(output, Ok(303)));
    }
}

#[test]
fn a_long_chain_of_open_tasks_is_walked_down_to_its_end() {
    for (seed, has_heirs) in seeds(0..2).flat_map(|seed| [(seed, true), (seed, false)]) {
        let mut options = sim(2, seed);
        options.stack_len = 64 << 20;
        options.steps_max = 20_000_000;
        let of_tasks = move || shapes().heirs(has_heirs);
        run(&options, of_tasks, Shape::WaitsForChain(100), |_, output| assert_eq!(output, Ok(101)));
    }
}

#[test]
fn a_task_inside_a_failed_left_half_is_withdrawn_before_its_arguments_are_deleted() {
    for seed in seeds(0..12) {
        run(&sim(2, seed), shapes, Shape::Unjoined, |_, output| assert_eq!(output, Ok(111)));
    }
}

#[test]
fn a_loop_of_forks_without_save_is_shared_to_its_end() {
    for seed in seeds(0..6) {
        let steps = 60;
        let options = || shapes().slots(8);
        let expected = (0..steps).sum::<u64>() + steps;
        run(&sim(2, seed), options, Shape::Joins(steps), move |_, output| {
            assert_eq!(output, Ok(expected));
        });
        let (shared, saved) = (count(|stats| stats.shared), count(|stats| stats.saved));
        assert!(shared >= steps * 3 / 4, "seed {seed}: {shared} shared");
        assert!(saved >= steps / 4, "seed {seed}: {saved} saved");
    }
}

#[test]
fn a_loop_of_scopes_without_save_is_shared_to_its_end() {
    for seed in seeds(0..6) {
        let steps = 60;
        let options = || shapes().slots(8);
        let expected = (0..steps).sum::<u64>() + steps;
        run(&sim(2, seed), options, Shape::Scopes(steps), move |_, output| {
            assert_eq!(output, Ok(expected));
        });
        let (shared, saved) = (count(|stats| stats.shared), count(|stats| stats.saved));
        assert!(shared >= steps, "seed {seed}: {shared} shared");
        assert!(saved >= steps / 2, "seed {seed}: {saved} saved");
    }
}

#[test]
fn more_open_tasks_than_a_board_has_room_for_are_found_by_the_others() {
    for seed in seeds(0..4) {
        let spawns = Shape::Spawns { count: 100, dies: false };
        run(&sim(4, seed), shapes, spawns, |_, output| assert_eq!(output, Ok(100)));
        // Four workers need half a second for 100 tasks of 20 ms.
        let elapsed = ELAPSED.take();
        assert!(elapsed < MILLIS(800), "seed {seed}: {elapsed:?}");
    }
}

#[test]
fn more_open_tasks_of_a_dead_worker_than_a_board_has_room_for_are_found_by_the_others() {
    for seed in seeds(0..4) {
        let root = Shape::WaitsForSpawns(100);
        run(&sim(4, seed), shapes, root, |_, output| assert_eq!(output, Ok(100)));
        // Three workers need two thirds of a second for 100 tasks of 20 ms.
        let elapsed = ELAPSED.take();
        assert!(elapsed < MILLIS(1_000), "seed {seed}: {elapsed:?}");
    }
}

#[test]
fn a_loop_of_bags_gives_parts_away_to_its_end() {
    for (seed, saves) in seeds(0..6).flat_map(|seed| [(seed, true), (seed, false)]) {
        let steps = 40;
        let tree = |step| Tree { seed: mix(step), depth: 7, is_decoy: false };
        let expected = (0..steps).map(|step| Pool::expected(&tree(step)).0).sum::<u64>();
        let options = || shapes().slots(6);
        run(&sim(3, seed), options, Shape::Bags { steps, saves }, move |_, output| {
            assert_eq!(output, Ok(expected));
        });
        let shared = count(|stats| stats.shared);
        assert!(shared >= steps, "seed {seed}, saves {saves}: {shared} shared");
    }
}

/// A tree of joins with long outputs.
#[derive(Clone, Serialize, Deserialize)]
struct Wide {
    seed: u64,
    depth: u32,
}

impl Wide {
    fn child(&self, index: u64) -> Wide {
        Wide { seed: mix(self.seed ^ index), depth: self.depth - 1 }
    }

    fn joined(&self, left: &[u64], right: &[u64]) -> Vec<u64> {
        left.iter().zip(right).map(|(a, b)| mix(self.seed ^ a ^ b << 1)).collect()
    }

    fn expected(&self) -> Vec<u64> {
        if self.depth == 0 {
            return vec![self.seed; 200];
        }
        self.joined(&self.child(1).expected(), &self.child(2).expected())
    }
}

impl Task for Wide {
    const NAME: &'static str = "wide";
    type Output = Vec<u64>;

    fn run(self, cx: &mut Cx<'_>) -> Vec<u64> {
        cx.work(Duration::from_micros(mix(self.seed) % 3_000));
        if self.depth == 0 {
            return vec![self.seed; 200];
        }
        let (left, right) = cx.join(self.child(1), self.child(2));
        self.joined(&left, &right)
    }
}

#[test]
fn a_left_half_that_was_forgotten_is_computed_again_with_what_was_inside_it() {
    let mut forgotten = 0;
    for seed in seeds(0..30) {
        let root = Wide { seed, depth: 5 };
        let expected = root.expected();
        let options = sim(4, seed).random_faults(2, 1, 15_000);
        let of_tasks = || Options::new().beat_forks(1).task::<Wide>().attempts(100).slots(4);
        run(&options, of_tasks, root, move |_, output| {
            let error = output.as_ref().err().map(ToString::to_string);
            assert!(output == Ok(expected.clone()), "seed {seed}: {error:?}");
        });
        forgotten += count(|stats| stats.forgotten);
    }
    assert!(forgotten > 100, "{forgotten} forgotten");
}

#[test]
fn a_silent_holder_below_an_open_task_is_fenced_if_the_program_asks_for_it() {
    for seed in seeds(0..6) {
        let options = || shapes().fence_after(MILLIS(2_000));
        run(&sim(3, seed), options, Shape::WaitsAbove, |_, output| assert_eq!(output, Ok(111)));
    }
}

#[test]
fn an_earlier_output_of_another_type_is_not_used() {
    for seed in seeds(0..12) {
        run(&sim(3, seed), shapes, Shape::OtherRight, |_, output| assert_eq!(output, Ok(1_005)));
        assert_eq!(count(|stats| stats.diverged), 1, "seed {seed}");
        run(&sim(3, seed), shapes, Shape::OtherLeft, |_, output| assert_eq!(output, Ok(1_005)));
        assert!(count(|stats| stats.diverged) <= 1, "seed {seed}");
    }
}

#[test]
fn a_store_that_is_full_for_longer_than_the_limit_does_not_end_the_run() {
    for seed in seeds(0..4) {
        let mut options = sim(3, seed);
        options.segment_limit = 1 << 20;
        sim::run(&options, move |job| {
            let store = Store::open(&job, small_store()).expect("opens");
            let tasks = Tasks::open(&store, shapes()).expect("opens");
            if job.me() != MemberId(0) {
                // The store is full when these members begin, and has an open task.
                job.sleep(MILLIS(2_000));
                fill(&store);
                job.sleep(MILLIS(1_000));
            }
            assert_eq!(tasks.run(Shape::Fills), Ok(7), "seed {seed}");
            let _ = tasks.close();
            let _ = store.close();
            let _ = job.leave();
        })
        .expect_ok();
    }
}

/// A task that leaves no room for its own output and never makes room again, and one that waits.
#[derive(Clone, Serialize, Deserialize)]
enum Filler {
    Waits,
    Fills,
}

impl Task for Filler {
    const NAME: &'static str = "filler";
    type Output = Vec<u64>;

    fn run(self, cx: &mut Cx<'_>) -> Vec<u64> {
        match self {
            Filler::Waits => {
                let left = |cx: &mut Cx<'_>| wait_for(cx, "fills");
                cx.join_with(left, Filler::Fills).1
            }
            Filler::Fills => {
                mark(cx, "fills");
                let mut count = 0;
                // Blocks of all lengths, at all members.
                for len in (0..60).rev().map(|length| length * 50) {
                    let mut failed = 0;
                    while failed < 16 {
                        count += 1;
                        let key = format!("fill/{count}");
                        failed += u32::from(cx.store().put(key.as_bytes(), &vec![7; len]).is_err());
                    }
                }
                vec![u64::MAX; 200]
            }
        }
    }
}

#[test]
fn all_members_leave_a_run_that_finds_no_room_for_its_end() {
    for seed in seeds(0..2) {
        let mut options = sim(4, seed).link(Link::of_seed(seed));
        options.segment_limit = 1 << 20;
        (options.steps_max, options.time_limit) = (20_000_000, MILLIS(500));
        sim::run(&options, move |job| {
            let store = Store::open(&job, small_store()).expect("opens");
            let options = Options::new().beat_forks(1).task::<Filler>();
            let tasks = Tasks::open(&store, options).expect("opens");
            let began = job.now();
            let output = tasks.run(Filler::Waits);
            let took = job.now().since(began);
            assert!(output.is_err(), "seed {seed}: {output:?}");
            assert!(took < MILLIS(10_000), "seed {seed}: {took:?}");
            // They leave no room for the ends of the others.
            job.sleep(MILLIS(5_000));
            let _ = tasks.close();
            let _ = store.close();
            let _ = job.leave();
        })
        .expect_ok();
    }
}

#[test]
fn a_poisoned_task_leaves_no_child_and_no_long_arguments() {
    for seed in seeds(0..8) {
        let options = || shapes().attempts(2);
        run(&sim(5, seed), options, Shape::Buries, |_, output| assert_eq!(output, Ok(1)));
        assert_eq!(LONG_KEYS.take(), 0, "seed {seed}");
        assert_eq!(count(|stats| stats.poisoned), 1, "seed {seed}");
    }
}

#[test]
fn a_task_is_poisoned_without_saving_only_if_the_program_sets_a_limit() {
    for seed in seeds(0..4) {
        let plain = || shapes().resilient(false);
        run(&sim(6, seed), plain, Shape::LosesThree, |_, output| assert_eq!(output, Ok(1)));
        assert_eq!(count(|stats| stats.poisoned), 0, "seed {seed}");
        let limited = || shapes().resilient(false).attempts(3);
        run(&sim(6, seed), limited, Shape::LosesThree, |_, output| {
            assert!(matches!(output, Err(Error::Task(TaskError::Poisoned { .. }))), "{output:?}");
        });
    }
}

#[test]
fn the_long_arguments_of_a_root_are_kept_once_and_deleted_with_it() {
    for seed in seeds(0..8) {
        let options = sim(4, seed).link(Link::of_seed(seed));
        sim::run(&options, move |job| {
            let store = Store::open(&job, small_store()).expect("opens");
            let tasks = Tasks::open(&store, shapes()).expect("opens");
            for _ in 0..6 {
                if job.me() == MemberId(0) {
                    // The others put the root without the lowest member, all of them at once.
                    job.sleep(MILLIS(20));
                }
                assert_eq!(tasks.run(Shape::Long(vec![7; 3_000])), Ok(1), "seed {seed}");
            }
            // The lowest member is the last to begin each run, and deletes the roots before it.
            if job.me() == MemberId(0) {
                let keys = store.scan(b"outlast-tasks/").expect("scans");
                let long = keys.iter().filter(|key| is_of_long_bytes(key)).count();
                assert_eq!(long, 1, "seed {seed}: {keys:?}");
            }
            tasks.close().expect("closes");
            let _ = store.close();
            let _ = job.leave();
        })
        .expect_ok();
    }
}

#[test]
fn a_task_is_not_poisoned_with_the_child_that_it_runs_itself() {
    for seed in seeds(0..12) {
        let options = || shapes().attempts(1);
        run(&sim(2, seed), options, Shape::WaitsForKiller, |_, output| {
            assert_eq!(output, Ok(1_101));
        });
    }
}

//! Schedules that broke simpler forms of the runtime, each as a test.
//!
//! The tasks here talk through keys of the store, so that a schedule happens as its test tells it:
//! a mark says that a task got somewhere, and a task dies with its worker once for each name.

use crate::trees::{Bomb, Pool, Tree, mix, seeds, small_store};
use outlast::engine::Fault;
use outlast::sim::{self, Action, Link, Report, When};
use outlast::store::{Expect, Store, Value};
use outlast::{Job, MemberId, Time};
use outlast_tasks::{Bag, Cx, Error, Options, Stats, Task, TaskError, Tasks};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

thread_local! {
    /// What runs now, and where: a name must not run at two living members.
    static RUNNING: RefCell<HashMap<String, MemberId>> = RefCell::default();
    static STARTS: RefCell<HashMap<String, u32>> = RefCell::default();
    pub(crate) static STATS: RefCell<Vec<Stats>> = RefCell::default();
}

thread_local! {
    /// How often a task was opened again while the heir of its sharer was stopped.
    static OPENED_EARLY: Cell<u32> = const { Cell::new(0) };
    /// Whether that heir goes on.
    static IS_RESUMED: Cell<bool> = const { Cell::new(false) };
}

/// The member whose number is a value.
fn member_of(value: Value) -> MemberId {
    MemberId(u32::from_le_bytes(value.bytes().try_into().expect("4 bytes")))
}

/// Runs under a name, alone.
pub(crate) struct Alone(String);

impl Alone {
    pub(crate) fn begin(name: &str, cx: &Cx<'_>) -> Alone {
        STARTS.with_borrow_mut(|starts| *starts.entry(name.to_string()).or_default() += 1);
        let before = RUNNING.with_borrow_mut(|all| all.insert(name.to_string(), cx.me()));
        assert_eq!(before, None, "{name} runs at {} as well", cx.me());
        Alone(name.to_string())
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        RUNNING.with_borrow_mut(|all| all.remove(&self.0));
    }
}

pub(crate) fn starts(name: &str) -> u32 {
    STARTS.with_borrow(|starts| starts.get(name).copied().unwrap_or(0))
}

/// Says that a task got somewhere.
pub(crate) fn mark(cx: &Cx<'_>, name: &str) {
    cx.store().put(format!("mark/{name}").as_bytes(), b"").expect("room");
}

pub(crate) fn is_marked(store: &Store, name: &str) -> bool {
    store.exists(format!("mark/{name}").as_bytes()).expect("reads")
}

/// Works until a task got somewhere.
pub(crate) fn wait_for(cx: &mut Cx<'_>, name: &str) {
    for _ in 0..100_000 {
        if is_marked(cx.store(), name) {
            return;
        }
        cx.work(Duration::from_micros(200));
    }
    panic!("nobody marked {name}");
}

/// Works until this many members are dead.
pub(crate) fn wait_for_deaths(cx: &mut Cx<'_>, count: usize) {
    for _ in 0..100_000 {
        if cx.store().job().view().dead.len() >= count {
            return;
        }
        cx.work(Duration::from_micros(200));
    }
    panic!("fewer than {count} members died");
}

/// Dies with the worker, as often as `times` says.
pub(crate) fn die(cx: &Cx<'_>, name: &str, times: u32) {
    for time in 0..times {
        let key = format!("died/{name}/{time}");
        if cx.store().put_if(key.as_bytes(), b"", Expect::Absent).is_ok() {
            let job = cx.store().job();
            // As many deaths as there are replicas, before repair, would be a loss.
            let until = job.now().after(job.time_limit());
            assert!(cx.store().wait_repaired(until).expect("answers").is_repaired());
            job.fence(cx.me(), Time::NEVER).expect("dies");
            unreachable!("a fenced member runs no further");
        }
    }
}

/// All members have opened the runtime by this time.
const OPEN: Time = Time(1_000_000_000);

pub(crate) fn sim(members: usize, seed: u64) -> sim::Options {
    RUNNING.take();
    STARTS.take();
    STATS.take();
    let mut options = sim::Options::new(members, seed);
    options.steps_max = 3_000_000;
    options.stack_len = 2 << 20;
    options
}

/// Runs a task at all members, and calls `check` at each survivor.
pub(crate) fn run<T: Task + Clone>(
    sim: &sim::Options,
    options: impl Fn() -> Options + 'static,
    root: T,
    check: impl Fn(&Job, Result<T::Output, Error>) + 'static,
) -> Report {
    sim::run(sim, move |job| {
        let store = Store::open(&job, small_store()).expect("opens");
        let tasks = Tasks::open(&store, options()).expect("opens");
        check(&job, tasks.run(root.clone()));
        STATS.with_borrow_mut(|stats| stats.push(tasks.stats()));
        let _ = tasks.close();
        let _ = store.close();
        let _ = job.leave();
    })
    .expect_ok()
}

fn often() -> Options {
    Options::new()
        .beat_forks(1)
        .task::<Part>()
        .sums::<Tree>()
        .task::<Bomb>()
        .bag::<Pool>()
        .attempts(3)
}

/// The tasks of the schedules, by name.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Part {
    /// A task that ends at once.
    Nothing,
    /// Marks, and works for some time.
    Marks(String, u64),
    /// The schedule of the bottom rule.
    Root,
    T,
    C,
    G,
    H,
    /// A loop of steps with equal right halves, which dies once in the middle.
    Loop,
    Number(u64),
    /// A task that kills its workers, with children elsewhere.
    Killer {
        children: bool,
    },
    /// Waits in a scope for a killer.
    Waiter,
    /// Forks a task that dies with its worker, and works without a look.
    LongLeaf,
    /// Dies, then the worker of its child does; works without a look in its next life.
    DyingLeaf,
    DiesOnce(String),
    /// Forks, works for long without a look, then joins.
    Diverges,
    /// Dies once while its child's worker lives; see `DyingLeaf`.
    DiesSecond,
    /// Waits with a saved left half until its worker is killed.
    SavesLeft,
    KillsWaiter,
    /// Uses the slot of an unwanted task again while the worker of that task still runs it.
    Reuses,
    WaitsFor(String),
    Unwanted,
    New,
    /// Runs its right half in place, whose child lives on elsewhere when the worker dies.
    Below,
    BelowB,
    BelowC,
    /// Waits for a task whose worker died, and so did the worker of its child: no worker is idle.
    Walk,
    WalkT,
    WalkC,
    /// Dies while the lowest other member is stopped; the next life lets that member go on.
    StopsLowest,
    /// Waits for a child of its earlier life whose worker died, while the heir that owns the
    /// child's record is stopped.
    HeirStops,
    HeirStopsC,
}

impl Task for Part {
    const NAME: &'static str = "part";
    type Output = u64;

    fn run(self, cx: &mut Cx<'_>) -> u64 {
        match self {
            Part::Nothing => 0,
            Part::Number(number) => number,
            Part::Marks(name, millis) => {
                let _alone = Alone::begin(&name, cx);
                mark(cx, &name);
                cx.work(Duration::from_millis(millis));
                1
            }
            Part::Root => {
                let left = |cx: &mut Cx<'_>| {
                    wait_for(cx, "h");
                    // Long after the death of T's worker, and after the end of H.
                    cx.work(Duration::from_secs(3));
                    1u64
                };
                let (left, t) = cx.join_with(left, Part::T);
                left + t
            }
            Part::T => {
                let _alone = Alone::begin("t", cx);
                let left = |cx: &mut Cx<'_>| {
                    wait_for(cx, "h");
                    cx.work(Duration::from_millis(20));
                    die(cx, "t", 1);
                    10u64
                };
                let (left, c) = cx.join_with(left, Part::C);
                left + c
            }
            Part::C => {
                let _alone = Alone::begin("c", cx);
                let left = |cx: &mut Cx<'_>| {
                    wait_for(cx, "g");
                    100u64
                };
                let (left, g) = cx.join_with(left, Part::G);
                left + g
            }
            Part::G => {
                let _alone = Alone::begin("g-alone", cx);
                mark(cx, "g");
                let left = |cx: &mut Cx<'_>| {
                    wait_for(cx, "h");
                    1_000u64
                };
                let (left, h) = cx.join_with(left, Part::H);
                left + h
            }
            Part::H => {
                let _alone = Alone::begin("h-alone", cx);
                mark(cx, "h");
                cx.work(Duration::from_secs(2));
                10_000
            }
            Part::Loop => {
                let (mut step, mut sum): (u64, u64) = cx.restore().unwrap_or_default();
                while step < 8 {
                    let left = move |cx: &mut Cx<'_>| {
                        cx.work(Duration::from_millis(1));
                        1 << (4 * step)
                    };
                    let (left, right): (u64, u64) = cx.join_with(left, Part::Number(0));
                    sum += left + right;
                    step += 1;
                    cx.save(&(step, sum));
                    if step == 5 {
                        die(cx, "loop", 2);
                    }
                }
                sum
            }
            Part::Killer { children } => {
                if children {
                    // Children that finish elsewhere do not excuse a task that kills its workers.
                    let name = format!("child {}", cx.me());
                    let left = |cx: &mut Cx<'_>| {
                        wait_for(cx, &name);
                        die(cx, "killer", 100);
                        0u64
                    };
                    return cx.join_with(left, Part::Marks(name.clone(), 1)).0;
                }
                die(cx, "killer", 100);
                0
            }
            Part::Waiter => cx.scope(|s| {
                let killer = s.spawn(Part::Killer { children: false });
                let other = s.spawn(Part::Number(5));
                let sum = other.get(s);
                match killer.try_get(s) {
                    Err(TaskError::Poisoned { .. }) => sum + 100,
                    other => panic!("{other:?}"),
                }
            }),
            Part::DiesOnce(name) => {
                mark(cx, &name);
                die(cx, &name, 1);
                mark(cx, &format!("{name} again"));
                7
            }
            Part::LongLeaf => {
                let left = |cx: &mut Cx<'_>| {
                    wait_for(cx, "leaf");
                    // No look for two seconds.
                    cx.store().job().sleep(Duration::from_secs(2));
                    u64::from(is_marked(cx.store(), "leaf again"))
                };
                let (left, right) = cx.join_with(left, Part::DiesOnce("leaf".to_string()));
                left * 10 + right
            }
            Part::DyingLeaf => {
                let left = |cx: &mut Cx<'_>| {
                    wait_for(cx, "leaf");
                    die(cx, "dying", 1);
                    // No look for two seconds.
                    cx.store().job().sleep(Duration::from_secs(2));
                    u64::from(is_marked(cx.store(), "leaf again"))
                };
                let (left, right) = cx.join_with(left, Part::DiesSecond);
                left * 10 + right
            }
            Part::DiesSecond => {
                mark(cx, "leaf");
                wait_for_deaths(cx, 1);
                die(cx, "second", 1);
                mark(cx, "leaf again");
                7
            }
            Part::SavesLeft => {
                let left = |cx: &mut Cx<'_>| {
                    let _alone = Alone::begin("saved left", cx);
                    cx.store().put(b"waiter", &cx.me().0.to_le_bytes()).expect("room");
                    wait_for(cx, "saves");
                    5u64
                };
                let (left, right) = cx.join_with(left, Part::KillsWaiter);
                left + right
            }
            Part::KillsWaiter => {
                mark(cx, "saves");
                // By then the other worker has saved its left half, and waits.
                cx.work(Duration::from_millis(300));
                if cx.store().put_if(b"killed", b"", Expect::Absent).is_ok() {
                    let waiter = cx.store().get(b"waiter").expect("reads").expect("is there");
                    let waiter = u32::from_le_bytes(waiter.bytes().try_into().expect("4 bytes"));
                    let kill = Fault::Kill(MemberId(waiter));
                    cx.store().job().inject(kill).expect("kills");
                }
                cx.work(Duration::from_millis(100));
                10
            }
            Part::Diverges => {
                // Not pure: each life forks another number.
                let number = u64::from(cx.me().0) + 1;
                let left = |cx: &mut Cx<'_>| {
                    cx.work(Duration::from_millis(50));
                    die(cx, "diverges", 1);
                    0u64
                };
                let (_, right) = cx.join_with(left, Part::Number(number));
                assert_eq!(right, number, "the output of another life's arguments");
                0
            }
            Part::Walk => {
                let left = |cx: &mut Cx<'_>| {
                    wait_for_deaths(cx, 2);
                    1u64
                };
                let (left, t) = cx.join_with(left, Part::WalkT);
                left + t
            }
            Part::WalkT => {
                let _alone = Alone::begin("walk t", cx);
                let left = |cx: &mut Cx<'_>| {
                    wait_for(cx, "walk c");
                    die(cx, "walk t", 1);
                    10u64
                };
                let (left, c) = cx.join_with(left, Part::WalkC);
                left + c
            }
            Part::WalkC => {
                let _alone = Alone::begin("walk c alone", cx);
                mark(cx, "walk c");
                wait_for_deaths(cx, 1);
                die(cx, "walk c", 1);
                100
            }
            Part::StopsLowest => {
                let job = cx.store().job().clone();
                if let Ok(stopped) = cx.store().get(b"stopped").map(|found| found.map(member_of))
                    && let Some(stopped) = stopped
                {
                    // Nobody but the other members has opened the root again.
                    job.inject(Fault::Resume(stopped)).expect("goes on");
                    return 1;
                }
                let lowest = job.view().living().find(|&member| member != cx.me());
                let lowest = lowest.expect("another member");
                cx.store().put(b"stopped", &lowest.0.to_le_bytes()).expect("room");
                job.inject(Fault::Stop(lowest)).expect("stops");
                job.fence(cx.me(), Time::NEVER).expect("dies");
                0
            }
            Part::HeirStops => {
                let left = |cx: &mut Cx<'_>| {
                    wait_for(cx, "heir stops c");
                    if cx.store().put_if(b"first", &cx.me().0.to_le_bytes(), Expect::Absent).is_ok()
                    {
                        die(cx, "heir stops", 1);
                    }
                    cx.store().put(b"second", &cx.me().0.to_le_bytes()).expect("room");
                    mark(cx, "heir stops again");
                    // The store waits for the heir in some schedules: it does not repair.
                    let (job, store) = (cx.store().job().clone(), cx.store().clone());
                    let resume = move || {
                        job.sleep(Duration::from_secs(3));
                        IS_RESUMED.set(true);
                        if let Ok(Some(heir)) = store.get(b"heir") {
                            let _ = job.inject(Fault::Resume(member_of(heir)));
                        }
                    };
                    cx.store().job().spawn("resumes", Box::new(resume)).expect("spawns");
                    10u64
                };
                let (left, right) = cx.join_with(left, Part::HeirStopsC);
                left + right
            }
            Part::HeirStopsC => {
                let _alone = Alone::begin("heir stops c alone", cx);
                mark(cx, "heir stops c");
                wait_for(cx, "heir stops again");
                // By then the second life waits.
                cx.work(Duration::from_millis(20));
                let job = cx.store().job().clone();
                if cx.store().exists(b"heir").expect("reads") {
                    let is_early = u32::from(!IS_RESUMED.get());
                    OPENED_EARLY.set(OPENED_EARLY.get() + is_early);
                    return 100;
                }
                let member_in =
                    |key: &[u8]| member_of(cx.store().get(key).expect("reads").expect("is there"));
                let (first, second) = (member_in(b"first"), member_in(b"second"));
                let heir = cx.store().heir_of(first);
                if heir != cx.me() && heir != second {
                    cx.store().put(b"heir", &heir.0.to_le_bytes()).expect("room");
                    job.inject(Fault::Stop(heir)).expect("stops");
                    job.fence(cx.me(), Time::NEVER).expect("dies");
                }
                100
            }
            Part::Reuses => {
                let left = |cx: &mut Cx<'_>| {
                    cx.scope(|s| {
                        let _unwanted = s.spawn(Part::Unwanted);
                        s.join(Part::WaitsFor("unwanted".to_string()), Part::Nothing);
                    });
                    1u64
                };
                // The wait for the right half saves the left half, which frees the slots inside it.
                let (a, b) = cx.join_with(left, Part::Marks("long".to_string(), 400));
                let left = |cx: &mut Cx<'_>| {
                    wait_for(cx, "new");
                    10u64
                };
                let (c, d) = cx.join_with(left, Part::New);
                a + b + c + d
            }
            Part::WaitsFor(name) => {
                wait_for(cx, &name);
                0
            }
            Part::Unwanted => {
                mark(cx, "unwanted");
                wait_for(cx, "new");
                999
            }
            Part::New => {
                let _alone = Alone::begin("new alone", cx);
                mark(cx, "new");
                cx.work(Duration::from_millis(300));
                100
            }
            Part::Below => {
                // The first fork of a run is shared at once; the fork that matters comes later.
                for _ in 0..4 {
                    cx.join(Part::Nothing, Part::Nothing);
                }
                let left = |cx: &mut Cx<'_>| {
                    // In the second life there is time to share the right half.
                    let steps = if is_marked(cx.store(), "below c") { 40 } else { 0 };
                    (0..steps).for_each(|_| cx.work(Duration::from_millis(1)));
                    1u64
                };
                let (left, right) = cx.join_with(left, Part::BelowB);
                left + right
            }
            Part::BelowB => {
                let left = |cx: &mut Cx<'_>| {
                    wait_for(cx, "below c");
                    die(cx, "below", 1);
                    10u64
                };
                let (left, right) = cx.join_with(left, Part::BelowC);
                left + right
            }
            Part::BelowC => {
                let _alone = Alone::begin("below c alone", cx);
                mark(cx, "below c");
                cx.work(Duration::from_millis(500));
                100
            }
        }
    }
}

#[test]
fn a_task_with_unfinished_children_of_an_earlier_life_starts_at_the_bottom_of_a_stack() {
    for seed in seeds(0..12) {
        run(&sim(5, seed), often, Part::Root, |_, output| assert_eq!(output, Ok(11_111)));
        assert_eq!((starts("t"), starts("c"), starts("h-alone")), (2, 1, 1), "seed {seed}");
    }
}

#[test]
fn a_loop_goes_on_with_the_fork_after_its_state() {
    for seed in seeds(0..12) {
        run(&sim(4, seed), often, Part::Loop, |_, output| assert_eq!(output, Ok(0x1111_1111)));
    }
}

#[test]
fn a_task_that_kills_its_workers_is_poisoned_whatever_its_children_do() {
    for (seed, children) in seeds(0..8).flat_map(|seed| [(seed, false), (seed, true)]) {
        let report =
            run(&sim(6, seed), often, Part::Killer { children }, move |_, output| match output {
                Err(Error::Task(TaskError::Poisoned { task, members })) => {
                    assert_eq!((task.as_str(), members.len()), ("part", 3));
                }
                other => panic!("seed {seed}: {other:?}"),
            });
        assert_eq!(report.kills, 3);
    }
}

#[test]
fn a_task_that_waits_is_not_blamed_for_what_runs_on_top_of_it() {
    for seed in seeds(0..12) {
        let options = || often().attempts(2);
        run(&sim(6, seed), options, Part::Waiter, |_, output| assert_eq!(output, Ok(105)));
    }
}

#[test]
fn a_worker_in_a_long_leaf_does_not_hold_recovery_up() {
    for seed in seeds(0..12) {
        // The left half saw that the right half ran again before it looked.
        run(&sim(3, seed), often, Part::LongLeaf, |_, output| assert_eq!(output, Ok(17)));
    }
}

#[test]
fn an_earlier_output_with_other_arguments_is_not_used() {
    for seed in seeds(0..12) {
        run(&sim(3, seed), often, Part::Diverges, |_, output| assert_eq!(output, Ok(0)));
        let diverged: u64 = STATS.take().iter().map(|stats| stats.diverged).sum();
        assert_eq!(diverged, 1, "seed {seed}");
    }
    let strict = || often().strict(true);
    run(&sim(3, 0), strict, Part::Diverges, |_, output| {
        assert!(matches!(output, Err(Error::Task(TaskError::Diverged { .. }))), "{output:?}");
    });
}

#[test]
fn what_lives_below_a_right_half_that_ran_in_place_is_not_run_twice() {
    for seed in seeds(0..40) {
        let options = || often().beat_forks(3);
        run(&sim(5, seed), options, Part::Below, |_, output| assert_eq!(output, Ok(111)));
        assert_eq!(starts("below c alone"), 1, "seed {seed}");
    }
}

#[test]
fn a_late_result_does_not_replace_the_next_task_of_its_slot() {
    for seed in seeds(0..12) {
        run(&sim(4, seed), often, Part::Reuses, |_, output| assert_eq!(output, Ok(112)));
        assert_eq!(starts("new alone"), 1, "seed {seed}");
    }
}

#[test]
fn a_left_half_that_is_saved_is_not_run_again() {
    for seed in seeds(0..12) {
        run(&sim(3, seed), often, Part::SavesLeft, |_, output| assert_eq!(output, Ok(15)));
        assert_eq!(starts("saved left"), 1, "seed {seed}");
    }
}

#[test]
fn a_worker_that_waits_finds_what_it_may_run_below_a_task_that_it_may_not() {
    for seed in seeds(0..12) {
        // The survivor has the root on its stack, so it is not idle: it may not start T while C is
        // unfinished, and nobody else is there to run C. Without heirs there is no hint, either.
        for has_heirs in [true, false] {
            let options = move || often().heirs(has_heirs);
            run(&sim(3, seed), options, Part::Walk, |_, output| assert_eq!(output, Ok(111)));
            assert_eq!((starts("walk t"), starts("walk c alone")), (2, 2), "seed {seed}");
        }
    }
}

#[test]
fn a_claim_without_an_answer_is_asked_for_until_it_is_answered() {
    let mut moved = 0;
    for seed in seeds(0..40) {
        let mut options = sim(3, seed).link(Link::Network);
        // Replicas that are stopped for longer than the limit leave calls without an answer.
        options.time_limit = Duration::from_millis(20);
        for stop in 0..6 {
            let member = MemberId((mix(seed ^ stop << 32) % 3) as u32);
            let step = 1_000 + mix(seed ^ stop << 33) % 4_000;
            let pause = Duration::from_millis(30 + mix(seed ^ stop << 34) % 60);
            let when = When::AtStep(member, step);
            options = options.fault(when, Action::StopFor(member, pause));
        }
        let tree = Tree { seed: mix(seed), depth: 6, is_decoy: false };
        let expected = tree.expected();
        sim::run(&options, move |job| {
            // A member that is stopped while it opens does not take part.
            let Ok(store) = Store::open(&job, small_store()) else { return };
            let Ok(tasks) = Tasks::open(&store, often()) else { return };
            assert_eq!(tasks.run(tree.clone()), Ok(expected), "seed {seed}");
            STATS.with_borrow_mut(|stats| stats.push(tasks.stats()));
            let _ = tasks.close();
            let _ = store.close();
            let _ = job.leave();
        })
        .expect_ok();
        moved += STATS.take().iter().map(|stats| stats.moved).sum::<u64>();
    }
    assert!(moved > 100, "tasks must move: {moved}");
}

#[test]
fn a_listener_hears_of_the_moves_and_of_the_tasks_that_are_opened_again() {
    use outlast_tasks::Event;
    use std::sync::{Arc, Mutex};
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listener = heard.clone();
    let options = move || {
        let listener = listener.clone();
        often().events(move |at, event| listener.lock().expect("no panics").push((at, event)))
    };
    run(&sim(3, 1), options, Part::LongLeaf, |_, output| assert_eq!(output, Ok(17)));
    let heard = heard.lock().expect("no panics");
    let count = |is_meant: fn(&Event) -> bool| heard.iter().filter(|one| is_meant(&one.1)).count();
    assert_eq!(count(|event| matches!(event, Event::Reopened { .. })), 1, "{heard:?}");
    assert_eq!(count(|event| matches!(event, Event::Runs { is_again: true })), 1, "{heard:?}");
    assert_eq!(count(|event| matches!(event, Event::Moved { is_again: true, .. })), 1, "{heard:?}");
    assert!(count(|event| *event == Event::Waits) > 0, "{heard:?}");
    assert!(heard.windows(2).all(|pair| pair[0].0 <= pair[1].0), "times do not go back");
}

/// A pool as a task.
#[derive(Clone, Serialize, Deserialize)]
struct Pooled(Tree);

impl Task for Pooled {
    const NAME: &'static str = "pooled";
    type Output = (u64, u64);

    fn run(self, cx: &mut Cx<'_>) -> (u64, u64) {
        cx.work_off(Pool::new(self.0))
    }
}

#[test]
fn no_part_of_a_bag_is_lost_or_merged_twice() {
    let mut moved = 0;
    for seed in seeds(0..60) {
        let tree = Tree { seed: mix(seed), depth: 9, is_decoy: false };
        let expected = Pool::expected(&tree);
        let options = sim(4, seed).link(Link::of_seed(seed)).random_faults(2, 1, 12_000);
        let options_of_tasks =
            || Options::new().beat_forks(3).task::<Pooled>().bag::<Pool>().attempts(100).slots(6);
        sim::run(&options, move |job| {
            let Ok(store) = Store::open(&job, small_store()) else { return };
            let Ok(tasks) = Tasks::open(&store, options_of_tasks()) else { return };
            assert_eq!(tasks.run(Pooled(tree.clone())), Ok(expected), "seed {seed}");
            STATS.with_borrow_mut(|stats| stats.push(tasks.stats()));
            let _ = tasks.close();
            let _ = store.close();
            let _ = job.leave();
        })
        .expect_ok();
        moved += STATS.take().iter().map(|stats| stats.moved).sum::<u64>();
    }
    assert!(moved > 100, "parts must move: {moved}");
}

/// A pool that follows a script: its first worker is the lowest member of two.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Script {
    role: Role,
    left: u64,
    sum: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Role {
    /// Gives the two parts away.
    Whole,
    /// The other member takes this part, and ends it at once.
    First,
    /// Nobody takes this part, so the worker of the whole does.
    Second,
}

/// What the script knows of a run.
#[derive(Default)]
struct Plot {
    /// The job of the first worker, until it dies.
    job: Option<Job>,
    split_at: Option<Time>,
    is_first_done: bool,
    is_second_given: bool,
}

thread_local! {
    static PLOT: RefCell<Plot> = RefCell::default();
}

/// The first worker lives while this does: a death unwinds its stack.
struct Lives;

impl Drop for Lives {
    fn drop(&mut self) {
        PLOT.with_borrow_mut(|plot| plot.job = None);
    }
}

const MILLI: Duration = Duration::from_millis(1);
const STEPS: u64 = 100;
/// What the whole and its first part add up to.
const WITH_PART: u64 = 2 * STEPS + 1_000;

impl Script {
    fn new(role: Role) -> Script {
        Script { role, left: STEPS, sum: 0 }
    }

    /// The job of the first worker, in its own hands: the other member runs the first part alone,
    /// and everything else after the death.
    fn job(&self) -> Option<Job> {
        PLOT.with_borrow(|plot| plot.job.clone().filter(|_| self.role != Role::First))
    }
}

impl Bag for Script {
    const NAME: &'static str = "script";
    type Output = u64;

    fn step(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.sum += 1;
        let Some(job) = self.job() else { return self.left > 0 };
        job.sleep(MILLI);
        if self.role == Role::Second && self.left == STEPS / 2 {
            // By then this part has saved itself, in a slot that was free.
            job.inject(Fault::Resume(MemberId(1))).expect("goes on");
            job.fence(job.me(), Time::NEVER).expect("dies");
            unreachable!("a fenced member runs no further");
        }
        true
    }

    fn split(&mut self) -> Option<Script> {
        let job = self.job().filter(|_| self.role == Role::Whole)?;
        PLOT.with_borrow_mut(|plot| {
            if plot.split_at.is_none() {
                plot.split_at = Some(job.now());
                return Some(Script::new(Role::First));
            }
            if plot.is_first_done && !plot.is_second_given {
                plot.is_second_given = true;
                return Some(Script::new(Role::Second));
            }
            None
        })
        .inspect(|part| {
            if part.role == Role::Second {
                job.inject(Fault::Stop(MemberId(1))).expect("stops");
            }
        })
    }

    fn merge(&mut self, output: u64) {
        self.sum += output;
    }

    fn finish(self) -> u64 {
        match self.role {
            Role::Whole => self.sum,
            Role::First => {
                PLOT.with_borrow_mut(|plot| plot.is_first_done = true);
                self.sum + 1_000
            }
            Role::Second => self.sum + 1_000_000,
        }
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct Scripted;

impl Task for Scripted {
    const NAME: &'static str = "scripted";
    type Output = u64;

    fn run(self, cx: &mut Cx<'_>) -> u64 {
        cx.work_off(Script::new(Role::Whole))
    }
}

/// Follows the script with a plan of faults; returns how many tasks the survivor has shared.
fn follow(options: &sim::Options, check: impl Fn(u64) + 'static) -> u64 {
    PLOT.take();
    STATS.take();
    sim::run(options, move |job| {
        let _lives = (job.me() == MemberId(0)).then_some(Lives);
        let store = Store::open(&job, small_store().allow_fewer()).expect("opens");
        let of_tasks = Options::new().beat_forks(1).task::<Scripted>().bag::<Script>();
        let tasks = Tasks::open(&store, of_tasks).expect("opens");
        if job.me() == MemberId(0) {
            PLOT.with_borrow_mut(|plot| plot.job = Some(job.clone()));
        }
        // The first member claims the root: the other one comes later.
        let late = 5 * MILLI * job.me().0;
        job.sleep(Duration::from_nanos(OPEN.0.saturating_sub(job.now().0)) + late);
        check(tasks.run(Scripted).expect("no part is gone"));
        STATS.with_borrow_mut(|stats| stats.push(tasks.stats()));
        let _ = tasks.close();
        let _ = store.close();
        let _ = job.leave();
    })
    .expect_ok();
    STATS.take().iter().map(|stats| stats.shared).sum()
}

#[test]
fn a_part_that_is_merged_keeps_its_slot_until_a_progress_does_not_list_it() {
    // In some schedules the stop strikes inside a call of the store and holds the put of the list
    // up: no progress has the second part then, and the next life does not split it off.
    let (mut listed, mut count) = (0, 0);
    for seed in seeds(0..10) {
        let is_listed = Rc::new(Cell::new(false));
        let seen = is_listed.clone();
        follow(&sim(2, seed), move |sum| {
            seen.set(sum == 3 * STEPS + 1_001_000);
            assert!(seen.get() || sum == 2 * STEPS + 1_000, "seed {seed}: {sum}");
        });
        let is_second_given = PLOT.with_borrow(|plot| plot.is_second_given);
        assert!(is_second_given, "seed {seed}: the script was not followed");
        listed += u32::from(is_listed.get());
        count += 1;
    }
    assert!(2 * listed > count, "{listed} of {count} seeds list the second part");
}

#[test]
fn a_worker_may_die_between_the_list_of_parts_and_the_record_of_a_part() {
    for seed in seeds(0..2) {
        follow(&sim(2, seed), |_| ());
        let split_at = PLOT.with_borrow(|plot| plot.split_at).expect("has split");
        let (mut not_listed, mut given_anew, mut found) = (0, 0, 0);
        for death in 0..150 {
            let at = split_at.after(Duration::from_micros(10 * death));
            let options = sim(2, seed).fault(When::At(at), Action::Kill(MemberId(0)));
            let sum = Rc::new(Cell::new(0));
            let of_check = sum.clone();
            match (follow(&options, move |sum| of_check.set(sum)), sum.get()) {
                // No progress lists the part, and the next life does not split it off.
                (0, STEPS) => not_listed += 1,
                (1, WITH_PART) => given_anew += 1,
                (0, WITH_PART) => found += 1,
                other => panic!("seed {seed}, death {death}: {other:?}"),
            }
        }
        let counts = [not_listed, given_anew, found];
        assert!(counts.iter().all(|&count| count > 0), "seed {seed}: {counts:?}");
    }
}

/// A binary tree whose leaves work for 200 us.
#[derive(Clone, Serialize, Deserialize)]
struct Leaves {
    depth: u32,
}

thread_local! {
    static LEAVES: Cell<u64> = const { Cell::new(0) };
}

impl Task for Leaves {
    const NAME: &'static str = "leaves";
    type Output = u64;

    fn run(self, cx: &mut Cx<'_>) -> u64 {
        if self.depth == 0 {
            LEAVES.set(LEAVES.get() + 1);
            cx.work(Duration::from_micros(200));
            return 1;
        }
        let half = Leaves { depth: self.depth - 1 };
        let (left, right) = cx.join(half.clone(), half);
        left + right
    }
}

#[test]
fn what_runs_again_after_a_death_is_bounded_by_the_depth_of_the_forks_times_the_beat() {
    const DEPTH: u32 = 10;
    const BEAT: Duration = Duration::from_millis(1);
    let mut most = 0;
    for seed in seeds(0..40) {
        LEAVES.set(0);
        let options = sim(4, seed).link(Link::of_seed(seed));
        let victim = MemberId((seed % 4) as u32);
        let at = Time(OPEN.0 + 1_000_000 * (5 + mix(seed) % 40));
        let options = options.fault(When::At(at), Action::Kill(victim));
        let report = sim::run(&options, move |job| {
            let store = Store::open(&job, small_store()).expect("opens");
            let of_tasks = Options::new().beat(BEAT).task::<Leaves>();
            let tasks = Tasks::open(&store, of_tasks).expect("opens");
            job.sleep(Duration::from_nanos(OPEN.0.saturating_sub(job.now().0)));
            assert_eq!(tasks.run(Leaves { depth: DEPTH }), Ok(1 << DEPTH), "seed {seed}");
            let _ = tasks.close();
            let _ = store.close();
            let _ = job.leave();
        });
        assert_eq!(report.expect_ok().kills, 1, "seed {seed}");
        let again = LEAVES.get() - (1 << DEPTH);
        let bound = DEPTH * BEAT + Duration::from_micros(200);
        let lost = Duration::from_micros(200) * again as u32;
        assert!(lost <= bound, "seed {seed}: {lost:?} of work ran again, at most {bound:?}");
        most = most.max(again);
    }
    assert!(most > 0, "no death has cost anything");
}

/// A task with a long output, and a decoy with one.
#[derive(Clone, Serialize, Deserialize)]
struct Long {
    seed: u64,
    depth: u32,
}

impl Task for Long {
    const NAME: &'static str = "long";
    type Output = Vec<u64>;

    fn run(self, cx: &mut Cx<'_>) -> Vec<u64> {
        cx.work(Duration::from_micros(mix(self.seed) % 3_000));
        let own = || vec![self.seed; 200];
        if self.depth == 0 {
            return own();
        }
        let child = |index| Long { seed: mix(self.seed ^ index), depth: self.depth - 1 };
        let (left, right) = cx.scope(|s| {
            let (left, right) = (s.spawn(child(1)), s.spawn(child(2)));
            let _unwanted = s.spawn(child(3));
            (left.get(s), right.get(s))
        });
        own().iter().zip(&left).zip(&right).map(|((a, b), c)| mix(a ^ b ^ c << 1)).collect()
    }
}

impl Long {
    fn expected(&self) -> Vec<u64> {
        let own = vec![self.seed; 200];
        if self.depth == 0 {
            return own;
        }
        let child = |index| Long { seed: mix(self.seed ^ index), depth: self.depth - 1 };
        let (left, right) = (child(1).expected(), child(2).expected());
        own.iter().zip(&left).zip(&right).map(|((a, b), c)| mix(a ^ b ^ c << 1)).collect()
    }
}

#[test]
fn a_late_holder_of_an_unwanted_task_does_not_overwrite_a_long_output() {
    for seed in seeds(0..30) {
        let root = Long { seed, depth: 4 };
        let expected = root.expected();
        let options = sim(4, seed).random_faults(1, 2, 15_000);
        let of_tasks = || Options::new().beat_forks(1).task::<Long>().attempts(100).slots(5);
        run(&options, of_tasks, root, move |_, output| {
            let error = output.as_ref().err().map(ToString::to_string);
            assert!(output == Ok(expected.clone()), "seed {seed}: {error:?}");
        });
    }
}

#[test]
fn a_program_that_adopts_the_keys_of_the_dead_does_not_disturb() {
    for seed in seeds(0..20) {
        let tree = Tree { seed: mix(seed), depth: 6, is_decoy: false };
        let expected = tree.expected();
        let options = sim(5, seed).random_faults(2, 0, 8_000);
        sim::run(&options, move |job| {
            let store = Store::open(&job, small_store()).expect("opens");
            let tasks = Tasks::open(&store, crate::trees::options(seed)).expect("opens");
            let (of_activity, job_of_activity) = (store.clone(), job.clone());
            let adopt = move || {
                let mut seen = of_activity.epoch();
                for _ in 0..400 {
                    job_of_activity.sleep(Duration::from_micros(200));
                    for death in of_activity.deaths_since(&mut seen) {
                        for key in of_activity.keys_of(death.member).unwrap_or_default() {
                            let _ = of_activity.adopt(&key);
                        }
                    }
                }
            };
            let activity = job.spawn("adopts", Box::new(adopt)).expect("spawns");
            let output = tasks.run(tree.clone());
            assert_eq!(output, Ok(expected), "seed {seed}");
            job.wait_for(&activity, Time::NEVER);
            let _ = tasks.close();
            let _ = store.close();
            let _ = job.leave();
        })
        .expect_ok();
    }
}

#[test]
fn an_heir_that_does_nothing_holds_nobody_up() {
    for seed in seeds(0..12) {
        let options = || often().heirs(false);
        run(&sim(3, seed), options, Part::LongLeaf, |_, output| {
            assert!(matches!(output, Ok(7 | 17)), "{output:?}");
        });
    }
}

#[test]
fn the_root_is_opened_again_while_the_lowest_living_member_is_stopped() {
    for seed in seeds(0..12) {
        run(&sim(4, seed), often, Part::StopsLowest, |_, output| assert_eq!(output, Ok(1)));
    }
}

#[test]
fn a_task_is_opened_again_while_the_heir_of_its_sharer_is_stopped() {
    OPENED_EARLY.take();
    for seed in seeds(0..16) {
        IS_RESUMED.take();
        run(&sim(6, seed), often, Part::HeirStops, |_, output| assert_eq!(output, Ok(110)));
    }
    assert!(OPENED_EARLY.get() > 0, "the task was opened by its owner alone");
}

#[test]
fn the_heir_opens_the_tasks_of_the_dead_while_their_waiter_is_busy() {
    for seed in seeds(0..12) {
        run(&sim(5, seed), often, Part::DyingLeaf, |_, output| assert_eq!(output, Ok(17)));
    }
}

#[test]
fn a_member_that_was_stopped_through_a_run_does_not_run_it_again() {
    for seed in seeds(0..12) {
        let stopped = MemberId(3);
        let stop = Action::StopFor(stopped, Duration::from_secs(5));
        let options = sim(4, seed).fault(When::At(OPEN), stop);
        sim::run(&options, move |job| {
            let store = Store::open(&job, small_store()).expect("opens");
            let tasks = Tasks::open(&store, often()).expect("opens");
            if job.now() < OPEN {
                job.sleep(Duration::from_nanos(OPEN.0 + 1 - job.now().0));
            }
            for run in 0..3 {
                let part = Part::Marks(format!("run {run}"), 1);
                assert_eq!(tasks.run(part), Ok(1), "seed {seed}");
            }
            let _ = tasks.close();
            let _ = store.close();
            let _ = job.leave();
        })
        .expect_ok();
        for run in 0..3 {
            assert_eq!(starts(&format!("run {run}")), 1, "seed {seed}, run {run}");
        }
    }
}

#[test]
fn a_member_that_closes_late_finds_what_the_others_have_told() {
    for seed in seeds(0..60) {
        let options = sim(3, seed).link(Link::of_seed(seed));
        sim::run(&options, move |job| {
            let store = Store::open(&job, small_store()).expect("opens");
            let tasks = Tasks::open(&store, often()).expect("opens");
            assert_eq!(tasks.run(Part::Nothing), Ok(0), "seed {seed}");
            let began = job.now();
            tasks.close().expect("closes");
            assert!(job.now() < began.after(Duration::from_secs(5)), "seed {seed}");
            store.close().expect("closes");
            let _ = job.leave();
        })
        .expect_ok();
    }
}

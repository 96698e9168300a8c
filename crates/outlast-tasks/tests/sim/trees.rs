//! Random trees of tasks, judged by their output and by the record of their attempts.

use outlast::sim::{self, Link};
use outlast::store::{self, Store, StoreError};
use outlast::{Job, MemberId};
use outlast_tasks::{Bag, Cx, Error, Options, Sum, Task, Tasks};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// A node of a seeded tree: its children follow from its seed and depth.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Tree {
    pub(crate) seed: u64,
    pub(crate) depth: u32,
    /// Nobody asks for the output of a decoy, so two of its lives may overlap.
    pub(crate) is_decoy: bool,
}

/// A task that forks a decoy and panics.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Bomb(u64);

impl Task for Bomb {
    const NAME: &'static str = "bomb";
    type Output = Digest;

    fn run(self, cx: &mut Cx<'_>) -> Digest {
        let decoy = Tree { seed: self.0 ^ 0xdec0, depth: 3, is_decoy: true };
        let left = |cx: &mut Cx<'_>| -> Digest {
            cx.work(Duration::from_micros(mix(self.0) % 2000));
            // Without the message of a panic.
            std::panic::resume_unwind(Box::new("a bomb"))
        };
        cx.join_with(left, decoy).0
    }
}

/// A tree as a pool of work: the nodes that are left, and the output so far.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Pool {
    rest: Vec<Tree>,
    nodes: u64,
    sum: u64,
}

impl Pool {
    pub(crate) fn new(root: Tree) -> Pool {
        Pool { rest: vec![root], nodes: 0, sum: 0 }
    }

    pub(crate) fn expected(root: &Tree) -> (u64, u64) {
        let mut pool = Pool::new(root.clone());
        while pool.step() {}
        pool.finish()
    }
}

impl Bag for Pool {
    const NAME: &'static str = "pool";
    type Output = (u64, u64);

    fn step(&mut self) -> bool {
        if let Some(tree) = self.rest.pop() {
            self.nodes += 1;
            self.sum = self.sum.wrapping_add(mix(tree.seed));
            self.rest.extend(tree.children());
        }
        !self.rest.is_empty()
    }

    fn split(&mut self) -> Option<Pool> {
        let half = self.rest.len() / 2;
        (half > 0).then(|| Pool { rest: self.rest.drain(..half).collect(), nodes: 0, sum: 0 })
    }

    fn merge(&mut self, (nodes, sum): (u64, u64)) {
        self.nodes += nodes;
        self.sum = self.sum.wrapping_add(sum);
    }

    fn finish(self) -> (u64, u64) {
        (self.nodes, self.sum)
    }
}

/// The number of nodes, the sum of their hashes, and a digest of the shape: a task that is lost or
/// counted twice shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Digest {
    pub(crate) nodes: u64,
    sum: u64,
    shape: u64,
}

impl Sum for Digest {
    fn zero() -> Digest {
        Digest { nodes: 0, sum: 0, shape: 1 }
    }

    fn add(self, other: Digest) -> Digest {
        Digest {
            nodes: self.nodes + other.nodes,
            sum: self.sum.wrapping_add(other.sum),
            shape: mix(self.shape ^ other.shape.rotate_left(17)),
        }
    }
}

pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Tree {
    fn own(&self) -> Digest {
        Digest { nodes: 1, sum: mix(self.seed), shape: self.seed }
    }

    fn children(&self) -> Vec<Tree> {
        let counts = if self.depth == 0 { [0; 4] } else { [1, 2, 2, 3] };
        let count = counts[(mix(self.seed ^ 7) % 4) as usize];
        let child = |index: u64| Tree {
            seed: mix(self.seed ^ (index << 8)),
            depth: self.depth - 1,
            is_decoy: self.is_decoy,
        };
        (1..=count).map(child).collect()
    }

    fn is_pool(&self) -> bool {
        mix(self.seed ^ 21).is_multiple_of(9)
    }

    /// Whether a node with two children forks them by `try_join`, with a bomb as the second.
    fn has_bomb(&self) -> bool {
        mix(self.seed ^ 5) % 4 == 2 && mix(self.seed ^ 22).is_multiple_of(3)
    }

    /// What the tree computes, without any runtime.
    pub(crate) fn expected(&self) -> Digest {
        let children = self.children();
        if self.is_pool() {
            let (nodes, sum) = Pool::expected(self);
            return Digest { nodes, sum, shape: self.seed };
        }
        if let ([tree, _], true) = (&children[..], self.has_bomb()) {
            return self.own().add(tree.expected());
        }
        fn sum(trees: &[Tree]) -> Digest {
            match trees {
                [] => Digest::zero(),
                [tree] => tree.expected(),
                _ => {
                    let (left, right) = trees.split_at(trees.len().div_ceil(2));
                    sum(left).add(sum(right))
                }
            }
        }
        self.own().add(sum(&children))
    }
}

impl Task for Tree {
    const NAME: &'static str = "tree";
    type Output = Digest;

    fn run(self, cx: &mut Cx<'_>) -> Digest {
        let _attempt = (!self.is_decoy).then(|| Attempt::begin(self.seed, cx.me()));
        if mix(self.seed ^ 99).is_multiple_of(4) {
            let longest = [300, 300, 300, 30_000][(mix(self.seed ^ 98) % 4) as usize];
            cx.work(Duration::from_micros(mix(self.seed) % longest));
        }
        let children = self.children();
        let own = self.own();
        if self.is_pool() {
            let (nodes, sum) = cx.work_off(Pool::new(self.clone()));
            return Digest { nodes, sum, shape: self.seed };
        }
        let below = match (mix(self.seed ^ 5) % 4, &children[..]) {
            (0, [a, b]) => {
                let (a, b) = cx.join(a.clone(), b.clone());
                a.add(b)
            }
            (1, [a, b]) => cx.scope(|s| {
                let (a, b) = (s.spawn(a.clone()), s.spawn(b.clone()));
                let decoy = Tree { seed: self.seed ^ 0xdec1, depth: 3, is_decoy: true };
                let _unwanted = s.spawn(decoy);
                a.get(s).add(b.get(s))
            }),
            (2, [a, _]) if self.has_bomb() => {
                let (a, bomb) = cx.try_join(a.clone(), Bomb(self.seed));
                let error = bomb.expect_err("panics");
                assert!(error.to_string().contains("a bomb"), "{error}");
                a.expect("does not panic")
            }
            (2, [a, b]) => {
                let (a, b) = cx.try_join(a.clone(), b.clone());
                a.expect("no panics").add(b.expect("no panics"))
            }
            (0, [a, b, c]) => {
                let outputs = cx.all(&[a.clone(), b.clone(), c.clone()]);
                outputs[0].add(outputs[1]).add(outputs[2])
            }
            (1, [a, b, c]) => {
                // A loop that saves: a step for each child, and a fork of nothing beside it.
                let (mut step, mut sum): (usize, Option<Digest>) = cx.restore().unwrap_or_default();
                let all = [a, b, c];
                while step < 3 {
                    // The right halves are equal in all steps, the left halves are not.
                    let empty = Tree { seed: self.seed ^ 0xabc, depth: 0, is_decoy: true };
                    let (child, empty) = cx.join(all[step].clone(), empty);
                    assert_eq!(empty.nodes, 1);
                    sum = Some(sum.map_or(child, |sum| sum.add(child)));
                    step += 1;
                    cx.save(&(step, sum));
                }
                sum.expect("three children")
            }
            _ => cx.sum(&children),
        };
        own.add(below)
    }
}

thread_local! {
    /// The nodes that run now, and where.
    static RUNNING: RefCell<HashMap<u64, MemberId>> = RefCell::default();
    /// Whether a member did not take part.
    static ABSENT: Cell<bool> = const { Cell::new(false) };
    static VIOLATIONS: RefCell<Vec<String>> = RefCell::default();
    /// What the runs of this thread did, by name: a test without re-execution tests nothing.
    static TOTALS: RefCell<BTreeMap<&'static str, u64>> = RefCell::default();
}

fn total(name: &'static str, count: u64) {
    TOTALS.with_borrow_mut(|totals| *totals.entry(name).or_default() += count);
}

/// An attempt at a node. It ends when it is dropped, also when its member dies.
pub(crate) struct Attempt(u64);

/// Begins an attempt at a node.
pub(crate) fn attempt(node: u64, member: MemberId) -> Attempt {
    Attempt::begin(node, member)
}

/// Fails if two attempts at a node have overlapped, and forgets all of them.
pub(crate) fn end_attempts(seed: u64) {
    RUNNING.take();
    let violations = VIOLATIONS.take();
    assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
}

impl Attempt {
    fn begin(node: u64, member: MemberId) -> Attempt {
        total("attempts", 1);
        if let Some(other) = RUNNING.with_borrow_mut(|running| running.insert(node, member)) {
            let text = format!("node {node:x} runs at {other} and at {member}");
            VIOLATIONS.with_borrow_mut(|violations| violations.push(text));
        }
        Attempt(node)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        RUNNING.with_borrow_mut(|running| running.remove(&self.0));
    }
}

/// A run of a random tree.
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) members: usize,
    pub(crate) kills: usize,
    pub(crate) stops: usize,
    pub(crate) steps: u64,
    pub(crate) depth: u32,
    pub(crate) options: fn(u64) -> Options,
    /// Whether more may die than the replicas survive.
    pub(crate) is_beyond: bool,
}

pub(crate) fn options(seed: u64) -> Options {
    Options::new()
        .sums::<Tree>()
        .task::<Bomb>()
        .bag::<Pool>()
        .beat_forks(1 + (mix(seed) % 4) as u32)
        .attempts(100)
        .slots([4, 8, 64][(mix(seed ^ 1) % 3) as usize])
        .nested([1, 2, 8][(mix(seed ^ 2) % 3) as usize])
}

pub(crate) fn small_store() -> store::Options {
    let options = store::Options::new().partitions(8).expected_keys(128);
    options.slab_len_max(16 << 10)
}

impl Scenario {
    pub(crate) fn new(seed: u64) -> Scenario {
        let random = |salt: u64, below: u64| mix(seed ^ salt << 40) % below;
        let members = 2 + random(1, 4) as usize;
        Scenario {
            seed,
            members,
            kills: (random(2, 3) as usize).min(members - 1),
            stops: random(3, 3) as usize,
            steps: [2_000, 8_000, 20_000][random(5, 3) as usize],
            depth: 3 + random(4, 5) as u32,
            options,
            is_beyond: false,
        }
    }

    pub(crate) fn run(self) {
        RUNNING.take();
        VIOLATIONS.take();
        ABSENT.set(false);
        let mut sim = sim::Options::new(self.members, self.seed).link(Link::of_seed(self.seed));
        sim.steps_max = 20_000_000;
        // A short limit makes calls without an answer frequent.
        let limits = [30_000, 1_000, 50].map(Duration::from_millis);
        sim.time_limit = limits[(mix(self.seed ^ 6) % 3) as usize];
        sim.stack_len = 2 << 20;
        sim.trace = std::env::var_os("OUTLAST_TRACE").is_some();
        let sim = sim.random_faults(self.kills, self.stops, self.steps);
        let (seed, depth, make, is_beyond) = (self.seed, self.depth, self.options, self.is_beyond);
        let report = sim::run(&sim, move |job| {
            member(&job, seed, depth, make(seed), is_beyond);
            let _ = job.leave();
        });
        if std::env::var_os("OUTLAST_TRACE").is_some() {
            report.trace.iter().for_each(|line| println!("{line}"));
        }
        end_attempts(self.seed);
        total("kills", report.kills);
        total("stops", report.stops);
        total("steps", report.steps);
        report.expect_ok();
    }
}

/// A member of a run of a random tree: two trees, one after the other.
fn member(job: &Job, seed: u64, depth: u32, options: Options, is_beyond: bool) {
    // A member that is stopped for too long while it opens does not take part: it leaves, with its
    // replicas, so that the kills may be too many for the others.
    let Ok(store) = Store::open(job, small_store()) else { return ABSENT.set(true) };
    let Ok(tasks) = Tasks::open(&store, options) else { return ABSENT.set(true) };
    for round in 0..2 {
        let tree = Tree { seed: mix(seed ^ round << 50), depth, is_decoy: false };
        match tasks.run(tree.clone()) {
            Ok(output) => assert_eq!(output, tree.expected(), "seed {seed}, round {round}"),
            Err(Error::Store(StoreError::DataLost { .. }) | Error::RunFailed { .. })
                if is_beyond || ABSENT.get() => {}
            Err(error) => panic!("seed {seed}, round {round}: {error}"),
        }
    }
    let stats = tasks.stats();
    for (name, count) in [
        ("shared", stats.shared),
        ("moved", stats.moved),
        ("saved", stats.saved),
        ("reopened", stats.reopened),
        ("again", stats.again),
        ("found", stats.found),
        ("diverged", stats.diverged),
        ("withdrawn", stats.withdrawn),
        ("lost", stats.lost),
        ("forgotten", stats.forgotten),
    ] {
        total(name, count);
    }
    if tasks.close().is_ok() {
        let keys = store.scan(b"outlast-tasks/");
        assert!(keys.as_ref().map_or(true, Vec::is_empty), "seed {seed}: left {keys:?}");
    }
    let _ = store.close();
}

pub(crate) fn seeds(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let read = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let first = read("OUTLAST_SEED_FIRST").unwrap_or(default.start);
    first..first + read("OUTLAST_SEEDS").unwrap_or(default.end - default.start)
}

#[test]
fn trees_without_faults_have_the_right_output() {
    for seed in seeds(0..20) {
        Scenario { kills: 0, stops: 0, ..Scenario::new(seed) }.run();
    }
}

#[test]
fn trees_outlast_deaths_and_stops_at_any_step() {
    for seed in seeds(0..200) {
        Scenario::new(seed).run();
    }
    println!("{:?}", TOTALS.take());
}

#[test]
fn trees_outlast_more_deaths_than_replicas_or_say_what_is_lost() {
    for seed in seeds(0..40) {
        let members = 5 + (mix(seed ^ 8 << 40) % 4) as usize;
        let kills = 3 + (mix(seed ^ 9 << 40) % (members as u64 - 3)) as usize;
        // Deaths of many at once lose data; repair is in between if they are far apart.
        let steps = [8_000, 40_000, 80_000][(mix(seed ^ 10 << 40) % 3) as usize];
        Scenario { members, kills, steps, is_beyond: true, ..Scenario::new(seed) }.run();
    }
    println!("{:?}", TOTALS.take());
}

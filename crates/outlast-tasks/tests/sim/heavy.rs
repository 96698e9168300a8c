//! Random programs with arguments, outputs, left halves, states and bags beyond the length that a
//! record holds, under deaths, stops, adoptions and a store without room. Each task and each joiner
//! checks the bytes that it gets.

use crate::trees::{attempt, end_attempts, mix, seeds, small_store};
use outlast::sim::{self, Link};
use outlast::store::{Store, StoreError};
use outlast::{Job, Time};
use outlast_tasks::{Bag, Cx, Error, Options, Task, Tasks};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::time::Duration;

/// Bytes that follow from a number: none, few, or more than a record holds.
fn bytes(seed: u64) -> Vec<u8> {
    let len = [0, 10, 1_100, 3_000][(mix(seed ^ 31) % 4) as usize];
    (0..len).map(|index| mix(seed ^ index << 20) as u8).collect()
}

/// A node of a seeded tree.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Heavy {
    seed: u64,
    depth: u32,
    /// Nobody asks for the output of a decoy, so two of its lives may overlap.
    is_decoy: bool,
    bytes: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Output {
    nodes: u64,
    sum: u64,
    bytes: Vec<u8>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Pool {
    seed: u64,
    rest: Vec<Heavy>,
    nodes: u64,
    sum: u64,
}

impl Bag for Pool {
    const NAME: &'static str = "heavy pool";
    type Output = Output;

    fn step(&mut self) -> bool {
        if let Some(node) = self.rest.pop() {
            assert_eq!(node.bytes, bytes(node.seed));
            self.nodes += 1;
            self.sum = self.sum.wrapping_add(mix(node.seed));
            self.rest.extend(node.children());
        }
        !self.rest.is_empty()
    }

    fn split(&mut self) -> Option<Pool> {
        let half = self.rest.len() / 2;
        let rest: Vec<Heavy> = self.rest.drain(..half).collect();
        let seed = rest.first()?.seed;
        Some(Pool { seed, rest, nodes: 0, sum: 0 })
    }

    fn merge(&mut self, output: Output) {
        self.nodes += output.nodes;
        self.sum = self.sum.wrapping_add(output.sum);
        assert_eq!(output.bytes, bytes(output.sum));
    }

    fn finish(self) -> Output {
        Output { nodes: self.nodes, sum: self.sum, bytes: bytes(self.sum) }
    }
}

impl Heavy {
    fn new(seed: u64, depth: u32, is_decoy: bool) -> Heavy {
        Heavy { seed, depth, is_decoy, bytes: bytes(seed) }
    }

    fn children(&self) -> Vec<Heavy> {
        let counts = if self.depth == 0 { [0; 4] } else { [1, 2, 2, 3] };
        let count = counts[(mix(self.seed ^ 7) % 4) as usize];
        let child =
            |index: u64| Heavy::new(mix(self.seed ^ index << 8), self.depth - 1, self.is_decoy);
        (1..=count).map(child).collect()
    }

    /// A task whose output is not wanted. It ends, since its decoys are less deep.
    fn decoy(&self, number: u64, depth: u32) -> Heavy {
        let depth = depth.min(self.depth.saturating_sub(1));
        Heavy::new(mix(self.seed ^ number << 32), depth, true)
    }

    fn kind(&self) -> u64 {
        mix(self.seed ^ 5) % 8
    }

    /// The number of nodes and the sum of their hashes, without any runtime.
    fn expected(&self) -> (u64, u64) {
        let of = self.children().iter().map(Heavy::expected).fold((1, mix(self.seed)), add);
        if self.kind() == 0 {
            // The bag counts its root itself.
            let mut pool = Pool { seed: 0, rest: vec![self.clone()], nodes: 0, sum: 0 };
            while pool.step() {}
            return (pool.nodes, pool.sum);
        }
        of
    }

    fn check(&self, output: &Output) -> (u64, u64) {
        assert_eq!(output.bytes, bytes(!self.seed), "the output of another task");
        (output.nodes, output.sum)
    }
}

fn add(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    (a.0 + b.0, a.1.wrapping_add(b.1))
}

impl Task for Heavy {
    const NAME: &'static str = "heavy";
    type Output = Output;

    fn run(self, cx: &mut Cx<'_>) -> Output {
        let _attempt = (!self.is_decoy).then(|| attempt(self.seed, cx.me()));
        assert_eq!(self.bytes, bytes(self.seed), "the arguments of another task");
        if mix(self.seed ^ 99).is_multiple_of(3) {
            let longest = [300, 300, 3_000, 30_000][(mix(self.seed ^ 98) % 4) as usize];
            cx.work(Duration::from_micros(mix(self.seed) % longest));
        }
        let children = self.children();
        let below = match (self.kind(), &children[..]) {
            (0, _) => {
                let seed = self.seed;
                let pool = Pool { seed, rest: vec![self.clone()], nodes: 0, sum: 0 };
                let output = cx.work_off(pool);
                assert_eq!(output.bytes, bytes(output.sum));
                return Output { bytes: bytes(!seed), ..output };
            }
            (1, [a, b]) => cx.scope(|s| {
                let (left, right) = (s.spawn(a.clone()), s.spawn(b.clone()));
                let _unwanted = s.spawn(self.decoy(1, 2));
                let (right, left) = (right.get(s), left.get(s));
                add(a.check(&left), b.check(&right))
            }),
            (2, [a, b]) => {
                let (left, right) = cx.try_join(a.clone(), b.clone());
                add(a.check(&left.expect("no panics")), b.check(&right.expect("no panics")))
            }
            (3 | 4, [a, b, c]) => {
                // A loop with long states, and a fork of a decoy in each step.
                type State = (usize, (u64, u64), Vec<u8>);
                let restored: Option<State> = cx.restore();
                let (mut step, mut sum, long) = restored.unwrap_or_default();
                if step > 0 {
                    assert_eq!(long, bytes(self.seed ^ step as u64), "another state");
                }
                while step < 3 {
                    let child = [a, b, c][step];
                    let decoy = self.decoy(2, 1);
                    let (output, _) = cx.join(child.clone(), decoy);
                    sum = add(sum, child.check(&output));
                    step += 1;
                    cx.save(&(step, sum, bytes(self.seed ^ step as u64)));
                }
                sum
            }
            (5 | 6, [a, rest @ ..]) if !rest.is_empty() => {
                // A left half that is a closure with a long output, and forks inside it.
                let left = |cx: &mut Cx<'_>| {
                    let outputs = cx.all(std::slice::from_ref(a));
                    (a.check(&outputs[0]), bytes(self.seed ^ 0x1ef7))
                };
                let ((sum, long), first) = cx.join_with(left, rest[0].clone());
                assert_eq!(long, bytes(self.seed ^ 0x1ef7), "another left half");
                let outputs = cx.all(&rest[1..]);
                let sum = add(sum, rest[0].check(&first));
                rest[1..].iter().zip(&outputs).fold(sum, |sum, (one, of)| add(sum, one.check(of)))
            }
            (7, [a, b]) => {
                // A left half that fails, with an unwanted task inside.
                let (failed, right) = cx.try_join(Fails(self.seed), b.clone());
                failed.expect_err("panics");
                let (left, _) = cx.join(a.clone(), self.decoy(3, 0));
                add(a.check(&left), b.check(&right.expect("no panics")))
            }
            _ => {
                let outputs = cx.all(&children);
                children.iter().zip(&outputs).fold((0, 0), |sum, (one, of)| add(sum, one.check(of)))
            }
        };
        let (nodes, sum) = add((1, mix(self.seed)), below);
        Output { nodes, sum, bytes: bytes(!self.seed) }
    }
}

/// Forks a task with long arguments, and panics.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Fails(u64);

impl Task for Fails {
    const NAME: &'static str = "fails";
    type Output = u64;

    fn run(self, cx: &mut Cx<'_>) -> u64 {
        let left = |cx: &mut Cx<'_>| -> u64 {
            cx.work(Duration::from_micros(mix(self.0) % 2_000));
            // Without the message of a panic.
            std::panic::resume_unwind(Box::new("fails"))
        };
        cx.join_with(left, Heavy::new(self.0 ^ 0xdec4, 1, true)).0
    }
}

thread_local! {
    /// Whether a member did not take part: its replicas are missing.
    static ABSENT: Cell<bool> = const { Cell::new(false) };
}

fn is_chosen(seed: u64, salt: u64, of: u64) -> bool {
    mix(seed ^ salt << 40).is_multiple_of(of)
}

fn member(job: &Job, seed: u64, depth: u32) {
    let Ok(store) = Store::open(job, small_store()) else { return ABSENT.set(true) };
    let options = Options::new()
        .task::<Heavy>()
        .task::<Fails>()
        .bag::<Pool>()
        .beat_forks(1 + (mix(seed) % 4) as u32)
        .attempts(100)
        .heirs(!is_chosen(seed, 20, 8))
        .resilient(!is_chosen(seed, 21, 10))
        .slots([3, 4, 8, 64][(mix(seed ^ 1) % 4) as usize])
        .nested([1, 2, 8][(mix(seed ^ 2) % 3) as usize]);
    let Ok(tasks) = Tasks::open(&store, options) else { return ABSENT.set(true) };
    let adopter = is_chosen(seed, 22, 3).then(|| adopt_all(job, &store));
    for round in 0..2 {
        let root = Heavy::new(mix(seed ^ round << 50), depth, false);
        let output = tasks.run(root.clone());
        match output {
            Ok(output) => assert_eq!(root.check(&output), root.expected(), "seed {seed}"),
            Err(Error::Store(StoreError::DataLost { .. }) | Error::RunFailed { .. })
                if ABSENT.get() => {}
            Err(Error::Store(StoreError::OutOfMemory { .. }) | Error::RunFailed { .. })
                if is_chosen(seed, 23, 4) => {}
            Err(error) => panic!("seed {seed}, round {round}: {error}"),
        }
    }
    if let Some(adopter) = adopter {
        job.wait_for(&adopter, Time::NEVER);
    }
    if tasks.close().is_ok() {
        let keys = store.scan(b"outlast-tasks/");
        assert!(keys.as_ref().map_or(true, Vec::is_empty), "seed {seed}: left {keys:?}");
    }
    let _ = store.close();
}

/// Adopts the keys of the dead for a while, as a program may.
fn adopt_all(job: &Job, store: &Store) -> outlast::engine::Activity {
    let (job_of_activity, store) = (job.clone(), store.clone());
    let body = move || {
        let mut seen = store.epoch();
        for _ in 0..100 {
            job_of_activity.sleep(Duration::from_micros(500));
            for death in store.deaths_since(&mut seen) {
                for key in store.keys_of(death.member).unwrap_or_default() {
                    let _ = store.adopt(&key);
                }
            }
        }
    };
    job.spawn("adopts", Box::new(body)).expect("spawns")
}

#[test]
fn long_values_are_those_of_their_tasks_whatever_fails() {
    for seed in seeds(0..60) {
        let random = |salt: u64, below: u64| mix(seed ^ salt << 40) % below;
        let members = 2 + random(1, 4) as usize;
        let kills = (random(2, 3) as usize).min(members - 1);
        let mut options = sim::Options::new(members, seed).link(Link::of_seed(seed));
        options.steps_max = 30_000_000;
        options.time_limit = [30_000, 1_000, 50].map(Duration::from_millis)[random(6, 3) as usize];
        options.stack_len = 4 << 20;
        if is_chosen(seed, 23, 4) {
            options.segment_limit = [256 << 10, 512 << 10, 1 << 20][random(7, 3) as usize];
        }
        let steps = [2_000, 8_000, 20_000][random(5, 3) as usize];
        let options = options.random_faults(kills, random(3, 4) as usize, steps);
        let depth = 2 + random(4, 4) as u32;
        ABSENT.set(false);
        let report = sim::run(&options, move |job| {
            member(&job, seed, depth);
            let _ = job.leave();
        });
        end_attempts(seed);
        report.expect_ok();
    }
}

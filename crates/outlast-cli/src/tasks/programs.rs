//! The programs of `outlast tasks`, with the answers that they must give.

use anyhow::{Context, bail};
use outlast_tasks::{Bag, Cx, Error, Options, Sum, Task, Tasks};
use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};

/// A program of `outlast tasks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Program {
    /// The n-th Fibonacci number, without a cut-off
    Fib,
    /// The ways to put n queens on a board of n by n
    Nqueens,
    /// The nodes of an unbalanced tree: the first tree of the UTS benchmark, depth n, 10 by default
    Uts,
    /// The tree of `uts` as a pool of work that is split on demand
    UtsBag,
    /// A merge sort of n thousand numbers
    Sort,
    /// A seeded random tree of depth n
    Random,
}

/// The numbers of solutions of n queens (OEIS A000170).
const QUEENS: [u64; 19] = [
    1, 1, 0, 0, 2, 10, 4, 40, 92, 352, 724, 2680, 14200, 73712, 365596, 2279184, 14772512,
    95815104, 666090624,
];

/// The nodes of the first tree of the UTS benchmark: depth 10, branching factor 4, seed 19.
const UTS_T1: u64 = 4_130_071;

impl Program {
    /// The size of the program if the user gives none.
    pub(crate) fn size(self) -> u32 {
        match self {
            Program::Fib => 32,
            Program::Nqueens => 12,
            Program::Uts | Program::UtsBag => 10,
            Program::Sort => 200,
            Program::Random => 16,
        }
    }

    /// The name, as users type it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Program::Fib => "fib",
            Program::Nqueens => "nqueens",
            Program::Uts => "uts",
            Program::UtsBag => "uts-bag",
            Program::Sort => "sort",
            Program::Random => "random",
        }
    }

    /// What the answer counts.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Program::Fib => "is the number",
            Program::Nqueens => "solutions",
            Program::Uts | Program::UtsBag | Program::Random => "nodes",
            Program::Sort => "is the hash of the sorted numbers",
        }
    }

    /// The answer, known or computed without the runtime.
    pub(crate) fn expected(self, n: u32, seed: u64) -> anyhow::Result<u64> {
        Ok(match self {
            Program::Fib => (0..n).fold((0u64, 1u64), |(a, b), _| (b, a.wrapping_add(b))).0,
            Program::Nqueens => {
                let known = QUEENS.get(n as usize).copied();
                known.with_context(|| format!("--n {n}: the answer is known up to 18"))?
            }
            Program::Uts | Program::UtsBag if n == 10 => UTS_T1,
            Program::Uts | Program::UtsBag => {
                if n > 12 {
                    bail!("--n {n}: a tree of that depth has too many nodes; at most 12");
                }
                let mut pool = Pool { rest: vec![Node::root(n)], nodes: 0 };
                while pool.step() {}
                pool.nodes
            }
            Program::Sort => {
                let mut numbers: Vec<u64> =
                    (0..u64::from(n) * 1000).map(|index| mix(seed ^ index)).collect();
                numbers.sort_unstable();
                hash(&numbers)
            }
            Program::Random => Tree { seed, depth: n }.nodes(),
        })
    }

    /// Runs the program on the runtime.
    pub(crate) fn run(self, tasks: &Tasks, n: u32, seed: u64) -> Result<u64, Error> {
        match self {
            Program::Fib => tasks.run(Fib(n)),
            Program::Nqueens => tasks.run(Queens::new(n)),
            Program::Uts => tasks.run(Node::root(n)),
            Program::UtsBag => tasks.run(Pooled(n)),
            Program::Sort => {
                let all = Sort { seed, from: 0, to: u64::from(n) * 1000 };
                tasks.run(all).map(|numbers| hash(&numbers))
            }
            Program::Random => tasks.run(Tree { seed, depth: n }),
        }
    }
}

/// The options with all tasks of the programs.
pub(crate) fn options() -> Options {
    Options::new()
        .task::<Fib>()
        .sums::<Queens>()
        .sums::<Node>()
        .task::<Pooled>()
        .bag::<Pool>()
        .task::<Sort>()
        .sums::<Tree>()
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn hash(numbers: &[u64]) -> u64 {
    numbers.iter().fold(0, |hash, number| mix(hash ^ number))
}

#[derive(Clone, Serialize, Deserialize)]
struct Fib(u32);

impl Task for Fib {
    const NAME: &'static str = "fib";
    type Output = u64;

    fn run(self, cx: &mut Cx<'_>) -> u64 {
        if self.0 < 2 {
            return self.0.into();
        }
        let (a, b) = cx.join(Fib(self.0 - 1), Fib(self.0 - 2));
        a.wrapping_add(b)
    }
}

/// A board with queens in its first rows, as bits: the columns and diagonals that are taken.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Queens {
    n: u32,
    columns: u32,
    left: u32,
    right: u32,
}

impl Queens {
    pub(crate) fn new(n: u32) -> Queens {
        Queens { n, columns: 0, left: 0, right: 0 }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.columns == (1 << self.n) - 1
    }

    /// The boards with a queen more.
    pub(crate) fn next(&self) -> Vec<Queens> {
        let all = (1 << self.n) - 1;
        let mut free = all & !(self.columns | self.left | self.right);
        let mut boards = Vec::new();
        while free != 0 {
            let queen = free & free.wrapping_neg();
            free ^= queen;
            boards.push(Queens {
                n: self.n,
                columns: self.columns | queen,
                left: (self.left | queen) << 1,
                right: (self.right | queen) >> 1,
            });
        }
        boards
    }
}

impl Task for Queens {
    const NAME: &'static str = "queens";
    type Output = u64;

    fn run(self, cx: &mut Cx<'_>) -> u64 {
        if self.is_full() {
            return 1;
        }
        cx.sum(&self.next())
    }
}

/// A node of a tree of the UTS benchmark: its state is a SHA-1, its children follow from it.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Node {
    state: [u8; 20],
    height: u32,
    depth: u32,
}

impl Node {
    pub(crate) fn root(depth: u32) -> Node {
        let mut seed = [0; 20];
        seed[16..].copy_from_slice(&19u32.to_be_bytes());
        Node { state: Sha1::digest(seed).into(), height: 0, depth }
    }

    /// The children: geometric, with 4 on average above the depth of the tree, and none below it.
    pub(crate) fn children(&self) -> Vec<Node> {
        if self.height > 0 && self.height >= self.depth {
            return Vec::new();
        }
        let tail: [u8; 4] = self.state[16..].try_into().expect("4 of 20 bytes");
        let random = f64::from(u32::from_be_bytes(tail) & 0x7fff_ffff) / 2_147_483_648.0;
        let count = ((1.0 - random).ln() / (1.0 - 1.0 / 5.0f64).ln()).floor() as u32;
        let child = |index: u32| {
            let mut sha = Sha1::new();
            sha.update(self.state);
            sha.update(index.to_be_bytes());
            Node { state: sha.finalize().into(), height: self.height + 1, depth: self.depth }
        };
        (0..count.min(100)).map(child).collect()
    }
}

impl Task for Node {
    const NAME: &'static str = "uts";
    type Output = u64;

    fn run(self, cx: &mut Cx<'_>) -> u64 {
        1 + cx.sum(&self.children())
    }
}

/// The tree of UTS as a pool.
#[derive(Clone, Serialize, Deserialize)]
struct Pool {
    rest: Vec<Node>,
    nodes: u64,
}

impl Bag for Pool {
    const NAME: &'static str = "uts pool";
    type Output = u64;

    fn step(&mut self) -> bool {
        if let Some(node) = self.rest.pop() {
            self.nodes += 1;
            self.rest.extend(node.children());
        }
        !self.rest.is_empty()
    }

    fn split(&mut self) -> Option<Pool> {
        let half = self.rest.len() / 2;
        (half > 0).then(|| Pool { rest: self.rest.drain(..half).collect(), nodes: 0 })
    }

    fn merge(&mut self, nodes: u64) {
        self.nodes += nodes;
    }

    fn finish(self) -> u64 {
        self.nodes
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct Pooled(u32);

impl Task for Pooled {
    const NAME: &'static str = "uts-bag";
    type Output = u64;

    fn run(self, cx: &mut Cx<'_>) -> u64 {
        cx.work_off(Pool { rest: vec![Node::root(self.0)], nodes: 0 })
    }
}

/// Sorts a range of seeded numbers.
#[derive(Clone, Serialize, Deserialize)]
struct Sort {
    seed: u64,
    from: u64,
    to: u64,
}

impl Task for Sort {
    const NAME: &'static str = "sort";
    type Output = Vec<u64>;

    fn run(self, cx: &mut Cx<'_>) -> Vec<u64> {
        let Sort { seed, from, to } = self;
        if to - from <= 4096 {
            let mut numbers: Vec<u64> = (from..to).map(|index| mix(seed ^ index)).collect();
            numbers.sort_unstable();
            return numbers;
        }
        let middle = from.midpoint(to);
        let (left, right) =
            cx.join(Sort { seed, from, to: middle }, Sort { seed, from: middle, to });
        let mut sorted = Vec::with_capacity(left.len() + right.len());
        let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
        while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
            sorted.extend(if a <= b { left.next() } else { right.next() });
        }
        sorted.extend(left.chain(right));
        sorted
    }
}

/// A node of a seeded random tree.
#[derive(Clone, Serialize, Deserialize)]
struct Tree {
    seed: u64,
    depth: u32,
}

impl Tree {
    fn children(&self) -> Vec<Tree> {
        let counts = if self.depth == 0 { [0; 4] } else { [1, 2, 2, 3] };
        let count = counts[(mix(self.seed ^ 7) % 4) as usize];
        let depth = self.depth.saturating_sub(1);
        (1..=count).map(|index| Tree { seed: mix(self.seed ^ index << 8), depth }).collect()
    }

    fn nodes(&self) -> u64 {
        1 + self.children().iter().map(Tree::nodes).sum::<u64>()
    }
}

impl Task for Tree {
    const NAME: &'static str = "tree";
    type Output = u64;

    fn run(self, cx: &mut Cx<'_>) -> u64 {
        <u64 as Sum>::add(1, cx.sum(&self.children()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_of_uts_has_the_published_number_of_nodes() {
        let mut pool = Pool { rest: vec![Node::root(10)], nodes: 0 };
        while pool.step() {}
        assert_eq!(pool.nodes, UTS_T1);
    }
}

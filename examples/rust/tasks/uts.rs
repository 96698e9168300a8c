//! A tree of the UTS benchmark (unbalanced tree search) as a bag: a pool of nodes that is split
//! when other members are hungry. The tree is known by its root alone, and very uneven.
//!
//! Run it with `cargo run --release --example uts -p outlast-tasks`.

mod support;

use outlast_tasks::{Bag, Cx, Options, Task};
use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};

const DEPTH: u32 = 8;

/// A node: a SHA-1, from which its children follow.
#[derive(Clone, Serialize, Deserialize)]
struct Node {
    state: [u8; 20],
    height: u32,
}

impl Node {
    fn root() -> Node {
        let mut seed = [0; 20];
        seed[16..].copy_from_slice(&19u32.to_be_bytes());
        Node { state: Sha1::digest(seed).into(), height: 0 }
    }

    fn child(&self, index: u32) -> Node {
        let mut sha = Sha1::new();
        sha.update(self.state);
        sha.update(index.to_be_bytes());
        Node { state: sha.finalize().into(), height: self.height + 1 }
    }

    /// The number of children: geometric, 4 on average above the depth of the tree.
    fn count(&self) -> u32 {
        if self.height >= DEPTH {
            return 0;
        }
        let tail: [u8; 4] = self.state[16..].try_into().expect("4 of 20 bytes");
        let random = f64::from(u32::from_be_bytes(tail) & 0x7fff_ffff) / 2_147_483_648.0;
        ((1.0 - random).ln() / (1.0 - 1.0 / 5.0f64).ln()).floor() as u32
    }
}

/// The nodes that are left, and the number of those that were visited.
#[derive(Serialize, Deserialize)]
struct Pool {
    rest: Vec<Node>,
    visited: u64,
}

impl Bag for Pool {
    const NAME: &'static str = "pool";
    type Output = u64;

    fn step(&mut self) -> bool {
        if let Some(node) = self.rest.pop() {
            self.visited += 1;
            self.rest.extend((0..node.count()).map(|index| node.child(index)));
        }
        !self.rest.is_empty()
    }

    fn split(&mut self) -> Option<Pool> {
        let half = self.rest.len() / 2;
        (half > 0).then(|| Pool { rest: self.rest.drain(..half).collect(), visited: 0 })
    }

    fn merge(&mut self, visited: u64) {
        self.visited += visited;
    }

    fn finish(self) -> u64 {
        self.visited
    }
}

/// The task that works the bag off.
#[derive(Clone, Serialize, Deserialize)]
struct Search;

impl Task for Search {
    const NAME: &'static str = "search";
    type Output = u64;

    fn run(self, cx: &mut Cx<'_>) -> u64 {
        cx.work_off(Pool { rest: vec![Node::root()], visited: 0 })
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut alone = Pool { rest: vec![Node::root()], visited: 0 };
    while alone.step() {}
    support::run_members(
        |tasks| Ok((tasks.run(Search)?, alone.finish())),
        Options::new().task::<Search>().bag::<Pool>(),
    )
}

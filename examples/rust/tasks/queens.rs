//! The ways to put 12 queens on a board: a tree of tasks with a sum at each node.
//!
//! Run it with `cargo run --release --example queens -p outlast-tasks`.

mod support;

use outlast_tasks::{Cx, Options, Task};
use serde::{Deserialize, Serialize};

/// A board with queens in its first rows, as bits: the columns and diagonals that are taken.
#[derive(Clone, Serialize, Deserialize)]
struct Queens {
    n: u32,
    columns: u32,
    left: u32,
    right: u32,
}

impl Task for Queens {
    const NAME: &'static str = "queens";
    type Output = u64;

    fn run(self, cx: &mut Cx<'_>) -> u64 {
        let all = (1 << self.n) - 1;
        if self.columns == all {
            return 1;
        }
        let mut free = all & !(self.columns | self.left | self.right);
        // The vector lives across the forks below: stacks stay where they are.
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
        cx.sum(&boards)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    support::run_members(
        |tasks| {
            let ways = tasks.run(Queens { n: 12, columns: 0, left: 0, right: 0 })?;
            Ok((ways, 14_200))
        },
        Options::new().sums::<Queens>(),
    )
}

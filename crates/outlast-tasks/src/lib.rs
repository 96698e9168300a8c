//! A task runtime that outlasts its workers.
//!
//! Fork-join programs, and pools of independent tasks, run on all members of a job. Members may die
//! at any time, the member with the root task included. The others do not stop, and the output is
//! that of a run without deaths.
//!
//! A program of tasks with `sum`: all ways to put n queens on a board. Every member calls
//! [`Tasks::run`], and every survivor gets the output.
//!
//! ```no_run
//! use outlast::store::{self, Store};
//! use outlast_tasks::{Cx, Options, Task, Tasks};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Clone, Serialize, Deserialize)]
//! struct Queens { n: u32, columns: u32, left: u32, right: u32 }
//!
//! impl Task for Queens {
//!     const NAME: &'static str = "queens";
//!     type Output = u64;
//!     fn run(self, cx: &mut Cx<'_>) -> u64 {
//!         let all = (1 << self.n) - 1;
//!         if self.columns == all {
//!             return 1;
//!         }
//!         let mut free = all & !(self.columns | self.left | self.right);
//!         let mut boards = Vec::new();
//!         while free != 0 {
//!             let queen = free & free.wrapping_neg();
//!             free ^= queen;
//!             boards.push(Queens {
//!                 n: self.n,
//!                 columns: self.columns | queen,
//!                 left: (self.left | queen) << 1,
//!                 right: (self.right | queen) >> 1,
//!             });
//!         }
//!         cx.sum(&boards)
//!     }
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let job = outlast::join()?;
//!     let store = Store::open(&job, store::Options::new())?;
//!     let tasks = Tasks::open(&store, Options::new().sums::<Queens>().price(0.01))?;
//!     println!("{}", tasks.run(Queens { n: 15, columns: 0, left: 0, right: 0 })?);
//!     tasks.close()?;
//!     store.close()?;
//!     Ok(job.leave()?)
//! }
//! ```
//!
//! With `join`, here under the simulator: three members, of which one dies.
//!
//! ```
//! # use outlast::sim::{self, Action, When};
//! # use outlast::store::{self, Store};
//! # use outlast::MemberId;
//! # use outlast_tasks::{Cx, Options, Task, Tasks};
//! # use serde::{Deserialize, Serialize};
//! #[derive(Clone, Serialize, Deserialize)]
//! struct Fib(u32);
//!
//! impl Task for Fib {
//!     const NAME: &'static str = "fib";
//!     type Output = u64;
//!     fn run(self, cx: &mut Cx<'_>) -> u64 {
//!         if self.0 < 2 {
//!             return self.0.into();
//!         }
//!         let (a, b) = cx.join(Fib(self.0 - 1), Fib(self.0 - 2));
//!         a + b
//!     }
//! }
//!
//! let first = MemberId(0);
//! let options = sim::Options::new(3, 1).fault(When::AtStep(first, 3_000), Action::Kill(first));
//! let report = sim::run(&options, |job| {
//!     let store = Store::open(&job, store::Options::new()).unwrap();
//!     let tasks = Tasks::open(&store, Options::new().task::<Fib>()).unwrap();
//!     assert_eq!(tasks.run(Fib(15)).unwrap(), 610);
//!     tasks.close().unwrap();
//!     job.leave().unwrap();
//! });
//! assert_eq!(report.expect_ok().kills, 1);
//! ```
//!
//! With an output of its own, and children of which nobody knows the number before: a tree as in
//! the benchmark UTS. The recursion is as deep as the tree.
//!
//! ```
//! # use outlast::sim;
//! # use outlast::store::{self, Store};
//! # use outlast_tasks::{Cx, Options, Sum, Task, Tasks};
//! # use serde::{Deserialize, Serialize};
//! #[derive(Clone, Serialize, Deserialize)]
//! struct Node { state: u64, height: u32 }
//!
//! #[derive(Debug, PartialEq, Serialize, Deserialize)]
//! struct Count { nodes: u64, leaves: u64 }
//!
//! impl Sum for Count {
//!     fn zero() -> Count {
//!         Count { nodes: 0, leaves: 0 }
//!     }
//!     fn add(self, other: Count) -> Count {
//!         Count { nodes: self.nodes + other.nodes, leaves: self.leaves + other.leaves }
//!     }
//! }
//!
//! impl Task for Node {
//!     const NAME: &'static str = "node";
//!     type Output = Count;
//!     fn run(self, cx: &mut Cx<'_>) -> Count {
//!         let children = if self.height == 6 { 0 } else { self.state % 4 };
//!         let child = |index| Node {
//!             state: (self.state ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23),
//!             height: self.height + 1,
//!         };
//!         let children: Vec<Node> = (0..children).map(child).collect();
//!         let own = Count { nodes: 1, leaves: u64::from(children.is_empty()) };
//!         own.add(cx.sum(&children))
//!     }
//! }
//!
//! # let report = sim::run(&sim::Options::new(3, 1), |job| {
//! #     let store = Store::open(&job, store::Options::new()).unwrap();
//! #     let tasks = Tasks::open(&store, Options::new().sums::<Node>()).unwrap();
//! let count = tasks.run(Node { state: 7, height: 0 }).unwrap();
//! #     assert!(count.nodes > 10 && count.leaves > 3 && count.leaves < count.nodes, "{count:?}");
//! #     tasks.close().unwrap();
//! #     job.leave().unwrap();
//! # });
//! # report.expect_ok();
//! ```
#![forbid(unsafe_code)]

mod background;
mod bag;
mod board;
mod claim;
mod counts;
mod cx;
mod error;
mod events;
mod frame;
mod options;
mod record;
mod resume;
mod run;
mod scope;
mod session;
mod slots;
pub mod steps;
mod task;
mod wait;
mod worker;

pub use bag::Bag;
pub use counts::{Observer, Stats};
pub use cx::Cx;
pub use error::{Error, TaskError};
pub use events::Event;
pub use options::Options;
pub use run::Tasks;
pub use scope::{Future, Scope};
pub use task::{Sum, Task};

//! The smallest program of tasks: a Fibonacci number without a cut-off. Members may be killed at
//! any time, and every survivor prints the right number.
//!
//! Run it with `cargo run --release --example fib -p outlast-tasks`.

mod support;

use outlast_tasks::{Cx, Options, Task};
use serde::{Deserialize, Serialize};

/// A task is its arguments: any member can run it from their bytes.
#[derive(Clone, Serialize, Deserialize)]
struct Fib(u32);

impl Task for Fib {
    const NAME: &'static str = "fib";
    type Output = u64;

    fn run(self, cx: &mut Cx<'_>) -> u64 {
        if self.0 < 2 {
            return self.0.into();
        }
        // The left half runs here. Another member may take the right half meanwhile.
        let (a, b) = cx.join(Fib(self.0 - 1), Fib(self.0 - 2));
        a + b
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    support::run_members(
        |tasks| {
            let number = tasks.run(Fib(32))?;
            Ok((number, 2_178_309))
        },
        Options::new().task::<Fib>(),
    )
}

//! `outlast bench tasks`: programs of tasks against rayon, and against themselves without saving;
//! and how much of the time of up to thousands of simulated workers is work.

mod simulated;

use super::{BenchArgs, Row, publish};
use crate::report::say;
use crate::tasks::measure;
use crate::tasks::programs::{Node, Program, Queens};
use anyhow::{Context, ensure};
use clap::Args;
use std::hint::black_box;
use std::time::Instant;

const EXAMPLES: &str = "\
Each program runs without a cut-off: every call is a fork. The contenders take turns, round by
round: `calls` is plain recursion on a single thread, `rayon` runs rayon's join on as many threads
as there are members, `tasks` is the task runtime with three replicas and a price of 1 %, `one
replica` the same with a single replica, and `no saving` shares only what other members ask for.
Ratios are those to rayon. The last rows tell what a fork costs that nobody takes: the time of a
single member without saving, less that of plain calls, divided by the number of forks.

With --simulated no process is started. The workers are simulated, with the cost model of a cluster
network, and count the nodes of a tree of UTS that has a second of work for each of them: without
deaths, and with ten (an eighth of the workers if there are fewer than 80). The efficiency is the
work of the tree divided by the time that the workers lived; the ratio is its inverse. 1024 workers
take some minutes.

Examples:
  All measurements:
      outlast bench tasks
  A quick look:
      outlast bench tasks --sizes 27,10,8 --rounds 3
  Simulated workers:
      outlast bench tasks --simulated 8,64,1024";

/// Measure programs of tasks on this machine against rayon
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct TasksBench {
    /// The sizes of fib, nqueens and uts
    #[arg(long, value_name = "N,N,N", value_delimiter = ',', default_value = "35,14,10")]
    sizes: Vec<u32>,
    /// How many members, and threads of rayon
    #[arg(short = 'n', long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    members: u16,
    /// How many times each contender runs
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// In place of that: how many workers to simulate, separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with_all = ["sizes", "rounds"])]
    #[arg(value_parser = clap::value_parser!(u16).range(2..=4096))]
    simulated: Vec<u16>,
    #[command(flatten)]
    pub(super) args: BenchArgs,
}

/// The contenders, in the order of a round.
const CONTENDERS: [&str; 5] = ["calls", "rayon", "tasks", "one replica", "no saving"];

/// How many simulated workers die.
const DEATHS: usize = 10;

impl TasksBench {
    pub(super) fn execute(self) -> anyhow::Result<bool> {
        if !self.simulated.is_empty() {
            return self.simulate();
        }
        ensure!(self.sizes.len() == 3, "--sizes takes three numbers, such as 35,14,10");
        let programs = [Program::Fib, Program::Nqueens, Program::Uts];
        let members = usize::from(self.members);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(members).build();
        let pool = pool.context("starting the threads of rayon")?;
        let mut rows = Vec::new();
        for (program, &n) in programs.into_iter().zip(&self.sizes) {
            let expected = program.expected(n, 1)?;
            let mut samples: [Vec<u64>; CONTENDERS.len()] = Default::default();
            for round in 1..=self.rounds {
                for (contender, samples) in CONTENDERS.into_iter().zip(&mut samples) {
                    let seconds = match contender {
                        "calls" => timed(expected, || calls(program, n))?,
                        "rayon" => timed(expected, || pool.install(|| joins(program, n)))?,
                        "tasks" => measure(program, n, members, false, 3)?,
                        "one replica" => measure(program, n, members, false, 1)?,
                        _ => measure(program, n, members, true, 1)?,
                    };
                    samples.push((seconds * 1e9) as u64);
                }
                let name = program.name();
                say(
                    self.args.json.as_deref(),
                    format_args!("{name} {n}: round {round} of {}", self.rounds),
                );
            }
            let what = format!("{} {n}", program.name());
            let first = rows.len();
            for (contender, samples) in CONTENDERS.into_iter().zip(samples) {
                rows.push(self.row(&what, contender, members).with_samples(samples));
            }
            let floor = rows[first + 1].p50_ns.max(1);
            for row in &mut rows[first..] {
                row.floor_ns = Some(floor);
                row.ratio = Some(row.p50_ns as f64 / floor as f64);
            }
        }
        rows.push(self.fork(self.sizes[0])?);
        publish(&self.args, rows)?;
        Ok(true)
    }

    /// Measures simulated workers, without deaths and with them.
    fn simulate(&self) -> anyhow::Result<bool> {
        let mut rows = Vec::new();
        for &members in &self.simulated {
            let members = usize::from(members);
            for deaths in [0, DEATHS.min(members / 8)] {
                let result = simulated::simulate(members, deaths)?;
                say(self.args.json.as_deref(), format_args!("{}", result.text()));
                rows.push(result.row());
            }
        }
        publish(&self.args, rows)?;
        Ok(true)
    }

    fn row(&self, what: &str, contender: &str, members: usize) -> Row {
        let replicas = match contender {
            "tasks" => Some(3),
            "one replica" => Some(1),
            _ => None,
        };
        let members = if contender == "calls" { 1 } else { members };
        let (what, contender) = (what.to_string(), contender.to_string());
        Row { what, engine: "shm".into(), members, replicas, contender, ..Row::default() }
    }

    /// What a fork costs that nobody takes.
    fn fork(&self, n: u32) -> anyhow::Result<Row> {
        let expected = Program::Fib.expected(n, 1)?;
        // Every number above 1 forks: fib(n + 1) - 1 of them.
        let forks = (Program::Fib.expected(n + 1, 1)? - 1).max(1);
        let mut samples = Vec::new();
        for _ in 0..self.rounds {
            let calls = timed(expected, || calls(Program::Fib, n))?;
            let tasks = measure(Program::Fib, n, 1, true, 1)?;
            samples.push(((tasks - calls).max(0.0) * 1e9 / forks as f64).round() as u64);
        }
        Ok(self.row("a fork that is not shared", "no saving", 1).with_samples(samples))
    }
}

/// The seconds of a call, which must return this.
fn timed(expected: u64, call: impl FnOnce() -> u64 + Send) -> anyhow::Result<f64> {
    let began = Instant::now();
    let answer = call();
    let seconds = began.elapsed().as_secs_f64();
    ensure!(answer == expected, "the answer {answer} should be {expected}");
    Ok(seconds)
}

/// The program as plain recursion.
fn calls(program: Program, n: u32) -> u64 {
    fn fib(n: u32) -> u64 {
        if n < 2 { n.into() } else { fib(black_box(n - 1)) + fib(black_box(n - 2)) }
    }
    fn queens(board: &Queens) -> u64 {
        if board.is_full() { 1 } else { board.next().iter().map(queens).sum() }
    }
    fn nodes(node: &Node) -> u64 {
        1 + node.children().iter().map(nodes).sum::<u64>()
    }
    match program {
        Program::Nqueens => queens(&Queens::new(n)),
        Program::Uts => nodes(&Node::root(n)),
        _ => fib(n),
    }
}

/// The program with rayon's joins, in the shape of the task runtime's sums.
fn joins(program: Program, n: u32) -> u64 {
    fn fib(n: u32) -> u64 {
        if n < 2 {
            return n.into();
        }
        let (a, b) = rayon::join(|| fib(n - 1), || fib(n - 2));
        a + b
    }
    fn sum<T: Sync>(all: &[T], one: fn(&T) -> u64) -> u64 {
        match all {
            [] => 0,
            [only] => one(only),
            _ => {
                let (left, right) = all.split_at(all.len().div_ceil(2));
                let (left, right) = rayon::join(|| sum(left, one), || sum(right, one));
                left + right
            }
        }
    }
    fn queens(board: &Queens) -> u64 {
        if board.is_full() { 1 } else { sum(&board.next(), queens) }
    }
    fn nodes(node: &Node) -> u64 {
        1 + sum(&node.children(), nodes)
    }
    match program {
        Program::Nqueens => queens(&Queens::new(n)),
        Program::Uts => nodes(&Node::root(n)),
        _ => fib(n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_contenders_compute_the_same() {
        for (program, n) in [(Program::Fib, 12), (Program::Nqueens, 7), (Program::Uts, 4)] {
            let expected = program.expected(n, 1).expect("known");
            assert_eq!((calls(program, n), joins(program, n)), (expected, expected), "{program:?}");
        }
    }
}

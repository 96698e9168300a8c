//! `outlast bench sim`: how many engine steps the simulator takes in a second.

use super::{BenchArgs, Row, publish};
use crate::report::say;
use anyhow::{Context, ensure};
use clap::Args;
use outlast::sim::{self, Cost, Link, Options};
use outlast::{Epoch, Error, Job, MemberId};
use std::time::Duration;

const EXAMPLES: &str = "\
Every member puts, gets and swaps 64 bytes at the other members in turn. The times p50 to max are
processor time per step, so that other work on the machine does not count, with one sample for each
run; steps/s belongs to p50. The last row is many short runs of 4 members with a death and a stop
each, as a search for faults makes them.

Build with --release; other builds are many times slower.

Examples:
  All cases, in a few seconds:
      outlast bench sim
  Longer runs, for steadier figures:
      outlast bench sim --steps 10000000";

/// Measure how many engine steps the simulator takes in a second
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct SimBench {
    /// About how many steps a run has
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1_000..=1_000_000_000))]
    steps: u64,
    /// How many runs each case has; they are interleaved
    #[arg(long, value_name = "K", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: u16,
    #[command(flatten)]
    pub(super) args: BenchArgs,
}

/// A simulated machine to do the work on.
struct Case {
    contender: &'static str,
    members: usize,
    link: Link,
    has_cost: bool,
    /// Whether it makes many short runs with faults instead of a single long run.
    is_search: bool,
}

const fn case(contender: &'static str, members: usize, link: Link) -> Case {
    Case { contender, members, link, has_cost: false, is_search: false }
}

const CASES: &[Case] = &[
    case("memory", 8, Link::Memory),
    case("memory", 64, Link::Memory),
    case("memory", 1024, Link::Memory),
    case("memory", 4096, Link::Memory),
    Case { has_cost: true, ..case("memory, cost model", 8, Link::Memory) },
    case("network", 8, Link::Network),
    case("network", 1024, Link::Network),
    Case { is_search: true, ..case("short runs with faults", 4, Link::Memory) },
];

/// The steps and the processor time of a run.
struct Sample {
    steps: u64,
    processor: Duration,
}

impl Case {
    fn options(&self, seed: u64) -> Options {
        let cost = self.has_cost.then(Cost::default);
        Options { cost, steps_max: u64::MAX, ..Options::new(self.members, seed).link(self.link) }
    }

    /// Runs about this many steps.
    fn run(&self, steps: u64) -> anyhow::Result<Sample> {
        let began = processor_time()?;
        let mut taken = 0;
        if self.is_search {
            for seed in 0.. {
                taken +=
                    sim::run(&self.options(seed).random_faults(1, 1, 50), |job| mixed(&job, 5))
                        .steps;
                if taken >= steps {
                    break;
                }
            }
        } else {
            // A round has three operations and a read of the epoch, with a few steps each.
            let rounds = (steps / (10 * self.members as u64)).max(1);
            let report = sim::run(&self.options(1), move |job| mixed(&job, rounds));
            ensure!(
                report.is_ok(),
                "the simulated job ended as {:?}: {:?}",
                report.outcome,
                report.panics
            );
            taken = report.steps;
        }
        Ok(Sample { steps: taken, processor: processor_time()? - began })
    }
}

/// The processor time of this thread.
fn processor_time() -> anyhow::Result<Duration> {
    let path = "/proc/thread-self/schedstat";
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    let ns = text.split(' ').next().and_then(|word| word.parse().ok());
    ns.map(Duration::from_nanos).with_context(|| format!("{path} begins with no number: {text}"))
}

/// The mix of operations of a store: puts of 64 bytes, gets, compare-and-swaps, and reads of the
/// epoch. Other members may die meanwhile, so failed calls are ignored.
fn mixed(job: &Job, rounds: u64) {
    job.grow(4096).expect("a simulated segment has room for 4096 bytes");
    let members = job.members() as u64;
    for round in 0..rounds {
        let target = MemberId(((u64::from(job.me().0) + round) % members) as u32);
        let mut buffer = [0; 64];
        let _ = job.put(Epoch::ANY, target, 64 * (round % 16), &[round as u8; 64]);
        let _ = job.get(Epoch::ANY, target, 0, &mut buffer);
        let _ = job.compare_and_swap(job.epoch(), target, 2048, 0, 0);
    }
    // No member leaves before all are done: the measured part has no deaths except the planned
    // deaths.
    let nap = || job.park(job.bell(), job.now().after(Duration::from_millis(10)));
    // After few rounds member 0 may not have grown its segment yet.
    while let Err(Error::OutOfRange { .. }) = job.fetch_add(Epoch::ANY, MemberId(0), 4088, 1) {
        nap();
    }
    while job.epoch() == Epoch(0)
        && job.load(Epoch::ANY, MemberId(0), 4088).is_ok_and(|done| done < members)
    {
        nap();
    }
    job.leave().expect("a member leaves once");
}

impl SimBench {
    pub(super) fn execute(self) -> anyhow::Result<bool> {
        let json = self.args.json.as_deref();
        if cfg!(debug_assertions) {
            say(json, "This is not a release build: expect a fraction of the speed.");
        }
        let mut samples: Vec<Vec<u64>> = CASES.iter().map(|_| Vec::new()).collect();
        for run in 1..=self.runs {
            for (case, samples) in CASES.iter().zip(&mut samples) {
                let Sample { steps, processor } = case.run(self.steps)?;
                ensure!(steps > 0, "a run without a step");
                samples.push((processor.as_nanos() as u64 / steps).max(1));
            }
            say(json, format_args!("{run} of {} runs", self.runs));
        }
        let rows = CASES.iter().zip(samples).map(|(case, samples)| {
            let row = Row {
                what: "step".into(),
                engine: "sim".into(),
                members: case.members,
                contender: case.contender.into(),
                ..Row::default()
            };
            let row = row.with_samples(samples);
            Row { steps_per_s: Some(1_000_000_000 / row.p50_ns), ..row }
        });
        publish(&self.args, rows.collect())?;
        Ok(true)
    }
}

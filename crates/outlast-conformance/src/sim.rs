//! Running scenarios on the simulator, where a seed is also a schedule.

use crate::{Clock, Run, Scenario};
use outlast::Job;
use outlast::sim::{self, Options, Outcome, Report};
use std::fmt;

pub use outlast::sim::Link;

/// A run on the simulator that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The scenario.
    pub scenario: &'static str,
    /// The seed.
    pub seed: u64,
    /// How members reach each other.
    pub link: Link,
    /// The reason.
    pub what: String,
}

impl Failure {
    /// The command that repeats the run and prints every step.
    pub fn replay(&self) -> String {
        format!(
            "outlast-conformance sim --scenario {} --seeds {}..{} --link {} --trace",
            self.scenario,
            self.seed,
            self.seed.saturating_add(1),
            link_name(self.link)
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, link {}: {}", self.seed, link_name(self.link), self.what)?;
        write!(f, "  again: {}", self.replay())
    }
}

fn link_name(link: Link) -> &'static str {
    match link {
        Link::Memory => "memory",
        Link::Network => "network",
    }
}

/// Runs a scenario once. With `trace` the report has every step; the steps of a failed run are
/// printed.
pub fn run(
    scenario: &'static Scenario,
    seed: u64,
    link: Link,
    trace: bool,
) -> std::result::Result<Report, Failure> {
    let options = Options {
        members: scenario.members,
        spares: scenario.spares,
        seed,
        link,
        time_limit: scenario.time_limit,
        segment_limit: scenario.segment_limit,
        trace,
        ..Options::default()
    };
    let report = sim::run(&options, move |job: Job| {
        (scenario.body)(&Run::new(job, scenario, seed, Clock::Virtual));
    });
    let what = if let Some(panic) = report.panics.first() {
        format!("{}, {}: {}", panic.member, panic.activity, panic.message)
    } else if report.outcome != Outcome::Finished {
        let hung: Vec<String> = report.hung.iter().map(ToString::to_string).collect();
        format!("a hang, {:?}: {}", report.outcome, hung.join("; "))
    } else if report.kills != scenario.killed as u64 {
        format!("{} members were killed instead of {}", report.kills, scenario.killed)
    } else if !report.still_stopped.is_empty() {
        format!("{:?} were left stopped", report.still_stopped)
    } else {
        return Ok(report);
    };
    report.trace.iter().for_each(|line| println!("{line}"));
    Err(Failure { scenario: scenario.name, seed, link, what })
}

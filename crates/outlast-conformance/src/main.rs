//! The command `outlast-conformance`: runs the scenarios on an engine.

#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use outlast_conformance::{Scenario, be_member, mpi, scenario, scenarios, shm, sim};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Runs the scenarios that every engine of Outlast has to pass. Exit status: 0 all passed, 1 a
/// failure, 2 usage.
#[derive(Parser)]
#[command(name = "outlast-conformance", version)]
struct Arguments {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// List the scenarios.
    List,
    /// Run scenarios on the simulator.
    Sim {
        /// Only this scenario; may be given several times.
        #[arg(long, value_parser = known)]
        scenario: Vec<&'static Scenario>,
        /// The seeds: A..B without B.
        #[arg(long, value_parser = seeds, default_value = "0..100")]
        seeds: Range<u64>,
        /// How members reach each other.
        #[arg(long, value_enum, default_value = "both")]
        link: Link,
        /// Print every step of the run.
        #[arg(long)]
        trace: bool,
        /// Go on after a failure.
        #[arg(long)]
        keep_going: bool,
    },
    /// Run scenarios as processes of this machine.
    Shm {
        /// Only this scenario; may be given several times.
        #[arg(long, value_parser = known)]
        scenario: Vec<&'static Scenario>,
        /// The seeds: A..B without B. A seed chooses victims, sizes and steps; the machine chooses
        /// the schedule.
        #[arg(long, value_parser = seeds, default_value = "0..1")]
        seeds: Range<u64>,
        /// Run the slow scenarios, too.
        #[arg(long)]
        slow: bool,
        /// Go on after a failure.
        #[arg(long)]
        keep_going: bool,
    },
    /// Run scenarios under mpirun; needs a build with the feature `mpi`.
    Mpi {
        /// Only this scenario; may be given several times.
        #[arg(long, value_parser = known)]
        scenario: Vec<&'static Scenario>,
        /// The seeds: A..B without B.
        #[arg(long, value_parser = seeds, default_value = "0..1")]
        seeds: Range<u64>,
        /// How members reach each other: by messages, or by shared memory, as members of a node do
        /// (nodes).
        #[arg(long, default_value = "messages", value_parser = ["messages", "nodes"])]
        path: String,
        /// The mpirun to use.
        #[arg(long, default_value = "mpirun")]
        mpirun: PathBuf,
        /// Go on after a failure.
        #[arg(long)]
        keep_going: bool,
    },
    /// Be a member: started by `shm`, or by mpirun.
    Member {
        /// The scenario.
        #[arg(long, value_parser = known)]
        scenario: &'static Scenario,
        /// The seed.
        #[arg(long, default_value_t = 0)]
        seed: u64,
    },
    /// Be a launcher that is killed.
    #[command(hide = true)]
    Launcher {
        #[arg(long, value_parser = known)]
        scenario: &'static Scenario,
        #[arg(long, default_value_t = 0)]
        seed: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Link {
    Memory,
    Network,
    Both,
}

fn known(name: &str) -> Result<&'static Scenario, String> {
    scenario(name)
        .ok_or_else(|| "there is no scenario with this name; `list` names them".to_string())
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("`{text}`: {error}"));
    match text.split_once("..") {
        Some((begin, end)) => {
            let range = number(begin)?..number(end)?;
            if range.is_empty() {
                Err("no seeds; A..B is without B".to_string())
            } else {
                Ok(range)
            }
        }
        None => number(text).map(|seed| seed..seed.saturating_add(1)),
    }
}

/// The requested scenarios, or all scenarios that fit if none is requested.
fn chosen(
    asked: Vec<&'static Scenario>,
    fits: impl Fn(&Scenario) -> bool,
) -> Vec<&'static Scenario> {
    if asked.is_empty() {
        scenarios().iter().filter(|scenario| fits(scenario)).collect()
    } else {
        asked
    }
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Subcommands::List => {
            for scenario in scenarios() {
                let slow = if scenario.slow { ", slow" } else { "" };
                let spares = match scenario.spares {
                    0 => String::new(),
                    spares => format!(" and {spares} spares"),
                };
                let killed = match scenario.killed {
                    0 => String::new(),
                    killed => format!(", {killed} killed"),
                };
                println!("{} ({}{spares}{killed}{slow})", scenario.name, scenario.members);
                println!("    {}", scenario.about);
            }
            ExitCode::SUCCESS
        }
        Subcommands::Sim { scenario, seeds, link, trace, keep_going } => {
            let links = match link {
                Link::Memory => vec![sim::Link::Memory],
                Link::Network => vec![sim::Link::Network],
                Link::Both => vec![sim::Link::Memory, sim::Link::Network],
            };
            run_sim(&chosen(scenario, Scenario::runs_on_sim), &seeds, &links, trace, keep_going)
        }
        Subcommands::Shm { scenario, seeds, slow, keep_going } => {
            let scenarios = chosen(scenario, |scenario| slow || !scenario.slow);
            run_processes("shm", &scenarios, &seeds, keep_going, shm::run)
        }
        Subcommands::Mpi { scenario, seeds, path, mpirun, keep_going } => {
            let scenarios = chosen(scenario, Scenario::runs_on_mpi);
            run_processes("mpi", &scenarios, &seeds, keep_going, |program, scenario, seed| {
                mpi::run(&mpirun, program, scenario, seed, &path)
            })
        }
        Subcommands::Member { scenario, seed } => match be_member(scenario, seed) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&format!("cannot join: {error}")),
        },
        Subcommands::Launcher { scenario, seed } => {
            let program = std::env::current_exe().expect("this program has a path");
            match shm::be_launcher(&program, scenario, seed) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&error),
            }
        }
    }
}

fn fail(what: &str) -> ExitCode {
    eprintln!("{what}");
    ExitCode::FAILURE
}

fn run_sim(
    scenarios: &[&'static Scenario],
    seeds: &Range<u64>,
    links: &[sim::Link],
    trace: bool,
    keep_going: bool,
) -> ExitCode {
    let mut failures = 0;
    for scenario in scenarios {
        if !scenario.runs_on_sim() {
            eprintln!("{}: not on the simulator, which has no launcher", scenario.name);
            return ExitCode::from(2);
        }
        let (began, mut steps) = (std::time::Instant::now(), 0);
        'scenario: for seed in seeds.clone() {
            for &link in links {
                match sim::run(scenario, seed, link, trace) {
                    Ok(report) => {
                        steps += report.steps;
                        report.trace.iter().for_each(|line| println!("{line}"));
                    }
                    Err(failure) => {
                        failures += 1;
                        println!("{}: FAILED: {failure}", scenario.name);
                        if !keep_going {
                            break 'scenario;
                        }
                    }
                }
            }
        }
        let (took, runs) = (began.elapsed(), (seeds.end - seeds.start) * links.len() as u64);
        println!("{}: {runs} runs, {steps} steps, {took:.1?}", scenario.name);
    }
    exit_code(failures)
}

fn run_processes(
    engine: &str,
    scenarios: &[&'static Scenario],
    seeds: &Range<u64>,
    keep_going: bool,
    run: impl Fn(&Path, &'static Scenario, u64) -> Result<Duration, String>,
) -> ExitCode {
    let program = std::env::current_exe().expect("this program has a path");
    let mut failures = 0;
    for scenario in scenarios {
        for seed in seeds.clone() {
            match run(&program, scenario, seed) {
                Ok(took) => println!("{}, seed {seed}: ok, {took:.1?}", scenario.name),
                Err(failure) => {
                    failures += 1;
                    println!("{}, seed {seed}: FAILED: {failure}", scenario.name);
                    println!(
                        "  again: outlast-conformance {engine} --scenario {} --seeds {seed}..{}",
                        scenario.name,
                        seed.saturating_add(1)
                    );
                    if !keep_going {
                        break;
                    }
                }
            }
        }
    }
    exit_code(failures)
}

/// The exit status of a run, after a line with the number of failures.
fn exit_code(failures: u64) -> ExitCode {
    if failures == 0 {
        ExitCode::SUCCESS
    } else {
        println!("{failures} failures");
        ExitCode::FAILURE
    }
}

//! The `outlast` command: starts jobs, shows and proves that they outlast deaths, measures them,
//! and checks what a machine lacks for them.
//!
//! | module | content |
//! |---|---|
//! | [`run`] | starts a program as the members of a job, with faults if asked for |
//! | [`demo`] | kills two writers in front of the user and shows that nothing is lost |
//! | [`chaos`], [`sim`] | run random programs under faults and judge the record of their calls |
//! | [`top`] | lists running jobs, and watches one of them |
//! | [`bench`] | measurements against a floor of the same run |
//! | [`plan`] | how likely images are lost, and how often to save them |
//! | [`snapshot`], [`doctor`] | inspects snapshots, checks the machine |
//! | [`tasks`] | runs programs of tasks, kills their workers, and judges the answer |
//! | [`hosts`] | makes several hosts of this machine |
//! | [`mpi`] | compiles the plug-in through which Outlast calls MPI |
//! | [`pages`] | writes man pages and completions of shells |
//! | [`program`], [`loss_acceptor`] | what the members of `chaos` and `sim` do |
//! | [`control`], [`members`] | how a command and the members that it started talk to each other |
//! | [`report`], [`plot`], [`quantity`] | output, pages, figures, and numbers as users type them |
//! | [`terminal`] | what the terminal can show |
//!
//! A command that starts members starts this program again with a hidden subcommand, such as
//! `demo-member`.

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

mod bench;
mod chaos;
mod control;
mod demo;
mod doctor;
mod hosts;
mod loss_acceptor;
mod members;
mod mpi;
mod pages;
mod plan;
mod plot;
mod program;
mod quantity;
mod report;
mod run;
mod sample;
mod sim;
mod snapshot;
mod tasks;
mod terminal;
mod top;

/// Parallel programs that outlast the death of any of their processes.
///
/// Begin with `outlast demo`, and with `outlast doctor` if the demo does not work. `outlast run`
/// starts a program of your own, and `outlast top` watches it.
///
/// Exit status: 0 success, 1 a failure or a violation, 2 wrong usage.
#[derive(Parser)]
#[command(name = "outlast", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Run),
    Demo(demo::Demo),
    Doctor(doctor::Doctor),
    Jobs(top::Jobs),
    Top(top::Top),
    Chaos(chaos::Chaos),
    Sim(sim::Sim),
    Bench(bench::Bench),
    Plan(plan::Plan),
    Snapshot(snapshot::Snapshot),
    Tasks(tasks::TasksCommand),
    Hosts(hosts::HostsCommand),
    Mpi(mpi::MpiCommand),
    #[command(hide = true)]
    ChaosMember(chaos::ChaosMember),
    #[command(hide = true)]
    CourseMember(bench::CourseMember),
    #[command(hide = true)]
    DemoMember(demo::DemoMember),
    #[command(hide = true)]
    DetectionMember(bench::DetectionMember),
    #[command(hide = true)]
    FailureMember(bench::FailureMember),
    #[command(hide = true)]
    ImageBenchMember(bench::ImageBenchMember),
    #[command(hide = true)]
    LoadBenchMember(bench::LoadBenchMember),
    #[command(hide = true)]
    MemoryBenchMember(bench::MemoryBenchMember),
    #[command(hide = true)]
    Pages(pages::Pages),
    #[command(hide = true)]
    PeerServer(bench::PeerServer),
    #[command(hide = true)]
    SampleMember(sample::SampleMember),
    #[command(hide = true)]
    SeatBenchMember(bench::SeatBenchMember),
    #[command(hide = true)]
    SnapshotBenchMember(bench::SnapshotBenchMember),
    #[command(hide = true)]
    StoreBenchMember(bench::StoreBenchMember),
    #[command(hide = true)]
    TasksMember(tasks::TasksMember),
    #[command(hide = true)]
    TxBenchMember(bench::TxBenchMember),
    #[command(hide = true)]
    UlfmMember(bench::UlfmMember),
}

/// Ends the process with status 2 and a message in the form of clap's own usage errors.
fn usage_error(subcommand: &str, message: impl std::fmt::Display) -> ! {
    let mut command = Cli::command();
    command.build();
    let command = command.find_subcommand_mut(subcommand).expect("a subcommand of this program");
    command.error(clap::error::ErrorKind::ValueValidation, message).exit()
}

/// Writes the library's log of failures and repair to standard error, from the level in OUTLAST_LOG
/// on.
fn start_log() -> anyhow::Result<()> {
    let Some(level) = std::env::var_os("OUTLAST_LOG").filter(|level| !level.is_empty()) else {
        return Ok(());
    };
    let level: tracing_subscriber::filter::LevelFilter =
        level.to_str().and_then(|level| level.parse().ok()).ok_or_else(|| {
            anyhow::anyhow!(
                "OUTLAST_LOG is {level:?}; it may be off, error, warn, info, debug or trace"
            )
        })?;
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}

fn main() -> ExitCode {
    if let Err(error) = start_log() {
        eprintln!("outlast: {error:#}");
        return ExitCode::from(2);
    }
    let result = match Cli::parse().command {
        Command::Run(run) => run.execute(),
        Command::Demo(demo) => demo.execute(),
        Command::Doctor(doctor) => doctor.execute(),
        Command::CourseMember(member) => member.execute(),
        Command::DemoMember(member) => member.execute(),
        Command::Jobs(jobs) => jobs.execute(),
        Command::Top(top) => top.execute(),
        Command::Sim(sim) => sim.execute(),
        Command::Chaos(chaos) => chaos.execute(),
        Command::ChaosMember(member) => member.execute(),
        Command::Bench(bench) => bench.execute(),
        Command::Plan(plan) => plan.execute(),
        Command::Snapshot(snapshot) => snapshot.execute(),
        Command::Tasks(tasks) => tasks.execute(),
        Command::TasksMember(member) => member.execute(),
        Command::Hosts(hosts) => hosts.execute(),
        Command::Mpi(mpi) => mpi.execute(),
        Command::DetectionMember(member) => member.execute(),
        Command::FailureMember(member) => member.execute(),
        Command::ImageBenchMember(member) => member.execute(),
        Command::LoadBenchMember(member) => member.execute(),
        Command::MemoryBenchMember(member) => member.execute(),
        Command::Pages(pages) => pages.execute(),
        Command::PeerServer(server) => server.execute(),
        Command::SampleMember(member) => member.execute(),
        Command::SeatBenchMember(member) => member.execute(),
        Command::SnapshotBenchMember(member) => member.execute(),
        Command::StoreBenchMember(member) => member.execute(),
        Command::TxBenchMember(member) => member.execute(),
        Command::UlfmMember(member) => member.execute(),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("outlast: {error:#}");
            ExitCode::from(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The longest line of the help of a command and its visible subcommands, with its length.
    fn longest_help_line(command: &mut clap::Command) -> (usize, String) {
        let help = command.render_long_help().to_string();
        let lines = help.lines().map(|line| (line.chars().count(), line.to_string()));
        let own = lines.max().unwrap_or_default();
        let shown = command.get_subcommands_mut().filter(|subcommand| !subcommand.is_hide_set());
        shown.map(longest_help_line).fold(own, Ord::max)
    }

    #[test]
    fn help_fits_into_100_columns() {
        let mut command = Cli::command();
        command.build();
        let (length, line) = longest_help_line(&mut command);
        assert!(length <= 100, "{length} columns: {line}");
    }

    /// Scripts that use the former name of `--members` keep working.
    #[test]
    fn ranks_is_a_hidden_alias_of_members() {
        for line in [
            "run --ranks 2 true",
            "demo --ranks 3",
            "chaos --ranks 4",
            "sim --ranks 5",
            "bench detection --ranks 4",
            "bench failover --ranks 4",
            "bench get --ranks 4",
            "bench put --ranks 4",
            "bench repair --ranks 4",
            "bench snapshot --ranks 4",
            "bench ulfm --ranks 2,4",
        ] {
            for line in [
                line.to_string(),
                line.replace("--ranks", "--members"),
                line.replace("--ranks", "-n"),
            ] {
                let words = std::iter::once("outlast").chain(line.split(' '));
                assert!(Cli::try_parse_from(words).is_ok(), "{line}");
            }
        }
        let mut command = Cli::command();
        for subcommand in command.get_subcommands_mut() {
            let help = subcommand.render_long_help().to_string();
            assert!(!help.contains("--ranks"), "{help}");
        }
    }
}

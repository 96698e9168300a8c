//! `outlast chaos`: real processes make random calls on a store while members are killed and stopped; then everything
//! that they were told is judged.
//!
//! The members record every call in memory of this command, before it and after it, so that the record outlives them.
//! This command decides who dies and when. It never goes beyond what the store promises (fewer than R deaths since all
//! copies were last complete), unless asked to, by waiting until the members say that nothing is to be repaired.

mod drive;
mod faults;
mod judge;
mod member;
mod observations;

use crate::control::CommandControl;
use crate::hosts;
use crate::members::{describe, left_behind, machine_ns, shared_memory_names, show_log};
use crate::program::{ProgramKind, THREADS_MAX};
use crate::report::write_json;
use crate::usage_error;
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use member::Plan;
use observations::Observations;
use outlast::engine::steps;
use outlast::launch::{Launch, Output};
use outlast::store::REPLICAS_MAX;
use outlast_check::workload::Random;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) use member::ChaosMember;

const EXAMPLES: &str = "\
N processes put, get, put conditionally, delete, add and wait, alone and in transactions, over keys that all share and
keys of their own, in several threads each. K of them are killed with kill -9 and S times one is stopped for a while, at random moments. What
each call was told is recorded where it outlives the caller, and judged at the end: is an acknowledged write lost, was a
read torn or stale, did a call hang, does one order explain all results?

Examples:
  Six processes, three copies, two kills and two stops in ten seconds:
      outlast chaos --kills 2 --stops 2
  The same choices again (the times of real processes still differ from run to run):
      outlast chaos --kills 2 --stops 2 --seed 7
  More deaths than copies, one after the other: it waits for the repair before it goes on killing:
      outlast chaos --members 8 --replicas 3 --kills 7 --seconds 20
  More deaths at once than the store can take. What is lost must be called lost, until a member accepts it:
      outlast chaos --replicas 2 --kills 3 --beyond
  All members stop at a death and recover together:
      outlast chaos --mode global --kills 3
  One copy of each value, and all but one die; survivors read the memory of the dead:
      outlast chaos --members 6 --replicas 1 --kills 5 --salvage
  Steals of tasks, each a transaction over three keys:
      outlast chaos --programs steal
  On the mpi engine, over three hosts made of this machine, one of which loses all its members (root; builds with the
  feature `mpi`):
      outlast chaos --engine mpi --hosts 3 --kill-host
  The same, but one host is cut off from the others while its members go on, and they are killed only at the end:
      outlast chaos --engine mpi --hosts 3 --cut-host --seconds 15
  For programs; standard output gets nothing but the report:
      outlast chaos --json -
  Deaths inside the steps of the protocol, in a build for tests:
      cargo run -p outlast-cli --features faults -- chaos --kills 3 --failpoints

The report: ok, acked (acknowledged writes), lost, torn, stale, hung, nonlinearizable, kills, stops; in milliseconds as
{p50, p99, max}: detection_ms (kill to notice, for each survivor), unavailable_ms (kill to the first put that was
acknowledged after the notice to a key with a copy on the dead), repair_ms (kill to all copies complete), with --cut-host from the
cut on; seed; with
--cut-host cut (acknowledged writes that were begun after the cut: cut_off, others); with
--beyond data_lost (keys that were lost, and called so until that was accepted); with --failpoints deaths_by_step.

Exit status: 0 all is well, 1 a violation or a failure, 2 wrong usage.";

/// How the store recovers from a death.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Mode {
    /// Nobody stops; lost copies are re-created in the background
    Localized,
    /// All members recover together
    Global,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Mode::Localized { "localized" } else { "global" })
    }
}

impl From<Mode> for outlast::store::Mode {
    fn from(mode: Mode) -> outlast::store::Mode {
        match mode {
            Mode::Localized => outlast::store::Mode::Localized,
            Mode::Global => outlast::store::Mode::Global,
        }
    }
}

/// Kill and stop members of a store at random, and judge everything that they were told.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Chaos {
    #[command(flatten)]
    engine_args: hosts::EngineArgs,
    /// How many processes the job has
    #[arg(short = 'n', long, alias = "ranks", value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=128))]
    members: u16,
    /// How many copies each value has
    #[arg(short = 'r', long, value_name = "R", default_value_t = 3)]
    replicas: usize,
    /// What the members do
    #[arg(long, value_name = "PROGRAMS", default_value_t = ProgramKind::Mixed)]
    programs: ProgramKind,
    /// How the store recovers
    #[arg(long, value_name = "MODE", default_value_t = Mode::Localized)]
    mode: Mode,
    /// How many members to kill with SIGKILL
    #[arg(long, value_name = "K", default_value_t = 2)]
    kills: usize,
    /// With --hosts: kill all members of one host at once, and nobody else; no two copies are on one host
    #[arg(long, requires = "hosts", conflicts_with_all = ["kills", "failpoints", "beyond"])]
    kill_host: bool,
    /// With --hosts: cut the link of one host after a third of the time, and kill its members, and nobody else, shortly before
    /// the end; only the others may acknowledge anything after the cut
    #[arg(long, requires = "hosts", conflicts_with_all = ["kills", "kill_host", "failpoints", "beyond"])]
    cut_host: bool,
    /// How many times to stop a member with SIGSTOP, and to let it go on with SIGCONT
    #[arg(long, value_name = "S", default_value_t = 0)]
    stops: usize,
    /// How long the members work, at least; longer if a kill had to wait for a repair
    #[arg(long, value_name = "T", default_value_t = 10.0)]
    seconds: f64,
    /// The seed of all random choices; a new one by default
    #[arg(long, value_name = "X")]
    seed: Option<u64>,
    /// How many threads of each member make calls
    #[arg(long, value_name = "T", default_value_t = 2)]
    threads: u32,
    /// Do not wait for repairs: more members may die than the store promises to survive
    #[arg(long)]
    beyond: bool,
    /// Survivors read the memory of the dead: nothing is lost whoever dies, and nobody waits for repairs before the next kill
    #[arg(long, conflicts_with = "beyond")]
    salvage: bool,
    /// Members die inside the steps of the protocol instead of anywhere (in builds with the feature `faults`)
    #[arg(long)]
    failpoints: bool,
    /// The first victim dies in this step, such as W5, the next ones in those that follow
    #[arg(long, value_name = "STEP", requires = "failpoints", value_parser = step)]
    die_in: Option<usize>,
    /// Write the report as JSON to this file; - is standard output
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Who is not killed: rank 0 of the user's own mpirun is also this command
    #[arg(skip)]
    spared: Option<u32>,
    /// Write the record of all calls to this file, as text
    #[arg(long, value_name = "PATH")]
    history: Option<PathBuf>,
}

/// A step of the protocol by the first word of its name.
fn step(text: &str) -> Result<usize, String> {
    let first_word = |name: &str| name.split(' ').next().unwrap_or_default().to_string();
    let known = || steps::NAMES.iter().map(|name| first_word(name)).collect::<Vec<_>>().join(", ");
    let found = steps::NAMES.iter().position(|name| first_word(name) == text);
    found.ok_or_else(|| format!("there is no step `{text}`; there are {}", known()))
}

/// How long the members may take to open the store, to rest, to repair, and to end.
const PATIENCE: Duration = Duration::from_secs(75);
/// The time limit of the members' calls. A cut is noticed after a third of it.
const TIME_LIMIT_S: u64 = 30;
const CUT_TIME_LIMIT_S: u64 = 15;
/// About how many calls are recorded in a run, so that they can be judged in seconds.
const CALLS_IN_ALL: u64 = 160_000;
const SHARED_KEYS: u32 = 24;
const PRIVATE_KEYS: u32 = 4;

impl Chaos {
    pub(crate) fn execute(mut self) -> anyhow::Result<bool> {
        self.spared = self.engine_args.join_mpirun()?.map(|members| {
            self.members = u16::try_from(members).unwrap_or(u16::MAX);
            0
        });
        self.check();
        let seed = self.seed.unwrap_or_else(|| {
            // Short enough to type, different enough from run to run.
            Random::new(machine_ns() ^ u64::from(std::process::id())).below(1_000_000)
        });
        self.seed = Some(seed);
        if let Some(host) = self.victim_host() {
            self.kills = self.members_of(host).count();
        }
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in
            [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            signal_hook::flag::register(signal, interrupted.clone()).context("catching signals")?;
        }
        let members = usize::from(self.members);
        let control = CommandControl::new(members, self.threads)?;
        let actors = u64::from(self.members) * u64::from(self.threads);
        let plan = Plan {
            replicas: self.replicas,
            threads: self.threads,
            shared_keys: SHARED_KEYS,
            private_keys: PRIVATE_KEYS,
            programs: self.programs,
            mode: self.mode,
            seed,
            beyond: self.beyond,
            salvage: self.salvage,
            time_limit_s: if self.cut_host { CUT_TIME_LIMIT_S } else { TIME_LIMIT_S },
            reads_near: self.cut_host,
            calls_per_second: ((CALLS_IN_ALL as f64 / self.seconds.max(1.0)) as u64 / actors)
                .clamp(20, 4000),
            address: control.address(),
        };
        let before = shared_memory_names();
        let launch = Launch::new(members)
            .program(std::env::current_exe().context("finding this program's own path")?)
            .args(["chaos-member", &serde_json::to_string(&plan)?])
            .segment_limit(256 << 20)
            .die_with_launcher(true)
            .output(Output::Capture);
        let (launch, hosts) = match self.cut_host {
            // Under the one kernel of all these hosts it would know that the cut-off live, and nobody would be buried.
            true => {
                let launch = launch.env("OUTLAST_MPI_WITNESS", "votes");
                self.engine_args.prepare_with(launch, members, &hosts::PATIENT_DAEMONS)?
            }
            false => self.engine_args.prepare(launch, members)?,
        };
        let mut running = launch.start()?;
        let pids = running.pids();
        let mut observed = Observations::default();
        let result = self.run(&mut running, hosts.as_ref(), &control, &mut observed, &interrupted);
        let outcome = match (&result, interrupted.load(Ordering::Acquire)) {
            (Ok(()), false) => running.wait(PATIENCE),
            _ => running.wait(Duration::ZERO),
        };
        let end_ns = machine_ns();
        show_log(&outcome);
        eprint!("{}", outcome.backtraces);
        observed.ended.extend(outcome.members.iter().map(|end| (end.member.0, end.clone())));
        if interrupted.load(Ordering::Acquire) {
            bail!("interrupted; the members were killed, and nothing was judged");
        }
        if let Err(error) = result {
            observed.failures.push(format!("{error:#}"));
        } else {
            for end in outcome.survivors().filter(|end| !end.is_ok()) {
                observed.failures.push(describe(end, &outcome.stderr(end.member)));
            }
            let killed = observed.killed();
            for end in outcome.deaths().filter(|end| !killed.contains(&end.member.0)) {
                let why = if outcome.timed_out {
                    " since it did not end by itself"
                } else {
                    " by nobody here"
                };
                observed
                    .failures
                    .push(format!("{}{why}", describe(end, &outcome.stderr(end.member))));
            }
        }
        // mpirun would wait for its daemon on the host that is cut off: it goes with the hosts.
        let hosts = hosts.filter(|_| !self.cut_host);
        drop(running);
        drop(hosts);
        observed.failures.extend(
            left_behind(&before, &pids).into_iter().map(|left| format!("left behind: {left}")),
        );
        let report = judge::judge(&self, &plan, &control, &observed, end_ns)?;
        judge::print(&report);
        if let Some(path) = &self.json {
            write_json(path, &report)?;
        }
        if !report.ok {
            eprintln!("\nrepeat with: {}", self.command());
        }
        Ok(report.ok)
    }

    /// The host whose members are to be killed. Not the first if it is cut off before: mpirun is there, and the most members.
    fn victim_host(&self) -> Option<u16> {
        let hosts = self.engine_args.hosts.filter(|_| self.kill_host || self.cut_host)?;
        let spared = u16::from(self.cut_host);
        Some(spared + (self.seed.unwrap_or_default() % u64::from((hosts - spared).max(1))) as u16)
    }

    /// The members on a host: mpirun deals them out in turn.
    fn members_of(&self, host: u16) -> impl Iterator<Item = u32> + use<> {
        let hosts = self.engine_args.hosts.unwrap_or(1);
        (0..self.members).filter(move |member| member % hosts == host).map(u32::from)
    }

    /// Ends with status 2 if the arguments contradict each other.
    fn check(&self) {
        self.engine_args.check("chaos");
        let (members, kills, replicas) = (usize::from(self.members), self.kills, self.replicas);
        let usage = |message: String| usage_error("chaos", message);
        if kills > members - 1 {
            usage(format!(
                "{kills} kills in a job of {members} leave no survivor; kill at most {}",
                members - 1
            ));
        }
        if !(1..=REPLICAS_MAX).contains(&replicas) || replicas > members {
            let most = REPLICAS_MAX.min(members);
            usage(format!("{replicas} copies in a job of {members} cannot be; 1 to {most}"));
        }
        if (self.kill_host || self.cut_host)
            && (self.engine_args.hosts < Some(2) || members < 2 || replicas < 2)
        {
            usage(
                "losing a host needs another one, and copies there: --hosts 2 --members 2 --replicas 2 or more"
                    .into(),
            );
        }
        if replicas == 1 && kills > 0 && !self.beyond && !self.salvage {
            usage(
                "with one copy every kill loses data; --replicas 2 keeps two, --salvage reads the memory of the dead, --beyond allows the loss"
                    .into(),
            );
        }
        if self.beyond && self.mode == Mode::Global {
            usage("what is lost is never recovered from in a run with --mode global; --beyond goes with --mode localized".into());
        }
        if self.die_in.is_some_and(|step| !faults::is_in_mode(step, self.mode)) {
            usage("this step comes only when all members recover together; --mode global".into());
        }
        if !(0.1..=86_400.0).contains(&self.seconds) {
            usage(format!("{} seconds; 0.1 to 86400", self.seconds));
        }
        if !(1..=THREADS_MAX).contains(&self.threads) {
            usage(format!("{} threads; 1 to {THREADS_MAX}", self.threads));
        }
        if self.stops > 0 && members == 1 {
            usage("a job of one cannot lose its only member to a stop; --members 2".into());
        }
        if self.failpoints && !steps::AVAILABLE {
            usage(
                "this build has no failpoints; build with `cargo build -p outlast-cli --features faults`"
                    .into(),
            );
        }
    }

    /// The command that makes the same choices again.
    fn command(&self) -> String {
        let place = self.engine_args.arguments();
        let Chaos { members, replicas, programs, mode, kills, stops, seconds, threads, .. } = self;
        let seed = self.seed.unwrap_or_default();
        let beyond = match (self.beyond, self.salvage) {
            (true, _) => " --beyond",
            (_, true) => " --salvage",
            _ => "",
        };
        let (kill_host, kills) = match (self.kill_host, self.cut_host) {
            (true, _) => (" --kill-host", String::new()),
            (_, true) => (" --cut-host", String::new()),
            _ => ("", format!(" --kills {kills}")),
        };
        let failpoints = if self.failpoints { " --failpoints" } else { "" };
        let die_in = self.die_in.map_or(String::new(), |step| {
            format!(" --die-in {}", steps::NAMES[step].split(' ').next().unwrap_or_default())
        });
        format!(
            "outlast chaos {place} --members {members} --replicas {replicas} --programs {programs} --mode {mode}{kills}{kill_host} --stops {stops} --seconds {seconds} --seed {seed} --threads {threads}{beyond}{failpoints}{die_in}"
        )
    }
}

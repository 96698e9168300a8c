//! `outlast chaos`: real processes make random calls on a store while members are killed and
//! stopped; then the results of all calls are judged.
//!
//! A member records every call in memory of this command, before the call and after it, so that the
//! record outlives the member. The command chooses victims and moments. Unless asked to, it does
//! not exceed what the store promises to survive (fewer than R deaths since all replicas were last
//! complete): it waits until the members report that no replica is missing.
//!
//! | module | content |
//! |---|---|
//! | [`drive`] | the course of a run |
//! | [`faults`] | who is killed or stopped, and when |
//! | [`member`] | what a member does |
//! | [`observations`] | what the command learns during the run |
//! | [`judge`] | the report |
//! | [`page`] | the report as a page for a browser |
//! | [`seats`] | programs on seats in place of calls on the store |

mod drive;
mod faults;
mod judge;
mod member;
mod observations;
mod page;
mod seats;

use crate::control::CommandControl;
use crate::hosts;
use crate::members::{describe, left_behind, machine_ns, shared_memory_names, show_log};
use crate::program::{ProgramKind, THREADS_MAX};
use crate::report::file::{ReportFile, report_file};
use crate::report::page::Page;
use crate::report::write_json;
use crate::usage_error;
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use member::Plan;
use observations::Observations;
use outlast::failpoint;
use outlast::launch::{Launch, Output};
use outlast::store::REPLICAS_MAX;
use outlast::store::steps;
use outlast_check::workload::Random;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) use member::ChaosMember;

const EXAMPLES: &str = "\
The members put, get, put conditionally, delete, add and wait, alone and in transactions, over
shared keys and keys of their own, in several threads each. Members are killed with kill -9 and
stopped for a while, at random moments. The result of each call is recorded where it outlives the
caller, and judged at the end: is an acknowledged write lost, was a read torn or stale, did a call
hang, does a single order explain all results?

Examples:
  Six processes, three replicas, two kills and two stops in ten seconds:
      outlast chaos --kills 2 --stops 2
  A chosen seed (the times of real processes still differ from run to run):
      outlast chaos --kills 2 --stops 2 --seed 7
  More deaths than replicas: each kill waits until the replicas are repaired:
      outlast chaos --members 8 --replicas 3 --kills 7 --seconds 20
  More deaths at once than the store can survive: calls must say what is lost:
      outlast chaos --replicas 2 --kills 3 --beyond
  All members stop at a death and recover together:
      outlast chaos --mode global --kills 3
  A single replica, and all members but one die: survivors read the memory of the dead:
      outlast chaos --members 6 --replicas 1 --kills 5 --salvage
  Steals of tasks, each a transaction over three keys:
      outlast chaos --programs steal
  Programs on seats: random ones, a hash table, a transform; the answer is that of an oracle:
      outlast chaos --programs table --kills 4
  With logs, which are experimental: survivors notice nothing of most deaths:
      outlast chaos --programs transform --kills 4 --logged
  The mpi engine, on three hosts made of this machine; a host loses all its members (needs root
  and a build with the feature `mpi`):
      outlast chaos --engine mpi --hosts 3 --kill-host
  A host is cut off from the others while its members go on; they are killed at the end:
      outlast chaos --engine mpi --hosts 3 --cut-host --seconds 15
  The report as JSON; standard output gets nothing else:
      outlast chaos --json -
  A page for a browser, with a lane for each member:
      outlast chaos --kills 2 --stops 2 --report chaos.html
  Deaths inside the steps of the protocol, in a build for tests:
      cargo run -p outlast-cli --features faults -- chaos --kills 3 --failpoints

The report:
  ok                no violation, and as many deaths as asked for
  acked             acknowledged writes
  lost, torn, stale, hung, nonlinearizable
                    violations, each 0 if ok
  kills, stops      members that died, times that a member was stopped
  detection_ms      from a kill to its notice, for each survivor
  unavailable_ms    from a kill to the next acknowledged put on a key of which the dead member held
                    a replica
  repair_ms         from a kill until no replica is missing
  seed              the seed of the run
  data_lost         with --beyond: keys that were lost, and called lost until that was accepted
  cut               with --cut-host: acknowledged writes that began after the cut
  deaths_by_step    with --failpoints: how many members died in each step
Times are {p50, p99, max} or null. With --cut-host they count from the cut.
With programs on seats, in place of what is counted of calls:
  programs          programs that ended with the answer of the oracle
  wrong             members that failed, gave a wrong answer or did not end, 0 if ok
  whole_ms          from a kill until no piece and no replica is missing

Exit status: 0 no violation, 1 a violation or a failure, 2 wrong usage.";

/// How the store recovers from a death.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Mode {
    /// Members go on; lost replicas are re-created in the background
    Localized,
    /// All members stop and recover together
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

/// Kill and stop members of a store at random, and judge the results of all calls
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Chaos {
    /// How many processes the job has
    #[arg(short = 'n', long, alias = "ranks", value_name = "N", default_value_t = 6)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=128))]
    members: u16,
    /// How many replicas each value has
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
    #[command(flatten)]
    engine_args: hosts::EngineArgs,
    /// With --hosts: kill all members of a host at once, and no others
    #[arg(long, requires = "hosts", conflicts_with_all = ["kills", "failpoints", "beyond"])]
    kill_host: bool,
    /// With --hosts: cut the link of a host after a third of the time, and kill its members shortly
    /// before the end. After the cut only the other hosts may acknowledge writes
    #[arg(long, requires = "hosts")]
    #[arg(conflicts_with_all = ["kills", "kill_host", "failpoints", "beyond"])]
    cut_host: bool,
    /// How many times to stop a member with SIGSTOP for a while
    #[arg(long, value_name = "S", default_value_t = 0)]
    stops: usize,
    /// How long the members work, at least; longer if a kill has to wait for a repair
    #[arg(long, value_name = "T", default_value_t = 10.0)]
    seconds: f64,
    /// The seed of all random choices [default: a new seed]
    #[arg(long, value_name = "X")]
    seed: Option<u64>,
    /// How many threads of each member make calls
    #[arg(long, value_name = "T", default_value_t = 2)]
    threads: u32,
    /// Do not wait for repairs: more members may die than the store promises to survive
    #[arg(long)]
    beyond: bool,
    /// Survivors read the memory of the dead: nothing is lost, and kills do not wait for repairs
    #[arg(long, conflicts_with = "beyond")]
    salvage: bool,
    /// Members die inside the steps of the protocol (in builds with the feature `faults`)
    #[arg(long)]
    failpoints: bool,
    /// With programs on seats: log accesses (experimental)
    #[arg(long)]
    logged: bool,
    /// The first victim dies in this step, for example write.publish; each next victim in the next
    /// step
    #[arg(long, value_name = "STEP", requires = "failpoints", value_parser = step)]
    die_in: Option<usize>,
    /// Write the report as JSON to this file; - is standard output
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Write a page for a browser to this file
    #[arg(long, value_name = "FILE", value_parser = report_file)]
    report: Option<ReportFile>,
    /// The member that is not killed: rank 0 of the user's own mpirun is also this command
    #[arg(skip)]
    spared: Option<u32>,
    /// Write the history of all calls to this file, as JSON (docs/history-format.md)
    #[arg(long, value_name = "PATH")]
    history: Option<PathBuf>,
}

/// Finds a step of a protocol by its name, or by the last part of its name if a single step has it.
fn step(text: &str) -> Result<usize, String> {
    steps::find(text).ok_or_else(|| {
        let has_last_part = |name: &&str| name.ends_with(&format!(".{text}"));
        let problem = match steps::NAMES.iter().filter(|name| has_last_part(name)).count() {
            0 => format!("there is no step `{text}`"),
            _ => format!("several steps end with `{text}`"),
        };
        format!("{problem}; there are {}", steps::NAMES.join(", "))
    })
}

/// How long the members may take to open the store, to stop, to repair, and to end.
const PATIENCE: Duration = Duration::from_secs(75);
/// The time limit of the members' calls. A cut is noticed after a third of it.
const TIME_LIMIT_S: u64 = 30;
const CUT_TIME_LIMIT_S: u64 = 15;
/// About how many calls a run records: few enough to be judged in seconds.
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
            // Short enough to type, different from run to run.
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
            domains: self.domains(),
            logged: self.logged,
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
            // The made hosts share a kernel. If the engine asked that kernel, it would learn that
            // the members of the cut-off host live, and would declare none of them dead.
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
                    " without a kill of this run"
                };
                observed
                    .failures
                    .push(format!("{}{why}", describe(end, &outcome.stderr(end.member))));
            }
        }
        // mpirun would wait for its daemon on the cut-off host, so the hosts are taken down first,
        // and the daemon with them.
        let hosts = hosts.filter(|_| !self.cut_host);
        drop(running);
        drop(hosts);
        observed.failures.extend(
            left_behind(&before, &pids).into_iter().map(|left| format!("left behind: {left}")),
        );
        if self.programs.is_of_seats() {
            let report = seats::judge(&self, &observed);
            seats::print(&report);
            return self.finish(&report, report.ok, || seats::page(&self, &report));
        }
        let report = judge::judge(&self, &plan, &control, &observed, end_ns)?;
        judge::print(&report);
        self.finish(&report, report.ok, || page::page(&self, &report))
    }

    /// Writes a report where the user wants it; returns whether the run was right.
    fn finish(
        &self,
        report: &impl Serialize,
        is_ok: bool,
        page: impl FnOnce() -> Page,
    ) -> anyhow::Result<bool> {
        if let Some(path) = &self.json {
            write_json(path, report)?;
        }
        if let Some(file) = &self.report {
            file.write(&page())?;
            eprintln!("report: {}", file.path().display());
        }
        if !is_ok {
            eprintln!("\nrepeat with: {}", self.command());
        }
        Ok(is_ok)
    }

    /// How many failure domains the members are in.
    fn domains(&self) -> usize {
        usize::from(self.engine_args.hosts.unwrap_or(self.members).min(self.members))
    }

    /// How many members may die since all replicas, and all pieces of seats, were last complete.
    fn survivable(&self) -> usize {
        match self.programs.is_of_seats() {
            true => seats::shape(self.domains(), self.replicas).1,
            false => self.replicas - 1,
        }
    }

    /// The host whose members are killed. A cut spares the first host, which has mpirun and the
    /// most members.
    fn victim_host(&self) -> Option<u16> {
        let hosts = self.engine_args.hosts.filter(|_| self.kill_host || self.cut_host)?;
        let spared = u16::from(self.cut_host);
        Some(spared + (self.seed.unwrap_or_default() % u64::from((hosts - spared).max(1))) as u16)
    }

    /// The members on a host: mpirun distributes them over the hosts in turn.
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
            usage(format!("{replicas} replicas in a job of {members}; 1 to {most}"));
        }
        if (self.kill_host || self.cut_host)
            && (self.engine_args.hosts < Some(2) || members < 2 || replicas < 2)
        {
            usage(
                "losing a host needs a second host with replicas: \
                 at least --hosts 2 --members 2 --replicas 2"
                    .into(),
            );
        }
        if replicas == 1 && kills > 0 && !self.beyond && !self.salvage {
            usage(
                "with one replica every kill loses data; --replicas 2 keeps a second replica, \
                 --salvage reads the memory of the dead, --beyond allows the loss"
                    .into(),
            );
        }
        if self.beyond && self.mode == Mode::Global {
            usage(
                "a global recovery cannot restore lost data; --beyond goes with --mode localized"
                    .into(),
            );
        }
        if self.programs.is_of_seats() {
            let refused = [
                ("--beyond", self.beyond),
                ("--salvage", self.salvage),
                ("--mode global", self.mode == Mode::Global),
                ("--cut-host", self.cut_host),
                ("--failpoints", self.failpoints),
                ("--history", self.history.is_some()),
            ];
            if let Some((option, _)) = refused.iter().find(|(_, is_given)| *is_given) {
                usage(format!("{option} is not for programs on seats"));
            }
            if members < 2 || replicas < 2 {
                usage("seats need --members 2 --replicas 2 at least".into());
            }
        } else if self.logged {
            usage("--logged is for programs on seats: --programs seats, table or transform".into());
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
            usage("the only member cannot be stopped; --members 2".into());
        }
        if self.failpoints && !failpoint::AVAILABLE {
            usage(
                "this build has no failpoints; \
                 build with `cargo build -p outlast-cli --features faults`"
                    .into(),
            );
        }
    }

    /// The command that makes these choices again.
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
        let logged = if self.logged { " --logged" } else { "" };
        let failpoints = if self.failpoints { " --failpoints" } else { "" };
        let die_in =
            self.die_in.map_or(String::new(), |step| format!(" --die-in {}", steps::NAMES[step]));
        format!(
            "outlast chaos {place} --members {members} --replicas {replicas} --programs {programs} \
             --mode {mode}{kills}{kill_host} --stops {stops} --seconds {seconds} --seed {seed} \
             --threads {threads}{beyond}{logged}{failpoints}{die_in}"
        )
    }
}

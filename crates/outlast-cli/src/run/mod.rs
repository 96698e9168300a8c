//! `outlast run`: starts a program as the members of a job, with faults if asked for, and reports
//! how the members ended.

mod faults;
mod signals;

use crate::hosts;
use crate::quantity::{self, seconds};
use crate::usage_error;
use anyhow::Context;
use clap::Args;
use faults::{Fault, FaultAction, SplitMix, carry_out, kill, random_kills, stop};
use outlast::launch::{Event, Launch, LaunchError, MemberEnd, Output};
use outlast::{JoinError, MemberId};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  Four processes as one job:
      outlast run -n 4 ./simulation --steps 100
  The same job, whose member 2 is killed after one and a half seconds:
      outlast run -n 4 --kill 2@1.5s ./simulation --steps 100
  Two random members die within three seconds; the seed repeats the choice:
      outlast run -n 8 --kill-random 2 --seed 7 --within 3s --prefix ./simulation
  A member that is stopped for a while is not dead:
      outlast run -n 4 --stop 1@500ms:2s ./simulation
  A spare takes the place of the first member that dies:
      outlast run -n 4 --spares 1 --kill 0@1s ./simulation

Times count from the start of the processes. A member that a signal ends has died, and the job
goes on without it. A member that exits with a status other than 0 has failed, and `outlast run`
exits with status 1.

SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the members. A second
SIGINT, SIGTERM, SIGHUP or SIGQUIT kills them. If the launcher itself is killed, the members go on
and end by themselves, unless --die-with-launcher is given.

Exit status: 0 all survivors finished well, 1 a survivor failed or no member survived, 2 wrong
usage.";

/// Start N processes of a program as the members of a job
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Run {
    /// How many members the job has
    #[arg(short = 'n', long, alias = "ranks", value_name = "N")]
    members: usize,
    /// How many further members stand by, with no data, until a member dies
    #[arg(long, value_name = "K", default_value_t = 0)]
    spares: usize,
    /// Kill this member with SIGKILL at this time, for example 2@1.5s; repeatable
    #[arg(long, value_name = "MEMBER@TIME", value_parser = kill)]
    kill: Vec<(MemberId, Duration)>,
    /// Kill this many members, chosen at random, at random times
    #[arg(long, value_name = "K", conflicts_with = "kill")]
    kill_random: Option<usize>,
    /// The seed of the random choice, to repeat a run [default: a new seed]
    #[arg(long, value_name = "X", requires = "kill_random")]
    seed: Option<u64>,
    /// The time within which the random kills happen
    #[arg(long, value_name = "TIME", requires = "kill_random", default_value = "1s")]
    #[arg(value_parser = quantity::time)]
    within: Duration,
    /// Stop this member with SIGSTOP at this time for this long, for example 1@500ms:2s; repeatable
    #[arg(long, value_name = "MEMBER@TIME:FOR", value_parser = stop)]
    stop: Vec<(MemberId, Duration, Duration)>,
    /// Exit with status 1 if any member died, even if the survivors finished well
    #[arg(long)]
    fail_on_death: bool,
    /// Kill the members when the launcher dies
    #[arg(long)]
    die_with_launcher: bool,
    /// Put the member's number in front of each line of its output
    #[arg(long)]
    prefix: bool,
    /// The most memory of each member's segment, for example 512M [default: an equal share of half
    /// of the available memory]
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes)]
    memory: Option<u64>,
    /// Kill the members that still run after this time, and exit with status 1
    #[arg(long, value_name = "TIME", value_parser = quantity::time)]
    time_limit: Option<Duration>,
    /// The engine below the job: shm, or mpi in builds with the feature `mpi`
    #[arg(long, value_name = "NAME", value_parser = quantity::engine, default_value = "shm")]
    engine: quantity::EngineName,
    /// With the mpi engine: a number of hosts to make of this machine (needs root), or a file that
    /// lists hosts, which mpirun reaches by ssh. The job survives the loss of any host but the
    /// launcher's
    #[arg(long, value_name = "H|FILE", value_parser = hosts::hosts_wanted)]
    hosts: Option<hosts::HostsWanted>,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM ARGS"
    )]
    program: Vec<OsString>,
}

impl Run {
    pub(crate) fn execute(mut self) -> anyhow::Result<bool> {
        self.check();
        self.choose_random_kills();
        let faults = self.faults();
        let (program, arguments) = self.program.split_first().expect("clap requires a program");
        let mut launch = Launch::new(self.members)
            .spares(self.spares)
            .program(program)
            .args(arguments)
            .die_with_launcher(self.die_with_launcher)
            .output(if self.prefix { Output::Prefix } else { Output::Inherit })
            .stdin_to_first(true);
        if let Some(bytes) = self.memory {
            launch = launch.segment_limit(bytes);
        }
        // Before the first process starts: a signal that arrives in between is not lost.
        let signals =
            SignalsInfo::<WithOrigin>::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2])
                .context("catching signals")?;
        let total = self.members + self.spares;
        let (launch, hosts) = match &self.hosts {
            Some(hosts::HostsWanted::Listed(file)) => {
                (hosts::on_listed(launch, total, file)?, None)
            }
            _ => self.engine_args().prepare(launch, total)?,
        };
        let running = match launch.start() {
            Ok(running) => running,
            Err(
                error @ (LaunchError::Members { .. }
                | LaunchError::Program { .. }
                | LaunchError::Memory(JoinError::Invalid { .. })),
            ) => usage_error("run", error),
            Err(error @ LaunchError::Memory(JoinError::NoRoom { .. })) => {
                return Err(error)
                    .context("cannot start the job (--memory sets the segment limit)");
            }
            Err(error) => return Err(error).context("cannot start the job"),
        };
        signals::forward(signals, running.control())?;
        let is_ok = self.watch(running, faults);
        drop(hosts);
        Ok(is_ok)
    }

    /// The engine, and how many hosts are to be made.
    fn engine_args(&self) -> hosts::EngineArgs {
        let hosts = self.hosts.as_ref().map(|hosts| match hosts {
            hosts::HostsWanted::Made(count) => *count,
            hosts::HostsWanted::Listed(_) => 1,
        });
        hosts::EngineArgs { engine: self.engine, hosts }
    }

    /// Ends with status 2 if the arguments contradict each other.
    fn check(&self) {
        self.engine_args().check("run");
        let total = self.members.saturating_add(self.spares);
        if self.members == 0 || total > outlast::engine::MEMBERS_MAX {
            let error = LaunchError::Members { members: self.members, spares: self.spares };
            usage_error("run", error);
        }
        let kills = self.kill_random.unwrap_or(self.kill.len());
        if kills >= total {
            usage_error(
                "run",
                format!(
                    "{kills} kills in a job of {total} leave no survivor; kill at most {}",
                    total - 1
                ),
            );
        }
        let named = self.kill.iter().map(|kill| kill.0).chain(self.stop.iter().map(|stop| stop.0));
        for member in named {
            if member.index() >= total {
                usage_error(
                    "run",
                    format!(
                        "there is no {member} in a job of {total}; its members are 0 to {}",
                        total - 1
                    ),
                );
            }
        }
        for (index, (member, _)) in self.kill.iter().enumerate() {
            if self.kill[..index].iter().any(|(other, _)| other == member) {
                usage_error("run", format!("{member} is to be killed twice"));
            }
        }
    }

    /// Turns `--kill-random` into kills, and prints them with the options that repeat them.
    fn choose_random_kills(&mut self) {
        let Some(count) = self.kill_random else { return };
        let seed = self.seed.unwrap_or_else(|| {
            let now = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap_or_default();
            // Short enough to type, different from run to run.
            SplitMix(now.as_nanos() as u64 ^ u64::from(std::process::id())).next() % 1_000_000
        });
        self.kill = random_kills(seed, self.members + self.spares, count, self.within);
        let plan: Vec<String> =
            self.kill.iter().map(|(member, at)| format!("{member} at {}", seconds(*at))).collect();
        let plan = if plan.is_empty() { "no member".to_string() } else { plan.join(", ") };
        eprintln!(
            "outlast: seed {seed} kills {plan}; \
             repeat with --kill-random {count} --seed {seed} --within {:?}",
            self.within
        );
    }

    /// All faults, ordered by time.
    fn faults(&self) -> VecDeque<Fault> {
        let kills =
            self.kill.iter().map(|&(member, at)| Fault { at, member, action: FaultAction::Kill });
        let stops = self.stop.iter().flat_map(|&(member, at, length)| {
            let resume =
                Fault { at: at.saturating_add(length), member, action: FaultAction::Resume };
            [Fault { at, member, action: FaultAction::Stop(length) }, resume]
        });
        let mut faults: Vec<Fault> = kills.chain(stops).collect();
        faults.sort_by_key(|fault| fault.at);
        faults.into()
    }

    /// Carries out the faults and reports the deaths until the job ends. Returns whether all is
    /// well.
    fn watch(&self, mut running: outlast::launch::Running, mut faults: VecDeque<Fault>) -> bool {
        let total = self.members + self.spares;
        let mut ended: Vec<MemberEnd> = Vec::new();
        while ended.len() < total {
            let now = running.elapsed();
            if faults.front().is_some_and(|fault| fault.at <= now) {
                let fault = faults.pop_front().expect("just seen");
                carry_out(&fault, &running);
                continue;
            }
            if self.time_limit.is_some_and(|limit| limit <= now) {
                break;
            }
            let next =
                [faults.front().map(|fault| fault.at), self.time_limit].into_iter().flatten().min();
            let limit = next.map_or(Duration::MAX, |next| next.saturating_sub(now));
            if let Some(Event::Ended(end)) = running.next_event(limit) {
                ended.push(end);
                report(&ended, total);
            }
        }
        let outcome = running.wait(Duration::ZERO);
        if outcome.timed_out {
            let killed: Vec<String> = outcome
                .members
                .iter()
                .filter(|end| !ended.iter().any(|seen| seen.member == end.member))
                .map(|end| end.member.to_string())
                .collect();
            let limit = seconds(self.time_limit.unwrap_or_default());
            eprintln!("outlast: the time limit of {limit} is over; killed {}", killed.join(", "));
        }
        for member in &outcome.left_running {
            eprintln!(
                "outlast: {member} did not end, not even by SIGKILL; the kernel is stuck in it"
            );
        }
        let deaths = outcome.deaths().count();
        let well = outcome.survivors().filter(|end| end.is_ok()).count();
        let is_ok = outcome.survivors_ok() && !(self.fail_on_death && deaths > 0);
        if deaths > 0 || !is_ok {
            let badly = outcome.survivors().count() - well;
            let badly = if badly > 0 { format!(", {badly} ended badly") } else { String::new() };
            eprintln!("outlast: {well} of {total} finished well, {deaths} died{badly}");
        }
        is_ok
    }
}

/// Prints a line for the last of `ended`, unless that member finished well.
fn report(ended: &[MemberEnd], total: usize) {
    let Some(end) = ended.last().filter(|end| !end.is_ok()) else { return };
    let running = total - ended.len();
    let finished = ended.iter().filter(|end| end.is_ok()).count();
    let rest = match (running, finished) {
        (0, 0) => "no member is left".to_string(),
        (0, _) => format!("{finished} of {total} had finished"),
        (_, 0) => format!("{running} of {total} go on"),
        _ => format!("{running} of {total} go on, {finished} had finished"),
    };
    eprintln!("outlast: {end}; {rest}");
}

//! `outlast bench seat`: seats against windows, and logged seats against seats without logs.
//!
//! | module | what is measured |
//! |---|---|
//! | [`accesses`] | puts and gets, and epochs of them that end with a barrier |
//! | [`kills`] | from a kill until all seats go on |
//! | [`stencil`] | a whole program with saves at Daly's interval |
//! | [`simulated`] | the requests of a logged put, with more and more seats |

mod accesses;
mod kills;
mod simulated;
mod stencil;

use super::samples::{Ratio, Samples, rows, told};
use super::{BenchArgs, Origin, Row, expect_ok, publish_with};
use crate::hosts::EngineArgs;
use crate::quantity::{self, EngineName};
use crate::report::say;
use anyhow::Context;
use clap::Args;
use outlast::launch::{Launch, Output, Running};
use outlast::protect::{Interval, Protect};
use outlast::store::{Options, Store};
use outlast::{JoinOptions, MemberId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const EXAMPLES: &str = "\
A member puts into and gets from the memory of another one, through a seat and through a window; the
floor is memcpy of as many bytes into the same memory. Then a seat makes many puts, or gets, and a
barrier, without logs and with them, in turn: the time of an access is that of the whole epoch
without that of a barrier alone. Then members are killed with kill -9, and the time is taken until
all seats are through a barrier again. Then a stencil runs on windows, on seats that are saved at
Daly's interval for a death an hour, and on seats with logs. The ratio is the time over that of the
first contender. Logged mode is experimental.

Examples:
  All measurements on this machine:
      outlast bench seat
  Accesses between two hosts that are made of this machine; needs root and Open MPI:
      sudo outlast bench seat --engine mpi --hosts 2 --members 2
  Kills alone, of seats with 256 MiB:
      outlast bench seat --seconds 0 --program 0 --simulated 0 --kills 20 --bytes 256M";

/// Measure seats against windows, with and without logs, kills, and a whole program
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct SeatBench {
    /// How many processes a job has; a further one stands by where members are killed
    #[arg(short = 'n', long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(2..=64))]
    members: u16,
    /// The sizes of puts and gets, separated by commas
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes, value_delimiter = ',')]
    #[arg(default_value = "64,1K,64K")]
    sizes: Vec<u64>,
    /// How long each size is measured; 0 leaves the accesses out
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
    /// How many kills to measure in each mode, each in a job of its own [default: 5; over hosts 0]
    #[arg(long, value_name = "K")]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=1000))]
    kills: Option<u16>,
    /// How many bytes a seat has where members are killed
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes, default_value = "64M")]
    bytes: u64,
    /// How long the program of each contender takes, in each of three rounds; 0 leaves it out
    /// [default: 10; over hosts 0]
    #[arg(long, value_name = "S")]
    program: Option<f64>,
    /// How many seats the simulated jobs have, separated by commas; 0 skips them
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "8,64,256")]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=4096))]
    simulated: Vec<u16>,
    #[command(flatten)]
    engine_args: EngineArgs,
    #[command(flatten)]
    pub(super) args: BenchArgs,
}

/// A member of the benchmark; started by it
#[derive(Args)]
pub(crate) struct SeatBenchMember {
    plan: String,
}

/// What the members of a job do.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    part: Part,
    /// Members are on several hosts: an access takes long enough to be measured alone.
    is_far: bool,
    sizes: Vec<u64>,
    seconds: f64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Part {
    Accesses,
    Epochs,
    Kill { is_logged: bool },
    Stencil,
}

/// How long a job may take, beside what is measured.
const LIMIT: Duration = Duration::from_secs(240);
/// The budget of the logs of a seat.
const LOGS: u64 = 16 << 20;
/// Points save at the first of them, and when a seat asks for it.
const ASKED: Interval = Interval::Time(Duration::from_secs(1_000_000));

/// Options that all parts share: as many pieces as there are members, 4 at most.
fn options(members: usize, bytes: u64) -> Protect {
    Protect::new(bytes).set(members.min(4)).lose(1).room(0)
}

impl SeatBench {
    pub(super) fn execute(self) -> anyhow::Result<bool> {
        self.check();
        let json = self.args.json.as_deref();
        let is_far = self.engine_args.hosts.is_some_and(|hosts| hosts > 1);
        let members = usize::from(self.members);
        let engine = self.engine_args.engine.to_string();
        let common = Row { engine: engine.clone(), members, ..Row::default() };
        let (mut found, mut remarks) = (Vec::new(), Vec::new());
        let plan = |part: Part| Plan {
            part,
            is_far,
            sizes: self.sizes.clone(),
            seconds: self.seconds,
            bytes: self.bytes,
        };
        if self.seconds > 0.0 {
            for (part, what) in [(Part::Accesses, "accesses"), (Part::Epochs, "epochs")] {
                say(json, format_args!("{what} of seats"));
                let samples = self.measure(&plan(part), members)?;
                found.extend(rows(&samples, &common, Ratio::Time));
            }
        }
        let kills = self.kills.unwrap_or(if is_far { 0 } else { 5 });
        found.extend(self.kill(kills, &common, &plan)?);
        let program = self.program.unwrap_or(if is_far { 0.0 } else { 10.0 });
        if program > 0.0 {
            say(json, "a stencil on windows and on seats");
            let plan = Plan { seconds: program, ..plan(Part::Stencil) };
            let cores = std::thread::available_parallelism().map_or(2, usize::from);
            let members = members.min(cores).max(2);
            let samples = self.measure(&plan, members)?;
            let common = Row { members, ..common.clone() };
            found.extend(rows(&samples, &common, Ratio::Time));
            remarks.push(stencil::REMARK.to_string());
        }
        for &seats in self.simulated.iter().filter(|&&seats| seats > 0) {
            let requests = simulated::requests_of_a_logged_put(usize::from(seats));
            say(json, format_args!("{seats} simulated seats: {requests:.2} requests for a put"));
            found.push(Row {
                what: "seats, requests of a logged put".into(),
                engine: "sim".into(),
                members: usize::from(seats),
                size: Some(simulated::SIZE as u64),
                contender: format!("{seats} simulated seats"),
                messages: Some(requests),
                ..Row::default()
            });
        }
        publish_with(&self.args, found, &Origin { remarks, ..Origin::default() })?;
        Ok(true)
    }

    /// Ends with status 2 if the arguments cannot be used.
    fn check(&self) {
        self.engine_args.check("bench");
        let usage = |message: String| crate::usage_error("bench", message);
        let is_time = |seconds: f64| (0.0..=600.0).contains(&seconds);
        if !is_time(self.seconds) || !self.program.is_none_or(is_time) {
            usage("a measurement takes 0 to 600 seconds".into());
        }
        if let Some(size) = self.sizes.iter().find(|size| !(1..=accesses::RANGE).contains(*size)) {
            usage(format!("{size} bytes; an access has 1 to {}", accesses::RANGE));
        }
        if !(4096..=1 << 30).contains(&self.bytes) {
            usage(format!("seats of {} bytes; 4096 to 1G", self.bytes));
        }
    }

    /// Prepares a job for a plan.
    fn launch(&self, plan: &Plan, members: usize) -> anyhow::Result<Launch> {
        Ok(Launch::new(members)
            .program(std::env::current_exe().context("finding this program's own path")?)
            .args(["seat-bench-member", &serde_json::to_string(plan)?])
            .segment_limit((2 << 30) + 16 * plan.bytes)
            .die_with_launcher(true)
            .output(Output::Capture))
    }

    /// Runs a job to its end; returns the samples of its first member, and prints what else it has
    /// said.
    fn measure(&self, plan: &Plan, members: usize) -> anyhow::Result<Vec<Samples>> {
        let (launch, _hosts) = self.engine_args.prepare(self.launch(plan, members)?, members)?;
        let mut running = launch.start()?;
        // Each size of each kind of access and each round takes so long.
        let parts = 16.0 * (1.0 + plan.sizes.len() as f64);
        let outcome = running.wait(LIMIT + Duration::from_secs_f64(parts * plan.seconds));
        expect_ok(&outcome)?;
        let output = running.output(MemberId(0)).stdout;
        for line in String::from_utf8_lossy(&output).lines().filter(|line| !line.starts_with('{')) {
            say(self.args.json.as_deref(), line);
        }
        Ok(told(&running, MemberId(0)))
    }

    /// The rows of kills, in both modes.
    fn kill(
        &self,
        kills: u16,
        common: &Row,
        plan: &impl Fn(Part) -> Plan,
    ) -> anyhow::Result<Vec<Row>> {
        let json = self.args.json.as_deref();
        let mut found = Vec::new();
        if kills > 0 && self.engine_args.engine == EngineName::Mpi {
            crate::usage_error("bench", "kills are measured with --engine shm; or say --kills 0");
        }
        let mut all: [Samples; 2] = ["rollback of all seats", "recovery of a logged seat"]
            .map(|contender| Samples::new("kill -9 until all seats go on", self.bytes, contender));
        for kill in 1..=kills {
            for (samples, is_logged) in all.iter_mut().zip([false, true]) {
                let plan = plan(Part::Kill { is_logged });
                let start = |members: usize| -> anyhow::Result<Running> {
                    Ok(self.launch(&plan, members)?.spares(1).start()?)
                };
                let members = usize::from(self.members);
                samples.tenths.push(kills::kill_one(members, start)? * 10);
            }
            say(json, format_args!("{kill} of {kills} kills in each mode"));
        }
        if kills > 0 {
            found.extend(rows(&all, common, Ratio::Time));
        }
        Ok(found)
    }
}

impl SeatBenchMember {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let plan: Plan = serde_json::from_str(&self.plan).context("the plan of the run")?;
        let job = JoinOptions::new().time_limit(LIMIT).join()?;
        let store = Store::open(&job, Options::new().replicas(2).expected_keys(1024))?;
        match plan.part {
            Part::Accesses => accesses::accesses(&job, &store, &plan)?,
            Part::Epochs => accesses::epochs(&job, &store, &plan)?,
            Part::Kill { is_logged } => kills::play(&job, &store, plan.bytes, is_logged)?,
            Part::Stencil => stencil::play(&job, &store, plan.seconds)?,
        }
        store.close()?;
        job.leave()?;
        Ok(true)
    }
}

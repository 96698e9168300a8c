//! `outlast bench failover` and `outlast bench repair`: what a kill -9 costs the survivors.

use super::{BenchArgs, Row, expect_ok, publish};
use crate::members::{machine_ns, say_line as tell};
use crate::quantity;
use crate::report::say;
use anyhow::{Context, ensure};
use clap::Args;
use outlast::launch::{Launch, Output, Running};
use outlast::store::{Options, Store};
use outlast::{Epoch, Job, JoinOptions, MemberId};
use std::time::{Duration, Instant};

const FAILOVER_EXAMPLES: &str = "\
A member writes, in turn, keys that have a replica on the member that is killed. Reported are the
first put that began after the kill, the first put after the writer's view had the death, and the
longest time without an acknowledged put. With more runnable processes than cores the times
include waits for the scheduler.

Examples:
  Thirty kills of victims with 1 GiB in use:
      outlast bench failover --kills 30 --map 1G";

const REPAIR_EXAMPLES: &str = "\
A store is filled, a member is killed, and the time from the kill until no replica is missing is
taken. The floor is memcpy of the same bytes, value by value, into new shared memory, which has to
be allocated as well.

Examples:
  256 MiB of values, three replicas in four processes:
      outlast bench repair --total 256M";

/// Measure how long a kill -9 delays the writer of affected keys
#[derive(Args)]
#[command(after_help = FAILOVER_EXAMPLES)]
pub(super) struct FailoverBench {
    /// How many processes a job has
    #[arg(short = 'n', long, alias = "ranks", value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(3..=64))]
    members: u16,
    /// How many replicas each value has
    #[arg(long, value_name = "R", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u8).range(2..=8))]
    replicas: u8,
    /// How many kills to measure, each in a job of its own
    #[arg(long, value_name = "K", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    kills: u16,
    /// How much memory each victim has in use
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes, default_value = "64M")]
    map: u64,
    #[command(flatten)]
    pub(super) args: BenchArgs,
}

/// Measure how fast lost replicas are repaired
#[derive(Args)]
#[command(after_help = REPAIR_EXAMPLES)]
pub(super) struct RepairBench {
    /// How many processes a job has
    #[arg(short = 'n', long, alias = "ranks", value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(3..=64))]
    members: u16,
    /// How many replicas each value has
    #[arg(long, value_name = "R", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u8).range(2..=8))]
    replicas: u8,
    /// The size of the values
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes, default_value = "64K")]
    size: u64,
    /// The size of all values together, before replication
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes, default_value = "128M")]
    total: u64,
    /// How many kills to measure, each in a job of its own
    #[arg(long, value_name = "K", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=100))]
    kills: u16,
    #[command(flatten)]
    pub(super) args: BenchArgs,
}

/// A member of the benchmark; started by it
#[derive(Args)]
pub(crate) struct FailureMember {
    #[arg(long)]
    what: String,
    #[arg(long)]
    replicas: usize,
    #[arg(long)]
    size: u64,
    #[arg(long)]
    total: u64,
}

/// How long the benchmark waits for a member.
const LIMIT: Duration = Duration::from_secs(60);
/// Puts that follow each other more closely than this are not reported: there are too many.
const GRAIN_NS: u64 = 20_000;
/// How long the writer goes on after it knows of the death.
const AFTERWARDS: Duration = Duration::from_millis(300);

/// Starts a job, waits until it is ready, and kills its last member. Returns the time of the kill
/// and what member 0 reported.
fn kill_one(
    what: &str,
    members: usize,
    replicas: u8,
    size: u64,
    total: u64,
) -> anyhow::Result<(u64, Vec<String>)> {
    let mut running = Launch::new(members)
        .program(std::env::current_exe()?)
        .args(["failure-member", "--what", what, "--replicas", &replicas.to_string()])
        .args(["--size", &size.to_string(), "--total", &total.to_string()])
        .die_with_launcher(true)
        .output(Output::Capture)
        .start()?;
    for member in 0..members {
        wait_for_line(&running, MemberId(member as u32), "ready")?;
    }
    std::thread::sleep(Duration::from_millis(50));
    let killed_ns = machine_ns();
    running.kill(MemberId(members as u32 - 1))?;
    wait_for_line(&running, MemberId(0), "done")?;
    let output = running.output(MemberId(0));
    let outcome = running.wait(LIMIT);
    expect_ok(&outcome)?;
    Ok((killed_ns, String::from_utf8_lossy(&output.stdout).lines().map(String::from).collect()))
}

pub(super) fn wait_for_line(running: &Running, member: MemberId, line: &str) -> anyhow::Result<()> {
    let end = Instant::now() + LIMIT;
    loop {
        let output = running.output(member);
        if String::from_utf8_lossy(&output.stdout).lines().any(|found| found == line) {
            return Ok(());
        }
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(Instant::now() < end, "{member} did not say `{line}`: {errors}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The number that a member reported after this word.
fn number(lines: &[String], word: &str) -> anyhow::Result<u64> {
    let found = lines.iter().find_map(|line| line.strip_prefix(word)?.trim().parse().ok());
    found.with_context(|| format!("the member did not say `{word}`"))
}

impl FailoverBench {
    pub(super) fn execute(self) -> anyhow::Result<bool> {
        let members = usize::from(self.members);
        ensure!(
            usize::from(self.replicas) <= members,
            "{} replicas need as many members",
            self.replicas
        );
        let (mut first, mut known, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
        for kill in 1..=self.kills {
            let (killed_ns, lines) = kill_one("failover", members, self.replicas, 64, self.map)?;
            // Each line has the beginning and the acknowledgement of a put around the death.
            let puts: Vec<(u64, u64)> = lines
                .iter()
                .filter_map(|line| {
                    let (begin, end) = line.strip_prefix("put ")?.split_once(' ')?;
                    Some((begin.parse().ok()?, end.parse().ok()?))
                })
                .collect();
            let seen_ns = number(&lines, "seen ")?;
            let after =
                |moment: u64| puts.iter().filter(move |put| put.0 >= moment).map(|put| put.1).min();
            first.push(after(killed_ns).context("no put after the kill")? - killed_ns);
            known.push(after(seen_ns).context("no put after the death was known")? - killed_ns);
            let acknowledged: Vec<u64> =
                puts.iter().map(|put| put.1).filter(|&end| end >= killed_ns).collect();
            let gap = acknowledged.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
            gaps.push(gap);
            say(self.args.json.as_deref(), format_args!("{kill} of {} kills", self.kills));
        }
        let row = |what: &str, samples: Vec<u64>| {
            let row = Row {
                what: "failover".into(),
                engine: "shm".into(),
                members,
                replicas: Some(usize::from(self.replicas)),
                size: Some(self.map),
                contender: what.into(),
                ..Row::default()
            };
            row.with_samples(samples)
        };
        let rows = vec![
            row("first put after the kill", first),
            row("first put after the death is known", known),
            row("longest time without a put", gaps),
        ];
        publish(&self.args, rows)?;
        Ok(true)
    }
}

impl RepairBench {
    pub(super) fn execute(self) -> anyhow::Result<bool> {
        let members = usize::from(self.members);
        ensure!(
            usize::from(self.replicas) < members,
            "there must be more members than replicas, to repair to"
        );
        ensure!(
            self.size > 0 && self.size <= self.total,
            "--total must hold at least one value of --size"
        );
        let (mut repairs, mut floors, mut bytes) = (Vec::new(), Vec::new(), 0);
        for kill in 1..=self.kills {
            let (killed_ns, lines) =
                kill_one("repair", members, self.replicas, self.size, self.total)?;
            repairs.push(number(&lines, "repaired ")?.saturating_sub(killed_ns));
            floors.push(number(&lines, "floor ")?);
            bytes = number(&lines, "bytes ")?;
            say(self.args.json.as_deref(), format_args!("{kill} of {} kills", self.kills));
        }
        let row = |contender: &str, samples: Vec<u64>| {
            let row = Row {
                what: "repair".into(),
                engine: "shm".into(),
                members,
                replicas: Some(usize::from(self.replicas)),
                size: Some(bytes),
                contender: contender.into(),
                ..Row::default()
            };
            row.with_samples(samples)
        };
        let mut rows =
            vec![row("memcpy", floors), row("kill until all replicas are there", repairs)];
        let floor = rows[0].p50_ns;
        for row in &mut rows {
            row.floor_ns = Some(floor);
            row.ratio = Some(row.p50_ns as f64 / floor.max(1) as f64);
        }
        publish(&self.args, rows)?;
        Ok(true)
    }
}

impl FailureMember {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let job = JoinOptions::new().time_limit(LIMIT).join()?;
        let victim = MemberId(job.members() as u32 - 1);
        let store =
            Store::open(&job, Options::new().replicas(self.replicas).expected_keys(1 << 14))?;
        match self.what.as_str() {
            "failover" => self.failover(&job, &store, victim)?,
            _ => self.repair(&job, &store, victim)?,
        }
        store.close()?;
        job.leave()?;
        Ok(true)
    }

    fn failover(&self, job: &Job, store: &Store, victim: MemberId) -> anyhow::Result<()> {
        if job.me() == victim {
            // Memory that the kernel has to tear down.
            let offset = job.reserve(self.total)?;
            let block = vec![1; 1 << 20];
            for at in (0..self.total).step_by(block.len()) {
                let len = block.len().min((self.total - at) as usize);
                job.put(Epoch::ANY, job.me(), offset + at, &block[..len])?;
            }
        }
        tell("ready")?;
        if job.me() != MemberId(0) {
            return self.wait_for_death(job);
        }
        let keys: Vec<Vec<u8>> = (0..10_000u32)
            .map(|key| format!("key/{key}").into_bytes())
            .filter(|key| store.replicas_of(key).contains(&victim))
            .take(100)
            .collect();
        let mut puts: std::collections::VecDeque<(u64, u64)> = std::collections::VecDeque::new();
        let (mut seen_ns, end) = (None, Instant::now() + LIMIT);
        for key in keys.iter().cycle() {
            let begin = machine_ns();
            store.put(key, &[7; 64])?;
            let acknowledged = machine_ns();
            if puts.back().is_none_or(|last| acknowledged >= last.1 + GRAIN_NS) {
                puts.push_back((begin, acknowledged));
            }
            // The puts of half a second are enough to find the kill among them.
            while puts.front().is_some_and(|put| put.0 + 500_000_000 < begin) {
                puts.pop_front();
            }
            if seen_ns.is_none() && job.epoch() != Epoch(0) {
                seen_ns = Some(machine_ns());
            }
            if seen_ns.is_some_and(|seen| machine_ns() > seen + AFTERWARDS.as_nanos() as u64) {
                break;
            }
            ensure!(Instant::now() < end, "no member was killed");
        }
        let lines: Vec<String> =
            puts.iter().map(|(begin, end)| format!("put {begin} {end}")).collect();
        tell(&lines.join("\n"))?;
        tell(&format!("seen {}", seen_ns.unwrap_or(0)))?;
        tell("done")
    }

    fn wait_for_death(&self, job: &Job) -> anyhow::Result<()> {
        let until = job.now().after(LIMIT);
        while job.epoch() == Epoch(0) && job.now() < until {
            let bell = job.bell();
            if job.epoch() == Epoch(0) {
                job.park(bell, until);
            }
        }
        Ok(())
    }

    fn repair(&self, job: &Job, store: &Store, victim: MemberId) -> anyhow::Result<()> {
        let count = self.total / self.size;
        let (me, members) = (u64::from(job.me().0), job.members() as u64);
        let value = vec![7; self.size as usize];
        for key in (0..count).filter(|key| key % members == me) {
            store.put(format!("key/{key}").as_bytes(), &value)?;
        }
        tell("ready")?;
        if job.me() != MemberId(0) {
            return self.wait_for_death(job);
        }
        let lost = (0..count)
            .filter(|key| store.replicas_of(format!("key/{key}").as_bytes()).contains(&victim))
            .count();
        self.wait_for_death(job)?;
        let status = store.wait_repaired(job.now().after(LIMIT))?;
        ensure!(status.is_repaired(), "not repaired in {LIMIT:?}");
        tell(&format!("repaired {}", machine_ns()))?;
        let bytes = lost as u64 * self.size;
        let begin = Instant::now();
        let offset = job.reserve(bytes)?;
        for at in (0..bytes).step_by(value.len()) {
            job.memcpy_in(job.me(), offset + at, &value);
        }
        tell(&format!("floor {}", begin.elapsed().as_nanos()))?;
        tell(&format!("bytes {bytes}"))?;
        tell("done")
    }
}

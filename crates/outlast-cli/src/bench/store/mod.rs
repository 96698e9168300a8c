//! `outlast bench put` and `outlast bench get`: the store against memcpy on a machine, and against
//! MPI messages between hosts.

mod member;

use super::interrupt::on_interrupt;
use super::load::{start_peers, versions_of};
use super::peers::{Call, Load, Peer, PeerName, Place};
use super::ping::{Ping, Pong};
use super::{BenchArgs, COMPARED, Origin, Row, expect_ok, publish_with, times};
use crate::hosts::{self, Hosts};
use crate::quantity;
use crate::report::say;
use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use outlast::MemberId;
use outlast::launch::{Launch, Output};
use std::time::Duration;

pub(crate) use member::StoreBenchMember;

const PUT_EXAMPLES: &str = "\
A member writes its keys in turn, by handle and by key, while the other members sleep. The floor is
memcpy of the same bytes into as many buffers as there are replicas, over as many places, in the
same order. Floor and contenders take turns in one run. Times are for a single call, taken over
a few calls at a time.

Examples:
  Three replicas in four processes, several sizes:
      outlast bench put
  A single size, more keys than any cache holds:
      outlast bench put --sizes 1K --keys 262144
  With checksums of the values:
      outlast bench put --checksums
  Against stores that users would pick instead, which `cargo xtask peers` installs; a peer that
  is absent is left out with a line that says so:
      outlast bench put --peers redis,etcd,hazelcast,memcached,lmdb
  Against the published way on Open MPI 5 (from MPICC, PATH or `cargo xtask mpi`): a ping, MPI_Put
  and MPI_Win_flush; and how often it hangs when a target is killed, at 20 moments:
      outlast bench put --baseline ping --kills 20
  On two hosts made of this machine, against an MPI ping-pong between them:
      sudo outlast bench put --engine mpi --hosts 2 --members 2 --replicas 2
  On three hosts made of this machine, with peers on hosts of their own:
      sudo outlast bench put --engine mpi --hosts 3 --members 3 --peers redis,etcd,hazelcast
  The target computes outside of the library, so that its background thread has to answer:
      sudo outlast bench put --engine mpi --hosts 2 --members 2 --replicas 2 --computing";

const GET_EXAMPLES: &str = "\
A member reads keys in random order into a buffer, by key and by handle. The floor is memcpy out of
as many places in the same order.

Examples:
  262,144 records of 64 bytes:
      outlast bench get
  In turn with a store that expects a 64th of the keys, so that its index grows first:
      outlast bench get --expected-keys 4096
  Against stores that users would pick instead, which `cargo xtask peers` installs:
      outlast bench get --keys 1024 --peers redis,etcd,hazelcast,memcached,lmdb
  On two hosts made of this machine, against an MPI ping-pong between them:
      sudo outlast bench get --engine mpi --hosts 2 --members 2 --replicas 2";

/// Measure puts against memcpy, or between hosts against MPI messages
#[derive(Args)]
#[command(after_help = PUT_EXAMPLES)]
pub(super) struct PutBench {
    /// How many keys are written in turn; at most 64 MiB of values in all
    #[arg(long, value_name = "N", default_value_t = 1024)]
    keys: usize,
    /// The store keeps checksums of the values
    #[arg(long)]
    checksums: bool,
    /// The store is in global mode, and each key has a single writer
    #[arg(long)]
    sole_writers: bool,
    /// Measure these stores in this run, too, separated by commas
    #[arg(long, value_name = "PEERS", value_delimiter = ',')]
    peers: Vec<PeerName>,
    /// Measure the published way in this run, too
    #[arg(long, value_name = "WAY")]
    baseline: Option<Baseline>,
    /// Kill a target in this many jobs of the baseline and of Outlast
    #[arg(long, value_name = "N", default_value_t = 0, requires = "baseline")]
    kills: u16,
    /// The other members compute meanwhile, outside of the library
    #[arg(long)]
    computing: bool,
    #[command(flatten)]
    shape: JobShape,
    #[command(flatten)]
    pub(super) args: BenchArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Baseline {
    Ping,
}

/// A contender or floor besides the store and memcpy.
enum Contender {
    Peer(Peer),
    Ping(Ping),
    Pong(Pong),
}

impl Contender {
    fn name(&self, call: Call) -> &'static str {
        match self {
            Contender::Peer(peer) => peer.contender(call),
            Contender::Ping(_) => "ping + MPI_Put",
            Contender::Pong(_) => PONG,
        }
    }

    fn measure(
        &mut self,
        call: Call,
        size: u64,
        keys: usize,
        length: Duration,
        hosts: Option<&Hosts>,
    ) -> anyhow::Result<Vec<u64>> {
        match self {
            Contender::Peer(peer) => {
                let size = size as usize;
                let load = Load { call, size, keys, length, callers: 1, period: None };
                let samples = peer.measure(&load)?;
                Ok(samples.into_iter().map(|ns| ns * 10).collect())
            }
            Contender::Ping(ping) => ping.measure(size, length, hosts),
            Contender::Pong(pong) => pong.measure(size, length, hosts),
        }
    }
}

/// Measure gets against memcpy, or between hosts against MPI messages
#[derive(Args)]
#[command(after_help = GET_EXAMPLES)]
pub(super) struct GetBench {
    /// How many keys there are [default: 262144, or 1024 over several hosts]
    #[arg(long, value_name = "N")]
    keys: Option<usize>,
    /// Measure these stores in this run, too, separated by commas
    #[arg(long, value_name = "PEERS", value_delimiter = ',')]
    peers: Vec<PeerName>,
    #[command(flatten)]
    shape: JobShape,
    #[command(flatten)]
    pub(super) args: BenchArgs,
}

#[derive(Args, Clone)]
struct JobShape {
    /// How many processes the job has
    #[arg(short = 'n', long, alias = "ranks", value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    members: u16,
    /// How many replicas each value has
    #[arg(long, value_name = "R", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=8))]
    replicas: u8,
    /// Measure a store that is told to expect so many keys in this run, too
    #[arg(long, value_name = "N")]
    expected_keys: Option<usize>,
    /// The sizes of the values, separated by commas
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes, value_delimiter = ',')]
    sizes: Vec<u64>,
    #[command(flatten)]
    engine_args: hosts::EngineArgs,
    /// How long each size is measured
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
}

/// The most bytes of values, before replication.
const VALUES_LEN_MAX: u64 = 64 << 20;

impl PutBench {
    pub(super) fn execute(self) -> anyhow::Result<bool> {
        let (members, replicas) =
            (usize::from(self.shape.members), usize::from(self.shape.replicas));
        let mut others = Vec::new();
        if let Some(Baseline::Ping) = self.baseline {
            others.push(
                Ping::find(members, replicas).map(Contender::Ping).context("--baseline ping"),
            );
        }
        if self.shape.is_far() {
            others.push(floor_of_hosts(members));
        }
        let (others, peers) = (found(others), self.peers);
        let (checksums, sole_writers, computing) =
            (self.checksums, self.sole_writers, self.computing);
        let kills = self.kills;
        let options = PutOptions { checksums, sole_writers, computing, others, peers, kills };
        run("put", self.keys, &[64, 1024, 65536], self.shape, self.args, options)
    }
}

impl GetBench {
    pub(super) fn execute(self) -> anyhow::Result<bool> {
        let (keys, others) = match self.shape.is_far() {
            true => (1024, found(vec![floor_of_hosts(usize::from(self.shape.members))])),
            false => (262_144, Vec::new()),
        };
        let options = PutOptions { others, peers: self.peers, ..PutOptions::default() };
        run("get", self.keys.unwrap_or(keys), &[64], self.shape, self.args, options)
    }
}

impl JobShape {
    /// Whether the members are on several hosts.
    fn is_far(&self) -> bool {
        self.engine_args.hosts.is_some_and(|hosts| hosts > 1)
    }
}

/// The floor of calls that wait for another host.
fn floor_of_hosts(members: usize) -> anyhow::Result<Contender> {
    Pong::find(members).map(Contender::Pong).context("the floor of --hosts")
}

/// Ends the command with status 2 if a contender is missing.
fn found(others: Vec<anyhow::Result<Contender>>) -> Vec<Contender> {
    match others.into_iter().collect() {
        Ok(others) => others,
        Err(error) => crate::usage_error("bench", format!("{error:#}")),
    }
}

/// How many keys are used for values of this size.
fn keys_of(keys: usize, size: u64) -> usize {
    keys.min((VALUES_LEN_MAX / size.max(1)) as usize).max(1)
}

/// Options that only puts have.
#[derive(Default)]
struct PutOptions {
    checksums: bool,
    sole_writers: bool,
    computing: bool,
    others: Vec<Contender>,
    peers: Vec<PeerName>,
    kills: u16,
}

fn run(
    what: &str,
    keys: usize,
    default_sizes: &[u64],
    shape: JobShape,
    args: BenchArgs,
    mut options: PutOptions,
) -> anyhow::Result<bool> {
    shape.engine_args.check("bench");
    let shape = JobShape {
        members: shape.engine_args.join_mpirun()?.map_or(shape.members, |members| members as u16),
        ..shape
    };
    let (members, replicas) = (usize::from(shape.members), usize::from(shape.replicas));
    ensure!(
        replicas <= members,
        "{replicas} replicas need as many members, and there are {members}"
    );
    ensure!(shape.seconds > 0.0 && shape.seconds <= 600.0, "--seconds must be between 0 and 600");
    let sizes = if shape.sizes.is_empty() { default_sizes.to_vec() } else { shape.sizes.clone() };
    let joined = sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    say(
        args.json.as_deref(),
        format_args!("{what}: {members} processes, {replicas} replicas, sizes {joined}"),
    );
    let call = if what == "get" { Call::Get } else { Call::Put };
    let is_far = shape.is_far();
    let launch = Launch::new(members)
        .program(std::env::current_exe()?)
        .args(["store-bench-member", "--what", what, "--keys", &keys.to_string()])
        .args(["--replicas", &replicas.to_string(), "--sizes", &joined])
        .args(["--seconds", &shape.seconds.to_string()])
        .args(shape.expected_keys.map(|keys| format!("--expected-keys={keys}")))
        .args(options.checksums.then_some("--checksums"))
        .args(options.sole_writers.then_some("--sole-writers"))
        .args(options.computing.then_some("--computing"))
        .args(is_far.then_some("--far"))
        .die_with_launcher(true)
        .output(Output::Capture);
    let (launch, hosts) = shape.engine_args.prepare(launch, members)?;
    let _taken_down = hosts.as_ref().map(|hosts| on_interrupt(hosts.taker_down())).transpose()?;
    let place = hosts.as_ref().map_or(Place::Here, Place::Hosts);
    let mut against = Vec::new();
    let peers = start_peers(&options.peers, |_| replicas, &place, &args, &mut against);
    let versions = versions_of(&peers);
    if !peers.is_empty() {
        against.insert(0, COMPARED.into());
    }
    options.others.extend(peers.into_iter().map(Contender::Peer));
    // Half of the contenders' samples are taken before the store's samples, and half after them.
    let mut theirs = vec![vec![Vec::new(); sizes.len()]; options.others.len()];
    let mut measure_theirs = |others: &mut [Contender],
                              hosts: Option<&Hosts>|
     -> anyhow::Result<()> {
        for (other, theirs) in others.iter_mut().zip(&mut theirs) {
            for (samples, &size) in theirs.iter_mut().zip(&sizes) {
                let length = Duration::from_secs_f64(shape.seconds / 2.0);
                samples.extend(other.measure(call, size, keys_of(keys, size), length, hosts)?);
            }
        }
        Ok(())
    };
    measure_theirs(&mut options.others, hosts.as_ref())?;
    let running = launch.start()?;
    let limit = Duration::from_secs_f64(60.0 + 4.0 * shape.seconds * sizes.len() as f64);
    let mut running = running;
    let outcome = running.wait(limit);
    expect_ok(&outcome)?;
    measure_theirs(&mut options.others, hosts.as_ref())?;
    let output = running.output(MemberId(0));
    // Together with calls on one machine these are measurements of another kind.
    let title = match shape.engine_args.hosts {
        Some(hosts) if is_far => format!("{what}, {hosts} hosts"),
        _ => what.to_string(),
    };
    let mut rows = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut fields = line.split('\t');
        let (Some(size), Some(contender), Some(samples)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let samples: Result<Vec<u64>, _> = samples.split(' ').map(str::parse).collect();
        let row = Row {
            what: title.clone(),
            engine: shape.engine_args.engine.to_string(),
            members,
            replicas: Some(replicas),
            size: Some(size.parse().context("a size")?),
            contender: contender.into(),
            ..Row::default()
        };
        rows.push(row.with_samples(samples.context("a member's samples")?));
    }
    for (other, theirs) in options.others.iter().zip(theirs) {
        for (samples, &size) in theirs.into_iter().zip(&sizes) {
            let (engine, members, replicas) = match other {
                Contender::Peer(peer) => (peer.engine(), peer.processes(), peer.copies),
                _ => ("mpi", members, replicas),
            };
            let row = Row {
                what: title.clone(),
                engine: engine.into(),
                members,
                replicas: Some(replicas),
                size: Some(size),
                contender: other.name(call).into(),
                ..Row::default()
            };
            rows.push(row.with_samples(samples));
        }
    }
    // Samples are in tenths of nanoseconds, since a call takes only a few nanoseconds.
    for index in 0..rows.len() {
        let floor_name = if is_far { PONG } else { MEMCPY };
        let floor =
            rows.iter().find(|row| row.size == rows[index].size && row.contender == floor_name);
        let floor = floor.map_or(0, |row| row.p50_ns).max(1);
        rows[index].ratio = Some(rows[index].p50_ns as f64 / floor as f64);
        rows[index].floor_ns = Some(floor);
    }
    for row in &mut rows {
        for field in [
            &mut row.p25_ns,
            &mut row.p50_ns,
            &mut row.p75_ns,
            &mut row.p99_ns,
            &mut row.p999_ns,
            &mut row.max_ns,
        ] {
            *field = field.div_ceil(10);
        }
        row.floor_ns = row.floor_ns.map(|floor| floor.div_ceil(10));
    }
    let by_handle = if what == "get" { GET_BY_HANDLE } else { PUT_BY_HANDLE };
    for other in &options.others {
        let ratios =
            rows.iter().filter(|row| row.contender == other.name(call)).filter_map(|row| {
                let ours = rows
                    .iter()
                    .find(|ours| ours.size == row.size && ours.contender == by_handle)?;
                let size = quantity::human_bytes(row.size?);
                Some(format!("{} at {size}", times(row.p50_ns as f64 / ours.p50_ns.max(1) as f64)))
            });
        let ratios: Vec<String> = ratios.collect();
        let (name, ratios) = (other.name(call), ratios.join(", "));
        against.push(format!("{title}: {name} against a {by_handle}: {ratios}"));
        if let Contender::Ping(ping) = other
            && options.kills > 0
        {
            let size = sizes.first().copied().unwrap_or(64);
            say(
                args.json.as_deref(),
                format_args!("{} jobs with a kill, on either side", options.kills),
            );
            rows.extend(ping.compare_kills(options.kills, size, |line| against.push(line))?);
        }
    }
    let json = args.json.clone();
    publish_with(&args, rows, &Origin { remarks: against.clone(), versions, ..Origin::default() })?;
    against.iter().for_each(|line| say(json.as_deref(), line));
    Ok(true)
}

const PUT_BY_HANDLE: &str = "put by handle";
const GET_BY_HANDLE: &str = "get_into by handle";
const MEMCPY: &str = "memcpy";
const PONG: &str = "MPI ping-pong";

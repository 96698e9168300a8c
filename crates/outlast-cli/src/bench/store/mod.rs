//! `outlast bench put` and `outlast bench get`: the store on one machine, against memcpy.

use super::ping::{Ping, Pong, SURVIVE, survive};
use super::redis::Redis;
use super::{Common, Row, expect_ok, publish, times};
use crate::hosts::{self, Hosts};
use crate::quantity;
use crate::report::say;
use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use outlast::launch::{Launch, Output};
use outlast::store::{Mode, Options, Store};
use outlast::{Engine, Epoch, Job, JoinOptions, MemberId};
use std::hint::black_box;
use std::time::{Duration, Instant};

const PUT_EXAMPLES: &str = "\
One member writes its keys in turn, through handles (handles) and by key, while the others sleep. The floor is memcpy of
the same bytes into as many buffers as there are copies, over as many places, in the same order; floor and contenders
take turns in one run. Times are for one call, taken over a few calls at a time.

Examples:
  The table of the design, 3 copies in 4 processes:
      outlast bench put
  One size, more keys than any cache holds:
      outlast bench put --sizes 1K --keys 262144
  With checksums of the values:
      outlast bench put --checksums
  Against Redis (REDIS_SERVER, PATH, or target/redis, where `cargo xtask redis` puts it): a server and a replica for each
  further copy, SET and WAIT in one round trip over a socket. Memory of this process against servers, so no surprise:
      outlast bench put --peers redis
  Against the published way on Open MPI 5 (MPICC, PATH, or `cargo xtask mpi`), MPI_Put and MPI_Win_flush after a ping, and how
  often that hangs when a target is killed at 20 moments:
      outlast bench put --baseline ping --kills 20
  Over two hosts made of this machine, against a ping-pong of MPI between them (one member waits in the library):
      sudo outlast bench put --engine mpi --hosts 2 --members 2 --replicas 2
  The same while the other member computes, so that its background has to answer:
      sudo outlast bench put --engine mpi --hosts 2 --members 2 --replicas 2 --computing";

const GET_EXAMPLES: &str = "\
One member reads keys in random order into a buffer, by key and through handles. The floor is memcpy out of as many
places in the same order.

Examples:
  262,144 records of 64 bytes:
      outlast bench get
  Over two hosts made of this machine, against a ping-pong of MPI between them:
      sudo outlast bench get --engine mpi --hosts 2 --members 2 --replicas 2";

/// Measure puts on this machine against memcpy.
#[derive(Args)]
#[command(after_help = PUT_EXAMPLES)]
pub(super) struct Put {
    /// How many keys are written in turn; at most 64 MiB of values in all
    #[arg(long, value_name = "N", default_value_t = 1024)]
    keys: usize,
    /// The store keeps checksums of the values
    #[arg(long)]
    checksums: bool,
    /// The store is in global mode, and is promised that nobody else writes these keys
    #[arg(long)]
    sole_writers: bool,
    /// Measure this one in the same run, too
    #[arg(long, value_name = "PEER")]
    peers: Option<Peer>,
    /// Measure the published way in the same run, too
    #[arg(long, value_name = "WAY")]
    baseline: Option<Baseline>,
    /// Kill a target in so many jobs of the baseline, and of ours
    #[arg(long, value_name = "N", default_value_t = 0, requires = "baseline")]
    kills: u16,
    /// The other members compute meanwhile, outside the library
    #[arg(long)]
    computing: bool,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, ValueEnum)]
enum Peer {
    Redis,
}

#[derive(Clone, Copy, ValueEnum)]
enum Baseline {
    Ping,
}

/// Somebody else who puts.
enum Other {
    Redis(Redis),
    Ping(Ping),
    Pong(Pong),
}

impl Other {
    fn name(&self) -> &'static str {
        match self {
            Other::Redis(_) => "Redis SET + WAIT",
            Other::Ping(_) => "ping + MPI_Put",
            Other::Pong(_) => PONG,
        }
    }

    fn measure(
        &mut self,
        size: u64,
        keys: usize,
        length: Duration,
        hosts: Option<&Hosts>,
    ) -> anyhow::Result<Vec<u64>> {
        match self {
            Other::Redis(redis) => redis.measure(size as usize, keys, length),
            Other::Ping(ping) => ping.measure(size, length, hosts),
            Other::Pong(pong) => pong.measure(size, length, hosts),
        }
    }
}

/// Measure gets on this machine against memcpy.
#[derive(Args)]
#[command(after_help = GET_EXAMPLES)]
pub(super) struct Get {
    /// How many keys there are [default: 262144, over several hosts 1024]
    #[arg(long, value_name = "N")]
    keys: Option<usize>,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Clone)]
struct Shape {
    /// How many processes the job has
    #[arg(short = 'n', long, alias = "ranks", value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    members: u16,
    /// How many copies each value has
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=8))]
    replicas: u8,
    /// The sizes of the values
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes, value_delimiter = ',')]
    sizes: Vec<u64>,
    #[command(flatten)]
    place: hosts::Place,
    /// How long each size is measured
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
}

/// The member of a store benchmark; started by it.
#[derive(Args)]
pub(crate) struct StoreBenchMember {
    #[arg(long)]
    what: String,
    #[arg(long)]
    keys: usize,
    #[arg(long)]
    replicas: usize,
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<u64>,
    #[arg(long)]
    seconds: f64,
    #[arg(long)]
    checksums: bool,
    #[arg(long)]
    sole_writers: bool,
    /// Members are on several hosts: a call takes long enough to be measured alone
    #[arg(long)]
    far: bool,
    #[arg(long)]
    computing: bool,
}

/// The most bytes of values, without their copies.
const VALUES_LEN_MAX: u64 = 64 << 20;

impl Put {
    pub(super) fn execute(self) -> anyhow::Result<bool> {
        let (members, replicas) =
            (usize::from(self.shape.members), usize::from(self.shape.replicas));
        let mut others = Vec::new();
        if let Some(Peer::Redis) = self.peers {
            others.push(Redis::start(replicas).map(Other::Redis).context("--peers redis"));
        }
        if let Some(Baseline::Ping) = self.baseline {
            others.push(Ping::find(members, replicas).map(Other::Ping).context("--baseline ping"));
        }
        if self.shape.is_far() {
            others.push(floor_of_hosts(members));
        }
        let others = found(others);
        let (checksums, sole_writers, computing) =
            (self.checksums, self.sole_writers, self.computing);
        let asked = Asked { checksums, sole_writers, computing, others, kills: self.kills };
        run("put", self.keys, &[64, 1024, 65536], self.shape, self.common, asked)
    }
}

impl Get {
    pub(super) fn execute(self) -> anyhow::Result<bool> {
        let (keys, others) = match self.shape.is_far() {
            true => (1024, found(vec![floor_of_hosts(usize::from(self.shape.members))])),
            false => (262_144, Vec::new()),
        };
        let asked = Asked { others, ..Asked::default() };
        run("get", self.keys.unwrap_or(keys), &[64], self.shape, self.common, asked)
    }
}

impl Shape {
    /// Whether the members are on several hosts.
    fn is_far(&self) -> bool {
        self.place.hosts.is_some_and(|hosts| hosts > 1)
    }
}

/// What everything that waits for another host is compared with.
fn floor_of_hosts(members: usize) -> anyhow::Result<Other> {
    Pong::find(members).map(Other::Pong).context("the floor of --hosts")
}

/// Ends the command if one of them is not there.
fn found(others: Vec<anyhow::Result<Other>>) -> Vec<Other> {
    match others.into_iter().collect() {
        Ok(others) => others,
        Err(error) => crate::usage_error("bench", format!("{error:#}")),
    }
}

/// How many keys are used for values of this size.
fn keys_of(keys: usize, size: u64) -> usize {
    keys.min((VALUES_LEN_MAX / size.max(1)) as usize).max(1)
}

/// What only puts are asked for.
#[derive(Default)]
struct Asked {
    checksums: bool,
    sole_writers: bool,
    computing: bool,
    others: Vec<Other>,
    kills: u16,
}

fn run(
    what: &str,
    keys: usize,
    default_sizes: &[u64],
    shape: Shape,
    common: Common,
    mut asked: Asked,
) -> anyhow::Result<bool> {
    shape.place.check("bench");
    let shape = Shape {
        members: shape.place.join_mpirun()?.map_or(shape.members, |members| members as u16),
        ..shape
    };
    let (members, replicas) = (usize::from(shape.members), usize::from(shape.replicas));
    ensure!(replicas <= members, "{replicas} copies need as many members, and there are {members}");
    ensure!(shape.seconds > 0.0 && shape.seconds <= 600.0, "--seconds must be between 0 and 600");
    let sizes = if shape.sizes.is_empty() { default_sizes.to_vec() } else { shape.sizes.clone() };
    let joined = sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    say(
        common.json.as_deref(),
        format_args!("{what}: {members} processes, {replicas} copies, sizes {joined}"),
    );
    // Half of their samples before ours and half after them.
    let mut theirs = vec![vec![Vec::new(); sizes.len()]; asked.others.len()];
    let mut measure_theirs = |others: &mut [Other], hosts: Option<&Hosts>| -> anyhow::Result<()> {
        for (other, theirs) in others.iter_mut().zip(&mut theirs) {
            for (samples, &size) in theirs.iter_mut().zip(&sizes) {
                let length = Duration::from_secs_f64(shape.seconds / 2.0);
                samples.extend(other.measure(size, keys_of(keys, size), length, hosts)?);
            }
        }
        Ok(())
    };
    let is_far = shape.is_far();
    let launch = Launch::new(members)
        .program(std::env::current_exe()?)
        .args(["store-bench-member", "--what", what, "--keys", &keys.to_string()])
        .args(["--replicas", &replicas.to_string(), "--sizes", &joined])
        .args(["--seconds", &shape.seconds.to_string()])
        .args(asked.checksums.then_some("--checksums"))
        .args(asked.sole_writers.then_some("--sole-writers"))
        .args(asked.computing.then_some("--computing"))
        .args(is_far.then_some("--far"))
        .die_with_launcher(true)
        .output(Output::Capture);
    let (launch, hosts) = shape.place.prepare(launch, members)?;
    measure_theirs(&mut asked.others, hosts.as_ref())?;
    let running = launch.start()?;
    let limit = Duration::from_secs_f64(60.0 + 4.0 * shape.seconds * sizes.len() as f64);
    let mut running = running;
    let outcome = running.wait(limit);
    expect_ok(&outcome)?;
    measure_theirs(&mut asked.others, hosts.as_ref())?;
    drop(hosts);
    let output = running.output(MemberId(0));
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
            what: what.into(),
            engine: shape.place.engine.to_string(),
            members,
            replicas: Some(replicas),
            size: Some(size.parse().context("a size")?),
            contender: contender.into(),
            ..Row::default()
        };
        rows.push(row.with_samples(samples.context("a member's samples")?));
    }
    for (other, theirs) in asked.others.iter().zip(theirs) {
        for (samples, &size) in theirs.into_iter().zip(&sizes) {
            let row = Row {
                what: what.into(),
                engine: if matches!(other, Other::Redis(_)) { "servers" } else { "mpi" }.into(),
                members: if matches!(other, Other::Redis(_)) { replicas } else { members },
                replicas: Some(replicas),
                size: Some(size),
                contender: other.name().into(),
                ..Row::default()
            };
            rows.push(row.with_samples(samples));
        }
    }
    // Samples are in tenths of nanoseconds, since a call takes few of them.
    for index in 0..rows.len() {
        let floor_name = if is_far { PONG } else { MEMCPY };
        let floor =
            rows.iter().find(|row| row.size == rows[index].size && row.contender == floor_name);
        let floor = floor.map_or(0, |row| row.p50_ns).max(1);
        rows[index].ratio = Some(rows[index].p50_ns as f64 / floor as f64);
        rows[index].floor_ns = Some(floor);
    }
    for row in &mut rows {
        for field in [&mut row.p50_ns, &mut row.p99_ns, &mut row.p999_ns, &mut row.max_ns] {
            *field = field.div_ceil(10);
        }
        row.floor_ns = row.floor_ns.map(|floor| floor.div_ceil(10));
    }
    let by_handle = if what == "get" { GET_BY_SLOT } else { BY_SLOT };
    let mut against = Vec::new();
    for other in &asked.others {
        let ratios = rows.iter().filter(|row| row.contender == other.name()).filter_map(|row| {
            let ours =
                rows.iter().find(|ours| ours.size == row.size && ours.contender == by_handle)?;
            let size = quantity::human_bytes(row.size?);
            Some(format!("{} at {size}", times(row.p50_ns as f64 / ours.p50_ns.max(1) as f64)))
        });
        let ratios: Vec<String> = ratios.collect();
        against.push(format!("{} against a {by_handle}: {}", other.name(), ratios.join(", ")));
        if let Other::Ping(ping) = other
            && asked.kills > 0
        {
            let size = sizes.first().copied().unwrap_or(64);
            say(
                common.json.as_deref(),
                format_args!("{} jobs with a kill, on either side", asked.kills),
            );
            rows.extend(ping.compare_kills(asked.kills, size, |line| against.push(line))?);
        }
    }
    let json = common.json.clone();
    publish(&common, rows)?;
    against.iter().for_each(|line| say(json.as_deref(), line));
    Ok(true)
}

const BY_SLOT: &str = "put by handle";
const GET_BY_SLOT: &str = "get_into by handle";
const MEMCPY: &str = "memcpy";
const PONG: &str = "MPI ping-pong";

impl StoreBenchMember {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let job = JoinOptions::new().time_limit(Duration::from_secs(3600)).join()?;
        let options = Options::new().replicas(self.replicas).expected_keys(self.keys.max(1024));
        let options = options.checksums(self.checksums);
        let options = match self.sole_writers {
            true => options.mode(Mode::Global).sole_writers(true),
            false => options,
        };
        let store = Store::open(&job, options)?;
        // The floor is measured in the same kind of memory: each member lends a range for it.
        let floor_len =
            self.sizes.iter().map(|&size| keys_of(self.keys, size) * stride(size as usize)).max();
        let floor = job.reserve(floor_len.unwrap_or(0) as u64)?;
        let zeros = vec![0; 1 << 20];
        for offset in (0..floor_len.unwrap_or(0)).step_by(zeros.len()) {
            let len = zeros.len().min(floor_len.unwrap_or(0) - offset);
            job.put(Epoch::ANY, job.me(), floor + offset as u64, &zeros[..len])?;
        }
        store.put(format!("floor/{}", job.me().0).as_bytes(), &floor.to_le_bytes())?;
        if job.me() == MemberId(0) {
            for &size in &self.sizes {
                let keys = keys_of(self.keys, size);
                match self.what.as_str() {
                    SURVIVE => survive(&job, &store, size, keys, self.seconds)?,
                    "put" => self.put(&job, &store, size as usize, keys)?,
                    _ => self.get(&job, &store, size as usize, keys)?,
                }
            }
        }
        if job.me() == MemberId(0) {
            store.put(b"over", b"")?;
        }
        // A call now and then; what is measured is answered by the background.
        let mut sum = 0u64;
        while self.computing && store.get(b"over")?.is_none() {
            let end = Instant::now() + Duration::from_millis(100);
            while Instant::now() < end {
                sum = black_box(sum.wrapping_mul(5).wrapping_add(1));
            }
        }
        // The others come here at once, sleep, and lend their memory.
        store.close()?;
        job.leave()?;
        Ok(true)
    }

    /// Where each member has lent its range.
    fn floors(&self, job: &Job, store: &Store) -> anyhow::Result<Vec<u64>> {
        let deadline = job.now().after(Duration::from_secs(30));
        (0..job.members())
            .map(|member| {
                let name = format!("floor/{member}");
                let found =
                    store.wait(name.as_bytes(), None, deadline)?.context("a member is missing")?;
                Ok(u64::from_le_bytes(found.bytes().try_into().context("an offset")?))
            })
            .collect()
    }

    fn put(&self, job: &Job, store: &Store, size: usize, keys: usize) -> anyhow::Result<()> {
        let name = |by: &str, index: usize| format!("bench/{by}/{size}/{index}");
        let handles = (0..keys).map(|index| store.handle(name("handle", index).as_bytes()));
        let handles = handles.collect::<Result<Vec<_>, _>>()?;
        let names: Vec<String> = (0..keys).map(|index| name("key", index)).collect();
        let source = Buffer::new(size);
        let floors = self.floors(job, store)?;
        let (mut by_handle, mut by_key) = (0, 0);
        let mut at = 0;
        let mut copy = || {
            for (member, floor) in floors.iter().enumerate().take(self.replicas) {
                let offset = floor + (at * stride(size)) as u64;
                job.memcpy_in(MemberId(member as u32), offset, black_box(source.bytes()));
            }
            at = (at + 1) % keys;
        };
        let mut put_handle = || -> anyhow::Result<()> {
            handles[by_handle].put(black_box(source.bytes()))?;
            by_handle = (by_handle + 1) % keys;
            Ok(())
        };
        let mut put_key = || -> anyhow::Result<()> {
            store.put(names[by_key].as_bytes(), black_box(source.bytes()))?;
            by_key = (by_key + 1) % keys;
            Ok(())
        };
        for _ in 0..2 * keys {
            copy();
            put_key()?;
            put_handle()?;
        }
        let end = Instant::now() + Duration::from_secs_f64(self.seconds);
        // As many calls in a row as take some microseconds, so that the clock does not count.
        let calls = match (self.far, size > 4096) {
            (true, _) => 1,
            (false, true) => 4,
            (false, false) => 64,
        };
        let mut samples = [Vec::new(), Vec::new(), Vec::new()];
        while Instant::now() < end {
            for _ in 0..16 {
                if !self.far {
                    samples[0].push(measure(calls, || {
                        copy();
                        Ok(())
                    })?);
                }
                samples[1].push(measure(calls, &mut put_handle)?);
                samples[2].push(measure(calls, &mut put_key)?);
            }
        }
        tell(size, [MEMCPY, BY_SLOT, "put by key"], &samples);
        Ok(())
    }

    fn get(&self, job: &Job, store: &Store, size: usize, keys: usize) -> anyhow::Result<()> {
        // Made on the spot, as the floor's addresses are: reading keys from an array would be measured, too.
        let name = |index: usize| -> [u8; 16] {
            let mut name = *b"get/size........";
            name[4..8].copy_from_slice(&(size as u32).to_be_bytes());
            name[8..].copy_from_slice(&index.to_be_bytes());
            name
        };
        // Records are spread over all members, and so is the floor.
        let floors = self.floors(job, store)?;
        let mut target = Buffer::new(size);
        for index in 0..keys {
            store.put(&name(index), target.bytes())?;
            let member = index % floors.len();
            job.memcpy_in(
                MemberId(member as u32),
                floors[member] + (index * stride(size)) as u64,
                target.bytes(),
            );
        }
        let handles =
            (0..keys).map(|index| store.handle(&name(index))).collect::<Result<Vec<_>, _>>()?;
        for (index, handle) in handles.iter().enumerate() {
            handle.get_into(target.at(0, size))?;
            store.get_into(&name(index), target.at(0, size))?;
        }
        // The same random order for all: the next place depends on nothing that is read.
        let mut states = [1u64; 3];
        let next = |state: &mut u64| {
            *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((*state >> 33) as usize * keys) >> 31
        };
        let end = Instant::now() + Duration::from_secs_f64(self.seconds);
        let calls = if self.far { 1 } else { 64 };
        let mut samples = [Vec::new(), Vec::new(), Vec::new()];
        while Instant::now() < end {
            for _ in 0..16 {
                let [a, b, c] = &mut states;
                let copy = || {
                    let index = next(a);
                    let member = index % floors.len();
                    let offset = floors[member] + (index * stride(size)) as u64;
                    job.memcpy_out(MemberId(member as u32), offset, target.at(0, size));
                    Ok(())
                };
                if !self.far {
                    samples[0].push(measure(calls, copy)?);
                }
                samples[1].push(measure(calls, || {
                    store.get_into(&name(next(b)), target.at(0, size))?;
                    Ok(())
                })?);
                samples[2].push(measure(calls, || {
                    handles[next(c)].get_into(target.at(0, size))?;
                    Ok(())
                })?);
            }
        }
        tell(size, [MEMCPY, "get_into by key", GET_BY_SLOT], &samples);
        Ok(())
    }
}

fn stride(size: usize) -> usize {
    size.next_multiple_of(64)
}

/// The time of one call, in tenths of nanoseconds.
fn measure(calls: u64, mut call: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<u64> {
    let begin = Instant::now();
    for _ in 0..calls {
        call()?;
    }
    Ok(begin.elapsed().as_nanos() as u64 * 10 / calls)
}

fn tell(size: usize, contenders: [&str; 3], samples: &[Vec<u64>; 3]) {
    for (contender, samples) in
        contenders.iter().zip(samples).filter(|(_, samples)| !samples.is_empty())
    {
        let samples = samples.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
        println!("{size}\t{contender}\t{samples}");
    }
}

/// Bytes that begin at a multiple of 64.
struct Buffer {
    bytes: Vec<u8>,
    begin: usize,
    len: usize,
}

impl Buffer {
    fn new(len: usize) -> Buffer {
        let bytes = vec![1; len + 64];
        let begin = bytes.as_ptr().align_offset(64);
        Buffer { bytes, begin, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.begin..self.begin + self.len]
    }

    fn at(&mut self, offset: usize, len: usize) -> &mut [u8] {
        &mut self.bytes[self.begin + offset..self.begin + offset + len]
    }
}

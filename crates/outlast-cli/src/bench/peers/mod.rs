//! Stores that users would pick instead, as contenders of benchmarks: real ones on this machine,
//! started by the benchmark and ended with it.
//!
//! | module | content |
//! |---|---|
//! | [`redis`], [`memcached`], [`etcd`] | servers, and a client of each in this process |
//! | [`program`] | Hazelcast and LMDB, which are called from programs of `bench/peers` |
//! | [`server`] | processes that end with the benchmark, and their folder |
//!
//! All contenders use equal keys, sizes and orders of calls.

mod etcd;
mod memcached;
mod program;
mod redis;
mod server;

pub(in crate::bench) use etcd::{EtcdCluster, Grpc};
pub(in crate::bench) use program::Hazelcast;
pub(in crate::bench) use redis::{RedisCluster, slot_of};
pub(crate) use server::PeerServer;
pub(super) use server::command;
pub(in crate::bench) use server::{Place, Servers};

use crate::bench::pace::Pace;
use anyhow::{Context, ensure};
use clap::ValueEnum;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A store that users would pick instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PeerName {
    /// A server and replicas; SET, and WAIT for all of them, in a round trip
    Redis,
    /// Three members, by gRPC; their logs are in memory
    Etcd,
    /// A member for each replica, called from inside a member's Java machine
    Hazelcast,
    /// A server with a single copy, the floor of a store over sockets
    Memcached,
    /// A single copy in shared memory, with a transaction for each put
    Lmdb,
}

/// The call that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Put,
    Get,
    /// Half of the calls are puts and half are gets, in random order.
    Mixed,
}

/// What callers do for a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) call: Call,
    pub(super) size: usize,
    pub(super) keys: usize,
    pub(super) length: Duration,
    /// How many callers there are, each with a connection or thread of its own.
    pub(super) callers: usize,
    /// The time from the beginning of a call to that of the next, by each caller. Without it, each
    /// caller makes a call when the last has returned.
    pub(super) period: Option<Duration>,
}

/// A started peer. Its processes end when it is dropped, and with this process.
pub(super) struct Peer {
    pub(super) name: PeerName,
    pub(super) version: String,
    /// How many copies of each value there are.
    pub(super) copies: usize,
    client: Box<dyn Client>,
    servers: Servers,
}

/// Makes calls on a peer.
trait Client {
    /// Carries out a load, over keys and values as [`repeat`] makes them. Returns the time of each
    /// call in nanoseconds.
    fn measure(&mut self, load: &Load) -> anyhow::Result<Vec<u64>>;

    /// The bytes that the values and what belongs to them take, if the peer can tell; without it,
    /// the memory of its processes is taken.
    fn memory(&mut self) -> anyhow::Result<Option<u64>> {
        Ok(None)
    }
}

/// A caller's connection to a server.
trait Connection: Send {
    fn put(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<()>;

    /// Gets a key. Returns the length of its value.
    fn get(&mut self, key: &[u8]) -> anyhow::Result<usize>;
}

impl Peer {
    /// Starts a peer with as many copies of each value, if it can have them.
    pub(super) fn start(name: PeerName, copies: usize, place: &Place<'_>) -> anyhow::Result<Peer> {
        let is_of_memory = matches!(name, PeerName::Memcached | PeerName::Lmdb);
        ensure!(!(place.is_far() && is_of_memory), "it has no copies on other hosts");
        match name {
            PeerName::Redis => redis::start(copies, place),
            PeerName::Etcd => etcd::start(place),
            PeerName::Hazelcast => program::start_hazelcast(copies, place),
            PeerName::Memcached => memcached::start(),
            PeerName::Lmdb => program::start_lmdb(),
        }
    }

    /// The engine, as reports name it.
    pub(super) fn engine(&self) -> &'static str {
        if self.name == PeerName::Lmdb { "memory" } else { "servers" }
    }

    /// How many processes it has.
    pub(super) fn processes(&self) -> usize {
        self.servers.pids().len()
    }

    /// The contender's name in the table.
    pub(super) fn contender(&self, call: Call) -> &'static str {
        match (self.name, call) {
            (PeerName::Redis, Call::Put) => "Redis SET + WAIT",
            (PeerName::Redis, Call::Get) => "Redis GET",
            (PeerName::Etcd, Call::Put) => "etcd put",
            (PeerName::Etcd, Call::Get) => "etcd get, linearizable",
            (PeerName::Hazelcast, Call::Put) => "Hazelcast IMap set",
            (PeerName::Hazelcast, Call::Get) => "Hazelcast IMap get",
            (PeerName::Memcached, Call::Put) => "memcached set, one copy",
            (PeerName::Memcached, Call::Get) => "memcached get, one copy",
            (PeerName::Lmdb, Call::Put) => "LMDB put, one copy",
            (PeerName::Lmdb, Call::Get) => "LMDB get, one copy",
            (PeerName::Memcached, Call::Mixed) => "memcached, one copy",
            (PeerName::Lmdb, Call::Mixed) => "LMDB, one copy",
            (name, Call::Mixed) => name.title(),
        }
    }

    /// The time of each call, in nanoseconds.
    pub(super) fn measure(&mut self, load: &Load) -> anyhow::Result<Vec<u64>> {
        let measured = self.client.measure(load);
        // The reason that a server gave tells more than the connection that it has closed.
        let measured = match measured {
            Ok(samples) => self.servers.check().map(|()| samples),
            Err(error) => Err(self.servers.reason().unwrap_or(error)),
        };
        measured.with_context(|| format!("{} failed or ended under load", self.name.title()))
    }

    /// The bytes that the peer takes for its values.
    pub(super) fn memory(&mut self) -> anyhow::Result<u64> {
        match self.client.memory()? {
            Some(bytes) => Ok(bytes),
            None => self.servers.pids().into_iter().map(proportional_memory).sum(),
        }
    }
}

/// The memory of a process; of what it shares with others, its part.
fn proportional_memory(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let kib = text.lines().find_map(|line| line.strip_prefix("Pss:")?.split_whitespace().next());
    let kib: u64 = kib.with_context(|| format!("{path} has no Pss"))?.parse()?;
    Ok(kib << 10)
}

impl PeerName {
    pub(super) fn title(self) -> &'static str {
        match self {
            PeerName::Redis => "Redis",
            PeerName::Etcd => "etcd",
            PeerName::Hazelcast => "Hazelcast",
            PeerName::Memcached => "memcached",
            PeerName::Lmdb => "LMDB",
        }
    }
}

/// Has each caller make its calls on a connection of its own. Returns the time of each call in
/// nanoseconds.
fn measure_connections(
    load: &Load,
    mut connect: impl FnMut() -> anyhow::Result<Box<dyn Connection>>,
) -> anyhow::Result<Vec<u64>> {
    let mut connections =
        (0..load.callers).map(|_| connect()).collect::<anyhow::Result<Vec<_>>>()?;
    if load.call != Call::Put {
        let value = vec![1; load.size];
        for index in 0..load.keys {
            connections[0].put(key_name(load.size, index).as_bytes(), &value)?;
        }
    }
    let begin = Instant::now() + Duration::from_millis(5);
    std::thread::scope(|scope| {
        let callers: Vec<_> = connections
            .iter_mut()
            .enumerate()
            .map(|(caller, connection)| {
                scope.spawn(move || repeat(load, caller, begin, connection.as_mut()))
            })
            .collect();
        let mut samples = Vec::new();
        for caller in callers {
            let caller = caller.join().map_err(|_| anyhow::anyhow!("a caller panicked"))?;
            samples.extend(caller?);
        }
        Ok(samples)
    })
}

/// The key of a number, which all contenders use.
pub(super) fn key_name(size: usize, index: usize) -> String {
    format!("bench/{size}/{index}")
}

/// Chooses the next calls of a caller: keys in turn for puts, and for gets in the random order of
/// the store's own gets.
pub(super) struct Choice {
    random: u64,
    next: usize,
}

impl Choice {
    /// The callers begin at different keys.
    pub(super) fn new(load: &Load, caller: usize) -> Choice {
        Choice { random: 1 + caller as u64, next: caller * load.keys / load.callers.max(1) }
    }

    /// Whether the next call is a put, and the number of its key.
    pub(super) fn next(&mut self, load: &Load) -> (bool, usize) {
        if load.call == Call::Put {
            let index = self.next;
            self.next = (self.next + 1) % load.keys;
            return (true, index);
        }
        self.random =
            self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let index = ((self.random >> 33) as usize * load.keys) >> 31;
        (load.call == Call::Mixed && self.random >> 32 & 1 == 1, index)
    }
}

/// Makes the calls of a caller. Returns the time of each in nanoseconds.
fn repeat(
    load: &Load,
    caller: usize,
    begin: Instant,
    connection: &mut dyn Connection,
) -> anyhow::Result<Vec<u64>> {
    let value = vec![1; load.size];
    let names: Vec<String> = (0..load.keys).map(|index| key_name(load.size, index)).collect();
    let mut choice = Choice::new(load, caller);
    let mut samples = Vec::new();
    let mut pace = Pace::new(begin, load.length, load.period);
    while let Some(begin) = pace.next() {
        let (is_put, index) = choice.next(load);
        let name = names[index].as_bytes();
        if is_put {
            connection.put(name, &value)?;
        } else {
            let (size, found) = (load.size, connection.get(name)?);
            ensure!(found == size, "a value of {size} bytes came back with {found}");
        }
        samples.push(begin.elapsed().as_nanos() as u64);
    }
    Ok(samples)
}

/// The path of a program: from a variable, from PATH, or from a place in a `target` folder of this
/// folder or a folder above it.
fn find(program: &str, variable: &str, in_target: &str, install: &str) -> anyhow::Result<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join(program));
    let above = in_target_folders(in_target);
    let runs = |server: &PathBuf| {
        let output = std::process::Command::new(server).arg("--version").output();
        output.is_ok_and(|output| output.status.success())
    };
    let found =
        named.map_or_else(|| in_path.chain(above).find(runs), |named| Some(named).filter(runs));
    found.with_context(|| {
        format!(
            "found no {program} that runs: set {variable}, add it to PATH, or install it with \
             `cargo xtask {install}`"
        )
    })
}

/// A place below the `target` folders of this folder and of the folders above it.
fn in_target_folders(place: &str) -> impl Iterator<Item = PathBuf> {
    let here = std::env::current_dir().unwrap_or_default();
    let folders: Vec<PathBuf> =
        here.ancestors().map(|folder| folder.join("target").join(place)).collect();
    folders.into_iter()
}

/// The first line that a program writes when it is asked for its version.
fn version_of(program: &std::path::Path) -> String {
    let output = std::process::Command::new(program).arg("--version").output();
    let text = output.map_or(String::new(), |output| {
        String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_string()
    });
    let number =
        |word: &&str| word.trim_start_matches("v=").starts_with(|c: char| c.is_ascii_digit());
    let words: Vec<&str> = text.split_whitespace().collect();
    let found = words.iter().find(|word| number(word) && word.contains('.'));
    found.map_or("unknown".into(), |word| word.trim_start_matches("v=").to_string())
}

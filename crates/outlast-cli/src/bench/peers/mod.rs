//! Stores that users would pick instead, as contenders of `outlast bench put` and `outlast bench
//! get`: real ones on this machine, started by the benchmark and ended with it.
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

pub(crate) use server::PeerServer;
pub(super) use server::command;

use anyhow::Context;
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
}

/// A started peer. Its processes end when it is dropped, and with this process.
pub(super) struct Peer {
    pub(super) name: PeerName,
    pub(super) version: String,
    pub(super) servers: usize,
    /// How many copies of each value there are.
    pub(super) copies: usize,
    client: Box<dyn Client>,
}

/// Makes calls on a peer.
trait Client {
    /// Makes calls of a kind for this long, over keys and values as [`repeat`] makes them. Returns
    /// the time of each call in nanoseconds.
    fn measure(
        &mut self,
        call: Call,
        size: usize,
        keys: usize,
        length: Duration,
    ) -> anyhow::Result<Vec<u64>>;
}

impl Peer {
    /// Starts a peer with as many copies of each value, if it can have them.
    pub(super) fn start(name: PeerName, copies: usize) -> anyhow::Result<Peer> {
        match name {
            PeerName::Redis => redis::start(copies),
            PeerName::Etcd => etcd::start(),
            PeerName::Hazelcast => program::start_hazelcast(copies),
            PeerName::Memcached => memcached::start(),
            PeerName::Lmdb => program::start_lmdb(),
        }
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
        }
    }

    /// The time of each call, in tenths of nanoseconds.
    pub(super) fn measure(
        &mut self,
        call: Call,
        size: usize,
        keys: usize,
        length: Duration,
    ) -> anyhow::Result<Vec<u64>> {
        let what = || format!("{} failed or ended under load", self.name.title());
        let samples = self.client.measure(call, size, keys, length).with_context(what)?;
        Ok(samples.into_iter().map(|ns| ns * 10).collect())
    }
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

/// Makes a call for this long, over keys in turn for puts, and in the random order of the store's
/// own gets. Returns the time of each call in nanoseconds.
fn repeat(
    call: Call,
    size: usize,
    keys: usize,
    length: Duration,
    mut put: impl FnMut(&[u8], &[u8]) -> anyhow::Result<()>,
    mut get: impl FnMut(&[u8]) -> anyhow::Result<usize>,
) -> anyhow::Result<Vec<u64>> {
    let value = vec![1; size];
    let names: Vec<String> = (0..keys).map(|index| format!("bench/{size}/{index}")).collect();
    if call == Call::Get {
        names.iter().try_for_each(|name| put(name.as_bytes(), &value))?;
    }
    let (mut samples, mut next, mut random) = (Vec::new(), 0, 1u64);
    let end = Instant::now() + length;
    while Instant::now() < end {
        let index = match call {
            Call::Put => next,
            Call::Get => {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                ((random >> 33) as usize * keys) >> 31
            }
        };
        next = (next + 1) % keys;
        let name = names[index].as_bytes();
        let begin = Instant::now();
        match call {
            Call::Put => put(name, &value)?,
            Call::Get => {
                let found = get(name)?;
                anyhow::ensure!(found == size, "a value of {size} bytes came back with {found}");
            }
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

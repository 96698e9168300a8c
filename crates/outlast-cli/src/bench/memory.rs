//! `outlast bench memory`: what a small value costs in memory, with all its copies.

use super::load::{start_peers, versions_of};
use super::peers::{Call, Load, PeerName, Place, key_name};
use super::{BenchArgs, COMPARED, Origin, Row, expect_ok, publish_with};
use crate::members::say_line;
use crate::quantity;
use crate::report::say;
use anyhow::Context;
use clap::Args;
use outlast::launch::{Launch, Output};
use outlast::store::{Options, Store};
use outlast::{JoinOptions, MemberId};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
A store is filled with keys of up to 20 bytes, and the memory that the values and what belongs to
them take is divided by the number of keys, all copies together. Outlast counts its values and
records; Redis and memcached are asked; of Hazelcast the heaps of all members are taken after a
collection, and of etcd and LMDB the memory of their processes. Memory that is there before the
first key does not count.

Examples:
  Twenty thousand values of 64 bytes:
      outlast bench memory --peers redis,etcd,hazelcast,memcached,lmdb";

/// Measure the memory that a key takes, with all its copies
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct MemoryBench {
    /// How many processes the job has
    #[arg(short = 'n', long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    members: u16,
    /// How many replicas each value has
    #[arg(long, value_name = "R", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=8))]
    replicas: u8,
    /// How many keys the store is filled with
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1000..=16_000_000))]
    keys: u32,
    /// How many keys the store is told to expect [default: the number of keys]
    #[arg(long, value_name = "N")]
    expected_keys: Option<u32>,
    /// The size of the values
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes, default_value = "64")]
    size: u64,
    /// Measure these stores in this run, too, separated by commas
    #[arg(long, value_name = "PEERS", value_delimiter = ',')]
    peers: Vec<PeerName>,
    #[command(flatten)]
    pub(super) args: BenchArgs,
}

/// A member of the benchmark; started by it
#[derive(Args)]
pub(crate) struct MemoryBenchMember {
    #[arg(long)]
    keys: usize,
    #[arg(long)]
    expected_keys: usize,
    #[arg(long)]
    size: usize,
    #[arg(long)]
    replicas: usize,
}

const LIMIT: Duration = Duration::from_secs(300);

impl MemoryBench {
    pub(super) fn execute(self) -> anyhow::Result<bool> {
        let (members, replicas) = (usize::from(self.members), usize::from(self.replicas));
        let bytes = u64::from(self.keys) * self.size;
        if replicas > members {
            crate::usage_error(
                "bench",
                format!("{replicas} replicas need as many members, and there are {members}"),
            );
        }
        if bytes > 256 << 20 {
            crate::usage_error("bench", format!("{bytes} bytes of values; at most 256M"));
        }
        let json = self.args.json.as_deref();
        let row = |contender: &str, engine: &str, members: usize, copies: usize, bytes: u64| Row {
            what: "memory of a key with all copies".into(),
            engine: engine.into(),
            members,
            replicas: Some(copies),
            size: Some(self.size),
            contender: contender.into(),
            samples: self.keys as usize,
            bytes: Some(bytes / u64::from(self.keys)),
            ..Row::default()
        };
        let (bytes, tables) = self.of_outlast(members)?;
        let mut rows = vec![row("Outlast", "shm", members, replicas, bytes)];
        let per_replica = tables as f64 / f64::from(self.keys) / replicas as f64;
        let mut remarks =
            vec![format!("Index and roots of Outlast: {per_replica:.1} bytes for each replica")];
        say(json, &remarks[0]);
        let mut peers =
            start_peers(&self.peers, |_| replicas, &Place::Here, &self.args, &mut remarks);
        if !peers.is_empty() {
            remarks.insert(0, COMPARED.into());
        }
        for peer in &mut peers {
            let load = |keys: usize| Load {
                call: Call::Get,
                size: self.size as usize,
                keys,
                length: Duration::from_millis(1),
                callers: 1,
                period: None,
            };
            peer.measure(&load(1))?;
            let before = peer.memory()?;
            peer.measure(&load(self.keys as usize))?;
            let bytes = peer.memory()?.saturating_sub(before);
            say(json, format_args!("{}: {} keys", peer.name.title(), self.keys));
            let (name, processes) = (peer.name.title(), peer.processes());
            rows.push(row(name, peer.engine(), processes, peer.copies, bytes));
        }
        let versions = versions_of(&peers);
        publish_with(&self.args, rows, &Origin { remarks, versions, ..Origin::default() })?;
        Ok(true)
    }

    /// The bytes of values and records of all members, and of their indexes and roots.
    fn of_outlast(&self, members: usize) -> anyhow::Result<(u64, u64)> {
        let expected = self.expected_keys.unwrap_or(self.keys).to_string();
        let mut running = Launch::new(members)
            .program(std::env::current_exe()?)
            .args(["memory-bench-member", "--keys", &self.keys.to_string()])
            .args(["--expected-keys", &expected])
            .args(["--size", &self.size.to_string(), "--replicas", &self.replicas.to_string()])
            .die_with_launcher(true)
            .output(Output::Capture)
            .start()?;
        let outcome = running.wait(LIMIT);
        expect_ok(&outcome)?;
        let mut sums = (0, 0);
        for member in 0..members as u32 {
            let output = running.output(MemberId(member));
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let told = |what: &str| -> anyhow::Result<u64> {
                let bytes = text.lines().find_map(|line| line.strip_prefix(what));
                let bytes = bytes.with_context(|| format!("member {member} told no memory"))?;
                bytes.parse().context("the bytes of a member")
            };
            sums = (sums.0 + told("bytes ")?, sums.1 + told("tables ")?);
        }
        Ok(sums)
    }
}

impl MemoryBenchMember {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let job = JoinOptions::new().time_limit(LIMIT).join()?;
        let options = Options::new().replicas(self.replicas).expected_keys(self.expected_keys);
        let store = Store::open(&job, options)?;
        let wait_for = |count: i64| -> anyhow::Result<()> {
            let deadline = Instant::now() + LIMIT;
            while store.add(b"ready", 0)? < count {
                anyhow::ensure!(Instant::now() < deadline, "a member is missing");
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        };
        let in_use = || -> anyhow::Result<u64> {
            let memory = store.memory_use()?;
            Ok(memory.values + memory.records)
        };
        let before = in_use()?;
        store.add(b"ready", 1)?;
        wait_for(job.members() as i64)?;
        if job.me() == MemberId(0) {
            let value = vec![1; self.size];
            for index in 0..self.keys {
                store.put(key_name(self.size, index).as_bytes(), &value)?;
            }
            store.add(b"ready", 1)?;
        }
        wait_for(job.members() as i64 + 1)?;
        say_line(&format!("bytes {}", in_use()?.saturating_sub(before)))?;
        // All that the segment has beside blocks.
        let tables = job.segment_len(job.me())?.saturating_sub(store.memory_use()?.total());
        say_line(&format!("tables {tables}"))?;
        store.close()?;
        job.leave()?;
        Ok(true)
    }
}

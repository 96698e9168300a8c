//! `outlast bench mixed`, `rate` and `throughput`.

use super::super::peers::{Call, PeerName, Place};
use super::super::{BenchArgs, COMPARED, Origin, publish_with};
use super::{By, Case, Ours, keys_of, measure, start_peers, versions_of};
use crate::quantity;
use clap::Args;

const MIXED_EXAMPLES: &str = "\
Half of the calls are puts and half are gets, of random keys, by a single caller and by as many
callers as the job has members. Each caller makes a call when the last has returned.

Examples:
  Values of 64 bytes and of 1 KiB, against stores that users would pick instead:
      outlast bench mixed --sizes 64,1K --peers redis,etcd,hazelcast,memcached,lmdb";

const RATE_EXAMPLES: &str = "\
A caller begins a put every so often, whether or not the last put has returned in time, and the time
of a put counts from the moment at which it was due. So a pause counts for all puts that were due
meanwhile (no coordinated omission), as it does for users.

Examples:
  A thousand and five thousand puts a second:
      outlast bench rate --rates 1000,5000 --peers redis,etcd,hazelcast";

const THROUGHPUT_EXAMPLES: &str = "\
More and more callers put at once, each when its last put has returned. The callers of Outlast are
threads of a single member, and then members with a single thread each; those of a peer are
connections, or threads inside its members.

Examples:
  One to eight callers:
      outlast bench throughput --callers 1,2,4,8 --peers redis,etcd,hazelcast,memcached,lmdb";

/// The options of all loads.
#[derive(Args)]
pub(in crate::bench) struct LoadArgs {
    /// How many keys there are; at most 64 MiB of values in all
    #[arg(long, value_name = "N", default_value_t = 1024)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    keys: u32,
    /// How many replicas each value has
    #[arg(long, value_name = "R", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=8))]
    replicas: u8,
    /// Measure these stores in this run, too, separated by commas
    #[arg(long, value_name = "PEERS", value_delimiter = ',')]
    peers: Vec<PeerName>,
    /// How long each measurement takes with each contender
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
    #[command(flatten)]
    pub(in crate::bench) args: BenchArgs,
}

/// Measure puts and gets in turn, by one caller and by many
#[derive(Args)]
#[command(after_help = MIXED_EXAMPLES)]
pub(crate) struct MixedBench {
    /// How many processes the job has
    #[arg(short = 'n', long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    members: u16,
    /// The sizes of the values, separated by commas
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes, value_delimiter = ',')]
    #[arg(default_value = "64,1K")]
    sizes: Vec<u64>,
    #[command(flatten)]
    pub(in crate::bench) load: LoadArgs,
}

/// Measure puts at a fixed rate, each from the moment at which it was due
#[derive(Args)]
#[command(after_help = RATE_EXAMPLES)]
pub(crate) struct RateBench {
    /// How many processes the job has
    #[arg(short = 'n', long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    members: u16,
    /// How many puts begin in a second, separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "500,2000")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rates: Vec<u64>,
    /// The size of the values
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes, default_value = "64")]
    size: u64,
    #[command(flatten)]
    pub(in crate::bench) load: LoadArgs,
}

/// Measure how many puts a second one to many callers make
#[derive(Args)]
#[command(after_help = THROUGHPUT_EXAMPLES)]
pub(crate) struct ThroughputBench {
    /// How many callers put at once, separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,8")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    callers: Vec<u16>,
    /// The size of the values
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes, default_value = "64")]
    size: u64,
    #[command(flatten)]
    pub(in crate::bench) load: LoadArgs,
}

impl LoadArgs {
    /// Ends with status 2 if the options contradict each other.
    fn check(&self, members: usize, sizes: &[u64]) {
        check_seconds(self.seconds);
        check_sizes(sizes);
        if usize::from(self.replicas) > members {
            crate::usage_error(
                "bench",
                format!("{} replicas need as many members, and there are {members}", self.replicas),
            );
        }
    }

    fn case(&self, what: String, call: Call, size: u64, callers: usize) -> Case {
        Case {
            what,
            call,
            size: size as usize,
            keys: keys_of(self.keys as usize, size as usize),
            callers,
            rate: None,
            ours: Vec::new(),
            has_peers: true,
        }
    }

    fn run(&self, cases: &[Case]) -> anyhow::Result<bool> {
        let mut remarks = Vec::new();
        let copies = usize::from(self.replicas);
        let mut peers =
            start_peers(&self.peers, |_| copies, &Place::Here, &self.args, &mut remarks);
        if !peers.is_empty() {
            remarks.insert(0, COMPARED.into());
        }
        let rows = measure(cases, &mut peers, self.seconds, &self.args)?;
        let versions = versions_of(&peers);
        publish_with(&self.args, rows, &Origin { remarks, versions, ..Origin::default() })?;
        Ok(true)
    }
}

/// Ends with status 2 if the time is none or too long.
pub(in crate::bench) fn check_seconds(seconds: f64) {
    if !(seconds > 0.0 && seconds <= 600.0) {
        crate::usage_error("bench", format!("{seconds} seconds; above 0, to 600"));
    }
}

/// Ends with status 2 if a value is larger than all peers take.
pub(super) fn check_sizes(sizes: &[u64]) {
    const SIZE_MAX: u64 = 1 << 20;
    if let Some(size) = sizes.iter().find(|&&size| size > SIZE_MAX) {
        crate::usage_error("bench", format!("a value of {size} bytes; at most 1M"));
    }
}

impl MixedBench {
    pub(in crate::bench) fn execute(self) -> anyhow::Result<bool> {
        let members = usize::from(self.members);
        self.load.check(members, &self.sizes);
        let mut cases = Vec::new();
        let mut counts = vec![1, members];
        counts.dedup();
        for callers in counts {
            for &size in &self.sizes {
                let what = format!("mixed, {}", callers_text(callers));
                let ours = Ours {
                    name: "Outlast, by key".into(),
                    members,
                    replicas: usize::from(self.load.replicas),
                    calling: callers,
                    threads: 1,
                    by: By::Key,
                };
                let by_handle =
                    Ours { name: "Outlast, by handle".into(), by: By::Handle, ..ours.clone() };
                let case = self.load.case(what, Call::Mixed, size, callers);
                cases.push(Case { ours: vec![ours, by_handle], ..case });
            }
        }
        self.load.run(&cases)
    }
}

/// A number of callers in words.
pub(super) fn callers_text(callers: usize) -> String {
    if callers == 1 { "one caller".into() } else { format!("{callers} callers") }
}

impl RateBench {
    pub(in crate::bench) fn execute(self) -> anyhow::Result<bool> {
        let members = usize::from(self.members);
        self.load.check(members, &[self.size]);
        let case = |&rate: &u64| {
            let what = format!("{rate} puts a second");
            let ours = Ours {
                name: "Outlast put by key".into(),
                members,
                replicas: usize::from(self.load.replicas),
                calling: 1,
                threads: 1,
                by: By::Key,
            };
            let case = self.load.case(what, Call::Put, self.size, 1);
            Case { rate: Some(rate), ours: vec![ours], ..case }
        };
        self.load.run(&self.rates.iter().map(case).collect::<Vec<_>>())
    }
}

impl ThroughputBench {
    pub(in crate::bench) fn execute(self) -> anyhow::Result<bool> {
        let replicas = usize::from(self.load.replicas);
        let all = usize::from(self.callers.iter().copied().max().unwrap_or(1)).max(replicas);
        self.load.check(all, &[self.size]);
        let case = |&callers: &u16| {
            let callers = usize::from(callers);
            let ours = Ours {
                name: "Outlast, threads of a member".into(),
                members: replicas.max(4),
                replicas,
                calling: 1,
                threads: callers,
                by: By::Key,
            };
            let members = Ours {
                name: "Outlast, members".into(),
                members: callers.max(replicas.max(4)),
                calling: callers,
                threads: 1,
                ..ours.clone()
            };
            let case = self.load.case("throughput of puts".into(), Call::Put, self.size, callers);
            Case { ours: vec![members, ours], ..case }
        };
        self.load.run(&self.callers.iter().map(case).collect::<Vec<_>>())
    }
}

//! `outlast bench poster`: the figure of the published store, with this store in it: the latencies
//! of puts with six replicas among forty processes, and Hazelcast beside it.

use super::super::peers::{Call, PeerName, Place};
use super::super::{BenchArgs, COMPARED, Origin, publish_with};
use super::commands::{callers_text, check_seconds, check_sizes};
use super::{By, Case, Ours, keys_of, measure, start_peers, versions_of};
use crate::quantity;
use crate::report::say;
use clap::Args;

const EXAMPLES: &str = "\
The published store over MPI RMA was compared with Hazelcast in a figure: puts with 6 replicas, and
40 processes on a node. This command makes that figure with Outlast: first a single process puts
while the others lend memory, then all processes put at once. Hazelcast has 6 synchronous backups,
the most that it has, in 7 members, so that each value is at every member. On few cores the members
share Java machines, as many as there are cores, and the report says how many. Its callers are
threads inside them, as many as Outlast has calling processes. Each caller makes a put when its last
has returned. With more callers than
cores the times include waits for the scheduler, for either side.

Examples:
  The figure, with a page for a browser:
      outlast bench poster --report poster.html
  A small one:
      outlast bench poster --members 8 --replicas 3 --seconds 1
  With further stores, where they have as many copies:
      outlast bench poster --peers hazelcast,redis";

/// Measure puts with 6 replicas and 40 processes, with Hazelcast beside it
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PosterBench {
    /// How many processes the job has
    #[arg(short = 'n', long, value_name = "N", default_value_t = 40)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    members: u16,
    /// How many replicas each value has
    #[arg(long, value_name = "R", default_value_t = 6)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=8))]
    replicas: u8,
    /// The sizes of the values, separated by commas
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes, value_delimiter = ',')]
    #[arg(default_value = "64,1K,16K")]
    sizes: Vec<u64>,
    /// Put these stores beside it, separated by commas
    #[arg(long, value_name = "PEERS", value_delimiter = ',', default_value = "hazelcast")]
    peers: Vec<PeerName>,
    /// How many keys there are; at most 64 MiB of values in all
    #[arg(long, value_name = "N", default_value_t = 1024)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    keys: u32,
    /// How long each measurement takes with each contender
    #[arg(long, value_name = "S", default_value_t = 4.0)]
    seconds: f64,
    #[command(flatten)]
    pub(in crate::bench) args: BenchArgs,
}

impl PosterBench {
    pub(in crate::bench) fn execute(self) -> anyhow::Result<bool> {
        let (members, replicas) = (usize::from(self.members), usize::from(self.replicas));
        check_seconds(self.seconds);
        check_sizes(&self.sizes);
        if replicas > members {
            crate::usage_error(
                "bench",
                format!("{replicas} replicas need as many members, and there are {members}"),
            );
        }
        let mut cases = Vec::new();
        let mut counts = vec![1, members];
        counts.dedup();
        for callers in counts {
            for &size in &self.sizes {
                let by_key = Ours {
                    name: "Outlast put by key".into(),
                    members,
                    replicas,
                    calling: callers,
                    threads: 1,
                    by: By::Key,
                };
                let by_handle =
                    Ours { name: "Outlast put by handle".into(), by: By::Handle, ..by_key.clone() };
                cases.push(Case {
                    what: format!("poster, {}", callers_text(callers)),
                    call: Call::Put,
                    size: size as usize,
                    keys: keys_of(self.keys as usize, size as usize),
                    callers,
                    rate: None,
                    ours: vec![by_handle, by_key],
                    has_peers: true,
                });
            }
        }
        let json = self.args.json.as_deref();
        say(json, format_args!("puts with {replicas} replicas, {members} processes"));
        let mut remarks = Vec::new();
        // Six backups beside six replicas: the figure of the poster has minor differences, too.
        let copies = |name| if name == PeerName::Hazelcast { replicas + 1 } else { replicas };
        let mut peers = start_peers(&self.peers, copies, &Place::Here, &self.args, &mut remarks);
        if !peers.is_empty() {
            remarks.insert(0, COMPARED.into());
        }
        if let Some(peer) = peers.iter().find(|peer| peer.name == PeerName::Hazelcast) {
            remarks.push(format!(
                "Hazelcast has {replicas} synchronous backups of each value: {} members in {} Java \
                 machines; its callers are threads inside them. Outlast has {replicas} replicas \
                 among {members} processes; its callers are those processes.",
                replicas + 1,
                peer.processes()
            ));
        }
        let rows = measure(&cases, &mut peers, self.seconds, &self.args)?;
        for line in &remarks {
            say(json, line);
        }
        let versions = versions_of(&peers);
        publish_with(&self.args, rows, &Origin { remarks, versions, ..Origin::default() })?;
        Ok(true)
    }
}

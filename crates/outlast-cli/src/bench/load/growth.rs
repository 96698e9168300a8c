//! `outlast bench growth`: what more members cost a put.

use super::super::peers::Call;
use super::super::{BenchArgs, Origin, Row, publish_with};
use super::commands::check_seconds;
use super::{By, Case, Ours, measure};
use crate::report::say;
use clap::Args;
use outlast::sim::{self, Link, Options as SimOptions};
use outlast::store::{Options, Store};
use outlast::{Job, MemberId};

const EXAMPLES: &str = "\
First jobs of real processes: a member puts while the others lend memory. Then simulated jobs over a
network, where the requests of a put are counted: each step of a compound operation counts as a
request. Those of a member that only opens and closes the store are left out.

Examples:
  2 to 16 processes, and up to 1024 simulated members:
      outlast bench growth
  4096 simulated members, who greet each other when the store opens, which takes many minutes:
      outlast bench growth --members 2 --simulated 4096
  Real processes alone:
      outlast bench growth --simulated 0";

/// Measure puts of 2 to 16 processes, and of simulated members, up to 4096
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GrowthBench {
    /// How many processes the jobs have, separated by commas
    #[arg(short = 'n', long, value_name = "N", value_delimiter = ',', default_value = "2,4,8,16")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    members: Vec<u16>,
    /// How many members the simulated jobs have, separated by commas; 0 skips them
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "16,128,1024")]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=4096))]
    simulated: Vec<u16>,
    /// How long each measurement takes
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
    #[command(flatten)]
    pub(in crate::bench) args: BenchArgs,
}

const SIZE: usize = 64;
const KEYS: usize = 1024;
const REPLICAS: usize = 3;

impl GrowthBench {
    pub(in crate::bench) fn execute(self) -> anyhow::Result<bool> {
        check_seconds(self.seconds);
        let cases: Vec<Case> = self
            .members
            .iter()
            .map(|&members| {
                let members = usize::from(members);
                let ours = Ours {
                    name: format!("{members} processes"),
                    members,
                    replicas: REPLICAS.min(members),
                    calling: 1,
                    threads: 1,
                    by: By::Handle,
                };
                Case {
                    what: "growth, a put by handle".into(),
                    call: Call::Put,
                    size: SIZE,
                    keys: KEYS,
                    callers: 1,
                    rate: None,
                    ours: vec![ours],
                    has_peers: false,
                }
            })
            .collect();
        let mut rows = measure(&cases, &mut [], self.seconds, &self.args)?;
        let floor = rows.first().map_or(1, |row| row.p50_ns).max(1);
        for row in &mut rows {
            row.ratio = Some(row.p50_ns as f64 / floor as f64);
        }
        for &members in self.simulated.iter().filter(|&&members| members > 0) {
            let members = usize::from(members);
            let messages = requests_of_a_put(members);
            say(
                self.args.json.as_deref(),
                format_args!("{members} simulated members: {messages:.1} requests for a put"),
            );
            rows.push(Row {
                what: "growth, requests of a put".into(),
                engine: "sim".into(),
                members,
                replicas: Some(REPLICAS.min(members)),
                size: Some(SIZE as u64),
                contender: format!("{members} simulated members"),
                messages: Some(messages),
                ..Row::default()
            });
        }
        publish_with(&self.args, rows, &Origin::default())?;
        Ok(true)
    }
}

/// The requests that a put sends in a simulated job over a network: those of a member that puts,
/// without those of a member that only opens and closes the store.
///
/// A writer asks all members whether old blocks are free, for as many blocks at once as there are
/// members. So there are some times as many puts as members.
fn requests_of_a_put(members: usize) -> f64 {
    let puts = 4 * members.max(128) as u64;
    let mut options = SimOptions::new(members, 1).link(Link::Network);
    options.steps_max = u64::MAX;
    let report = sim::run(&options, move |job: Job| {
        let replicas = REPLICAS.min(job.members());
        let options = Options::new().replicas(replicas).partitions(8).expected_keys(64);
        let store = Store::open(&job, options).expect("a simulated store opens");
        if job.me() == MemberId(0) {
            let handle = store.handle(b"key").expect("a handle");
            for _ in 0..puts {
                handle.put(&[1; SIZE]).expect("a put");
            }
        }
        store.close().expect("a simulated store closes");
        let _ = job.leave();
    });
    let counters = report.expect_ok().counters;
    let mut others: Vec<u64> = counters[1..].iter().map(|one| one.operations).collect();
    others.sort_unstable();
    let idle = others.get(others.len() / 2).copied().unwrap_or(0);
    counters[0].operations.saturating_sub(idle) as f64 / puts as f64
}

//! `outlast bench failure`: what a killed process costs, with this store and with stores that users
//! would pick instead.
//!
//! Four writers write at a fixed rate, each write to a key of its own, and repeat a write until it
//! is acknowledged. Two of them write keys that the victim is responsible for, and two write other
//! keys. A time counts from the moment at which a write was due. After the run all acknowledged
//! writes are read back.
//!
//! | module | content |
//! |---|---|
//! | [`course`] | the writes of a run, what they say, and their figure |
//! | [`writers`] | the writers, for stores that are called from this process |
//! | [`job`] | a job of this store |
//! | [`peers`] | Redis Cluster, etcd and Hazelcast |

mod course;
mod job;
mod peers;
mod writers;

use super::load::check_seconds;
use super::{BenchArgs, Origin, Row, publish_with};
use crate::quantity;
use crate::report::say;
use clap::{Args, ValueEnum};
use std::time::Duration;

pub(super) use course::{Course, FAILURE, sections};
pub(crate) use job::CourseMember;

const EXAMPLES: &str = "\
Writers write at a fixed rate while a process is killed: half of them keys that this process is
responsible for, half of them other keys. Reported are the time from the kill to the first
acknowledged write of an affected key that was due after the kill, the longest delay of the other
writes, acknowledged writes that are lost, and the time until all copies are back.

All stores run as their users would set them up for this: Outlast with 3 replicas in 4 processes;
Redis Cluster with 3 masters and 2 replicas each, where a write is acknowledged by WAIT 1, and a
master counts as failed after 2 s (15 s by default); etcd with 3 members, where the leader is
killed; Hazelcast with 2 synchronous backups in 4 members.

Examples:
  All of them, with a page for a browser:
      outlast bench failure --peers redis,etcd,hazelcast --report failure.html
  Outlast alone, five kills:
      outlast bench failure --kills 5 --seconds 4";

/// Measure what a killed process costs writers, here and with other stores
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct FailureBench {
    /// Measure these stores in this run, too, separated by commas
    #[arg(long, value_name = "PEERS", value_delimiter = ',')]
    peers: Vec<FailingPeer>,
    /// How long the writers write; a quarter of it is before the kill
    #[arg(long, value_name = "S", default_value_t = 12.0)]
    seconds: f64,
    /// How many writes all writers together begin in a second
    #[arg(long, value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u64).range(4..=100_000))]
    rate: u64,
    /// The size of the values
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes, default_value = "64")]
    size: u64,
    /// How many kills to measure, each in a run of its own
    #[arg(long, value_name = "K", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=100))]
    kills: u16,
    #[command(flatten)]
    pub(super) args: BenchArgs,
}

/// A store that goes on after the death of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FailingPeer {
    /// A Redis Cluster of three masters with two replicas each
    Redis,
    /// Three members; the leader is killed
    Etcd,
    /// Four members with two synchronous backups
    Hazelcast,
}

impl FailingPeer {
    fn title(self) -> &'static str {
        match self {
            FailingPeer::Redis => "Redis",
            FailingPeer::Etcd => "etcd",
            FailingPeer::Hazelcast => "Hazelcast",
        }
    }
}

/// How many writers there are. The first half writes keys of the victim.
const WRITERS: usize = 4;

/// What the writers of a run do.
#[derive(Clone, Copy)]
struct Plan {
    length: Duration,
    /// The time from a write of a writer to its next.
    period: Duration,
    size: usize,
}

impl Plan {
    /// How long the writers write before the kill.
    fn before(&self) -> Duration {
        self.length / 4
    }
}

impl FailureBench {
    pub(super) fn execute(self) -> anyhow::Result<bool> {
        check_seconds(self.seconds);
        if self.size > 1 << 20 {
            crate::usage_error("bench", format!("a value of {} bytes; at most 1M", self.size));
        }
        let json = self.args.json.as_deref();
        let plan = Plan {
            length: Duration::from_secs_f64(self.seconds),
            period: Duration::from_secs(WRITERS as u64) / self.rate as u32,
            size: self.size as usize,
        };
        let mut origin = Origin::default();
        let mut rows: Vec<Row> = Vec::new();
        let mut names = self.peers.clone();
        names.dedup();
        let contenders = std::iter::once(None).chain(names.into_iter().map(Some));
        for peer in contenders {
            let mut courses: Vec<Course> = Vec::new();
            for _ in 0..self.kills {
                let course = match peer {
                    None => job::run(&plan),
                    Some(FailingPeer::Redis) => peers::redis(&plan),
                    Some(FailingPeer::Etcd) => peers::etcd(&plan),
                    Some(FailingPeer::Hazelcast) => peers::hazelcast(&plan),
                };
                match (course, peer) {
                    (Ok(course), _) => {
                        say(json, course.line());
                        courses.push(course);
                    }
                    (Err(error), None) => return Err(error),
                    (Err(error), Some(peer)) => {
                        let line = format!("left out: {}: {error:#}", peer.title());
                        say(json, &line);
                        origin.remarks.push(line);
                        break;
                    }
                }
            }
            rows.extend(course::rows(&courses));
            if let Some(course) = courses.first() {
                origin.versions.extend(course.version.clone());
                origin.remarks.push(course.remark.clone());
            }
            // A figure for the first kill of each contender is enough.
            origin.courses.extend(Course::first_of(courses));
        }
        publish_with(&self.args, rows, &origin)?;
        Ok(true)
    }
}

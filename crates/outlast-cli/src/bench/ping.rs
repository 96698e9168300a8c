//! The published way to put, as a baseline of `outlast bench put`: a ping that a helper thread
//! answers, then MPI_Put and MPI_Win_flush. Measured are its speed, and how often it hangs when the
//! target is killed, against the store under kills at the same moments.

use super::failure::wait_for_line;
use super::openmpi::OpenMpi;
use super::{Row, expect_ok};
use crate::hosts::Hosts;
use crate::members::say_line;
use anyhow::{Context, bail, ensure};
use outlast::launch::{Launch, Output};
use outlast::store::Store;
use outlast::{Job, MemberId};
use std::time::{Duration, Instant};

const SOURCE: &str = include_str!("../../peers/openmpi_ping.c");
const PONG_SOURCE: &str = include_str!("../../peers/openmpi_pong.c");

/// How long a job with a kill makes puts, and the latest moment of the kill.
const JOB: Duration = Duration::from_millis(800);
const KILL_BEFORE: Duration = Duration::from_millis(400);
/// A call that takes longer than this has hung.
const HUNG: Duration = Duration::from_secs(2);

/// Parses the times that a program has written in nanoseconds, into tenths of nanoseconds.
fn samples(lines: &str) -> anyhow::Result<Vec<u64>> {
    let samples = lines.trim().split(' ').skip(1).map(|sample| Ok(sample.parse::<u64>()? * 10));
    samples.collect::<anyhow::Result<_>>().context("what the Open MPI program wrote")
}

/// The floor between hosts: an MPI message to a rank and the same bytes back.
pub(super) struct Pong {
    program: OpenMpi,
    members: usize,
}

impl Pong {
    /// Compiles the program.
    pub(super) fn find(members: usize) -> anyhow::Result<Pong> {
        ensure!(members >= 2, "a single rank has no other rank to send to");
        Ok(Pong { program: OpenMpi::compile("openmpi_pong", PONG_SOURCE)?, members })
    }

    /// The time of each round trip, in tenths of nanoseconds.
    pub(super) fn measure(
        &self,
        size: u64,
        length: Duration,
        hosts: Option<&Hosts>,
    ) -> anyhow::Result<Vec<u64>> {
        let args = [length.as_millis().to_string(), size.to_string()];
        samples(&self.program.run(self.members, length, &args, hosts)?)
    }
}

pub(super) struct Ping {
    program: OpenMpi,
    members: usize,
    replicas: usize,
}

impl Ping {
    /// Compiles the program. The rank that puts holds no replica itself.
    pub(super) fn find(members: usize, replicas: usize) -> anyhow::Result<Ping> {
        ensure!(
            replicas < members,
            "{replicas} replicas at other ranks need {} ranks",
            replicas + 1
        );
        Ok(Ping { program: OpenMpi::compile("openmpi_ping", SOURCE)?, members, replicas })
    }

    fn run(
        &self,
        length: Duration,
        kill_after: Option<Duration>,
        size: u64,
        hosts: Option<&Hosts>,
    ) -> anyhow::Result<String> {
        let kill_after = kill_after.map_or("-1".into(), |after| after.as_micros().to_string());
        let args = [
            self.replicas.to_string(),
            length.as_millis().to_string(),
            kill_after,
            size.to_string(),
        ];
        self.program.run(self.members, length + HUNG, &args, hosts)
    }

    /// Puts values of this size for this long. Returns the time of each put, in tenths of
    /// nanoseconds.
    pub(super) fn measure(
        &self,
        size: u64,
        length: Duration,
        hosts: Option<&Hosts>,
    ) -> anyhow::Result<Vec<u64>> {
        samples(&self.run(length, None, size, hosts)?)
    }

    /// Runs a job of each side for each kill, alternately, with equal moments of the kill. Returns
    /// a row for each side.
    pub(super) fn compare_kills(
        &self,
        kills: u16,
        size: u64,
        tell: impl FnOnce(String),
    ) -> anyhow::Result<Vec<Row>> {
        let new = |contender: &str| Row {
            what: "put, target killed".into(),
            engine: "mpi".into(),
            members: self.members,
            replicas: Some(self.replicas),
            size: Some(size),
            contender: contender.into(),
            hung: Some(0),
            ..Row::default()
        };
        let (mut theirs, mut ours) =
            (new("published way"), Row { engine: "shm".into(), ..new("put by handle") });
        let (mut errors, mut unnoticed, mut longest) = (0, 0, Vec::new());
        for kill in 0..kills {
            let kill_after = KILL_BEFORE * u32::from(kill) / u32::from(kills) + KILL_BEFORE / 8;
            match self.run(JOB, Some(kill_after), size, None)?.lines().last() {
                Some("hung") => *theirs.hung.get_or_insert(0) += 1,
                Some("error") => errors += 1,
                Some("unnoticed") => unnoticed += 1,
                other => bail!("the Open MPI program said {other:?}"),
            }
            longest.push(self.kill_one_of_ours(kill_after, size)?);
        }
        tell(format!(
            "{kills} kills: the published way hung {} times, ended with an error {errors} times, \
             and did not notice {unnoticed} times; \
             the store went on each time",
            theirs.hung.unwrap_or(0)
        ));
        ours.hung =
            Some(longest.iter().filter(|longest| **longest > HUNG.as_nanos() as u64).count());
        theirs.samples = usize::from(kills);
        Ok(vec![theirs, ours.with_samples(longest)])
    }

    /// The longest call of a member while another member is killed, in nanoseconds.
    fn kill_one_of_ours(&self, kill_after: Duration, size: u64) -> anyhow::Result<u64> {
        let mut running = Launch::new(self.members)
            .program(std::env::current_exe()?)
            .args(["store-bench-member", "--what", SURVIVE, "--keys", "64"])
            .args(["--replicas", &self.replicas.to_string(), "--sizes", &size.to_string()])
            .args(["--seconds", &JOB.as_secs_f64().to_string()])
            .die_with_launcher(true)
            .output(Output::Capture)
            .start()?;
        wait_for_line(&running, MemberId(0), "ready")?;
        std::thread::sleep(kill_after);
        running.kill(MemberId(self.members as u32 - 1))?;
        let outcome = running.wait(JOB + HUNG + Duration::from_secs(60));
        expect_ok(&outcome)?;
        let said = outcome.stdout(MemberId(0));
        let longest = said.lines().find_map(|line| line.strip_prefix("longest ")?.parse().ok());
        longest.context("the member did not say how long its calls took")
    }
}

/// The task of a member of the store's benchmark that makes puts while another member is killed.
pub(super) const SURVIVE: &str = "survive";

/// Makes puts for this long and reports the longest call. All calls must succeed although a member
/// is killed.
pub(super) fn survive(
    job: &Job,
    store: &Store,
    size: u64,
    keys: usize,
    seconds: f64,
) -> anyhow::Result<()> {
    let value = vec![1; size as usize];
    let handles = (0..keys).map(|key| store.handle(format!("{}/{key}", job.me()).as_bytes()));
    let handles = handles.collect::<Result<Vec<_>, _>>()?;
    for handle in &handles {
        handle.put(&value)?;
    }
    say_line("ready")?;
    let (begin, mut longest) = (Instant::now(), Duration::ZERO);
    for handle in handles.iter().cycle() {
        let before = Instant::now();
        handle.put(&value)?;
        longest = longest.max(before.elapsed());
        if begin.elapsed().as_secs_f64() > seconds {
            break;
        }
    }
    say_line(&format!("longest {}", longest.as_nanos()))
}

//! `outlast bench detection`: how long after a kill -9 the survivors know of the death.

use super::{BenchArgs, Row, expect_ok, publish};
use crate::members::{machine_ns, say_line as tell};
use crate::quantity;
use crate::report::say;
use anyhow::{Context, ensure};
use clap::Args;
use outlast::launch::{Launch, Output, Running};
use outlast::{Epoch, JoinOptions, MemberId};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
A job is started, and its last member is killed with kill -9. Each survivor takes the time when it
learns of the death. Then the next member is killed, until a single member is left; then a new job
starts, until there were enough kills. A time runs from just before the kill to the survivor's own
reading of the clock. Each victim uses --map bytes of memory, which the kernel has to tear down.

Examples:
  Survivors that wait, victims with 1 GiB:
      outlast bench detection
  Survivors that compute, more of them than cores:
      outlast bench detection --members 8 --busy --map 64M";

/// Measure how long after a kill -9 each survivor knows of the death
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct DetectionBench {
    /// How many processes a job has
    #[arg(short = 'n', long, alias = "ranks", value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(2..=64))]
    members: u16,
    /// How many kills to measure
    #[arg(long, value_name = "K", default_value_t = 30)]
    kills: usize,
    /// How much memory each victim has in use
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes, default_value = "1G")]
    map: u64,
    /// Survivors compute and poll the epoch, instead of waiting for the death
    #[arg(long)]
    busy: bool,
    #[command(flatten)]
    pub(super) args: BenchArgs,
}

/// A member of the benchmark; started by it
#[derive(Args)]
pub(crate) struct DetectionMember {
    #[arg(long)]
    map: u64,
    /// After how many deaths the member ends
    #[arg(long)]
    kills: u64,
    #[arg(long)]
    busy: bool,
}

/// How long the benchmark waits for a member.
const LIMIT: Duration = Duration::from_secs(60);

impl DetectionMember {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let job = JoinOptions::new().join()?;
        if job.me() != MemberId(0) {
            job.grow(self.map)?;
            let block = vec![1; 1 << 20];
            for offset in (0..self.map).step_by(block.len()) {
                let len = block.len().min((self.map - offset) as usize);
                job.put(Epoch::ANY, job.me(), offset, &block[..len])?;
            }
        }
        tell("ready")?;
        let mut seen = Epoch(0);
        let last = Epoch(self.kills);
        let end = Instant::now() + LIMIT;
        while seen < last && Instant::now() < end {
            let bell = job.bell();
            if job.epoch() != seen {
                let at_ns = machine_ns();
                let now = job.epoch();
                // The epoch counts several deaths at once, if other members have left meanwhile.
                for epoch in seen.0 + 1..=now.0 {
                    tell(&format!("{epoch} {at_ns}"))?;
                }
                seen = now;
            } else if self.busy {
                // A computing program polls the epoch between pieces of work of this length.
                let piece = Instant::now();
                while piece.elapsed() < Duration::from_micros(20) {
                    std::hint::spin_loop();
                }
            } else {
                job.park(bell, job.now().after(LIMIT));
            }
        }
        job.leave()?;
        // Other members may have left by then, which raises the epoch too.
        Ok(seen >= last)
    }
}

impl DetectionBench {
    pub(super) fn execute(self) -> anyhow::Result<bool> {
        let members = usize::from(self.members);
        let mut samples = Vec::new();
        let mut kills = 0;
        while kills < self.kills {
            samples.extend(measure_once(members, self.map, self.busy, members - 1)?);
            kills += members - 1;
            say(self.args.json.as_deref(), format_args!("{kills} of {} kills", self.kills));
        }
        let row = Row {
            what: "detection".into(),
            engine: "shm".into(),
            members,
            size: Some(self.map),
            contender: if self.busy { "survivors compute" } else { "survivors wait" }.into(),
            ..Row::default()
        };
        publish(&self.args, vec![row.with_samples(samples)])?;
        Ok(true)
    }
}

/// Starts a job and kills this many of its members, the last member first. Returns the survivors'
/// times.
pub(super) fn measure_once(
    members: usize,
    map: u64,
    busy: bool,
    kills: usize,
) -> anyhow::Result<Vec<u64>> {
    let mut samples = Vec::new();
    let mut running = Launch::new(members)
        .program(std::env::current_exe()?)
        .args(["detection-member", "--map", &map.to_string(), "--kills", &kills.to_string()])
        .args(busy.then_some("--busy"))
        .segment_limit(map.next_multiple_of(1 << 20) + (1 << 20))
        .die_with_launcher(true)
        .output(Output::Capture)
        .start()?;
    wait_for_line(&running, 0..members, "ready")?;
    for victim in (1..members).rev().take(kills) {
        // The work that the last death caused has ended by then.
        std::thread::sleep(Duration::from_millis(100));
        let epoch = (members - victim).to_string() + " ";
        let killed_ns = machine_ns();
        running.kill(MemberId(victim as u32))?;
        for line in wait_for_line(&running, 0..victim, &epoch)? {
            let at_ns: u64 = line.parse().context("a survivor's time")?;
            samples.push(at_ns.saturating_sub(killed_ns));
        }
    }
    let outcome = running.wait(LIMIT);
    expect_ok(&outcome)?;
    Ok(samples)
}

/// Waits until each of these members has written a line with this beginning. Returns the rest of
/// each line.
fn wait_for_line(
    running: &Running,
    members: std::ops::Range<usize>,
    beginning: &str,
) -> anyhow::Result<Vec<String>> {
    let end = Instant::now() + LIMIT;
    members
        .map(|member| {
            loop {
                let output = running.output(MemberId(member as u32));
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let complete = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
                if let Some(rest) = complete.lines().find_map(|line| line.strip_prefix(beginning)) {
                    return Ok(rest.to_string());
                }
                ensure!(
                    Instant::now() < end,
                    "member {member} did not write `{beginning}`: {}",
                    String::from_utf8_lossy(&output.stderr)
                );
                std::thread::sleep(Duration::from_millis(5));
            }
        })
        .collect()
}

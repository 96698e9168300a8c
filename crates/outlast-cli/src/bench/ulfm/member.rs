//! What a member of the benchmark does, on shm and in the simulator alike.

use anyhow::{Context, bail, ensure};
use clap::Args;
use outlast::rma::{Communicator, Error};
use outlast::{Job, JoinOptions, MemberId};
use rustix::process::{Pid, Signal};
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

/// The measured operations, by their names in the report.
pub(super) const AGREE: &str = "agree";
pub(super) const AGREE_UNACKNOWLEDGED: &str = "agree, failure unacknowledged";
pub(super) const AGREE_ACKNOWLEDGED: &str = "agree, failure acknowledged";
pub(super) const DUP: &str = "dup";
pub(super) const SHRINK: &str = "shrink";
pub(super) const SHRINK_FAILURE: &str = "shrink, failure after discovery";

/// The operations without a failure, in the order in which they take turns.
pub(super) const WITHOUT_FAILURE: [&str; 3] = [AGREE, DUP, SHRINK];

/// How many calls of an operation are made before the next operation has its turn.
const BLOCK: u32 = 20;

/// How long the last caller of shrink lets the other members wait, so that all of them sleep in it.
const LATE: Duration = Duration::from_millis(2);

/// Times in nanoseconds, by operation.
pub(super) type Samples = BTreeMap<String, Vec<u64>>;

/// The plan of a job of the benchmark.
#[derive(Clone, Copy, Debug)]
pub(super) struct UlfmPlan {
    /// The most calls of each operation.
    pub(super) iterations: u32,
    /// The time limit of all calls without failures together, and again of all calls with a
    /// failure.
    pub(super) limit: Duration,
    /// If given, the only operation of [`WITHOUT_FAILURE`] to call.
    pub(super) only: Option<&'static str>,
    /// Whether the last member is killed after the calls without failures.
    pub(super) with_failure: bool,
}

/// Takes part in a job of the benchmark and returns this member's samples. `kill` kills a member.
pub(super) fn play(
    job: &Job,
    plan: UlfmPlan,
    kill: impl FnOnce(MemberId) -> anyhow::Result<()>,
) -> anyhow::Result<Samples> {
    let world = Communicator::world(job)?;
    let mut samples = Samples::new();
    let operations: Vec<&str> = match plan.only {
        Some(only) => vec![only],
        None => WITHOUT_FAILURE.to_vec(),
    };
    // The first calls set up connections between the members.
    operations.iter().try_for_each(|operation| once(&world, operation))?;
    repeat(job, &world, plan, &operations, &mut samples)?;
    if plan.with_failure {
        let victim = world.size() - 1;
        shrink_with_failure(job, &world, victim, kill, &mut samples)?;
        repeat(job, &world, plan, &[AGREE_UNACKNOWLEDGED], &mut samples)?;
        world.failure_ack()?;
        repeat(job, &world, plan, &[AGREE_ACKNOWLEDGED], &mut samples)?;
    }
    // A member that left earlier would be a failure for the other members.
    world.agree(1)?;
    Ok(samples)
}

/// Calls the operations in blocks that take turns, until there were enough calls or time is up.
fn repeat(
    job: &Job,
    world: &Communicator,
    plan: UlfmPlan,
    operations: &[&str],
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let end = job.now().after(plan.limit);
    let mut done = 0;
    while done < plan.iterations {
        let block = BLOCK.min(plan.iterations - done);
        for &operation in operations {
            let samples = samples.entry(operation.into()).or_default();
            for _ in 0..block {
                let begin = job.now();
                once(world, operation)?;
                samples.push(job.now().since(begin).as_nanos() as u64);
            }
        }
        done += block;
        // All members stop together: agree gives the bitwise and of whether each would go on.
        let goes_on = done < plan.iterations && job.now() < end;
        if world.agree_despite_failures(u64::from(goes_on))?.flags == 0 {
            break;
        }
    }
    Ok(())
}

fn once(world: &Communicator, operation: &str) -> anyhow::Result<()> {
    match operation {
        DUP => world.duplicate()?.free()?,
        SHRINK => world.shrink()?.free()?,
        AGREE_UNACKNOWLEDGED => match world.agree(1) {
            Err(Error::ProcFailed { .. }) => {}
            other => bail!("agree with an unacknowledged failure gave {other:?}"),
        },
        _ => drop(world.agree(1)?),
    }
    Ok(())
}

/// Measures shrink with a failure after discovery.
///
/// All ranks but 0 call shrink and sleep in it: their contributions have been sent. Then rank 0
/// kills the victim and calls shrink too. The other ranks now receive all contributions, the
/// victim's included, and discovery is complete. If an agreement takes two rounds, the victim never
/// confirms, and the survivors start over without it; but all have accepted the victim as a member
/// of the new communicator, so it is a member. If an agreement takes a single round, the call is
/// over. In either case a second call excludes the victim. A survivor's sample runs from just
/// before the kill until it has a communicator of living members.
fn shrink_with_failure(
    job: &Job,
    world: &Communicator,
    victim: usize,
    kill: impl FnOnce(MemberId) -> anyhow::Result<()>,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    world.agree(1)?;
    let mut begin_ns = 0;
    if world.rank() == 0 {
        job.sleep(LATE);
        begin_ns = job.now().0;
        kill(MemberId(victim as u32))?;
    }
    let mut survivors = world.shrink()?;
    // All survivors take the same branch: they have agreed on the members of the new communicator.
    while survivors.size() == world.size() {
        survivors = survivors.shrink()?;
    }
    let end_ns = job.now().0;
    ensure!(
        survivors.size() == world.size() - 1,
        "the shrunken communicator has {}",
        survivors.size()
    );
    let mut begin = begin_ns.to_le_bytes();
    survivors.broadcast(0, &mut begin)?;
    let sample = end_ns.saturating_sub(u64::from_le_bytes(begin));
    samples.entry(SHRINK_FAILURE.into()).or_default().push(sample);
    Ok(())
}

/// A member of the benchmark on shm; started by it
#[derive(Args)]
pub(crate) struct UlfmMember {
    #[arg(long)]
    iterations: u32,
    #[arg(long)]
    limit_ms: u64,
}

impl UlfmMember {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let job = JoinOptions::new().join()?;
        let own_pid = rustix::process::getpid().as_raw_nonzero().get();
        let pids = Communicator::world(&job)?.allgather(&own_pid.to_le_bytes())?;
        let plan = UlfmPlan {
            iterations: self.iterations,
            limit: Duration::from_millis(self.limit_ms),
            only: None,
            with_failure: true,
        };
        let samples = play(&job, plan, |member| {
            let bytes = pids[member.index()].as_slice().try_into().context("a process id")?;
            let pid = Pid::from_raw(i32::from_le_bytes(bytes)).context("a process id")?;
            Ok(rustix::process::kill_process(pid, Signal::KILL)?)
        })?;
        let mut text = String::new();
        for (what, samples) in samples {
            text += &what;
            samples.iter().for_each(|sample| text += &format!(";{sample}"));
            text += "\n";
        }
        std::io::stdout().write_all(text.as_bytes()).context("writing to the benchmark")?;
        job.leave()?;
        Ok(true)
    }
}

/// Adds the samples of lines that name an operation and then its times.
pub(super) fn add_lines(samples: &mut Samples, text: &str) -> anyhow::Result<()> {
    for line in text.lines() {
        let mut words = line.split(';');
        let what = words.next().unwrap_or_default().to_string();
        let entry = samples.entry(what).or_default();
        for word in words {
            entry.push(word.parse().with_context(|| format!("a sample, not {word:?}"))?);
        }
    }
    Ok(())
}

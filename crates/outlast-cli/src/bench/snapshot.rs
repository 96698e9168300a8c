//! `outlast bench snapshot`: taking and restoring a snapshot, against dd on the same file system.

use super::interrupt::on_interrupt;
use super::{BenchArgs, Row, expect_ok, publish};
use crate::quantity;
use crate::report::say;
use anyhow::{Context, ensure};
use clap::Args;
use outlast::launch::{Launch, Output};
use outlast::snapshot::{self, Snapshots};
use outlast::store::{Options, Store};
use outlast::{Job, JoinOptions, MemberId};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
A job fills its store and takes a snapshot; another job restores it, each member its share. Before
and after each job dd writes (and syncs) or reads a file of as many bytes in the same folder. Files
are dropped from the kernel's cache before they are read. The ratio is the time of dd over the time
of the job: 1.00x is as fast as dd, less is slower. The bar is 0.7.

Examples:
  256 MiB of values of 64 KiB, in a folder under the current folder:
      outlast bench snapshot
  Small values, on another disk:
      outlast bench snapshot --value-size 1K --folder /scratch/me";

/// Measure snapshots against dd on the same file system
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct SnapshotBench {
    /// The size of all values together, before replication
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = quantity::bytes)]
    size: u64,
    /// The size of each value
    #[arg(long, value_name = "BYTES", default_value = "64K", value_parser = quantity::bytes)]
    value_size: u64,
    /// How many processes the job has
    #[arg(short = 'n', long, alias = "ranks", value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    members: u16,
    /// How many replicas each value has
    #[arg(long, value_name = "R", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=8))]
    replicas: u8,
    /// How many times each operation is measured
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// The folder for the files, which are removed at the end
    #[arg(long, value_name = "PATH", default_value = ".")]
    folder: PathBuf,
    #[command(flatten)]
    pub(super) args: BenchArgs,
}

/// A member of the benchmark; started by it
#[derive(Args)]
pub(crate) struct SnapshotBenchMember {
    /// Restore the snapshot of another job
    #[arg(long)]
    restores: bool,
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    values: u64,
    #[arg(long)]
    value_size: usize,
    #[arg(long)]
    replicas: usize,
}

/// A folder. It is removed when dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const TAKE: &str = "snapshot";
const RESTORE: &str = "restore";

impl SnapshotBench {
    pub(super) fn execute(self) -> anyhow::Result<bool> {
        ensure!(
            self.value_size > 0 && self.size >= self.value_size,
            "--size must be at least --value-size"
        );
        ensure!(
            u16::from(self.replicas) <= self.members,
            "{} replicas need as many members",
            self.replicas
        );
        let scratch = Scratch(self.folder.join(format!("outlast-bench-{}", std::process::id())));
        std::fs::create_dir_all(&scratch.0).with_context(|| scratch.0.display().to_string())?;
        let left = scratch.0.clone();
        let _removed = on_interrupt(move || {
            let _ = std::fs::remove_dir_all(&left);
        })?;
        let json = self.args.json.as_deref();
        let (mut ours, mut dd) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for round in 1..=self.rounds {
            say(json, format_args!("round {round} of {}", self.rounds));
            let plain = scratch.0.join("plain");
            let folder = scratch.0.join("snapshots");
            dd[0].push(write_by_dd(&plain, self.size)?);
            ours[0].push(self.run(&folder, false)?);
            dd[0].push(write_by_dd(&plain, self.size)?);
            dd[1].push(read_by_dd(&plain, self.size)?);
            for part in snapshot::parts(&snapshot::find(&folder)?)? {
                forget(&snapshot::find(&folder)?.join(part.name))?;
            }
            ours[1].push(self.run(&folder, true)?);
            dd[1].push(read_by_dd(&plain, self.size)?);
            std::fs::remove_dir_all(&folder)?;
        }
        let mut rows = Vec::new();
        for (what, (ours, dd)) in [TAKE, RESTORE].iter().zip(ours.into_iter().zip(dd)) {
            let row = |contender: &str| Row {
                what: what.to_string(),
                contender: contender.into(),
                engine: "shm".into(),
                members: usize::from(self.members),
                replicas: Some(usize::from(self.replicas)),
                size: Some(self.size),
                ..Row::default()
            };
            let floor = row("dd").with_samples(dd);
            let ours = row(what).with_samples(ours);
            let ratio = floor.p50_ns as f64 / ours.p50_ns.max(1) as f64;
            let speed = |ns: u64| self.size as f64 / (1 << 20) as f64 / (ns.max(1) as f64 / 1e9);
            say(
                json,
                format_args!(
                    "{what}: {:.0} MiB/s, dd {:.0} MiB/s",
                    speed(ours.p50_ns),
                    speed(floor.p50_ns)
                ),
            );
            rows.push(Row { floor_ns: Some(floor.p50_ns), ratio: Some(ratio), ..ours });
            rows.push(floor);
        }
        publish(&self.args, rows)?;
        Ok(true)
    }

    /// Runs a job. Returns the time that its members took, in nanoseconds, as member 0 reports it.
    fn run(&self, folder: &Path, restores: bool) -> anyhow::Result<u64> {
        let values = self.size.div_ceil(self.value_size);
        let mut running = Launch::new(usize::from(self.members))
            .program(std::env::current_exe()?)
            .args(["snapshot-bench-member", "--folder", folder.to_str().context("a plain path")?])
            .args(["--values", &values.to_string(), "--value-size", &self.value_size.to_string()])
            .args(["--replicas", &self.replicas.to_string()])
            .args(restores.then_some("--restores"))
            .die_with_launcher(true)
            .output(Output::Capture)
            .start()?;
        let outcome = running.wait(Duration::from_secs(600));
        expect_ok(&outcome)?;
        let output = String::from_utf8_lossy(&running.output(MemberId(0)).stdout).into_owned();
        output
            .lines()
            .find_map(|line| line.strip_prefix("took\t")?.parse().ok())
            .context("a member's time")
    }
}

impl SnapshotBenchMember {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let job = JoinOptions::new().time_limit(Duration::from_secs(600)).join()?;
        let options = Options::new().replicas(self.replicas).expected_keys(self.values as usize);
        let store = Store::open(&job, options)?;
        let (me, members) = (job.me().index(), job.members());
        let snapshots = Snapshots::open(&store, &self.folder, snapshot::Options::new())?;
        if !self.restores {
            let value = vec![me as u8; self.value_size];
            for number in (0..self.values).skip(me).step_by(members) {
                store.put(format!("value/{number}").as_bytes(), &value)?;
            }
        }
        meet(&job, &store, "begin")?;
        let began = Instant::now();
        if self.restores {
            snapshot::restore_share(&store, &self.folder, me, members)?;
        } else if me == 0 {
            snapshots.take()?;
        }
        meet(&job, &store, "end")?;
        if me == 0 {
            println!("took\t{}", began.elapsed().as_nanos());
        }
        store.close()?;
        job.leave()?;
        Ok(true)
    }
}

/// Waits until all members have arrived at this place.
fn meet(job: &Job, store: &Store, place: &str) -> anyhow::Result<()> {
    let mut here = store.add(place.as_bytes(), 1)?;
    let deadline = Instant::now() + Duration::from_secs(600);
    while here < job.members() as i64 {
        let is_missing = job.view().living().count() < job.members() || Instant::now() >= deadline;
        ensure!(!is_missing, "a member is missing");
        std::thread::sleep(Duration::from_millis(1));
        here = store.add(place.as_bytes(), 0)?;
    }
    Ok(())
}

fn write_by_dd(path: &Path, size: u64) -> anyhow::Result<u64> {
    let blocks = size.div_ceil(1 << 20);
    let _ = std::fs::remove_file(path);
    dd(&[
        "if=/dev/zero",
        &format!("of={}", path.display()),
        "bs=1M",
        &format!("count={blocks}"),
        "conv=fsync",
    ])
}

fn read_by_dd(path: &Path, size: u64) -> anyhow::Result<u64> {
    forget(path)?;
    let blocks = size.div_ceil(1 << 20);
    dd(&[&format!("if={}", path.display()), "of=/dev/null", "bs=1M", &format!("count={blocks}")])
}

fn dd(args: &[&str]) -> anyhow::Result<u64> {
    let began = Instant::now();
    let status = Command::new("dd").args(args).stdin(Stdio::null()).stderr(Stdio::null()).status();
    ensure!(
        status.context("dd (of coreutils) is needed for the comparison")?.success(),
        "dd {args:?} failed"
    );
    Ok(began.elapsed().as_nanos() as u64)
}

/// Drops a file from the kernel's cache.
fn forget(path: &Path) -> anyhow::Result<()> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

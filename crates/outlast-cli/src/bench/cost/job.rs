//! A job of this store, in which the last member is killed while the first writes.

use super::course::{Course, Record, Write};
use super::writers::{self, Written};
use super::{Plan, WRITERS};
use crate::bench::expect_ok;
use crate::bench::failure::wait_for_line;
use crate::members::{machine_ns, say_line};
use anyhow::{Context, ensure};
use clap::Args;
use outlast::launch::{Launch, Output};
use outlast::store::{Options, Store};
use outlast::{Epoch, Job, JoinOptions, MemberId};
use std::time::{Duration, Instant};

const MEMBERS: usize = 4;
const REPLICAS: usize = 3;
const LIMIT: Duration = Duration::from_secs(60);

/// A member of the benchmark; started by it
#[derive(Args)]
pub(crate) struct CourseMember {
    #[arg(long)]
    length_ns: u64,
    #[arg(long)]
    period_ns: u64,
    #[arg(long)]
    size: usize,
}

/// Runs a job, and kills its last member.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Course> {
    let mut running = Launch::new(MEMBERS)
        .program(std::env::current_exe()?)
        .args(["course-member", "--size", &plan.size.to_string()])
        .args(["--length-ns", &plan.length.as_nanos().to_string()])
        .args(["--period-ns", &plan.period.as_nanos().to_string()])
        .die_with_launcher(true)
        .output(Output::Capture)
        .start()?;
    wait_for_line(&running, MemberId(0), "begun")?;
    std::thread::sleep(plan.before());
    let killed_ns = machine_ns();
    running.kill(MemberId(MEMBERS as u32 - 1))?;
    let outcome = running.wait(LIMIT + 2 * plan.length);
    expect_ok(&outcome)?;
    let output = running.output(MemberId(0));
    let said = String::from_utf8_lossy(&output.stdout);
    let record = parse(said.lines(), killed_ns)?;
    let remark = format!("Outlast: {REPLICAS} replicas in {MEMBERS} processes.");
    Ok(Course::new("Outlast", MEMBERS, plan, &record, None, &remark))
}

/// Reads what a program wrote about its writes.
pub(super) fn parse<'a>(
    lines: impl Iterator<Item = &'a str>,
    killed_ns: u64,
) -> anyhow::Result<Record> {
    let mut record = Record { writes: Vec::new(), killed_ns, complete_ns: None, lost: 0 };
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["write", affected, due, acked] => record.writes.push(Write {
                is_affected: affected == "1",
                due_ns: due.parse().context("when a write was due")?,
                acked_ns: acked.parse().context("when a write was acknowledged")?,
            }),
            ["back", at] => record.complete_ns = Some(at.parse().context("a time")?),
            ["lost", count] => record.lost = count.parse().context("a count")?,
            _ => {}
        }
    }
    ensure!(!record.writes.is_empty(), "no write was acknowledged");
    Ok(record)
}

impl CourseMember {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let plan = Plan {
            length: Duration::from_nanos(self.length_ns),
            period: Duration::from_nanos(self.period_ns),
            size: self.size,
        };
        let job = JoinOptions::new().time_limit(LIMIT).join()?;
        let writes = plan.length.as_nanos() / plan.period.as_nanos().max(1);
        let options = Options::new()
            .replicas(REPLICAS)
            .expected_keys((2 * WRITERS * writes as usize).max(1024));
        let store = Store::open(&job, options)?;
        if job.me() == MemberId(0) {
            course(&job, &store, &plan)?;
            store.put(b"over", b"")?;
        } else {
            store.wait(b"over", None, job.now().after(LIMIT + 2 * plan.length))?;
        }
        store.close()?;
        job.leave()?;
        Ok(true)
    }
}

fn course(job: &Job, store: &Store, plan: &Plan) -> anyhow::Result<()> {
    let victim = MemberId(job.members() as u32 - 1);
    let is_affected = |key: &str| store.replicas_of(key.as_bytes()).contains(&victim);
    let keys: Vec<Vec<String>> =
        (0..WRITERS).map(|writer| writers::keys(writer, plan, &is_affected)).collect();
    let begin = Instant::now() + Duration::from_millis(20);
    say_line("begun")?;
    let (written, complete_ns) = std::thread::scope(|scope| {
        let callers: Vec<_> = keys
            .into_iter()
            .enumerate()
            .map(|(writer, keys)| {
                scope.spawn(move || {
                    writers::write(writer, begin, plan, keys, |key, value| {
                        Ok(store.put(key, value).map(drop)?)
                    })
                })
            })
            .collect();
        let watch = scope.spawn(|| wait_complete(job, store, begin + plan.length));
        let mut written: Vec<Written> = Vec::new();
        for caller in callers {
            let found = caller.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?;
            written.extend(found);
        }
        let complete_ns = watch.join().map_err(|_| anyhow::anyhow!("the watcher panicked"))??;
        anyhow::Ok((written, complete_ns))
    })?;
    let mut lines = Vec::new();
    let mut lost = 0;
    for Written { key, write } in written {
        let Write { is_affected, due_ns, acked_ns } = write;
        lines.push(format!("write {} {due_ns} {acked_ns}", u8::from(is_affected)));
        lost += u64::from(store.get(key.as_bytes())?.is_none());
    }
    if let Some(at_ns) = complete_ns {
        lines.push(format!("back {at_ns}"));
    }
    lines.push(format!("lost {lost}"));
    say_line(&lines.join("\n"))
}

/// Waits until a member has died and all replicas are back. Returns when, if that is before the
/// end.
fn wait_complete(job: &Job, store: &Store, end: Instant) -> anyhow::Result<Option<u64>> {
    while Instant::now() < end {
        if job.epoch() != Epoch(0) && store.replicas_missing()? == 0 {
            return Ok(Some(machine_ns()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(None)
}

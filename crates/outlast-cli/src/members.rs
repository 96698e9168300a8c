//! What commands that start members share: one clock, and lines of JSON from the members to the command.

use anyhow::Context;
use outlast::launch::{MemberEnd, Outcome, Running};
use outlast::store::Store;
use outlast::{Engine, Job, MemberId, MemberSet};
use rustix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

/// The clock that all processes of a machine share, in nanoseconds.
pub(crate) fn machine_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A member's line to the command that started it.
pub(crate) fn tell(line: &impl Serialize) -> anyhow::Result<()> {
    say_line(&serde_json::to_string(line)?)
}

/// The same for a line of text.
pub(crate) fn say_line(line: &str) -> anyhow::Result<()> {
    let text = format!("{line}\n");
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("writing to the command that started this member")
}

/// Reads the members' lines as they come.
pub(crate) struct Lines {
    /// How much of each member's output has been read.
    read: Vec<usize>,
}

impl Lines {
    pub(crate) fn new(members: usize) -> Lines {
        Lines { read: vec![0; members] }
    }

    /// The lines that have come since the last call.
    pub(crate) fn take<T: DeserializeOwned>(
        &mut self,
        running: &Running,
    ) -> anyhow::Result<Vec<(u32, T)>> {
        let mut lines = Vec::new();
        for (member, read) in self.read.iter_mut().enumerate() {
            let output = running.output(MemberId(member as u32)).stdout;
            let new = &output[*read..];
            // Whole lines only; the rest comes later.
            let Some(end) = new.iter().rposition(|&byte| byte == b'\n') else { continue };
            for line in new[..end].split(|&byte| byte == b'\n') {
                lines.push((
                    member as u32,
                    serde_json::from_slice(line).context("a line of a member")?,
                ));
            }
            *read += end + 1;
        }
        Ok(lines)
    }
}

/// With OUTLAST_LOG, shows what the members have told the log, each line with the member's number in front.
pub(crate) fn show_log(outcome: &Outcome) {
    if std::env::var_os("OUTLAST_LOG").is_none_or(|level| level.is_empty()) {
        return;
    }
    for end in &outcome.members {
        for line in outcome.stderr(end.member).lines() {
            let _ = writeln!(std::io::stderr(), "[{}] {line}", end.member.0);
        }
    }
}

/// What a member that watches sees.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DeathNews {
    /// The death of a member was noticed.
    Noticed { dead: u32, at_ns: u64 },
    /// This member sees nothing to repair, so many being dead.
    Complete { dead: u64, at_ns: u64 },
}

/// A member that watches: who is dead, and whether copies are missing.
#[derive(Default)]
pub(crate) struct Watch {
    noticed: MemberSet,
    /// The number of dead for which nothing is to be repaired.
    complete_at: u64,
}

impl Watch {
    /// How many deaths were noticed.
    pub(crate) fn dead(&self) -> u64 {
        self.noticed.len() as u64
    }

    /// What is new.
    pub(crate) fn poll(&mut self, job: &Job, store: &Store) -> anyhow::Result<Vec<DeathNews>> {
        let mut news = Vec::new();
        let at_ns = machine_ns();
        for dead in job.view().dead.iter() {
            if self.noticed.insert(dead) {
                news.push(DeathNews::Noticed { dead: dead.0, at_ns });
            }
        }
        let dead = self.dead();
        if self.complete_at < dead && store.copies_missing()? == 0 && job.epoch().0 == dead {
            news.push(DeathNews::Complete { dead, at_ns: machine_ns() });
            self.complete_at = dead;
        }
        Ok(news)
    }

    /// How long to wait for the bell before looking again.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_millis(if self.complete_at < self.dead() { 2 } else { 10 })
    }
}

/// How a member ended, with what it said about it.
pub(crate) fn describe(end: &MemberEnd, stderr: &str) -> String {
    let said = stderr.trim();
    if said.is_empty() { end.to_string() } else { format!("{end}: {said}") }
}

/// The names in /dev/shm. The engine makes none.
pub(crate) fn shared_memory_names() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// What the job has left behind: processes, and new names in /dev/shm that are its own. Other programs may make
/// names meanwhile, so that only those count that carry ours or one of our pids.
pub(crate) fn left_behind(before: &BTreeSet<String>, pids: &[u32]) -> Vec<String> {
    // One that has ended and that its parent, which may be mpirun, has not waited for is none any more.
    let is_running = |pid: &&u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    };
    let processes = pids.iter().filter(is_running);
    let mut left: Vec<String> = processes.map(|pid| format!("process {pid}")).collect();
    // The folders for Open MPI carry the number of the command that made them, which may be another one.
    let is_others = |name: &str| {
        let pid = name.strip_prefix("outlast-mpi-").and_then(|rest| rest.split('-').next());
        pid.is_some_and(|pid| pid != std::process::id().to_string())
    };
    let is_ours = |name: &&String| {
        (name.contains("outlast") && !is_others(name))
            || name
                .split(|c: char| !c.is_ascii_digit())
                .any(|part| pids.iter().any(|pid| part == pid.to_string()))
    };
    left.extend(
        shared_memory_names()
            .difference(before)
            .filter(is_ours)
            .map(|name| format!("/dev/shm/{name}")),
    );
    left
}

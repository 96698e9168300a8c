//! What all commands that start members use: a common clock, lines of JSON from the members to the
//! command, and a check that a job leaves nothing behind.

use anyhow::Context;
use outlast::launch::{MemberEnd, Outcome, Running};
use outlast::store::{Expect, Store, StoreError};
use outlast::{Job, MemberId, MemberSet};
use rustix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

/// The time in nanoseconds, on the clock that all processes of a machine share.
pub(crate) fn machine_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sends an object, as a line of JSON, to the command that started this member.
pub(crate) fn tell(line: &impl Serialize) -> anyhow::Result<()> {
    say_line(&serde_json::to_string(line)?)
}

/// Sends a line of text to the command that started this member.
pub(crate) fn say_line(line: &str) -> anyhow::Result<()> {
    let text = format!("{line}\n");
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("writing to the command that started this member")
}

/// Reads the members' lines as they arrive.
pub(crate) struct Lines {
    /// How many bytes of each member's output have been read.
    read: Vec<usize>,
}

impl Lines {
    pub(crate) fn new(members: usize) -> Lines {
        Lines { read: vec![0; members] }
    }

    /// The lines that have arrived since the last call, each with its member.
    pub(crate) fn take<T: DeserializeOwned>(
        &mut self,
        running: &Running,
    ) -> anyhow::Result<Vec<(u32, T)>> {
        let mut lines = Vec::new();
        for (member, read) in self.read.iter_mut().enumerate() {
            let output = running.output(MemberId(member as u32)).stdout;
            let new = &output[*read..];
            // Whole lines only: the rest of the last line arrives later.
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

/// If OUTLAST_LOG is set, prints the members' logs, each line with the member's number in front.
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

/// What a watching member observes of deaths and repairs.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DeathNews {
    /// The death of a member is in this member's view.
    Noticed { dead: u32, at_ns: u64 },
    /// This member finds no replica missing, with this many members dead.
    Complete { dead: u64, at_ns: u64 },
}

/// Polls the view for deaths and the store for missing replicas.
#[derive(Default)]
pub(crate) struct Watch {
    noticed: MemberSet,
    /// The number of dead members at which no replica was missing.
    complete_at: u64,
}

impl Watch {
    /// How many deaths are in the view.
    pub(crate) fn dead(&self) -> u64 {
        self.noticed.len() as u64
    }

    /// The news since the last call.
    pub(crate) fn poll(&mut self, job: &Job, store: &Store) -> anyhow::Result<Vec<DeathNews>> {
        let mut news = Vec::new();
        let at_ns = machine_ns();
        for dead in job.view().dead.iter() {
            if self.noticed.insert(dead) {
                news.push(DeathNews::Noticed { dead: dead.0, at_ns });
            }
        }
        let dead = self.dead();
        if self.complete_at < dead && store.replicas_missing()? == 0 && job.epoch().0 == dead {
            news.push(DeathNews::Complete { dead, at_ns: machine_ns() });
            self.complete_at = dead;
        }
        Ok(news)
    }

    /// How long to wait for the bell before the next poll.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_millis(if self.complete_at < self.dead() { 2 } else { 10 })
    }
}

/// What the members of a job decide together: the first member that asks with a key decides for all.
pub(crate) fn decide_together(store: &Store, key: &str, own: bool) -> anyhow::Result<bool> {
    loop {
        match store.put_if(key.as_bytes(), &[u8::from(own)], Expect::Absent) {
            Err(StoreError::Timeout { .. }) => continue,
            Ok(_) | Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        match store.get(key.as_bytes()) {
            Ok(decided) => return Ok(decided.is_some_and(|value| value.bytes() == [1])),
            Err(StoreError::Timeout { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// How a member ended, with what it wrote to standard error.
pub(crate) fn describe(end: &MemberEnd, stderr: &str) -> String {
    let said = stderr.trim();
    if said.is_empty() { end.to_string() } else { format!("{end}: {said}") }
}

/// The names in /dev/shm. The engine makes no names there.
pub(crate) fn shared_memory_names() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// What a job has left behind: processes that still run, and new names in /dev/shm that carry
/// `outlast` or a process id of the job. Other programs may make other names meanwhile.
pub(crate) fn left_behind(before: &BTreeSet<String>, pids: &[u32]) -> Vec<String> {
    // A process that has ended counts as gone even if its parent, which may be mpirun, has not
    // reaped it.
    let is_running = |pid: &&u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    };
    let processes = pids.iter().filter(is_running);
    let mut left: Vec<String> = processes.map(|pid| format!("process {pid}")).collect();
    // The folders for Open MPI carry the process id of the command that made them: another
    // command's folders do not count.
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

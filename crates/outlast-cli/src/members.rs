//! What commands that start members share: one clock, and lines of JSON from the members to the command.

use anyhow::Context;
use outlast::MemberId;
use outlast::launch::{MemberEnd, Running};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::io::Write;

/// The clock that all processes of a machine share, in nanoseconds.
pub(crate) fn machine_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A member's line to the command that started it.
pub(crate) fn tell(line: &impl Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    std::io::stdout().write_all(text.as_bytes()).context("writing to the command that started this member")
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
    pub(crate) fn take<T: DeserializeOwned>(&mut self, running: &Running) -> anyhow::Result<Vec<(u32, T)>> {
        let mut lines = Vec::new();
        for (member, read) in self.read.iter_mut().enumerate() {
            let output = running.output(MemberId(member as u32)).stdout;
            let new = &output[*read..];
            // Whole lines only; the rest comes later.
            let Some(end) = new.iter().rposition(|&byte| byte == b'\n') else { continue };
            for line in new[..end].split(|&byte| byte == b'\n') {
                lines.push((member as u32, serde_json::from_slice(line).context("a line of a member")?));
            }
            *read += end + 1;
        }
        Ok(lines)
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
    let processes = pids.iter().filter(|pid| std::path::Path::new(&format!("/proc/{pid}")).exists());
    let mut left: Vec<String> = processes.map(|pid| format!("process {pid}")).collect();
    let is_ours = |name: &&String| {
        name.contains("outlast")
            || name
                .split(|c: char| !c.is_ascii_digit())
                .any(|part| pids.iter().any(|pid| part == pid.to_string()))
    };
    left.extend(
        shared_memory_names().difference(before).filter(is_ours).map(|name| format!("/dev/shm/{name}")),
    );
    left
}

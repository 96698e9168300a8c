//! Memory that a command shares with its members, besides the store: a phase for all members, an
//! order to die for each, and a record for each thread.
//!
//! All of it is unnamed memory (memfd) of the command, which members open through /proc. So nothing
//! stays behind whatever process dies, and a record outlives the member that wrote it.

use anyhow::Context;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// What the members are to do. The phase only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Work = 0,
    /// Stop making calls.
    Rest = 1,
    /// All members have stopped: read everything back.
    ReadBack = 2,
    End = 3,
}

impl Phase {
    const ALL: [Phase; 4] = [Phase::Work, Phase::Rest, Phase::ReadBack, Phase::End];
}

/// Where members find the shared memory: the process id and the descriptors of the command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ControlAddress {
    pid: u32,
    control: i32,
    /// The descriptors of the records, by member and thread. The last three of a member are for
    /// reading back, for recoveries, and for reads of keys on its own host.
    records: Vec<Vec<i32>>,
}

fn memory(name: &str) -> anyhow::Result<File> {
    let fd: OwnedFd = memfd_create(name, MemfdFlags::CLOEXEC)
        .with_context(|| format!("no memory for {name} (too many open files? see ulimit -n)"))?;
    Ok(File::from(fd))
}

/// The command's side of the shared memory.
pub(crate) struct CommandControl {
    control: File,
    records: Vec<Vec<File>>,
}

impl CommandControl {
    pub(crate) fn new(members: usize, threads: u32) -> anyhow::Result<CommandControl> {
        let control = memory("outlast-control")?;
        control.set_len(8 * (1 + members as u64))?;
        let of_member = || {
            (0..threads + 3).map(|_| memory("outlast-record")).collect::<anyhow::Result<Vec<_>>>()
        };
        let records = (0..members).map(|_| of_member()).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(CommandControl { control, records })
    }

    pub(crate) fn address(&self) -> ControlAddress {
        let fds = |files: &Vec<File>| files.iter().map(AsRawFd::as_raw_fd).collect();
        ControlAddress {
            pid: std::process::id(),
            control: self.control.as_raw_fd(),
            records: self.records.iter().map(fds).collect(),
        }
    }

    pub(crate) fn set_phase(&self, phase: Phase) -> anyhow::Result<()> {
        Ok(self.control.write_all_at(&(phase as u64).to_le_bytes(), 0)?)
    }

    /// Orders a member to die: in a step of the protocol, after this many operations of the engine
    /// there.
    pub(crate) fn order_death(&self, member: u32, step: u32, after: u32) -> anyhow::Result<()> {
        let word = u64::from(step) << 32 | u64::from(after);
        Ok(self.control.write_all_at(&word.to_le_bytes(), 8 * (1 + u64::from(member)))?)
    }

    /// How many bytes the first record of each member has.
    pub(crate) fn recorded_lens(&self) -> anyhow::Result<Vec<u64>> {
        let first = |files: &Vec<File>| match files.first() {
            Some(file) => Ok(file.metadata()?.len()),
            None => Ok(0),
        };
        self.records.iter().map(first).collect()
    }

    /// How many bytes the records have in all.
    pub(crate) fn recorded_len(&self) -> anyhow::Result<u64> {
        let mut len = 0;
        for file in self.records.iter().flatten() {
            len += file.metadata()?.len();
        }
        Ok(len)
    }

    /// The record of a thread from this position on.
    pub(crate) fn record_from(
        &self,
        member: usize,
        thread: usize,
        position: u64,
    ) -> anyhow::Result<Vec<u8>> {
        let file = &self.records[member][thread];
        let mut bytes = vec![0; file.metadata()?.len().saturating_sub(position) as usize];
        file.read_exact_at(&mut bytes, position)?;
        Ok(bytes)
    }

    /// All records: for each member, the record of each thread.
    pub(crate) fn records(&self) -> anyhow::Result<Vec<Vec<Vec<u8>>>> {
        let read = |file: &File| {
            let mut bytes = Vec::new();
            // Through /proc, which opens the file anew: the command's own descriptor keeps its
            // position.
            File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        self.records.iter().map(|files| files.iter().map(read).collect()).collect()
    }
}

/// A member's side of the shared memory.
pub(crate) struct MemberControl {
    address: ControlAddress,
    control: File,
    me: usize,
}

impl MemberControl {
    pub(crate) fn new(address: ControlAddress, me: usize) -> anyhow::Result<MemberControl> {
        let path = format!("/proc/{}/fd/{}", address.pid, address.control);
        let control = File::open(&path).with_context(|| format!("opening {path}"))?;
        Ok(MemberControl { address, control, me })
    }

    /// The file of a thread's record, to be appended to.
    pub(crate) fn record(&self, thread: usize) -> anyhow::Result<File> {
        let path =
            format!("/proc/{}/fd/{}", self.address.pid, self.address.records[self.me][thread]);
        OpenOptions::new().append(true).open(&path).with_context(|| format!("opening {path}"))
    }

    /// The record of a thread of any member.
    pub(crate) fn read(&self, member: usize, thread: usize) -> anyhow::Result<Vec<u8>> {
        let path =
            format!("/proc/{}/fd/{}", self.address.pid, self.address.records[member][thread]);
        std::fs::read(&path).with_context(|| format!("reading {path}"))
    }

    fn word(&self, index: usize) -> anyhow::Result<u64> {
        let mut bytes = [0; 8];
        self.control.read_exact_at(&mut bytes, 8 * index as u64)?;
        Ok(u64::from_le_bytes(bytes))
    }

    pub(crate) fn phase(&self) -> anyhow::Result<Phase> {
        Ok(Phase::ALL[(self.word(0)? as usize).min(3)])
    }

    /// The step in which this member is to die and the number of operations before it, if it was
    /// ordered.
    pub(crate) fn death(&self) -> anyhow::Result<Option<(u32, u32)>> {
        let word = self.word(1 + self.me)?;
        Ok((word != 0).then_some(((word >> 32) as u32, word as u32)))
    }
}

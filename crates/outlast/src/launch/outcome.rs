//! How a job and each of its members ended.

use super::Captured;
use crate::engine::MemberId;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

/// How a job ended. Displayed as a line for each member.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// How each member ended, in the order of the members.
    pub members: Vec<MemberEnd>,
    /// Whether members ran longer than the time limit and were killed.
    pub timed_out: bool,
    /// Members whose process did not end even after SIGKILL, because it is stuck in the kernel.
    /// Almost always empty.
    pub left_running: Vec<MemberId>,
    /// The output of each member, in the order of the members; empty without
    /// [`Output::Capture`](super::Output::Capture).
    pub output: Vec<Captured>,
    /// The backtraces of the members that had not ended at the time limit.
    pub backtraces: String,
}

/// How the process of a member ended. Displayed as a phrase.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberEnd {
    /// The member.
    pub member: MemberId,
    /// The number of its process.
    pub pid: u32,
    /// The exit status or the signal.
    pub status: ExitStatus,
    /// The time of the end, counted from the start of the job.
    pub after: Duration,
    /// Whether the member had joined the job.
    pub joined: bool,
}

impl Outcome {
    /// Whether the job did its work: at least one member survived, all survivors finished with
    /// status 0, and the time limit was kept.
    ///
    /// A member that a signal ended has died. A member that exited with another status has not: the
    /// program itself reports a failure.
    pub fn survivors_ok(&self) -> bool {
        !self.timed_out
            && self.left_running.is_empty()
            && self.survivors().next().is_some()
            && self.survivors().all(MemberEnd::is_ok)
    }

    /// The members that ended by themselves.
    pub fn survivors(&self) -> impl Iterator<Item = &MemberEnd> {
        self.members.iter().filter(|end| !end.is_death())
    }

    /// The members that a signal ended.
    pub fn deaths(&self) -> impl Iterator<Item = &MemberEnd> {
        self.members.iter().filter(|end| end.is_death())
    }

    /// The captured standard output of a member, as text.
    pub fn stdout(&self, member: MemberId) -> String {
        self.output
            .get(member.index())
            .map_or_else(String::new, |c| String::from_utf8_lossy(&c.stdout).into())
    }

    /// The captured standard error of a member, as text.
    pub fn stderr(&self, member: MemberId) -> String {
        self.output
            .get(member.index())
            .map_or_else(String::new, |c| String::from_utf8_lossy(&c.stderr).into())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for end in &self.members {
            writeln!(f, "{end}")?;
        }
        for member in &self.left_running {
            writeln!(f, "{member} did not end, not even by SIGKILL")?;
        }
        if self.timed_out {
            writeln!(f, "the time limit was over; what was left was killed")?;
        }
        f.write_str(&self.backtraces)?;
        Ok(())
    }
}

impl MemberEnd {
    /// Whether the process finished with status 0.
    pub fn is_ok(&self) -> bool {
        self.status.success()
    }

    /// Whether the member died: a signal ended its process.
    pub fn is_death(&self) -> bool {
        self.status.signal().is_some()
    }
}

impl fmt::Display for MemberEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {}) ", self.member, self.pid)?;
        match (self.status.signal(), self.status.code()) {
            (Some(signal), _) => write!(f, "was killed by {}", signal_name(signal))?,
            (None, Some(0)) => write!(f, "finished")?,
            (None, code) => write!(f, "exited with status {}", code.unwrap_or(-1))?,
        }
        write!(f, " after {:.3} s", self.after.as_secs_f64())
    }
}

/// The name of a signal, for example `SIGKILL`; `signal 35` for a signal without a name.
pub fn signal_name(signal: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
        "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    let name = usize::try_from(signal).ok().and_then(|signal| NAMES.get(signal.wrapping_sub(1)));
    name.map_or_else(|| format!("signal {signal}"), |name| format!("SIG{name}"))
}

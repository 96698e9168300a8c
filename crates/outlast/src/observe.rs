//! The running jobs of this user on this machine, read from outside.
//!
//! An *observer* is a process outside of a job. It finds the jobs of its own user, and reads what
//! their members publish in the job's memory. It asks nothing of them: a member costs an observer
//! nothing, answers nothing, and does not know of it. `outlast top` is an observer.
//!
//! ```
//! use outlast::store::{Options, Store};
//! let job = outlast::join()?;
//! let store = Store::open(&job, Options::new())?;
//! let observed = outlast::observe::jobs()?;
//! let own = observed.iter().find(|job| job.processes().contains(&std::process::id()));
//! let look = own.expect("this process is in a job").look()?;
//! assert_eq!(look.members.len(), 1);
//! assert_eq!(look.members[0].pid, Some(std::process::id()));
//! # store.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! On the mpi engine an observer sees the members of its own host: the members of a node share
//! their node's memory. All members have a row, but those of other hosts have no process here.
//!
//! Another process wrote all that an observer reads, so it is checked, and a page of another
//! version counts as no page. A page shows a moment of at most a tenth of a second ago, unless its
//! member is stopped, dead, or has opened no store yet.

use crate::engine::{MemberId, shm};
use std::io;
use std::time::Duration;

pub use crate::store::{CallTimes, Figures};

/// A job that was found. As long as this value exists, the job's memory does, too, even if all
/// processes of the job have ended: drop it when [`Look::has_ended`] says so.
pub struct ObservedJob {
    memory: shm::ObservedMemory,
}

/// A job at some moment.
#[derive(Clone, Debug)]
pub struct Look {
    /// How many members were active from the start.
    pub regulars: usize,
    /// How many spares there are.
    pub spares: usize,
    /// How long each member's segment may become, in bytes.
    pub segment_limit: u64,
    /// How long ago the job was made.
    pub age: Duration,
    /// All members, in the order of their numbers.
    pub members: Vec<ObservedMember>,
    /// The dead, in the order in which they were declared dead.
    pub dead: Vec<ObservedDeath>,
}

/// A member that counts as dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedDeath {
    /// The member.
    pub member: MemberId,
    /// Whether it has left on purpose.
    pub has_left: bool,
}

/// A member at some moment.
#[derive(Clone, Debug)]
pub struct ObservedMember {
    /// The member.
    pub member: MemberId,
    /// Its process; `None` before it joined, and for a member of another host.
    pub pid: Option<u32>,
    /// Whether it has joined, now or in the past.
    pub has_joined: bool,
    /// Its failure domain, empty if none is known.
    pub domain: String,
    /// How much of its segment is backed by memory, in bytes.
    pub segment_len: u64,
    /// What it published last, and how long ago; `None` if it has published nothing that this
    /// version reads.
    pub page: Option<(Duration, Figures)>,
}

/// The jobs that processes of this user take part in, in the order of their start.
pub fn jobs() -> io::Result<Vec<ObservedJob>> {
    Ok(shm::find_jobs()?.into_iter().map(|memory| ObservedJob { memory }).collect())
}

impl ObservedJob {
    /// The number of the job. No other job of this machine has it while this job exists.
    pub fn id(&self) -> u64 {
        self.memory.id
    }

    /// The processes that took part in the job when it was found: its members, and its launcher.
    pub fn processes(&self) -> &[u32] {
        &self.memory.processes
    }

    /// Reads the job as it is now.
    pub fn look(&self) -> io::Result<Look> {
        let tables = self.memory.read()?;
        let since = |ns: u64| Duration::from_nanos(tables.now_ns.saturating_sub(ns));
        let members = tables.slots.into_iter().zip(0..).map(|(slot, number)| {
            let page = slot
                .page
                .and_then(|(at_ns, words)| Some((since(at_ns), Figures::of_words(&words)?)));
            ObservedMember {
                member: MemberId(number),
                pid: slot.pid,
                has_joined: slot.has_joined,
                domain: slot.domain,
                segment_len: slot.segment_len,
                page,
            }
        });
        let dead = tables.dead.into_iter();
        Ok(Look {
            regulars: tables.regulars,
            spares: tables.spares,
            segment_limit: tables.segment_limit,
            age: since(tables.start_ns),
            members: members.collect(),
            dead: dead.map(|(member, has_left)| ObservedDeath { member, has_left }).collect(),
        })
    }
}

impl Look {
    /// Whether all members are dead or have left, as far as members of this host can tell.
    pub fn has_ended(&self) -> bool {
        self.members.iter().all(|member| self.death(member.member).is_some())
    }

    /// The death of a member, if it counts as dead.
    pub fn death(&self, member: MemberId) -> Option<ObservedDeath> {
        self.dead.iter().find(|death| death.member == member).copied()
    }
}

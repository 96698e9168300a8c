//! What a process says when it joins a job, and why that may fail. Every engine reads the options
//! when it attaches; [`crate::join`] chooses the engine.

use super::MemberId;
#[cfg(feature = "mpi")]
use super::mpi;
use std::time::Duration;

/// Names the file in which the engine of an MPI rank reports how its process exits; see
/// `outlast-mpi-sys`.
pub(crate) const REPORT_VARIABLE: &str = "OUTLAST_REPORT";

/// Limits the bytes of a member's segment where no memory of the launcher does.
pub(crate) const SEGMENT_LIMIT_VARIABLE: &str = "OUTLAST_SEGMENT_LIMIT";

/// Says how many of the last ranks are spares.
pub(crate) const SPARES_VARIABLE: &str = "OUTLAST_SPARES";

/// How to join a job.
///
/// ```
/// use std::time::Duration;
/// let job = outlast::JoinOptions::new().time_limit(Duration::from_secs(5)).join()?;
/// # job.leave()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct JoinOptions {
    pub(crate) time_limit: Duration,
    pub(crate) segment_limit: Option<u64>,
    pub(crate) domain: Option<String>,
    pub(crate) set_errhandlers: bool,
    #[cfg(feature = "mpi")]
    pub(crate) communicator: Option<mpi::Communicator>,
}

impl Default for JoinOptions {
    fn default() -> JoinOptions {
        JoinOptions {
            time_limit: Duration::from_secs(30),
            segment_limit: None,
            domain: None,
            set_errhandlers: false,
            #[cfg(feature = "mpi")]
            communicator: None,
        }
    }
}

impl JoinOptions {
    /// The defaults: a time limit of 30 s, and the memory that the launcher set aside.
    pub fn new() -> JoinOptions {
        JoinOptions::default()
    }

    /// How long a call waits for living members that do not answer. All waits of a call of the
    /// store together last no longer, except that a call on many keys has the limit for each of its
    /// steps. When the time is over, the call may take up to an eighth of it more, at most a
    /// second, to give back what it has taken.
    pub fn time_limit(mut self, limit: Duration) -> JoinOptions {
        self.time_limit = limit;
        self
    }

    /// The most bytes that this member's segment may take. The upper bound is what the launcher set
    /// aside.
    pub fn segment_limit(mut self, bytes: u64) -> JoinOptions {
        self.segment_limit = Some(bytes);
        self
    }

    /// The failure domain of this member, such as `rack3/node17`; `OUTLAST_DOMAIN` by default.
    pub fn domain(mut self, path: &str) -> JoinOptions {
        self.domain = Some(path.to_string());
        self
    }

    /// On the mpi engine, in a program that has initialized MPI itself: set the error handlers of
    /// `MPI_COMM_WORLD` and `MPI_COMM_SELF` so that errors return. With MPI's default handlers the
    /// death of a rank may end the program. Off by default, since the handlers belong to the
    /// program.
    pub fn set_errhandlers(mut self, set: bool) -> JoinOptions {
        self.set_errhandlers = set;
        self
    }

    /// On the mpi engine: the members are the processes of this communicator of the program, in the
    /// order of its ranks, and not all of `MPI_COMM_WORLD`. The engine uses a duplicate; the
    /// communicator itself stays the program's.
    #[cfg(feature = "mpi")]
    pub fn communicator(mut self, communicator: mpi::Communicator) -> JoinOptions {
        self.communicator = Some(communicator);
        self
    }
}

/// Why a process could not become a member.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// `OUTLAST_ENGINE` names an engine that this build does not have.
    #[error(
        "unknown engine `{name}` in OUTLAST_ENGINE; this build has: shm, and mpi with the cargo \
         feature `mpi`"
    )]
    UnknownEngine {
        /// The name in OUTLAST_ENGINE.
        name: String,
    },
    /// The engine of this job was not compiled in.
    #[error(
        "this job wants the engine `{engine}`, which this build does not have; build with the \
         cargo feature `{feature}` of the crate outlast, or set OUTLAST_ENGINE to another engine"
    )]
    MissingFeature {
        /// The engine that OUTLAST_ENGINE or the launcher asks for.
        engine: &'static str,
        /// The cargo feature that brings it.
        feature: &'static str,
    },
    /// MPI refused a call, or lacks a feature that the engine needs.
    #[error("cannot join over MPI: {reason}")]
    Mpi {
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The environment that the launcher passed on cannot be used.
    #[error("cannot join the job that OUTLAST_JOB names: {reason}")]
    NotAMember {
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// This member has joined already, in this process or in another.
    #[error(
        "{member} has already joined, as process {pid}; one process is one member, share the Job \
         inside the process by cloning it"
    )]
    AlreadyJoined {
        /// Which member.
        member: MemberId,
        /// Which process.
        pid: u32,
    },
    /// Some member neither joined nor died in time.
    #[error(
        "{member} has not joined within {limit:?}; does every process of the job call \
         outlast::join()?"
    )]
    Timeout {
        /// The first member that is missing.
        member: MemberId,
        /// How long this member waited.
        limit: Duration,
    },
    /// The machine does not have the memory that the job needs.
    #[error("no room for the job's memory: {reason}")]
    NoRoom {
        /// What is in the way, and what to do.
        reason: String,
    },
    /// An option or argument is out of its range.
    #[error("{reason}")]
    Invalid {
        /// Which option, and its range.
        reason: String,
    },
    /// The operating system refused a call.
    #[error("{what} failed: {error}")]
    System {
        /// The call.
        what: &'static str,
        /// The error of the system.
        #[source]
        error: std::io::Error,
    },
}

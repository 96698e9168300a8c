//! Joining a job, and the one type that stands for it whichever engine is below.

use crate::engine::{
    Activity, Bell, Done, Engine, Epoch, Fault, MemberId, Message, Operation, Pending, Port, Result, Time,
    View, shm,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[cfg(feature = "mpi")]
use crate::engine::mpi;
#[cfg(feature = "sim")]
use crate::engine::sim;

/// A piece of work that a layer does in the background of its member.
pub trait Service: Send + Sync {
    /// Does a bounded piece of work and returns when it wants to run again at the latest. It also runs whenever the
    /// member's bell has rung.
    fn run(&self, job: &Job) -> Time;
}

/// This process's membership in a job: its engine, and the services that run in its background.
///
/// Cheap to clone; all clones are the same member. Dropping it does nothing: a member ends with
/// [`Engine::leave`], or by the end of its process, which the others see as a death.
#[derive(Clone)]
pub struct Job {
    inner: Arc<Inner>,
}

struct Inner {
    backend: Backend,
    services: Mutex<Vec<Arc<dyn Service>>>,
}

/// The engine below a job. An enum and not a trait object: the calls of the hot path are inlined through it.
pub(crate) enum Backend {
    Shm(shm::Shm),
    #[cfg(feature = "mpi")]
    Mpi(mpi::Mpi),
    #[cfg(feature = "sim")]
    Sim(sim::Sim),
}

/// How to join a job.
///
/// ```
/// use std::time::Duration;
/// let job = outlast::JoinOptions::new().time_limit(Duration::from_secs(5)).join()?;
/// # use outlast::Engine;
/// # job.leave()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct JoinOptions {
    pub(crate) time_limit: Duration,
    pub(crate) segment_limit: Option<u64>,
    pub(crate) domain: Option<String>,
}

impl Default for JoinOptions {
    fn default() -> JoinOptions {
        JoinOptions { time_limit: Duration::from_secs(30), segment_limit: None, domain: None }
    }
}

impl JoinOptions {
    /// The defaults: a time limit of 30 s, and the memory that the launcher set aside.
    pub fn new() -> JoinOptions {
        JoinOptions::default()
    }

    /// How long a call waits for a living member that does not answer.
    pub fn time_limit(mut self, limit: Duration) -> JoinOptions {
        self.time_limit = limit;
        self
    }

    /// The most bytes that this member's segment may take; what the launcher set aside is the upper bound.
    pub fn segment_limit(mut self, bytes: u64) -> JoinOptions {
        self.segment_limit = Some(bytes);
        self
    }

    /// The failure domain of this member, such as `rack3/node17`; `OUTLAST_DOMAIN` by default.
    pub fn domain(mut self, path: &str) -> JoinOptions {
        self.domain = Some(path.to_string());
        self
    }

    /// Joins the job that this process was started in, or a new job of one. Waits, within the time limit, until all
    /// members have joined or died.
    pub fn join(self) -> std::result::Result<Job, JoinError> {
        match std::env::var("OUTLAST_ENGINE").as_deref() {
            Err(_) | Ok("") if is_under_mpirun() && std::env::var_os("OUTLAST_JOB").is_none() => {
                return self.join_mpi();
            }
            Ok("mpi") => return self.join_mpi(),
            Err(_) | Ok("" | "shm") => {}
            Ok(other) => return Err(JoinError::UnknownEngine { name: other.to_string() }),
        }
        let job = Job::new(Backend::Shm(shm::Shm::attach(&self)?));
        let Backend::Shm(shm) = &job.inner.backend else { unreachable!("just made") };
        let background = job.clone();
        shm.start_background(Box::new(move || background.run_background()))?;
        shm.wait_for_all()?;
        Ok(job)
    }

    #[cfg(feature = "mpi")]
    fn join_mpi(self) -> std::result::Result<Job, JoinError> {
        let job = Job::new(Backend::Mpi(mpi::Mpi::attach(&self)?));
        let Backend::Mpi(mpi) = &job.inner.backend else { unreachable!("just made") };
        let background = job.clone();
        mpi.start_background(Box::new(move || background.run_background()))?;
        mpi.wait_for_all()?;
        Ok(job)
    }

    #[cfg(not(feature = "mpi"))]
    fn join_mpi(self) -> std::result::Result<Job, JoinError> {
        Err(JoinError::MissingFeature { engine: "mpi", feature: "mpi" })
    }
}

/// Whether Open MPI's launcher started this process.
fn is_under_mpirun() -> bool {
    ["OMPI_COMM_WORLD_SIZE", "PMIX_RANK"].iter().any(|name| std::env::var_os(name).is_some())
}

/// Joins the job that this process was started in, with the default options; see [`JoinOptions`].
pub fn join() -> std::result::Result<Job, JoinError> {
    JoinOptions::new().join()
}

/// Why a process could not become a member.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// `OUTLAST_ENGINE` names an engine that this build does not have.
    #[error(
        "unknown engine `{name}` in OUTLAST_ENGINE; this build has: shm, and mpi with the cargo feature `mpi`"
    )]
    UnknownEngine {
        /// What it says.
        name: String,
    },
    /// The engine that is wanted was not compiled in.
    #[error(
        "this job wants the engine `{engine}`, which this build does not have; build with the cargo feature `{feature}` of the crate outlast, or set OUTLAST_ENGINE to another engine"
    )]
    MissingFeature {
        /// The engine that OUTLAST_ENGINE or the launcher asks for.
        engine: &'static str,
        /// The cargo feature that brings it.
        feature: &'static str,
    },
    /// MPI refused something, or is not what the engine needs.
    #[error("cannot join over MPI: {reason}")]
    Mpi {
        /// What is wrong, and what to do.
        reason: String,
    },
    /// What the launcher passed on cannot be used.
    #[error("cannot join the job that OUTLAST_JOB names: {reason}")]
    NotAMember {
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// This member has joined already, in this process or in another.
    #[error(
        "{member} has already joined, as process {pid}; one process is one member, share the Job inside the process by cloning it"
    )]
    AlreadyJoined {
        /// Which member.
        member: MemberId,
        /// Which process.
        pid: u32,
    },
    /// Some member neither joined nor died in time.
    #[error("{member} has not joined within {limit:?}; does every process of the job call outlast::join()?")]
    Timeout {
        /// The first one that is missing.
        member: MemberId,
        /// How long this one waited.
        limit: Duration,
    },
    /// The machine does not have what a job needs.
    #[error("no room for the job's memory: {reason}")]
    NoRoom {
        /// What is in the way, and what to do.
        reason: String,
    },
    /// Something given is out of its range.
    #[error("{reason}")]
    Invalid {
        /// What, and what the range is.
        reason: String,
    },
    /// The operating system refused something.
    #[error("{what} failed: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        error: std::io::Error,
    },
}

impl Job {
    pub(crate) fn new(backend: Backend) -> Job {
        Job { inner: Arc::new(Inner { backend, services: Mutex::new(Vec::new()) }) }
    }

    /// Adds a service to the background activity of this member.
    pub fn serve(&self, service: Arc<dyn Service>) -> Result<()> {
        self.inner.services.lock().unwrap_or_else(|e| e.into_inner()).push(service);
        self.ring(self.me())
    }

    /// The background activity: runs the services whenever the bell has rung, until the member ends.
    pub(crate) fn run_background(&self) {
        while !self.has_ended() {
            let bell = self.bell();
            let services = self.inner.services.lock().unwrap_or_else(|e| e.into_inner()).clone();
            let until = services.iter().map(|service| service.run(self)).min().unwrap_or(Time::NEVER);
            self.park_in_background(bell, until);
        }
        // The services hold on to the job's layers, and those to the job: let go, so that memory is freed.
        self.inner.services.lock().unwrap_or_else(|e| e.into_inner()).clear();
    }

    /// Waits until an activity has ended, or until `until`; whether it has ended.
    pub fn wait_for(&self, activity: &Activity, until: Time) -> bool {
        loop {
            let bell = self.bell();
            if activity.is_finished() {
                return true;
            }
            if self.now() >= until || self.has_ended() {
                return false;
            }
            self.park(bell, until);
        }
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job({} of {}, {})", self.me(), self.members(), self.epoch())
    }
}

/// Calls the same method on whichever engine is below.
macro_rules! on_engine {
    ($self:ident, $engine:ident => $call:expr) => {
        match &$self.inner.backend {
            Backend::Shm($engine) => $call,
            #[cfg(feature = "mpi")]
            Backend::Mpi($engine) => $call,
            #[cfg(feature = "sim")]
            Backend::Sim($engine) => $call,
        }
    };
}

/// Forwards each method of the trait, so that the list stands once.
macro_rules! forward {
    ($(fn $name:ident(&self $(, $argument:ident: $type:ty)*) $(-> $output:ty)?;)*) => {
        $(
            #[inline]
            fn $name(&self $(, $argument: $type)*) $(-> $output)? {
                on_engine!(self, engine => engine.$name($($argument),*))
            }
        )*
    };
}

impl Engine for Job {
    forward! {
        fn me(&self) -> MemberId;
        fn members(&self) -> usize;
        fn domain(&self, member: MemberId) -> Result<String>;
        fn epoch(&self) -> Epoch;
        fn view(&self) -> View;
        fn fence(&self, member: MemberId, until: Time) -> Result<()>;
        fn has_ended(&self) -> bool;
        fn leave(&self) -> Result<()>;
        fn segment_len(&self, target: MemberId) -> Result<u64>;
        fn grow(&self, len: u64) -> Result<()>;
        fn start(&self, at: Epoch, target: MemberId, operation: Operation<'_>) -> Pending;
        fn poll(&self, pending: &mut Pending) -> Option<Result<Done>>;
        fn wait(&self, pending: Pending) -> Result<Done>;
        fn put(&self, at: Epoch, target: MemberId, offset: u64, data: &[u8]) -> Result<()>;
        fn get(&self, at: Epoch, target: MemberId, offset: u64, buffer: &mut [u8]) -> Result<()>;
        fn load(&self, at: Epoch, target: MemberId, offset: u64) -> Result<u64>;
        fn compare_and_swap(&self, at: Epoch, target: MemberId, offset: u64, expected: u64, new: u64) -> Result<u64>;
        fn fetch_add(&self, at: Epoch, target: MemberId, offset: u64, delta: u64) -> Result<u64>;
        fn send(&self, to: MemberId, port: Port, bytes: &[u8]) -> Result<()>;
        fn receive(&self, port: Port) -> Option<Message>;
        fn now(&self) -> Time;
        fn time_limit(&self) -> Duration;
        fn bell(&self) -> Bell;
        fn park(&self, seen: Bell, until: Time);
        fn ring(&self, member: MemberId) -> Result<()>;
        fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<Activity>;
        fn park_in_background(&self, seen: Bell, until: Time);
        fn inject(&self, fault: Fault) -> Result<()>;
    }
}

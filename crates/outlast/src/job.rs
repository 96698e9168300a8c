//! Joining a job, and the one type that stands for it whichever engine is below.

use crate::engine::mapped::Ordinary;
use crate::engine::mapped::{Directly, Reach};
use crate::engine::{
    Activity, Bell, CompoundStep, Done, Engine, Epoch, Error, Fault, JoinError, JoinOptions,
    MemberId, Message, Operation, Pending, Port, Result, Time, View, shm,
};
use crate::ranges::Ranges;
#[cfg(any(feature = "mpi", feature = "sim"))]
use crate::sync::lock;
use std::any::Any;
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

    /// Is called before the member leaves the job, for what is to be said to others before. Waits at most for the job's
    /// time limit.
    fn leaving(&self, job: &Job) {
        let _ = job;
    }
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
    /// What of the own segment is in use.
    ranges: Mutex<Ranges>,
    /// What the layers above keep once per member.
    layers: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

/// The engine below a job. An enum and not a trait object: the calls of the hot path are inlined through it.
#[allow(clippy::large_enum_variant, reason = "it exists once per job, behind an Arc")]
pub(crate) enum Backend {
    Shm(shm::Shm),
    #[cfg(feature = "mpi")]
    Mpi(mpi::Mpi),
    #[cfg(feature = "sim")]
    Sim(sim::Sim),
}

impl JoinOptions {
    /// Joins the job that this process was started in, or a new job of one. Waits, within the time limit, until all
    /// members have joined or died.
    pub fn join(self) -> std::result::Result<Job, JoinError> {
        let backend = match std::env::var("OUTLAST_ENGINE").as_deref() {
            Ok("mpi") => self.attach_mpi()?,
            // Under mpirun a job of one for each rank is never what is meant; `outlast run` inside it is.
            Err(_) | Ok("") if is_under_mpirun() && std::env::var_os("OUTLAST_JOB").is_none() => {
                self.attach_mpi()?
            }
            Err(_) | Ok("" | "shm") => Backend::Shm(shm::Shm::attach(&self)?),
            Ok(other) => return Err(JoinError::UnknownEngine { name: other.to_string() }),
        };
        let job = Job::new(backend);
        let background = job.clone();
        match &job.inner.backend {
            Backend::Shm(shm) => {
                shm.start_background(Box::new(move || background.run_background()))?;
                shm.wait_for_all()?;
            }
            #[cfg(feature = "mpi")]
            Backend::Mpi(mpi) => {
                mpi.start_background(Box::new(move || background.run_background()))?;
                mpi.wait_for_all()?;
            }
            #[cfg(feature = "sim")]
            Backend::Sim(_) => unreachable!("a simulated member is made by the simulator"),
        }
        Ok(job)
    }

    #[cfg(feature = "mpi")]
    fn attach_mpi(&self) -> std::result::Result<Backend, JoinError> {
        mpi::Mpi::attach(self).map(Backend::Mpi)
    }

    #[cfg(not(feature = "mpi"))]
    fn attach_mpi(&self) -> std::result::Result<Backend, JoinError> {
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

impl Job {
    pub(crate) fn new(backend: Backend) -> Job {
        Job {
            inner: Arc::new(Inner {
                backend,
                services: Mutex::new(Vec::new()),
                ranges: Mutex::default(),
                layers: Mutex::default(),
            }),
        }
    }

    /// Adds a service to the background activity of this member.
    pub fn serve(&self, service: Arc<dyn Service>) -> Result<()> {
        // Before the lock, which a forked child may find held for ever.
        self.segment_len(self.me())?;
        lock(&self.inner.services).push(service);
        self.ring(self.me())
    }

    /// What a layer above keeps once per member, made at the first call; and whether this was the first one. It must
    /// not hold on to the job, which holds on to it.
    pub(crate) fn layer<T: Send + Sync + 'static>(
        &self,
        make: impl FnOnce() -> T,
    ) -> (Arc<T>, bool) {
        let mut layers = lock(&self.inner.layers);
        if let Some(found) = layers.iter().find_map(|layer| layer.clone().downcast::<T>().ok()) {
            return (found, false);
        }
        let layer = Arc::new(make());
        layers.push(layer.clone());
        (layer, true)
    }

    /// Reserves `len` bytes of this member's own segment for a layer above, at a multiple of 64, growing the segment
    /// if need be. What is there is unspecified. [`Error::OutOfMemory`] changes nothing.
    pub fn reserve(&self, len: u64) -> Result<u64> {
        // Before the lock, which a forked child may find held for ever.
        self.segment_len(self.me())?;
        let too_long =
            || Error::OutOfMemory { wanted: len, reason: "no segment can be that long".into() };
        loop {
            let wanted = {
                let mut ranges = lock(&self.inner.ranges);
                if let Some(offset) = ranges.take(len) {
                    return Ok(offset);
                }
                ranges.needed(len).ok_or_else(too_long)?
            };
            // In larger steps, so that many small reservations make few calls; exactly, where that is too much.
            let rounded = wanted.checked_next_multiple_of(1 << 16).ok_or_else(too_long)?;
            self.grow(rounded).or_else(|_| self.grow(wanted))?;
            let len = self.segment_len(self.me())?;
            lock(&self.inner.ranges).extend_to(len);
        }
    }

    /// Gives back a range that [`Job::reserve`] gave, with the length that it was reserved with.
    pub fn release(&self, offset: u64, len: u64) {
        lock(&self.inner.ranges).give(offset, len);
    }

    /// A member's memory, for several operations on one check of the view; see [`Reach`].
    #[inline(always)]
    pub(crate) fn reach(&self, at: Epoch, target: MemberId) -> Result<Reach<'_>> {
        #[cfg(feature = "mpi")]
        if let Backend::Mpi(mpi) = &self.inner.backend
            && let Some(node) = mpi.neighbour(target)
        {
            return node.reach(at, target).map(Reach::Shm);
        }
        match &self.inner.backend {
            Backend::Shm(shm) => shm.reach(at, target).map(Reach::Shm),
            #[cfg(feature = "mpi")]
            Backend::Mpi(mpi) => Ordinary::reach(mpi, at, target).map(Reach::Mpi),
            #[cfg(feature = "sim")]
            Backend::Sim(sim) => Ordinary::reach(sim, at, target).map(Reach::Sim),
        }
    }

    /// The engine, if its memory is mapped by all members: which one is asked once for each operation of the hot path.
    #[inline(always)]
    pub(crate) fn directly(&self) -> Option<Directly<'_>> {
        match &self.inner.backend {
            Backend::Shm(shm) => Some(Directly::Shm(shm)),
            #[cfg(feature = "mpi")]
            Backend::Mpi(mpi) => mpi.only_node().map(Directly::Shm),
            #[cfg(feature = "sim")]
            Backend::Sim(sim) => sim.is_mapped().then_some(Directly::Sim(sim)),
        }
    }

    /// On the mpi engine, for the program: a communicator of the members that live, made by Open MPI's own
    /// `MPIX_Comm_shrink`. All living members call this, and wait for each other within the time limit.
    #[cfg(feature = "mpi")]
    pub fn shrunken_communicator(&self) -> Result<mpi::Communicator> {
        match &self.inner.backend {
            Backend::Mpi(mpi) => mpi.shrink(),
            _ => Err(Error::Unsupported { what: "an MPI communicator on another engine than mpi" }),
        }
    }

    /// The engine, if all members are processes of one machine.
    fn shared_memory(&self) -> Option<&shm::Shm> {
        match &self.inner.backend {
            Backend::Shm(shm) => Some(shm),
            #[cfg(feature = "mpi")]
            Backend::Mpi(mpi) => mpi.only_node(),
            #[cfg(feature = "sim")]
            Backend::Sim(_) => None,
        }
    }

    /// The floor of benchmarks: the C library's memcpy into a member's segment, on one machine; whether there is such a thing.
    #[doc(hidden)]
    pub fn memcpy_in(&self, target: MemberId, offset: u64, bytes: &[u8]) -> bool {
        let Some(shm) = self.shared_memory() else { return false };
        shm.copy_in(target, offset, bytes);
        true
    }

    /// The same out of it.
    #[doc(hidden)]
    pub fn memcpy_out(&self, target: MemberId, offset: u64, bytes: &mut [u8]) -> bool {
        let Some(shm) = self.shared_memory() else { return false };
        shm.copy_out(target, offset, bytes);
        true
    }

    /// The background activity: runs the services whenever the bell has rung, until the member ends.
    pub(crate) fn run_background(&self) {
        while !self.has_ended() {
            let bell = self.bell();
            let services = lock(&self.inner.services).clone();
            let until =
                services.iter().map(|service| service.run(self)).min().unwrap_or(Time::NEVER);
            self.park_in_background(bell, until);
        }
        self.drop_services();
    }

    /// Lets go of the services: they hold on to the job's layers, and those to the job, so that nothing would ever
    /// be freed.
    pub(crate) fn drop_services(&self) {
        let services = std::mem::take(&mut *lock(&self.inner.services));
        // Outside the lock: what is dropped may call the job.
        drop(services);
    }

    /// Attends to a port until the returned guard is dropped: the calling activity takes the port's messages
    /// whenever the bell rang, and the background leaves them to it. For the waits of the layers above.
    pub fn attend(&self, port: Port) -> Attending<'_> {
        self.set_attending(port, true);
        Attending { job: self, port }
    }

    /// A number for the activity that calls, which no other activity of this member has while it lives.
    pub(crate) fn activity(&self) -> u64 {
        #[cfg(feature = "sim")]
        if let Backend::Sim(sim) = &self.inner.backend {
            return sim.activity();
        }
        static NUMBERS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        thread_local! {
            static NUMBER: u64 = NUMBERS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        NUMBER.with(|number| *number)
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

/// An activity that attends to a port; see [`Job::attend`].
pub struct Attending<'a> {
    job: &'a Job,
    port: Port,
}

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        self.job.set_attending(self.port, false);
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
            #[inline(always)]
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
        fn segment_len(&self, target: MemberId) -> Result<u64>;
        fn grow(&self, len: u64) -> Result<()>;
        fn start(&self, at: Epoch, target: MemberId, operation: Operation<'_>) -> Pending;
        fn start_compound(&self, at: Epoch, target: MemberId, parts: &[CompoundStep<'_>]) -> Pending;
        fn drain_requests_of_dead(&self);
        fn is_serving_dead(&self) -> bool;
        fn poll(&self, pending: &mut Pending) -> Option<Result<Done>>;
        fn wait(&self, pending: Pending) -> Result<Done>;
        fn put(&self, at: Epoch, target: MemberId, offset: u64, data: &[u8]) -> Result<()>;
        fn get(&self, at: Epoch, target: MemberId, offset: u64, buffer: &mut [u8]) -> Result<()>;
        fn load(&self, at: Epoch, target: MemberId, offset: u64) -> Result<u64>;
        fn compare_and_swap(&self, at: Epoch, target: MemberId, offset: u64, expected: u64, new: u64) -> Result<u64>;
        fn fetch_add(&self, at: Epoch, target: MemberId, offset: u64, delta: u64) -> Result<u64>;
        fn is_mapped(&self) -> bool;
        fn death_order(&self) -> Option<Vec<MemberId>>;
        fn read_dead_segment(&self, dead: MemberId, offset: u64, buffer: &mut [u8]) -> Result<()>;
        fn discard_dead_segment(&self, dead: MemberId) -> Result<()>;
        fn send(&self, to: MemberId, port: Port, bytes: &[u8]) -> Result<()>;
        fn can_publish(&self) -> bool;
        fn try_publish(&self, to: &[MemberId], port: Port, bytes: &[u8]) -> Result<bool>;
        fn try_send(&self, to: MemberId, port: Port, bytes: &[u8]) -> Result<bool>;
        fn receive(&self, port: Port) -> Option<Message>;
        fn set_attending(&self, port: Port, attending: bool);
        fn now(&self) -> Time;
        fn time_limit(&self) -> Duration;
        fn bell(&self) -> Bell;
        fn park(&self, seen: Bell, until: Time);
        fn ring(&self, member: MemberId) -> Result<()>;
        fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<Activity>;
        fn park_in_background(&self, seen: Bell, until: Time);
        fn inject(&self, fault: Fault) -> Result<()>;
    }

    fn leave(&self) -> Result<()> {
        let services = match self.inner.services.try_lock() {
            Ok(services) => services.clone(),
            Err(_) => {
                // Before the lock, which a forked child may find held for ever.
                self.segment_len(self.me())?;
                lock(&self.inner.services).clone()
            }
        };
        services.iter().for_each(|service| service.leaving(self));
        on_engine!(self, engine => engine.leave())
    }
}

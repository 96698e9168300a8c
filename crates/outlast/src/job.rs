//! Joining a job, and the one type that stands for it whichever engine is below.

use crate::engine::{
    Activity, Bell, CompoundStep, Done, Engine, Epoch, Error, Fault, MemberId, Message, Operation,
    Pending, Port, Result, Time, View, shm,
};
use crate::ranges::Ranges;
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

    /// On the mpi engine, in a program that has initialized MPI itself: have errors on `MPI_COMM_WORLD` and
    /// `MPI_COMM_SELF` return, without which the death of a rank may end the program. Not done without a word, since
    /// they are the program's.
    pub fn set_errhandlers(mut self, set: bool) -> JoinOptions {
        self.set_errhandlers = set;
        self
    }

    /// On the mpi engine: the members are the processes of this communicator of the program, in the order of its ranks,
    /// and not all of `MPI_COMM_WORLD`. A duplicate is used; the communicator itself stays the program's.
    #[cfg(feature = "mpi")]
    pub fn communicator(mut self, communicator: mpi::Communicator) -> JoinOptions {
        self.communicator = Some(communicator);
        self
    }

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
    #[error(
        "{member} has not joined within {limit:?}; does every process of the job call outlast::join()?"
    )]
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
        self.inner.services.lock().unwrap_or_else(|e| e.into_inner()).push(service);
        self.ring(self.me())
    }

    /// What a layer above keeps once per member, made at the first call; and whether this was the first one. It must
    /// not hold on to the job, which holds on to it.
    pub(crate) fn layer<T: Send + Sync + 'static>(
        &self,
        make: impl FnOnce() -> T,
    ) -> (Arc<T>, bool) {
        let mut layers = self.inner.layers.lock().unwrap_or_else(|e| e.into_inner());
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
                let mut ranges = self.inner.ranges.lock().unwrap_or_else(|e| e.into_inner());
                if let Some(offset) = ranges.take(len) {
                    return Ok(offset);
                }
                ranges.needed(len).ok_or_else(too_long)?
            };
            // In larger steps, so that many small reservations make few calls; exactly, where that is too much.
            let rounded = wanted.checked_next_multiple_of(1 << 16).ok_or_else(too_long)?;
            self.grow(rounded).or_else(|_| self.grow(wanted))?;
            let len = self.segment_len(self.me())?;
            self.inner.ranges.lock().unwrap_or_else(|e| e.into_inner()).extend_to(len);
        }
    }

    /// Gives back a range that [`Job::reserve`] gave, with the length that it was reserved with.
    pub fn release(&self, offset: u64, len: u64) {
        self.inner.ranges.lock().unwrap_or_else(|e| e.into_inner()).give(offset, len);
    }

    /// A member's memory, for several operations on one check of the view; see [`Reach`].
    #[inline(always)]
    pub(crate) fn reach(&self, at: Epoch, target: MemberId) -> Result<Reach<'_>> {
        #[cfg(feature = "mpi")]
        if let Backend::Mpi(mpi) = &self.inner.backend
            && let Some(node) = mpi.mapped_node(target)
        {
            return node.reach(at, target).map(Reach::Shm);
        }
        match &self.inner.backend {
            Backend::Shm(shm) => shm.reach(at, target).map(Reach::Shm),
            #[cfg(any(feature = "mpi", feature = "sim"))]
            _ => match self.epoch() {
                now if at != Epoch::ANY && at != now => Err(Error::Stale { now }),
                _ => Ok(Reach::Other(Ordinary(self, target))),
            },
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
            Backend::Sim(sim) => sim.is_mapped().then_some(Directly::Sim(self)),
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
            let services = self.inner.services.lock().unwrap_or_else(|e| e.into_inner()).clone();
            let until =
                services.iter().map(|service| service.run(self)).min().unwrap_or(Time::NEVER);
            self.park_in_background(bell, until);
        }
        self.drop_services();
    }

    /// Lets go of the services: they hold on to the job's layers, and those to the job, so that nothing would ever
    /// be freed.
    pub(crate) fn drop_services(&self) {
        let services =
            std::mem::take(&mut *self.inner.services.lock().unwrap_or_else(|e| e.into_inner()));
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

/// An engine whose memory all members map.
pub(crate) enum Directly<'a> {
    Shm(&'a shm::Shm),
    #[cfg(feature = "sim")]
    Sim(&'a Job),
}

/// What the hot path needs of such an engine.
pub(crate) trait Direct<'a>: Copy {
    type Memory: Memory + Into<Reach<'a>>;

    /// The epoch, if this process is a member and has taken note of everyone who is dead in it: those are not reached any
    /// more. What is reached after this is reached under that view.
    fn known_epoch(self) -> Option<Epoch>;

    /// A member's memory. Only after [`Direct::known_epoch`] in the same call: a forked child has none.
    fn reach(self, member: MemberId) -> Option<Self::Memory>;

    /// As [`Engine::has_ended`].
    fn is_over(self) -> bool;
}

/// A member's memory, for the operations that follow on one check of the view: those of the engine under
/// [`Epoch::ANY`]. Where a refusal would say why, it is enough here that nothing has happened; the ordinary call says it.
///
/// On memory that all members map, the check of an operation is not atomic with it: whoever uses this must be able to
/// bear that *any* of its operations is late, and not only the one at which it was stopped.
pub(crate) trait Memory: Copy {
    /// Some words, one after the other.
    fn load<const N: usize>(self, offset: u64) -> Option<[u64; N]>;

    /// Compares and swaps; whether the word was as expected.
    fn swap(self, offset: u64, expected: u64, new: u64) -> Option<bool>;

    /// Puts some words; whether it was done.
    fn put_words<const N: usize>(self, offset: u64, words: [u64; N]) -> bool;

    /// Puts bytes; whether it was done. Refused after its first words it may have changed some.
    fn put(self, offset: u64, data: &[u8]) -> bool;

    /// Fills a buffer; whether it was done.
    fn get(self, offset: u64, buffer: &mut [u8]) -> bool;

    /// Has the processor fetch the line at this offset, if it can.
    fn prefetch(self, offset: u64);

    /// Puts bytes, and zeros up to the next word: a part of a word would have to be exchanged.
    #[inline(always)]
    fn fill(self, offset: u64, data: &[u8]) -> bool {
        let (words, rest) = data.split_at(data.len() & !7);
        let is_done = words.is_empty() || self.put(offset, words);
        if rest.is_empty() {
            return is_done;
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        is_done && self.put_words(offset + words.len() as u64, [u64::from_ne_bytes(last)])
    }
}

#[cfg(feature = "sim")]
impl<'a> Direct<'a> for &'a Job {
    type Memory = Ordinary<'a>;

    fn known_epoch(self) -> Option<Epoch> {
        (!self.has_ended()).then(|| self.epoch())
    }

    fn reach(self, member: MemberId) -> Option<Ordinary<'a>> {
        Some(Ordinary(self, member))
    }

    fn is_over(self) -> bool {
        self.has_ended()
    }
}

/// The memory of a member by the ordinary calls of its engine.
#[cfg(any(feature = "mpi", feature = "sim"))]
#[derive(Clone, Copy)]
pub(crate) struct Ordinary<'a>(&'a Job, MemberId);

#[cfg(any(feature = "mpi", feature = "sim"))]
impl Memory for Ordinary<'_> {
    fn load<const N: usize>(self, offset: u64) -> Option<[u64; N]> {
        let mut words = [0; N];
        for (word, index) in words.iter_mut().zip(0..) {
            // The offset may be from memory that others write.
            *word = self.0.load(Epoch::ANY, self.1, offset.checked_add(index * 8)?).ok()?;
        }
        Some(words)
    }

    fn swap(self, offset: u64, expected: u64, new: u64) -> Option<bool> {
        Some(self.0.compare_and_swap(Epoch::ANY, self.1, offset, expected, new).ok()? == expected)
    }

    fn put_words<const N: usize>(self, offset: u64, words: [u64; N]) -> bool {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.put(offset, &bytes)
    }

    fn put(self, offset: u64, data: &[u8]) -> bool {
        self.0.put(Epoch::ANY, self.1, offset, data).is_ok()
    }

    fn get(self, offset: u64, buffer: &mut [u8]) -> bool {
        self.0.get(Epoch::ANY, self.1, offset, buffer).is_ok()
    }

    fn prefetch(self, _: u64) {}
}

/// A member's memory on any engine.
#[derive(Clone, Copy)]
pub(crate) enum Reach<'a> {
    Shm(shm::Reach<'a>),
    #[cfg(any(feature = "mpi", feature = "sim"))]
    Other(Ordinary<'a>),
}

impl<'a> From<shm::Reach<'a>> for Reach<'a> {
    #[inline(always)]
    fn from(reach: shm::Reach<'a>) -> Reach<'a> {
        Reach::Shm(reach)
    }
}

#[cfg(any(feature = "mpi", feature = "sim"))]
impl<'a> From<Ordinary<'a>> for Reach<'a> {
    fn from(memory: Ordinary<'a>) -> Reach<'a> {
        Reach::Other(memory)
    }
}

impl Reach<'_> {
    /// As [`Memory::swap`].
    #[inline(always)]
    pub(crate) fn swap(self, offset: u64, expected: u64, new: u64) -> Option<bool> {
        match self {
            Reach::Shm(reach) => reach.swap(offset, expected, new),
            #[cfg(any(feature = "mpi", feature = "sim"))]
            Reach::Other(memory) => memory.swap(offset, expected, new),
        }
    }

    /// As [`Memory::put_words`].
    #[inline(always)]
    pub(crate) fn put_words<const N: usize>(self, offset: u64, words: [u64; N]) -> bool {
        match self {
            Reach::Shm(reach) => reach.put_words(offset, words),
            #[cfg(any(feature = "mpi", feature = "sim"))]
            Reach::Other(memory) => memory.put_words(offset, words),
        }
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
                self.inner.services.lock().unwrap_or_else(|e| e.into_inner()).clone()
            }
        };
        services.iter().for_each(|service| service.leaving(self));
        on_engine!(self, engine => engine.leave())
    }
}

//! From a [`Job`] to the engine below it: every call of [`Engine`] as a method of `Job`.
//!
//! A program needs no trait in scope to use its job. The engine is an enum and not a trait object,
//! so that the calls of the fast path are inlined through it.

use super::Job;
#[cfg(any(feature = "mpi", feature = "sim"))]
use crate::engine::mapped::EngineMemory;
use crate::engine::mapped::{MappedEngine, Reach};
#[cfg(feature = "mpi")]
use crate::engine::mpi;
#[cfg(feature = "sim")]
use crate::engine::sim;
use crate::engine::{
    Activity, Bell, CompoundStep, Done, Engine, Epoch, Fault, MemberId, Message, Operation,
    Pending, Port, Result, Time, View, shm,
};
use std::time::Duration;

/// The engine below a job.
#[allow(clippy::large_enum_variant, reason = "it exists once per job, behind an Arc")]
pub(crate) enum Backend {
    Shm(shm::Shm),
    #[cfg(feature = "mpi")]
    Mpi(mpi::Mpi),
    #[cfg(feature = "sim")]
    Sim(sim::Sim),
}

/// Evaluates an expression with the engine of a job, whichever it is.
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

/// Forwards each method to the engine.
macro_rules! forward {
    ($($(#[$attribute:meta])*
        fn $name:ident(&self $(, $argument:ident: $type:ty)* $(,)?) $(-> $output:ty)?;)*) => {
        $(
            $(#[$attribute])*
            #[inline(always)]
            pub fn $name(&self $(, $argument: $type)*) $(-> $output)? {
                on_engine!(self, engine => engine.$name($($argument),*))
            }
        )*
    };
}

/// # Members
impl Job {
    forward! {
        /// This member.
        fn me(&self) -> MemberId;

        /// How many members the job was started with, spares and the dead included. Their ids are
        /// `0..members`.
        fn members(&self) -> usize;

        /// The failure domain of a member: a path such as `rack3/node17`, or an empty one if none
        /// is known.
        fn domain(&self, member: MemberId) -> Result<String>;
    }
}

/// # Deaths
impl Job {
    forward! {
        /// The epoch of this member's view: how many deaths it knows of. A single load.
        fn epoch(&self) -> Epoch;

        /// This member's view: which members are active, and which are dead. It acknowledges
        /// nothing and waits for no other member.
        fn view(&self) -> View;

        /// Makes sure that `member` is dead: kills it if it lives, waits for the proof, and returns
        /// once this member's view has it. [`crate::Error::Timeout`] if the proof does not come
        /// until `until`. A member that fences itself ends its process.
        fn fence(&self, member: MemberId, until: Time) -> Result<()>;

        /// Whether this member has left the job or was declared dead.
        fn has_ended(&self) -> bool;

        /// The dead in the order in which they entered the view, where all members share that
        /// order; see [`Engine::death_order`].
        fn death_order(&self) -> Option<Vec<MemberId>>;
    }
}

/// # Memory
///
/// `at` is the epoch that an operation belongs to; see the rules in [`crate::engine`].
impl Job {
    forward! {
        /// How long a member's segment is now. It only grows. The answer for another member may
        /// take a round trip.
        fn segment_len(&self, target: MemberId) -> Result<u64>;

        /// Makes this member's own segment at least `len` bytes long; the new bytes are zero. See
        /// [`Job::reserve`] for memory of a layer's own. [`crate::Error::OutOfMemory`] changes
        /// nothing.
        fn grow(&self, len: u64) -> Result<()>;

        /// How long this member's own segment can become at present; see
        /// [`Engine::segment_limit`].
        fn segment_limit(&self) -> Result<u64>;

        /// Writes `data` and returns when it is remotely complete.
        fn put(&self, at: Epoch, target: MemberId, offset: u64, data: &[u8]) -> Result<()>;

        /// Fills `buffer` from the target's segment. On an error its content is unspecified.
        fn get(&self, at: Epoch, target: MemberId, offset: u64, buffer: &mut [u8]) -> Result<()>;

        /// Reads the 8-byte word at `offset`.
        fn load(&self, at: Epoch, target: MemberId, offset: u64) -> Result<u64>;

        /// Replaces the word at `offset` by `new` if it is `expected`; returns the word that was
        /// there before.
        fn compare_and_swap(
            &self, at: Epoch, target: MemberId, offset: u64, expected: u64, new: u64,
        ) -> Result<u64>;

        /// Adds `delta` to the word at `offset`, wrapping; returns the word that was there before.
        fn fetch_add(&self, at: Epoch, target: MemberId, offset: u64, delta: u64) -> Result<u64>;

        /// Starts a one-sided operation, which may be complete when this returns.
        fn start(&self, at: Epoch, target: MemberId, operation: Operation<'_>) -> Pending;

        /// Starts a compound operation: several small operations on a single target, executed in
        /// order as long as each finds what it expects; see [`Engine::start_compound`].
        fn start_compound(
            &self, at: Epoch, target: MemberId, steps: &[CompoundStep<'_>],
        ) -> Pending;

        /// The result of an operation if it is complete, once. Also moves data, so that polling
        /// alone makes progress.
        fn poll(&self, pending: &mut Pending) -> Option<Result<Done>>;

        /// Waits for an operation: until it is complete, its target is dead, or the time limit is
        /// over ([`crate::Error::Timeout`], outcome unknown).
        fn wait(&self, pending: Pending) -> Result<Done>;

        /// Waits for an operation as [`Job::wait`] does. After [`crate::Error::Timeout`] the caller
        /// still has the operation, and can poll it or wait for it again.
        fn wait_answer(&self, pending: &mut Pending) -> Result<Done>;

        /// Whether all members map each other's memory: an operation is then done, or refused, when
        /// its call returns.
        fn is_mapped(&self) -> bool;

        /// Whether this member operates on the segment of `member` by itself; see
        /// [`Engine::is_member_mapped`].
        fn is_member_mapped(&self, member: MemberId) -> bool;

        /// Reads the segment of a dead member, where the engine keeps it; see
        /// [`Engine::read_dead_segment`].
        fn read_dead_segment(
            &self, dead: MemberId, offset: u64, buffer: &mut [u8],
        ) -> Result<()>;

        /// Gives the segment of a dead member back to the system; see
        /// [`Engine::discard_dead_segment`].
        fn discard_dead_segment(&self, dead: MemberId) -> Result<()>;

        /// Returns when this member executes no request of a dead member, and will not; see
        /// [`Engine::drain_requests_of_dead`].
        fn drain_requests_of_dead(&self);

        /// Whether a local member may still be executing a request of a dead member; see
        /// [`Engine::is_serving_dead`].
        fn is_serving_dead(&self) -> bool;

        /// A local member that may still be executing a request of a dead member, if there is any.
        fn server_of_dead(&self) -> Option<MemberId>;
    }
}

/// # Messages
impl Job {
    forward! {
        /// Sends a message of at most [`crate::engine::MESSAGE_LEN_MAX`] bytes and rings the
        /// receiver's bell; see [`Engine::send`].
        fn send(&self, to: MemberId, port: Port, bytes: &[u8]) -> Result<()>;

        /// Sends a message of at most [`crate::engine::TRY_SEND_LEN_MAX`] bytes without waiting:
        /// `false`, and no message was sent, if the receiver has no room for it now.
        fn try_send(&self, to: MemberId, port: Port, bytes: &[u8]) -> Result<bool>;

        /// Whether this engine has [`Job::try_publish`].
        fn can_publish(&self) -> bool;

        /// Sends a message of at most [`crate::engine::PUBLISH_LEN_MAX`] bytes to several members,
        /// all or nothing, without waiting; see [`Engine::try_publish`].
        fn try_publish(&self, to: &[MemberId], port: Port, bytes: &[u8]) -> Result<bool>;

        /// The next message for `port`, if any has arrived. Also moves data, as [`Job::poll`] does.
        /// Messages of a dead member may still come.
        fn receive(&self, port: Port) -> Option<Message>;

        /// Says whether the calling activity attends to `port`. Use [`Job::attend`], which cannot
        /// forget to take it back.
        fn set_attending(&self, port: Port, attending: bool);
    }
}

/// # Time and waiting
impl Job {
    forward! {
        /// The job's clock. Clocks of members on different machines are not related.
        fn now(&self) -> Time;

        /// How long a call waits for a living member that does not answer.
        fn time_limit(&self) -> Duration;

        /// Sleeps for `duration` on the job's clock, whatever rings meanwhile. Under the simulator
        /// time is virtual: a member that slept by any other means would block all members.
        fn sleep(&self, duration: Duration);

        /// What this member's bell shows now.
        fn bell(&self) -> Bell;

        /// Waits until the bell shows another number than `seen`, or until `until`. May return
        /// early without a reason.
        fn park(&self, seen: Bell, until: Time);

        /// The background activity's form of [`Job::park`]: it also moves incoming data and watches
        /// for deaths.
        fn park_in_background(&self, seen: Bell, until: Time);

        /// Rings a member's bell. Lost if the member is dead.
        fn ring(&self, member: MemberId) -> Result<()>;

        /// Runs `body` as a further activity of this member and rings the member's bell when it
        /// ends.
        fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<Activity>;

        /// Injects a fault; [`crate::Error::Unsupported`] in builds without the feature `faults`.
        #[doc(hidden)]
        fn inject(&self, fault: Fault) -> Result<()>;
    }
}

impl Job {
    /// Ends this member on its engine; [`Job::leave`] asks the services first.
    pub(super) fn leave_engine(&self) -> Result<()> {
        on_engine!(self, engine => engine.leave())
    }

    /// A member's memory, for several operations after a single check of the view; see [`Reach`].
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
            #[cfg(feature = "mpi")]
            Backend::Mpi(mpi) => EngineMemory::reach(mpi, at, target).map(Reach::Mpi),
            #[cfg(feature = "sim")]
            Backend::Sim(sim) => EngineMemory::reach(sim, at, target).map(Reach::Sim),
        }
    }

    /// The engine, if all members map its memory. The fast path asks once for each operation.
    #[inline(always)]
    pub(crate) fn mapped(&self) -> Option<MappedEngine<'_>> {
        match &self.inner.backend {
            Backend::Shm(shm) => Some(MappedEngine::Shm(shm)),
            #[cfg(feature = "mpi")]
            Backend::Mpi(mpi) => mpi.only_node().map(MappedEngine::Shm),
            #[cfg(feature = "sim")]
            Backend::Sim(sim) => sim.is_mapped().then_some(MappedEngine::Sim(sim)),
        }
    }

    /// On the mpi engine, for the program: a communicator of the members that live, made by Open
    /// MPI's own `MPIX_Comm_shrink`. All living members call this, and wait for each other within
    /// the time limit.
    #[cfg(feature = "mpi")]
    pub fn shrunken_communicator(&self) -> Result<mpi::Communicator> {
        match &self.inner.backend {
            Backend::Mpi(mpi) => mpi.shrink(),
            _ => Err(crate::Error::Unsupported {
                what: "an MPI communicator on another engine than mpi",
            }),
        }
    }

    /// The engine, if all members are processes of a single machine.
    fn shared_memory(&self) -> Option<&shm::Shm> {
        match &self.inner.backend {
            Backend::Shm(shm) => Some(shm),
            #[cfg(feature = "mpi")]
            Backend::Mpi(mpi) => mpi.only_node(),
            #[cfg(feature = "sim")]
            Backend::Sim(_) => None,
        }
    }

    /// The engine that has a status page for this member; `None` under the simulator.
    pub(crate) fn status_page(&self) -> Option<&shm::Shm> {
        match &self.inner.backend {
            Backend::Shm(shm) => Some(shm),
            #[cfg(feature = "mpi")]
            Backend::Mpi(mpi) => Some(mpi.node()),
            #[cfg(feature = "sim")]
            Backend::Sim(_) => None,
        }
    }

    /// The lower bound of benchmarks: the C library's memcpy into a member's segment. Returns
    /// whether the members share a machine; otherwise it does nothing.
    #[doc(hidden)]
    pub fn memcpy_in(&self, target: MemberId, offset: u64, bytes: &[u8]) -> bool {
        let Some(shm) = self.shared_memory() else { return false };
        shm.memcpy_in(target, offset, bytes);
        true
    }

    /// The lower bound of benchmarks: the C library's memcpy out of a member's segment. Returns
    /// whether the members share a machine; otherwise it does nothing.
    #[doc(hidden)]
    pub fn memcpy_out(&self, target: MemberId, offset: u64, bytes: &mut [u8]) -> bool {
        let Some(shm) = self.shared_memory() else { return false };
        shm.memcpy_out(target, offset, bytes);
        true
    }
}

//! The mpi engine: the members of a job are ranks under `mpirun --with-ft ulfm`.
//!
//! # Local and remote members
//! The members of a *node* (equal kernel and host name) form a job of the shm engine: they map each
//! other's segments, put, get and swap words in them by their own instructions, and learn of each
//! other's deaths from the kernel. That shm job has room for every member of the whole job, so that
//! a member has the same number on every node. The room of remote members stays empty. The death
//! log and the epoch of the shm job belong to the whole node: a remote death that a member learns
//! of is known to all members of its node.
//!
//! Remote members are reached by messages alone (`core.rs`). An operation is a request that the
//! target's own code executes in its own segment, by the instructions that local members use, and
//! acknowledges. Any activity of the target that waits in the engine serves it, or else the
//! background activity. After joining, all calls of MPI are made under a single lock, and none of
//! them waits. The one exception is `Mpi::shrink` for the program, which waits in a thread of its
//! own without the lock. An operation needs no member but its caller and its target.
//!
//! MPI has no wait that another thread can end, so waiting means testing (`wait.rs`). An operation
//! on a remote member that computes, or has received nothing for long, therefore takes up to about
//! a millisecond longer than an operation on a member that is busy serving.
//!
//! A *kernel* is a boot id and a pid namespace (`join.rs`): two hosts have two kernels, and so have
//! two containers on one host. Members under a single kernel may be of several nodes, since their
//! host names may differ and tests divide hosts into groups. So two conditions decide what a job
//! needs:
//!
//! | members | MPI after joining | what settles a remote death | lease |
//! |---|---|---|---|
//! | of a single node | not called | there are no remote members | not needed |
//! | of several nodes under a single kernel | carries the messages | the kernel | not needed |
//! | under several kernels | carries the messages | the own kernel, or else a majority | needed |
//!
//! The variable `OUTLAST_MPI_WITNESS` says who is asked whether a remote member is dead. Without it
//! the kernel is asked where that is possible. With `votes` the kernel is not asked: then all jobs
//! of several nodes are as in the last row, and a majority decides about every remote member.
//!
//! `OUTLAST_MPI_PATH=rma` reaches segments through a window of MPI instead (`onesided.rs`). This is
//! an experiment, and the rest of the engine does not consider it.
//!
//! # View
//! Each node has a view of its own: its death log. The first frame on a link after the sender's
//! epoch has risen carries the sender's dead, and later frames need not: a link keeps the order of
//! frames. The target merges these dead before it compares the epoch of an operation with its own.
//! An epoch is only a count. Two nodes that know of a single death each may mean different deaths.
//! But after the merge the target's set contains the caller's set, so that equal counts mean equal
//! sets.
//!
//! # What happens on a death
//! Requests to a dead member end with [`Error::Dead`], and requests of a dead member are dropped.
//! `membership.rs` says when a remote member is declared dead and what follows, and `quorum.rs` has
//! the rules of the majority with their proof. Two stories, in a job under several kernels with the
//! time limit of 30 s:
//!
//! *A process crashes, and other members of its node live.*
//!
//! 1. The kernel tells its node mates, as a rule within a millisecond. They enter the death into
//!    the log of their node, which raises its epoch.
//! 2. Each of them announces the death to all remote members.
//! 3. A remote member that receives such a frame enters the death into the log of its own node: by
//!    report, without a vote, a wait or a lease. Waiting requests to the dead member end.
//! 4. MPI may have reported the failure to remote members before that. Then their nodes have put
//!    the member in quarantine. They enter the report all the same, as it comes from its node
//!    mates.
//!
//! If all node mates are stopped, no member reports the death until one of them goes on, or until
//! the host counts as lost: the stopped members may be reading in the dead member's memory.
//!
//! If the process was alone on its node, there is no node mate to report it. A remote member under
//! the same kernel then has proof, within 10 ms after an error of MPI or else within 1 s. If there
//! is none, the second story follows.
//!
//! *A host is lost, or the links to it are cut.*
//!
//! 1. The other nodes suspect all its members: at once if MPI reports an error, for example because
//!    only the processes ended; otherwise when the host was silent for 10 s.
//! 2. In the next review each node puts the suspects in quarantine: it sends them nothing more, for
//!    ever, and announces that to the other nodes. This is its vote.
//! 3. A member that knows such votes of a majority, its own node included, begins the eviction wait
//!    of 2.5 s.
//! 4. If the members of the host live behind a cut link, they get no more grants, and their leases
//!    end at most 2 s after they sent the last request that was granted. From then on they hold
//!    back all results about the memory of their node.
//! 5. When the eviction wait is over, a member with a lease declares all members of the host dead
//!    together. Its node mates find them in the log, and the other nodes in the next frame. Waiting
//!    requests to them end.
//! 6. When all nodes that remain have acknowledged these deaths, by grants to requests that are
//!    sent at once, the deaths no longer count in the number of which a majority is needed.
//! 7. The members behind the cut link get their leases back only if the link works again before a
//!    majority has put them in quarantine. Otherwise a call on the memory of their node, or a call
//!    that receives a message, ends its own process when the member has been without a lease for
//!    the time limit.
//!
//! So a cut is over after 12.5 s, and the end of all processes of a host, if MPI reports it, after
//! about 2.5 s.
//!
//! | time | length | constant |
//! |---|---|---|
//! | between two reviews | 10 ms; at once after an error of MPI | `DETECT_PERIOD` |
//! | between two questions to the kernel about all remote processes under it | 1 s; about suspects in each review | `PROBE_PERIOD` |
//! | until the kernel has told of the death of a local member | as a rule a millisecond, at worst 50 ms | `CHECK_INTERVAL` of the shm engine |
//! | silence after which a node is suspected | a third of the time limit, at least 2 s | `SILENCE_FRACTION`, `SILENCE_MIN` |
//! | the most of it that counts between two reviews, so that a member which was stopped itself blames no other | 100 ms | `SILENCE_STEP_MAX` |
//! | between two lease requests | 500 ms; at the next review if a death was not acknowledged | `LEASE_REQUEST_PERIOD` |
//! | a grant counts, from the sending of its request | 2 s | `LEASE` |
//! | eviction wait | 2.5 s | `EVICTION_WAIT` |
//! | pairs of nodes stay unchanged before rule 5 of `quorum.rs` applies | as the silence | |
//! | a member without a lease ends itself in a call | after the time limit | |
//! | a leaving member waits for nodes that do not answer | until each has granted a request of the last 1 s or is dead, at most the time limit | `is_answered_by_all` |
//! | a leaving member waits for acknowledgements of its leave | 1 s | `LEAVE_MAX` |
//!
//! # Ending
//! In a job with leases, a leaving member that has a lease first waits until every remote node has
//! lately granted it one or is dead (`quorum.rs`, Leaving), at most for the time limit. Then it
//! enters itself into the death log of its node, with a flag that says that it left, and then tells
//! all remote members. So leaving raises the epoch and has all other consequences of a death. The
//! leaving call waits up to a second for acknowledgements, and the program then exits. The launcher
//! takes this exit for a failure, but the member is in the death logs by then, so no member asks
//! about it any more. A node that was not told in time takes the exit for a death.
//!
//! This engine never calls `MPI_Finalize`, which waits for all ranks: `MPI_Finalize` hangs if a
//! rank has ended in a way that the launcher did not report, and may hang after any death. A
//! program that initialized MPI itself may call it after leaving, and had better not do so if a
//! member has died.
//!
//! # Callers
//! [`crate::join`] attaches to this engine, and [`crate::Job`] calls it. Everything below is
//! private to the engine. It is built on the shm engine, and knows nothing of the layers above
//! engines.

mod core;
mod detector;
mod join;
mod lease;
mod link;
mod membership;
mod onesided;
mod quorum;
mod request;
mod serve;
mod silence;
mod wait;
mod wire;

use self::core::Core;
use self::join::HAS_LEFT;
use self::lease::Lease;
use self::onesided::OneSided;
use self::wait::{SLEEP_MAX, SLEEP_MIN, TimeLeft};
use super::shm::Shm;
use super::{
    Activity, Bell, CompoundStep, Done, Engine, Epoch, Error, Fault, MESSAGE_LEN_MAX, MemberId,
    Message, Operation, Pending, Port, Result, TRY_SEND_LEN_MAX, Time, View, check_compound,
    deadline, run_compound,
};
use crate::sync::lock;
use outlast_mpi_sys as mpi;
pub use outlast_mpi_sys::Comm as Communicator;
use rustix::process::Signal;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// How long a leaving member waits for acknowledgements: a remote member may be stopped.
const LEAVE_MAX: Duration = Duration::from_secs(1);

/// A member on the mpi engine.
pub struct Mpi {
    /// The shm job of this node: local members, and the view.
    node: Shm,
    /// By member: whether it is of this node.
    is_local: Vec<bool>,
    /// The communication with remote members; `None` if there are none.
    core: Option<Mutex<Core>>,
    /// Until when this member may reveal the memory of its node, see `quorum.rs`. `None` if no
    /// lease is needed.
    lease: Option<Arc<Lease>>,
    /// The way to all segments, this member's own included, if `OUTLAST_MPI_PATH=rma` is set.
    onesided: Option<OneSided>,
    /// How many foreground activities wait. While this is not 0, the background moves no data.
    waiting: AtomicUsize,
    /// Held by the activity that moves data.
    mover: Mutex<()>,
    /// Until when activities sleep instead of yielding: a yield has taken long.
    crowded_until: AtomicU64,
    /// How often in a row a yield has returned at once.
    quick_yields: AtomicU32,
    /// When data last moved, or a request was last started: tells how soon to expect the next
    /// frame.
    moved_at: AtomicU64,
    /// This engine's own duplicate of the program's communicator.
    comm: mpi::Comm,
}

impl Mpi {
    /// A communicator of the living members, for the program. All living members have to call this.
    /// Each call waits for the others, at most for the time limit. It also works after leaving. If
    /// a member never calls it, a thread of this process stays in MPI.
    pub(crate) fn shrink(&self) -> Result<mpi::Comm> {
        let failed = |error: String| Error::System { what: "MPIX_Comm_shrink", error };
        let (comm, (sender, receiver)) = (self.comm, std::sync::mpsc::channel());
        std::thread::Builder::new()
            .name("outlast-shrink".into())
            .spawn(move || sender.send(comm.shrink()))
            .map_err(|error| failed(error.to_string()))?;
        let limit = self.node.time_limit();
        match receiver.recv_timeout(limit) {
            Ok(result) => result.map_err(|error| failed(error.to_string())),
            Err(_) => {
                Err(failed(format!("not all living members have called it within {limit:?}")))
            }
        }
    }

    /// Executes an operation at a remote member, and waits for its result.
    fn ask(&self, at: Epoch, target: MemberId, operation: Operation<'_>) -> Result<Done> {
        deadline::check_late(target)?;
        self.wait(self.start(at, target, operation))
    }

    /// How long the calling activity may wait for an answer of `member`.
    fn time_left(&self, member: MemberId) -> TimeLeft {
        let now = self.now();
        TimeLeft::new(deadline::until_answer(now, self.node.time_limit(), member), now)
    }

    /// The shm job of this node, if `member` is local and no lease is needed: its memory may then
    /// be accessed directly.
    pub(crate) fn mapped_node(&self, member: MemberId) -> Option<&Shm> {
        (self.lease.is_none() && self.reaches_directly(member)).then_some(&self.node)
    }

    /// The shm job of this node.
    pub(crate) fn node(&self) -> &Shm {
        &self.node
    }

    /// The shm job of this node, if all members are local.
    pub(crate) fn only_node(&self) -> Option<&Shm> {
        self.core.is_none().then_some(&self.node)
    }

    /// The communication with `member`, if it is remote. A member that does not exist is left to
    /// the node, which reports it.
    #[inline]
    fn remote_core(&self, member: MemberId) -> Option<&Mutex<Core>> {
        let core = self.core.as_ref()?;
        (!self.is_local.get(member.index()).copied().unwrap_or(true)).then_some(core)
    }

    /// Returns the result of an operation on the memory of this node once this member has a lease.
    /// The lease is checked after the operation: a member that has a lease now was not declared
    /// dead by any member until now, or only by members that are dead or declared dead themselves
    /// (`quorum.rs`, the remaining case).
    #[inline]
    fn require_lease<T>(&self, result: Result<T>) -> Result<T> {
        match &self.lease {
            Some(lease) if result.is_ok() => self.wait_for_lease(lease).and(result),
            _ => result,
        }
    }

    /// Whether this process accesses a member's segment by its own instructions.
    #[inline]
    fn reaches_directly(&self, member: MemberId) -> bool {
        self.remote_core(member).is_none() && self.onesided.is_none()
    }

    /// Locks the core for an operation on a living remote member.
    fn lock_core_for<'a>(
        &self,
        core: &'a Mutex<Core>,
        target: MemberId,
    ) -> Result<MutexGuard<'a, Core>> {
        self.node.check_target(Epoch::ANY, target)?;
        let mut core = lock(core);
        // Checked under the lock: a death after this check is found by the next holder of the lock.
        if core.is_dead(&self.node, target) {
            Err(Error::Dead { member: target })
        } else {
            Ok(core)
        }
    }

    /// As [`Mpi::require_lease`], for an operation that was started on a local member.
    fn require_lease_for(&self, mut pending: Pending) -> Pending {
        match pending.take() {
            Some(result) => Pending::ready(pending.target, self.require_lease(result)),
            None => pending,
        }
    }

    /// Checks whether operations on a member without a mapped segment can be started.
    fn check_remote<'a>(
        &self,
        at: Epoch,
        target: MemberId,
        operations: impl IntoIterator<Item = Operation<'a>>,
    ) -> Result<()> {
        self.node.check_target(at, target)?;
        self.node.step();
        // Only the target knows the length of its segment, so only the alignment is checked here.
        for operation in operations {
            let is_word = !matches!(operation, Operation::Put { .. } | Operation::Get { .. });
            if is_word && !operation.range().0.is_multiple_of(8) {
                return Err(Error::Unaligned { offset: operation.range().0 });
            }
        }
        self.moved_at.store(self.now().0, Ordering::Relaxed);
        Ok(())
    }

    /// Starts an operation on a member without a mapped segment.
    fn start_remote(
        &self,
        at: Epoch,
        target: MemberId,
        operation: Operation<'_>,
    ) -> Result<Pending> {
        self.check_remote(at, target, [operation])?;
        match (&self.onesided, self.remote_core(target)) {
            (Some(onesided), _) => Ok(onesided.start(&self.node, at, target, operation)),
            (None, Some(core)) => {
                Ok(self.lock_core_for(core, target)?.start(&self.node, at, target, operation))
            }
            (None, None) => Ok(self.node.start(at, target, operation)),
        }
    }

    /// Sends a signal to a member under this member's kernel.
    fn signal(&self, member: MemberId, signal: Signal) -> Result<()> {
        let Some(core) = self.remote_core(member) else { return self.node.signal(member, signal) };
        match lock(core).detector.probes[member.index()].signal(signal) {
            // No such process: it has ended already, and the detector will find that out.
            Some(Ok(()) | Err(rustix::io::Errno::SRCH)) => Ok(()),
            Some(Err(error)) => {
                Err(Error::System { what: "sending a signal", error: error.to_string() })
            }
            None => Err(Error::Unsupported {
                what: "signalling a member on another host; send the signal on its own host",
            }),
        }
    }
}

impl super::sealed::Sealed for Mpi {}

impl Engine for Mpi {
    fn me(&self) -> MemberId {
        self.node.me()
    }

    fn members(&self) -> usize {
        self.node.members()
    }

    fn domain(&self, member: MemberId) -> Result<String> {
        let Some(core) = self.remote_core(member) else { return self.node.domain(member) };
        if self.node.is_forked() {
            return Err(Error::Forked);
        }
        Ok(lock(core).peer(member).map(|peer| peer.domain.clone()).unwrap_or_default())
    }

    #[inline]
    fn epoch(&self) -> Epoch {
        self.node.epoch()
    }

    fn view(&self) -> View {
        self.node.view()
    }

    fn fence(&self, member: MemberId, until: Time) -> Result<()> {
        let Some(core) = self.remote_core(member) else { return self.node.fence(member, until) };
        let started = self.now();
        match self.lock_core_for(core, member) {
            Err(Error::Dead { .. }) => return Ok(()),
            Err(error) => return Err(error),
            Ok(mut core) => core.fence(&self.node, member),
        }
        // A signal ends it at once, where that is possible. The frame is not enough for a member
        // that is stopped and alone on its node: it cannot act on the frame, and it has no node
        // mate that could.
        let _ = self.signal(member, Signal::KILL);
        loop {
            let bell = self.bell();
            match self.node.check_target(Epoch::ANY, member) {
                Err(Error::Dead { .. }) => return Ok(()),
                other => other?,
            }
            if self.now() >= until {
                return Err(Error::Timeout { member, limit: until.since(started) });
            }
            self.park(bell, until);
        }
    }

    #[inline]
    fn has_ended(&self) -> bool {
        self.node.has_ended()
    }

    fn leave(&self) -> Result<()> {
        if let Some(core) = &self.core {
            // Checked before the lock is taken, which a forked child may find held for ever.
            self.node.check_target(Epoch::ANY, self.me())?;
            let until = deadline::until(self.now(), self.node.time_limit());
            while self.now() < until && lock(core).is_needed_to_decide(&self.node) {
                if !self.progress() {
                    std::thread::sleep(SLEEP_MAX);
                }
            }
            lock(core).begin_leave();
        }
        if let Some(onesided) = &self.onesided {
            onesided.end();
        }
        // The own node first: its members map this member's memory.
        self.node.leave()?;
        if let Some(core) = &self.core {
            lock(core).announce_leave(&self.node);
            let until = self.now().after(LEAVE_MAX.min(self.node.time_limit()));
            while self.now() < until && !lock(core).is_leave_acknowledged() {
                if !self.progress() {
                    std::thread::sleep(SLEEP_MIN);
                }
            }
            lock(core).finish_leave();
        }
        HAS_LEFT.store(1, Ordering::Release);
        Ok(())
    }

    fn segment_len(&self, target: MemberId) -> Result<u64> {
        let Some(core) = self.remote_core(target) else { return self.node.segment_len(target) };
        let pending = self.lock_core_for(core, target)?.start_segment_len(&self.node, target);
        self.wait(pending).map(Done::word)
    }

    fn grow(&self, len: u64) -> Result<()> {
        self.node.grow(len)
    }

    fn segment_limit(&self) -> Result<u64> {
        self.node.segment_limit()
    }

    fn start(&self, at: Epoch, target: MemberId, operation: Operation<'_>) -> Pending {
        match self.reaches_directly(target) {
            true => self.require_lease_for(self.node.start(at, target, operation)),
            false => self
                .start_remote(at, target, operation)
                .unwrap_or_else(|error| Pending::ready(target, Err(error))),
        }
    }

    fn start_compound(&self, at: Epoch, target: MemberId, steps: &[CompoundStep<'_>]) -> Pending {
        if self.reaches_directly(target) {
            return self.require_lease_for(self.node.start_compound(at, target, steps));
        }
        let Some(core) = self.remote_core(target).filter(|_| self.onesided.is_none()) else {
            return Pending::ready(target, run_compound(self, at, target, steps));
        };
        let start = || {
            check_compound(steps)?;
            self.check_remote(at, target, steps.iter().map(CompoundStep::operation))?;
            Ok(self.lock_core_for(core, target)?.start_compound(&self.node, at, target, steps))
        };
        start().unwrap_or_else(|error| Pending::ready(target, Err(error)))
    }

    fn poll(&self, pending: &mut Pending) -> Option<Result<Done>> {
        if let Some(result) = pending.take() {
            return Some(result);
        }
        self.progress();
        pending.take()
    }

    fn wait_answer(&self, pending: &mut Pending) -> Result<Done> {
        if let Some(result) = pending.take() {
            return result;
        }
        let (limit, target) = (self.node.time_limit(), pending.target);
        let mut time_left = self.time_left(target);
        loop {
            let bell = self.bell();
            if let Some(result) = self.poll(pending) {
                return result;
            }
            if !time_left.park(self, bell) {
                return Err(deadline::timeout(target, limit));
            }
        }
    }

    #[inline]
    fn put(&self, at: Epoch, target: MemberId, offset: u64, data: &[u8]) -> Result<()> {
        match self.reaches_directly(target) {
            true => self.require_lease(self.node.put(at, target, offset, data)),
            false => self.ask(at, target, Operation::Put { offset, data }).map(|_| ()),
        }
    }

    #[inline]
    fn get(&self, at: Epoch, target: MemberId, offset: u64, buffer: &mut [u8]) -> Result<()> {
        if self.reaches_directly(target) {
            return self.require_lease(self.node.get(at, target, offset, buffer));
        }
        match self.ask(at, target, Operation::Get { offset, len: buffer.len() })? {
            Done::Get(bytes) => buffer.copy_from_slice(&bytes),
            other => unreachable!("a get completed as {other:?}"),
        }
        Ok(())
    }

    #[inline]
    fn load(&self, at: Epoch, target: MemberId, offset: u64) -> Result<u64> {
        match self.reaches_directly(target) {
            true => self.require_lease(self.node.load(at, target, offset)),
            false => self.ask(at, target, Operation::Load { offset }).map(Done::word),
        }
    }

    #[inline]
    fn compare_and_swap(
        &self,
        at: Epoch,
        target: MemberId,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64> {
        match self.reaches_directly(target) {
            true => {
                self.require_lease(self.node.compare_and_swap(at, target, offset, expected, new))
            }
            false => {
                let operation = Operation::CompareAndSwap { offset, expected, new };
                self.ask(at, target, operation).map(Done::word)
            }
        }
    }

    #[inline]
    fn fetch_add(&self, at: Epoch, target: MemberId, offset: u64, delta: u64) -> Result<u64> {
        match self.reaches_directly(target) {
            true => self.require_lease(self.node.fetch_add(at, target, offset, delta)),
            false => self.ask(at, target, Operation::FetchAdd { offset, delta }).map(Done::word),
        }
    }

    #[inline]
    fn is_mapped(&self) -> bool {
        self.core.is_none()
    }

    fn is_member_mapped(&self, member: MemberId) -> bool {
        self.reaches_directly(member)
    }

    fn send(&self, to: MemberId, port: Port, bytes: &[u8]) -> Result<()> {
        let Some(core) = self.remote_core(to) else { return self.node.send(to, port, bytes) };
        if bytes.len() > MESSAGE_LEN_MAX {
            return Err(Error::MessageTooLong { len: bytes.len() });
        }
        let limit = self.node.time_limit();
        let mut time_left = self.time_left(to);
        loop {
            let bell = self.bell();
            {
                let mut core = self.lock_core_for(core, to)?;
                self.node.step();
                if core.send(&self.node, to, port, bytes) {
                    return Ok(());
                }
            }
            if !time_left.park(self, bell) {
                return Err(deadline::timeout(to, limit));
            }
        }
    }

    fn try_send(&self, to: MemberId, port: Port, bytes: &[u8]) -> Result<bool> {
        let Some(core) = self.remote_core(to) else { return self.node.try_send(to, port, bytes) };
        if bytes.len() > TRY_SEND_LEN_MAX {
            return Err(Error::MessageTooLong { len: bytes.len() });
        }
        let mut core = self.lock_core_for(core, to)?;
        self.node.step();
        Ok(core.send(&self.node, to, port, bytes))
    }

    fn drain_requests_of_dead(&self) {
        // An activity that serves a request holds the lock from reading the view until it has
        // written the last word of memory. Afterwards frames of the dead are dropped.
        if let Some(core) = self.core.as_ref().filter(|_| !self.node.is_forked()) {
            lock(core).apply_deaths(&self.node);
        }
    }

    fn server_of_dead(&self) -> Option<MemberId> {
        self.core.as_ref().and_then(|_| self.node.server_of_dead())
    }

    fn can_publish(&self) -> bool {
        self.core.is_none()
    }

    fn try_publish(&self, to: &[MemberId], port: Port, bytes: &[u8]) -> Result<bool> {
        match self.only_node() {
            Some(node) => node.try_publish(to, port, bytes),
            None => Err(Error::Unsupported { what: "publishing messages to several nodes" }),
        }
    }

    fn receive(&self, port: Port) -> Option<Message> {
        let receive_remote = || {
            let mut core = lock(self.core.as_ref().filter(|_| !self.node.is_forked())?);
            core.receive(&self.node, port).or_else(|| {
                core.progress(&self.node);
                core.receive(&self.node, port)
            })
        };
        let message = self.node.receive(port).or_else(receive_remote)?;
        // Without a lease no message is delivered, so that the members of a side that was cut off
        // agree on nothing: the call waits for a lease. To return "no message" instead would be
        // wrong, since the caller may conclude from it that a dead member has sent nothing more. An
        // error here means that this member has left, so that its calls end anyway.
        self.require_lease(Ok(message)).ok()
    }

    fn set_attending(&self, port: Port, attending: bool) {
        self.node.set_attending(port, attending);
        // Remote messages that arrived while the port was attended did not ring the background.
        if !attending && self.core.as_ref().is_some_and(|core| lock(core).has_message(port)) {
            self.node.ring_own();
        }
    }

    fn now(&self) -> Time {
        self.node.now()
    }

    fn time_limit(&self) -> Duration {
        self.node.time_limit()
    }

    fn bell(&self) -> Bell {
        self.node.bell()
    }

    fn park(&self, seen: Bell, until: Time) {
        if self.core.is_none() || self.has_ended() {
            return self.node.park(seen, until);
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.park_moving(seen, until, false);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    fn ring(&self, member: MemberId) -> Result<()> {
        let Some(core) = self.remote_core(member) else { return self.node.ring(member) };
        match self.lock_core_for(core, member) {
            Ok(mut core) => core.ring(&self.node, member),
            // A dead member needs no bell.
            Err(Error::Dead { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<Activity> {
        self.node.spawn(name, body)
    }

    fn park_in_background(&self, seen: Bell, until: Time) {
        match self.core {
            None => self.node.park_in_background(seen, until),
            Some(_) => self.park_moving(seen, until, true),
        }
    }

    fn inject(&self, fault: Fault) -> Result<()> {
        if !cfg!(feature = "faults") {
            return Err(Error::Unsupported {
                what: "fault injection; build with the cargo feature `faults`",
            });
        }
        let (member, signal) = match fault {
            Fault::Kill(member) => (member, Signal::KILL),
            Fault::Stop(member) => (member, Signal::STOP),
            Fault::Resume(member) => (member, Signal::CONT),
            own => return self.node.inject(own),
        };
        match self.remote_core(member) {
            None => self.node.inject(fault),
            Some(_) => self.signal(member, signal),
        }
    }
}

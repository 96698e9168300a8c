//! The mpi engine: ranks of a job under `mpirun --with-ft ulfm`.
//!
//! The members of one *node* (one kernel, one host name) are a job of the shm engine: they map each other's segments,
//! put, get and swap words in them by their own instructions, and learn of each other's deaths from the kernel. That
//! job has places for all members, so that numbers are the same everywhere; those of other nodes never take theirs.
//! Its log of deaths and its epoch are those of the node: what one member learns of another node's dead, all of the
//! node know.
//!
//! Members of other nodes are reached by messages alone (`core.rs`): an operation is a request that the target's own
//! code serves, in its own segment, by the same instructions as its neighbours, and acknowledges. Whichever of its
//! activities waits in the engine does so, or else its background activity. All calls of MPI are made under one lock,
//! none of them waits, and no operation needs anyone but its caller and its target.
//!
//! MPI has no wait that another thread can end, so waiting means testing: a waiting activity tests for 200 us after the last
//! thing that moved, giving way to other processes in between, then sleeps between tests, for an eighth of the time since
//! then, up to 1 ms. The background activity never spins. An operation on a member of another node that computes, or has
//! heard nothing for long, therefore takes up to about a millisecond more than one on a member that is busy serving. Where all
//! members are of one node nobody calls MPI after joining.
//!
//! `OUTLAST_MPI_PATH=rma` reaches segments through a window of MPI instead (`onesided.rs`): an experiment, which nothing else
//! here is written for.
//!
//! # View
//! Each node has a view of its own: its log of deaths. A frame carries the sender's dead until the receiver was told, and
//! the target merges them before it looks at the operation's epoch. Epochs are numbers, and two nodes that each know of
//! one death may mean different ones, but after the merge the target's set contains the caller's, so that equal
//! numbers mean equal sets. `core.rs` says when a death at another node is acted upon.
//!
//! # Ending
//! `MPI_Finalize` waits for all others, and hangs if one ended in a way that the launcher did not report. It is not
//! called: a member that has left exits, which the launcher takes as a failure that nobody asks about any more. A
//! program that initialized MPI itself may call it after leaving.

mod core;
mod onesided;
mod quorum;
mod wire;

use self::core::{Core, Peer, Witness};
use self::onesided::OneSided;
use super::shm::{JobMemory, SHM_MEMBERS_MAX, Shm, available_memory};
use super::{
    Activity, Bell, CompoundStep, Done, Engine, Epoch, Error, Fault, MESSAGE_LEN_MAX, MemberId,
    Message, Operation, Pending, Port, Result, TRY_SEND_LEN_MAX, Time, View, check_compound,
    run_compound,
};
use crate::engine::{JoinError, JoinOptions};
use crate::sync::{lock, try_lock};
use outlast_mpi_sys as mpi;
pub use outlast_mpi_sys::Comm as Communicator;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a waiting activity tests without sleeping: what takes two round trips, one after the other, finds the second target
/// still testing, also where members share processors. (With 50 us, three hosts on two cores: 229 us for a put instead of 36.)
const SPIN_MAX: Duration = Duration::from_micros(200);

/// A waiting activity that gives way and comes to run again only after so long shares its processor with others. One that
/// sleeps has the better chance there: whoever wakes comes before those who are always ready to run. So for a while it
/// sleeps between tests instead.
const YIELD_MAX: Duration = Duration::from_micros(200);
const CROWDED_FOR: Duration = Duration::from_millis(20);

/// One that comes back at once has the processor for itself, and need not give way at each test: after so many of these in a
/// row only at one of 2 to that power.
const YIELD_QUICK: Duration = Duration::from_nanos(1500);
const QUICK_YIELDS_MAX: u32 = 3;

/// The shortest and the longest sleep between two tests.
const SLEEP_MIN: Duration = Duration::from_micros(20);
const BACKGROUND_SLEEP_MIN: Duration = Duration::from_micros(50);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// The longest part of a wait for another member, and what it counts at most towards the time limit: a caller that
/// was itself stopped must not find its time over and blame the other.
const PATIENCE_SLICE: Duration = Duration::from_millis(10);
const PATIENCE_SLICE_MAX: Duration = Duration::from_millis(100);

/// How long a leaving member waits for the farewells of the others: one of them may be stopped.
const LEAVE_MAX: Duration = Duration::from_secs(1);

/// Which member this process has become: it can be only one.
static JOINED: Mutex<Option<MemberId>> = Mutex::new(None);

/// Whether this member has left; read when the process exits.
static HAS_LEFT: AtomicI32 = AtomicI32::new(0);

/// What is left of the time limit of one call.
struct Patience {
    left: Duration,
}

impl Patience {
    /// Waits until the bell has rung or a slice of the time is over; `false` once all of it is.
    fn park(&mut self, mpi: &Mpi, seen: Bell) -> bool {
        if self.left.is_zero() {
            return false;
        }
        let before = mpi.now();
        mpi.park(seen, before.after(self.left.min(PATIENCE_SLICE)));
        self.left = self.left.saturating_sub(mpi.now().since(before).min(PATIENCE_SLICE_MAX));
        true
    }
}

/// A member on the mpi engine.
pub struct Mpi {
    /// The members of this node, and the view.
    node: Shm,
    /// Which members are of this node.
    is_neighbour: Vec<bool>,
    /// The way to the members of other nodes; none if there are no others.
    core: Option<Mutex<Core>>,
    /// Until when this member may tell what is in the memory of its node, unless all members run under one kernel: see
    /// `quorum.rs`.
    lease: Option<Arc<AtomicU64>>,
    /// The way to all segments, this member's own included, if MPI's one-sided operations were asked for.
    onesided: Option<OneSided>,
    /// How many foreground activities wait: while there is one, it moves the data and the background rests.
    waiting: AtomicUsize,
    /// Held by the activity that moves the data.
    mover: Mutex<()>,
    /// Until when giving way is not worth it: the processor went to somebody else for long.
    crowded_until: AtomicU64,
    /// How often in a row giving way was over at once.
    quick_yields: AtomicU32,
    /// When something was last moved, or asked for: how soon the next thing is to be expected.
    moved_at: AtomicU64,
    /// Who this member is to those of other nodes.
    myself: Peer,
    /// This engine's own duplicate of the program's communicator.
    comm: mpi::Comm,
}

fn mpi_error(error: mpi::Error) -> JoinError {
    JoinError::Mpi { reason: error.to_string() }
}

/// How many ranks, at most, count as neighbours, from the variable OUTLAST_MPI_PATH: all that a node has, unless tests want
/// several nodes on one host. `messages` is for none, so that everybody is reached by messages, and so is `rma`, see `onesided.rs`.
fn group_len() -> std::result::Result<Option<usize>, JoinError> {
    let text = std::env::var("OUTLAST_MPI_PATH").unwrap_or_default();
    match (text.as_str(), text.strip_prefix("groups:").and_then(|len| len.parse().ok())) {
        ("" | "nodes", _) => Ok(None),
        ("messages" | "rma", _) => Ok(Some(1)),
        (_, Some(len)) if len > 0 => Ok(Some(len)),
        _ => Err(JoinError::Mpi {
            reason: format!(
                "OUTLAST_MPI_PATH is `{text}`; it may be nodes (the default), messages, groups:N, or rma (an experiment)"
            ),
        }),
    }
}

/// Whether the kernel is to be asked about members of other nodes that run under it, from the variable OUTLAST_MPI_WITNESS.
/// Tests that cut the links between hosts made of one machine leave it to the majority, as between real ones.
fn asks_kernel() -> std::result::Result<bool, JoinError> {
    let text = std::env::var("OUTLAST_MPI_WITNESS").unwrap_or_default();
    match text.as_str() {
        "" | "kernel" => Ok(true),
        "votes" => Ok(false),
        _ => Err(JoinError::Mpi {
            reason: format!(
                "OUTLAST_MPI_WITNESS is `{text}`; it may be kernel (the default) or votes"
            ),
        }),
    }
}

/// What members tell each other when they join.
struct Introduction {
    node: [u64; 2],
    kernel: [u64; 2],
    pid: u32,
    descriptor: i32,
}

impl Introduction {
    /// What the kernel can say of this member.
    fn witness(&self, rank: usize) -> std::result::Result<Witness, JoinError> {
        let Some(pid) = Pid::from_raw(self.pid as i32) else { return Ok(Witness::Ended) };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Witness::Process(pidfd)),
            Err(rustix::io::Errno::SRCH) => Ok(Witness::Ended),
            Err(error) => Err(JoinError::Mpi {
                reason: format!(
                    "cannot watch the process of rank {rank}: {error}; is `ulimit -n` above the number of ranks?"
                ),
            }),
        }
    }
}

/// Polls for something that all members take part in: one that never joins must not hold the others for ever.
fn poll_for_all<T>(
    until: Instant,
    limit: Duration,
    mut poll: impl FnMut() -> mpi::Result<Option<T>>,
) -> std::result::Result<T, JoinError> {
    loop {
        if let Some(found) = poll().map_err(mpi_error)? {
            return Ok(found);
        }
        if Instant::now() >= until {
            return Err(JoinError::Mpi {
                reason: format!(
                    "not all ranks have joined within {limit:?}; does every rank call outlast::join(), and do all live?"
                ),
            });
        }
        std::thread::sleep(SLEEP_MIN);
    }
}

impl Mpi {
    pub(crate) fn attach(options: &JoinOptions) -> std::result::Result<Mpi, JoinError> {
        let until = Instant::now() + options.time_limit;
        let pid = std::process::id();
        let (group_len, asks_kernel) = (group_len()?, asks_kernel()?);
        // Held until this process is a member: a second join would wait for the others to join twice.
        let mut joined = lock(&JOINED);
        if let Some(member) = *joined {
            return Err(JoinError::AlreadyJoined { member, pid });
        }
        initialize(options)?;
        let mut duplicate =
            mpi::Duplicate::begin(options.communicator.unwrap_or_else(mpi::Comm::world))
                .map_err(mpi_error)?;
        let comm = poll_for_all(until, options.time_limit, || duplicate.poll())?;
        let (rank, members) = comm.rank_and_size().map_err(mpi_error)?;
        let me = MemberId(rank as u32);
        let number =
            |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let spares = number(crate::engine::join::SPARES_VARIABLE).unwrap_or(0) as usize;
        if members > SHM_MEMBERS_MAX || spares >= members {
            return Err(JoinError::Invalid {
                reason: format!(
                    "a job of {members} ranks, {spares} of them spares; 1 to {SHM_MEMBERS_MAX} are supported, and one must not be a spare"
                ),
            });
        }
        // Which memory of a node becomes the node's is known when all have told: everyone makes one, of which nothing is
        // backed but the tables.
        let wanted =
            options.segment_limit.or_else(|| number(crate::engine::join::SEGMENT_LIMIT_VARIABLE));
        let limit =
            wanted.unwrap_or_else(|| available_memory() / 2).min((1 << 45) / members as u64);
        let own = JobMemory::create(members - spares, spares, Some(limit))?;
        let node = node_identity(group_len.map(|len| rank / len));
        let kernel = hash(&kernel_identity());
        let words =
            [node[0], node[1], kernel[0], kernel[1], u64::from(pid), own.descriptor() as u64];
        let mut gather = mpi::Gather::begin(comm, members, words).map_err(mpi_error)?;
        let all: Vec<Introduction> = poll_for_all(until, options.time_limit, || gather.poll())?
            .into_iter()
            .map(|[a, b, c, d, pid, file]| Introduction {
                node: [a, b],
                kernel: [c, d],
                pid: pid as u32,
                descriptor: file as i32,
            })
            .collect();
        let is_neighbour: Vec<bool> = all.iter().map(|other| other.node == node).collect();
        let first = is_neighbour.iter().position(|&is| is).unwrap_or(rank);
        let memory = if first == rank {
            own
        } else {
            drop(own);
            JobMemory::fetch(all[first].pid, all[first].descriptor).map_err(|error| JoinError::Mpi {
                reason: format!("{error}; where ranks of one host may not see each other's memory, set OUTLAST_MPI_PATH=messages"),
            })?
        };
        let neighbours = is_neighbour.iter().filter(|&&is| is).count();
        let mut witnesses = Vec::with_capacity(members);
        for (rank, one) in all.iter().enumerate() {
            let is_watched = asks_kernel && one.kernel == kernel && !is_neighbour[rank];
            witnesses.push(if is_watched { one.witness(rank)? } else { Witness::None });
        }
        let domain = options.domain.clone().or_else(|| std::env::var("OUTLAST_DOMAIN").ok());
        let domain = domain.unwrap_or_else(host_name);
        // Without a word the members of a node share what it has.
        let own_limit = wanted.unwrap_or_else(|| limit / neighbours as u64);
        let place = JoinOptions {
            domain: Some(domain.clone()),
            segment_limit: Some(own_limit),
            ..options.clone()
        };
        let node = Shm::take_place(memory, me, neighbours, &place)?;
        let report = std::env::var_os(crate::engine::join::REPORT_VARIABLE);
        let report = report.and_then(|path| std::ffi::CString::new(path.into_encoded_bytes()).ok());
        // To the launcher a process is its rank in the world, whichever communicator the program has passed.
        let (world_rank, _) = mpi::Comm::world().rank_and_size().map_err(mpi_error)?;
        mpi::die_on_exit(&HAS_LEFT, world_rank, report.as_deref()).map_err(mpi_error)?;
        let myself = Peer { pid: pid as i32, kernel: kernel_identity(), domain };
        let node_of =
            all.iter().map(|one| all.iter().position(|other| other.node == one.node).unwrap_or(0));
        let node_of: Vec<usize> = node_of.collect();
        let core = (neighbours < members)
            .then(|| Core::new(comm, &node, node_of, witnesses, myself.clone()));
        let onesided = match core.is_some() && onesided::is_wanted() {
            true => Some(OneSided::open(comm, &node, until, options.time_limit)?),
            false => None,
        };
        *joined = Some(me);
        Ok(Mpi {
            node,
            is_neighbour,
            lease: core.as_ref().and_then(Core::lease),
            core: core.map(Mutex::new),
            onesided,
            waiting: AtomicUsize::new(0),
            mover: Mutex::new(()),
            crowded_until: AtomicU64::new(0),
            quick_yields: AtomicU32::new(0),
            moved_at: AtomicU64::new(0),
            myself,
            comm,
        })
    }

    pub(crate) fn start_background(
        &self,
        body: Box<dyn FnOnce() + Send>,
    ) -> std::result::Result<(), JoinError> {
        // By default the kernel ends a sleep up to 50 us late, which is more than most of those between two tests.
        let body = move || {
            let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
            body();
        };
        self.node.start_background(Box::new(body))
    }

    pub(crate) fn wait_for_all(&self) -> std::result::Result<(), JoinError> {
        let limit = self.node.time_limit();
        let until = self.now().after(limit);
        loop {
            let bell = self.bell();
            let has_joined = |member: MemberId| match self.elsewhere(member) {
                None => self.node.has_joined(member),
                Some(core) => lock(core).peer(member).is_some(),
            };
            let Some(member) = self.view().living().find(|&member| !has_joined(member)) else {
                return Ok(());
            };
            if self.now() >= until {
                // Not a member that others could rely on: it leaves, so that nobody waits for it.
                let _ = self.leave();
                return Err(JoinError::Timeout { member, limit });
            }
            self.park(bell, until);
        }
    }

    /// A communicator of the members that live, for the program: all of them call this, and wait for each other within
    /// the time limit. It works after leaving, too. If one of them never calls, a thread of this process stays in MPI.
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

    /// The members of this node, as a job of their own, if a member is one of them, and their memory may be told of
    /// without a lease.
    pub(crate) fn neighbour(&self, member: MemberId) -> Option<&Shm> {
        (self.lease.is_none() && self.is_at_hand(member)).then_some(&self.node)
    }

    /// The members of this node, as a job of their own, if all are.
    pub(crate) fn only_node(&self) -> Option<&Shm> {
        self.core.is_none().then_some(&self.node)
    }

    /// The way to a member of another node. Of one that does not exist the node says so.
    #[inline]
    fn elsewhere(&self, member: MemberId) -> Option<&Mutex<Core>> {
        let core = self.core.as_ref()?;
        (!self.is_neighbour.get(member.index()).copied().unwrap_or(true)).then_some(core)
    }

    /// What an operation on the memory of this node has found, once this member has a lease. The look at the lease comes after
    /// the operation: who has a lease now was counted with until now, by everyone.
    #[inline]
    fn attest<T>(&self, result: Result<T>) -> Result<T> {
        match &self.lease {
            Some(lease) if result.is_ok() => self.await_lease(lease).and(result),
            _ => result,
        }
    }

    /// Waits for a lease, and ends this process if none comes within the time limit: the others may have gone on without it.
    fn await_lease(&self, lease: &AtomicU64) -> Result<()> {
        let limit = self.node.time_limit();
        let mut patience = Patience { left: limit };
        loop {
            let bell = self.bell();
            if self.now().0 < lease.load(Ordering::SeqCst) {
                return Ok(());
            }
            if self.has_ended() {
                return Err(Error::Ended);
            }
            if !patience.park(self, bell) {
                Shm::end_with(&format!(
                    "outlast: {} has not reached a majority of the job for {limit:?}; ending this process, since the others \
                     may go on without it\n",
                    self.me()
                ));
            }
        }
    }

    /// Whether a member's segment is reached by this process's own instructions.
    #[inline]
    fn is_at_hand(&self, member: MemberId) -> bool {
        self.elsewhere(member).is_none() && self.onesided.is_none()
    }

    /// Moves data if no other activity is doing so already; whether anything happened.
    fn progress(&self) -> bool {
        let Some(core) = &self.core else { return false };
        let Some(mut core) = try_lock(core) else { return false };
        let mut has_moved = core.progress(&self.node);
        drop(core);
        has_moved |= self.onesided.as_ref().is_some_and(|onesided| onesided.progress(&self.node));
        if has_moved {
            self.moved_at.store(self.now().0, Ordering::Relaxed);
        }
        has_moved
    }

    /// Locks the way to a member of another node that lives.
    fn reach<'a>(&self, core: &'a Mutex<Core>, target: MemberId) -> Result<MutexGuard<'a, Core>> {
        self.node.check_target(Epoch::ANY, target)?;
        let mut core = lock(core);
        // Under the lock: whoever dies from here on is found dead by the next one who holds it.
        if core.is_dead(&self.node, target) {
            Err(Error::Dead { member: target })
        } else {
            Ok(core)
        }
    }

    /// What an operation on a neighbour gave, once this member has a lease.
    fn attest_pending(&self, mut pending: Pending) -> Pending {
        match pending.take() {
            Some(result) => Pending::ready(pending.target, self.attest(result)),
            None => pending,
        }
    }

    /// Says why operations on a member whose segment is not at hand cannot be started, if so.
    fn begin_elsewhere<'a>(
        &self,
        at: Epoch,
        target: MemberId,
        operations: impl IntoIterator<Item = Operation<'a>>,
    ) -> Result<()> {
        self.node.check_target(at, target)?;
        self.node.step();
        // The target's segment length is known only at the target; only the alignment is checked here.
        for operation in operations {
            let is_word = !matches!(operation, Operation::Put { .. } | Operation::Get { .. });
            if is_word && !operation.range().0.is_multiple_of(8) {
                return Err(Error::Unaligned { offset: operation.range().0 });
            }
        }
        self.moved_at.store(self.now().0, Ordering::Relaxed);
        Ok(())
    }

    /// Starts an operation on a member whose segment is not at hand, or says why not.
    fn start_elsewhere(
        &self,
        at: Epoch,
        target: MemberId,
        operation: Operation<'_>,
    ) -> Result<Pending> {
        self.begin_elsewhere(at, target, [operation])?;
        match (&self.onesided, self.elsewhere(target)) {
            (Some(onesided), _) => Ok(onesided.start(&self.node, at, target, operation)),
            (None, Some(core)) => {
                Ok(self.reach(core, target)?.start(&self.node, at, target, operation))
            }
            (None, None) => Ok(self.node.start(at, target, operation)),
        }
    }

    /// Sends a signal to a member that runs under the same kernel.
    fn signal(&self, member: MemberId, signal: Signal) -> Result<()> {
        let Some(core) = self.elsewhere(member) else { return self.node.signal(member, signal) };
        let peer =
            lock(core).peer(member).filter(|peer| peer.kernel == self.myself.kernel).cloned();
        let Some(pid) = peer.and_then(|peer| Pid::from_raw(peer.pid)) else {
            return Err(Error::Unsupported {
                what: "signalling a member on another host; send the signal on its own host",
            });
        };
        let sent = pidfd_open(pid, PidfdFlags::empty()).and_then(|pidfd| {
            // Looked at after the descriptor was opened: a number that was given on would be another process.
            if self.view().dead.contains(member) {
                Ok(())
            } else {
                pidfd_send_signal(pidfd, signal)
            }
        });
        match sent {
            // No such process: it has ended already, and the notice is on its way.
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(Error::System { what: "sending a signal", error: error.to_string() }),
        }
    }

    /// Lets others have the processor, and notes whether any of them wanted it.
    fn give_way(&self) {
        let before = self.now();
        std::thread::yield_now();
        let after = self.now();
        let taken = after.since(before);
        if taken > YIELD_MAX {
            self.crowded_until.store(after.after(CROWDED_FOR).0, Ordering::Relaxed);
        }
        // Several activities may come here: any of the counts will do.
        let quick = self.quick_yields.load(Ordering::Relaxed);
        let quick = if taken < YIELD_QUICK { (quick + 1).min(QUICK_YIELDS_MAX) } else { 0 };
        self.quick_yields.store(quick, Ordering::Relaxed);
    }

    /// The loop of both kinds of parking, where there are other nodes. One activity of a member moves its data, and the
    /// others sleep meanwhile: where ranks outnumber cores, each one more that tests takes the time of one that would answer.
    fn park_moving(&self, seen: Bell, until: Time, is_background: bool) {
        let mut role: Option<MutexGuard<'_, ()>> = None;
        let mut tests = 0u32;
        while !self.has_ended() && !self.node.has_rung(seen, is_background) {
            let now = self.now();
            if now >= until {
                break;
            }
            // While an activity of the program waits, the background rests.
            let is_relieved = is_background && self.waiting.load(Ordering::SeqCst) > 0;
            if role.is_none() && !is_relieved {
                role = try_lock(&self.mover);
            }
            if role.is_none() {
                self.node.sleep(seen, until.min(now.after(SLEEP_MAX)), is_background);
                continue;
            }
            if self.progress() {
                continue;
            }
            let idle = now.since(Time(self.moved_at.load(Ordering::Relaxed)));
            let is_crowded = now.0 < self.crowded_until.load(Ordering::Relaxed);
            if !is_background && idle < SPIN_MAX && !is_crowded {
                tests += 1;
                if tests.is_multiple_of(1 << self.quick_yields.load(Ordering::Relaxed)) {
                    self.give_way();
                }
            } else {
                // In proportion, so that what comes after a pause waits for a fraction of the pause.
                let longest = if self.onesided.is_some() { onesided::SLEEP_MAX } else { SLEEP_MAX };
                let shortest = if is_background { BACKGROUND_SLEEP_MIN } else { SLEEP_MIN };
                let sleep = (idle / 8).clamp(shortest, longest);
                // One that has just asked for something must not wait for the end of this sleep; nor one that wanted to move
                // the data meanwhile, and has gone to sleep.
                role = None;
                if is_background && self.waiting.load(Ordering::SeqCst) > 0 {
                    self.node.ring_for_calls();
                }
                self.node.sleep(seen, until.min(now.after(sleep)), is_background);
            }
        }
        // Whoever sleeps in its place is to move the data now.
        if role.take().is_some()
            && self.waiting.load(Ordering::Relaxed) > usize::from(!is_background)
        {
            self.node.ring_for_calls();
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
        let Some(core) = self.elsewhere(member) else { return self.node.domain(member) };
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
        let Some(core) = self.elsewhere(member) else { return self.node.fence(member, until) };
        let started = self.now();
        match self.reach(core, member) {
            Err(Error::Dead { .. }) => return Ok(()),
            Err(error) => return Err(error),
            Ok(mut core) => core.fence(&self.node, member),
        }
        // At once, where that is possible; it may be stopped, and without neighbours.
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
            // Before the lock, which a forked child may find held for ever.
            self.node.check_target(Epoch::ANY, self.me())?;
            lock(core).begin_leave(&self.node);
        }
        if let Some(onesided) = &self.onesided {
            onesided.end();
        }
        // This node first: its members still reach this one's memory.
        self.node.leave()?;
        if let Some(core) = &self.core {
            lock(core).say_farewell(&self.node);
            let until = self.now().after(LEAVE_MAX.min(self.node.time_limit()));
            while self.now() < until && !lock(core).may_leave() {
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
        let Some(core) = self.elsewhere(target) else { return self.node.segment_len(target) };
        let pending = self.reach(core, target)?.start_segment_len(&self.node, target);
        self.wait(pending).map(Done::word)
    }

    fn grow(&self, len: u64) -> Result<()> {
        self.node.grow(len)
    }

    fn start(&self, at: Epoch, target: MemberId, operation: Operation<'_>) -> Pending {
        match self.is_at_hand(target) {
            true => self.attest_pending(self.node.start(at, target, operation)),
            false => self
                .start_elsewhere(at, target, operation)
                .unwrap_or_else(|error| Pending::ready(target, Err(error))),
        }
    }

    fn start_compound(&self, at: Epoch, target: MemberId, parts: &[CompoundStep<'_>]) -> Pending {
        if self.is_at_hand(target) {
            return self.attest_pending(self.node.start_compound(at, target, parts));
        }
        let Some(core) = self.elsewhere(target).filter(|_| self.onesided.is_none()) else {
            return Pending::ready(target, run_compound(self, at, target, parts));
        };
        let start = || {
            check_compound(parts)?;
            self.begin_elsewhere(at, target, parts.iter().map(CompoundStep::operation))?;
            Ok(self.reach(core, target)?.start_compound(&self.node, at, target, parts))
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

    fn wait(&self, mut pending: Pending) -> Result<Done> {
        if let Some(result) = pending.take() {
            return result;
        }
        let limit = self.node.time_limit();
        let mut patience = Patience { left: limit };
        loop {
            let bell = self.bell();
            if let Some(result) = self.poll(&mut pending) {
                return result;
            }
            if !patience.park(self, bell) {
                return Err(Error::Timeout { member: pending.target, limit });
            }
        }
    }

    #[inline]
    fn put(&self, at: Epoch, target: MemberId, offset: u64, data: &[u8]) -> Result<()> {
        match self.is_at_hand(target) {
            true => self.attest(self.node.put(at, target, offset, data)),
            false => self.wait(self.start(at, target, Operation::Put { offset, data })).map(|_| ()),
        }
    }

    #[inline]
    fn get(&self, at: Epoch, target: MemberId, offset: u64, buffer: &mut [u8]) -> Result<()> {
        if self.is_at_hand(target) {
            return self.attest(self.node.get(at, target, offset, buffer));
        }
        match self.wait(self.start(at, target, Operation::Get { offset, len: buffer.len() }))? {
            Done::Get(bytes) => buffer.copy_from_slice(&bytes),
            other => unreachable!("a get completed as {other:?}"),
        }
        Ok(())
    }

    #[inline]
    fn load(&self, at: Epoch, target: MemberId, offset: u64) -> Result<u64> {
        match self.is_at_hand(target) {
            true => self.attest(self.node.load(at, target, offset)),
            false => self.wait(self.start(at, target, Operation::Load { offset })).map(Done::word),
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
        match self.is_at_hand(target) {
            true => self.attest(self.node.compare_and_swap(at, target, offset, expected, new)),
            false => {
                let operation = Operation::CompareAndSwap { offset, expected, new };
                self.wait(self.start(at, target, operation)).map(Done::word)
            }
        }
    }

    #[inline]
    fn fetch_add(&self, at: Epoch, target: MemberId, offset: u64, delta: u64) -> Result<u64> {
        match self.is_at_hand(target) {
            true => self.attest(self.node.fetch_add(at, target, offset, delta)),
            false => self
                .wait(self.start(at, target, Operation::FetchAdd { offset, delta }))
                .map(Done::word),
        }
    }

    #[inline]
    fn is_mapped(&self) -> bool {
        self.core.is_none()
    }

    fn send(&self, to: MemberId, port: Port, bytes: &[u8]) -> Result<()> {
        let Some(core) = self.elsewhere(to) else { return self.node.send(to, port, bytes) };
        if bytes.len() > MESSAGE_LEN_MAX {
            return Err(Error::MessageTooLong { len: bytes.len() });
        }
        let limit = self.node.time_limit();
        let mut patience = Patience { left: limit };
        loop {
            let bell = self.bell();
            {
                let mut core = self.reach(core, to)?;
                self.node.step();
                if core.send(&self.node, to, port, bytes) {
                    return Ok(());
                }
            }
            if !patience.park(self, bell) {
                return Err(Error::Timeout { member: to, limit });
            }
        }
    }

    fn try_send(&self, to: MemberId, port: Port, bytes: &[u8]) -> Result<bool> {
        let Some(core) = self.elsewhere(to) else { return self.node.try_send(to, port, bytes) };
        if bytes.len() > TRY_SEND_LEN_MAX {
            return Err(Error::MessageTooLong { len: bytes.len() });
        }
        let mut core = self.reach(core, to)?;
        self.node.step();
        Ok(core.send(&self.node, to, port, bytes))
    }

    fn drain_requests_of_dead(&self) {
        // Whoever serves holds the lock from the look at the view to the last word. Afterwards what the dead have sent is
        // passed over.
        if let Some(core) = self.core.as_ref().filter(|_| !self.node.is_forked()) {
            lock(core).notice(&self.node);
        }
    }

    fn is_serving_dead(&self) -> bool {
        self.core.is_some() && self.node.is_serving_dead()
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
        let message = self.node.receive(port);
        let Some(core) = self.core.as_ref().filter(|_| message.is_none() && !self.node.is_forked())
        else {
            return message;
        };
        let mut core = lock(core);
        core.receive(&self.node, port).or_else(|| {
            core.progress(&self.node);
            core.receive(&self.node, port)
        })
    }

    fn set_attending(&self, port: Port, attending: bool) {
        self.node.set_attending(port, attending);
        // What came from elsewhere while the port was attended to was not rung for at the background.
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
        let Some(core) = self.elsewhere(member) else { return self.node.ring(member) };
        match self.reach(core, member) {
            Ok(mut core) => core.ring(&self.node, member),
            // Nobody is there to hear it.
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
        match self.elsewhere(member) {
            None => self.node.inject(fault),
            Some(_) => self.signal(member, signal),
        }
    }
}

/// Initializes MPI, unless the program has, and sees to it that it is what this engine needs.
fn initialize(options: &JoinOptions) -> std::result::Result<(), JoinError> {
    let refuse = |reason: &str| Err(JoinError::Mpi { reason: reason.into() });
    let initialized = mpi::init().map_err(mpi_error)?;
    if !initialized.thread_multiple {
        return refuse(
            "the program initialized MPI without MPI_THREAD_MULTIPLE; ask for it in MPI_Init_thread, or let outlast initialize MPI",
        );
    }
    if !mpi::has_ulfm().map_err(mpi_error)? {
        return refuse("ULFM is not in force; start the job with `mpirun --with-ft ulfm`");
    }
    if initialized.is_ours || options.set_errhandlers {
        mpi::set_errhandlers().map_err(mpi_error)
    } else if mpi::world_is_fatal().map_err(mpi_error)? {
        refuse(
            "an error on MPI_COMM_WORLD, such as the death of a rank, would end this process; write MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN) before joining, or join with JoinOptions::set_errhandlers",
        )
    } else {
        Ok(())
    }
}

/// What the members of one node, and no others, have in common.
fn node_identity(group: Option<usize>) -> [u64; 2] {
    hash(&format!("{} {} {group:?}", host_name(), kernel_identity()))
}

/// FNV-1a, twice: members may be of different programs and compilers, so it is written out.
fn hash(text: &str) -> [u64; 2] {
    [0xcbf2_9ce4_8422_2325_u64, 0x8422_2325_cbf2_9ce4].map(|start| {
        text.bytes()
            .fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    })
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Members under the same kernel have the same process numbers, and can signal each other. Whether they are of one node is
/// a matter of the host's name, too: tests make several hosts of one machine.
fn kernel_identity() -> String {
    let pids = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    // Where it is hidden all kernels would seem to be the same one; the host's name may not come from there, too.
    format!("{} {}", if boot.is_empty() { host_name() } else { boot.trim().into() }, pids.display())
}

//! Joining a job under mpirun.
//!
//! All calls of MPI that wait for all ranks are here: MPI_Init, the duplicate of the program's
//! communicator, and a gather in which all members introduce themselves. The last two are polled
//! within the time limit. MPI_Init can neither be polled nor interrupted, and does not return if a
//! rank dies before all ranks are in it. So a thread of its own calls it, and joining waits for
//! that thread within the time limit. A rank that dies meanwhile makes joining fail at the other
//! ranks.
//!
//! Members with equal host name and kernel form a node. The lowest member of a node provides the
//! memory of the node's shm job, and the other members of the node map it.

use super::Mpi;
use super::core::{Core, Peer};
use super::detector::ProcessProbe;
use super::onesided::{self, OneSided};
use super::wait::SLEEP_MIN;
use crate::engine::join::{REPORT_VARIABLE, SEGMENT_LIMIT_VARIABLE, SPARES_VARIABLE};
use crate::engine::shm::{JobMemory, SHM_MEMBERS_MAX, Shm, available_memory};
use crate::engine::{Engine, MemberId};
use crate::engine::{JoinError, JoinOptions};
use crate::sync::lock;
use outlast_mpi_sys as mpi;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// The member that this process has become. A process can be a single member only.
static JOINED: Mutex<Option<MemberId>> = Mutex::new(None);

/// The result of MPI_Init, while a thread calls it for this process. A failed join leaves it here:
/// a second join waits for the thread of the first, since MPI must not be initialized twice.
static INITIALIZING: Mutex<Option<Receiver<mpi::Result<mpi::Initialized>>>> = Mutex::new(None);

/// Whether this member has left. Read when the process exits.
pub(super) static HAS_LEFT: AtomicI32 = AtomicI32::new(0);

/// What a member tells all members when it joins.
struct Introduction {
    node: [u64; 2],
    kernel: [u64; 2],
    pid: u32,
    /// The file descriptor of the memory that it has made for its node.
    descriptor: i32,
    /// When the process was started, in ticks of its kernel's clock.
    started_at: u64,
    /// The number of the file of that memory.
    inode: u64,
}

impl Introduction {
    /// Opens the process of this member, which claims to run under this kernel; `None` if this
    /// kernel has no process with that number and that start. Hosts that are copies of a running
    /// virtual machine have equal kernel identities, and their process numbers mean nothing to each
    /// other. A process that has ended meanwhile is not opened either: a majority decides about it.
    fn open(&self, rank: usize) -> std::result::Result<Option<OwnedFd>, JoinError> {
        let Some(pid) = Pid::from_raw(self.pid as i32) else { return Ok(None) };
        match pidfd_open(pid, PidfdFlags::empty()) {
            // The start is read after the descriptor was opened: it is that of the opened process,
            // or of a later process with this number.
            Ok(pidfd) => Ok((start_of(self.pid) == Some(self.started_at)).then_some(pidfd)),
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(error) => Err(JoinError::Mpi {
                reason: format!(
                    "cannot watch the process of rank {rank}: {error}; is `ulimit -n` above the \
                     number of ranks?"
                ),
            }),
        }
    }
}

impl Mpi {
    /// Makes this process a member of the job that mpirun has started.
    pub(crate) fn attach(options: &JoinOptions) -> std::result::Result<Mpi, JoinError> {
        let until = Instant::now() + options.time_limit;
        let pid = std::process::id();
        let (group_len, asks_kernel) = (group_len()?, asks_kernel()?);
        // Held until this process is a member: a second join would wait for all ranks to join
        // twice.
        let mut joined = lock(&JOINED);
        if let Some(member) = *joined {
            return Err(JoinError::AlreadyJoined { member, pid });
        }
        initialize(options, until)?;
        let mut duplicate =
            mpi::Duplicate::begin(options.communicator.unwrap_or_else(mpi::Comm::world))
                .map_err(mpi_error)?;
        let comm = poll_for_all(until, options.time_limit, || duplicate.poll())?;
        let (rank, members) = comm.rank_and_size().map_err(mpi_error)?;
        let me = MemberId(rank as u32);
        let number =
            |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let spares = number(SPARES_VARIABLE).unwrap_or(0) as usize;
        if members > SHM_MEMBERS_MAX || spares >= members {
            return Err(JoinError::Invalid {
                reason: format!(
                    "a job of {members} ranks, {spares} of them spares; 1 to {SHM_MEMBERS_MAX} are \
                     supported, and one must not be a spare"
                ),
            });
        }
        // The introductions tell whose memory becomes that of the node. So every member makes
        // memory in advance, of which only the tables are backed.
        let wanted = options.segment_limit.or_else(|| number(SEGMENT_LIMIT_VARIABLE));
        let limit =
            wanted.unwrap_or_else(|| available_memory() / 2).min((1 << 45) / members as u64);
        let own = JobMemory::create(members - spares, spares, Some(limit))?;
        let node = node_identity(group_len.map(|len| rank / len));
        let kernel = hash(&kernel_identity());
        let started_at = start_of(pid).unwrap_or(0);
        let words = [
            node[0],
            node[1],
            kernel[0],
            kernel[1],
            u64::from(pid),
            own.descriptor() as u64,
            started_at,
            Shm::memory_inode(&own),
        ];
        let mut gather = mpi::Gather::begin(comm, members, words).map_err(mpi_error)?;
        let all: Vec<Introduction> = poll_for_all(until, options.time_limit, || gather.poll())?
            .into_iter()
            .map(|[a, b, c, d, pid, file, started_at, inode]| Introduction {
                node: [a, b],
                kernel: [c, d],
                pid: pid as u32,
                descriptor: file as i32,
                started_at,
                inode,
            })
            .collect();
        let is_local: Vec<bool> = all.iter().map(|other| other.node == node).collect();
        let first = is_local.iter().position(|&is| is).unwrap_or(rank);
        let memory = if first == rank {
            own
        } else {
            drop(own);
            let refused = |error| JoinError::Mpi {
                reason: format!(
                    "{error}; where ranks of one host may not see each other's memory, set \
                     OUTLAST_MPI_PATH=messages"
                ),
            };
            let maker = &all[first];
            if start_of(maker.pid) != Some(maker.started_at) {
                return Err(JoinError::Mpi {
                    reason: format!(
                        "rank {first} has the host name and the kernel of this rank, but no process
                        \
                         with its number and start is here: it has ended, or the two hosts are \
                         copies of a virtual machine and need different host names"
                    ),
                });
            }
            JobMemory::fetch(maker.pid, maker.descriptor).map_err(refused)?
        };
        let local_count = is_local.iter().filter(|&&is| is).count();
        let mut probes = Vec::with_capacity(members);
        for (rank, introduction) in all.iter().enumerate() {
            let is_here = introduction.kernel == kernel && !is_local[rank];
            let pidfd = if is_here { introduction.open(rank)? } else { None };
            // The members of a node map the memory of its lowest member.
            let lowest = all.iter().position(|other| other.node == introduction.node);
            let inode = lowest.map_or(introduction.inode, |lowest| all[lowest].inode);
            probes.push(match pidfd {
                None => ProcessProbe::Unavailable,
                Some(pidfd) if asks_kernel => {
                    ProcessProbe::Process { pidfd, pid: introduction.pid, inode }
                }
                Some(pidfd) => ProcessProbe::Signals(pidfd),
            });
        }
        let domain = options.domain.clone().or_else(|| std::env::var("OUTLAST_DOMAIN").ok());
        let domain = domain.unwrap_or_else(host_name);
        // Unless a limit is given, the members of a node share the memory of the node.
        let own_limit = wanted.unwrap_or_else(|| limit / local_count as u64);
        let place = JoinOptions {
            domain: Some(domain.clone()),
            segment_limit: Some(own_limit),
            ..options.clone()
        };
        let node = Shm::take_place(memory, me, local_count, &place)?;
        let report = std::env::var_os(REPORT_VARIABLE);
        let report = report.and_then(|path| std::ffi::CString::new(path.into_encoded_bytes()).ok());
        // The launcher names a process by its rank in the world, whichever communicator the program
        // has passed.
        let (world_rank, _) = mpi::Comm::world().rank_and_size().map_err(mpi_error)?;
        mpi::die_on_exit(&HAS_LEFT, world_rank, report.as_deref()).map_err(mpi_error)?;
        let myself = Peer { domain };
        let lowest_of = |node| all.iter().position(|other| other.node == node).unwrap_or(0);
        let node_of: Vec<usize> =
            all.iter().map(|introduction| lowest_of(introduction.node)).collect();
        let core = (local_count < members).then(|| Core::new(comm, &node, node_of, probes, myself));
        let onesided = match core.is_some() && onesided::is_wanted() {
            true => Some(OneSided::open(comm, &node, until, options.time_limit)?),
            false => None,
        };
        *joined = Some(me);
        Ok(Mpi {
            node,
            is_local,
            lease: core.as_ref().and_then(Core::lease),
            core: core.map(Mutex::new),
            onesided,
            waiting: AtomicUsize::new(0),
            mover: Mutex::new(()),
            crowded_until: AtomicU64::new(0),
            quick_yields: AtomicU32::new(0),
            moved_at: AtomicU64::new(0),
            comm,
        })
    }

    /// Starts the background activity.
    pub(crate) fn start_background(
        &self,
        body: Box<dyn FnOnce() + Send>,
    ) -> std::result::Result<(), JoinError> {
        // By default the kernel ends a sleep up to 50 us late, longer than most sleeps between two
        // tests.
        let body = move || {
            let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
            body();
        };
        // As on shm: a member that cannot serve leaves, here also for the other nodes.
        self.node.try_start_background(Box::new(body)).inspect_err(|_| drop(self.leave()))
    }

    /// Waits until all living members have joined. Leaves the job if a member does not join within
    /// the time limit.
    pub(crate) fn wait_for_all(&self) -> std::result::Result<(), JoinError> {
        let limit = self.node.time_limit();
        let until = self.now().after(limit);
        loop {
            let bell = self.bell();
            let has_joined = |member: MemberId| match self.remote_core(member) {
                None => self.node.has_joined(member),
                Some(core) => lock(core).peer(member).is_some(),
            };
            let Some(member) = self.view().living().find(|&member| !has_joined(member)) else {
                return Ok(());
            };
            if self.now() >= until {
                // This member is of no use to the job: it leaves, so that no member waits for it.
                let _ = self.leave();
                return Err(JoinError::Timeout { member, limit });
            }
            self.park(bell, until);
        }
    }
}

/// The most ranks that form a node, from the variable OUTLAST_MPI_PATH. `None` is no limit; tests
/// make several nodes on a host. With `messages` every rank is a node, so that all members are
/// reached by messages; likewise with `rma`, see `onesided.rs`.
fn group_len() -> std::result::Result<Option<usize>, JoinError> {
    let text = std::env::var("OUTLAST_MPI_PATH").unwrap_or_default();
    match (text.as_str(), text.strip_prefix("groups:").and_then(|len| len.parse().ok())) {
        ("" | "nodes", _) => Ok(None),
        ("messages" | "rma", _) => Ok(Some(1)),
        (_, Some(len)) if len > 0 => Ok(Some(len)),
        _ => Err(JoinError::Mpi {
            reason: format!(
                "OUTLAST_MPI_PATH is `{text}`; it may be nodes (the default), messages, groups:N, \
                 or rma (an experiment)"
            ),
        }),
    }
}

/// Whether the kernel is to be asked about remote members that run under it, from the variable
/// OUTLAST_MPI_WITNESS. Tests that cut links between hosts that are made of a single machine leave
/// the decision to the majority, as between real hosts.
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

/// Polls a call that all members take part in, within the time limit: a rank that never joins must
/// not block the other ranks for ever.
pub(super) fn poll_for_all<T>(
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
                    "not all ranks have joined within {limit:?}; does every rank call \
                     outlast::join(), and do all live?"
                ),
            });
        }
        std::thread::sleep(SLEEP_MIN);
    }
}

/// Initializes MPI, unless the program has done so, in a thread of its own. If the thread does not
/// return from MPI_Init in time, it stays there until the process exits.
fn call_mpi_init(
    until: Instant,
    limit: Duration,
) -> std::result::Result<mpi::Initialized, JoinError> {
    let mut initializing = lock(&INITIALIZING);
    if initializing.is_none() {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .name("outlast-init".into())
            .spawn(move || sender.send(mpi::init()))
            .map_err(|error| JoinError::System { what: "starting a thread for MPI_Init", error })?;
        *initializing = Some(receiver);
    }
    let receiver = initializing.as_ref().expect("just set");
    match receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(result) => {
            *initializing = None;
            result.map_err(mpi_error)
        }
        Err(_) => Err(JoinError::Mpi {
            reason: format!(
                "MPI_Init has not returned within {limit:?}: a rank has died before all ranks had \
                 called it, or does not call it; end the job and start it again"
            ),
        }),
    }
}

/// Initializes MPI, unless the program has done so, and checks that it offers what this engine
/// needs.
fn initialize(options: &JoinOptions, until: Instant) -> std::result::Result<(), JoinError> {
    let refuse = |reason: &str| Err(JoinError::Mpi { reason: reason.into() });
    mpi::load().map_err(|reason| JoinError::Mpi { reason })?;
    let initialized = call_mpi_init(until, options.time_limit)?;
    if !initialized.thread_multiple {
        return refuse(
            "the program initialized MPI without MPI_THREAD_MULTIPLE; ask for it in \
             MPI_Init_thread, or let outlast initialize MPI",
        );
    }
    if !mpi::has_ulfm().map_err(mpi_error)? {
        return refuse("ULFM is not in force; start the job with `mpirun --with-ft ulfm`");
    }
    if initialized.is_ours || options.set_errhandlers {
        mpi::set_errhandlers().map_err(mpi_error)
    } else if mpi::world_is_fatal().map_err(mpi_error)? {
        refuse(
            "an error on MPI_COMM_WORLD, such as the death of a rank, would end this process; \
             write MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN) before joining, or \
             join with `set_errhandlers`",
        )
    } else {
        Ok(())
    }
}

/// Identifies a node: equal for its members, and different for all others.
fn node_identity(group: Option<usize>) -> [u64; 2] {
    hash(&format!("{} {} {group:?}", host_name(), kernel_identity()))
}

/// FNV-1a with two start values. Written out, since members may be different programs of different
/// compilers, and must agree.
fn hash(text: &str) -> [u64; 2] {
    [0xcbf2_9ce4_8422_2325_u64, 0x8422_2325_cbf2_9ce4].map(|start| {
        text.bytes()
            .fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    })
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// When a process under this kernel was started, in ticks; `None` if there is no such process.
fn start_of(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the process may contain anything; the state is the third field.
    text.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// Identifies the kernel and its process numbers: members with equal identities can signal each
/// other. They are of a single node only if their host names are equal too, since tests make
/// several hosts of a machine.
fn kernel_identity() -> String {
    let pids = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    // Where /proc hides the boot id, all kernels would look equal without the host name.
    format!("{} {}", if boot.is_empty() { host_name() } else { boot.trim().into() }, pids.display())
}

pub(super) fn mpi_error(error: mpi::Error) -> JoinError {
    JoinError::Mpi { reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a copy of a virtual machine another process may have the number of a member, or none.
    #[test]
    fn a_process_with_another_start_is_not_the_member() {
        let pid = std::process::id();
        let started_at = start_of(pid).expect("this process runs");
        let open = |pid: u32, started_at: u64| {
            let (node, kernel) = ([0; 2], [0; 2]);
            let introduction =
                Introduction { node, kernel, pid, descriptor: 3, started_at, inode: 1 };
            introduction.open(1).expect("no error").is_some()
        };
        assert!(open(pid, started_at));
        assert!(!open(pid, started_at + 1) && !open(4_194_305, started_at));
    }
}

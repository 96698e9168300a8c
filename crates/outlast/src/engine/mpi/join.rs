//! Joining a job: the communicator, the nodes, what the members tell each other, the environment.

use super::core::{Core, Peer};
use super::detector::ProcessProbe;
use super::onesided::{self, OneSided};
use super::wait::SLEEP_MIN;
use super::{Mpi, lock};
use crate::engine::shm::{JobMemory, SHM_MEMBERS_MAX, Shm, available_memory};
use crate::engine::{Engine, MemberId};
use crate::launch::{REPORT_VARIABLE, SEGMENT_LIMIT_VARIABLE, SPARES_VARIABLE};
use crate::{JoinError, JoinOptions};
use outlast_mpi_sys as mpi;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

/// Which member this process has become: it can be only one.
static JOINED: Mutex<Option<MemberId>> = Mutex::new(None);

/// Whether this member has left; read when the process exits.
pub(super) static HAS_LEFT: AtomicI32 = AtomicI32::new(0);

/// What members tell each other when they join.
struct Introduction {
    node: [u64; 2],
    kernel: [u64; 2],
    pid: u32,
    descriptor: i32,
}

impl Introduction {
    /// What the kernel can say of this member.
    fn probe(&self, rank: usize) -> std::result::Result<ProcessProbe, JoinError> {
        let Some(pid) = Pid::from_raw(self.pid as i32) else { return Ok(ProcessProbe::Ended) };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(ProcessProbe::Process(pidfd)),
            Err(rustix::io::Errno::SRCH) => Ok(ProcessProbe::Ended),
            Err(error) => Err(JoinError::Mpi {
                reason: format!(
                    "cannot watch the process of rank {rank}: {error}; is `ulimit -n` above the number of ranks?"
                ),
            }),
        }
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
        let spares = number(SPARES_VARIABLE).unwrap_or(0) as usize;
        if members > SHM_MEMBERS_MAX || spares >= members {
            return Err(JoinError::Invalid {
                reason: format!(
                    "a job of {members} ranks, {spares} of them spares; 1 to {SHM_MEMBERS_MAX} are supported, and one must not be a spare"
                ),
            });
        }
        // Which memory of a node becomes the node's is known when all have told: everyone makes one, of which nothing is
        // backed but the tables.
        let wanted = options.segment_limit.or_else(|| number(SEGMENT_LIMIT_VARIABLE));
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
        let is_local: Vec<bool> = all.iter().map(|other| other.node == node).collect();
        let first = is_local.iter().position(|&is| is).unwrap_or(rank);
        let memory = if first == rank {
            own
        } else {
            drop(own);
            JobMemory::fetch(all[first].pid, all[first].descriptor).map_err(|error| JoinError::Mpi {
                reason: format!("{error}; where ranks of one host may not see each other's memory, set OUTLAST_MPI_PATH=messages"),
            })?
        };
        let local_count = is_local.iter().filter(|&&is| is).count();
        let mut probes = Vec::with_capacity(members);
        for (rank, one) in all.iter().enumerate() {
            let is_watched = asks_kernel && one.kernel == kernel && !is_local[rank];
            probes.push(if is_watched { one.probe(rank)? } else { ProcessProbe::Unavailable });
        }
        let domain = options.domain.clone().or_else(|| std::env::var("OUTLAST_DOMAIN").ok());
        let domain = domain.unwrap_or_else(host_name);
        // Without a word the members of a node share what it has.
        let own_limit = wanted.unwrap_or_else(|| limit / local_count as u64);
        let place = JoinOptions {
            domain: Some(domain.clone()),
            segment_limit: Some(own_limit),
            ..options.clone()
        };
        let node = Shm::take_place(memory, me, local_count, &place)?;
        let report = std::env::var_os(REPORT_VARIABLE);
        let report = report.and_then(|path| std::ffi::CString::new(path.into_encoded_bytes()).ok());
        // To the launcher a process is its rank in the world, whichever communicator the program has passed.
        let (world_rank, _) = mpi::Comm::world().rank_and_size().map_err(mpi_error)?;
        mpi::die_on_exit(&HAS_LEFT, world_rank, report.as_deref()).map_err(mpi_error)?;
        let myself = Peer { pid: pid as i32, kernel: kernel_identity(), domain };
        let node_of =
            all.iter().map(|one| all.iter().position(|other| other.node == one.node).unwrap_or(0));
        let node_of: Vec<usize> = node_of.collect();
        let core = (local_count < members)
            .then(|| Core::new(comm, &node, node_of, probes, myself.clone()));
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
            let has_joined = |member: MemberId| match self.remote_core(member) {
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
}

/// How many ranks, at most, count as local_count, from the variable OUTLAST_MPI_PATH: all that a node has, unless tests want
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

/// Polls for something that all members take part in: one that never joins must not hold the others for ever.
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
                    "not all ranks have joined within {limit:?}; does every rank call outlast::join(), and do all live?"
                ),
            });
        }
        std::thread::sleep(SLEEP_MIN);
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

pub(super) fn mpi_error(error: mpi::Error) -> JoinError {
    JoinError::Mpi { reason: error.to_string() }
}

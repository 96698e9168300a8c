//! The memory of a job: a launcher makes it, its members find it and claim a place in it.
//!
//! It is an unnamed file: a memfd, or a file without a name (`O_TMPFILE`) in a directory of the
//! user's choice. Members inherit it as a descriptor, or open it through /proc. Ranges are
//! allocated before they are used, so that touching them cannot fail later. The memory is gone with
//! the last process that maps it.

use super::super::{MemberId, View};
use super::layout::{
    DOMAIN_LEN_MAX, Layout, PAGE, SHM_MEMBERS_MAX, STATE_JOINED, STATE_JOINING, STATE_NEW, Tables,
};
use super::sys::{self, Mapping};
use crate::engine::JoinError;
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags};
use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Names the job and the member that this process is: `shm:FILE:LAUNCHER:MEMBER`, where FILE is the
/// inherited file descriptor of the job's memory, which the process LAUNCHER has open, too.
pub(super) const JOB_VARIABLE: &str = "OUTLAST_JOB";

/// A directory on a memory file system for the job's memory, as an unnamed file instead of a memfd:
/// for machines whose shared memory is bounded or has a file system of its own (hugetlbfs, a
/// container's tmpfs).
const DIRECTORY_VARIABLE: &str = "OUTLAST_SHM_DIR";

/// The memory of a job, as its launcher makes it. It has no name: it is gone with the last process
/// that maps it.
///
/// ```
/// use outlast::engine::shm::JobMemory;
/// let memory = JobMemory::create(4, 1, Some(1 << 20))?;
/// assert_eq!(memory.view().active_living().count(), 4);
/// # Ok::<(), outlast::JoinError>(())
/// ```
pub struct JobMemory {
    pub(super) file: Arc<OwnedFd>,
    pub(super) tables: Tables,
    /// The process that mapped it: a forked child inherits this value, but not the mapping.
    mapped_by: u32,
}

impl JobMemory {
    /// Makes the memory of a job of `regulars` members and `spares` spares. `segment_limit` bounds
    /// the segment of each member in bytes; by default it is half the available memory, divided by
    /// the number of members.
    pub fn create(
        regulars: usize,
        spares: usize,
        segment_limit: Option<u64>,
    ) -> Result<JobMemory, JoinError> {
        let members = regulars.saturating_add(spares);
        if regulars == 0 || members > SHM_MEMBERS_MAX {
            return Err(JoinError::Invalid {
                reason: format!(
                    "a job of {regulars} members and {spares} spares cannot be: on one machine 1 \
                     to {SHM_MEMBERS_MAX}, spares included"
                ),
            });
        }
        let segment_limit = match segment_limit {
            Some(limit) => limit,
            None => (available_memory() / 2 / members as u64).max(PAGE as u64),
        };
        let layout = usize::try_from(segment_limit)
            .ok()
            .and_then(|limit| Layout::new(regulars, spares, limit))
            .ok_or_else(|| JoinError::Invalid {
                reason: format!(
                    "{members} segments of up to {segment_limit} bytes do not fit into an address \
                     space; set a lower limit"
                ),
            })?;
        check_limits(layout.total_len as u64)?;
        let file = new_file()?;
        rustix::fs::ftruncate(&file, layout.total_len as u64)
            .map_err(no_room(layout.total_len as u64))?;
        allocate(file.as_fd(), 0, layout.tables_len())?;
        let mapping = map(file.as_fd(), layout.total_len)?;
        let tables = Tables::initialize(mapping, layout, sys::monotonic_ns());
        Ok(JobMemory { file: Arc::new(file), tables, mapped_by: std::process::id() })
    }

    /// The memory of the job that this process was started in, and the member that it is; `None` if
    /// it was started outside of a job.
    pub(super) fn find() -> Result<Option<(JobMemory, MemberId)>, JoinError> {
        let Ok(variable) = std::env::var(JOB_VARIABLE) else { return Ok(None) };
        let refuse = |reason: String| JoinError::NotAMember { reason };
        let mut parts = variable.split(':');
        let (Some("shm"), Some(Ok(file)), Some(Ok(launcher)), Some(Ok(member)), None) = (
            parts.next(),
            parts.next().map(str::parse::<i32>),
            parts.next().map(str::parse::<u32>),
            parts.next().map(str::parse::<u32>),
            parts.next(),
        ) else {
            return Err(refuse(format!(
                "`{variable}` is not of the form shm:FILE:LAUNCHER:MEMBER"
            )));
        };
        let file = open_inherited(file, launcher).map_err(refuse)?;
        let memory = JobMemory::open(file)?;
        let members = memory.tables.layout.members();
        if member as usize >= members {
            return Err(refuse(format!("there is no member {member} in a job of {members}")));
        }
        Ok(Some((memory, MemberId(member))))
    }

    /// Maps the memory of a job that another process has made.
    fn open(file: OwnedFd) -> Result<JobMemory, JoinError> {
        let refuse = |reason: String| JoinError::NotAMember { reason };
        let file_len = rustix::fs::fstat(&file).map_or(0, |status| status.st_size as u64);
        if file_len < PAGE as u64 {
            return Err(refuse("the file that it names is too short".into()));
        }
        let mut first = map(file.as_fd(), PAGE)?;
        let read = Tables::read_layout(&first, file_len);
        first.unmap();
        let (layout, start_ns) = read.map_err(refuse)?;
        let mapping = map(file.as_fd(), layout.total_len)?;
        let tables = Tables { mapping, layout, start_ns };
        Ok(JobMemory { file: Arc::new(file), tables, mapped_by: std::process::id() })
    }

    /// The number of the descriptor under which other processes find the memory in this process:
    /// see [`JobMemory::fetch`].
    #[cfg(feature = "mpi")]
    pub(in crate::engine) fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// The memory that the process `maker`, of this process's user, has under this descriptor.
    #[cfg(feature = "mpi")]
    pub(in crate::engine) fn fetch(maker: u32, descriptor: i32) -> Result<JobMemory, JoinError> {
        let path = format!("/proc/{maker}/fd/{descriptor}");
        let file = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        JobMemory::open(file.map_err(|error| JoinError::NotAMember {
            reason: format!(
                "the memory of this node cannot be opened as {path} ({error}); has its process \
                 died, or is it another user's?"
            ),
        })?)
    }

    /// Prepares a command so that the process it starts can join as `member`. With
    /// `die_with_launcher` the process is killed when the thread that started it ends.
    pub fn prepare(
        &self,
        command: &mut std::process::Command,
        member: MemberId,
        die_with_launcher: bool,
    ) {
        let name = format!("shm:{}:{}:{}", self.file.as_raw_fd(), std::process::id(), member.0);
        command.env(JOB_VARIABLE, name);
        sys::inherit(command, self.file.clone(), die_with_launcher);
    }

    /// For the launcher that has waited for the process that it started for `member`: that process
    /// has ended. A member that did not leave is thereby dead, even if it had not joined yet. If
    /// the started process was only a wrapper around the member, and the member lives on, nothing
    /// happens.
    pub fn process_ended(&self, member: MemberId) {
        match self.tables.state(member).load(Ordering::SeqCst) {
            STATE_NEW => self.tables.declare_dead(member, false),
            _ => drop(self.tables.detect_death(member)),
        }
    }

    /// Whether `member` has joined the job, now or in the past.
    pub fn has_joined(&self, member: MemberId) -> bool {
        self.tables.has_joined(member)
    }

    /// The view that the members of the job share.
    pub fn view(&self) -> View {
        self.tables.view()
    }

    /// Claims the slot of `member` for this process.
    pub(super) fn claim(&self, member: MemberId, domain: &str) -> Result<(), JoinError> {
        let tables = &self.tables;
        if domain.len() > DOMAIN_LEN_MAX {
            return Err(JoinError::Invalid {
                reason: format!(
                    "the failure domain `{domain}` is longer than {DOMAIN_LEN_MAX} bytes"
                ),
            });
        }
        let pid = std::process::id();
        if let Err(other) =
            tables.pid(member).compare_exchange(0, pid, Ordering::SeqCst, Ordering::SeqCst)
        {
            return Err(JoinError::AlreadyJoined { member, pid: other });
        }
        tables.state(member).store(STATE_JOINING, Ordering::SeqCst);
        tables.set_domain(member, domain);
        if tables.view().dead.contains(member) {
            return Err(JoinError::NotAMember {
                reason: format!(
                    "{member} was declared dead before it joined, since its process had ended"
                ),
            });
        }
        Ok(())
    }

    /// Enters into the log that this process, which is `member`, has left.
    pub(super) fn depart(&self, member: MemberId) {
        // Other threads of this process may be in the middle of a put. Their remaining writes must
        // not reach another member. Where the kernel has no room for a private copy (strict
        // accounting), the member leaves all the same.
        let _ = self.tables.mapping.make_private(&self.file, self.tables.layout.all_segments());
        self.tables.declare_dead(member, true);
    }

    /// Records that the kernel watches this member.
    pub(super) fn joined(&self, member: MemberId) {
        self.tables.state(member).store(STATE_JOINED, Ordering::SeqCst);
        self.tables.ring_all();
    }
}

impl Drop for JobMemory {
    fn drop(&mut self) {
        // In a forked child, other memory may be mapped there by now.
        if std::process::id() == self.mapped_by {
            self.tables.mapping.unmap();
        }
    }
}

fn map(file: BorrowedFd<'_>, len: usize) -> Result<Mapping, JoinError> {
    Mapping::new(file, len).map_err(|error| JoinError::NoRoom {
        reason: format!(
            "mapping {len} bytes of address space failed ({error}); raise the limit (ulimit -v) or \
             lower the segment limit"
        ),
    })
}

fn new_file() -> Result<OwnedFd, JoinError> {
    match std::env::var_os(DIRECTORY_VARIABLE) {
        Some(directory) if !directory.is_empty() => {
            let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
            rustix::fs::open(&directory, flags, Mode::RUSR | Mode::WUSR).map_err(|error| {
                JoinError::NoRoom {
                    reason: format!(
                        "no unnamed file can be made in {DIRECTORY_VARIABLE}={}: {error}",
                        directory.display()
                    ),
                }
            })
        }
        _ => {
            let file = rustix::fs::memfd_create("outlast", MemfdFlags::CLOEXEC)
                .map_err(|error| JoinError::System { what: "memfd_create", error: error.into() })?;
            // The kernel makes it accessible to all users, through /proc.
            rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)
                .map_err(|error| JoinError::System { what: "fchmod", error: error.into() })?;
            Ok(file)
        }
    }
}

/// Takes over the inherited descriptor, or, where a wrapper has closed it, opens it through the
/// launcher.
fn open_inherited(file: i32, launcher: u32) -> Result<OwnedFd, String> {
    if file <= 2 {
        return Err(format!("{file} cannot be the descriptor of the job's memory"));
    }
    let path = format!("/proc/self/fd/{file}");
    // An open descriptor of another file is not taken: the link and the header tell.
    let is_ours = std::fs::read_link(&path).is_ok_and(|target| {
        let target = target.to_string_lossy();
        target.starts_with("/memfd:outlast") || target.ends_with("(deleted)")
    });
    if is_ours {
        // SAFETY: the descriptor is open, was passed on for this purpose, and only a single member
        // claims it. A second join in this process is refused before it closes any descriptor,
        // since the slot is taken.
        let inherited = unsafe { BorrowedFd::borrow_raw(file) };
        // A duplicate, so that a failed join leaves the inherited descriptor as it was; children do
        // not inherit the duplicate.
        let own =
            rustix::io::fcntl_dupfd_cloexec(inherited, 3).map_err(|error| error.to_string())?;
        let _ = rustix::io::fcntl_setfd(inherited, rustix::io::FdFlags::CLOEXEC);
        return Ok(own);
    }
    let path = format!("/proc/{launcher}/fd/{file}");
    rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|error| {
        format!(
            "the descriptor {file} of the job's memory was not inherited, and it cannot be opened \
             as {path} ({error}); is the launcher gone?"
        )
    })
}

/// Backs a range of the file by memory, so that touching it can never fail.
pub(super) fn allocate(file: BorrowedFd<'_>, offset: usize, len: usize) -> Result<(), JoinError> {
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), offset as u64, len as u64) {
            Ok(()) => return Ok(()),
            // A signal interrupts large allocations; pages that were allocated stay so.
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(no_room(len as u64)(error)),
        }
    }
}

/// Gives a range of the file back to the system; it reads as zeros from then on.
pub(super) fn deallocate(
    file: BorrowedFd<'_>,
    offset: usize,
    len: usize,
) -> rustix::io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    loop {
        match rustix::fs::fallocate(file, flags, offset as u64, len as u64) {
            Err(rustix::io::Errno::INTR) => continue,
            other => return other,
        }
    }
}

fn no_room(len: u64) -> impl Fn(rustix::io::Errno) -> JoinError {
    move |error| JoinError::NoRoom {
        reason: format!(
            "{len} bytes of shared memory cannot be had ({error}); free memory, or lower the \
             number of members or their segment limit"
        ),
    }
}

/// Refuses a length beyond this process's limits, which would end in a deadly signal or a confusing
/// error later.
fn check_limits(total_len: u64) -> Result<(), JoinError> {
    for (resource, name) in [(Resource::Fsize, "ulimit -f"), (Resource::As, "ulimit -v")] {
        if let Some(limit) = getrlimit(resource).current
            && limit < total_len
        {
            return Err(JoinError::NoRoom {
                reason: format!(
                    "the job reserves {total_len} bytes, and this process is limited to {limit} \
                     ({name}); raise the limit or lower the segment limit"
                ),
            });
        }
    }
    Ok(())
}

/// How much memory can still be allocated: what the kernel calls available, bounded by the control
/// group's limit.
pub fn available_memory() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo
        .lines()
        .find_map(|line| {
            line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok()
        })
        .map_or(u64::MAX, |kib| kib * 1024);
    available.min(control_group_room().unwrap_or(u64::MAX))
}

/// The room that the control group of this process leaves, over all levels of the hierarchy.
fn control_group_room() -> Option<u64> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?.to_string();
    let read = |directory: &std::path::Path, file: &str| -> Option<u64> {
        std::fs::read_to_string(directory.join(file)).ok()?.trim().parse().ok()
    };
    std::path::Path::new(&path)
        .ancestors()
        .filter_map(|level| {
            let directory =
                std::path::Path::new("/sys/fs/cgroup").join(level.strip_prefix("/").ok()?);
            let max = read(&directory, "memory.max")?;
            Some(max.saturating_sub(read(&directory, "memory.current").unwrap_or(0)))
        })
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_job_is_open_to_its_user_alone() {
        let file = new_file().expect("a file");
        let mode = rustix::fs::fstat(&file).expect("its mode").st_mode;
        assert_eq!(mode & 0o7777, 0o600, "{mode:o}");
    }
}

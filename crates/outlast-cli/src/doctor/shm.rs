//! Checks of what all engines need, and of what the shm engine needs.

use super::{Check, Status, check, need, numbers, read};
use crate::quantity::human_bytes;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open};
use rustix::thread::futex::{Wait, WaitFlags, WaitvFlags, waitv};
use rustix::thread::{MembarrierCommand, membarrier_query};
use std::path::Path;
use std::sync::atomic::AtomicU32;

pub(super) fn machine() -> Vec<Check> {
    let kernel = read("/proc/sys/kernel/osrelease");
    let version = numbers(&kernel);
    let kernel = match version >= (5, 3) {
        true => check("machine", "kernel", Status::Ok, kernel, ""),
        false => check(
            "machine",
            "kernel",
            Status::Missing,
            if kernel.is_empty() { "unknown".to_string() } else { kernel },
            "Linux 5.3 or newer is needed, for pidfd_open; the simulator runs on any Linux",
        ),
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = match cores {
        0..2 => check(
            "machine",
            "cores",
            Status::Warning,
            "1",
            "members wait for each other's time slices; detection takes tens of milliseconds",
        ),
        _ => check("machine", "cores", Status::Ok, cores.to_string(), ""),
    };
    let is_readable =
        std::fs::read_dir("/proc/self/fd").is_ok() && std::fs::read_link("/proc/self/exe").is_ok();
    let proc = match is_readable {
        true => check("machine", "/proc", Status::Ok, "mounted and readable", ""),
        false => check(
            "machine",
            "/proc",
            Status::Missing,
            "not readable",
            "mount it: mount -t proc proc /proc",
        ),
    };
    vec![kernel, cores, proc]
}

pub(super) fn shm() -> Vec<Check> {
    let mut checks = vec![
        need(
            "shm",
            "pidfd_open",
            pidfd_open(getpid(), PidfdFlags::empty()).map(|_| "works".to_string()),
            "it proves deaths: use Linux 5.3 or newer, and allow it in the seccomp profile",
        ),
        futex_waitv(),
        membarrier(),
        need(
            "shm",
            "memfd, fallocate",
            has_memfd().map(|()| "work".to_string()),
            "it holds the job's memory: allow memfd_create in the seccomp profile, and free memory",
        ),
    ];
    checks.extend(memory());
    checks
}

fn futex_waitv() -> Check {
    match has_futex_waitv() {
        true => check("shm", "futex_waitv", Status::Ok, "works", ""),
        false => check(
            "shm",
            "futex_waitv",
            Status::Warning,
            "not there: members that wait look for deaths every 2 ms instead",
            "use Linux 5.16 or newer, and allow it in the seccomp profile",
        ),
    }
}

fn has_futex_waitv() -> bool {
    let word = AtomicU32::new(0);
    let mut waiter = Wait::new();
    // The word holds another value, so the call returns at once.
    waiter.val = 1;
    waiter.uaddr = word.as_ptr().cast::<std::ffi::c_void>().into();
    waiter.flags = WaitFlags::SIZE_U32;
    let result = waitv(&[waiter], WaitvFlags::empty(), None, rustix::time::ClockId::Monotonic);
    matches!(result, Ok(_) | Err(rustix::io::Errno::AGAIN))
}

fn membarrier() -> Check {
    let is_there = membarrier_query().contains_command(MembarrierCommand::GlobalExpedited);
    match is_there {
        true => check("shm", "membarrier", Status::Ok, "global expedited", ""),
        false => check(
            "shm",
            "membarrier",
            Status::Warning,
            "no global expedited barrier: a death is proven by the end of the whole process",
            "use Linux 4.16 or newer, and allow membarrier in the seccomp profile",
        ),
    }
}

fn has_memfd() -> Result<(), rustix::io::Errno> {
    const PROBE_LEN: u64 = 1 << 20;
    let file = memfd_create("outlast-doctor", MemfdFlags::CLOEXEC)?;
    // A file beyond the limit raises SIGXFSZ instead of returning an error.
    let len = PROBE_LEN.min(getrlimit(Resource::Fsize).current.unwrap_or(PROBE_LEN));
    if len == 0 {
        return Err(rustix::io::Errno::FBIG);
    }
    ftruncate(&file, len)?;
    fallocate(&file, FallocateFlags::empty(), 0, len)
}

fn memory() -> Vec<Check> {
    let available = meminfo("MemAvailable:");
    let group = control_group_limit();
    let usable = available.unwrap_or(u64::MAX).min(group.unwrap_or(u64::MAX));
    let segment = usable / 2 / 4;
    let mut checks = vec![match available {
        Some(_) if segment >= 64 << 20 => check(
            "shm",
            "memory",
            Status::Ok,
            format!(
                "{} available; 4 members get segments of {}",
                human_bytes(usable),
                human_bytes(segment)
            ),
            "",
        ),
        Some(_) => check(
            "shm",
            "memory",
            Status::Warning,
            format!(
                "only {} available; 4 members get segments of {}",
                human_bytes(usable),
                human_bytes(segment)
            ),
            "free memory, start fewer members, or expect OutOfMemory from large stores",
        ),
        None => check("shm", "memory", Status::Warning, "unknown", "is /proc/meminfo readable?"),
    }];
    checks.push(match group {
        Some(bytes) => check(
            "shm",
            "control group",
            Status::Ok,
            format!("memory limit {}", human_bytes(bytes)),
            "",
        ),
        None => check("shm", "control group", Status::Ok, "no memory limit", ""),
    });
    // A job reserves half of the usable memory, as address space in each process and as the size of
    // a single file.
    let reserved = usable / 2;
    for (resource, name, flag) in
        [(Resource::As, "address space", "ulimit -v"), (Resource::Fsize, "file size", "ulimit -f")]
    {
        checks.push(match getrlimit(resource).current {
            None => check("shm", name, Status::Ok, "unlimited", ""),
            Some(limit) if limit >= reserved => {
                check("shm", name, Status::Ok, human_bytes(limit), "")
            }
            Some(limit) => check(
                "shm",
                name,
                Status::Missing,
                format!("limited to {}", human_bytes(limit)),
                format!("raise it with {flag} unlimited, or start jobs with a lower --memory"),
            ),
        });
    }
    checks.push(match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < 256 => check(
            "shm",
            "open files",
            Status::Warning,
            limit.to_string(),
            "the launcher holds up to three files for each member: raise it with ulimit -n 4096",
        ),
        limit => check(
            "shm",
            "open files",
            Status::Ok,
            limit.map_or("unlimited".into(), |l| l.to_string()),
            "",
        ),
    });
    checks.push(match read("/proc/sys/vm/overcommit_memory").as_str() {
        "2" => check(
            "shm",
            "overcommit",
            Status::Warning,
            "strict accounting (2)",
            "segments grow only up to the commit limit; sysctl vm.overcommit_memory=0 lifts it",
        ),
        mode => check("shm", "overcommit", Status::Ok, format!("mode {mode}"), ""),
    });
    checks
}

fn meminfo(field: &str) -> Option<u64> {
    let text = read("/proc/meminfo");
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// The lowest memory limit of the control groups that this process is in.
fn control_group_limit() -> Option<u64> {
    let own = read("/proc/self/cgroup");
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?.to_string();
    let levels = Path::new(&path).ancestors().filter_map(|level| {
        let directory = Path::new("/sys/fs/cgroup").join(level.strip_prefix("/").ok()?);
        read(directory.join("memory.max")).parse().ok()
    });
    levels.min()
}

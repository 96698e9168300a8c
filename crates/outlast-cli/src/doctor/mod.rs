//! `outlast doctor`: whether this machine can run each engine, and what to do if not.

use crate::quantity::human_bytes;
use crate::report::{say, write_json};
use clap::Args;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open};
use rustix::thread::futex::{Wait, WaitFlags, WaitvFlags, waitv};
use rustix::thread::{MembarrierCommand, membarrier_query};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  A table for people:
      outlast doctor
  The same for programs; standard output gets nothing else:
      outlast doctor --json -

Exit status: 0 the default engine (shm) works here, 1 it does not, 2 wrong usage.";

/// How long a program that doctor asks for its version may take.
const PROGRAM_LIMIT: Duration = Duration::from_secs(20);

/// Check whether this machine can run each engine, and say what to do if not.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {
    /// Write the findings as JSON to this file; - is standard output
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Warning,
    Missing,
}

#[derive(Clone, Debug, Serialize)]
struct Check {
    /// Which engine it is for; `machine` for all.
    engine: &'static str,
    name: &'static str,
    status: Status,
    found: String,
    /// What to do about it; empty if nothing is to be done.
    advice: String,
}

#[derive(Clone, Debug, Serialize)]
struct Verdict {
    engine: &'static str,
    status: Status,
    because: String,
    /// The line to type, with PROGRAM for the user's program.
    launch: String,
}

#[derive(Serialize)]
struct Report {
    ok: bool,
    version: &'static str,
    checks: Vec<Check>,
    engines: Vec<Verdict>,
}

impl Doctor {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let mpi = OpenMpi::find();
        let mut checks = machine();
        checks.extend(shm());
        checks.extend(mpi.checks());
        let engines = verdicts(&checks, &mpi);
        let is_ok = engines
            .iter()
            .any(|verdict| verdict.engine == "shm" && verdict.status != Status::Missing);
        print_table(self.json.as_deref(), &checks, &engines);
        if let Some(path) = &self.json {
            write_json(
                path,
                &Report { ok: is_ok, version: env!("CARGO_PKG_VERSION"), checks, engines },
            )?;
        }
        Ok(is_ok)
    }
}

fn print_table(json: Option<&Path>, checks: &[Check], engines: &[Verdict]) {
    let label = |status| match status {
        Status::Ok => "ok",
        Status::Warning => "warning",
        Status::Missing => "missing",
    };
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut section = "";
    for check in checks {
        if check.engine != section {
            section = check.engine;
            say(json, format_args!("{section}"));
        }
        say(
            json,
            format_args!("  {:<7}  {:<width$}  {}", label(check.status), check.name, check.found),
        );
        if !check.advice.is_empty() {
            say(json, format_args!("  {:<7}  {:<width$}  -> {}", "", "", check.advice));
        }
    }
    say(json, "engines");
    for verdict in engines {
        say(
            json,
            format_args!(
                "  {:<7}  {:<width$}  {}",
                label(verdict.status),
                verdict.engine,
                verdict.because
            ),
        );
        say(json, format_args!("  {:<7}  {:<width$}  $ {}", "", "", verdict.launch));
    }
}

fn check(
    engine: &'static str,
    name: &'static str,
    status: Status,
    found: impl Into<String>,
    advice: impl Into<String>,
) -> Check {
    Check { engine, name, status, found: found.into(), advice: advice.into() }
}

/// `ok` with what was found, or `missing` with what to do.
fn need(
    engine: &'static str,
    name: &'static str,
    found: Result<String, rustix::io::Errno>,
    advice: &str,
) -> Check {
    match found {
        Ok(found) => check(engine, name, Status::Ok, found, ""),
        Err(error) => check(engine, name, Status::Missing, error.to_string(), advice),
    }
}

// ---- What all engines share.

fn machine() -> Vec<Check> {
    let kernel = read("/proc/sys/kernel/osrelease");
    let version = numbers(&kernel);
    let kernel = match version >= (5, 16) {
        true => check("machine", "kernel", Status::Ok, kernel, ""),
        false => check(
            "machine",
            "kernel",
            Status::Missing,
            if kernel.is_empty() { "unknown".to_string() } else { kernel },
            "Linux 5.16 or newer is needed; the simulator runs on any Linux",
        ),
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = match cores {
        0..2 => check(
            "machine",
            "cores",
            Status::Warning,
            "1",
            "everything works, but members wait for each other's time slices; detection takes tens of milliseconds",
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

// ---- The shm engine.

fn shm() -> Vec<Check> {
    let mut checks = vec![
        need(
            "shm",
            "pidfd_open",
            pidfd_open(getpid(), PidfdFlags::empty()).map(|_| "works".to_string()),
            "deaths are proven by it: use Linux 5.3 or newer, and allow it in the container's seccomp profile",
        ),
        need(
            "shm",
            "futex_waitv",
            has_futex_waitv(),
            "waiting needs it: use Linux 5.16 or newer, and allow it in the container's seccomp profile",
        ),
        membarrier(),
        need(
            "shm",
            "memfd, fallocate",
            has_memfd().map(|()| "work".to_string()),
            "the job's memory is made of it: allow memfd_create in the container's seccomp profile, and free memory",
        ),
    ];
    checks.extend(memory());
    checks
}

fn has_futex_waitv() -> Result<String, rustix::io::Errno> {
    let word = AtomicU32::new(0);
    let mut waiter = Wait::new();
    // Another value than the word holds, so that the call returns at once.
    waiter.val = 1;
    waiter.uaddr = word.as_ptr().cast::<std::ffi::c_void>().into();
    waiter.flags = WaitFlags::SIZE_U32;
    match waitv(&[waiter], WaitvFlags::empty(), None, rustix::time::ClockId::Monotonic) {
        Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok("works".to_string()),
        Err(error) => Err(error),
    }
}

fn membarrier() -> Check {
    let is_there = membarrier_query().contains_command(MembarrierCommand::GlobalExpedited);
    match is_there {
        true => check("shm", "membarrier", Status::Ok, "global expedited", ""),
        false => check(
            "shm",
            "membarrier",
            Status::Warning,
            "no global expedited barrier",
            "use Linux 4.16 or newer, and allow membarrier in the container's seccomp profile",
        ),
    }
}

fn has_memfd() -> Result<(), rustix::io::Errno> {
    const PROBE_LEN: u64 = 1 << 20;
    let file = memfd_create("outlast-doctor", MemfdFlags::CLOEXEC)?;
    // A file beyond the limit would be SIGXFSZ, not an error.
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
    // A job reserves half of what is usable as address space in each process, and as the size of one file.
    let reserved = usable / 2;
    for (resource, name, flag) in
        [(Resource::As, "address space", "ulimit -v"), (Resource::Fsize, "file size", "ulimit -f")]
    {
        checks.push(match getrlimit(resource).current {
            None => check("shm", name, Status::Ok, "unlimited", ""),
            Some(limit) if limit >= reserved => check("shm", name, Status::Ok, human_bytes(limit), ""),
            Some(limit) => check(
                "shm",
                name,
                Status::Missing,
                format!("limited to {}", human_bytes(limit)),
                format!(
                    "raise it with {flag} unlimited, or start jobs with --memory BYTES so that all segments together fit"
                ),
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
            "segments grow only as far as the commit limit; sysctl vm.overcommit_memory=0 lifts that",
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

// ---- The mpi engine.

/// Open MPI as it was found here.
struct OpenMpi {
    mpirun: Option<PathBuf>,
    mpicc: Option<PathBuf>,
    /// What `ompi_info` says; `None` if it is not there or did not answer.
    info: Option<String>,
}

impl OpenMpi {
    fn find() -> OpenMpi {
        let directories = mpi_directories();
        let program =
            |name: &str| directories.iter().map(|dir| dir.join(name)).find(|path| path.is_file());
        let info = program("ompi_info").and_then(|path| output_of(Command::new(path).arg("--all")));
        OpenMpi { mpirun: program("mpirun"), mpicc: program("mpicc"), info }
    }

    fn field(&self, name: &str) -> Option<String> {
        let lines = self.info.as_deref()?.lines();
        lines
            .filter_map(|line| line.trim().split_once(':'))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.trim().to_string())
    }

    fn checks(&self) -> Vec<Check> {
        let install = "install it into this workspace with `cargo xtask mpi`, or put Open MPI 5 with ULFM on PATH";
        let mut checks: Vec<Check> = [("mpirun", &self.mpirun), ("mpicc", &self.mpicc)]
            .into_iter()
            .map(|(name, found)| match found {
                Some(path) => check("mpi", name, Status::Ok, path.display().to_string(), ""),
                None => check("mpi", name, Status::Missing, "not found", install),
            })
            .collect();
        checks.push(match self.field("Open MPI") {
            Some(version) if numbers(&version) >= (5, 0) => {
                check("mpi", "Open MPI", Status::Ok, version, "")
            }
            Some(version) => {
                check("mpi", "Open MPI", Status::Missing, version, "version 5 or newer is needed")
            }
            None => check(
                "mpi",
                "Open MPI",
                Status::Missing,
                "ompi_info not found or not answering",
                install,
            ),
        });
        checks.push(match self.field("FT MPI support") {
            Some(support) if support.starts_with("yes") => {
                check("mpi", "ULFM", Status::Ok, support, "")
            }
            Some(support) => check(
                "mpi",
                "ULFM",
                Status::Missing,
                format!("FT MPI support: {support}"),
                "Open MPI was built without fault tolerance; build it with --with-ft=ulfm",
            ),
            None => check("mpi", "ULFM", Status::Missing, "unknown", "see Open MPI"),
        });
        checks.push(namespaces());
        checks
    }
}

/// Where Open MPI may be: in this workspace, or on `PATH`.
fn mpi_directories() -> Vec<PathBuf> {
    let mut directories: Vec<PathBuf> = Vec::new();
    let current = std::env::current_dir().unwrap_or_default();
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let targets = target.into_iter().chain(current.ancestors().map(|level| level.join("target")));
    directories.extend(targets.map(|target| target.join("mpi/bin")));
    directories.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    directories
}

/// Whether several hosts can be played on this machine, for tests.
fn namespaces() -> Check {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    const CAP_NET_ADMIN: u64 = 1 << 12;
    let status = read("/proc/self/status");
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    let may = effective & CAP_SYS_ADMIN != 0 && effective & CAP_NET_ADMIN != 0;
    let has_ip = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
        .any(|directory| directory.join("ip").is_file());
    match (may, has_ip) {
        (true, true) => check(
            "mpi",
            "network namespaces",
            Status::Ok,
            "allowed, for tests with several hosts",
            "",
        ),
        (true, false) => check(
            "mpi",
            "network namespaces",
            Status::Warning,
            "allowed, but the command ip is missing",
            "only tests with several hosts on one machine need it: install iproute2",
        ),
        (false, _) => check(
            "mpi",
            "network namespaces",
            Status::Warning,
            "not allowed for this user",
            "only tests with several hosts on one machine need them: run those as root",
        ),
    }
}

// ---- Verdicts.

fn verdicts(checks: &[Check], mpi: &OpenMpi) -> Vec<Verdict> {
    let worst = |engine: &str| {
        let relevant =
            checks.iter().filter(|check| check.engine == engine || check.engine == "machine");
        // A warning is a matter of comfort; the verdict is whether the engine runs.
        let missing: Vec<&str> = relevant
            .filter(|check| check.status == Status::Missing)
            .map(|check| check.name)
            .collect();
        match missing.is_empty() {
            true => (Status::Ok, None),
            false => (Status::Missing, Some(format!("missing: {}", missing.join(", ")))),
        }
    };
    let (shm, shm_missing) = worst("shm");
    let (mpi_status, mpi_missing) = worst("mpi");
    let mpirun =
        mpi.mpirun.as_ref().map_or("mpirun".to_string(), |path| path.display().to_string());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let oversubscribe = if cores < 4 { " --oversubscribe" } else { "" };
    // Open MPI refuses to run as root without all four.
    let as_root = match rustix::process::geteuid().is_root() {
        true => {
            "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
             PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        }
        false => "",
    };
    vec![
        Verdict {
            engine: "sim",
            status: Status::Ok,
            because: "runs everywhere: members are coroutines in one thread of a test".into(),
            launch: "cargo test -p outlast --features sim".into(),
        },
        Verdict {
            engine: "shm",
            status: shm,
            because: shm_missing.unwrap_or("the default: processes of this machine".into()),
            launch: "outlast run -n 4 PROGRAM ARGS...".into(),
        },
        Verdict {
            engine: "mpi",
            status: mpi_status,
            because: mpi_missing.unwrap_or(
                "Open MPI with ULFM is here; build the program with the feature `mpi` of outlast"
                    .into(),
            ),
            launch: format!("{as_root}{mpirun} --with-ft ulfm{oversubscribe} -n 4 PROGRAM ARGS..."),
        },
    ]
}

// ---- Small helpers.

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

/// The first two numbers of a version.
fn numbers(version: &str) -> (u32, u32) {
    let mut parts =
        version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// What a program writes to its standard output, if it ends in time.
fn output_of(command: &mut Command) -> Option<String> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut stdout = child.stdout.take()?;
    let (text, answer) = std::sync::mpsc::channel();
    std::thread::spawn(move || text.send(std::io::read_to_string(&mut stdout).unwrap_or_default()));
    // The end of its output is the end of its answer; whoever keeps the pipe open longer than that is ended.
    let answer = answer.recv_timeout(PROGRAM_LIMIT).ok();
    if answer.is_none() {
        let _ = child.kill();
    }
    let _ = child.wait();
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert_eq!(numbers("6.18.44-fc"), (6, 18));
        assert_eq!(numbers("5.0.11"), (5, 0));
        assert_eq!(numbers("nothing"), (0, 0));
        assert!(numbers("5.4.0") < (5, 16));
    }

    #[test]
    fn a_missing_part_makes_its_engine_missing_and_a_warning_does_not() {
        let none = OpenMpi { mpirun: None, mpicc: None, info: None };
        let part = |engine, status| check(engine, "part", status, "", "");
        let status = |checks: &[Check], engine| {
            verdicts(checks, &none)
                .into_iter()
                .find(|v| v.engine == engine)
                .expect("a verdict")
                .status
        };
        let checks = [part("shm", Status::Warning), part("mpi", Status::Missing)];
        assert_eq!(status(&checks, "shm"), Status::Ok);
        assert_eq!(status(&checks, "mpi"), Status::Missing);
        assert_eq!(status(&[part("machine", Status::Missing)], "sim"), Status::Ok);
        assert_eq!(status(&[part("machine", Status::Missing)], "shm"), Status::Missing);
    }

    #[test]
    fn open_mpi_without_ulfm_is_said_to_be_without_it() {
        let info = "  Open MPI: 4.1.4\n  FT MPI support: no\n".to_string();
        let old = OpenMpi { mpirun: Some("/usr/bin/mpirun".into()), mpicc: None, info: Some(info) };
        let checks = old.checks();
        let status = |name| checks.iter().find(|check| check.name == name).expect("a check").status;
        assert_eq!(status("mpirun"), Status::Ok);
        assert_eq!(status("Open MPI"), Status::Missing);
        assert_eq!(status("ULFM"), Status::Missing);
    }
}

//! The launcher: it starts the members of a job on this machine, from a program, a test or an
//! example.
//!
//! [`Launch`] says what to start, [`Running`] is the job while it runs, and [`Outcome`] is how the
//! job ended. The command `outlast run` is a thin layer over them.
//!
//! ```no_run
//! use outlast::{MemberId, launch::Launch};
//! use std::time::Duration;
//!
//! let mut job = Launch::new(4).program("./simulation").args(["--steps", "100"]).start()?;
//! job.kill(MemberId(2))?;
//! let outcome = job.wait(Duration::from_secs(60));
//! assert!(outcome.survivors_ok(), "{outcome}");
//! # Ok::<(), outlast::launch::LaunchError>(())
//! ```
//!
//! A program can also start itself, which suits examples: see [`this_program`].
//!
//! # What depends on the launcher
//! The launcher makes the job's memory, starts the processes, and tells the job when a process has
//! ended. Nothing of a running job depends on it: the members detect deaths among themselves. When
//! the launcher dies they go on, unless [`Launch::die_with_launcher`] was called. When a member
//! dies, the launcher records it ([`MemberEnd`]) and goes on. `docs/decisions/0001` has the
//! reasons.
//!
//! # With mpirun
//! With [`Launch::mpirun`] the members are ranks of Open MPI, which mpirun starts. [`Running`] and
//! [`Outcome`] are used as without it.
//!
//! # Threads
//! A *keeper* thread starts the processes and waits for their ends; an *output* thread reads their
//! pipes. Both share the state of the job with the callers (`running.rs`).

mod backtrace;
mod mpirun;
mod outcome;
mod output;
mod running;

use crate::engine::JoinError;
use crate::engine::shm::{JobMemory, PIDFD_NEEDED};
use crate::engine::{MEMBERS_MAX, MemberId};
use output::{Stream, Streams};
use running::{Process, Shared, State};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use backtrace::backtraces;
pub use mpirun::{Folder, Mpirun, follow, prepare, rank};
pub use outcome::{MemberEnd, Outcome, signal_name};
pub use output::{CAPTURE_LEN_MAX, Captured, Output};
pub use running::{Control, Event, Running};
pub use rustix::process::Signal;

/// A builder that says what to start. No process is started before [`Launch::start`].
#[derive(Clone, Debug)]
#[must_use = "nothing is started before `start`"]
pub struct Launch {
    members: usize,
    spares: usize,
    program: Option<PathBuf>,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
    segment_limit: Option<u64>,
    die_with_launcher: bool,
    output: Output,
    stdin_to_first: bool,
    mpirun: Option<Mpirun>,
}

/// Why a job could not be started. No process of it is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The number of members is out of its range.
    #[error(
        "a job of {members} members and {spares} spares cannot be started; it needs at least 1 \
         member, and at most {MEMBERS_MAX} with the spares"
    )]
    Members {
        /// The number of members that was asked for.
        members: usize,
        /// The number of spares that was asked for.
        spares: usize,
    },
    /// [`Launch::program`] was not called.
    #[error("no program was named; call Launch::program")]
    NoProgram,
    /// The job's memory could not be made.
    #[error(transparent)]
    Memory(#[from] JoinError),
    /// The program could not be started.
    #[error("cannot start `{program}` as {member}: {error}{hint}", program = program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// The member that could not be started. The members before it were ended again.
        member: MemberId,
        /// The system's error.
        #[source]
        error: std::io::Error,
        /// Advice for the user; empty for an unknown cause.
        hint: &'static str,
    },
    /// mpirun did not start the ranks.
    #[error("mpirun did not start the job: {reason}")]
    Mpirun {
        /// The reason, with the output of mpirun.
        reason: String,
    },
    /// The job has no member with this number.
    #[error("there is no {member} in a job of {members} members")]
    UnknownMember {
        /// The member.
        member: MemberId,
        /// The number of members, spares included.
        members: usize,
    },
    /// The operating system refused an operation.
    #[error("{what} failed: {error}")]
    System {
        /// The operation.
        what: &'static str,
        /// The system's error.
        #[source]
        error: std::io::Error,
    },
}

impl Launch {
    /// A job of this many members. Spares are not counted among them.
    pub fn new(members: usize) -> Launch {
        Launch {
            members,
            spares: 0,
            program: None,
            arguments: Vec::new(),
            environment: Vec::new(),
            directory: None,
            segment_limit: None,
            die_with_launcher: false,
            output: Output::Inherit,
            stdin_to_first: false,
            mpirun: None,
        }
    }

    /// The number of spares, 0 by default: further members that hold no data until a death
    /// activates them.
    pub fn spares(mut self, spares: usize) -> Launch {
        self.spares = spares;
        self
    }

    /// The program of every member: a path, or a name that is looked up in `PATH`.
    pub fn program(mut self, program: impl AsRef<Path>) -> Launch {
        self.program = Some(program.as_ref().to_path_buf());
        self
    }

    /// Further arguments for every member.
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Launch {
        self.arguments
            .extend(arguments.into_iter().map(|argument| argument.as_ref().to_os_string()));
        self
    }

    /// Adds a variable to the environment of every member, which is otherwise the launcher's.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Launch {
        self.environment.push((name.as_ref().to_os_string(), value.as_ref().to_os_string()));
        self
    }

    /// The directory in which the members start; the launcher's own by default.
    pub fn current_dir(mut self, directory: impl AsRef<Path>) -> Launch {
        self.directory = Some(directory.as_ref().to_path_buf());
        self
    }

    /// The most bytes of each member's segment; by default half of the available memory, divided by
    /// the number of members.
    pub fn segment_limit(mut self, bytes: u64) -> Launch {
        self.segment_limit = Some(bytes);
        self
    }

    /// Whether the kernel kills the members when the launcher dies, however it dies. By default
    /// they go on.
    pub fn die_with_launcher(mut self, die: bool) -> Launch {
        self.die_with_launcher = die;
        self
    }

    /// Where the members' output goes; to the launcher's own by default.
    pub fn output(mut self, output: Output) -> Launch {
        self.output = output;
        self
    }

    /// Whether member 0 reads the launcher's standard input. The standard input of the other
    /// members, and by default of member 0, is empty.
    pub fn stdin_to_first(mut self, inherit: bool) -> Launch {
        self.stdin_to_first = inherit;
        self
    }

    /// Lets mpirun start the members as ranks of Open MPI, on the hosts that its options name. The
    /// members join with the mpi engine. The launcher watches and signals the ranks by their
    /// process numbers, so all hosts must share the process numbers of this machine, as its network
    /// namespaces do. [`Launch::stdin_to_first`] has no effect.
    pub fn mpirun(mut self, mpirun: Mpirun) -> Launch {
        self.mpirun = Some(mpirun);
        self
    }

    /// Starts the processes. Returns when all processes run the program, which may be before they
    /// have joined.
    pub fn start(self) -> Result<Running, LaunchError> {
        if self.members == 0 || self.members.saturating_add(self.spares) > MEMBERS_MAX {
            return Err(LaunchError::Members { members: self.members, spares: self.spares });
        }
        let program = self.program.clone().ok_or(LaunchError::NoProgram)?;
        if let Some(mpirun) = self.mpirun.clone() {
            return mpirun::start(self, mpirun, program);
        }
        let memory = JobMemory::create(self.members, self.spares, self.segment_limit)?;
        // The kernel ties "die with the launcher" to the thread that started a process. So a thread
        // of its own starts all members and stays until the last member has ended, whatever happens
        // to the caller's thread.
        running::new_running(move |report| match start_all(&self, &program, &memory) {
            Ok((mut children, streams, shared)) => match streams.start(&shared) {
                Ok(()) => {
                    let _ = report.send(Ok(shared.clone()));
                    running::keep(&shared, |member| {
                        // Other code of this process may have reaped the child (SIGCHLD ignored,
                        // wait for any child): the status is lost then and must not count as
                        // success.
                        let status = children[member.index()]
                            .wait()
                            .unwrap_or(ExitStatus::from_raw(255 << 8));
                        let joined = memory.has_joined(member);
                        memory.process_ended(member);
                        (status, joined)
                    });
                }
                Err(error) => {
                    drop(Started(children));
                    let _ = report.send(Err(error));
                }
            },
            Err(error) => drop(report.send(Err(error))),
        })
    }

    /// The command of a member, without the variables of the job's memory.
    fn command(&self, program: &Path, member: MemberId) -> Command {
        let mut command = Command::new(program);
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        if !(self.stdin_to_first && member == MemberId(0)) {
            command.stdin(Stdio::null());
        }
        let stream = || match self.output {
            Output::Inherit => Stdio::inherit(),
            Output::Prefix | Output::Capture => Stdio::piped(),
            Output::Discard => Stdio::null(),
        };
        command.stdout(stream()).stderr(stream());
        command
    }
}

/// Makes a program its own launcher, which suits examples.
///
/// In a member this returns `None` at once, and the program goes on to [`crate::join`]. Otherwise
/// it starts this program `members` times with its own arguments, waits for all members, and
/// returns how they ended. The members die with this process: for its user it is a single program.
///
/// ```no_run
/// if let Some(outcome) = outlast::launch::this_program(4)? {
///     std::process::exit(if outcome.survivors_ok() { 0 } else { 1 });
/// }
/// let job = outlast::join()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn this_program(members: usize) -> Result<Option<Outcome>, LaunchError> {
    if std::env::var_os("OUTLAST_JOB").is_some() {
        return Ok(None);
    }
    let program = std::env::current_exe()
        .map_err(|error| LaunchError::System { what: "finding this program's own path", error })?;
    let mut running = Launch::new(members)
        .program(program)
        .args(std::env::args_os().skip(1))
        .die_with_launcher(true)
        .stdin_to_first(true)
        .start()?;
    Ok(Some(running.wait(Duration::MAX)))
}

/// Children that are killed and reaped when it is dropped, because starting the rest failed.
struct Started(Vec<Child>);

impl Drop for Started {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// Starts the processes of all members, with their pipes and pidfds.
fn start_all(
    launch: &Launch,
    program: &Path,
    memory: &JobMemory,
) -> Result<(Vec<Child>, Streams, Arc<Shared>), LaunchError> {
    let total = launch.members + launch.spares;
    let began = Instant::now();
    let mut started = Started(Vec::with_capacity(total));
    let mut processes = Vec::with_capacity(total);
    let mut streams = Streams { output: launch.output, streams: Vec::new() };
    for member in (0..total as u32).map(MemberId) {
        let mut command = launch.command(program, member);
        memory.prepare(&mut command, member, launch.die_with_launcher);
        let mut child = command.spawn().map_err(|error| LaunchError::Program {
            program: program.to_path_buf(),
            member,
            hint: hint(program, &error),
            error,
        })?;
        let pipes =
            [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)]
                .into_iter();
        for (pipe, is_error) in pipes.zip([false, true]) {
            streams.streams.extend(pipe.map(|pipe| Stream::new(pipe, member, is_error)));
        }
        let pid = child.id();
        started.0.push(child);
        let pidfd =
            pidfd_open(Pid::from_raw(pid as i32).expect("a pid is positive"), PidfdFlags::empty())
                .map_err(|error| LaunchError::System { what: PIDFD_NEEDED, error: error.into() })?;
        processes.push(Process { pid, pidfd });
    }
    let children = std::mem::take(&mut started.0);
    let shared = Arc::new(Shared::new(processes, began, State::new(total)));
    Ok((children, streams, shared))
}

/// Advice for the user about a program that does not start.
fn hint(program: &Path, error: &std::io::Error) -> &'static str {
    let is_name = program.components().count() == 1
        && !program.as_os_str().as_encoded_bytes().contains(&b'/');
    match error.kind() {
        std::io::ErrorKind::NotFound if is_name && program.exists() => {
            "; it is not in PATH, but in this directory: write ./ in front of it"
        }
        std::io::ErrorKind::NotFound => "; check the path, and the interpreter if it is a script",
        std::io::ErrorKind::PermissionDenied => "; is it executable?",
        _ if error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => {
            "; raise the limit of open files (ulimit -n)"
        }
        _ => "",
    }
}

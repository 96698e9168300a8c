//! Starting the members of a job on this machine, from a program, a test or an example.
//!
//! [`Launch`] says what to start, [`Running`] is the job while it runs, and [`Outcome`] is how it ended. The command
//! `outlast run` is a thin layer over them.
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
//! The launcher makes the job's memory, starts the processes, and tells the job when one of them has ended. The
//! members do not need it: they detect deaths among themselves, and when the launcher dies they go on, unless
//! [`Launch::die_with_launcher`] was asked for.
//!
//! With [`Launch::mpirun`] the members are ranks of Open MPI, and everything else stays the same.

mod backtrace;
mod mpirun;

use crate::engine::JoinError;
use crate::engine::shm::JobMemory;
use crate::engine::{MEMBERS_MAX, MemberId};
use crate::sync::lock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use backtrace::backtraces;
pub use mpirun::{Folder, Mpirun, follow, prepare, rank};
pub use rustix::process::Signal;

/// How long the launcher waits for processes that it has killed. Longer only if the kernel is stuck in them.
const REAP_LIMIT: Duration = Duration::from_secs(10);

/// How long the launcher waits for the rest of the members' output once all of them have ended. Their descendants
/// may hold the pipes open for ever.
const OUTPUT_LIMIT: Duration = Duration::from_secs(2);

/// The most bytes that are kept of one stream of one member with [`Output::Capture`].
pub const CAPTURE_LEN_MAX: usize = 16 << 20;

/// A line of output longer than this is passed on in pieces.
const LINE_LEN_MAX: usize = 64 << 10;

/// Where the standard output and the standard error of the members go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// To the launcher's own.
    #[default]
    Inherit,
    /// To the launcher's own, each line with the member's number in front: `[2] line`.
    Prefix,
    /// Into memory, at most [`CAPTURE_LEN_MAX`] bytes a stream, for [`Outcome::output`].
    Capture,
    /// Nowhere.
    Discard,
}

/// What to start: a builder. Nothing happens before [`Launch::start`].
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

/// Why a job could not be started. Nothing is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The number of members is out of its range.
    #[error(
        "a job of {members} members and {spares} spares cannot be started; it needs at least 1 member, and at most {MEMBERS_MAX} with the spares"
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
        /// What was to be started.
        program: PathBuf,
        /// As which member; the ones before it had been started and were ended again.
        member: MemberId,
        /// What the system said.
        #[source]
        error: std::io::Error,
        /// What to do about it; empty if nothing is known.
        hint: &'static str,
    },
    /// mpirun did not start the ranks.
    #[error("mpirun did not start the job: {reason}")]
    Mpirun {
        /// What went wrong, with what mpirun said.
        reason: String,
    },
    /// There is no such member in the job.
    #[error("there is no {member} in a job of {members} members")]
    UnknownMember {
        /// Who was named.
        member: MemberId,
        /// How many members there are, spares included.
        members: usize,
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

impl Launch {
    /// A job of this many members. Spares come on top of them.
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

    /// This many further members that hold nothing until a death activates them; none by default.
    pub fn spares(mut self, spares: usize) -> Launch {
        self.spares = spares;
        self
    }

    /// The program of every member: a path, or a name to be looked up in `PATH`.
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

    /// A variable in the environment of every member, besides those of the launcher.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Launch {
        self.environment.push((name.as_ref().to_os_string(), value.as_ref().to_os_string()));
        self
    }

    /// The directory in which the members start; the launcher's own by default.
    pub fn current_dir(mut self, directory: impl AsRef<Path>) -> Launch {
        self.directory = Some(directory.as_ref().to_path_buf());
        self
    }

    /// The most bytes that each member's segment may take; by default half of the available memory, divided by the
    /// members.
    pub fn segment_limit(mut self, bytes: u64) -> Launch {
        self.segment_limit = Some(bytes);
        self
    }

    /// Whether the kernel kills the members when the launcher dies, in whichever way. By default they go on.
    pub fn die_with_launcher(mut self, die: bool) -> Launch {
        self.die_with_launcher = die;
        self
    }

    /// Where the members' output goes; to the launcher's own by default.
    pub fn output(mut self, output: Output) -> Launch {
        self.output = output;
        self
    }

    /// Whether member 0 reads the launcher's standard input. All others, and by default member 0 too, read nothing.
    pub fn stdin_to_first(mut self, inherit: bool) -> Launch {
        self.stdin_to_first = inherit;
        self
    }

    /// Lets mpirun start the members as ranks of Open MPI, on the hosts that its options name. The members join over the
    /// mpi engine. All hosts must share this machine's process numbers, as network namespaces of it do: it is how
    /// the launcher watches and signals the ranks. [`Launch::stdin_to_first`] has no effect.
    pub fn mpirun(mut self, mpirun: Mpirun) -> Launch {
        self.mpirun = Some(mpirun);
        self
    }

    /// Starts the processes. It returns when all of them run their program, which may be before they have joined.
    pub fn start(self) -> Result<Running, LaunchError> {
        if self.members == 0 || self.members.saturating_add(self.spares) > MEMBERS_MAX {
            return Err(LaunchError::Members { members: self.members, spares: self.spares });
        }
        let program = self.program.clone().ok_or(LaunchError::NoProgram)?;
        if let Some(mpirun) = self.mpirun.clone() {
            return mpirun::start(self, mpirun, program);
        }
        let memory = JobMemory::create(self.members, self.spares, self.segment_limit)?;
        // The kernel ties a member's "die with the launcher" to the thread that started it. So one thread starts
        // all members and stays until the last of them has ended, whatever becomes of the caller's thread.
        new_running(move |report| match start_all(&self, &program, &memory) {
            Ok((mut children, streams, shared)) => match streams.start(&shared) {
                Ok(()) => {
                    let _ = report.send(Ok(shared.clone()));
                    keep(&shared, |member| {
                        // Somebody else in this process may have reaped the child (SIGCHLD ignored, wait for any
                        // child): its status is lost then and must not count as success.
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

/// Runs `keeper` in a thread of its own, which reports that the members have started and then stays until they have ended.
fn new_running(
    keeper: impl FnOnce(&mpsc::Sender<Result<Arc<Shared>, LaunchError>>) + Send + 'static,
) -> Result<Running, LaunchError> {
    let (report, started) = mpsc::channel();
    let keeper = std::thread::Builder::new()
        .name("outlast-launch".to_string())
        .spawn(move || keeper(&report))
        .map_err(|error| LaunchError::System { what: "starting the launcher's thread", error })?;
    let shared = match started.recv() {
        Ok(Ok(shared)) => shared,
        Ok(Err(error)) => {
            let _ = keeper.join();
            return Err(error);
        }
        Err(_) => unreachable!("the keeper reports before it ends"),
    };
    Ok(Running { control: Control { shared }, keeper: Some(keeper) })
}

/// Children that are killed and reaped when a start fails half-way.
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
                .map_err(|error| LaunchError::System {
                    what: "pidfd_open of a member",
                    error: error.into(),
                })?;
        processes.push(Process { pid, pidfd });
    }
    let children = std::mem::take(&mut started.0);
    let shared = Arc::new(Shared::new(processes, began, State::new(total)));
    Ok((children, streams, shared))
}

/// What a user can do about a program that does not start.
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

/// Waits for the members, without using the processor meanwhile, and notes each one that has ended; `end_of` tells how
/// it did, and whether it had joined.
fn keep(shared: &Shared, mut end_of: impl FnMut(MemberId) -> (ExitStatus, bool)) {
    let mut left: Vec<MemberId> = (0..shared.processes.len() as u32).map(MemberId).collect();
    while !left.is_empty() {
        let mut fds: Vec<PollFd<'_>> = left
            .iter()
            .map(|member| PollFd::new(&shared.processes[member.index()].pidfd, PollFlags::IN))
            .collect();
        if poll(&mut fds, None).is_err() {
            // Interrupted, or out of kernel memory for the moment; the next attempt must not spin.
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let is_over: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let mut is_over = is_over.into_iter();
        left.retain(|&member| {
            if !is_over.next().expect("one answer for each") {
                return true;
            }
            let (status, joined) = end_of(member);
            let (pid, after) = (shared.processes[member.index()].pid, shared.began.elapsed());
            let end = MemberEnd { member, pid, status, after, joined };
            let mut state = shared.lock();
            state.ends[member.index()] = Some(end.clone());
            state.running -= 1;
            state.events.push_back(Event::Ended(end));
            shared.changed.notify_all();
            false
        });
    }
}

/// What the keeper, the output thread and the callers share.
struct Shared {
    processes: Vec<Process>,
    began: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

struct Process {
    pid: u32,
    /// Signals go through it, so that they never hit another process that got the same pid later.
    pidfd: OwnedFd,
}

struct State {
    ends: Vec<Option<MemberEnd>>,
    running: usize,
    events: VecDeque<Event>,
    captured: Vec<Captured>,
    /// Whether the output thread has not ended yet.
    has_output: bool,
}

impl State {
    fn new(members: usize) -> State {
        State {
            ends: vec![None; members],
            running: members,
            events: VecDeque::new(),
            captured: vec![Captured::default(); members],
            has_output: false,
        }
    }
}

impl Shared {
    fn new(processes: Vec<Process>, began: Instant, state: State) -> Shared {
        Shared { processes, began, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Waits until `ready` says so; whether it did before the time was over. `None` waits without limit.
    fn wait_until<'a>(
        &'a self,
        limit: Option<Instant>,
        mut ready: impl FnMut(&mut State) -> bool,
    ) -> (MutexGuard<'a, State>, bool) {
        let mut state = self.lock();
        loop {
            if ready(&mut state) {
                return (state, true);
            }
            state = match limit.map(|limit| limit.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return (state, false),
                Some(left) => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(|e| e.into_inner()).0
                }
                None => self.changed.wait(state).unwrap_or_else(|e| e.into_inner()),
            };
        }
    }
}

/// Something that happened to a running job.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The process of a member has ended, well or not.
    Ended(MemberEnd),
}

/// How the process of one member ended. Displayed as one clear phrase.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberEnd {
    /// Which member.
    pub member: MemberId,
    /// Its process.
    pub pid: u32,
    /// How it ended.
    pub status: ExitStatus,
    /// When, counted from the start of the job.
    pub after: Duration,
    /// Whether it had joined the job.
    pub joined: bool,
}

impl MemberEnd {
    /// Whether it finished with status 0.
    pub fn is_ok(&self) -> bool {
        self.status.success()
    }

    /// Whether it died: a signal ended it.
    pub fn is_death(&self) -> bool {
        self.status.signal().is_some()
    }
}

impl fmt::Display for MemberEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {}) ", self.member, self.pid)?;
        match (self.status.signal(), self.status.code()) {
            (Some(signal), _) => write!(f, "was killed by {}", signal_name(signal))?,
            (None, Some(0)) => write!(f, "finished")?,
            (None, code) => write!(f, "exited with status {}", code.unwrap_or(-1))?,
        }
        write!(f, " after {:.3} s", self.after.as_secs_f64())
    }
}

/// The name of a signal, such as `SIGKILL`; `signal 35` for those without one.
pub fn signal_name(signal: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
        "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    let name = usize::try_from(signal).ok().and_then(|signal| NAMES.get(signal.wrapping_sub(1)));
    name.map_or_else(|| format!("signal {signal}"), |name| format!("SIG{name}"))
}

/// What a member wrote, as far as it was captured; see [`Output::Capture`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Captured {
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
    /// Whether something is missing, since it wrote more than [`CAPTURE_LEN_MAX`].
    pub truncated: bool,
}

/// Sends signals to the members of a running job; cheap to clone, for use by other threads.
#[derive(Clone)]
pub struct Control {
    shared: Arc<Shared>,
}

impl Control {
    /// The processes of the members, in their order; those that have ended included.
    pub fn pids(&self) -> Vec<u32> {
        self.shared.processes.iter().map(|process| process.pid).collect()
    }

    /// How long ago the job was started.
    pub fn elapsed(&self) -> Duration {
        self.shared.began.elapsed()
    }

    /// How many processes have not ended yet.
    pub fn running(&self) -> usize {
        self.shared.lock().running
    }

    /// Sends a signal to a member; whether its process was still there.
    pub fn signal(&self, member: MemberId, signal: Signal) -> Result<bool, LaunchError> {
        let members = self.shared.processes.len();
        let process = self
            .shared
            .processes
            .get(member.index())
            .ok_or(LaunchError::UnknownMember { member, members })?;
        // Looked at before: SIGKILL may be so quick that the end is known when the call returns.
        let was_there = self.shared.lock().ends[member.index()].is_none();
        match pidfd_send_signal(&process.pidfd, signal) {
            Ok(()) => Ok(was_there),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(LaunchError::System {
                what: "sending a signal to a member",
                error: error.into(),
            }),
        }
    }

    /// Kills a member with SIGKILL, without waiting for its end; whether its process was still there.
    pub fn kill(&self, member: MemberId) -> Result<bool, LaunchError> {
        self.signal(member, Signal::KILL)
    }

    /// Stops a member with SIGSTOP, until [`Control::resume`].
    pub fn stop(&self, member: MemberId) -> Result<bool, LaunchError> {
        self.signal(member, Signal::STOP)
    }

    /// Lets a stopped member go on.
    pub fn resume(&self, member: MemberId) -> Result<bool, LaunchError> {
        self.signal(member, Signal::CONT)
    }

    /// Sends a signal to all members that have not ended.
    pub fn signal_all(&self, signal: Signal) {
        for index in 0..self.shared.processes.len() {
            // A member that ends meanwhile is no error here.
            let _ = self.signal(MemberId(index as u32), signal);
        }
    }
}

/// A job that was started. Its processes are killed and waited for when it is dropped, so that nothing stays behind
/// when a test fails; call [`Running::wait`] to let them finish.
pub struct Running {
    control: Control,
    keeper: Option<JoinHandle<()>>,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Running({} of {})", self.running(), self.control.shared.processes.len())
    }
}

impl std::ops::Deref for Running {
    type Target = Control;

    fn deref(&self) -> &Control {
        &self.control
    }
}

impl Running {
    /// A handle for sending signals from other threads.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// What has happened since the last call; does not wait.
    pub fn poll_events(&mut self) -> Vec<Event> {
        self.shared.lock().events.drain(..).collect()
    }

    /// The next thing that happens, if it does within `limit`.
    pub fn next_event(&mut self, limit: Duration) -> Option<Event> {
        let (mut state, _) = self
            .shared
            .wait_until(Instant::now().checked_add(limit), |state| !state.events.is_empty());
        state.events.pop_front()
    }

    /// Waits until the process of `member` has ended, at most for `limit`.
    pub fn wait_for(&self, member: MemberId, limit: Duration) -> Option<MemberEnd> {
        let until = Instant::now().checked_add(limit);
        let end = |state: &State| state.ends.get(member.index()).cloned().flatten();
        let (state, _) = self.shared.wait_until(until, |state| end(state).is_some());
        end(&state)
    }

    /// What a member has written so far, with [`Output::Capture`].
    pub fn output(&self, member: MemberId) -> Captured {
        self.shared.lock().captured.get(member.index()).cloned().unwrap_or_default()
    }

    /// Waits until all members have ended, at most for `limit` (`Duration::MAX`: without limit). What is left then
    /// is killed, and the outcome says `timed_out`, and where it was. (With no time at all it is killed at once.)
    pub fn wait(&mut self, limit: Duration) -> Outcome {
        let until = Instant::now().checked_add(limit);
        let all_ended = self.shared.wait_until(until, |state| state.running == 0).1;
        let mut backtraces = String::new();
        if !all_ended {
            if !limit.is_zero() {
                backtraces = backtrace::backtraces(&self.pids());
            }
            self.end();
        }
        let output_until = Instant::now().checked_add(OUTPUT_LIMIT);
        let (state, _) = self.shared.wait_until(output_until, |state| !state.has_output);
        let left_running = state.ends.iter().zip(0..).filter(|(end, _)| end.is_none());
        Outcome {
            members: state.ends.iter().flatten().cloned().collect(),
            timed_out: !all_ended,
            left_running: left_running.map(|(_, index)| MemberId(index)).collect(),
            output: state.captured.clone(),
            backtraces,
        }
    }

    /// Kills what is left and waits for it, within a bound.
    fn end(&mut self) {
        self.signal_all(Signal::KILL);
        let until = Instant::now().checked_add(REAP_LIMIT);
        let all_ended = self.shared.wait_until(until, |state| state.running == 0).1;
        if let (true, Some(keeper)) = (all_ended, self.keeper.take()) {
            let _ = keeper.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// How a job ended. Displayed as one line for each member.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// How each member ended, in the order of the members.
    pub members: Vec<MemberEnd>,
    /// Whether the time limit was over and the rest was killed.
    pub timed_out: bool,
    /// Members whose process did not end even after SIGKILL: the kernel is stuck in them. Almost always empty.
    pub left_running: Vec<MemberId>,
    /// What each member wrote, in the order of the members; empty unless [`Output::Capture`] was asked for.
    pub output: Vec<Captured>,
    /// Where those were that had not ended when the time limit was over.
    pub backtraces: String,
}

impl Outcome {
    /// Whether the job did its work: at least one member finished with status 0, all others too or they died (a
    /// signal ended them), and the time limit was kept. A member that exits with another status did not die; it says
    /// that something is wrong.
    pub fn survivors_ok(&self) -> bool {
        !self.timed_out
            && self.left_running.is_empty()
            && self.survivors().next().is_some()
            && self.survivors().all(MemberEnd::is_ok)
    }

    /// Those that ended by themselves.
    pub fn survivors(&self) -> impl Iterator<Item = &MemberEnd> {
        self.members.iter().filter(|end| !end.is_death())
    }

    /// Those that a signal ended.
    pub fn deaths(&self) -> impl Iterator<Item = &MemberEnd> {
        self.members.iter().filter(|end| end.is_death())
    }

    /// The captured standard output of a member, as text.
    pub fn stdout(&self, member: MemberId) -> String {
        self.output
            .get(member.index())
            .map_or_else(String::new, |c| String::from_utf8_lossy(&c.stdout).into())
    }

    /// The captured standard error of a member, as text.
    pub fn stderr(&self, member: MemberId) -> String {
        self.output
            .get(member.index())
            .map_or_else(String::new, |c| String::from_utf8_lossy(&c.stderr).into())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for end in &self.members {
            writeln!(f, "{end}")?;
        }
        for member in &self.left_running {
            writeln!(f, "{member} did not end, not even by SIGKILL")?;
        }
        if self.timed_out {
            writeln!(f, "the time limit was over; what was left was killed")?;
        }
        f.write_str(&self.backtraces)?;
        Ok(())
    }
}

/// Makes a program its own launcher, as examples like it.
///
/// In a member this returns `None` at once, and the program goes on to [`crate::join`]. Otherwise it starts `members`
/// copies of this program with the same arguments, waits for all of them, and returns how they ended. The copies die
/// with this process, so that to a user it is one program.
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

/// The pipes through which the members' output comes.
struct Streams {
    output: Output,
    streams: Vec<Stream>,
}

struct Stream {
    pipe: std::fs::File,
    member: MemberId,
    is_error: bool,
    /// What has come since the last end of a line.
    line: Vec<u8>,
}

impl Stream {
    fn new(pipe: OwnedFd, member: MemberId, is_error: bool) -> Stream {
        Stream { pipe: std::fs::File::from(pipe), member, is_error, line: Vec::new() }
    }
}

impl Streams {
    /// Reads all pipes in one thread of its own: a reader of the launcher's output that does not read must not keep
    /// the launcher from seeing deaths.
    fn start(self, shared: &Arc<Shared>) -> Result<(), LaunchError> {
        if self.streams.is_empty() {
            return Ok(());
        }
        shared.lock().has_output = true;
        let shared = shared.clone();
        std::thread::Builder::new()
            .name("outlast-output".to_string())
            .spawn(move || {
                self.pass_on(&shared);
                shared.lock().has_output = false;
                shared.changed.notify_all();
            })
            .map(|_| ())
            .map_err(|error| LaunchError::System {
                what: "starting the launcher's output thread",
                error,
            })
    }

    fn pass_on(mut self, shared: &Shared) {
        let mut buffer = vec![0; LINE_LEN_MAX];
        let mut over_since: Option<Instant> = None;
        while !self.streams.is_empty() {
            // Once all members have ended, whoever still holds a pipe is no member: give it a moment and go.
            if shared.lock().running == 0 {
                let since = *over_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= OUTPUT_LIMIT {
                    break;
                }
            }
            let mut fds: Vec<PollFd<'_>> = self
                .streams
                .iter()
                .map(|stream| PollFd::from_borrowed_fd(stream.pipe.as_fd(), PollFlags::IN))
                .collect();
            let tick = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
            if poll(&mut fds, Some(&tick)).is_err() {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            let is_ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            let mut is_ready = is_ready.into_iter();
            let output = self.output;
            self.streams.retain_mut(|stream| {
                if !is_ready.next().expect("one answer for each") {
                    return true;
                }
                match stream.pipe.read(&mut buffer) {
                    Ok(0) => {
                        stream.end();
                        false
                    }
                    Ok(len) if output == Output::Capture => {
                        stream.keep(&buffer[..len], shared);
                        true
                    }
                    Ok(len) => {
                        stream.pass_lines(&buffer[..len]);
                        true
                    }
                    Err(error) => error.kind() == std::io::ErrorKind::Interrupted,
                }
            });
        }
    }
}

impl Stream {
    fn keep(&self, bytes: &[u8], shared: &Shared) {
        let mut state = shared.lock();
        let captured = &mut state.captured[self.member.index()];
        let kept = if self.is_error { &mut captured.stderr } else { &mut captured.stdout };
        let room = CAPTURE_LEN_MAX - kept.len();
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        captured.truncated |= bytes.len() > room;
    }

    fn pass_lines(&mut self, mut bytes: &[u8]) {
        let mut text = Vec::new();
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            self.line.extend_from_slice(&bytes[..end]);
            self.take_line(&mut text);
            bytes = &bytes[end + 1..];
        }
        self.line.extend_from_slice(bytes);
        if self.line.len() > LINE_LEN_MAX {
            self.take_line(&mut text);
        }
        self.write(&text);
    }

    fn end(&mut self) {
        if !self.line.is_empty() {
            let mut text = Vec::new();
            self.take_line(&mut text);
            self.write(&text);
        }
    }

    fn take_line(&mut self, text: &mut Vec<u8>) {
        text.extend_from_slice(format!("[{}] ", self.member.0).as_bytes());
        text.append(&mut self.line);
        text.push(b'\n');
    }

    /// Writes whole lines at once. When nobody reads them any more they are dropped; the members go on.
    fn write(&self, text: &[u8]) {
        let _ = match self.is_error {
            true => std::io::stderr().lock().write_all(text),
            false => {
                let mut stdout = std::io::stdout().lock();
                stdout.write_all(text).and_then(|()| stdout.flush())
            }
        };
    }
}

//! Starting members with mpirun, as ranks of Open MPI.
//!
//! The parent of a rank is a daemon of mpirun and not the launcher, so the launcher cannot wait for
//! it or read its output as a parent does. It gives the ranks pipes instead. The ranks open them
//! through /proc: the pipes have no names and leave nothing behind. A rank begins as a shell, which
//! connects its output, reports its process number and becomes the program. From then on the
//! launcher watches and signals the process itself, by a pidfd, whatever mpirun reports of it. The
//! engine of a rank reports how the process exits; a rank without a report was killed.
//!
//! The status of mpirun means nothing once a rank has died. It is not read after the start.
//!
//! | what ends | the rest |
//! |---|---|
//! | a rank | the other ranks go on, and mpirun ends with the last rank |
//! | mpirun, or its daemon on a host | it ends its ranks, and the launcher sees their ends |
//! | the launcher, with "die with the launcher" | the kernel signals mpirun, which ends the ranks |
//!
//! Inside an mpirun that was started elsewhere ([`Mpirun::joined`]) rank 0 is the launcher, and
//! starts member 0 as its child. The other ranks find the shell script in a known folder and run it
//! ([`follow`]).
//!
//! Open MPI writes its files into a folder that is removed at the end. If the launcher was killed,
//! a small process of its own, the watcher, removes the folder once mpirun has ended, too. If the
//! watcher was killed as well, the next start removes the folder: its name has the launcher's
//! process number.
//!
//! Where all ranks are on this host they use no TCP, and listen on no address. mpirun itself binds
//! a port of all addresses whatever its options are (`docs/limits.md`).

use super::output::{Stream, Streams};
use super::running::{Process, Shared, State, keep, new_running};
use super::{Launch, LaunchError, Output, Running};
use crate::engine::MemberId;
use crate::engine::join::{REPORT_VARIABLE, SEGMENT_LIMIT_VARIABLE, SPARES_VARIABLE};
use crate::engine::shm::{pass_descriptor, terminate_with_launcher};
use crate::sync::lock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The longest time from the start of mpirun until all ranks have begun.
const START_LIMIT: Duration = Duration::from_secs(60);
/// The longest time that mpirun may take to end after the last rank.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The most bytes of mpirun's output that are kept, for the error if it does not start.
const MESSAGES_LEN_MAX: usize = 64 << 10;

/// The beginning of the names of the folders for Open MPI's files; the launcher's process number
/// follows.
const FOLDER: &str = "outlast-mpi-";

/// The name of the script in the meeting place.
const SCRIPT: &str = "start";

/// Options of every mpirun. Without the first two no job outlasts a death. More ranks than cores
/// are allowed. No rank is bound to a core, because the engine's background thread needs a core,
/// too.
const OPTIONS: [&str; 5] = ["--with-ft", "ulfm", "--oversubscribe", "--bind-to", "none"];

/// Options of a job under a single daemon: ranks of other hosts may connect to the daemon, ask it
/// for data instead of mapping its memory, and communicate over TCP, as ranks of several hosts do.
const ONE_DAEMON_OPTIONS: [&str; 12] = [
    "--prtemca",
    "pmix_remote_connections",
    "1",
    "--pmixmca",
    "gds",
    "hash",
    "--mca",
    "pml",
    "ob1",
    "--mca",
    "btl",
    "tcp,self",
];

/// An mpirun and its options; see [`Launch::mpirun`].
#[derive(Clone, Debug)]
pub struct Mpirun {
    program: PathBuf,
    before: Vec<OsString>,
    options: Vec<OsString>,
    /// The folder with the script for the other ranks, if this process is a rank of an mpirun that
    /// already runs.
    joined: Option<PathBuf>,
    one_daemon: Option<OneDaemon>,
}

/// How ranks get to their hosts when a single daemon of mpirun starts all of them.
#[derive(Clone, Debug)]
struct OneDaemon {
    hosts: Vec<String>,
    /// The words of the agent, a program like ssh.
    agent: Vec<OsString>,
    /// Whether the agent becomes the member's process on this machine.
    is_local: bool,
}

/// A folder for the files of Open MPI, in memory if possible. It is removed when this is dropped,
/// or when this process and mpirun have ended in any other way.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    watcher: Option<Watcher>,
}

/// A process that removes a folder when no process has the lifeline open any more.
#[derive(Debug)]
struct Watcher {
    child: Child,
    /// The writing end of a pipe that the watcher reads. This process and mpirun have it open.
    lifeline: Arc<OwnedFd>,
}

impl Watcher {
    /// Starts the watcher in a process group of its own, so that a signal for the launcher's group
    /// does not end it. `None` if it cannot be started: the next launcher removes the folder then.
    fn start(folder: &Path) -> Option<Watcher> {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("sh");
        command.args(["-c", r#"read -r line; rm -rf -- "$1""#, "outlast-watcher"]).arg(folder);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.current_dir("/").process_group(0).spawn().ok()?;
        let lifeline = Arc::new(OwnedFd::from(child.stdin.take()?));
        Some(Watcher { child, lifeline })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Not left to the end of the lifeline: a rank that outlives mpirun may have it open.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Folder {
    /// Makes the folder `path`, and has it watched.
    fn make(path: PathBuf) -> std::io::Result<Folder> {
        std::fs::create_dir(&path)?;
        let watcher = Watcher::start(&path);
        Ok(Folder { path, watcher })
    }

    /// Lets mpirun keep the folder while it runs.
    fn keep_for(&self, mpirun: &mut Command) {
        if let Some(watcher) = &self.watcher {
            pass_descriptor(mpirun, watcher.lifeline.clone());
        }
    }

    /// Makes a folder with a new name, and removes the folders of launchers that are gone.
    fn new() -> Result<Folder, LaunchError> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("{FOLDER}{}-{number}", std::process::id());
        let mut result = Err(std::io::Error::other("no folder"));
        for parent in [Path::new("/dev/shm"), &std::env::temp_dir()] {
            remove_leftovers(parent);
            result = Folder::make(parent.join(&name));
            if result.is_ok() {
                break;
            }
        }
        result.map_err(|error| LaunchError::System { what: "making a folder for Open MPI", error })
    }

    /// Makes the meeting place of the ranks. A folder that exists belongs to a job that has ended,
    /// because the name of a running job of mpirun is unique.
    fn meeting(place: &Path) -> Result<Folder, LaunchError> {
        let _ = std::fs::remove_dir_all(place);
        Folder::make(place.to_path_buf())
            .map_err(|error| LaunchError::System { what: "making a folder for the ranks", error })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

impl Mpirun {
    /// An mpirun of Open MPI 5 with ULFM: a path, or a name that is looked up in `PATH`.
    pub fn new(program: impl AsRef<Path>) -> Mpirun {
        let program = program.as_ref().to_path_buf();
        Mpirun { program, before: Vec::new(), options: Vec::new(), joined: None, one_daemon: None }
    }

    /// The mpirun that has started this process as rank 0. All its ranks become members; see
    /// [`follow`].
    pub fn joined() -> Mpirun {
        Mpirun { joined: Some(meeting_place()), ..Mpirun::new("mpirun") }
    }

    /// Words before mpirun on its command line: a program that runs it in another place, for
    /// example in a network namespace.
    pub fn behind(mut self, words: impl IntoIterator<Item = impl Into<OsString>>) -> Mpirun {
        self.before.extend(words.into_iter().map(Into::into));
        self
    }

    /// Further options of mpirun.
    pub fn options(mut self, words: impl IntoIterator<Item = impl Into<OsString>>) -> Mpirun {
        self.options.extend(words.into_iter().map(Into::into));
        self
    }

    /// Runs the ranks on these hosts, in turn, under a single daemon of mpirun, which is on this
    /// host. The daemon starts all ranks here, and each rank goes to its host by an agent like ssh
    /// (`AGENT... HOST COMMAND`, where the command is for a shell on that host).
    ///
    /// The loss of a host then ends its ranks and no others; with a daemon on each host, mpirun 5.0
    /// ends the whole job. This host must be reachable from the others, its loss ends the job, and
    /// the program must have an equal path on all hosts.
    ///
    /// If the agent only enters another part of this machine and becomes the command (`is_local`),
    /// signals reach the member itself. Otherwise they end the agent, which has to end the member.
    pub fn one_daemon(
        mut self,
        hosts: impl IntoIterator<Item = impl Into<String>>,
        agent: impl IntoIterator<Item = impl Into<OsString>>,
        is_local: bool,
    ) -> Mpirun {
        let hosts = hosts.into_iter().map(Into::into).collect();
        self.one_daemon =
            Some(OneDaemon { hosts, agent: agent.into_iter().map(Into::into).collect(), is_local });
        self
    }

    /// The words of the command line that starts this many ranks, up to the program.
    fn words(&self, ranks: usize) -> Vec<OsString> {
        let mut words = self.before.clone();
        words.push(self.program.clone().into());
        words.extend(OPTIONS.map(OsString::from));
        words.extend(self.options.iter().cloned());
        if self.one_daemon.is_some() {
            words.extend(ONE_DAEMON_OPTIONS.map(OsString::from));
            // The host's name and not localhost: ranks of other hosts connect to it.
            words.extend(["--host".into(), format!("{}:{ranks}", host_name()).into()]);
        }
        words.extend(["-n".into(), ranks.to_string().into()]);
        words
    }

    /// The command line that starts this many ranks, up to the program.
    pub fn line(&self, ranks: usize) -> String {
        let words = self.words(ranks);
        words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }
}

/// Returns the rank of this process and the number of ranks, if mpirun has started the process.
pub fn rank() -> Option<(usize, usize)> {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    Some((number("OMPI_COMM_WORLD_RANK")?, number("OMPI_COMM_WORLD_SIZE")?))
}

/// Turns this rank into a member, inside an mpirun that was started elsewhere. All ranks but rank 0
/// call it; rank 0 calls [`Launch::start`] with [`Mpirun::joined`]. Returns only if it fails.
pub fn follow() -> LaunchError {
    use std::os::unix::process::CommandExt;
    let script = meeting_place().join(SCRIPT);
    let until = Instant::now() + START_LIMIT;
    while !script.exists() {
        if Instant::now() >= until {
            let limit = START_LIMIT.as_secs();
            return LaunchError::Mpirun {
                reason: format!("rank 0 did not begin within {limit} s"),
            };
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let error = Command::new("sh").arg(script).exec();
    LaunchError::System { what: "starting a shell", error }
}

/// Prepares an mpirun that [`Launch`] does not start, after its options were given: it may run as
/// root, uses no transport that is slow to start and, where all ranks are on this host, no TCP, and
/// has a folder for its files. The folder is removed when the result is dropped, which must be
/// after the end of mpirun.
///
/// Otherwise mpirun writes into /tmp, under its process number. The files of a killed mpirun then
/// make a later mpirun with that number fail with "The PMIx server's listener thread failed to
/// start".
pub fn prepare(mpirun: &mut Command) -> Result<Folder, LaunchError> {
    let folder = Folder::new()?;
    set_environment(mpirun, &folder);
    Ok(folder)
}

/// Starts the job. A thread of its own starts mpirun and stays until the job has ended, because the
/// kernel ties "die with the launcher" to the thread that started a process.
pub(super) fn start(
    launch: Launch,
    mpirun: Mpirun,
    program: PathBuf,
) -> Result<Running, LaunchError> {
    new_running(move |report| match start_ranks(&launch, &mpirun, &program) {
        Ok(StartedRanks { mpirun: mut started, streams, shared, mut reports }) => {
            match streams.start(&shared) {
                Ok(()) => {
                    let _ = report.send(Ok(shared.clone()));
                    keep(&shared, |member| reports.end_of(member));
                    started.ends_within(END_LIMIT);
                }
                Err(error) => drop(report.send(Err(error))),
            }
        }
        Err(error) => drop(report.send(Err(error))),
    })
}

/// The state of the launcher once the ranks run.
struct StartedRanks {
    mpirun: StartedMpirun,
    streams: Streams,
    shared: Arc<Shared>,
    reports: Reports,
}

/// Starts mpirun and waits until all ranks have begun.
fn start_ranks(
    launch: &Launch,
    mpirun: &Mpirun,
    program: &Path,
) -> Result<StartedRanks, LaunchError> {
    let ranks = launch.members + launch.spares;
    let began = Instant::now();
    let mut streams = Streams { output: launch.output, streams: Vec::new() };
    let mut pipes = Pipes { begun: new_pipe()?, report: new_pipe()?, output: Vec::new() };
    if matches!(launch.output, Output::Prefix | Output::Capture) {
        for member in (0..ranks as u32).map(MemberId) {
            let ((out, out_end), (error, error_end)) = (new_pipe()?, new_pipe()?);
            streams.streams.push(Stream::new(out, member, false));
            streams.streams.push(Stream::new(error, member, true));
            pipes.output.push([out_end, error_end]);
        }
    }
    let folder = mpirun.joined.as_deref().map_or_else(Folder::new, Folder::meeting)?;
    let command = command(launch, mpirun, program, &pipes, &folder)?;
    let mut started = StartedMpirun::new(command, folder, &mpirun.program)?;
    let mut begun = LineReader::new(pipes.begun.0);
    let pids = wait_for_ranks(&mut started, &mut begun, ranks)?;
    // The ranks have opened their ends. Without these ends a pipe is closed when its rank ends.
    pipes.output.clear();
    let mut processes = Vec::with_capacity(ranks);
    for pid in pids {
        let number = Pid::from_raw(pid as i32)
            .ok_or_else(|| started.failed("a rank reported no process number"))?;
        let pidfd = pidfd_open(number, PidfdFlags::empty())
            .map_err(|_| started.failed("a rank ended at once:"))?;
        processes.push(Process { pid, pidfd });
    }
    let shared = Arc::new(Shared::new(processes, began, State::new(ranks)));
    let (report, report_end) = pipes.report;
    let reports = Reports {
        lines: LineReader::new(report),
        _end: report_end,
        joined: vec![false; ranks],
        statuses: vec![None; ranks],
    };
    Ok(StartedRanks { mpirun: started, streams, shared, reports })
}

/// The pipes between the launcher and the ranks, with reading end and writing end. The ranks open
/// the writing ends through /proc.
struct Pipes {
    /// Each rank writes its rank and its process number here when it begins.
    begun: (OwnedFd, OwnedFd),
    /// The engines report here how their processes exit.
    report: (OwnedFd, OwnedFd),
    /// For each rank the writing ends of its standard output and standard error, if they are pipes.
    output: Vec<[OwnedFd; 2]>,
}

fn new_pipe() -> Result<(OwnedFd, OwnedFd), LaunchError> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(system("making a pipe"))
}

fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> LaunchError {
    move |error| LaunchError::System { what, error: error.into() }
}

/// The command that starts mpirun, or member 0 inside an mpirun that already runs.
fn command(
    launch: &Launch,
    mpirun: &Mpirun,
    program: &Path,
    pipes: &Pipes,
    folder: &Folder,
) -> Result<Command, LaunchError> {
    if mpirun.joined.is_some() {
        let written = write_script(&folder.path, launch, program, pipes);
        let mut command = written.map_err(|error| LaunchError::System {
            what: "writing the script for the ranks",
            error,
        })?;
        command.stdin(Stdio::null());
        terminate_with_launcher(&mut command, launch.die_with_launcher);
        return Ok(command);
    }
    let words = mpirun.words(launch.members + launch.spares);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["sh", "-c"]);
    command.arg(script(launch, pipes, mpirun.one_daemon.as_ref())).arg("sh");
    command.args(script_arguments(launch, program, pipes));
    if let Some(directory) = &launch.directory {
        command.current_dir(directory);
    }
    command.stdin(Stdio::null());
    set_environment(&mut command, folder);
    match launch.output {
        Output::Inherit => {}
        _ => drop(command.stdout(Stdio::piped()).stderr(Stdio::piped())),
    }
    terminate_with_launcher(&mut command, launch.die_with_launcher);
    Ok(command)
}

/// Writes the script for the ranks of an mpirun that already runs, by a rename, so that no rank
/// sees an unfinished script. Returns the command that runs it for member 0.
fn write_script(
    folder: &Path,
    launch: &Launch,
    program: &Path,
    pipes: &Pipes,
) -> std::io::Result<Command> {
    let mut text = b"set --".to_vec();
    for word in script_arguments(launch, program, pipes) {
        text.push(b' ');
        text.extend(quoted(&word).as_bytes());
    }
    text.push(b'\n');
    text.extend(script(launch, pipes, None).as_bytes());
    text.push(b'\n');
    let (draft, script) = (folder.join("draft"), folder.join(SCRIPT));
    std::fs::write(&draft, text)?;
    std::fs::rename(draft, &script)?;
    let mut command = Command::new("sh");
    command.arg(script);
    Ok(command)
}

/// The arguments of the script of a rank.
fn script_arguments(launch: &Launch, program: &Path, pipes: &Pipes) -> Vec<OsString> {
    let ends = pipes.output.iter().flatten();
    let mut words: Vec<OsString> = ends.map(|end| end.as_raw_fd().to_string().into()).collect();
    // Variables are words of the rank's command, because not every daemon passes its environment
    // on.
    let report = format!("/proc/{}/fd/{}", std::process::id(), pipes.report.1.as_raw_fd());
    words.extend([
        "env".into(),
        format!("{REPORT_VARIABLE}={report}").into(),
        "OUTLAST_ENGINE=mpi".into(),
    ]);
    words.push(format!("{SPARES_VARIABLE}={}", launch.spares).into());
    if let Some(limit) = launch.segment_limit {
        words.push(format!("{SEGMENT_LIMIT_VARIABLE}={limit}").into());
    }
    for (name, value) in launch.environment.iter().filter(|(name, _)| name != "OUTLAST_ENGINE") {
        let mut word = name.clone();
        word.push("=");
        word.push(value);
        words.push(word);
    }
    words.push(program.into());
    words.extend(launch.arguments.iter().cloned());
    words
}

/// The shell script as which a rank begins, and which becomes the program. Its arguments are the
/// descriptors for the output of all ranks, two for each rank, and then the words of the program.
fn script(launch: &Launch, pipes: &Pipes, one_daemon: Option<&OneDaemon>) -> OsString {
    let (launcher, ranks) = (std::process::id(), launch.members + launch.spares);
    let mut script = format!("r=$OMPI_COMM_WORLD_RANK; d=/proc/{launcher}/fd; ");
    match launch.output {
        Output::Inherit => {}
        Output::Discard => script.push_str("exec >/dev/null 2>&1; "),
        Output::Prefix | Output::Capture => {
            script.push_str(r#"eval "exec >$d/\${$((2 * r + 1))} 2>$d/\${$((2 * r + 2))}"; "#);
            let _ = write!(script, "shift {}; ", 2 * ranks);
        }
    }
    let begun = pipes.begun.1.as_raw_fd();
    let Some(OneDaemon { hosts, agent, is_local }) = one_daemon else {
        let _ = write!(script, r#"echo "$r $$" >$d/{begun} && exec "$@""#);
        return script.into();
    };
    let _ =
        write!(script, r#"echo "$r $$" >$d/{begun} || exit; case $((r % {})) in "#, hosts.len());
    let mut script = OsString::from(script);
    for (index, host) in hosts.iter().enumerate() {
        script.push(format!("{index}) h="));
        script.push(quoted(OsStr::new(host)));
        script.push(";; ");
    }
    script.push("esac; ");
    script.push(FOR_ANOTHER_SHELL);
    let agent: Vec<OsString> = agent.iter().map(|word| quoted(word)).collect();
    script.push(if *is_local { "exec " } else { "" });
    script.push(agent.join(OsStr::new(" ")));
    script.push(r#" "$h" "$c""#);
    if !is_local {
        // A member on another host cannot report to this launcher how it exits: this shell does it.
        // If the member did not exit with 0, the shell kills itself, because mpirun tells the other
        // ranks of killed ranks alone.
        let report = pipes.report.1.as_raw_fd();
        script.push(format!(
            "; s=$?; printf '%s joined\\n' $r >$d/{report}; [ $s = 0 ] || kill -9 $$; \
             printf '%s exited 0\\n' $r >$d/{report}"
        ));
    }
    script
}

/// Shell code that makes a command for the shell of another host, in `c`. The command enters this
/// folder, exports the variables of Open MPI and Outlast, which the daemon has set here, and
/// becomes the program. All values and words are quoted, because they may contain any character.
const FOR_ANOTHER_SHELL: &str = r#"q() { printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")"; }
c="cd $(q "$PWD") || exit"
for v in $(env | sed -n 's/^\(\(OMPI\|OPAL\|PMIX\|PRTE\|OUTLAST\)_[A-Za-z0-9_]*\)=.*/\1/p'); do
eval "w=\$$v"; c="$c; export $v=$(q "$w")"; done
c="$c; exec"; for w in "$@"; do c="$c $(q "$w")"; done
"#;

/// Quotes a word for a shell.
fn quoted(word: &OsStr) -> OsString {
    let mut text = vec![b'\''];
    text.extend(word.as_bytes().iter().flat_map(|&byte| match byte {
        b'\'' => b"'\\''".to_vec(),
        byte => vec![byte],
    }));
    text.push(b'\'');
    OsString::from_vec(text)
}

/// The environment of every mpirun. Its options are part of the command already.
fn set_environment(mpirun: &mut Command, folder: &Folder) {
    folder.keep_for(mpirun);
    mpirun.env("TMPDIR", &folder.path).env("OMPI_MCA_btl_sm_backing_directory", &folder.path);
    mpirun.env("PRTE_MCA_prte_silence_shared_fs", "1");
    // Nothing here uses the transport ofi, and probing it takes a second in the MPI_Init of each
    // rank. The ranks of a single host need no TCP; with it each of them would listen on all
    // addresses.
    if std::env::var_os("OMPI_MCA_btl").is_none() {
        let is_one_host = is_one_host(mpirun.get_args(), |name| std::env::var_os(name).is_some());
        mpirun.env("OMPI_MCA_btl", if is_one_host { "^ofi,tcp" } else { "^ofi" });
    }
    // In a container every user is root, and mpirun refuses to run as root unless it is allowed
    // twice.
    for name in ["OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"] {
        mpirun.env(name, "1").env(format!("{name}_CONFIRM"), "1");
    }
}

/// Whether mpirun starts all ranks on this host: its words name no other hosts, and no batch system
/// or setting of Open MPI does.
fn is_one_host<'a>(
    words: impl IntoIterator<Item = &'a OsStr>,
    is_set: impl Fn(&str) -> bool,
) -> bool {
    const HOST_OPTIONS: [&str; 4] = ["-H", "-host", "--host", "plm_ssh_agent"];
    const HOST_VARIABLES: [&str; 8] = [
        "SLURM_JOB_ID",
        "SLURM_JOBID",
        "PBS_JOBID",
        "PBS_NODEFILE",
        "LSB_JOBID",
        "PE_HOSTFILE",
        "PRTE_MCA_prte_default_hostfile",
        "PRTE_MCA_plm_ssh_agent",
    ];
    let names_hosts = |word: &OsStr| {
        let word = word.to_string_lossy();
        let is_file = word.ends_with("hostfile") || word.ends_with("machinefile");
        is_file || HOST_OPTIONS.contains(&&*word)
    };
    !words.into_iter().any(names_hosts) && !HOST_VARIABLES.into_iter().any(is_set)
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_string()
}

/// The folder in which the ranks of an mpirun that already runs find their script.
fn meeting_place() -> PathBuf {
    let job = std::env::var("PMIX_NAMESPACE").unwrap_or_default();
    let name: String =
        job.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    std::env::temp_dir().join(format!("outlast-joined-{name}"))
}

/// Removes the folders of launchers that are gone.
fn remove_leftovers(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix(FOLDER).and_then(|rest| rest.split('-').next()) else {
            continue;
        };
        if pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// An mpirun that was started. Dropping it ends mpirun and waits for the end, at most for
/// [`END_LIMIT`] before it is killed.
struct StartedMpirun {
    child: Child,
    /// The output of mpirun itself.
    messages: Arc<Mutex<Vec<u8>>>,
    /// Dropped after mpirun has ended.
    _folder: Folder,
}

impl StartedMpirun {
    /// Starts mpirun and threads that read its output, so that mpirun never waits for a reader.
    fn new(
        mut command: Command,
        folder: Folder,
        program: &Path,
    ) -> Result<StartedMpirun, LaunchError> {
        let mut child = command.spawn().map_err(|error| LaunchError::Mpirun {
            reason: format!(
                "`{}` does not start: {error}; set MPIRUN to the mpirun of Open MPI 5, or type: \
                 cargo xtask mpi",
                program.display()
            ),
        })?;
        let messages: Arc<Mutex<Vec<u8>>> = Arc::default();
        let pipes =
            [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)];
        for pipe in pipes.into_iter().flatten() {
            let messages = messages.clone();
            let body = move || {
                let (mut pipe, mut buffer) = (std::fs::File::from(pipe), [0; 4096]);
                while let Ok(len @ 1..) = pipe.read(&mut buffer) {
                    let mut messages = lock(&messages);
                    let room = MESSAGES_LEN_MAX.saturating_sub(messages.len());
                    messages.extend_from_slice(&buffer[..len.min(room)]);
                }
            };
            let thread = std::thread::Builder::new().name("outlast-mpirun".to_string()).spawn(body);
            thread.map_err(|error| LaunchError::System {
                what: "starting a thread for mpirun",
                error,
            })?;
        }
        Ok(StartedMpirun { child, messages, _folder: folder })
    }

    /// The error that mpirun did not start the ranks.
    fn failed(&self, what: &str) -> LaunchError {
        // The last output may arrive a moment after the end of mpirun.
        std::thread::sleep(Duration::from_millis(100));
        let messages = lock(&self.messages);
        LaunchError::Mpirun {
            reason: format!("{what}\n{}", String::from_utf8_lossy(&messages).trim()),
        }
    }

    /// Waits for the end of mpirun, at most for `limit`. Returns whether it has ended.
    fn ends_within(&mut self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
                Ok(None) => return false,
                Ok(Some(_)) | Err(_) => return true,
            }
        }
    }
}

impl Drop for StartedMpirun {
    fn drop(&mut self) {
        // SIGTERM first, so that mpirun ends its daemons on other hosts.
        if !self.ends_within(Duration::ZERO)
            && let Some(pid) = Pid::from_raw(self.child.id() as i32)
        {
            let _ = kill_process(pid, Signal::TERM);
        }
        if !self.ends_within(END_LIMIT) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Waits until every rank has reported its process number.
fn wait_for_ranks(
    started: &mut StartedMpirun,
    begun: &mut LineReader,
    ranks: usize,
) -> Result<Vec<u32>, LaunchError> {
    let until = Instant::now() + START_LIMIT;
    let mut pids: Vec<Option<u32>> = vec![None; ranks];
    while pids.iter().any(Option::is_none) {
        // Checked before the lines are read, so that no line from before the end of mpirun is
        // missed.
        let is_over = started.ends_within(Duration::ZERO);
        for line in begun.take(Duration::from_millis(20)) {
            let numbers: Option<(usize, u32)> = line
                .split_once(' ')
                .and_then(|(rank, pid)| Some((rank.parse().ok()?, pid.parse().ok()?)));
            match numbers {
                Some((rank, pid)) if rank < ranks => pids[rank] = Some(pid),
                _ => return Err(started.failed(&format!("a rank began with `{line}`"))),
            }
        }
        let begun = pids.iter().flatten().count();
        if is_over && begun < ranks {
            return Err(
                started.failed(&format!("mpirun ended when {begun} of {ranks} ranks had begun:"))
            );
        }
        if Instant::now() >= until {
            let limit = START_LIMIT.as_secs();
            return Err(
                started.failed(&format!("{begun} of {ranks} ranks began within {limit} s:"))
            );
        }
    }
    Ok(pids.into_iter().flatten().collect())
}

/// How the ranks exited, as their engines have reported it.
struct Reports {
    lines: LineReader,
    /// The writing end, kept open: the ranks open it through /proc when they join.
    _end: OwnedFd,
    joined: Vec<bool>,
    statuses: Vec<Option<i32>>,
}

impl Reports {
    /// Returns how an ended process exited, and whether it had joined.
    fn end_of(&mut self, member: MemberId) -> (ExitStatus, bool) {
        for line in self.lines.take(Duration::ZERO) {
            let mut words = line.split(' ');
            let rank = words.next().and_then(|word| word.parse::<usize>().ok());
            let Some(rank) = rank.filter(|&rank| rank < self.joined.len()) else { continue };
            match (words.next(), words.next().and_then(|word| word.parse().ok())) {
                (Some("joined"), _) => self.joined[rank] = true,
                (Some("exited"), Some(status)) => self.statuses[rank] = Some(status),
                _ => {}
            }
        }
        let joined = self.joined[member.index()];
        // A member that had joined and did not report its exit was killed. A process that had not
        // joined cannot report.
        let raw = match self.statuses[member.index()] {
            Some(status) => (status & 0xff) << 8,
            None if joined => Signal::KILL.as_raw(),
            None => 1 << 8,
        };
        (ExitStatus::from_raw(raw), joined)
    }
}

/// Reads whole lines from a pipe.
struct LineReader {
    pipe: std::fs::File,
    /// The beginning of a line whose end has not been read yet.
    rest: Vec<u8>,
}

impl LineReader {
    fn new(pipe: OwnedFd) -> LineReader {
        LineReader { pipe: pipe.into(), rest: Vec::new() }
    }

    /// Returns the lines that have arrived. Waits for the first line, at most for `limit`.
    fn take(&mut self, limit: Duration) -> Vec<String> {
        let mut buffer = [0; 4096];
        let mut limit =
            Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        loop {
            let mut fds = [PollFd::from_borrowed_fd(self.pipe.as_fd(), PollFlags::IN)];
            if !matches!(poll(&mut fds, Some(&limit)), Ok(1..)) {
                break;
            }
            limit = Timespec { tv_sec: 0, tv_nsec: 0 };
            match self.pipe.read(&mut buffer) {
                Ok(len @ 1..) => self.rest.extend_from_slice(&buffer[..len]),
                _ => break,
            }
        }
        let end = self.rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        let lines =
            String::from_utf8_lossy(&self.rest[..end]).lines().map(str::to_string).collect();
        self.rest.drain(..end);
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_has_the_options_for_fault_tolerance() {
        let mpirun = Mpirun::new("mpirun").behind(["nice"]).options(["--map-by", "node"]);
        assert_eq!(
            mpirun.line(6),
            "nice mpirun --with-ft ulfm --oversubscribe --bind-to none --map-by node -n 6"
        );
    }

    #[test]
    fn ranks_use_tcp_only_where_there_may_be_other_hosts() {
        let is_one_host = |line: &str, variable: &str| {
            super::is_one_host(line.split(' ').map(OsStr::new), |name| name == variable)
        };
        assert!(is_one_host("--with-ft ulfm -n 6 ./program", "OMPI_MCA_pml"));
        for line in ["--host a:2,b:2 ./program", "--hostfile list ./program", "-H a,b ./program"] {
            assert!(!is_one_host(line, ""), "{line}");
        }
        assert!(!is_one_host("-n 6 ./program", "SLURM_JOB_ID"));
    }

    #[test]
    fn folders_of_launchers_that_are_gone_are_removed() {
        let parent = tempfile::tempdir().expect("a folder");
        let (mine, gone) =
            (format!("{FOLDER}{}-0", std::process::id()), format!("{FOLDER}4194305-0"));
        for name in [&mine, &gone, &"ompi.123".to_string()] {
            std::fs::create_dir(parent.path().join(name)).expect("a folder");
        }
        remove_leftovers(parent.path());
        let is_there = |name: &str| parent.path().join(name).exists();
        assert!(is_there(&mine) && is_there("ompi.123") && !is_there(&gone));
    }

    #[test]
    fn the_error_names_an_mpirun_that_does_not_start() {
        let launch = |program: &str| {
            Launch::new(2)
                .program("true")
                .output(Output::Capture)
                .mpirun(Mpirun::new(program))
                .start()
        };
        let error = launch("/nonexistent/mpirun").expect_err("there is none").to_string();
        assert!(
            error.contains("/nonexistent/mpirun") && error.contains("cargo xtask mpi"),
            "{error}"
        );
        let error = launch("false").expect_err("`false` ends at once").to_string();
        assert!(error.contains("0 of 2 ranks had begun"), "{error}");
    }
}

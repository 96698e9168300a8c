//! Members that mpirun starts.
//!
//! Their parent is a daemon of mpirun and not the launcher, so what a parent has by itself comes another way: through
//! pipes of the launcher that the ranks open through /proc, which have no names and leave nothing behind. A rank begins as
//! a shell that connects its output, says its process number and becomes the program. From then on the launcher
//! watches and signals the process itself, by a pidfd, whatever mpirun knows or believes. How a process exited is told
//! by the engine on its way out; one that says nothing was killed.
//!
//! The status of mpirun means nothing once a rank has died, and is not looked at after the start.
//!
//! | what ends | what becomes of the rest |
//! |---|---|
//! | a rank | the others go on, and mpirun ends with the last of them |
//! | mpirun, or its daemon on a host | it takes its ranks along; the launcher sees them end |
//! | the launcher, asked to take all along | the kernel tells mpirun, which ends the ranks and then itself |
//!
//! Inside an mpirun that somebody else has started ([`Mpirun::joined`]), rank 0 is the launcher, and starts the member 0 as
//! its child; the other ranks find the same shell script in a folder that they know, and become it ([`follow`]).
//!
//! What Open MPI writes goes into a folder of its own that is removed at the end. Where nobody came to do that, the
//! next start does: the folder's name says whose it was.

use super::output::{Stream, Streams};
use super::running::{Process, Shared, State, keep, new_running};
use super::{Launch, LaunchError, Output, Running};
use crate::engine::MemberId;
use crate::engine::shm::terminate_with_launcher;
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

/// How long mpirun may take until all ranks have begun, and to end after the last of them.
const START_LIMIT: Duration = Duration::from_secs(60);
const END_LIMIT: Duration = Duration::from_secs(10);

/// How much of what mpirun says is kept, for the error if it does not start.
const SAID_LEN_MAX: usize = 64 << 10;

/// Where the engine of a rank tells how its process exits: see `outlast-mpi-sys`.
pub(crate) const REPORT_VARIABLE: &str = "OUTLAST_REPORT";
/// The most bytes of a member's segment, where no memory of the launcher says so.
pub(crate) const SEGMENT_LIMIT_VARIABLE: &str = "OUTLAST_SEGMENT_LIMIT";
/// How many of the last ranks are spares.
pub(crate) const SPARES_VARIABLE: &str = "OUTLAST_SPARES";

/// The beginning of the names of the folders for what Open MPI writes; the number of the process follows.
const FOLDER: &str = "outlast-mpi-";

/// The options without which no job outlasts a death; more ranks than cores are allowed, and none is tied to a core: the
/// engine's background needs one, too.
const OPTIONS: [&str; 5] = ["--with-ft", "ulfm", "--oversubscribe", "--bind-to", "none"];

/// What a job under one daemon needs: that ranks may connect to it from elsewhere, ask it for all they want to know instead of
/// mapping its memory, and take each other for what they are, members of several hosts.
const ONE_DAEMON: [&str; 12] = [
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

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_string()
}

/// A word that a shell takes for what it is.
fn quoted(word: &OsStr) -> OsString {
    let mut text = vec![b'\''];
    text.extend(word.as_bytes().iter().flat_map(|&byte| match byte {
        b'\'' => b"'\\''".to_vec(),
        byte => vec![byte],
    }));
    text.push(b'\'');
    OsString::from_vec(text)
}

/// Which mpirun, and how it is to be called; see [`Launch::mpirun`].
#[derive(Clone, Debug)]
pub struct Mpirun {
    program: PathBuf,
    before: Vec<OsString>,
    options: Vec<OsString>,
    /// The folder in which the other ranks of the mpirun that runs already look for what to do.
    joined: Option<PathBuf>,
    reach: Option<Reach>,
}

/// How ranks get to their hosts when one daemon of mpirun starts them all.
#[derive(Clone, Debug)]
struct Reach {
    hosts: Vec<String>,
    agent: Vec<OsString>,
    is_here: bool,
}

/// The rank of this process and how many there are, if mpirun has started it.
pub fn rank() -> Option<(usize, usize)> {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    Some((number("OMPI_COMM_WORLD_RANK")?, number("OMPI_COMM_WORLD_SIZE")?))
}

/// Where the ranks of the mpirun that runs already meet.
fn meeting_place() -> PathBuf {
    let job = std::env::var("PMIX_NAMESPACE").unwrap_or_default();
    let name: String =
        job.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    std::env::temp_dir().join(format!("outlast-joined-{name}"))
}

/// The name of the script there.
const SCRIPT: &str = "start";

/// In a rank other than 0, inside an mpirun that somebody else has started: becomes the member that rank 0, which calls
/// [`Launch::start`] with [`Mpirun::joined`], wants it to be. Returns only if it cannot.
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

impl Mpirun {
    /// This mpirun, of Open MPI 5 with ULFM: a path, or a name to be looked up in `PATH`.
    pub fn new(program: impl AsRef<Path>) -> Mpirun {
        let program = program.as_ref().to_path_buf();
        Mpirun { program, before: Vec::new(), options: Vec::new(), joined: None, reach: None }
    }

    /// The mpirun that has started this process, as its rank 0; all its ranks become members, see [`follow`].
    pub fn joined() -> Mpirun {
        Mpirun { joined: Some(meeting_place()), ..Mpirun::new("mpirun") }
    }

    /// What stands before mpirun on its line: a program that runs it elsewhere.
    pub fn behind(mut self, words: impl IntoIterator<Item = impl Into<OsString>>) -> Mpirun {
        self.before.extend(words.into_iter().map(Into::into));
        self
    }

    /// Further options of mpirun.
    pub fn options(mut self, words: impl IntoIterator<Item = impl Into<OsString>>) -> Mpirun {
        self.options.extend(words.into_iter().map(Into::into));
        self
    }

    /// Has the ranks run on these hosts, in turn, under the one daemon of mpirun that is on this host: it begins all of them
    /// here, and each goes to its host by an agent like ssh (`AGENT... HOST COMMAND`, the command for a shell there).
    ///
    /// The loss of a host is then the end of its ranks, and of nothing else; with a daemon on each host, mpirun 5.0 ends the
    /// whole job. This host must be reachable from the others, its loss is that of the job, and the program must be at the
    /// same path everywhere. Where the agent only enters another part of this machine and becomes the command
    /// (`is_here`), signals reach the member itself; else they end the agent, which has to end the member.
    pub fn one_daemon(
        mut self,
        hosts: impl IntoIterator<Item = impl Into<String>>,
        agent: impl IntoIterator<Item = impl Into<OsString>>,
        is_here: bool,
    ) -> Mpirun {
        let hosts = hosts.into_iter().map(Into::into).collect();
        self.reach =
            Some(Reach { hosts, agent: agent.into_iter().map(Into::into).collect(), is_here });
        self
    }

    /// The line that starts so many ranks, up to the program.
    fn words(&self, ranks: usize) -> Vec<OsString> {
        let mut words = self.before.clone();
        words.push(self.program.clone().into());
        words.extend(OPTIONS.map(OsString::from));
        words.extend(self.options.iter().cloned());
        if self.reach.is_some() {
            words.extend(ONE_DAEMON.map(OsString::from));
            // By its name: ranks elsewhere are to find it.
            words.extend(["--host".into(), format!("{}:{ranks}", host_name()).into()]);
        }
        words.extend(["-n".into(), ranks.to_string().into()]);
        words
    }

    /// The line that starts so many ranks, up to the program, as one would type it.
    pub fn line(&self, ranks: usize) -> String {
        let words = self.words(ranks);
        words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }
}

/// The pipes between the launcher and the ranks. The ranks open the writing ends through /proc.
struct Pipes {
    begun: (OwnedFd, OwnedFd),
    report: (OwnedFd, OwnedFd),
    /// For each rank: the writing ends of its output, if that goes through pipes.
    output: Vec<[OwnedFd; 2]>,
}

fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> LaunchError {
    move |error| LaunchError::System { what, error: error.into() }
}

fn new_pipe() -> Result<(OwnedFd, OwnedFd), LaunchError> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(system("making a pipe"))
}

/// Makes a line of shell of what the daemon has told this one (the variables of Open MPI and our own), the folder, and the
/// command: each value and each word is quoted, as it may have anything in it.
const FOR_ANOTHER_SHELL: &str = r#"q() { printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")"; }
c="cd $(q "$PWD") || exit"
for v in $(env | sed -n 's/^\(\(OMPI\|OPAL\|PMIX\|PRTE\|OUTLAST\)_[A-Za-z0-9_]*\)=.*/\1/p'); do eval "w=\$$v"; c="$c; export $v=$(q "$w")"; done
c="$c; exec"; for w in "$@"; do c="$c $(q "$w")"; done
"#;

/// What a rank does before it becomes the program. Its arguments are the descriptors of all ranks' output, two for
/// each, and then the program.
fn script(launch: &Launch, pipes: &Pipes, reach: Option<&Reach>) -> OsString {
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
    let Some(Reach { hosts, agent, is_here }) = reach else {
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
    script.push(if *is_here { "exec " } else { "" });
    script.push(agent.join(OsStr::new(" ")));
    script.push(r#" "$h" "$c""#);
    if !is_here {
        // What ends in any other way than well ends like a rank that was killed: mpirun tells the others of nothing else.
        // The engine there cannot tell this launcher how it fared, so it is done here.
        let report = pipes.report.1.as_raw_fd();
        script.push(format!(
            r#"; s=$?; printf '%s joined\n' $r >$d/{report}; [ $s = 0 ] || kill -9 $$; printf '%s exited 0\n' $r >$d/{report}"#
        ));
    }
    script
}

/// The arguments of that script.
fn script_arguments(launch: &Launch, program: &Path, pipes: &Pipes) -> Vec<OsString> {
    let ends = pipes.output.iter().flatten();
    let mut words: Vec<OsString> = ends.map(|end| end.as_raw_fd().to_string().into()).collect();
    // As words of the rank's own command: not every daemon passes the environment on.
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

/// Writes the script for the ranks of the mpirun that runs already, all at once, and calls it for rank 0.
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

fn command(
    launch: &Launch,
    mpirun: &Mpirun,
    program: &Path,
    pipes: &Pipes,
    folder: &Path,
) -> Result<Command, LaunchError> {
    if mpirun.joined.is_some() {
        let written = write_script(folder, launch, program, pipes);
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
    command.arg(script(launch, pipes, mpirun.reach.as_ref())).arg("sh");
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

fn set_environment(mpirun: &mut Command, folder: &Path) {
    mpirun.env("TMPDIR", folder).env("OMPI_MCA_btl_sm_backing_directory", folder);
    mpirun.env("PRTE_MCA_prte_silence_shared_fs", "1");
    // This transport, which nothing here uses, sleeps for a second when it is looked at, in each rank's MPI_Init.
    if std::env::var_os("OMPI_MCA_btl").is_none() {
        mpirun.env("OMPI_MCA_btl", "^ofi");
    }
    // In a container everybody is root, and mpirun refuses to run as root unless told twice.
    for name in ["OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"] {
        mpirun.env(name, "1").env(format!("{name}_CONFIRM"), "1");
    }
}

/// Gives an mpirun that is not started by [`Launch`] what it needs here: the consent to run as root, no transport
/// that is slow to begin, and a folder of its own for what it writes, which is removed when the result is dropped, after
/// mpirun has ended.
///
/// Left to itself it writes into /tmp, under its process number: what one that was killed left there makes each later
/// one with that number fail, with "The PMIx server's listener thread failed to start".
pub fn prepare(mpirun: &mut Command) -> Result<Folder, LaunchError> {
    let folder = Folder::new()?;
    set_environment(mpirun, &folder.0);
    Ok(folder)
}

/// A folder for what Open MPI writes, in memory where that is possible; removed when dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder, LaunchError> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("{FOLDER}{}-{number}", std::process::id());
        let mut result = Err(std::io::Error::other("no folder"));
        for parent in [Path::new("/dev/shm"), &std::env::temp_dir()] {
            remove_leftovers(parent);
            result = std::fs::create_dir(parent.join(&name)).map(|()| Folder(parent.join(&name)));
            if result.is_ok() {
                break;
            }
        }
        result.map_err(|error| LaunchError::System { what: "making a folder for Open MPI", error })
    }
}

impl Folder {
    /// Where the other ranks look. What is there is of a job that has ended: no two have one number at a time.
    fn meeting(place: &Path) -> Result<Folder, LaunchError> {
        let _ = std::fs::remove_dir_all(place);
        let made = std::fs::create_dir(place).map(|()| Folder(place.to_path_buf()));
        made.map_err(|error| LaunchError::System { what: "making a folder for the ranks", error })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
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

/// mpirun while it runs: ended and waited for when dropped, within a bound.
struct Started {
    child: Child,
    said: Arc<Mutex<Vec<u8>>>,
    /// Goes after mpirun has.
    _folder: Folder,
}

impl Started {
    /// Starts mpirun and a thread that takes what it says, so that it never waits for a reader.
    fn new(mut command: Command, folder: Folder, program: &Path) -> Result<Started, LaunchError> {
        let mut child = command.spawn().map_err(|error| LaunchError::Mpirun {
            reason: format!(
                "`{}` does not start: {error}; set MPIRUN to the mpirun of Open MPI 5, or type: cargo xtask mpi",
                program.display()
            ),
        })?;
        let said: Arc<Mutex<Vec<u8>>> = Arc::default();
        let pipes =
            [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)];
        for pipe in pipes.into_iter().flatten() {
            let said = said.clone();
            let body = move || {
                let (mut pipe, mut buffer) = (std::fs::File::from(pipe), [0; 4096]);
                while let Ok(len @ 1..) = pipe.read(&mut buffer) {
                    let mut said = said.lock().unwrap_or_else(|e| e.into_inner());
                    let room = SAID_LEN_MAX.saturating_sub(said.len());
                    said.extend_from_slice(&buffer[..len.min(room)]);
                }
            };
            let thread = std::thread::Builder::new().name("outlast-mpirun".to_string()).spawn(body);
            thread.map_err(|error| LaunchError::System {
                what: "starting a thread for mpirun",
                error,
            })?;
        }
        Ok(Started { child, said, _folder: folder })
    }

    /// The error that mpirun did not bring the ranks up.
    fn failed(&self, what: &str) -> LaunchError {
        // What it said may come a moment after its end.
        std::thread::sleep(Duration::from_millis(100));
        let said = self.said.lock().unwrap_or_else(|e| e.into_inner());
        LaunchError::Mpirun { reason: format!("{what}\n{}", String::from_utf8_lossy(&said).trim()) }
    }

    /// Whether it has ended within this time.
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

impl Drop for Started {
    fn drop(&mut self) {
        // Asked first, so that it ends what it has started on other hosts.
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

/// Takes whole lines out of a pipe as they come.
struct LineReader {
    pipe: std::fs::File,
    rest: Vec<u8>,
}

impl LineReader {
    fn new(pipe: OwnedFd) -> LineReader {
        LineReader { pipe: pipe.into(), rest: Vec::new() }
    }

    /// The lines that have come, waiting for the first at most so long.
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

/// Waits until every rank has said which process it is.
fn wait_for_ranks(
    started: &mut Started,
    begun: &mut LineReader,
    ranks: usize,
) -> Result<Vec<u32>, LaunchError> {
    let until = Instant::now() + START_LIMIT;
    let mut pids: Vec<Option<u32>> = vec![None; ranks];
    while pids.iter().any(Option::is_none) {
        // Looked at before the lines: what a rank has said before mpirun ended is not missed.
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

/// How the ranks exited, as their engines have told.
struct Reports {
    lines: LineReader,
    /// Kept open: the ranks open it through /proc when they join.
    _end: OwnedFd,
    joined: Vec<bool>,
    statuses: Vec<Option<i32>>,
}

impl Reports {
    /// How a process that has ended did so, and whether it had joined.
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
        // One that had joined and says nothing on its way out was killed. One that had not cannot have said anything.
        let raw = match self.statuses[member.index()] {
            Some(status) => (status & 0xff) << 8,
            None if joined => Signal::KILL.as_raw(),
            None => 1 << 8,
        };
        (ExitStatus::from_raw(raw), joined)
    }
}

/// What is left to do once the ranks run.
struct Up {
    started: Started,
    streams: Streams,
    shared: Arc<Shared>,
    reports: Reports,
}

fn bring_up(launch: &Launch, mpirun: &Mpirun, program: &Path) -> Result<Up, LaunchError> {
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
    let command = command(launch, mpirun, program, &pipes, &folder.0)?;
    let mut started = Started::new(command, folder, &mpirun.program)?;
    let mut begun = LineReader::new(pipes.begun.0);
    let pids = wait_for_ranks(&mut started, &mut begun, ranks)?;
    // The ranks have opened theirs: their output ends when they do.
    pipes.output.clear();
    let mut processes = Vec::with_capacity(ranks);
    for pid in pids {
        let number =
            Pid::from_raw(pid as i32).ok_or_else(|| started.failed("a rank said no number"))?;
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
    Ok(Up { started, streams, shared, reports })
}

/// Starts the job. One thread starts mpirun and stays until all is over, since the kernel ties "die with the launcher" to
/// the thread that started a process.
pub(super) fn start(
    launch: Launch,
    mpirun: Mpirun,
    program: PathBuf,
) -> Result<Running, LaunchError> {
    new_running(move |report| match bring_up(&launch, &mpirun, &program) {
        Ok(Up { mut started, streams, shared, mut reports }) => match streams.start(&shared) {
            Ok(()) => {
                let _ = report.send(Ok(shared.clone()));
                keep(&shared, |member| reports.end_of(member));
                started.ends_within(END_LIMIT);
            }
            Err(error) => drop(report.send(Err(error))),
        },
        Err(error) => drop(report.send(Err(error))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_one_that_outlasts_deaths() {
        let mpirun = Mpirun::new("mpirun").behind(["nice"]).options(["--map-by", "node"]);
        assert_eq!(
            mpirun.line(6),
            "nice mpirun --with-ft ulfm --oversubscribe --bind-to none --map-by node -n 6"
        );
    }

    #[test]
    fn leftovers_of_the_dead_are_removed() {
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
    fn an_mpirun_that_is_none_is_named() {
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
        let error = launch("false").expect_err("it ends at once").to_string();
        assert!(error.contains("0 of 2 ranks had begun"), "{error}");
    }
}

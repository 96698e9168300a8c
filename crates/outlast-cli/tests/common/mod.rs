//! What all tests of the command use: running the command under a deadline, and inspecting
//! processes.

// Each test file is a program of its own and uses only a part of this.
#![allow(dead_code)]

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest wait of a test. A hang is a failure and is never retried.
pub(crate) const LIMIT: Duration = Duration::from_secs(40);

/// The command under test.
pub(crate) const OUTLAST: &str = env!("CARGO_BIN_EXE_outlast");

/// A started command. Threads read its output as it comes. The command is killed when this is
/// dropped.
pub(crate) struct Started {
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }

    /// The lines of standard error that contain `text`.
    pub(crate) fn lines_with(&self, text: &str) -> Vec<&str> {
        self.stderr.lines().filter(|line| line.contains(text)).collect()
    }
}

fn reader(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Starts `outlast` with these arguments.
pub(crate) fn start(arguments: &[&str]) -> Started {
    let mut command = Command::new(OUTLAST);
    command.args(arguments);
    Started::of(command)
}

/// Runs `outlast` with these arguments to its end.
pub(crate) fn outlast(arguments: &[&str]) -> Finished {
    start(arguments).finish()
}

impl Started {
    /// Starts a command.
    pub(crate) fn of(mut command: Command) -> Started {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command under test starts");
        let stdout = child.stdout.take().map(reader);
        let stderr = child.stderr.take().map(reader);
        Started { child, stdout, stderr }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        send(self.pid(), signal);
    }

    /// Waits for its end, and for the end of all processes that write to its output.
    pub(crate) fn finish(mut self) -> Finished {
        let until = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                break status;
            }
            assert!(Instant::now() < until, "the command did not end within {LIMIT:?}");
            std::thread::sleep(Duration::from_millis(5));
        };
        let read = |handle: Option<JoinHandle<String>>| {
            let handle = handle.expect("read once");
            wait_until("the end of its output", || handle.is_finished());
            handle.join().expect("the reader does not panic")
        };
        let (stdout, stderr) = (read(self.stdout.take()), read(self.stderr.take()));
        Finished { status, stdout, stderr }
    }

    /// The processes that it has started, once there are `count` of them.
    pub(crate) fn children(&self, count: usize) -> Vec<u32> {
        let mut found = Vec::new();
        wait_until("the members to start", || {
            found = children(self.pid());
            found.len() == count
        });
        found
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a condition holds, under the deadline.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < until, "waited {LIMIT:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal to a process that this test has started, directly or not.
pub(crate) fn send(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a pid is positive");
    // The process may have ended by itself.
    let _ = rustix::process::kill_process(pid, signal);
}

/// The parent of a process; `None` if the process is gone or only waits to be reaped.
fn status(pid: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    if state == "Z" || state == "X" { None } else { fields.next()?.parse().ok() }
}

/// The processes that a process has started and that still run.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc is there").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
    let mut children: Vec<u32> = pids.filter(|&pid| status(pid) == Some(parent)).collect();
    children.sort_unstable();
    children
}

/// Whether a process has ended.
pub(crate) fn is_over(pid: u32) -> bool {
    status(pid).is_none()
}

/// Whether a member has joined: it maps the job's memory and watches it in the background.
pub(crate) fn maps_job_memory(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/maps"))
        .is_ok_and(|maps| maps.contains("/memfd:outlast"))
}

/// The names of Outlast in /dev/shm that no running process owns. There must never be any.
pub(crate) fn shared_memory_names() -> Vec<String> {
    let entries = std::fs::read_dir(Path::new("/dev/shm")).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    // A name with the id of a running process belongs to another job.
    let is_in_use = |name: &String| {
        let owner = name.strip_prefix("outlast-mpi-").and_then(|rest| rest.split('-').next());
        owner.is_some_and(|pid| Path::new("/proc").join(pid).exists())
    };
    names.filter(|name| name.contains("outlast") && !is_in_use(name)).collect()
}

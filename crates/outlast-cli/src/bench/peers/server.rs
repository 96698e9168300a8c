//! The processes of a peer. They end when they are dropped, and also when this process is
//! interrupted or killed: each begins as this program, which asks the kernel for that and then
//! becomes the server. Their files are in a folder in memory, if there is one.

use anyhow::{Context, bail, ensure};
use clap::Args;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a server may take to start, and to answer.
pub(super) const START: Duration = Duration::from_secs(60);

/// A server of a benchmark; started by it
#[derive(Args)]
pub(crate) struct PeerServer {
    #[arg(long)]
    parent: i32,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<std::ffi::OsString>,
}

impl PeerServer {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // The parent may have died before the kernel knew.
        let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
        ensure!(parent == Some(self.parent), "the benchmark has ended");
        let error = Command::new(&self.command[0]).args(&self.command[1..]).exec();
        Err(error).with_context(|| format!("starting {}", self.command[0].display()))
    }
}

/// A command that runs a program which ends with this process.
pub(in crate::bench) fn command(program: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("this program's own path")?);
    command.args(["peer-server", "--parent", &std::process::id().to_string(), "--"]).arg(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

/// Servers and their folder.
pub(super) struct Servers {
    children: Vec<Child>,
    pub(super) folder: PathBuf,
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
        // The last peer removes the folder of all peers; it is not empty before that.
        let _ = self.folder.parent().map(std::fs::remove_dir);
    }
}

impl Servers {
    /// Makes a folder for a peer, which only this user may read.
    pub(super) fn new(name: &str) -> anyhow::Result<Servers> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = folder_of_peers()?.join(format!("{name}-{number}"));
        std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        Ok(Servers { children: Vec::new(), folder })
    }

    pub(super) fn add(&mut self, command: &mut Command) -> anyhow::Result<&mut Child> {
        let child = command.spawn().context("starting a server")?;
        self.children.push(child);
        self.children.last_mut().context("it was added")
    }

    /// An error if a server has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        for child in &mut self.children {
            if let Some(status) = child.try_wait()? {
                bail!("a server ended by itself ({status})");
            }
        }
        Ok(())
    }

    /// Connects to the socket of a server that is starting.
    pub(super) fn connect(&mut self, socket: &Path) -> anyhow::Result<UnixStream> {
        let until = Instant::now() + START;
        loop {
            match UnixStream::connect(socket) {
                Ok(stream) => {
                    // An answer that takes longer fails the measurement.
                    stream.set_read_timeout(Some(START))?;
                    return Ok(stream);
                }
                Err(error) if Instant::now() >= until => {
                    return Err(error).context("the server did not open its socket");
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
            self.check()?;
        }
    }
}

/// A port that no process listens on.
pub(super) fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// The folder of all peers of this process. An interruption removes it; what a killed benchmark
/// left is removed by the next.
fn folder_of_peers() -> anyhow::Result<PathBuf> {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    const PREFIX: &str = "bench-peers-";
    let base = Some(PathBuf::from("/dev/shm")).filter(|base| base.is_dir());
    let base = base.unwrap_or_else(std::env::temp_dir);
    let folder = base.join(format!("{PREFIX}{}", std::process::id()));
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = std::fs::DirBuilder::new();
    builder.mode(0o700).recursive(true).create(&folder)?;
    if FOLDER.set(folder.clone()).is_ok() {
        for entry in std::fs::read_dir(&base).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let pid = name.strip_prefix(PREFIX).filter(|pid| pid.parse::<u32>().is_ok());
            if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let folder = folder.clone();
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                eprintln!("outlast: interrupted; the peers are ended");
                let _ = std::fs::remove_dir_all(&folder);
                std::process::exit(128 + signal);
            }
        });
    }
    Ok(folder)
}

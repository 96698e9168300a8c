//! The processes of a peer. They end when they are dropped, and also when this process is
//! interrupted or killed: each begins as this program, which asks the kernel for that and then
//! becomes the server. Their files are in a folder in memory, if there is one.

use crate::bench::interrupt::{OnInterrupt, on_interrupt};
use crate::hosts::{Hosts, Network};
use anyhow::{Context, bail, ensure};
use clap::Args;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a server may take to start, and to answer.
pub(in crate::bench) const START: Duration = Duration::from_secs(60);

/// Where the servers of a peer run.
pub(in crate::bench) enum Place<'a> {
    /// On this machine, on its loopback addresses.
    Here,
    /// Each server on a host of its own, of hosts that are made of this machine.
    Hosts(&'a Hosts),
}

impl Place<'_> {
    pub(super) fn is_far(&self) -> bool {
        matches!(self, Place::Hosts(_))
    }

    /// An address that a server can listen on.
    pub(super) fn free(&self, number: usize) -> anyhow::Result<SocketAddr> {
        match self {
            Place::Here => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?))),
            Place::Hosts(hosts) => {
                let address: Ipv4Addr = hosts.address_of(number)?.parse()?;
                let network = hosts.network(number);
                network.run(move || Ok(TcpListener::bind((address, 0))?.local_addr()?))
            }
        }
    }

    /// A command that runs a server which ends with this process.
    pub(super) fn command(&self, number: usize, program: &Path) -> anyhow::Result<Command> {
        match self {
            Place::Here => command(program),
            Place::Hosts(hosts) => {
                let [enter, host] = hosts.enter(number as u16);
                let mut command = command(Path::new(&enter))?;
                command.arg(host).arg(program);
                Ok(command)
            }
        }
    }

    /// Where callers are; over several hosts, on the first host.
    pub(super) fn callers(&self) -> Callers {
        match self {
            Place::Here => Callers(None),
            Place::Hosts(hosts) => Callers(Some(hosts.network(0))),
        }
    }
}

/// Where the callers of a peer are: in the network of this process, or of a host.
pub(super) struct Callers(Option<Network>);

impl Callers {
    pub(super) fn connect(&self, address: SocketAddr) -> anyhow::Result<TcpStream> {
        let connect = move || {
            let stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            Ok(stream)
        };
        self.0.as_ref().map_or_else(connect, |network| network.run(connect))
    }
}

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
pub(in crate::bench) struct Servers {
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

    /// Starts a server. What it writes to standard error is kept, for the reason of its end.
    pub(super) fn add(&mut self, command: &mut Command) -> anyhow::Result<&mut Child> {
        let errors = File::create(self.errors_of(self.children.len()))?;
        let child = command.stderr(errors).spawn().context("starting a server")?;
        self.children.push(child);
        self.children.last_mut().context("it was added")
    }

    /// The processes of the servers, in the order of their start.
    pub(in crate::bench) fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    /// Kills a server with SIGKILL.
    pub(in crate::bench) fn kill(&mut self, number: usize) -> anyhow::Result<()> {
        let child = self.children.get_mut(number).context("there is no such server")?;
        child.kill().context("killing a server")
    }

    fn errors_of(&self, number: usize) -> PathBuf {
        self.folder.join(format!("errors-{number}"))
    }

    /// An error with the last words of a server, if it has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        for number in 0..self.children.len() {
            if let Some(status) = self.children[number].try_wait()? {
                let said = std::fs::read(self.errors_of(number)).unwrap_or_default();
                let said = String::from_utf8_lossy(&said).into_owned();
                let said = said.lines().rev().find(|line| !line.trim().is_empty());
                bail!("a server ended by itself ({status}): {}", said.unwrap_or("it said nothing"));
            }
        }
        Ok(())
    }

    /// Why a server has ended that has just closed a connection, if it has ended.
    pub(super) fn reason(&mut self) -> Option<anyhow::Error> {
        // The kernel closes the connection some time before the end can be seen.
        for _ in 0..50 {
            if let Err(reason) = self.check() {
                return Some(reason);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
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
    static FOLDER: OnceLock<OnInterrupt> = OnceLock::new();
    const PREFIX: &str = "bench-peers-";
    let base = Some(PathBuf::from("/dev/shm")).filter(|base| base.is_dir());
    let base = base.unwrap_or_else(std::env::temp_dir);
    let folder = base.join(format!("{PREFIX}{}", std::process::id()));
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = std::fs::DirBuilder::new();
    builder.mode(0o700).recursive(true).create(&folder)?;
    if FOLDER.get().is_none() {
        let removed = folder.clone();
        let _ = FOLDER.set(on_interrupt(move || {
            let _ = std::fs::remove_dir_all(&removed);
        })?);
        for entry in std::fs::read_dir(&base).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let pid = name.strip_prefix(PREFIX).filter(|pid| pid.parse::<u32>().is_ok());
            if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
    Ok(folder)
}

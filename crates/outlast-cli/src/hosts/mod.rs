//! Several hosts out of one machine, and jobs on them.
//!
//! A host is a network namespace with a host name, an address and a folder for temporary files of its own, so that Open MPI
//! takes it for another node and speaks TCP to it. All of them share the machine's processes and files. Their
//! network is a bridge in one more namespace: nothing of it is to be seen, or reached, from outside.
//!
//! | who ends | what is left |
//! |---|---|
//! | the command, also by Ctrl-C | nothing |
//! | the command, by kill -9 | the namespaces and what runs in them, until the next start: their names say whose they were |

use crate::quantity::{self, EngineName};
use anyhow::{Context, bail, ensure};
use clap::Args;
use outlast::launch::{Launch, Mpirun, follow, rank};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The most hosts: one machine has to carry them all.
const HOSTS_MAX: u16 = 16;

/// The option of mpirun with which its daemons do not give up each other after a cut link, which would end the job.
pub(crate) const PATIENT_DAEMONS: [&str; 3] = ["--prtemca", "oob_tcp_keepalive_time", "0"];

/// The beginning of the names of namespaces and folders; the number of the process that made them follows.
const PREFIX: &str = "outlast-";

/// The engine below a job, and where it runs.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The engine below the job: shm, or mpi in builds with the feature `mpi`
    #[arg(long, value_name = "NAME", value_parser = quantity::engine, default_value = "shm")]
    pub(crate) engine: EngineName,
    /// With the mpi engine: make so many hosts of this machine, out of network namespaces, and spread the job over
    /// them; needs root
    #[arg(long, value_name = "H", value_parser = clap::value_parser!(u16).range(1..=i64::from(HOSTS_MAX)))]
    pub(crate) hosts: Option<u16>,
}

impl Place {
    /// Ends with status 2 if the arguments contradict each other.
    pub(crate) fn check(self, subcommand: &str) {
        if self.engine == EngineName::Shm && self.hosts.is_some() {
            crate::usage_error(
                subcommand,
                "the shm engine is for one machine; with --hosts say --engine mpi as well",
            );
        }
        if self.hosts.is_some() && rank().is_some() {
            crate::usage_error(
                subcommand,
                "inside mpirun the hosts are those of mpirun; leave --hosts out",
            );
        }
    }

    /// Inside an mpirun that the user has started: becomes a member in all ranks but 0, which goes on as the command;
    /// and how many ranks there are.
    pub(crate) fn join_mpirun(self) -> anyhow::Result<Option<usize>> {
        match rank().filter(|_| self.engine == EngineName::Mpi) {
            None => Ok(None),
            Some((0, ranks)) => Ok(Some(ranks)),
            Some(_) => Err(follow().into()),
        }
    }

    /// Has the job run there. The hosts are to be kept until it has ended. Says how it is started.
    pub(crate) fn prepare(
        self,
        launch: Launch,
        ranks: usize,
    ) -> anyhow::Result<(Launch, Option<Hosts>)> {
        self.prepare_with(launch, ranks, &[])
    }

    /// The same with further options of mpirun.
    pub(crate) fn prepare_with(
        self,
        launch: Launch,
        ranks: usize,
        options: &[&str],
    ) -> anyhow::Result<(Launch, Option<Hosts>)> {
        if self.engine == EngineName::Shm {
            return Ok((launch.env("OUTLAST_ENGINE", "shm"), None));
        }
        if rank().is_some() {
            eprintln!("outlast: {ranks} ranks of the mpirun that has started this command");
            return Ok((launch.mpirun(Mpirun::joined()), None));
        }
        let hosts = self.hosts.map(Hosts::new).transpose()?;
        let mut mpirun = Mpirun::new(mpirun()).options(options);
        if let Some(hosts) = &hosts {
            mpirun = mpirun.behind(hosts.enter(0)).options(hosts.mpirun_options());
        }
        eprintln!("outlast: {} ...", mpirun.line(ranks));
        Ok((launch.mpirun(mpirun), hosts))
    }

    /// The arguments that say the same.
    pub(crate) fn arguments(self) -> String {
        let hosts = self.hosts.map_or(String::new(), |hosts| format!(" --hosts {hosts}"));
        format!("--engine {}{hosts}", self.engine)
    }
}

/// Hosts to be made of this machine, or those that are listed in a file.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    Made(u16),
    Listed(PathBuf),
}

/// Reads a number of hosts, or the name of a file.
pub(crate) fn wanted(text: &str) -> Result<Wanted, String> {
    match text.parse::<u16>() {
        Ok(count) if (1..=HOSTS_MAX).contains(&count) => Ok(Wanted::Made(count)),
        Ok(count) => Err(format!("{count} hosts; 1 to {HOSTS_MAX} can be made of one machine")),
        Err(_) if Path::new(text).is_file() => Ok(Wanted::Listed(text.into())),
        Err(_) => Err(format!("`{text}` is no number of hosts and no file that lists them")),
    }
}

/// The names of the hosts in a file: the first word of each line, `#` begins a remark. Other words, such as `slots=4`, are
/// for mpirun.
fn read_names(file: &Path) -> anyhow::Result<Vec<String>> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let names: Vec<String> =
        lines.filter_map(|line| line.split_whitespace().next()).map(str::to_string).collect();
    // It becomes a word of a command that ssh reads.
    let is_name = |name: &String| {
        !name.starts_with('-')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-:@[]".contains(c))
    };
    if let Some(name) = names.iter().find(|name| !is_name(name)) {
        bail!("`{name}` in {} is no name of a host", file.display());
    }
    ensure!(!names.is_empty(), "{} lists no hosts", file.display());
    Ok(names)
}

/// ssh that neither asks nor waits for a host that is gone: a rank there is to be dead soon.
const SSH: [&str; 9] = [
    "ssh",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=10",
    "-o",
    "ServerAliveInterval=1",
    "-o",
    "ServerAliveCountMax=3",
];

/// Has a job run on the hosts that a file lists, under one daemon of mpirun. The file of [`HostsCommand`] is beside the agent that
/// enters these hosts; others are reached by ssh.
pub(crate) fn on_listed(launch: Launch, ranks: usize, file: &Path) -> anyhow::Result<Launch> {
    let names = read_names(file)?;
    let folder = file.parent().unwrap_or(Path::new("."));
    let is_here = folder.file_name().is_some_and(|name| {
        let name = name.to_string_lossy();
        name.starts_with(PREFIX) && name.ends_with("-hosts") && folder.join("agent").is_file()
    });
    let agent: Vec<OsString> =
        if is_here { vec![folder.join("agent").into()] } else { SSH.map(OsString::from).to_vec() };
    let mpirun = Mpirun::new(mpirun()).one_daemon(names, agent, is_here);
    eprintln!("outlast: {} ...", mpirun.line(ranks));
    Ok(launch.mpirun(mpirun))
}

/// The mpirun to use: what MPIRUN names, that of the library which this program was built with, or that of the PATH.
fn mpirun() -> PathBuf {
    let built_with =
        || option_env!("OUTLAST_MPIRUN").map(PathBuf::from).filter(|path| path.exists());
    let named = std::env::var_os("MPIRUN").filter(|path| !path.is_empty()).map(PathBuf::from);
    named.or_else(built_with).unwrap_or_else(|| "mpirun".into())
}

/// Hosts, until they are dropped.
pub(crate) struct Hosts {
    count: u16,
    /// Where their scripts and temporary files are.
    folder: PathBuf,
    /// What their namespaces' names begin with.
    prefix: String,
}

fn host_name(index: u16) -> String {
    format!("host{}", index + 1)
}

/// Runs a command to its end; what it said if it failed.
fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let program = command.get_program().to_string_lossy().into_owned();
    let output = output.with_context(|| {
        format!("cannot run `{program}` (Debian: apt install iproute2 util-linux), without which there are no hosts")
    })?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn ip(line: &str) -> anyhow::Result<String> {
    run(Command::new("ip").args(line.split(' '))).with_context(|| format!("`ip {line}` failed"))
}

impl Hosts {
    pub(crate) fn new(count: u16) -> anyhow::Result<Hosts> {
        remove_leftovers();
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let folder = std::env::temp_dir().join(format!("{prefix}hosts"));
        std::fs::create_dir(&folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        // From here on a failure takes down what is there.
        let hosts = Hosts { count, folder, prefix };
        hosts.write_files()?;
        hosts.make_namespaces().context(
            "cannot make hosts out of network namespaces: that needs root, with the rights to make namespaces \
             (in a container: --cap-add NET_ADMIN --cap-add SYS_ADMIN); without --hosts the job runs on one host",
        )?;
        Ok(hosts)
    }

    fn make_namespaces(&self) -> anyhow::Result<()> {
        let bridge = format!("{}net", self.prefix);
        ip(&format!("netns add {bridge}"))?;
        ip(&format!("-n {bridge} link add br0 type bridge"))?;
        ip(&format!("-n {bridge} link set br0 up"))?;
        for index in 0..self.count {
            let host = self.namespace(index);
            ip(&format!("netns add {host}"))?;
            ip(&format!("-n {bridge} link add v{index} type veth peer name eth0 netns {host}"))?;
            ip(&format!("-n {bridge} link set v{index} master br0 up"))?;
            ip(&format!("-n {host} addr add {}/24 dev eth0", address(index)))?;
            ip(&format!("-n {host} link set eth0 up"))?;
            ip(&format!("-n {host} link set lo up"))?;
        }
        Ok(())
    }

    /// The list of names, the list for mpirun, and two scripts: one that enters a host, and one that does it in the way
    /// of ssh.
    fn write_files(&self) -> anyhow::Result<()> {
        let folder = &self.folder;
        let write = |name: &str, text: String| {
            std::fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))
        };
        let all = || (0..self.count).map(|index| (host_name(index), address(index)));
        let names = all().map(|(name, address)| format!("{address} {name}\n")).collect::<String>();
        write("hosts", format!("127.0.0.1 localhost\n{names}"))?;
        write("hostfile", all().map(|(name, _)| format!("{name} slots=128\n")).collect())?;
        let (place, prefix) = (folder.display(), &self.prefix);
        write(
            "enter",
            format!(
                "#!/bin/sh\nhost=$1; shift\nexec ip netns exec \"{prefix}$host\" \
                 unshare --uts --mount --propagation private sh -c 'hostname \"$0\"; \
                 mount --bind {place}/hosts /etc/hosts; export TMPDIR={place}/\"$0\"; mkdir -p \"$TMPDIR\"; exec \"$@\"' \
                 \"$host\" \"$@\"\n"
            ),
        )?;
        write(
            "agent",
            format!(
                "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=$1; shift\n\
                 exec {place}/enter \"$host\" sh -c \"$*\"\n"
            ),
        )?;
        for script in ["enter", "agent"] {
            let permissions = std::fs::Permissions::from_mode(0o700);
            std::fs::set_permissions(folder.join(script), permissions)
                .context("making a script executable")?;
        }
        Ok(())
    }

    fn namespace(&self, index: u16) -> String {
        format!("{}{}", self.prefix, host_name(index))
    }

    /// Cuts the link of a host: it reaches no other one, and its processes go on.
    pub(crate) fn cut(&self, index: u16) -> anyhow::Result<()> {
        ip(&format!("-n {}net link set v{index} down", self.prefix)).map(drop)
    }

    /// What stands before a command that is to run on this host.
    pub(crate) fn enter(&self, index: u16) -> [OsString; 2] {
        [self.folder.join("enter").into(), host_name(index).into()]
    }

    /// The options with which mpirun spreads its ranks over the hosts.
    pub(crate) fn mpirun_options(&self) -> Vec<OsString> {
        let file = |name: &str| OsString::from(self.folder.join(name));
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        [
            words(&["--prtemca", "plm_ssh_agent"]),
            vec![file("agent")],
            words(&["--hostfile"]),
            vec![file("hostfile")],
            words(&["--map-by", "node"]),
            // A daemon would else begin a session of its own, to which the kernel's autogroups deal out time as to one process:
            // beside others that compute, all of a host were seen not to run for 15 s and more.
            words(&["--leave-session-attached"]),
        ]
        .concat()
    }
}

/// The address of a host, in a network that nobody else is in.
fn address(index: u16) -> String {
    format!("10.77.0.{}", index + 1)
}

impl Drop for Hosts {
    fn drop(&mut self) {
        take_down(&self.prefix, &self.folder);
    }
}

/// Ends what runs in the namespaces of this prefix, removes them and the folder.
fn take_down(prefix: &str, folder: &Path) {
    for namespace in namespaces().iter().filter(|name| name.starts_with(prefix)) {
        let pids = ip(&format!("netns pids {namespace}")).unwrap_or_default();
        for pid in
            pids.lines().filter_map(|pid| rustix::process::Pid::from_raw(pid.trim().parse().ok()?))
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        if let Err(error) = ip(&format!("netns del {namespace}")) {
            eprintln!("outlast: the namespace {namespace} is left behind: {error:#}");
        }
    }
    // A process that was just killed may still write there for a moment.
    for _ in 0..20 {
        if std::fs::remove_dir_all(folder).is_ok() || !folder.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    eprintln!("outlast: the folder {} is left behind", folder.display());
}

fn namespaces() -> Vec<String> {
    let list = ip("netns list").unwrap_or_default();
    list.lines().filter_map(|line| Some(line.split(' ').next()?.to_string())).collect()
}

/// Takes down the hosts of commands that are gone.
fn remove_leftovers() {
    let of_the_dead = |name: &str| {
        let pid = name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok()?;
        (!Path::new("/proc").join(pid.to_string()).exists()).then(|| format!("{PREFIX}{pid}-"))
    };
    for prefix in namespaces().iter().filter_map(|name| of_the_dead(name)) {
        take_down(&prefix, &std::env::temp_dir().join(format!("{prefix}hosts")));
    }
}

const EXAMPLES: &str = "\
Examples:
  A shell on the first of three hosts, with the addresses of all in /etc/hosts:
      outlast hosts 3 -- sh
  A program of yours over MPI on three hosts ({options} stands for the options of mpirun that know them):
      outlast hosts 3 -- mpirun {options} --with-ft ulfm -n 6 ./program

The variable OUTLAST_MPIRUN_OPTIONS has those options, too, and OUTLAST_HOSTFILE the name of the file that lists the hosts, for
`outlast run --engine mpi --hosts \"$OUTLAST_HOSTFILE\"`. It needs root. Everything is taken down at the end, also after Ctrl-C.";

/// Make several hosts of this machine, out of network namespaces, and run a command on the first of them.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HostsCommand {
    /// How many
    #[arg(value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(HOSTS_MAX)))]
    count: u16,
    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

impl HostsCommand {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, interrupted.clone()).context("catching signals")?;
        }
        let hosts = Hosts::new(self.count)?;
        let [enter, first] = hosts.enter(0);
        let words = self
            .command
            .into_iter()
            .flat_map(|word| if word == "{options}" { hosts.mpirun_options() } else { vec![word] });
        let options = hosts.mpirun_options().join(&OsString::from(" "));
        let mut command = Command::new(enter);
        command.arg(first).args(words).env("OUTLAST_MPIRUN_OPTIONS", options);
        command.env("OUTLAST_HOSTFILE", hosts.folder.join("hostfile"));
        let mut child = command.spawn().context("entering a host")?;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if interrupted.load(Ordering::Acquire) {
                // A terminal has told the child, too; a moment for it to end what it has started.
                std::thread::sleep(Duration::from_millis(500));
                let _ = child.kill();
                child.wait()?;
                drop(hosts);
                bail!("interrupted; the hosts are taken down");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        ensure!(status.success(), "the command failed ({status})");
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_lists_hosts() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let read = |text: &str| {
            std::fs::write(file.path(), text).expect("written");
            read_names(file.path()).map_err(|error| error.to_string())
        };
        assert_eq!(
            read("# all\nnode1 slots=4\n\n  me@node2 # the other\n"),
            Ok(vec!["node1".into(), "me@node2".into()])
        );
        for (text, reason) in
            [("", "lists no hosts"), ("-oProxyCommand=x", "is no name"), ("a;b", "is no name")]
        {
            assert!(read(text).is_err_and(|error| error.contains(reason)), "{text}");
        }
        assert!(matches!(wanted("3"), Ok(Wanted::Made(3))));
        assert!(wanted("0").is_err() && wanted("no/such/file").is_err());
        assert!(matches!(wanted(&file.path().to_string_lossy()), Ok(Wanted::Listed(_))));
    }

    #[test]
    fn only_the_hosts_of_the_dead_are_leftovers() {
        // As in `remove_leftovers`: the names of namespaces are those of living and of dead processes.
        let place = Place { engine: EngineName::Mpi, hosts: Some(3) };
        assert_eq!(place.arguments(), "--engine mpi --hosts 3");
        assert_eq!((host_name(0), address(2)), ("host1".to_string(), "10.77.0.3".to_string()));
    }
}

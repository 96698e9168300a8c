//! Several hosts made of this machine, and jobs on them.
//!
//! A host is a network namespace with a host name, an address and a folder for temporary files of
//! its own: Open MPI takes it for another node and speaks TCP to it. All hosts share the machine's
//! processes and files. Their network is a bridge in a further namespace, which cannot be seen or
//! reached from outside.
//!
//! | what ends | what is left |
//! |---|---|
//! | the command, also by Ctrl-C | nothing |
//! | the command, by kill -9 | the namespaces and their processes, until the next start |
//!
//! The names of namespaces and folders carry the process id of the command that made them, so the
//! next start finds and removes what a killed command has left.

mod command;
mod engine_args;
mod listed;

use anyhow::{Context, bail};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub(crate) use command::HostsCommand;
pub(crate) use engine_args::{EngineArgs, PATIENT_DAEMONS};
pub(crate) use listed::{HostsWanted, hosts_wanted, on_listed};

/// The most hosts that one machine carries.
const HOSTS_MAX: u16 = 16;

/// The names of namespaces and folders begin with this, followed by the process id of the command.
const PREFIX: &str = "outlast-";

/// Hosts made of this machine. They are taken down when dropped.
pub(crate) struct Hosts {
    count: u16,
    /// The folder of their scripts and temporary files.
    folder: PathBuf,
    /// What the names of their namespaces begin with.
    prefix: String,
}

/// The network of a host.
#[derive(Clone)]
pub(crate) struct Network(PathBuf);

impl Network {
    /// Runs a function in a thread in this network. Sockets that it makes stay there.
    pub(crate) fn run<T: Send>(
        &self,
        function: impl FnOnce() -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        let enter_and_run = || {
            let network = std::fs::File::open(&self.0)
                .with_context(|| format!("opening {}", self.0.display()))?;
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(network.as_fd(), kind)
                .context("entering the network of a host")?;
            function()
        };
        std::thread::scope(|scope| scope.spawn(enter_and_run).join())
            .map_err(|_| anyhow::anyhow!("a thread in the network of a host panicked"))?
    }
}

fn host_name(index: u16) -> String {
    format!("host{}", index + 1)
}

/// Runs a command to its end and returns its output, or an error with what it wrote.
fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let program = command.get_program().to_string_lossy().into_owned();
    let output = output.with_context(|| {
        format!(
            "cannot run `{program}`, which hosts need (Debian: apt install iproute2 util-linux)"
        )
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
        // From here on a failure drops `hosts`, which takes down what was made.
        let hosts = Hosts { count, folder, prefix };
        hosts.write_files()?;
        hosts.make_namespaces().context(
            "cannot make hosts out of network namespaces: that needs root, with the rights to make \
             namespaces (in a container: --cap-add NET_ADMIN --cap-add SYS_ADMIN); without \
             --hosts the job runs on one host",
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

    /// Writes /etc/hosts of the hosts, the host file for mpirun, and two scripts: `enter` runs a
    /// command on a host, and `agent` does so with the arguments of ssh.
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
                 mount --bind {place}/hosts /etc/hosts; export TMPDIR={place}/\"$0\"; \
                 mkdir -p \"$TMPDIR\"; exec \"$@\"' \
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

    /// Cuts the link of a host. Its processes go on and reach no other host.
    pub(crate) fn cut(&self, index: u16) -> anyhow::Result<()> {
        ip(&format!("-n {}net link set v{index} down", self.prefix)).map(drop)
    }

    /// The address of a host, for the programs of other hosts.
    pub(crate) fn address_of(&self, index: usize) -> anyhow::Result<String> {
        let index = u16::try_from(index).ok().filter(|&index| index < self.count);
        index.map(address).with_context(|| format!("there are only {} hosts", self.count))
    }

    /// Takes the hosts down from another thread, when this process is about to end without
    /// dropping them.
    pub(crate) fn taker_down(&self) -> impl Fn() + Send + 'static {
        let (prefix, folder) = (self.prefix.clone(), self.folder.clone());
        move || take_down(&prefix, &folder)
    }

    /// The network of a host.
    pub(crate) fn network(&self, index: usize) -> Network {
        Network(Path::new("/var/run/netns").join(self.namespace(index as u16)))
    }

    /// The words in front of a command that runs it on this host.
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
            // Without this option a daemon begins a session of its own, and the kernel's autogroups
            // give a session as much time as a single process: next to a busy machine, all
            // processes of a host were seen not to run for 15 s and more.
            words(&["--leave-session-attached"]),
        ]
        .concat()
    }
}

/// The address of a host, in a network that only these hosts are in.
fn address(index: u16) -> String {
    format!("10.77.0.{}", index + 1)
}

impl Drop for Hosts {
    fn drop(&mut self) {
        take_down(&self.prefix, &self.folder);
    }
}

/// Kills the processes in the namespaces of this prefix, removes the namespaces and the folder.
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
    // A process that was just killed may still write to the folder for a moment.
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

/// Takes down the hosts of commands that no longer run.
fn remove_leftovers() {
    let of_the_dead = |name: &str| {
        let pid = name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok()?;
        (!Path::new("/proc").join(pid.to_string()).exists()).then(|| format!("{PREFIX}{pid}-"))
    };
    for prefix in namespaces().iter().filter_map(|name| of_the_dead(name)) {
        take_down(&prefix, &std::env::temp_dir().join(format!("{prefix}hosts")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_numbered_from_1() {
        assert_eq!((host_name(0), address(2)), ("host1".to_string(), "10.77.0.3".to_string()));
    }
}

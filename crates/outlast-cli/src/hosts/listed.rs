//! Hosts that a file lists, and jobs on them.

use super::engine_args::mpirun;
use super::{HOSTS_MAX, PREFIX};
use anyhow::{Context, bail, ensure};
use outlast::launch::{Launch, Mpirun};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The value of `--hosts`: a number of hosts to make of this machine, or a file that lists hosts.
#[derive(Clone, Debug)]
pub(crate) enum HostsWanted {
    Made(u16),
    Listed(PathBuf),
}

/// Parses a number of hosts or the name of a file.
pub(crate) fn hosts_wanted(text: &str) -> Result<HostsWanted, String> {
    match text.parse::<u16>() {
        Ok(count) if (1..=HOSTS_MAX).contains(&count) => Ok(HostsWanted::Made(count)),
        Ok(count) => Err(format!("{count} hosts; 1 to {HOSTS_MAX} can be made of one machine")),
        Err(_) if Path::new(text).is_file() => Ok(HostsWanted::Listed(text.into())),
        Err(_) => Err(format!("`{text}` is neither a number of hosts nor a file that lists hosts")),
    }
}

/// The names of the hosts in a file: the first word of each line, where `#` begins a remark.
/// Further words, such as `slots=4`, are for mpirun.
fn read_names(file: &Path) -> anyhow::Result<Vec<String>> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let names: Vec<String> =
        lines.filter_map(|line| line.split_whitespace().next()).map(str::to_string).collect();
    // A name becomes a word of a command that ssh reads.
    let is_name = |name: &String| {
        !name.starts_with('-')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-:@[]".contains(c))
    };
    if let Some(name) = names.iter().find(|name| !is_name(name)) {
        bail!("`{name}` in {} is not the name of a host", file.display());
    }
    ensure!(!names.is_empty(), "{} lists no hosts", file.display());
    Ok(names)
}

/// ssh that asks no questions and gives up soon on a host that is gone, so that a rank there is
/// soon known to be dead.
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

/// Prepares a launch on the hosts that a file lists, under a single daemon of mpirun. The host file
/// of `outlast hosts` has an agent next to it that enters its hosts; all other hosts are reached by
/// ssh.
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
        for (text, reason) in [
            ("", "lists no hosts"),
            ("-oProxyCommand=x", "is not the name"),
            ("a;b", "is not the name"),
        ] {
            assert!(read(text).is_err_and(|error| error.contains(reason)), "{text}");
        }
        assert!(matches!(hosts_wanted("3"), Ok(HostsWanted::Made(3))));
        assert!(hosts_wanted("0").is_err() && hosts_wanted("no/such/file").is_err());
        assert!(matches!(hosts_wanted(&file.path().to_string_lossy()), Ok(HostsWanted::Listed(_))));
    }
}

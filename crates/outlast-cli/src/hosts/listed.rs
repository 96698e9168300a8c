//! Jobs on hosts that a file lists.

use super::engine_args::mpirun;
use super::{HOSTS_MAX, PREFIX};
use anyhow::{Context, bail, ensure};
use outlast::launch::{Launch, Mpirun};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Hosts to be made of this machine, or those that are listed in a file.
#[derive(Clone, Debug)]
pub(crate) enum HostsWanted {
    Made(u16),
    Listed(PathBuf),
}

/// Reads a number of hosts, or the name of a file.
pub(crate) fn hosts_wanted(text: &str) -> Result<HostsWanted, String> {
    match text.parse::<u16>() {
        Ok(count) if (1..=HOSTS_MAX).contains(&count) => Ok(HostsWanted::Made(count)),
        Ok(count) => Err(format!("{count} hosts; 1 to {HOSTS_MAX} can be made of one machine")),
        Err(_) if Path::new(text).is_file() => Ok(HostsWanted::Listed(text.into())),
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
        assert!(matches!(hosts_wanted("3"), Ok(HostsWanted::Made(3))));
        assert!(hosts_wanted("0").is_err() && hosts_wanted("no/such/file").is_err());
        assert!(matches!(hosts_wanted(&file.path().to_string_lossy()), Ok(HostsWanted::Listed(_))));
    }
}

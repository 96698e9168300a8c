//! `outlast hosts`: makes several hosts of this machine and runs a command on the first.

use super::{HOSTS_MAX, Hosts};
use anyhow::{Context, bail, ensure};
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsString;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const EXAMPLES: &str = "\
The hosts share the machine's processes and files, but not its network: to Open MPI they are
separate nodes. Root is needed. Everything is taken down at the end, also after Ctrl-C.

Examples:
  A shell on the first of three hosts; /etc/hosts has the addresses of all:
      outlast hosts 3 -- sh
  An MPI program on three hosts; {options} stands for the options with which mpirun finds them:
      outlast hosts 3 -- mpirun {options} --with-ft ulfm -n 6 ./program

The command finds these options in OUTLAST_MPIRUN_OPTIONS as well, and in OUTLAST_HOSTFILE the
file that lists the hosts, for `outlast run --engine mpi --hosts \"$OUTLAST_HOSTFILE\"`.

Exit status: 0 the command succeeded, 1 it failed, 2 wrong usage.";

/// Make several hosts of this machine and run a command on the first
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HostsCommand {
    /// How many hosts
    #[arg(value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(HOSTS_MAX)))]
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
                // A terminal has sent the signal to the child, too: it gets a moment to end what it
                // has started.
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

//! The options that choose the engine below a job, and the hosts that the job runs on.

use super::{HOSTS_MAX, Hosts};
use crate::quantity::{self, EngineName};
use clap::Args;
use outlast::launch::{Launch, Mpirun, follow, rank};
use std::path::PathBuf;

/// The option of mpirun that keeps its daemons from giving up on each other after a cut link, which
/// would end the job.
pub(crate) const PATIENT_DAEMONS: [&str; 3] = ["--prtemca", "oob_tcp_keepalive_time", "0"];

/// The engine below a job, and the hosts it runs on.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct EngineArgs {
    /// The engine below the job: shm, or mpi in builds with the feature `mpi`
    #[arg(long, value_name = "NAME", value_parser = quantity::engine, default_value = "shm")]
    pub(crate) engine: EngineName,
    /// With the mpi engine: spread the job over this many hosts made of this machine; needs root
    #[arg(long, value_name = "H")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(HOSTS_MAX)))]
    pub(crate) hosts: Option<u16>,
}

impl EngineArgs {
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
                "inside mpirun the job runs on the hosts of mpirun; leave --hosts out",
            );
        }
    }

    /// Inside an mpirun of the user, rank 0 goes on as the command and learns the number of ranks;
    /// all other ranks become members and do not return. `None` outside of mpirun.
    pub(crate) fn join_mpirun(self) -> anyhow::Result<Option<usize>> {
        match rank().filter(|_| self.engine == EngineName::Mpi) {
            None => Ok(None),
            Some((0, ranks)) => Ok(Some(ranks)),
            Some(_) => Err(follow().into()),
        }
    }

    /// Prepares a launch on the chosen engine and hosts, and prints how mpirun is started. The
    /// hosts must be kept until the job has ended.
    pub(crate) fn prepare(
        self,
        launch: Launch,
        ranks: usize,
    ) -> anyhow::Result<(Launch, Option<Hosts>)> {
        self.prepare_with(launch, ranks, &[])
    }

    /// Prepares a launch as [`EngineArgs::prepare`] does, with further options of mpirun.
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

    /// The arguments of the command that choose this engine and these hosts.
    pub(crate) fn arguments(self) -> String {
        let hosts = self.hosts.map_or(String::new(), |hosts| format!(" --hosts {hosts}"));
        format!("--engine {}{hosts}", self.engine)
    }
}

/// The mpirun to use: the path in MPIRUN, or the mpirun that `cargo xtask mpi` has installed, or
/// the mpirun on PATH.
pub(super) fn mpirun() -> PathBuf {
    let installed = || {
        let libraries = outlast_mpi_sys::in_checkout().parent()?.to_path_buf();
        let mpirun = libraries.join("../bin").canonicalize().ok()?.join("mpirun");
        mpirun.exists().then_some(mpirun)
    };
    let named = std::env::var_os("MPIRUN").filter(|path| !path.is_empty()).map(PathBuf::from);
    named.or_else(installed).unwrap_or_else(|| "mpirun".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_of_a_replay_name_engine_and_hosts() {
        let args = EngineArgs { engine: EngineName::Mpi, hosts: Some(3) };
        assert_eq!(args.arguments(), "--engine mpi --hosts 3");
    }
}

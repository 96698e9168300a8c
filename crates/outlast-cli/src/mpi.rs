//! `outlast mpi setup`: compiles the plug-in through which Outlast calls MPI, for users without a
//! checkout.

use anyhow::Context;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// The plug-in through which programs of this user call MPI.
#[derive(Args)]
pub(crate) struct MpiCommand {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Compiles the plug-in with the mpicc in PATH, or the one that MPICC names.
    ///
    /// It needs Open MPI 5 with ULFM. The plug-in is put into the cache of the user, where programs
    /// find it, and is compiled again after a change of the MPI or of Outlast.
    Setup {
        /// Another file for the plug-in; set OUTLAST_MPI_SHIM to it.
        #[arg(long, value_name = "FILE")]
        to: Option<PathBuf>,
    },
}

impl MpiCommand {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let Task::Setup { to } = self.task;
        let to = to
            .or_else(outlast_mpi_sys::in_cache)
            .context("neither HOME nor XDG_CACHE_HOME is set; name the file with --to")?;
        let wrapper = outlast_mpi_sys::compile(&outlast_mpi_sys::wrappers(), &to)
            .map_err(anyhow::Error::msg)?;
        println!("{} has made {}", wrapper.display(), to.display());
        Ok(true)
    }
}

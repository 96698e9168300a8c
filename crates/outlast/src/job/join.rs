//! Joining a job: which engine this process is a member on.
//!
//! `OUTLAST_ENGINE` names the engine (`shm` or `mpi`). Without it, a process that Open MPI's
//! launcher started joins over MPI, unless `outlast run` started it inside of that; any other
//! process joins on shm: the job of its launcher, or a job of its own.

use super::{Backend, Job};
#[cfg(feature = "mpi")]
use crate::engine::mpi;
use crate::engine::{JoinError, JoinOptions, shm};

/// Joins the job that this process was started in, with the default options; see [`JoinOptions`].
pub fn join() -> Result<Job, JoinError> {
    JoinOptions::new().join()
}

impl JoinOptions {
    /// Joins the job that this process was started in, or a new job of a single member. Waits,
    /// within the time limit, until all members have joined or died.
    pub fn join(self) -> Result<Job, JoinError> {
        let backend = match std::env::var("OUTLAST_ENGINE").as_deref() {
            Ok("mpi") => self.attach_mpi()?,
            // Under mpirun, a job of its own for each rank is never meant; `outlast run` inside of
            // mpirun is.
            Err(_) | Ok("") if is_under_mpirun() && std::env::var_os("OUTLAST_JOB").is_none() => {
                self.attach_mpi()?
            }
            Err(_) | Ok("" | "shm") => {
                self.check_launcher()?;
                Backend::Shm(shm::Shm::attach(&self)?)
            }
            Ok(other) => return Err(JoinError::UnknownEngine { name: other.to_string() }),
        };
        let job = Job::new(backend);
        let background = job.clone();
        match &job.inner.backend {
            Backend::Shm(shm) => {
                shm.start_background(Box::new(move || background.run_background()))?;
                shm.wait_for_all()?;
            }
            #[cfg(feature = "mpi")]
            Backend::Mpi(mpi) => {
                mpi.start_background(Box::new(move || background.run_background()))?;
                mpi.wait_for_all()?;
            }
            #[cfg(feature = "sim")]
            Backend::Sim(_) => unreachable!("a simulated member is made by the simulator"),
        }
        Ok(job)
    }

    /// Refuses a communicator of MPI in a job of `outlast run`: MPI knows nothing of the other
    /// members, and the communicator has this process alone.
    fn check_launcher(&self) -> Result<(), JoinError> {
        #[cfg(feature = "mpi")]
        if self.communicator.is_some() && std::env::var_os("OUTLAST_JOB").is_some() {
            let reason = "the program joins with a communicator of MPI; start it with `mpirun \
                          --with-ft ulfm`, and not with `outlast run`";
            return Err(JoinError::NotAMember { reason: reason.into() });
        }
        Ok(())
    }

    #[cfg(feature = "mpi")]
    fn attach_mpi(&self) -> Result<Backend, JoinError> {
        mpi::Mpi::attach(self).map(Backend::Mpi)
    }

    #[cfg(not(feature = "mpi"))]
    fn attach_mpi(&self) -> Result<Backend, JoinError> {
        Err(JoinError::MissingFeature { engine: "mpi", feature: "mpi" })
    }
}

/// Whether Open MPI's launcher started this process.
fn is_under_mpirun() -> bool {
    ["OMPI_COMM_WORLD_SIZE", "PMIX_RANK"].iter().any(|name| std::env::var_os(name).is_some())
}

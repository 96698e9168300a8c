//! The membership of this process.

use crate::comm::Comm;
use crate::error::{Code, Failure, failure};
use crate::log;
use crate::wait::{duration, in_slices, interruptible};
use outlast::engine::Bell;
use outlast::rma::Communicator;
use outlast::{JoinOptions, MemberId};
use pyo3::prelude::*;

/// The membership of this process. It ends with the with statement, or with leave().
#[pyclass(subclass, frozen, module = "outlast")]
pub(crate) struct Job {
    pub(crate) job: outlast::Job,
}

/// The member of this number, if there is one.
pub(crate) fn member(job: &outlast::Job, number: u32) -> Result<MemberId, Failure> {
    let members = job.members();
    if (number as usize) < members {
        return Ok(MemberId(number));
    }
    let message = format!("there is no member {number} in a job of {members} members");
    Err(failure(Code::Invalid, message))
}

#[pymethods]
impl Job {
    #[new]
    #[pyo3(signature = (*, time_limit=None, segment_limit=None, domain=None, comm=None,
                        set_errhandlers=false))]
    fn new(
        py: Python<'_>,
        time_limit: Option<f64>,
        segment_limit: Option<u64>,
        domain: Option<&str>,
        comm: Option<&Bound<'_, PyAny>>,
        set_errhandlers: bool,
    ) -> PyResult<Job> {
        log::start();
        let mut options = JoinOptions::new().set_errhandlers(set_errhandlers);
        if let Some(seconds) = time_limit {
            options = options.time_limit(duration(seconds)?);
        }
        if let Some(bytes) = segment_limit {
            options = options.segment_limit(bytes);
        }
        if let Some(path) = domain {
            options = options.domain(path);
        }
        if let Some(comm) = comm {
            options = with_communicator(options, comm)?;
        }
        let job = interruptible(py, move || options.join())?.map_err(Failure::from)?;
        Ok(Job { job })
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        // After an exception the process does not leave: when it ends, the others see a death.
        if kind.is_none() { self.leave(py) } else { Ok(()) }
    }

    /// Ends the membership. Close the store before.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let job = self.job.clone();
        Ok(interruptible(py, move || job.leave())?.map_err(Failure::from)?)
    }

    /// The number of this member, from 0.
    #[getter]
    fn me(&self) -> u32 {
        self.job.me().0
    }

    /// The number of members with which the job began.
    #[getter]
    fn members(&self) -> usize {
        self.job.members()
    }

    /// The number of members that are not known to be dead.
    #[getter]
    fn living(&self) -> usize {
        self.job.view().living().count()
    }

    /// The members that are known to be dead, or that have left.
    #[getter]
    fn dead(&self) -> Vec<u32> {
        self.job.view().dead.iter().map(|member| member.0).collect()
    }

    /// The longest time for which a call waits for a living member, in seconds.
    #[getter]
    fn time_limit(&self) -> f64 {
        self.job.time_limit().as_secs_f64()
    }

    /// Waits until all living members have called it, whichever members die meanwhile. What a
    /// member put before, the others find after it.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        let job = self.job.clone();
        let meet = move || Communicator::world(&job)?.agree_despite_failures(u64::MAX);
        interruptible(py, meet)?.map_err(Failure::from)?;
        Ok(())
    }

    /// The failure domain of a member, for example rack3/node17; empty if it is not known.
    fn domain(&self, py: Python<'_>, number: u32) -> Result<String, Failure> {
        let member = member(&self.job, number)?;
        Ok(py.detach(|| self.job.domain(member))?)
    }

    /// Makes sure that a member is dead: kills it if it lives, and waits for the proof. Raises
    /// Timeout if there is none within this time.
    fn fence(&self, py: Python<'_>, number: u32, seconds: f64) -> PyResult<()> {
        let (job, member, limit) =
            (self.job.clone(), member(&self.job, number)?, duration(seconds)?);
        let fence = move || job.fence(member, job.now().after(limit));
        Ok(interruptible(py, fence)?.map_err(Failure::from)?)
    }

    /// The communicator of all members: messages and collective calls beside the store.
    fn comm(&self, py: Python<'_>) -> Result<Comm, Failure> {
        py.detach(|| Comm::world(&self.job))
    }

    /// What this member's bell shows. It rings when a member calls ring(), when a member dies, and
    /// when a key changes that this member waits for.
    fn bell(&self) -> u64 {
        self.job.bell().0
    }

    /// Sleeps until the bell shows another number than `bell`, and returns whether it does so
    /// within this time. Read the bell, look at all that the program waits for, then park: what
    /// happens in between is not missed.
    fn park(&self, py: Python<'_>, bell: u64, seconds: f64) -> PyResult<bool> {
        let rung = in_slices(py, &self.job, duration(seconds)?, |until| {
            if self.job.has_ended() {
                return Err(Failure::from(outlast::Error::Ended));
            }
            if self.job.bell() == Bell(bell) {
                self.job.park(Bell(bell), until);
            }
            Ok((self.job.bell() != Bell(bell)).then_some(()))
        })?;
        Ok(rung.is_some())
    }

    /// Rings the bell of a member, also of this member. It has no effect if the member is dead.
    fn ring(&self, py: Python<'_>, number: u32) -> Result<(), Failure> {
        let member = member(&self.job, number)?;
        Ok(py.detach(|| self.job.ring(member))?)
    }

    fn __repr__(&self) -> String {
        format!("<outlast.Job: member {} of {}>", self.me(), self.members())
    }
}

/// Adds a communicator of mpi4py to the options.
fn with_communicator(options: JoinOptions, comm: &Bound<'_, PyAny>) -> PyResult<JoinOptions> {
    let mpi = comm.py().import("mpi4py.MPI").map_err(|_| wrong_communicator(comm))?;
    if !comm.is_instance(&mpi.getattr("Comm")?)? {
        return Err(wrong_communicator(comm));
    }
    let place: usize = mpi.call_method1("_addressof", (comm,))?.extract()?;
    // SAFETY: mpi4py promises that the address is that of the handle of the communicator, which
    // `comm` keeps. The engine duplicates the communicator before `join` returns.
    let communicator = unsafe {
        let handle = *std::ptr::with_exposed_provenance::<*mut std::ffi::c_void>(place);
        outlast::engine::mpi::Communicator::from_raw(handle)
    };
    Ok(options.communicator(communicator))
}

fn wrong_communicator(comm: &Bound<'_, PyAny>) -> PyErr {
    let kind = comm.get_type();
    pyo3::exceptions::PyTypeError::new_err(format!("comm must be an mpi4py.MPI.Comm, not {kind}"))
}

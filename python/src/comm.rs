//! Communicators: groups of members that exchange messages, call collective operations and recover
//! together.

use crate::buffer::{self, View};
use crate::error::{Code, Failure, failure};
use crate::regions::Region;
use crate::wait::{in_slices, interruptible};
use crate::window::Window;
use outlast::MemberId;
use outlast::rma::{Agreement, Communicator, Error, Op, Received, Source, Tag};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFloat};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A group of members, each with a rank from 0; made by Job.comm, and by duplicate, split and
/// shrink.
#[pyclass(frozen, module = "outlast")]
pub(crate) struct Comm {
    comm: Communicator,
}

/// A message that was received.
#[pyclass(frozen, module = "outlast")]
pub(crate) struct Message {
    /// The rank of the sender.
    #[pyo3(get)]
    source: usize,
    /// The tag with which it was sent.
    #[pyo3(get)]
    tag: u32,
    bytes: Py<PyBytes>,
}

#[pymethods]
impl Message {
    /// The bytes of the message.
    #[getter]
    fn bytes(&self, py: Python<'_>) -> Py<PyBytes> {
        self.bytes.clone_ref(py)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let len = self.bytes.as_bytes(py).len();
        format!("<outlast.Message: {len} bytes from {}, tag {}>", self.source, self.tag)
    }
}

fn message(py: Python<'_>, received: Received) -> Message {
    let Received { source, tag, bytes } = received;
    Message { source, tag, bytes: PyBytes::new(py, &bytes).unbind() }
}

/// What all living members agreed on; equal at all of them.
#[pyclass(frozen, module = "outlast", name = "Agreement")]
pub(crate) struct Agreed {
    agreement: Agreement,
}

#[pymethods]
impl Agreed {
    /// The bitwise and of the flags of the members that contributed.
    #[getter]
    fn flags(&self) -> u64 {
        self.agreement.flags
    }

    /// The ranks that count as dead.
    #[getter]
    fn failed(&self) -> Vec<usize> {
        self.agreement.failed.clone()
    }

    /// The ranks in `failed` that a member had not acknowledged.
    #[getter]
    fn unacknowledged(&self) -> Vec<usize> {
        self.agreement.unacknowledged.clone()
    }

    fn __repr__(&self) -> String {
        let Agreement { flags, failed, .. } = &self.agreement;
        format!("Agreement(flags={flags:#x}, failed={failed:?})")
    }
}

/// A receive that was started. It ends with its message, or with cancel().
#[pyclass(frozen, module = "outlast")]
pub(crate) struct Request {
    comm: Communicator,
    /// `None` when its message was taken, or it was cancelled.
    request: Mutex<Option<outlast::rma::Request>>,
}

impl Request {
    fn slot(&self) -> MutexGuard<'_, Option<outlast::rma::Request>> {
        self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for the message; `look` says `None` if it has not come. Afterwards the request is over
    /// if its result was taken.
    fn look(
        &self,
        look: impl FnOnce(&mut outlast::rma::Request) -> Option<Result<Received, Error>>,
    ) -> Result<Option<Received>, Failure> {
        let mut slot = self.slot();
        let request = slot.as_mut().ok_or_else(|| {
            failure(Code::Over, "the message was taken, or the request was cancelled")
        })?;
        let found = look(request).transpose();
        if request.is_over() {
            slot.take();
        }
        Ok(found?)
    }
}

#[pymethods]
impl Request {
    /// The message if it has come, else None.
    fn test(&self, py: Python<'_>) -> Result<Option<Message>, Failure> {
        let found = py.detach(|| self.look(|request| request.test()))?;
        Ok(found.map(|received| message(py, received)))
    }

    /// Waits for the message. After Timeout, Interrupted and Ctrl-C the request is still active; it
    /// is also after ProcFailed with the code -21, for a receive from any rank: acknowledge the
    /// failure, and wait again.
    fn wait(&self, py: Python<'_>) -> PyResult<Message> {
        let job = self.comm.job();
        let found = in_slices(py, job, job.time_limit(), |until| {
            self.look(|request| match request.wait_within(until.since(job.now())) {
                Err(Error::Timeout { .. }) => None,
                result => Some(result),
            })
        })?;
        let late = || failure(Code::Timeout, "no message has come; the request is still active");
        Ok(message(py, found.ok_or_else(late)?))
    }

    /// Gives the request up. A message that it already had goes to the next receive.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| drop(self.slot().take()));
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.slot().is_some() {
            Python::try_attach(|py| self.cancel(py));
        }
    }
}

fn reduction(op: &str) -> PyResult<Op> {
    Ok(match op {
        "and" => Op::And,
        "or" => Op::Or,
        "min" => Op::Min,
        "max" => Op::Max,
        "sum" => Op::Sum,
        _ => {
            let message = format!("{op:?} is none of and, or, min, max, sum");
            return Err(PyValueError::new_err(message));
        }
    })
}

impl Comm {
    pub(crate) fn world(job: &outlast::Job) -> Result<Comm, Failure> {
        Ok(Comm { comm: Communicator::world(job)? })
    }

    /// Makes a call that waits for other members.
    fn together<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Communicator) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        let comm = self.comm.clone();
        Ok(interruptible(py, move || call(&comm))?.map_err(Failure::from)?)
    }

    /// Makes a call that waits for no other member.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Communicator) -> Result<T, Error> + Send,
    ) -> Result<T, Failure> {
        Ok(py.detach(|| call(&self.comm))?)
    }
}

#[pymethods]
impl Comm {
    /// The rank of this member.
    #[getter]
    fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// The number of ranks, the dead included.
    #[getter]
    fn size(&self) -> usize {
        self.comm.size()
    }

    /// The number of the member that has a rank.
    fn member(&self, rank: usize) -> Result<u32, Failure> {
        Ok(self.comm.member(rank)?.0)
    }

    /// The rank of a member, or None if it does not belong to the communicator.
    fn rank_of(&self, number: u32) -> Option<usize> {
        self.comm.rank_of(MemberId(number))
    }

    /// Sends a message, a buffer, to a rank. When it returns, the buffer may be used again. A rank
    /// that has sent megabytes which were not received waits before it sends more.
    #[pyo3(signature = (to, message, tag=0))]
    fn send(&self, to: usize, message: &Bound<'_, PyAny>, tag: u32) -> PyResult<()> {
        let bytes = Region::of(message)?;
        self.together(message.py(), move |comm| comm.send(to, tag, bytes.bytes()))
    }

    /// Receives the oldest message from a rank with a tag; None is any rank, or any tag. Raises
    /// ProcFailed if the sender is dead.
    #[pyo3(signature = (source=None, tag=None))]
    fn receive(
        &self,
        py: Python<'_>,
        source: Option<usize>,
        tag: Option<u32>,
    ) -> PyResult<Message> {
        self.start_receive(py, source, tag)?.wait(py)
    }

    /// Starts a receive, whose message Request.wait and Request.test return.
    #[pyo3(signature = (source=None, tag=None))]
    fn start_receive(
        &self,
        py: Python<'_>,
        source: Option<usize>,
        tag: Option<u32>,
    ) -> Result<Request, Failure> {
        let (source, tag) = (source_of(source), tag_of(tag));
        let request = self.call(py, |comm| comm.start_receive(source, tag))?;
        Ok(Request { comm: self.comm.clone(), request: Mutex::new(Some(request)) })
    }

    /// Rank, tag and length of the message that a receive would take now, or None.
    #[pyo3(signature = (source=None, tag=None))]
    fn probe(
        &self,
        py: Python<'_>,
        source: Option<usize>,
        tag: Option<u32>,
    ) -> Result<Option<(usize, u32, usize)>, Failure> {
        let (source, tag) = (source_of(source), tag_of(tag));
        self.call(py, |comm| comm.probe(source, tag))
    }

    /// Returns when all ranks have called it.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.together(py, |comm| comm.barrier())
    }

    /// Gives all ranks the bytes of the root. All ranks give buffers of equal length; those of the
    /// other ranks are writable, and are filled.
    #[pyo3(signature = (buffer, root=0))]
    fn broadcast(&self, buffer: &Bound<'_, PyAny>, root: usize) -> PyResult<()> {
        if root == self.comm.rank() {
            let mut bytes = buffer::value(buffer)?.get().to_vec();
            return self.together(buffer.py(), move |comm| comm.broadcast(root, &mut bytes));
        }
        let mut view = View::to_fill(buffer)?;
        self.together(buffer.py(), move |comm| comm.broadcast(root, view.bytes_mut()))
    }

    /// Combines the numbers of all ranks, one by one, by "sum", "min", "max", "and" or "or". If
    /// there is a float among the numbers, all are floats, and so they are at all other ranks;
    /// otherwise they are integers of 64 bits, which wrap. All ranks get equal results.
    fn allreduce<'py>(
        &self,
        py: Python<'py>,
        op: &str,
        values: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let op = reduction(op)?;
        if values.iter().any(|value| value.is_instance_of::<PyFloat>()) {
            let mut numbers =
                values.iter().map(|value| value.extract()).collect::<PyResult<Vec<f64>>>()?;
            let numbers = self.together(py, move |comm| {
                comm.allreduce_f64(op, &mut numbers)?;
                Ok(numbers)
            })?;
            return numbers
                .into_iter()
                .map(|number| Ok(PyFloat::new(py, number).into_any()))
                .collect();
        }
        let mut numbers =
            values.iter().map(|value| value.extract()).collect::<PyResult<Vec<i64>>>()?;
        let numbers = self.together(py, move |comm| {
            comm.allreduce_i64(op, &mut numbers)?;
            Ok(numbers)
        })?;
        let to_python = |number: i64| Ok(number.into_pyobject(py)?.into_any());
        numbers.into_iter().map(to_python).collect()
    }

    /// Gathers the bytes of every rank, of any length each, as a list by rank.
    fn allgather<'py>(&self, part: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let (py, part) = (part.py(), Region::of(part)?);
        let parts = self.together(py, move |comm| comm.allgather(part.bytes()))?;
        Ok(parts.iter().map(|part| PyBytes::new(py, part)).collect())
    }

    /// A communicator of the same members. All ranks call it; raises ProcFailed if a rank is dead.
    fn duplicate(&self, py: Python<'_>) -> PyResult<Comm> {
        Ok(Comm { comm: self.together(py, |comm| comm.duplicate())? })
    }

    /// A communicator of the ranks that give equal colours, in the order of their keys. All ranks
    /// call it; a rank that gives None gets None.
    #[pyo3(signature = (color, key=0))]
    fn split(&self, py: Python<'_>, color: Option<u32>, key: i64) -> PyResult<Option<Comm>> {
        Ok(self.together(py, move |comm| comm.split(color, key))?.map(|comm| Comm { comm }))
    }

    /// A communicator of the living ranks. All of them call it, whichever ranks die meanwhile, also
    /// if the communicator is revoked.
    fn shrink(&self, py: Python<'_>) -> PyResult<Comm> {
        Ok(Comm { comm: self.together(py, |comm| comm.shrink())? })
    }

    /// Ends this member's use of the communicator. That of Job.comm cannot be freed.
    fn free(&self, py: Python<'_>) -> Result<(), Failure> {
        self.call(py, |comm| comm.free())
    }

    /// Makes the communicator unusable for all its members, and ends their waits: calls raise
    /// Revoked, except agree, shrink and local calls.
    fn revoke(&self, py: Python<'_>) -> Result<(), Failure> {
        self.call(py, |comm| comm.revoke())
    }

    /// Whether a member has revoked the communicator.
    #[getter]
    fn is_revoked(&self) -> bool {
        self.comm.is_revoked()
    }

    /// The bitwise and of the flags of all living ranks, with the ranks that count as dead: equal
    /// at all ranks, whichever die, also if the communicator is revoked.
    #[pyo3(signature = (flags=u64::MAX))]
    fn agree(&self, py: Python<'_>, flags: u64) -> PyResult<Agreed> {
        let agreement = self.together(py, move |comm| comm.agree_despite_failures(flags))?;
        Ok(Agreed { agreement })
    }

    /// The ranks that are dead, as far as this member knows.
    fn failed(&self, py: Python<'_>) -> Result<Vec<usize>, Failure> {
        self.call(py, |comm| comm.get_failed())
    }

    /// Acknowledges all failures that this member knows: receives from any rank go on.
    fn failure_ack(&self, py: Python<'_>) -> Result<(), Failure> {
        self.call(py, |comm| comm.failure_ack())
    }

    /// The ranks whose failure was acknowledged.
    fn acked(&self, py: Python<'_>) -> Result<Vec<usize>, Failure> {
        self.call(py, |comm| comm.failure_get_acked())
    }

    /// Tells these ranks of all failures that this member knows.
    fn notify_failures(&self, py: Python<'_>, ranks: Vec<usize>) -> Result<(), Failure> {
        self.call(py, |comm| comm.notify_failures(&ranks))
    }

    /// Ends the wait of another rank for a message, or for a lock of a window of this communicator,
    /// with Interrupted: its current wait, or else its next.
    fn interrupt(&self, py: Python<'_>, rank: usize) -> Result<(), Failure> {
        self.call(py, |comm| comm.interrupt(rank))
    }

    /// Makes a window in which this member shows so many bytes, all zero; the number may differ
    /// between ranks. All ranks call it. With locks=False, accesses need no lock.
    #[pyo3(signature = (bytes, locks=true))]
    fn window(&self, py: Python<'_>, bytes: u64, locks: bool) -> PyResult<Window> {
        let comm = self.comm.clone();
        Window::open(py, comm, bytes, locks)
    }

    fn __repr__(&self) -> String {
        let revoked = if self.comm.is_revoked() { ", revoked" } else { "" };
        format!("<outlast.Comm: rank {} of {}{revoked}>", self.rank(), self.size())
    }
}

fn source_of(source: Option<usize>) -> Source {
    source.map_or(Source::Any, Source::Rank)
}

fn tag_of(tag: Option<u32>) -> Tag {
    tag.map_or(Tag::Any, Tag::Is)
}

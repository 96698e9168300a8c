//! Windows: memory that the members of a communicator show to each other, and locks on it.

use crate::buffer::View;
use crate::error::Failure;
use crate::regions::Region;
use crate::wait::{duration, in_slices, interruptible};
use outlast::rma::{self, Communicator, LockKind, Update, WindowError, WindowResult, Word};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::time::Duration;

/// Memory of each rank of a communicator that all ranks reach; made by Comm.window.
#[pyclass(frozen, module = "outlast")]
pub(crate) struct Window {
    window: rma::Window,
}

/// The operation on words that Python names.
pub(crate) fn update(op: &str) -> PyResult<Update> {
    Ok(match op {
        "sum" => Update::Sum,
        "min" => Update::Min,
        "max" => Update::Max,
        "and" => Update::And,
        "or" => Update::Or,
        "xor" => Update::Xor,
        "replace" => Update::Replace,
        "keep" => Update::Keep,
        _ => {
            let message = format!("{op:?} is none of sum, min, max, and, or, xor, replace, keep");
            return Err(PyValueError::new_err(message));
        }
    })
}

pub(crate) fn lock_kind(is_shared: bool) -> LockKind {
    if is_shared { LockKind::Shared } else { LockKind::Exclusive }
}

impl Window {
    pub(crate) fn open(
        py: Python<'_>,
        comm: Communicator,
        bytes: u64,
        needs_locks: bool,
    ) -> PyResult<Window> {
        let make = if needs_locks { rma::Window::allocate } else { rma::Window::open };
        let window = interruptible(py, move || make(&comm, bytes))?.map_err(Failure::from)?;
        Ok(Window { window })
    }

    /// Makes a call that all ranks make.
    fn together<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&rma::Window) -> WindowResult<T> + Send + 'static,
    ) -> PyResult<T> {
        let window = self.window.clone();
        Ok(interruptible(py, move || call(&window))?.map_err(Failure::from)?)
    }

    /// Makes a call without Python's lock.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&rma::Window) -> WindowResult<T> + Send,
    ) -> Result<T, Failure> {
        Ok(py.detach(|| call(&self.window))?)
    }

    /// Combines a word with a number, which is a word of this type.
    fn combine<W: Word + Send + Sync>(
        &self,
        py: Python<'_>,
        (target, offset): (usize, u64),
        update: Update,
        value: W,
    ) -> Result<W, Failure> {
        self.call(py, |window| window.fetch_and_op(target, offset, update, value))
    }
}

#[pymethods]
impl Window {
    /// The number of bytes that a rank shows.
    fn length(&self, py: Python<'_>, target: usize) -> Result<u64, Failure> {
        self.call(py, |window| window.len(target))
    }

    /// Writes bytes, a buffer, to the memory of a rank. They may be complete only after a flush, or
    /// the end of a lock; the buffer can be used again at once.
    fn put(&self, target: usize, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = Region::of(data)?;
        Ok(self.call(data.py(), |window| window.put(target, offset, bytes.bytes()))?)
    }

    /// Writes bytes and returns when every get that a rank begins sees them.
    fn put_blocking(&self, target: usize, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = Region::of(data)?;
        Ok(self.call(data.py(), |window| window.put_blocking(target, offset, bytes.bytes()))?)
    }

    /// Bytes of the memory of a rank.
    fn get<'py>(
        &self,
        py: Python<'py>,
        target: usize,
        offset: u64,
        length: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        // The window says how long the bytes may be before memory of that size is made.
        let len = self.call(py, |window| window.len(target))?;
        if offset < rma::ATTACHED && length as u64 > len {
            let error =
                WindowError::OutOfRange { target, offset, len: length as u64, window_len: len };
            return Err(Failure::from(error).into());
        }
        let mut bytes = vec![0; length];
        self.call(py, |window| window.get(target, offset, &mut bytes))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Fills a writable, contiguous buffer with bytes of the memory of a rank.
    fn get_into(&self, target: usize, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut view = View::to_fill(buffer)?;
        let place = view.bytes_mut();
        Ok(self.call(buffer.py(), |window| window.get(target, offset, place))?)
    }

    /// Combines the words of 8 bytes from the offset on with numbers, each atomically, by "sum",
    /// "min", "max", "and", "or", "xor" or "replace". May be complete only after a flush. The words
    /// count as numbers without a sign, unless `signed` is true.
    #[pyo3(signature = (target, offset, op, values, signed=false))]
    fn accumulate(
        &self,
        target: usize,
        offset: u64,
        op: &str,
        values: &Bound<'_, PyAny>,
        signed: bool,
    ) -> PyResult<()> {
        let (py, update) = (values.py(), update(op)?);
        if signed {
            let values: Vec<i64> = values.extract()?;
            return Ok(self.call(py, |window| window.accumulate(target, offset, update, &values))?);
        }
        let values: Vec<u64> = values.extract()?;
        Ok(self.call(py, |window| window.accumulate(target, offset, update, &values))?)
    }

    /// Combines a word with a number, atomically, as accumulate() does, and returns the word
    /// before. "keep" only reads it.
    #[pyo3(signature = (target, offset, op, value, signed=false))]
    fn fetch_and_op<'py>(
        &self,
        target: usize,
        offset: u64,
        op: &str,
        value: &Bound<'py, PyAny>,
        signed: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, place, update) = (value.py(), (target, offset), update(op)?);
        Ok(if signed {
            self.combine::<i64>(py, place, update, value.extract()?)?.into_pyobject(py)?.into_any()
        } else {
            self.combine::<u64>(py, place, update, value.extract()?)?.into_pyobject(py)?.into_any()
        })
    }

    /// Replaces a word by `desired` if it is `expected`, and returns the word before.
    fn compare_and_swap(
        &self,
        py: Python<'_>,
        target: usize,
        offset: u64,
        expected: u64,
        desired: u64,
    ) -> Result<u64, Failure> {
        self.call(py, |window| window.compare_and_swap(target, offset, expected, desired))
    }

    /// Completes all operations of this member on a rank, or on all ranks, and raises the first
    /// error of a put or accumulate since the last flush.
    #[pyo3(signature = (target=None))]
    fn flush(&self, py: Python<'_>, target: Option<usize>) -> Result<(), Failure> {
        self.call(py, |window| match target {
            Some(target) => window.flush(target),
            None => window.flush_all(),
        })
    }

    /// The lock of the memory of a rank, for a with statement, which gives whether a member died
    /// while it held the lock: then the data may be half changed. The with statement raises Locked
    /// at the time limit, which is that of the job by default.
    #[pyo3(signature = (target, shared=false, seconds=None))]
    fn lock(&self, target: usize, shared: bool, seconds: Option<f64>) -> PyResult<WindowLock> {
        let limit = seconds.map(duration).transpose()?;
        let limit = limit.unwrap_or_else(|| self.window.communicator().job().time_limit());
        let what = Locked::One { target, kind: lock_kind(shared), limit };
        Ok(WindowLock { window: self.window.clone(), what })
    }

    /// The locks of all ranks, shared, for a with statement, which gives whether a member died
    /// while it held any of them.
    fn lock_all(&self) -> WindowLock {
        WindowLock { window: self.window.clone(), what: Locked::All }
    }

    /// Takes the lock of a rank away from its holders, and returns their ranks. Their next call
    /// that concerns this rank raises LockLost.
    fn force_unlock(&self, py: Python<'_>, target: usize) -> Result<Vec<usize>, Failure> {
        self.call(py, |window| window.force_unlock(target))
    }

    /// The ranks that hold the lock of a rank, or are about to, the dead included.
    fn holders(&self, py: Python<'_>, target: usize) -> Result<Vec<usize>, Failure> {
        self.call(py, |window| window.holders(target))
    }

    /// Raises LockLost or another error unless this member still holds the lock that it took.
    fn check_lock(&self, py: Python<'_>, target: usize) -> Result<(), Failure> {
        self.call(py, |window| window.check_lock(target))
    }

    /// Makes the window unusable for all ranks until all survivors call shrink().
    fn revoke(&self, py: Python<'_>) -> Result<(), Failure> {
        self.call(py, |window| window.revoke())
    }

    /// Whether the window is revoked.
    #[getter]
    fn is_revoked(&self) -> bool {
        self.window.is_revoked()
    }

    /// The ranks that are dead, as far as this member knows.
    fn failed(&self) -> Vec<usize> {
        self.window.get_failed()
    }

    /// Leaves the dead out of calls over all ranks, and returns them; ranks, memory and locks stay
    /// as they are. On a revoked window all survivors call it.
    fn shrink(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        self.together(py, |window| window.shrink())
    }

    /// Adds bytes, all zero, to the end of this member's memory, and returns its new length.
    fn grow(&self, py: Python<'_>, bytes: u64) -> Result<u64, Failure> {
        self.call(py, |window| window.grow(bytes))
    }

    /// Shows further bytes as a range of their own, and returns the offset at which all ranks reach
    /// it.
    fn attach(&self, py: Python<'_>, bytes: u64) -> Result<u64, Failure> {
        self.call(py, |window| window.attach(bytes))
    }

    /// Takes the range away that was attached at the offset.
    fn detach(&self, py: Python<'_>, offset: u64) -> Result<(), Failure> {
        self.call(py, |window| window.detach(offset))
    }

    /// The bytes of detached ranges that are not released yet.
    fn bytes_aside(&self, py: Python<'_>) -> Result<u64, Failure> {
        self.call(py, |window| window.bytes_aside())
    }

    /// Ends the window. All living ranks call it, also if it is revoked. Raises an error with the
    /// code -25, and the window goes on, if a living rank holds a lock.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        self.together(py, |window| window.free())
    }

    /// Completes the operations in flight, releases this member's locks, and ends the window. All
    /// living ranks call it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.together(py, |window| window.close())
    }

    fn __repr__(&self) -> String {
        let comm = self.window.communicator();
        let revoked = if self.window.is_revoked() { ", revoked" } else { "" };
        format!("<outlast.Window: rank {} of {}{revoked}>", comm.rank(), comm.size())
    }
}

/// Which locks a with statement takes.
#[derive(Clone, Copy, Debug)]
enum Locked {
    One { target: usize, kind: LockKind, limit: Duration },
    All,
}

/// Locks of a window, for a with statement.
#[pyclass(frozen, module = "outlast")]
pub(crate) struct WindowLock {
    window: rma::Window,
    what: Locked,
}

/// Whether the last holder of a lock died, if the lock was taken.
fn is_abandoned(result: WindowResult<()>) -> WindowResult<bool> {
    match result {
        Ok(()) => Ok(false),
        Err(WindowError::Abandoned { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

#[pymethods]
impl WindowLock {
    fn __enter__(&self, py: Python<'_>) -> PyResult<bool> {
        let job = self.window.communicator().job();
        let (target, kind, limit) = match self.what {
            Locked::One { target, kind, limit } => (target, kind, limit),
            Locked::All => {
                let window = self.window.clone();
                let taken = interruptible(py, move || is_abandoned(window.lock_all()))?;
                return Ok(taken.map_err(Failure::from)?);
            }
        };
        let deadline = job.now().after(limit);
        let taken = in_slices(py, job, limit, |until| {
            let slice = until.since(job.now());
            match is_abandoned(self.window.lock_within(target, kind, slice)) {
                Err(WindowError::LockTimeout { .. }) if job.now() < deadline => Ok(None),
                other => other.map(Some).map_err(Failure::from),
            }
        })?;
        match taken {
            Some(is_abandoned) => Ok(is_abandoned),
            None => {
                let last = || is_abandoned(self.window.lock_within(target, kind, Duration::ZERO));
                Ok(py.detach(last).map_err(Failure::from)?)
            }
        }
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        let unlocked = py.detach(|| match self.what {
            Locked::One { target, .. } => self.window.unlock(target),
            Locked::All => self.window.unlock_all(),
        });
        // An exception of the with statement says more than a lock that is gone.
        if kind.is_none() { Ok(unlocked?) } else { Ok(()) }
    }
}

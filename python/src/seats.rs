//! Seats: ranks with memory that outlive the processes which hold them.
//!
//! `Store.run_seats` runs the seats of this member in threads of the library, and calls the
//! program's function in each of them. A seat is lent to Python for the time of that call, and
//! belongs to the thread of the call.

use crate::buffer::{self, View};
use crate::error::{Code, Failure, RolledBack, SeatFailed, failure};
use crate::wait::interruptible;
use crate::window::{lock_kind, update};
use outlast::protect::{self, Point, Protect, ProtectError, ProtectResult};
use outlast::store::Store;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

/// A seat of the library, for as long as its function runs.
#[derive(Clone, Copy)]
struct Lent(*const protect::Seat);

// SAFETY: `Seat::call` uses the pointer in the thread that the seat belongs to, and in no other.
unsafe impl Send for Lent {}

/// A rank with memory that outlives the process which holds it; given to the function of
/// Store.run_seats, and usable in the thread of that call until the function returns.
#[pyclass(frozen, module = "outlast")]
pub(crate) struct Seat {
    thread: ThreadId,
    /// `None` when the function has returned.
    seat: Mutex<Option<Lent>>,
}

impl Seat {
    /// Makes a call on the seat, without Python's lock.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&protect::Seat) -> ProtectResult<T> + Send,
    ) -> Result<T, Failure> {
        if std::thread::current().id() != self.thread {
            let message = "a seat belongs to the thread in which its function was called";
            return Err(failure(Code::Invalid, message));
        }
        let lent = *self.seat.lock().unwrap_or_else(PoisonError::into_inner);
        let lent = lent.ok_or_else(|| failure(Code::Over, "the function of the seat is over"))?;
        Ok(py.detach(move || {
            let lent = lent;
            // SAFETY: this is the thread of the seat, so the function of the seat is running in it,
            // and `lend` keeps the seat until the function has returned and then takes the pointer
            // back. `detach` calls this closure in this thread.
            call(unsafe { &*lent.0 })
        })?)
    }

    /// A point, which tells whether all seats are saved.
    fn point_at(
        &self,
        py: Python<'_>,
        note: Option<&Bound<'_, PyAny>>,
        point: impl FnOnce(&protect::Seat, &[u8]) -> ProtectResult<Point> + Send,
    ) -> PyResult<bool> {
        let note = note.map(buffer::value).transpose()?;
        let note = note.as_ref().map_or(&[][..], |note| note.get());
        Ok(self.call(py, |seat| point(seat, note))? == Point::Saved)
    }
}

/// Why nothing is remembered.
enum Unseen {
    /// The function of the program has raised an exception.
    Look(PyErr),
    Call(ProtectError),
}

impl From<ProtectError> for Unseen {
    fn from(error: ProtectError) -> Unseen {
        Unseen::Call(error)
    }
}

/// Calls the function of the program with a seat.
fn lend(py: Python<'_>, seat: &protect::Seat, body: &Py<PyAny>) -> PyResult<Py<PyAny>> {
    let lent = Some(Lent(std::ptr::from_ref(seat)));
    let thread = std::thread::current().id();
    let object = Bound::new(py, Seat { thread, seat: Mutex::new(lent) })?;
    let result = body.call1(py, (&object,));
    object.get().seat.lock().unwrap_or_else(PoisonError::into_inner).take();
    result
}

/// Runs the seats of this member; returns the results of the seats that ended here.
pub(crate) fn run<'py>(
    store: Store,
    options: Protect,
    body: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = body.py();
    if !body.is_callable() {
        return Err(PyTypeError::new_err(format!("{} is no function", body.get_type())));
    }
    let body = body.clone().unbind();
    // The first exception here of a function itself, and not of a seat that cannot go on.
    let raised = Arc::new(Mutex::new(None));
    let keep = raised.clone();
    let run = move || {
        protect::run(&store, options, move |seat| {
            let result = Python::try_attach(|py| {
                lend(py, seat, &body).map_err(|error| {
                    let said = error.to_string();
                    let is_of_call = error.is_instance_of::<RolledBack>(py)
                        || error.is_instance_of::<SeatFailed>(py);
                    if !is_of_call {
                        let mut first = keep.lock().unwrap_or_else(PoisonError::into_inner);
                        first.get_or_insert(error);
                    }
                    said
                })
            });
            result.unwrap_or_else(|| Err("Python is about to end".into()))
        })
    };
    let results = match interruptible(py, run)? {
        Ok(results) => results,
        Err(error) => {
            let error = PyErr::from(Failure::from(error));
            let cause = raised.lock().unwrap_or_else(PoisonError::into_inner).take();
            error.set_cause(py, cause);
            return Err(error);
        }
    };
    let dict = PyDict::new(py);
    for (number, result) in results {
        dict.set_item(number, result)?;
    }
    Ok(dict)
}

#[pymethods]
impl Seat {
    /// The number of this seat, from 0.
    #[getter]
    fn number(&self, py: Python<'_>) -> Result<usize, Failure> {
        self.call(py, |seat| Ok(seat.number()))
    }

    /// The number of all seats.
    #[getter]
    fn seats(&self, py: Python<'_>) -> Result<usize, Failure> {
        self.call(py, |seat| Ok(seat.seats()))
    }

    /// The number of bytes of a seat.
    #[getter]
    fn bytes(&self, py: Python<'_>) -> Result<u64, Failure> {
        self.call(py, |seat| Ok(seat.bytes()))
    }

    /// The note of the point from which the function was called; None at the very beginning, when
    /// all bytes of all seats are 0.
    #[getter]
    fn note<'py>(&self, py: Python<'py>) -> Result<Option<Bound<'py, PyBytes>>, Failure> {
        let note = self.call(py, |seat| Ok(seat.note().map(<[u8]>::to_vec)))?;
        Ok(note.map(|note| PyBytes::new(py, &note)))
    }

    /// Whether the function may be repeating what it did before a rollback: no point was saved
    /// since. For programs that print.
    #[getter]
    fn is_replaying(&self, py: Python<'_>) -> Result<bool, Failure> {
        self.call(py, |seat| Ok(seat.is_replaying()))
    }

    /// Whether all pieces of all seats are at living members.
    fn is_whole(&self, py: Python<'_>) -> Result<bool, Failure> {
        self.call(py, protect::Seat::is_whole)
    }

    /// Bytes from outside of the seats, such as the time or a key of the store, which `look()`
    /// returns. For looking and not for taking: after a rollback look is called again. With logs, a
    /// seat that repeats what a dead holder did gets the bytes that the dead holder was given. If
    /// look raises an exception, nothing is remembered.
    fn remember<'py>(
        &self,
        py: Python<'py>,
        look: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let look = look.clone().unbind();
        let looked = move || {
            Python::attach(|py| Ok(buffer::value(&look.call0(py)?.into_bound(py))?.get().to_vec()))
        };
        let seen =
            self.call(py, |seat| Ok(seat.try_remember(|| looked().map_err(Unseen::Look))))?;
        match seen {
            Ok(bytes) => Ok(PyBytes::new(py, &bytes)),
            Err(Unseen::Look(error)) => Err(error),
            Err(Unseen::Call(error)) => Err(Failure::from(error).into()),
        }
    }

    /// Writes bytes, a buffer, to the memory of a seat. They may be complete only after a flush, a
    /// lock, a barrier or a point; the buffer can be used again at once.
    fn put(&self, target: usize, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = buffer::value(data)?;
        let bytes = bytes.get();
        Ok(self.call(data.py(), |seat| seat.put(target, offset, bytes))?)
    }

    /// Bytes of the memory of a seat. Earlier puts of this seat are seen.
    fn get<'py>(
        &self,
        py: Python<'py>,
        target: usize,
        offset: u64,
        length: usize,
    ) -> Result<Bound<'py, PyBytes>, Failure> {
        let bytes = self.call(py, |seat| {
            // A length that is too great makes no memory of that size: the seat refuses the byte
            // beyond its end.
            let mut bytes = vec![0; length.min(seat.bytes() as usize + 1)];
            seat.get(target, offset, &mut bytes)?;
            Ok(bytes)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Fills a writable, contiguous buffer with bytes of the memory of a seat.
    fn get_into(&self, target: usize, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut view = View::to_fill(buffer)?;
        let place = view.bytes_mut();
        Ok(self.call(buffer.py(), |seat| seat.get(target, offset, place))?)
    }

    /// Combines the words of 8 bytes from the offset on with numbers, each atomically; see
    /// Window.accumulate.
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
            return Ok(self.call(py, |seat| seat.accumulate(target, offset, update, &values))?);
        }
        let values: Vec<u64> = values.extract()?;
        Ok(self.call(py, |seat| seat.accumulate(target, offset, update, &values))?)
    }

    /// Combines a word with a number, atomically, and returns the word before; see
    /// Window.fetch_and_op.
    #[pyo3(signature = (target, offset, op, value, signed=false))]
    fn fetch_and_op<'py>(
        &self,
        target: usize,
        offset: u64,
        op: &str,
        value: &Bound<'py, PyAny>,
        signed: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, update) = (value.py(), update(op)?);
        if signed {
            let value: i64 = value.extract()?;
            let before = self.call(py, |seat| seat.fetch_and_op(target, offset, update, value))?;
            return Ok(before.into_pyobject(py)?.into_any());
        }
        let value: u64 = value.extract()?;
        let before = self.call(py, |seat| seat.fetch_and_op(target, offset, update, value))?;
        Ok(before.into_pyobject(py)?.into_any())
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
        self.call(py, |seat| seat.compare_and_swap(target, offset, expected, desired))
    }

    /// Completes all operations of this seat on a seat, or on all seats.
    #[pyo3(signature = (target=None))]
    fn flush(&self, py: Python<'_>, target: Option<usize>) -> Result<(), Failure> {
        self.call(py, |seat| match target {
            Some(target) => seat.flush(target),
            None => seat.flush_all(),
        })
    }

    /// Locks the memory of a seat against other seats that lock it.
    #[pyo3(signature = (target, shared=false))]
    fn lock(&self, py: Python<'_>, target: usize, shared: bool) -> Result<(), Failure> {
        self.call(py, |seat| seat.lock(target, lock_kind(shared)))
    }

    /// Releases the lock of a seat.
    fn unlock(&self, py: Python<'_>, target: usize) -> Result<(), Failure> {
        self.call(py, |seat| seat.unlock(target))
    }

    /// Returns when all seats have called it. All operations of all seats from before are complete.
    fn barrier(&self, py: Python<'_>) -> Result<(), Failure> {
        self.call(py, protect::Seat::barrier)
    }

    /// A barrier of all seats at which they are saved together, if a save is due. After a rollback
    /// to it the function is called with the note, and all seats have the bytes of now. Returns
    /// whether all seats are saved. The seat holds no lock.
    #[pyo3(signature = (note=None))]
    fn barrier_point(&self, py: Python<'_>, note: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        self.point_at(py, note, protect::Seat::barrier_point)
    }

    /// A point of this seat alone, which seats need not call together: here the seat can be taken
    /// up again. If a save is due, the call waits until all seats are at a point, or for the time
    /// `gather` of Store.run_seats.
    #[pyo3(signature = (note=None))]
    fn point(&self, py: Python<'_>, note: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        self.point_at(py, note, protect::Seat::point)
    }
}

//! Handles of keys, pins of versions, and batches.

use crate::buffer::{self, View};
use crate::error::{Code, Failure, failure};
use crate::store::{PyVersion, bytes, expect, to_python, versioned};
use outlast::store::{KeyHandle, Store, StoreResult, Value};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A key with its location, for programs that use the key again and again. Threads that share a key
/// make a handle each.
#[pyclass(frozen, module = "outlast")]
pub(crate) struct Handle {
    /// A handle belongs to a thread at a time. Its alignment is greater than that of Python's
    /// objects, so it is in a box.
    handle: Mutex<Box<KeyHandle>>,
}

impl Handle {
    pub(crate) fn new(handle: KeyHandle) -> Handle {
        Handle { handle: Mutex::new(Box::new(handle)) }
    }

    /// Makes a call, without Python's lock.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&KeyHandle) -> StoreResult<T> + Send,
    ) -> Result<T, Failure> {
        Ok(py.detach(|| call(&self.handle.lock().unwrap_or_else(PoisonError::into_inner)))?)
    }

    fn read(&self, py: Python<'_>) -> Result<Option<Value>, Failure> {
        self.call(py, |handle| handle.get())
    }
}

#[pymethods]
impl Handle {
    /// The key.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyBytes>, Failure> {
        Ok(PyBytes::new(py, &self.call(py, |handle| Ok(handle.key().to_vec()))?))
    }

    /// Sets the key and returns the new version.
    fn put(&self, value: &Bound<'_, PyAny>) -> PyResult<PyVersion> {
        let bytes = buffer::value(value)?;
        let bytes = bytes.get();
        Ok(to_python(self.call(value.py(), |handle| handle.put(bytes))?))
    }

    /// Sets the key if it has this version, or, if it is None, if it does not exist; otherwise
    /// raises Conflict. Returns the new version.
    #[pyo3(signature = (value, version=None))]
    fn put_if(&self, value: &Bound<'_, PyAny>, version: Option<PyVersion>) -> PyResult<PyVersion> {
        let (bytes, expect) = (buffer::value(value)?, expect(version));
        let bytes = bytes.get();
        Ok(to_python(self.call(value.py(), |handle| handle.put_if(bytes, expect))?))
    }

    /// The value, or the default if the key does not exist.
    #[pyo3(signature = (default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        default: Option<Bound<'py, PyAny>>,
    ) -> Result<Option<Bound<'py, PyAny>>, Failure> {
        Ok(self.read(py)?.map(|value| bytes(py, &value).into_any()).or(default))
    }

    /// The value and its version, or None if the key does not exist.
    fn get_versioned<'py>(
        &self,
        py: Python<'py>,
    ) -> Result<Option<(Bound<'py, PyBytes>, PyVersion)>, Failure> {
        Ok(self.read(py)?.map(|value| versioned(py, value)))
    }

    /// Copies the value into a writable, contiguous buffer and returns its length in bytes, or None
    /// if the key does not exist.
    fn get_into(&self, buffer: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        let mut view = View::to_fill(buffer)?;
        let place = view.bytes_mut();
        let found = self.call(buffer.py(), |handle| handle.get_into(place))?;
        Ok(found.map(|(len, _)| len))
    }

    /// The version of the key, or None if the key does not exist.
    #[getter]
    fn version(&self, py: Python<'_>) -> Result<Option<PyVersion>, Failure> {
        Ok(self.call(py, |handle| handle.version())?.map(to_python))
    }

    /// Adds to the number that the key holds, 0 if it does not exist, and returns the sum.
    fn add(&self, py: Python<'_>, delta: i64) -> Result<i64, Failure> {
        self.call(py, |handle| handle.add(delta))
    }

    /// Deletes the key. Returns whether it existed.
    fn delete(&self, py: Python<'_>) -> Result<bool, Failure> {
        self.call(py, |handle| handle.delete())
    }
}

/// A version of a key that stays readable while the key changes, until the end of the with
/// statement.
#[pyclass(frozen, module = "outlast")]
pub(crate) struct Pin {
    pin: Mutex<Option<outlast::store::Pin>>,
}

fn over() -> Failure {
    failure(Code::Over, "the pin is closed")
}

impl Pin {
    pub(crate) fn new(pin: outlast::store::Pin) -> Pin {
        Pin { pin: Mutex::new(Some(pin)) }
    }

    fn slot(&self) -> MutexGuard<'_, Option<outlast::store::Pin>> {
        self.pin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call, without Python's lock.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&outlast::store::Pin) -> StoreResult<T> + Send,
    ) -> Result<T, Failure> {
        py.detach(|| Ok(call(self.slot().as_ref().ok_or_else(over)?)?))
    }
}

#[pymethods]
impl Pin {
    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) {
        self.close(py);
    }

    /// Ends the pin.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.slot().take()));
    }

    fn __len__(&self, py: Python<'_>) -> Result<usize, Failure> {
        self.call(py, |pin| Ok(pin.len() as usize))
    }

    /// The pinned version.
    #[getter]
    fn version(&self, py: Python<'_>) -> Result<PyVersion, Failure> {
        self.call(py, |pin| Ok(to_python(pin.version())))
    }

    /// The member that owned the key when it was pinned.
    #[getter]
    fn owner(&self, py: Python<'_>) -> Result<u32, Failure> {
        self.call(py, |pin| Ok(pin.owner().0))
    }

    /// The whole value.
    fn get<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyBytes>, Failure> {
        Ok(PyBytes::new(py, &self.call(py, |pin| pin.to_vec())?))
    }

    /// Fills a writable, contiguous buffer with the bytes of the value from `offset` on.
    #[pyo3(signature = (buffer, offset=0))]
    fn read_into(&self, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<()> {
        let mut view = View::to_fill(buffer)?;
        let place = view.bytes_mut();
        Ok(self.call(buffer.py(), |pin| pin.read(offset, place))?)
    }
}

/// Puts that are complete at the end of the with statement, or when flush() returns. A batch
/// belongs to the thread that made it.
#[pyclass(frozen, module = "outlast")]
pub(crate) struct Batch {
    store: Store,
}

impl Batch {
    pub(crate) fn new(store: Store) -> Batch {
        Batch { store }
    }
}

#[pymethods]
impl Batch {
    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        // After an exception the puts are complete as well, and that exception goes on.
        let flushed = self.flush(py);
        if kind.is_none() { flushed } else { Ok(()) }
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let (py, key, value) = (key.py(), buffer::key(key)?, buffer::value(value)?);
        let (key, value) = (key.get(), value.get());
        Ok(py.detach(|| self.store.put_nb(key, value)).map_err(Failure::from)?)
    }

    /// Waits until all puts of the batch are complete. Raises the first error of a put.
    fn flush(&self, py: Python<'_>) -> Result<(), Failure> {
        Ok(py.detach(|| self.store.flush())?)
    }
}

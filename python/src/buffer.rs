//! The bytes of Python objects: keys, values, and buffers to fill.
//!
//! A contiguous buffer is used in its place, without a copy. While a view of it exists, Python
//! neither moves nor frees it. A buffer that is not contiguous is copied in C order where it is
//! read, and refused where it is to be filled.
//!
//! The calls of the buffer protocol are part of Python's stable interface from version 3.11 on.
//! Earlier versions have them with identical declarations, and export them, so that this module
//! declares them itself: the package works from Python 3.9 on.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyMemoryView, PyString};
use std::ffi::{CStr, c_char, c_int, c_void};

/// `Py_buffer` of Python.
#[repr(C)]
struct RawView {
    buf: *mut c_void,
    obj: *mut ffi::PyObject,
    len: ffi::Py_ssize_t,
    itemsize: ffi::Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut ffi::Py_ssize_t,
    strides: *mut ffi::Py_ssize_t,
    suboffsets: *mut ffi::Py_ssize_t,
    internal: *mut c_void,
}

unsafe extern "C" {
    fn PyObject_CheckBuffer(object: *mut ffi::PyObject) -> c_int;
    fn PyObject_GetBuffer(object: *mut ffi::PyObject, view: *mut RawView, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut RawView);
}

const WRITABLE: c_int = 0x1;
const FORMAT: c_int = 0x4;
const C_CONTIGUOUS: c_int = 0x20 | 0x10 | 0x8;

/// A view of a contiguous buffer. Its place in memory is fixed, since Python may point into it.
pub(crate) struct View(Box<RawView>);

// SAFETY: the view is a reference to a Python object, which may be released by any thread that is
// attached to Python; `drop` attaches.
unsafe impl Send for View {}
// SAFETY: a shared view only hands out its bytes to read.
unsafe impl Sync for View {}

impl View {
    fn of(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<View> {
        let mut view = Box::<RawView>::new_uninit();
        // SAFETY: the object is alive and this thread is attached, as `Bound` proves. The call
        // initializes the view if it returns 0, and sets an exception otherwise.
        let view = unsafe {
            match PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) {
                0 => view.assume_init(),
                _ => return Err(PyErr::fetch(object.py())),
            }
        };
        Ok(View(view))
    }

    /// A view of a buffer that a call fills.
    pub(crate) fn to_fill(object: &Bound<'_, PyAny>) -> PyResult<View> {
        if !has_buffer(object) {
            let kind = object.get_type();
            let message = format!("a buffer to fill is needed, not {}", kind.name()?);
            return Err(PyTypeError::new_err(message));
        }
        let view = View::of(object, WRITABLE | FORMAT | C_CONTIGUOUS).map_err(|error| {
            let reason = error.value(object.py()).to_string();
            PyValueError::new_err(format!(
                "the buffer cannot be filled: it must be writable and contiguous in C order, and \
                 Python says: {reason}"
            ))
        })?;
        view.check_format("the buffer")?;
        Ok(view)
    }

    /// Refuses Python objects: their bytes are addresses.
    fn check_format(&self, what: &str) -> PyResult<()> {
        if self.0.format.is_null() {
            return Ok(());
        }
        // SAFETY: a format that is not null ends with a null character and lives as long as the
        // view.
        let format = unsafe { CStr::from_ptr(self.0.format) };
        check_format(what, format.to_bytes())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        if self.0.len <= 0 {
            return &[];
        }
        // SAFETY: Python promises `len` bytes at `buf` for as long as the view exists. Another
        // Python thread may write them meanwhile, as with every call of Python that releases its
        // lock; the documentation forbids it, and only the bytes of the value depend on it.
        unsafe { std::slice::from_raw_parts(self.0.buf.cast(), self.0.len as usize) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        if self.0.len <= 0 || self.0.readonly != 0 {
            return &mut [];
        }
        // SAFETY: as in `bytes`; the view is of a writable buffer.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf.cast(), self.0.len as usize) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // When Python has ended, nothing is left to release.
        Python::try_attach(|_| {
            // SAFETY: `of` made the view, and it is released once, by a thread that is attached.
            unsafe { PyBuffer_Release(&raw mut *self.0) }
        });
    }
}

/// The bytes of a key or a value.
pub(crate) enum Bytes<'py> {
    Object(Bound<'py, PyBytes>),
    View(View),
}

impl Bytes<'_> {
    pub(crate) fn get(&self) -> &[u8] {
        match self {
            Bytes::Object(bytes) => bytes.as_bytes(),
            Bytes::View(view) => view.bytes(),
        }
    }
}

fn has_buffer(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the object is alive and this thread is attached.
    unsafe { PyObject_CheckBuffer(object.as_ptr()) != 0 }
}

/// Whether a format has a Python object in it. The names of fields stand between colons.
fn check_format(what: &str, format: &[u8]) -> PyResult<()> {
    let outside_names = format.split(|byte| *byte == b':').step_by(2);
    if outside_names.flatten().any(|byte| *byte == b'O') {
        return Err(PyTypeError::new_err(format!(
            "{what} must have bytes of its own, not Python objects; use pickle.dumps"
        )));
    }
    Ok(())
}

fn bytes_of<'py>(
    what: &str,
    object: &Bound<'py, PyAny>,
    advice: impl FnOnce() -> &'static str,
) -> PyResult<Bytes<'py>> {
    if !has_buffer(object) {
        let (kind, advice) = (object.get_type(), advice());
        let message =
            format!("{what} must be bytes or another buffer, not {}; {advice}", kind.name()?);
        return Err(PyTypeError::new_err(message));
    }
    if let Ok(view) = View::of(object, FORMAT | C_CONTIGUOUS) {
        view.check_format(what)?;
        return Ok(Bytes::View(view));
    }
    // The buffer is not contiguous, or cannot be viewed at all; then this says why.
    let view = PyMemoryView::from(object)?;
    let format: String = view.getattr("format")?.extract()?;
    check_format(what, format.as_bytes())?;
    Ok(Bytes::Object(view.call_method0("tobytes")?.cast_into()?))
}

/// The bytes of a key: a str, as UTF-8, or a buffer.
pub(crate) fn key<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bytes<'py>> {
    if let Ok(text) = object.cast::<PyString>() {
        return Ok(Bytes::Object(text.encode_utf8()?));
    }
    match object.cast::<PyBytes>() {
        Ok(bytes) => Ok(Bytes::Object(bytes.clone())),
        Err(_) => bytes_of("a key", object, || "use a str, for example str(key)"),
    }
}

/// The bytes of a value: a buffer.
pub(crate) fn value<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bytes<'py>> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(Bytes::Object(bytes.clone()));
    }
    bytes_of("a value", object, || {
        if object.is_instance_of::<PyString>() {
            "use value.encode()"
        } else if object.is_instance_of::<PyInt>() {
            "use value.to_bytes, or Store.add for a number that members count together"
        } else {
            "use bytes(value) or pickle.dumps(value)"
        }
    })
}

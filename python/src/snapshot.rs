//! Snapshots of a store in files.

use crate::error::Failure;
use crate::wait::interruptible;
use outlast::snapshot::Options;
use outlast::store::Store;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;

/// A folder of snapshots of a store; made by Store.snapshots.
#[pyclass(frozen, module = "outlast")]
pub(crate) struct Snapshots {
    snapshots: outlast::snapshot::Snapshots,
}

impl Snapshots {
    pub(crate) fn open(store: &Store, folder: PathBuf, options: Options) -> PyResult<Snapshots> {
        let snapshots = outlast::snapshot::Snapshots::open(store, &folder, options);
        Ok(Snapshots { snapshots: snapshots.map_err(Failure::from)? })
    }
}

#[pymethods]
impl Snapshots {
    /// Takes a snapshot and waits until it is published. It holds all writes that were acknowledged
    /// before the call. Returns its path and generation, the number of its records and bytes, and
    /// for how many seconds writers were held up.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let snapshots = self.snapshots.clone();
        let taken = interruptible(py, move || snapshots.take())?.map_err(Failure::from)?;
        let dict = PyDict::new(py);
        dict.set_item("path", taken.path)?;
        dict.set_item("generation", taken.generation)?;
        dict.set_item("records", taken.records)?;
        dict.set_item("bytes", taken.bytes)?;
        dict.set_item("frozen_for", taken.frozen_for.as_secs_f64())?;
        Ok(dict)
    }

    /// The folder of the snapshots.
    #[getter]
    fn folder(&self) -> PathBuf {
        self.snapshots.folder().to_path_buf()
    }
}

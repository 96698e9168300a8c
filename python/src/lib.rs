//! Outlast for Python: the module `outlast._outlast`, over which `outlast/__init__.py` makes the
//! package.
//!
//! Each class holds a type of the Rust library and forwards its calls. A call that may wait
//! releases Python's lock (`Python::detach`), so that other Python threads run meanwhile. `buffer`
//! finds the bytes of keys and values, `wait` looks for signals, and `error` makes exceptions.
//!
//! A death of another member during a call has the effect that the documentation of the Rust call
//! describes. If this process dies, its Python objects die with it; nothing of them is in the job's
//! memory.

mod buffer;
mod comm;
mod error;
mod handle;
mod images;
mod job;
mod lock;
mod log;
mod regions;
mod seats;
mod snapshot;
mod store;
mod transaction;
mod wait;
mod window;

use pyo3::prelude::*;

#[pymodule]
fn _outlast(module: &Bound<'_, PyModule>) -> PyResult<()> {
    error::add_to(module)?;
    module.add_class::<job::Job>()?;
    module.add_class::<store::Store>()?;
    module.add_class::<store::Death>()?;
    module.add_class::<transaction::Transaction>()?;
    module.add_class::<handle::Handle>()?;
    module.add_class::<handle::Pin>()?;
    module.add_class::<handle::Batch>()?;
    module.add_class::<lock::Lock>()?;
    module.add_class::<regions::Regions>()?;
    module.add_class::<regions::Restored>()?;
    module.add_class::<snapshot::Snapshots>()?;
    module.add_class::<images::Images>()?;
    module.add_class::<comm::Comm>()?;
    module.add_class::<comm::Message>()?;
    module.add_class::<comm::Request>()?;
    module.add_class::<comm::Agreed>()?;
    module.add_class::<window::Window>()?;
    module.add_class::<window::WindowLock>()?;
    module.add_class::<seats::Seat>()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}

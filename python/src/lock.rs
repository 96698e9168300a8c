//! Locks, as context managers.

use crate::error::{Code, Failure, failure};
use crate::wait::in_slices;
use outlast::store::{LockGuard, Store, StoreError};
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The lock of a key, for a with statement, which gives the dead member that held the lock, or
/// None. The with statement raises Locked at the time limit.
#[pyclass(frozen, module = "outlast")]
pub(crate) struct Lock {
    store: Store,
    key: Vec<u8>,
    limit: Duration,
    guard: Mutex<Option<LockGuard>>,
}

impl Lock {
    pub(crate) fn new(store: Store, key: Vec<u8>, limit: Duration) -> Lock {
        Lock { store, key, limit, guard: Mutex::default() }
    }

    /// The guard; the lock around it is never held while a call waits.
    fn guard(&self) -> std::sync::MutexGuard<'_, Option<LockGuard>> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn not_held() -> Failure {
    failure(Code::Over, "the lock is not held")
}

#[pymethods]
impl Lock {
    fn __enter__(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        if self.guard().is_some() {
            return Err(failure(Code::Nested, "this with statement holds the lock already").into());
        }
        let job = self.store.job();
        let began = job.now();
        let holder = Mutex::new(None);
        let guard =
            in_slices(py, job, self.limit, |until| match self.store.lock(&self.key, until) {
                Ok(guard) => Ok(Some(guard)),
                Err(StoreError::Locked { holder: found, .. }) => {
                    *holder.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
                    Ok(None)
                }
                Err(error) => Err(Failure::from(error)),
            })?;
        let holder = holder.into_inner().unwrap_or_else(PoisonError::into_inner);
        match (guard, holder) {
            (Some(guard), _) => {
                let abandoned_by = guard.abandoned_by().map(|member| member.0);
                *self.guard() = Some(guard);
                Ok(abandoned_by)
            }
            (None, Some(holder)) => {
                let waited = job.now().since(began);
                Err(Failure::from(StoreError::Locked { holder, waited }).into())
            }
            (None, None) => Err(not_held().into()),
        }
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        let guard = self.guard().take().ok_or_else(not_held)?;
        Ok(py.detach(|| guard.unlock())?)
    }

    /// The version of the lock while it is held: it grows from holder to holder. Another system can
    /// refuse a former holder, whose version is smaller.
    #[getter]
    fn version(&self) -> Result<(u64, u32), Failure> {
        let version = self.guard().as_ref().ok_or_else(not_held)?.version();
        Ok((version.counter, version.writer.0))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(guard) = self.guard().take() {
            // Releasing may wait for another member.
            Python::try_attach(|py| py.detach(|| drop(guard)));
        }
    }
}

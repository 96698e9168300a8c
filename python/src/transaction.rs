//! Transactions, and recovery together.

use crate::buffer;
use crate::error::{Code, Failure, failure};
use crate::store::{Death, PyVersion, expect, to_python};
use crate::wait::interruptible;
use outlast::store::{Store, StoreError, StoreResult};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A transaction: no other member sees its changes before it is committed.
#[pyclass(frozen, module = "outlast")]
pub(crate) struct Transaction {
    /// `None` when the transaction is over.
    tx: Mutex<Option<outlast::store::Transaction>>,
}

fn over() -> Failure {
    failure(Code::Over, "the transaction is over; begin a new transaction")
}

impl Transaction {
    pub(crate) fn new(tx: outlast::store::Transaction) -> Transaction {
        Transaction { tx: Mutex::new(Some(tx)) }
    }

    fn slot(&self) -> MutexGuard<'_, Option<outlast::store::Transaction>> {
        self.tx.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call, without Python's lock.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut outlast::store::Transaction) -> StoreResult<T> + Send,
    ) -> Result<T, Failure> {
        py.detach(|| Ok(call(self.slot().as_mut().ok_or_else(over)?)?))
    }

    /// Makes a call on a key, without Python's lock.
    fn on_key<T: Send>(
        &self,
        key: &Bound<'_, PyAny>,
        call: impl FnOnce(&mut outlast::store::Transaction, &[u8]) -> StoreResult<T> + Send,
    ) -> PyResult<T> {
        let (py, key) = (key.py(), buffer::key(key)?);
        let key = key.get();
        Ok(self.call(py, |tx| call(tx, key))?)
    }

    fn read(&self, key: &Bound<'_, PyAny>) -> PyResult<Option<Vec<u8>>> {
        self.on_key(key, |tx, key| tx.get(key))
    }

    /// Ends the transaction; one that is not committed is aborted.
    fn end(&self, py: Python<'_>) {
        py.detach(|| drop(self.slot().take()));
    }
}

#[pymethods]
impl Transaction {
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
        let committed = if kind.is_none() { self.commit(py) } else { Ok(()) };
        self.end(py);
        committed
    }

    /// Commits: all changes take effect together, or none does and Aborted is raised.
    fn commit(&self, py: Python<'_>) -> Result<(), Failure> {
        self.call(py, |tx| tx.commit())
    }

    /// The keys that were put, with the versions that commit() gave them.
    fn versions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let versions = self.call(py, |tx| Ok(tx.versions().to_vec()))?;
        let dict = PyDict::new(py);
        for (key, version) in versions {
            dict.set_item(PyBytes::new(py, &key), to_python(version))?;
        }
        Ok(dict)
    }

    /// Ends the transaction without any effect.
    fn abort(&self, py: Python<'_>) -> Result<(), Failure> {
        self.call(py, |tx| {
            tx.abort();
            Ok(())
        })
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        match self.read(key)? {
            Some(value) => Ok(PyBytes::new(key.py(), &value)),
            None => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.read(key)?.is_some())
    }

    /// The value of a key as the transaction sees it.
    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let found = self.read(key)?;
        Ok(found.map(|value| PyBytes::new(key.py(), &value).into_any()).or(default))
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = buffer::value(value)?;
        let value = value.get();
        self.on_key(key, |tx, key| tx.put(key, value))
    }

    fn __delitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        match self.on_key(key, |tx, key| tx.delete(key))? {
            true => Ok(()),
            false => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    /// Adds to the number that a key holds, 0 if the key does not exist, and returns the sum.
    fn add(&self, key: &Bound<'_, PyAny>, delta: i64) -> PyResult<i64> {
        self.on_key(key, |tx, key| tx.add(key, delta))
    }

    /// Makes this member the owner of a key. Returns whether the key exists.
    fn adopt(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.on_key(key, |tx, key| tx.adopt(key))
    }

    /// Makes the transaction depend on a key: raises Conflict if the key does not have this
    /// version, or, if it is None, if the key exists. If the key changes before the commit, the
    /// transaction does not commit.
    #[pyo3(signature = (key, version=None))]
    fn require(&self, key: &Bound<'_, PyAny>, version: Option<PyVersion>) -> PyResult<()> {
        let expect = expect(version);
        self.on_key(key, |tx, key| tx.require(key, expect))
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.slot().is_some() {
            // Aborting may wait for another member.
            Python::try_attach(|py| self.end(py));
        }
    }
}

/// Deletes a key and returns its value.
pub(crate) fn take(store: &Store, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
    let until = Instant::now() + store.job().time_limit();
    let mut tx = store.begin();
    loop {
        let attempt = tx.get(key).and_then(|value| {
            if value.is_some() {
                tx.delete(key)?;
            }
            tx.commit()?;
            Ok(value)
        });
        match attempt {
            Err(StoreError::Aborted) if Instant::now() < until => tx.retry()?,
            other => return other,
        }
    }
}

/// An error in a transaction: of the library, or an exception of the body.
struct TxError(PyErr);

impl From<StoreError> for TxError {
    fn from(error: StoreError) -> TxError {
        TxError(Failure::from(error).into())
    }
}

/// Calls a function of the program with a transaction, which the function has during the call only.
fn lend<'py>(
    py: Python<'py>,
    store: &Store,
    tx: &mut outlast::store::Transaction,
    call: impl FnOnce(&Bound<'py, Transaction>) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Py<PyAny>> {
    // An empty transaction stands in for the time of the call.
    let lent = std::mem::replace(tx, store.begin());
    let object = Bound::new(py, Transaction::new(lent))?;
    let result = call(&object);
    // A thread of the program may be in a call on the transaction; it ends in a bounded time.
    let back = py.detach({
        let object = object.get();
        move || object.slot().take()
    });
    if let Some(back) = back {
        *tx = back;
    }
    result.map(Bound::unbind)
}

/// Runs a function as a transaction.
pub(crate) fn transact<'py>(
    py: Python<'py>,
    store: &Store,
    body: &Bound<'py, PyAny>,
    limit: Duration,
) -> PyResult<Bound<'py, PyAny>> {
    let body = body.clone().unbind();
    let began = Instant::now();
    let mut attempts = 0;
    let result = py.detach(|| {
        store.transaction(|tx| {
            attempts += 1;
            if attempts > 1 && began.elapsed() >= limit {
                // No further attempt is made after this error: the transaction has read nothing.
                return Err(StoreError::Contended { attempts: attempts - 1 }.into());
            }
            Python::attach(|py| {
                py.check_signals()?;
                lend(py, store, tx, |object| body.bind(py).call1((object,)))
            })
            .map_err(TxError)
        })
    });
    Ok(result.map_err(|TxError(error)| error)?.into_bound(py))
}

/// Recovers together with all living members.
pub(crate) fn recover<'py>(
    py: Python<'py>,
    store: &Store,
    procedure: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    loop {
        let begin = store.clone();
        let mut recovery =
            interruptible(py, move || begin.recover_begin())?.map_err(Failure::from)?;
        let deaths: Vec<Death> = recovery.deaths().iter().map(Death::new).collect();
        let result = lend(py, store, recovery.tx(), |object| procedure.call1((object, deaths)));
        let result = match result {
            Ok(result) => result,
            Err(error) => {
                let reason = format!("the procedure of a member raised {error}");
                // The exception of the procedure says more than an error here would.
                let _ = interruptible(py, move || recovery.fail(&reason))?;
                return Err(error);
            }
        };
        match interruptible(py, move || recovery.end())? {
            Ok(()) => return Ok(result.into_bound(py)),
            Err(StoreError::Revoked) => {}
            Err(error) => return Err(Failure::from(error).into()),
        }
    }
}

//! The store: the calls of a dict, and the calls that a dict does not have.

use crate::buffer::{self, Bytes, View};
use crate::error::{Code, Failure, closed, failure};
use crate::handle::{Batch, Handle, Pin};
use crate::images::Images;
use crate::job::{Job, member};
use crate::lock::Lock;
use crate::regions::{Regions, region_options};
use crate::seats;
use crate::snapshot::Snapshots;
use crate::transaction::{self, Transaction};
use crate::wait::{duration, in_slices, interruptible};
use outlast::protect::{Interval, Level, Protect};
use outlast::store::{
    Expect, Latency, Mode, Options, RepairStatus, StoreError, StoreResult, Value, Version,
    WaitOutcome,
};
use outlast::{Epoch, MemberId, snapshot};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyMapping};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A version, as Python has it.
pub(crate) type PyVersion = (u64, u32);

pub(crate) fn to_python(version: Version) -> PyVersion {
    (version.counter, version.writer.0)
}

fn of_python((counter, writer): PyVersion) -> Version {
    Version { counter, writer: MemberId(writer) }
}

/// The condition of a put: a version, or that the key does not exist.
pub(crate) fn expect(version: Option<PyVersion>) -> Expect {
    version.map_or(Expect::Absent, |version| Expect::Version(of_python(version)))
}

/// The death of a member; the member `heir` takes over from it.
#[pyclass(frozen, module = "outlast")]
pub(crate) struct Death {
    /// The member that died.
    #[pyo3(get)]
    member: u32,
    /// The member that takes over from it.
    #[pyo3(get)]
    heir: u32,
    /// Whether the member left on purpose.
    #[pyo3(get)]
    left: bool,
}

impl Death {
    pub(crate) fn new(death: &outlast::store::Death) -> Death {
        Death { member: death.member.0, heir: death.heir().0, left: death.left }
    }
}

#[pymethods]
impl Death {
    fn __repr__(&self) -> String {
        format!("Death(member={}, heir={})", self.member, self.heir)
    }
}

/// The calls of a store; outlast.Store adds those of a MutableMapping.
#[pyclass(subclass, frozen, module = "outlast._outlast")]
pub(crate) struct Store {
    /// `None` when this member has closed the store. The lock is held for a moment only.
    store: Mutex<Option<outlast::store::Store>>,
    /// The deaths that `deaths` has returned so far.
    seen: Mutex<Epoch>,
}

impl Store {
    fn slot(&self) -> MutexGuard<'_, Option<outlast::store::Store>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store, if it is open.
    #[inline]
    fn get(&self) -> Result<outlast::store::Store, Failure> {
        self.slot().clone().ok_or_else(closed)
    }

    /// Makes a call on a key, without Python's lock.
    #[inline]
    fn on_key<T: Send>(
        &self,
        key: &Bound<'_, PyAny>,
        call: impl FnOnce(&outlast::store::Store, &[u8]) -> StoreResult<T> + Send,
    ) -> PyResult<T> {
        let (store, py, key) = (self.get()?, key.py(), buffer::key(key)?);
        let key = key.get();
        Ok(py.detach(|| call(&store, key)).map_err(Failure::from)?)
    }

    /// Makes a call, without Python's lock.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&outlast::store::Store) -> StoreResult<T> + Send,
    ) -> Result<T, Failure> {
        let store = self.get()?;
        Ok(py.detach(|| call(&store))?)
    }

    fn read(&self, key: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
        self.on_key(key, |store, key| store.get(key))
    }

    /// Waits for a key.
    fn wait_for(
        &self,
        key: &Bound<'_, PyAny>,
        seconds: f64,
        newer_than: Option<PyVersion>,
        member_number: Option<u32>,
    ) -> PyResult<Option<Value>> {
        let (store, py, key) = (self.get()?, key.py(), buffer::key(key)?);
        let (key, newer_than) = (key.get(), newer_than.map(of_python));
        let member = member_number.map(|number| member(store.job(), number)).transpose()?;
        in_slices(py, store.job(), duration(seconds)?, |until| {
            let Some(member) = member else {
                return store.wait(key, newer_than, until).map_err(Failure::from);
            };
            match store.wait_or_death(key, newer_than, until, member)? {
                WaitOutcome::Value(value) => Ok(Some(value)),
                WaitOutcome::TimedOut => Ok(None),
                WaitOutcome::Died(_) => {
                    Err(failure(Code::Died, "the member is dead and has not put the key"))
                }
            }
        })
    }
}

/// Bytes as a Python object.
pub(crate) fn bytes<'py>(py: Python<'py>, value: &Value) -> Bound<'py, PyBytes> {
    PyBytes::new(py, value.bytes())
}

/// The value and its version.
pub(crate) fn versioned(py: Python<'_>, value: Value) -> (Bound<'_, PyBytes>, PyVersion) {
    (bytes(py, &value), to_python(value.version()))
}

fn list<'py>(py: Python<'py>, keys: &[Vec<u8>]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, keys.iter().map(|key| PyBytes::new(py, key)))
}

/// The bytes of a key and a value that Python gives as a pair.
fn pair(item: PyResult<Bound<'_, PyAny>>) -> PyResult<(Bytes<'_>, Bytes<'_>)> {
    let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item?.extract()?;
    Ok((buffer::key(&key)?, buffer::value(&value)?))
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (job, replicas=0, allow_fewer=false, expected_keys=0, checksums=false,
                        global_mode=false, salvage=false, name="", partitions=0, sole_writers=false,
                        repair_share=0, slab_len_max=0))]
    #[allow(
        clippy::too_many_arguments,
        clippy::fn_params_excessive_bools,
        reason = "they are keyword arguments in Python"
    )]
    fn new(
        py: Python<'_>,
        job: &Bound<'_, Job>,
        replicas: usize,
        allow_fewer: bool,
        expected_keys: usize,
        checksums: bool,
        global_mode: bool,
        salvage: bool,
        name: &str,
        partitions: usize,
        sole_writers: bool,
        repair_share: u32,
        slab_len_max: u64,
    ) -> PyResult<Store> {
        let mut options = Options::new().checksums(checksums).salvage(salvage).name(name);
        options = options.sole_writers(sole_writers);
        if partitions != 0 {
            options = options.partitions(partitions);
        }
        if repair_share != 0 {
            options = options.repair_share(repair_share);
        }
        if slab_len_max != 0 {
            options = options.slab_len_max(slab_len_max);
        }
        if replicas != 0 {
            options = options.replicas(replicas);
        }
        if allow_fewer {
            options = options.allow_fewer();
        }
        if expected_keys != 0 {
            options = options.expected_keys(expected_keys);
        }
        if global_mode {
            options = options.mode(Mode::Global);
        }
        let job = job.get().job.clone();
        let store = interruptible(py, move || outlast::store::Store::open(&job, options))?
            .map_err(Failure::from)?;
        // Not the epoch of now: a member may put keys and die before this member is back from open.
        Ok(Store { store: Mutex::new(Some(store)), seen: Mutex::new(Epoch(0)) })
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
        if kind.is_none() { self.close(py) } else { Ok(()) }
    }

    /// Closes the store, after waiting for a bounded time until all living members close it.
    /// Its content is gone.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let store = self.slot().take().ok_or_else(closed)?;
        Ok(interruptible(py, move || store.close())?.map_err(Failure::from)?)
    }

    /// Whether this member has closed the store.
    #[getter]
    fn is_closed(&self) -> bool {
        self.slot().is_none()
    }

    /// The name of the store.
    #[getter]
    fn name(&self) -> Result<String, Failure> {
        Ok(self.get()?.name().to_string())
    }

    fn __repr__(&self) -> String {
        match self.get() {
            Ok(store) => format!("<outlast.Store {:?} of {}>", store.name(), store.me()),
            Err(_) => "<outlast.Store, closed>".into(),
        }
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        match self.read(key)? {
            Some(value) => Ok(bytes(key.py(), &value)),
            None => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.put(key, value).map(|_| ())
    }

    fn __delitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        match self.on_key(key, |store, key| store.delete(key))? {
            true => Ok(()),
            false => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.on_key(key, |store, key| store.exists(key))
    }

    fn __len__(&self, py: Python<'_>) -> Result<usize, Failure> {
        self.call(py, |store| store.len())
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let keys = self.call(py, |store| store.keys())?;
        Ok(list(py, &keys)?.try_iter()?.into_any())
    }

    /// The value of a key, or the default if the key does not exist.
    #[pyo3(name = "get", signature = (key, default=None))]
    fn get_or<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.read(key)?.map(|value| bytes(key.py(), &value).into_any()).or(default))
    }

    /// The value and its version, or None if the key does not exist.
    fn get_versioned<'py>(
        &self,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, PyVersion)>> {
        Ok(self.read(key)?.map(|value| versioned(key.py(), value)))
    }

    /// Copies the value of a key into a writable, contiguous buffer, for example a numpy array, and
    /// returns its length in bytes, or None if the key does not exist. Raises TooSmall, and copies
    /// nothing, if the value is longer than the buffer.
    fn get_into(
        &self,
        key: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<Option<usize>> {
        let mut view = View::to_fill(buffer)?;
        let place = view.bytes_mut();
        let found = self.on_key(key, |store, key| store.get_into(key, place))?;
        Ok(found.map(|(len, _)| len))
    }

    /// The values of many keys, each as of some moment during the call; None for a key that does
    /// not exist.
    fn get_all<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let keys = keys.try_iter()?.map(|key| buffer::key(&key?)).collect::<PyResult<Vec<_>>>()?;
        let keys: Vec<&[u8]> = keys.iter().map(Bytes::get).collect();
        let found = self.call(py, |store| store.get_all(keys))?;
        Ok(found.iter().map(|value| value.as_ref().map(|value| bytes(py, value))).collect())
    }

    /// Sets a key and returns the new version. store[key] = value does so, too.
    fn put(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<PyVersion> {
        let value = buffer::value(value)?;
        let value = value.get();
        Ok(to_python(self.on_key(key, |store, key| store.put(key, value))?))
    }

    /// Puts a value if the key has this version, or, if it is None, if the key does not exist;
    /// otherwise raises Conflict. Returns the new version.
    #[pyo3(signature = (key, value, version=None))]
    fn put_if(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        version: Option<PyVersion>,
    ) -> PyResult<PyVersion> {
        let value = buffer::value(value)?;
        let (value, expect) = (value.get(), expect(version));
        Ok(to_python(self.on_key(key, |store, key| store.put_if(key, value, expect))?))
    }

    /// Sets many keys, given as a mapping or as pairs, in order. Each put is a call of its own: at
    /// the first error the earlier puts have happened, and the later puts are not tried.
    fn put_all(&self, py: Python<'_>, pairs: &Bound<'_, PyAny>) -> PyResult<()> {
        let items = match pairs.cast::<PyMapping>() {
            Ok(mapping) => mapping.items()?.into_any(),
            Err(_) => pairs.clone(),
        };
        let pairs = items.try_iter()?.map(pair).collect::<PyResult<Vec<_>>>()?;
        let pairs: Vec<(&[u8], &[u8])> =
            pairs.iter().map(|(key, value)| (key.get(), value.get())).collect();
        self.call(py, |store| store.put_all(pairs))?;
        Ok(())
    }

    /// Deletes a key and returns its value. If several members call it at once, a single member
    /// gets the value. Raises KeyError if the key does not exist and there is no default.
    #[pyo3(signature = (key, *default))]
    fn pop<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if default.len() > 1 {
            let message = "pop takes a key and at most one default";
            return Err(pyo3::exceptions::PyTypeError::new_err(message));
        }
        let taken = self.on_key(key, transaction::take)?;
        match (taken, default.into_iter().next()) {
            (Some(value), _) => Ok(PyBytes::new(key.py(), &value).into_any()),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    /// Returns the value of a key, and puts the default before if the key does not exist. If
    /// several members call it at once, the default of a single member is put.
    fn setdefault<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let default = buffer::value(default)?;
        let value = default.get();
        let found = self.on_key(key, |store, key| {
            loop {
                if let Some(found) = store.get(key)? {
                    return Ok(Some(found));
                }
                match store.put_if(key, value, Expect::Absent) {
                    Ok(_) => return Ok(None),
                    Err(StoreError::Conflict { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        })?;
        Ok(match found {
            Some(found) => bytes(key.py(), &found),
            None => PyBytes::new(key.py(), value),
        })
    }

    /// The keys that begin with the prefix.
    #[pyo3(signature = (prefix=None))]
    fn scan<'py>(
        &self,
        py: Python<'py>,
        prefix: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let keys = match prefix {
            Some(prefix) => self.on_key(prefix, |store, prefix| store.scan(prefix))?,
            None => self.call(py, |store| store.keys())?,
        };
        list(py, &keys)
    }

    /// The keys that begin with the prefix, with their values. A key that is deleted meanwhile is
    /// left out.
    #[pyo3(signature = (prefix=None))]
    fn scan_items<'py>(
        &self,
        py: Python<'py>,
        prefix: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        let prefix = prefix.map(buffer::key).transpose()?;
        let prefix = prefix.as_ref().map_or(&[][..], Bytes::get);
        let found = self.call(py, |store| {
            let keys = store.scan(prefix)?;
            let values = store.get_all(&keys)?;
            Ok(keys.into_iter().zip(values).collect::<Vec<_>>())
        })?;
        let pair = |(key, value): (Vec<u8>, Option<Value>)| {
            Some((PyBytes::new(py, &key), bytes(py, value.as_ref()?)))
        };
        Ok(found.into_iter().filter_map(pair).collect())
    }

    /// The keys that a member owns.
    fn keys_of<'py>(&self, py: Python<'py>, member: u32) -> PyResult<Bound<'py, PyList>> {
        list(py, &self.call(py, |store| store.keys_of(MemberId(member)))?)
    }

    /// The members that hold a key, or are to hold it.
    fn replicas_of(&self, key: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        let members = self.on_key(key, |store, key| Ok(store.replicas_of(key)))?;
        Ok(members.iter().map(|member| member.0).collect())
    }

    /// Makes this member the owner of a key. Returns whether the key exists.
    fn adopt(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.on_key(key, |store, key| store.adopt(key))
    }

    /// Adds to the number that a key holds, 0 if the key does not exist, and returns the sum.
    /// The addition happens once, whichever member dies during it.
    fn add(&self, key: &Bound<'_, PyAny>, delta: i64) -> PyResult<i64> {
        self.on_key(key, |store, key| store.add(key, delta))
    }

    /// Sleeps until the key exists, or has a newer version than newer_than, and returns its
    /// value. Returns None at the time limit. Raises MemberDied if the member `member` is dead and
    /// has not put the key.
    #[pyo3(signature = (key, seconds, newer_than=None, member=None))]
    fn wait<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        seconds: f64,
        newer_than: Option<PyVersion>,
        member: Option<u32>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let found = self.wait_for(key, seconds, newer_than, member)?;
        Ok(found.map(|value| bytes(key.py(), &value)))
    }

    /// Waits as wait() does, and returns the value with its version.
    #[pyo3(signature = (key, seconds, newer_than=None, member=None))]
    fn wait_versioned<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        seconds: f64,
        newer_than: Option<PyVersion>,
        member: Option<u32>,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, PyVersion)>> {
        let found = self.wait_for(key, seconds, newer_than, member)?;
        Ok(found.map(|value| versioned(key.py(), value)))
    }

    /// The lock of a key, for a with statement, which gives the dead member that held the lock,
    /// or None. The with statement raises Locked at the time limit.
    fn lock(&self, key: &Bound<'_, PyAny>, seconds: f64) -> PyResult<Lock> {
        Ok(Lock::new(self.get()?, buffer::key(key)?.get().to_vec(), duration(seconds)?))
    }

    /// A handle for a key, which makes repeated calls on the key cheaper.
    fn handle(&self, key: &Bound<'_, PyAny>) -> PyResult<Handle> {
        self.on_key(key, |store, key| store.handle(key)).map(Handle::new)
    }

    /// Pins the current version of a key: it stays readable while the key changes, until the end of
    /// the with statement. Raises KeyError if the key does not exist.
    fn pin(&self, key: &Bound<'_, PyAny>) -> PyResult<Pin> {
        match self.on_key(key, |store, key| store.pin(key))? {
            Some(pin) => Ok(Pin::new(pin)),
            None => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    /// Puts that are complete at the end of the with statement.
    fn batch(&self) -> Result<Batch, Failure> {
        Ok(Batch::new(self.get()?))
    }

    /// The deaths since the last call, in their order. The first call returns all deaths of the
    /// job: a member may put keys and die before another member is back from open. If an heir dies,
    /// the members that it was to take over from are in the list again, with their new heir: a loop
    /// that adopts the keys of each member whose heir it is adopts all keys.
    fn deaths(&self) -> Result<Vec<Death>, Failure> {
        let store = self.get()?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(store.deaths_since(&mut seen).iter().map(Death::new).collect())
    }

    /// The member that takes over from a dead member.
    fn heir_of(&self, number: u32) -> Result<u32, Failure> {
        let store = self.get()?;
        Ok(store.heir_of(member(store.job(), number)?).0)
    }

    /// Gives up lost data: partitions of which no replica is left become empty and usable again.
    /// Returns the number of partitions. With a list of partitions it gives up the data of these
    /// alone; a partition that is not lost stays unchanged.
    #[pyo3(signature = (partitions=None))]
    fn accept_loss(
        &self,
        py: Python<'_>,
        partitions: Option<Vec<usize>>,
    ) -> Result<usize, Failure> {
        match partitions {
            None => Ok(self.call(py, |store| store.accept_loss())?.len()),
            Some(partitions) => {
                self.call(py, |store| store.accept_loss_of(&partitions))?;
                Ok(partitions.len())
            }
        }
    }

    /// Registers a function that is called with a list of partitions after each death that leaves
    /// lost partitions. It runs in a thread of the library, may call the store, and repair waits
    /// until it returns. An exception that leaves it is printed.
    fn on_loss(&self, listener: Bound<'_, PyAny>) -> PyResult<()> {
        if !listener.is_callable() {
            let message = format!("{} is no function", listener.get_type());
            return Err(pyo3::exceptions::PyTypeError::new_err(message));
        }
        let listener = listener.unbind();
        self.get()?.on_loss(move |partitions| {
            // Python that is about to end calls no function any more.
            Python::try_attach(|py| {
                if let Err(error) = listener.call1(py, (partitions.to_vec(),)) {
                    error.write_unraisable(py, Some(listener.bind(py)));
                }
            });
        });
        Ok(())
    }

    /// The partition of a key, as lost_partitions names it. The key need not exist.
    fn partition_of(&self, key: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.on_key(key, |store, key| store.partition_of(key))
    }

    /// The keys that are known to be lost.
    fn lost_keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        list(py, &self.call(py, |store| store.lost_keys())?)
    }

    /// The partitions of which no replica is left.
    fn lost_partitions(&self, py: Python<'_>) -> Result<Vec<usize>, Failure> {
        self.call(py, |store| store.lost_partitions())
    }

    /// A transaction for a with statement, which commits it at its end, or aborts it after an
    /// exception. Raises Aborted after a conflict with another transaction.
    fn transaction(&self) -> Result<Transaction, Failure> {
        Ok(Transaction::new(self.get()?.begin()))
    }

    /// Runs body(tx) in a transaction and commits it, again after each conflict, for at most
    /// this many seconds and at most the job's time limit; then raises Aborted, and nothing was
    /// changed. Returns the result of body.
    #[pyo3(signature = (body, seconds=30.0))]
    fn transact<'py>(
        &self,
        py: Python<'py>,
        body: &Bound<'py, PyAny>,
        seconds: f64,
    ) -> PyResult<Bound<'py, PyAny>> {
        transaction::transact(py, &self.get()?, body, duration(seconds)?)
    }

    /// Whether calls raise Revoked now.
    #[getter]
    fn is_revoked(&self) -> Result<bool, Failure> {
        Ok(self.get()?.is_revoked())
    }

    /// Stops all members, as a death does in global mode.
    fn revoke(&self, py: Python<'_>) -> Result<(), Failure> {
        self.call(py, |store| store.revoke())
    }

    /// Global mode: recovers from deaths. All living members call it after Revoked.
    /// procedure(tx, deaths) runs again if another member dies. The changes of the procedures of
    /// all members take effect together, or none does. Returns the result of procedure.
    fn recover<'py>(
        &self,
        py: Python<'py>,
        procedure: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        transaction::recover(py, &self.get()?, procedure)
    }

    /// Leaves the job: hands the replicas of this member over, so that nothing is lost even with a
    /// single replica, and ends the membership. Raises Timeout if that takes longer.
    fn leave(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let (store, limit) = (self.get()?, duration(seconds)?);
        let leave = move || store.leave(store.job().now().after(limit));
        interruptible(py, leave)?.map_err(Failure::from)?;
        self.slot().take();
        Ok(())
    }

    /// What this member has done since it opened the store: counts, and the latencies in seconds of
    /// a sample of its puts and gets.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.get()?.stats();
        let dict = PyDict::new(py);
        dict.set_item("replicas_repaired", stats.replicas_repaired)?;
        dict.set_item("records_repaired", stats.records_repaired)?;
        dict.set_item("repairs_taken_over", stats.repairs_taken_over)?;
        dict.set_item("put", latency(py, stats.put)?)?;
        dict.set_item("get", latency(py, stats.get)?)?;
        Ok(dict)
    }

    /// What the whole store holds. The call reads all records.
    fn job_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.call(py, |store| store.job_stats())?;
        let dict = repair(py, stats.repair)?;
        dict.set_item("keys", stats.keys)?;
        dict.set_item("value_bytes", stats.value_bytes)?;
        dict.set_item("key_bytes", stats.key_bytes)?;
        Ok(dict)
    }

    /// How the memory is used that this member lends to the store, in bytes.
    fn memory_use<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let used = self.call(py, |store| store.memory_use())?;
        let dict = PyDict::new(py);
        dict.set_item("values", used.values)?;
        dict.set_item("records", used.records)?;
        dict.set_item("free", used.free)?;
        dict.set_item("held_by_living", used.held_by_living)?;
        dict.set_item("held_by_dead", used.held_by_dead)?;
        dict.set_item("total", used.total())?;
        Ok(dict)
    }

    /// How many replicas are missing in the whole job, and how many partitions are lost.
    fn repair_status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        repair(py, self.call(py, |store| store.repair_status())?)
    }

    /// Waits until every partition that is not lost has all its replicas. Returns whether that is
    /// so at the time limit.
    fn wait_repaired(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let store = self.get()?;
        let repaired = in_slices(py, store.job(), duration(seconds)?, |until| {
            let status = store.wait_repaired(until)?;
            Ok::<_, Failure>(status.is_repaired().then_some(()))
        })?;
        Ok(repaired.is_some())
    }

    /// Opens region checkpoints: arrays by name, which all members save together or not at all. All
    /// living members call it with equal options. bytes: the most bytes that a member saves. set:
    /// the number of pieces of which `lose` may be lost.
    #[pyo3(signature = (name, bytes=16 << 20, *, set=8, lose=1, piece=16 << 10, apart_depth=0,
                        strict=false, room=50))]
    #[allow(clippy::too_many_arguments, reason = "they are keyword arguments in Python")]
    fn regions(
        &self,
        py: Python<'_>,
        name: String,
        bytes: u64,
        set: usize,
        lose: usize,
        piece: usize,
        apart_depth: usize,
        strict: bool,
        room: u32,
    ) -> PyResult<Regions> {
        let options = region_options(bytes, (set, lose), piece, apart_depth, strict, room);
        Regions::open(py, self.get()?, name, options)
    }

    /// Opens images: objects in pieces in the memories of members, which a member saves when it
    /// wants to, and which any member can load after its death. All living members call it with
    /// equal options, which are those of regions().
    #[pyo3(signature = (name, bytes=16 << 20, *, set=8, lose=1, piece=16 << 10, apart_depth=0,
                        strict=false, room=50))]
    #[allow(clippy::too_many_arguments, reason = "they are keyword arguments in Python")]
    fn images(
        &self,
        py: Python<'_>,
        name: String,
        bytes: u64,
        set: usize,
        lose: usize,
        piece: usize,
        apart_depth: usize,
        strict: bool,
        room: u32,
    ) -> PyResult<Images> {
        let options = region_options(bytes, (set, lose), piece, apart_depth, strict, room);
        Images::open(py, self.get()?, name, options)
    }

    /// Runs a program on seats: calls body(seat) once for each seat that this member holds, in a
    /// thread of its own. All living members call it with equal options, spares included, which
    /// wait for a seat. Returns the results of the seats that ended at this member, by number, when
    /// the functions of all seats have returned.
    ///
    /// When the holder of a seat dies, the calls of all seats raise RolledBack, which the function
    /// lets through; it is then called again, at another member for the dead, with the note of the
    /// last point that all seats have saved. Raises SeatFailed at all members if a function raises
    /// another exception.
    ///
    /// bytes: of the memory of a seat. interval: points save after so many seconds since the last
    /// save; by default all do. mtbf: in its place, the mean time in seconds between two deaths in
    /// the job. patience: for how many seconds a call waits for a seat that computes. gather: for
    /// how many seconds Seat.point waits for other seats. room: the seats of the dead that a member
    /// can take. give_up: after how many deaths of its holders a seat has failed. The others are
    /// those of regions().
    ///
    /// logs: EXPERIMENTAL; log accesses, with so many bytes for the logs of each seat. The next
    /// holder of a seat then repeats what the dead holder did, and the other seats notice nothing,
    /// for programs of puts, gets and barriers and a single lost seat at a time; all else is a
    /// rollback. Puts to other seats are done at the next barrier, and Seat.point saves nothing. The
    /// function makes equal calls when it gets equal answers, and two accesses to a byte of which
    /// one is a write have a barrier between them.
    #[pyo3(signature = (body, bytes, *, interval=None, mtbf=None, patience=3600.0, gather=1.0,
                        set=8, lose=1, piece=16 << 10, apart_depth=0, strict=false, room=1,
                        give_up=8, logs=0))]
    #[allow(clippy::too_many_arguments, reason = "they are keyword arguments in Python")]
    fn run_seats<'py>(
        &self,
        body: &Bound<'py, PyAny>,
        bytes: u64,
        interval: Option<f64>,
        mtbf: Option<f64>,
        patience: f64,
        gather: f64,
        set: usize,
        lose: usize,
        piece: usize,
        apart_depth: usize,
        strict: bool,
        room: usize,
        give_up: u64,
        logs: u64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let mut options = Protect::new(bytes).set(set).lose(lose).piece(piece).room(room);
        options = options.give_up(give_up).patience(duration(patience)?).gather(duration(gather)?);
        if apart_depth != 0 {
            options = options.apart(Level::Depth(apart_depth));
        }
        if strict {
            options = options.strict();
        }
        if let Some(seconds) = interval {
            options = options.every(Interval::Time(duration(seconds)?));
        }
        if let Some(seconds) = mtbf {
            options = options.every(Interval::Daly { mtbf: duration(seconds)? });
        }
        if logs != 0 {
            options = options.logged(logs);
        }
        seats::run(self.get()?, options, body)
    }

    /// Opens a folder of snapshots of this store. Every member of the job opens it. keep: the
    /// number of snapshots that are kept. bytes_per_second: the most that a member writes.
    /// freeze_limit: the longest time in seconds for which writers are held up.
    #[pyo3(signature = (folder, keep=2, bytes_per_second=None, freeze_limit=2.0))]
    fn snapshots(
        &self,
        folder: PathBuf,
        keep: usize,
        bytes_per_second: Option<u64>,
        freeze_limit: f64,
    ) -> PyResult<Snapshots> {
        let mut options = snapshot::Options::new().keep(keep).freeze_limit(duration(freeze_limit)?);
        if let Some(bytes) = bytes_per_second {
            options = options.bytes_per_second(bytes);
        }
        Snapshots::open(&self.get()?, folder, options)
    }

    /// Puts the records of a snapshot into the store. folder: that of a snapshot, or that of
    /// snapshots, of which the newest is taken. All members together restore a share each with
    /// index=job.me, shares=job.members. Returns the number of keys and of bytes.
    #[pyo3(signature = (folder, index=0, shares=1))]
    fn restore_snapshot(
        &self,
        py: Python<'_>,
        folder: PathBuf,
        index: usize,
        shares: usize,
    ) -> PyResult<(u64, u64)> {
        if index >= shares {
            let message = format!("there is no share {index} of {shares}");
            return Err(pyo3::exceptions::PyValueError::new_err(message));
        }
        let store = self.get()?;
        let restore = move || snapshot::restore_share(&store, &folder, index, shares);
        let restored = interruptible(py, restore)?.map_err(Failure::from)?;
        Ok((restored.records, restored.bytes))
    }
}

fn latency(py: Python<'_>, latency: Option<Latency>) -> PyResult<Option<Bound<'_, PyDict>>> {
    let Some(latency) = latency else { return Ok(None) };
    let dict = PyDict::new(py);
    dict.set_item("samples", latency.samples)?;
    dict.set_item("p50", latency.p50.as_secs_f64())?;
    dict.set_item("p99", latency.p99.as_secs_f64())?;
    dict.set_item("max", latency.max.as_secs_f64())?;
    Ok(Some(dict))
}

fn repair(py: Python<'_>, status: RepairStatus) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("replicas_missing", status.replicas_missing)?;
    dict.set_item("partitions_lost", status.partitions_lost)?;
    Ok(dict)
}

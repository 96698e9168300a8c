//! Region checkpoints: arrays by name, which all members save together or not at all.

use crate::buffer::{self, View};
use crate::error::Failure;
use crate::wait::interruptible;
use outlast::image::{Level, Options, Owner};
use outlast::store::Store;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::collections::BTreeMap;

/// Region checkpoints of a job; made by Store.regions.
#[pyclass(frozen, module = "outlast")]
pub(crate) struct Regions {
    regions: outlast::image::Regions,
}

/// Where a restored program is.
#[pyclass(frozen, module = "outlast")]
pub(crate) struct Restored {
    /// The number of this caller among the callers.
    #[pyo3(get)]
    rank: usize,
    /// The number of callers.
    #[pyo3(get)]
    size: usize,
    /// The version that was saved last; None if nothing was saved yet.
    #[pyo3(get)]
    version: Option<u64>,
    note: Vec<u8>,
}

#[pymethods]
impl Restored {
    /// The note of this member in that version; empty if this member saved none.
    #[getter]
    fn note<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.note)
    }

    fn __repr__(&self) -> String {
        let version = self.version.map_or("None".into(), |version| version.to_string());
        format!("Restored(rank={}, size={}, version={version})", self.rank, self.size)
    }
}

/// The options of region checkpoints; `pieces` is how many there are, and how many may be lost.
pub(crate) fn region_options(
    bytes: u64,
    pieces: (usize, usize),
    piece: usize,
    apart_depth: usize,
    is_strict: bool,
    room: u32,
) -> Options {
    let options = Options::new(bytes).set(pieces.0).lose(pieces.1).piece(piece).room(room);
    let options = match apart_depth {
        0 => options,
        depth => options.apart(Level::Depth(depth)),
    };
    if is_strict { options.strict() } else { options }
}

impl Regions {
    pub(crate) fn open(
        py: Python<'_>,
        store: Store,
        name: String,
        options: Options,
    ) -> PyResult<Regions> {
        let open = move || outlast::image::Regions::open(&store, &name, options);
        Ok(Regions { regions: interruptible(py, open)?.map_err(Failure::from)? })
    }
}

/// The bytes of a region or image that is saved: a view, or a copy of what is not contiguous.
pub(crate) enum Region {
    View(View),
    Copy(Vec<u8>),
}

impl Region {
    pub(crate) fn of(value: &Bound<'_, PyAny>) -> PyResult<Region> {
        Ok(match buffer::value(value)? {
            buffer::Bytes::View(view) => Region::View(view),
            buffer::Bytes::Object(bytes) => Region::Copy(bytes.as_bytes().to_vec()),
        })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Region::View(view) => view.bytes(),
            Region::Copy(bytes) => bytes,
        }
    }
}

/// The regions that Python gives by name.
fn named<T>(
    regions: &Bound<'_, PyDict>,
    region: impl Fn(&Bound<'_, PyAny>) -> PyResult<T>,
) -> PyResult<Vec<(String, T)>> {
    let pair = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        Ok((name.extract::<String>()?, region(&value)?))
    };
    regions.iter().map(pair).collect()
}

#[pymethods]
impl Regions {
    /// Saves regions by name, with a note, as a version. All members call it with equal versions;
    /// regions and notes may differ. When it has returned at one member, the regions of all members
    /// can be restored in this version. After an exception the version before it stands, and all
    /// members call restore(); MemberDied says that a member died. Do not change the regions during
    /// the call.
    #[pyo3(signature = (version, regions, note=None))]
    fn checkpoint(
        &self,
        py: Python<'_>,
        version: u64,
        regions: &Bound<'_, PyDict>,
        note: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let note = note.map(buffer::value).transpose()?;
        let note = note.as_ref().map_or(vec![], |note| note.get().to_vec());
        let given = named(regions, Region::of)?;
        let regions = self.regions.clone();
        let save = move || {
            let given: Vec<(&str, &[u8])> =
                given.iter().map(|(name, region)| (name.as_str(), region.bytes())).collect();
            regions.checkpoint(version, &note, &given)
        };
        Ok(interruptible(py, save)?.map_err(Failure::from)?)
    }

    /// Finds the version that was saved last, and fills the given regions, writable buffers by
    /// name, with what this member saved in it. All living members call it, at the start and after
    /// each exception. A program that divides its data anew gives no regions and calls read()
    /// afterwards.
    #[pyo3(signature = (regions=None))]
    fn restore(&self, py: Python<'_>, regions: Option<&Bound<'_, PyDict>>) -> PyResult<Restored> {
        let mut given = match regions {
            Some(regions) => named(regions, View::to_fill)?,
            None => vec![],
        };
        let regions = self.regions.clone();
        let restore = move || {
            let mut given: Vec<(&str, &mut [u8])> =
                given.iter_mut().map(|(name, view)| (name.as_str(), view.bytes_mut())).collect();
            regions.restore(&mut given)
        };
        let restored = interruptible(py, restore)?.map_err(Failure::from)?;
        let outlast::image::Restored { rank, size, version, note } = restored;
        Ok(Restored { rank, size, version, note })
    }

    /// Fills a writable buffer with a region of the version that was saved last, from a byte on: of
    /// the owner of this number, or of all owners one after the other. Any member may call it.
    #[pyo3(signature = (name, buffer, owner=None, offset=0))]
    fn read(
        &self,
        py: Python<'_>,
        name: String,
        buffer: &Bound<'_, PyAny>,
        owner: Option<usize>,
        offset: u64,
    ) -> PyResult<()> {
        let mut view = View::to_fill(buffer)?;
        let owner = owner.map_or(Owner::All, Owner::Number);
        let regions = self.regions.clone();
        let read = move || regions.read(owner, &name, offset, view.bytes_mut());
        Ok(interruptible(py, read)?.map_err(Failure::from)?)
    }

    /// The names and lengths in bytes of the regions of each owner of the version that was saved
    /// last.
    fn owners(&self, py: Python<'_>) -> PyResult<Vec<BTreeMap<String, u64>>> {
        let owners = py.detach(|| self.regions.owners()).map_err(Failure::from)?;
        Ok(owners.into_iter().map(|regions| regions.into_iter().collect()).collect())
    }

    /// Closes the checkpoints: they are gone. All living members call it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let regions = self.regions.clone();
        Ok(interruptible(py, move || regions.close())?.map_err(Failure::from)?)
    }
}

//! Images: objects in pieces in the memories of members, replaced as a whole.

use crate::buffer::{self, View};
use crate::error::Failure;
use crate::regions::Region;
use crate::wait::interruptible;
use outlast::image::{ImageError, Options};
use outlast::store::Store;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Images of a job; made by Store.images.
#[pyclass(frozen, module = "outlast")]
pub(crate) struct Images {
    images: outlast::image::Images,
}

impl Images {
    pub(crate) fn open(
        py: Python<'_>,
        store: Store,
        name: String,
        options: Options,
    ) -> PyResult<Images> {
        let open = move || outlast::image::Images::open(&store, &name, options);
        Ok(Images { images: interruptible(py, open)?.map_err(Failure::from)? })
    }
}

#[pymethods]
impl Images {
    /// Saves an image, a buffer, under a name, with a note. When it returns, all pieces are at
    /// their members. After an exception the image that was saved before stands. Raises Conflict if
    /// another member has saved the image meanwhile. Do not change the buffer during the call.
    #[pyo3(signature = (name, value, note=None))]
    fn save(
        &self,
        py: Python<'_>,
        name: String,
        value: &Bound<'_, PyAny>,
        note: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let note = note.map(buffer::value).transpose()?;
        let note = note.as_ref().map_or(vec![], |note| note.get().to_vec());
        let (images, value) = (self.images.clone(), Region::of(value)?);
        let save = move || images.save(&name, &note, value.bytes());
        Ok(interruptible(py, save)?.map_err(Failure::from)?)
    }

    /// The image and its note as they were saved last, by any member, dead or alive; None if there
    /// is no image of this name.
    fn load<'py>(
        &self,
        py: Python<'py>,
        name: String,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        let images = self.images.clone();
        match interruptible(py, move || images.load(&name))? {
            Ok(image) => {
                Ok(Some((PyBytes::new(py, image.bytes()), PyBytes::new(py, image.note()))))
            }
            Err(ImageError::Absent { .. }) => Ok(None),
            Err(error) => Err(Failure::from(error).into()),
        }
    }

    /// Fills a writable buffer with the bytes of an image, from a byte on. Returns whether there is
    /// an image of this name.
    #[pyo3(signature = (name, buffer, offset=0))]
    fn read(
        &self,
        py: Python<'_>,
        name: String,
        buffer: &Bound<'_, PyAny>,
        offset: u64,
    ) -> PyResult<bool> {
        let mut view = View::to_fill(buffer)?;
        let images = self.images.clone();
        match interruptible(py, move || images.read(&name, offset, view.bytes_mut()))? {
            Ok(()) => Ok(true),
            Err(ImageError::Absent { .. }) => Ok(false),
            Err(error) => Err(Failure::from(error).into()),
        }
    }

    /// Deletes an image. Returns whether it existed.
    fn delete(&self, py: Python<'_>, name: &str) -> Result<bool, Failure> {
        Ok(py.detach(|| self.images.delete(name))?)
    }

    /// How many pieces are missing: no other member has made them again yet.
    fn missing(&self, py: Python<'_>) -> Result<usize, Failure> {
        Ok(py.detach(|| self.images.pieces_missing())?)
    }

    /// Closes the images: they are gone. All living members call it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let images = self.images.clone();
        Ok(interruptible(py, move || images.close())?.map_err(Failure::from)?)
    }
}

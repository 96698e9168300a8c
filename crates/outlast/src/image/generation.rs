//! Generations: saves that count only when a record of the layer above says so.
//!
//! Each generation of an image has a descriptor under a key of its own, so that several images can
//! be replaced together by a single record, the *verdict* of the layer above. A save is *staged*
//! first: its pieces and its descriptor are there, next to the generation that counts. When the
//! verdict is known, it is kept or discarded. Until then the slots of both generations are kept.
//!
//! A death between the two leaves a descriptor that no verdict names; the next holder of the image
//! deletes it with [`Images::delete_generation`]. If the store has not answered the put or the
//! deletion of a descriptor, the activity that heals deletes it, and makes sure that it stays so.

use super::save::{Entry, Read, Saved};
use super::stripe::hash_key;
use super::{Image, ImageError, ImageResult, Images, Inner};
use crate::engine::Time;
use crate::rma::Communicator;
use crate::store::StoreError;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// A save that may or may not come to count.
pub(crate) struct Staged {
    name: String,
    generation: u64,
    saved: Saved,
}

impl Staged {
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }
}

impl std::fmt::Debug for Staged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Staged({}, {})", self.name, self.generation)
    }
}

impl Inner {
    /// The key of the descriptor of a generation.
    pub(super) fn generation_key(&self, name: &str, generation: u64) -> Vec<u8> {
        [&self.prefix[..], format!("d/r/{name}/{generation}").as_bytes()].concat()
    }

    /// `encode` and `describe`: writes the pieces of a save, and its descriptor.
    pub(super) fn stage(
        &self,
        name: &str,
        generation: u64,
        note: &[u8],
        len: u64,
        read: Read<'_>,
    ) -> ImageResult<Staged> {
        let key = self.generation_key(name, generation);
        let entry_key = self.entry_key(&key);
        let staged = self.with_entry(&entry_key, |entry| {
            let saved = self.encode(entry, hash_key(&entry_key), note, len, read)?;
            match self.store.put(&key, &saved.descriptor.encode()) {
                Ok(_) => Ok(Staged { name: name.to_string(), generation, saved }),
                Err(error) => {
                    // The put may still happen.
                    entry.given_up.push(key.clone());
                    self.drop_saved(entry, saved);
                    Err(error.into())
                }
            }
        });
        self.end_of_save(&key)?;
        staged
    }

    /// The generation counts: what the generation before it named is free.
    pub(super) fn keep_staged(&self, staged: Staged) -> ImageResult<()> {
        let key = self.generation_key(&staged.name, staged.generation);
        self.with_entry_at_last(&key, |entry| self.settle(entry, Some(staged.saved)))
    }

    /// The generation does not count and never will: its slots are free.
    pub(super) fn discard_staged(&self, staged: Staged) -> ImageResult<()> {
        let key = self.generation_key(&staged.name, staged.generation);
        self.forget_generation(&key);
        self.with_entry_at_last(&key, |entry| self.drop_saved(entry, staged.saved))
    }

    /// Deletes the descriptor of a generation of this member that does not count any more: now, or
    /// in the activity that heals, if the store does not answer.
    pub(super) fn forget_generation(&self, key: &[u8]) {
        if self.store.delete(key).is_err() {
            // Closed images need it no more.
            let _ = self.with_entry_at_last(key, |entry| entry.given_up.push(key.to_vec()));
        }
    }

    /// Changes what this member knows of an image. It waits for another activity however long that
    /// takes: a save that is known to count and not entered would lose its slots to the next save,
    /// and a healed place that is not entered would lose its extents for ever.
    pub(super) fn with_entry_at_last(
        &self,
        key: &[u8],
        body: impl FnOnce(&mut Entry),
    ) -> ImageResult<()> {
        let entry_key = self.entry_key(key);
        let mut taken = self.await_entry(&entry_key, || Time::NEVER)?;
        // `close` first stores that the images are closed, and then looks for entries in use.
        self.check_open()?;
        body(&mut taken.entry);
        Ok(())
    }
}

/// # Generations, for the layers above
impl Images {
    /// Writes a generation of an image next to the generation that counts.
    pub(crate) fn stage(
        &self,
        name: &str,
        generation: u64,
        note: &[u8],
        len: u64,
        read: Read<'_>,
    ) -> ImageResult<Staged> {
        self.inner.check_open()?;
        self.inner.stage(name, generation, note, len, read)
    }

    /// The verdict says that this generation counts.
    pub(crate) fn keep_staged(&self, staged: Staged) -> ImageResult<()> {
        self.inner.keep_staged(staged)
    }

    /// No verdict says that this generation counts, and none will.
    pub(crate) fn discard_staged(&self, staged: Staged) -> ImageResult<()> {
        self.inner.discard_staged(staged)
    }

    /// Loads a range of a generation.
    pub(crate) fn load_generation(
        &self,
        name: &str,
        generation: u64,
        range: Range<u64>,
    ) -> ImageResult<Image> {
        self.inner.check_open()?;
        let key = self.inner.generation_key(name, generation);
        match self.inner.load_image(&key, name, Some(range)) {
            Err(ImageError::Absent { name }) => Err(ImageError::DataLost { name }),
            other => other,
        }
    }

    /// The generations of an image that have a descriptor. Those in a lost partition are lost, and
    /// left out.
    pub(crate) fn generations(&self, name: &str) -> ImageResult<Vec<u64>> {
        let beginning = format!("d/r/{name}/");
        let (keys, result) = self.inner.reachable_keys(beginning.as_bytes());
        match result {
            Ok(()) | Err(ImageError::Store(StoreError::DataLost { .. })) => {}
            Err(error) => return Err(error),
        }
        let len = self.inner.prefix.len() + beginning.len();
        let of = |key: Vec<u8>| std::str::from_utf8(&key[len..]).ok()?.parse().ok();
        Ok(keys.into_iter().filter_map(of).collect())
    }

    /// Deletes the descriptor of a generation of this member that does not count any more, now or
    /// later.
    pub(crate) fn forget_generation(&self, name: &str, generation: u64) {
        self.inner.forget_generation(&self.inner.generation_key(name, generation));
    }

    /// Deletes the descriptor of a generation that does not count any more.
    pub(crate) fn delete_generation(&self, name: &str, generation: u64) -> ImageResult<()> {
        self.inner.store.delete(&self.inner.generation_key(name, generation))?;
        Ok(())
    }

    /// The beginning of the keys of all records of these images, for further records about them.
    pub(crate) fn prefix(&self) -> &[u8] {
        &self.inner.prefix
    }

    /// Whether no request of a dead member is in its middle on this node; waits for that.
    pub(crate) fn serves_no_dead(&self) -> bool {
        self.inner.serves_no_dead()
    }

    /// The communicator of all members that opened the images.
    pub(crate) fn communicator(&self) -> &Communicator {
        &self.inner.comm
    }

    /// Ends this member's part without the others: nothing is given back. The pieces are of no use
    /// to them any more, so this member may leave with them.
    pub(crate) fn abandon(&self) {
        self.inner.is_over.store(true, Ordering::SeqCst);
        self.inner.is_closed.store(true, Ordering::SeqCst);
        let _ = self.inner.job.ring(self.inner.job.me());
    }
}

//! What a member remembers of keys that it used by key, where memory is reached over a network: what a handle remembers of
//! its own (`slot.rs`). A call that finds its key here takes as many round trips as one through a handle.
//!
//! It is taken out while a call is under way, so a key is remembered by one call at a time; another one meanwhile looks
//! everything up. Nothing has to be told of changes: what is remembered is checked by each call that uses it.

use super::StoreResult;
use super::index::KeyRef;
use super::open::lock;
use super::write::Remembered;
use std::sync::{Mutex, OnceLock};

/// The most keys that are remembered: about 3 MiB of them. One takes the place of another with the same end of its hash.
const RECALLED_MAX: usize = 4096;

type Place = Mutex<Option<Box<Recalled>>>;

/// A key, and what is remembered of it.
struct Recalled {
    key: Box<[u8]>,
    memory: Remembered,
}

pub(super) struct Recall {
    /// By the end of the key's hash; made when the first key is kept.
    places: OnceLock<Box<[Place]>>,
    count: usize,
}

impl Recall {
    pub(super) fn new(expected_keys: usize) -> Recall {
        Recall { places: OnceLock::new(), count: expected_keys.next_power_of_two().clamp(64, RECALLED_MAX) }
    }

    fn place(&self, key: &KeyRef<'_>) -> &Place {
        let places = self.places.get_or_init(|| (0..self.count).map(|_| Mutex::default()).collect());
        &places[key.hash as usize & (self.count - 1)]
    }

    /// Makes a call with what is remembered of its key, and keeps what it has learned; nothing if it failed.
    pub(super) fn call<T>(
        &self,
        key: &KeyRef<'_>,
        call: impl FnOnce(&mut Remembered) -> StoreResult<T>,
    ) -> StoreResult<T> {
        let place = self.place(key);
        let known = lock(place).take_if(|known| *known.key == *key.key);
        let mut known =
            known.unwrap_or_else(|| Box::new(Recalled { key: key.key.into(), memory: Remembered::NOTHING }));
        let result = call(&mut known.memory)?;
        *lock(place) = Some(known);
        Ok(result)
    }
}

//! What a member has_cached of keys that it used by key, where memory is reached over a network:
//! what a handle has_cached of its own (`slot.rs`). A call that finds its key here takes as many
//! round trips as one through a handle.
//!
//! It is taken out while a call is under way, so a key is remembered by one call at a time; another
//! one meanwhile looks everything up. Nothing has to be told of changes: what is remembered is
//! checked by each call that uses it.

use crate::store::error::StoreResult;
use crate::store::record::key::KeyRef;
use crate::store::record::location::CachedLocation;
use crate::sync::lock;
use std::sync::{Mutex, OnceLock};

/// How many places there are, and how many keys are remembered in each, by the end of their hashes:
/// about 5 MiB if all are full.
const PLACES: usize = 2048;

const KEYS_EACH: usize = 4;

/// The one that was used last is at the end.
type Place = Mutex<Vec<CachedKey>>;

/// A key, and what is remembered of it.
struct CachedKey {
    key: Box<[u8]>,
    cached: CachedLocation,
}

/// Made when the first key is used.
#[derive(Default)]
pub(in crate::store) struct LocationCache(OnceLock<Box<[Place]>>);

impl LocationCache {
    /// Makes a call with what is remembered of its key, and keeps what it has learned; nothing if
    /// it failed.
    pub(in crate::store) fn call<T>(
        &self,
        key: &KeyRef<'_>,
        call: impl FnOnce(&mut CachedLocation) -> StoreResult<T>,
    ) -> StoreResult<T> {
        let places = self.0.get_or_init(|| (0..PLACES).map(|_| Place::default()).collect());
        let place = &places[key.hash as usize & (PLACES - 1)];
        let mut known = take(&mut lock(place), key)
            .unwrap_or_else(|| CachedKey { key: key.key.into(), cached: CachedLocation::NOTHING });
        let result = call(&mut known.cached)?;
        let mut others = lock(place);
        // Another thread may have used the key meanwhile: one of them is enough.
        if take(&mut others, key).is_none() && others.len() == KEYS_EACH {
            others.remove(0);
        }
        others.push(known);
        Ok(result)
    }
}

/// Takes out what is remembered of a key.
fn take(place: &mut Vec<CachedKey>, key: &KeyRef<'_>) -> Option<CachedKey> {
    let index = place.iter().position(|known| *known.key == *key.key)?;
    Some(place.remove(index))
}

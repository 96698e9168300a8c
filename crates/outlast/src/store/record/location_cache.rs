//! The location cache: cached locations of keys that a member used without a handle, where it
//! reaches memory over a network. A call that finds its key here takes as many round trips as a
//! call through a handle ([`CachedLocation`]).
//!
//! A call takes the location out of the cache while it runs, so a location belongs to a single call
//! at a time. A second call on the key meanwhile looks everything up. No change of a record is
//! reported to the cache: each call validates the location that it uses.

use crate::store::error::StoreResult;
use crate::store::record::key::KeyRef;
use crate::store::record::location::CachedLocation;
use crate::sync::lock;
use std::sync::{Mutex, OnceLock};

/// The number of buckets of the cache, and of keys in each of them. The lower bits of the hash
/// select the bucket. A full cache takes about 5 MiB.
const PLACES: usize = 2048;

/// See [`PLACES`].
const KEYS_EACH: usize = 4;

/// A bucket of the cache. The key that was used last is at the end.
type Place = Mutex<Vec<CachedKey>>;

/// A key with its cached location.
struct CachedKey {
    key: Box<[u8]>,
    cached: CachedLocation,
}

/// The location cache, made when the first key is used.
#[derive(Default)]
pub(in crate::store) struct LocationCache(OnceLock<Box<[Place]>>);

impl LocationCache {
    /// Makes a call with the cached location of its key, and keeps the location that the call
    /// leaves. A call that fails leaves none.
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
        // Another thread may have stored the key meanwhile: a single entry is enough.
        if take(&mut others, key).is_none() && others.len() == KEYS_EACH {
            others.remove(0);
        }
        others.push(known);
        Ok(result)
    }
}

/// Takes the entry of a key out of its bucket.
fn take(place: &mut Vec<CachedKey>, key: &KeyRef<'_>) -> Option<CachedKey> {
    let index = place.iter().position(|known| *known.key == *key.key)?;
    Some(place.remove(index))
}

//! The location cache where all members map the memory: cached locations of keys that this member
//! wrote without a handle. With it the second write of a key takes the mapped fast path.
//!
//! A cached location is as of a handle ([`CachedLocation`]), and each call validates it. It knows
//! its key by the hash alone, so the call also compares the key with the key in the primary's node.
//! A location is 128 bytes, so it has room for three replicas. Keys with more replicas, and keys
//! that do not lie in the first cache line of their node, are looked up.
//!
//! The cache begins with as many locations as the store expects keys, up to [`LOCATIONS_MAX`]. The
//! memory is zeroed by the kernel, page by page, when it is first used. The cache is divided into
//! shards, each with a lock. A call never waits for a lock: a call that finds the shard locked by
//! another thread looks its key up. A shard that has dropped as many locations as it has room for
//! doubles, up to that limit.

use crate::store::operation::configuration::Configuration;
use crate::store::operation::error::OpResult;
use crate::store::record::fast_mapped::SHORT_KEY_MAX;
use crate::store::record::key::KeyRef;
use crate::store::record::location::{
    CachedLocation, CachedReplica, CachedVersion, FastLocation, LocationSource,
};
use crate::store::record::state::RecordOp;
use crate::store::segment::head::Head;
use std::sync::{Mutex, MutexGuard, OnceLock};

/// The greatest number of locations; they take 34 MiB then.
const LOCATIONS_MAX: usize = 1 << 18;

/// The number of shards.
const SHARDS: usize = 64;

/// How many locations a key may have its location in.
const WAYS: usize = 4;

/// The greatest number of replicas of a key with a location.
const REPLICAS: usize = 3;

/// A location in memory: the configuration number and the size class, the header of the version,
/// and per replica the offset of the head word, its content, and the removal count.
type Packed = [u64; 16];

/// Locations of keys.
struct Shard {
    /// The hash of the key of each location; 0 where there is none.
    hashes: Box<[u64]>,
    locations: Box<[Packed]>,
    /// The location that is replaced next, among those that a key may use.
    turn: usize,
    /// How many locations of other keys were dropped since the shard was made or has grown.
    dropped: usize,
}

impl Shard {
    fn new(count: usize) -> Shard {
        let (hashes, locations) = (vec![0; count].into(), vec![[0; 16]; count].into());
        Shard { hashes, locations, turn: 0, dropped: 0 }
    }

    /// The first of the locations that a key may use.
    #[inline(always)]
    fn first(&self, hash: u64) -> usize {
        ((hash as usize / SHARDS) & (self.hashes.len() / WAYS - 1)) * WAYS
    }

    /// Doubles the shard. The locations of a set go to two sets, so all of them have room.
    #[cold]
    fn grow(&mut self) {
        let mut larger = Shard::new(self.hashes.len() * 2);
        for (&hash, &location) in self.hashes.iter().zip(&self.locations) {
            let first = larger.first(hash);
            let free = (first..first + WAYS).find(|&index| larger.hashes[index] == 0);
            if let Some(index) = free.filter(|_| hash != 0) {
                (larger.hashes[index], larger.locations[index]) = (hash, location);
            }
        }
        *self = larger;
    }
}

/// The location cache, made when the first key is written.
pub(in crate::store) struct KeyLocations {
    shards: OnceLock<Box<[Mutex<Shard>]>>,
    /// The number of locations of a shard at first.
    count: usize,
}

/// The location of a key, taken out of the cache for a call.
pub(in crate::store::record) struct KeyLocation<'s> {
    shard: MutexGuard<'s, Shard>,
    index: usize,
    location: ShortLocation,
}

/// A cached location of a key with few replicas, outside of the cache: of a key that a transaction
/// has locked. *apply* uses it, and need not compare the key: the record was the key's when it was
/// locked, and is where it was as long as the removal counts are unchanged.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct ShortLocation {
    config_number: u64,
    hint: u64,
    version: CachedVersion,
    at: [CachedReplica; REPLICAS],
}

impl ShortLocation {
    /// The location that a write on the slow path has left, if the key has so few replicas.
    pub(in crate::store) fn new(cached: &CachedLocation) -> Option<ShortLocation> {
        let (at, others) = cached.at.split_at(REPLICAS);
        let is_right = cached.config_number != 0 && others.iter().all(|at| at.word == 0);
        let CachedLocation { config_number, version, hint, .. } = *cached;
        is_right.then(|| ShortLocation {
            config_number,
            hint,
            version,
            at: at.try_into().expect("the first replicas"),
        })
    }

    /// Whether it names a provisional version.
    #[cfg(test)]
    pub(in crate::store) fn names_lock(&self) -> bool {
        self.version.is_provisional()
    }

    /// The parts that the mapped fast path uses.
    #[inline(always)]
    pub(in crate::store::record) fn fast(&mut self, source: LocationSource) -> FastLocation<'_> {
        FastLocation {
            config_number: &mut self.config_number,
            hint: &mut self.hint,
            version: &mut self.version,
            at: &mut self.at,
            source,
        }
    }
}

impl KeyLocations {
    /// Makes a cache for about so many keys.
    pub(in crate::store) fn new(expected_keys: usize) -> KeyLocations {
        let count = expected_keys.clamp(SHARDS * WAYS, LOCATIONS_MAX).next_power_of_two();
        KeyLocations { shards: OnceLock::new(), count: count / SHARDS }
    }

    /// The shard of a key, unless another thread uses it, and the first of the locations that the
    /// key may use.
    #[inline(always)]
    fn shard<'s>(
        &self,
        shards: &'s [Mutex<Shard>],
        hash: u64,
    ) -> Option<(MutexGuard<'s, Shard>, usize)> {
        let shard = shards[hash as usize % SHARDS].try_lock().ok()?;
        let first = shard.first(hash);
        Some((shard, first))
    }

    /// The location of a key, if it is cached.
    #[inline(always)]
    pub(in crate::store::record) fn find(&self, key: &KeyRef<'_>) -> Option<KeyLocation<'_>> {
        let (shard, first) = self.shard(self.shards.get()?, key.hash)?;
        let hashes = shard.hashes.get(first..first + WAYS)?;
        let index = first + hashes.iter().position(|&hash| hash == key.hash)?;
        let packed = shard.locations.get(index)?;
        let at = |replica: usize| CachedReplica {
            word: packed[6 + 3 * replica],
            head: Head(packed[7 + 3 * replica]),
            removals: packed[8 + 3 * replica],
        };
        let (config_number, class) = (packed[0], packed[1] as usize);
        let version = CachedVersion::new([packed[2], packed[3], packed[4], packed[5]], class);
        let at = std::array::from_fn(at);
        let location = ShortLocation { config_number, hint: 0, version, at };
        Some(KeyLocation { shard, index, location })
    }

    /// A copy of a key's location, if it is cached.
    fn copy(&self, key: &KeyRef<'_>) -> Option<CachedLocation> {
        let found = self.find(key)?.location;
        let mut cached = CachedLocation {
            config_number: found.config_number,
            version: found.version,
            ..CachedLocation::NOTHING_BY_KEY
        };
        cached.at[..REPLICAS].copy_from_slice(&found.at);
        Some(cached)
    }

    /// Records the location that a write on the slow path has left.
    pub(in crate::store) fn note(&self, key: &KeyRef<'_>, cached: &CachedLocation) {
        self.record(key, ShortLocation::new(cached).as_ref());
    }

    /// Records where a key is, or that it is not known.
    pub(in crate::store::record) fn record(
        &self,
        key: &KeyRef<'_>,
        location: Option<&ShortLocation>,
    ) {
        let location = location.filter(|_| key.hash != 0 && key.key.len() <= SHORT_KEY_MAX);
        let shards = self.shards.get_or_init(|| self.make());
        let Some((mut shard, mut first)) = self.shard(shards, key.hash) else { return };
        let find = |shard: &Shard, first: usize, hash: u64| {
            (first..first + WAYS).find(|&index| shard.hashes[index] == hash)
        };
        let known_index = find(&shard, first, key.hash);
        let Some(location) = location else {
            known_index.into_iter().for_each(|index| shard.hashes[index] = 0);
            return;
        };
        let mut index = known_index.or_else(|| find(&shard, first, 0));
        if index.is_none() {
            shard.dropped += 1;
            if shard.dropped > shard.hashes.len() && shard.hashes.len() < LOCATIONS_MAX / SHARDS {
                shard.grow();
                first = shard.first(key.hash);
                index = find(&shard, first, 0);
            }
        }
        let turn = shard.turn;
        let index = index.unwrap_or(first + turn % WAYS);
        shard.turn = turn.wrapping_add(1);
        shard.hashes[index] = key.hash;
        shard.locations[index] = pack(location);
    }

    #[cold]
    fn make(&self) -> Box<[Mutex<Shard>]> {
        (0..SHARDS).map(|_| Mutex::new(Shard::new(self.count))).collect()
    }
}

impl<'a> RecordOp<'a> {
    /// The cached location of a key without a handle, for a write on the slow path. Nothing is
    /// cached if this member did not write the key last. `None` over a network.
    pub(in crate::store) fn known_location(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
    ) -> OpResult<Option<CachedLocation>> {
        if !self.store.job.is_mapped() {
            return Ok(None);
        }
        let cached = self.store.key_locations.copy(key);
        let Some(cached) = cached.filter(|known| known.config_number == config.config_number)
        else {
            return Ok(Some(CachedLocation::NOTHING_BY_KEY));
        };
        // Two keys may have an equal hash.
        let is_of_key = self.is_node_of(config, cached.at[config.primary].word, key)?;
        Ok(Some(if is_of_key { cached } else { CachedLocation::NOTHING_BY_KEY }))
    }
}

fn pack(ShortLocation { config_number, version, at, .. }: &ShortLocation) -> Packed {
    let mut packed = [0; 16];
    (packed[0], packed[1]) = (*config_number, version.class as u64);
    packed[2..6].copy_from_slice(&version.words());
    for (place, at) in packed[6..].chunks_exact_mut(3).zip(at) {
        place.copy_from_slice(&[at.word, at.head.0, at.removals]);
    }
    packed
}

impl KeyLocation<'_> {
    /// The parts that the mapped fast path uses.
    #[inline(always)]
    pub(in crate::store::record) fn fast(&mut self) -> FastLocation<'_> {
        self.location.fast(LocationSource::Cache)
    }

    /// A copy of the location.
    pub(in crate::store::record) fn copy(&self) -> ShortLocation {
        self.location
    }

    /// Puts the location back after a write on the fast path: the version and the head words have
    /// changed.
    #[inline(always)]
    pub(in crate::store::record) fn keep(mut self) {
        let ShortLocation { config_number, version, at, .. } = self.location;
        let Some(packed) = self.shard.locations.get_mut(self.index) else { return };
        (packed[0], packed[1]) = (config_number, version.class as u64);
        packed[2..6].copy_from_slice(&version.words());
        for (replica, at) in at.iter().enumerate() {
            packed[7 + 3 * replica] = at.head.0;
        }
    }
}

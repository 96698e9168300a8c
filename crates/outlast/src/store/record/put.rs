//! The entry points of calls that change a key, and the choice of their path.
//!
//! | the call | its path |
//! |---|---|
//! | a put, conditional put or addition, on mapped memory | `fast_mapped.rs`; the slow path if a check fails |
//! | *lock* and *apply* of a transaction, on mapped memory | as above |
//! | a put over a network | `fast_remote.rs`; the slow path if a check fails |
//! | all other changes | the slow path, `write.rs` |
//!
//! The fast paths need a cached location: of a handle, or of the location cache for a call by key.

use crate::engine::mapped::MappedEngine;
use crate::store::error::{StoreError, StoreResult};
use crate::store::operation::error::OpError;
use crate::store::record::fast_change::{
    FastAdd, FastApply, FastChange, FastLock, FastPut, FastPutIf,
};
use crate::store::record::key::KeyRef;
use crate::store::record::key_locations::ShortLocation;
use crate::store::record::location::{CachedLocation, FastLocation, LocationSource};
use crate::store::record::state::RecordState;
use crate::store::record::write::{Change, CurrentVersion};
use crate::store::value::{Expect, Version};

impl RecordState {
    /// Puts a value by key, with the location cache.
    pub(in crate::store) fn put_by_key(&self, key: &[u8], value: &[u8]) -> StoreResult<Version> {
        let key = self.key_ref(key)?;
        if self.job.is_mapped() {
            let written =
                self.change_by_key(&key, FastPut(value), false, |_, _| Ok(Change::Put(value)))?;
            return Ok(written.expect("a put changes the key"));
        }
        self.location_cache.call(&key, |cached| self.put_cached(&key, cached, value))
    }

    /// Puts a value that is in several parts by key; see [`RecordState::put_parts_cached`].
    pub(in crate::store) fn put_parts_by_key(
        &self,
        key: &[u8],
        parts: &[&[u8]],
    ) -> StoreResult<Version> {
        if !self.job.is_mapped() {
            return self.put_by_key(key, &parts.concat());
        }
        let written = self.change_by_key(&self.key_ref(key)?, FastPut(parts), false, |_, _| {
            Ok(Change::Owned(parts.concat()))
        })?;
        Ok(written.expect("a put changes the key"))
    }

    /// Puts a value by key if the condition holds.
    pub(in crate::store) fn put_if_by_key(
        &self,
        key: &[u8],
        value: &[u8],
        expect: Expect,
    ) -> StoreResult<Version> {
        let (key, fast) = (self.key_ref(key)?, FastPutIf { value, expect });
        let written = self.change_by_key(&key, fast, false, |current, _| {
            CurrentVersion::check(current, expect).map(|()| Change::Put(value))
        })?;
        Ok(written.expect("a put changes the key"))
    }

    /// Changes a key by key. On mapped memory the mapped fast path puts `value` if the key has a
    /// value, and has the version `expected` if that is given; the slow path makes `change`.
    pub(in crate::store) fn put_or_change_by_key<'v>(
        &self,
        key: &[u8],
        value: &[u8],
        expected: Option<Version>,
        change: impl FnMut(Option<&CurrentVersion>, &mut Vec<u8>) -> StoreResult<Change<'v>>,
    ) -> StoreResult<Option<Version>> {
        let key = self.key_ref(key)?;
        match expected.map(Expect::Version) {
            None => self.change_by_key(&key, FastPut(value), false, change),
            Some(expect) => self.change_by_key(&key, FastPutIf { value, expect }, false, change),
        }
    }

    /// Adds to the number that a key holds. Returns the sum.
    pub(in crate::store) fn add_by_key(&self, key: &[u8], delta: i64) -> StoreResult<i64> {
        let key = self.key_ref(key)?;
        let (mut fast_sum, mut sum) = (0, None);
        let fast = FastAdd { delta, sum: &mut fast_sum };
        self.change_by_key(&key, fast, true, |current, bytes| {
            let added = sum_of(current, bytes, delta)?;
            sum = Some(added);
            Ok(Change::Owned(added.to_le_bytes().to_vec()))
        })?;
        Ok(sum.unwrap_or(fast_sum))
    }

    /// Changes a key by key: on the mapped fast path if its location is cached, else on the slow
    /// path.
    #[inline(always)]
    fn change_by_key<'v>(
        &self,
        key: &KeyRef<'_>,
        fast: impl FastChange,
        needs_value: bool,
        mut change: impl FnMut(Option<&CurrentVersion>, &mut Vec<u8>) -> StoreResult<Change<'v>>,
    ) -> StoreResult<Option<Version>> {
        if let Some(mut location) = self.key_locations.find(key)
            && let Some(version) = self.change_mapped(key, location.fast(), fast)?
        {
            location.keep();
            return Ok(Some(version));
        }
        if !self.job.is_mapped() {
            return self.run_call(key, |op| op.try_write(key, None, &mut change, needs_value));
        }
        self.change_by_key_slow(key, needs_value, &mut change)
    }

    /// Changes a key by key on the slow path, and caches its location.
    #[inline(never)]
    fn change_by_key_slow<'v>(
        &self,
        key: &KeyRef<'_>,
        needs_value: bool,
        change: &mut impl FnMut(Option<&CurrentVersion>, &mut Vec<u8>) -> StoreResult<Change<'v>>,
    ) -> StoreResult<Option<Version>> {
        let mut cached = CachedLocation::NOTHING_BY_KEY;
        let written = self
            .run_call(key, |op| op.try_write(key, Some(&mut cached), &mut *change, needs_value))?;
        self.key_locations.note(key, &cached);
        Ok(written)
    }

    /// Puts a value with a cached location, on a fast path if possible.
    #[inline]
    pub(in crate::store) fn put_cached(
        &self,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
        value: &[u8],
    ) -> StoreResult<Version> {
        match self.change_mapped(key, cached.fast(), FastPut(value))? {
            Some(version) => Ok(version),
            None => self.put_cached_slow(key, cached, value),
        }
    }

    /// Puts a value with a cached location, on the fast path over a network or on the slow path.
    fn put_cached_slow(
        &self,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
        value: &[u8],
    ) -> StoreResult<Version> {
        let written =
            self.run_call(key, |op| match op.put_cached_remote(key, cached, value)? {
                Some(version) => Ok(Some(version)),
                None => op.try_write(key, Some(cached), &mut |_, _| Ok(Change::Put(value)), false),
            })?;
        Ok(written.expect("a put changes the key"))
    }

    /// Puts a value that is in several parts with a cached location. On the mapped fast path the
    /// parts are copied to the replicas one by one; any other path joins them first.
    pub(in crate::store) fn put_parts_cached(
        &self,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
        parts: &[&[u8]],
    ) -> StoreResult<Version> {
        match self.change_mapped(key, cached.fast(), FastPut(parts))? {
            Some(version) => Ok(version),
            // The mapped fast path is not tried again: it may have waited.
            None => self.put_cached_slow(key, cached, &parts.concat()),
        }
    }

    /// Puts a value if the condition holds, with a cached location.
    #[inline]
    pub(in crate::store) fn put_if_cached(
        &self,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
        value: &[u8],
        expect: Expect,
    ) -> StoreResult<Version> {
        if let Some(version) =
            self.change_mapped(key, cached.fast(), FastPutIf { value, expect })?
        {
            return Ok(version);
        }
        let written = self.write_cached(key, cached, false, |current, _| {
            CurrentVersion::check(current, expect).map(|()| Change::Put(value))
        })?;
        Ok(written.expect("a put changes the key"))
    }

    /// Adds to the number that a key holds, with a cached location. Returns the sum.
    #[inline]
    pub(in crate::store) fn add_cached(
        &self,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
        delta: i64,
    ) -> StoreResult<i64> {
        let mut sum = 0;
        if self.change_mapped(key, cached.fast(), FastAdd { delta, sum: &mut sum })?.is_none() {
            self.write_cached(key, cached, true, |current, bytes| {
                sum = sum_of(current, bytes, delta)?;
                Ok(Change::Owned(sum.to_le_bytes().to_vec()))
            })?;
        }
        Ok(sum)
    }

    /// Writes a record of the store itself with a cached location, if it still has the version
    /// `expected`, on the mapped fast path. `None` if the slow path must be taken.
    pub(in crate::store) fn write_own_mapped(
        &self,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
        value: &[u8],
        expected: Option<Version>,
    ) -> StoreResult<Option<Version>> {
        match expected.map(Expect::Version) {
            None => self.change_mapped(key, cached.fast(), FastPut(value)),
            Some(expect) => self.change_mapped(key, cached.fast(), FastPutIf { value, expect }),
        }
    }

    /// *lock* on the mapped fast path. Returns the provisional version, and leaves in `locked`
    /// where it is; `None` if the slow path must be taken.
    pub(in crate::store) fn lock_mapped(
        &self,
        key: &KeyRef<'_>,
        lock: FastLock<'_>,
        locked: &mut Option<ShortLocation>,
    ) -> StoreResult<Option<Version>> {
        let Some(mut location) = self.key_locations.find(key) else { return Ok(None) };
        let written = self.change_mapped(key, location.fast(), lock)?;
        if written.is_some() {
            *locked = Some(location.copy());
            location.keep();
        }
        Ok(written)
    }

    /// *apply* on the mapped fast path, at the location that *lock* has left. Returns whether it
    /// did it; if not, the slow path must be taken.
    pub(in crate::store) fn apply_mapped(
        &self,
        key: &KeyRef<'_>,
        location: &mut ShortLocation,
        apply: FastApply<'_>,
    ) -> StoreResult<bool> {
        let done = self.change_mapped(key, location.fast(LocationSource::Lock), apply)?.is_some();
        if done {
            self.key_locations.record(key, Some(location));
        }
        Ok(done)
    }

    /// Makes a change with a cached location on the mapped fast path. `None` if the slow path must
    /// be taken; then nothing has happened.
    #[inline(always)]
    fn change_mapped(
        &self,
        key: &KeyRef<'_>,
        cached: FastLocation<'_>,
        change: impl FastChange,
    ) -> StoreResult<Option<Version>> {
        let done = match self.job.mapped() {
            Some(MappedEngine::Shm(shm)) => self.put_mapped(shm, key, cached, change),
            #[cfg(feature = "sim")]
            Some(MappedEngine::Sim(sim)) => self.put_mapped(sim, key, cached, change),
            None => Ok(None),
        };
        match done {
            Ok(version) => Ok(version),
            Err(OpError::Fail(error)) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Changes a key on the slow path. `change` decides from the current version, and from its
    /// value if `needs_value`, what becomes of the key. Returns the new version, or `None` if
    /// nothing changed. `change` may run several times.
    pub(in crate::store) fn write<'v>(
        &self,
        key: &[u8],
        needs_value: bool,
        mut change: impl FnMut(Option<&CurrentVersion>, &mut Vec<u8>) -> StoreResult<Change<'v>>,
    ) -> StoreResult<Option<Version>> {
        let key = self.key_ref(key)?;
        self.run_call(&key, |op| op.try_write(&key, None, &mut change, needs_value))
    }

    /// Changes a key as [`RecordState::write`] does, with a cached location.
    pub(in crate::store) fn write_cached<'v>(
        &self,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
        needs_value: bool,
        mut change: impl FnMut(Option<&CurrentVersion>, &mut Vec<u8>) -> StoreResult<Change<'v>>,
    ) -> StoreResult<Option<Version>> {
        self.run_call(key, |op| op.try_write(key, Some(cached), &mut change, needs_value))
    }
}

/// The sum of a number and the number that a key holds; 0 for a key that does not exist.
pub(in crate::store) fn sum_of(
    current: Option<&CurrentVersion>,
    bytes: &[u8],
    delta: i64,
) -> StoreResult<i64> {
    let before = match current {
        None => 0,
        Some(_) => i64::from_le_bytes(bytes.try_into().map_err(|_| StoreError::WrongType {
            what: format!("the value has {} bytes, and a number has 8", bytes.len()),
        })?),
    };
    Ok(before.wrapping_add(delta))
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::engine::MemberId;
    use crate::engine::sim::{self, Options as SimOptions};
    use crate::store::{Options, Store};

    /// The location cache knows keys by their hashes. Two keys with an equal hash share a place in
    /// it, and each keeps its own record.
    #[test]
    fn keys_with_an_equal_hash_are_told_apart() {
        let report = sim::run(&SimOptions::new(2, 3), |job: crate::Job| {
            let store = Store::open(&job, Options::new().replicas(2).partitions(1)).expect("open");
            if job.me() == MemberId(0) {
                let any = store.state.key_ref(b"any").expect("a key");
                let [one, two] = [b"one", b"two"].map(|key| KeyRef { key, ..any });
                let put = |key: &KeyRef<'_>, value: &'static [u8]| {
                    let slow = |_: Option<&CurrentVersion>, _: &mut Vec<u8>| Ok(Change::Put(value));
                    store.state.change_by_key(key, FastPut(value), false, slow).expect("put");
                };
                let read = |key: &KeyRef<'_>| {
                    let mut buffer = [0; 8];
                    let found = store.state.read_into(key, None, &mut buffer).expect("read");
                    buffer[..found.expect("there").0].to_vec()
                };
                for _ in 0..3 {
                    put(&one, b"1");
                    put(&one, b"11");
                    put(&two, b"2");
                    put(&two, b"22");
                    assert_eq!((read(&one), read(&two)), (b"11".to_vec(), b"22".to_vec()));
                }
            }
            store.close().expect("close");
            let _ = job.leave();
        });
        report.expect_ok();
    }
}

//! The entry points of calls that change a key, and the choice of their path.
//!
//! | the call | its path |
//! |---|---|
//! | a put by handle, on mapped memory | `fast_mapped.rs`; the slow path if a check fails |
//! | a put by handle or by key, over a network | `fast_remote.rs`; the slow path if a check fails |
//! | a put by key on mapped memory, and all other changes | the slow path, `write.rs` |

use crate::engine::mapped::Directly;
use crate::store::error::StoreResult;
use crate::store::operation::error::OpError;
use crate::store::record::key::KeyRef;
use crate::store::record::location::CachedLocation;
use crate::store::record::state::RecordState;
use crate::store::record::write::{Change, CurrentVersion};
use crate::store::value::Version;

impl RecordState {
    /// Puts a value by key. Over a network it uses the location cache.
    pub(in crate::store) fn put_by_key(&self, key: &[u8], value: &[u8]) -> StoreResult<Version> {
        if self.job.is_mapped() {
            let written = self.write(key, false, |_, _| Ok(Change::Put(value)))?;
            return Ok(written.expect("a put changes the key"));
        }
        let key = self.key_ref(key)?;
        self.location_cache.call(&key, |cached| self.put_cached(&key, cached, value))
    }

    /// Puts a value with a cached location, on a fast path if possible.
    #[inline]
    pub(in crate::store) fn put_cached(
        &self,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
        value: &[u8],
    ) -> StoreResult<Version> {
        let done = match self.job.directly() {
            Some(Directly::Shm(shm)) => self.put_mapped(shm, key, cached, value),
            #[cfg(feature = "sim")]
            Some(Directly::Sim(sim)) => self.put_mapped(sim, key, cached, value),
            None => Ok(None),
        };
        match done {
            Ok(Some(version)) => return Ok(version),
            Ok(None)
            | Err(OpError::Again | OpError::Blocked(_) | OpError::Frozen | OpError::Lost(_)) => {}
            Err(OpError::Fail(error)) => return Err(error),
        }
        let written =
            self.run_call(key, |op| match op.put_cached_remote(key, cached, value)? {
                Some(version) => Ok(Some(version)),
                None => op.try_write(key, Some(cached), &mut |_, _| Ok(Change::Put(value)), false),
            })?;
        Ok(written.expect("a put changes the key"))
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

//! Entry points of the calls that change a key, and the choice of their path.
use crate::engine::mapped::Directly;
use crate::store::error::StoreResult;
use crate::store::operation::error::OpError;
use crate::store::record::key::KeyRef;
use crate::store::record::location::CachedLocation;
use crate::store::record::state::RecordState;
use crate::store::record::write::{Change, CurrentVersion};
use crate::store::value::Version;

impl RecordState {
    /// A put by key.
    pub(in crate::store) fn put_by_key(&self, key: &[u8], value: &[u8]) -> StoreResult<Version> {
        if self.job.is_mapped() {
            let written = self.write(key, false, |_, _| Ok(Change::Put(value)))?;
            return Ok(written.expect("a put changes the key"));
        }
        let key = self.key_ref(key)?;
        self.location_cache.call(&key, |cached| self.put_again(&key, cached, value))
    }

    /// A put with what a handle has_cached.
    #[inline]
    pub(in crate::store) fn put_again(
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

    pub(in crate::store) fn write<'v>(
        &self,
        key: &[u8],
        needs_value: bool,
        mut change: impl FnMut(Option<&CurrentVersion>, &mut Vec<u8>) -> StoreResult<Change<'v>>,
    ) -> StoreResult<Option<Version>> {
        let key = self.key_ref(key)?;
        self.run_call(&key, |op| op.try_write(&key, None, &mut change, needs_value))
    }

    /// The same with what a handle has_cached.
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

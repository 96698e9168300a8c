//! Which keys a program may use.

use crate::store::error::{StoreError, StoreResult};
use crate::store::value::KEY_LEN_MAX;

/// The beginning of the store's own keys, which are not listed.
pub(in crate::store) const RESERVED: &[u8] = b"\0outlast/";

/// The beginning of the keys of records about the memory of members: images, regions and seats.
/// What they describe ends with the job, so no snapshot has them, and none brings them back.
pub(crate) const OF_MEMORY: &[u8] = b"\x01image/";

/// Whether a snapshot has a key, and whether a restored snapshot puts it.
pub(crate) fn is_for_snapshots(key: &[u8]) -> bool {
    !key.starts_with(RESERVED) && !key.starts_with(OF_MEMORY)
}

/// Checks the length of a key.
pub(in crate::store) fn check_len(key: &[u8]) -> StoreResult<()> {
    if key.is_empty() || key.len() > KEY_LEN_MAX {
        return Err(StoreError::BadKey { len: key.len() });
    }
    Ok(())
}

/// Checks whether a program may change a key. The store's own keys are refused: they are not listed
/// and are in no snapshot.
#[inline]
pub(in crate::store) fn check_key(key: &[u8]) -> StoreResult<()> {
    if key.starts_with(RESERVED) {
        let reason =
            "keys that begin with \"\\0outlast/\" are the store's own; choose another key".into();
        return Err(StoreError::Invalid { reason });
    }
    check_len(key)
}

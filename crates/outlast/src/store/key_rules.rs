//! Which keys a program may use.

use crate::store::error::{StoreError, StoreResult};
use crate::store::value::KEY_LEN_MAX;

/// The beginning of the store's own keys, which are not listed.
pub(in crate::store) const RESERVED: &[u8] = b"\0outlast/";

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

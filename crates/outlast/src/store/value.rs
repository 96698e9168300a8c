//! Keys, values and versions as programs see them.

use crate::engine::MemberId;
use crate::store::error::{StoreError, StoreResult};
use crate::store::record::write::CurrentVersion;
use std::fmt;

/// The longest key, in bytes.
pub const KEY_LEN_MAX: usize = 1024;

/// The version of a value: it grows with every change of the key and never repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// One more than the counter of the version before.
    pub counter: u64,
    /// The member that wrote it.
    pub writer: MemberId,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.counter, self.writer.0)
    }
}

/// A value as it was read: a copy, with its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    pub(in crate::store) bytes: Vec<u8>,
    pub(in crate::store) version: Version,
    pub(in crate::store) owner: MemberId,
}

impl Value {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, owned.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The member that owns the key: who created it, or adopted it since.
    pub fn owner(&self) -> MemberId {
        self.owner
    }
}

/// What a conditional put expects of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// It does not exist.
    Absent,
    /// It has this version.
    Version(Version),
}

impl Expect {
    pub(in crate::store) fn check(self, current: Option<&CurrentVersion>) -> StoreResult<()> {
        let found = current.map(|current| current.version);
        let is_right = match self {
            Expect::Absent => found.is_none(),
            Expect::Version(version) => found == Some(version),
        };
        if is_right { Ok(()) } else { Err(StoreError::Conflict { found }) }
    }
}

/// Whether there can be such a key.
pub(in crate::store) fn check_len(key: &[u8]) -> StoreResult<()> {
    if key.is_empty() || key.len() > KEY_LEN_MAX {
        return Err(StoreError::BadKey { len: key.len() });
    }
    Ok(())
}

/// Whether a program may change such a key: it is not one of the store's own, which are not listed
/// and in no snapshot.
#[inline]
pub(in crate::store) fn check_key(key: &[u8]) -> StoreResult<()> {
    if key.starts_with(RESERVED) {
        let reason =
            "keys that begin with \"\\0outlast/\" are the store's own; choose another one".into();
        return Err(StoreError::Invalid { reason });
    }
    check_len(key)
}

/// Keys that begin so are the store's own, and are not listed.
pub(in crate::store) const RESERVED: &[u8] = b"\0outlast/";

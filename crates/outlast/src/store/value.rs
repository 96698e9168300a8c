//! Keys, values and versions as programs see them.

use crate::engine::MemberId;
use std::fmt;

/// The longest key, in bytes.
pub const KEY_LEN_MAX: usize = 1024;

/// The version of a value: it grows with every change of the key and never repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The counter, greater than the counter of the previous version.
    pub counter: u64,
    /// The member that wrote this version.
    pub writer: MemberId,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.counter, self.writer.0)
    }
}

/// A value that was read: a copy of its bytes, with its version and owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    pub(in crate::store) bytes: Vec<u8>,
    pub(in crate::store) version: Version,
    pub(in crate::store) owner: MemberId,
}

impl Value {
    /// The bytes of the value.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes without copying them again.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The version of the value.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The member that owns the key: the member that created it, or that adopted it since.
    pub fn owner(&self) -> MemberId {
        self.owner
    }
}

/// The condition of a conditional put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The key does not exist.
    Absent,
    /// The key has this version.
    Version(Version),
}

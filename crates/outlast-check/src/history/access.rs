//! Keys, versions and values, and what an operation does to them.

use super::text;
use std::fmt;
use std::sync::Arc;

/// A key, cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<[u8]>);

impl Key {
    /// The bytes of the key.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Self {
        Self(Arc::from(bytes))
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self(Arc::from(text.as_bytes()))
    }
}

impl From<Vec<u8>> for Key {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Arc::from(bytes))
    }
}

impl<const N: usize> From<&[u8; N]> for Key {
    fn from(bytes: &[u8; N]) -> Self {
        Self(Arc::from(bytes.as_slice()))
    }
}

impl From<&Key> for Key {
    fn from(key: &Key) -> Self {
        key.clone()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::write_key(formatter, self)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Key({self})")
    }
}

/// The version of a record: ordered by counter first, then by writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Grows with every write to the key.
    pub counter: u64,
    /// The member that wrote it.
    pub writer: u32,
}

impl Version {
    /// The version of a key that was never written.
    pub const INITIAL: Version = Version { counter: 0, writer: 0 };

    /// The version with this counter, by this writer.
    pub const fn new(counter: u64, writer: u32) -> Self {
        Self { counter, writer }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "v{}.{}", self.counter, self.writer)
    }
}

/// A value in a history: an identity instead of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value {
    /// A number or hash that identifies the write, unique for the key where possible.
    pub identity: u64,
    /// Whether the bytes were a mix or a fragment of values.
    pub torn: bool,
}

impl Value {
    /// An intact value.
    pub const fn new(identity: u64) -> Self {
        Self { identity, torn: false }
    }

    /// An intact number, as [`AccessMode::Add`] reads and writes it.
    pub const fn number(number: i64) -> Self {
        Self::new(number as u64)
    }

    /// A value that failed its verification.
    pub const fn torn(identity: u64) -> Self {
        Self { identity, torn: true }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "={:x}{}", self.identity, if self.torn { "!" } else { "" })
    }
}

/// What an access does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessMode {
    /// A read whose result is not known (yet). The checkers skip it; it is for people.
    Ask,
    /// A read, and what it saw. No value means that the key was absent.
    Read,
    /// A write. No value means that the key was deleted.
    Write,
    /// An atomic addition to a number; an absent key counts as zero. The value is the sum.
    Add {
        /// What was added.
        delta: i64,
    },
}

/// A key that an operation touched, and how.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// The key.
    pub key: Key,
    /// What was done to it.
    pub mode: AccessMode,
    /// The version read or written, if the actor was told.
    pub version: Option<Version>,
    /// The value read or written.
    pub value: Option<Value>,
}

impl Access {
    fn new(key: impl Into<Key>, mode: AccessMode, value: Option<Value>) -> Self {
        Self { key: key.into(), mode, version: None, value }
    }

    /// A read whose result is not known.
    pub fn ask(key: impl Into<Key>) -> Self {
        Self::new(key, AccessMode::Ask, None)
    }

    /// A read of an absent key, unless [`Access::saw`] adds a value.
    pub fn read(key: impl Into<Key>) -> Self {
        Self::new(key, AccessMode::Read, None)
    }

    /// A write of a value.
    pub fn write(key: impl Into<Key>, value: Value) -> Self {
        Self::new(key, AccessMode::Write, Some(value))
    }

    /// A deletion.
    pub fn delete(key: impl Into<Key>) -> Self {
        Self::new(key, AccessMode::Write, None)
    }

    /// An addition whose sum is not known, unless [`Access::saw`] adds it.
    pub fn add(key: impl Into<Key>, delta: i64) -> Self {
        Self::new(key, AccessMode::Add { delta }, None)
    }

    /// Whether it is a write, a deletion or an addition.
    pub fn changes(&self) -> bool {
        matches!(self.mode, AccessMode::Write | AccessMode::Add { .. })
    }

    /// Adds the version that the access read or made.
    pub fn at(mut self, version: Version) -> Self {
        self.version = Some(version);
        self
    }

    /// Adds the value that the access read or made.
    pub fn saw(mut self, value: Value) -> Self {
        self.value = Some(value);
        self
    }
}

impl fmt::Display for Access {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mode {
            AccessMode::Ask => write!(formatter, "ask {}", self.key)?,
            AccessMode::Read => write!(formatter, "read {}", self.key)?,
            AccessMode::Write if self.value.is_none() => write!(formatter, "delete {}", self.key)?,
            AccessMode::Write => write!(formatter, "write {}", self.key)?,
            AccessMode::Add { delta } => write!(formatter, "add {delta:+} to {}", self.key)?,
        }
        if let Some(version) = self.version {
            write!(formatter, " {version}")?;
        }
        match (self.mode, self.value) {
            (AccessMode::Add { .. }, Some(value)) => {
                write!(formatter, " ={}", value.identity as i64)
            }
            (_, Some(value)) => write!(formatter, " {value}"),
            (AccessMode::Read, None) => write!(formatter, " absent"),
            _ => Ok(()),
        }
    }
}

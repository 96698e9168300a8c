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

/// What stands for the bytes of a value in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value {
    /// A number or hash that no other write to the same key shares, where possible.
    pub identity: u64,
    /// The bytes were no value that anyone wrote, but a mix or a fragment.
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
    /// A read whose answer is not known (yet). The checkers pass over it; a reader of a report does not.
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

/// One key that an operation touched, and how.
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

    /// A read whose answer is not known.
    pub fn ask(key: impl Into<Key>) -> Self {
        Self::new(key, AccessMode::Ask, None)
    }

    /// A read that found nothing, unless [`Access::saw`] says what it found.
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

    /// An addition whose sum is not known, unless [`Access::saw`] tells it.
    pub fn add(key: impl Into<Key>, delta: i64) -> Self {
        Self::new(key, AccessMode::Add { delta }, None)
    }

    /// Whether it is a write, a deletion or an addition.
    pub fn changes(&self) -> bool {
        matches!(self.mode, AccessMode::Write | AccessMode::Add { .. })
    }

    /// The same access with the version it read or made.
    pub fn at(mut self, version: Version) -> Self {
        self.version = Some(version);
        self
    }

    /// The same access with the value it saw or made.
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

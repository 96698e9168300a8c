//! What a checker found: a kind, a sentence, and the few operations that show it.
//!
//! ```
//! use outlast_check::history::{Access, Actor, History, CallKind, Log, Outcome, Value};
//! use outlast_check::serializable;
//! use outlast_check::violation::ViolationKind;
//!
//! let mut log = Log::new(Actor::new(0, 0));
//! log.invoke(1, CallKind::Get, vec![Access::ask("a")]);
//! log.returned(2, Outcome::Ok, vec![Access::read("a").saw(Value::torn(5))]);
//! let violations = serializable::check(&History::from_logs([log]).unwrap());
//! assert_eq!(violations[0].kind, ViolationKind::Torn);
//! assert_eq!(
//!     violations[0].to_string(),
//!     "torn: a read of a returned bytes that no operation wrote as a whole value\n  \
//!      (0) 0/0 #0 [1..2] get: read a =5! -> ok\n"
//! );
//! ```

use std::fmt;

use crate::history::{Key, Operation, Version};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ViolationKind {
    /// No order of the operations on a key explains their results.
    NotLinearizable,
    /// The search gave up before it had an answer. This is no pass.
    Undecided,
    /// The dependencies between operations run in a circle.
    Cycle,
    /// A read returned a mix or a fragment.
    Torn,
    /// A version of a key was seen with two different values.
    TwoValues,
    /// A write was seen under two different versions.
    TwoVersions,
    /// Two writes to a key have equal versions.
    DuplicateVersion,
    /// A read returned a value that no operation wrote.
    NeverWritten,
    /// A read returned the value of a failed operation.
    ReadOfAborted,
    /// An actor saw a key go back to an older version.
    Backwards,
    /// A transaction contradicts itself: it saw two states of a key, or not its own write.
    NonRepeatableRead,
    /// An addition did not add to the number before it.
    WrongSum,
    /// An acknowledged write is missing at the end.
    Lost,
    /// A read is older than a write acknowledged before the read began.
    Stale,
    /// A call did not come back in time.
    Hung,
    /// A call returned an answer about a key after another call had reported it lost, and before
    /// the loss was accepted.
    LostAnswered,
}

impl fmt::Display for ViolationKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            ViolationKind::NotLinearizable => "not linearizable",
            ViolationKind::Undecided => "undecided",
            ViolationKind::Cycle => "cycle",
            ViolationKind::Torn => "torn",
            ViolationKind::TwoValues => "two values for one version",
            ViolationKind::TwoVersions => "two versions for one write",
            ViolationKind::DuplicateVersion => "duplicate version",
            ViolationKind::NeverWritten => "never written",
            ViolationKind::ReadOfAborted => "read of aborted",
            ViolationKind::Backwards => "backwards",
            ViolationKind::NonRepeatableRead => "non-repeatable read",
            ViolationKind::WrongSum => "wrong sum",
            ViolationKind::Lost => "lost",
            ViolationKind::Stale => "stale",
            ViolationKind::Hung => "hung",
            ViolationKind::LostAnswered => "answered though lost",
        })
    }
}

/// Why an operation must come before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EdgeKind {
    /// The second overwrote what the first wrote.
    WriteWrite,
    /// The second read what the first wrote.
    WriteRead,
    /// The second overwrote what the first read.
    ReadWrite,
    /// The first returned before the second was invoked.
    RealTime,
}

/// A step of a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CycleEdge {
    /// The earlier operation, as an index into [`Violation::operations`].
    pub from: usize,
    /// The later operation, likewise.
    pub to: usize,
    /// Why.
    pub kind: EdgeKind,
    /// On which key; none for real time.
    pub key: Option<Key>,
    /// The version that the first wrote or read, where known.
    pub from_version: Option<Version>,
    /// The version that the second wrote or read, where known.
    pub to_version: Option<Version>,
}

impl fmt::Display for CycleEdge {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, second) = match self.kind {
            EdgeKind::WriteWrite => ("wrote", "which overwrote it with"),
            EdgeKind::WriteRead => ("wrote", "which read"),
            EdgeKind::ReadWrite => ("read", "which overwrote it with"),
            EdgeKind::RealTime => {
                return write!(formatter, "({}) returned before ({}) began", self.from, self.to);
            }
        };
        write!(formatter, "({}) {first}", self.from)?;
        if let Some(key) = &self.key {
            write!(formatter, " {key}")?;
        }
        write_version(formatter, self.from_version)?;
        write!(formatter, ", before ({}) {second}", self.to)?;
        write_version(formatter, self.to_version)
    }
}

fn write_version(formatter: &mut fmt::Formatter<'_>, version: Option<Version>) -> fmt::Result {
    match version {
        Some(Version::INITIAL) => write!(formatter, " the initial state"),
        Some(version) => write!(formatter, " {version}"),
        None => write!(formatter, " an unknown version"),
    }
}

/// A result that a correct store never gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What is wrong.
    pub kind: ViolationKind,
    /// The key, if the violation is about a single key.
    pub key: Option<Key>,
    /// A sentence for people.
    pub explanation: String,
    /// The operations that show the violation, as few as were found.
    pub operations: Vec<Operation>,
    /// For a [`ViolationKind::Cycle`], its steps.
    pub cycle: Vec<CycleEdge>,
}

impl Violation {
    pub(crate) fn new(
        kind: ViolationKind,
        key: Option<&Key>,
        explanation: String,
        operations: Vec<Operation>,
    ) -> Self {
        Self { kind, key: key.cloned(), explanation, operations, cycle: Vec::new() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}: {}", self.kind, self.explanation)?;
        for (index, operation) in self.operations.iter().enumerate() {
            writeln!(formatter, "  ({index}) {operation}")?;
        }
        for edge in &self.cycle {
            writeln!(formatter, "  {edge}")?;
        }
        Ok(())
    }
}

//! What the actors of a run did to the store, and the results.
//!
//! An *actor* is a thread of a member. Each actor keeps its own log, so that recording takes no
//! lock and costs no more than a push onto a vector; the logs are merged afterwards. A log is kept
//! in memory ([`Log`]) or written line by line to a file that survives `kill -9` ([`LogWriter`]).
//! [`History::parse`] reads such a file.
//!
//! The conventions that the checkers rely on:
//!
//! - Times are nanoseconds of a clock that all actors share. An operation precedes another
//!   operation in real time only if it returned strictly before the other was invoked; equal times
//!   count as concurrent. The operations of an actor are ordered by their sequence as well.
//!   Overlapping calls of a thread (non-blocking puts) are recorded under a thread number of their
//!   own each.
//! - [`Outcome::Ok`] means that the results are binding. [`Outcome::Failed`] means that the store
//!   promised that nothing happened. [`Outcome::Unknown`] means that the operation may have taken
//!   effect at any time after its invocation, or may do so later, or never: the actor died or the
//!   call timed out.
//! - Every key is absent at the start, at version `(0, 0)`. Versions grow in the order of the
//!   writes.
//! - A successful conditional put is a read of what it expected and a write. A conditional put that
//!   found another state is `Ok` with a read of that state, and no write.
//! - The identity of a number in a counter is [`Value::number`].
//!
//! ```
//! use outlast_check::history::{Access, Actor, History, CallKind, Log, Outcome, Value, Version};
//!
//! let mut log = Log::new(Actor::new(2, 0));
//! let intended = Access::write("ck/3", Value::new(0xa0));
//! log.invoke(1_000, CallKind::Put, vec![intended.clone()]);
//! log.returned(1_250, Outcome::Ok, vec![intended.at(Version::new(12, 2))]);
//! let history = History::from_logs([log]).unwrap();
//!
//! let put = &history.operations()[0];
//! assert_eq!(put.to_string(), "2/0 #0 [1000..1250] put: write ck/3 v12.2 =a0 -> ok");
//! assert_eq!(History::parse(history.to_text().as_bytes()).unwrap(), history);
//! ```

mod access;
mod json;
mod log;
mod text;

use std::collections::HashMap;
use std::fmt;

pub use access::{Access, AccessMode, Key, Value, Version};
pub use log::{Log, LogWriter};

/// A thread of a member. Its calls follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Actor {
    /// The identity of the member, never reused within a run.
    pub member: u32,
    /// The thread within the member.
    pub thread: u32,
}

impl Actor {
    /// The actor that is this thread of this member.
    pub const fn new(member: u32, thread: u32) -> Self {
        Self { member, thread }
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.member, self.thread)
    }
}

/// The kind of call of an operation. The checkers use its accesses alone; the kind is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// A read of a key.
    Get,
    /// A write of a key.
    Put,
    /// A conditional write.
    PutIf,
    /// A deletion.
    Delete,
    /// An atomic addition.
    Add,
    /// A read that waited until the key was new enough.
    Wait,
    /// Several reads and writes as a transaction.
    Transaction,
}

/// Every kind with its name in texts.
pub(crate) const KIND_NAMES: [(CallKind, &str); 7] = [
    (CallKind::Get, "get"),
    (CallKind::Put, "put"),
    (CallKind::PutIf, "put_if"),
    (CallKind::Delete, "delete"),
    (CallKind::Add, "add"),
    (CallKind::Wait, "wait"),
    (CallKind::Transaction, "transaction"),
];

impl fmt::Display for CallKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = KIND_NAMES.iter().find(|(kind, _)| kind == self).map_or("?", |(_, name)| name);
        formatter.write_str(name)
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It took effect, and its results are binding.
    Ok,
    /// It had no effect, as its error promises.
    Failed,
    /// It may have taken effect, may still do so, or never will.
    Unknown,
}

/// Every outcome with its name in texts.
pub(crate) const OUTCOME_NAMES: [(Outcome, &str); 3] =
    [(Outcome::Ok, "ok"), (Outcome::Failed, "failed"), (Outcome::Unknown, "unknown")];

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name =
            OUTCOME_NAMES.iter().find(|(outcome, _)| outcome == self).map_or("?", |(_, name)| name);
        formatter.write_str(name)
    }
}

/// A call or transaction of an actor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The caller.
    pub actor: Actor,
    /// The position among the actor's operations.
    pub sequence: u64,
    /// What was called.
    pub kind: CallKind,
    /// When it was called.
    pub invoke_ns: u64,
    /// When it returned, with any outcome; none if it never did.
    pub return_ns: Option<u64>,
    /// How it ended. An operation that never returned is [`Outcome::Unknown`].
    pub outcome: Outcome,
    /// What it read and wrote, in its own order.
    pub accesses: Vec<Access>,
}

impl Operation {
    /// Whether the operation ended, with a binding result, strictly before the other operation
    /// began.
    pub(crate) fn precedes(&self, other: &Operation) -> bool {
        self.outcome != Outcome::Unknown && self.return_ns.is_some_and(|at| at < other.invoke_ns)
            || self.outcome != Outcome::Unknown
                && self.actor == other.actor
                && self.sequence < other.sequence
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} #{} [{}..", self.actor, self.sequence, self.invoke_ns)?;
        match self.return_ns {
            Some(at) => write!(formatter, "{at}] ")?,
            None => write!(formatter, "never] ")?,
        }
        write!(formatter, "{}:", self.kind)?;
        for (index, access) in self.accesses.iter().enumerate() {
            write!(formatter, "{} {access}", if index == 0 { "" } else { "," })?;
        }
        write!(formatter, " -> {}", self.outcome)
    }
}

/// Why a history could not be put together or read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum HistoryError {
    /// A line of the text form is malformed.
    #[error("line {line}: {reason}")]
    Line {
        /// The number of the line, starting with 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The JSON form is malformed.
    #[error("no history in JSON: {reason}")]
    Json {
        /// What is wrong with it.
        reason: String,
    },
    /// Two operations of an actor have the same sequence.
    #[error("actor {actor} has two operations #{sequence}; were two runs merged into one history?")]
    Duplicate {
        /// The actor.
        actor: Actor,
        /// The sequence that occurs twice.
        sequence: u64,
    },
    /// An operation ended before it began.
    #[error(
        "operation #{sequence} of actor {actor} returned before it was invoked; share one clock"
    )]
    TimeBackwards {
        /// The actor.
        actor: Actor,
        /// The operation.
        sequence: u64,
    },
    /// Two operations of an actor overlap.
    #[error(
        "operation #{sequence} of actor {actor} began before its predecessor returned; \
         record overlapping calls under different threads"
    )]
    Overlap {
        /// The actor.
        actor: Actor,
        /// The later operation.
        sequence: u64,
    },
    /// An operation that never returned claims to know its outcome.
    #[error("operation #{sequence} of actor {actor} has an outcome but never returned")]
    OutcomeWithoutReturn {
        /// The actor.
        actor: Actor,
        /// The operation.
        sequence: u64,
    },
}

/// The operations of all actors of a run, ordered by invocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    operations: Vec<Operation>,
}

impl History {
    /// The history of these operations, which may come in any order.
    pub fn new(mut operations: Vec<Operation>) -> Result<Self, HistoryError> {
        operations.sort_by_key(|operation| (operation.actor, operation.sequence));
        for operation in &operations {
            let Operation { actor, sequence, .. } = *operation;
            if operation.return_ns.is_some_and(|at| at < operation.invoke_ns) {
                return Err(HistoryError::TimeBackwards { actor, sequence });
            }
            if operation.return_ns.is_none() && operation.outcome != Outcome::Unknown {
                return Err(HistoryError::OutcomeWithoutReturn { actor, sequence });
            }
        }
        for pair in operations.windows(2) {
            let Operation { actor, sequence, invoke_ns, .. } = pair[1];
            if pair[0].actor != actor {
                continue;
            }
            if pair[0].sequence == sequence {
                return Err(HistoryError::Duplicate { actor, sequence });
            }
            if pair[0].return_ns.unwrap_or(pair[0].invoke_ns) > invoke_ns {
                return Err(HistoryError::Overlap { actor, sequence });
            }
        }
        operations
            .sort_by_key(|operation| (operation.invoke_ns, operation.actor, operation.sequence));
        Ok(Self { operations })
    }

    /// The history of all actors, from the log of each.
    pub fn from_logs(logs: impl IntoIterator<Item = Log>) -> Result<Self, HistoryError> {
        Self::new(logs.into_iter().flat_map(|log| log.operations).collect())
    }

    /// Merges the histories that separate processes wrote.
    pub fn merge(parts: impl IntoIterator<Item = History>) -> Result<Self, HistoryError> {
        Self::new(parts.into_iter().flat_map(|part| part.operations).collect())
    }

    /// The operations, ordered by invocation.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Takes the operations out of the history.
    pub fn into_operations(self) -> Vec<Operation> {
        self.operations
    }

    /// The text form, with a line for each invocation and each return.
    ///
    /// ```text
    /// outlast-history 1
    /// i MEMBER/THREAD SEQUENCE TIME KIND ACCESS...
    /// r MEMBER/THREAD SEQUENCE TIME OUTCOME ACCESS...
    /// ```
    ///
    /// An access is `MODE:KEY:VERSION:VALUE`. The mode is `q` (ask), `r` (read), `w` (write) or `a`
    /// with the amount (add). The key has all but letters, digits and `/_-.` written as `%XX`. The
    /// version is `COUNTER.WRITER` or `-`. The value is hexadecimal, followed by `!` if torn, or
    /// `-`.
    pub fn to_text(&self) -> String {
        let mut out = String::from(text::HEADER);
        for operation in &self.operations {
            text::write_invoke(&mut out, operation);
            if operation.return_ns.is_some() {
                text::write_return(&mut out, operation);
            }
        }
        out
    }

    /// The JSON form, for checkers outside of this project; `docs/history-format.md` describes it.
    ///
    /// ```
    /// use outlast_check::history::{Access, Actor, CallKind, History, Log, Outcome, Value};
    /// use outlast_check::report::{self, Run};
    ///
    /// let mut log = Log::new(Actor::new(0, 0));
    /// log.invoke(10, CallKind::Put, vec![Access::write("key", Value::new(7))]);
    /// log.returned(20, Outcome::Ok, vec![Access::write("key", Value::new(7))]);
    /// log.invoke(30, CallKind::Get, vec![Access::ask("key")]);
    /// log.returned(40, Outcome::Ok, vec![Access::read("key").saw(Value::new(7))]);
    /// let json = History::from_logs([log]).unwrap().to_json();
    /// let judged = |json: &str| {
    ///     report::judge(&Run::new(History::from_json(json.as_bytes()).unwrap()))
    /// };
    /// assert!(judged(&json).ok());
    /// // A read of a value that no call has written.
    /// let wrong = json.replacen("\"value\": \"7\"", "\"value\": \"8\"", 1);
    /// assert!(!judged(&wrong).ok());
    /// ```
    pub fn to_json(&self) -> String {
        json::write(&self.operations)
    }

    /// Parses the JSON form. Any defect is an error that names the call.
    pub fn from_json(bytes: &[u8]) -> Result<Self, HistoryError> {
        Self::new(json::read(bytes)?)
    }

    /// Parses the text form. A last line without its end was cut off by the death of its writer and
    /// is skipped, so that its operation is of unknown outcome. Any other defect is an error that
    /// names the line.
    pub fn parse(bytes: &[u8]) -> Result<Self, HistoryError> {
        Self::new(text::parse(bytes)?)
    }
}

impl fmt::Display for History {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.operations.iter().try_for_each(|operation| writeln!(formatter, "{operation}"))
    }
}

/// Splits the indices of the operations by actor, each in the order of its sequence.
pub(crate) fn sessions(operations: &[Operation]) -> Vec<Vec<usize>> {
    let mut sessions: HashMap<Actor, Vec<usize>> = HashMap::new();
    for (index, operation) in operations.iter().enumerate() {
        sessions.entry(operation.actor).or_default().push(index);
    }
    let mut sessions: Vec<Vec<usize>> = sessions.into_values().collect();
    for session in &mut sessions {
        session.sort_by_key(|&index| operations[index].sequence);
    }
    sessions.sort();
    sessions
}

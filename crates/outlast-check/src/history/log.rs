//! The log of an actor's calls, in memory or line by line in a file.

use super::text;
use super::{Access, Actor, CallKind, Operation, Outcome};
use std::io::{self, Write};

/// The log of an actor, in memory.
#[derive(Clone, Debug)]
pub struct Log {
    actor: Actor,
    pub(super) operations: Vec<Operation>,
}

impl Log {
    /// The empty log of an actor.
    pub fn new(actor: Actor) -> Self {
        Self { actor, operations: Vec::new() }
    }

    /// Records a call before it is made. The accesses are what is certain by now: the writes that
    /// the call is about to make, and [`Access::ask`] for the reads. They stand if the call never
    /// returns.
    pub fn invoke(&mut self, now_ns: u64, kind: CallKind, accesses: Vec<Access>) {
        self.operations.push(Operation {
            actor: self.actor,
            sequence: self.operations.len() as u64,
            kind,
            invoke_ns: now_ns,
            return_ns: None,
            outcome: Outcome::Unknown,
            accesses,
        });
    }

    /// Records how the last call ended, with all its accesses and their results.
    ///
    /// # Panics
    /// If there is no call that has not returned yet.
    pub fn returned(&mut self, now_ns: u64, outcome: Outcome, accesses: Vec<Access>) {
        let last = self.operations.last_mut().filter(|operation| operation.return_ns.is_none());
        let operation = last.expect("a return follows an invocation");
        operation.return_ns = Some(now_ns);
        operation.outcome = outcome;
        operation.accesses = accesses;
    }

    /// The operations recorded so far.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }
}

/// The log of an actor, written line by line, each line with a single call of `write`, so that
/// everything before the death of the writer is in the file.
///
/// ```
/// use outlast_check::history::{Access, Actor, History, CallKind, LogWriter, Outcome, Value};
///
/// let mut file = Vec::new();
/// let mut log = LogWriter::new(&mut file, Actor::new(1, 0)).unwrap();
/// log.invoke(5, CallKind::Put, &[Access::write("a", Value::new(1))]).unwrap();
/// // Here the process is killed.
/// let history = History::parse(&file).unwrap();
/// assert_eq!(history.operations()[0].outcome, Outcome::Unknown);
/// ```
#[derive(Debug)]
pub struct LogWriter<W: Write> {
    target: W,
    line: String,
    open: Operation,
}

impl<W: Write> LogWriter<W> {
    /// Starts a log. The target should be a file without a buffer of its own.
    pub fn new(mut target: W, actor: Actor) -> io::Result<Self> {
        target.write_all(text::HEADER.as_bytes())?;
        let open = Operation {
            actor,
            sequence: 0,
            kind: CallKind::Get,
            invoke_ns: 0,
            return_ns: Some(0),
            outcome: Outcome::Ok,
            accesses: Vec::new(),
        };
        Ok(Self { target, line: String::new(), open })
    }

    /// Records a call before it is made, as [`Log::invoke`] does.
    pub fn invoke(&mut self, now_ns: u64, kind: CallKind, accesses: &[Access]) -> io::Result<()> {
        self.open.kind = kind;
        self.open.invoke_ns = now_ns;
        self.open.return_ns = None;
        self.open.accesses = accesses.to_vec();
        self.line.clear();
        text::write_invoke(&mut self.line, &self.open);
        self.open.sequence += 1;
        self.target.write_all(self.line.as_bytes())
    }

    /// Records how the last call ended, as [`Log::returned`] does.
    ///
    /// # Panics
    /// If there is no call that has not returned yet.
    pub fn returned(
        &mut self,
        now_ns: u64,
        outcome: Outcome,
        accesses: &[Access],
    ) -> io::Result<()> {
        assert!(self.open.return_ns.is_none(), "a return follows an invocation");
        let ended = Operation {
            sequence: self.open.sequence - 1,
            return_ns: Some(now_ns),
            outcome,
            accesses: accesses.to_vec(),
            ..self.open
        };
        self.open.return_ns = Some(now_ns);
        self.line.clear();
        text::write_return(&mut self.line, &ended);
        self.target.write_all(self.line.as_bytes())
    }
}

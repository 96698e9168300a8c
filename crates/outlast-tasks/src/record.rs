//! What the runtime keeps in the store: the keys, and the bytes below them.
//!
//! A worker has *slots*, a key each. A slot holds an [`Entry`]: a task that was shared, or progress
//! of the task that forked it. The root of a run has a key of its own. Arguments and outputs beyond
//! [`INLINE_LEN_MAX`] have keys of their own, so that a change of state does not copy them.

use crate::error::TaskError;
use crate::steps::mutant;
use outlast::MemberId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The longest arguments or output inside a record, in bytes.
pub(crate) const INLINE_LEN_MAX: usize = 1024;

/// The task that is the root of a run has this number in place of a worker.
const ROOT: u32 = u32::MAX;

/// A shared task: the slot that holds its record, and the generation of the slot. A worker uses a
/// generation once, so an id never repeats in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct TaskId {
    pub(crate) worker: u32,
    pub(crate) slot: u32,
    pub(crate) generation: u64,
}

impl TaskId {
    /// The root of a run.
    pub(crate) fn root(run: u64) -> TaskId {
        TaskId { worker: ROOT, slot: 0, generation: run }
    }

    pub(crate) fn is_root(self) -> bool {
        self.worker == ROOT
    }

    /// The member whose slot holds the record; `None` for the root.
    pub(crate) fn owner(self) -> Option<MemberId> {
        (!self.is_root()).then_some(MemberId(self.worker))
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() {
            write!(f, "root {}", self.generation)
        } else {
            write!(f, "{}.{}.{}", self.worker, self.slot, self.generation)
        }
    }
}

/// The half of a fork that a step of a path leads into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left = 0,
    Right = 1,
}

/// A step of a path: the number of a fork in its strand, and a side of the fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct PathStep(u64);

impl PathStep {
    pub(crate) fn new(number: u32, side: Side) -> PathStep {
        PathStep(u64::from(number) << 1 | side as u64)
    }

    pub(crate) fn number(self) -> u32 {
        (self.0 >> 1) as u32
    }
}

/// The way from the start of a task to a place in it. It is equal in every life of the task.
pub(crate) type Path = Vec<PathStep>;

/// Bytes in a record, or under a key of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Blob {
    Inline(Vec<u8>),
    /// The bytes are under the key of [`Keys::blob`] with this writer.
    External {
        writer: u32,
        hash: u64,
    },
}

impl Blob {
    /// The hash by which the arguments of two lives are compared.
    pub(crate) fn hash(&self) -> u64 {
        match self {
            Blob::Inline(bytes) => hash(bytes),
            Blob::External { hash, .. } => *hash,
        }
    }
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Output(Blob),
    Failed(TaskError),
}

/// The state of a shared task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum State {
    /// Any worker may claim it.
    Open,
    /// This worker runs it.
    Held(u32),
    Done(Outcome),
    /// The task that forked it does not want its output any more.
    Withdrawn,
    /// A root alone: the run has failed.
    RunFailed(String),
}

impl State {
    /// Whether nothing changes the state any more.
    pub(crate) fn is_final(&self) -> bool {
        !matches!(self, State::Open | State::Held(_))
    }
}

/// A task that was shared: descriptor, queue entry, lineage and future in one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) generation: u64,
    pub(crate) run: u64,
    pub(crate) parent: TaskId,
    /// The place of the fork in the parent.
    pub(crate) path: Path,
    /// The number of the task in the list that all members have.
    pub(crate) task: u32,
    pub(crate) arguments: Blob,
    pub(crate) state: State,
    /// The dead workers that held the task, in order.
    pub(crate) past: Vec<u32>,
}

/// What a task has put of its own progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Saved {
    /// The output of the left half of a fork, with a hash of the fork: the name of the left half
    /// and the [`hash_of_fork`] of the right half.
    Left { fork: u64, output: Blob },
    /// The state of a strand, with the number of the strand's next fork.
    State { next: u32, state: Blob },
    /// What is left of a bag, and the parts that were given away.
    Bag { rest: Blob, parts: Vec<BagPart> },
    /// The task waits.
    Waits,
}

/// A part of a bag that was given away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BagPart {
    pub(crate) id: TaskId,
    /// The part itself, until the progress after the put of its record.
    pub(crate) bag: Option<Vec<u8>>,
}

/// Progress of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    pub(crate) generation: u64,
    pub(crate) run: u64,
    pub(crate) parent: TaskId,
    pub(crate) path: Path,
    pub(crate) saved: Saved,
}

/// The content of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Entry {
    Task(Record),
    Progress(Progress),
}

/// What a worker tells about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkerInfo {
    /// The offset of its board in its segment.
    pub(crate) board: u64,
    /// An upper bound of the slots that it has used.
    pub(crate) slots: u32,
    /// The last run that it has begun; 0 before the first.
    pub(crate) run: u64,
    /// It waited for the others in vain when it opened the session. It may come again.
    pub(crate) has_given_up: bool,
    /// It puts no key of this session any more.
    pub(crate) is_closing: bool,
    /// It has deleted its own slots.
    pub(crate) is_clean: bool,
}

/// The names of the keys of a session.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    /// The key by which the members agree on a session.
    pub(crate) const SESSION: &'static [u8] = b"outlast-tasks/session";

    pub(crate) fn new(session: u64) -> Keys {
        Keys { prefix: format!("outlast-tasks/{session:016x}/") }
    }

    /// The beginning of all keys of the session.
    pub(crate) fn prefix(&self) -> &[u8] {
        self.prefix.as_bytes()
    }

    pub(crate) fn worker(&self, worker: u32) -> Vec<u8> {
        format!("{}w/{worker}", self.prefix).into_bytes()
    }

    /// The key that says why a member did not open the runtime.
    pub(crate) fn refusal(&self) -> Vec<u8> {
        format!("{}refusal", self.prefix).into_bytes()
    }

    /// The key of what a member has found of the members of a group that open the session.
    pub(crate) fn told_by(&self, group: usize) -> Vec<u8> {
        format!("{}told/{group}", self.prefix).into_bytes()
    }

    /// The key of what a member has found of all members that open the session.
    pub(crate) fn told_by_all(&self) -> Vec<u8> {
        format!("{}told/all", self.prefix).into_bytes()
    }

    pub(crate) fn slot(&self, worker: u32, slot: u32) -> Vec<u8> {
        format!("{}s/{worker}/{slot}", self.prefix).into_bytes()
    }

    pub(crate) fn task(&self, id: TaskId) -> Vec<u8> {
        if id.is_root() {
            format!("{}run/{}", self.prefix, id.generation).into_bytes()
        } else {
            self.slot(id.worker, id.slot)
        }
    }

    /// The key of long arguments or of a long output. It is named by generation and writer, so that
    /// a late holder of an unwanted task overwrites nothing of the slot's next task.
    pub(crate) fn blob(&self, id: TaskId, writer: u32, what: &str) -> Vec<u8> {
        let TaskId { worker, slot, generation } = id;
        format!("{}b/{worker}/{slot}/{generation}/{what}/{writer}", self.prefix).into_bytes()
    }
}

/// The bytes of a value that the runtime itself made.
pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("the types of this module can be encoded")
}

/// The value in these bytes, if another member of this session put them.
pub(crate) fn decode<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}

/// A hash of bytes that is equal in all builds and on all machines (FNV-1a).
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The hash by which the forks of two lives are compared: of the task's number in the list and of
/// its arguments.
pub(crate) fn hash_of_fork(task: u32, arguments: u64) -> u64 {
    let task = if mutant("task-number-ignored") { 0 } else { task };
    hash(&encode(&(task, arguments)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_their_encoding() {
        let record = Record {
            generation: 7,
            run: 1,
            parent: TaskId::root(1),
            path: vec![PathStep::new(0, Side::Left), PathStep::new(3, Side::Right)],
            task: 2,
            arguments: Blob::Inline(vec![1, 2, 3]),
            state: State::Held(4),
            past: vec![1, 9],
        };
        let entry = Entry::Task(record);
        assert_eq!(decode::<Entry>(&encode(&entry)), Some(entry));
        assert_eq!(decode::<Entry>(b"\xff\xff"), None);
    }

    #[test]
    fn steps_of_a_path_keep_number_and_side() {
        let step = PathStep::new(u32::MAX, Side::Right);
        assert_eq!(step.number(), u32::MAX);
        assert!(PathStep::new(0, Side::Left) < PathStep::new(0, Side::Right));
    }
}

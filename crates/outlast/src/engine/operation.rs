//! One-sided operations: what a member asks of another member's memory, and its result.
//!
//! An [`Operation`] is started with [`Engine::start`], a list of [`CompoundStep`]s with
//! [`Engine::start_compound`]. Both give a [`Pending`], which becomes a [`Done`] or an error. An
//! engine that completes an operation later keeps the [`Completer`] of the pair.

use super::{Engine, Epoch, Error, MemberId, Result};
use crate::sync::lock;
use std::sync::{Arc, Mutex};

/// The greatest length of a compound operation, see [`Engine::start_compound`]: the bytes of its
/// puts, and [`COMPOUND_STEP_LEN`] for each step. It travels in a single message.
pub const COMPOUND_LEN_MAX: usize = 16 << 10;

/// The length of a step of a compound operation, beside the bytes of a put.
pub const COMPOUND_STEP_LEN: usize = 32;

/// A one-sided operation to be started with [`Engine::start`].
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Write these bytes at this offset.
    Put {
        /// Where in the target's segment.
        offset: u64,
        /// The bytes to write; copied if the operation outlives the call.
        data: &'a [u8],
    },
    /// Read this many bytes at this offset.
    Get {
        /// Where in the target's segment.
        offset: u64,
        /// How many bytes.
        len: usize,
    },
    /// Read the 8-byte word at this offset.
    Load {
        /// Where in the target's segment; a multiple of 8.
        offset: u64,
    },
    /// Replace the word at this offset if it holds `expected`.
    CompareAndSwap {
        /// Where in the target's segment; a multiple of 8.
        offset: u64,
        /// The word that must be there.
        expected: u64,
        /// The word to put in its place.
        new: u64,
    },
    /// Add to the word at this offset, wrapping.
    FetchAdd {
        /// Where in the target's segment; a multiple of 8.
        offset: u64,
        /// The number to add.
        delta: u64,
    },
}

impl Operation<'_> {
    /// The range of the target's segment that the operation touches.
    pub fn range(&self) -> (u64, usize) {
        match *self {
            Operation::Put { offset, data } => (offset, data.len()),
            Operation::Get { offset, len } => (offset, len),
            Operation::Load { offset }
            | Operation::CompareAndSwap { offset, .. }
            | Operation::FetchAdd { offset, .. } => (offset, 8),
        }
    }

    /// Checks the operation against the segment of its target, before any byte is touched.
    pub fn check(&self, target: MemberId, segment_len: u64) -> Result<()> {
        let (offset, len) = self.range();
        let is_word = !matches!(self, Operation::Put { .. } | Operation::Get { .. });
        if is_word && offset % 8 != 0 {
            return Err(Error::Unaligned { offset });
        }
        match offset.checked_add(len as u64) {
            Some(end) if end <= segment_len => Ok(()),
            _ => Err(Error::OutOfRange { member: target, offset, len: len as u64, segment_len }),
        }
    }
}

/// A step of a compound operation, see [`Engine::start_compound`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompoundStep<'a> {
    /// Go on if the word at this offset is `word`.
    Expect {
        /// Where in the target's segment; a multiple of 8.
        offset: u64,
        /// The word that must be there.
        word: u64,
    },
    /// Write these bytes at this offset.
    Put {
        /// Where in the target's segment.
        offset: u64,
        /// The bytes to write.
        data: &'a [u8],
    },
    /// Replace the word at this offset, and go on, if it holds `expected`.
    Swap {
        /// Where in the target's segment; a multiple of 8.
        offset: u64,
        /// The word that must be there.
        expected: u64,
        /// The word to put in its place.
        new: u64,
    },
    /// Read the word at this offset.
    Load {
        /// Where in the target's segment; a multiple of 8.
        offset: u64,
    },
}

impl<'a> CompoundStep<'a> {
    /// The operation that the step executes.
    pub fn operation(&self) -> Operation<'a> {
        match *self {
            CompoundStep::Expect { offset, .. } | CompoundStep::Load { offset } => {
                Operation::Load { offset }
            }
            CompoundStep::Put { offset, data } => Operation::Put { offset, data },
            CompoundStep::Swap { offset, expected, new } => {
                Operation::CompareAndSwap { offset, expected, new }
            }
        }
    }

    /// The bytes of a put; none for other steps.
    pub(crate) fn data(&self) -> &[u8] {
        if let CompoundStep::Put { data, .. } = self { data } else { &[] }
    }

    /// Whether the compound operation goes on after this step has found this word.
    pub fn goes_on(&self, found: u64) -> bool {
        match *self {
            CompoundStep::Expect { word, .. } => found == word,
            CompoundStep::Swap { expected, .. } => found == expected,
            CompoundStep::Put { .. } | CompoundStep::Load { .. } => true,
        }
    }
}

/// The result of a completed operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// A put is remotely complete: every later get of any member sees it.
    Put,
    /// The bytes of a get.
    Get(Vec<u8>),
    /// The word that a load, compare-and-swap or fetch-and-add found.
    Word(u64),
    /// How far a compound operation went.
    Compound {
        /// How many of its steps are done. If not all are, the next step did not find the word that
        /// it expected.
        done: usize,
        /// The last word that a step has found, including a word that was not as expected; 0 if no
        /// step has read a word.
        word: u64,
    },
}

impl Done {
    /// The word that was found; for the three word operations.
    pub fn word(self) -> u64 {
        match self {
            Done::Word(word) => word,
            other => unreachable!("a word operation completed as {other:?}"),
        }
    }
}

/// An operation that was started. Dropping it is safe; whether the operation then happened is
/// unknown, and operations that the same activity has started behind it may happen without it.
#[derive(Debug)]
#[must_use = "a started operation is complete only when `poll` or `wait` said so"]
pub struct Pending {
    /// The member whose memory the operation is for.
    pub target: MemberId,
    pub(super) completion: Completion,
}

/// Where the result of an operation is, or will be.
#[derive(Debug)]
pub(super) enum Completion {
    Now(Option<Result<Done>>),
    Later(Arc<Mutex<Option<Result<Done>>>>),
}

/// The engine's end of a [`Pending`] that is not complete yet.
#[derive(Clone, Debug)]
pub struct Completer(pub(super) Arc<Mutex<Option<Result<Done>>>>);

impl Pending {
    /// An operation that is complete already.
    pub fn ready(target: MemberId, result: Result<Done>) -> Pending {
        Pending { target, completion: Completion::Now(Some(result)) }
    }

    /// An operation that the engine completes later.
    pub fn later(target: MemberId) -> (Pending, Completer) {
        let slot = Arc::new(Mutex::new(None));
        (Pending { target, completion: Completion::Later(slot.clone()) }, Completer(slot))
    }

    /// Takes the result if the operation is complete. Every later call returns `None`.
    pub fn take(&mut self) -> Option<Result<Done>> {
        match &mut self.completion {
            Completion::Now(result) => result.take(),
            Completion::Later(slot) => lock(slot).take(),
        }
    }
}

impl Completer {
    /// Completes the operation. The first result counts; later results are ignored.
    pub fn complete(&self, result: Result<Done>) {
        lock(&self.0).get_or_insert(result);
    }

    /// Whether the operation's [`Pending`] was dropped.
    pub fn is_forgotten(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// Checks that a compound operation is short enough.
pub(crate) fn check_compound(steps: &[CompoundStep<'_>]) -> Result<()> {
    let len = steps.iter().map(|step| COMPOUND_STEP_LEN + step.data().len()).sum();
    if len <= COMPOUND_LEN_MAX { Ok(()) } else { Err(Error::MessageTooLong { len }) }
}

/// Executes the steps of a compound operation in order, by an engine's single operations.
pub(crate) fn run_compound(
    engine: &(impl Engine + ?Sized),
    at: Epoch,
    target: MemberId,
    steps: &[CompoundStep<'_>],
) -> Result<Done> {
    check_compound(steps)?;
    let mut last = 0;
    for (index, step) in steps.iter().enumerate() {
        // Only the first step can be refused as stale. `Error::Stale` says that nothing was
        // changed, which would be wrong after a step that was executed.
        let at = if index == 0 { at } else { Epoch::ANY };
        let found = match *step {
            CompoundStep::Expect { offset, .. } | CompoundStep::Load { offset } => {
                engine.load(at, target, offset)?
            }
            CompoundStep::Put { offset, data } => {
                engine.put(at, target, offset, data)?;
                continue;
            }
            CompoundStep::Swap { offset, expected, new } => {
                engine.compare_and_swap(at, target, offset, expected, new)?
            }
        };
        last = found;
        if !step.goes_on(found) {
            return Ok(Done::Compound { done: index, word: found });
        }
    }
    Ok(Done::Compound { done: steps.len(), word: last })
}

//! Puts, gets and operations on words, and the operations in flight.
//!
//! An operation on a window consists of operations of the engine, its *parts*. Each part names the
//! epoch of the view in which it was started. If the target refuses a part because the view has
//! changed, the part is started again. So an operation of a member that the target knows to be dead
//! never takes effect (the dead start no part again). An operation that is not complete at once is
//! kept in a table of the window; requests refer to it there, and `flush` completes it.
//!
//! An operation that a call waits for ends at the deadline of the call. An operation that is kept
//! in the table has a time limit of its own, from its first attempt on: the call that started it is
//! over.
//!
//! An operation that was given up (its target did not answer in time) stays in the table until the
//! engine is done with it: only then can it no longer change memory, which `free` waits for.

use super::directory::{ATTACHED, Piece};
use super::layout::{ENTERED, LEFT};
use super::{EndedBy, SharedWindow, Window, WindowError, WindowResult, lock};
use crate::engine::{self, Done, Operation, Pending, deadline};
use crate::rma::progress::begin_call;
use crate::{Epoch, Time};
use std::cell::Cell;

/// The largest number of operations in flight; further operations wait.
const OPERATIONS_MAX: usize = 256;

/// How an operation on words combines the old word with the given word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// The sum, wrapping.
    Sum,
    /// The lesser word.
    Min,
    /// The greater word.
    Max,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// The given word.
    Replace,
    /// The old word: only for reading.
    Keep,
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u64 {}
    impl Sealed for i64 {}
}

/// A number that operations on words work with: `u64` or `i64`.
pub trait Word: Copy + Ord + sealed::Sealed {
    /// Whether the number is signed.
    const IS_SIGNED: bool;
    /// The bits of the number.
    fn to_bits(self) -> u64;
    /// The number with these bits.
    fn from_bits(bits: u64) -> Self;
}

impl Word for u64 {
    const IS_SIGNED: bool = false;
    fn to_bits(self) -> u64 {
        self
    }
    fn from_bits(bits: u64) -> u64 {
        bits
    }
}

impl Word for i64 {
    const IS_SIGNED: bool = true;
    fn to_bits(self) -> u64 {
        self as u64
    }
    fn from_bits(bits: u64) -> i64 {
        bits as i64
    }
}

impl Update {
    /// The new word.
    pub(crate) fn apply(self, old: u64, given: u64, is_signed: bool) -> u64 {
        let is_less = if is_signed { (old as i64) < (given as i64) } else { old < given };
        match self {
            Update::Sum => old.wrapping_add(given),
            Update::Min if is_less => old,
            Update::Min => given,
            Update::Max if is_less => given,
            Update::Max => old,
            Update::And => old & given,
            Update::Or => old | given,
            Update::Xor => old ^ given,
            Update::Replace => given,
            Update::Keep => old,
        }
    }
}

/// An operation of the engine as a part of an operation on a window.
struct OperationPart {
    action: PartAction,
    pending: Option<Pending>,
    is_done: bool,
}

enum PartAction {
    Put {
        place: u64,
        data: Vec<u8>,
    },
    Get {
        place: u64,
        at: usize,
        len: usize,
    },
    Load {
        place: u64,
    },
    Add {
        place: u64,
        delta: u64,
    },
    /// Compare-and-swap from a guess until the guess was right.
    Change {
        place: u64,
        guess: u64,
        update: Update,
        given: u64,
        is_signed: bool,
    },
    Swap {
        place: u64,
        expected: u64,
        new: u64,
    },
}

impl PartAction {
    fn operation(&self) -> Operation<'_> {
        match *self {
            PartAction::Put { place, ref data } => Operation::Put { offset: place, data },
            PartAction::Get { place, len, .. } => Operation::Get { offset: place, len },
            PartAction::Load { place } => Operation::Load { offset: place },
            PartAction::Add { place, delta } => Operation::FetchAdd { offset: place, delta },
            PartAction::Change { place, guess, update, given, is_signed } => {
                Operation::CompareAndSwap {
                    offset: place,
                    expected: guess,
                    new: update.apply(guess, given, is_signed),
                }
            }
            PartAction::Swap { place, expected, new } => {
                Operation::CompareAndSwap { offset: place, expected, new }
            }
        }
    }
}

/// An operation on a window that is in flight.
pub(super) struct WindowOperation {
    target: usize,
    parts: Vec<OperationPart>,
    /// The bytes that a get has read; `None` for other operations.
    bytes: Option<Vec<u8>>,
    /// The word that an operation on words has found.
    word: Option<u64>,
    until: Time,
    /// Whether a call waits for it until the deadline of the call. Any other operation has a time
    /// limit of its own, from its first attempt on.
    is_awaited: bool,
    /// Whether it is counted as an access to an attached range.
    is_counted: bool,
    /// Whether the program already has its result, and only the engine still has parts of it.
    is_given_up: bool,
    /// Whether a request will ask for the result.
    is_wanted: bool,
}

/// The operations of a window that are in flight, and results that no request has asked for yet.
#[derive(Default)]
pub(super) struct OperationTable {
    next: u64,
    entries: std::collections::BTreeMap<u64, TableEntry>,
}

enum TableEntry {
    Active(Box<WindowOperation>),
    /// An activity has taken the operation out and is advancing it; its target.
    Busy(usize),
    /// Over; a request will ask for the result.
    Done(WindowResult<Done>),
    /// Over with an error that only a flush of this target will ask for.
    Failed(usize, WindowError),
}

/// The result of [`SharedWindow::locate`]: the pieces of the access, and whether it is counted.
struct Located {
    pieces: Vec<Piece>,
    is_counted: bool,
}

impl Window {
    /// Writes `data` at `offset` of the target's memory. It may be complete only after
    /// [`Window::flush`]; `data` can be used again at once.
    pub fn put(&self, target: usize, offset: u64, data: &[u8]) -> WindowResult<()> {
        let shared = &*self.shared;
        let _call = shared.begin()?;
        let op = shared.start_put(target, offset, data)?;
        shared.keep(op, false)?;
        Ok(())
    }

    /// Writes `data` and returns when it is remotely complete (extension 4 of ULFM). Every get that
    /// any member begins afterwards sees it.
    ///
    /// ```
    /// # let job = outlast::join()?;
    /// # let comm = outlast::rma::Communicator::world(&job)?;
    /// # use outlast::rma::{Window, WindowError};
    /// let window = Window::open(&comm, 64)?;
    /// let neighbour = (comm.rank() + 1) % comm.size();
    /// match window.put_blocking(neighbour, 8, b"checkpoint 17") {
    ///     Ok(()) => println!("rank {neighbour} holds it"),
    ///     Err(WindowError::ProcFailed { ranks }) => println!("{ranks:?} died: choose another"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # window.close()?;
    /// # job.leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn put_blocking(&self, target: usize, offset: u64, data: &[u8]) -> WindowResult<()> {
        let shared = &*self.shared;
        let _call = shared.begin()?;
        let op = shared.start_put(target, offset, data)?;
        shared.finish(op).map(|_| ())
    }

    /// Fills `buffer` from `offset` of the target's memory. On an error its content is unspecified.
    pub fn get(&self, target: usize, offset: u64, buffer: &mut [u8]) -> WindowResult<()> {
        let shared = &*self.shared;
        let _call = shared.begin()?;
        let op = shared.start_get(target, offset, buffer.len(), Some(buffer))?;
        if let Some(op) = op
            && let Done::Get(bytes) = shared.finish(op)?
        {
            buffer.copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// Combines `values` with the words from `offset` on, each word atomically. It may be complete
    /// only after [`Window::flush`].
    pub fn accumulate<W: Word>(
        &self,
        target: usize,
        offset: u64,
        update: Update,
        values: &[W],
    ) -> WindowResult<()> {
        let shared = &*self.shared;
        let _call = shared.begin()?;
        let op = shared.start_words(target, offset, update, values)?;
        shared.keep(op, false)?;
        Ok(())
    }

    /// Combines `value` with the word at `offset`, atomically. Returns the old word.
    pub fn fetch_and_op<W: Word>(
        &self,
        target: usize,
        offset: u64,
        update: Update,
        value: W,
    ) -> WindowResult<W> {
        let shared = &*self.shared;
        let _call = shared.begin()?;
        let op = shared.start_words(target, offset, update, &[value])?;
        shared.finish(op).map(|done| W::from_bits(done.word()))
    }

    /// Replaces the word at `offset` by `new` if it is `expected`. Returns the old word.
    pub fn compare_and_swap<W: Word>(
        &self,
        target: usize,
        offset: u64,
        expected: W,
        new: W,
    ) -> WindowResult<W> {
        let shared = &*self.shared;
        let _call = shared.begin()?;
        let op = shared.start_swap(target, offset, expected.to_bits(), new.to_bits())?;
        shared.finish(op).map(|done| W::from_bits(done.word()))
    }

    /// [`Window::put`] as a request.
    pub fn start_put(
        &self,
        target: usize,
        offset: u64,
        data: &[u8],
    ) -> WindowResult<WindowRequest> {
        let _call = self.shared.begin()?;
        let op = self.shared.start_put(target, offset, data)?;
        self.request(op)
    }

    /// [`Window::get`] as a request. Its result has the bytes.
    pub fn start_get(&self, target: usize, offset: u64, len: usize) -> WindowResult<WindowRequest> {
        let _call = self.shared.begin()?;
        let op = self.shared.start_get(target, offset, len, None)?;
        self.request(op.expect("only complete without an operation if a buffer was given"))
    }

    /// [`Window::accumulate`] as a request.
    pub fn start_accumulate<W: Word>(
        &self,
        target: usize,
        offset: u64,
        update: Update,
        values: &[W],
    ) -> WindowResult<WindowRequest> {
        let _call = self.shared.begin()?;
        let op = self.shared.start_words(target, offset, update, values)?;
        self.request(op)
    }

    /// [`Window::fetch_and_op`] as a request. Its result has the bits of the old word.
    pub fn start_fetch_and_op<W: Word>(
        &self,
        target: usize,
        offset: u64,
        update: Update,
        value: W,
    ) -> WindowResult<WindowRequest> {
        self.start_accumulate(target, offset, update, &[value])
    }

    /// [`Window::compare_and_swap`] as a request. Its result has the bits of the old word.
    pub fn start_compare_and_swap<W: Word>(
        &self,
        target: usize,
        offset: u64,
        expected: W,
        new: W,
    ) -> WindowResult<WindowRequest> {
        let _call = self.shared.begin()?;
        let op = self.shared.start_swap(target, offset, expected.to_bits(), new.to_bits())?;
        self.request(op)
    }

    fn request(&self, op: WindowOperation) -> WindowResult<WindowRequest> {
        let target = op.target;
        let number = self.shared.keep(op, true)?;
        Ok(WindowRequest { window: self.clone(), target, number })
    }

    /// Completes all operations of this member on `target`: when it returns without an error, they
    /// are remotely complete. Returns the first error of an operation without a request;
    /// [`WindowError::ProcFailed`] if the target is dead, also if no operation was in flight;
    /// [`WindowError::LockLost`] if the lock was taken away.
    pub fn flush(&self, target: usize) -> WindowResult<()> {
        let shared = &*self.shared;
        let _call = shared.begin()?;
        shared.check_rank(target)?;
        shared.check_usable()?;
        shared.complete(Some(target), EndedBy::RevokeOrInterrupt)?;
        shared.check_living(target)?;
        shared.check_lock_held(target, true)
    }

    /// [`Window::flush`] for all targets, without the targets that the window was shrunk by.
    pub fn flush_all(&self) -> WindowResult<()> {
        let shared = &*self.shared;
        let _call = shared.begin()?;
        shared.check_usable()?;
        shared.complete(None, EndedBy::RevokeOrInterrupt)?;
        let ranks = shared.failed_ranks();
        if !ranks.is_empty() {
            return Err(WindowError::ProcFailed { ranks });
        }
        let targets: Vec<usize> = lock(&shared.state).held.keys().copied().collect();
        targets.into_iter().try_for_each(|target| match shared.check_lock_held(target, true) {
            // Another activity is taking or releasing this lock, and this call does not need it.
            Err(WindowError::NotLocked { .. }) => Ok(()),
            other => other,
        })
    }
}

/// A started operation on a window. Its result can be taken once.
///
/// Dropping it cancels nothing: the operation goes on, and [`Window::flush`] completes it.
#[must_use = "an operation is complete only when `test` or `wait` said so, or after a flush"]
pub struct WindowRequest {
    window: Window,
    target: usize,
    number: u64,
}

impl WindowRequest {
    /// Takes the result if the operation is complete.
    pub fn test(&mut self) -> Option<WindowResult<Done>> {
        let shared = &*self.window.shared;
        shared.advance_all(Some(self.target));
        shared.take_result(self.number).or_else(|| shared.check_usable().err().map(Err))
    }

    /// Waits for the operation, until it is complete, its target is dead, or the time limit is
    /// over.
    pub fn wait(&mut self) -> WindowResult<Done> {
        let shared = &*self.window.shared;
        let poll = || {
            shared.advance_all(Some(self.target));
            shared.take_result(self.number)
        };
        let _call = begin_call(&shared.job);
        // The operation has a time limit of its own.
        let never = || Time::NEVER;
        shared.wait_for(EndedBy::RevokeOrInterrupt, never, poll, || WindowError::AlreadyTaken)
    }

    /// The rank of the target.
    pub fn target(&self) -> usize {
        self.target
    }
}

impl Drop for WindowRequest {
    fn drop(&mut self) {
        let mut state = lock(&self.window.shared.state);
        match state.table.entries.get_mut(&self.number) {
            Some(TableEntry::Active(op)) => op.is_wanted = false,
            Some(TableEntry::Done(_)) => drop(state.table.entries.remove(&self.number)),
            // The activity that has taken the operation out finds its number in this list.
            Some(TableEntry::Busy(_)) => drop(state.unwanted.insert(self.number)),
            Some(TableEntry::Failed(..)) | None => {}
        }
    }
}

// ---- Starting.

impl SharedWindow {
    /// The checks at the beginning of every access; then the pieces of the access.
    fn locate(&self, target: usize, offset: u64, len: usize) -> WindowResult<Located> {
        self.check_rank(target)?;
        self.check_usable()?;
        self.check_living(target)?;
        self.check_lock_held(target, true)?;
        if offset < ATTACHED {
            let pieces = match self.known_directory(target) {
                Some(known) => known.pieces(target, offset, len as u64).ok(),
                None => None,
            };
            let pieces = match pieces {
                Some(pieces) => pieces,
                // The memory may have grown.
                None => self.read_directory(target)?.pieces(target, offset, len as u64)?,
            };
            return Ok(Located { pieces, is_counted: false });
        }
        self.enter()?;
        let found =
            self.current_directory(target).and_then(|d| d.pieces(target, offset, len as u64));
        match found {
            Ok(pieces) => Ok(Located { pieces, is_counted: true }),
            Err(error) => {
                self.leave();
                Err(error)
            }
        }
    }

    /// [`SharedWindow::locate`] for words.
    fn locate_words(&self, target: usize, offset: u64, count: usize) -> WindowResult<Located> {
        self.check_rank(target)?;
        if !offset.is_multiple_of(8) {
            return Err(WindowError::Unaligned { offset });
        }
        let len = count.checked_mul(8).ok_or_else(|| WindowError::Invalid {
            what: format!("{count} words are more than any memory has"),
        })?;
        let found = self.locate(target, offset, len)?;
        // Ranges begin at multiples of 64, so only the end of a range of odd length can cut a word.
        if found
            .pieces
            .iter()
            .any(|piece| !piece.place.is_multiple_of(8) || !piece.len.is_multiple_of(8))
        {
            if found.is_counted {
                self.leave();
            }
            return Err(WindowError::Unaligned { offset });
        }
        Ok(found)
    }

    /// Begins an access to an attached range; see `directory`.
    fn enter(&self) -> WindowResult<()> {
        self.count(ENTERED)
    }

    fn leave(&self) {
        // Fails only if this member has left the job.
        let _ = self.count(LEFT);
    }

    fn count(&self, word: u64) -> WindowResult<()> {
        let offset = self.controls[self.me] + word;
        self.job
            .fetch_add(Epoch::ANY, self.job.me(), offset, 1)
            .map_err(|e| self.engine_error(e, self.me))?;
        Ok(())
    }

    fn op(&self, target: usize, found: &Located, parts: Vec<OperationPart>) -> WindowOperation {
        WindowOperation {
            target,
            parts,
            bytes: None,
            word: None,
            until: Time::NEVER,
            is_awaited: false,
            is_counted: found.is_counted,
            is_given_up: false,
            is_wanted: false,
        }
    }

    fn start_put(&self, target: usize, offset: u64, data: &[u8]) -> WindowResult<WindowOperation> {
        let found = self.locate(target, offset, data.len())?;
        let member = self.members[target];
        let mut parts = Vec::new();
        let mut rest = data;
        for piece in &found.pieces {
            let (data, after) = rest.split_at(piece.len);
            rest = after;
            let place = piece.place;
            let operation = Operation::Put { offset: place, data };
            let mut pending = self.job.start(self.job.epoch(), member, operation);
            // Where the engine acts at once, the data is not copied.
            let pending = match self.job.poll(&mut pending) {
                Some(Ok(_)) => continue,
                Some(Err(error)) => Some(Pending::ready(member, Err(error))),
                None => Some(pending),
            };
            parts.push(OperationPart {
                action: PartAction::Put { place, data: data.to_vec() },
                pending,
                is_done: false,
            });
        }
        Ok(self.op(target, &found, parts))
    }

    /// Starts a get. If a buffer is given and the access is a single piece, fills it at once and
    /// returns `None`.
    fn start_get(
        &self,
        target: usize,
        offset: u64,
        len: usize,
        buffer: Option<&mut [u8]>,
    ) -> WindowResult<Option<WindowOperation>> {
        let found = self.locate(target, offset, len)?;
        if let (Some(buffer), false, &[piece]) = (buffer, found.is_counted, &found.pieces[..]) {
            let result = self.job.get(Epoch::ANY, self.members[target], piece.place, buffer);
            return result.map(|()| None).map_err(|error| self.engine_error(error, target));
        }
        let mut at = 0;
        let part = |piece: &Piece| {
            let action = PartAction::Get { place: piece.place, at, len: piece.len };
            at += piece.len;
            OperationPart { action, pending: None, is_done: false }
        };
        let parts = found.pieces.iter().map(part).collect();
        // The access was located, so some segment has memory of this length.
        Ok(Some(WindowOperation { bytes: Some(vec![0; len]), ..self.op(target, &found, parts) }))
    }

    fn start_words<W: Word>(
        &self,
        target: usize,
        offset: u64,
        update: Update,
        values: &[W],
    ) -> WindowResult<WindowOperation> {
        let found = self.locate_words(target, offset, values.len())?;
        let places = found
            .pieces
            .iter()
            .flat_map(|piece| (0..piece.len).step_by(8).map(move |at| (piece, at)));
        let part = |((piece, at), &value): ((&Piece, usize), &W)| {
            let (place, given) = (piece.place + at as u64, value.to_bits());
            let action = match update {
                Update::Sum => PartAction::Add { place, delta: given },
                Update::Keep => PartAction::Load { place },
                _ => PartAction::Change { place, guess: 0, update, given, is_signed: W::IS_SIGNED },
            };
            OperationPart { action, pending: None, is_done: false }
        };
        let parts = places.zip(values).map(part).collect();
        Ok(self.op(target, &found, parts))
    }

    fn start_swap(
        &self,
        target: usize,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> WindowResult<WindowOperation> {
        let found = self.locate_words(target, offset, 1)?;
        let action = PartAction::Swap { place: found.pieces[0].place, expected, new };
        Ok(self.op(target, &found, vec![OperationPart { action, pending: None, is_done: false }]))
    }
}

// ---- Advancing and completing.

impl SharedWindow {
    /// Advances an operation. Returns its result when it is over. The caller has the operation to
    /// itself.
    fn advance(&self, op: &mut WindowOperation) -> Option<WindowResult<Done>> {
        let member = self.members[op.target];
        let mut failed = None;
        for part in op.parts.iter_mut().filter(|part| !part.is_done) {
            loop {
                let mut pending = match part.pending.take() {
                    Some(pending) => pending,
                    None if op.is_given_up || failed.is_some() => {
                        part.is_done = true;
                        break;
                    }
                    None => self.job.start(self.job.epoch(), member, part.action.operation()),
                };
                match self.job.poll(&mut pending) {
                    None => part.pending = Some(pending),
                    // It changed nothing: start it again, in the view that is known now.
                    Some(Err(engine::Error::Stale { .. })) => continue,
                    Some(Err(error)) => {
                        part.is_done = true;
                        failed = failed.or(Some(error));
                    }
                    Some(Ok(done)) => {
                        if let (PartAction::Get { at, len, .. }, Done::Get(read), Some(bytes)) =
                            (&part.action, &done, &mut op.bytes)
                        {
                            bytes[*at..*at + *len].copy_from_slice(read);
                        }
                        if let Done::Word(found) = done {
                            op.word = Some(found);
                            if let PartAction::Change { guess, .. } = &mut part.action
                                && *guess != found
                            {
                                *guess = found;
                                continue;
                            }
                        }
                        part.is_done = true;
                    }
                }
                break;
            }
        }
        if let Some(error) = failed {
            return Some(Err(self.engine_error(error, op.target)));
        }
        if op.parts.iter().all(|part| part.is_done) {
            return Some(Ok(match (op.word, op.bytes.take()) {
                (Some(word), _) => Done::Word(word),
                (None, Some(bytes)) => Done::Get(bytes),
                (None, None) => Done::Put,
            }));
        }
        let (now, limit) = (self.job.now(), self.job.time_limit());
        if op.until == Time::NEVER {
            op.until = match op.is_awaited {
                true => deadline::until_answer(now, limit, member),
                false => now.after(limit),
            };
        }
        let is_overdue = now >= op.until && !op.is_given_up;
        is_overdue.then(|| Err(self.engine_error(deadline::timeout(member, limit), op.target)))
    }

    /// The rest of an operation with a known result: `None`, or the parts that the engine still
    /// has.
    fn leftover(&self, mut op: WindowOperation) -> Option<WindowOperation> {
        op.parts.retain(|part| part.pending.is_some());
        if op.parts.is_empty() {
            if op.is_counted {
                self.leave();
            }
            return None;
        }
        op.is_given_up = true;
        op.is_wanted = false;
        Some(op)
    }

    /// Waits for an operation that is not in the table.
    fn finish(&self, op: WindowOperation) -> WindowResult<Done> {
        self.finish_despite(op, EndedBy::Revoke)
    }

    /// [`SharedWindow::finish`], until an event of `ended_by`.
    fn finish_despite(&self, mut op: WindowOperation, ended_by: EndedBy) -> WindowResult<Done> {
        op.is_awaited = true;
        let poll = || self.advance(&mut op);
        // The operation ends at the deadline of the call, or in the slack.
        let result = self.wait_for(ended_by, || Time::NEVER, poll, || WindowError::AlreadyTaken);
        self.keep_leftover(op);
        result
    }

    fn keep_leftover(&self, op: WindowOperation) {
        if let Some(rest) = self.leftover(op) {
            lock(&self.state).table.add(TableEntry::Active(Box::new(rest)));
        }
    }

    /// Puts an operation into the table, unless it is over and no request wants its result.
    fn keep(&self, mut op: WindowOperation, is_wanted: bool) -> WindowResult<u64> {
        if lock(&self.state).table.entries.len() >= OPERATIONS_MAX {
            self.make_room();
        }
        op.is_wanted = is_wanted;
        match self.advance(&mut op) {
            None => Ok(lock(&self.state).table.add(TableEntry::Active(Box::new(op)))),
            Some(result) => {
                self.keep_leftover(op);
                if is_wanted {
                    return Ok(lock(&self.state).table.add(TableEntry::Done(result)));
                }
                result.map(|_| 0)
            }
        }
    }

    /// Waits until some operations are over. Ignores errors: calls that need them find them again.
    fn make_room(&self) {
        let poll = || {
            self.advance_all(None);
            let count = lock(&self.state).table.open(u64::MAX).count();
            (count < OPERATIONS_MAX / 2).then_some(Ok(()))
        };
        let until = || self.job.deadline();
        let _ = self.wait_for(EndedBy::Revoke, until, poll, || WindowError::AlreadyTaken);
    }

    /// Advances all operations (on a target).
    fn advance_all(&self, target: Option<usize>) {
        let numbers = lock(&self.state).table.numbers(target);
        for number in numbers {
            let Some(mut op) = lock(&self.state).table.take(number) else { continue };
            let result = self.advance(&mut op);
            let Some(result) = result else {
                let mut state = lock(&self.state);
                if state.unwanted.remove(&number) {
                    op.is_wanted = false;
                }
                state.table.entries.insert(number, TableEntry::Active(op));
                continue;
            };
            let (target, is_given_up) = (op.target, op.is_given_up);
            let mut is_wanted = op.is_wanted;
            let rest = self.leftover(*op);
            let mut state = lock(&self.state);
            is_wanted &= !state.unwanted.remove(&number);
            state.table.entries.remove(&number);
            // An error without a request is kept for the next flush.
            let entry = match result {
                result if is_wanted => Some(TableEntry::Done(result)),
                Err(error) if !is_given_up => Some(TableEntry::Failed(target, error)),
                _ => None,
            };
            if let Some(entry) = entry {
                state.table.entries.insert(number, entry);
            }
            if let Some(rest) = rest {
                state.table.add(TableEntry::Active(Box::new(rest)));
            }
        }
    }

    fn take_result(&self, number: u64) -> Option<WindowResult<Done>> {
        let mut state = lock(&self.state);
        match state.table.entries.remove(&number) {
            Some(TableEntry::Done(result)) => Some(result),
            Some(other) => {
                state.table.entries.insert(number, other);
                None
            }
            None => Some(Err(WindowError::AlreadyTaken)),
        }
    }

    /// Waits until no operation (on a target) is in flight that was when the call began: other
    /// activities may start further operations without end. Returns the first error without a
    /// request.
    pub(super) fn complete(&self, target: Option<usize>, ended_by: EndedBy) -> WindowResult<()> {
        let last = lock(&self.state).table.next;
        let slowest = Cell::new(self.me);
        let poll = || {
            self.advance_all(target);
            let open = lock(&self.state).table.first_open(target, last);
            slowest.set(open.unwrap_or(self.me));
            open.is_none().then_some(Ok(()))
        };
        // Each operation has a time limit of its own, which began before this call.
        let limit = self.job.time_limit();
        let late = || self.timeout(slowest.get(), limit);
        self.wait_for(ended_by, || self.job.deadline(), poll, late)?;
        match lock(&self.state).table.take_failed(target) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Waits until the engine has no operation of this window any more.
    pub(super) fn await_engine(&self) -> WindowResult<()> {
        let slowest = Cell::new(self.me);
        let poll = || {
            self.advance_all(None);
            let state = lock(&self.state);
            match state.table.first_active() {
                None => Some(Ok(())),
                Some(target) => {
                    slowest.set(target);
                    None
                }
            }
        };
        let limit = self.job.time_limit();
        let late = || self.timeout(slowest.get(), limit);
        self.wait_for(EndedBy::Nothing, || self.job.deadline(), poll, late)
    }

    /// Compares-and-swaps a word of a control block. Returns the old word.
    pub(super) fn swap(
        &self,
        target: usize,
        word: u64,
        expected: u64,
        new: u64,
        ended_by: EndedBy,
    ) -> WindowResult<u64> {
        let action = PartAction::Swap { place: self.controls[target] + word, expected, new };
        let found = Located { pieces: Vec::new(), is_counted: false };
        let parts = vec![OperationPart { action, pending: None, is_done: false }];
        self.finish_despite(self.op(target, &found, parts), ended_by).map(Done::word)
    }

    /// [`SharedWindow::swap`] without waiting: it takes effect before all operations that this
    /// activity starts on the target later. For swaps that are right in any view: those that remove
    /// this member's stamp, or put that of a dead member back.
    pub(super) fn swap_without_waiting(&self, target: usize, word: u64, expected: u64, new: u64) {
        let action = PartAction::Swap { place: self.controls[target] + word, expected, new };
        let pending = self.job.start(Epoch::ANY, self.members[target], action.operation());
        let found = Located { pieces: Vec::new(), is_counted: false };
        let parts = vec![OperationPart { action, pending: Some(pending), is_done: false }];
        let mut op = WindowOperation { is_given_up: true, ..self.op(target, &found, parts) };
        let _ = self.advance(&mut op);
        self.keep_leftover(op);
    }

    /// Loads a word of a control block.
    pub(super) fn load(&self, target: usize, word: u64) -> WindowResult<u64> {
        let offset = self.controls[target] + word;
        self.job
            .load(Epoch::ANY, self.members[target], offset)
            .map_err(|error| self.engine_error(error, target))
    }
}

impl OperationTable {
    fn add(&mut self, entry: TableEntry) -> u64 {
        self.next += 1;
        self.entries.insert(self.next, entry);
        self.next
    }

    fn take(&mut self, number: u64) -> Option<Box<WindowOperation>> {
        let entry = self.entries.get_mut(&number)?;
        match entry {
            TableEntry::Active(op) => {
                let busy = TableEntry::Busy(op.target);
                match std::mem::replace(entry, busy) {
                    TableEntry::Active(op) => Some(op),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn numbers(&self, target: Option<usize>) -> Vec<u64> {
        let is_meant = |entry: &TableEntry| match entry {
            TableEntry::Active(op) => target.is_none_or(|target| target == op.target),
            _ => false,
        };
        self.entries
            .iter()
            .filter(|(_, entry)| is_meant(entry))
            .map(|(&number, _)| number)
            .collect()
    }

    /// The targets of the operations in flight up to the number `last`, without operations that
    /// were given up.
    fn open(&self, last: u64) -> impl Iterator<Item = usize> {
        self.entries.range(..=last).filter_map(|(_, entry)| match entry {
            TableEntry::Active(op) => (!op.is_given_up).then_some(op.target),
            TableEntry::Busy(target) => Some(*target),
            TableEntry::Done(_) | TableEntry::Failed(..) => None,
        })
    }

    /// The target of the first operation (on `target`) that is in flight, up to the number `last`.
    fn first_open(&self, target: Option<usize>, last: u64) -> Option<usize> {
        self.open(last).find(|of| target.is_none_or(|target| target == *of))
    }

    /// The target of an operation that the engine still has, given up or not.
    fn first_active(&self) -> Option<usize> {
        self.entries.values().find_map(|entry| match entry {
            TableEntry::Active(op) => Some(op.target),
            TableEntry::Busy(target) => Some(*target),
            _ => None,
        })
    }

    /// Takes out all errors (on a target) without a request. Returns the first.
    fn take_failed(&mut self, target: Option<usize>) -> Option<WindowError> {
        let mut first = None;
        self.entries.retain(|_, entry| match entry {
            TableEntry::Failed(of, error) if target.is_none_or(|target| target == *of) => {
                first.get_or_insert(error.clone());
                false
            }
            _ => true,
        });
        first
    }

    /// Forgets the errors on this target.
    pub(super) fn forget_errors(&mut self, target: usize) {
        let _ = self.take_failed(Some(target));
    }
}

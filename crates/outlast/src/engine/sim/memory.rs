//! One-sided operations on memory that a member maps: the memory of all members on the memory link,
//! its own on both links.

use super::report::{Call, What};
use super::segment::{Subset, words_in};
use super::world::World;
use crate::engine::{Epoch, Error, MemberId, Operation, Result};

/// A one-sided operation that acts on the target's memory itself.
pub(super) enum MappedAccess<'a> {
    Put(&'a [u8]),
    Get(&'a mut [u8]),
    Load,
    CompareAndSwap { expected: u64, new: u64 },
    FetchAdd(u64),
}

impl MappedAccess<'_> {
    pub(super) fn call(&self, target: MemberId, offset: u64) -> Call {
        let (what, len) = match self {
            MappedAccess::Put(data) => (What::Put, data.len()),
            MappedAccess::Get(buffer) => (What::Get, buffer.len()),
            MappedAccess::Load => (What::Load, 8),
            MappedAccess::CompareAndSwap { .. } => (What::CompareAndSwap, 8),
            MappedAccess::FetchAdd(_) => (What::FetchAdd, 8),
        };
        Call::range(what, target, offset, len as u64)
    }

    pub(super) fn check(&self, target: MemberId, offset: u64, segment_len: u64) -> Result<()> {
        match self {
            MappedAccess::Put(data) => Operation::Put { offset, data }.check(target, segment_len),
            MappedAccess::Get(buffer) => {
                Operation::Get { offset, len: buffer.len() }.check(target, segment_len)
            }
            _ => Operation::Load { offset }.check(target, segment_len),
        }
    }

    pub(super) fn words(&self, offset: u64) -> usize {
        match self {
            MappedAccess::Put(data) => words_in(offset, data.len()),
            MappedAccess::Get(buffer) => words_in(offset, buffer.len()),
            _ => 1,
        }
    }
}

/// How far a direct operation has come.
#[derive(Clone, Copy)]
pub(super) enum Progress {
    Fresh,
    /// Its epoch and its target were checked. The world may change before it acts, as on real
    /// shared memory.
    Checked,
    /// Its first phase is done.
    Half(Subset),
}

impl World {
    pub(super) fn grow(&mut self, member: u32, len: u64) -> Result<()> {
        self.check_self(member)?;
        if len > self.segment_limit {
            let reason = format!(
                "the simulated limit is {} bytes; raise Options::segment_limit",
                self.segment_limit
            );
            return Err(Error::OutOfMemory { wanted: len, reason });
        }
        self.members[member as usize].segment.grow(len);
        Ok(())
    }

    pub(super) fn segment_len(&mut self, member: u32, target: MemberId) -> Result<u64> {
        self.check_start(member, Epoch::ANY, target)?;
        Ok(self.members[target.index()].segment.len())
    }

    /// The length of a member's segment; 0 for a member that does not exist.
    pub(super) fn reachable_len(&self, target: MemberId) -> u64 {
        self.members.get(target.index()).map_or(0, |member| member.segment.len())
    }

    /// Counts an operation that a member starts.
    pub(super) fn count(&mut self, member: u32, what: What, len: usize) {
        let counters = &mut self.members[member as usize].counters;
        counters.operations += 1;
        match what {
            What::Put => {
                counters.operation_bytes_written =
                    counters.operation_bytes_written.saturating_add(len as u64);
            }
            What::Get => {
                // The length may be refused later, and may be as large as a wrong caller likes.
                counters.operation_bytes_read =
                    counters.operation_bytes_read.saturating_add(len as u64);
            }
            What::Load => counters.operation_bytes_read += 8,
            _ => {
                counters.operation_bytes_read += 8;
                counters.operation_bytes_written += 8;
            }
        }
    }

    /// Executes the next phase of an operation on mapped memory: returns the word that it found, or
    /// `None` if it goes on after another step.
    pub(super) fn act(
        &mut self,
        member: u32,
        at: Epoch,
        target: MemberId,
        offset: u64,
        direct: &mut MappedAccess<'_>,
        progress: &mut Progress,
    ) -> Result<Option<u64>> {
        let is_torn = self.cost.is_none();
        if let Progress::Fresh = *progress {
            let call = direct.call(target, offset);
            let check = self.check_start(member, at, target).and_then(|()| {
                direct.check(target, offset, self.members[target.index()].segment.len())
            });
            if let Err(error) = check {
                self.tell(member, |_| format!("{call} is refused: {error}"));
                return Err(error);
            }
            self.count(member, call.what, call.len as usize);
            *progress = Progress::Checked;
            // On real shared memory the view may change between the check and the effect.
            if is_torn && self.random.next() & 3 == 0 {
                return Ok(None);
            }
        }
        self.check_self(member)?;
        if self.knows_dead(member, target.0) {
            // The death became known while the operation was in flight, and the memory is gone, or
            // nearly so.
            if self.keeps_dead_segments && self.random.chance(2) {
                return self.act_after_death(member, target, offset, direct, progress);
            }
            return match direct {
                MappedAccess::Put(_) if self.random.chance(2) => Ok(Some(0)),
                _ => Err(Error::Dead { member: target }),
            };
        }
        let (subset, second_phase) = match *progress {
            Progress::Half(subset) => (subset, true),
            _ if is_torn => (Subset::draw(&mut self.random, direct.words(offset)), false),
            _ => (Subset::All, false),
        };
        let word = self.apply(target.0, offset, direct, subset, second_phase);
        self.tell(member, |_| describe(target.0, offset, direct, subset, second_phase, word));
        if subset != Subset::All && !second_phase {
            *progress = Progress::Half(subset);
            return Ok(None);
        }
        Ok(Some(word))
    }

    /// Completes an operation on the segment of a dead member.
    fn act_after_death(
        &mut self,
        member: u32,
        target: MemberId,
        offset: u64,
        direct: &mut MappedAccess<'_>,
        progress: &Progress,
    ) -> Result<Option<u64>> {
        let state = &mut self.members[target.index()];
        if direct.check(target, offset, state.dead_segment.len()).is_err() {
            return Err(Error::Dead { member: target });
        }
        std::mem::swap(&mut state.segment, &mut state.dead_segment);
        let (subset, second_phase) = match *progress {
            Progress::Half(subset) => (subset, true),
            _ => (Subset::All, false),
        };
        let word = self.apply(target.0, offset, direct, subset, second_phase);
        let state = &mut self.members[target.index()];
        std::mem::swap(&mut state.segment, &mut state.dead_segment);
        self.tell(member, |_| {
            format!(
                "after the death: {}",
                describe(target.0, offset, direct, subset, second_phase, word)
            )
        });
        Ok(Some(word))
    }

    /// Copies from the segment of a dead member.
    pub(super) fn read_dead_segment(
        &mut self,
        member: u32,
        dead: MemberId,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<()> {
        self.check_self(member)?;
        self.check_member(dead)?;
        if !self.keeps_dead_segments || !self.knows_dead(member, dead.0) {
            return Err(Error::Dead { member: dead });
        }
        let segment = &self.members[dead.index()].dead_segment;
        Operation::Get { offset, len: buffer.len() }.check(dead, segment.len())?;
        segment.get(offset, buffer, Subset::All, false);
        Ok(())
    }

    /// Executes a phase of an operation on the target's memory. The range must have been checked.
    pub(super) fn apply(
        &mut self,
        target: u32,
        offset: u64,
        direct: &mut MappedAccess<'_>,
        subset: Subset,
        second_phase: bool,
    ) -> u64 {
        let segment = &mut self.members[target as usize].segment;
        let index = (offset / 8) as usize;
        let word = match direct {
            MappedAccess::Put(data) => {
                segment.put(offset, data, subset, second_phase);
                if !second_phase {
                    self.note_bytes(data);
                }
                return 0;
            }
            MappedAccess::Get(buffer) => {
                segment.get(offset, buffer, subset, second_phase);
                return 0;
            }
            MappedAccess::Load => segment.load(index),
            MappedAccess::CompareAndSwap { expected, new } => {
                let found = segment.load(index);
                if found == *expected {
                    segment.store(index, *new);
                }
                found
            }
            MappedAccess::FetchAdd(delta) => {
                let found = segment.load(index);
                segment.store(index, found.wrapping_add(*delta));
                found
            }
        };
        self.note(word);
        word
    }
}

/// An operation's effect, for the trace.
pub(super) fn describe(
    target: u32,
    offset: u64,
    direct: &MappedAccess<'_>,
    subset: Subset,
    second_phase: bool,
    word: u64,
) -> String {
    let call = direct.call(MemberId(target), offset);
    match direct {
        MappedAccess::Put(_) | MappedAccess::Get(_) if subset != Subset::All => {
            let phase = 1 + u32::from(second_phase);
            let words = subset.describe(direct.words(offset), second_phase);
            format!("{call} (phase {phase}: {words})")
        }
        MappedAccess::Put(_) | MappedAccess::Get(_) => call.to_string(),
        MappedAccess::Load => format!("{call}: {word:#x}"),
        MappedAccess::CompareAndSwap { expected, new } if word == *expected => {
            format!("{call}: {word:#x} becomes {new:#x}")
        }
        MappedAccess::CompareAndSwap { expected, .. } => {
            format!("{call}: {word:#x} is not {expected:#x}")
        }
        MappedAccess::FetchAdd(delta) => format!("{call}: {word:#x} plus {delta:#x}"),
    }
}

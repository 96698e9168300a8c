//! The *directory* of a window at a member: the ranges of its segment that the window shows.
//!
//! The memory of a member in a window is a list of ranges of its segment. The first range, made
//! with the window, and the ranges that `grow` added make up the offsets from 0 on. Ranges that
//! `attach` added have offsets from [`ATTACHED`] on. These offsets are never used again, so that an
//! offset of a detached range stays invalid for ever. Only the owner changes the list, without any
//! other member. Others read the list one-sidedly and cache it.
//!
//! # How the list changes
//! The list is a block in the owner's segment, never changed in place. The *directory word* holds
//! the offset of the block and a number that rises with every change. To change the list, the owner
//! executes three steps:
//!
//! 1. *write*: writes the new list to a fresh block. No other member knows of it yet.
//! 2. *switch*: compares-and-swaps the directory word from the old block to the new block. From
//!    here on every reader finds the new list, whole, since the writes come before the word.
//! 3. *release*: releases the old block.
//!
//! A reader loads the word, reads the block, and loads the word again. If the word has not changed,
//! the list was current at the second load. Otherwise the bytes may be anything, and the reader
//! starts over. If the owner is stopped between any two steps, readers find the old list before
//! *switch* and the new list after it, and never wait. If the owner dies, its memory is lost, and
//! the readers' calls say so.
//!
//! # Which list a reader needs
//! Ranges from 0 on are never taken away, so a cached list is right about them for ever; only an
//! offset beyond it makes the reader read again. Attached ranges can be detached, so every access
//! to an attached range loads the directory word first, and reads the list again if the word has
//! changed.
//!
//! An access could find an attached range in the list and touch it after it was detached: the
//! accessing member may be stopped in between, for any time. Therefore every access to an attached
//! range is counted in the accessing member's own control block. The access increments `ENTERED`,
//! loads the directory word, does its operations, waits until they are complete, and increments
//! `LEFT`. After the *switch* of a detach, the owner reads both words of each member, `LEFT` first.
//! If they are equal, the member was outside of all accesses at the moment of the first read. Every
//! access that it had begun before has ended, and later accesses find the new directory word (all
//! these words are sequentially consistent). When the owner has seen all living members outside, no
//! member can touch the range any more, and the owner releases its memory. Until then the memory is
//! kept, for ever if need be: neither `detach` nor any other call waits. So an access that races
//! with a detach either fails with `NotAttached` or works on memory that still belongs to the
//! range; its writes are lost.
//!
//! The dead count as outside: no engine lets them begin anything at a member that knows of their
//! death, and the owner first ends what it executes for them
//! ([`drain_requests_of_dead`](crate::Job::drain_requests_of_dead)).

use super::create::too_long;
use super::layout::{DIRECTORY, ENTERED, LEFT};
use super::{EndedBy, SharedWindow, WindowError, WindowResult, lock};
use crate::engine::{self, Operation, Pending};
use crate::{Epoch, Job};
use std::sync::Arc;

/// The first offset in a window for attached ranges.
pub const ATTACHED: u64 = 1 << 48;

/// How many bits of the directory word hold the offset of the block, in units of 64 bytes.
const PLACE_BITS: u32 = 36;
/// The least number of ranges that a block has room for. A reader reads this many at once.
pub(super) const RANGES_MIN: usize = 8;
/// The largest number of ranges; further ranges are refused.
pub(super) const RANGES_MAX: usize = 1 << 16;

/// A range of the owner's segment that the window shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowRange {
    /// Its first offset in the window.
    pub(super) begin: u64,
    pub(super) len: u64,
    /// Its offset in the segment.
    pub(super) place: u64,
}

/// A directory, as a member has read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directory {
    /// The directory word at the time of reading.
    pub(super) word: u64,
    /// Sorted by `begin`.
    pub(super) ranges: Vec<WindowRange>,
}

/// A piece of an access that lies in a single range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) place: u64,
    pub(super) len: usize,
}

/// The successor of the directory word `word`, for the block at `place`.
pub(super) fn next_word(word: u64, place: u64) -> u64 {
    (((word >> PLACE_BITS) + 1) << PLACE_BITS) | (place / 64)
}

/// The offset of the block that the directory word names.
pub(super) fn place_of(word: u64) -> u64 {
    (word & ((1 << PLACE_BITS) - 1)) * 64
}

/// The largest segment offset that a directory word can name.
pub(super) const PLACE_MAX: u64 = ((1 << PLACE_BITS) - 1) * 64;

/// The length of a block for `count` ranges.
pub(super) fn block_len(count: usize) -> usize {
    8 + 24 * count.max(RANGES_MIN)
}

/// The bytes of a block.
pub(super) fn encode(ranges: &[WindowRange]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(block_len(ranges.len()));
    bytes.extend_from_slice(&(ranges.len() as u64).to_le_bytes());
    for range in ranges {
        for word in [range.begin, range.len, range.place] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
    bytes.resize(block_len(ranges.len()), 0);
    bytes
}

/// The number of ranges in a block; only its first bytes are needed.
pub(super) fn count(bytes: &[u8]) -> usize {
    u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize
}

/// The ranges of a block that was read as a whole.
pub(super) fn decode(bytes: &[u8]) -> Vec<WindowRange> {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    (0..count(bytes))
        .map(|index| 8 + 24 * index)
        .map(|at| WindowRange { begin: word(at), len: word(at + 8), place: word(at + 16) })
        .collect()
}

impl Directory {
    /// The length of the memory from offset 0 on.
    pub(super) fn len(&self) -> u64 {
        self.ranges
            .iter()
            .filter(|range| range.begin < ATTACHED)
            .map(|range| range.begin + range.len)
            .max()
            .unwrap_or(0)
    }

    /// The pieces of an access; an error if any of it is outside.
    pub(super) fn pieces(&self, target: usize, offset: u64, len: u64) -> WindowResult<Vec<Piece>> {
        let outside = || match offset < ATTACHED {
            true => WindowError::OutOfRange { target, offset, len, window_len: self.len() },
            false => WindowError::NotAttached { target, offset, len },
        };
        let end = offset.checked_add(len).ok_or_else(outside)?;
        let mut pieces = Vec::with_capacity(1);
        let mut at = offset;
        let first = self.ranges.partition_point(|range| range.begin + range.len <= offset);
        for range in &self.ranges[first..] {
            if at >= end || range.begin > at {
                break;
            }
            let piece_len = (range.begin + range.len).min(end) - at;
            pieces.push(Piece { place: range.place + (at - range.begin), len: piece_len as usize });
            at += piece_len;
            if offset >= ATTACHED {
                // Attached ranges may have adjacent offsets, but no access may rely on that.
                break;
            }
        }
        match (at == end, len) {
            (true, 1..) => Ok(pieces),
            // An empty access touches no memory, but its offset must be inside.
            (true, 0) if offset <= self.len() || !pieces.is_empty() => Ok(Vec::new()),
            (true, 0)
                if self.ranges.iter().any(|r| (r.begin..=r.begin + r.len).contains(&offset)) =>
            {
                Ok(Vec::new())
            }
            _ => Err(outside()),
        }
    }
}

/// The owner's record of its own directory.
pub(super) struct OwnMemory {
    pub(super) ranges: Vec<WindowRange>,
    pub(super) word: u64,
    /// The block and its length.
    pub(super) block: (u64, u64),
    /// The next offset for a range to attach.
    pub(super) next_attached: u64,
    pub(super) detached: Vec<DetachedRange>,
}

/// A detached range. A member may still be inside an access to its memory.
pub(super) struct DetachedRange {
    pub(super) place: u64,
    pub(super) len: u64,
    /// The ranks that have not been seen outside of accesses since the detach.
    pub(super) not_seen_outside: Vec<usize>,
    /// The queries that are in flight.
    pub(super) queries: Vec<AccessQuery>,
}

/// A query whether a member is outside of accesses: loads of `LEFT` and `ENTERED`, and their
/// results.
pub(super) struct AccessQuery {
    pub(super) rank: usize,
    pub(super) pending: [Option<Pending>; 2],
    pub(super) found: [Option<u64>; 2],
}

impl SharedWindow {
    pub(super) fn known_directory(&self, target: usize) -> Option<Arc<Directory>> {
        lock(&self.state).directories[target].clone()
    }

    /// The current directory of a target.
    pub(super) fn current_directory(&self, target: usize) -> WindowResult<Arc<Directory>> {
        let word = self.load(target, DIRECTORY)?;
        match self.known_directory(target) {
            Some(known) if known.word == word => Ok(known),
            _ => self.read_directory(target),
        }
    }

    /// Reads the directory of a target and caches it.
    pub(super) fn read_directory(&self, target: usize) -> WindowResult<Arc<Directory>> {
        let member = self.members[target];
        loop {
            let word = self.load(target, DIRECTORY)?;
            if let Some(known) = self.known_directory(target).filter(|known| known.word == word) {
                return Ok(known);
            }
            let place = place_of(word);
            let mut bytes = vec![0; block_len(0)];
            let mut read = self.job.get(Epoch::ANY, member, place, &mut bytes);
            if self.load(target, DIRECTORY)? != word {
                continue;
            }
            let count = count(&bytes);
            if read.is_ok() && count > RANGES_MIN {
                // The word has not changed, so the owner wrote this count.
                bytes = vec![0; block_len(count)];
                read = self.job.get(Epoch::ANY, member, place, &mut bytes);
                if self.load(target, DIRECTORY)? != word {
                    continue;
                }
            }
            read.map_err(|error| self.engine_error(error, target))?;
            let directory = Arc::new(Directory { word, ranges: decode(&bytes) });
            lock(&self.state).directories[target] = Some(directory.clone());
            return Ok(directory);
        }
    }

    /// Changes the memory that this member shows, a single thread at a time. Also releases detached
    /// ranges where possible.
    pub(super) fn change_owned<T>(
        &self,
        change: impl FnOnce(&mut OwnMemory) -> WindowResult<T>,
    ) -> WindowResult<T> {
        self.check_usable()?;
        let take = || lock(&self.owned).take().map(Ok);
        let mut owned = self.wait_for(
            EndedBy::Revoke,
            || self.job.deadline(),
            take,
            || self.timeout(self.me, self.job.time_limit()),
        )?;
        let result = {
            self.release_detached(&mut owned);
            let result = change(&mut owned);
            self.release_detached(&mut owned);
            result
        };
        *lock(&self.owned) = Some(owned);
        result
    }

    /// Makes these ranges the memory that this member shows.
    pub(super) fn publish_ranges(
        &self,
        owned: &mut OwnMemory,
        mut ranges: Vec<WindowRange>,
    ) -> WindowResult<()> {
        if ranges.len() > RANGES_MAX {
            return Err(WindowError::Invalid {
                what: format!("more than {RANGES_MAX} ranges in a window"),
            });
        }
        ranges.sort_by_key(|range| range.begin);
        let old = std::mem::replace(&mut owned.ranges, ranges);
        write_block(&self.job, self.controls[self.me], owned).inspect_err(|_| owned.ranges = old)
    }

    /// Releases the memory of detached ranges that no member can touch any more; see the head of
    /// the module. Does not wait: members that have not answered are checked next time.
    fn release_detached(&self, owned: &mut OwnMemory) {
        if owned.detached.is_empty() {
            return;
        }
        // The view comes first: a request that arrives later is refused.
        let dead = self.dead();
        self.job.drain_requests_of_dead();
        owned.detached.retain_mut(|detached| {
            detached.not_seen_outside.retain(|&rank| !dead.contains(self.members[rank]));
            for &rank in &detached.not_seen_outside {
                if !detached.queries.iter().any(|query| query.rank == rank) {
                    // In this order, and operations on a target take effect in order.
                    let pending = [LEFT, ENTERED].map(|word| {
                        let offset = self.controls[rank] + word;
                        Some(self.job.start(
                            Epoch::ANY,
                            self.members[rank],
                            Operation::Load { offset },
                        ))
                    });
                    detached.queries.push(AccessQuery { rank, pending, found: [None; 2] });
                }
            }
            let (queries, not_seen_outside) =
                (&mut detached.queries, &mut detached.not_seen_outside);
            queries.retain_mut(|query| {
                for (pending, found) in query.pending.iter_mut().zip(&mut query.found) {
                    if let Some(result) =
                        pending.as_mut().and_then(|pending| self.job.poll(pending))
                    {
                        *pending = None;
                        *found = result.ok().map(engine::Done::word);
                    }
                }
                if query.pending.iter().any(Option::is_some) {
                    return true;
                }
                if let [Some(left), Some(entered)] = query.found
                    && left == entered
                {
                    not_seen_outside.retain(|&rank| rank != query.rank);
                }
                // Still inside, or no answer: query again next time.
                false
            });
            if detached.not_seen_outside.is_empty() {
                self.job.release(detached.place, detached.len);
            }
            !detached.not_seen_outside.is_empty()
        });
    }
}

/// The steps *write*, *switch* and *release* of a change of the directory: see the head of the
/// module. `owned` already has the new ranges.
pub(super) fn write_block(job: &Job, control: u64, owned: &mut OwnMemory) -> WindowResult<()> {
    let bytes = encode(&owned.ranges);
    let len = bytes.len() as u64;
    let place = job.reserve(len)?;
    let write = || {
        if place > PLACE_MAX {
            return Err(too_long(len));
        }
        job.put(Epoch::ANY, job.me(), place, &bytes)?;
        let word = next_word(owned.word, place);
        job.compare_and_swap(Epoch::ANY, job.me(), control + DIRECTORY, owned.word, word)?;
        Ok(word)
    };
    match write() {
        Ok(word) => {
            owned.word = word;
            let old = std::mem::replace(&mut owned.block, (place, len));
            if old.1 > 0 {
                job.release(old.0, old.1);
            }
            Ok(())
        }
        Err(error) => {
            job.release(place, len);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> Directory {
        let range = |begin, len, place| WindowRange { begin, len, place };
        Directory {
            word: 0,
            ranges: vec![
                range(0, 100, 6400),
                range(100, 50, 128),
                range(ATTACHED, 64, 1024),
                range(ATTACHED + 64, 64, 4096),
            ],
        }
    }

    #[test]
    fn an_access_over_several_ranges_is_split() {
        let piece = |place, len| Piece { place, len };
        let directory = directory();
        assert_eq!(directory.len(), 150);
        assert_eq!(directory.pieces(0, 90, 20).unwrap(), [piece(6490, 10), piece(128, 10)]);
        assert_eq!(directory.pieces(0, 100, 50).unwrap(), [piece(128, 50)]);
        assert_eq!(directory.pieces(0, ATTACHED + 8, 8).unwrap(), [piece(1032, 8)]);
    }

    #[test]
    fn accesses_outside_are_refused() {
        let directory = directory();
        for (offset, len) in [(150, 1), (149, 2), (0, u64::MAX), (u64::MAX - 1, 1), (151, 0)] {
            assert!(directory.pieces(0, offset, len).is_err(), "{offset} {len}");
        }
        let attached = directory.pieces(2, ATTACHED + 60, 8);
        assert_eq!(
            attached,
            Err(WindowError::NotAttached { target: 2, offset: ATTACHED + 60, len: 8 }),
            "never into the neighbour"
        );
        assert!(directory.pieces(0, ATTACHED - 1, 1).is_err());
    }

    #[test]
    fn an_empty_access_must_lie_inside() {
        let directory = directory();
        for offset in [0, 100, 150, ATTACHED, ATTACHED + 128] {
            assert_eq!(directory.pieces(0, offset, 0), Ok(vec![]), "{offset}");
        }
        assert!(directory.pieces(0, ATTACHED + 129, 0).is_err());
        let empty = Directory { word: 0, ranges: vec![] };
        assert_eq!(empty.pieces(0, 0, 0), Ok(vec![]));
        assert!(empty.pieces(0, 0, 1).is_err() && empty.pieces(0, 1, 0).is_err());
    }

    #[test]
    fn a_block_reads_as_it_was_written_and_words_do_not_repeat() {
        let ranges = directory().ranges;
        assert_eq!(decode(&encode(&ranges)), ranges);
        assert_eq!(decode(&encode(&[])), []);
        let first = next_word(0, 640);
        let second = next_word(first, 640);
        assert_ne!(first, second);
        assert_eq!((place_of(first), place_of(second)), (640, 640));
        assert_eq!(place_of(next_word(second, PLACE_MAX)), PLACE_MAX);
    }
}

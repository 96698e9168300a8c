//! One-sided operations: from a member and an offset to an address of the mapping, and the access.
//!
//! The `Engine` impl in `mod.rs` calls `put_bytes`, `get_bytes`, `load_word`, `swap_word` and
//! `add_to_word`, which are inlined there. Every operation checks the guard, the epoch and the
//! target's usable length before it touches memory (`locate`); the checks are three loads as long
//! as nothing has changed. The fast path of the store makes the checks once for several operations
//! ([`Reach`]). The steps of each access, and why their orderings suffice, are told at the head of
//! `mod.rs`.

use super::{Shm, sys};
use crate::engine::mapped::{Mapped, Memory};
use crate::engine::{Engine, Epoch, Error, MemberId, Operation, Result};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A member's segment, as this process reaches it.
pub(super) struct Segment {
    /// How much of it may be used: its length when it was last read, plus 1, or 0 once the member
    /// is known to be dead, so that a single comparison checks both. 1 before the first use.
    ///
    /// The length here is not above the length of `range`, also if the shared memory is damaged.
    /// An acquire load suffices for an access: the memory behind a length was allocated before the
    /// length was stored.
    pub(super) usable: AtomicU64,
    /// The address range up to the segment limit.
    pub(super) range: sys::Range<'static>,
}

/// A member's segment, for the operations that follow a single check of the view. They are the
/// engine's operations under [`Epoch::ANY`], except that they are not refused when the target is
/// found dead meanwhile: its memory is still mapped, and no survivor trusts it. The caller must
/// tolerate that any of them takes effect after the view has changed.
#[derive(Clone, Copy)]
pub(crate) struct Reach<'a> {
    range: sys::Range<'a>,
    #[cfg(feature = "faults")]
    shm: &'a Shm,
    #[cfg(feature = "faults")]
    target: MemberId,
}

impl Shm {
    /// The one-sided put; see [`Engine::put`].
    #[inline(always)]
    pub(super) fn put_bytes(
        &self,
        at: Epoch,
        target: MemberId,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let place = self.locate(at, target, offset, data.len())?;
        if cfg!(feature = "faults") {
            // A test build may die or stop between two halves, which meet at a word boundary of the
            // target.
            let middle = (place + data.len() / 2).next_multiple_of(8) - place;
            let (first, second) = data.split_at(middle.min(data.len()));
            self.tables().mapping.write(place, first);
            self.step();
            self.tables().mapping.write(place + first.len(), second);
            self.step();
        } else {
            self.tables().mapping.write(place, data);
        }
        // A later write of the caller, by any means, is not seen before this put.
        fence(Ordering::Release);
        sys::owe_order();
        Ok(())
    }

    /// The one-sided get; see [`Engine::get`].
    #[inline(always)]
    pub(super) fn get_bytes(
        &self,
        at: Epoch,
        target: MemberId,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<()> {
        let place = self.locate(at, target, offset, buffer.len())?;
        sys::order_puts();
        self.tables().mapping.read(place, buffer);
        // A later read of the caller does not happen before this get.
        fence(Ordering::Acquire);
        Ok(())
    }

    /// The load of a word; see [`Engine::load`].
    #[inline(always)]
    pub(super) fn load_word(&self, at: Epoch, target: MemberId, offset: u64) -> Result<u64> {
        let place = self.locate_word(at, target, offset)?;
        sys::order_puts();
        Ok(self.tables().mapping.word(place).load(Ordering::SeqCst))
    }

    /// The compare-and-swap of a word; see [`Engine::compare_and_swap`].
    #[inline(always)]
    pub(super) fn swap_word(
        &self,
        at: Epoch,
        target: MemberId,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64> {
        let place = self.locate_word(at, target, offset)?;
        sys::order_puts_before_swap();
        let word = self.tables().mapping.word(place);
        match word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(found) => {
                sys::have_order();
                Ok(found)
            }
            Err(found) => Ok(found),
        }
    }

    /// The fetch-and-add of a word; see [`Engine::fetch_add`].
    #[inline(always)]
    pub(super) fn add_to_word(
        &self,
        at: Epoch,
        target: MemberId,
        offset: u64,
        delta: u64,
    ) -> Result<u64> {
        let place = self.locate_word(at, target, offset)?;
        Ok(self.tables().mapping.word(place).fetch_add(delta, Ordering::SeqCst))
    }

    /// As [`Shm::locate`] for a word, whose offset must be a multiple of 8.
    #[inline(always)]
    pub(super) fn locate_word(&self, at: Epoch, target: MemberId, offset: u64) -> Result<usize> {
        if !offset.is_multiple_of(8) {
            self.check_target(at, target)?;
            return Err(Error::Unaligned { offset });
        }
        self.locate(at, target, offset, 8)
    }

    /// Checks an operation and returns where in the mapping its range is, or why it is refused.
    #[inline(always)]
    pub(super) fn locate(
        &self,
        at: Epoch,
        target: MemberId,
        offset: u64,
        len: usize,
    ) -> Result<usize> {
        match self.locate_fast(at, target, offset, len) {
            Some(place) => Ok(place),
            None => self.locate_slow(at, target, offset, len),
        }
    }

    /// Checks an operation and returns where in the mapping its range is, or `None` if the view or
    /// the segment's length has changed since this member last read them.
    #[inline(always)]
    fn locate_fast(&self, at: Epoch, target: MemberId, offset: u64, len: usize) -> Option<usize> {
        let guard = self.guard.word().load(Ordering::SeqCst);
        // A forked child does not have the tables: it must not load the epoch.
        if guard == 0 {
            return None;
        }
        let epoch = Epoch(self.epoch_word.load(Ordering::SeqCst));
        let usable = self.segments.get(target.index())?.usable.load(Ordering::Acquire);
        let may = epoch.0 + 1 == guard
            && (at == epoch || at == Epoch::ANY)
            && offset.saturating_add(len as u64) < usable;
        if may {
            self.step();
        }
        may.then(|| self.tables().layout.segment(target) + offset as usize)
    }

    /// The slow path of [`Shm::locate`]: applies deaths and reads the segment's length first.
    #[cold]
    #[inline(never)]
    fn locate_slow(&self, at: Epoch, target: MemberId, offset: u64, len: usize) -> Result<usize> {
        self.check_member(target).or_else(|error| self.check_guard().and(Err(error)))?;
        let Segment { usable, range } = &self.segments[target.index()];
        let before = usable.load(Ordering::SeqCst);
        self.check_target(at, target)?;
        let segment_len =
            self.tables().segment_len(target).load(Ordering::Acquire).min(range.len());
        Operation::Get { offset, len }.check(target, segment_len)?;
        // Fails if the member was found dead since `usable` was loaded: then it stays 0.
        let _ =
            usable.compare_exchange(before, segment_len + 1, Ordering::SeqCst, Ordering::SeqCst);
        self.step();
        Ok(self.tables().layout.segment(target) + offset as usize)
    }

    /// Makes the checks of an operation on a member once, for several operations; see [`Reach`].
    #[inline]
    pub(crate) fn reach(&self, at: Epoch, target: MemberId) -> Result<Reach<'_>> {
        if let Some(epoch) = self.known_epoch()
            && (at == Epoch::ANY || at == epoch)
            && let Some(reach) = Mapped::reach(self, target)
        {
            return Ok(reach);
        }
        self.reach_slow(at, target)
    }

    #[cold]
    #[inline(never)]
    fn reach_slow(&self, at: Epoch, target: MemberId) -> Result<Reach<'_>> {
        self.locate_slow(at, target, 0, 0)?;
        let segment = &self.segments[target.index()];
        Ok(self.reach_segment(target, segment, segment.usable.load(Ordering::Acquire).max(1)))
    }

    /// The segment of `target`, of which `usable` was loaded, and is not 0.
    #[inline(always)]
    fn reach_segment<'a>(
        &'a self,
        target: MemberId,
        segment: &'a Segment,
        usable: u64,
    ) -> Reach<'a> {
        // SAFETY: `usable` is 1 or the length of a part of the range, plus 1.
        let range = unsafe { segment.range.first(usable - 1) };
        #[cfg(not(feature = "faults"))]
        let _ = target;
        Reach {
            range,
            #[cfg(feature = "faults")]
            shm: self,
            #[cfg(feature = "faults")]
            target,
        }
    }

    /// The length of a dead member's segment.
    pub(super) fn dead_segment_len(&self, dead: MemberId) -> Result<u64> {
        self.check_guard()?;
        self.check_member(dead)?;
        if !self.tables().view().dead.contains(dead) {
            return Err(Error::Dead { member: dead });
        }
        let len = self.tables().segment_len(dead).load(Ordering::Acquire);
        Ok(len.min(self.tables().layout.segment_limit as u64))
    }

    /// The C library's memcpy into a member's segment, with a check of the bounds alone: the lower
    /// bound of benchmarks.
    pub(crate) fn memcpy_in(&self, target: MemberId, offset: u64, bytes: &[u8]) {
        self.tables()
            .mapping
            .memcpy_in(self.tables().layout.segment(target) + offset as usize, bytes);
    }

    /// The C library's memcpy out of a member's segment, with a check of the bounds alone.
    pub(crate) fn memcpy_out(&self, target: MemberId, offset: u64, bytes: &mut [u8]) {
        self.tables()
            .mapping
            .memcpy_out(self.tables().layout.segment(target) + offset as usize, bytes);
    }
}

impl<'a> Mapped<'a> for &'a Shm {
    type Memory = Reach<'a>;

    #[inline(always)]
    fn known_epoch(self) -> Option<Epoch> {
        let guard = self.guard.word().load(Ordering::SeqCst);
        // A forked child does not have the tables: it must not load the epoch.
        if guard == 0 {
            return None;
        }
        // As in `Shm::epoch`.
        sys::order_puts();
        let epoch = self.epoch_word.load(Ordering::SeqCst);
        (epoch + 1 == guard).then_some(Epoch(epoch))
    }

    #[inline(always)]
    fn is_member(self) -> bool {
        self.check_guard().is_ok()
    }

    #[inline(always)]
    fn reach(self, member: MemberId) -> Option<Reach<'a>> {
        let segment = self.segments.get(member.index())?;
        // No more than 1: this process has not read the length yet, or the member is dead.
        let usable = segment.usable.load(Ordering::Acquire);
        (usable > 1).then(|| self.reach_segment(member, segment, usable))
    }

    #[inline(always)]
    fn is_over(self) -> bool {
        self.has_ended()
    }
}

impl Memory for Reach<'_> {
    #[inline(always)]
    fn load<const N: usize>(self, offset: u64) -> Option<[u64; N]> {
        let words = self.range.words::<N>(offset)?;
        self.step();
        sys::order_puts();
        Some(std::array::from_fn(|index| words[index].load(Ordering::SeqCst)))
    }

    #[inline(always)]
    fn peek(self, offset: u64) -> Option<u64> {
        let [word] = self.range.words(offset)?;
        self.step();
        Some(word.load(Ordering::SeqCst))
    }

    #[inline(always)]
    fn swap(self, offset: u64, expected: u64, new: u64) -> Option<bool> {
        let [word] = self.range.words(offset)?;
        self.step();
        let is_swapped =
            word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if is_swapped {
            sys::have_order();
        }
        Some(is_swapped)
    }

    #[inline(always)]
    fn put_words<const N: usize>(self, offset: u64, words: [u64; N]) -> bool {
        let Some(places) = self.range.words::<N>(offset) else { return false };
        // An earlier write is not seen after these words, as with `put`.
        fence(Ordering::Release);
        for (place, word) in places.iter().zip(words) {
            self.step();
            place.store(word, Ordering::Relaxed);
        }
        fence(Ordering::Release);
        sys::owe_order();
        true
    }

    #[inline(always)]
    fn put_block<const N: usize>(
        self,
        offset: u64,
        words: [u64; N],
        start: u64,
        bytes: &[u8],
    ) -> bool {
        // As in `put_words`.
        fence(Ordering::Release);
        let is_written = self.range.write_block(offset, words, start, bytes, || self.step());
        fence(Ordering::Release);
        sys::owe_order();
        is_written
    }

    #[inline(always)]
    fn put(self, offset: u64, data: &[u8]) -> bool {
        #[cfg(feature = "faults")]
        return self.shm.put_bytes(Epoch::ANY, self.target, offset, data).is_ok();
        #[cfg(not(feature = "faults"))]
        {
            let is_written = self.range.write(offset, data);
            // As in `Shm::put_bytes`.
            fence(Ordering::Release);
            sys::owe_order();
            is_written
        }
    }

    #[inline(always)]
    fn get(self, offset: u64, buffer: &mut [u8]) -> bool {
        self.step();
        sys::order_puts();
        let is_read = self.range.read(offset, buffer);
        fence(Ordering::Acquire);
        is_read
    }

    #[inline(always)]
    fn prefetch(self, offset: u64) {
        self.range.prefetch(offset);
    }
}

impl Reach<'_> {
    #[inline(always)]
    fn step(self) {
        #[cfg(feature = "faults")]
        self.shm.step();
    }
}

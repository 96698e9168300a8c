//! Memory that all members map, as the fast path reaches it: many operations after a single check
//! of the view.
//!
//! [`MappedEngine`] is an engine whose members map all memory, [`Mapped`] its interface, and
//! [`Memory`] the operations on the memory of a member. On such memory, the check of the view is
//! not atomic with the operations that follow. A caller must therefore tolerate that *any* of its
//! operations takes effect after the view has changed, not only the operation at which it was
//! stopped. [`Reach`] is a member's memory on any engine: the slow path uses it for the operation
//! counter, which every operation swaps at its beginning and writes at its end.

#[cfg(any(feature = "mpi", feature = "sim"))]
use super::Engine;
#[cfg(feature = "mpi")]
use super::mpi;
use super::shm;
#[cfg(feature = "sim")]
use super::sim;
use super::{Epoch, MemberId};
#[cfg(any(feature = "mpi", feature = "sim"))]
use super::{Error, Result};

/// An engine whose memory all members map.
pub(crate) enum MappedEngine<'a> {
    Shm(&'a shm::Shm),
    #[cfg(feature = "sim")]
    Sim(&'a sim::Sim),
}

/// A member's memory on any engine.
#[derive(Clone, Copy)]
pub(crate) enum Reach<'a> {
    Shm(shm::Reach<'a>),
    #[cfg(feature = "mpi")]
    Mpi(EngineMemory<'a, mpi::Mpi>),
    #[cfg(feature = "sim")]
    Sim(EngineMemory<'a, sim::Sim>),
}

/// What the fast path needs of an engine whose memory all members map.
pub(crate) trait Mapped<'a>: Copy {
    type Memory: Memory + Into<Reach<'a>>;

    /// The epoch, if this process is a member and has applied all deaths of that epoch: it reaches
    /// the memory of the dead no more. Memory that is reached after this call is reached under that
    /// view.
    fn known_epoch(self) -> Option<Epoch>;

    /// Whether this process is a member, and not a forked child, which does not have the memory.
    fn is_member(self) -> bool;

    /// A member's memory. Only after [`Mapped::known_epoch`] or [`Mapped::is_member`] in the same
    /// call of the store: a forked child does not have the memory.
    fn reach(self, member: MemberId) -> Option<Self::Memory>;

    /// As [`super::Engine::has_ended`].
    fn is_over(self) -> bool;
}

/// A member's memory, for the operations that follow a single check of the view. They are the
/// engine's operations under [`Epoch::ANY`]. A refusal does not say why, only that nothing has
/// happened; the slow path repeats the operation by a call of the engine, which says why.
pub(crate) trait Memory: Copy {
    /// Reads consecutive words, in order.
    fn load<const N: usize>(self, offset: u64) -> Option<[u64; N]>;

    /// Reads a word. Other than [`Memory::load`], it may be executed before an earlier put of this
    /// thread is visible, which saves a fence. A load of a word in a single order with all
    /// exchanges of words.
    fn peek(self, offset: u64) -> Option<u64> {
        self.load(offset).map(|[word]| word)
    }

    /// Replaces a word if it is `expected`; returns whether it was.
    fn swap(self, offset: u64, expected: u64, new: u64) -> Option<bool>;

    /// Writes consecutive words; returns whether it did.
    fn put_words<const N: usize>(self, offset: u64, words: [u64; N]) -> bool;

    /// Writes bytes; returns whether it did. A put that is refused after its first words may have
    /// changed some.
    fn put(self, offset: u64, data: &[u8]) -> bool;

    /// Fills a buffer; returns whether it did.
    fn get(self, offset: u64, buffer: &mut [u8]) -> bool;

    /// Asks the processor to fetch the cache line at this offset.
    fn prefetch(self, offset: u64);

    /// Writes words at `offset`, and bytes `start` bytes behind it, with zeros up to the next word.
    /// Returns whether it did. A refused write may have changed some words.
    #[inline(always)]
    fn put_block<const N: usize>(
        self,
        offset: u64,
        words: [u64; N],
        start: u64,
        bytes: &[u8],
    ) -> bool {
        self.put_words(offset, words) && self.fill(offset + start, bytes)
    }

    /// Writes bytes, and zeros up to the next word. Writing only a part of a word would need an
    /// atomic exchange.
    #[inline(always)]
    fn fill(self, offset: u64, data: &[u8]) -> bool {
        let (words, rest) = data.split_at(data.len() & !7);
        let is_done = words.is_empty() || self.put(offset, words);
        if rest.is_empty() {
            return is_done;
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        is_done && self.put_words(offset + words.len() as u64, [u64::from_ne_bytes(last)])
    }
}

/// A member's memory by the calls of its engine.
#[cfg(any(feature = "mpi", feature = "sim"))]
pub(crate) struct EngineMemory<'a, E>(&'a E, MemberId);

#[cfg(feature = "sim")]
impl<'a> Mapped<'a> for &'a sim::Sim {
    type Memory = EngineMemory<'a, sim::Sim>;

    fn known_epoch(self) -> Option<Epoch> {
        (!self.has_ended()).then(|| self.epoch())
    }

    fn is_member(self) -> bool {
        !self.has_ended()
    }

    fn reach(self, member: MemberId) -> Option<EngineMemory<'a, sim::Sim>> {
        Some(EngineMemory(self, member))
    }

    fn is_over(self) -> bool {
        self.has_ended()
    }
}

#[cfg(any(feature = "mpi", feature = "sim"))]
impl<'a, E: Engine> EngineMemory<'a, E> {
    /// The memory of `target`, if the epoch is `at`, or `at` is [`Epoch::ANY`].
    pub(crate) fn reach(engine: &'a E, at: Epoch, target: MemberId) -> Result<EngineMemory<'a, E>> {
        match engine.epoch() {
            now if at != Epoch::ANY && at != now => Err(Error::Stale { now }),
            _ => Ok(EngineMemory(engine, target)),
        }
    }
}

#[cfg(any(feature = "mpi", feature = "sim"))]
impl<E> Clone for EngineMemory<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

#[cfg(any(feature = "mpi", feature = "sim"))]
impl<E> Copy for EngineMemory<'_, E> {}

#[cfg(any(feature = "mpi", feature = "sim"))]
impl<E: Engine> Memory for EngineMemory<'_, E> {
    fn load<const N: usize>(self, offset: u64) -> Option<[u64; N]> {
        let mut words = [0; N];
        for (word, index) in words.iter_mut().zip(0..) {
            // The offset may come from memory that other members write: it must not overflow.
            *word = self.0.load(Epoch::ANY, self.1, offset.checked_add(index * 8)?).ok()?;
        }
        Some(words)
    }

    // Out of line, as `put_words` is: an operation on mapped memory, which has a branch to these
    // calls at its beginning and end, saves no registers for them.
    #[inline(never)]
    fn swap(self, offset: u64, expected: u64, new: u64) -> Option<bool> {
        Some(self.0.compare_and_swap(Epoch::ANY, self.1, offset, expected, new).ok()? == expected)
    }

    #[inline(never)]
    fn put_words<const N: usize>(self, offset: u64, words: [u64; N]) -> bool {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.put(offset, &bytes)
    }

    fn put(self, offset: u64, data: &[u8]) -> bool {
        self.0.put(Epoch::ANY, self.1, offset, data).is_ok()
    }

    fn get(self, offset: u64, buffer: &mut [u8]) -> bool {
        self.0.get(Epoch::ANY, self.1, offset, buffer).is_ok()
    }

    fn prefetch(self, _: u64) {}
}

impl<'a> From<shm::Reach<'a>> for Reach<'a> {
    #[inline(always)]
    fn from(reach: shm::Reach<'a>) -> Reach<'a> {
        Reach::Shm(reach)
    }
}

#[cfg(feature = "sim")]
impl<'a> From<EngineMemory<'a, sim::Sim>> for Reach<'a> {
    fn from(memory: EngineMemory<'a, sim::Sim>) -> Reach<'a> {
        Reach::Sim(memory)
    }
}

impl Reach<'_> {
    /// As [`Memory::swap`].
    #[inline(always)]
    pub(crate) fn swap(self, offset: u64, expected: u64, new: u64) -> Option<bool> {
        match self {
            Reach::Shm(reach) => reach.swap(offset, expected, new),
            #[cfg(feature = "mpi")]
            Reach::Mpi(memory) => memory.swap(offset, expected, new),
            #[cfg(feature = "sim")]
            Reach::Sim(memory) => memory.swap(offset, expected, new),
        }
    }

    /// As [`Memory::put_words`].
    #[inline(always)]
    pub(crate) fn put_words<const N: usize>(self, offset: u64, words: [u64; N]) -> bool {
        match self {
            Reach::Shm(reach) => reach.put_words(offset, words),
            #[cfg(feature = "mpi")]
            Reach::Mpi(memory) => memory.put_words(offset, words),
            #[cfg(feature = "sim")]
            Reach::Sim(memory) => memory.put_words(offset, words),
        }
    }
}

//! Memory of a member as the fast path reaches it: many operations under a single check of the view.

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
pub(crate) enum Directly<'a> {
    Shm(&'a shm::Shm),
    #[cfg(feature = "sim")]
    Sim(&'a sim::Sim),
}

/// What the hot path needs of such an engine.
pub(crate) trait Direct<'a>: Copy {
    type Memory: Memory + Into<Reach<'a>>;

    /// The epoch, if this process is a member and has taken note of everyone who is dead in it: those are not reached any
    /// more. What is reached after this is reached under that view.
    fn known_epoch(self) -> Option<Epoch>;

    /// A member's memory. Only after [`Direct::known_epoch`] in the same call: a forked child has none.
    fn reach(self, member: MemberId) -> Option<Self::Memory>;

    /// As [`Engine::has_ended`].
    fn is_over(self) -> bool;
}

/// A member's memory, for the operations that follow on one check of the view: those of the engine under
/// [`Epoch::ANY`]. Where a refusal would say why, it is enough here that nothing has happened; the ordinary call says it.
///
/// On memory that all members map, the check of an operation is not atomic with it: whoever uses this must be able to
/// bear that *any* of its operations is late, and not only the one at which it was stopped.
pub(crate) trait Memory: Copy {
    /// Some words, one after the other.
    fn load<const N: usize>(self, offset: u64) -> Option<[u64; N]>;

    /// Compares and swaps; whether the word was as expected.
    fn swap(self, offset: u64, expected: u64, new: u64) -> Option<bool>;

    /// Puts some words; whether it was done.
    fn put_words<const N: usize>(self, offset: u64, words: [u64; N]) -> bool;

    /// Puts bytes; whether it was done. Refused after its first words it may have changed some.
    fn put(self, offset: u64, data: &[u8]) -> bool;

    /// Fills a buffer; whether it was done.
    fn get(self, offset: u64, buffer: &mut [u8]) -> bool;

    /// Has the processor fetch the line at this offset, if it can.
    fn prefetch(self, offset: u64);

    /// Puts bytes, and zeros up to the next word: a part of a word would have to be exchanged.
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

#[cfg(feature = "sim")]
impl<'a> Direct<'a> for &'a sim::Sim {
    type Memory = Ordinary<'a, sim::Sim>;

    fn known_epoch(self) -> Option<Epoch> {
        (!self.has_ended()).then(|| self.epoch())
    }

    fn reach(self, member: MemberId) -> Option<Ordinary<'a, sim::Sim>> {
        Some(Ordinary(self, member))
    }

    fn is_over(self) -> bool {
        self.has_ended()
    }
}

/// The memory of a member by the ordinary calls of its engine.
#[cfg(any(feature = "mpi", feature = "sim"))]
pub(crate) struct Ordinary<'a, E>(&'a E, MemberId);

#[cfg(any(feature = "mpi", feature = "sim"))]
impl<'a, E: Engine> Ordinary<'a, E> {
    /// The memory of `target`, if the epoch is `at`, or `at` is [`Epoch::ANY`].
    pub(crate) fn reach(engine: &'a E, at: Epoch, target: MemberId) -> Result<Ordinary<'a, E>> {
        match engine.epoch() {
            now if at != Epoch::ANY && at != now => Err(Error::Stale { now }),
            _ => Ok(Ordinary(engine, target)),
        }
    }
}

#[cfg(any(feature = "mpi", feature = "sim"))]
impl<E> Clone for Ordinary<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

#[cfg(any(feature = "mpi", feature = "sim"))]
impl<E> Copy for Ordinary<'_, E> {}

#[cfg(any(feature = "mpi", feature = "sim"))]
impl<E: Engine> Memory for Ordinary<'_, E> {
    fn load<const N: usize>(self, offset: u64) -> Option<[u64; N]> {
        let mut words = [0; N];
        for (word, index) in words.iter_mut().zip(0..) {
            // The offset may be from memory that others write.
            *word = self.0.load(Epoch::ANY, self.1, offset.checked_add(index * 8)?).ok()?;
        }
        Some(words)
    }

    fn swap(self, offset: u64, expected: u64, new: u64) -> Option<bool> {
        Some(self.0.compare_and_swap(Epoch::ANY, self.1, offset, expected, new).ok()? == expected)
    }

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

/// A member's memory on any engine.
#[derive(Clone, Copy)]
pub(crate) enum Reach<'a> {
    Shm(shm::Reach<'a>),
    #[cfg(feature = "mpi")]
    Mpi(Ordinary<'a, mpi::Mpi>),
    #[cfg(feature = "sim")]
    Sim(Ordinary<'a, sim::Sim>),
}

impl<'a> From<shm::Reach<'a>> for Reach<'a> {
    #[inline(always)]
    fn from(reach: shm::Reach<'a>) -> Reach<'a> {
        Reach::Shm(reach)
    }
}

#[cfg(feature = "sim")]
impl<'a> From<Ordinary<'a, sim::Sim>> for Reach<'a> {
    fn from(memory: Ordinary<'a, sim::Sim>) -> Reach<'a> {
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

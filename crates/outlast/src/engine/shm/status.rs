//! The status page of a member: what it tells observers, which are processes outside of the job.
//!
//! The background of a member writes the page about ten times a second, whether an observer is
//! there or not. So an observer asks nothing of the member and costs it nothing, and it sees the
//! last page of a member that is stopped or dead.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | the magic number of a page, with the version of this table |
//! | 1 | the sequence counter: odd while the page is being written |
//! | 2 | when it was written, on the machine's monotonic clock, in nanoseconds |
//! | 3 | how many words follow |
//! | 4.. | the words of the layer above; `store/member/status.rs` says what they mean |
//!
//! A member that dies in the middle of a page leaves an odd counter, and observers then have no
//! page of it. No member reads the page of another member, so nothing depends on it.
//!
//! # Orderings
//! The counter becomes odd before any other word changes, by a release fence behind its store, and
//! becomes even by a release store after the last change. A reader that finds one even number
//! before and after it has copied the words, with acquire fences in between, has copied a page that
//! was not written meanwhile.

use super::layout::STATUS_LEN;
use super::{Shm, sys};
use std::sync::atomic::{Ordering, fence};

pub(super) const STATUS_MAGIC: u64 = u64::from_ne_bytes(*b"OLSTATE\x01");
pub(super) const WORD_MAGIC: usize = 0;
pub(super) const WORD_SEQUENCE: usize = 1;
pub(super) const WORD_TIME: usize = 2;
pub(super) const WORD_COUNT: usize = 3;
pub(super) const WORD_FIRST: usize = 4;

/// The most words that a page has for the layer above.
pub(super) const WORDS_MAX: usize = STATUS_LEN / 8 - WORD_FIRST;

impl Shm {
    /// Writes this member's status page; words beyond the room of a page are cut off. A single
    /// activity writes at a time.
    pub(crate) fn write_status(&self, words: &[u64]) {
        if self.check_guard().is_err() {
            return;
        }
        let words = &words[..words.len().min(WORDS_MAX)];
        let word = |index: usize| self.tables().status_word(self.me, index);
        let sequence = word(WORD_SEQUENCE).load(Ordering::Relaxed) | 1;
        word(WORD_SEQUENCE).store(sequence, Ordering::Relaxed);
        fence(Ordering::Release);
        word(WORD_MAGIC).store(STATUS_MAGIC, Ordering::Relaxed);
        word(WORD_TIME).store(sys::monotonic_ns(), Ordering::Relaxed);
        word(WORD_COUNT).store(words.len() as u64, Ordering::Relaxed);
        for (index, &content) in words.iter().enumerate() {
            word(WORD_FIRST + index).store(content, Ordering::Relaxed);
        }
        word(WORD_SEQUENCE).store(sequence.wrapping_add(1), Ordering::Release);
    }
}

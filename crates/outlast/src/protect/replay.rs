//! Replay: the next holder of a seat repeats what the dead holder did, call by call.
//!
//! The *past* is the part of the program that the record covers. It ends with the last release in
//! the record.
//!
//! | call in the past | what happens |
//! |---|---|
//! | get from another seat, `remember` | the entry of the record |
//! | put to another seat | waits for the release |
//! | get, put on the own memory | at once |
//! | release of a closed round | the waiting puts are dropped: their targets have them |
//! | release of the last round, not closed | the past ends, and the puts are sent again |
//! | round | its result in the record; then all entries of journals for this seat of epochs up to the round are put into the own memory |
//! | round without a result in the record | the past ends |
//!
//! A call that is not the next entry of the record is *diverged*: the period ends, and the rollback
//! begins.

use super::barrier::VOTE;
use super::layout::{DOWN, HIDDEN, TOLD_DOWN, TOLD_UP, UP, children, parent};
use super::log::{Entry, LoggedPut};
use super::seat::Seat;
use super::steps::{Step, within};
use super::{ProtectError, ProtectResult};
use std::collections::VecDeque;

/// What the dead holder of a seat left.
#[derive(Debug)]
pub(super) struct Past {
    /// The generation with which it begins.
    pub(super) generation: u64,
    /// The entries of the record that are left.
    pub(super) entries: VecDeque<Entry>,
    /// The puts of other seats to this seat that are left, by epoch.
    pub(super) puts: VecDeque<LoggedPut>,
    /// The last round whose puts are never sent again.
    pub(super) closed: u64,
}

impl Seat {
    /// Whether the seat repeats what a dead holder did.
    #[inline]
    pub(super) fn has_past(&self) -> bool {
        self.logs.as_ref().is_some_and(|logs| logs.past.borrow().is_some())
    }

    fn with_past<T>(&self, change: impl FnOnce(&mut Past) -> T) -> Option<T> {
        self.logs.as_ref().and_then(|logs| logs.past.borrow_mut().as_mut().map(change))
    }

    fn next_entry(&self) -> Option<Entry> {
        self.with_past(|past| past.entries.pop_front()).flatten()
    }

    /// The error of a call that the dead holder did not make.
    pub(super) fn diverged(&self, call: &str) -> ProtectError {
        tracing::warn!(seat = self.number, call, "the closure makes other calls than before");
        self.period.end();
        ProtectError::RolledBack
    }

    pub(super) fn replay_get(
        &self,
        source: usize,
        offset: u64,
        buffer: &mut [u8],
    ) -> ProtectResult<()> {
        match self.next_entry() {
            Some(Entry::Get { seat, offset: at, bytes })
                if seat == source && at == offset && bytes.len() == buffer.len() =>
            {
                buffer.copy_from_slice(&bytes);
                Ok(())
            }
            _ => Err(self.diverged("get")),
        }
    }

    pub(super) fn replay_remember(&self) -> ProtectResult<Vec<u8>> {
        match self.next_entry() {
            Some(Entry::Remember { bytes }) => Ok(bytes),
            _ => Err(self.diverged("remember")),
        }
    }

    /// A release; returns whether its round is closed. Otherwise the past is over.
    pub(super) fn replay_release(&self, round: u64) -> ProtectResult<bool> {
        match self.next_entry() {
            Some(Entry::Release { round: released }) if released == round => {}
            _ => return Err(self.diverged("release")),
        }
        match self.with_past(|past| (past.closed >= round, past.entries.is_empty())) {
            Some((true, _)) => Ok(true),
            Some((false, true)) => self.go_live().map(|()| false),
            _ => Err(self.diverged("release that is not closed")),
        }
    }

    /// A round of the tree; its result if the past has it. Otherwise the past is over, if there was
    /// any.
    pub(super) fn replay_round(&self, told: u64, round: u64) -> ProtectResult<Option<u64>> {
        if !self.has_past() {
            return Ok(None);
        }
        match self.next_entry() {
            Some(Entry::Round { round: noted, flags }) if noted == round => {
                let _step = within(Step::Replay);
                self.put_entries(Some(round))?;
                Ok(Some(flags))
            }
            // The vote of a save has its result in the past, or the generation is a later one.
            None if told & VOTE == 0 => self.go_live().map(|()| None),
            _ => Err(self.diverged("round")),
        }
    }

    /// Puts what other seats have put to this seat in epochs up to this round, or in all.
    fn put_entries(&self, until: Option<u64>) -> ProtectResult<()> {
        let is_due = |put: &LoggedPut| until.is_none_or(|round| put.epoch <= round);
        while let Some(put) =
            self.with_past(|past| past.puts.pop_front_if(|put| is_due(put))).flatten()
        {
            self.put_own(self.base + HIDDEN + put.offset, &put.bytes)?;
        }
        Ok(())
    }

    /// What comes before the first call of the closure: without entries there is no past.
    pub(super) fn begin_replay(&self) -> ProtectResult<()> {
        if self.period.run.options.is_broken("replay-all-puts") {
            self.put_entries(None)?;
        }
        match self.with_past(|past| past.entries.is_empty()) {
            Some(true) => self.go_live(),
            _ => Ok(()),
        }
    }

    /// `go_live`: the past is over. The memory gets all that other seats have put since, and the
    /// hidden words what the neighbours in the tree have told the dead holder.
    fn go_live(&self) -> ProtectResult<()> {
        let _step = within(Step::GoLive);
        self.put_entries(None)?;
        let broken = |mutant| self.period.run.options.is_broken(mutant);
        let word_of = |seat: usize, word: u64| -> ProtectResult<u64> {
            let mut bytes = [0; 8];
            self.fetch(seat, word, &mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        };
        let below = children(self.number, self.seats());
        let mut released = 0;
        if !broken("told-not-pulled") {
            for (index, child) in below.clone().enumerate() {
                let told = word_of(child, TOLD_UP)?;
                self.put_own(self.base + UP + index as u64 * 8, &told.to_le_bytes())?;
            }
            if let Some((above, _)) = parent(self.number) {
                released = word_of(above, TOLD_DOWN)?;
            }
        }
        if parent(self.number).is_none() && !broken("round-decided-anew") {
            // What the dead holder has decided, as far as any seat has seen it.
            for child in below {
                released = released.max(word_of(child, DOWN)?);
            }
        }
        self.put_own(self.base + DOWN, &released.to_le_bytes())?;
        let run = &self.period.run;
        run.patiently(|| run.put_seat_record(self.period.rollback, self.number, self.base))?;
        if let Some(logs) = &self.logs {
            logs.past.replace(None);
        }
        self.period.share(self.number, |shared| shared.is_live = true);
        let _ = run.job.ring(run.job.me());
        Ok(())
    }
}

//! Logged mode: what a seat logs so that its next holder can repeat what it did.
//!
//! The *journal* of a seat has its puts to other seats, in its own memory. The *record* of a seat
//! has what it was told, at its *witness*, the holder of the seat with the next number. A put waits
//! until the *release* with which the next barrier begins:
//!
//! | step | what it does | true after it |
//! |---|---|---|
//! | `record` | what was noted goes to the witness, and completes | what the puts depend on can be repeated |
//! | `journal` | the waiting puts are appended to the journal | each put that a target may have is in the journal |
//! | `send` | the puts go to their targets, and complete | the puts are at living targets |
//! | `close` | the number of the round goes to the witness, and completes | the puts are never sent again |
//! | `tell` | the word *told up* is put, then the word at the parent | others may pass the round |
//!
//! An operation on the memory of a dead holder is done again at the next holder. It waits there
//! until the members have agreed on it.
//!
//! Logs that are full, locks and operations on words end the logging of the seat until the next
//! save: it *marks* its interval at the witness first, and a death is a rollback then.

use super::ProtectResult;
use super::barrier::ROOM;
use super::late::Then;
use super::layout::{DOWN, HIDDEN, flags_of, journal_at, record_at};
use super::log::{self, CLOSED, Entry, GENERATION, HEAD, LENGTH, LoggedPut, MARK};
use super::replay::Past;
use super::seat::Seat;
use super::steps::{Step, within};
use crate::engine::deadline;
use crate::engine::{Done, Epoch, Error, MemberId, Operation, Pending};
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// How long a wait for an operation sleeps at most: the end of a period rings no bell.
const POLL: Duration = Duration::from_millis(5);

/// How many operations are under way at most.
const PENDING_MAX: usize = 256;

/// What a seat logs.
pub(super) struct Logs {
    /// The puts since the last release, in their order.
    waiting: RefCell<Vec<LoggedPut>>,
    /// How many bytes they have.
    waiting_len: Cell<u64>,
    /// What was noted since the last release.
    noted: RefCell<Vec<u8>>,
    /// How long the record and the journal are.
    record_len: Cell<u64>,
    journal_len: Cell<u64>,
    /// The round that is released and not closed, with the mutant that closes after `tell`.
    unclosed: Cell<u64>,
    /// What the next release journals, with the mutant that journals a round late.
    unjournaled: RefCell<Vec<u8>>,
    /// What the seat repeats, if a dead holder left it.
    pub(super) past: RefCell<Option<Past>>,
}

impl Logs {
    pub(super) fn new(past: Option<Past>) -> Logs {
        Logs {
            waiting: RefCell::default(),
            waiting_len: Cell::new(0),
            noted: RefCell::default(),
            record_len: Cell::new(0),
            journal_len: Cell::new(0),
            unclosed: Cell::new(0),
            unjournaled: RefCell::default(),
            past: RefCell::new(past),
        }
    }

    fn drop_waiting(&self) {
        self.waiting.borrow_mut().clear();
        self.waiting_len.set(0);
    }
}

/// How an operation on the memory of a seat ended.
enum Finished {
    Done(Done),
    /// The holder is dead.
    Dead,
}

impl Seat {
    pub(super) fn is_logging(&self) -> bool {
        self.period.shared(self.number).is_logging
    }

    fn is_broken(&self, mutant: &str) -> bool {
        self.period.run.options.is_broken(mutant)
    }

    /// The seat whose holder keeps the record of this seat.
    pub(super) fn witness(&self) -> usize {
        (self.number + 1) % self.seats()
    }

    /// Where the record of this seat begins in the memory of the witness.
    fn record_at(&self) -> u64 {
        record_at(self.bytes(), self.period.run.options.logs)
    }

    /// How long the entries of a log may be.
    fn capacity(&self) -> u64 {
        self.period.run.options.logs / 2 - HEAD
    }

    /// Whether the seat is in a save.
    pub(super) fn set_saving(&self, is_saving: bool) {
        if self.logs.is_some() {
            self.period.share(self.number, |shared| shared.is_saving = is_saving);
        }
    }

    /// Whether the logs of this seat have room; 0 asks seat 0 for a save.
    pub(super) fn room(&self) -> u64 {
        let Some(logs) = &self.logs else { return ROOM };
        let is_near = |len: &Cell<u64>| len.get() >= self.capacity() / 4 * 3;
        let asks = self.period.shared(self.number).asks_for_save;
        if asks || is_near(&logs.record_len) || is_near(&logs.journal_len) { 0 } else { ROOM }
    }

    // ---- Accesses.

    /// A put to another seat waits for the next release.
    pub(super) fn put_logged(
        &self,
        logs: &Logs,
        target: usize,
        offset: u64,
        data: &[u8],
    ) -> ProtectResult<()> {
        self.check()?;
        self.period.holder(target)?;
        self.check_range(target, offset, data.len())?;
        if self.is_broken("put-at-once") && !self.has_past() {
            self.perform(target, &[(HIDDEN + offset, data)])?;
        }
        let put = LoggedPut { epoch: 0, target, offset, bytes: data.to_vec() };
        logs.waiting.borrow_mut().push(put);
        logs.waiting_len.set(logs.waiting_len.get() + data.len() as u64);
        if logs.waiting_len.get() > self.capacity() && !self.has_past() {
            let _call = self.call();
            // The journal has no room for them, so they need not wait.
            self.outgrow(logs)?;
            self.send(logs)?;
        }
        Ok(())
    }

    /// A get from another seat sees the waiting puts of this seat, and is noted.
    pub(super) fn get_logged(
        &self,
        logs: &Logs,
        source: usize,
        offset: u64,
        buffer: &mut [u8],
    ) -> ProtectResult<()> {
        self.check()?;
        self.period.holder(source)?;
        self.check_range(source, offset, buffer.len())?;
        if self.has_past() {
            return self.replay_get(source, offset, buffer);
        }
        let _call = self.call();
        self.fetch(source, HIDDEN + offset, buffer)?;
        for put in logs.waiting.borrow().iter().filter(|put| put.target == source) {
            lay_over(buffer, offset, put);
        }
        if self.is_logging() {
            log::note_get(&mut logs.noted.borrow_mut(), source, offset, buffer);
            self.bound_notes(logs)?;
        }
        Ok(())
    }

    /// Bytes from outside are noted.
    pub(super) fn remember_logged(&self, look: impl FnOnce() -> Vec<u8>) -> ProtectResult<Vec<u8>> {
        let Some(logs) = &self.logs else { return Ok(look()) };
        if self.has_past() {
            return self.replay_remember();
        }
        let bytes = look();
        if self.is_logging() {
            log::note(&mut logs.noted.borrow_mut(), &Entry::Remember { bytes: bytes.clone() });
            self.bound_notes(logs)?;
        }
        Ok(bytes)
    }

    /// What waits for the next release takes no more memory than the record has.
    fn bound_notes(&self, logs: &Logs) -> ProtectResult<()> {
        let noted = logs.noted.borrow().len() as u64;
        if logs.record_len.get() + noted > self.capacity() { self.outgrow(logs) } else { Ok(()) }
    }

    /// Where no log covers the seat, a flush completes what waits.
    pub(super) fn flush_logged(&self) -> ProtectResult<()> {
        match &self.logs {
            Some(logs) if !self.has_past() && !self.is_logging() => self.send(logs),
            _ => Ok(()),
        }
    }

    /// The result of a round is noted. After a round that is no part of a save, the seat is in
    /// none: all seats have come to it, and so the results of the save before are in their records.
    pub(super) fn note_round(&self, round: u64, flags: u64) {
        let Some(logs) = &self.logs else { return };
        if self.is_logging() {
            log::note(&mut logs.noted.borrow_mut(), &Entry::Round { round, flags });
        }
        if !super::barrier::is_of_save(flags) {
            self.set_saving(false);
        }
    }

    // ---- The release.

    /// Makes the puts since the last barrier visible, and what they depend on repeatable.
    pub(super) fn release(&self) -> ProtectResult<()> {
        let Some(logs) = &self.logs else { return Ok(()) };
        let round = self.round.get() + 1;
        if self.has_past() && self.replay_release(round)? {
            logs.drop_waiting();
            return Ok(());
        }
        let mut entries = Vec::new();
        for put in logs.waiting.borrow_mut().iter_mut() {
            put.epoch = round;
            log::journal(&mut entries, put);
        }
        if self.is_logging() {
            log::note(&mut logs.noted.borrow_mut(), &Entry::Release { round });
            let noted = logs.noted.borrow().len() as u64;
            let longest =
                (logs.record_len.get() + noted).max(logs.journal_len.get() + entries.len() as u64);
            if longest > self.capacity() {
                match self.is_broken("budget-ignored") {
                    true => entries.clear(),
                    false => self.outgrow(logs)?,
                }
            }
        }
        if !self.is_logging() {
            return self.send(logs);
        }
        if self.is_broken("put-before-record") {
            self.send(logs)?;
        }
        self.append_record(logs)?;
        if self.is_broken("put-before-journal") {
            std::mem::swap(&mut entries, &mut logs.unjournaled.borrow_mut());
        }
        self.append_journal(logs, &entries)?;
        self.send(logs)?;
        match self.is_broken("close-after-tell") {
            true => logs.unclosed.set(round),
            false => self.close(round)?,
        }
        Ok(())
    }

    /// `record`: what was noted goes to the witness.
    fn append_record(&self, logs: &Logs) -> ProtectResult<()> {
        let _step = within(Step::Record);
        let noted = logs.noted.take();
        let (at, before) = (self.record_at(), logs.record_len.get());
        let after = before + noted.len() as u64;
        let length = after.to_le_bytes();
        self.perform(self.witness(), &[(at + HEAD + before, &noted), (at + LENGTH, &length)])?;
        logs.record_len.set(after);
        Ok(())
    }

    /// `journal`: the waiting puts are appended.
    fn append_journal(&self, logs: &Logs, entries: &[u8]) -> ProtectResult<()> {
        let _step = within(Step::Journal);
        if entries.is_empty() {
            return Ok(());
        }
        let (at, before) = (self.base + journal_at(self.bytes()), logs.journal_len.get());
        let after = before + entries.len() as u64;
        self.put_own(at + HEAD + before, entries)?;
        // A load of a word: the entries are there before their length.
        self.own_word(DOWN)?;
        self.put_own(at + LENGTH, &after.to_le_bytes())?;
        logs.journal_len.set(after);
        self.order_before_settle()
    }

    /// `send`: the waiting puts go to their targets.
    fn send(&self, logs: &Logs) -> ProtectResult<()> {
        let _step = within(Step::Send);
        let waiting = logs.waiting.borrow();
        let mut dead: Vec<usize> = Vec::new();
        for puts in waiting.chunks(PENDING_MAX) {
            let mut started = Vec::new();
            let mut result = Ok(());
            for put in puts.iter().filter(|put| !dead.contains(&put.target)) {
                match self.period.place(put.target) {
                    Ok((member, base)) => {
                        let offset = base + HIDDEN + put.offset;
                        let put_there = Operation::Put { offset, data: &put.bytes };
                        started.push((put.target, self.period.start(member, put_there)));
                    }
                    Err(error) => {
                        result = Err(error);
                        break;
                    }
                }
            }
            for (target, pending) in started {
                match self.finish(pending) {
                    Ok(Finished::Done(_)) => {}
                    Ok(Finished::Dead) if dead.contains(&target) => {}
                    Ok(Finished::Dead) => dead.push(target),
                    Err(error) => result = result.and(Err(error)),
                }
            }
            result?;
        }
        for target in dead {
            // All puts to it: those that were complete are lost with the dead, or are in the
            // journal. Done twice they change nothing.
            let puts = waiting.iter().filter(|put| put.target == target);
            let puts: Vec<(u64, &[u8])> =
                puts.map(|put| (HIDDEN + put.offset, &put.bytes[..])).collect();
            self.perform(target, &puts)?;
        }
        drop(waiting);
        logs.drop_waiting();
        Ok(())
    }

    /// `close`: the puts of the round are never sent again.
    fn close(&self, round: u64) -> ProtectResult<()> {
        let _step = within(Step::Close);
        let closed = round.to_le_bytes();
        self.perform(self.witness(), &[(self.record_at() + CLOSED, &closed)])
    }

    /// With a mutant: closes the round after the parent was told.
    pub(super) fn after_tell(&self) -> ProtectResult<()> {
        match &self.logs {
            Some(logs) if logs.unclosed.get() != 0 => self.close(logs.unclosed.take()),
            _ => Ok(()),
        }
    }

    /// `tell`: puts the own word, which a next holder of these seats looks up, and then theirs.
    pub(super) fn tell_logged(
        &self,
        seats: &[usize],
        word: u64,
        own: u64,
        value: u64,
    ) -> ProtectResult<()> {
        let _step = within(Step::Tell);
        let bytes = value.to_le_bytes();
        self.put_own(self.base + own, &bytes)?;
        // A load of a word: all earlier puts of this seat are seen before the puts below.
        self.own_word(own)?;
        self.order_before_settle()?;
        let mut started = Vec::new();
        let mut result = Ok(());
        for &seat in seats {
            match self.period.place(seat) {
                Ok((member, base)) => {
                    let put = Operation::Put { offset: base + word, data: &bytes };
                    started.push((seat, self.period.start(member, put)));
                }
                Err(error) => result = result.and(Err(error)),
            }
        }
        let mut dead = Vec::new();
        for (seat, pending) in started {
            let member = pending.target;
            match self.finish(pending) {
                Ok(Finished::Done(_)) => drop(self.period.run.job.ring(member)),
                Ok(Finished::Dead) => dead.push(seat),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result?;
        for seat in dead {
            self.perform(seat, &[(word, &bytes)])?;
            let _ = self.period.run.job.ring(self.period.holder(seat)?);
        }
        Ok(())
    }

    /// The flags of a round that was released before this seat was recovered.
    pub(super) fn released_before(&self, round: u64) -> ProtectResult<Option<u64>> {
        match &self.logs {
            None => Ok(None),
            Some(_) => Ok(flags_of(self.own_word(DOWN)?, self.period.rollback, round)),
        }
    }

    // ---- Intervals.

    /// What no log covers comes next: marks the interval, and sends what waits.
    pub(super) fn mark_interval(&self) -> ProtectResult<()> {
        let Some(logs) = &self.logs else { return Ok(()) };
        self.check()?;
        if self.has_past() {
            return Err(self.diverged("an operation that ends the logs"));
        }
        self.stop_logging(logs)?;
        if self.period.has_lost() {
            // The members may have agreed to recover the seat before this one was marked. A death
            // from here on finds the mark.
            self.period.await_all_holders(self.number)?;
        }
        self.send(logs)
    }

    /// The logs are full until the next save, for which the seat asks.
    fn outgrow(&self, logs: &Logs) -> ProtectResult<()> {
        if self.is_logging() && !self.is_broken("budget-ignored") {
            tracing::info!(seat = self.number, "the logs are full until the next save");
            self.stop_logging(logs)?;
            self.period.share(self.number, |shared| shared.asks_for_save = true);
        }
        Ok(())
    }

    /// The logs do not cover this interval from now on.
    fn stop_logging(&self, logs: &Logs) -> ProtectResult<()> {
        if !self.is_logging() {
            return Ok(());
        }
        let mark = 1u64.to_le_bytes();
        if !self.is_broken("agree-in-a-mark") {
            self.perform(self.witness(), &[(self.record_at() + MARK, &mark)])?;
            self.period.share(self.number, |shared| shared.is_logging = false);
        }
        logs.noted.borrow_mut().clear();
        Ok(())
    }

    /// A generation was saved: the logs begin anew, the record first.
    pub(super) fn begin_logs(&self, generation: u64) -> ProtectResult<()> {
        let Some(logs) = &self.logs else { return Ok(()) };
        let number = generation.to_le_bytes();
        let at = self.record_at();
        let empty: &[u8] = if self.is_broken("logs-kept") { &[] } else { &[0; 24] };
        // The length before the generation: entries never count for a generation that they are not
        // of.
        self.perform(self.witness(), &[(at + LENGTH, empty), (at + GENERATION, &number)])?;
        let at = self.base + journal_at(self.bytes());
        self.put_own(at + LENGTH, empty)?;
        self.own_word(DOWN)?;
        self.put_own(at + GENERATION, &number)?;
        if !self.is_broken("logs-kept") {
            logs.record_len.set(0);
            logs.journal_len.set(0);
        }
        logs.noted.borrow_mut().clear();
        self.period.share(self.number, |shared| {
            (shared.generation, shared.is_logging) = (generation, true);
            (shared.is_saving, shared.asks_for_save) = (false, false);
        });
        Ok(())
    }

    // ---- Operations that outlive the holder of their target.

    /// What this seat has put into its memory is there for all members before `settle` ends at this
    /// member, or the view has the death already.
    fn order_before_settle(&self) -> ProtectResult<()> {
        self.period.share(self.number, |_| ());
        Ok(())
    }

    pub(super) fn put_own(&self, offset: u64, bytes: &[u8]) -> ProtectResult<()> {
        let job = &self.period.run.job;
        Ok(job.put(Epoch::ANY, job.me(), offset, bytes)?)
    }

    /// Puts bytes at places of the memory of a seat, in this order. If the holder dies, all are put
    /// at the next holder.
    pub(super) fn perform(&self, seat: usize, puts: &[(u64, &[u8])]) -> ProtectResult<()> {
        loop {
            let (member, base) = self.period.place(seat)?;
            let mut is_dead = false;
            for puts in puts.chunks(PENDING_MAX) {
                let start = |(at, data): &(u64, &[u8])| {
                    let offset = base + *at;
                    self.period.start(member, Operation::Put { offset, data })
                };
                let started: Vec<Pending> = puts.iter().map(start).collect();
                let mut result = Ok(());
                for pending in started {
                    match self.finish(pending) {
                        Ok(Finished::Done(_)) => {}
                        Ok(Finished::Dead) => is_dead = true,
                        Err(error) => result = result.and(Err(error)),
                    }
                }
                result?;
            }
            if !is_dead {
                return Ok(());
            }
            self.period.await_holder(seat, member)?;
        }
    }

    /// Reads from the memory of a seat, at the next holder if the holder dies.
    pub(super) fn fetch(&self, seat: usize, at: u64, buffer: &mut [u8]) -> ProtectResult<()> {
        let job = &self.period.run.job;
        loop {
            let (member, base) = self.period.place(seat)?;
            let epoch = job.epoch();
            let get = Operation::Get { offset: base + at, len: buffer.len() };
            match self.finish(self.period.start(member, get))? {
                // The memory of a member that is dead by now may be given up already.
                Finished::Done(Done::Get(bytes))
                    if job.epoch() == epoch || job.view().is_living(member) =>
                {
                    buffer.copy_from_slice(&bytes);
                    return Ok(());
                }
                Finished::Done(_) | Finished::Dead => self.period.await_holder(seat, member)?,
            }
        }
    }

    /// Waits for an operation, as long as the patience with its target lasts. What is given up goes
    /// to `late`.
    fn finish(&self, mut pending: Pending) -> ProtectResult<Finished> {
        let job = &self.period.run.job;
        let limit = self.period.run.options.patience;
        let mut until = None;
        loop {
            let bell = job.bell();
            match job.poll(&mut pending) {
                Some(Ok(done)) => return Ok(Finished::Done(done)),
                Some(Err(Error::Dead { .. })) => return Ok(Finished::Dead),
                Some(Err(error)) => return Err(error.into()),
                None => {}
            }
            let now = job.now();
            let member: MemberId = pending.target;
            let until = *until.get_or_insert_with(|| deadline::until_answer(now, limit, member));
            let over = match self.period.check() {
                Err(over) => Some(over),
                Ok(()) if now >= until => Some(deadline::timeout(member, limit).into()),
                Ok(()) => None,
            };
            if let Some(error) = over {
                self.period.late.push(pending, Then::Nothing);
                return Err(error);
            }
            job.park(bell, until.min(now.after(POLL)));
        }
    }
}

/// Lays a put over bytes that were read from `offset` on.
fn lay_over(buffer: &mut [u8], offset: u64, put: &LoggedPut) {
    let end = offset + buffer.len() as u64;
    let put_end = put.offset + put.bytes.len() as u64;
    let (from, to) = (offset.max(put.offset), end.min(put_end));
    if from < to {
        let source = &put.bytes[(from - put.offset) as usize..(to - put.offset) as usize];
        buffer[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_get_sees_the_part_of_a_waiting_put_that_it_reads() {
        let put = |offset: u64, len: usize| LoggedPut {
            epoch: 0,
            target: 0,
            offset,
            bytes: (1..=len as u8).collect(),
        };
        let read = |put: &LoggedPut| {
            let mut buffer = [0; 4];
            lay_over(&mut buffer, 10, put);
            buffer
        };
        assert_eq!(read(&put(0, 10)), [0; 4]);
        assert_eq!(read(&put(14, 3)), [0; 4]);
        assert_eq!(read(&put(8, 4)), [3, 4, 0, 0]);
        assert_eq!(read(&put(12, 9)), [0, 0, 1, 2]);
        assert_eq!(read(&put(9, 9)), [2, 3, 4, 5]);
        assert_eq!(read(&put(11, 2)), [0, 1, 2, 0]);
    }
}

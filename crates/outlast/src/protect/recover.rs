//! Recovery: the next holder of a lost seat repeats what the dead holder did, and the other seats
//! notice nothing. Closures run in activities of their own, and the main activity of each member
//! waits for their ends and for deaths.
//!
//! | step | what it does | a death in it |
//! |---|---|---|
//! | `meet` | all members agree on the dead, or that all closures have ended. Closures go on; a call on the dead seat waits | as a death in `settle` |
//! | `settle` | each member serves the dead no more, and looks at its seats | `agree` finds it: falls back |
//! | `agree` | all agree that there is no further death, that a single seat is lost, and that the logs of all seats have all since the generation | falls back |
//! | `adopt` | the course gives the seat to its next holder, in the rollback of now | falls back, from the changed course |
//! | `load` | the next holder loads the generation, the record and the journals | falls back |
//! | `replay` | the next holder runs the closure, up to the end of the past | falls back |
//! | `resume` | all agree that the next holder is live, and enter it. Seats that are still of the recovered generation stop to log; logs begin anew with the next save | falls back |
//!
//! To *fall back* is the rollback of `rollback.rs`: the period ends at all members.

use super::course::Course;
use super::layout::{journal_at, record_at};
use super::log::{self, HEAD, Head};
use super::period::Period;
use super::replay::Past;
use super::rollback::Loaded;
use super::run::{Body, CALM, FINE, Met, Run, Running};
use super::steps::{Step, within};
use super::{ProtectError, ProtectResult};
use crate::engine::{Epoch, MemberId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// How often a member looks for deaths and for the end of a replay, if nothing rings.
const POLL: Duration = Duration::from_millis(5);

/// How many bytes of a log are read at once.
const CHUNK: usize = 1 << 20;

impl Run {
    /// Recovers the seat of these dead, if its logs allow it; returns whether it has its next
    /// holder. All members get an equal answer. An error means that this member leaves the run.
    pub(super) fn recover<T: Send + 'static>(
        self: &Arc<Run>,
        period: &Arc<Period>,
        met: &Met,
        running: &mut Running<T>,
        body: &Body<T>,
    ) -> ProtectResult<bool> {
        let dead = &met.dead;
        let mut is_fine = {
            let _step = within(Step::Settle);
            self.end_service(dead)?;
            self.may_recover(period, dead)?
        };
        if !self.agree(period, Step::AgreeAlone, is_fine, dead)? {
            return Ok(false);
        }
        let Some(seat) = lost(period, dead).first().copied() else { return Ok(false) };
        let mut adopted = None;
        match self.adopt(period, dead) {
            Ok(Some(course)) => {
                let holder = course.seats[seat].member;
                adopted = Some((course.generation, holder));
                if holder == self.job.me() {
                    is_fine = self.restore(period, &course, seat, dead, running, body);
                }
            }
            Ok(None) => is_fine = false,
            Err(error) => {
                tracing::warn!(%error, seat, "a seat is not recovered");
                is_fine = false;
            }
        }
        let is_resumed = self.agree(period, Step::Resume, is_fine, dead)?;
        let Some((generation, holder)) = adopted.filter(|_| is_resumed) else { return Ok(false) };
        if let Some(lag) = self.options.lag_of(self.job.me()) {
            self.job.sleep(lag);
        }
        for own in 0..period.seats() {
            // The logs of the lost seat are gone, and so no seat is recovered before the next save.
            // That save may have ended by now: the others have resumed, and this activity is late.
            // Then the logs of all seats have begun anew.
            period.share(own, |shared| {
                if shared.generation == generation {
                    (shared.is_logging, shared.asks_for_save) = (false, true);
                }
            });
        }
        if !self.options.is_broken("resume-without-entering") {
            period.enter(seat, holder);
        }
        let _ = self.job.ring(self.job.me());
        Ok(true)
    }

    /// An agreement of a recovery: whether all could do their part, and none has died since.
    fn agree(
        &self,
        period: &Period,
        step: Step,
        is_fine: bool,
        dead: &[MemberId],
    ) -> ProtectResult<bool> {
        let _step = within(step);
        let calm = if self.comm.is_revoked() { 0 } else { CALM };
        let fine = if is_fine && period.check().is_ok() { FINE } else { 0 };
        let until = self.job.now().after(self.options.patience);
        let met = self.meet(calm | fine, Some(until), None)?;
        Ok(met.flags & (CALM | FINE) == CALM | FINE && met.dead == dead)
    }

    /// Whether the logs of this member's seats, and the record that it keeps of the lost seat, are
    /// enough. No verdict comes from here on: it needs the vote of the lost seat, and if the dead
    /// holder has voted, seat 0 is in a save.
    fn may_recover(&self, period: &Period, dead: &[MemberId]) -> ProtectResult<bool> {
        let &[seat] = &lost(period, dead)[..] else { return Ok(false) };
        let witness = (seat + 1) % period.seats();
        let me = self.job.me();
        let mut is_fine = !dead.contains(&period.holder(witness)?);
        for own in 0..period.seats() {
            if period.holder(own)? != me {
                continue;
            }
            // The lock orders what the closure has put before the agreement below.
            let shared = period.shared(own);
            is_fine &= shared.is_logging && !shared.is_saving;
            if own == witness && is_fine {
                let head = self.head(me, period.place(own)?.1 + self.record_at())?;
                is_fine &= head.mark == 0 || head.generation != shared.generation;
            }
        }
        Ok(is_fine)
    }

    /// `adopt`: the next holder, as the course says.
    fn adopt(&self, period: &Period, dead: &[MemberId]) -> ProtectResult<Option<Course>> {
        let _step = within(Step::Adopt);
        let generation = self.patiently(|| Ok(self.course.read()?.0.generation))?;
        let next = |course: &Course| self.next_course(course, dead);
        self.patiently(|| self.course.adopt(period.rollback, generation, next))
    }

    /// `load` and `replay`: this member is the next holder. Returns whether the seat is live.
    fn restore<T: Send + 'static>(
        self: &Arc<Run>,
        period: &Arc<Period>,
        course: &Course,
        seat: usize,
        dead: &[MemberId],
        running: &mut Running<T>,
        body: &Body<T>,
    ) -> bool {
        let until = self.job.now().after(self.options.patience / 2);
        let loaded = {
            let _step = within(Step::LoadLogs);
            self.patiently(|| self.load_logs(period, course, seat))
        };
        let (own, past) = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                tracing::warn!(%error, seat, "the logs of a seat are not enough");
                return false;
            }
        };
        period.share(seat, |shared| {
            (shared.generation, shared.is_logging) = (course.generation, false);
        });
        self.start_seat(running, period, own, Some(past), body);
        let has_further_deaths = || {
            let view = self.job.view();
            let mut members = self.comm.members().iter();
            members.any(|member| !view.is_living(*member) && !dead.contains(member))
        };
        loop {
            let bell = self.job.bell();
            if period.shared(seat).is_live {
                return true;
            }
            let now = self.job.now();
            // The closure may wait for a further dead member: the agreement refuses it.
            let is_over = period.check().is_err() || now >= until || self.job.has_ended();
            if is_over || running.is_finished() || has_further_deaths() {
                return period.shared(seat).is_live;
            }
            self.job.park(bell, until.min(now.after(POLL)));
        }
    }

    /// Where the record of the seat before begins in the memory of a seat.
    fn record_at(&self) -> u64 {
        record_at(self.options.bytes, self.options.logs)
    }

    fn head(&self, member: MemberId, at: u64) -> ProtectResult<Head> {
        let mut bytes = [0; Head::LEN];
        self.job.get(Epoch::ANY, member, at, &mut bytes)?;
        Ok(Head::decode(&bytes))
    }

    /// The entries of a log.
    fn entries(&self, member: MemberId, at: u64, head: Head) -> ProtectResult<Vec<u8>> {
        if head.length > self.options.logs / 2 - HEAD {
            return Err(damaged("has another length than it may have"));
        }
        let mut bytes = vec![0; head.length as usize];
        for (index, part) in bytes.chunks_mut(CHUNK).enumerate() {
            let at = at + HEAD + (index * CHUNK) as u64;
            self.job.get(Epoch::ANY, member, at, part)?;
        }
        Ok(bytes)
    }

    /// `load`: the generation, the record of the dead holder, and what other seats have put to the
    /// seat since.
    fn load_logs(
        &self,
        period: &Period,
        course: &Course,
        seat: usize,
    ) -> ProtectResult<(Loaded, Past)> {
        let own = self.load_seat(course, seat)?;
        let mut past = Past {
            generation: course.generation,
            entries: VecDeque::new(),
            puts: VecDeque::new(),
            closed: 0,
        };
        let (witness, base) = period.place((seat + 1) % period.seats())?;
        let at = base + self.record_at();
        let head = self.head(witness, at)?;
        // Of another generation: the dead holder had not left its point.
        if head.generation == course.generation {
            let bytes = self.entries(witness, at, head)?;
            let entries = log::entries(&bytes).ok_or_else(|| damaged("is no record"))?;
            (past.entries, past.closed) = (entries.into(), head.closed);
        }
        let mut puts = Vec::new();
        for other in (0..period.seats()).filter(|other| *other != seat) {
            let (member, base) = period.place(other)?;
            let at = base + journal_at(self.options.bytes);
            let head = self.head(member, at)?;
            if head.generation != course.generation {
                return Err(damaged("is of another generation"));
            }
            let bytes = self.entries(member, at, head)?;
            let all = log::puts(&bytes).ok_or_else(|| damaged("is no journal"))?;
            let is_inside = |put: &log::LoggedPut| {
                let end = put.offset.checked_add(put.bytes.len() as u64);
                end.is_some_and(|end| end <= self.options.bytes)
            };
            puts.extend(all.into_iter().filter(|put| put.target == seat && is_inside(put)));
        }
        match self.options.is_broken("replay-unsorted") {
            true => puts.sort_by_key(|put| u64::MAX - put.epoch),
            // Stable: the puts of a seat in an epoch keep their order.
            false => puts.sort_by_key(|put| put.epoch),
        }
        if !self.options.is_broken("journal-left-out") {
            past.puts = puts.into();
        }
        Ok((own, past))
    }
}

/// The seats whose holders are among these dead.
pub(super) fn lost(period: &Period, dead: &[MemberId]) -> Vec<usize> {
    let held = period.holders().enumerate();
    held.filter(|(_, holder)| dead.contains(holder)).map(|(seat, _)| seat).collect()
}

fn damaged(what: &str) -> ProtectError {
    ProtectError::Invalid { reason: format!("a log of a seat {what}") }
}

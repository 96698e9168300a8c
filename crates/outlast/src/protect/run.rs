//! Running the seats of a member: closures, their ends, and what all members agree on.
//!
//! All members, spares included, meet in agreements, in a fixed order: a first agreement says that
//! all closures have ended or that a rollback begins, a second ends each rollback. A member without
//! a seat waits in the first. In logged mode a recovery has two further agreements in between.

use super::course::{Course, CourseRecord, Fault};
use super::layout::{LOCK, slot_len};
use super::period::Period;
use super::recover;
use super::replay::Past;
use super::rollback::Loaded;
use super::seat::Seat;
use super::steps::{Step, within};
use super::{Protect, ProtectError, ProtectResult};
use crate::engine::deadline::Deadline;
use crate::engine::{Activity, MemberId, Time};
use crate::image::Images;
use crate::job::Job;
use crate::rma::{self, Communicator};
use crate::store::Store;
use crate::sync::lock;
use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a member keeps for the whole run.
pub(super) struct Run {
    pub(super) job: Job,
    pub(super) store: Store,
    pub(super) images: Images,
    /// All members that take part. It is revoked when a seat has failed.
    pub(super) comm: Communicator,
    pub(super) options: Protect,
    pub(super) course: CourseRecord,
    pub(super) seats: usize,
    /// The memory that this member has reserved for seats, and which seat is there.
    pub(super) slots: Mutex<Vec<Slot>>,
}

/// Memory for a seat in the own segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) offset: u64,
    pub(super) seat: Option<usize>,
}

/// How the part of a member ends: as at all members, or by an error of its own.
pub(super) enum End<T> {
    Together(T),
    Alone(ProtectError),
}

/// What an agreement said.
pub(super) struct Met {
    pub(super) flags: u64,
    pub(super) dead: Vec<MemberId>,
}

/// This member has not heard of a member that failed or gave up.
pub(super) const CALM: u64 = 4;
/// All closures of this member have ended.
const ENDED: u64 = 1;
/// This member could do its part.
pub(super) const FINE: u64 = 2;

/// How a closure ended.
enum Outcome<T> {
    Ended(T),
    /// The period is over, whatever the closure returned.
    Stopped,
    Failed(String),
    Panicked(Box<dyn Any + Send>),
}

/// How the closures of a member ended, by their seats.
type Outcomes<T> = Vec<(usize, Outcome<T>)>;

/// The closure of a seat; its errors are texts.
pub(super) type Body<T> = Arc<dyn Fn(&Seat) -> Result<T, String> + Send + Sync>;

/// The closures of the seats of a member, each in an activity of its own.
pub(super) struct Running<T> {
    outcomes: Arc<Mutex<Outcomes<T>>>,
    activities: Vec<Activity>,
}

/// How often a member looks for deaths and for the ends of closures, if nothing rings.
const POLL: Duration = Duration::from_millis(50);

impl<T> Running<T> {
    fn new() -> Running<T> {
        Running { outcomes: Arc::default(), activities: Vec::new() }
    }

    /// Whether all closures have ended.
    pub(super) fn is_finished(&self) -> bool {
        self.activities.iter().all(Activity::is_finished)
    }

    /// Waits for all closures. A closure that computes is waited for; all waits in it end by
    /// themselves.
    fn join(self, job: &Job) -> Outcomes<T> {
        for activity in &self.activities {
            while !job.wait_for(activity, Time::NEVER) && !job.has_ended() {}
        }
        let mut outcomes = std::mem::take(&mut *lock(&self.outcomes));
        outcomes.sort_unstable_by_key(|(seat, _)| *seat);
        outcomes
    }
}

/// Protects a program: every member calls it with equal options, and `body` is called once for each
/// seat, by the member that holds it. There are as many seats as the job has regular members;
/// spares wait in the call for a seat. Returns the results of the seats that ended at this member,
/// with their numbers, when the closures of all seats have ended.
///
/// When the holder of a seat dies, all seats go back to the last point that all have saved, or to
/// the beginning. Calls then return [`ProtectError::RolledBack`], which the closure hands on, and
/// the closure is called again, with the note of that point. A spare takes the seat of the dead, or
/// a member beside its own seat, in an activity of its own.
///
/// Between points the state of a closure is the memory of its seat, its note, and what it computes
/// from them. What it changes elsewhere is changed again when it runs again. The store is in
/// localized mode.
///
/// # Errors
///
/// [`ProtectError::SeatFailed`] at all members if a closure returns an error of its own or panics
/// (at its member the panic goes on), or if its holders die too often. [`ProtectError::SeatLost`]
/// at all members if more members died at once than may be lost. [`ProtectError::Invalid`] at all
/// members if the options are wrong or differ.
pub fn run<T, E, F>(store: &Store, options: Protect, body: F) -> ProtectResult<Vec<(usize, T)>>
where
    T: Send + 'static,
    E: Display,
    F: Fn(&Seat) -> Result<T, E> + Send + Sync + 'static,
{
    let (run, dead) = Run::open(store, options)?;
    let mut panic = None;
    let end = run.go(&Arc::new(body), dead, &mut panic);
    let result = match end {
        End::Together(result) => {
            // The results are there, however long another member takes to close.
            if let Err(error) = run.close() {
                tracing::warn!(%error, "the memory of seats is not given back");
            }
            result
        }
        End::Alone(error) => {
            run.give_up(&error);
            run.images.abandon();
            Err(error)
        }
    };
    match panic {
        Some(payload) => resume_unwind(payload),
        None => result,
    }
}

/// The error of a run that a closure or a member has ended.
fn why_failed(course: Course) -> ProtectError {
    let reason = "a member gave up, and could not say why".to_string();
    course.fault.map_or(ProtectError::Invalid { reason }, ProtectError::from)
}

impl Run {
    /// Opens a run with all living members; returns the dead among its members.
    fn open(store: &Store, options: Protect) -> ProtectResult<(Arc<Run>, Vec<MemberId>)> {
        let job = store.job().clone();
        let _call = Deadline::call(|| store.job().now());
        let images = Images::open(store, "seats", options.images())?;
        let comm = match images.communicator().shrink() {
            Ok(comm) => comm,
            Err(error) => {
                images.close_in_background();
                return Err(error.into());
            }
        };
        let seats = job.view().regulars;
        let key = [images.prefix(), b"c"].concat();
        let mut fault = options.fault().map(|reason| ProtectError::Invalid { reason });
        let mut slots = Vec::new();
        for _ in 0..if fault.is_none() { 1 + options.room } else { 0 } {
            match job.reserve(slot_len(options.bytes, options.logs)) {
                Ok(offset) => slots.push(Slot { offset, seat: None }),
                Err(error) => fault = fault.or(Some(error.into())),
            }
        }
        let run = Arc::new(Run {
            job,
            store: store.clone(),
            images,
            comm,
            course: CourseRecord::new(store, key, seats),
            seats,
            slots: Mutex::new(slots),
            options,
        });
        // Equal options have equal bits, and so have their complements.
        let mask = (1 << 29) - 1;
        let told = format!("{:?}", run.options);
        let hash = twox_hash::XxHash3_64::oneshot(told.as_bytes()) & mask;
        let fine = if fault.is_none() { FINE } else { 0 };
        let until = run.job.deadline();
        let met = run.meet(fine | (hash << 2) | ((!hash & mask) << 31), Some(until), None);
        let met = match met {
            Ok(met) => met,
            Err(error) => {
                run.give_up(&error);
                // No member has been told where the memory of this member's seats is.
                run.release_slots();
                run.images.clone().close_in_background();
                return Err(error);
            }
        };
        let is_equal = (met.flags >> 2) & mask == hash && (met.flags >> 31) & mask == !hash & mask;
        let fault = fault.or_else(|| {
            let reason = match () {
                () if !is_equal => "members have other options; all have to give equal ones",
                () if met.flags & FINE == 0 => {
                    "a member has no memory for its seats; see its error"
                }
                () => return None,
            };
            Some(ProtectError::Invalid { reason: reason.to_string() })
        });
        match fault {
            None => Ok((run, met.dead)),
            Some(fault) => {
                run.close()?;
                Err(fault)
            }
        }
    }

    /// Ends the run at all members.
    fn close(&self) -> ProtectResult<()> {
        let _call = Deadline::call(|| self.job.now());
        let closed = self.images.close();
        let _ = self.comm.free();
        if closed.is_err() {
            // The run is over, and its images are of no use: they do not keep members from leaving.
            self.images.abandon();
        }
        closed?;
        // A dead member may be in the middle of a put into the memory of a seat.
        if !self.images.serves_no_dead() {
            return Ok(());
        }
        self.release_slots();
        Ok(())
    }

    /// Gives the memory of seats back.
    fn release_slots(&self) {
        for slot in lock(&self.slots).drain(..) {
            self.job.release(slot.offset, slot_len(self.options.bytes, self.options.logs));
        }
    }

    /// The key of the record of a seat.
    pub(super) fn seat_key(&self, seat: usize) -> Vec<u8> {
        [self.images.prefix(), format!("s/{seat}").as_bytes()].concat()
    }

    /// The name of the image of a seat.
    pub(super) fn image_name(&self, seat: usize) -> String {
        format!("seat {seat}")
    }

    /// The members that take part and are not among these dead, in ascending order.
    pub(super) fn living(&self, dead: &[MemberId]) -> Vec<MemberId> {
        let mut living = self.comm.members().to_vec();
        living.retain(|member| !dead.contains(member));
        living.sort_unstable_by_key(|member| member.0);
        living
    }

    /// An agreement of all members. It waits until the given time; without one, for all closures,
    /// and from the end of the period on as long as the patience lasts. If the run has failed, it
    /// waits for the time limit of the job at most, and returns the fault.
    pub(super) fn meet(
        &self,
        flags: u64,
        mut until: Option<Time>,
        period: Option<&Period>,
    ) -> ProtectResult<Met> {
        loop {
            self.comm.failure_ack()?;
            match self.comm.agree_despite_failures(flags) {
                Ok(agreed) => {
                    let member = |rank: &usize| self.comm.members()[*rank];
                    let dead = agreed.failed.iter().map(member).collect();
                    return Ok(Met { flags: agreed.flags, dead });
                }
                Err(rma::Error::Timeout { rank, member, limit }) => {
                    // The run has failed, and a member that gave up takes part in no agreement.
                    if self.comm.is_revoked()
                        && let Ok((course, _)) = self.course.read()
                    {
                        return Err(why_failed(course));
                    }
                    let is_over = |period: &Period| period.check().is_err() || period.has_lost();
                    if until.is_none() && period.is_none_or(is_over) {
                        until = Some(self.job.now().after(self.options.patience));
                    }
                    if until.is_some_and(|until| self.job.now() >= until) {
                        return Err(rma::Error::Timeout { rank, member, limit }.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Runs the seats of this member until all closures of the job have ended, or the run has.
    fn go<T, E, F>(
        self: &Arc<Run>,
        body: &Arc<F>,
        mut dead: Vec<MemberId>,
        panic: &mut Option<Box<dyn Any + Send>>,
    ) -> End<ProtectResult<Vec<(usize, T)>>>
    where
        T: Send + 'static,
        E: Display,
        F: Fn(&Seat) -> Result<T, E> + Send + Sync + 'static,
    {
        let mut before: Option<Arc<Period>> = None;
        loop {
            let (period, loaded) = match self.roll_back(before.take(), dead) {
                Ok(begun) => begun,
                Err(End::Together(error)) => return End::Together(Err(error)),
                Err(End::Alone(error)) => return End::Alone(error),
            };
            let ended = match period.is_logged() {
                false => {
                    let outcomes = self.run_seats(&period, loaded, body);
                    self.stop(&period, &outcomes).map(|met| (outcomes, met))
                }
                true => self.run_logged(&period, loaded, body),
            };
            let (outcomes, met) = match ended {
                Ok(ended) => ended,
                Err(error) => return End::Alone(error),
            };
            dead = met.dead;
            let is_over = period.holders().all(|holder| !dead.contains(&holder));
            let mut values = Vec::new();
            for (seat, outcome) in outcomes {
                match outcome {
                    Outcome::Ended(value) => values.push((seat, value)),
                    Outcome::Panicked(payload) => *panic = panic.take().or(Some(payload)),
                    Outcome::Stopped | Outcome::Failed(_) => {}
                }
            }
            if met.flags & ENDED != 0 && is_over {
                return End::Together(Ok(values));
            }
            if met.flags & CALM == 0 {
                return match self.course.read() {
                    Ok((course, _)) => End::Together(Err(why_failed(course))),
                    Err(error) => End::Alone(error),
                };
            }
            before = Some(period);
        }
    }

    /// `stop`: no operation of this member is under way any more. Then all members agree that all
    /// have ended, or on the dead.
    fn stop<T>(&self, period: &Period, outcomes: &[(usize, Outcome<T>)]) -> ProtectResult<Met> {
        {
            let _step = within(Step::Stop);
            period.finish_late()?;
        }
        for (seat, outcome) in outcomes {
            self.tell_failure(period, *seat, outcome)?;
        }
        let is_ended = |(_, outcome): &(usize, Outcome<T>)| matches!(outcome, Outcome::Ended(_));
        let has_ended = outcomes.iter().all(is_ended) && period.check().is_ok();
        let _step = within(Step::Agree);
        let calm = if self.comm.is_revoked() { 0 } else { CALM };
        self.meet(calm | if has_ended { ENDED } else { 0 }, None, Some(period))
    }

    /// Tells all seats that wait or call that a closure has failed. Other seats of this member may
    /// wait for it, so it is told as soon as the closure has ended.
    fn tell_failure<T>(
        &self,
        period: &Period,
        seat: usize,
        outcome: &Outcome<T>,
    ) -> ProtectResult<()> {
        let reason = match outcome {
            Outcome::Failed(reason) => reason.clone(),
            Outcome::Panicked(payload) => text_of(payload.as_ref()),
            Outcome::Ended(_) | Outcome::Stopped => return Ok(()),
        };
        self.course.fail(Some(period.rollback), &Fault::Failed { seat, reason })?;
        let _ = self.comm.revoke();
        Ok(())
    }

    /// This member leaves the run by an error of its own. The others are told: they cannot go on
    /// without it, and would wait for it as long as it stays in the job.
    fn give_up(&self, error: &ProtectError) {
        let me = self.job.me();
        let seat = lock(&self.slots).iter().find_map(|slot| slot.seat).unwrap_or(0);
        let reason = format!("{me} gave up: {error}");
        if let Err(error) = self.course.fail(None, &Fault::Failed { seat, reason }) {
            tracing::warn!(%error, "the other members are not told why this member gave up");
        }
        let _ = self.comm.revoke();
    }

    /// Calls the closures of the seats of this member: the first here, the others in activities of
    /// their own.
    fn run_seats<T, E, F>(
        self: &Arc<Run>,
        period: &Arc<Period>,
        loaded: Vec<Loaded>,
        body: &Arc<F>,
    ) -> Outcomes<T>
    where
        T: Send + 'static,
        E: Display,
        F: Fn(&Seat) -> Result<T, E> + Send + Sync + 'static,
    {
        let mut loaded = loaded.into_iter();
        let Some(first) = loaded.next() else { return Vec::new() };
        let outcomes: Arc<Mutex<Outcomes<T>>> = Arc::default();
        let mut activities = Vec::new();
        for own in loaded {
            let (period, body, outcomes) = (period.clone(), body.clone(), outcomes.clone());
            let number = own.seat;
            let call = {
                let outcomes = outcomes.clone();
                move || {
                    let outcome = call(&period, own, None, &*body);
                    // A fault that cannot be put is put again in `stop`.
                    let _ = period.run.tell_failure(&period, number, &outcome);
                    lock(&outcomes).push((number, outcome));
                }
            };
            match self.job.spawn(&format!("outlast-seat-{number}"), Box::new(call)) {
                Ok(activity) => activities.push(activity),
                Err(error) => {
                    lock(&outcomes).push((number, Outcome::Failed(error.to_string())));
                }
            }
        }
        let own = first.seat;
        let outcome = call(period, first, None, &**body);
        let _ = self.tell_failure(period, own, &outcome);
        lock(&outcomes).push((own, outcome));
        for activity in &activities {
            // A closure that computes is waited for. All waits in it end by themselves.
            while !self.job.wait_for(activity, Time::NEVER) && !self.job.has_ended() {}
        }
        let mut outcomes = std::mem::take(&mut *lock(&outcomes));
        outcomes.sort_unstable_by_key(|(seat, _)| *seat);
        outcomes
    }

    /// Runs the seats of this member in logged mode, with recoveries, until all closures of the job
    /// have ended or a rollback begins.
    fn run_logged<T, E, F>(
        self: &Arc<Run>,
        period: &Arc<Period>,
        loaded: Vec<Loaded>,
        body: &Arc<F>,
    ) -> ProtectResult<(Outcomes<T>, Met)>
    where
        T: Send + 'static,
        E: Display,
        F: Fn(&Seat) -> Result<T, E> + Send + Sync + 'static,
    {
        let body = body.clone();
        let body: Body<T> = Arc::new(move |seat| body(seat).map_err(|error| error.to_string()));
        let mut running = Running::new();
        for own in loaded {
            self.start_seat(&mut running, period, own, None, &body);
        }
        let ended = self.meet_until_over(period, &mut running, &body);
        if !matches!(ended, Ok(Some(_))) {
            period.end();
            let _ = self.job.ring(self.job.me());
        }
        let outcomes = running.join(&self.job);
        let met = match ended? {
            Some(met) => met,
            None => self.stop(period, &outcomes)?,
        };
        Ok((outcomes, met))
    }

    /// Meets the other members until all closures of the job have ended; `None` if a rollback
    /// begins.
    fn meet_until_over<T: Send + 'static>(
        self: &Arc<Run>,
        period: &Arc<Period>,
        running: &mut Running<T>,
        body: &Body<T>,
    ) -> ProtectResult<Option<Met>> {
        loop {
            self.await_news(period, running)?;
            let is_ended =
                |(_, outcome): &(usize, Outcome<T>)| matches!(outcome, Outcome::Ended(_));
            let mut flags = if self.comm.is_revoked() { 0 } else { CALM };
            let met = {
                let _step = within(Step::Meet);
                if running.is_finished() {
                    period.finish_late()?;
                    let have_ended = lock(&running.outcomes).iter().all(is_ended);
                    flags |= if have_ended && period.check().is_ok() { ENDED } else { 0 };
                }
                self.meet(flags, None, Some(period))?
            };
            let is_lost = !recover::lost(period, &met.dead).is_empty();
            if met.flags & CALM == 0 {
                return Ok(None);
            }
            match (met.flags & ENDED != 0, is_lost) {
                (true, false) => return Ok(Some(met)),
                (_, true) if self.recover(period, &met, running, body)? => {}
                _ => return Ok(None),
            }
        }
    }

    /// Waits until all closures of this member have ended, the holder of a seat has died, or the
    /// period is over.
    fn await_news<T>(&self, period: &Period, running: &Running<T>) -> ProtectResult<()> {
        // No view has this epoch.
        let mut looked_at = u64::MAX;
        loop {
            let bell = self.job.bell();
            // Each word that a seat is told rings: the view is looked at when it has changed.
            let epoch = self.job.epoch().0;
            let is_lost = epoch != looked_at && period.has_lost();
            looked_at = epoch;
            if is_lost || running.is_finished() || period.check().is_err() {
                return Ok(());
            }
            if self.job.has_ended() {
                return Err(ProtectError::Closed);
            }
            self.job.park(bell, self.job.now().after(POLL));
        }
    }

    /// Calls the closure of a seat in an activity of its own.
    pub(super) fn start_seat<T: Send + 'static>(
        &self,
        running: &mut Running<T>,
        period: &Arc<Period>,
        own: Loaded,
        past: Option<Past>,
        body: &Body<T>,
    ) {
        let seat = own.seat;
        let name = format!("outlast-seat-{seat}");
        let (period, body, outcomes) = (period.clone(), body.clone(), running.outcomes.clone());
        let call = move || {
            let outcome = call(&period, own, past, &*body);
            // A fault that cannot be put is put again in `stop`.
            let _ = period.run.tell_failure(&period, seat, &outcome);
            lock(&outcomes).push((seat, outcome));
        };
        match self.job.spawn(&name, Box::new(call)) {
            Ok(activity) => running.activities.push(activity),
            Err(error) => {
                lock(&running.outcomes).push((seat, Outcome::Failed(error.to_string())));
            }
        }
    }
}

/// Calls the closure of a seat.
fn call<T, E, F>(period: &Arc<Period>, own: Loaded, past: Option<Past>, body: &F) -> Outcome<T>
where
    E: Display,
    F: Fn(&Seat) -> Result<T, E> + ?Sized,
{
    let seat = Seat::new(period, own.seat, own.offset, own.note, past);
    if let Err(error) = seat.begin_replay() {
        // The others wait for this seat, which will not come.
        tracing::warn!(%error, seat = seat.number, "a seat cannot be recovered");
        period.end();
        let _ = period.run.job.ring(period.run.job.me());
        return Outcome::Stopped;
    }
    let result = catch_unwind(AssertUnwindSafe(|| body(&seat)));
    // The dead holder has made further calls.
    if seat.has_past() && !period.run.job.has_ended() {
        let _ = seat.diverged("the end of the closure");
        return Outcome::Stopped;
    }
    // Under the simulator a member that has ended is unwound.
    if period.run.job.has_ended() {
        return match result {
            Err(payload) => resume_unwind(payload),
            Ok(_) => Outcome::Stopped,
        };
    }
    let _step = within(Step::Stop);
    // A load of a word: all puts of this activity are seen before what follows.
    let ordered = seat.own_word(LOCK);
    let is_over = ordered.is_err() || period.check().is_err();
    match result {
        _ if is_over => Outcome::Stopped,
        Err(payload) => Outcome::Panicked(payload),
        Ok(Err(error)) => Outcome::Failed(error.to_string()),
        Ok(Ok(_)) if seat.is_out_of_step.get() => {
            Outcome::Failed(ProtectError::OutOfStep.to_string())
        }
        Ok(Ok(value)) => match seat.flush_all() {
            Ok(()) => Outcome::Ended(value),
            Err(_) if period.check().is_err() => Outcome::Stopped,
            Err(error) => Outcome::Failed(error.to_string()),
        },
    }
}

fn text_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| text.to_string());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    format!("its closure panicked: {}", text.unwrap_or_else(|| "no message".to_string()))
}

impl Run {
    /// The next course, as all members compute it.
    pub(super) fn next_course(&self, course: &Course, dead: &[MemberId]) -> Course {
        let Protect { room, give_up, .. } = self.options;
        course.assign(&self.living(dead), self.seats, room, give_up)
    }
}

//! Leaving: a leaver hands over its replicas before its membership ends.
//!
//! A leaver remains a replica, and may remain the primary, of the partitions that it holds, but
//! does not count among the R replicas. Placement gives these partitions an additional replica,
//! which is filled like any new replica. The background takes *announce*, *pass_on*, *acknowledge*
//! and *hand_over*. The call [`RecoveryState::hand_replicas_over`] takes *wait*. Members leave in
//! sequence: `api::leave` takes a lock in each store of the job before *announce*, and takes *end*.
//!
//! Orderings: [`RecoveryState::record_leaver`] raises `Leavers::version` and forgets the
//! configurations with the old lists, all SeqCst and before it loads the operation counters. In a
//! single total order an operation either makes its counter odd before that load, and is waited
//! for, or begins later and computes the new lists. The fence keeps the load of the view for the
//! new lists behind the new version. `is_closed` is stored SeqCst before the gate is closed for
//! ever, so a call that the gate turns away finds the store closed.
#![cfg_attr(outlast_pages, doc = include_str!("../../../../../docs/protocol/leaving.md"))]

use crate::engine::deadline::background_wait;
use crate::engine::{MemberId, Time};
use crate::store::error::{StoreError, StoreResult};
use crate::store::operation::error::{OpError, engine_error};
use crate::store::operation::leavers::PassOn;
use crate::store::operation::message::Message;
use crate::store::operation::quiescence::Quiescence;
use crate::store::recovery::state::RecoveryState;
use crate::store::segment::head::Phase;
use crate::sync::lock;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// The first pause between two looks whether operations have ended or replicas are complete.
const LEAVE_PAUSE: Duration = Duration::from_millis(1);

/// The longest pause between two looks. Pauses double up to this.
const LEAVE_PAUSE_MAX: Duration = Duration::from_millis(50);

/// How often a leaver repeats its message to members that have not answered, and how long another
/// member waits at most for a leaver to tell all members.
const REMIND: Duration = Duration::from_secs(1);

impl RecoveryState {
    /// Lets the background announce and hand over, and waits until the replicas that stay are
    /// complete. The membership can end then.
    pub(in crate::store) fn hand_replicas_over(&self, deadline: Time) -> StoreResult<()> {
        let (job, me) = (&self.job, self.me());
        if self.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let began = job.now();
        let mut pause = LEAVE_PAUSE;
        lock(&self.leavers.own).is_leaving = true;
        // The background takes *announce*, *acknowledge* and *hand_over*.
        job.ring(me).map_err(engine_error)?;
        loop {
            let bell = job.bell();
            let is_handing = lock(&self.leavers.own).is_handing;
            let in_the_way = match is_handing {
                false => self.not_acknowledged(),
                true => match self.incomplete_replica() {
                    // A replica is stopped, or a partition is being salvaged.
                    Err(StoreError::Timeout { member, .. }) => Some(member),
                    other => other?,
                },
            };
            if is_handing && in_the_way.is_none() {
                return Ok(());
            }
            if job.has_ended() {
                return Err(StoreError::Closed);
            }
            let now = job.now();
            if now >= deadline {
                let member = in_the_way.unwrap_or(me);
                return Err(StoreError::Timeout { member, limit: now.since(began) });
            }
            job.park(bell, deadline.min(now.after(pause)));
            pause = (pause * 2).min(LEAVE_PAUSE_MAX);
        }
    }

    /// A living member that has not acknowledged this leaver yet.
    fn not_acknowledged(&self) -> Option<MemberId> {
        let acknowledged = lock(&self.leavers.own).acknowledged.clone();
        self.job.view().living().find(|&member| !acknowledged.contains(member))
    }

    /// *wait*: a replica that stays and is not complete, in a partition that this member holds.
    pub(in crate::store::recovery) fn incomplete_replica(&self) -> StoreResult<Option<MemberId>> {
        let leaving = self.leavers.members();
        for partition in 0..self.placement.partitions {
            let incomplete = self.run(|op| {
                let config = op.config(partition)?;
                let mut incomplete = None;
                if config.replicas.contains(&self.me()) {
                    for &replica in
                        config.replicas.iter().filter(|&&replica| !leaving.contains(replica))
                    {
                        if op.state(replica, partition)?.phase() != Phase::Complete {
                            incomplete = Some(replica);
                        }
                    }
                }
                if op.is_current() { Ok(incomplete) } else { Err(OpError::Again) }
            });
            match incomplete {
                Ok(None) | Err(StoreError::DataLost { .. }) => {}
                other => return other,
            }
        }
        Ok(None)
    }

    /// *acknowledge*: records a leaver. The answer follows when the operations of this member that
    /// began before have ended.
    pub(in crate::store) fn record_leaver(&self, member: MemberId) {
        let is_new = {
            let mut members = lock(&self.leavers.members);
            let is_new = members.insert(member);
            self.leavers.version.fetch_add(u64::from(is_new), Ordering::SeqCst);
            is_new
        };
        if is_new {
            tracing::info!(member = member.0, "a member is leaving");
            fence(Ordering::SeqCst);
            // An operation that begins from here on computes the replicas again.
            let view = self.job.view();
            for (number, partition) in self.partitions.iter().enumerate() {
                if let Some(first) = partition.first.get() {
                    first.forget_all_unless(&self.replicas(number, &view));
                }
            }
            if member != self.me() {
                let due = self.job.now().after(self.pass_on_wait());
                let told = [self.me(), member].into_iter().collect();
                lock(&self.leavers.to_pass_on).push(PassOn { leaver: member, due, told });
            }
        }
        // A load of the own segment fails only when this member has ended. Then there is no
        // operation to wait for.
        let in_flight = Quiescence::begin(self).unwrap_or_default();
        let now = self.job.now();
        let mut due = lock(&self.leavers.due);
        // An answer that is due already answers a repeated announcement, too.
        if due.iter().all(|&(leaver, ..)| leaver != member) {
            due.push((member, in_flight, now));
        }
        drop(due);
        let _ = self.job.ring(self.me());
    }

    /// *pass_on*, at the receiver: records a leaver of which another member has told this member.
    pub(in crate::store) fn hear_of_leaver(&self, from: MemberId, leaver: u64) {
        let view = self.job.view();
        let living = view.living().find(|&member| u64::from(member.0) == leaver);
        let Some(leaver) = living.filter(|&leaver| leaver != self.me()) else { return };
        if !self.leavers.members().contains(leaver) {
            self.record_leaver(leaver);
        }
        for known in lock(&self.leavers.to_pass_on).iter_mut() {
            if known.leaver == leaver {
                known.told.insert(from);
            }
        }
    }

    /// How long this member gives a leaver to tell all members, before it tells them itself.
    fn pass_on_wait(&self) -> Duration {
        background_wait(self.job.time_limit()).min(REMIND)
    }

    /// *pass_on*: tells the other members of leavers that may be stopped in *announce*. Returns
    /// when to run again.
    fn pass_on_leavers(&self) -> Time {
        let mut known = std::mem::take(&mut *lock(&self.leavers.to_pass_on));
        if known.is_empty() {
            return Time::NEVER;
        }
        let (now, view) = (self.job.now(), self.job.view());
        let handed = lock(&self.leavers.handed).clone();
        // If all members have acknowledged the leaver, or know of its death, all of them know.
        known.retain(|known| view.is_living(known.leaver) && !handed.contains(known.leaver));
        for PassOn { leaver, due, told } in known.iter_mut().filter(|known| known.due <= now) {
            let note = Message::Leaver { member: u64::from(leaver.0) };
            for member in view.living() {
                // A member without room for the message is told later. A sender must not wait for
                // it here, since it may be stopped.
                if !told.contains(member) && self.try_send(member, &note) == Ok(true) {
                    told.insert(member);
                }
            }
            *due = now.after(self.pass_on_wait());
        }
        known.retain(|known| !view.living().all(|member| known.told.contains(member)));
        let due = known.iter().map(|known| known.due).min().unwrap_or(Time::NEVER);
        lock(&self.leavers.to_pass_on).extend(known);
        due
    }

    /// Records that a member has acknowledged this leaver.
    pub(in crate::store) fn record_acknowledgement(&self, from: MemberId) {
        lock(&self.leavers.own).acknowledged.insert(from);
        let _ = self.job.ring(self.me());
    }

    /// *hand_over*: records that all members have acknowledged a leaver. Its new replicas may fill
    /// from now on.
    pub(in crate::store) fn hand_over(&self, from: MemberId) {
        if lock(&self.leavers.handed).insert(from) {
            tracing::debug!(member = from.0, "the replicas of a leaver are handed over");
            self.schedule_all_repairs();
        }
    }

    /// The background's share: answers leavers, passes their announcements on, and takes the steps
    /// of this member's own leaving.
    /// Returns when to run again.
    pub(in crate::store) fn leave_some(&self) -> Time {
        let answers = self.answer_leavers();
        let passed_on = self.pass_on_leavers();
        let own = self.lead_own();
        answers.min(passed_on).min(own)
    }

    /// Answers each leaver once the operations of this member that began before have ended.
    fn answer_leavers(&self) -> Time {
        let due = std::mem::take(&mut *lock(&self.leavers.due));
        if due.is_empty() {
            return Time::NEVER;
        }
        let (now, mut pause) = (self.job.now(), LEAVE_PAUSE_MAX);
        let mut later = Vec::new();
        let copiers = lock(&self.gate.copiers).clone();
        for (member, mut in_flight, began) in due {
            if !in_flight.is_over(self, &copiers).unwrap_or(true) {
                // An operation may wait for a stopped member. The pauses grow with the wait.
                pause = pause.min((now.since(began) / 8).max(LEAVE_PAUSE));
                later.push((member, in_flight, began));
            } else if member == self.me() {
                self.record_acknowledgement(member);
            } else {
                // If the answer does not arrive, the leaver asks again.
                let _ = self.send(member, &Message::AcknowledgeLeaving);
            }
        }
        let is_done = later.is_empty();
        lock(&self.leavers.due).extend(later);
        if is_done { Time::NEVER } else { now.after(pause) }
    }

    /// *announce* and *hand_over* of this member's own leaving. Returns when to run again.
    fn lead_own(&self) -> Time {
        if !lock(&self.leavers.own).is_leaving {
            return Time::NEVER;
        }
        let (me, now, view) = (self.me(), self.job.now(), self.job.view());
        let is_handing = {
            let mut own = lock(&self.leavers.own);
            if !own.is_handing && view.living().all(|member| own.acknowledged.contains(member)) {
                own.is_handing = true;
                own.remind = None;
            }
            if let Some(remind) = own.remind.filter(|&remind| now < remind) {
                return remind;
            }
            own.is_handing
        };
        let note = if is_handing {
            self.hand_over(me);
            Message::HandOver
        } else {
            if !self.leavers.members().contains(me) {
                self.record_leaver(me);
            }
            Message::Leaving
        };
        let acknowledged = lock(&self.leavers.own).acknowledged.clone();
        for member in view.living().filter(|&member| member != me) {
            if is_handing || !acknowledged.contains(member) {
                // A member that does not get the message is told again.
                let _ = self.send(member, &note);
            }
        }
        let remind = self.job.now().after(REMIND);
        lock(&self.leavers.own).remind = Some(remind);
        remind
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;
    use crate::store::operation::leavers::Leavers;

    /// A new replica is not filled while a member may still write by the old list, from *announce*
    /// to *hand_over*.
    #[test]
    fn new_replicas_fill_only_after_every_member_has_acknowledged() {
        let leaving = Leavers::default();
        let replicas = [MemberId(0), MemberId(1), MemberId(2)];
        assert!(leaving.may_fill(&replicas));
        lock(&leaving.members).insert(MemberId(1));
        assert!(!leaving.may_fill(&replicas), "it has only said so");
        assert!(leaving.may_fill(&[MemberId(0), MemberId(2)]), "others are not held up");
        lock(&leaving.handed).insert(MemberId(1));
        assert!(leaving.may_fill(&replicas), "all know");
        lock(&leaving.members).insert(MemberId(2));
        assert!(!leaving.may_fill(&replicas), "the next one");
    }

    /// A leaver is stopped when it has told one member and not the next. The first member reads all
    /// keys, and so raises the configuration numbers of their records above those that the second
    /// member knows. The second member reads them, too, since the first tells it of the leaver; as
    /// long as both are stopped it cannot know.
    #[cfg(feature = "sim")]
    #[test]
    fn a_member_hears_of_a_leaver_from_other_members() {
        use crate::engine::Fault;
        use crate::engine::sim::{self, Options as SimOptions};
        use crate::job::Job;
        use crate::store::Options;
        use crate::store::testing::{expect_timeout, nap};
        use std::cell::Cell;
        use std::rc::Rc;
        const LIMIT: Duration = Duration::from_secs(2);
        for (seed, stops_both) in (0..20).map(|seed| (seed, seed % 5 == 4)) {
            let stage = Rc::new(Cell::new(0));
            let mut options = SimOptions::new(4, seed);
            // A leaver counts in the number of every configuration.
            options.domains = ["a", "b", "c", "d"].map(String::from).to_vec();
            (options.time_limit, options.steps_max) = (LIMIT, 20_000_000);
            let report = sim::run(&options, move |job: Job| {
                let options = Options::new().replicas(2).partitions(16).expected_keys(64);
                let store = Store::open(&job, options).expect("open");
                let [leaver, told, untold] = [0, 1, 2].map(MemberId);
                let keys: Vec<String> = (0..8).map(|number| format!("key/{number}")).collect();
                if job.me() == leaver {
                    keys.iter().for_each(|key| _ = store.put(key, b"value").expect("put"));
                    store.state.record_leaver(leaver);
                    store.state.send(told, &Message::Leaving).expect("sent");
                    stage.set(1);
                    job.inject(Fault::Stop(leaver)).expect("a fault");
                    nap(&job, "the others", || stage.get() == 3);
                    store.leave(job.now().after(LIMIT)).expect("left");
                    return;
                }
                if job.me() == told {
                    nap(&job, "the leaver", || store.state.leavers.members().contains(leaver));
                    keys.iter().for_each(|key| _ = store.get(key).expect("read"));
                    stage.set(2);
                    if stops_both {
                        job.inject(Fault::Stop(told)).expect("a fault");
                    }
                }
                if job.me() == untold {
                    nap(&job, "the reads", || stage.get() == 2);
                    if stops_both {
                        // Nobody tells it of the leaver, so it can name no other member.
                        assert_eq!(expect_timeout(store.get(&keys[0])), untold);
                        job.inject(Fault::Resume(told)).expect("a fault");
                    }
                    let began = job.now();
                    for key in &keys {
                        let found = store.get(key).expect("read").expect("there");
                        assert_eq!(found.bytes(), b"value");
                    }
                    assert!(job.now().since(began) < LIMIT / 2, "seed {seed}");
                    job.inject(Fault::Resume(leaver)).expect("a fault");
                    stage.set(3);
                }
                nap(&job, "the end", || stage.get() == 3);
                nap(&job, "the leaver", || !job.view().is_living(leaver));
                for key in &keys {
                    assert_eq!(store.get(key).expect("read").expect("there").bytes(), b"value");
                }
                store.close().expect("closed");
                let _ = job.leave();
            });
            report.expect_ok();
        }
    }

    /// A member that has not heard of a leaver yet uses the old lists and numbers. If the leaver,
    /// as the first replica, has accepted a loss meanwhile, the partition is not lost for that
    /// member either.
    #[cfg(feature = "sim")]
    #[test]
    fn an_accepted_loss_holds_for_a_member_that_has_not_heard_of_a_leaver() {
        use crate::engine::Fault;
        use crate::engine::sim::{self, Options as SimOptions};
        use crate::job::Job;
        use crate::store::Options;
        use crate::store::testing::nap;
        use std::cell::Cell;
        use std::rc::Rc;
        for seed in 0..40 {
            let stage = Rc::new(Cell::new(0));
            let report = sim::run(&SimOptions::new(4, seed), move |job: Job| {
                let options = Options::new().replicas(1).partitions(64).expected_keys(64);
                let store = Store::open(&job, options).expect("open");
                let [victim, leaver, unaware, driver] = [0, 1, 2, 3].map(MemberId);
                let is_right = |key: &Vec<u8>| {
                    let partition = store.partition_of(key).expect("a key");
                    store.state.placement.preference(partition)[..2] == [victim, leaver]
                };
                let names = (0..1000).map(|number| format!("key/{number}").into_bytes());
                let key = names.into_iter().find(is_right).expect("some key");
                if job.me() == driver {
                    store.put(&key, b"value").expect("put");
                    job.inject(Fault::Stop(unaware)).expect("a fault");
                    stage.set(1);
                    nap(&job, "the leaver", || store.state.leavers.members().contains(leaver));
                    job.inject(Fault::Kill(victim)).expect("killed");
                    nap(&job, "the death", || !job.view().is_living(victim));
                    let partition = store.partition_of(&key).expect("a key");
                    store.accept_loss_of(&[partition]).expect("accepted");
                    assert_eq!(store.get(&key), Ok(None));
                    stage.set(2);
                    job.inject(Fault::Resume(unaware)).expect("a fault");
                } else if job.me() == leaver {
                    nap(&job, "the beginning", || stage.get() == 1);
                    while !lock(&store.state.leavers.own).is_leaving {
                        let left = store.leave(job.now().after(Duration::from_micros(500)));
                        assert!(matches!(left, Err(StoreError::Timeout { .. })), "{left:?}");
                    }
                } else if job.me() == unaware {
                    while stage.get() < 2 {
                        job.sleep(Duration::from_micros(1));
                    }
                    assert_eq!(store.get(&key), Ok(None), "it was given up");
                } else {
                    nap(&job, "its death", || false);
                }
                store.close().expect("closed");
                let _ = job.leave();
            });
            report.expect_ok();
        }
    }
}

//! Leavers: this member's copies are handed on before it goes: docs/protocol.md, "Leavers".
//!
//! A member that leaves stays a replica, and may stay the primary, of what it holds, but no longer
//! counts as one of the R: placement gives its partitions one replica more, which is filled from it
//! or from others like any new replica.
//!
//! | | step | dies or stops here |
//! |---|---|---|
//! | V1 | tell all living members | whoever knows has one replica more in its lists; dead, it is a death as any other |
//! | V2 | each member notes it, waits until its own operations of before have ended, and answers | the leaver waits for the answer, or for the death, of each |
//! | V3 | all have answered: nobody writes by the old lists any more; tell all to fill the new replicas | as V1 |
//! | V4 | wait until the replicas that stay are complete, of every partition that it is a replica of | as V1; R copies are without the leaver |
//! | V5 | end the membership; the others see a death that is marked as left | |
//!
//! Members leave one after the other: V0 is a lock in the store, which is held until the leaver is
//! gone.
//!
//! Between V1 and V3 some members write by the old lists and some by the new ones. The
//! configuration numbers differ, so reconciling seals what is written under the new one; and no new
//! replica begins to fill before V3, since a writer of the old list does not look at it. For the
//! same reason repair of the leaver's partitions rests between V1 and V3.

use crate::engine::{MemberId, Time};
use crate::store::error::{StoreError, StoreResult};
use crate::store::operation::error::{OpError, engine_error};
use crate::store::operation::message::{Message, PORT};
use crate::store::operation::quiescence::Quiescence;
use crate::store::recovery::state::RecoveryState;
use crate::store::segment::head::Phase;
use crate::sync::lock;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// How often to look whether operations have ended or copies are complete.
const PATIENCE: Duration = Duration::from_millis(1);

/// What that becomes when it takes long.
const PATIENCE_MAX: Duration = Duration::from_millis(50);

/// How often to tell those again who have not answered.
const REMIND: Duration = Duration::from_secs(1);

impl RecoveryState {
    pub(in crate::store) fn leave(&self, deadline: Time) -> StoreResult<()> {
        let (job, me) = (&self.job, self.me());
        if self.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let began = job.now();
        let mut pause = PATIENCE;
        lock(&self.leavers.own).is_leaving = true;
        // V1 to V3 are the background's.
        job.ring(me).map_err(engine_error)?;
        loop {
            let bell = job.bell();
            let is_handing = lock(&self.leavers.own).is_handing;
            let in_the_way = match is_handing {
                false => self.not_acknowledged(),
                true => self.incomplete_replica()?,
            };
            if is_handing && in_the_way.is_none() {
                break;
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
            pause = (pause * 2).min(PATIENCE_MAX);
        }
        // V5.
        self.is_closed.store(true, Ordering::SeqCst);
        self.gate.close_for_ever();
        job.leave().map_err(engine_error)
    }

    /// A living member that has not answered yet.
    fn not_acknowledged(&self) -> Option<MemberId> {
        let noted = lock(&self.leavers.own).noted.clone();
        self.job.view().living().find(|&member| !noted.contains(member))
    }

    /// V4: a replica that is to stay and is not complete, of a partition that this member is a
    /// replica of.
    pub(in crate::store) fn incomplete_replica(&self) -> StoreResult<Option<MemberId>> {
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

    /// V2: notes that a member leaves; the answer follows when the operations of this member have
    /// ended.
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
            // Whoever begins from here on computes the replicas anew.
            let view = self.job.view();
            for (number, partition) in self.partitions.iter().enumerate() {
                if let Some(first) = partition.first.get() {
                    first.forget_all_unless(&self.replicas(number, &view));
                }
            }
        }
        // The own memory fails only when this member has ended: then no operation is left to wait
        // for.
        let in_flight = Quiescence::begin(self).unwrap_or_default();
        lock(&self.leavers.due).push((member, in_flight));
        let _ = self.job.ring(self.me());
    }

    /// A member has noted that this one leaves.
    pub(in crate::store) fn record_acknowledgement(&self, from: MemberId) {
        lock(&self.leavers.own).noted.insert(from);
        let _ = self.job.ring(self.me());
    }

    /// V3: a member hands its copies on.
    pub(in crate::store) fn hand_over(&self, from: MemberId) {
        if lock(&self.leavers.handed).insert(from) {
            tracing::debug!(member = from.0, "the copies of a member that leaves are handed on");
            self.schedule_all_repairs();
        }
    }

    /// The background's part; when it wants to run again.
    pub(in crate::store) fn leave_some(&self) -> Time {
        let answers = self.answer_leavers();
        let own = self.lead_own();
        answers.min(own)
    }

    /// Answers those who leave once the operations of before have ended.
    fn answer_leavers(&self) -> Time {
        let due = std::mem::take(&mut *lock(&self.leavers.due));
        if due.is_empty() {
            return Time::NEVER;
        }
        let mut later = Vec::new();
        for (member, mut in_flight) in due {
            if !in_flight.is_over(self, &[]).unwrap_or(true) {
                later.push((member, in_flight));
            } else if member == self.me() {
                self.record_acknowledgement(member);
            } else {
                // If it does not hear it, it asks again.
                let _ = self.job.send(member, PORT, &Message::Noted.encode());
            }
        }
        let is_done = later.is_empty();
        lock(&self.leavers.due).extend(later);
        if is_done { Time::NEVER } else { self.job.now().after(PATIENCE) }
    }

    /// V1 and V3 of this member's own leaving.
    fn lead_own(&self) -> Time {
        if !lock(&self.leavers.own).is_leaving {
            return Time::NEVER;
        }
        let (me, now, view) = (self.me(), self.job.now(), self.job.view());
        let is_handing = {
            let mut own = lock(&self.leavers.own);
            if !own.is_handing && view.living().all(|member| own.noted.contains(member)) {
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
        let noted = lock(&self.leavers.own).noted.clone();
        for member in view.living().filter(|&member| member != me) {
            if is_handing || !noted.contains(member) {
                // Whoever does not hear it is told again.
                let _ = self.job.send(member, PORT, &note.encode());
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

    /// New replicas of a partition are not filled while somebody may still write by the list of
    /// before: from V1 to V3.
    #[test]
    fn copies_are_handed_on_only_when_all_know() {
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

    /// A member that has not heard yet that another one leaves has the lists, and numbers, of
    /// before. What that one, as the first replica, has given up meanwhile is not lost to it.
    #[cfg(feature = "sim")]
    #[test]
    fn what_was_given_up_is_so_to_those_who_do_not_know_of_a_leaver() {
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
                    let left = store.leave(job.now());
                    assert!(matches!(left, Err(StoreError::Timeout { .. })), "{left:?}");
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

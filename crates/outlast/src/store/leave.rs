//! Leaving: this member's copies are handed on before it goes: docs/protocol.md, "Leaving".
//!
//! A member that leaves stays a home, and may stay the primary, of what it holds, but no longer counts as one of the R:
//! placement gives its partitions one home more, which is filled from it or from others like any new home.
//!
//! | | step | dies or stops here |
//! |---|---|---|
//! | V1 | tell all living members | whoever knows has one home more in its lists; dead, it is a death as any other |
//! | V2 | each member notes it, waits until its own operations of before have ended, and answers | the leaver waits for the answer, or for the death, of each |
//! | V3 | all have answered: nobody writes by the old lists any more; tell all to fill the new homes | as V1 |
//! | V4 | wait until the homes that stay are complete, of every partition that it is a home of | as V1; R copies are without the leaver |
//! | V5 | end the membership; the others see a death that is marked as left | |
//!
//! Members leave one after the other: V0 is a lock in the store, which is held until the leaver is gone.
//!
//! Between V1 and V3 some members write by the old lists and some by the new ones. The configuration numbers differ, so
//! settling seals what is written under the new one; and no new home begins to fill before V3, since a writer of the old
//! list does not look at it. For the same reason repair of the leaver's partitions rests between V1 and V3.

use super::layout::{ACTOR_COUNTER, ACTORS};
use super::open::{Inner, Note};
use super::{PORT, Store, StoreError, StoreResult};
use crate::engine::{Epoch, MemberId, MemberSet, Time};
use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

/// Keys that begin so are the store's own, and are not listed.
pub(super) const RESERVED: &[u8] = b"\0outlast/";
/// The lock of the one who leaves.
const TURN: &[u8] = b"\0outlast/leave";

/// How often to look whether operations have ended or copies are complete.
const PATIENCE: Duration = Duration::from_millis(1);
/// What that becomes when it takes long.
const PATIENCE_MAX: Duration = Duration::from_millis(50);
/// How often to tell those again who have not answered.
const REMIND: Duration = Duration::from_secs(1);

/// What a member knows of those who leave.
#[derive(Default)]
pub(super) struct Leaving {
    /// Who has said that it leaves.
    members: Mutex<MemberSet>,
    /// Whose copies may be handed on: all members have noted that it leaves.
    handed: Mutex<MemberSet>,
    /// Raised whenever `members` grows.
    version: AtomicU64,
    /// Answers that are due when these actors of this member have left their operations.
    due: Mutex<Vec<Due>>,
    own: Mutex<Own>,
}

/// Who is to be answered, and which actors have to leave the operation with this number first.
type Due = (MemberId, Vec<(usize, u64)>);

/// How far this member's own leaving is.
#[derive(Default)]
struct Own {
    is_leaving: bool,
    is_handing: bool,
    /// Who has answered.
    noted: MemberSet,
    /// When to tell again.
    remind: Option<Time>,
}

impl Leaving {
    /// Who leaves, and the version of that; for the computation of homes.
    pub(super) fn members(&self) -> MemberSet {
        lock(&self.members).clone()
    }

    /// Changes with every member that begins to leave.
    pub(super) fn version(&self) -> u64 {
        // SeqCst: in one order with the counters of operations.
        self.version.load(Ordering::SeqCst)
    }

    /// Does something, and nobody begins to leave meanwhile; unless someone has since the version was this.
    pub(super) fn unless_changed<T>(&self, version: u64, act: impl FnOnce() -> T) -> Option<T> {
        let _members = lock(&self.members);
        (self.version() == version).then(act)
    }

    /// Whether copies are handed on from everyone of these who leaves.
    pub(super) fn may_fill(&self, homes: &[MemberId]) -> bool {
        let (members, handed) = (lock(&self.members).clone(), lock(&self.handed).clone());
        homes.iter().all(|&home| !members.contains(home) || handed.contains(home))
    }
}

impl Store {
    /// Leaves the job: hands this member's copies on to others, so that nothing is lost even with one copy, and ends
    /// the membership. [`StoreError::Timeout`] if that takes until `deadline`: this member is then still there, and its
    /// copies go on being handed on; call it again, or go without. Locks that it holds count as abandoned.
    ///
    /// Members leave one after the other, each moving its data: to end the whole job, use [`Store::close`].
    pub fn leave(&self, deadline: Time) -> StoreResult<()> {
        // Held until this member is gone; the next one takes it over.
        if !lock(&self.inner.leaving.own).is_leaving {
            self.lock_any(TURN, deadline)?.keep();
        }
        self.inner.leave(deadline)
    }
}

impl Inner {
    fn leave(&self, deadline: Time) -> StoreResult<()> {
        let (job, me) = (&self.job, self.me());
        if self.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let began = job.now();
        let mut pause = PATIENCE;
        lock(&self.leaving.own).is_leaving = true;
        // V1 to V3 are the background's.
        job.ring(me).map_err(super::open::engine_error)?;
        loop {
            let bell = job.bell();
            let is_handing = lock(&self.leaving.own).is_handing;
            let in_the_way = match is_handing {
                false => self.not_noted(),
                true => self.incomplete_home()?,
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
        self.global.close_for_ever();
        job.leave().map_err(super::open::engine_error)
    }

    /// A living member that has not answered yet.
    fn not_noted(&self) -> Option<MemberId> {
        let noted = lock(&self.leaving.own).noted.clone();
        self.job.view().living().find(|&member| !noted.contains(member))
    }

    /// V4: a home that is to stay and is not complete, of a partition that this member is a home of.
    pub(super) fn incomplete_home(&self) -> StoreResult<Option<MemberId>> {
        let leaving = self.leaving.members();
        for partition in 0..self.placement.partitions {
            let incomplete = self.run(|op| {
                let config = op.config(partition)?;
                let mut incomplete = None;
                if config.homes.contains(&self.me()) {
                    for &home in config.homes.iter().filter(|&&home| !leaving.contains(home)) {
                        if op.state(home, partition)?.phase() != super::head::Phase::Complete {
                            incomplete = Some(home);
                        }
                    }
                }
                if op.is_current() { Ok(incomplete) } else { Err(super::access::Halt::Again) }
            });
            match incomplete {
                Ok(None) | Err(StoreError::DataLost { .. }) => {}
                other => return other,
            }
        }
        Ok(None)
    }

    /// V2: notes that a member leaves; the answer follows when the operations of this member have ended.
    pub(super) fn note_leaving(&self, member: MemberId) {
        let is_new = {
            let mut members = lock(&self.leaving.members);
            let is_new = members.insert(member);
            self.leaving.version.fetch_add(u64::from(is_new), Ordering::SeqCst);
            is_new
        };
        if is_new {
            tracing::info!(member = member.0, "a member is leaving");
            fence(Ordering::SeqCst);
            // Whoever begins from here on computes the homes anew.
            let view = self.job.view();
            for (number, partition) in self.partitions.iter().enumerate() {
                if let Some(first) = partition.first.get() {
                    first.forget_all_unless(&self.homes(number, &view));
                }
            }
        }
        let mut inside = Vec::new();
        for actor in 0..ACTORS {
            match self.own_counter(actor) {
                Some(counter) if counter % 2 == 1 => inside.push((actor, counter)),
                _ => {}
            }
        }
        lock(&self.leaving.due).push((member, inside));
        let _ = self.job.ring(self.me());
    }

    fn own_counter(&self, actor: usize) -> Option<u64> {
        let word = self.root(self.me()) + self.layout.actor(actor) + ACTOR_COUNTER;
        self.job.load(Epoch::ANY, self.me(), word).ok()
    }

    /// A member has noted that this one leaves.
    pub(super) fn leaving_noted(&self, from: MemberId) {
        lock(&self.leaving.own).noted.insert(from);
        let _ = self.job.ring(self.me());
    }

    /// V3: a member hands its copies on.
    pub(super) fn hand_over(&self, from: MemberId) {
        if lock(&self.leaving.handed).insert(from) {
            tracing::debug!(member = from.0, "the copies of a member that leaves are handed on");
            self.look_at_all();
        }
    }

    /// The background's part; when it wants to run again.
    pub(super) fn leave_some(&self) -> Time {
        let answers = self.answer_leavers();
        let own = self.lead_own();
        answers.min(own)
    }

    /// Answers those who leave once the operations of before have ended.
    fn answer_leavers(&self) -> Time {
        let due = std::mem::take(&mut *lock(&self.leaving.due));
        if due.is_empty() {
            return Time::NEVER;
        }
        let mut later = Vec::new();
        for (member, mut inside) in due {
            inside.retain(|&(actor, counter)| self.own_counter(actor) == Some(counter));
            if !inside.is_empty() {
                later.push((member, inside));
            } else if member == self.me() {
                self.leaving_noted(member);
            } else {
                // If it does not hear it, it asks again.
                let _ = self.job.send(member, PORT, &Note::Noted.encode());
            }
        }
        let is_done = later.is_empty();
        lock(&self.leaving.due).extend(later);
        if is_done { Time::NEVER } else { self.job.now().after(PATIENCE) }
    }

    /// V1 and V3 of this member's own leaving.
    fn lead_own(&self) -> Time {
        if !lock(&self.leaving.own).is_leaving {
            return Time::NEVER;
        }
        let (me, now, view) = (self.me(), self.job.now(), self.job.view());
        let is_handing = {
            let mut own = lock(&self.leaving.own);
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
            Note::HandOver
        } else {
            if !self.leaving.members().contains(me) {
                self.note_leaving(me);
            }
            Note::Leaving
        };
        let noted = lock(&self.leaving.own).noted.clone();
        for member in view.living().filter(|&member| member != me) {
            if is_handing || !noted.contains(member) {
                // Whoever does not hear it is told again.
                let _ = self.job.send(member, PORT, &note.encode());
            }
        }
        let remind = self.job.now().after(REMIND);
        lock(&self.leaving.own).remind = Some(remind);
        remind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// New homes of a partition are not filled while somebody may still write by the list of before: from V1 to V3.
    #[test]
    fn copies_are_handed_on_only_when_all_know() {
        let leaving = Leaving::default();
        let homes = [MemberId(0), MemberId(1), MemberId(2)];
        assert!(leaving.may_fill(&homes));
        lock(&leaving.members).insert(MemberId(1));
        assert!(!leaving.may_fill(&homes), "it has only said so");
        assert!(leaving.may_fill(&[MemberId(0), MemberId(2)]), "others are not held up");
        lock(&leaving.handed).insert(MemberId(1));
        assert!(leaving.may_fill(&homes), "all know");
        lock(&leaving.members).insert(MemberId(2));
        assert!(!leaving.may_fill(&homes), "the next one");
    }

    /// A member that has not heard yet that another one leaves has the lists, and numbers, of before. What that one, as the first
    /// home, has given up meanwhile is not lost to it.
    #[cfg(feature = "sim")]
    #[test]
    fn what_was_given_up_is_so_to_those_who_do_not_know_of_a_leaver() {
        use crate::engine::Fault;
        use crate::job::Job;
        use crate::sim::{self, Options as SimOptions};
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
                    store.inner.placement.preference(partition)[..2] == [victim, leaver]
                };
                let names = (0..1000).map(|number| format!("key/{number}").into_bytes());
                let key = names.into_iter().find(is_right).expect("some key");
                if job.me() == driver {
                    store.put(&key, b"value").expect("put");
                    job.inject(Fault::Stop(unaware)).expect("a fault");
                    stage.set(1);
                    nap(&job, "the leaver", || store.inner.leaving.members().contains(leaver));
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

//! Leaving the job: the lock that orders leavers, and the call. `docs/protocol/leaving.md` has the
//! steps.

use crate::engine::deadline::Deadline;
use crate::engine::{MemberSet, Time};
use crate::store::api::store::Store;
use crate::store::error::{StoreError, StoreResult};
use crate::store::operation::error::engine_error;
use crate::store::operation::leavers::HandOver;
use crate::sync::lock;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The lock of the leaver: members leave in sequence.
const TURN: &[u8] = b"\0outlast/leave";

/// The pause between two looks at the openings that are not usable here.
const SETTLE_PAUSE: Duration = Duration::from_millis(50);

impl Store {
    /// Leaves the job: hands the replicas of this member over to other members, so that nothing is
    /// lost even with a single replica, and ends the membership. Locks that this member holds count
    /// as abandoned.
    ///
    /// Pieces of [images](crate::image) that this member holds come to other members, too.
    ///
    /// Returns [`StoreError::Timeout`] if the replicas are not handed over at `deadline`. This
    /// member is then still part of the job. If it has told the others that it leaves, its replicas
    /// go on being handed over: call `leave` again, or end the process without it.
    /// [`StoreError::Locked`] means that another member was leaving until `deadline`.
    ///
    /// Members leave in sequence, and each of them moves its data. To end the whole job, use
    /// [`Store::close`]. A member leaves with all its stores: if it has further stores open, the
    /// call hands over their replicas, too. If a call of [`Store::open`] or [`Store::close`] has
    /// failed, other members may use that store with the replicas of this member: the call then
    /// waits until all have opened it, and hands the replicas over, or until all have closed it.
    pub fn leave(&self, deadline: Time) -> StoreResult<()> {
        if self.state.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let _call = Deadline::call_until(deadline);
        let job = &self.state.job;
        let openings = &self.state.stores;
        loop {
            let registered = openings.registered();
            self.settle_openings(deadline)?;
            // All members have their stores in equal order, so two leavers do not wait for each
            // other.
            let stores = self.stores_in_use();
            for store in &stores {
                // The lock is held until this member is gone. The next leaver takes it over.
                if !lock(&store.state.leavers.own).is_leaving {
                    store.lock_any(TURN, deadline)?.keep();
                }
                store.state.hand_replicas_over(deadline)?;
            }
            for store in &stores {
                let layers = lock(&store.state.leavers.layers).clone();
                for layer in layers.iter().filter_map(Weak::upgrade) {
                    layer.hand_over(deadline)?;
                    // A new replica may have died meanwhile.
                    store.state.hand_replicas_over(deadline)?;
                }
            }
            // Another thread may have opened a store meanwhile.
            let address = |store: &Store| store.state.address;
            let is_settled = openings.in_the_way_of_leaving(job).is_none();
            if is_settled
                && self.stores_in_use().iter().map(address).eq(stores.iter().map(address))
                && openings.end_openings(registered)
            {
                break;
            }
        }
        // *end*.
        self.state.stores.usable().for_each(|state| state.end());
        job.leave().map_err(engine_error)
    }

    /// The members that have announced that they leave by this store.
    pub(crate) fn leavers(&self) -> MemberSet {
        self.state.leavers.members()
    }

    /// A number that changes with each leaver.
    pub(crate) fn leavers_version(&self) -> u64 {
        self.state.leavers.version()
    }

    /// Has [`Store::leave`] hand over what a layer above the store holds, after the replicas.
    pub(crate) fn hand_over_before_leaving(&self, layer: Weak<dyn HandOver>) {
        let mut layers = lock(&self.state.leavers.layers);
        layers.retain(|layer| layer.strong_count() > 0);
        layers.push(layer);
    }

    /// The stores whose replicas are handed over: those that this member has open, unless all
    /// others have closed them.
    fn stores_in_use(&self) -> Vec<Store> {
        let in_use = self.state.stores.usable().filter(|state| state.is_used_by_others());
        in_use.map(|state| Store { state }).collect()
    }

    /// Waits until each opening of a store is either usable here, so that its replicas can be
    /// handed over, or of no use to any other member.
    fn settle_openings(&self, deadline: Time) -> StoreResult<()> {
        let job = &self.state.job;
        let began = job.now();
        loop {
            let bell = job.bell();
            let Some(member) = self.state.stores.in_the_way_of_leaving(job) else { return Ok(()) };
            if job.has_ended() {
                return Err(StoreError::Closed);
            }
            let now = job.now();
            if now >= deadline {
                return Err(StoreError::Timeout { member, limit: now.since(began) });
            }
            job.park(bell, deadline.min(now.after(SETTLE_PAUSE)));
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use crate::engine::sim::{self, Link, Options as SimOptions};
    use crate::engine::{MemberId, Time};
    use crate::job::{Job, Service};
    use crate::store::testing::nap;
    use crate::store::{Options, Store, StoreError};
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    fn options_of(replicas: usize) -> Options {
        Options::new().replicas(replicas).partitions(8).expected_keys(32).slab_len_max(16 << 10)
    }

    /// A call of `open` or `close` has failed at a member, and the others use the store with its
    /// replicas. With a single replica of each value nothing is lost when the member leaves by
    /// another store.
    #[test]
    fn a_leaver_hands_over_stores_whose_opening_or_closing_has_failed() {
        for seed in 0..12 {
            let mut plan = SimOptions::new(3, seed).link(Link::of_seed(seed));
            (plan.steps_max, plan.time_limit) = (20_000_000, Duration::from_secs(1));
            let is_opening = seed / 2 % 2 == 0;
            let [driver, late, leaver] = [0, 1, 2].map(MemberId);
            let stage = Rc::new(Cell::new(0));
            let report = sim::run(&plan, move |job: Job| {
                let all = Store::open(&job, options_of(2)).expect("open");
                let some = || Store::open(&job, options_of(1).name("some"));
                let key = |number: u32| format!("key/{number}");
                let reached = |number| nap(&job, "the others", || stage.get() >= number);
                // One member does not open the store before the calls of the others have failed.
                let opened = match is_opening {
                    true if job.me() == late => {
                        reached(2);
                        some()
                    }
                    true => {
                        let failed = some().map(|_| ()).unwrap_err();
                        assert!(matches!(failed, StoreError::Timeout { .. }), "{failed}");
                        stage.set(stage.get() + 1);
                        if job.me() == leaver { Err(failed) } else { some() }
                    }
                    false => some(),
                };
                if job.me() == leaver {
                    if let Ok(some) = &opened {
                        reached(3);
                        let failed = some.close().unwrap_err();
                        assert!(matches!(failed, StoreError::Timeout { .. }), "{failed}");
                    }
                    reached(3);
                    let soon = || job.now().after(Duration::from_secs(2));
                    if !is_opening {
                        // The others go on with the store, and the leaver cannot hand it over.
                        let refused = all.leave(soon()).unwrap_err();
                        assert!(matches!(refused, StoreError::Timeout { .. }), "{refused}");
                        stage.set(4);
                    }
                    nap(&job, "the end", || all.leave(soon()).is_ok());
                    return;
                }
                let some = opened.expect("open");
                if job.me() == driver {
                    for number in 0..30 {
                        some.put(key(number).as_bytes(), b"value").expect("put");
                    }
                    stage.set(3);
                }
                match is_opening {
                    true => nap(&job, "the leaver", || !job.view().is_living(leaver)),
                    false => reached(4),
                }
                for number in 0..30 {
                    let value = some.get(key(number)).expect("read");
                    assert!(
                        job.me() != driver || value.is_some_and(|value| value.bytes() == b"value")
                    );
                }
                some.close().expect("closed");
                nap(&job, "the leaver", || !job.view().is_living(leaver));
                all.close().expect("closed");
                let _ = job.leave();
            });
            report.expect_ok();
        }
    }

    /// Holds up the end of the membership, as a layer does that has messages to send, until this
    /// stage is reached.
    struct Late(Arc<AtomicUsize>, usize);

    impl Service for Late {
        fn run(&self, _: &Job) -> Time {
            Time::NEVER
        }

        fn leaving(&self, job: &Job) {
            self.0.fetch_add(1, Ordering::Relaxed);
            nap(job, "the other thread", || self.0.load(Ordering::Relaxed) >= self.1);
        }
    }

    /// A member has seen that all its stores are handed over, and is about to leave. Another thread
    /// of it opens a store for which the other member waits, and the other member puts values
    /// there. With a single replica of each value nothing is lost when the first member has left.
    #[test]
    fn no_store_is_opened_by_a_member_that_is_about_to_leave() {
        for seed in 0..4 {
            let stage = Arc::new(AtomicUsize::new(0));
            let mut plan = SimOptions::new(2, seed).link(Link::of_seed(seed));
            plan.steps_max = 20_000_000;
            sim::run(&plan, move |job: Job| {
                let all = Store::open(&job, options_of(1)).expect("open");
                let some = |job: &Job| Store::open(job, options_of(1).name("some"));
                let (leaver, is_at) =
                    (MemberId(1), |number| stage.load(Ordering::Relaxed) >= number);
                if job.me() == leaver {
                    job.serve(Arc::new(Late(stage.clone(), 2))).expect("a service");
                    let (second, at) = (job.clone(), stage.clone());
                    let open = move || {
                        nap(&second, "the end", || at.load(Ordering::Relaxed) >= 1);
                        let opened = some(&second);
                        if matches!(opened, Err(StoreError::Closed)) {
                            at.store(2, Ordering::Relaxed);
                        }
                    };
                    let _open = job.spawn("opens", Box::new(open)).expect("an activity");
                    all.leave(job.now().after(Duration::from_secs(10))).expect("left");
                    return;
                }
                let some = some(&job).expect("open");
                let keys: Vec<String> = (0..40).map(|number| format!("key/{number}")).collect();
                // A partition is lost if its only replica goes before the store is open here.
                let is_put = |key: &&String| some.put(key, b"value").is_ok();
                let keys: Vec<&String> = keys.iter().filter(is_put).collect();
                if !is_at(2) {
                    stage.store(2, Ordering::Relaxed);
                }
                nap(&job, "the leaver", || !job.view().is_living(leaver));
                for key in keys {
                    let value = some.get(key).expect("read").expect("there");
                    assert_eq!(value.bytes(), b"value");
                }
                some.close().expect("closed");
                all.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }
}

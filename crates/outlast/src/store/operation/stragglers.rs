//! Stragglers: requests that may still execute after their operation has ended.
//!
//! Over a network a request that timed out may execute later. By then a reused block may have
//! restored the word that its compare-and-swap expects (ABA), so the block must not be reused
//! before the request has landed. Each member has a *straggler word* in its segment, odd while a
//! straggler of it may exist. docs/protocol/memory.md has the steps *probe*, *announce*, *leave*
//! and *clear*, with what a survivor finds at each.
//!
//! A grace period (`grace_period.rs`) reads the straggler words after it has seen the operations
//! end, so it sees either the operation or the straggler. A member that must change nothing any
//! more, before a coordinated recovery or a consistent cut, waits until its own straggler word is
//! even.
//!
//! If a member with stragglers dies, its requests are dropped once the view contains its death, and
//! no member waits for it. If the target is stopped, memory that was freed meanwhile waits until
//! the target resumes, and nothing else does.

use crate::engine::{Epoch, Error, MemberId, Operation, Pending, Time};
use crate::store::operation::state::OperationState;
use crate::store::segment::layout::STRAGGLERS;
use crate::sync::lock;
use std::sync::Mutex;
use std::time::Duration;

/// How often the background polls the loads. An answer also rings the bell.
const PATIENCE: Duration = Duration::from_millis(100);

/// The stragglers of this member.
#[derive(Default)]
pub(in crate::store) struct Stragglers(Mutex<Loads>);

/// The loads behind the stragglers, and the straggler word.
#[derive(Default)]
struct Loads {
    /// The loads that are not answered yet.
    under_way: Vec<Pending>,
    /// How many activities poll loads that they have taken out of `under_way`.
    looking: usize,
    /// The value that the straggler word is to have; it only grows.
    number: u64,
}

/// Starts a load at a replica, behind all earlier requests of the calling activity.
fn start_load(store: &OperationState, replica: MemberId) -> Pending {
    store.job.start(
        Epoch::ANY,
        replica,
        Operation::Load { offset: store.root(replica) + STRAGGLERS },
    )
}

impl OperationState {
    /// `straggler.probe` and `straggler.announce`: a request of the calling activity to this
    /// replica was not answered in time.
    pub(in crate::store::operation) fn record_straggler(&self, replica: MemberId) {
        let load = start_load(self, replica);
        let number = {
            let mut loads = lock(&self.stragglers.0);
            loads.under_way.push(load);
            loads.number |= 1;
            loads.number
        };
        self.raise_straggler_word(number);
        // The background polls the load when its answer rings the bell. The answer may have arrived
        // already, so this rings it once more.
        let _ = self.job.ring(self.me());
    }

    /// A replica at which a straggler of this member may still land. An activity that waits for the
    /// stragglers polls them itself, since the background may be waiting for the end of a freeze,
    /// or for another replica.
    pub(in crate::store) fn straggling_replica(&self) -> Option<MemberId> {
        self.clear_stragglers();
        let loads = lock(&self.stragglers.0);
        // If another activity is polling the loads at this moment, this member takes the place of
        // the replica.
        let replica = loads.under_way.first().map_or(self.me(), |load| load.target);
        (!loads.number.is_multiple_of(2)).then_some(replica)
    }

    /// Raises the straggler word. It lies in the memory of this member, which fails only when this
    /// member has ended.
    fn raise_straggler_word(&self, number: u64) {
        let (job, me, word) = (&self.job, self.me(), self.root(self.me()) + STRAGGLERS);
        while let Ok(found) = job.load(Epoch::ANY, me, word) {
            // The word never goes back, if another activity has raised it further.
            if found >= number
                || job.compare_and_swap(Epoch::ANY, me, word, found, number) == Ok(found)
            {
                return;
            }
        }
    }

    /// `straggler.clear`, by the background or by an activity that waits for it. Returns when the
    /// background wants to run again.
    pub(in crate::store) fn clear_stragglers(&self) -> Time {
        // The loads are taken out, since no activity calls the engine while it holds the lock.
        let (mut loads, is_over) = {
            let mut known = lock(&self.stragglers.0);
            let is_over = known.under_way.is_empty() && known.looking == 0;
            known.looking += usize::from(!is_over);
            (std::mem::take(&mut known.under_way), is_over)
        };
        // Another activity that polls loads may give up waiting and leave the loads that it puts
        // back to the background. So the background runs again, unless there is nothing left.
        if is_over {
            return Time::NEVER;
        }
        loads.retain_mut(|load| match self.job.poll(load) {
            None => true,
            Some(Ok(_) | Err(Error::Dead { .. } | Error::Ended)) => false,
            Some(Err(_)) => {
                *load = start_load(self, load.target);
                true
            }
        });
        let number = {
            let mut known = lock(&self.stragglers.0);
            known.under_way.append(&mut loads);
            known.looking -= 1;
            // Loads that another activity polls count as unanswered, since their state is not known
            // here.
            if known.under_way.is_empty() && known.looking == 0 {
                known.number += known.number & 1;
            }
            known.number
        };
        if number.is_multiple_of(2) {
            self.raise_straggler_word(number);
            return Time::NEVER;
        }
        self.job.now().after(PATIENCE)
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use crate::engine::Fault;
    use crate::engine::sim::{self, Link, Options as SimOptions};
    use crate::store::operation::grace_period::GracePeriod;
    use crate::store::record::state::RecordOp;
    use crate::store::testing::nap;
    use crate::store::{Options, Store};
    use crate::{Epoch, Job, MemberId};
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    /// The swap of a member at a replica ends with a timeout. Another member begins a grace period
    /// after that operation has ended. When the grace period is over, the swap has landed.
    #[test]
    fn a_grace_period_outlasts_stragglers() {
        let late = Arc::new(AtomicU64::new(0));
        for seed in 0..100 {
            let (late, word) = (late.clone(), Arc::new(Mutex::new(None)));
            let mut options = SimOptions::new(3, seed).link(Link::Network);
            options.steps_max = 1_000_000;
            options.time_limit = Duration::from_millis(40);
            sim::run(&options, move |job: Job| body(&job, &word, &late)).expect_ok();
        }
        let late = late.load(Ordering::Relaxed);
        assert!(late > 50, "a request was under way after its operation in {late} runs");
    }

    fn body(job: &Job, word: &Mutex<Option<(u64, bool)>>, late: &AtomicU64) {
        let store = Store::open(job, Options::new().replicas(1).partitions(1)).expect("open");
        let inner = &store.state;
        let sleep = |time| {
            job.sleep(time);
        };
        let replica = MemberId(0);
        match job.me().0 {
            0 => {
                let offset = job.reserve(64).expect("room");
                job.put(Epoch::ANY, replica, offset, &[0; 8]).expect("put");
                *word.lock().expect("not poisoned") = Some((offset, false));
            }
            1 => loop {
                let known = *word.lock().expect("not poisoned");
                let Some((offset, _)) = known else {
                    sleep(Duration::from_micros(1));
                    continue;
                };
                let op = RecordOp::begin(inner).expect("begun");
                // Requests in front of the swap make it slow.
                let put = || crate::engine::Operation::Put { offset: offset + 8, data: &[0; 8] };
                let puts: Vec<_> =
                    (0..500).map(|_| job.start(Epoch::ANY, replica, put())).collect();
                // As if the time limit were over at once, while the request is on its way.
                let swap = crate::engine::Operation::CompareAndSwap { offset, expected: 0, new: 1 };
                let mut swap = job.start(Epoch::ANY, replica, swap);
                op.noted(
                    replica,
                    crate::engine::Error::Timeout { member: replica, limit: Duration::ZERO },
                );
                drop((op, puts));
                late.fetch_add(u64::from(job.poll(&mut swap).is_none()), Ordering::Relaxed);
                *word.lock().expect("not poisoned") = Some((offset, true));
                break;
            },
            _ => loop {
                let known = *word.lock().expect("not poisoned");
                let Some((offset, true)) = known else {
                    sleep(Duration::from_micros(1));
                    continue;
                };
                let mut grace = GracePeriod::begin(inner);
                while !grace.is_over(inner) {
                    sleep(Duration::from_micros(1));
                }
                assert_eq!(job.load(Epoch::ANY, replica, offset), Ok(1), "it has landed");
                break;
            },
        }
        let _ = store.close();
        let _ = job.leave();
    }

    /// A replica is stopped while a straggler of this member is on its way to it, and other
    /// replicas answer. The background polls a load while this member polls another load. The
    /// answer to the second load says nothing about the first straggler.
    #[test]
    fn an_answered_load_does_not_hide_another_straggler() {
        for seed in 0..20 {
            let is_over = Rc::new(Cell::new(false));
            let mut options = SimOptions::new(3, seed).link(Link::Network);
            options.steps_max = 10_000_000;
            options.time_limit = Duration::from_secs(5);
            sim::run(&options, move |job: Job| {
                let store =
                    Store::open(&job, Options::new().replicas(1).partitions(1)).expect("open");
                let (inner, stopped) = (&store.state, MemberId(0));
                job.sleep(Duration::from_secs(1));
                if job.me() == MemberId(1) {
                    job.inject(Fault::Stop(stopped)).expect("a fault");
                    inner.record_straggler(stopped);
                    for _ in 0..100 {
                        inner.record_straggler(MemberId(2));
                        for _ in 0..10 {
                            assert!(
                                inner.straggling_replica().is_some(),
                                "the first one has not landed"
                            );
                            job.sleep(Duration::from_micros(1));
                        }
                    }
                    job.inject(Fault::Resume(stopped)).expect("a fault");
                    nap(&job, "the last answer", || inner.straggling_replica().is_none());
                    is_over.set(true);
                }
                nap(&job, "the one with late requests", || is_over.get());
                store.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }
}

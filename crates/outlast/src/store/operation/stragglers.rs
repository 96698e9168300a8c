//! Requests that may still land after their operation has ended.
//!
//! Where memory is reached by requests, an operation that ends with a timeout leaves one behind: it
//! takes effect whenever it gets through, and its swap may expect a word that others have made come
//! again by then. So the block that it knows must not be used again before that. Each member has a
//! *late word*, odd while such a request of its is under way.
//!
//! | | step | true afterwards |
//! |---|---|---|
//! | L1 | behind the request, the operation starts a load at the same replica | requests of one activity to one replica keep their order: when the load is answered, the request has landed, or never will |
//! | L2 | it makes its member's late word odd | |
//! | L3 | it leaves its participant | whoever was waiting for the participant looks at the late word after it and finds it odd |
//! | L4 | all such loads are answered, or their replicas dead: the background, or one who waits for it, makes the word even | |
//!
//! A member that is to change nothing any more, before a recovery or a cut, waits until its own
//! word is even.
//!
//! A wait ([`crate::store::operation::grace_period::GracePeriod`]) looks at the late words after it
//! has seen all participants leave, so that it finds one of the two. The member dies at any of
//! these steps: its requests go nowhere once the view has it, and nobody waits for it. The replica
//! is stopped: what was freed meanwhile waits until it goes on, and nothing else does.

use crate::engine::{Epoch, Error, MemberId, Operation, Pending, Time};
use crate::store::operation::state::OperationState;
use crate::store::segment::layout::STRAGGLERS;
use crate::sync::lock;
use std::sync::Mutex;
use std::time::Duration;

/// How often to look; an answer rings.
const PATIENCE: Duration = Duration::from_millis(100);

/// What this member waits for.
#[derive(Default)]
pub(in crate::store) struct Stragglers(Mutex<Loads>);

#[derive(Default)]
struct Loads {
    under_way: Vec<Pending>,
    /// How many activities look at loads that they have taken out of there.
    looking: usize,
    /// What the late word is to be; only grows.
    number: u64,
}

fn start_load(store: &OperationState, replica: MemberId) -> Pending {
    store.job.start(
        Epoch::ANY,
        replica,
        Operation::Load { offset: store.root(replica) + STRAGGLERS },
    )
}

impl OperationState {
    /// L1 and L2: a request of the calling activity to this replica was not answered in time.
    pub(in crate::store) fn record_straggler(&self, replica: MemberId) {
        let load = start_load(self, replica);
        let number = {
            let mut loads = lock(&self.stragglers.0);
            loads.under_way.push(load);
            loads.number |= 1;
            loads.number
        };
        self.raise_straggler_word(number);
        // The background looks when the answer rings; it may have come already.
        let _ = self.job.ring(self.me());
    }

    /// A replica at which a request of this member may still land. Whoever waits for that looks
    /// itself: the background may be waiting for the end of a freeze, or for another replica.
    pub(in crate::store) fn straggling_replica(&self) -> Option<MemberId> {
        self.clear_stragglers();
        let loads = lock(&self.stragglers.0);
        // If another activity is just looking, this member stands for the replica.
        let replica = loads.under_way.first().map_or(self.me(), |load| load.target);
        (!loads.number.is_multiple_of(2)).then_some(replica)
    }

    /// Raises the late word. It is in the own memory, which fails only when this member has ended.
    fn raise_straggler_word(&self, number: u64) {
        let (job, me, word) = (&self.job, self.me(), self.root(self.me()) + STRAGGLERS);
        while let Ok(found) = job.load(Epoch::ANY, me, word) {
            // Not back, if another activity has raised it further.
            if found >= number
                || job.compare_and_swap(Epoch::ANY, me, word, found, number) == Ok(found)
            {
                return;
            }
        }
    }

    /// L4, by the background or by one who waits for it; when the background wants to look again.
    pub(in crate::store) fn clear_stragglers(&self) -> Time {
        // Taken out: nobody calls the engine under the lock.
        let (mut loads, is_over) = {
            let mut known = lock(&self.stragglers.0);
            let is_over = known.under_way.is_empty() && known.looking == 0;
            known.looking += usize::from(!is_over);
            (std::mem::take(&mut known.under_way), is_over)
        };
        // Who is just looking may give up waiting and leave what it puts back to the background, so
        // that looks again.
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
            // What another activity looks at is not answered, as far as is known here.
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

    /// One member's swap at a replica ends with a timeout. When another member, which begins to
    /// wait after that operation has ended, finds that nobody is inside any more, then the swap has
    /// landed.
    #[test]
    fn a_wait_outlasts_requests_that_timed_out() {
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
                // What is under way before it makes it slow.
                let put = || crate::engine::Operation::Put { offset: offset + 8, data: &[0; 8] };
                let puts: Vec<_> =
                    (0..500).map(|_| job.start(Epoch::ANY, replica, put())).collect();
                // As if the time limit were over at once: the request is on its way.
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

    /// One replica is stopped with a request of this member under way, others answer. While the
    /// background looks at the one load, this member looks at another: that one's answer says
    /// nothing about the first.
    #[test]
    fn an_answer_that_another_activity_sees_does_not_hide_a_request_that_is_under_way() {
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

//! Stragglers: requests that may still execute after their operation has ended.
//!
//! Over a network a request that timed out may execute later. A writer also leaves the request that
//! sets the stable bit in flight, since its call does not wait for the answer. By the time such a
//! request executes, a reused block may have restored the word that its compare-and-swap expects
//! (ABA), so the block must not be reused before the request has landed. Each member has a
//! *straggler word* in its segment, odd while a straggler of it may exist. docs/protocol/memory.md
//! has the steps *probe*, *announce*, *leave* and *clear*, with what a survivor finds at each.
//!
//! A grace period (`grace_period.rs`) reads the straggler words after it has seen the operations
//! end, so it sees either the operation or the straggler. A member that must change nothing any
//! more, before a coordinated recovery or a consistent cut, waits until its own straggler word is
//! even.
//!
//! *Generations.* A member that writes all the time always has a straggler, so no other member may
//! wait for an even word. New stragglers are *young*. When the last *old* straggler has landed, the
//! word grows by 2, and the young stragglers become old. A straggler that existed when the word was
//! n has landed when the word is even, or at least n + 4.
//!
//! A compare-and-swap of a word that names blocks is kept as a straggler itself, since its answer
//! decides which block is free (`open_swaps.rs`).
//!
//! If a member with stragglers dies, its requests are dropped once the view contains its death, and
//! no member waits for it. If the target is stopped, memory that was freed meanwhile waits until
//! the target resumes, and nothing else does.

use crate::engine::{Epoch, MemberId, Operation, Pending, Time};
use crate::store::operation::open_swaps::{Freed, Straggler};
use crate::store::operation::state::OperationState;
use crate::store::segment::layout::STRAGGLERS;
use crate::store::segment::place::Place;
use crate::sync::lock;
use std::sync::Mutex;
use std::time::Duration;

/// How soon the background polls the requests after it was rung, and how seldom it does so while
/// none is answered.
const POLL_FIRST: Duration = Duration::from_millis(2);
const POLL_LAST: Duration = Duration::from_millis(100);

/// The stragglers of this member.
#[derive(Default)]
pub(in crate::store) struct Stragglers(Mutex<Requests>);

/// The requests whose answers say that the stragglers have landed, and the straggler word.
#[derive(Default)]
struct Requests {
    /// The requests that were recorded since the straggler word has its present number.
    young: Vec<Straggler>,
    /// The requests that were recorded before.
    old: Vec<Straggler>,
    /// What open swaps have set free, until the layers above take it.
    freed: Freed,
    /// How many activities poll requests that they have taken out of both lists.
    looking: usize,
    /// The value that the straggler word is to have; it only grows.
    number: u64,
    /// Whether the background polls the requests without being rung.
    is_watched: bool,
    /// The number that the background saw last, and how long it waits until it polls again.
    watched: (u64, Duration),
}

impl Requests {
    /// Ends a generation if its last straggler has landed. Requests that another activity polls
    /// count as unanswered, since their state is not known here.
    fn advance(&mut self) {
        if self.looking > 0 || !self.old.is_empty() || self.number.is_multiple_of(2) {
            return;
        }
        if self.young.is_empty() {
            self.number += 1;
        } else {
            self.number += 2;
            self.old = std::mem::take(&mut self.young);
        }
    }
}

/// Whether the stragglers that existed when a straggler word was `before` have landed, now that it
/// is `now`. The word is another member's, and may hold any bytes.
pub(in crate::store::operation) fn have_landed(before: u64, now: u64) -> bool {
    now.is_multiple_of(2) || now.wrapping_sub(before) >= 4
}

/// Starts a load at a replica, behind all earlier requests of the calling activity.
pub(in crate::store::operation) fn start_load(
    store: &OperationState,
    replica: MemberId,
) -> Pending {
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
        self.announce_straggler(Straggler::landing(start_load(self, replica)));
    }

    /// `straggler.announce`. The operation that started the straggler ends later.
    pub(in crate::store::operation) fn announce_straggler(&self, straggler: Straggler) {
        let (number, must_ring) = {
            let mut requests = lock(&self.stragglers.0);
            requests.young.push(straggler);
            requests.number |= 1;
            (requests.number, !std::mem::replace(&mut requests.is_watched, true))
        };
        self.raise_straggler_word(number);
        if must_ring {
            let _ = self.job.ring(self.me());
        }
    }

    /// A replica at which a straggler of this member may still land. An activity that waits for the
    /// stragglers polls them itself, since the background may be waiting for the end of a freeze,
    /// or for another replica.
    pub(in crate::store) fn straggling_replica(&self) -> Option<MemberId> {
        self.clear_stragglers();
        let requests = lock(&self.stragglers.0);
        // If another activity is polling the requests at this moment, this member takes the place
        // of the replica.
        let first = requests.old.first().or(requests.young.first());
        let replica = first.map_or(self.me(), |straggler| straggler.request.target);
        (!requests.number.is_multiple_of(2)).then_some(replica)
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

    /// `straggler.clear` by the background. Returns when it wants to run again: as long as
    /// stragglers are recorded it runs by itself, so that no writer has to ring.
    pub(in crate::store) fn watch_stragglers(&self) -> Time {
        self.clear_stragglers();
        let mut requests = lock(&self.stragglers.0);
        let number = requests.number;
        let (seen, pause) = requests.watched;
        // What was set free may still have to be taken.
        if number == seen && number.is_multiple_of(2) && requests.freed.is_empty() {
            requests.is_watched = false;
            return Time::NEVER;
        }
        let pause = if number == seen { (pause * 2).min(POLL_LAST) } else { POLL_FIRST };
        requests.watched = (number, pause);
        drop(requests);
        self.job.now().after(pause)
    }

    /// `straggler.clear`, by the background or by an activity that waits for it.
    pub(in crate::store::operation) fn clear_stragglers(&self) {
        // The requests are taken out, since no activity calls the engine while it holds the lock.
        let (mut old, mut young) = {
            let mut requests = lock(&self.stragglers.0);
            if requests.number.is_multiple_of(2) {
                return;
            }
            requests.looking += 1;
            (std::mem::take(&mut requests.old), std::mem::take(&mut requests.young))
        };
        let mut freed = Freed::default();
        old.retain_mut(|straggler| straggler.is_open(self, &mut freed));
        young.retain_mut(|straggler| straggler.is_open(self, &mut freed));
        let must_ring = !freed.is_empty();
        let number = {
            let mut requests = lock(&self.stragglers.0);
            requests.freed.append(freed);
            requests.old.append(&mut old);
            // A generation does not end while requests are taken out, so they are still young.
            requests.young.append(&mut young);
            requests.looking -= 1;
            requests.advance();
            requests.number
        };
        self.raise_straggler_word(number);
        if must_ring {
            let _ = self.job.ring(self.me());
        }
    }

    /// A block that no request names after all: a swap was not sent.
    pub(in crate::store::operation) fn free_unsent(&self, block: Option<Place>) {
        let Some(block) = block else { return };
        lock(&self.stragglers.0).freed.blocks.push(block);
        let _ = self.job.ring(self.me());
    }

    /// Takes the blocks that the answers to open swaps have set free. An operation in flight may
    /// still read them.
    pub(in crate::store) fn take_freed(&self) -> Vec<Place> {
        std::mem::take(&mut lock(&self.stragglers.0).freed.blocks)
    }

    /// Takes the records that late swaps have marked as *removed*, with their replicas.
    pub(in crate::store) fn take_marked(&self) -> Vec<(MemberId, u64)> {
        std::mem::take(&mut lock(&self.stragglers.0).freed.marked)
    }

    /// The blocks that open swaps have set free and that no layer has taken.
    #[cfg(all(test, feature = "sim"))]
    pub(in crate::store) fn freed_blocks(&self) -> Vec<Place> {
        lock(&self.stragglers.0).freed.blocks.clone()
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
                op.op_error(
                    replica,
                    crate::engine::Error::Timeout { member: replica, limit: job.time_limit() },
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

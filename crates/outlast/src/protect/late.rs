//! Operations that were given up by a time limit and may still happen, and what follows from them.
//!
//! Barriers, points, locks and rollbacks wait for them, so that they happen before what the other
//! seats are told. Two of them need more than that:
//!
//! | operation | when it is answered |
//! |---|---|
//! | the swap that takes a lock | if it has taken the lock, nobody knows so: the lock is given back |
//! | an operation that gives a lock back | if a waiting seat has changed the word meanwhile, it is tried again; then the seats that wait are rung |

use super::layout::{EXCLUSIVE, WAITED_FOR};
use super::{ProtectError, ProtectResult};
use crate::Job;
use crate::engine::deadline;
use crate::engine::{Done, Epoch, MemberId, Operation, Pending};
use crate::rma::LockKind;
use crate::sync::lock;
use std::sync::Mutex;
use std::time::Duration;

/// How long an activity sleeps at most while another one polls.
const POLL: Duration = Duration::from_millis(5);

/// What follows when an operation is answered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Then {
    Nothing,
    /// It was to take a lock, and has if it found this word.
    Took(u64, Release),
    /// It was to give a lock back.
    Released(Release),
}

/// How a lock is given back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Release {
    /// Where the word of the lock is.
    offset: u64,
    /// The word of a lock that is held exclusively, as far as its holder knows.
    word: Option<u64>,
}

impl Release {
    pub(super) fn new(offset: u64, kind: LockKind, number: usize) -> Release {
        let word = match kind {
            LockKind::Exclusive => Some(EXCLUSIVE | number as u64),
            LockKind::Shared => None,
        };
        Release { offset, word }
    }

    pub(super) fn operation(self) -> Operation<'static> {
        let offset = self.offset;
        match self.word {
            Some(expected) => Operation::CompareAndSwap { offset, expected, new: 0 },
            None => Operation::FetchAdd { offset, delta: u64::MAX },
        }
    }

    /// What has to be tried after the answer; rings the seats that wait if the lock is free now.
    pub(super) fn after(self, job: &Job, found: u64) -> Option<Release> {
        if let Some(word) = self.word
            && found != word
        {
            // A seat that waits has set its bit. No other word is possible in this period.
            let is_own = found & !WAITED_FOR == word & !WAITED_FOR;
            return is_own.then_some(Release { word: Some(found), ..self });
        }
        if found & WAITED_FOR != 0 {
            job.view().living().for_each(|member| drop(job.ring(member)));
        }
        None
    }
}

impl Then {
    /// What has to be done after the answer.
    fn after(self, job: &Job, done: Done) -> Option<Release> {
        match self {
            Then::Nothing => None,
            Then::Took(expected, release) => (done.word() == expected).then_some(release),
            Then::Released(release) => release.after(job, done.word()),
        }
    }
}

/// The late operations of a member, which its seats share.
#[derive(Default)]
pub(super) struct Late(Mutex<Operations>);

#[derive(Default)]
struct Operations {
    waiting: Vec<(Pending, Then)>,
    /// The targets of the operations that an activity polls now.
    polled: Vec<MemberId>,
}

impl Late {
    pub(super) fn push(&self, pending: Pending, then: Then) {
        lock(&self.0).waiting.push((pending, then));
    }

    /// Waits until no operation may still happen, up to `limit`.
    pub(super) fn finish(&self, job: &Job, limit: Duration) -> ProtectResult<()> {
        let mut until = None;
        loop {
            let bell = job.bell();
            let taken = {
                let mut all = lock(&self.0);
                if all.waiting.is_empty() && all.polled.is_empty() {
                    return Ok(());
                }
                let taken = std::mem::take(&mut all.waiting);
                all.polled.extend(taken.iter().map(|(pending, _)| pending.target));
                taken
            };
            let targets: Vec<MemberId> = taken.iter().map(|(pending, _)| pending.target).collect();
            let mut is_started = false;
            let mut kept = Vec::new();
            for (mut pending, then) in taken {
                match job.poll(&mut pending) {
                    None => kept.push((pending, then)),
                    Some(Ok(done)) => {
                        if let Some(release) = then.after(job, done) {
                            let next = job.start(Epoch::ANY, pending.target, release.operation());
                            kept.push((next, Then::Released(release)));
                            is_started = true;
                        }
                    }
                    // The target is dead, or the job has ended.
                    Some(Err(_)) => {}
                }
            }
            let (awaited, is_shared) = {
                let mut all = lock(&self.0);
                for target in targets {
                    if let Some(place) = all.polled.iter().position(|polled| *polled == target) {
                        all.polled.swap_remove(place);
                    }
                }
                all.waiting.extend(kept);
                let first = all.waiting.first().map(|(pending, _)| pending.target);
                (first.or(all.polled.first().copied()), !all.polled.is_empty())
            };
            let Some(member) = awaited else { return Ok(()) };
            if job.has_ended() {
                return Err(ProtectError::Closed);
            }
            let now = job.now();
            let until = *until.get_or_insert_with(|| deadline::until(now, limit));
            if now >= until {
                return Err(ProtectError::Timeout { member, limit });
            }
            if !is_started {
                // An operation that another activity has found complete rings nobody.
                job.park(bell, if is_shared { until.min(now.after(POLL)) } else { until });
            }
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::engine::{Fault, Time};
    use crate::sim::{self, Link, Options};
    use std::sync::Arc;

    const SECOND: Duration = Duration::from_secs(1);

    /// The target of a late put is stopped until the third second. Two activities wait for the put,
    /// and a third one rings, so that each of them polls while the other does.
    #[test]
    fn no_activity_returns_while_another_one_polls_what_is_late() {
        for seed in 0..20 {
            let mut options = Options::new(2, seed).link(Link::Network);
            options.steps_max = 10_000_000;
            sim::run(&options, move |job| {
                job.grow(64).expect("room");
                job.sleep(SECOND);
                let target = MemberId(1);
                if job.me() == target {
                    job.sleep(9 * SECOND);
                    return job.leave().expect("left");
                }
                job.inject(Fault::Stop(target)).expect("stopped");
                let late = Arc::new(Late::default());
                let put = Operation::Put { offset: 0, data: &[7; 8] };
                late.push(job.start(Epoch::ANY, target, put), Then::Nothing);
                let finish = |job: Job, late: Arc<Late>| {
                    move || {
                        assert_eq!(late.finish(&job, 5 * SECOND), Ok(()));
                        assert!(job.now() >= Time(3_000_000_000), "{:?}", job.now());
                    }
                };
                let beside = Box::new(finish(job.clone(), late.clone()));
                let beside = job.spawn("beside", beside).expect("started");
                let ringing = job.clone();
                let ring = move || {
                    while ringing.now() < Time(3_000_000_000) {
                        let _ = ringing.ring(ringing.me());
                        ringing.sleep(Duration::from_millis(1));
                    }
                    ringing.inject(Fault::Resume(target)).expect("goes on");
                };
                let ring = job.spawn("rings", Box::new(ring)).expect("started");
                finish(job.clone(), late)();
                assert!(job.wait_for(&beside, Time::NEVER) && job.wait_for(&ring, Time::NEVER));
                job.leave().expect("left");
            })
            .expect_ok();
        }
    }
}

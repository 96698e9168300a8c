//! The outbox: messages and contributions to send, at once or again until the receiver takes them.
//!
//! Messages of the program and steps of collective operations go through [`Rma::transmit`], which
//! waits for room. Messages of the layer itself go through [`Rma::post`], which never waits: the
//! head of `progress` says why. Handlers list their messages as [`DeferredWork`], which is done
//! after all locks are released. A message to a dead member is dropped.

use super::agreement::Sends;
use super::long_message;
use super::progress::Rma;
use super::registry::SharedCommunicator;
use crate::engine::{self, MESSAGE_LEN_MAX, Port, TRY_SEND_LEN_MAX};
use crate::sync::lock;
use crate::{Job, MemberId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Messages and contributions to send again.
#[derive(Default)]
pub(super) struct Outbox {
    /// Contributions that found no room, and their number. The number includes contributions that
    /// an activity is trying again.
    unpublished: Mutex<Vec<UnpublishedContribution>>,
    unpublished_count: AtomicUsize,
    /// Messages that were not taken yet, in order, by receiver. No list is empty.
    unsent: Mutex<BTreeMap<MemberId, VecDeque<Vec<u8>>>>,
    /// Whether `unsent` has any message.
    has_unsent: AtomicBool,
    /// Whether an activity is sending messages of `unsent` again.
    is_resending: AtomicBool,
}

/// Work that a handler lists while it holds a lock, to be done when no lock is held.
#[derive(Default)]
pub(crate) struct DeferredWork {
    pub(super) sends: Vec<(MemberId, Vec<u8>)>,
    pub(super) contributions: Vec<UnpublishedContribution>,
    /// Whether to ring the bell of this member, so that the layers above look for changes.
    pub(super) must_ring: bool,
}

impl DeferredWork {
    pub(super) fn add(&mut self, shared: &SharedCommunicator, sends: Sends) {
        self.sends
            .extend(sends.into_iter().map(|(rank, bytes)| (shared.group.member(rank), bytes)));
    }
}

/// A contribution to an agreement that is to be published.
pub(super) struct UnpublishedContribution {
    pub(super) shared: Arc<SharedCommunicator>,
    pub(super) is_recovery: bool,
    pub(super) bytes: Vec<u8>,
}

/// The interval at which the background tries unsent messages again.
pub(super) const RESEND: Duration = Duration::from_millis(1);

/// Whether the outbox is done with a message: it is on its way, or its receiver or this member is
/// gone.
fn needs_no_retry(sent: &engine::Result<bool>) -> bool {
    use engine::Error::{Dead, Ended, Forked};
    matches!(sent, Ok(true) | Err(Dead { .. } | Ended | Forked))
}

impl Rma {
    /// Sends a message of any length, waiting for room until the deadline of the call.
    pub(crate) fn transmit(&self, job: &Job, member: MemberId, bytes: &[u8]) -> engine::Result<()> {
        if bytes.len() <= MESSAGE_LEN_MAX {
            return job.send(member, Port::Rma, bytes);
        }
        let number = self.long_messages.next_number();
        let sent = long_message::parts(number, bytes, MESSAGE_LEN_MAX)
            .try_for_each(|part| job.send(member, Port::Rma, &part));
        if sent.is_err() {
            // Without this the receiver would keep the first parts for ever.
            self.post(job, member, long_message::given_up(number));
        }
        sent
    }

    /// Does the deferred work. Called without any lock.
    pub(crate) fn run_deferred(&self, job: &Job, mut deferred: DeferredWork) {
        if deferred.must_ring {
            let _ = job.ring(self.me);
        }
        loop {
            for (member, bytes) in std::mem::take(&mut deferred.sends) {
                self.post(job, member, bytes);
            }
            if deferred.contributions.is_empty() {
                return;
            }
            for contribution in std::mem::take(&mut deferred.contributions) {
                if !self.publish(job, contribution, &mut deferred) {
                    // The background tries it again, from time to time.
                    let _ = job.ring(self.me);
                }
            }
        }
    }

    /// Publishes a contribution, or keeps it for later if a living member has no room for it.
    /// Returns whether it is published.
    fn publish(
        &self,
        job: &Job,
        contribution: UnpublishedContribution,
        deferred: &mut DeferredWork,
    ) -> bool {
        let others = contribution.shared.group.others();
        let published = job.try_publish(others, Port::Rma, &contribution.bytes);
        if !needs_no_retry(&published) {
            lock(&self.outbox.unpublished).push(contribution);
            self.outbox.unpublished_count.fetch_add(1, Ordering::SeqCst);
            return false;
        }
        // Otherwise this member has left the job.
        if published == Ok(true) {
            let mut state = lock(&contribution.shared.state);
            if contribution.is_recovery {
                state.recovery.set_published();
            } else {
                state.creation.set_published();
            }
            self.finish_abandoned_creation(&contribution.shared, &mut state, deferred);
        }
        true
    }

    /// Tries to publish the contributions that found no room.
    pub(super) fn publish_again(&self, job: &Job) {
        if self.outbox.unpublished_count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let kept = std::mem::take(&mut *lock(&self.outbox.unpublished));
        let kept_count = kept.len();
        let mut deferred = DeferredWork::default();
        let mut is_any_out = false;
        for contribution in kept {
            is_any_out |= self.publish(job, contribution, &mut deferred);
        }
        // Only now: if contributions were not counted while they are tried, the background would
        // see none to publish again, and sleep.
        self.outbox.unpublished_count.fetch_sub(kept_count, Ordering::SeqCst);
        self.run_deferred(job, deferred);
        if is_any_out {
            // Waiters for the outcome may have it now.
            self.wake_waiters(job);
        }
    }

    // ---- Messages of the layer itself.

    /// Sends a message that may neither be lost nor hold the caller up; see the head of `progress`.
    pub(crate) fn post(&self, job: &Job, member: MemberId, bytes: Vec<u8>) {
        if bytes.len() <= TRY_SEND_LEN_MAX {
            return self.post_part(job, member, bytes);
        }
        let number = self.long_messages.next_number();
        long_message::parts(number, &bytes, TRY_SEND_LEN_MAX)
            .for_each(|part| self.post_part(job, member, part));
    }

    fn post_part(&self, job: &Job, member: MemberId, bytes: Vec<u8>) {
        // Earlier messages to this member that could not be sent come first.
        let is_behind = self.outbox.has_unsent.load(Ordering::SeqCst)
            && lock(&self.outbox.unsent).contains_key(&member);
        if !is_behind && needs_no_retry(&job.try_send(member, Port::Rma, &bytes)) {
            return;
        }
        {
            let mut unsent = lock(&self.outbox.unsent);
            unsent.entry(member).or_default().push_back(bytes);
            self.outbox.has_unsent.store(true, Ordering::SeqCst);
        }
        // The background has to know that there is a message to send again.
        let _ = job.ring(self.me);
    }

    /// Tries to send the unsent messages, unless another activity does.
    pub(super) fn resend(&self, job: &Job) {
        if !self.outbox.has_unsent.load(Ordering::SeqCst)
            || self.outbox.is_resending.swap(true, Ordering::SeqCst)
        {
            return;
        }
        let members: Vec<MemberId> = lock(&self.outbox.unsent).keys().copied().collect();
        for member in members {
            // The first message stays in the list, empty, while it is tried: other activities
            // append behind it.
            let first =
                || Some(std::mem::take(lock(&self.outbox.unsent).get_mut(&member)?.front_mut()?));
            while let Some(bytes) = first() {
                let needs_no_retry = needs_no_retry(&job.try_send(member, Port::Rma, &bytes));
                let mut unsent = lock(&self.outbox.unsent);
                let Some(list) = unsent.get_mut(&member) else { break };
                if !needs_no_retry {
                    list[0] = bytes;
                    break;
                }
                list.pop_front();
                if list.is_empty() {
                    unsent.remove(&member);
                }
            }
        }
        {
            let unsent = lock(&self.outbox.unsent);
            self.outbox.has_unsent.store(!unsent.is_empty(), Ordering::SeqCst);
        }
        self.outbox.is_resending.store(false, Ordering::SeqCst);
    }

    /// Whether there are messages to send or contributions to publish.
    pub(super) fn owes_messages(&self) -> bool {
        self.outbox.has_unsent.load(Ordering::SeqCst)
            || self.outbox.unpublished_count.load(Ordering::SeqCst) > 0
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::Service;
    use crate::engine::message_cost;
    use crate::sim::{self, Options};

    #[test]
    fn messages_refused_for_lack_of_memory_are_sent_again() {
        let error = engine::Error::OutOfMemory { wanted: 1, reason: String::new() };
        assert!(!needs_no_retry(&Err(error)) && !needs_no_retry(&Ok(false)));
        assert!(needs_no_retry(&Ok(true)) && needs_no_retry(&Err(engine::Error::Ended)));
    }

    /// A long message to a member that takes no messages is given up, and the member is told so
    /// when it takes messages again.
    #[test]
    fn a_long_message_that_times_out_leaves_nothing_behind() {
        let mut options = Options::new(2, 1);
        options.message_credit = message_cost(MESSAGE_LEN_MAX);
        options.time_limit = Duration::from_millis(10);
        sim::run(&options, |job| {
            let rma = Rma::new(job.me(), job.can_publish());
            let limit = job.time_limit();
            if job.me() == MemberId(0) {
                let sent = rma.transmit(&job, MemberId(1), &vec![1; 4 * MESSAGE_LEN_MAX]);
                assert!(matches!(sent, Err(engine::Error::Timeout { .. })), "{sent:?}");
                assert!(rma.outbox.has_unsent.load(Ordering::SeqCst));
            }
            job.sleep(2 * limit);
            for _ in 0..20 {
                rma.run(&job);
                let until = job.now().after(limit / 10);
                job.park(job.bell(), until);
            }
            assert_eq!(rma.long_messages.partial_count(), 0);
            assert!(!rma.outbox.has_unsent.load(Ordering::SeqCst));
            job.sleep(limit);
            job.leave().unwrap();
        })
        .expect_ok();
    }
}

//! Progress: how waiting activities and the background handle the messages of all communicators.
//!
//! *The token.* Only the holder of the token handles messages of the port: a waiting activity, or
//! the background while the program computes. So the messages of a sender are handled in their
//! order. An activity that does not get the token leaves a note in it, and the holder then polls
//! once more before it gives the token up: no message is left behind by an activity that is about
//! to finish. An activity that handled messages for others rings the bell of this member
//! afterwards.
//!
//! *The lease.* Calls come in bursts, and the messages of the next call often arrive just before
//! it. So a member does not cease to attend to the port when a wait ends: it holds a lease, which
//! its background ends when no wait has begun for a while. Until then the background sleeps, and
//! senders need not wake it.
//!
//! *Deferred work.* A handler changes the state of a communicator under the lock of that
//! communicator and lists the messages to send. They are sent after the lock was released: no lock
//! of the process is held across a call of the engine.
//!
//! *No waiting with the token.* The holder of the token waits for no other member: if it waited for
//! a receiver to make room, and the receiver waited for this member, both would wait in vain. So
//! messages of the layer itself (steps of agreements, revokes, published contributions) are only
//! tried. The outbox keeps a message that its receiver did not take, in order, and every activity
//! that makes progress tries it again, as does the background every [`RESEND`], until the receiver
//! takes it or is dead: a member that was stopped with a full queue receives all of them when it
//! goes on. The outbox stays small, since hardly any operation goes on without a member that does
//! not answer. Messages of the program and steps of collective operations are different: their
//! callers wait for room, up to the time limit.
//!
//! *Deadlines.* Each call of a program begins with [`begin_call`], and all its waits share the
//! deadline of the call ([`deadline`]): those of [`Rma::block`], and those inside the engine. So a
//! long message, an exchange of several steps or an agreement after an unfinished agreement takes a
//! single time limit, although other members hold up each wait of it for a while.
//!
//! *Deaths.* [`Rma::apply_view`] tells all communicators of the deaths of a view. A dead member
//! becomes *drained* when all messages that had arrived before the death was known have been
//! handled. Only then do waits for it fail: the program receives each message that a member sent
//! before it died or left, if the message came at all.

use super::agreement::Sends;
use super::credit::Lane;
use super::long_message::LongMessages;
use super::outbox::{DeferredWork, Outbox, RESEND};
use super::registry::{CREATION, RECOVERY, Registry, SharedCommunicator};
use super::wire::{self, Reader};
use super::{Error, Result};
use crate::engine::deadline::{self, Deadline};
use crate::engine::{self, Message, Port};
use crate::sync::lock;
use crate::{Job, MemberId, MemberSet, Service, Time};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The layer of a member: the state that all its communicators share.
pub(crate) struct Rma {
    pub(super) me: MemberId,
    token: AtomicU32,
    /// How many activities wait in [`Rma::block`].
    waiters: AtomicUsize,
    /// Whether the port is attended to between waits: [`LEASE_NONE`], [`LEASE_CHANGES`] or
    /// [`LEASE_HELD`].
    lease: AtomicU32,
    /// How many waits have begun, and how many of them the background has seen.
    waits: AtomicU64,
    waits_seen: AtomicU64,
    /// Whether the background checks the lease from time to time. It does not during a long wait;
    /// the end of the wait starts it again.
    is_lease_watched: AtomicBool,
    /// The epoch of the view that the communicators know, and the epoch of the deaths that are
    /// drained.
    seen_epoch: AtomicU64,
    drained_epoch: AtomicU64,
    pub(super) can_publish: bool,
    pub(super) registry: Registry,
    pub(super) outbox: Outbox,
    pub(super) long_messages: LongMessages,
}

/// How long the port stays attended to after a wait. A message may lie unread at a computing member
/// for at most twice this long.
const LEASE: Duration = Duration::from_micros(500);

const LEASE_NONE: u32 = 0;
/// An activity is changing the lease.
const LEASE_CHANGES: u32 = 1;
const LEASE_HELD: u32 = 2;

const FREE: u32 = 0;
const HELD: u32 = 1;
/// The token is held, and another activity asked its holder to poll once more.
const AGAIN: u32 = 2;

/// Gives the token back, also when its holder panics.
struct Token<'a>(&'a AtomicU32);

impl Drop for Token<'_> {
    fn drop(&mut self) {
        self.0.store(FREE, Ordering::Release);
    }
}

/// Why this member is no part of the job any more: it has left, or this process was forked from it.
pub(super) fn why_ended(job: &Job) -> engine::Error {
    job.ring(job.me()).err().unwrap_or(engine::Error::Ended)
}

/// Begins a call of a program: all its waits share a deadline.
pub(super) fn begin_call(job: &Job) -> Deadline {
    Deadline::call(|| job.now())
}

impl Rma {
    /// Returns the layer of this member. The first call starts its service.
    pub(crate) fn of(job: &Job) -> Result<Arc<Rma>> {
        let me = job.me();
        let (rma, is_new) = job.layer(|| Rma::new(me, job.can_publish()));
        if is_new {
            job.serve(rma.clone())?;
        }
        Ok(rma)
    }

    pub(super) fn new(me: MemberId, can_publish: bool) -> Rma {
        Rma {
            me,
            token: AtomicU32::new(FREE),
            waiters: AtomicUsize::new(0),
            lease: AtomicU32::new(LEASE_NONE),
            waits: AtomicU64::new(0),
            waits_seen: AtomicU64::new(0),
            is_lease_watched: AtomicBool::new(true),
            seen_epoch: AtomicU64::new(0),
            drained_epoch: AtomicU64::new(0),
            can_publish,
            registry: Registry::new(me),
            outbox: Outbox::default(),
            long_messages: LongMessages::default(),
        }
    }

    // ---- Waiting.

    /// Waits until `poll` returns a result, making progress meanwhile. At the deadline returns the
    /// error that `timeout_error` makes.
    pub(crate) fn block<T>(
        &self,
        job: &Job,
        mut poll: impl FnMut() -> Option<Result<T>>,
        timeout_error: impl FnOnce(Duration) -> Error,
    ) -> Result<T> {
        if let Some(result) = poll() {
            return result;
        }
        /// Counts a waiting activity, also if it is unwound.
        struct Waiter<'a>(&'a AtomicUsize);
        impl Drop for Waiter<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let waiter = Waiter(&self.waiters);
        self.waits.fetch_add(1, Ordering::Relaxed);
        if self.lease.load(Ordering::Relaxed) == LEASE_NONE {
            self.take_lease(job);
        }
        let result = self.wait(job, poll, timeout_error);
        drop(waiter);
        // Sequentially consistent with `check_lease`: either that sees no waiter, or this sees that
        // the background does not watch.
        if !self.is_lease_watched.load(Ordering::SeqCst) {
            self.is_lease_watched.store(true, Ordering::SeqCst);
            let _ = job.ring(self.me);
        }
        result
    }

    fn wait<T>(
        &self,
        job: &Job,
        mut poll: impl FnMut() -> Option<Result<T>>,
        timeout_error: impl FnOnce(Duration) -> Error,
    ) -> Result<T> {
        let mut until = None;
        loop {
            let bell = job.bell();
            self.progress_as(job, 1);
            self.publish_again(job);
            self.resend(job);
            if let Some(result) = poll() {
                return result;
            }
            if job.has_ended() {
                return Err(Error::Engine(why_ended(job)));
            }
            let (now, limit) = (job.now(), job.time_limit());
            let until = *until.get_or_insert_with(|| deadline::until(now, limit));
            if now >= until {
                return Err(timeout_error(limit));
            }
            job.park(bell, until);
        }
    }

    // ---- Progress.

    /// Handles the messages that have arrived, unless another activity does.
    pub(crate) fn progress(&self, job: &Job) {
        self.progress_as(job, 0);
    }

    /// [`Rma::progress`] by an activity that counts `own` times among the waiters.
    fn progress_as(&self, job: &Job, own: usize) {
        loop {
            match self.token.compare_exchange(FREE, HELD, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(AGAIN) => return,
                Err(_) => {
                    let left = self.token.compare_exchange(
                        HELD,
                        AGAIN,
                        Ordering::SeqCst,
                        Ordering::Relaxed,
                    );
                    if left.is_ok() {
                        return;
                    }
                }
            }
        }
        let token = Token(&self.token);
        let mut has_changed = false;
        loop {
            self.apply_view(job);
            let undrained_deaths = self.undrained_deaths();
            while let Some(message) = job.receive(Port::Rma) {
                has_changed = true;
                // The message may have brought news of deaths.
                self.apply_view(job);
                let mut deferred = DeferredWork::default();
                self.handle(message, &mut deferred);
                self.run_deferred(job, deferred);
            }
            has_changed |= self.deliver_early(job);
            if let Some((epoch, dead)) = undrained_deaths {
                has_changed = true;
                self.mark_drained(job, epoch, &dead);
            }
            if self.seen_epoch.load(Ordering::Acquire) != self.drained_epoch.load(Ordering::Relaxed)
            {
                // More members have died. Handle their messages first.
                continue;
            }
            if self.token.compare_exchange(HELD, FREE, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            {
                break;
            }
            // Sequentially consistent: the receives after this swap serve every request made before
            // it.
            self.token.swap(HELD, Ordering::SeqCst);
        }
        std::mem::forget(token);
        if has_changed && self.waiters.load(Ordering::SeqCst) > own {
            let _ = job.ring(self.me);
        }
    }

    /// Handles a message. Messages that cannot be read are ignored.
    pub(super) fn handle(&self, mut message: Message, deferred: &mut DeferredWork) {
        let mut reader = Reader::new(&message.bytes);
        let (Some(kind), Some(id)) = (reader.u8(), reader.u64()) else { return };
        if kind == wire::PART {
            let Some(bytes) = self.long_messages.receive(message.from, id, reader) else { return };
            message.bytes = bytes;
            return self.handle(message, deferred);
        }
        if matches!(kind, wire::FREED | wire::GONE) {
            let ids = std::iter::once(id).chain(std::iter::from_fn(|| reader.u64()));
            for id in ids {
                self.receive_free_notice(kind, id, deferred);
            }
            return;
        }
        let Some((shared, message)) = self.registry.find(id, message) else { return };
        let mut reader = Reader::after_header(&message.bytes);
        let Some(from) = shared.group.rank_of(message.from) else { return };
        let mut sends = Sends::new();
        let mut guard = lock(&shared.state);
        let state = &mut *guard;
        match kind {
            wire::DATA => {
                if let Some(tag) = reader.u32() {
                    // The memory of the message is passed on: drain the header, keep the bytes.
                    let header_len = message.bytes.len() - reader.rest().len();
                    let mut bytes = message.bytes;
                    bytes.drain(..header_len);
                    if !shared.is_freed.load(Ordering::Relaxed) {
                        state.matcher.deliver(from, tag, bytes);
                    } else {
                        state.credits.consume(from, Lane::Program, header_len + bytes.len());
                        sends.extend(state.credits.take_reports(shared.id));
                    }
                }
            }
            wire::COLLECTIVE => state.collectives.deliver(from, reader.rest()),
            wire::CREDIT => state.credits.receive_report(from, reader.rest()),
            wire::BROKEN => state.collectives.break_off(reader.rest()),
            wire::ABORT => state.collectives.abort(from, reader.rest()),
            wire::AGREEMENT => {
                let bytes = reader.rest();
                match bytes.first() {
                    Some(&RECOVERY) => state.recovery.receive(from, bytes, &mut sends),
                    Some(&CREATION) => state.creation.receive(from, bytes, &mut sends),
                    _ => {}
                }
                self.finish_abandoned_creation(&shared, state, deferred);
            }
            wire::REVOKE => self.receive_revoke(&shared, state, from, &mut sends, deferred),
            wire::INTERRUPT => state.interrupted_by = Some(from),
            // A `NOTIFY` took effect when the engine received it.
            _ => {}
        }
        drop(guard);
        deferred.add(&shared, sends);
    }

    /// Wakes the waiting activities of this member, if any, after their state has changed.
    pub(crate) fn wake_waiters(&self, job: &Job) {
        // The lock of the change orders this load after it, and a wait is counted before it polls:
        // either the waiter sees the change, or this load sees the waiter.
        if self.waiters.load(Ordering::SeqCst) > 0 {
            let _ = job.ring(self.me);
        }
    }

    // ---- The lease.

    /// Attends to the port from now on. This is only a hint for the engine, so races between
    /// activities do no harm.
    #[cold]
    fn take_lease(&self, job: &Job) {
        let (none, changes) = (LEASE_NONE, LEASE_CHANGES);
        if self.lease.compare_exchange(none, changes, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            job.set_attending(Port::Rma, true);
            self.lease.store(LEASE_HELD, Ordering::SeqCst);
            // The background has to know that there is a lease to end.
            let _ = job.ring(self.me);
        }
    }

    /// Ends the lease if no wait has begun since the last check. Returns the time of the next
    /// check.
    fn check_lease(&self, job: &Job) -> Time {
        if self.lease.load(Ordering::SeqCst) == LEASE_NONE {
            return Time::NEVER;
        }
        let waits = self.waits.load(Ordering::Relaxed);
        let is_used = self.waits_seen.swap(waits, Ordering::Relaxed) != waits;
        if !is_used && self.waiters.load(Ordering::SeqCst) > 0 {
            self.is_lease_watched.store(false, Ordering::SeqCst);
            if self.waiters.load(Ordering::SeqCst) > 0 {
                return Time::NEVER;
            }
            self.is_lease_watched.store(true, Ordering::SeqCst);
        } else if !is_used {
            let (held, changes) = (LEASE_HELD, LEASE_CHANGES);
            if self
                .lease
                .compare_exchange(held, changes, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
            {
                job.set_attending(Port::Rma, false);
                self.lease.store(LEASE_NONE, Ordering::SeqCst);
                // Senders of messages that came meanwhile woke no activity.
                self.progress(job);
                return Time::NEVER;
            }
        }
        job.now().after(LEASE)
    }

    // ---- Deaths.

    /// Brings the communicators up to the view, whether or not another activity is doing so.
    pub(crate) fn refresh_view(&self, job: &Job) {
        if job.epoch().0 != self.seen_epoch.load(Ordering::Acquire) {
            self.apply_view(job);
            self.progress(job);
        }
    }

    /// Tells the communicators of the deaths of the view. Any activity may do so at any time: the
    /// set of known deaths only grows, and a late call with fewer deaths changes nothing.
    pub(super) fn apply_view(&self, job: &Job) {
        if job.epoch().0 == self.seen_epoch.load(Ordering::Acquire) {
            return;
        }
        let view = job.view();
        let mut deferred = DeferredWork::default();
        for shared in self.registry.apply_deaths(&view) {
            let dead = shared.group.ranks_of(&view.dead);
            let mut state = lock(&shared.state);
            if dead.len() <= state.dead.len() {
                continue;
            }
            let mut sends = Sends::new();
            state.dead = dead;
            state.left = shared.group.ranks_of(&view.left);
            let state = &mut *state;
            state.recovery.set_dead(&state.dead, &mut sends);
            state.creation.set_dead(&state.dead, &mut sends);
            self.spread_revoke(&shared, state, &mut sends);
            self.finish_abandoned_creation(&shared, state, &mut deferred);
            deferred.add(&shared, sends);
        }
        // Last: a reader that finds this epoch finds the communicators knowing it. Release pairs
        // with the loads that acquire.
        self.seen_epoch.fetch_max(view.epoch.0, Ordering::Release);
        self.run_deferred(job, deferred);
    }

    /// The dead, with their epoch, if some of them are not drained yet.
    fn undrained_deaths(&self) -> Option<(u64, MemberSet)> {
        let epoch = self.seen_epoch.load(Ordering::Acquire);
        // Only the holder of the token changes this, and the caller is the holder.
        let is_new = epoch != self.drained_epoch.load(Ordering::Relaxed);
        is_new.then(|| (epoch, self.registry.dead()))
    }

    /// Marks these members as drained: all messages that had arrived when their deaths were known
    /// have been handled.
    pub(super) fn mark_drained(&self, job: &Job, epoch: u64, dead: &MemberSet) {
        let mut deferred = DeferredWork::default();
        for shared in self.registry.mark_drained(dead) {
            self.set_drained(&shared, dead, &mut deferred);
        }
        self.run_deferred(job, deferred);
        self.long_messages.forget(dead);
        self.drained_epoch.store(epoch, Ordering::Relaxed);
    }

    /// Tells a communicator which members are drained; an agreement may have waited for that.
    pub(super) fn set_drained(
        &self,
        shared: &Arc<SharedCommunicator>,
        drained: &MemberSet,
        deferred: &mut DeferredWork,
    ) {
        let drained = shared.group.ranks_of(drained);
        let state = &mut *lock(&shared.state);
        // Another activity may be about to tell this communicator of further deaths, and whether
        // these members left. Leave such members out: they become drained later, since that
        // activity raises the epoch afterwards.
        let drained = drained.without(&drained.without(&state.dead));
        if state.drained != drained {
            state.drained = drained;
            state.recovery.set_drained(&state.drained);
            state.creation.set_drained(&state.drained);
            self.finish_abandoned_creation(shared, state, deferred);
        }
    }
}

impl Service for Rma {
    fn run(&self, job: &Job) -> Time {
        self.progress(job);
        self.resend(job);
        self.publish_again(job);
        let next = self.check_lease(job);
        if self.owes_messages() { next.min(job.now().after(RESEND)) } else { next }
    }

    /// Waits until all messages were sent: leaving would lose them.
    fn leaving(&self, job: &Job) {
        let mut until = None;
        while self.owes_messages() && !job.has_ended() {
            let bell = job.bell();
            self.resend(job);
            self.publish_again(job);
            let now = job.now();
            let until = *until.get_or_insert_with(|| deadline::until(now, job.time_limit()));
            if now >= until {
                return;
            }
            job.park(bell, until.min(now.after(RESEND)));
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::rma::testing::{after, data, handle, make, poll};

    /// In a communicator that is made right after a death, the messages of the dead member are
    /// received first.
    #[test]
    fn messages_of_the_dead_are_received_in_a_new_communicator() {
        let failed = Some(Err(Error::ProcFailed { ranks: vec![0] }));
        let expected = failed.clone();
        after(
            || vec![data(1)],
            move |job, rma| {
                rma.apply_view(job);
                // The message has arrived, and no activity has received it yet.
                let shared = make(rma);
                assert_eq!(poll(&shared), None);
                rma.progress(job);
                assert_eq!(poll(&shared), Some(Ok(vec![1])));
                assert_eq!(poll(&shared), expected);
            },
        );
        after(
            || vec![data(1)],
            move |job, rma| {
                rma.progress(job);
                // The message was received, and waits for the communicator.
                let shared = make(rma);
                assert_eq!(poll(&shared), None);
                rma.deliver_early_if_ready(job);
                assert_eq!(poll(&shared), Some(Ok(vec![1])));
                assert_eq!(poll(&shared), failed);
            },
        );
    }

    /// Early messages are delivered to a communicator while another activity is about to tell it of
    /// a further death: that member becomes drained there only after its death, and its cause, is
    /// known there.
    #[test]
    fn a_member_is_drained_only_after_the_communicator_knows_its_death() {
        after(
            || vec![data(1)],
            |job, rma| {
                handle(rma, job.receive(Port::Rma).unwrap());
                let shared = make(rma);
                // An activity has come this far with applying the view, and is held up.
                let dead = job.view().dead;
                rma.registry.set_dead(&dead);
                rma.mark_drained(job, 0, &dead);
                rma.deliver_early(job);
                assert!(
                    lock(&shared.state).drained.is_empty(),
                    "not known to be dead, let alone to have left"
                );
                rma.progress(job);
                let state = lock(&shared.state);
                assert_eq!((state.drained.to_vec(), state.left.to_vec()), (vec![0], vec![0]));
            },
        );
    }
}

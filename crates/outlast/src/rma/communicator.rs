//! The communicator: the calls of a program on a group of members.
//!
//! Local calls answer from the state of this member. Calls that wait check first that the
//! communicator is neither freed nor revoked; only `agree` and `shrink` work on a revoked
//! communicator. An agreement that ended with a timeout goes on, and the next call takes it up. On
//! a death see the head of [`crate::rma`].

use super::agreement::{AgreedValue, AgreementKind, Contribution, SplitPlace};
use super::collective::{
    CollectiveCall, CollectiveKind, Op, Signature, SingleCallGuard, float, signed, unsigned,
};
use super::credit::Lane;
use super::group::{Group, RankSet};
use super::outbox::DeferredWork;
use super::point_to_point::{PostedReceive, Received, Request, Source, Tag};
use super::progress::{Rma, begin_call, why_ended};
use super::registry::{CommunicatorState, SharedCommunicator, WORLD, everyone_id};
use super::wire::{self, Writer};
use super::{Error, Result, TAG_MAX};
use crate::sync::lock;
use crate::{Job, MemberId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A group of members that talk to each other, separate from all other communicators.
///
/// Members are named by their *rank* in it, from 0. Cheap to clone: all clones are handles of a
/// single communicator. Dropping it does nothing; see [`Communicator::free`].
///
/// Messages and receives may be used by many threads at once. Only a single thread at a time may
/// call collective operations and agreements on a communicator ([`Error::Busy`]); duplicate it for
/// other threads.
#[derive(Clone)]
pub struct Communicator {
    job: Job,
    rma: Arc<Rma>,
    shared: Arc<SharedCommunicator>,
}

/// The result of [`Communicator::agree_despite_failures`], equal at all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The bitwise and of the flags of the contributing members.
    pub flags: u64,
    /// The ranks that count as dead. They did not contribute, or died after they contributed.
    pub failed: Vec<usize>,
    /// The ranks in `failed` that some member had not acknowledged when it called.
    pub unacknowledged: Vec<usize>,
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let revoked = if self.is_revoked() { ", revoked" } else { "" };
        write!(
            f,
            "Communicator({:#x}, rank {} of {}{revoked})",
            self.id(),
            self.rank(),
            self.size()
        )
    }
}

impl Communicator {
    /// The communicator of the members that are active when the job starts, with ranks in the order
    /// of their ids. All calls return handles of a single communicator. Members that have died
    /// meanwhile belong to it, as failed members, and spares that took their places do not:
    /// otherwise members that call at different times would not agree on it.
    pub fn world(job: &Job) -> Result<Communicator> {
        let rma = Rma::of(job)?;
        // Not the members that are active now: spares become active as members die, at different
        // times for different members.
        let members = (0..job.view().regulars as u32).map(MemberId).collect();
        let group = Group::new(members, job.me()).ok_or_else(|| Error::Invalid {
            what: format!(
                "{} is a spare; it has no place among the members that are active from the start",
                job.me()
            ),
        })?;
        let shared = rma.find_or_make(WORLD, Arc::new(group));
        rma.deliver_early_if_ready(job);
        rma.refresh_view(job);
        Ok(Communicator { job: job.clone(), rma, shared })
    }

    /// A communicator of all members of the job, spares included, with their numbers as ranks. For
    /// a store: `number` tells the openings of all stores of the job apart.
    pub(crate) fn everyone(job: &Job, number: u64) -> Result<Communicator> {
        let rma = Rma::of(job)?;
        let members = (0..job.members() as u32).map(MemberId).collect();
        let group = Group::new(members, job.me()).ok_or(Error::Freed)?;
        let shared = rma.find_or_make(everyone_id(number), Arc::new(group));
        rma.deliver_early_if_ready(job);
        rma.refresh_view(job);
        Ok(Communicator { job: job.clone(), rma, shared })
    }

    fn child(&self, shared: Arc<SharedCommunicator>) -> Communicator {
        Communicator { job: self.job.clone(), rma: self.rma.clone(), shared }
    }

    // ---- Members and ranks.

    /// The job that the communicator belongs to.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// This member's rank.
    pub fn rank(&self) -> usize {
        self.shared.group.me
    }

    /// How many ranks there are, the dead included.
    pub fn size(&self) -> usize {
        self.shared.group.size()
    }

    /// The members in the order of their ranks.
    pub fn members(&self) -> &[MemberId] {
        self.shared.group.members()
    }

    /// The member that has a rank.
    pub fn member(&self, rank: usize) -> Result<MemberId> {
        self.check_rank(rank)?;
        Ok(self.shared.group.member(rank))
    }

    /// The rank that a member has, if it belongs to the communicator.
    pub fn rank_of(&self, member: MemberId) -> Option<usize> {
        self.shared.group.rank_of(member)
    }

    /// An identity that no other communicator of the job has, had or will have.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    fn check_rank(&self, rank: usize) -> Result<()> {
        let size = self.size();
        if rank < size { Ok(()) } else { Err(Error::RankOutOfRange { rank, size }) }
    }

    fn check_tag(&self, tag: u32) -> Result<()> {
        if tag <= TAG_MAX { Ok(()) } else { Err(Error::TagOutOfRange { tag }) }
    }

    fn check_freed(&self) -> Result<()> {
        if self.shared.is_freed.load(Ordering::SeqCst) { Err(Error::Freed) } else { Ok(()) }
    }

    /// The check at the beginning of every call that is not local, except `agree` and `shrink`.
    fn check_usable(&self) -> Result<()> {
        self.check_freed()?;
        if self.is_revoked() { Err(Error::Revoked) } else { Ok(()) }
    }

    /// The check of a call that need not send or wait, and so does not notice otherwise that this
    /// member has left the job, or that this process was forked from it.
    fn check_member(&self) -> Result<()> {
        if self.job.has_ended() { Err(Error::Engine(why_ended(&self.job))) } else { Ok(()) }
    }

    // ---- Messages.

    /// Sends a message. When the call returns, the send is complete and `bytes` may be used again.
    /// The message is received when the receiver asks for it, unless either member dies before. A
    /// rank that has sent several megabytes which the receiver has not received waits before it
    /// sends more; [`Error::Timeout`] if the receiver receives nothing until the time limit.
    pub fn send(&self, to: usize, tag: u32, bytes: &[u8]) -> Result<()> {
        let _call = begin_call(&self.job);
        self.check_rank(to)?;
        self.check_tag(tag)?;
        self.check_usable()?;
        if to == self.rank() {
            self.check_member()?;
            lock(&self.shared.state).matcher.deliver(to, tag, bytes.to_vec());
            self.rma.wake_waiters(&self.job);
            return Ok(());
        }
        self.rma.refresh_view(&self.job);
        if lock(&self.shared.state).dead.contains(to) {
            return Err(Error::ProcFailed { ranks: vec![to] });
        }
        let mut writer = Writer::new(wire::DATA, self.id(), 4 + bytes.len());
        writer.u32(tag).bytes(bytes);
        let check = || {
            self.check_usable()?;
            match lock(&self.shared.state).dead.contains(to) {
                true => Err(Error::ProcFailed { ranks: vec![to] }),
                false => Ok(()),
            }
        };
        let bytes = writer.done();
        self.rma.send_on_credit(&self.job, &self.shared, to, Lane::Program, &bytes, check)
    }

    /// [`Communicator::send`] as a request, which is complete at once.
    pub fn start_send(&self, to: usize, tag: u32, bytes: &[u8]) -> Result<Request> {
        self.send(to, tag, bytes)?;
        Ok(Request::sent(&self.job, &self.rma, &self.shared, tag))
    }

    /// Receives the oldest message that matches, waiting for it if need be. A call that fails loses
    /// no message.
    pub fn receive(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<Received> {
        self.receive_at_most(from.into(), tag.into(), usize::MAX)
    }

    /// Receives into `buffer`. Returns source, tag and length of the message. [`Error::Truncated`]
    /// if the message is longer than the buffer; it is then not received.
    pub fn receive_into(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
        buffer: &mut [u8],
    ) -> Result<(usize, u32, usize)> {
        let received = self.receive_at_most(from.into(), tag.into(), buffer.len())?;
        buffer[..received.bytes.len()].copy_from_slice(&received.bytes);
        Ok((received.source, received.tag, received.bytes.len()))
    }

    fn receive_at_most(&self, from: Source, tag: Tag, len_max: usize) -> Result<Received> {
        let _call = begin_call(&self.job);
        let posted = self.post(from, tag, len_max)?;
        let poll =
            || self.shared.poll_receive(&posted).or_else(|| self.shared.take_interrupt().map(Err));
        let result = self.rma.block(&self.job, poll, |limit| {
            self.shared.timeout(self.shared.waited_for(&posted), limit)
        });
        if result.is_err() {
            self.rma.cancel_receive(&self.job, &self.shared, &posted);
        }
        self.rma.count_consumed(&self.job, &self.shared, &result);
        result
    }

    /// Starts a receive.
    pub fn start_receive(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<Request> {
        let posted = self.post(from.into(), tag.into(), usize::MAX)?;
        Ok(Request::receive(&self.job, &self.rma, &self.shared, posted))
    }

    /// Source, tag and length of the message that a receive would take now, if there is any.
    pub fn probe(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Option<(usize, u32, usize)>> {
        let (from, tag) = (from.into(), tag.into());
        self.check_match(from, tag)?;
        self.check_member()?;
        self.rma.progress(&self.job);
        Ok(lock(&self.shared.state).matcher.peek(from, tag))
    }

    fn check_match(&self, from: Source, tag: Tag) -> Result<()> {
        if let Source::Rank(rank) = from {
            self.check_rank(rank)?;
        }
        if let Tag::Is(tag) = tag {
            self.check_tag(tag)?;
        }
        self.check_usable()
    }

    fn post(&self, from: Source, tag: Tag, len_max: usize) -> Result<Arc<PostedReceive>> {
        self.check_match(from, tag)?;
        Ok(lock(&self.shared.state).matcher.post(from, tag, len_max))
    }

    // ---- Collective operations.

    fn call(
        &self,
        kind: CollectiveKind,
        detail: u8,
        root: usize,
        len: usize,
    ) -> Result<CollectiveCall<'_>> {
        self.check_usable()?;
        if self.size() == 1 {
            self.check_member()?;
        }
        self.rma.refresh_view(&self.job);
        CollectiveCall::begin(
            &self.job,
            &self.rma,
            &self.shared,
            Signature::new(kind, detail, root, len),
        )
    }

    /// Returns when all members have called it.
    pub fn barrier(&self) -> Result<()> {
        self.call(CollectiveKind::Barrier, 0, 0, 0)?.barrier()
    }

    /// Gives all members the root's bytes. All members must give buffers of equal length.
    pub fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<()> {
        self.check_rank(root)?;
        self.call(CollectiveKind::Broadcast, 0, root, bytes.len())?.broadcast(root, bytes)
    }

    /// Combines the values of all members, element by element; all members get the result. On an
    /// error `values` is unspecified.
    pub fn allreduce_u64(&self, op: Op, values: &mut [u64]) -> Result<()> {
        self.call(CollectiveKind::ReduceUnsigned, op as u8, 0, values.len())?
            .reduce(values, unsigned(op))
    }

    /// [`Communicator::allreduce_u64`] for signed numbers.
    pub fn allreduce_i64(&self, op: Op, values: &mut [i64]) -> Result<()> {
        let call = self.call(CollectiveKind::ReduceSigned, op as u8, 0, values.len())?;
        let mut words: Vec<u64> = values.iter().map(|&value| value as u64).collect();
        call.reduce(&mut words, signed(op))?;
        values.iter_mut().zip(words).for_each(|(value, word)| *value = word as i64);
        Ok(())
    }

    /// [`Communicator::allreduce_u64`] for floating-point numbers; `And` and `Or` are refused. All
    /// members get equal bits.
    pub fn allreduce_f64(&self, op: Op, values: &mut [f64]) -> Result<()> {
        let combine = float(op).ok_or_else(|| Error::Invalid {
            what: format!("{op:?} does not combine floating-point numbers"),
        })?;
        let call = self.call(CollectiveKind::ReduceFloat, op as u8, 0, values.len())?;
        let mut words: Vec<u64> = values.iter().map(|value| value.to_bits()).collect();
        call.reduce(&mut words, combine)?;
        values.iter_mut().zip(words).for_each(|(value, word)| *value = f64::from_bits(word));
        Ok(())
    }

    /// Gathers the bytes of every member, of any length each, by rank.
    pub fn allgather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.call(CollectiveKind::Gather, 0, 0, 0)?.gather(bytes)
    }

    // ---- New communicators.

    /// A new communicator of the members of this communicator. Collective; fails if a member is
    /// dead. If it fails at some members only, the new communicator is revoked.
    pub fn duplicate(&self) -> Result<Communicator> {
        let (_, made) = self.agreement(AgreementKind::Duplicate, u64::MAX, None)?;
        made.map(|shared| self.child(shared)).ok_or(Error::Revoked)
    }

    /// A new communicator of the members that give equal colours, in the order of their keys, and
    /// of their ranks where keys are equal. A member that gives `None` as colour belongs to no new
    /// communicator. Collective, like `duplicate`.
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Communicator>> {
        let color = color.map_or(0, |color| u64::from(color) + 1);
        let place = SplitPlace { rank: self.rank() as u32, color, key };
        let (_, made) = self.agreement(AgreementKind::Split, u64::MAX, Some(place))?;
        Ok(made.map(|shared| self.child(shared)))
    }

    /// Ends this member's use of the communicator: all further calls on it, by all handles, return
    /// [`Error::Freed`]. Local: the others may still use it among themselves.
    pub fn free(&self) -> Result<()> {
        if self.id() == WORLD {
            return Err(Error::Invalid {
                what: "the communicator of all members cannot be freed".into(),
            });
        }
        if self.shared.is_freed.swap(true, Ordering::SeqCst) {
            return Err(Error::Freed);
        }
        self.rma.drop_unreceived(&self.job, &self.shared);
        let mut deferred = DeferredWork::default();
        self.rma.report_freed(&self.shared, &mut deferred);
        self.rma.run_deferred(&self.job, deferred);
        // Waits of other threads on it end.
        self.rma.wake_waiters(&self.job);
        Ok(())
    }

    // ---- Failures.

    /// Makes the communicator unusable for all its members, also for members that wait in it now:
    /// all calls that are not local, except `agree` and `shrink`, return [`Error::Revoked`].
    /// Returns at once, and cannot be undone.
    pub fn revoke(&self) -> Result<()> {
        self.check_freed()?;
        let mut deferred = DeferredWork::default();
        self.rma.revoke(&self.shared, &mut lock(&self.shared.state), &mut deferred);
        self.rma.run_deferred(&self.job, deferred);
        // Other threads of this member may wait in it.
        self.rma.wake_waiters(&self.job);
        Ok(())
    }

    /// Whether a member has revoked the communicator, as far as this member knows. A single load.
    /// The background receives revokes, so the answer is right also at a member that has made no
    /// other call since.
    pub fn is_revoked(&self) -> bool {
        self.shared.is_revoked.load(Ordering::SeqCst)
    }

    /// A new communicator of the living members. All living members call it; it also works if the
    /// communicator is revoked or members die meanwhile. Members that die during the call may
    /// belong to the new communicator.
    pub fn shrink(&self) -> Result<Communicator> {
        let (_, made) = self.agreement(AgreementKind::Shrink, u64::MAX, None)?;
        made.map(|shared| self.child(shared)).ok_or(Error::Freed)
    }

    /// The bitwise and of the flags of all members that contributed, among them all living members.
    /// All members that return get equal flags, whichever members die at any time. It works on a
    /// revoked communicator, too. Afterwards all members know at least the failures that any of
    /// them knew before.
    ///
    /// [`Error::ProcFailed`], at all members or at none, if there are failures that a member had
    /// not acknowledged ([`Communicator::failure_ack`]) when it called;
    /// [`Communicator::agree_despite_failures`] returns the flags in that case.
    ///
    /// After [`Error::Timeout`] the agreement goes on with the flags of this member: call it again
    /// to get its outcome.
    pub fn agree(&self, flags: u64) -> Result<u64> {
        let (value, _) = self.agreement(AgreementKind::Agree, flags, None)?;
        if value.unacked.is_empty() {
            Ok(value.flags)
        } else {
            Err(Error::ProcFailed { ranks: value.unacked.to_vec() })
        }
    }

    /// [`Communicator::agree`] with the failures as a part of the result.
    pub fn agree_despite_failures(&self, flags: u64) -> Result<Agreement> {
        let (value, _) = self.agreement(AgreementKind::Agree, flags, None)?;
        Ok(Agreement {
            flags: value.flags,
            failed: value.dead.to_vec(),
            unacknowledged: value.unacked.to_vec(),
        })
    }

    /// Acknowledges all failures that this member knows: receives from any source go on despite
    /// them, and `agree` does not report them.
    pub fn failure_ack(&self) -> Result<()> {
        self.check_freed()?;
        self.rma.refresh_view(&self.job);
        let mut state = lock(&self.shared.state);
        state.acked = state.dead.clone();
        Ok(())
    }

    /// The ranks of the failures that were acknowledged.
    pub fn failure_get_acked(&self) -> Result<Vec<usize>> {
        self.check_freed()?;
        Ok(lock(&self.shared.state).acked.to_vec())
    }

    /// The ranks that are dead, as far as this member knows. Local, and acknowledges nothing.
    pub fn get_failed(&self) -> Result<Vec<usize>> {
        self.check_freed()?;
        self.rma.refresh_view(&self.job);
        Ok(lock(&self.shared.state).dead.to_vec())
    }

    /// Ends another member's blocking wait on this communicator with [`Error::Interrupted`]: its
    /// current wait, or else its next wait. A wait is that for a message, and that for a lock of a
    /// window of this communicator. Collective operations and agreements are not interrupted; they
    /// end by themselves or by [`Communicator::revoke`].
    pub fn interrupt(&self, rank: usize) -> Result<()> {
        let _call = begin_call(&self.job);
        self.check_rank(rank)?;
        self.check_usable()?;
        if rank == self.rank() {
            lock(&self.shared.state).interrupted_by = Some(rank);
            self.rma.wake_waiters(&self.job);
            return Ok(());
        }
        self.tell(rank, wire::INTERRUPT)
    }

    /// Tells these ranks of all failures that this member knows; their own calls then know them
    /// too. Useful where only some members need to know and revoking would stop all of them. Dead
    /// ranks in the list are skipped.
    pub fn notify_failures(&self, ranks: &[usize]) -> Result<()> {
        let _call = begin_call(&self.job);
        ranks.iter().try_for_each(|&rank| self.check_rank(rank))?;
        self.check_usable()?;
        self.rma.refresh_view(&self.job);
        for &rank in ranks.iter().filter(|&&rank| rank != self.rank()) {
            match self.tell(rank, wire::NOTIFY) {
                Ok(()) | Err(Error::ProcFailed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn tell(&self, rank: usize, kind: u8) -> Result<()> {
        let bytes = Writer::new(kind, self.id(), 0).done();
        let sent = self.rma.transmit(&self.job, self.shared.group.member(rank), &bytes);
        sent.map_err(|error| Error::from_engine(error, rank))
    }

    // ---- Agreements.

    /// Takes part in an agreement, and makes the communicator that follows from it.
    fn agreement(
        &self,
        kind: AgreementKind,
        flags: u64,
        place: Option<SplitPlace>,
    ) -> Result<(Arc<AgreedValue>, Option<Arc<SharedCommunicator>>)> {
        let _call = begin_call(&self.job);
        self.check_freed()?;
        let is_recovery = matches!(kind, AgreementKind::Agree | AgreementKind::Shrink);
        let _guard = SingleCallGuard::take(if is_recovery {
            &self.shared.in_agreement
        } else {
            &self.shared.in_collective
        })?;
        self.rma.refresh_view(&self.job);
        if !is_recovery {
            self.check_usable()?;
            let state = lock(&self.shared.state);
            // Members that left do not end the call here: other members that do not know of the
            // leave yet wait for this member, and no death will come to end their wait.
            if !state.dead.is_subset(&state.left) {
                return Err(Error::ProcFailed { ranks: state.dead.to_vec() });
            }
            if let Some(ranks) = state.collectives.broken_before() {
                return Err(Error::ProcFailed { ranks: ranks.to_vec() });
            }
        }
        // An agreement that ended with a timeout goes on: this call takes it up again if it is of
        // this kind, and waits for its end otherwise.
        let open = {
            let state = lock(&self.shared.state);
            let agreements = if is_recovery { &state.recovery } else { &state.creation };
            agreements.unfinished()
        };
        if let Some(open) = open {
            let value = self.await_decision(is_recovery)?;
            if open == kind {
                return self.conclude(kind, value);
            }
        }
        let id = match kind {
            AgreementKind::Agree => u64::MAX,
            AgreementKind::Split => self.rma.propose_ids(self.size() + 1),
            _ => self.rma.propose_ids(1),
        };
        let mut deferred = DeferredWork::default();
        let decided = {
            let mut state = lock(&self.shared.state);
            let acked =
                if kind == AgreementKind::Agree { state.acked.clone() } else { RankSet::default() };
            let own = Contribution { kind, flags, id, acked, place };
            self.rma.enter_agreement(&self.shared, &mut state, own, &mut deferred);
            state.take_decision(is_recovery)
        };
        self.rma.run_deferred(&self.job, deferred);
        let value = match decided {
            Some(value) => value,
            None => self.await_decision(is_recovery)?,
        };
        self.conclude(kind, value)
    }

    fn await_decision(&self, is_recovery: bool) -> Result<Arc<AgreedValue>> {
        let poll = || {
            let mut state = lock(&self.shared.state);
            if let Some(value) = state.take_decision(is_recovery) {
                return Some(Ok(value));
            }
            if is_recovery {
                return None;
            }
            // Members that have not entered yet may never do so: leave the agreement.
            // `Rma::finish_abandoned_creation` handles its outcome.
            let error = if self.is_revoked() {
                Error::Revoked
            } else if !state.drained.is_subset(&state.left) {
                Error::ProcFailed { ranks: state.drained.to_vec() }
            } else if let Some(ranks) = state.collectives.broken_before() {
                Error::ProcFailed { ranks: ranks.to_vec() }
            } else {
                return None;
            };
            state.is_creation_abandoned = true;
            Some(Err(error))
        };
        self.rma.block(&self.job, poll, |limit| {
            let state = lock(&self.shared.state);
            let agreements = if is_recovery { &state.recovery } else { &state.creation };
            self.shared.timeout(agreements.waits_for().unwrap_or(self.rank()), limit)
        })
    }

    fn conclude(
        &self,
        kind: AgreementKind,
        value: Arc<AgreedValue>,
    ) -> Result<(Arc<AgreedValue>, Option<Arc<SharedCommunicator>>)> {
        // The decision may have been made after this member left the job, and so without later
        // contributions of the other members, which no longer send to it. Decisions from before the
        // leave hold.
        self.check_member()?;
        if !value.is_of(kind) {
            return Err(Error::Mismatched {
                what: format!("here {kind:?}, at another member another operation"),
            });
        }
        if !value.dead.is_empty() && matches!(kind, AgreementKind::Duplicate | AgreementKind::Split)
        {
            return Err(Error::ProcFailed { ranks: value.dead.to_vec() });
        }
        if kind == AgreementKind::Agree {
            return Ok((value, None));
        }
        let made = self.rma.make_agreed(&self.shared, kind, &value);
        self.rma.deliver_early_if_ready(&self.job);
        Ok((value, made))
    }

    // ---- For windows.

    /// Waits until `poll` returns a result, making progress meanwhile. Ends with
    /// [`Error::Revoked`], [`Error::Interrupted`], or [`Error::Timeout`] naming `awaited()`.
    pub(crate) fn wait_until<T>(
        &self,
        awaited: impl Fn() -> usize,
        mut poll: impl FnMut() -> Option<Result<T>>,
    ) -> Result<T> {
        let poll = || {
            poll().or_else(|| {
                if let Err(error) = self.check_usable() {
                    return Some(Err(error));
                }
                self.shared.take_interrupt().map(Err)
            })
        };
        self.rma.block(&self.job, poll, |limit| self.shared.timeout(awaited(), limit))
    }
}

impl CommunicatorState {
    fn take_decision(&mut self, is_recovery: bool) -> Option<Arc<AgreedValue>> {
        let agreements = if is_recovery { &mut self.recovery } else { &mut self.creation };
        agreements.take_decision()
    }
}

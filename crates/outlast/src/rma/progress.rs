//! What a member keeps for all its communicators, and how messages move on.
//!
//! Messages of the port are handled by whoever has the *token*: a waiting activity, or the background while the
//! program computes. So the messages of one sender are handled in their order. Who does not get the token leaves a
//! note for the one who has it, who then looks once more before giving it up: no message is left behind by an
//! activity that is about to finish. Whoever handled something for others rings the own bell afterwards.
//!
//! Calls come in bursts, and the messages of the next call often arrive just before it. So a member does not cease to
//! attend to the port when a wait ends: it holds a *lease*, which its background ends when no wait has begun for a
//! while. Until then the background sleeps, and senders need not wake it.
//!
//! A handler changes the state of a communicator under that communicator's lock and lists what is to be sent. The
//! sending happens after the lock was released: no lock of the process is held across a call of the engine.
//!
//! Whoever has the token waits for nobody: if it waited for a receiver to make room, and that one for this member, both
//! would wait in vain. So what the layer itself has to say (steps of agreements, revokes) is only tried. What its
//! receiver does not take is kept, in order, and tried again by whoever makes progress, and by the background every
//! [`RESEND`], until the receiver takes it or is dead: a member that was stopped with a full queue hears all of it when it
//! goes on; so are contributions to agreements, which are published. That is never much, as hardly anything goes on without a member that does not answer. Messages of the program and steps of
//! collective operations are different: their callers wait for room, and hear of the time limit.

use super::agreement::{ALL, Contribution, Kind, Place, Sends, Value};
use super::collective::Collectives;
use super::group::{Group, RankSet};
use super::one_round::Agreeing;
use super::point_to_point::Points;
use super::wire::{self, Reader, Writer};
use super::{Error, Result};
use crate::engine::{self, MESSAGE_LEN_MAX, Message, Port, TRY_SEND_LEN_MAX};
use crate::{Engine, Job, MemberId, MemberSet, Service, Time};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The identity of the communicator of all; those made later are larger.
pub(crate) const WORLD: u64 = 0;

/// The identity of the communicator of all members, spares included.
pub(crate) const EVERYONE: u64 = 1;

/// How many bits of an identity number the communicators that one member proposed.
const NUMBER_BITS: u32 = 44;

/// What a member keeps for all its communicators.
pub(crate) struct Rma {
    me: MemberId,
    token: AtomicU32,
    /// How many activities wait in [`Rma::block`].
    waiters: AtomicUsize,
    /// Whether the port is attended to between waits; one of the constants below.
    lease: AtomicU32,
    /// How many waits there have been, and how many the background knows of.
    waits: AtomicU64,
    waits_seen: AtomicU64,
    /// Whether the background looks at the lease from time to time. Not during a long wait, whose end tells it.
    is_lease_watched: AtomicBool,
    /// The epoch of the view that the communicators know, and of the deaths that are noted as silent.
    seen_epoch: AtomicU64,
    silent_epoch: AtomicU64,
    /// Whether there are communicators in [`Registry::ready`].
    has_ready: AtomicBool,
    registry: Mutex<Registry>,
    /// The next identity to propose; see [`Rma::propose_ids`].
    next_id: AtomicU64,
    next_part: AtomicU32,
    /// What is to be said of freed communicators, to whom: kept until it is worth a message.
    farewells: Mutex<BTreeMap<(MemberId, u8), Vec<u64>>>,
    /// Contributions that found no room, and how many there are, those included that somebody is trying again.
    unpublished: Mutex<Vec<Unpublished>>,
    unpublished_count: AtomicUsize,
    can_publish: bool,
    /// What was not taken yet, in order, by whom; nobody has an empty list.
    unsent: Mutex<BTreeMap<MemberId, VecDeque<Vec<u8>>>>,
    /// Whether there is any of that.
    has_unsent: AtomicBool,
    /// Whether an activity is sending some of it again.
    is_resending: AtomicBool,
    /// Long messages that are being put together.
    partial: Mutex<BTreeMap<(MemberId, u32), Vec<u8>>>,
}

#[derive(Default)]
struct Registry {
    communicators: BTreeMap<u64, Arc<Shared>>,
    /// Messages for communicators that this member has not made yet, or whose early messages have not been handed
    /// over yet: what comes later has to stay behind them.
    early: BTreeMap<u64, Vec<Message>>,
    /// The communicators of the second kind. Whoever has the token hands the messages over.
    ready: Vec<u64>,
    /// The last communicators that all have freed: what still comes for them is dropped.
    gone: VecDeque<u64>,
    /// Per communicator that this member has not made yet: how many of the ranks directly below it have freed it.
    freed_early: BTreeMap<u64, u8>,
    dead: MemberSet,
    left: MemberSet,
    /// Those of the dead of whom nothing that had arrived is left unread.
    silent: MemberSet,
}

/// How many communicators that are gone are remembered. A message of one that is forgotten would only be kept in
/// vain: identities are not used again.
const GONE_MAX: usize = 1024;

/// How many freed communicators are spoken of in one message.
const FAREWELLS: usize = 64;

/// A communicator, as all its handles at one member share it.
pub(crate) struct Shared {
    pub(crate) id: u64,
    pub(crate) group: Arc<Group>,
    pub(crate) is_revoked: AtomicBool,
    pub(crate) is_freed: AtomicBool,
    /// Whether a thread is in a collective operation.
    pub(crate) in_collective: AtomicBool,
    /// Whether a thread is in an agreement.
    pub(crate) in_agreement: AtomicBool,
    pub(crate) state: Mutex<State>,
}

/// What changes about a communicator.
pub(crate) struct State {
    /// The dead ranks that this member knows.
    pub(crate) dead: RankSet,
    /// Those of them of whom nothing that had arrived is left unread. Waits end by these only: what a member sent
    /// before it died or left is received, if it came at all.
    pub(crate) silent: RankSet,
    /// Those of the dead that left the job on purpose: they had done their part in what they took part in.
    pub(crate) left: RankSet,
    /// Those of the dead that the program has acknowledged.
    pub(crate) acked: RankSet,
    pub(crate) points: Points,
    pub(crate) collectives: Collectives,
    /// `agree` and `shrink`, which work on a revoked communicator too.
    pub(crate) recovery: Agreeing,
    /// `duplicate` and `split`. Apart, because members may leave them early, each at its own time, when the
    /// communicator is revoked: the numbering of the others must not get out of step by that.
    pub(crate) creation: Agreeing,
    /// Whether the caller has left the creation that is under way.
    pub(crate) is_creation_abandoned: bool,
    /// Who wants this member's wait to end.
    pub(crate) interrupted_by: Option<usize>,
    /// Who has been told that the communicator is revoked.
    told_revoked: RankSet,
    /// How many of the ranks directly below this one have freed the communicator, with all below them.
    freed_below: u8,
    has_passed_on_freed: bool,
}

/// What is to be done once no lock is held.
#[derive(Default)]
pub(crate) struct Todo {
    sends: Vec<(MemberId, Vec<u8>)>,
    contributions: Vec<Unpublished>,
    /// Whether the layers above are to look.
    is_news: bool,
}

impl Todo {
    fn add(&mut self, shared: &Shared, sends: Sends) {
        self.sends
            .extend(sends.into_iter().map(|(rank, bytes)| (shared.group.member(rank), bytes)));
    }
}

/// A contribution to an agreement that is to be published.
struct Unpublished {
    shared: Arc<Shared>,
    is_recovery: bool,
    bytes: Vec<u8>,
}

/// How long the port stays attended to after a wait: for this long, at most twice, a message may lie unread at a
/// member that computes.
const LEASE: Duration = Duration::from_micros(500);

const LEASE_NONE: u32 = 0;
/// Somebody is changing it.
const LEASE_CHANGES: u32 = 1;
const LEASE_HELD: u32 = 2;

/// Which part of a long message a [`wire::PART`] is; the last kind has no content and ends a message that is not to come.
const NOT_LAST: u8 = 0;
const LAST: u8 = 1;
const GIVEN_UP: u8 = 2;

/// A long message in parts of at most `len_max` bytes.
fn parts(number: u32, bytes: &[u8], len_max: usize) -> impl Iterator<Item = Vec<u8>> {
    const HEADER_LEN: usize = 1 + 8 + 1;
    let mut parts = bytes.chunks(len_max - HEADER_LEN).peekable();
    std::iter::from_fn(move || {
        let part = parts.next()?;
        let mut writer = Writer::new(wire::PART, u64::from(number), 1 + part.len());
        writer.u8(if parts.peek().is_some() { NOT_LAST } else { LAST }).bytes(part);
        Some(writer.done())
    })
}

/// How soon the background tries again what a member did not take.
const RESEND: Duration = Duration::from_millis(1);

/// Whether nothing is left to do about a message: it is on its way, or there is nobody to send it to, or from.
fn is_through(sent: &engine::Result<bool>) -> bool {
    use engine::Error::{Dead, Ended, Forked};
    matches!(sent, Ok(true) | Err(Dead { .. } | Ended | Forked))
}

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody asked that its holder look once more.
const AGAIN: u32 = 2;

/// Gives the token back, also when its holder panics.
struct Token<'a>(&'a AtomicU32);

impl Drop for Token<'_> {
    fn drop(&mut self) {
        self.0.store(FREE, Ordering::Release);
    }
}

impl Rma {
    fn new(me: MemberId, can_publish: bool) -> Rma {
        Rma {
            me,
            token: AtomicU32::new(FREE),
            waiters: AtomicUsize::new(0),
            lease: AtomicU32::new(LEASE_NONE),
            waits: AtomicU64::new(0),
            waits_seen: AtomicU64::new(0),
            is_lease_watched: AtomicBool::new(true),
            seen_epoch: AtomicU64::new(0),
            silent_epoch: AtomicU64::new(0),
            has_ready: AtomicBool::new(false),
            registry: Mutex::default(),
            next_id: AtomicU64::new((u64::from(me.0) + 1) << NUMBER_BITS),
            next_part: AtomicU32::new(0),
            farewells: Mutex::default(),
            unpublished: Mutex::default(),
            unpublished_count: AtomicUsize::new(0),
            can_publish,
            unsent: Mutex::default(),
            has_unsent: AtomicBool::new(false),
            is_resending: AtomicBool::new(false),
            partial: Mutex::default(),
        }
    }

    /// The layer of this member, which begins to serve with the first call.
    pub(crate) fn of(job: &Job) -> Result<Arc<Rma>> {
        let me = job.me();
        let (rma, is_new) = job.layer(|| Rma::new(me, job.can_publish()));
        if is_new {
            job.serve(rma.clone())?;
        }
        Ok(rma)
    }

    /// Identities that nobody else proposes and that this member has not proposed before: `count` of them, from the
    /// returned one on. Those of lower members are less.
    pub(crate) fn propose_ids(&self, count: usize) -> u64 {
        self.next_id.fetch_add(count as u64, Ordering::Relaxed)
    }

    /// The communicator with this identity, made if it is not there. Whoever made it makes progress next, so that the
    /// messages that came early are handed over: by whoever has the token, since what comes meanwhile has to stay
    /// behind them. Until then nobody counts as silent in it.
    pub(crate) fn make(&self, id: u64, group: Arc<Group>) -> Arc<Shared> {
        let mut registry = lock(&self.registry);
        if let Some(shared) = registry.communicators.get(&id) {
            return shared.clone();
        }
        let dead = group.ranks_of(&registry.dead);
        let left = group.ranks_of(&registry.left);
        let freed_below = registry.freed_early.remove(&id).unwrap_or(0);
        let silent = if registry.early.contains_key(&id) {
            registry.ready.push(id);
            self.has_ready.store(true, Ordering::SeqCst);
            RankSet::default()
        } else {
            group.ranks_of(&registry.silent)
        };
        let (size, me) = (group.size(), group.me);
        let shared = Arc::new(Shared {
            id,
            group,
            is_revoked: AtomicBool::new(false),
            is_freed: AtomicBool::new(false),
            in_collective: AtomicBool::new(false),
            in_agreement: AtomicBool::new(false),
            state: Mutex::new(State {
                silent: silent.clone(),
                left,
                acked: RankSet::default(),
                points: Points::default(),
                collectives: Collectives::default(),
                recovery: Agreeing::new(self.can_publish, id, RECOVERY, size, me, &dead, &silent),
                creation: Agreeing::new(self.can_publish, id, CREATION, size, me, &dead, &silent),
                is_creation_abandoned: false,
                interrupted_by: None,
                told_revoked: RankSet::default(),
                freed_below,
                has_passed_on_freed: false,
                dead,
            }),
        });
        registry.communicators.insert(id, shared.clone());
        shared
    }

    // ---- Waiting.

    /// Waits until `look` finds something, making progress meanwhile; at the time limit what `whom` says.
    pub(crate) fn block<T>(
        &self,
        job: &Job,
        mut look: impl FnMut() -> Option<Result<T>>,
        whom: impl FnOnce(Duration) -> Error,
    ) -> Result<T> {
        if let Some(result) = look() {
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
        let result = self.wait(job, look, whom);
        drop(waiter);
        // Sequentially consistent with `look_at_lease`: it sees that nobody waits, or this sees that it does not watch.
        if !self.is_lease_watched.load(Ordering::SeqCst) {
            self.is_lease_watched.store(true, Ordering::SeqCst);
            let _ = job.ring(self.me);
        }
        result
    }

    fn wait<T>(
        &self,
        job: &Job,
        mut look: impl FnMut() -> Option<Result<T>>,
        whom: impl FnOnce(Duration) -> Error,
    ) -> Result<T> {
        let mut until = None;
        loop {
            let bell = job.bell();
            self.progress_as(job, 1);
            self.publish_again(job);
            self.resend(job);
            if let Some(result) = look() {
                return result;
            }
            if job.has_ended() {
                return Err(Error::Engine(engine::Error::Ended));
            }
            let (now, limit) = (job.now(), job.time_limit());
            let until = *until.get_or_insert(now.after(limit));
            if now >= until {
                return Err(whom(limit));
            }
            job.park(bell, until);
        }
    }

    /// Attends to the port from now on. Only a hint for the engine, so it does not matter who is faster.
    #[cold]
    fn take_lease(&self, job: &Job) {
        let (none, changes) = (LEASE_NONE, LEASE_CHANGES);
        if self.lease.compare_exchange(none, changes, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            job.set_attending(Port::Rma, true);
            self.lease.store(LEASE_HELD, Ordering::SeqCst);
            // The background has to know that there is something to end.
            let _ = job.ring(self.me);
        }
    }

    /// Ends the lease if no wait has begun since the last look; when to look again.
    fn look_at_lease(&self, job: &Job) -> Time {
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
                // What came meanwhile was rung for at nobody.
                self.progress(job);
                return Time::NEVER;
            }
        }
        job.now().after(LEASE)
    }

    // ---- Progress.

    /// Handles what has arrived, unless somebody else is at it.
    pub(crate) fn progress(&self, job: &Job) {
        self.progress_as(job, 0);
    }

    /// The same by an activity that counts `own` times among the waiters.
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
            self.look_at_view(job);
            let fallen = self.fallen();
            while let Some(message) = job.receive(Port::Rma) {
                has_changed = true;
                // The message may have brought news of deaths.
                self.look_at_view(job);
                let mut todo = Todo::default();
                self.handle(message, &mut todo);
                self.finish(job, todo);
            }
            has_changed |= self.hand_over(job);
            if let Some((epoch, dead)) = fallen {
                has_changed = true;
                self.note_silent(job, epoch, &dead);
            }
            if self.seen_epoch.load(Ordering::Acquire) != self.silent_epoch.load(Ordering::Relaxed)
            {
                // There are more of them by now: first what they have sent.
                continue;
            }
            if self.token.compare_exchange(HELD, FREE, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            {
                break;
            }
            // Sequentially consistent: who asked before this is served by what is received after it.
            self.token.swap(HELD, Ordering::SeqCst);
        }
        std::mem::forget(token);
        if has_changed && self.waiters.load(Ordering::SeqCst) > own {
            let _ = job.ring(self.me);
        }
    }

    /// Wakes the activities of this member that wait, if there are any, after something has changed for them.
    pub(crate) fn wake_others(&self, job: &Job) {
        // Ordered after the change by its lock, and a wait counts before it looks: one sees the other.
        if self.waiters.load(Ordering::SeqCst) > 0 {
            let _ = job.ring(self.me);
        }
    }

    /// Makes the communicators know what the view knows. Any activity may do so, at any time: what is known of deaths
    /// only grows, and who comes late with less changes nothing.
    fn look_at_view(&self, job: &Job) {
        if job.epoch().0 == self.seen_epoch.load(Ordering::Acquire) {
            return;
        }
        let view = job.view();
        let communicators: Vec<Arc<Shared>> = {
            let mut registry = lock(&self.registry);
            if view.dead.len() > registry.dead.len() {
                registry.dead = view.dead.clone();
                registry.left = view.left.clone();
            }
            registry.communicators.values().cloned().collect()
        };
        let mut todo = Todo::default();
        for shared in communicators {
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
            self.tell_revoked(&shared, state, &mut sends);
            self.after_agreement(&shared, state, &mut todo);
            todo.add(&shared, sends);
        }
        // Last: who finds this epoch finds the communicators knowing it. Release goes with the loads that acquire.
        self.seen_epoch.fetch_max(view.epoch.0, Ordering::Release);
        self.finish(job, todo);
    }

    /// The dead, if some of them are not silent yet, with the epoch that they belong to.
    fn fallen(&self) -> Option<(u64, MemberSet)> {
        let epoch = self.seen_epoch.load(Ordering::Acquire);
        // Changed only by whoever has the token, as the caller does.
        let is_new = epoch != self.silent_epoch.load(Ordering::Relaxed);
        is_new.then(|| (epoch, lock(&self.registry).dead.clone()))
    }

    /// All that had arrived when these were known to be dead has been handled.
    fn note_silent(&self, job: &Job, epoch: u64, dead: &MemberSet) {
        let communicators: Vec<Arc<Shared>> = {
            let mut registry = lock(&self.registry);
            registry.silent.union_with(dead);
            // Those with early messages follow when these are handed over.
            let made =
                registry.communicators.iter().filter(|(id, _)| !registry.early.contains_key(id));
            made.map(|(_, shared)| shared.clone()).collect()
        };
        let mut todo = Todo::default();
        for shared in communicators {
            self.set_silent(&shared, dead, &mut todo);
        }
        self.finish(job, todo);
        // What they had begun to say has no end.
        lock(&self.partial).retain(|(from, _), _| !dead.contains(*from));
        self.silent_epoch.store(epoch, Ordering::Relaxed);
    }

    /// Nothing more will come from these: an agreement may have waited for that.
    fn set_silent(&self, shared: &Arc<Shared>, silent: &MemberSet, todo: &mut Todo) {
        let silent = shared.group.ranks_of(silent);
        let state = &mut *lock(&shared.state);
        // Somebody may be about to tell it of further deaths, with how they came about: those another time, as the
        // epoch is raised after that.
        let silent = silent.without(&silent.without(&state.dead));
        if state.silent != silent {
            state.silent = silent;
            state.recovery.set_silent(&state.silent);
            state.creation.set_silent(&state.silent);
            self.after_agreement(shared, state, todo);
        }
    }

    /// Hands early messages over to communicators that were made meanwhile; whether there were any.
    fn hand_over(&self, job: &Job) -> bool {
        let mut has_any = false;
        // What is handed over may make further ones.
        while self.has_ready.load(Ordering::SeqCst) {
            let (made, messages) = {
                let mut registry = lock(&self.registry);
                let Some(id) = registry.ready.pop() else {
                    self.has_ready.store(false, Ordering::SeqCst);
                    break;
                };
                (
                    registry.communicators.get(&id).cloned(),
                    registry.early.remove(&id).unwrap_or_default(),
                )
            };
            has_any = true;
            for message in messages {
                let mut todo = Todo::default();
                self.handle(message, &mut todo);
                self.finish(job, todo);
            }
            if let Some(shared) = made {
                let silent = lock(&self.registry).silent.clone();
                let mut todo = Todo::default();
                self.set_silent(&shared, &silent, &mut todo);
                self.finish(job, todo);
            }
        }
        has_any
    }

    /// Sees to it that early messages are handed over after a communicator was made.
    pub(crate) fn hand_over_soon(&self, job: &Job) {
        if self.has_ready.load(Ordering::SeqCst) {
            self.progress(job);
        }
    }

    /// Makes sure that what is known of deaths is what the view knows, whoever else is at it.
    pub(crate) fn catch_up(&self, job: &Job) {
        if job.epoch().0 != self.seen_epoch.load(Ordering::Acquire) {
            self.look_at_view(job);
            self.progress(job);
        }
    }

    /// Sends what is to be sent. Called without any lock.
    pub(crate) fn finish(&self, job: &Job, mut todo: Todo) {
        if todo.is_news {
            let _ = job.ring(self.me);
        }
        loop {
            for (member, bytes) in std::mem::take(&mut todo.sends) {
                self.post(job, member, bytes);
            }
            if todo.contributions.is_empty() {
                return;
            }
            for contribution in std::mem::take(&mut todo.contributions) {
                if !self.publish(job, contribution, &mut todo) {
                    // The background offers it again, from time to time.
                    let _ = job.ring(self.me);
                }
            }
        }
    }

    /// Publishes a contribution, or keeps it for later if a living member has no room for it; whether it is out.
    fn publish(&self, job: &Job, contribution: Unpublished, todo: &mut Todo) -> bool {
        let others = contribution.shared.group.others();
        let published = job.try_publish(others, Port::Rma, &contribution.bytes);
        if !is_through(&published) {
            lock(&self.unpublished).push(contribution);
            self.unpublished_count.fetch_add(1, Ordering::SeqCst);
            return false;
        }
        // Otherwise this member is none any more.
        if published == Ok(true) {
            let mut state = lock(&contribution.shared.state);
            if contribution.is_recovery {
                state.recovery.set_out();
            } else {
                state.creation.set_out();
            }
            self.after_agreement(&contribution.shared, &mut state, todo);
        }
        true
    }

    /// Whether something is still to be sent or published.
    fn owes_messages(&self) -> bool {
        self.has_unsent.load(Ordering::SeqCst) || self.unpublished_count.load(Ordering::SeqCst) > 0
    }

    /// Publishes what found no room, if it does now.
    fn publish_again(&self, job: &Job) {
        if self.unpublished_count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let kept = std::mem::take(&mut *lock(&self.unpublished));
        let kept_count = kept.len();
        let mut todo = Todo::default();
        let mut is_any_out = false;
        for contribution in kept {
            is_any_out |= self.publish(job, contribution, &mut todo);
        }
        // Only now: were they not counted while they are tried, the background would see nothing to offer again, and sleep.
        self.unpublished_count.fetch_sub(kept_count, Ordering::SeqCst);
        self.finish(job, todo);
        if is_any_out {
            // Who waits for the outcome may have it now.
            self.wake_others(job);
        }
    }

    /// Sends a message of any length, waiting for room up to the time limit.
    pub(crate) fn transmit(&self, job: &Job, member: MemberId, bytes: &[u8]) -> engine::Result<()> {
        if bytes.len() <= MESSAGE_LEN_MAX {
            return job.send(member, Port::Rma, bytes);
        }
        let number = self.next_part.fetch_add(1, Ordering::Relaxed);
        let sent = parts(number, bytes, MESSAGE_LEN_MAX)
            .try_for_each(|part| job.send(member, Port::Rma, &part));
        if sent.is_err() {
            // The receiver would keep the beginning for ever.
            let mut writer = Writer::new(wire::PART, u64::from(number), 1);
            writer.u8(GIVEN_UP);
            self.post(job, member, writer.done());
        }
        sent
    }

    // ---- What the layer itself has to say.

    /// Sends a message that may neither be lost nor hold the caller up; see the head of the module.
    pub(crate) fn post(&self, job: &Job, member: MemberId, bytes: Vec<u8>) {
        if bytes.len() <= TRY_SEND_LEN_MAX {
            return self.post_short(job, member, bytes);
        }
        let number = self.next_part.fetch_add(1, Ordering::Relaxed);
        parts(number, &bytes, TRY_SEND_LEN_MAX).for_each(|part| self.post_short(job, member, part));
    }

    fn post_short(&self, job: &Job, member: MemberId, bytes: Vec<u8>) {
        // Behind what this activity could not send before.
        let is_behind =
            self.has_unsent.load(Ordering::SeqCst) && lock(&self.unsent).contains_key(&member);
        if !is_behind && is_through(&job.try_send(member, Port::Rma, &bytes)) {
            return;
        }
        {
            let mut unsent = lock(&self.unsent);
            unsent.entry(member).or_default().push_back(bytes);
            self.has_unsent.store(true, Ordering::SeqCst);
        }
        // The background has to know that there is something to send again.
        let _ = job.ring(self.me);
    }

    /// Tries again to send what was not taken, unless somebody is at it.
    fn resend(&self, job: &Job) {
        if !self.has_unsent.load(Ordering::SeqCst) || self.is_resending.swap(true, Ordering::SeqCst)
        {
            return;
        }
        let members: Vec<MemberId> = lock(&self.unsent).keys().copied().collect();
        for member in members {
            // The first one of the list stays there, empty, while it is tried: others go behind it.
            let first = || Some(std::mem::take(lock(&self.unsent).get_mut(&member)?.front_mut()?));
            while let Some(bytes) = first() {
                let is_through = is_through(&job.try_send(member, Port::Rma, &bytes));
                let mut unsent = lock(&self.unsent);
                let Some(list) = unsent.get_mut(&member) else { break };
                if !is_through {
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
            let unsent = lock(&self.unsent);
            self.has_unsent.store(!unsent.is_empty(), Ordering::SeqCst);
        }
        self.is_resending.store(false, Ordering::SeqCst);
    }

    /// Handles one message. What cannot be read is passed over.
    fn handle(&self, mut message: Message, todo: &mut Todo) {
        let mut reader = Reader::new(&message.bytes);
        let (Some(kind), Some(id)) = (reader.u8(), reader.u64()) else { return };
        if kind == wire::PART {
            let Some(which) = reader.u8() else { return };
            let key = (message.from, id as u32);
            let mut partial = lock(&self.partial);
            partial.entry(key).or_default().extend_from_slice(reader.rest());
            if which == NOT_LAST {
                return;
            }
            message.bytes = partial.remove(&key).unwrap_or_default();
            drop(partial);
            if which == GIVEN_UP {
                return;
            }
            return self.handle(message, todo);
        }
        if matches!(kind, wire::FREED | wire::GONE) {
            let ids = std::iter::once(id).chain(std::iter::from_fn(|| reader.u64()));
            for id in ids {
                self.hear_farewell(kind, id, todo);
            }
            return;
        }
        let shared = {
            let mut registry = lock(&self.registry);
            match registry.communicators.get(&id) {
                Some(shared) if !registry.early.contains_key(&id) => shared.clone(),
                None if registry.gone.contains(&id) => return,
                _ => {
                    registry.early.entry(id).or_default().push(message);
                    return;
                }
            }
        };
        let Some(from) = shared.group.rank_of(message.from) else { return };
        let mut sends = Sends::new();
        let mut guard = lock(&shared.state);
        let state = &mut *guard;
        match kind {
            wire::DATA => {
                if let Some(tag) = reader.u32() {
                    // The message's own memory is passed on: the header goes, the bytes stay.
                    let header_len = message.bytes.len() - reader.rest().len();
                    let mut bytes = message.bytes;
                    bytes.drain(..header_len);
                    if !shared.is_freed.load(Ordering::Relaxed) {
                        state.points.deliver(from, tag, bytes);
                    }
                }
            }
            wire::COLLECTIVE => state.collectives.deliver(from, reader.rest()),
            wire::BROKEN => state.collectives.break_off(reader.rest()),
            wire::ABORT => state.collectives.abort(from, reader.rest()),
            wire::AGREEMENT => {
                let bytes = reader.rest();
                match bytes.first() {
                    Some(&RECOVERY) => state.recovery.receive(from, bytes, &mut sends),
                    Some(&CREATION) => state.creation.receive(from, bytes, &mut sends),
                    _ => {}
                }
                self.after_agreement(&shared, state, todo);
            }
            wire::REVOKE => {
                state.told_revoked.insert(from);
                // Whoever does not wait in it may want to know as well.
                todo.is_news |= !shared.is_revoked.swap(true, Ordering::SeqCst);
                self.tell_revoked(&shared, state, &mut sends);
            }
            wire::INTERRUPT => state.interrupted_by = Some(from),
            // A notice did its work when the engine received it.
            _ => {}
        }
        drop(guard);
        todo.add(&shared, sends);
    }

    // ---- Revoking.

    /// Revokes a communicator here and tells others.
    pub(crate) fn revoke(&self, shared: &Shared, state: &mut State, todo: &mut Todo) {
        let mut sends = Sends::new();
        shared.is_revoked.store(true, Ordering::SeqCst);
        self.tell_revoked(shared, state, &mut sends);
        todo.add(shared, sends);
    }

    /// Tells those partners of the flood that have not been told.
    ///
    /// The partners are the living ranks at distances of powers of two in both directions, so the flood has
    /// logarithmic depth. Among them is the next living rank: once views agree, the partners form a ring of all
    /// living members, so the flood reaches each of them, whoever died in it. It is passed on again whenever the
    /// view changes, to the partners that are new.
    fn tell_revoked(&self, shared: &Shared, state: &mut State, sends: &mut Sends) {
        if !shared.is_revoked.load(Ordering::SeqCst) {
            return;
        }
        let group = &shared.group;
        let living: Vec<usize> =
            (0..group.size()).filter(|&rank| !state.dead.contains(rank)).collect();
        let position = living.partition_point(|&rank| rank < group.me);
        let doubling = std::iter::successors(Some(1), |distance| Some(distance * 2));
        for distance in doubling.take_while(|&distance| distance < living.len()) {
            for place in [position + distance, position + living.len() - distance] {
                let partner = living[place % living.len()];
                if partner != group.me && !state.told_revoked.contains(partner) {
                    state.told_revoked.insert(partner);
                    sends.push((partner, Writer::new(wire::REVOKE, shared.id, 0).done()));
                }
            }
        }
    }

    // ---- What agreements make.

    /// Does what follows from a decision, if there is a new one.
    pub(crate) fn after_agreement(&self, shared: &Arc<Shared>, state: &mut State, todo: &mut Todo) {
        if state.is_creation_abandoned
            && let Some(kind) = state.creation.unfinished()
            && let Some(value) = state.creation.take_decision()
        {
            // The caller left when the communicator was revoked. Others may have what was made: they must not wait
            // for this member in it.
            state.is_creation_abandoned = false;
            if let Some(made) = self.make_agreed(shared, kind, &value) {
                let mut made_state = lock(&made.state);
                self.revoke(&made, &mut made_state, todo);
                made.is_freed.store(true, Ordering::SeqCst);
                self.pass_on_freed(&made, &mut made_state, todo);
            }
        }
    }

    /// Makes the communicator that was agreed on, if there is one for this member.
    pub(crate) fn make_agreed(
        &self,
        shared: &Shared,
        kind: Kind,
        value: &Value,
    ) -> Option<Arc<Shared>> {
        let group = &shared.group;
        let (id, group) = match kind {
            _ if !value.is_of(kind) => return None,
            Kind::Agree => return None,
            Kind::Duplicate if !value.dead.is_empty() || value.flags == 0 => return None,
            Kind::Duplicate => (value.id, group.clone()),
            Kind::Shrink if value.dead.is_empty() => (value.id, group.clone()),
            Kind::Shrink => {
                let living = (0..group.size()).filter(|&rank| !value.dead.contains(rank));
                let members = living.map(|rank| group.member(rank)).collect();
                (value.id, Arc::new(Group::new(members, self.me)?))
            }
            Kind::Split if !value.dead.is_empty() || value.flags == 0 => return None,
            Kind::Split => {
                let own = value.places.iter().find(|place| place.rank as usize == group.me)?;
                if own.color == 0 {
                    return None;
                }
                let mut colors: Vec<u64> = value.places.iter().map(|place| place.color).collect();
                colors.sort_unstable();
                colors.dedup();
                let index = colors.iter().position(|&color| color == own.color)?;
                let mut places: Vec<&Place> =
                    value.places.iter().filter(|p| p.color == own.color).collect();
                places.sort_by_key(|place| (place.key, place.rank));
                let members =
                    places.iter().map(|place| group.member(place.rank as usize)).collect();
                (value.id + index as u64, Arc::new(Group::new(members, self.me)?))
            }
        };
        Some(self.make(id, group))
    }

    /// Enters an agreement of the communicator.
    pub(crate) fn enter(
        &self,
        shared: &Arc<Shared>,
        state: &mut State,
        own: Contribution,
        todo: &mut Todo,
    ) {
        let mut sends = Sends::new();
        let is_recovery = matches!(own.kind, Kind::Agree | Kind::Shrink);
        if is_recovery {
            state.recovery.enter(own, &mut sends);
        } else {
            state.creation.enter(own, &mut sends);
        }
        if let Some((ALL, _)) = sends.first() {
            let published = sends.drain(..).map(|(_, bytes)| Unpublished {
                shared: shared.clone(),
                is_recovery,
                bytes,
            });
            todo.contributions.extend(published);
        }
        todo.add(shared, sends);
    }

    // ---- Forgetting.
    //
    // A communicator is kept after it was freed, since others may still need a decision from this member. Once all
    // have freed it, nobody can ask any more, and all forget it: rank r hears of that from below, from the ranks
    // 2r+1 and 2r+2, and passes it on to above; rank 0 then tells all, the same way down. There is no hurry, so
    // that many of these messages travel as one. If a member died this comes to no end and the communicator stays:
    // no more of them than there are deaths times communicators in use.

    /// This member has freed the communicator.
    pub(crate) fn freed(&self, shared: &Shared, todo: &mut Todo) {
        self.pass_on_freed(shared, &mut lock(&shared.state), todo);
    }

    fn pass_on_freed(&self, shared: &Shared, state: &mut State, todo: &mut Todo) {
        let (me, size) = (shared.group.me, shared.group.size());
        let below = (2 * me + 1..=2 * me + 2).filter(|&rank| rank < size).count();
        let is_complete =
            shared.is_freed.load(Ordering::SeqCst) && state.freed_below as usize == below;
        if !is_complete || state.has_passed_on_freed {
            return;
        }
        state.has_passed_on_freed = true;
        if me == 0 {
            self.forget(shared, todo);
        } else {
            self.say_farewell(shared.group.member((me - 1) / 2), wire::FREED, shared.id, todo);
        }
    }

    fn hear_farewell(&self, kind: u8, id: u64, todo: &mut Todo) {
        let shared = {
            let mut registry = lock(&self.registry);
            let Some(shared) = registry.communicators.get(&id) else {
                // Not made here yet: kept until it is.
                if kind == wire::FREED {
                    *registry.freed_early.entry(id).or_default() += 1;
                }
                return;
            };
            shared.clone()
        };
        if kind == wire::FREED {
            let mut state = lock(&shared.state);
            state.freed_below += 1;
            self.pass_on_freed(&shared, &mut state, todo);
        } else {
            self.forget(&shared, todo);
        }
    }

    fn forget(&self, shared: &Shared, todo: &mut Todo) {
        let (me, size) = (shared.group.me, shared.group.size());
        for rank in (2 * me + 1..=2 * me + 2).filter(|&rank| rank < size) {
            self.say_farewell(shared.group.member(rank), wire::GONE, shared.id, todo);
        }
        let mut registry = lock(&self.registry);
        if registry.communicators.remove(&shared.id).is_some() {
            registry.gone.push_back(shared.id);
            if registry.gone.len() > GONE_MAX {
                registry.gone.pop_front();
            }
        }
    }

    fn say_farewell(&self, to: MemberId, kind: u8, id: u64, todo: &mut Todo) {
        let mut farewells = lock(&self.farewells);
        let ids = farewells.entry((to, kind)).or_default();
        ids.push(id);
        if ids.len() >= FAREWELLS {
            let mut writer = Writer::new(kind, ids[0], 8 * ids.len());
            for &id in &ids[1..] {
                writer.u64(id);
            }
            ids.clear();
            todo.sends.push((to, writer.done()));
        }
    }
}

/// The numbering of `agree` and `shrink`, and that of `duplicate` and `split`.
const RECOVERY: u8 = 0;
const CREATION: u8 = 1;

impl Service for Rma {
    fn run(&self, job: &Job) -> Time {
        self.progress(job);
        self.resend(job);
        self.publish_again(job);
        let next = self.look_at_lease(job);
        if self.owes_messages() { next.min(job.now().after(RESEND)) } else { next }
    }

    /// Who leaves would take the news with it.
    fn leaving(&self, job: &Job) {
        let mut until = None;
        while self.owes_messages() && !job.has_ended() {
            let bell = job.bell();
            self.resend(job);
            self.publish_again(job);
            let now = job.now();
            let until = *until.get_or_insert(now.after(job.time_limit()));
            if now >= until {
                return;
            }
            job.park(bell, until.min(now.after(RESEND)));
        }
    }
}

/// What other activities may do between any two steps of one, done in that order by hand; nobody else is at it.
#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::engine::sim::{self, Options};
    use crate::rma::{Source, Tag};

    const ID: u64 = 7;

    fn data(number: u8) -> Vec<u8> {
        let mut writer = Writer::new(wire::DATA, ID, 5);
        writer.u32(0).bytes(&[number]);
        writer.done()
    }

    /// Rank 0 sends these and leaves, and is known to have left; rank 1 then does the rest.
    fn after(messages: impl Fn() -> Vec<Vec<u8>> + 'static, rest: impl Fn(&Job, &Rma) + 'static) {
        sim::run(&Options::new(2, 1), move |job| {
            if job.me() == MemberId(0) {
                messages()
                    .iter()
                    .for_each(|bytes| job.send(MemberId(1), Port::Rma, bytes).unwrap());
            }
            job.sleep(Duration::from_secs(1 + u64::from(job.me().0)));
            if job.me() == MemberId(1) {
                rest(&job, &Rma::new(job.me(), false));
            }
            job.leave().unwrap();
        })
        .expect_ok();
    }

    fn make(rma: &Rma) -> Arc<Shared> {
        let members = [0, 1].map(MemberId).to_vec();
        rma.make(ID, Arc::new(Group::new(members, MemberId(1)).unwrap()))
    }

    fn handle(rma: &Rma, message: Message) {
        rma.handle(message, &mut Todo::default());
    }

    /// What a receive from rank 0 finds.
    fn look(shared: &Shared) -> Option<Result<Vec<u8>>> {
        let posted = lock(&shared.state).points.post(Source::Rank(0), Tag::Any, 9);
        let found = shared.look_at(&posted);
        lock(&shared.state).points.cancel(&posted);
        found.map(|result| result.map(|received| received.bytes))
    }

    #[test]
    fn early_messages_stay_before_later_ones() {
        after(
            || vec![data(1), data(2), data(3)],
            |job, rma| {
                let next = || job.receive(Port::Rma).unwrap();
                handle(rma, next());
                let shared = make(rma);
                // The maker is held up here, and the background goes on.
                handle(rma, next());
                rma.hand_over(job);
                handle(rma, next());
                for number in 1..=3 {
                    assert_eq!(look(&shared), Some(Ok(vec![number])));
                }
            },
        );
    }

    /// In a communicator that was made just when a member had gone, what the member had sent is received first.
    #[test]
    fn what_the_dead_had_sent_is_received_in_a_communicator_that_is_made_just_then() {
        let failed = Some(Err(Error::ProcFailed { ranks: vec![0] }));
        let expected = failed.clone();
        after(
            || vec![data(1)],
            move |job, rma| {
                rma.look_at_view(job);
                // The message has arrived, and nobody has looked for it yet.
                let shared = make(rma);
                assert_eq!(look(&shared), None);
                rma.progress(job);
                assert_eq!(look(&shared), Some(Ok(vec![1])));
                assert_eq!(look(&shared), expected);
            },
        );
        after(
            || vec![data(1)],
            move |job, rma| {
                rma.progress(job);
                // It has been looked at, and waits for the communicator.
                let shared = make(rma);
                assert_eq!(look(&shared), None);
                rma.hand_over_soon(job);
                assert_eq!(look(&shared), Some(Ok(vec![1])));
                assert_eq!(look(&shared), failed);
            },
        );
    }

    /// A communicator whose early messages are handed over while somebody is about to tell it of a further death: that
    /// one is silent there only once it is known there, with how it came about.
    #[test]
    fn nobody_is_silent_in_a_communicator_before_it_is_known_to_be_dead_there() {
        after(
            || vec![data(1)],
            |job, rma| {
                handle(rma, job.receive(Port::Rma).unwrap());
                let shared = make(rma);
                // An activity has come so far with what the view says, and is held up.
                let dead = job.view().dead;
                lock(&rma.registry).dead = dead.clone();
                rma.note_silent(job, 0, &dead);
                rma.hand_over(job);
                assert!(
                    lock(&shared.state).silent.is_empty(),
                    "not known to be dead, let alone to have left"
                );
                rma.progress(job);
                let state = lock(&shared.state);
                assert_eq!((state.silent.to_vec(), state.left.to_vec()), (vec![0], vec![0]));
            },
        );
    }

    #[test]
    fn what_could_not_be_sent_for_want_of_memory_is_sent_again() {
        let error = engine::Error::OutOfMemory { wanted: 1, reason: String::new() };
        assert!(!is_through(&Err(error)) && !is_through(&Ok(false)));
        assert!(is_through(&Ok(true)) && is_through(&Err(engine::Error::Ended)));
    }

    #[test]
    fn nothing_is_kept_of_a_long_message_whose_sender_is_gone_or_has_given_up() {
        let part = |number, which| {
            let mut writer = Writer::new(wire::PART, number, 2);
            writer.u8(which).bytes(b"x");
            writer.done()
        };
        let sent = move || vec![part(0, NOT_LAST), part(1, NOT_LAST), part(0, GIVEN_UP)];
        after(sent, |job, rma| {
            for kept in [1, 2, 1] {
                handle(rma, job.receive(Port::Rma).unwrap());
                assert_eq!(lock(&rma.partial).len(), kept);
            }
            rma.progress(job);
            assert_eq!(lock(&rma.partial).len(), 0);
        });
    }

    /// A long message to a member that stops taking any is given up, and the member is told so when it takes some again.
    #[test]
    fn a_long_message_that_times_out_leaves_nothing_behind() {
        let mut options = Options::new(2, 1);
        options.inbox_messages_max = 2;
        options.time_limit = Duration::from_millis(10);
        sim::run(&options, |job| {
            let rma = Rma::new(job.me(), job.can_publish());
            let limit = job.time_limit();
            if job.me() == MemberId(0) {
                let sent = rma.transmit(&job, MemberId(1), &vec![1; 4 * MESSAGE_LEN_MAX]);
                assert!(matches!(sent, Err(engine::Error::Timeout { .. })), "{sent:?}");
                assert!(rma.has_unsent.load(Ordering::SeqCst));
            }
            job.sleep(2 * limit);
            for _ in 0..20 {
                rma.run(&job);
                let until = job.now().after(limit / 10);
                job.park(job.bell(), until);
            }
            assert_eq!(lock(&rma.partial).len(), 0);
            assert!(!rma.has_unsent.load(Ordering::SeqCst));
            job.sleep(limit);
            job.leave().unwrap();
        })
        .expect_ok();
    }

    /// A communicator that was made for a caller who had left is forgotten when all have freed it.
    #[test]
    fn what_nobody_wants_any_more_is_forgotten() {
        let rma = Rma::new(MemberId(0), false);
        let shared = rma.make(ID, Arc::new(Group::new(vec![MemberId(0)], MemberId(0)).unwrap()));
        let own = Contribution {
            kind: Kind::Duplicate,
            flags: u64::MAX,
            id: 8,
            acked: RankSet::default(),
            place: None,
        };
        let mut todo = Todo::default();
        let mut state = lock(&shared.state);
        rma.enter(&shared, &mut state, own, &mut todo);
        state.is_creation_abandoned = true;
        rma.after_agreement(&shared, &mut state, &mut todo);
        assert_eq!(lock(&rma.registry).communicators.keys().copied().collect::<Vec<_>>(), [ID]);
        assert_eq!(lock(&rma.registry).gone, [8]);
    }
}

//! Asking a replica for blocks, and recalling blocks from members that do not use them.
//!
//! A call that needs a block which its member does not have asks the replica (`Message::Need`). If
//! the replica does not answer soon, or has no room, the call leaves its operation, asks again,
//! waits for the answer, and begins an operation anew. So a stopped replica takes no participant
//! from calls on other replicas, and the call itself keeps no block from being reused.
//!
//! A replica without room for a slab *recalls* the blocks of the class: all members give back the
//! blocks that they keep and do not use, after a grace period. The replica then answers the members
//! that have asked. docs/protocol/memory.md has the steps, and what a survivor finds after each.

use crate::engine::{Epoch, MemberId, Time};
use crate::store::error::{StoreError, StoreResult};
use crate::store::memory::allocator::{Batch, LARGE_PAUSE};
use crate::store::memory::state::{MemoryOp, MemoryState};
use crate::store::operation::error::{OpError, OpResult};
use crate::store::operation::grace_period::GracePeriod;
use crate::store::operation::message::Message;
use crate::store::segment::layout::PARTICIPANTS;
use crate::store::segment::place::Place;
use crate::sync::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long a replica waits for recalled blocks before it refuses. A member that is stopped, or a
/// member that is stopped inside an operation, costs a caller this time and no more.
const RECALL_WAIT: Duration = Duration::from_millis(200);

/// How long a replica refuses at once after a recall that brought no block. Without this pause each
/// put into a full store would cost a message to every member.
const RECALL_PAUSE: Duration = Duration::from_millis(100);

/// How long a member looks for blocks that a replica has recalled.
const SEARCH_TIME: Duration = Duration::from_secs(2);

/// The first pause between two looks for recalled blocks. It doubles up to [`LARGE_PAUSE`].
const LOOK: Duration = Duration::from_micros(500);

/// The recalls of this member, as a replica and as a member that keeps blocks.
///
/// *Orderings.* `count` is relaxed: it only says whether it is worth taking the lock. A count that
/// is outdated delays the return of a block.
#[derive(Default)]
pub(in crate::store) struct Recalls {
    /// As a replica: the recalls of each class that wait for members, or have just ended.
    own: Mutex<BTreeMap<usize, Recall>>,
    /// The kinds of blocks that their replicas have recalled from this member.
    wanted: Mutex<BTreeMap<u64, Search>>,
    count: AtomicUsize,
}

/// A recall of a replica.
struct Recall {
    /// The members that wait for the answer. Empty once the recall has ended.
    askers: Vec<MemberId>,
    /// The members that have not returned their blocks yet.
    missing: BTreeSet<MemberId>,
    /// When the recall ends. After its end: until when requests are refused at once.
    until: Time,
    /// Why there is no room for a slab.
    reason: String,
}

/// The search of a member for blocks of a kind that are recalled.
struct Search {
    /// A bit for each participant whose magazine was emptied of this kind since the recall.
    visited: u64,
    until: Time,
    pause: Duration,
    due: Time,
}

/// What a call remembers of its waits for blocks.
pub(in crate::store) struct BlockWait {
    /// How many recoveries this member had seen when the call began.
    recoveries: u64,
    /// The end of all waits of the call together.
    until: Option<Time>,
    /// Whether a replica has refused. The next attempt then waits inside its operation, and so gets
    /// the refusal where it can be acted on: a replica that is filling may be skipped.
    is_refused: bool,
}

impl BlockWait {
    pub(in crate::store) fn new(store: &MemoryState) -> BlockWait {
        BlockWait { recoveries: store.gate.recoveries(), until: None, is_refused: false }
    }

    /// Returns an error if the store has recovered while the call waited outside of an operation: a
    /// recovery ends everything that was begun before it. Called while the next operation is in
    /// flight, so that a later recovery waits for it.
    pub(in crate::store) fn check(&self, store: &MemoryState) -> StoreResult<()> {
        match self.until.is_some() && store.gate.recoveries() != self.recoveries {
            true => Err(StoreError::Revoked),
            false => Ok(()),
        }
    }

    /// Whether the next operation of the call may be left to wait for blocks.
    pub(in crate::store) fn may_leave(&self, store: &MemoryState) -> bool {
        // The background answers recalls, so it must not wait for one, nor may a listener that it
        // runs.
        !self.is_refused && !store.runs_background()
    }
}

impl MemoryState {
    /// Asks a replica for blocks of a class and waits for its answer, outside of any operation.
    /// Returns `Again` if the call is to start over.
    pub(in crate::store) fn await_blocks(
        &self,
        wait: &mut BlockWait,
        replica: MemberId,
        class: usize,
    ) -> OpError {
        self.ask_for_blocks(wait, replica, class).err().unwrap_or(OpError::Again)
    }

    fn ask_for_blocks(
        &self,
        wait: &mut BlockWait,
        replica: MemberId,
        class: usize,
    ) -> OpResult<()> {
        let (job, (limit, deadline)) = (&self.job, self.wait_for_replica());
        let until = *wait.until.get_or_insert(deadline);
        let (before, _) = self.allocator.answers(replica, class);
        if replica == self.me() {
            self.serve_need(replica, class, true);
        } else {
            self.send(replica, &Message::Need { class: class as u64, waits: true })?;
        }
        loop {
            let bell = job.bell();
            let (count, refusal) = self.allocator.answers(replica, class);
            if count != before {
                wait.is_refused = refusal.is_some();
                return Ok(());
            }
            if job.has_ended() || self.is_closed.load(Ordering::SeqCst) {
                return Err(OpError::Fail(StoreError::Closed));
            }
            // The next attempt finds that the view has changed, or that the store has recovered.
            if !job.view().is_living(replica) || self.gate.recoveries() != wait.recoveries {
                return Ok(());
            }
            if job.now() >= until {
                return Err(OpError::Fail(StoreError::Timeout { member: replica, limit }));
            }
            // Every wait serves messages: the replica may be waiting for blocks of this member.
            self.serve_messages();
            // The answer rings the bell, and so does the death of the replica.
            job.park(bell, until);
        }
    }

    /// Serves a request for blocks of a class: makes a slab if the free list is empty. If there is
    /// no room for a slab it recalls blocks, and answers now only if the asker does not wait.
    pub(in crate::store) fn serve_need(&self, from: MemberId, class: usize, waits: bool) {
        match self.provide(class) {
            Ok(()) => self.answer_need(from, class, None),
            Err(error) => {
                let reason = error.to_string();
                if !self.recall(from, class, waits, &reason) || !waits {
                    self.answer_need(from, class, Some(reason));
                }
            }
        }
    }

    /// Tells a member that there are blocks of a class, or why there are none.
    fn answer_need(&self, to: MemberId, class: usize, refusal: Option<String>) {
        if to == self.me() {
            self.allocator.answered(to, class, refusal);
            let _ = self.job.ring(to);
            return;
        }
        let class = class as u64;
        // An answer to a dead member is dropped.
        let _ = match refusal {
            None => self.send(to, &Message::Granted { class }),
            Some(reason) => self.send(to, &Message::Refused { class, reason }),
        };
    }

    /// `recall.ask`: asks all members for their blocks of a class of this replica, unless that was
    /// done a moment ago. Returns whether a recall is under way, which answers the asker if it
    /// waits.
    pub(in crate::store::memory) fn recall(
        &self,
        from: MemberId,
        class: usize,
        waits: bool,
        reason: &str,
    ) -> bool {
        let now = self.job.now();
        let asked = self.current_view().living().collect::<BTreeSet<_>>();
        {
            let mut own = lock(&self.allocator.recalls.own);
            if let Some(recall) = own.get_mut(&class).filter(|recall| now < recall.until) {
                let is_under_way = !recall.missing.is_empty();
                if is_under_way && waits {
                    recall.askers.push(from);
                }
                return is_under_way;
            }
            let until = now.after(RECALL_WAIT.min(self.job.time_limit() / 4));
            let askers = if waits { vec![from] } else { Vec::new() };
            let recall = Recall { askers, missing: asked.clone(), until, reason: reason.into() };
            own.insert(class, recall);
        }
        for member in asked {
            let is_asked = match member == self.me() {
                true => Ok(self.search(member, class)),
                // A member whose queue is full is not waited for.
                false => self.try_send(member, &Message::Recall { class: class as u64 }),
            };
            if is_asked != Ok(true) {
                self.record_returned(member, class);
            }
        }
        let _ = self.job.ring(self.me());
        true
    }

    /// `recall.answer`: a member has returned its blocks of a class, or has none.
    pub(in crate::store) fn record_returned(&self, from: MemberId, class: usize) {
        if let Some(recall) = lock(&self.allocator.recalls.own).get_mut(&class) {
            recall.missing.remove(&from);
        }
        let _ = self.job.ring(self.me());
    }

    /// A replica recalls the blocks of a class. The background searches for them. Always true.
    pub(in crate::store) fn search(&self, replica: MemberId, class: usize) -> bool {
        let (kind, now) = (Place::kind_of(replica, class), self.job.now());
        let search = Search { visited: 0, until: now.after(SEARCH_TIME), pause: LOOK, due: now };
        let recalls = &self.allocator.recalls;
        let count = {
            let mut wanted = lock(&recalls.wanted);
            wanted.insert(kind, search);
            wanted.len()
        };
        recalls.count.store(count, Ordering::Relaxed);
        let _ = self.job.ring(self.me());
        true
    }

    /// The kinds of blocks that are recalled from this member.
    pub(in crate::store::memory) fn recalled_kinds(&self) -> Vec<u64> {
        let recalls = &self.allocator.recalls;
        if recalls.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        lock(&recalls.wanted).keys().copied().collect()
    }

    /// The part of the background: answers as a replica, and returns blocks that other replicas
    /// have recalled. Returns when it wants to run again.
    pub(in crate::store) fn recall_some(&self) -> Time {
        self.return_recalled().min(self.end_recalls())
    }

    /// As a replica: answers the members that wait, if there are blocks again, if no member has any
    /// left, or after [`RECALL_WAIT`].
    fn end_recalls(&self) -> Time {
        let (now, view) = (self.job.now(), self.current_view());
        let mut next = Time::NEVER;
        let mut classes = Vec::new();
        {
            let mut own = lock(&self.allocator.recalls.own);
            own.retain(|_, recall| !recall.askers.is_empty() || now < recall.until);
            for (&class, recall) in own.iter_mut() {
                recall.missing.retain(|&member| view.is_living(member));
                if !recall.askers.is_empty() {
                    classes.push((class, recall.missing.is_empty() || now >= recall.until));
                    next = next.min(recall.until);
                }
            }
        }
        for (class, is_over) in classes {
            // The engine is never called under a lock.
            let provided = match is_over {
                true => self.provide(class).is_ok(),
                false => self.has_free(class).unwrap_or(true),
            };
            if !provided && !is_over {
                continue;
            }
            let (askers, reason) = {
                let mut own = lock(&self.allocator.recalls.own);
                let Some(recall) = own.get_mut(&class) else { continue };
                recall.missing.clear();
                recall.until = if provided { now } else { now.after(RECALL_PAUSE) };
                (std::mem::take(&mut recall.askers), recall.reason.clone())
            };
            for asker in askers {
                self.answer_need(asker, class, (!provided).then(|| reason.clone()));
            }
        }
        next
    }

    /// Refuses all members that wait, since the store is closed here.
    pub(in crate::store) fn refuse_recalls(&self) {
        let own = std::mem::take(&mut *lock(&self.allocator.recalls.own));
        for (class, recall) in own {
            for asker in recall.askers {
                self.answer_need(asker, class, Some(recall.reason.clone()));
            }
        }
    }

    /// Whether the free list of a class of this replica has a block.
    pub(in crate::store::memory) fn has_free(
        &self,
        class: usize,
    ) -> Result<bool, crate::engine::Error> {
        let me = self.me();
        let top_word = self.root(me) + self.layout.stack(class);
        Ok(self.job.load(Epoch::ANY, me, top_word)? != 0)
    }

    /// `recall.collect` and `recall.return`, for all kinds that are recalled from this member.
    fn return_recalled(&self) -> Time {
        let kinds = self.recalled_kinds();
        if kinds.is_empty() {
            return Time::NEVER;
        }
        let now = self.job.now();
        for kind in kinds {
            self.collect(kind);
        }
        // The blocks whose grace period is over go back to their replicas.
        let mut participants = 0..PARTICIPANTS;
        let op = participants.find_map(|participant| MemoryOp::begin_as(self, participant));
        if let Some(op) = op {
            op.reuse_or_give_back(true, usize::MAX);
        }
        let recalls = &self.allocator.recalls;
        let mut returned = Vec::new();
        let mut next = Time::NEVER;
        let count = {
            let (batches, mut wanted) = (lock(&self.allocator.batches), lock(&recalls.wanted));
            let is_looking = self.allocator.looking.load(Ordering::Relaxed) > 0;
            wanted.retain(|&kind, search| {
                let is_left = is_looking
                    || search.visited != u64::MAX
                    || batches
                        .iter()
                        .any(|batch| batch.blocks.iter().any(|place| place.kind() == kind));
                if !is_left || now >= search.until {
                    returned.push(kind);
                    return false;
                }
                if now >= search.due {
                    search.due = now.after(search.pause);
                    search.pause = (search.pause * 2).min(LARGE_PAUSE);
                }
                next = next.min(search.due);
                true
            });
            wanted.len()
        };
        recalls.count.store(count, Ordering::Relaxed);
        for kind in returned {
            let place = Place::of_kind(kind, 0);
            let class = place.class() as u64;
            match place.replica() == self.me() {
                true => self.record_returned(self.me(), place.class()),
                // If the message cannot be sent, the replica waits until `RECALL_WAIT` is over.
                false => _ = self.try_send(place.replica(), &Message::Returned { class }),
            }
        }
        next
    }

    /// `recall.collect`: takes the blocks of a kind out of the magazines and lists of this member.
    /// They wait for a grace period, since a block that was taken and not used must not go back to
    /// the free list directly (ABA).
    fn collect(&self, kind: u64) {
        let visited = lock(&self.allocator.recalls.wanted).get(&kind).map(|search| search.visited);
        let Some(mut visited) = visited else { return };
        let mut blocks = Vec::new();
        for participant in 0..PARTICIPANTS {
            if visited & 1 << participant != 0 {
                continue;
            }
            let is_used = self.participants.announced.load(Ordering::Acquire) > participant;
            // A participant with an operation in flight is visited when the operation has ended.
            let op = if is_used { MemoryOp::begin_as(self, participant) } else { None };
            if op.is_some() || !is_used {
                visited |= 1 << participant;
            }
            if let Some(op) = op {
                blocks.append(&mut op.magazine().take_all(kind));
            }
        }
        blocks.append(&mut self.allocator.take_kind(kind));
        if let Some(search) = lock(&self.allocator.recalls.wanted).get_mut(&kind) {
            search.visited |= visited;
        }
        if !blocks.is_empty() {
            let batch = Batch { blocks, grace: GracePeriod::begin(self) };
            self.allocator.push_batch(batch);
        }
    }
}

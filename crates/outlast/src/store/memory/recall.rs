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

/// How long to wait before a message is sent again to a member whose queue of messages is full.
pub(in crate::store::memory) const SEND_PAUSE: Duration = Duration::from_millis(5);

/// The longest reason of a refusal. A message that is not waited for must be short.
const REASON_LEN_MAX: usize = 400;

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
    /// As a replica: the answers for which their members had no room, each with the reason of a
    /// refusal.
    unsent: Mutex<BTreeMap<Asked, Option<String>>>,
}

/// What a member has asked a replica for: blocks of a class, inside of its operation or outside.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    by: MemberId,
    class: usize,
    waits: bool,
}

/// A recall of a replica.
struct Recall {
    /// The members that wait for the answer. Empty once the recall has ended, and only then may
    /// another recall take the place of this recall.
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
        let (before, _) = self.allocator.answers(replica, class, true);
        let need = Message::Need { class: class as u64, waits: true };
        let mut is_asked = match replica == self.me() {
            true => {
                self.serve_need(replica, class, true);
                true
            }
            false => self.try_send(replica, &need)?,
        };
        loop {
            let bell = job.bell();
            if !is_asked {
                is_asked = self.try_send(replica, &need)?;
            }
            let (count, refusal) = self.allocator.answers(replica, class, true);
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
            // The answer rings the bell, and so does the death of the replica. Room in its queue of
            // messages does not.
            job.park(bell, if is_asked { until } else { until.min(job.now().after(SEND_PAUSE)) });
        }
    }

    /// Serves a request for blocks of a class: makes a slab if the free list is empty. If there is
    /// no room for a slab it recalls blocks, and answers now only if the asker does not wait.
    pub(in crate::store) fn serve_need(&self, from: MemberId, class: usize, waits: bool) {
        match self.provide(class) {
            Ok(()) => self.answer_need(from, class, waits, None),
            Err(error) => {
                let reason = error.to_string();
                if !self.recall(from, class, waits, &reason) || !waits {
                    self.answer_need(from, class, waits, Some(reason));
                }
            }
        }
    }

    /// Tells a member that there are blocks of a class, or why there are none. A member whose queue
    /// of messages is full is told later, by the background: no call waits for a stopped asker.
    fn answer_need(&self, to: MemberId, class: usize, waits: bool, refusal: Option<String>) {
        if to == self.me() {
            self.allocator.answered(to, class, waits, refusal);
            let _ = self.job.ring(to);
            return;
        }
        let refusal = refusal.map(|reason| reason.chars().take(REASON_LEN_MAX).collect());
        let asked = Asked { by: to, class, waits };
        if !self.is_answered(asked, refusal.as_ref()) {
            // Later answers to equal requests say the same, so only the last answer is kept.
            lock(&self.allocator.recalls.unsent).insert(asked, refusal);
            let _ = self.job.ring(self.me());
        } else {
            // An older answer must not come after this answer.
            lock(&self.allocator.recalls.unsent).remove(&asked);
        }
    }

    /// Sends an answer without waiting. Returns whether that is done with: an answer to a dead
    /// member is dropped.
    fn is_answered(&self, Asked { by, class, waits }: Asked, refusal: Option<&String>) -> bool {
        let class = class as u64;
        let answer = match refusal.cloned() {
            None => Message::Granted { class, waits },
            Some(reason) => Message::Refused { class, waits, reason },
        };
        self.try_send(by, &answer) != Ok(false)
    }

    /// Sends the answers for which their members had no room. Returns when to try again.
    fn send_answers(&self) -> Time {
        // The answers are taken out: the engine is never called under a lock.
        let mut unsent = std::mem::take(&mut *lock(&self.allocator.recalls.unsent));
        if unsent.is_empty() {
            return Time::NEVER;
        }
        unsent.retain(|&asked, refusal| !self.is_answered(asked, refusal.as_ref()));
        let mut kept = lock(&self.allocator.recalls.unsent);
        // An answer that was added meanwhile is newer.
        unsent.into_iter().for_each(|(asked, refusal)| _ = kept.entry(asked).or_insert(refusal));
        let is_over = kept.is_empty();
        drop(kept);
        if is_over { Time::NEVER } else { self.job.now().after(SEND_PAUSE) }
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
            // A recall whose time is over still has to answer the members that have asked.
            let is_open = |recall: &&mut Recall| now < recall.until || !recall.askers.is_empty();
            if let Some(recall) = own.get_mut(&class).filter(is_open) {
                let is_under_way = !recall.missing.is_empty() || !recall.askers.is_empty();
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
        self.return_recalled().min(self.end_recalls()).min(self.send_answers())
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
                self.answer_need(asker, class, true, (!provided).then(|| reason.clone()));
            }
        }
        next
    }

    /// Refuses all members that wait, since the store is closed here. Returns when it wants to run
    /// again.
    pub(in crate::store) fn refuse_recalls(&self) -> Time {
        let own = std::mem::take(&mut *lock(&self.allocator.recalls.own));
        for (class, recall) in own {
            for asker in recall.askers {
                self.answer_need(asker, class, true, Some(recall.reason.clone()));
            }
        }
        self.send_answers()
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

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::engine::Fault;
    use crate::engine::sim::{self, Link, Options as SimOptions};
    use crate::job::Job;
    use crate::store::testing::{expect_timeout, nap};
    use crate::store::{Options, Store};
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::Arc;

    const LIMIT: Duration = Duration::from_secs(1);

    /// Fills the queue of messages of a stopped member.
    fn fill_queue(state: &MemoryState, member: MemberId) {
        for len in [64, 0] {
            let filler = Message::Marked { hashes: vec![u64::MAX; len] };
            while state.try_send(member, &filler).expect("a living member") {}
        }
    }

    /// Three members on mapped memory. The first runs `body` with the store and with a key whose
    /// only replica is the second member.
    fn run(seed: u64, body: impl Fn(&Job, &Store, MemberId, &[u8]) + 'static) {
        let (is_over, open) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let mut options = SimOptions::new(3, seed).link(Link::Memory);
        options.steps_max = 10_000_000;
        (options.message_credit, options.time_limit) = (4 << 10, LIMIT);
        sim::run(&options, move |job: Job| {
            let options = Options::new().replicas(1).partitions(8).expected_keys(64);
            let store = Store::open(&job, options).expect("open");
            open.set(open.get() + 1);
            nap(&job, "all members", || open.get() == 3);
            let replica = MemberId(1);
            if job.me() == MemberId(0) {
                let keys = (0..1000).map(|number| format!("key/{number}").into_bytes());
                let key = keys.into_iter().find(|key| store.replicas_of(key) == [replica]);
                body(&job, &store, replica, &key.expect("some key"));
                is_over.set(true);
            }
            nap(&job, "the end", || is_over.get());
            store.close().expect("closed");
            let _ = job.leave();
        })
        .expect_ok();
    }

    /// A put needs a block of a stopped replica, whose queue of messages is full. The put ends at
    /// its time limit, also if the replica goes on a little later. The next call, which has to wait
    /// for the replica, has a time limit of its own.
    #[test]
    fn a_put_that_cannot_ask_for_blocks_ends_at_its_time_limit() {
        for seed in 0..4 {
            run(seed, |job, store, replica, key| {
                let handle = store.handle(key).expect("a handle");
                handle.put(b"small").expect("put");
                job.inject(Fault::Stop(replica)).expect("a fault");
                fill_queue(&store.state, replica);
                let resumed = job.clone();
                let resume = move || {
                    resumed.sleep(LIMIT * 3 / 2);
                    resumed.inject(Fault::Resume(replica)).expect("a fault");
                };
                let resume = job.spawn("resumes", Box::new(resume)).expect("an activity");
                let began = job.now();
                assert_eq!(expect_timeout(handle.put_parts(&[&[7; 10_000], b"end"])), replica);
                let took = job.now().since(began);
                assert!(took < LIMIT * 9 / 8, "it took {took:?}");
                nap(job, "the replica", || resume.is_finished());
                job.inject(Fault::Stop(replica)).expect("a fault");
                let resumed = job.clone();
                let resume = move || {
                    resumed.sleep(LIMIT / 2);
                    resumed.inject(Fault::Resume(replica)).expect("a fault");
                };
                let resume = job.spawn("resumes", Box::new(resume)).expect("an activity");
                handle.put(&[7; 40_000]).expect("it has its own time limit");
                nap(job, "the replica", || resume.is_finished());
            });
        }
    }

    /// A replica answers a request for blocks of a member that is stopped and has no room for the
    /// answer. The replica does not wait, and the answer comes when there is room.
    #[test]
    fn an_answer_to_a_member_without_room_for_it_is_sent_later() {
        for seed in 0..4 {
            run(seed, |job, store, asker, _| {
                let (state, class) = (&store.state, 20);
                job.inject(Fault::Stop(asker)).expect("a fault");
                fill_queue(state, asker);
                let began = job.now();
                state.serve_need(asker, class, true);
                state.answer_need(asker, class, false, Some("no room".repeat(1000)));
                let took = job.now().since(began);
                assert!(took < Duration::from_millis(1), "it took {took:?}");
                let unsent = || lock(&state.allocator.recalls.unsent).len();
                assert_eq!(unsent(), 2);
                job.inject(Fault::Resume(asker)).expect("a fault");
                nap(job, "the answers", || unsent() == 0);
            });
        }
    }

    /// More threads than a member has participants need blocks of a stopped replica, and its queue
    /// of messages is full, so that they cannot even ask. Calls of this member on another replica
    /// go on meanwhile.
    #[test]
    fn threads_that_cannot_ask_for_blocks_hold_up_no_other_call() {
        for seed in 0..2 {
            run(seed, |job, store, replica, _| {
                let keys_at = |replica: MemberId| -> Vec<String> {
                    let keys = (0..2000).map(|number| format!("key/{number}"));
                    keys.filter(|key| store.replicas_of(key.as_bytes()) == [replica]).collect()
                };
                let (keys, others) = (keys_at(replica), keys_at(MemberId(2)));
                job.inject(Fault::Stop(replica)).expect("a fault");
                fill_queue(&store.state, replica);
                let waits = |key: &String| {
                    let (store, key) = (store.clone(), key.clone());
                    let wait = move || drop(store.put(key.as_bytes(), &[7; 3000]));
                    job.spawn("waits", Box::new(wait)).expect("an activity")
                };
                let waiting: Vec<_> = keys.iter().take(PARTICIPANTS + 6).map(waits).collect();
                job.sleep(LIMIT / 4);
                let began = job.now();
                for key in others.iter().take(5) {
                    store.put(key.as_bytes(), &[8; 3000]).expect("put");
                }
                let took = job.now().since(began);
                assert!(took < LIMIT / 4, "took {took:?}");
                assert!(waiting.iter().all(|activity| !activity.is_finished()));
                job.inject(Fault::Resume(replica)).expect("a fault");
                nap(job, "all threads", || waiting.iter().all(|one| one.is_finished()));
            });
        }
    }

    /// Two members ask a full replica for blocks, the second when the time of the recall for the
    /// first is over and the replica, which was stopped, has not answered yet. Both get their
    /// answer.
    #[test]
    fn a_member_that_asks_late_makes_a_replica_forget_no_other_member() {
        for seed in 0..6 {
            let stage = Arc::new(AtomicUsize::new(0));
            let mut options = SimOptions::new(4, seed).link(Link::Memory);
            (options.segment_limit, options.steps_max) = (4 << 20, 20_000_000);
            sim::run(&options, move |job: Job| {
                let options = Options::new().replicas(1).partitions(16).expected_keys(256);
                let store = Store::open(&job, options).expect("open");
                let [replica, first, second, idle] = [0, 1, 2, 3].map(MemberId);
                let keys = (0..8000).map(|number| format!("key/{}/{number}", job.me()));
                let keys: Vec<String> =
                    keys.filter(|key| store.replicas_of(key.as_bytes()) == [replica]).collect();
                let put = |key: &String| store.put(key.as_bytes(), &[7; 100_000]);
                let is_full = || {
                    let began = job.now();
                    let result = put(&keys[200]);
                    let took = job.now().since(began);
                    let is_refused = matches!(result, Err(StoreError::OutOfMemory { .. }));
                    assert!(is_refused, "{result:?}");
                    assert!(took < Duration::from_secs(2), "the answer took {took:?}");
                };
                let add = || stage.fetch_add(1, Ordering::Relaxed);
                job.sleep(Duration::from_secs(1));
                if job.me() == first {
                    keys.iter().take(200).find(|&key| put(key).is_err()).expect("no more room");
                    // It does not answer the recall, so the replica waits as long as it may.
                    job.inject(Fault::Stop(idle)).expect("a fault");
                    job.sleep(Duration::from_secs(1));
                    add();
                    is_full();
                    add();
                }
                if job.me() == second {
                    nap(&job, "the first member", || stage.load(Ordering::Relaxed) == 1);
                    job.sleep(Duration::from_millis(50));
                    job.inject(Fault::Stop(replica)).expect("a fault");
                    let (clock, mine) = (job.clone(), stage.clone());
                    let resume = move || {
                        clock.sleep(Duration::from_millis(400));
                        clock.inject(Fault::Resume(replica)).expect("a fault");
                        clock.inject(Fault::Resume(idle)).expect("a fault");
                        mine.fetch_add(1, Ordering::Relaxed);
                    };
                    let _resume = job.spawn("resumes", Box::new(resume)).expect("an activity");
                    is_full();
                    add();
                }
                nap(&job, "the answers", || stage.load(Ordering::Relaxed) == 4);
                store.close().expect("close");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }
}

//! The state of the operation layer: what an operation needs to know of its store.

use crate::engine::deadline::{self, BackgroundDeadline, Deadline};
use crate::engine::{Epoch, Error, MemberId, Pending, Time, View};
use crate::job::Job;
use crate::store::mutant::mutant;
use crate::store::operation::above::Above;
use crate::store::operation::configuration::Configuration;
use crate::store::operation::freeze::WriteFreeze;
use crate::store::operation::gate::Gate;
use crate::store::operation::leavers::Leavers;
use crate::store::operation::message::Address;
use crate::store::operation::participants::Participants;
use crate::store::operation::stragglers::{Stragglers, start_load};
use crate::store::placement::{Assignment, Placement};
use crate::store::segment::layout::{PARTICIPANT_COUNTER, Root};
use crate::sync::lock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// How long the background waits for a replica that is to make a slab or to salvage a partition.
const BACKGROUND_WAIT: Duration = Duration::from_millis(20);

/// The state of the operation layer: everything that an operation needs to know of its store. The
/// states of the layers above contain it.
///
/// *Orderings.* `roots` is stored with release and loaded with acquire: a root is complete before
/// its offset is known. `background` is relaxed, since an activity compares it only with its own
/// number: it reads back its own store, and no other activity ever stores that number. `is_closed`
/// is a flag that is only set. An operation of the slow path loads it after the swap of its counter
/// (that of a fast path looks at the gate, which is closed as well), and the member that
/// closes the store stores it before it reads the counters, both sequentially consistent: either
/// the operation finds the store closed, or the member waits for the operation. The counts of open
/// writes are sequentially consistent: the mapped fast paths do not touch them, so nothing is
/// gained by less.
pub(in crate::store) struct OperationState {
    pub(in crate::store) job: Job,
    /// The name of the store; empty by default.
    pub(in crate::store) name: String,
    /// The address of the messages of this opening of the store.
    pub(in crate::store) address: Address,
    pub(in crate::store) placement: Placement,
    pub(in crate::store) bucket_count: usize,
    pub(in crate::store) layout: Root,
    /// The offset of each member's root, plus 1; 0 while it is not known.
    pub(in crate::store) roots: Vec<AtomicU64>,
    pub(in crate::store) participants: Participants,
    pub(in crate::store) stragglers: Stragglers,
    /// For each partition its order of preference, and the configurations that were entered.
    pub(in crate::store) partitions: Vec<Partition>,
    pub(in crate::store) view: Mutex<Arc<View>>,
    pub(in crate::store) freeze: WriteFreeze,
    pub(in crate::store) gate: Gate,
    pub(in crate::store) leavers: Leavers,
    /// Whether survivors read the segments of dead members.
    pub(in crate::store) salvage_is_on: bool,
    /// The activity that does the background's work now, plus 1; 0 if no activity does.
    pub(in crate::store) background: AtomicU64,
    pub(in crate::store) is_closed: AtomicBool,
    /// The members that did not answer a request of the background, each with a request to it. The
    /// background sends it no other request until that is answered.
    pub(in crate::store) late: Mutex<Vec<(MemberId, Pending)>>,
    /// The layers above this layer.
    pub(in crate::store) above: OnceLock<Weak<dyn Above>>,
}

/// What this member knows of a partition. Its configurations form a list that only grows: a death
/// or a leaver that concerns the partition appends a configuration. Readers need no lock.
#[derive(Default)]
pub(in crate::store) struct Partition {
    preference: OnceLock<Vec<MemberId>>,
    pub(in crate::store) first: OnceLock<Configuration>,
    /// The number of writes of this member that have failed with an open outcome.
    open_writes: AtomicU64,
}

impl OperationState {
    pub(in crate::store) fn me(&self) -> MemberId {
        self.job.me()
    }

    /// The offset of a member's root. It is known for all members that are alive after the store
    /// was opened.
    #[inline(always)]
    pub(in crate::store) fn root(&self, member: MemberId) -> u64 {
        self.roots[member.index()].load(Ordering::Acquire).wrapping_sub(1)
    }

    /// Records the root of a member that died before it told its offset; a salvager has found it.
    pub(in crate::store) fn learn_root(&self, member: MemberId, root: u64) {
        self.roots[member.index()].store(root + 1, Ordering::Release);
    }

    /// The root magic of this opening of the store, identical at all members.
    pub(in crate::store) fn root_magic(&self) -> u64 {
        self.layout.magic(self.bucket_count, self.address.number())
    }

    /// Whether the offset of a member's root is known.
    pub(in crate::store) fn knows_root(&self, member: MemberId) -> bool {
        self.roots[member.index()].load(Ordering::Acquire) != 0
    }

    /// The order of preference of a partition.
    pub(in crate::store) fn preference(&self, partition: usize) -> &[MemberId] {
        self.partitions[partition].preference.get_or_init(|| self.placement.preference(partition))
    }

    /// The replicas of a partition under a view.
    pub(in crate::store) fn replicas(&self, partition: usize, view: &View) -> Assignment {
        self.placement.replicas(self.preference(partition), view, &self.leavers.members())
    }

    /// The number of writes of this member to a partition that have failed with an open outcome. A
    /// near mark of a smaller number is not used.
    pub(in crate::store) fn open_writes(&self, partition: usize) -> u64 {
        self.partitions[partition].open_writes.load(Ordering::SeqCst)
    }

    /// Records that a write of this member has failed and may have happened, or may still happen.
    pub(in crate::store) fn record_open_write(&self, partition: usize) {
        self.partitions[partition].open_writes.fetch_add(1, Ordering::SeqCst);
    }

    /// The view of this epoch, if it is the current epoch.
    pub(in crate::store) fn view(&self, epoch: Epoch) -> Option<Arc<View>> {
        let known = lock(&self.view).clone();
        if known.epoch == epoch {
            return Some(known);
        }
        let view = Arc::new(self.job.view());
        *lock(&self.view) = view.clone();
        (view.epoch == epoch).then_some(view)
    }

    /// The current view, or the view of a moment ago.
    pub(in crate::store) fn current_view(&self) -> Arc<View> {
        self.view(self.job.epoch()).unwrap_or_else(|| lock(&self.view).clone())
    }

    /// Begins a call: until the returned guard is dropped, all waits of the calling activity share
    /// a single deadline.
    #[inline]
    pub(in crate::store) fn begin_call(&self) -> Deadline {
        match mutant("limit-per-wait") {
            true => Deadline::listener(),
            false => Deadline::call(|| self.job.now()),
        }
    }

    /// Begins a call that waits for a condition until `until`. To find out whether the condition
    /// holds, it has the time limit in any case.
    pub(in crate::store) fn begin_wait(&self, until: Time) -> Deadline {
        Deadline::call_until(until.max(self.job.now().after(self.job.time_limit())))
    }

    /// How long the calling activity waits for a replica that is to make a slab or to salvage a
    /// partition, and until when. The background waits for a short time: if the replica does it
    /// later, the next attempt finds it.
    pub(in crate::store) fn wait_for_replica(&self) -> (Duration, Time) {
        let (now, limit) = (self.job.now(), self.job.time_limit());
        let until = deadline::until(now, limit);
        match self.is_background() {
            true => (BACKGROUND_WAIT, until.min(now.after(BACKGROUND_WAIT))),
            false => (limit, until),
        }
    }

    /// Whether the calling activity is the background at its own work. It waits for no replica for
    /// long. Calls of the program that the background runs have the deadline of a call: in a
    /// listener of this store or of another store, or in a task that it wakes.
    pub(in crate::store) fn is_background(&self) -> bool {
        self.runs_background() && deadline::is_background()
    }

    /// Whether the calling activity runs the background, at its own work or in code of the program.
    /// While it waits, nothing else does the work of the background.
    pub(in crate::store) fn runs_background(&self) -> bool {
        self.background.load(Ordering::Relaxed) == self.job.activity() + 1
    }

    /// Records that the calling activity begins to do the background's work.
    pub(in crate::store) fn begin_background(&self) {
        self.background.store(self.job.activity() + 1, Ordering::Relaxed);
    }

    /// Begins a piece of the background's work, which waits for no member for long.
    pub(in crate::store) fn begin_background_work(&self) -> BackgroundDeadline {
        // The requests are taken out, since no activity calls the engine while it holds the lock.
        // The background alone uses them.
        let mut late = std::mem::take(&mut *lock(&self.late));
        late.retain_mut(|(member, request)| match self.job.poll(request) {
            None => true,
            Some(Ok(_) | Err(Error::Dead { .. } | Error::Ended | Error::Stale { .. })) => false,
            Some(Err(_)) => {
                *request = start_load(self, *member);
                true
            }
        });
        let work = match mutant("background-waits") {
            true => BackgroundDeadline::unbounded(),
            false => Deadline::background(late.iter().map(|(member, _)| *member)),
        };
        *lock(&self.late) = late;
        work
    }

    /// Ends a piece of the background's work: remembers the members that are late.
    pub(in crate::store) fn end_background_work(&self, work: &BackgroundDeadline) {
        for member in work.late().iter() {
            if !lock(&self.late).iter().any(|(other, _)| *other == member) {
                let request = start_load(self, member);
                lock(&self.late).push((member, request));
            }
        }
    }

    /// The offset of a participant's operation counter.
    #[inline]
    pub(in crate::store) fn counter_word(&self, member: MemberId, participant: usize) -> u64 {
        self.root(member) + self.layout.participant(participant) + PARTICIPANT_COUNTER
    }
}

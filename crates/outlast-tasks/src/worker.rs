//! A worker: the part of a member that runs tasks. This file has its state, the look at the clock
//! and the board, sharing and saving.
//!
//! A worker belongs to the thread that called [`crate::Tasks::open`]. What the background of the
//! member needs of it is in [`crate::background::Shared`].

use crate::background::Shared;
use crate::board::{Boards, Sign};
use crate::counts::Counts;
use crate::error::{Error, TaskError};
use crate::events::{EXPOSED_NS, Event};
use crate::frame::{Frame, Kind, Sharing};
use crate::options::{Beat, Options};
use crate::record::{
    BagPart, Blob, Entry, INLINE_LEN_MAX, Keys, Path, Progress, Record, Saved, Side, State, TaskId,
    WorkerInfo, decode, encode, hash,
};
use crate::slots::{Content, Slots, Taken, Use};
use crate::steps::{Step, mutant, within};
use crate::task::Offer;
use crate::wait::Watched;
use outlast::store::{Expect, KeyHandle, Store, StoreError, StoreResult, Version};
use outlast::{Job, MemberId, Time, View};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often a worker looks at the clock and its board, about, in nanoseconds.
const LOOK_NS: u64 = 20_000;
/// The shortest and the longest beat, in nanoseconds.
const BEAT_NS: (u64, u64) = (50_000, 1_000_000_000);
/// How often a worker that waits, or that was told of an end, looks at the root's record at least,
/// and how often a worker in the middle of its work does.
const ROOT_NS: (u64, u64) = (100_000_000, 1_000_000_000);
/// How long a worker waits for room in the store before it tries again, at first and at last.
const ROOM: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(320));
/// How many handles of other workers' slots a worker keeps.
const HANDLES_MAX: usize = 4096;

/// What unwinds a worker's stack when the run is over. Borders of tasks pass it on.
pub(crate) struct RunOver(pub(crate) Option<Error>);

/// What unwinds a task whose child has failed.
pub(crate) struct ChildFailed(pub(crate) TaskError);

/// Progress that is about to be put.
pub(crate) enum Saving {
    Left { fork: u64, output: Vec<u8> },
    State { next: u32, state: Vec<u8> },
    Bag { rest: Vec<u8>, parts: Vec<BagPart> },
    Waits,
}

/// What became of a conditional change of a record.
pub(crate) enum Change {
    Made(Version),
    /// The record has another version, or an unanswered try has changed it: read it again.
    Conflict,
    /// There was no room, and nothing was changed.
    NoRoom,
}

/// The waits of a call for room in the store: with longer and longer pauses, up to the job's time
/// limit in all.
#[derive(Default)]
struct Room {
    until: Option<Time>,
    pause: Duration,
}

impl Room {
    /// Waits for a while; returns whether the call may try again.
    fn wait(&mut self, job: &Job) -> bool {
        let now = job.now();
        let until = *self.until.get_or_insert(now.after(job.time_limit()));
        self.pause = (self.pause * 2).clamp(ROOM.0, ROOM.1);
        if now < until {
            job.sleep(self.pause);
        }
        now < until
    }
}

/// The part of a member that runs tasks.
pub(crate) struct Worker {
    pub(crate) job: Job,
    pub(crate) store: Store,
    pub(crate) keys: Keys,
    pub(crate) me: u32,
    pub(crate) options: Options,
    pub(crate) shared: Arc<Shared>,
    pub(crate) boards: Boards,
    pub(crate) slots: RefCell<Slots>,
    handles: RefCell<HashMap<(u32, u32), Rc<KeyHandle>>>,
    view: RefCell<Rc<View>>,
    /// The work, in nanoseconds, that only the stack knows. It grows at each look and shrinks by
    /// what is saved, so that a difference tells how much unsaved work a left half has.
    pub(crate) unsaved: Cell<i64>,
    /// How much unsaved work makes a left half worth saving.
    pub(crate) half_beat: Cell<i64>,
    /// The time of the last look.
    looked: Cell<u64>,
    /// When the next beat is due.
    due: Cell<u64>,
    /// What a record costs, as a moving average in nanoseconds.
    cost: Cell<u64>,
    /// The start of the countdown to the next look.
    start: Cell<u32>,
    /// The weight of the tasks on the stack.
    pub(crate) depth: Cell<u32>,
    random: Cell<u64>,
    /// Whether others are hungry, and no frame had anything for them: a bag is asked to split.
    pub(crate) is_asked: Cell<bool>,
    pub(crate) run: Cell<u64>,
    run_began: Cell<u64>,
    /// Whether this member knows that the run is over, and only fetches its output.
    pub(crate) knows_over: Cell<bool>,
    /// What the own board said of the end of runs when the root was looked at last.
    over_seen: Cell<u64>,
    /// When the root was looked at last, about.
    root_seen: Cell<u64>,
    /// The signs of life of the holders that this worker waits for.
    pub(crate) signs: RefCell<HashMap<u32, Watched>>,
    /// The holder that this worker saw last where it waited.
    pub(crate) holder: Cell<Option<u32>>,
    /// The last event that said what the worker does.
    does: Cell<Event>,
    /// When the unsaved work was told last.
    exposed_told: Cell<u64>,
    /// Until when this worker asks for no room that it can do without: the store had none, and a
    /// call that finds none costs far more than a call that finds some.
    no_room_until: Cell<Time>,
    no_room_pause: Cell<Duration>,
    pub(crate) counts: Arc<Counts>,
}

impl Worker {
    pub(crate) fn new(store: &Store, options: Options, shared: Arc<Shared>) -> Worker {
        let job = store.job().clone();
        let me = job.me().0;
        let view = job.view();
        Worker {
            slots: RefCell::new(Slots::new(me, options.slots)),
            handles: RefCell::default(),
            view: RefCell::new(Rc::new(view)),
            keys: shared.keys.clone(),
            boards: shared.boards.clone(),
            store: store.clone(),
            job,
            me,
            options,
            unsaved: Cell::new(0),
            half_beat: Cell::new(i64::MAX),
            looked: Cell::new(0),
            due: Cell::new(0),
            cost: Cell::new(2000),
            start: Cell::new(16),
            depth: Cell::new(0),
            random: Cell::new(hash(&encode(&(shared.session, me))) | 1),
            is_asked: Cell::new(false),
            run: Cell::new(0),
            run_began: Cell::new(0),
            knows_over: Cell::new(false),
            over_seen: Cell::new(0),
            root_seen: Cell::new(0),
            signs: RefCell::default(),
            holder: Cell::new(None),
            does: Cell::new(Event::Waits),
            exposed_told: Cell::new(0),
            no_room_until: Cell::new(Time(0)),
            no_room_pause: Cell::new(ROOM.0),
            counts: Arc::default(),
            shared,
        }
    }

    /// Sets the clocks at the start of a run.
    pub(crate) fn begin_run(&self, run: u64) {
        let now = self.job.now().0;
        self.run.set(run);
        self.run_began.set(now);
        self.knows_over.set(false);
        self.over_seen.set(0);
        self.root_seen.set(now);
        self.signs.borrow_mut().clear();
        self.holder.set(None);
        self.boards.tell_run(run);
        self.looked.set(now);
        self.unsaved.set(0);
        self.depth.set(0);
        self.start.set(16);
        self.shared.countdown.store(0, Ordering::Relaxed);
        self.set_beat(now);
    }

    pub(crate) fn count(&self, which: impl Fn(&Counts) -> &AtomicU64) {
        // Relaxed: counts are read for reports alone.
        which(&self.counts).fetch_add(1, Ordering::Relaxed);
    }

    /// What the worker does, by the last event that said so.
    pub(crate) fn does(&self) -> Event {
        self.does.get()
    }

    /// Tells the program that the worker runs a task or waits, if that is new.
    pub(crate) fn tell_does(&self, event: Event) {
        if self.shared.listener.is_some() && self.does.replace(event) != event {
            self.shared.tell(&self.job, event);
        }
    }

    /// A number below `bound`, at random (xorshift).
    pub(crate) fn random(&self, bound: u64) -> u64 {
        let mut state = self.random.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.random.set(state);
        (state >> 11) % bound.max(1)
    }

    /// This member's view, as of its epoch.
    pub(crate) fn view(&self) -> Rc<View> {
        if self.job.epoch() != self.view.borrow().epoch {
            let view = self.job.view();
            *self.view.borrow_mut() = Rc::new(view);
        }
        self.view.borrow().clone()
    }

    pub(crate) fn is_dead(&self, worker: u32) -> bool {
        !self.view().is_living(MemberId(worker))
    }

    // ---- Looking.

    /// The cold path of a fork: looks at the clock and the own board, and shares if that is due.
    #[cold]
    #[inline(never)]
    pub(crate) fn look(&self, frame: &Frame<'_>) {
        let now = self.job.now().0;
        let elapsed = self.pass(now);
        self.counts.forks.fetch_add(u64::from(self.start.get()), Ordering::Relaxed);
        self.shared.looks.fetch_add(1, Ordering::Relaxed);
        let look = self.boards.look();
        self.check_over_at(look.over, now, ROOT_NS.1);
        let (is_due, start) = match self.options.beat {
            Beat::Forks(forks) => {
                let is_saving = self.options.is_resilient && self.random(2) == 0;
                self.half_beat.set(if is_saving { 0 } else { i64::MAX });
                (true, self.random(2 * u64::from(forks)) as u32)
            }
            _ => {
                let start = u64::from(self.start.get().max(1));
                let scaled = start * LOOK_NS / elapsed.max(1);
                (now >= self.due.get(), scaled.clamp(start / 4, start * 2).min(1 << 20) as u32)
            }
        };
        self.start.set(start);
        let is_hungry = !look.hungry.is_empty();
        let is_saving = is_due && self.options.is_resilient;
        let is_shared = ((is_hungry || is_saving) && self.share_oldest(frame))
            || (is_hungry && self.advertise_the_rest());
        self.is_asked.set(is_hungry && !is_shared);
        if is_shared {
            // After the hint: a worker that got hungry meanwhile has looked before or is seen now.
            self.boards.wake_hungry(&self.boards.look().hungry);
        } else if is_saving {
            // Nothing to share: the next look need not walk up the stack again.
            self.due.set(now + BEAT_NS.0);
        }
        self.shared.countdown.store(start, Ordering::Relaxed);
    }

    /// Counts the time since the last look as work; returns it.
    fn pass(&self, now: u64) -> u64 {
        let elapsed = now.saturating_sub(self.looked.replace(now));
        self.unsaved.set(self.unsaved.get().saturating_add_unsigned(elapsed));
        let unsaved = u64::try_from(self.unsaved.get()).unwrap_or(0);
        self.counts.exposed_ns.fetch_max(unsaved, Ordering::Relaxed);
        if self.shared.listener.is_some() && now - self.exposed_told.get() >= EXPOSED_NS {
            self.exposed_told.set(now);
            let unsaved = Duration::from_nanos(unsaved);
            self.shared.tell(&self.job, Event::Exposed { unsaved });
        }
        elapsed
    }

    /// The time since the last look was no work, but waiting.
    pub(crate) fn forget_time(&self) {
        self.looked.set(self.job.now().0);
    }

    /// Unwinds the stack if the run is over, or its deadline has passed. For a worker that waits.
    pub(crate) fn check_over(&self) {
        self.check_over_at(self.boards.look().over, self.job.now().0, ROOT_NS.0);
    }

    /// The root says whether the run is over. What the board says only brings the look at the root
    /// forward: it may be lost, or stand for another run.
    fn check_over_at(&self, over: u64, now: u64, patience: u64) {
        if self.job.has_ended() {
            self.unwind(Some(Error::Store(StoreError::Closed)));
        }
        let is_told = over >= self.run.get();
        let is_news = is_told && over != self.over_seen.get();
        let patience = match is_told {
            true => ROOT_NS.0,
            false if mutant("root-not-looked-at") => u64::MAX,
            false => patience,
        };
        let is_due = is_news || now.saturating_sub(self.root_seen.get()) >= patience;
        if is_due && !self.knows_over.get() {
            self.over_seen.set(over);
            if (is_told && mutant("told-is-over")) || self.is_root_final() {
                self.unwind(None);
            }
        }
        self.check_deadline_at(now);
    }

    /// Looks at the root's record. A read without an answer tells nothing, and the next one comes
    /// later by the time that it took.
    pub(crate) fn is_root_final(&self) -> bool {
        let began = self.job.now().0;
        let value = self.store.get(&self.keys.task(TaskId::root(self.run.get())));
        let now = self.job.now().0;
        self.root_seen.set(now.saturating_add(now - began));
        match value {
            Ok(value) => match value.and_then(|value| decode(value.bytes())) {
                Some(Entry::Task(record)) => record.state.is_final(),
                _ => false,
            },
            Err(StoreError::Timeout { .. }) => false,
            Err(error) => self.fail(Error::Store(error)),
        }
    }

    /// Ends the run if its deadline has passed.
    pub(crate) fn check_deadline(&self) {
        if self.options.deadline.is_some() {
            self.check_deadline_at(self.job.now().0);
        }
    }

    fn check_deadline_at(&self, now: u64) {
        let waited = Duration::from_nanos(now.saturating_sub(self.run_began.get()));
        if self.options.deadline.is_some_and(|deadline| waited >= deadline) {
            let holder = self.silent_member();
            self.fail(Error::Deadline { waited, holder });
        }
    }

    /// A living member of the run that shows no sign of life for a second. If there are several,
    /// the holder that this worker waited for comes first.
    fn silent_member(&self) -> Option<MemberId> {
        let mut living: Vec<MemberId> = self.view().living().collect();
        living.sort_by_key(|member| self.holder.get() != Some(member.0));
        let signs: Vec<_> = living.iter().map(|member| self.boards.sign_of(*member)).collect();
        self.job.sleep(Duration::from_secs(1));
        let is_silent = |(member, sign): &(&MemberId, &Option<Sign>)| {
            let now = self.boards.sign_of(**member);
            now.is_none_or(|now| now.run == self.run.get() && Some(now) == **sign)
        };
        living.iter().zip(&signs).find(is_silent).map(|(member, _)| *member)
    }

    // ---- Ending a run early.

    /// Leaves the run at this member.
    pub(crate) fn unwind(&self, error: Option<Error>) -> ! {
        std::panic::resume_unwind(Box::new(RunOver(error)))
    }

    /// Ends the run everywhere: the root says that it failed. If the root is done already, this
    /// member takes its output as all others do.
    pub(crate) fn fail(&self, error: Error) -> ! {
        self.fail_with(error, Room::default())
    }

    /// As [`Worker::fail`], for a worker that learns that another one has left the run: that one
    /// has waited for room already.
    pub(crate) fn fail_at_once(&self, error: Error) -> ! {
        self.fail_with(error, Room { until: Some(self.job.now()), ..Room::default() })
    }

    fn fail_with(&self, error: Error, room: Room) -> ! {
        if self.job.has_ended() || self.knows_over.get() {
            self.unwind(Some(error));
        }
        tracing::error!(run = self.run.get(), %error, "the run ends");
        let is_done = self.fail_root(&error, room) && !mutant("fail-over-done");
        let living: Vec<MemberId> = self.view().living().collect();
        self.boards.tell_over(&living, self.run.get());
        self.unwind(if is_done { None } else { Some(error) })
    }

    /// Makes the root final; returns whether it was done before. It insists: other workers may wait
    /// for what this worker holds, and the root is the first to tell them that they wait in vain.
    /// It gives up without room, by default after the job's time limit, or so long after the run's
    /// deadline. The others then learn from the board of this worker that it has left.
    fn fail_root(&self, error: &Error, mut room: Room) -> bool {
        let limit = self.job.time_limit();
        let deadline = self.options.deadline.map(|deadline| {
            let end = Time(self.run_began.get()).after(deadline);
            end.max(self.job.now()).after(limit)
        });
        loop {
            match self.try_to_fail_root(error) {
                Ok(Some(is_done)) => return is_done,
                Ok(None) => {}
                Err(StoreError::Timeout { .. }) => {
                    if deadline.is_some_and(|deadline| self.job.now() >= deadline) {
                        return false;
                    }
                }
                Err(StoreError::OutOfMemory { .. }) if room.wait(&self.job) => {}
                Err(_) => return false,
            }
        }
    }

    /// A try of [`Worker::fail_root`]; `None` if the root has changed meanwhile.
    fn try_to_fail_root(&self, error: &Error) -> StoreResult<Option<bool>> {
        let id = TaskId::root(self.run.get());
        let key = self.keys.task(id);
        let value = self.store.get(&key)?;
        let expect =
            value.as_ref().map_or(Expect::Absent, |value| Expect::Version(value.version()));
        let mut record = match value.and_then(|value| decode(value.bytes())) {
            Some(Entry::Task(record)) => record,
            // The root is not there yet. It must not come up later.
            _ => Record {
                generation: id.generation,
                run: id.generation,
                parent: id,
                path: Path::new(),
                task: 0,
                arguments: Blob::Inline(Vec::new()),
                state: State::Open,
                past: Vec::new(),
            },
        };
        if record.state.is_final() {
            return Ok(Some(matches!(record.state, State::Done(_))));
        }
        record.state = State::RunFailed(match error {
            Error::RunFailed { reason } => reason.clone(),
            error => error.to_string(),
        });
        match self.store.put_if(&key, &encode(&Entry::Task(record)), expect) {
            Ok(_) => Ok(Some(false)),
            Err(StoreError::Conflict { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    // ---- Calls of the store that must be answered.

    /// Repeats a call until it is answered.
    pub(crate) fn insist<T>(&self, mut call: impl FnMut() -> StoreResult<T>) -> T {
        let mut room = Room::default();
        loop {
            match call() {
                Ok(value) => return value,
                Err(error) => self.try_again_after(error, &mut room),
            }
        }
    }

    /// Changes the record of a task if it still has this version. `None` if it has not, or if an
    /// unanswered try has changed it: the caller reads it again. Without room it tries again, up to
    /// the time limit.
    pub(crate) fn insist_on_condition(
        &self,
        id: TaskId,
        record: &Record,
        version: Version,
    ) -> Option<Version> {
        let mut room = Room::default();
        loop {
            match self.change(id, record, version) {
                Change::Made(version) => return Some(version),
                Change::Conflict => return None,
                Change::NoRoom => {
                    let reason = "no room for the record of a task".to_string();
                    let error = StoreError::OutOfMemory { member: MemberId(self.me), reason };
                    self.try_again_after(error, &mut room);
                }
            }
        }
    }

    /// Changes the record of a task if it still has this version, and if there is room. After a try
    /// without an answer it insists: that try may have happened.
    pub(crate) fn change(&self, id: TaskId, record: &Record, version: Version) -> Change {
        let bytes = encode(&Entry::Task(record.clone()));
        let handle = self.handle(id);
        let mut is_unanswered = false;
        let mut room = Room::default();
        loop {
            match handle.put_if(&bytes, Expect::Version(version)) {
                Ok(version) => return Change::Made(version),
                Err(StoreError::Conflict { .. }) => return Change::Conflict,
                Err(StoreError::OutOfMemory { .. }) if !is_unanswered => return Change::NoRoom,
                Err(error) => {
                    is_unanswered = true;
                    self.try_again_after(error, &mut room);
                }
            }
        }
    }

    /// Returns if the call should be made again; otherwise ends the run.
    fn try_again_after(&self, error: StoreError, room: &mut Room) {
        match error {
            StoreError::Timeout { .. } => self.check_over(),
            StoreError::OutOfMemory { .. } => {
                if !room.wait(&self.job) {
                    self.fail(Error::Store(error));
                }
                self.check_over();
            }
            error => self.fail(Error::Store(error)),
        }
    }

    /// The handle of the key that holds a task's record.
    pub(crate) fn handle(&self, id: TaskId) -> Rc<KeyHandle> {
        // The root of a run has a key of its own, which the worker's number stands for.
        let place = (id.worker, if id.is_root() { id.generation as u32 } else { id.slot });
        if let Some(handle) = self.handles.borrow().get(&place) {
            return handle.clone();
        }
        let handle = Rc::new(self.insist(|| self.store.handle(&self.keys.task(id))));
        let mut handles = self.handles.borrow_mut();
        if handles.len() >= HANDLES_MAX {
            handles.clear();
        }
        handles.insert(place, handle.clone());
        handle
    }

    /// Reads the record of a task. `None` if its slot holds something else.
    pub(crate) fn read(&self, id: TaskId) -> Option<(Record, Version)> {
        let handle = self.handle(id);
        let value = self.insist(|| handle.get())?;
        let Entry::Task(record) = decode(value.bytes())? else { return None };
        let is_meant =
            record.generation == id.generation || crate::steps::mutant("generation-ignored");
        (is_meant && record.run == self.run.get()).then(|| (record, value.version()))
    }

    /// Reads the record of a task, whatever its run.
    pub(crate) fn read_any(&self, id: TaskId) -> Option<(Record, Version)> {
        let value = self.insist(|| self.store.get(&self.keys.task(id)))?;
        match decode(value.bytes())? {
            Entry::Task(record) => Some((record, value.version())),
            Entry::Progress(_) => None,
        }
    }

    /// Reads the task in a slot, whatever its generation.
    pub(crate) fn read_slot(&self, worker: u32, slot: u32) -> Option<(Record, Version)> {
        let handle = self.handle(TaskId { worker, slot, generation: 0 });
        let value = self.insist(|| handle.get())?;
        match decode(value.bytes())? {
            Entry::Task(record) => Some((record, value.version())),
            Entry::Progress(_) => None,
        }
    }

    /// Makes sure that a task whose `share` was not answered, and that is not there, never comes
    /// up: a changed version lets the late put fail. `false` if it has come up meanwhile, and
    /// another worker may have claimed it.
    pub(crate) fn prevent(&self, id: TaskId) -> bool {
        let (generation, parent, path) = (id.generation, id, Path::new());
        let progress = Progress { generation, run: 0, parent, path, saved: Saved::Waits };
        self.put_until_there(id, &encode(&Entry::Progress(progress)))
    }

    /// Puts an entry into an own slot after a put without an answer, unless that put has happened.
    /// `false` if it has, and the task is still to be done.
    fn put_until_there(&self, id: TaskId, bytes: &[u8]) -> bool {
        let handle = self.handle(id);
        let mut room = Room::default();
        loop {
            let value = self.insist(|| handle.get());
            let entry = value.as_ref().and_then(|value| decode::<Entry>(value.bytes()));
            if let Some(Entry::Task(record)) = entry
                && record.generation == id.generation
            {
                return record.state.is_final();
            }
            let expect = value.map_or(Expect::Absent, |value| Expect::Version(value.version()));
            match handle.put_if(bytes, expect) {
                Ok(_) => return true,
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => self.try_again_after(error, &mut room),
            }
        }
    }

    pub(crate) fn worker_info(&self, worker: u32) -> Option<WorkerInfo> {
        let key = self.keys.worker(worker);
        decode(self.insist(|| self.store.get(&key))?.bytes())
    }

    /// The bytes of a blob. `None` if its key is gone: the task that it belongs to is not wanted
    /// any more.
    pub(crate) fn fetch(&self, id: TaskId, blob: Blob, what: &str) -> Option<Vec<u8>> {
        match blob {
            Blob::Inline(bytes) => Some(bytes),
            Blob::External { writer, .. } => {
                let key = self.keys.blob(id, writer, what);
                Some(self.insist(|| self.store.get(&key))?.into_bytes())
            }
        }
    }

    /// Whether the store has a key.
    pub(crate) fn is_there(&self, key: &[u8]) -> bool {
        self.insist(|| self.store.exists(key))
    }

    /// Frees own slots that a put has covered; returns whether they stood for parts of a bag.
    /// Tasks among them that were not joined are withdrawn first: nobody wants them, their
    /// arguments are deleted, and an unfinished task keeps the next life of its parent waiting.
    pub(crate) fn free_covered(&self, is_covered: impl Fn(&Use) -> bool) -> bool {
        let mut kept = Vec::new();
        if !mutant("unjoined-not-withdrawn") {
            let unjoined = self.slots.borrow().unjoined(&is_covered);
            kept.extend(unjoined.into_iter().filter(|&id| !self.withdraw(id)));
        }
        let is_freed = |used: &Use| is_covered(used) && !kept.contains(&used.id);
        let freed = self.slots.borrow_mut().free(is_freed);
        self.delete(freed.blobs);
        freed.has_bag
    }

    /// Deletes keys that nobody needs. A key that cannot be deleted now is deleted by the member
    /// that ends the session. That is all the rest as soon as a member does not answer: each
    /// further key could take as long.
    pub(crate) fn delete(&self, keys: Vec<Vec<u8>>) {
        for key in keys {
            if let Err(StoreError::Timeout { .. }) = self.store.delete(&key) {
                return;
            }
        }
    }

    /// Deletes the keys of what was in an own slot before the last put.
    fn delete_replaced(&self, id: TaskId) {
        let keys = self.slots.borrow_mut().replaced(id.slot);
        self.delete(keys);
    }

    // ---- Saving, and what it costs.

    /// Makes calls that save, and lets the next beat be later by what they cost.
    pub(crate) fn charged<T>(&self, save: impl FnOnce() -> T) -> T {
        let began = self.job.now().0;
        let result = save();
        let now = self.job.now().0;
        let cost = now.saturating_sub(began);
        self.counts.saving_ns.fetch_add(cost, Ordering::Relaxed);
        let average = self.cost.get();
        // A cost far above the average is a preemption, or a stopped replica.
        let cost = cost.min(8 * average);
        self.cost.set((average * 15 + cost) / 16 + 1);
        if let Beat::Price(price) = self.options.beat {
            let pause = ((cost as f64 / price) as u64).clamp(BEAT_NS.0, BEAT_NS.1);
            self.due.set(self.due.get().max(now).saturating_add(pause));
        }
        self.set_beat(now);
        result
    }

    /// Derives from the average cost when a left half is worth saving, and the next beat of a fixed
    /// interval.
    fn set_beat(&self, now: u64) {
        if !self.options.is_resilient {
            self.half_beat.set(i64::MAX);
            self.due.set(u64::MAX);
            return;
        }
        let beat = match self.options.beat {
            Beat::Price(price) => {
                ((self.cost.get() as f64 / price) as u64).clamp(BEAT_NS.0, BEAT_NS.1)
            }
            Beat::Fixed(interval) => {
                let interval = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
                self.due.set(now.saturating_add(interval));
                interval.min(i64::MAX as u64)
            }
            Beat::Forks(_) => return,
        };
        self.counts.beat_ns.store(beat, Ordering::Relaxed);
        self.half_beat.set(beat as i64 / 2);
    }

    /// Shares the oldest offer on the stack; returns whether there was any.
    fn share_oldest(&self, frame: &Frame<'_>) -> bool {
        let mut oldest: Option<(&Frame<'_>, Option<usize>)> = None;
        let mut next = Some(frame);
        while let Some(frame) = next {
            match frame.kind {
                Kind::Fork(_) if frame.sharing() == Sharing::Unshared => {
                    oldest = Some((frame, None));
                }
                Kind::Scope(spawns) => {
                    if let Some(index) = spawns.oldest() {
                        oldest = Some((frame, Some(index)));
                    }
                }
                _ => {}
            }
            next = frame.up;
        }
        let Some((frame, index)) = oldest else { return false };
        self.charged(|| match (frame.kind, index) {
            (Kind::Fork(offer), _) => {
                let (parent, path) = frame.half(Side::Right);
                match self.share(offer, parent, path) {
                    Some(id) => {
                        frame.set_sharing(Sharing::Shared(id.slot));
                        true
                    }
                    None => false,
                }
            }
            (Kind::Scope(spawns), Some(index)) => spawns.share(index, |offer, number| {
                let (parent, mut path) = frame.strand();
                path.push(crate::record::PathStep::new(number, Side::Right));
                self.share(offer, parent, path)
            }),
            _ => false,
        })
    }

    /// The step `share`: puts the record of an offer, open. `None` if there is no room for it.
    fn share(&self, offer: &dyn Offer, parent: TaskId, path: Path) -> Option<TaskId> {
        let task = match self.options.registry.number(offer) {
            Ok(task) => task,
            Err(error) => std::panic::resume_unwind(Box::new(ChildFailed(error))),
        };
        if self.is_without_room() {
            return None;
        }
        let arguments = self.encoded(offer.name(), offer.encode());
        self.share_bytes(task, arguments, parent, path, Content::Task { is_joined: false })
    }

    /// Shares a task that is encoded already.
    pub(crate) fn share_bytes(
        &self,
        task: u32,
        arguments: Vec<u8>,
        parent: TaskId,
        path: Path,
        content: Content,
    ) -> Option<TaskId> {
        let (id, handle) = self.take_slot()?;
        self.share_at(id, &handle, task, arguments, parent, path, content).then_some(id)
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of a record")]
    pub(crate) fn share_at(
        &self,
        id: TaskId,
        handle: &KeyHandle,
        task: u32,
        arguments: Vec<u8>,
        parent: TaskId,
        path: Path,
        content: Content,
    ) -> bool {
        let step = within(Step::Share);
        let mut blobs = Vec::new();
        let Some(arguments) = self.blob(id, arguments, "in", &mut blobs) else {
            self.note_room(false);
            return false;
        };
        let run = self.run.get();
        let record = Record {
            generation: id.generation,
            run,
            parent,
            path: path.clone(),
            task,
            arguments,
            state: State::Open,
            past: Vec::new(),
        };
        let bytes = encode(&Entry::Task(record));
        match handle.put(&bytes) {
            Ok(_) => self.delete_replaced(id),
            // A part of a bag must be there: it cannot be forked again.
            Err(StoreError::Timeout { .. }) if matches!(content, Content::Part { .. }) => {
                self.put_until_there(id, &bytes);
                self.delete_replaced(id);
            }
            // It may still happen, so it counts as shared.
            Err(StoreError::Timeout { .. }) => {}
            Err(StoreError::OutOfMemory { .. }) => {
                self.delete(blobs);
                self.note_room(false);
                return false;
            }
            Err(error) => self.fail(Error::Store(error)),
        }
        self.note_room(true);
        let has_bag = matches!(content, Content::Part { .. });
        let has_hint = false;
        self.slots.borrow_mut().set(Use { id, parent, path, content, has_bag, has_hint, blobs });
        drop(step);
        self.count(|counts| &counts.shared);
        self.advertise(id);
        true
    }

    /// The step `advertise`: writes a hint about an own task to the own board, if there is room.
    fn advertise(&self, id: TaskId) -> bool {
        let _step = within(Step::Advertise);
        let has_hint = self.boards.advertise(id);
        if let Some(used) = self.slots.borrow_mut().get_mut(id.slot) {
            used.has_hint = has_hint;
        }
        has_hint
    }

    /// Writes hints about own tasks for which the board had no room before; returns whether there
    /// were any. The oldest stand for the most work.
    fn advertise_the_rest(&self) -> bool {
        if mutant("hints-once") {
            return false;
        }
        let mut unjoined = self.slots.borrow().unjoined(|used| !used.has_hint);
        unjoined.sort_unstable_by_key(|id| id.generation);
        let hints = unjoined.into_iter().take_while(|&id| self.advertise(id)).count();
        hints > 0
    }

    /// Takes a slot, and tells before its first use that it is used.
    pub(crate) fn take_slot(&self) -> Option<(TaskId, Rc<KeyHandle>)> {
        let taken = self.slots.borrow_mut().take(&self.store, &self.keys);
        let Taken { id, handle } = match taken {
            Ok(taken) => taken?,
            Err(error) => self.fail(Error::Store(error)),
        };
        let used = id.slot + 1;
        if used > self.shared.slots_told.load(Ordering::Acquire) {
            let told = (used * 2).max(16).min(self.options.slots);
            if !self.tell(|info| info.slots = told) {
                self.note_room(false);
                return None;
            }
            self.shared.slots_told.store(told, Ordering::Release);
        }
        Some((id, handle))
    }

    /// Changes what this worker tells about itself. `false` if there is no room for it.
    pub(crate) fn tell(&self, change: impl Fn(&mut WorkerInfo)) -> bool {
        let mut info = self.shared.info();
        change(&mut info);
        self.shared.set_info(&info);
        let (key, bytes) = (self.keys.worker(self.me), encode(&info));
        loop {
            match self.store.put(&key, &bytes) {
                Ok(_) => return true,
                Err(StoreError::OutOfMemory { .. }) => return false,
                Err(error) => self.try_again_after(error, &mut Room::default()),
            }
        }
    }

    /// Whether the store had no room a short while ago.
    pub(crate) fn is_without_room(&self) -> bool {
        self.job.now() < self.no_room_until.get() && !mutant("no-pause-without-room")
    }

    /// Notes whether the store had room for something that this worker can do without. Without room
    /// the worker asks again after longer and longer pauses.
    pub(crate) fn note_room(&self, has_room: bool) {
        if has_room {
            self.no_room_pause.set(ROOM.0);
        } else {
            let pause = self.no_room_pause.get();
            self.no_room_until.set(self.job.now().after(pause));
            self.no_room_pause.set((pause * 2).min(ROOM.1));
        }
    }

    /// Bytes for a record; long bytes are put under a key of their own first. `None` if there is no
    /// room.
    pub(crate) fn blob(
        &self,
        id: TaskId,
        bytes: Vec<u8>,
        what: &str,
        blobs: &mut Vec<Vec<u8>>,
    ) -> Option<Blob> {
        if bytes.len() <= INLINE_LEN_MAX {
            return Some(Blob::Inline(bytes));
        }
        let key = self.keys.blob(id, self.me, what);
        loop {
            match self.store.put(&key, &bytes) {
                Ok(_) => break,
                Err(StoreError::OutOfMemory { .. }) => return None,
                Err(error) => self.try_again_after(error, &mut Room::default()),
            }
        }
        blobs.push(key);
        Some(Blob::External { writer: self.me, hash: hash(&bytes) })
    }

    /// The bytes of a value of the program; a failure of its `Serialize` is a failure of the task.
    pub(crate) fn encoded(&self, task: &str, bytes: Result<Vec<u8>, postcard::Error>) -> Vec<u8> {
        bytes.unwrap_or_else(|error| {
            let task = task.to_string();
            let error = TaskError::Encoding { task, reason: error.to_string() };
            std::panic::resume_unwind(Box::new(ChildFailed(error)))
        })
    }

    /// The step `save_left`: puts progress of the task `parent`. `slot` is the slot of this
    /// progress in this life, if it has one. Returns the slot; `None` if there is no room.
    pub(crate) fn save(
        &self,
        parent: TaskId,
        path: Path,
        slot: Option<u32>,
        saving: Saving,
    ) -> Option<u32> {
        if self.is_without_room() {
            return None;
        }
        let _step = within(Step::SaveLeft);
        let taken = slot.and_then(|slot| {
            let slots = self.slots.borrow();
            slots.get(slot).map(|(used, handle)| (used.id, handle.clone()))
        });
        let (id, handle) = match taken {
            Some(taken) => taken,
            None => self.take_slot()?,
        };
        // A state that is saved again in its slot gets a new generation, and with it new keys.
        let id = TaskId { generation: self.slots.borrow_mut().next_generation(), ..id };
        let mut blobs = Vec::new();
        let mut blob = |bytes| {
            let blob = self.blob(id, bytes, "saved", &mut blobs);
            if blob.is_none() {
                self.note_room(false);
            }
            blob
        };
        let saved = match saving {
            Saving::Left { fork, output } => Saved::Left { fork, output: blob(output)? },
            Saving::State { next, state } => Saved::State { next, state: blob(state)? },
            Saving::Bag { rest, parts } => Saved::Bag { rest: blob(rest)?, parts },
            Saving::Waits => Saved::Waits,
        };
        let content = match &saved {
            Saved::Left { .. } => Content::Left,
            Saved::State { .. } => Content::State,
            Saved::Bag { .. } => Content::Bag,
            Saved::Waits => Content::Waits,
        };
        let run = self.run.get();
        let progress =
            Progress { generation: id.generation, run, parent, path: path.clone(), saved };
        let bytes = encode(&Entry::Progress(progress));
        match handle.put(&bytes) {
            Ok(_) => self.delete_replaced(id),
            Err(StoreError::OutOfMemory { .. }) => {
                self.delete(blobs);
                self.note_room(false);
                return None;
            }
            // Not known to be saved, so nothing is covered by it.
            Err(StoreError::Timeout { .. }) => return None,
            Err(error) => self.fail(Error::Store(error)),
        }
        self.note_room(true);
        let before = {
            let mut slots = self.slots.borrow_mut();
            let before = slots.get_mut(id.slot);
            let (has_bag, before) = before.map_or((false, Vec::new()), |used| {
                (used.has_bag, std::mem::take(&mut used.blobs))
            });
            let has_bag = has_bag || content == Content::Bag;
            let has_hint = false;
            slots.set(Use { id, parent, path, content, has_bag, has_hint, blobs });
            before
        };
        self.delete(before);
        self.count(|counts| &counts.saved);
        Some(id.slot)
    }
}

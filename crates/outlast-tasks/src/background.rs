//! What the background of a member does for its worker: it opens the tasks of the dead again,
//! brings a look forward if the worker has not looked for long, and shows a sign of life.

use crate::board::Boards;
use crate::events::{Event, Listener};
use crate::options::Options;
use crate::record::{Entry, Keys, Record, State, TaskId, WorkerInfo, decode, encode};
use crate::resume::reopened;
use crate::steps::{Step, mutant, within};
use outlast::engine::Activity;
use outlast::store::{Expect, Store, StoreError, StoreResult, Version};
use outlast::{Job, MemberId, Service, Time};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The interval of the background's own work during a run.
const INTERVAL: Duration = Duration::from_millis(20);

/// How long `close` waits for the service before it looks again.
const PAUSE: Duration = Duration::from_millis(1);

/// What the worker and the background of a member share.
///
/// The orderings: `run` and `slots_told` are written with release after the put that they stand
/// for, and read with acquire. `is_closed` and `is_serving` are sequentially consistent: either the
/// service sees that the runtime is closed, or `close` sees the service. The other numbers are
/// hints or counts, and need no order.
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) keys: Keys,
    pub(crate) session: u64,
    pub(crate) boards: Boards,
    /// The run that this member is in; 0 between runs.
    pub(crate) run: AtomicU64,
    /// How many forks there are until the worker's next look.
    pub(crate) countdown: AtomicU32,
    /// How many looks there were.
    pub(crate) looks: AtomicU64,
    looks_seen: AtomicU64,
    /// The bound of the own slots that the store has.
    pub(crate) slots_told: AtomicU32,
    /// The run and the epoch whose dead have all been looked after, as [`done_word`] says. The run
    /// is a part of it because an activity may end after the next run has begun.
    dead_done: AtomicU64,
    pub(crate) reopened: AtomicU64,
    pub(crate) is_closed: AtomicBool,
    /// Whether the service runs now. It may begin an activity.
    is_serving: AtomicBool,
    /// Whether this member opens the tasks of the dead again.
    has_heirs: bool,
    pub(crate) listener: Option<Listener>,
    info: Mutex<WorkerInfo>,
    activity: Mutex<Option<Activity>>,
    /// Open tasks that the board had no room for.
    without_hint: Mutex<Vec<TaskId>>,
    /// Whether the workers are to be woken, because there are hints that they have not seen. An
    /// activity does it: it waits for other members.
    is_to_wake: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        store: &Store,
        keys: Keys,
        session: u64,
        boards: Boards,
        info: WorkerInfo,
        options: &Options,
    ) -> Shared {
        Shared {
            store: store.clone(),
            keys,
            session,
            boards,
            run: AtomicU64::new(0),
            countdown: AtomicU32::new(0),
            looks: AtomicU64::new(0),
            looks_seen: AtomicU64::new(0),
            slots_told: AtomicU32::new(info.slots),
            dead_done: AtomicU64::new(0),
            reopened: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            is_serving: AtomicBool::new(false),
            has_heirs: options.has_heirs,
            listener: options.listener.clone(),
            info: Mutex::new(info),
            activity: Mutex::default(),
            without_hint: Mutex::default(),
            is_to_wake: AtomicBool::new(false),
        }
    }

    pub(crate) fn info(&self) -> WorkerInfo {
        lock(&self.info).clone()
    }

    pub(crate) fn set_info(&self, info: &WorkerInfo) {
        *lock(&self.info) = info.clone();
    }

    /// Tells the program what happened, if it wants to know.
    pub(crate) fn tell(&self, job: &Job, event: Event) {
        if let Some(listener) = &self.listener {
            listener(job.now(), event);
        }
    }

    /// Ends the background's work for this runtime, and waits until nothing of it runs. `false` if
    /// it still runs after the job's time limit.
    pub(crate) fn close(&self, job: &Job) -> bool {
        self.is_closed.store(true, Ordering::SeqCst);
        let until = job.now().after(job.time_limit());
        while self.is_serving.load(Ordering::SeqCst) {
            if job.now() >= until || job.has_ended() {
                return false;
            }
            job.sleep(PAUSE);
        }
        let activity = lock(&self.activity).take();
        activity.is_none_or(|activity| job.wait_for(&activity, until))
    }

    /// The step `reopen`, for the owner of the records: opens the tasks again that dead workers
    /// hold, and writes hints for the open tasks of the dead.
    fn look_after_the_dead(&self, job: &Job, run: u64) -> StoreResult<()> {
        let _step = within(Step::Reopen);
        let view = job.view();
        let me = job.me();
        let mut owners = vec![(me, self.slots_told.load(Ordering::Acquire))];
        if !mutant("reopen-skips-heir") {
            for dead in view.dead.iter().filter(|&dead| self.store.heir_of(dead) == me) {
                let info = self.store.get(&self.keys.worker(dead.0))?;
                let info = info.and_then(|value| decode::<WorkerInfo>(value.bytes()));
                owners.push((dead, info.map_or(0, |info| info.slots)));
            }
        }
        // The root has no owner: the lowest living member opens it again, and so does every idle
        // worker.
        let mut is_any = view.living().next() == Some(me) && self.reopen_root(job, run)?;
        lock(&self.without_hint).clear();
        for (owner, slots) in owners {
            for slot in 0..slots {
                let key = self.keys.slot(owner.0, slot);
                let Some(value) = self.store.get(&key)? else { continue };
                let Some(Entry::Task(record)) = decode(value.bytes()) else { continue };
                if record.run != run || record.state.is_final() {
                    continue;
                }
                let id = TaskId { worker: owner.0, slot, generation: record.generation };
                let is_orphan = match record.state {
                    State::Held(holder) => view.dead.contains(MemberId(holder)),
                    _ => owner != me || !record.past.is_empty(),
                };
                if !is_orphan || self.is_done(record.parent)? {
                    continue;
                }
                if let State::Held(holder) = record.state
                    && !self.open_again(job, &key, &record, value.version(), MemberId(holder))?
                {
                    continue;
                }
                if !self.boards.advertise(id) {
                    lock(&self.without_hint).push(id);
                }
                is_any = true;
            }
        }
        if is_any {
            self.wake_all(job);
        }
        Ok(())
    }

    /// Wakes the workers of all members. Not after the end of the runtime: the boards are given
    /// back then.
    fn wake_all(&self, job: &Job) {
        if !self.is_closed.load(Ordering::SeqCst) {
            let living: Vec<MemberId> = job.view().living().collect();
            self.boards.wake(&living);
        }
    }

    /// Writes hints about tasks for which the board had no room before. A task that is done by now,
    /// or that belongs to another run, is a stale hint as any other.
    fn advertise_the_rest(&self) {
        let waiting = std::mem::take(&mut *lock(&self.without_hint));
        if waiting.is_empty() || mutant("hints-once") {
            return;
        }
        let count = waiting.len();
        let mut left = waiting.into_iter().skip_while(|&id| self.boards.advertise(id));
        let left: Vec<TaskId> = left.by_ref().collect();
        let is_any = left.len() < count;
        lock(&self.without_hint).extend(left);
        if is_any {
            self.is_to_wake.store(true, Ordering::Relaxed);
        }
    }

    /// Opens the root of a run again if its holder is dead; returns whether this call did.
    fn reopen_root(&self, job: &Job, run: u64) -> StoreResult<bool> {
        let key = self.keys.task(TaskId::root(run));
        let Some(value) = self.store.get(&key)? else { return Ok(false) };
        let Some(Entry::Task(record)) = decode(value.bytes()) else { return Ok(false) };
        match record.state {
            State::Held(holder) if job.view().dead.contains(MemberId(holder)) => {
                self.open_again(job, &key, &record, value.version(), MemberId(holder))
            }
            _ => Ok(false),
        }
    }

    /// Opens a task again that a dead member holds; returns whether this call did: the worker that
    /// waits for the task may have been faster.
    fn open_again(
        &self,
        job: &Job,
        key: &[u8],
        record: &Record,
        version: Version,
        dead: MemberId,
    ) -> StoreResult<bool> {
        let Some(opened) = reopened(record) else { return Ok(false) };
        match self.store.put_if(key, &encode(&Entry::Task(opened)), Expect::Version(version)) {
            Ok(_) => {
                self.reopened.fetch_add(1, Ordering::Relaxed);
                self.tell(job, Event::Reopened { dead });
                Ok(true)
            }
            Err(StoreError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether a task is done, so that nobody waits for its children any more.
    fn is_done(&self, id: TaskId) -> StoreResult<bool> {
        let value = self.store.get(&self.keys.task(id))?;
        Ok(match value.and_then(|value| decode(value.bytes())) {
            Some(Entry::Task(record)) => {
                record.generation != id.generation || record.state.is_final()
            }
            _ => true,
        })
    }
}

/// The service of a runtime.
pub(crate) struct Background(pub(crate) Arc<Shared>);

impl Service for Background {
    fn run(&self, job: &Job) -> Time {
        self.0.is_serving.store(true, Ordering::SeqCst);
        let until = self.serve(job);
        self.0.is_serving.store(false, Ordering::SeqCst);
        until
    }

    fn is_over(&self) -> bool {
        self.0.is_closed.load(Ordering::SeqCst)
    }
}

impl Background {
    fn serve(&self, job: &Job) -> Time {
        let shared = &self.0;
        let run = shared.run.load(Ordering::Acquire);
        if shared.is_closed.load(Ordering::SeqCst) || run == 0 {
            return Time::NEVER;
        }
        let looks = shared.looks.load(Ordering::Relaxed);
        if shared.looks_seen.swap(looks, Ordering::Relaxed) == looks {
            shared.countdown.store(0, Ordering::Relaxed);
        }
        shared.boards.show_life();
        shared.advertise_the_rest();
        let epoch = job.epoch().0;
        let done = shared.dead_done.load(Ordering::Acquire);
        let is_asked_once = mutant("heir-asked-once") && done >= done_word(run, 0);
        let is_done = done == done_word(run, epoch) || is_asked_once;
        let is_to_reopen = epoch > 0 && shared.has_heirs && !is_done;
        if is_to_reopen || shared.is_to_wake.load(Ordering::Relaxed) {
            let is_running = lock(&shared.activity).as_ref().is_some_and(|one| !one.is_finished());
            if !is_running {
                let (shared, job_of_activity) = (shared.clone(), job.clone());
                let body = move || {
                    let job = job_of_activity;
                    if shared.is_to_wake.swap(false, Ordering::Relaxed) {
                        shared.wake_all(&job);
                    }
                    if is_to_reopen && shared.look_after_the_dead(&job, run).is_ok() {
                        shared.dead_done.store(done_word(run, epoch), Ordering::Release);
                    }
                };
                if let Ok(activity) = job.spawn("reopen", Box::new(body)) {
                    *lock(&self.0.activity) = Some(activity);
                }
            }
        }
        job.now().after(INTERVAL)
    }
}

/// A run and an epoch in a word. An epoch is a number of deaths, so it is small.
fn done_word(run: u64, epoch: u64) -> u64 {
    run << 24 | epoch
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

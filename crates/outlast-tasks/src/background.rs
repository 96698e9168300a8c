//! What the background of a member does for its worker: it opens the tasks of the dead again,
//! brings a look forward if the worker has not looked for long, and shows a sign of life.

use crate::board::Boards;
use crate::record::{Entry, Keys, State, TaskId, WorkerInfo, decode, encode};
use crate::resume::reopened;
use crate::steps::{Step, mutant, within};
use outlast::engine::Activity;
use outlast::store::{Expect, Store, StoreError, StoreResult};
use outlast::{Job, MemberId, Service, Time};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The interval of the background's own work during a run.
const INTERVAL: Duration = Duration::from_millis(20);

/// What the worker and the background of a member share.
///
/// The orderings: `run` and `slots_told` are written with release after the put that they stand
/// for, and read with acquire. The other numbers are hints or counts, and need no order.
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
    /// The epoch whose dead have all been looked after; `u64::MAX` if none.
    pub(crate) epoch_done: AtomicU64,
    pub(crate) reopened: AtomicU64,
    pub(crate) is_closed: AtomicBool,
    /// Whether this member opens the tasks of the dead again.
    has_heirs: bool,
    info: Mutex<WorkerInfo>,
    activity: Mutex<Option<Activity>>,
}

impl Shared {
    pub(crate) fn new(
        store: &Store,
        keys: Keys,
        session: u64,
        boards: Boards,
        info: WorkerInfo,
        has_heirs: bool,
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
            epoch_done: AtomicU64::new(u64::MAX),
            reopened: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            has_heirs,
            info: Mutex::new(info),
            activity: Mutex::default(),
        }
    }

    pub(crate) fn info(&self) -> WorkerInfo {
        lock(&self.info).clone()
    }

    pub(crate) fn set_info(&self, info: &WorkerInfo) {
        *lock(&self.info) = info.clone();
    }

    /// Waits until no activity of the background runs.
    pub(crate) fn wait_for_activity(&self, job: &Job) {
        let activity = lock(&self.activity).take();
        if let Some(activity) = activity {
            job.wait_for(&activity, job.now().after(job.time_limit()));
        }
    }

    /// The step `reopen`, for the owner of the records: opens the tasks again that dead workers
    /// hold, and writes hints for the open tasks of the dead.
    fn look_after_the_dead(&self, job: &Job) -> StoreResult<()> {
        let _step = within(Step::Reopen);
        let run = self.run.load(Ordering::Acquire);
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
        let mut is_any = false;
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
                if let Some(opened) = reopened(&record) {
                    let bytes = encode(&Entry::Task(opened));
                    match self.store.put_if(&key, &bytes, Expect::Version(value.version())) {
                        Ok(_) => {
                            self.reopened.fetch_add(1, Ordering::Relaxed);
                        }
                        // The waiter was faster.
                        Err(StoreError::Conflict { .. }) => continue,
                        Err(error) => return Err(error),
                    }
                }
                self.boards.advertise(id);
                is_any = true;
            }
        }
        if is_any {
            view.living().for_each(|member| drop(job.ring(member)));
        }
        Ok(())
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
        let shared = &self.0;
        if shared.is_closed.load(Ordering::Acquire) || shared.run.load(Ordering::Acquire) == 0 {
            return Time::NEVER;
        }
        let looks = shared.looks.load(Ordering::Relaxed);
        if shared.looks_seen.swap(looks, Ordering::Relaxed) == looks {
            shared.countdown.store(0, Ordering::Relaxed);
        }
        shared.boards.show_life();
        let epoch = job.epoch().0;
        if epoch > 0 && shared.has_heirs && shared.epoch_done.load(Ordering::Acquire) != epoch {
            let is_running = lock(&shared.activity).as_ref().is_some_and(|one| !one.is_finished());
            if !is_running {
                let (shared, job_of_activity) = (shared.clone(), job.clone());
                let body = move || {
                    if shared.look_after_the_dead(&job_of_activity).is_ok() {
                        shared.epoch_done.store(epoch, Ordering::Release);
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

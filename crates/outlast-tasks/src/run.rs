//! Opening the runtime, running a root task at all members, closing.

use crate::background::{Background, Shared};
use crate::board::Boards;
use crate::claim::Claim;
use crate::counts::{Observer, Stats};
use crate::error::{Error, TaskError};
use crate::events::Event;
use crate::options::{Beat, Options};
use crate::record::{
    Blob, Entry, Keys, Outcome, Record, State, TaskId, WorkerInfo, decode, encode, hash,
};
use crate::task::Task;
use crate::worker::{RunOver, Worker};
use outlast::store::{Expect, Mode, Store, StoreError, StoreResult};
use outlast::{Job, MemberId, Time};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a member that is not the lowest leaves it to the lowest to put the root.
const PATIENCE: Duration = Duration::from_millis(10);

/// What the members compare when they open the runtime.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Session {
    session: u64,
    version: String,
    build: u32,
    tasks: Vec<String>,
    options: String,
}

/// A task runtime over a store.
///
/// All members open it, with equal options, and call [`Tasks::run`] with equal root tasks, in the
/// same order. Every survivor gets the output.
pub struct Tasks {
    worker: Worker,
    is_running: Cell<bool>,
    /// The last run that this member has begun.
    run: Cell<u64>,
    /// The roots below this run are deleted, as far as this member knows.
    roots_deleted: Cell<u64>,
}

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tasks({:?}, run {})", self.worker.store, self.run.get())
    }
}

impl Tasks {
    /// Opens the runtime. All living members call this, and wait for each other within the job's
    /// time limit. [`Error::Differs`] at all of them if they have different tasks, options or
    /// builds.
    pub fn open(store: &Store, options: Options) -> Result<Tasks, Error> {
        let job = store.job();
        if let Some(name) = options.registry.twice() {
            let reason = format!("two tasks are named {name}; a name belongs to a single task");
            return Err(Error::Invalid { reason });
        }
        if store.mode() != Mode::Localized {
            let reason = "the store is in global mode, in which every call stops at a death; \
                          open it in localized mode for tasks";
            return Err(Error::Invalid { reason: reason.to_string() });
        }
        if cfg!(panic = "abort") {
            tracing::warn!("with panic = \"abort\" a task that panics kills its worker");
        }
        let (session, difference) = agree_on_session(store, &options)?;
        let keys = Keys::new(session);
        if let Some(what) = difference {
            let said = format!("{} did not open: {what}", job.me());
            put_answered(store, &keys.refusal(), said.as_bytes())?;
            retreat(store, &keys, session)?;
            return Err(Error::Differs { what });
        }
        let board = Boards::reserve(job).map_err(StoreError::Engine)?;
        let info = WorkerInfo { board, slots: 0, run: 0, is_closing: false, is_clean: false };
        put_answered(store, &keys.worker(job.me().0), &encode(&info))?;
        let refused = || match get_answered(store, &keys.refusal())? {
            Some(what) => Err(Error::Differs { what: String::from_utf8_lossy(&what).into_owned() }),
            None => Ok(()),
        };
        let infos = match wait_for_all(store, &keys, |info| info.is_some(), refused) {
            Ok(infos) => infos,
            Err(error) => {
                if matches!(error, Error::Differs { .. }) {
                    retreat(store, &keys, session)?;
                    // No member has opened the session, so no member writes to this board.
                    let mut offsets = vec![0; job.members()];
                    offsets[job.me().index()] = board;
                    Boards::new(job, offsets).release();
                }
                return Err(error);
            }
        };
        let offsets = infos.into_iter().map(|info| info.map_or(0, |info| info.board)).collect();
        let boards = Boards::new(job, offsets);
        let shared = Arc::new(Shared::new(store, keys, session, boards, info, &options));
        job.serve(Arc::new(Background(shared.clone()))).map_err(StoreError::Engine)?;
        let worker = Worker::new(store, options, shared);
        Ok(Tasks {
            worker,
            is_running: Cell::new(false),
            run: Cell::new(0),
            roots_deleted: Cell::new(1),
        })
    }

    /// Runs a task on all members and returns its output. All members call this with an equal task;
    /// every survivor returns.
    pub fn run<T: Task>(&self, root: T) -> Result<T::Output, Error> {
        let worker = &self.worker;
        if self.is_running.replace(true) {
            let reason = "a run cannot begin inside a task; fork the task instead".to_string();
            return Err(Error::Invalid { reason });
        }
        let outcome = self.run_root(&root);
        worker.tell_does(Event::Waits);
        worker.shared.run.store(0, Ordering::Release);
        self.is_running.set(false);
        let (id, outcome) = outcome?;
        // A failure of the fetch unwinds as in a run.
        worker.knows_over.set(true);
        match catch_unwind(AssertUnwindSafe(|| worker.output(T::NAME, id, outcome))) {
            Ok(output) => Ok(output?),
            Err(payload) => Err(self.error_of(payload)),
        }
    }

    fn run_root<T: Task>(&self, root: &T) -> Result<(TaskId, Outcome), Error> {
        let worker = &self.worker;
        let task = worker.options.registry.number(root)?;
        let arguments = postcard::to_stdvec(root).map_err(|error| TaskError::Encoding {
            task: T::NAME.to_string(),
            reason: error.to_string(),
        })?;
        let run = self.run.get() + 1;
        self.run.set(run);
        worker.begin_run(run);
        let work = || {
            // Nothing of an earlier run is needed any more.
            let blobs = worker.slots.borrow_mut().free(|_| true);
            worker.delete(blobs);
            let has_room = worker.tell(|info| info.run = run);
            if !has_room {
                let reason = "the store has no room for a worker's own key".to_string();
                let member = MemberId(worker.me);
                worker.fail(Error::Store(StoreError::OutOfMemory { member, reason }));
            }
            self.delete_old_roots(run);
            worker.shared.run.store(run, Ordering::Release);
            // The background begins to look.
            let _ = worker.job.ring(worker.job.me());
            self.work(run, task, &arguments)
        };
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(result) => result,
            Err(payload) => match self.error_of(payload) {
                // The run is over elsewhere: its root says how.
                Error::Invalid { .. } => {
                    worker.knows_over.set(true);
                    let result = catch_unwind(AssertUnwindSafe(|| self.result_of_root(run)));
                    result.unwrap_or_else(|payload| Err(self.error_of(payload)))
                }
                error => Err(error),
            },
        }
    }

    /// The error with which a worker left a run. A panic of another kind goes on.
    fn error_of(&self, payload: Box<dyn std::any::Any + Send>) -> Error {
        match payload.downcast::<RunOver>() {
            Ok(over) => over.0.unwrap_or(Error::Invalid { reason: "over".to_string() }),
            Err(payload) => resume_unwind(payload),
        }
    }

    /// The end of a run that another member has announced.
    fn result_of_root(&self, run: u64) -> Result<(TaskId, Outcome), Error> {
        let id = TaskId::root(run);
        let worker = &self.worker;
        let key = worker.keys.task(id);
        let value = worker.insist(|| worker.store.get(&key));
        match value.and_then(|value| decode(value.bytes())) {
            Some(Entry::Task(Record { state: State::Done(outcome), .. })) => Ok((id, outcome)),
            Some(Entry::Task(Record { state: State::RunFailed(reason), .. })) => {
                Err(Error::RunFailed { reason })
            }
            _ => {
                let reason = "it could not say why: the root of the run is not there".to_string();
                Err(Error::RunFailed { reason })
            }
        }
    }

    /// The loop of an idle worker: the root, then tasks of others, until the root is done.
    fn work(&self, run: u64, task: u32, arguments: &[u8]) -> Result<(TaskId, Outcome), Error> {
        let worker = &self.worker;
        let id = TaskId::root(run);
        let began = worker.job.now();
        loop {
            let bell = worker.job.bell();
            let Some((record, version)) = worker.read(id) else {
                let is_lowest = worker.view().living().next() == Some(worker.job.me());
                if is_lowest || worker.job.now() >= began.after(PATIENCE) {
                    self.put_root(id, task, arguments);
                } else {
                    worker.job.park(bell, began.after(PATIENCE));
                }
                continue;
            };
            if (record.task, record.arguments.hash()) != (task, hash(arguments)) {
                let here = worker.options.registry.name(task);
                let there = worker.options.registry.name(record.task);
                let what = format!("run {run} is {there} there, and {here} with others here");
                return Err(Error::Differs { what });
            }
            match record.state {
                State::Done(outcome) => return Ok((id, outcome)),
                State::RunFailed(reason) => return Err(Error::RunFailed { reason }),
                State::Open => {
                    if let Claim::Taken(hold) = worker.claim_read(id, record, version, true) {
                        worker.execute(hold, None);
                        continue;
                    }
                }
                State::Held(holder) if worker.is_dead(holder) => {
                    worker.reopen(id, &record, version);
                    continue;
                }
                State::Held(_) | State::Withdrawn => {}
            }
            worker.check_deadline();
            let hold = worker.find_work(true, None).or_else(|| worker.rest(bell, true, true));
            if let Some(hold) = hold {
                worker.execute(hold, None);
            }
        }
    }

    /// Puts the root, open, unless another member has.
    fn put_root(&self, id: TaskId, task: u32, arguments: &[u8]) {
        let worker = &self.worker;
        let arguments =
            worker.insist(|| match worker.blob(id, arguments.to_vec(), "in", &mut Vec::new()) {
                Some(blob) => Ok(blob),
                None => Err(StoreError::OutOfMemory {
                    member: MemberId(worker.me),
                    reason: "no room for the arguments of the root".to_string(),
                }),
            });
        let record = Record {
            generation: id.generation,
            run: id.generation,
            parent: id,
            path: Vec::new(),
            task,
            arguments,
            state: State::Open,
            past: Vec::new(),
        };
        let (key, bytes) = (worker.keys.task(id), encode(&Entry::Task(record)));
        worker.insist(|| match worker.store.put_if(&key, &bytes, Expect::Absent) {
            Ok(_) | Err(StoreError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        });
    }

    /// Deletes the roots that all living members are past. A member that comes late finds the root
    /// of its run, and does not make it anew.
    fn delete_old_roots(&self, run: u64) {
        let worker = &self.worker;
        let view = worker.view();
        if view.living().next() != Some(worker.job.me()) {
            return;
        }
        let runs = view.living().map(|member| worker.worker_info(member.0).map_or(0, |i| i.run));
        let past = runs.min().unwrap_or(0).min(run);
        for old in self.roots_deleted.get()..past {
            let id = TaskId::root(old);
            let Some((Record { arguments, state, .. }, _)) = worker.read_any(id) else { continue };
            let mut keys = vec![worker.keys.task(id)];
            for (blob, what) in [(Some(&arguments), "in"), (output_of(&state), "out")] {
                if let Some(Blob::External { writer, .. }) = blob {
                    keys.push(worker.keys.blob(id, *writer, what));
                }
            }
            worker.delete(keys);
        }
        self.roots_deleted.set(past.max(self.roots_deleted.get()));
    }

    /// The store that the runtime is over, for inputs and outputs of tasks.
    pub fn store(&self) -> &Store {
        &self.worker.store
    }

    /// What this worker has done so far.
    pub fn stats(&self) -> Stats {
        let worker = &self.worker;
        let reopened = worker.shared.reopened.load(Ordering::Relaxed);
        worker.counts.stats(worker.slots.borrow().forgotten, reopened)
    }

    /// Lets another thread see what this worker does.
    pub fn observer(&self) -> Observer {
        Observer(self.worker.counts.clone())
    }

    /// Closes the runtime and deletes its keys. All living members call this, and wait for each
    /// other within the job's time limit.
    pub fn close(self) -> Result<(), Error> {
        let Worker { store, keys, shared, job, boards, .. } = &self.worker;
        shared.is_closed.store(true, Ordering::Release);
        shared.wait_for_activity(job);
        let info = WorkerInfo { is_closing: true, ..shared.info() };
        put_answered(store, &keys.worker(job.me().0), &encode(&info))?;
        // From here on no member puts a task or progress of this session.
        wait_for_all(store, keys, |info| info.is_some_and(|info| info.is_closing), || Ok(()))?;
        self.delete_own();
        tell_clean(store, keys, &info)?;
        let result = end_session(store, keys, shared.session);
        boards.release();
        result
    }
}

impl Tasks {
    /// Deletes what is in the own slots, so that members delete side by side. What is left, such as
    /// the slots of the dead, is deleted by the lowest living member.
    fn delete_own(&self) {
        let worker = &self.worker;
        let mut slots = worker.slots.borrow_mut();
        let mut own = slots.free(|_| true);
        for slot in 0..slots.len() {
            own.extend(slots.replaced(slot));
            own.push(worker.keys.slot(worker.me, slot));
        }
        drop(slots);
        worker.delete(own);
    }
}

fn output_of(state: &State) -> Option<&Blob> {
    match state {
        State::Done(Outcome::Output(blob)) => Some(blob),
        _ => None,
    }
}

/// The checksum of this program's file: it tells builds apart.
fn build() -> u32 {
    static BUILD: OnceLock<u32> = OnceLock::new();
    *BUILD
        .get_or_init(|| std::fs::read("/proc/self/exe").map_or(0, |bytes| crc32fast::hash(&bytes)))
}

/// Agrees with the other members on a session: the first member to put it decides. Returns the
/// session, and how this member differs from the member that put it.
fn agree_on_session(store: &Store, options: &Options) -> Result<(u64, Option<String>), Error> {
    let job = store.job();
    let mine = Session {
        session: hash(&encode(&(job.now().0, job.me().0))),
        version: env!("CARGO_PKG_VERSION").to_string(),
        build: build(),
        tasks: options.registry.names().map(str::to_string).collect(),
        options: options.text(),
    };
    let bytes = encode(&mine);
    let theirs = retry(job, || {
        match store.put_if(Keys::SESSION, &bytes, Expect::Absent) {
            Ok(_) => return Ok(Some(mine.clone())),
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(error),
        }
        let value = store.get(Keys::SESSION)?;
        Ok(value.and_then(|value| decode::<Session>(value.bytes())))
    })?;
    let Some(theirs) = theirs else {
        let what = "the runtime is being closed at another member".to_string();
        return Err(Error::Differs { what });
    };
    let session = theirs.session;
    let difference = |what: &str, here: String, there: String| {
        Ok((session, Some(format!("{what}: {here} here, and {there} at another member"))))
    };
    if theirs.version != mine.version {
        return difference("version of outlast-tasks", mine.version, theirs.version);
    }
    if theirs.tasks != mine.tasks {
        let only = |a: &[String], b: &[String]| {
            let only: Vec<&str> =
                a.iter().filter(|name| !b.contains(name)).map(String::as_str).collect();
            if only.is_empty() { "another order".to_string() } else { only.join(", ") }
        };
        let (here, there) = (only(&mine.tasks, &theirs.tasks), only(&theirs.tasks, &mine.tasks));
        return difference("list of tasks", here, there);
    }
    if theirs.options != mine.options {
        return difference("options", mine.options, theirs.options);
    }
    if theirs.build != mine.build {
        let (here, there) = (format!("{:08x}", mine.build), format!("{:08x}", theirs.build));
        return difference("build of the program", here, there);
    }
    Ok((session, None))
}

/// Leaves a session that this member or another member has refused to open. No member ends the
/// session before all living members have heard of it: a member that does so waits for the others,
/// and a member that comes late finds the refusal.
fn retreat(store: &Store, keys: &Keys, session: u64) -> Result<(), Error> {
    let info = WorkerInfo { board: 0, slots: 0, run: 0, is_closing: true, is_clean: true };
    put_answered(store, &keys.worker(store.me().0), &encode(&info))?;
    wait_for_all(store, keys, |info| info.is_some_and(|info| info.is_closing), || Ok(()))?;
    end_session(store, keys, session)
}

/// Waits until what all living members have told satisfies a condition, or until `check` fails.
/// Returns what each member told.
fn wait_for_all(
    store: &Store,
    keys: &Keys,
    is_ready: impl Fn(Option<&WorkerInfo>) -> bool,
    check: impl Fn() -> Result<(), Error>,
) -> Result<Vec<Option<WorkerInfo>>, Error> {
    let job = store.job();
    let deadline = job.now().after(job.time_limit());
    // Members ring when they have put their keys, so that the others need not poll.
    let ring = || job.view().living().for_each(|member| drop(job.ring(member)));
    ring();
    let mut infos: Vec<Option<WorkerInfo>> = vec![None; job.members()];
    loop {
        let bell = job.bell();
        let view = job.view();
        let mut missing = None;
        for member in (0..job.members() as u32).map(MemberId) {
            if infos[member.index()].is_some() && is_ready(infos[member.index()].as_ref()) {
                continue;
            }
            let bytes = get_answered(store, &keys.worker(member.0))?;
            infos[member.index()] = bytes.and_then(|bytes| decode(&bytes));
            if !is_ready(infos[member.index()].as_ref()) && view.is_living(member) {
                missing.get_or_insert(member);
            }
        }
        // After the keys were read: a member that refuses says so before it puts its key.
        check()?;
        let Some(member) = missing else { return Ok(infos) };
        if job.has_ended() {
            return Err(Error::Store(StoreError::Closed));
        }
        if job.now() >= deadline {
            return Err(Error::Store(StoreError::Timeout { member, limit: job.time_limit() }));
        }
        job.park(bell, deadline.min(job.now().after(Duration::from_millis(100))));
    }
}

/// Tells that this member has deleted its own slots, unless the session has ended without it: its
/// key must not come up again.
fn tell_clean(store: &Store, keys: &Keys, info: &WorkerInfo) -> StoreResult<()> {
    let key = keys.worker(store.me().0);
    let bytes = encode(&WorkerInfo { is_clean: true, ..info.clone() });
    retry(store.job(), || {
        let Some(before) = store.get(&key)? else { return Ok(()) };
        match store.put_if(&key, &bytes, Expect::Version(before.version())) {
            Ok(_) | Err(StoreError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    })
}

/// Deletes all keys of a session, the session's own last. The lowest living member does it; if it
/// dies, the next one.
fn end_session(store: &Store, keys: &Keys, session: u64) -> Result<(), Error> {
    let job = store.job();
    let deadline = job.now().after(job.time_limit());
    loop {
        let bell = job.bell();
        let is_open = get_answered(store, Keys::SESSION)?
            .and_then(|bytes| decode::<Session>(&bytes))
            .is_some_and(|found| found.session == session);
        if !is_open {
            return Ok(());
        }
        let lowest = job.view().living().next().unwrap_or(job.me());
        if lowest == job.me() {
            // A key that is gone was deleted by a lowest member that died since.
            match wait_for_all(store, keys, |info| info.is_none_or(|info| info.is_clean), || Ok(()))
            {
                // Without a member that is stopped or was slow the rest is deleted all the same.
                Ok(_) | Err(Error::Store(StoreError::Timeout { .. })) => {}
                Err(error) => return Err(error),
            }
            retry(job, || {
                for key in store.scan(keys.prefix())? {
                    store.delete(&key)?;
                }
                store.transaction(|tx| {
                    let found = tx.get(Keys::SESSION)?;
                    let found = found.and_then(|value| decode::<Session>(&value));
                    if found.is_some_and(|found| found.session == session) {
                        tx.delete(Keys::SESSION)?;
                    }
                    Ok::<(), StoreError>(())
                })
            })?;
            job.view().living().for_each(|member| drop(job.ring(member)));
            continue;
        }
        if job.now() >= deadline || job.has_ended() {
            let limit = job.time_limit();
            return Err(Error::Store(StoreError::Timeout { member: lowest, limit }));
        }
        job.park(bell, deadline.min(job.now().after(Duration::from_millis(100))));
    }
}

/// Repeats a call that a living member does not answer, up to the job's time limit in all.
fn retry<T>(job: &Job, mut call: impl FnMut() -> StoreResult<T>) -> StoreResult<T> {
    let mut deadline: Option<Time> = None;
    loop {
        match call() {
            Err(StoreError::Timeout { .. })
                if job.now() < *deadline.get_or_insert(job.now().after(job.time_limit())) => {}
            other => return other,
        }
    }
}

fn put_answered(store: &Store, key: &[u8], value: &[u8]) -> StoreResult<()> {
    retry(store.job(), || store.put(key, value).map(|_| ()))
}

fn get_answered(store: &Store, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
    retry(store.job(), || Ok(store.get(key)?.map(outlast::store::Value::into_bytes)))
}

impl Options {
    /// The options that must be equal at all members, in words.
    fn text(&self) -> String {
        let beat = match self.beat {
            Beat::Price(price) => format!("price {price}"),
            Beat::Fixed(interval) => format!("beat {interval:?}"),
            Beat::Forks(forks) => format!("beat of {forks} forks"),
        };
        format!(
            "{beat}, attempts {}, nested {}, slots {}, resilient {}, strict {}, fence after {:?}, \
             deadline {:?}",
            self.attempts,
            self.nested,
            self.slots,
            self.is_resilient,
            self.is_strict,
            self.fence_after,
            self.deadline
        )
    }
}

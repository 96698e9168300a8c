//! Opening the runtime, running a root task at all members, closing.

use crate::background::{Background, Shared};
use crate::board::Boards;
use crate::claim::Claim;
use crate::counts::{Observer, Stats};
use crate::error::{Error, TaskError};
use crate::events::Event;
use crate::options::{Beat, Options};
use crate::record::{
    Blob, Entry, Outcome, Record, State, TaskId, WorkerInfo, decode, encode, hash,
};
use crate::session::{self, Opened};
use crate::steps::mutant;
use crate::task::Task;
use crate::worker::{RunOver, Worker};
use outlast::MemberId;
use outlast::store::{Expect, Mode, Store, StoreError};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a member that is not the lowest leaves it to the lowest to put the root.
const PATIENCE: Duration = Duration::from_millis(10);

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
    /// builds; [`Error::Invalid`] if the runtime is open at this member already, or if other
    /// members have not closed it yet. After a timeout it can be called again.
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
        let board = Boards::reserve(job).map_err(StoreError::Engine)?;
        let is_told = Cell::new(false);
        let opened = session::open(store, &options, board, &is_told);
        // After a timeout another member may have opened the session, and write to the board.
        let is_unused = match &opened {
            Ok(opened) => opened.info.board != board,
            Err(error) => !is_told.get() || !matches!(error, Error::Store(_)),
        };
        if is_unused {
            Boards::release(job, board);
        }
        let Opened { session, keys, info, boards } = opened?;
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
        worker.boards.tell_run(0);
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
            let freed = worker.slots.borrow_mut().free(|_| true);
            worker.delete(freed.blobs);
            // Without room for it old roots are kept for longer.
            worker.tell(|info| info.run = run);
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
            let (bell, seen) = (worker.job.bell(), worker.seen());
            let Some((record, version)) = worker.read(id) else {
                let is_lowest = worker.view().living().next() == Some(worker.job.me());
                if is_lowest || worker.job.now() >= began.after(PATIENCE) {
                    self.put_root(id, task, arguments);
                } else {
                    worker.job.park(bell, began.after(PATIENCE));
                }
                continue;
            };
            if let State::RunFailed(reason) = record.state {
                return Err(Error::RunFailed { reason });
            }
            if (record.task, record.arguments.hash()) != (task, hash(arguments)) {
                let here = worker.options.registry.name(task);
                let there = worker.options.registry.name(record.task);
                let what = format!("run {run} is {there} there, and {here} with others here");
                return Err(Error::Differs { what });
            }
            match record.state {
                State::Done(outcome) => return Ok((id, outcome)),
                State::Open => {
                    let claim = worker.claim_read(id, record, version, true, false);
                    if let Claim::Taken(hold) = claim {
                        worker.execute(hold, None);
                        continue;
                    }
                }
                State::Held(holder) if worker.is_dead(holder) => {
                    worker.reopen(id, &record, version);
                    continue;
                }
                State::Held(holder) => worker.watch(id, holder),
                State::Withdrawn | State::RunFailed(_) => {}
            }
            worker.check_deadline();
            let hold = worker.find_work(true, None).or_else(|| worker.rest(seen, true, true));
            if let Some(hold) = hold {
                worker.execute(hold, None);
            }
        }
    }

    /// Puts the root, open, unless another member has.
    fn put_root(&self, id: TaskId, task: u32, arguments: &[u8]) {
        let worker = &self.worker;
        let mut blobs = Vec::new();
        let arguments =
            worker.insist(|| match worker.blob(id, arguments.to_vec(), "in", &mut blobs) {
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
        let is_put = worker.insist(|| match worker.store.put_if(&key, &bytes, Expect::Absent) {
            Ok(_) => Ok(true),
            Err(StoreError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error),
        });
        if is_put || blobs.is_empty() || mutant("losing-arguments-kept") {
            return;
        }
        // The root is there. It names the long arguments of this member only if an earlier try
        // without an answer has put it.
        let root = worker.read_any(id).map(|(record, _)| record.arguments);
        if !matches!(root, Some(Blob::External { writer, .. }) if writer == worker.me) {
            worker.delete(blobs);
        }
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
        let is_quiet = shared.close(job);
        // The background lets go of its service.
        let _ = job.ring(job.me());
        let info = WorkerInfo { is_quiet, ..shared.info() };
        let are_quiet = session::begin_close(store, keys, &info)?;
        self.delete_own();
        let result = session::end_close(store, keys, shared.session, &info);
        // An activity of a member that is not quiet may still write to the boards of all others.
        if are_quiet {
            Boards::release(job, boards.offset_of(job.me()));
        }
        result
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        // Without `close` the keys stay, and the background does no more for them.
        self.worker.shared.is_closed.store(true, Ordering::SeqCst);
    }
}

impl Tasks {
    /// Deletes what is in the own slots, so that members delete side by side. What is left, such as
    /// the slots of the dead, is deleted by the lowest living member.
    fn delete_own(&self) {
        let worker = &self.worker;
        let mut slots = worker.slots.borrow_mut();
        let mut own = slots.free(|_| true).blobs;
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

impl Options {
    /// The options that must be equal at all members, in words.
    pub(crate) fn text(&self) -> String {
        let beat = match self.beat {
            Beat::Price(price) => format!("price {price}"),
            Beat::Fixed(interval) => format!("beat {interval:?}"),
            Beat::Forks(forks) => format!("beat of {forks} forks"),
        };
        let attempts = match self.lives_to_poison() {
            usize::MAX => "without limit".to_string(),
            attempts => attempts.to_string(),
        };
        format!(
            "{beat}, attempts {attempts}, nested {}, slots {}, resilient {}, strict {}, \
             fence after {:?}, deadline {:?}",
            self.nested,
            self.slots,
            self.is_resilient,
            self.is_strict,
            self.fence_after,
            self.deadline
        )
    }
}

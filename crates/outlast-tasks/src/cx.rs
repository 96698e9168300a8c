//! The context of a running task: forking, saving, asking.

use crate::error::TaskError;
use crate::frame::{Frame, Sharing};
use crate::record::{Blob, Outcome, PathStep, Saved, Side, TaskId, encode, hash, hash_of_fork};
use crate::resume::Node;
use crate::scope::{Scope, Spawns};
use crate::slots::is_inside;
use crate::steps::{Step, mutant, within};
use crate::task::{AllOf, Half, Offer, Sum, SumOf, Task};
use crate::worker::{ChildFailed, Saving, Worker};
use outlast::MemberId;
use outlast::store::Store;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::any::type_name;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// No slot: a plain number, so that a fork does not have to make and drop an `Option`.
const NO_SLOT: u32 = u32::MAX;
/// No save yet.
const NEVER: i64 = i64::MIN;

/// The context of a running task. A task forks through it.
pub struct Cx<'a> {
    pub(crate) worker: &'a Worker,
    pub(crate) frame: &'a Frame<'a>,
    /// The number of the strand's next fork.
    pub(crate) next: u32,
    /// What earlier lives of the task left in this strand.
    pub(crate) memory: Option<&'a Node>,
    /// The slot of the strand's state in this life, or [`NO_SLOT`].
    state_slot: u32,
    /// The worker's unsaved work when the strand saved last, or [`NEVER`].
    saved_at: i64,
}

impl<'a> Cx<'a> {
    #[inline(always)]
    pub(crate) fn new(
        worker: &'a Worker,
        frame: &'a Frame<'a>,
        memory: Option<&'a Node>,
    ) -> Cx<'a> {
        Cx { worker, frame, next: 0, memory, state_slot: NO_SLOT, saved_at: NEVER }
    }

    /// Runs `a` and `b`, possibly at the same time, and returns both outputs. `a` runs here; `b`
    /// may be taken by another member meanwhile.
    ///
    /// # Panics
    /// If either of them panics. [`Cx::try_join`] returns an error in place of that.
    #[inline]
    pub fn join<A: Task, B: Task>(&mut self, a: A, b: B) -> (A::Output, B::Output) {
        self.fork(A::NAME, |cx| a.run(cx), b)
    }

    /// Runs a closure here and a task, possibly at the same time.
    #[inline]
    pub fn join_with<L, B>(&mut self, left: impl FnOnce(&mut Cx<'_>) -> L, b: B) -> (L, B::Output)
    where
        L: Serialize + DeserializeOwned,
        B: Task,
    {
        self.fork(type_name::<L>(), left, b)
    }

    /// Runs `a` and `b`, as [`Cx::join`] does. A task that panicked or is poisoned is an error.
    pub fn try_join<A: Task, B: Task>(
        &mut self,
        a: A,
        b: B,
    ) -> (Result<A::Output, TaskError>, Result<B::Output, TaskError>) {
        let worker = self.worker;
        let left = |cx: &mut Cx<'_>| {
            catch_unwind(AssertUnwindSafe(|| a.run(cx)))
                .map_err(|payload| worker.failure(A::NAME, payload))
        };
        let number = self.next;
        self.fork_with(A::NAME, left, b, |cx, right| match right {
            Right::Here(b) => {
                let frame = Frame::right(cx.frame, number);
                let memory = cx.below(number, Side::Right);
                let mut inner = Cx::new(worker, &frame, memory);
                catch_unwind(AssertUnwindSafe(|| b.run(&mut inner)))
                    .map_err(|payload| worker.failure(B::NAME, payload))
            }
            Right::Elsewhere(id, outcome) => cx.worker.output(B::NAME, id, outcome),
        })
    }

    /// Runs tasks of a type, possibly at the same time; returns their outputs in order.
    pub fn all<T: Task + Clone>(&mut self, tasks: &[T]) -> Vec<T::Output> {
        match tasks {
            [task] => vec![self.run_alone(task.clone())],
            _ => self.all_here(tasks),
        }
    }

    /// [`Cx::all`] in a strand that has nothing else.
    pub(crate) fn all_here<T: Task + Clone>(&mut self, tasks: &[T]) -> Vec<T::Output> {
        match tasks {
            [] => Vec::new(),
            [task] => vec![task.clone().run(self)],
            _ => {
                let (left, right) = tasks.split_at(tasks.len().div_ceil(2));
                let all = |cx: &mut Cx<'_>| cx.all_here(left);
                let (mut outputs, right) = self.fork(T::NAME, all, AllOf(right));
                outputs.extend(right);
                outputs
            }
        }
    }

    /// Runs a task here, in a strand of its own: its states and forks must not mix with those of
    /// the task that calls it.
    fn run_alone<T: Task>(&mut self, task: T) -> T::Output {
        if mutant("single-in-strand") {
            return task.run(self);
        }
        let number = self.next;
        self.next = number + 1;
        let frame = Frame::right(self.frame, number);
        let memory = self.below(number, Side::Right);
        task.run(&mut Cx::new(self.worker, &frame, memory))
    }

    /// Runs tasks of a type, possibly at the same time; returns the sum of their outputs. The shape
    /// of the sum depends on the number of tasks alone.
    pub fn sum<T: Task<Output: Sum> + Clone>(&mut self, tasks: &[T]) -> T::Output {
        match tasks {
            [task] => self.run_alone(task.clone()),
            _ => self.sum_here(tasks),
        }
    }

    /// [`Cx::sum`] in a strand that has nothing else.
    pub(crate) fn sum_here<T: Task<Output: Sum> + Clone>(&mut self, tasks: &[T]) -> T::Output {
        match tasks {
            [] => Sum::zero(),
            [task] => task.clone().run(self),
            _ => {
                let (left, right) = tasks.split_at(tasks.len().div_ceil(2));
                let sum = |cx: &mut Cx<'_>| cx.sum_here(left);
                let (left, right) = self.fork(T::NAME, sum, SumOf(right));
                left.add(right)
            }
        }
    }

    /// A scope, for several children of different types. What is spawned in it and not asked for
    /// is withdrawn at its end.
    pub fn scope<R>(&mut self, body: impl for<'s> FnOnce(&mut Scope<'s, '_>) -> R) -> R {
        let spawns = Spawns::default();
        let frame = Frame::scope(self.frame, &spawns);
        let mut inner = Cx::new(self.worker, &frame, self.memory);
        inner.next = self.next;
        let mut scope = Scope::new(inner, &spawns);
        let result = body(&mut scope);
        self.next = scope.next();
        spawns.withdraw(self.worker);
        result
    }

    /// Keeps the state of a long loop: the next life of the task gets the newest state from
    /// [`Cx::restore`]. It does nothing until a beat is due.
    pub fn save<S: Serialize>(&mut self, state: &S) {
        self.tick();
        let worker = self.worker;
        let unsaved = worker.unsaved.get();
        if self.saved_at == NEVER {
            self.saved_at = unsaved;
        }
        if unsaved.saturating_sub(self.saved_at) < worker.half_beat.get() {
            return;
        }
        let bytes = worker.encoded("save", postcard::to_stdvec(state));
        let (parent, path) = self.frame.strand();
        let saving = Saving::State { next: self.next, state: bytes };
        let slot = Some(self.state_slot).filter(|&slot| slot != NO_SLOT);
        let slot = worker.charged(|| worker.save(parent, path.clone(), slot, saving));
        let Some(slot) = slot else { return };
        self.state_slot = slot;
        worker.unsaved.set(self.saved_at);
        // The forks of this strand so far, and all that is inside them, are covered.
        let next = self.next;
        let has_bag = worker.free_covered(|used| {
            used.id.slot != slot
                && is_inside(used, parent, &path)
                && used.path[path.len()].number() < next
        });
        worker.note_bag(slot, has_bag);
    }

    /// The newest state that an earlier life of the task has saved in this strand, if any. It has
    /// to be called before the strand's first fork.
    ///
    /// # Panics
    /// If the strand has forked already.
    pub fn restore<S: DeserializeOwned>(&mut self) -> Option<S> {
        assert_eq!(self.next, 0, "restore() comes before the first fork of its strand");
        let found = self.memory?.state.as_ref()?;
        let Saved::State { next, state } = &found.saved else { return None };
        let bytes = self.worker.fetch(found.id, state.clone(), "saved")?;
        let state = postcard::from_bytes(&bytes).ok()?;
        if !mutant("fork-number-not-restored") {
            self.next = *next;
        }
        self.worker.count(|counts| &counts.found);
        Some(state)
    }

    /// The store, for inputs and outputs of tasks.
    pub fn store(&self) -> &Store {
        &self.worker.store
    }

    /// The member that runs this task.
    pub fn me(&self) -> MemberId {
        MemberId(self.worker.me)
    }

    /// Looks at the clock if that is due. A leaf that runs for long calls it now and then, so that
    /// other members can be given work meanwhile.
    #[inline]
    pub fn tick(&mut self) {
        self.worker.fork_begins(self.frame);
    }

    /// Whether nobody wants the output of this task any more.
    pub fn is_unwanted(&mut self) -> bool {
        let (id, _) = self.frame.strand();
        match self.worker.read(id) {
            Some((record, _)) => record.state.is_final(),
            None => true,
        }
    }

    /// Passes time, as work of this length would: under the simulator virtual time.
    pub fn work(&mut self, duration: Duration) {
        self.worker.job.sleep(duration);
        self.tick();
    }

    // ---- Forks.

    /// The fork: runs the left half here, then the right half, unless another worker has taken it.
    #[inline]
    fn fork<L, B>(
        &mut self,
        name: &'static str,
        left: impl FnOnce(&mut Cx<'_>) -> L,
        right: B,
    ) -> (L, B::Output)
    where
        L: Serialize + DeserializeOwned,
        B: Half,
    {
        let (worker, number) = (self.worker, self.next);
        if self.memory.is_none() {
            #[cfg(debug_assertions)]
            self.check_registered(&right);
            self.next = number + 1;
            let unsaved = worker.unsaved.get();
            let frame = Frame::fork(self.frame, number, &right, unsaved);
            worker.fork_begins(&frame);
            let left = left(&mut Cx::new(worker, &frame, None));
            if frame.sharing() == Sharing::Unshared
                && worker.unsaved.get() - unsaved < worker.half_beat.get()
            {
                let frame = Frame::right(self.frame, number);
                let right = right.run_here(&mut Cx::new(worker, &frame, None));
                return (left, right);
            }
            let sharing = frame.sharing();
            let joined = worker.end_left(&frame, name, &left, &right, sharing, None);
            let right = self.right(number, right, joined);
            return (left, right);
        }
        self.fork_with(name, left, right, |cx, half| match half {
            Right::Here(right) => cx.right(number, right, None),
            Right::Elsewhere(id, outcome) => {
                let name = "a right half";
                cx.worker.output(name, id, outcome).unwrap_or_else(|error| fail_with(error))
            }
        })
    }

    /// The right half: here, or what became of it elsewhere.
    fn right<B: Half>(
        &mut self,
        number: u32,
        right: B,
        joined: Option<(TaskId, Outcome)>,
    ) -> B::Output {
        match joined {
            None => {
                let frame = Frame::right(self.frame, number);
                let memory = self.below(number, Side::Right);
                right.run_here(&mut Cx::new(self.worker, &frame, memory))
            }
            Some((id, outcome)) => {
                let output = self.worker.output(right.name(), id, outcome);
                output.unwrap_or_else(|error| fail_with(error))
            }
        }
    }

    /// A fork in full: with what earlier lives left, and with the right half as the caller wants.
    #[inline(never)]
    fn fork_with<L, B, R>(
        &mut self,
        name: &'static str,
        left: impl FnOnce(&mut Cx<'_>) -> L,
        right: B,
        finish: impl FnOnce(&mut Cx<'_>, Right<B>) -> R,
    ) -> (L, R)
    where
        L: Serialize + DeserializeOwned,
        B: Half,
    {
        let (worker, number) = (self.worker, self.next);
        self.next = number + 1;
        #[cfg(debug_assertions)]
        self.check_registered(&right);
        let (left_node, right_node) =
            (self.below(number, Side::Left), self.below(number, Side::Right));
        let earlier = right_node.and_then(|node| node.record);
        let earlier = earlier.filter(|&(id, hash)| worker.is_equal(&right, id, hash));
        let unsaved = worker.unsaved.get();
        let frame = Frame::fork(self.frame, number, &right, unsaved);
        let is_below = right_node.is_some_and(Node::has_records_below);
        if earlier.is_some() || (is_below && !mutant("share-over-records")) {
            frame.set_sharing(Sharing::NotOffered);
        }
        let saved = left_node.and_then(|node| worker.saved_left(node, name, &right));
        let left = match saved {
            Some(left) => left,
            None => {
                worker.fork_begins(&frame);
                left(&mut Cx::new(worker, &frame, left_node))
            }
        };
        let sharing = frame.sharing();
        let earlier = earlier.map(|(id, _)| id);
        let joined = worker.end_left(&frame, name, &left, &right, sharing, earlier);
        let half = match joined {
            Some((id, outcome)) => Right::Elsewhere(id, outcome),
            None => Right::Here(right),
        };
        (left, finish(self, half))
    }

    /// What earlier lives left below a half of a fork of this strand.
    fn below(&self, number: u32, side: Side) -> Option<&'a Node> {
        self.memory?.child(PathStep::new(number, side))
    }

    #[cfg(debug_assertions)]
    fn check_registered(&self, offer: &dyn Offer) {
        if let Err(error) = self.worker.options.registry.number(offer) {
            fail_with(error)
        }
    }
}

/// The right half of a fork after its left half.
enum Right<B> {
    Here(B),
    Elsewhere(TaskId, Outcome),
}

/// Unwinds the task: its child has failed.
pub(crate) fn fail_with(error: TaskError) -> ! {
    resume_unwind(Box::new(ChildFailed(error)))
}

impl Worker {
    #[inline(always)]
    pub(crate) fn fork_begins(&self, frame: &Frame<'_>) {
        // Relaxed: the background sets the countdown to zero to bring a look forward, and a lost
        // write only delays that.
        let left = self.shared.countdown.load(Ordering::Relaxed);
        if left == 0 {
            self.look(frame);
        } else {
            self.shared.countdown.store(left - 1, Ordering::Relaxed);
        }
    }

    /// The end of a left half: saves it if it is worth it, and waits for the right half if that is
    /// elsewhere. `None` if the right half is to be run here.
    #[cold]
    #[inline(never)]
    fn end_left<L: Serialize>(
        &self,
        frame: &Frame<'_>,
        name: &'static str,
        left: &L,
        right: &dyn Offer,
        sharing: Sharing,
        earlier: Option<TaskId>,
    ) -> Option<(TaskId, Outcome)> {
        let is_saved = Cell::new(false);
        let save = || {
            if is_saved.replace(true) || !self.options.is_resilient {
                return;
            }
            self.charged(|| self.save_left(frame, name, left, right));
        };
        let unsaved = self.unsaved.get() - frame.unsaved;
        if unsaved >= self.half_beat.get() {
            save();
            self.unsaved.set(self.unsaved.get() - unsaved.max(0));
        }
        let id = match (earlier, sharing) {
            (Some(id), _) => id,
            (None, Sharing::Shared(slot)) => self.slots.borrow().get(slot)?.0.id,
            (None, _) => return None,
        };
        if earlier.is_some() {
            self.count(|counts| &counts.found);
        }
        self.join_elsewhere(id, frame, save).map(|outcome| (id, outcome))
    }

    /// The step `join`: waits for a task that is elsewhere. `None` if it is to be run here.
    pub(crate) fn join_elsewhere(
        &self,
        id: TaskId,
        frame: &Frame<'_>,
        mut prepare: impl FnMut(),
    ) -> Option<Outcome> {
        let _step = within(Step::Join);
        loop {
            let outcome = self.wait_for(id, frame, &mut prepare);
            let is_own = id.owner() == Some(MemberId(self.me));
            if outcome.is_none() && is_own && !self.prevent(id) {
                // The record has come up after the wait had not found it.
                continue;
            }
            self.boards.unadvertise(id);
            if let Some(Outcome::Output(Blob::External { writer, .. })) = &outcome
                && !is_own
                && !self.is_there(&self.keys.blob(id, *writer, "out"))
            {
                // A saved left half had covered it, and was forgotten for want of a slot.
                return None;
            }
            if let Some(outcome) = &outcome {
                self.mark_joined(id, outcome);
            }
            return outcome;
        }
    }

    /// The step `save_left`: puts the output of a left half, and frees the slots inside it.
    fn save_left<L: Serialize>(&self, frame: &Frame<'_>, name: &str, left: &L, right: &dyn Offer) {
        let output = self.encoded("a left half", postcard::to_stdvec(left));
        let fork = self.hash_of_left(name, right);
        let side = if mutant("left-under-right") { Side::Right } else { Side::Left };
        let (parent, path) = frame.half(side);
        if let Some(slot) = self.save(parent, path.clone(), None, Saving::Left { fork, output }) {
            let has_bag = self.free_covered(|used| is_inside(used, parent, &path));
            self.note_bag(slot, has_bag);
        }
    }

    /// Notes whether the progress in an own slot has covered parts of a bag.
    fn note_bag(&self, slot: u32, has_bag: bool) {
        if let Some(used) = self.slots.borrow_mut().get_mut(slot) {
            used.has_bag |= has_bag;
        }
    }

    /// The hash by which the right halves of two lives are compared.
    fn hash_of_right(&self, right: &dyn Offer) -> u64 {
        let number = self.options.registry.number(right).unwrap_or(u32::MAX);
        hash_of_fork(number, hash(&self.encoded(right.name(), right.encode())))
    }

    /// The hash by which the left halves of two lives are compared. A left half has run when it is
    /// saved, so its arguments are gone: its name, and its right half, stand for it.
    fn hash_of_left(&self, name: &str, right: &dyn Offer) -> u64 {
        let name = if mutant("task-number-ignored") { "" } else { name };
        hash(&encode(&(name, self.hash_of_right(right))))
    }

    /// The output of a left half that an earlier life has saved, if it was the left half of an
    /// equal fork.
    fn saved_left<L: DeserializeOwned>(
        &self,
        node: &Node,
        name: &str,
        right: &dyn Offer,
    ) -> Option<L> {
        let found = node.left.as_ref()?;
        if self.hash_of_left(name, right) != found.fork && !mutant("arguments-not-compared") {
            self.diverge(right.name());
            return None;
        }
        let bytes = self.fetch(found.id, found.output.clone(), "saved")?;
        let left = postcard::from_bytes(&bytes).ok()?;
        self.count(|counts| &counts.found);
        Some(left)
    }

    /// Whether the task of an earlier life, with this hash, is this life's right half.
    pub(crate) fn is_equal(&self, right: &dyn Offer, id: TaskId, fork: u64) -> bool {
        if self.hash_of_right(right) == fork || mutant("arguments-not-compared") {
            return true;
        }
        self.withdraw(id);
        self.diverge(right.name());
        false
    }

    pub(crate) fn diverge(&self, task: &str) {
        self.count(|counts| &counts.diverged);
        if self.options.is_strict {
            fail_with(TaskError::Diverged { task: task.to_string() })
        }
    }

    /// The output of a task, from how it ended.
    pub(crate) fn output<T: DeserializeOwned>(
        &self,
        task: &str,
        id: TaskId,
        outcome: Outcome,
    ) -> Result<T, TaskError> {
        let blob = match outcome {
            Outcome::Output(blob) => blob,
            Outcome::Failed(error) => return Err(error),
        };
        let wrong = |reason: String| TaskError::Encoding { task: task.to_string(), reason };
        let bytes = self.fetch(id, blob, "out");
        let bytes = bytes.ok_or_else(|| wrong("the bytes of the output are gone".to_string()))?;
        postcard::from_bytes(&bytes).map_err(|error| wrong(error.to_string()))
    }
}

//! Scopes: several children of different types.

use crate::cx::{Cx, fail_with};
use crate::error::TaskError;
use crate::frame::Frame;
use crate::record::{PathStep, Side, TaskId};
use crate::resume::Node;
use crate::task::{Offer, Task};
use crate::worker::{Saving, Worker};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A spawned task in a box.
trait Boxed: Offer {
    fn as_offer(&self) -> &dyn Offer;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<T: Task> Boxed for T {
    fn as_offer(&self) -> &dyn Offer {
        self
    }

    fn into_any(self: Box<T>) -> Box<dyn Any> {
        self
    }
}

/// A task that was spawned in a scope.
struct Spawned {
    number: u32,
    /// The task, until it is run.
    task: Option<Box<dyn Boxed>>,
    /// The record of the task, if it is shared, or was in an earlier life.
    id: Option<TaskId>,
    /// Whether an earlier life left records below it.
    is_below: bool,
    is_joined: bool,
}

/// The tasks that were spawned in a scope.
#[derive(Default)]
pub(crate) struct Spawns {
    list: RefCell<Vec<Spawned>>,
    /// Whether this life has put that the scope waits.
    is_saved: Cell<bool>,
}

impl Spawns {
    /// The oldest task that can be shared.
    pub(crate) fn oldest(&self) -> Option<usize> {
        self.list
            .borrow()
            .iter()
            .position(|spawned| spawned.task.is_some() && spawned.id.is_none() && !spawned.is_below)
    }

    /// Shares a task; returns whether there was room.
    pub(crate) fn share(
        &self,
        index: usize,
        share: impl FnOnce(&dyn Offer, u32) -> Option<TaskId>,
    ) -> bool {
        let mut list = self.list.borrow_mut();
        let spawned = &mut list[index];
        let Some(task) = &spawned.task else { return false };
        spawned.id = share(task.as_offer(), spawned.number);
        spawned.id.is_some()
    }

    /// Withdraws what nobody has asked for.
    pub(crate) fn withdraw(&self, worker: &Worker) {
        let list = self.list.take();
        for id in list.iter().filter(|spawned| !spawned.is_joined).filter_map(|one| one.id) {
            worker.withdraw(id);
        }
    }
}

/// A scope of [`Cx::scope`].
pub struct Scope<'s, 'a> {
    cx: Cx<'a>,
    spawns: &'a Spawns,
    /// Makes the lifetime of the scope's futures its own.
    scope: PhantomData<fn(&'s ()) -> &'s ()>,
}

/// The output of a spawned task. It belongs to its scope: a task waits for its own children alone,
/// which is why no two tasks wait for each other.
#[must_use = "a future without get is withdrawn at the end of its scope"]
pub struct Future<'s, T> {
    index: usize,
    scope: PhantomData<fn(&'s ()) -> &'s ()>,
    task: PhantomData<T>,
}

impl<'s, 'a> Scope<'s, 'a> {
    pub(crate) fn new(cx: Cx<'a>, spawns: &'a Spawns) -> Scope<'s, 'a> {
        Scope { cx, spawns, scope: PhantomData }
    }

    pub(crate) fn next(&self) -> u32 {
        self.cx.next
    }

    /// Offers a task to the other members. It is run here when its output is asked for, unless
    /// another member has taken it by then.
    pub fn spawn<T: Task>(&mut self, task: T) -> Future<'s, T> {
        let number = self.cx.next;
        self.cx.next += 1;
        let node = self.node(number);
        let earlier = node.and_then(|node| node.record);
        let id = earlier.filter(|&(id, hash)| self.cx.worker.is_equal(&task, id, hash));
        let is_below = node.is_some_and(Node::has_records_below);
        let mut list = self.spawns.list.borrow_mut();
        list.push(Spawned {
            number,
            task: Some(Box::new(task)),
            id: id.map(|(id, _)| id),
            is_below,
            is_joined: false,
        });
        let index = list.len() - 1;
        drop(list);
        self.cx.tick();
        Future { index, scope: PhantomData, task: PhantomData }
    }

    /// Runs two tasks, as [`Cx::join`] does.
    pub fn join<A: Task, B: Task>(&mut self, a: A, b: B) -> (A::Output, B::Output) {
        self.cx.join(a, b)
    }

    fn node(&self, number: u32) -> Option<&'a Node> {
        self.cx.memory?.child(PathStep::new(number, Side::Right))
    }
}

impl<'s, T: Task> Future<'s, T> {
    /// The output of the task.
    ///
    /// # Panics
    /// If the task has panicked.
    pub fn get(self, scope: &mut Scope<'s, '_>) -> T::Output {
        self.take(scope, |task, cx| Ok(task.run(cx))).unwrap_or_else(|error| fail_with(error))
    }

    /// The output of the task, or how it failed.
    pub fn try_get(self, scope: &mut Scope<'s, '_>) -> Result<T::Output, TaskError> {
        let worker = scope.cx.worker;
        self.take(scope, |task, cx| {
            catch_unwind(AssertUnwindSafe(|| task.run(cx)))
                .map_err(|payload| worker.failure(T::NAME, payload))
        })
    }

    fn take(
        self,
        scope: &mut Scope<'s, '_>,
        run: impl FnOnce(T, &mut Cx<'_>) -> Result<T::Output, TaskError>,
    ) -> Result<T::Output, TaskError> {
        let (number, id) = {
            let mut list = scope.spawns.list.borrow_mut();
            let spawned = &mut list[self.index];
            spawned.is_joined = true;
            (spawned.number, spawned.id)
        };
        let worker = scope.cx.worker;
        if let Some(id) = id {
            let prepare = || {
                if worker.options.is_resilient && !scope.spawns.is_saved.replace(true) {
                    let (parent, path) = scope.cx.frame.strand();
                    worker.charged(|| worker.save(parent, path, None, Saving::Waits));
                }
            };
            if let Some(outcome) = worker.join_elsewhere(id, scope.cx.frame, prepare) {
                return worker.output(T::NAME, id, outcome);
            }
        }
        let boxed = scope.spawns.list.borrow_mut()[self.index].task.take();
        let any = boxed.expect("a future is taken once").into_any();
        let task = *any.downcast::<T>().expect("a future has the type of its task");
        let frame = Frame::right(scope.cx.frame, number);
        run(task, &mut Cx::new(worker, &frame, scope.node(number)))
    }
}

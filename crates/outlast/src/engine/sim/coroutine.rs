//! The coroutines of a world, and the way from a call of the engine into the world.
//!
//! A world belongs to the thread that runs it. The thread knows it through a thread-local pointer,
//! so that a [`super::Sim`] is only a pair of numbers, which may go anywhere: from another thread,
//! or after the world's end, it finds nothing and its calls return [`crate::Error::Ended`].

use super::super::deadline::Activity;
use super::world::{Ending, Turn, World, Yielder};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};
use std::cell::{Cell, RefCell, RefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null;
use std::rc::Rc;

thread_local! {
    /// The world that this thread runs; null without a world.
    static WORLD: Cell<*const RefCell<World>> = const { Cell::new(null()) };
    /// Stacks of ended activities, for reuse: making one takes system calls, and there are many
    /// short runs.
    static STACKS: RefCell<Vec<(usize, DefaultStack)>> = const { RefCell::new(Vec::new()) };
}

/// Calls `inside` with the world that has this number, if this thread runs it.
#[inline]
pub(super) fn with_world<R>(id: u64, inside: impl FnOnce(&mut World) -> R) -> Option<R> {
    let world = WORLD.get();
    if world.is_null() {
        return None;
    }
    // SAFETY: the pointer is set only while `Stage` exists, in this thread, and `Stage` keeps the
    // cell alive at a fixed address; its drop sets the pointer back to null before the cell goes.
    let cell = unsafe { &*world };
    let mut world = cell.try_borrow_mut().ok()?;
    if world.id != id {
        return None;
    }
    Some(inside(&mut world))
}

/// Suspends the running activity.
///
/// # Safety
/// `yielder` must be the yielder that the world holds for the activity that runs now, on whose
/// stack the caller is, and the world must not be borrowed.
#[inline]
pub(super) unsafe fn suspend(yielder: *const Yielder) {
    // SAFETY: the yielder lives on the stack of the activity, below all frames of its body, until
    // the body returns.
    unsafe { (*yielder).suspend(()) }
}

type Routine = Coroutine<(), (), Ending, DefaultStack>;

/// A world with its coroutines.
pub(super) struct Stage {
    world: Rc<RefCell<World>>,
    routines: Vec<Option<Routine>>,
    /// The deadline of each activity that does not run now.
    deadlines: Vec<Activity>,
    stack_len: usize,
}

impl Stage {
    /// Puts a world into this thread.
    pub(super) fn new(world: World, stack_len: usize) -> Stage {
        assert!(
            WORLD.get().is_null(),
            "this thread already runs a simulated world; a body cannot run another one"
        );
        let world = Rc::new(RefCell::new(world));
        WORLD.set(Rc::as_ptr(&world));
        Stage { world, routines: Vec::new(), deadlines: Vec::new(), stack_len }
    }

    /// The world, between two turns of its activities.
    #[inline]
    pub(super) fn world(&self) -> RefMut<'_, World> {
        self.world.borrow_mut()
    }

    /// Gives an activity its coroutine.
    pub(super) fn make(&mut self, slot: u32, body: impl FnOnce() + 'static) {
        let id = self.world().id;
        let stack = STACKS.with_borrow_mut(|stacks| {
            while let Some((len, stack)) = stacks.pop() {
                if len == self.stack_len {
                    return Some(stack);
                }
            }
            None
        });
        let stack = stack.unwrap_or_else(|| {
            DefaultStack::new(self.stack_len).unwrap_or_else(|error| {
                panic!(
                    "no memory for a stack of {} bytes: {error}; use a smaller Options::stack_len",
                    self.stack_len
                )
            })
        });
        let routine = Coroutine::with_stack(stack, move |yielder: &Yielder, ()| {
            with_world(id, |world| world.set_yielder(slot, yielder));
            match catch_unwind(AssertUnwindSafe(body)) {
                Ok(()) => Ending::Returned,
                // The payload of the forced unwinding belongs to the coroutine library.
                Err(payload) if with_world(id, |world| world.is_unwinding()) != Some(false) => {
                    resume_unwind(payload)
                }
                Err(payload) => {
                    let text = payload
                        .downcast_ref::<&str>()
                        .map(|text| text.to_string())
                        .or_else(|| payload.downcast_ref::<String>().cloned());
                    Ending::Panicked(text.unwrap_or_else(|| "no message".to_string()))
                }
            }
        });
        let index = slot as usize;
        if self.routines.len() <= index {
            self.routines.resize_with(index + 1, || None);
            self.deadlines.resize_with(index + 1, Activity::default);
        }
        (self.routines[index], self.deadlines[index]) = (Some(routine), Activity::default());
    }

    /// Runs the world to its end.
    pub(super) fn run(&mut self) {
        loop {
            let turn = {
                let mut world = self.world();
                if world.births.is_empty() { Some(world.turn()) } else { None }
            };
            let Some(turn) = turn else {
                let births = std::mem::take(&mut self.world().births);
                births.into_iter().for_each(|(slot, body)| self.make(slot, body));
                continue;
            };
            match turn {
                Turn::Resume(slot) => {
                    let Some(routine) = &mut self.routines[slot as usize] else {
                        unreachable!("an activity that runs has a coroutine")
                    };
                    let outside = std::mem::take(&mut self.deadlines[slot as usize]).exchange();
                    let resumed = routine.resume(());
                    self.deadlines[slot as usize] = outside.exchange();
                    if let CoroutineResult::Return(ending) = resumed {
                        self.recycle(slot);
                        self.world().ended(slot, ending);
                    }
                }
                Turn::Reap(slots) => self.reap(&slots),
                Turn::End => return,
            }
        }
    }

    /// Unwinds activities whose member has ended: their destructors run, their calls of the engine
    /// do nothing.
    fn reap(&mut self, slots: &[u32]) {
        for &slot in slots {
            if let Some(routine) = self.routines.get_mut(slot as usize).and_then(Option::as_mut) {
                // An activity that never began has no stack to suspend: its body is dropped here,
                // as outside any activity.
                let current = routine.started().then_some(slot);
                self.world.borrow_mut().set_current(current);
                self.world.borrow_mut().set_unwinding(true);
                let outside = std::mem::take(&mut self.deadlines[slot as usize]).exchange();
                // A panic of a destructor after the unwinding was caught cannot be reported.
                let _ = catch_unwind(AssertUnwindSafe(|| routine.force_unwind()));
                outside.exchange();
                self.world().set_unwinding(false);
                self.world().set_current(None);
                self.recycle(slot);
            }
            self.world().free_actor(slot);
        }
    }

    fn recycle(&mut self, slot: u32) {
        if let Some(routine) = self.routines[slot as usize].take()
            && routine.done()
        {
            STACKS.with_borrow_mut(|stacks| stacks.push((self.stack_len, routine.into_stack())));
        }
    }

    /// Unwinds the activities that have not ended.
    pub(super) fn clear(&mut self) {
        loop {
            let slots = self.world().remaining();
            // Bodies of activities that never began are dropped here, outside the world.
            let births = std::mem::take(&mut self.world().births);
            if slots.is_empty() && births.is_empty() {
                return;
            }
            self.reap(&slots);
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.clear();
        WORLD.set(null());
    }
}

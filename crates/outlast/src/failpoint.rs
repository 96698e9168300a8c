//! Death in the middle of a chosen step of a protocol, for tests.
//!
//! Random kills rarely land inside an operation of 100 ns; failpoints do. A protocol above the
//! engine says which [`Step`] its thread is in (`enter`, `within`), the engine counts its own steps
//! (`count`), and [`die_in`] lets the process die at a chosen engine step of a chosen step of the
//! protocol. [`crate::store::steps`] lists the steps of the store.
//!
//! All of this exists in builds with the feature `faults`. Without it, every function here does
//! nothing.

/// Whether this build has failpoints.
pub const AVAILABLE: bool = cfg!(feature = "faults");

/// Stands for any step; see [`die_in`].
pub const ANY: u32 = u32::MAX;

/// The beginning of the last words of a process that died by [`die_in`]. The name of the step
/// follows, then ` at `, the time on the machine's monotonic clock, and ` ns`.
pub const LAST_WORDS: &str = "died in step ";

/// A step of a protocol of the layers above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its number in the list of its layer; see [`crate::store::steps`].
    pub index: u32,
    /// Its name, such as `write.publish`.
    pub name: &'static str,
}

/// Lets this process die by SIGKILL at the `after`-th engine step of the next thread that enters
/// this step (an index into [`crate::store::steps::NAMES`], or [`ANY`]). The process names the step
/// on standard error, after [`LAST_WORDS`]. Only on shm.
pub fn die_in(step: u32, after: u64) {
    #[cfg(feature = "faults")]
    armed::want(step, after);
    let _ = (step, after);
}

/// The calling thread is in this step from now on.
#[inline]
pub(crate) fn enter(step: Step) {
    #[cfg(feature = "faults")]
    armed::enter(step);
    let _ = step;
}

/// The calling thread is in this step until the returned guard is dropped, and a death in any step
/// that it enters meanwhile counts as a death in this step: the steps of a transaction consist of
/// steps of writing. Layers above this crate number their steps from 1000 on.
#[inline]
pub fn within(step: Step) -> Within {
    let _ = step;
    Within {
        #[cfg(feature = "faults")]
        before: armed::begin(step),
    }
}

/// The guard of [`within`].
#[must_use = "the step ends when the guard is dropped"]
pub struct Within {
    #[cfg(feature = "faults")]
    before: Option<Step>,
}

impl Drop for Within {
    #[inline]
    fn drop(&mut self) {
        #[cfg(feature = "faults")]
        armed::end(self.before);
    }
}

/// Counts an engine step; returns the name of the protocol's step if the process is to die here.
#[cfg(feature = "faults")]
#[inline]
pub(crate) fn count() -> Option<&'static str> {
    armed::count()
}

#[cfg(feature = "faults")]
mod armed {
    use super::{ANY, Step};
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// The order to die: in the upper half the index of the step plus 1, or [`ANY`]; in the lower
    /// half the number of engine steps. 0 if there is none.
    ///
    /// The word carries the whole order, so no other memory has to be ordered with it: a relaxed
    /// load finds it, and the swap lets a single thread take it.
    static WANTED: AtomicU64 = AtomicU64::new(0);

    thread_local! {
        static CURRENT: Cell<Option<Step>> = const { Cell::new(None) };
        /// The step that contains the current step, if any.
        static OUTER: Cell<Option<Step>> = const { Cell::new(None) };
        /// How many engine steps this thread may still do; 0 if it has no order to die.
        static LEFT: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn want(step: u32, after: u64) {
        let step = if step == ANY { u64::from(ANY) } else { u64::from(step) + 1 };
        WANTED.store(step << 32 | after.clamp(1, 1 << 31), Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn enter(step: Step) {
        CURRENT.set(Some(step));
        strike(step);
    }

    /// Begins a step that contains others; returns the step that contained the current step before.
    pub(super) fn begin(step: Step) -> Option<Step> {
        strike(step);
        OUTER.replace(Some(step))
    }

    pub(super) fn end(before: Option<Step>) {
        OUTER.set(before);
    }

    /// Takes the order to die if it is for this step.
    #[inline]
    fn strike(step: Step) {
        let wanted = WANTED.load(Ordering::Relaxed);
        if wanted != 0
            && [u64::from(ANY), u64::from(step.index) + 1].contains(&(wanted >> 32))
            && WANTED.swap(0, Ordering::SeqCst) != 0
        {
            LEFT.set(wanted & 0xffff_ffff);
        }
    }

    #[inline]
    pub(super) fn count() -> Option<&'static str> {
        let left = LEFT.get();
        if left == 0 {
            return None;
        }
        LEFT.set(left - 1);
        let name = || OUTER.get().or(CURRENT.get()).map_or("outside", |step| step.name);
        (left == 1).then(name)
    }
}

//! Which step of its protocol a thread is in, and death in the middle of a chosen one, for tests (feature `faults`;
//! without it all of this is nothing). Random kills rarely land inside an operation of 100 ns; these do.

/// Whether this build has failpoints.
pub const AVAILABLE: bool = cfg!(feature = "faults");

/// Any step will do; see [`die_in`].
pub const ANY: u32 = u32::MAX;

/// A step of a protocol of the layers above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its number in the list of the layer that has it; see [`crate::store::steps`].
    pub index: u32,
    /// Its name, such as `write.publish`.
    pub name: &'static str,
}

#[cfg(feature = "faults")]
mod armed {
    use super::{ANY, Step};
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// The step to die in, plus 1, in the upper half, and after how many engine steps in the lower; 0: none.
    static WANTED: AtomicU64 = AtomicU64::new(0);

    thread_local! {
        static CURRENT: Cell<Option<Step>> = const { Cell::new(None) };
        /// The step of a transaction that the current one is a part of.
        static OUTER: Cell<Option<Step>> = const { Cell::new(None) };
        /// Engine steps that this thread has left.
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

    /// Begins a step that others are parts of; what was begun before.
    pub(super) fn begin(step: Step) -> Option<Step> {
        strike(step);
        OUTER.replace(Some(step))
    }

    pub(super) fn end(before: Option<Step>) {
        OUTER.set(before);
    }

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

    /// Counts an engine step; the name of the protocol's step if it is the last of this process.
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

/// Says that this thread is in this step from now on.
#[inline]
pub(crate) fn enter(step: Step) {
    #[cfg(feature = "faults")]
    armed::enter(step);
    let _ = step;
}

/// A step that others are parts of, until it is dropped: who dies in one of those dies in this one.
pub(crate) struct Within {
    #[cfg(feature = "faults")]
    before: Option<Step>,
}

/// Says that this thread is in a step that others are parts of.
#[inline]
pub(crate) fn within(step: Step) -> Within {
    let _ = step;
    Within {
        #[cfg(feature = "faults")]
        before: armed::begin(step),
    }
}

impl Drop for Within {
    #[inline]
    fn drop(&mut self) {
        #[cfg(feature = "faults")]
        armed::end(self.before);
    }
}

/// Counts an engine step; the name of the protocol's step if the process is to die here.
#[cfg(feature = "faults")]
#[inline]
pub(crate) fn count() -> Option<&'static str> {
    armed::count()
}

/// Lets this process die by SIGKILL at the `after`-th engine step of the thread that enters this step next (an index
/// into [`crate::store::steps::NAMES`], or [`ANY`]); its last words on standard error name the step. On shm alone.
pub fn die_in(step: u32, after: u64) {
    #[cfg(feature = "faults")]
    armed::want(step, after);
    let _ = (step, after);
}

/// What begins the last words of a process that died as [`die_in`] said. The name of the step follows, then ` at `, the
/// time on the machine's monotonic clock, and ` ns`.
pub const LAST_WORDS: &str = "died in step ";

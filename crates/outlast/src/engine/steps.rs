//! Which step of its protocol a thread is in, and death in the middle of a chosen one, for tests (feature `faults`;
//! without it all of this is nothing). Random kills rarely land inside an operation of 100 ns; these do.

/// Whether this build has failpoints.
pub const AVAILABLE: bool = cfg!(feature = "faults");

/// Any step will do; see [`die_in`].
pub const ANY: u32 = u32::MAX;

macro_rules! steps {
    ($($(#[$doc:meta])* $step:ident = $name:literal,)*) => {
        /// The steps of the store's protocol, named as in docs/protocol.md.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Step {
            $(#[doc = $name] $step,)*
        }

        /// The names of the steps, in their order.
        pub const NAMES: &[&str] = &[$($name),*];
    };
}

steps! {
    Enter = "W1 enter the configuration",
    Find = "W2 find the record",
    Fill = "W4 fill a block",
    Publish = "W5 publish at the primary",
    Install = "W6 install at the other homes",
    NewHomes = "W7 look for new homes",
    Stable = "W8 say that it is stable",
    Redo = "W9 find out whether it happened",
    Read = "read",
    Seal = "T1 seal the homes",
    Greatest = "T2 find the greatest",
    Settle = "T3 install it where it is not",
    Tell = "T4 tell its writer",
    Settled = "T5 say that it is settled",
    MakeIndex = "R1 make an index",
    Copy = "R3 copy records",
    Complete = "R5 say that it is complete",
    Retire = "free space",
    Leave = "leave the operation",
}

#[cfg(feature = "faults")]
mod armed {
    use super::{ANY, NAMES, Step};
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// The step to die in, plus 1, in the upper half, and after how many engine steps in the lower; 0: none.
    static WANTED: AtomicU64 = AtomicU64::new(0);

    thread_local! {
        static CURRENT: Cell<Option<Step>> = const { Cell::new(None) };
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
        let wanted = WANTED.load(Ordering::Relaxed);
        if wanted != 0
            && [u64::from(ANY), step as u64 + 1].contains(&(wanted >> 32))
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
        let name = || CURRENT.get().map_or("outside", |step| NAMES[step as usize]);
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

/// Counts an engine step; the name of the protocol's step if the process is to die here.
#[cfg(feature = "faults")]
#[inline]
pub(crate) fn count() -> Option<&'static str> {
    armed::count()
}

/// Lets this process die by SIGKILL at the `after`-th engine step of the thread that enters this step next (an index
/// into [`NAMES`], or [`ANY`]); its last words on standard error name the step. On shm alone.
pub fn die_in(step: u32, after: u64) {
    #[cfg(feature = "faults")]
    armed::want(step, after);
    let _ = (step, after);
}

/// What begins the last words of a process that died as [`die_in`] said. The name of the step follows, then ` at `, the
/// time on the machine's monotonic clock, and ` ns`.
pub const LAST_WORDS: &str = "died in step ";

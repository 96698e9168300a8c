//! What a thread keeps for the calls of the fast path, in a single variable.
//!
//! A shared library finds a variable of the thread by a call of the loader (`__tls_get_addr`). The
//! compiler makes a single call for all uses of a variable in a function, so a variable with three
//! fields costs a third of three variables. In a program all of them cost nothing.

use super::deadline::Current;
use std::cell::Cell;

/// The fields of the variable. No borrow lasts beyond a call of [`with`].
pub(crate) struct ThreadState {
    /// The deadline of the activity; see `deadline.rs`.
    pub(super) deadline: Cell<Current>,
    /// Whether this thread has made a put that its later loads may still overtake; see
    /// `shm/sys.rs`.
    pub(super) owes_order: Cell<bool>,
    /// The participant that this thread used last, and the number of its store. The next operation
    /// of the thread tries this participant first; see `store/operation/op.rs`.
    pub(crate) last_participant: Cell<(u64, usize)>,
}

thread_local! {
    static STATE: ThreadState = const {
        ThreadState {
            deadline: Cell::new(Current::NOTHING),
            owes_order: Cell::new(false),
            last_participant: Cell::new((0, 0)),
        }
    };
}

/// Uses the fields of this thread.
#[inline(always)]
pub(crate) fn with<T>(body: impl FnOnce(&ThreadState) -> T) -> T {
    STATE.with(body)
}

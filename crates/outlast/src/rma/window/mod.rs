//! Windows: memory that the members of a communicator show to each other, with locks that outlive
//! their holders.
//!
//! Each member of a window lends some memory of its segment. Every member reads and writes all of
//! it one-sidedly: the target takes no part. The target of a call is a rank of the communicator
//! that the window was made on; ranks never change.
//!
//! ```
//! use outlast::rma::{Communicator, LockKind, Update, Window};
//! let job = outlast::join()?;
//! let comm = Communicator::world(&job)?;
//! let window = Window::allocate(&comm, 4096)?;
//! window.lock(0, LockKind::Exclusive)?;
//! window.put(0, 16, b"hello")?;
//! window.accumulate(0, 8, Update::Max, &[comm.rank() as u64])?;
//! window.unlock(0)?;
//! window.free()?;
//! # job.leave()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What a death does
//! A death does nothing to the memory of the living. Calls on a dead target return
//! [`WindowError::ProcFailed`]; calls over all members do so until [`Window::shrink`]. The next
//! member that locks takes over the lock of a dead holder, and is told so
//! ([`WindowError::Abandoned`]). No call waits for a dead member. All waits of a call for living
//! members share the job's time limit; [`Window::lock_within`] may be given a longer limit for
//! holders of a lock. An operation that a call has started and not awaited has the time limit for
//! itself.
//!
//! # The modules
//! - `create` and `free`: the steps by which all members make and free a window.
//! - `layout`: the control block of a window in each segment.
//! - `directory`: the bytes that a member shows, and how they change.
//! - `lock`: the locks. `access`: puts, gets and operations on words.
//!
//! Programs call a window through [`Window`]. The modules share its state through [`SharedWindow`].
//!
//! # Invariants
//! - A window has a communicator of its own, the *channel*, for its collective steps: making it,
//!   revoking it, freeing it.
//! - A member releases its memory of a window only when no operation on it can still land: see
//!   `free` and `directory`.
//! - A member holds a lock exactly as long as its stamp is in the lock word: see `lock`.

/// The examples of the page are compiled with the tests.
#[cfg_attr(doctest, doc = include_str!("../../../../../docs/ulfm-extensions.md"))]
#[cfg(doctest)]
struct UlfmExtensions;

mod access;
mod create;
mod directory;
mod error;
mod free;
mod layout;
mod lock;

pub use access::{Update, WindowRequest, Word};
pub use directory::ATTACHED;
pub use error::{WindowError, WindowResult};
pub use lock::LockKind;

use super::Communicator;
use super::group::RankSet;
use super::progress::begin_call;
use crate::engine::deadline::Deadline;
use crate::engine::{self};
use crate::sync::lock;
use crate::{Epoch, Job, MemberId, MemberSet, Time};
use access::OperationTable;
use create::{reserve_cleared, too_long};
use directory::{DetachedRange, Directory, OwnMemory, WindowRange};
use free::FreeCall;
use layout::ControlLayout;
use lock::HeldLock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Memory that the members of a communicator show to each other. See the methods; the numbered
/// extensions of ULFM are in `docs/ulfm-extensions.md`.
///
/// Cheap to clone: all clones are handles of a single window. Any thread may use it; locks belong
/// to the member and not to the thread. Dropping it does nothing: a window ends with
/// [`Window::free`] or [`Window::close`].
#[derive(Clone)]
pub struct Window {
    shared: Arc<SharedWindow>,
}

struct SharedWindow {
    job: Job,
    comm: Communicator,
    /// The communicator for collective steps. Replaced when a revoked window is shrunk.
    channel: Mutex<Communicator>,
    me: usize,
    members: Vec<MemberId>,
    layout: ControlLayout,
    /// The segment offset of the control block of each rank.
    controls: Vec<u64>,
    /// Whether accesses need no lock.
    is_open: bool,
    next_ticket: AtomicU64,
    phase: AtomicU32,
    /// How many calls are in progress.
    calls: AtomicUsize,
    state: Mutex<WindowState>,
    /// The memory that this member shows. An activity that changes it takes it out.
    owned: Mutex<Option<OwnMemory>>,
    /// The dead that this member knows, and the epoch of that view.
    dead: Mutex<(Epoch, MemberSet)>,
}

#[derive(Default)]
struct WindowState {
    held: BTreeMap<usize, HeldLock>,
    /// The targets at which the sharing bit of this member is set.
    shares: RankSet,
    table: OperationTable,
    /// Requests that were dropped while an activity was advancing their operation.
    unwanted: BTreeSet<u64>,
    directories: Vec<Option<Arc<Directory>>>,
    /// The ranks that the window was shrunk by.
    excluded: RankSet,
}

/// The window can be used.
const PHASE_LIVE: u32 = 0;
/// A thread is inside `free`.
const PHASE_FREEING: u32 = 1;
/// `free` has left without knowing its outcome: only `free` may be called.
const PHASE_UNKNOWN: u32 = 2;
const PHASE_FREED: u32 = 3;

/// What ends a wait, besides its time limit and the death of the awaited member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndedBy {
    /// Nothing else: the call ends or releases.
    Nothing,
    /// A revoke.
    Revoke,
    /// A revoke or an interrupt.
    RevokeOrInterrupt,
}

/// The first and the longest interval at which waits poll again.
const NAP_MIN: Duration = Duration::from_micros(100);
const NAP_MAX: Duration = Duration::from_millis(5);

/// A call on a window that is in progress. All its waits share a deadline.
struct WindowCall<'a> {
    calls: &'a AtomicUsize,
    _deadline: Deadline,
}

impl Drop for WindowCall<'_> {
    fn drop(&mut self) {
        self.calls.fetch_sub(1, Ordering::SeqCst);
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let revoked = if self.is_revoked() { ", revoked" } else { "" };
        write!(f, "Window(rank {} of {}{revoked})", self.shared.me, self.shared.members.len())
    }
}

impl Window {
    /// Makes a window in which this member shows `len` bytes, all zero; `len` may differ between
    /// members. Collective. Accesses need a lock on their target.
    ///
    /// All members get the window, or none does. A member that dies meanwhile may belong to it. The
    /// time in which the memory is cleared does not count against the time limit; the others wait
    /// for a member that takes longer for it than they do.
    pub fn allocate(comm: &Communicator, len: u64) -> WindowResult<Window> {
        Window::make(comm, len, false)
    }

    /// Makes a window like [`Window::allocate`], but with an implied epoch (extension 5 of ULFM):
    /// accesses need no lock, from the beginning to [`Window::close`]. Locks can still be taken;
    /// they exclude only members that take them too.
    ///
    /// ```
    /// # let job = outlast::join()?;
    /// # let comm = outlast::rma::Communicator::world(&job)?;
    /// # use outlast::rma::{Update, Window};
    /// let window = Window::open(&comm, 64)?;           // no lock, no lock_all
    /// window.put(0, 0, &[comm.rank() as u8])?;
    /// window.accumulate(0, 8, Update::Sum, &[1u64])?;
    /// window.flush(0)?;
    /// let mut first = [0];
    /// window.get(0, 0, &mut first)?;
    /// window.close()?;                                 // completes, unlocks and frees
    /// # job.leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(comm: &Communicator, len: u64) -> WindowResult<Window> {
        Window::make(comm, len, true)
    }

    /// The communicator that the window was made on.
    pub fn communicator(&self) -> &Communicator {
        &self.shared.comm
    }

    /// How many bytes `target` shows now, from offset 0 on.
    pub fn len(&self, target: usize) -> WindowResult<u64> {
        let _call = self.shared.begin()?;
        self.shared.check_rank(target)?;
        self.shared.check_usable()?;
        Ok(self.shared.read_directory(target)?.len())
    }

    // ---- Failures.

    /// The ranks that are dead, as far as this member knows. Local.
    pub fn get_failed(&self) -> Vec<usize> {
        let dead = self.shared.dead();
        (0..self.shared.members.len())
            .filter(|&rank| dead.contains(self.shared.members[rank]))
            .collect()
    }

    /// Makes the window unusable for all its members, also for members that wait in it now: all
    /// calls that are not local and neither end nor release return [`WindowError::Revoked`].
    /// Returns at once. [`Window::shrink`] by all survivors makes the window usable again.
    pub fn revoke(&self) -> WindowResult<()> {
        let _call = self.shared.begin()?;
        Ok(self.shared.channel().revoke()?)
    }

    /// Whether a member has revoked the window (extension 8 of ULFM). Local. The background
    /// receives revokes, so the answer is right also at a member that has made no call since.
    ///
    /// ```
    /// # let job = outlast::join()?;
    /// # let comm = outlast::rma::Communicator::world(&job)?;
    /// # use outlast::rma::Window;
    /// let window = Window::open(&comm, 64)?;
    /// let mut rounds = 0;
    /// while rounds < 1000 && !window.is_revoked() && !comm.is_revoked() {
    ///     rounds += 1;                                 // computes; no call of the library
    /// }
    /// if window.is_revoked() {
    ///     window.shrink()?;                            // with all survivors
    /// }
    /// # window.close()?;
    /// # job.leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_revoked(&self) -> bool {
        self.shared.channel().is_revoked()
    }

    /// Goes on without the dead, **without shrinking the communicator** (extension 6 of ULFM). The
    /// memory and the locks of the survivors are untouched, and ranks do not change. Returns the
    /// ranks that are left out from now on.
    ///
    /// On a window that is not revoked this is local: from now on, calls over all members such as
    /// [`Window::flush_all`] and [`Window::lock_all`] concern the survivors only. Failed operations
    /// on the dead are forgotten, and so are this member's locks there. Calls on a dead target
    /// still return [`WindowError::ProcFailed`]. Other members shrink when they like, or never.
    ///
    /// On a revoked window all survivors call it; afterwards it is usable again. A member that dies
    /// meanwhile is left out, or found dead later.
    ///
    /// ```
    /// # let job = outlast::join()?;
    /// # let comm = outlast::rma::Communicator::world(&job)?;
    /// # use outlast::rma::{Window, WindowError};
    /// let window = Window::open(&comm, 64)?;
    /// for rank in 0..comm.size() {
    ///     let _ = window.put(rank, 0, b"round 1");     // the flush reports deaths
    /// }
    /// if let Err(WindowError::ProcFailed { .. }) = window.flush_all() {
    ///     let gone = window.shrink()?;                 // window, ranks and communicator stay
    ///     println!("going on without {gone:?}");
    ///     window.flush_all()?;
    /// }
    /// # window.close()?;
    /// # job.leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shrink(&self) -> WindowResult<Vec<usize>> {
        let shared = &*self.shared;
        let _call = shared.begin()?;
        let channel = shared.channel();
        let mut gone = Vec::new();
        if channel.is_revoked() {
            let survivors = channel.shrink()?;
            let is_gone = |&rank: &usize| survivors.rank_of(shared.members[rank]).is_none();
            gone = (0..shared.members.len()).filter(is_gone).collect();
            *lock(&shared.channel) = survivors;
            // Calls of other threads that the revoke ended have their own handle.
            let _ = channel.free();
        }
        gone.extend(shared.failed_ranks());
        gone.sort_unstable();
        gone.dedup();
        let mut state = lock(&shared.state);
        gone.retain(|&rank| !state.excluded.contains(rank));
        for &rank in &gone {
            state.excluded.insert(rank);
            state.held.remove(&rank);
            state.table.forget_errors(rank);
            state.directories[rank] = None;
        }
        Ok(gone)
    }

    // ---- The memory of this member.

    /// Adds `len` bytes, all zero, to the end of this member's memory. Returns its new length.
    /// Local: other members reach the new bytes as soon as the call has returned. An error changes
    /// nothing.
    pub fn grow(&self, len: u64) -> WindowResult<u64> {
        let shared = &*self.shared;
        let _call = shared.begin()?;
        shared.change_owned(|owned| {
            let begin = Directory { word: 0, ranges: owned.ranges.clone() }.len();
            if len == 0 {
                return Ok(begin);
            }
            let end = begin
                .checked_add(len)
                .filter(|&end| end <= ATTACHED)
                .ok_or_else(|| too_long(len))?;
            let place = reserve_cleared(&shared.job, len)?;
            let mut ranges = owned.ranges.clone();
            ranges.push(WindowRange { begin, len, place });
            if let Err(error) = shared.publish_ranges(owned, ranges) {
                shared.job.release(place, len);
                return Err(error);
            }
            Ok(end)
        })
    }

    /// Shows `len` further bytes, all zero, as a range of their own. Returns the offset of the
    /// range, which [`Window::detach`] and the other members need. It is never used again.
    pub fn attach(&self, len: u64) -> WindowResult<u64> {
        let shared = &*self.shared;
        let _call = shared.begin()?;
        if len == 0 {
            return Err(WindowError::Invalid {
                what: "a range of no bytes cannot be attached".into(),
            });
        }
        shared.change_owned(|owned| {
            let begin = owned.next_attached;
            // The next range begins after a gap, so that an access beyond the end of a range never
            // hits another range.
            let next = begin
                .checked_add(len)
                .and_then(|end| end.checked_next_multiple_of(64)?.checked_add(64));
            let next = next.ok_or_else(|| too_long(len))?;
            let place = reserve_cleared(&shared.job, len)?;
            let mut ranges = owned.ranges.clone();
            ranges.push(WindowRange { begin, len, place });
            if let Err(error) = shared.publish_ranges(owned, ranges) {
                shared.job.release(place, len);
                return Err(error);
            }
            owned.next_attached = next;
            Ok(begin)
        })
    }

    /// Takes away the range that was attached at `offset`. Local, and without waiting: accesses
    /// that begin after the call has returned return [`WindowError::NotAttached`]. An access that
    /// is in progress works on the old memory, and its writes are lost. The memory is reused only
    /// when no member can be inside an access to it any more.
    pub fn detach(&self, offset: u64) -> WindowResult<()> {
        let shared = &*self.shared;
        let _call = shared.begin()?;
        shared.change_owned(|owned| {
            let position =
                owned.ranges.iter().position(|range| range.begin == offset && offset >= ATTACHED);
            let position =
                position.ok_or(WindowError::NotAttached { target: shared.me, offset, len: 0 })?;
            let mut ranges = owned.ranges.clone();
            let WindowRange { place, len, .. } = ranges.remove(position);
            shared.publish_ranges(owned, ranges)?;
            let not_seen_outside = (0..shared.members.len()).collect();
            owned.detached.push(DetachedRange {
                place,
                len,
                not_seen_outside,
                queries: Vec::new(),
            });
            Ok(())
        })
    }

    /// How many bytes of detached ranges are not released yet, because a member might still be
    /// inside an access to them. Checks the members again.
    pub fn bytes_aside(&self) -> WindowResult<u64> {
        let _call = self.shared.begin()?;
        self.shared.change_owned(|owned| Ok(owned.detached.iter().map(|range| range.len).sum()))
    }

    // ---- The end.

    /// Ends the window and releases its memory. All living members call it; it also works if the
    /// window is revoked or members have died.
    ///
    /// [`WindowError::StillLocked`], at all members, if a living member holds a lock (extension 7
    /// of ULFM); the error names the holder. The window then goes on as before. Locks of the dead
    /// do not count.
    ///
    /// After [`WindowError::Timeout`] the window may only be freed: call `free` again to get the
    /// outcome.
    ///
    /// ```
    /// # let job = outlast::join()?;
    /// # let comm = outlast::rma::Communicator::world(&job)?;
    /// # use outlast::rma::{LockKind, Window, WindowError};
    /// let window = Window::allocate(&comm, 64)?;
    /// window.lock(0, LockKind::Shared)?;
    /// match window.free() {
    ///     Err(WindowError::StillLocked { target, holder }) => {
    ///         println!("rank {holder} still holds the lock at rank {target}");
    ///         window.unlock(0)?;
    ///         window.free()?;
    ///     }
    ///     other => other?,
    /// }
    /// # job.leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn free(&self) -> WindowResult<()> {
        let shared = &*self.shared;
        let _deadline = begin_call(&shared.job);
        let before = [PHASE_LIVE, PHASE_UNKNOWN]
            .into_iter()
            .find(|&from| {
                shared
                    .phase
                    .compare_exchange(from, PHASE_FREEING, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok()
            })
            .ok_or(WindowError::Freed)?;
        let freeing = FreeCall { shared, after: std::cell::Cell::new(before) };
        freeing.run()
    }

    /// Completes the operations in flight, releases this member's locks, and frees the window: the
    /// counterpart of [`Window::open`]. All living members call it.
    pub fn close(&self) -> WindowResult<()> {
        let shared = &*self.shared;
        let _deadline = begin_call(&shared.job);
        if shared.phase.load(Ordering::SeqCst) == PHASE_LIVE {
            let _call = shared.begin()?;
            let released = {
                let mut state = lock(&shared.state);
                let targets: Vec<usize> = state.held.keys().copied().collect();
                state.begin_release_of(&targets)
            };
            // Effects that were lost with the dead, and locks that were lost before, do not keep
            // the window from ending.
            match shared.release_all(released) {
                Ok(()) | Err(WindowError::ProcFailed { .. } | WindowError::LockLost { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.free()
    }
}

impl SharedWindow {
    // ---- Checks at the beginning of calls.

    /// Begins a call and counts it, unless the window is freed or being freed.
    fn begin(&self) -> WindowResult<WindowCall<'_>> {
        self.begin_with(begin_call(&self.job))
    }

    /// [`SharedWindow::begin`] with a deadline that the caller has begun.
    fn begin_with(&self, deadline: Deadline) -> WindowResult<WindowCall<'_>> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let call = WindowCall { calls: &self.calls, _deadline: deadline };
        // Loaded after the call was counted: `free` first sets the phase and then waits for calls.
        if self.phase.load(Ordering::SeqCst) == PHASE_LIVE {
            Ok(call)
        } else {
            Err(WindowError::Freed)
        }
    }

    fn check_rank(&self, rank: usize) -> WindowResult<()> {
        let size = self.members.len();
        if rank < size { Ok(()) } else { Err(WindowError::RankOutOfRange { rank, size }) }
    }

    fn check_usable(&self) -> WindowResult<()> {
        if lock(&self.channel).is_revoked() { Err(WindowError::Revoked) } else { Ok(()) }
    }

    fn check_living(&self, target: usize) -> WindowResult<()> {
        if self.is_dead(self.members[target]) {
            return Err(WindowError::ProcFailed { ranks: vec![target] });
        }
        Ok(())
    }

    fn channel(&self) -> Communicator {
        lock(&self.channel).clone()
    }

    // ---- Deaths.

    fn is_dead(&self, member: MemberId) -> bool {
        self.refresh_dead();
        lock(&self.dead).1.contains(member)
    }

    fn dead(&self) -> MemberSet {
        self.refresh_dead();
        lock(&self.dead).1.clone()
    }

    fn refresh_dead(&self) {
        if self.job.epoch() != lock(&self.dead).0 {
            let view = self.job.view();
            let mut dead = lock(&self.dead);
            if view.epoch > dead.0 {
                *dead = (view.epoch, view.dead);
            }
        }
    }

    /// The dead ranks, without the ranks that the window was shrunk by.
    fn failed_ranks(&self) -> Vec<usize> {
        let dead = self.dead();
        let state = lock(&self.state);
        (0..self.members.len())
            .filter(|&rank| dead.contains(self.members[rank]) && !state.excluded.contains(rank))
            .collect()
    }

    /// All ranks, without the ranks that the window was shrunk by.
    fn included(&self) -> impl Iterator<Item = usize> + use<> {
        let excluded = lock(&self.state).excluded.clone();
        (0..self.members.len()).filter(move |&rank| !excluded.contains(rank))
    }

    fn engine_error(&self, error: engine::Error, target: usize) -> WindowError {
        super::Error::from_engine(error, target).into()
    }

    fn timeout(&self, rank: usize, limit: Duration) -> WindowError {
        WindowError::Timeout { rank, member: self.members[rank], limit }
    }

    // ---- Waiting.

    /// Waits until `poll` returns a result, until an event of `ended_by`, or until the time that
    /// `until` returns at the beginning of the wait: then returns the error that `timeout_error`
    /// makes. Sleeps on the bell, and polls again after some milliseconds even if the bell did not
    /// ring.
    fn wait_for<T>(
        &self,
        ended_by: EndedBy,
        until: impl FnOnce() -> Time,
        mut poll: impl FnMut() -> Option<WindowResult<T>>,
        timeout_error: impl FnOnce() -> WindowError,
    ) -> WindowResult<T> {
        if let Some(result) = poll() {
            return result;
        }
        let job = &self.job;
        let until = until();
        let mut nap = NAP_MIN;
        loop {
            let bell = job.bell();
            if ended_by == EndedBy::RevokeOrInterrupt {
                self.check_interrupt()?;
            }
            if let Some(result) = poll() {
                return result;
            }
            if ended_by != EndedBy::Nothing {
                self.check_usable()?;
            }
            if job.has_ended() {
                return Err(WindowError::Engine(engine::Error::Ended));
            }
            let now = job.now();
            if now >= until {
                return Err(timeout_error());
            }
            job.park(bell, until.min(now.after(nap)));
            nap = (nap * 2).min(NAP_MAX);
        }
    }

    /// Takes an interrupt that was sent on the communicator, if there is any.
    fn check_interrupt(&self) -> WindowResult<()> {
        let mut polls = 0;
        let poll = || {
            polls += 1;
            // The first poll comes before the check for interrupts; the second poll ends the wait
            // at once.
            (polls > 1).then_some(Ok(()))
        };
        match self.comm.wait_until(|| self.me, poll) {
            Err(super::Error::Interrupted { by }) => Err(WindowError::Interrupted { by }),
            // A revoked or freed communicator does not end its windows.
            _ => Ok(()),
        }
    }
}

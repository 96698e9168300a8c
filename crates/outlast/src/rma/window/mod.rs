//! Windows: memory that the members of a communicator show to each other, with locks that outlive their holders.
//!
//! Each member of a window lends some memory of its segment. Every member reads and writes all of it one-sidedly:
//! the target takes no part. The target of a call is a rank of the communicator that the window was made on; ranks
//! never change.
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
//! Nothing to the memory of the living. Calls on the dead return [`WindowError::ProcFailed`]; calls over all members
//! do so until [`Window::shrink`]. A lock that a dead member held is taken over by the next one, who is told
//! ([`WindowError::Abandoned`]). No call waits longer than the job's time limit for a living member, and none at all for a
//! dead one.
//!
//! # The parts
//! `layout` is what a window keeps in each segment, `directory` which bytes it shows and how that changes, `lock` the
//! locks, `access` the operations. A window has a communicator of its own, the *channel*, for what is collective:
//! making it, revoking it, freeing it.
//!
//! # Making a window
//! 1. The channel is made, by `duplicate`. If a member dies meanwhile, some may have it and others not; those who have
//!    not return, and no step below can be completed by anybody.
//! 2. Each member reserves and clears its memory. Nobody knows of it yet.
//! 3. All gather where everybody's control block is. Whoever is through knows that all have the channel. If a member
//!    dies, some may have gathered all and others not; those who have not vote no, without waiting, give their memory
//!    back and return.
//! 4. All who are through agree whether everyone is, and whether everyone had memory. After it all members have the
//!    window, or none has, and each gives its memory back. A member that does not hear the outcome in time keeps its
//!    memory reserved for ever: others may have the window, and use it.
//!
//! # Freeing a window
//! 1. Each member completes its operations and agrees that it has arrived. After it no living member is in a call on
//!    the window, and none takes or gives up a lock.
//! 2. Each looks whether a living member holds the lock at its own memory, and whether it holds one itself, and all agree
//!    whether nobody does. If so, each gives its memory back: nothing is on its way that could touch it.
//! 3. Otherwise all look for the first such holder, and agree that they have found it before anyone returns and
//!    unlocks.
//!
//! Each agreement carries the number of its step, so that members that left one by a time limit and come back find
//! out where the others are. Who dies is left out by the agreements. A member that does not hear the outcome of step
//! 2 may not use the window any more, as the others may have freed it; it can only call `free` again.

/// The examples of the page are compiled with the tests.
#[cfg_attr(doctest, doc = include_str!("../../../../../docs/missing-features.md"))]
#[cfg(doctest)]
struct MissingFeatures;

mod access;
mod directory;
mod error;
mod layout;
mod lock;

pub use access::{Update, WindowRequest, Word};
pub use directory::ATTACHED;
pub use error::{WindowError, WindowResult};
pub use lock::LockKind;

use super::Communicator;
use super::group::RankSet;
use crate::engine::{self, Operation};
use crate::sync::lock;
use crate::{Epoch, Job, MemberId, MemberSet, Time};
use access::Table;
use directory::{Aside, Asked, Directory, Owned, Range};
use layout::{DIRECTORY, ENTERED, LEFT, Layout};
use lock::Held;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Memory that the members of a communicator show to each other. See the methods and `docs/missing-features.md`.
///
/// Cheap to clone: all clones are the same window. Any thread may use it; locks belong to the member and not to the
/// thread. Dropping it does nothing: a window ends with [`Window::free`] or [`Window::close`].
#[derive(Clone)]
pub struct Window {
    shared: Arc<Shared>,
}

struct Shared {
    job: Job,
    comm: Communicator,
    /// For what is collective. Replaced when a revoked window is shrunk.
    channel: Mutex<Communicator>,
    me: usize,
    members: Vec<MemberId>,
    layout: Layout,
    /// Where the control block of each rank is.
    controls: Vec<u64>,
    /// Whether accesses need no lock.
    is_open: bool,
    next_ticket: AtomicU64,
    phase: AtomicU32,
    /// How many calls are inside.
    calls: AtomicUsize,
    state: Mutex<State>,
    /// What this member shows. Taken out by whoever changes it.
    owned: Mutex<Option<Owned>>,
    /// The dead that this member knows, and the epoch of that knowledge.
    dead: Mutex<(Epoch, MemberSet)>,
}

#[derive(Default)]
struct State {
    held: BTreeMap<usize, Held>,
    /// The targets where this member's bit among those who share is set.
    shares: RankSet,
    table: Table,
    /// Requests that were dropped while somebody looked after their operation.
    unwanted: BTreeSet<u64>,
    directories: Vec<Option<Arc<Directory>>>,
    /// The dead that the window was shrunk by.
    excluded: RankSet,
}

/// Usable.
const LIVE: u32 = 0;
/// A thread is in `free`.
const FREEING: u32 = 1;
/// `free` has left without knowing its outcome: only `free` may be called.
const UNKNOWN: u32 = 2;
const FREED: u32 = 3;

/// What ends a wait, besides its time limit and the death of whom it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    /// Nothing: it ends something.
    Release,
    /// A revoke.
    Operation,
    /// A revoke or an interrupt.
    Wait,
}

/// Waits look again after this long at first, and at last.
const NAP_MIN: Duration = Duration::from_micros(100);
const NAP_MAX: Duration = Duration::from_millis(5);

/// Memory is cleared in pieces of this length.
const CLEAR_LEN: usize = 1 << 16;

/// A call on a window that is under way.
struct Call<'a>(&'a AtomicUsize);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let revoked = if self.is_revoked() { ", revoked" } else { "" };
        write!(f, "Window(rank {} of {}{revoked})", self.shared.me, self.shared.members.len())
    }
}

impl Window {
    /// Makes a window in which this member shows `len` bytes, all zero; `len` may differ between members. Collective.
    /// Accesses need a lock on their target.
    ///
    /// All members get the window, or none does. A member that dies meanwhile may belong to it.
    pub fn allocate(comm: &Communicator, len: u64) -> WindowResult<Window> {
        Window::make(comm, len, false)
    }

    /// The same with the epoch implied: **the poster's creation with implicit epoch**. Accesses need no lock, from the
    /// beginning on to [`Window::close`]. Locks can be taken all the same, and are respected by those who take them.
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

    fn make(comm: &Communicator, len: u64, is_open: bool) -> WindowResult<Window> {
        let (job, size) = (comm.job().clone(), comm.size());
        let layout = Layout::new(size);
        let channel = comm.duplicate()?;
        let prepared = prepare(&job, layout, len);
        let (control, word, base) = match &prepared {
            Ok((control, owned)) => {
                (*control, owned.word, owned.ranges.first().map_or(0, |base| base.place))
            }
            Err(_) => (0, 0, 0),
        };
        let give_back = |prepared: WindowResult<(u64, Owned)>| {
            if let Ok((control, owned)) = prepared {
                release(&job, layout, control, owned);
            }
        };
        let offer = Offer { is_ready: prepared.is_ok(), is_open, control, word, base, len };
        let gathered = match channel.allgather(&offer.encode()) {
            Ok(all) => check_offers(&all, is_open),
            Err(error) => {
                // Nobody can have the window without this member's vote, so it need not hear the outcome.
                vote_no(&job, &channel);
                give_back(prepared);
                return Err(error.into());
            }
        };
        let is_fine = prepared.is_ok() && gathered.is_ok();
        // On an error the memory stays reserved: others may have the window.
        let agreed = channel.agree_despite_failures(u64::from(is_fine))?;
        if agreed.flags & 1 == 0 {
            let _ = channel.free();
            let own_error = prepared.as_ref().err().cloned();
            give_back(prepared);
            return Err(own_error.or(gathered.err()).unwrap_or(match agreed.failed.is_empty() {
                false => WindowError::ProcFailed { ranks: agreed.failed },
                true => {
                    WindowError::Invalid { what: "another member could not make the window".into() }
                }
            }));
        }
        let (offers, (control, owned)) = (gathered?, prepared?);
        let directories = offers.iter().map(|offer| Some(Arc::new(offer.directory()))).collect();
        let mut controls: Vec<u64> = offers.iter().map(|offer| offer.control).collect();
        let me = comm.rank();
        controls[me] = control;
        let shared = Shared {
            members: comm.members().to_vec(),
            comm: comm.clone(),
            channel: Mutex::new(channel),
            me,
            layout,
            controls,
            is_open,
            next_ticket: AtomicU64::new(1),
            phase: AtomicU32::new(LIVE),
            calls: AtomicUsize::new(0),
            state: Mutex::new(State { directories, ..State::default() }),
            owned: Mutex::new(Some(owned)),
            dead: Mutex::new((Epoch(0), MemberSet::new())),
            job,
        };
        Ok(Window { shared: Arc::new(shared) })
    }

    /// The communicator that it was made on.
    pub fn communicator(&self) -> &Communicator {
        &self.shared.comm
    }

    /// How many bytes from 0 on `target` shows now.
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

    /// Makes the window unusable for all its members, also for those that wait in it now: all calls that are not
    /// local and end nothing say [`WindowError::Revoked`]. Returns at once. [`Window::shrink`] by all survivors makes
    /// the window usable again.
    pub fn revoke(&self) -> WindowResult<()> {
        let _call = self.shared.begin()?;
        Ok(self.shared.channel().revoke()?)
    }

    /// Whether some member has revoked the window: **the poster's query for the revocation state**. Local, and right
    /// also at a member that has made no call since: the news arrives in the background.
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

    /// Goes on without the dead, **without shrinking the communicator**. The memory and the locks of the survivors are
    /// untouched, and ranks stay what they are. Returns the ranks that are left out from now on.
    ///
    /// On a window that is not revoked this is local: from now on [`Window::flush_all`], [`Window::lock_all`] and the
    /// like concern the survivors only, operations on the dead that had failed are forgotten, and so are this
    /// member's locks there. Calls on a dead target still say [`WindowError::ProcFailed`]. Other members shrink when
    /// they like, or never.
    ///
    /// On a revoked window all survivors call it; afterwards it is usable again. Whoever dies meanwhile is left
    /// out, or found dead later.
    ///
    /// ```
    /// # let job = outlast::join()?;
    /// # let comm = outlast::rma::Communicator::world(&job)?;
    /// # use outlast::rma::{Window, WindowError};
    /// let window = Window::open(&comm, 64)?;
    /// for rank in 0..comm.size() {
    ///     let _ = window.put(rank, 0, b"round 1");     // the dead say so at the flush
    /// }
    /// if let Err(WindowError::ProcFailed { .. }) = window.flush_all() {
    ///     let gone = window.shrink()?;                 // same window, same ranks, same communicator
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
            // Calls of other threads that were ended by the revoke have their own handle.
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
            state.table.forgive(rank);
            state.directories[rank] = None;
        }
        Ok(gone)
    }

    // ---- Memory of the own.

    /// Adds `len` bytes, all zero, to the end of this member's memory; how many there are then. Nobody else takes
    /// part: others reach the new bytes as soon as the call has returned. An error changes nothing.
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
            ranges.push(Range { begin, len, place });
            if let Err(error) = shared.publish(owned, ranges) {
                shared.job.release(place, len);
                return Err(error);
            }
            Ok(end)
        })
    }

    /// Shows `len` further bytes, all zero, apart from the others; where they begin. The offset is for
    /// [`Window::detach`] and for telling others. It is never given out again.
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
            // The next one begins behind a gap, so that running over the end of one never hits another.
            let next = begin
                .checked_add(len)
                .and_then(|end| end.checked_next_multiple_of(64)?.checked_add(64));
            let next = next.ok_or_else(|| too_long(len))?;
            let place = reserve_cleared(&shared.job, len)?;
            let mut ranges = owned.ranges.clone();
            ranges.push(Range { begin, len, place });
            if let Err(error) = shared.publish(owned, ranges) {
                shared.job.release(place, len);
                return Err(error);
            }
            owned.next_attached = next;
            Ok(begin)
        })
    }

    /// Takes the range that was attached at `offset` away. Nobody else takes part, and nobody is waited for: accesses
    /// that begin after the call has returned say [`WindowError::NotAttached`]. One that is under way works on the
    /// memory as it was, and what it writes is gone. The memory is used for something else only when no member can be
    /// inside such an access any more.
    pub fn detach(&self, offset: u64) -> WindowResult<()> {
        let shared = &*self.shared;
        let _call = shared.begin()?;
        shared.change_owned(|owned| {
            let position =
                owned.ranges.iter().position(|range| range.begin == offset && offset >= ATTACHED);
            let position =
                position.ok_or(WindowError::NotAttached { target: shared.me, offset, len: 0 })?;
            let mut ranges = owned.ranges.clone();
            let Range { place, len, .. } = ranges.remove(position);
            shared.publish(owned, ranges)?;
            let unseen = (0..shared.members.len()).collect();
            owned.aside.push(Aside { place, len, unseen, asked: Vec::new() });
            Ok(())
        })
    }

    /// How many bytes of detached ranges are kept aside, as somebody might still be inside an access to them. Looks
    /// again who is.
    pub fn bytes_aside(&self) -> WindowResult<u64> {
        let _call = self.shared.begin()?;
        self.shared.change_owned(|owned| Ok(owned.aside.iter().map(|aside| aside.len).sum()))
    }

    // ---- The end.

    /// Ends the window and gives its memory back. All living members call it; it also works if the window is
    /// revoked and whoever has died.
    ///
    /// [`WindowError::StillLocked`], at all members, if one of them holds a lock: **the poster's error for freeing a
    /// locked window**, with the name of the holder. The window then goes on as before. Locks of the dead do not count.
    ///
    /// After [`WindowError::Timeout`] the window may only be freed: call it again to hear the outcome.
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
        let before = [LIVE, UNKNOWN]
            .into_iter()
            .find(|&from| {
                shared
                    .phase
                    .compare_exchange(from, FREEING, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok()
            })
            .ok_or(WindowError::Freed)?;
        let freeing = Freeing { shared, after: std::cell::Cell::new(before) };
        freeing.run()
    }

    /// Completes what is under way, releases this member's locks, and frees the window: the deletion that goes with
    /// [`Window::open`]. All living members call it.
    pub fn close(&self) -> WindowResult<()> {
        let shared = &*self.shared;
        if shared.phase.load(Ordering::SeqCst) == LIVE {
            let _call = shared.begin()?;
            let released = {
                let mut state = lock(&shared.state);
                let targets: Vec<usize> = state.held.keys().copied().collect();
                state.begin_release_of(&targets)
            };
            // What is lost with the dead, or was lost before, does not keep the window from ending.
            match shared.release_all(released) {
                Ok(()) | Err(WindowError::ProcFailed { .. } | WindowError::LockLost { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.free()
    }
}

/// Votes against making a window, for the sake of those who wait for the vote. Not in the calling activity: if some
/// member has no channel, nobody waits for votes and the agreement ends only at the time limit.
fn vote_no(job: &Job, channel: &Communicator) {
    let voter = channel.clone();
    let vote = move || {
        let _ = voter.agree_despite_failures(0);
        let _ = voter.free();
    };
    if job.spawn("vote", Box::new(vote)).is_err() {
        let _ = channel.agree_despite_failures(0);
    }
}

/// What a member tells the others when a window is made.
struct Offer {
    is_ready: bool,
    is_open: bool,
    control: u64,
    word: u64,
    base: u64,
    len: u64,
}

impl Offer {
    fn encode(&self) -> Vec<u8> {
        let words = [
            u64::from(self.is_ready),
            u64::from(self.is_open),
            self.control,
            self.word,
            self.base,
            self.len,
        ];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Offer> {
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
            .collect();
        let [is_ready, is_open, control, word, base, len] = words[..] else { return None };
        Some(Offer { is_ready: is_ready == 1, is_open: is_open == 1, control, word, base, len })
    }

    fn directory(&self) -> Directory {
        Directory { word: self.word, ranges: base_ranges(self.base, self.len) }
    }
}

fn base_ranges(place: u64, len: u64) -> Vec<Range> {
    if len == 0 { Vec::new() } else { vec![Range { begin: 0, len, place }] }
}

/// What the members have offered, if it makes a window.
fn check_offers(all: &[Vec<u8>], is_open: bool) -> WindowResult<Vec<Offer>> {
    let refuse = |what: String| Err(WindowError::Invalid { what });
    let mut offers = Vec::with_capacity(all.len());
    for (rank, bytes) in all.iter().enumerate() {
        match Offer::decode(bytes) {
            None => return refuse(format!("rank {rank} does something else than making a window")),
            Some(offer) if !offer.is_ready => {
                return refuse(format!("rank {rank} could not reserve memory for the window"));
            }
            Some(offer) if offer.is_open != is_open => {
                return refuse(format!(
                    "rank {rank} calls Window::{}, and this one the other",
                    if offer.is_open { "open" } else { "allocate" }
                ));
            }
            Some(offer) => offers.push(offer),
        }
    }
    Ok(offers)
}

fn too_long(len: u64) -> WindowError {
    WindowError::Engine(engine::Error::OutOfMemory {
        wanted: len,
        reason: "no window can be that long".into(),
    })
}

/// Reserves and clears a member's control block and memory.
fn prepare(job: &Job, layout: Layout, len: u64) -> WindowResult<(u64, Owned)> {
    if len > ATTACHED {
        return Err(too_long(len));
    }
    let control = reserve_cleared(job, layout.len())?;
    let mut owned = Owned {
        ranges: Vec::new(),
        word: 0,
        block: (0, 0),
        next_attached: ATTACHED,
        aside: Vec::new(),
    };
    let filled = (|| {
        if len > 0 {
            owned.ranges = base_ranges(reserve_cleared(job, len)?, len);
        }
        write_block(job, control, &mut owned)
    })();
    match filled {
        Ok(()) => Ok((control, owned)),
        Err(error) => {
            release(job, layout, control, owned);
            Err(error)
        }
    }
}

/// Gives everything back that a member has reserved for a window.
fn release(job: &Job, layout: Layout, control: u64, owned: Owned) {
    job.release(control, layout.len());
    if owned.block.1 > 0 {
        job.release(owned.block.0, owned.block.1);
    }
    owned.ranges.iter().for_each(|range| job.release(range.place, range.len));
    owned.aside.iter().for_each(|aside| job.release(aside.place, aside.len));
}

fn reserve_cleared(job: &Job, len: u64) -> WindowResult<u64> {
    let place = job.reserve(len)?;
    if place > directory::PLACE_MAX {
        job.release(place, len);
        return Err(too_long(len));
    }
    let zeros = vec![0; (len as usize).min(CLEAR_LEN)];
    let mut at = 0;
    while at < len {
        let piece = (len - at).min(CLEAR_LEN as u64);
        if let Err(error) = job.put(Epoch::ANY, job.me(), place + at, &zeros[..piece as usize]) {
            job.release(place, len);
            return Err(error.into());
        }
        at += piece;
    }
    Ok(place)
}

/// Steps 1 to 3 of a change of the directory: see `directory`. The ranges of `owned` are the new ones already.
fn write_block(job: &Job, control: u64, owned: &mut Owned) -> WindowResult<()> {
    let bytes = directory::encode(&owned.ranges);
    let len = bytes.len() as u64;
    let place = job.reserve(len)?;
    let write = || {
        if place > directory::PLACE_MAX {
            return Err(too_long(len));
        }
        job.put(Epoch::ANY, job.me(), place, &bytes)?;
        let word = directory::next_word(owned.word, place);
        job.compare_and_swap(Epoch::ANY, job.me(), control + DIRECTORY, owned.word, word)?;
        Ok(word)
    };
    match write() {
        Ok(word) => {
            owned.word = word;
            let old = std::mem::replace(&mut owned.block, (place, len));
            if old.1 > 0 {
                job.release(old.0, old.1);
            }
            Ok(())
        }
        Err(error) => {
            job.release(place, len);
            Err(error)
        }
    }
}

impl Shared {
    // ---- What calls begin with.

    /// Counts a call, unless the window is gone.
    fn begin(&self) -> WindowResult<Call<'_>> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let call = Call(&self.calls);
        // Looked at after the call was counted: `free` first says so and then looks for calls.
        if self.phase.load(Ordering::SeqCst) == LIVE { Ok(call) } else { Err(WindowError::Freed) }
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

    // ---- Who is dead.

    fn is_dead(&self, member: MemberId) -> bool {
        self.look_at_view();
        lock(&self.dead).1.contains(member)
    }

    fn dead(&self) -> MemberSet {
        self.look_at_view();
        lock(&self.dead).1.clone()
    }

    fn look_at_view(&self) {
        if self.job.epoch() != lock(&self.dead).0 {
            let view = self.job.view();
            let mut dead = lock(&self.dead);
            if view.epoch > dead.0 {
                *dead = (view.epoch, view.dead);
            }
        }
    }

    /// The dead that the window has not been shrunk by.
    fn failed_ranks(&self) -> Vec<usize> {
        let dead = self.dead();
        let state = lock(&self.state);
        (0..self.members.len())
            .filter(|&rank| dead.contains(self.members[rank]) && !state.excluded.contains(rank))
            .collect()
    }

    /// The ranks that the window has not been shrunk by.
    fn included(&self) -> impl Iterator<Item = usize> + use<> {
        let excluded = lock(&self.state).excluded.clone();
        (0..self.members.len()).filter(move |&rank| !excluded.contains(rank))
    }

    fn refused(&self, error: engine::Error, target: usize) -> WindowError {
        match error {
            engine::Error::Dead { .. } => WindowError::ProcFailed { ranks: vec![target] },
            engine::Error::Timeout { limit, .. } => self.timeout(target, limit),
            other => WindowError::Engine(other),
        }
    }

    fn timeout(&self, rank: usize, limit: Duration) -> WindowError {
        WindowError::Timeout { rank, member: self.members[rank], limit }
    }

    // ---- Waiting.

    /// Waits until `look` has something, until what `patience` says, or until `until`: then what `late` says. Sleeps
    /// on the bell, and looks again after some milliseconds even if it did not ring.
    fn wait_for<T>(
        &self,
        patience: Patience,
        until: Time,
        mut look: impl FnMut() -> Option<WindowResult<T>>,
        late: impl FnOnce() -> WindowError,
    ) -> WindowResult<T> {
        if let Some(result) = look() {
            return result;
        }
        let job = &self.job;
        let mut nap = NAP_MIN;
        loop {
            let bell = job.bell();
            if patience == Patience::Wait {
                self.check_interrupt()?;
            }
            if let Some(result) = look() {
                return result;
            }
            if patience != Patience::Release {
                self.check_usable()?;
            }
            if job.has_ended() {
                return Err(WindowError::Engine(engine::Error::Ended));
            }
            let now = job.now();
            if now >= until {
                return Err(late());
            }
            job.park(bell, until.min(now.after(nap)));
            nap = (nap * 2).min(NAP_MAX);
        }
    }

    /// Takes an interrupt that was sent on the communicator, if there is one.
    fn check_interrupt(&self) -> WindowResult<()> {
        let mut looks = 0;
        let look = || {
            looks += 1;
            // The first look comes before interrupts are looked for, the second one ends the wait at once.
            (looks > 1).then_some(Ok(()))
        };
        match self.comm.wait_until(|| self.me, look) {
            Err(super::Error::Interrupted { by }) => Err(WindowError::Interrupted { by }),
            // A revoked or freed communicator does not end its windows.
            _ => Ok(()),
        }
    }

    // ---- Directories.

    fn known_directory(&self, target: usize) -> Option<Arc<Directory>> {
        lock(&self.state).directories[target].clone()
    }

    /// Reads the directory of a target and keeps it.
    fn read_directory(&self, target: usize) -> WindowResult<Arc<Directory>> {
        let member = self.members[target];
        loop {
            let word = self.load(target, DIRECTORY)?;
            if let Some(known) = self.known_directory(target).filter(|known| known.word == word) {
                return Ok(known);
            }
            let place = directory::place_of(word);
            let mut bytes = vec![0; directory::block_len(0)];
            let mut read = self.job.get(Epoch::ANY, member, place, &mut bytes);
            if self.load(target, DIRECTORY)? != word {
                continue;
            }
            let count = directory::count(&bytes);
            if read.is_ok() && count > directory::RANGES_MIN {
                // The word is the same, so the count is one that the owner wrote.
                bytes = vec![0; directory::block_len(count)];
                read = self.job.get(Epoch::ANY, member, place, &mut bytes);
                if self.load(target, DIRECTORY)? != word {
                    continue;
                }
            }
            read.map_err(|error| self.refused(error, target))?;
            let directory = Arc::new(Directory { word, ranges: directory::decode(&bytes) });
            lock(&self.state).directories[target] = Some(directory.clone());
            return Ok(directory);
        }
    }

    /// Changes what this member shows; one thread at a time. Also looks which memory that is aside can be given back.
    fn change_owned<T>(
        &self,
        change: impl FnOnce(&mut Owned) -> WindowResult<T>,
    ) -> WindowResult<T> {
        self.check_usable()?;
        let until = self.job.now().after(self.job.time_limit());
        let take = || lock(&self.owned).take().map(Ok);
        let mut owned = self.wait_for(Patience::Operation, until, take, || {
            self.timeout(self.me, self.job.time_limit())
        })?;
        let result = {
            self.sweep(&mut owned);
            let result = change(&mut owned);
            self.sweep(&mut owned);
            result
        };
        *lock(&self.owned) = Some(owned);
        result
    }

    /// Makes these the ranges that this member shows.
    fn publish(&self, owned: &mut Owned, mut ranges: Vec<Range>) -> WindowResult<()> {
        if ranges.len() > directory::RANGES_MAX {
            return Err(WindowError::Invalid {
                what: format!("more than {} ranges in one window", directory::RANGES_MAX),
            });
        }
        ranges.sort_by_key(|range| range.begin);
        let old = std::mem::replace(&mut owned.ranges, ranges);
        write_block(&self.job, self.controls[self.me], owned).inspect_err(|_| owned.ranges = old)
    }

    /// Gives back the memory of detached ranges that nobody can touch any more; see `directory`. Waits for nobody:
    /// who has not answered is looked at next time.
    fn sweep(&self, owned: &mut Owned) {
        owned.aside.retain_mut(|aside| {
            aside.unseen.retain(|&rank| !self.is_dead(self.members[rank]));
            for &rank in &aside.unseen {
                if !aside.asked.iter().any(|asked| asked.rank == rank) {
                    // In this order, and operations on one target take effect in their order.
                    let pending = [LEFT, ENTERED].map(|word| {
                        let offset = self.controls[rank] + word;
                        Some(self.job.start(
                            Epoch::ANY,
                            self.members[rank],
                            Operation::Load { offset },
                        ))
                    });
                    aside.asked.push(Asked { rank, pending, found: [None; 2] });
                }
            }
            let (asked, unseen) = (&mut aside.asked, &mut aside.unseen);
            asked.retain_mut(|asked| {
                for (pending, found) in asked.pending.iter_mut().zip(&mut asked.found) {
                    if let Some(result) =
                        pending.as_mut().and_then(|pending| self.job.poll(pending))
                    {
                        *pending = None;
                        *found = result.ok().map(engine::Done::word);
                    }
                }
                if asked.pending.iter().any(Option::is_some) {
                    return true;
                }
                if let [Some(left), Some(entered)] = asked.found
                    && left == entered
                {
                    unseen.retain(|&rank| rank != asked.rank);
                }
                // Still inside, or not answered: asked anew next time.
                false
            });
            if aside.unseen.is_empty() {
                self.job.release(aside.place, aside.len);
            }
            !aside.unseen.is_empty()
        });
    }
}

/// A thread in `free`.
struct Freeing<'a> {
    shared: &'a Shared,
    /// What the window is when the thread leaves.
    after: std::cell::Cell<u32>,
}

impl Drop for Freeing<'_> {
    fn drop(&mut self) {
        self.shared.phase.store(self.after.get(), Ordering::SeqCst);
    }
}

/// What an agreement of one step has given.
enum Step {
    All,
    NotAll,
    /// The members were in different steps: all start over.
    Mixed,
}

impl Freeing<'_> {
    fn run(&self) -> WindowResult<()> {
        let shared = self.shared;
        let channel = shared.channel();
        // Who comes back without knowing the outcome of step 2 has voted in it already.
        let mut is_awaiting = self.after.get() == UNKNOWN;
        let until = shared.job.now().after(shared.job.time_limit());
        let no_calls = || (shared.calls.load(Ordering::SeqCst) == 0).then_some(Ok(()));
        shared.wait_for(Patience::Release, until, no_calls, || {
            shared.timeout(shared.me, shared.job.time_limit())
        })?;
        loop {
            let mut is_fine = true;
            if !is_awaiting {
                shared.drain(until)?;
                if let Step::Mixed = self.agree(&channel, 1, true)? {
                    continue;
                }
                // Its own locks elsewhere too: the others may have looked, and voted, while this member was out of
                // `free` after a time limit.
                is_fine = shared.locked_by(shared.me)?.is_none() && !shared.holds_lock()?;
                // From the vote on, others may free the window without this member hearing of it.
                self.after.set(UNKNOWN);
            }
            is_awaiting = false;
            match self.agree(&channel, 2, is_fine)? {
                Step::Mixed => {
                    self.after.set(LIVE);
                    continue;
                }
                Step::All => break,
                Step::NotAll => self.after.set(LIVE),
            }
            let found = self.find_holder()?;
            if let Step::All = self.agree(&channel, 3, found.is_some())?
                && let Some((target, holder)) = found
            {
                return Err(WindowError::StillLocked { target, holder });
            }
        }
        self.after.set(FREED);
        let owned = lock(&shared.owned).take();
        if let Some(owned) = owned {
            release(&shared.job, shared.layout, shared.controls[shared.me], owned);
        }
        let _ = channel.free();
        Ok(())
    }

    /// Agrees on a step: whether `is_fine` holds at all members.
    fn agree(&self, channel: &Communicator, step: u32, is_fine: bool) -> WindowResult<Step> {
        let steps = 0b1110;
        loop {
            let flags = channel.agree_despite_failures(u64::from(is_fine) | 1 << step)?.flags;
            match flags & steps {
                0 => return Ok(Step::Mixed),
                named if named == 1 << step => {
                    return Ok(if flags & 1 == 1 { Step::All } else { Step::NotAll });
                }
                // The outcome of an earlier step, that this member had left by a time limit.
                _ => continue,
            }
        }
    }

    /// The first target whose lock a living member holds, and who. Locks do not change meanwhile.
    fn find_holder(&self) -> WindowResult<Option<(usize, usize)>> {
        let shared = self.shared;
        for target in 0..shared.members.len() {
            match shared.locked_by(target) {
                Ok(Some(holder)) => return Ok(Some((target, holder))),
                Ok(None) | Err(WindowError::ProcFailed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

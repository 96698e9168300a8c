//! An experiment, `OUTLAST_MPI_PATH=rma`: segments are reached by MPI's passive-target RMA, in
//! order to measure the way of the published store. The engine never chooses this path by itself,
//! and the promises of the store are not made for it.
//!
//! Each rank is a node of its own, as with `OUTLAST_MPI_PATH=messages`. Operations on segments go
//! through a *single window*. It is made at joining, and covers all that each member's segment may
//! become. Operations on the member's own segment use it too, so that every word is changed in a
//! single way. Everything else (views, deaths, messages, bells, leaving) still travels in frames
//! (`core.rs`). All ranks are contacted at joining: the first contact waits inside MPI, and must be
//! with a living rank.
//!
//! # Operations
//! A put is an MPI_Rput, a get and a load are an MPI_Rget. Their requests are tested, and given up
//! when the view says that the target is dead; their buffers then belong to MPI for ever. A swap is
//! an MPI_Compare_and_swap and an MPI_Win_flush, since it has no form with a request. A
//! fetch-and-add is a load, followed by swaps until a swap succeeds. MPI_Fetch_and_op is not used:
//! in Open MPI 5.0 it holds a lock at the target and, on the caller's own memory, is not atomic
//! with the swaps of other members.
//!
//! MPI orders nothing, so a single operation at a time is in flight to each target, in the order in
//! which operations were started. The access begins with MPI_Win_lock for each target and not with
//! MPI_Win_lock_all: after the latter a flush waits for the operations on *all* targets, dead
//! targets included.
//!
//! # What Open MPI makes of it
//! The component is osc/rdma over active messages, both on a host (btl/sm) and between hosts
//! (btl/tcp). The *target's* processor does the work when it is inside MPI, and answers. So an
//! MPI_Rput is complete at the target when its request is complete, which the standard does not
//! promise. And a member serves all other members by its calls of the engine or its background
//! thread. Between hosts a swap is a single message, executed by an atomic instruction of the
//! target. On a host it is a lock of the target in shared memory, a get, a put and an unlock. A
//! member that dies in between leaves the target locked for ever, and the next member that swaps
//! there is stuck. Plain puts do not take that lock, so a put to a word that another member swaps
//! at that moment may be lost.
//!
//! # The epoch
//! The target cannot be asked to check the epoch. So the caller reads the target's epoch word
//! through the window. Before the operation it does so until the word equals the caller's epoch, or
//! the caller's epoch has risen (`Stale`). After the operation, if the word has risen meanwhile, it
//! waits until its own epoch has followed. A check at the target would refuse some cases that this
//! leaves open:
//! - Equal epochs are taken for equal views, which is wrong while two deaths are on their way to
//!   two members.
//! - An operation that was in flight when its caller died is executed late, under any view, since
//!   the target does not see its caller.
//! - A word may be torn by a put or a get that does not begin at a multiple of eight.
//!
//! # A cut link
//! MPI serves the memory of a member without asking for its lease (`quorum.rs`). On this path a
//! member that was cut off may still be read by members that are cut off with it.
//!
//! # The watchdog, and its cascade
//! A call may stay inside MPI for ever: a swap on a dead target, a swap on a target that a dead
//! member has locked, or the start of any operation on a peer with a broken connection before any
//! member knows that it is broken. A thread watches the calls. When a call has not returned within
//! the bound, it writes a line to standard error and ends the process by SIGKILL. So no member
//! hangs. But that death is a further failure in the middle of calls. It may leave other members
//! stuck, which die in this way a bound later, down to the last member. A target that is merely
//! stopped for that long also ends the members that swap on it.

use super::join::{mpi_error, poll_for_all};
use crate::engine::JoinError;
use crate::engine::shm::Shm;
use crate::engine::{
    Completer, Done, Engine, Epoch, Error, MemberId, MemberSet, Operation, Pending, Result,
};
use crate::sync::lock;
use outlast_mpi_sys::{self as mpi, Comm, Request, Window};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The longest time that a call may be inside MPI, unless the time limit of the job is shorter.
const STUCK_MAX: Duration = Duration::from_secs(5);

/// The watchdog counts the bound in so many steps. Time in which the whole process was stopped
/// counts as a single step.
const STEPS: u32 = 20;

/// The longest sleep between two tests. Other members' operations on this member's memory are
/// executed inside the tests, and MPI does not tell whether there were any, so the tests cannot
/// become more frequent when there are.
pub(super) const SLEEP_MAX: Duration = Duration::from_micros(100);

/// The most bytes that a call of MPI moves.
const PIECE_LEN_MAX: usize = 1 << 30;

/// Whether `OUTLAST_MPI_PATH=rma` is set.
pub(super) fn is_wanted() -> bool {
    std::env::var("OUTLAST_MPI_PATH").is_ok_and(|path| path == "rma")
}

// ---- The watchdog.

/// A path to other members. Each path has a lock, so a single activity at a time is inside MPI on
/// it.
#[derive(Clone, Copy)]
pub(super) enum Path {
    Frames = 0,
    Window = 1,
}

/// By path: the number of the call that is inside MPI, or 0. Numbers never repeat. All orderings
/// here are relaxed: the watchdog only compares numbers, and no other data depends on them.
static INSIDE: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
/// The number of calls so far.
static CALLS: AtomicU64 = AtomicU64::new(0);
/// Whether the watchdog runs.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// A call of MPI that the watchdog watches until this is dropped.
pub(super) struct Watched {
    path: Path,
    /// The call in which this call is nested.
    outer: u64,
}

/// Tells the watchdog that the caller is inside MPI. Does nothing if there is no watchdog, that is
/// without `OUTLAST_MPI_PATH=rma`.
pub(super) fn watch(path: Path) -> Option<Watched> {
    IS_WATCHED.load(Ordering::Relaxed).then(|| {
        let call = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
        Watched { path, outer: INSIDE[path as usize].swap(call, Ordering::Relaxed) }
    })
}

impl Drop for Watched {
    fn drop(&mut self) {
        INSIDE[self.path as usize].store(self.outer, Ordering::Relaxed);
    }
}

/// Ends this process when a call has been inside MPI for longer than `bound`.
fn run_watchdog(me: MemberId, bound: Duration) {
    let mut seen = [(0, 0); INSIDE.len()];
    loop {
        std::thread::sleep(bound / STEPS);
        for (word, (call, steps)) in INSIDE.iter().zip(&mut seen) {
            let now = word.load(Ordering::Relaxed);
            *steps = if now != 0 && now == *call { *steps + 1 } else { 0 };
            *call = now;
            if *steps >= STEPS {
                Shm::end_with(&format!(
                    "outlast: {me} has been inside a call of MPI for {bound:?}, which does not \
                     return after a failure (OUTLAST_MPI_PATH=rma); ending this process. Without \
                     that variable this does not happen.\n"
                ));
            }
        }
    }
}

// ---- Operations.

/// What an operation does.
enum Kind {
    Put,
    Get,
    Load,
    Swap { expected: u64, new: u64 },
    Add(u64),
}

/// The next step of an operation, once MPI has completed the previous step.
enum Stage {
    /// Check the range against the target's segment length, as far as it is known.
    Fit,
    /// Check the range against the segment length that was just read.
    Measured,
    /// Read the target's epoch.
    Check,
    /// Compare the target's epoch, which was just read, with the caller's.
    Checked,
    /// Execute the operation, from this byte on.
    Act(usize),
    /// The operation was executed up to this byte.
    Acted(usize),
    /// Add to the word that was just read.
    Add,
    /// The operation was executed, and the target's epoch was read again.
    CheckedAgain(Done),
}

/// An operation in a lane's queue.
struct Op {
    at: Epoch,
    /// The range in the target's segment.
    offset: u64,
    len: usize,
    kind: Kind,
    stage: Stage,
    /// The bytes to put, or the bytes read so far.
    bytes: Vec<u8>,
    completer: Completer,
}

/// The operations on a target. The operation at the front is in flight.
struct Lane {
    target: usize,
    /// Whether the target is this member: then there is no second view to compare with.
    is_own: bool,
    queue: VecDeque<Op>,
    /// The request of the operation at the front.
    request: Option<Request>,
    /// Receives words that are read. On the heap, since MPI writes there.
    word: Box<[u8; 8]>,
    /// Whether MPI has refused a call: the target has probably failed, and its death is awaited.
    is_refused: bool,
    /// Where the segment begins in the target's window.
    segment: u64,
    /// The last known length of the segment.
    segment_len: u64,
}

impl Lane {
    fn new(target: usize, is_own: bool, segment: u64) -> Lane {
        Lane {
            target,
            is_own,
            queue: VecDeque::new(),
            request: None,
            word: Box::default(),
            is_refused: false,
            segment,
            segment_len: 0,
        }
    }

    /// Takes the next steps of the operations, as far as possible without waiting (swaps excepted);
    /// whether there were any.
    fn advance(&mut self, node: &Shm, window: Window, failed: &mut Failed) -> bool {
        let mut has_moved = false;
        loop {
            if let Some(request) = &mut self.request {
                let _watched = watch(Path::Window);
                match request.test() {
                    Ok(false) => return has_moved,
                    Ok(true) => self.request = None,
                    Err(_) => {
                        self.give_up_request();
                        self.is_refused = true;
                    }
                }
                has_moved = true;
            }
            // MPI must not be called for a failed target, whether or not it is dead in the view
            // yet.
            if self.queue.is_empty() || self.is_refused || failed.contains(self.target) {
                return has_moved;
            }
            let result = {
                let _watched = watch(Path::Window);
                self.step(node, window)
            };
            match result {
                Ok(None) => {}
                Ok(Some(result)) => {
                    if let Some(op) = self.queue.pop_front() {
                        op.completer.complete(result);
                    }
                }
                Err(_) => self.is_refused = true,
            }
            has_moved = true;
        }
    }

    /// Takes the next step of the operation at the front; its result if that was the last step.
    fn step(&mut self, node: &Shm, window: Window) -> mpi::Result<Option<Result<Done>>> {
        let (target, segment) = (self.target, self.segment);
        let Some(op) = self.queue.front_mut() else { return Ok(None) };
        let is_begun =
            !matches!(op.stage, Stage::Fit | Stage::Measured | Stage::Check | Stage::Checked);
        if !is_begun && op.completer.is_forgotten() {
            return Ok(Some(Err(Error::Ended)));
        }
        // A wild offset is refused before it is used.
        let place = segment.wrapping_add(op.offset);
        let is_checked = op.at != Epoch::ANY && !self.is_own;
        let word = u64::from_ne_bytes(*self.word);
        let fits = |len: u64| {
            Operation::Get { offset: op.offset, len: op.len }.check(MemberId(target as u32), len)
        };
        let done = match std::mem::replace(&mut op.stage, Stage::Fit) {
            Stage::Fit if fits(self.segment_len).is_ok() => {
                op.stage = Stage::Check;
                return Ok(None);
            }
            Stage::Fit => {
                op.stage = Stage::Measured;
                let at = Shm::exposed_segment_len(MemberId(target as u32));
                return self.read_word(window, at).map(|()| None);
            }
            Stage::Measured => {
                if let Err(error) = fits(word) {
                    return Ok(Some(Err(error)));
                }
                self.segment_len = word;
                op.stage = Stage::Check;
                return Ok(None);
            }
            Stage::Check if is_checked => {
                op.stage = Stage::Checked;
                return self.read_word(window, Shm::EXPOSED_EPOCH).map(|()| None);
            }
            Stage::Check => {
                op.stage = Stage::Act(0);
                return Ok(None);
            }
            Stage::Checked if node.epoch() != op.at => {
                return Ok(Some(Err(Error::Stale { now: node.epoch() })));
            }
            Stage::Checked => {
                // If they differ, either member knows of a death that the other will soon learn of.
                op.stage = if word == op.at.0 { Stage::Act(0) } else { Stage::Check };
                return Ok(None);
            }
            Stage::Act(from) => {
                node.step();
                let upto = op.len.min(from + PIECE_LEN_MAX);
                op.stage = Stage::Acted(upto);
                match op.kind {
                    _ if op.len == 0 => {}
                    Kind::Put => {
                        // SAFETY: the bytes are on the heap, are not changed, and are freed only
                        // after the request is complete; otherwise `give_up_request` leaks them.
                        let request = unsafe {
                            window.rput(&op.bytes[from..upto], target, place + from as u64)
                        }?;
                        self.request = Some(request);
                    }
                    Kind::Get => {
                        // Allocated only now: the range is known to be valid.
                        op.bytes.resize(op.len, 0);
                        let piece = &mut op.bytes[from..upto];
                        // SAFETY: as above, and they are not read before.
                        self.request =
                            Some(unsafe { window.rget(piece, target, place + from as u64) }?);
                    }
                    Kind::Load => return self.read_word(window, place).map(|()| None),
                    Kind::Add(_) => {
                        op.stage = Stage::Add;
                        return self.read_word(window, place).map(|()| None);
                    }
                    Kind::Swap { expected, new } => {
                        *self.word =
                            window.compare_and_swap(target, place, expected, new)?.to_ne_bytes();
                    }
                }
                return Ok(None);
            }
            Stage::Acted(upto) if upto < op.len => {
                op.stage = Stage::Act(upto);
                return Ok(None);
            }
            Stage::Acted(_) => match op.kind {
                Kind::Put => Done::Put,
                Kind::Get => Done::Get(std::mem::take(&mut op.bytes)),
                _ => Done::Word(word),
            },
            Stage::Add => {
                let Kind::Add(delta) = op.kind else { unreachable!("only adding comes here") };
                let found =
                    window.compare_and_swap(target, place, word, word.wrapping_add(delta))?;
                *self.word = found.to_ne_bytes();
                if found != word {
                    op.stage = Stage::Add;
                    return Ok(None);
                }
                Done::Word(word)
            }
            // The view has changed during the operation: its caller must find its own epoch raised.
            Stage::CheckedAgain(done) if word > op.at.0 && node.epoch() == op.at => done,
            Stage::CheckedAgain(done) => return Ok(Some(Ok(done))),
        };
        if !is_checked {
            return Ok(Some(Ok(done)));
        }
        op.stage = Stage::CheckedAgain(done);
        self.read_word(window, Shm::EXPOSED_EPOCH).map(|()| None)
    }

    /// Begins to read a word of the target's window.
    fn read_word(&mut self, window: Window, at: u64) -> mpi::Result<()> {
        // SAFETY: the word is on the heap, is read only after the request is complete, and is
        // leaked if the request is given up.
        self.request = Some(unsafe { window.rget(&mut self.word[..], self.target, at) }?);
        Ok(())
    }

    /// Abandons the request, and leaks the bytes that MPI may still read or write.
    fn give_up_request(&mut self) {
        if self.request.take().is_some() {
            std::mem::forget(std::mem::take(&mut self.word));
            if let Some(op) = self.queue.front_mut() {
                std::mem::forget(std::mem::take(&mut op.bytes));
            }
        }
    }

    /// Ends all operations to this target.
    fn fail(&mut self, error: impl Fn() -> Error) {
        self.give_up_request();
        for op in self.queue.drain(..) {
            op.completer.complete(Err(error()));
        }
    }
}

/// The ranks that MPI calls failed.
struct Failed {
    comm: Comm,
    ranks: Vec<i32>,
}

impl Failed {
    fn contains(&mut self, target: usize) -> bool {
        let failed = self.comm.get_failed(&mut self.ranks);
        failed.is_ok_and(|failed| failed.contains(&(target as i32)))
    }
}

/// The lanes to all members.
struct Lanes {
    window: Window,
    failed: Failed,
    all: Vec<Lane>,
    /// The epoch up to which the lanes of dead members were ended.
    seen_epoch: u64,
    dead: MemberSet,
}

/// The window, and the operations in flight in it.
pub(super) struct OneSided(Mutex<Lanes>);

impl OneSided {
    /// Makes the window, contacts all ranks, and starts the watchdog.
    pub(super) fn open(
        comm: Comm,
        node: &Shm,
        until: Instant,
        limit: Duration,
    ) -> std::result::Result<OneSided, JoinError> {
        let (base, len, segment) = node.expose();
        let mut gather = mpi::Gather::begin(comm, node.members(), [segment]).map_err(mpi_error)?;
        let segments = poll_for_all(until, limit, || gather.poll())?;
        let (base, members) = (base as usize, node.members());
        let make = move || -> mpi::Result<Window> {
            // SAFETY: the memory of the job stays mapped, and tolerates any change.
            let window = unsafe { Window::create(comm, base as *mut u8, len) }?;
            (0..members).try_for_each(|target| window.lock(target))?;
            Ok(window)
        };
        // Both calls wait for all other ranks. They are made in a thread that may be left behind.
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .name("outlast-window".into())
            .spawn(move || sender.send(make()))
            .map_err(|error| JoinError::System { what: "starting a thread", error })?;
        let window = receiver
            .recv_timeout(until.saturating_duration_since(Instant::now()))
            .map_err(|_| JoinError::Mpi {
                reason: format!(
                    "no window of all ranks was made within {limit:?}; is OUTLAST_MPI_PATH=rma set \
                     for every rank, and do all live?"
                ),
            })?
            .map_err(mpi_error)?;
        let (me, bound) = (node.me(), STUCK_MAX.min(limit));
        std::thread::Builder::new()
            .name("outlast-watch".into())
            .spawn(move || run_watchdog(me, bound))
            .map_err(|error| JoinError::System { what: "starting the watchdog", error })?;
        IS_WATCHED.store(true, Ordering::Relaxed);
        let lane = |(target, [segment]): (usize, [u64; 1])| {
            Lane::new(target, target == me.index(), segment)
        };
        Ok(OneSided(Mutex::new(Lanes {
            window,
            failed: Failed { comm, ranks: vec![0; members] },
            all: segments.into_iter().enumerate().map(lane).collect(),
            seen_epoch: 0,
            dead: MemberSet::new(),
        })))
    }

    /// Starts an operation on a member that exists and is not known to be dead.
    pub(super) fn start(
        &self,
        node: &Shm,
        at: Epoch,
        target: MemberId,
        operation: Operation<'_>,
    ) -> Pending {
        let (pending, completer) = Pending::later(target);
        let (offset, len) = operation.range();
        let (kind, bytes) = match operation {
            Operation::Put { data, .. } => (Kind::Put, data.to_vec()),
            Operation::Get { .. } => (Kind::Get, Vec::new()),
            Operation::Load { .. } => (Kind::Load, Vec::new()),
            Operation::CompareAndSwap { expected, new, .. } => {
                (Kind::Swap { expected, new }, Vec::new())
            }
            Operation::FetchAdd { delta, .. } => (Kind::Add(delta), Vec::new()),
        };
        let op = Op { at, offset, len, kind, stage: Stage::Fit, bytes, completer };
        let mut lanes = lock(&self.0);
        lanes.all[target.index()].queue.push_back(op);
        lanes.apply_deaths(node);
        lanes.advance(node, target.index());
        pending
    }

    /// Moves data, unless another activity does so; whether any data moved.
    pub(super) fn progress(&self, node: &Shm) -> bool {
        if node.is_forked() || node.has_ended() {
            return false;
        }
        let Ok(mut lanes) = self.0.try_lock() else { return false };
        let mut has_moved = lanes.apply_deaths(node);
        for index in 0..lanes.all.len() {
            has_moved |= lanes.advance(node, index);
        }
        if has_moved {
            node.ring_for_calls();
        }
        has_moved
    }

    /// Gives up all operations: this member leaves.
    pub(super) fn end(&self) {
        for lane in &mut lock(&self.0).all {
            lane.fail(|| Error::Ended);
        }
    }
}

impl Lanes {
    /// Ends the operations on dead members; whether a member has died.
    fn apply_deaths(&mut self, node: &Shm) -> bool {
        if node.epoch().0 == self.seen_epoch {
            return false;
        }
        let view = node.view();
        for member in view.dead.iter().filter(|&member| !self.dead.contains(member)) {
            self.all[member.index()].fail(|| Error::Dead { member });
        }
        self.seen_epoch = view.epoch.0;
        self.dead = view.dead;
        true
    }

    fn advance(&mut self, node: &Shm, index: usize) -> bool {
        // An operation may arrive here that was started before its target's death was applied.
        if self.dead.contains(MemberId(index as u32)) {
            let member = MemberId(index as u32);
            let had_any = !self.all[index].queue.is_empty();
            self.all[index].fail(|| Error::Dead { member });
            return had_any;
        }
        self.all[index].advance(node, self.window, &mut self.failed)
    }
}

//! The third path, `OUTLAST_MPI_PATH=rma`: passive-target RMA, to measure the way of the published store. It is an
//! experiment: it is never chosen by itself, and the promises of the store are not made for it.
//!
//! Each rank is a node of its own, as with `OUTLAST_MPI_PATH=messages`. Operations on segments go through *one window*,
//! made when joining and never again, over all that each member's segment may become; also those on the member's own segment, so
//! that a word has one way of being changed. Everything else (views, deaths, messages, bells, leaving) is still frames, in
//! `core.rs`. All peers are contacted when joining: the first contact waits inside MPI, and must be with one who lives.
//!
//! # Operations
//! A put is an MPI_Rput, a get and a load are an MPI_Rget: their requests are tested, and given up when the view says that the
//! target is dead; their buffers are then MPI's for ever. A swap is an MPI_Compare_and_swap and an MPI_Win_flush, for it has
//! no form with a request; a fetch-and-add is a load and swaps until one succeeds. MPI_Fetch_and_op is not used: in Open MPI
//! 5.0 it holds a lock at the target and, on the caller's own memory, is not atomic with the swaps of others.
//! MPI orders nothing, so one operation at a time is under way to each target, in the order in which they were started. The access is
//! begun by MPI_Win_lock for each target and not by MPI_Win_lock_all: after the latter a flush waits for the operations on
//! *all* targets, those to the dead included.
//!
//! # What Open MPI makes of it
//! The component is osc/rdma over active messages, on one host (btl/sm) as between hosts (btl/tcp): the *target's* processor does the
//! work, when it is inside MPI, and answers. So an MPI_Rput is complete at the target when its request is, which the standard
//! does not promise, and what a member does in the engine or its background thread serves all others. Between hosts a
//! swap is one such message, done by the target's own atomic instruction. On one host it is a lock of the target in
//! shared memory, a get, a put and an unlock: a member that dies in between leaves the target locked for ever, and
//! whoever swaps there next is stuck. Plain puts do not take that lock, so a put to a word that another is swapping at
//! that moment may be lost.
//!
//! # The epoch
//! The target cannot be asked to check it. So its epoch word is read through the window before the operation, until it
//! is the caller's own or the caller's own has risen (`Stale`), and after it, until the caller's own has followed if it rose meanwhile. That
//! leaves open what a check at the target would refuse:
//! - equal numbers are taken for equal views, which they are not while two deaths are on their way to two members;
//! - an operation that was under way when its caller died is done late, under whatever view, since the target
//!   does not see whose it is;
//! - a word may be torn by a put or a get that does not begin at a multiple of eight.
//!
//! # A cut link
//! MPI serves the memory of a member without asking for its lease (`quorum.rs`): on this path one that was cut off may go on to
//! be read by those who are cut off with it.
//!
//! # The watchdog, and its cascade
//! A call may stay inside MPI for ever: a swap on a dead target, or on one that a dead member has locked, or the start of any operation on a
//! peer whose connection is down while nobody knows it yet. A thread watches the calls, and ends the process by SIGKILL,
//! after a line on standard error, when one has not returned within the bound. Nobody hangs; but that death is one more
//! failure in the middle of calls, and may leave others stuck, who die the same way one bound later, down to the
//! last member. A target that is merely stopped for so long ends those who swap on it, too.

use super::join::{mpi_error, poll_for_all};
use super::lock;
use crate::JoinError;
use crate::engine::shm::Shm;
use crate::engine::{
    Completer, Done, Engine, Epoch, Error, MemberId, MemberSet, Operation, Pending, Result,
};
use outlast_mpi_sys::{self as mpi, Comm, Request, Window};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a call may be inside MPI, at most; less if the time limit of the job is shorter.
const STUCK_MAX: Duration = Duration::from_secs(5);

/// In how many steps the watchdog counts the bound: time in which the whole process was stopped counts for one of them.
const STEPS: u32 = 20;

/// The longest sleep between two tests: what others do to this member's memory is done inside the tests, and nothing tells
/// whether there was any, so it cannot be tested more often when there is.
pub(super) const SLEEP_MAX: Duration = Duration::from_micros(100);

/// The most bytes that one call of MPI moves.
const PIECE_LEN_MAX: usize = 1 << 30;

/// Whether this path was asked for.
pub(super) fn is_wanted() -> bool {
    std::env::var("OUTLAST_MPI_PATH").is_ok_and(|path| path == "rma")
}

// ---- The watchdog.

/// Which way to others is inside MPI; of each, one activity at a time, since it holds its lock.
#[derive(Clone, Copy)]
pub(super) enum Path {
    Frames = 0,
    Window = 1,
}

/// Which call each way is inside of: numbers never repeat, 0 is none.
static INSIDE: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
static CALLS: AtomicU64 = AtomicU64::new(0);
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// A call that the watchdog sees until this is dropped.
pub(super) struct Watched {
    path: Path,
    outer: u64,
}

/// Lets the watchdog see that the caller is inside MPI. Without this path there is none, and nothing happens.
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

/// Ends this process when a call is inside MPI for longer than the bound.
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
                    "outlast: {me} has been inside a call of MPI for {bound:?}, which does not return after a failure \
                     (OUTLAST_MPI_PATH=rma); ending this process. Without that variable this does not happen.\n"
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

/// What comes next for an operation, when nothing that it has asked for is under way.
enum Stage {
    /// To see whether the target's segment is long enough, as far as is known.
    Fit,
    /// The same with its length as it was just read.
    Measured,
    /// To read the target's epoch.
    Check,
    /// To compare the target's epoch, as it was just read, with the caller's.
    Checked,
    /// To do it, from this byte on.
    Act(usize),
    /// It is done up to this byte.
    Acted(usize),
    /// To add to the word as it was just read.
    Add,
    /// It is done, and the target's epoch was read once more.
    CheckedAgain(Done),
}

struct Op {
    at: Epoch,
    /// The range in the target's segment.
    offset: u64,
    len: usize,
    kind: Kind,
    stage: Stage,
    /// What is put, or what was got so far.
    bytes: Vec<u8>,
    completer: Completer,
}

/// What is under way to one target: one thing at a time.
struct Lane {
    target: usize,
    /// Whether the target is this member: no other view is to be looked at then.
    is_own: bool,
    queue: VecDeque<Op>,
    /// What the operation in front has asked of MPI.
    request: Option<Request>,
    /// Where words are read to: on the heap, since MPI writes there.
    word: Box<[u8; 8]>,
    /// Whether MPI has refused something: the target has probably failed, and the notice is waited for.
    is_refused: bool,
    /// Where the segment begins in the target's window, and how long it is as far as is known.
    segment: u64,
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

    /// Takes the next steps of the operations to this target, as far as they go without waiting, swaps excepted;
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
            // Who has failed must not be called, whether or not the view says so yet.
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

    /// Takes one step of the operation in front; its result if that was the last.
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
                // One of the two knows of a death that the other is about to learn of.
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
                        // SAFETY: the bytes are on the heap, not changed, and freed only after the request is complete;
                        // otherwise they are leaked, see `give_up_request`.
                        let request = unsafe {
                            window.rput(&op.bytes[from..upto], target, place + from as u64)
                        }?;
                        self.request = Some(request);
                    }
                    Kind::Get => {
                        // Only now: the range is known to be one.
                        op.bytes.resize(op.len, 0);
                        let piece = &mut op.bytes[from..upto];
                        // SAFETY: as above, and nobody looks at them before.
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
            // The view has changed under the operation: its caller must find its own epoch raised.
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
        // SAFETY: the word is on the heap, is looked at only after the request is complete, and is leaked if it never is.
        self.request = Some(unsafe { window.rget(&mut self.word[..], self.target, at) }?);
        Ok(())
    }

    /// Leaves a request, and the bytes that it reads or writes, to MPI.
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

/// Who has failed, as MPI says.
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

struct Lanes {
    window: Window,
    failed: Failed,
    lanes: Vec<Lane>,
    /// The epoch up to which the lanes of the dead were ended.
    seen_epoch: u64,
    dead: MemberSet,
}

/// The window, and what is under way in it.
pub(super) struct OneSided(Mutex<Lanes>);

impl OneSided {
    /// Makes the window, contacts everybody, and sets the watchdog on the calls of MPI.
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
            // SAFETY: the memory is that of the job, which stays mapped and bears any change.
            let window = unsafe { Window::create(comm, base as *mut u8, len) }?;
            (0..members).try_for_each(|target| window.lock(target))?;
            Ok(window)
        };
        // Both calls wait for all others: in a thread that may be left behind.
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .name("outlast-window".into())
            .spawn(move || sender.send(make()))
            .map_err(|error| JoinError::System { what: "starting a thread", error })?;
        let window = receiver
            .recv_timeout(until.saturating_duration_since(Instant::now()))
            .map_err(|_| JoinError::Mpi {
                reason: format!(
                    "no window of all ranks was made within {limit:?}; is OUTLAST_MPI_PATH=rma set for every rank, and do all live?"
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
            lanes: segments.into_iter().enumerate().map(lane).collect(),
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
        let mut inner = lock(&self.0);
        inner.lanes[target.index()].queue.push_back(op);
        inner.apply_deaths(node);
        inner.advance(node, target.index());
        pending
    }

    /// Moves what is under way, if no other activity does; whether anything happened.
    pub(super) fn progress(&self, node: &Shm) -> bool {
        if node.is_forked() || node.has_ended() {
            return false;
        }
        let Ok(mut inner) = self.0.try_lock() else { return false };
        let mut has_moved = inner.apply_deaths(node);
        for index in 0..inner.lanes.len() {
            has_moved |= inner.advance(node, index);
        }
        if has_moved {
            node.ring_for_calls();
        }
        has_moved
    }

    /// Gives up all that is under way: this member leaves.
    pub(super) fn end(&self) {
        for lane in &mut lock(&self.0).lanes {
            lane.fail(|| Error::Ended);
        }
    }
}

impl Lanes {
    /// Ends what is under way to those who have died; whether anybody has.
    fn apply_deaths(&mut self, node: &Shm) -> bool {
        if node.epoch().0 == self.seen_epoch {
            return false;
        }
        let view = node.view();
        for member in view.dead.iter().filter(|&member| !self.dead.contains(member)) {
            self.lanes[member.index()].fail(|| Error::Dead { member });
        }
        self.seen_epoch = view.epoch.0;
        self.dead = view.dead;
        true
    }

    fn advance(&mut self, node: &Shm, index: usize) -> bool {
        // One that was started before its target's death was noticed, and came here afterwards.
        if self.dead.contains(MemberId(index as u32)) {
            let member = MemberId(index as u32);
            let had_any = !self.lanes[index].queue.is_empty();
            self.lanes[index].fail(|| Error::Dead { member });
            return had_any;
        }
        self.lanes[index].advance(node, self.window, &mut self.failed)
    }
}

//! The engine: the smallest set of things that the layers above need from the world.
//!
//! An engine gives a process its identity among the *members* of a job, one *segment* of memory per member that all
//! others reach one-sidedly, small messages, a *view* of who is dead, a clock, and a way to wait. It exists three
//! times: [`shm`] for the processes of one machine, `sim` for coroutines under a seeded simulator, and `mpi` for
//! Open MPI with ULFM. The layers above are written once against [`Engine`].
//!
//! # Death
//! Members stop and do not come back. A member counts as dead only on proof; being stopped or starved is not death.
//! Proof reaches the survivors at different moments, so each call says what it does around the death of its target:
//!
//! | the target dies | one-sided operation | [`Engine::send`] |
//! |---|---|---|
//! | before, and the view says so | [`Error::Dead`], nothing happened | [`Error::Dead`] |
//! | before, not yet in the view | `Ok`, into memory that nobody will trust, or waits for the notice and returns [`Error::Dead`] | `Ok`, and the message is lost |
//! | during | as above; a put may have changed any subset of its 8-byte words | as above |
//! | after | the effect is lost with the target's memory, or stays in what [`Engine::read_dead_segment`] reads | the message may be lost |
//!
//! Messages of a *sender* that dies may be lost, from some moment on; not those that it has published
//! ([`Engine::try_publish`]).
//!
//! When the *caller* dies inside a put, any subset of the put's 8-byte words has been written; a word operation
//! happened or did not. Nobody waits for it.
//!
//! # The view and its epoch
//! The view is the set of the dead, which only grows; the set of active members is computed from it (see [`View`]).
//! Its size is the [`Epoch`]. Views of different members merge by union. Three rules make it useful:
//!
//! 1. The epoch is raised before anyone acts on a death.
//! 2. An operation names the epoch that it belongs to (`at`). If the caller's view or the target's view is already
//!    newer, the operation is refused with [`Error::Stale`] and changes nothing. A target with an older view adopts
//!    the newer one first. [`Epoch::ANY`] stands for "whatever the view is" and is never refused as stale.
//! 3. On engines with memory that all members map, the check at the target is not atomic with the operation: the
//!    epoch may rise in between. So a caller that needs its whole operation inside one view compares
//!    [`Engine::epoch`] again afterwards and redoes the operation if it changed. The same holds on every engine for
//!    a put that travels in pieces: only its first piece is checked.
//!
//! Where members have views of their own, equal epochs of different members are not equal views: compare epochs only
//! with those of the same member, and leave it to the engine to compare views. If an operation is both too late
//! for its view and for its target, it may say [`Error::Stale`] or [`Error::Dead`].
//!
//! # Order
//! Operations that one activity starts on one target take effect in the order in which they were started, those that are
//! forgotten ([`Pending`]) perhaps not at all.
//! Between different targets there is no order until completion was seen. An aligned 8-byte word is never torn by a
//! put or a get; a longer range is copied word by word in any order. [`Engine::compare_and_swap`],
//! [`Engine::fetch_add`] and [`Engine::load`] are sequentially consistent with each other, and order earlier puts
//! of the same activity before them.
//!
//! # Waiting
//! Every member has a *bell*. A message to it, a change of its view, the completion of an operation that it has
//! started, and [`Engine::ring`] ring it. Waiting is always the same loop: note the bell, look for what is wanted, [`Engine::park`] until the bell rang or the time is over.
//! Nothing rings for a plain put; whoever needs that rings after it.
//!
//! # Activities
//! A member has the activity that joined, further ones made with [`Engine::spawn`] (threads on shm and mpi,
//! coroutines on sim), and one background activity that the engine runs itself: it detects deaths, moves incoming
//! data and runs the [`crate::Service`]s of the layers above while the program computes.
//! A lock of the process must not be held across a call of the engine: on sim that would stop the world.

#![allow(unsafe_code)]

use crate::sync::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

mod error;
pub(crate) mod join;
pub(crate) mod mapped;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod shm;
#[cfg(feature = "sim")]
pub(crate) mod sim;
mod view;

pub use error::{Error, Result};
pub use join::{JoinError, JoinOptions};
pub use view::{Epoch, MemberId, MemberSet, View};

/// The most members that a job may have, on any engine.
pub const MEMBERS_MAX: usize = 4096;

/// The longest message that [`Engine::send`] takes, in bytes.
pub const MESSAGE_LEN_MAX: usize = 1 << 20;

/// The longest message that [`Engine::try_publish`] takes, in bytes: it must fit into every queue at once.
pub const PUBLISH_LEN_MAX: usize = 2048;

/// The longest message that [`Engine::try_send`] takes, in bytes: it must fit at once, whatever the engine.
pub const TRY_SEND_LEN_MAX: usize = 2048;

/// How long a series may be, see [`Engine::start_compound`]: the bytes of its puts, and [`COMPOUND_STEP_LEN`] for each part.
/// It travels in one piece.
pub const COMPOUND_LEN_MAX: usize = 16 << 10;

/// What a part of a series takes, beside the bytes of a put.
pub const COMPOUND_STEP_LEN: usize = 32;

/// A moment on the job's clock, in nanoseconds; virtual on sim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// A moment that never comes, for waits that something else ends.
    pub const NEVER: Time = Time(u64::MAX);

    /// The moment `duration` after this one.
    pub fn after(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long after `earlier` this moment is; zero if it is not after it.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// What the bell of a member showed at some moment; see [`Engine::park`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bell(pub u64);

/// Which layer a message is for. Each port is a queue of its own at the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Port {
    /// Communicators and windows.
    Rma,
    /// The store.
    Store,
    /// Snapshots.
    Snapshot,
    /// For programs and tests.
    User,
}

impl Port {
    /// How many ports there are.
    pub const COUNT: usize = 4;

    /// The port with this number, if there is one: used on what another process wrote.
    pub fn from_index(index: usize) -> Option<Port> {
        [Port::Rma, Port::Store, Port::Snapshot, Port::User].get(index).copied()
    }
}

/// A message as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who sent it.
    pub from: MemberId,
    /// The sender's epoch when it was sent; the receiver's view is at least as new.
    pub epoch: Epoch,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// A one-sided operation to be started with [`Engine::start`].
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Write these bytes at this offset.
    Put {
        /// Where in the target's segment.
        offset: u64,
        /// What to write; copied if the operation outlives the call.
        data: &'a [u8],
    },
    /// Read this many bytes at this offset.
    Get {
        /// Where in the target's segment.
        offset: u64,
        /// How many bytes.
        len: usize,
    },
    /// Read the 8-byte word at this offset.
    Load {
        /// Where in the target's segment; a multiple of 8.
        offset: u64,
    },
    /// Replace the word at this offset if it holds `expected`.
    CompareAndSwap {
        /// Where in the target's segment; a multiple of 8.
        offset: u64,
        /// The word that must be there.
        expected: u64,
        /// The word to put in its place.
        new: u64,
    },
    /// Add to the word at this offset, wrapping.
    FetchAdd {
        /// Where in the target's segment; a multiple of 8.
        offset: u64,
        /// What to add.
        delta: u64,
    },
}

impl Operation<'_> {
    /// The range of the target's segment that the operation touches.
    pub fn range(&self) -> (u64, usize) {
        match *self {
            Operation::Put { offset, data } => (offset, data.len()),
            Operation::Get { offset, len } => (offset, len),
            Operation::Load { offset }
            | Operation::CompareAndSwap { offset, .. }
            | Operation::FetchAdd { offset, .. } => (offset, 8),
        }
    }

    /// Checks the operation against the segment that it is for, before anything is touched.
    pub fn check(&self, target: MemberId, segment_len: u64) -> Result<()> {
        let (offset, len) = self.range();
        let is_word = !matches!(self, Operation::Put { .. } | Operation::Get { .. });
        if is_word && offset % 8 != 0 {
            return Err(Error::Unaligned { offset });
        }
        match offset.checked_add(len as u64) {
            Some(end) if end <= segment_len => Ok(()),
            _ => Err(Error::OutOfRange { member: target, offset, len: len as u64, segment_len }),
        }
    }
}

/// A part of a series, see [`Engine::start_compound`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompoundStep<'a> {
    /// Go on if the word at this offset is this one.
    Expect {
        /// Where in the target's segment; a multiple of 8.
        offset: u64,
        /// The word that must be there.
        word: u64,
    },
    /// Write these bytes at this offset.
    Put {
        /// Where in the target's segment.
        offset: u64,
        /// What to write.
        data: &'a [u8],
    },
    /// Replace the word at this offset, and go on, if it holds `expected`.
    Swap {
        /// Where in the target's segment; a multiple of 8.
        offset: u64,
        /// The word that must be there.
        expected: u64,
        /// The word to put in its place.
        new: u64,
    },
    /// Read the word at this offset.
    Load {
        /// Where in the target's segment; a multiple of 8.
        offset: u64,
    },
}

impl<'a> CompoundStep<'a> {
    /// The operation that the part is.
    pub fn operation(&self) -> Operation<'a> {
        match *self {
            CompoundStep::Expect { offset, .. } | CompoundStep::Load { offset } => {
                Operation::Load { offset }
            }
            CompoundStep::Put { offset, data } => Operation::Put { offset, data },
            CompoundStep::Swap { offset, expected, new } => {
                Operation::CompareAndSwap { offset, expected, new }
            }
        }
    }

    /// The bytes of a put.
    pub(crate) fn data(&self) -> &[u8] {
        if let CompoundStep::Put { data, .. } = self { data } else { &[] }
    }

    /// Whether a series goes on after its operation has found this word.
    pub fn goes_on(&self, found: u64) -> bool {
        match *self {
            CompoundStep::Expect { word, .. } => found == word,
            CompoundStep::Swap { expected, .. } => found == expected,
            CompoundStep::Put { .. } | CompoundStep::Load { .. } => true,
        }
    }
}

/// Checks that a series is short enough.
pub(crate) fn check_compound(parts: &[CompoundStep<'_>]) -> Result<()> {
    let len = parts.iter().map(|part| COMPOUND_STEP_LEN + part.data().len()).sum();
    if len <= COMPOUND_LEN_MAX { Ok(()) } else { Err(Error::MessageTooLong { len }) }
}

/// Takes the parts of a series one after the other, by an engine's ordinary operations.
pub(crate) fn run_compound(
    engine: &(impl Engine + ?Sized),
    at: Epoch,
    target: MemberId,
    parts: &[CompoundStep<'_>],
) -> Result<Done> {
    check_compound(parts)?;
    let mut last = 0;
    for (index, part) in parts.iter().enumerate() {
        // Only the first can be refused: a series that was half done and is called "stale, changed nothing" would be a lie.
        let at = if index == 0 { at } else { Epoch::ANY };
        let found = match *part {
            CompoundStep::Expect { offset, .. } | CompoundStep::Load { offset } => {
                engine.load(at, target, offset)?
            }
            CompoundStep::Put { offset, data } => {
                engine.put(at, target, offset, data)?;
                continue;
            }
            CompoundStep::Swap { offset, expected, new } => {
                engine.compare_and_swap(at, target, offset, expected, new)?
            }
        };
        last = found;
        if !part.goes_on(found) {
            return Ok(Done::Series { done: index, word: found });
        }
    }
    Ok(Done::Series { done: parts.len(), word: last })
}

/// What a completed operation gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// A put is remotely complete: every later get of any member sees it.
    Put,
    /// The bytes of a get.
    Get(Vec<u8>),
    /// The word that a load, compare-and-swap or fetch-and-add found.
    Word(u64),
    /// How far a series went.
    Series {
        /// How many of its parts are done: if not all, the next one did not find what it expected.
        done: usize,
        /// The last word that a part has found, the one that was not as expected included; 0 if none has looked.
        word: u64,
    },
}

impl Done {
    /// The word that was found; for the three word operations.
    pub fn word(self) -> u64 {
        match self {
            Done::Word(word) => word,
            other => unreachable!("a word operation completed as {other:?}"),
        }
    }
}

/// An operation that was started. Forgetting it is safe; whether the operation then happened is unknown. What the same
/// activity has started behind it may happen without it.
#[derive(Debug)]
#[must_use = "a started operation is complete only when `poll` or `wait` said so"]
pub struct Pending {
    /// Who the operation is for.
    pub target: MemberId,
    completion: Completion,
}

#[derive(Debug)]
enum Completion {
    Now(Option<Result<Done>>),
    Later(Arc<Mutex<Option<Result<Done>>>>),
}

/// The engine's end of a [`Pending`] that is not complete yet.
#[derive(Clone, Debug)]
pub struct Completer(Arc<Mutex<Option<Result<Done>>>>);

impl Pending {
    /// An operation that is complete already.
    pub fn ready(target: MemberId, result: Result<Done>) -> Pending {
        Pending { target, completion: Completion::Now(Some(result)) }
    }

    /// An operation that the engine completes later.
    pub fn later(target: MemberId) -> (Pending, Completer) {
        let slot = Arc::new(Mutex::new(None));
        (Pending { target, completion: Completion::Later(slot.clone()) }, Completer(slot))
    }

    /// Takes the result if the operation is complete. After that, `None` for ever.
    pub fn take(&mut self) -> Option<Result<Done>> {
        match &mut self.completion {
            Completion::Now(result) => result.take(),
            Completion::Later(slot) => lock(slot).take(),
        }
    }
}

impl Completer {
    /// Completes the operation; the first result counts.
    pub fn complete(&self, result: Result<Done>) {
        lock(&self.0).get_or_insert(result);
    }

    /// Whether nobody holds the operation's [`Pending`] any more.
    pub fn is_forgotten(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// An activity made by [`Engine::spawn`].
#[derive(Clone, Debug)]
pub struct Activity(Arc<AtomicBool>);

impl Activity {
    pub(crate) fn new() -> Activity {
        Activity(Arc::new(AtomicBool::new(false)))
    }

    pub(crate) fn finish(&self) {
        // Release: what the activity did is seen by whoever sees it finished.
        self.0.store(true, Ordering::Release);
    }

    /// Whether the activity has ended.
    pub fn is_finished(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What to do to a member in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Kill it, as by SIGKILL, without waiting for the notice.
    Kill(MemberId),
    /// Stop it, as by SIGSTOP.
    Stop(MemberId),
    /// Let it go on, as by SIGCONT.
    Resume(MemberId),
    /// The caller dies at its n-th engine step from now, counted over all its activities; a step may be in the
    /// middle of a put.
    DieAtStep(u64),
    /// The caller stops at its n-th engine step from now, until someone resumes it.
    StopAtStep(u64),
}

/// Keeps [`Engine`] to the engines of this crate, so that it can get further methods.
mod sealed {
    /// Implemented by the engines of this crate.
    pub trait Sealed {}
}

/// What an engine does; see the [module](self) for the rules that all calls share.
///
/// `at` is the epoch that an operation belongs to. `target` may be the caller itself.
pub trait Engine: sealed::Sealed {
    // ---- Who is there.

    /// This member.
    fn me(&self) -> MemberId;

    /// How many members the job was started with, spares and the dead included. Their ids are `0..members`.
    fn members(&self) -> usize;

    /// The failure domain of a member: a path such as `rack3/node17`, empty if nothing is known.
    fn domain(&self, member: MemberId) -> Result<String>;

    // ---- Who is dead.

    /// The epoch of this member's view. One load.
    fn epoch(&self) -> Epoch;

    /// This member's view. Calling it acknowledges nothing and waits for nobody.
    fn view(&self) -> View;

    /// Makes sure that `member` is dead: kills it if it lives, waits for the proof, and returns once this member's
    /// view has it. [`Error::Timeout`] if the proof does not come until `until`. Fencing oneself ends the process.
    fn fence(&self, member: MemberId, until: Time) -> Result<()>;

    /// Whether this member has left the job or was declared dead.
    fn has_ended(&self) -> bool;

    /// Ends this member's part in the job. The others see it as dead, marked as [`View::left`]; all further calls
    /// return [`Error::Ended`].
    fn leave(&self) -> Result<()>;

    // ---- Memory.

    /// How long a member's segment is now. It only grows. Asking another member may take a message and an answer.
    fn segment_len(&self, target: MemberId) -> Result<u64>;

    /// Makes this member's own segment at least `len` bytes long; the new bytes are zero. Nobody else takes part:
    /// others reach the new range as soon as the call has returned. [`Error::OutOfMemory`] changes nothing.
    fn grow(&self, len: u64) -> Result<()>;

    /// Starts a one-sided operation. The returned operation may be complete already.
    fn start(&self, at: Epoch, target: MemberId, operation: Operation<'_>) -> Pending;

    /// Starts several small operations on one target, to be done one after the other, as long as each finds what it expects:
    /// where the target is far away, for one message and one answer. Each part is an operation of its own: others may
    /// come in between. Only the first part is checked against `at`, and with it all or nothing is refused; if the target dies,
    /// or the call ends with a timeout, any number of parts may be done.
    /// [`Error::MessageTooLong`] beyond [`COMPOUND_LEN_MAX`].
    fn start_compound(&self, at: Epoch, target: MemberId, parts: &[CompoundStep<'_>]) -> Pending {
        Pending::ready(target, run_compound(self, at, target, parts))
    }

    /// The result of an operation if it is complete, once. Moves data meanwhile, so polling alone makes progress.
    fn poll(&self, pending: &mut Pending) -> Option<Result<Done>>;

    /// Waits for an operation: until it is complete, its target is dead, or the time limit is over
    /// ([`Error::Timeout`], outcome unknown).
    fn wait(&self, mut pending: Pending) -> Result<Done> {
        if let Some(result) = self.poll(&mut pending) {
            return result;
        }
        let limit = self.time_limit();
        let until = self.now().after(limit);
        loop {
            let bell = self.bell();
            if let Some(result) = self.poll(&mut pending) {
                return result;
            }
            if self.now() >= until {
                return Err(Error::Timeout { member: pending.target, limit });
            }
            self.park(bell, until);
        }
    }

    /// Writes `data` and returns when it is remotely complete.
    fn put(&self, at: Epoch, target: MemberId, offset: u64, data: &[u8]) -> Result<()> {
        self.wait(self.start(at, target, Operation::Put { offset, data })).map(|_| ())
    }

    /// Fills `buffer` from the target's segment. On an error its content is unspecified.
    fn get(&self, at: Epoch, target: MemberId, offset: u64, buffer: &mut [u8]) -> Result<()> {
        match self.wait(self.start(at, target, Operation::Get { offset, len: buffer.len() }))? {
            Done::Get(bytes) => buffer.copy_from_slice(&bytes),
            other => unreachable!("a get completed as {other:?}"),
        }
        Ok(())
    }

    /// Sleeps for so long by the engine's clock, whatever rings meanwhile. Under the simulator time is virtual: a member that
    /// slept otherwise would stand still, and all others with it.
    fn sleep(&self, duration: Duration) {
        let until = self.now().after(duration);
        while self.now() < until {
            self.park(self.bell(), until);
        }
    }

    /// Reads the word at `offset`.
    fn load(&self, at: Epoch, target: MemberId, offset: u64) -> Result<u64> {
        self.wait(self.start(at, target, Operation::Load { offset })).map(Done::word)
    }

    /// Replaces the word at `offset` by `new` if it is `expected`; returns what was there before.
    fn compare_and_swap(
        &self,
        at: Epoch,
        target: MemberId,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64> {
        self.wait(self.start(at, target, Operation::CompareAndSwap { offset, expected, new }))
            .map(Done::word)
    }

    /// Adds `delta` to the word at `offset`, wrapping; returns what was there before.
    fn fetch_add(&self, at: Epoch, target: MemberId, offset: u64, delta: u64) -> Result<u64> {
        self.wait(self.start(at, target, Operation::FetchAdd { offset, delta })).map(Done::word)
    }

    /// Whether operations are done when their call returns, and either happen or are refused: on engines whose memory all
    /// members map.
    fn is_mapped(&self) -> bool {
        false
    }

    /// The dead in the order in which they entered the view, which is the same for all members: the first `n` of them are the
    /// dead of [`Epoch`] `n`. `None` on engines where each member has a view of its own, or where the memory of the dead
    /// is gone; those have nothing of what follows, either.
    fn death_order(&self) -> Option<Vec<MemberId>> {
        None
    }

    /// Reads the memory that a dead member has left, which the calls above refuse to. The dead write nothing any more, but
    /// those who live may: one that was in the middle of an operation when the view changed ends it. What is there may be
    /// damaged by whatever ended the member. Those who left on purpose have left theirs, too: they write nothing there after that.
    /// [`Error::Dead`] if the member lives, or nothing is left.
    fn read_dead_segment(&self, dead: MemberId, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let _ = (dead, offset, buffer);
        Err(Error::Unsupported { what: "reading the memory of the dead on this engine" })
    }

    /// Gives the memory that a dead member has left back to the system; it reads as zeros from then on, or not at all. Can be
    /// repeated, and by several members.
    fn discard_dead_segment(&self, dead: MemberId) -> Result<()> {
        let _ = dead;
        Err(Error::Unsupported { what: "discarding the memory of the dead on this engine" })
    }

    /// When this returns, nothing that a member asked for is being done by this one, or will be, if that member is in this
    /// member's view as dead. On engines where members do to each other's memory what they want themselves, the dead do nothing
    /// anyway.
    fn drain_requests_of_dead(&self) {}

    /// Whether something that a member asked for, which is in this member's view as dead, may still be done to memory that this
    /// one reaches by itself: by its owner, which is in the middle of it, and may be stopped there. Memory that is reached by requests
    /// is changed for the dead no more once a request of this member has come there.
    fn is_serving_dead(&self) -> bool {
        false
    }

    // ---- Messages.

    /// Sends a message of at most [`MESSAGE_LEN_MAX`] bytes and rings the receiver's bell. `Ok` means that it is on
    /// its way: messages from one member to another arrive once, in order, unless either dies. [`Error::Timeout`]
    /// if the receiver does not take messages for the time limit; the message is then not delivered.
    fn send(&self, to: MemberId, port: Port, bytes: &[u8]) -> Result<()>;

    /// Whether this engine has [`Engine::try_publish`].
    fn can_publish(&self) -> bool {
        false
    }

    /// Sends one message of at most [`PUBLISH_LEN_MAX`] bytes to several members, *all or nothing*, without waiting:
    /// `false`, and nothing was sent, if one of them has no room just now. Those that are known to be dead are passed
    /// over. If the caller dies in it, either each of them that lives gets the message or none does. And it outlives
    /// its sender: whoever knows of the sender's death and then receives until there is nothing more has received
    /// it, and all that the sender had sent to it before.
    fn try_publish(&self, to: &[MemberId], port: Port, bytes: &[u8]) -> Result<bool> {
        let _ = (to, port, bytes);
        Err(Error::Unsupported { what: "publishing messages on this engine" })
    }

    /// The same for at most [`TRY_SEND_LEN_MAX`] bytes without waiting: `false`, and nothing was sent, if the receiver
    /// does not take a message just now.
    fn try_send(&self, to: MemberId, port: Port, bytes: &[u8]) -> Result<bool>;

    /// The next message for `port`, if one is there. Moves data meanwhile, as [`Engine::poll`] does. Messages of a dead
    /// member may still come.
    fn receive(&self, port: Port) -> Option<Message>;

    /// Says that the calling activity attends to `port` (`true`) or no longer does (`false`): until then it takes
    /// the port's messages whenever its bell rang, so that the background need not wake for them as well. Only a
    /// hint for speed; use [`crate::Job::attend`], which cannot forget the second half.
    fn set_attending(&self, port: Port, attending: bool) {
        let _ = (port, attending);
    }

    // ---- Time and waiting.

    /// The job's clock. Clocks of members on different machines are not related.
    fn now(&self) -> Time;

    /// How long a call waits for a living member that does not answer.
    fn time_limit(&self) -> Duration;

    /// What this member's bell shows now.
    fn bell(&self) -> Bell;

    /// Waits until the bell shows something else than `seen`, or until `until`; may also return early for no reason.
    fn park(&self, seen: Bell, until: Time);

    /// Rings a member's bell. Lost if the member is dead.
    fn ring(&self, member: MemberId) -> Result<()>;

    // ---- Activities.

    /// Runs `body` as a further activity of this member and rings the member's bell when it ends.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<Activity>;

    /// The background activity's form of [`Engine::park`]: moves incoming data and watches for deaths meanwhile.
    fn park_in_background(&self, seen: Bell, until: Time) {
        self.park(seen, until);
    }

    // ---- Faults, for tests.

    /// Injects a fault; [`Error::Unsupported`] in builds without the feature `faults`.
    #[doc(hidden)]
    fn inject(&self, fault: Fault) -> Result<()>;
}

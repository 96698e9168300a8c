//! The engine: the smallest set of services that the layers above need from the machine.
//!
//! An engine gives a process its identity among the *members* of a job, a *segment* of memory per
//! member that all others reach by one-sided operations, small messages, a *view* of the dead, a
//! clock, and a way to wait. There are three: [`shm`] for the processes of a single machine, `mpi`
//! for Open MPI with ULFM, and `sim` for coroutines under a seeded simulator (see `outlast::sim`).
//! The layers above are written once, against the calls of [`Engine`], which a [`crate::Job`] has
//! as methods. The engine knows nothing of the layers above it.
//!
//! `operation.rs` has the one-sided operations and their results, `mapped.rs` the shortcut to
//! memory that all members map, `view.rs` the sets of the active and the dead, `deadline.rs` how
//! long an activity may wait, `join.rs` what a process says when it joins.
//!
//! # Death
//! Members stop and do not come back. A member counts as dead only on proof; being stopped or
//! starved is not death. Proof reaches the survivors at different moments, so each call says what
//! it does around the death of its target:
//!
//! | the target dies | one-sided operation | [`Engine::send`] |
//! |---|---|---|
//! | before, and the view says so | [`Error::Dead`], nothing happened | [`Error::Dead`] |
//! | before, not yet in the view | `Ok`, into memory that no survivor will trust, or waits for the notice and returns [`Error::Dead`] | `Ok`, and the message is lost |
//! | during | as above; a put may have changed any subset of its 8-byte words | as above |
//! | after | the effect is lost with the target's memory, or stays in what [`Engine::read_dead_segment`] reads | the message may be lost |
//!
//! Messages of a *sender* that dies may be lost, from some moment on. Messages that it has
//! published ([`Engine::try_publish`]) are not.
//!
//! When the *caller* dies inside a put, any subset of the put's 8-byte words has been written; a
//! word operation happened or did not. No survivor waits for the caller.
//!
//! # The view and its epoch
//! The view is the set of the dead, which only grows; the set of active members is computed from it
//! (see [`View`]). Its size is the [`Epoch`]. Views of different members merge by union. Three
//! rules make it useful:
//!
//! 1. The epoch is raised before any member acts on a death.
//! 2. An operation names the epoch that it belongs to (`at`). If the caller's view or the target's
//!    view is already newer, the operation is refused with [`Error::Stale`] and changes nothing. A
//!    target with an older view adopts the newer view first. [`Epoch::ANY`] stands for "whatever
//!    the view is" and is never refused as stale.
//! 3. On engines with memory that all members map, the check at the target is not atomic with the
//!    operation: the epoch may rise in between. So a caller that needs its whole operation inside a
//!    single view compares [`Engine::epoch`] again afterwards and redoes the operation if it
//!    changed. This also holds on every engine for a put that travels in pieces: only its first
//!    piece is checked.
//!
//! Where members have views of their own, equal epochs of different members are not equal views:
//! compare epochs only with other epochs of that member, and leave it to the engine to compare
//! views. An operation that is too late both for its view and for its target may fail with
//! [`Error::Stale`] or with [`Error::Dead`].
//!
//! # Order
//! Operations that an activity starts on a target take effect in the order in which they were
//! started. Forgotten operations ([`Pending`]) may not take effect at all. Between different
//! targets there is no order until completion was seen. An aligned 8-byte word is never torn by a
//! put or a get; a longer range is copied word by word in any order. [`Engine::compare_and_swap`],
//! [`Engine::fetch_add`] and [`Engine::load`] are sequentially consistent with each other, and
//! order earlier puts of their activity before them.
//!
//! # Waiting
//! Every member has a *bell*. A message to it, a change of its view, the completion of an operation
//! that it has started, and [`Engine::ring`] ring it. Every wait is a loop: note the bell, check
//! the condition, [`Engine::park`] until the bell rang or the time is over. A plain put does not
//! ring; a writer that wants its target to notice the put rings after it.
//!
//! # Messages are bounded
//! A member holds at most [`MESSAGE_CREDIT`] bytes of messages for each sender and port that it has
//! not received: the *credit* of the sender. A sender without credit waits in [`Engine::send`],
//! until the time limit, and is refused by [`Engine::try_send`] and [`Engine::try_publish`]. No
//! cycle of senders waits for each other without end:
//!
//! 1. Credits are apart: messages for a port wait for the receiver's layer behind that port, and
//!    for nothing else. Moving messages from the wire into the queues of their ports waits for no
//!    layer: the background does it, and so does every activity that waits in a call.
//! 2. Each layer takes the messages of its port in its service, whatever the program does, and a
//!    service waits in no `send` for the layer of another member: it tries to send, and keeps what
//!    its receiver has no room for (`rma/outbox.rs`).
//! 3. So an activity can wait in `send` only for a stopped process, which ends at the time limit,
//!    or on [`Port::User`], where programs receive: programs that all send and never receive wait
//!    until the time limit, and get [`Error::Timeout`].
//!
//! # Activities
//! A member has the activity that joined, further activities made with [`Engine::spawn`] (threads
//! on shm and mpi, coroutines on sim), and a background activity that the engine runs itself: it
//! detects deaths, moves incoming data and runs the services of the layers above while the program
//! computes. No lock of the process may be held across a call of the engine: on sim that would stop
//! the world.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) mod deadline;
mod error;
pub(crate) mod join;
pub(crate) mod mapped;
#[cfg(feature = "mpi")]
pub mod mpi;
mod operation;
pub mod shm;
#[cfg(feature = "sim")]
pub(crate) mod sim;
pub(crate) mod thread;
mod view;

pub use error::{Error, Result};
pub use join::{JoinError, JoinOptions};
#[cfg(feature = "sim")]
use operation::Completion;
#[cfg(any(feature = "mpi", feature = "sim"))]
use operation::check_compound;
use operation::run_compound;
pub use operation::{
    COMPOUND_LEN_MAX, COMPOUND_STEP_LEN, Completer, CompoundStep, Done, Operation, Pending,
};
pub use view::{Epoch, MemberId, MemberSet, View};

/// The most members that a job may have, on any engine.
pub const MEMBERS_MAX: usize = 4096;

/// The longest message that [`Engine::send`] takes, in bytes.
pub const MESSAGE_LEN_MAX: usize = 1 << 20;

/// The longest message that [`Engine::try_publish`] takes, in bytes: it must fit into every queue
/// at once.
pub const PUBLISH_LEN_MAX: usize = 2048;

/// The longest message that [`Engine::try_send`] takes, in bytes: it must fit at once on every
/// engine.
pub const TRY_SEND_LEN_MAX: usize = 2048;

/// How many bytes of messages of a sender, for a port, may be on their way to a receiver or wait
/// there to be received. Each message counts [`message_cost`].
pub const MESSAGE_CREDIT: u64 = 4 << 20;
const _: () = assert!(MESSAGE_CREDIT > message_cost(MESSAGE_LEN_MAX));

/// How much credit a message takes: more than its bytes, so that empty messages count too.
pub const fn message_cost(len: usize) -> u64 {
    len as u64 + 64
}

/// A moment on the job's clock, in nanoseconds; virtual on sim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// A moment that never comes, for waits that end only by what they wait for.
    pub const NEVER: Time = Time(u64::MAX);

    /// The moment `duration` after this moment.
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

/// The layer that a message is for. Each port has a queue of its own at the receiver.
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

    /// The port with this number, if it is a port's number: for bytes that another process wrote.
    pub fn from_index(index: usize) -> Option<Port> {
        [Port::Rma, Port::Store, Port::Snapshot, Port::User].get(index).copied()
    }
}

/// A message as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The sender.
    pub from: MemberId,
    /// The sender's epoch when it was sent; the receiver's view is at least as new.
    pub epoch: Epoch,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// An activity made by [`Engine::spawn`].
#[derive(Clone, Debug)]
pub struct Activity(Arc<AtomicBool>);

impl Activity {
    pub(crate) fn new() -> Activity {
        Activity(Arc::new(AtomicBool::new(false)))
    }

    pub(crate) fn finish(&self) {
        // Release, with the acquire in `is_finished`: an activity that sees this activity finished
        // sees all that it did.
        self.0.store(true, Ordering::Release);
    }

    /// Whether the activity has ended.
    pub fn is_finished(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A fault to inject into a member, in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Kill it, as by SIGKILL, without waiting for the notice.
    Kill(MemberId),
    /// Stop it, as by SIGSTOP.
    Stop(MemberId),
    /// Let it go on, as by SIGCONT.
    Resume(MemberId),
    /// The caller dies at its n-th engine step from now, counted over all its activities; a step
    /// may be in the middle of a put.
    DieAtStep(u64),
    /// The caller stops at its n-th engine step from now, until another process resumes it.
    StopAtStep(u64),
}

/// Keeps [`Engine`] to the engines of this crate, so that further methods break no other crate.
mod sealed {
    /// Implemented by the engines of this crate.
    pub trait Sealed {}
}

/// The calls of an engine; see the [module](self) for the rules that all calls share.
///
/// Programs use them as methods of [`crate::Job`]. The trait is sealed: it can be read here, and is
/// implemented by the engines of this crate alone.
///
/// `at` is the epoch that an operation belongs to. `target` may be the caller itself.
pub trait Engine: sealed::Sealed {
    // ---- Members.

    /// This member.
    fn me(&self) -> MemberId;

    /// How many members the job was started with, spares and the dead included. Their ids are
    /// `0..members`.
    fn members(&self) -> usize;

    /// The failure domain of a member: a path such as `rack3/node17`, empty if none is known.
    fn domain(&self, member: MemberId) -> Result<String>;

    // ---- Deaths.

    /// The epoch of this member's view. A single load.
    fn epoch(&self) -> Epoch;

    /// This member's view. The call acknowledges nothing and waits for no other member.
    fn view(&self) -> View;

    /// Makes sure that `member` is dead: kills it if it lives, waits for the proof, and returns
    /// once this member's view has it. [`Error::Timeout`] if the proof does not come until `until`.
    /// A member that fences itself ends its process.
    fn fence(&self, member: MemberId, until: Time) -> Result<()>;

    /// Whether this member has left the job or was declared dead.
    fn has_ended(&self) -> bool;

    /// Ends this member's part in the job. The others see it as dead, marked as [`View::left`]; all
    /// further calls return [`Error::Ended`].
    fn leave(&self) -> Result<()>;

    // ---- Memory.

    /// How long a member's segment is now. It only grows. The answer for another member may take a
    /// round trip.
    fn segment_len(&self, target: MemberId) -> Result<u64>;

    /// Makes this member's own segment at least `len` bytes long; the new bytes are zero. No other
    /// member takes part: the others reach the new range as soon as the call has returned.
    /// [`Error::OutOfMemory`] changes nothing.
    fn grow(&self, len: u64) -> Result<()>;

    /// How long this member's own segment can become at present: up to its limit, and as far as
    /// the machine has memory. The answer changes nothing and promises nothing.
    fn segment_limit(&self) -> Result<u64>;

    /// Starts a one-sided operation. The returned operation may be complete already.
    fn start(&self, at: Epoch, target: MemberId, operation: Operation<'_>) -> Pending;

    /// Starts a compound operation: several small operations on a single target, executed in order
    /// as long as each finds the word that it expects. Where the target is remote, that takes a
    /// single round trip. Each step is an operation of its own: operations of other members may
    /// come in between. Only the first step is checked against `at`, so that the compound operation
    /// is refused as a whole or not at all. If the target dies, or the call ends with a timeout,
    /// any number of steps may be done. [`Error::MessageTooLong`] beyond [`COMPOUND_LEN_MAX`].
    fn start_compound(&self, at: Epoch, target: MemberId, steps: &[CompoundStep<'_>]) -> Pending {
        Pending::ready(target, run_compound(self, at, target, steps))
    }

    /// The result of an operation if it is complete, once. Also moves data, so that polling alone
    /// makes progress.
    fn poll(&self, pending: &mut Pending) -> Option<Result<Done>>;

    /// Waits for an operation: until it is complete, its target is dead, or the time limit is over
    /// ([`Error::Timeout`], outcome unknown).
    fn wait(&self, mut pending: Pending) -> Result<Done> {
        self.wait_answer(&mut pending)
    }

    /// Waits for an operation as [`Engine::wait`] does. After [`Error::Timeout`] the caller still
    /// has the operation, and can poll it or wait for it again: it learns the outcome as soon as
    /// the target answers.
    fn wait_answer(&self, pending: &mut Pending) -> Result<Done> {
        if let Some(result) = self.poll(pending) {
            return result;
        }
        let limit = self.time_limit();
        let until = deadline::until_answer(self.now(), limit, pending.target);
        loop {
            let bell = self.bell();
            if let Some(result) = self.poll(pending) {
                return result;
            }
            if self.now() >= until {
                return Err(deadline::timeout(pending.target, limit));
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

    /// Reads the word at `offset`.
    fn load(&self, at: Epoch, target: MemberId, offset: u64) -> Result<u64> {
        self.wait(self.start(at, target, Operation::Load { offset })).map(Done::word)
    }

    /// Replaces the word at `offset` by `new` if it is `expected`; returns the word that was there
    /// before.
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

    /// Adds `delta` to the word at `offset`, wrapping; returns the word that was there before.
    fn fetch_add(&self, at: Epoch, target: MemberId, offset: u64, delta: u64) -> Result<u64> {
        self.wait(self.start(at, target, Operation::FetchAdd { offset, delta })).map(Done::word)
    }

    /// Whether all members map each other's memory. Operations then either happen or are refused
    /// before their call returns.
    fn is_mapped(&self) -> bool {
        false
    }

    /// Whether this member operates on the segment of `member` by its own instructions, and not by
    /// a request that `member` executes.
    fn is_member_mapped(&self, member: MemberId) -> bool {
        member == self.me() || self.is_mapped()
    }

    /// The dead in the order in which they entered the view, where all members share that order:
    /// the first `n` of them are the dead of [`Epoch`] `n`. `None` on engines where each member has
    /// a view of its own, or where the memory of the dead is gone; on those,
    /// [`Engine::read_dead_segment`] and [`Engine::discard_dead_segment`] are unsupported, too.
    fn death_order(&self) -> Option<Vec<MemberId>> {
        None
    }

    /// Reads the segment of a dead member, which the other calls refuse to do. The dead write no
    /// more, but a survivor that was in the middle of an operation when the view changed completes
    /// it. The content may be damaged by the cause of the death. The segment of a member that left
    /// on purpose can be read as well; the leaver writes nothing there after it has left.
    /// [`Error::Dead`] if the member lives, or its segment is gone.
    fn read_dead_segment(&self, dead: MemberId, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let _ = (dead, offset, buffer);
        Err(Error::Unsupported { what: "reading the memory of the dead on this engine" })
    }

    /// Gives the segment of a dead member back to the system. From then on it reads as zeros, or
    /// not at all. The call can be repeated, also by several members.
    fn discard_dead_segment(&self, dead: MemberId) -> Result<()> {
        let _ = dead;
        Err(Error::Unsupported { what: "discarding the memory of the dead on this engine" })
    }

    /// Returns when this member executes no request of a member that its view has as dead, and will
    /// execute none. On engines where each member operates on the memory of others by itself, the
    /// dead have no requests.
    fn drain_requests_of_dead(&self) {}

    /// Whether a local member may still be executing a request of a dead member against memory that
    /// this member maps; the local member may also be stopped in the middle of it. Memory of remote
    /// members needs no such check: a request of this member that arrives there tells the target of
    /// the death, and the target then drops requests of the dead.
    fn is_serving_dead(&self) -> bool {
        self.server_of_dead().is_some()
    }

    /// A local member that may still be executing a request of a dead member; see
    /// [`Engine::is_serving_dead`].
    fn server_of_dead(&self) -> Option<MemberId> {
        None
    }

    // ---- Messages.

    /// Sends a message of at most [`MESSAGE_LEN_MAX`] bytes and rings the receiver's bell. `Ok`
    /// means that it is on its way: messages from a member to another arrive once, in order, unless
    /// either dies. A sender waits while its messages for this port fill the [`MESSAGE_CREDIT`] at
    /// the receiver. [`Error::Timeout`] if the receiver does not take messages for the time limit;
    /// the message is then not delivered.
    fn send(&self, to: MemberId, port: Port, bytes: &[u8]) -> Result<()>;

    /// Whether this engine has [`Engine::try_publish`].
    fn can_publish(&self) -> bool {
        false
    }

    /// Sends a message of at most [`PUBLISH_LEN_MAX`] bytes to several members, *all or nothing*,
    /// without waiting: `false`, and nothing was sent, if any of them has no room now. Receivers
    /// that are known to be dead are skipped. If the caller dies inside the call, either each
    /// living receiver gets the message or none does. The message outlives its sender: a receiver
    /// that knows of the sender's death and then receives until its queue is empty has received the
    /// message, and all that the sender had sent to it before.
    fn try_publish(&self, to: &[MemberId], port: Port, bytes: &[u8]) -> Result<bool> {
        let _ = (to, port, bytes);
        Err(Error::Unsupported { what: "publishing messages on this engine" })
    }

    /// Sends a message of at most [`TRY_SEND_LEN_MAX`] bytes, as [`Engine::send`] does but without
    /// waiting: `false`, and nothing was sent, if the receiver has no room now.
    fn try_send(&self, to: MemberId, port: Port, bytes: &[u8]) -> Result<bool>;

    /// The next message for `port`, if any has arrived. Also moves data, as [`Engine::poll`] does.
    /// Messages of a dead member may still come.
    fn receive(&self, port: Port) -> Option<Message>;

    /// Says that the calling activity attends to `port` (`true`) or no longer does (`false`). While
    /// it attends, it takes the port's messages whenever its bell rang, so that the background need
    /// not wake for them as well. Only a hint for speed; use [`crate::Job::attend`], which cannot
    /// forget the second half.
    fn set_attending(&self, port: Port, attending: bool) {
        let _ = (port, attending);
    }

    // ---- Time and waiting.

    /// The job's clock. Clocks of members on different machines are not related.
    fn now(&self) -> Time;

    /// How long a call waits for a living member that does not answer. A call of a layer above may
    /// wait for several members; all its waits together last no longer. When this time is over, it
    /// may take up to an eighth of it more, at most a second, to give back what it has taken.
    fn time_limit(&self) -> Duration;

    /// Sleeps for `duration` on the job's clock, whatever rings meanwhile. Under the simulator time
    /// is virtual: a member that slept by any other means would block all members.
    fn sleep(&self, duration: Duration) {
        let until = self.now().after(duration);
        while self.now() < until {
            self.park(self.bell(), until);
        }
    }

    /// What this member's bell shows now.
    fn bell(&self) -> Bell;

    /// Waits until the bell shows another number than `seen`, or until `until`. May return early
    /// without a reason.
    fn park(&self, seen: Bell, until: Time);

    /// Rings a member's bell. Lost if the member is dead.
    fn ring(&self, member: MemberId) -> Result<()>;

    // ---- Activities.

    /// Runs `body` as a further activity of this member and rings the member's bell when it ends.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<Activity>;

    /// The background activity's form of [`Engine::park`]: it also moves incoming data and watches
    /// for deaths.
    fn park_in_background(&self, seen: Bell, until: Time) {
        self.park(seen, until);
    }

    // ---- Faults, for tests.

    /// Injects a fault; [`Error::Unsupported`] in builds without the feature `faults`.
    #[doc(hidden)]
    fn inject(&self, fault: Fault) -> Result<()>;
}

//! The shm engine: the members are processes of a single machine.
//!
//! All members map the same unnamed memory ([`JobMemory`]), so that a put is a copy and a word
//! operation an atomic instruction: no system call, and no work for the target. The memory has no
//! name in a file system, so that no death leaves a file behind.
//!
//! | file | what it has |
//! |---|---|
//! | `memory.rs` | the memory of a job: making it, finding it, claiming a place in it |
//! | `layout.rs` | where everything is in that memory |
//! | `attach.rs` | how a process becomes a member |
//! | `access.rs` | one-sided operations: put, get, load, swap, add, at an address of the mapping |
//! | `wait.rs` | sleeping on the bell, and watching for deaths meanwhile |
//! | `deaths.rs` | how a death is proven, declared and made known, within a millisecond |
//! | `death_log.rs` | the dead in the order of their deaths, and the epoch |
//! | `mailbox.rs` | messages |
//! | `status.rs` | the page of a member for observers outside of the job |
//! | `observe.rs` | the jobs of this user on this machine, read from outside |
//! | `node.rs` | what only the mpi engine needs, which runs this engine inside each node |
//! | `sys.rs` | system calls and raw memory, with nearly all unsafe code |
//! | `failpoint.rs` | planned faults, for tests |
//!
//! # On a death
//! The memory of a dead member stays mapped and could be read. It counts as lost all the same, as
//! after the loss of a node, so that programs do not come to depend on it. Only
//! [`Engine::read_dead_segment`] reads it.
//!
//! A forked child of a member is no member: it does not inherit the mapping, and every call in it
//! returns [`Error::Forked`].
//!
//! # Orderings
//! Words of segments, the epoch and the guard are accessed with sequential consistency. That gives
//! the word operations the single order that the engine promises, and orders each of them with the
//! epoch: a member that still sees the old epoch after its compare-and-swap made the swap before
//! any member acted on the new epoch. Bytes of puts are written relaxed, with a release fence
//! behind them and an acquire fence behind the reads of a get, so that a word written or read
//! afterwards is ordered with them; `order_puts` in `sys.rs` adds the case that these fences leave
//! out, a load after a put of the same thread.

mod access;
mod announcement;
mod attach;
mod death_log;
mod deaths;
#[cfg(feature = "faults")]
mod failpoint;
mod layout;
mod mailbox;
mod memory;
#[cfg(feature = "mpi")]
mod node;
mod observe;
mod status;
mod sys;
#[cfg(test)]
mod tests;
mod wait;

pub(crate) use access::Reach;
pub use layout::SHM_MEMBERS_MAX;
pub use memory::{JobMemory, available_memory};
pub(crate) use observe::{ObservedMemory, find_jobs};

use super::{
    Activity, Bell, Done, Engine, Epoch, Error, Fault, MemberId, Message, Operation, Pending, Port,
    Result, TRY_SEND_LEN_MAX, Time, View, deadline,
};
use crate::sync::lock;
use access::Segment;
use layout::{PAGE, Tables};
use mailbox::Mailboxes;
use rustix::process::{Pid, Signal};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The guard word of a member that has ended; see [`Shm::guard`].
const ENDED: u64 = u64::MAX;

/// A member on the shm engine.
pub struct Shm {
    me: MemberId,
    memory: Arc<JobMemory>,
    time_limit: Duration,
    segment_limit: u64,
    /// What every operation checks first, in a single word: 0 in a forked child, [`ENDED`] after
    /// the end, otherwise the epoch that `dead` belongs to, plus 1.
    guard: sys::ForkGuard,
    /// The dead of the epoch in `guard`, or of a newer epoch: a bit per member. Relaxed loads
    /// suffice: the bits are set before the guard, which an operation has loaded before. Where it
    /// has not, in `wait.rs`, a missing bit only costs a further check.
    dead: Vec<AtomicU64>,
    /// The epoch's word, found once. It is in `memory`, which outlives it here.
    epoch_word: &'static AtomicU64,
    /// The members' segments, found once. They are in `memory`, which outlives them here.
    segments: Vec<Segment>,
    mailboxes: Mailboxes,
    /// How often a waiting thread polls its bell before it yields.
    spin: u32,
    /// How many threads of this member wait to send.
    waiting_senders: AtomicU32,
    /// Held while the own segment grows.
    growing: Mutex<()>,
    #[cfg(feature = "faults")]
    planned: failpoint::Planned,
}

impl Shm {
    fn tables(&self) -> &Tables {
        &self.memory.tables
    }

    fn now_time(&self) -> Time {
        Time(sys::monotonic_ns().saturating_sub(self.tables().start_ns))
    }

    #[inline]
    fn is_known_dead(&self, member: MemberId) -> bool {
        let word = self.dead[member.index() / 64].load(Ordering::Relaxed);
        word & (1 << (member.index() % 64)) != 0
    }

    /// Applies the deaths of the current epoch. Ends the process if it finds itself among the dead.
    #[cold]
    fn catch_up(&self) -> Result<Epoch> {
        let guard = self.guard.word();
        loop {
            let before = self.check_guard()?;
            let view = self.tables().view();
            if view.dead.contains(self.me) {
                // A member that leaves sets the guard before it enters the log.
                self.check_guard()?;
                let me = self.me;
                sys::end_with(&format!(
                    "outlast: {me} was declared dead by the others; ending this process\n"
                ));
            }
            for member in view.dead.iter() {
                let (word, bit) = (member.index() / 64, 1 << (member.index() % 64));
                self.dead[word].fetch_or(bit, Ordering::SeqCst);
                // Messages of the dead are in the rings even if their sender died before it set
                // its bit. Set before the guard: a thread that finds the guard up to date finds
                // all messages of the dead.
                self.tables().pending(self.me, word).fetch_or(bit, Ordering::SeqCst);
                self.segments[member.index()].usable.store(0, Ordering::SeqCst);
            }
            let after = view.epoch.0 + 1;
            if before >= after {
                return Ok(view.epoch);
            }
            if guard.compare_exchange(before, after, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                // The process that raised the epoch may have been stopped before it rang this
                // bell, or have died, if it is a launcher, which no member watches.
                self.tables().ring_bell(self.me);
                return Ok(view.epoch);
            }
        }
    }

    /// The guard word, unless it says that this process may not use the job.
    #[inline]
    fn check_guard(&self) -> Result<u64> {
        match self.guard.word().load(Ordering::SeqCst) {
            0 => Err(Error::Forked),
            ENDED => Err(Error::Ended),
            guard => Ok(guard),
        }
    }

    /// The check that every operation on another member begins with: this process may use the job,
    /// the view is `at`, and the target exists and lives.
    #[inline]
    pub(in crate::engine) fn check_target(&self, at: Epoch, target: MemberId) -> Result<()> {
        let guard = self.check_guard()?;
        let mut epoch = self.tables().current_epoch();
        if epoch.0 + 1 != guard {
            epoch = self.catch_up()?;
        }
        if at != epoch && at != Epoch::ANY {
            return Err(Error::Stale { now: epoch });
        }
        self.check_member(target)?;
        if self.is_known_dead(target) { Err(Error::Dead { member: target }) } else { Ok(()) }
    }

    fn check_member(&self, member: MemberId) -> Result<()> {
        let members = self.tables().layout.members();
        if member.index() < members {
            Ok(())
        } else {
            Err(Error::UnknownMember { member, members })
        }
    }

    /// Counts an engine step, at which a planned fault may strike.
    #[inline]
    pub(in crate::engine) fn step(&self) {
        #[cfg(feature = "faults")]
        self.planned.step();
    }

    /// Sends a signal to a member that is not known to be dead.
    pub(in crate::engine) fn signal(&self, member: MemberId, signal: Signal) -> Result<()> {
        self.check_member(member)?;
        let pid = self.tables().pid(member).load(Ordering::SeqCst);
        let failed = |error: rustix::io::Errno| Error::System {
            what: "signalling a member",
            error: error.to_string(),
        };
        let pid = Pid::from_raw(pid as i32).ok_or(failed(rustix::io::Errno::SRCH))?;
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
        // Checked after the descriptor was opened: if the member lived then, the descriptor is its
        // process and not a later process with its number.
        if self.tables().detect_death(member) {
            return Ok(());
        }
        match rustix::process::pidfd_send_signal(pidfd.map_err(failed)?, signal) {
            // It has ended, and its parent has waited for it, since that check: the proof is there.
            Err(rustix::io::Errno::SRCH) => Ok(()),
            other => other.map_err(failed),
        }
    }
}

impl super::sealed::Sealed for Shm {}

impl Engine for Shm {
    #[inline]
    fn me(&self) -> MemberId {
        self.me
    }

    fn members(&self) -> usize {
        self.memory.tables.layout.members()
    }

    fn domain(&self, member: MemberId) -> Result<String> {
        self.check_member(member)?;
        if self.check_guard() == Err(Error::Forked) {
            return Err(Error::Forked);
        }
        Ok(self.tables().domain(member))
    }

    #[inline(always)]
    fn epoch(&self) -> Epoch {
        // A forked child does not have the tables.
        if self.guard.word().load(Ordering::Relaxed) == 0 {
            return Epoch(0);
        }
        // A caller that finds the old epoch after its put must have made the put before any member
        // acted on the new epoch.
        sys::order_puts();
        Epoch(self.epoch_word.load(Ordering::SeqCst))
    }

    fn view(&self) -> View {
        if self.guard.word().load(Ordering::Relaxed) == 0 {
            let layout = &self.tables().layout;
            return View::new(
                layout.regulars,
                layout.spares,
                Default::default(),
                Default::default(),
            );
        }
        self.tables().view()
    }

    fn fence(&self, member: MemberId, until: Time) -> Result<()> {
        self.check_guard()?;
        self.check_member(member)?;
        if member == self.me {
            sys::end_now();
        }
        let begin = self.now_time();
        let mut is_signalled = false;
        loop {
            let bell = self.bell_now();
            match self.check_target(Epoch::ANY, member) {
                Err(Error::Dead { .. }) => return Ok(()),
                other => other?,
            }
            // A member that has not joined has no process that could be signalled yet.
            if !is_signalled && self.tables().has_joined(member) {
                self.signal(member, Signal::KILL)?;
                is_signalled = true;
            }
            let now = self.now_time();
            if now >= until {
                return Err(Error::Timeout { member, limit: now.since(begin) });
            }
            self.park_foreground(bell, until);
        }
    }

    #[inline]
    fn has_ended(&self) -> bool {
        [0, ENDED].contains(&self.guard.word().load(Ordering::SeqCst))
    }

    fn leave(&self) -> Result<()> {
        self.check_guard()?;
        // The guard first: a thread of this process that then finds this member in the log knows
        // that it left by itself. Not while a thread publishes: a member that finds this member in
        // the log finds all messages that it published.
        {
            let _publishing = lock(&self.mailboxes.publishing);
            self.guard.word().store(ENDED, Ordering::SeqCst);
        }
        self.memory.depart(self.me);
        // If another process raised the epoch, it may not have rung this bell yet.
        self.tables().ring_bell(self.me);
        Ok(())
    }

    fn segment_len(&self, target: MemberId) -> Result<u64> {
        self.check_target(Epoch::ANY, target)?;
        Ok(self.tables().segment_len(target).load(Ordering::Acquire))
    }

    fn grow(&self, len: u64) -> Result<()> {
        self.check_guard()?;
        let _growing = lock(&self.growing);
        let current = self.tables().segment_len(self.me).load(Ordering::Relaxed);
        if len <= current {
            return Ok(());
        }
        let refuse = |reason: String| Err(Error::OutOfMemory { wanted: len, reason });
        if len > self.segment_limit {
            let limit = self.segment_limit;
            return refuse(format!(
                "this member is limited to {limit} bytes; start the job with a larger limit \
                 (--memory)"
            ));
        }
        let new_len =
            len.next_multiple_of(PAGE as u64).min(self.tables().layout.segment_limit as u64);
        // The kernel would promise memory that it does not have, and kill a process later.
        let available = available_memory();
        if new_len - current > available {
            return refuse(format!("only {available} bytes of memory are available"));
        }
        let offset = self.tables().layout.segment(self.me) + current as usize;
        if let Err(error) =
            memory::allocate(self.memory.file.as_fd(), offset, (new_len - current) as usize)
        {
            return refuse(error.to_string());
        }
        // Release: a member that sees the length may touch the memory behind it.
        self.tables().segment_len(self.me).store(new_len, Ordering::Release);
        Ok(())
    }

    fn segment_limit(&self) -> Result<u64> {
        self.check_guard()?;
        let len = self.tables().segment_len(self.me).load(Ordering::Relaxed);
        Ok(self.segment_limit.min(len.saturating_add(available_memory())))
    }

    fn death_order(&self) -> Option<Vec<MemberId>> {
        self.check_guard().ok()?;
        Some(self.tables().death_order(self.tables().current_epoch().0))
    }

    fn read_dead_segment(&self, dead: MemberId, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let len = self.dead_segment_len(dead)?;
        Operation::Get { offset, len: buffer.len() }.check(dead, len)?;
        self.step();
        self.tables().mapping.read(self.tables().layout.segment(dead) + offset as usize, buffer);
        fence(Ordering::Acquire);
        Ok(())
    }

    fn discard_dead_segment(&self, dead: MemberId) -> Result<()> {
        let len = self.dead_segment_len(dead)?;
        let begin = self.tables().layout.segment(dead);
        memory::deallocate(self.memory.file.as_fd(), begin, len as usize)
            .map_err(|error| Error::System { what: "giving memory back", error: error.to_string() })
    }

    fn start(&self, at: Epoch, target: MemberId, operation: Operation<'_>) -> Pending {
        let result = match operation {
            Operation::Put { offset, data } => {
                self.put(at, target, offset, data).map(|()| Done::Put)
            }
            Operation::Get { offset, len } => {
                // Checked before the buffer is made: a wrong length must not allocate.
                self.locate(at, target, offset, len).and_then(|_| {
                    let mut bytes = vec![0; len];
                    self.get(at, target, offset, &mut bytes).map(|()| Done::Get(bytes))
                })
            }
            Operation::Load { offset } => self.load(at, target, offset).map(Done::Word),
            Operation::CompareAndSwap { offset, expected, new } => {
                self.compare_and_swap(at, target, offset, expected, new).map(Done::Word)
            }
            Operation::FetchAdd { offset, delta } => {
                self.fetch_add(at, target, offset, delta).map(Done::Word)
            }
        };
        Pending::ready(target, result)
    }

    fn poll(&self, pending: &mut Pending) -> Option<Result<Done>> {
        pending.take()
    }

    #[inline]
    fn put(&self, at: Epoch, target: MemberId, offset: u64, data: &[u8]) -> Result<()> {
        self.put_bytes(at, target, offset, data)
    }

    #[inline]
    fn get(&self, at: Epoch, target: MemberId, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.get_bytes(at, target, offset, buffer)
    }

    #[inline]
    fn load(&self, at: Epoch, target: MemberId, offset: u64) -> Result<u64> {
        self.load_word(at, target, offset)
    }

    #[inline]
    fn compare_and_swap(
        &self,
        at: Epoch,
        target: MemberId,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64> {
        self.swap_word(at, target, offset, expected, new)
    }

    #[inline]
    fn fetch_add(&self, at: Epoch, target: MemberId, offset: u64, delta: u64) -> Result<u64> {
        self.add_to_word(at, target, offset, delta)
    }

    #[inline(always)]
    fn is_mapped(&self) -> bool {
        true
    }

    fn send(&self, to: MemberId, port: Port, bytes: &[u8]) -> Result<()> {
        let until = deadline::until_answer(self.now_time(), self.time_limit, to);
        let sent = self.send_message(to, port, bytes, until);
        sent.map_err(|error| match error {
            Error::Timeout { member, limit } => deadline::timeout(member, limit),
            other => other,
        })
    }

    fn try_send(&self, to: MemberId, port: Port, bytes: &[u8]) -> Result<bool> {
        // Short enough for a single fragment in the smallest ring, so that it is written as a whole
        // or not at all.
        if bytes.len() > TRY_SEND_LEN_MAX {
            return Err(Error::MessageTooLong { len: bytes.len() });
        }
        match self.send_message(to, port, bytes, Time(0)) {
            Ok(()) => Ok(true),
            Err(Error::Timeout { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn can_publish(&self) -> bool {
        true
    }

    fn try_publish(&self, to: &[MemberId], port: Port, bytes: &[u8]) -> Result<bool> {
        self.publish_message(to, port, bytes)
    }

    fn receive(&self, port: Port) -> Option<Message> {
        // After leaving, messages that had arrived may still be taken; a forked child has none.
        if self.guard.word().load(Ordering::Relaxed) == 0 {
            None
        } else {
            self.receive_message(port)
        }
    }

    fn set_attending(&self, port: Port, attending: bool) {
        if self.check_guard().is_err() {
            return;
        }
        let count = self.tables().attending(self.me, port);
        if attending {
            count.fetch_add(1, Ordering::SeqCst);
        } else if count.fetch_sub(1, Ordering::SeqCst) == 1 && self.may_have_message(port) {
            // Messages that came while the port was attended to did not ring the background's bell.
            self.tables().ring_background(self.me);
        }
    }

    fn now(&self) -> Time {
        self.now_time()
    }

    fn time_limit(&self) -> Duration {
        self.time_limit
    }

    fn bell(&self) -> Bell {
        if self.guard.word().load(Ordering::Relaxed) == 0 { Bell(0) } else { self.bell_now() }
    }

    fn park(&self, seen: Bell, until: Time) {
        // No process rings the bell of a process that is no member: it must not sleep for ever.
        if self.check_guard().is_err() {
            return std::thread::yield_now();
        }
        self.park_foreground(seen, until);
    }

    fn ring(&self, member: MemberId) -> Result<()> {
        self.check_target(Epoch::ANY, member)?;
        self.tables().ring_bell(member);
        Ok(())
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<Activity> {
        self.check_guard()?;
        let activity = Activity::new();
        let (finished, memory, me) = (activity.clone(), self.memory.clone(), self.me);
        let run = move || {
            // The panic hook has reported a panic. Threads that wait for the activity must not wait
            // for ever.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            finished.finish();
            memory.tables.ring_bell(me);
        };
        std::thread::Builder::new().name(name.into()).spawn(run).map_err(|error| {
            Error::System { what: "starting a thread", error: error.to_string() }
        })?;
        Ok(activity)
    }

    fn park_in_background(&self, seen: Bell, until: Time) {
        if self.check_guard() == Err(Error::Forked) {
            return std::thread::yield_now();
        }
        // The bell does not ring again for messages that came after the last check and before the
        // bell was noted.
        if self.check_guard().is_ok() {
            self.take_in_all();
        }
        let (bell, sleeps) =
            (self.tables().background_bell(self.me), self.tables().background_sleeps(self.me));
        self.watch(bell, (seen.0 >> 32) as u32, sleeps, until);
        if self.check_guard().is_ok() {
            self.take_in_all();
        }
    }

    fn inject(&self, fault: Fault) -> Result<()> {
        if !cfg!(feature = "faults") {
            return Err(Error::Unsupported {
                what: "fault injection; build with the feature `faults`, or use \
                       `outlast run --kill`",
            });
        }
        self.check_guard()?;
        match fault {
            Fault::Kill(member) => self.signal(member, Signal::KILL),
            Fault::Stop(member) => self.signal(member, Signal::STOP),
            Fault::Resume(member) => self.signal(member, Signal::CONT),
            #[cfg(feature = "faults")]
            Fault::DieAtStep(steps) => {
                self.planned.set(steps, failpoint::Act::Die);
                Ok(())
            }
            #[cfg(feature = "faults")]
            Fault::StopAtStep(steps) => {
                self.planned.set(steps, failpoint::Act::Stop);
                Ok(())
            }
            #[cfg(not(feature = "faults"))]
            Fault::DieAtStep(_) | Fault::StopAtStep(_) => unreachable!("refused above"),
        }
    }
}

pub(crate) use sys::PIDFD_NEEDED;
#[cfg(feature = "mpi")]
pub(in crate::engine) use sys::has_replaced_memory;

/// Prepares a command: the process that it starts inherits a descriptor.
pub(crate) fn pass_descriptor(
    command: &mut std::process::Command,
    file: Arc<std::os::fd::OwnedFd>,
) {
    sys::inherit(command, file, false);
}

/// With `terminate`, prepares a command so that the kernel sends its process SIGTERM when the
/// thread that started it ends: for a program that has to end other processes before itself.
pub(crate) fn terminate_with_launcher(command: &mut std::process::Command, terminate: bool) {
    if terminate {
        sys::terminate_with_parent(command);
    }
}

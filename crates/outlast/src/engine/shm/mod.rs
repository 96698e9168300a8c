//! The shm engine: the members are processes of one machine.
//!
//! All members map the same unnamed memory ([`JobMemory`]), so that a put is a copy and a word operation an atomic
//! instruction: no system call, no partner. Nothing has a name in a file system, so nothing is left behind whoever
//! dies. `layout.rs` says where things are, `deaths.rs` how the survivors learn of a death within a millisecond,
//! `mailbox.rs` how messages travel.
//!
//! The memory of a dead member stays mapped and could be read; it counts as lost all the same, as after the loss of
//! a node, so that programs do not come to depend on it. [`Engine::read_dead_segment`] is for those who ask for it.
//!
//! A forked child of a member is no member: it does not inherit the mapping, and every call in it says
//! [`Error::Forked`].

mod deaths;
#[cfg(feature = "faults")]
mod failpoint;
mod layout;
mod mailbox;
mod memory;
mod sys;
#[cfg(test)]
mod tests;

pub use layout::SHM_MEMBERS_MAX;
pub use memory::{JobMemory, available_memory};

use super::mapped::{Direct, Memory};
use super::{
    Activity, Bell, Done, Engine, Epoch, Error, Fault, JoinError, JoinOptions, MemberId, Message,
    Operation, Pending, Port, Result, TRY_SEND_LEN_MAX, Time, View,
};

use crate::sync::lock;
use layout::{HEADER_EPOCH, PAGE, Tables};
use mailbox::Mailboxes;
use rustix::process::{Pid, Signal};
use std::cell::Cell;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// If asked to, prepares a command so that the kernel asks its process to end when the thread that started it ends: for
/// a program that has others to end before itself.
pub(crate) fn terminate_with_launcher(command: &mut std::process::Command, terminate: bool) {
    if terminate {
        sys::terminate_with_parent(command);
    }
}

/// How often a waiting thread looks at its bell before it lets others run, if members share cores: short enough not to
/// take a core from the one who is to answer.
const SPIN_SHARED: u32 = 4;

/// The same if there is a core for every member: some microseconds, for an answer that is on its way. Letting others run
/// costs as much as a message between two cores; but another one may be on this core all the same.
const SPIN_ALONE: u32 = 64;

/// How often it then lets others run before it sleeps. Members that share a core hand it to each other so for a
/// fraction of what sleeping and waking costs; a member that is alone on its core sleeps after some tens of
/// microseconds.
const YIELDS: u32 = 100;

/// Set in the guard word when this member has ended; see [`Shm::guard`].
const ENDED: u64 = u64::MAX;

thread_local! {
    /// Whether this thread is the background of a member.
    static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// A member on the shm engine.
pub struct Shm {
    me: MemberId,
    memory: Arc<JobMemory>,
    time_limit: Duration,
    segment_limit: u64,
    /// In one word what every operation checks first: 0 in a forked child, [`ENDED`] after the end, otherwise the
    /// epoch that `dead` belongs to, plus one.
    guard: sys::ForkGuard,
    /// The dead of the epoch in `guard`, or of a newer one: a bit per member.
    dead: Vec<AtomicU64>,
    /// The epoch's word and the members' segments, found once. They are in `memory`, which outlives them here.
    epoch_word: &'static AtomicU64,
    segments: Vec<Segment>,
    mailboxes: Mailboxes,
    /// How often a waiting thread looks at its bell before it lets others run.
    spin: u32,
    /// How many threads of this member wait to send.
    waiting_senders: AtomicU32,
    /// Held while the own segment grows.
    growing: Mutex<()>,
    #[cfg(feature = "faults")]
    planned: failpoint::Planned,
}

/// A member's segment, as this process reaches it.
struct Segment {
    /// What may be used of it: its length as far as it was asked for, plus 1; 0 once the member is known to be dead. One
    /// comparison tells both.
    usable: AtomicU64,
    /// All that it may come to be.
    range: sys::Range<'static>,
}

impl Shm {
    /// Finds the job that this process was started in, or makes a job of one, and takes its place in it.
    pub(crate) fn attach(options: &JoinOptions) -> std::result::Result<Shm, JoinError> {
        let (memory, me) = match JobMemory::find()? {
            Some(found) => found,
            None => (JobMemory::create(1, 0, options.segment_limit)?, MemberId(0)),
        };
        let members = memory.tables.layout.members();
        Shm::take_place(memory, me, members, options)
    }

    /// Takes the place of member `me` in a job that has so many members on this machine.
    pub(in crate::engine) fn take_place(
        memory: JobMemory,
        me: MemberId,
        neighbours: usize,
        options: &JoinOptions,
    ) -> std::result::Result<Shm, JoinError> {
        let domain = match &options.domain {
            Some(path) => path.clone(),
            None => std::env::var("OUTLAST_DOMAIN").unwrap_or_default(),
        };
        let guard = sys::ForkGuard::new()
            .map_err(|error| JoinError::System { what: "mapping a page that fork wipes", error })?;
        sys::register_for_interrupts();
        memory.claim(me, &domain)?;
        guard.word().store(1, Ordering::SeqCst);
        let members = memory.tables.layout.members();
        let limit = memory.tables.layout.segment_limit as u64;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let find = |offset: usize, len: usize| {
            // SAFETY: kept in the same structure as the memory, which unmaps it when the last one that holds it is
            // dropped, or not at all in a forked child, where nobody gets past the guard.
            unsafe { memory.tables.mapping.range(offset, len).detached() }
        };
        let [epoch_word] = find(HEADER_EPOCH, 8).words(0).expect("a word");
        let segment = |index: usize| memory.tables.layout.segment(MemberId(index as u32));
        let segments = (0..members)
            .map(|index| Segment {
                usable: AtomicU64::new(1),
                range: find(segment(index), limit as usize),
            })
            .collect();
        Ok(Shm {
            me,
            memory: Arc::new(memory),
            time_limit: options.time_limit,
            segment_limit: options.segment_limit.map_or(limit, |own| own.min(limit)),
            guard,
            dead: (0..members.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            epoch_word,
            segments,
            mailboxes: Mailboxes::new(members),
            spin: if neighbours <= cores { SPIN_ALONE } else { SPIN_SHARED },
            waiting_senders: AtomicU32::new(0),
            growing: Mutex::new(()),
            #[cfg(feature = "faults")]
            planned: failpoint::Planned::default(),
        })
    }

    /// Starts the background thread, which the kernel watches from then on in place of this member.
    pub(crate) fn start_background(
        &self,
        body: Box<dyn FnOnce() + Send>,
    ) -> std::result::Result<(), JoinError> {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (memory, me) = (self.memory.clone(), self.me);
        let run = move || {
            let (mapping, word) = (&memory.tables.mapping, memory.tables.robust_word_offset(me));
            let owned = sys::own_robust_word(mapping, word, memory.tables.robust_head_offset(me));
            let is_owned = owned.is_ok();
            IS_BACKGROUND.set(true);
            let _ = sender.send(owned);
            if !is_owned {
                return;
            }
            // A member without its background would be alive and deaf: better that it ends, and all know.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err() {
                sys::end_with(&format!(
                    "outlast: the background of {me} panicked; ending this process\n"
                ));
            }
            // The thread that leaves may not have come to the log yet. Should the process die before it does, only
            // the word would tell the others, and that is about to be given up.
            memory.depart(me);
            sys::disown_robust_word(mapping, word);
        };
        std::thread::Builder::new()
            .name("outlast".into())
            .spawn(run)
            .map_err(|error| JoinError::System { what: "starting the background thread", error })?;
        receiver
            .recv()
            .unwrap_or_else(|_| Err(std::io::Error::other("the thread ended at once")))
            .map_err(|error| JoinError::System { what: "set_robust_list", error })?;
        self.memory.joined(self.me);
        Ok(())
    }

    /// Waits until every member has joined or is dead.
    pub(crate) fn wait_for_all(&self) -> std::result::Result<(), JoinError> {
        let until = self.deadline();
        loop {
            let bell = self.bell_now();
            let view = self.tables().view();
            let missing = view.living().find(|&member| !self.tables().has_joined(member));
            let Some(member) = missing else { return Ok(()) };
            if self.now_time() >= until {
                // Not a member that others could rely on: it leaves, so that nobody waits for it.
                let _ = self.leave();
                return Err(JoinError::Timeout { member, limit: self.time_limit });
            }
            self.park_foreground(bell, until);
        }
    }

    fn tables(&self) -> &Tables {
        &self.memory.tables
    }

    fn now_time(&self) -> Time {
        Time(sys::monotonic_ns().saturating_sub(self.tables().start_ns))
    }

    fn deadline(&self) -> Time {
        self.now_time().after(self.time_limit)
    }

    /// The bell as all threads of the member see it, and, in the upper half, as its background does.
    fn bell_now(&self) -> Bell {
        let foreground = self.tables().bell(self.me).load(Ordering::SeqCst);
        let background = self.tables().background_bell(self.me).load(Ordering::SeqCst);
        Bell(u64::from(background) << 32 | u64::from(foreground))
    }

    fn until_ns(&self, until: Time) -> u64 {
        until.0.saturating_add(self.tables().start_ns)
    }

    /// Looks at the bell for a moment, lets others run for a while, then sleeps on it.
    fn park_foreground(&self, seen: Bell, until: Time) {
        let bell = self.tables().bell(self.me);
        if IS_BACKGROUND.get() {
            // A service that waits in the middle of its work. There may be nobody else who watches.
            return self.watch(bell, seen.0 as u32, self.tables().sleepers(self.me), until);
        }
        for _ in 0..self.spin {
            if bell.load(Ordering::Relaxed) != seen.0 as u32 {
                return;
            }
            std::hint::spin_loop();
        }
        for _ in 0..YIELDS {
            std::thread::yield_now();
            if bell.load(Ordering::Relaxed) != seen.0 as u32 {
                return;
            }
        }
        let sleepers = self.tables().sleepers(self.me);
        // Sequentially consistent with `ring_bell`: either the ringer sees this sleeper, or the bell has changed.
        sleepers.fetch_add(1, Ordering::SeqCst);
        sys::wait_on(bell, seen.0 as u32, self.until_ns(until));
        sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Sleeps on a bell and on the words of the others, for a while, and declares those that have died.
    fn watch(&self, bell: &AtomicU32, seen: u32, sleepers: &AtomicU32, until: Time) {
        let look_again = self.now_time().after(deaths::LOOK_INTERVAL);
        let mut words = vec![(bell, seen)];
        words.extend(self.watched());
        let is_marked = |&(_, word): &(_, u32)| word & sys::OWNER_DIED != 0;
        if !words[1..].iter().any(is_marked) {
            // Sequentially consistent with the ringing of the bell, as in `park_foreground`.
            sleepers.fetch_add(1, Ordering::SeqCst);
            sys::wait_on_any(&words, self.until_ns(until.min(look_again)));
            sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        if self.check_guard().is_ok() {
            self.look_at_all();
            let _ = self.catch_up();
        }
    }

    /// The words of the members that this one watches: all that live, or as many as the kernel takes, from the next
    /// one on, so that everybody is watched by many.
    fn watched(&self) -> Vec<(&AtomicU32, u32)> {
        let members = self.tables().layout.members();
        (1..members)
            .map(|distance| MemberId(((self.me.index() + distance) % members) as u32))
            // Who has not come yet owns no word; whoever comes rings for all.
            .filter(|&member| {
                !self.is_known_dead(member) && self.tables().pid(member).load(Ordering::SeqCst) != 0
            })
            .take(sys::WAIT_WORDS_MAX - 1)
            .map(|member| self.tables().robust_word(member))
            .map(|word| (word, word.load(Ordering::SeqCst)))
            .collect()
    }

    /// Looks at every member that is not known to be dead, and declares those that the kernel has marked.
    fn look_at_all(&self) {
        for index in 0..self.tables().layout.members() {
            let member = MemberId(index as u32);
            if member != self.me && !self.is_known_dead(member) {
                self.tables().look_at(member);
            }
        }
    }

    #[inline]
    fn is_known_dead(&self, member: MemberId) -> bool {
        let word = self.dead[member.index() / 64].load(Ordering::Relaxed);
        word & (1 << (member.index() % 64)) != 0
    }

    /// Catches up with the epoch. Ends the process if it finds itself among the dead.
    #[cold]
    fn catch_up(&self) -> Result<Epoch> {
        let guard = self.guard.word();
        loop {
            let before = self.check_guard()?;
            let view = self.tables().view();
            if view.dead.contains(self.me) {
                // Leaving sets the guard before it enters the log.
                self.check_guard()?;
                let me = self.me;
                sys::end_with(&format!(
                    "outlast: {me} was declared dead by the others; ending this process\n"
                ));
            }
            for member in view.dead.iter() {
                let (word, bit) = (member.index() / 64, 1 << (member.index() % 64));
                self.dead[word].fetch_or(bit, Ordering::SeqCst);
                // What it had sent is there, also if it did not come to say so. Before the guard: who finds the guard
                // up to date finds what the dead have sent.
                self.tables().pending(self.me, word).fetch_or(bit, Ordering::SeqCst);
                self.segments[member.index()].usable.store(0, Ordering::SeqCst);
            }
            let after = view.epoch.0 + 1;
            if before >= after {
                return Ok(view.epoch);
            }
            if guard.compare_exchange(before, after, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                // Whoever raised the epoch may be stopped, or dead and no member, before it came to ring here.
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

    /// What every operation on another member begins with: may this process, is the view right, does the target
    /// exist and live.
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

    /// Checks an operation and says where in the mapping its range is, if nothing has changed since it was last looked
    /// at.
    #[inline(always)]
    fn locate_directly(
        &self,
        at: Epoch,
        target: MemberId,
        offset: u64,
        len: usize,
    ) -> Option<usize> {
        let guard = self.guard.word().load(Ordering::SeqCst);
        // A forked child does not have the tables: it must not look at the epoch.
        if guard == 0 {
            return None;
        }
        let epoch = Epoch(self.epoch_word.load(Ordering::SeqCst));
        // Acquire: the memory behind the length was allocated before.
        let usable = self.segments.get(target.index())?.usable.load(Ordering::Acquire);
        let may = epoch.0 + 1 == guard
            && (at == epoch || at == Epoch::ANY)
            && offset.saturating_add(len as u64) < usable;
        if may {
            self.step();
        }
        may.then(|| self.tables().layout.segment(target) + offset as usize)
    }

    /// The same, or why not.
    #[inline(always)]
    fn locate(&self, at: Epoch, target: MemberId, offset: u64, len: usize) -> Result<usize> {
        match self.locate_directly(at, target, offset, len) {
            Some(place) => Ok(place),
            None => self.locate_slowly(at, target, offset, len),
        }
    }

    /// The same, whatever has changed, or why not.
    #[cold]
    #[inline(never)]
    fn locate_slowly(&self, at: Epoch, target: MemberId, offset: u64, len: usize) -> Result<usize> {
        self.check_member(target).or_else(|error| self.check_guard().and(Err(error)))?;
        let usable = &self.segments[target.index()].usable;
        let before = usable.load(Ordering::SeqCst);
        self.check_target(at, target)?;
        let segment_len = self.tables().segment_len(target).load(Ordering::Acquire);
        Operation::Get { offset, len }.check(target, segment_len)?;
        // Fails if the member was found dead since it was looked at: then it stays so.
        let _ =
            usable.compare_exchange(before, segment_len + 1, Ordering::SeqCst, Ordering::SeqCst);
        self.step();
        Ok(self.tables().layout.segment(target) + offset as usize)
    }

    /// The same for a word.
    #[inline(always)]
    fn locate_word(&self, at: Epoch, target: MemberId, offset: u64) -> Result<usize> {
        if !offset.is_multiple_of(8) {
            self.check_target(at, target)?;
            return Err(Error::Unaligned { offset });
        }
        self.locate(at, target, offset, 8)
    }

    /// Checks once what every operation on a member checks, for several of them; see [`Reach`].
    #[inline]
    pub(crate) fn reach(&self, at: Epoch, target: MemberId) -> Result<Reach<'_>> {
        if let Some(epoch) = self.known_epoch()
            && (at == Epoch::ANY || at == epoch)
            && let Some(reach) = Direct::reach(self, target)
        {
            return Ok(reach);
        }
        self.reach_slowly(at, target)
    }

    #[cold]
    #[inline(never)]
    fn reach_slowly(&self, at: Epoch, target: MemberId) -> Result<Reach<'_>> {
        self.locate_slowly(at, target, 0, 0)?;
        let Segment { usable, range } = &self.segments[target.index()];
        Ok(self.reach_range(target, range.first(usable.load(Ordering::Acquire).saturating_sub(1))))
    }

    #[inline(always)]
    fn reach_range<'a>(&'a self, target: MemberId, range: sys::Range<'a>) -> Reach<'a> {
        #[cfg(not(feature = "faults"))]
        let _ = target;
        Reach {
            range,
            #[cfg(feature = "faults")]
            shm: self,
            #[cfg(feature = "faults")]
            target,
        }
    }

    /// How long the segment is that a dead member has left.
    fn remains_len(&self, dead: MemberId) -> Result<u64> {
        self.check_guard()?;
        self.check_member(dead)?;
        if !self.tables().view().dead.contains(dead) {
            return Err(Error::Dead { member: dead });
        }
        let len = self.tables().segment_len(dead).load(Ordering::Acquire);
        Ok(len.min(self.tables().layout.segment_limit as u64))
    }

    /// The C library's memcpy into a member's segment, with no check but that of the bounds: what benchmarks compare with.
    pub(crate) fn copy_in(&self, target: MemberId, offset: u64, bytes: &[u8]) {
        self.tables()
            .mapping
            .copy_in(self.tables().layout.segment(target) + offset as usize, bytes);
    }

    /// The same out of it.
    pub(crate) fn copy_out(&self, target: MemberId, offset: u64, bytes: &mut [u8]) {
        self.tables()
            .mapping
            .copy_out(self.tables().layout.segment(target) + offset as usize, bytes);
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
        // Looked at after the descriptor was opened: if the member lived then, the descriptor is its process and not
        // a later one with the same number.
        if self.tables().look_at(member) {
            return Ok(());
        }
        match rustix::process::pidfd_send_signal(pidfd.map_err(failed)?, signal) {
            // It has ended and was waited for since that look: the proof is there.
            Err(rustix::io::Errno::SRCH) => Ok(()),
            other => other.map_err(failed),
        }
    }
}

/// For the mpi engine, which puts the members of each node into one such job, with places for all members: those of other
/// nodes never take theirs, and are declared dead by what the messages between nodes say.
#[cfg(feature = "mpi")]
impl Shm {
    /// Whether this process is a forked child of a member, which may touch nothing.
    pub(in crate::engine) fn is_forked(&self) -> bool {
        self.guard.word().load(Ordering::SeqCst) == 0
    }

    /// Whether the member has taken its place here, now or in the past.
    pub(in crate::engine) fn has_joined(&self, member: MemberId) -> bool {
        self.tables().has_joined(member)
    }

    /// Enters deaths that other nodes know of into this node's log, and raises its epoch. Ends the process if it is
    /// among them and has not left.
    pub(in crate::engine) fn declare_dead(&self, members: impl Iterator<Item = (MemberId, bool)>) {
        for (member, has_left) in members {
            self.tables().declare_dead(member, has_left);
        }
        let _ = self.catch_up();
    }

    /// Says for whom this member is about to do something, before it looks whether that one is dead; `None` when it is done.
    pub(in crate::engine) fn set_served(&self, member: Option<MemberId>) {
        self.tables()
            .served(self.me)
            .store(member.map_or(0, |member| member.0 + 1), Ordering::SeqCst);
    }

    /// Whether someone of this node may be in the middle of something that a dead member has asked for.
    pub(in crate::engine) fn is_serving_dead(&self) -> bool {
        // The view first: who looked at it before a death entered it had said whom it serves before that.
        let view = self.tables().view();
        let is_serving =
            |server: MemberId| match self.tables().served(server).load(Ordering::SeqCst) {
                0 => false,
                number => view.dead.contains(MemberId(number - 1)),
            };
        !view.dead.is_empty() && view.living().any(is_serving)
    }

    /// This node turns away from a member of another node, for ever: see `quorum.rs` of the mpi engine.
    pub(in crate::engine) fn shun(&self, member: MemberId) {
        self.tables()
            .shunned(member.index() / 64)
            .fetch_or(1 << (member.index() % 64), Ordering::SeqCst);
    }

    /// Whether this node has turned away from a member.
    pub(in crate::engine) fn is_shunned(&self, member: MemberId) -> bool {
        self.tables().shunned(member.index() / 64).load(Ordering::SeqCst)
            & (1 << (member.index() % 64))
            != 0
    }

    /// The memory through which others may reach this member's segment and the words below: where it begins, how long it
    /// is, and where in it the segment begins. From now on it stays mapped until the process ends: nobody knows when the
    /// last of the others is done with it.
    pub(in crate::engine) fn expose(&self) -> (*mut u8, usize, u64) {
        std::mem::forget(self.memory.clone());
        let layout = &self.tables().layout;
        let segment = layout.segment(self.me);
        (self.tables().mapping.base(), segment + layout.segment_limit, segment as u64)
    }

    /// Where in the exposed memory of a member the word is that says how long its segment is.
    pub(in crate::engine) fn exposed_segment_len(member: MemberId) -> u64 {
        layout::Layout::segment_len(member) as u64
    }

    /// Where in the exposed memory of a member its epoch is.
    pub(in crate::engine) const EXPOSED_EPOCH: u64 = HEADER_EPOCH as u64;

    /// Ends this process after a word to whoever reads its output.
    pub(in crate::engine) fn end_with(last_words: &str) -> ! {
        sys::end_with(last_words)
    }

    /// Wakes the activities of this member that are in the middle of a call.
    pub(in crate::engine) fn ring_for_calls(&self) {
        self.tables().ring_foreground(self.me);
    }

    /// Rings this member's own bell for a message that came from elsewhere.
    pub(in crate::engine) fn ring_for_own_message(&self, port: Port) {
        self.tables().ring_for_message(self.me, port);
    }

    /// Rings this member's own bell.
    pub(in crate::engine) fn ring_own(&self) {
        self.tables().ring_bell(self.me);
    }

    /// Whether the bell has rung since, for the background or for all others.
    pub(in crate::engine) fn has_rung(&self, seen: Bell, for_background: bool) -> bool {
        match for_background {
            true => self.bell_now().0 >> 32 != seen.0 >> 32,
            false => self.bell_now().0 as u32 != seen.0 as u32,
        }
    }

    /// Sleeps until the bell rings, without looking at it for a while first: the caller has done so.
    pub(in crate::engine) fn sleep(&self, seen: Bell, until: Time, for_background: bool) {
        if for_background {
            return self.park_in_background(seen, until);
        }
        let (bell, sleepers) = (self.tables().bell(self.me), self.tables().sleepers(self.me));
        if IS_BACKGROUND.get() {
            return self.watch(bell, seen.0 as u32, sleepers, until);
        }
        // As in `park_foreground`.
        sleepers.fetch_add(1, Ordering::SeqCst);
        sys::wait_on(bell, seen.0 as u32, self.until_ns(until));
        sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A member's segment, for the operations that follow on one check of the view. They are those of the engine under
/// [`Epoch::ANY`], except that they are not refused either when the target is found dead meanwhile: its memory is still
/// there, and what is done to it counts for nobody. The caller must be able to bear that any of them is late.
#[derive(Clone, Copy)]
pub(crate) struct Reach<'a> {
    range: sys::Range<'a>,
    #[cfg(feature = "faults")]
    shm: &'a Shm,
    #[cfg(feature = "faults")]
    target: MemberId,
}

impl Reach<'_> {
    #[inline(always)]
    fn step(self) {
        #[cfg(feature = "faults")]
        self.shm.step();
    }
}

impl Memory for Reach<'_> {
    #[inline(always)]
    fn load<const N: usize>(self, offset: u64) -> Option<[u64; N]> {
        let words = self.range.words::<N>(offset)?;
        self.step();
        sys::order_puts();
        Some(std::array::from_fn(|index| words[index].load(Ordering::SeqCst)))
    }

    #[inline(always)]
    fn swap(self, offset: u64, expected: u64, new: u64) -> Option<bool> {
        let [word] = self.range.words(offset)?;
        self.step();
        let is_swapped =
            word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if is_swapped {
            sys::have_order();
        }
        Some(is_swapped)
    }

    #[inline(always)]
    fn put_words<const N: usize>(self, offset: u64, words: [u64; N]) -> bool {
        let Some(places) = self.range.words::<N>(offset) else { return false };
        // As in `put`: what was written before is not seen after this.
        fence(Ordering::Release);
        for (place, word) in places.iter().zip(words) {
            self.step();
            place.store(word, Ordering::Relaxed);
        }
        fence(Ordering::Release);
        sys::owe_order();
        true
    }

    #[inline(always)]
    fn put(self, offset: u64, data: &[u8]) -> bool {
        #[cfg(feature = "faults")]
        return self.shm.put(Epoch::ANY, self.target, offset, data).is_ok();
        #[cfg(not(feature = "faults"))]
        {
            let is_written = self.range.write(offset, data);
            // As in `put`.
            fence(Ordering::Release);
            sys::owe_order();
            is_written
        }
    }

    #[inline(always)]
    fn get(self, offset: u64, buffer: &mut [u8]) -> bool {
        self.step();
        sys::order_puts();
        let is_read = self.range.read(offset, buffer);
        fence(Ordering::Acquire);
        is_read
    }

    #[inline(always)]
    fn prefetch(self, offset: u64) {
        self.range.prefetch(offset);
    }
}

impl<'a> Direct<'a> for &'a Shm {
    type Memory = Reach<'a>;

    #[inline(always)]
    fn known_epoch(self) -> Option<Epoch> {
        let guard = self.guard.word().load(Ordering::SeqCst);
        // A forked child does not have the tables: it must not look at the epoch.
        if guard == 0 {
            return None;
        }
        // As in `epoch`.
        sys::order_puts();
        let epoch = self.epoch_word.load(Ordering::SeqCst);
        (epoch + 1 == guard).then_some(Epoch(epoch))
    }

    #[inline(always)]
    fn reach(self, member: MemberId) -> Option<Reach<'a>> {
        let segment = self.segments.get(member.index())?;
        // Acquire: the memory behind the length was allocated before. Nothing: nobody has looked yet, or it is dead.
        let usable = segment.usable.load(Ordering::Acquire);
        (usable > 1).then(|| self.reach_range(member, segment.range.first(usable - 1)))
    }

    #[inline(always)]
    fn is_over(self) -> bool {
        self.has_ended()
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
        // A put must not come late for those who act on a new epoch while its caller finds the old one afterwards.
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
        // The guard first: whoever then finds this member in the log knows that it left by itself. Not while a thread
        // publishes: whoever finds this member in the log finds all that it published.
        {
            let _publishing = lock(&self.mailboxes.publishing);
            self.guard.word().store(ENDED, Ordering::SeqCst);
        }
        self.memory.depart(self.me);
        // If another one raised the epoch, it may not have come to ring here.
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
                "this member is limited to {limit} bytes; start the job with a larger limit (--memory)"
            ));
        }
        let new_len =
            len.next_multiple_of(PAGE as u64).min(self.tables().layout.segment_limit as u64);
        // The kernel would promise memory that it does not have, and kill someone later.
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
        // Release: whoever sees the length may touch the memory behind it.
        self.tables().segment_len(self.me).store(new_len, Ordering::Release);
        Ok(())
    }

    fn death_order(&self) -> Option<Vec<MemberId>> {
        self.check_guard().ok()?;
        Some(self.tables().death_order(self.tables().current_epoch().0))
    }

    fn read_dead_segment(&self, dead: MemberId, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let len = self.remains_len(dead)?;
        Operation::Get { offset, len: buffer.len() }.check(dead, len)?;
        self.step();
        self.tables().mapping.read(self.tables().layout.segment(dead) + offset as usize, buffer);
        fence(Ordering::Acquire);
        Ok(())
    }

    fn discard_dead_segment(&self, dead: MemberId) -> Result<()> {
        let len = self.remains_len(dead)?;
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
                // Checked before the buffer is made: a length from a wild caller must not allocate.
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
        let place = self.locate(at, target, offset, data.len())?;
        if cfg!(feature = "faults") {
            // A test build may die or stop between the halves, which meet between two words of the target.
            let middle = (place + data.len() / 2).next_multiple_of(8) - place;
            let (first, second) = data.split_at(middle.min(data.len()));
            self.tables().mapping.write(place, first);
            self.step();
            self.tables().mapping.write(place + first.len(), second);
            self.step();
        } else {
            self.tables().mapping.write(place, data);
        }
        // What the caller writes next, by whatever means, is not seen before this.
        fence(Ordering::Release);
        sys::owe_order();
        Ok(())
    }

    #[inline]
    fn get(&self, at: Epoch, target: MemberId, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let place = self.locate(at, target, offset, buffer.len())?;
        sys::order_puts();
        self.tables().mapping.read(place, buffer);
        // What the caller reads next was not read before this.
        fence(Ordering::Acquire);
        Ok(())
    }

    #[inline]
    fn load(&self, at: Epoch, target: MemberId, offset: u64) -> Result<u64> {
        let place = self.locate_word(at, target, offset)?;
        sys::order_puts();
        Ok(self.tables().mapping.word(place).load(Ordering::SeqCst))
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
        let place = self.locate_word(at, target, offset)?;
        let word = self.tables().mapping.word(place);
        match word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(found) => {
                sys::have_order();
                Ok(found)
            }
            Err(found) => Ok(found),
        }
    }

    #[inline]
    fn fetch_add(&self, at: Epoch, target: MemberId, offset: u64, delta: u64) -> Result<u64> {
        let place = self.locate_word(at, target, offset)?;
        Ok(self.tables().mapping.word(place).fetch_add(delta, Ordering::SeqCst))
    }

    #[inline(always)]
    fn is_mapped(&self) -> bool {
        true
    }

    fn send(&self, to: MemberId, port: Port, bytes: &[u8]) -> Result<()> {
        self.send_message(to, port, bytes, self.deadline())
    }

    fn try_send(&self, to: MemberId, port: Port, bytes: &[u8]) -> Result<bool> {
        // Short enough for one fragment of the smallest ring, so that it is written whole or not at all.
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
        // After leaving, what had arrived may still be taken; in a forked child there is nothing.
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
            // What came while the port was attended to was not rung for at the background.
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
        // Nobody rings for a process that is no member; it must not sleep for ever.
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
            // A panic has been reported by the panic hook; whoever waits for the activity must not wait for ever.
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
        // What came after the last look and before the bell was noted rings for nobody any more.
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
                what: "fault injection; build with the feature `faults`, or use `outlast run --kill`",
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

//! How deaths are proven, declared and made known.
//!
//! # Proof
//! Each member's background thread owns a *robust word*: when the thread ends, in whatever way, the
//! kernel marks the word and wakes a waiter, long before it has torn down the memory of the
//! process. Since all background threads wait on the words of the others, a survivor wakes at once.
//!
//! The mark proves that the process is ending: the engine never lets that thread end otherwise. It
//! does not prove that the *other* threads of the process have executed their last instruction.
//! They all have a deadly signal pending, set before the first of them could end, so each is
//! stopped at its next entry into the kernel; a thread on another core may still have a few
//! instructions to go. [`sys::interrupt_all`] forces every core through the kernel. Only then is
//! the death declared: from that moment on the dead write nothing. Where the kernel cannot do that,
//! the end of the whole process is awaited through a pidfd, which takes longer the more memory it
//! had. A process that called exec does not end: there the proof is that it has replaced its
//! memory.
//!
//! # Declaration
//! The dead are entered into the death log (`death_log.rs`), and then the epoch is raised:
//!
//! | a survivor that declares a death ends | what the others find, and do |
//! |---|---|
//! | before the entry | the marked word; the next check of it (each 50 ms, at worst) starts over |
//! | between entry and epoch | the marked word; they find the entry in the log and raise the epoch |
//! | between epoch and ringing the bells | the epoch, at their next operation or check; each then rings its own bell |
//!
//! A survivor that was stopped in between and goes on later finds its entry made, or the epoch
//! raised, and does no harm: entries are never changed, and the epoch never falls.
//!
//! # Orderings
//! Log, epoch, slot states, bells and sleeper counts are sequentially consistent: they are compared
//! with each other across processes (entry before epoch, bell against sleepers, epoch against the
//! words that operations change), and none of them is on a fast path but the epoch's load, which
//! costs no more than a plain load.

use super::super::{Epoch, MemberId, MemberSet, Port, View};
use super::death_log::{self, Death};
use super::layout::{STATE_JOINED, STATE_JOINING, STATE_NEW, Tables};
use super::sys;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often the background checks all words itself, in case the kernel woke a process that could
/// not act on it.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(50);

impl Tables {
    /// Enters a death into the log, unless it is there, and raises the epoch.
    pub(super) fn declare_dead(&self, member: MemberId, has_left: bool) {
        self.enter_death(Death { member, has_left, reporter: None });
    }

    /// As [`Tables::declare_dead`], for a death that a member of another node may have reported.
    pub(super) fn enter_death(&self, death: Death) {
        let places = self.layout.members();
        if death_log::enter(death, places, |index| self.death(index), self.epoch()) {
            self.ring_all();
        }
    }

    /// The view that belongs to an epoch.
    pub(super) fn view_at(&self, epoch: u64) -> View {
        let (mut dead, mut left) = (MemberSet::new(), MemberSet::new());
        for index in 0..(epoch as usize).min(self.layout.members()) {
            let (member, has_left) = death_log::decode(self.death(index).load(Ordering::SeqCst));
            dead.insert(member);
            if has_left {
                left.insert(member);
            }
        }
        View::new(self.layout.regulars, self.layout.spares, dead, left)
    }

    /// The dead of an epoch, in the order of the log.
    pub(super) fn death_order(&self, epoch: u64) -> Vec<MemberId> {
        let places = 0..(epoch as usize).min(self.layout.members());
        let entries = places.map(|index| self.death(index).load(Ordering::SeqCst));
        entries.map(|entry| death_log::decode(entry).0).collect()
    }

    /// The view as it is now.
    pub(super) fn view(&self) -> View {
        self.view_at(self.epoch().load(Ordering::SeqCst))
    }

    /// The epoch as it is now.
    #[inline]
    pub(super) fn current_epoch(&self) -> Epoch {
        // Ordered with the words that operations change: a caller that sees an old epoch after its
        // compare-and-swap made the swap before any member acted on the new epoch.
        Epoch(self.epoch().load(Ordering::SeqCst))
    }

    /// Rings a member's bell, for all its threads.
    pub(super) fn ring_bell(&self, member: MemberId) {
        self.ring_foreground(member);
        self.ring_background(member);
    }

    /// Rings for a message: if a thread of the member attends to its port, the background sleeps
    /// on.
    pub(super) fn ring_for_message(&self, member: MemberId, port: Port) {
        self.ring_foreground(member);
        // Ordered with `set_attending`: a thread that ceases to attend checks for messages after it
        // has lowered the count.
        if self.attending(member, port).load(Ordering::SeqCst) == 0 {
            self.ring_background(member);
        }
    }

    pub(super) fn ring_foreground(&self, member: MemberId) {
        // Ordered with `sleepers`: either this thread sees the sleeper, or the sleeper sees the
        // bell changed.
        self.bell(member).fetch_add(1, Ordering::SeqCst);
        if self.sleepers(member).load(Ordering::SeqCst) != 0 {
            sys::wake_all(self.bell(member));
        }
    }

    pub(super) fn ring_background(&self, member: MemberId) {
        self.background_bell(member).fetch_add(1, Ordering::SeqCst);
        if self.background_sleeps(member).load(Ordering::SeqCst) != 0 {
            sys::wake_all(self.background_bell(member));
        }
    }

    /// Rings the bells of all members.
    pub(super) fn ring_all(&self) {
        for index in 0..self.layout.members() {
            self.ring_bell(MemberId(index as u32));
        }
    }

    /// Checks whether the kernel has marked the member, and declares its death if so; returns
    /// whether the member is now known to be dead.
    pub(super) fn detect_death(&self, member: MemberId) -> bool {
        match self.state(member).load(Ordering::SeqCst) {
            STATE_NEW => false,
            // Not watched by the kernel yet: ask whether the process still exists.
            STATE_JOINING => {
                let gone = process_has_ended(self.pid(member).load(Ordering::SeqCst));
                if gone && self.state(member).load(Ordering::SeqCst) == STATE_JOINING {
                    self.declare_dead(member, false);
                }
                gone
            }
            _ => {
                if self.robust_word(member).load(Ordering::SeqCst) & sys::OWNER_DIED == 0 {
                    return false;
                }
                let pid = self.pid(member).load(Ordering::SeqCst);
                let is_proven = sys::interrupt_all()
                    || wait_for_end(pid, CHECK_INTERVAL)
                    || sys::has_replaced_memory(pid, self.mapping.inode());
                if !is_proven {
                    return false;
                }
                self.declare_dead(member, false);
                true
            }
        }
    }

    /// Whether the member has joined, now or in the past.
    pub(super) fn has_joined(&self, member: MemberId) -> bool {
        self.state(member).load(Ordering::SeqCst) == STATE_JOINED
    }
}

/// Whether a process has ended, as far as the kernel tells at once.
fn process_has_ended(pid: u32) -> bool {
    wait_for_end(pid, Duration::ZERO)
}

/// Waits for the end of a process; returns whether it has ended.
fn wait_for_end(pid: u32, limit: Duration) -> bool {
    let Some(pid) = rustix::process::Pid::from_raw(pid as i32) else { return false };
    let pidfd = match rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(error) => return error == rustix::io::Errno::SRCH,
    };
    let mut fds = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
    let limit = rustix::time::Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    matches!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1))
}

//! Waiting: sleeping on the own bell, and watching the words of the others meanwhile.
//!
//! A member has two bells: the foreground bell, for the waits of all its threads, and the bell that
//! wakes its background between two rounds of its services. [`Bell`] shows both. A sleeper counts
//! itself in `sleepers` before it sleeps, so that a ringer makes no system call when no thread
//! sleeps. Both sides are sequentially consistent: either the ringer sees the sleeper, or the
//! sleeper sees the bell changed.
//!
//! The background thread, and any service that waits inside of it, also sleeps on the robust words
//! of the other members: it wakes when the kernel marks the word of a member that has died, and
//! declares the death; see `deaths.rs`.

use super::{Shm, deaths, sys};
use crate::engine::{Bell, MemberId, Time};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often a waiting thread polls its bell before it yields, if members share cores: short enough
/// not to take a core from the member that is to answer.
pub(super) const SPIN_SHARED: u32 = 4;

/// How often a waiting thread polls its bell before it yields, if there is a core for every member:
/// some microseconds, for an answer that is on its way. Yielding costs as much as a message between
/// two cores, but another thread may be on this core all the same.
pub(super) const SPIN_ALONE: u32 = 64;

/// How often a waiting thread then yields before it sleeps. Members that share a core hand it to
/// each other by yielding for a fraction of what sleeping and waking costs. A member that is alone
/// on its core sleeps after some tens of microseconds.
const YIELDS: u32 = 100;

thread_local! {
    /// Whether this thread is the background of a member.
    pub(super) static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

impl Shm {
    /// The foreground bell in the lower half, the background's in the upper half.
    pub(super) fn bell_now(&self) -> Bell {
        let foreground = self.tables().bell(self.me).load(Ordering::SeqCst);
        let background = self.tables().background_bell(self.me).load(Ordering::SeqCst);
        Bell(u64::from(background) << 32 | u64::from(foreground))
    }

    /// A moment of the job's clock on the machine's monotonic clock.
    pub(super) fn until_ns(&self, until: Time) -> u64 {
        until.0.saturating_add(self.tables().start_ns)
    }

    /// Polls the bell for a moment, yields for a while, then sleeps on it.
    pub(super) fn park_foreground(&self, seen: Bell, until: Time) {
        let bell = self.tables().bell(self.me);
        if IS_BACKGROUND.get() {
            // A service that waits in the middle of its work. There may be no other watcher.
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
        // Before the word is checked again, by the kernel; see the head of this file.
        sleepers.fetch_add(1, Ordering::SeqCst);
        sys::wait_on(bell, seen.0 as u32, self.until_ns(until));
        sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Sleeps on a bell and on the words of the others, for a while, and declares deaths.
    pub(super) fn watch(&self, bell: &AtomicU32, seen: u32, sleepers: &AtomicU32, until: Time) {
        let next_check = self.now_time().after(deaths::CHECK_INTERVAL);
        let mut words = vec![(bell, seen)];
        words.extend(self.watched());
        let is_marked = |&(_, word): &(_, u32)| word & sys::OWNER_DIED != 0;
        if !words[1..].iter().any(is_marked) {
            // As in `park_foreground`.
            sleepers.fetch_add(1, Ordering::SeqCst);
            sys::wait_on_any(&words, self.until_ns(until.min(next_check)));
            sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        if self.check_guard().is_ok() {
            self.detect_deaths();
            let _ = self.catch_up();
        }
    }

    /// The robust words of the members that this member watches: all that live, or as many as the
    /// kernel takes, beginning with the next member, so that every member has many watchers.
    fn watched(&self) -> Vec<(&AtomicU32, u32)> {
        let members = self.tables().layout.members();
        (1..members)
            .map(|distance| MemberId(((self.me.index() + distance) % members) as u32))
            // A member that has not joined owns no word yet; when it joins it rings all bells.
            .filter(|&member| {
                !self.is_known_dead(member) && self.tables().pid(member).load(Ordering::SeqCst) != 0
            })
            .take(sys::WAIT_WORDS_MAX - 1)
            .map(|member| self.tables().robust_word(member))
            .map(|word| (word, word.load(Ordering::SeqCst)))
            .collect()
    }

    /// Checks every member that is not known to be dead, and declares dead those that the kernel
    /// has marked.
    fn detect_deaths(&self) {
        for index in 0..self.tables().layout.members() {
            let member = MemberId(index as u32);
            if member != self.me && !self.is_known_dead(member) {
                self.tables().detect_death(member);
            }
        }
    }
}

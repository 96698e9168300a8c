//! The death log: an array of words that are zero until used, and the epoch.
//!
//! An entry goes into the first free place by compare-and-swap, so that all members see the deaths
//! in a single order, and each member has at most one entry. The epoch is the number of entries
//! that members may act on. It is raised after the entry was made, by the activity that made the
//! entry or by any activity that finds it.
//!
//! On the mpi engine a frame reports deaths, and the sender of the frame, the *reporter*, may have
//! died meanwhile. A reported death enters the log only if the reporter does not stand before it:
//! the members of a node that has the reporter in its log act as if the report had never come
//! (`quorum.rs` of that engine says why). [`enter`] looks at the places in order, and makes an
//! entry only in the first free place, so it has seen every entry before its own.
//!
//! All words are sequentially consistent. The functions take the words as a trait, so that a test
//! runs them under loom.

use crate::engine::MemberId;
use std::sync::atomic::{AtomicU64, Ordering};

/// In an entry: the member left on purpose.
const LEFT: u64 = 1 << 32;

/// A word of the log, or the epoch.
pub(super) trait Word {
    /// Stores `new` if the word is zero, and returns what the word was.
    fn store_if_zero(&self, new: u64) -> u64;
    /// Raises the word to at least `to`, and returns what it was.
    fn raise(&self, to: u64) -> u64;
}

impl Word for AtomicU64 {
    fn store_if_zero(&self, new: u64) -> u64 {
        match self.compare_exchange(0, new, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(found) | Err(found) => found,
        }
    }

    fn raise(&self, to: u64) -> u64 {
        self.fetch_max(to, Ordering::SeqCst)
    }
}

/// A death to be entered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Death {
    pub(super) member: MemberId,
    pub(super) has_left: bool,
    /// The member whose frame reports it; `None` if this node has decided it.
    pub(super) reporter: Option<MemberId>,
}

/// The member of an entry, and whether it has left.
pub(super) fn decode(entry: u64) -> (MemberId, bool) {
    (MemberId((entry & 0xffff_ffff) as u32 - 1), entry & LEFT != 0)
}

/// Enters a death into the log of `places` words, unless it is there or its reporter stands before
/// it, and raises the epoch to what it has found. Returns whether this call has raised the epoch:
/// it then has to ring all bells.
pub(super) fn enter<'a, W: Word + 'a>(
    death: Death,
    places: usize,
    place: impl Fn(usize) -> &'a W,
    epoch: &W,
) -> bool {
    let entry = u64::from(death.member.0 + 1) | if death.has_left { LEFT } else { 0 };
    for index in 0..places {
        let found = place(index).store_if_zero(entry);
        let member = if found == 0 { death.member } else { decode(found).0 };
        if member == death.member || Some(member) == death.reporter {
            let raised = index as u64 + 1;
            return epoch.raise(raised) < raised;
        }
    }
    unreachable!("the log has a place for every member")
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Word for loom::sync::atomic::AtomicU64 {
        fn store_if_zero(&self, new: u64) -> u64 {
            match self.compare_exchange(0, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(found) | Err(found) => found,
            }
        }

        fn raise(&self, to: u64) -> u64 {
            self.fetch_max(to, Ordering::SeqCst)
        }
    }

    /// The log of a job of three members, and its epoch, under loom.
    struct Log {
        places: [loom::sync::atomic::AtomicU64; 3],
        epoch: loom::sync::atomic::AtomicU64,
    }

    impl Log {
        fn enter(&self, member: u32, reporter: Option<u32>) -> bool {
            let (member, reporter) = (MemberId(member), reporter.map(MemberId));
            let death = Death { member, has_left: false, reporter };
            enter(death, 3, |index| &self.places[index], &self.epoch)
        }

        /// The dead that members may act on, in order.
        fn dead(&self) -> Vec<u32> {
            let epoch = self.epoch.load(Ordering::SeqCst) as usize;
            let entries = self.places[..epoch].iter().map(|place| place.load(Ordering::SeqCst));
            entries.map(|entry| decode(entry).0.0).collect()
        }
    }

    /// Runs two activities in all interleavings with up to three preemptions, and then checks the
    /// log.
    fn interleave(one: fn(&Log), other: fn(&Log), check: fn(&Log)) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let words = || loom::sync::atomic::AtomicU64::new(0);
            let log = Log { places: [words(), words(), words()], epoch: words() };
            let log = loom::sync::Arc::new(log);
            let threads = [one, other].map(|run| {
                let log = log.clone();
                loom::thread::spawn(move || run(&log))
            });
            for thread in threads {
                thread.join().expect("an activity does not panic");
            }
            check(&log);
        });
    }

    /// An activity that has declared a death finds it among the dead that all may act on, whatever
    /// other activities declare at that time, and each death once.
    #[test]
    fn a_declared_death_is_below_the_epoch_and_entered_once() {
        fn declare(log: &Log, members: [u32; 2]) {
            for member in members {
                log.enter(member, None);
                assert!(log.dead().contains(&member));
            }
        }
        interleave(
            |log| declare(log, [0, 1]),
            |log| declare(log, [1, 2]),
            |log| {
                let mut dead = log.dead();
                dead.sort_unstable();
                assert_eq!(dead, [0, 1, 2]);
            },
        );
    }

    /// A view is a prefix of every later view: an activity that reads the log while deaths are
    /// entered never sees an entry change or an empty place below the epoch.
    #[test]
    fn views_only_grow() {
        interleave(
            |log| {
                log.enter(0, None);
                log.enter(1, None);
            },
            |log| {
                let (before, after) = (log.dead(), log.dead());
                assert_eq!(before, after[..before.len()]);
            },
            |log| assert_eq!(log.dead(), [0, 1]),
        );
    }

    /// Member 1 reports the death of member 0, while another activity learns that member 1 is dead:
    /// the reported death stands before its reporter's, or it is not in the log. After a refusal
    /// the activity knows that the reporter is dead.
    #[test]
    fn a_death_that_a_dead_member_reports_does_not_enter() {
        interleave(
            |log| {
                log.enter(0, Some(1));
                let dead = log.dead();
                assert!(dead.contains(&0) || dead.contains(&1));
            },
            |log| assert!(log.enter(1, None) || log.dead().contains(&1)),
            |log| assert!([&[0, 1][..], &[1]].contains(&&log.dead()[..]), "{:?}", log.dead()),
        );
    }
}

//! The announcement of a wait: a word by which a sleeping activity and the activity that could wake
//! it never miss each other.
//!
//! The activity that waits announces its wait, and then checks once more. The other activity stores
//! what the first waits for, and then looks for an announcement. Each side puts a sequentially
//! consistent fence between its store and its load, so at least one of them sees the other's store:
//! the first finds what it waits for, or the second finds the announcement and rings.
//!
//! The functions take the word as a trait, so that a test runs them under loom.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A word that announces a wait.
pub(super) trait Word {
    /// Stores a value.
    fn store(&self, value: u64);
    /// Loads the value.
    fn load(&self) -> u64;
    /// Stores zero, and returns what the word was.
    fn take(&self) -> u64;
    /// A sequentially consistent fence.
    fn fence();
}

impl Word for AtomicU64 {
    fn store(&self, value: u64) {
        self.store(value, Ordering::Relaxed);
    }

    fn load(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }

    fn take(&self) -> u64 {
        self.swap(0, Ordering::Relaxed)
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// Announces a wait, and then returns what `check` finds. If it finds nothing, the activity that
/// changes that rings later.
pub(super) fn check_after_announcing<W: Word>(waits: &W, check: impl FnOnce() -> bool) -> bool {
    waits.store(1);
    W::fence();
    check()
}

/// Whether a wait is announced for what this activity has just stored. Takes the announcement back;
/// this activity then has to ring.
pub(super) fn take_announcement<W: Word>(waits: &W) -> bool {
    W::fence();
    waits.load() != 0 && waits.take() != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::{Arc, Notify, atomic};

    impl Word for atomic::AtomicU64 {
        fn store(&self, value: u64) {
            self.store(value, Ordering::Relaxed);
        }

        fn load(&self) -> u64 {
            self.load(Ordering::Relaxed)
        }

        fn take(&self) -> u64 {
            self.swap(0, Ordering::Relaxed)
        }

        fn fence() {
            atomic::fence(Ordering::SeqCst);
        }
    }

    /// A ring of the mailbox with room for a single message, its bits and its bells, with the
    /// orderings that `mailbox.rs` uses. loom checks that the message is never written while it is
    /// read, and finds an activity that sleeps for ever.
    struct Ring {
        message: UnsafeCell<u64>,
        tail: atomic::AtomicU64,
        head: atomic::AtomicU64,
        sender_waits: atomic::AtomicU64,
        pending: atomic::AtomicU64,
        bell_of_sender: Notify,
        bell_of_receiver: Notify,
    }

    impl Ring {
        fn new() -> Ring {
            let word = || atomic::AtomicU64::new(0);
            Ring {
                message: UnsafeCell::new(0),
                tail: word(),
                head: word(),
                sender_waits: word(),
                pending: word(),
                bell_of_sender: Notify::new(),
                bell_of_receiver: Notify::new(),
            }
        }

        fn send(&self, message: u64) {
            let tail = self.tail.load(Ordering::Relaxed);
            let has_room = || self.head.load(Ordering::Acquire) == tail;
            while !has_room() && !check_after_announcing(&self.sender_waits, has_room) {
                self.bell_of_sender.wait();
            }
            // SAFETY: the message before was read before the head was moved. loom checks this.
            self.message.with_mut(|place| unsafe { *place = message });
            self.tail.store(tail + 1, Ordering::Release);
            self.pending.fetch_or(1, Ordering::SeqCst);
            self.bell_of_receiver.notify();
        }

        /// Takes in what has arrived, as `drain` does.
        fn drain(&self, messages: &mut Vec<u64>) {
            let mut head = self.head.load(Ordering::Relaxed);
            while self.tail.load(Ordering::Acquire) != head {
                // SAFETY: the tail was moved after the message was written. loom checks this.
                messages.push(self.message.with(|place| unsafe { *place }));
                head += 1;
                self.head.store(head, Ordering::Release);
            }
            if take_announcement(&self.sender_waits) {
                self.bell_of_sender.notify();
            }
        }
    }

    /// Every message arrives once and in order, and neither side sleeps for ever, in all
    /// interleavings with up to three preemptions and all values that the orderings allow.
    #[test]
    fn a_full_ring_holds_no_sender_and_no_receiver_for_ever() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let ring = Arc::new(Ring::new());
            let sender = ring.clone();
            let sender =
                loom::thread::spawn(move || (1..=3).for_each(|number| sender.send(number)));
            let mut messages = Vec::new();
            while messages.len() < 3 {
                if ring.pending.swap(0, Ordering::SeqCst) == 0 {
                    ring.bell_of_receiver.wait();
                } else {
                    ring.drain(&mut messages);
                }
            }
            sender.join().expect("the sender does not panic");
            assert_eq!(messages, [1, 2, 3]);
        });
    }
}

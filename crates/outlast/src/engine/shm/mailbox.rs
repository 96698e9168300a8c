//! Messages between the members of one machine.
//!
//! For each pair there is a ring with one writer, the sender's process, and one reader, the receiver's process. A
//! message is written as one or more fragments, each published by moving the ring's tail behind it; then the
//! sender's bit is set at the receiver and the receiver's bell is rung.
//!
//! | the sender ends | what the receiver finds |
//! |---|---|
//! | while it writes a fragment | nothing: the tail has not moved |
//! | between two fragments of a message | a beginning without an end, which is dropped when the ring is done |
//! | after the tail, before the bit | nothing; the message is lost, as it may be when its sender dies |
//! | after the bit, before the bell | the message, at its next look |
//!
//! A stopped sender holds up nobody but itself: no other process writes into its ring. A sender that finds the ring
//! full waits for room, taking in its own messages meanwhile, so that two members that flood each other go on.
//!
//! What is in a ring was written by another process: each length is checked before it is used. A ring that breaks
//! the rules is not read any further.

use super::super::{Epoch, Error, MESSAGE_LEN_MAX, MemberId, Message, Port, Result, Time};
use super::Shm;
use super::layout::{RING_HEAD, RING_HEADER_LEN, RING_SENDER_WAITS, RING_TAIL};
use super::memory::allocate;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// A fragment begins with two words: its length, port and flags, and the sender's epoch.
const FRAGMENT_HEADER_LEN: usize = 16;
const FLAG_FIRST: u64 = 1;
const FLAG_LAST: u64 = 2;

/// This member's ends of all its rings.
pub(super) struct Mailboxes {
    /// Per receiver: whether the ring is backed by memory. Locked while a message is being written.
    outgoing: Vec<Mutex<bool>>,
    incoming: Mutex<Incoming>,
}

struct Incoming {
    /// Per sender: the message that is being put together.
    partial: Vec<Option<Partial>>,
    queues: [VecDeque<Message>; Port::COUNT],
    /// Per port: whether something was put into its queue by the thread that takes in.
    arrived: [bool; Port::COUNT],
}

enum Partial {
    Message {
        port: Port,
        epoch: Epoch,
        bytes: Vec<u8>,
    },
    /// The sender's ring broke the rules.
    Broken,
}

impl Mailboxes {
    pub(super) fn new(members: usize) -> Mailboxes {
        Mailboxes {
            outgoing: (0..members).map(|_| Mutex::new(false)).collect(),
            incoming: Mutex::new(Incoming {
                partial: (0..members).map(|_| None).collect(),
                queues: Default::default(),
                arrived: [false; Port::COUNT],
            }),
        }
    }
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The turn of a thread to write to one receiver. However it ends, the threads that wait for theirs are woken.
struct Turn<'a> {
    shm: &'a Shm,
    guard: Option<MutexGuard<'a, bool>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.guard = None;
        // Ordered with the announcement in `wait_for_turn`.
        fence(Ordering::SeqCst);
        // They park on the own bell.
        if self.shm.waiting_senders.load(Ordering::SeqCst) != 0 {
            self.shm.tables().ring_bell(self.shm.me);
        }
    }
}

impl Shm {
    /// Sends a message, waiting for room until `until`: not at all, if that is over.
    pub(super) fn send_message(&self, to: MemberId, port: Port, bytes: &[u8], until: Time) -> Result<()> {
        self.check_target(Epoch::ANY, to)?;
        if bytes.len() > MESSAGE_LEN_MAX {
            return Err(Error::MessageTooLong { len: bytes.len() });
        }
        self.step();
        let epoch = self.tables().current_epoch();
        let mut turn = self.wait_for_turn(to, until)?;
        let is_backed = turn.guard.as_deref_mut().expect("held until the drop");
        if !*is_backed {
            let (ring, len) = self.tables().layout.ring(self.me, to);
            allocate(self.memory.file.as_fd(), ring, len)
                .map_err(|error| Error::OutOfMemory { wanted: len as u64, reason: error.to_string() })?;
            *is_backed = true;
        }
        // At most half a ring in one fragment, so that writer and reader overlap.
        let fragment_len_max = (self.tables().layout.ring_len / 2 - FRAGMENT_HEADER_LEN) & !7;
        let mut rest = bytes;
        let mut flags = FLAG_FIRST;
        loop {
            let (fragment, later) = rest.split_at(rest.len().min(fragment_len_max));
            if later.is_empty() {
                flags |= FLAG_LAST;
            }
            self.wait_for_room(to, FRAGMENT_HEADER_LEN + fragment.len().next_multiple_of(8), until)?;
            self.write_fragment(to, port, flags, epoch, fragment);
            if later.is_empty() {
                return Ok(());
            }
            (rest, flags) = (later, 0);
        }
    }

    /// Waits until no other thread of this member is in the middle of a message to the same receiver.
    fn wait_for_turn(&self, to: MemberId, until: Time) -> Result<Turn<'_>> {
        let outgoing = &self.mailboxes.outgoing[to.index()];
        if let Some(guard) = try_lock(outgoing) {
            return Ok(Turn { shm: self, guard: Some(guard) });
        }
        // Announced before the next attempt: whoever has the turn either is done before it, or rings after it.
        self.waiting_senders.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let result = loop {
            let bell = self.bell_now();
            if let Some(guard) = try_lock(outgoing) {
                break Ok(Turn { shm: self, guard: Some(guard) });
            }
            if let Err(error) = self.wait_for_receiver(to, bell, until) {
                break Err(error);
            }
        };
        self.waiting_senders.fetch_sub(1, Ordering::SeqCst);
        result
    }

    fn wait_for_room(&self, to: MemberId, needed: usize, until: Time) -> Result<()> {
        let (tables, (ring, _)) = (self.tables(), self.tables().layout.ring(self.me, to));
        let tail = tables.mapping.word(ring + RING_TAIL).load(Ordering::Relaxed);
        let has_room = || {
            // Acquire: the reader is done with the bytes before the head.
            let used = tail.wrapping_sub(tables.mapping.word(ring + RING_HEAD).load(Ordering::Acquire));
            used as usize + needed <= tables.layout.ring_len
        };
        if has_room() {
            return Ok(());
        }
        let waits = tables.mapping.word(ring + RING_SENDER_WAITS);
        loop {
            let bell = self.bell_now();
            // Announced before the last look, so that the reader either makes room before it or rings after it.
            waits.store(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if has_room() {
                waits.store(0, Ordering::Relaxed);
                return Ok(());
            }
            self.wait_for_receiver(to, bell, until)?;
        }
    }

    /// Parks once while a receiver is waited for; an error when there is no more point in it.
    fn wait_for_receiver(&self, to: MemberId, bell: super::Bell, until: Time) -> Result<()> {
        self.check_target(Epoch::ANY, to)?;
        if self.now_time() >= until {
            return Err(Error::Timeout { member: to, limit: self.time_limit });
        }
        self.take_in();
        self.park_foreground(bell, until);
        Ok(())
    }

    /// Writes and publishes one fragment, for which there is room.
    fn write_fragment(&self, to: MemberId, port: Port, flags: u64, epoch: Epoch, bytes: &[u8]) {
        let (tables, (ring, _)) = (self.tables(), self.tables().layout.ring(self.me, to));
        let tail_word = tables.mapping.word(ring + RING_TAIL);
        let tail = tail_word.load(Ordering::Relaxed);
        let first = bytes.len() as u64 | (port as u64) << 32 | flags << 40;
        self.write_wrapped(ring, tail, &first.to_ne_bytes());
        self.write_wrapped(ring, tail + 8, &epoch.0.to_ne_bytes());
        self.write_wrapped(ring, tail + 16, bytes);
        self.step();
        let len = FRAGMENT_HEADER_LEN + bytes.len().next_multiple_of(8);
        // Release: the reader that sees the tail sees the bytes before it.
        tail_word.store(tail + len as u64, Ordering::Release);
        self.step();
        let (word, bit) = (self.me.index() / 64, 1 << (self.me.index() % 64));
        tables.pending(to, word).fetch_or(bit, Ordering::SeqCst);
        tables.ring_for_message(to, port);
    }

    fn write_wrapped(&self, ring: usize, position: u64, bytes: &[u8]) {
        let ring_len = self.tables().layout.ring_len;
        let (start, data) = ((position % ring_len as u64) as usize, ring + RING_HEADER_LEN);
        let (before, after) = bytes.split_at(bytes.len().min(ring_len - start));
        self.tables().mapping.write(data + start, before);
        self.tables().mapping.write(data, after);
    }

    fn read_wrapped(&self, ring: usize, position: u64, bytes: &mut [u8]) {
        let ring_len = self.tables().layout.ring_len;
        let (start, data) = ((position % ring_len as u64) as usize, ring + RING_HEADER_LEN);
        let middle = bytes.len().min(ring_len - start);
        let (before, after) = bytes.split_at_mut(middle);
        self.tables().mapping.read(data + start, before);
        self.tables().mapping.read(data, after);
    }

    /// Whether some sender's bit is set.
    fn has_incoming(&self) -> bool {
        (0..self.tables().layout.members().div_ceil(64))
            .any(|word| self.tables().pending(self.me, word).load(Ordering::SeqCst) != 0)
    }

    /// Moves what is in the rings into the queues, unless another thread is at it.
    pub(super) fn take_in(&self) {
        if !self.has_incoming() {
            return;
        }
        let Some(mut incoming) = try_lock(&self.mailboxes.incoming) else { return };
        self.take_in_locked(&mut incoming, None);
    }

    /// Moves what is in the rings into the queues. Another thread that is at it may have passed the sender that came
    /// last, so this waits for it; nobody holds the lock for long.
    pub(super) fn take_in_all(&self) {
        if self.has_incoming() {
            self.take_in_locked(&mut lock(&self.mailboxes.incoming), None);
        }
    }

    fn take_in_locked(&self, incoming: &mut Incoming, wanted: Option<Port>) {
        for word in 0..self.tables().layout.members().div_ceil(64) {
            // Taken before the rings are read: what is published later sets the bit again.
            let mut bits = self.tables().pending(self.me, word).swap(0, Ordering::SeqCst);
            while bits != 0 {
                let sender = MemberId((word * 64) as u32 + bits.trailing_zeros());
                bits &= bits - 1;
                if sender.index() < self.tables().layout.members() {
                    self.drain(sender, incoming);
                }
            }
        }
        // A message was rung for on its own port. Whoever takes it in on the way to another one sees to it that
        // someone looks: a thread that attends to its port, or else the background.
        for (index, arrived) in incoming.arrived.iter_mut().enumerate() {
            let port = Port::from_index(index).expect("an index of a port");
            if std::mem::take(arrived) && Some(port) != wanted {
                self.tables().ring_for_message(self.me, port);
            }
        }
    }

    fn drain(&self, sender: MemberId, incoming: &mut Incoming) {
        let (tables, (ring, _)) = (self.tables(), self.tables().layout.ring(sender, self.me));
        let head_word = tables.mapping.word(ring + RING_HEAD);
        let mut head = head_word.load(Ordering::Relaxed);
        loop {
            let tail = tables.mapping.word(ring + RING_TAIL).load(Ordering::Acquire);
            if tail == head || matches!(incoming.partial[sender.index()], Some(Partial::Broken)) {
                break;
            }
            let Some(len) = self.read_fragment(sender, ring, head, tail.wrapping_sub(head), incoming) else {
                incoming.partial[sender.index()] = Some(Partial::Broken);
                break;
            };
            head = head.wrapping_add(len);
            // Release: the bytes are read before the writer may use their place again.
            head_word.store(head, Ordering::Release);
        }
        // The sender announces its wait before it looks at the head again, and this looks at the announcement after
        // it moved the head: one of the two sees the other.
        fence(Ordering::SeqCst);
        if tables.mapping.word(ring + RING_SENDER_WAITS).swap(0, Ordering::SeqCst) != 0 {
            tables.ring_bell(sender);
        }
    }

    /// Takes one fragment in; how long it was, or `None` if it breaks the rules.
    fn read_fragment(
        &self,
        sender: MemberId,
        ring: usize,
        head: u64,
        available: u64,
        incoming: &mut Incoming,
    ) -> Option<u64> {
        if available > self.tables().layout.ring_len as u64 || available < FRAGMENT_HEADER_LEN as u64 {
            return None;
        }
        let mut word = [0; 8];
        self.read_wrapped(ring, head, &mut word);
        let first = u64::from_ne_bytes(word);
        self.read_wrapped(ring, head + 8, &mut word);
        let epoch = Epoch(u64::from_ne_bytes(word));
        let (len, flags) = ((first & 0xffff_ffff) as usize, first >> 40);
        let port = Port::from_index((first >> 32 & 0xff) as usize)?;
        let fragment_len = FRAGMENT_HEADER_LEN + len.next_multiple_of(8);
        if fragment_len as u64 > available {
            return None;
        }
        let partial = &mut incoming.partial[sender.index()];
        if flags & FLAG_FIRST != 0 {
            // What was there is a message whose sender gave up in the middle.
            *partial = Some(Partial::Message { port, epoch, bytes: Vec::with_capacity(len) });
        }
        let Some(Partial::Message { bytes, .. }) = partial else { return None };
        let start = bytes.len();
        if start + len > MESSAGE_LEN_MAX {
            return None;
        }
        bytes.resize(start + len, 0);
        self.read_wrapped(ring, head + FRAGMENT_HEADER_LEN as u64, &mut bytes[start..]);
        if flags & FLAG_LAST != 0
            && let Some(Partial::Message { port, epoch, bytes }) = partial.take()
        {
            incoming.queues[port as usize].push_back(Message { from: sender, epoch, bytes });
            incoming.arrived[port as usize] = true;
        }
        Some(fragment_len as u64)
    }

    /// Whether a message for `port` is there or may be.
    pub(super) fn may_have_message(&self, port: Port) -> bool {
        self.has_incoming() || !lock(&self.mailboxes.incoming).queues[port as usize].is_empty()
    }

    pub(super) fn receive_message(&self, port: Port) -> Option<Message> {
        let mut incoming = lock(&self.mailboxes.incoming);
        if incoming.queues[port as usize].is_empty() && self.has_incoming() {
            self.take_in_locked(&mut incoming, Some(port));
        }
        incoming.queues[port as usize].pop_front()
    }
}

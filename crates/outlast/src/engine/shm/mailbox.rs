//! Messages between the members of a machine.
//!
//! For each pair of members there is a ring with a single writer, the sender's process, and a
//! single reader, the receiver's process. A message is written as one or more fragments, each
//! published by moving the ring's tail behind it; then the sender's bit is set at the receiver and
//! the receiver's bell is rung.
//!
//! | the sender ends | what the receiver finds |
//! |---|---|
//! | while it writes a fragment | no message: the tail has not moved |
//! | between two fragments of a message | a beginning without an end, which is dropped when the ring is drained |
//! | after the tail, before the bit | the message, once it knows of the death: it then reads the ring anyway |
//! | after the bit, before the bell | the message, when it next checks its bits |
//!
//! A message to several members is *published*: it is written into each of the rings, with a
//! number, and the tails are moved; but a receiver stops in front of it until the sender's
//! published number has reached it. Raising that number is a single store, by which the message
//! counts for all receivers or, if the sender ends before it, for none. Rings and numbers are
//! memory of the job and not of the sender, so they outlive the sender.
//!
//! A stopped sender holds up no other member: no other process writes into its ring. A sender that
//! finds the ring full waits for room, taking in its own messages meanwhile.
//!
//! # Bounds
//! A message lies in the ring until any thread of the receiver moves it into the queue of its port,
//! and in the queue until the layer behind the port receives it. The ring and the queues are
//! bounded apart. The ring by its length: the receiver's background empties it, and so does every
//! thread of the receiver that waits in a call, whatever is in the queues. The queue of a port by a
//! *credit* for each sender: the receiver counts in the ring's header what it has consumed, the
//! sender counts what it has sent, and the difference is at most [`MESSAGE_CREDIT`]. So a full
//! queue holds up the messages of that sender for that port, and no other message: a message whose
//! sender has no credit never enters the ring, and the thread that waits for credit does not keep
//! the turn to write. `engine/mod.rs` says why no cycle of waiting senders lasts.
//!
//! The content of a ring was written by another process: each length is checked before it is used.
//! A ring that breaks the rules is not read any further.
//!
//! # Orderings
//! Tail, head and published number are each written by a single process, which releases the bytes
//! before them; the other side acquires them. A waiting sender (`RING_SENDER_WAITS`,
//! `RING_CREDIT_WAITS`, `waiting_senders`) and the thread that could wake it are ordered by
//! sequentially consistent fences: each side writes its own word before it reads the other's, so
//! that at least one of them sees the other ([`announcement.rs`](super::announcement), with a model
//! of a ring under loom). `RING_CONSUMED` guards no bytes. The bits of senders are sequentially
//! consistent, as the bells are.

use super::super::{
    Epoch, Error, MESSAGE_CREDIT, MESSAGE_LEN_MAX, MemberId, Message, PUBLISH_LEN_MAX, Port,
    Result, Time, message_cost,
};
use super::Shm;
use super::announcement::{check_after_announcing, take_announcement};
use super::layout::{
    RING_CONSUMED, RING_CREDIT_WAITS, RING_HEAD, RING_HEADER_LEN, RING_SENDER_WAITS, RING_TAIL,
};
use super::memory::allocate;
use crate::sync::{lock, try_lock};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, MutexGuard};

/// A fragment begins with two words: its length, port and flags, and the sender's epoch.
const FRAGMENT_HEADER_LEN: usize = 16;
const FLAG_FIRST: u64 = 1;
const FLAG_LAST: u64 = 2;
/// The content begins with a number. The message counts once the sender has published that number.
const FLAG_PUBLISHED: u64 = 4;

/// This member's ends of all its rings.
pub(super) struct Mailboxes {
    /// Per receiver. Locked while a message is being written.
    outgoing: Vec<Mutex<Outgoing>>,
    /// Held while a message is being published.
    pub(super) publishing: Mutex<()>,
    incoming: Mutex<Incoming>,
}

#[derive(Default)]
struct Outgoing {
    /// Whether the ring is backed by memory.
    is_backed: bool,
    /// The reader's position when it was last read. The ring has at least the room that follows
    /// from it.
    head: u64,
    /// By port: the cost of all messages that were sent.
    sent: [u64; Port::COUNT],
    /// By port: what the receiver had consumed when that was last read.
    consumed: [u64; Port::COUNT],
}

struct Incoming {
    /// Per sender: the message that is being assembled.
    partial: Vec<Option<Partial>>,
    queues: [VecDeque<Message>; Port::COUNT],
    /// Per port: whether the thread that moves messages into the queues has added any.
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
            outgoing: (0..members).map(|_| Mutex::default()).collect(),
            publishing: Mutex::default(),
            incoming: Mutex::new(Incoming {
                partial: (0..members).map(|_| None).collect(),
                queues: Default::default(),
                arrived: [false; Port::COUNT],
            }),
        }
    }
}

/// The turn of a thread to write to some receivers. However it ends, the threads that wait for
/// their turn are woken.
struct Turn<'a, Guards> {
    shm: &'a Shm,
    guards: Option<Guards>,
}

impl<Guards> Turn<'_, Guards> {
    fn guards(&mut self) -> &mut Guards {
        self.guards.as_mut().expect("held until the drop")
    }
}

impl<Guards> Drop for Turn<'_, Guards> {
    fn drop(&mut self) {
        self.guards = None;
        // Ordered with the announcement in `wait_for_turn`.
        fence(Ordering::SeqCst);
        // Waiting senders park on this member's own bell.
        if self.shm.waiting_senders.load(Ordering::SeqCst) != 0 {
            self.shm.tables().ring_bell(self.shm.me);
        }
    }
}

impl Shm {
    /// Sends a message and waits for room until `until`, or not at all if that moment is over.
    pub(super) fn send_message(
        &self,
        to: MemberId,
        port: Port,
        bytes: &[u8],
        until: Time,
    ) -> Result<()> {
        self.check_target(Epoch::ANY, to)?;
        if bytes.len() > MESSAGE_LEN_MAX {
            return Err(Error::MessageTooLong { len: bytes.len() });
        }
        self.step();
        let epoch = self.tables().current_epoch();
        let mut turn = self.wait_for_credit(to, port, bytes.len(), until)?;
        // At most half a ring per fragment, so that writer and reader overlap.
        let fragment_len_max = (self.tables().layout.ring_len / 2 - FRAGMENT_HEADER_LEN) & !7;
        let mut rest = bytes;
        let mut flags = FLAG_FIRST;
        loop {
            let (fragment, later) = rest.split_at(rest.len().min(fragment_len_max));
            if later.is_empty() {
                flags |= FLAG_LAST;
            }
            let len = FRAGMENT_HEADER_LEN + fragment.len().next_multiple_of(8);
            self.wait_for_room(to, turn.guards(), len, until)?;
            self.write_fragment(to, port, flags, epoch, None, fragment);
            self.tell_receiver(to, port);
            if later.is_empty() {
                // A message that was given up before its end is never consumed, and never counted.
                turn.guards().sent[port as usize] += message_cost(bytes.len());
                return Ok(());
            }
            (rest, flags) = (later, 0);
        }
    }

    /// Sends a message to several members, all or nothing; returns whether it was sent.
    pub(super) fn publish_message(
        &self,
        to: &[MemberId],
        port: Port,
        bytes: &[u8],
    ) -> Result<bool> {
        if bytes.len() > PUBLISH_LEN_MAX {
            return Err(Error::MessageTooLong { len: bytes.len() });
        }
        // Refuses a forked child before it takes the lock, which it may find held for ever.
        self.check_guard()?;
        // No thread waits while it holds the lock. A thread that leaves takes the lock, too: the
        // message is out before this member has left, or it is refused here.
        let _publishing = lock(&self.mailboxes.publishing);
        let mut living = Vec::with_capacity(to.len());
        for &member in to {
            match self.check_target(Epoch::ANY, member) {
                Ok(()) => living.push(member),
                Err(Error::Dead { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.step();
        let epoch = self.tables().current_epoch();
        // For a single receiver, the tail of its ring publishes the message.
        let is_single = living.len() <= 1;
        let number_len = if is_single { 0 } else { 8 };
        let len = FRAGMENT_HEADER_LEN + number_len + bytes.len().next_multiple_of(8);
        let mut turns = Turn { shm: self, guards: Some(Vec::with_capacity(living.len())) };
        for &member in &living {
            let Some(mut guard) = try_lock(&self.mailboxes.outgoing[member.index()]) else {
                return Ok(false);
            };
            self.back_ring(member, &mut guard)?;
            let has_credit = self.has_credit(member, &mut guard, port, bytes.len())
                || self.has_credit_after_announcing(member, &mut guard, port, bytes.len());
            if !has_credit
                || !self.has_room(member, &mut guard, len)
                    && !self.has_room_after_announcing(member, &mut guard, len)
            {
                return Ok(false);
            }
            turns.guards().push(guard);
        }
        // From here on no step can fail.
        let published = self.tables().published(self.me);
        let number = published.load(Ordering::Relaxed) + 1;
        for &member in &living {
            let number = (!is_single).then_some(number);
            self.write_fragment(member, port, FLAG_FIRST | FLAG_LAST, epoch, number, bytes);
        }
        for guard in turns.guards() {
            guard.sent[port as usize] += message_cost(bytes.len());
        }
        if !is_single {
            // Release: a receiver that sees the number sees the content of the rings.
            published.store(number, Ordering::Release);
            self.step();
        }
        drop(turns);
        living.iter().for_each(|&member| self.tell_receiver(member, port));
        Ok(true)
    }

    /// Makes sure that there is memory behind a ring.
    fn back_ring(&self, to: MemberId, outgoing: &mut Outgoing) -> Result<()> {
        if !outgoing.is_backed {
            let (ring, len) = self.tables().layout.ring(self.me, to);
            allocate(self.memory.file.as_fd(), ring, len).map_err(|error| Error::OutOfMemory {
                wanted: len as u64,
                reason: error.to_string(),
            })?;
            outgoing.is_backed = true;
        }
        Ok(())
    }

    /// Waits until no other thread of this member is in the middle of a message to this receiver.
    fn wait_for_turn(
        &self,
        to: MemberId,
        until: Time,
    ) -> Result<Turn<'_, MutexGuard<'_, Outgoing>>> {
        let outgoing = &self.mailboxes.outgoing[to.index()];
        if let Some(guard) = try_lock(outgoing) {
            return Ok(Turn { shm: self, guards: Some(guard) });
        }
        // Announced before the next attempt: the thread that has the turn either ends it before
        // that attempt, or rings after it.
        self.waiting_senders.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let result = loop {
            let bell = self.bell_now();
            if let Some(guard) = try_lock(outgoing) {
                break Ok(Turn { shm: self, guards: Some(guard) });
            }
            if let Err(error) = self.wait_for_receiver(to, bell, until) {
                break Err(error);
            }
        };
        self.waiting_senders.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Waits until there is credit for a message, and for the turn to write it. The turn is not
    /// kept during the wait for credit: messages for other ports get through.
    fn wait_for_credit(
        &self,
        to: MemberId,
        port: Port,
        len: usize,
        until: Time,
    ) -> Result<Turn<'_, MutexGuard<'_, Outgoing>>> {
        loop {
            let bell = self.bell_now();
            let mut turn = self.wait_for_turn(to, until)?;
            self.back_ring(to, turn.guards())?;
            if self.has_credit(to, turn.guards(), port, len)
                || self.has_credit_after_announcing(to, turn.guards(), port, len)
            {
                return Ok(turn);
            }
            drop(turn);
            self.wait_for_receiver(to, bell, until)?;
        }
    }

    /// Whether there is credit for a message. Reads what the receiver has consumed only if the last
    /// known number leaves too little.
    fn has_credit(&self, to: MemberId, outgoing: &mut Outgoing, port: Port, len: usize) -> bool {
        let (sent, at) = (outgoing.sent[port as usize], port as usize * 8);
        let fits = |consumed| sent.wrapping_sub(consumed) + message_cost(len) <= MESSAGE_CREDIT;
        fits(outgoing.consumed[port as usize]) || {
            let (tables, (ring, _)) = (self.tables(), self.tables().layout.ring(self.me, to));
            let consumed = tables.mapping.word(ring + RING_CONSUMED + at).load(Ordering::Relaxed);
            // Written by another process: it never exceeds what was sent.
            outgoing.consumed[port as usize] = consumed.min(sent);
            fits(outgoing.consumed[port as usize])
        }
    }

    /// Whether there is credit, after announcing that this member waits for it: if there is none,
    /// the receiver rings when it has received a message. Only the receiver takes the
    /// announcement back, since several threads may wait for several ports.
    fn has_credit_after_announcing(
        &self,
        to: MemberId,
        outgoing: &mut Outgoing,
        port: Port,
        len: usize,
    ) -> bool {
        let (tables, (ring, _)) = (self.tables(), self.tables().layout.ring(self.me, to));
        let waits = tables.mapping.word(ring + RING_CREDIT_WAITS);
        check_after_announcing(waits, || self.has_credit(to, outgoing, port, len))
    }

    /// Counts a message as consumed, and rings its sender if it waits for that.
    fn count_consumed(&self, from: MemberId, port: Port, len: usize) {
        let (tables, (ring, _)) = (self.tables(), self.tables().layout.ring(from, self.me));
        let consumed = tables.mapping.word(ring + RING_CONSUMED + port as usize * 8);
        // Written by this process alone, under the lock of the queues.
        let sum = consumed.load(Ordering::Relaxed).wrapping_add(message_cost(len));
        consumed.store(sum, Ordering::Relaxed);
        if take_announcement(tables.mapping.word(ring + RING_CREDIT_WAITS)) {
            tables.ring_bell(from);
        }
    }

    /// Whether a ring has room. Reads the reader's position only if its last known position leaves
    /// too little.
    fn has_room(&self, to: MemberId, outgoing: &mut Outgoing, needed: usize) -> bool {
        let (tables, (ring, _)) = (self.tables(), self.tables().layout.ring(self.me, to));
        let tail = tables.mapping.word(ring + RING_TAIL).load(Ordering::Relaxed);
        let fits = |head| tail.wrapping_sub(head) as usize + needed <= tables.layout.ring_len;
        fits(outgoing.head) || {
            // Acquire: the reader is done with the bytes before the head.
            outgoing.head = tables.mapping.word(ring + RING_HEAD).load(Ordering::Acquire);
            fits(outgoing.head)
        }
    }

    /// Whether a ring has room, after announcing that this member waits for it: if there is none,
    /// the reader rings when it has made some.
    fn has_room_after_announcing(
        &self,
        to: MemberId,
        outgoing: &mut Outgoing,
        needed: usize,
    ) -> bool {
        let (tables, (ring, _)) = (self.tables(), self.tables().layout.ring(self.me, to));
        let waits = tables.mapping.word(ring + RING_SENDER_WAITS);
        let has_room = check_after_announcing(waits, || self.has_room(to, outgoing, needed));
        if has_room {
            waits.store(0, Ordering::Relaxed);
        }
        has_room
    }

    fn wait_for_room(
        &self,
        to: MemberId,
        outgoing: &mut Outgoing,
        needed: usize,
        until: Time,
    ) -> Result<()> {
        if self.has_room(to, outgoing, needed) {
            return Ok(());
        }
        loop {
            let bell = self.bell_now();
            if self.has_room_after_announcing(to, outgoing, needed) {
                return Ok(());
            }
            self.wait_for_receiver(to, bell, until)?;
        }
    }

    /// Parks once while this member waits for a receiver; an error when the wait is over.
    fn wait_for_receiver(&self, to: MemberId, bell: super::Bell, until: Time) -> Result<()> {
        self.check_target(Epoch::ANY, to)?;
        if self.now_time() >= until {
            return Err(Error::Timeout { member: to, limit: self.time_limit });
        }
        self.take_in();
        self.park_foreground(bell, until);
        Ok(())
    }

    /// Writes a fragment, for which there is room, and moves the tail behind it.
    fn write_fragment(
        &self,
        to: MemberId,
        port: Port,
        flags: u64,
        epoch: Epoch,
        number: Option<u64>,
        bytes: &[u8],
    ) {
        let (tables, (ring, _)) = (self.tables(), self.tables().layout.ring(self.me, to));
        let tail_word = tables.mapping.word(ring + RING_TAIL);
        let tail = tail_word.load(Ordering::Relaxed);
        let (number_len, flag) = if number.is_some() { (8, FLAG_PUBLISHED) } else { (0, 0) };
        let first = (number_len + bytes.len()) as u64 | (port as u64) << 32 | (flags | flag) << 40;
        let start = (tail % tables.layout.ring_len as u64) as usize;
        let mut header = [0; FRAGMENT_HEADER_LEN + 8];
        header[..8].copy_from_slice(&first.to_ne_bytes());
        header[8..16].copy_from_slice(&epoch.0.to_ne_bytes());
        header[16..].copy_from_slice(&number.unwrap_or(0).to_ne_bytes());
        let header = &header[..FRAGMENT_HEADER_LEN + number_len];
        self.write_wrapped(ring, start, header);
        // In whole words: the padding behind the end belongs to this fragment.
        let (body, end) = bytes.split_at(bytes.len() & !7);
        self.write_wrapped(ring, start + header.len(), body);
        if !end.is_empty() {
            let mut word = [0; 8];
            word[..end.len()].copy_from_slice(end);
            self.write_wrapped(ring, start + header.len() + body.len(), &word);
        }
        self.step();
        let len = FRAGMENT_HEADER_LEN + number_len + bytes.len().next_multiple_of(8);
        // Release: the reader that sees the tail sees the bytes before it.
        tail_word.store(tail + len as u64, Ordering::Release);
        self.step();
    }

    /// Sets this member's bit at a receiver and rings there.
    fn tell_receiver(&self, to: MemberId, port: Port) {
        let (word, bit) = (self.me.index() / 64, 1 << (self.me.index() % 64));
        self.tables().pending(to, word).fetch_or(bit, Ordering::SeqCst);
        self.tables().ring_for_message(to, port);
    }

    /// Writes at a place of a ring, which may be up to a ring's length beyond its end.
    fn write_wrapped(&self, ring: usize, place: usize, bytes: &[u8]) {
        let ring_len = self.tables().layout.ring_len;
        let start = if place < ring_len { place } else { place - ring_len };
        let data = ring + RING_HEADER_LEN;
        let (before, after) = bytes.split_at(bytes.len().min(ring_len - start));
        self.tables().mapping.write(data + start, before);
        if !after.is_empty() {
            self.tables().mapping.write(data, after);
        }
    }

    /// Reads at a place of a ring, which may be up to a ring's length beyond its end.
    fn read_wrapped(&self, ring: usize, place: usize, bytes: &mut [u8]) {
        let ring_len = self.tables().layout.ring_len;
        let start = if place < ring_len { place } else { place - ring_len };
        let data = ring + RING_HEADER_LEN;
        let middle = bytes.len().min(ring_len - start);
        let (before, after) = bytes.split_at_mut(middle);
        self.tables().mapping.read(data + start, before);
        if !after.is_empty() {
            self.tables().mapping.read(data, after);
        }
    }

    /// Whether the bit of any sender is set.
    fn has_incoming(&self) -> bool {
        (0..self.tables().layout.members().div_ceil(64))
            .any(|word| self.tables().pending(self.me, word).load(Ordering::SeqCst) != 0)
    }

    /// Moves messages from the rings into the queues, unless another thread is doing so.
    pub(super) fn take_in(&self) {
        if !self.has_incoming() {
            return;
        }
        let Some(mut incoming) = try_lock(&self.mailboxes.incoming) else { return };
        self.take_in_locked(&mut incoming, None);
    }

    /// Moves messages from the rings into the queues. Another thread that is doing so may have
    /// passed the sender that wrote last, so this waits for its lock, which no thread holds for
    /// long.
    pub(super) fn take_in_all(&self) {
        if self.has_incoming() {
            self.take_in_locked(&mut lock(&self.mailboxes.incoming), None);
        }
    }

    fn take_in_locked(&self, incoming: &mut Incoming, wanted: Option<Port>) {
        for word in 0..self.tables().layout.members().div_ceil(64) {
            // Cleared before the rings are read: a fragment that is published later sets the bit
            // again.
            let mut bits = self.tables().pending(self.me, word).swap(0, Ordering::SeqCst);
            while bits != 0 {
                let sender = MemberId((word * 64) as u32 + bits.trailing_zeros());
                bits &= bits - 1;
                if sender.index() < self.tables().layout.members() {
                    self.drain(sender, incoming);
                }
            }
        }
        // The bell was rung for the port of each message. A thread that waits for another port and
        // moves the message rings again, so that a thread that attends to the message's port takes
        // it, or else the background.
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
            let len =
                match self.read_fragment(sender, ring, head, tail.wrapping_sub(head), incoming) {
                    Some(0) => break,
                    Some(len) => len,
                    None => {
                        incoming.partial[sender.index()] = Some(Partial::Broken);
                        break;
                    }
                };
            head = head.wrapping_add(len);
            // Release: the bytes are read before the writer may use their place again.
            head_word.store(head, Ordering::Release);
        }
        if take_announcement(tables.mapping.word(ring + RING_SENDER_WAITS)) {
            tables.ring_bell(sender);
        }
    }

    /// Reads a fragment; returns its length, 0 if it does not count yet, or `None` if it breaks the
    /// rules.
    fn read_fragment(
        &self,
        sender: MemberId,
        ring: usize,
        head: u64,
        available: u64,
        incoming: &mut Incoming,
    ) -> Option<u64> {
        if available > self.tables().layout.ring_len as u64
            || available < FRAGMENT_HEADER_LEN as u64
        {
            return None;
        }
        let start_place = (head % self.tables().layout.ring_len as u64) as usize;
        let mut header = [0; FRAGMENT_HEADER_LEN];
        self.read_wrapped(ring, start_place, &mut header);
        let word_at =
            |at: usize| u64::from_ne_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        let (first, epoch) = (word_at(0), Epoch(word_at(8)));
        let mut word = [0; 8];
        let (len, flags) = ((first & 0xffff_ffff) as usize, first >> 40);
        let port = Port::from_index((first >> 32 & 0xff) as usize)?;
        let fragment_len = FRAGMENT_HEADER_LEN + len.next_multiple_of(8);
        if fragment_len as u64 > available {
            return None;
        }
        let (mut at, mut len) = (start_place + FRAGMENT_HEADER_LEN, len);
        if flags & FLAG_PUBLISHED != 0 {
            self.read_wrapped(ring, at, &mut word);
            // Acquire: the content is seen as it was when it was published.
            if self.tables().published(sender).load(Ordering::Acquire) < u64::from_ne_bytes(word) {
                return Some(0);
            }
            (at, len) = (at + 8, len.checked_sub(8)?);
        }
        let partial = &mut incoming.partial[sender.index()];
        if flags & FLAG_FIRST != 0 {
            // The sender gave up an unfinished message here.
            *partial = Some(Partial::Message { port, epoch, bytes: Vec::with_capacity(len) });
        }
        let Some(Partial::Message { bytes, .. }) = partial else { return None };
        let start = bytes.len();
        if start + len > MESSAGE_LEN_MAX {
            return None;
        }
        bytes.resize(start + len, 0);
        // In whole words, as it was written.
        let (body, end) = bytes[start..].split_at_mut(len & !7);
        self.read_wrapped(ring, at, body);
        if !end.is_empty() {
            self.read_wrapped(ring, at + body.len(), &mut word);
            end.copy_from_slice(&word[..end.len()]);
        }
        if flags & FLAG_LAST != 0
            && let Some(Partial::Message { port, epoch, bytes }) = partial.take()
        {
            incoming.queues[port as usize].push_back(Message { from: sender, epoch, bytes });
            incoming.arrived[port as usize] = true;
        }
        Some(fragment_len as u64)
    }

    /// Whether a message for `port` has arrived, or may have.
    pub(super) fn may_have_message(&self, port: Port) -> bool {
        self.has_incoming() || !lock(&self.mailboxes.incoming).queues[port as usize].is_empty()
    }

    pub(super) fn receive_message(&self, port: Port) -> Option<Message> {
        let mut incoming = lock(&self.mailboxes.incoming);
        if incoming.queues[port as usize].is_empty() {
            // A member that knows of a death finds all messages that the dead had sent.
            if self.tables().current_epoch().0 + 1 != self.guard.word().load(Ordering::SeqCst) {
                let _ = self.catch_up();
            }
            if self.has_incoming() {
                self.take_in_locked(&mut incoming, Some(port));
            }
        }
        let message = incoming.queues[port as usize].pop_front()?;
        self.count_consumed(message.from, port, message.bytes.len());
        Some(message)
    }
}

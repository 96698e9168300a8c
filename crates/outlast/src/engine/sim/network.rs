//! Traffic between members: messages on both links, requests and their answers on the network link.
//!
//! A request goes through `Serve` at its target, once or, for a put or get of several words, twice
//! (its two phases), and `Respond` at its source. All of them are queued with times that grow for
//! each pair of members, so operations of a member on another take effect in order. A request that
//! is lost (its target or its source died) goes through its remaining events without effect; its
//! record is free when no event refers to it any more.

use super::memory::{MappedAccess, describe};
use super::options::Link;
use super::random::mix;
use super::segment::{Subset, words_in};
use super::world::{Event, Knowledge, Life, Wait, World, Yielder};
use crate::engine::{
    Completer, CompoundStep, Done, Epoch, Error, MESSAGE_LEN_MAX, MemberId, Message, Operation,
    Port, Result, message_cost,
};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;
use std::sync::Arc;

/// A message on its way.
pub(super) struct Flight {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) port: Port,
    pub(super) message: Message,
    pub(super) knowledge: Rc<Knowledge>,
    /// When it arrives.
    time: u64,
}

/// The operation of a request. Unlike an [`Operation`] it owns its bytes.
pub(super) enum Wanted {
    Put {
        offset: u64,
        data: Vec<u8>,
    },
    /// The buffer is made once the range was checked.
    Get {
        offset: u64,
        len: usize,
        buffer: Vec<u8>,
    },
    Load {
        offset: u64,
    },
    CompareAndSwap {
        offset: u64,
        expected: u64,
        new: u64,
    },
    FetchAdd {
        offset: u64,
        delta: u64,
    },
    SegmentLen,
    /// The steps of a compound operation, how many of them are done, and the last word that a step
    /// has found.
    Compound {
        steps: Vec<OwnStep>,
        done: usize,
        word: u64,
    },
}

/// A step of a compound operation. Unlike a [`CompoundStep`] it owns its bytes.
pub(super) enum OwnStep {
    Put { offset: u64, data: Vec<u8> },
    Word(CompoundStep<'static>),
}

impl OwnStep {
    pub(super) fn new(step: &CompoundStep<'_>) -> OwnStep {
        OwnStep::Word(match *step {
            CompoundStep::Put { offset, data } => {
                return OwnStep::Put { offset, data: data.to_vec() };
            }
            CompoundStep::Expect { offset, word } => CompoundStep::Expect { offset, word },
            CompoundStep::Swap { offset, expected, new } => {
                CompoundStep::Swap { offset, expected, new }
            }
            CompoundStep::Load { offset } => CompoundStep::Load { offset },
        })
    }

    fn borrowed(&self) -> CompoundStep<'_> {
        match self {
            OwnStep::Put { offset, data } => CompoundStep::Put { offset: *offset, data },
            OwnStep::Word(step) => *step,
        }
    }
}

impl Wanted {
    pub(super) fn new(operation: Operation<'_>) -> Wanted {
        match operation {
            Operation::Put { offset, data } => Wanted::Put { offset, data: data.to_vec() },
            Operation::Get { offset, len } => Wanted::Get { offset, len, buffer: Vec::new() },
            Operation::Load { offset } => Wanted::Load { offset },
            Operation::CompareAndSwap { offset, expected, new } => {
                Wanted::CompareAndSwap { offset, expected, new }
            }
            Operation::FetchAdd { offset, delta } => Wanted::FetchAdd { offset, delta },
        }
    }

    fn direct(&mut self) -> Option<(u64, MappedAccess<'_>)> {
        Some(match self {
            Wanted::Put { offset, data } => (*offset, MappedAccess::Put(data)),
            Wanted::Get { offset, buffer, .. } => (*offset, MappedAccess::Get(buffer)),
            Wanted::Load { offset } => (*offset, MappedAccess::Load),
            Wanted::CompareAndSwap { offset, expected, new } => {
                (*offset, MappedAccess::CompareAndSwap { expected: *expected, new: *new })
            }
            Wanted::FetchAdd { offset, delta } => (*offset, MappedAccess::FetchAdd(*delta)),
            Wanted::SegmentLen | Wanted::Compound { .. } => return None,
        })
    }

    /// The single operation of the request; none for the length of the segment, or for a compound
    /// operation.
    fn operation(&self) -> Option<Operation<'_>> {
        Some(match *self {
            Wanted::Put { offset, ref data } => Operation::Put { offset, data },
            Wanted::Get { offset, len, .. } => Operation::Get { offset, len },
            Wanted::Load { offset } => Operation::Load { offset },
            Wanted::CompareAndSwap { offset, expected, new } => {
                Operation::CompareAndSwap { offset, expected, new }
            }
            Wanted::FetchAdd { offset, delta } => Operation::FetchAdd { offset, delta },
            Wanted::SegmentLen | Wanted::Compound { .. } => return None,
        })
    }

    /// How many bytes travel to the target and back.
    fn bytes(&self) -> (usize, usize) {
        match self {
            Wanted::Put { data, .. } => (data.len(), 0),
            Wanted::Get { len, .. } => (0, *len),
            Wanted::Compound { steps, .. } => {
                let len = |step: &OwnStep| match step {
                    OwnStep::Put { data, .. } => data.len(),
                    OwnStep::Word(_) => 8,
                };
                (steps.iter().map(len).sum(), 8)
            }
            _ => (8, 8),
        }
    }
}

/// The receiver of a request's result.
pub(super) enum Consumer {
    /// An activity that is blocked until the result comes.
    Activity(u32, u32),
    /// The holder of the [`crate::engine::Pending`].
    Completer(Completer),
}

pub(super) struct Request {
    pub(super) source: u32,
    pub(super) target: u32,
    at: Epoch,
    wanted: Wanted,
    subset: Subset,
    /// What the source knew when it started the request, then what the target knew when the request
    /// was done.
    knowledge: Rc<Knowledge>,
    begun: bool,
    /// Whether its last phase is done.
    is_served: bool,
    lost: bool,
    /// The target's answer.
    answer: Option<Result<Done>>,
    consumer: Consumer,
    /// Whether the source has a result, or no longer wants it.
    completed: bool,
    /// The result for an activity that has not taken it yet.
    result: Option<Result<Done>>,
    /// Whether no event refers to this record any more.
    over: bool,
}

/// A kind of traffic; each kind has an order of its own.
#[derive(Clone, Copy)]
pub(super) enum Lane {
    Messages,
    Requests,
    Answers,
    /// Published messages. Its entry is the time at which the last of them arrives, among the other
    /// messages.
    Published,
}

/// The time at which the last message, request or answer between each pair of members arrives.
pub(super) enum Channels {
    Dense { members: usize, last: Vec<u64> },
    Sparse(HashMap<u64, u64, BuildHasherDefault<PairHasher>>),
}

/// Hashes the number of a pair: the standard hasher is seeded differently in each process, and
/// slower.
#[derive(Default)]
pub(super) struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = super::random::mix(self.0 ^ value);
    }
}

const DENSE_MEMBERS_MAX: usize = 32;

impl Channels {
    pub(super) fn new(members: usize) -> Channels {
        if members <= DENSE_MEMBERS_MAX {
            Channels::Dense { members, last: vec![0; 4 * members * members] }
        } else {
            Channels::Sparse(HashMap::default())
        }
    }

    fn last(&mut self, lane: Lane, from: u32, to: u32) -> &mut u64 {
        match self {
            Channels::Dense { members, last } => {
                &mut last[(lane as usize * *members + from as usize) * *members + to as usize]
            }
            Channels::Sparse(last) => {
                last.entry((lane as u64) << 32 | u64::from(from) << 16 | u64::from(to)).or_default()
            }
        }
    }
}

impl World {
    /// When a message, request or answer that leaves now arrives: after all earlier traffic of its
    /// lane between these members.
    fn arrival(&mut self, lane: Lane, from: u32, to: u32, bytes: usize) -> u64 {
        let time = match self.cost {
            None => {
                let base = if self.link == Link::Network { 300 } else { 20 };
                self.now + base + self.random.delay()
            }
            Some(cost) => {
                let length = (bytes as u64).saturating_mul(cost.gap_per_byte_ps) / 1000;
                let interface = &mut self.members[from as usize].interface_free_at;
                let begin = self.now.max(*interface);
                *interface = begin + length.max(cost.gap.as_nanos() as u64);
                begin + length + cost.latency.as_nanos() as u64 + cost.overhead.as_nanos() as u64
            }
        };
        let last = self.channels.last(lane, from, to);
        *last = time.max(*last + 1);
        *last
    }

    // ---- Messages.

    pub(super) fn check_send(&mut self, member: u32, to: MemberId, len: usize) -> Result<()> {
        if len > MESSAGE_LEN_MAX {
            self.check_self(member)?;
            return Err(Error::MessageTooLong { len });
        }
        self.check_start(member, Epoch::ANY, to)
    }

    pub(super) fn send(&mut self, from: u32, to: u32, port: Port, bytes: &[u8]) {
        let counters = &mut self.members[from as usize].counters;
        counters.messages_sent += 1;
        counters.message_bytes_sent += bytes.len() as u64;
        self.note_bytes(bytes);
        let time = self.arrival(Lane::Messages, from, to, bytes.len());
        if self.members[to as usize].life != Life::Living {
            return;
        }
        *self.members[to as usize].unreceived.entry((from, port)).or_default() +=
            message_cost(bytes.len());
        let message =
            Message { from: MemberId(from), epoch: self.epoch(from), bytes: bytes.to_vec() };
        let flight =
            Flight { from, to, port, message, knowledge: self.knowledge(from).clone(), time };
        let index = match self.free_flights.pop() {
            Some(index) => {
                self.flights[index as usize] = Some(flight);
                index
            }
            None => {
                self.flights.push(Some(flight));
                (self.flights.len() - 1) as u32
            }
        };
        self.push(time, Event::Deliver { flight: index });
    }

    /// Sends a message that outlives its sender, as do all messages that the sender sent to that
    /// member before.
    pub(super) fn publish(&mut self, from: u32, to: u32, port: Port, bytes: &[u8]) {
        self.send(from, to, port, bytes);
        let arrives = *self.channels.last(Lane::Messages, from, to);
        *self.channels.last(Lane::Published, from, to) = arrives;
    }

    /// Delivers the messages that a member had published, since its death is about to be known.
    pub(super) fn deliver_published(&mut self, dead: u32) {
        let mut published = Vec::new();
        for index in 0..self.flights.len() {
            if let Some(Flight { from, to, time, .. }) = self.flights[index]
                && from == dead
                && time <= *self.channels.last(Lane::Published, from, to)
            {
                published.push((time, to, index as u32));
            }
        }
        published.sort_unstable();
        for (time, _, index) in published {
            self.deliver_flight(index, time);
        }
    }

    /// Whether a message has to wait until the receiver has received earlier messages of its sender
    /// for this port.
    pub(super) fn is_full(&self, from: u32, to: u32, port: Port, len: usize) -> bool {
        let state = &self.members[to as usize];
        let unreceived = state.unreceived.get(&(from, port)).copied().unwrap_or(0);
        state.life == Life::Living
            && unreceived > 0
            && unreceived + message_cost(len) > self.message_credit
    }

    /// Takes a message out of what its sender has on its way to a member.
    fn count_received(&mut self, from: u32, to: u32, port: Port, len: usize) {
        if let Some(cost) = self.members[to as usize].unreceived.get_mut(&(from, port)) {
            *cost = cost.saturating_sub(message_cost(len));
        }
    }

    pub(super) fn wait_for_room(&mut self, to: u32, until: u64) -> *const Yielder {
        let waiter = self.current();
        self.members[to as usize].senders.push(waiter);
        self.block(Wait::Signal, until)
    }

    pub(super) fn deliver(&mut self, flight: u32, time: u64) {
        self.deliver_flight(flight, time);
        // Its slot is free once no event refers to it any more.
        self.free_flights.push(flight);
    }

    fn deliver_flight(&mut self, flight: u32, time: u64) {
        let Some(Flight { from, to, port, message, knowledge, .. }) =
            self.flights[flight as usize].take()
        else {
            return;
        };
        if self.members[to as usize].life != Life::Living {
            return;
        }
        let is_published =
            self.link == Link::Memory && time <= *self.channels.last(Lane::Published, from, to);
        if !is_published && self.is_lost(from, to, time) {
            self.count_received(from, to, port, message.bytes.len());
            self.tell(to, |_| format!("never gets a message of m{from}, which died"));
            return;
        }
        self.adopt(to, &knowledge);
        self.note(u64::from(from) << 32 ^ u64::from(to) ^ time << 13);
        self.tell(to, |world| {
            let suffix = if world.knows_dead(to, from) { ", which is dead" } else { "" };
            format!("gets a message of {} B from m{from}{suffix}", message.bytes.len())
        });
        self.members[to as usize].inbox[port as usize].push_back(message);
        self.ring(to);
    }

    pub(super) fn receive(&mut self, member: u32, port: Port) -> Option<Message> {
        let state = &mut self.members[member as usize];
        let message = state.inbox[port as usize].pop_front()?;
        state.counters.messages_received += 1;
        state.counters.message_bytes_received += message.bytes.len() as u64;
        let senders = std::mem::take(&mut state.senders);
        self.count_received(message.from.0, member, port, message.bytes.len());
        for (slot, generation) in senders {
            self.signal(slot, generation);
        }
        self.note(u64::from(message.from.0));
        Some(message)
    }

    /// Whether a message, request or answer that was due at `time` was lost with its sender. The
    /// traffic of a pair of members is lost from some moment on, so that no gap comes before a
    /// message that arrived.
    pub(super) fn is_lost(&self, from: u32, to: u32, time: u64) -> bool {
        let sender = &self.members[from as usize];
        if sender.life != Life::Dead {
            return false;
        }
        let draw =
            mix(self.seed
                ^ (u64::from(from) << 32 | u64::from(to)).wrapping_mul(0xA24B_AED4_963E_E407));
        let grace = match draw & 3 {
            0 => 0,
            1 => draw >> 50,
            2 => draw >> 44,
            _ => draw >> 38,
        };
        time > sender.died_at.saturating_add(grace)
    }

    /// Rings another member's bell, which takes a while on a network.
    pub(super) fn send_ring(&mut self, from: u32, to: u32) {
        if self.members[to as usize].life != Life::Living {
            return;
        }
        if self.link == Link::Memory || from == to {
            self.ring(to);
        } else {
            let time = self.arrival(Lane::Messages, from, to, 0);
            self.push(time, Event::Ring { to, for_view: false });
        }
    }

    // ---- Requests.

    /// Sends a request; returns its number.
    pub(super) fn request(
        &mut self,
        source: u32,
        at: Epoch,
        target: MemberId,
        wanted: Wanted,
        consumer: Consumer,
    ) -> Result<u32> {
        if let Err(error) = self.check_start(source, at, target) {
            self.tell(source, |_| format!("is refused an operation on m{}: {error}", target.0));
            return Err(error);
        }
        self.drop_forgotten(source, target.0);
        let mut subset = Subset::All;
        if let Some(operation) = wanted.operation() {
            // Only the alignment can be checked here; the target knows how long its segment is.
            if let Err(error @ Error::Unaligned { .. }) = operation.check(target, u64::MAX) {
                return Err(error);
            }
            let call = super::call_of(target, &operation);
            // A range that cannot fit into any segment has a length that must not enter any
            // computation.
            if operation.check(target, self.segment_limit).is_ok() {
                self.count(source, call.what, call.len as usize);
                if self.cost.is_none() {
                    subset =
                        Subset::draw(&mut self.random, words_in(call.offset, call.len as usize));
                }
            }
            self.tell(source, |_| format!("asks for {call}"));
        }
        let mut phases = if subset == Subset::All { 1 } else { 2 };
        if let Wanted::Compound { steps, .. } = &wanted {
            for step in steps {
                let call = super::call_of(target, &step.borrowed().operation());
                self.count(source, call.what, call.len as usize);
                self.tell(source, |_| format!("asks for {call}, in a compound operation"));
            }
            // Operations of other members come in between, unless a cost model measures time.
            phases = if self.cost.is_none() { steps.len() } else { 1 };
        }
        let (bytes, _) = wanted.bytes();
        let first = self.arrival(Lane::Requests, source, target.0, bytes);
        let request = Request {
            source,
            target: target.0,
            at,
            wanted,
            subset,
            knowledge: self.knowledge(source).clone(),
            begun: false,
            is_served: false,
            lost: false,
            answer: None,
            consumer,
            completed: false,
            result: None,
            over: false,
        };
        let index = match self.free_requests.pop() {
            Some(index) => {
                self.requests[index as usize] = request;
                index
            }
            None => {
                self.requests.push(request);
                (self.requests.len() - 1) as u32
            }
        };
        self.members[source as usize].requests.push(index);
        let mut time = first;
        for phase in 1..phases {
            self.push(time, Event::Serve { request: index, last: false });
            time += self.random.delay() / (phase as u64);
        }
        *self.channels.last(Lane::Requests, source, target.0) = time;
        self.push(time, Event::Serve { request: index, last: true });
        Ok(index)
    }

    /// When a request is sent, queued requests to its target that were forgotten may be dropped, as
    /// on mpi. Requests behind them are served all the same, if they are wanted.
    fn drop_forgotten(&mut self, source: u32, target: u32) {
        let is_dropped = |index: &u32| {
            let request = &self.requests[*index as usize];
            let is_forgotten = match &request.consumer {
                Consumer::Completer(completer) => completer.is_forgotten(),
                Consumer::Activity(..) => false,
            };
            request.target == target && !request.begun && is_forgotten
        };
        let dropped: Vec<u32> =
            self.members[source as usize].requests.iter().copied().filter(is_dropped).collect();
        // Not a draw of the run's generator: a run without forgotten requests is as it would be
        // without this.
        let draw = mix(self.seed ^ self.now ^ (u64::from(source) << 32 | u64::from(target)) << 8);
        for index in dropped.into_iter().filter(|_| draw & 1 == 0) {
            self.tell(source, |_| format!("drops a forgotten request to m{target}"));
            self.requests[index as usize].lost = true;
            self.abandon(index);
        }
    }

    /// A request, or its second phase, arrives at its target.
    pub(super) fn serve(&mut self, index: u32, last: bool, time: u64) {
        let request = &self.requests[index as usize];
        let (source, target) = (request.source, request.target);
        // On a node of several members a request is completed that was begun before the death.
        let is_refused = !(request.begun && self.has_mates(target))
            && (self.is_lost(source, target, time) || self.knows_dead(target, source));
        if self.members[target as usize].life != Life::Living || is_refused {
            self.requests[index as usize].lost = true;
        }
        if !self.requests[index as usize].lost {
            self.serve_phase(index);
        }
        if !last {
            return;
        }
        if self.requests[index as usize].lost {
            self.end_request(index);
            return;
        }
        let request = &mut self.requests[index as usize];
        request.is_served = true;
        let bytes = request.wanted.bytes().1;
        if request.answer.is_none() {
            request.answer = Some(Ok(match &mut request.wanted {
                Wanted::Get { buffer, .. } => Done::Get(std::mem::take(buffer)),
                Wanted::Compound { done, word, .. } => Done::Compound { done: *done, word: *word },
                _ => Done::Put,
            }));
        }
        let knowledge = self.knowledge(target).clone();
        self.requests[index as usize].knowledge = knowledge;
        let time = self.arrival(Lane::Answers, target, source, bytes);
        self.push(time, Event::Respond { request: index });
    }

    /// The member of a node that is in the middle of a request of a member that its view has as
    /// dead.
    pub(super) fn server_of_dead(&self, member: u32) -> Option<MemberId> {
        let is_in_progress = |request: &&Request| {
            request.begun
                && !request.is_served
                && !request.lost
                && !request.over
                && self.are_mates(member, request.target)
                && self.members[request.target as usize].life == Life::Living
                && self.knows_dead(member, request.source)
        };
        if !self.has_mates(member) {
            return None;
        }
        let request = self.requests.iter().find(is_in_progress)?;
        Some(MemberId(request.target))
    }

    fn serve_phase(&mut self, index: u32) {
        let request = &mut self.requests[index as usize];
        let (source, target, subset) = (request.source, request.target, request.subset);
        let second_phase = request.begun;
        if !second_phase {
            request.begun = true;
            let theirs = request.knowledge.clone();
            let at = request.at;
            let mine = self.knowledge(target);
            let is_stale = at != Epoch::ANY
                && !Rc::ptr_eq(mine, &theirs)
                && !mine.dead.is_subset(&theirs.dead);
            self.adopt(target, &theirs);
            if is_stale {
                self.note(0x7374_616C_6500);
                self.tell(target, |_| format!("refuses an operation of m{source}: {at} is past"));
                let now = self.epoch(target);
                self.requests[index as usize].answer = Some(Err(Error::Stale { now }));
                return;
            }
        } else if request.answer.is_some() {
            return;
        }
        // The operation leaves its record for a moment, since it acts on another part of the world.
        let mut wanted =
            std::mem::replace(&mut self.requests[index as usize].wanted, Wanted::SegmentLen);
        if let Wanted::Compound { steps, done, word } = &mut wanted {
            let answer = self.serve_steps((source, target), steps, done, word);
            let request = &mut self.requests[index as usize];
            request.wanted = wanted;
            request.answer = answer;
            return;
        }
        let segment_len = self.members[target as usize].segment.len();
        let check =
            wanted.operation().map(|operation| operation.check(MemberId(target), segment_len));
        if let (Some(Ok(())), false, Wanted::Get { len, buffer, .. }) =
            (&check, second_phase, &mut wanted)
        {
            buffer.resize(*len, 0);
        }
        let answer = match (check, wanted.direct()) {
            (Some(Err(error)), _) => Some(Err(error)),
            (_, None) => Some(Ok(Done::Word(segment_len))),
            (_, Some((offset, mut direct))) => {
                let word = self.apply(target, offset, &mut direct, subset, second_phase);
                self.tell(target, |_| {
                    let effect = describe(target, offset, &direct, subset, second_phase, word);
                    format!("serves m{source}: {effect}")
                });
                let is_word = !matches!(direct, MappedAccess::Put(_) | MappedAccess::Get(_));
                is_word.then_some(Ok(Done::Word(word)))
            }
        };
        let request = &mut self.requests[index as usize];
        request.wanted = wanted;
        request.answer = answer;
    }

    /// Executes the next step of a compound operation, or all of them under a cost model, where no
    /// operation comes in between; returns the answer if the compound operation has ended early.
    fn serve_steps(
        &mut self,
        (source, target): (u32, u32),
        steps: &[OwnStep],
        done: &mut usize,
        last: &mut u64,
    ) -> Option<Result<Done>> {
        while let Some(step) = steps.get(*done) {
            let (step, segment_len) =
                (step.borrowed(), self.members[target as usize].segment.len());
            let operation = step.operation();
            if let Err(error) = operation.check(MemberId(target), segment_len) {
                return Some(Err(error));
            }
            let (offset, mut direct) = match operation {
                Operation::Put { offset, data } => (offset, MappedAccess::Put(data)),
                word => super::direct_word(word),
            };
            let word = self.apply(target, offset, &mut direct, Subset::All, false);
            self.tell(target, |_| {
                let effect = describe(target, offset, &direct, Subset::All, false, word);
                format!("serves m{source}: {effect}")
            });
            if !matches!(step, CompoundStep::Put { .. }) {
                *last = word;
                if !step.goes_on(word) {
                    return Some(Ok(Done::Compound { done: *done, word }));
                }
            }
            *done += 1;
            if self.cost.is_none() {
                break;
            }
        }
        None
    }

    /// The answer arrives at the source.
    pub(super) fn respond(&mut self, index: u32, time: u64) {
        let request = &mut self.requests[index as usize];
        let (source, target) = (request.source, request.target);
        let (knowledge, answer) = (request.knowledge.clone(), request.answer.take());
        if self.members[source as usize].life == Life::Living && !self.is_lost(target, source, time)
        {
            self.adopt(source, &knowledge);
            let answer = match answer {
                Some(Err(Error::Stale { .. })) => Err(Error::Stale { now: self.epoch(source) }),
                Some(answer) => answer,
                None => unreachable!("an answer travels only once it is there"),
            };
            self.complete(index, answer);
        }
        self.end_request(index);
    }

    /// Gives the source its result. The first result counts.
    fn complete(&mut self, index: u32, result: Result<Done>) {
        let request = &mut self.requests[index as usize];
        if request.completed {
            return;
        }
        request.completed = true;
        let (source, target) = (request.source, request.target);
        let is_ok = result.is_ok();
        self.tell(source, |_| match &result {
            Ok(_) => format!("has the answer of m{target}"),
            Err(error) => format!("has no result of m{target}: {error}"),
        });
        let request = &mut self.requests[index as usize];
        let signal = match &request.consumer {
            Consumer::Activity(slot, generation) => {
                request.result = Some(result);
                Ok((*slot, *generation))
            }
            Consumer::Completer(completer) => {
                completer.complete(result);
                Err(Arc::as_ptr(&completer.0) as usize)
            }
        };
        self.members[source as usize].requests.retain(|&other| other != index);
        self.note(
            u64::from(source) << 32 ^ u64::from(target) ^ u64::from(is_ok) << 16 ^ self.now << 20,
        );
        match signal {
            Ok((slot, generation)) => self.signal(slot, generation),
            Err(address) => {
                if !self.wake_completion(source, address) {
                    self.ring(source);
                }
            }
        }
    }

    /// The result of a request that an activity waits for, once.
    pub(super) fn take_result(&mut self, index: u32) -> Option<Result<Done>> {
        let request = &mut self.requests[index as usize];
        let result = request.result.take()?;
        if request.over {
            self.free_requests.push(index);
        }
        Some(result)
    }

    /// The source no longer wants the result. The request goes on: whether it takes effect is
    /// unknown.
    pub(super) fn abandon(&mut self, index: u32) {
        let request = &mut self.requests[index as usize];
        let source = request.source;
        request.completed = true;
        request.result = None;
        let is_over = request.over;
        self.members[source as usize].requests.retain(|&other| other != index);
        if is_over {
            self.free_requests.push(index);
        }
    }

    /// No event refers to the request any more.
    fn end_request(&mut self, index: u32) {
        let request = &mut self.requests[index as usize];
        request.over = true;
        // A request that is not completed waits for the notice of its target's death, or for the
        // end of the caller's time limit.
        if request.completed && request.result.is_none() {
            self.free_requests.push(index);
        }
    }

    /// Requests to members that their source now knows to be dead fail.
    pub(super) fn fail_requests(&mut self, source: u32, dead: &[u32]) {
        let failing: Vec<u32> = self.members[source as usize]
            .requests
            .iter()
            .copied()
            .filter(|&index| dead.contains(&self.requests[index as usize].target))
            .collect();
        for index in failing {
            let member = MemberId(self.requests[index as usize].target);
            self.complete(index, Err(Error::Dead { member }));
            let request = &self.requests[index as usize];
            if request.over && request.result.is_none() {
                self.free_requests.push(index);
            }
        }
    }
}

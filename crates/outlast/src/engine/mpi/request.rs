//! Requests and messages of this member to remote members, and the replies.
//!
//! A request has a number, under which [`Core`] keeps it open until its reply arrives, its target
//! dies, or this member leaves. A request that its caller has given up is dropped while it is still
//! queued. A get is answered piece by piece.

use super::core::Core;
use super::link::{Outgoing, piece_of};
use super::wire::{self, Ending, Header, Kind};
use crate::engine::shm::Shm;
use crate::engine::{
    Completer, CompoundStep, Done, Engine, Epoch, Error, MESSAGE_CREDIT, MemberId, Message,
    Operation, Pending, Port, message_cost,
};
use std::collections::HashMap;

/// A request without a reply so far.
pub(super) struct OpenRequest {
    pub(super) target: MemberId,
    completer: Completer,
    /// Offset and length in the target's segment, for the error.
    range: (u64, u64),
    awaited: Awaited,
}

/// What the reply to a request brings.
enum Awaited {
    Put,
    Word,
    Compound,
    /// The bytes of a get, and how many of them have arrived.
    Get(Vec<u8>, usize),
}

impl Core {
    /// Starts an operation on a living remote member.
    pub(super) fn start(
        &mut self,
        node: &Shm,
        at: Epoch,
        target: MemberId,
        operation: Operation<'_>,
    ) -> Pending {
        let (kind, words, awaited) = match operation {
            Operation::Put { offset, data } => {
                (Kind::Put, [offset, data.len() as u64, 0], Awaited::Put)
            }
            Operation::Get { offset, len } => {
                (Kind::Get, [offset, len as u64, 0], Awaited::Get(Vec::new(), 0))
            }
            Operation::Load { offset } => (Kind::Load, [offset, 0, 0], Awaited::Word),
            Operation::CompareAndSwap { offset, expected, new } => {
                (Kind::CompareAndSwap, [offset, expected, new], Awaited::Word)
            }
            Operation::FetchAdd { offset, delta } => {
                (Kind::FetchAdd, [offset, 0, delta], Awaited::Word)
            }
        };
        let (offset, len) = operation.range();
        let (pending, id) = self.await_reply(target, (offset, len as u64), awaited);
        let header = Header::new(kind, id, at.0, words);
        let outgoing = match operation {
            Operation::Put { data, .. } => Outgoing::Data { header, data: data.to_vec(), sent: 0 },
            Operation::Get { .. } => Outgoing::Get { header, asked: 0 },
            _ => Outgoing::Small { header, payload: Vec::new() },
        };
        self.enqueue(node, target, outgoing);
        pending
    }

    /// Starts a compound operation on a living remote member.
    pub(super) fn start_compound(
        &mut self,
        node: &Shm,
        at: Epoch,
        target: MemberId,
        steps: &[CompoundStep<'_>],
    ) -> Pending {
        // The range of the first step, for the error: the reply does not say which step it was.
        let (offset, len) = steps.first().map_or((0, 0), |step| step.operation().range());
        let (pending, id) = self.await_reply(target, (offset, len as u64), Awaited::Compound);
        let header = Header::new(Kind::Compound, id, at.0, [0; 3]);
        self.enqueue(node, target, Outgoing::Small { header, payload: wire::encode_steps(steps) });
        pending
    }

    /// Asks a living remote member how long its segment is.
    pub(super) fn start_segment_len(&mut self, node: &Shm, target: MemberId) -> Pending {
        let (pending, id) = self.await_reply(target, (0, 0), Awaited::Word);
        self.enqueue_small(node, target, Header::new(Kind::SegmentLen, id, Epoch::ANY.0, [0; 3]));
        pending
    }

    /// Numbers a request, and keeps it open.
    fn await_reply(
        &mut self,
        target: MemberId,
        range: (u64, u64),
        awaited: Awaited,
    ) -> (Pending, u64) {
        let (pending, completer) = Pending::later(target);
        let id = self.id_next;
        self.id_next += 1;
        self.open_requests.insert(id, OpenRequest { target, completer, range, awaited });
        (pending, id)
    }

    /// Takes the reply to a request of this member.
    pub(super) fn complete_request(
        &mut self,
        node: &Shm,
        from: MemberId,
        header: Header,
        payload: &[u8],
    ) {
        let [word, len, piece] = header.words;
        let link = &mut self.links[from.index()];
        link.gets_in_flight = link.gets_in_flight.saturating_sub(piece_of(len, piece));
        // The refusal of an earlier piece may have ended the request already.
        let Some(request) = self.open_requests.get_mut(&header.id) else { return };
        let result = match Ending::from_byte(header.detail) {
            // This frame or an earlier frame carried the refusing view, so it is part of this
            // member's view by now.
            Some(Ending::Stale) => Err(Error::Stale { now: node.epoch() }),
            Some(Ending::OutOfRange) => Err(Error::OutOfRange {
                member: from,
                offset: request.range.0,
                len: request.range.1,
                segment_len: word,
            }),
            Some(Ending::Done) => match &mut request.awaited {
                Awaited::Get(bytes, arrived) => {
                    // Allocated only now: before its first reply arrives it is not known whether
                    // the target has that many bytes.
                    bytes.resize(len as usize, 0);
                    let Some(place) = bytes.get_mut(piece as usize..piece as usize + payload.len())
                    else {
                        debug_assert!(false, "{from} replied more than was requested");
                        return;
                    };
                    place.copy_from_slice(payload);
                    *arrived += payload.len();
                    if (*arrived as u64) < len {
                        return;
                    }
                    Ok(Done::Get(std::mem::take(bytes)))
                }
                Awaited::Put => Ok(Done::Put),
                Awaited::Word => Ok(Done::Word(word)),
                Awaited::Compound => Ok(Done::Compound { done: piece as usize, word }),
            },
            None => {
                debug_assert!(false, "{from} replied with an unknown ending");
                return;
            }
        };
        request.completer.complete(result);
        self.open_requests.remove(&header.id);
        self.has_arrivals = true;
    }

    /// Ends the open requests for which `which` is true with an error.
    pub(super) fn fail_requests(
        &mut self,
        which: impl Fn(&OpenRequest) -> bool,
        error: impl Fn() -> Error,
    ) {
        self.open_requests.retain(|_, request| {
            let is_hit = which(request);
            if is_hit {
                request.completer.complete(Err(error()));
            }
            !is_hit
        });
    }

    /// Sends a message if the receiver has room for it; whether it had room.
    pub(super) fn send(&mut self, node: &Shm, to: MemberId, port: Port, bytes: &[u8]) -> bool {
        let cost = message_cost(bytes.len());
        let credit = &mut self.links[to.index()].credit[port as usize];
        if *credit < cost {
            return false;
        }
        *credit -= cost;
        let header = Header::new(Kind::Message, 0, node.epoch().0, [0, bytes.len() as u64, 0])
            .detail(port as u8);
        self.enqueue(node, to, Outgoing::Data { header, data: bytes.to_vec(), sent: 0 });
        true
    }

    /// The next message for a port.
    pub(super) fn receive(&mut self, node: &Shm, port: Port) -> Option<Message> {
        let message = self.inbox[port as usize].pop_front()?;
        let link = &mut self.links[message.from.index()];
        let cost = message_cost(message.bytes.len());
        link.unreported[port as usize] += cost;
        // Reported in large portions: a report for each message would double the number of frames.
        if link.unreported[port as usize] >= MESSAGE_CREDIT / 4
            && !self.membership.is_dead(message.from)
        {
            let unreported = std::mem::take(&mut link.unreported[port as usize]);
            let header = Header::new(Kind::Credit, 0, 0, [unreported, 0, 0]).detail(port as u8);
            self.enqueue_small(node, message.from, header);
        }
        Some(message)
    }

    /// Whether a message for a port has arrived.
    pub(super) fn has_message(&self, port: Port) -> bool {
        !self.inbox[port as usize].is_empty()
    }

    /// Rings the bell of a living remote member.
    pub(super) fn ring(&mut self, node: &Shm, member: MemberId) {
        // A ring directly behind another would be superfluous. But a frame that was queued behind a
        // ring needs a ring of its own.
        let last = self.links[member.index()].queue.back();
        if !matches!(last, Some(Outgoing::Small { header, .. }) if header.kind == Kind::Ring) {
            self.enqueue_small(node, member, Header::new(Kind::Ring, 0, 0, [0; 3]));
        }
    }

    /// Asks the living members of a remote member's node, itself included, to kill it.
    pub(super) fn fence(&mut self, node: &Shm, victim: MemberId) {
        let its_node = self.membership.node_of(victim);
        for member in self.membership.living_remote() {
            if self.membership.node_of(member) == its_node {
                let header = Header::new(Kind::Fence, 0, 0, [u64::from(victim.0), 0, 0]);
                self.enqueue_small(node, member, header);
            }
        }
    }
}

/// Whether a caller still waits for a request.
pub(super) fn is_wanted(open: &HashMap<u64, OpenRequest>, id: u64) -> bool {
    open.get(&id).is_some_and(|request| !request.completer.is_forgotten())
}

//! What this member asks of remote members, and the answers.

use super::core::Core;
use super::link::{MESSAGE_WINDOW, Outgoing, message_cost, piece_of};
use super::wire::{self, Ending, Header, Kind};
use crate::engine::shm::Shm;
use crate::engine::{
    Completer, CompoundStep, Done, Engine, Epoch, Error, MemberId, Message, Operation, Pending,
    Port,
};
use std::collections::HashMap;

/// An operation whose reply has not arrived.
pub(super) struct OpenRequest {
    pub(super) target: MemberId,
    pub(super) completer: Completer,
    /// Where in the target's segment, and how many bytes: for the error.
    pub(super) range: (u64, u64),
    pub(super) awaited: Awaited,
}

/// What the reply to an operation brings.
pub(super) enum Awaited {
    Put,
    Word,
    Compound,
    /// The bytes so far, and how many of them have arrived.
    Get(Vec<u8>, usize),
}

impl Core {
    /// Starts an operation on another member that lives.
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

    /// Starts a series of operations on another member that lives.
    pub(super) fn start_compound(
        &mut self,
        node: &Shm,
        at: Epoch,
        target: MemberId,
        steps: &[CompoundStep<'_>],
    ) -> Pending {
        // The range of the first part, for the error; which part it was is not told.
        let (offset, len) = steps.first().map_or((0, 0), |step| step.operation().range());
        let (pending, id) = self.await_reply(target, (offset, len as u64), Awaited::Compound);
        let header = Header::new(Kind::Compound, id, at.0, [0; 3]);
        self.enqueue(node, target, Outgoing::Small { header, payload: wire::encode_steps(steps) });
        pending
    }

    /// Asks another member how long its segment is.
    pub(super) fn start_segment_len(&mut self, node: &Shm, target: MemberId) -> Pending {
        let (pending, id) = self.await_reply(target, (0, 0), Awaited::Word);
        self.enqueue_small(node, target, Header::new(Kind::SegmentLen, id, Epoch::ANY.0, [0; 3]));
        pending
    }

    /// Numbers a request and remembers who waits for its reply.
    pub(super) fn await_reply(
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

    /// Takes the answer to a request of this member.
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
        // The operation may have ended already: by the refusal of an earlier piece.
        let Some(waiting) = self.open_requests.get_mut(&header.id) else { return };
        let result = match Ending::from_byte(header.detail) {
            // The refusing view stood in this frame or in an earlier one, so it is part of this member's by now.
            Some(Ending::Stale) => Err(Error::Stale { now: node.epoch() }),
            Some(Ending::OutOfRange) => Err(Error::OutOfRange {
                member: from,
                offset: waiting.range.0,
                len: waiting.range.1,
                segment_len: word,
            }),
            Some(Ending::Done) => match &mut waiting.awaited {
                Awaited::Get(bytes, arrived) => {
                    // Only now: before the first answer it is not known that the target has that many bytes.
                    bytes.resize(len as usize, 0);
                    let Some(place) = bytes.get_mut(piece as usize..piece as usize + payload.len())
                    else {
                        debug_assert!(false, "{from} answered more than was asked for");
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
                Awaited::Compound => Ok(Done::Series { done: piece as usize, word }),
            },
            None => {
                debug_assert!(false, "{from} answered in an unknown way");
                return;
            }
        };
        waiting.completer.complete(result);
        self.open_requests.remove(&header.id);
        self.has_arrivals = true;
    }

    /// Ends the waiting operations that `which` names.
    pub(super) fn fail_requests(
        &mut self,
        which: impl Fn(&OpenRequest) -> bool,
        error: impl Fn() -> Error,
    ) {
        self.open_requests.retain(|_, waiting| {
            let is_hit = which(waiting);
            if is_hit {
                waiting.completer.complete(Err(error()));
            }
            !is_hit
        });
    }

    /// Sends a message, if the receiver has room for it: whether it had.
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
        // Reported in large portions: a frame for each message would double their number.
        if link.unreported[port as usize] >= MESSAGE_WINDOW / 4
            && !self.membership.is_dead(message.from)
        {
            let unreported = std::mem::take(&mut link.unreported[port as usize]);
            let header = Header::new(Kind::Credit, 0, 0, [unreported, 0, 0]).detail(port as u8);
            self.enqueue_small(node, message.from, header);
        }
        Some(message)
    }

    /// Whether a message for a port is there.
    pub(super) fn has_message(&self, port: Port) -> bool {
        !self.inbox[port as usize].is_empty()
    }

    /// Rings the bell of another member that lives.
    pub(super) fn ring(&mut self, node: &Shm, member: MemberId) {
        // One after another would be one too many; but what is queued behind one needs its own.
        let last = self.links[member.index()].queue.back();
        if !matches!(last, Some(Outgoing::Small { header, .. }) if header.kind == Kind::Ring) {
            self.enqueue_small(node, member, Header::new(Kind::Ring, 0, 0, [0; 3]));
        }
    }

    /// Asks those who can to end a member of another node: its neighbours, and itself.
    pub(super) fn fence(&mut self, node: &Shm, victim: MemberId) {
        let of_its_node = self.membership.node_of(victim);
        for member in self.membership.living_remote() {
            if self.membership.node_of(member) == of_its_node {
                let header = Header::new(Kind::Fence, 0, 0, [u64::from(victim.0), 0, 0]);
                self.enqueue_small(node, member, header);
            }
        }
    }
}

/// Whether anybody still waits for an operation.
pub(super) fn is_wanted(waiting: &HashMap<u64, OpenRequest>, id: u64) -> bool {
    waiting.get(&id).is_some_and(|waiting| !waiting.completer.is_forgotten())
}

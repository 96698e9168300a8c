//! The link to each remote member: its queue of frames, and the flow control between the two.

use super::core::{Core, Peer, TAG};
use super::onesided::{Path, watch};
use super::request::is_wanted;
use super::wire::{self, Deaths, Header, Kind};
use crate::engine::shm::Shm;
use crate::engine::{COMPOUND_LEN_MAX, Engine, MESSAGE_LEN_MAX, MemberId, Port, Time};
use std::collections::VecDeque;

/// How many frames to one member are given to MPI at a time; the others wait in the link's queue, where those of
/// forgotten operations can still be dropped.
pub(super) const IN_FLIGHT_MAX: usize = 16;

/// How many bytes of gets are asked from one member at a time: its answers wait in its memory.
pub(super) const GET_WINDOW: usize = 1 << 20;

/// How many bytes of puts may be under way to one member that it has not said to have taken: MPI itself would keep any
/// number of frames, see [`PIECE_LEN`].
pub(super) const PUT_WINDOW: u64 = 1 << 20;

/// How many bytes of messages for one port may be under way to, or waiting at, one receiver.
pub(super) const MESSAGE_WINDOW: u64 = 4 << 20;
const _: () = assert!(MESSAGE_WINDOW > message_cost(MESSAGE_LEN_MAX));

/// What a message takes of its window; more than its bytes, so that empty ones count too.
pub(super) const fn message_cost(len: usize) -> u64 {
    len as u64 + 64
}

/// The most bytes of data in a frame, the same at all members: with a receive buffer for each of at most 1024 of them.
///
/// A frame must be one that Open MPI sends at once (over TCP up to 64 KiB with its own header). A larger one it announces, and
/// sends when the receiver asks for it; if the sender dies in between, the receiver's next call may never return, or
/// crash: it waits in MPI_Irecv for a lock of the connection that is gone (5.0.11, one of eight runs of the scenario
/// `sender-dies-mid-message` on three hosts).
pub(super) const PIECE_LEN: usize = 32 << 10;
const _: () = assert!(COMPOUND_LEN_MAX <= PIECE_LEN);

/// Something that waits to be sent.
pub(super) enum Outgoing {
    /// A frame without data of its own, and the operation that it belongs to if there is one.
    Small { header: Header, payload: Vec<u8> },
    /// A put or a message, cut into pieces while it is sent. `words[1]` is its length.
    Data { header: Header, data: Vec<u8>, sent: usize },
    /// A get, asked for piece by piece.
    Get { header: Header, asked: usize },
}

/// The connection to one other member.
#[derive(Default)]
pub(super) struct Link {
    pub(super) queue: VecDeque<Outgoing>,
    pub(super) in_flight: usize,
    /// Bytes of gets that were asked for and have not arrived.
    pub(super) gets_in_flight: usize,
    /// Bytes of puts that were sent and not said to have been taken; and those taken from the other and not yet reported.
    pub(super) puts_in_flight: u64,
    pub(super) puts_unreported: u64,
    /// The epoch of the last view of this node that the other has been sent.
    pub(super) told_epoch: u64,
    /// The put whose first piece was accepted_put here and whose last has not arrived.
    pub(super) accepted_put: Option<u64>,
    /// The messages of which some pieces have arrived.
    pub(super) partial: [Vec<u8>; Port::COUNT],
    /// What may still be sent to each port.
    pub(super) credit: [u64; Port::COUNT],
    /// What was consumed of each port and not yet reported.
    pub(super) unreported: [u64; Port::COUNT],
    pub(super) peer: Option<Peer>,
    /// When the other was last asked, and whether it has not answered yet.
    pub(super) lease_requested_at: Option<Time>,
    pub(super) is_lease_requested: bool,
}

impl Core {
    /// Gives waiting frames to MPI.
    pub(super) fn pump(&mut self, node: &Shm, index: usize) -> bool {
        let mut has_moved = false;
        // A node that has turned away from a member sends it nothing more, whoever of the node has heard that it failed.
        if self.quorum.is_some() && node.is_shunned(MemberId(index as u32)) {
            self.links[index].queue.clear();
            return false;
        }
        while self.links[index].in_flight < IN_FLIGHT_MAX {
            let Some((frame, told_epoch)) = self.next_frame(node, index) else { break };
            node.step();
            let _watched = watch(Path::Frames);
            // SAFETY: the frame's bytes are on the heap and owned by `sending` until the request is complete.
            match unsafe { self.comm.isend(&frame, index, TAG) } {
                Ok(request) => {
                    self.sends.push(request);
                    self.sending.push((MemberId(index as u32), frame));
                    self.links[index].in_flight += 1;
                    self.links[index].told_epoch = told_epoch;
                    self.advance(index);
                    has_moved = true;
                }
                Err(_) => {
                    // The frame stays in front: it goes with the link if the member turns out to be dead.
                    self.detector.has_trouble = true;
                    if self.membership.is_dead(MemberId(index as u32)) {
                        self.links[index].queue.clear();
                    }
                    break;
                }
            }
        }
        has_moved
    }

    /// The frame to be sent next, if there is one and it may be sent.
    /// With it the epoch that the other knows of once it has the frame: whatever this member did before, it did before
    /// that epoch was looked at.
    pub(super) fn next_frame(&mut self, node: &Shm, index: usize) -> Option<(Vec<u8>, u64)> {
        self.links[index].queue.front()?;
        let deaths: Option<Deaths> = (self.links[index].told_epoch < node.epoch().0).then(|| {
            let view = node.view();
            (view.dead, view.left)
        });
        let told_epoch =
            deaths.as_ref().map_or(self.links[index].told_epoch, |(dead, _)| dead.len() as u64);
        loop {
            let link = &mut self.links[index];
            let is_wanted = match link.queue.front()? {
                Outgoing::Small { header, .. } => {
                    header.id == 0 || header.kind == Kind::Reply || {
                        is_wanted(&self.open_requests, header.id)
                    }
                }
                Outgoing::Data { header, sent, .. } => {
                    header.id == 0 || *sent > 0 || is_wanted(&self.open_requests, header.id)
                }
                Outgoing::Get { header, .. } => is_wanted(&self.open_requests, header.id),
            };
            if !is_wanted {
                if let Some(
                    Outgoing::Small { header, .. }
                    | Outgoing::Data { header, .. }
                    | Outgoing::Get { header, .. },
                ) = link.queue.pop_front()
                {
                    self.open_requests.remove(&header.id);
                }
                continue;
            }
            let is_held = match link.queue.front()? {
                Outgoing::Get { .. } => link.gets_in_flight >= GET_WINDOW,
                Outgoing::Data { header, .. } => {
                    header.kind == Kind::Put && link.puts_in_flight >= PUT_WINDOW
                }
                Outgoing::Small { .. } => false,
            };
            if is_held {
                // It waits for answers of the other member, whose queue may have the like at its head: both would wait for
                // ever if answers waited behind them. Nothing else of what is queued may overtake.
                let at = link.queue.iter().position(|outgoing| match outgoing {
                    Outgoing::Small { header, .. } => {
                        matches!(
                            header.kind,
                            Kind::Reply | Kind::Taken | Kind::LeaseRequest | Kind::LeaseGrant
                        )
                    }
                    _ => false,
                })?;
                let answer = link.queue.remove(at)?;
                link.queue.push_front(answer);
            }
            let (header, payload) = match link.queue.front()? {
                Outgoing::Small { header, payload } => (*header, &payload[..]),
                Outgoing::Data { header, data, sent } => {
                    let mut header = *header;
                    header.words[2] = *sent as u64;
                    (header, &data[*sent..data.len().min(sent + PIECE_LEN)])
                }
                Outgoing::Get { header, asked } => {
                    let mut header = *header;
                    header.words[2] = *asked as u64;
                    (header, &[][..])
                }
            };
            return Some((
                wire::encode(header, deaths.as_ref(), payload, self.membership.members()),
                told_epoch,
            ));
        }
    }

    /// Takes the frame that was just sent off the queue, or moves on to its next piece.
    pub(super) fn advance(&mut self, index: usize) {
        let link = &mut self.links[index];
        let is_last = match link.queue.front_mut().expect("a frame was just made of it") {
            Outgoing::Small { .. } => true,
            Outgoing::Data { header, data, sent } => {
                let piece = PIECE_LEN.min(data.len() - *sent);
                if header.kind == Kind::Put {
                    link.puts_in_flight += piece as u64;
                }
                *sent += piece;
                *sent == data.len()
            }
            Outgoing::Get { header, asked } => {
                let piece = piece_of(header.words[1], *asked as u64);
                *asked += piece;
                link.gets_in_flight += piece;
                *asked as u64 == header.words[1]
            }
        };
        if is_last {
            link.queue.pop_front();
        }
    }

    pub(super) fn enqueue(&mut self, node: &Shm, to: MemberId, outgoing: Outgoing) {
        self.links[to.index()].queue.push_back(outgoing);
        self.pump(node, to.index());
    }

    pub(super) fn enqueue_small(&mut self, node: &Shm, to: MemberId, header: Header) {
        self.enqueue(node, to, Outgoing::Small { header, payload: Vec::new() });
    }
}

/// How long the piece of a range is that begins at `piece`.
pub(super) fn piece_of(len: u64, piece: u64) -> usize {
    usize::try_from(len.saturating_sub(piece)).unwrap_or(usize::MAX).min(PIECE_LEN)
}

//! The link to a remote member: the queue of frames to it, and flow control.
//!
//! Frames are sent in the order in which they were queued, which keeps operations on a member in
//! order. Only replies and lease frames may overtake, and only a request that waits for its window.
//!
//! Large puts, gets and messages travel in pieces of [`PIECE_LEN`]. Windows bound the bytes in
//! flight: of puts by [`PUT_WINDOW`] and reports of the receiver, of gets by [`GET_WINDOW`], of
//! messages by credit, so that neither MPI nor the receiver has to store any number of frames.
//!
//! MPI gets no frame to a member that it calls failed, however soon the death is settled. When a
//! connection breaks while messages wait for it, Open MPI 5.0.11 removes the transport from its
//! list for the receiver, and reports the failure. Only the first MPI_Isend after that returns; the
//! second reads beyond the list, and the process ends (`mca_pml_ob1_send_inline`). Frames that are
//! queued to the member are dropped: what MPI calls failed stays so, and no reply would arrive.
//!
//! A frame carries the sender's dead if its epoch has risen since the last frame on this link. When
//! the member dies, its queue is cleared; frames that MPI has already taken stay with MPI.

use super::core::{Core, Peer, TAG};
use super::onesided::{Path, watch};
use super::request::is_wanted;
use super::wire::{self, Deaths, Header, Kind};
use crate::engine::shm::Shm;
use crate::engine::{COMPOUND_LEN_MAX, Engine, MemberId, Port, Time};
use std::collections::VecDeque;

/// How many frames to a member are given to MPI at a time. Further frames wait in the link's queue,
/// where requests that were given up can still be dropped.
const IN_FLIGHT_MAX: usize = 16;

/// How many bytes of gets are in flight from a member. Its replies wait in its memory until MPI has
/// sent them.
const GET_WINDOW: usize = 1 << 20;

/// How many bytes of puts may be in flight to a member before it reports to have taken them. MPI
/// itself would accept any number of frames, see [`PIECE_LEN`].
pub(super) const PUT_WINDOW: u64 = 1 << 20;

/// The most bytes of data in a frame. All members use this length, since each has a receive buffer
/// for up to 1024 members.
///
/// A frame must be short enough that Open MPI sends it eagerly (over TCP up to 64 KiB with its own
/// header). Open MPI announces a larger message first, and sends it when the receiver asks for it.
/// If the sender dies in between, the receiver's next call may never return, or crash: it waits in
/// MPI_Irecv for a lock of the connection that is gone (Open MPI 5.0.11, in a single run out of
/// eight of the scenario `sender-dies-mid-message` on three hosts).
pub(super) const PIECE_LEN: usize = 32 << 10;
const _: () = assert!(COMPOUND_LEN_MAX <= PIECE_LEN);

/// An entry of a link's queue.
pub(super) enum Outgoing {
    /// A single frame.
    Small { header: Header, payload: Vec<u8> },
    /// A put or a message, cut into pieces while it is sent. `words[1]` of the header is its
    /// length.
    Data { header: Header, data: Vec<u8>, sent: usize },
    /// A get, requested piece by piece.
    Get { header: Header, asked: usize },
}

/// The link to a remote member.
#[derive(Default)]
pub(super) struct Link {
    pub(super) queue: VecDeque<Outgoing>,
    /// How many frames MPI has taken and not yet sent.
    pub(super) in_flight: usize,
    /// Bytes of gets that were requested and have not arrived.
    pub(super) gets_in_flight: usize,
    /// Bytes of puts that were sent, and that the receiver has not reported to have taken.
    pub(super) puts_in_flight: u64,
    /// Bytes of puts that this member has taken from the other member, and not yet reported.
    pub(super) puts_unreported: u64,
    /// The epoch of this node at which its deaths were last sent on this link.
    pub(super) told_epoch: u64,
    /// The put of the other member that was accepted with its first piece, until its last piece has
    /// arrived.
    pub(super) accepted_put: Option<u64>,
    /// By port: the pieces of an incomplete message that have arrived.
    pub(super) partial: [Vec<u8>; Port::COUNT],
    /// By port: the bytes of messages that may still be sent.
    pub(super) credit: [u64; Port::COUNT],
    /// By port: the bytes of messages that were consumed here and not yet reported.
    pub(super) unreported: [u64; Port::COUNT],
    pub(super) peer: Option<Peer>,
    /// When the member was last asked for a lease grant.
    pub(super) lease_requested_at: Option<Time>,
    /// Whether that request is unanswered.
    pub(super) is_lease_requested: bool,
}

impl Core {
    /// Queues a frame, or the pieces of a put, message or get, and sends what may be sent.
    pub(super) fn enqueue(&mut self, node: &Shm, to: MemberId, outgoing: Outgoing) {
        self.links[to.index()].queue.push_back(outgoing);
        self.pump(node, to.index());
    }

    /// Queues a frame without payload.
    pub(super) fn enqueue_small(&mut self, node: &Shm, to: MemberId, header: Header) {
        self.enqueue(node, to, Outgoing::Small { header, payload: Vec::new() });
    }

    /// Gives queued frames to MPI, as many as may be in flight; whether there were any.
    pub(super) fn pump(&mut self, node: &Shm, index: usize) -> bool {
        let mut has_moved = false;
        // A node sends nothing to a member that it has quarantined, whichever local member has
        // suspected it.
        if self.quorum.is_some() && node.is_quarantined(MemberId(index as u32)) {
            self.links[index].queue.clear();
            return false;
        }
        while self.links[index].in_flight < IN_FLIGHT_MAX && !self.links[index].queue.is_empty() {
            // Asked before each frame: any call of MPI, also of the program itself, may find the
            // connection broken.
            match self.has_failed(MemberId(index as u32)) {
                Ok(false) => {}
                Ok(true) => {
                    self.links[index].queue.clear();
                    break;
                }
                Err(_) => {
                    self.detector.has_trouble = true;
                    break;
                }
            }
            let Some((frame, told_epoch)) = self.next_frame(node, index) else { break };
            node.step();
            let _watched = watch(Path::Frames);
            // SAFETY: the frame's bytes are on the heap, and owned by `sending` until the request
            // is complete.
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
                    // The frame stays in front. If the member turns out to be dead, the queue is
                    // cleared.
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

    /// The frame to be sent next, if a frame may be sent; and the epoch of this node that the
    /// receiver knows once it has the frame. This member reads the epoch after everything that it
    /// did before: a reply carries the view that was current after the operation.
    fn next_frame(&mut self, node: &Shm, index: usize) -> Option<(Vec<u8>, u64)> {
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
                // The request waits for replies of the other member, and the queue of that member
                // may begin with a waiting request too. Both would wait for ever if replies had to
                // wait behind the requests. No other frame may overtake.
                let at = link.queue.iter().position(|outgoing| match outgoing {
                    Outgoing::Small { header, .. } => {
                        matches!(
                            header.kind,
                            Kind::Reply | Kind::Taken | Kind::LeaseRequest | Kind::LeaseGrant
                        )
                    }
                    _ => false,
                })?;
                let overtaking = link.queue.remove(at)?;
                link.queue.push_front(overtaking);
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

    /// Removes the entry that was just sent from the queue, or moves on to its next piece.
    fn advance(&mut self, index: usize) {
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
}

/// The length of the piece that begins at `piece`, of a range of `len` bytes.
pub(super) fn piece_of(len: u64, piece: u64) -> usize {
    usize::try_from(len.saturating_sub(piece)).unwrap_or(usize::MAX).min(PIECE_LEN)
}

//! Handles the frames that arrive: requests of remote members, their messages, and control frames.
//!
//! A request is executed in this member's own segment by the atomic instructions that local members
//! use too, so every word is changed in a single way. The reply is held back while this member has
//! no lease (`quorum.rs`).
//!
//! Frames of a dead sender are dropped, except that a leaving member is answered.

use super::core::{Core, Peer};
use super::link::{Outgoing, PUT_WINDOW, piece_of};
use super::wire::{self, Ending, Header, Kind};
use crate::engine::shm::Shm;
use crate::engine::{
    Done, Engine, Epoch, Error, MemberId, Message, Operation, Port, Result, Time, run_compound,
};

impl Core {
    /// Handles a frame. Local members map the memory that a request changes, and may learn of its
    /// sender's death before the request is done. So that they can wait for its end, this member
    /// publishes the sender that it serves, before it reads the view.
    pub(super) fn handle(&mut self, node: &Shm, from: MemberId, frame: &[u8]) {
        node.set_served(Some(from));
        self.dispatch(node, from, frame);
        node.set_served(None);
    }

    /// Merges the deaths that a frame reports, and does what the frame asks for.
    fn dispatch(&mut self, node: &Shm, from: MemberId, frame: &[u8]) {
        let Some((header, deaths, payload)) = wire::decode(frame) else {
            debug_assert!(false, "{from} sent a malformed frame");
            return;
        };
        // A local member may have logged the sender's death since the last look. No member may act
        // on the view of a dead sender, so its frames are dropped. Only a leaving member is
        // answered, also if its leave became known by another path first.
        self.apply_deaths(node);
        let is_dead = self.membership.is_dead(from);
        if is_dead && header.kind != Kind::Leave {
            return;
        }
        node.step();
        if let Some(deaths) = deaths.filter(|_| !is_dead) {
            self.merge_deaths(node, from, deaths);
            // A local member may have entered the sender's death since the look above. The deaths
            // of the frame are then not in the log, and the rest of the frame must not count.
            if header.kind != Kind::Leave && self.membership.is_dead(from) {
                return;
            }
        }
        // A member that leaves serves no further request.
        if node.has_ended() && !matches!(header.kind, Kind::Leave | Kind::LeaveAck) {
            return;
        }
        let port = Port::from_index(header.detail.into());
        match (header.kind, port) {
            (Kind::Hello, _) => {
                let domain = String::from_utf8_lossy(payload).into_owned();
                self.links[from.index()].peer = Some(Peer { domain });
                node.ring_own();
            }
            (
                Kind::Put
                | Kind::Get
                | Kind::Load
                | Kind::CompareAndSwap
                | Kind::FetchAdd
                | Kind::SegmentLen
                | Kind::Compound,
                _,
            ) => {
                self.serve(node, from, header, payload);
                if header.kind == Kind::Put {
                    self.report_puts_taken(node, from, payload.len());
                }
            }
            (Kind::Taken, _) => {
                let link = &mut self.links[from.index()];
                link.puts_in_flight = link.puts_in_flight.saturating_sub(header.words[0]);
            }
            (Kind::Reply, _) => self.complete_request(node, from, header, payload),
            (Kind::Message, Some(port)) => self.receive_piece(node, from, port, header, payload),
            (Kind::Credit, Some(port)) => {
                self.links[from.index()].credit[port as usize] += header.words[0];
                self.has_arrivals = true;
            }
            (Kind::Ring, _) => node.ring_own(),
            // The sets of the frame said that the sender is dead and has left.
            (Kind::Leave, _) => {
                self.enqueue_small(node, from, Header::new(Kind::LeaveAck, 0, 0, [0; 3]))
            }
            (Kind::LeaveAck, _) => {
                self.has_arrivals = true;
                self.record_leave_ack(from);
            }
            // The sets of the frame had the deaths.
            (Kind::Deaths, _) => {}
            (Kind::Fence, _) => {
                let victim = MemberId(header.words[0] as u32);
                if victim.index() < self.membership.members() {
                    // Fencing itself does not return. A process that has ended needs no signal.
                    let _ = match victim == node.me() {
                        true => node.fence(victim, Time(0)),
                        false => node.signal(victim, rustix::process::Signal::KILL),
                    };
                }
            }
            (Kind::LeaseRequest, _) => {
                self.enqueue_small(node, from, Header::new(Kind::LeaseGrant, 0, 0, header.words));
            }
            (Kind::LeaseGrant, _) => {
                self.links[from.index()].is_lease_requested = false;
                self.granting[self.membership.node_of(from)] = Some(from);
                if let Some(quorum) = &mut self.quorum {
                    quorum.record_grant(from, Time(header.words[0]), header.words[1]);
                }
            }
            (Kind::Quarantine, _) => {
                if let Some(quorum) = &mut self.quorum {
                    quorum.record_quarantine(from, &wire::decode_set(payload));
                }
            }
            (Kind::Message | Kind::Credit, None) => {
                debug_assert!(false, "{from} named an unknown port")
            }
        }
    }

    /// Executes a request in this member's own segment, and replies.
    ///
    /// The view may change between the check of the epoch and the operation, as for an operation of
    /// a local member. The reply then carries the new view, which is read after the operation, and
    /// the caller finds its epoch raised.
    fn serve(&mut self, node: &Shm, from: MemberId, header: Header, payload: &[u8]) {
        let ([offset, len, piece], me) = (header.words, node.me());
        let is_range = matches!(header.kind, Kind::Put | Kind::Get);
        // The first piece decides whether a request is accepted. Refusing a later piece would leave
        // a put half done, and report it as `Stale`, which promises that nothing was changed.
        let is_first = !is_range || piece == 0;
        let at = if is_first { Epoch(header.epoch) } else { Epoch::ANY };
        let link = &mut self.links[from.index()];
        if header.kind == Kind::Put {
            if is_first {
                link.accepted_put = Some(header.id);
            }
            // The pieces after a refused first piece get no reply of their own.
            if link.accepted_put != Some(header.id) {
                return;
            }
        }
        // The whole range is checked before its first piece is touched.
        let whole = Operation::Get { offset, len: usize::try_from(len).unwrap_or(usize::MAX) };
        let may = match (is_range, node.segment_len(me)) {
            (true, Ok(segment_len)) => whole.check(me, segment_len),
            (_, other) => other.map(drop),
        };
        // How many steps of a compound operation were done.
        let mut done = 0;
        let result: Result<(u64, Vec<u8>)> = may.and_then(|()| match header.kind {
            Kind::Put => {
                let end = piece.saturating_add(payload.len() as u64);
                if end > len {
                    debug_assert!(false, "{from} sent more than it had announced");
                    return Err(Error::Ended);
                }
                node.put(at, me, offset + piece, payload).map(|()| (0, Vec::new()))
            }
            Kind::Get => {
                let mut data = vec![0; piece_of(len, piece)];
                // A piece beyond the end has length 0.
                let at_offset = offset + piece.min(len);
                node.get(at, me, at_offset, &mut data).map(|()| (0, data))
            }
            Kind::Load => node.load(at, me, offset).map(|word| (word, Vec::new())),
            Kind::CompareAndSwap => {
                node.compare_and_swap(at, me, offset, len, piece).map(|word| (word, Vec::new()))
            }
            Kind::FetchAdd => node.fetch_add(at, me, offset, piece).map(|word| (word, Vec::new())),
            Kind::Compound => {
                let Some(steps) = wire::decode_steps(payload) else {
                    debug_assert!(false, "{from} sent a malformed compound operation");
                    return Err(Error::Ended);
                };
                match run_compound(node, at, me, &steps)? {
                    Done::Compound { done: count, word } => {
                        done = count as u64;
                        Ok((word, Vec::new()))
                    }
                    other => unreachable!("a compound operation completed as {other:?}"),
                }
            }
            _ => node.segment_len(me).map(|word| (word, Vec::new())),
        });
        let is_last = header.kind != Kind::Put || piece.saturating_add(payload.len() as u64) == len;
        let (ending, word, data) = match result {
            Ok((word, data)) => (Ending::Done, word, data),
            Err(Error::Stale { .. }) => (Ending::Stale, 0, Vec::new()),
            Err(Error::OutOfRange { segment_len, .. }) => {
                (Ending::OutOfRange, segment_len, Vec::new())
            }
            // This member has ended, or the request is malformed.
            Err(_) => return,
        };
        if header.kind == Kind::Put && (is_last || ending != Ending::Done) {
            link.accepted_put = None;
        }
        if is_last || ending != Ending::Done {
            let words = if header.kind == Kind::Get { [word, len, piece] } else { [word, 0, done] };
            let header = Header::new(Kind::Reply, header.id, 0, words).detail(ending as u8);
            node.step();
            let reply = Outgoing::Small { header, payload: data };
            // Checked after the operation: a member with a lease now was not declared dead before,
            // so its memory was current when the operation read it.
            match self.lease.is_valid() {
                true => self.enqueue(node, from, reply),
                false => self.held_replies.push_back((from, reply)),
            }
        }
    }

    /// Counts a piece of a put as taken, whatever became of it, and reports in large portions: a
    /// report for each piece would double the number of frames.
    fn report_puts_taken(&mut self, node: &Shm, from: MemberId, len: usize) {
        let taken = &mut self.links[from.index()].puts_unreported;
        *taken += len as u64;
        if *taken >= PUT_WINDOW / 4 {
            let taken = std::mem::take(taken);
            self.enqueue_small(node, from, Header::new(Kind::Taken, 0, 0, [taken, 0, 0]));
        }
    }

    /// Adds a piece to a message, and delivers the message once it is complete.
    fn receive_piece(
        &mut self,
        node: &Shm,
        from: MemberId,
        port: Port,
        header: Header,
        payload: &[u8],
    ) {
        let partial = &mut self.links[from.index()].partial[port as usize];
        let [_, len, piece] = header.words;
        debug_assert_eq!(partial.len() as u64, piece, "the pieces of a message arrive in order");
        partial.extend(payload);
        if partial.len() as u64 >= len {
            let bytes = std::mem::take(partial);
            self.inbox[port as usize].push_back(Message {
                from,
                epoch: Epoch(header.epoch),
                bytes,
            });
            node.ring_for_own_message(port);
        }
    }
}

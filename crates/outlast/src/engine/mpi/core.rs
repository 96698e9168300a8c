//! Moving data: the one place where a member talks to MPI, under one lock and never waiting.
//!
//! To each other member there is a *link*: frames wait in the order in which they were started, up to
//! [`IN_FLIGHT_MAX`] of them are being sent, and one receive is posted. A receive from a dead member ends with an
//! error by itself, so it is also the detector. There is no receive from any source.

use super::shared::{Shared, lock};
use super::wire::{self, Deaths, Ending, Header, Kind};
use crate::engine::{
    Completer, Done, Epoch, Error, MESSAGE_LEN_MAX, MemberId, MemberSet, Message, Operation, Pending, Port,
    Result, Time,
};
use outlast_mpi_sys::{Comm, Completed, Request, Tester};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// The tag of all frames: order between them is what keeps operations in order.
const TAG: i32 = 1;

/// How many frames to one member are given to MPI at a time; the others wait in the link's queue, where those of
/// forgotten operations can still be dropped.
const IN_FLIGHT_MAX: usize = 16;

/// How many bytes of gets are asked from one member at a time: its answers wait in its memory.
const GET_WINDOW: usize = 1 << 20;

/// How many bytes of messages for one port may be under way to, or waiting at, one receiver.
const MESSAGE_WINDOW: u64 = 4 << 20;
const _: () = assert!(MESSAGE_WINDOW > message_cost(MESSAGE_LEN_MAX));

/// How often the failed are asked for when no error gave a reason to.
const DETECT_PERIOD: Duration = Duration::from_millis(10);

/// What a message takes of its window; more than its bytes, so that empty ones count too.
const fn message_cost(len: usize) -> u64 {
    len as u64 + 64
}

/// The most bytes of data in a frame, the same at all members: a receive buffer per member stays below 64 MiB in all.
fn piece_len_max(members: usize) -> usize {
    ((64 << 20) / members).clamp(4 << 10, 64 << 10)
}

/// Who another member is, from its first frame.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) pid: i32,
    pub(super) host: String,
    pub(super) domain: String,
}

/// Something that waits to be sent.
enum Outgoing {
    /// A frame without data of its own, and the operation that it belongs to if there is one.
    Small { header: Header, payload: Vec<u8> },
    /// A put or a message, cut into pieces while it is sent. `words[1]` is its length.
    Data { header: Header, data: Vec<u8>, sent: usize },
    /// A get, asked for piece by piece.
    Get { header: Header, asked: usize },
}

/// The connection to one other member.
#[derive(Default)]
struct Link {
    queue: VecDeque<Outgoing>,
    in_flight: usize,
    /// Bytes of gets that were asked for and have not arrived.
    get_bytes: usize,
    /// Which version of this member's view the other has been sent.
    taught: u64,
    /// The put whose first piece was accepted here and whose last has not arrived.
    accepted: Option<u64>,
    /// The messages of which some pieces have arrived.
    partial: [Vec<u8>; Port::COUNT],
    /// What may still be sent to each port.
    credit: [u64; Port::COUNT],
    /// What was consumed of each port and not yet reported.
    owed: [u64; Port::COUNT],
    /// Whether a ring waits in the queue: one is enough.
    rings: bool,
    peer: Option<Peer>,
}

/// An operation whose reply has not arrived.
struct Waiting {
    target: MemberId,
    completer: Completer,
    /// Where in the target's segment, and how many bytes: for the error.
    range: (u64, u64),
    awaited: Awaited,
}

/// What the reply to an operation brings.
enum Awaited {
    Put,
    Word,
    /// The bytes so far, and how many of them have arrived.
    Get(Vec<u8>, usize),
}

/// The moving part of a member.
pub(super) struct Core {
    comm: Comm,
    tester: Tester,
    completed: Vec<Completed>,
    /// One receive for each member, null for those that cannot be received from.
    receives: Vec<Request>,
    /// The buffers of the receives. MPI writes into them, so they never move and are never freed.
    receive_buffers: Vec<&'static mut [u8]>,
    sends: Vec<Request>,
    /// The frames being sent, in the order of `sends`. MPI reads them until the request is complete.
    sending: Vec<(MemberId, Vec<u8>)>,
    links: Vec<Link>,
    waiting: HashMap<u64, Waiting>,
    id_next: u64,
    inbox: [VecDeque<Message>; Port::COUNT],
    /// How often this member's view has changed.
    version: u64,
    /// Whether MPI reported an error since the failed were last asked for.
    has_trouble: bool,
    /// Whether something arrived that an activity in the middle of a call may wait for.
    has_answers: bool,
    detect_at: Time,
    failed_ranks: Vec<i32>,
    /// While this member leaves: who has not said farewell.
    farewells: Option<MemberSet>,
    piece_len: usize,
}

impl Core {
    pub(super) fn new(comm: Comm, shared: &Shared, myself: Peer) -> Core {
        let members = shared.members;
        let piece_len = piece_len_max(members);
        let frame_len = wire::HEADER_LEN + wire::deaths_len_max(members) + piece_len;
        let hello = Header::new(Kind::Hello, 0, 0, [myself.pid as u64, 0, 0]);
        let mut core = Core {
            comm,
            tester: Tester::default(),
            completed: Vec::new(),
            receives: vec![Request::null(); members],
            receive_buffers: (0..members)
                .map(|member| if member == shared.me.index() { 0 } else { frame_len })
                .map(|len| &mut *Box::leak(vec![0; len].into_boxed_slice()))
                .collect(),
            sends: Vec::new(),
            sending: Vec::new(),
            links: (0..members)
                .map(|_| Link { credit: [MESSAGE_WINDOW; Port::COUNT], ..Link::default() })
                .collect(),
            waiting: HashMap::new(),
            id_next: 1,
            inbox: Default::default(),
            version: 0,
            has_trouble: false,
            has_answers: false,
            detect_at: Time(0),
            failed_ranks: vec![0; members],
            farewells: None,
            piece_len,
        };
        for index in (0..members).filter(|&index| index != shared.me.index()) {
            core.receive_from(index);
            let payload = format!("{}\n{}", myself.host, myself.domain).into_bytes();
            core.links[index].queue.push_back(Outgoing::Small { header: hello, payload });
        }
        core.links[shared.me.index()].peer = Some(myself);
        core
    }

    /// Who a member is, if it has said so.
    pub(super) fn peer(&self, member: MemberId) -> Option<&Peer> {
        self.links[member.index()].peer.as_ref()
    }

    // ---- Progress.

    /// Moves data without waiting; whether anything happened.
    pub(super) fn progress(&mut self, shared: &Shared) -> bool {
        if shared.has_ended() {
            return false;
        }
        let mut has_moved = self.finish_receives(shared);
        has_moved |= self.finish_sends();
        let now = shared.now();
        if self.has_trouble || now >= self.detect_at {
            has_moved |= self.detect(shared);
            self.detect_at = now.after(DETECT_PERIOD);
        }
        for index in 0..self.links.len() {
            has_moved |= self.pump(shared, index);
        }
        if std::mem::take(&mut self.has_answers) {
            shared.ring_for_calls();
        }
        has_moved
    }

    fn finish_receives(&mut self, shared: &Shared) -> bool {
        let mut completed = std::mem::take(&mut self.completed);
        if self.tester.test_some(&mut self.receives, &mut completed).is_err() {
            self.has_trouble = true;
        }
        let has_moved = !completed.is_empty();
        for Completed { index, result } in completed.drain(..) {
            match result {
                Ok(len) => {
                    // Taken out while the frame is handled; the next receive into it is posted afterwards.
                    let buffer = std::mem::take(&mut self.receive_buffers[index]);
                    self.handle(shared, MemberId(index as u32), &buffer[..len]);
                    self.receive_buffers[index] = buffer;
                    self.receive_from(index);
                }
                // Whatever the class is: who has failed is asked below.
                Err(_) => self.has_trouble = true,
            }
        }
        self.completed = completed;
        has_moved
    }

    /// Posts the receive from a member.
    fn receive_from(&mut self, index: usize) {
        let buffer = &mut *self.receive_buffers[index];
        // SAFETY: the buffer is never freed, and touched only after its request was found complete.
        match unsafe { self.comm.irecv(buffer, index, TAG) } {
            Ok(request) => self.receives[index] = request,
            // A known failure is reported at the call already.
            Err(_) => self.has_trouble = true,
        }
    }

    fn finish_sends(&mut self) -> bool {
        if self.sends.is_empty() {
            return false;
        }
        let mut completed = std::mem::take(&mut self.completed);
        if self.tester.test_some(&mut self.sends, &mut completed).is_err() {
            self.has_trouble = true;
        }
        let has_moved = !completed.is_empty();
        // From the last to the first, so that taking one out moves none that is still to come.
        completed.sort_by_key(|completed| std::cmp::Reverse(completed.index));
        for Completed { index, result } in completed.drain(..) {
            self.sends.swap_remove(index);
            let (to, frame) = self.sending.swap_remove(index);
            self.links[to.index()].in_flight -= 1;
            if result.is_err() {
                self.has_trouble = true;
                // What MPI still does with the bytes after an error is not said anywhere: they stay.
                std::mem::forget(frame);
            }
        }
        self.completed = completed;
        has_moved
    }

    /// Gives waiting frames to MPI.
    fn pump(&mut self, shared: &Shared, index: usize) -> bool {
        let mut has_moved = false;
        while self.links[index].in_flight < IN_FLIGHT_MAX {
            let Some(frame) = self.next_frame(shared, index) else { break };
            shared.step();
            // SAFETY: the frame's bytes are on the heap and owned by `sending` until the request is complete.
            match unsafe { self.comm.isend(&frame, index, TAG) } {
                Ok(request) => {
                    self.sends.push(request);
                    self.sending.push((MemberId(index as u32), frame));
                    self.links[index].in_flight += 1;
                    self.links[index].taught = self.version;
                    self.advance(index);
                    has_moved = true;
                }
                Err(_) => {
                    // The frame stays in front: it goes with the link if the member turns out to be dead.
                    self.has_trouble = true;
                    break;
                }
            }
        }
        has_moved
    }

    /// The frame to be sent next, if there is one and it may be sent.
    fn next_frame(&mut self, shared: &Shared, index: usize) -> Option<Vec<u8>> {
        let deaths = (self.links[index].taught < self.version).then(|| lock(&shared.deaths).clone());
        loop {
            let link = &mut self.links[index];
            let is_wanted = match link.queue.front()? {
                Outgoing::Small { header, .. } => {
                    header.id == 0 || header.kind == Kind::Reply || { is_wanted(&self.waiting, header.id) }
                }
                Outgoing::Data { header, sent, .. } => {
                    header.id == 0 || *sent > 0 || is_wanted(&self.waiting, header.id)
                }
                Outgoing::Get { header, .. } => is_wanted(&self.waiting, header.id),
            };
            if !is_wanted {
                if let Some(
                    Outgoing::Small { header, .. }
                    | Outgoing::Data { header, .. }
                    | Outgoing::Get { header, .. },
                ) = link.queue.pop_front()
                {
                    self.waiting.remove(&header.id);
                }
                continue;
            }
            let (header, payload) = match link.queue.front()? {
                Outgoing::Small { header, payload } => (*header, &payload[..]),
                Outgoing::Data { header, data, sent } => {
                    let mut header = *header;
                    header.words[2] = *sent as u64;
                    (header, &data[*sent..data.len().min(sent + self.piece_len)])
                }
                Outgoing::Get { header, asked } => {
                    if link.get_bytes >= GET_WINDOW {
                        return None;
                    }
                    let mut header = *header;
                    header.words[2] = *asked as u64;
                    (header, &[][..])
                }
            };
            return Some(wire::encode(header, deaths.as_ref(), payload, shared.members));
        }
    }

    /// Takes the frame that was just sent off the queue, or moves on to its next piece.
    fn advance(&mut self, index: usize) {
        let piece_len = self.piece_len;
        let link = &mut self.links[index];
        let is_last = match link.queue.front_mut().expect("a frame was just made of it") {
            Outgoing::Small { header, .. } => {
                link.rings &= header.kind != Kind::Ring;
                true
            }
            Outgoing::Data { data, sent, .. } => {
                *sent = data.len().min(*sent + piece_len);
                *sent == data.len()
            }
            Outgoing::Get { header, asked } => {
                let piece = piece_of(header.words[1], *asked as u64, piece_len);
                *asked += piece;
                link.get_bytes += piece;
                *asked as u64 == header.words[1]
            }
        };
        if is_last {
            link.queue.pop_front();
        }
    }

    fn enqueue(&mut self, shared: &Shared, to: MemberId, outgoing: Outgoing) {
        self.links[to.index()].queue.push_back(outgoing);
        self.pump(shared, to.index());
    }

    fn enqueue_small(&mut self, shared: &Shared, to: MemberId, header: Header) {
        self.enqueue(shared, to, Outgoing::Small { header, payload: Vec::new() });
    }

    // ---- Deaths.

    /// Asks MPI who has failed; whether anyone new has.
    fn detect(&mut self, shared: &Shared) -> bool {
        self.has_trouble = false;
        let mut ranks = std::mem::take(&mut self.failed_ranks);
        let dead: MemberSet = match self.comm.get_failed(&mut ranks) {
            Ok(failed) => failed
                .iter()
                .filter_map(|&rank| u32::try_from(rank).ok())
                .filter(|&rank| (rank as usize) < shared.members)
                .map(MemberId)
                .collect(),
            // Asked again after the period.
            Err(_) => MemberSet::new(),
        };
        self.failed_ranks = ranks;
        let has_news = self.learn(shared, &(dead, MemberSet::new()));
        // A receive that ended with an error while its member lives is posted again, at most once in a period.
        for index in 0..self.receives.len() {
            let member = MemberId(index as u32);
            if member != shared.me && self.receives[index] == Request::null() && !shared.is_dead(member) {
                self.receive_from(index);
            }
        }
        // An error at once again waits for the next period: asking in a loop would bring nothing new.
        self.has_trouble = false;
        has_news
    }

    /// Merges deaths into the view and ends what waits for the dead; whether there was anything new.
    fn learn(&mut self, shared: &Shared, deaths: &Deaths) -> bool {
        // The epoch is raised in here, before anything below acts on the deaths.
        let (new, has_changed) = shared.merge(deaths);
        if !has_changed {
            return false;
        }
        self.version += 1;
        for &member in &new {
            if member == shared.me {
                // Another member declared this one dead: it must not answer anyone any more.
                self.end(shared);
                return true;
            }
            let link = &mut self.links[member.index()];
            link.queue.clear();
            link.rings = false;
            link.partial = Default::default();
            self.fail(|waiting| waiting.target == member, || Error::Dead { member });
            if let Some(farewells) = &mut self.farewells {
                *farewells = farewells.iter().filter(|&other| other != member).collect();
            }
        }
        shared.ring();
        true
    }

    /// Ends the waiting operations that `which` names.
    fn fail(&mut self, which: impl Fn(&Waiting) -> bool, error: impl Fn() -> Error) {
        self.waiting.retain(|_, waiting| {
            let is_hit = which(waiting);
            if is_hit {
                waiting.completer.complete(Err(error()));
            }
            !is_hit
        });
    }

    /// Ends this member's part: nothing is served or sent from now on.
    fn end(&mut self, shared: &Shared) {
        self.fail(|_| true, || Error::Ended);
        for link in &mut self.links {
            link.queue.clear();
        }
        for request in &mut self.receives {
            // A receive that cannot be cancelled only keeps its buffer, which is never freed anyway.
            let _ = request.cancel();
        }
        shared.end();
    }

    /// Tells all living members that this one leaves.
    pub(super) fn begin_leave(&mut self, shared: &Shared) {
        let others: MemberSet = shared.view().living().filter(|&member| member != shared.me).collect();
        let myself: MemberSet = [shared.me].into_iter().collect();
        self.fail(|_| true, || Error::Ended);
        shared.merge(&(myself.clone(), myself));
        self.version += 1;
        for member in others.iter() {
            self.enqueue_small(shared, member, Header::new(Kind::Leave, 0, 0, [0; 3]));
        }
        self.farewells = Some(others);
    }

    /// Whether all others know that this member leaves.
    pub(super) fn may_leave(&self) -> bool {
        self.farewells.as_ref().is_none_or(|farewells| farewells.iter().next().is_none())
    }

    /// Leaves, whether or not all others know.
    pub(super) fn finish_leave(&mut self, shared: &Shared) {
        self.end(shared);
    }

    // ---- What arrives.

    fn handle(&mut self, shared: &Shared, from: MemberId, frame: &[u8]) {
        if shared.has_ended() {
            return;
        }
        let Some((header, deaths, payload)) = wire::decode(frame) else {
            debug_assert!(false, "{from} sent a frame that is none");
            return;
        };
        // A frame of the dead that was under way: its sender's view is not one that anybody may act on. Only who
        // leaves is answered, also when others were faster to tell.
        if header.kind != Kind::Leave && shared.is_dead(from) {
            return;
        }
        shared.step();
        if let Some(deaths) = deaths {
            self.learn(shared, &deaths);
            if shared.has_ended() {
                return;
            }
        }
        let port = Port::from_index(header.detail.into());
        match (header.kind, port) {
            (Kind::Hello, _) => {
                let text = String::from_utf8_lossy(payload);
                let (host, domain) = text.split_once('\n').unwrap_or((&text, ""));
                self.links[from.index()].peer =
                    Some(Peer { pid: header.words[0] as i32, host: host.into(), domain: domain.into() });
                shared.ring();
            }
            (
                Kind::Put | Kind::Get | Kind::Load | Kind::CompareAndSwap | Kind::FetchAdd | Kind::SegmentLen,
                _,
            ) => self.serve(shared, from, header, payload),
            (Kind::Reply, _) => self.complete(shared, from, header, payload),
            (Kind::Message, Some(port)) => self.take_message(shared, from, port, header, payload),
            (Kind::Credit, Some(port)) => {
                self.links[from.index()].credit[port as usize] += header.words[0];
                self.has_answers = true;
            }
            (Kind::Ring, _) => shared.ring(),
            // That the sender is dead and has left stood in the frame's sets.
            (Kind::Leave, _) => self.enqueue_small(shared, from, Header::new(Kind::Farewell, 0, 0, [0; 3])),
            (Kind::Farewell, _) => {
                self.has_answers = true;
                if let Some(farewells) = &mut self.farewells {
                    *farewells = farewells.iter().filter(|&other| other != from).collect();
                }
            }
            (Kind::Message | Kind::Credit, None) => debug_assert!(false, "{from} named an unknown port"),
        }
    }

    /// Does what another member asks for.
    fn serve(&mut self, shared: &Shared, from: MemberId, header: Header, payload: &[u8]) {
        let [offset, len, piece] = header.words;
        let is_range = matches!(header.kind, Kind::Put | Kind::Get);
        // The later pieces belong to a request that was let in with its first piece: refusing one of them would
        // leave a put half done and called "stale, changed nothing".
        let is_first = !is_range || piece == 0;
        let is_stale = is_first && header.epoch < shared.epoch().0;
        let mut segment = lock(&shared.segment);
        let touched = match header.kind {
            Kind::SegmentLen => 0,
            _ if is_range => len,
            _ => 8,
        };
        let reply = |ending: Ending, word: u64, data: Vec<u8>| {
            let words = if header.kind == Kind::Get { [word, len, piece] } else { [word, 0, 0] };
            let header = Header::new(Kind::Reply, header.id, 0, words).detail(ending as u8);
            Outgoing::Small { header, payload: data }
        };
        let link = &mut self.links[from.index()];
        let refusal = if is_stale {
            Some(reply(Ending::Stale, 0, Vec::new()))
        } else if header.kind != Kind::SegmentLen && segment.check(offset, touched).is_err() {
            Some(reply(Ending::OutOfRange, segment.len(), Vec::new()))
        } else {
            None
        };
        let answer = match (refusal, header.kind) {
            (Some(refusal), Kind::Put) => {
                link.accepted = None;
                // The pieces after a refused first one get no answer of their own.
                is_first.then_some(refusal)
            }
            (Some(refusal), _) => Some(refusal),
            (None, Kind::Put) => {
                if is_first {
                    link.accepted = Some(header.id);
                }
                let end = piece + payload.len() as u64;
                if link.accepted != Some(header.id) || end > len {
                    None
                } else {
                    let (front, back) = payload.split_at(payload.len() / 2);
                    segment.write(offset + piece, front);
                    shared.step();
                    segment.write(offset + piece + front.len() as u64, back);
                    (end == len).then(|| {
                        link.accepted = None;
                        reply(Ending::Done, 0, Vec::new())
                    })
                }
            }
            (None, Kind::Get) => {
                let data = match len.checked_sub(piece) {
                    Some(_) => segment.read(offset + piece, piece_of(len, piece, self.piece_len)).to_vec(),
                    None => Vec::new(),
                };
                Some(reply(Ending::Done, 0, data))
            }
            (None, Kind::Load) => Some(reply(Ending::Done, segment.update(offset, |_| None), Vec::new())),
            (None, Kind::CompareAndSwap) => {
                let word = segment.update(offset, |word| (word == len).then_some(piece));
                Some(reply(Ending::Done, word, Vec::new()))
            }
            (None, Kind::FetchAdd) => {
                let word = segment.update(offset, |word| Some(word.wrapping_add(piece)));
                Some(reply(Ending::Done, word, Vec::new()))
            }
            (None, _) => Some(reply(Ending::Done, segment.len(), Vec::new())),
        };
        drop(segment);
        if let Some(answer) = answer {
            shared.step();
            self.enqueue(shared, from, answer);
        }
    }

    /// Takes the answer to a request of this member.
    fn complete(&mut self, shared: &Shared, from: MemberId, header: Header, payload: &[u8]) {
        let [word, len, piece] = header.words;
        let link = &mut self.links[from.index()];
        link.get_bytes = link.get_bytes.saturating_sub(piece_of(len, piece, self.piece_len));
        // The operation may have ended already: by the refusal of an earlier piece.
        let Some(waiting) = self.waiting.get_mut(&header.id) else { return };
        let result = match Ending::from_byte(header.detail) {
            // The refusing view stood in this frame or in an earlier one, so it is part of this member's by now.
            Some(Ending::Stale) => Err(Error::Stale { now: shared.epoch() }),
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
                    let Some(place) = bytes.get_mut(piece as usize..piece as usize + payload.len()) else {
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
            },
            None => {
                debug_assert!(false, "{from} answered in an unknown way");
                return;
            }
        };
        waiting.completer.complete(result);
        self.waiting.remove(&header.id);
        self.has_answers = true;
    }

    fn take_message(&mut self, shared: &Shared, from: MemberId, port: Port, header: Header, payload: &[u8]) {
        let partial = &mut self.links[from.index()].partial[port as usize];
        let [_, len, piece] = header.words;
        debug_assert_eq!(partial.len() as u64, piece, "the pieces of a message arrive in order");
        partial.extend(payload);
        if partial.len() as u64 >= len {
            let bytes = std::mem::take(partial);
            self.inbox[port as usize].push_back(Message { from, epoch: Epoch(header.epoch), bytes });
            shared.ring();
        }
    }

    // ---- What this member starts.

    /// Starts an operation on another member that lives.
    pub(super) fn start(
        &mut self,
        shared: &Shared,
        at: Epoch,
        target: MemberId,
        operation: Operation<'_>,
    ) -> Pending {
        let (kind, words, awaited) = match operation {
            Operation::Put { offset, data } => (Kind::Put, [offset, data.len() as u64, 0], Awaited::Put),
            Operation::Get { offset, len } => {
                (Kind::Get, [offset, len as u64, 0], Awaited::Get(Vec::new(), 0))
            }
            Operation::Load { offset } => (Kind::Load, [offset, 0, 0], Awaited::Word),
            Operation::CompareAndSwap { offset, expected, new } => {
                (Kind::CompareAndSwap, [offset, expected, new], Awaited::Word)
            }
            Operation::FetchAdd { offset, delta } => (Kind::FetchAdd, [offset, 0, delta], Awaited::Word),
        };
        let (offset, len) = operation.range();
        let (pending, id) = self.await_reply(target, (offset, len as u64), awaited);
        let header = Header::new(kind, id, at.0, words);
        let outgoing = match operation {
            Operation::Put { data, .. } => Outgoing::Data { header, data: data.to_vec(), sent: 0 },
            Operation::Get { .. } => Outgoing::Get { header, asked: 0 },
            _ => Outgoing::Small { header, payload: Vec::new() },
        };
        self.enqueue(shared, target, outgoing);
        pending
    }

    /// Asks another member how long its segment is.
    pub(super) fn start_segment_len(&mut self, shared: &Shared, target: MemberId) -> Pending {
        let (pending, id) = self.await_reply(target, (0, 0), Awaited::Word);
        self.enqueue_small(shared, target, Header::new(Kind::SegmentLen, id, Epoch::ANY.0, [0; 3]));
        pending
    }

    /// Numbers a request and remembers who waits for its reply.
    fn await_reply(&mut self, target: MemberId, range: (u64, u64), awaited: Awaited) -> (Pending, u64) {
        let (pending, completer) = Pending::later(target);
        let id = self.id_next;
        self.id_next += 1;
        self.waiting.insert(id, Waiting { target, completer, range, awaited });
        (pending, id)
    }

    /// Sends a message, if the receiver has room for it: whether it had.
    pub(super) fn send(&mut self, shared: &Shared, to: MemberId, port: Port, bytes: &[u8]) -> bool {
        let cost = message_cost(bytes.len());
        let credit = &mut self.links[to.index()].credit[port as usize];
        if *credit < cost {
            return false;
        }
        *credit -= cost;
        let epoch = shared.epoch();
        if to == shared.me {
            self.inbox[port as usize].push_back(Message { from: to, epoch, bytes: bytes.to_vec() });
            shared.ring();
        } else {
            let header =
                Header::new(Kind::Message, 0, epoch.0, [0, bytes.len() as u64, 0]).detail(port as u8);
            self.enqueue(shared, to, Outgoing::Data { header, data: bytes.to_vec(), sent: 0 });
        }
        true
    }

    /// The next message for a port.
    pub(super) fn receive(&mut self, shared: &Shared, port: Port) -> Option<Message> {
        let message = self.inbox[port as usize].pop_front()?;
        let link = &mut self.links[message.from.index()];
        let cost = message_cost(message.bytes.len());
        if message.from == shared.me {
            link.credit[port as usize] += cost;
        } else {
            link.owed[port as usize] += cost;
            // Reported in large portions: a frame for each message would double their number.
            if link.owed[port as usize] >= MESSAGE_WINDOW / 4 && !shared.is_dead(message.from) {
                let owed = std::mem::take(&mut link.owed[port as usize]);
                let header = Header::new(Kind::Credit, 0, 0, [owed, 0, 0]).detail(port as u8);
                self.enqueue_small(shared, message.from, header);
            }
        }
        Some(message)
    }

    /// Rings the bell of another member that lives.
    pub(super) fn ring(&mut self, shared: &Shared, member: MemberId) {
        let link = &mut self.links[member.index()];
        if !link.rings {
            link.rings = true;
            self.enqueue_small(shared, member, Header::new(Kind::Ring, 0, 0, [0; 3]));
        }
    }

    /// The first member that has neither said who it is nor died.
    pub(super) fn first_missing(&self, shared: &Shared) -> Option<MemberId> {
        let view = shared.view();
        view.living().find(|member| self.links[member.index()].peer.is_none())
    }
}

/// Whether anybody still waits for an operation.
fn is_wanted(waiting: &HashMap<u64, Waiting>, id: u64) -> bool {
    waiting.get(&id).is_some_and(|waiting| !waiting.completer.is_forgotten())
}

/// How long the piece of a range is that begins at `piece`.
fn piece_of(len: u64, piece: u64, piece_len: usize) -> usize {
    usize::try_from(len.saturating_sub(piece)).unwrap_or(usize::MAX).min(piece_len)
}

/// Does an operation on this member's own segment.
pub(super) fn operate_locally(shared: &Shared, operation: Operation<'_>) -> Result<Done> {
    let mut segment = lock(&shared.segment);
    operation.check(shared.me, segment.len())?;
    Ok(match operation {
        Operation::Put { offset, data } => {
            let (front, back) = data.split_at(data.len() / 2);
            segment.write(offset, front);
            shared.step();
            segment.write(offset + front.len() as u64, back);
            Done::Put
        }
        Operation::Get { offset, len } => Done::Get(segment.read(offset, len).to_vec()),
        Operation::Load { offset } => Done::Word(segment.update(offset, |_| None)),
        Operation::CompareAndSwap { offset, expected, new } => {
            Done::Word(segment.update(offset, |word| (word == expected).then_some(new)))
        }
        Operation::FetchAdd { offset, delta } => {
            Done::Word(segment.update(offset, |word| Some(word.wrapping_add(delta))))
        }
    })
}

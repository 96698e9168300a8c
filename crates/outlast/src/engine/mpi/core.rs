//! Moving data between nodes: the one place where a member talks to MPI, under one lock and never waiting.
//!
//! To each member of another node there is a *link*: frames wait in the order in which they were started, up to
//! [`IN_FLIGHT_MAX`] of them are being sent, and one receive is posted. A receive from a dead member ends with an
//! error by itself, so it is also the detector. There is no receive from any source.
//!
//! # Deaths
//! What MPI says of a failed member is a *suspicion* only: it says the same of one whose connection was cut. So is the silence of a
//! node. Where the kernel can be asked it is, too: MPI has its word from daemons, which may be stopped or cut off. And the
//! neighbours of the failed still reach its memory; while they do not know of the death they may read there what others
//! have replaced. So it is acted upon, by entering it into the log of this member's own node, once
//!
//! - a frame says so, of one of its neighbours, whose node has then raised its epoch, or of someone who had it from there;
//! - or all its neighbours are suspected as well, so that nobody is left who could read, and of each of them it is
//!   *confirmed*: by the kernel, where it runs under the same one as this member (a pidfd, opened at joining, says whether
//!   the process has ended), or else by a majority of the job (`quorum.rs`), which also says when a member
//!   that was merely cut off ceases to serve.
//!
//! A neighbour that learns of a death, from the kernel, sends the news to all members of other nodes. If it dies before
//! it came to that, another one of its node does the same, or none of them is left. A majority that has lost a member
//! whose neighbours it still reaches has those end it: a suspicion becomes death by fencing.
//!
//! Where all members run under one kernel there is no majority to ask, and no lease.

use super::onesided::{Way, watch};
use super::quorum::{ASK_PERIOD, Quorum};
use super::wire::{self, Deaths, Ending, Header, Kind};
use crate::engine::shm::Shm;
use crate::engine::{
    COMPOUND_LEN_MAX, Completer, CompoundStep, Done, Engine, Epoch, Error, MESSAGE_LEN_MAX,
    MemberId, MemberSet, Message, Operation, Pending, Port, Result, Time, run_compound,
};
use outlast_mpi_sys::{Comm, Completed, Request, Tester};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The tag of all frames: order between them is what keeps operations in order.
const TAG: i32 = 1;

/// How many frames to one member are given to MPI at a time; the others wait in the link's queue, where those of
/// forgotten operations can still be dropped.
const IN_FLIGHT_MAX: usize = 16;

/// How many bytes of gets are asked from one member at a time: its answers wait in its memory.
const GET_WINDOW: usize = 1 << 20;

/// How many bytes of puts may be under way to one member that it has not said to have taken: MPI itself would keep any
/// number of frames, see [`PIECE_LEN`].
const PUT_WINDOW: u64 = 1 << 20;

/// How many bytes of messages for one port may be under way to, or waiting at, one receiver.
const MESSAGE_WINDOW: u64 = 4 << 20;
const _: () = assert!(MESSAGE_WINDOW > message_cost(MESSAGE_LEN_MAX));

/// How often the failed are asked for when no error gave a reason to.
const DETECT_PERIOD: Duration = Duration::from_millis(10);

/// How often the kernel is asked who has ended, whatever MPI says.
const WATCH_PERIOD: Duration = Duration::from_secs(1);

/// A node that answers nothing for this part of the time limit is taken for cut off: calls that wait for it can still go on
/// within their time.
const SILENCE_PART: u32 = 3;
const SILENCE_MIN: Duration = Duration::from_secs(2);

/// What the time between two looks counts at most.
const LOOK_MAX: Duration = Duration::from_millis(100);

/// What a message takes of its window; more than its bytes, so that empty ones count too.
const fn message_cost(len: usize) -> u64 {
    len as u64 + 64
}

/// The most bytes of data in a frame, the same at all members: with a receive buffer for each of at most 1024 of them.
///
/// A frame must be one that Open MPI sends at once (over TCP up to 64 KiB with its own header). A larger one it announces, and
/// sends when the receiver asks for it; if the sender dies in between, the receiver's next call may never return, or
/// crash: it waits in MPI_Irecv for a lock of the connection that is gone (5.0.11, one of eight runs of the scenario
/// `sender-dies-mid-message` on three hosts).
const PIECE_LEN: usize = 32 << 10;
const _: () = assert!(COMPOUND_LEN_MAX <= PIECE_LEN);

/// Who another member is, from its first frame.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) pid: i32,
    /// The same for all that can signal each other.
    pub(super) kernel: String,
    pub(super) domain: String,
}

/// What the kernel can say of a member of another node.
pub(super) enum Witness {
    /// Nothing: it runs under another kernel.
    None,
    /// Whether this process has ended.
    Process(OwnedFd),
    /// Its process had ended when it was looked for.
    Ended,
}

impl Witness {
    /// Whether the kernel says that the process has ended.
    fn has_ended(&self) -> bool {
        match self {
            Witness::None => false,
            Witness::Ended => true,
            Witness::Process(pidfd) => {
                let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
                matches!(poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&at_once)), Ok(1))
            }
        }
    }
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
    /// Bytes of puts that were sent and not said to have been taken; and those taken from the other and not yet reported.
    put_bytes: u64,
    put_taken: u64,
    /// The epoch of the last view of this node that the other has been sent.
    taught: u64,
    /// The put whose first piece was accepted here and whose last has not arrived.
    accepted: Option<u64>,
    /// The messages of which some pieces have arrived.
    partial: [Vec<u8>; Port::COUNT],
    /// What may still be sent to each port.
    credit: [u64; Port::COUNT],
    /// What was consumed of each port and not yet reported.
    owed: [u64; Port::COUNT],
    peer: Option<Peer>,
    /// When the other was last asked, and whether it has not answered yet.
    asked_at: Option<Time>,
    is_asked: bool,
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
    Series,
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
    /// The node of each member; this member's own is that of its neighbours.
    node_of: Vec<usize>,
    /// The epoch of this node up to which this part has acted on the deaths, and the dead of it.
    seen_epoch: u64,
    dead: MemberSet,
    /// Who has failed, as MPI or the kernel says or silence lets assume, to this member or to a neighbour, and is not dead yet.
    suspected: MemberSet,
    /// By member: what the kernel can say of it.
    witnesses: Vec<Witness>,
    /// Who is with whom, if there are members of whom the kernel says nothing.
    quorum: Option<Quorum>,
    /// Until when this member has a lease: the end of time if it needs none.
    lease: Arc<AtomicU64>,
    /// Answers that wait for a lease.
    held: VecDeque<(MemberId, Outgoing)>,
    /// By the number of a node: for how long it has answered nothing, once it has said anything; and who has since the last look.
    silence: Vec<Option<Duration>>,
    heard: MemberSet,
    looked_at: Time,
    /// Whom the others were told that this node has turned away from, and whose neighbours were told to end it.
    accused: MemberSet,
    fenced: MemberSet,
    /// Whether MPI reported an error since the failed were last asked for.
    has_trouble: bool,
    /// Whether something arrived that an activity in the middle of a call may wait for.
    has_answers: bool,
    detect_at: Time,
    watch_at: Time,
    failed_ranks: Vec<i32>,
    /// While this member leaves: who has not said farewell.
    farewells: Option<MemberSet>,
}

impl Core {
    /// The part of a member whose neighbours are those with the same number in `node_of`.
    pub(super) fn new(
        comm: Comm,
        node: &Shm,
        node_of: Vec<usize>,
        witnesses: Vec<Witness>,
        myself: Peer,
    ) -> Core {
        let members = node_of.len();
        let frame_len = wire::HEADER_LEN + wire::deaths_len_max(members) + PIECE_LEN;
        let hello = Header::new(Kind::Hello, 0, 0, [myself.pid as u64, 0, 0]);
        let own = node_of[node.me().index()];
        let is_elsewhere = |&index: &usize| node_of[index] != own;
        let elsewhere: Vec<usize> = (0..members).filter(is_elsewhere).collect();
        let needs_quorum = elsewhere.iter().any(|&index| matches!(witnesses[index], Witness::None));
        let mut core = Core {
            comm,
            tester: Tester::default(),
            completed: Vec::new(),
            receives: vec![Request::null(); members],
            receive_buffers: (0..members)
                .map(|index| if is_elsewhere(&index) { frame_len } else { 0 })
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
            seen_epoch: 0,
            dead: MemberSet::new(),
            suspected: MemberSet::new(),
            witnesses,
            quorum: needs_quorum.then(|| Quorum::new(node.me(), node_of.clone())),
            lease: Arc::new(AtomicU64::new(if needs_quorum { 0 } else { Time::NEVER.0 })),
            held: VecDeque::new(),
            silence: vec![None; members],
            heard: MemberSet::new(),
            looked_at: node.now(),
            accused: MemberSet::new(),
            fenced: MemberSet::new(),
            has_trouble: false,
            has_answers: false,
            detect_at: Time(0),
            watch_at: Time(0),
            failed_ranks: vec![0; members],
            farewells: None,
            node_of,
        };
        for index in elsewhere {
            core.receive_from(index);
            let payload = format!("{}\n{}", myself.kernel, myself.domain).into_bytes();
            core.links[index].queue.push_back(Outgoing::Small { header: hello, payload });
        }
        core
    }

    /// The members of other nodes that are not known to be dead.
    fn living_elsewhere(&self, node: &Shm) -> Vec<MemberId> {
        let own = self.node_of[node.me().index()];
        let members = (0..self.node_of.len() as u32).map(MemberId);
        members.filter(|m| self.node_of[m.index()] != own && !self.dead.contains(*m)).collect()
    }

    /// Until when this member has a lease, if it needs one.
    pub(super) fn lease(&self) -> Option<Arc<AtomicU64>> {
        self.quorum.as_ref().map(|_| self.lease.clone())
    }

    fn has_lease(&self, now: Time) -> bool {
        now.0 < self.lease.load(Ordering::SeqCst)
    }

    /// Who a member is, if it has said so.
    pub(super) fn peer(&self, member: MemberId) -> Option<&Peer> {
        self.links[member.index()].peer.as_ref()
    }

    // ---- Progress.

    /// Moves data without waiting; whether anything happened.
    pub(super) fn progress(&mut self, node: &Shm) -> bool {
        // A member that leaves has ended, but has the others' farewells to wait for.
        if node.is_forked() || (node.has_ended() && self.farewells.is_none()) {
            return false;
        }
        let _watched = watch(Way::Frames);
        let mut has_moved = self.notice(node);
        has_moved |= self.finish_receives(node);
        has_moved |= self.finish_sends();
        let now = node.now();
        if self.has_trouble || now >= self.detect_at {
            has_moved |= self.detect(node);
            self.keep_lease(node);
            self.detect_at = now.after(DETECT_PERIOD);
        }
        if !self.held.is_empty() && self.has_lease(now) {
            for (to, answer) in std::mem::take(&mut self.held) {
                if !self.dead.contains(to) {
                    self.enqueue(node, to, answer);
                }
            }
        }
        for index in 0..self.links.len() {
            has_moved |= self.pump(node, index);
        }
        if std::mem::take(&mut self.has_answers) {
            node.ring_for_calls();
        }
        has_moved
    }

    fn finish_receives(&mut self, node: &Shm) -> bool {
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
                    self.heard.insert(MemberId(index as u32));
                    self.handle(node, MemberId(index as u32), &buffer[..len]);
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
    fn pump(&mut self, node: &Shm, index: usize) -> bool {
        let mut has_moved = false;
        // A node that has turned away from a member sends it nothing more, whoever of the node has heard that it failed.
        if self.quorum.is_some() && node.is_quarantined(MemberId(index as u32)) {
            self.links[index].queue.clear();
            return false;
        }
        while self.links[index].in_flight < IN_FLIGHT_MAX {
            let Some((frame, taught)) = self.next_frame(node, index) else { break };
            node.step();
            let _watched = watch(Way::Frames);
            // SAFETY: the frame's bytes are on the heap and owned by `sending` until the request is complete.
            match unsafe { self.comm.isend(&frame, index, TAG) } {
                Ok(request) => {
                    self.sends.push(request);
                    self.sending.push((MemberId(index as u32), frame));
                    self.links[index].in_flight += 1;
                    self.links[index].taught = taught;
                    self.advance(index);
                    has_moved = true;
                }
                Err(_) => {
                    // The frame stays in front: it goes with the link if the member turns out to be dead.
                    self.has_trouble = true;
                    if self.dead.contains(MemberId(index as u32)) {
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
    fn next_frame(&mut self, node: &Shm, index: usize) -> Option<(Vec<u8>, u64)> {
        self.links[index].queue.front()?;
        let deaths: Option<Deaths> = (self.links[index].taught < node.epoch().0).then(|| {
            let view = node.view();
            (view.dead, view.left)
        });
        let taught =
            deaths.as_ref().map_or(self.links[index].taught, |(dead, _)| dead.len() as u64);
        loop {
            let link = &mut self.links[index];
            let is_wanted = match link.queue.front()? {
                Outgoing::Small { header, .. } => {
                    header.id == 0 || header.kind == Kind::Reply || {
                        is_wanted(&self.waiting, header.id)
                    }
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
            let is_held = match link.queue.front()? {
                Outgoing::Get { .. } => link.get_bytes >= GET_WINDOW,
                Outgoing::Data { header, .. } => {
                    header.kind == Kind::Put && link.put_bytes >= PUT_WINDOW
                }
                Outgoing::Small { .. } => false,
            };
            if is_held {
                // It waits for answers of the other member, whose queue may have the like at its head: both would wait for
                // ever if answers waited behind them. Nothing else of what is queued may overtake.
                let at = link.queue.iter().position(|outgoing| match outgoing {
                    Outgoing::Small { header, .. } => {
                        matches!(header.kind, Kind::Reply | Kind::Taken | Kind::Ask | Kind::Answer)
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
                wire::encode(header, deaths.as_ref(), payload, self.node_of.len()),
                taught,
            ));
        }
    }

    /// Takes the frame that was just sent off the queue, or moves on to its next piece.
    fn advance(&mut self, index: usize) {
        let link = &mut self.links[index];
        let is_last = match link.queue.front_mut().expect("a frame was just made of it") {
            Outgoing::Small { .. } => true,
            Outgoing::Data { header, data, sent } => {
                let piece = PIECE_LEN.min(data.len() - *sent);
                if header.kind == Kind::Put {
                    link.put_bytes += piece as u64;
                }
                *sent += piece;
                *sent == data.len()
            }
            Outgoing::Get { header, asked } => {
                let piece = piece_of(header.words[1], *asked as u64);
                *asked += piece;
                link.get_bytes += piece;
                *asked as u64 == header.words[1]
            }
        };
        if is_last {
            link.queue.pop_front();
        }
    }

    fn enqueue(&mut self, node: &Shm, to: MemberId, outgoing: Outgoing) {
        self.links[to.index()].queue.push_back(outgoing);
        self.pump(node, to.index());
    }

    fn enqueue_small(&mut self, node: &Shm, to: MemberId, header: Header) {
        self.enqueue(node, to, Outgoing::Small { header, payload: Vec::new() });
    }

    // ---- Deaths.

    /// Asks MPI, and now and then the kernel, who has failed; whether anyone is newly dead by that.
    fn detect(&mut self, node: &Shm) -> bool {
        self.has_trouble = false;
        let mut ranks = std::mem::take(&mut self.failed_ranks);
        // If it cannot tell, it is asked again after the period.
        if let Ok(failed) = self.comm.get_failed(&mut ranks) {
            let failed = failed.iter().filter_map(|&rank| u32::try_from(rank).ok());
            let members = failed.filter(|&rank| (rank as usize) < self.node_of.len()).map(MemberId);
            // Of its own neighbours the kernel tells.
            let is_news = |member: &MemberId| {
                self.node_of[member.index()] != self.node_of[node.me().index()]
                    && !self.dead.contains(*member)
            };
            for member in members.filter(is_news) {
                self.suspected.insert(member);
            }
        }
        self.failed_ranks = ranks;
        let now = node.now();
        if now >= self.watch_at {
            self.watch_at = now.after(WATCH_PERIOD);
            for member in self.living_elsewhere(node) {
                if self.witnesses[member.index()].has_ended() {
                    self.suspected.insert(member);
                }
            }
        }
        self.turn_away(node);
        // What a neighbour has answered before this node turned away is in the log by now: it is counted with.
        let mut has_news = self.notice(node);
        has_news |= self.bury(node);
        // A receive that ended with an error while its member lives is posted again, at most once in a period.
        for member in self.living_elsewhere(node) {
            if self.receives[member.index()] == Request::null() {
                self.receive_from(member.index());
            }
        }
        // An error at once again waits for the next period: asking in a loop would bring nothing new.
        self.has_trouble = false;
        has_news
    }

    /// Turns this node away from those that are suspected, if no kernel knows better, and takes note of whom its other
    /// members have turned it away from.
    fn turn_away(&mut self, node: &Shm) {
        if self.quorum.is_none() {
            return;
        }
        for member in self.suspected.iter() {
            let witness = &self.witnesses[member.index()];
            if matches!(witness, Witness::None) || witness.has_ended() {
                node.quarantine(member);
            }
        }
        let shunned: MemberSet = self
            .living_elsewhere(node)
            .into_iter()
            .filter(|&member| node.is_quarantined(member))
            .collect();
        self.suspected.union_with(&shunned);
        if let Some(quorum) = &mut self.quorum {
            // From here on nobody of this node answers them: the time of mourning may run.
            quorum.accuse(node.me(), &shunned);
        }
    }

    /// Tells the others whom this node has turned away from, asks them whether they have turned away from this member, and
    /// counts what they have answered. Nothing to do for one that leaves.
    fn keep_lease(&mut self, node: &Shm) {
        if self.quorum.is_none() || node.has_ended() {
            return;
        }
        self.count_answers(node);
        self.listen(node);
        let (now, epoch) = (node.now(), node.epoch().0);
        let (shunned, reached): (Vec<MemberId>, Vec<MemberId>) = self
            .living_elsewhere(node)
            .into_iter()
            .partition(|&member| node.is_quarantined(member));
        let shunned: MemberSet = shunned.into_iter().collect();
        if !shunned.is_subset(&self.accused) {
            let payload = wire::encode_set(&shunned, self.node_of.len());
            for &member in &reached {
                let header = Header::new(Kind::Accuse, 0, 0, [0; 3]);
                self.enqueue(node, member, Outgoing::Small { header, payload: payload.clone() });
            }
            self.accused.union_with(&shunned);
        }
        for member in reached {
            let is_behind =
                self.quorum.as_ref().is_some_and(|quorum| quorum.known_by(member) < epoch);
            let link = &mut self.links[member.index()];
            // One question at a time: what is not answered is not lost, and one that is starved needs no more of them.
            let is_due = link.asked_at.is_none_or(|at| now >= at.after(ASK_PERIOD));
            if !link.is_asked && (is_behind || is_due) {
                (link.is_asked, link.asked_at) = (true, Some(now));
                self.enqueue_small(node, member, Header::new(Kind::Ask, 0, 0, [now.0, epoch, 0]));
            }
        }
    }

    /// Suspects the members of nodes that have answered nothing for long: MPI may take a quarter of an hour to find that a link
    /// is cut. One member of a node that answers is enough: the others may be stopped, which is no death. And those of
    /// nodes that have been at odds with others for as long.
    fn listen(&mut self, node: &Shm) {
        let now = node.now();
        // A member that was itself stopped must not blame the others.
        let elapsed = now.since(self.looked_at).min(LOOK_MAX);
        self.looked_at = now;
        let heard = std::mem::take(&mut self.heard);
        let living = self.living_elsewhere(node);
        let count = self.node_of.len();
        let (mut has_spoken, mut is_asked) = (vec![false; count], vec![false; count]);
        for &member in &living {
            let number = self.node_of[member.index()];
            has_spoken[number] |= heard.contains(member);
            is_asked[number] |= self.links[member.index()].is_asked;
        }
        for (number, silence) in self.silence.iter_mut().enumerate() {
            match silence {
                _ if has_spoken[number] => *silence = Some(Duration::ZERO),
                Some(silence) if is_asked[number] => *silence += elapsed,
                _ => {}
            }
        }
        let limit = (node.time_limit() / SILENCE_PART).max(SILENCE_MIN);
        for member in living {
            if self.silence[self.node_of[member.index()]].is_some_and(|silence| silence >= limit) {
                self.suspected.insert(member);
            }
        }
        if let Some(quorum) = &mut self.quorum {
            self.suspected.union_with(&quorum.losers(&self.dead, now, elapsed, limit));
        }
    }

    /// Finds out until when this member has a lease.
    fn count_answers(&mut self, node: &Shm) {
        // The clock first, and the log itself instead of what this part has acted on: a neighbour may have answered others for a
        // death meanwhile, and they count on its not being counted with any more.
        let now = node.now();
        if let (Some(quorum), Some(death_order)) = (&mut self.quorum, node.death_order()) {
            quorum.settle(&death_order);
            let until = quorum.lease_until(&death_order.into_iter().collect(), now);
            self.lease.store(until.0, Ordering::SeqCst);
        }
    }

    /// Whether the death of a member that is suspected is confirmed.
    fn is_confirmed(&mut self, member: MemberId, now: Time) -> bool {
        match (&self.witnesses[member.index()], self.has_lease(now), &mut self.quorum) {
            (Witness::None, has_lease, Some(quorum)) => {
                quorum.may_bury(member, &self.dead, now) && has_lease
            }
            (witness, ..) => witness.has_ended(),
        }
    }

    /// Declares those dead who are suspected together with all their neighbours, and confirmed to be; whether there were
    /// any.
    fn bury(&mut self, node: &Shm) -> bool {
        if self.suspected.is_empty() {
            return false;
        }
        let (now, suspected) = (node.now(), self.suspected.clone());
        let confirmed: MemberSet =
            suspected.iter().filter(|&member| self.is_confirmed(member, now)).collect();
        let gone = |index: usize| {
            let member = MemberId(index as u32);
            confirmed.contains(member) || self.dead.contains(member)
        };
        let is_over = |member: MemberId| {
            let of_its_node = |&index: &usize| self.node_of[index] == self.node_of[member.index()];
            (0..self.node_of.len()).filter(of_its_node).all(gone)
        };
        let (dead, lost): (Vec<MemberId>, Vec<MemberId>) =
            confirmed.iter().partition(|&member| is_over(member));
        for member in lost {
            if matches!(self.witnesses[member.index()], Witness::None) && self.fenced.insert(member)
            {
                self.fence(node, member);
            }
        }
        !dead.is_empty() && self.learn(node, &(dead.into_iter().collect(), MemberSet::new()))
    }

    /// Enters deaths into the log of this node and acts on them; whether there was anything new.
    fn learn(&mut self, node: &Shm, (dead, left): &Deaths) -> bool {
        if dead.iter().any(|member| !self.dead.contains(member)) {
            // The epoch is raised in here, before anything below acts on the deaths.
            node.declare_dead(dead.iter().map(|member| (member, left.contains(member))));
        }
        self.notice(node)
    }

    /// Acts on the deaths in the log of this node, whoever entered them; whether there was anything new.
    pub(super) fn notice(&mut self, node: &Shm) -> bool {
        if node.epoch().0 == self.seen_epoch {
            return false;
        }
        let view = node.view();
        self.seen_epoch = view.epoch.0;
        let own = self.node_of[node.me().index()];
        let mut has_neighbour = false;
        let new: Vec<MemberId> =
            view.dead.iter().filter(|&member| !self.dead.contains(member)).collect();
        for member in new {
            has_neighbour |= self.node_of[member.index()] == own && member != node.me();
            let link = &mut self.links[member.index()];
            link.queue.clear();
            link.partial = Default::default();
            self.fail(|waiting| waiting.target == member, || Error::Dead { member });
            if let Some(farewells) = &mut self.farewells {
                *farewells = farewells.iter().filter(|&other| other != member).collect();
            }
        }
        self.suspected =
            self.suspected.iter().filter(|&member| !view.dead.contains(member)).collect();
        self.dead = view.dead;
        self.has_answers = true;
        self.count_answers(node);
        if has_neighbour {
            for member in self.living_elsewhere(node) {
                self.enqueue_small(node, member, Header::new(Kind::News, 0, 0, [0; 3]));
            }
        }
        // The last neighbour of one that is suspected may be among the dead now.
        self.bury(node);
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

    /// Gives up all that waits: this member leaves, and serves nobody any more.
    pub(super) fn begin_leave(&mut self, node: &Shm) {
        self.fail(|_| true, || Error::Ended);
        self.farewells = Some(self.living_elsewhere(node).into_iter().collect());
    }

    /// Tells the members of other nodes, once this node has it in its log, that this member has left.
    pub(super) fn say_farewell(&mut self, node: &Shm) {
        for member in self.living_elsewhere(node) {
            self.enqueue_small(node, member, Header::new(Kind::Leave, 0, 0, [0; 3]));
        }
    }

    /// Whether all others know that this member leaves.
    pub(super) fn may_leave(&self) -> bool {
        self.farewells.as_ref().is_none_or(MemberSet::is_empty)
    }

    /// Leaves, whether or not all others know.
    pub(super) fn finish_leave(&mut self) {
        self.farewells = None;
        for link in &mut self.links {
            link.queue.clear();
        }
        for request in &mut self.receives {
            // A receive that cannot be cancelled only keeps its buffer, which is never freed anyway.
            let _ = request.cancel();
        }
    }

    // ---- What arrives.

    /// Does what a frame asks for. Others of this node reach the same memory, and may know of its sender's death before this is
    /// over: so that they can wait for it, it is said before the look at the view.
    fn handle(&mut self, node: &Shm, from: MemberId, frame: &[u8]) {
        node.set_served(Some(from));
        self.handle_for(node, from, frame);
        node.set_served(None);
    }

    fn handle_for(&mut self, node: &Shm, from: MemberId, frame: &[u8]) {
        let Some((header, deaths, payload)) = wire::decode(frame) else {
            debug_assert!(false, "{from} sent a frame that is none");
            return;
        };
        // A frame of the dead that was under way: its sender's view is not one that anybody may act on. Only who
        // leaves is answered, also when others were faster to tell. A neighbour may have told of the death since this part looked.
        self.notice(node);
        let is_dead = self.dead.contains(from);
        if is_dead && header.kind != Kind::Leave {
            return;
        }
        node.step();
        if let Some(deaths) = deaths.filter(|_| !is_dead) {
            self.learn(node, &deaths);
        }
        // A member that leaves serves nobody any more.
        if node.has_ended() && !matches!(header.kind, Kind::Leave | Kind::Farewell) {
            return;
        }
        let port = Port::from_index(header.detail.into());
        match (header.kind, port) {
            (Kind::Hello, _) => {
                let text = String::from_utf8_lossy(payload);
                let (kernel, domain) = text.split_once('\n').unwrap_or((&text, ""));
                self.links[from.index()].peer = Some(Peer {
                    pid: header.words[0] as i32,
                    kernel: kernel.into(),
                    domain: domain.into(),
                });
                node.ring_own();
            }
            (
                Kind::Put
                | Kind::Get
                | Kind::Load
                | Kind::CompareAndSwap
                | Kind::FetchAdd
                | Kind::SegmentLen
                | Kind::Series,
                _,
            ) => {
                self.serve(node, from, header, payload);
                if header.kind == Kind::Put {
                    self.report_taken(node, from, payload.len());
                }
            }
            (Kind::Taken, _) => {
                let link = &mut self.links[from.index()];
                link.put_bytes = link.put_bytes.saturating_sub(header.words[0]);
            }
            (Kind::Reply, _) => self.complete(node, from, header, payload),
            (Kind::Message, Some(port)) => self.take_message(node, from, port, header, payload),
            (Kind::Credit, Some(port)) => {
                self.links[from.index()].credit[port as usize] += header.words[0];
                self.has_answers = true;
            }
            (Kind::Ring, _) => node.ring_own(),
            // That the sender is dead and has left stood in the frame's sets.
            (Kind::Leave, _) => {
                self.enqueue_small(node, from, Header::new(Kind::Farewell, 0, 0, [0; 3]))
            }
            (Kind::Farewell, _) => {
                self.has_answers = true;
                if let Some(farewells) = &mut self.farewells {
                    *farewells = farewells.iter().filter(|&other| other != from).collect();
                }
            }
            // The dead stood in the frame's sets.
            (Kind::News, _) => {}
            (Kind::Fence, _) => {
                let victim = MemberId(header.words[0] as u32);
                if victim.index() < self.node_of.len() {
                    // Of oneself it does not return. One that is gone already needs no signal.
                    let _ = match victim == node.me() {
                        true => node.fence(victim, Time(0)),
                        false => node.signal(victim, rustix::process::Signal::KILL),
                    };
                }
            }
            (Kind::Ask, _) => {
                self.enqueue_small(node, from, Header::new(Kind::Answer, 0, 0, header.words));
            }
            (Kind::Answer, _) => {
                self.links[from.index()].is_asked = false;
                if let Some(quorum) = &mut self.quorum {
                    quorum.answer(from, Time(header.words[0]), header.words[1]);
                }
            }
            (Kind::Accuse, _) => {
                if let Some(quorum) = &mut self.quorum {
                    quorum.accuse(from, &wire::decode_set(payload));
                }
            }
            (Kind::Message | Kind::Credit, None) => {
                debug_assert!(false, "{from} named an unknown port")
            }
        }
    }

    /// Does what another member asks for, in this member's own segment, by the same instructions as its neighbours: a
    /// word has one way of being changed.
    ///
    /// The view may change between the check and the operation, as for a neighbour. The answer then carries the new
    /// view, since it is looked at after the operation, and the caller finds its epoch raised.
    fn serve(&mut self, node: &Shm, from: MemberId, header: Header, payload: &[u8]) {
        let ([offset, len, piece], me) = (header.words, node.me());
        let is_range = matches!(header.kind, Kind::Put | Kind::Get);
        // The later pieces belong to a request that was let in with its first piece: refusing one of them would
        // leave a put half done and called "stale, changed nothing".
        let is_first = !is_range || piece == 0;
        let at = if is_first { Epoch(header.epoch) } else { Epoch::ANY };
        let link = &mut self.links[from.index()];
        if header.kind == Kind::Put {
            if is_first {
                link.accepted = Some(header.id);
            }
            // The pieces after a refused first one get no answer of their own.
            if link.accepted != Some(header.id) {
                return;
            }
        }
        // The whole range, before its first piece is touched.
        let whole = Operation::Get { offset, len: usize::try_from(len).unwrap_or(usize::MAX) };
        let may = match (is_range, node.segment_len(me)) {
            (true, Ok(segment_len)) => whole.check(me, segment_len),
            (_, other) => other.map(drop),
        };
        // Of a series: how many of its parts.
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
                // Beyond the end there is nothing to read, and nothing is asked for.
                let at_offset = offset + piece.min(len);
                node.get(at, me, at_offset, &mut data).map(|()| (0, data))
            }
            Kind::Load => node.load(at, me, offset).map(|word| (word, Vec::new())),
            Kind::CompareAndSwap => {
                node.compare_and_swap(at, me, offset, len, piece).map(|word| (word, Vec::new()))
            }
            Kind::FetchAdd => node.fetch_add(at, me, offset, piece).map(|word| (word, Vec::new())),
            Kind::Series => {
                let Some(parts) = wire::decode_parts(payload) else {
                    debug_assert!(false, "{from} sent a series that is none");
                    return Err(Error::Ended);
                };
                match run_compound(node, at, me, &parts)? {
                    Done::Compound { done: count, word } => {
                        done = count as u64;
                        Ok((word, Vec::new()))
                    }
                    other => unreachable!("a series completed as {other:?}"),
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
            // This member has ended, or the request is none.
            Err(_) => return,
        };
        if header.kind == Kind::Put && (is_last || ending != Ending::Done) {
            link.accepted = None;
        }
        if is_last || ending != Ending::Done {
            let words = if header.kind == Kind::Get { [word, len, piece] } else { [word, 0, done] };
            let header = Header::new(Kind::Reply, header.id, 0, words).detail(ending as u8);
            node.step();
            let answer = Outgoing::Small { header, payload: data };
            // Looked at after the operation: who has a lease now had its memory counted with until now.
            match self.has_lease(node.now()) {
                true => self.enqueue(node, from, answer),
                false => self.held.push_back((from, answer)),
            }
        }
    }

    /// Notes that a piece of a put was taken, whatever became of it, and says so in large portions.
    fn report_taken(&mut self, node: &Shm, from: MemberId, len: usize) {
        let taken = &mut self.links[from.index()].put_taken;
        *taken += len as u64;
        if *taken >= PUT_WINDOW / 4 {
            let taken = std::mem::take(taken);
            self.enqueue_small(node, from, Header::new(Kind::Taken, 0, 0, [taken, 0, 0]));
        }
    }

    /// Takes the answer to a request of this member.
    fn complete(&mut self, node: &Shm, from: MemberId, header: Header, payload: &[u8]) {
        let [word, len, piece] = header.words;
        let link = &mut self.links[from.index()];
        link.get_bytes = link.get_bytes.saturating_sub(piece_of(len, piece));
        // The operation may have ended already: by the refusal of an earlier piece.
        let Some(waiting) = self.waiting.get_mut(&header.id) else { return };
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
                Awaited::Series => Ok(Done::Compound { done: piece as usize, word }),
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

    fn take_message(
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

    // ---- What this member starts.

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
        parts: &[CompoundStep<'_>],
    ) -> Pending {
        // The range of the first part, for the error; which part it was is not told.
        let (offset, len) = parts.first().map_or((0, 0), |part| part.operation().range());
        let (pending, id) = self.await_reply(target, (offset, len as u64), Awaited::Series);
        let header = Header::new(Kind::Series, id, at.0, [0; 3]);
        self.enqueue(node, target, Outgoing::Small { header, payload: wire::encode_parts(parts) });
        pending
    }

    /// Asks another member how long its segment is.
    pub(super) fn start_segment_len(&mut self, node: &Shm, target: MemberId) -> Pending {
        let (pending, id) = self.await_reply(target, (0, 0), Awaited::Word);
        self.enqueue_small(node, target, Header::new(Kind::SegmentLen, id, Epoch::ANY.0, [0; 3]));
        pending
    }

    /// Numbers a request and remembers who waits for its reply.
    fn await_reply(
        &mut self,
        target: MemberId,
        range: (u64, u64),
        awaited: Awaited,
    ) -> (Pending, u64) {
        let (pending, completer) = Pending::later(target);
        let id = self.id_next;
        self.id_next += 1;
        self.waiting.insert(id, Waiting { target, completer, range, awaited });
        (pending, id)
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
        link.owed[port as usize] += cost;
        // Reported in large portions: a frame for each message would double their number.
        if link.owed[port as usize] >= MESSAGE_WINDOW / 4 && !self.dead.contains(message.from) {
            let owed = std::mem::take(&mut link.owed[port as usize]);
            let header = Header::new(Kind::Credit, 0, 0, [owed, 0, 0]).detail(port as u8);
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
        let of_its_node = self.node_of[victim.index()];
        for member in self.living_elsewhere(node) {
            if self.node_of[member.index()] == of_its_node {
                let header = Header::new(Kind::Fence, 0, 0, [u64::from(victim.0), 0, 0]);
                self.enqueue_small(node, member, header);
            }
        }
    }

    /// Whether a member of another node is dead, as far as this part has acted on it.
    pub(super) fn is_dead(&mut self, node: &Shm, member: MemberId) -> bool {
        self.notice(node);
        self.dead.contains(member)
    }
}

/// Whether anybody still waits for an operation.
fn is_wanted(waiting: &HashMap<u64, Waiting>, id: u64) -> bool {
    waiting.get(&id).is_some_and(|waiting| !waiting.completer.is_forgotten())
}

/// How long the piece of a range is that begins at `piece`.
fn piece_of(len: u64, piece: u64) -> usize {
    usize::try_from(len.saturating_sub(piece)).unwrap_or(usize::MAX).min(PIECE_LEN)
}

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

use super::link::{Link, MESSAGE_WINDOW, Outgoing, PIECE_LEN};
use super::membership::{DETECT_PERIOD, Witness};
use super::onesided::{Way, watch};
use super::quorum::Quorum;
use super::request::Waiting;
use super::wire::{self, Header, Kind};
use crate::engine::shm::Shm;
use crate::engine::{Engine, MemberId, MemberSet, Message, Port, Time};
use outlast_mpi_sys::{Comm, Completed, Request, Tester};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The tag of all frames: order between them is what keeps operations in order.
pub(super) const TAG: i32 = 1;

/// Who another member is, from its first frame.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) pid: i32,
    /// The same for all that can signal each other.
    pub(super) kernel: String,
    pub(super) domain: String,
}

/// The moving part of a member.
pub(super) struct Core {
    pub(super) comm: Comm,
    pub(super) tester: Tester,
    pub(super) completed: Vec<Completed>,
    /// One receive for each member, null for those that cannot be received from.
    pub(super) receives: Vec<Request>,
    /// The buffers of the receives. MPI writes into them, so they never move and are never freed.
    pub(super) receive_buffers: Vec<&'static mut [u8]>,
    pub(super) sends: Vec<Request>,
    /// The frames being sent, in the order of `sends`. MPI reads them until the request is complete.
    pub(super) sending: Vec<(MemberId, Vec<u8>)>,
    pub(super) links: Vec<Link>,
    pub(super) waiting: HashMap<u64, Waiting>,
    pub(super) id_next: u64,
    pub(super) inbox: [VecDeque<Message>; Port::COUNT],
    /// The node of each member; this member's own is that of its neighbours.
    pub(super) node_of: Vec<usize>,
    /// The epoch of this node up to which this part has acted on the deaths, and the dead of it.
    pub(super) seen_epoch: u64,
    pub(super) dead: MemberSet,
    /// Who has failed, as MPI or the kernel says or silence lets assume, to this member or to a neighbour, and is not dead yet.
    pub(super) suspected: MemberSet,
    /// By member: what the kernel can say of it.
    pub(super) witnesses: Vec<Witness>,
    /// Who is with whom, if there are members of whom the kernel says nothing.
    pub(super) quorum: Option<Quorum>,
    /// Until when this member has a lease: the end of time if it needs none.
    pub(super) lease: Arc<AtomicU64>,
    /// Answers that wait for a lease.
    pub(super) held: VecDeque<(MemberId, Outgoing)>,
    /// By the number of a node: for how long it has answered nothing, once it has said anything; and who has since the last look.
    pub(super) silence: Vec<Option<Duration>>,
    pub(super) heard: MemberSet,
    pub(super) looked_at: Time,
    /// Whom the others were told that this node has turned away from, and whose neighbours were told to end it.
    pub(super) accused: MemberSet,
    pub(super) fenced: MemberSet,
    /// Whether MPI reported an error since the failed were last asked for.
    pub(super) has_trouble: bool,
    /// Whether something arrived that an activity in the middle of a call may wait for.
    pub(super) has_answers: bool,
    pub(super) detect_at: Time,
    pub(super) watch_at: Time,
    pub(super) failed_ranks: Vec<i32>,
    /// While this member leaves: who has not said farewell.
    pub(super) farewells: Option<MemberSet>,
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
    pub(super) fn living_elsewhere(&self, node: &Shm) -> Vec<MemberId> {
        let own = self.node_of[node.me().index()];
        let members = (0..self.node_of.len() as u32).map(MemberId);
        members.filter(|m| self.node_of[m.index()] != own && !self.dead.contains(*m)).collect()
    }

    /// Until when this member has a lease, if it needs one.
    pub(super) fn lease(&self) -> Option<Arc<AtomicU64>> {
        self.quorum.as_ref().map(|_| self.lease.clone())
    }

    pub(super) fn has_lease(&self, now: Time) -> bool {
        now.0 < self.lease.load(Ordering::SeqCst)
    }

    /// Who a member is, if it has said so.
    pub(super) fn peer(&self, member: MemberId) -> Option<&Peer> {
        self.links[member.index()].peer.as_ref()
    }

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
    pub(super) fn receive_from(&mut self, index: usize) {
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
}

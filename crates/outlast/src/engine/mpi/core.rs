//! Moving data between nodes: the one place where a member talks to MPI, under one lock and never waiting.
//!
//! To each member of another node there is a *link*: frames wait in the order in which they were started, up to
//! [`IN_FLIGHT_MAX`] of them are being sent, and one receive is posted. A receive from a dead member ends with an
//! error by itself, so it is also the detector. There is no receive from any source.
//!
//! `membership.rs` says when a remote member is declared dead, and what follows.

use super::detector::{DETECT_PERIOD, Detector, ProcessProbe};
use super::link::{Link, MESSAGE_WINDOW, Outgoing, PIECE_LEN};
use super::membership::Membership;
use super::onesided::{Path, watch};
use super::quorum::Quorum;
use super::request::OpenRequest;
use super::wire::{self, Header, Kind};
use crate::engine::shm::Shm;
use crate::engine::{Engine, Error, MemberId, MemberSet, Message, Port, Time};
use outlast_mpi_sys::{Comm, Completed, Request, Tester};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

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
    pub(super) open_requests: HashMap<u64, OpenRequest>,
    pub(super) id_next: u64,
    pub(super) inbox: [VecDeque<Message>; Port::COUNT],
    pub(super) membership: Membership,
    pub(super) detector: Detector,
    /// Who is with whom, if there are members of whom the kernel says nothing.
    pub(super) quorum: Option<Quorum>,
    /// Until when this member has a lease: the end of time if it needs none.
    pub(super) lease: Arc<AtomicU64>,
    /// Answers that wait for a lease.
    pub(super) held_replies: VecDeque<(MemberId, Outgoing)>,
    /// The quarantined members that the other nodes were told of.
    pub(super) announced: MemberSet,
    /// Whether something arrived that an activity in the middle of a call may wait for.
    pub(super) has_arrivals: bool,
    /// While this member leaves: who has not said farewell.
    pub(super) leave_acks: Option<MemberSet>,
}

impl Core {
    /// `node_of` has the number of each member's node, `probes` what the kernel can say about it.
    pub(super) fn new(
        comm: Comm,
        node: &Shm,
        node_of: Vec<usize>,
        probes: Vec<ProcessProbe>,
        myself: Peer,
    ) -> Core {
        let members = node_of.len();
        let frame_len = wire::HEADER_LEN + wire::deaths_len_max(members) + PIECE_LEN;
        let hello = Header::new(Kind::Hello, 0, 0, [myself.pid as u64, 0, 0]);
        let has_probe = |member: &MemberId| probes[member.index()].is_available();
        let probed = (0..members as u32).map(MemberId).filter(has_probe).collect();
        let membership = Membership::new(node.me(), node_of.clone(), probed);
        let remote = membership.living_remote();
        let needs_quorum = !remote.iter().all(has_probe);
        let mut core = Core {
            comm,
            tester: Tester::default(),
            completed: Vec::new(),
            receives: vec![Request::null(); members],
            receive_buffers: (0..members as u32)
                .map(|index| if membership.is_remote(MemberId(index)) { frame_len } else { 0 })
                .map(|len| &mut *Box::leak(vec![0; len].into_boxed_slice()))
                .collect(),
            sends: Vec::new(),
            sending: Vec::new(),
            links: (0..members)
                .map(|_| Link { credit: [MESSAGE_WINDOW; Port::COUNT], ..Link::default() })
                .collect(),
            open_requests: HashMap::new(),
            id_next: 1,
            inbox: Default::default(),
            membership,
            detector: Detector::new(probes, node.now()),
            quorum: needs_quorum.then(|| Quorum::new(node.me(), node_of)),
            lease: Arc::new(AtomicU64::new(if needs_quorum { 0 } else { Time::NEVER.0 })),
            held_replies: VecDeque::new(),
            announced: MemberSet::new(),
            has_arrivals: false,
            leave_acks: None,
        };
        for member in remote {
            core.receive_from(member.index());
            let payload = format!("{}\n{}", myself.kernel, myself.domain).into_bytes();
            let queue = &mut core.links[member.index()].queue;
            queue.push_back(Outgoing::Small { header: hello, payload });
        }
        core
    }

    /// Who a member is, if it has said so.
    pub(super) fn peer(&self, member: MemberId) -> Option<&Peer> {
        self.links[member.index()].peer.as_ref()
    }

    /// Moves data without waiting; whether anything happened.
    pub(super) fn progress(&mut self, node: &Shm) -> bool {
        // A member that leaves has ended, but has the others' leave_acks to wait for.
        if node.is_forked() || (node.has_ended() && self.leave_acks.is_none()) {
            return false;
        }
        let _watched = watch(Path::Frames);
        let mut has_moved = self.apply_deaths(node);
        has_moved |= self.finish_receives(node);
        has_moved |= self.finish_sends();
        let now = node.now();
        if self.detector.has_trouble || now >= self.detector.detect_at {
            has_moved |= self.detect(node);
            self.keep_lease(node);
            self.detector.detect_at = now.after(DETECT_PERIOD);
        }
        if !self.held_replies.is_empty() && self.has_lease(now) {
            for (to, answer) in std::mem::take(&mut self.held_replies) {
                if !self.membership.is_dead(to) {
                    self.enqueue(node, to, answer);
                }
            }
        }
        for index in 0..self.links.len() {
            has_moved |= self.pump(node, index);
        }
        if std::mem::take(&mut self.has_arrivals) {
            node.ring_for_calls();
        }
        has_moved
    }

    fn finish_receives(&mut self, node: &Shm) -> bool {
        let mut completed = std::mem::take(&mut self.completed);
        if self.tester.test_some(&mut self.receives, &mut completed).is_err() {
            self.detector.has_trouble = true;
        }
        let has_moved = !completed.is_empty();
        for Completed { index, result } in completed.drain(..) {
            match result {
                Ok(len) => {
                    // Taken out while the frame is handled; the next receive into it is posted afterwards.
                    let buffer = std::mem::take(&mut self.receive_buffers[index]);
                    self.detector.heard.insert(MemberId(index as u32));
                    self.handle(node, MemberId(index as u32), &buffer[..len]);
                    self.receive_buffers[index] = buffer;
                    self.receive_from(index);
                }
                // Whatever the class is: who has failed is asked below.
                Err(_) => self.detector.has_trouble = true,
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
            Err(_) => self.detector.has_trouble = true,
        }
    }

    fn finish_sends(&mut self) -> bool {
        if self.sends.is_empty() {
            return false;
        }
        let mut completed = std::mem::take(&mut self.completed);
        if self.tester.test_some(&mut self.sends, &mut completed).is_err() {
            self.detector.has_trouble = true;
        }
        let has_moved = !completed.is_empty();
        // From the last to the first, so that taking one out moves none that is still to come.
        completed.sort_by_key(|completed| std::cmp::Reverse(completed.index));
        for Completed { index, result } in completed.drain(..) {
            self.sends.swap_remove(index);
            let (to, frame) = self.sending.swap_remove(index);
            self.links[to.index()].in_flight -= 1;
            if result.is_err() {
                self.detector.has_trouble = true;
                // What MPI still does with the bytes after an error is not said anywhere: they stay.
                std::mem::forget(frame);
            }
        }
        self.completed = completed;
        has_moved
    }
    /// Gives up all that waits: this member leaves, and serves nobody any more.
    pub(super) fn begin_leave(&mut self) {
        self.fail_requests(|_| true, || Error::Ended);
        self.leave_acks = Some(self.membership.living_remote().into_iter().collect());
    }

    /// Tells the members of other nodes, once this node has it in its log, that this member has left.
    pub(super) fn announce_leave(&mut self, node: &Shm) {
        for member in self.membership.living_remote() {
            self.enqueue_small(node, member, Header::new(Kind::Leave, 0, 0, [0; 3]));
        }
    }

    /// Whether all others know that this member leaves.
    pub(super) fn is_leave_acknowledged(&self) -> bool {
        self.leave_acks.as_ref().is_none_or(MemberSet::is_empty)
    }

    /// Leaves, whether or not all others know.
    pub(super) fn finish_leave(&mut self) {
        self.leave_acks = None;
        for link in &mut self.links {
            link.queue.clear();
        }
        for request in &mut self.receives {
            // A receive that cannot be cancelled only keeps its buffer, which is never freed anyway.
            let _ = request.cancel();
        }
    }

    /// Waits no longer for a member's farewell.
    pub(super) fn remove_leave_ack(&mut self, member: MemberId) {
        if let Some(leave_acks) = &mut self.leave_acks {
            *leave_acks = leave_acks.iter().filter(|&other| other != member).collect();
        }
    }
}

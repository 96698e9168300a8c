//! The part of a member that calls MPI: it moves frames between this member and remote members.
//!
//! The mpi engine calls MPI only through [`Core`], under a single lock (`onesided.rs`, an
//! experiment, has a second), and no call of MPI under it waits.
//!
//! For each remote member there is a [`Link`] and a posted receive. A receive from a dead member
//! ends with an error, so the receives are also a failure detector. There is no receive from any
//! source, which would have its traps after a failure (docs/decisions/0002).
//!
//! | file | part of `Core` |
//! |---|---|
//! | `core.rs` | receives and sends, [`Core::progress`], leaving |
//! | `link.rs` | the queue of frames to a member, flow control |
//! | `request.rs` | requests and messages of this member, and their replies |
//! | `serve.rs` | requests and messages that arrive |
//! | `detector.rs` | finding failed members, performing what `membership.rs` demands |
//! | `membership.rs` | the state of each member: alive, suspected, quarantined, dead |
//! | `silence.rs` | for how long each node has been silent |
//! | `lease.rs` | this member's lease, by the rules in `quorum.rs` |

use super::detector::{DETECT_PERIOD, Detector, ProcessProbe};
use super::lease::Lease;
use super::link::{Link, Outgoing, PIECE_LEN};
use super::membership::Membership;
use super::onesided::{Path, watch};
use super::quorum::Quorum;
use super::request::OpenRequest;
use super::wire::{self, Header, Kind};
use crate::engine::shm::Shm;
use crate::engine::{Engine, Error, MESSAGE_CREDIT, MemberId, MemberSet, Message, Port};
use outlast_mpi_sys::{Comm, Completed, Request, Tester};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The tag of all frames. MPI keeps messages with equal tags in order, and so keeps operations in
/// order.
pub(super) const TAG: i32 = 1;

/// What a member tells about itself in its first frame.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) domain: String,
}

/// The state of a member's communication with remote members.
pub(super) struct Core {
    pub(super) comm: Comm,
    tester: Tester,
    completed: Vec<Completed>,
    /// By member: its posted receive; null for local and dead members.
    pub(super) receives: Vec<Request>,
    /// By member: the buffer of its receive. MPI writes into it, so it never moves and is never
    /// freed.
    receive_buffers: Vec<&'static mut [u8]>,
    pub(super) sends: Vec<Request>,
    /// The receivers and the frames of `sends`. MPI reads a frame until its request is complete.
    pub(super) sending: Vec<(MemberId, Vec<u8>)>,
    pub(super) links: Vec<Link>,
    pub(super) open_requests: HashMap<u64, OpenRequest>,
    pub(super) id_next: u64,
    pub(super) inbox: [VecDeque<Message>; Port::COUNT],
    pub(super) membership: Membership,
    pub(super) detector: Detector,
    /// Only if the kernel cannot be asked about every remote member.
    pub(super) quorum: Option<Quorum>,
    pub(super) lease: Arc<Lease>,
    /// By node: the member of it that has granted last.
    pub(super) granting: Vec<Option<MemberId>>,
    /// Replies that may be sent once this member has a lease.
    pub(super) held_replies: VecDeque<(MemberId, Outgoing)>,
    /// The quarantined members that were announced to the other nodes.
    pub(super) announced: MemberSet,
    /// Whether a frame or a death arrived that an activity in the middle of a call may wait for.
    pub(super) has_arrivals: bool,
    /// While this member leaves: the remote members that have not acknowledged it.
    pub(super) leave_pending: Option<MemberSet>,
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
        let hello = Header::new(Kind::Hello, 0, 0, [0; 3]);
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
                .map(|_| Link { credit: [MESSAGE_CREDIT; Port::COUNT], ..Link::default() })
                .collect(),
            open_requests: HashMap::new(),
            id_next: 1,
            inbox: Default::default(),
            membership,
            detector: Detector::new(probes, node.now()),
            quorum: needs_quorum.then(|| Quorum::new(node.me(), node_of)),
            lease: Arc::new(Lease::new(needs_quorum)),
            granting: vec![None; members],
            held_replies: VecDeque::new(),
            announced: MemberSet::new(),
            has_arrivals: false,
            leave_pending: None,
        };
        for member in remote {
            core.receive_from(member.index());
            let payload = myself.domain.clone().into_bytes();
            let queue = &mut core.links[member.index()].queue;
            queue.push_back(Outgoing::Small { header: hello, payload });
        }
        core
    }

    /// What a remote member has told about itself; `None` before its first frame.
    pub(super) fn peer(&self, member: MemberId) -> Option<&Peer> {
        self.links[member.index()].peer.as_ref()
    }

    /// Moves data without waiting; whether any data moved.
    pub(super) fn progress(&mut self, node: &Shm) -> bool {
        // A member that leaves has ended, but moves data until its leave is acknowledged.
        if node.is_forked() || (node.has_ended() && self.leave_pending.is_none()) {
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
        if !self.held_replies.is_empty() && self.lease.is_valid() {
            for (to, reply) in std::mem::take(&mut self.held_replies) {
                if !self.membership.is_dead(to) {
                    self.enqueue(node, to, reply);
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

    /// Handles the frames that have arrived.
    fn finish_receives(&mut self, node: &Shm) -> bool {
        let mut completed = std::mem::take(&mut self.completed);
        if self.tester.test_some(&mut self.receives, &mut completed).is_err() {
            self.detector.has_trouble = true;
        }
        let has_moved = !completed.is_empty();
        for Completed { index, result } in completed.drain(..) {
            match result {
                Ok(len) => {
                    // Taken out while the frame is handled. The next receive into it is posted
                    // afterwards.
                    let buffer = std::mem::take(&mut self.receive_buffers[index]);
                    self.detector.heard.insert(MemberId(index as u32));
                    self.handle(node, MemberId(index as u32), &buffer[..len]);
                    self.receive_buffers[index] = buffer;
                    self.receive_from(index);
                }
                // Whatever the error class is: the detector asks MPI which members have failed.
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

    /// Frees the frames that MPI has sent.
    fn finish_sends(&mut self) -> bool {
        if self.sends.is_empty() {
            return false;
        }
        let mut completed = std::mem::take(&mut self.completed);
        if self.tester.test_some(&mut self.sends, &mut completed).is_err() {
            self.detector.has_trouble = true;
        }
        let has_moved = !completed.is_empty();
        // From the last to the first: `swap_remove` then moves no entry that is still to come.
        completed.sort_by_key(|completed| std::cmp::Reverse(completed.index));
        for Completed { index, result } in completed.drain(..) {
            self.sends.swap_remove(index);
            let (to, frame) = self.sending.swap_remove(index);
            self.links[to.index()].in_flight -= 1;
            if result.is_err() {
                self.detector.has_trouble = true;
                // MPI does not say whether it still uses the bytes after an error: they are leaked.
                std::mem::forget(frame);
            }
        }
        self.completed = completed;
        has_moved
    }

    /// Fails all open requests: this member leaves, and serves no further request.
    pub(super) fn begin_leave(&mut self) {
        self.fail_requests(|_| true, || Error::Ended);
        self.leave_pending = Some(self.membership.living_remote().into_iter().collect());
    }

    /// Tells all remote members that this member has left. Its node has this in the death log
    /// already.
    pub(super) fn announce_leave(&mut self, node: &Shm) {
        for member in self.membership.living_remote() {
            self.enqueue_small(node, member, Header::new(Kind::Leave, 0, 0, [0; 3]));
        }
    }

    /// Whether all living remote members have acknowledged the leave.
    pub(super) fn is_leave_acknowledged(&self) -> bool {
        self.leave_pending.as_ref().is_none_or(MemberSet::is_empty)
    }

    /// Ends all communication, whether or not the leave was acknowledged.
    pub(super) fn finish_leave(&mut self) {
        self.leave_pending = None;
        for link in &mut self.links {
            link.queue.clear();
        }
        for request in &mut self.receives {
            // A receive that cannot be cancelled keeps its buffer, which is never freed anyway.
            let _ = request.cancel();
        }
    }

    /// Waits no longer for a member to acknowledge the leave: it has done so, or is dead.
    pub(super) fn record_leave_ack(&mut self, member: MemberId) {
        if let Some(leave_pending) = &mut self.leave_pending {
            *leave_pending = leave_pending.iter().filter(|&other| other != member).collect();
        }
    }
}

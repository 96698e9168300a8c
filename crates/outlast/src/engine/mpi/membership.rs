//! Who has failed, and what follows from it: suspicion, quarantine, lease, death; and leaving.

use super::core::Core;
use super::link::Outgoing;
use super::quorum::ASK_PERIOD;
use super::wire::{self, Deaths, Header, Kind};
use crate::engine::shm::Shm;
use crate::engine::{Engine, Error, MemberId, MemberSet, Time};
use outlast_mpi_sys::Request;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often the failed are asked for when no error gave a reason to.
pub(super) const DETECT_PERIOD: Duration = Duration::from_millis(10);

/// How often the kernel is asked who has ended, whatever MPI says.
pub(super) const WATCH_PERIOD: Duration = Duration::from_secs(1);

/// A node that answers nothing for this part of the time limit is taken for cut off: calls that wait for it can still go on
/// within their time.
const SILENCE_PART: u32 = 3;
const SILENCE_MIN: Duration = Duration::from_secs(2);

/// What the time between two looks counts at most.
pub(super) const LOOK_MAX: Duration = Duration::from_millis(100);

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

impl Core {
    /// Asks MPI, and now and then the kernel, who has failed; whether anyone is newly dead by that.
    pub(super) fn detect(&mut self, node: &Shm) -> bool {
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
    pub(super) fn turn_away(&mut self, node: &Shm) {
        if self.quorum.is_none() {
            return;
        }
        for member in self.suspected.iter() {
            let witness = &self.witnesses[member.index()];
            if matches!(witness, Witness::None) || witness.has_ended() {
                node.shun(member);
            }
        }
        let shunned: MemberSet = self
            .living_elsewhere(node)
            .into_iter()
            .filter(|&member| node.is_shunned(member))
            .collect();
        self.suspected.union_with(&shunned);
        if let Some(quorum) = &mut self.quorum {
            // From here on nobody of this node answers them: the time of mourning may run.
            quorum.accuse(node.me(), &shunned);
        }
    }

    /// Tells the others whom this node has turned away from, asks them whether they have turned away from this member, and
    /// counts what they have answered. Nothing to do for one that leaves.
    pub(super) fn keep_lease(&mut self, node: &Shm) {
        if self.quorum.is_none() || node.has_ended() {
            return;
        }
        self.count_answers(node);
        self.listen(node);
        let (now, epoch) = (node.now(), node.epoch().0);
        let (shunned, reached): (Vec<MemberId>, Vec<MemberId>) =
            self.living_elsewhere(node).into_iter().partition(|&member| node.is_shunned(member));
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
    pub(super) fn listen(&mut self, node: &Shm) {
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
    pub(super) fn count_answers(&mut self, node: &Shm) {
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
    pub(super) fn is_confirmed(&mut self, member: MemberId, now: Time) -> bool {
        match (&self.witnesses[member.index()], self.has_lease(now), &mut self.quorum) {
            (Witness::None, has_lease, Some(quorum)) => {
                quorum.may_bury(member, &self.dead, now) && has_lease
            }
            (witness, ..) => witness.has_ended(),
        }
    }

    /// Declares those dead who are suspected together with all their neighbours, and confirmed to be; whether there were
    /// any.
    pub(super) fn bury(&mut self, node: &Shm) -> bool {
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
    pub(super) fn learn(&mut self, node: &Shm, (dead, left): &Deaths) -> bool {
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

    /// Whether a member of another node is dead, as far as this part has acted on it.
    pub(super) fn is_dead(&mut self, node: &Shm, member: MemberId) -> bool {
        self.notice(node);
        self.dead.contains(member)
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
}

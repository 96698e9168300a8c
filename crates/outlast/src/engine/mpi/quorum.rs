//! When the suspicion that a member of another node has failed becomes its death, where no kernel can say so.
//!
//! MPI calls a member failed when its process has ended, but also when a connection was merely lost; and one that does not
//! answer may be out of reach: after a cut link both sides suspect each other. So a member is *buried* on a suspicion
//! alone only by a majority, and only when it can no longer be told Ok by anybody. What follows is written for one
//! member X that lives and is out of reach of others.
//!
//! # The rules
//! *Turning away.* A node that suspects X (`core.rs` says why it may) turns away from X, all its members at once (a bit in the
//! node's memory) and for ever: from then on none of them sends anything to X, an answer least of all. They tell the others
//! ([`accuse`](Quorum::accuse)). No node turns away from its own members, nor from one that its kernel knows to live.
//!
//! *Lease.* X asks all others again and again whether they have turned away, and who has not answers, for its whole node: others
//! of it may be stopped, which is no death. A majority counts for [`LEASE`] from the moment at which it was asked
//! ([`lease_until`](Quorum::lease_until)); X's neighbours, and X itself, always count. Without a lease X tells nobody of what is
//! in its memory: neither its own callers nor those who ask it.
//!
//! *Burial.* A member A buries X if it has a lease itself and a majority, A's node among it, turned away from X at least
//! [`MOURNING`] ago ([`may_bury`](Quorum::may_bury)). Since X's neighbours reach its memory, all of its node go together.
//!
//! *Majority* of what: of the *base*, that is all members but the first of A's log of whom every node is known to know
//! ([`settle`](Quorum::settle)): for whom each node has answered a question which told it, unless all of it are among them. One that
//! is known to be dead counts on no side. Of one half and the other, it is the one with the first member of the base.
//!
//! *Feuds.* Two nodes may have turned away from each other while others reach both: if a link between two of three is cut, or only
//! one of them found the other silent for too long. No majority says who is to go, and the two would wait for each other for
//! ever. If that lasts and nothing new comes to it, those stay of whom none is at odds with another one, as many members as
//! possible, and turn away from all the others ([`losers`](Quorum::losers)): if they are a majority that this member hears of. Whoever knows of the
//! same feuds chooses the same ones to stay; nodes that took sides in one feud after the other, each by itself, would in the end
//! be left without a majority everywhere. Why a node turns away from another does not matter to what follows.
//!
//! # Why a member that was buried has no lease
//! Let A begin to mourn X at time z, with the majority V and the base M − D. Let X have a lease at t, by the majority Q and the
//! base M − E, and t be the first moment at which one is buried and has a lease; so t > z + `MOURNING`. If some c is
//! in both V and Q, it turned away from X before z and has answered what X asked after t − `LEASE`, which is
//! after z (`MOURNING` is so much longer than `LEASE` that clocks may differ in speed): it has not. So V and Q have nobody in
//! common. But:
//!
//! - Q has none of D. X was not dead to A, so A took none of them out of the base before X's node had answered for it, and had
//!   it in its log. X counts with those whom it does not find there. So if it has counted with one of D, that was before z, by
//!   answers to what was asked before, and is over at t.
//! - V has none of E. Each node of V has answered X for E, unless it is in E, and that before it turned away; A heard of that
//!   later, and so knows of E. The exception: all of V are in E. Then everyone outside of E has answered X for all of
//!   them, whom nobody listens to any more that has; and has not been told by then that X is buried. So nobody outside of E ever is.
//!
//! So V and Q are parts of M without D and E. If D = E they are majorities of one set, and of two halves only one has the
//! first. Otherwise M without both is smaller than the mean of M − D and M − E, and half of each is too much for it.
//!
//! Nor can two members bury each other: the later one would have to have a lease.
//!
//! # What a survivor finds
//! Nothing here is in anybody's way who dies: what a node has turned away from is in its memory as long as one of its
//! members lives, and A's burial is a death like any other once it is in the log of A's node.
//!
//! # What is given up
//! If half of the base or more is out of reach at once, whole nodes of it, and without proof, the rest has no lease: its calls wait
//! for the job's time limit, and then the member ends itself. And if all of V have died, and whoever was told
//! that X is buried, X may have a lease again: what they acknowledged without X has died with them, as it may
//! where so many die, but then X does not know that anything is lost.

#[cfg(test)]
mod model;
mod partition;

use self::partition::at_peace;
use crate::engine::{MemberId, MemberSet, Time};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// How long a majority that has answered counts.
pub(super) const LEASE: Duration = Duration::from_secs(2);

/// How long one is mourned before it is buried.
pub(super) const MOURNING: Duration = Duration::from_millis(2500);

/// How often a member asks each other one, if that answers.
pub(super) const ASK_PERIOD: Duration = Duration::from_millis(500);

/// What one member knows of who is with whom.
pub(super) struct Quorum {
    node_of: Vec<usize>,
    /// The number of this member's own node.
    own: usize,
    base: MemberSet,
    /// By the number of a node: whom it has turned away from.
    accused: Vec<MemberSet>,
    /// By the number of a node: when this member asked the newest question that one of it has answered, and the epoch that its
    /// own node had then.
    answers: Vec<Option<(Time, u64)>>,
    /// Since when a majority is known to have turned away from a member.
    mourned: HashMap<MemberId, Time>,
    /// The nodes one of which has turned away from the other, the lower one first, and for how long nothing of that has changed.
    feuds: BTreeSet<(usize, usize)>,
    quiet: Duration,
}

/// Whether some members are a majority of others.
fn is_majority(base: &MemberSet, is_one: impl Fn(MemberId) -> bool) -> bool {
    let count = base.iter().filter(|&member| is_one(member)).count();
    2 * count > base.len() || (2 * count == base.len() && base.iter().next().is_some_and(is_one))
}

impl Quorum {
    /// What the member `me` knows at first: nothing.
    pub(super) fn new(me: MemberId, node_of: Vec<usize>) -> Quorum {
        let members = node_of.len();
        Quorum {
            own: node_of[me.index()],
            base: MemberSet::first(members),
            accused: vec![MemberSet::new(); members],
            answers: vec![None; members],
            mourned: HashMap::new(),
            feuds: BTreeSet::new(),
            quiet: Duration::ZERO,
            node_of,
        }
    }

    /// A member, maybe this one, says that its node has turned away from these.
    pub(super) fn accuse(&mut self, from: MemberId, whom: &MemberSet) {
        let node = self.node_of[from.index()];
        self.accused[node].union_with(whom);
    }

    /// A member has answered a question that was asked at this time, with this epoch: for its node.
    pub(super) fn answer(&mut self, from: MemberId, asked_at: Time, epoch: u64) {
        let answer = &mut self.answers[self.node_of[from.index()]];
        *answer = (*answer).max(Some((asked_at, epoch)));
    }

    /// The epoch up to which a member's node is known to know of the deaths.
    pub(super) fn known_by(&self, member: MemberId) -> u64 {
        self.answers[self.node_of[member.index()]].map_or(0, |(_, epoch)| epoch)
    }

    fn others(&self) -> impl Iterator<Item = MemberId> + '_ {
        (0..self.node_of.len() as u32)
            .map(MemberId)
            .filter(|other| self.node_of[other.index()] != self.own)
    }

    /// Takes those out of the base of whom every node knows that they are dead, but those who are among them. `death_order` are the
    /// dead of this member's node, in the order in which they entered its log.
    pub(super) fn settle(&mut self, death_order: &[MemberId]) {
        let mut settled = death_order.len();
        let gone = loop {
            let gone: MemberSet = death_order[..settled].iter().copied().collect();
            let asked = self.others().filter(|&other| !gone.contains(other));
            let known = asked.map(|other| self.known_by(other)).min().unwrap_or(u64::MAX);
            if known >= settled as u64 {
                break gone;
            }
            settled = known as usize;
        };
        self.base = self.base.iter().filter(|&member| !gone.contains(member)).collect();
    }

    /// Until when this member has a lease. `dead` are those in the log of its node, looked at after the clock: one of them
    /// never counts from a moment at which it was in the log.
    pub(super) fn lease_until(&self, dead: &MemberSet, now: Time) -> Time {
        let is_neighbour = |member: MemberId| self.node_of[member.index()] == self.own;
        let asked_at = |member: MemberId| match is_neighbour(member) {
            true => Some(now),
            false => self.answers[self.node_of[member.index()]].map(|(asked_at, _)| asked_at),
        };
        let living = self.base.iter().filter(|&member| !dead.contains(member));
        let mut asked: Vec<(Time, MemberId)> =
            living.filter_map(|member| Some((asked_at(member)?, member))).collect();
        asked.sort_unstable_by(|one, other| other.cmp(one));
        // As many of those who were asked last as are a majority.
        let first = self.base.iter().next();
        let mut has_first = false;
        for (count, &(from, member)) in (1..).zip(&asked) {
            has_first |= Some(member) == first;
            if 2 * count > self.base.len() || (2 * count == self.base.len() && has_first) {
                return from.after(LEASE);
            }
        }
        Time(0)
    }

    /// Whom this member's node is to turn away from because they and others have turned away from each other, once nothing of that
    /// has changed for `patience`: nobody, unless those who are to stay are a majority of which this member has a fresh answer.
    /// To be asked again and again; `elapsed` is the time since it last was, as far as this member was awake.
    pub(super) fn losers(
        &mut self,
        dead: &MemberSet,
        now: Time,
        elapsed: Duration,
        patience: Duration,
    ) -> MemberSet {
        if self.accused.iter().all(MemberSet::is_empty) {
            return MemberSet::new();
        }
        let mut living: BTreeMap<usize, usize> = BTreeMap::new();
        for (index, &node) in self.node_of.iter().enumerate() {
            *living.entry(node).or_default() += usize::from(!dead.contains(MemberId(index as u32)));
        }
        living.retain(|_, members| *members > 0);
        let mut feuds = BTreeSet::new();
        for &one in living.keys() {
            for whom in self.accused[one].iter().filter(|&whom| !dead.contains(whom)) {
                let other = self.node_of[whom.index()];
                feuds.insert((one.min(other), one.max(other)));
            }
        }
        self.quiet =
            if feuds == self.feuds { self.quiet.saturating_add(elapsed) } else { Duration::ZERO };
        self.feuds = feuds;
        if self.feuds.is_empty() || self.quiet < patience {
            return MemberSet::new();
        }
        let is_fresh = |member: MemberId| {
            let node = self.node_of[member.index()];
            let asked_at = self.answers[node].map(|(asked_at, _)| asked_at);
            !dead.contains(member)
                && (node == self.own
                    || asked_at.is_some_and(|asked_at| now < asked_at.after(LEASE)))
        };
        // Looked at first, since it is the cheaper one: those who were cut off have the most feuds.
        if !is_majority(&self.base, is_fresh) {
            return MemberSet::new();
        }
        let nodes = at_peace(living, &self.feuds);
        let stays = |member: MemberId| nodes.contains_key(&self.node_of[member.index()]);
        if !nodes.contains_key(&self.own)
            || !is_majority(&self.base, |member| stays(member) && is_fresh(member))
        {
            return MemberSet::new();
        }
        self.others().filter(|&member| !stays(member) && !dead.contains(member)).collect()
    }

    /// Whether a member of another node may be buried now; if this member has a lease, and together with all of the
    /// other's neighbours. To be asked again and again: it begins to mourn, and not before its own node has turned away.
    pub(super) fn may_bury(&mut self, victim: MemberId, dead: &MemberSet, now: Time) -> bool {
        let has_turned = |member: MemberId| {
            !dead.contains(member) && self.accused[self.node_of[member.index()]].contains(victim)
        };
        if !self.accused[self.own].contains(victim) || !is_majority(&self.base, has_turned) {
            self.mourned.remove(&victim);
            return false;
        }
        let since = *self.mourned.entry(victim).or_insert(now);
        now.since(since) >= MOURNING
    }
}

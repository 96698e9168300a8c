//! The rules by which a majority declares a remote member dead where no kernel can prove its death,
//! and by which a member that was cut off stops serving before that.
//!
//! # The problem
//! MPI calls a member failed when its process has ended, and also when its connection is lost. A
//! member that does not answer may be alive behind a cut link: then both sides suspect each other.
//! So suspicion alone proves nothing. If both sides acted on it, both would go on with their own
//! copy of the data.
//!
//! The answer is votes plus a lease. A node votes against a member by putting it in *quarantine*,
//! and never takes the vote back. There is no ballot: each node announces its quarantines, and
//! every member counts them for itself. A member with a lease that has known such votes of a
//! majority for 2.5 s declares the quarantined member dead. If the quarantined member lives, its
//! own lease must have run out by then.
//!
//! A member without a lease executes operations, but holds back what they *reveal*, that is, tell a
//! caller, about the memory of its node: results of its own operations on this memory, and replies
//! to requests of remote members. Results of operations on remote members are not held back, since
//! the target had a lease when it replied. Messages are delivered only to a member with a lease. So
//! a member that is declared dead while it lives reveals no data that the majority may have
//! replaced, and receives no message on which an agreement could rest.
//!
//! These rules are for remote members under other kernels. Where the kernel of this member can be
//! asked about a remote member, its word is proof without a lease and without a wait, also in a job
//! under several kernels (`membership.rs`).
//!
//! # What each member counts, and what a node shares
//! Each member has a lease and a [`Quorum`] of its own, with the grants that it has got, its voting
//! base, its eviction waits, and what it knows of quarantines and cut links. The quarantine bits
//! and the death log are in the memory of a node, and hold for all its members.
//!
//! # The rules
//! X is any member. The rules have to be safe if X lives behind a cut link, and to make progress if
//! X is dead. A is a member of another node that is to decide whether X is dead.
//!
//! 1. *Quarantine.* When a member suspects X (`detector.rs`), its node quarantines X. This holds
//!    for all members of the node at once, by the *quarantine bit* of X in the node's memory, and
//!    for ever, also if X becomes reachable again: from then on no member of the node sends
//!    anything to X, above all no lease grant. The node announces the quarantine to the other nodes
//!    ([`record_quarantine`](Quorum::record_quarantine)). A node never quarantines its own members,
//!    nor a member whose process its kernel knows to live. A silence of a third of the time limit,
//!    at least 2 s, is *too long*: a member then suspects all members of the silent node. It counts
//!    the silence only while it has a lease itself. Without a lease it may itself be cut off. Since
//!    a quarantine is for ever, an outage of the whole network would otherwise end every member
//!    (`silence.rs`).
//!
//! 2. *Lease.* X keeps asking every remote node for a grant, and sends the request to a member that
//!    its own node has not quarantined: every [`LEASE_REQUEST_PERIOD`], and earlier if a death was
//!    not acknowledged yet, with at most a single open request to a member. A single member of each
//!    node is asked, and all its members once that member has not answered for a period. A member
//!    whose node has not quarantined X grants, on behalf of its whole node. A single answer is
//!    enough because the quarantine bit belongs to the node. And it has to be enough, because the
//!    other members of that node may be stopped, which is no death. A grant counts for [`LEASE`]
//!    from the moment at which X *sent* the request, on a clock that goes on while the host sleeps
//!    (`CLOCK_BOOTTIME`). X has a lease while the members of granting nodes are a majority
//!    ([`lease_until`](Quorum::lease_until)). X and its node mates count without a grant. So a node
//!    that is a majority by itself always has a lease: of two hosts with 8 and 4 members the first
//!    always goes on, and of two with 6 each the host with member 0. X starts without a lease, and
//!    without a lease X reveals nothing of the memory of its node: neither to its own callers nor
//!    to remote requesters.
//!
//! 3. *Eviction.* A may declare X dead if A has a lease itself, and a majority that includes A's
//!    node has had X in quarantine for [`EVICTION_WAIT`], as far as A knows
//!    ([`may_declare_dead`](Quorum::may_declare_dead)). The eviction wait runs from the first check
//!    of A that finds the majority. If a check does not find it any more, the wait is given up, and
//!    a later majority starts a new wait. The node mates of X map its memory. So A declares X dead
//!    only if it may declare each node mate of X dead too that is not dead yet. If it may not, it
//!    asks them to kill X (`membership.rs`).
//!
//! 4. *Voting base.* Each member counts its majorities, for its lease and for evictions, over a
//!    voting base of its own: all members, except the longest prefix of its node's death log that
//!    every *remaining node* has acknowledged to it
//!    ([`shrink_voting_base`](Quorum::shrink_voting_base)). A remaining node is another node with a
//!    member outside of the prefix. A node *acknowledges* the deaths of a prefix by granting a
//!    lease request that was sent when these deaths were in the log of the sender's node. The
//!    request, or an earlier frame on its link, carries these deaths, and the receiver enters them
//!    into the log of its own node before it grants. A request has the epoch of the sender's node,
//!    which is the length of its log, and the grant repeats it. So a grant acknowledges as many
//!    deaths from the beginning of the log: that is why a prefix is removed. A node with no member
//!    outside of the prefix need not acknowledge it, and the member's own node need not either,
//!    since it shares the log.
//!    - The base shrinks, so that a job can lose more than half of its hosts one after the other.
//!    - It shrinks only after all remaining nodes have acknowledged the deaths, so that two sides
//!      which know of different deaths never both have a majority. The proof below rests on this.
//!    - A member that is in the death log and still in the base gives no vote, for a lease or for
//!      an eviction, and still counts in the number of which a majority is needed.
//!    - More than half of the base is a majority. So is exactly half, if the lowest member of the
//!      base is among those that vote. If this member is dead and still in the base, neither of two
//!      halves is a majority.
//!
//! 5. *Partial partitions.* Two nodes with living members are a *pair* if either has quarantined a
//!    member of the other that is not dead. As a rule the link between the two nodes is cut, while
//!    further nodes reach both. (The code does not check that there are further nodes.) Rule 3 does
//!    not say which of the two nodes has to go, and each would wait for the other for ever.
//!    - If the pairs that a member knows of stay unchanged for as long as a silence that is too
//!      long (rule 1), it computes the group of nodes without a pair inside that has the most
//!      living members, and of equal groups the group with the lowest nodes (`partition.rs`). Nodes
//!      with equal knowledge of the pairs choose equal groups. If each node took sides pair by pair
//!      instead, the nodes could end up without a majority anywhere. The group is exact while up to
//!      16 nodes are in pairs. With more nodes it is found greedily, and may be smaller.
//!    - A member acts on it if its own node is in the group, and the nodes of the group from which
//!      it has a grant that still counts (rule 2) are a majority, its own node included. Then it
//!      suspects all members outside of the group ([`members_to_evict`](Quorum::members_to_evict)),
//!      so that the nodes of the group quarantine them, and rule 3 evicts them.
//!    - A member outside of the group is killed, and not quarantined, if a node of the group runs
//!      under its kernel: no node quarantines a member that its kernel knows to live.
//!    - If the largest group is no majority, no node is evicted. Five equal nodes whose cut links
//!      form a ring are an example: the largest group has two nodes. Then calls over the cut links
//!      end with `Timeout`, and the job goes on otherwise as far as members have leases.
//!
//!    The proof below does not depend on the reason for which a node has quarantined another.
//!
//! # Why a member that was declared dead has no lease, or one that does no harm
//! Let M be the set of all members. Let A declare X dead, with an eviction wait that began at time
//! z, when A counted the quarantining majority V of its voting base M − D: D are the deaths that A
//! had removed from its base by then. Suppose that X has a lease at a later time t, by the granting
//! majority Q of its own voting base M − E: E are the deaths that X has removed from its base by t.
//! A declared X dead at z + `EVICTION_WAIT` or later, and t is later than that. X sent every
//! request that counts in Q after t − `LEASE`, and it read the log of its node for this lease after
//! t − `LEASE` too. Both were after z: `EVICTION_WAIT` is longer than `LEASE` by enough of a margin
//! for clocks that differ in speed.
//!
//! *V and Q have no member in common.* Suppose that c is in both. It is not of X's node, since a
//! node does not quarantine its own members. So the node of c quarantined X before z, and granted a
//! request that X sent after z. But a node that has quarantined X grants it nothing.
//!
//! *Q contains no member of D.* A removed D from its voting base only after X's node, which had the
//! member X outside of D, had acknowledged these deaths. So they were in the log of X's node before
//! z, and X found them there when it read this log. X does not count members that it finds in the
//! log.
//!
//! *V contains no member of E*, if at least one node of V, say N, has a member outside of E. X
//! removed E from its voting base only after N had acknowledged E. An acknowledgement is a grant,
//! so N gave it before it quarantined X, and E was in the log of N by then. If N is A's own node, A
//! read this log after it had found the quarantine bit, and before it counted the quarantine.
//! Otherwise A learned of the quarantine from a frame of N, and this frame or an earlier frame on
//! its link carried the deaths E: A merged them before it counted the quarantine. A does not count
//! members that it knows to be dead, so it counted no member of E in V.
//!
//! *Contradiction.* V and Q are then disjoint subsets of M − D − E, V at least half of M − D, and Q
//! at least half of M − E. If D = E, both are majorities of a single set, and only the half with
//! the lowest member is a majority. If D ≠ E, then M − D − E has fewer members than the mean of M −
//! D and M − E, so half of each does not fit into it.
//!
//! *The remaining case* is that every node of V lies wholly in E. A's node is a node of V, so A is
//! in E too. Here X may indeed have a lease. All members of V have died or were declared dead, and
//! X's lease does no harm:
//!
//! - No node with a member outside of E ever learns that X was declared dead. X's own node has E in
//!   its log, and drops the frames of members of E. Suppose that other nodes with a member outside
//!   of E are told, and that P is the first of these nodes.
//!   - The frame that tells P comes from a member of E. Either this member has declared X dead
//!     itself, and the proof applies to it as to A; or it was told before P, and then its node lies
//!     wholly in E.
//!   - P has acknowledged E to X, since P has a member outside of E. From that acknowledgement on E
//!     is in the log of P, and P drops the frames of members of E.
//!   - Before that acknowledgement P cannot have been told either: X would have been in the log of
//!     P, and P would have dropped X's request and acknowledged nothing.
//!   - A member of P may be stopped between the check of a frame's sender and the entry of the
//!     deaths that the frame reports. So the log itself refuses these deaths once the sender stands
//!     in it (`death_log.rs` of the shm engine).
//! - A member of E that still lives was declared dead before t. If t is the first moment in the job
//!   at which a member that was declared dead has a lease, the member of E has had no lease since
//!   its declared death, and has revealed nothing. From t on the nodes outside of E grant it
//!   nothing, since it is in their logs. For later moments in the remaining case there is no proof;
//!   the tests run random schedules of a model (`model.rs`).
//!
//! *Two members cannot declare each other dead.* Let A declare X dead by a majority, and X declare
//! A dead later. Then X has a lease at that time. By the proof this is the remaining case: A is in
//! E, and so in the log of X's node already. Then X has nothing to declare about A.
//!
//! # What happens on a death
//! No rule waits for a member that dies. The quarantine bits stay in the memory of their node as
//! long as any member of the node lives. Once A has entered X into the log of its node, A is no
//! longer needed: its node mates act on the entry and report it.
//!
//! # Leaving
//! A member that has left gives no vote, and counts in the total until all remaining nodes have
//! acknowledged that it left. So if a node had become unreachable just before, the leaver's vote
//! might be missing to evict it. Therefore a member in a job with leases that has a lease itself
//! delays its leave, at most for the time limit, until every remote node is dead or has granted a
//! request of the last two periods ([`is_answered_by_all`](Quorum::is_answered_by_all)). A node
//! that has never granted is still joining, and is not waited for.
//!
//! # What is given up
//! - Suppose that whole nodes become unreachable before the loss of earlier ones was acknowledged,
//!   for example all at once; that no kernel can prove these deaths; and that the remaining members
//!   are no majority of the voting base (less than half, or exactly half and its lowest member is
//!   lost or dead). Then the remaining members have no lease. A call on the memory of their node
//!   waits until its member has been without a lease for the time limit of the job, and then ends
//!   the process. A call on an unreachable member ends with `Timeout`.
//! - If a node has quarantined all living members of another node, it asks that node for no grants,
//!   and so gets no acknowledgements of further deaths. Until the quarantined node is dead too,
//!   these deaths stay in the voting base and make a majority harder to reach. The same holds for a
//!   node that does not answer, because it is stopped or still joining, until it answers or is
//!   dead.
//! - If the largest group of rule 5 is no majority, no node is evicted (rule 5).
//! - If all members of V die or are declared dead, and likewise all members that were told of X's
//!   declared death, X may get a lease again: this is the remaining case of the proof. The values
//!   that these members reported as written, without X, have died with them, which is allowed when
//!   so many members die. But X does not know that anything is lost.

#[cfg(test)]
mod model;
mod partition;

use self::partition::max_weight_independent_set;
use crate::engine::{MemberId, MemberSet, Time};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// How long a grant counts, from the moment at which it was requested.
pub(super) const LEASE: Duration = Duration::from_secs(2);

/// How long a member must have known that a majority has another member in quarantine, before it
/// declares that member dead.
pub(super) const EVICTION_WAIT: Duration = Duration::from_millis(2500);

/// How often a member asks each remote node for a grant. A request to a member that has not
/// answered the request before is not sent.
pub(super) const LEASE_REQUEST_PERIOD: Duration = Duration::from_millis(500);

/// What this member knows about grants and quarantines.
pub(super) struct Quorum {
    /// By member: the number of its node, which is the lowest member of the node.
    node_of: Vec<usize>,
    own_node: usize,
    voting_base: MemberSet,
    /// By node: the members that it has quarantined.
    quarantined_by: Vec<MemberSet>,
    /// By node: when this member sent the newest request that a member of the node has granted, and
    /// the epoch that this member's node had at that time.
    grants: Vec<Option<(Time, u64)>>,
    /// Since when a majority is known to have the member in quarantine.
    eviction_waits: HashMap<MemberId, Time>,
    /// The pairs of rule 5, the lower node first.
    pairs: BTreeSet<(usize, usize)>,
    /// For how long `pairs` has not changed.
    unchanged_for: Duration,
}

/// Whether the members for which `votes` is true are a majority of the voting base.
fn is_majority(voting_base: &MemberSet, votes: impl Fn(MemberId) -> bool) -> bool {
    let count = voting_base.iter().filter(|&member| votes(member)).count();
    2 * count > voting_base.len()
        || (2 * count == voting_base.len() && voting_base.iter().next().is_some_and(votes))
}

impl Quorum {
    /// At first there are no grants and no quarantines, and all members vote.
    pub(super) fn new(me: MemberId, node_of: Vec<usize>) -> Quorum {
        let members = node_of.len();
        Quorum {
            own_node: node_of[me.index()],
            voting_base: MemberSet::first(members),
            quarantined_by: vec![MemberSet::new(); members],
            grants: vec![None; members],
            eviction_waits: HashMap::new(),
            pairs: BTreeSet::new(),
            unchanged_for: Duration::ZERO,
            node_of,
        }
    }

    /// Records that the node of `from`, which may be this member's own, has quarantined members.
    pub(super) fn record_quarantine(&mut self, from: MemberId, members: &MemberSet) {
        let node = self.node_of[from.index()];
        self.quarantined_by[node].union_with(members);
    }

    /// Records that `from` has granted, on behalf of its node, the request that this member sent at
    /// `requested_at` when its node had the given epoch.
    pub(super) fn record_grant(&mut self, from: MemberId, requested_at: Time, epoch: u64) {
        let grant = &mut self.grants[self.node_of[from.index()]];
        *grant = (*grant).max(Some((requested_at, epoch)));
    }

    /// The epoch of this member's node up to which the node of `member` has acknowledged its
    /// deaths.
    pub(super) fn acknowledged_epoch(&self, member: MemberId) -> u64 {
        self.grants[self.node_of[member.index()]].map_or(0, |(_, epoch)| epoch)
    }

    /// Whether all remote nodes with a member that is not in `dead` have granted a request of the
    /// last two periods. A node that has never granted is still joining, and does not count.
    pub(super) fn is_answered_by_all(&self, dead: &MemberSet, now: Time) -> bool {
        let is_recent =
            |(requested_at, _): (Time, u64)| now < requested_at.after(2 * LEASE_REQUEST_PERIOD);
        let mut living = self.remote_members().filter(|&member| !dead.contains(member));
        living.all(|member| self.grants[self.node_of[member.index()]].is_none_or(is_recent))
    }

    fn remote_members(&self) -> impl Iterator<Item = MemberId> + '_ {
        (0..self.node_of.len() as u32)
            .map(MemberId)
            .filter(|member| self.node_of[member.index()] != self.own_node)
    }

    /// Removes the longest prefix of `death_order` from the voting base that every node with a
    /// member outside of the prefix has acknowledged. `death_order` has the dead of this member's
    /// node in the order in which they entered its log.
    pub(super) fn shrink_voting_base(&mut self, death_order: &[MemberId]) {
        let mut len = death_order.len();
        let prefix = loop {
            let prefix: MemberSet = death_order[..len].iter().copied().collect();
            let remaining = self.remote_members().filter(|&member| !prefix.contains(member));
            let acknowledged =
                remaining.map(|member| self.acknowledged_epoch(member)).min().unwrap_or(u64::MAX);
            if acknowledged >= len as u64 {
                break prefix;
            }
            len = acknowledged as usize;
        };
        self.voting_base =
            self.voting_base.iter().filter(|&member| !prefix.contains(member)).collect();
    }

    /// Until when this member has a lease. `dead` is the log of its node. The caller reads `now`
    /// first and the log second, so that a member that was in the log at `now` does not count.
    pub(super) fn lease_until(&self, dead: &MemberSet, now: Time) -> Time {
        let is_local = |member: MemberId| self.node_of[member.index()] == self.own_node;
        let requested_at = |member: MemberId| match is_local(member) {
            true => Some(now),
            false => {
                self.grants[self.node_of[member.index()]].map(|(requested_at, _)| requested_at)
            }
        };
        let living = self.voting_base.iter().filter(|&member| !dead.contains(member));
        let mut granted: Vec<(Time, MemberId)> =
            living.filter_map(|member| Some((requested_at(member)?, member))).collect();
        granted.sort_unstable_by(|one, other| other.cmp(one));
        // The shortest run of the newest grants that is a majority; its oldest grant ends first.
        let first = self.voting_base.iter().next();
        let mut has_first = false;
        for (count, &(requested_at, member)) in (1..).zip(&granted) {
            has_first |= Some(member) == first;
            if 2 * count > self.voting_base.len()
                || (2 * count == self.voting_base.len() && has_first)
            {
                return requested_at.after(LEASE);
            }
        }
        Time(0)
    }

    /// The members that this member is to suspect, so that its node quarantines them, because the
    /// pairs of rule 5 have not changed for `unchanged_min`. Empty unless this member's node stays,
    /// and the nodes that stay and from which this member has grants that still count are a
    /// majority.
    ///
    /// To be called periodically. `elapsed` is the time since the last call, without time in which
    /// this member was stopped.
    pub(super) fn members_to_evict(
        &mut self,
        dead: &MemberSet,
        now: Time,
        elapsed: Duration,
        unchanged_min: Duration,
    ) -> MemberSet {
        if self.quarantined_by.iter().all(MemberSet::is_empty) {
            return MemberSet::new();
        }
        // The number of living members of each node.
        let mut living: BTreeMap<usize, usize> = BTreeMap::new();
        for (index, &node) in self.node_of.iter().enumerate() {
            *living.entry(node).or_default() += usize::from(!dead.contains(MemberId(index as u32)));
        }
        living.retain(|_, members| *members > 0);
        let mut pairs = BTreeSet::new();
        for &node in living.keys() {
            for member in self.quarantined_by[node].iter().filter(|&member| !dead.contains(member))
            {
                let other = self.node_of[member.index()];
                pairs.insert((node.min(other), node.max(other)));
            }
        }
        self.unchanged_for = if pairs == self.pairs {
            self.unchanged_for.saturating_add(elapsed)
        } else {
            Duration::ZERO
        };
        self.pairs = pairs;
        if self.pairs.is_empty() || self.unchanged_for < unchanged_min {
            return MemberSet::new();
        }
        let is_fresh = |member: MemberId| {
            let node = self.node_of[member.index()];
            let requested_at = self.grants[node].map(|(requested_at, _)| requested_at);
            !dead.contains(member)
                && (node == self.own_node
                    || requested_at.is_some_and(|requested_at| now < requested_at.after(LEASE)))
        };
        // Checked first because it is cheaper: nodes that are cut off know of the most pairs.
        if !is_majority(&self.voting_base, is_fresh) {
            return MemberSet::new();
        }
        let nodes = max_weight_independent_set(living, &self.pairs);
        let stays = |member: MemberId| nodes.contains_key(&self.node_of[member.index()]);
        if !nodes.contains_key(&self.own_node)
            || !is_majority(&self.voting_base, |member| stays(member) && is_fresh(member))
        {
            return MemberSet::new();
        }
        self.remote_members().filter(|&member| !stays(member) && !dead.contains(member)).collect()
    }

    /// Whether a majority has had a remote member in quarantine for [`EVICTION_WAIT`]. The caller
    /// may then declare it dead, if the caller has a lease and each node mate of `victim` is dead
    /// or may be declared dead too.
    ///
    /// To be called periodically: the first call that finds the majority starts the eviction wait.
    /// It does not start before this member's own node has the member in quarantine.
    pub(super) fn may_declare_dead(
        &mut self,
        victim: MemberId,
        dead: &MemberSet,
        now: Time,
    ) -> bool {
        let has_quarantined = |member: MemberId| {
            !dead.contains(member)
                && self.quarantined_by[self.node_of[member.index()]].contains(victim)
        };
        if !self.quarantined_by[self.own_node].contains(victim)
            || !is_majority(&self.voting_base, has_quarantined)
        {
            self.eviction_waits.remove(&victim);
            return false;
        }
        let since = *self.eviction_waits.entry(victim).or_insert(now);
        now.since(since) >= EVICTION_WAIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn set(members: &[u32]) -> MemberSet {
        members.iter().copied().map(MemberId).collect()
    }

    /// As few members as possible are evicted. The members that stay agree on the evicted members,
    /// and these evict no member.
    #[test]
    fn a_partial_partition_evicts_the_fewest_members() {
        let evicted = |quarantines: &[(u32, u32)]| {
            let evicted_by = |me: u32| {
                let mut quorum = Quorum::new(MemberId(me), vec![0, 1, 2, 3, 4]);
                for member in (0..5).map(MemberId) {
                    quorum.record_grant(member, Time(SECOND), 0);
                }
                for &(by, member) in quarantines {
                    quorum.record_quarantine(MemberId(by), &set(&[member]));
                }
                let second = Duration::from_secs(1);
                let mut members_to_evict =
                    || quorum.members_to_evict(&MemberSet::new(), Time(SECOND), second, 3 * second);
                let is_waiting =
                    (0..3).map(|_| members_to_evict()).all(|evicted| evicted.is_empty());
                assert!(is_waiting, "not yet");
                members_to_evict()
            };
            let all: Vec<MemberSet> = (0..5).map(evicted_by).collect();
            let evicted =
                all.iter().find(|evicted| !evicted.is_empty()).expect("an eviction").clone();
            for (me, found) in all.into_iter().enumerate() {
                let stays = !evicted.contains(MemberId(me as u32));
                let expected = if stays { evicted.clone() } else { MemberSet::new() };
                assert_eq!(found, expected, "member {me} after {quarantines:?}");
            }
            evicted.iter().map(|member| member.0).collect::<Vec<_>>()
        };
        assert_eq!(evicted(&[(1, 0)]), [1]);
        assert_eq!(evicted(&[(1, 0), (2, 0)]), [0]);
        assert_eq!(evicted(&[(0, 4), (1, 4), (4, 1)]), [4]);
        assert_eq!(evicted(&[(0, 3), (1, 2), (2, 1)]), [2, 3]);
    }

    /// Time in which a member was stopped does not count. A member without fresh grants of a
    /// majority evicts no member: it may have lost the nodes that are to stay.
    #[test]
    fn stopped_or_isolated_members_evict_no_member() {
        let mut quorum = Quorum::new(MemberId(0), vec![0, 1, 2]);
        let (dead, unchanged_min) = (MemberSet::new(), Duration::from_secs(3));
        quorum.record_quarantine(MemberId(1), &set(&[2]));
        quorum.record_quarantine(MemberId(2), &set(&[1]));
        let mut evicted = |at: u64, elapsed: u64, granting: &[u32]| {
            for &member in granting {
                quorum.record_grant(MemberId(member), Time(at * SECOND), 0);
            }
            let elapsed = Duration::from_secs(elapsed);
            let evicted = quorum.members_to_evict(&dead, Time(at * SECOND), elapsed, unchanged_min);
            evicted.iter().map(|member| member.0).collect::<Vec<_>>()
        };
        assert_eq!([evicted(1, 0, &[1, 2]), evicted(2, 1, &[1, 2])], [[0; 0]; 2]);
        assert_eq!(evicted(30, 1, &[1, 2]), [0; 0], "stopped");
        assert_eq!(evicted(33, 1, &[2]), [0; 0], "no grant of the node that is to stay");
        assert_eq!(evicted(34, 1, &[1]), [2]);
    }

    #[test]
    fn a_death_leaves_the_voting_base_once_all_nodes_acknowledged_it() {
        let mut quorum = Quorum::new(MemberId(0), vec![0, 1, 2, 3]);
        let death_order = [MemberId(3)];
        let mut base_len = |grants: &[(u32, u64)]| {
            for &(from, epoch) in grants {
                quorum.record_grant(MemberId(from), Time(1), epoch);
            }
            quorum.shrink_voting_base(&death_order);
            quorum.voting_base.len()
        };
        assert_eq!(base_len(&[]), 4);
        assert_eq!(base_len(&[(1, 1), (2, 0)]), 4);
        assert_eq!(base_len(&[(2, 1)]), 3);
    }

    #[test]
    fn a_node_has_answered_if_it_granted_a_late_request() {
        let mut quorum = Quorum::new(MemberId(0), vec![0, 1, 1, 3]);
        let mut is_answered = |grants: &[(u32, u64)], dead: &[u32], at: u64| {
            for &(from, at) in grants {
                quorum.record_grant(MemberId(from), Time(at * SECOND), 0);
            }
            quorum.is_answered_by_all(&set(dead), Time(at * SECOND))
        };
        assert!(is_answered(&[(1, 10)], &[], 10), "the node of member 3 is still joining");
        assert!(!is_answered(&[(3, 12)], &[], 12), "the node of members 1 and 2 is silent");
        assert!(is_answered(&[], &[1, 2], 12));
    }

    /// While local members may still grant the victim a lease, the eviction wait does not run.
    #[test]
    fn eviction_wait_starts_after_the_quarantine_by_the_own_node() {
        let mut quorum = Quorum::new(MemberId(0), vec![0, 1, 2]);
        let (victim, dead) = (MemberId(2), MemberSet::new());
        let mut may_declare_dead = |by: u32, at_ms: u64| {
            quorum.record_quarantine(MemberId(by), &set(&[2]));
            quorum.may_declare_dead(victim, &dead, Time(at_ms * 1_000_000))
        };
        let early = [(1, 0), (1, 9000), (0, 10_000), (0, 12_499)];
        assert_eq!(early.map(|(by, at_ms)| may_declare_dead(by, at_ms)), [false; 4]);
        assert!(may_declare_dead(0, 12_500));
    }
}

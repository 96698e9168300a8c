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

use crate::engine::{MemberId, MemberSet, Time};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// How long a majority that has answered counts.
pub(super) const LEASE: Duration = Duration::from_secs(2);

/// How long one is mourned before it is buried.
pub(super) const MOURNING: Duration = Duration::from_millis(2500);

/// How often a member asks each other one, if that answers.
pub(super) const ASK_PERIOD: Duration = Duration::from_millis(500);

/// Of how many nodes that are at odds with others the best choice of who stays is looked for, which takes up to 0.2 ms for these.
const FEUDS_MAX: usize = 16;

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

/// Of nodes with their numbers of members those that stay if none of them is to be at odds with another one: as many members as
/// possible, and of several such choices the lowest nodes; or about as many, where very many are at odds. All who know of the same
/// feuds choose the same.
fn at_peace(
    nodes: BTreeMap<usize, usize>,
    feuds: &BTreeSet<(usize, usize)>,
) -> BTreeMap<usize, usize> {
    let mut opponents: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for &(one, other) in
        feuds.iter().filter(|(one, other)| nodes.contains_key(one) && nodes.contains_key(other))
    {
        opponents.entry(one).or_default().push(other);
        opponents.entry(other).or_default().push(one);
    }
    let odds = |node: &usize| opponents[node].iter().map(|other| nodes[other]).sum::<usize>();
    if opponents.len() > FEUDS_MAX {
        // Those who are at odds with the fewest first.
        let mut order: Vec<usize> = opponents.keys().copied().collect();
        order.sort_by_cached_key(odds);
        let mut gone: BTreeSet<usize> = BTreeSet::new();
        for node in order {
            if !gone.contains(&node) {
                gone.extend(&opponents[&node]);
            }
        }
        return nodes.into_iter().filter(|(node, _)| !gone.contains(node)).collect();
    }
    // At odds with the most members, and of several the last one.
    let Some(worst) = opponents.keys().max_by_key(|&node| odds(node)) else { return nodes };
    let mut without = nodes.clone();
    without.remove(worst);
    let without = at_peace(without, feuds);
    // With one opponent it has to go if that one has no other, or more members than all of its opponents. Else it may be that
    // these are fewer, or lower.
    if let [other] = opponents[worst][..]
        && (opponents[&other].len() == 1 || odds(worst) > odds(&other))
    {
        return without;
    }
    let mut with = nodes;
    with.retain(|node, _| !opponents[worst].contains(node));
    let with = at_peace(with, feuds);
    let members = |nodes: &BTreeMap<usize, usize>| nodes.values().sum::<usize>();
    let is_better =
        members(&with).cmp(&members(&without)).then_with(|| without.keys().cmp(with.keys()));
    if is_better.is_gt() { with } else { without }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const SECOND: u64 = 1_000_000_000;

    #[derive(Clone, Debug)]
    enum Frame {
        Ask(Time, u64),
        Answer(Time, u64),
        Accuse(MemberSet),
    }

    /// A frame, and the log of its sender's node.
    type Sent = (Frame, Vec<MemberId>);

    /// Members as far as this module is concerned, and what is under way between them.
    struct World {
        node_of: Vec<usize>,
        members: Vec<Quorum>,
        /// By node: its log, and whom it has turned away from.
        logs: Vec<Vec<MemberId>>,
        shunned: Vec<MemberSet>,
        /// Who has really died, and who is stopped.
        ended: MemberSet,
        stopped: MemberSet,
        /// Who was buried alive, by whomever.
        buried: MemberSet,
        /// By sender and receiver.
        links: HashMap<(u32, u32), VecDeque<Sent>>,
        now: u64,
        /// By member: how much faster its clock is, in thousandths, and by how much it is ahead.
        clocks: Vec<(u64, u64)>,
        /// By member: how much of its node's log it has looked at, and until when it takes itself to have a lease.
        seen: Vec<usize>,
        leases: Vec<Time>,
        /// By member: when it last looked at who is at odds with whom.
        judged_at: Vec<Time>,
        /// By node: its kernel. Each has its own, unless a test says otherwise.
        kernels: Vec<usize>,
        burials: usize,
    }

    fn random(state: &mut u64, below: u64) -> u64 {
        // SplitMix64.
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    impl World {
        /// Nodes of so many members each.
        fn new(nodes: &[usize]) -> World {
            let mut node_of = Vec::new();
            for &len in nodes {
                node_of.extend(vec![node_of.len(); len]);
            }
            let count = node_of.len();
            World {
                members: (0..count as u32)
                    .map(|me| Quorum::new(MemberId(me), node_of.clone()))
                    .collect(),
                logs: vec![Vec::new(); count],
                shunned: vec![MemberSet::new(); count],
                ended: MemberSet::new(),
                stopped: MemberSet::new(),
                buried: MemberSet::new(),
                links: HashMap::new(),
                now: 0,
                clocks: vec![(0, 0); count],
                seen: vec![0; count],
                leases: vec![Time(0); count],
                judged_at: vec![Time(0); count],
                kernels: (0..count).collect(),
                burials: 0,
                node_of,
            }
        }

        fn all(&self) -> impl Iterator<Item = MemberId> + use<> {
            (0..self.node_of.len() as u32).map(MemberId)
        }

        fn node(&self, member: MemberId) -> usize {
            self.node_of[member.index()]
        }

        fn dead(&self, member: MemberId) -> MemberSet {
            self.logs[self.node(member)].iter().copied().collect()
        }

        fn clock(&self, member: MemberId) -> Time {
            let (faster, ahead) = self.clocks[member.index()];
            Time(self.now + self.now / 1000 * faster + ahead)
        }

        fn send(&mut self, from: MemberId, to: MemberId, frame: Frame) {
            let node = self.node(from);
            if self.node(to) != node
                && !self.shunned[node].contains(to)
                && !self.dead(from).contains(to)
            {
                let log = self.logs[node].clone();
                self.links.entry((from.0, to.0)).or_default().push_back((frame, log));
            }
        }

        /// A member asks all others.
        fn ask(&mut self, from: MemberId) {
            self.count(from);
            let epoch = self.logs[self.node(from)].len() as u64;
            for to in self.all() {
                self.send(from, to, Frame::Ask(self.clock(from), epoch));
            }
        }

        fn tell(&mut self, from: MemberId) {
            for to in self.all() {
                self.send(from, to, Frame::Accuse(self.shunned[self.node(from)].clone()));
            }
        }

        /// The next frame of a link arrives.
        fn deliver(&mut self, from: MemberId, to: MemberId) {
            let Some(queue) = self.links.get_mut(&(from.0, to.0)) else { return };
            let Some((frame, log)) = queue.pop_front() else { return };
            if self.ended.contains(to) || self.dead(to).contains(from) {
                return;
            }
            self.enter(to, &log);
            if self.ended.contains(to) {
                return;
            }
            self.notice(to);
            match frame {
                Frame::Ask(at, epoch) => self.send(to, from, Frame::Answer(at, epoch)),
                Frame::Answer(at, epoch) => self.members[to.index()].answer(from, at, epoch),
                Frame::Accuse(whom) => self.members[to.index()].accuse(from, &whom),
            }
        }

        /// All that is under way from one member to another arrives.
        fn hear(&mut self, from: MemberId, to: MemberId) {
            while self.links.get(&(from.0, to.0)).is_some_and(|queue| !queue.is_empty()) {
                self.deliver(from, to);
            }
        }

        /// Enters deaths into the log of a member's node. Those who find themselves there end.
        fn enter(&mut self, member: MemberId, deaths: &[MemberId]) {
            let node = self.node(member);
            for &dead in deaths {
                if !self.logs[node].contains(&dead) {
                    self.logs[node].push(dead);
                }
                if self.node(dead) == node {
                    self.ended.insert(dead);
                }
            }
        }

        /// A member dies; its neighbours know.
        fn end(&mut self, member: MemberId) {
            if self.ended.insert(member) {
                self.enter(member, &[member]);
            }
        }

        /// A member that finds its node's log longer than before counts anew.
        fn notice(&mut self, member: MemberId) {
            if self.logs[self.node(member)].len() > self.seen[member.index()] {
                self.count(member);
            }
        }

        /// A member finds out until when it has a lease.
        fn count(&mut self, member: MemberId) {
            let (dead, now) = (self.dead(member), self.clock(member));
            let log = &self.logs[self.node_of[member.index()]];
            let quorum = &mut self.members[member.index()];
            quorum.settle(log);
            self.seen[member.index()] = log.len();
            self.leases[member.index()] = quorum.lease_until(&dead, now);
        }

        fn has_lease(&self, member: MemberId) -> bool {
            !self.ended.contains(member) && self.leases[member.index()] > self.clock(member)
        }

        /// A member buries whom it may.
        fn bury(&mut self, member: MemberId) {
            self.notice(member);
            if !self.has_lease(member) {
                return;
            }
            let (dead, now, own) = (self.dead(member), self.clock(member), self.node(member));
            let shunned = self.shunned[own].clone();
            let quorum = &mut self.members[member.index()];
            quorum.accuse(member, &shunned);
            let may: MemberSet = shunned
                .iter()
                .filter(|&victim| !dead.contains(victim) && quorum.may_bury(victim, &dead, now))
                .collect();
            for victim in may.iter() {
                let gone = |&other: &MemberId| dead.contains(other) || may.contains(other);
                if self
                    .all()
                    .filter(|&other| self.node(other) == self.node(victim))
                    .all(|other| gone(&other))
                {
                    self.enter(member, &[victim]);
                    if !self.ended.contains(victim) {
                        self.buried.insert(victim);
                    }
                    self.burials += 1;
                }
            }
        }

        /// A member takes a side.
        fn judge_feuds(&mut self, member: MemberId) {
            let (dead, now, own) = (self.dead(member), self.clock(member), self.node(member));
            let elapsed = now.since(std::mem::replace(&mut self.judged_at[member.index()], now));
            let quorum = &mut self.members[member.index()];
            quorum.accuse(member, &self.shunned[own]);
            for loser in quorum.losers(&dead, now, elapsed, Duration::from_secs(3)).iter() {
                self.shun(member, loser);
            }
        }

        /// What must never be. If nobody lives who knows of a burial, there was none.
        fn check(&self, what: &str) {
            for member in self.buried.iter().filter(|&member| self.has_lease(member)) {
                let knows = |other: &MemberId| {
                    self.dead(*other).contains(member) && !self.ended.contains(*other)
                };
                let by = self.all().find(knows);
                assert_eq!(by, None, "{what}: {member} has a lease, and is dead to this one");
            }
        }

        /// Lets some time go by in which everyone talks to all that it reaches.
        fn pass(&mut self, seconds: u64, reaches: impl Fn(MemberId, MemberId) -> bool) {
            for _ in 0..seconds * 10 {
                self.now += SECOND / 10;
                let idle: MemberSet = self.ended.iter().chain(self.stopped.iter()).collect();
                for from in self.all().filter(|&from| !idle.contains(from)) {
                    self.ask(from);
                    self.tell(from);
                }
                // There and back.
                for _ in 0..2 {
                    let links: Vec<(u32, u32)> = self.links.keys().copied().collect();
                    for (from, to) in links {
                        let (from, to) = (MemberId(from), MemberId(to));
                        while reaches(from, to)
                            && !idle.contains(to)
                            && self.links[&(from.0, to.0)].front().is_some()
                        {
                            self.deliver(from, to);
                        }
                    }
                }
                for member in self.all().filter(|&member| !idle.contains(member)) {
                    self.judge_feuds(member);
                    self.bury(member);
                }
                self.check("while time goes by");
            }
        }

        /// A member asks its kernel for nodes of which nobody is left.
        fn watch(&mut self, member: MemberId) {
            let (own, dead) = (self.kernels[self.node(member)], self.dead(member));
            let is_over = |other: &MemberId| {
                let mut of_its_node = self.all().filter(|&one| self.node(one) == self.node(*other));
                of_its_node.all(|one| self.ended.contains(one) || dead.contains(one))
            };
            let watched = self.all().filter(|&other| self.kernels[self.node(other)] == own);
            let over: Vec<MemberId> = watched.filter(is_over).collect();
            self.enter(member, &over);
            self.notice(member);
        }

        fn shun(&mut self, by: MemberId, whom: MemberId) {
            let node = self.node(by);
            let is_known_to_live =
                self.kernels[self.node(whom)] == self.kernels[node] && !self.ended.contains(whom);
            if self.node(whom) != node && !is_known_to_live {
                self.shunned[node].insert(whom);
            }
        }
    }

    /// All ways to cut six members on three or six nodes in two, noticed at once or one by one: the majority buries the rest, and
    /// the rest nobody.
    #[test]
    fn of_two_sides_of_a_cut_one_goes_on() {
        for nodes in [&[2, 2, 2][..], &[1; 6], &[3, 1, 2], &[1, 1, 1, 1, 1]] {
            let count = World::new(nodes).node_of.len() as u32;
            let all = World::new(nodes);
            for cut in 1u32..(1 << count) - 1 {
                let side = |member: MemberId| cut >> member.0 & 1;
                if all.all().any(|member| side(member) != side(MemberId(all.node(member) as u32))) {
                    continue;
                }
                for is_slow in [false, true] {
                    let mut world = World::new(nodes);
                    world.pass(1, |_, _| true);
                    for whom in world.all() {
                        for by in world.all().filter(|&by| side(by) != side(whom)) {
                            world.shun(by, whom);
                        }
                        if is_slow {
                            world.pass(1, |from, to| side(from) == side(to));
                        }
                    }
                    world.pass(6, |from, to| side(from) == side(to));
                    let ones = cut.count_ones();
                    let winner = match (2 * ones).cmp(&count) {
                        std::cmp::Ordering::Greater => 1,
                        std::cmp::Ordering::Less => 0,
                        std::cmp::Ordering::Equal => side(MemberId(0)),
                    };
                    for member in world.all() {
                        let is_winner = side(member) == winner;
                        let rest: MemberSet = match is_winner {
                            true => world.all().filter(|&other| side(other) != winner).collect(),
                            false => MemberSet::new(),
                        };
                        assert_eq!(world.dead(member), rest, "{nodes:?}, cut {cut:b}, {member}");
                        assert_eq!(
                            world.has_lease(member),
                            is_winner,
                            "{nodes:?}, cut {cut:b}, {member}"
                        );
                    }
                }
            }
        }
    }

    /// A link between two of three nodes is cut, or one of them was too slow for the other alone: the lower one stays, and the
    /// third with it.
    #[test]
    fn of_two_that_lost_each_other_the_lower_one_stays() {
        for (one, other, third) in [(0, 2, 4), (0, 4, 2), (2, 4, 0)] {
            let mut world = World::new(&[2, 2, 2]);
            let members = |first: u32| [first, first + 1].map(MemberId);
            world.pass(1, |_, _| true);
            for (a, b) in members(one).into_iter().flat_map(|a| members(other).map(|b| (a, b))) {
                world.shun(a, b);
                world.shun(b, a);
            }
            let node_of = world.node_of.clone();
            let node = |member: MemberId| node_of[member.index()] as u32;
            world.pass(10, |from, to| [node(from), node(to)].contains(&third));
            let gone: MemberSet = members(other).into_iter().collect();
            for member in world.all() {
                let stays = !gone.contains(member);
                assert_eq!(
                    world.has_lease(member),
                    stays,
                    "{member} after {one} and {other} lost each other"
                );
                let dead = if stays { gone.clone() } else { MemberSet::new() };
                assert_eq!(
                    world.dead(member),
                    dead,
                    "{member} after {one} and {other} lost each other"
                );
            }
        }
    }

    /// The dead are not counted for ever: three of four nodes may go, one after the other, if the first stays.
    #[test]
    fn the_base_shrinks_with_the_job() {
        let mut world = World::new(&[2, 2, 2, 2]);
        world.pass(1, |_, _| true);
        for node in [1, 2, 3] {
            for member in [2 * node, 2 * node + 1].map(MemberId) {
                world.ended.insert(member);
                for by in world.all() {
                    world.shun(by, member);
                }
            }
            world.pass(5, |_, _| true);
            assert_eq!(world.dead(MemberId(0)).len(), 2 * node as usize);
            assert!(world.has_lease(MemberId(1)));
        }
    }

    /// One member of a node that answers is enough: others may be stopped for as long as they like, while a whole node dies.
    #[test]
    fn the_stopped_end_nobody() {
        for (nodes, stopped, dead) in [
            (&[5, 2][..], &[1, 2, 3, 4][..], &[][..]),
            (&[2, 2], &[3], &[0]),
            (&[2, 2, 2], &[5], &[0, 1]),
        ] {
            let mut world = World::new(nodes);
            world.pass(1, |_, _| true);
            world.stopped = stopped.iter().copied().map(MemberId).collect();
            for member in dead.iter().copied().map(MemberId) {
                world.end(member);
                for by in world.all() {
                    world.shun(by, member);
                }
            }
            world.pass(10, |_, _| true);
            for member in world.all() {
                if !world.ended.contains(member) && !world.stopped.contains(member) {
                    assert!(
                        world.has_lease(member),
                        "{nodes:?}, {stopped:?} stopped, {dead:?} dead: {member}"
                    );
                    assert_eq!(world.dead(member), world.ended);
                }
            }
        }
    }

    /// Some of the links between nodes of all sizes are cut, which is noticed at once or a second later: if nodes that all reach each
    /// other are a majority some go on, and whoever goes on reaches all others that do.
    #[test]
    fn of_many_that_lost_each_other_some_go_on() {
        let mut judged = 0;
        // The last ones are of those that catch nodes which take sides in one feud after the other.
        for seed in (0..100u64).chain([221, 413, 1232, 1330]) {
            let mut state = seed;
            let nodes: Vec<usize> = (0..3 + random(&mut state, 4))
                .map(|_| 1 + random(&mut state, 3) as usize)
                .collect();
            let mut world = World::new(&nodes);
            let node_of = world.node_of.clone();
            let node = |member: MemberId| node_of[member.index()];
            let all: Vec<MemberId> = world.all().collect();
            let part = 2 + random(&mut state, 5);
            let numbers: BTreeSet<usize> = node_of.iter().copied().collect();
            let pairs = numbers
                .iter()
                .flat_map(|&one| numbers.range(..one).map(move |&other| (other, one)));
            let cut: BTreeSet<(usize, usize)> =
                pairs.filter(|_| random(&mut state, part) == 0).collect();
            let is_cut = |a: MemberId, b: MemberId| {
                cut.contains(&(node(a).min(node(b)), node(a).max(node(b))))
            };
            let can_go_on = (0u32..1 << all.len()).any(|side| {
                let is_on = |member: MemberId| side >> member.0 & 1 == 1;
                let is_whole =
                    all.iter().all(|&member| is_on(member) == is_on(MemberId(node(member) as u32)));
                let reach_all =
                    |&a: &MemberId| !is_on(a) || all.iter().all(|&b| !is_on(b) || !is_cut(a, b));
                is_whole
                    && is_majority(&MemberSet::first(all.len()), is_on)
                    && all.iter().all(reach_all)
            });
            world.pass(1, |_, _| true);
            let both: Vec<_> = all.iter().flat_map(|&a| all.iter().map(move |&b| (a, b))).collect();
            let late: MemberSet =
                all.iter().copied().filter(|_| random(&mut state, 3) == 0).collect();
            for is_late in [false, true] {
                for &(a, b) in
                    both.iter().filter(|&&(a, b)| is_cut(a, b) && late.contains(a) == is_late)
                {
                    world.shun(a, b);
                }
                world.pass(1, |a, b| !is_cut(a, b));
            }
            for _ in 0..4 {
                world.pass(4, |a, b| !is_cut(a, b));
                // Whom others turned away from hears nothing of them, and turns away, too.
                for &(a, b) in &both {
                    if world.shunned[node(a)].contains(b) {
                        world.shun(b, a);
                    }
                }
            }
            let on: Vec<MemberId> = world.all().filter(|&member| world.has_lease(member)).collect();
            let is_at_odds =
                on.iter().any(|&a| on.iter().any(|&b| world.shunned[node(a)].contains(b)));
            if can_go_on {
                judged += usize::from(!cut.is_empty());
                assert!(
                    !on.is_empty() && !is_at_odds,
                    "seed {seed}, {nodes:?}, cut {cut:?}: {on:?} go on"
                );
            }
        }
        assert!(judged > 60, "{judged}");
    }

    /// As few members as possible have to go, those who stay choose the same ones, and those who are to go choose nobody.
    #[test]
    fn of_those_at_odds_the_fewest_go() {
        let losers = |feuds: &[(u32, u32)]| {
            let judge = |me: u32| {
                let mut quorum = Quorum::new(MemberId(me), vec![0, 1, 2, 3, 4]);
                for other in (0..5).map(MemberId) {
                    quorum.answer(other, Time(SECOND), 0);
                }
                for &(one, other) in feuds {
                    quorum.accuse(MemberId(one), &[MemberId(other)].into_iter().collect());
                }
                let second = Duration::from_secs(1);
                let mut look =
                    || quorum.losers(&MemberSet::new(), Time(SECOND), second, 3 * second);
                let early = (0..3).map(|_| look()).all(|losers| losers.is_empty());
                assert!(early, "patience");
                look()
            };
            let all: Vec<MemberSet> = (0..5).map(judge).collect();
            let losers =
                all.iter().find(|losers| !losers.is_empty()).expect("somebody goes").clone();
            for (me, one) in all.into_iter().enumerate() {
                let expected = if losers.contains(MemberId(me as u32)) {
                    MemberSet::new()
                } else {
                    losers.clone()
                };
                assert_eq!(one, expected, "{me} judges {feuds:?}");
            }
            losers.iter().map(|member| member.0).collect::<Vec<_>>()
        };
        assert_eq!(losers(&[(1, 0)]), [1]);
        assert_eq!(losers(&[(1, 0), (2, 0)]), [0]);
        assert_eq!(losers(&[(0, 4), (1, 4), (4, 1)]), [4]);
        assert_eq!(losers(&[(0, 3), (1, 2), (2, 1)]), [2, 3]);
        // The one that has lost the most stays, with others: five members, as many as if it went, and the first one of all among them.
        let nodes = [(0, 2), (2, 1), (3, 3), (6, 2), (8, 2)].into_iter().collect();
        let stay = at_peace(nodes, &[(0, 3), (0, 6), (2, 6), (3, 8)].into_iter().collect());
        assert_eq!(stay.into_keys().collect::<Vec<_>>(), [0, 2, 8]);
        let nodes = [(0, 1), (1, 2), (3, 2), (5, 1), (6, 2)].into_iter().collect();
        let stay = at_peace(nodes, &[(0, 3), (1, 6), (3, 5)].into_iter().collect());
        assert_eq!(stay.into_keys().collect::<Vec<_>>(), [0, 1, 5]);
        let nodes = (0..40).map(|node| (node, 1)).collect();
        let feuds = (2..40).flat_map(|node| [(0, node), (1, node)]).collect();
        assert!(at_peace(nodes, &feuds).into_keys().eq(2..40));
    }

    /// A member that was stopped while others were at odds has seen nothing of that, and one that does not hear of a majority any more
    /// takes no side: it may have lost the one for which it would.
    #[test]
    fn who_was_stopped_or_hears_nothing_takes_no_side() {
        let mut quorum = Quorum::new(MemberId(0), vec![0, 1, 2]);
        let (nobody, patience) = (MemberSet::new(), Duration::from_secs(3));
        for other in [1, 2] {
            quorum.accuse(MemberId(other), &[MemberId(3 - other)].into_iter().collect());
        }
        let mut losers = |at: u64, elapsed: u64, answered: &[u32]| {
            for &other in answered {
                quorum.answer(MemberId(other), Time(at * SECOND), 0);
            }
            let losers =
                quorum.losers(&nobody, Time(at * SECOND), Duration::from_secs(elapsed), patience);
            losers.iter().map(|member| member.0).collect::<Vec<_>>()
        };
        assert_eq!([losers(1, 0, &[1, 2]), losers(2, 1, &[1, 2])], [[0; 0]; 2]);
        assert_eq!(losers(30, 1, &[1, 2]), [0; 0], "stopped");
        assert_eq!(losers(33, 1, &[2]), [0; 0], "does not hear of the one that is to stay");
        assert_eq!(losers(34, 1, &[1]), [2]);
    }

    /// A death that not everyone is known to know of leaves the base as it is.
    #[test]
    fn a_death_counts_once_all_have_answered_for_it() {
        let mut quorum = Quorum::new(MemberId(0), vec![0, 1, 2, 3]);
        let dead = [MemberId(3)];
        let mut base_len = |answers: &[(u32, u64)]| {
            for &(from, epoch) in answers {
                quorum.answer(MemberId(from), Time(1), epoch);
            }
            quorum.settle(&dead);
            quorum.base.len()
        };
        assert_eq!(base_len(&[]), 4);
        assert_eq!(base_len(&[(1, 1), (2, 0)]), 4);
        assert_eq!(base_len(&[(2, 1)]), 3);
    }

    /// Three of six turn away from another, one of them dies, and those who reach the other hear of it first. The next one buries
    /// the other, tells a third, and dies together with the last of the three. What it has told stands.
    #[test]
    fn a_burial_outlives_its_majority() {
        let mut world = World::new(&[1; 6]);
        let [burier, first, last, told, victim, bystander] = [0, 1, 2, 3, 4, 5].map(MemberId);
        // All but the victim are under one kernel, which is asked now and then.
        world.kernels = vec![0, 0, 0, 0, 4, 0];
        world.pass(1, |_, _| true);
        for by in [burier, first, last] {
            world.shun(by, victim);
        }
        world.pass(2, |_, _| true);
        assert!(world.dead(burier).is_empty());
        world.end(first);
        world.watch(bystander);
        world.ask(bystander);
        world.hear(bystander, victim);
        world.ask(victim);
        for other in [told, bystander] {
            world.hear(victim, other);
            world.hear(other, victim);
        }
        assert!(world.dead(told).contains(first) && !world.dead(burier).contains(first));
        world.now += SECOND;
        world.bury(burier);
        assert!(world.dead(burier).contains(victim));
        world.ask(burier);
        world.hear(burier, told);
        assert!(world.dead(told).contains(victim));
        world.end(burier);
        world.end(last);
        world.watch(bystander);
        world.ask(bystander);
        world.hear(bystander, victim);
        world.count(victim);
        assert_eq!(world.dead(victim).len(), 3);
        world.check("after the deaths");
    }

    /// While its neighbours still answer the other, the time of mourning does not run.
    #[test]
    fn nobody_mourns_before_its_own_node_has_turned_away() {
        let mut quorum = Quorum::new(MemberId(0), vec![0, 1, 2]);
        let (victim, nobody) = (MemberId(2), MemberSet::new());
        let mut may_bury = |by: u32, at_ms: u64| {
            quorum.accuse(MemberId(by), &[victim].into_iter().collect());
            quorum.may_bury(victim, &nobody, Time(at_ms * 1_000_000))
        };
        assert_eq!([may_bury(1, 0), may_bury(1, 9000), may_bury(0, 10_000)], [false; 3]);
        assert_eq!([may_bury(0, 12_499), may_bury(0, 12_500)], [false, true]);
    }

    /// Deaths, members that are stopped for a while, nodes under one kernel and under several, suspicions right and wrong, frames
    /// late or for ever under way, clocks of different speed: nobody that was buried ever has a lease.
    #[test]
    fn nobody_is_buried_alive_and_goes_on() {
        let (mut burials, mut alive) = (0, 0);
        // Seed 80 is of those that catch a base which shrinks with every death at once, the last one a mourning as long as a lease.
        for seed in (0..400u64).chain([4996]) {
            let mut state = seed;
            let nodes: Vec<usize> = (0..2 + random(&mut state, 5))
                .map(|_| 1 + random(&mut state, 3) as usize)
                .collect();
            let mut world = World::new(&nodes);
            let count = world.node_of.len() as u64;
            world.clocks = (0..count)
                .map(|_| (random(&mut state, 100), random(&mut state, 9 * SECOND)))
                .collect();
            // Some nodes are under one kernel.
            for node in 0..world.kernels.len() {
                if random(&mut state, 3) == 0 {
                    world.kernels[node] = world.node_of[random(&mut state, count) as usize];
                }
            }
            // Some suspicions run along a cut, as real ones do, others anywhere.
            let cut = random(&mut state, 1 << count);
            let is_apart = |a: MemberId, b: MemberId| (cut >> a.0 ^ cut >> b.0) & 1 == 1;
            for step in 0..3000 {
                let (one, other) =
                    (random(&mut state, count) as u32, random(&mut state, count) as u32);
                let (one, other) = (MemberId(one), MemberId(other));
                world.now += random(&mut state, SECOND / 80);
                match random(&mut state, 1000) {
                    _ if world.ended.contains(one) => {}
                    what if world.stopped.contains(one) => {
                        if what < 30 {
                            world.stopped =
                                world.stopped.iter().filter(|&other| other != one).collect();
                        }
                    }
                    0..1 => world.end(one),
                    400..403 => {
                        world.stopped.insert(one);
                    }
                    1..20 if step > 300 && is_apart(one, other) => world.shun(one, other),
                    20..21 => world.shun(one, other),
                    21..200 => world.ask(one),
                    200..300 => {
                        world.judge_feuds(one);
                        world.tell(one);
                    }
                    300..390 => world.bury(one),
                    390..400 => world.watch(one),
                    _ => {
                        for from in world.all() {
                            // Those who are apart hear of each other late.
                            let is_late =
                                step > 300 && is_apart(one, from) && random(&mut state, 20) > 0;
                            let frames = if is_late { 0 } else { random(&mut state, 8) };
                            (0..frames).for_each(|_| world.deliver(from, one));
                        }
                    }
                }
                world.check(&format!("seed {seed}, step {step}"));
            }
            burials += world.burials;
            alive += world.buried.len();
        }
        assert!(burials > 100 && alive > 50, "{burials} burials, {alive} of them of the living");
    }
}

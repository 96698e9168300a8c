//! A model of members that follow the rules of `quorum.rs`, and tests of the rules.

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
        let nodes: Vec<usize> =
            (0..3 + random(&mut state, 4)).map(|_| 1 + random(&mut state, 3) as usize).collect();
        let mut world = World::new(&nodes);
        let node_of = world.node_of.clone();
        let node = |member: MemberId| node_of[member.index()];
        let all: Vec<MemberId> = world.all().collect();
        let part = 2 + random(&mut state, 5);
        let numbers: BTreeSet<usize> = node_of.iter().copied().collect();
        let pairs =
            numbers.iter().flat_map(|&one| numbers.range(..one).map(move |&other| (other, one)));
        let cut: BTreeSet<(usize, usize)> =
            pairs.filter(|_| random(&mut state, part) == 0).collect();
        let is_cut =
            |a: MemberId, b: MemberId| cut.contains(&(node(a).min(node(b)), node(a).max(node(b))));
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
        let late: MemberSet = all.iter().copied().filter(|_| random(&mut state, 3) == 0).collect();
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
        let is_at_odds = on.iter().any(|&a| on.iter().any(|&b| world.shunned[node(a)].contains(b)));
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
            let mut look = || quorum.losers(&MemberSet::new(), Time(SECOND), second, 3 * second);
            let early = (0..3).map(|_| look()).all(|losers| losers.is_empty());
            assert!(early, "patience");
            look()
        };
        let all: Vec<MemberSet> = (0..5).map(judge).collect();
        let losers = all.iter().find(|losers| !losers.is_empty()).expect("somebody goes").clone();
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
        let nodes: Vec<usize> =
            (0..2 + random(&mut state, 5)).map(|_| 1 + random(&mut state, 3) as usize).collect();
        let mut world = World::new(&nodes);
        let count = world.node_of.len() as u64;
        world.clocks =
            (0..count).map(|_| (random(&mut state, 100), random(&mut state, 9 * SECOND))).collect();
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
            let (one, other) = (random(&mut state, count) as u32, random(&mut state, count) as u32);
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

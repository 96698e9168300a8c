//! Placement: which members are the replicas of each partition.
//!
//! *Purpose.* This layer maps a key to its partition, and a partition with a view and the set of
//! leavers to its list of replicas and their configuration number ([`Assignment`]). [`heir`]
//! selects the living member that takes over the duties of a dead member. All of it is computed:
//! the layer reads and changes no memory.
//!
//! *Vocabulary.* Partition, replica, order of preference, configuration, configuration number,
//! failure domain, spare, leaver, heir: docs/glossary.md defines them. The page below has the rules
//! of placement, with their reasons, and the replica states and head words that carry the
//! configuration numbers.
//!
//! *Invariants.* The protocols depend on these properties. The tests check them, the second and the
//! third over random sequences of deaths:
//!
//! - All members with an equal view and equal leavers compute an equal list and an equal number.
//! - A replica stays a replica as long as it lives, also while it leaves. A death moves only what
//!   the dead member held.
//! - A list changes only together with its number, and the number only grows.
//! - The order of preference of a partition and all hashes never change, also across versions of
//!   the library.
//!
//! *Callers.* `operation/state.rs` caches the beginnings of the orders and computes the lists of
//! replicas for `operation/configuration.rs`. The record layer hashes keys. Transactions and
//! the api ask for heirs. Placement itself calls only the view and the segment layer.
//!
//! *On a death.* The next view contains the death, and the callers compute the list anew. This
//! layer keeps no state that depends on the living members.
#![cfg_attr(
    outlast_pages,
    doc = include_str!("../../../../../docs/protocol/placement.md")
)]

pub(in crate::store) mod heir;
pub(in crate::store) mod replica;

use crate::engine::{MemberId, MemberSet, View};
use crate::store::segment::head::CONFIG_NUMBER_MAX;

/// The largest number of replicas of a value.
pub const REPLICAS_MAX: usize = 8;

/// The largest number of leavers that are replicas of a partition at once. Members leave
/// in sequence, by a lock in the store. Several can leave at once only if the record of that lock
/// was lost.
const LEAVERS_MAX: usize = 2;

/// The length of the longest list of replicas.
pub(in crate::store) const REPLICA_LIST_MAX: usize = REPLICAS_MAX + LEAVERS_MAX;

/// How many members in front of an order of preference are kept. In a larger job the whole order is
/// computed again if nearly all of them are dead.
pub(in crate::store) const PREFERRED_MAX: usize = 16;
const _: () = assert!(PREFERRED_MAX > REPLICA_LIST_MAX);

/// Computes the replicas of each partition.
#[derive(Debug)]
pub(in crate::store) struct Placement {
    regulars: usize,
    members: usize,
    pub(in crate::store) replicas: usize,
    pub(in crate::store) partitions: usize,
    /// The outermost failure domain of each member; empty where it is not known.
    domains: Vec<String>,
}

/// The replicas of a partition under a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct Assignment {
    /// The replicas, the most preferred replica first.
    pub(in crate::store) members: Vec<MemberId>,
    /// The configuration number: 1 while no member has died or leaves. It grows whenever the list
    /// changes, and without failure domains only then.
    pub(in crate::store) configuration: u64,
}

/// Mixes 64 bits strongly (the finalizer of splitmix64). The function never changes, since all
/// members must agree on its results.
pub(in crate::store) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The hash of a key. The function never changes, since all members must agree on its results.
pub(in crate::store) fn hash_key(key: &[u8]) -> u64 {
    let mut words = key.chunks_exact(8);
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ key.len() as u64;
    for word in &mut words {
        state = mix(state ^ u64::from_le_bytes(word.try_into().expect("8 bytes")));
    }
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    mix(state ^ u64::from_le_bytes(last))
}

/// The hash by which the members of a partition are ordered.
fn hash_of_partition(partition: usize) -> u64 {
    mix(partition as u64 + 1)
}

/// The place of a regular member in the order of a partition: the smallest rank comes first.
fn rank(hash: u64, member: u32) -> (u64, u32) {
    (mix(hash ^ (u64::from(member) + 1)), member)
}

impl Placement {
    pub(in crate::store) fn new(
        regulars: usize,
        spares: usize,
        replicas: usize,
        partitions: usize,
        domains: Vec<String>,
    ) -> Placement {
        let outermost = |path: &String| {
            path.split('/').find(|part| !part.is_empty()).unwrap_or_default().to_string()
        };
        Placement {
            regulars,
            members: regulars + spares,
            replicas,
            partitions,
            domains: domains.iter().map(outermost).collect(),
        }
    }

    /// The partition of a key with this hash.
    pub(in crate::store) fn partition(&self, hash: u64) -> usize {
        // The upper half of the hash selects the partition, the lower half the bucket.
        ((hash >> 32) as usize * self.partitions) >> 32
    }

    /// All members in the order of preference of a partition.
    pub(in crate::store) fn preference(&self, partition: usize) -> Vec<MemberId> {
        let hash = hash_of_partition(partition);
        let mut ranks: Vec<_> =
            (0..self.regulars).map(|member| rank(hash, member as u32)).collect();
        ranks.sort_unstable();
        self.order(&ranks).collect()
    }

    /// The first members in the order of preference of a partition: [`PREFERRED_MAX`] members, or
    /// all members of a smaller job.
    pub(in crate::store) fn preferred(&self, partition: usize) -> Vec<MemberId> {
        if self.members <= PREFERRED_MAX {
            return self.preference(partition);
        }
        let hash = hash_of_partition(partition);
        // The smallest ranks so far, in order. Few of the later members have a smaller rank.
        let mut ranks = Vec::with_capacity(PREFERRED_MAX + 1);
        let mut bound = (u64::MAX, u32::MAX);
        for member in 0..self.regulars as u32 {
            let rank = rank(hash, member);
            if rank < bound {
                ranks.insert(ranks.partition_point(|before| *before < rank), rank);
                ranks.truncate(PREFERRED_MAX);
                if ranks.len() == PREFERRED_MAX {
                    bound = ranks[PREFERRED_MAX - 1];
                }
            }
        }
        self.order(&ranks).take(PREFERRED_MAX).collect()
    }

    /// The order of preference, from the ranks of the first regular members or of all of them.
    fn order(&self, ranks: &[(u64, u32)]) -> impl Iterator<Item = MemberId> {
        let before_spares = if self.has_domains() { self.regulars } else { self.replicas };
        let (before, after) = ranks.split_at(before_spares.min(ranks.len()));
        let spares = self.regulars as u32..self.members as u32;
        let member = |(_, member): &(u64, u32)| *member;
        before.iter().map(member).chain(spares).chain(after.iter().map(member)).map(MemberId)
    }

    /// Whether a member may be a replica of a partition while no member leaves. `false` is certain;
    /// [`Placement::replicas`] tells for sure. It looks at few members: in a large job nearly every
    /// partition has enough members in front of this member soon.
    pub(in crate::store) fn may_hold(
        &self,
        partition: usize,
        member: MemberId,
        view: &View,
    ) -> bool {
        if !view.is_active(member) || member.index() >= self.regulars {
            return view.is_active(member);
        }
        let hash = hash_of_partition(partition);
        let own = rank(hash, member.0);
        let has_domains = self.has_domains();
        let mut domains: Vec<&str> = Vec::new();
        let mut before = 0;
        for other in 0..self.regulars as u32 {
            if rank(hash, other) >= own || !view.is_living(MemberId(other)) {
                continue;
            }
            before += 1;
            let domain = self.domains[other as usize].as_str();
            if has_domains && domains.len() < self.replicas && !domains.contains(&domain) {
                domains.push(domain);
            }
            // As many domains as replicas have a member in front of this member, so that no replica
            // is left for it.
            if before >= self.replicas && (!has_domains || domains.len() == self.replicas) {
                return false;
            }
        }
        true
    }

    /// Whether any member has a known failure domain.
    fn has_domains(&self) -> bool {
        self.domains.iter().any(|domain| !domain.is_empty())
    }

    /// The replicas of a partition under a view, from the first members in its order of preference.
    /// If they do not tell the replicas, since most of them are dead, the whole order is computed.
    /// Leavers remain replicas and do not count among the R.
    pub(in crate::store) fn replicas(
        &self,
        partition: usize,
        preferred: &[MemberId],
        view: &View,
        leaving: &MemberSet,
    ) -> Assignment {
        let assignment = self.assign(preferred, view, leaving).or_else(|| {
            let preference = self.preference(partition);
            self.assign(&preference, view, leaving)
        });
        assignment.expect("the whole order tells the replicas")
    }

    /// The replicas under a view, from an order of preference or the beginning of it. `None` if
    /// that depends on members which the beginning does not have.
    fn assign(
        &self,
        preference: &[MemberId],
        view: &View,
        leaving: &MemberSet,
    ) -> Option<Assignment> {
        let is_whole = preference.len() == self.members;
        let is_leaving = |member: MemberId| leaving.contains(member) && view.is_living(member);
        let has_leavers = leaving.iter().any(is_leaving);
        // Spares that will be active when the leavers are gone count as active from now on.
        // Otherwise the leavers would hand their replicas to other members, and the activated
        // spares would then take the place of these members.
        let later;
        let active = if has_leavers {
            let mut dead = view.dead.clone();
            dead.union_with(leaving);
            later = View::new(self.regulars, view.members - self.regulars, dead, MemberSet::new());
            &later.active
        } else {
            &view.active
        };
        let candidates: Vec<MemberId> = preference
            .iter()
            .copied()
            .filter(|&member| {
                view.is_living(member) && active.contains(member) && !is_leaving(member)
            })
            .collect();
        let mut chosen: Vec<bool> = vec![false; candidates.len()];
        let mut count = 0;
        if self.has_domains() {
            let mut used: Vec<&str> = Vec::new();
            for (index, member) in candidates.iter().enumerate() {
                let domain = self.domains[member.index()].as_str();
                if count < self.replicas
                    && member.index() < self.regulars
                    && !used.contains(&domain)
                {
                    used.push(domain);
                    chosen[index] = true;
                    count += 1;
                }
            }
            // A member of another domain may come later, and all leavers count, wherever they are.
            if !is_whole && (count < self.replicas || has_leavers) {
                return None;
            }
        }
        for is_chosen in &mut chosen {
            if count < self.replicas && !*is_chosen {
                *is_chosen = true;
                count += 1;
            }
        }
        if !is_whole && count < self.replicas {
            return None;
        }
        let chosen: Vec<MemberId> = candidates
            .iter()
            .zip(&chosen)
            .filter(|(_, chosen)| **chosen)
            .map(|(member, _)| *member)
            .collect();
        // The number counts the dead members and the leavers before the last replica: without
        // failure domains this count grows exactly when the list changes. With fewer than R
        // replicas, or with failure domains, all dead members and leavers count, since the last
        // replica may stand further to the front than before. The number then grows more often than
        // necessary, but never too seldom. A leaver counts 1, and counts 2 when it is gone.
        let last = chosen.last().filter(|_| count == self.replicas && !self.has_domains());
        let last = last.map_or(preference.len(), |last| {
            preference.iter().position(|member| member == last).expect("chosen from it") + 1
        });
        let before = &preference[..last];
        let dead = match is_whole || !self.has_domains() {
            true => before.iter().filter(|&&member| !view.is_living(member)).count(),
            // All dead members count.
            false => view.dead.len(),
        };
        let leavers = before.iter().filter(|&&member| is_leaving(member)).count();
        let is_replica = |member: &MemberId| {
            chosen.contains(member) || is_leaving(*member) && view.is_active(*member)
        };
        let members = before.iter().copied().filter(is_replica).collect();
        // The count exceeds the greatest number only at the last survivor of a job of the maximal
        // size. No other member is left that could confuse two of its configurations, and its
        // number must not be the number that marks removed records.
        let configuration = ((1 + 2 * dead + leavers) as u64).min(CONFIG_NUMBER_MAX);
        Some(Assignment { members, configuration })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random numbers that never change.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(self.0) % bound
        }

        fn pick(&mut self, of: &[u64]) -> u64 {
            of[self.below(of.len() as u64) as usize]
        }

        fn chance(&mut self, one_in: u64) -> bool {
            self.below(one_in) == 0
        }
    }

    fn view(regulars: usize, spares: usize, dead: &[u32]) -> View {
        View::new(regulars, spares, dead.iter().copied().map(MemberId).collect(), MemberSet::new())
    }

    /// The last survivor of a job of the maximal size keeps working.
    #[test]
    fn a_configuration_number_never_equals_the_number_of_removed_records() {
        let members = crate::engine::MEMBERS_MAX;
        let placement = placement(members, 0, 3);
        let partition = 0;
        let preference = placement.preference(partition);
        let dead: Vec<u32> = preference[..members - 1].iter().map(|member| member.0).collect();
        let last =
            placement.replicas(partition, &preference, &view(members, 0, &dead), &MemberSet::new());
        let before = placement.replicas(
            partition,
            &preference,
            &view(members, 0, &dead[1..]),
            &MemberSet::new(),
        );
        assert_eq!(last.members, [preference[members - 1]]);
        assert!(
            before.configuration < last.configuration && last.configuration <= CONFIG_NUMBER_MAX,
            "{last:?}"
        );
    }

    #[test]
    fn the_replicas_beside_a_leaver_are_the_replicas_after_it_has_left() {
        for (regulars, spares, replicas) in [(4, 0, 2), (3, 1, 1), (4, 2, 2), (5, 1, 3)] {
            let placement = placement(regulars, spares, replicas);
            for partition in 0..64 {
                let preference = placement.preference(partition);
                for leaver in 0..(regulars + spares) as u32 {
                    for dead in (0..(regulars + spares) as u32).filter(|&dead| dead != leaver) {
                        for dead in [&[][..], &[dead]] {
                            let leaving = [MemberId(leaver)].into_iter().collect();
                            let before = placement.replicas(
                                partition,
                                &preference,
                                &view(regulars, spares, dead),
                                &leaving,
                            );
                            let dead = [dead, &[leaver]].concat();
                            let gone = view(regulars, spares, &dead);
                            let after = placement.replicas(partition, &preference, &gone, &leaving);
                            let stay = before.members.iter().filter(|member| member.0 != leaver);
                            assert!(stay.eq(&after.members), "{before:?}, then {after:?}");
                            assert!(
                                before.members == after.members
                                    || before.configuration < after.configuration
                            );
                        }
                    }
                }
            }
        }
    }

    fn placement(regulars: usize, spares: usize, replicas: usize) -> Placement {
        let domains = vec![String::new(); regulars + spares];
        Placement::new(regulars, spares, replicas, 256 * regulars, domains)
    }

    #[test]
    fn the_fullest_member_is_close_to_the_mean() {
        for replicas in [1, 3] {
            let placement = placement(64, 0, replicas);
            let mut load = vec![0usize; 64];
            let orders: Vec<_> =
                (0..placement.partitions).map(|p| placement.preference(p)).collect();
            let view = view(64, 0, &[]);
            for key in 0..100_000u64 {
                let partition = placement.partition(hash_key(format!("key/{key}").as_bytes()));
                for replica in placement
                    .replicas(partition, &orders[partition], &view, &MemberSet::new())
                    .members
                {
                    load[replica.index()] += 1;
                }
            }
            let mean = 100_000 * replicas / 64;
            let fullest = *load.iter().max().unwrap();
            assert!(
                fullest * 100 <= mean * 125,
                "fullest {fullest}, mean {mean}, {replicas} replicas"
            );
        }
    }

    /// Over random sequences of deaths, a replica stays a replica while it lives, and the
    /// configuration number grows with each change of the list.
    #[test]
    fn a_death_moves_only_the_replicas_of_the_dead_member() {
        check_that_a_death_moves_only_its_replicas(&placement(8, 3, 3));
        let racks = |member: usize| format!("rack{}", mix(member as u64) % 4);
        check_that_a_death_moves_only_its_replicas(&Placement::new(
            8,
            3,
            3,
            64,
            (0..11).map(racks).collect(),
        ));
    }

    fn check_that_a_death_moves_only_its_replicas(placement: &Placement) {
        for partition in 0..64 {
            let preference = placement.preference(partition);
            for sequence in 0..32u64 {
                let mut dead: Vec<u32> = Vec::new();
                let mut before = placement.replicas(
                    partition,
                    &preference,
                    &view(8, 3, &dead),
                    &MemberSet::new(),
                );
                for step in 0..9 {
                    let living: Vec<u32> =
                        (0..11).filter(|member| !dead.contains(member)).collect();
                    dead.push(living[(mix(sequence * 100 + step) % living.len() as u64) as usize]);
                    let after = placement.replicas(
                        partition,
                        &preference,
                        &view(8, 3, &dead),
                        &MemberSet::new(),
                    );
                    for replica in &before.members {
                        assert!(
                            dead.contains(&replica.0) || after.members.contains(replica),
                            "{replica} was displaced"
                        );
                    }
                    assert_eq!(
                        after.members.len(),
                        3.min(after.members.len().max(1)).min(11 - dead.len())
                    );
                    if after.members == before.members {
                        assert!(after.configuration >= before.configuration);
                    } else {
                        assert!(after.configuration > before.configuration, "{dead:?}");
                    }
                    before = after;
                }
            }
        }
    }

    /// Over random sequences of deaths and announcements of leaving, a replica stays a replica
    /// while it lives, also while it leaves. The configuration number grows with each change of the
    /// list, and R replicas stay, or all living members if there are fewer.
    #[test]
    fn a_leaver_stays_a_replica_until_it_has_left() {
        let racks = |member: usize| format!("rack{}", mix(member as u64) % 4);
        let with_domains = Placement::new(8, 0, 2, 64, (0..8).map(racks).collect());
        for placement in [placement(8, 0, 2), with_domains] {
            for partition in 0..64 {
                let preference = placement.preference(partition);
                for sequence in 0..32u64 {
                    let (mut dead, mut leaving) = (Vec::new(), MemberSet::new());
                    let mut before =
                        placement.replicas(partition, &preference, &view(8, 0, &dead), &leaving);
                    for step in 0..12 {
                        let member = (mix(sequence * 100 + step) % 8) as u32;
                        if dead.len() == 6 || dead.contains(&member) {
                            continue;
                        }
                        let leavers =
                            leaving.iter().filter(|member| !dead.contains(&member.0)).count();
                        if leavers < LEAVERS_MAX && mix(sequence ^ step << 8).is_multiple_of(2) {
                            leaving.insert(MemberId(member));
                        } else {
                            dead.push(member);
                        }
                        let after = placement.replicas(
                            partition,
                            &preference,
                            &view(8, 0, &dead),
                            &leaving,
                        );
                        let stays = |replica: &MemberId| {
                            !leaving.contains(*replica) && !dead.contains(&replica.0)
                        };
                        for replica in &before.members {
                            assert!(
                                dead.contains(&replica.0) || after.members.contains(replica),
                                "{replica} was displaced"
                            );
                        }
                        let staying = (0..8).map(MemberId).filter(stays).count();
                        assert_eq!(
                            after.members.iter().filter(|replica| stays(replica)).count(),
                            staying.min(2)
                        );
                        assert!(after.configuration >= before.configuration);
                        if after.members != before.members {
                            assert!(after.configuration > before.configuration);
                        }
                        before = after;
                    }
                }
            }
        }
    }

    #[test]
    fn a_spare_takes_the_place_of_a_dead_member() {
        let placement = placement(6, 1, 2);
        for partition in 0..100 {
            let preference = placement.preference(partition);
            let before = placement
                .replicas(partition, &preference, &view(6, 1, &[]), &MemberSet::new())
                .members;
            let after = placement
                .replicas(partition, &preference, &view(6, 1, &[before[0].0]), &MemberSet::new())
                .members;
            assert_eq!(after, [before[1], MemberId(6)]);
        }
    }

    #[test]
    fn replicas_are_in_different_failure_domains() {
        let domains = (0..6).map(|member| format!("rack{}/node{member}", member / 2)).collect();
        let placement = Placement::new(6, 0, 3, 64, domains);
        for partition in 0..64 {
            let preference = placement.preference(partition);
            for dead in [vec![], vec![preference[0].0], vec![preference[0].0, preference[1].0]] {
                let replicas = placement
                    .replicas(partition, &preference, &view(6, 0, &dead), &MemberSet::new())
                    .members;
                let mut racks: Vec<u32> = replicas.iter().map(|replica| replica.0 / 2).collect();
                racks.sort_unstable();
                racks.dedup();
                let mut living: Vec<u32> =
                    (0..6).filter(|member| !dead.contains(member)).map(|m| m / 2).collect();
                living.dedup();
                assert_eq!(racks.len(), living.len().min(3), "{replicas:?} after {dead:?}");
            }
        }
    }

    /// A job at random, with a placement, the dead and the leavers.
    fn random_job(random: &mut Random) -> (Placement, View, MemberSet) {
        let size = random.pick(&[4, 24, 300]);
        let regulars = 1 + random.below(size) as usize;
        let spares = random.pick(&[1, 1, 4, 40]);
        let spares = random.below(spares) as usize;
        let members = regulars + spares;
        let replicas = (1 + random.below(REPLICAS_MAX as u64) as usize).min(regulars);
        let domain_count = random.pick(&[0, 1, 2, 3, replicas as u64, 12]);
        let mut domain = || match random.below(domain_count + 1) {
            0 => String::new(),
            number => format!("host{number}"),
        };
        let domains = (0..members).map(|_| domain()).collect();
        let placement = Placement::new(regulars, spares, replicas, 1 << 12, domains);
        let deaths = random.pick(&[2, 8, 200]);
        let one_in = 1 + random.below(deaths);
        let survivor = random.below(members as u64) as u32;
        let dead: Vec<u32> = (0..members as u32)
            .filter(|&member| member != survivor && random.chance(one_in))
            .collect();
        let leavers = random.below(LEAVERS_MAX as u64 + 1);
        let leaving = (0..leavers).map(|_| MemberId(random.below(members as u64) as u32));
        (placement, view(regulars, spares, &dead), leaving.collect())
    }

    /// The first members of an order of preference tell the list and the number that the whole
    /// order tells, and no replica is passed over when a store is opened.
    #[test]
    fn the_first_members_tell_what_the_whole_order_tells() {
        let mut random = Random(67);
        let (mut told_by_first, mut by_whole, mut not_held) = (0, 0, 0);
        for _ in 0..1500 {
            let (placement, view, leaving) = random_job(&mut random);
            for _ in 0..4 {
                let partition = random.below(placement.partitions as u64) as usize;
                let preference = placement.preference(partition);
                let preferred = placement.preferred(partition);
                assert_eq!(preferred, preference[..preference.len().min(PREFERRED_MAX)]);
                for leaving in [&leaving, &MemberSet::new()] {
                    let whole = placement.assign(&preference, &view, leaving).expect("whole");
                    let first = placement.replicas(partition, &preferred, &view, leaving);
                    assert_eq!(first, whole, "{placement:?} {view:?} {leaving:?}");
                    match placement.assign(&preferred, &view, leaving) {
                        Some(_) if preferred.len() < preference.len() => told_by_first += 1,
                        Some(_) => {}
                        None => by_whole += 1,
                    }
                }
                let held = placement.replicas(partition, &preferred, &view, &MemberSet::new());
                for member in (0..preference.len() as u32).map(MemberId) {
                    let may_hold = placement.may_hold(partition, member, &view);
                    assert!(may_hold || !held.members.contains(&member), "{member} {placement:?}");
                    not_held += usize::from(!may_hold);
                }
            }
        }
        assert!(told_by_first > 1000 && by_whole > 100 && not_held > 100_000, "not all cases came");
    }

    /// In a large job nearly all partitions of a member's host are passed over without a look at
    /// all members.
    #[test]
    fn few_partitions_may_be_held_by_a_member_that_does_not_hold_them() {
        for domain_count in [0, 4, 64] {
            let domain = |member| match domain_count {
                0 => String::new(),
                _ => format!("host{}", member % domain_count),
            };
            let placement = Placement::new(512, 0, 3, 512, (0..512).map(domain).collect());
            let view = view(512, 0, &[]);
            let me = MemberId(77);
            let may_hold = |partition: &usize| placement.may_hold(*partition, me, &view);
            let held = |partition: &usize| {
                let preferred = placement.preferred(*partition);
                let held =
                    placement.replicas(*partition, &preferred, &view, &MemberSet::new()).members;
                held.contains(&me)
            };
            let candidates: Vec<usize> = (0..512).filter(may_hold).collect();
            let holds = candidates.iter().copied().filter(held).count();
            assert!(holds > 0 && candidates.len() <= 4 * holds + 8, "{holds} of {candidates:?}");
        }
    }

    /// All members compute equal replicas for ever, also across versions of the library.
    #[test]
    fn replicas_never_change() {
        let mut random = Random(68);
        let mut digest = 0;
        for _ in 0..2000 {
            let (placement, view, leaving) = random_job(&mut random);
            let partition = random.below(placement.partitions as u64) as usize;
            let preference = placement.preference(partition);
            let told = placement.replicas(partition, &preference, &view, &leaving);
            digest = mix(digest ^ told.configuration);
            for member in told.members.iter().chain(&preference) {
                digest = mix(digest ^ u64::from(member.0));
            }
        }
        assert_eq!(digest, 16_444_495_751_870_299_177);
    }

    /// All members compute equal hashes for ever, also across versions of the library.
    #[test]
    fn key_hashes_never_change() {
        assert_eq!(hash_key(b""), 16294208416658607535);
        assert_eq!(hash_key(b"result/9"), hash_key(b"result/9"));
        assert_ne!(hash_key(b"a"), hash_key(b"a\0"));
    }
}

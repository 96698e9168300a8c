//! Where copies belong.
//!
//! For each partition all members stand in an order of preference that never changes; its replicas
//! are the first ones of that order that are active and live. So a death moves only what the dead
//! held, and a replica stays a replica as long as it lives; the protocol depends on that. The order
//! begins with as many regular members as there are copies, then come the spares, which thereby
//! take the place of the dead, then the other regular members, each group by rendezvous hash.
//!
//! Where failure domains are given, replicas are first taken from different outermost domains, in
//! the order, and only then from the rest. Taking at most one of each domain in a fixed order has
//! the property that is needed here: when one is taken away, the others stay, and at most one comes
//! in. A spare that is activated would break it, whether it stands in the middle of the order or
//! brings a new domain; so the spares then come last, and only among the rest.

pub(in crate::store) mod heir;
pub(in crate::store) mod replica;

use crate::engine::{MemberId, MemberSet, View};
use crate::store::segment::head::CONFIG_NUMBER_MAX;

/// The most copies of a value.
pub const REPLICAS_MAX: usize = 8;

/// The most members that leave and are replicas of one partition meanwhile. Members leave one after
/// the other; only when the record that sees to that was lost can there be several.
const LEAVERS_MAX: usize = 2;

/// The longest list of replicas.
pub(in crate::store) const REPLICA_LIST_MAX: usize = REPLICAS_MAX + LEAVERS_MAX;

/// Computes where the copies of each partition belong.
#[derive(Debug)]
pub(in crate::store) struct Placement {
    regulars: usize,
    members: usize,
    pub(in crate::store) replicas: usize,
    pub(in crate::store) partitions: usize,
    /// Per member its outermost failure domain; empty if nothing is known.
    domains: Vec<String>,
}

/// Where the copies of one partition belong under one view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct Assignment {
    /// The replicas, the most preferred one first.
    pub(in crate::store) members: Vec<MemberId>,
    /// Grows exactly when the list changes; 1 while nobody has died.
    pub(in crate::store) configuration: u64,
}

/// A strong mixing of 64 bits (the finalizer of splitmix64): stable for ever, since all members
/// must agree.
pub(in crate::store) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The hash of a key; stable for ever.
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

    /// The partition of a key.
    pub(in crate::store) fn partition(&self, hash: u64) -> usize {
        // The upper half of the hash; buckets are chosen by the lower one.
        ((hash >> 32) as usize * self.partitions) >> 32
    }

    /// All members in the partition's order of preference.
    pub(in crate::store) fn preference(&self, partition: usize) -> Vec<MemberId> {
        let score = |member: usize| mix(mix(partition as u64 + 1) ^ (member as u64 + 1));
        let mut regulars: Vec<usize> = (0..self.regulars).collect();
        regulars.sort_unstable_by_key(|&member| (score(member), member));
        let first =
            if self.has_domains() { self.regulars } else { self.replicas.min(self.regulars) };
        let spares = self.regulars..self.members;
        let order = regulars[..first]
            .iter()
            .copied()
            .chain(spares)
            .chain(regulars[first..].iter().copied());
        order.map(|member| MemberId(member as u32)).collect()
    }

    fn has_domains(&self) -> bool {
        self.domains.iter().any(|domain| !domain.is_empty())
    }

    /// The replicas under a view, from the partition's order of preference; those who leave are
    /// replicas beside the R.
    pub(in crate::store) fn replicas(
        &self,
        preference: &[MemberId],
        view: &View,
        leaving: &MemberSet,
    ) -> Assignment {
        let is_leaving = |member: MemberId| leaving.contains(member) && view.is_living(member);
        // The spares that will be active when those who leave are gone: they are replicas from now
        // on, or the copies would be handed on to others, whom the spares then replace.
        let later;
        let active = if leaving.iter().any(is_leaving) {
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
        }
        for is_chosen in &mut chosen {
            if count < self.replicas && !*is_chosen {
                *is_chosen = true;
                count += 1;
            }
        }
        let chosen: Vec<MemberId> = candidates
            .iter()
            .zip(&chosen)
            .filter(|(_, chosen)| **chosen)
            .map(|(member, _)| *member)
            .collect();
        // The dead and the leaving that stand before the last replica: their number grows exactly
        // when the list changes. With too few replicas, or with domains, by which the last replica
        // may stand further to the front than the one before, all of them: more changes than
        // needed, but none is missed. A member that leaves counts once, and once more when it is
        // gone.
        let last = chosen.last().filter(|_| count == self.replicas && !self.has_domains());
        let last = last.map_or(preference.len(), |last| {
            preference.iter().position(|member| member == last).expect("chosen from it") + 1
        });
        let before = &preference[..last];
        let dead = before.iter().filter(|&&member| !view.is_living(member)).count();
        let leavers = before.iter().filter(|&&member| is_leaving(member)).count();
        let is_replica = |member: &MemberId| {
            chosen.contains(member) || is_leaving(*member) && view.is_active(*member)
        };
        let members = before.iter().copied().filter(is_replica).collect();
        // Only the last one of the most members that a job may have comes beyond it: nobody is left
        // whom it could be mistaken by, and its number must not be the mark of removed records.
        Assignment {
            members,
            configuration: ((1 + 2 * dead + leavers) as u64).min(CONFIG_NUMBER_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(regulars: usize, spares: usize, dead: &[u32]) -> View {
        View::new(regulars, spares, dead.iter().copied().map(MemberId).collect(), MemberSet::new())
    }

    /// The last one of the largest job goes on.
    #[test]
    fn the_number_of_a_configuration_is_never_the_mark_of_removed_records() {
        let members = crate::engine::MEMBERS_MAX;
        let placement = placement(members, 0, 3);
        let preference = placement.preference(0);
        let dead: Vec<u32> = preference[..members - 1].iter().map(|member| member.0).collect();
        let last = placement.replicas(&preference, &view(members, 0, &dead), &MemberSet::new());
        let before =
            placement.replicas(&preference, &view(members, 0, &dead[1..]), &MemberSet::new());
        assert_eq!(last.members, [preference[members - 1]]);
        assert!(
            before.configuration < last.configuration && last.configuration <= CONFIG_NUMBER_MAX,
            "{last:?}"
        );
    }

    #[test]
    fn those_to_whom_copies_are_handed_on_are_the_homes_when_the_leaver_is_gone() {
        for (regulars, spares, replicas) in [(4, 0, 2), (3, 1, 1), (4, 2, 2), (5, 1, 3)] {
            let placement = placement(regulars, spares, replicas);
            for partition in 0..64 {
                let preference = placement.preference(partition);
                for leaver in 0..(regulars + spares) as u32 {
                    for dead in (0..(regulars + spares) as u32).filter(|&dead| dead != leaver) {
                        for dead in [&[][..], &[dead]] {
                            let leaving = [MemberId(leaver)].into_iter().collect();
                            let before = placement.replicas(
                                &preference,
                                &view(regulars, spares, dead),
                                &leaving,
                            );
                            let dead = [dead, &[leaver]].concat();
                            let gone = view(regulars, spares, &dead);
                            let after = placement.replicas(&preference, &gone, &leaving);
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
                for replica in
                    placement.replicas(&orders[partition], &view, &MemberSet::new()).members
                {
                    load[replica.index()] += 1;
                }
            }
            let mean = 100_000 * replicas / 64;
            let fullest = *load.iter().max().unwrap();
            assert!(
                fullest * 100 <= mean * 125,
                "fullest {fullest}, mean {mean}, {replicas} copies"
            );
        }
    }

    /// Over random sequences of deaths: a replica stays a replica while it lives, and the number
    /// grows with each change.
    #[test]
    fn only_what_was_lost_moves() {
        only_what_was_lost_moves_in(&placement(8, 3, 3));
        let racks = |member: usize| format!("rack{}", mix(member as u64) % 4);
        only_what_was_lost_moves_in(&Placement::new(8, 3, 3, 64, (0..11).map(racks).collect()));
    }

    fn only_what_was_lost_moves_in(placement: &Placement) {
        for partition in 0..64 {
            let preference = placement.preference(partition);
            for sequence in 0..32u64 {
                let mut dead: Vec<u32> = Vec::new();
                let mut before =
                    placement.replicas(&preference, &view(8, 3, &dead), &MemberSet::new());
                for step in 0..9 {
                    let living: Vec<u32> =
                        (0..11).filter(|member| !dead.contains(member)).collect();
                    dead.push(living[(mix(sequence * 100 + step) % living.len() as u64) as usize]);
                    let after =
                        placement.replicas(&preference, &view(8, 3, &dead), &MemberSet::new());
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

    /// Over random sequences of deaths, announcements of leaving, and departures: a replica stays
    /// one while it lives, also while it leaves; the number grows with each change; and R replicas,
    /// or all that there are, stay.
    #[test]
    fn who_leaves_stays_a_home_until_it_is_gone() {
        let racks = |member: usize| format!("rack{}", mix(member as u64) % 4);
        let with_domains = Placement::new(8, 0, 2, 64, (0..8).map(racks).collect());
        for placement in [placement(8, 0, 2), with_domains] {
            for partition in 0..64 {
                let preference = placement.preference(partition);
                for sequence in 0..32u64 {
                    let (mut dead, mut leaving) = (Vec::new(), MemberSet::new());
                    let mut before = placement.replicas(&preference, &view(8, 0, &dead), &leaving);
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
                        let after = placement.replicas(&preference, &view(8, 0, &dead), &leaving);
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
    fn a_spare_takes_the_place_of_the_dead() {
        let placement = placement(6, 1, 2);
        for partition in 0..100 {
            let preference = placement.preference(partition);
            let before =
                placement.replicas(&preference, &view(6, 1, &[]), &MemberSet::new()).members;
            let after = placement
                .replicas(&preference, &view(6, 1, &[before[0].0]), &MemberSet::new())
                .members;
            assert_eq!(after, [before[1], MemberId(6)]);
        }
    }

    #[test]
    fn copies_are_in_different_domains() {
        let domains = (0..6).map(|member| format!("rack{}/node{member}", member / 2)).collect();
        let placement = Placement::new(6, 0, 3, 64, domains);
        for partition in 0..64 {
            let preference = placement.preference(partition);
            for dead in [vec![], vec![preference[0].0], vec![preference[0].0, preference[1].0]] {
                let replicas =
                    placement.replicas(&preference, &view(6, 0, &dead), &MemberSet::new()).members;
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

    /// All members must compute the same for ever, also across versions of the library.
    #[test]
    fn hashes_are_what_they_were() {
        assert_eq!(hash_key(b""), 16294208416658607535);
        assert_eq!(hash_key(b"result/9"), hash_key(b"result/9"));
        assert_ne!(hash_key(b"a"), hash_key(b"a\0"));
    }
}

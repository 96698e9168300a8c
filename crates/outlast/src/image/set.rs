//! Sets: which members hold the pieces of an image.
//!
//! The failure domains of the level `apart` are dealt into rows of n: row r has every ⌊D/n⌋-th
//! domain from r on, so that the domains of a row are far apart in the levels above. The i-th
//! members of the domains of a row are a set. A dead member is replaced by the living member of
//! an unused domain that a rendezvous hash prefers. Where there is none, the set is smaller.

use super::options::{Level, Options};
use super::stripe::hash_key;
use crate::engine::{MemberId, View};
use crate::store::mutant;
use std::collections::{BTreeMap, BTreeSet};

/// The domains of a job at a level, and the sets that they make.
#[derive(Clone, Debug)]
pub(super) struct Sets {
    /// The domain of each member at the level at which sets are apart.
    domains: Vec<String>,
    /// The set of each regular member, the member first.
    sets: Vec<Vec<MemberId>>,
    /// Whether the level that was asked for has too few domains.
    pub(super) is_lower: bool,
}

/// A domain path, cut off at a level. A member without a known domain is a domain of its own.
fn domain_at(path: &str, member: usize, level: Level) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let depth = match level {
        Level::Member => 0,
        Level::Outermost => 1,
        Level::Depth(depth) => depth.max(1),
        Level::Innermost => parts.len(),
    };
    match parts.is_empty() || depth == 0 {
        true => format!("#{member}"),
        false => parts[..depth.min(parts.len())].join("/"),
    }
}

impl Sets {
    /// The sets of a job with these domain paths of all its members, of which the first `regulars`
    /// are active from the start.
    pub(super) fn new(paths: &[String], regulars: usize, options: &Options) -> Sets {
        let wanted = options.set.min(regulars);
        let depth_max = paths.iter().map(|path| path.split('/').count()).max().unwrap_or(1);
        let first = match options.apart {
            Level::Outermost => 1,
            Level::Depth(depth) => depth.max(1),
            Level::Innermost => depth_max,
            Level::Member => depth_max + 1,
        };
        let levels = (first..=depth_max).map(Level::Depth).chain([Level::Member]);
        let at = |level| -> Vec<String> {
            let domain = |(member, path): (usize, &String)| domain_at(path, member, level);
            paths.iter().enumerate().map(domain).collect()
        };
        let count = |domains: &[String]| domains[..regulars].iter().collect::<BTreeSet<_>>().len();
        let asked = at(options.apart);
        let mut domains = asked.clone();
        for level in levels {
            domains = at(level);
            if count(&domains) >= wanted {
                break;
            }
        }
        let is_lower = count(&asked) < options.set;
        let mut members_of: BTreeMap<&str, Vec<MemberId>> = BTreeMap::new();
        for (member, domain) in domains[..regulars].iter().enumerate() {
            members_of.entry(domain).or_default().push(MemberId(member as u32));
        }
        let members_of: Vec<Vec<MemberId>> = members_of.into_values().collect();
        let rows = (members_of.len() / wanted).max(1);
        let mut sets = vec![Vec::new(); regulars];
        for (index, members) in members_of.iter().enumerate() {
            let row: Vec<&Vec<MemberId>> =
                members_of.iter().skip(index % rows).step_by(rows).collect();
            let own = index / rows;
            for (place, member) in members.iter().enumerate() {
                // Each owner begins at its own domain, so that parity pieces are spread as data.
                let of_domain = |domain: usize| {
                    let of = row[(own + domain) % row.len()];
                    of[place % of.len()]
                };
                sets[member.index()] = (0..row.len()).map(of_domain).collect();
            }
        }
        Sets { domains, sets, is_lower }
    }

    /// How many extents each member lends: as many as the member with the most pieces needs, and
    /// no fewer than in a job in which each set has as many members as was asked for. A smaller set
    /// has longer pieces.
    pub(super) fn extents(&self, options: &Options) -> u64 {
        let mut held: Vec<Vec<usize>> = vec![Vec::new(); self.sets.len()];
        for set in &self.sets {
            set.iter().for_each(|member| held[member.index()].push(set.len()));
        }
        let asked = options.extents(std::iter::repeat_n(options.set, options.set));
        let needed = held.into_iter().map(|sets| options.extents(sets.into_iter())).max();
        asked.max(needed.unwrap_or(0))
    }

    /// The members that hold the next image of an owner under a view, all in different domains.
    pub(super) fn choose(&self, owner: MemberId, view: &View) -> Vec<MemberId> {
        let base = &self.sets[owner.index() % self.sets.len()];
        let is_usable =
            |member: &MemberId| view.is_living(*member) && view.active.contains(*member);
        let mut chosen: Vec<MemberId> = base.iter().copied().filter(is_usable).collect();
        for member in self.candidates(owner, &chosen, view) {
            let is_apart = chosen.iter().all(|other| self.domain(*other) != self.domain(member))
                || mutant("image-same-domain");
            if chosen.len() < base.len() && is_apart {
                chosen.push(member);
            }
        }
        chosen
    }

    /// The living members that may take the place of a dead member in a set: members of unused
    /// domains first, each group by rendezvous hash.
    pub(super) fn candidates(
        &self,
        owner: MemberId,
        set: &[MemberId],
        view: &View,
    ) -> Vec<MemberId> {
        let score =
            |member: MemberId| hash_key(&[owner.0.to_le_bytes(), member.0.to_le_bytes()].concat());
        let is_used =
            |member: MemberId| set.iter().any(|other| self.domain(*other) == self.domain(member));
        let mut members: Vec<MemberId> = (0..self.domains.len() as u32)
            .map(MemberId)
            .filter(|member| view.is_living(*member) && view.active.contains(*member))
            .filter(|member| !set.contains(member))
            .collect();
        members.sort_by_key(|member| (is_used(*member), score(*member)));
        members
    }

    fn domain(&self, member: MemberId) -> &str {
        &self.domains[member.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::MemberSet;

    fn sets(paths: &[&str], options: &Options) -> Sets {
        let paths: Vec<String> = paths.iter().map(|path| path.to_string()).collect();
        Sets::new(&paths, paths.len(), options)
    }

    fn view(members: usize, dead: &[u32]) -> View {
        let dead: MemberSet = dead.iter().map(|member| MemberId(*member)).collect();
        View::new(members, 0, dead, MemberSet::new())
    }

    #[test]
    fn the_members_of_a_set_are_in_different_domains_whichever_members_die() {
        let paths: Vec<String> =
            (0..24).map(|member| format!("rack{}/node{}", member / 8, member / 2)).collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        for (level, depth) in [(Level::Innermost, 2), (Level::Outermost, 1), (Level::Depth(2), 2)] {
            let set = if depth == 1 { 3 } else { 4 };
            let sets = sets(&paths, &Options::new(1).set(set).lose(1).apart(level));
            assert!(!sets.is_lower);
            for dead in [&[][..], &[0], &[0, 1, 2, 3], &[4, 9, 14, 19], &[0, 1, 2, 3, 4, 5, 6, 7]] {
                let view = view(24, dead);
                for owner in (0..24).map(MemberId).filter(|owner| view.is_living(*owner)) {
                    let chosen = sets.choose(owner, &view);
                    assert_eq!(chosen[0], owner, "an owner holds a piece of its image");
                    let domain = |member: &MemberId| {
                        let path = paths[member.index()];
                        if depth == 1 { path.split('/').next().unwrap() } else { path }.to_string()
                    };
                    let domains: BTreeSet<String> = chosen.iter().map(domain).collect();
                    assert_eq!(domains.len(), chosen.len(), "{chosen:?} with {dead:?} dead");
                    assert!(chosen.iter().all(|member| view.is_living(*member)));
                    let living = if depth == 1 && dead.len() == 8 { 2 } else { set };
                    assert_eq!(chosen.len(), living, "{dead:?}");
                }
            }
        }
    }

    #[test]
    fn where_domains_do_not_suffice_a_lower_level_is_used() {
        let paths = ["a/1", "a/2", "b/3", "b/4"];
        let outer = sets(&paths, &Options::new(1).set(4).lose(1).apart(Level::Outermost));
        assert!(outer.is_lower);
        assert_eq!(outer.choose(MemberId(0), &view(4, &[])).len(), 4);
        // Members of an unknown domain, and of a single host, are domains of their own.
        for paths in [["", "", ""], ["host", "host", "host"]] {
            let sets = sets(&paths, &Options::new(1).set(3).lose(1));
            assert_eq!(sets.choose(MemberId(1), &view(3, &[])).len(), 3);
        }
        let small = sets(&["", ""], &Options::new(1).set(8).lose(2));
        assert!(small.is_lower);
        assert_eq!(small.choose(MemberId(0), &view(2, &[])).len(), 2);
    }

    #[test]
    fn rows_divide_the_domains() {
        let paths: Vec<String> = (0..10).map(|node| format!("node{node}")).collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        let sets = sets(&paths, &Options::new(1).set(4).lose(1));
        let view = view(10, &[]);
        for owner in (0..10).map(MemberId) {
            let mut own = sets.choose(owner, &view);
            assert_eq!(own.len(), 5, "ten domains make two rows of five");
            own.sort();
            for other in own.clone() {
                let mut set = sets.choose(other, &view);
                set.sort();
                assert_eq!(set, own, "a set is the set of each of its members");
            }
        }
    }
}

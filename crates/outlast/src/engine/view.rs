//! The view: which members are active, and which are dead.

use std::fmt;

/// A member of the job: its number from 0. Never renumbered and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u32);

impl MemberId {
    /// The number as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "member {}", self.0)
    }
}

/// The number of the dead in a view. It only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// For operations that belong to no particular view: never refused as stale.
    pub const ANY: Epoch = Epoch(u64::MAX);
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}", self.0)
    }
}

/// A set of members, as a bitmap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct MemberSet {
    /// Bit `m % 64` of word `m / 64`; no trailing zero words, so that equal sets are equal.
    words: Vec<u64>,
}

impl MemberSet {
    /// The empty set.
    pub fn new() -> MemberSet {
        MemberSet::default()
    }

    /// The members `0..count`.
    pub fn first(count: usize) -> MemberSet {
        let mut words = vec![u64::MAX; count / 64];
        if !count.is_multiple_of(64) {
            words.push((1 << (count % 64)) - 1);
        }
        MemberSet { words }
    }

    /// Adds a member; returns whether it was new.
    pub fn insert(&mut self, member: MemberId) -> bool {
        let (word, bit) = (member.index() / 64, 1 << (member.index() % 64));
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        is_new
    }

    /// Whether a member is in the set.
    pub fn contains(&self, member: MemberId) -> bool {
        self.words
            .get(member.index() / 64)
            .is_some_and(|word| word & (1 << (member.index() % 64)) != 0)
    }

    /// How many members are in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set has no members.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The members in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            // Each step clears the lowest bit.
            let bits = std::iter::successors(Some(word), |rest| Some(rest & rest.wrapping_sub(1)));
            bits.take_while(|&rest| rest != 0)
                .map(move |rest| MemberId((index * 64) as u32 + rest.trailing_zeros()))
        })
    }

    /// Adds all members of `other`; returns whether that changed the set.
    pub fn union_with(&mut self, other: &MemberSet) -> bool {
        let before = self.len();
        for member in other.iter() {
            self.insert(member);
        }
        self.len() != before
    }

    /// Whether all members of this set are in `other`.
    pub fn is_subset(&self, other: &MemberSet) -> bool {
        self.iter().all(|member| other.contains(member))
    }
}

impl FromIterator<MemberId> for MemberSet {
    fn from_iter<I: IntoIterator<Item = MemberId>>(members: I) -> MemberSet {
        let mut set = MemberSet::new();
        for member in members {
            set.insert(member);
        }
        set
    }
}

impl fmt::Display for MemberSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.iter().map(|member| member.0.to_string()).collect();
        write!(f, "{{{}}}", numbers.join(", "))
    }
}

/// What a member knows: which members are dead, and hence which are active.
///
/// Members `0..regulars` are active from the start, the others are *spares*: alive, without data. A
/// dead active member is replaced by the next spare in order. The active set is a function of the
/// dead alone, so that members with equal sets of the dead agree on it, in whichever order they
/// learned of the deaths. It only grows, as the set of the dead does.
///
/// ```
/// use outlast::{MemberId, MemberSet, View};
/// let view = View::new(4, 1, [MemberId(2)].into_iter().collect(), MemberSet::new());
/// assert_eq!(view.epoch.0, 1);
/// assert!(view.is_active(MemberId(4)), "the spare has taken the dead member's place");
/// assert_eq!(view.active_living().count(), 4);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The number of the dead.
    pub epoch: Epoch,
    /// The members that were active at some time, the dead included.
    pub active: MemberSet,
    /// The dead. Members that left count as dead.
    pub dead: MemberSet,
    /// The dead that left on purpose.
    pub left: MemberSet,
    /// How many members were active from the start.
    pub regulars: usize,
    /// How many members the job was started with, spares included.
    pub members: usize,
}

impl View {
    /// The view of a job of `regulars` members and `spares` spares, in which the members in `dead`
    /// are dead, and the members in `left` of them on purpose.
    pub fn new(regulars: usize, spares: usize, dead: MemberSet, left: MemberSet) -> View {
        let members = regulars + spares;
        let mut active = MemberSet::first(regulars);
        let mut wanted = dead.iter().filter(|member| member.index() < regulars).count();
        for spare in (regulars..members).map(|index| MemberId(index as u32)) {
            if wanted == 0 {
                break;
            }
            active.insert(spare);
            if !dead.contains(spare) {
                wanted -= 1;
            }
        }
        View { epoch: Epoch(dead.len() as u64), active, dead, left, regulars, members }
    }

    /// Whether a member lives, as far as this view knows.
    pub fn is_living(&self, member: MemberId) -> bool {
        member.index() < self.members && !self.dead.contains(member)
    }

    /// Whether a member holds data: it is a regular member, or a spare that was activated.
    pub fn is_active(&self, member: MemberId) -> bool {
        self.active.contains(member)
    }

    /// The living members, spares included.
    pub fn living(&self) -> impl Iterator<Item = MemberId> + '_ {
        (0..self.members as u32).map(MemberId).filter(|&member| self.is_living(member))
    }

    /// The living active members.
    pub fn active_living(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.active.iter().filter(|&member| self.is_living(member))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(members: &[u32]) -> MemberSet {
        members.iter().copied().map(MemberId).collect()
    }

    #[test]
    fn a_set_lists_its_members_in_order() {
        let members = set(&[200, 3, 64, 63, 3]);
        assert_eq!(members.iter().map(|m| m.0).collect::<Vec<_>>(), [3, 63, 64, 200]);
        assert_eq!(members.len(), 4);
        assert!(members.contains(MemberId(64)) && !members.contains(MemberId(65)));
        assert_eq!(members.to_string(), "{3, 63, 64, 200}");
    }

    #[test]
    fn the_first_members_are_a_set_as_if_they_had_been_inserted() {
        for count in [0, 1, 63, 64, 65, 128, 200] {
            let inserted: MemberSet = (0..count as u32).map(MemberId).collect();
            assert_eq!(MemberSet::first(count), inserted, "{count}");
        }
    }

    #[test]
    fn union_says_whether_it_changed_anything() {
        let mut members = set(&[1]);
        assert!(!members.union_with(&set(&[1])));
        assert!(members.union_with(&set(&[1, 70])));
        assert!(set(&[70]).is_subset(&members) && !set(&[71]).is_subset(&members));
    }

    #[test]
    fn spares_replace_the_dead_in_order_and_dead_spares_are_skipped() {
        let view = View::new(3, 3, set(&[0]), set(&[]));
        assert_eq!(view.active, set(&[0, 1, 2, 3]));
        let view = View::new(3, 3, set(&[0, 3]), set(&[]));
        assert_eq!(view.active, set(&[0, 1, 2, 3, 4]));
        let view = View::new(3, 1, set(&[0, 1, 3]), set(&[]));
        assert_eq!(view.active_living().collect::<Vec<_>>(), [MemberId(2)]);
    }

    /// Over all pairs of death sets of a small job: more deaths never take a member out of the
    /// active set.
    #[test]
    fn the_active_set_only_grows() {
        let (regulars, spares) = (3, 3);
        let sets: Vec<MemberSet> = (0..1u32 << (regulars + spares))
            .map(|bits| (0..6).filter(|m| bits & (1 << m) != 0).map(MemberId).collect())
            .collect();
        for small in &sets {
            for large in sets.iter().filter(|large| small.is_subset(large)) {
                let before = View::new(regulars, spares, small.clone(), MemberSet::new());
                let after = View::new(regulars, spares, large.clone(), MemberSet::new());
                assert!(before.active.is_subset(&after.active), "{small} then {large}");
            }
        }
    }
}

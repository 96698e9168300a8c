//! The members of a communicator, and sets of its ranks.

use crate::{MemberId, MemberSet};

const NO_RANK: u32 = u32::MAX;

/// The members of a communicator in the order of their ranks. A duplicate shares the group of its
/// original.
#[derive(Debug)]
pub(crate) struct Group {
    members: Vec<MemberId>,
    /// Per member of the job: its rank, or [`NO_RANK`].
    ranks: Vec<u32>,
    /// All members except this member.
    others: Vec<MemberId>,
    /// This member's own rank.
    pub(crate) me: usize,
}

impl Group {
    /// The group of these members, which must be distinct; `None` if `me` is not among them.
    pub(crate) fn new(members: Vec<MemberId>, me: MemberId) -> Option<Group> {
        let len = members.iter().map(|member| member.index() + 1).max().unwrap_or(0);
        let mut ranks = vec![NO_RANK; len];
        for (rank, member) in members.iter().enumerate() {
            ranks[member.index()] = rank as u32;
        }
        let others = members.iter().copied().filter(|&member| member != me).collect();
        let me = *ranks.get(me.index()).filter(|&&rank| rank != NO_RANK)? as usize;
        Some(Group { members, ranks, others, me })
    }

    pub(crate) fn size(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn members(&self) -> &[MemberId] {
        &self.members
    }

    pub(crate) fn others(&self) -> &[MemberId] {
        &self.others
    }

    pub(crate) fn member(&self, rank: usize) -> MemberId {
        self.members[rank]
    }

    pub(crate) fn rank_of(&self, member: MemberId) -> Option<usize> {
        self.ranks.get(member.index()).filter(|&&rank| rank != NO_RANK).map(|&rank| rank as usize)
    }

    /// The ranks of the `members` that belong to the group.
    pub(crate) fn ranks_of(&self, members: &MemberSet) -> RankSet {
        members.iter().filter_map(|member| self.rank_of(member)).collect()
    }
}

/// A set of ranks, as a bitmap. The empty set takes no memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct RankSet {
    /// No trailing zero words, so that equal sets are equal.
    words: Vec<u64>,
}

impl RankSet {
    pub(crate) fn insert(&mut self, rank: usize) {
        if self.words.len() <= rank / 64 {
            self.words.resize(rank / 64 + 1, 0);
        }
        self.words[rank / 64] |= 1 << (rank % 64);
    }

    pub(crate) fn contains(&self, rank: usize) -> bool {
        self.words.get(rank / 64).is_some_and(|word| word & (1 << (rank % 64)) != 0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.words.len() * 64).filter(|&rank| self.contains(rank))
    }

    pub(crate) fn union_with(&mut self, other: &RankSet) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (mine, theirs) in self.words.iter_mut().zip(&other.words) {
            *mine |= theirs;
        }
    }

    pub(crate) fn is_subset(&self, other: &RankSet) -> bool {
        self.words.iter().enumerate().all(|(index, &word)| {
            let theirs = other.words.get(index).copied().unwrap_or(0);
            word & !theirs == 0
        })
    }

    /// The ranks of this set that are not in `other`.
    pub(crate) fn without(&self, other: &RankSet) -> RankSet {
        let words = self.words.iter().enumerate();
        let words =
            words.map(|(index, &word)| word & !other.words.get(index).copied().unwrap_or(0));
        RankSet::from_words(words.collect())
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    pub(crate) fn from_words(mut words: Vec<u64>) -> RankSet {
        while words.last() == Some(&0) {
            words.pop();
        }
        RankSet { words }
    }

    pub(crate) fn to_vec(&self) -> Vec<usize> {
        self.iter().collect()
    }
}

impl FromIterator<usize> for RankSet {
    fn from_iter<I: IntoIterator<Item = usize>>(ranks: I) -> RankSet {
        let mut set = RankSet::default();
        for rank in ranks {
            set.insert(rank);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_knows_ranks_in_both_directions() {
        let group = Group::new(vec![MemberId(7), MemberId(2), MemberId(4)], MemberId(2)).unwrap();
        assert_eq!((group.me, group.size(), group.member(2)), (1, 3, MemberId(4)));
        assert_eq!(group.rank_of(MemberId(7)), Some(0));
        assert_eq!(group.rank_of(MemberId(3)), None);
        assert_eq!(group.rank_of(MemberId(300)), None);
        let dead: MemberSet = [MemberId(3), MemberId(4)].into_iter().collect();
        assert_eq!(group.ranks_of(&dead).to_vec(), [2]);
        assert!(Group::new(vec![MemberId(1)], MemberId(0)).is_none());
    }

    #[test]
    fn equal_rank_sets_compare_equal() {
        let large: RankSet = [1, 64, 200].into_iter().collect();
        let small: RankSet = [1].into_iter().collect();
        assert_eq!(large.without(&[64, 200].into_iter().collect()), small);
        assert!(small.is_subset(&large) && !large.is_subset(&small));
        assert_eq!(RankSet::from_words(vec![2, 0, 0]), small);
        let mut union = small.clone();
        union.union_with(&large);
        assert_eq!((union.len(), union), (3, large));
    }
}

//! The position of a replica in the list of a configuration, and sets of such positions.

use std::ops::{Index, IndexMut};

/// The position of a replica in the list of its configuration. A member is named by its
/// [`MemberId`](crate::engine::MemberId) instead: the two are never mixed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) struct ReplicaIndex(usize);

impl ReplicaIndex {
    #[inline(always)]
    pub(in crate::store) const fn new(index: usize) -> ReplicaIndex {
        ReplicaIndex(index)
    }

    /// The position as a number, for slices.
    #[inline(always)]
    pub(in crate::store) const fn index(self) -> usize {
        self.0
    }
}

/// Arrays with an element for each replica are indexed by the replica.
impl<T, const N: usize> Index<ReplicaIndex> for [T; N] {
    type Output = T;

    #[inline(always)]
    fn index(&self, replica: ReplicaIndex) -> &T {
        &self[replica.0]
    }
}

impl<T, const N: usize> IndexMut<ReplicaIndex> for [T; N] {
    #[inline(always)]
    fn index_mut(&mut self, replica: ReplicaIndex) -> &mut T {
        &mut self[replica.0]
    }
}

/// A set of replicas of a configuration, as a bit for each position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct ReplicaSet(u64);

impl ReplicaSet {
    pub(in crate::store) const EMPTY: ReplicaSet = ReplicaSet(0);

    /// The set that a word of memory holds.
    #[inline(always)]
    pub(in crate::store) const fn from_bits(bits: u64) -> ReplicaSet {
        ReplicaSet(bits)
    }

    /// The set as a word of memory.
    #[inline(always)]
    pub(in crate::store) const fn bits(self) -> u64 {
        self.0
    }

    /// The set of a single replica.
    #[inline(always)]
    pub(in crate::store) const fn only(replica: ReplicaIndex) -> ReplicaSet {
        ReplicaSet(1 << replica.0)
    }

    /// The set of the first `count` replicas.
    #[inline(always)]
    pub(in crate::store) const fn first(count: usize) -> ReplicaSet {
        ReplicaSet((1 << count) - 1)
    }

    #[inline(always)]
    pub(in crate::store) const fn contains(self, replica: ReplicaIndex) -> bool {
        self.0 & 1 << replica.0 != 0
    }

    #[inline(always)]
    pub(in crate::store) fn insert(&mut self, replica: ReplicaIndex) {
        self.0 |= 1 << replica.0;
    }

    #[inline(always)]
    pub(in crate::store) fn remove(&mut self, replica: ReplicaIndex) {
        self.0 &= !(1 << replica.0);
    }

    #[inline(always)]
    pub(in crate::store) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether each replica of this set is in the other set.
    #[inline(always)]
    pub(in crate::store) const fn is_subset(self, other: ReplicaSet) -> bool {
        self.0 & !other.0 == 0
    }

    /// The replicas of the set, in their order.
    pub(in crate::store) fn iter(self) -> impl Iterator<Item = ReplicaIndex> {
        (0..u64::BITS as usize).map(ReplicaIndex).filter(move |&replica| self.contains(replica))
    }
}

impl FromIterator<ReplicaIndex> for ReplicaSet {
    fn from_iter<I: IntoIterator<Item = ReplicaIndex>>(replicas: I) -> ReplicaSet {
        let mut set = ReplicaSet::EMPTY;
        replicas.into_iter().for_each(|replica| set.insert(replica));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_keeps_the_replicas_that_it_is_given() {
        let (first, third) = (ReplicaIndex::new(0), ReplicaIndex::new(2));
        let mut set = ReplicaSet::only(third);
        set.insert(first);
        assert_eq!(set.iter().collect::<Vec<_>>(), [first, third]);
        assert!(set.is_subset(ReplicaSet::first(3)) && !ReplicaSet::first(3).is_subset(set));
        set.remove(first);
        assert_eq!(set, [third].into_iter().collect());
        assert!(!set.is_empty() && ReplicaSet::EMPTY.is_empty());
        assert_eq!(ReplicaSet::from_bits(set.bits()), set);
        assert_eq!([10, 11, 12][third], 12);
    }
}

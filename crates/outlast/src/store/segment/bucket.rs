//! The buckets of an index: what a bucket word means, and which bucket has the nodes of a hash.
//!
//! An index is opened with a power of two of buckets, its *base*, and grows by doubling
//! (docs/protocol/growing.md). A bucket has a number, and the lower bits of a
//! hash select it. The first `base` buckets are tier 0. Tier k has the numbers from
//! `base << (k - 1)` to `base << k`, and lies at the offset in word k - 1 of the directory, which
//! follows tier 0.
//!
//! A bucket word says by how many bits beyond the base its nodes are selected, its *depth*. A
//! bucket of tier k has at least depth k. The bucket with the number i and depth d has the
//! *children* `i + (base << k)`, for each k from its tier to d.
//!
//! A walk over an index goes on by positions, of which each hash has one: its bucket of tier 0, and
//! then its next [`TIERS_MAX`] bits, the lowest bit first. So the hashes of a bucket are a range of
//! positions, whatever its depth, and a split divides the range in two.

/// The greatest number of tiers beside tier 0, and the number of words of a directory.
pub(in crate::store) const TIERS_MAX: usize = 16;

/// The length of a directory.
pub(in crate::store) const DIRECTORY_LEN: u64 = TIERS_MAX as u64 * 8;

/// The greatest number of buckets: nodes have the lower 32 bits of the hash.
pub(in crate::store) const BUCKET_COUNT_MAX: u64 = 1 << 31;

const DEPTH_SHIFT: u32 = 58;

/// A bucket word: `depth << 58 | offset of the first node`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct BucketWord(pub(in crate::store) u64);

impl BucketWord {
    pub(in crate::store) fn new(depth: usize, first: u64) -> BucketWord {
        BucketWord((depth as u64) << DEPTH_SHIFT | first)
    }

    /// The depth in the word. A greater depth than any index has is damage, and counts as the
    /// greatest.
    #[inline(always)]
    pub(in crate::store) fn depth(self) -> usize {
        ((self.0 >> DEPTH_SHIFT) as usize).min(TIERS_MAX)
    }

    /// The offset of the first node, 0 if there is none.
    #[inline(always)]
    pub(in crate::store) fn first(self) -> u64 {
        self.0 & ((1 << DEPTH_SHIFT) - 1)
    }
}

/// A bucket, as an activity loaded it.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Bucket {
    base: u64,
    /// Its number.
    pub(in crate::store) number: u64,
    pub(in crate::store) word: BucketWord,
    pub(in crate::store) depth: usize,
}

impl Bucket {
    fn new(base: u64, number: u64, word: BucketWord) -> Bucket {
        let (tier, _) = place_of(base, number);
        Bucket { base, number, word, depth: word.depth().max(tier) }
    }

    /// The bits of the hash in which a node of this bucket has the bucket's number.
    fn mask(&self) -> u64 {
        (self.base << self.depth) - 1
    }

    /// Whether the nodes of this hash belong to the bucket, and not to a child.
    pub(in crate::store) fn has(&self, hash: u64) -> bool {
        (hash ^ self.number) & self.mask() == 0
    }

    /// The position behind the last position of this bucket.
    pub(in crate::store) fn end(&self) -> u64 {
        position_of(self.base, self.number) + (1 << (TIERS_MAX - self.depth))
    }

    /// The child that has the nodes of this hash, or leads to them; `None` if this bucket has them.
    fn child(&self, hash: u64) -> Option<u64> {
        let other = (hash ^ self.number) & self.mask();
        (other != 0).then(|| self.number + (other & other.wrapping_neg()))
    }
}

/// The number of positions of a walk over an index.
pub(in crate::store) fn walk_len(base: u64) -> u64 {
    base << TIERS_MAX
}

/// The position of a hash in a walk.
pub(in crate::store) fn position_of(base: u64, hash: u64) -> u64 {
    (hash & (base - 1)) << TIERS_MAX | u64::from(((hash >> base.ilog2()) as u16).reverse_bits())
}

/// A hash with this position.
pub(in crate::store) fn hash_at(base: u64, position: u64) -> u64 {
    position >> TIERS_MAX | u64::from((position as u16).reverse_bits()) << base.ilog2()
}

/// The tier of a bucket, and its position there.
#[inline(always)]
pub(in crate::store) fn place_of(base: u64, number: u64) -> (usize, u64) {
    if number < base {
        return (0, number);
    }
    // The base is a power of two: this division of `number` by it needs no division.
    let tier = (number.ilog2() - base.ilog2()) as usize + 1;
    (tier, number - (base << (tier - 1)))
}

/// The bucket that has the nodes of a hash. The search begins at the bucket that the hash selects
/// at the depth `hint`. `load` returns the bucket word at a position of a tier.
#[inline(always)]
pub(in crate::store) fn find_bucket<E>(
    base: u64,
    hash: u64,
    hint: usize,
    mut load: impl FnMut(usize, u64) -> Result<u64, E>,
) -> Result<Bucket, E> {
    let (mut number, mut is_valid) = (hash & ((base << hint) - 1), false);
    loop {
        let (tier, position) = place_of(base, number);
        let word = BucketWord(load(tier, position)?);
        if tier > 0 && word.depth() == 0 && !is_valid {
            // The bucket is not split off yet, or its parent says so: the parent tells.
            number &= (base << (tier - 1)) - 1;
            continue;
        }
        let bucket = Bucket::new(base, number, word);
        // A child that a parent leads to is valid, whatever its own word says.
        match bucket.child(hash) {
            None => return Ok(bucket),
            Some(child) => (number, is_valid) = (child, true),
        }
    }
}

/// Visits all buckets whose numbers are equal to `first` modulo the base.
pub(in crate::store) fn for_each_bucket<E>(
    base: u64,
    first: u64,
    mut load: impl FnMut(usize, u64) -> Result<u64, E>,
    mut each: impl FnMut(&Bucket) -> Result<(), E>,
) -> Result<(), E> {
    let mut open = vec![first];
    while let Some(number) = open.pop() {
        let (tier, position) = place_of(base, number);
        let bucket = Bucket::new(base, number, BucketWord(load(tier, position)?));
        open.extend((tier..bucket.depth).map(|bit| number + (base << bit)));
        each(&bucket)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// An index whose buckets are split one by one: each hash is found in a single bucket, from
    /// every depth at which the search may begin, and a visit of all buckets finds it once.
    #[test]
    fn each_hash_belongs_to_a_single_bucket_while_an_index_grows() {
        const BASE: u64 = 4;
        let mut words: BTreeMap<(usize, u64), u64> = BTreeMap::new();
        let hashes: Vec<u64> =
            (0..200u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7).collect();
        for depth in 0..4 {
            for number in 0..BASE << depth {
                let child = number + (BASE << depth);
                let deeper = BucketWord::new(depth + 1, 0).0;
                words.insert(place_of(BASE, number), deeper);
                // A search that begins at the child of a stopped replica finds the parent first.
                for is_marked in [false, true] {
                    if is_marked {
                        words.insert(place_of(BASE, child), deeper);
                    }
                    let load = |tier, position| -> Result<u64, ()> {
                        Ok(words.get(&(tier, position)).copied().unwrap_or(0))
                    };
                    let mut visited = Vec::new();
                    for first in 0..BASE {
                        for_each_bucket(BASE, first, load, |bucket| {
                            visited.push(*bucket);
                            Ok(())
                        })
                        .expect("visited");
                    }
                    assert_eq!(visited.len() as u64, child + 1);
                    let (mut walked, mut position) = (Vec::new(), 0);
                    while position < walk_len(BASE) {
                        let hash = hash_at(BASE, position);
                        assert_eq!(position_of(BASE, hash), position);
                        let bucket = find_bucket(BASE, hash, 0, load).expect("found");
                        walked.push(bucket.number);
                        position = bucket.end();
                    }
                    walked.sort_unstable();
                    assert!(walked.into_iter().eq(0..=child), "each bucket once");
                    for &hash in &hashes {
                        let found = find_bucket(BASE, hash, 0, load).expect("found").number;
                        for hint in 1..=depth + 1 {
                            assert_eq!(
                                find_bucket(BASE, hash, hint, load).map(|it| it.number),
                                Ok(found)
                            );
                        }
                        let owners: Vec<_> =
                            visited.iter().filter(|bucket| bucket.has(hash)).collect();
                        assert!(owners.len() == 1 && owners[0].number == found, "{owners:?}");
                    }
                }
            }
        }
    }
}

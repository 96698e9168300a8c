//! The index of a partition at a replica: buckets of linked nodes, each with a key and its head
//! word.
//!
//! A member inserts a node at the front of a bucket, by a swap of the bucket word. If two members
//! insert a key at once, both swap this word, so the slower of them sees the node of the other.
//!
//! 1. The operation takes a block and fills it with the key, an empty head word and the first node
//!    of the bucket. If the member dies or stops here, no node names the block, and its replica
//!    reclaims it from its dead holder.
//! 2. The operation swaps the bucket word. From then on all members see the node. If the member
//!    dies or stops here, they find an empty record, which means nothing.
//!
//! Only the replica itself unlinks nodes. No other member changes the `next` word of a node. The
//! replica also splits buckets when there are many nodes in them (`grow.rs`). A bucket word has the
//! depth of its bucket, so an insertion into a bucket that was split meanwhile loses its swap.

use crate::engine::MemberId;
use crate::store::error::StoreError;
use crate::store::mutant::mutant;
use crate::store::operation::configuration::Configuration;
use crate::store::operation::error::{OpError, OpResult, check_place};
use crate::store::operation::open_swaps::SwapBlocks;
use crate::store::placement::replica::ReplicaIndex;
use crate::store::record::key::KeyRef;
use crate::store::record::state::RecordOp;
use crate::store::segment::bucket::{
    Bucket, BucketWord, TIERS_MAX, find_bucket, for_each_bucket, hash_at, place_of, position_of,
};
use crate::store::segment::head::Head;
use crate::store::segment::layout::{
    HOLDER_MASK, NODE_HEAD, NODE_KEY, NODE_NEXT, NODE_WORD, class_of, holder,
};
use crate::store::segment::place::Place;

/// A node, as an operation read it.
#[derive(Clone, Debug)]
pub(in crate::store) struct Node {
    pub(in crate::store) key: Vec<u8>,
    pub(in crate::store) head: Head,
}

/// The word of a node that tells keys apart: the lower half of the hash, the length of the key, and
/// the holder of the block.
pub(in crate::store::record) fn node_word(key: &KeyRef<'_>, holder: u64) -> u64 {
    (key.hash & 0xffff_ffff) << 32 | (key.key.len() as u64) << 16 | holder
}

/// The part of a node's word that tells keys apart: everything except the holder.
const WORD_MASK: u64 = !HOLDER_MASK;

/// The bytes of a node that are read at once: its words and the key, unless the key is long.
const NODE_READ: usize = 8 * NODE_READ_WORDS;

/// The words of a node that are read at once.
pub(in crate::store::record) const NODE_READ_WORDS: usize = 8;

/// From this number of nodes in its bucket on, an insertion is reported to the replica.
const CROWDED: usize = 5;

/// A bucket word that is probably a key's.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::record) struct BucketGuess {
    depth: usize,
    /// The offset of the word.
    pub(in crate::store::record) at: u64,
}

/// The greatest length of a chain. A longer chain is a loop in damaged memory.
pub(in crate::store) const CHAIN_MAX: usize = 1 << 20;

/// The error for a chain without an end.
#[cold]
fn endless(member: MemberId) -> OpError {
    OpError::Fail(StoreError::Corrupt { member, what: "a chain of records has no end" })
}

impl<'a> RecordOp<'a> {
    /// The bucket word at a replica that is probably the key's.
    pub(in crate::store::record) fn guess_bucket(
        &self,
        config: &Configuration,
        replica: ReplicaIndex,
        key: &KeyRef<'_>,
    ) -> OpResult<BucketGuess> {
        let (base, depth) = (self.store.bucket_count as u64, config.index(replica).depth());
        let (tier, position) = place_of(base, key.hash & ((base << depth) - 1));
        let tier = self.tier(config, replica, key.partition, tier)?;
        Ok(BucketGuess { depth, at: tier + position * 8 })
    }

    /// The bucket of a hash at a replica, with the offset of its word. `loaded` is the word of a
    /// guess, if it was loaded already.
    pub(in crate::store::record) fn find_bucket(
        &self,
        config: &Configuration,
        replica: ReplicaIndex,
        partition: usize,
        hash: u64,
        loaded: Option<(BucketGuess, u64)>,
    ) -> OpResult<(u64, Bucket)> {
        let known = config.index(replica).depth();
        let hint = loaded.as_ref().map_or(known, |(guess, _)| guess.depth);
        let (mut loaded, mut at) = (loaded, 0);
        let load = |tier: usize, position: u64| {
            at = self.tier(config, replica, partition, tier)? + position * 8;
            match loaded.take() {
                Some((_, word)) => Ok(word),
                None => self.load(config.member(replica), at),
            }
        };
        let bucket = find_bucket(self.store.bucket_count as u64, hash, hint, load)?;
        if bucket.depth > known {
            // Damage in a bucket word leads no lookup of another bucket astray: the tier exists.
            self.tier(config, replica, partition, bucket.depth)?;
            config.raise_depth(replica, bucket.depth);
        }
        Ok((at, bucket))
    }

    /// Like [`RecordOp::find`], when the word of a guess was loaded already.
    #[inline]
    pub(in crate::store::record) fn find_loaded(
        &self,
        config: &Configuration,
        replica: ReplicaIndex,
        key: &KeyRef<'_>,
        loaded: (BucketGuess, u64),
    ) -> OpResult<Option<(u64, Head)>> {
        let (_, bucket) =
            self.find_bucket(config, replica, key.partition, key.hash, Some(loaded))?;
        Ok(self.find_from(config.member(replica), bucket.word.first(), key)?.0)
    }

    /// Whether the record at the primary with this head word is the key's, for a short key.
    pub(in crate::store::record) fn is_node_of(
        &self,
        config: &Configuration,
        word: u64,
        key: &KeyRef<'_>,
    ) -> OpResult<bool> {
        let mut node = [0; NODE_READ];
        self.get(config.primary_member(), word.wrapping_sub(NODE_HEAD), &mut node)?;
        let at = NODE_WORD as usize;
        let word = u64::from_ne_bytes(node[at..at + 8].try_into().expect("8 bytes"));
        Ok((word ^ node_word(key, 0)) & WORD_MASK == 0
            && node[NODE_KEY as usize..].starts_with(key.key))
    }

    /// The offset and the content of the head word of the key's record at a replica, if there is a
    /// record.
    #[inline]
    pub(in crate::store) fn find(
        &self,
        config: &Configuration,
        replica: ReplicaIndex,
        key: &KeyRef<'_>,
    ) -> OpResult<Option<(u64, Head)>> {
        let (_, bucket) = self.find_bucket(config, replica, key.partition, key.hash, None)?;
        Ok(self.find_from(config.member(replica), bucket.word.first(), key)?.0)
    }

    /// Like [`RecordOp::find`], from the first node of the bucket on. Returns the number of other
    /// nodes that it has read, too.
    #[inline]
    pub(in crate::store::record) fn find_from(
        &self,
        replica: MemberId,
        first: u64,
        key: &KeyRef<'_>,
    ) -> OpResult<(Option<(u64, Head)>, usize)> {
        let wanted = node_word(key, 0);
        let mut at = first;
        for count in 0..CHAIN_MAX {
            if at == 0 {
                return Ok((None, count));
            }
            check_place(replica, at)?;
            // No block is shorter than this read, and few keys are longer.
            let mut node = [0; NODE_READ];
            self.get(replica, at, &mut node)?;
            let word = |offset: u64| {
                let offset = offset as usize;
                u64::from_ne_bytes(node[offset..offset + 8].try_into().expect("8 bytes"))
            };
            if word(NODE_WORD) & WORD_MASK == wanted {
                let (begin, rest) =
                    key.key.split_at(key.key.len().min(NODE_READ - NODE_KEY as usize));
                let head = Head(word(NODE_HEAD));
                // A node that is being removed is no longer the key's record.
                if node[NODE_KEY as usize..].starts_with(begin)
                    && head != Head::REMOVED
                    && self.ends_with(replica, at + NODE_READ as u64, rest)?
                {
                    return Ok((Some((at + NODE_HEAD, head)), count));
                }
            }
            at = word(NODE_NEXT);
        }
        Err(endless(replica))
    }

    /// Whether the node's key ends with `rest`, which begins at `offset`.
    fn ends_with(&self, replica: MemberId, offset: u64, rest: &[u8]) -> OpResult<bool> {
        if rest.is_empty() {
            return Ok(true);
        }
        let mut found = vec![0; rest.len()];
        self.get(replica, offset, &mut found)?;
        Ok(found == rest)
    }

    /// The offset of the head word of the key's record at a replica. Makes an empty record if there
    /// is none.
    pub(in crate::store) fn find_or_insert(
        &self,
        config: &Configuration,
        replica: ReplicaIndex,
        key: &KeyRef<'_>,
    ) -> OpResult<u64> {
        self.find_or_make(config, replica, key).map(|(word, _)| word)
    }

    /// As [`RecordOp::find_or_insert`]. Also returns whether it has made the record.
    pub(in crate::store::record) fn find_or_make(
        &self,
        config: &Configuration,
        replica: ReplicaIndex,
        key: &KeyRef<'_>,
    ) -> OpResult<(u64, bool)> {
        let member = config.member(replica);
        let class = class_of(NODE_KEY + key.key.len() as u64).expect("keys are short");
        let mut fresh = None;
        let result = self.link(config, replica, key, class, &mut fresh);
        if let Some(unused) = fresh {
            self.keep(member, class, unused);
        }
        result
    }

    /// Finds the key's record in the bucket, or links a new node there, and returns whether it did
    /// that. A block that was taken for the node and not used is left in `fresh`, unless a request
    /// may still write to it or link it: the put is a straggler, so a grace period outlasts it, and
    /// the answer to the swap decides.
    fn link(
        &self,
        config: &Configuration,
        replica: ReplicaIndex,
        key: &KeyRef<'_>,
        class: usize,
        fresh: &mut Option<u64>,
    ) -> OpResult<(u64, bool)> {
        let (member, head) = (config.member(replica), config.empty_head());
        loop {
            let (at, bucket) = self.find_bucket(config, replica, key.partition, key.hash, None)?;
            let first = bucket.word.first();
            let (found, others) = self.find_from(member, first, key)?;
            if let Some((word, _)) = found {
                return Ok((word, false));
            }
            let node = match *fresh {
                Some(node) => node,
                None => *fresh.insert(self.take_block(member, class)?),
            };
            let mut bytes = Vec::with_capacity(NODE_KEY as usize + key.key.len());
            bytes.extend(first.to_ne_bytes());
            bytes.extend(head.0.to_ne_bytes());
            bytes.extend(node_word(key, holder(self.store.me())).to_ne_bytes());
            bytes.extend(key.key);
            if let Err(error) = self.put(member, node, &bytes) {
                if let OpError::Fail(_) = error {
                    *fresh = None;
                    self.retire(member, class, node);
                }
                return Err(error);
            }
            let blocks = || SwapBlocks::versions(None, Some(Place::new(member, class, node)));
            // The depth is a part of the word: the swap fails if the bucket was split meanwhile. A
            // bucket that its replica has not marked yet gets its depth here.
            let mut expected = bucket.word;
            if mutant("grow-insert-late") {
                let found = BucketWord(self.load(member, at)?);
                expected = if found.first() == first { found } else { expected };
            }
            let new = BucketWord::new(bucket.depth.max(expected.depth()), node);
            match self.swap_blocks(member, at, expected.0, new.0, blocks) {
                Ok(false) => {}
                Ok(true) => {
                    *fresh = None;
                    if others >= CROWDED {
                        self.store.report_crowded(member, key.partition);
                    }
                    return Ok((node + NODE_HEAD, true));
                }
                Err(error) => {
                    if let OpError::Fail(_) = error {
                        *fresh = None;
                    }
                    return Err(error);
                }
            }
        }
    }

    /// The nodes of the bucket at a position of a walk over the index of a replica, from this
    /// position on, and the position of the next bucket.
    pub(in crate::store) fn nodes(
        &self,
        config: &Configuration,
        replica: ReplicaIndex,
        partition: usize,
        position: u64,
    ) -> OpResult<(Vec<Node>, u64)> {
        let (base, mut nodes) = (self.store.bucket_count as u64, Vec::new());
        let hash = hash_at(base, position);
        let (_, bucket) = self.find_bucket(config, replica, partition, hash, None)?;
        self.nodes_of(config.member(replica), &bucket, position, &mut nodes)?;
        Ok((nodes, bucket.end()))
    }

    /// The nodes of a bucket and of all buckets that were split off it, in the index whose buckets
    /// are at the offset `buckets`.
    pub(in crate::store) fn nodes_at(
        &self,
        member: MemberId,
        buckets: u64,
        bucket: usize,
    ) -> OpResult<Vec<Node>> {
        let (mut nodes, mut tiers) = (Vec::new(), [0; TIERS_MAX + 1]);
        tiers[0] = buckets;
        let load = |tier: usize, position: u64| {
            if tiers[tier] == 0 {
                tiers[tier] = self.load_tier(member, buckets, tier)?;
            }
            self.load(member, tiers[tier] + position * 8)
        };
        for_each_bucket(self.store.bucket_count as u64, bucket as u64, load, |bucket| {
            self.nodes_of(member, bucket, 0, &mut nodes)
        })?;
        Ok(nodes)
    }

    /// Adds the nodes that belong to a bucket, from a position on. The chain may have nodes of
    /// other buckets, too.
    fn nodes_of(
        &self,
        member: MemberId,
        bucket: &Bucket,
        position: u64,
        nodes: &mut Vec<Node>,
    ) -> OpResult<()> {
        let base = self.store.bucket_count as u64;
        let is_of_bucket = |hash| bucket.has(hash) || mutant("grow-walk-twice");
        let is_wanted = |hash| is_of_bucket(hash) && position_of(base, hash) >= position;
        let mut at = bucket.word.first();
        // An earlier node of the chain, at a position that is a power of two. Each node is compared
        // with it, so that a loop is detected before it has filled the memory.
        let mut before = 0;
        for count in 1usize.. {
            if at == 0 {
                break;
            }
            check_place(member, at)?;
            if at == before || count > CHAIN_MAX {
                return Err(endless(member));
            }
            if count.is_power_of_two() {
                before = at;
            }
            let word = self.load(member, at + NODE_WORD)?;
            if is_wanted(word >> 32) {
                let len = ((word >> 16 & 0xffff) as usize).min(crate::store::KEY_LEN_MAX);
                let mut key = vec![0; len];
                self.get(member, at + NODE_KEY, &mut key)?;
                let head = Head(self.load(member, at + NODE_HEAD)?);
                if head != Head::REMOVED {
                    nodes.push(Node { key, head });
                }
            }
            at = self.load(member, at + NODE_NEXT)?;
        }
        Ok(())
    }
}

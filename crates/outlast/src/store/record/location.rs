//! Cached locations: where the record of a key was when a handle or this member last used it.
//!
//! A cached location is only a guess. The operation that uses it validates it:
//! docs/protocol/writing.md, "Cached locations and the fast paths".

use crate::engine::Epoch;
use crate::store::placement::REPLICA_LIST_MAX;
use crate::store::segment::head::Head;
use crate::store::segment::layout::{BLOCK_HEADER_LEN, Block, Kind};

/// What a handle knows of its key: the version that it saw last, and where the replicas hold it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(in crate::store) struct CachedLocation {
    /// The configuration in which the rest was true; 0 if nothing is cached.
    pub(in crate::store) config_number: u64,
    /// The offset of the primary's block when it was last read or written, 0 if it was not. The
    /// mapped fast path only prefetches it. A remote read gets the block at this offset and uses it
    /// only if the head word names it.
    pub(in crate::store::record) hint: u64,
    /// Per replica. The first entries are used most, and lie in the cache line of the fields above.
    pub(in crate::store) at: [CachedReplica; REPLICA_LIST_MAX],
    pub(in crate::store) version: CachedVersion,
    /// The length of the value in the block at `hint`.
    pub(in crate::store::record) hint_len: u64,
    /// Whether the call is by key, and not through a handle: its writes set the stable bit.
    pub(in crate::store::record) is_by_key: bool,
    /// The version that this member's own replica holds, if it is known to be stable. Only over a
    /// network, and at other replicas than the primary.
    pub(in crate::store::record) near: NearMark,
}

/// A near mark: a version that was stable, and where this member's own replica holds it.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::record) struct NearMark {
    /// The view under which the version was known to be stable. A near mark of an older view is not
    /// used: the next read asks the primary, and finishes what the dead left there.
    pub(in crate::store::record) epoch: Epoch,
    /// The own replica, as it was then. The offset of the head word is 0 if nothing is known.
    pub(in crate::store::record) at: CachedReplica,
    /// The number of writes of this member with an open outcome, from before the version was known
    /// to be stable. After a further such write the next read asks the primary, behind the request
    /// that was not answered.
    pub(in crate::store::record) open_writes: u64,
    /// The first two words of the block: which write made the version.
    pub(in crate::store::record) identity: [u64; 2],
}

impl NearMark {
    /// Nothing is known.
    pub(in crate::store::record) const NOTHING: NearMark = NearMark {
        epoch: Epoch::ANY,
        at: CachedReplica::NOTHING,
        open_writes: 0,
        identity: [0; 2],
    };
}

/// The version that the cached head words name.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct CachedVersion {
    /// The header of its blocks, as it lies there.
    words: [u64; BLOCK_HEADER_LEN as usize / 8],
    /// The size class of its blocks.
    pub(in crate::store) class: usize,
    /// The number of recoveries before the handle last wrote the key. `u64::MAX`, which no recovery
    /// reaches, if it never did.
    pub(in crate::store::record) recoveries: u64,
}

/// What a handle knows of the record at a replica.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct CachedReplica {
    /// The offset of the record's head word, 0 while unknown, and its content.
    pub(in crate::store) word: u64,
    pub(in crate::store) head: Head,
    /// The removal count of the replica. If it is unchanged, the record is where it was.
    pub(in crate::store) removals: u64,
}

impl CachedReplica {
    pub(in crate::store::record) const NOTHING: CachedReplica =
        CachedReplica { word: 0, head: Head(0), removals: 0 };
}

impl CachedVersion {
    /// No version. A write needs a predecessor that is not a tombstone.
    pub(in crate::store::record) const NOTHING: CachedVersion =
        CachedVersion { words: [0, 0, 1 << 63, 0], class: 0, recoveries: u64::MAX };

    /// The version with this header.
    #[inline(always)]
    pub(in crate::store::record) fn new(words: [u64; 4], class: usize) -> CachedVersion {
        CachedVersion { words, class, recoveries: u64::MAX }
    }

    /// The header, decoded.
    #[inline(always)]
    pub(in crate::store::record) fn block(&self) -> Block {
        Block::from_words(self.words)
    }

    /// Whether it is neither a tombstone nor a part of a transaction.
    #[inline(always)]
    pub(in crate::store::record) fn is_plain(&self) -> bool {
        let block = self.block();
        !block.is_deleted && block.kind == Kind::Plain
    }

    /// Whether it is a provisional version.
    #[inline(always)]
    pub(in crate::store::record) fn is_provisional(&self) -> bool {
        let block = self.block();
        !block.is_deleted && block.kind == Kind::Provisional
    }

    /// The header.
    #[inline(always)]
    pub(in crate::store::record) fn words(&self) -> [u64; 4] {
        self.words
    }
}

impl CachedLocation {
    /// Nothing is cached. No configuration has the number 0.
    pub(in crate::store) const NOTHING: CachedLocation = CachedLocation {
        config_number: 0,
        hint: 0,
        at: [CachedReplica::NOTHING; REPLICA_LIST_MAX],
        version: CachedVersion::NOTHING,
        hint_len: 0,
        is_by_key: false,
        near: NearMark::NOTHING,
    };

    /// Nothing is cached, for a call by key.
    pub(in crate::store::record) const NOTHING_BY_KEY: CachedLocation =
        CachedLocation { is_by_key: true, ..CachedLocation::NOTHING };

    /// Drops the cached location: the next call looks everything up.
    pub(in crate::store) fn forget(&mut self) {
        self.config_number = 0;
    }

    /// Begins anew in a configuration, in which nothing is known yet.
    pub(in crate::store::record) fn reset(&mut self, config_number: u64) {
        let is_by_key = self.is_by_key;
        *self = CachedLocation { config_number, is_by_key, ..CachedLocation::NOTHING };
    }

    /// Records the version that the caller wrote.
    pub(in crate::store::record) fn set_version(&mut self, block: &Block, class: usize) {
        (self.version.words, self.version.class) = (block.words(), class);
    }

    /// The parts that the mapped fast path uses.
    #[inline(always)]
    pub(in crate::store::record) fn fast(&mut self) -> FastLocation<'_> {
        FastLocation {
            config_number: &mut self.config_number,
            hint: &mut self.hint,
            version: &mut self.version,
            at: &mut self.at,
            source: LocationSource::Handle,
        }
    }
}

/// Whose location the mapped fast path uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::record) enum LocationSource {
    /// A handle, or an intent record. Its writes leave the stable bit out.
    Handle,
    /// The location cache, which knows the key by its hash alone.
    Cache,
    /// A transaction that has locked the key.
    Lock,
}

/// A cached location, as the mapped fast path uses it.
pub(in crate::store::record) struct FastLocation<'c> {
    pub(in crate::store::record) config_number: &'c mut u64,
    pub(in crate::store::record) hint: &'c mut u64,
    pub(in crate::store::record) version: &'c mut CachedVersion,
    pub(in crate::store::record) at: &'c mut [CachedReplica],
    pub(in crate::store::record) source: LocationSource,
}

//! Cached locations: where the record of a key was when a handle or this member last used it.
//!
//! A cached location is only a guess. The operation that uses it validates it:
//! docs/protocol/writing.md, "Cached locations and the fast paths".

use crate::engine::MemberId;
use crate::store::placement::REPLICA_LIST_MAX;
use crate::store::segment::head::Head;
use crate::store::segment::layout::{Block, Kind};

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
    /// The version that the cached head words name, and the size class of its blocks.
    pub(in crate::store) block: Block,
    pub(in crate::store) class: usize,
    /// The length of the value in the block at `hint`.
    pub(in crate::store::record) hint_len: u64,
    /// The number of recoveries before the handle last wrote the key. `u64::MAX`, which no recovery
    /// reaches, if it never did.
    pub(in crate::store) recoveries: u64,
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

impl CachedLocation {
    /// Nothing is cached. No configuration has the number 0.
    pub(in crate::store) const NOTHING: CachedLocation = CachedLocation {
        config_number: 0,
        hint: 0,
        at: [CachedReplica { word: 0, head: Head(0), removals: 0 }; REPLICA_LIST_MAX],
        block: Block {
            counter: 0,
            writer: MemberId(0),
            participant: 0,
            operation: 0,
            len: 0,
            is_deleted: true,
            kind: Kind::Plain,
            holder: 0,
            owner: MemberId(0),
            checksum: 0,
        },
        class: 0,
        hint_len: 0,
        recoveries: u64::MAX,
    };

    /// Drops the cached location: the next call looks everything up.
    pub(in crate::store) fn forget(&mut self) {
        self.config_number = 0;
    }
}

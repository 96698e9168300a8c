//! What is known of where a key is: cached locations.

use crate::engine::MemberId;
use crate::store::placement::REPLICA_LIST_MAX;
use crate::store::segment::head::Head;
use crate::store::segment::layout::{Block, Kind};

/// What a handle has_cached of its key: the version that it saw last, and where the replicas have
/// it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(in crate::store) struct CachedLocation {
    pub(in crate::store) config_number: u64,
    /// Where the primary's block was when it was last read or written, 0 if it was not: worth
    /// fetching, and no more than that.
    pub(in crate::store) hint: u64,
    /// Per replica; the first ones, which are used most, lie in the same line as the above.
    pub(in crate::store) at: [CachedReplica; REPLICA_LIST_MAX],
    /// The version that these heads name, and the class of its blocks.
    pub(in crate::store) block: Block,
    pub(in crate::store) class: usize,
    /// How long the value was that is there.
    pub(in crate::store) hint_len: u64,
    /// How many recoveries there had been when the handle wrote it; none has had the greatest
    /// number.
    pub(in crate::store) recoveries: u64,
}

/// What a handle has_cached of one replica.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct CachedReplica {
    /// The head word of the record, 0 while unknown, and what it held.
    pub(in crate::store) word: u64,
    pub(in crate::store) head: Head,
    /// How often the replica had taken records out of its index: if it has not done so since, the
    /// record is where it was.
    pub(in crate::store) removals: u64,
}

impl CachedLocation {
    /// Nothing yet. No configuration has the number 0.
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

    /// Looks everything up the next time.
    pub(in crate::store) fn forget(&mut self) {
        self.config_number = 0;
    }
}

//! The version floor of a partition: a word at each replica that is not below the version counter
//! of any removed record. A key that is put again starts above it, so that the versions of a key
//! never repeat (docs/protocol/deleting.md).

use crate::engine::MemberId;
use crate::store::error::StoreError;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::record::block_io::COUNTER_MAX;
use crate::store::record::state::RecordOp;
use crate::store::segment::layout::PARTITION_FLOOR;

/// The number of bits of a version counter below the partition's incarnation.
pub(in crate::store) const INCARNATION_SHIFT: u32 = 48;

impl<'a> RecordOp<'a> {
    /// The version floor of a partition at a replica.
    pub(in crate::store) fn floor(&self, replica: MemberId, partition: usize) -> OpResult<u64> {
        let floor = self.load(replica, self.partition_word(replica, partition, PARTITION_FLOOR))?;
        if floor >= COUNTER_MAX {
            return Err(OpError::Fail(StoreError::Corrupt {
                member: replica,
                what: "invalid version floor",
            }));
        }
        Ok(floor)
    }

    /// Raises the version floor of a partition at a replica to `floor`. The floor never sinks.
    pub(in crate::store) fn raise_floor(
        &self,
        replica: MemberId,
        partition: usize,
        floor: u64,
    ) -> OpResult<()> {
        let word = self.partition_word(replica, partition, PARTITION_FLOOR);
        loop {
            let found = self.load(replica, word)?;
            if found >= floor || self.swap(replica, word, found, floor)? {
                return Ok(());
            }
        }
    }
}

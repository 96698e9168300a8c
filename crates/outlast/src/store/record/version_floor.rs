//! The version floor of a partition: versions of a key that is put again begin above it.

use crate::engine::MemberId;
use crate::store::error::StoreError;
use crate::store::operation::error::{Halt, Step};
use crate::store::record::block_io::COUNTER_MAX;
use crate::store::record::state::RecordOp;
use crate::store::segment::layout::PARTITION_FLOOR;

/// The bits of a version's counter below the partition's incarnation.
pub(in crate::store) const INCARNATION_SHIFT: u32 = 48;

impl<'a> RecordOp<'a> {
    /// The floor of a partition's versions at a home.
    pub(in crate::store) fn floor(&self, home: MemberId, partition: usize) -> Step<u64> {
        let floor = self.load(home, self.partition_word(home, partition, PARTITION_FLOOR))?;
        if floor >= COUNTER_MAX {
            return Err(Halt::Fail(StoreError::Corrupt {
                member: home,
                what: "a floor cannot be",
            }));
        }
        Ok(floor)
    }

    /// Raises the floor of a partition's versions at a home.
    pub(in crate::store) fn raise_floor(
        &self,
        home: MemberId,
        partition: usize,
        floor: u64,
    ) -> Step<()> {
        let word = self.partition_word(home, partition, PARTITION_FLOOR);
        loop {
            let found = self.load(home, word)?;
            if found >= floor || self.swap(home, word, found, floor)? {
                return Ok(());
            }
        }
    }
}

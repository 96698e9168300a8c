//! The walk over all records of a partition at its primary.

use crate::engine::deadline;
use crate::store::operation::configuration::Configuration;
use crate::store::operation::error::OpResult;
use crate::store::record::key::KeyRef;
use crate::store::record::state::RecordOp;
use crate::store::segment::bucket::walk_len;
use crate::store::segment::layout::Block;

impl RecordOp<'_> {
    /// Reconciles each record of a partition with a wanted key, and calls `each` with the key, and
    /// with the offset and the header of its block at the primary. Records without a version are
    /// skipped. A walk takes as long as there are records: each bucket has the time limit.
    pub(in crate::store) fn for_each_record(
        &self,
        config: &Configuration,
        partition: usize,
        is_wanted: impl Fn(&[u8]) -> bool,
        mut each: impl FnMut(&KeyRef<'_>, u64, &Block) -> OpResult<()>,
    ) -> OpResult<()> {
        let primary = config.primary_member();
        let mut position = 0;
        while position < walk_len(self.store.bucket_count as u64) {
            deadline::restart();
            let (nodes, end) = self.nodes(config, config.primary, partition, position)?;
            position = end;
            for node in nodes {
                if !is_wanted(&node.key) {
                    continue;
                }
                let key = self.store.any_key_ref(&node.key);
                let Some((word, _)) = self.find(config, config.primary, &key)? else { continue };
                let Some(offset) = self.reconciled(config, &key, word)?.offset() else { continue };
                let block = self.read_block(primary, offset)?;
                each(&key, offset, &block)?;
            }
        }
        Ok(())
    }
}

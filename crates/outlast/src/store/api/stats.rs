//! Figures about the store: what a member has done, what the job holds, how memory is used.

use crate::store::api::store::Store;
use crate::store::error::{StoreError, StoreResult};
use crate::store::key_rules::RESERVED;
use crate::store::member::counts::Latency;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::record::state::RecordOp;
use crate::store::recovery::reclaim::MemoryUse;
use crate::store::recovery::repair::RepairStatus;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a member has done since it opened the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// The number of replicas of partitions that this member has repaired.
    pub replicas_repaired: u64,
    /// The number of records that repair has checked, and copied where they were missing.
    pub records_repaired: u64,
    /// The number of repairs that this member took over from a stopped member.
    pub repairs_taken_over: u64,
    /// The latency of [`Store::put`] and of puts through handles; `None` before the first sample.
    pub put: Option<Latency>,
    /// The latency of [`Store::get`] and of reads into buffers through handles; `None` before the
    /// first sample.
    pub get: Option<Latency>,
}

/// What the whole store holds, at some moment during the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobStats {
    /// The number of keys that exist, without the keys of lost partitions.
    pub keys: usize,
    /// The length of all values together, without their further replicas.
    pub value_bytes: u64,
    /// The length of all keys together.
    pub key_bytes: u64,
    /// The missing replicas and the lost partitions.
    pub repair: RepairStatus,
}

impl Store {
    /// Returns what this member has done since it opened the store.
    pub fn stats(&self) -> Stats {
        let (repaired, counts) = (&self.state.repaired, &self.state.counts);
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Stats {
            replicas_repaired: load(&repaired.replicas),
            records_repaired: load(&repaired.records),
            repairs_taken_over: load(&repaired.takeovers),
            put: counts.put.latency(),
            get: counts.get.latency(),
        }
    }

    /// Returns what the whole store holds. The call reads all records, which is too much to do
    /// every second.
    pub fn job_stats(&self) -> StoreResult<JobStats> {
        let repair = self.repair_status()?;
        let mut stats = JobStats { keys: 0, value_bytes: 0, key_bytes: 0, repair };
        for partition in 0..self.state.placement.partitions {
            match self.state.run(|op| self.count_partition(op, partition)) {
                Ok((keys, value_bytes, key_bytes)) => {
                    stats.keys += keys;
                    stats.value_bytes += value_bytes;
                    stats.key_bytes += key_bytes;
                }
                Err(StoreError::DataLost { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(stats)
    }
}

impl Store {
    /// Counts the keys of a partition, the bytes of their values, and the bytes of the keys.
    fn count_partition(&self, op: &RecordOp<'_>, partition: usize) -> OpResult<(usize, u64, u64)> {
        let config = op.config(partition)?;
        let (mut keys, mut value_bytes, mut key_bytes) = (0, 0, 0);
        op.for_each_record(
            config,
            partition,
            |_| true,
            |key, offset, block| {
                let (_, block) = op.visible(config, key, offset, block)?;
                if !block.is_deleted && !key.key.starts_with(RESERVED) {
                    keys += 1;
                    value_bytes += block.len;
                    key_bytes += key.key.len() as u64;
                }
                Ok(())
            },
        )?;
        if op.is_current() { Ok((keys, value_bytes, key_bytes)) } else { Err(OpError::Again) }
    }
}

impl Store {
    /// Returns the use of the memory that this member lends to the store. The call reads every
    /// block, which takes some milliseconds for a hundred thousand values.
    pub fn memory_use(&self) -> StoreResult<MemoryUse> {
        self.state.run(|op| self.state.survey(op))
    }
}

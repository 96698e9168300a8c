//! The progress of repair.

use crate::engine::Time;
use crate::store::api::store::Store;
use crate::store::error::StoreResult;
use crate::store::recovery::repair::RepairStatus;
use std::time::Duration;

/// The interval at which [`Store::wait_repaired`] checks: no bell rings when another member
/// completes a replica.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

impl Store {
    /// Returns the number of replicas that are missing in the partitions of which this member is
    /// the primary.
    pub fn replicas_missing(&self) -> StoreResult<usize> {
        Ok(self.state.count_missing_replicas(true)?.replicas_missing)
    }

    /// Returns the progress of repair in the whole job. The call asks about every partition, which
    /// takes some milliseconds for thousands of partitions.
    pub fn repair_status(&self) -> StoreResult<RepairStatus> {
        self.state.count_missing_replicas(false)
    }

    /// Waits until every partition that is not lost has all its replicas, or until `deadline`.
    /// Returns the progress of repair at that time.
    pub fn wait_repaired(&self, deadline: Time) -> StoreResult<RepairStatus> {
        let job = &self.state.job;
        let _call = self.state.begin_wait(deadline);
        loop {
            let status = self.repair_status()?;
            if status.is_repaired() || job.now() >= deadline {
                return Ok(status);
            }
            // No bell rings when another member completes a replica.
            let until = deadline.min(job.now().after(POLL_INTERVAL));
            while job.now() < until {
                job.park(job.bell(), until);
            }
        }
    }
}

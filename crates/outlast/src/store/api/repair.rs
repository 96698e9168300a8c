//! How far repair is.

use crate::engine::Time;
use crate::store::api::store::Store;
use crate::store::error::StoreResult;
use crate::store::recovery::repair::RepairStatus;
use std::time::Duration;

/// How often [`Store::wait_repaired`] looks: nothing rings when another member completes a replica.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

impl Store {
    /// How far repair is: the number of copies that this member, as a primary, has still to bring
    /// up.
    pub fn copies_missing(&self) -> StoreResult<usize> {
        Ok(self.state.count_copies(true)?.copies_missing)
    }

    /// How far repair is in the whole job. It asks about every partition: some milliseconds for
    /// thousands of them.
    pub fn repair_status(&self) -> StoreResult<RepairStatus> {
        self.state.count_copies(false)
    }

    /// Waits until every partition of the job that is not lost has all its copies, or until
    /// `deadline`; how far it is then.
    pub fn wait_repaired(&self, deadline: Time) -> StoreResult<RepairStatus> {
        let job = &self.state.job;
        loop {
            let status = self.repair_status()?;
            if status.is_repaired() || job.now() >= deadline {
                return Ok(status);
            }
            // Nothing rings when another member has completed a copy.
            let until = deadline.min(job.now().after(POLL_INTERVAL));
            while job.now() < until {
                job.park(job.bell(), until);
            }
        }
    }
}

//! Restoring a snapshot: putting its records into the store of another job.

use super::folder::read_range;
use super::{SnapshotError, find, parts};
use crate::engine::MemberId;
use crate::store::{Store, is_for_snapshots};
use std::path::Path;

/// The amount of restored data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// The number of keys.
    pub records: u64,
    /// The length of their values together.
    pub bytes: u64,
}

/// Puts all records of a snapshot into the store. `path` is the folder of a generation, or a folder
/// of snapshots, of which the newest generation is taken.
///
/// The job may have another size and another number of replicas than the job that took the
/// snapshot. A key's owner is the member with the owner's old number, modulo the size of this job.
/// Versions begin anew. A lock that was held has lost its holder, and the next holder is told so,
/// as after a death. Keys of the store that the snapshot does not have stay. Images, regions and
/// seats lie in the memories of the members of a job, and begin anew.
///
/// A single member calls it, or all members call [`restore_share`]. An error names the damaged
/// file; the records before the damage are in the store then.
pub fn restore(store: &Store, path: &Path) -> Result<Restored, SnapshotError> {
    restore_share(store, path, 0, 1)
}

/// Puts the share `index` of `shares` equal shares of a snapshot into the store, so that all
/// members restore a snapshot together, each member a share. The snapshot is restored when all
/// shares are.
pub fn restore_share(
    store: &Store,
    path: &Path,
    index: usize,
    shares: usize,
) -> Result<Restored, SnapshotError> {
    let generation = find(path)?;
    let parts = parts(&generation)?;
    let members = store.job().members() as u32;
    // A share is a range of records over all parts in order: a member then reads as few files as
    // possible, and each file no further than to the last record of the share.
    let all: u128 = parts.iter().map(|part| u128::from(part.totals.records)).sum();
    let (index, shares) = ((index % shares.max(1)) as u128, shares.max(1) as u128);
    let (first, end) = (all * index / shares, all * (index + 1) / shares);
    let (mut restored, mut failure, mut before) = (Restored::default(), None, 0);
    for part in &parts {
        let records = part.totals.records;
        let place = |number: u128| number.saturating_sub(before).min(records.into()) as u64;
        let range = place(first)..place(end);
        before += u128::from(records);
        // The first share checks the parts without records.
        if range.is_empty() && (records > 0 || index > 0) {
            continue;
        }
        read_range(&generation, part, range, |record| {
            // Earlier versions took the records of images, regions and seats along: in another job
            // they would name pieces that do not exist.
            if failure.is_some() || !is_for_snapshots(&record.key) {
                return;
            }
            let owner = MemberId(record.owner % members);
            match store.put_restored(&record.key, &record.value, owner) {
                Ok(()) => {
                    restored.records += 1;
                    restored.bytes += record.value.len() as u64;
                }
                Err(error) => failure = Some(error),
            }
        })?;
        if let Some(error) = failure {
            return Err(error.into());
        }
    }
    Ok(restored)
}

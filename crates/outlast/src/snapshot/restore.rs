//! Putting what a snapshot holds into a store.

use super::folder::read_range;
use super::{SnapshotError, find, parts};
use crate::engine::MemberId;
use crate::store::Store;
use std::path::Path;

/// What was restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// How many keys.
    pub records: u64,
    /// How long their values are together.
    pub bytes: u64,
}

/// Puts everything that a snapshot holds into the store: that of a generation's folder, or the newest one in a folder of
/// snapshots. The job may have another size and another number of copies. A key's owner is the member with the same
/// number, modulo the size of this job; versions begin anew; a lock that was held has lost its holder, and who takes it next
/// is told. Keys that are in the store and not in the snapshot stay.
///
/// One member calls it, or all of them [`restore_share`]. A damaged file is an error that names it; what was read before it
/// is in the store then.
pub fn restore(store: &Store, path: &Path) -> Result<Restored, SnapshotError> {
    restore_share(store, path, 0, 1)
}

/// The share `index` of `shares` equal ones: with one for each member all of them work side by side. The snapshot is
/// restored when all shares are.
pub fn restore_share(
    store: &Store,
    path: &Path,
    index: usize,
    shares: usize,
) -> Result<Restored, SnapshotError> {
    let generation = find(path)?;
    let parts = parts(&generation)?;
    let members = store.job().members() as u32;
    // A row of records, so that a member reads as few files as possible, and no more of them than up to its last record.
    let all: u128 = parts.iter().map(|part| u128::from(part.totals.records)).sum();
    let (index, shares) = ((index % shares.max(1)) as u128, shares.max(1) as u128);
    let (first, end) = (all * index / shares, all * (index + 1) / shares);
    let (mut restored, mut failure, mut before) = (Restored::default(), None, 0);
    for part in &parts {
        let records = part.totals.records;
        let place = |number: u128| number.saturating_sub(before).min(records.into()) as u64;
        let range = place(first)..place(end);
        before += u128::from(records);
        // Someone has to look at files without records, too.
        if range.is_empty() && (records > 0 || index > 0) {
            continue;
        }
        read_range(&generation, part, range, |record| {
            if failure.is_some() {
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

//! Locks: the record of a lock, taking it and releasing it.
//!
//! The value of a lock's record names its holder: the member and a nonce (a *claim*). `api/lock.rs`
//! has the public calls, and docs/protocol/waiting.md specifies the steps `lock.take`, `lock.wait`
//! and `lock.release`, with what a survivor finds after each.

use crate::engine::{MemberId, Time};
use crate::store::error::{StoreError, StoreResult};
use crate::store::record::state::RecordState;
use crate::store::record::write::Change;
use crate::store::value::Version;
use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// The first 8 bytes of a lock's value. The holder and the nonce follow, 24 bytes in all.
const MAGIC: &[u8; 8] = b"\0\x9flock\x9f\x01";

/// The length of a lock's value.
const LEN: usize = 24;

/// How often, and at what intervals, the background looks for a claim that may have been left
/// behind. A request of a call that timed out can take effect a little after the replica answers
/// again.
const ROUNDS: u32 = 3;

/// See [`ROUNDS`].
const INTERVAL: Duration = Duration::from_millis(500);

/// The holder of a lock that was restored from a snapshot: a member of a job that has ended.
const FORMER: MemberId = MemberId(u32::MAX);

/// The value of a lock when it is restored from a snapshot. No member of this job holds the lock,
/// whatever number its holder had, and the next caller takes it over and is told so. `None` if the
/// value is not that of a lock.
pub(in crate::store) fn without_holder(value: &[u8]) -> Option<Vec<u8>> {
    let claim = Claim::decode(value).ok()?;
    Some(Claim { holder: FORMER, ..claim }.encode())
}

/// The holder of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Claim {
    pub(in crate::store) holder: MemberId,
    pub(in crate::store) nonce: u64,
}

impl Claim {
    /// The value of the lock's record.
    fn encode(self) -> Vec<u8> {
        [*MAGIC, u64::from(self.holder.0).to_le_bytes(), self.nonce.to_le_bytes()].concat()
    }

    /// The claim in a record's value; [`StoreError::WrongType`] if the value is not that of a lock.
    fn decode(bytes: &[u8]) -> StoreResult<Claim> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if bytes.len() != LEN || bytes[..8] != *MAGIC {
            let what = format!(
                "the key holds a value of {} bytes that is not a lock; choose another key for the \
                 lock",
                bytes.len()
            );
            return Err(StoreError::WrongType { what });
        }
        Ok(Claim { holder: MemberId(word(8) as u32), nonce: word(16) })
    }
}

/// A claim that a call may have left behind.
struct Orphan {
    pub(in crate::store) key: Vec<u8>,
    pub(in crate::store) claim: Claim,
    /// The claim of a dead holder that it may have replaced.
    replaced: Option<Claim>,
    /// When the background looks for it, and how often it still does.
    pub(in crate::store) due: Time,
    rounds: u32,
}

/// What a member keeps for its locks.
///
/// The nonce is raised relaxed: it only has to be used once, and orders nothing.
#[derive(Default)]
pub(in crate::store) struct Locks {
    pub(in crate::store) nonce: AtomicU64,
    orphans: Mutex<Vec<Orphan>>,
}

/// Whether the background has to look for the claim: a replica did not answer, or had no room for
/// the tombstone of a release.
pub(in crate::store) fn is_unfinished(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Timeout { .. }
            | StoreError::Engine(_)
            | StoreError::OutOfMemory { .. }
            | StoreError::Revoked
    )
}

/// Whether a lock may be taken: it is free, or its holder is dead, and no local member may still be
/// executing a request of a dead member. The last change of a dead holder may be such a request,
/// and the next holder must not read a key before it and find it changed afterwards.
fn may_take(is_holder_living: Option<bool>, is_serving_dead: impl FnOnce() -> bool) -> bool {
    match is_holder_living {
        None => true,
        Some(true) => false,
        Some(false) => !is_serving_dead(),
    }
}

/// The result of an attempt to take a lock.
pub(in crate::store) enum Attempt {
    Taken { version: Version, abandoned_by: Option<MemberId> },
    Held(MemberId),
}

impl RecordState {
    /// *take*: takes the lock if it is free or its holder is dead. If the outcome is unknown, the
    /// background looks for the claim later.
    pub(in crate::store) fn try_lock(&self, key: &[u8], claim: Claim) -> StoreResult<Attempt> {
        let mut found = None;
        let written = self.write(key, true, |current, value| {
            found = match current {
                None => None,
                Some(_) => Some(Claim::decode(value)?),
            };
            // The view is loaded before the requests are checked: a request that a local member has
            // begun to execute since is refused.
            let is_living = |other: Claim| self.job.view().is_living(other.holder);
            Ok(match may_take(found.map(is_living), || self.job.is_serving_dead()) {
                true => Change::Owned(claim.encode()),
                false => Change::Nothing,
            })
        });
        match (written, found) {
            (Ok(Some(version)), found) => {
                Ok(Attempt::Taken { version, abandoned_by: found.map(|claim| claim.holder) })
            }
            (Ok(None), Some(other)) => Ok(Attempt::Held(other.holder)),
            (Ok(None), None) => unreachable!("a free lock is taken"),
            (Err(error), found) => {
                if is_unfinished(&error) {
                    self.add_orphan(key, claim, found);
                }
                Err(error)
            }
        }
    }

    /// *release*: deletes the lock's record if it holds this claim. If the claim had replaced that
    /// of a dead holder, puts the dead holder's claim back, so that the next caller is told of the
    /// death.
    pub(in crate::store) fn release_lock(
        &self,
        key: &[u8],
        claim: Claim,
        replaced: Option<Claim>,
    ) -> StoreResult<()> {
        self.write(key, true, |current, value| {
            if current.is_none() || Claim::decode(value) != Ok(claim) {
                return Err(StoreError::Conflict { found: current.map(|current| current.version) });
            }
            Ok(match replaced {
                None => Change::Delete,
                Some(replaced) => Change::Owned(replaced.encode()),
            })
        })
        .map(|_| ())
    }

    /// Leaves a claim to the background, which releases it if it finds it.
    pub(in crate::store) fn add_orphan(&self, key: &[u8], claim: Claim, replaced: Option<Claim>) {
        let due = self.job.now().after(INTERVAL);
        let orphan = Orphan { key: key.to_vec(), claim, replaced, due, rounds: ROUNDS };
        lock(&self.locks.orphans).push(orphan);
        let _ = self.job.ring(self.me());
    }

    /// The background's part: looks for claims that may have been left behind, and releases them.
    /// Returns when it wants to run again.
    pub(in crate::store) fn release_orphans(&self) -> Time {
        let now = self.job.now();
        let taken = {
            let mut orphans = lock(&self.locks.orphans);
            orphans
                .iter()
                .position(|orphan| orphan.due <= now)
                .map(|index| orphans.swap_remove(index))
        };
        if let Some(mut orphan) = taken {
            match self.release_lock(&orphan.key, orphan.claim, orphan.replaced) {
                // The request that writes the claim may still be on its way.
                Err(StoreError::Conflict { .. }) => orphan.rounds -= 1,
                Err(error) if is_unfinished(&error) => {}
                // Released. Or the partition is lost or the store closed, and no caller waits for
                // the lock.
                _ => orphan.rounds = 0,
            }
            if orphan.rounds > 0 {
                orphan.due = self.job.now().after(INTERVAL);
                lock(&self.locks.orphans).push(orphan);
            }
        }
        lock(&self.locks.orphans).iter().map(|orphan| orphan.due).min().unwrap_or(Time::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_of_a_dead_holder_is_not_taken_while_its_request_is_executed() {
        assert!(may_take(None, || true), "a free lock");
        assert!(!may_take(Some(true), || false));
        assert!(!may_take(Some(false), || true));
        assert!(may_take(Some(false), || false));
    }

    #[test]
    fn a_claim_is_told_from_other_values() {
        let claim = Claim { holder: MemberId(4095), nonce: u64::MAX - 1 };
        let bytes = claim.encode();
        assert_eq!(Claim::decode(&bytes), Ok(claim));
        for other in [&bytes[..23], &[bytes.as_slice(), &[0]].concat(), &[0; 24][..], b""] {
            assert!(matches!(Claim::decode(other), Err(StoreError::WrongType { .. })), "{other:?}");
        }
    }
}

//! Locks: a record whose value names its holder.
//!
//! | step | true afterwards | dies or stops here |
//! |---|---|---|
//! | L1 the key does not exist, or its holder is dead: a conditional write from exactly that version stamps the caller, as member and nonce | the caller holds it; nobody else can have succeeded from the same version | before the write: nothing happened. After it: the record names a dead member, and the next one takes it over and is told |
//! | L2 the holder lives: enter among those who are rung when the partition changes, look again, sleep | | nobody waits for a waiter |
//! | L3 release: delete the record, from a version that carries the own member and nonce | free | as before it: the holder is dead |
//!
//! A nonce is used for one call of `lock`, so two threads of one member are two holders, and a release that comes late
//! finds another nonce and loses. A holder that is merely stopped keeps its lock.
//!
//! A call whose outcome is unknown (a home did not answer) may have left the caller's stamp: the background looks for
//! it later and takes it away. If the stamp had replaced a dead holder's, it puts that one back, so that the next one
//! is told all the same.

use super::open::Inner;
use super::write::Change;
use super::{Store, StoreError, StoreResult, Version, check_key};
use crate::engine::{MemberId, Time};
use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A lock's value: this word, then the holder and the nonce, 24 bytes in all.
const MAGIC: &[u8; 8] = b"\0\x9flock\x9f\x01";
const LEN: usize = 24;

/// How often, and at what intervals, the background looks for a stamp that may have been left. A call that did not end
/// can have its effect a little after the home answers again.
const ROUNDS: u32 = 3;
const INTERVAL: Duration = Duration::from_millis(500);

/// The holder of a lock that comes from a snapshot: a member of a job that is over.
const FORMER: MemberId = MemberId(u32::MAX);

/// What becomes of a lock's value when it is restored from a snapshot: nobody of this job holds it, whatever its holder's
/// number was, and the next one takes it over and is told. `None` if it is no lock's.
pub(super) fn without_holder(value: &[u8]) -> Option<Vec<u8>> {
    let stamp = Stamp::decode(value).ok()?;
    Some(Stamp { holder: FORMER, ..stamp }.encode())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    holder: MemberId,
    nonce: u64,
}

impl Stamp {
    fn encode(self) -> Vec<u8> {
        [*MAGIC, u64::from(self.holder.0).to_le_bytes(), self.nonce.to_le_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> StoreResult<Stamp> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if bytes.len() != LEN || bytes[..8] != *MAGIC {
            let what = format!(
                "the key holds a value of {} bytes that is not a lock; choose another key for the lock",
                bytes.len()
            );
            return Err(StoreError::WrongType { what });
        }
        Ok(Stamp { holder: MemberId(word(8) as u32), nonce: word(16) })
    }
}

/// A stamp that may have been left behind.
struct Orphan {
    key: Vec<u8>,
    stamp: Stamp,
    /// The dead holder whose stamp it may have replaced.
    replaced: Option<Stamp>,
    due: Time,
    rounds: u32,
}

/// What a member keeps for its locks.
#[derive(Default)]
pub(super) struct Locks {
    nonce: AtomicU64,
    orphans: Mutex<Vec<Orphan>>,
}

/// A lock that is held until the guard is dropped or [`LockGuard::unlock`] is called.
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    store: Store,
    key: Vec<u8>,
    stamp: Stamp,
    version: Version,
    abandoned_by: Option<MemberId>,
    is_released: bool,
}

impl std::fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LockGuard({}, {})", String::from_utf8_lossy(&self.key), self.version)
    }
}

impl LockGuard {
    /// Whether the holder before died with the lock: what the lock protects may be half changed.
    pub fn was_abandoned(&self) -> bool {
        self.abandoned_by.is_some()
    }

    /// Who died with the lock, if the holder before did. `MemberId(u32::MAX)` if that was in another job, of which this one
    /// has restored a snapshot.
    pub fn abandoned_by(&self) -> Option<MemberId> {
        self.abandoned_by
    }

    /// The version of the lock's record: it grows from holder to holder, so that it can fence what a former holder
    /// still does elsewhere.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Releases the lock. [`StoreError::Conflict`] if it was no longer this guard's: someone has overwritten or deleted
    /// the record, or its loss was accepted. After [`StoreError::Timeout`] or [`StoreError::OutOfMemory`] the background goes
    /// on trying.
    pub fn unlock(mut self) -> StoreResult<()> {
        self.release()
    }

    /// Holds the lock until this member is gone.
    pub(super) fn keep(mut self) {
        self.is_released = true;
    }

    fn release(&mut self) -> StoreResult<()> {
        self.is_released = true;
        let inner = &self.store.inner;
        let released = inner.release_lock(&self.key, self.stamp, None);
        if released.as_ref().is_err_and(is_unfinished) {
            inner.add_orphan(&self.key, self.stamp, None);
        }
        released
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.is_released {
            // Nobody is there to be told; the background goes on if a home did not answer.
            let _ = self.release();
        }
    }
}

/// Whether the background has to look after the stamp: a home did not answer, or had no room for what a release leaves.
fn is_unfinished(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Timeout { .. }
            | StoreError::Engine(_)
            | StoreError::OutOfMemory { .. }
            | StoreError::Revoked
    )
}

enum Attempt {
    Taken { version: Version, abandoned_by: Option<MemberId> },
    Held(MemberId),
}

impl Store {
    /// Takes the lock of this name, waiting for its holder until `deadline`; then [`StoreError::Locked`], which names the
    /// holder. If the holder is dead or has left, the lock is taken over and the guard says so. A holder that is
    /// stopped keeps it. Waiters are served in no particular order, and a thread that locks again waits for itself.
    ///
    /// The lock is a record of the store under this key: [`StoreError::WrongType`] if the key holds something else.
    ///
    /// ```
    /// # use outlast::store::{Options, Store};
    /// # use std::time::Duration;
    /// # let job = outlast::join()?;
    /// # let store = Store::open(&job, Options::new())?;
    /// let guard = store.lock(b"queue", job.now().after(Duration::from_secs(5)))?;
    /// if guard.was_abandoned() { /* mend what the dead holder left */ }
    /// guard.unlock()?;
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock(&self, key: &[u8], deadline: Time) -> StoreResult<LockGuard> {
        check_key(key)?;
        self.lock_any(key, deadline)
    }

    /// The same for keys of the store's own, too.
    pub(super) fn lock_any(&self, key: &[u8], deadline: Time) -> StoreResult<LockGuard> {
        let (inner, job) = (&self.inner, &self.inner.job);
        // Relaxed: only that it is used once matters.
        let nonce = inner.locks.nonce.fetch_add(1, Ordering::Relaxed);
        let stamp = Stamp { holder: job.me(), nonce };
        let began = job.now();
        let mut attempt = inner.try_lock(key, stamp)?;
        loop {
            let holder = match attempt {
                Attempt::Taken { version, abandoned_by } => {
                    let (store, key) = (self.clone(), key.to_vec());
                    return Ok(LockGuard {
                        store,
                        key,
                        stamp,
                        version,
                        abandoned_by,
                        is_released: false,
                    });
                }
                Attempt::Held(holder) => holder,
            };
            if job.now() >= deadline {
                return Err(StoreError::Locked { holder, waited: job.now().since(began) });
            }
            let bell = job.bell();
            inner.announce_waiter(key)?;
            attempt = inner.try_lock(key, stamp)?;
            if matches!(attempt, Attempt::Held(_)) {
                // A release rings, and the death of the holder.
                job.park(bell, deadline);
            }
        }
    }
}

impl Inner {
    /// L1: takes the lock if it is free or its holder is dead.
    fn try_lock(&self, key: &[u8], stamp: Stamp) -> StoreResult<Attempt> {
        let mut found = None;
        let written = self.write(key, true, |current, value| {
            found = match current {
                None => None,
                Some(_) => Some(Stamp::decode(value)?),
            };
            let view = self.job.view();
            Ok(match found {
                Some(other) if view.is_living(other.holder) => Change::Nothing,
                _ => Change::Owned(stamp.encode()),
            })
        });
        match (written, found) {
            (Ok(Some(version)), found) => {
                Ok(Attempt::Taken { version, abandoned_by: found.map(|stamp| stamp.holder) })
            }
            (Ok(None), Some(other)) => Ok(Attempt::Held(other.holder)),
            (Ok(None), None) => unreachable!("a free lock is taken"),
            (Err(error), found) => {
                if is_unfinished(&error) {
                    self.add_orphan(key, stamp, found);
                }
                Err(error)
            }
        }
    }

    /// L3: takes the stamp away, if it is there, and puts back a dead holder's.
    fn release_lock(&self, key: &[u8], stamp: Stamp, replaced: Option<Stamp>) -> StoreResult<()> {
        self.write(key, true, |current, value| {
            if current.is_none() || Stamp::decode(value) != Ok(stamp) {
                return Err(StoreError::Conflict { found: current.map(|current| current.version) });
            }
            Ok(match replaced {
                None => Change::Delete,
                Some(replaced) => Change::Owned(replaced.encode()),
            })
        })
        .map(|_| ())
    }

    fn add_orphan(&self, key: &[u8], stamp: Stamp, replaced: Option<Stamp>) {
        let due = self.job.now().after(INTERVAL);
        let orphan = Orphan { key: key.to_vec(), stamp, replaced, due, rounds: ROUNDS };
        lock(&self.locks.orphans).push(orphan);
        let _ = self.job.ring(self.me());
    }

    /// The background's part: looks for stamps that may have been left; when it wants to run again.
    pub(super) fn release_orphans(&self) -> Time {
        let now = self.job.now();
        let taken = {
            let mut orphans = lock(&self.locks.orphans);
            orphans
                .iter()
                .position(|orphan| orphan.due <= now)
                .map(|index| orphans.swap_remove(index))
        };
        if let Some(mut orphan) = taken {
            match self.release_lock(&orphan.key, orphan.stamp, orphan.replaced) {
                // It may be on its way.
                Err(StoreError::Conflict { .. }) => orphan.rounds -= 1,
                Err(error) if is_unfinished(&error) => {}
                // Released; or lost, or closed, and nobody will wait for it.
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
    fn a_stamp_is_told_from_other_values() {
        let stamp = Stamp { holder: MemberId(4095), nonce: u64::MAX - 1 };
        let bytes = stamp.encode();
        assert_eq!(Stamp::decode(&bytes), Ok(stamp));
        for other in [&bytes[..23], &[bytes.as_slice(), &[0]].concat(), &[0; 24][..], b""] {
            assert!(matches!(Stamp::decode(other), Err(StoreError::WrongType { .. })), "{other:?}");
        }
    }
}

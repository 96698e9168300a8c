//! Locks: a record whose value names its holder.
//!
//! | step | true afterwards | dies or stops here |
//! |---|---|---|
//! | L1 the key does not exist, or its holder is dead: a conditional write from exactly that version claims the caller, as member and nonce | the caller holds it; nobody else can have succeeded from the same version | before the write: nothing happened. After it: the record names a dead member, and the next one takes it over and is told |
//! | L2 the holder lives: enter among those who are rung when the partition changes, look again, sleep | | nobody waits for a waiter |
//! | L3 release: delete the record, from a version that carries the own member and nonce | free | as before it: the holder is dead |
//!
//! A nonce is used for one call of `lock`, so two threads of one member are two holders, and a
//! release that comes late finds another nonce and loses. A holder that is merely stopped keeps its
//! lock.
//!
//! A call whose outcome is unknown (a replica did not answer) may have left the caller's claim: the
//! background looks for it later and takes it away. If the claim had replaced a dead holder's, it
//! puts that one back, so that the next one is told all the same.

use crate::engine::{MemberId, Time};
use crate::store::api::store::Store;
use crate::store::error::{StoreError, StoreResult};
use crate::store::record::lock::{Attempt, Claim, is_unfinished};
use crate::store::value::{Version, check_key};
use std::sync::atomic::Ordering;

/// A lock that is held until the guard is dropped or [`LockGuard::unlock`] is called.
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    store: Store,
    key: Vec<u8>,
    claim: Claim,
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

    /// Who died with the lock, if the holder before did. `MemberId(u32::MAX)` if that was in
    /// another job, of which this one has restored a snapshot.
    pub fn abandoned_by(&self) -> Option<MemberId> {
        self.abandoned_by
    }

    /// The version of the lock's record: it grows from holder to holder, so that it can fence what
    /// a former holder still does elsewhere.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Releases the lock. [`StoreError::Conflict`] if it was no longer this guard's: someone has
    /// overwritten or deleted the record, or its loss was accepted. After [`StoreError::Timeout`]
    /// or [`StoreError::OutOfMemory`] the background goes on trying.
    pub fn unlock(mut self) -> StoreResult<()> {
        self.release()
    }

    /// Holds the lock until this member is gone.
    pub(in crate::store) fn keep(mut self) {
        self.is_released = true;
    }

    fn release(&mut self) -> StoreResult<()> {
        self.is_released = true;
        let state = &self.store.state;
        let released = state.release_lock(&self.key, self.claim, None);
        if released.as_ref().is_err_and(is_unfinished) {
            state.add_orphan(&self.key, self.claim, None);
        }
        released
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.is_released {
            // Nobody is there to be told; the background goes on if a replica did not answer.
            let _ = self.release();
        }
    }
}

impl Store {
    /// Takes the lock of this name, waiting for its holder until `deadline`; then
    /// [`StoreError::Locked`], which names the holder. If the holder is dead or has left, the lock
    /// is taken over and the guard says so. A holder that is stopped keeps it. Waiters are served
    /// in no particular order, and a thread that locks again waits for itself.
    ///
    /// The lock is a record of the store under this key: [`StoreError::WrongType`] if the key holds
    /// something else.
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
    pub(in crate::store) fn lock_any(&self, key: &[u8], deadline: Time) -> StoreResult<LockGuard> {
        let (state, job) = (&self.state, &self.state.job);
        // Relaxed: only that it is used once matters.
        let nonce = state.locks.nonce.fetch_add(1, Ordering::Relaxed);
        let claim = Claim { holder: job.me(), nonce };
        let began = job.now();
        let mut attempt = state.try_lock(key, claim)?;
        loop {
            let holder = match attempt {
                Attempt::Taken { version, abandoned_by } => {
                    let (store, key) = (self.clone(), key.to_vec());
                    return Ok(LockGuard {
                        store,
                        key,
                        claim,
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
            state.announce_waiter(key)?;
            attempt = state.try_lock(key, claim)?;
            if matches!(attempt, Attempt::Held(_)) {
                // A release rings, and the death of the holder.
                job.park(bell, deadline);
            }
        }
    }
}

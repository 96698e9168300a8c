//! Locks: a record whose value names its holder.
//!
//! `docs/protocol/waiting.md` has the steps *take*, *wait* and *release*, with what the next caller
//! finds if the holder dies or stops in each of them. This file has the calls and the guard.
//! `record/lock.rs` has the record: *take*, *release*, and the holders that a call with an unknown
//! outcome left behind.
//!
//! A holder is a member and a nonce. A nonce is used for a single call of `lock`, so two threads of
//! a member are two holders, and a late release by a former holder finds another nonce and fails. A
//! holder that is stopped keeps its lock.
//!
//! A call whose outcome is unknown (a replica did not answer) may have left the caller as the
//! holder in the record. The background looks for that later and deletes it. If it had replaced a
//! dead holder, the background puts the dead holder back, so that the next caller is still told of
//! the death.

use crate::engine::{MemberId, Time};
use crate::store::api::store::Store;
use crate::store::error::{StoreError, StoreResult};
use crate::store::key_rules::check_key;
use crate::store::record::lock::{Attempt, Claim, is_unfinished};
use crate::store::value::Version;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The pause between two looks at the lock of a dead holder whose last request is being executed.
const LOOK: Duration = Duration::from_millis(1);

/// A lock that is held until the guard is dropped or [`LockGuard::unlock`] is called; made by
/// [`Store::lock`].
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
    /// Whether the previous holder died with the lock. What the lock protects may be half changed
    /// then.
    pub fn was_abandoned(&self) -> bool {
        self.abandoned_by.is_some()
    }

    /// The previous holder, if it died with the lock. `MemberId(u32::MAX)` stands for a holder of
    /// another job, of which this job has restored a snapshot.
    pub fn abandoned_by(&self) -> Option<MemberId> {
        self.abandoned_by
    }

    /// The version of the lock's record. It grows from holder to holder, so a program can use it as
    /// a fencing token: another system refuses a former holder whose version is smaller.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Releases the lock. [`StoreError::Conflict`] means that this guard no longer held it: a call
    /// has overwritten or deleted the record, or its loss was accepted. After
    /// [`StoreError::Timeout`] or [`StoreError::OutOfMemory`] the background goes on trying.
    pub fn unlock(mut self) -> StoreResult<()> {
        self.release()
    }

    /// Keeps the lock until this member is gone.
    pub(in crate::store) fn keep(mut self) {
        self.is_released = true;
    }

    /// *release*; the background tries again if the outcome is unknown.
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
            // A drop cannot return the error. If a replica did not answer, the background goes on.
            let _ = self.release();
        }
    }
}

impl Store {
    /// Takes the lock of this name. If another holder has it, the call waits until `deadline`, and
    /// then returns [`StoreError::Locked`], which names the holder. If the holder is dead or has
    /// left, the caller takes the lock over, and the guard says so. A holder that is stopped keeps
    /// the lock. Waiters are served in no particular order. A thread that takes a lock which it
    /// holds waits for itself.
    ///
    /// The lock is a record of the store under this key. [`StoreError::WrongType`] means that the
    /// key holds another value.
    ///
    /// ```
    /// # use outlast::store::{Options, Store};
    /// # use std::time::Duration;
    /// # let job = outlast::join()?;
    /// # let store = Store::open(&job, Options::new())?;
    /// let guard = store.lock(b"queue", job.now().after(Duration::from_secs(5)))?;
    /// if guard.was_abandoned() { /* repair what the dead holder left half changed */ }
    /// guard.unlock()?;
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock(&self, key: impl AsRef<[u8]>, deadline: Time) -> StoreResult<LockGuard> {
        let key = key.as_ref();
        check_key(key)?;
        self.lock_any(key, deadline)
    }

    /// Takes a lock, as [`Store::lock`] does, under any key, also under the store's own keys.
    pub(in crate::store::api) fn lock_any(
        &self,
        key: &[u8],
        deadline: Time,
    ) -> StoreResult<LockGuard> {
        let (state, job) = (&self.state, &self.state.job);
        let _call = state.begin_wait(deadline);
        // Relaxed is enough: a nonce only has to be unique.
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
            if let Attempt::Held(holder) = attempt {
                // The bell rings at a release, and at the death of the holder. It does not ring
                // when the last request of a dead holder has been executed.
                let is_living = job.view().is_living(holder);
                let look = if is_living { deadline } else { deadline.min(job.now().after(LOOK)) };
                job.park(bell, look);
            }
        }
    }
}

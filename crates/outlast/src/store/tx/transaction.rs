//! A transaction as the program sees it: reads, private changes, commit, abort and retry.

use crate::engine::Epoch;
use crate::store::error::{StoreError, StoreResult};
use crate::store::key_rules::check_key;
use crate::store::placement::mix;
use crate::store::record::visibility::Reader;
use crate::store::segment::intent::{EncodedIntent, IntentId};
use crate::store::segment::layout::{class_of, value_start};
use crate::store::tx::commit::{Attempt, Observation};
use crate::store::tx::state::{IntentSlot, TxState};
use crate::store::value::{Expect, Value, Version};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// From this number of failed attempts on, a transaction locks its keys before its closure runs.
const EAGER: u32 = 2;

/// The longest pause before a second attempt. It doubles with each failed attempt, and the pause is
/// a random part of it.
const BACK_OFF: Duration = Duration::from_micros(20);

/// How often the longest pause doubles at most.
const BACK_OFF_DOUBLINGS: u32 = 9;

/// Keys with their versions.
pub(in crate::store) type Versions = Vec<(Vec<u8>, Version)>;

/// Keys that a transaction has locked, with the versions that *lock* returned.
pub(in crate::store) struct LockedKeys {
    /// The epoch from before the first lock.
    pub(in crate::store) since: Epoch,
    pub(in crate::store) keys: Versions,
}

/// What a transaction makes of a key.
pub(in crate::store) enum Write {
    Put {
        value: Vec<u8>,
        /// Whether the committer becomes the owner also if the key exists.
        is_mine: bool,
    },
    Delete,
}

/// An intent that the transaction has written and not decided.
pub(in crate::store) struct Active {
    pub(in crate::store) slot: IntentSlot,
    pub(in crate::store) id: IntentId,
    /// The epoch from before the intent was written.
    pub(in crate::store) epoch: Epoch,
    /// The version of the intent record.
    pub(in crate::store) version: Version,
    /// The intent, with the keys that it lists.
    pub(in crate::store) intent: EncodedIntent,
}

/// A transaction: reads and changes of any keys, which take effect together at
/// [`Transaction::commit`], or not at all. [`Store::transaction`](crate::store::Store::transaction)
/// runs a closure as a transaction, and [`Store::begin`](crate::store::Store::begin) begins a
/// transaction without a closure.
///
/// No call of a transaction waits for another transaction for longer than 0.1 s. A value that it
/// has read may change before it commits, and the values of several keys may never have existed
/// together. In both cases the transaction does not commit. Dropping a transaction aborts it.
pub struct Transaction {
    pub(in crate::store) state: Arc<TxState>,
    /// The number of failed attempts before this attempt.
    pub(in crate::store) attempts: u32,
    /// The attempt at a coordinated recovery that the transaction is joined to, if it belongs to a
    /// recovery.
    pub(in crate::store) recovery: Option<u64>,
    /// The number of recoveries that this member had seen when the transaction began.
    pub(in crate::store) recoveries: u64,
    /// How the transaction ended; `None` while it is open.
    pub(in crate::store) over: Option<&'static str>,
    /// Whether a member has not answered in time. Then the call ends, and the background does the
    /// rest.
    pub(in crate::store) is_late: bool,
    /// The keys that were read, each with what its first read found.
    pub(in crate::store) reads: BTreeMap<Vec<u8>, Observation>,
    /// The private changes.
    pub(in crate::store) writes: BTreeMap<Vec<u8>, Write>,
    /// The intent, from *intent* until the transaction is decided or given up.
    pub(in crate::store) active: Option<Active>,
    /// The keys that were locked before the closure ran.
    pub(in crate::store) held: Option<LockedKeys>,
    /// The keys that the transaction of a coordinated recovery changes, once they are locked.
    pub(in crate::store) prepared: Option<LockedKeys>,
    /// The keys that were set, with their new versions, once the transaction is committed.
    pub(in crate::store) versions: Vec<(Vec<u8>, Version)>,
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Transaction({} read, {} changed, {})",
            self.reads.len(),
            self.writes.len(),
            self.over.unwrap_or("open")
        )
    }
}

pub(in crate::store::tx) const COMMITTED: &str = "committed";

const ABORTED: &str = "aborted";

/// The transaction did not commit because another operation was in its way. It can be tried again.
pub(in crate::store) const FAILED: &str = "not carried out";

/// The transaction ended with another error.
pub(in crate::store::tx) const BROKEN: &str = "ended by an error";

impl Transaction {
    /// Returns an error if the transaction has ended, or began before the last recovery.
    pub(in crate::store::tx) fn check_open(&self) -> StoreResult<()> {
        if let Some(how) = self.over {
            return Err(StoreError::TransactionOver { how });
        }
        // Values that were read before a recovery are out of date.
        let is_of_now = self.recoveries == self.state.gate.recoveries();
        if is_of_now { Ok(()) } else { Err(StoreError::Revoked) }
    }

    /// Returns an error in the transaction of a coordinated recovery: the recovery ends it,
    /// together with the transactions of all members.
    fn check_own_end(&self, what: &str) -> StoreResult<()> {
        if self.recovery.is_none() {
            return Ok(());
        }
        let reason = format!(
            "{what} in a recovery: its transaction is carried out with those of all members"
        );
        Err(StoreError::Invalid { reason })
    }

    /// What the store has under a key. A second call returns what the first call has read.
    fn seen(&mut self, key: &[u8]) -> StoreResult<&Observation> {
        self.check_open()?;
        check_key(key)?;
        if !self.reads.contains_key(key) {
            let seen = self.look(key, true);
            let seen = self.record_timeout(seen)?;
            self.reads.insert(key.to_vec(), seen);
        }
        Ok(&self.reads[key])
    }

    /// This attempt, as an argument of the operations that it runs.
    pub(in crate::store) fn attempt(&self) -> Attempt {
        let active = self.active.as_ref();
        let reader = active.map_or(Reader::Any, |active| Reader::Committer(active.id));
        Attempt { attempts: self.attempts, recovery: self.recovery, reader }
    }

    /// Reads a key from the store.
    pub(in crate::store) fn look(&self, key: &[u8], wants_value: bool) -> StoreResult<Observation> {
        self.state.look(self.attempt(), key, wants_value)
    }

    /// The value of a key as this transaction sees it: its own change, or else the value in the
    /// store. `None` if the key does not exist.
    #[inline]
    pub fn get(&mut self, key: impl AsRef<[u8]>) -> StoreResult<Option<Vec<u8>>> {
        self.get_bytes(key.as_ref())
    }

    /// The value of a key without the changes of this transaction, with its version and owner.
    #[inline]
    pub fn get_before(&mut self, key: impl AsRef<[u8]>) -> StoreResult<Option<Value>> {
        self.get_before_bytes(key.as_ref())
    }

    /// Sets a key. If the key does not exist, this member will own it.
    #[inline]
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: &[u8]) -> StoreResult<()> {
        self.put_bytes(key.as_ref(), value)
    }

    /// A private copy of a value. Returns an error if no block is that long, or if this process has
    /// no memory for the copy.
    fn copy(&self, value: &[u8]) -> StoreResult<Vec<u8>> {
        let (member, len) = (self.state.me(), value.len() as u64);
        if class_of(value_start(len) + len).is_none() {
            let reason = format!("a value of {len} bytes is larger than any block");
            return Err(StoreError::OutOfMemory { member, reason });
        }
        let mut copy = Vec::new();
        copy.try_reserve_exact(value.len()).map_err(|error| StoreError::OutOfMemory {
            member,
            reason: format!("no copy of the value of {len} bytes until the commit: {error}"),
        })?;
        copy.extend_from_slice(value);
        Ok(copy)
    }

    /// Deletes a key. Returns whether the key existed, as this transaction sees it.
    #[inline]
    pub fn delete(&mut self, key: impl AsRef<[u8]>) -> StoreResult<bool> {
        self.delete_bytes(key.as_ref())
    }

    /// Adds to a key that holds a number, and returns the sum; see
    /// [`Store::add`](crate::store::Store::add).
    #[inline]
    pub fn add(&mut self, key: impl AsRef<[u8]>, delta: i64) -> StoreResult<i64> {
        self.add_bytes(key.as_ref(), delta)
    }

    /// Makes this member the owner of a key. Returns whether the key exists, as this transaction
    /// sees it.
    #[inline]
    pub fn adopt(&mut self, key: impl AsRef<[u8]>) -> StoreResult<bool> {
        self.adopt_bytes(key.as_ref())
    }

    /// Makes the transaction depend on what the store has under a key. Returns
    /// [`StoreError::Conflict`] if the key is not as expected. If the key changes before the
    /// commit, the transaction does not commit.
    #[inline]
    pub fn require(&mut self, key: impl AsRef<[u8]>, expect: Expect) -> StoreResult<()> {
        self.require_bytes(key.as_ref(), expect)
    }

    /// Commits the transaction: all its changes take effect, or none do. After
    /// [`StoreError::Aborted`] nothing has changed, because another operation was faster;
    /// [`Transaction::retry`] begins the transaction again. After [`StoreError::Timeout`], and
    /// after [`StoreError::Closed`] if another thread has closed the store meanwhile, this member
    /// does not know the outcome, which is all or nothing in that case, too.
    pub fn commit(&mut self) -> StoreResult<()> {
        let _call = self.state.begin_call();
        self.check_own_end("commit()")?;
        self.check_open()?;
        let result = self.try_commit();
        let result = self.record_timeout(result);
        if result.is_ok() {
            self.state.transactions.committed.fetch_add(1, Ordering::Relaxed);
        }
        self.over = Some(match &result {
            Ok(()) => COMMITTED,
            Err(StoreError::Aborted) => FAILED,
            Err(_) => BROKEN,
        });
        self.release();
        result
    }

    /// Ends the transaction without any effect. A transaction that has ended stays as it is.
    pub fn abort(&mut self) {
        if self.over.is_none() {
            self.over = Some(ABORTED);
            self.release();
        }
    }

    /// Begins the transaction again, empty. After each failed attempt other operations wait longer
    /// for it. From the third attempt on, this call locks the keys that the last attempt touched:
    /// they do not change until the transaction is committed, aborted or dropped.
    pub fn retry(&mut self) -> StoreResult<()> {
        let _call = self.state.begin_call();
        self.check_own_end("retry()")?;
        self.release();
        self.recoveries = self.state.gate.recoveries();
        let (reads, writes) = (std::mem::take(&mut self.reads), std::mem::take(&mut self.writes));
        self.versions.clear();
        self.attempts =
            if self.over == Some(COMMITTED) { 0 } else { self.attempts.saturating_add(1) };
        (self.over, self.is_late, self.held) = (None, false, None);
        if self.attempts < EAGER {
            return Ok(());
        }
        let locked = self.lock_all(reads.into_keys().chain(writes.into_keys()).collect());
        let locked = self.record_timeout(locked);
        if locked.is_err() {
            self.over = Some(BROKEN);
            self.release();
        }
        locked
    }

    /// The keys that were set, with their new versions. The list is filled by
    /// [`Transaction::commit`].
    pub fn versions(&self) -> &[(Vec<u8>, Version)] {
        &self.versions
    }

    /// Pauses before the next attempt, for a random part of a time that grows with each failed
    /// attempt.
    pub(in crate::store) fn back_off(&self) {
        let job = &self.state.job;
        let nonce = self.state.transactions.nonce.fetch_add(1, Ordering::Relaxed);
        let most = BACK_OFF * (1 << self.attempts.min(BACK_OFF_DOUBLINGS));
        let part = mix(nonce << 16 | u64::from(job.me().0)) % most.as_nanos() as u64;
        job.sleep(Duration::from_nanos(part));
    }

    /// Records whether a member has not answered in time, and passes the result on.
    pub(in crate::store) fn record_timeout<T>(&mut self, result: StoreResult<T>) -> StoreResult<T> {
        self.is_late |= matches!(result, Err(StoreError::Timeout { .. }));
        result
    }
}

/// The calls above for a key of bytes, compiled once, as those of the store.
impl Transaction {
    fn get_bytes(&mut self, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        self.check_open()?;
        check_key(key)?;
        match self.writes.get(key) {
            Some(Write::Put { value, .. }) => Ok(Some(value.clone())),
            Some(Write::Delete) => Ok(None),
            None => Ok(self.seen(key)?.value.as_ref().map(|value| value.bytes.clone())),
        }
    }

    fn get_before_bytes(&mut self, key: &[u8]) -> StoreResult<Option<Value>> {
        Ok(self.seen(key)?.value.clone())
    }

    fn put_bytes(&mut self, key: &[u8], value: &[u8]) -> StoreResult<()> {
        self.check_open()?;
        check_key(key)?;
        // A key that is deleted and put again is a new key, which this member owns.
        let is_mine = match self.writes.get(key) {
            Some(Write::Put { is_mine, .. }) => *is_mine,
            Some(Write::Delete) => true,
            None => false,
        };
        let value = self.copy(value)?;
        self.writes.insert(key.to_vec(), Write::Put { value, is_mine });
        Ok(())
    }

    fn delete_bytes(&mut self, key: &[u8]) -> StoreResult<bool> {
        let exists = self.get_bytes(key)?.is_some();
        if exists {
            self.writes.insert(key.to_vec(), Write::Delete);
        }
        Ok(exists)
    }

    fn add_bytes(&mut self, key: &[u8], delta: i64) -> StoreResult<i64> {
        let before = match self.get_bytes(key)? {
            None => 0,
            Some(value) => {
                let len = value.len();
                i64::from_le_bytes(value.try_into().map_err(|_| StoreError::WrongType {
                    what: format!("the value has {len} bytes, and a number has 8"),
                })?)
            }
        };
        let sum = before.wrapping_add(delta);
        self.put_bytes(key, &sum.to_le_bytes())?;
        Ok(sum)
    }

    fn adopt_bytes(&mut self, key: &[u8]) -> StoreResult<bool> {
        let Some(value) = self.get_bytes(key)? else { return Ok(false) };
        self.writes.insert(key.to_vec(), Write::Put { value, is_mine: true });
        Ok(true)
    }

    fn require_bytes(&mut self, key: &[u8], expect: Expect) -> StoreResult<()> {
        let found = self.seen(key)?.value.as_ref().map(Value::version);
        let is_right = match expect {
            Expect::Absent => found.is_none(),
            Expect::Version(version) => found == Some(version),
        };
        if is_right { Ok(()) } else { Err(StoreError::Conflict { found }) }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.release();
    }
}

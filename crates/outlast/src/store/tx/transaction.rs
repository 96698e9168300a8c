//! A transaction as its program sees it: reads, changes, commit.

use crate::engine::Epoch;
use crate::store::error::{StoreError, StoreResult};
use crate::store::placement::mix;
use crate::store::segment::intent::IntentId;
use crate::store::tx::commit::{Attempt, Observation};
use crate::store::tx::state::{IntentSlot, TxState};
use crate::store::value::{Expect, Value, Version, check_key};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// From which rank on keys are locked before the closure runs.
const EAGER: u32 = 2;

/// How long to wait before a transaction is tried again: a random part of this, doubled each time.
const BACK_OFF: Duration = Duration::from_micros(20);

const BACK_OFF_DOUBLINGS: u32 = 9;

/// Keys with the versions that they have.
pub(in crate::store) type Versions = Vec<(Vec<u8>, Version)>;

/// What a transaction makes of a key.
pub(in crate::store) enum Write {
    Put {
        value: Vec<u8>,
        /// Whether the committer becomes the owner also if the key exists.
        is_mine: bool,
    },
    Delete,
}

/// An intent that was written.
pub(in crate::store) struct Active {
    pub(in crate::store) slot: IntentSlot,
    pub(in crate::store) id: IntentId,
    /// The version of the intent record.
    pub(in crate::store) version: Version,
    pub(in crate::store) keys: BTreeSet<Vec<u8>>,
}

/// A transaction: reads and changes of any keys, which take effect together at
/// [`Transaction::commit`] or not at all. See [`Store::transaction`], and [`Store::begin`] for one
/// that is not a closure.
///
/// Its calls never wait for another transaction for longer than a tenth of a second. What it reads
/// may have changed before it commits, and values of several keys may never have been there
/// together; then it does not commit. Dropping it aborts it.
pub struct Transaction {
    pub(in crate::store) state: Arc<TxState>,
    pub(in crate::store) rank: u32,
    /// The attempt at a recovery that it is joined to, if it is a recovery's.
    pub(in crate::store) recovery: Option<u64>,
    /// How many recoveries there had been when it began.
    pub(in crate::store) recoveries: u64,
    /// How it ended, if it has.
    pub(in crate::store) over: Option<&'static str>,
    /// Whether a member has not answered in time: then the call ends, and the background does the
    /// rest.
    pub(in crate::store) is_late: bool,
    pub(in crate::store) reads: BTreeMap<Vec<u8>, Observation>,
    pub(in crate::store) writes: BTreeMap<Vec<u8>, Write>,
    pub(in crate::store) active: Option<Active>,
    /// The keys that were locked before the closure, with the versions that this made, and the
    /// epoch of before that.
    pub(in crate::store) held: Option<(Epoch, Versions)>,
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

pub(in crate::store) const COMMITTED: &str = "committed";

const ABORTED: &str = "aborted";

/// Not carried out because of others.
pub(in crate::store) const FAILED: &str = "not carried out";

/// It ended with another error.
pub(in crate::store) const BROKEN: &str = "ended by an error";

impl Transaction {
    pub(in crate::store) fn check_open(&self) -> StoreResult<()> {
        if let Some(how) = self.over {
            return Err(StoreError::TransactionOver { how });
        }
        // What was read before a recovery is of another time.
        let is_of_now = self.recoveries == self.state.gate.recoveries();
        if is_of_now { Ok(()) } else { Err(StoreError::Revoked) }
    }

    /// The transaction of a recovery has no end of its own.
    fn check_own_end(&self, what: &str) -> StoreResult<()> {
        if self.recovery.is_none() {
            return Ok(());
        }
        let reason = format!(
            "{what} in a recovery: its transaction is carried out with those of all members"
        );
        Err(StoreError::Invalid { reason })
    }

    /// What the store has under a key, read once.
    fn seen(&mut self, key: &[u8]) -> StoreResult<&Observation> {
        self.check_open()?;
        check_key(key)?;
        if !self.reads.contains_key(key) {
            let seen = self.look(key, true);
            let seen = self.noted(seen)?;
            self.reads.insert(key.to_vec(), seen);
        }
        Ok(&self.reads[key])
    }

    pub(in crate::store) fn attempt(&self) -> Attempt {
        Attempt { rank: self.rank, recovery: self.recovery }
    }

    pub(in crate::store) fn look(&self, key: &[u8], wants_value: bool) -> StoreResult<Observation> {
        self.state.look(self.attempt(), key, wants_value)
    }

    /// The value of a key as this transaction sees it: what it has put itself, or what the store
    /// has; `None` if it does not exist.
    pub fn get(&mut self, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        self.check_open()?;
        check_key(key)?;
        match self.writes.get(key) {
            Some(Write::Put { value, .. }) => Ok(Some(value.clone())),
            Some(Write::Delete) => Ok(None),
            None => Ok(self.seen(key)?.value.as_ref().map(|value| value.bytes.clone())),
        }
    }

    /// The value of a key as it is without this transaction, with its version and owner.
    pub fn get_before(&mut self, key: &[u8]) -> StoreResult<Option<Value>> {
        Ok(self.seen(key)?.value.clone())
    }

    /// Sets a key. A key that does not exist will be owned by this member.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> StoreResult<()> {
        self.check_open()?;
        check_key(key)?;
        // What was deleted and is put again is a new key.
        let is_mine = match self.writes.get(key) {
            Some(Write::Put { is_mine, .. }) => *is_mine,
            Some(Write::Delete) => true,
            None => false,
        };
        self.writes.insert(key.to_vec(), Write::Put { value: value.to_vec(), is_mine });
        Ok(())
    }

    /// Deletes a key; whether it exists, as this transaction sees it.
    pub fn delete(&mut self, key: &[u8]) -> StoreResult<bool> {
        let exists = self.get(key)?.is_some();
        if exists {
            self.writes.insert(key.to_vec(), Write::Delete);
        }
        Ok(exists)
    }

    /// Adds to a key that holds a number; see [`Store::add`].
    pub fn add(&mut self, key: &[u8], delta: i64) -> StoreResult<i64> {
        let before = match self.get(key)? {
            None => 0,
            Some(value) => {
                let len = value.len();
                i64::from_le_bytes(value.try_into().map_err(|_| StoreError::WrongType {
                    what: format!("the value has {len} bytes, and a number has 8"),
                })?)
            }
        };
        let sum = before.wrapping_add(delta);
        self.put(key, &sum.to_le_bytes())?;
        Ok(sum)
    }

    /// Makes this member the owner of a key; whether the key exists, as this transaction sees it.
    pub fn adopt(&mut self, key: &[u8]) -> StoreResult<bool> {
        let Some(value) = self.get(key)? else { return Ok(false) };
        self.writes.insert(key.to_vec(), Write::Put { value, is_mine: true });
        Ok(true)
    }

    /// Makes the transaction depend on what the store has under a key: [`StoreError::Conflict`] if
    /// it is not as expected, and it does not commit if that changes before.
    pub fn require(&mut self, key: &[u8], expect: Expect) -> StoreResult<()> {
        let found = self.seen(key)?.value.as_ref().map(Value::version);
        let is_right = match expect {
            Expect::Absent => found.is_none(),
            Expect::Version(version) => found == Some(version),
        };
        if is_right { Ok(()) } else { Err(StoreError::Conflict { found }) }
    }

    /// Carries the transaction out: all of it, or nothing ([`StoreError::Aborted`]: others were
    /// faster; [`Transaction::retry`] begins it again). After [`StoreError::Timeout`] the outcome
    /// is unknown, to this member for now; it is all or nothing all the same.
    pub fn commit(&mut self) -> StoreResult<()> {
        self.check_own_end("commit()")?;
        self.check_open()?;
        let result = self.try_commit();
        let result = self.noted(result);
        self.over = Some(match &result {
            Ok(()) => COMMITTED,
            Err(StoreError::Aborted) => FAILED,
            Err(_) => BROKEN,
        });
        self.release();
        result
    }

    /// Ends the transaction without any effect. A transaction that is over stays as it is.
    pub fn abort(&mut self) {
        if self.over.is_none() {
            self.over = Some(ABORTED);
            self.release();
        }
    }

    /// Begins the transaction again, empty. Each time others have more patience with it; from the
    /// third attempt on, the keys that the last one touched are kept from changing from here on,
    /// until it is committed, aborted or dropped.
    pub fn retry(&mut self) -> StoreResult<()> {
        self.check_own_end("retry()")?;
        self.release();
        self.recoveries = self.state.gate.recoveries();
        let (reads, writes) = (std::mem::take(&mut self.reads), std::mem::take(&mut self.writes));
        self.versions.clear();
        self.rank = if self.over == Some(COMMITTED) { 0 } else { self.rank.saturating_add(1) };
        (self.over, self.is_late, self.held) = (None, false, None);
        if self.rank < EAGER {
            return Ok(());
        }
        let locked = self.lock_all(reads.into_keys().chain(writes.into_keys()).collect());
        let locked = self.noted(locked);
        if locked.is_err() {
            self.over = Some(BROKEN);
            self.release();
        }
        locked
    }

    /// After [`Transaction::commit`]: the keys that were set, with their new versions.
    pub fn versions(&self) -> &[(Vec<u8>, Version)] {
        &self.versions
    }

    /// A pause before the next attempt: a random part of a time that grows.
    pub(in crate::store) fn back_off(&self) {
        let job = &self.state.job;
        let nonce = self.state.transactions.nonce.fetch_add(1, Ordering::Relaxed);
        let most = BACK_OFF * (1 << self.rank.min(BACK_OFF_DOUBLINGS));
        let part = mix(nonce << 16 | u64::from(job.me().0)) % most.as_nanos() as u64;
        job.sleep(Duration::from_nanos(part));
    }

    /// Notes whether a member has not answered in time.
    pub(in crate::store) fn noted<T>(&mut self, result: StoreResult<T>) -> StoreResult<T> {
        self.is_late |= matches!(result, Err(StoreError::Timeout { .. }));
        result
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.release();
    }
}

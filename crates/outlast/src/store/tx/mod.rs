//! Transactions: several keys read and changed at one moment; docs/protocol.md, "Transactions".
//!
//! A transaction reads what it likes and keeps its changes to itself. To commit, it writes an *intent*, a record of the
//! store's own with the list of its keys; puts a *provisional* version in the place of each key that it changes, which
//! holds the value before and the one after; and then decides, by a conditional write of the intent. Intents and
//! provisional versions are written, settled, copied and repaired like all others: what this module adds is what they mean.
//!
//! | | step | true before | true afterwards | a survivor finds, if the committer dies or is stopped here |
//! |---|---|---|---|---|
//! | X1 | put the intent: pending, with all keys that are to be changed | the intent's former transaction is over, and no key has a provisional version of it | whoever meets a provisional version finds the intent | an intent that no key names; the heir of the dead removes it |
//! | X2 | for each key to change, in the order of hashes: if it is still as the transaction has read it, put a provisional version in its place | a provisional version of another transaction was cleared away (below) | the key's value is the old one until the intent is decided, and nobody changes it | provisional versions of a pending intent: readers see the old value, whoever wants to write aborts it |
//! | X3 | if keys were read and not changed: the intent from pending to *doubt*, by a conditional write; then look at each of them again | all keys to change are provisional | all that was read was true together when the intent went into doubt: there the transaction has its place | as X2; a reader, too, waits a little and then aborts it |
//! | X4 | the intent to *committed*, by a conditional write, acknowledged by all its homes | X2 and X3 found everything as it was read | **the transaction has happened**, wholly | readers see the new values; anyone who wants to write does X5 for its key, the heir of the dead for all |
//! | X5 | for each key: put the new value as a plain version in the place of the provisional one | the intent is decided, and stays so | that key needs the intent no longer | as X4 |
//! | X6 | the record of the intent is free for this member's next transaction | no key has a provisional version | | the heir of the dead removes the record |
//!
//! | | step, by anyone | true before | true afterwards | a survivor finds |
//! |---|---|---|---|---|
//! | Y1 | the intent from pending or doubt to aborted, by a conditional write | its member is dead, or has been in the way for long enough | X4 fails; the transaction never happens | an aborted intent: readers see the old values |
//! | Y2 | for each key: put the value before in the place of the provisional version, as a *restored* version that keeps its number (a tombstone if there was none) | as X5 | as X5 | as Y1 |
//!
//! X5 and Y2 are writes from the very provisional version that was found, and make the same version whoever does it; one
//! who comes late finds another head and loses. So they can be repeated, by several at once, by the committer that wakes
//! up, and after X6: a nonce that the intent does not have any more, or a record that is not there, is looked at only
//! after the provisional version, and the write from it then fails, since X6 comes after all of X5.
//!
//! *A lost intent.* If the partition of the intent is lost, whoever needs it is told `DataLost`, also for keys in other
//! partitions. When the loss is accepted there is no such intent, and the provisional versions that are left are rolled
//! back. What had been applied stays; and if that comes between X4 and X5 of a living committer, it applies what it still finds,
//! and says `DataLost` instead of `Ok` if somebody else was at one of its keys before. If the partition of a key is lost and
//! given up between X2 and X4, its new value is gone: after X4 a committer that has seen the view change looks at the
//! incarnations of its keys' partitions, and says `DataLost`, too.
//!
//! *Readers.* Provisional and pending: the old value; the transaction had not happened when the intent was looked at, and
//! while it is pending the provisional version stays. Aborted: the old value. Committed: the new one. None of these
//! waits. Doubt: the transaction's place may be before what the reader has already seen, so neither value will do until it is
//! decided: the reader waits a little, then aborts it. Why doubt is needed: T reads y and changes x. It looks at y again and
//! finds it unchanged; W puts y, and is done; R then reads x. If R may read past T it sees the old x; then T commits. R comes
//! before T, T before W, and W had ended when R began. A transaction that changes all that it reads needs no doubt: up to
//! X4 nobody can change anything of it.
//!
//! *Strict serializability.* A transaction has its place where the intent went into doubt, or, without doubt, at X4;
//! one that only reads, between its last first look and its first second look. There everything that it read was true: a
//! key's versions never repeat, and a key that does not exist has a mark that grows when it is made and deleted. Both lie
//! between the beginning and the end of the call.
//!
//! *Who waits for whom.* Whoever finds an undecided transaction in its way waits 200 us, twice that for each time that the
//! other had failed before (its *rank*), up to 0.1 s, then does Y1; if the other's member is dead, at once; and a
//! transaction of a higher rank waits no longer than 200 us for one of a lower. A transaction of rank 2 or more first puts
//! provisional versions that change nothing in the place of all keys that it touched the last time, and only then runs
//! its closure: nobody can change them under it. So a large transaction is aborted by small ones only a few times: each
//! time it is left alone for twice as long. A transaction that takes longer than 0.1 s with its keys locked has no such
//! guarantee. A closure is tried again until the job's time limit is over.

mod protocol;
mod record;

pub(super) use protocol::Blocker;
pub(super) use record::is_intent;
#[cfg(all(test, feature = "sim"))]
pub(super) use record::{Verdict, intent_key};

use super::mutant::mutant;
use super::open::Inner;
use super::placement::{hash_key, mix};
use super::write::{Change, Remembered};
use super::{Expect, Store, StoreError, StoreResult, Value, Version, check_key};
use crate::engine::{Epoch, MemberId, MemberSet, Time, View};
use crate::store::steps::{self, within};
use crate::sync::lock;
use protocol::{Attempt, Seen};
use record::{Intent, IntentId, Mark, New, State};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How many transactions of a member may be committing at once.
const SLOTS: u32 = 64;
/// From which rank on keys are locked before the closure runs.
const EAGER: u32 = 2;
/// How long to wait while all intent records are in use.
const CROWDED: Duration = Duration::from_micros(200);
/// How long to wait before a transaction is tried again: a random part of this, doubled each time.
const BACK_OFF: Duration = Duration::from_micros(20);
const BACK_OFF_DOUBLINGS: u32 = 9;
/// When to look again at what could not be brought to its end.
const LATER: Duration = Duration::from_millis(100);
/// A finished intent that is longer than this is replaced by a short one.
const SHORT: usize = 1024;

/// An intent record of this member, and what is remembered of it.
struct IntentSlot {
    number: u32,
    memory: Box<Remembered>,
}

/// A transaction that could not be brought to its end.
pub(super) struct Unfinished {
    slot: IntentSlot,
    id: IntentId,
    keys: Vec<Vec<u8>>,
    /// Whether it is joined to a recovery.
    is_joined: bool,
    due: Time,
    /// Whether its decision may be under way: a frost waits until it is known (see `cut`).
    is_deciding: bool,
}

/// Keys with the versions that they have.
type Versions = Vec<(Vec<u8>, Version)>;

/// What a member keeps for transactions.
#[derive(Default)]
pub(super) struct Transactions {
    free: Mutex<Vec<IntentSlot>>,
    made: AtomicU32,
    nonce: AtomicU64,
    pub(super) unfinished: Mutex<Vec<Unfinished>>,
    /// The dead whose intents this member is to end, as their heir.
    estate: Mutex<Estate>,
    /// How many transactions are between the beginning and the end of their decision; see `cut`.
    deciding: AtomicU64,
    /// How many intents that are joined to a recovery have not been brought to their end.
    joined: AtomicU64,
    /// The activities that run a closure.
    inside: Mutex<Vec<u64>>,
}

impl Transactions {
    /// Whether transactions of this member are being decided.
    pub(super) fn is_deciding(&self) -> bool {
        self.deciding.load(Ordering::SeqCst) > 0
    }

    /// An error if this activity runs a closure.
    pub(super) fn check_not_inside(&self, activity: u64) -> StoreResult<()> {
        if lock(&self.inside).contains(&activity) { Err(StoreError::Nested) } else { Ok(()) }
    }
}

/// A transaction that is being decided: it goes on even if the store is frozen meanwhile.
struct Deciding(Arc<Inner>);

impl Deciding {
    /// Waits until the store is not frozen. Whoever freezes it from then on waits for the end of this; and whoever closes the
    /// gate of global mode, which only a recovery passes.
    fn begin(store: &Arc<Inner>, is_recovery: bool) -> StoreResult<Deciding> {
        loop {
            store.transactions.deciding.fetch_add(1, Ordering::SeqCst);
            let deciding = Deciding(store.clone());
            if !is_recovery {
                store.check_gate(Epoch(0))?;
            }
            if !store.frost.is_set() {
                return Ok(deciding);
            }
            drop(deciding);
            store.wait_for_thaw()?;
        }
    }
}

impl Deciding {
    /// It goes on when this call has ended: whoever brings it to its end counts it off.
    fn goes_on(self) {
        self.0.transactions.deciding.fetch_add(1, Ordering::SeqCst);
    }
}

/// G7: the verdict that a recovery is committed, not while the store is frozen.
pub(super) fn decide_in_peace(
    store: &Arc<Inner>,
    attempt: u64,
    recovered: Option<&MemberSet>,
) -> StoreResult<record::Verdict> {
    let _deciding = Deciding::begin(store, true)?;
    store.decide(attempt, recovered, "")
}

impl Drop for Deciding {
    fn drop(&mut self) {
        self.0.transactions.deciding.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Default)]
struct Estate {
    epoch: Option<Epoch>,
    done: MemberSet,
    left: Vec<(MemberId, u32)>,
    /// Whether one is being ended.
    is_busy: bool,
    not_before: Option<Time>,
}

/// What a transaction makes of a key.
enum Write {
    Put {
        value: Vec<u8>,
        /// Whether the committer becomes the owner also if the key exists.
        is_mine: bool,
    },
    Delete,
}

/// An intent that was written.
struct Active {
    slot: IntentSlot,
    id: IntentId,
    /// The version of the intent record.
    version: Version,
    keys: BTreeSet<Vec<u8>>,
}

/// A transaction: reads and changes of any keys, which take effect together at [`Transaction::commit`] or not at all. See
/// [`Store::transaction`], and [`Store::begin`] for one that is not a closure.
///
/// Its calls never wait for another transaction for longer than a tenth of a second. What it reads may have changed before
/// it commits, and values of several keys may never have been there together; then it does not commit. Dropping it
/// aborts it.
pub struct Transaction {
    store: Store,
    rank: u32,
    /// The attempt at a recovery that it is joined to, if it is a recovery's.
    recovery: Option<u64>,
    /// How many recoveries there had been when it began.
    recoveries: u64,
    /// How it ended, if it has.
    over: Option<&'static str>,
    /// Whether a member has not answered in time: then the call ends, and the background does the rest.
    is_late: bool,
    reads: BTreeMap<Vec<u8>, Seen>,
    writes: BTreeMap<Vec<u8>, Write>,
    active: Option<Active>,
    /// The keys that were locked before the closure, with the versions that this made, and the epoch of before that.
    held: Option<(Epoch, Versions)>,
    versions: Vec<(Vec<u8>, Version)>,
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

impl Store {
    /// Runs a closure as a transaction: all that it reads and changes by the handle that it is given happens at one moment,
    /// or nothing of it does. If others are faster it is run again, after a pause that grows, until the job's time limit is
    /// over ([`StoreError::Contended`]); so it should have no other effects. An error of the closure aborts the
    /// transaction and is passed on, and so is a panic. What the closure returns counts only if all that it has
    /// read was there at one moment.
    ///
    /// ```
    /// use outlast::store::{Options, Store, StoreError};
    /// let job = outlast::join()?;
    /// let store = Store::open(&job, Options::new())?;
    /// store.add(b"account/1", 100)?;
    /// store.transaction(|tx| {
    ///     if tx.add(b"account/1", -30)? < 0 {
    ///         return Err(StoreError::WrongType { what: "not enough".into() });
    ///     }
    ///     tx.add(b"account/2", 30)
    /// })?;
    /// assert_eq!(store.add(b"account/2", 0)?, 30);
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Calls of the store inside the closure are no part of the transaction; one that writes a key of the transaction may
    /// make it fail.
    pub fn transaction<T, E: From<StoreError>>(
        &self,
        mut body: impl FnMut(&mut Transaction) -> Result<T, E>,
    ) -> Result<T, E> {
        let job = &self.inner.job;
        let _inside = Inside::enter(&self.inner)?;
        let mut until = None;
        let mut tx = self.begin();
        loop {
            let error = match body(&mut tx) {
                Ok(value) => match tx.commit() {
                    Ok(()) => return Ok(value),
                    Err(error) => E::from(error),
                },
                Err(error) => {
                    let is_true =
                        tx.over.is_some() || tx.is_late || tx.is_consistent().unwrap_or(true);
                    tx.abort();
                    if is_true {
                        return Err(error);
                    }
                    tx.over = Some(FAILED);
                    error
                }
            };
            if tx.over != Some(FAILED) {
                return Err(error);
            }
            let now = job.now();
            if now >= *until.get_or_insert(now.after(job.time_limit())) {
                return Err(StoreError::Contended { attempts: tx.rank + 1 }.into());
            }
            tx.back_off();
            tx.retry()?;
        }
    }

    /// Begins a transaction by handle; see [`Transaction`]. The caller tries it again itself, with [`Transaction::retry`].
    ///
    /// ```
    /// # use outlast::store::{Options, Store, StoreError};
    /// # let job = outlast::join()?;
    /// # let store = Store::open(&job, Options::new())?;
    /// let mut tx = store.begin();
    /// loop {
    ///     tx.put(b"a", b"1")?;
    ///     tx.put(b"b", b"2")?;
    ///     match tx.commit() {
    ///         Err(StoreError::Aborted) => tx.retry()?,
    ///         other => break other?,
    ///     }
    /// }
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin(&self) -> Transaction {
        self.begin_in(None)
    }

    /// Begins a transaction, joined to an attempt at a recovery or not.
    pub(super) fn begin_in(&self, recovery: Option<u64>) -> Transaction {
        Transaction {
            store: self.clone(),
            rank: 0,
            recovery,
            recoveries: self.inner.global.recoveries(),
            over: None,
            is_late: false,
            reads: BTreeMap::new(),
            writes: BTreeMap::new(),
            active: None,
            held: None,
            versions: Vec::new(),
        }
    }
}

const COMMITTED: &str = "committed";
const ABORTED: &str = "aborted";
/// Not carried out because of others.
const FAILED: &str = "not carried out";
/// It ended with another error.
const BROKEN: &str = "ended by an error";

/// While it exists, this activity runs a closure.
struct Inside<'a> {
    store: &'a Inner,
    activity: u64,
}

impl<'a> Inside<'a> {
    fn enter(store: &'a Inner) -> StoreResult<Inside<'a>> {
        let activity = store.job.activity();
        let mut inside = lock(&store.transactions.inside);
        if inside.contains(&activity) {
            return Err(StoreError::Nested);
        }
        inside.push(activity);
        Ok(Inside { store, activity })
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        lock(&self.store.transactions.inside).retain(|&activity| activity != self.activity);
    }
}

impl Transaction {
    fn check_open(&self) -> StoreResult<()> {
        if let Some(how) = self.over {
            return Err(StoreError::TransactionOver { how });
        }
        // What was read before a recovery is of another time.
        let is_of_now = self.recoveries == self.store.inner.global.recoveries();
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
    fn seen(&mut self, key: &[u8]) -> StoreResult<&Seen> {
        self.check_open()?;
        check_key(key)?;
        if !self.reads.contains_key(key) {
            let seen = self.look(key, true);
            let seen = self.noted(seen)?;
            self.reads.insert(key.to_vec(), seen);
        }
        Ok(&self.reads[key])
    }

    fn attempt(&self) -> Attempt {
        Attempt { rank: self.rank, recovery: self.recovery }
    }

    fn look(&self, key: &[u8], wants_value: bool) -> StoreResult<Seen> {
        self.store.inner.look(self.attempt(), key, wants_value)
    }

    /// The value of a key as this transaction sees it: what it has put itself, or what the store has; `None` if it does not
    /// exist.
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

    /// Makes the transaction depend on what the store has under a key: [`StoreError::Conflict`] if it is not as expected,
    /// and it does not commit if that changes before.
    pub fn require(&mut self, key: &[u8], expect: Expect) -> StoreResult<()> {
        let found = self.seen(key)?.value.as_ref().map(Value::version);
        let is_right = match expect {
            Expect::Absent => found.is_none(),
            Expect::Version(version) => found == Some(version),
        };
        if is_right { Ok(()) } else { Err(StoreError::Conflict { found }) }
    }

    /// Carries the transaction out: all of it, or nothing ([`StoreError::Aborted`]: others were faster;
    /// [`Transaction::retry`] begins it again). After [`StoreError::Timeout`] the outcome is unknown, to this member for now; it is
    /// all or nothing all the same.
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

    /// Begins the transaction again, empty. Each time others have more patience with it; from the third attempt on, the keys
    /// that the last one touched are kept from changing from here on, until it is committed, aborted or dropped.
    pub fn retry(&mut self) -> StoreResult<()> {
        self.check_own_end("retry()")?;
        self.release();
        self.recoveries = self.store.inner.global.recoveries();
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
    fn back_off(&self) {
        let job = &self.store.inner.job;
        let nonce = self.store.inner.transactions.nonce.fetch_add(1, Ordering::Relaxed);
        let most = BACK_OFF * (1 << self.rank.min(BACK_OFF_DOUBLINGS));
        let part = mix(nonce << 16 | u64::from(job.me().0)) % most.as_nanos() as u64;
        job.sleep(Duration::from_nanos(part));
    }

    /// X1 and X2 for keys of which it is not known yet what becomes of them.
    fn lock_all(&mut self, keys: BTreeSet<Vec<u8>>) -> StoreResult<()> {
        if keys.is_empty() {
            return Ok(());
        }
        self.announce(&keys)?;
        let began = self.store.inner.job.epoch();
        let active = self.active.as_ref().expect("just announced");
        let mut held = Vec::new();
        for key in in_order(&active.keys) {
            let lock = |_: Option<MemberId>| New::Unchanged;
            let locked =
                self.store.inner.lock_key(self.attempt(), key, active.id, None, lock, &[])?;
            held.extend(locked.map(|version| (key.clone(), version)));
        }
        self.held = Some((began, held));
        Ok(())
    }

    /// An error if a key that was locked before the closure, which has only read it, was lost since: others may have changed it.
    fn check_held(&self) -> StoreResult<()> {
        let inner = &self.store.inner;
        let held = self
            .held
            .iter()
            .filter(|(began, _)| *began != inner.job.epoch())
            .flat_map(|(_, held)| held);
        held.filter(|(key, _)| self.reads.contains_key(key) && !self.writes.contains_key(key))
            .try_for_each(|(key, version)| inner.check_incarnation(key, *version))
    }

    /// Whether all that was read is still there, so that there was a moment at which all of it was.
    fn is_consistent(&mut self) -> StoreResult<bool> {
        if self.reads.len() < 2 && self.active.is_none() {
            return Ok(true);
        }
        let result = self.look_again(|_| true);
        self.noted(result)
    }

    /// Notes whether a member has not answered in time.
    fn noted<T>(&mut self, result: StoreResult<T>) -> StoreResult<T> {
        self.is_late |= matches!(result, Err(StoreError::Timeout { .. }));
        result
    }

    /// Whether the keys that are asked for are still as they were read.
    fn look_again(&self, is_asked: impl Fn(&[u8]) -> bool) -> StoreResult<bool> {
        let _step = within(steps::Step::TxValidate);
        for (key, seen) in self.reads.iter().filter(|(key, _)| is_asked(key)) {
            if self.look(key, false)?.mark != seen.mark {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// X1: writes the intent, with these keys beside those that it has.
    fn announce(&mut self, keys: &BTreeSet<Vec<u8>>) -> StoreResult<()> {
        let inner = &self.store.inner;
        let _step = within(steps::Step::TxIntent);
        let (slot, id, mut all, expected) = match self.active.take() {
            Some(active) if keys.is_subset(&active.keys) => {
                self.active = Some(active);
                return Ok(());
            }
            Some(active) => (active.slot, active.id, active.keys, Some(active.version)),
            None => {
                let slot = inner.take_slot()?;
                let nonce = inner.transactions.nonce.fetch_add(1, Ordering::Relaxed) + 1;
                let id = IntentId { member: inner.me(), slot: slot.number, nonce };
                inner
                    .transactions
                    .joined
                    .fetch_add(u64::from(self.recovery.is_some()), Ordering::SeqCst);
                (slot, id, BTreeSet::new(), None)
            }
        };
        let former: Vec<Vec<u8>> = all.iter().cloned().collect();
        all.extend(keys.iter().cloned());
        let mut slot = slot;
        let intent = self.intent(id, &all, State::Pending);
        let intent = match self.recovery {
            None => intent,
            Some(recovery) => Intent { state: State::Joined, recovery, ..intent },
        };
        match inner.write_intent(id, &mut slot.memory, expected, &intent) {
            Ok(version) => {
                self.active = Some(Active { slot, id, version, keys: all });
                Ok(())
            }
            Err(error) => {
                // No key has a provisional version beyond those of before.
                let is_joined = self.recovery.is_some();
                match error {
                    StoreError::Timeout { .. } => {
                        inner.finish_later(slot, id, former, is_joined, false, LATER)
                    }
                    _ => inner.finish(slot, id, former, None, is_joined),
                }
                Err(as_aborted(error))
            }
        }
    }

    fn intent(&self, id: IntentId, keys: &BTreeSet<Vec<u8>>, state: State) -> Intent {
        let keys = keys.iter().cloned().collect();
        Intent { nonce: id.nonce, state, rank: self.rank, recovery: 0, keys }
    }

    fn try_commit(&mut self) -> StoreResult<()> {
        if self.writes.is_empty() {
            return if self.is_consistent()? { Ok(()) } else { Err(StoreError::Aborted) };
        }
        let is_single =
            self.writes.len() == 1 && self.reads.keys().all(|key| self.writes.contains_key(key));
        if is_single && self.active.is_none() {
            return self.commit_one();
        }
        let keys: BTreeSet<Vec<u8>> = self.writes.keys().cloned().collect();
        self.announce(&keys)?;
        let began = self.store.inner.job.epoch();
        let (versions, locked) = self.lock_writes(&keys)?;
        let inner = &self.store.inner;
        let active = self.active.as_mut().expect("just announced");
        let deciding = Deciding::begin(inner, false)?;
        // X3. What is locked needs no second look. It needs doubt if it is not changed: it may be lost and given up, and if
        // readers could pass until X4, nobody could say whether that came first.
        if self.reads.keys().any(|key| !self.writes.contains_key(key)) {
            let intent = Intent {
                nonce: active.id.nonce,
                state: State::Doubt,
                rank: self.rank,
                recovery: 0,
                keys: active.keys.iter().cloned().collect(),
            };
            let id = active.id;
            let _step = within(steps::Step::TxValidate);
            active.version = inner
                .write_intent(id, &mut active.slot.memory, Some(active.version), &intent)
                .map_err(as_aborted)?;
            let is_locked: BTreeSet<Vec<u8>> = active.keys.clone();
            if !self.look_again(|key| !is_locked.contains(key))? && !mutant("tx-skip-look") {
                return Err(StoreError::Aborted);
            }
        }
        self.check_held()?;
        let (id, version, is_whole) = self.decide(deciding)?;
        // A partition can have been lost, and given up, while its key was locked: then the new value is gone with the
        // provisional version. Nobody is told that it is there. So can that of the intent: then whoever came to a key before
        // X5 has rolled it back.
        let inner = &self.store.inner;
        if inner.job.epoch() != began {
            locked.iter().try_for_each(|(key, version)| inner.check_incarnation(key, *version))?;
            if !is_whole {
                inner.check_incarnation(&record::intent_key(id.member, id.slot), version)?;
            }
        }
        self.versions = versions;
        Ok(())
    }

    /// X2, once the intent is announced: the keys with the versions that they will have, without and with those that are
    /// deleted.
    fn lock_writes(&self, keys: &BTreeSet<Vec<u8>>) -> StoreResult<(Versions, Versions)> {
        let inner = &self.store.inner;
        let active = self.active.as_ref().expect("announced");
        let (mut versions, mut locked) = (Vec::new(), Vec::new());
        for key in in_order(keys) {
            let seen = self.reads.get(key).map(|seen| seen.mark);
            let mine = inner.me();
            let (bytes, is_deleted, is_mine) = match &self.writes[key] {
                Write::Put { value, is_mine } => (value.as_slice(), false, *is_mine),
                Write::Delete => (&[][..], true, false),
            };
            let new = |owner: Option<MemberId>| match is_deleted {
                true => New::Deleted,
                false => {
                    New::Value { bytes: &[], owner: owner.filter(|_| !is_mine).unwrap_or(mine) }
                }
            };
            match inner.lock_key(self.attempt(), key, active.id, seen, new, bytes)? {
                Some(version) => {
                    locked.push((key.clone(), version));
                    if !is_deleted {
                        versions.push((key.clone(), version));
                    }
                }
                None => return Err(StoreError::Aborted),
            }
        }
        Ok((versions, locked))
    }

    /// X4 to X6: the intent, its version, and whether all of X5 was this call's.
    fn decide(&mut self, deciding: Deciding) -> StoreResult<(IntentId, Version, bool)> {
        let Active { mut slot, id, version, keys } = self.active.take().expect("announced");
        let inner = &self.store.inner;
        let intent = self.intent(id, &keys, State::Committed);
        let keys: Vec<Vec<u8>> = intent.keys.clone();
        if mutant("tx-apply-early") {
            let _ = keys.iter().try_for_each(|key| inner.resolve(key, id, true).map(drop));
        }
        let step = within(steps::Step::TxCommit);
        let decided = inner.write_intent(id, &mut slot.memory, Some(version), &intent);
        drop(step);
        match decided {
            Ok(version) => {
                drop(deciding);
                let applied = inner.apply(id, &keys);
                let is_whole = applied == Ok(true);
                inner.end(slot, id, keys, applied.map(drop), false);
                Ok((id, version, is_whole))
            }
            // The outcome is unknown for now, and may still be decided.
            Err(error @ StoreError::Timeout { .. }) => {
                deciding.goes_on();
                inner.finish_later(slot, id, keys, false, true, LATER);
                Err(error)
            }
            Err(error) => {
                drop(deciding);
                inner.finish(slot, id, keys, None, false);
                Err(as_aborted(error))
            }
        }
    }

    /// A transaction that changes a single key and depends on no other: a conditional write.
    fn commit_one(&mut self) -> StoreResult<()> {
        let (key, write) = self.writes.iter().next().expect("one write");
        let seen = self.reads.get(key).map(|seen| seen.mark);
        let written = self.store.inner.write(key, false, |current, _| {
            let found = current.map(|current| current.version);
            let is_right = match seen {
                None => true,
                Some(Mark { exists: false, .. }) => found.is_none(),
                Some(Mark { version, .. }) => found == Some(version),
            };
            if !is_right {
                return Err(StoreError::Conflict { found });
            }
            Ok(match write {
                Write::Put { value, is_mine: false } => Change::Put(value),
                Write::Put { value, is_mine: true } => Change::Adopt(value.clone()),
                Write::Delete if current.is_none() => Change::Nothing,
                Write::Delete => Change::Delete,
            })
        });
        let written = written.map_err(as_aborted)?;
        if let (Write::Put { .. }, Some(version)) = (write, written) {
            self.versions.push((key.clone(), version));
        }
        Ok(())
    }

    /// Lets go of what is locked, if the transaction was not decided.
    fn release(&mut self) {
        if let Some(Active { slot, id, keys, .. }) = self.active.take() {
            let (inner, keys) = (&self.store.inner, keys.into_iter().collect());
            let is_joined = self.recovery.is_some();
            match self.is_late {
                true => inner.finish_later(slot, id, keys, is_joined, false, LATER),
                false => inner.finish(slot, id, keys, Some(false), is_joined),
            }
        }
    }

    /// The transaction of a recovery, up to the decision: X1 and X2, and a second look at what was only read.
    pub(super) fn prepare(&mut self) -> StoreResult<()> {
        self.check_open()?;
        let keys: BTreeSet<Vec<u8>> = self.writes.keys().cloned().collect();
        if !keys.is_empty() {
            self.announce(&keys)?;
            self.versions = self.lock_writes(&keys)?.0;
        }
        if self.look_again(|key| !keys.contains(key))? { Ok(()) } else { Err(StoreError::Aborted) }
    }

    /// Ends the transaction of a recovery as the verdict says.
    pub(super) fn end_prepared(&mut self, is_committed: bool) {
        if let Some(Active { slot, id, keys, .. }) = self.active.take() {
            self.store.inner.finish(slot, id, keys.into_iter().collect(), Some(is_committed), true);
        }
        self.over = Some(if is_committed { COMMITTED } else { FAILED });
    }

    /// Leaves the end of a recovery's transaction to the background: the verdict is not known.
    pub(super) fn abandon(&mut self) {
        self.over = Some(BROKEN);
        if let Some(Active { slot, id, keys, .. }) = self.active.take() {
            let inner = &self.store.inner;
            inner.finish_later(slot, id, keys.into_iter().collect(), true, false, Duration::ZERO);
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.release();
    }
}

/// Keys in the order in which all transactions lock them.
fn in_order(keys: &BTreeSet<Vec<u8>>) -> Vec<&Vec<u8>> {
    let mut keys: Vec<&Vec<u8>> = keys.iter().collect();
    keys.sort_by_key(|key| hash_key(key));
    keys
}

/// Whoever finds its intent changed was aborted.
fn as_aborted(error: StoreError) -> StoreError {
    match error {
        StoreError::Conflict { .. } => StoreError::Aborted,
        other => other,
    }
}

impl Inner {
    /// An intent record that no transaction uses.
    fn take_slot(&self) -> StoreResult<IntentSlot> {
        let (job, transactions) = (&self.job, &self.transactions);
        let limit = job.time_limit();
        let until = job.now().after(limit);
        loop {
            if let Some(slot) = lock(&transactions.free).pop() {
                return Ok(slot);
            }
            let number = transactions.made.fetch_add(1, Ordering::Relaxed);
            if number < SLOTS {
                return Ok(IntentSlot { number, memory: Box::new(Remembered::NOTHING) });
            }
            transactions.made.fetch_sub(1, Ordering::Relaxed);
            let now = job.now();
            if now >= until {
                return Err(StoreError::Timeout { member: job.me(), limit });
            }
            job.park(job.bell(), until.min(now.after(CROWDED)));
        }
    }

    /// Brings an own transaction to its end, X5 or Y1 and Y2, or leaves that to the background. `is_committed` is how it was
    /// decided, if that is known; one that was not decided is aborted.
    /// One that is joined to a recovery is over only when its record says no more that it is: the verdict may be
    /// overwritten by the next attempt.
    fn finish(
        &self,
        slot: IntentSlot,
        id: IntentId,
        keys: Vec<Vec<u8>>,
        is_committed: Option<bool>,
        is_joined: bool,
    ) {
        let ended = match is_committed {
            Some(true) => self.apply(id, &keys).map(drop),
            _ => self.conclude(id, &keys),
        };
        self.end(slot, id, keys, ended, is_joined);
    }

    /// X5 for a transaction that is committed; whether it was left to do at every key. If not, somebody has done it, or, if the
    /// intent was lost and given up, the contrary.
    fn apply(&self, id: IntentId, keys: &[Vec<u8>]) -> StoreResult<bool> {
        if mutant("tx-drop-intent") {
            return Ok(true);
        }
        keys.iter().try_fold(true, |is_whole, key| Ok(self.resolve(key, id, true)? && is_whole))
    }

    /// X6 for a transaction whose keys were brought to their end, if they were.
    fn end(
        &self,
        mut slot: IntentSlot,
        id: IntentId,
        keys: Vec<Vec<u8>>,
        ended: StoreResult<()>,
        is_joined: bool,
    ) {
        match ended {
            Ok(()) => {}
            // Nobody finds it and asks for its verdict any more. Once the loss is accepted, its keys are rolled back.
            Err(StoreError::DataLost { .. })
                if is_joined && self.is_intent_lost(id.member, id.slot) =>
            {
                self.transactions.joined.fetch_sub(1, Ordering::SeqCst);
                return self.finish_later(slot, id, keys, false, false, LATER);
            }
            Err(_) => return self.finish_later(slot, id, keys, is_joined, false, LATER),
        }
        if is_joined || keys.iter().map(Vec::len).sum::<usize>() > SHORT {
            // Whoever still asks for it finds it gone, as after the next transaction.
            let _step = within(steps::Step::TxRelease);
            let empty =
                Intent { nonce: 0, state: State::Aborted, rank: 0, recovery: 0, keys: Vec::new() };
            let written = self.write_intent(id, &mut slot.memory, None, &empty);
            if is_joined && written.is_err() {
                return self.finish_later(slot, id, keys, is_joined, false, LATER);
            }
        }
        self.transactions.joined.fetch_sub(u64::from(is_joined), Ordering::SeqCst);
        lock(&self.transactions.free).push(slot);
    }

    /// Leaves that to the background.
    fn finish_later(
        &self,
        slot: IntentSlot,
        id: IntentId,
        keys: Vec<Vec<u8>>,
        is_joined: bool,
        is_deciding: bool,
        pause: Duration,
    ) {
        let due = self.job.now().after(pause);
        let unfinished = Unfinished { slot, id, keys, is_joined, due, is_deciding };
        lock(&self.transactions.unfinished).push(unfinished);
        let _ = self.job.ring(self.me());
    }

    /// Whether the transactions of those who are dead in this view, as far as they are this member's to end, are ended, and
    /// its own that were joined to a recovery.
    pub(super) fn has_ended_those_of_the_dead(&self, view: &View) -> bool {
        let estate = lock(&self.transactions.estate);
        let is_ended =
            estate.epoch == Some(view.epoch) && estate.left.is_empty() && !estate.is_busy;
        is_ended && self.transactions.joined.load(Ordering::SeqCst) == 0
    }

    /// The background's part: own transactions that could not be brought to their end, and those of the dead whose heir this
    /// member is; when to run again.
    pub(super) fn end_transactions(&self) -> Time {
        self.end_unfinished().min(self.end_those_of_the_dead())
    }

    fn end_unfinished(&self) -> Time {
        let now = self.job.now();
        let taken = {
            let mut unfinished = lock(&self.transactions.unfinished);
            unfinished
                .iter()
                .position(|one| one.due <= now)
                .map(|index| unfinished.swap_remove(index))
        };
        match taken {
            // It may be decided until it is aborted, or found to be decided, or lost with all who could be told of it.
            Some(Unfinished { slot, id, keys, is_joined, is_deciding: true, .. }) => {
                let is_decided = match self.decision(id) {
                    Ok(_) => true,
                    Err(StoreError::DataLost { .. }) => self.is_intent_lost(id.member, id.slot),
                    Err(_) => false,
                };
                if is_decided {
                    self.transactions.deciding.fetch_sub(1, Ordering::SeqCst);
                }
                self.finish_later(slot, id, keys, is_joined, !is_decided, LATER);
            }
            Some(Unfinished { slot, id, keys, is_joined, .. }) => {
                self.finish(slot, id, keys, None, is_joined)
            }
            None => {}
        }
        lock(&self.transactions.unfinished).iter().map(|one| one.due).min().unwrap_or(Time::NEVER)
    }

    fn end_those_of_the_dead(&self) -> Time {
        let (view, now) = (self.current_view(), self.job.now());
        let next = {
            let mut estate = lock(&self.transactions.estate);
            if estate.epoch != Some(view.epoch) {
                estate.epoch = Some(view.epoch);
                let heirless = view.dead.iter().filter(|&dead| {
                    super::list::heir(dead, &view) == self.me() && !estate.done.contains(dead)
                });
                let heirless: Vec<MemberId> = heirless.collect();
                for dead in heirless {
                    estate.done.insert(dead);
                    estate.left.extend((0..SLOTS).map(|slot| (dead, slot)));
                }
            }
            if let Some(due) = estate.not_before.filter(|&due| now < due) {
                return if estate.left.is_empty() { Time::NEVER } else { due };
            }
            let next = estate.left.pop();
            estate.is_busy = next.is_some();
            next
        };
        let Some((member, slot)) = next else { return Time::NEVER };
        let ended = self.end_intent_of_the_dead(member, slot);
        let is_lost =
            matches!(ended, Err(StoreError::DataLost { .. })) && self.is_intent_lost(member, slot);
        let now = self.job.now();
        let mut estate = lock(&self.transactions.estate);
        estate.is_busy = false;
        match ended {
            // Lost: what it had locked is rolled back by whoever finds it, once the loss is accepted.
            Ok(()) | Err(StoreError::Closed) => {}
            Err(_) if is_lost => {}
            // Also if the verdict is lost that it depends on: while the intent is there, somebody may come to ask for it, and
            // that must not be when there is a verdict about a later recovery.
            Err(_) => {
                estate.left.insert(0, (member, slot));
                estate.not_before = Some(now.after(LATER));
            }
        }
        if estate.left.is_empty() { Time::NEVER } else { now }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::engine::Fault;
    use crate::job::Job;
    use crate::sim::{self, Link, Options as SimOptions};
    use crate::store::Options;
    use crate::store::testing::{expect_timeout, nap, third_attempt};
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    /// Of a partition one key was damaged with its member. Who had locked that key is told that its value is gone, also when
    /// the loss was accepted; who has locked another one of the same partition is not.
    #[test]
    fn only_a_key_that_is_lost_is_lost_to_a_committer() {
        let mut plan = SimOptions::new(2, 7);
        plan.keeps_dead_segments = true;
        let report = sim::run(&plan, |job: Job| {
            let options = Options::new().replicas(1).partitions(8).expected_keys(16).salvage(true);
            let store = crate::store::Store::open(&job, options).expect("open");
            let (inner, victim) = (&store.inner, MemberId(1));
            if job.me() == victim {
                nap(&job, "its death", || false);
            }
            let names = (0..).map(|number| format!("key/{number}").into_bytes());
            let keys: Vec<Vec<u8>> =
                names.filter(|key| store.replicas_of(key) == [victim]).take(40).collect();
            let partition = store.partition_of(&keys[0]).expect("a key");
            let same = |key: &&Vec<u8>| store.partition_of(key) == Ok(partition);
            let [lost, kept] =
                [0, 1].map(|index| keys.iter().filter(same).nth(index).expect("one"));
            let versions = [(lost, "lost"), (kept, "kept")].map(|(key, value)| {
                let value = format!("the value that is {value}");
                store.put(key, value.as_bytes()).expect("put")
            });
            let check = |key: &[u8], version| inner.check_incarnation(key, version);
            assert_eq!((check(lost, versions[0]), check(kept, versions[1])), (Ok(()), Ok(())));
            let mut memory = vec![0; job.segment_len(victim).expect("living") as usize];
            job.get(Epoch::ANY, victim, 0, &mut memory).expect("read");
            let wanted = b"the value that is lost";
            let place =
                memory.windows(wanted.len()).position(|bytes| bytes == wanted).expect("there");
            job.put(Epoch::ANY, victim, place as u64, b"!").expect("damaged");
            job.fence(victim, Time::NEVER).expect("killed");
            let is_lost = Err(StoreError::DataLost { partition });
            assert_eq!(store.get(lost).map(drop), is_lost);
            assert_eq!(
                (check(lost, versions[0]), check(kept, versions[1])),
                (is_lost.clone(), Ok(()))
            );
            store.accept_loss().expect("accepted");
            assert_eq!(
                (check(lost, versions[0]), check(kept, versions[1])),
                (is_lost.clone(), Ok(()))
            );
            // Until the tombstone has been removed, and the floor of the partition is above it.
            job.sleep(Duration::from_secs(1));
            assert_eq!((check(lost, versions[0]), check(kept, versions[1])), (is_lost, Ok(())));
            store.close().expect("closed");
            let _ = job.leave();
        });
        report.expect_ok();
    }

    /// A decision that was not answered in time may still be made: a frost waits until it is known.
    #[test]
    fn a_decision_that_timed_out_is_one_until_it_is_known() {
        for seed in 0..8 {
            let options = SimOptions::new(3, seed).link(Link::Network);
            let is_over = Rc::new(Cell::new(false));
            let report = sim::run(&options, move |job: Job| {
                let options = Options::new().replicas(1).partitions(16).expected_keys(64);
                let store = Store::open(&job, options).expect("open");
                // The intent is at one member, and the keys are at another.
                let stopped = store.replicas_of(&record::intent_key(MemberId(0), 0))[0];
                assert_ne!(stopped, MemberId(0), "with this many partitions");
                let other = MemberId(3 - stopped.0);
                job.sleep(Duration::from_secs(1));
                if job.me() == MemberId(0) {
                    let keys = (0..100u32).map(|number| number.to_le_bytes());
                    let keys: Vec<[u8; 4]> =
                        keys.filter(|key| store.replicas_of(key) == [other]).take(2).collect();
                    let mut tx = third_attempt(&store, |tx| {
                        keys.iter().for_each(|key| tx.put(key, b"new").expect("put"));
                    });
                    job.inject(Fault::Stop(stopped)).expect("a fault");
                    expect_timeout(tx.commit());
                    assert!(store.inner.transactions.is_deciding());
                    job.inject(Fault::Resume(stopped)).expect("a fault");
                    nap(&job, "the decision", || !store.inner.transactions.is_deciding());
                    let found =
                        keys.iter().filter(|key| store.exists(&key[..]).expect("read")).count();
                    assert!(found == 0 || found == 2, "{found}");
                    is_over.set(true);
                }
                nap(&job, "the committer", || is_over.get());
                let _ = store.close();
                let _ = job.leave();
            });
            report.expect_ok();
        }
    }

    /// A transaction that was tried before has locked a key that it only reads. The key is lost and given up, another value is
    /// put there, and the other key is seen without the transaction's change: it has no place any more, and is not told that
    /// it has.
    #[test]
    fn a_locked_key_that_is_only_read_is_lost_to_a_committer() {
        for seed in 0..10 {
            let report =
                sim::run(&SimOptions::new(3, seed).link(Link::of_seed(seed)), |job: Job| {
                    let options = Options::new().replicas(1).partitions(16).expected_keys(16);
                    let store = crate::store::Store::open(&job, options).expect("open");
                    let (committer, holder) =
                        (MemberId(0), store.replicas_of(&intent_key(MemberId(0), 0))[0]);
                    let victim =
                        [1, 2].map(MemberId).into_iter().find(|one| *one != holder).expect("one");
                    if job.me() == victim {
                        return nap(&job, "its death", || false);
                    }
                    let end = || {
                        store.close().expect("closed");
                        let _ = job.leave();
                    };
                    if job.me() != committer {
                        return end();
                    }
                    let key_at = |home| {
                        let names = (0..1000).map(|number| format!("key/{number}").into_bytes());
                        names
                            .into_iter()
                            .find(|key| store.replicas_of(key) == [home])
                            .expect("some key")
                    };
                    let (read, changed) = (key_at(victim), key_at(committer));
                    for key in [&read, &changed] {
                        store.put(key, b"old").expect("put");
                    }
                    let mut tx = third_attempt(&store, |tx| {
                        assert_eq!(tx.get(&read).expect("read").as_deref(), Some(&b"old"[..]));
                        tx.put(&changed, b"new").expect("put");
                    });
                    job.fence(victim, Time::NEVER).expect("killed");
                    store.accept_loss().expect("accepted");
                    store.put(&read, b"of another life").expect("put");
                    assert_eq!(store.get(&changed).expect("read").expect("there").bytes(), b"old");
                    let committed = tx.commit();
                    assert!(matches!(committed, Err(StoreError::DataLost { .. })), "{committed:?}");
                    end();
                });
            report.expect_ok();
        }
    }

    /// The same while the committer is stopped anywhere in its commit. Who was told that a key is lost has changed nothing, and
    /// if another one has seen the other key without the change after the loss, then the change never comes.
    #[test]
    fn who_is_told_that_a_key_which_it_only_read_is_lost_has_changed_nothing() {
        let ends: Rc<RefCell<BTreeMap<String, usize>>> = Rc::default();
        for seed in 0..150 {
            let (stage, ends_here) = (Rc::new(Cell::new(0)), ends.clone());
            let report = sim::run(&SimOptions::new(3, seed), move |job: Job| {
                let options = Options::new().replicas(1).partitions(64).expected_keys(64);
                let store = crate::store::Store::open(&job, options).expect("open");
                let (committer, holder) =
                    (MemberId(0), store.replicas_of(&intent_key(MemberId(0), 0))[0]);
                let victim =
                    [1, 2].map(MemberId).into_iter().find(|one| *one != holder).expect("one");
                let driver = MemberId(3 - victim.0);
                let key_at = |first: MemberId, second: MemberId| {
                    let names = (0..1000).map(|number| format!("key/{number}").into_bytes());
                    let is_right = |key: &Vec<u8>| {
                        let partition = store.partition_of(key).expect("a key");
                        store.inner.placement.preference(partition)[..2] == [first, second]
                    };
                    names.into_iter().find(is_right).expect("some key")
                };
                let (read, changed) = (key_at(victim, driver), key_at(driver, committer));
                if job.me() == committer {
                    for key in [&read, &changed] {
                        store.put(key, b"old").expect("put");
                    }
                    let mut tx = third_attempt(&store, |tx| {
                        assert_eq!(tx.get(&read).expect("read").as_deref(), Some(&b"old"[..]));
                        tx.put(&changed, b"new").expect("put");
                    });
                    stage.set(1);
                    let committed = tx.commit();
                    nap(&job, "the other life", || stage.get() == 2);
                    let is_there =
                        store.get(&changed).expect("read").expect("there").bytes() == b"new";
                    let name = format!("{committed:?}");
                    *ends_here.borrow_mut().entry(name).or_default() += 1;
                    assert_eq!(committed.is_ok(), is_there, "{committed:?}");
                    stage.set(if is_there { 3 } else { 4 });
                } else if job.me() == driver {
                    while stage.get() < 1 {
                        job.sleep(Duration::from_nanos(10));
                    }
                    job.sleep(Duration::from_nanos(100 * seed));
                    job.inject(Fault::Stop(committer)).expect("a fault");
                    job.fence(victim, Time::NEVER).expect("killed");
                    store
                        .accept_loss_of(&[store.partition_of(&read).expect("a key")])
                        .expect("accepted");
                    store.put(&read, b"of another life").expect("put");
                    let is_seen =
                        store.get(&changed).expect("read").expect("there").bytes() == b"new";
                    stage.set(2);
                    job.inject(Fault::Resume(committer)).expect("a fault");
                    nap(&job, "the committer", || stage.get() > 2);
                    assert_eq!(is_seen, stage.get() == 3, "no order fits");
                } else {
                    nap(&job, "its death", || false);
                }
                store.close().expect("closed");
                let _ = job.leave();
            });
            report.expect_ok();
        }
        let ends = ends.borrow();
        assert!(ends.len() == 3 && ends.values().all(|&count| count > 2), "{ends:?}");
    }
    /// The committer is stopped at each of its steps; meanwhile its intent is lost, and given up, and somebody looks at one of its
    /// keys. If it is told that the transaction has happened, then it has, wholly.
    #[test]
    fn who_is_told_that_a_transaction_has_happened_finds_all_of_it_though_the_intent_was_lost() {
        let ends: Rc<RefCell<BTreeMap<[bool; 3], usize>>> = Rc::default();
        for step in (1..).step_by(2) {
            if ends.borrow().contains_key(&[false, true, true]) {
                break;
            }
            let (stage, ends_here) = (Rc::new(Cell::new(0)), ends.clone());
            let report = sim::run(&SimOptions::new(4, step), move |job: Job| {
                let options = Options::new().replicas(1).partitions(64).expected_keys(64);
                let store = crate::store::Store::open(&job, options).expect("open");
                let partition_of =
                    |member| store.partition_of(&intent_key(member, 0)).expect("a key");
                let homes = |partition| store.inner.placement.preference(partition)[..2].to_vec();
                let members = (0..4).map(MemberId);
                let committer =
                    members.clone().find(|one| !homes(partition_of(*one)).contains(one));
                let committer = committer.expect("one whose intent is elsewhere");
                let (partition, victim) =
                    (partition_of(committer), homes(partition_of(committer))[0]);
                let mut others = members.filter(|one| ![committer, victim].contains(one));
                let (driver, other) =
                    (others.next().expect("one"), others.next().expect("another"));
                let keys_at = |home: MemberId| -> Vec<Vec<u8>> {
                    let names = (0..1000).map(|number| format!("key/{number}").into_bytes());
                    names.filter(|key| store.replicas_of(key) == [home]).take(2).collect()
                };
                let keys = [keys_at(driver), keys_at(other)].concat();
                if job.me() == committer {
                    nap(&job, "the values before", || stage.get() == 1);
                    job.inject(Fault::StopAtStep(step)).expect("planned");
                    let done: StoreResult<()> =
                        store.transaction(|tx| keys.iter().try_for_each(|key| tx.put(key, b"new")));
                    let is_late = stage.get() > 1;
                    nap(&job, "the acceptance", || stage.get() == 2);
                    let value =
                        |key: &Vec<u8>| store.get(key).expect("read").expect("there").into_bytes();
                    let count = keys.iter().filter(|key| value(key) == b"new").count();
                    assert!(
                        done.is_err() || count == keys.len(),
                        "{count} of its keys, in step {step}"
                    );
                    let end = [is_late, done.is_ok(), count == keys.len()];
                    *ends_here.borrow_mut().entry(end).or_default() += 1;
                    stage.set(3);
                } else if job.me() == driver {
                    keys.iter().for_each(|key| _ = store.put(key, b"old").expect("put"));
                    stage.set(1);
                    job.sleep(Duration::from_millis(100));
                    job.fence(victim, Time::NEVER).expect("killed");
                    store.accept_loss_of(&[partition]).expect("accepted");
                    let _ = store.get(&keys[step as usize / 2 % 4]).expect("read");
                    stage.set(2);
                    // It may be stopped only now.
                    while stage.get() < 3 {
                        job.inject(Fault::Resume(committer)).expect("a fault");
                        job.sleep(Duration::from_millis(1));
                    }
                } else if job.me() == victim {
                    nap(&job, "its death", || false);
                }
                nap(&job, "the committer", || stage.get() == 3);
                store.close().expect("closed");
                let _ = job.leave();
            });
            report.expect_ok();
        }
        let ends = ends.borrow();
        let late = |is_ok, is_whole| ends.get(&[true, is_ok, is_whole]).copied().unwrap_or(0);
        assert!(late(true, true) > 20 && late(false, false) > 20, "{ends:?}");
    }

    /// A key does not exist, and its primary dies after it has raised the floor to remove another key, and before the other home
    /// has. The key is made and deleted, and then the floor is where it was: who has read before that there is no such key finds
    /// that it is not so any more.
    #[test]
    fn a_key_that_is_made_and_deleted_after_a_death_has_another_mark() {
        for seed in 0..10 {
            let report =
                sim::run(&SimOptions::new(4, seed).link(Link::of_seed(seed)), |job: Job| {
                    let options = Options::new().replicas(2).partitions(16).expected_keys(16);
                    let store = crate::store::Store::open(&job, options).expect("open");
                    let (inner, victim) = (&store.inner, MemberId(1));
                    if job.me() == victim {
                        return nap(&job, "its death", || false);
                    }
                    if job.me() == MemberId(0) {
                        let names = (0..1000).map(|number| format!("key/{number}").into_bytes());
                        let key = names
                            .into_iter()
                            .find(|key| store.replicas_of(key)[0] == victim)
                            .expect("some key");
                        let partition = store.partition_of(&key).expect("a key");
                        // D2 for a key that had a hundred versions.
                        let raise = |home| {
                            inner.run(|op| op.raise_floor(home, partition, 100)).expect("raised")
                        };
                        raise(victim);
                        let mut tx = store.begin();
                        assert_eq!(tx.get(&key), Ok(None));
                        tx.put(b"changed", b"new").expect("put");
                        job.fence(victim, Time::NEVER).expect("killed");
                        store.put(&key, b"made").expect("put");
                        assert!(store.delete(&key).expect("deleted"));
                        store.replicas_of(&key).into_iter().for_each(raise);
                        assert_eq!(tx.commit(), Err(StoreError::Aborted));
                    }
                    store.close().expect("closed");
                    let _ = job.leave();
                });
            report.expect_ok();
        }
    }
    /// One transaction is about to make a key when another one finds that it does not exist. The key is made, and then deleted,
    /// by a call or in a transaction: who found it absent finds that it was there, also if the floor of the partition is far
    /// above its versions, since a key with many of them was removed meanwhile.
    #[test]
    fn a_key_that_is_made_and_deleted_below_the_floor_has_another_mark() {
        for seed in 0..10 {
            let report =
                sim::run(&SimOptions::new(2, seed).link(Link::of_seed(seed)), move |job: Job| {
                    let options = Options::new().replicas(2).partitions(1).expected_keys(16);
                    let store = crate::store::Store::open(&job, options).expect("open");
                    if job.me() == MemberId(0) {
                        let inner = &store.inner;
                        for _ in 0..50 {
                            store.put(b"many", b"value").expect("put");
                        }
                        let mut maker =
                            third_attempt(&store, |tx| tx.put(b"key", b"made").expect("put"));
                        assert!(store.delete(b"many").expect("deleted"));
                        let floor = || inner.run(|op| op.floor(MemberId(0), 0)).expect("read");
                        nap(&job, "its removal", || floor() > 50);
                        let mut tx = store.begin();
                        assert_eq!(tx.get(b"key"), Ok(None));
                        tx.put(b"changed", b"new").expect("put");
                        maker.commit().expect("committed");
                        if seed % 4 < 2 {
                            assert!(store.delete(b"key").expect("deleted"));
                        } else {
                            let deleted: StoreResult<bool> = store.transaction(|tx| {
                                tx.put(b"other", b"")?;
                                tx.delete(b"key")
                            });
                            assert_eq!(deleted, Ok(true));
                        }
                        assert_eq!(tx.commit(), Err(StoreError::Aborted));
                    }
                    store.close().expect("closed");
                    let _ = job.leave();
                });
            report.expect_ok();
        }
    }
}

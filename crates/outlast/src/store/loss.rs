//! Loss: which partitions have no complete copy left, and giving them up: docs/protocol.md, "Loss".
//!
//! A lost partition is given up by its first home, in the configuration c in which it is lost, whoever asks for it:
//!
//! | | step | dies or stops here |
//! |---|---|---|
//! | A1 | enter c: look at the state of every home and stamp it with c. One is complete: not lost, done | nothing has happened; the next who asks asks the first home of the next configuration |
//! | A2 | own state: swap `filling(c)` for `absent(c)` | the home has nothing, as before; what it held was incomplete |
//! | A3 | a new, empty index; raise the floor of versions to c << 48 | nobody looks at an absent home |
//! | A4 | swap `absent(c)` for `complete(d - 1)`, where d is c without those who are leaving | **the partition lives again**, empty; the other homes fill from it |
//!
//! A member that asks sends a message and waits; if the view changes it asks again. That all homes were asked under one
//! view (A1) is what keeps two lives apart: of two members with different views each has to ask one whom the other
//! knows to be dead.
//!
//! A late actor of the old life can have one operation under way, at an address that it learned before: the index is
//! new, so nothing of the new life is there. The counters of the old life began at a smaller configuration.

use super::access::{Halt, Op, Step};
use super::head::{Phase, State};
use super::index::check_place;
use super::layout::{PARTITION_BUCKETS, PARTITION_FLOOR};
use super::mutant::mutant;
use super::open::{Inner, Note};
use super::salvage::Fate;
use super::write::COUNTER_MAX;
use super::{PORT, Store, StoreError, StoreResult};
use crate::engine::{MemberId, MemberSet, Time};
use crate::sync::lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The bits of a version's counter below the partition's incarnation.
pub(super) const INCARNATION_SHIFT: u32 = 48;
/// When to look again for lost partitions if some member did not answer.
const PATIENCE: Duration = Duration::from_millis(100);

type Listener = Arc<dyn Fn(&[usize]) + Send + Sync>;

/// What a member keeps about loss.
pub(super) struct Loss {
    /// Partitions that this member, as their first home, is asked to give up, and by whom.
    wanted: Mutex<Vec<(MemberId, usize)>>,
    /// What first homes could not do, until the one who asked has seen it.
    refusals: Mutex<BTreeMap<usize, StoreError>>,
    listeners: Mutex<Vec<Listener>>,
    /// The epoch under which the listeners were told last.
    told: AtomicU64,
}

impl Default for Loss {
    fn default() -> Loss {
        // At open nothing is lost.
        let told = AtomicU64::new(0);
        Loss {
            wanted: Mutex::default(),
            refusals: Mutex::default(),
            listeners: Mutex::default(),
            told,
        }
    }
}

impl Store {
    /// The partitions that are lost: no complete copy lives, and nobody has accepted that yet.
    pub fn lost_partitions(&self) -> StoreResult<Vec<usize>> {
        self.inner.lost_partitions()
    }

    /// Keys that are lost, as far as survivors can still name them: those that were being copied to a home that lives when
    /// the last complete copy died. There may be more; whoever knows a key asks [`Store::partition_of`]. With
    /// [`super::Options::salvage`] also those whose values were damaged, all of them.
    ///
    /// ```
    /// # use outlast::store::{Options, Store};
    /// # let job = outlast::join()?;
    /// # let store = Store::open(&job, Options::new())?;
    /// for key in store.lost_keys()? {
    ///     eprintln!("{} is lost", String::from_utf8_lossy(&key));
    /// }
    /// store.accept_loss()?;
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lost_keys(&self) -> StoreResult<Vec<Vec<u8>>> {
        let mut keys = Vec::new();
        for partition in self.lost_partitions()? {
            keys.extend(self.inner.run(|op| op.keys_left(partition))?);
        }
        for partition in self.inner.salvage.damaged() {
            keys.extend(self.inner.keys_damaged(partition)?);
        }
        keys.retain(|key| !key.starts_with(super::leave::RESERVED));
        keys.sort();
        keys.dedup();
        Ok(keys)
    }

    /// The partition of a key, as [`StoreError::DataLost`] and [`Store::lost_partitions`] name it.
    pub fn partition_of(&self, key: &[u8]) -> StoreResult<usize> {
        super::check_len(key)?;
        Ok(self.inner.placement.partition(super::placement::hash_key(key)))
    }

    /// Calls `listener` with all lost partitions after each death that leaves some, and with those of which some keys are lost
    /// (see [`Store::lost_keys`]). It runs in this member's background, with
    /// no lock held: it may call the store, and repair waits until it returns.
    pub fn on_loss(&self, listener: impl Fn(&[usize]) + Send + Sync + 'static) {
        lock(&self.inner.loss.listeners).push(Arc::new(listener));
        let _ = self.inner.job.ring(self.me());
    }

    /// Gives up all lost partitions: they are empty afterwards, and calls on them work again. Which ones were lost. Where only some
    /// keys of a partition were lost, when it was salvaged, only those are given up.
    /// Several members may do this at once. What was lost stays lost; versions go on growing.
    pub fn accept_loss(&self) -> StoreResult<Vec<usize>> {
        let mut lost = self.lost_partitions()?;
        for partition in self.inner.salvage.damaged() {
            if !lost.contains(&partition) && !self.inner.keys_damaged(partition)?.is_empty() {
                lost.push(partition);
            }
        }
        self.accept_loss_of(&lost)?;
        Ok(lost)
    }

    /// Gives up these partitions, as [`Store::accept_loss`] does; those that are not lost stay as they are.
    pub fn accept_loss_of(&self, partitions: &[usize]) -> StoreResult<()> {
        let count = self.inner.placement.partitions;
        if let Some(partition) = partitions.iter().find(|&&partition| partition >= count) {
            let reason = format!("there is no partition {partition}; the store has {count}");
            return Err(StoreError::Invalid { reason });
        }
        for &partition in partitions {
            self.inner.accept_loss(partition)?;
            if self.inner.salvage.damaged().contains(&partition) {
                self.inner.accept_marked(partition)?;
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Whether a partition is lost.
    fn is_lost(&self, partition: usize) -> StoreResult<bool> {
        // What is being salvaged is not lost, or not yet.
        Ok(self.fate(partition)? == Fate::Lost)
    }

    fn lost_partitions(&self) -> StoreResult<Vec<usize>> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let mut lost = Vec::new();
        for partition in 0..self.placement.partitions {
            if self.is_lost(partition)? {
                lost.push(partition);
            }
        }
        Ok(lost)
    }

    /// Asks the first home of a lost partition to give it up, and waits until the partition lives again.
    fn accept_loss(&self, partition: usize) -> StoreResult<()> {
        let job = &self.job;
        let limit = job.time_limit();
        let until = job.now().after(limit);
        lock(&self.loss.refusals).remove(&partition);
        let mut asked = None;
        loop {
            let bell = job.bell();
            if !self.is_lost(partition)? {
                return Ok(());
            }
            if let Some(error) = lock(&self.loss.refusals).remove(&partition) {
                return Err(error);
            }
            let view = job.view();
            let homes = self.homes(partition, &view);
            let &first = homes.members.first().ok_or(StoreError::DataLost { partition })?;
            if job.now() >= until {
                return Err(StoreError::Timeout { member: first, limit });
            }
            if asked != Some(view.epoch) {
                asked = Some(view.epoch);
                if first == job.me() {
                    self.want_acceptance(first, partition);
                } else {
                    let note = Note::Accept { partition: partition as u64 };
                    match job.send(first, PORT, &note.encode()) {
                        // Its death changes the view, and the next home is asked.
                        Ok(()) | Err(crate::engine::Error::Dead { .. }) => {}
                        Err(error) => return Err(super::open::engine_error(error)),
                    }
                }
            }
            // Whoever waits serves; a listener that accepts is itself the background.
            self.serve_messages();
            self.accept_some();
            job.park(bell, until);
        }
    }

    /// Notes that keys of a partition are lost, and has the listeners told, if it is news.
    pub(super) fn note_damage(&self, partition: usize) {
        if partition < self.placement.partitions && self.salvage.note_damaged(partition) {
            self.loss.told.store(u64::MAX, Ordering::Release);
            let _ = self.job.ring(self.me());
        }
    }

    /// The keys of a partition that are lost though it lives: none if it is lost as a whole.
    fn keys_damaged(&self, partition: usize) -> StoreResult<Vec<Vec<u8>>> {
        match self.keys_marked(partition) {
            Err(StoreError::DataLost { .. }) => Ok(Vec::new()),
            keys => keys,
        }
    }

    /// Notes that this member is asked to give up a partition.
    pub(super) fn want_acceptance(&self, from: MemberId, partition: usize) {
        if partition < self.placement.partitions {
            lock(&self.loss.wanted).push((from, partition));
            let _ = self.job.ring(self.me());
        }
    }

    /// Notes that a first home could not give up a partition.
    pub(super) fn acceptance_refused(&self, from: MemberId, partition: usize, reason: String) {
        let error = StoreError::OutOfMemory { member: from, reason };
        lock(&self.loss.refusals).insert(partition, error);
    }

    /// Gives up the partitions that this member was asked for. Only one activity at a time makes indexes here.
    pub(super) fn accept_some(&self) {
        loop {
            if lock(&self.loss.wanted).is_empty() || !self.begin_indexes() {
                return;
            }
            let wanted = lock(&self.loss.wanted).pop();
            let Some((from, partition)) = wanted else { return self.end_indexes() };
            let result = self.run(|op| op.accept_loss(partition));
            self.end_indexes();
            let answer = match result {
                Ok(Some(others)) => {
                    tracing::warn!(partition, "a lost partition was given up");
                    self.look_at(partition);
                    let note = Note::Fill { partition: partition as u64 }.encode();
                    // Whoever does not hear it is reminded by repair.
                    others.iter().for_each(|&home| drop(self.job.send(home, PORT, &note)));
                    Note::Accepted { partition: partition as u64 }
                }
                // Not this member's business: whoever asked learns of the newer view and asks another.
                Ok(None) => continue,
                Err(StoreError::Closed) => return,
                Err(error) => {
                    Note::NotAccepted { partition: partition as u64, reason: error.to_string() }
                }
            };
            if from != self.me() {
                let _ = self.job.send(from, PORT, &answer.encode());
            } else if let Note::NotAccepted { reason, .. } = answer {
                self.acceptance_refused(from, partition, reason);
            }
            let _ = self.job.ring(self.me());
        }
    }

    /// Tells the listeners, once for each epoch; when to run again.
    pub(super) fn tell_of_loss(&self) -> Time {
        let epoch = self.job.epoch();
        let listeners = lock(&self.loss.listeners).clone();
        if listeners.is_empty() || self.loss.told.load(Ordering::Acquire) == epoch.0 {
            return Time::NEVER;
        }
        let fates: StoreResult<Vec<Fate>> =
            (0..self.placement.partitions).map(|partition| self.fate(partition)).collect();
        let Ok(fates) = fates else { return self.job.now().after(PATIENCE) };
        if fates.contains(&Fate::Pending) {
            return self.job.now().after(PATIENCE);
        }
        // First: what is noted from here on is told the next time.
        self.loss.told.store(epoch.0, Ordering::Release);
        let mut lost: Vec<usize> =
            (0..fates.len()).filter(|&partition| fates[partition] == Fate::Lost).collect();
        for partition in self.salvage.damaged() {
            match self.keys_damaged(partition) {
                // Somebody has given them up.
                Ok(keys) if keys.is_empty() => {}
                Ok(_) => lost.push(partition),
                Err(_) => {
                    self.loss.told.store(u64::MAX, Ordering::Release);
                    return self.job.now().after(PATIENCE);
                }
            }
        }
        lost.sort_unstable();
        lost.dedup();
        if !lost.is_empty() {
            // These are the program's, and wait as long as its calls do.
            self.set_background(false);
            listeners.iter().for_each(|listener| listener(&lost));
            self.set_background(true);
        }
        if self.job.epoch() == epoch { Time::NEVER } else { self.job.now() }
    }
}

impl Op<'_> {
    /// What incomplete homes of a partition have in their index: keys that were there at some time.
    fn keys_left(&self, partition: usize) -> Step<Vec<Vec<u8>>> {
        let store = self.store;
        let view = store.view(self.epoch).ok_or(Halt::Again)?;
        let mut keys = Vec::new();
        for home in store.homes(partition, &view).members {
            if self.state(home, partition)?.phase() != Phase::Filling {
                continue;
            }
            let buckets =
                self.load(home, self.partition_word(home, partition, PARTITION_BUCKETS))?;
            check_place(home, buckets)?;
            for bucket in 0..store.bucket_count as u64 {
                for node in self.nodes_of(home, buckets + bucket * 8)? {
                    let Some(offset) = node.head.offset() else { continue };
                    if !self.read_block(home, offset)?.is_deleted {
                        keys.push(node.key);
                    }
                }
            }
        }
        if self.is_current() { Ok(keys) } else { Err(Halt::Again) }
    }

    /// A1 to A4. The other homes, which are to fill now; none if the partition was not lost; `None` if another one
    /// is the first home.
    fn accept_loss(&self, partition: usize) -> Step<Option<Vec<MemberId>>> {
        let (store, me) = (self.store, self.store.me());
        // A1.
        match self.config(partition) {
            Err(Halt::Lost(_)) => {}
            Ok(_) => return Ok(Some(Vec::new())),
            Err(halt) => return Err(halt),
        }
        let view = store.view(self.epoch).ok_or(Halt::Again)?;
        let homes = store.homes(partition, &view);
        let stamp = homes.configuration;
        if homes.members.first() != Some(&me) {
            return Ok(None);
        }
        let (absent, lost) = (State::new(Phase::Absent, stamp), State::new(Phase::Lost, stamp));
        let state = self.state(me, partition)?;
        if store.salvage.is_on && state != lost {
            // It is being salvaged; whoever asked looks again.
            return Ok(None);
        }
        // A2.
        if state.is_filling(stamp) || state == lost {
            if !self.swap_state(me, partition, state, absent)? {
                return Err(Halt::Again);
            }
        } else if state != absent {
            return Err(Halt::Again);
        }
        // A3.
        if !(state.is_filling(stamp) && mutant("accept-keeps")) {
            self.make_index(partition)?;
        }
        self.raise_floor(me, partition, stamp << INCARNATION_SHIFT)?;
        // A4. Complete also to those who have not heard yet who is leaving: their number is smaller.
        let unaware = store.placement.homes(store.preference(partition), &view, &MemberSet::new());
        let complete = State::new(Phase::Complete, unaware.configuration - 1);
        if !self.swap_state(me, partition, absent, complete)? {
            return Err(Halt::Again);
        }
        Ok(Some(homes.members.into_iter().filter(|&home| home != me).collect()))
    }

    /// Raises the floor of a partition's versions at a home.
    pub(super) fn raise_floor(&self, home: MemberId, partition: usize, floor: u64) -> Step<()> {
        let word = self.partition_word(home, partition, PARTITION_FLOOR);
        loop {
            let found = self.load(home, word)?;
            if found >= floor || self.swap(home, word, found, floor)? {
                return Ok(());
            }
        }
    }

    /// The floor of a partition's versions at a home.
    pub(super) fn floor(&self, home: MemberId, partition: usize) -> Step<u64> {
        let floor = self.load(home, self.partition_word(home, partition, PARTITION_FLOOR))?;
        if floor >= COUNTER_MAX {
            return Err(Halt::Fail(StoreError::Corrupt {
                member: home,
                what: "a floor cannot be",
            }));
        }
        Ok(floor)
    }
}
